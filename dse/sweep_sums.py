"""Compiled twins of `dse.plan`, `dse.peaks` and `dse.packing`, on plain arrays.

All that one sequence stores, reads and packs over a generation, in exact integers.
The formulas are those of `dse.formulas`; what is here are the loops over tensors and straight pieces. Full attention,
no shared prefix. Every function reports what it cannot do exactly in int64 and float64 by its result.
"""

from typing import Any, NamedTuple

from dse.formulas import activations, attention, dequantize, kv_cache, memory_unit, sink_work, tokens, weights
from dse.formulas.core import registered
from kernels_ref import inner

registered()

# columns of the tensors of a plan
(
    SIDE, SHAPE, N_STORED, N_READ, N_ELEMENTS, WINDOW, PACKED_BITS, FULL_BITS, ONCE_BITS, POOL_BITS, STEP, RESIDUAL,
    UNPACKED, PATH, READ_LAUNCHES, PACK_LAUNCHES, COPIES, TILE, STREAM, STREAM_2, PAGE_ROW, TAIL_BITS, N_TENSOR,
) = range(23)  # fmt: skip
#: columns of the layers of a model
LAYERS, LAYER_WINDOW, PAIR_FLOPS, N_LAYER = range(4)
#: dequantisation paths
NONE, ENGINE, FUSED, MATERIALISED = range(4)
PATHS = {"none": NONE, "engine": ENGINE, "fused": FUSED, "materialised": MATERIALISED}
# a plan: whole numbers, and others
(
    DEN, N_Q_HEADS, DENSE, EXPERT, N_EXPERTS, N_ACTIVE, ACTIVATION_ELEMENTS, LOGITS, BURST_BITS, FIRST_TENSOR,
    LAST_TENSOR, FIRST_LAYER, LAST_LAYER, FIRST_KERNEL, LAST_KERNEL, N_PLAN,
) = range(16)  # fmt: skip
ACTIVE, N_PLAN_F = range(2)
# other numbers of the tensors of a plan: seconds of a core for a packed element, elements a second that are unpacked
POOL_ROWS, PACKED_CORE_S, UNPACK_RATE, N_TENSOR_F = range(4)
# attention kernels of the layers of a plan that are alike, and what was fitted to the stack: see `sweep_fits`
KERNEL_LAYERS, KV_HEADS, IO_BYTES, TOKEN_FLOPS, KERNEL_LAUNCH_S, IS_REORDERED, HAS_CEILING, N_KERNEL = range(8)
(
    HAS_ATTENTION, HAS_GEMM, N_PRODUCTS, GEMM_LAUNCH_S, GEMM_MEMORY_FRAC, GEMM_FLOPS_FRAC, SPLIT_S, LAYOUT_COPY_S,
    UNIT_S, MEMORY_FRAC, N_CORES, PLAIN_CORE_S, HAS_COPIES, COPY_LAUNCH_S, COPY_FRAC, FLOPS_FRAC, N_FIT,
) = range(17)  # fmt: skip
#: a workload, but for batch and lengths
PAGED, PAGES, WEIGHT_BITS, ACTIVATION_BITS, CHUNK, N_WORK = range(6)
# a device: whole numbers, and others; a rate is a value and the size of its unit
USABLE, OVERHEAD, TOKEN_CORES, FRAC_IS_ONE, N_DEVICE = range(5)
(
    BANDWIDTH, PEAK, PEAK_UNIT, PEAK_FP8, PEAK_FP8_UNIT, PEAK_INT8, PEAK_INT8_UNIT, ENGINE_RATE, FUSED_RATE, LAUNCH_S,
    POWER, PRICE, USABLE_FRAC, N_DEVICE_F,
) = range(14)  # fmt: skip
# what `of_generation` finds: whole numbers, and others
(
    SEQUENCE, ELEMENTS, LARGEST, OWN, OWN_SUM, READ_STARTS, PACK_STARTS, PROMPT_STARTS, N_PIECES, ACTIVATION_BYTES,
    WORKSPACE_BYTES, WEIGHT_BYTES, COPY_STARTS, N_GENERATION,
) = range(14)  # fmt: skip
PROMPT_FLOPS, SCORE_BYTES, CHOICE_BYTES, COPY_BITS, N_GENERATION_F = range(5)
# columns of a straight piece: amounts at its start and what a token adds
(
    STEPS, BYTES, BYTES_1, FLOPS, FLOPS_1, BY_ENGINE, BY_ENGINE_1, BY_CORES, BY_CORES_1, COPIED, COPIED_1, N_PIECE,
) = range(12)  # fmt: skip
# sums over the steps of one sequence, seconds; FIXED is shared by all, and PRODUCT_PEAK the rate of products then
(
    ATTENTION, FIXED, READ, COMPUTE, UNIT, UNPACK, PACK, UNPACK_BUSY, PACK_BUSY, MATERIALISED_S, PRODUCT_PEAK, N_SUM,
) = range(12)  # fmt: skip

#: stands for no window (dse/plan.py)
NO_WINDOW = 2**61
#: a plan has at most so many tensors and pieces here
MAX_TENSORS, MAX_PIECES = 64, 4096
#: whole numbers below are exact as float64, and as int64 with room for sums
EXACT, WIDE = 2.0**53, 2.0**61
#: times that choosing sinks reads a group of keys, of values (dse/sink_work.py)
KEY_READS, VALUE_READS = 2, 1


class Tables(NamedTuple):
    """Numbers of plans, workloads and what their stacks reach, a row by case; parts of plans below each other."""

    tensors: Any
    tensors_f: Any
    layers: Any
    kernels: Any
    plans: Any
    plans_f: Any
    works: Any
    fits: Any


class Design(NamedTuple):
    """The numbers of a case."""

    tensors: Any
    tensors_f: Any
    layers: Any
    kernels: Any
    plan: Any
    plan_f: Any
    work: Any
    fit: Any


@inner
def design(tables, case):
    """The rows of `case` in `tables`."""
    plan = tables.plans[case]
    tensors = slice(plan[FIRST_TENSOR], plan[LAST_TENSOR])
    return Design(
        tables.tensors[tensors], tables.tensors_f[tensors], tables.layers[plan[FIRST_LAYER] : plan[LAST_LAYER]],
        tables.kernels[plan[FIRST_KERNEL] : plan[LAST_KERNEL]], plan, tables.plans_f[case], tables.works[case],
        tables.fits[case],
    )  # fmt: skip


def pair_flops(n_q_heads: int, score_dim: int) -> int:
    """Operations of one layer per query token and cached token."""
    return int(attention.attention_flops_per_token(n_q_heads, score_dim))


@inner
def stored_bits(g, n_tokens):
    """Bits of a tensor of one layer, pages left out."""
    kept = kv_cache.kept_tokens(n_tokens, g[WINDOW])
    return kv_cache.tensor_bits(
        kept, g[PACKED_BITS], g[FULL_BITS], g[ONCE_BITS], g[POOL_BITS], g[STEP], g[RESIDUAL]
    )  # fmt: skip


@inner
def _padding(g, kept, pages):
    if g[PAGE_ROW]:
        return memory_unit.page_tail_bits(kept, g[STREAM], g[PAGE_ROW]) + memory_unit.page_tail_bits(
            kept, g[STREAM_2], g[PAGE_ROW]
        )
    return g[TAIL_BITS] * kv_cache.padding_tokens(kept, pages)


@inner
def _sum_of_padding(g, n_tokens, pages):
    """Unused bits of last pages summed over the lengths 1..n_tokens."""
    inside = min(n_tokens, g[WINDOW])
    if g[PAGE_ROW]:
        grown = memory_unit.sum_of_page_tail_bits(inside, g[STREAM], g[PAGE_ROW])
        grown += memory_unit.sum_of_page_tail_bits(inside, g[STREAM_2], g[PAGE_ROW])
        return grown + (n_tokens - inside) * _padding(g, inside, 1)
    return g[TAIL_BITS] * tokens.sum_of_grown_padding_tokens(n_tokens, g[WINDOW], pages)


@inner
def slope(g, n_tokens, packed, full):
    """What the next token adds, of which a packed and another token count so much."""
    return kv_cache.piece_slope(n_tokens, packed, full, g[STEP], g[RESIDUAL], g[WINDOW])


@inner
def _packed_ever(g, n_tokens):
    if g[WINDOW] < g[STEP] + g[RESIDUAL]:
        return 0
    return kv_cache.packed_tokens(n_tokens, g[STEP], g[RESIDUAL])


@inner
def sequence_bits(tensors, pages, n_tokens):
    """Bits of one sequence, page padding included."""
    total = 0
    for g in tensors:
        kept = kv_cache.kept_tokens(n_tokens, g[WINDOW])
        total += g[N_STORED] * (stored_bits(g, n_tokens) + _padding(g, kept, pages))
    return total


@inner
def workspace_bytes(tensors, n_tokens):
    """FP16 keys and values of the layer in work that the materialised path keeps."""
    most = total = 0
    for t in range(len(tensors)):
        if t > 0 and tensors[t, SHAPE] != tensors[t - 1, SHAPE]:  # keys and values of a layer follow each other
            total = 0
        if tensors[t, PATH] == MATERIALISED:
            kept, tile = kv_cache.kept_tokens(n_tokens, tensors[t, WINDOW]), tensors[t, TILE]
            if tile > 1:
                kept += kv_cache.padding_tokens(kept, tile)
            total += tensors[t, N_ELEMENTS] * kept
            most = max(most, total)
    return 2 * most


@inner
def _activations(plan, work, n_input, n_output, n_tokens):
    n_live = activations.activation_tokens(n_tokens, n_input, n_output, work[CHUNK])
    return activations.activation_bytes(n_live, plan[ACTIVATION_ELEMENTS], plan[LOGITS], work[ACTIVATION_BITS])


@inner
def _add(lengths, n_lengths, n_tokens, first, pages):
    """Put a length and the first token of its page on the list; how many are on it."""
    lengths[n_lengths] = n_tokens
    start = n_tokens - (n_tokens - 1) % pages if pages > 1 else n_tokens
    if start != n_tokens and start >= first:
        lengths[n_lengths + 1] = start
        return n_lengths + 2
    return n_lengths + 1


@inner
def _peak_lengths(tensors, pages, first, last, lengths):
    """`dse.peaks.lengths` without a prefix, in any order, some twice; how many, -1 for too many."""
    period, steps = pages, 1
    for t in range(len(tensors)):
        if tensors[t, STEP] > 1:
            a, b = period, tensors[t, STEP]
            while b:
                a, b = b, a % b
            period, steps = period // a * tensors[t, STEP], max(steps, tensors[t, STEP])
    n_lengths = _add(lengths, 0, first, first, pages)
    for at in range(-1, len(tensors)):
        end = last if at < 0 else tensors[at, WINDOW]
        if not first <= end <= last or (at > 0 and end == tensors[at - 1, WINDOW]):
            continue
        n_lengths = _add(lengths, n_lengths, end, first, pages)
        if end < last:
            n_lengths = _add(lengths, n_lengths, end + 1, first, pages)
        if steps == 1:
            continue
        for t in range(len(tensors)):
            step = tensors[t, STEP]
            if step == 1 or (
                t > 0 and step == tensors[t - 1, STEP] and tensors[t, RESIDUAL] == tensors[t - 1, RESIDUAL]
            ):
                continue
            event = end - (end - tensors[t, RESIDUAL]) % step
            while event > max(end - period, first):
                if n_lengths + 8 > len(lengths):
                    return -1
                n_lengths = _add(lengths, n_lengths, event - 1, first, pages)
                event -= step
    return n_lengths


@inner
def _peaks(tensors, plan, work, n_input, n_output, lengths):
    """The most that a sequence takes between prompt and last token: alone, and with what is worked on."""
    largest = own = 0
    n_lengths = _peak_lengths(tensors, work[PAGES], n_input, n_input + n_output, lengths)
    if n_lengths < 0:
        return -1, -1
    for i in range(n_lengths):
        n_tokens = lengths[i]
        kept = sequence_bits(tensors, work[PAGES], n_tokens)
        extra = _activations(plan, work, n_input, n_output, n_tokens) + workspace_bytes(tensors, n_tokens)
        largest, own = max(largest, kept), max(own, kept + 8 * plan[DEN] * extra)
    return largest, own


@inner
def _flops(layers, n_tokens):
    total = 0
    for layer in layers:
        total += layer[LAYERS] * kv_cache.kept_tokens(n_tokens, layer[LAYER_WINDOW]) * layer[PAIR_FLOPS]
    return total


@inner
def _pieces(tensors, layers, plan, n_input, n_output, pieces):
    """Straight pieces of the generation, and the stored bits summed over its steps. (-1, 0) where they are too many."""
    length, last, n_pieces, stored = n_input + 1, n_input + n_output, 0, 0
    per_byte = 8 * plan[DEN]
    while length <= last:
        if n_pieces == MAX_PIECES:
            return -1, 0
        end = last + 1
        for g in tensors:
            end = min(end, kv_cache.next_break(length, g[STEP], g[RESIDUAL], g[WINDOW]))
        m = end - length
        read = read_1 = bits = bits_1 = engine = engine_1 = cores = cores_1 = copied = copied_1 = 0
        for g in tensors:
            at_start, more = stored_bits(g, length), slope(g, length, g[PACKED_BITS], g[FULL_BITS])
            read += g[N_READ] * at_start
            read_1 += g[N_READ] * more
            bits += g[N_STORED] * at_start
            bits_1 += g[N_STORED] * more
            if g[UNPACKED]:
                kept, per_token = kv_cache.kept_tokens(length, g[WINDOW]), g[N_READ] * g[N_ELEMENTS]
                now = per_token * kv_cache.packed_tokens(kept, g[STEP], g[RESIDUAL])
                added = per_token * slope(g, length, 1, 0)
                if g[PATH] == ENGINE:
                    engine, engine_1 = engine + now, engine_1 + added
                elif g[PATH] == FUSED:
                    cores, cores_1 = cores + now, cores_1 + added
                else:
                    copied, copied_1 = copied + now, copied_1 + added
        flops = _flops(layers, length)
        piece = pieces[n_pieces]
        piece[STEPS], piece[FLOPS] = m, flops
        piece[FLOPS_1] = _flops(layers, length + 1) - flops if m > 1 else 0
        piece[BYTES], piece[BYTES_1] = read / per_byte, read_1 / per_byte
        piece[BY_ENGINE], piece[BY_ENGINE_1], piece[BY_CORES], piece[BY_CORES_1] = engine, engine_1, cores, cores_1
        piece[COPIED] = dequantize.materialised_bytes(copied)
        piece[COPIED_1] = dequantize.materialised_bytes(copied_1)
        stored += m * bits + bits_1 * (m * (m - 1) // 2)
        length, n_pieces = end, n_pieces + 1
    return n_pieces, stored


@inner
def _too_large(tensors, layers, plan, work, n_input, n_output):
    """True where a whole number might not be exact as float64, or a sum of them not fit int64."""
    n, per_byte = float(n_input + n_output), 8.0 * plan[DEN]
    most = packed = paddings = 0.0
    for g in tensors:
        kept, layers_ = min(n, float(g[WINDOW])) + work[PAGES] + g[STEP], float(max(g[N_STORED], g[N_READ]))
        bits = float(max(g[PACKED_BITS], g[FULL_BITS]))
        most += layers_ * (kept * bits + g[ONCE_BITS] + g[POOL_BITS] + 2.0 * g[PAGE_ROW])
        packed += layers_ * n * max(bits, 16.0 * g[N_ELEMENTS])
        events = n / g[STEP] + 1
        packed += layers_ * bits * g[STEP] * events * events * g[COPIES]
        paddings += layers_ * (bits * n * (n + work[PAGES]) + g[PAGE_ROW] * n)
        most += per_byte * 4.0 * g[N_ELEMENTS] * (n + g[TILE])
    most += per_byte * n * max(plan[ACTIVATION_ELEMENTS], plan[LOGITS]) * 2.0
    flops = 0.0
    for layer in layers:
        flops += float(layer[LAYERS]) * layer[PAIR_FLOPS] * n
    if most >= EXACT or packed >= EXACT or flops >= EXACT or flops * n >= WIDE:
        return True
    return work[PAGED] == 1 and (most * n_output >= WIDE or paddings >= WIDE)


@inner
def _amount(g, plan, n_packed):
    """Elements quantised in `n_packed` tokens; bytes read and written where they go through memory."""
    elements = n_packed * g[N_STORED] * g[N_ELEMENTS]
    if g[PATH] == MATERIALISED:
        return (elements * 16 + n_packed * g[N_STORED] * g[PACKED_BITS] / plan[DEN]) / 8
    return float(elements)


@inner
def of_generation(design, n_input, n_output, found, found_f, pieces, packed, lengths):
    """Fill `found`, `found_f`, `pieces` and `packed`: by tensor, in the steps and in the prompt, the elements that are
    quantised, or the bytes that this moves where it is not done in place. `lengths` is room for work.

    False where the whole numbers are too large, or the pieces too many.
    """
    tensors, tensors_f, layers, _, plan, _, work, fit = design
    if _too_large(tensors, layers, plan, work, n_input, n_output):
        return False
    n = n_input + n_output
    n_pieces, stored = _pieces(tensors, layers, plan, n_input, n_output, pieces)
    if n_pieces < 0:
        return False
    found[N_PIECES] = n_pieces
    found[SEQUENCE] = sequence_bits(tensors, work[PAGES], n)
    found[LARGEST], found[OWN] = _peaks(tensors, plan, work, n_input, n_output, lengths)
    if found[OWN] < 0:
        return False
    found[ACTIVATION_BYTES] = _activations(plan, work, n_input, n_output, n)
    found[WORKSPACE_BYTES] = workspace_bytes(tensors, n)
    found[WEIGHT_BYTES] = weights.weight_bytes(plan[DENSE] + plan[EXPERT], work[WEIGHT_BITS])
    if plan[BURST_BITS] >= 2**29:
        return False
    found[OWN_SUM] = 0
    if work[PAGED]:
        resident = stored
        for g in tensors:
            resident += g[N_STORED] * (
                _sum_of_padding(g, n, work[PAGES]) - _sum_of_padding(g, n_input, work[PAGES])
            )  # fmt: skip
        extra = 8 * plan[DEN] * (found[ACTIVATION_BYTES] + found[WORKSPACE_BYTES])
        found[OWN_SUM] = resident + n_output * extra
    elements = read_starts = pack_starts = prompt_starts = copy_starts = 0
    scores = chosen = copy_bits = 0.0
    for t in range(len(tensors)):
        g = tensors[t]
        before, after = _packed_ever(g, n_input), _packed_ever(g, n)
        packed[t, 0], packed[t, 1] = _amount(g, plan, after - before), _amount(g, plan, before)
        elements += g[N_STORED] * g[N_ELEMENTS] * kv_cache.kept_tokens(n, g[WINDOW])
        starts = g[STEP] + g[RESIDUAL]
        n_steps = max(n + 1 - max(n_input + 1, starts), 0) if g[WINDOW] >= starts else 0
        if g[UNPACKED] and (g[PATH] == FUSED or g[PATH] == MATERIALISED):
            if fit[HAS_COPIES] and g[PATH] == MATERIALISED:
                copy_starts += g[N_READ] * n_steps
            else:
                read_starts += g[N_READ] * g[READ_LAUNCHES] * n_steps
            pack_starts += g[N_STORED] * g[PACK_LAUNCHES] * ((after - before) // g[STEP])
            if before:
                prompt_starts += g[N_STORED] * g[PACK_LAUNCHES]
        if g[COPIES] and g[PATH] != ENGINE:
            kept = _packed_ever(g, g[WINDOW]) // g[STEP]
            copied = dequantize.copied_tokens(before // g[STEP], after // g[STEP], g[STEP], kept)
            copy_bits += copied * g[N_STORED] * g[PACKED_BITS] / plan[DEN]
        rows = tensors_f[t, POOL_ROWS]
        if rows > 0:
            scores += n_steps * g[N_READ] * sink_work.sink_score_bytes(plan[N_Q_HEADS], rows)
            reads = KEY_READS if g[SIDE] == 0 else VALUE_READS
            chosen += g[N_STORED] * sink_work.sink_choice_bytes(reads, after - before, g[N_ELEMENTS])
    found[ELEMENTS], found[READ_STARTS], found[PACK_STARTS] = elements, read_starts, pack_starts
    found[PROMPT_STARTS], found[COPY_STARTS] = prompt_starts, copy_starts
    flops = 0
    for layer in layers:
        flops += layer[LAYERS] * kv_cache.sum_of_kept_tokens(n_input, layer[LAYER_WINDOW]) * layer[PAIR_FLOPS]
    found_f[PROMPT_FLOPS], found_f[SCORE_BYTES], found_f[CHOICE_BYTES], found_f[COPY_BITS] = (
        float(flops), scores, chosen, copy_bits
    )  # fmt: skip
    return True
