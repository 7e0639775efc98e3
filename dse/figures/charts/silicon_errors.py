"""Errors of calibrated kernels on measured times of a device, the naive roofline beside."""

import pandas as pd

from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Chart, Panel
from dse.figures.registry import by_validation, figure
from dse.figures.source import Source


@figure(
    "silicon_errors",
    "Errors of a device's calibrated kernels on measured times, by part and size.",
    by_validation("silicon"),
    ("device", "stack", "part", "size_class", "mean", "p90", "naive_mean"),
    order=340,
)
def chart(source: Source) -> Chart:
    """One panel, a line per stack, part and size class; shares, p90 and naive_mean may be missing."""
    table, device = source.table, source.single("device")
    names = [f"{row.stack}: {row.part}, {row.size_class}" for row in table.itertuples()]
    places = range(len(names) - 1, -1, -1)
    series = []
    for column, name, color, marker in (
        ("mean", "calibrated, mean", style.BLUE, "circle"),
        ("p90", "calibrated, 90th percentile", style.SKY, "diamond"),
        ("naive_mean", "bytes over peak bandwidth, mean", style.VERMILLION, "x-thin"),
    ):
        known = [i for i, value in enumerate(table[column]) if pd.notna(value)]
        values = [table[column].iloc[i] for i in known]
        texts = (f"{names[i]}\n{name}: {100 * table[column].iloc[i]:.3g} %" for i in known)
        look = style.Style(color, marker=marker)
        series.append(marks.points(name, values, (places[i] for i in known), look, texts))
    x = axes.linear("error", "%", [value for line in series for value in line.x], axes.PERCENT)
    return Chart(
        f"Errors on measured kernels, {device}",
        panels=(Panel("", x, axes.categories("kernel", names[::-1]), tuple(series)),),
        panel_height_pt=40 + 12 * len(names),
        notes=("Means of |predicted / measured - 1| over rows that the fit did not see.",),
    )
