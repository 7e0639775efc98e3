"""What prompts find of each other at a full server: by hand, by counting, by `dse point`, by simulation."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.model.engine import evaluate
from dse.model.point import Point
from dse.serving import prefix_tree, reuse, simulator, steady_state
from dse.serving.arrivals import Traffic, rate_that_holds, requests_of
from dse.serving.requests import PromptBlocks, Requests
from dse.serving.steady_state import HostMemory
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import build


def prompts(*texts, block=5, output=1):
    """Requests at once, one for each text; a letter is a block of `block` tokens."""
    first = np.cumsum([0, *map(len, texts)])
    ends = np.concatenate([block * np.arange(1, len(text) + 1) for text in texts])
    lengths, n = np.array([block * len(text) for text in texts]), len(texts)
    blocks = PromptBlocks(first, np.array([ord(c) for text in texts for c in text]), ends)
    return Requests(np.zeros(n), lengths, np.full(n, output), blocks)


def reused(requests):
    return reuse.Reuse.of(requests, prefix_tree.tree_of(requests, 1))


def test_how_long_ago_a_block_was_used():
    """abx, aby, cde, abz: a and b were used one and two requests before; first of all four requests before that, as
    they come again one after abz. c is nobody else's."""
    found = reused(prompts("abx", "aby", "cde", "abz"))
    assert found.distance.tolist() == [1, 1, 4, 1, 1, 4, 4, 4, 4, 2, 2, 4]
    assert found.found_tokens(1).tolist() == [10, 10, 0, 0]
    assert found.found_tokens(2).tolist() == [10, 10, 0, 10]
    # 15 tokens each, of which two prompts need 5 in place of 15 where the one before is kept, three where two are
    assert found.new_pages.tolist() == [15, (5 + 5 + 15 + 15) / 4, 7.5, 7.5]
    # two in a row: ab + x + y, aby + cde, cde + abz, abz + abx, 20 or 30 tokens
    assert found.held_pages(2) == (20 + 30 + 30 + 20) / 4
    assert found.held_pages(6) == 15 + 10 + 4 * 7.5


def test_a_text_that_is_long_over_is_not_there_when_requests_come_again():
    """a is used by the first two of six: four requests before the first were it to come again, more than half."""
    found = reused(prompts("ab", "ac", "d", "e", "f", "g"))
    assert found.found_tokens(6).tolist() == [0, 5, 0, 0, 0, 0]


@given(texts=st.lists(st.text("ab", min_size=1, max_size=4), min_size=2, max_size=12), data=st.data())
def test_prompts_in_a_row_hold_what_counting_finds(texts, data):
    """Rows of up to half of the requests, from each place, as if they came again."""
    found, n = reused(prompts(*texts)), len(texts)
    row = data.draw(st.integers(0, n // 2))
    of = [{text[: i + 1] for i in range(len(text))} for text in texts]
    held = [5 * len(set().union(*(of[(start + i) % n] for i in range(row)))) for start in range(n)]
    assert found.held_pages(row) == pytest.approx(sum(held) / n, rel=1e-12)
    kept = [set().union(*(of[(r - i) % n] for i in range(1, row + 1))) for r in range(n)]
    parts = [[part for part in of[r] & kept[r] if len(part) < len(texts[r])] for r in range(n)]
    assert found.found_tokens(row).tolist() == [5 * max(map(len, part), default=0) for part in parts]


SERVERS = [
    ("h200", "qwen3-32b", "fp8", {"input_tokens": 8192, "output_tokens": 256, "prefix_tokens": 6000}),
    ("a100-80gb", "llama3.1-8b", "fp16", {"output_tokens": 100, "prefix_tokens": 512, "batching": "continuous"}),
    ("a100-80gb", "llama2-13b", "fp16", {"output_tokens": 100, "prefix_tokens": 1000, "admission": "reserve"}),
    ("h100", "llama3.1-70b", "fp8", {"input_tokens": 4096, "prefix_tokens": 3008, "tp": 4, "batch": 100}),
    ("h100", "llama3.1-8b", "fp8", {"input_tokens": 4096, "prefix_tokens": 3008, "tp": 2, "dp_attention": True}),
]


@pytest.mark.parametrize(("device", "model", "quantizer", "fields"), SERVERS)
def test_prompts_with_one_prefix_are_served_as_the_point_says(device, model, quantizer, fields):
    """Requests that all begin alike have the server that `dse point --prefix` has."""
    hardware, plan, work = catalog.device(device), build(model, quantizer), Workload(**fields)
    traffic = replace(work, prefix_tokens=0)
    how = steady_state.scheduler_of(hardware, plan, traffic)
    requests = requests_of(Traffic(n_requests=100, prefix_tokens=work.prefix_tokens), traffic)
    found = reuse.steady_of(hardware, plan, traffic, requests, how)
    point = Point(hardware, plan, work)
    wanted = evaluate(Point(hardware, plan, replace(work, batch=work.batch or min(point.max_batch, point.batch))))
    assert found["fitting_sequences"] == point.max_batch
    for name in ("requests_per_s", "throughput_tokens_per_s", "tpot_s"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-9), name
    assert rate_that_holds(hardware, plan, traffic, requests, how) == found["requests_per_s"]
    alone = reuse.steady_of(hardware, plan, traffic, replace(requests, blocks=None), how)
    assert found["requests_per_s"] > 1.2 * alone["requests_per_s"]


ANSWERS = [
    ("h200", "qwen3-32b", "fp8", {"input_tokens": 8192, "output_tokens": 256}),
    ("a100-80gb", "llama3.1-8b", "fp16", {"input_tokens": 1600, "output_tokens": 100}),
    ("h100", "llama3.1-8b", "fp8", {"input_tokens": 4096, "page_tokens": 32, "batch": 60}),
]


@pytest.mark.parametrize(("device", "model", "quantizer", "fields"), ANSWERS)
def test_answers_of_one_prompt_are_served_as_the_point_says(device, model, quantizer, fields):
    """Four answers to each prompt: the simulation holds and serves what `dse point --samples 4` says, within 5 %."""
    hardware, plan, work = catalog.device(device), build(model, quantizer), Workload(**fields)
    how = steady_state.scheduler_of(hardware, plan, work)
    point = Point(hardware, plan, replace(work, samples=4))
    wanted = evaluate(Point(hardware, plan, replace(point.work, batch=min(point.max_batch, point.batch))))
    requests = requests_of(Traffic(n_requests=8 * wanted["batch"], samples=4), work)
    found = reuse.steady_of(hardware, plan, work, requests, how)
    run = simulator.run(hardware, plan, work, requests, how)
    assert found["fitting_sequences"] == pytest.approx(point.max_batch, abs=4)  # the last prompt may have fewer
    for rate in (found["requests_per_s"], run.saturated_requests_per_s):
        assert rate == pytest.approx(wanted["requests_per_s"], rel=0.05)


SIMULATED = [
    # texts, batch, how prompts are computed, host memory; 1,280 of 1,600 tokens shared
    (4, 16, "chunked", None),
    (4, 16, "continuous", None),
    (60, 16, "chunked", None),  # of 60 texts the device keeps some
    (60, 16, "chunked", HostMemory(10**11, 25e9)),
    (60, 16, "chunked", HostMemory(10**11, 5e8, 1e-3, is_beside=False)),
]


@pytest.mark.parametrize(("n_texts", "batch", "batching", "host"), SIMULATED)
def test_what_a_full_server_holds_is_what_the_simulation_serves(n_texts, batch, batching, host):
    """Within 5 % of what is served while full, and the share of prompts that is found within 3 points."""
    plan = build("llama3.1-8b", "fp16")
    work = Workload(input_tokens=1600, output_tokens=64, batch=batch, batching=batching, gpu_memory_utilization=0.28)
    device = catalog.device("a100-80gb")
    how = steady_state.scheduler_of(device, plan, work, host)
    requests = requests_of(Traffic(n_requests=800, prefix_tokens=1280, n_prefixes=n_texts), work)
    run = simulator.run(device, plan, work, requests, how)
    steady = reuse.steady_of(device, plan, work, requests, how)
    assert steady["requests_per_s"] == pytest.approx(run.saturated_requests_per_s, rel=0.05)
    found = reuse.found_when_full(device, plan, work, requests, how)
    share = (run.device_tokens.sum() + run.host_tokens.sum()) / run.requests.input_tokens.sum()
    # at the start of the run no text is there
    assert found.mean_found_tokens / 1600 == pytest.approx(share / (1 - n_texts / 800), abs=0.03)


def test_each_group_of_requests_keeps_prompts_of_its_own():
    """Two groups take turns: of a, b, a, b, ... each holds one text, as if all began alike, where one group holds both.

    And it finds it with the request before.
    """
    plan, device = build("llama3.1-8b", "fp16"), catalog.device("h100")
    work = Workload(tp=2, dp_attention=True)

    def found(*texts):
        requests = prompts(*(text + str(i) for i in range(10) for text in texts), block=100_000, output=10)
        return reuse.found_when_full(device, plan, work, requests, steady_state.Scheduler("chunked"))

    assert found("a", "b") == found("a", "a")
    assert found("a", "b").mean_found_tokens == 100_000
    assert found("a", "b", "c").fitting < found("a", "a", "a").fitting


def test_a_load_from_host_memory_takes_its_start_and_its_bytes():
    """Llama 3.1 8B in FP16 has 131,072 bytes a token: 1,280 of them take 6.7 ms at 25 GB/s, after 1 ms."""
    plan, device = build("llama3.1-8b", "fp16"), catalog.device("a100-80gb")
    work = Workload(input_tokens=1600, output_tokens=64, batch=16, gpu_memory_utilization=0.28)
    requests = requests_of(Traffic(n_requests=400, prefix_tokens=1280, n_prefixes=60), work)
    how = steady_state.scheduler_of(device, plan, work)
    alone = reuse.found_when_full(device, plan, work, requests, how)
    host = HostMemory(10**11, 25e9, 1e-3)
    found = reuse.found_when_full(device, plan, work, requests, how._replace(host=host))
    from_host = (found.mean_found_tokens - alone.mean_found_tokens) / 1280
    assert 0.3 < from_host < 0.9
    assert found.load_s == pytest.approx(from_host * (1e-3 + 1280 * 131_072 / 25e9), rel=0.01)
    rates = [
        reuse.steady_of(device, plan, work, requests, how._replace(host=one))["requests_per_s"]
        for one in (None, replace(host, is_beside=False), host, replace(host, start_s=0.0, bandwidth_bytes_per_s=1e13))
    ]
    assert rates == sorted(rates)
    assert rates[1] < rates[2] == rates[3]  # beside the step that computes the rest it costs nothing
