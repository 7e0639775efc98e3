"""A server at a rate, in closed form: formulas by hand, and beside the simulator."""

import numpy as np
import pytest

from cases import quick_first
from dse.core.errors import InputError
from dse.model.engine import evaluate
from dse.model.formulas import steady
from dse.model.point import Point
from dse.serving import simulator, steady_state
from dse.serving import trace_tables as traces
from dse.serving.at_rate import at_rate, waits_at
from dse.serving.requests import Lengths, Requests
from dse.serving.steady_state import Scheduler
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import build

DEVICE, WORK = catalog.device("a100-80gb"), Workload(batch=256, admission="paged")
KV = build("llama2-7b", "fp16")


def test_formulas_by_hand():
    # M/D/1 of 2 a second at 0.25 s: 2 * 0.0625 / (2 * 0.5) = 0.125 s; and half of a step of 30 ms
    assert steady.prompt_queue_s(2.0, 0.25, 0.0625, 0.030) == pytest.approx(0.125 + 0.015)
    # M/M/1 at the same rate waits twice as long: E[p^2] = 2 E[p]^2
    assert steady.prompt_queue_s(2.0, 0.25, 0.125, 0.0) == pytest.approx(0.25)
    # M/M/1, 2 a second of 4: its place is taken and none waits for 0.5 * 0.5; the wait is 0.5 / (4 - 2); M/D/1 half
    assert steady.place_queue_s(2.0, 4.0, 0.25, 1.0) == pytest.approx(0.25)
    assert steady.place_queue_s(2.0, 4.0, 0.25, 0.0) == pytest.approx(0.125)


def requests(kind, rate, n=1500):
    lengths = traces.sample(kind, n, 1.0, seed=1) if kind else Requests(np.zeros(n), np.full(n, 1024), np.full(n, 256))
    gaps = np.random.default_rng(5).exponential(1 / rate, n)
    return Requests(np.cumsum(gaps * n / (rate * gaps.sum())), lengths.input_tokens, lengths.output_tokens)


@quick_first(1, "load", [0.8, 0.3])
@pytest.mark.parametrize("batching", ["continuous", "chunked"])
@quick_first(1, "kind", ["azure-conv", ""])
def test_it_is_near_the_simulator(kind, batching, load):
    moments = Lengths.of(requests(kind, 1.0)).moments
    holds = steady_state.steady(DEVICE, KV, WORK, moments, None, Scheduler(batching))["requests_per_s"]
    ours = at_rate(DEVICE, KV, WORK, moments, load * holds, Scheduler(batching))
    scheduler = steady_state.scheduler_of(DEVICE, KV, WORK)._replace(batching=batching)
    run = simulator.run(DEVICE, KV, WORK, requests(kind, load * holds), scheduler)
    tpot_s = (run.finish_s - run.first_s).sum() / run.requests.output_tokens.sum()
    own_s = Point(DEVICE, KV, WORK).design.stack.host_prompt_s
    assert ours.tpot_s == pytest.approx(tpot_s, rel=0.10)
    assert ours.ttft_s - own_s == pytest.approx((run.first_s - run.requests.arrival_s).mean(), rel=0.25)
    assert ours.running == pytest.approx(run.mean_running, rel=0.12)


def test_one_place_is_a_queue_by_hand():
    """One request at a time, equal lengths: an M/D/1 queue, whose wait is load / (2 (1 - load)) of a request's time."""
    work, moments = Workload(batch=1, admission="paged"), steady_state.FixedLengths(1024, 256)
    server = steady_state.TrafficServer.of(DEVICE, KV, work, moments)
    held_s = server.cycle(1.0).prompt_s - steady_state.start_s(server.point, 1.0) + server.cycle(1.0).decode_s
    found = waits_at(server, 0.6 / held_s)
    assert found.place_wait_s == pytest.approx(0.6 / 0.8 * held_s, rel=1e-9)
    assert found.tpot_s == pytest.approx(server.cycle(1.0).decode_s / 256, rel=1e-9)


def test_a_full_server_is_the_closed_loop_of_its_places():
    """To the digit: what `dse point` says of so many requests is load 1."""
    work = Workload(batch=32, input_tokens=1024, output_tokens=256, admission="paged")
    server = steady_state.TrafficServer.of(DEVICE, KV, work, steady_state.FixedLengths(1024, 256))
    found = evaluate(Point(DEVICE, KV, work))
    assert server.full.requests_per_s == found["requests_per_s"]
    assert server.full.throughput_tokens_per_s == found["throughput_tokens_per_s"]


@quick_first(0, "places", [16, 4, 1])
def test_the_wait_for_one_of_few_places_is_near_the_simulators(places):
    work = Workload(batch=places, admission="paged")
    moments = steady_state.FixedLengths(1024, 256)
    rate = 0.9 * steady_state.steady(DEVICE, KV, work, moments)["requests_per_s"]
    ours = at_rate(DEVICE, KV, work, moments, rate)
    run = simulator.run(DEVICE, KV, work, requests("", rate, 20_000), steady_state.scheduler_of(DEVICE, KV, work))
    queueing_s = (run.start_s - run.requests.arrival_s).mean()
    assert ours.place_wait_s == pytest.approx(queueing_s, rel=0.2)
    assert ours.place_wait_s < ours.ttft_s


def test_a_rate_that_does_not_hold_has_no_times():
    moments = steady_state.FixedLengths(1024, 256)
    holds = steady_state.steady(DEVICE, KV, WORK, moments)["requests_per_s"]
    assert at_rate(DEVICE, KV, WORK, moments, 1.2 * holds) is None
    assert at_rate(DEVICE, KV, WORK, moments, 0.5 * holds, Scheduler("static")) is None
    rates = [share * holds for share in (0.01, 0.2, 0.4, 0.6, 0.8)]
    times = [at_rate(DEVICE, KV, WORK, moments, rate) for rate in rates]
    for name in ("tpot_s", "ttft_s", "running"):
        values = [getattr(each, name) for each in times]
        assert values == sorted(values)
    with pytest.raises(InputError, match="rate = 0: must be more than 0"):
        at_rate(DEVICE, KV, WORK, moments, 0)


def test_a_lonely_request_waits_for_its_own_prompt_alone():
    moments = steady_state.FixedLengths(1024, 256)
    found = at_rate(DEVICE, KV, WORK, moments, 1e-6)
    alone = evaluate(Point(DEVICE, KV, Workload(batch=1, input_tokens=1024, output_tokens=256, admission="paged")))
    assert found.ttft_s == pytest.approx(alone["ttft_s"], rel=1e-3)
    assert found.tpot_s == pytest.approx(alone["tpot_s"], rel=1e-3)


def test_answers_begin_behind_prompts_by_hand():
    # 2 a second for 0.5 s: one came, so some with 1 - 1/e; each takes half a step of 0.41 s in place of a token's 0.01
    assert steady.behind_wait_s(2.0, 0.5, 0.5, 0.41, 0.01) == pytest.approx((1 - np.exp(-1)) * 0.4)
    # each takes two steps
    assert steady.behind_wait_s(2.0, 0.5, 2.0, 0.41, 0.01) == pytest.approx(2 * 0.4)
    # answers of 2 and of 18 tokens, E[1/O] = 5 / 18: (2 t + 0.9) / 2 and (18 t + 0.9) / 18 of t = 0.01 over tokens less
    # the 0.9 s that 20 tokens lose twice
    assert steady.tpot_of_requests_s(0.01 + 0.09, 0.9, 5 / 18, 10.0) == pytest.approx(0.01 + (0.45 + 0.05) / 2)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_tpot_is_a_mean_over_requests_of_unequal_answers(load):
    """Long prompts, and answers of which half are short: their mean time per token is far above that over tokens."""
    n, rng = 1500, np.random.default_rng(3)
    inputs, outputs = rng.integers(1000, 7000, n), np.where(rng.random(n) < 0.5, 2, 400)
    moments = Lengths.of(Requests(np.zeros(n), inputs, outputs)).moments
    assert moments.mean_inverse_output == pytest.approx((1 / outputs).mean())
    holds = steady_state.steady(DEVICE, KV, WORK, moments, None, Scheduler("chunked"))["requests_per_s"]
    ours = at_rate(DEVICE, KV, WORK, moments, load * holds, Scheduler("chunked"))
    at_s = np.cumsum(rng.exponential(1 / (load * holds), n))
    scheduler = steady_state.scheduler_of(DEVICE, KV, WORK)._replace(batching="chunked")
    run = simulator.run(DEVICE, KV, WORK, Requests(at_s, inputs, outputs), scheduler)
    over_tokens = (run.finish_s - run.first_s).sum() / outputs.sum()
    assert run.tpot_s.mean() > 1.2 * over_tokens
    assert ours.tpot_s == pytest.approx(run.tpot_s.mean(), rel=0.2)
