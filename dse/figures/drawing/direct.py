"""The names of series where a legend would have too many entries: `Chart.named` says of which.

Lines and upright bars are named right of the last panel of a row, where their ends are, from the highest down; level
bars in or right of one of their own; points beside one of theirs (`dse.figures.drawing.labels`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dse.figures.drawing import labels, layout, page_layout
from dse.figures.drawing.chart import Chart, Panel, Series
from dse.figures.drawing.layout import NAMES_PITCH, Box, ChartLayout, Page, is_named_right

#: half of a mark, and between a bar and its name, in points at 8 pt
GAP = 3.0

#: a series and where it ends on the right
_End = tuple[Series, tuple[float, float]]


@dataclass(frozen=True)
class PlacedName:
    """The name of a series: its start, or its middle, in points of the page, the line to its end, and the mark that
    stands before it, as in a legend."""

    series: str
    lines: tuple[str, ...]
    x: float
    y: float
    is_middle: bool
    size: float
    color: str
    tail: tuple[tuple[float, float], tuple[float, float]] | None = None
    mark: Series | None = None


def names(chart: Chart, place: ChartLayout) -> tuple[list[PlacedName], list[Panel]]:
    """Names of lines and bars, and the panels with those series marked whose names stand beside a mark."""
    named = chart.named()
    if not named:
        return [], list(chart.panels)
    page, columns = place.page, min(chart.n_columns, len(chart.panels))
    placed: list[PlacedName] = []
    foot = 0.0
    for first in range(0, len(chart.panels), columns):
        last = min(first + columns, len(chart.panels)) - 1
        ends = _ends(chart.panels[last], place.panels[last], named) if not chart.colors else []
        missing = [end for end in ends if end[0].name not in {name.series for name in placed}]
        box, next_top = place.panels[last], _next_top(place, last)
        top = box.y + box.height + 0.5 * page.note
        needed = sum(map(len, _texts(ends, page))) * NAMES_PITCH * page.note
        if placed and (foot < top or needed > top - next_top):
            ends, top = missing, min(top, foot)  # the rows above name the others
        placed += (column := _column(ends, box, top, page))
        foot = min((name.y - 0.6 * page.note * len(name.lines) for name in column), default=foot)
    for panel, box in zip(chart.panels, place.panels, strict=True):
        done = {name.series for name in placed}
        level = [bar for bar in _once(panel) if bar.kind == "hbar" and bar.name in named and bar.name not in done]
        placed += _level(level, panel, box, page)
    rest = set(named) - {name.series for name in placed}
    return placed, _beside(chart.panels, rest)


def _next_top(place: ChartLayout, last: int) -> float:
    """The top of the panels of the next row; of the notes where there is none."""
    boxes = place.panels
    return boxes[last + 1].y + boxes[last + 1].height if last + 1 < len(boxes) else place.notes_top


def _once(panel: Panel) -> list[Series]:
    """The first series of each name that a legend would have."""
    by_name: dict[str, Series] = {}
    for series in panel.series:
        if series.in_legend and series.x:
            by_name.setdefault(series.name, series)
    return list(by_name.values())


def _ends(panel: Panel, box: Box, named: Mapping[str, Series]) -> list[_End]:
    """Lines and bars of a panel with the point where each ends on the right."""
    shown = [series for series in _once(panel) if series.name in named and is_named_right(series)]
    return [(series, _end(series, panel, box)) for series in shown]


def _end(series: Series, panel: Panel, box: Box) -> tuple[float, float]:
    last = max(range(len(series.x)), key=lambda i: series.x[i])
    if series.kind == "line":
        return _at(panel, box, series.x[last], series.y[last])
    base = series.base[last] if series.base else 0.0
    return _at(panel, box, series.x[last] + series.width / 2, base + series.y[last] / 2)


def _at(panel: Panel, box: Box, x: float, y: float) -> tuple[float, float]:
    """A place of a panel on the page, in its frame."""
    across, up = (labels.place_on(*axis) for axis in ((panel.x, x, box.width), (panel.y, y, box.height)))
    return box.x + min(max(across, 0.0), box.width), box.y + min(max(up, 0.0), box.height)


def _texts(ends: Sequence[_End], page: Page) -> list[list[str]]:
    """The lines of each name right of a panel."""
    measure = page_layout.measured if page.fits else layout.text_width
    return [layout.name_lines(series.name, page, measure) for series, _ in ends]


def _column(ends: Sequence[_End], box: Box, top: float, page: Page) -> list[PlacedName]:
    """Names below each other right of a panel, each as near to its end as the others leave room."""
    start = box.x + box.width + layout.NAMES_GAP * page.scale
    ends = sorted(ends, key=lambda pair: -pair[1][1])
    texts = _texts(ends, page)
    heights = [len(lines) * NAMES_PITCH * page.note for lines in texts]
    column = []
    for (series, end), lines, y in zip(ends, texts, _apart([at[1] for _, at in ends], heights, top), strict=True):
        tail = (end, (start - 2.0 * page.scale, y))
        x = start + layout.NAMES_MARK * page.scale
        column.append(
            PlacedName(
                series.name,
                lines=tuple(lines),
                x=x,
                y=y,
                is_middle=False,
                size=page.note,
                color=labels.ink(series.color),
                tail=tail,
                mark=series,
            )
        )
    return column


def _apart(wanted: Sequence[float], heights: Sequence[float], top: float) -> list[float]:
    """Middles from above, none over another or above `top`, as near as can be to those wanted."""
    above = [sum(heights[:i]) + height / 2 for i, height in enumerate(heights)]
    groups: list[tuple[float, int]] = []  # of names that touch: where their top would be, less what is above, and count
    for place, before in zip(wanted, above, strict=True):
        start, n = min(place + before, top), 1
        while groups and groups[-1][0] < start:
            other, m = groups.pop()
            start, n = (other * m + start * n) / (m + n), m + n
        groups.append((start, n))
    starts = [start for start, n in groups for _ in range(n)]
    return [start - before for start, before in zip(starts, above, strict=True)]


def _level(bars: Sequence[Series], panel: Panel, box: Box, page: Page) -> Iterator[PlacedName]:
    """Names of level bars: in the longest with room, else right of a row in which it is long, with a line to it."""
    measure = page_layout.measured if page.fits else layout.text_width
    edges = {bar.name: [_edges(bar, i, panel, box) for i in range(len(bar.x))] for bar in bars}
    taken: dict[int, list[tuple[float, float]]] = {}  # by row: stretches that marks, bars and names take
    for series in panel.series:
        for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            if y != y:  # a row that is not drawn
                continue
            at = _at(panel, box, x, y)[0]
            taken.setdefault(round(y), []).append(
                _edges(series, i, panel, box)[::2] if series.kind == "hbar" else (at - GAP, at + GAP)  # type: ignore[arg-type]
            )
    for series in bars:
        width, height = measure(series.name, page.note), 1.1 * page.note
        order = sorted(range(len(series.x)), key=lambda i: edges[series.name][i][0] - edges[series.name][i][2])
        tried: list[tuple[float, int, float, tuple[float, float], bool]] = []
        for rank, i in enumerate(order):
            left, low, right, high = edges[series.name][i]
            middle, row = ((left + right) / 2, (low + high) / 2), taken[round(series.y[i])]
            if right - left < 0.5:
                continue
            if right - left > width + 2 and high - low > 0.8 * height:
                tried.append((rank, i, middle[0] - width / 2, middle, True))
            mark = layout.NAMES_MARK * page.scale
            start = _free(row, right + GAP * page.scale, mark + width + GAP * page.scale) + mark
            if start + width < box.x + box.width:
                tried.append((3 * rank + 0.1 * (start - right), i, start, middle, False))
        if not tried:
            continue
        _, i, start, middle, is_inside = min(tried)
        taken[round(series.y[i])].append((start - layout.NAMES_MARK * page.scale, start + width))
        color = "#111111" if is_inside else labels.ink(series.color)
        x = middle[0] if is_inside else start
        yield PlacedName(
            series.name,
            lines=(series.name,),
            x=x,
            y=middle[1],
            is_middle=is_inside,
            size=page.note,
            color=color,
            mark=series,
        )


def _free(taken: Sequence[tuple[float, float]], start: float, width: float) -> float:
    """The first place from `start` on where nothing is over a width."""
    for left, right in sorted(taken):
        if right > start - GAP and left < start + width:
            start = right + 2 * GAP
    return start


def _edges(series: Series, i: int, panel: Panel, box: Box) -> tuple[float, float, float, float]:
    """Left, low, right and high edge of a level bar on the page."""
    base = series.base[i] if series.base else 0.0
    half = series.width / 2
    start, end = base, base + series.x[i]
    return (
        *_at(panel, box, min(start, end), series.y[i] - half),
        *_at(panel, box, max(start, end), series.y[i] + half),
    )


def _beside(panels: Sequence[Panel], rest: set[str]) -> list[Panel]:
    """The panels with each series of `rest` named in one of them: in that which has most of these."""
    have = [{entry.name for entry in _once(panel)} & rest for panel in panels]
    shown = list(panels)
    while any(have):
        i = max(range(len(have)), key=lambda i: (len(have[i]), -i))
        first = {entry.name: id(entry) for entry in _once(panels[i]) if entry.name in have[i]}
        series = tuple(
            replace(entry, is_named=first.get(entry.name) == id(entry) or entry.is_named) for entry in panels[i].series
        )
        shown[i] = replace(panels[i], series=series)
        done = have[i]
        have = [names - done for names in have]
    return shown
