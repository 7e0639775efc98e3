"""Compiled: many design points of the ideal model, given as numbers by `dse.sweep_cases`, into columns.

Points that follow each other share what they have in common: sums over a generation while plan and lengths stay, what
a device makes of them while it stays, and in runs of up to `sweep_runs.ROW` points all but the batch.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dse import sweep_device as on_device
from dse import sweep_runs as runs
from dse import sweep_sums as sums
from dse.formulas import capacity, effective_bits, throughput
from kernels_ref import inner, sequential

# columns by kind; a result that has none is MISSING, nan, or -1
WHOLE = (
    "kv_bytes", "peak_kv_bytes_per_sequence", "weight_bytes", "activation_bytes", "workspace_bytes", "free_bytes",
    "min_capacity_bytes", "max_batch", "running_batch", "n_waves", "busy_cores",
)  # fmt: skip
FLOAT = (
    "stored_bits", "linear_s", "attention_s", "quantize_s", "dequantize_s", "decode_step_s", "prefill_s", "total_s",
    "ttft_s", "tpot_s", "throughput_tokens_per_s", "joules_per_token", "usd_per_million_tokens",
)  # fmt: skip
CODE = ("bound", "linear_bound", "attention_bound")
#: float columns that are rows of a run, in the order of FLOAT from "linear_s" on; None: computed apart
_ROWS = (
    runs.LINEAR_S, runs.ATTENTION_S, runs.QUANTIZE_S, runs.DEQUANTIZE_S, runs.DECODE_STEP_S, runs.PREFILL_S,
    runs.TOTAL_S, -1, runs.DECODE_STEP_S, runs.THROUGHPUT, runs.JOULES, runs.USD,
)  # fmt: skip
_TTFT = FLOAT.index("ttft_s")
MISSING = np.iinfo(np.int64).min
#: states of a point: those of `dse.sweep_points.CODES`, and left to the evaluation row by row
FEASIBLE, WEIGHTS_TOO_LARGE, REQUEST_TOO_LARGE, LEFT = 0, 1, 2, -1


@inner
def _min_capacity_bytes(found, plan, work, device, device_f, batch, n_output):
    needed = found[sums.OWN]
    if work[sums.PAGED] == 0:
        needed = batch * found[sums.OWN]
    elif batch > 1:
        needed = max(needed, -(-batch * found[sums.OWN_SUM] // n_output))
    needed = -(-needed // (8 * plan[sums.DEN]))
    if device[sums.FRAC_IS_ONE]:
        return needed + found[sums.WEIGHT_BYTES] + device[sums.OVERHEAD]
    return capacity.min_capacity_bytes(
        needed, device_f[sums.USABLE_FRAC], found[sums.WEIGHT_BYTES], device[sums.OVERHEAD]
    )


@inner
def _bytes(batch, out, per_request, unit):
    """Whole bytes of a batch; of one where `per_request` counts bytes already."""
    if unit == 1:
        for i in range(len(out)):
            out[i] = batch[i] * per_request
    else:
        for i in range(len(out)):
            out[i] = -(-batch[i] * per_request // unit)


@inner
def _smaller_waves(row, other, n_points, terms, plan, work):
    """Seconds of the waves of one request less, where there are such."""
    n_smaller = 0
    for i in range(n_points):
        n_smaller += 1 if row[runs.N_FULL + i] < row[runs.N_WAVES + i] else 0
    if n_smaller == 0:
        for i in range(n_points):
            row[runs.SMALLER_WAVE_S + i] = row[runs.WAVE_S + i]
        return
    for i in range(n_points):
        less = 1.0 if row[runs.N_FULL + i] < row[runs.N_WAVES + i] else 0.0
        other[runs.RUNNING + i] = row[runs.RUNNING + i] - less
    runs.weight_reads(other, n_points, terms, plan, work)
    runs.times(other, n_points, terms)
    for i in range(n_points):
        row[runs.SMALLER_WAVE_S + i] = other[runs.WAVE_S + i]


@inner
def run_together(row, other, n_points, most, terms, plan, work, device_f, n_output):
    """Fill the rows of `n_points` BATCHes of which `most` sequences fit, on a device without token-level scheduling."""
    is_paged = work[sums.PAGED] == 1
    runs.waves(row, n_points, float(most), is_paged)
    runs.weight_reads(row, n_points, terms, plan, work)
    runs.times(row, n_points, terms)
    if not is_paged:
        _smaller_waves(row, other, n_points, terms, plan, work)
    runs.totals(row, n_points, n_output, is_paged, device_f[sums.POWER], device_f[sums.PRICE])


@inner
def run_by_cores(
    row, other, n_points, most, terms, total, plan, work, device, device_f, tensors, n_output, found, packed, pieces,
    busy,
):  # fmt: skip
    """`run_together` where every core has a token of its own. `terms` hold for `busy` cores, and are changed; returns
    for how many they hold then."""
    is_paged = work[sums.PAGED] == 1
    runs.waves(row, n_points, float(most), is_paged)
    cores = device[sums.TOKEN_CORES]
    for i in range(n_points):
        running, smaller = row[runs.RUNNING + i], 0
        if not is_paged and row[runs.N_FULL + i] < row[runs.N_WAVES + i]:
            smaller = 1
        for less in range(smaller, -1, -1):
            n = int(running) - less
            if min(n, cores) != busy:
                busy = min(n, cores)
                runs.of_sequences(
                    busy, work, device, device_f, tensors, plan, n_output, found, packed, pieces, total, terms
                )
            other[runs.RUNNING] = n
            runs.weight_reads(other, 1, terms, plan, work)
            runs.times(other, 1, terms)
            if less == smaller:
                row[runs.SMALLER_WAVE_S + i] = other[runs.WAVE_S]
        runs.keep_sums(other, 1, terms)
        for at in range(runs.READ_S, runs.SMALLER_WAVE_S, runs.ROW):
            row[at + i] = other[at]
        row[runs.READ_1 + i], row[runs.COMPUTE_1 + i] = other[runs.READ_1], other[runs.COMPUTE_1]
    runs.totals(row, n_points, n_output, is_paged, device_f[sums.POWER], device_f[sums.PRICE])
    return busy


@inner
def _one_prompt_s(other, terms, plan, work):
    other[runs.RUNNING] = 1.0
    runs.weight_reads(other, 1, terms, plan, work)
    runs.times(other, 1, terms)
    return other[runs.PREFILL_S]


@inner
def evaluate_points(
    case, device_of, n_input, n_output, batch, tensors, layers, plans, plans_f, works, devices,
    devices_f, whole_at, float_at, code_at, whole_out, float_out, code_out, state,
):  # fmt: skip
    """Columns of the points whose `state` is FEASIBLE on entry; the state of each is told.

    `case` gives rows of `plans` and `works`, `device_of` of `devices`; `*_at` are rows of `*_out` by column, or -1.
    """
    n = len(case)
    row, other = np.empty(runs.N_ROWS), np.empty(runs.N_ROWS)
    terms, total = np.empty(runs.N_TERMS), np.empty(sums.N_SUM)
    found, found_f = np.zeros(sums.N_GENERATION, np.int64), np.empty(sums.N_GENERATION_F)
    pieces = np.empty((sums.MAX_PIECES, sums.N_PIECE))
    packed, lengths = np.empty((sums.MAX_TENSORS, 2)), np.empty(sums.MAX_PIECES, np.int64)
    begin, last_found, is_exact = 0, -1, False
    while begin < n:
        end = begin + 1
        most_batch = batch[begin]
        one_case, one_device, one_input, steps = case[begin], device_of[begin], n_input[begin], n_output[begin]
        while (
            end < n and end - begin < runs.ROW and case[end] == one_case and device_of[end] == one_device
            and n_input[end] == one_input and n_output[end] == steps
        ):  # fmt: skip
            most_batch = max(most_batch, batch[end])
            end += 1
        first, m = begin, end - begin
        begin = end
        if state[first] != FEASIBLE:
            continue
        plan, work = plans[case[first]], works[case[first]]
        plan_f = plans_f[case[first]]
        device, device_f = devices[device_of[first]], devices_f[device_of[first]]
        mine = tensors[plan[sums.FIRST_TENSOR] : plan[sums.LAST_TENSOR]]
        if last_found < 0 or not (
            case[first] == case[last_found] and n_input[first] == n_input[last_found] and steps == n_output[last_found]
        ):
            last_found = first
            is_exact = sums.of_generation(
                mine, layers[plan[sums.FIRST_LAYER] : plan[sums.LAST_LAYER]], plan, plan_f, work, n_input[first],
                steps, found, found_f, pieces, packed, lengths,
            )  # fmt: skip
        free_bytes, most = 0, -1
        if is_exact:
            free_bytes, most = on_device.most_sequences(found, plan, work, device, steps)
            largest = max(float(found[sums.OWN]), float(found[sums.SEQUENCE]))
            if float(most_batch) * max(largest, float(found[sums.OWN_SUM])) >= sums.WIDE:
                most = -1
        if most < 0:
            state[first:end] = LEFT
            continue
        of_batch = batch[first:end]
        for column in range(8):
            if whole_at[column] >= 0:
                out = whole_out[whole_at[column], first:end]
                if column == 0:
                    _bytes(of_batch, out, found[sums.SEQUENCE], 8 * plan[sums.DEN])
                elif column == 1:
                    out[:] = -(-found[sums.LARGEST] // (8 * plan[sums.DEN]))
                elif column == 2:
                    out[:] = found[sums.WEIGHT_BYTES]
                elif column == 3:
                    _bytes(of_batch, out, found[sums.ACTIVATION_BYTES], 1)
                elif column == 4:
                    _bytes(of_batch, out, found[sums.WORKSPACE_BYTES], 1)
                elif column == 5:
                    out[:] = free_bytes
                elif column == 6:
                    for i in range(m):
                        out[i] = _min_capacity_bytes(found, plan, work, device, device_f, of_batch[i], steps)
                else:
                    out[:] = most
        if float_at[0] >= 0:
            float_out[float_at[0], first:end] = effective_bits.stored_bits(
                found[sums.SEQUENCE] / (8 * plan[sums.DEN]), found[sums.ELEMENTS]
            )
        if most == 0:
            state[first:end] = WEIGHTS_TOO_LARGE if free_bytes < 0 else REQUEST_TOO_LARGE
            for column in range(8, len(whole_at)):
                if whole_at[column] >= 0:
                    whole_out[whole_at[column], first:end] = 0 if column == 8 else MISSING
            for column in range(1, len(float_at)):
                if float_at[column] >= 0:
                    float_out[float_at[column], first:end] = np.nan
            for column in range(len(code_at)):
                if code_at[column] >= 0:
                    code_out[code_at[column], first:end] = runs.CAPACITY_BOUND if column == 0 else -1
            continue
        runs.of_device(plan, plan_f, work, device, device_f, mine, n_input[first], steps, found, found_f, packed, terms)
        busy = 0 if device[sums.TOKEN_CORES] == 0 else device[sums.TOKEN_CORES]
        runs.of_sequences(busy, work, device, device_f, mine, plan, steps, found, packed, pieces, total, terms)
        one_prompt_s = _one_prompt_s(other, terms, plan, work) if float_at[_TTFT] >= 0 else 0.0
        for i in range(m):
            row[runs.BATCH + i] = batch[first + i]
        if device[sums.TOKEN_CORES] == 0:
            run_together(row, other, m, most, terms, plan, work, device_f, steps)
        else:
            run_by_cores(
                row,
                other,
                m,
                most,
                terms,
                total,
                plan,
                work,
                device,
                device_f,
                mine,
                steps,
                found,
                packed,
                pieces,
                busy,
            )
        for column in range(8, len(whole_at)):
            if whole_at[column] >= 0:
                out = whole_out[whole_at[column], first:end]
                for i in range(m):
                    running = int(row[runs.RUNNING + i])
                    if column == 8:
                        out[i] = running
                    elif column == 9:
                        out[i] = MISSING if work[sums.PAGED] else int(row[runs.N_WAVES + i])
                    else:
                        cores = device[sums.TOKEN_CORES]
                        out[i] = min(running, cores) if cores else MISSING
        for column in range(1, len(float_at)):
            if float_at[column] >= 0:
                out_f = float_out[float_at[column], first:end]
                if column == _TTFT:
                    for i in range(m):
                        out_f[i] = throughput.ttft_s(one_prompt_s, row[runs.DECODE_STEP_S + i])
                else:
                    source = _ROWS[column - 1]
                    for i in range(m):
                        out_f[i] = row[source + i]
        if code_at[0] >= 0 or code_at[1] >= 0 or code_at[2] >= 0:
            if device[sums.TOKEN_CORES] == 0:
                runs.keep_sums(row, m, terms)
            for i in range(m):
                codes = runs.bound_of(row, i, steps)
                for column in range(3):
                    if code_at[column] >= 0:
                        code_out[code_at[column], first + i] = codes[column]


def stamp() -> int:
    """What compiled code depends on: kept code of other formulas must not be used."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in (*sorted((folder / "formulas").glob("*.py")), *sorted(folder.glob("sweep_*.py"))):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:4], "big")


@cache
def compiled() -> Callable[..., Any]:
    """`evaluate_points`, compiled; kept on disk for the formulas as they are now."""
    version = stamp()

    def entry(*args):  # type: ignore[no-untyped-def]
        if version >= 0:
            evaluate_points(*args)

    return sequential(entry)
