"""Effects of numbers on a result, the largest first; of `dse ask sensitivity` and `dse ask doubt`."""

import pandas as pd

from dse.figures.drawing import axes, marks, style, whiskers
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.figures.registry import by, figure
from dse.figures.source import Source
from dse.questions.common import MEASURES, sure_text
from dse.questions.doubt import Doubt
from dse.questions.effects import Effects, range_text
from dse.questions.sensitivity import Sensitivity

#: numbers shown
MAX_BARS = 15
#: behind the whole row of a number that changes which design is better: a mark at a place would read as a value
CHANGES = "#F3E3C3"


def short(name: str) -> str:
    """A number's name without where its kind is kept: labels are not to take the figure's room."""
    return name.removeprefix("stacks.").removeprefix("implementations.")


def source_of(answer: Effects) -> Source:
    """The table of an answer and what its figure says beside it."""
    moving = [i for i, e in enumerate(answer.effects) if e.span(answer.base) > 0 or e.flips_at] or [0]
    numbers = [answer.effects[i].number for i in moving]
    return Source(
        answer.table,
        about={
            "title": f"What moves {answer.measure.title}, {answer.design}"
            + (f" against {answer.other}" if answer.other else ""),
            "measure": answer.measure.name,
            "rows": moving,
            "labels": [f"{short(number.name)} ({range_text(number)})" for number in numbers],
            "base": [answer.base or 0.0, answer.other_base],
            "names": [answer.design, answer.other],
            "sure": answer.sure,
            "intervals": [answer.interval, answer.other_interval],
            "winner": answer.winner,
            "notes": [f"{answer.context}.", *filter(None, [answer.refused]), answer.assumptions],
        },
    )


@figure(
    "sensitivity",
    "A tornado: a result where each number of the device is halved and doubled, the largest effect first.",
    by("ask sensitivity --out DIR", "sensitivity"),
    ("at_low", "at_high", "other_at_low", "other_at_high", "flips_at"),
    order=149,
    needs_beside=True,
    answer=Sensitivity,
    source_of=source_of,
)
@figure(
    "doubt",
    "A tornado: which assumption, inside its range, moves a result, the largest first.",
    by("ask doubt --out DIR", "doubt"),
    ("at_low", "at_high", "other_at_low", "other_at_high", "flips_at"),
    order=150,
    needs_beside=True,
    answer=Doubt,
    source_of=source_of,
)
def chart(source: Source) -> Chart:
    """A panel per design, a bar per number from the result at the low end of its range to that at the high end.

    Beside the table: its `rows` that are drawn, and of these the `labels`; the `measure`; as given, the results `base`
    (the other design's may be missing) of the designs `names`, and the `winner`.
    """
    about, notes = source.about, tuple(source.about.get("notes", ()))
    table, labels = source.table.iloc[about["rows"]], about["labels"]
    base, names, winner, measure = about["base"], about["names"], about["winner"], MEASURES[about["measure"]]
    left_out = len(table) - MAX_BARS
    table, labels = table.iloc[:MAX_BARS], labels[:MAX_BARS]
    if left_out > 0:
        notes = (f"The {MAX_BARS} numbers of most effect are drawn; the table has all.", *notes)
    y = axes.categories("number and its range", labels[::-1])
    panels = []
    sides = [(names[0], base[0], "at_low", "at_high")]
    if base[1] is not None and names[1]:
        sides.append((names[1], base[1], "other_at_low", "other_at_high"))
    columns = [column for _, _, *pair in sides for column in pair]
    values = [float(v) for column in columns for v in table[column].dropna()] + [value for _, value, *_ in sides]
    intervals = about.get("intervals", (None, None))
    values += [float(end) for interval in intervals for end in interval or ()]
    x = axes.around(measure.title, measure.shown_unit, values, measure.per_unit, n_ticks=7)
    flips = [i for i in range(len(table)) if table["flips_at"].iloc[i]]
    changes = marks.bars(
        "the better design changes",
        (len(labels) - 1 - i for i in flips),
        (x.high - x.low,) * len(flips),
        (CHANGES, ""),
        (f"{labels[i]}\nchanges at {table['flips_at'].iloc[i]}" for i in flips),
        base=(x.low,) * len(flips),
        width=1.0,
        is_note=True,
    )
    if flips and winner:
        sure = about.get("sure")
        how_sure = f", {sure_text(sure)} sure" if sure is not None and winner in names else ""
        notes = (f"As given {winner} is better{how_sure}; in a shaded range that changes.", *notes)
    for name, value, low, high in sides:
        bars = _bars(table, labels, (low, high), value, x, y)
        for end in (intervals[names.index(name)] or ()) if name in names else ():
            bars.append(marks.rule(whiskers.NAME, y, end, dash="dot", upright=True))
        panels.append(Panel(name, x, y, (changes, *bars) if flips else tuple(bars)))
    return Chart(about["title"], panels=tuple(panels), panel_height_pt=max(60.0, 14.0 * len(labels)), notes=notes)


def _bars(table: pd.DataFrame, labels: list[str], ends: tuple[str, str], base: float, x: Axis, y: Axis) -> list[Series]:
    """Two bars a number, from the result as given to that at each end; nothing reaches to 0 where it does not run."""
    bars = []
    sides = (("low end of the range", (style.ORANGE, "/")), ("high end of the range", (style.BLUE, "")))
    for column, (name, fill) in zip(ends, sides, strict=True):
        values = [float(v) if pd.notna(v) else 0.0 for v in table[column]]
        texts = (f"{label}\n{name}: {x.shown(v):,.5g} {x.unit}" for label, v in zip(labels, values, strict=True))
        places, lengths = range(len(labels) - 1, -1, -1), [abs(v - base) for v in values]
        starts = (min(v, base) for v in values)
        bars.append(marks.bars(name, places, lengths, fill, texts, base=starts, width=0.6))
    return [*bars, marks.rule("as given", y, base, dash="solid", upright=True)]
