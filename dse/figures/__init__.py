"""Figures: a table in, a `Chart` out. Every module of `charts` is imported, and its `@figure(...)` declares it; in a
checkout also those of `studies/charts`.

A chart holds numbers of its table only; no formula is in this package. `FIGURES["throughput_batch"].chart(table)`
gives the chart. docs/contributing/figures.md says how to add one.
"""

import importlib
import pkgutil

from dse.core import checkout
from dse.figures import charts
from dse.figures.registry import DECLARED, Figure

__all__ = ["FIGURES", "REPORT", "Figure"]

_folders = [charts, checkout.module("studies.charts", "study")] if checkout.has("studies") else [charts]
for _package in _folders:
    for _module in pkgutil.iter_modules(_package.__path__):
        importlib.import_module(f"{_package.__name__}.{_module.name}")

#: every figure by name, in the order of lists
FIGURES: dict[str, Figure] = {fig.name: fig for fig in sorted(DECLARED.values(), key=lambda fig: fig.order)}
#: those of the report, which has a heading for each
REPORT: dict[str, Figure] = {name: fig for name, fig in FIGURES.items() if fig.title}
