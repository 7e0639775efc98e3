"""Compiled twins of `dse.plan` and `dse.peaks`: what one sequence stores, in exact integers, on plain arrays.

The formulas are those of `dse.formulas`; what is here are the loops over tensors. Full attention, no shared prefix.
Every function reports what it cannot do exactly in int64 and float64 by its result.
"""

from typing import Any, NamedTuple

from dse.formulas import activations, attention, kv_cache, memory_unit
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
# products with some of the weights, by operation: parameters that a token meets, outside and of the experts
ACTIVE_PART, DENSE_PART, EXPERT_PART, N_PART = range(4)
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
    POWER, PRICE, USABLE_FRAC, BYTE_J, FLOP_J, IDLE_POWER, N_DEVICE_F,
) = range(17)  # fmt: skip
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
#: a plan has at most so many tensors, pieces and products here
MAX_TENSORS, MAX_PIECES, MAX_PRODUCTS = 64, 4096, 4
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
    products: Any


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
    products: Any


@inner
def design(tables, case):
    """The rows of `case` in `tables`."""
    plan = tables.plans[case]
    tensors = slice(plan[FIRST_TENSOR], plan[LAST_TENSOR])
    return Design(
        tables.tensors[tensors], tables.tensors_f[tensors], tables.layers[plan[FIRST_LAYER] : plan[LAST_LAYER]],
        tables.kernels[plan[FIRST_KERNEL] : plan[LAST_KERNEL]], plan, tables.plans_f[case], tables.works[case],
        tables.fits[case], tables.products[case],
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
def padding_bits(g, kept, pages):
    """Unused bits of the last pages of a tensor of one layer."""
    if g[PAGE_ROW]:
        return memory_unit.page_tail_bits(kept, g[STREAM], g[PAGE_ROW]) + memory_unit.page_tail_bits(
            kept, g[STREAM_2], g[PAGE_ROW]
        )
    return g[TAIL_BITS] * kv_cache.padding_tokens(kept, pages)


@inner
def slope(g, n_tokens, packed, full):
    """What the next token adds, of which a packed and another token count so much."""
    return kv_cache.piece_slope(n_tokens, packed, full, g[STEP], g[RESIDUAL], g[WINDOW])


@inner
def sequence_bits(tensors, pages, n_tokens):
    """Bits of one sequence, page padding included."""
    total = 0
    for t in range(len(tensors)):
        g = tensors[t]
        kept = kv_cache.kept_tokens(n_tokens, g[WINDOW])
        total += g[N_STORED] * (stored_bits(g, n_tokens) + padding_bits(g, kept, pages))
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
def activation_bytes(plan, work, n_input, n_output, n_tokens):
    """Bytes of the activations of one sequence at a context of `n_tokens`."""
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
def peaks(design, n_input, n_output, first, last, lengths):
    """The most that a sequence takes between two lengths: alone, and with what is worked on. -1 if not to be told."""
    tensors, plan, work = design.tensors, design.plan, design.work
    largest = own = 0
    n_lengths = _peak_lengths(tensors, work[PAGES], first, last, lengths)
    if n_lengths < 0:
        return -1, -1
    for i in range(n_lengths):
        n_tokens = lengths[i]
        kept = sequence_bits(tensors, work[PAGES], n_tokens)
        extra = activation_bytes(plan, work, n_input, n_output, n_tokens) + workspace_bytes(tensors, n_tokens)
        largest, own = max(largest, kept), max(own, kept + 8 * plan[DEN] * extra)
    return largest, own
