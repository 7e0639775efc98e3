"""One long context over a ring of equal devices: how long it can be, the time of its prompt and of a decode step."""

from dataclasses import replace
from typing import Any

from dse.core import units
from dse.core.errors import InputError, show
from dse.core.field import check_whole
from dse.model import assumptions
from dse.model.formulas import attention, calibrated, kv_cache, ring
from dse.model.generation import generation_of
from dse.model.kv_bytes import limits_for
from dse.model.kv_layout import KvPlan
from dse.model.peak_memory import MAX_CONTEXT_TOKENS, extra_bits, peak_lengths
from dse.model.point import Point
from dse.model.records import NO_LIMIT
from dse.model.results.ring import RING
from dse.model.stacks import kind_of
from dse.model.step import Run, run_of, terms_of
from dse.specs import workload
from dse.specs.device_and_model import ASSUMED, HardwareSpec, LayerKV, Quantity
from dse.specs.workload import Workload

MAX_RING = 4096
#: PCIe 4.0, 16 lanes, one direction
_PCIE = Quantity(value=32, unit="GB/s", kind=ASSUMED, source="assumed: PCIe 4.0 x16, one direction; give --link")


def evaluate(
    device: HardwareSpec, plan: KvPlan, work: Workload, n_ring: int, link: Quantity | None = None
) -> dict[str, Any]:
    """A batch of equal requests whose contexts lie in blocks on `n_ring` devices; keys as in `RING`.

    Every device holds all weights. Times are None where the context does not fit. Ideal or calibrated as `dse point`;
    with one device the same numbers as there. Raises InputError for a ring of no or too many devices, and for a
    workload that shares prefixes, pages memory, drops tokens or splits the model (`--tp` and its like), which the model
    of a ring does not know.
    """
    check_whole("devices", n_ring, 1, MAX_RING)
    for name, value, only in (
        ("prefix", work.prefix_tokens, 0),
        ("samples", work.samples, 1),
        ("kv-offload", work.kv_offload, 0.0),
        ("admission", work.admission or "reserve", "reserve"),
        ("tokens", work.tokens, "full"),
    ):
        if value != only:
            raise InputError(f"{name} = {show(value)}: a ring knows {only} only: leave it out")
    for name in workload.DEPLOYMENT:
        if (value := getattr(work, name)) != workload.ASKED[name].default:
            raise InputError(
                f"{workload.ASKED[name].name} = {show(value)}: devices of a ring hold all weights each: leave it out"
            )
    if plan.model.read_limit_tokens:
        raise InputError(f"model = {plan.model.name}: its index chooses among all tokens, which a ring does not know")
    if not all(layer.key_dim and layer.tokens_per_entry == 1 for layer in plan.model.layers):
        raise InputError(
            f"model = {plan.model.name}: has layers of a constant state, of a compressed cache or of neither, whose "
            "tokens a ring does not know how to share"
        )
    pair = device.links.pair_bandwidth if device.links else None  # a ring sends to one neighbour
    link = link or pair or device.link_bandwidth or _PCIE
    work = replace(work, batch=work.batch or 1, admission="reserve")
    point, as_wide = Point(device, plan, work), replace(work, activation_bits=units.FP16_BITS)
    plan, paths, stack = point.plan, point.paths, point.stack
    block = ring.ring_block_tokens(work.final_tokens, n_ring)
    alone = _longest_block(point, 0)
    longest = _longest_block(point, _buffer_bytes(plan, n_ring))
    longest = None if longest is None else n_ring * longest
    result: dict[str, Any] = dict.fromkeys(RING)
    result.update(
        {
            "device": device.name,
            "model": plan.model.name,
            "quantizer": plan.quantizer_name,
            "model_kind": kind_of(stack, work),
            "n_ring": n_ring,
            "batch": point.batch,
            "input_tokens": work.input_tokens,
            "output_tokens": work.output_tokens,
            "block_tokens": block,
            "link_bytes_per_s": link.si,
            "max_context_tokens": longest,
            "max_context_tokens_alone": alone,
            "feasible": longest is None or longest >= work.final_tokens,
            "kv_bytes_per_device": point.to_bytes(point.batch * plan.bits(block)),
            "buffer_bytes_per_device": point.batch * block * _buffer_bytes(plan, n_ring),
            "hiding_block_tokens": max(
                ring.ring_hiding_block_tokens(
                    _kv_bytes(layer), _pair_flops(plan, layer), int(_reached(device, stack is not None)), int(link.si)
                )
                for layer in plan.model.layers
            ),
            "assumptions": _assumptions(assumptions.of(device, plan, paths, stack, as_wide), device, link, n_ring),
        }
    )
    if not result["feasible"]:
        result["infeasible_reason"] = _reason(point, longest or 0)
        return result
    prompt, wide = ring.ring_block_tokens(work.input_tokens, n_ring), Point(device, plan, as_wide)

    def one(input_tokens: int, output_tokens: int = 1) -> Run:  # a device with its own block
        design = wide.design._replace(input_tokens=input_tokens, output_tokens=output_tokens)
        made = generation_of(design)
        run: Run = run_of(design, made, terms_of(design, made), point.batch)
        return run

    # the mean over a packed group around the block's end: requests stand at different places of theirs
    half = min(max(g.step_tokens for g in plan.groups) // 2, max(block - 2, 0))
    step, hop_s = one(max(block - half - 1, 1), max(2 * half, 1)).wave, device.kernel_launch.si
    pass_s = sum(
        layer.n_layers
        * ring.ring_pass_s(
            n_ring, ring.ring_message_bytes(point.batch, plan.model.n_q_heads, layer.score_dim), link.si, hop_s
        )
        for layer in plan.model.layers
    )
    peak = _reached(device, stack is not None)
    rounds = [_rounds_s(plan, layer, point, prompt, n_ring, peak, link.si, hop_s) for layer in plan.model.layers]
    result.update(
        {
            **{name: getattr(step, name) for name in ("linear_s", "attention_s", "quantize_s", "dequantize_s")},
            "pass_s": pass_s,
            "decode_step_s": step.decode_step_s + pass_s,
            "prefill_s": one(prompt).wave.prefill_s + sum(total for total, _ in rounds),
            "exposed_transfer_s": sum(exposed for _, exposed in rounds),
        }
    )
    return result


def _reason(memory: Point, longest: int) -> str:
    """Why the context does not fit, and what to do."""
    if memory.free_bytes < 0:
        return f"{memory.infeasible_reason}; every device of a ring holds all weights: take fewer bits a weight"
    return (
        f"{memory.work.final_tokens:,} tokens of {memory.batch:,} at once: at most {longest:,} fit: take "
        "more devices, fewer requests or fewer bits"
    )


def _assumptions(names: list[str], device: HardwareSpec, link: Quantity, n_ring: int) -> list[str]:
    """Names of assumed numbers, those of the transfers included."""
    used = {"link_bandwidth": link, "kernel_launch": device.kernel_launch}  # a transfer starts as a kernel does
    of_link = [name for name, number in used.items() if number.kind == ASSUMED and number.si and n_ring > 1]
    return list(dict.fromkeys([*names, *of_link]))


def _reached(device: HardwareSpec, is_calibrated: bool) -> float:
    """FLOP/s of attention's products: the peak, or the share of it that kernels reach."""
    return device.peak_flops.si * (calibrated.ATTENTION_FLOPS_FRAC if is_calibrated else 1.0)


def _pair_flops(plan: KvPlan, layer: LayerKV) -> int:
    return int(attention.attention_flops_per_token(plan.model.n_q_heads, layer.score_dim))


def _kv_elements(layer: LayerKV) -> int:
    return layer.n_kv_heads * (layer.key_dim + layer.value_dim)


def _kv_bytes(layer: LayerKV) -> int:
    """Bytes of a token's keys and values of one layer as they are passed: FP16."""
    return _kv_elements(layer) * units.FP16_BITS // units.BITS_PER_BYTE


def _buffer_bytes(plan: KvPlan, n_ring: int) -> int:
    """Bytes a token of a block, of the widest layer, while blocks go round; none without a ring."""
    widest = max(map(_kv_elements, plan.model.layers))
    elements = ring.ring_buffer_elements(widest, plan.model.hidden_size) if n_ring > 1 else 0
    return int(elements * units.FP16_BITS // units.BITS_PER_BYTE)


def _longest_block(point: Point, buffer_bytes: int) -> int | None:
    """Longest block of every request that a device holds, with every shorter one; None where there is no limit.

    Buffers are `buffer_bytes` a token.
    """
    batch, free, design = point.batch, point.free_bytes * point.unit, point.design
    limits = limits_for(design.policy, design.input_tokens)

    def fits(n: int) -> bool:
        return all(
            batch * (point.plan.bits(s) + extra_bits(design, limits, s) + s * buffer_bytes * point.unit) <= free
            for s in peak_lengths(design, limits, 0, 1, n)
        )

    if not fits(1):
        return 0
    high = 2
    while high <= MAX_CONTEXT_TOKENS and fits(high):
        high *= 2
    if high > MAX_CONTEXT_TOKENS:
        return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _rounds_s(
    plan: KvPlan, layer: LayerKV, point: Point, block: int, n_ring: int, peak: float, link: float, hop_s: float
) -> tuple[float, float]:
    """Seconds that equal layers add to a prompt beyond each device's own block, and what of it is exposed transfer.

    While a block is computed the next one arrives: max of the two, hop by hop, the last block without one.
    """
    window = layer.window or NO_LIMIT  # of chunks too: at most twice their pairs
    pair_s = attention.time_at_rate(point.batch * _pair_flops(plan, layer), peak)
    own_s = kv_cache.sum_of_kept_tokens(block, window) * pair_s
    transfer_s = ring.ring_transfer_s(point.batch * block * _kv_bytes(layer), link, hop_s)
    n_blocks = ring.ring_block_tokens(point.work.input_tokens, block)
    compute_s, total_s, exposed_s = own_s, 0.0, 0.0
    for distance in range(1, min(n_blocks, n_ring)):
        pairs = ring.ring_block_pairs(block, distance, window)
        if not pairs:
            break
        waits_s = max(0.0, transfer_s - compute_s)
        compute_s = pairs * pair_s
        total_s, exposed_s = total_s + waits_s + compute_s, exposed_s + waits_s
    return layer.n_layers * total_s, layer.n_layers * exposed_s
