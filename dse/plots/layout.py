"""Where everything of a chart goes, in points (1/72 inch), the same for every library."""

import textwrap
from dataclasses import dataclass

from dse.plots.chart import Axis, Chart, Series

#: mean width of a character over its size, generous; the same of bold ones
CHARACTER, BOLD = 0.56, 0.62
LEFT, RIGHT, BOTTOM, TICKS, LABEL, PANEL_TITLE = 46.0, 14.0, 4.0, 14.0, 13.0, 15.0
COLUMN_GAP, ROW_GAP, BAR_ROOM = 34.0, 8.0, 62.0
LEGEND_ROW, LEGEND_SYMBOL, NOTE_ROW = 13.5, 34.0, 9.5
#: gap between panels that share their axis
SHARED_GAP = 12.0


@dataclass(frozen=True)
class Page:
    """What a figure is drawn for: its width, and its height where that is given, in points; sizes of texts in points.

    `line` and `mark` are widths of lines and sizes of marks over those of the report. Where `fits` is true, panels are
    laid out anew for the page (`dse.plots.fit`) and share axes; the report's figures stay as their charts say.
    """

    name: str
    width: float
    height: float | None = None
    title: float = 10.0
    panel: float = 8.5
    text: float = 8.0
    note: float = 7.0
    line: float = 1.0
    mark: float = 1.0
    fits: bool = True
    #: lines of notes under a figure at most; more of them stay in the file's description
    max_note_lines: int = 40
    shows_title: bool = True
    shows_notes: bool = True

    @property
    def scale(self) -> float:
        """Size of the texts over those of the report: distances follow them."""
        return self.text / TEXT_SIZE


TITLE_SIZE, PANEL_SIZE, TEXT_SIZE, NOTE_SIZE = 10.0, 8.5, 8.0, 7.0
#: text width of an A4 page, about two columns of a paper
REPORT = Page("report", 518.0, fits=False)
WIDTH = REPORT.width


@dataclass(frozen=True)
class Box:
    """A rectangle; x and y from the lower left corner of the figure."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Layout:
    """The figure's size and the places of its parts."""

    page: Page
    width: float
    height: float
    panels: tuple[Box, ...]
    shows_y_label: tuple[bool, ...]
    #: whether the ticks of an axis are named: not where the panel beside or below has the same
    shows_x_ticks: tuple[bool, ...]
    shows_y_ticks: tuple[bool, ...]
    legend: tuple[Series, ...]
    legend_top: float
    legend_columns: int
    legend_cell: float
    title: tuple[str, ...]
    title_top: float
    notes: tuple[str, ...]
    notes_top: float


def text_width(text: str, size: float) -> float:
    """Estimated width of a line of text in points."""
    return len(text) * size * CHARACTER


def _same(one: Axis, other: Axis) -> bool:
    """True when the label of one axis also tells what the other shows."""
    return one.label == other.label and one.log == other.log


def _wrapped(chart: Chart, page: Page) -> tuple[str, ...]:
    n_characters = int(page.width * 0.97 / (page.note * CHARACTER))
    return tuple(line for note in chart.notes for line in textwrap.wrap(note, n_characters))


def shows_all_notes(chart: Chart, page: Page) -> bool:
    """True where every note stands in the picture."""
    return not chart.notes or (page.shows_notes and len(_wrapped(chart, page)) <= page.max_note_lines)


def note_lines(chart: Chart, page: Page) -> tuple[str, ...]:
    """The notes as lines of the page; one line that says where they are, where the page has no room for them."""
    if not page.shows_notes:
        return ()
    if shows_all_notes(chart, page):
        return _wrapped(chart, page)
    assumed = any("on assumed numbers" in note for note in chart.notes)
    return ("Rests on assumed numbers; notes: see the file's properties." if assumed else
            "Notes: see the file's properties.",)  # fmt: skip


def place(chart: Chart, page: Page = REPORT) -> Layout:
    """Title, legend, rows of panels and notes from top to bottom; nothing overlaps."""
    n, columns, scale = len(chart.panels), min(chart.n_columns, len(chart.panels)), page.scale
    rows = -(-n // columns)
    legend = tuple(chart.legend())
    cell = max((LEGEND_SYMBOL * scale + text_width(s.name, page.text) for s in legend), default=page.width)
    legend_columns = max(1, min(len(legend), int((page.width - 16) // cell)))
    legend_rows = -(-len(legend) // legend_columns) if len(legend) > 1 else 0
    notes = note_lines(chart, page)
    title: tuple[str, ...] = (chart.title,)
    if page.fits:
        title = (
            tuple(textwrap.wrap(chart.title, int((page.width - 16) / (page.title * BOLD)))) if page.shows_title else ()
        )
    head = 20.0 if not page.fits else 6.0 * scale + len(title) * 1.2 * page.title if title else 4.0
    same_y, same_x = _shared(chart, columns, page)
    longest_tick = max(
        (text_width(text, page.text) for panel in chart.panels for _, text in panel.y.ticks), default=0.0
    )
    left = LEFT * scale + max(0.0, longest_tick - 26.0 * scale)
    beside = [i % columns > 0 and _same(chart.panels[i].y, chart.panels[i - 1].y) for i in range(n)]
    column_gap = COLUMN_GAP * scale + max(0.0, longest_tick - 26.0 * scale)
    if all(same_y[i] for i in range(n) if i % columns):
        column_gap = SHARED_GAP * scale
    elif not all(beside[i] for i in range(n) if i % columns):
        column_gap += LABEL * scale
    inner = page.width - left - RIGHT * scale - (BAR_ROOM * scale if chart.colours else 0.0)
    width = (inner - (columns - 1) * column_gap) / columns
    tops = PANEL_TITLE * scale if any(panel.title for panel in chart.panels) or not page.fits else 4.0 * scale
    feet = [
        ROW_GAP * scale if all(same_x[row * columns : (row + 1) * columns]) else (TICKS + LABEL + ROW_GAP) * scale
        for row in range(rows)
    ]
    used = head + legend_rows * LEGEND_ROW * scale + 6.0 * scale + rows * tops + sum(feet)
    note_row = NOTE_ROW * page.note / NOTE_SIZE
    used += len(notes) * note_row + BOTTOM * scale
    panel_height = chart.panel_height_pt if page.height is None else (page.height - used) / rows
    height = used + rows * panel_height
    boxes = []
    top = height - head - legend_rows * LEGEND_ROW * scale - 6.0 * scale
    for i in range(n):
        row, column = divmod(i, columns)
        y_top = top - row * (tops + panel_height) - sum(feet[:row]) - tops
        boxes.append(Box(left + column * (width + column_gap), y_top - panel_height, width, panel_height))
    return Layout(
        page, page.width, height, tuple(boxes), tuple(not b for b in beside),
        tuple(not same for same in same_x), tuple(not same for same in same_y),
        legend if legend_rows else (), height - head, legend_columns, (page.width - 16) / legend_columns,
        title, height - 4.0 * scale, notes, BOTTOM * scale + len(notes) * note_row,
    )  # fmt: skip


def _shared(chart: Chart, columns: int, page: Page) -> tuple[list[bool], list[bool]]:
    """For each panel: whether the one to its left has the same y axis, and the one below it the same x axis."""
    panels = chart.panels
    if not page.fits:
        return [False] * len(panels), [False] * len(panels)
    same_y = [i % columns > 0 and panels[i].y == panels[i - 1].y for i in range(len(panels))]
    same_x = [
        i + columns < len(panels) and panels[i].x == panels[i + columns].x for i in range(len(panels))
    ]  # fmt: skip
    return same_y, same_x
