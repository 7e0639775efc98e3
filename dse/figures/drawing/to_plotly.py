"""A chart drawn by plotly: the interactive figure of the report and of the explorer."""

import html
import math
from typing import Any

from dse.figures.drawing import direct, labels, layout
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.figures.drawing.direct import PlacedName
from dse.figures.drawing.labels import Label
from dse.figures.drawing.layout import NOTE_SIZE, PANEL_SIZE, TEXT_SIZE, TITLE_SIZE, ChartLayout

#: screen pixels of a point: 1,000 pixels for the width of a page
PIXELS = 1000.0 / layout.WIDTH
#: panel that labels of a figure without a size are placed for, in width between a phone's and a desktop's: on both they
#: stand clear of one another
USUAL = layout.Box(0.0, 0.0, 450 / PIXELS, 250 / PIXELS)
#: what plotly adds to the width of a legend entry, in pixels
_ENTRY_EXTRA = 52.0
_DASHES = {"solid": "solid", "dash": "8px,4px", "dot": "2px,3px", "dashdot": "10px,4px,2px,4px"}
_MARKERS = {"x-thin": "x-thin-open"}
#: no logo, no upload, no link out
CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "plotlyServerURL": "",
    "modeBarButtonsToRemove": ["select2d", "lasso2d"],
}


def _plain(text: str) -> str:
    """Text in which plotly sees no tags."""
    return html.escape(text, quote=False)


def _font(points: float, color: str = "#222222") -> dict[str, Any]:
    return {"size": points * PIXELS, "color": color}


def figure(chart: Chart) -> Any:
    """The chart as a plotly Figure of fixed size."""
    import plotly.graph_objects as go

    return go.Figure(spec(chart))


def spec(chart: Chart, has_size: bool = True) -> dict[str, Any]:
    """The figure as plain data and layout, which plotly has not checked yet: checking takes most of the time.

    One without a size, as wide as its place in a page, has all series in its legend: names at their ends have a size.
    """
    place = layout.place(chart)
    entries = chart.entries()
    legend = place.legend if has_size else entries if len(entries) > 1 else ()
    fig: dict[str, Any] = {
        "width": round(place.width * PIXELS),
        "height": round(place.height * PIXELS),
        "margin": {"l": 0, "r": 0, "t": 0, "b": 0, "pad": 0, "autoexpand": False},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "showlegend": bool(legend),
        "hovermode": "closest",
        "font": {"family": "Arial, Helvetica, 'Liberation Sans', sans-serif", **_font(TEXT_SIZE)},
        "barmode": "overlay",
        "legend": {
            "orientation": "h",
            "x": 4 / place.width,
            "xanchor": "left",
            "y": place.legend_top / place.height,
            "yanchor": "top",
            "font": _font(TEXT_SIZE),
            "entrywidthmode": "pixels",
            "itemsizing": "trace",
            "entrywidth": place.legend_cell * PIXELS - _ENTRY_EXTRA,
            "bgcolor": "rgba(0,0,0,0)",
            "itemwidth": 34,
            "traceorder": "normal",
        },
        "annotations": _texts(chart, place),
    }
    traces: list[Any] = []
    named, panels = direct.names(chart, place) if has_size else ([], list(chart.panels))
    for name in named:
        fig["annotations"] += _name(name, place)
    if tails := [_tail(name, place) for name in named if name.tail]:
        fig["shapes"] = tails
    for i, panel in enumerate(panels):
        suffix = "" if i == 0 else str(i + 1)
        box = place.panels[i]
        bars = {series.kind for series in panel.series}
        fig[f"xaxis{suffix}"] = {
            **_axis(panel.x, True, "bar" not in bars),
            "anchor": f"y{suffix}",
            "domain": [box.x / place.width, (box.x + box.width) / place.width],
        }
        fig[f"yaxis{suffix}"] = {
            **_axis(panel.y, place.shows_y_label[i], "hbar" not in bars),
            "anchor": f"x{suffix}",
            "domain": [box.y / place.height, (box.y + box.height) / place.height],
        }
        traces += [_trace(series, panel, chart, suffix) for series in panel.series]
        room = box if has_size else USUAL
        fig["annotations"] += [_label(label, panel, suffix) for label in labels.placed(panel, room, layout.REPORT)]
    traces += [_key(series) for series in legend]
    if chart.colors:
        fig["coloraxis"] = _colors(chart, place)
    return {"data": traces, "layout": fig}


def _bar(**values: Any) -> dict[str, Any]:
    return {"type": "bar", **values}


def _scatter(**values: Any) -> dict[str, Any]:
    return {"type": "scatter", **values}


def _texts(chart: Chart, place: ChartLayout) -> list[dict[str, Any]]:
    """Title, panel titles and notes, placed on the page."""
    common = {"xref": "paper", "yref": "paper", "xanchor": "left", "showarrow": False, "align": "left"}
    x = 8 / place.width
    texts = [
        {
            **common,
            "x": x,
            "y": place.title_top / place.height,
            "yanchor": "top",
            "font": _font(TITLE_SIZE),
            "text": f"<b>{_plain(chart.title)}</b>" if chart.title else "",
        }
    ]
    for title, box in zip(place.titles, place.panels, strict=True):
        texts.append(
            {
                **common,
                "x": box.x / place.width,
                "y": (box.y + box.height + 1) / place.height,
                "yanchor": "bottom",
                "font": _font(PANEL_SIZE),
                "text": _plain(title).replace("\n", "<br>"),
            }
        )
    for i, note in enumerate(place.notes):
        texts.append(
            {
                **common,
                "x": x,
                "y": (place.notes_top - i * layout.NOTE_ROW) / place.height,
                "yanchor": "top",
                "font": _font(NOTE_SIZE, "#444444"),
                "text": _plain(note),
            }
        )
    return texts


def _label(label: Label, panel: Panel, suffix: str) -> dict[str, Any]:
    """A text at its place, with a thin line to its mark where it is far."""
    x, y = (
        math.log10(axis.shown(at)) if axis.log else axis.shown(at)
        for axis, at in zip((panel.x, panel.y), (label.x, label.y), strict=True)
    )
    text = _plain(label.text).replace("\n", "<br>")
    common = {
        "xref": f"x{suffix}",
        "yref": f"y{suffix}",
        "x": x,
        "y": y,
        "text": f"<b>{text}</b>" if label.is_name else text,
        "font": _font(label.size, label.color),
        "xanchor": "center",
        "yanchor": "middle",
        "showarrow": label.has_leader,
    }
    dx, dy = label.dx * PIXELS, label.dy * PIXELS
    if not label.has_leader:
        return {**common, "xshift": dx, "yshift": dy}
    leader = {"arrowhead": 0, "arrowwidth": 0.8, "arrowcolor": label.color, "standoff": 4}
    return {**common, "ax": dx, "ay": -dy, **leader}


#: letters that look like the marks
_GLYPHS = {
    "circle": "●",
    "square": "■",
    "diamond": "◆",
    "diamond-tall": "♦",
    "octagon": "⯃",
    "triangle-up": "▲",
    "triangle-down": "▼",
    "triangle-left": "◀",
    "triangle-right": "▶",
    "pentagon": "⬟",
    "hexagon": "⬢",
    "star": "★",
    "cross": "✚",
    "x-thin": "✕",
}


def _name(name: PlacedName, place: ChartLayout) -> list[dict[str, Any]]:
    """The name of a series, and its mark before it."""
    common = {"xref": "paper", "yref": "paper", "y": name.y / place.height, "yanchor": "middle", "showarrow": False}
    anchor, font = "center" if name.is_middle else "left", _font(name.size, name.color)
    at = {"x": name.x / place.width, "xanchor": anchor, "font": font, "borderpad": 0, "align": "left"}
    at["text"] = "<br>".join(map(_plain, name.lines))
    shown = [{**common, **at, **({"bgcolor": "rgba(255,255,255,0.75)"} if name.is_middle else {})}]
    glyph = name.mark and ("■" if name.mark.kind in ("bar", "hbar") else _GLYPHS.get(name.mark.marker, ""))
    if name.mark and glyph and not name.is_middle:
        x, font = (name.x - 5.0) / place.width, _font(0.9 * name.size, name.mark.color)
        shown.append({**common, "x": x, "xanchor": "center", "text": glyph, "font": font})
    return shown


def _tail(name: PlacedName, place: ChartLayout) -> dict[str, Any]:
    """The line from a name to where its series ends."""
    assert name.tail
    (x0, y0), (x1, y1) = ((x / place.width, y / place.height) for x, y in name.tail)
    line = {"color": name.color, "width": 0.8}
    return {"type": "line", "xref": "paper", "yref": "paper", "x0": x0, "y0": y0, "x1": x1, "y1": y1, "line": line}


def _axis(axis: Axis, shows_label: bool, grid: bool) -> dict[str, Any]:
    low, high = axis.shown(axis.low), axis.shown(axis.high)
    return {
        "type": "log" if axis.log else "linear",
        "range": [math.log10(low), math.log10(high)] if axis.log else [low, high],
        "tickmode": "array",
        "tickvals": [axis.shown(at) for at, _ in axis.ticks],
        "ticktext": [_plain(text) for _, text in axis.ticks],
        "tickangle": 0,
        "tickfont": _font(TEXT_SIZE),
        "title": {"text": _plain(axis.label) if shows_label else "", "font": _font(TEXT_SIZE), "standoff": 5},
        "automargin": False,
        "showgrid": grid,
        "gridcolor": "#DDDDDD",
        "zeroline": False,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": "#444444",
        "showline": True,
        "linecolor": "#444444",
        "mirror": True,
    }


def _trace(series: Series, panel: Panel, chart: Chart, suffix: str) -> Any:
    x = [panel.x.shown(v) for v in series.x]
    y = [panel.y.shown(v) for v in series.y]
    common = {
        "name": _plain(series.name),
        "legendgroup": series.name,
        "showlegend": False,
        "x": x,
        "y": y,
        "xaxis": f"x{suffix}",
        "yaxis": f"y{suffix}",
        "hovertext": [_plain(text).replace("\n", "<br>") for text in series.hover] or None,
        "hoverinfo": "text" if series.hover else "skip",
    }
    if series.kind == "heat":
        return _heat(series, panel, chart, common)
    if series.kind == "area":
        return _scatter(**{**common, "hoverinfo": "skip"}, mode="lines", line={"width": 0}, **_area(series))
    if series.kind in ("bar", "hbar"):
        along = panel.y if series.kind == "bar" else panel.x
        return _bar(
            **common,
            base=[along.shown(v) for v in series.base] or None,
            width=series.width,
            orientation="v" if series.kind == "bar" else "h",
            marker=_fill(series),
        )
    in_cells = series.labels if not series.marker else ()
    modes = ["lines"] * series.draws_line + ["markers"] * bool(series.marker) + ["text"] * bool(in_cells)
    return _scatter(
        **common,
        mode="+".join(modes),
        line={"color": series.color, "width": 1.1 if series.is_thin else 2.2, "dash": _DASHES[series.dash]},
        marker=_marker(series) if series.marker else None,
        cliponaxis=False,
        text=[_plain(label) for label in in_cells] or None,
        textposition="middle center",
        textfont=_font(NOTE_SIZE),
    )


def _heat(series: Series, panel: Panel, chart: Chart, common: dict[str, Any]) -> dict[str, Any]:
    """Cells colored by value; without texts of their own, hovering shows the place and the value."""
    assert chart.colors is not None
    scale, n = chart.colors, len(series.x)
    cells = [None if v != v else scale.place(v) for v in series.values]
    texts = common.pop("hovertext")
    names = [_plain(axis.name) for axis in (panel.x, panel.y, scale.axis)]
    shown = (
        {"text": [texts[i : i + n] for i in range(0, len(cells), n)], "hoverinfo": "text"}
        if texts
        else {"hovertemplate": f"{names[0]} %{{x}}<br>{names[1]} %{{y}}<br>{names[2]} %{{z:.4g}}<extra></extra>"}
    )
    rows = [cells[i : i + n] for i in range(0, len(cells), n)]
    return {**common, **shown, "type": "heatmap", "z": rows, "coloraxis": "coloraxis"}


def paler(color: str) -> str:
    """A color of which what lies below is seen."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"


def _area(series: Series) -> dict[str, Any]:
    return {"fill": "toself", "fillcolor": paler(series.color)}


def _fill(series: Series) -> dict[str, Any]:
    pattern = {"shape": series.hatch, "fgcolor": "white", "size": 7, "solidity": 0.25, "fillmode": "overlay"}
    return {"color": series.color, "line": {"color": "white", "width": 0.8}, "pattern": pattern}


def _marker(series: Series) -> dict[str, Any]:
    size = (8.5 if series.draws_line else 12.0) * series.size
    if series.marker == "star" and series.draws_line:
        size *= 1.2
    marker: dict[str, Any] = {
        "symbol": _MARKERS.get(series.marker, series.marker),
        "size": size,
        "color": ["white" if series.is_open(i) else series.color for i in range(len(series.x))],
        "line": {"color": series.color, "width": 1.6},
    }
    if series.marker in _MARKERS:
        marker.update(color=series.color, line={"color": series.color, "width": 2.2})
    return marker


def _key(series: Series) -> Any:
    """The legend entry of a series: a trace without points."""
    common = {
        "name": _plain(series.name),
        "legendgroup": series.name,
        "showlegend": True,
        "x": [None],
        "y": [None],
        "hoverinfo": "skip",
    }
    if series.kind in ("bar", "hbar"):
        return _bar(**common, marker=_fill(series))
    modes = ["lines"] * series.draws_line + ["markers"] * bool(series.marker)
    marker = {
        "symbol": _MARKERS.get(series.marker, series.marker),
        "size": 9,
        "color": "white" if series.key_is_open else series.color,
        "line": {"color": series.color, "width": 2.2 if series.marker in _MARKERS else 1.6},
    }
    return _scatter(
        **common,
        mode="+".join(modes) or "lines",
        marker=marker if series.marker else None,
        line={"color": series.color, "width": 2.2, "dash": _DASHES[series.dash]},
    )


def _colors(chart: Chart, place: ChartLayout) -> dict[str, Any]:
    scale = chart.colors
    assert scale is not None
    low, high = place.panels[-1].y, place.panels[0].y + place.panels[0].height
    return {
        "colorscale": "Cividis",
        "cmin": scale.place(scale.axis.low),
        "cmax": scale.place(scale.axis.high),
        "colorbar": {
            "x": (place.width - layout.BAR_ROOM) / place.width,
            "xanchor": "left",
            "xpad": 0,
            "ypad": 0,
            "y": low / place.height,
            "yanchor": "bottom",
            "len": (high - low) / place.height,
            "lenmode": "fraction",
            "thickness": 9 * PIXELS,
            "tickvals": [scale.place(at) for at, _ in scale.axis.ticks],
            "ticktext": [text for _, text in scale.axis.ticks],
            "tickfont": _font(TEXT_SIZE),
            "title": {"text": _plain(scale.axis.label), "side": "right", "font": _font(TEXT_SIZE)},
        },
    }
