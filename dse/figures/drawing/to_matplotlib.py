"""A chart drawn by matplotlib: PNG, SVG and PDF, the same bytes every time, without a display or a browser."""

import io
from typing import Any

from dse.figures.drawing import direct, fit, labels, layout, page_layout
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.figures.drawing.direct import PlacedName
from dse.figures.drawing.labels import Label
from dse.figures.drawing.layout import REPORT, ChartLayout, Page

FORMATS = ("png", "svg", "pdf")
PNG_DPI = 300
_MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "diamond-tall": "d",
    "octagon": "8",
    "triangle-up": "^",
    "triangle-down": "v",
    "triangle-left": "<",
    "triangle-right": ">",
    "pentagon": "p",
    "hexagon": "h",
    "star": "*",
    "cross": "P",
    "x-thin": "x",
}
_DASHES: dict[str, Any] = {"solid": "-", "dash": (0, (5, 2)), "dot": (0, (1.2, 1.6)), "dashdot": (0, (6, 2, 1.2, 2))}
#: PDF holds its TrueType fonts (type 42); SVG draws letters as paths, so that it looks the same without any font
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "axes.edgecolor": "#444444",
    "grid.color": "#DDDDDD",
    "hatch.color": "white",
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "dse",
    "path.simplify": False,
}
#: widths in points at the report's size
_WIDTHS = {
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
}
#: what matplotlib would write by itself: dates, which differ each time, and its own name
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def _plain(text: str) -> str:
    """Text in which matplotlib sees no formula."""
    return text.replace("$", r"\$")


def images(chart: Chart) -> dict[str, bytes]:
    """The chart in every format of FORMATS."""
    return {name: image(chart, name) for name in FORMATS}


def image(
    chart: Chart, name: str, page: Page = REPORT, metadata: dict[str, str] | None = None, dpi: int | None = None
) -> bytes:
    """The chart for a page in one of FORMATS, with what the file says of itself; no date is in it.

    `dpi` are the dots an inch of a PNG, PNG_DPI by default.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: Any = {**_STYLE, **{key: width * page.line for key, width in _WIDTHS.items()}, "font.size": page.text}
    with rc_context(style):
        chart = fit.fitted(chart, page)
        place = page_layout.on(chart, page)
        figure = Figure(figsize=(place.width / 72, place.height / 72), facecolor="white")
        FigureCanvasAgg(figure)
        _draw(figure, chart, place)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=name, dpi=dpi or PNG_DPI, metadata={**_METADATA[name], **(metadata or {})})
    return buffer.getvalue()


def _draw(figure: Any, chart: Chart, place: ChartLayout) -> None:
    page, edge = place.page, 8 / place.width
    for i, line in enumerate(place.title):
        y = (place.title_top - 1.2 * i * page.title) / place.height
        figure.text(edge, y, _plain(line), va="top", ha="left", fontsize=page.title, fontweight="bold")
    for i, note in enumerate(place.notes):
        y = (place.notes_top - i * layout.NOTE_ROW * page.note / layout.NOTE_SIZE) / place.height
        figure.text(edge, y, _plain(note), va="top", ha="left", fontsize=page.note, color="#444444")
    named, panels = direct.names(chart, place)
    for i, panel in enumerate(panels):
        box = place.panels[i]
        axes = figure.add_axes(
            (box.x / place.width, box.y / place.height, box.width / place.width, box.height / place.height)
        )
        _panel(axes, panel, chart, place, i)
    below = {"va": "top", "ha": "center"}
    beside = {"va": "center", "ha": "right", "rotation": 90, "multialignment": "center"}
    for texts, look in ((place.x_labels, below), (place.y_labels, beside)):
        for text in texts:
            at, lines = (text.x / place.width, text.y / place.height), _plain("\n".join(text.lines))
            figure.text(*at, lines, fontsize=page.text, linespacing=1.05, **look)
    for name in named:
        _name(figure, name, place)
    _legend(figure, place)
    if chart.colors:
        _color_bar(figure, chart, place)


def _axis(target: Any, axis: Axis) -> None:
    from matplotlib import ticker

    target.set_major_locator(ticker.FixedLocator([axis.shown(at) for at, _ in axis.ticks]))
    target.set_major_formatter(ticker.FixedFormatter([_plain(text) for _, text in axis.ticks]))
    target.set_minor_locator(ticker.NullLocator())


#: how much of the page an area covers
AREA_OPACITY = 0.15


def _panel(axes: Any, panel: Panel, chart: Chart, place: ChartLayout, i: int) -> None:
    page = place.page
    axes.set_axisbelow(True)
    horizontal = any(series.kind == "hbar" for series in panel.series)
    bars = any(series.kind in ("bar", "hbar") for series in panel.series)
    axes.grid(True, axis="both" if not bars else "x" if horizontal else "y")
    for name, axis in (("x", panel.x), ("y", panel.y)):
        if axis.log:
            getattr(axes, f"set_{name}scale")("log")
        getattr(axes, f"set_{name}lim")(axis.shown(axis.low), axis.shown(axis.high))
        _axis(getattr(axes, f"{name}axis"), axis)
    axes.tick_params(pad=2 * page.scale)
    axes.tick_params(labelbottom=place.shows_x_ticks[i], labelleft=place.shows_y_ticks[i])
    axes.set_title(_plain(place.titles[i]), fontsize=page.panel, pad=4 * page.scale, loc="left")
    if not page.fits:
        axes.set_xlabel(_plain(panel.x.label), labelpad=2)
        if place.shows_y_label[i]:
            axes.set_ylabel(_plain(panel.y.label), labelpad=3)
    for order, series in enumerate(panel.series):
        x = [panel.x.shown(v) for v in series.x]
        y = [panel.y.shown(v) for v in series.y]
        if series.kind in ("bar", "hbar"):
            _bars(axes, series, x, y, panel, page)
        elif series.kind == "heat":
            _heat(axes, series, x, y, chart)
        elif series.kind == "area":
            axes.fill(x, y, color=series.color, alpha=AREA_OPACITY, linewidth=0, zorder=1.5)
        else:
            _points(axes, series, x, y, 3 + order * 0.01, page)
            if not series.marker:
                _in_cells(axes, series, x, y, panel, place.panels[i].width, page)
    for label in labels.placed(panel, place.panels[i], page):
        _label(axes, label, panel, page)


def _heat(axes: Any, series: Series, x: list[float], y: list[float], chart: Chart) -> None:
    from matplotlib import colormaps

    assert chart.colors is not None
    scale, n = chart.colors, len(x)
    cells = [[scale.place(v) for v in series.values[i : i + n]] for i in range(0, len(series.values), n)]
    axes.imshow(
        cells,
        cmap=colormaps["cividis"],
        vmin=scale.place(scale.axis.low),
        vmax=scale.place(scale.axis.high),
        extent=(x[0] - 0.5, x[-1] + 0.5, y[0] - 0.5, y[-1] + 0.5),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        zorder=2,
    )


def _bars(axes: Any, series: Series, x: list[float], y: list[float], panel: Panel, page: Page) -> None:
    look = {
        "color": series.color,
        "hatch": series.hatch * 4,
        "edgecolor": "white",
        "linewidth": 0.4 * page.line,
        "zorder": 2,
    }
    if series.kind == "bar":
        base = [panel.y.shown(v) for v in series.base] if series.base else 0
        axes.bar(x, y, width=series.width, bottom=base, **look)
    else:
        base = [panel.x.shown(v) for v in series.base] if series.base else 0
        axes.barh(y, x, height=series.width, left=base, **look)


def _points(axes: Any, series: Series, x: list[float], y: list[float], order: float, page: Page) -> None:
    if series.draws_line and len(x) > 1:
        width = (0.6 if series.is_thin else 1.2) * page.line
        axes.plot(x, y, color=series.color, linestyle=_DASHES[series.dash], linewidth=width, zorder=order)
    if series.marker and x:
        size = (16.0 if series.draws_line else 34.0) * (series.size * page.mark) ** 2
        thin = series.marker == "x-thin"
        look: dict[str, Any] = (
            {"color": series.color, "linewidths": 1.1 * page.line}
            if thin
            else {
                "facecolors": ["white" if series.is_open(i) else series.color for i in range(len(x))],
                "edgecolors": series.color,
                "linewidths": 0.9 * page.line,
            }
        )
        axes.scatter(
            x,
            y,
            s=size * (1.5 if series.marker == "star" else 1.0),
            marker=_MARKERS[series.marker],
            zorder=order + 0.005,
            clip_on=False,
            **look,
        )


def _in_cells(
    axes: Any, series: Series, x: list[float], y: list[float], panel: Panel, width: float, page: Page
) -> None:
    """Texts without a mark in the middle of their cell, on two lines where it is narrow."""
    cell = width / (panel.x.high - panel.x.low)
    for i, label in enumerate(series.labels):
        size = page.note
        if page.fits and page_layout.measured(label, page.note) > 0.95 * cell:
            label = label.replace(" ", "\n")
            size = min(size, 0.9 * cell / page_layout.measured(label, 1.0))
        axes.annotate(_plain(label), (x[i], y[i]), ha="center", va="center", fontsize=size, zorder=5)


def _label(axes: Any, label: Label, panel: Panel, page: Page) -> None:
    """A text at its place, with a thin line to its mark where it is far."""
    leader = {"arrowstyle": "-", "color": label.color, "linewidth": 0.4 * page.line, "shrinkA": 0, "shrinkB": 2}
    axes.annotate(
        _plain(label.text),
        (panel.x.shown(label.x), panel.y.shown(label.y)),
        xytext=(label.dx, label.dy),
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize=label.size,
        linespacing=1.0,
        multialignment="center",
        fontweight="bold" if label.is_name else "normal",
        color=label.color,
        zorder=5,
        annotation_clip=False,
        arrowprops=leader if label.has_leader else None,
    )


def _name(figure: Any, name: PlacedName, place: ChartLayout) -> None:
    """The name of a series, the line to where it ends, and its mark."""
    from matplotlib.lines import Line2D

    page, width, height = place.page, place.width, place.height
    if name.tail:
        x, y = ([at[i] / size for at in name.tail] for i, size in ((0, width), (1, height)))
        figure.add_artist(Line2D(x, y, color=name.color, linewidth=0.4 * page.line))
    if name.mark and not name.is_middle:
        _symbol(figure, name.mark, name.x - 5.0 * page.scale, name.y, place)
    va = "center" if len(name.lines) > 1 else "center_baseline"
    look = {"ha": "center" if name.is_middle else "left", "va": va, "linespacing": 1.05}
    at = name.x / width, name.y / height
    text = figure.text(*at, _plain("\n".join(name.lines)), fontsize=name.size, color=name.color, **look)
    if name.is_middle:
        text.set_bbox({"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6})


def _symbol(figure: Any, series: Series, x: float, y: float, place: ChartLayout) -> None:
    """The mark of a series, or a patch of its bars, as in a legend."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    page, width, height, scale = place.page, place.width, place.height, place.page.scale
    if series.kind in ("bar", "hbar"):
        corner = ((x - 3 * scale) / width, (y - 3 * scale) / height)
        look: Any = {
            "facecolor": series.color,
            "hatch": series.hatch * 4,
            "edgecolor": "white",
            "linewidth": 0.4 * page.line,
        }
        figure.add_artist(Rectangle(corner, 6 * scale / width, 6 * scale / height, **look))
    elif series.marker:
        figure.add_artist(
            Line2D(
                [x / width],
                [y / height],
                marker=_MARKERS[series.marker],
                markersize=4.5 * page.mark,
                markerfacecolor=series.color,
                markeredgecolor=series.color,
                linestyle="none",
            )
        )


def _legend(figure: Any, place: ChartLayout) -> None:
    """Row by row, as plotly orders it; drawn by hand so that its place is known beforehand."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    width, height, page, scale = place.width, place.height, place.page, place.page.scale
    left = width - place.legend_width if place.legend_width else 8
    for i, series in enumerate(place.legend):
        row, column = divmod(i, place.legend_columns)
        x = left + column * place.legend_cell
        y = place.legend_top - (row + 0.5) * layout.LEGEND_ROW * scale
        if series.kind in ("bar", "hbar", "area"):
            look: Any = {
                "facecolor": series.color,
                "alpha": AREA_OPACITY if series.kind == "area" else 1.0,
                "hatch": series.hatch * 4,
                "edgecolor": "white",
                "linewidth": 0.4 * page.line,
            }
            corner = ((x + 3 * scale) / width, (y - 3.5 * scale) / height)
            figure.add_artist(Rectangle(corner, 16 * scale / width, 7 * scale / height, **look))
        if series.draws_line:
            figure.add_artist(
                Line2D(
                    [x / width, (x + 22 * scale) / width],
                    [y / height] * 2,
                    color=series.color,
                    linestyle=_DASHES[series.dash],
                    linewidth=1.2 * page.line,
                )
            )
        if series.kind in ("line", "scatter") and series.marker:
            figure.add_artist(
                Line2D(
                    [(x + 11 * scale) / width],
                    [y / height],
                    marker=_MARKERS[series.marker],
                    markersize=5.0 * page.mark,
                    markerfacecolor="white" if series.key_is_open else series.color,
                    markeredgecolor=series.color,
                    markeredgewidth=0.9 * page.line,
                    linestyle="none",
                )
            )
        figure.text((x + 27 * scale) / width, y / height, _plain(series.name), va="center_baseline", fontsize=page.text)


def _color_bar(figure: Any, chart: Chart, place: ChartLayout) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = chart.colors
    assert scale is not None
    page, low, high = place.page, place.panels[-1].y, place.panels[0].y + place.panels[0].height
    axes = figure.add_axes(
        (
            (place.width - place.legend_width - (layout.BAR_ROOM - 2) * page.scale) / place.width,
            low / place.height,
            9 * page.scale / place.width,
            (high - low) / place.height,
        )
    )
    norm = Normalize(scale.place(scale.axis.low), scale.place(scale.axis.high))
    bar = figure.colorbar(ScalarMappable(norm, "cividis"), cax=axes, label=_plain(scale.axis.label))
    ticks = (fit.thinned(scale.axis, high - low, page, False) if page.fits else scale.axis).ticks
    bar.set_ticks([scale.place(at) for at, _ in ticks], labels=[text for _, text in ticks])
    bar.outline.set_linewidth(0.5 * page.line)
