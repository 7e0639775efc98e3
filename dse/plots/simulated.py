"""A simulated run over time: what runs and waits, memory, tokens per second. Drawn by `dse simulate --out`."""

import pandas as pd

from dse.plots import axes, style
from dse.plots.chart import Axis, Chart, Panel, Series


def _line(table: pd.DataFrame, column: str, name: str, which: int) -> Series:
    look = style.STYLES[which]
    x, y = (tuple(float(v) for v in table[of]) for of in ("time_s", column))
    return Series(name, "line", x=x, y=y, colour=look.colour, marker="")


def chart(table: pd.DataFrame) -> Chart:
    """Three panels over the time of the run; a row of the table is a moment."""
    first = table.iloc[0]

    def time() -> Axis:
        return axes.linear("time", "s", table["time_s"])

    counts = [*table["running"], *table["waiting"]]
    memory = [*table["used_bytes"], float(first["free_bytes"])]
    panels = (
        Panel("requests", time(), axes.linear("requests", "sequences", counts),
              (_line(table, "running", "requests running", 0), _line(table, "waiting", "requests waiting", 10))),
        Panel("memory", time(), axes.linear("keys and values", "GB", memory, axes.GB),
              (_line(table, "used_bytes", "memory held by requests", 3),
               _line(table, "free_bytes", "memory limit", 7))),
        Panel("tokens", time(), axes.linear("throughput", "token/s", table["tokens_per_s"]),
              (_line(table, "tokens_per_s", "tokens generated per second", 4),)),
    )  # fmt: skip
    title = f"{first['device']}, {first['model']}, {first['quantizer']}, {first['batching']}, {first['admission']}"
    notes = (
        f"{len(table):,} moments of the run, evenly over its steps; throughput is the mean since the one before.",
        "The memory limit is what the weights leave of the usable memory.",
    )
    return Chart(title, panels, panel_height_pt=95, notes=notes)
