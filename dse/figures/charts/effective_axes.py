"""Effective bandwidth against effective capacity with throughput as color (Oaken Figure 1)."""

from dataclasses import replace
from typing import Any

from dse.figures.drawing import axes, rows, style
from dse.figures.drawing.chart import Chart, ColorScale, Panel, Series
from dse.figures.registry import by_report, figure
from dse.figures.source import Source

#: the model shown, where the table has it; else its first
MODEL = "llama2-13b"
#: the mark of a batch that does not fit at once; the filling of a symbol is taken by the color scale
DOT = Series(style.NOT_AT_ONCE, kind="scatter", size=0.4, opened=(True,), is_note=True)


@figure(
    "effective_axes",
    "Which mix of bandwidth, capacity and bit-width serves the model best (Oaken Figure 1)?",
    by_report("plane"),
    (*rows.POINT, "effective_bandwidth_bytes_per_s", "effective_capacity_bytes"),
    order=10,
    key=("device", "system", "model", "batch"),
    title="Effective bandwidth against effective capacity",
)
def chart(source: Source) -> Chart:
    """A mark per system at the largest batch; the color is its throughput, a cross means that nothing fits."""
    table = source.table
    models = rows.ordered(table, "model")
    model = MODEL if MODEL in models else models[0]
    shown = rows.drawn(table[(table["batch"] == table["batch"].max()) & (table["model"] == model)])
    systems = shown.table.drop_duplicates("system")
    rates = systems["throughput_tokens_per_s"].dropna()
    colors = ColorScale(axes.linear("throughput", "token/s", rates)) if len(rates) else None
    x = axes.log2("effective capacity", "GB", systems["effective_capacity_bytes"], axes.GB)
    y = axes.log2("effective bandwidth", "TB/s", systems["effective_bandwidth_bytes_per_s"], axes.TB)
    series: list[Series] = []
    dots: list[Series] = []
    taken: dict[tuple[float, float], int] = {}
    for _, row in systems.iterrows():
        at = (float(row["effective_capacity_bytes"]), float(row["effective_bandwidth_bytes_per_s"]))
        taken[at] = taken.get(at, 0) + 1
        place: dict[str, Any] = {"x": at[:1], "y": at[1:], "hover": (rows.hover(row),)}
        look: dict[str, Any] = {"marker": shown.style(row["system"]).marker, "size": 1.7 * 0.68 ** (taken[at] - 1)}
        if row["feasible"]:
            rate = (float(row["throughput_tokens_per_s"]),)
            series.append(Series(row["system"], kind="scatter", values=rate, **look, **place))
            if row["running_batch"] < row["batch"]:
                dots.append(replace(DOT, in_legend=False, **place))
        else:
            series.append(Series(row["system"], kind="scatter", opened=(True,), **look, **place))
            dots.append(replace(style.KEY_OUT_OF_MEMORY, in_legend=False, **place))
    keys = tuple(DOT if key is style.KEY_NOT_AT_ONCE else key for key in rows.mark_keys(systems))
    return Chart(
        f"Effective bandwidth against effective capacity, {model}, batch {systems['batch'].max():,}",
        panels=(Panel("", x, y, (*series, *dots)),),
        panel_height_pt=230,
        keys=keys,
        colors=colors,
        notes=(
            "Effective: times 16 / effective bits, what FP16 keys and values would need; of memories that compute, the "
            "bandwidth inside. "
            "Marks inside marks: same place.",
            *rows.mark_notes(systems, "White dots"),
            *shown.notes,
            rows.assumption_note(systems),
        ),
    )
