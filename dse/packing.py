"""What it costs to quantise new keys and values: arithmetic or traffic, copies, and kernel launches, in seconds."""

from dse import units
from dse.formulas import attention, dequantize, kv_cache
from dse.plan import KvPlan, TensorGroup
from dse.specs import HardwareSpec


def packed_ever(g: TensorGroup, n_tokens: int) -> int:
    """Tokens quantised by length n, whether or not a window still keeps them; none where a window never packs."""
    return _packed_of(g, g.entered(n_tokens))


def _packed_of(g: TensorGroup, entered: int) -> int:
    if g.window_tokens < g.step_tokens + g.residual_tokens:
        return 0
    return kv_cache.packed_tokens(entered, g.step_tokens, g.residual_tokens)


def seconds(
    device: HardwareSpec, plan: KvPlan, first: int, last: int, paths: dict[str, str], bandwidth: float
) -> dict[str, float]:
    """Seconds per path to quantise what one sequence packs as it grows from `first` to `last` tokens."""
    found = {"engine": 0.0, "fused": 0.0, "materialised": 0.0, "none": 0.0}
    for g in plan.groups:
        if g.layout.needs_unpacking:
            n_tokens = packed_ever(g, last) - packed_ever(g, first)
            elements = n_tokens * g.n_stored_layers * g.n_elements
            path = paths[g.place]
            if path == "materialised":  # FP16 read back, packed form written
                bits = elements * units.FP16_BITS + n_tokens * g.n_stored_layers * g.packed_bits / plan.den
                found[path] += attention.time_at_rate(bits / units.BITS_PER_BYTE, bandwidth)
            else:
                found[path] += attention.time_at_rate(elements, device.rate(path).si)
    return found


def copy_s(device: HardwareSpec, plan: KvPlan, first: int, last: int, paths: dict[str, str], bandwidth: float) -> float:
    """Seconds that one sequence pays, from `first` to `last` tokens, for code that extends its buffers by copying.

    Only where a method's released GPU code does so, and only on devices that run such code (those with a
    `kernel_launch`).
    """
    if not device.kernel_launch.si:
        return 0.0
    bits = 0.0
    for g in plan.groups:
        if g.quantizer.family.gpu_code.copies_to_append and paths[g.place] != "engine":
            copied = dequantize.copied_tokens(
                packed_ever(g, first) // g.step_tokens,
                packed_ever(g, last) // g.step_tokens,
                g.step_tokens,
                _packed_of(g, g.window_tokens) // g.step_tokens,
            )
            bits += copied * g.n_stored_layers * g.packed_bits / plan.den
    return attention.time_at_rate(bits / units.BITS_PER_BYTE, bandwidth)


def launched(plan: KvPlan, paths: dict[str, str]) -> list[tuple[TensorGroup, int]]:
    """Tensors that the cores pack and unpack, each with its side: 0 keys, 1 values."""
    return [
        (g, 0 if g.which == "key" else 1)
        for g in plan.groups if g.layout.needs_unpacking and paths[g.place] in ("fused", "materialised")
    ]  # fmt: skip


def copies(plan: KvPlan, first: int, last: int, paths: dict[str, str]) -> int:
    """FP16 copies of one layer's keys, or values, written over the decode steps that read the lengths first..last."""
    return sum(
        g.n_read_layers * steps_with_packed(g, first, last)
        for g, _ in launched(plan, paths) if paths[g.place] == "materialised"
    )  # fmt: skip


def kernels(g: TensorGroup, side: int) -> tuple[int, int]:
    """Extra kernels per layer for a decode step and for a packing event; more where sinks are kept."""
    code = g.quantizer.family.gpu_code
    if not g.layout.pool_rows:
        return code.read[side], code.pack[side]
    return code.read[side] + code.pool_read[side], code.pack[side] + code.pool_pack[side]


def read_launches(plan: KvPlan, first: int, last: int, paths: dict[str, str]) -> int:
    """Extra kernels for reading over the decode steps that read the lengths first..last, once something is packed."""
    return sum(
        g.n_read_layers * kernels(g, side)[0] * steps_with_packed(g, first, last) for g, side in launched(plan, paths)
    )


def steps_with_packed(g: TensorGroup, first: int, last: int) -> int:
    """Lengths among first..last at which a tensor holds packed tokens."""
    starts = g.step_tokens + g.residual_tokens
    return max(last + 1 - max(first, g.length_of(starts)), 0) if g.read_window_tokens >= starts else 0


def pack_launches(plan: KvPlan, first: int, last: int, paths: dict[str, str]) -> int:
    """Extra kernels for packing as every sequence grows from `first` to `last` tokens, step by step."""
    return sum(
        g.n_stored_layers * kernels(g, side)[1]
        * ((packed_ever(g, last) - packed_ever(g, first)) // g.step_tokens)
        for g, side in launched(plan, paths)
    )  # fmt: skip


def prompt_launches(plan: KvPlan, n_tokens: int, paths: dict[str, str]) -> int:
    """Extra kernels for packing a whole prompt: one event per layer and tensor that packs anything."""
    return sum(
        g.n_stored_layers * kernels(g, side)[1]
        for g, side in launched(plan, paths) if packed_ever(g, n_tokens)
    )  # fmt: skip
