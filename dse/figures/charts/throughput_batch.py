"""Throughput against batch, a panel per model (Oaken Figures 4 and 11)."""

from dse.figures.drawing import axes, rows
from dse.figures.drawing.chart import Chart
from dse.figures.registry import by_report, figure
from dse.figures.source import Source


@figure(
    "throughput_batch",
    "Which system generates most tokens a second at which batch, and where does memory stop it (Oaken Figures 4, 11)?",
    by_report("results"),
    (*rows.POINT, *rows.MEMORY),
    order=20,
    key=("device", "system", "model", "batch"),
    title="Throughput against batch",
)
def chart(source: Source) -> Chart:
    """A line per system; hollow where the batch does not fit at once, a cross where nothing fits."""
    table = source.table
    shown = rows.drawn(table)
    panels = []
    for model in rows.ordered(shown.table, "model"):
        points = shown.table[shown.table["model"] == model]
        panels.append(rows.by_batch(str(model), points, shown, "sequences"))
    first = shown.table.iloc[0]
    lengths = (
        f"{axes.tokens_text(int(first['input_tokens']))} tokens in, {axes.tokens_text(int(first['output_tokens']))} out"
    )
    return Chart(
        f"Throughput against batch, {lengths}",
        panels=tuple(panels),
        n_columns=3,
        panel_height_pt=128,
        keys=rows.line_keys(shown.table),
        notes=rows.notes(shown),
    )
