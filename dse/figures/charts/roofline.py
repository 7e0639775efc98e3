"""The roofline of the devices with the decode operations on it."""

import pandas as pd

from dse.figures.drawing import axes, rows, style
from dse.figures.drawing.chart import Chart, Panel, Series
from dse.figures.registry import by_report, figure
from dse.figures.source import Source

#: the operations that multiply by weights, as the legend names them
LINEAR = "linear layers"


def _series(points: pd.DataFrame, operation: str, name: str, kind: str, **look: object) -> Series:
    part = points[points["operation"] == operation]
    texts = tuple(
        f"{row['label'] or name}\n{row['intensity_flops_per_byte']:,.4g} FLOP/B\n"
        f"{row['flops_per_s'] / axes.TERA_FLOPS:,.4g} TFLOP/s"
        for _, row in part.iterrows()
    )
    return Series(
        name,
        kind=kind,  # type: ignore[arg-type]
        x=tuple(float(v) for v in part["intensity_flops_per_byte"]),
        y=tuple(float(v) for v in part["flops_per_s"]),
        hover=texts,
        **look,  # type: ignore[arg-type]
    )


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
        linear = points[points["operation"] == "linear"]
        attention = points[points["operation"] == "attention"]
        series = [_series(points, "ceiling", "ceiling", "line", marker="", color=style.GRAY)]
        series.append(
            _series(
                points,
                "linear",
                LINEAR,
                "scatter",
                color=style.STYLES[places[LINEAR]].color,
                size=1.2,
                opened=(True,) * len(linear),
                labels=tuple(str(label).removeprefix("batch ") for label in linear["label"]),
            )
        )
        for label in attention["label"]:
            step = points[(points["operation"] == "attention") & (points["label"] == label)]
            look = style.STYLES[places[label]]
            series.append(
                _series(
                    step, "attention", f"attention, {label}", "scatter", color=look.color, marker=look.marker, size=0.75
                )
            )
        panels.append(Panel(f"{device}, {points['model'].iloc[0]}", x, y, tuple(series)))
    assumed = sorted({name for text in table["assumptions"] for name in str(text).split(", ") if name})
    return Chart(
        "Roofline of the decode operations",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=165,
        notes=(
            "Linear layers: FP16 weights, numbers are batches. Attention's intensity does not depend on the "
            "batch; dequantization is not counted.",
            f"Rests on assumed numbers: {', '.join(assumed)}." if assumed else "Rests on no assumed number.",
        ),
    )
