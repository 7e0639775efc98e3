"""The operations of one decode step under a device's roofline."""

import pandas as pd

from dse.figures.drawing import axes, marks, rows, style
from dse.figures.drawing.chart import Chart, Panel, Series
from dse.figures.registry import by, figure
from dse.figures.source import Source

#: operation -> its name in the figure and its marker; the color is the quantizer's
MARKERS = {
    "attention": ("attention", "circle"),
    "qkv": ("QKV", "square"),
    "output_projection": ("output projection", "diamond"),
    "feed_forward": ("feed-forward", "triangle-up"),
    "head": ("head", "triangle-down"),
    "layers": ("layers", "pentagon"),
}
#: span of the ceiling on both sides of the operations, as a factor
ROOM = 4.0


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

    The ceiling is that of the one device. Marks tell operations, colors quantizers.
    """
    table, device, model = source.table, source.single("device"), source.single("model")
    peak_flops, bandwidth = (float(table[name].iloc[0]) for name in ("peak_flops_per_s", "bandwidth_bytes_per_s"))
    places = style.places(list(dict.fromkeys(table["quantizer"])), rows.quantizer_places(table))
    ridge = peak_flops / bandwidth
    at = [float(v) for v in table["intensity_flops_per_byte"]]
    low, high = min([*at, ridge]) / ROOM, max([*at, ridge]) * ROOM
    line_x = (low, ridge, high)
    line_y = tuple(min(peak_flops, bandwidth * x) for x in line_x)
    x = axes.log10("arithmetic intensity", "FLOP/B", line_x)
    reached = [float(v) for v in table["flops_per_s"]]
    y = axes.log10("reached", "TFLOP/s", [*line_y, *reached, 1.5 * peak_flops], axes.TERA_FLOPS)
    series = [marks.line("peak rates", line_x, line_y, style.Style(style.BLACK, marker=""), is_note=True)]
    series += _dequantizing(table, places, line_x)
    named: set[str] = set()
    for operation in dict.fromkeys(table["operation"]):
        title, marker = MARKERS.get(operation, (operation.replace("_", " "), "cross"))
        for kind in ("calibrated", "ideal"):
            for quantizer, place in places.items():
                points = table[(table["operation"] == operation) & (table["model_kind"] == kind)]
                points = points[points["quantizer"] == quantizer]
                # products with weights are the same for all quantizers: named once
                name = f"{title}, {quantizer}" if operation == "attention" and len(places) > 1 else title
                labels = (name, *[""] * (len(points) - 1)) if len(points) and name not in named else ()
                named |= {name} if labels else set()
                series.append(
                    marks.points(
                        f"{title}, {quantizer}, {kind}",
                        points["intensity_flops_per_byte"],
                        points["flops_per_s"],
                        style.Style(style.STYLES[place].color, marker=marker),
                        (_hover(row, title) for _, row in points.iterrows()),
                        opened=(kind == "ideal",) * len(points),
                        labels=labels,
                        in_legend=False,
                        size=1.3 if kind == "ideal" else 1.0,
                    )
                )
    said = rows.kernels_said(", ".join(table.loc[table["stack"].notna(), "assumptions"]))
    fitted = [name for name in dict.fromkeys(table["stack"]) if isinstance(name, str)]
    return Chart(
        f"Operations of a decode step: {model} on {device}",
        panels=(Panel("", x, y, tuple(series)),),
        panel_height_pt=260,
        notes=(
            "Hollow: at the device's peak rates, on the ceiling by definition."
            + (
                f" Filled: {said[:1].lower()}{said[1:]} ({', '.join(fitted)})."
                if fitted
                else " No kernels of this device were measured."
            ),
            "Products with weights move with the batch that runs at once. Dashed: what dequantizing keys and values "
            "allows attention, where that is below the bandwidth; it runs beside the reading.",
        ),
    )


def _dequantizing(table: pd.DataFrame, places: dict[str, int], x: tuple[float, ...]) -> list[Series]:
    """A ceiling a quantizer: FLOP/s of attention at the rate at which its stored bytes are dequantized."""
    if "dequantize_bytes_per_s" not in table:
        return []
    rates = table[table["dequantize_bytes_per_s"].notna() & (table["dequantize_bytes_per_s"] > 0)]
    series = []
    for quantizer, rows_of in rates.groupby("quantizer", sort=False):
        row = rows_of.iloc[-1]  # calibrated, where there is such
        rate, bandwidth, peak = (
            float(row[name]) for name in ("dequantize_bytes_per_s", "bandwidth_bytes_per_s", "peak_flops_per_s")
        )
        if rate < bandwidth:
            look = style.Style(style.STYLES[places[str(quantizer)]].color, "dash", "")
            reached = [min(peak, rate * at) for at in x]
            name = f"dequantizing, {quantizer}"
            series.append(marks.line(name, x, reached, look, is_note=True, in_legend=False))
    return series


def _hover(row: pd.Series, name: str) -> str:
    share = row["flops_per_s"] / row["ceiling_flops_per_s"]
    return (
        f"{name}, {row['quantizer']}, batch {row['batch']:,}\n{row['intensity_flops_per_byte']:,.4g} FLOP/B\n"
        f"{row['flops_per_s'] / axes.TERA_FLOPS:,.4g} TFLOP/s, {100 * share:.3g} % of the ceiling\n"
        f"{row['seconds'] / axes.MILLISECOND:,.4g} ms a step"
    )
