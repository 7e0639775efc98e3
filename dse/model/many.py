"""Many design points, compiled: the functions of the model inside one loop, into columns.

Points that follow each other share what they have in common: the amounts of a generation while case and lengths stay,
what a device makes of them while it stays, and in runs of up to `ROW` points all but the batch. The rows of a run are
stretches of one array, so that each loop over it is compiled into vector instructions.
"""

from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse.core.compiling import compilable, inlined, making, registered, sources
from dse.model import capacity
from dse.model.attention import NO_SUMS, KnownSums, Sums, known_sums
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
from dse.model.formulas import deployment
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
from dse.model.server import Cycle, ServerResults, cycle_of, pass_of, server_of, static_pass
from dse.model.step import (
    Given,
    Run,
    SharedGiven,
    Terms,
    Wave,
    cached_run,
    exchange_s,
    experts_s,
    one_prompt_s,
    product_peak,
    share_touched,
    shared_step_s,
    terms_of,
    uncached_run,
    wave_of,
    weight_read_s,
)
from kernels_ref import sequential

#: columns of whole numbers and of floats, and the states of points
Whole = NDArray[np.int64]
Floats = NDArray[np.float64]
States = NDArray[np.int8]

#: a batch that is as many requests as fit
OPEN = 0
#: points of a run at most
ROW = 512
#: where the rows of a run begin in its array, whole numbers by the names of what they hold
AT: Any = Wave._make(ROW * place for place in range(len(Wave._fields)))
N_WAVE = ROW * len(Wave._fields)
#: and those of its totals
TOTAL: Any = Totals._make(ROW * place for place in range(len(Totals._fields)))
SERVER: Any = ServerResults._make(ROW * (len(Totals._fields) + place) for place in range(len(ServerResults._fields)))
N_TOTAL = ROW * (len(Totals._fields) + len(ServerResults._fields))


class RunRows(NamedTuple):
    """Rows of a run beside its waves."""

    batch: int
    running: int
    #: those that pass a device together
    together: int
    n_waves: int
    n_full: int
    n_smaller: int
    touched: int
    read_s: int
    prompt_read_s: int
    experts_s: int
    prompt_experts_s: int
    exchange_s: int
    prompt_exchange_s: int
    #: tokens of the prompts
    prompt_tokens: int
    #: of a server: its cycle, and the times given of its steps with prompts; exchanges also of the requests that decode
    #: alone, as of a step and as of prompts
    decoding: int
    prompts: int
    own_steps: int
    prompt_steps: int
    all_steps: int
    shared_tokens: int
    shared_read_s: int
    shared_apart_s: int
    shared_exchange_s: int
    decoding_exchange_s: int
    decoding_prompt_exchange_s: int
    prompt_step_s: int


GIVEN = RunRows._make(N_WAVE + ROW * place for place in range(len(RunRows._fields)))
N_ROW = N_WAVE + ROW * len(RunRows._fields)
#: and rows of times of a wave, of a server's cycle, and after the last
OF_TIMES, OF_CYCLE, OF_GIVEN = GIVEN.touched // ROW, GIVEN.decoding // ROW, N_ROW // ROW
#: numbers of sequences at most for which sums are kept apart
MAX_KEYS = 2**14

#: columns by kind, each a result of one name; a whole number that is missing is MISSING, another nan, a code -1
WHOLE = (*capacity.Capacity._fields, *capacity.Sizes._fields, *capacity.Needs._fields, *Served._fields)
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
OF_POOL = len(Contents._fields)
OF_WAVE = OF_POOL + len(capacity.Pool._fields)
OF_TOTALS = OF_WAVE + len(Wave._fields)
OF_SERVER = OF_TOTALS + len(Totals._fields)
OF_ALONE = OF_SERVER + len(ServerResults._fields)
OF_SPENT = OF_ALONE + 1
#: the column that takes longest
CONTEXT = WHOLE.index("max_context_tokens")
#: those that are not missing where nothing runs
RUNNING, BOUND = WHOLE.index("running_batch"), CODE.index("bound")

#: states of a point; LEFT: its whole numbers may not fit int64
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


class PointColumns(NamedTuple):
    """Columns, one value a point: rows of cases and of devices, lengths, batch."""

    case: Whole
    device: Whole
    n_input: Whole
    n_output: Whole
    batch: Whole


class Prepared(NamedTuple):
    """A design with what follows from it, whatever the batch."""

    design: Design
    made: Generation
    terms: Terms


class Room(NamedTuple):
    """Arrays to work in: the rows of a run, of the waves of one sequence less, its totals, and the sums of a sequence
    by the number that run together, where `known`."""

    row: Floats
    less: Floats
    totals: Floats
    sums: KnownSums


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
            for found, part in zip(rows, design[: len(_ROWS)], strict=True):
                found.extend(part)  # type: ignore[arg-type]
        ends.append([len(found) for found in rows])

    def single(name: str, record: type[Record]) -> NDArray[np.void]:
        kind, absent = dtype_of(record), (0,) * len(record._fields)
        return np.array([getattr(design, name) if design else absent for design in designs], kind)

    tensors, layers, kernels, products, exchanges = (
        np.array(found, dtype_of(record)) for found, record in zip(rows, _ROWS, strict=True)
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
def _put(row: Floats, i: int, wave: Wave) -> None:
    """A wave into its place of the rows of a run."""
    row[AT.linear_compute_s + i] = wave.linear_compute_s
    row[AT.linear_s + i] = wave.linear_s
    row[AT.attention_s + i] = wave.attention_s
    row[AT.quantize_s + i] = wave.quantize_s
    row[AT.dequantize_s + i] = wave.dequantize_s
    row[AT.collective_s + i] = wave.collective_s
    row[AT.host_s + i] = wave.host_s
    row[AT.power_s + i] = wave.power_s
    row[AT.decode_step_s + i] = wave.decode_step_s
    row[AT.prompt_products_s + i] = wave.prompt_products_s
    row[AT.prompt_matrix_s + i] = wave.prompt_matrix_s
    row[AT.prompt_compute_s + i] = wave.prompt_compute_s
    row[AT.prompt_quantize_s + i] = wave.prompt_quantize_s
    row[AT.prompt_collective_s + i] = wave.prompt_collective_s
    row[AT.prompt_power_s + i] = wave.prompt_power_s
    row[AT.prefill_s + i] = wave.prefill_s
    row[AT.wave_s + i] = wave.wave_s


@inlined
def _fill_wave(row: Floats, i: int, sums: Sums, peak: float, terms: Terms, has_gemm: int, quantises: int) -> None:
    """The wave at `i`, whose sequences have these `sums` each."""
    given = Given(
        read_s=row[GIVEN.read_s + i],
        prompt_read_s=row[GIVEN.prompt_read_s + i],
        experts_s=row[GIVEN.experts_s + i],
        prompt_experts_s=row[GIVEN.prompt_experts_s + i],
        exchange_s=row[GIVEN.exchange_s + i],
        prompt_exchange_s=row[GIVEN.prompt_exchange_s + i],
    )
    _put(row, i, wave_of(row[GIVEN.together + i], given, sums, peak, terms, has_gemm, quantises))


@compilable
def _fill_alike(row: Floats, m: int, one: Sums, peak: float, terms: Terms) -> None:
    """Waves that share the sums of a sequence: a loop for each kind of model, in which nothing is decided by point."""
    if terms.has_gemm:
        if terms.quantises:
            for i in range(m):
                _fill_wave(row, i, one, peak, terms, 1, 1)
        else:
            for i in range(m):
                _fill_wave(row, i, one, peak, terms, 1, 0)
    elif terms.quantises:
        for i in range(m):
            _fill_wave(row, i, one, peak, terms, 0, 1)
    else:
        for i in range(m):
            _fill_wave(row, i, one, peak, terms, 0, 0)


@compilable
def _fill_exchanges(row: Floats, m: int, exchanges: Sequence[Exchange], tokens: int, out: int, is_prompt: int) -> None:
    """Exchange times (`exchanges_s`) of passes over the tokens in the row at `tokens`, into that at `out`."""
    for i in range(m):
        row[out + i] = 0.0
    for e in range(len(exchanges)):
        one = exchanges[e]
        exchange = Exchange(  # out of the array, so that the loops become vectors
            n_per_pass=one.n_per_pass,
            token_bytes=one.token_bytes,
            in_prompt=one.in_prompt,
            start_s=one.start_s,
            bytes_per_s=one.bytes_per_s,
            chunk_share=one.chunk_share,
            direct_start_s=one.direct_start_s,
            direct_bytes_per_s=one.direct_bytes_per_s,
            split_bytes_per_s=one.split_bytes_per_s,
        )
        if exchange.in_prompt or not is_prompt:
            for i in range(m):
                row[out + i] += exchange_s(row[tokens + i], exchange)


@compilable
def _n_before_equal(row: Floats, m: int) -> int:
    """Rows up to the first of those at the end that all run as many sequences: what follows from that is the same."""
    n = m
    while n > 1 and row[GIVEN.together + n - 1] == row[GIVEN.together + n - 2]:
        n -= 1
    return n


@compilable
def _repeat(row: Floats, first: int, last: int, n: int, m: int) -> None:
    """The values before place `n` of rows first..last-1 also at n..m-1."""
    if n < m:
        for at in range(first, last):
            row[at * ROW + n : at * ROW + m] = row[at * ROW + n - 1]


@compilable
def _fill_waves(row: Floats, m: int, case: Prepared, room: Room) -> None:
    """All times of the waves of the sequences in `row`: batches that wait for room share theirs."""
    design, terms, running = case.design, case.terms, GIVEN.together
    n_groups, n_in_flight = design.deployment.n_groups, design.deployment.n_in_flight
    for i in range(m):
        row[running + i] = deployment.micro_batch(row[GIVEN.running + i], n_groups, n_in_flight)
    n = _n_before_equal(row, m)
    if design.load.has_cache == 0:
        wave = uncached_run(design, terms, int(row[running])).wave
        for i in range(n):
            if i > 0 and row[running + i] != row[running + i - 1]:
                wave = uncached_run(design, terms, int(row[running + i])).wave
            _put(row, i, wave)
    else:
        _fill_cached(row, n, case, room)
    _repeat(row, 0, len(AT), n, m)
    _repeat(row, OF_TIMES, OF_CYCLE, n, m)


@compilable
def _fill_cached(row: Floats, m: int, case: Prepared, room: Room) -> None:
    """All times of waves with a KV cache."""
    design, terms, running = case.design, case.terms, GIVEN.together
    prefix, own = terms.prompt.prefix_tokens, terms.input_tokens - terms.prompt.prefix_tokens
    for i in range(m):
        row[GIVEN.read_s + i] = terms.weight_read_s
        row[GIVEN.prompt_read_s + i] = terms.weight_read_s
        row[GIVEN.experts_s + i] = row[GIVEN.prompt_experts_s + i] = 0.0
        row[GIVEN.prompt_tokens + i] = prefix + row[running + i] * own
    if terms.has_experts:
        for i in range(m):
            n = int(row[running + i])
            touched = share_touched(design, n)
            row[GIVEN.touched + i] = touched
            row[GIVEN.read_s + i] = weight_read_s(design, touched)
            of_prompts = share_touched(design, prefix + n * own)
            row[GIVEN.prompt_read_s + i] = weight_read_s(design, of_prompts)
            row[GIVEN.experts_s + i] = experts_s(design, float(n), touched)
            row[GIVEN.prompt_experts_s + i] = experts_s(design, float(prefix + n * own), of_prompts)
    _fill_exchanges(row, m, design.exchanges, running, GIVEN.exchange_s, 0)
    _fill_exchanges(row, m, design.exchanges, GIVEN.prompt_tokens, GIVEN.prompt_exchange_s, 1)
    n_few, same_from = 0, terms.same_from
    if same_from > 1:
        for i in range(m):
            n_few += 1 if row[running + i] < same_from else 0
    if n_few == 0:
        alike = known_sums(design, case.made, same_from, same_from, room.sums)
        _fill_alike(row, m, alike, product_peak(design, same_from), terms)
        return
    for i in range(m):
        n = min(int(row[running + i]), same_from)
        sums = known_sums(design, case.made, same_from, n, room.sums)
        _fill_wave(row, i, sums, product_peak(design, n), terms, terms.has_gemm, terms.quantises)


@compilable
def _split(row: Floats, m: int, most: float, is_replaced: int) -> int:
    """The waves of the batches in `row`; how many points have waves of one sequence less."""
    n_smaller = 0
    if is_replaced:
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
def _fill_totals(row: Floats, less: Floats, totals: Floats, m: int, design: Design) -> None:
    """Totals over all waves; `less` has those of one sequence less."""
    n_steps, n, n_waves = design.output_tokens, GIVEN.running, GIVEN.n_waves
    full, small = GIVEN.n_full, GIVEN.n_smaller
    if capacity.is_replaced(design):
        for i in range(m):
            waves = capacity.Waves(row[n + i], 0.0, row[full + i], 0.0)
            _put_totals(totals, i, totals_of(row[GIVEN.batch + i], n_steps, waves, row[AT.wave_s + i], 0.0, True))
    else:
        for i in range(m):
            waves = capacity.Waves(row[n + i], row[n_waves + i], row[full + i], row[small + i])
            _put_totals(
                totals,
                i,
                totals_of(row[GIVEN.batch + i], n_steps, waves, row[AT.wave_s + i], less[AT.wave_s + i], False),
            )


@inlined
def _put_totals(totals: Floats, i: int, found: Totals) -> None:
    """Totals into their place."""
    totals[TOTAL.total_s + i] = found.total_s
    totals[TOTAL.static_batch_tokens_per_s + i] = found.static_batch_tokens_per_s


@inlined
def _put_server(totals: Floats, i: int, found: ServerResults) -> None:
    """Results of a server into their place."""
    totals[SERVER.tpot_s + i] = found.tpot_s
    totals[SERVER.ttft_s + i] = found.ttft_s
    totals[SERVER.requests_per_s + i] = found.requests_per_s
    totals[SERVER.throughput_tokens_per_s + i] = found.throughput_tokens_per_s
    totals[SERVER.joules_per_token + i] = found.joules_per_token
    totals[SERVER.usd_per_million_tokens + i] = found.usd_per_million_tokens
    totals[SERVER.decoding_requests + i] = found.decoding_requests


@compilable
def _fill_static(row: Floats, totals: Floats, m: int, design: Design) -> None:
    """Servers that run one batch after the other."""
    n_steps, device, n = float(design.output_tokens), design.device, float(design.deployment.n_devices)
    for i in range(m):
        batch, places = row[GIVEN.batch + i], row[GIVEN.running + i]
        step_s, prefill_s, wave_s = row[AT.decode_step_s + i], row[AT.prefill_s + i], row[AT.wave_s + i]
        found = static_pass(
            row[GIVEN.together + i], places, step_s, prefill_s, wave_s, totals[TOTAL.total_s + i], n_steps
        )
        _put_server(totals, i, server_of(found, batch, n_steps, n * device.board_power_w, n * device.usd_per_hour))


@compilable
def _fill_cycles(row: Floats, m: int, design: Design, terms: Terms) -> None:
    """Steps of the servers in `row`, and what is given of those with prompts."""
    n_steps, own = float(terms.output_tokens), float(terms.input_tokens - terms.prompt.prefix_tokens)
    batching, step_tokens = design.load.batching, float(design.load.step_tokens)
    for i in range(m):
        cycle = cycle_of(row[GIVEN.together + i], own, n_steps, step_tokens, batching, 0)
        row[GIVEN.decoding + i] = cycle.decoding
        row[GIVEN.prompts + i] = cycle.prompts
        row[GIVEN.own_steps + i] = cycle.own_steps
        row[GIVEN.prompt_steps + i] = cycle.prompt_steps
        row[GIVEN.all_steps + i] = cycle.all_steps
        row[GIVEN.shared_tokens + i] = cycle.n_tokens
        row[GIVEN.shared_read_s + i] = terms.weight_read_s
        row[GIVEN.shared_apart_s + i] = 0.0
    if terms.has_experts:
        for i in range(m):
            n_tokens = row[GIVEN.shared_tokens + i]
            touched = share_touched(design, int(n_tokens))
            row[GIVEN.shared_read_s + i] = weight_read_s(design, touched)
            row[GIVEN.shared_apart_s + i] = experts_s(design, n_tokens, touched)
    _fill_exchanges(row, m, design.exchanges, GIVEN.shared_tokens, GIVEN.shared_exchange_s, 1)
    if len(design.exchanges) > 0:
        _fill_exchanges(row, m, design.exchanges, GIVEN.decoding, GIVEN.decoding_exchange_s, 0)
        _fill_exchanges(row, m, design.exchanges, GIVEN.decoding, GIVEN.decoding_prompt_exchange_s, 1)
        for i in range(m):
            more_s = row[GIVEN.decoding_exchange_s + i] - row[GIVEN.decoding_prompt_exchange_s + i]
            row[GIVEN.shared_exchange_s + i] += more_s if row[GIVEN.decoding + i] > 0.0 else 0.0


@inlined
def _fill_prompt_step(
    row: Floats, i: int, one: Sums, terms: Terms, blocks_s: float, has_gemm: int, quantises: int
) -> None:
    """A step with prompts of the server at `i`, whose requests have these `sums` each."""
    given = SharedGiven(
        read_s=row[GIVEN.shared_read_s + i],
        apart_s=row[GIVEN.shared_apart_s + i],
        exchange_s=row[GIVEN.shared_exchange_s + i],
        n_tokens=row[GIVEN.shared_tokens + i],
    )
    row[GIVEN.prompt_step_s + i] = shared_step_s(
        row[GIVEN.decoding + i], row[GIVEN.prompts + i], given, one, terms, blocks_s, has_gemm, quantises
    )


@compilable
def _fill_prompt_steps(row: Floats, m: int, case: Prepared, room: Room) -> None:
    """Steps with prompts of servers: a loop for each kind, in which nothing is decided by point."""
    design, terms, blocks_s = case.design, case.terms, case.design.stack.host_blocks_s
    same_from = terms.same_from
    n_few = 0
    if same_from > 1:
        for i in range(m):
            n_few += 1 if row[GIVEN.together + i] < same_from else 0
    if n_few:
        for i in range(m):
            n = min(int(row[GIVEN.together + i]), same_from)
            one = known_sums(design, case.made, same_from, n, room.sums)
            _fill_prompt_step(row, i, one, terms, blocks_s, terms.has_gemm, terms.quantises)
        return
    one = known_sums(design, case.made, same_from, same_from, room.sums)
    if terms.has_gemm and terms.quantises:
        for i in range(m):
            _fill_prompt_step(row, i, one, terms, blocks_s, 1, 1)
    elif terms.has_gemm:
        for i in range(m):
            _fill_prompt_step(row, i, one, terms, blocks_s, 1, 0)
    else:
        for i in range(m):
            _fill_prompt_step(row, i, one, terms, blocks_s, 0, 1)


@compilable
def _fill_servers(row: Floats, totals: Floats, m: int, case: Prepared, room: Room) -> None:
    """Servers of the batches in `row`: those that run as many requests share their steps."""
    design, stack, load, device = case.design, case.design.stack, case.design.load, case.design.device
    if load.batching == STATIC:
        _fill_static(row, totals, m, design)
        return
    n = _n_before_equal(row, m)
    _fill_cycles(row, n, design, case.terms)
    _fill_prompt_steps(row, n, case, room)
    _repeat(row, OF_CYCLE, OF_GIVEN, n, m)
    n_steps, own_start_s, rounds = (
        float(design.output_tokens),
        stack.host_prompt_s - stack.host_blocks_s,
        float(load.rounds),
    )
    n_devices, in_step = float(design.deployment.n_devices), stack.rounds_in_step
    board_w, usd_per_hour = n_devices * device.board_power_w, n_devices * device.usd_per_hour
    for i in range(m):
        cycle = Cycle(
            decoding=row[GIVEN.decoding + i],
            prompts=row[GIVEN.prompts + i],
            own_steps=row[GIVEN.own_steps + i],
            prompt_steps=row[GIVEN.prompt_steps + i],
            all_steps=row[GIVEN.all_steps + i],
            n_tokens=row[GIVEN.shared_tokens + i],
            mean_tokens=row[GIVEN.shared_tokens + i],
        )
        batch, step_s, prompt_step_s = row[GIVEN.batch + i], row[AT.decode_step_s + i], row[GIVEN.prompt_step_s + i]
        found = pass_of(
            row[GIVEN.together + i],
            batch,
            row[GIVEN.running + i],
            cycle,
            step_s,
            prompt_step_s,
            n_steps,
            own_start_s,
            in_step,
            rounds,
        )
        _put_server(totals, i, server_of(found, batch, n_steps, board_w, usd_per_hour))


@compilable
def _fill_run(m: int, most: float, case: Prepared, room: Room, wants_server: bool) -> None:
    """Waves, totals and, where wanted, servers of the batches in the rows of `room`, of which `most` fit."""
    row, less = room.row, room.less
    n_smaller = _split(row, m, most, capacity.is_replaced(case.design))
    _fill_waves(row, m, case, room)
    if n_smaller:
        for i in range(m):
            less[GIVEN.running + i] = row[GIVEN.running + i] - (1.0 if row[GIVEN.n_smaller + i] > 0 else 0.0)
        _fill_waves(less, m, case, room)
        _fill_totals(row, less, room.totals, m, case.design)
    else:
        _fill_totals(row, row, room.totals, m, case.design)
    if wants_server:
        _fill_servers(row, room.totals, m, case, room)


@compilable
def _wave_at(row: Floats, i: int) -> Wave:
    return Wave(
        linear_compute_s=row[AT.linear_compute_s + i],
        linear_s=row[AT.linear_s + i],
        attention_s=row[AT.attention_s + i],
        quantize_s=row[AT.quantize_s + i],
        dequantize_s=row[AT.dequantize_s + i],
        collective_s=row[AT.collective_s + i],
        host_s=row[AT.host_s + i],
        power_s=row[AT.power_s + i],
        decode_step_s=row[AT.decode_step_s + i],
        prompt_products_s=row[AT.prompt_products_s + i],
        prompt_matrix_s=row[AT.prompt_matrix_s + i],
        prompt_compute_s=row[AT.prompt_compute_s + i],
        prompt_quantize_s=row[AT.prompt_quantize_s + i],
        prompt_collective_s=row[AT.prompt_collective_s + i],
        prompt_power_s=row[AT.prompt_power_s + i],
        prefill_s=row[AT.prefill_s + i],
        wave_s=row[AT.wave_s + i],
    )


@making
def _run_at(case: Prepared, row: Floats, i: int, by_n: list[Sums]) -> Run:
    """The run of the point at `i`, from its wave."""
    design, terms, n = case.design, case.terms, int(row[GIVEN.together + i])
    if design.load.has_cache == 0:
        return uncached_run(design, terms, n)
    touched = row[GIVEN.touched + i] if terms.has_experts else 1.0
    return cached_run(
        design,
        terms,
        n,
        _wave_at(row, i),
        by_n[min(n, terms.same_from)],
        row[GIVEN.read_s + i],
        row[GIVEN.prompt_read_s + i],
        touched,
    )


@inlined
def _copy(out: Floats, place: int, first: int, row: Floats, at: int, m: int) -> None:
    """A row into a column, where that is wanted."""
    if place >= 0:
        column = out[place, first : first + m]
        for i in range(m):
            column[i] = row[at + i]


@compilable
def _fill_sizes(case: Prepared, most: int, batch: Whole, found: Found, first: int, m: int) -> None:
    """Columns of memory; equal batches share what they need, which takes a search."""
    places, columns, fit = found.places.whole, found.whole, capacity.fit_of(case.design, case.made, most)
    for at in range(len(fit)):
        if places[at] >= 0:
            columns[places[at], first : first + m] = fit[at]
    if _any(places, OF_SIZES, OF_NEEDS):
        for i in range(first, first + m):
            sizes = capacity.sizes_of(case.design, case.made, batch[i])
            for at in range(len(sizes)):
                if places[OF_SIZES + at] >= 0:
                    columns[places[OF_SIZES + at], i] = sizes[at]
    if _any(places, OF_NEEDS, OF_SERVED):
        for i in range(first, first + m):
            if i == first or batch[i] != batch[i - 1]:
                needs = capacity.needs_of(case.design, case.made, batch[i], places[CONTEXT] >= 0)
            for at in range(len(needs)):
                if places[OF_NEEDS + at] >= 0:
                    columns[places[OF_NEEDS + at], i] = needs[at]


@compilable
def _fill_counts(case: Prepared, row: Floats, found: Found, first: int, m: int) -> None:
    """Columns of how batches are served."""
    places, columns, is_replaced = found.places.whole, found.whole, capacity.is_replaced(case.design)
    for i in range(m):
        n_waves = 0.0 if is_replaced else row[GIVEN.n_waves + i]
        served = served_of(case.design, row[GIVEN.running + i], n_waves)
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
    places, floats = found.places.floats, found.floats
    for at in range(len(AT)):
        _copy(floats, places[OF_WAVE + at], first, room.row, at * ROW, m)
    for at in range(len(TOTAL)):
        _copy(floats, places[OF_TOTALS + at], first, room.totals, at * ROW, m)
    for at in range(len(SERVER)):  # of what is not wanted nothing is copied
        _copy(floats, places[OF_SERVER + at], first, room.totals, (len(TOTAL) + at) * ROW, m)


@making
def _fill_runs(case: Prepared, room: Room, found: Found, first: int, m: int, wants_spent: bool) -> None:
    """Columns that need the whole run of each point: what binds, utilisation, energy by parts, cost of a request."""
    design, made, terms, row = case.design, case.made, case.terms, room.row
    places, floats, codes = found.places, found.floats, found.codes
    run = _run_at(case, row, 0, room.sums.by_n)
    wants_parts = wants_spent or _any(places.codes, BOUND + 1, len(places.codes))
    for i in range(m):
        batch = row[GIVEN.batch + i]
        if not wants_parts and row[GIVEN.running + i] < batch:  # what waits for room is bound by it, whatever runs
            codes[places.codes[BOUND], first + i] = CAPACITY
            continue
        if row[GIVEN.together + i] != run.n:  # of batches that wait for room, as many run
            run = _run_at(case, row, i, room.sums.by_n)
        bounds = bounds_of(design, run, row[GIVEN.running + i], batch)
        for at in range(len(places.codes)):
            if places.codes[at] >= 0:
                codes[places.codes[at], first + i] = bounds[at]
        if not wants_spent:
            continue
        waves = capacity.Waves(
            row[GIVEN.running + i], row[GIVEN.n_waves + i], row[GIVEN.n_full + i], row[GIVEN.n_smaller + i]
        )
        smaller = run
        if waves.n_smaller > 0:
            smaller = _run_at(case, room.less, i, room.sums.by_n)
        rate = room.totals[SERVER.throughput_tokens_per_s + i]
        total_s = served_s(design, batch, rate, room.totals[TOTAL.total_s + i])
        spent = spent_of(design, made, terms, run, smaller, waves, batch, total_s)
        for at in range(len(spent)):
            place = places.floats[OF_SPENT + at]
            if place >= 0:
                floats[place, first + i] = spent[at]


@compilable
def _nothing_runs(found: Found, first: int, m: int) -> None:
    """Columns of points in which not one request fits."""
    places, whole, floats, codes = found.places, found.whole, found.floats, found.codes
    for at in range(OF_SERVED, len(places.whole)):
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
    sums = KnownSums([NO_SUMS], np.zeros(n_keys, np.int8))
    return Room(np.zeros(N_ROW), np.zeros(N_ROW), np.zeros(N_TOTAL), sums)


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


def evaluate_points(points: PointColumns, tables: DesignTables, n_keys: int, found: Found, state: States) -> None:
    """Columns of the points whose `state` is FEASIBLE on entry; the state of each is told.

    A batch that is `OPEN` becomes as many as fit. `n_keys` is more than any number of sequences on which sums depend
    one by one.
    """
    n, n_keys = len(points.case), min(n_keys, MAX_KEYS)
    room = _room_for(n_keys)
    begin, last, last_device, exact, known_case = 0, -1, -1, False, False
    for column in range(len(found.codes)):
        found.codes[column, :] = -1
    places = found.places
    wants_contents, wants_spent = _any(places.floats, 0, OF_WAVE), _any(places.floats, OF_SPENT, len(places.floats))
    wants_runs = wants_spent or _any(places.codes, 0, len(places.codes))
    wants_server = wants_spent or _any(places.floats, OF_SERVER, OF_ALONE)
    wants_sizes, wants_counts = _any(places.whole, 0, OF_SERVED), _any(places.whole, OF_SERVED, len(places.whole))
    wants_needs = _any(places.whole, OF_NEEDS, OF_SERVED)
    while begin < n:
        first, at, device = begin, points.case[begin], points.device[begin]
        n_input, n_output, most_batch = points.n_input[begin], points.n_output[begin], points.batch[begin]
        while (
            begin < n
            and begin - first < ROW
            and points.case[begin] == at
            and points.device[begin] == device
            and points.n_input[begin] == n_input
            and points.n_output[begin] == n_output
        ):
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
                tensors=tables.tensors[start[0] : end[0]],
                layers=tables.layers[start[1] : end[1]],
                kernels=tables.kernels[start[2] : end[2]],
                products=tables.products[start[3] : end[3]],
                exchanges=tables.exchanges[start[4] : end[4]],
                model=tables.models[at],
                policy=tables.policies[at],
                stack=tables.stacks[at],
                device=tables.devices[device],
                load=tables.loads[at],
                memory=tables.memories[at],
                deployment=tables.deployments[at],
                input_tokens=n_input,
                output_tokens=n_output,
            )
            if not same:
                exact = is_exact(design)
                if exact:
                    made = generation_of(design)
                    exact = len(made.pieces) <= MAX_PIECES
            if exact:
                case = Prepared(design, made, terms_of(design, made))
                room.sums.known[:] = 0
                known_case = case.terms.same_from < n_keys
        last, last_device = first, device
        if not exact or not known_case or not _fits_int64(case, most_batch, wants_needs):
            state[first:begin] = LEFT
            continue
        free_bytes = capacity.free_bytes(case.design)
        most = capacity.max_batch(case.design, case.made, free_bytes * unit_of(case.design))
        for i in range(first, begin):
            if points.batch[i] == OPEN:
                points.batch[i] = full_batch(case.design, most)
        if not _fits_int64(case, points.batch[first:begin].max(), wants_needs):
            state[first:begin] = LEFT
            continue
        while len(room.sums.by_n) <= case.terms.same_from:
            room.sums.by_n.append(room.sums.by_n[0])
        if wants_sizes:
            _fill_sizes(case, most, points.batch, found, first, m)
        if wants_contents:
            _fill_contents(case, found, first, m)
        if most == 0:
            state[first:begin] = WEIGHTS_TOO_LARGE if free_bytes < 0 else REQUEST_TOO_LARGE
            _nothing_runs(found, first, m)
            continue
        for i in range(m):
            room.row[GIVEN.batch + i] = points.batch[first + i]
        _fill_run(m, float(most), case, room, wants_server)
        _fill_times(room, found, first, m)
        if wants_counts:
            _fill_counts(case, room.row, found, first, m)
        if places.floats[OF_ALONE] >= 0:
            found.floats[places.floats[OF_ALONE], first : first + m] = one_prompt_s(case.design, case.terms)
        if wants_runs:
            _fill_runs(case, room, found, first, m, wants_spent)


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


def evaluate(*arguments: Any) -> None:
    """`evaluate_points`, compiled; the code is kept on disk for the formulas as they are now."""
    _compiled()(*arguments)


#: columns of all numbers, each in a row of its own
_ALL = found_for(COLUMNS, 1).places


def numbers_of(tables: DesignTables, n_input: int, n_output: int, batch: int) -> dict[str, Any] | None:
    """All numbers of one point; None where nothing fits, or int64 might not hold what does."""
    found = Found(_ALL, *(np.empty((places.max() + 1, 1), kind) for places, kind in zip(_ALL, _KINDS, strict=True)))  # type: ignore[call-arg]
    state, first = np.zeros(1, np.int8), np.zeros(1, np.int64)
    lengths = (np.array([number]) for number in (n_input, n_output, batch))
    evaluate(PointColumns(first, first, *lengths), tables, n_keys_of(tables), found, state)  # type: ignore[call-arg]
    if state[0] != FEASIBLE:
        return None
    numbers = {name: known(column.item()) for name, column in columns_of(found).items()}
    return {**numbers, **{name: BOUNDS[numbers[name]] for name in CODE}}


def n_keys_of(tables: DesignTables) -> int:
    """More than any number of sequences on which sums depend one by one."""
    return 2 + max(int(tables.stacks["n_cores"].max()), int(tables.devices["token_cores"].max()), 2)
