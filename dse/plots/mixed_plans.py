"""Plans by layer: error against bits beside single methods, and which method each layer got; drawn by `dse mix`."""

from collections.abc import Sequence

import pandas as pd

from dse.plots import axes, style
from dse.plots.chart import Axis, Chart, Panel, Series

PERCENT = 0.01


def chart(
    table: pd.DataFrame,
    layers: Sequence[tuple[str, str]],
    methods: Sequence[str],
    objective: str,
    source: str,
    synthetic: bool = False,
) -> Chart:
    """`table` as `dse.mixed_plan.frontier_table` gives it; `layers`: the methods of keys and values by
    layer; none: not drawn."""
    looks = {name: style.STYLES[i % style.MAX_SYSTEMS] for i, name in enumerate(methods)}
    shown = table[table["error"].gt(0)]
    hull, chosen = (shown[shown["kind"] == kind] for kind in ("mixed plans", "chosen plan"))
    series = [Series(
        "mixed plans", "line", tuple(hull["stored_bits"]), tuple(hull["error"]), style.BLACK, marker="",
        hover=tuple(f"{b:.4g} bit an element\nerror {e:.4g}" for b, e in zip(hull["stored_bits"], hull["error"],
                                                                            strict=True)),
    )]  # fmt: skip
    for row in shown[shown["kind"] == "one method"].itertuples():
        look = looks[row.method]
        series.append(Series(
            row.method, "scatter", (row.stored_bits,), (row.error,), look.colour, marker=look.marker,
            hover=(f"{row.method} in all layers\n{row.stored_bits:.4g} bit an element\nerror {row.error:.4g}",),
        ))  # fmt: skip
    for row in chosen.itertuples():
        series.append(Series(
            "chosen plan", "scatter", (row.stored_bits,), (row.error,), style.BLACK, marker="diamond", opened=(True,),
            size=1.6, hover=(f"chosen plan\n{row.stored_bits:.4g} bit an element\nerror {row.error:.4g}",),
        ))  # fmt: skip
    what = "relative error, attention output" if objective == "output_error" else "relative error, keys and values"
    panels = []
    if len(shown):
        x = axes.linear("stored bits", "bit/element", list(shown["stored_bits"]), n_ticks=8)
        panels.append(Panel("", x, axes.log10(what, "%", list(shown["error"]), PERCENT), tuple(series)))
    if layers:
        panels.append(_layers(layers, methods, looks))
    notes = (f"Measured on {source}.", "Mixed plans: corners of the convex hull, each the least error of its bits; "
             "errors of layers and sides added as if independent.")  # fmt: skip
    title = "Error against bits of plans by layer" + (", synthetic data" if synthetic else "")
    return Chart(title, tuple(panels), panel_height_pt=220, notes=notes)


def _layers(layers: Sequence[tuple[str, str]], methods: Sequence[str], looks: dict[str, style.Style]) -> Panel:
    used = [name for name in methods if any(name in pair for pair in layers)]
    every = -(-len(layers) // 12)
    x = Axis("layer", "index", -0.6, len(layers) - 0.4, tuple((float(i), str(i)) for i in range(0, len(layers), every)))
    series = []
    for name in used:
        at = [(i, side) for i, pair in enumerate(layers) for side in (0, 1) if pair[side] == name]
        series.append(Series(
            name, "scatter", tuple(float(i) for i, _ in at), tuple(float(1 - side) for _, side in at),
            looks[name].colour, marker=looks[name].marker,
            hover=tuple(f"layer {i}, {('keys', 'values')[side]}: {name}" for i, side in at),
        ))  # fmt: skip
    return Panel("Method by layer", x, axes.categories("side", ["values", "keys"]), tuple(series))
