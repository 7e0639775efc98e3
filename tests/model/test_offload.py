"""Keys and values in host memory: bytes, the link and computing again by hand, and what is refused."""

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dse.cli import main
from dse.core.errors import InputError
from dse.model import engine
from dse.model.offload import Beginning, offload_of
from dse.model.point import Point
from dse.specs import catalog
from dse.specs.device_and_model import Quantity
from dse.specs.workload import Workload
from factories import build, compare_with_rows, sweep_of

A100 = catalog.device("a100-80gb")
#: bytes of a token of OPT-13B in 16 bits: keys and values of 40 layers of 5,120
TOKEN = 2 * 40 * 5120 * 2
#: a batch of 16, 1,024 tokens in and as many out: 1,536.5 in a mean step
TOKENS = 16 * (1024 + 1025 / 2)


def point(share, device=A100, model="opt-13b", quantizer="fp16", **work):
    return Point(device, build(model, quantizer), Workload(kv_offload=share, **{"batch": 16, **work}))


def with_link(rate):
    link = Quantity(value=rate, unit="B/s", source="test", kind="assumed")
    return A100.model_copy(update={"host_link": link})


def test_all_of_it_comes_over_the_link_in_each_step():
    """20.1 GB a step at PCIe 4.0's 32 GB/s, 629 ms: longer than all else, which runs beside it."""
    all_away = point(1.0, model_kind="ideal")
    found = offload_of(all_away)
    alone = engine.evaluate(point(0.0, model_kind="ideal"))
    assert found.link_bytes == pytest.approx(TOKENS * TOKEN)
    assert found.link_s == pytest.approx(TOKENS * TOKEN / 32e9)
    assert engine.evaluate(all_away)["decode_step_s"] == pytest.approx(found.link_s)
    assert found.wait_s == pytest.approx(found.link_s - alone["decode_step_s"])


def test_little_of_it_hides_behind_the_step():
    """1 % is 6.3 ms over the link, where a step takes 22.5 ms."""
    little, alone = (point(share, model_kind="ideal") for share in (0.01, 0.0))
    assert engine.evaluate(little)["decode_step_s"] == engine.evaluate(alone)["decode_step_s"]
    assert offload_of(little).wait_s == 0


def test_the_device_keeps_the_rest_and_two_layers():
    """Of 40 layers two are on the device whatever the share: half away leaves 1 - 38 / 80 of the bytes, 0.525."""
    asked = {"batch": None, "model_kind": "ideal", "admission": "reserve", "memory": "paper"}
    most = {share: point(share, **asked).max_batch for share in (0.0, 0.5, 1.0)}
    free = 80e9 - A100.runtime_overhead.count - engine.evaluate(point(0.0, **asked))["weight_bytes"]
    for share, left in ((0.0, 1.0), (0.5, 0.525), (1.0, 0.05)):
        # what is worked on at once: a token's logits, the widest of its activations
        one = left * 2048 * TOKEN + 2 * 50_272
        assert most[share] == pytest.approx(free / one, rel=0.002, abs=1)


def test_flexgens_cache_of_opt_175b():
    """FlexGen 3: a batch of 512 with prompts of 512 and 32 tokens to come has 1.2 TB of keys and values, 3.8 times the
    weights. Eight devices hold it, two of 96 layers on them."""
    large = point(1.0, model="opt-175b", batch=512, input_tokens=512, output_tokens=32, tp=8, memory="paper")
    by_hand = 4 * 96 * 12_288 * 512 * (512 + 32)
    assert by_hand / 2**40 == pytest.approx(1.2, abs=0.05)
    assert large.max_batch >= 512
    assert 8 * offload_of(large).host_bytes == pytest.approx(by_hand * 94 / 96, rel=1e-3)
    assert by_hand / (8 * engine.evaluate(large)["weight_bytes"]) == pytest.approx(3.8, rel=0.02)


def test_where_computing_again_wins():
    """Over a link of 2 GB/s a token takes 410 us, computing it 81 us at the peak and 1.3 ns for each token before it.

    A step reads the weights in 12.6 ms, longer than a page of 16 tokens takes and less than two do: all from 17 tokens
    to 250 thousand are computed sooner, and at 32 GB/s none. Half of 1,536 tokens are computed in 62 ms and 0.8 ms of
    attention, as long as they take over a link of 10.0 GB/s.
    """
    model = catalog.model("opt-13b")
    token_s = 2 * (model.dense_parameters - 50_272 * 5120) / 312e12  # the output head meets the last token alone
    slow = offload_of(point(0.5, with_link(2e9), model_kind="ideal"))
    ((first, last),) = slow.computed_sooner
    assert 16 * TOKEN / 2e9 < 2 * model.dense_parameters / 2.039e12 < 32 * TOKEN / 2e9
    assert first == 17
    pair_s = 2 * 40 * 5120 / 312e12
    assert last == pytest.approx((TOKEN / 2e9 - token_s) / pair_s, rel=0.02)
    found = offload_of(point(0.5, model_kind="ideal"))
    assert found.computed_sooner == ()
    again_s = 768 * token_s + pair_s * 768**2
    assert found.again_s == pytest.approx(16 * again_s, rel=0.01)
    assert found.even_bytes_per_s == slow.even_bytes_per_s == pytest.approx(768 * TOKEN / again_s, rel=0.01)


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_in_host_memory_makes_room_and_no_step_faster(one, other):
    less, more = (engine.evaluate(point(share, batch=None)) for share in sorted((one, other)))
    assert more["max_batch"] >= less["max_batch"]
    assert engine.evaluate(point(max(one, other)))["tpot_s"] >= engine.evaluate(point(min(one, other)))["tpot_s"]


def test_sweeps_offload_as_points_do():
    axes = {"device": ["h100", "a100-80gb"], "model": "llama3-8b", "model_kind": "auto", "quantizer": ["fp16", "fp8"]}
    each = {"batch": [1, 300], "input_tokens": 5000, "output_tokens": 300, "kv_offload": [0.0, 0.25, 1.0]}
    assert compare_with_rows(sweep_of({**axes, **each, "admission": ["reserve", "paged"]})) == 0


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"prefix_tokens": 16}, "leave out --prefix"),
        ({"samples": 2}, "leave out --samples"),
        ({"kv_cache": False}, "without a KV cache"),
        ({"share": 1.5}, "must be a share from 0 to 1"),
        ({"device": catalog.device("oaken-hbm"), "model": "llama2-7b"}, "Oaken-HBM has no host_link"),
    ],
)
def test_what_cannot_be_offloaded_says_why(changed, why):
    with pytest.raises(InputError, match=rf"kv-offload = .*{why}"):
        engine.evaluate(point(**{"share": 0.5, **changed}))


def test_the_command_prints_both():
    asked = ["point", "--device", "a100-80gb", "--model", "opt-13b", "--batch", "16", "--kv-offload", "50%"]
    told = CliRunner().invoke(main.cli, asked)
    assert "computing them again instead" in told.output
    assert "goes into keys and values that come from host memory" in told.output
    numbers = json.loads(CliRunner().invoke(main.cli, [*asked, "--json"]).output)
    assert numbers["offload"]["link_s"] == numbers["offload"]["link_bytes"] / 32e9


@pytest.mark.parametrize(("rate", "start_s"), [(32e9, 0.05), (4e9, 0.2), (64e9, 0.0)])
def test_a_beginning_is_fetched_from_where_both_take_as_long(rate, start_s):
    """At the crossing fetching is sooner, a token before it is not; whole pages of 16 tokens are fetched."""
    beginning = Beginning(point(0.0), rate, start_s)
    crossing = beginning.fetched_from()
    fetch_s = [start_s + -(-n // 16) * 16 * TOKEN / rate for n in (crossing, crossing - 1)]
    assert fetch_s[0] <= beginning.again_s(crossing)
    assert crossing == 1 or fetch_s[1] > beginning.again_s(crossing - 1)


def test_a_beginning_is_never_fetched_over_a_slow_link():
    """At 0.1 GB/s a token takes 8.2 ms; computing one, 26 GFLOP, 0.1 ms and at a million tokens up to 1.3 ms more."""
    assert Beginning(point(0.0), 1e8).fetched_from() is None
