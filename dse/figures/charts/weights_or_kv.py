"""Gain from quantizing the weights, and from quantizing keys and values (Oaken Figure 5(b))."""

from dse.figures.drawing import axes, marks, rows, style, whiskers
from dse.figures.drawing.chart import Chart, Panel, Series
from dse.figures.registry import by_report, figure
from dse.figures.source import Source


@figure(
    "weights_or_kv",
    "What does quantizing the weights bring, what the keys and values, at which batch (Oaken Figure 5(b))?",
    by_report("weights"),
    rows.POINT,
    order=40,
    key=("device", "system", "batch"),
    title="Quantizing weights or keys and values",
)
def chart(source: Source) -> Chart:
    """Grouped bars of throughput over the batch, a panel per device."""
    table = source.table
    table = rows.with_system(table)
    systems = rows.ordered(table, "system")[:4]
    table, batches, left_out = rows.few_batches(table)
    x = axes.categories("batch", [axes.count_text(batch) for batch in batches], "sequences")
    width = 0.8 / len(systems)
    panels = []
    for device in rows.ordered(table, "device"):
        points = table[table["device"] == device]
        known = points.dropna(subset=["throughput_tokens_per_s"]).to_dict("records")
        reached = [end for row in known for end in whiskers.ends(row, "throughput_tokens_per_s") or ()]
        y = axes.linear("throughput", "tok/s", [*reached, *(row["throughput_tokens_per_s"] for row in known)])
        series: list[Series] = []
        for i, system in enumerate(systems):
            good = points[(points["system"] == system) & points["feasible"]]
            places = tuple(batches.index(int(batch)) + (i - (len(systems) - 1) / 2) * width for batch in good["batch"])
            heights = tuple(float(v) for v in good["throughput_tokens_per_s"])
            texts = (rows.hover(row) for _, row in good.iterrows())
            series.append(marks.bars(system, places, heights, style.FILLS[i], texts, kind="bar", width=width))
            for place, row in zip(places, good.to_dict("records"), strict=True):
                series += whiskers.upright(place, whiskers.ends(row, "throughput_tokens_per_s"))
            waits = [bool(row["running_batch"] < row["batch"]) for _, row in good.iterrows()]
            over = tuple(place for place, wait in zip(places, waits, strict=True) if wait)
            tops = tuple(top + 0.02 * y.high for top, wait in zip(heights, waits, strict=True) if wait)
            if over:
                series.append(style.mark(style.KEY_NOT_AT_ONCE, over, tops, 0.6))
        panels.append(Panel(str(device), x, y, tuple(series)))
    first = table.iloc[0]
    lengths = f"{axes.tokens_text(int(first['input_tokens']))} in, {axes.tokens_text(int(first['output_tokens']))} out"
    return Chart(
        f"Quantizing weights or keys and values, {first['model']}, {lengths}",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=150,
        keys=rows.mark_keys(table),
        notes=(
            *rows.mark_notes(table),
            *rows.kernel_notes(table, "Not facts"),
            *rows.sure_notes(table),
            *left_out,
            rows.assumption_note(table),
        ),
    )
