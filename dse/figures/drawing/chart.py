"""A figure as data, independent of any plotting library: panels, axes, series. Numbers stay in SI base units."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["line", "scatter", "bar", "hbar", "heat", "area"]
Dash = Literal["solid", "dash", "dot", "dashdot"]
#: lines of a hover box at most: a taller one hides what it speaks of
MAX_HOVER_LINES = 6
#: entries that a legend has at most
MAX_LEGEND = 5


def hover_box(title: str, lines: Sequence[str]) -> str:
    """The text of a hover box: a title and `lines`, several of which share a line where they would be too many."""
    n_rows = min(len(lines), MAX_HOVER_LINES - 1)
    ends = [round((i + 1) * len(lines) / n_rows) for i in range(n_rows)]
    rows = [", ".join(lines[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    return "\n".join([title, *rows])


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high` with every tick given, so that all libraries draw the same one.

    `low`, `high` and tick positions are in base units; `per_unit` is the size of the shown `unit` in base units.
    `unit` is empty only where the ticks name categories.
    """

    name: str
    unit: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False
    per_unit: float = 1.0

    @property
    def label(self) -> str:
        """Name and unit, as written beside the axis; of a ratio (unit 1) the name."""
        return f"{self.name} ({self.unit})" if self.unit not in ("", "1") else self.name

    def shown(self, value: float) -> float:
        """A value in the unit of the axis."""
        return value / self.per_unit


@dataclass(frozen=True)
class Series:
    """Points of one kind that share a name and a style.

    `opened` marks points drawn hollow; `base` is where stacked bars start; `labels` are written beside the points, and
    the name of one that `is_named` beside its line in place of the legend (`dse.figures.drawing.labels`). `is_note` is
    True where the coordinates are a place on the page (a mark for "out of memory") and not numbers of the table. A
    "heat" series has `x` and `y` one apart and in `values` a value for every pair, row by row of `y`, which the chart's
    color scale colors; NaN leaves a cell empty. `hover`, where given, has as many, each of MAX_HOVER_LINES at most
    (`hover_box`). An "area" is the pale inside of a closed line through its points.
    """

    name: str
    kind: Kind
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    color: str = "#000000"
    dash: Dash = "solid"
    marker: str = "circle"
    opened: tuple[bool, ...] = ()
    base: tuple[float, ...] = ()
    width: float = 0.8
    hatch: str = ""
    hover: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    #: marker size over the usual one
    size: float = 1.0
    is_note: bool = False
    in_legend: bool = True
    is_named: bool = False
    #: a line of half the usual width
    is_thin: bool = False

    def is_open(self, i: int) -> bool:
        """True when point `i` is drawn hollow."""
        return bool(self.opened) and self.opened[i]

    @property
    def key_is_open(self) -> bool:
        """True when the legend shows a hollow mark: of scatter points that are all hollow."""
        return self.kind == "scatter" and bool(self.opened) and all(self.opened)

    @property
    def draws_line(self) -> bool:
        """True for lines; False for scatter and bars."""
        return self.kind == "line"


@dataclass(frozen=True)
class Panel:
    """One set of axes."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]


@dataclass(frozen=True)
class ColorScale:
    """Quantity that the color of cells stands for, with its axis."""

    axis: Axis

    def place(self, value: float) -> float:
        """`value` on the (possibly logarithmic) scale that the colors follow."""
        from math import log10

        return log10(value) if self.axis.log else value


@dataclass(frozen=True)
class Chart:
    """A whole figure. `keys` are entries that only the legend shows; `notes` stand below the panels."""

    title: str
    panels: tuple[Panel, ...]
    n_columns: int = 1
    panel_height_pt: float = 120.0
    keys: tuple[Series, ...] = ()
    notes: tuple[str, ...] = ()
    colors: ColorScale | None = None

    def named(self) -> dict[str, Series]:
        """Series that are named where their marks are, since a legend of all would have more than MAX_LEGEND entries.

        Of a figure of bars these are the bars, else lines and points; marks that stand in `keys` stay in the legend.
        """
        entries = self.entries()
        if len(entries) <= MAX_LEGEND:
            return {}
        keys = {key.name for key in self.keys}
        named = [
            series
            for series in entries
            if series.name not in keys and not series.is_note and series.kind not in ("heat", "area")
        ]
        bars = [series for series in named if series.kind in ("bar", "hbar")]
        return {series.name: series for series in bars or named}

    def legend(self) -> list[Series]:
        """The entries of the legend: those that are not named where their marks are."""
        named = self.named()
        return [entry for entry in self.entries() if entry.name not in named]

    def entries(self) -> list[Series]:
        """One series per name, in order of appearance, then the keys."""
        entries: dict[str, Series] = {}
        for panel in self.panels:
            for series in panel.series:
                if series.in_legend and not series.is_named:
                    entries.setdefault(series.name, series)
        for key in self.keys:
            entries.setdefault(key.name, key)
        return list(entries.values())
