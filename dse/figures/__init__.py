"""Figures: a table in, a `Chart` out. Modules of `charts`, in a checkout also of `studies/charts`, declare them with
`@figure(...)`.

A chart holds numbers of its table only; no formula is in this package. `FIGURES["throughput_batch"].chart(table)`
gives the chart. docs/contributing/figures.md says how to add one.
"""

import importlib
import pkgutil
from typing import Any

from dse.core import checkout
from dse.figures import charts
from dse.figures.registry import DECLARED, Figure

__all__ = ["FIGURES", "REPORT", "Figure"]

#: every figure by name, in the order of lists
FIGURES: dict[str, Figure]
#: those of the report, which has a heading for each
REPORT: dict[str, Figure]


def __getattr__(name: str) -> Any:
    """Import all charts when a list of them is first asked for: one by itself is there sooner."""
    if name not in ("FIGURES", "REPORT"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    folders = [charts, checkout.module("studies.charts", "study")] if checkout.has("studies") else [charts]
    for package in folders:
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
    every = {fig.name: fig for fig in sorted(DECLARED.values(), key=lambda fig: (fig.order, fig.draw.__module__))}
    globals().update(FIGURES=every, REPORT={name: fig for name, fig in every.items() if fig.title})
    return globals()[name]
