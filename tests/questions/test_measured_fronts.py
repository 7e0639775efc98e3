"""Measured layouts beside a recommended one: by hand, on rows of one's own and on cells that ship."""

import pytest

import dse
from dse.questions import measured_fronts
from dse.questions.measured_fronts import MeasuredLayout, measured_front

PICK = {
    "model": "m",
    "device": "H200",
    "stack": "vllm@0.33.0",
    "weights": None,
    "weights_bits": 16,
    "quantizer": "fp8",
    "batch": 60,
    "input_tokens": 1024,
    "output_tokens": 1024,
    "n_devices": 2,
    "tp": 2,
    "pp": 1,
    "ep": 1,
    "dp_attention": False,
    "dcp": 1,
}


def one(tp, ratio, **changes):
    said = {
        "model": "m",
        "input_tokens": 922,
        "output_tokens": 922,
        "limit_s": 0.02,
        "device": "H200",
        "engine": "vllm",
        "release": "0.19.0",
        "month": "2026-04",
        "weights": "bf16",
        "kv": "fp8",
        "n_devices": tp,
        "tp": tp,
        "pp": 1,
        "ep": 1,
        "dp_attention": False,
        "source": "InferenceX",
        "requests": 64,
        "is_open": False,
        "ratio": ratio,
    }
    return MeasuredLayout(**{**said, **changes})


@pytest.fixture
def shipped(monkeypatch):
    def ship(*rows):
        monkeypatch.setattr(measured_fronts, "shipped", lambda: rows)

    return ship


def test_a_layout_that_gave_clearly_more_is_named_with_the_figure(shipped):
    """0.8 over 0.5 is 1.6 times; 0.52 over 0.5 is within what reruns are off."""
    shipped(one(1, 0.52), one(2, 0.5), one(4, 0.8))
    found = measured_front(PICK, 0.022)
    assert found.contradicts
    assert found.text() == (
        "Measured otherwise: --tp 4 gave 1.60 times the tokens a device of --tp 2 (vLLM 0.19.0, 922 + 922 tokens, TPOT "
        "20 ms; InferenceX)."
    )
    shipped(one(1, 0.52), one(2, 0.5))
    found = measured_front(PICK, 0.022)
    assert not found.contradicts
    assert found.text() == (
        "Measured within 4 % of the best, of 2 layouts (vLLM 0.19.0, 922 + 922 tokens, TPOT 20 ms; InferenceX)."
    )
    assert found.to_json()["times"] == pytest.approx(1.04)


def test_a_layout_that_was_not_measured_is_said(shipped):
    shipped(one(1, 0.52, kv="fp16"), one(4, 0.8, kv="fp16"))
    assert measured_front(PICK, 0.02).text() == (
        "Not measured: --tp 2. Measured there, most tokens a device first: --tp 4, one device (vLLM 0.19.0, 922 + 922 "
        "tokens, TPOT 20 ms, keys and values in fp16; InferenceX)."
    )


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        # measured with less load than recommended: the least that it gives, and less than another
        ([one(2, 0.5, is_open=True, requests=32), one(4, 0.8)], None),
        # with as much load: what it gives there
        ([one(2, 0.5, is_open=True, requests=64), one(4, 0.8)], "1.60 times"),
        # the least that it gives is more
        ([one(2, 0.9, is_open=True, requests=32), one(4, 0.8)], "the best too"),
        # what others give at least, and less, says nothing of them
        ([one(2, 0.5), one(4, 0.4, is_open=True)], None),
        ([one(2, 0.5), one(4, 0.8, is_open=True)], "1.60 times"),
    ],
)
def test_a_front_that_ends_for_want_of_load_is_a_lower_bound(shipped, rows, says):
    shipped(*rows)
    found = measured_front(PICK, 0.02)
    assert (found is None) if says is None else (says in found.text())


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "n"},
        {"device": "H100"},
        {"engine": "sglang"},
        {"weights": "fp8"},
        {"input_tokens": 1281},
        {"output_tokens": 800},
        {"limit_s": 0.031},
        {"limit_s": None},
    ],
)
def test_other_servers_and_cells_too_far_away_say_nothing(shipped, changes):
    shipped(one(2, 0.5, **changes), one(4, 0.8, **changes))
    assert measured_front(PICK, 0.02) is None


def test_one_release_and_month_is_compared_the_newest_that_has_the_layout(shipped):
    old, new = {"release": "0.16.0", "month": "2026-03"}, {"release": "0.19.0", "month": "2026-04"}
    shipped(one(2, 0.4, **old), one(4, 0.5, **old), one(2, 0.9, **new), one(4, 0.8, **new))
    assert not measured_front(PICK, 0.02).contradicts
    shipped(one(2, 0.4, **old), one(4, 0.5, **old), one(1, 0.9, **new), one(4, 0.8, **new))
    assert measured_front(PICK, 0.02).times == pytest.approx(1.25)
    shipped(one(2, 0.4, **old), one(4, 0.8, **new))
    assert measured_front(PICK, 0.02) is None


def test_without_a_limit_layouts_of_as_many_devices_at_that_load_are_compared(shipped):
    """At 64 requests --ep 2 gave 1.25 times; on four devices, or at 200 requests, nothing is said of two at 60."""
    at = {"limit_s": None, "n_devices": 2}
    shipped(
        one(2, 0.8, **at), one(2, 1.0, ep=2, **at), one(2, 0.1, **at, requests=200), one(2, 1.0, ep=2, requests=200)
    )
    found = measured_front(PICK)
    assert found.text().startswith("Measured otherwise: --tp 2 --ep 2 gave 1.25 times the tokens a device of --tp 2 (")
    assert "64 requests at once" in found.text()
    assert measured_front(PICK | {"n_devices": 4}) is None
    assert measured_front(PICK | {"batch": 100}) is None


def test_rows_of_tables_that_say_less_have_none(shipped):
    shipped(one(2, 0.5), one(4, 0.8))
    for name in ("weights_bits", "stack", "dcp"):
        assert measured_front({key: value for key, value in PICK.items() if key != name}, 0.02) is None
    assert measured_front(PICK | {"dcp": 2}, 0.02) is None


def layout(tp, batch, **changes):
    return {**PICK, "n_devices": tp, "tp": tp, "batch": batch, **changes}


def test_a_cell_that_agrees_by_hand():
    """llama3.1-70b in FP8 on H100 under vLLM (InferenceX, October 2025), 7,373 and 922 tokens within 50 ms: 2 devices
    between 16 requests (34.6 ms, 222 tok/s a device) and 32 (52.4 ms, 269) give 264, 4 between 32 (32.8 ms, 235) and
    64 (53.5 ms, 289) 281, which is 1.066 times as much; 8 took no more than 64 requests, the least they give is 224."""
    server = {"model": "llama3.1-70b", "device": "H100", "weights": "fp8", "input_tokens": 8192}
    front = measured_front(layout(4, 49, **server), 0.050)
    assert [one.layout_text() for one in front.deployments] == ["--tp 4", "--tp 2"]
    assert front.deployments[0].ratio / front.deployments[1].ratio == pytest.approx(1.066, abs=0.003)
    assert front.text() == (
        "Measured the best too, of 2 layouts (vLLM 2025-10, 7,373 + 922 tokens, TPOT 50 ms; InferenceX)."
    )


def test_a_cell_that_says_otherwise_by_hand():
    """gpt-oss-120b on H200 under vLLM 0.18.0 (InferenceX), 922 and 922 tokens within 10 ms, 64 requests: 4 devices give
    1,664.9 tok/s each at 9.5 ms, 8 devices 1,120.2 at 7.1 ms, 1.486 times."""
    server = {"model": "gpt-oss-120b", "weights": "mxfp4-experts", "quantizer": "fp16"}
    front = measured_front(layout(8, 62, **server), 0.010)
    assert front.times == pytest.approx(1.486, abs=0.005)
    assert front.text().startswith(
        "Measured otherwise: --tp 4 gave 1.49 times the tokens a device of --tp 8 (vLLM 0.18"
    )


def test_devices_of_a_batch_beside_measured_ones():
    """qwen3.5-397b-a17b in FP8 on B300 under SGLang 0.5.9, 64 requests of 922 and 922 tokens: 876 tok/s a device with
    --tp 4, 703 with --ep 4 beside, 0.803 times."""
    server = {"model": "qwen3.5-397b-a17b", "device": "B300", "stack": "sglang", "weights": "fp8-block"}
    front = measured_front(layout(4, 60, ep=4, **server))
    assert front.times == pytest.approx(1 / 0.803, abs=0.002)


def test_what_was_measured_otherwise_stands_in_the_answer(shipped):
    """Another layout of the server that the answer recommends is said to give 1.6 times as much, and less."""
    asked = {"splits": [1, 2], "input_tokens": 1024, "output_tokens": 1024, "max_tpot": "20 ms"}
    best = dse.interactivity("h200", "qwen3-32b", ["fp8"], **asked).best
    ours = {"model": "qwen3-32b", "weights": "bf16", "requests": int(best["batch"])}
    other = 3 - best["tp"]
    shipped(one(best["tp"], 0.5, **ours), one(other, 0.8, **ours))
    found = dse.interactivity("h200", "qwen3-32b", ["fp8"], **asked, max_ttft="9 s")
    assert found.verdict.startswith("Best as computed within TPOT 20 ms and TTFT 9 s: fp8, ")
    assert "gave 1.60 times the tokens a device of" in found.text().split("\nMeasured otherwise: ")[1]
    assert "InferenceX). Times to the first token are not limited there." in found.text()
    assert found.to_json()["measured_front"]["contradicts"]
    shipped(one(best["tp"], 0.9, **ours), one(other, 0.8, **ours))
    said = dse.interactivity("h200", "qwen3-32b", ["fp8"], **asked).verdict
    assert said.startswith("Best within TPOT 20 ms: fp8, ")
    assert "\nMeasured the best too, of 2 layouts (vLLM 0.19.0, " in said
    free = dse.interactivity("h200", "qwen3-32b", ["fp8"], **{**asked, "max_tpot": None})
    assert "Measured" not in free.text()


def test_the_fewest_devices_are_told_beside_measured_ones(shipped):
    asked = {"devices": ["h100"], "quantizers": ["fp8"], "engines": ["vllm"], "most": 2, "objective": "devices"}
    asked |= {"model": "llama3.1-70b", "requests": 64, "input_tokens": 1024, "output_tokens": 1024, "weights": "fp8"}
    best = dse.recommend(**asked).best
    assert best["n_devices"] == 2
    at = {"model": "llama3.1-70b", "device": "H100", "weights": "fp8", "limit_s": None, "n_devices": 2}
    shipped(one(best["tp"], 0.5, pp=best["pp"], **at), one(best["pp"], 0.8, pp=best["tp"], **at))
    assert "\nMeasured otherwise: " in dse.recommend(**asked).text()
