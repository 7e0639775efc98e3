"""`dse.plot`: a figure of what Python has at hand, shown and, with `out`, in a file."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from dse.core.errors import InputError, did_you_mean, show
from dse.figures.drawing import to_plotly
from dse.figures.drawing.chart import Chart
from dse.figures.export import write
from dse.figures.export.look import applied
from dse.figures.plot import answer, load
from dse.figures.registry import Figure
from dse.figures.source import Only, kept
from dse.specs.look import ASKED, Look
from dse.sweep.reading import StoredSweep


def plot(source: Any, kind: str | None, out: str | None, only: Only, options: Mapping[str, Any]) -> Any:
    """The plotly figure of `dse.plot`; `options` are fields of a `Look`. Raises InputError, LimitError, OutputError."""
    fig = answer.figure_of(source) if kind is None else load.find(kind)
    for name in options:
        if name not in ASKED:
            raise InputError(f"unknown {show(name)}: {did_you_mean(name, ('out', 'only', *ASKED))}")
    ending = None if out is None else write.ending(out)
    given = {name: value for name, value in options.items() if value != ASKED[name].default}
    for name in write.unused(ending or "html"):
        if name in given:
            why = "without out" if ending is None else f"in .{ending}"
            raise InputError(f"{name} = {show(given[name])}: has no effect {why}: leave it out")
    look = write.checked(Look(**options))
    chart, table = _drawn(fig, kind, source, only)
    chart, page = applied(look, chart)
    if out is not None:
        write.publish(fig, "table", chart, table, out, _text(kind, out, only, given), page)
    from dse.figures.export.plotted import PlottedFigure  # plotly takes long to import

    return PlottedFigure(to_plotly.spec(chart))


def _drawn(fig: Figure, kind: str | None, source: Any, only: Only) -> tuple[Chart, pd.DataFrame]:
    """The chart and the table behind it."""
    if kind is not None:
        if isinstance(source, StoredSweep):
            return load.load(kind, str(source.folder), only)
        return load.of_table(kind, source, only)
    behind = answer.source_of(source)
    chart = fig.drawn(replace(behind, table=(table := kept(behind.table, only))))
    assert chart is not None
    return chart, table


def _text(kind: str | None, out: str, only: Only, options: Mapping[str, Any]) -> str:
    """The call, for the file's properties."""
    said = {"out": out, **({"only": only} if only else {}), **options}
    words = [*([] if kind is None else [repr(kind)]), *(f"{name}={value!r}" for name, value in said.items())]
    return f"dse.plot(source, {', '.join(words)})"
