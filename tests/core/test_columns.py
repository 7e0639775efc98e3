"""Columns declared once: cells, CSV, and rows in aligned columns."""

import math
from types import SimpleNamespace

from dse.core.columns import Column, aligned, cells, csv_text, frame, percent

ROWS = [["method", "bits", "note"], ["kivi", "2.5", ""], ["fp8", "8", "fast"]]
COLUMNS = (
    Column("name", title="method"),
    Column("step_s", title="step (ms)", form=".1f", times=1e3),
    Column("low", title="interval", form="{low:.2f} to {high:.2f}", missing=""),
    percent("error"),
    Column("half", form=lambda row: str(row["n"] / 2)),
    Column("n", title=""),
)
KIVI = {"name": "kivi", "step_s": 0.0125, "low": 0.5, "high": 1.5, "error": 0.0321, "n": 3}
UNKNOWN = {"name": "fp8", "step_s": None, "low": math.nan, "high": 1.0, "error": None, "n": 4}


def test_columns_are_as_wide_as_their_widest_cell():
    assert aligned(ROWS) == ["method  bits  note", "kivi    2.5", "fp8     8     fast"]


def test_numbers_stand_to_the_right():
    assert aligned(ROWS, 1, "  ") == ["  method  bits  note", "  kivi     2.5", "  fp8        8  fast"]
    assert aligned(ROWS, (0, 2)) == ["method  bits  note", "kivi     2.5", "fp8        8  fast"]


def test_cells_have_units_and_what_is_missing():
    assert cells(COLUMNS, [KIVI, UNKNOWN]) == [
        ["method", "step (ms)", "interval", "error", "half"],
        ["kivi", "12.5", "0.50 to 1.50", "3.2", "1.5"],
        ["fp8", "-", "", "-", "2.0"],
    ]
    assert frame(COLUMNS, []).columns.tolist() == ["method", "step (ms)", "interval", "error", "half"]


def test_rows_may_be_objects_with_objects_inside():
    row = SimpleNamespace(row=SimpleNamespace(id="a"), gain=SimpleNamespace(ratio=1.234))
    columns = (Column("row.id", title="id"), Column("gain", form="{gain.ratio:.2f}x"), Column("n", value=lambda _: 7))
    assert cells(columns, [row]) == [["id", "gain", "n"], ["a", "1.23x", "7"]]


def test_csv_has_no_formulas_and_nothing_for_what_is_missing():
    rows = [{"id": "=1+1", "n": 3, "share": 1 / 3}, {"id": "-2", "n": None, "share": math.nan}]
    assert csv_text(rows, digits=4) == "id,n,share\n'=1+1,3,0.3333\n-2,,\n"
    assert csv_text(rows, ("share", "id")) == "share,id\n0.333333,'=1+1\n,-2\n"
