"""Step times of mixed batches: steps and tables against the model's own runs, and what must hold of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dse.core.errors import InputError
from dse.model import kv_layout as plan
from dse.model.deployed import n_groups_of
from dse.model.point import Point
from dse.serving import simulator, step_times
from dse.serving.requests import Requests
from dse.serving.steady_state import Scheduler
from dse.serving.step_times import PromptPart
from dse.specs import catalog
from dse.specs.measurements import CLOSED
from dse.specs.workload import Workload
from factories import build

DESIGNS = [
    ("a100-80gb", "llama2-13b", "fp16", "auto"),
    ("a100-80gb:memory_bandwidth=2 TB/s", "llama2-13b", "fp16", "ideal"),
    ("a100-80gb", "llama2-7b", "kivi", "auto"),
    ("oaken-lpddr", "llama2-13b", "oaken", "ideal"),
    ("a100-80gb", "mixtral-8x7b-oaken", "sinkq", "ideal"),
    ("h100", "mistral-7b", "fp8", "auto"),
]


def design(device, model, quantizer, kind):
    return catalog.device(device), build(model, quantizer), Workload(model_kind=kind)


TABLES = {}


def tables(case):
    if case not in TABLES:
        TABLES[case] = step_times.build(step_times.Exact.of(*design(*case)), 96, 6000)
    return TABLES[case]


@pytest.mark.parametrize("case", DESIGNS, ids="-".join)
@given(n=st.integers(1, 96), context=st.integers(260, 6000))
def test_a_decode_step_of_equal_contexts_is_that_of_steps(case, n, context):
    device, kv, work = design(*case)
    half = max(g.step_tokens for g in kv.groups) // 2  # the mean over a packed group around the context
    there = replace(work, input_tokens=context - half - 1, output_tokens=max(2 * half, 1))
    wanted = Point(device, kv, there).run(n).wave
    straight = case[2:] == ("fp16", "ideal")
    found = tables(case).step_s(n, n * context)
    assert found == pytest.approx(wanted.decode_step_s, rel=1e-9 if straight else 1e-2)


@pytest.mark.parametrize("case", DESIGNS, ids="-".join)
@given(n_tokens=st.integers(1, 6000))
def test_a_prompt_costs_what_steps_say(case, n_tokens):
    device, kv, work = design(*case)
    there = replace(work, input_tokens=n_tokens, output_tokens=1)
    wanted = Point(device, kv, there).run(1).wave
    assert tables(case).step_s(0, 0, [PromptPart(0, n_tokens)]) == pytest.approx(wanted.prefill_s, rel=1e-2)


@st.composite
def drawn(draw):
    """A device, plan and workload of any kind that goes together, and requests that are all alike."""
    kind = draw(
        st.sampled_from(
            [
                {},
                {},
                {"tp": 4},
                {"tp": 2, "pp": 2, "pp_batches": 1},
                {"tp": 4, "dcp": 2},
                {"tp": 4, "dp_attention": True},
                {"tp": 4, "dp_attention": True, "ep": 4},
            ]
        )
    )
    q = CLOSED.quantizer(draw(st.sampled_from(["fp16", "fp8", "kivi", "oaken", "sinkq", "nqkv", "tender"])))
    model = draw(st.sampled_from(["llama2-13b", "llama3.1-8b", "qwen3-0.6b", "mixtral-8x7b", "gpt-oss-120b"]))
    device = draw(st.sampled_from(["a100-80gb", "h100", "b200", "oaken-lpddr", "lpu-hbm", "tender-a100"]))
    stack = draw(st.sampled_from([None, "ideal", "vllm", "sglang", "sglang@0.5.9", "trtllm"]))
    try:
        work = Workload(
            stack=None if stack == "ideal" else stack,
            model_kind="ideal" if stack == "ideal" else "auto",
            weights=draw(st.sampled_from([None, None, "fp8"])),
            **kind,
        )
        exact = step_times.Exact.of(catalog.device(device), plan.build(catalog.model(model), q, q), work)
    except InputError:
        assume(False)
    n_tokens = draw(st.one_of(st.integers(1, 300), st.integers(300, 4000)))
    return exact, draw(st.integers(1, 40)), n_tokens


def run_of(exact, n, n_groups, input_tokens, output_tokens):
    """Times of `n` requests in each group, as a point has them."""
    work = replace(exact.point.work, batch=n * n_groups, input_tokens=input_tokens, output_tokens=output_tokens)
    return Point(exact.point.device, exact.point.plan, work).run(n * n_groups).wave


@given(case=drawn())
def test_whole_prompts_take_what_the_model_says(case):
    """Equal prompts that share a step pay starts, host and head as those of a running batch: 1e-9."""
    exact, n, n_tokens = case
    times, n_groups = step_times.build(exact, 1, n_tokens, n * n_tokens, [n_tokens]), n_groups_of(exact.point.work)
    found = times.step_s(0, 0, [PromptPart(0, n_tokens)] * n, [(n * n_tokens, 0, n)] * (n_groups - 1))
    wanted = run_of(exact, n, n_groups, n_tokens, 1).prefill_s + exact.point.design.stack.host_blocks_s
    assert found == pytest.approx(wanted, rel=1e-9)


@given(case=drawn())
def test_decoding_alone_takes_what_the_model_says(case):
    exact, n, context = case
    context += 1
    times, n_groups = step_times.build(exact, n, context), n_groups_of(exact.point.work)
    half = min(exact.period // 2, context - 2)
    wanted = run_of(exact, n, n_groups, context - half - 1, max(2 * half, 1)).decode_step_s
    assert times.step_s(n, n * context, [], [(0, n, 0)] * (n_groups - 1)) == pytest.approx(wanted, rel=1e-9)


def test_a_simulated_burst_of_short_prompts_takes_what_a_point_says():
    """32 prompts of 64 tokens, whole: the first token comes when a running batch's prompts are done."""
    device, kv = catalog.device("h100"), build("qwen3-0.6b", "fp16")
    work = Workload(batch=32, input_tokens=64, output_tokens=16)
    requests = Requests(np.zeros(32), np.full(32, 64), np.full(32, 16))
    run = simulator.run(device, kv, work, requests, Scheduler("continuous", 32 * 64))
    assert run.first_s.tolist() == pytest.approx([Point(device, kv, work).run(32).wave.prefill_s] * 32, rel=1e-9)


@pytest.mark.parametrize("case", DESIGNS, ids="-".join)
def test_parts_of_a_prompt_add_up_and_more_work_takes_longer(case):
    times = tables(case)
    # chunks that share a step cost what the whole does, and one alone what it adds
    whole, two = times.step_s(0, 0, [PromptPart(0, 1000)]), [PromptPart(0, 700, ends=False), PromptPart(700, 1000)]
    assert times.step_s(0, 0, two) == pytest.approx(whole, rel=1e-12)
    assert times.step_s(0, 0, two[:1]) + times.step_s(0, 0, two[1:]) >= whole * (1 - 1e-12)
    assert times.step_s(0, 0, [PromptPart(0, 4000)]) > times.step_s(0, 0, [PromptPart(0, 2000)]) > 0
    assert times.step_s(96, 96 * 4000) > times.step_s(96, 96 * 2000) > times.step_s(48, 48 * 2000)
    # who shares a step pays no more than alone
    shared = times.step_s(48, 48 * 2000, [PromptPart(0, 1000)])
    assert max(whole, times.step_s(48, 48 * 2000)) < shared < whole + times.step_s(48, 48 * 2000)


def test_a_mixed_batch_counts_by_its_mean():
    times = tables(DESIGNS[1])  # 1000 and 3000 are as long as twice 2000, where time is a straight line
    assert times.step_s(2, 1000 + 3000) == times.step_s(2, 2 * 2000)
    # by hand: a sequence of 13B reads 40 layers * 2 * 5120 * 2 B = 819,200 B a token, at 2e12 B/s
    more = times.step_s(2, 4001) - times.step_s(2, 4000)
    assert more == pytest.approx(819_200 / 2e12, rel=1e-6)
