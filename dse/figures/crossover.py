"""From which batch, and from which prompt, a quantizer pays: stretches with their reason; drawn by `dse ask cross`."""

import pandas as pd

from dse.figures.drawing import axes, style
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.figures.registry import Source, by, figure
from dse.questions.crossing import VERDICTS, Crossing

#: verdict -> (colour, hatch), told apart by both
LOOKS = {
    "speed": (style.BLUE, ""), "both": (style.GREEN, "\\"), "capacity": (style.ORANGE, "/"),
    "prompt": (style.PURPLE, "x"), "no": ("#D9D9D9", ""), "none": (style.GREY, "|"),
}  # fmt: skip
_SIDES = (
    ("batch", "input_tokens", "batch", "sequences", "prompt", "tokens"),
    ("input_tokens", "batch", "prompt", "tokens", "batch", "sequences"),
)


def source_of(answer: Crossing) -> Source:
    """The table of an answer of `dse ask cross` and what its figure says beside it."""
    title = f"Where {answer.new} pays against {answer.old} ({answer.measure.title})"
    return Source(answer.table(), about={"title": title, "notes": [f"{answer.context}.", answer.assumptions]})


@figure(
    "cross", "From which batch and prompt on a quantizer pays, and why.", by("ask cross --out DIR", "cross"),
    ("axis", "at", "first", "last", "verdict", "gain_at_first", "gain_at_last"), order=110,
    key=("axis", "at", "first"), answer=Crossing, source_of=source_of,
)  # fmt: skip
def chart(source: Source) -> Chart:
    """A panel per axis of the table (`batch`, `input_tokens`), a bar per search."""
    table, notes = source.table, tuple(source.about.get("notes", ()))
    panels = []
    for axis, _, name, unit, other, other_unit in _SIDES:
        own = table[table["axis"] == axis]
        if own.empty:
            continue
        places = sorted(set(own["at"]))
        labels = [axes.tokens_text(at) if axis == "batch" else axes.count_text(at) for at in places]
        ends = [float(own["first"].min()), float(own["last"].max())]
        y = _axis(name, unit, ends, axis == "input_tokens")
        panels.append(
            Panel(
                f"which {name} at a given {other}", axes.categories(other, labels, other_unit), y,
                tuple(_bars(own, places, name)),
            )
        )  # fmt: skip
    found = set(table["verdict"])
    if len(found) == 1:  # a legend of one entry is not drawn
        notes = (f"Everywhere: {VERDICTS[found.pop()]}.", *notes)
    title = source.about.get("title", "Where it pays")
    return Chart(title, tuple(panels), n_columns=2, panel_height_pt=190, notes=notes)


def _axis(name: str, unit: str, ends: list[float], in_k: bool) -> Axis:
    """Powers of two from half below the first whole number to half above the last."""
    low, high = ends[0] - 0.5, ends[1] + 0.5
    powers = [2.0**e for e in range(0, 64) if low <= 2.0**e <= high]
    every = -(-len(powers) // 9)
    ticks = tuple((p, axes.tokens_text(int(p)) if in_k else axes.count_text(p)) for p in powers[::-1][::every][::-1])
    return Axis(name, unit, low, high, ticks, log=True)


def _bars(own: pd.DataFrame, places: list[int], name: str) -> list[Series]:
    found = []
    for verdict, text in VERDICTS.items():
        rows = own[own["verdict"] == verdict]
        if rows.empty:
            continue
        colour, hatch = LOOKS[verdict]
        hover = tuple(
            f"{name} {row.first:,} to {row.last:,}: {text}" + _gains(row.gain_at_first, row.gain_at_last)
            for row in rows.itertuples()
        )
        found.append(Series(
            text, "bar", tuple(float(places.index(at)) for at in rows["at"]),
            tuple(float(last - first + 1) for first, last in zip(rows["first"], rows["last"], strict=True)),
            colour, base=tuple(float(first) - 0.5 for first in rows["first"]), hatch=hatch, hover=hover,
        ))  # fmt: skip
    return found


def _gains(first: float, last: float) -> str:
    return "" if pd.isna(first) or pd.isna(last) else f"\n{first:.3g} to {last:.3g} times as good"
