"""Weights and KV bytes against batch, beside the capacities (Oaken Figure 5(a), NQKV Figures 1 and 2)."""

import pandas as pd

from dse.figures.drawing import axes, marks, rows
from dse.figures.drawing.chart import Chart, Dash, Panel
from dse.figures.registry import by_report, figure
from dse.figures.source import Source

#: quantizers shown first, where the table has them; then its others, two in all
PREFERRED = ("fp16", "oaken")
#: the model shown, where the table has it; else its first
MODEL = "llama2-13b"
_LINES: tuple[Dash, ...] = ("dash", "dot", "dashdot")


@figure(
    "memory_batch",
    "At which batch do keys and values outgrow the weights and the memory (Oaken Figure 5(a), NQKV Figures 1 and 2)?",
    by_report("results"),
    (
        "device",
        "model",
        "quantizer",
        "batch",
        "input_tokens",
        "output_tokens",
        "stored_bits",
        "kv_bytes",
        "weight_bytes",
        "capacity_bytes",
        "assumptions",
    ),
    order=30,
    title="Weights and KV cache against batch",
)
def chart(source: Source) -> Chart:
    """Stacked bars of weights and of the whole batch's keys and values at the final length, a panel per quantizer."""
    table = source.table
    table = rows.with_system(table)
    models = rows.ordered(table, "model")
    model = MODEL if MODEL in models else models[0]
    table = table[table["model"] == model]
    names = rows.ordered(table, "quantizer")
    chosen = sorted(names, key=lambda name: PREFERRED.index(name) if name in PREFERRED else len(PREFERRED))[:2]
    one_each = table[table["quantizer"].isin(chosen)].drop_duplicates(["quantizer", "batch"])
    sizes = table.drop_duplicates("capacity_bytes").sort_values("capacity_bytes")["capacity_bytes"]
    capacities = [float(size) for size in sizes][:3]
    one_each, batches, left_out = rows.few_batches(one_each)
    x = axes.categories("batch", [axes.count_text(batch) for batch in batches], "sequences")
    tops = [float(a + b) for a, b in zip(one_each["weight_bytes"], one_each["kv_bytes"], strict=True)]
    y = axes.linear("memory", "GB", [*tops, *capacities], axes.GB)
    panels = []
    for name in chosen:
        parts = one_each[one_each["quantizer"] == name]
        places = tuple(float(batches.index(int(batch))) for batch in parts["batch"])
        parts_of = {"weights": parts["weight_bytes"], "keys and values": parts["kv_bytes"]}
        hover = tuple(
            f"batch {row['batch']}\nweights {row['weight_bytes'] / axes.GB:,.4g} GB\n"
            f"keys and values {row['kv_bytes'] / axes.GB:,.4g} GB"
            for _, row in parts.iterrows()
        )
        bars = marks.stacked(parts_of, places, lambda _, hover=hover: hover, 0.62, "bar")  # type: ignore[misc]
        lines = [
            marks.rule(
                f"capacity {size / axes.GB:,.4g} GB",
                x,
                size,
                dash=dash,
                is_note=False,
                hover=(_devices(table, size),) * 2,
            )
            for size, dash in zip(capacities, _LINES, strict=False)
        ]
        panels.append(Panel(f"KV {name}, {parts['stored_bits'].iloc[0]:.3g} bits stored", x, y, (*bars, *lines)))
    held = "; ".join(f"{size / axes.GB:,.4g} GB: {_devices(table, size)}" for size in capacities)
    first = table.iloc[0]
    length = axes.tokens_text(int(first["input_tokens"] + first["output_tokens"]))
    return Chart(
        f"Weights and KV cache against batch, {model}, {length} tokens a sequence",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=150,
        notes=(
            *left_out,
            f"Capacities. {held}.",
            f"Exact sizes from the model's shape. {rows.assumption_note(table, ('memory_capacity',))}",
        ),
    )


def _devices(table: pd.DataFrame, size: float) -> str:
    return ", ".join(str(name) for name in rows.ordered(table[table["capacity_bytes"] == size], "device"))
