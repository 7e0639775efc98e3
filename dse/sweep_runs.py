"""Compiled: a run of design points that differ in their batch only, as rows of numbers in the fastest cache.

What the batch does not change is in `terms`; the rows are stretches of one array, `ROW` apart, so that each loop is
compiled into vector instructions. The operations are those of `dse.steps` and `dse.point_times`, in the same order.
"""

import numpy as np

from dse import sweep_device as on_device
from dse import sweep_sums as sums
from dse.formulas import attention, dequantize, energy, prefill, throughput, weights
from dse.formulas.linear import linear_compute_s
from kernels_ref import inner

#: points of a run at most
ROW = 128
# rows: given, then found
(
    BATCH, N_WAVES, N_FULL, RUNNING, READ_S, PROMPT_READ_S, COMPUTE_S, LINEAR_S, ATTENTION_S, QUANTIZE_S,
    DEQUANTIZE_S, DECODE_STEP_S, PROMPT_COMPUTE_S, PROMPT_MATRIX_S, PROMPT_S, PROMPT_QUANTIZE_S, PREFILL_S, WAVE_S,
    SMALLER_WAVE_S, TOTAL_S, THROUGHPUT, JOULES, USD, READ_1, COMPUTE_1, N_ROWS,
) = (ROW * i for i in range(26))  # fmt: skip
# terms: what all points of a run share
(
    N_STEPS, N_INPUT, ACTIVE, PRODUCT_PEAK, PROMPT_PRODUCT_PEAK, PROMPT_PEAK, BANDWIDTH, ATTENTION, READ, COMPUTE,
    UNPACK, PACK, SCORE_BYTES, CHOICE_BYTES, COPY_S, BURST_BITS, PER_BYTE, READ_LAUNCH_S, PACK_LAUNCH_S,
    PROMPT_FLOPS, PROMPT_ENGINE_S, PROMPT_FUSED_S, PROMPT_COPIED_S, PROMPT_LAUNCH_S, IS_PLAIN, DENSE_READ_S,
    IS_MIXTURE, N_TERMS,
) = range(28)  # fmt: skip
#: codes of what a time is bound by
BANDWIDTH_BOUND, COMPUTE_BOUND, LATENCY_BOUND, DEQUANTIZATION_BOUND, CAPACITY_BOUND = range(5)
BOUNDS = ("bandwidth", "compute", "latency", "dequantization", "capacity")


@inner
def _read_s(plan, work, bandwidth, touched):
    n_bytes = weights.weight_read_bytes(plan[sums.DENSE], plan[sums.EXPERT], touched, work[sums.WEIGHT_BITS])
    return attention.time_at_rate(n_bytes, bandwidth)


@inner
def of_device(plan, plan_f, work, device, device_f, tensors, n_input, n_output, found, found_f, packed, terms):
    """The terms that no number of sequences changes."""
    bandwidth = device_f[sums.BANDWIDTH]
    terms[N_STEPS], terms[N_INPUT], terms[ACTIVE] = n_output, n_input, plan_f[sums.ACTIVE]
    terms[BANDWIDTH], terms[PER_BYTE], terms[BURST_BITS] = bandwidth, 8 * plan[sums.DEN], plan[sums.BURST_BITS]
    terms[PROMPT_PEAK] = on_device.peak_flops(device, device_f, 0, sums.PEAK)
    terms[PROMPT_PRODUCT_PEAK] = on_device.product_peak(device, device_f, work, 0)
    terms[SCORE_BYTES], terms[CHOICE_BYTES] = found_f[sums.SCORE_BYTES], found_f[sums.CHOICE_BYTES]
    launch_s = device_f[sums.LAUNCH_S]
    terms[COPY_S] = attention.time_at_rate(found_f[sums.COPY_BITS] / 8, bandwidth) if launch_s else 0.0
    terms[READ_LAUNCH_S] = dequantize.launch_s(found[sums.READ_STARTS] / n_output, launch_s)
    terms[PACK_LAUNCH_S] = dequantize.launch_s(found[sums.PACK_STARTS] / n_output, launch_s)
    terms[PROMPT_LAUNCH_S] = dequantize.launch_s(found[sums.PROMPT_STARTS], launch_s)
    terms[PROMPT_FLOPS] = found_f[sums.PROMPT_FLOPS]
    prompt = on_device.packing_s(tensors, device_f, packed, 1)
    terms[PROMPT_ENGINE_S], terms[PROMPT_FUSED_S], terms[PROMPT_COPIED_S] = prompt
    terms[IS_MIXTURE] = 1.0 if plan[sums.EXPERT] else 0.0
    terms[DENSE_READ_S] = _read_s(plan, work, bandwidth, 1.0)


@inner
def of_sequences(n_sequences, work, device, device_f, tensors, plan, n_output, found, packed, pieces, total, terms):
    """The terms that may depend on the cores that `n_sequences` keep busy (0: all cores, engines hide all)."""
    peak = on_device.peak_flops(device, device_f, n_sequences, sums.PEAK)
    hides = on_device.hidden_share(n_sequences, device[sums.TOKEN_CORES])
    packed_s = on_device.packing_s(tensors, device_f, packed, 0)
    on_device.sum_up(pieces, found[sums.N_PIECES], n_output, device_f, peak, hides, packed_s, total)
    terms[PRODUCT_PEAK] = on_device.product_peak(device, device_f, work, n_sequences)
    terms[ATTENTION], terms[READ], terms[COMPUTE] = total[sums.ATTENTION], total[sums.READ], total[sums.COMPUTE]
    terms[UNPACK], terms[PACK] = total[sums.UNPACK], total[sums.PACK]
    plain = 0.0
    for term in (
        UNPACK, PACK, SCORE_BYTES, CHOICE_BYTES, COPY_S, BURST_BITS, READ_LAUNCH_S, PACK_LAUNCH_S, PROMPT_ENGINE_S,
        PROMPT_FUSED_S, PROMPT_COPIED_S, PROMPT_LAUNCH_S,
    ):  # fmt: skip
        plain += abs(terms[term])
    terms[IS_PLAIN] = 1.0 if plain == 0.0 else 0.0


@inner
def weight_reads(row, n_points, terms, plan, work):
    """Seconds to read the weights that RUNNING sequences, and their prompts, touch."""
    dense_s = terms[DENSE_READ_S]
    for i in range(n_points):
        row[READ_S + i] = dense_s
    for i in range(n_points):
        row[PROMPT_READ_S + i] = dense_s
    if terms[IS_MIXTURE]:
        for i in range(n_points):
            n = int(row[RUNNING + i])
            share = weights.expert_share_touched(n, plan[sums.N_EXPERTS], plan[sums.N_ACTIVE])
            row[READ_S + i] = _read_s(plan, work, terms[BANDWIDTH], share)
            tokens = n * int(terms[N_INPUT])
            share = weights.expert_share_touched(tokens, plan[sums.N_EXPERTS], plan[sums.N_ACTIVE])
            row[PROMPT_READ_S + i] = _read_s(plan, work, terms[BANDWIDTH], share)


@inner
def times(row, n_points, terms):
    """Seconds of the mean decode step, of the prompts and of a wave, for RUNNING sequences."""
    n_steps, n_input, active = terms[N_STEPS], terms[N_INPUT], terms[ACTIVE]
    peak, prompt_rate, prompt_peak = terms[PRODUCT_PEAK], terms[PROMPT_PRODUCT_PEAK], terms[PROMPT_PEAK]
    attention_1, prompt_flops = terms[ATTENTION], terms[PROMPT_FLOPS]
    if terms[IS_PLAIN]:
        for i in range(n_points):
            n = row[RUNNING + i]
            compute_s = linear_compute_s(n, active, peak)
            linear_s = max(compute_s, row[READ_S + i])
            attention_s = n * attention_1 / n_steps
            decode_step_s = throughput.decode_step_s(linear_s, attention_s, 0.0, 0.0)
            product_s = linear_compute_s(n * n_input, active, prompt_rate)
            matrix_s = max(product_s, row[PROMPT_READ_S + i])
            prompt_s = prefill.prefill_compute_s(matrix_s, n * prompt_flops, 1.0, prompt_peak)
            row[COMPUTE_S + i], row[LINEAR_S + i], row[ATTENTION_S + i] = compute_s, linear_s, attention_s
            row[QUANTIZE_S + i], row[DEQUANTIZE_S + i], row[DECODE_STEP_S + i] = 0.0, 0.0, decode_step_s
            row[PROMPT_COMPUTE_S + i], row[PROMPT_MATRIX_S + i], row[PROMPT_S + i] = product_s, matrix_s, prompt_s
            row[PROMPT_QUANTIZE_S + i], row[PREFILL_S + i] = 0.0, prompt_s
            row[WAVE_S + i] = throughput.wave_s(n_steps, decode_step_s, prompt_s)
        return
    bandwidth, unpack, pack = terms[BANDWIDTH], terms[UNPACK], terms[PACK]
    scores, choice, copy, per_byte = terms[SCORE_BYTES], terms[CHOICE_BYTES], terms[COPY_S], terms[PER_BYTE]
    burst, read_launch_s, pack_launch_s = terms[BURST_BITS], terms[READ_LAUNCH_S], terms[PACK_LAUNCH_S]
    engine_1, fused_1, copied_1 = terms[PROMPT_ENGINE_S], terms[PROMPT_FUSED_S], terms[PROMPT_COPIED_S]
    launch_s = terms[PROMPT_LAUNCH_S]
    for i in range(n_points):
        n = row[RUNNING + i]
        scale = n / n_steps
        write_s = n * burst / per_byte / bandwidth
        row[QUANTIZE_S + i] = (
            n * pack / n_steps + n * copy / n_steps + write_s + scale * choice / bandwidth + pack_launch_s
        )
        row[DEQUANTIZE_S + i] = n * unpack / n_steps + scale * scores / bandwidth + read_launch_s + 0.0
    for i in range(n_points):
        n = row[RUNNING + i]
        compute_s = linear_compute_s(n, active, peak)
        linear_s = max(compute_s, row[READ_S + i])
        attention_s = n * attention_1 / n_steps
        decode_step_s = throughput.decode_step_s(linear_s, attention_s, row[QUANTIZE_S + i], row[DEQUANTIZE_S + i])
        row[COMPUTE_S + i], row[LINEAR_S + i], row[ATTENTION_S + i] = compute_s, linear_s, attention_s
        row[DECODE_STEP_S + i] = decode_step_s
    for i in range(n_points):
        n = row[RUNNING + i]
        product_s = linear_compute_s(n * n_input, active, prompt_rate)
        matrix_s = max(product_s, row[PROMPT_READ_S + i])
        prompt_s = prefill.prefill_compute_s(matrix_s, n * prompt_flops, 1.0, prompt_peak)
        quantize_s = n * fused_1 + n * copied_1 + dequantize.exposed_s(n * engine_1, prompt_s) + launch_s
        prefill_s = prompt_s + quantize_s
        row[PROMPT_COMPUTE_S + i], row[PROMPT_MATRIX_S + i], row[PROMPT_S + i] = product_s, matrix_s, prompt_s
        row[PROMPT_QUANTIZE_S + i], row[PREFILL_S + i] = quantize_s, prefill_s
        row[WAVE_S + i] = throughput.wave_s(n_steps, row[DECODE_STEP_S + i], prefill_s)


@inner
def waves(row, n_points, most, is_paged):
    """RUNNING sequences of BATCH requests of which `most` fit; the waves, and those that are full."""
    if is_paged:
        for i in range(n_points):
            row[RUNNING + i] = min(row[BATCH + i], most)
        return
    for i in range(n_points):  # quotients of whole numbers below 2^53 never round to the wrong side of one
        batch = row[BATCH + i]
        n_waves = np.ceil(batch / most)
        running = np.ceil(batch / n_waves)
        row[N_WAVES + i], row[RUNNING + i] = n_waves, running
        row[N_FULL + i] = batch - n_waves * (running - 1.0)


@inner
def totals(row, n_points, n_output, is_paged, power, price):
    """Seconds of all requests, throughput, energy and cost."""
    if is_paged:
        for i in range(n_points):
            row[TOTAL_S + i] = throughput.paged_total_s(row[BATCH + i], row[RUNNING + i], row[WAVE_S + i])
    else:
        for i in range(n_points):
            n_full, n_waves = row[N_FULL + i], row[N_WAVES + i]
            row[TOTAL_S + i] = n_full * row[WAVE_S + i] + (n_waves - n_full) * row[SMALLER_WAVE_S + i]
    n_tokens = float(n_output)
    for i in range(n_points):
        rate = throughput.throughput_tokens_per_s(row[BATCH + i], n_tokens, row[TOTAL_S + i])
        row[THROUGHPUT + i] = rate
        row[JOULES + i] = energy.joules_per_token(power, rate)
        row[USD + i] = energy.usd_per_million_tokens(price, rate)


@inner
def keep_sums(row, n_points, terms):
    """The sums over the steps of one sequence, reading and computing, beside the points that they hold for."""
    for i in range(n_points):
        row[READ_1 + i], row[COMPUTE_1 + i] = terms[READ], terms[COMPUTE]


@inner
def bound_of(row, i, n_output):
    """Codes of what the whole, the matrix products and attention of a point wait for."""
    n_steps, n = float(n_output), row[RUNNING + i]
    linear_s, attention_s = row[LINEAR_S + i], row[ATTENTION_S + i]
    by_bandwidth = by_compute = 0.0
    linear = attended = BANDWIDTH_BOUND
    if row[COMPUTE_S + i] > row[READ_S + i]:
        by_compute, linear = by_compute + linear_s, COMPUTE_BOUND
    else:
        by_bandwidth += linear_s
    if n * row[COMPUTE_1 + i] / n_steps > n * row[READ_1 + i] / n_steps:
        by_compute, attended = by_compute + attention_s, COMPUTE_BOUND
    else:
        by_bandwidth += attention_s
    matrix_s, prompt_bandwidth_s, prompt_compute_s = row[PROMPT_MATRIX_S + i], 0.0, 0.0
    if row[PROMPT_COMPUTE_S + i] > row[PROMPT_READ_S + i]:
        prompt_compute_s = matrix_s
    else:
        prompt_bandwidth_s = matrix_s
    prompt_compute_s += row[PROMPT_S + i] - matrix_s
    by_bandwidth += prompt_bandwidth_s / n_steps
    by_compute += prompt_compute_s / n_steps
    by_packing = row[PROMPT_QUANTIZE_S + i] / n_steps + (row[DEQUANTIZE_S + i] + row[QUANTIZE_S + i])
    if n < row[BATCH + i]:
        return CAPACITY_BOUND, linear, attended
    whole, most = BANDWIDTH_BOUND, by_bandwidth
    if by_compute > most:
        whole, most = COMPUTE_BOUND, by_compute
    if by_packing > most:
        whole = DEQUANTIZATION_BOUND
    return whole, linear, attended
