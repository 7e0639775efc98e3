"""A chart drawn by matplotlib: PNG, SVG and PDF, the same bytes every time, without a display or a browser."""

import io
from typing import Any

from dse.plots import layout
from dse.plots.chart import Axis, Chart, Panel, Series
from dse.plots.layout import NOTE_SIZE, PANEL_SIZE, TEXT_SIZE, TITLE_SIZE, Layout

FORMATS = ("png", "svg", "pdf")
PNG_DPI = 300
_MARKERS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v", "triangle-left": "<",
    "triangle-right": ">", "pentagon": "p", "hexagon": "h", "star": "*", "cross": "P", "x-thin": "x",
}  # fmt: skip
_DASHES: dict[str, Any] = {"solid": "-", "dash": (0, (5, 2)), "dot": (0, (1.2, 1.6)), "dashdot": (0, (6, 2, 1.2, 2))}
_STYLE: Any = {
    "font.family": "DejaVu Sans", "font.size": TEXT_SIZE, "axes.linewidth": 0.6, "axes.edgecolor": "#444444",
    "grid.color": "#DDDDDD", "grid.linewidth": 0.5, "hatch.linewidth": 0.5, "hatch.color": "white",
    "pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "dse", "path.simplify": False,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.major.size": 2.5, "ytick.major.size": 2.5,
}  # fmt: skip
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None}, "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}  # fmt: skip


def _plain(text: str) -> str:
    """Text in which matplotlib sees no formula."""
    return text.replace("$", r"\$")


def images(chart: Chart) -> dict[str, bytes]:
    """The chart in every format of FORMATS."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        place = layout.place(chart)
        figure = Figure(figsize=(place.width / 72, place.height / 72), facecolor="white")
        FigureCanvasAgg(figure)
        _draw(figure, chart, place)
        found = {}
        for name in FORMATS:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=name, dpi=PNG_DPI, metadata=_METADATA[name])
            found[name] = buffer.getvalue()
    return found


def _draw(figure: Any, chart: Chart, place: Layout) -> None:
    figure.text(8 / place.width, place.title_top / place.height, _plain(chart.title), va="top", ha="left",
                fontsize=TITLE_SIZE, fontweight="bold")  # fmt: skip
    for i, note in enumerate(place.notes):
        y = (place.notes_top - i * layout.NOTE_ROW) / place.height
        figure.text(8 / place.width, y, _plain(note), va="top", ha="left", fontsize=NOTE_SIZE, color="#444444")
    for i, panel in enumerate(chart.panels):
        box = place.panels[i]
        axes = figure.add_axes(
            (box.x / place.width, box.y / place.height, box.width / place.width, box.height / place.height)
        )
        _panel(axes, panel, chart)
        axes.set_xlabel(_plain(panel.x.label), labelpad=2)
        if place.shows_y_label[i]:
            axes.set_ylabel(_plain(panel.y.label), labelpad=3)
    _legend(figure, place)
    if chart.colours:
        _colour_bar(figure, chart, place)


def _axis(target: Any, axis: Axis) -> None:
    import matplotlib.ticker as ticker

    target.set_major_locator(ticker.FixedLocator([axis.shown(at) for at, _ in axis.ticks]))
    target.set_major_formatter(ticker.FixedFormatter([_plain(text) for _, text in axis.ticks]))
    target.set_minor_locator(ticker.NullLocator())


def _panel(axes: Any, panel: Panel, chart: Chart) -> None:
    axes.set_axisbelow(True)
    horizontal = any(series.kind == "hbar" for series in panel.series)
    bars = any(series.kind in ("bar", "hbar") for series in panel.series)
    axes.grid(True, axis="both" if not bars else "x" if horizontal else "y")
    for name, axis in (("x", panel.x), ("y", panel.y)):
        if axis.log:
            getattr(axes, f"set_{name}scale")("log")
        getattr(axes, f"set_{name}lim")(axis.shown(axis.low), axis.shown(axis.high))
        _axis(getattr(axes, f"{name}axis"), axis)
    axes.tick_params(pad=2)
    axes.set_title(_plain(panel.title), fontsize=PANEL_SIZE, pad=4, loc="left")
    for order, series in enumerate(panel.series):
        x = [panel.x.shown(v) for v in series.x]
        y = [panel.y.shown(v) for v in series.y]
        if series.kind in ("bar", "hbar"):
            _bars(axes, series, x, y, panel)
        elif series.kind == "heat":
            _heat(axes, series, x, y, chart)
        else:
            _points(axes, series, x, y, chart, 3 + order * 0.01)


def _heat(axes: Any, series: Series, x: list[float], y: list[float], chart: Chart) -> None:
    from matplotlib import colormaps

    assert chart.colours is not None
    scale, n = chart.colours, len(x)
    cells = [[scale.place(v) for v in series.values[i : i + n]] for i in range(0, len(series.values), n)]
    axes.imshow(
        cells, cmap=colormaps["cividis"], vmin=scale.place(scale.axis.low), vmax=scale.place(scale.axis.high),
        extent=(x[0] - 0.5, x[-1] + 0.5, y[0] - 0.5, y[-1] + 0.5), origin="lower", aspect="auto",
        interpolation="nearest", zorder=2,
    )  # fmt: skip


def _bars(axes: Any, series: Series, x: list[float], y: list[float], panel: Panel) -> None:
    look = {"color": series.colour, "hatch": series.hatch * 4, "edgecolor": "white", "linewidth": 0.4, "zorder": 2}
    if series.kind == "bar":
        base = [panel.y.shown(v) for v in series.base] if series.base else 0
        axes.bar(x, y, width=series.width, bottom=base, **look)
    else:
        base = [panel.x.shown(v) for v in series.base] if series.base else 0
        axes.barh(y, x, height=series.width, left=base, **look)


def _points(axes: Any, series: Series, x: list[float], y: list[float], chart: Chart, order: float) -> None:
    if series.draws_line and len(x) > 1:
        axes.plot(x, y, color=series.colour, linestyle=_DASHES[series.dash], linewidth=1.2, zorder=order)
    if series.marker and x:
        size = (16.0 if series.draws_line else 34.0) * series.size**2
        thin = series.marker == "x-thin"
        for i in range(len(x)):
            colour: Any = series.colour
            if series.values and chart.colours:
                colour = _cividis(chart, series.values[i])
            face = "white" if series.is_open(i) else colour
            edge = colour if series.is_open(i) or not series.values else "#333333"
            look = (
                {"color": series.colour, "linewidths": 1.1}
                if thin
                else {"facecolors": [face], "edgecolors": [edge], "linewidths": 0.9 if not series.values else 0.6}
            )
            axes.scatter([x[i]], [y[i]], s=size * (1.5 if series.marker == "star" else 1.0),
                         marker=_MARKERS[series.marker], zorder=order + 0.005, clip_on=False, **look)  # fmt: skip
    for i, label in enumerate(series.labels):
        axes.annotate(_plain(label), (x[i], y[i]), xytext=(0, 5), textcoords="offset points", ha="center",
                      va="bottom", fontsize=NOTE_SIZE, zorder=5)  # fmt: skip


def _cividis(chart: Chart, value: float) -> Any:
    from matplotlib import colormaps

    scale = chart.colours
    assert scale is not None
    low, high = scale.place(scale.axis.low), scale.place(scale.axis.high)
    return colormaps["cividis"]((scale.place(value) - low) / (high - low))


def _legend(figure: Any, place: Layout) -> None:
    """Row by row, as plotly orders it; drawn by hand so that its place is known beforehand."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    width, height = place.width, place.height
    for i, series in enumerate(place.legend):
        row, column = divmod(i, place.legend_columns)
        x = 8 + column * place.legend_cell
        y = place.legend_top - (row + 0.5) * layout.LEGEND_ROW
        if series.kind in ("bar", "hbar"):
            look: Any = {"facecolor": series.colour, "hatch": series.hatch * 4, "edgecolor": "white", "linewidth": 0.4}
            figure.add_artist(Rectangle(((x + 3) / width, (y - 3.5) / height), 16 / width, 7 / height, **look))
        if series.draws_line:
            figure.add_artist(Line2D([x / width, (x + 22) / width], [y / height] * 2, color=series.colour,
                                     linestyle=_DASHES[series.dash], linewidth=1.2))  # fmt: skip
        if series.kind in ("line", "scatter") and series.marker:
            face = "white" if series.key_is_open else "#BBBBBB" if series.values else series.colour
            edge = "#333333" if series.values else series.colour
            figure.add_artist(Line2D([(x + 11) / width], [y / height], marker=_MARKERS[series.marker], markersize=5.0,
                                     markerfacecolor=face, markeredgecolor=edge, markeredgewidth=0.9,
                                     linestyle="none"))  # fmt: skip
        figure.text((x + 27) / width, y / height, _plain(series.name), va="center_baseline", fontsize=TEXT_SIZE)


def _colour_bar(figure: Any, chart: Chart, place: Layout) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = chart.colours
    assert scale is not None
    low, high = place.panels[-1].y, place.panels[0].y + place.panels[0].height
    axes = figure.add_axes(
        ((place.width - layout.BAR_ROOM + 2) / place.width, low / place.height, 9 / place.width,
         (high - low) / place.height)
    )  # fmt: skip
    norm = Normalize(scale.place(scale.axis.low), scale.place(scale.axis.high))
    bar = figure.colorbar(ScalarMappable(norm, "cividis"), cax=axes, label=_plain(scale.axis.label))
    bar.set_ticks([scale.place(at) for at, _ in scale.axis.ticks], labels=[text for _, text in scale.axis.ticks])
    bar.outline.set_linewidth(0.5)
