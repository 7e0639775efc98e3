"""`dse pareto --at-most, --at-least`: the front of the designs within limits, of tables and of directories."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dse
from dse.core.errors import InputError
from dse.sweep import pareto, reading
from dse.sweep import spec as sweep_spec
from dse.sweep.pareto import designs as pareto_designs
from dse.sweep.pareto import limits as pareto_limits
from factories import assert_one_line

VALUES = st.one_of(st.integers(0, 5).map(float), st.just(float("nan")))


@given(st.lists(st.tuples(VALUES, VALUES, st.booleans()), min_size=1, max_size=30), st.integers(1, 8))
def test_it_is_the_front_of_the_rows_that_are_left(rows, size):
    table = pd.DataFrame(rows, columns=["speed", "error", "feasible"])
    table["speed"] = table["speed"].fillna(3.0)
    limits = pareto_limits.parse(["error=3"], ["speed=1"])
    inside = [row.feasible and row.error <= 3 and row.speed >= 1 for row in table.itertuples()]
    left = table[inside]
    expected = left.index[pareto.front(left, {"speed": "max"})].tolist() if len(left) else []
    found = pareto_designs.of_table(table, {"speed": "max"}, limits=limits)
    assert found.row.tolist() == expected
    assert found.n_beyond == int(table["feasible"].sum()) - len(left)
    # a front of both, cut where an objective's own better side is asked for, is the front within
    both = {"speed": "max", "error": "min"}
    whole = pareto_designs.of_table(table, both, drop_missing=True).table
    cut = whole[(whole["error"] <= 3) & (whole["speed"] >= 1)].reset_index(drop=True)
    assert all(limit.keeps_front_of(both) for limit in limits)
    pd.testing.assert_frame_equal(pareto_designs.of_table(table, both, limits=limits).table, cut, check_dtype=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A sweep with all rows, in parts of a few, and with the front of throughput and error alone."""
    spec = sweep_spec.from_dict(
        {
            "axes": {
                "device": ["a100-80gb", "oaken-hbm"],
                "model": ["llama2-7b"],
                "batch": [1, 16, 64, 256],
                "quantizer": ["oaken", "oaken:groups=10/90", "kivi:bits=4", "qserve"],
                "oaken.outer": [0.02, 0.1, 0.11, 0.123],
                "oaken.outlier_bits": [4, 5],
            },
            "keep": [
                "measured_error",
                "score_drop_frac",
                "score_drop_high_frac",
                "effective_bits",
                "throughput_tokens_per_s",
                "max_batch",
                "bound",
            ],
        }
    )
    at = tmp_path_factory.mktemp("limits")
    dse.sweep(spec, at / "all")
    wanted = {"maximize": ["throughput_tokens_per_s"], "minimize": ["measured_error"]}
    dse.sweep(spec, at / "front", keep="front", drop_missing=True, **wanted)
    return at / "all", at / "front"


FAST = {"throughput_tokens_per_s": "max"}


@pytest.mark.parametrize("most", [0.14, 0.2, 0.5])
def test_the_fastest_design_at_an_error(folders, most):
    table = reading.stored(folders[0]).read()
    runs = table["feasible"] & table["runs"]  # Oaken's chip runs its own method alone
    right = table[runs & (table["measured_error"] <= most)]
    fastest = right["throughput_tokens_per_s"].max()
    limits = pareto_limits.parse([f"measured_error={most}"])
    found = pareto_designs.of_file(folders[0], FAST, limits=limits)
    assert set(found.table["throughput_tokens_per_s"]) == {fastest}
    assert found.row.tolist() == right.index[right["throughput_tokens_per_s"] == fastest].tolist()
    assert found.n_beyond == int(runs.sum()) - len(right)
    assert found.n_refused == int(table["feasible"].sum() - runs.sum()) > 0
    # throughput, capacity and error
    three = {**FAST, "max_batch": "max", "measured_error": "min"}
    mask = pareto.front(right, three)
    found = pareto_designs.of_file(folders[0], three, limits=limits)
    assert found.row.tolist() == right.index[np.flatnonzero(mask)].tolist()


def test_a_stored_front_answers_where_it_can(folders):
    both, limits = {**FAST, "measured_error": "min"}, pareto_limits.parse(["measured_error=0.2"])
    whole = pareto_designs.of_file(folders[0], both, drop_missing=True, limits=limits)
    kept = pareto_designs.of_file(folders[1], both, limits=limits)
    assert kept.row.tolist() == whole.row.tolist()
    assert len(kept.row) > 1
    with pytest.raises(InputError, match=r"max_batch >= 8: .* keeps the front of all designs alone"):
        pareto_designs.of_file(folders[1], both, limits=pareto_limits.parse([], ["max_batch=8"]))


def test_the_command(run, folders, tmp_path):
    words = ["pareto", folders[0], "--maximize", "throughput_tokens_per_s", "--at-most", "measured_error=0.2"]
    code, text, err = run(*words, "--at-least", "max_batch=8")
    assert (code, err) == (0, "")
    assert "beyond the limits" in text.splitlines()[0]
    assert text.splitlines()[0].endswith("; within measured_error <= 0.2, max_batch >= 8")
    assert text.splitlines()[1].split()[-2:] == ["measured_error", "max_batch"]  # how far within is seen
    found = json.loads(run(*words, "--json")[1])
    assert found["limits"] == ["measured_error <= 0.2"]
    assert all(row["measured_error"] <= 0.2 for row in found["front"])
    assert json.loads(run(*words, "--at-most", "measured_error=0", "--json")[1])["front"] == []
    for drop in ("60%", "60 %", "0.6"):
        found = json.loads(run(*words, "--max-drop", drop, "--other-software", "--json")[1])
        assert found["limits"] == ["measured_error <= 0.2", "score_drop_high_frac <= 0.6"]
        assert found["front"]
        assert all(row["score_drop_frac"] < row["score_drop_high_frac"] <= 0.6 for row in found["front"])
    told = json.loads(run(*words, "--max-drop", "2%", "--other-software", "--json")[1])["front"]
    assert {row["quantizer"] for row in told} == {"kivi:bits=4"}
    for drop in ("-1%", "101%", "2", "x", "%", "nan"):
        assert_one_line(run(*words, "--max-drop", drop), 2, "must be a share from 0 to 1, such as 1% or 0.01")
    assert_one_line(run(*words, "--at-most", "errors=1"), 2, "unknown column 'errors'")
    assert_one_line(run(*words, "--at-most", "bound=1"), 2, "limit bound: is not a column of numbers")
    for bad in (
        "measured_error",
        "measured_error=",
        "=1",
        "measured_error=nan",
        "measured_error=1e999",
        "batch=\uff11",
    ):
        assert_one_line(run(*words, "--at-most", bad), 2, "must be COLUMN=NUMBER")
