"""Rows in aligned columns."""

from dse.core.columns import aligned

ROWS = [["method", "bits", "note"], ["kivi", "2.5", ""], ["fp8", "8", "fast"]]


def test_columns_are_as_wide_as_their_widest_cell():
    assert aligned(ROWS) == ["method  bits  note", "kivi    2.5", "fp8     8     fast"]


def test_numbers_stand_to_the_right():
    assert aligned(ROWS, 1, "  ") == ["  method  bits  note", "  kivi     2.5", "  fp8        8  fast"]
    assert aligned(ROWS, (0, 2)) == ["method  bits  note", "kivi     2.5", "fp8        8  fast"]
