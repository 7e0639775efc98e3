"""Bits that one sequence stores, reads and quantizes over a generation: integers, independent of rates and batch."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from dse.core.compiling import compilable, making
from dse.model.formulas import dequantize, effective_bits, kv_cache, sink_work
from dse.model.kv_bytes import (
    Limits,
    attention_flops,
    bits_of,
    causal_flops,
    entered_tokens,
    length_of_entered,
    limits_for,
    n_elements,
    next_break,
    packed_tokens_ever,
    padding_bits,
    prompt_flops,
    read_tokens,
    read_window_of,
    reading_of,
    sequence_bits,
    stored_bits,
    stored_bits_slope,
    stored_tokens,
    sum_of_padding_bits,
    sum_of_shared_bits,
    unit_of,
    window_of,
)
from dse.model.peak_memory import (
    WIDE,
    Size,
    activation_bytes,
    extra_bits,
    most_bits,
    on_device,
    peak_lengths,
    shared_prefix_tokens,
    size_at,
    workspace_bytes,
)
from dse.model.records import ENGINE, FUSED, KEYS, MATERIALISED, NO_LIMIT, STATES, Design, Tensor

#: straight pieces of one generation; more than this would take seconds
MAX_PIECES = 2_000_000
#: groups of one generation, packed, that take seconds to count point by point
MANY_GROUPS = 20_000
#: times that choosing sinks reads a group: keys for magnitude and mean, values for their mean (SinkQ 3.2, Appendix C)
KEY_CHOICE_READS, VALUE_CHOICE_READS = 2, 1


class LinearPiece(NamedTuple):
    """A stretch of decode steps over which every amount of one sequence is first + slope * i, i = 0 .. n_steps - 1."""

    n_steps: int
    read_bytes: float
    read_slope: float
    flops: float
    flops_slope: float
    #: elements unpacked by engines, and by the cores
    by_engine: float
    by_engine_slope: float
    by_cores: float
    by_cores_slope: float
    #: bytes of FP16 copies written and read again
    copied_bytes: float
    copied_slope: float


class Quantised(NamedTuple):
    """Elements of a tensor that one sequence quantizes, or bytes where they go through memory."""

    in_steps: float
    #: of a prompt after its shared prefix, and of the prefix
    in_prompt: float
    in_prefix: float


class Generation(NamedTuple):
    """A generation of `output_tokens` after a prompt of `input_tokens`, of one sequence."""

    limits: Limits
    prefix_tokens: int
    final_bits: int
    final_shared_bits: int
    n_elements: int
    #: largest size on the way, and the sizes among which a batch is largest
    peak_bits: int
    sizes: Sequence[Size]
    #: paged: the shared part at its largest, and the sum over the steps of what a request adds
    largest_shared_bits: int
    sum_of_own_bits: int
    activation_bytes: int
    workspace_bytes: int
    prompt_flops: int
    prefix_flops: int
    #: extra kernels over all steps, to read, to pack and for FP16 copies; and in the prompt
    read_starts: int
    pack_starts: int
    copy_starts: int
    prompt_starts: int
    #: seconds of work on sinks, over all steps and in the prompt
    sink_s: float
    prompt_sink_s: float
    #: traffic of SinkQ's scores and choices, and of buffers extended by copying, over all steps
    score_bytes: float
    choice_bytes: float
    buffer_bytes: float
    quantised: Sequence[Quantised]
    pieces: Sequence[LinearPiece]


@compilable
def is_exact(design: Design) -> bool:
    """False where a whole number of the generation might not fit int64: compiled code must leave the point."""
    load, n = design.load, float(design.input_tokens + design.output_tokens)
    most = most_bits(design, design.input_tokens + design.output_tokens)
    paddings = copied = 0.0
    for g in design.tensors:
        n_layers = float(max(g.n_stored_layers, g.n_read_layers))
        bits = float(max(g.packed_bits, g.full_bits)) + g.index_bits + 16.0 * g.n_elements
        events = n / g.step_tokens + 1
        copied += n_layers * g.packed_bits * g.step_tokens * events * events * g.copies_to_append
        paddings += n_layers * (bits * load.page_tokens + g.page_row_bits) * n
        # sums of what is shared, and of bytes in pages, over the lengths
        if load.prefix_tokens or load.samples > 1 or g.page_row_bits:
            paddings += n_layers * bits * n * n
    flops = prompt_flops(design.layers, design.policy.prompt_window_tokens, n)  # in floats, as all that follows
    if load.has_cache == 0:
        flops = max(flops, causal_flops(design.layers, design.input_tokens + 1.0, n), n * (n + 1) * (n + 2))
    if most >= WIDE or copied >= WIDE or n * (n + load.page_tokens) >= WIDE or n * design.policy.heavy >= WIDE:
        return False
    if flops >= 2 * WIDE:
        return False
    return not (load.is_paged or load.prefix_tokens) or (most * design.output_tokens < WIDE and paddings < WIDE)


@making
def pieces_of(design: Design, limits: Limits, has_steps: bool = True) -> tuple[list[LinearPiece], int]:
    """Straight pieces of the decode steps, cut off beyond `MAX_PIECES`; paged, also the sum of the stored bits.

    Empty and 0 without steps.
    """
    length, last = design.input_tokens + 1, design.input_tokens + design.output_tokens * has_steps
    per_byte = float(8 * design.model.den)
    pieces: list[LinearPiece] = []
    stored, sums_stored = 0, design.load.is_paged and design.load.has_cache
    while length <= last and len(pieces) <= MAX_PIECES:
        end = last + 1
        for g in design.tensors:
            end = min(end, next_break(g, limits, length))
        n_steps = end - length
        read = read_slope = bits = slope = engine = engine_slope = cores = cores_slope = copied = copied_slope = 0
        for g in design.tensors:
            reads = reading_of(g, limits, length)
            read += g.n_read_layers * reads.bits
            read_slope += g.n_read_layers * reads.bits_slope
            if sums_stored:
                bits += g.n_stored_layers * stored_bits(g, limits, length)
                slope += g.n_stored_layers * stored_bits_slope(g, limits, length)
            if g.is_packed:
                per_token = g.n_read_layers * g.n_elements
                now, added = per_token * reads.packed, per_token * reads.packed_slope
                if g.path == ENGINE:
                    engine, engine_slope = engine + now, engine_slope + added
                elif g.path == FUSED:
                    cores, cores_slope = cores + now, cores_slope + added
                else:
                    copied, copied_slope = copied + now, copied_slope + added
        flops = attention_flops(design.layers, limits, length)
        flops_slope = attention_flops(design.layers, limits, length + 1) - flops if n_steps > 1 else 0
        pieces.append(
            LinearPiece(
                n_steps=n_steps,
                read_bytes=float(read) / per_byte,
                read_slope=float(read_slope) / per_byte,
                flops=float(flops),
                flops_slope=float(flops_slope),
                by_engine=float(engine),
                by_engine_slope=float(engine_slope),
                by_cores=float(cores),
                by_cores_slope=float(cores_slope),
                copied_bytes=float(dequantize.materialised_bytes(copied)),
                copied_slope=float(dequantize.materialised_bytes(copied_slope)),
            )
        )
        stored += n_steps * bits + slope * (n_steps * (n_steps - 1) // 2)
        length = end
    return pieces, stored


def groups_packed(design: Design) -> int:
    """Most groups of several tokens that one layer of one sequence packs over the steps, whatever the tensor."""
    limits = limits_for(design.policy, design.input_tokens)
    most = 0
    for g in design.tensors:
        window = window_of(g, limits)
        if g.step_tokens > 1 and window >= g.step_tokens + g.residual_tokens:
            most = max(most, min(design.output_tokens, window) // g.step_tokens)
    return most


def fits_alone(design: Design, free: int) -> bool:
    """True where one request fits into `free`, in the unit of bits, all the way."""
    limits = limits_for(design.policy, design.input_tokens)
    sizes = _sizes(design, limits, shared_prefix_tokens(design, limits))[0]
    return all(size.shared + size.own <= free for size in sizes)


@compilable
def _amount(design: Design, g: Tensor, n_tokens: int) -> float:
    """Amount of work to quantize `n_tokens` of a tensor, in the unit of its path: elements, or bytes through memory."""
    elements = n_tokens * g.n_stored_layers * g.n_elements
    if g.path == MATERIALISED:  # FP16 read back, packed form written
        return (float(elements * 16) + float(n_tokens * g.n_stored_layers * g.packed_bits) / design.model.den) / 8
    return float(elements)


@making
def _sizes(design: Design, limits: Limits, prefix_tokens: int) -> tuple[list[Size], int, int]:
    """Sizes among which a batch is largest, and the largest size of one sequence: alone, and the part it shares."""
    first, last = design.input_tokens, design.input_tokens + design.output_tokens
    sizes = []
    peak = largest_shared = largest_own = 0
    for n_tokens in peak_lengths(design, limits, prefix_tokens, first, last):
        size = size_at(design, limits, prefix_tokens, n_tokens)
        peak = max(peak, sequence_bits(design, limits, n_tokens))
        largest_shared = max(largest_shared, size.shared)
        largest_own = max(largest_own, size.own)
        if prefix_tokens > 0:
            sizes.append(size)
    if prefix_tokens == 0:
        sizes.append(Size(0, largest_own))
    return sizes, peak, largest_shared


@making
def generation_of(design: Design, has_steps: bool = True) -> Generation:
    """The amounts of a generation; without its steps no pieces, and paged no sum over the steps."""
    limits = limits_for(design.policy, design.input_tokens)
    prefix, first = shared_prefix_tokens(design, limits), design.input_tokens
    n = first + design.output_tokens
    pieces, stored = pieces_of(design, limits, has_steps)
    sizes, peak, largest_shared = _sizes(design, limits, prefix)
    sum_of_own = 0
    if design.load.is_paged:
        if design.load.has_cache:
            sum_of_own += stored
            for g in design.tensors:
                pages = design.load.page_tokens
                padding = sum_of_padding_bits(g, limits, n, pages) - sum_of_padding_bits(g, limits, first, pages)
                sum_of_own += g.n_stored_layers * padding
        sum_of_own = on_device(design, sum_of_own)  # no prefix is shared where anything lies in host memory
        if prefix > 0:
            for g in design.tensors:
                sum_of_own -= g.n_stored_layers * sum_of_shared_bits(g, limits, first + 1, n, prefix)
        sum_of_own += design.output_tokens * extra_bits(design, limits, n)
    read_starts = pack_starts = copy_starts = prompt_starts = 0
    scores = chosen = buffers = sink_s = prompt_sink_s = 0.0
    quantised = []
    for g in design.tensors:
        before, after = packed_tokens_ever(g, limits, first), packed_tokens_ever(g, limits, n)
        shared, at_start = packed_tokens_ever(g, limits, prefix), packed_tokens_ever(g, limits, 0)
        quantised.append(
            Quantised(
                _amount(design, g, after - before),
                _amount(design, g, before - shared),
                _amount(design, g, shared - at_start),
            )
        )
        starts, n_steps = g.step_tokens + g.residual_tokens, 0
        if read_window_of(g, limits) >= starts:
            n_steps = max(n + 1 - max(first + 1, length_of_entered(limits, starts)), 0)
        if g.is_packed and g.path != ENGINE:
            if design.stack.has_copies and g.path == MATERIALISED:
                copy_starts += g.n_read_layers * n_steps
            else:
                read_starts += g.n_read_layers * g.read_launches * n_steps
            pack_starts += g.n_stored_layers * g.pack_launches * ((after - before) // g.step_tokens)
            sink_s += g.n_stored_layers * g.sink_s * ((after - before) // g.step_tokens)
            if before:
                prompt_starts += g.n_stored_layers * g.pack_launches
                prompt_sink_s += g.n_stored_layers * g.sink_s
        if g.copies_to_append and g.path != ENGINE:
            window = window_of(g, limits)
            kept = kv_cache.packed_tokens(window, g.step_tokens, g.residual_tokens) if window >= starts else 0
            copied = dequantize.copied_tokens(
                before // g.step_tokens, after // g.step_tokens, g.step_tokens, kept // g.step_tokens
            )
            buffers += float(copied * g.n_stored_layers * g.packed_bits) / design.model.den
        if g.copies_window and g.path != ENGINE:
            entered, came = entered_tokens(limits, first), entered_tokens(limits, n)
            waiting = kv_cache.sum_of_kept_tokens(came, window_of(g, limits))  # of a window that is never packed
            waiting -= kv_cache.sum_of_kept_tokens(entered, window_of(g, limits))
            if window_of(g, limits) >= starts:
                waiting = dequantize.waiting_tokens(entered, came, g.step_tokens, g.residual_tokens)
            buffers += float(2 * waiting) * float(g.n_stored_layers * g.full_bits) / design.model.den
        if g.pool_rows > 0:
            scores += n_steps * g.n_read_layers * sink_work.sink_score_bytes(design.model.n_q_heads, g.pool_rows)
            reads = KEY_CHOICE_READS if g.side == 0 else VALUE_CHOICE_READS
            chosen += g.n_stored_layers * sink_work.sink_choice_bytes(reads, after - before, g.n_elements)
    prompt_window = design.policy.prompt_window_tokens
    return Generation(
        limits=limits,
        prefix_tokens=prefix,
        final_bits=sequence_bits(design, limits, n),
        final_shared_bits=size_at(design, limits, prefix, n).shared,
        n_elements=n_elements(design, limits, n),
        peak_bits=peak,
        sizes=sizes,
        largest_shared_bits=largest_shared,
        sum_of_own_bits=sum_of_own,
        activation_bytes=activation_bytes(design, n),
        workspace_bytes=workspace_bytes(design, limits, n),
        prompt_flops=prompt_flops(design.layers, prompt_window, first),
        prefix_flops=prompt_flops(design.layers, prompt_window, prefix),
        read_starts=read_starts,
        pack_starts=pack_starts,
        copy_starts=copy_starts,
        prompt_starts=prompt_starts,
        sink_s=sink_s,
        prompt_sink_s=prompt_sink_s,
        score_bytes=scores,
        choice_bytes=chosen,
        buffer_bytes=buffers / 8,
        quantised=quantised,
        pieces=pieces,
    )


class Contents(NamedTuple):
    """One sequence at its final length: results by name. Tokens are means over the layers, bits over the elements."""

    stored_tokens: float
    read_tokens: float
    stored_bits: float
    page_tail_bits: float
    #: mean over the tokens, summed over the layers
    kv_bytes_per_token: float
    #: of layers without a window alone: what tokens add once all windows are full
    kv_bytes_per_token_beyond_windows: float
    #: constant states, whatever the length; nan: there are none
    state_bytes: float


@compilable
def contents_of(design: Design, made: Generation) -> Contents:
    """Tokens and bits of one sequence at its final length; no bits without a cache."""
    n, unit, has_cache = design.input_tokens + design.output_tokens, 8 * design.model.den, design.load.has_cache
    limits, padding, n_layers, stored, read = made.limits, 0, 0, 0, 0
    per_token, beyond, states = 0.0, 0.0, 0
    for g in design.tensors:
        if g.side == STATES:
            states += g.n_stored_layers * g.once_bits * has_cache
            continue
        kept = stored_tokens(g, limits, n)
        if has_cache:
            unused = padding_bits(g, kept, design.load.page_tokens)
            padding += g.n_stored_layers * unused
            bits = bits_of(g, kept) + kept * g.index_bits
            added = g.n_stored_layers * ((bits + unused) / (unit_of(design) * kept))
            per_token += added
            if window_of(g, limits) == NO_LIMIT:
                beyond += added
        if g.side == KEYS:
            n_layers += g.n_read_layers
            stored += g.n_read_layers * kept
            read += g.n_read_layers * read_tokens(g, limits, n)
    return Contents(
        stored_tokens=stored / n_layers,
        read_tokens=read / n_layers,
        stored_bits=effective_bits.stored_bits((made.final_bits - states) / unit, made.n_elements),
        page_tail_bits=padding / (design.model.den * made.n_elements),
        kv_bytes_per_token=per_token,
        kv_bytes_per_token_beyond_windows=beyond,
        state_bytes=states / unit_of(design) if states else math.nan,
    )
