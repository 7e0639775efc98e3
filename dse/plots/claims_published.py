"""Published numbers against ours, a mark per claim; drawn by `dse validate report`."""

import math
from dataclasses import replace

import pandas as pd

from dse.plots import axes, style
from dse.plots.chart import Axis, Chart, Panel, Series

#: powers of ten between two ticks
TICK_DECADES = 3

#: verdict -> (colour, marker): told apart by shape as well
LOOKS = {
    "reproduced": (style.GREEN, "circle"),
    "within": (style.SKY, "square"),
    "erratum": (style.ORANGE, "diamond"),
    "missed": (style.VERMILLION, "x-thin"),
}


def _thinned(axis: Axis) -> Axis:
    """The axis with a tick every three powers of ten."""
    at = [(place, text) for place, text in axis.ticks if round(math.log10(place)) % TICK_DECADES == 0]
    return replace(axis, ticks=tuple((place, axes.count_text(place) if place >= 1 else text) for place, text in at))


def chart(table: pd.DataFrame) -> Chart:
    """One panel: columns `id`, `published`, `ours`, `unit`, `verdict`, all numbers above 0."""
    every = [*map(float, table["published"]), *map(float, table["ours"])]
    x, y = (_thinned(axes.log10(name, "each in its own unit", every)) for name in ("published", "ours"))
    ends = (x.low, x.high)
    series = [Series("equal", "line", ends, ends, colour=style.BLACK, marker="", is_note=True)]
    for verdict, (colour, marker) in LOOKS.items():
        own = table[table["verdict"] == verdict]
        if len(own):
            texts = tuple(
                f"{row.id}\npublished {row.published:g}, ours {row.ours:.4g} {row.unit}\n{verdict}"
                for row in own.itertuples()
            )
            series.append(Series(
                verdict, "scatter", tuple(map(float, own["published"])), tuple(map(float, own["ours"])), colour=colour,
                marker=marker, hover=texts, size=0.75,
            ))  # fmt: skip
    return Chart(
        "Published against ours", (Panel("", x, y, tuple(series)),), panel_height_pt=260,
        notes=("Claims where both are one number above 0.",),
    )  # fmt: skip
