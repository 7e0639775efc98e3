"""The simulator: equal to its naive twin, conserving, within memory, repeatable, and near the closed form."""

import math
from dataclasses import fields, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cases import quick_first
from dse.core.errors import InputError, LimitError
from dse.model.engine import evaluate
from dse.model.formulas import serving as formulas
from dse.model.point import Point
from dse.serving import loop
from dse.serving import simulator as simulate
from dse.serving import steady_state as serving
from dse.serving.requests import Lengths, Moments, PromptBlocks, Requests
from dse.serving.steady_state import HostMemory, Scheduler
from dse.serving.step_times import PromptPart
from dse.specs import catalog, workload
from factories import build
from naive_serving import serve
from small_servers import PLANS, a100, room_for, times_of

#: memory is given to the byte here: as papers count it
Workload = partial(workload.Workload, memory="paper")


@st.composite
def cases(draw):
    n = draw(st.integers(1, 14))
    lengths = st.lists(st.integers(1, 40), min_size=n, max_size=n)
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 1e-4, 1e-3, 0.02]), min_size=n, max_size=n))
    requests = Requests(np.cumsum([0.0, *gaps[1:]]), np.array(draw(lengths)), np.array(draw(lengths)))
    work = Workload(
        batch=draw(st.integers(1, 6)),
        admission=draw(st.sampled_from(["reserve", "paged"])),
        page_tokens=draw(st.sampled_from([1, 2, 5, 16])),
        model_kind="ideal",
        **draw(st.sampled_from([{}, {"tp": 2, "dp_attention": True}, {"tp": 4, "dp_attention": True}])),
    )
    quantizer = draw(st.sampled_from(sorted(PLANS)))
    tokens_of_room = draw(st.integers(60, 300))
    batching, chunk = draw(st.sampled_from(["static", "continuous", "chunked"])), draw(st.integers(1, 70))
    return requests, work, quantizer, tokens_of_room, batching, chunk


@st.composite
def shared_cases(draw):
    """Prompts in blocks of three tokens, of which few are different; host memory of some blocks, or none."""
    requests, work, quantizer, _, batching, chunk = draw(cases().filter(lambda case: case[2] == "fp16"))
    counts = (-(-requests.input_tokens // 3)).tolist()
    first = np.concatenate(([0], np.cumsum(counts)))
    pool = draw(st.lists(st.lists(st.integers(0, 1), min_size=14, max_size=14), min_size=1, max_size=3))
    texts = [draw(st.sampled_from(pool))[:n] for n in counts]
    ends = np.concatenate(
        [np.minimum(3 * np.arange(1, n + 1), t) for n, t in zip(counts, requests.input_tokens, strict=True)]
    )
    blocks = PromptBlocks(first, np.concatenate(texts).astype(np.int64), ends)
    n_tokens, bandwidth = draw(st.integers(1, 99)), draw(st.sampled_from([1e9, 1e7]))
    host = HostMemory(n_tokens * 36864, bandwidth, draw(st.sampled_from([0.0, 1e-3])), draw(st.booleans()))
    case = replace(requests, blocks=blocks), work, quantizer, draw(st.integers(60, 110)), batching, chunk
    return case, draw(st.sampled_from([None, host, host]))


def both(case, prompt_step=2048, compiled=False, host=None):
    requests, work, quantizer, tokens_of_room, batching, chunk = case
    kv = PLANS[quantizer]
    device = room_for(kv, work, tokens_of_room)
    times = times_of(kv, 6, work.tp)
    memory = simulate.memory_of(device, kv, work, 200)
    try:
        found = simulate.run(
            device,
            kv,
            work,
            requests,
            Scheduler(batching, chunk if batching == "chunked" else prompt_step, host),
            times=times,
            compiled=compiled,
        )
    except InputError:
        assume(False)
    requests, blocks, tier = found.requests, None, {}
    if requests.blocks is not None:
        first = requests.blocks.first.tolist()
        own = [slice(*ends) for ends in pairwise(first)]
        blocks = [(requests.blocks.ids[at].tolist(), requests.blocks.end_tokens[at].tolist()) for at in own]
    if host is not None:
        tier = {
            "host_capacity": host.capacity_bytes * memory.unit,
            "host_start_s": host.start_s,
            "host_unit_s": 1 / memory.unit / host.bandwidth_bytes_per_s,
            "beside": host.is_beside,
        }
    wanted = serve(
        requests.arrival_s.tolist(),
        requests.input_tokens.tolist(),
        requests.output_tokens.tolist(),
        times,
        memory.own_bits,
        memory.free_bytes * memory.unit,
        batching=batching,
        admission=work.admission,
        batch=work.batch,
        page=memory.page_tokens,
        chunk=chunk,
        prompt_step=prompt_step,
        n_groups=work.tp,
        blocks=blocks,
        page_size=memory.own_bits(2 * memory.page_tokens) - memory.own_bits(memory.page_tokens),
        **tier,
    )
    return found, wanted, memory


def same(found, wanted, memory):
    """Every counter of a run, beside the twin's."""
    about, requests = pytest.approx, wanted.requests
    unit, duration_s = memory.unit * memory.design.deployment.n_groups, max(r.finish for r in requests)
    every = 1  # steps between two samples
    while math.ceil(wanted.n_steps / every) > simulate.MAX_SAMPLES:
        every *= 2
    time_s, running, waiting, used, tokens, cached = zip(*wanted.samples[::every], strict=True)
    counts = np.zeros(len(found.gap_counts), int)
    np.add.at(counts, np.searchsorted(simulate.GAP_EDGES_S, wanted.gaps), 1)
    rates = None, None, None
    if wanted.warm and wanted.full[0] > wanted.warm[0]:
        span_s, *more = (full - warm for full, warm in zip(wanted.full, wanted.warm, strict=True))
        rates = tuple(about(value / span_s, rel=1e-12) for value in more)
    expected = {
        "start_s": [r.start for r in requests],
        "first_s": [r.first for r in requests],
        "finish_s": [r.finish for r in requests],
        "n_tokens": sum(r.n_out for r in requests),
        "n_prompt_tokens": wanted.prompt_tokens,
        "n_preempted": wanted.n_preempted,
        "n_steps": wanted.n_steps,
        "n_decode_steps": wanted.n_decode_steps,
        "n_prompt_steps": wanted.n_prompt_steps,
        "busy_s": wanted.busy_s,
        "prompt_attention_s": about(wanted.attention_s, rel=1e-12),
        "mean_running": about(wanted.running_s / duration_s, rel=1e-12),
        "peak_running": wanted.peak_running,
        "mean_used_bytes": about(wanted.used_s / duration_s / unit, rel=1e-12),
        "peak_used_bytes": memory.to_bytes(wanted.peak_used),
        "left_bytes": wanted.left,
        "gap_counts": counts.tolist(),
        "mean_gap_s": about(sum(wanted.gaps) / len(wanted.gaps), rel=1e-9),
        "longest_gap_s": max(wanted.gaps),
        "saturated_tokens_per_s": rates[0],
        "saturated_requests_per_s": rates[1],
        "saturated_running": rates[2],
        "samples": {
            "time_s": list(time_s),
            "running": list(running),
            "waiting": list(waiting),
            "used_bytes": about([n / unit for n in used]),
            "tokens": list(tokens),
            "cached_bytes": about([n / unit for n in cached]),
        },
        "device_tokens": [r.on_device for r in requests],
        "host_tokens": [r.in_host for r in requests],
        "endless_tokens": [r.endless for r in requests],
    }
    for name, value in expected.items():
        one = getattr(found, name)
        if name == "samples":
            one = {column: values.tolist() for column, values in one.items()}
        assert (one.tolist() if isinstance(one, np.ndarray) else one) == value, name
    # the others are what was asked for, or have tests of their own
    others = {"requests", "n_rejected", "max_sequences", "free_bytes", "steps"}
    assert {field.name for field in fields(found)} == {*expected, *others}


@given(case=cases(), prompt_step=st.sampled_from([8, 50, 2048]))
def test_the_kernel_is_its_naive_twin(case, prompt_step):
    same(*both(case, prompt_step))


@given(case=shared_cases(), prompt_step=st.sampled_from([8, 50, 2048]))
def test_shared_prompts_are_served_as_by_the_naive_twin(case, prompt_step):
    same(*both(case[0], prompt_step, host=case[1]))


@given(case=shared_cases())
def test_compiled_shares_prompts_as_the_naive_twin(case):
    same(*both(case[0], compiled=True, host=case[1]))


@pytest.mark.parametrize(("prompt_step", "is_one_step"), [(9, True), (8, True), (7, False)])
def test_prompts_that_fill_a_step_exactly_are_computed_together(prompt_step, is_one_step):
    """Prompts of 3 and 5 tokens that wait from the start: with room for 8 their first tokens come at once."""
    requests = Requests(np.zeros(2), np.array([3, 5]), np.array([4, 4]))
    work = Workload(batch=2, model_kind="ideal", admission="reserve")
    found, wanted, memory = both((requests, work, "fp16", 60, "continuous", 16), prompt_step)
    assert (found.first_s[0] == found.first_s[1]) == is_one_step
    same(found, wanted, memory)


def test_a_preempted_chunk_keeps_the_blocks_that_are_computed():
    """Pages and blocks of 3, steps of 3 tokens: after a prompt of 30 one decodes beside 2 of the other's 21 until both
    need more pages than the memory has, at its 37th token: of the 12 that are computed by then 4 blocks stay, and the
    other 9 are computed later."""
    ids, ends = np.arange(17), np.concatenate((np.arange(3, 31, 3), np.arange(3, 22, 3)))
    requests = Requests(
        np.zeros(2), np.array([30, 21]), np.array([8, 2]), PromptBlocks(np.array([0, 10, 17]), ids, ends)
    )
    work = Workload(batch=4, admission="paged", page_tokens=3, model_kind="ideal")
    found, wanted, memory = both((requests, work, "fp16", 60, "chunked", 3))
    assert (found.n_preempted, found.n_prompt_tokens) == (1, 30 + 12 + 9)
    same(found, wanted, memory)


@given(case=cases())
def test_compiled_is_its_naive_twin(case):
    same(*both(case, compiled=True))


def lengths(n, mean_in, mean_out, seed=1, kind="lognormal"):
    """Requests that all arrive at once, of lengths spread like traffic's, alike, or evenly."""
    draw = np.random.default_rng(seed)
    if kind == "fixed":
        i, o = np.full(n, mean_in), np.full(n, mean_out)
    elif kind == "uniform":
        i, o = draw.integers(1, 2 * mean_in, n), draw.integers(1, 2 * mean_out, n)
    else:
        i, o = (
            draw.lognormal(np.log(mean) - 0.5, 1.0, n).clip(1, 8 * mean).astype(int) for mean in (mean_in, mean_out)
        )
    return Requests(np.zeros(n), i, o)


#: device, model, quantizer, model kind, batch, admission, batching, mean prompt, mean answer, how lengths spread
WORKLOADS = [
    ("a100-80gb", "llama2-13b", "fp16", "auto", 64, "paged", "continuous", 1000, 200, "lognormal"),
    ("a100-80gb", "llama2-13b", "fp16", "auto", 64, "reserve", "continuous", 1000, 200, "lognormal"),
    ("a100-80gb", "llama2-13b", "fp16", "ideal", 64, "paged", "chunked", 1000, 200, "lognormal"),
    ("a100-80gb", "llama2-13b", "kivi", "auto", 128, "paged", "continuous", 1000, 200, "lognormal"),
    ("a100-80gb", "llama2-13b", "kivi", "auto", 128, "paged", "chunked", 400, 400, "uniform"),
    ("a100-80gb", "llama2-7b", "nqkv", "ideal", 96, "paged", "continuous", 300, 300, "uniform"),
    ("a100-80gb", "llama2-7b", "sinkq", "auto", 64, "reserve", "continuous", 500, 100, "lognormal"),
    ("a100-80gb", "opt-6.7b", "int8", "ideal", 32, "paged", "continuous", 128, 128, "fixed"),
    ("a100-80gb", "mistral-7b", "fp16", "auto", 200, "paged", "continuous", 600, 300, "lognormal"),
    ("a100-80gb", "opt-1.3b", "fp16", "ideal", 16, "reserve", "chunked", 256, 512, "uniform"),
    ("h100", "llama2-13b", "fp8", "auto", 128, "paged", "continuous", 1000, 200, "lognormal"),
    ("h100", "llama2-13b", "qserve", "ideal", 96, "paged", "chunked", 800, 100, "lognormal"),
    ("h100", "llama3.1-8b", "fp16", "auto", 256, "paged", "continuous", 500, 250, "uniform"),
    ("h200", "llama2-70b", "fp8", "ideal", 2, "paged", "continuous", 300, 100, "fixed"),
    ("h200", "mixtral-8x7b-oaken", "int4", "ideal", 64, "paged", "continuous", 700, 200, "lognormal"),
    ("oaken-lpddr", "llama2-13b", "oaken", "ideal", 128, "paged", "continuous", 1000, 200, "lognormal"),
    ("oaken-hbm", "llama2-13b", "oaken", "ideal", 128, "paged", "continuous", 500, 500, "uniform"),
    ("oaken-lpddr", "mixtral-8x7b-oaken", "oaken", "ideal", 64, "reserve", "continuous", 1000, 200, "lognormal"),
    ("lpu-lpddr", "llama2-7b", "fp16", "ideal", 64, "paged", "chunked", 300, 200, "uniform"),
    ("tender-a100", "llama2-7b", "tender", "ideal", 64, "paged", "continuous", 512, 64, "lognormal"),
    ("a100-80gb", "llama2-13b", "fp16", "ideal", 4, "paged", "continuous", 100, 300, "lognormal"),
]


@quick_first(6, "row", WORKLOADS, ids=lambda row: "-".join(map(str, row)))
def test_the_closed_form_is_within_5_percent(row):
    device, model, quantizer, kind, batch, admission, batching, mean_in, mean_out, spread = row
    spec, kv = catalog.device(device), build(model, quantizer)
    work = Workload(batch=batch, admission=admission, model_kind=kind)
    requests = lengths(max(2000, 25 * batch), mean_in, mean_out, kind=spread)
    found = simulate.run(spec, kv, work, requests, Scheduler(batching))
    wanted = serving.steady(spec, kv, work, Moments.of(requests), scheduler=Scheduler(batching))
    assert found.saturated_tokens_per_s == pytest.approx(wanted["throughput_tokens_per_s"], rel=0.05)
    if spread == "fixed":  # each request that ends has given mean_out tokens
        own = found.saturated_requests_per_s * mean_out
        assert own == pytest.approx(found.saturated_tokens_per_s, rel=0.05)


@pytest.mark.parametrize(("chunk", "batch", "limit"), [(128, 256, "chunk"), (512, 256, "chunk"), (512, 32, "batch")])
def test_how_many_run_in_chunks(chunk, batch, limit):
    """What the closed form says of a full run: requests at once, and time per token."""
    spec, kv = catalog.device("a100-80gb"), build("llama2-13b", "qserve")
    work = Workload(batch=batch, admission="paged", model_kind="ideal")
    requests = lengths(4000, 1100, 210)
    found = simulate.run(spec, kv, work, requests, Scheduler("chunked", chunk))
    n = len(found.samples["running"])
    running = found.samples["running"][n // 5 : 3 * n // 4]  # neither filling up nor running out
    wanted = serving.steady(spec, kv, work, Moments.of(requests), None, Scheduler("chunked", chunk))
    assert wanted["limited_by"] == limit
    assert np.mean(running) == pytest.approx(wanted["running_sequences"], rel=0.07)
    assert np.sum(found.finish_s - found.first_s) / found.n_tokens == pytest.approx(wanted["tpot_s"], rel=0.07)
    assert sum(wanted["waits_s"].values()) == pytest.approx(wanted["decode_step_s"], rel=0.05)


def test_the_gain_of_continuous_batching_is_that_of_the_largest_output():
    """Short prompts, weights alone decide a step: E[largest of 8 outputs] / E[output], by DESIGN's formula."""
    spec, kv = catalog.device("a100-80gb"), build("opt-13b", "int4")
    work = Workload(batch=8, model_kind="ideal")
    requests = lengths(4000, 2, 400)
    found = {}
    for batching in ("static", "continuous"):
        found[batching] = simulate.run(spec, kv, work, requests, Scheduler(batching)).saturated_tokens_per_s
    counted = Lengths.of(requests)
    wanted = formulas.batching_gain(counted.largest_output(8), counted.moments.mean_output_tokens)
    assert wanted > 2
    assert found["continuous"] / found["static"] == pytest.approx(wanted, rel=0.05)
    closed = [
        serving.steady(
            spec, kv, work, counted.moments, scheduler=Scheduler(name), largest_output=counted.largest_output
        )
        for name in ("static", "continuous")
    ]
    assert found["static"] == pytest.approx(closed[0]["throughput_tokens_per_s"], rel=0.05)
    assert found["continuous"] == pytest.approx(closed[1]["throughput_tokens_per_s"], rel=0.05)


MODES = [(b, a) for b in ("static", "continuous", "chunked") for a in ("reserve", "paged")]


@quick_first(2, "batching, admission", MODES)
def test_conserved_within_memory_and_repeatable(batching, admission):
    kv = PLANS["fp16"]
    work = Workload(batch=40, admission=admission, model_kind="ideal")
    device = room_for(kv, work, 3000)
    requests = lengths(400, 120, 200, seed=5)
    requests = replace(requests, arrival_s=np.cumsum(np.random.default_rng(3).exponential(2e-3, 400)))
    found = simulate.run(device, kv, work, requests, Scheduler(batching, 128))
    assert found.n_rejected == 0
    n_out = int(requests.output_tokens.sum())
    # tokens: every answer whole, every gap before a decode step of an answer counted once, prompts computed
    assert found.n_tokens == n_out
    assert int(found.gap_counts.sum()) == n_out
    assert found.mean_gap_s * n_out == pytest.approx(np.sum(found.finish_s - found.first_s), rel=1e-9)
    if found.n_preempted == 0:
        assert found.n_prompt_tokens == requests.input_tokens.sum()
    else:
        assert found.n_prompt_tokens > requests.input_tokens.sum()
    assert (found.n_preempted > 0) == (admission == "paged" and batching != "static")
    # bytes: never more than there are, and none left behind
    assert 0 < found.peak_used_bytes <= found.free_bytes
    assert found.samples["used_bytes"].max() <= found.free_bytes
    assert found.left_bytes == 0
    # time: a request arrives, starts, gives its first token, ends; the device is never busy for longer than it lasts
    assert (requests.arrival_s <= found.start_s).all()
    assert (found.start_s < found.first_s).all()
    assert (found.first_s < found.finish_s).all()
    assert found.busy_s <= found.duration_s * (1 + 1e-12)
    again = simulate.run(device, kv, work, requests, Scheduler(batching, 128), compiled=False)
    assert again.finish_s.tolist() == found.finish_s.tolist()
    assert again.gap_counts.tolist() == found.gap_counts.tolist()
    if found.n_preempted == 0 and batching != "static":  # Little: requests running = rate * time that each runs
        wanted = 400 / found.duration_s * float(np.mean(found.finish_s - found.start_s))
        assert found.mean_running == pytest.approx(wanted, rel=1e-9)


def test_chunks_change_order_not_work():
    """Same tokens, same attention of prompts, whatever the chunk; whole prompts too."""
    spec, kv = catalog.device("a100-80gb"), build("llama2-7b", "fp16")
    work = Workload(batch=16, admission="reserve", model_kind="ideal")
    requests = lengths(200, 500, 50)
    runs = [simulate.run(spec, kv, work, requests, Scheduler("chunked", chunk)) for chunk in (17, 64, 512, 4000)]
    runs.append(simulate.run(spec, kv, work, requests, Scheduler("continuous")))
    assert len({run.n_tokens for run in runs}) == len({run.n_prompt_tokens for run in runs}) == 1
    for run in runs:
        assert run.prompt_attention_s == pytest.approx(runs[0].prompt_attention_s, rel=1e-9)


def test_what_does_not_fit_is_rejected_and_counted():
    kv, work = PLANS["fp16"], Workload(batch=4, model_kind="ideal")
    device = room_for(kv, work, 100)
    requests = Requests(np.zeros(3), np.array([90, 91, 10]), np.array([10, 10, 10]))
    found = simulate.run(device, kv, work, requests)
    assert found.n_rejected == 1
    assert found.n_tokens == 20
    with pytest.raises(InputError, match="no request fits"):
        simulate.run(device, kv, work, Requests(np.zeros(1), np.array([500]), np.array([10])))


def test_by_hand():
    """Two requests of 10 in, 2 out, at once: both prompts in one step, at whose end their first tokens are known, then
    two decode steps of both."""
    kv, work = PLANS["fp16"], Workload(batch=4, model_kind="ideal")
    times = times_of(kv, 6)
    found = simulate.run(a100(), kv, work, Requests(np.zeros(2), np.array([10, 10]), np.array([2, 2])), times=times)
    prompts = times.step_s(0, 0, [PromptPart(0, 10), PromptPart(0, 10)])
    assert found.first_s.tolist() == [prompts, prompts]
    end = prompts + times.step_s(2, 22) + times.step_s(2, 24)
    assert found.finish_s.tolist() == pytest.approx([end, end], rel=1e-15)
    # chunks of 12: ten tokens of one and two of the other; then one decodes while the other's last eight are computed
    found = simulate.run(
        a100(),
        kv,
        work,
        Requests(np.zeros(2), np.array([10, 10]), np.array([2, 2])),
        Scheduler("chunked", 12),
        times=times,
    )
    one = times.step_s(0, 0, [PromptPart(0, 10), PromptPart(0, 2, ends=False)])
    two = one + times.step_s(1, 11, [PromptPart(2, 10)])
    three = two + times.step_s(2, 12 + 11)
    assert found.first_s.tolist() == pytest.approx([one, two], rel=1e-12)
    assert found.finish_s.tolist() == pytest.approx([three, three + times.step_s(1, 12)], rel=1e-12)


def test_groups_by_hand():
    """Two devices that attend to requests of their own: three requests of 10 in, 2 out, come to the groups 0, 1, 0."""
    kv, work = PLANS["fp16"], Workload(batch=4, model_kind="ideal", tp=2, dp_attention=True)
    times = times_of(kv, 6, 2)
    asked = Requests(np.array([0.0, 0.0, 1e-9]), np.full(3, 10), np.full(3, 2))
    found = simulate.run(a100(), kv, work, asked, times=times)
    one = times.step_s(0, 0, [PromptPart(0, 10)], [(10, 0, 1)])  # a prompt in each group
    # group 0 computes the third prompt, group 1 decodes: 11 tokens are 6 a device, 10 of them meet attention's weights
    two = one + max(times.step_s(0, 0, [PromptPart(0, 10)], [(0, 1, 0)]), times.step_s(1, 11, [], [(10, 0, 1)]))
    # two of group 0 decode, one of group 1: 3 tokens are 2 a device
    three = two + times.step_s(2, 11 + 11, [], [(0, 1, 0)])
    four = three + times.step_s(2, 12 + 12, [], [(0, 0, 0)])
    assert found.first_s.tolist() == pytest.approx([one, one, two], rel=1e-12)
    assert found.finish_s.tolist()[1] == pytest.approx(three, rel=1e-12)
    assert found.finish_s.tolist()[::2] == pytest.approx([four, four], rel=1e-12)
    assert (found.peak_running, found.n_decode_steps, found.n_prompt_steps) == (3, 3, 2)
    memory = simulate.memory_of(a100(), kv, work, 12)  # of a device: two requests
    assert found.peak_used_bytes == memory.to_bytes(2 * memory.own_bits(12))


@quick_first(
    1,
    "batching, batch, mean_in, mean_out",
    [
        ("continuous", 64, 1000, 250),
        ("continuous", 256, 200, 800),
        ("chunked", 256, 1000, 250),
        ("chunked", 8, 200, 800),
        ("static", 64, 200, 800),
    ],
)
def test_groups_are_near_their_closed_form(batching, batch, mean_in, mean_out):
    """Eight devices with requests of their own, and prompts that come at different times: 5 %."""
    spec, kv = catalog.device("h100"), build("llama3.1-70b", "fp16")
    work = Workload(batch=batch, admission="paged", tp=8, dp_attention=True)
    requests = lengths(20 * max(batch, 20), mean_in, mean_out)
    found = simulate.run(spec, kv, work, requests, Scheduler(batching))
    counted = Lengths.of(requests)
    wanted = serving.steady(
        spec, kv, work, counted.moments, scheduler=Scheduler(batching), largest_output=counted.largest_output
    )
    assert found.saturated_tokens_per_s == pytest.approx(wanted["throughput_tokens_per_s"], rel=0.055)
    assert wanted["n_sequences"] == batch


def test_groups_share_nothing_but_the_step():
    """One request on eight devices waits for nobody: its steps are those of one request on one device of the eight."""
    spec, kv = catalog.device("h100"), build("llama3.1-70b", "fp16")
    work = Workload(batch=8, admission="paged", tp=8, dp_attention=True, memory="paper")
    one = Requests(np.zeros(1), np.array([1000]), np.array([1]))
    found = simulate.run(spec, kv, work, one)
    exact = simulate.step_times.Exact.of(spec, kv, work)
    # its prompt alone: what groups share meets 125 tokens a device, as if each had a prompt of 125; attention and its
    # own weights meet all 1,000 on one
    prompt = exact.run(1, 125, 1).wave.prefill_s + exact.own_s(1000) - exact.own_s(125)
    prompt += exact.of_prompt(1000).attention - exact.of_prompt(125).attention
    assert found.first_s[0] == pytest.approx(prompt, rel=1e-9)
    assert prompt < exact.run(1, 1000, 1).wave.prefill_s
    # 80 layers of 2 * 8,192 * (8,192 + 1,024) parameters are read once and multiplied with 1,000 tokens
    own, fit = 80 * 2 * 8192 * (8192 + 1024), exact.point.stack.products["bf16"]
    read_s, compute_s = 2 * own / 3.35e12 / fit.memory_frac.si, 2 * own * 1000 / 989e12 / fit.flops_frac.si
    assert exact.own_s(1000) == pytest.approx(np.hypot(read_s, compute_s), rel=0.05)  # and launches


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scheduler": Scheduler("dynamic")}, "batching = 'dynamic'"),
        ({"scheduler": Scheduler(step_tokens=0)}, "prompt-budget = 0"),
        ({"requests": lengths(0, 1, 1)}, "requests = 0"),
        ({"requests": Requests(np.zeros(1), np.array([0]), np.array([1]))}, "input = 0"),
        ({"requests": Requests(np.zeros(1), np.array([1]), np.array([0]))}, "output = 0"),
    ],
)
def test_bad_input(change, message):
    given_ = {"requests": lengths(4, 10, 10), **change}
    with pytest.raises(InputError, match=message):
        simulate.run(a100(), PLANS["fp16"], Workload(), **given_)


def test_too_many_requests(monkeypatch):
    monkeypatch.setattr(simulate, "MAX_REQUESTS", 3)
    with pytest.raises(LimitError, match="at most 3"):
        simulate.run(a100(), PLANS["fp16"], Workload(), lengths(4, 10, 10))


@pytest.mark.parametrize(("name", "n_in", "n_out", "fit"), [("sinkq", 1060, 20, 625), ("fp16", 1060, 20, None)])
def test_reserved_requests_are_as_many_as_a_point_has(name, n_in, n_out, fit):
    """625 by hand: (80e9 - 2 * 6,738,415,616 B of weights) / 106,343,680 B, the most from 1,060 to 1,080 tokens."""
    kv, work = build("llama2-7b", name), Workload(10**6, n_in, n_out)
    device = catalog.device("a100-80gb")
    most = evaluate(Point(device, kv, work))["max_batch"]
    requests = Requests(np.zeros(700), np.full(700, n_in), np.full(700, n_out))
    run = simulate.run(device, kv, work, requests)
    assert run.peak_running == most
    assert fit in (None, most)
    assert run.peak_used_bytes <= run.free_bytes


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_the_largest_pages_of_a_stretch(seed, page):
    rng = np.random.default_rng(seed)
    held = rng.integers(0, 20, 42)
    inputs = rng.integers(1, 20 * page, 30)
    outputs = rng.integers(1, 20 * page, 30)
    found = simulate.largest_pages(Requests(np.zeros(30), inputs, outputs), held, page)
    for n_in, n_out, at in zip(inputs, outputs, found, strict=True):
        first, last = -(-n_in // page), -(-(n_in + n_out) // page)
        assert first <= at <= last
        assert held[at] == held[first : last + 1].max()


def test_a_run_that_grows_long_is_compiled(monkeypatch):
    """Few requests at a time take many steps: what began in Python ends in machine code, with the same numbers."""
    work = Workload(batch=4, model_kind="ideal", admission="reserve")
    kv, requests = PLANS["fp16"], Requests(np.arange(99.0), np.full(99, 20), np.full(99, 30))
    asked = room_for(kv, work, 200), kv, work, requests, Scheduler("continuous", 64), times_of(kv, 6)
    compiled, calls = loop.compiled(), []
    monkeypatch.setattr(simulate, "PLAIN_STEPS", 1000)
    monkeypatch.setattr(loop, "compiled", lambda: calls.append(1) or compiled)
    found, plain = simulate.run(*asked), simulate.run(*asked, compiled=False)
    assert calls
    assert found.n_steps == plain.n_steps > 1000
    assert (found.finish_s == plain.finish_s).all()
