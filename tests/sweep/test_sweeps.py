"""Grids and fronts: rows in the order of the axes, fronts against all pairs."""

import pandas as pd
import pytest

from dse.core.errors import LimitError
from dse.model.results import RESULT_UNITS
from dse.specs.workload import Workload
from dse.sweep import sweeps as sweep

AXES = (["a100-80gb", "oaken-hbm"], ["llama2-7b", "llama2-70b"], ["fp16", "oaken"], [1, 64])


def test_rows_follow_the_axes_and_equal_single_points():
    table = sweep.grid(*AXES, input_tokens=[128, 2048], output_tokens=[64])
    assert len(table) == 2 * 2 * 2 * 2 * 2
    assert list(table.columns) == list(RESULT_UNITS)
    assert table["batch"].tolist()[:4] == [1, 1, 64, 64]
    assert table["input_tokens"].tolist()[:4] == [128, 2048, 128, 2048]
    for index in (0, 7, 31):
        row = table.iloc[index]
        one = sweep.grid(
            [row["device"]], [row["model"]], [row["quantizer"]], [int(row["batch"])], [int(row["input_tokens"])], [64]
        )
        pd.testing.assert_frame_equal(one, table.iloc[[index]].reset_index(drop=True), check_exact=True)


def test_permuting_an_axis_permutes_the_rows():
    forward = sweep.grid(["h100"], ["llama3-8b"], ["fp16", "kivi", "nqkv"], [1, 8])
    backward = sweep.grid(["h100"], ["llama3-8b"], ["nqkv", "kivi", "fp16"], [8, 1])
    pd.testing.assert_frame_equal(forward, backward[::-1].reset_index(drop=True), check_exact=True)


def test_points_that_do_not_fit_stay_with_their_reason():
    table = sweep.grid(["oaken-hbm"], ["llama2-70b", "llama2-7b"], ["oaken"], [16])
    assert table["feasible"].tolist() == [False, True]
    assert table["throughput_tokens_per_s"].isna().tolist() == [True, False]
    assert table["infeasible_reason"].isna().tolist() == [False, True]


def test_base_gives_what_the_axes_do_not():
    table = sweep.grid(["h100"], ["llama3-8b"], ["fp16"], [4], base=Workload(admission="paged", weights_bits=4))
    assert table.loc[0, "admission"] == "paged"
    assert table.loc[0, "weight_bytes"] == 8_030_261_248 // 2 + 2 * 8192 * 128  # and a table of 8,192 positions


def test_a_grid_beyond_the_limit_is_refused_before_it_starts():
    with pytest.raises(LimitError, match="1,000 points: at most 999"):
        sweep.grid(["h100"], ["llama3-8b"], ["fp16"], range(1, 1001), max_points=999)
    assert len(sweep.grid(["h100"], ["llama3-8b"], ["fp16"], range(1, 1001), max_points=1000)) == 1000
