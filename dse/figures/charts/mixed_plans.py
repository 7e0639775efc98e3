"""Plans by layer: error against bits beside single methods, and which method each layer got."""

from collections.abc import Sequence

from dse.core.errors import InputError, LimitError
from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Chart, Panel
from dse.figures.registry import by, figure
from dse.figures.source import Source
from dse.measure.mixed_plan import Mixed, frontier_table


def source_of(answer: Mixed) -> Source:
    """The table of plans of `dse mix` and what its figure says beside it."""
    of = answer.errors
    return Source(
        frontier_table(answer),
        about={
            "layers": [list(pair) for pair in answer.layers],
            "methods": list(of.methods),
            "objective": of.objective,
            "source": of.source,
            "synthetic": of.synthetic,
        },
    )


#: by objective: axis, unit and its size
_AXES = {
    "output_error": ("relative error, attention output", "%", axes.PERCENT),
    "mse": ("relative error, keys and values", "%", axes.PERCENT),
    "divergence": ("divergence", "nat", 1.0),
}


@figure(
    "mixed_plans",
    "Error against bits of plans by layer beside single methods, and each layer's method.",
    by("mix DIR ... --figure mixed_plans.csv", "mixed_plans"),
    ("kind", "method", "stored_bits", "error"),
    order=300,
    answer=Mixed,
    source_of=source_of,
)
def chart(source: Source) -> Chart:
    """Plans and single methods, and where `layers` stand beside the table the methods of keys and values by layer."""
    table, about = source.table, source.about
    names = [str(name) for name in table.loc[table["kind"] == "one method", "method"]]
    methods, layers = about.get("methods", names), [tuple(pair) for pair in about.get("layers", [])]
    if not layers and not table["error"].gt(0).any():
        raise InputError("error: must be above 0 in some row: the axis is logarithmic")
    if "methods" not in about and len(names) > style.MAX_SYSTEMS:
        raise LimitError(
            f"{len(names)} methods: a figure tells {style.MAX_SYSTEMS} apart: choose with --only method=A,B"
        )
    looks = style.looks(["mixed plans", *methods])
    shown = table[table["error"].gt(0)]
    hull, chosen = (shown[shown["kind"] == kind] for kind in ("mixed plans", "chosen plan"))
    texts = (f"{b:.4g} bit an element\nerror {e:.4g}" for b, e in zip(hull["stored_bits"], hull["error"], strict=True))
    plain = style.Style(style.BLACK, marker="")
    series = [marks.line("mixed plans", hull["stored_bits"], hull["error"], plain, texts)]
    for row in shown[shown["kind"] == "one method"].itertuples():
        text = f"{row.method} in all layers\n{row.stored_bits:.4g} bit an element\nerror {row.error:.4g}"
        series.append(marks.points(row.method, [row.stored_bits], [row.error], looks[row.method], [text]))
    for row in chosen.itertuples():
        text = f"chosen plan\n{row.stored_bits:.4g} bit an element\nerror {row.error:.4g}"
        look = style.Style(style.BLACK, marker="diamond")
        place = [row.stored_bits], [row.error]
        series.append(marks.points("chosen plan", *place, look, [text], opened=(True,), size=1.6))
    what, unit, size = _AXES[about.get("objective", "output_error")]
    panels = []
    if len(shown):
        x = axes.linear("stored bits", "bit/element", list(shown["stored_bits"]), n_ticks=8)
        panels.append(Panel("", x, axes.log10(what, unit, list(shown["error"]), size), tuple(series)))
    if layers:
        panels.append(_layers(layers, methods, looks))
    data = about.get("source", "data that the table does not name")
    notes = (
        f"Measured on {data}.",
        "Mixed plans: corners of the convex hull, each the least error of its bits; "
        "errors of layers and sides added as if independent.",
    )
    title = "Error against bits of plans by layer" + (", synthetic data" if about.get("synthetic") else "")
    return Chart(title, panels=tuple(panels), panel_height_pt=220, notes=notes)


def _layers(layers: Sequence[tuple[str, str]], methods: Sequence[str], looks: dict[str, style.Style]) -> Panel:
    used = [name for name in methods if any(name in pair for pair in layers)]
    x = axes.layers(range(len(layers)), 0.6)
    series = []
    for name in used:
        at = [(i, side) for i, pair in enumerate(layers) for side in (0, 1) if pair[side] == name]
        texts = (f"layer {i}, {('keys', 'values')[side]}: {name}" for i, side in at)
        series.append(marks.points(name, (i for i, _ in at), (1 - side for _, side in at), looks[name], texts))
    return Panel("Method by layer", x, axes.categories("side", ["values", "keys"]), tuple(series))
