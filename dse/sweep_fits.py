"""Compiled twin of `dse.kv_sums.calibrated_sums`: what fitted attention kernels take over a generation."""

from dse import sweep_sums as sums
from dse.formulas import attention, calibrated, generation, kv_cache
from kernels_ref import inner


@inner
def _first_tensor(tensors, shape):
    """The first tensor, the keys, of the layers of a kernel."""
    t = 0
    while tensors[t, sums.SHAPE] != shape:
        t += 1
    return t


@inner
def same_from(design, first):
    """Number of sequences from which on the sums of one do not depend on how many there are, at `first` tokens on."""
    fit, n = design.fit, 1
    if not fit[sums.HAS_ATTENTION]:
        return n
    for shape in range(len(design.kernels)):
        kernel = design.kernels[shape]
        if kernel[sums.IS_REORDERED] and fit[sums.LAYOUT_COPY_S]:
            n = max(n, 2)
        if kernel[sums.HAS_CEILING]:
            window = design.tensors[_first_tensor(design.tensors, shape), sums.WINDOW]
            split = max(min(first, window), calibrated.SPLIT_TOKENS)
            n = max(n, -(-calibrated.SPLIT_TOKENS * int(fit[sums.N_CORES]) // (int(kernel[sums.KV_HEADS]) * split)))
    return n


@inner
def _root(memory, unit, core, compute, n_steps, entered, window, busy_from, n_units, n_cores):
    """`LayerKernel._roots` of one of its core lines; lines are (first, slope)."""
    split = calibrated.SPLIT_TOKENS < entered < busy_from and window > calibrated.SPLIT_TOKENS
    if split and (core[0] != 0 or core[1] != 0):
        total = 0.0
        for i in range(n_steps):
            cores = calibrated.active_cores(min(entered + i, window), n_units, n_cores)
            total += generation.sum_of_root(
                memory[0] + memory[1] * i, 0.0, unit, 0.0, (core[0] + core[1] * i) / cores, 0.0,
                compute[0] + compute[1] * i, 0.0, 1,
            )  # fmt: skip
        return total
    cores = calibrated.active_cores(min(entered, window), n_units, n_cores)
    return generation.sum_of_root(
        memory[0], memory[1], unit, 0.0, core[0] / cores, core[1] / cores, compute[0], compute[1], n_steps
    )  # fmt: skip


@inner
def _attention(design, device_f, peak, n_sequences, n_input, n_output, into):
    """The sums over all layers of one of `n_sequences`, but for UNPACK: there, the root with elements as stored."""
    tensors, fit = design.tensors, design.fit
    n_cores, plain_s = int(fit[sums.N_CORES]), fit[sums.PLAIN_CORE_S]
    per_byte, last = 8 * design.plan[sums.DEN], n_input + n_output
    stored_s = plain_total_s = read_s = compute_s = unit_total_s = fixed_total_s = 0.0
    for shape in range(len(design.kernels)):
        kernel = design.kernels[shape]
        heads, n_layers = int(kernel[sums.KV_HEADS]), int(kernel[sums.KERNEL_LAYERS])
        n_units = n_sequences * heads
        unit_s = calibrated.attention_unit_s(heads, fit[sums.UNIT_S], n_cores)
        busy_from = -(-calibrated.SPLIT_TOKENS * n_cores // n_units)
        waits = kernel[sums.HAS_CEILING] != 0 and busy_from > calibrated.SPLIT_TOKENS
        n_copies = 1 if kernel[sums.IS_REORDERED] and n_sequences > 1 else 0
        keys = _first_tensor(tensors, shape)
        window, start = tensors[keys, sums.WINDOW], n_input + 1
        while start <= last:
            end = last + 1
            bits = bits_1 = 0
            as_stored = as_stored_1 = as_plain = as_plain_1 = 0.0
            is_packed = False
            for t in range(keys, len(tensors)):
                g = tensors[t]
                if g[sums.SHAPE] != shape:
                    continue
                end = min(end, kv_cache.next_break(start, g[sums.STEP], g[sums.RESIDUAL], g[sums.WINDOW]))
                bits += sums.stored_bits(g, start)
                bits_1 += sums.slope(g, start, g[sums.PACKED_BITS], g[sums.FULL_BITS])
                kept, grows = kv_cache.kept_tokens(start, g[sums.WINDOW]), sums.slope(g, start, 1, 1)
                packed = packs = 0
                if g[sums.UNPACKED]:
                    is_packed = True
                    packed = kv_cache.packed_tokens(kept, g[sums.STEP], g[sums.RESIDUAL])
                    packs = sums.slope(g, start, 1, 0)
                n, packed_s = g[sums.N_ELEMENTS], design.tensors_f[t, sums.PACKED_CORE_S]
                as_stored += n * (packed * packed_s + (kept - packed) * plain_s)
                as_stored_1 += n * (packs * packed_s + (grows - packs) * plain_s)
                as_plain += n * kept * plain_s
                as_plain_1 += n * grows * plain_s
            if start <= calibrated.SPLIT_TOKENS:
                end = min(end, calibrated.SPLIT_TOKENS + 1)
            if waits and start < busy_from:
                end = min(end, busy_from)
            m = end - start
            length = kv_cache.kept_tokens(start, window)
            flops, flops_1 = (
                length * kernel[sums.TOKEN_FLOPS],
                sums.slope(tensors[keys], start, 1, 1) * kernel[sums.TOKEN_FLOPS],
            )
            frac, bandwidth = fit[sums.MEMORY_FRAC], device_f[sums.BANDWIDTH]
            memory = (
                calibrated.attention_memory_s(bits / per_byte, kernel[sums.IO_BYTES], frac, bandwidth),
                calibrated.attention_memory_s(bits_1 / per_byte, 0, frac, bandwidth),
            )
            compute = (calibrated.attention_compute_s(flops, peak), calibrated.attention_compute_s(flops_1, peak))
            fixed_s = kernel[sums.KERNEL_LAUNCH_S] + fit[sums.LAYOUT_COPY_S] * n_copies
            fixed_s += fit[sums.SPLIT_S] if length > calibrated.SPLIT_TOKENS else 0.0
            plain = stored = 0.0
            for as_it_is in range(2 if is_packed else 1):
                core = (as_stored, as_stored_1) if as_it_is else (as_plain, as_plain_1)
                stored = _root(memory, unit_s, core, compute, m, start, window, busy_from, n_units, n_cores)
                if as_it_is == 0:
                    plain = stored
            stored_s += n_layers * stored
            plain_total_s += n_layers * plain
            read_s += n_layers * generation.sum_of_line(memory[0], memory[1], 0, m)
            compute_s += n_layers * generation.sum_of_line(compute[0], compute[1], 0, m)
            unit_total_s += n_layers * (m * unit_s)
            fixed_total_s += n_layers * (m * fixed_s)
            start = end
    into[sums.ATTENTION], into[sums.UNPACK], into[sums.READ] = plain_total_s, stored_s, read_s
    into[sums.COMPUTE], into[sums.UNIT], into[sums.FIXED] = compute_s, unit_total_s, fixed_total_s


@inner
def _unpacking_s(design, n_input, n_output):
    """Seconds in which the units that unpack one sequence are busy."""
    total, last = 0.0, n_input + n_output
    for t in range(len(design.tensors)):
        g, rate = design.tensors[t], design.tensors_f[t, sums.UNPACK_RATE]
        if rate == 0:
            continue
        elements, start = g[sums.N_READ] * g[sums.N_ELEMENTS], n_input + 1
        while start <= last:
            end = min(last + 1, kv_cache.next_break(start, g[sums.STEP], g[sums.RESIDUAL], g[sums.WINDOW]))
            packed = kv_cache.packed_tokens(
                kv_cache.kept_tokens(start, g[sums.WINDOW]), g[sums.STEP], g[sums.RESIDUAL]
            )  # fmt: skip
            now, more = (
                attention.time_at_rate(elements * packed, rate),
                attention.time_at_rate(elements * sums.slope(g, start, 1, 0), rate),
            )
            total += generation.sum_of_line(now, more, 0, end - start)
            start = end
    return total


@inner
def sum_up(design, device_f, peak, n_sequences, n_input, n_output, pieces, n_pieces, packed_s, into):
    """`dse.kv_sums.calibrated_sums` of one of `n_sequences`; `packed_s` is `sweep_device.packing_s` of the steps."""
    _attention(design, device_f, peak, n_sequences, n_input, n_output, into)
    copies, materialised = device_f[sums.BANDWIDTH] * design.fit[sums.COPY_FRAC], 0.0
    for i in range(n_pieces):
        p = pieces[i]
        if p[sums.COPIED] != 0 or p[sums.COPIED_1] != 0:
            materialised += generation.sum_of_line(
                p[sums.COPIED] / copies, p[sums.COPIED_1] / copies, 0, int(p[sums.STEPS])
            )  # fmt: skip
    into[sums.UNPACK] = into[sums.UNPACK] - into[sums.ATTENTION] + materialised
    into[sums.MATERIALISED_S] = materialised
    into[sums.UNPACK_BUSY] = _unpacking_s(design, n_input, n_output) + materialised
    into[sums.PACK] = packed_s[1] + packed_s[2]
    into[sums.PACK_BUSY] = into[sums.PACK] + packed_s[0]
