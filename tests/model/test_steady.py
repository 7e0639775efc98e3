"""A server that replaces each request as it ends: by hand, and beside a loop over its steps."""

from collections import deque

import pytest

import factories
from dse.model.evaluate import Point
from dse.model.formulas import steady
from dse.specs import catalog
from dse.specs.workload import Workload


def point(batch, n_in=512, n_out=128, device=None, **work):
    work = {"memory": "paper", "admission": "paged", **({} if device else {"model_kind": "ideal"}), **work}
    return Point(
        device or factories.device(), factories.build("llama2-7b", "fp16"), Workload(batch, n_in, n_out, **work)
    )


def test_one_request_by_hand():
    # alone, no other prompt falls between two of its tokens: the next request's is that one's time to a first token
    # 13.48 GB of weights at 2 TB/s take 6.74 ms; keys and values of 576.5 tokens, 524,288 B each, 0.15 ms; a prompt of
    # 512 tokens multiplies longer than its weights are read: 2 * 6.74e9 * 512 FLOP at 312 TFLOP/s are 22.1 ms
    kv = factories.build("llama2-7b", "fp16")
    n = kv.model.dense_parameters
    own = point(1)
    attention_s = 524_288 * (512 + 64.5) / 2e12
    prompt_s = own.results["prefill_s"]
    assert prompt_s == pytest.approx(2 * n * 512 / 312e12, rel=0.03)
    assert own.results["tpot_s"] == pytest.approx(2 * n / 2e12 + attention_s)
    assert own.results["ttft_s"] == pytest.approx(prompt_s)  # no other prompt is before its own


def test_of_one_round_every_request_waits_for_half_of_the_others_prompts():
    one, ten = (point(16, rounds=rounds).results["ttft_s"] for rounds in (1, 10))
    prompt_s = point(1).results["prefill_s"]
    assert one - prompt_s == pytest.approx(15 * prompt_s / 2, rel=0.02)
    assert ten - prompt_s == pytest.approx(15 * prompt_s / 20, rel=0.02)


def test_no_more_requests_run_than_the_server_takes():
    free, limited = point(64), point(64, max_num_seqs=16)
    assert (free.max_batch > 64, limited.max_batch) == (True, 16)
    # each waits for a place as long as 3 requests ahead of it hold one
    wait_s = limited.results["ttft_s"] - point(16).results["ttft_s"]
    in_place_s = point(16).results["ttft_s"] + 128 * limited.results["tpot_s"]
    assert wait_s == pytest.approx(3 * in_place_s, rel=1e-9)
    assert limited.results["fits_whole_batch"] is False
    assert (limited.results["running_batch"], limited.results["bound"]) == (16, "capacity")


def test_formulas_by_hand():
    assert [steady.others_share(n) for n in (1, 0.5, 4)] == [0, 0, 0.75]
    assert steady.shared_token_s(0.020, 0.6, 100) == pytest.approx(0.026)
    # 31 others of 50 ms: half of them, in 2 of 10 rounds; in one round, all of which is in step; nobody else
    assert steady.burst_wait_s(32, 0.05, 2, 10) == pytest.approx(0.155)
    assert steady.burst_wait_s(32, 0.05, 2, 1) == pytest.approx(0.775)
    assert steady.burst_wait_s(0.5, 0.05, 2, 1) == 0
    assert steady.place_wait_s(48, 16, 3.0) == pytest.approx(6.0)
    assert steady.place_wait_s(16, 16, 3.0) == 0
    assert steady.decoding_requests(40, 1.0, 3.0) == 30


def served(n_places, n_clients, decode_s, prompt_s, n_out, rounds=10):
    """(mean time per output token, mean time to the first) of a closed loop, one prompt a step at most, step by step.

    All clients start at once, and each asks again as soon as its request ends, `rounds` times.
    """
    now, waiting, running, rest = 0.0, deque([0.0] * n_clients), [], (rounds - 1) * n_clients
    firsts, tokens = [], []
    while waiting or running:
        step_s = decode_s(len(running)) if running else 0.0
        started = waiting.popleft() if waiting and len(running) < n_places else None
        now += step_s + (0.0 if started is None else prompt_s)
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
        if started is not None:
            firsts.append(now - started)
            running.append((n_out, now))
    middle = tokens[n_places:-n_places]  # the first and the last meet more prompts, or fewer
    return sum(middle) / len(middle), sum(firsts) / len(firsts)


@pytest.mark.parametrize(
    ("batch", "n_in", "n_out"), [(2, 2048, 64), (4, 512, 256), (16, 512, 256), (16, 1024, 64), (32, 2048, 128)]
)
def test_a_loop_over_steps_takes_as_long_per_token(batch, n_in, n_out):
    """Within 1 %: the closed form takes all places to decode, and each other place to take one prompt meanwhile."""
    own = point(batch, n_in, n_out, rounds=10)
    one = own.run(1).wave.prefill_s
    tpot_s, _ = served(batch, batch, lambda n: own.run(n).wave.decode_step_s, one, n_out)
    assert own.results["tpot_s"] == pytest.approx(tpot_s, rel=0.01)


@pytest.mark.parametrize("batch", [4, 16, 32])
def test_a_loop_over_steps_takes_as_long_to_the_first_token(batch):
    """Within a quarter: in the loop a prompt also waits for the step that runs, which the closed form leaves out."""
    own = point(batch, 2048, 512, rounds=10)
    wave = own.run(batch).wave
    _, ttft_s = served(batch, batch, lambda n: own.run(n).wave.decode_step_s, wave.prefill_s / batch, 512)
    assert own.results["ttft_s"] == pytest.approx(ttft_s, rel=0.25)


@pytest.mark.parametrize(("share", "n_in", "n_out"), [(2, 512, 128), (4, 2048, 128), (4, 4096, 64)])
def test_a_loop_over_steps_waits_as_long_for_a_place(share, n_in, n_out):
    """64 clients, places for 1 in `share` of them: times per token within 5 %, to the first within 10 %."""
    kv_bytes = 524_288 * (n_in + n_out) * 64 // share
    own = point(64, n_in, n_out, device=factories.device(capacity=13_480_000_000 + kv_bytes))
    places = own.max_batch
    assert 64 / share <= places < 1.2 * 64 / share
    prompt_s = own.run(places).wave.prefill_s / places
    tpot_s, ttft_s = served(places, 64, lambda n: own.run(n).wave.decode_step_s, prompt_s, n_out)
    assert own.results["tpot_s"] == pytest.approx(tpot_s, rel=0.05)
    assert own.results["ttft_s"] == pytest.approx(ttft_s, rel=0.10)


@pytest.mark.parametrize("stack", ["vllm", "sglang", "trtllm"])
def test_more_requests_never_shorten_a_token(stack):
    """Of measured stacks, whose own time is in every step, at one and at several devices."""
    kv = factories.build("llama3.1-8b", "fp16")
    times = [
        Point(catalog.device("h100"), kv, Workload(n, 1024, 1024, admission="paged", stack=stack)).results
        for n in (1, 2, 4, 8, 16, 32, 64, 128)
    ]
    tokens = [found["tpot_s"] for found in times]
    assert tokens == sorted(tokens)
    assert all(found["tpot_s"] >= found["host_s"] > 0 for found in times)
    firsts = [found["ttft_s"] for found in times]
    assert firsts == sorted(firsts)


def test_what_does_not_fit_has_no_times():
    assert point(4, device=factories.device(capacity=10 * 10**9)).results["tpot_s"] is None


def test_one_long_prompt_after_the_other_leaves_the_tokens_alone():
    """H100, Llama 3.1 8B, 122,880 tokens in, alone: a token took 11.81 ms."""
    kv, work = factories.build("llama3.1-8b", "fp16"), Workload(1, 122_880, 128)
    found = Point(catalog.device("h100"), kv, work).results
    assert found["tpot_s"] == found["decode_step_s"] == pytest.approx(11.81e-3, rel=0.01)


def test_few_more_tokens_of_a_prompt_change_a_token_as_little():
    """A100, Llama2-13B, two requests: 12,608 to 12,672 tokens in are half a percent more."""
    kv = factories.build("llama2-13b", "fp16")
    times = [
        Point(catalog.device("a100-80gb"), kv, Workload(2, n_in, 64)).results["tpot_s"]
        for n_in in range(12_480, 12_801, 16)
    ]
    assert times == sorted(times)
    assert times[-1] < 1.03 * times[0]
