"""A declared figure by name, drawn from what a command wrote: unknown names, missing columns, rows over each other."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd

from dse.core.errors import InputError, did_you_mean, show
from dse.figures import FIGURES, Figure
from dse.figures.drawing import rows
from dse.figures.drawing.chart import Chart
from dse.figures.source import BESIDE, Only, Source, kept, plain, read
from dse.model.results import RESULT_UNITS
from dse.sweep import filling

#: letters of a word that a description is searched for, and more
MIN_WORD = 3


def find(name: str) -> Figure:
    """The figure of that name, `-` as `_`. Raises InputError with the nearest names."""
    if not isinstance(name, str):
        raise InputError(f"kind: must be a figure's name, not a {type(name).__name__}: `dse plot` alone lists them")
    fig = FIGURES.get(name.strip().lower().replace("-", "_"))
    if fig is None:
        raise InputError(f"unknown figure {show(name)}: {_nearest(name)}")
    return fig


def _nearest(name: str) -> str:
    """The figures whose names are near, or that speak of the word; else where all of them are listed."""
    if (text := did_you_mean(name, FIGURES)).startswith("did you mean"):
        return text
    word = name.strip().lower().replace("-", "_")
    words = [part for part in word.split("_") if len(part) > MIN_WORD]
    near = [fig.name for fig in FIGURES.values() if any(part in f"{fig.name} {fig.shows}".lower() for part in words)]
    return f"did you mean {', '.join(near[:4])}?" if near else "`dse plot` alone lists them"


@contextlib.contextmanager
def drawing(fig: Figure, where: str) -> Iterator[None]:
    """Say which table cannot be drawn where drawing fails by its values. Raises InputError."""
    try:
        yield
    except InputError:
        raise
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        raise InputError(
            f"{show(where)}: cannot be drawn as {fig.name} ({show(str(error))[1:-1]}): is it as "
            f"`{fig.written.command}` writes it?"
        ) from error


def load(name: str, where: str, only: Only = ()) -> tuple[Chart, pd.DataFrame]:
    """The chart of a figure and the table behind it, from a directory or a file; of a figure of the report from its own
    default systems where neither is named. Raises InputError, LimitError."""
    fig = find(name)
    if where:
        _check_beside(fig, where)
        source = _filled(fig, read(where, fig.written.stems, fig.written.command, only))
    else:
        from dse.questions import tables

        where, source = f"table {fig.table}", Source(kept(plain(tables.table(fig.table)), only))
    _check(fig, source, where)
    with drawing(fig, where):
        chart = fig.drawn(source)
    if chart is None:
        raise InputError(f"{show(where)}: holds nothing that {fig.name} draws")
    return chart, source.table


def of_table(name: str, table: pd.DataFrame, only: Only = ()) -> tuple[Chart, pd.DataFrame]:
    """The chart of a figure from a table at hand, and the table with what was filled in. Raises InputError."""
    fig = find(name)
    if not isinstance(table, pd.DataFrame):
        raise InputError(f"{fig.name}: is drawn from a table, not from a {type(table).__name__}")
    source = _filled(fig, Source(kept(table, only), identity=filling.note_of(table)))
    _check(fig, source, "table")
    with drawing(fig, "table"):
        chart = fig.drawn(source)
    if chart is None:
        raise InputError(f"the table holds nothing that {fig.name} draws")
    return chart, source.table


def _filled(fig: Figure, source: Source) -> Source:
    """A sweep's table with the columns of the figure that it lacks, of what the sweep holds fixed or did not keep."""
    if source.identity is None:
        return source
    return replace(source, table=plain(filling.filled(source.table, source.identity, fig.columns)))


def _check_beside(fig: Figure, where: str) -> None:
    """Refuse a table whose companion file is missing, before it is read."""
    file = Path(where)
    with contextlib.suppress(OSError, ValueError):  # said when it is read
        if fig.needs_beside and file.is_file() and not file.with_name(f"{file.stem}{BESIDE}").is_file():
            raise InputError(
                f"{show(where)}: {fig.name} needs {show(file.stem + BESIDE)} beside its table: `{fig.written.command}` "
                "writes both"
            )


def _check(fig: Figure, source: Source, where: str) -> None:
    """Columns are there, what must stand beside holds something, and no two rows are the same mark."""
    table = source.table
    wanted = list(fig.columns)
    if "system" in fig.key and "system" not in table:
        wanted.append("quantizer")
    missing = [name for name in dict.fromkeys(wanted) if name not in table]
    if fig.needs_beside and not source.about:
        raise InputError(
            f"{show(where)}: {fig.name} needs {fig.written.stems[0]}{BESIDE} beside it: `{fig.written.command}` "
            "writes both"
        )
    if missing:
        too = ", and a directory of `dse sweep` has every result" if {*missing} <= {*RESULT_UNITS} else ""
        raise InputError(f"{show(where)}: lacks {', '.join(missing)}: `{fig.written.command}` writes such a table{too}")
    if fig.key:
        keyed = rows.with_system(table) if "system" in fig.key else table
        keys = list(fig.key)
        again = keyed.duplicated(keys, keep=False)
        if again.any():
            first = (
                keyed[again]
                .groupby(keys, sort=False, dropna=False, observed=True)
                .get_group(tuple(keyed[again].iloc[0][name] for name in keys))
            )
            differ = [str(name) for name in keyed.columns if first[name].astype(str).nunique() > 1]
            what = (
                f"differ in {', '.join(differ[:3])}: choose with --only COLUMN=VALUE"
                if differ
                else "are the same: leave one"
            )
            raise InputError(f"{show(where)}: {len(first):,} rows of one mark {what}")
