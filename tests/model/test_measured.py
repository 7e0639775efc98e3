"""Bits and errors of plans by layer in design points: from measurements of their own layers, or what the file says."""

import json
import math

import pandas as pd
import pytest

from dse.measure import mixed_plan
from dse.model import kv_layout as plan
from dse.model.engine import evaluate
from dse.model.explain import explained
from dse.model.point import Point
from dse.report import present
from dse.specs import catalog, measurements
from dse.specs.measurements import Bits
from dse.specs.workload import Workload
from factories import layer, model, plan_file

# two layers of 1 head of 10 channels and 10 tokens: squared errors (key, value) by layer, signal 100 a tensor; squared
# errors of an output of 10: key alone, value alone, both
ERRORS = {
    "nqkv": (4, [(1.0, 4.0), (9.0, 16.0)], [(0.1, 0.2, 0.35), (0.3, 0.5, 0.7)]),
    "int8": (8, [(0.1, 0.2), (0.3, 0.4)], [(0.01, 0.02, 0.04), (0.03, 0.05, 0.09)]),
}


def measurement(folder):
    methods = []
    for name, (bits, squares, outputs) in ERRORS.items():
        tensors = [
            {
                "name": f"layer{i}.{side}",
                "layer": i,
                "which": side,
                "n_heads": 1,
                "head_dim": 10,
                "n_tokens": 10,
                "n_elements": 100,
                "stored_bytes": 100 * bits // 8,
                "ledger": {"payload": 100 * bits},
                "counts": {},
                "squared_error": squares[i][j],
                "squared_signal": 100.0,
                "max_abs_error": 1.0,
                "output": {"squared": 10.0, "squared_error": outputs[i][j], "squared_error_both": outputs[i][2]},
            }
            for i in range(2)
            for j, side in enumerate(("key", "value"))
        ]
        methods.append({"quantizer": name, "note": "", "tensors": tensors})
    data = {"name": "x.npz", "sha256": "0" * 64, "synthetic": False}
    path = folder / "measurement.json"
    path.write_text(json.dumps({"format": 1, "data": data, "methods": methods}))
    return str(path)


def asked(bits, key, value=None, n_layers=2):
    sides = bits.quantizer(key), bits.quantizer(value or key)
    built = plan.build(model(layer(n_layers, 1, 10)), *sides)
    return Point(catalog.device("a100-80gb"), built, Workload(1, 10, 10))


def result(bits, key, value=None):
    found = asked(bits, key, value)
    return evaluate(found), found.plan


@pytest.fixture
def bits(tmp_path):
    return Bits("closed", measurements.load(measurement(tmp_path)))


SHOWN = ("measured_bits", "mse", "sqnr_db", "measured_error", "measured_on")


@pytest.mark.parametrize("name", ERRORS)
def test_a_plan_of_one_method_shows_what_the_method_does(bits, tmp_path, name):
    found, alone = result(bits, "plan:" + plan_file(tmp_path, [(name, name)] * 2))[0], result(bits, name)[0]
    assert [found[key] for key in SHOWN] == [alone[key] for key in SHOWN]


def test_a_mixed_plan_takes_each_layer_from_its_own_method(bits, tmp_path):
    point = asked(bits, "plan:" + plan_file(tmp_path, [("nqkv", "int8"), ("int8", "int8")]))
    found = evaluate(point)
    # keys (4 + 8) / 2 bits, values 8; errors: keys (1 + 0.3) / 200 an element, values (0.2 + 0.4) / 200, signal 1
    assert found["measured_bits"] == 7
    assert found["mse"] == pytest.approx((1.3 + 0.6) / 400)
    assert found["sqnr_db"] == pytest.approx(-10 * math.log10(1.9 / 400))
    # layer 0: two methods, 0.1 + 0.02; layer 1: one method on both sides, 0.09 as measured; outputs 10 + 10
    assert found["measured_error"] == pytest.approx(math.sqrt((0.12 + 0.09) / 20))
    assert found["measured_on"] == "x.npz"
    assert "mean squared error, packed elements" in present.point_text(point)


def test_16_bits_need_no_measurement(bits, tmp_path):
    found = result(bits, "plan:" + plan_file(tmp_path, [("fp16", "int8"), ("nqkv", "fp16")]))[0]
    # keys (16 + 4) / 2, values (8 + 16) / 2; packed elements alone: keys 9 / 100, values 0.2 / 100
    assert found["measured_bits"] == 11
    assert found["mse"] == pytest.approx((9 + 0.2) / 200)
    # key of layer 1 and value of layer 0
    assert found["measured_error"] == pytest.approx(math.sqrt((0.02 + 0.3) / 20))


def test_one_side_of_a_plan_beside_another_method(bits, tmp_path):
    found = result(bits, "plan:" + plan_file(tmp_path, [("nqkv", "int8")] * 2), "int8")[0]
    assert found["measured_bits"] == 6
    # keys 0.1 + 0.3, values 0.02 + 0.05, added as if independent
    assert found["measured_error"] == pytest.approx(math.sqrt((0.4 + 0.07) / 20))


@pytest.mark.parametrize(
    ("pairs", "n_layers"), [([("nqkv", "int8")] * 3, 3), ([("nqkv", "kivi"), ("int8", "int8")], 2)]
)
def test_a_measurement_that_lacks_a_layer_or_method_is_not_stretched(bits, tmp_path, pairs, n_layers):
    found, steps = explained(asked(bits, "plan:" + plan_file(tmp_path, pairs), None, n_layers))
    assert [found[key] for key in SHOWN] == [None] * 5
    assert "with all its layers and methods" in steps["mse"].equation


def test_without_measurements_the_file_speaks_and_says_what_it_lacks(tmp_path):
    head = 'source = "x.npz"\n[predicted]\nstored_bits = 6.0\nmeasured_error = 0.1\n'
    name = "plan:" + plan_file(tmp_path, [("nqkv", "int8")] * 2, head=head)
    wanted = asked(Bits(), name)
    found, steps = explained(wanted)
    assert [found[key] for key in SHOWN] == [6.0, None, None, 0.1, "x.npz"]
    assert "give --measurements" in steps["mse"].equation
    assert "as the plan's file says" in steps["measured_bits"].equation
    shown = present.point_text(wanted)
    assert "--measurements of what `dse measure` wrote" in shown
    assert "nothing was packed" not in shown
    assert "the data has" not in shown  # heads of another measurement of the plan's methods


def test_the_choice_predicts_what_points_then_show(tmp_path):
    # `dse mix` and points take errors from two files of one run: table and measurement
    rows = [
        {
            "method": method,
            "layer": i,
            "side": side,
            "head": None,
            "context_tokens": 10,
            "n_elements": 200 if side == "both" else 100,
            "stored_bits": float(bits),
            "squared_error": sum(squares[i]) if side == "both" else squares[i][j],
            "squared_signal": 100.0,
            "squared_output_error": outputs[i][j],
            "squared_output": 10.0,
            "data": "x.npz",
            "synthetic": False,
        }
        for method, (bits, squares, outputs) in ERRORS.items()
        for i in range(2)
        for j, side in enumerate(("key", "value", "both"))
    ]
    pd.DataFrame(rows).astype({"head": "Int64"}).to_parquet(tmp_path / "measured.parquet")
    errors = mixed_plan.load(str(tmp_path))
    bits = Bits("closed", measurements.load(measurement(tmp_path)))
    for budget in (4, 5, 6, 7, 8, 10):
        chosen = mixed_plan.least_error(errors, mixed_plan.budget_bits(errors, budget), str(budget))
        mixed_plan.write(chosen, str(tmp_path / "plan.toml"), "dse mix")
        found = result(bits, f"plan:{tmp_path / 'plan.toml'}")[0]
        assert found["measured_error"] == pytest.approx(chosen.summary()["measured_error"])
        assert found["measured_bits"] == pytest.approx(chosen.summary()["stored_bits"])
