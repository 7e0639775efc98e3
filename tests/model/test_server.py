"""The one server: by hand, beside a loop over its steps, and Little's law over designs, stacks and releases."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import factories
from dse.core.errors import DseError, InputError
from dse.model import engine
from dse.model.attention import NO_SUMS
from dse.model.formulas import host, steady
from dse.model.point import Point
from dse.model.records import CHUNKED, CONTINUOUS, STATIC
from dse.model.server import AtOnce, cycle_of, last_pass
from dse.model.step import shared_pass, shared_step_s
from dse.specs import catalog
from dse.specs.workload import Workload


def point(batch, n_in=512, n_out=128, device=None, quantizer="fp16", **work):
    work = {"memory": "paper", "admission": "paged", **({} if device else {"model_kind": "ideal"}), **work}
    return Point(
        device or factories.device(), factories.build("llama2-7b", quantizer), Workload(batch, n_in, n_out, **work)
    )


def test_one_request_by_hand():
    # alone, no other prompt falls between two of its tokens: the next request's is that one's time to a first token
    # 13.48 GB of weights at 2 TB/s take 6.74 ms; keys and values of 576.5 tokens, 524,288 B each, 0.15 ms; a prompt of
    # 512 tokens multiplies longer than its weights are read: 2 * 6.74e9 * 512 FLOP at 312 TFLOP/s are 22.1 ms
    kv = factories.build("llama2-7b", "fp16")
    n = kv.model.dense_parameters
    attention_s = 524_288 * (512 + 64.5) / 2e12
    for batching in ("static", "continuous", "chunked"):
        own = point(1, batching=batching)
        prompt_s = engine.evaluate(own)["prefill_s"]
        assert prompt_s == pytest.approx(2 * n * 512 / 312e12, rel=0.03)
        assert engine.evaluate(own)["tpot_s"] == pytest.approx(2 * n / 2e12 + attention_s)
        assert engine.evaluate(own)["ttft_s"] == pytest.approx(prompt_s)  # no other prompt is before its own
        rate = 128 / (prompt_s + 128 * engine.evaluate(own)["tpot_s"])
        assert engine.evaluate(own)["throughput_tokens_per_s"] == pytest.approx(rate)


def test_cycles_by_hand():
    # static: one step with all prompts, and 100 of decoding
    assert cycle_of(8, 50, 100, 1, STATIC, 1) == (0, 8, 1, 1, 101, 400, 400)
    # whole prompts of 50 in steps of 200 tokens: four at a time, so two steps for eight
    whole = cycle_of(8, 50, 100, 200, CONTINUOUS, 0)
    assert whole[1] == pytest.approx(200 / 49)
    assert whole[3:5] == pytest.approx((8 * 49 / 200, 100 + 8 * 49 / 200))
    # of 400 tokens: half of one in a step
    assert cycle_of(8, 400, 100, 200, CONTINUOUS, 0) == (0, 0.5, 2, 16, 116, 200, 200)
    # chunked, long prompts: a step of 200 has the other seven requests and 193 tokens of a prompt of 1,930
    long = cycle_of(8, 1930, 1000, 200, CHUNKED, 1)
    assert long[0] == 7
    assert long[1] == pytest.approx(192 / 1930)
    assert long[2] == pytest.approx(1930 / 192)  # steps of its own prompt
    assert long[3] == pytest.approx(8 * 1930 / 192)
    # short ones come one by one: in 1,001 steps eight, hardly ever two at once
    short = cycle_of(8, 50, 1000, 8192, CHUNKED, 1)
    assert short[1] == pytest.approx(1 + 8 / 1001 / 2, rel=1e-3)
    assert short[4] == 1001
    # answers as short as steps are full of prompts: of 199 tokens a fifth is of answers, as requests have them
    full = cycle_of(100, 400, 100, 200, CHUNKED, 1)
    assert full[0] == pytest.approx(199 / 5)
    assert full[3] == full[4] == pytest.approx(100 * 500 / 199)
    # no jump where steps begin to be full: 7 others decode, of 140 = 7 * 20 steps' tokens
    before, after = (cycle_of(8, own, 20, 2048, CHUNKED, 1) for own in (5828, 5829))
    assert (before[4] > before[3], after[4] == after[3]) == (True, True)
    assert after[3] == pytest.approx(before[3], rel=1e-3)
    assert after[0] == pytest.approx(before[0], rel=1e-3)


def test_cycles_of_groups_by_hand():
    """Four groups of 8 requests, of which each has prompts in a share of its steps."""
    one, four = (cycle_of(8, 193, 160 - 1, 200, CHUNKED, n) for n in (1, 4))
    share = one.prompt_steps / one.all_steps
    some = 1 - (1 - share) ** 4
    assert four.prompt_steps == pytest.approx(some * one.all_steps)
    # in such a step share / some of the groups have 200 tokens, the others their 8 requests
    assert four.mean_tokens == pytest.approx(share / some * one.n_tokens + (1 - share / some) * 8)
    assert (four.n_tokens, four.all_steps, four.own_steps) == (one.n_tokens, one.all_steps, one.own_steps)


def test_a_static_batch_is_what_papers_have():
    found = engine.evaluate(point(32, batching="static"))
    assert (found["tpot_s"], found["ttft_s"]) == (found["decode_step_s"], found["prefill_s"])
    assert found["throughput_tokens_per_s"] == pytest.approx(found["static_batch_tokens_per_s"], rel=1e-12)
    assert engine.evaluate(point(32))["throughput_tokens_per_s"] == found["throughput_tokens_per_s"]  # by default


def test_of_one_round_every_request_waits_for_half_of_the_others_prompts():
    one, ten = (engine.evaluate(point(16, rounds=rounds, batching="chunked"))["ttft_s"] for rounds in (1, 10))
    steps = point(16, batching="chunked").cycle
    others = (steps.cycle.prompt_steps - steps.cycle.own_steps) * steps.prompt_step_s
    long_run = engine.evaluate(point(16, batching="chunked"))["ttft_s"]
    assert one - long_run == pytest.approx(others / 2)
    assert ten - long_run == pytest.approx(others / 20)


def test_a_first_token_waits_for_the_host_of_every_request_that_runs():
    """92 layers of 1.5 ms, of which 100 ms keep all waiting in the step, and 100 requests of 1.7 ms: 38 + 170 ms."""
    assert host.start_s(100, 92 * 1.5e-3, 0.1, 1.7e-3) == pytest.approx(0.208)
    made = point(8, batching="chunked")  # a static batch, as papers have it, is no server
    stack = made.design.stack._replace(host_request_s=0.01)
    slower = made.design._replace(stack=stack)
    requests = AtOnce(8.0, 8.0, 128.0, n_apart=0, longest=1.0)
    times = [last_pass(design, made.made, made.terms, made.sums, requests, 0.0) for design in (made.design, slower)]
    assert times[1].prompt_s - times[0].prompt_s == pytest.approx(8 * 0.01)
    assert times[1].decode_s == times[0].decode_s  # others go on meanwhile


def test_a_step_waits_once_for_the_start_of_its_prompts():
    """Kernels of a step are started one after the other, whatever it holds: half a prompt, one, or 30 of them."""
    made = point(64, batching="chunked")
    shared = shared_pass(made.design, made.terms, 0.0, 512.0, 512.0)
    for prompts, blocks_s in ((0.5, 0.05), (1.0, 0.1), (30.0, 0.1)):
        bare, held = (shared_step_s(0.0, prompts, shared, NO_SUMS, made.terms, seconds) for seconds in (0.0, 0.1))
        assert held - bare == pytest.approx(blocks_s)


def test_no_more_requests_run_than_the_server_takes():
    free, limited = point(64, batching="chunked"), point(64, max_num_seqs=16, batching="chunked")
    assert (free.max_batch > 64, limited.max_batch) == (True, 16)
    # each waits for a place as long as 3 requests ahead of it hold one
    alone = engine.evaluate(point(16, batching="chunked"))
    wait_s = engine.evaluate(limited)["ttft_s"] - alone["ttft_s"]
    in_place_s = alone["ttft_s"] + 128 * engine.evaluate(limited)["tpot_s"]
    assert wait_s == pytest.approx(3 * in_place_s, rel=1e-9)
    assert engine.evaluate(limited)["fits_whole_batch"] is False
    assert (engine.evaluate(limited)["running_batch"], engine.evaluate(limited)["bound"]) == (16, "capacity")


def test_formulas_by_hand():
    # 31 steps with the prompts of others, 50 ms each: half of them, in 2 of 10 rounds; in one round, all of which is
    # in step; nobody else
    assert steady.burst_wait_s(31, 0.05, 2, 10) == pytest.approx(0.155)
    assert steady.burst_wait_s(31, 0.05, 2, 1) == pytest.approx(0.775)
    assert steady.burst_wait_s(0, 0.05, 2, 1) == 0
    assert steady.place_wait_s(48, 16, 3.0) == pytest.approx(6.0)
    assert steady.place_wait_s(16, 16, 3.0) == 0
    assert steady.decoding_requests(40, 1.0, 3.0) == 30
    # 16 requests of 100 tokens, each after 2 s + 100 * 20 ms
    assert steady.closed_loop_tokens_per_s(16, 100, 2.0, 0.02) == pytest.approx(400)


LAYOUTS = st.sampled_from([{}, {"tp": 2}, {"tp": 4}, {"pp": 2}, {"tp": 4, "dp_attention": True}, {"tp": 4, "ep": 2}])
STACKS = ["vllm", "vllm@0.7.2", "vllm@0.12.0", "sglang", "sglang@0.5.8", "trtllm", "trtllm@1.0.0"]


@given(
    st.sampled_from(["h100", "h200", "b200", "a100-80gb", "l40s", "mi300x", "oaken-lpddr"]),
    st.sampled_from(["llama3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b", "gemma-3-12b", "deepseek-v2-lite"]),
    st.sampled_from(["fp16", "fp8"]),
    st.sampled_from([1, 2, 7, 16, 64, 200, 1000, None]),
    st.sampled_from([(32, 16), (64, 1), (512, 64), (1024, 1024), (4096, 256), (16384, 2048)]),
    LAYOUTS,
    st.sampled_from(STACKS),
    st.sampled_from([None, "static", "continuous", "chunked"]),
    st.sampled_from([None, 1, 10]),
)
def test_littles_law(device, model, quantizer, batch, lengths, layout, stack, batching, rounds):
    """N = X (TTFT + O TPOT), of every design: requests at the server are those that come times how long they stay."""
    work = {"batch": batch, "input_tokens": lengths[0], "output_tokens": lengths[1], "batching": batching, **layout}
    spec = catalog.device(device)
    if spec.stacks:
        work["stack"] = stack
    try:
        found = engine.evaluate(Point(spec, factories.build(model, quantizer), Workload(**work, rounds=rounds)))
    except DseError:
        assume(False)
    assume(found["feasible"])
    n_out = found["output_tokens"]
    held = found["requests_per_s"] * (found["ttft_s"] + n_out * found["tpot_s"])
    assert held == pytest.approx(found["batch"], rel=1e-6)
    assert found["throughput_tokens_per_s"] == pytest.approx(found["requests_per_s"] * n_out)
    assert 0 < found["decoding_requests"] <= found["running_batch"] * (1 + 1e-9)
    assert found["tpot_s"] > 0 or (found["kv_cache"] is False and lengths[1] == 1)
    if found["usd_per_million_tokens"]:
        hours = 1e6 / found["throughput_tokens_per_s"] / 3600
        price = spec.usd_per_hour.si * found["n_devices"]
        assert found["usd_per_million_tokens"] == pytest.approx(hours * price)


def served(n_places, n_clients, decode_s, prompt_s, n_out, rounds=10):
    """(mean time per output token, mean time to the first) of a closed loop of whole prompts, step by step: all that
    wait at once share a step."""
    now, waiting, running, rest = 0.0, [0.0] * n_clients, [], (rounds - 1) * n_clients
    firsts, tokens = [], []
    while waiting or running:
        n_free = n_places - len(running)
        started, waiting = waiting[:n_free], waiting[n_free:]
        if started:
            now += prompt_s * len(started)
            firsts += [now - sent for sent in started]
            running += [(n_out, now)] * len(started)
            continue
        now += decode_s(len(running))
        kept = []
        for n_left, first in running:
            if n_left > 1:
                kept.append((n_left - 1, first))
                continue
            tokens.append((now - first) / n_out)
            if rest:
                rest -= 1
                waiting.append(now)
        running = kept
    return sum(tokens) / len(tokens), sum(firsts) / len(firsts)


@pytest.mark.parametrize(("batch", "n_in", "n_out"), [(2, 2048, 64), (4, 512, 256), (16, 512, 256), (32, 2048, 128)])
def test_a_loop_over_steps_takes_as_long(batch, n_in, n_out):
    """All in step, whole prompts: what a request does not wait for before its first token it waits for after it, so
    that the time of a request is that of all prompts and of its steps."""
    own = point(batch, n_in, n_out, batching="continuous", prompt_budget_tokens=batch * n_in)
    each_s = own.run(batch).wave.prefill_s / batch
    tpot_s, ttft_s = served(batch, batch, lambda n: own.run(n).wave.decode_step_s, each_s, n_out)
    found = engine.evaluate(own)
    assert found["ttft_s"] + n_out * found["tpot_s"] == pytest.approx(ttft_s + n_out * tpot_s, rel=0.01)


def test_releases_schedule_as_they_do():
    kv = factories.build("llama3.1-8b", "fp16")

    def how(**work):
        return Point(catalog.device("h100"), kv, Workload(8, 1024, 128, **work)).design.load.batching

    assert how(stack="vllm") == how(stack="vllm@0.12.0") == how(stack="trtllm") == CHUNKED
    assert how(stack="vllm@0.7.2") == how(stack="sglang") == CONTINUOUS
    assert how(memory="paper") == STATIC
    assert how(stack="sglang", batching="chunked") == CHUNKED
    with pytest.raises(InputError, match="without a KV cache a batch is static"):
        engine.evaluate(point(1, kv_cache=False, admission="reserve", batching="chunked"))


def test_what_does_not_fit_has_no_times():
    assert engine.evaluate(point(4, device=factories.device(capacity=10 * 10**9)))["tpot_s"] is None


def test_one_long_prompt_after_the_other_leaves_the_tokens_alone():
    """H100, Llama 3.1 8B, 122,880 tokens in, alone: a token took 11.81 ms."""
    kv, work = factories.build("llama3.1-8b", "fp16"), Workload(1, 122_880, 128)
    found = engine.evaluate(Point(catalog.device("h100"), kv, work))
    assert found["tpot_s"] == pytest.approx(found["decode_step_s"]) == pytest.approx(11.81e-3, rel=0.01)
