"""Common parts of the figures of a language model's study (`dse study`): several models, looks, error bars."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import pandas as pd

from dse import figures
from dse.core.errors import InputError, show
from dse.figures.drawing import axes, marks, names, style, to_plotly
from dse.figures.drawing.chart import Axis, Chart, Series
from dse.figures.drawing.style import Style
from dse.figures.registry import by, figure
from dse.figures.source import Source
from studies.studied import SHIPPED
from studies.table import Tables

#: looks of up to six series of a panel: each differs from the others in color and in mark
LOOKS = (
    Style(style.BLUE, "solid", "circle"),
    Style(style.ORANGE, "dash", "square"),
    Style(style.GREEN, "dot", "diamond"),
    Style(style.PURPLE, "dashdot", "triangle-up"),
    Style(style.VERMILLION, "solid", "cross"),
    Style(style.GRAY, "dash", "triangle-down"),
)
#: what the bars of perplexities mean
BARS = "Bars: one standard error of the difference to FP16, over the windows of text."
#: name -> what draws the tables of some models, and the experiment that it shows
CHARTS: dict[str, tuple[Callable[[Tables], Chart], str]] = {}
_WRITTEN = by("study MODEL --out DIR", *(f"{model}.study" for model in SHIPPED))


def study(name: str, experiment: str, shows: str) -> Callable[[Callable[[Tables], Chart]], Callable[[Tables], Chart]]:
    """Declare the figure of an experiment, drawn by a function of the tables of some models."""

    def declare(draw: Callable[[Tables], Chart]) -> Callable[[Tables], Chart]:
        def of_one(source: Source) -> Chart:
            return chart(name, {source.path.name.split(".")[0] if source.path else "model": source.table})

        CHARTS[name] = draw, experiment
        columns = ("experiment", "series", "layer", "side", "x", "metric", "value")
        figure(name, shows, _WRITTEN, columns, order=400 + len(CHARTS))(of_one)
        return draw

    return declare


def chart(name: str, tables: Tables) -> Chart:
    """The figure of that name, a panel or more a model. Raises InputError where a table lacks its rows."""
    assert name in figures.FIGURES  # all charts, which are imported when this is asked for and fill `CHARTS`
    draw, experiment = CHARTS[name]
    for model, table in tables.items():
        if not (table["experiment"] == experiment).any():
            made_by = f"is this a table of `{_WRITTEN.command}`?"
            raise InputError(f"{show(model)}: no row of experiment {experiment}: {made_by}")
    return draw(tables)


def plotly_figure(name: str, tables: Tables) -> Any:
    """The chart as a plotly figure."""
    return to_plotly.figure(names.of_chart(chart(name, tables)))


def line(
    name: str,
    x: Sequence[float],
    y: Sequence[float],
    look: Style,
    unit: str = "",
    kind: Literal["line", "scatter"] = "line",
    per_unit: float = 1.0,
    **more: Any,
) -> Series:
    """A series whose hover boxes tell its name, place and value."""
    texts = (f"{name}\n{a:.4g}: {b / per_unit:.4g} {unit}".rstrip() for a, b in zip(x, y, strict=True))
    if kind == "line":
        return marks.line(name, x, y, look, texts, **more)
    return marks.points(name, x, y, look, texts, **{"size": 0.75, **more})


def by_layer(values: pd.DataFrame, name: str, look: Style, fold: str = "mean", unit: str = "") -> Series:
    """A line over the layers: of each layer's values the `fold`, mean, min or max."""
    per_layer = values.groupby("layer")["value"].agg(fold)
    return line(name, list(per_layer.index), list(per_layer), look, unit)


def layer_axis(table: pd.DataFrame) -> Axis:
    """The layers, from the first on."""
    return axes.layers(sorted({int(layer) for layer in table["layer"] if layer >= 0}), 0.4)


def bars(
    name: str, x: Sequence[float], y: Sequence[float], errors: Sequence[float], look: Style, lie: bool = False
) -> list[Series]:
    """A line a point from one standard error below it to one above; `lie`: along x."""
    look = Style(look.color, marker="")
    segments = []
    for at, value, error in zip(x, y, errors, strict=True):
        along, across = (at - error, at + error) if lie else (value - error, value + error), (value if lie else at,) * 2
        horizontal, vertical = (along, across) if lie else (across, along)
        segments.append(marks.line(name, horizontal, vertical, look, is_note=True, in_legend=False))
    return segments
