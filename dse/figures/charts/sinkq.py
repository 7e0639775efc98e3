"""SinkQ's Figure 3 as modelled: throughput and peak memory against batch, peak memory against length."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from dse.core.errors import InputError
from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.figures.registry import by_validation, figure
from dse.figures.source import Source
from dse.specs import catalog
from dse.validate.figures import DEVICE, LENGTH_DEVICE


def _lines(table: pd.DataFrame, x: str, y: str, hover: Callable[[Any], str]) -> tuple[Series, ...]:
    groups = {method: table[table["method"] == method] for method in dict.fromkeys(table["method"])}
    looks = style.of_methods(list(groups))
    return tuple(
        marks.line(method, points[x], points[y], looks[method], map(hover, points.itertuples()))
        for method, points in groups.items()
    )


def _gigabytes(values: pd.Series) -> Axis:
    return axes.linear("peak memory", "GB", map(float, values), axes.GB)


@figure(
    "sinkq_figure_3",
    "SinkQ's Figure 3 as modelled: throughput and peak memory by batch and length.",
    by_validation("sinkq-figure-3-batch"),
    ("method", "batch", "throughput_tokens_per_s", "peak_memory_bytes", "over_kivi"),
    order=500,
)
def chart(source: Source) -> Chart:
    """Four panels: throughput, over KIVI's too since the lines lie close; memory by batch and by length.

    Beside the table by batch stands sinkq-figure-3-length.
    """
    batches, lengths = source.table, source.other("sinkq-figure-3-length")
    if lengths is None:
        raise InputError("sinkq-figure-3-length.csv: must stand beside: made by `dse validate report --out DIR`")
    by_batch, by_length = catalog.device(DEVICE).name, f"{catalog.device(LENGTH_DEVICE).name}, batch 1"
    at_batch = axes.log2("batch", "sequences", map(float, batches["batch"]))
    rate = axes.linear("throughput", "tok/s", map(float, batches["throughput_tokens_per_s"]))
    length = axes.linear("length", "thousand tokens", map(float, lengths["n_tokens"]), 1000, n_ticks=4)

    def of_batch(row: Any) -> str:
        return (
            f"{row.method}, batch {row.batch:,}\n{row.throughput_tokens_per_s:,.0f} tok/s\n"
            f"{row.peak_memory_bytes / axes.GB:.4g} GB\n{row.over_kivi:.3f} of KIVI"
        )

    def of_length(row: Any) -> str:
        return f"{row.method}, {row.n_tokens:,} tokens\n{row.peak_memory_bytes / axes.GB:.4g} GB"

    over = batches.dropna(subset=["over_kivi"])
    share = axes.around("throughput over KIVI's", "times", list(over["over_kivi"]))
    panels = (
        Panel(f"(a) {by_batch}", at_batch, rate, _lines(batches, "batch", "throughput_tokens_per_s", of_batch)),
        Panel(f"(a) over KIVI, {by_batch}", at_batch, share, _lines(over, "batch", "over_kivi", of_batch)),
        Panel(
            f"(b) {by_batch}",
            at_batch,
            _gigabytes(batches["peak_memory_bytes"]),
            _lines(batches, "batch", "peak_memory_bytes", of_batch),
        ),
        Panel(
            f"(c) {by_length}",
            length,
            _gigabytes(lengths["peak_memory_bytes"]),
            _lines(lengths, "n_tokens", "peak_memory_bytes", of_length),
        ),
    )
    return Chart(
        "SinkQ Figure 3, as modelled",
        panels=panels,
        n_columns=2,
        panel_height_pt=130,
        notes=(
            "Lines end at the largest batch or length that fits at once. Peak memory: weights, keys and values, "
            "activations. The paper draws its values and prints only what stands in the table.",
        ),
    )
