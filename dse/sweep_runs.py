"""Compiled: a run of design points that differ in their batch only, as rows of numbers in the fastest cache.

What the batch does not change is in `terms`; the rows are stretches of one array, `ROW` apart, so that each loop is
compiled into vector instructions. Sums over a generation depend on the number of sequences only while there are few
(`sweep_device.same_from`): they are kept in a table by that number, filled as they are asked for. The operations are
those of `dse.steps` and `dse.point_times`, in the same order.
"""

from typing import Any, NamedTuple

import numpy as np

from dse import sweep_device as on_device
from dse import sweep_sums as sums
from dse.formulas import attention, dequantize, energy, linear, prefill, throughput, weights
from kernels_ref import inner

#: points of a run at most
ROW = 128
#: rows of the table of sums at most: cores that each work on a token of their own, or wait for work
MAX_KEYS = 2**14
# rows: given, then found
(
    BATCH, N_WAVES, N_FULL, RUNNING, READ_S, PROMPT_READ_S, COMPUTE_S, LINEAR_S, ATTENTION_S, QUANTIZE_S,
    DEQUANTIZE_S, DECODE_STEP_S, PROMPT_COMPUTE_S, PROMPT_MATRIX_S, PROMPT_S, PROMPT_QUANTIZE_S, PREFILL_S, WAVE_S,
    TOTAL_S, THROUGHPUT, JOULES, USD, SUM_ATTENTION, SUM_FIXED, SUM_UNPACK, SUM_PACK, PEAK, N_ROWS,
) = (ROW * i for i in range(28))  # fmt: skip
# terms: what all points of a run share
(
    N_STEPS, N_INPUT, ACTIVE, PROMPT_PRODUCT_PEAK, PROMPT_PEAK, PROMPT_FRAC, BANDWIDTH, REACHED, SCORE_BYTES,
    CHOICE_BYTES, COPY_S, BURST_BITS, PER_BYTE, READ_LAUNCH_S, PACK_LAUNCH_S, COPY_LAUNCH_S, PROMPT_FLOPS,
    PROMPT_ENGINE_S, PROMPT_FUSED_S, PROMPT_COPIED_S, PROMPT_LAUNCH_S, DENSE_READ_S, SAME_FROM, IS_PLAIN,
    HAS_GEMM, N_PRODUCTS, GEMM_LAUNCH_S, GEMM_FLOPS_FRAC, GEMM_MEMORY_FRAC, DENSE, EXPERT, N_EXPERTS, N_ACTIVE,
    WEIGHT_BITS, N_TERMS,
) = range(35)  # fmt: skip
#: codes of what a time is bound by
BANDWIDTH_BOUND, COMPUTE_BOUND, LATENCY_BOUND, DEQUANTIZATION_BOUND, CAPACITY_BOUND = range(5)
BOUNDS = ("bandwidth", "compute", "latency", "dequantization", "capacity")


class Scratch(NamedTuple):
    """Arrays to work in; `known` tells for which combination a row of `by_n` holds."""

    row: Any
    other: Any
    terms: Any
    by_n: Any
    known: Any
    found: Any
    found_f: Any
    pieces: Any
    packed: Any
    lengths: Any


@inner
def scratch(n_keys):
    """Arrays for sums that depend on up to `n_keys` - 1 sequences."""
    n_keys = min(n_keys, MAX_KEYS)
    return Scratch(
        np.zeros(N_ROWS), np.zeros(N_ROWS), np.empty(N_TERMS), np.empty((n_keys, sums.N_SUM)),
        np.full(n_keys, -1, np.int64), np.zeros(sums.N_GENERATION, np.int64), np.empty(sums.N_GENERATION_F),
        np.empty((sums.MAX_PIECES, sums.N_PIECE)), np.empty((sums.MAX_TENSORS, 2)), np.empty(sums.MAX_PIECES, np.int64),
    )  # fmt: skip


@inner
def _read_s(terms, touched):
    n_bytes = weights.weight_read_bytes(terms[DENSE], terms[EXPERT], touched, terms[WEIGHT_BITS])
    read_s = attention.time_at_rate(n_bytes, terms[BANDWIDTH])
    return read_s / terms[GEMM_MEMORY_FRAC] if terms[HAS_GEMM] else read_s


@inner
def of_device(design, device, device_f, n_input, n_output, scratch):
    """The terms that no number of sequences changes."""
    terms, found, found_f, plan = scratch.terms, scratch.found, scratch.found_f, design.plan
    bandwidth, reached = device_f[sums.BANDWIDTH], on_device.reached_bandwidth(design, device_f)
    terms[N_STEPS], terms[N_INPUT], terms[ACTIVE] = n_output, n_input, design.plan_f[sums.ACTIVE]
    terms[BANDWIDTH], terms[REACHED], terms[PER_BYTE] = bandwidth, reached, 8 * plan[sums.DEN]
    terms[BURST_BITS], terms[PROMPT_FRAC] = plan[sums.BURST_BITS], design.fit[sums.FLOPS_FRAC]
    terms[PROMPT_PEAK] = on_device.peak_flops(device, device_f, 0, sums.PEAK)
    terms[PROMPT_PRODUCT_PEAK] = on_device.product_peak(device, device_f, design.work, 0)
    terms[SCORE_BYTES], terms[CHOICE_BYTES] = found_f[sums.SCORE_BYTES], found_f[sums.CHOICE_BYTES]
    launch_s = device_f[sums.LAUNCH_S]
    terms[COPY_S] = attention.time_at_rate(found_f[sums.COPY_BITS] / 8, reached) if launch_s else 0.0
    terms[READ_LAUNCH_S] = dequantize.launch_s(found[sums.READ_STARTS] / n_output, launch_s)
    terms[PACK_LAUNCH_S] = dequantize.launch_s(found[sums.PACK_STARTS] / n_output, launch_s)
    terms[COPY_LAUNCH_S] = dequantize.launch_s(found[sums.COPY_STARTS] / n_output, design.fit[sums.COPY_LAUNCH_S])
    terms[PROMPT_LAUNCH_S] = dequantize.launch_s(found[sums.PROMPT_STARTS], launch_s)
    terms[PROMPT_FLOPS] = found_f[sums.PROMPT_FLOPS]
    prompt = on_device.packing_s(design.tensors, device_f, reached, scratch.packed, 1)
    terms[PROMPT_ENGINE_S], terms[PROMPT_FUSED_S], terms[PROMPT_COPIED_S] = prompt
    terms[GEMM_MEMORY_FRAC], terms[WEIGHT_BITS] = design.fit[sums.GEMM_MEMORY_FRAC], design.work[sums.WEIGHT_BITS]
    terms[DENSE], terms[EXPERT] = plan[sums.DENSE], plan[sums.EXPERT]
    terms[N_EXPERTS], terms[N_ACTIVE] = plan[sums.N_EXPERTS], plan[sums.N_ACTIVE]
    terms[HAS_GEMM], terms[N_PRODUCTS] = design.fit[sums.HAS_GEMM], design.fit[sums.N_PRODUCTS]
    terms[GEMM_LAUNCH_S], terms[GEMM_FLOPS_FRAC] = design.fit[sums.GEMM_LAUNCH_S], design.fit[sums.GEMM_FLOPS_FRAC]
    terms[DENSE_READ_S] = _read_s(terms, 1.0)
    same_from = on_device.same_from(design, device, n_input)
    terms[SAME_FROM] = same_from
    scratch.known[:] = -1
    works = any_packing = 0.0
    for t in range(len(design.tensors)):
        any_packing += design.tensors[t, sums.UNPACKED]
    for term in (SCORE_BYTES, CHOICE_BYTES, COPY_S, BURST_BITS, READ_LAUNCH_S, PACK_LAUNCH_S, COPY_LAUNCH_S):
        works += abs(terms[term])
    is_fitted = design.fit[sums.HAS_ATTENTION] + design.fit[sums.HAS_GEMM]
    terms[IS_PLAIN] = 1.0 if same_from == 1 and is_fitted + any_packing + works == 0.0 else 0.0


@inner
def _weight_reads(row, n_points, terms):
    """Seconds to read the weights that RUNNING sequences, and their prompts, touch."""
    dense_s = terms[DENSE_READ_S]
    for i in range(n_points):
        row[READ_S + i] = dense_s
    for i in range(n_points):
        row[PROMPT_READ_S + i] = dense_s
    if terms[EXPERT]:
        for i in range(n_points):
            n = int(row[RUNNING + i])
            share = weights.expert_share_touched(n, terms[N_EXPERTS], terms[N_ACTIVE])
            row[READ_S + i] = _read_s(terms, share)
            share = weights.expert_share_touched(n * int(terms[N_INPUT]), terms[N_EXPERTS], terms[N_ACTIVE])
            row[PROMPT_READ_S + i] = _read_s(terms, share)


@inner
def fill_sums(row, n_points, is_paged, design, device, device_f, n_input, n_output, scratch):
    """Put what RUNNING sequences need into the table of sums, and what one less needs where waves differ.

    Apart from `run`, which it would slow down: passing on so many arrays takes longer than a run does.
    """
    same_from = int(scratch.terms[SAME_FROM])
    for i in range(n_points if same_from > 1 else 1):
        running = int(row[RUNNING + i])
        less = 1 if not is_paged and row[N_FULL + i] < row[N_WAVES + i] else 0
        for n in range(running - less, running + 1):
            key = min(n, same_from)
            if scratch.known[key] < 0:
                scratch.known[key] = 1
                on_device.of_sequences(
                    design, key, device, device_f, n_input, n_output, scratch.found, scratch.pieces, scratch.packed,
                    scratch.by_n[key],
                )  # fmt: skip


@inner
def _are_alike(row, n_points, same_from):
    if same_from == 1:
        return True
    n_few = 0
    for i in range(n_points):
        n_few += 1 if row[RUNNING + i] < same_from else 0
    return n_few == 0


@inner
def _kv_sums(row, n_points, same_from, by_n):
    """The sums over a generation of one of RUNNING sequences, from the table."""
    alike = _are_alike(row, n_points, same_from)
    for i in range(1 if alike else n_points):
        key = same_from if alike else min(int(row[RUNNING + i]), same_from)
        row[SUM_ATTENTION + i], row[SUM_FIXED + i] = by_n[key, sums.ATTENTION], by_n[key, sums.FIXED]
        row[SUM_UNPACK + i], row[SUM_PACK + i] = by_n[key, sums.UNPACK], by_n[key, sums.PACK]
        row[PEAK + i] = by_n[key, sums.PRODUCT_PEAK]
    if alike:
        for at in (SUM_ATTENTION, SUM_FIXED, SUM_UNPACK, SUM_PACK, PEAK):
            first = row[at]
            for i in range(1, n_points):
                row[at + i] = first


@inner
def _plain_times(row, n_points, terms, attention_1, peak):
    """`_times` of the ideal model where nothing is packed and the sums are the same for all."""
    n_steps, n_input, active = terms[N_STEPS], terms[N_INPUT], terms[ACTIVE]
    prompt_rate, prompt_peak, prompt_flops = terms[PROMPT_PRODUCT_PEAK], terms[PROMPT_PEAK], terms[PROMPT_FLOPS]
    for i in range(n_points):
        n = row[RUNNING + i]
        compute_s = linear.linear_compute_s(n, active, peak)
        linear_s = max(compute_s, row[READ_S + i])
        attention_s = n * attention_1 / n_steps
        decode_step_s = throughput.decode_step_s(linear_s, attention_s, 0.0, 0.0)
        product_s = linear.linear_compute_s(n * n_input, active, prompt_rate)
        matrix_s = max(product_s, row[PROMPT_READ_S + i])
        prompt_s = prefill.prefill_compute_s(matrix_s, n * prompt_flops, 1.0, prompt_peak)
        row[COMPUTE_S + i], row[LINEAR_S + i], row[ATTENTION_S + i] = compute_s, linear_s, attention_s
        row[QUANTIZE_S + i], row[DEQUANTIZE_S + i], row[DECODE_STEP_S + i] = 0.0, 0.0, decode_step_s
        row[PROMPT_COMPUTE_S + i], row[PROMPT_MATRIX_S + i], row[PROMPT_S + i] = product_s, matrix_s, prompt_s
        row[PROMPT_QUANTIZE_S + i], row[PREFILL_S + i] = 0.0, prompt_s
        row[WAVE_S + i] = throughput.wave_s(n_steps, decode_step_s, prompt_s)


@inner
def _products(row, n_points, terms):
    """Seconds of the products with the weights, in a step and over the prompts."""
    n_input, active, prompt_rate = terms[N_INPUT], terms[ACTIVE], terms[PROMPT_PRODUCT_PEAK]
    if terms[HAS_GEMM]:
        frac, n_products, launch_s = terms[GEMM_FLOPS_FRAC], terms[N_PRODUCTS], terms[GEMM_LAUNCH_S]
        for i in range(n_points):
            compute_s = linear.linear_compute_s(row[RUNNING + i], active, row[PEAK + i]) / frac
            row[COMPUTE_S + i] = compute_s
            row[LINEAR_S + i] = linear.linear_calibrated_s(n_products, launch_s, compute_s, row[READ_S + i])
        for i in range(n_points):
            compute_s = linear.linear_compute_s(row[RUNNING + i] * n_input, active, prompt_rate) / frac
            row[PROMPT_COMPUTE_S + i] = compute_s
            row[PROMPT_MATRIX_S + i] = linear.linear_calibrated_s(
                n_products, launch_s, compute_s, row[PROMPT_READ_S + i]
            )  # fmt: skip
        return
    for i in range(n_points):
        compute_s = linear.linear_compute_s(row[RUNNING + i], active, row[PEAK + i])
        row[COMPUTE_S + i], row[LINEAR_S + i] = compute_s, max(compute_s, row[READ_S + i])
    for i in range(n_points):
        compute_s = linear.linear_compute_s(row[RUNNING + i] * n_input, active, prompt_rate)
        row[PROMPT_COMPUTE_S + i], row[PROMPT_MATRIX_S + i] = compute_s, max(compute_s, row[PROMPT_READ_S + i])


@inner
def _times(row, n_points, terms):
    """Seconds of the mean decode step, of the prompts and of a wave, from those of products and sums."""
    n_steps, prompt_peak, frac = terms[N_STEPS], terms[PROMPT_PEAK], terms[PROMPT_FRAC]
    bandwidth, reached, prompt_flops = terms[BANDWIDTH], terms[REACHED], terms[PROMPT_FLOPS]
    scores, choice, copy, per_byte = terms[SCORE_BYTES], terms[CHOICE_BYTES], terms[COPY_S], terms[PER_BYTE]
    burst, read_launch_s, pack_launch_s = terms[BURST_BITS], terms[READ_LAUNCH_S], terms[PACK_LAUNCH_S]
    engine_1, fused_1, copied_1 = terms[PROMPT_ENGINE_S], terms[PROMPT_FUSED_S], terms[PROMPT_COPIED_S]
    launch_s, copies_s = terms[PROMPT_LAUNCH_S], terms[COPY_LAUNCH_S]
    for i in range(n_points):
        n = row[RUNNING + i]
        scale = n / n_steps
        write_s = n * burst / per_byte / bandwidth
        row[QUANTIZE_S + i] = (
            n * row[SUM_PACK + i] / n_steps + n * copy / n_steps + write_s + scale * choice / reached + pack_launch_s
        )
        row[DEQUANTIZE_S + i] = n * row[SUM_UNPACK + i] / n_steps + scale * scores / reached + read_launch_s + copies_s
    for i in range(n_points):
        attention_s = (row[SUM_FIXED + i] + row[RUNNING + i] * row[SUM_ATTENTION + i]) / n_steps
        row[ATTENTION_S + i] = attention_s
        row[DECODE_STEP_S + i] = throughput.decode_step_s(
            row[LINEAR_S + i], attention_s, row[QUANTIZE_S + i], row[DEQUANTIZE_S + i]
        )  # fmt: skip
    for i in range(n_points):
        n = row[RUNNING + i]
        prompt_s = prefill.prefill_compute_s(row[PROMPT_MATRIX_S + i], n * prompt_flops, frac, prompt_peak)
        quantize_s = n * fused_1 + n * copied_1 + dequantize.exposed_s(n * engine_1, prompt_s) + launch_s
        prefill_s = prompt_s + quantize_s
        row[PROMPT_S + i], row[PROMPT_QUANTIZE_S + i], row[PREFILL_S + i] = prompt_s, quantize_s, prefill_s
        row[WAVE_S + i] = throughput.wave_s(n_steps, row[DECODE_STEP_S + i], prefill_s)


@inner
def waves_of(row, n_points, terms, by_n):
    """All times of a wave of RUNNING sequences."""
    _weight_reads(row, n_points, terms)
    if terms[IS_PLAIN]:
        _plain_times(row, n_points, terms, by_n[1, sums.ATTENTION], by_n[1, sums.PRODUCT_PEAK])
    else:
        _kv_sums(row, n_points, int(terms[SAME_FROM]), by_n)
        _products(row, n_points, terms)
        _times(row, n_points, terms)


@inner
def waves(row, n_points, most, is_paged):
    """RUNNING sequences of BATCH requests of which `most` fit; the waves, and those that are full. The number of
    points in whose last waves one request less runs."""
    if is_paged:
        for i in range(n_points):
            row[RUNNING + i] = min(row[BATCH + i], most)
        return 0
    for i in range(n_points):  # quotients of whole numbers below 2^53 never round to the wrong side of one
        batch = row[BATCH + i]
        n_waves = np.ceil(batch / most)
        running = np.ceil(batch / n_waves)
        row[N_WAVES + i], row[RUNNING + i] = n_waves, running
        row[N_FULL + i] = batch - n_waves * (running - 1.0)
    n_smaller = 0
    for i in range(n_points):
        n_smaller += 1 if row[N_FULL + i] < row[N_WAVES + i] else 0
    return n_smaller


@inner
def _totals(row, smaller, n_points, n_output, is_paged, power, price):
    """Seconds of all requests, throughput, energy and cost; `smaller` has the waves of one sequence less."""
    if is_paged:
        for i in range(n_points):
            row[TOTAL_S + i] = throughput.paged_total_s(row[BATCH + i], row[RUNNING + i], row[WAVE_S + i])
    else:
        for i in range(n_points):
            n_full, n_waves = row[N_FULL + i], row[N_WAVES + i]
            row[TOTAL_S + i] = n_full * row[WAVE_S + i] + (n_waves - n_full) * smaller[WAVE_S + i]
    n_tokens = float(n_output)
    for i in range(n_points):
        rate = throughput.throughput_tokens_per_s(row[BATCH + i], n_tokens, row[TOTAL_S + i])
        row[THROUGHPUT + i] = rate
        row[JOULES + i] = energy.joules_per_token(power, rate)
        row[USD + i] = energy.usd_per_million_tokens(price, rate)


@inner
def run(row, other, n_points, n_smaller, is_paged, power, price, n_output, terms, by_n):
    """Fill the rows of `n_points` BATCHes, of whom `waves` and `fill_sums` know the rest; in `other` waves of one
    sequence less, where there are `n_smaller` such."""
    waves_of(row, n_points, terms, by_n)
    if n_smaller:
        for i in range(n_points):
            other[RUNNING + i] = row[RUNNING + i] - (1.0 if row[N_FULL + i] < row[N_WAVES + i] else 0.0)
        waves_of(other, n_points, terms, by_n)
        _totals(row, other, n_points, n_output, is_paged, power, price)
    else:
        _totals(row, row, n_points, n_output, is_paged, power, price)


@inner
def _largest(read_s, compute_s, latency_s):
    bound, most = BANDWIDTH_BOUND, read_s
    if compute_s > most:
        bound, most = COMPUTE_BOUND, compute_s
    return LATENCY_BOUND if latency_s > most else bound


@inner
def bound_of(row, i, n_output, fit, scratch):
    """Codes of what the whole, the matrix products and attention of a point wait for."""
    n_steps, n = float(n_output), row[RUNNING + i]
    one = scratch.by_n[int(min(n, scratch.terms[SAME_FROM]))]
    launch_s = fit[sums.N_PRODUCTS] * fit[sums.GEMM_LAUNCH_S]
    read_s, compute_s = n * one[sums.READ] / n_steps, n * one[sums.COMPUTE] / n_steps
    latency_s = (one[sums.FIXED] + n * one[sums.UNIT]) / n_steps
    linear = _largest(row[READ_S + i], row[COMPUTE_S + i], launch_s)
    attended = _largest(read_s, compute_s, latency_s)
    if n < row[BATCH + i]:
        return CAPACITY_BOUND, linear, attended
    by_bandwidth = by_compute = 0.0
    if row[COMPUTE_S + i] > row[READ_S + i]:
        by_compute += row[LINEAR_S + i] - launch_s
    else:
        by_bandwidth += row[LINEAR_S + i] - launch_s
    if compute_s > read_s:
        by_compute += row[ATTENTION_S + i] - latency_s
    else:
        by_bandwidth += row[ATTENTION_S + i] - latency_s
    matrix_s, prompt_bandwidth_s, prompt_compute_s = row[PROMPT_MATRIX_S + i], 0.0, 0.0
    if row[PROMPT_COMPUTE_S + i] > row[PROMPT_READ_S + i]:
        prompt_compute_s = matrix_s - launch_s
    else:
        prompt_bandwidth_s = matrix_s - launch_s
    prompt_compute_s += row[PROMPT_S + i] - matrix_s
    by_bandwidth += prompt_bandwidth_s / n_steps
    by_compute += prompt_compute_s / n_steps
    by_packing = row[PROMPT_QUANTIZE_S + i] / n_steps + (row[DEQUANTIZE_S + i] + row[QUANTIZE_S + i])
    whole = _largest(by_bandwidth, by_compute, launch_s + latency_s + launch_s / n_steps)
    most = max(by_bandwidth, by_compute, launch_s + latency_s + launch_s / n_steps)
    return DEQUANTIZATION_BOUND if by_packing > most else whole, linear, attended
