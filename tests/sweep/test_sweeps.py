"""Grids and fronts: rows in the order of the axes, fronts against all pairs."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dse
from dse.core.errors import InputError
from dse.model import evaluate as point
from dse.sweep import pareto

AXES = (["a100-80gb", "oaken-hbm"], ["llama2-7b", "llama2-70b"], ["fp16", "oaken"])


def test_rows_follow_the_axes_and_equal_single_points():
    table = dse.grid(*AXES, batch=[1, 64], input_tokens=[128, 2048], output_tokens=[64])
    assert len(table) == 2 * 2 * 2 * 2 * 2
    assert list(table.columns) == list(point.RESULT_UNITS)
    assert table["batch"].tolist()[:4] == [1, 1, 64, 64]
    assert table["input_tokens"].tolist()[:4] == [128, 2048, 128, 2048]
    for index in (0, 7, 31):
        row = table.iloc[index]
        asked = {name: int(row[name]) for name in ("batch", "input_tokens", "output_tokens")}
        one = dse.grid(row["device"], row["model"], row["quantizer"], **asked)
        pd.testing.assert_frame_equal(one, table.iloc[[index]].reset_index(drop=True), check_exact=True)


def test_permuting_an_axis_permutes_the_rows():
    forward = dse.grid("h100", "llama3-8b", ["fp16", "kivi", "nqkv"], batch=[1, 8])
    backward = dse.grid("h100", "llama3-8b", ["nqkv", "kivi", "fp16"], batch=[8, 1])
    pd.testing.assert_frame_equal(forward, backward[::-1].reset_index(drop=True), check_exact=True)


def test_points_that_do_not_fit_stay_with_their_reason():
    table = dse.grid("oaken-hbm", ["llama2-70b", "llama2-7b"], "oaken", batch=16)
    assert table["feasible"].tolist() == [False, True]
    assert table["throughput_tokens_per_s"].isna().tolist() == [True, False]
    assert table["infeasible_reason"].isna().tolist() == [False, True]


ROWS = st.lists(st.tuples(*[st.integers(0, 4)] * 3), max_size=30)


@given(ROWS, st.tuples(*[st.sampled_from(["min", "max"])] * 3))
def test_front_is_what_no_other_row_beats(rows, senses):
    table = pd.DataFrame(rows, columns=["a", "b", "c"], dtype="float64")
    signs = [1 if sense == "min" else -1 for sense in senses]

    def beats(x, y):
        pairs = [(sign * p, sign * q) for sign, p, q in zip(signs, x, y, strict=True)]
        return all(p <= q for p, q in pairs) and any(p < q for p, q in pairs)

    expected = [not any(beats(other, row) for other in rows) for row in rows]
    assert pareto.front(table, dict(zip("abc", senses, strict=True))).tolist() == expected


def test_unknown_objective_and_sense():
    table = pd.DataFrame({"throughput": [1.0]})
    with pytest.raises(InputError, match="did you mean throughput"):
        pareto.front(table, {"troughput": "max"})
    with pytest.raises(InputError, match="min or max"):
        pareto.front(table, {"throughput": "up"})
