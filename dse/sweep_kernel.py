"""Compiled: many design points, given as numbers by `dse.sweep_cases`, into columns.

Points that follow each other share what they have in common: sums over a generation while plan and lengths stay, what
a device makes of them while it stays, and in runs of up to `sweep_runs.ROW` points all but the batch.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from dse import sweep_device as on_device
from dse import sweep_extra as extra
from dse import sweep_generation as generation
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
#: columns that few sweeps keep: whole, then others
EXTRA = ("max_context_tokens", *extra.COLUMNS)
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


def evaluate_points(
    case, device_of, n_input, n_output, batch, tables, devices, devices_f, n_keys, whole_at, float_at, code_at,
    whole_out, float_out, code_out, context_out, extra_out, state, version,
):  # fmt: skip
    """Columns of the points whose `state` is FEASIBLE on entry; the state of each is told.

    `case` gives rows of `tables`, `device_of` of `devices`; `*_at` are rows of `*_out` by column, or -1. `context_out`
    is for the longest contexts, `extra_out` for `sweep_extra.COLUMNS`; either may be empty. `version`: see `versioned`.
    """
    n, room = len(case), runs.scratch(n_keys)
    row, other, found, terms, by_n, known = room.row, room.other, room.found, room.terms, room.by_n, room.known
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
        design = sums.design(tables, one_case)
        device, device_f, plan, work = devices[one_device], devices_f[one_device], design.plan, design.work
        if last_found < 0 or not (
            one_case == case[last_found] and one_input == n_input[last_found] and steps == n_output[last_found]
        ):
            last_found = first
            is_exact = generation.of_generation(
                design, one_input, steps, found, room.found_f, room.pieces, room.packed, room.lengths
            )  # fmt: skip
        free_bytes, most = 0, -1
        if is_exact and on_device.same_from(design, device, one_input) < len(known):
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
        if len(context_out):
            free = free_bytes * 8 * plan[sums.DEN]
            for i in range(m):
                if i and of_batch[i] == of_batch[i - 1]:
                    context_out[first + i] = context_out[first + i - 1]
                    continue
                longest = extra.longest_context(
                    design, one_input, steps, free, of_batch[i], found[sums.OWN], room.lengths
                )  # fmt: skip
                context_out[first + i] = MISSING if longest == extra.NO_LIMIT else longest
                if longest == extra.UNKNOWN:
                    most = -1
            if most < 0:
                state[first:end] = LEFT
                continue
        if len(extra_out):
            of_all = extra_out[:, first:end]
            extra.of_run(design, one_input + steps, row)
            for column in range(len(of_all)):
                of_all[column] = row[column] if column < len(extra.OF_RUN) else np.nan
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
        runs.of_device(design, device, device_f, one_input, steps, room)
        for i in range(m):
            row[runs.BATCH + i] = batch[first + i]
        one_prompt_s = 0.0
        if float_at[_TTFT] >= 0:
            other[runs.RUNNING], alone = 1.0, min(m, 1)  # a literal 1 would be compiled apart
            runs.fill_sums(other, alone, alone > 0, design, device, device_f, one_input, steps, room)
            runs.waves_of(other, alone, terms, by_n)
            one_prompt_s = other[runs.PREFILL_S]
        is_paged = work[sums.PAGED] == 1
        n_smaller = runs.waves(row, m, float(most), is_paged)
        runs.fill_sums(row, m, is_paged, design, device, device_f, one_input, steps, room)
        power, price = device_f[sums.POWER], device_f[sums.PRICE]
        runs.run(row, other, m, n_smaller, is_paged, power, price, steps, terms, by_n)
        if len(extra_out):
            smaller = other if n_smaller else row
            extra.of_points(
                row, smaller, m, design, device, device_f, one_input, steps, room, extra_out[:, first:end]
            )  # fmt: skip
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
            for i in range(m):
                codes = runs.bound_of(row, i, steps, design.fit, room)
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


def versioned(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with `stamp` as the default of its last argument: kept code is looked up by the types of arguments,
    and a default is one. An entry that calls `function` would have it compiled and optimised twice."""
    return FunctionType(function.__code__, function.__globals__, function.__name__, (stamp(),))


@cache
def compiled() -> Callable[..., Any]:
    """`evaluate_points`, compiled; kept on disk for the formulas as they are now."""
    return sequential(versioned(evaluate_points))
