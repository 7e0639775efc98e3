"""Columns that a sweep's table lacks, evaluated again from what identifies the sweep."""

import pandas as pd
import pytest

import dse
from dse.sweep import filling

AXES = {
    "device": ["h100", "oaken-lpddr"],
    "model": "llama2-7b",
    "quantizer": ["fp16", "oaken"],
    "batch": [1, 512],
    "oaken.outer": [0.04, 0.06],
    "tp": [1, 3],  # 3: not allowed
    "memory_bandwidth": ["1 TB/s", "3.3 TB/s"],
}


def test_every_column_is_as_if_it_had_been_kept():
    whole = dse.sweep({"axes": AXES, "keep": "all"})
    names = [name for name in whole if name not in AXES and name not in ("feasible", "infeasible_code", "runs")]
    assert len(names) > 100
    some = whole.drop(columns=names).sample(frac=0.5, random_state=1)
    found = filling.filled(some, filling.note_of(some), names)
    expected = whole.loc[some.index, [*some.columns, *names]]
    for name in expected:
        assert found[name].isna().tolist() == expected[name].isna().tolist(), name
        assert found[name].dropna().tolist() == expected[name].dropna().tolist(), name


def test_a_device_of_one_s_own_is_that_of_the_sweep():
    device = dse.device("h100:memory_capacity=40 GB")
    table = dse.sweep({"device": device, "model": "llama2-7b", "memory": "paper", "batch": [1, 2]})
    found = filling.filled(table, filling.note_of(table), ["capacity_bytes", "input_tokens"])
    assert found["capacity_bytes"].tolist() == [40e9, 40e9]
    assert found["input_tokens"].tolist() == [1024, 1024]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.drop(columns="batch"),
        lambda table: table.assign(batch=3),
        lambda table: pd.DataFrame(table.to_dict("list")),
        lambda table: table[:0],
    ],
)
def test_a_table_that_is_no_longer_the_sweep_s_stays_as_it_is(change):
    table = change(dse.sweep({"device": "h100", "model": "llama2-7b", "batch": [1, 2]}))
    assert filling.filled(table, filling.note_of(table), ["input_tokens"]) is table


def test_a_file_that_has_changed_fills_nothing(tmp_path):
    from factories import plan_file

    plan = plan_file(tmp_path, [("fp8", "fp8")] * 32)
    table = dse.sweep({"device": "h100", "model": "llama2-7b", "quantizer": f"plan:{plan}", "batch": [1, 2]})
    assert "input_tokens" in filling.filled(table, filling.note_of(table), ["input_tokens"])
    plan_file(tmp_path, [("int4", "int4")] * 32)
    assert filling.filled(table, filling.note_of(table), ["input_tokens"]) is table
