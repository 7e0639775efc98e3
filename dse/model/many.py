"""Many design points, compiled: the functions of the model inside one loop, into columns.

Points that follow each other share what they have in common: the amounts of a generation while case and lengths stay,
what a device makes of them while it stays, and in runs of up to `ROW` points all but the batch. The rows of a run are
stretches of one array, so that each loop over it is compiled into vector instructions.
"""

import threading
from collections.abc import Callable, Sequence
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from dse.core.compiling import compilable, inlined, registered, source_stamp
from dse.model import capacity
from dse.model.attention import Sums, sums_of
from dse.model.batch import CAPACITY, Spent, Totals, bounds_of, spent_of, totals_of
from dse.model.formulas import effective_bits, throughput
from dse.model.generation import MAX_PIECES, generation_of, is_exact
from dse.model.kv_bytes import context_of
from dse.model.peak_memory import NO_CONTEXT_LIMIT, WIDE, longest_context
from dse.model.records import (
    Design,
    Device,
    Kernel,
    LanguageModel,
    Layer,
    Load,
    Policy,
    Product,
    Stack,
    Tensor,
    dtype_of,
)  # fmt: skip
from dse.model.step import (
    Wave,
    cached_run,
    one_prompt_s,
    product_peak,
    share_touched,
    terms_of,
    uncached_run,
    wave_of,
    weight_read_s,
)  # fmt: skip
from kernels_ref import sequential

#: points of a run at most
ROW = 128
#: where the rows of a run begin in its array
AT = Wave(*(ROW * place for place in range(len(Wave._fields))))
N_WAVE = ROW * len(Wave._fields)
#: and those of its totals
TOTAL = Totals(*(ROW * place for place in range(len(Totals._fields))))
N_TOTAL = ROW * len(Totals._fields)


class Given(NamedTuple):
    """Rows of a run beside its waves."""

    batch: int
    running: int
    n_waves: int
    n_full: int
    n_smaller: int
    read_s: int
    prompt_read_s: int
    touched: int


GIVEN = Given(*(N_WAVE + ROW * place for place in range(len(Given._fields))))
N_ROW = N_WAVE + ROW * len(Given._fields)
#: numbers of sequences at most for which sums are kept apart
MAX_KEYS = 2**14

#: columns by kind; a whole number that is missing is MISSING, another nan, a code -1
WHOLE = (
    "kv_bytes", "peak_kv_bytes_per_sequence", "weight_bytes", "activation_bytes", "workspace_bytes", "free_bytes",
    "min_capacity_bytes", "max_batch", "max_context_tokens", "running_batch", "n_waves", "busy_cores",
)  # fmt: skip
#: one value for a whole run, then by point
OF_RUN = ("stored_tokens", "read_tokens", "stored_bits", "page_tail_bits", "kv_bytes_per_token")
OF_WAVE = ("linear_s", "attention_s", "quantize_s", "dequantize_s", "decode_step_s", "prefill_s")
OF_TOTAL = ("total_s", "throughput_tokens_per_s", "joules_per_token", "usd_per_million_tokens")
OF_RUNS = ("quantize_busy_s", "dequantize_busy_s", *get_type_hints(Spent))
FLOAT = (*OF_RUN, *OF_WAVE, *OF_TOTAL, "tpot_s", "ttft_s", *OF_RUNS)
CODE = ("bound", "linear_bound", "attention_bound")
COLUMNS = (*WHOLE, *FLOAT, *CODE)
#: rows of the output arrays by column, -1 for one that is not wanted; `any_of_runs` tells that some of `OF_RUNS` are
Wanted = NamedTuple("Wanted", [(name, int) for name in (*COLUMNS, "any_of_runs")])  # type: ignore[misc]

MISSING = np.iinfo(np.int64).min
#: states of a point; LEFT: its whole numbers may not fit int64
FEASIBLE, WEIGHTS_TOO_LARGE, REQUEST_TOO_LARGE, LEFT = 0, 1, 2, -1


class Tables(NamedTuple):
    """Cases (designs but for device, batch and lengths) below each other; `ends` are their rows in the first four."""

    tensors: Any
    layers: Any
    kernels: Any
    products: Any
    ends: Any
    models: Any
    policies: Any
    stacks: Any
    loads: Any
    #: rows of `Device`
    devices: Any


class Points(NamedTuple):
    """Columns, one value a point: rows of cases and of devices, lengths, batch."""

    case: Any
    device: Any
    n_input: Any
    n_output: Any
    batch: Any


class Case(NamedTuple):
    """A design with what follows from it, whatever the batch."""

    design: Any
    made: Any
    terms: Any


class Room(NamedTuple):
    """Arrays to work in: the rows of a run, of the waves of one sequence less, its totals, and the sums of a sequence
    by the number that run together, where `known`."""

    row: Any
    less: Any
    totals: Any
    by_n: Any
    known: Any


class Found(NamedTuple):
    """Columns that are filled; `wanted` are the rows of the other three by name."""

    wanted: Any
    whole: Any
    floats: Any
    codes: Any


_ROWS = (Tensor, Layer, Kernel, Product)


def tables_of(designs: Sequence[Design | None], devices: Sequence[Device] = ()) -> Tables:
    """Cases and devices below each other; None leaves a row of zeros. Raises OverflowError beyond int64."""
    ends, rows = [[0] * len(_ROWS)], [[] for _ in _ROWS]  # type: ignore[var-annotated]
    for design in designs:
        if design:
            for found, part in zip(rows, design[: len(_ROWS)], strict=True):
                found.extend(part)  # type: ignore[arg-type]
        ends.append([len(found) for found in rows])
    arrays = [np.array(found, dtype_of(record)) for found, record in zip(rows, _ROWS, strict=True)]
    single = [
        np.array([getattr(design, name) if design else (0,) * len(get_type_hints(record)) for design in designs],
                 dtype_of(record))
        for name, record in (("model", LanguageModel), ("policy", Policy), ("stack", Stack), ("load", Load))
    ]  # fmt: skip
    return Tables(*arrays, np.array(ends, np.int64), *single, np.array(list(devices), dtype_of(Device)))  # type: ignore[call-arg]


@inlined
def _put(row, i, wave):
    """A wave into its place of the rows of a run."""
    row[AT.linear_compute_s + i] = wave.linear_compute_s
    row[AT.linear_s + i] = wave.linear_s
    row[AT.attention_s + i] = wave.attention_s
    row[AT.quantize_s + i] = wave.quantize_s
    row[AT.dequantize_s + i] = wave.dequantize_s
    row[AT.decode_step_s + i] = wave.decode_step_s
    row[AT.prompt_products_s + i] = wave.prompt_products_s
    row[AT.prompt_matrix_s + i] = wave.prompt_matrix_s
    row[AT.prompt_compute_s + i] = wave.prompt_compute_s
    row[AT.prompt_quantize_s + i] = wave.prompt_quantize_s
    row[AT.prefill_s + i] = wave.prefill_s
    row[AT.wave_s + i] = wave.wave_s


@compilable
def _fill_alike(row, m, one, peak, terms):
    """Waves that share the sums of a sequence: a loop for each kind of model, in which nothing is decided by point."""
    n, read, prompt = GIVEN.running, GIVEN.read_s, GIVEN.prompt_read_s
    if terms.has_gemm:
        if terms.quantises:
            for i in range(m):
                _put(row, i, wave_of(row[n + i], row[read + i], row[prompt + i], one, peak, terms, True, True))
        else:
            for i in range(m):
                _put(row, i, wave_of(row[n + i], row[read + i], row[prompt + i], one, peak, terms, True, False))
    elif terms.quantises:
        for i in range(m):
            _put(row, i, wave_of(row[n + i], row[read + i], row[prompt + i], one, peak, terms, False, True))
    else:
        for i in range(m):
            _put(row, i, wave_of(row[n + i], row[read + i], row[prompt + i], one, peak, terms, False, False))


@compilable
def _fill_waves(row, m, case, room):
    """All times of the waves of the sequences in `row`."""
    design, terms, by_n, known, running = case.design, case.terms, room.by_n, room.known, GIVEN.running
    if design.load.has_cache == 0:
        wave = uncached_run(design, terms, int(row[running])).wave
        for i in range(m):
            if i > 0 and row[running + i] != row[running + i - 1]:
                wave = uncached_run(design, terms, int(row[running + i])).wave
            _put(row, i, wave)
        return
    for i in range(m):
        row[GIVEN.read_s + i] = terms.weight_read_s
        row[GIVEN.prompt_read_s + i] = terms.weight_read_s
    if terms.has_experts:
        prefix, own = terms.prompt.prefix_tokens, terms.input_tokens - terms.prompt.prefix_tokens
        for i in range(m):
            n = int(row[running + i])
            touched = share_touched(design, n)
            row[GIVEN.touched + i] = touched
            row[GIVEN.read_s + i] = weight_read_s(design, touched)
            row[GIVEN.prompt_read_s + i] = weight_read_s(design, share_touched(design, prefix + n * own))
    n_few, same_from = 0, terms.same_from
    if same_from > 1:
        for i in range(m):
            n_few += 1 if row[running + i] < same_from else 0
    if n_few == 0:
        if known[same_from] == 0:
            by_n[same_from], known[same_from] = sums_of(design, case.made, same_from), 1
        _fill_alike(row, m, by_n[same_from], product_peak(design, same_from), terms)
        return
    for i in range(m):
        n = min(int(row[running + i]), same_from)
        if known[n] == 0:
            by_n[n], known[n] = sums_of(design, case.made, n), 1
        _put(row, i, wave_of(
            row[running + i], row[GIVEN.read_s + i], row[GIVEN.prompt_read_s + i], by_n[n], product_peak(design, n),
            terms, terms.has_gemm, terms.quantises,
        ))  # fmt: skip


@compilable
def _split(row, m, most, is_paged):
    """The waves of the batches in `row`; how many points have waves of one sequence less."""
    n_smaller = 0
    if is_paged:
        for i in range(m):
            waves = capacity.waves_of(row[GIVEN.batch + i], most, True)
            row[GIVEN.running + i], row[GIVEN.n_full + i] = waves.running, waves.n_full
            row[GIVEN.n_smaller + i] = 0.0
        return n_smaller
    for i in range(m):
        waves = capacity.waves_of(row[GIVEN.batch + i], most, False)
        row[GIVEN.running + i], row[GIVEN.n_waves + i] = waves.running, waves.n_waves
        row[GIVEN.n_full + i], row[GIVEN.n_smaller + i] = waves.n_full, waves.n_smaller
    for i in range(m):
        n_smaller += 1 if row[GIVEN.n_smaller + i] > 0 else 0
    return n_smaller


@compilable
def _fill_totals(row, less, totals, m, design):
    """Totals over all waves; `less` has those of one sequence less."""
    device, n_steps, n, n_waves = design.device, design.output_tokens, GIVEN.running, GIVEN.n_waves
    full, small = GIVEN.n_full, GIVEN.n_smaller
    if design.load.is_paged:
        for i in range(m):
            waves = capacity.Waves(row[n + i], 0.0, row[full + i], 0.0)
            _put_totals(
                totals, i, totals_of(row[GIVEN.batch + i], n_steps, waves, row[AT.wave_s + i], 0.0, True, device)
            )
    else:
        for i in range(m):
            waves = capacity.Waves(row[n + i], row[n_waves + i], row[full + i], row[small + i])
            _put_totals(totals, i, totals_of(
                row[GIVEN.batch + i], n_steps, waves, row[AT.wave_s + i], less[AT.wave_s + i], False, device
            ))  # fmt: skip


@inlined
def _put_totals(totals, i, found):
    """Totals into their place."""
    totals[TOTAL.total_s + i] = found.total_s
    totals[TOTAL.throughput_tokens_per_s + i] = found.throughput_tokens_per_s
    totals[TOTAL.joules_per_token + i] = found.joules_per_token
    totals[TOTAL.usd_per_million_tokens + i] = found.usd_per_million_tokens


@compilable
def _fill_run(m, most, case, room):
    """Waves and totals of the batches in the rows of `room`, of which `most` fit."""
    row, less = room.row, room.less
    n_smaller = _split(row, m, most, case.design.load.is_paged)
    _fill_waves(row, m, case, room)
    if n_smaller:
        for i in range(m):
            less[GIVEN.running + i] = row[GIVEN.running + i] - (1.0 if row[GIVEN.n_smaller + i] > 0 else 0.0)
        _fill_waves(less, m, case, room)
        _fill_totals(row, less, room.totals, m, case.design)
    else:
        _fill_totals(row, row, room.totals, m, case.design)


@compilable
def _wave_at(row, i):
    return Wave(
        row[AT.linear_compute_s + i], row[AT.linear_s + i], row[AT.attention_s + i], row[AT.quantize_s + i],
        row[AT.dequantize_s + i], row[AT.decode_step_s + i], row[AT.prompt_products_s + i],
        row[AT.prompt_matrix_s + i], row[AT.prompt_compute_s + i], row[AT.prompt_quantize_s + i],
        row[AT.prefill_s + i], row[AT.wave_s + i],
    )  # fmt: skip


@inlined
def _run_at(case, row, i, by_n):
    """The run of the point at `i`, from its wave."""
    design, terms, n = case.design, case.terms, int(row[GIVEN.running + i])
    if design.load.has_cache == 0:
        return uncached_run(design, terms, n)
    touched = row[GIVEN.touched + i] if terms.has_experts else 1.0
    return cached_run(
        design, terms, n, _wave_at(row, i), by_n[min(n, terms.same_from)], row[GIVEN.read_s + i],
        row[GIVEN.prompt_read_s + i], touched,
    )  # fmt: skip


@compilable
def _fill_sizes(case, points, most, found, first, m):
    """Columns of memory; `max_context_tokens` of equal batches is sought once."""
    design, made, batch, wanted, whole = case.design, case.made, points.batch, found.wanted, found.whole
    free_bytes = capacity.free_bytes(design)
    unit = 8 * design.model.den
    if wanted.kv_bytes >= 0:
        for i in range(m):
            whole[wanted.kv_bytes, first + i] = capacity.kv_bytes(design, made, batch[first + i])
    if wanted.peak_kv_bytes_per_sequence >= 0:
        whole[wanted.peak_kv_bytes_per_sequence, first : first + m] = capacity.to_bytes(design, made.peak_bits)
    if wanted.weight_bytes >= 0:
        whole[wanted.weight_bytes, first : first + m] = capacity.weight_bytes(design)
    if wanted.activation_bytes >= 0:
        for i in range(m):
            whole[wanted.activation_bytes, first + i] = batch[first + i] * made.activation_bytes
    if wanted.workspace_bytes >= 0:
        for i in range(m):
            whole[wanted.workspace_bytes, first + i] = batch[first + i] * made.workspace_bytes
    if wanted.free_bytes >= 0:
        whole[wanted.free_bytes, first : first + m] = free_bytes
    if wanted.max_batch >= 0:
        whole[wanted.max_batch, first : first + m] = most
    if wanted.min_capacity_bytes >= 0:
        for i in range(m):
            whole[wanted.min_capacity_bytes, first + i] = capacity.min_capacity_bytes(design, made, batch[first + i])
    if wanted.max_context_tokens >= 0:
        longest = 0
        for i in range(m):
            if i == 0 or batch[first + i] != batch[first + i - 1]:
                longest = longest_context(design, free_bytes * unit, batch[first + i])
            whole[wanted.max_context_tokens, first + i] = MISSING if longest == NO_CONTEXT_LIMIT else longest


@compilable
def _fill_context(case, found, first, m):
    design, made, wanted, floats = case.design, case.made, found.wanted, found.floats
    context = context_of(design, made.limits)
    if wanted.stored_tokens >= 0:
        floats[wanted.stored_tokens, first : first + m] = context.stored_tokens / context.n_layers
    if wanted.read_tokens >= 0:
        floats[wanted.read_tokens, first : first + m] = context.read_tokens / context.n_layers
    if wanted.stored_bits >= 0:
        bits = made.final_bits / (8 * design.model.den)
        floats[wanted.stored_bits, first : first + m] = effective_bits.stored_bits(bits, made.n_elements)
    if wanted.page_tail_bits >= 0:
        floats[wanted.page_tail_bits, first : first + m] = context.padding_bits / (design.model.den * made.n_elements)
    if wanted.kv_bytes_per_token >= 0:
        floats[wanted.kv_bytes_per_token, first : first + m] = context.kv_bytes_per_token


@inlined
def _copy(out, place, first, row, at, m):
    """A row into a column, where that is wanted."""
    if place >= 0:
        column = out[place, first : first + m]
        for i in range(m):
            column[i] = row[at + i]


@compilable
def _fill_times(case, room, found, first, m):
    """Columns of times and totals."""
    design, terms, row, totals = case.design, case.terms, room.row, room.totals
    wanted, whole, floats = found.wanted, found.whole, found.floats
    _copy(floats, wanted.linear_s, first, row, AT.linear_s, m)
    _copy(floats, wanted.attention_s, first, row, AT.attention_s, m)
    _copy(floats, wanted.quantize_s, first, row, AT.quantize_s, m)
    _copy(floats, wanted.dequantize_s, first, row, AT.dequantize_s, m)
    _copy(floats, wanted.decode_step_s, first, row, AT.decode_step_s, m)
    _copy(floats, wanted.tpot_s, first, row, AT.decode_step_s, m)
    _copy(floats, wanted.prefill_s, first, row, AT.prefill_s, m)
    _copy(floats, wanted.total_s, first, totals, TOTAL.total_s, m)
    _copy(floats, wanted.throughput_tokens_per_s, first, totals, TOTAL.throughput_tokens_per_s, m)
    _copy(floats, wanted.joules_per_token, first, totals, TOTAL.joules_per_token, m)
    _copy(floats, wanted.usd_per_million_tokens, first, totals, TOTAL.usd_per_million_tokens, m)
    if wanted.ttft_s >= 0:
        alone_s, has_cache = one_prompt_s(design, terms), design.load.has_cache
        for i in range(m):
            step_s = row[AT.decode_step_s + i] if has_cache else 0.0
            floats[wanted.ttft_s, first + i] = throughput.ttft_s(alone_s, step_s)
    if wanted.running_batch >= 0:
        for i in range(m):
            whole[wanted.running_batch, first + i] = int(row[GIVEN.running + i])
    if wanted.n_waves >= 0:
        for i in range(m):
            whole[wanted.n_waves, first + i] = MISSING if design.load.is_paged else int(row[GIVEN.n_waves + i])
    if wanted.busy_cores >= 0:
        cores = design.device.token_cores if design.load.has_cache else 0
        for i in range(m):
            whole[wanted.busy_cores, first + i] = min(int(row[GIVEN.running + i]), cores) if cores else MISSING


@compilable
def _fill_runs(case, room, found, first, m):
    """Columns that need the whole run of each point: what binds, utilisation, energy by parts, cost of a request."""
    design, made, terms, row = case.design, case.made, case.terms, room.row
    wanted, floats, codes = found.wanted, found.floats, found.codes
    run = _run_at(case, row, 0, room.by_n)
    for i in range(m):
        if row[GIVEN.running + i] != run.n:  # of batches that wait for room, as many run
            run = _run_at(case, row, i, room.by_n)
        batch = row[GIVEN.batch + i]
        bounds = bounds_of(design, run, batch)
        if wanted.bound >= 0:
            codes[wanted.bound, first + i] = bounds.bound
        if wanted.linear_bound >= 0:
            codes[wanted.linear_bound, first + i] = bounds.linear_bound
        if wanted.attention_bound >= 0:
            codes[wanted.attention_bound, first + i] = bounds.attention_bound
        if wanted.any_of_runs < 0:
            continue
        if wanted.quantize_busy_s >= 0:
            floats[wanted.quantize_busy_s, first + i] = run.quantize_busy_s
        if wanted.dequantize_busy_s >= 0:
            floats[wanted.dequantize_busy_s, first + i] = run.dequantize_busy_s
        waves = capacity.Waves(
            row[GIVEN.running + i], row[GIVEN.n_waves + i], row[GIVEN.n_full + i], row[GIVEN.n_smaller + i]
        )
        smaller = run
        if waves.n_smaller > 0:
            smaller = _run_at(case, room.less, i, room.by_n)
        spent = spent_of(design, made, terms, run, smaller, waves, batch, room.totals[i])
        if wanted.compute_utilisation >= 0:
            floats[wanted.compute_utilisation, first + i] = spent.compute_utilisation
        if wanted.bandwidth_utilisation >= 0:
            floats[wanted.bandwidth_utilisation, first + i] = spent.bandwidth_utilisation
        if wanted.prefill_compute_utilisation >= 0:
            floats[wanted.prefill_compute_utilisation, first + i] = spent.prefill_compute_utilisation
        if wanted.prefill_bandwidth_utilisation >= 0:
            floats[wanted.prefill_bandwidth_utilisation, first + i] = spent.prefill_bandwidth_utilisation
        if wanted.memory_joules_per_token >= 0:
            floats[wanted.memory_joules_per_token, first + i] = spent.memory_joules_per_token
        if wanted.compute_joules_per_token >= 0:
            floats[wanted.compute_joules_per_token, first + i] = spent.compute_joules_per_token
        if wanted.idle_joules_per_token >= 0:
            floats[wanted.idle_joules_per_token, first + i] = spent.idle_joules_per_token
        if wanted.joules_per_token_by_parts >= 0:
            floats[wanted.joules_per_token_by_parts, first + i] = spent.joules_per_token_by_parts
        if wanted.usd_per_request >= 0:
            floats[wanted.usd_per_request, first + i] = spent.usd_per_request


@compilable
def _nothing_runs(found, first, m):
    """Columns of points in which not one request fits."""
    wanted, whole, floats, codes = found.wanted, found.whole, found.floats, found.codes
    for column in (wanted.n_waves, wanted.busy_cores):
        if column >= 0:
            whole[column, first : first + m] = MISSING
    if wanted.running_batch >= 0:
        whole[wanted.running_batch, first : first + m] = 0
    for column in range(len(floats)):
        of_context = (
            column == wanted.stored_tokens or column == wanted.read_tokens or column == wanted.stored_bits
            or column == wanted.page_tail_bits or column == wanted.kv_bytes_per_token
        )  # fmt: skip
        if not of_context:
            floats[column, first : first + m] = np.nan
    for column in range(len(codes)):
        codes[column, first : first + m] = CAPACITY if column == wanted.bound else -1


@compilable
def _fits_int64(case, most_batch):
    """False where capacity and what batches need might not fit int64."""
    design, made = case.design, case.made
    unit, steps = 8.0 * design.model.den, design.output_tokens if design.load.is_paged else 1
    largest = float(max(made.final_bits, made.sum_of_own_bits))
    for size in made.sizes:
        largest = max(largest, float(size.own) + float(size.shared))
    free = abs(float(capacity.free_bytes(design))) * unit  # a search for the longest context may need twice as much
    return free < WIDE and free * steps < 2 * WIDE and float(most_batch) * largest < 2 * WIDE


@compilable
def _wants_runs(wanted):
    """True where a column needs the whole run of each point."""
    bounds = wanted.bound >= 0 or wanted.linear_bound >= 0 or wanted.attention_bound >= 0
    return bounds or wanted.any_of_runs >= 0


@compilable
def _wants_context(wanted):
    """True where a column is a mean at the final length."""
    tokens = wanted.stored_tokens >= 0 or wanted.read_tokens >= 0 or wanted.kv_bytes_per_token >= 0
    return tokens or wanted.stored_bits >= 0 or wanted.page_tail_bits >= 0


def evaluate_points(points, tables, n_keys, found, state, version):
    """Columns of the points whose `state` is FEASIBLE on entry; the state of each is told.

    `n_keys` is more than any number of sequences on which sums depend one by one. `version`: see `versioned`.
    """
    n, n_keys = len(points.case), min(n_keys, MAX_KEYS)
    by_n = [Sums(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)]
    room = Room(np.zeros(N_ROW), np.zeros(N_ROW), np.zeros(N_TOTAL), by_n, np.zeros(n_keys, np.int8))
    begin, last, last_device, exact, known_case = 0, -1, -1, False, False
    for column in range(len(found.codes)):
        found.codes[column, :] = -1
    wants_runs, wants_context = _wants_runs(found.wanted), _wants_context(found.wanted)
    while begin < n:
        first, at, device = begin, points.case[begin], points.device[begin]
        n_input, n_output, most_batch = points.n_input[begin], points.n_output[begin], points.batch[begin]
        while (
            begin < n and begin - first < ROW and points.case[begin] == at and points.device[begin] == device
            and points.n_input[begin] == n_input and points.n_output[begin] == n_output
        ):  # fmt: skip
            most_batch = max(most_batch, points.batch[begin])
            begin += 1
        m = begin - first
        if state[first] != FEASIBLE:
            continue
        same = last >= 0 and at == points.case[last]
        same = same and n_input == points.n_input[last] and n_output == points.n_output[last]
        if not same or device != last_device:
            start, end = tables.ends[at], tables.ends[at + 1]
            design = Design(
                tables.tensors[start[0] : end[0]], tables.layers[start[1] : end[1]], tables.kernels[start[2] : end[2]],
                tables.products[start[3] : end[3]], tables.models[at], tables.policies[at], tables.stacks[at],
                tables.devices[device], tables.loads[at], n_input, n_output,
            )  # fmt: skip
            if not same:
                exact = is_exact(design)
                if exact:
                    made = generation_of(design)
                    exact = len(made.pieces) <= MAX_PIECES
            if exact:
                case = Case(design, made, terms_of(design, made))
                room.known[:] = 0
                known_case = case.terms.same_from < n_keys
        last, last_device = first, device
        if not exact or not known_case or not _fits_int64(case, most_batch):
            state[first:begin] = LEFT
            continue
        while len(room.by_n) <= case.terms.same_from:
            room.by_n.append(room.by_n[0])
        free_bytes = capacity.free_bytes(case.design)
        most = capacity.max_batch(case.design, case.made, free_bytes * 8 * case.design.model.den)
        _fill_sizes(case, points, most, found, first, m)
        if wants_context:
            _fill_context(case, found, first, m)
        if most == 0:
            state[first:begin] = WEIGHTS_TOO_LARGE if free_bytes < 0 else REQUEST_TOO_LARGE
            _nothing_runs(found, first, m)
            continue
        for i in range(m):
            room.row[GIVEN.batch + i] = points.batch[first + i]
        _fill_run(m, float(most), case, room)
        _fill_times(case, room, found, first, m)
        if wants_runs:
            _fill_runs(case, room, found, first, m)


#: columns that `scan_points` writes
SCANNED = (
    "running_batch", "linear_s", "attention_s", "decode_step_s", "prefill_s", "total_s", "throughput_tokens_per_s",
    "joules_per_token",
)  # fmt: skip


class Scanned(NamedTuple):
    """What a scan keeps of each combination: the best throughput of any batch, how many batches run at once (0: nothing
    runs; -1: beyond int64); and a buffer of rows `SCANNED`, written over and over, which may be empty."""

    best: Any
    at_once: Any
    buffer: Any


@compilable
def _best(totals, work, m):
    """The largest throughput: halves are compared place by place, which compiles into vector instructions."""
    for i in range(ROW):
        work[i] = 0.0
    for i in range(m):
        work[i] = totals[TOTAL.throughput_tokens_per_s + i]
    width = ROW // 2
    while width:
        for i in range(width):
            work[i] = max(work[i], work[width + i])
        width //= 2
    return work[0]


def scan_points(first, last, points, tables, n_keys, found, version):
    """Combinations first..last-1 of case, device and lengths, each with every batch of `points.batch`."""
    n_keys, batch, best, at_once, buffer = min(n_keys, MAX_KEYS), points.batch, found.best, found.at_once, found.buffer
    by_n, widest, n_written = [Sums(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)], np.empty(2 * ROW), 0
    room = Room(np.zeros(N_ROW), np.zeros(N_ROW), np.zeros(N_TOTAL), by_n, np.zeros(n_keys, np.int8))
    row, totals, most_batch = room.row, room.totals, batch.max() if len(batch) else 0.0
    for k in range(first, last):
        at, best[k], at_once[k] = points.case[k], 0.0, -1
        start, end = tables.ends[at], tables.ends[at + 1]
        design = Design(
            tables.tensors[start[0] : end[0]], tables.layers[start[1] : end[1]], tables.kernels[start[2] : end[2]],
            tables.products[start[3] : end[3]], tables.models[at], tables.policies[at], tables.stacks[at],
            tables.devices[points.device[k]], tables.loads[at], points.n_input[k], points.n_output[k],
        )  # fmt: skip
        if not is_exact(design):
            continue
        made = generation_of(design)
        case = Case(design, made, terms_of(design, made))
        if case.terms.same_from >= n_keys or not _fits_int64(case, most_batch):
            continue
        most = capacity.max_batch(design, made, capacity.free_bytes(design) * 8 * design.model.den)
        at_once[k] = 0
        if most == 0:
            continue
        room.known[:] = 0
        while len(room.by_n) <= case.terms.same_from:
            room.by_n.append(room.by_n[0])
        for begin in range(0, len(batch), ROW):
            m = min(ROW, len(batch) - begin)
            for i in range(m):
                row[GIVEN.batch + i] = batch[begin + i]
            _fill_run(m, float(most), case, room)
            best[k] = max(best[k], _best(totals, widest, m))
            whole = 0
            for i in range(m):
                whole += 1 if row[GIVEN.running + i] == row[GIVEN.batch + i] else 0
            at_once[k] += whole
            if len(buffer):
                if n_written + m > buffer.shape[1]:
                    n_written = 0
                _copy(buffer, 0, n_written, row, GIVEN.running, m)
                _copy(buffer, 1, n_written, row, AT.linear_s, m)
                _copy(buffer, 2, n_written, row, AT.attention_s, m)
                _copy(buffer, 3, n_written, row, AT.decode_step_s, m)
                _copy(buffer, 4, n_written, row, AT.prefill_s, m)
                _copy(buffer, 5, n_written, totals, TOTAL.total_s, m)
                _copy(buffer, 6, n_written, totals, TOTAL.throughput_tokens_per_s, m)
                _copy(buffer, 7, n_written, totals, TOTAL.joules_per_token, m)
                n_written += m


def versioned(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with the stamp of all sources as the default of its last argument: kept code is looked up by the types
    of arguments, and a default is one. An entry that calls `function` would be compiled and optimised twice."""
    return FunctionType(function.__code__, function.__globals__, function.__name__, (source_stamp(),))


@cache
def _compiled() -> Callable[..., Any]:
    registered()
    return sequential(versioned(evaluate_points))


_loaded = threading.Event()


def evaluate(*arguments: Any) -> None:
    """`evaluate_points`, compiled; the code is kept on disk for the formulas as they are now."""
    _compiled()(*arguments)
    _loaded.set()


def is_loaded() -> bool:
    """True once compiled code is at hand in this process."""
    return _loaded.is_set()


@cache
def compiled_scan() -> Callable[..., Any]:
    """`scan_points`, compiled."""
    registered()
    return sequential(versioned(scan_points))
