"""What is recommended for a trace, run again by `dse simulate`: limits hold at the load that is promised."""

import json
from functools import cache

import numpy as np
import pytest

import dse
from dse.questions import trace_runs

ASKED = {"model": "llama3.1-8b", "devices": ["h100"], "engines": ["vllm"], "quantizers": ["fp16"], "most": 2}


def trace_file(folder, seed, tick_ms, burst):
    """Some 600 requests of users who come back, of very unequal prompts and answers, `burst` at a time."""
    rng, rows, texts = np.random.default_rng(seed), [], {}
    at_ms, next_id = 0.0, 1
    for _ in range(600 // burst):
        at_ms += rng.exponential(120.0 * burst)
        for _ in range(burst):
            user = int(rng.integers(150))
            more = int(rng.lognormal(1.2, 1.2)) + 1
            ids = texts.get(user, [0]) + list(range(next_id, next_id + more))
            next_id += more
            texts[user] = ids if len(ids) < 60 else [0]
            n_in, n_out = 512 * len(ids), int(rng.lognormal(3.5, 1.5)) + 1
            stamp = int(at_ms // tick_ms) * tick_ms
            rows.append({"timestamp": stamp, "input_length": n_in, "output_length": min(n_out, 900), "hash_ids": ids})
    file = folder / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


#: steady arrivals, those of a clock of 3 s, and bursts
TRACES = [(1, 1, 1, "30 ms", "1 s"), (2, 3000, 1, "20 ms", "2 s"), (3, 1, 30, "25 ms", "3 s")]


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """A trace's file, and what is recommended for it, computed once."""

    @cache
    def of(seed, tick_ms, burst, tpot, ttft):
        file = trace_file(tmp_path_factory.mktemp("trace"), seed, tick_ms, burst)
        return file, dse.recommend(**ASKED, trace=file, max_tpot=tpot, max_ttft=ttft)

    return of


@pytest.mark.parametrize("case", TRACES, ids=["steady", "clock", "bursts"])
def test_dse_simulate_confirms_what_is_promised(answer, case):
    """The command of the answer gives the card's times, which keep the limits at the upper ends of their intervals; and
    so do those at the most that a server is said to hold."""
    file, found = answer(*case)
    first, limits = found.first, found.search.demand.limits
    assert all(fleet.server.settings == {} for fleet in found.search.found)
    server, load = first.server, found.search.demand.load
    assert f"(dse simulate --trace {file} --servers {first.n_servers})" in " ".join(found.text().split())
    work = server.work
    run = dse.simulate(
        "h100", "llama3.1-8b", "fp16", trace=file, n_servers=first.n_servers, stack=work.stack, tp=work.tp, pp=work.pp
    )
    for name, limit in limits.items():
        assert first.results[name] == pytest.approx(run[name]["mean"], rel=0.05)
        assert run[name]["mean"] * server.late[name] <= limit * 1.05
        most = trace_runs.run(load, server, server.holds)
        assert getattr(most, name) * server.late[name] <= limit * (1 + 1e-9)


def test_bursts_hold_less_than_the_closed_form_says(answer):
    """Thirty requests at a time wait for one another, of which moments of lengths say nothing."""
    _, found = answer(*TRACES[2])
    server, load = found.first.server, found.search.demand.load
    computed = load.held(server, found.search.demand.limits, True, False)
    assert server.holds < 0.9 * computed
    assert "times what the closed form says" in " ".join(found.text().split())
    over = trace_runs.run(load, server, computed)
    assert any(getattr(over, name) * server.late[name] > most for name, most in found.search.demand.limits.items())


def test_too_many_copies_are_not_simulated(tmp_path):
    found = dse.recommend(**ASKED, trace=trace_file(tmp_path, 1, 1, 1), rate=9000, max_ttft="2 s")
    assert ("Not simulated" in " ".join(found.text().split())) == (
        not trace_runs._is_simulated(found.search.demand.load, found.first.server.holds)
    )
