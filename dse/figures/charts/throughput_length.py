"""Throughput against total length at a fixed batch (Oaken Figure 13)."""

from dse.figures.drawing import axes, rows
from dse.figures.drawing.chart import Chart, Panel
from dse.figures.registry import by_report, figure
from dse.figures.source import Source


@figure(
    "throughput_length",
    "How far does each system carry long requests at a fixed batch (Oaken Figure 13)?",
    by_report("lengths"),
    (*rows.POINT, *rows.MEMORY),
    order=50,
    key=("device", "system", "input_tokens", "output_tokens"),
    title="Throughput against total length",
)
def chart(source: Source) -> Chart:
    """A line per system over the total length, half prompt and half output, for the first model of the table."""
    table = source.table
    table = table[table["model"] == table["model"].iloc[0]]
    shown = rows.drawn(table)
    y = axes.log2("throughput", "tok/s", rows.rates(shown.table))
    y = rows.room_for_crosses(y, shown.table, "input_tokens")
    totals = [float(a + b) for a, b in zip(shown.table["input_tokens"], shown.table["output_tokens"], strict=True)]
    x = axes.log2_at("total length, half in and half out", "tokens", totals, in_k=True)
    series = rows.lines(
        shown.table, shown, lambda row: row["input_tokens"] + row["output_tokens"], "throughput_tokens_per_s", y
    )
    first = table.iloc[0]
    title = f"Throughput against length, {first['model']}, batch {first['batch']:,}"
    return Chart(
        title,
        panels=(Panel("", x, y, tuple(series)),),
        panel_height_pt=230,
        keys=rows.line_keys(shown.table),
        notes=rows.notes(shown),
    )
