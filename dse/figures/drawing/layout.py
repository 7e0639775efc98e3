"""Where everything of a chart goes, in points (1/72 inch), the same for every library.

Widths of texts are estimated, not measured: the browser that draws plotly's figures has another font than matplotlib.
"""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from dse.figures.drawing.chart import Axis, Chart, Series

#: sizes of texts in the report, in points
TITLE_SIZE, PANEL_SIZE, TEXT_SIZE, NOTE_SIZE = 10.0, 8.5, 8.0, 7.0
#: mean width of a character over its size, generous
CHARACTER = 0.56
LEFT, RIGHT, BOTTOM, TICKS, LABEL, PANEL_TITLE = 46.0, 14.0, 4.0, 14.0, 13.0, 15.0
COLUMN_GAP, ROW_GAP, BAR_ROOM = 34.0, 8.0, 62.0
LEGEND_ROW, LEGEND_SYMBOL, NOTE_ROW = 13.5, 34.0, 9.5
#: between a panel and the names right of it, and the room of the mark before each
NAMES_GAP, NAMES_MARK = 9.0, 8.0
#: how far lines of names stand apart, over the size of their letters
NAMES_PITCH = 1.2
#: share of the page's width that a line of a name right of the panels takes at most
NAMES_SHARE = 0.28


@dataclass(frozen=True)
class Page:
    """Page that a figure is drawn for: width, height where given, and text sizes, all in points.

    `line` and `mark` are widths of lines and sizes of marks over those of the report. Where `fits` is true, panels are
    laid out anew for the page (`dse.figures.drawing.fit`) and share axes; the report's figures stay as their charts
    say.
    """

    name: str
    width: float
    height: float | None = None
    title: float = TITLE_SIZE
    panel: float = PANEL_SIZE
    text: float = TEXT_SIZE
    note: float = NOTE_SIZE
    line: float = 1.0
    mark: float = 1.0
    fits: bool = True
    #: lines of notes under a figure at most; more of them stay in the file's description
    max_note_lines: int = 40
    shows_title: bool = True
    shows_notes: bool = True
    #: place of the legend on pages that fit: above or below the panels, right of them, or none
    legend: str = "above"

    @property
    def scale(self) -> float:
        """Size of the texts over those of the report: distances follow them."""
        return self.text / TEXT_SIZE


#: text width of an A4 page, about two columns of a paper
REPORT = Page("report", width=518.0, fits=False)
WIDTH = REPORT.width


@dataclass(frozen=True)
class Text:
    """Lines of a label: the middle of the edge that faces its panel, in points from the lower left corner."""

    x: float
    y: float
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Box:
    """A rectangle; x and y from the lower left corner of the figure."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class ChartLayout:
    """The figure's size and the places of its parts.

    From `title` on: only on pages that fit (`dse.figures.drawing.page_layout`), where labels of axes are placed as
    texts.
    """

    page: Page
    width: float
    height: float
    panels: tuple[Box, ...]
    shows_y_label: tuple[bool, ...]
    legend: tuple[Series, ...]
    legend_top: float
    legend_columns: int
    legend_cell: float
    title_top: float
    notes: tuple[str, ...]
    notes_top: float
    title: tuple[str, ...]
    titles: tuple[str, ...]
    #: whether the ticks of an axis are named: not where the panel beside or below has the same
    shows_x_ticks: tuple[bool, ...]
    shows_y_ticks: tuple[bool, ...]
    x_labels: tuple[Text, ...] = ()
    y_labels: tuple[Text, ...] = ()
    #: what a legend on the right takes of the figure's width
    legend_width: float = 0.0


def text_width(text: str, size: float) -> float:
    """Estimated width of a line of text in points."""
    return len(text) * size * CHARACTER


def _same(axis: Axis, other: Axis) -> bool:
    """True when the label of one axis also tells what the other shows."""
    return axis.label == other.label and axis.log == other.log


def _beyond(axis: Axis) -> float:
    """Room that the name of a last tick needs at the end of an axis."""
    if not axis.ticks or axis.ticks[-1][0] < 0.999 * axis.high:
        return 0.0
    return text_width(axis.ticks[-1][1], TEXT_SIZE) / 2 + 2.0


def legend_of(chart: Chart) -> tuple[Series, ...]:
    """The entries of the legend: not the only series of a figure."""
    legend = tuple(chart.legend())
    return legend if len(legend) > 1 or chart.named() else ()


def is_named_right(series: Series) -> bool:
    """True for lines and upright bars, which are named right of a row of panels."""
    return series.kind in ("line", "bar")


def name_lines(name: str, page: Page, measure: Callable[[str, float], float]) -> list[str]:
    """A name right of the panels in lines of at most NAMES_SHARE of the page, broken between words."""
    lines: list[str] = []
    for word in name.split():
        if lines and measure(f"{lines[-1]} {word}", page.note) <= NAMES_SHARE * page.width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def names_width(chart: Chart, page: Page, measure: Callable[[str, float], float]) -> float:
    """Room right of the panels for the names of lines and upright bars; 0 where these stand in the legend."""
    if chart.colors:
        return 0.0
    names = [name for name, series in chart.named().items() if is_named_right(series)]
    widths = [measure(line, page.note) for name in names for line in name_lines(name, page, measure)]
    return max(widths) + (NAMES_GAP + NAMES_MARK) * page.scale if widths else 0.0


def _wrapped(title: str, most: int) -> str:
    """The title of a panel in lines of at most so many letters, broken at commas where that will do."""
    parts = title.replace(", ", ",\n")
    if len(title) <= most or max(map(len, parts.split("\n"))) <= most:
        return title if len(title) <= most else parts
    return "\n".join(textwrap.wrap(title, max(most, 8)))


def place(chart: Chart) -> ChartLayout:
    """Title, legend, rows of panels and notes from top to bottom, on the report's page; nothing overlaps."""
    n, columns = len(chart.panels), min(chart.n_columns, len(chart.panels))
    rows = -(-n // columns)
    legend = legend_of(chart)
    cell = max((LEGEND_SYMBOL + text_width(s.name, TEXT_SIZE) for s in legend), default=WIDTH)
    legend_columns = max(1, min(len(legend), int((WIDTH - 16) // cell)))
    legend_rows = -(-len(legend) // legend_columns)
    notes = tuple(line for note in chart.notes for line in textwrap.wrap(note, int(WIDTH * 0.97 / (NOTE_SIZE * 0.56))))
    longest_tick = max(
        (text_width(text, TEXT_SIZE) for panel in chart.panels for _, text in panel.y.ticks), default=0.0
    )
    left = LEFT + max(0.0, longest_tick - 26.0)
    right = max(RIGHT, *(_beyond(panel.x) for panel in chart.panels))
    column_gap = COLUMN_GAP + max(0.0, longest_tick - 26.0)
    beside = [i % columns > 0 and _same(chart.panels[i].y, chart.panels[i - 1].y) for i in range(n)]
    if not all(beside[i] for i in range(n) if i % columns):
        column_gap += LABEL
    right += names_width(chart, REPORT, text_width)
    inner = WIDTH - left - right - (BAR_ROOM if chart.colors else 0.0)
    width = (inner - (columns - 1) * column_gap) / columns
    titles = tuple(_wrapped(panel.title, int(width / (PANEL_SIZE * CHARACTER))) for panel in chart.panels)
    title_height = PANEL_TITLE + 1.2 * PANEL_SIZE * max(text.count("\n") for text in titles)
    row_height = title_height + chart.panel_height_pt + TICKS + LABEL + ROW_GAP
    height = 20.0 + legend_rows * LEGEND_ROW + 6.0 + rows * row_height + len(notes) * NOTE_ROW + BOTTOM
    top = height - 20.0 - legend_rows * LEGEND_ROW - 6.0
    boxes = []
    for i in range(n):
        row, column = divmod(i, columns)
        y_top = top - row * row_height - title_height
        boxes.append(
            Box(left + column * (width + column_gap), y_top - chart.panel_height_pt, width, chart.panel_height_pt)
        )
    return ChartLayout(
        page=REPORT,
        width=WIDTH,
        height=height,
        panels=tuple(boxes),
        shows_y_label=tuple(not b for b in beside),
        legend=legend if legend_rows else (),
        legend_top=height - 20.0,
        legend_columns=legend_columns,
        legend_cell=(WIDTH - 16) / legend_columns,
        title_top=height - 4.0,
        notes=notes,
        notes_top=BOTTOM + len(notes) * NOTE_ROW,
        title=(chart.title,),
        titles=titles,
        shows_x_ticks=(True,) * n,
        shows_y_ticks=(True,) * n,
    )
