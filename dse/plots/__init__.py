"""Figures, one file each: a table in, a `Chart` out. A file here with a `FIGURE` is found by itself.

A chart holds numbers of its table only; no formula is in this package. `FIGURES["throughput_batch"].chart(table)`
gives the chart, `.figure(table)` the plotly figure, `.images(table)` PNG, SVG and PDF by matplotlib.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dse.plots.chart import Chart


@dataclass(frozen=True)
class Figure:
    """An entry of the registry.

    `table` names the table of `dse.tables` that the chart reads; `question` is what the figure answers, in a sentence.
    """

    name: str
    title: str
    question: str
    table: str
    chart: Callable[[pd.DataFrame], Chart]
    order: int
    #: columns of the table that the chart cannot do without; `system`, or `quantizer` to name one, beside them
    columns: tuple[str, ...]

    def figure(self, table: pd.DataFrame) -> Any:
        """The plotly figure."""
        from dse.plots import to_plotly

        return to_plotly.figure(self.chart(table))

    def images(self, table: pd.DataFrame) -> dict[str, bytes]:
        """PNG, SVG and PDF, drawn by matplotlib."""
        from dse.plots import to_matplotlib

        return to_matplotlib.images(self.chart(table))


def _found() -> dict[str, Figure]:
    modules = (importlib.import_module(f"{__name__}.{item.name}") for item in pkgutil.iter_modules(__path__))
    figures = [module.FIGURE for module in modules if hasattr(module, "FIGURE")]
    return {figure.name: figure for figure in sorted(figures, key=lambda figure: figure.order)}


#: every figure by name, in the order of the report
FIGURES: dict[str, Figure] = _found()
