"""Separate pools of prompts and of tokens: by hand, as properties, and beside a simulated twin."""

import heapq
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import factories
from dse.core.errors import InputError
from dse.model import disaggregated
from dse.model.disaggregated import Servers
from dse.specs import catalog


def point(model="llama3.1-8b", kv="fp16", device="h200", **work):
    return factories.point(device, model, kv, **{"input_tokens": 2048, "output_tokens": 256, "stack": "vllm", **work})


def pools(n_prompt=1, n_decode=1, **work):
    return Servers(point(**{**work, "output_tokens": 1}), n_prompt), Servers(point(**work), n_decode)


BOTH = pools(), pools(rounds=10_000)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300), st.integers(8, 13), st.integers(1, 6))  # beyond a node, whose links are faster
def test_littles_law_holds_and_no_part_is_faster_than_it_can_be(n, n_prompt, n_decode):
    prompts, decoding = (pool._replace(n_servers=k) for pool, k in zip(BOTH[0], (n_prompt, n_decode), strict=True))
    found = disaggregated.serve(prompts, decoding, n)
    assert found.requests_per_s * (found.ttft_s + 256 * found.tpot_s) == pytest.approx(n)
    assert found.requests_per_s <= min(found.prompts_per_s, found.sends_per_s, found.decodes_per_s) * (1 + 1e-9)
    assert found.decoding_requests * n_decode <= n
    # one server more of either kind never serves fewer, and one request more neither
    for more in (
        disaggregated.serve(prompts._replace(n_servers=n_prompt + 1), decoding, n),
        disaggregated.serve(prompts, decoding._replace(n_servers=n_decode + 1), n),
        disaggregated.serve(prompts, decoding, n + 1),
    ):
        assert more.requests_per_s >= found.requests_per_s * (1 - 1e-6)


def test_one_request_has_its_prompt_its_transfer_and_steps_without_prompts():
    prompts, decoding = BOTH[0]
    found = disaggregated.serve(prompts, decoding, 1)
    alone = prompts.point.cycle_of(1.0, float(prompts.point.max_batch)).prompt_s
    assert found.tpot_s == pytest.approx(decoding.point.run(1).wave.decode_step_s)
    assert found.ttft_s == pytest.approx(alone + found.send_s, rel=1e-6)


def test_where_all_start_at_once_a_request_waits_for_half_of_the_others_prompts():
    found = disaggregated.serve(*pools(2, 3, rounds=1), 12)
    alone = disaggregated.serve(*pools(2, 3, rounds=1), 1)
    assert found.ttft_s == pytest.approx(alone.ttft_s + (12 - 2) / found.prompts_per_s / 2, rel=1e-6)


def test_the_slower_pool_bounds_the_rate():
    prompts, decoding = BOTH[0]
    few = disaggregated.serve(prompts, decoding._replace(n_servers=20), 4000)
    assert few.bound == "prompts"
    assert few.requests_per_s == pytest.approx(few.prompts_per_s, rel=0.01)
    assert few.decoding_requests < 4000 / 20 / 2  # most wait for their prompts
    many = disaggregated.serve(prompts._replace(n_servers=20), decoding, 2000)
    assert many.bound == "decoding"
    assert many.requests_per_s == pytest.approx(many.decodes_per_s)  # all places taken, the others wait for one
    assert many.decoding_requests == decoding.point.max_batch < 2000
    assert many.ttft_s == pytest.approx((2000 / many.decoding_requests - 1) * 256 * many.tpot_s)


@pytest.mark.parametrize(
    ("fields", "by_hand"),
    [
        # keys and values of 32 layers, 8 heads of 128, in 16 bits: 131,072 B a token; over two devices half
        ({}, 131_072 * 2048),
        ({"tp": 2}, 65_536 * 2048),
        ({"pp": 2}, 65_536 * 2048),
        ({"kv": "fp8"}, 65_536 * 2048),
        # the latent of 61 layers, 512 + 64 values of a byte, whole on each device
        ({"model": "deepseek-v3", "kv": "fp8", "tp": 8, "weights": "fp8-block"}, 61 * 576 * 2048),
    ],
)
def test_bytes_that_are_sent_by_format(fields, by_hand):
    found = disaggregated.serve(*pools(4, 4, **fields), 1)
    assert found.sent_bytes == by_hand
    # beyond the 8 devices of a node an H200 sends 50 GB/s
    n_devices = 8 * fields.get("tp", 1) * fields.get("pp", 1)
    rate = 50e9 if n_devices > 8 else catalog.device("h200").link_bandwidth.si
    assert found.send_s == pytest.approx(by_hand / rate, abs=1e-4)


def simulated(n, prompt_s, decode_s, seed=0, n_served=20_000):
    """Requests a second of a closed loop: one server of prompts, first come first served, then a delay, exponential."""
    draw, ready, free, served = random.Random(seed), [0.0] * n, 0.0, 0
    while served < n_served:
        free = max(heapq.heappop(ready), free) + prompt_s
        heapq.heappush(ready, free + draw.expovariate(1 / decode_s))
        served += 1
    return served / free


@pytest.mark.parametrize("n", [4, 16, 40, 80, 160])
def test_the_queue_of_prompts_is_that_of_a_simulated_twin(n):
    found = disaggregated.serve(*BOTH[1], n)  # so many rounds that the start does not count
    twin = simulated(n, 1 / found.prompts_per_s, 256 * found.tpot_s)
    # the twin computes one prompt in the time that one takes of many
    assert found.requests_per_s == pytest.approx(twin, rel=0.03)


def test_what_cannot_be_is_one_line():
    prompts, decoding = BOTH[0]
    full = Servers(point("llama3.1-70b", weights="bf16"), 1)
    for arguments, words in (
        ((prompts._replace(n_servers=0), decoding, 1), "servers of prompts = 0: must be a whole number from 1"),
        ((prompts, decoding._replace(n_servers=0), 1), "servers of decoding = 0: must be a whole number from 1"),
        ((prompts, decoding, 0), "requests = 0: must be a whole number from 1"),
        ((prompts, full, 1), "pool of decoding: weights, activations, graphs and buffers"),
        ((full, decoding, 1), "pool of prompts: weights, activations, graphs and buffers"),
    ):
        with pytest.raises(InputError) as problem:
            disaggregated.serve(*arguments)
        assert str(problem.value).startswith(words)
        assert "\n" not in str(problem.value)
