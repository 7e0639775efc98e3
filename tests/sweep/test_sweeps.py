"""Grids and fronts: rows in the order of the axes, fronts against all pairs."""

import pandas as pd

import dse
from dse.model.results import RESULT_UNITS

AXES = (["a100-80gb", "oaken-hbm"], ["llama2-7b", "llama2-70b"], ["fp16", "oaken"])


def test_rows_follow_the_axes_and_equal_single_points():
    table = dse.grid(*AXES, batch=[1, 64], input_tokens=[128, 2048], output_tokens=[64])
    assert len(table) == 2 * 2 * 2 * 2 * 2
    assert list(table.columns) == list(RESULT_UNITS)
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
