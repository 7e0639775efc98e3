"""Whiskers: thin lines between the values that 8 of 10 measurements should lie within."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from dse.figures.drawing import style
from dse.figures.drawing.chart import Series
from dse.model import uncertainty

NAME = "8 of 10 measurements"
NOTE = "Thin lines: where 8 of 10 measurements should lie."


def ends(row: Mapping[str, Any], column: str) -> tuple[float, float] | None:
    """The ends of a result's interval; None where the row has no value, or no intervals, or the column none."""
    if pd.isna(row.get(column)) or pd.isna(row.get("token_time_low")):
        return None
    return uncertainty.known_ends(row, column)


def spread(rows: Iterable[Mapping[str, Any]], column: str) -> list[float]:
    """All values of a column and the ends of their intervals: what an axis has to hold."""
    found = []
    for row in rows:
        if not pd.isna(row.get(column)):
            found += [float(row[column]), *(ends(row, column) or ())]
    return found


def upright(x: float, between: tuple[float, float] | None, color: str = style.BLACK) -> list[Series]:
    """A whisker at a place along x; none where there is no interval."""
    return [] if between is None else [_line((x, x), between, color)]


def level(y: float, between: tuple[float, float] | None, color: str = style.BLACK) -> list[Series]:
    """A whisker along x at a place of y; none where there is no interval."""
    return [] if between is None else [_line(between, (y, y), color)]


def notes(rows: Iterable[Mapping[str, Any]], column: str) -> tuple[str, ...]:
    """Note on the whiskers, where any is drawn."""
    return (NOTE,) if any(ends(row, column) for row in rows) else ()


def _line(x: tuple[float, float], y: tuple[float, float], color: str) -> Series:
    return Series(NAME, kind="line", x=x, y=y, color=color, marker="", is_note=True, in_legend=False)
