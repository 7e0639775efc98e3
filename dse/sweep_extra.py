"""Compiled twins of `dse.utilisation` and of what `dse.point` and `dse.memory` find beside times: shares of the peak
rates, energy by parts, cost of a request, bytes and tokens of a context, and the longest context."""

from dse import sweep_device as on_device
from dse import sweep_generation as generation
from dse import sweep_runs as runs
from dse import sweep_sums as sums
from dse.formulas import attention, energy, kv_cache, linear, utilisation, weights
from kernels_ref import inner

#: columns of a run that no batch changes, then those of a point that runs
OF_RUN = ("stored_tokens", "read_tokens", "page_tail_bits", "kv_bytes_per_token")
COLUMNS = (
    *OF_RUN, "quantize_busy_s", "dequantize_busy_s", "compute_utilisation", "bandwidth_utilisation",
    "prefill_compute_utilisation", "prefill_bandwidth_utilisation", "memory_joules_per_token",
    "compute_joules_per_token", "idle_joules_per_token", "joules_per_token_by_parts", "usd_per_request",
)  # fmt: skip
#: contexts are searched up to here (dse/memory.py)
MAX_CONTEXT_TOKENS = 2**40
#: no limit, and not to be told in int64
NO_LIMIT, UNKNOWN = -1, -2


@inner
def of_run(design, n_tokens, out):
    """Tokens and bytes of a sequence of `n_tokens`, for all points of a run: the columns `OF_RUN`."""
    tensors, unit, pages = design.tensors, 8 * design.plan[sums.DEN], design.work[sums.PAGES]
    padding = elements = read_layers = read_tokens = 0
    per_token = 0.0
    for t in range(len(tensors)):
        g = tensors[t]
        kept = kv_cache.kept_tokens(n_tokens, g[sums.WINDOW])
        unused = sums.padding_bits(g, kept, pages)
        padding += g[sums.N_STORED] * unused
        elements += g[sums.N_STORED] * g[sums.N_ELEMENTS] * kept
        per_token += g[sums.N_STORED] * ((sums.stored_bits(g, n_tokens) + unused) / (unit * kept))
        if g[sums.SIDE] == 0:
            read_layers += g[sums.N_READ]
            read_tokens += g[sums.N_READ] * kept
    out[0] = out[1] = read_tokens / read_layers
    out[2] = padding / (design.plan[sums.DEN] * elements)
    out[3] = per_token


@inner
def _step(design, device, device_f, n, n_output, terms, one):
    """A mean decode step of `n` sequences: bytes, and seconds that its FLOP and its bytes take at the peak rates."""
    bandwidth, reached, peak = terms[runs.BANDWIDTH], terms[runs.REACHED], terms[runs.PROMPT_PEAK]
    running_peak = on_device.peak_flops(device, device_f, int(n), sums.PEAK)
    flops = n * one[sums.COMPUTE] / n_output * running_peak * design.fit[sums.FLOPS_FRAC]
    n_bytes = n * one[sums.READ] / n_output * reached
    write_s = n * terms[runs.BURST_BITS] / terms[runs.PER_BYTE] / bandwidth
    scale, copied = n / n_output, bandwidth * design.fit[sums.COPY_FRAC]
    moved = n * one[sums.MATERIALISED_S] / n_output * copied + write_s * bandwidth
    scores_s, choice_s = scale * terms[runs.SCORE_BYTES] / reached, scale * terms[runs.CHOICE_BYTES] / reached
    moved += (scores_s + choice_s + n * terms[runs.COPY_S] / n_output) * reached
    found = _with_products(
        design, terms, n, n_bytes, attention.time_at_rate(flops, peak), attention.time_at_rate(n_bytes, bandwidth)
    )  # fmt: skip
    return found[0] + moved, found[1], found[2] + attention.time_at_rate(moved, bandwidth)


@inner
def _with_products(design, terms, n_tokens, n_bytes, compute_s, read_s):
    """What attention takes with the products over `n_tokens` tokens, summed in the order of `dse.utilisation`."""
    peak, bandwidth = terms[runs.PROMPT_PRODUCT_PEAK], terms[runs.BANDWIDTH]
    touched = weights.expert_share_touched(int(n_tokens), terms[runs.N_EXPERTS], terms[runs.N_ACTIVE])
    total_bytes = total_compute_s = total_read_s = 0.0
    for i in range(len(design.products)):
        part = design.products[i]
        part_bytes = weights.weight_read_bytes(
            part[sums.DENSE_PART], part[sums.EXPERT_PART], touched, terms[runs.WEIGHT_BITS]
        )
        total_bytes += part_bytes
        total_compute_s += linear.linear_compute_s(n_tokens, part[sums.ACTIVE_PART], peak)
        total_read_s += attention.time_at_rate(part_bytes, bandwidth)
        if i == 0:
            total_bytes, total_compute_s, total_read_s = (
                total_bytes + n_bytes,
                total_compute_s + compute_s,
                total_read_s + read_s,
            )
    return total_bytes, total_compute_s, total_read_s


@inner
def of_points(row, smaller, n_points, design, device, device_f, n_input, n_output, scratch, out):
    """The columns after `OF_RUN` of the points of a run; `smaller` has the waves of one sequence less."""
    terms, is_paged = scratch.terms, design.work[sums.PAGED] == 1
    bandwidth, peak, price = terms[runs.BANDWIDTH], terms[runs.PROMPT_PEAK], device_f[sums.PRICE]
    steps = float(n_output)
    for i in range(n_points):
        batch, total_s = row[runs.BATCH + i], row[runs.TOTAL_S + i]
        n_bytes = at_peak_s = prompts_s = 0.0
        for wave in range(1 if is_paged else 2):
            n, times = row[runs.RUNNING + i] - wave, smaller if wave else row
            count = row[runs.N_WAVES + i] - row[runs.N_FULL + i] if wave else row[runs.N_FULL + i]
            if is_paged:
                count = batch / n
            if count == 0:
                continue
            one = scratch.by_n[int(min(n, terms[runs.SAME_FROM]))]
            step = _step(design, device, device_f, n, steps, terms, one)
            prompt = _with_products(
                design, terms, n * n_input, 0.0, attention.time_at_rate(n * terms[runs.PROMPT_FLOPS], peak), 0.0
            )  # fmt: skip
            n_bytes += count * (steps * step[0] + prompt[0])
            at_peak_s += count * (steps * step[1] + prompt[1])
            prompts_s += count * times[runs.PREFILL_S + i]
            if wave == 0:
                write_s = n * terms[runs.BURST_BITS] / terms[runs.PER_BYTE] / bandwidth
                out[4, i] = n * one[sums.PACK_BUSY] / steps + write_s
                out[5, i] = n * one[sums.UNPACK_BUSY] / steps
                for share in range(2):
                    out[6 + share, i] = utilisation.utilisation(step[1 + share], row[runs.DECODE_STEP_S + i])
                    out[8 + share, i] = utilisation.utilisation(prompt[1 + share], row[runs.PREFILL_S + i])
        n_tokens = batch * steps
        memory = energy.memory_joules_per_token(n_bytes, device_f[sums.BYTE_J], n_tokens)
        compute = energy.compute_joules_per_token(at_peak_s, peak, device_f[sums.FLOP_J], n_tokens)
        idle = energy.idle_joules_per_token(device_f[sums.IDLE_POWER], total_s, n_tokens)
        out[10, i], out[11, i], out[12, i] = memory, compute, idle
        out[13, i] = energy.joules_per_token_by_parts(memory, compute, idle)
        out[14, i] = energy.usd_per_request(price, (total_s - prompts_s) / batch, prompts_s / batch, n_input, 0, 0.0)


@inner
def longest_context(design, n_input, n_output, free, batch, own, lengths):
    """`dse.memory.Memory.max_context_tokens`, or NO_LIMIT or UNKNOWN; `own` is what a request takes at its most.

    What a request takes never falls with its length, so that the answer does not depend on how it is sought. Lengths
    over twice of what fits are looked at only where their bits cannot overflow.
    """
    budget, high = free // batch, MAX_CONTEXT_TOKENS + 1
    first = low = min(n_input, 1)  # 1: written so, it would be compiled apart
    at_low = sums.peaks(design, n_input, n_output, first, low, lengths)[1]
    if at_low < 0:
        return UNKNOWN
    if at_low > budget:
        return 0
    rate = own / (n_input + n_output)
    for _ in range(5):
        guess = low + int(min(max((budget - at_low) / max(rate, 1.0), 1.0), 2.0**41))
        guess = min(guess, high - 1)
        if guess <= low:
            break
        if generation.at_most(design.tensors, design.plan, design.work, float(guess)) >= sums.WIDE:
            guess = min(guess, 2 * low)
        needed = sums.peaks(design, n_input, n_output, first, guess, lengths)[1]
        if needed < 0:
            return UNKNOWN
        rate = (needed - at_low) / (guess - low)
        if needed <= budget:
            low, at_low = guess, needed
        else:
            high = guess
    step, is_found = 1, False
    while high - low > 1:
        guess = (low + high) // 2 if is_found else min(low + step, high - 1)
        needed = sums.peaks(design, n_input, n_output, first, guess, lengths)[1]
        if needed < 0:
            return UNKNOWN
        if needed <= budget:
            low, step = guess, min(2 * step, guess)
        else:
            high, is_found = guess, True
    return NO_LIMIT if low == MAX_CONTEXT_TOKENS else low
