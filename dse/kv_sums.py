"""Attention and dequantisation summed over all decode steps of a generation, ideal or calibrated."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dse import packing, units
from dse.formulas import attention, calibrated, dequantize, generation, scheduling
from dse.plan import KvPlan, TensorGroup
from dse.specs import HardwareSpec, StackSpec
from dse.specs_stacks import PackedFit
from dse.workload import Workload

Paths = dict[str, str]


@dataclass(frozen=True)
class KvSums:
    """Seconds summed over the steps. `read`, `compute`, `unit` and `fixed` say what attention is made of."""

    attention: float
    read: float
    compute: float
    #: scheduling of work units, launches and splits: none in the ideal model
    unit: float
    fixed: float
    #: what the units are busy unpacking, and what that adds to attention; both with materialised traffic
    unpack_busy: float
    unpack_exposed: float
    materialised: float
    pack_busy: float
    pack_exposed: float


def ideal(device: HardwareSpec, plan: KvPlan, work: Workload, n_sequences: int, paths: Paths) -> KvSums:
    """Peak rates: max(FLOP / F, KV bytes / BW), straight piece by straight piece.

    All sequences cost the same, so one is summed and counts `n_sequences` times.
    """
    one = _one_sequence(device, plan, work, paths, engine_hides(device, n_sequences))
    return KvSums(*(n_sequences * part for part in one))


def _one_sequence(
    device: HardwareSpec, plan: KvPlan, work: Workload, paths: Paths, hides: float
) -> tuple[float, float, float, float, float, float, float, float, float, float]:
    """The fields of `KvSums` for one of the sequences; `hides` is `engine_hides` of all of them."""
    bandwidth, peak = device.memory_bandwidth.si, device.peak_flops.si
    per_byte = units.BITS_PER_BYTE * plan.den
    engine_rate, fused_rate = device.rate("engine").si, device.rate("fused").si
    per_path = packing.seconds(device, plan, work.input_tokens, work.final_tokens, paths, bandwidth)
    pack_hidden = per_path["engine"] / work.output_tokens
    pack_paid = per_path["fused"] + per_path["materialised"]
    total_attention = read = compute = unpack_busy = unpack_exposed = materialised = pack_exposed = 0.0
    for piece in plan.pieces(work.input_tokens + 1, work.final_tokens, paths):
        m = piece.n_steps
        read_0 = attention.time_at_rate(piece.read_bits / per_byte, bandwidth)
        read_1 = attention.time_at_rate(piece.read_slope / per_byte, bandwidth)
        flop_0 = attention.time_at_rate(piece.flops, peak)
        flop_1 = attention.time_at_rate(piece.flops_slope, peak)
        total_attention += generation.sum_of_max2(flop_0, flop_1, read_0, read_1, 0, m)
        read += generation.sum_of_line(read_0, read_1, 0, m)
        compute += generation.sum_of_line(flop_0, flop_1, 0, m)
        (engine_0, engine_1), (fused_0, fused_1) = piece.unpacked["engine"], piece.unpacked["fused"]
        unpack_0 = engine_0 / engine_rate + fused_0 / fused_rate
        unpack_1 = engine_1 / engine_rate + fused_1 / fused_rate
        unpack_busy += generation.sum_of_line(unpack_0, unpack_1, 0, m)
        behind = (flop_0, flop_1, read_0, read_1)
        for_engine = tuple(hides * line for line in behind)
        hidden_by = for_engine if engine_0 or engine_1 else behind
        unpack_exposed += generation.sum_of_excess(*hidden_by, unpack_0, unpack_1, m)
        extra_0, extra_1 = (dequantize.materialised_bytes(n) / bandwidth for n in piece.unpacked["materialised"])
        materialised += generation.sum_of_line(extra_0, extra_1, 0, m)
        if pack_hidden:
            pack_exposed += generation.sum_of_excess(*for_engine, pack_hidden, 0.0, m)
    return (
        total_attention,
        read,
        compute,
        0.0,
        0.0,
        unpack_busy + materialised,
        unpack_exposed + materialised,
        materialised,
        pack_hidden * work.output_tokens + pack_paid,
        pack_exposed + pack_paid,
    )


def engine_hides(device: HardwareSpec, n_sequences: int) -> float:
    """Share of attention's time behind which engine work can hide: all of it where nothing is known of the cores."""
    if device.token_cores is None:
        return 1.0
    return float(scheduling.hideable_share(scheduling.busy_cores(n_sequences, device.token_cores.count)))


def in_generation(device: HardwareSpec, n_sequences: int) -> HardwareSpec:
    """The device as decode steps have it: with the arithmetic of the cores that have a token to work on."""
    if device.token_cores is None or n_sequences >= device.token_cores.count:
        return device
    share = n_sequences / device.token_cores.count
    peaks = {name: getattr(device, name) for name in ("peak_flops", "peak_flops_fp8", "peak_ops_int8")}
    return device.model_copy(
        update={name: rate.model_copy(update={"value": rate.value * share}) for name, rate in peaks.items() if rate}
    )


def calibrated_sums(
    device: HardwareSpec, stack: StackSpec, plan: KvPlan, work: Workload, n_sequences: int, paths: Paths
) -> KvSums:
    """The kernels of a software stack: ceilings joined by a root of squares (docs/calibration.md), layer by layer.

    What packed elements add to the core ceiling over 16-bit ones is the exposed time of unpacking. All sequences cost
    the same, so one is summed and counts `n_sequences` times; only starts, and cores that idle for lack of work units,
    depend on how many there are.
    """
    first, last = work.input_tokens + 1, work.final_tokens
    one = [0.0] * 6
    for index, (_, n_layers) in enumerate(plan.layers):
        kernel = LayerKernel.of(device, stack, plan, index, n_sequences, paths)
        for stretch in kernel.reads(plan, index, first, last):
            one = [total + n_layers * more for total, more in zip(one, kernel.piece(stretch), strict=True)]
    stored, plain, read, compute, unit, fixed = one
    materialised = unpack_busy = 0.0
    copies = copy_bandwidth(device, stack)
    for piece in plan.pieces(first, last, paths) if plan.materialised(paths) else ():
        extra = (dequantize.materialised_bytes(n) / copies for n in piece.unpacked["materialised"])
        materialised += generation.sum_of_line(*extra, 0, piece.n_steps)
    for index, g in enumerate(plan.groups):
        if not g.layout.needs_unpacking or paths[g.place] not in ("fused", "engine"):
            continue
        if rate := core_rate(device, stack, g, paths[g.place]) * _n_cores(device):
            elements = g.n_read_layers * g.n_elements
            for n_steps, *packed_line in plan.few(
                ("packed", index, first, last),
                lambda g=g: _packed_lines(plan, g, first, last),  # type: ignore[misc]
            ):
                line = (attention.time_at_rate(elements * n, rate) for n in packed_line)
                unpack_busy += generation.sum_of_line(*line, 0, n_steps)
    reached, n = stack_bandwidth(device, stack), n_sequences
    packed = packing.seconds(device, plan, work.input_tokens, work.final_tokens, paths, reached)
    pack_s = packed["fused"] + packed["materialised"]
    return KvSums(
        fixed + n * plain, n * read, n * compute, n * unit, fixed, n * (unpack_busy + materialised),
        n * (stored - plain + materialised), n * materialised, n * (pack_s + packed["engine"]), n * pack_s,
    )  # fmt: skip


def _packed_lines(plan: KvPlan, g: TensorGroup, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """(number of steps, packed tokens read in the first, what each step adds) of every straight piece."""
    for start, n_steps in plan.spans(first, last, [g]):
        yield n_steps, g.read_packed(start), g.read_packed_slope(start)


def stack_bandwidth(device: HardwareSpec, stack: StackSpec | None) -> float:
    """Bytes per second that attention kernels reach: the peak in the ideal model."""
    bandwidth = device.memory_bandwidth.si
    return bandwidth * stack.attention.memory_frac.si if stack and stack.attention else bandwidth


def copy_bandwidth(device: HardwareSpec, stack: StackSpec) -> float:
    """Bytes per second at which code writes and reads FP16 copies of the cache: as fitted, else as attention reads."""
    fit = stack.materialised
    return float(device.memory_bandwidth.si * fit.memory_frac.si) if fit else stack_bandwidth(device, stack)


def core_rate(device: HardwareSpec, stack: StackSpec, group: TensorGroup, path: str) -> float:
    """Packed elements per second and core: as fitted, else the device's (assumed) rate; 0 stands for no ceiling."""
    if fit := packed_fit(stack, group, path):
        return float(fit.core_rate.si) if fit.core_rate else 0.0
    if path not in ("fused", "engine"):
        return float(stack.attention.core_rate.si) if stack.attention and stack.attention.core_rate else 0.0
    return device.rate(path).si / _n_cores(device)


def packed_fit(stack: StackSpec, group: TensorGroup, path: str) -> PackedFit | None:
    """What was fitted for keys or values stored like this, where a kernel unpacks them; it may know no ceiling."""
    return stack.kv.get(kv_code(group)) if path == "fused" else None  # type: ignore[call-overload]


def _n_cores(device: HardwareSpec) -> int:
    return device.n_cores.count if device.n_cores else 1


def kv_code(group: TensorGroup) -> str:
    """How keys or values are stored, as far as kernels differ: fp16, fp8, int8, int4 or int2."""
    if not group.layout.needs_unpacking:
        return "fp16"
    if group.quantizer.family.name == "fp8":
        return "fp8"
    bits = group.layout.packed["payload"] / group.n_elements
    return "int8" if bits > 4 else "int4" if bits > 2 else "int2"


class _Read(NamedTuple):
    """What one sequence reads of a layer over a straight piece: amounts in its first step, and what each step adds."""

    n_steps: int
    entered: int
    length: int
    length_slope: int
    flops: int
    flops_slope: int
    bits: int
    bits_slope: int
    #: by group: (tokens read, slope, packed ones among them, slope)
    tokens: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True)
class LayerKernel:
    """Decode attention of one layer and sequence of a running batch: what does not depend on the length.

    `n_units` are those of the whole batch; `unit_s` is what one sequence takes to be scheduled.
    """

    groups: tuple[TensorGroup, ...]
    n_units: int
    unit_s: float
    n_cores: int
    io_bytes: int
    flops_per_token: int
    n_copies: int
    terms: dict[str, float]
    #: seconds of one core for an element that is packed, and for one that is not, by group
    packed_core_s: tuple[float, ...]
    plain_core_s: float
    bandwidth: float
    peak: float
    per_byte: int

    @classmethod
    def of(
        cls, device: HardwareSpec, stack: StackSpec, plan: KvPlan, index: int, n_sequences: int, paths: Paths
    ) -> "LayerKernel":
        layer = plan.layers[index][0]
        groups = tuple(g for g in plan.groups if g.shape_index == index)
        n_q_heads = plan.model.n_q_heads
        terms = stack.attention_terms()
        fused = [fit for g in groups if (fit := packed_fit(stack, g, paths[g.place]))]
        terms["launch_s"] = max([terms["launch_s"], *(fit.launch.si for fit in fused)])
        rate = terms["core_rate_per_s"]
        plain = 1 / rate if rate else 0.0
        rates = [core_rate(device, stack, g, paths[g.place]) if g.layout.needs_unpacking else rate for g in groups]
        return cls(
            groups, n_sequences * layer.n_kv_heads,
            calibrated.attention_unit_s(layer.n_kv_heads, terms["unit_s"], _n_cores(device)), _n_cores(device),
            calibrated.attention_io_bytes(1, n_q_heads, layer.score_dim),
            attention.attention_flops_per_token(n_q_heads, layer.score_dim),
            calibrated.layout_copies(n_sequences, n_q_heads, layer.n_kv_heads), terms,
            tuple(max(1 / rate, plain) if rate else plain for rate in rates), plain,
            device.memory_bandwidth.si, device.peak_flops.si, units.BITS_PER_BYTE * plan.den,
        )  # fmt: skip

    @property
    def busy_from(self) -> int:
        """Tokens from which on every core has work: unpacking is a straight line of the tokens from there."""
        return -(-calibrated.SPLIT_TOKENS * self.n_cores // self.n_units)

    @property
    def breaks(self) -> list[int]:
        """Contexts at which a straight piece ends beside those of the groups: the kernel splits, all cores have work.

        Up to 128 tokens the cores at work do not depend on the length, and without a core ceiling they do not count.
        """
        waits = self.busy_from > calibrated.SPLIT_TOKENS and any((self.plain_core_s, *self.packed_core_s))
        entered = [calibrated.SPLIT_TOKENS + 1, *([self.busy_from] if waits else [])]
        return [self.groups[0].length_of(n) for n in entered]

    def reads(self, plan: KvPlan, index: int, first: int, last: int) -> Iterable[_Read]:
        """What the steps that read the lengths first..last read of layer shape `index`, by straight pieces."""
        inside = tuple(sorted({at for at in self.breaks if first < at <= last}))
        return plan.few(("reads", index, first, last, inside), lambda: self._reads(plan, first, last, inside))

    def _reads(self, plan: KvPlan, first: int, last: int, breaks: tuple[int, ...]) -> Iterator[_Read]:
        keys = self.groups[0]
        for start, n_steps in plan.spans(first, last, self.groups, breaks):
            length, grows = keys.read(start), keys.read_token_slope(start)
            yield _Read(
                n_steps, keys.entered(start), length, grows,
                length * self.flops_per_token + keys.stored(start) * keys.index_flops,
                grows * self.flops_per_token + keys.stored_slope(start) * keys.index_flops,
                sum(g.read_bits(start) for g in self.groups), sum(g.read_slope(start) for g in self.groups),
                tuple((
                    g.read(start), g.read_token_slope(start),
                    *((g.read_packed(start), g.read_packed_slope(start)) if g.layout.needs_unpacking else (0, 0)),
                ) for g in self.groups),
            )  # fmt: skip

    def _core_lines(self, stretch: _Read) -> tuple[tuple[float, float], tuple[float, float]]:
        """Core-seconds in the first step and their slope: of the elements as stored, and of as many 16-bit ones."""
        stored = [0.0, 0.0]
        plain = [0.0, 0.0]
        for g, packed_s, (kept, grows, packed, packs) in zip(
            self.groups, self.packed_core_s, stretch.tokens, strict=True
        ):
            n = g.n_elements
            stored[0] += n * (packed * packed_s + (kept - packed) * self.plain_core_s)
            stored[1] += n * (packs * packed_s + (grows - packs) * self.plain_core_s)
            plain[0] += n * kept * self.plain_core_s
            plain[1] += n * grows * self.plain_core_s
        return (stored[0], stored[1]), (plain[0], plain[1])

    def piece(self, stretch: _Read) -> tuple[float, ...]:
        """Sums over a straight piece, of one sequence: (the root with elements as stored, and with 16-bit ones, memory,
        compute, unit), and the fixed seconds, which all sequences share."""
        terms, n_steps = self.terms, stretch.n_steps
        kv_bytes, kv_slope = stretch.bits / self.per_byte, stretch.bits_slope / self.per_byte
        memory = (
            calibrated.attention_memory_s(kv_bytes, self.io_bytes, terms["memory_frac"], self.bandwidth),
            calibrated.attention_memory_s(kv_slope, 0, terms["memory_frac"], self.bandwidth),
        )
        compute = (
            calibrated.attention_compute_s(stretch.flops, self.peak),
            calibrated.attention_compute_s(stretch.flops_slope, self.peak),
        )
        fixed = terms["launch_s"] + terms["copy_s"] * self.n_copies
        fixed += terms["split_s"] if stretch.length > calibrated.SPLIT_TOKENS else 0.0
        return (
            *self._roots(stretch, memory, compute), generation.sum_of_line(*memory, 0, n_steps),
            generation.sum_of_line(*compute, 0, n_steps), n_steps * self.unit_s, n_steps * fixed,
        )  # fmt: skip

    def _roots(self, stretch: _Read, memory: tuple[float, float], compute: tuple[float, float]) -> Iterator[float]:
        """Sums of the roots of squares: with the elements as stored, and with 16-bit ones."""
        unit = self.unit_s
        window, entered, n_steps = self.groups[0].read_window_tokens, stretch.entered, stretch.n_steps
        for first, slope in self._core_lines(stretch):
            split = calibrated.SPLIT_TOKENS < entered < self.busy_from and window > calibrated.SPLIT_TOKENS
            if (first or slope) and split:  # more cores join with every token: no straight line
                total = 0.0
                for i in range(n_steps):
                    cores = calibrated.active_cores(min(entered + i, window), self.n_units, self.n_cores)
                    lines = (memory[0] + memory[1] * i, 0.0, unit, 0.0, (first + slope * i) / cores, 0.0)
                    total += generation.sum_of_root(*lines, compute[0] + compute[1] * i, 0.0, 1)
                yield total
                continue
            cores = calibrated.active_cores(min(entered, window), self.n_units, self.n_cores)
            yield generation.sum_of_root(*memory, unit, 0.0, first / cores, slope / cores, *compute, n_steps)
