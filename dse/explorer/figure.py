"""Figures of `dse.figures` as the explorer shows them: the chosen design marked, the size and colors of the page."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from plotly.basedatatypes import BaseFigure
from plotly.colors import get_colorscale

from dse.figures.charts.interactivity import source_of
from dse.figures.drawing import names, style, to_plotly
from dse.figures.drawing.chart import Chart
from dse.figures.registry import DECLARED
from dse.questions import interactivity
from dse.questions.interactivity import Interactivity

HEIGHT = 400
TEXT_PX = 13
SMALL_PX = 11
#: characters of a category from which on it takes two lines
_LONG = 22
#: height of a line of a chart of categories
LINE_PX = 18
#: characters of the numbers of an axis beside long names, which leave little room
_MANY = 16
#: the legend stands above the plot, where no axis is; taller than this it would scroll
_LEGEND_PX = 260
#: pixels of an entry of a legend, a row each on a phone
_ENTRY_PX = 24
CLEAR = "rgba(0,0,0,0)"
#: lines with bands around them
_BANDED = 2
#: between the legend and the frame, and between the numbers of the axis below and its title; of the axis on the left
_GAP_PX, _LEFT_GAP_PX = 8, 16


def speeds(answer: Interactivity, chosen_rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Chart | None:
    """Throughput a device against the speed of each user, a line per named design with a star of its color at its
    chosen batch, beside measured servers. None where nothing fits."""
    if not answer.rows:
        return None
    dots = [{**interactivity.kept(row), "system": name} for name, row in chosen_rows if row["fits_whole_batch"]]
    table = pd.DataFrame([*answer.rows, *dots])
    models = " / ".join(dict.fromkeys(map(str, table["model"])))
    # bands of many lines hide each other
    about = {**source_of(answer).about, "notes": (), "best": [], "has_bands": len(dots) <= _BANDED}
    chart = DECLARED["interactivity"].chart(table.assign(model=models), about)
    if not dots:
        return chart
    panel = chart.panels[0]
    colors = {series.name: series.color for series in panel.series if series.kind == "line"}
    stars = []
    for dot in dots:
        (x, y), color = interactivity.speeds(dot), colors.get(names.printed(dot["system"]), style.BLACK)
        stars.append(replace(style.mark(style.KEY_CHOSEN, (x,), (y,), 1.8), color=color))
    panels = (replace(panel, series=(*panel.series, *stars)),)
    return replace(chart, panels=panels, keys=(style.KEY_CHOSEN, *chart.keys))


def map_of(chart: Chart) -> dict[str, Any]:
    """`fitted` for a map of cells, its lines as high as the chart says, with the scale of its colors on the right."""
    plot = fitted(chart)
    bar = plot["layout"]["coloraxis"]["colorbar"]
    bar.update(x=1.02, y=0, len=1, thickness=12, tickfont={"size": TEXT_PX})
    bar["title"]["font"] = {"size": TEXT_PX}
    plot["layout"]["margin"]["r"] = 90
    plot["layout"]["height"] = round(HEIGHT // 4 + to_plotly.PIXELS * chart.panel_height_pt)
    for name in ("xaxis", "yaxis"):
        plot["layout"][name].update(showgrid=False)
    return plot


def tall(chart: Chart, legend_px: int = 0) -> dict[str, Any]:
    """`fitted` for a chart with a line of its own for each category, as high as these need, and its legend.

    Long names take several lines, so that a phone has room for the marks.
    """
    legend_px = legend_px or _ENTRY_PX * len(chart.legend())
    ticks = [text for _, text in chart.panels[0].y.ticks]
    is_long = any(len(text) > _LONG for text in ticks)
    plot = fitted(chart, HEIGHT // 3 + legend_px + round(LINE_PX * len(ticks) * (1.6 if is_long else 1)))
    axis = plot["layout"]["yaxis"]
    axis.update(automargin=True)
    del axis["title"]
    if is_long:
        axis.update(ticktext=list(map(_on_lines, axis["ticktext"])), tickfont={"size": SMALL_PX})
    plot["layout"]["margin"]["l"] = 0
    across = plot["layout"]["xaxis"]
    if sum(map(len, across["ticktext"])) > _MANY:  # every other one, the middle among them: what a phone has room for
        first = len(across["tickvals"]) // 2 % 2
        across.update(tickvals=across["tickvals"][first::2], ticktext=across["ticktext"][first::2])
    return plot


def _on_lines(text: str) -> str:
    """A long category on several lines: a range in brackets on its own."""
    return text.replace(" (", "<br>(", 1) if " (" in text else "<br>".join(textwrap.wrap(text, _LONG))


def cells(chart: Chart) -> dict[str, Any]:
    """`fitted` for a map of light cells with letters in them: black in both themes, on two lines for a phone."""
    plot = fitted(chart, HEIGHT // 3 + 2 * round(LINE_PX * len(chart.panels[0].y.ticks)))
    for trace in plot["data"]:
        if "text" in trace.get("mode", ""):
            trace["textfont"] = {**trace.get("textfont", {}), "color": "#111111", "size": SMALL_PX}
            trace["text"] = [text.replace(" ", "<br>", 1) for text in trace["text"]]
    return plot


def fitted(chart: Chart, height: int = HEIGHT) -> dict[str, Any]:
    """The plotly figure, as plain data, of a chart with one panel: as wide as its place, in the page's colors.

    The page writes the title and the notes, where they wrap. Black becomes a gray that both themes show.
    """
    plot = to_plotly.spec(names.of_chart(chart), has_size=False)
    plot["data"] = _keyed(plot["data"])
    if not chart.colors and not any(trace["type"] == "bar" for trace in plot["data"]):  # on which white is seen
        plot["data"] = [_hollow(trace) for trace in plot["data"]]
    layout = plot["layout"]
    for name in ("paper_bgcolor", "plot_bgcolor", "width"):
        layout.pop(name)
    if labels := [text for text in layout.pop("annotations") if text["xref"] != "paper"]:
        layout["annotations"] = [{**label, "font": {"size": SMALL_PX}} for label in labels]  # in the theme's color
    margin = {"l": 75, "r": 10, "t": 10, "b": 55, "autoexpand": True}
    layout.update(height=height, margin=margin)
    del layout["font"]["color"]
    legend = layout["legend"]
    for name in ("entrywidth", "entrywidthmode"):
        legend.pop(name)
    plot_px = max(height - margin["t"] - margin["b"], 1)
    legend.update(font={"size": TEXT_PX}, x=0, y=1 + _GAP_PX / plot_px, yanchor="bottom", maxheight=_LEGEND_PX)
    for name in ("xaxis", "yaxis"):
        axis = layout[name]
        for color in ("gridcolor", "linecolor", "tickcolor"):
            axis.pop(color)
        axis.update(domain=[0, 1], tickfont={"size": TEXT_PX})
        axis["title"].update(font={"size": TEXT_PX}, standoff=_GAP_PX)
    layout["yaxis"]["title"].update(standoff=_LEFT_GAP_PX)
    layout["yaxis"].update(automargin=True)  # where its numbers are long
    text = json.dumps(plot)
    for shown in (str, to_plotly.paler):
        text = text.replace(f'"{shown(style.BLACK)}"', f'"{shown(style.GRAY)}"')
    recolored: dict[str, Any] = json.loads(text, object_hook=_without_none)
    return recolored


def _without_none(found: dict[str, Any]) -> dict[str, Any]:
    """Leave out what has no value: plotly's page takes None for a choice, and draws nothing."""
    return {key: value for key, value in found.items() if value is not None}


class Plain(BaseFigure):  # type: ignore[misc]
    """Plain data as a figure of plotly's, neither checked nor copied: that takes longer than all else of a figure.

    Our tests have plotly check what `fitted` and its like give, and leave nothing out of it.
    """

    def __init__(self, drawn: dict[str, Any]) -> None:  # not that of `BaseFigure`, which checks and copies
        self._drawn = drawn
        if colors := drawn["layout"].get("coloraxis"):  # the browser knows the same names by slightly other colors
            colors["colorscale"] = get_colorscale(colors["colorscale"])

    def to_dict(self) -> dict[str, Any]:
        """The plain data."""
        return self._drawn


def _keyed(traces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The traces with as few as can be for the legend alone, which a browser draws as slowly as those with points.

    A series stands in the legend by itself where its first trace looks like its key.
    """
    kept = [trace for trace in traces if not trace["showlegend"]]
    for rank, key in enumerate(trace for trace in traces if trace["showlegend"]):
        key["legendrank"] = rank + 1
        first = next((trace for trace in kept if trace["legendgroup"] == key["legendgroup"] and trace["x"]), None)
        if first is not None and _look(first) == _look(key):
            first.update(showlegend=True, legendrank=key["legendrank"])
        else:
            kept.append(key)
    return kept


def _hollow(trace: dict[str, Any]) -> dict[str, Any]:
    """The trace with its hollow marks open to the page, whose color is that of its theme."""
    marker = trace.get("marker") or {}
    if trace["type"] == "scatter" and "white" in (color := marker.get("color") or ()):
        shown = [CLEAR if shade == "white" else shade for shade in ([color] if isinstance(color, str) else color)]
        marker["color"] = shown[0] if isinstance(color, str) else shown
    return trace


def _look(trace: Mapping[str, Any]) -> list[Any]:
    """Look of a trace's legend entry; marks may differ in size."""
    marker = trace.get("marker") or {}
    color = marker.get("color")
    if isinstance(color, list) and len(set(color)) == 1:
        color = color[0]
    modes = {mode for mode in trace.get("mode", "").split("+") if mode != "text"}
    return [trace["type"], modes, marker.get("symbol"), color, marker.get("pattern"), trace.get("line")]
