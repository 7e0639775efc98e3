"""Memory of a few systems against batch or length, up to what the device has (NQKV Figures 8 and 9)."""

import pandas as pd

from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Chart, Panel
from dse.figures.registry import by_validation, figure
from dse.figures.source import Source
from dse.validate.papers import FIGURE_INPUT_TOKENS, FIGURE_LENGTH_BATCH, FIGURE_MODEL

#: distance of the crosses above the capacity, as a share of it
CROSS_STEP = 0.045


WHOLE = (
    "SmoothQuant and NQKV run W8A8. Weights, keys and values, activations of the whole prompt (logits included), FP16 "
    "workspace of one layer."
)
_COLUMNS = ("system", "batch", "input_tokens", "memory_bytes", "capacity_bytes", "fits")


@figure(
    "nqkv_figure_8", "Peak memory against batch (NQKV Figure 8).", by_validation("nqkv_figure_8"), _COLUMNS, order=510
)
def against_batch(source: Source) -> Chart:
    """Over the batch, at the prompt length of the paper."""
    title = f"Memory against batch, {FIGURE_MODEL} on an A100, {FIGURE_INPUT_TOKENS} tokens in (NQKV Figure 8)"
    return _chart(title, "batch", "sequences", source.table, WHOLE)


@figure(
    "nqkv_figure_9",
    "Peak memory against prompt length (NQKV Figure 9).",
    by_validation("nqkv_figure_9"),
    _COLUMNS,
    order=520,
)
def against_length(source: Source) -> Chart:
    """Over the prompt, at a batch that the paper does not state."""
    title = f"Memory against prompt length, {FIGURE_MODEL} on an A100, batch {FIGURE_LENGTH_BATCH} (NQKV Figure 9)"
    return _chart(title, "input_tokens", "tokens", source.table, f"{WHOLE} The paper does not state the batch.")


def _chart(title: str, column: str, unit: str, table: pd.DataFrame, note: str) -> Chart:
    """One panel: a line per system over `column`, and above the capacity a cross for what does not fit.

    Columns: system, `column`, memory_bytes, capacity_bytes, fits.
    """
    systems = list(dict.fromkeys(table["system"]))
    capacity = float(table["capacity_bytes"].iloc[0])
    name = "prompt" if column == "input_tokens" else column
    x = axes.log2_at(name, unit, [float(n) for n in table[column]], unit == "tokens")
    y = axes.linear("peak memory", "GB", [capacity * (1 + CROSS_STEP * (len(systems) + 0.5))], axes.GB)
    series, looks = [], style.of_methods(systems)
    for i, system in enumerate(systems):
        points, look = table[table["system"] == system], looks[system]
        good, bad = points[points["fits"]], points[~points["fits"]]
        texts = _texts(good, column, unit)
        series.append(marks.line(system, good[column], good["memory_bytes"], look, texts))
        if len(bad):
            height = capacity * (1 + CROSS_STEP * (i + 1))
            cross = style.Style(look.color, marker="x-thin")
            texts, unnamed = _texts(bad, column, unit), {"is_note": True, "in_legend": False}
            heights = (height,) * len(bad)
            series.append(marks.points(style.OUT_OF_MEMORY, bad[column], heights, cross, texts, **unnamed))
    held = f"capacity {capacity / axes.GB:,.4g} GB"
    series.append(marks.rule(held, x, capacity, style.VERMILLION, is_note=False))
    return Chart(
        title,
        panels=(Panel("", x, y, tuple(series)),),
        panel_height_pt=200,
        keys=(style.KEY_OUT_OF_MEMORY,),
        notes=(f"Crosses above the capacity: out of memory, in the order of the legend. {note}",),
    )


def _texts(points: pd.DataFrame, column: str, unit: str) -> tuple[str, ...]:
    return tuple(
        f"{row['system']}, {row[column]:,} {unit}\nneeds {row['memory_bytes'] / axes.GB:,.4g} GB"
        for _, row in points.iterrows()
    )
