"""Where texts beside marks and lines go: on no other text, off marks and lines, inside the panel.

No library that we have does this: matplotlib and plotly put a text where they are told. Both get the same places.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.figures.drawing import page_layout
from dse.figures.drawing.chart import Axis, Panel, Series
from dse.figures.drawing.layout import Box, Page

#: between a text and its mark, and distances beyond it that are tried, over the height of a line
GAP, RINGS = 1.5, (0.0, 0.5, 1.2, 2.0, 3.0)
#: from this ring on a thin line leads from the mark to its text
LEADER_RING = 2
#: directions in which a text may lie, the best first: shares of its half width and of its half height, the rest by the
#: radius of the mark
DIRECTIONS = (
    *((0.0, 1.0), (1.0, 0.0), (0.0, -1.0), (-1.0, 0.0), (1.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0)),
    *((0.5, 1.0), (-0.5, 1.0), (0.5, -1.0), (-0.5, -1.0), (1.0, 0.5), (-1.0, 0.5), (1.0, -0.5), (-1.0, -0.5)),
)
#: places between two points of a line that its name may stand beside
BETWEEN = (0.25, 0.5, 0.75)
#: from this width on, in points, a label takes another line
LONG = 45.0
#: radius of a mark of a line and of one without, in points
RADIUS, RADIUS_ALONE = 2.2, 3.1
#: times that all texts are placed again, each beside the others
SWEEPS = 8
#: what is left free between a line and the ends of a text
CLEAR = 1.0
#: points (1/72 inch, of texts of 8) between places of a line that a text should not hide
STEP = 2.0
#: what text on white has to have at least (WCAG 2.1, 1.4.3)
CONTRAST = 4.5

#: left, foot, right and top of rectangles, a row each
Boxes = NDArray[np.float64]


@dataclass(frozen=True)
class Label:
    """A text for the point (x, y) of a panel, in base units; its middle is (dx, dy) points away from there."""

    text: str
    x: float
    y: float
    dx: float
    dy: float
    width: float
    height: float
    size: float
    color: str
    is_name: bool
    has_leader: bool


@dataclass(frozen=True)
class _Text:
    """A text and the points that it may stand beside, each with the radius of its mark; sizes as at 8 points."""

    text: str
    at: tuple[tuple[float, float, float], ...]
    size: tuple[float, float]
    color: str
    is_name: bool


def placed(panel: Panel, box: Box, page: Page) -> tuple[Label, ...]:
    """The labels of a panel's marks, and the names of its lines that stand beside them, each at its place."""
    if not any(series.is_named or (series.labels and series.marker) for series in panel.series):
        return ()
    box = Box(0.0, 0.0, box.width / page.scale, box.height / page.scale)  # as of texts of 8 points
    texts = [text for series in panel.series for text in _texts(series, panel, box, page)]
    texts.sort(key=lambda text: text.is_name)  # a name has many places to stand
    marks, line = _obstacles(panel, box, page)
    choices = [_choices(text) for text in texts]
    costs = [_cost(text, *choice, marks, line, box) for text, choice in zip(texts, choices, strict=True)]
    chosen: list[int] = []
    for i in range(len(texts)):
        chosen.append(_best(i, chosen, choices, costs))
    for _ in range(SWEEPS):
        before = list(chosen)
        for i in range(len(texts)):
            chosen[i] = _best(i, chosen, choices, costs)
        if chosen == before:
            break
    return tuple(
        _label(text, boxes[at], anchors[at], rings[at], panel, box, page)
        for text, (boxes, anchors, rings), at in zip(texts, choices, chosen, strict=True)
    )


def ink(color: str) -> str:
    """The color as dark as text on white has to be."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    while 1.05 / (_luminance(parts) + 0.05) < CONTRAST:
        parts = [0.95 * part for part in parts]
    return "#" + "".join(f"{int(255 * part):02X}" for part in parts)


def _luminance(parts: Sequence[float]) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def place_on(axis: Axis, value: float, length: float) -> float:
    """A value along an axis of that length."""
    low, high, value = (math.log(v) if axis.log else v for v in (axis.low, axis.high, value))
    return (value - low) / (high - low) * length


def _points(series: Series, panel: Panel, box: Box) -> list[tuple[float, float]]:
    """The series in points from the panel's lower left corner."""
    return [
        (place_on(panel.x, x, box.width), place_on(panel.y, y, box.height))
        for x, y in zip(series.x, series.y, strict=True)
    ]


def _radius(series: Series, page: Page) -> float:
    usual = RADIUS if series.draws_line else RADIUS_ALONE
    return (usual * series.size * page.mark if series.marker else 0.5 * page.line) / page.scale


def _texts(series: Series, panel: Panel, box: Box, page: Page) -> Iterator[_Text]:
    if series.kind not in ("line", "scatter") or not series.x:
        return
    at, radius, color = _points(series, panel, box), _radius(series, page), ink(series.color)
    if series.marker:  # those without stand in the middle of their cell
        for place, text in zip(at, series.labels, strict=False):
            if text:
                broken = _broken(text, page)
                yield _Text(broken, ((*place, radius),), _size(broken, page.note, page.scale), color, False)
    if series.is_named:
        places = [(x, y, radius) for x, y in reversed(at)]
        places += [(x, y, 0.0) for a, b in itertools.pairwise(at) for x, y in _between(a, b, BETWEEN)][::-1]
        yield _Text(series.name, tuple(places), _size(series.name, page.text, page.scale, True), color, True)


def _broken(text: str, page: Page) -> str:
    """A long label on several lines: a mark has more room above it than beside it."""
    return "\n".join(page_layout.balanced(text, LONG * page.scale, page.note))


def _size(text: str, size: float, scale: float, is_bold: bool = False) -> tuple[float, float]:
    return page_layout.measured(text, size, is_bold) / scale, 1.1 * size * (text.count("\n") + 1) / scale


def _obstacles(panel: Panel, box: Box, page: Page) -> tuple[Boxes, NDArray[np.float64]]:
    """Marks as boxes, and places along lines."""
    marks: list[tuple[float, float, float, float]] = []
    line: list[tuple[float, float]] = []
    for series in panel.series:
        if series.kind not in ("line", "scatter"):
            continue
        at, radius = _points(series, panel, box), _radius(series, page)
        marks += [(x - radius, y - radius, x + radius, y + radius) for x, y in at] if series.marker else []
        if series.draws_line:
            line += _along(at)
    return np.array(marks, dtype=float).reshape(-1, 4), np.array(line, dtype=float).reshape(-1, 2)


def _along(at: Sequence[tuple[float, float]]) -> Iterable[tuple[float, float]]:
    for a, b in itertools.pairwise(at):
        if any(math.isnan(place) for place in (*a, *b)):  # a gap in the line
            continue
        n = max(1, round(math.dist(a, b) / STEP))
        yield from _between(a, b, [i / n for i in range(n + 1)])


def _between(a: tuple[float, float], b: tuple[float, float], shares: Iterable[float]) -> Iterable[tuple[float, float]]:
    return ((a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share) for share in shares)


def _choices(text: _Text) -> tuple[Boxes, NDArray[np.float64], NDArray[np.int64]]:
    """Boxes that the text may take, the point that each is beside, and its ring."""
    width, height = text.size
    n_lines = text.text.count("\n") + 1
    boxes, anchors, rings = [], [], []
    for x, y, radius in text.at:
        for ring, beyond in enumerate(RINGS):
            off = radius + GAP + beyond * height / n_lines
            for right, up in DIRECTIONS:
                reach = off / math.sqrt(2) if abs(right) == abs(up) else off
                middle_x = x + right * width / 2 + (math.copysign(reach, right) if abs(right) == 1 else 0.0)
                middle_y = y + up * height / 2 + (math.copysign(reach, up) if abs(up) == 1 else 0.0)
                left, foot = middle_x - width / 2, middle_y - height / 2
                boxes.append((left, foot, left + width, foot + height))
                anchors.append((x, y))
                rings.append(ring)
    return np.array(boxes), np.array(anchors), np.array(rings)


def _cost(
    text: _Text,
    boxes: Boxes,
    anchors: NDArray[np.float64],
    rings: NDArray[np.int64],
    marks: Boxes,
    line: NDArray[np.float64],
    box: Box,
) -> NDArray[np.float64]:
    """Cost of each choice alone: over a mark or a line, beyond the panel, far from its mark, nearer to another."""
    n, per_anchor = len(boxes), len(RINGS) * len(DIRECTIONS)
    order = np.arange(n)
    cost = 0.25 * (order % len(DIRECTIONS)) + (14.0 if text.is_name else 8.0) * rings + 0.5 * (order // per_anchor)
    inside = _overlap(boxes, np.array([[1.0, 1.0, box.width - 1.0, box.height - 1.0]]))[:, 0]
    area = text.size[0] * text.size[1]
    cost += 20.0 * (area - inside) + np.where(area - inside > 0.01, 1000.0, 0.0)
    covered = _overlap(boxes, marks)
    cost += 10.0 * covered.sum(axis=1) + 40.0 * (covered > 0).sum(axis=1)
    if len(line):
        x, y = line[:, 0], line[:, 1]
        wide = boxes + np.array([-CLEAR, 0.0, CLEAR, 0.0])
        hidden = (wide[:, :1] < x) & (x < wide[:, 2:3]) & (wide[:, 1:2] < y) & (y < wide[:, 3:4])
        cost += 8.0 * hidden.sum(axis=1)
    if len(marks):
        middles = np.stack([(marks[:, 0] + marks[:, 2]) / 2, (marks[:, 1] + marks[:, 3]) / 2], axis=1)
        places = np.array([(x, y) for x, y, _ in text.at])
        is_other = (np.hypot(*(middles[:, None, :] - places[None, :, :]).transpose(2, 0, 1)) > 0.5).all(axis=1)
        near = _distance(boxes[:, None, :], middles[None, is_other, :])
        cost += (40.0 if text.is_name else 15.0) * (near < _distance(boxes, anchors)[:, None] + 0.5).any(axis=1)
    return cost


def _distance(boxes: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.float64]:
    """From points to boxes, 0 inside."""
    x, y = points[..., 0], points[..., 1]
    across = np.maximum(np.maximum(boxes[..., 0] - x, x - boxes[..., 2]), 0.0)
    up = np.maximum(np.maximum(boxes[..., 1] - y, y - boxes[..., 3]), 0.0)
    return np.hypot(across, up)


def _overlap(boxes: Boxes, others: Boxes) -> NDArray[np.float64]:
    """Area that each box shares with each other one."""
    a, b = boxes[:, None, :], others[None, :, :]
    across = np.minimum(a[..., 2], b[..., 2]) - np.maximum(a[..., 0], b[..., 0])
    up = np.minimum(a[..., 3], b[..., 3]) - np.maximum(a[..., 1], b[..., 1])
    return np.maximum(across, 0.0) * np.maximum(up, 0.0)


def _best(
    i: int,
    chosen: Sequence[int],
    choices: Sequence[tuple[Boxes, NDArray[np.float64], NDArray[np.int64]]],
    own: Sequence[NDArray[np.float64]],
) -> int:
    """The choice of text i that is least bad beside those chosen for the others."""
    others = np.array([choices[j][0][at] for j, at in enumerate(chosen) if j != i]).reshape(-1, 4)
    shared = _overlap(choices[i][0], others)
    return int(np.argmin(own[i] + 20.0 * shared.sum(axis=1) + 100.0 * (shared > 0).sum(axis=1)))


def _label(
    text: _Text, at: NDArray[np.float64], anchor: NDArray[np.float64], ring: int, panel: Panel, box: Box, page: Page
) -> Label:
    left, foot, right, top = (float(edge) for edge in page.scale * at)
    x, y = (float(place) for place in page.scale * anchor)
    return Label(
        text=text.text,
        x=_value(panel.x, x, page.scale * box.width),
        y=_value(panel.y, y, page.scale * box.height),
        dx=(left + right) / 2 - x,
        dy=(foot + top) / 2 - y,
        width=right - left,
        height=top - foot,
        size=page.text if text.is_name else page.note,
        color=text.color,
        is_name=text.is_name,
        has_leader=bool(ring >= LEADER_RING) and not text.is_name,
    )


def _value(axis: Axis, at: float, length: float) -> float:
    """The value at a place along an axis of that length."""
    share = at / length
    return axis.low * (axis.high / axis.low) ** share if axis.log else axis.low + share * (axis.high - axis.low)
