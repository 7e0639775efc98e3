"""Throughput against batch, a panel per model (Oaken Figures 4 and 11)."""

from dse.figures.drawing import axes, rows
from dse.figures.drawing.chart import Chart, Panel
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
        y = axes.linear("throughput", "token/s", rows.rates(points))
        y = rows.room_for_crosses(y, points, "batch")
        x = axes.log2_at("batch", "sequences", [float(v) for v in points["batch"]])
        series = rows.lines(points, shown, lambda row: row["batch"], "throughput_tokens_per_s", y)
        panels.append(Panel(str(model), x, y, tuple(series)))
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
