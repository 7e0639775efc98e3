"""The operations of one decode step under a device's roofline."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dse.figures.drawing import axes, marks, rows, style
from dse.figures.drawing.chart import Chart, Panel, Series
from dse.figures.registry import by, figure
from dse.figures.source import Source

#: operation -> its name in the legend and its marker, of the rest `_PRODUCTS`; the color is the design's
_MARKERS = {"attention": ("attention", "circle"), "feed_forward": ("feed-forward", "triangle-up")}
_PRODUCTS = ("other products", "square")
#: span of the ceiling on both sides of the operations, as a factor
ROOM = 4.0
#: designs that are named at their marks
MAX_NAMED = 6


@figure(
    "operations",
    "Operations of a decode step under the device's roofline, at peak rates and calibrated.",
    by("point ... --out DIR", "operations"),
    (
        "device",
        "model",
        "quantizer",
        "model_kind",
        "stack",
        "operation",
        "batch",
        "seconds",
        "intensity_flops_per_byte",
        "flops_per_s",
        "ceiling_flops_per_s",
        "peak_flops_per_s",
        "bandwidth_bytes_per_s",
    ),
    order=230,
)
def chart(source: Source) -> Chart:
    """One panel from rows of `dse.questions.operations.decode_step`: hollow marks at peak rates, filled ones fitted.

    Roofs are those of the one device; dequantizing is in the marks. Marks tell operations, colors designs, which are
    named where attention is.
    """
    table, device, model = source.table, source.single("device"), source.single("model")
    places = style.places(list(dict.fromkeys(table["quantizer"])), rows.quantizer_places(table))
    roofs = _roofs(table)
    at = [*map(float, table["intensity_flops_per_byte"]), *(peak / rate for peak, rate in roofs)]
    ends = min(at) / ROOM, max(at) * ROOM
    lines = [_line(roof, i == 0, ends) for i, roof in enumerate(roofs)]
    x = axes.log10("arithmetic intensity", "FLOP/B", lines[0].x)
    tops = [1.5 * max(line.y) for line in lines]
    y = axes.log10("reached", "TFLOP/s", [*lines[0].y, *map(float, table["flops_per_s"]), *tops], axes.TERA_FLOPS)
    is_named = 1 < len(places) <= MAX_NAMED
    series = [*lines]
    for (operation, kind, quantizer), points in table.groupby(["operation", "model_kind", "quantizer"], sort=False):
        names = is_named and operation == "attention" and kind == table["model_kind"].iloc[-1]
        series.append(
            marks.points(
                f"{operation}, {quantizer}, {kind}",
                points["intensity_flops_per_byte"],
                points["flops_per_s"],
                style.Style(style.STYLES[places[quantizer]].color, marker=_looks(operation)[1]),
                map(_hover, points.to_dict("records")),
                opened=(kind == "ideal",) * len(points),
                labels=(str(quantizer), *[""] * (len(points) - 1)) if names else (),
                in_legend=False,
                size=1.3 if kind == "ideal" else 1.0,
            )
        )
    keys = dict.fromkeys(map(_looks, table["operation"]))
    said = rows.kernels_said(", ".join(table.loc[table["stack"].notna(), "assumptions"]))
    fitted = [name for name in dict.fromkeys(table["stack"]) if isinstance(name, str)]
    return Chart(
        f"Roofline: {model} on {device}",
        panels=(Panel("", x, y, tuple(series)),),
        panel_height_pt=260,
        keys=tuple(
            Series(name, kind="scatter", marker=marker, color=style.BLACK, is_note=True) for name, marker in keys
        ),
        notes=(
            "Hollow: at peak rates."
            + (f" Filled: {said[:1].lower()}{said[1:]} ({', '.join(fitted)})." if fitted else f" {NO_KERNELS}")
            + " Dequantizing that does not hide counts.",
        ),
    )


NO_KERNELS = "No kernels of this device were measured."


def _looks(operation: str) -> tuple[str, str]:
    return _MARKERS.get(operation, _PRODUCTS)


def _roofs(table: pd.DataFrame) -> list[tuple[float, float]]:
    """Roofs as peak FLOP/s and bytes a second."""
    columns = (table["peak_flops_per_s"], table["bandwidth_bytes_per_s"])
    return sorted({(float(f"{peak:.6g}"), float(f"{rate:.6g}")) for peak, rate in zip(*columns, strict=True)})


def _line(roof: tuple[float, float], is_first: bool, ends: tuple[float, float]) -> Series:
    """FLOP/s that a roof allows between two intensities."""
    peak, rate = roof
    x = (ends[0], peak / rate, ends[1])
    name, look = "peak rates", style.Style(style.BLACK, marker="")
    if not is_first:
        name = f"{rate / axes.TB:,.4g} TB/s, {peak / axes.TERA_FLOPS:,.4g} TFLOP/s"
        look = style.Style(style.BLACK, "dot", "")
    return marks.line(name, x, (min(peak, rate * at) for at in x), look, is_note=True)


def _hover(row: Mapping[str, Any]) -> str:
    share = row["flops_per_s"] / row["ceiling_flops_per_s"]
    name = row["operation"].replace("_", " ")
    return (
        f"{name}, {row['quantizer']}, batch {row['batch']:,}\n{row['intensity_flops_per_byte']:,.4g} FLOP/B\n"
        f"{row['flops_per_s'] / axes.TERA_FLOPS:,.4g} TFLOP/s, {100 * share:.3g} % of its roof\n"
        f"{row['seconds'] / axes.MILLISECOND:,.4g} ms a step"
    )
