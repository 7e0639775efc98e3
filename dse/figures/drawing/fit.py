"""A chart laid out anew for a page: columns and heights of its panels, fewer tick names, long lists in columns.

No plotting library does this: both draw tick names over each other, and neither cuts a list into columns.
"""

import math
from dataclasses import replace
from itertools import pairwise

from dse.core.errors import LimitError
from dse.figures.drawing import page_layout
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.figures.drawing.labels import place_on
from dse.figures.drawing.layout import LEGEND_ROW, Box, Page

#: smallest panel, height of a row of a list and size of a panel of a figure as tall as needed, in points at 8 pt texts
MIN_WIDTH, MIN_HEIGHT, ROW = 80.0, 45.0, 10.0
#: the same width of many panels, and of one beside a list
MIN_WIDTH_OF_MANY, MANY, MIN_WIDTH_OF_LIST = 62.0, 3, 42.0
#: height over width of a panel where the height is free
SHAPE = 0.72
#: a figure in a paper is no taller than a page's text, in points (240 mm)
MAX_HEIGHT = 680.0
#: parts that a long list is cut into, beside each other, at most
MAX_PARTS = 4
#: between the names of two ticks, over the size of their text
GAP = 0.5
#: share of the width that the names of a list take at most
MAX_NAMES = 0.5


def fitted(chart: Chart, page: Page) -> Chart:
    """The chart with as many columns as the page holds, panels as high as fits, and no tick name over another.

    Raises LimitError where the page is too small for it.
    """
    if not page.fits:
        return chart
    chart = _with_short_names(chart, page)
    sized = _tall(chart, page) if page.height is None else _filled(chart, page)
    place = page_layout.place(sized, page)
    box = place.panels[0]
    is_small = box.width < 0.5 * MIN_WIDTH * page.scale or box.height < 0.4 * MIN_HEIGHT * page.scale
    legend_foot = place.legend_top - len(place.legend) * LEGEND_ROW * page.scale
    if is_small or (place.legend_width and legend_foot < place.notes_top - 1):
        more = "" if page.legend != "right" else ", or put its legend elsewhere with --legend"
        raise LimitError(
            f"{_mm(page.width)} x {_mm(place.height)} mm: is too small for this figure: "
            f"give a larger --width or --height, or leave its notes out with --no-notes{more}"
        )
    return replace(sized, panels=tuple(_thinned(panel, box, page) for panel in sized.panels))


def _mm(points: float) -> str:
    return f"{points / 72 * 25.4:.0f}"


def is_list(axis: Axis) -> bool:
    """True for an axis that names rows or columns: ticks at 0, 1, 2, ... and no scale between them."""
    return axis.low == -0.6 and all(at == i for i, (at, _) in enumerate(axis.ticks))


def _rows(chart: Chart) -> int:
    """Rows of the longest list down the side of a panel; 0 where no panel has one."""
    return max((len(panel.y.ticks) for panel in chart.panels if is_list(panel.y)), default=0)


def _row(chart: Chart, page: Page, width: float) -> float:
    """Height of a row of a list: of two lines where its name, or what stands in its cells, has two."""
    if any("\n" in text for panel in chart.panels if is_list(panel.y) for _, text in panel.y.ticks):
        return 2.6 * page.text
    row = ROW * page.scale
    for panel in chart.panels:
        cell = width / (panel.x.high - panel.x.low)
        texts = [text for series in panel.series if not series.marker for text in series.labels]
        if any(page_layout.measured(text, page.note) > 0.95 * cell for text in texts):
            return max(row, 2.6 * page.note)
    return row


def _needed(chart: Chart, page: Page, width: float) -> float:
    """Height that a panel needs to be read, and the names right of it to stand apart, in points."""
    n_rows = -(-len(chart.panels) // min(chart.n_columns, len(chart.panels)))
    names = page_layout.names_height(chart, page) / n_rows
    return max(MIN_HEIGHT * page.scale, _row(chart, page, width) * _rows(chart), names)


def _tall(chart: Chart, page: Page) -> Chart:
    """For a page whose height is free."""
    sized = chart
    for columns in range(min(chart.n_columns, len(chart.panels)), 0, -1):
        sized = replace(chart, n_columns=columns)
        width = page_layout.place(sized, page).panels[0].width
        if width >= (MIN_WIDTH if len(chart.panels) <= MANY else MIN_WIDTH_OF_MANY) * page.scale:
            break
    n_rows = _rows(sized)
    wanted = (
        0.0
        if all(is_list(panel.y) for panel in sized.panels)
        else min(chart.panel_height_pt * page.scale, SHAPE * width)
    )
    sized = replace(sized, panel_height_pt=max(wanted, _needed(sized, page, width)))
    over = page_layout.place(sized, page).height - MAX_HEIGHT
    if over > 0 and not n_rows:
        lines = -(-len(sized.panels) // sized.n_columns)
        height = max(sized.panel_height_pt - over / lines, MIN_HEIGHT * page.scale)
        sized = replace(sized, panel_height_pt=height)
    return sized


def _filled(chart: Chart, page: Page) -> Chart:
    """For a page of given height: the columns, and parts of long lists, that leave panels readable and large."""
    best, chosen = (-math.inf, 0.0), chart
    for n_parts in range(1, MAX_PARTS + 1 if _rows(chart) else 2):
        split = _split(chart, n_parts)
        for columns in range(1, len(split.panels) + 1):
            tried = replace(split, n_columns=columns)
            box = page_layout.place(tried, page).panels[0]
            width, height = box.width / page.scale, box.height / page.scale
            least = MIN_WIDTH_OF_LIST if _rows(tried) else MIN_WIDTH
            readable = round(min(1.0, width / least, box.height / _needed(tried, page, box.width)), 2)
            shape = min(width / height, height / width) if height > 0 and width > 0 else 0.0
            score = (readable, width * height * len(split.panels) * (1 + shape) / n_parts)
            if score > best:
                best, chosen = score, tried
    return replace(chosen, panel_height_pt=page_layout.place(chosen, page).panels[0].height)


def _split(chart: Chart, n_parts: int) -> Chart:
    """Every panel with a list down its side as `n_parts` panels of so many rows, the first rows first."""
    if n_parts == 1:
        return chart
    panels = []
    for panel in chart.panels:
        n = len(panel.y.ticks)
        size = -(-n // n_parts)
        if not is_list(panel.y):
            return chart
        for first in range(n, 0, -size):  # rows count from below
            panels.append(_part(panel, max(0, first - size), first))
    return replace(chart, panels=tuple(panels))


def _part(panel: Panel, first: int, end: int) -> Panel:
    """Rows first..end-1 of a panel, moved down to 0."""
    ticks = tuple((float(i), text) for i, (_, text) in enumerate(panel.y.ticks[first:end]))
    y = replace(panel.y, low=-0.6, high=end - first - 0.4, ticks=ticks)
    return replace(panel, y=y, series=tuple(_rows_of(series, first, end, y) for series in panel.series))


def _rows_of(series: Series, first: int, end: int, y: Axis) -> Series:
    if series.kind == "line":  # a line across all rows
        return replace(series, y=tuple(min(max(at - first, y.low), y.high) for at in series.y))
    keep = [i for i, at in enumerate(series.y) if first - 0.5 <= at < end - 0.5]

    def of(values: tuple) -> tuple:  # type: ignore[type-arg]
        return tuple(values[i] for i in keep) if values else ()

    return replace(
        series,
        x=of(series.x),
        y=tuple(series.y[i] - first for i in keep),
        opened=of(series.opened),
        base=of(series.base),
        hover=of(series.hover),
        values=of(series.values),
        labels=of(series.labels),
    )


def _with_short_names(chart: Chart, page: Page) -> Chart:
    """Names of lists on two lines, and those cut in the middle, where they would take more than their share."""
    most = MAX_NAMES * page.width

    def fits(text: str) -> bool:
        return page_layout.measured(text, page.text) <= most

    def short(text: str) -> str:
        n = len(text)
        while not fits(text) and n > 5:
            n -= 1
            text = f"{text[: (n - 1) // 2]}…{text[len(text) - (n - 1) // 2 :]}"
        return text

    def of(text: str) -> str:
        if fits(text) or " " not in text:
            return short(text)
        places = [i for i, letter in enumerate(text) if letter == " "]
        at = min(places, key=lambda i: abs(2 * i - len(text)))
        at = text.find(" (") if " (" in text else at
        return f"{short(text[:at])}\n{short(text[at + 1 :])}"

    def names(axis: Axis) -> Axis:
        return replace(axis, ticks=tuple((at, of(text)) for at, text in axis.ticks)) if is_list(axis) else axis

    return replace(chart, panels=tuple(replace(panel, y=names(panel.y)) for panel in chart.panels))


def _thinned(panel: Panel, box: Box, page: Page) -> Panel:
    return replace(
        panel,
        x=thinned(panel.x, box.width, page, True),
        y=panel.y if is_list(panel.y) else thinned(panel.y, box.height, page, False),
    )


def thinned(axis: Axis, length: float, page: Page, along: bool) -> Axis:
    """The axis with every so many of its ticks, so that their names stand apart; `along`: names follow the axis."""

    def at(value: float) -> float:
        return place_on(axis, value, length)

    def room(text: str) -> float:
        return page_layout.measured(text, page.text) if along else page.text * 0.8

    for every in range(1, len(axis.ticks) + 1):
        kept = axis.ticks[::every]
        if all(at(b[0]) - at(a[0]) >= (room(a[1]) + room(b[1])) / 2 + GAP * page.text for a, b in pairwise(kept)):
            return replace(axis, ticks=kept)
    return axis
