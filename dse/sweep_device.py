"""Compiled twins of `dse.kv_sums.ideal` and `dse.memory`: what the sums over a generation take on a device."""

from dse import sweep_fits as fits
from dse import sweep_sums as sums
from dse.formulas import attention, capacity, generation, scheduling
from kernels_ref import inner


@inner
def reached_bandwidth(design, device_f):
    """`dse.kv_sums.stack_bandwidth`."""
    if design.fit[sums.HAS_ATTENTION]:
        return device_f[sums.BANDWIDTH] * design.fit[sums.MEMORY_FRAC]
    return device_f[sums.BANDWIDTH]


@inner
def packing_s(tensors, device_f, bandwidth, packed, column):
    """Seconds to quantise what one sequence packs: (engine, fused, materialised)."""
    engine = fused = materialised = 0.0
    for t in range(len(tensors)):
        path = tensors[t, sums.PATH]
        if path == sums.MATERIALISED:
            materialised += attention.time_at_rate(packed[t, column], bandwidth)
        elif path == sums.ENGINE:
            engine += attention.time_at_rate(packed[t, column], device_f[sums.ENGINE_RATE])
        elif path == sums.FUSED:
            fused += attention.time_at_rate(packed[t, column], device_f[sums.FUSED_RATE])
    return engine, fused, materialised


@inner
def _sum_up(pieces, n_pieces, n_steps, device_f, peak, hides, packed_s, into):
    """`dse.kv_sums.ideal` of one sequence; `packed_s` is `packing_s` of the steps."""
    bandwidth, engine_rate, fused_rate = device_f[sums.BANDWIDTH], device_f[sums.ENGINE_RATE], device_f[sums.FUSED_RATE]
    hidden, paid = packed_s[0] / n_steps, packed_s[1] + packed_s[2]
    total = read = compute = busy = exposed = materialised = pack = 0.0
    for i in range(n_pieces):
        p = pieces[i]
        m = int(p[sums.STEPS])
        read_0 = attention.time_at_rate(p[sums.BYTES], bandwidth)
        read_1 = attention.time_at_rate(p[sums.BYTES_1], bandwidth)
        flop_0 = attention.time_at_rate(p[sums.FLOPS], peak)
        flop_1 = attention.time_at_rate(p[sums.FLOPS_1], peak)
        total += generation.sum_of_max2(flop_0, flop_1, read_0, read_1, 0, m)
        read += generation.sum_of_line(read_0, read_1, 0, m)
        compute += generation.sum_of_line(flop_0, flop_1, 0, m)
        by_engine = p[sums.BY_ENGINE] != 0 or p[sums.BY_ENGINE_1] != 0
        unpacks = by_engine or p[sums.BY_CORES] != 0 or p[sums.BY_CORES_1] != 0
        unpack_0 = unpack_1 = 0.0
        if unpacks:
            unpack_0 = p[sums.BY_ENGINE] / engine_rate + p[sums.BY_CORES] / fused_rate
            unpack_1 = p[sums.BY_ENGINE_1] / engine_rate + p[sums.BY_CORES_1] / fused_rate
            busy += generation.sum_of_line(unpack_0, unpack_1, 0, m)
        if p[sums.COPIED] != 0 or p[sums.COPIED_1] != 0:
            materialised += generation.sum_of_line(p[sums.COPIED] / bandwidth, p[sums.COPIED_1] / bandwidth, 0, m)
        for packs in range(2):  # what is unpacked, what is packed
            if (packs == 0 and unpacks) or (packs == 1 and hidden):
                share = hides if packs or by_engine else 1.0
                excess = generation.sum_of_excess(
                    share * flop_0, share * flop_1, share * read_0, share * read_1, hidden if packs else unpack_0,
                    0.0 if packs else unpack_1, m,
                )  # fmt: skip
                if packs:
                    pack += excess
                else:
                    exposed += excess
    into[sums.ATTENTION], into[sums.READ], into[sums.COMPUTE] = total, read, compute
    into[sums.FIXED], into[sums.UNIT], into[sums.MATERIALISED_S] = 0.0, 0.0, materialised
    into[sums.UNPACK], into[sums.PACK] = exposed + materialised, pack + paid
    into[sums.UNPACK_BUSY], into[sums.PACK_BUSY] = busy + materialised, hidden * n_steps + paid


@inner
def of_sequences(design, n_sequences, device, device_f, n_input, n_output, found, pieces, packed, into):
    """The sums over the steps of one of `n_sequences` that run together, seconds, and the rate of products."""
    peak = peak_flops(device, device_f, n_sequences, sums.PEAK)
    reached = reached_bandwidth(design, device_f)
    packed_s = packing_s(design.tensors, device_f, reached, packed, 0)
    if design.fit[sums.HAS_ATTENTION]:
        fits.sum_up(
            design, device_f, peak, n_sequences, n_input, n_output, pieces, found[sums.N_PIECES], packed_s, into
        )  # fmt: skip
    else:
        hides = hidden_share(n_sequences, device[sums.TOKEN_CORES])
        _sum_up(pieces, found[sums.N_PIECES], n_output, device_f, peak, hides, packed_s, into)
    into[sums.PRODUCT_PEAK] = product_peak(device, device_f, design.work, n_sequences)


@inner
def same_from(design, device, n_input):
    """Number of sequences from which on `of_sequences` finds the same."""
    return max(fits.same_from(design, n_input + 1), device[sums.TOKEN_CORES], 1)


@inner
def hidden_share(n_sequences, token_cores):
    """`dse.kv_sums.engine_hides`."""
    if token_cores == 0:
        return 1.0
    return scheduling.hideable_share(scheduling.busy_cores(n_sequences, token_cores))


@inner
def peak_flops(device, device_f, n_sequences, column):
    """A peak rate with the cores that `n_sequences` keep busy in generation; all of them for n_sequences = 0."""
    cores = device[sums.TOKEN_CORES]
    if cores == 0 or n_sequences == 0 or n_sequences >= cores:
        return device_f[column] * device_f[column + 1]
    return device_f[column] * (n_sequences / cores) * device_f[column + 1]


@inner
def product_peak(device, device_f, work, n_sequences):
    """Peak rate of the products with the weights."""
    if work[sums.ACTIVATION_BITS] > 8:
        return peak_flops(device, device_f, n_sequences, sums.PEAK)
    return max(
        peak_flops(device, device_f, n_sequences, sums.PEAK_INT8),
        peak_flops(device, device_f, n_sequences, sums.PEAK_FP8),
    )


@inner
def most_sequences(found, plan, work, device, n_output):
    """`dse.memory.Memory.max_batch`; -1 where it cannot be told in int64. First the free bytes."""
    free_bytes = device[sums.USABLE] - found[sums.WEIGHT_BYTES] - device[sums.OVERHEAD]
    unit = 8 * plan[sums.DEN]
    if abs(float(free_bytes)) * unit * (n_output if work[sums.PAGED] else 1) >= sums.WIDE:
        return free_bytes, -1
    free = free_bytes * unit
    if found[sums.OWN] > free:
        return free_bytes, 0
    if work[sums.PAGED]:
        return free_bytes, max(capacity.max_batch(free * n_output, 0, found[sums.OWN_SUM]), 1)
    return free_bytes, capacity.max_batch(free, 0, found[sums.OWN])
