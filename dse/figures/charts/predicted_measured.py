"""Predicted against measured kernel times: of a calibration, and of the calibrated devices that ship."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from dse.core.errors import InputError
from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Chart, Panel, Series
from dse.figures.registry import Written, by, by_validation, figure
from dse.figures.source import Source
from dse.validate.silicon import Scatter

MICROSECOND = axes.MILLISECOND / 1000
#: points drawn of one kind; more do not show more
MAX_POINTS = 1500
#: half of the points that a panel of measured kernels shows at most; the tables count all
MAX_HALF = 500
COLUMNS = ("device", "stack", "part", "measured_s", "predicted_s", "held_out")
_PARTS = {"attention": "attention, 16 bits", "kv.fp8": "attention, FP8", "gemm": "matrix products"}


def _points(name: str, measured: Any, predicted: Any, mask: Any, look: style.Style) -> Series:
    x, y = measured[mask], predicted[mask]
    every = max(1, -(-len(x) // MAX_POINTS))
    x, y = x[::every], y[::every]
    texts = (
        f"measured {a / MICROSECOND:,.4g} us\npredicted {b / MICROSECOND:,.4g} us\n{100 * (b / a - 1):+.1f} %"
        for a, b in zip(x, y, strict=True)
    )
    return marks.points(name, x, y, look, texts, size=0.45)


@figure(
    "predicted_measured",
    "Predicted against measured kernel times of a calibration.",
    by("calibrate TABLE --device NAME --out FILE.toml (writes FILE.points.csv)", "points"),
    COLUMNS,
    order=200,
)
def calibrated(source: Source) -> Chart:
    """The parts of a calibration, of one device and stack."""
    device, stack = source.single("device"), source.single("stack")
    return _chart(
        f"{device}, {stack}: predicted and measured",
        [
            (str(part), *(rows[name].to_numpy() for name in COLUMNS[3:]))
            for part, rows in source.table.groupby("part", sort=False)
        ],
    )


def points_of(scatters: Sequence[Scatter]) -> pd.DataFrame:
    """Points of the scatter plots of measured kernels, thinned to at most 2 MAX_HALF of each."""
    tables = [pd.DataFrame({name: getattr(scatter, name) for name in COLUMNS}) for scatter in scatters]
    return pd.concat(map(_thinned, tables), ignore_index=True) if tables else pd.DataFrame(columns=list(COLUMNS))


def _thinned(points: pd.DataFrame) -> pd.DataFrame:
    return points.iloc[:: max(1, -(-len(points) // (2 * MAX_HALF)))]


def silicon(products: bool, source: Source) -> Chart:
    """The kernels of one device on measured times, matrix products or attention: a panel per stack and part."""
    table = source.table[(source.table["part"] == "gemm") == products]
    if table.empty:
        raise InputError(f"part = {'gemm' if products else 'attention'}: no row has it")
    device = Source(table).single("device")
    parts = []
    for (stack, part), points in table.groupby(["stack", "part"], sort=False):
        drawn = _thinned(points)
        parts.append((f"{stack}, {_PARTS.get(str(part), part)}", *(drawn[name].to_numpy() for name in COLUMNS[3:])))
    drawing = _chart(f"{device}: predicted against measured", parts)
    note = f"Every so many rows are drawn, at most {2 * MAX_HALF:,} a panel; the table counts all held-out ones. "
    return replace(drawing, notes=(note + "Rows inside the last-level cache are predicted with its own bandwidth.",))


for _i, (_name, _words) in enumerate((("attention", "attention"), ("gemm", "matrix products"))):
    figure(
        f"silicon_{_name}",
        f"Predicted against measured times of a device's kernels: {_words}.",
        Written(by_validation("silicon-points", "calibrate").command, ("tables/silicon-points",)),
        COLUMNS,
        order=320 + _i,
    )(partial(silicon, _name == "gemm"))


def _chart(title: str, parts: list[tuple[str, Any, Any, Any]]) -> Chart:
    """A panel per part: (name, measured seconds, predicted seconds, which rows were held out)."""
    every = [float(value) for _, measured, predicted, _ in parts for value in (*measured, *predicted)]
    x = axes.log10("measured", "us", every, MICROSECOND)
    y = axes.log10("predicted", "us", every, MICROSECOND)
    panels = []
    for name, measured, predicted, held in parts:
        held = np.asarray(held)
        series = (
            *marks.diagonals("equal", x),
            *marks.diagonals("10 % off", x, 1.1, style.GRAY, "dash"),
            _points("fitted", measured, predicted, ~held, style.Style(style.SKY)),
            _points("held out", measured, predicted, held, style.Style(style.VERMILLION, marker="diamond")),
        )
        panels.append(Panel(name, x, y, series))
    return Chart(
        title,
        panels=tuple(panels),
        n_columns=min(2, len(panels)),
        panel_height_pt=230,
        notes=(
            f"At most {MAX_POINTS:,} points of a kind are drawn. Rows inside the last-level cache are predicted "
            "with the bandwidth fitted to it.",
        ),
    )
