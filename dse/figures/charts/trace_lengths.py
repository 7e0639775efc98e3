"""Lengths of prompts and answers in the shipped traces."""

from dse.figures.drawing import axes, marks, rows, style
from dse.figures.drawing.chart import Chart, Panel
from dse.figures.registry import by_report, figure
from dse.figures.source import Source


@figure(
    "trace_lengths",
    "How long are the prompts and answers that real services see?",
    by_report("traffic_lengths"),
    ("trace", "share", "input_tokens", "output_tokens", "source", "licence"),
    order=57,
    title="Lengths of real requests",
)
def chart(source: Source) -> Chart:
    """Share of the requests that are at most so long: a panel for prompts and one for answers, a line per trace."""
    table = source.table
    y = axes.shares("requests at most so long", 25, high=1.04)
    panels = []
    for title, column in (("prompts", "input_tokens"), ("answers", "output_tokens")):
        x = axes.log2("length", "tokens", [float(n) for n in table[column]])
        series = []
        for i, trace in enumerate(rows.ordered(table, "trace")):
            cdf = table[table["trace"] == trace]
            texts = (f"{row['share']:.2%} have at most {row[column]:,} tokens" for _, row in cdf.iterrows())
            series.append(marks.line(str(trace), cdf[column], cdf["share"], style.STYLES[i], texts, marker=""))
        panels.append(Panel(title, x, y, tuple(series)))
    first = table.iloc[0]
    return Chart(
        "Lengths of the requests of traces",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=150,
        notes=("Rests on no assumed number.", f"Quantiles of {first['source']}. {first['licence']}."),
    )
