"""The best quantizer at each batch and prompt length, with its gain; drawn by `dse ask map`."""

from collections.abc import Sequence

import pandas as pd

from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import MAX_LEGEND, Chart, Panel, Series, hover_box
from dse.figures.registry import by, figure
from dse.figures.source import Source
from dse.questions.best_map import SURE, BestMap
from dse.questions.common import sure_text

#: fills that dark letters can be read on
COLORS = ("#E8E8E8", "#A6D4F0", "#F6CF7F", "#8FD3BC", "#E7BFD6", "#F2A97E", "#9DB8D9", "#C9C9C9", "#D6E3A0", "#CDBEE8")
#: fill of what no quantizer runs
NONE_RUNS = ("#FFFFFF", "x")
#: a letter for each quantizer, so that cells are told apart without color
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def source_of(answer: BestMap) -> Source:
    """The table of an answer of `dse ask map` and what its figure says beside it."""
    over = answer.over
    return Source(
        answer.table,
        about={
            "title": f"Best quantizer ({answer.measure.title})",
            "quantizers": list(answer.quantizers),
            "over": over,
            "notes": [
                f"{answer.context}. The number in a cell: how many times as good as {over}; without one: {over} "
                "does not run. ?: with a chance below 80 % better than the next best.",
                *filter(None, [answer.note]),
                answer.assumptions,
            ],
        },
    )


@figure(
    "map",
    "The best quantizer at each batch and prompt length, with its gain.",
    by("ask map --out DIR", "map"),
    ("batch", "input_tokens", "best"),
    order=120,
    key=("batch", "input_tokens"),
    answer=BestMap,
    source_of=source_of,
)
def chart(source: Source) -> Chart:
    """Cells colored by the best quantizer; columns batch, input_tokens, best, gain_over_<over> and every measure."""
    table, about = source.table, source.about
    gains = [str(name) for name in table.columns if str(name).startswith("gain_over_")]
    over = about.get("over", gains[0].removeprefix("gain_over_") if gains else "")
    quantizers = _quantizers(table, about.get("quantizers"))
    batches, inputs = (sorted(set(table[column])) for column in ("batch", "input_tokens"))
    x = axes.categories("batch", [axes.count_text(batch) for batch in batches], "sequences")
    y = axes.categories("prompt", [axes.tokens_text(n) for n in inputs], "tokens")
    first = table["best"].str.split(" = ").str[0].fillna("")
    series = []
    is_long = len(quantizers) >= MAX_LEGEND  # of a long legend those that are best somewhere, named right of the cells
    for name in (*quantizers, ""):
        rows = table[first == name]
        if rows.empty:
            continue
        i = quantizers.index(name) if name else -1
        series.append(
            marks.bars(
                _name(i, quantizers) if name else "none runs",
                map(batches.index, rows["batch"]),
                (1.0,) * len(rows),
                (COLORS[i % len(COLORS)], "") if name else NONE_RUNS,
                (_hover(row, quantizers) for _, row in rows.iterrows()),
                kind="bar",
                base=(inputs.index(n) - 0.5 for n in rows["input_tokens"]),
                width=1.0,
                in_legend=is_long,
            )
        )
    labels = tuple(_label(row, quantizers, over) for _, row in table.iterrows())
    places = map(batches.index, table["batch"]), map(inputs.index, table["input_tokens"])
    text = style.Style(style.BLACK, marker="")
    series.append(marks.points("gain", *places, text, labels=labels, in_legend=False, is_note=True))
    keys = tuple(
        Series(_name(i, quantizers), kind="bar", color=COLORS[i % len(COLORS)]) for i in range(len(quantizers))
    )
    if is_long:
        keys = ()
    elif (first == "").any():
        keys = (*keys, Series("none runs", kind="bar", color=NONE_RUNS[0], hatch=NONE_RUNS[1]))
    height = max(120.0, 26.0 * len(inputs))
    return Chart(
        about.get("title", "Best quantizer"),
        panels=(Panel("", x, y, tuple(series)),),
        panel_height_pt=height,
        keys=keys,
        notes=tuple(about.get("notes", ())),
    )


def _quantizers(table: pd.DataFrame, names: Sequence[str] | None) -> tuple[str, ...]:
    """Every quantizer of a map: those that were asked for, else those with a column, and those that are best."""
    columns = [str(name).split(" ", 1)[1] for name in table.columns if " " in str(name)]
    best = [name for text in table["best"] for name in str(text).split(" = ") if name]
    return tuple(dict.fromkeys([*(columns if names is None else names), *best]))


def _name(i: int, quantizers: tuple[str, ...]) -> str:
    return f"{LETTERS[i % 26]}  {quantizers[i]}"


def _label(row: pd.Series, quantizers: tuple[str, ...], over: str) -> str:
    """The letters of the best, and how many times as good as `over` they are."""
    if not row["best"]:
        return "-"
    letters = "=".join(LETTERS[quantizers.index(name) % 26] for name in row["best"].split(" = "))
    if _is_open(row):
        letters += "?"
    gain = row.get(f"gain_over_{over}")
    return letters if pd.isna(gain) else f"{letters} {gain:.2f}x"


def _is_open(row: pd.Series) -> bool:
    """True where it is not sure that the best is better than the next."""
    sure = row.get("sure")
    return not pd.isna(sure) and bool(sure < SURE)


def _hover(row: pd.Series, quantizers: tuple[str, ...]) -> str:
    lines = [f"best: {row['best'] or 'none runs'}"]
    if not pd.isna(row.get("sure")):
        lines.append(f"better than {row['next_best']} with a chance of {sure_text(row['sure'])}")
    if not pd.isna(row.get("gain_low")):
        lines.append(f"gain, 80 % interval: {row['gain_low']:.2f}x to {row['gain_high']:.2f}x")
    for column in row.index:
        name = column.split(" ", 1)[-1]
        if " " in column and name in quantizers:
            lines.append(f"{name}: " + ("does not run" if pd.isna(row[column]) else f"{row[column]:,.5g}"))
    return hover_box(f"batch {row['batch']:,}, prompt {row['input_tokens']:,}", lines)
