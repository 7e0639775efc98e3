"""Step times of mixed batches: tables against `dse.model.step.run_of`, and what must hold of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.model import kv_layout as plan
from dse.model.evaluate import Point
from dse.serving import step_times
from dse.specs import catalog
from dse.specs.measurements import CLOSED
from dse.specs.workload import Workload

DESIGNS = [
    ("a100-80gb", "llama2-13b", "fp16", "auto"),
    ("a100-80gb:memory_bandwidth=2 TB/s", "llama2-13b", "fp16", "ideal"),
    ("a100-80gb", "llama2-7b", "kivi", "auto"),
    ("oaken-lpddr", "llama2-13b", "oaken", "ideal"),
    ("a100-80gb", "mixtral-8x7b-oaken", "sinkq", "ideal"),
    ("h100", "mistral-7b", "fp8", "auto"),
]


def design(device, model, quantizer, kind):
    q = CLOSED.quantizer(quantizer)
    return catalog.device(device), plan.build(catalog.model(model), q, q), Workload(model_kind=kind)


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
    found = tables(case).decode_step_s(n, n * context)
    assert found == pytest.approx(wanted.decode_step_s, rel=1e-9 if straight else 1e-2)


@pytest.mark.parametrize("case", DESIGNS, ids="-".join)
@given(n_tokens=st.integers(1, 6000))
def test_a_prompt_costs_what_steps_say(case, n_tokens):
    device, kv, work = design(*case)
    there = replace(work, input_tokens=n_tokens, output_tokens=1)
    wanted = Point(device, kv, there).run(1).wave
    assert tables(case).prefill_s(n_tokens) == pytest.approx(wanted.prefill_s, rel=1e-2)


@pytest.mark.parametrize("case", DESIGNS, ids="-".join)
def test_parts_of_a_prompt_add_up_and_more_work_takes_longer(case):
    times = tables(case)
    assert times.prompt_s(0, 700) + times.prompt_s(700, 1000) == pytest.approx(times.prompt_s(0, 1000), rel=1e-12)
    assert times.prompt_s(0, 0) == times.matrix_s(0) == times.attention_s(0, 0) == 0.0
    assert times.prefill_s(4000) > times.prefill_s(2000) > 0
    assert times.decode_step_s(96, 96 * 4000) > times.decode_step_s(96, 96 * 2000) > times.decode_step_s(48, 48 * 2000)


def test_a_mixed_batch_counts_by_its_mean():
    times = tables(DESIGNS[1])  # 1000 and 3000 are as long as twice 2000, where time is a straight line
    assert times.decode_step_s(2, 1000 + 3000) == times.decode_step_s(2, 2 * 2000)
    # by hand: a sequence of 13B reads 40 layers * 2 * 5120 * 2 B = 819,200 B a token, at 2e12 B/s
    more = times.attention_s(2, 4001) - times.attention_s(2, 4000)
    assert more == pytest.approx(819_200 / 2e12, rel=1e-6)
