"""The roofline of the devices with the decode operations on it."""

from typing import Any

import pandas as pd

from dse.figures.drawing import axes, marks, rows, style
from dse.figures.drawing.chart import Chart, Panel
from dse.figures.registry import by_report, figure
from dse.figures.source import Source
from dse.model.results import rests_on

#: the operations that multiply by weights, as the legend names them
LINEAR = "linear layers"


def _at(part: pd.DataFrame, name: str) -> dict[str, Any]:
    """Places of operations and their hover texts."""
    texts = (
        f"{row['label'] or name}\n{row['intensity_flops_per_byte']:,.4g} FLOP/B\n"
        f"{row['flops_per_s'] / axes.TERA_FLOPS:,.4g} TFLOP/s"
        for _, row in part.iterrows()
    )
    return {"x": part["intensity_flops_per_byte"], "y": part["flops_per_s"], "hover": texts}


@figure(
    "roofline",
    "Which operations of a decode step are bound by bandwidth, and what do batching and quantization change?",
    by_report("roofline"),
    ("device", "model", "operation", "label", "intensity_flops_per_byte", "flops_per_s", "assumptions"),
    order=80,
    title="Roofline of the decode operations",
)
def chart(source: Source) -> Chart:
    """A panel per device: the ceiling, linear layers at several batches, attention with each quantizer."""
    table = source.table
    x = axes.log10("arithmetic intensity", "FLOP/B", [float(v) for v in table["intensity_flops_per_byte"]])
    y = axes.log10(
        "attainable",
        "TFLOP/s",
        [float(v) for v in (*table["flops_per_s"], 1.5 * table["flops_per_s"].max())],
        axes.TERA_FLOPS,
    )
    panels = []
    names = list(dict.fromkeys(table[table["operation"] == "attention"]["label"]))
    places = style.places([*names, LINEAR], rows.quantizer_places(table))
    for device in dict.fromkeys(table["device"]):
        points = table[table["device"] == device]
        ceiling, linear, attention = (
            points[points["operation"] == name] for name in ("ceiling", "linear", "attention")
        )
        batches = tuple(str(label).removeprefix("batch ") for label in linear["label"])
        look, opened = style.Style(style.STYLES[places[LINEAR]].color), (True,) * len(linear)
        series = [
            marks.line("ceiling", look=style.Style(style.GRAY, marker=""), **_at(ceiling, "ceiling")),
            marks.points(LINEAR, look=look, size=1.2, opened=opened, labels=batches, **_at(linear, LINEAR)),
        ]
        for label in attention["label"]:
            name, step = f"attention, {label}", attention[attention["label"] == label]
            series.append(marks.points(name, look=style.STYLES[places[label]], size=0.75, **_at(step, name)))
        panels.append(Panel(f"{device}, {points['model'].iloc[0]}", x, y, tuple(series)))
    return Chart(
        "Roofline of the decode operations",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=165,
        notes=(
            "Linear layers: FP16 weights, numbers are batches. Attention's intensity does not depend on the "
            "batch; dequantization is not counted.",
            rests_on(rows.assumed(table)),
        ),
    )
