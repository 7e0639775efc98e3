"""Figures of `dse.plots` as the explorer shows them: the chosen design marked, the size and colours of the page."""

import json
from dataclasses import replace
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from dse.plots import FIGURES, style, to_plotly
from dse.plots.chart import Chart, Series

HEIGHT = 400
TEXT_PX = 13
#: height of a line of a chart of categories
LINE_PX = 18


def throughput(curve: pd.DataFrame, result: dict[str, Any]) -> Chart:
    """Throughput against batch with a star at the design of `result`."""
    chart = FIGURES["throughput_batch"].chart(curve)
    if not result["feasible"]:
        return chart
    star = Series(
        "this design", "scatter", x=(float(result["batch"]),), y=(result["throughput_tokens_per_s"],),
        colour=style.VERMILLION, marker="star", size=1.4,
    )  # fmt: skip
    panel = chart.panels[0]
    return replace(chart, panels=(replace(panel, series=(*panel.series, star)),))


def tall(chart: Chart) -> go.Figure:
    """`fitted` for a chart with a line of its own for each category, as high as these need."""
    drawn = fitted(chart, HEIGHT // 3 + round(LINE_PX * len(chart.panels[0].y.ticks)))
    drawn.update_yaxes(automargin=True, title=None)
    drawn.update_layout(margin={"l": 0})
    return drawn


def fitted(chart: Chart, height: int = HEIGHT) -> go.Figure:
    """The plotly figure of a chart with one panel, as wide as its place, in the colours of the page's theme.

    The page writes the title and the notes, where they wrap. Black becomes a grey that both themes show.
    """
    figure: go.Figure = to_plotly.figure(chart)
    figure.update_layout(
        width=None, height=height, margin={"l": 65, "r": 10, "t": 10, "b": 10, "autoexpand": True},
        paper_bgcolor=None, plot_bgcolor=None, font={"color": None},
        legend={
            "font": {"color": None, "size": TEXT_PX}, "x": 0, "y": -0.2, "yanchor": "top",
            "entrywidth": None, "entrywidthmode": None,
        },
    )  # fmt: skip
    figure.layout.annotations = ()
    plain = {"domain": [0, 1], "gridcolor": None, "linecolor": None, "tickcolor": None}
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(**plain, tickfont={"color": None, "size": TEXT_PX}, title={"font": {"color": None, "size": TEXT_PX}})
    return go.Figure(json.loads(figure.to_json().replace(f'"{style.BLACK}"', f'"{style.GREY}"')))
