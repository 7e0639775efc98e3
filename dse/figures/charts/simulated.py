"""A simulated run over time: what runs and waits, memory, tokens per second."""

import pandas as pd

from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.figures.drawing.style import Style
from dse.figures.registry import by, figure
from dse.figures.source import Source


def _line(table: pd.DataFrame, column: str, name: str, which: int) -> Series:
    return marks.line(name, table["time_s"], table[column], Style(style.STYLES[which].color), marker="")


@figure(
    "simulation",
    "A simulated run over time: requests, memory, tokens per second.",
    by("simulate ... --out DIR", "over_time"),
    (
        "time_s",
        "running",
        "waiting",
        "used_bytes",
        "free_bytes",
        "tokens_per_s",
        "device",
        "model",
        "quantizer",
        "batching",
        "admission",
    ),
    order=160,
)
def chart(source: Source) -> Chart:
    """Three panels over the time of the run; a row of the table is a moment."""
    table = source.table
    first = table.iloc[0]

    def time() -> Axis:
        return axes.linear("time", "s", table["time_s"])

    counts = [*table["running"], *table["waiting"]]
    memory = [*table["used_bytes"], float(first["free_bytes"])]
    panels = (
        Panel(
            "requests",
            time(),
            axes.linear("requests", "sequences", counts),
            (_line(table, "running", "requests running", 0), _line(table, "waiting", "requests waiting", 10)),
        ),
        Panel(
            "memory",
            time(),
            axes.linear("keys and values", "GB", memory, axes.GB),
            (
                _line(table, "used_bytes", "memory held by requests", 3),
                *([_line(table, "held_bytes", "with what is kept of prompts", 6)] if "held_bytes" in table else []),
                _line(table, "free_bytes", "memory limit", 7),
            ),
        ),
        Panel(
            "tokens",
            time(),
            axes.linear("throughput", "tok/s", table["tokens_per_s"]),
            (_line(table, "tokens_per_s", "tokens generated per second", 4),),
        ),
    )
    title = f"{first['device']}, {first['model']}, {first['quantizer']}, {first['batching']}, {first['admission']}"
    notes = (
        f"{len(table):,} moments of the run, evenly over its steps; throughput is the mean since the one before.",
        "The memory limit is what the weights leave of the usable memory.",
    )
    return Chart(title, panels=panels, panel_height_pt=95, notes=notes)
