"""Published accuracy or perplexity against effective bits, a panel per model; drawn by `dse validate report`."""

import pandas as pd

from dse.plots import axes, style
from dse.plots.chart import Chart, Panel, Series


def chart(title: str, axis: str, unit: str, note: str, table: pd.DataFrame) -> Chart:
    """A panel per model: columns `model`, `method`, `config`, `quantizer`, `effective_bits`, `value`, `n_tasks`."""
    looks = style.of_methods(list(dict.fromkeys(table["method"])))
    bits = axes.log2("effective bits", "bit", table["effective_bits"])
    panels = []
    for model in dict.fromkeys(table["model"]):
        own = table[table["model"] == model]
        series = []
        for method in dict.fromkeys(own["method"]):
            points = own[own["method"] == method]
            look = looks[method]
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
        panels.append(Panel(str(model), bits, axes.around(axis, unit, list(map(float, own["value"]))), tuple(series)))
    return Chart(
        title, tuple(panels), n_columns=min(3, len(panels)), panel_height_pt=110,
        notes=(f"{note} Values as the paper prints them, bits as this tool computes them; axes do not start at 0.",),
    )  # fmt: skip
