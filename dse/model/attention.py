"""Attention, unpacking and quantising summed over the decode steps of one of the sequences that run together.

At peak rates, straight piece by straight piece; or as the measured kernels of a software stack run: ceilings joined by
a root of squares (docs/explanation/calibration.md), layer by layer, where what packed elements add to the core ceiling
over 16-bit ones is the exposed time of unpacking. All sequences cost the same, so one is summed; only starts, idle
cores and what engines hide depend on how many there are.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from dse.core.compiling import compilable, making
from dse.model.capacity import free_bytes
from dse.model.formulas import attention, calibrated, generation, scheduling
from dse.model.formulas.generation import Line
from dse.model.generation import Generation
from dse.model.kv_bytes import (
    Limits,
    entered_tokens,
    length_of_entered,
    next_break,
    read_window_of,
    reading_of,
    seen_tokens,
    stored_tokens,
    token_slope,
    window_of,
)
from dse.model.records import ENGINE, FUSED, MATERIALISED, NO_LIMIT, AttentionKernel, Design, Tensor


class Sums(NamedTuple):
    """Seconds over all decode steps of one sequence, but for `fixed_s`, which all sequences share."""

    attention_s: float
    #: launches and splits: none in the ideal model
    fixed_s: float
    #: what attention is made of, `unit_s` being the scheduling of work units
    read_s: float
    compute_s: float
    unit_s: float
    #: what unpacking and quantising add, and what the units are busy with them; copies included
    unpack_s: float
    quantize_s: float
    unpack_busy_s: float
    quantize_busy_s: float
    copies_s: float


NO_SUMS = Sums(
    attention_s=0.0,
    fixed_s=0.0,
    read_s=0.0,
    compute_s=0.0,
    unit_s=0.0,
    unpack_s=0.0,
    quantize_s=0.0,
    unpack_busy_s=0.0,
    quantize_busy_s=0.0,
    copies_s=0.0,
)


class Quantising(NamedTuple):
    """Seconds by path to quantise what one sequence adds."""

    engine_s: float
    fused_s: float
    materialised_s: float


@compilable
def reached_bandwidth(design: Design) -> float:
    """Bytes per second that attention kernels reach: the peak in the ideal model."""
    return design.device.bandwidth_bytes_per_s * design.stack.memory_frac


@compilable
def busy_share(design: Design, n_sequences: int, n_rows: int) -> float:
    """Share of the peak rate of a decode step of `n_sequences`: of the cores that have a token to work on, where each
    takes one, and of the rows of systolic arrays that `n_rows` fill."""
    cores, rows = design.device.token_cores, design.device.array_rows
    if cores and n_sequences < cores:
        return n_sequences / cores
    return scheduling.filled_share(n_rows, rows) if rows else 1.0


@compilable
def peak_flops(design: Design, n_sequences: int) -> float:
    """Peak rate of attention in a decode step of `n_sequences`."""
    share = busy_share(design, n_sequences, design.model.queries_per_head)
    return design.device.peak_flops * share * design.device.peak_flops_unit


@compilable
def hideable_share(design: Design, n_sequences: int) -> float:
    """Share of attention behind which engine work can hide: all of it where nothing is known of the cores."""
    if design.device.token_cores == 0:
        return 1.0
    return scheduling.hideable_share(scheduling.busy_cores(n_sequences, design.device.token_cores))


@making
def quantising(design: Design, bandwidth: float, amounts: Sequence[float]) -> Quantising:
    """Seconds by path for `amounts` of the tensors (elements, or bytes through memory); in registers maybe none."""
    engine = fused = materialised = 0.0
    for t in range(len(design.tensors)):
        g = design.tensors[t]
        if g.is_packed:
            if g.path == MATERIALISED:
                materialised += attention.time_at_rate(amounts[t], bandwidth)
            elif g.path == ENGINE:
                engine += attention.time_at_rate(amounts[t], design.device.quantize_rate_per_s)
            elif g.path == FUSED and not design.stack.at_peak:
                fused += attention.time_at_rate(amounts[t], design.device.fused_rate_per_s)
    return Quantising(engine, fused, materialised)


@making
def ideal_sums(design: Design, made: Generation, n_sequences: int, packed: Quantising) -> Sums:
    """At the rates that are reached: max(FLOP / F, KV bytes / BW) step by step. `packed` is `quantising` over them."""
    device, n_steps = design.device, design.output_tokens
    bandwidth, peak = reached_bandwidth(design), peak_flops(design, n_sequences) * design.stack.flops_frac
    kv_bandwidth = device.kv_bandwidth_bytes_per_s * design.stack.memory_frac
    hides = hideable_share(design, n_sequences)
    # engines are part of the cores (Oaken 5.2): those of idle ones rest
    engines = busy_share(design, n_sequences, device.array_rows)
    engine_rate_per_s = device.engine_rate_per_s * engines
    hidden, paid = packed.engine_s / n_steps / engines, packed.fused_s + packed.materialised_s
    total = read = compute = busy = exposed = copies = quantize = 0.0
    for p in made.pieces:
        m = p.n_steps
        read_0 = attention.time_at_rate(p.read_bytes, kv_bandwidth)
        read_1 = attention.time_at_rate(p.read_slope, kv_bandwidth)
        flop_0, flop_1 = attention.time_at_rate(p.flops, peak), attention.time_at_rate(p.flops_slope, peak)
        total += generation.sum_of_max2(flop_0, flop_1, read_0, read_1, 0, m)
        read += generation.sum_of_line(read_0, read_1, 0, m)
        compute += generation.sum_of_line(flop_0, flop_1, 0, m)
        by_engine = p.by_engine != 0 or p.by_engine_slope != 0
        if by_engine or (not design.stack.at_peak and (p.by_cores != 0 or p.by_cores_slope != 0)):
            unpack_0 = p.by_engine / engine_rate_per_s + p.by_cores / device.fused_rate_per_s
            unpack_1 = p.by_engine_slope / engine_rate_per_s + p.by_cores_slope / device.fused_rate_per_s
            busy += generation.sum_of_line(unpack_0, unpack_1, 0, m)
            share = hides if by_engine else 1.0
            exposed += generation.sum_of_excess(
                share * flop_0, share * flop_1, share * read_0, share * read_1, unpack_0, unpack_1, m
            )
        if hidden:
            quantize += generation.sum_of_excess(
                hides * flop_0, hides * flop_1, hides * read_0, hides * read_1, hidden, 0.0, m
            )
        if p.copied_bytes != 0 or p.copied_slope != 0:
            copies += generation.sum_of_line(p.copied_bytes / bandwidth, p.copied_slope / bandwidth, 0, m)
    return Sums(
        attention_s=total,
        fixed_s=0.0,
        read_s=read,
        compute_s=compute,
        unit_s=0.0,
        unpack_s=exposed + copies,
        quantize_s=quantize + paid,
        unpack_busy_s=busy + copies,
        quantize_busy_s=hidden * n_steps + paid,
        copies_s=copies,
    )


@compilable
def busy_from(design: Design, n_units: int) -> int:
    """Tokens from which on every core has work: unpacking is a straight line of the tokens from there."""
    return -(-calibrated.SPLIT_TOKENS * design.stack.n_cores // n_units)


@compilable
def _sum_of_roots(
    design: Design,
    kernel: AttentionKernel,
    n_units: int,
    lines: tuple[Line, Line, Line],
    n_steps: int,
    entered: int,
    window: int,
) -> float:
    """Sum over a straight piece of the root of squares of its lines: memory, one core for all elements, compute."""
    (memory, core, compute), n_cores = lines, design.stack.n_cores
    unit = (calibrated.attention_unit_s(kernel.n_kv_heads, kernel.unit_s, n_cores), 0.0)
    if kernel.cores_per_unit > 0:  # as many cores at every length
        cores = calibrated.filled_cores(n_units, kernel.cores_per_unit, n_cores)
        return generation.sum_of_root(memory, unit, (core[0] / cores, core[1] / cores), compute, n_steps)
    split = calibrated.SPLIT_TOKENS < entered < busy_from(design, n_units) and window > calibrated.SPLIT_TOKENS
    if split and (core[0] != 0 or core[1] != 0):  # more cores join with every token: no straight line
        total = 0.0
        for i in range(n_steps):
            cores = calibrated.active_cores(min(entered + i, window), n_units, n_cores)
            total += generation.sum_of_root(
                (memory[0] + memory[1] * i, 0.0),
                unit,
                ((core[0] + core[1] * i) / cores, 0.0),
                (compute[0] + compute[1] * i, 0.0),
                1,
            )
        return total
    cores = calibrated.active_cores(min(entered, window), n_units, n_cores)
    return generation.sum_of_root(memory, unit, (core[0] / cores, core[1] / cores), compute, n_steps)


@compilable
def _first_of_shape(tensors: Sequence[Tensor], shape: int) -> int:
    """The place of the keys of a kernel's layers."""
    t = 0
    while tensors[t].shape != shape:
        t += 1
    return t


@compilable
def cast_step_s(design: Design) -> float:
    """Seconds of a step in which all layers write their part of the pool in 16 bits, used or not; 0 where kernels read
    what is stored."""
    for kernel in design.kernels:
        if kernel.cast_per_s > 0:
            n_bytes = max(free_bytes(design), 0) * design.deployment.n_stages
            return calibrated.pool_cast_s(float(n_bytes), kernel.cast_per_s, design.stack.n_cores)
    return 0.0


@compilable
def kernel_sums(
    design: Design, limits: Limits, shape: int, n_sequences: int
) -> tuple[float, float, float, float, float, float]:
    """Sums over the steps in the layers of a kernel: (the root with elements as stored, with 16-bit ones, memory,
    compute, unit) of one sequence, and the fixed seconds, which all share."""
    kernel, stack, device = design.kernels[shape], design.stack, design.device
    peak, bandwidth = peak_flops(design, n_sequences), device.kv_bandwidth_bytes_per_s
    per_byte, last, n_units = float(8 * design.model.den), design.input_tokens + design.output_tokens, 0
    n_units = max(n_sequences * kernel.n_kv_heads, 1)
    unit_s = calibrated.attention_unit_s(kernel.n_kv_heads, kernel.unit_s, stack.n_cores)
    full_from = busy_from(design, n_units)
    waits = kernel.has_ceiling and kernel.cores_per_unit == 0 and full_from > calibrated.SPLIT_TOKENS
    copies = kernel.is_reordered if n_sequences > 1 else 0
    plain_s, place = kernel.plain_core_s, _first_of_shape(design.tensors, shape)
    keys = design.tensors[place]
    window, start = read_window_of(keys, limits), design.input_tokens + 1
    stored_s = plain_total_s = read_s = compute_s = unit_total_s = fixed_s = 0.0
    while start <= last:
        end, bits, bits_slope, is_packed, length, length_slope = last + 1, 0, 0, False, 0, 0
        core = core_slope = plain = plain_slope = 0.0
        for t in range(place, len(design.tensors)):
            g = design.tensors[t]
            if g.shape != shape:
                break
            end = min(end, next_break(g, limits, start))
            reads = reading_of(g, limits, start)
            bits, bits_slope = bits + reads.bits, bits_slope + reads.bits_slope
            kept, grows, packed, packs = reads.tokens, reads.tokens_slope, reads.packed, 0
            if g.is_packed:
                is_packed, packs = True, reads.packed_slope
            core += g.n_elements * (packed * g.packed_core_s + (kept - packed) * plain_s)
            core_slope += g.n_elements * (packs * g.packed_core_s + (grows - packs) * plain_s)
            plain += g.n_elements * kept * plain_s
            plain_slope += g.n_elements * grows * plain_s
            if t == place:
                length, length_slope = kept, grows
        came, seen = entered_tokens(limits, start), seen_tokens(keys, limits, start)
        split_at = length_of_entered(limits, came - seen + calibrated.SPLIT_TOKENS + 1)
        if start < split_at:
            end = min(end, split_at)
        if waits:
            full_at = length_of_entered(limits, came - seen + full_from)
            if start < full_at:
                end = min(end, full_at)
        m = end - start
        flops, flops_slope = length * kernel.token_flops, length_slope * kernel.token_flops
        index_s = index_more_s = index_flops = index_flops_slope = 0.0
        if keys.index_bits or keys.index_flops:
            stored = stored_tokens(keys, limits, start)
            more = token_slope(keys, limits, start, 1, 1, window_of(keys, limits))
            index_flops, index_flops_slope = float(stored * keys.index_flops), float(more * keys.index_flops)
            if kernel.index_frac > 0:  # its kernels run before attention's, and read no less than they calculate
                index_bits, grows_by = stored * keys.index_bits, more * keys.index_bits
                index_s = calibrated.index_read_s(float(index_bits) / per_byte, kernel.index_frac, bandwidth)
                index_more_s = calibrated.index_read_s(float(grows_by) / per_byte, kernel.index_frac, bandwidth)
                bits, bits_slope = bits - index_bits, bits_slope - grows_by
                fixed_s += kernel.n_layers * generation.sum_of_line(
                    calibrated.choice_s(stored, kernel.choice_s), calibrated.choice_s(more, kernel.choice_s), 0, m
                )
            else:
                flops, flops_slope = flops + stored * keys.index_flops, flops_slope + more * keys.index_flops
        frac = kernel.memory_frac
        memory = (
            calibrated.attention_memory_s(float(bits) / per_byte, kernel.io_bytes, frac, bandwidth),
            calibrated.attention_memory_s(float(bits_slope) / per_byte, 0, frac, bandwidth),
        )
        reached = kernel.flops_frac
        compute = (
            calibrated.attention_compute_s(flops, reached, peak),
            calibrated.attention_compute_s(flops_slope, reached, peak),
        )
        each_s = calibrated.attention_fixed_s(length, copies, kernel.launch_s, kernel.split_s, stack.layout_copy_s)
        plain_root = _sum_of_roots(design, kernel, n_units, (memory, (plain, plain_slope), compute), m, seen, window)
        stored_root = plain_root
        if is_packed:
            stored_root = _sum_of_roots(design, kernel, n_units, (memory, (core, core_slope), compute), m, seen, window)
        n_layers, apart_s = kernel.n_layers, generation.sum_of_line(index_s, index_more_s, 0, m)
        stored_s += n_layers * (stored_root + apart_s)
        plain_total_s += n_layers * (plain_root + apart_s)
        own_read_s = generation.sum_of_line(memory[0], memory[1], 0, m)
        own_compute_s = generation.sum_of_line(compute[0], compute[1], 0, m)
        if kernel.index_frac > 0:  # bytes and operations are counted back from these at the shares of the stack
            own_read_s = (own_read_s * frac + apart_s * kernel.index_frac) / stack.memory_frac
            own_compute_s *= reached / stack.flops_frac
            own_compute_s += generation.sum_of_line(
                calibrated.attention_compute_s(index_flops, stack.flops_frac, peak),
                calibrated.attention_compute_s(index_flops_slope, stack.flops_frac, peak),
                0,
                m,
            )
        read_s += n_layers * own_read_s
        compute_s += n_layers * own_compute_s
        unit_total_s += n_layers * (m * unit_s)
        fixed_s += n_layers * (m * each_s)
        start = end
    return stored_s, plain_total_s, read_s, compute_s, unit_total_s, fixed_s


@compilable
def unpacking_s(design: Design, limits: Limits) -> float:
    """Seconds in which the units that unpack one sequence are busy, where kernels were measured."""
    total, last = 0.0, design.input_tokens + design.output_tokens
    for g in design.tensors:
        if g.unpack_rate_per_s == 0:
            continue
        elements, start = g.n_read_layers * g.n_elements, design.input_tokens + 1
        while start <= last:
            end, reads = min(last + 1, next_break(g, limits, start)), reading_of(g, limits, start)
            now_s = attention.time_at_rate(float(elements * reads.packed), g.unpack_rate_per_s)
            more_s = attention.time_at_rate(float(elements * reads.packed_slope), g.unpack_rate_per_s)
            total += generation.sum_of_line(now_s, more_s, 0, end - start)
            start = end
    return total


@making
def measured_sums(design: Design, made: Generation, n_sequences: int, packed: Quantising) -> Sums:
    """As the kernels of a stack run. `packed` is `quantising` over the steps."""
    stored = plain = read = compute = unit = 0.0
    fixed = design.output_tokens * cast_step_s(design)
    for shape in range(len(design.kernels)):
        shape_sums = kernel_sums(design, made.limits, shape, n_sequences)
        stored, plain, read = stored + shape_sums[0], plain + shape_sums[1], read + shape_sums[2]
        compute, unit, fixed = compute + shape_sums[3], unit + shape_sums[4], fixed + shape_sums[5]
    bandwidth, copies = design.device.bandwidth_bytes_per_s * design.stack.copy_frac, 0.0
    for p in made.pieces:
        if p.copied_bytes != 0 or p.copied_slope != 0:
            copies += generation.sum_of_line(p.copied_bytes / bandwidth, p.copied_slope / bandwidth, 0, p.n_steps)
    paid = packed.fused_s + packed.materialised_s
    return Sums(
        attention_s=plain,
        fixed_s=fixed,
        read_s=read,
        compute_s=compute,
        unit_s=unit,
        unpack_s=stored - plain + copies,
        quantize_s=paid,
        unpack_busy_s=unpacking_s(design, made.limits) + copies,
        quantize_busy_s=paid + packed.engine_s,
        copies_s=copies,
    )


@making
def sums_of(design: Design, made: Generation, n_sequences: int) -> Sums:
    """The sums over the steps of one of `n_sequences` that run together; `made` is its `Generation`."""
    in_steps = [amounts.in_steps for amounts in made.quantised]
    packed = quantising(design, reached_bandwidth(design), in_steps)
    if design.stack.has_attention:
        return measured_sums(design, made, n_sequences, packed)
    return ideal_sums(design, made, n_sequences, packed)


class KnownSums(NamedTuple):
    """`sums_of` by the number of sequences, made when first asked for: many batches ask for the same."""

    by_n: list[Sums]
    #: 1 where it is known; an array in compiled code, else a list
    known: Any

    @classmethod
    def up_to(cls, n_sequences: int) -> "KnownSums":
        """Room for numbers up to `n_sequences`, none of them known."""
        return cls([NO_SUMS] * (n_sequences + 1), [0] * (n_sequences + 1))


@making
def known_sums(design: Design, made: Generation, same_from: int, n_sequences: int, sums: KnownSums) -> Sums:
    """`sums_of`, kept in `sums`: from `same_from` sequences on all are alike."""
    n = min(n_sequences, same_from)
    if sums.known[n] == 0:
        sums.by_n[n], sums.known[n] = sums_of(design, made, n), 1
    return sums.by_n[n]


@compilable
def same_from(design: Design, limits: Limits) -> int:
    """Number of sequences from which on `sums_of` finds the same."""
    n = max(design.device.token_cores, 1)
    if design.stack.has_attention:
        for shape in range(len(design.kernels)):
            kernel = design.kernels[shape]
            if kernel.is_reordered and design.stack.layout_copy_s:
                n = max(n, 2)
            if kernel.has_ceiling and kernel.cores_per_unit > 0:
                n = max(n, math.ceil(design.stack.n_cores / (kernel.n_kv_heads * kernel.cores_per_unit)))
            elif kernel.has_ceiling:
                keys = design.tensors[_first_of_shape(design.tensors, shape)]
                entered = entered_tokens(limits, design.input_tokens + 1)
                if keys.chunk_tokens < NO_LIMIT:  # few again at the start of the next chunk
                    entered = 1
                split = max(min(entered, read_window_of(keys, limits)), calibrated.SPLIT_TOKENS)
                n = max(n, -(-calibrated.SPLIT_TOKENS * design.stack.n_cores // (kernel.n_kv_heads * split)))
    return n
