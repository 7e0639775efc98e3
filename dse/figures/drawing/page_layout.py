"""Where everything of a chart goes in a paper or on a slide: texts measured, axes shared, labels written once.

matplotlib measures the texts. Breaking and placing them is ours: its own wrapping breaks at the figure's edge while it
draws, of lines of any length, and its layout engines keep panels apart but share no axes and give no height that a
figure needs.
"""

from dataclasses import dataclass
from functools import lru_cache

from dse.figures.drawing import layout
from dse.figures.drawing.chart import Chart, Panel
from dse.figures.drawing.layout import BAR_ROOM, LEGEND_ROW, NOTE_ROW, NOTE_SIZE, ROW_GAP, Box, ChartLayout, Page, Text

#: distance of lines of a text over its size
LINE = 1.2
#: symbol of a legend entry, and what lies between two, at 8 pt
SYMBOL, BETWEEN = 27.0, 8.0
EDGE = 8.0
#: between a panel and its ticks' names, or between them and the label
PAD = 4.0
MAX_LABEL_LINES = 3
#: hinting makes letters of a bitmap a little wider than the font says
ROOM = 1.03


@lru_cache(maxsize=10_000)
def measured(text: str, size: float, is_bold: bool = False) -> float:
    """Width of the longest line of a text in points, by the font that draws it."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family="DejaVu Sans", weight="bold" if is_bold else "normal", size=size)
    widths = (text_to_path.get_text_width_height_descent(line, font, False)[0] for line in text.split("\n"))
    return float(ROOM * max(widths))


@lru_cache(maxsize=10_000)
def has_letter(char: str) -> bool:
    """True where the font that draws the texts has the letter."""
    from matplotlib.font_manager import findfont, get_font

    return bool(get_font(findfont("DejaVu Sans")).get_char_index(ord(char)))


def wrapped(text: str, width: float, size: float, is_bold: bool = False) -> list[str]:
    """The text in lines of at most `width` points, broken between words; a longer word has its own line, or several
    where it has hyphens."""
    lines: list[str] = []
    for word in text.split():
        if "-" in word[1:-1] and measured(word, size, is_bold) > width:
            for part in _parts(word, width, size, is_bold):
                lines.append(part)
            continue
        if lines and measured(f"{lines[-1]} {word}", size, is_bold) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _parts(word: str, width: float, size: float, is_bold: bool) -> list[str]:
    """A word broken after hyphens."""
    parts: list[str] = []
    for i, piece in enumerate(pieces := word.split("-")):
        piece += "-" if i < len(pieces) - 1 else ""
        if parts and measured(parts[-1] + piece, size, is_bold) <= width:
            parts[-1] += piece
        else:
            parts.append(piece)
    return parts


def balanced(text: str, width: float, size: float, is_bold: bool = False) -> list[str]:
    """As `wrapped`, in as many lines, of about the same length: no last word stands alone."""
    lines = wrapped(text, width, size, is_bold)
    while len(lines) > 1:
        width = 0.95 * max(measured(line, size, is_bold) for line in lines)
        narrower = wrapped(text, width, size, is_bold)
        if len(narrower) > len(lines) or max(measured(line, size, is_bold) for line in narrower) > width:
            break
        lines = narrower
    return lines


@dataclass(frozen=True)
class _Lines:
    """Lines that the longest label of each axis takes."""

    x: int = 1
    y: int = 1


def shows_all_notes(chart: Chart, page: Page) -> bool:
    """True where every note stands in the picture."""
    return not chart.notes or (page.shows_notes and len(_every_note(chart, page)) <= page.max_note_lines)


def _every_note(chart: Chart, page: Page) -> list[str]:
    width = page.width - 2 * EDGE
    return [line for note in chart.notes for line in wrapped(note, width, page.note)]


def _notes(chart: Chart, page: Page) -> tuple[str, ...]:
    """The notes; one line that says where they are, where the page has no room for them."""
    if not page.shows_notes:
        return ()
    if shows_all_notes(chart, page):
        return tuple(_every_note(chart, page))
    assumed = any("on assumed numbers" in note for note in chart.notes)
    text = "notes: in the file's properties."
    return (f"Rests on assumed numbers; {text}" if assumed else text.capitalize(),)


def place(chart: Chart, page: Page) -> ChartLayout:
    """Title, legend, rows of panels and notes from top to bottom, with labels of as many lines as they need."""
    once = _place(chart, page, _Lines())
    lines = _Lines(
        max((len(text.lines) for text in once.x_labels), default=1),
        max((len(text.lines) for text in once.y_labels), default=1),
    )
    return once if lines == _Lines() else _place(chart, page, lines)


def _place(chart: Chart, page: Page, lines: _Lines) -> ChartLayout:
    n, columns, scale, size = len(chart.panels), min(chart.n_columns, len(chart.panels)), page.scale, page.text
    rows = -(-n // columns)
    usable = page.width - 2 * EDGE
    title = tuple(balanced(chart.title, usable, page.title, True)) if page.shows_title else ()
    notes = _notes(chart, page)
    legend = () if page.legend == "none" else layout.legend_of(chart)
    is_right, is_below = page.legend == "right" and len(legend) > 0, page.legend == "below"
    cell = max((measured(s.name, size) for s in legend), default=0.0) + (SYMBOL + BETWEEN) * scale
    legend_columns, legend_rows = _grid(len(legend), 1 if is_right else int((usable + BETWEEN * scale) // cell))
    same_x, same_y = _shared(chart, columns)
    left, gap, right = _sides(chart, columns, same_y, lines, page)
    legend_width = cell + PAD * scale if is_right else 0.0
    right += layout.names_width(chart, page, measured)
    inner = page.width - left - right - legend_width - (BAR_ROOM * scale if chart.colors else 0.0)
    width = (inner - (columns - 1) * gap) / columns
    titles = tuple("\n".join(balanced(panel.title, max(width, 1.0), page.panel)) for panel in chart.panels)
    n_title_lines = max((text.count("\n") + 1 for text in titles if text), default=0)
    tops = n_title_lines * LINE * page.panel + PAD * scale
    feet = [
        PAD * scale
        if all(same_x[row * columns : (row + 1) * columns])
        else (1.1 * size + PAD * scale) + (lines.x * LINE * size + PAD * scale) + ROW_GAP * scale
        for row in range(rows)
    ]
    head = len(title) * LINE * page.title + (6.0 if title else 4.0) * scale
    note_row = NOTE_ROW * page.note / NOTE_SIZE
    legend_height = legend_rows * LEGEND_ROW * scale
    above = head + 4.0 * scale + (0.0 if is_right or is_below else legend_height)
    below = len(notes) * note_row + PAD * scale
    used = above + rows * tops + sum(feet) + below + (legend_height + PAD * scale if is_below else 0.0)
    panel_height = chart.panel_height_pt if page.height is None else (page.height - used) / rows
    height = used + rows * panel_height
    if is_right and page.height is None:  # a long list on the right leaves room below the panels
        height = max(height, above + legend_height + below)
    legend_top = below + legend_height + PAD * scale if is_below else height - head
    boxes = []
    for i in range(n):
        row, column = divmod(i, columns)
        y_top = height - above - row * (tops + panel_height) - sum(feet[:row]) - tops
        boxes.append(Box(left + column * (width + gap), y_top - panel_height, width, panel_height))
    return ChartLayout(
        page=page,
        width=page.width,
        height=height,
        panels=tuple(boxes),
        shows_y_label=(False,) * n,
        legend=legend if legend_rows else (),
        legend_top=legend_top,
        legend_columns=legend_columns,
        legend_cell=cell if legend_columns == 1 else (usable + BETWEEN * scale) / legend_columns,
        title_top=height - 4.0 * scale,
        notes=notes,
        notes_top=PAD * scale + len(notes) * note_row,
        title=title,
        titles=titles,
        shows_x_ticks=tuple(not same for same in same_x),
        shows_y_ticks=tuple(not same for same in same_y),
        x_labels=tuple(_x_labels(chart, columns, boxes, same_x, page)),
        y_labels=tuple(_y_labels(chart, columns, boxes, same_y, page)),
        legend_width=legend_width,
    )


def names_height(chart: Chart, page: Page) -> float:
    """Height of the names right of a panel."""
    names = [name for name, series in chart.named().items() if layout.is_named_right(series) and not chart.colors]
    return layout.NAMES_PITCH * page.note * sum(len(layout.name_lines(name, page, measured)) for name in names)


def _grid(n_entries: int, most_columns: int) -> tuple[int, int]:
    """Columns and rows of a legend, no row nearly empty."""
    columns = max(1, min(n_entries, most_columns))
    if not n_entries:
        return columns, 0
    rows = -(-n_entries // columns)
    return -(-n_entries // rows), rows


def _shared(chart: Chart, columns: int) -> tuple[list[bool], list[bool]]:
    """For each panel: whether the one below it has the same x axis, and the one to its left the same y axis."""
    panels = chart.panels
    same_x = [i + columns < len(panels) and panels[i].x == panels[i + columns].x for i in range(len(panels))]
    return same_x, [i % columns > 0 and panels[i].y == panels[i - 1].y for i in range(len(panels))]


def _in_column(chart: Chart, column: int, columns: int) -> list[Panel]:
    return list(chart.panels[column::columns])


def _ticks_width(chart: Chart, column: int, columns: int, same_y: list[bool], page: Page) -> float:
    names = [
        text for i in range(column, len(chart.panels), columns) if not same_y[i] for _, text in chart.panels[i].y.ticks
    ]
    return max((measured(text, page.text) for text in names), default=0.0)


def _has_label(chart: Chart, column: int, columns: int) -> bool:
    """False where the column to the left says it all."""
    labels = [panel.y.label for panel in _in_column(chart, column, columns)]
    return column == 0 or labels != [panel.y.label for panel in _in_column(chart, column - 1, columns)][: len(labels)]


def _sides(chart: Chart, columns: int, same_y: list[bool], lines: _Lines, page: Page) -> tuple[float, float, float]:
    """Room left of the panels, between two columns, and right of them."""
    scale, size = page.scale, page.text
    rooms = []
    for column in range(columns):
        room = _ticks_width(chart, column, columns, same_y, page)
        room += 1.5 * PAD * scale if room else 0.0
        if _has_label(chart, column, columns):
            room += lines.y * LINE * size + PAD * scale
        rooms.append(room)
    first, last = (max(measured(panel.x.ticks[i][1], size) for panel in chart.panels if panel.x.ticks) for i in (0, -1))
    gap = max((*(room + PAD * scale for room in rooms[1:]), (first + last) / 2 + PAD * scale))
    return rooms[0] + PAD * scale, gap, max(1.5 * PAD * scale, last / 2 + 2.0)


def _x_labels(chart: Chart, columns: int, boxes: list[Box], same_x: list[bool], page: Page) -> list[Text]:
    """A label under each row with named ticks, once where all of the row's panels have the same."""
    texts = []
    for first in range(0, len(boxes), columns):
        places = range(first, min(first + columns, len(boxes)))
        if all(same_x[i] for i in places):
            continue
        y = boxes[first].y - (1.1 * page.text + PAD * page.scale) - 0.6 * PAD * page.scale
        groups = [list(places)] if len({chart.panels[i].x.label for i in places}) == 1 else [[i] for i in places]
        for group in groups:
            start, end = boxes[group[0]].x, boxes[group[-1]].x + boxes[group[-1]].width
            text = balanced(chart.panels[group[0]].x.label, max(end - start, 1.0) + 2 * PAD * page.scale, page.text)
            texts.append(Text((start + end) / 2, y, tuple(text[:MAX_LABEL_LINES])))
    return texts


def _y_labels(chart: Chart, columns: int, boxes: list[Box], same_y: list[bool], page: Page) -> list[Text]:
    """A label beside each column, once where all of its panels have the same."""
    texts = []
    for column in range(columns):
        if not _has_label(chart, column, columns):
            continue
        places = list(range(column, len(boxes), columns))
        ticks = _ticks_width(chart, column, columns, same_y, page)
        x = boxes[column].x - ticks - (2.5 if ticks else 1.0) * PAD * page.scale
        groups = [places] if len({chart.panels[i].y.label for i in places}) == 1 else [[i] for i in places]
        for group in groups:
            low, high = boxes[group[-1]].y, boxes[group[0]].y + boxes[group[0]].height
            text = balanced(chart.panels[group[0]].y.label, max(high - low, 1.0) + 3 * PAD * page.scale, page.text)
            texts.append(Text(x, (low + high) / 2, tuple(text[:MAX_LABEL_LINES])))
    return texts


def on(chart: Chart, page: Page) -> ChartLayout:
    """The layout of a chart for a page, the report's own included."""
    return place(chart, page) if page.fits else layout.place(chart)
