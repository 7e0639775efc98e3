"""From which batch, and from which prompt, a quantizer pays: stretches with their reason; drawn by `dse ask cross`."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.figures.registry import by, figure
from dse.figures.source import Source
from dse.questions.common import sure_text
from dse.questions.crossing import VERDICTS, Crossing

#: verdict -> (color, hatch), told apart by both
LOOKS = {
    "speed": (style.BLUE, ""),
    "both": (style.GREEN, "\\"),
    "capacity": (style.ORANGE, "/"),
    "prompt": (style.PURPLE, "x"),
    "no": ("#D9D9D9", ""),
    "none": (style.GRAY, "|"),
}
_SIDES = (
    ("batch", "input_tokens", "batch", "sequences", "prompt", "tokens"),
    ("input_tokens", "batch", "prompt", "tokens", "batch", "sequences"),
)


def source_of(answer: Crossing) -> Source:
    """The table of an answer of `dse ask cross` and what its figure says beside it."""
    title = f"Where {answer.new} pays against {answer.old} ({answer.measure.title})"
    table = answer.table
    notes = [f"{answer.context}.", *_least_sure(table), *filter(None, [answer.note]), answer.assumptions]
    return Source(table, about={"title": title, "notes": notes})


def _least_sure(table: pd.DataFrame) -> list[str]:
    """Chance that the quantizer pays at the ends of the ranges where it is predicted to."""
    paying = table[table["pays"].astype(bool)]
    chances = [float(v) for end in ("first", "last") for v in paying[f"sure_at_{end}"].dropna()]
    if not chances:
        return []
    least, most = (sure_text(chance) for chance in (min(chances), max(chances)))
    between = least if least == most else f"{least} to {most}"
    return [f"At the ends of stretches where it pays, the chance that it does: {between}."]


@figure(
    "cross",
    "From which batch and prompt on a quantizer pays, and why.",
    by("ask cross --out DIR", "cross"),
    ("axis", "at", "first", "last", "verdict", "gain_at_first", "gain_at_last"),
    order=110,
    key=("axis", "at", "first"),
    answer=Crossing,
    source_of=source_of,
)
def chart(source: Source) -> Chart:
    """A panel per axis of the table (`batch`, `input_tokens`), a bar per search."""
    table, notes = source.table, tuple(source.about.get("notes", ()))
    panels = []
    for axis, _, name, unit, other, other_unit in _SIDES:
        spans = table[table["axis"] == axis]
        if spans.empty:
            continue
        places = sorted(set(spans["at"]))
        labels = [axes.tokens_text(at) if axis == "batch" else axes.count_text(at) for at in places]
        ends = [float(spans["first"].min()), float(spans["last"].max())]
        y = _axis(name, unit, ends, axis == "input_tokens")
        panels.append(
            Panel(
                f"which {name} at a given {other}",
                axes.categories(other, labels, other_unit),
                y,
                tuple(_bars(spans, places, name)),
            )
        )
    verdicts = set(table["verdict"])
    if len(verdicts) == 1:  # a legend of one entry is not drawn
        notes = (f"Everywhere: {VERDICTS[verdicts.pop()]}.", *notes)
    title = source.about.get("title", "Where it pays")
    return Chart(title, panels=tuple(panels), n_columns=2, panel_height_pt=190, notes=notes)


def _axis(name: str, unit: str, ends: list[float], in_k: bool) -> Axis:
    """Powers of two (the ends where there is none) from half below the first whole number to half above the last."""
    low, high = ends[0] - 0.5, ends[1] + 0.5
    powers = [2.0**e for e in range(0, 64) if low <= 2.0**e <= high] or sorted({*ends})
    every = -(-len(powers) // 9)
    ticks = tuple((p, axes.tokens_text(int(p)) if in_k else axes.count_text(p)) for p in powers[::-1][::every][::-1])
    return Axis(name, unit=unit, low=low, high=high, ticks=ticks, log=True)


def _bars(spans: pd.DataFrame, places: list[int], name: str) -> list[Series]:
    bars = []
    for verdict, text in VERDICTS.items():
        rows = spans[spans["verdict"] == verdict]
        if rows.empty:
            continue
        hover = (f"{name} {row['first']:,} to {row['last']:,}: {text}" + _gains(row) for row in rows.to_dict("records"))
        at, lengths = map(places.index, rows["at"]), rows["last"] - rows["first"] + 1
        bars.append(marks.bars(text, at, lengths, LOOKS[verdict], hover, kind="bar", base=rows["first"] - 0.5))
    return bars


def _gains(row: Mapping[Any, Any]) -> str:
    """Gains at both ends of a stretch, with their intervals and the chances that they are gains, where tables say."""
    if pd.isna(row["gain_at_first"]) or pd.isna(row["gain_at_last"]):
        return ""
    text = f"\n{row['gain_at_first']:.3g} to {row['gain_at_last']:.3g} times as good"
    for end in ("first", "last"):
        if not pd.isna(row.get(f"sure_at_{end}")):
            low, high = row[f"gain_low_at_{end}"], row[f"gain_high_at_{end}"]
            text += f"\nat the {end}: {low:.3g} to {high:.3g} times (80 % interval)"
            text += f", {sure_text(row[f'sure_at_{end}'])} sure that it is better"
    return text
