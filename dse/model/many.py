"""Many design points, compiled: the functions of the model inside one loop, into columns.

Points come in runs that share all but the batch. What runs have in common is computed once: the amounts of a generation
while case and lengths stay, what a device makes of them while it stays, and the times of as many sequences as run at
once, which batches that wait for room share. What is left for each point is a few loops over stretches of one array,
each of which is compiled into vector instructions.
"""

from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse.core.compiling import compilable, inlined, making, registered, sources
from dse.model import capacity
from dse.model.attention import NO_SUMS, KnownSums
from dse.model.batch import (
    BOUNDS,
    CAPACITY,
    Bounds,
    Served,
    Spent,
    Totals,
    bounds_of,
    full_batch,
    served_of,
    served_s,
    spent_of,
    totals_of,
)
from dse.model.formulas import deployment, steady
from dse.model.generation import MAX_PIECES, Contents, Generation, contents_of, generation_of, is_exact
from dse.model.kv_bytes import unit_of
from dse.model.peak_memory import WIDE
from dse.model.records import (
    MISSING,
    STATIC,
    AttentionKernel,
    Deployment,
    Design,
    Device,
    Exchange,
    LanguageModel,
    Layer,
    Load,
    Memory,
    Policy,
    Product,
    Record,
    Stack,
    Tensor,
    dtype_of,
    known,
)
from dse.model.server import AtOnce, ServerResults, Waits, last_pass, server_of, static_pass
from dse.model.sieve import ALL, Sieve, sift
from dse.model.step import Run, Terms, Wave, known_run, known_wave, one_prompt_s, terms_of
from kernels_ref import sequential

#: columns of whole numbers and of floats, and the states of points
Whole = NDArray[np.int64]
Floats = NDArray[np.float64]
States = NDArray[np.int8]

#: a batch that is as many requests as fit
OPEN = 0
#: points of a run at most
ROW = 512
#: numbers of sequences whose times are kept: twice as many as a run may ask for
N_KEPT = 4 * ROW


def _places(record: Any, first: int, step: int) -> Any:
    """By the names of a record, where each of its numbers lies, `step` apart from `first` on."""
    return record._make(range(first, first + step * len(record._fields), step))


#: where the times of a number of sequences lie: of their wave, and of a request of a server that runs so many
TIMES = _places(Wave, 0, 1)
WAITS = _places(Waits, len(Wave._fields), 1)
N_TIMES = len(Wave._fields) + len(Waits._fields)
#: where the rows of a run begin in its array: batches, their waves, totals and servers
BATCH = 0
WAVES = _places(capacity.Waves, ROW, ROW)
TOTAL = _places(Totals, ROW + ROW * len(WAVES), ROW)
SERVER = _places(ServerResults, ROW + ROW * (len(WAVES) + len(TOTAL)), ROW)
N_ROW = ROW + ROW * (len(WAVES) + len(TOTAL) + len(SERVER))
#: numbers of sequences at most for which sums are kept apart
MAX_KEYS = 2**14

#: columns by kind, each a result of one name; a whole number that is missing is MISSING, another nan, a code -1
WHOLE = (*capacity.Capacity._fields, *capacity.Sizes._fields, *capacity.Needs._fields, *Served._fields, "batch")
FLOAT = (
    *Contents._fields,
    *capacity.Pool._fields,
    *Wave._fields,
    *Totals._fields,
    *ServerResults._fields,
    "prefill_alone_s",
    *Spent._fields,
)
CODE = Bounds._fields
COLUMNS = (*WHOLE, *FLOAT, *CODE)
#: where groups of columns begin among those of their kind
OF_SIZES = len(capacity.Capacity._fields)
OF_NEEDS = OF_SIZES + len(capacity.Sizes._fields)
OF_SERVED = OF_NEEDS + len(capacity.Needs._fields)
OF_BATCH = OF_SERVED + len(Served._fields)
OF_POOL = len(Contents._fields)
OF_WAVE = OF_POOL + len(capacity.Pool._fields)
OF_TOTALS = OF_WAVE + len(Wave._fields)
OF_SERVER = OF_TOTALS + len(Totals._fields)
OF_COSTS = FLOAT.index("joules_per_token")
OF_ALONE = OF_SERVER + len(ServerResults._fields)
OF_SPENT = OF_ALONE + 1
#: the column that takes longest
CONTEXT = WHOLE.index("max_context_tokens")
#: those that are not missing where nothing runs
RUNNING, BOUND = WHOLE.index("running_batch"), CODE.index("bound")

#: states of a run of points; LEFT: its whole numbers may not fit int64
FEASIBLE, WEIGHTS_TOO_LARGE, REQUEST_TOO_LARGE, LEFT = 0, 1, 2, -1


class DesignTables(NamedTuple):
    """Cases (designs but for device, batch and lengths) below each other; `ends` are their rows in the first five.

    All others are structured arrays (`dtype_of`): compiled code reads a row of one as the record itself.
    """

    tensors: Any
    layers: Any
    kernels: Any
    products: Any
    exchanges: Any
    ends: Whole
    models: Any
    policies: Any
    stacks: Any
    loads: Any
    memories: Any
    deployments: Any
    devices: Any


class PointRuns(NamedTuple):
    """Runs of up to `ROW` points that differ in their batch alone: rows of cases and of devices, lengths, and
    `batches[begin:end]`, which runs may share."""

    case: Whole
    device: Whole
    n_input: Whole
    n_output: Whole
    begin: Whole
    end: Whole
    batches: Whole


class Prepared(NamedTuple):
    """A design with what follows from it, whatever the batch."""

    design: Design
    made: Generation
    terms: Terms


class Room(NamedTuple):
    """Arrays to work in."""

    #: of a sequence, by the number that run together
    sums: KnownSums
    #: rows of `N_TIMES`, of which numbers of sequences they are, how many there are, and in which to look for a number
    times: Floats
    numbers: Whole
    n_kept: Whole
    row_of: Whole
    #: of a run: numbers by point, and the rows in `times` of its waves and of those of one sequence less
    row: Floats
    batches: Whole
    at: Whole
    at_less: Whole


class Places(NamedTuple):
    """Rows of columns in `Found` by kind, -1 for one that is not wanted."""

    whole: Whole
    floats: Whole
    codes: Whole


class Found(NamedTuple):
    """Columns that are filled, by kind."""

    places: Places
    whole: Whole
    floats: Floats
    codes: States


_ROWS: tuple[type[Record], ...] = (Tensor, Layer, AttentionKernel, Product, Exchange)


def tables_of(designs: Sequence[Design | None], devices: Sequence[Device] = ()) -> DesignTables:
    """Cases and devices below each other; None leaves a row of zeros. Raises OverflowError beyond int64."""
    ends, rows = [[0] * len(_ROWS)], [[] for _ in _ROWS]  # type: ignore[var-annotated]
    for design in designs:
        if design:
            for entries, part in zip(rows, design[: len(_ROWS)], strict=True):
                entries.extend(part)  # type: ignore[arg-type]
        ends.append([len(entries) for entries in rows])

    def single(name: str, record: type[Record]) -> NDArray[np.void]:
        kind, absent = dtype_of(record), (0,) * len(record._fields)
        return np.array([getattr(design, name) if design else absent for design in designs], kind)

    tensors, layers, kernels, products, exchanges = (
        np.array(entries, dtype_of(record)) for entries, record in zip(rows, _ROWS, strict=True)
    )
    return DesignTables(
        tensors=tensors,
        layers=layers,
        kernels=kernels,
        products=products,
        exchanges=exchanges,
        ends=np.array(ends, np.int64),
        models=single("model", LanguageModel),
        policies=single("policy", Policy),
        stacks=single("stack", Stack),
        loads=single("load", Load),
        memories=single("memory", Memory),
        deployments=single("deployment", Deployment),
        devices=np.array(list(devices), dtype_of(Device)),
    )


@inlined
def _put(row: Floats, at: int, i: int, numbers: Any) -> None:
    """Numbers of the point at `i` into the rows of a run from that at `at` on."""
    for k in range(len(numbers)):
        row[at + ROW * k + i] = numbers[k]


@inlined
def _row_of(case: Prepared, room: Room, running: int, wants_server: bool) -> int:
    """The row of `room.times` with those of as many sequences, computed where it is not there."""
    at = room.row_of[running % N_KEPT]
    if at < room.n_kept[0] and room.numbers[at] == running:
        return at
    return _add_row(case, room, running, wants_server)


@compilable
def _add_row(case: Prepared, room: Room, running: int, wants_server: bool) -> int:
    """Compute the times of as many sequences, into a row of their own."""
    at, design = room.n_kept[0], case.design
    room.n_kept[0], room.row_of[running % N_KEPT], room.numbers[at] = at + 1, at, running
    n, n_steps = float(running), float(design.output_tokens)
    wave = known_wave(design, case.made, case.terms, _together(design, n), room.sums)
    for k in range(len(wave)):
        room.times[at * N_TIMES + k] = wave[k]
    if wants_server:
        if design.load.batching == STATIC:
            times = static_pass(n, n, wave.decode_step_s, wave.prefill_s, wave.wave_s, 0.0, n_steps)
        else:
            times = last_pass(design, case.made, case.terms, room.sums, AtOnce(n, n, n_steps, 0, 1.0), 0.0)
        room.times[at * N_TIMES + WAITS.prompt_s] = times.prompt_s
        room.times[at * N_TIMES + WAITS.burst_wait_s] = times.burst_wait_s
        room.times[at * N_TIMES + WAITS.decode_s] = times.decode_s
    return at


@inlined
def _together(design: Design, running: float) -> int:
    """Sequences of a wave that pass a device together."""
    return int(deployment.micro_batch(running, design.deployment.n_groups, design.deployment.n_in_flight))


@compilable
def _run_of(case: Prepared, running: float, sums: KnownSums) -> Run:
    """The run of a wave of `running` sequences."""
    return known_run(case.design, case.made, case.terms, _together(case.design, running), sums)


@compilable
def _fill_waves(room: Room, m: int, most: float, case: Prepared, wants_server: bool) -> None:
    """The waves of the batches of a run, of which `most` fit, and the rows of their times."""
    row = room.row
    if capacity.is_replaced(case.design):
        for i in range(m):
            _put(row, WAVES.running, i, capacity.waves_of(row[BATCH + i], most, True))
    else:
        for i in range(m):
            _put(row, WAVES.running, i, capacity.waves_of(row[BATCH + i], most, False))
    if room.n_kept[0] + 2 * m > N_KEPT:
        room.n_kept[0] = 0
    running, at, less = 0.0, 0, -1
    for i in range(m):
        if row[WAVES.running + i] != running:
            running, less = row[WAVES.running + i], -1
            at = _row_of(case, room, int(running), wants_server)
        if less < 0 and row[WAVES.n_smaller + i] > 0:
            less = _row_of(case, room, int(running) - 1, wants_server)
        room.at[i], room.at_less[i] = at * N_TIMES, (less if row[WAVES.n_smaller + i] > 0 else at) * N_TIMES


@inlined
def _waves_at(row: Floats, i: int) -> capacity.Waves:
    return capacity.Waves(
        running=row[WAVES.running + i],
        n_waves=row[WAVES.n_waves + i],
        n_full=row[WAVES.n_full + i],
        n_smaller=row[WAVES.n_smaller + i],
    )


@compilable
def _fill_totals(room: Room, m: int, design: Design) -> None:
    """Totals over all waves."""
    row, times, n_steps = room.row, room.times, design.output_tokens
    if capacity.is_replaced(design):
        for i in range(m):
            wave_s = times[room.at[i] + TIMES.wave_s]
            _put(row, TOTAL.total_s, i, totals_of(row[BATCH + i], n_steps, _waves_at(row, i), wave_s, 0.0, True))
    else:
        for i in range(m):
            wave_s, less_s = times[room.at[i] + TIMES.wave_s], times[room.at_less[i] + TIMES.wave_s]
            _put(row, TOTAL.total_s, i, totals_of(row[BATCH + i], n_steps, _waves_at(row, i), wave_s, less_s, False))


@compilable
def _fill_servers(room: Room, m: int, design: Design, wants_costs: bool) -> None:
    """Servers of the batches of a run: all of their results, or times and rates alone."""
    row, n, is_static = room.row, float(design.deployment.n_devices), design.load.batching == STATIC
    n_steps = float(design.output_tokens)
    board_w, usd_per_hour = n * design.device.board_power_w, n * design.device.usd_per_hour
    if wants_costs:
        for i in range(m):
            server = server_of(_waits_at(room, i, is_static), row[BATCH + i], n_steps, board_w, usd_per_hour)
            _put(row, SERVER.tpot_s, i, server)
        return
    for i in range(m):
        server = server_of(_waits_at(room, i, is_static), row[BATCH + i], n_steps, board_w, usd_per_hour)
        row[SERVER.tpot_s + i], row[SERVER.ttft_s + i] = server.tpot_s, server.ttft_s
        row[SERVER.requests_per_s + i] = server.requests_per_s
        row[SERVER.throughput_tokens_per_s + i] = server.throughput_tokens_per_s


@inlined
def _waits_at(room: Room, i: int, is_static: bool) -> Waits:
    """The waits of requests of the batch at `i`."""
    row, times, at = room.row, room.times, room.at[i]
    places, wave_s = row[WAVES.running + i], times[at + TIMES.wave_s]
    prompt_s, burst_s, decode_s = (
        times[at + WAITS.prompt_s],
        times[at + WAITS.burst_wait_s],
        times[at + WAITS.decode_s],
    )
    place_s = steady.place_wait_s(row[BATCH + i], places, prompt_s + burst_s + decode_s)
    if is_static:
        place_s = max(row[TOTAL.total_s + i] - wave_s, 0.0)
    return Waits(n_places=places, prompt_s=prompt_s, burst_wait_s=burst_s, place_wait_s=place_s, decode_s=decode_s)


@inlined
def _copy(out: Floats, place: int, first: int, row: Floats, at: int, m: int) -> None:
    """A row into a column, where that is wanted."""
    if place >= 0:
        column = out[place, first : first + m]
        for i in range(m):
            column[i] = row[at + i]


@compilable
def _fill_sizes(case: Prepared, most: int, batches: Whole, found: Found, first: int, m: int) -> None:
    """Columns of memory; equal batches share what they need, which takes a search."""
    places, columns, fit = found.places.whole, found.whole, capacity.fit_of(case.design, case.made, most)
    for at in range(len(fit)):
        if places[at] >= 0:
            columns[places[at], first : first + m] = fit[at]
    if _any(places, OF_SIZES, OF_NEEDS):
        for i in range(m):
            sizes = capacity.sizes_of(case.design, case.made, batches[i])
            for at in range(len(sizes)):
                if places[OF_SIZES + at] >= 0:
                    columns[places[OF_SIZES + at], first + i] = sizes[at]
    if _any(places, OF_NEEDS, OF_SERVED):
        for i in range(m):
            if i == 0 or batches[i] != batches[i - 1]:
                needs = capacity.needs_of(case.design, case.made, batches[i], places[CONTEXT] >= 0)
            for at in range(len(needs)):
                if places[OF_NEEDS + at] >= 0:
                    columns[places[OF_NEEDS + at], first + i] = needs[at]


@compilable
def _fill_counts(case: Prepared, row: Floats, found: Found, first: int, m: int) -> None:
    """Columns of how batches are served."""
    places, columns = found.places.whole, found.whole
    for i in range(m):
        served = served_of(case.design, row[WAVES.running + i], row[WAVES.n_waves + i])
        for at in range(len(served)):
            if places[OF_SERVED + at] >= 0:
                columns[places[OF_SERVED + at], first + i] = served[at]


@compilable
def _any(places: Whole, first: int, last: int) -> bool:
    """True where one of the columns first..last-1 is wanted."""
    largest = -1
    for at in range(first, last):
        largest = max(largest, places[at])
    return largest >= 0


@compilable
def _fill_contents(case: Prepared, found: Found, first: int, m: int) -> None:
    """Columns at the final length, which do not depend on the batch."""
    contents = contents_of(case.design, case.made)
    pool = capacity.pool_of(case.design, case.made)
    for at in range(OF_WAVE):
        place = found.places.floats[at]
        if place >= 0:
            found.floats[place, first : first + m] = contents[at] if at < OF_POOL else pool[at - OF_POOL]


@compilable
def _fill_times(room: Room, found: Found, first: int, m: int) -> None:
    """Columns of times and totals."""
    places, floats, times = found.places.floats, found.floats, room.times
    for at in range(len(TIMES)):
        if places[OF_WAVE + at] >= 0:
            column = floats[places[OF_WAVE + at], first : first + m]
            for i in range(m):
                column[i] = times[room.at[i] + at]
    for at in range(len(TOTAL) + len(SERVER)):
        _copy(floats, places[OF_TOTALS + at], first, room.row, TOTAL.total_s + at * ROW, m)


@making
def _fill_runs(case: Prepared, room: Room, found: Found, first: int, m: int, wants_spent: bool) -> None:
    """Columns that need the whole run of each point: what binds, utilisation, energy by parts, cost of a request."""
    design, row, places = case.design, room.row, found.places
    floats, codes = found.floats, found.codes
    running, run = row[WAVES.running], _run_of(case, row[WAVES.running], room.sums)
    wants_parts = wants_spent or _any(places.codes, BOUND + 1, len(places.codes))
    for i in range(m):
        batch, waves = row[BATCH + i], _waves_at(row, i)
        if not wants_parts and waves.running < batch:  # what waits for room is bound by it, whatever runs
            codes[places.codes[BOUND], first + i] = CAPACITY
            continue
        if waves.running != running:  # of batches that wait for room, as many run
            running, run = waves.running, _run_of(case, waves.running, room.sums)
        bounds = bounds_of(design, run, waves.running, batch)
        for at in range(len(places.codes)):
            if places.codes[at] >= 0:
                codes[places.codes[at], first + i] = bounds[at]
        if not wants_spent:
            continue
        smaller = run
        if waves.n_smaller > 0:
            smaller = _run_of(case, waves.running - 1.0, room.sums)
        total_s = served_s(design, batch, row[SERVER.throughput_tokens_per_s + i], row[TOTAL.total_s + i])
        spent = spent_of(design, case.made, case.terms, run, smaller, waves, batch, total_s)
        for at in range(len(spent)):
            place = places.floats[OF_SPENT + at]
            if place >= 0:
                floats[place, first + i] = spent[at]


@compilable
def _nothing_runs(found: Found, first: int, m: int) -> None:
    """Columns of points in which not one request fits."""
    places, whole, floats, codes = found.places, found.whole, found.floats, found.codes
    for at in range(OF_SERVED, OF_BATCH):
        if places.whole[at] >= 0:
            whole[places.whole[at], first : first + m] = 0 if at == RUNNING else MISSING
    for at in range(OF_WAVE, len(places.floats)):
        if places.floats[at] >= 0:
            floats[places.floats[at], first : first + m] = np.nan
    for at in range(len(places.codes)):
        if places.codes[at] >= 0:
            codes[places.codes[at], first : first + m] = CAPACITY if at == BOUND else -1


@making
def _room_for(n_keys: int) -> Room:
    """Arrays to work in; sums are kept apart for fewer than `n_keys` numbers of sequences."""
    return Room(
        sums=KnownSums([NO_SUMS], np.zeros(n_keys, np.int8)),
        times=np.zeros(N_KEPT * N_TIMES),
        numbers=np.zeros(N_KEPT, np.int64),
        n_kept=np.zeros(1, np.int64),
        row_of=np.zeros(N_KEPT, np.int64),
        row=np.zeros(N_ROW),
        batches=np.zeros(ROW, np.int64),
        at=np.zeros(ROW, np.int64),
        at_less=np.zeros(ROW, np.int64),
    )


@making
def _fits_int64(case: Prepared, most_batch: float, wants_needs: bool) -> bool:
    """False where capacity, sizes of batches up to `most_batch` or, where wanted, their needs might not fit int64."""
    design, made = case.design, case.made
    unit, steps = float(unit_of(design)), design.output_tokens if design.load.is_paged else 1
    largest = float(max(made.final_bits, made.sum_of_own_bits if capacity.counts_mean(design) else 0))
    for size in made.sizes:
        largest = max(largest, float(size.own) + float(size.shared))
    free = abs(float(capacity.free_bytes(design))) * unit  # a search for the longest context may need twice as much
    # bits of a whole batch are counted for its needs alone; else those of requests that fit
    needed, share = largest * (float(most_batch) if wants_needs else 1.0), design.device.usable_frac
    sizes = float(most_batch) * max(largest / unit, unit)
    if design.memory.is_server:  # the device of which a small share holds the batch
        share *= design.memory.share * design.memory.share_of_free
    fits = free < WIDE and free * steps < 2 * WIDE and needed < 2 * WIDE and needed < unit * share * WIDE
    return fits and sizes < WIDE


class Wanted(NamedTuple):
    """Groups of columns of which one is filled, at least."""

    contents: bool
    sizes: bool
    needs: bool
    counts: bool
    server: bool
    costs: bool
    spent: bool
    runs: bool


@compilable
def _wanted_of(places: Places) -> Wanted:
    """The groups of the columns that have places."""
    whole, floats = places.whole, places.floats
    spent = _any(floats, OF_SPENT, len(floats))
    return Wanted(
        contents=_any(floats, 0, OF_WAVE),
        sizes=_any(whole, 0, OF_SERVED),
        needs=_any(whole, OF_NEEDS, OF_SERVED),
        counts=_any(whole, OF_SERVED, OF_BATCH),
        server=spent or _any(floats, OF_SERVER, OF_ALONE),
        costs=spent or _any(floats, OF_COSTS, OF_ALONE),
        spent=spent,
        runs=spent or _any(places.codes, 0, len(places.codes)),
    )


@compilable
def _fill_memory(case: Prepared, most: int, batches: Whole, found: Found, first: int, wants: Wanted) -> None:
    """Columns that are there whether or not a request fits."""
    m = len(batches)
    if wants.sizes:
        _fill_sizes(case, most, batches, found, first, m)
    place = found.places.whole[OF_BATCH]
    if place >= 0:
        for i in range(m):
            found.whole[place, first + i] = batches[i]
    if wants.contents:
        _fill_contents(case, found, first, m)


@compilable
def _fill_served(case: Prepared, most: int, room: Room, found: Found, first: int, m: int, wants: Wanted) -> None:
    """Columns of batches of which at least one request fits."""
    for i in range(m):
        room.row[BATCH + i] = room.batches[i]
    _fill_waves(room, m, float(most), case, wants.server)
    _fill_totals(room, m, case.design)
    if wants.server:
        _fill_servers(room, m, case.design, wants.costs)
    _fill_times(room, found, first, m)
    if wants.counts:
        _fill_counts(case, room.row, found, first, m)
    place = found.places.floats[OF_ALONE]
    if place >= 0:
        found.floats[place, first : first + m] = one_prompt_s(case.design, case.terms)
    if wants.runs:
        _fill_runs(case, room, found, first, m, wants.spent)


def evaluate_points(
    points: PointRuns, tables: DesignTables, n_keys: int, found: Found, state: States, sieve: Sieve
) -> None:
    """Columns of the runs whose `state` is FEASIBLE on entry; the state of each is told.

    A batch that is `OPEN` becomes as many as fit. `n_keys` is more than any number of sequences on which sums depend
    one by one. Where `sieve` sifts, the columns are those of one run, from which it keeps what no rival beats.
    """
    n_keys = min(n_keys, MAX_KEYS)
    room, wants = _room_for(n_keys), _wanted_of(found.places)
    first, last, exact, known_case = 0, -1, False, False
    found.codes[:, :] = -1
    for r in range(len(points.case)):
        batches = points.batches[points.begin[r] : points.end[r]]
        m, begin = len(batches), first
        first += 0 if sieve.sifts else m
        if state[r] != FEASIBLE or m == 0:
            continue
        same = last >= 0 and points.case[r] == points.case[last]
        same = same and points.n_input[r] == points.n_input[last] and points.n_output[r] == points.n_output[last]
        if not same or points.device[r] != points.device[last]:
            at = points.case[r]
            start, end = tables.ends[at], tables.ends[at + 1]
            design = Design(
                tensors=tables.tensors[start[0] : end[0]],
                layers=tables.layers[start[1] : end[1]],
                kernels=tables.kernels[start[2] : end[2]],
                products=tables.products[start[3] : end[3]],
                exchanges=tables.exchanges[start[4] : end[4]],
                model=tables.models[at],
                policy=tables.policies[at],
                stack=tables.stacks[at],
                device=tables.devices[points.device[r]],
                load=tables.loads[at],
                memory=tables.memories[at],
                deployment=tables.deployments[at],
                input_tokens=points.n_input[r],
                output_tokens=points.n_output[r],
            )
            if not same:
                exact = is_exact(design)
                if exact:
                    made = generation_of(design)
                    exact = len(made.pieces) <= MAX_PIECES
            if exact:
                case = Prepared(design, made, terms_of(design, made))
                room.sums.known[:], room.n_kept[0] = 0, 0
                known_case = case.terms.same_from < n_keys
                while known_case and len(room.sums.by_n) <= case.terms.same_from:
                    room.sums.by_n.append(room.sums.by_n[0])
        last = r
        state[r] = LEFT
        if not exact or not known_case or not _fits_int64(case, batches.max(), wants.needs):
            continue
        free_bytes = capacity.free_bytes(case.design)
        most = capacity.max_batch(case.design, case.made, free_bytes * unit_of(case.design))
        for i in range(m):
            room.batches[i] = full_batch(case.design, most) if batches[i] == OPEN else batches[i]
        if not _fits_int64(case, room.batches[:m].max(), wants.needs):
            continue
        _fill_memory(case, most, room.batches[:m], found, begin, wants)
        if most > 0:
            state[r] = FEASIBLE
            if not sieve.sifts or sieve.competes[r]:
                _fill_served(case, most, room, found, begin, m, wants)
                if sieve.sifts:
                    sift(sieve, found.whole, found.floats, r, m)
        else:
            state[r] = WEIGHTS_TOO_LARGE if free_bytes < 0 else REQUEST_TOO_LARGE
            if not sieve.sifts:
                _nothing_runs(found, begin, m)


@cache
def _compiled() -> Callable[..., Any]:
    registered()
    return sequential(evaluate_points, sources=sources())


_KINDS = (np.int64, np.float64, np.int8)


def found_for(names: Collection[str], n_points: int) -> Found:
    """Columns to fill, those of `names`."""
    places: list[Whole] = []
    arrays: list[NDArray[Any]] = []
    for kind, numbers in zip((WHOLE, FLOAT, CODE), _KINDS, strict=True):
        kept = [name for name in kind if name in names]
        places.append(np.array([kept.index(name) if name in kept else -1 for name in kind], np.int64))
        arrays.append(np.empty((len(kept), n_points), numbers))
    return Found(Places(*places), *arrays)  # type: ignore[call-arg]


def columns_of(found: Found) -> dict[str, Any]:
    """The columns that are filled, by name."""
    arrays: tuple[NDArray[Any], ...] = (found.whole, found.floats, found.codes)
    kinds = zip((WHOLE, FLOAT, CODE), found.places, arrays, strict=True)
    return {
        name: column[place]
        for names, places, column in kinds
        for name, place in zip(names, places, strict=True)
        if place >= 0
    }


def evaluate(
    points: PointRuns, tables: DesignTables, n_keys: int, found: Found, state: States, sieve: Sieve = ALL
) -> None:
    """`evaluate_points`, compiled; the code is kept on disk for the formulas as they are now."""
    _compiled()(points, tables, n_keys, found, state, sieve)


#: columns of all numbers, each in a row of its own
_ALL = found_for(COLUMNS, 1).places


def numbers_of(tables: DesignTables, n_input: int, n_output: int, batch: int) -> dict[str, Any] | None:
    """All numbers of one point; None where nothing fits, or int64 might not hold what does."""
    results = Found(_ALL, *(np.empty((places.max() + 1, 1), kind) for places, kind in zip(_ALL, _KINDS, strict=True)))  # type: ignore[call-arg]
    state, first = np.zeros(1, np.int8), np.zeros(1, np.int64)
    inputs, outputs, batches = (np.array([number]) for number in (n_input, n_output, batch))
    runs = PointRuns(
        case=first, device=first, n_input=inputs, n_output=outputs, begin=first, end=first + 1, batches=batches
    )
    evaluate(runs, tables, n_keys_of(tables), results, state)
    if state[0] != FEASIBLE:
        return None
    numbers = {name: known(column.item()) for name, column in columns_of(results).items()}
    return {**numbers, **{name: BOUNDS[numbers[name]] for name in CODE}}


def n_keys_of(tables: DesignTables) -> int:
    """More than any number of sequences on which sums depend one by one."""
    return 2 + max(int(tables.stacks["n_cores"].max()), int(tables.devices["token_cores"].max()), 2)
