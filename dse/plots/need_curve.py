"""A result against the number that an inverse design varies, with the target and the answer; by `dse ask need`."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from dse.plots import axes, style
from dse.plots.chart import Axis, Chart, Panel, Series


def chart(
    table: pd.DataFrame, x: Axis, y: Axis, marks: Sequence[tuple[str, float, float | None]],
    goal: tuple[str, float] | None, title: str, notes: tuple[str, ...],
) -> Chart:  # fmt: skip
    """Columns: first the number that varies, second the result, both in base units; hollow where the target is missed.

    `marks` are (name, x, y or None) of points to tell apart (the answer, the device), `goal` the target's name and y
    (None: not known).
    """
    number, result = table.columns[:2]
    runs = table.dropna(subset=[result])
    points = list(zip(runs[number], runs[result], strict=True))
    hover = tuple(_hover(row, x, y) for _, row in runs.iterrows())
    line_x, line_y = tuple(a for a, _ in points), tuple(b for _, b in points)
    opened = tuple(not met for met in runs["meets"])
    series = [Series(y.name, "line", line_x, line_y, style.BLUE, size=0.6, opened=opened, hover=hover)]
    if goal:
        ends = (goal[1], goal[1])
        series.append(Series(goal[0], "line", (x.low, x.high), ends, style.BLACK, dash="dash", marker="", is_note=True))
    looks = ((style.VERMILLION, "star"), (style.GREEN, "diamond"))
    for (name, at, value), (colour, marker) in zip(marks, looks, strict=False):
        if value is not None and x.low <= at <= x.high:
            series.append(Series(name, "scatter", (at,), (value,), colour, marker=marker, size=1.2, hover=(name,)))
    return Chart(title, (Panel("", x, y, tuple(series)),), panel_height_pt=190, notes=notes)


def number_axis(name: str, unit: str, values: Sequence[float], per_unit: float) -> Axis:
    """A base-2 axis of the varied number."""
    return axes.log2(name, unit, values, per_unit)


def result_axis(name: str, unit: str, values: Sequence[float], goal: float | None, per_unit: float) -> Axis:
    """From 0 to above the target and the results, but at most eight targets high, so that the crossing is seen."""
    if goal is None:
        return axes.linear(name, unit, values, per_unit)
    axis = axes.linear(
        name, unit, [min(value, 8 * goal) for value in values if math.isfinite(value)] + [goal], per_unit
    )
    return replace(axis, high=max(axis.high, goal * 1.1))


def _hover(row: pd.Series, x: Axis, y: Axis) -> str:
    number, result = row.index[:2]
    lines = [f"{x.name}: {x.shown(row[number]):,.5g} {x.unit}", f"{y.name}: {y.shown(row[result]):,.5g} {y.unit}"]
    return "\n".join([*lines, f"running at once: {row['running_batch']:,}", f"bound by: {row['bound']}"])


def bits_chart(
    table: pd.DataFrame, x: Axis, goal: tuple[str, float] | None, title: str, notes: tuple[str, ...]
) -> Chart:
    """A bar per quantizer, most stored bits on top; columns quantizer, stored_bits, bound, meets, and the result's.

    `x` is the result's axis, its name that of the column's; `goal` the target's name and value (None: not known).
    """
    result = next(column for column in table.columns if column not in _NO_RESULTS)
    labels = [f"{row['quantizer']}, {row['stored_bits']:.3g} bit" for _, row in table.iterrows()]
    series = []
    for name, meets, colour, hatch in (
        ("meets the target", True, style.GREEN, ""),
        ("misses it", False, "#B8B8B8", "/"),
    ):
        rows = [(i, row) for i, (_, row) in enumerate(table.iterrows())
                if bool(row["meets"]) == meets and pd.notna(row[result])]  # fmt: skip
        if rows:
            series.append(Series(
                name, "hbar", tuple(float(row[result]) for _, row in rows),
                tuple(float(len(labels) - 1 - i) for i, _ in rows), colour, hatch=hatch, width=0.6,
                hover=tuple(f"{labels[i]}\n{x.name}: {x.shown(row[result]):,.5g} {x.unit}\nbound by: {row['bound']}"
                            for i, row in rows),
            ))  # fmt: skip
    y = axes.categories("quantizer", labels[::-1])
    if goal:
        ends = (goal[1], goal[1])
        series.append(Series(goal[0], "line", ends, (y.low, y.high), style.BLACK, dash="dash", marker="", is_note=True))
    return Chart(title, (Panel("", x, y, tuple(series)),), panel_height_pt=max(60.0, 14.0 * len(labels)), notes=notes)


_NO_RESULTS = ("quantizer", "stored_bits", "effective_bits", "max_batch", "running_batch", "bound", "meets")
