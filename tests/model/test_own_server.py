"""Corrections by measured points of one's own server: by hand, and as every way to a prediction takes them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dse
from dse.core import toml
from dse.core.errors import InputError
from dse.core.version import VERSION
from dse.model import engine, own_server
from dse.model.intervals import Interval
from dse.model.point import Point
from dse.operations.shared import hardware, layout
from dse.serving import burst
from dse.specs.measured_memory import MeasuredPoint
from dse.specs.workload import Workload
from dse.sweep.spec import from_dict

HALF = math.log(1.3)


def point(over, **changes):
    server = {"stack": "vllm@0.19.1", "weights": "bf16", "tp": 1, "pp": 1, "ep": 1, "dp_attention": False, "dcp": 1}
    load = {"batch": 16, "input_tokens": 1024, "output_tokens": 512}
    return MeasuredPoint(**{"id": "a", **server, **load, "measured_over_predicted": over, **changes})


def asked(**changes):
    return own_server.as_server(point(1.0, **changes))


@pytest.mark.parametrize(
    ("overs", "changes", "power", "left"),
    [
        # one point says load of its error; of the variance load squared is known
        ([1.2], {}, 0.6, 0.64),
        # two alike: 2 load / (1 + load); known: load times that
        ([1.2, 1.2], {}, 0.75, 0.55),
        # on other numbers of devices split times that, of a release release times that, of both the product
        ([1.2, 1.2], {"tp": 2}, 0.8 * 0.75, 1 - 0.8**2 * 0.45),
        ([1.2, 1.2], {"stack": "vllm@0.18.0"}, 0.2 * 0.75, 1 - 0.2**2 * 0.45),
        ([1.2, 1.2], {"pp": 2, "ep": 2}, 0.56 * 0.75, 1 - 0.56**2 * 0.45),
        # other weights: nothing
        ([1.2, 1.2], {"weights": "fp8"}, 0.0, 1.0),
    ],
)
def test_corrections_by_hand(by_hand, overs, changes, power, left):
    made = own_server.correction([point(over) for over in overs], asked(**changes), HALF)
    assert made.factor == pytest.approx(1.2**power)
    assert made.width == pytest.approx(math.sqrt(left))
    now = made.of(Interval(0.8, 1.3, "as it was"))
    assert (now.low, now.high) == pytest.approx((0.8 ** math.sqrt(left), 1.3 ** math.sqrt(left)))


def test_points_of_two_splits_say_most_of_their_own(by_hand):
    """Two points, of tp 1 at 1.3 and of tp 2 at 0.9: K = [[1, 0.48], [0.48, 1]], of tp 1 k = (0.6, 0.48)."""
    points = [point(1.3), point(0.9, tp=2)]
    weights = (0.6 - 0.48 * 0.48) / (1 - 0.48**2), (0.48 - 0.48 * 0.6) / (1 - 0.48**2)
    made = own_server.correction(points, asked(), HALF)
    assert made.factor == pytest.approx(1.3 ** weights[0] * 0.9 ** weights[1])
    assert made.width == pytest.approx(math.sqrt(1 - 0.6 * weights[0] - 0.48 * weights[1]))


def test_three_points_that_differ_widen_and_that_agree_narrow(by_hand):
    """Each is predicted by the other two; four expected errors (t of 4 degrees of freedom) count beside these three."""
    alike = own_server.correction([point(1.1)] * 3, asked(), HALF)
    scattered = own_server.correction([point(over) for over in (0.7, 1.1, 1.8)], asked(), HALF)
    plain = math.sqrt(1 - 0.6 * 3 * 0.6 / 2.2)
    off, width = math.log(1.1) * (1 - 0.75), math.sqrt(0.55)
    square = (off / (HALF / 1.5332 * width)) ** 2
    assert alike.width == pytest.approx(plain * math.sqrt((4 + 3 * square) / 7))
    assert alike.width < plain < scattered.width <= 1


@given(st.lists(st.floats(0.3, 3.0), min_size=1, max_size=6), st.integers(1, 4))
def test_a_factor_lies_between_1_and_what_was_measured(overs, tp):
    points = [point(over) for over in overs]
    made = own_server.correction(points, asked(tp=tp), HALF)
    assert min(1.0, *overs) - 1e-9 <= made.factor <= max(1.0, *overs) + 1e-9
    assert 0 < made.width <= 1
    assert own_server.correction(points[::-1], asked(tp=tp), HALF).factor == pytest.approx(made.factor)


def file(tmp_path, *points, **changes):
    path = tmp_path / "own.toml"
    times = {"kind": "times of a server", "version": 1, "source": "t.csv", "predicted_by": VERSION, "engine": "vllm"}
    times |= {"device": "H100", "model": "llama3.1-8b", "points": [one.model_dump() for one in points], **changes}
    path.write_text(toml.dumps(times))
    return str(path)


DESIGN = {"device": "h100", "model": "llama3.1-8b", "stack": "vllm@0.19.1", "batch": 16, "input_tokens": 1024}
DESIGN |= {"output_tokens": 512}
PARTS = ("linear_s", "attention_s", "quantize_s", "dequantize_s", "collective_s", "host_s", "power_s")


@pytest.mark.parametrize(
    "changes", [{}, {"batching": "continuous"}, {"batching": "static"}, {"quantizer": "kivi"}, {"tp": 2}]
)
def test_times_per_token_are_multiplied_and_prompts_are_not(tmp_path, changes):
    path = file(tmp_path, point(1.4), point(1.4))
    before, now = dse.evaluate(**DESIGN | changes), dse.evaluate(**DESIGN | changes, calibrated=path)
    server = asked(tp=changes.get("tp", 1))
    half = math.log(before["token_time_high"] / before["token_time_low"]) / 2
    made = own_server.correction([point(1.4), point(1.4)], server, half)
    assert 1.2 < made.factor < 1.4
    for name in ("tpot_s", "decode_step_s", *PARTS):
        assert now[name] == pytest.approx(before[name] * made.factor, rel=1e-12)
    assert sum(now[name] for name in PARTS) == pytest.approx(now["decode_step_s"], rel=1e-12)
    assert now["prefill_s"] == before["prefill_s"]
    assert now["ttft_s"] == pytest.approx(before["ttft_s"], rel=1e-12)
    assert now["token_time_low"] == pytest.approx(before["token_time_low"] ** made.width)
    assert (now["first_time_low"], now["kv_pool_tokens"]) == (before["first_time_low"], before["kv_pool_tokens"])
    assert "own_server" in now["assumptions"]
    assert "own_server" not in before["assumptions"]


def made_of(**more):
    asked = {name: value for name, value in DESIGN.items() if name not in ("device", "model")}
    return Point(hardware("h100"), layout("llama3.1-8b", "fp16", "fp16"), Workload(**asked, **more))


def test_sweeps_and_compiled_code_take_it_too(tmp_path):
    path = file(tmp_path, point(1.4), point(1.4))
    table = dse.sweep({**DESIGN, "calibrated": ["auto", path], "batch": [4, 16], "tp": [1, 2]})
    for row in table.to_dict("records"):
        calibrated = None if row["calibrated"] == "auto" else path
        one = dse.evaluate(**DESIGN | {"batch": row["batch"], "tp": row["tp"]}, calibrated=calibrated)
        for name in ("decode_step_s", "throughput_tokens_per_s"):
            assert row[name] == pytest.approx(one[name], rel=1e-12)
    design = made_of(calibrated=path)
    assert engine.evaluate(design, engine.COMPILED) == engine.evaluate(design, engine.INTERPRETED)


def test_a_sweep_is_of_what_the_file_holds(tmp_path):
    axes = {"device": "h100", "model": "llama3.1-8b", "calibrated": file(tmp_path, point(1.4)), "batch": [1, 2]}
    first = from_dict({"axes": axes}).sha256
    assert from_dict({"axes": axes}).sha256 == first
    file(tmp_path, point(1.41))
    assert from_dict({"axes": axes}).sha256 != first


def test_bursts_take_it_too(tmp_path):
    path = file(tmp_path, point(1.4), point(1.4))
    lengths = np.array([1024]), np.array([101])
    before, now = (burst.serve(made_of(**more), *lengths) for more in ({}, {"calibrated": path}))
    factor = made_of(calibrated=path).lowered.corrected.factor
    assert now.tpot_s == pytest.approx(before.tpot_s * factor, rel=1e-9)
    assert now.ttft_s == pytest.approx(before.ttft_s, rel=1e-9)


def test_operations_add_up_to_a_corrected_step(tmp_path):
    rows = made_of(calibrated=file(tmp_path, point(1.4), point(1.4))).operations()
    for phase in ("decode", "prefill"):
        seconds = {row["name"]: row["seconds"] for row in rows if row["phase"] == phase}
        assert math.fsum(seconds.values()) - seconds["all"] == pytest.approx(seconds["all"], rel=0.02)


def test_what_it_was_not_measured_on_is_predicted_as_before(tmp_path):
    """Another device, engine or format of weights: no factor, no mark, and a line that says why."""
    path = file(tmp_path, point(1.4), point(1.4))
    for changes in ({"device": "h200"}, {"stack": "sglang"}, {"weights": "fp8"}, {"stack": "vllm@kernels"}):
        before, now = dse.evaluate(**DESIGN | changes), dse.evaluate(**DESIGN | changes, calibrated=path)
        assert now["tpot_s"] == before["tpot_s"]
        assert now["assumptions"] == before["assumptions"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "qwen3-32b"}, "was measured with model qwen3-32b, not llama3.1-8b"),
        ({"predicted_by": "0.0.1"}, "release 0.0.1, this is .*: run `dse calibrate server` again"),
        ({"kind": "a song"}, "is neither memory nor times of a server"),
    ],
)
def test_a_file_of_another_server_is_one_line(tmp_path, changes, says):
    with pytest.raises(InputError, match=says):
        dse.evaluate(**DESIGN, calibrated=file(tmp_path, point(1.4), **changes))


def test_a_file_is_read_again_where_it_changed(tmp_path):
    first = dse.evaluate(**DESIGN, calibrated=file(tmp_path, point(1.2)))["tpot_s"]
    assert dse.evaluate(**DESIGN, calibrated=file(tmp_path, point(1.25), point(1.3)))["tpot_s"] > first
