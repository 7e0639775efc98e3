"""Throughput of request traces in steady state against batch (Oaken Figure 14)."""

from dse.figures.drawing import rows
from dse.figures.drawing.chart import Chart
from dse.figures.registry import by_report, figure
from dse.figures.source import Source


@figure(
    "throughput_trace",
    "How much does each system gain on real requests, and how much more on long answers (Oaken Figure 14)?",
    by_report("traffic"),
    (*rows.POINT, *rows.MEMORY, "trace", "padding_factor"),
    order=55,
    key=("device", "system", "model", "trace", "batch"),
    title="Throughput of request traces",
)
def chart(source: Source) -> Chart:
    """A panel per model and trace, a line per system; hollow where fewer run at once, a cross where nothing fits."""
    table = source.table
    shown = rows.drawn(table)
    panels = []
    models, traces = rows.ordered(shown.table, "model")[:3], rows.ordered(shown.table, "trace")
    for model in models:
        for trace in traces:
            points = shown.table[(shown.table["model"] == model) & (shown.table["trace"] == trace)]
            panels.append(rows.by_batch(f"{model}, {trace}", points, shown, "at most"))
    first = shown.table.drop_duplicates("trace")
    lengths = "; ".join(
        f"{row['trace']}: {row['input_tokens']:,.0f} in, {row['output_tokens']:,.0f} out" for _, row in first.iterrows()
    )
    padded = shown.table[shown.table["padding_factor"] > 1]
    pads = (f"{padded['system'].iloc[0]} computes prompts padded to the longest of a batch.",) if len(padded) else ()
    return Chart(
        "Throughput of request traces in steady state",
        panels=tuple(panels),
        n_columns=len(traces),
        panel_height_pt=128,
        keys=rows.line_keys(shown.table),
        notes=(
            f"A finished request is replaced at once. Mean lengths in tokens. {lengths}.",
            *pads,
            *rows.mark_notes(shown.table, meaning="fewer requests than the batch fit, and so many run at once"),
            *rows.run_notes(shown.table),
            *rows.sure_notes(shown.table),
            *shown.notes,
            rows.assumption_note(shown.table),
            "Traces: moments of the Azure LLM inference trace 2023 (Microsoft, CC BY 4.0). Oaken's Figure 14 has"
            " BurstGPT's too, which is not shipped: `dse traffic FILE` and `dse simulate --trace FILE` read its file.",
        ),
    )
