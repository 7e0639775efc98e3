"""The registry of figures: each declares itself, beside the code that draws it, with `@figure(...)`.

A figure gets a `Source` (a table and what stands beside it) and gives a `Chart`. `dse plot`, the report, the pages of
answers, the explorer and the tests read the registry; nothing about a figure is said a second time.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dse.core.errors import InputError
from dse.figures.drawing import names, whiskers
from dse.figures.drawing.chart import Chart
from dse.figures.source import Source


@dataclass(frozen=True)
class Written:
    """Where a figure's table comes from: the command, and the table's names in that command's directory.

    `table` is its name in `dse.questions.tables`, for figures of the report.
    """

    command: str
    stems: tuple[str, ...]
    table: str = ""


def by(command: str, *stems: str) -> Written:
    """Written by `dse COMMAND` under one of the names."""
    return Written(f"dse {command}", stems)


def by_report(table: str) -> Written:
    """A table of `dse report`, as `dse.questions.tables` calls it."""
    return Written("dse report --out DIR", ("report" if table == "results" else f"tables/{table}",), table)


def by_validation(stem: str, extra: str = "") -> Written:
    """A table of `dse validate report`, with the name of the extra that it takes."""
    more = f" (with the extra {extra})" if extra else ""
    return Written(f"dse validate report --out DIR{more}", (f"tables/{stem}", stem))


@dataclass(frozen=True)
class Figure:
    """A declared figure: what it shows, whose table it draws, which columns that must have, and what draws it.

    Rows of a table that agree in all of `key` would lie over each other and are refused; `system` in it is device and
    quantizer where the table has no such column. `needs_beside`: NAME.figure.json must stand beside the table. The
    report shows the figures with a `title`; an `answer` of that type is drawn from `source_of(answer)`.
    """

    name: str
    shows: str
    written: Written
    columns: tuple[str, ...]
    draw: Callable[[Source], Chart | None]
    order: float = math.inf
    key: tuple[str, ...] = ()
    needs_beside: bool = False
    title: str = ""
    answer: type | None = None
    source_of: Callable[[Any], Source] | None = None

    @property
    def table(self) -> str:
        """The table of `dse.questions.tables` that the report draws it from."""
        return self.written.table

    def drawn(self, source: Source) -> Chart | None:
        """The chart of a source in printed names, whiskers inside the frame; None where it holds nothing to draw."""
        chart = self.draw(source)
        return names.of_chart(whiskers.cut(chart)) if chart else None

    def chart(self, table: pd.DataFrame, about: Mapping[str, Any] | None = None, **others: pd.DataFrame) -> Chart:
        """The chart of a table, of what stands beside it and of other tables. Raises InputError where it is empty."""
        chart = self.drawn(Source(table, None, dict(about or {}), others))
        if chart is None:
            raise InputError(f"the table holds nothing that {self.name} draws")
        return chart


#: every figure by name, as declared; `dse.figures.FIGURES` has them in order
DECLARED: dict[str, Figure] = {}


Draw = Callable[[Source], Chart | None]


def figure(name: str, shows: str, written: Written, columns: tuple[str, ...], **more: Any) -> Callable[[Draw], Draw]:
    """Declare the figure that the decorated function draws; the arguments are the fields of `Figure`.

    Lists show figures by `order`, those without one last.
    """

    def declare(draw: Draw) -> Draw:
        if name in DECLARED:
            raise ValueError(f"two figures are called {name}")
        DECLARED[name] = Figure(name=name, shows=shows, written=written, columns=columns, draw=draw, **more)
        return draw

    return declare
