"""Times per token and to the first against the requests a second that servers are asked for: a panel a time."""

from collections.abc import Sequence

import pandas as pd

from dse.figures.drawing import axes, style
from dse.figures.drawing.chart import Chart, Panel, Series

#: column -> name of its axis, unit, and the size of the unit in seconds
TIMES = {"tpot_s": ("time per output token", "ms", 1e-3), "ttft_s": ("time to first token", "s", 1.0)}


def chart(tables: Sequence[tuple[str, pd.DataFrame]], column: str, limit_s: float | None = None) -> Chart:
    """A line a named table of `dse.questions.load.under_load`; a dotted line at the limit in seconds, if any."""
    name, unit, size = TIMES[column]
    looks = style.looks([label for label, _ in tables])
    rates = [float(rate) for _, table in tables for rate in table["requests_per_s"]]
    times = [float(time) for _, table in tables for time in table[column]]
    x = axes.linear("requests per second", "1/s", rates)
    y = axes.linear(name, unit, [*times, *([limit_s] if limit_s else [])], size)
    series = [
        Series(
            label, "line", tuple(map(float, table["requests_per_s"])), tuple(map(float, table[column])),
            looks[label].colour, dash=looks[label].dash, marker=looks[label].marker,
            hover=tuple(_hover(label, row) for _, row in table.iterrows()),
        ) for label, table in tables
    ]  # fmt: skip
    if limit_s:
        ends = (x.low, x.high)
        series.append(Series("limit", "line", ends, (limit_s, limit_s), style.GREY, "dot", marker="", is_note=True))
    title = f"{name[:1].upper()}{name[1:]}"
    notes = ("Requests of equal lengths come at random; means over requests, each line up to 0.9 of what a full server "
             "serves.",)  # fmt: skip
    return Chart(title, (Panel("", x, y, tuple(series)),), panel_height_pt=200, notes=notes)


def _hover(label: str, row: pd.Series) -> str:
    return (
        f"{label}\n{row['requests_per_s']:.4g} requests/s, load {row['load']:.2g}\n"
        f"{1e3 * row['tpot_s']:.4g} ms per token, {row['ttft_s']:.4g} s to the first\n"
        f"{row['running_requests']:.3g} requests decode at once"
    )
