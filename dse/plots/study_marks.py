"""What the figures of a language model's study (`dse study`) share: looks, lines with bars of their error, tables."""

from collections.abc import Sequence

import pandas as pd

from dse.plots import style
from dse.plots.chart import Axis, Series
from dse.plots.style import Style

#: looks of up to six series of a panel: each differs from the others in colour and in mark
LOOKS = (
    Style(style.BLUE, "solid", "circle"), Style(style.ORANGE, "dash", "square"), Style(style.GREEN, "dot", "diamond"),
    Style(style.PURPLE, "dashdot", "triangle-up"), Style(style.VERMILLION, "solid", "cross"),
    Style(style.GREY, "dash", "triangle-down"),
)  # fmt: skip
#: what the bars of perplexities mean
BARS = "Bars: one standard error of the difference to FP16, over the windows of text."


def line(
    name: str, x: Sequence[float], y: Sequence[float], look: Style, unit: str = "", marker: bool = True,
    kind: str = "line", per_unit: float = 1.0,
) -> Series:  # fmt: skip
    """A series whose hover boxes tell its name, place and value."""
    texts = tuple(f"{name}\n{a:.4g}: {b / per_unit:.4g} {unit}".rstrip() for a, b in zip(x, y, strict=True))
    return Series(
        name, "line" if kind == "line" else "scatter", tuple(map(float, x)), tuple(map(float, y)), look.colour,
        look.dash, look.marker if marker else "", hover=texts, size=0.75 if kind == "scatter" else 1.0,
    )  # fmt: skip


def by_layer(own: pd.DataFrame, name: str, look: Style, fold: str = "mean", unit: str = "") -> Series:
    """A line over the layers: of each layer's values the `fold`, mean, min or max."""
    found = own.groupby("layer")["value"].agg(fold)
    return line(name, list(found.index), list(found), look, unit)


def layer_axis(table: pd.DataFrame) -> Axis:
    """The layers, from the first on."""
    layers = sorted({int(layer) for layer in table["layer"] if layer >= 0})
    every = -(-len(layers) // 12)
    ticks = tuple((float(n), f"{n}") for n in layers[::every])
    return Axis("layer", "index", layers[0] - 0.4, layers[-1] + 0.4, ticks)


def bars(name: str, x: Sequence[float], y: Sequence[float], errors: Sequence[float], look: Style,
         lie: bool = False) -> list[Series]:  # fmt: skip
    """A line a point from one standard error below it to one above; `lie`: along x."""
    found = []
    for at, value, error in zip(x, y, errors, strict=True):
        along, across = (at - error, at + error) if lie else (value - error, value + error), (value if lie else at,) * 2
        place = (along, across) if lie else (across, along)
        found.append(Series(name, "line", *place, look.colour, marker="", is_note=True, in_legend=False))
    return found


def level(name: str, axis: Axis, value: float, lie: bool = True) -> Series:
    """A dashed line at a value, along the whole `axis`."""
    ends, same = (axis.low, axis.high), (value, value)
    x, y = (ends, same) if lie else (same, ends)
    return Series(name, "line", x, y, style.BLACK, "dash", "", is_note=True)
