"""Whiskers: thin lines between the values that 8 of 10 measurements should lie within."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from dse.figures.drawing import style
from dse.figures.drawing.chart import Chart, Panel, Series
from dse.model import uncertainty

NAME = "8 of 10 measurements"
NOTE = "Thin lines: where 8 of 10 measurements should lie."
#: how far intervals reach at most beyond all values, so that these stay apart
CUT = 1.6
CUT_NOTE = "Triangles at the frame: the thin line goes on."


def ends(row: Mapping[str, Any], column: str) -> tuple[float, float] | None:
    """The ends of a result's interval; None where the row has no value, or no intervals, or the column none."""
    if pd.isna(row.get(column)) or pd.isna(row.get("token_time_low")):
        return None
    return uncertainty.known_ends(row, column)


def spread(rows: Iterable[Mapping[str, Any]], column: str) -> list[float]:
    """All values of a column and the ends of their intervals: what an axis has to hold."""
    shown = [row for row in rows if not pd.isna(row.get(column))]
    return held([float(row[column]) for row in shown], [end for row in shown for end in ends(row, column) or ()])


def held(values: Sequence[float], reached: Iterable[float]) -> list[float]:
    """Values, and the ends of their intervals up to CUT times beyond all of them: an axis has to hold them."""
    low, high = min(values, default=1.0) / CUT, max(values, default=1.0) * CUT
    return [*values, *(min(max(end, low), high) for end in reached)]


def upright(x: float, between: tuple[float, float] | None, color: str = style.BLACK) -> list[Series]:
    """A whisker at a place along x; none where there is no interval."""
    return [] if between is None else [_line((x, x), between, color)]


def level(y: float, between: tuple[float, float] | None, color: str = style.BLACK) -> list[Series]:
    """A whisker along x at a place of y; none where there is no interval."""
    return [] if between is None else [_line(between, (y, y), color)]


def notes(rows: Iterable[Mapping[str, Any]], column: str) -> tuple[str, ...]:
    """Note on the whiskers, where any is drawn."""
    return (NOTE,) if any(ends(row, column) for row in rows) else ()


def cut(chart: Chart) -> Chart:
    """The chart with each whisker ending at its frame, a triangle where it goes on beyond, and a note that says so."""
    panels = tuple(_within(panel) for panel in chart.panels)
    if all(after is before for after, before in zip(panels, chart.panels, strict=True)):
        return chart
    return replace(chart, panels=panels, notes=(*chart.notes, CUT_NOTE))


def _within(panel: Panel) -> Panel:
    """The panel itself where no whisker leaves it."""
    shown: list[Series] = []
    marks: list[Series] = []
    for series in panel.series:
        if series.name != NAME or not series.x or (max(series.x) <= panel.x.high and max(series.y) <= panel.y.high):
            shown.append(series)
            continue
        is_level = max(series.x) > panel.x.high
        axis, end = (panel.x, max(series.x)) if is_level else (panel.y, max(series.y))
        inside = tuple(min(at, panel.x.high) for at in series.x), tuple(min(at, panel.y.high) for at in series.y)
        shown.append(replace(series, x=inside[0], y=inside[1]))
        marks.append(
            replace(
                series,
                kind="scatter",
                x=(max(inside[0]),),
                y=(max(inside[1]),),
                marker="triangle-right" if is_level else "triangle-up",
                size=0.8,
                hover=(f"{axis.name}: goes on to {axis.shown(end):,.4g} {axis.unit}",),
            )
        )
    return replace(panel, series=(*shown, *marks)) if marks else panel


def _line(x: tuple[float, float], y: tuple[float, float], color: str) -> Series:
    return Series(NAME, kind="line", x=x, y=y, color=color, marker="", is_note=True, in_legend=False, is_thin=True)
