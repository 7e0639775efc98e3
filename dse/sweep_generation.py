"""Compiled twin of `dse.plan` and `dse.packing`: what one sequence reads and packs over a generation, in integers."""

from dse import sweep_sums as sums
from dse.formulas import dequantize, kv_cache, memory_unit, sink_work, tokens, weights
from kernels_ref import inner


@inner
def _sum_of_padding_bits(g, n_tokens, pages):
    """Unused bits of last pages summed over the lengths 1..n_tokens."""
    inside = min(n_tokens, g[sums.WINDOW])
    if g[sums.PAGE_ROW]:
        grown = memory_unit.sum_of_page_tail_bits(inside, g[sums.STREAM], g[sums.PAGE_ROW])
        grown += memory_unit.sum_of_page_tail_bits(inside, g[sums.STREAM_2], g[sums.PAGE_ROW])
        return grown + (n_tokens - inside) * sums.padding_bits(g, inside, 1)
    return g[sums.TAIL_BITS] * tokens.sum_of_grown_padding_tokens(n_tokens, g[sums.WINDOW], pages)


@inner
def _packed_ever(g, n_tokens):
    if g[sums.WINDOW] < g[sums.STEP] + g[sums.RESIDUAL]:
        return 0
    return kv_cache.packed_tokens(n_tokens, g[sums.STEP], g[sums.RESIDUAL])


@inner
def _flops(layers, n_tokens):
    total = 0
    for at in range(len(layers)):
        layer = layers[at]
        total += layer[sums.LAYERS] * kv_cache.kept_tokens(n_tokens, layer[sums.LAYER_WINDOW]) * layer[sums.PAIR_FLOPS]
    return total


@inner
def _pieces(tensors, layers, plan, n_input, n_output, pieces):
    """Straight pieces of the generation, and the stored bits summed over its steps. (-1, 0) where they are too many."""
    length, last, n_pieces, stored = n_input + 1, n_input + n_output, 0, 0
    per_byte = 8 * plan[sums.DEN]
    while length <= last:
        if n_pieces == sums.MAX_PIECES:
            return -1, 0
        end = last + 1
        for t in range(len(tensors)):
            g = tensors[t]
            end = min(end, kv_cache.next_break(length, g[sums.STEP], g[sums.RESIDUAL], g[sums.WINDOW]))
        m = end - length
        read = read_1 = bits = bits_1 = engine = engine_1 = cores = cores_1 = copied = copied_1 = 0
        for t in range(len(tensors)):
            g = tensors[t]
            at_start, more = sums.stored_bits(g, length), sums.slope(g, length, g[sums.PACKED_BITS], g[sums.FULL_BITS])
            read += g[sums.N_READ] * at_start
            read_1 += g[sums.N_READ] * more
            bits += g[sums.N_STORED] * at_start
            bits_1 += g[sums.N_STORED] * more
            if g[sums.UNPACKED]:
                kept, per_token = kv_cache.kept_tokens(length, g[sums.WINDOW]), g[sums.N_READ] * g[sums.N_ELEMENTS]
                now = per_token * kv_cache.packed_tokens(kept, g[sums.STEP], g[sums.RESIDUAL])
                added = per_token * sums.slope(g, length, 1, 0)
                if g[sums.PATH] == sums.ENGINE:
                    engine, engine_1 = engine + now, engine_1 + added
                elif g[sums.PATH] == sums.FUSED:
                    cores, cores_1 = cores + now, cores_1 + added
                else:
                    copied, copied_1 = copied + now, copied_1 + added
        flops = _flops(layers, length)
        piece = pieces[n_pieces]
        piece[sums.STEPS], piece[sums.FLOPS] = m, flops
        piece[sums.FLOPS_1] = _flops(layers, length + 1) - flops if m > 1 else 0
        piece[sums.BYTES], piece[sums.BYTES_1] = read / per_byte, read_1 / per_byte
        piece[sums.BY_ENGINE], piece[sums.BY_ENGINE_1], piece[sums.BY_CORES], piece[sums.BY_CORES_1] = (
            engine,
            engine_1,
            cores,
            cores_1,
        )
        piece[sums.COPIED] = dequantize.materialised_bytes(copied)
        piece[sums.COPIED_1] = dequantize.materialised_bytes(copied_1)
        stored += m * bits + bits_1 * (m * (m - 1) // 2)
        length, n_pieces = end, n_pieces + 1
    return n_pieces, stored


@inner
def at_most(tensors, plan, work, n_tokens):
    """No sequence of `n_tokens` takes more, in units of 1 / den bit, with what is worked on."""
    most, per_byte = 0.0, 8.0 * plan[sums.DEN]
    for t in range(len(tensors)):
        g = tensors[t]
        kept, n_layers = (
            min(n_tokens, float(g[sums.WINDOW])) + work[sums.PAGES] + g[sums.STEP],
            float(max(g[sums.N_STORED], g[sums.N_READ])),
        )
        bits = float(max(g[sums.PACKED_BITS], g[sums.FULL_BITS]))
        most += n_layers * (kept * bits + g[sums.ONCE_BITS] + g[sums.POOL_BITS] + 2.0 * g[sums.PAGE_ROW])
        most += per_byte * 4.0 * g[sums.N_ELEMENTS] * (n_tokens + g[sums.TILE])
    return most + per_byte * n_tokens * max(plan[sums.ACTIVATION_ELEMENTS], plan[sums.LOGITS]) * 2.0


@inner
def _too_large(tensors, layers, plan, work, n_input, n_output):
    """True where a whole number might not be exact as float64, or a sum of them not fit int64."""
    n, most = float(n_input + n_output), at_most(tensors, plan, work, float(n_input + n_output))
    packed = paddings = 0.0
    for t in range(len(tensors)):
        g = tensors[t]
        layers_, bits = float(max(g[sums.N_STORED], g[sums.N_READ])), float(max(g[sums.PACKED_BITS], g[sums.FULL_BITS]))
        packed += layers_ * n * max(bits, 16.0 * g[sums.N_ELEMENTS])
        events = n / g[sums.STEP] + 1
        packed += layers_ * bits * g[sums.STEP] * events * events * g[sums.COPIES]
        paddings += layers_ * (bits * n * (n + work[sums.PAGES]) + g[sums.PAGE_ROW] * n)
    flops = 0.0
    for at in range(len(layers)):
        layer = layers[at]
        flops += float(layer[sums.LAYERS]) * layer[sums.PAIR_FLOPS] * n
    if most >= sums.EXACT or packed >= sums.EXACT or flops >= sums.EXACT or flops * n >= sums.WIDE:
        return True
    return work[sums.PAGED] == 1 and (most * n_output >= sums.WIDE or paddings >= sums.WIDE)


@inner
def _amount(g, plan, n_packed):
    """Elements quantised in `n_packed` tokens; bytes read and written where they go through memory."""
    elements = n_packed * g[sums.N_STORED] * g[sums.N_ELEMENTS]
    if g[sums.PATH] == sums.MATERIALISED:
        return (elements * 16 + n_packed * g[sums.N_STORED] * g[sums.PACKED_BITS] / plan[sums.DEN]) / 8
    return float(elements)


@inner
def of_generation(design, n_input, n_output, found, found_f, pieces, packed, lengths):
    """Fill `found`, `found_f`, `pieces` and `packed`: by tensor, in the steps and in the prompt, the elements that are
    quantised, or the bytes that this moves where it is not done in place. `lengths` is room for work.

    False where the whole numbers are too large, or the pieces too many.
    """
    tensors, tensors_f, layers, _, plan, _, work, fit, _ = design
    if _too_large(tensors, layers, plan, work, n_input, n_output):
        return False
    n = n_input + n_output
    n_pieces, stored = _pieces(tensors, layers, plan, n_input, n_output, pieces)
    if n_pieces < 0:
        return False
    found[sums.N_PIECES] = n_pieces
    found[sums.SEQUENCE] = sums.sequence_bits(tensors, work[sums.PAGES], n)
    found[sums.LARGEST], found[sums.OWN] = sums.peaks(design, n_input, n_output, n_input, n, lengths)
    if found[sums.OWN] < 0:
        return False
    found[sums.ACTIVATION_BYTES] = sums.activation_bytes(plan, work, n_input, n_output, n)
    found[sums.WORKSPACE_BYTES] = sums.workspace_bytes(tensors, n)
    found[sums.WEIGHT_BYTES] = weights.weight_bytes(plan[sums.DENSE] + plan[sums.EXPERT], work[sums.WEIGHT_BITS])
    if plan[sums.BURST_BITS] >= 2**29:
        return False
    found[sums.OWN_SUM] = 0
    if work[sums.PAGED]:
        resident = stored
        for t in range(len(tensors)):
            g = tensors[t]
            resident += g[sums.N_STORED] * (
                _sum_of_padding_bits(g, n, work[sums.PAGES]) - _sum_of_padding_bits(g, n_input, work[sums.PAGES])
            )  # fmt: skip
        extra = 8 * plan[sums.DEN] * (found[sums.ACTIVATION_BYTES] + found[sums.WORKSPACE_BYTES])
        found[sums.OWN_SUM] = resident + n_output * extra
    elements = read_starts = pack_starts = prompt_starts = copy_starts = 0
    scores = chosen = copy_bits = 0.0
    for t in range(len(tensors)):
        g = tensors[t]
        before, after = _packed_ever(g, n_input), _packed_ever(g, n)
        packed[t, 0], packed[t, 1] = _amount(g, plan, after - before), _amount(g, plan, before)
        elements += g[sums.N_STORED] * g[sums.N_ELEMENTS] * kv_cache.kept_tokens(n, g[sums.WINDOW])
        starts = g[sums.STEP] + g[sums.RESIDUAL]
        n_steps = max(n + 1 - max(n_input + 1, starts), 0) if g[sums.WINDOW] >= starts else 0
        if g[sums.UNPACKED] and (g[sums.PATH] == sums.FUSED or g[sums.PATH] == sums.MATERIALISED):
            if fit[sums.HAS_COPIES] and g[sums.PATH] == sums.MATERIALISED:
                copy_starts += g[sums.N_READ] * n_steps
            else:
                read_starts += g[sums.N_READ] * g[sums.READ_LAUNCHES] * n_steps
            pack_starts += g[sums.N_STORED] * g[sums.PACK_LAUNCHES] * ((after - before) // g[sums.STEP])
            if before:
                prompt_starts += g[sums.N_STORED] * g[sums.PACK_LAUNCHES]
        if g[sums.COPIES] and g[sums.PATH] != sums.ENGINE:
            kept = _packed_ever(g, g[sums.WINDOW]) // g[sums.STEP]
            copied = dequantize.copied_tokens(before // g[sums.STEP], after // g[sums.STEP], g[sums.STEP], kept)
            copy_bits += copied * g[sums.N_STORED] * g[sums.PACKED_BITS] / plan[sums.DEN]
        rows = tensors_f[t, sums.POOL_ROWS]
        if rows > 0:
            scores += n_steps * g[sums.N_READ] * sink_work.sink_score_bytes(plan[sums.N_Q_HEADS], rows)
            reads = sums.KEY_READS if g[sums.SIDE] == 0 else sums.VALUE_READS
            chosen += g[sums.N_STORED] * sink_work.sink_choice_bytes(reads, after - before, g[sums.N_ELEMENTS])
    found[sums.ELEMENTS], found[sums.READ_STARTS], found[sums.PACK_STARTS] = elements, read_starts, pack_starts
    found[sums.PROMPT_STARTS], found[sums.COPY_STARTS] = prompt_starts, copy_starts
    flops = 0
    for at in range(len(layers)):
        layer = layers[at]
        flops += (
            layer[sums.LAYERS] * kv_cache.sum_of_kept_tokens(n_input, layer[sums.LAYER_WINDOW]) * layer[sums.PAIR_FLOPS]
        )
    found_f[sums.PROMPT_FLOPS], found_f[sums.SCORE_BYTES], found_f[sums.CHOICE_BYTES], found_f[sums.COPY_BITS] = (
        float(flops), scores, chosen, copy_bits
    )  # fmt: skip
    return True
