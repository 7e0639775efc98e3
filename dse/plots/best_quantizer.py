"""The best quantizer at each batch and prompt length, with its gain; drawn by `dse ask map`."""

import pandas as pd

from dse.plots import axes, style
from dse.plots.chart import Chart, Panel, Series

#: fills that dark letters can be read on
COLOURS = ("#E8E8E8", "#A6D4F0", "#F6CF7F", "#8FD3BC", "#E7BFD6", "#F2A97E", "#9DB8D9", "#C9C9C9", "#D6E3A0", "#CDBEE8")
#: a letter for each quantizer, so that cells are told apart without colour
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def chart(table: pd.DataFrame, quantizers: tuple[str, ...], over: str, title: str, notes: tuple[str, ...]) -> Chart:
    """Cells coloured by the best quantizer; columns batch, input_tokens, best, gain_over_<over> and every measure."""
    batches, inputs = (sorted(set(table[column])) for column in ("batch", "input_tokens"))
    x = axes.categories("batch", [axes.count_text(batch) for batch in batches], "sequences")
    y = axes.categories("prompt", [axes.tokens_text(n) for n in inputs], "tokens")
    first = table["best"].str.split(" = ").str[0].fillna("")
    series = []
    for name in (*quantizers, ""):
        rows = table[first == name]
        if rows.empty:
            continue
        i = quantizers.index(name) if name else -1
        centre = tuple(float(inputs.index(n)) for n in rows["input_tokens"])
        series.append(Series(
            _name(i, quantizers) if name else "none runs", "bar",
            tuple(float(batches.index(batch)) for batch in rows["batch"]), (1.0,) * len(rows),
            COLOURS[i % len(COLOURS)] if name else "#FFFFFF", base=tuple(at - 0.5 for at in centre), width=1.0,
            hover=tuple(_hover(row, quantizers) for _, row in rows.iterrows()), hatch="" if name else "x",
            in_legend=False,
        ))  # fmt: skip
    series.append(Series(
        "gain", "scatter", tuple(float(batches.index(batch)) for batch in table["batch"]),
        tuple(float(inputs.index(n)) for n in table["input_tokens"]), style.BLACK, marker="",
        labels=tuple(_label(row, quantizers, over) for _, row in table.iterrows()), in_legend=False, is_note=True,
    ))  # fmt: skip
    keys = tuple(Series(_name(i, quantizers), "bar", colour=COLOURS[i % len(COLOURS)]) for i in range(len(quantizers)))
    if (first == "").any():
        keys = (*keys, Series("none runs", "bar", colour="#FFFFFF", hatch="x"))
    height = max(120.0, 26.0 * len(inputs))
    return Chart(title, (Panel("", x, y, tuple(series)),), panel_height_pt=height, keys=keys, notes=notes)


def _name(i: int, quantizers: tuple[str, ...]) -> str:
    return f"{LETTERS[i % 26]}  {quantizers[i]}"


def _label(row: pd.Series, quantizers: tuple[str, ...], over: str) -> str:
    """The letters of the best, and how many times as good as `over` they are."""
    if not row["best"]:
        return "-"
    letters = "=".join(LETTERS[quantizers.index(name) % 26] for name in row["best"].split(" = "))
    gain = row.get(f"gain_over_{over}")
    return letters if pd.isna(gain) else f"{letters} {gain:.2f}x"


def _hover(row: pd.Series, quantizers: tuple[str, ...]) -> str:
    lines = [f"batch {row['batch']:,}, prompt {row['input_tokens']:,}", f"best: {row['best'] or 'none runs'}"]
    for column in row.index:
        name = column.split(" ", 1)[-1]
        if " " in column and name in quantizers:
            lines.append(f"{name}: " + ("does not run" if pd.isna(row[column]) else f"{row[column]:,.5g}"))
    return "\n".join(lines)
