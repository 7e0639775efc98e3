"""Fewer tokens against fewer bits: KV bytes of a request and throughput against context, a line per design."""

import pandas as pd

from dse.figures.drawing import axes, marks, rows
from dse.figures.drawing.chart import Chart, Panel, Series
from dse.figures.registry import by_report, figure
from dse.figures.source import Source

#: lines that differ by no more than this share everywhere are one line to the eye
CLOSE = 0.02


@figure(
    "tokens_bits",
    "Is it better to keep fewer tokens or fewer bits, and what do both give (SinkQ Table 7: 16 % of the prompt kept)?",
    by_report("tokens"),
    (*rows.POINT, *rows.MEMORY, "stored_tokens", "read_tokens", "peak_kv_bytes_per_sequence"),
    order=58,
    key=("device", "system", "input_tokens", "output_tokens"),
    title="Fewer tokens against fewer bits",
)
def chart(source: Source) -> Chart:
    """Two panels over the total length, a line per token policy and quantizer, for the first model of the table."""
    table = source.table
    table = table[table["model"] == table["model"].iloc[0]]
    shown = rows.drawn(table)
    points = shown.table
    totals = [float(a + b) for a, b in zip(points["input_tokens"], points["output_tokens"], strict=True)]
    x = axes.log2_at("total length", "tokens", totals, in_k=True)
    y = axes.log2("throughput", "tok/s", rows.rates(points))
    y = rows.room_for_crosses(y, points, "input_tokens")
    memory = axes.log2("KV cache of a request at its largest", "GB", points["peak_kv_bytes_per_sequence"], axes.GB)
    throughput = rows.lines(points, shown, _total, "throughput_tokens_per_s", y)
    first = table.iloc[0]
    return Chart(
        f"Fewer tokens against fewer bits, {first['model']} on {first['device']}, batch {first['batch']:,}, "
        f"{first['output_tokens']:,} tokens out",
        panels=(Panel("Memory", x, memory, tuple(_sizes(shown))), Panel("Throughput", x, y, tuple(throughput))),
        n_columns=2,
        panel_height_pt=230,
        keys=rows.line_keys(points),
        notes=(
            *rows.notes(shown),
            *_covered(shown),
            "token_policy: choosing, gathering and moving tokens is taken to cost no time. Accuracy is no part of this "
            "figure.",
        ),
    )


def _covered(shown: rows.Drawn) -> tuple[str, ...]:
    """Note on lines of the memory panel that coincide with an earlier one."""
    sizes = {
        system: list(map(float, points["peak_kv_bytes_per_sequence"]))
        for system, points in shown.table.groupby("system", sort=False)
    }
    texts = []
    for i, system in enumerate(shown.systems):
        for other in shown.systems[:i]:
            pairs = zip(sizes[system], sizes[other], strict=True)
            if all(abs(a / b - 1) <= CLOSE for a, b in pairs):
                texts.append(f"{system} lies on {other}")
                break
    return (f"In the memory panel (within {100 * CLOSE:.0f} %): {'; '.join(texts)}.",) if texts else ()


def _total(row: pd.Series) -> float:
    return float(row["input_tokens"] + row["output_tokens"])


def _sizes(shown: rows.Drawn) -> list[Series]:
    """The largest KV cache of a request over the total length, also where the batch or not one request fits."""
    series = []
    for system in shown.systems:
        points = [row for _, row in shown.table[shown.table["system"] == system].iterrows()]
        texts = (
            rows.hover(row, f"stored {row['stored_tokens']:,.0f}, read {row['read_tokens']:,.0f} tokens at the end")
            for row in points
        )
        sizes = [row["peak_kv_bytes_per_sequence"] for row in points]
        series.append(marks.line(system, map(_total, points), sizes, shown.style(system), texts))
    return series
