"""Published accuracy or perplexity against effective bits, a panel per model; drawn by `dse validate report`."""

import math

import pandas as pd

from dse.plots import axes, style
from dse.plots.chart import Axis, Chart, Panel, Series

#: room beyond the outermost values, as a share of their range
ROOM = 0.12


def _around(name: str, unit: str, values: list[float], n_ticks: int = 4) -> Axis:
    """A linear axis that need not start at zero, ticks at 1, 2, 2.5 or 5 times ten to the n."""
    low, high = min(values), max(values)
    room = ROOM * (high - low) or 0.05 * abs(high) or 1.0
    low, high = low - room, high + room
    raw = (high - low) / n_ticks
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.ceil(low / step), math.floor(high / step)
    ticks = tuple((round(i * step, 10), f"{round(i * step, 10):g}") for i in range(first, last + 1))
    return Axis(name, unit, low, high, ticks)


def chart(title: str, axis: str, unit: str, note: str, table: pd.DataFrame) -> Chart:
    """A panel per model: columns `model`, `method`, `config`, `quantizer`, `effective_bits`, `value`, `n_tasks`."""
    methods = list(dict.fromkeys(table["method"]))
    bits = axes.log2("effective bits", "bit", table["effective_bits"])
    panels = []
    for model in dict.fromkeys(table["model"]):
        own = table[table["model"] == model]
        series = []
        for method in dict.fromkeys(own["method"]):
            points = own[own["method"] == method]
            look = style.STYLES[methods.index(method) % style.MAX_SYSTEMS]
            texts = tuple(
                f"{model}, {method}{', ' + row.config if row.config else ''}\n{axis} {row.value:.2f}"
                f"{'' if row.n_tasks == 1 else f', mean of {row.n_tasks} tasks'}\n"
                f"{row.effective_bits:.3f} bit an element ({row.quantizer})"
                for row in points.itertuples()
            )
            series.append(Series(
                method, "scatter", tuple(map(float, points["effective_bits"])), tuple(map(float, points["value"])),
                colour=look.colour, marker=look.marker, hover=texts, size=0.75,
            ))  # fmt: skip
        panels.append(Panel(str(model), bits, _around(axis, unit, list(map(float, own["value"]))), tuple(series)))
    return Chart(
        title, tuple(panels), n_columns=min(3, len(panels)), panel_height_pt=110,
        notes=(f"{note} Values as the paper prints them, bits as this tool computes them; axes do not start at 0.",),
    )  # fmt: skip
