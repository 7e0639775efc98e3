"""Predicted against measured kernel times of a calibration; drawn by `dse calibrate`, not part of the report."""

from typing import Any

import numpy as np

from dse.plots import axes, style
from dse.plots.chart import Chart, Panel, Series

MICROSECOND = axes.MILLISECOND / 1000
#: points drawn of one kind; more do not show more
MAX_POINTS = 1500


def _points(name: str, measured: Any, predicted: Any, mask: Any, **look: Any) -> Series:
    x, y = measured[mask], predicted[mask]
    every = max(1, -(-len(x) // MAX_POINTS))
    x, y = x[::every], y[::every]
    texts = tuple(
        f"measured {a / MICROSECOND:,.4g} us\npredicted {b / MICROSECOND:,.4g} us\n{100 * (b / a - 1):+.1f} %"
        for a, b in zip(x, y, strict=True)
    )
    return Series(name, "scatter", tuple(map(float, x)), tuple(map(float, y)), hover=texts, size=0.45, **look)


def chart(title: str, parts: list[tuple[str, Any, Any, Any]]) -> Chart:
    """A panel per part: (name, measured seconds, predicted seconds, which rows were held out)."""
    every = [float(value) for _, measured, predicted, _ in parts for value in (*measured, *predicted)]
    x = axes.log10("measured", "us", every, MICROSECOND)
    y = axes.log10("predicted", "us", every, MICROSECOND)
    ends = (x.low, x.high)
    panels = []
    for name, measured, predicted, held in parts:
        held = np.asarray(held)
        series = (
            Series("equal", "line", ends, ends, colour=style.BLACK, marker="", is_note=True),
            Series("10 % off", "line", ends, tuple(1.1 * end for end in ends), colour=style.GREY, dash="dash",
                   marker="", is_note=True),
            Series("10 % off", "line", ends, tuple(end / 1.1 for end in ends), colour=style.GREY, dash="dash",
                   marker="", is_note=True),
            _points("fitted", measured, predicted, ~held, colour=style.SKY),
            _points("held out", measured, predicted, held, colour=style.VERMILLION, marker="diamond"),
        )  # fmt: skip
        panels.append(Panel(name, x, y, series))
    return Chart(
        title, tuple(panels), n_columns=min(2, len(panels)), panel_height_pt=230,
        notes=(f"At most {MAX_POINTS:,} points of a kind are drawn. Rows inside the last-level cache are predicted "
               "with the bandwidth fitted to it.",),
    )  # fmt: skip
