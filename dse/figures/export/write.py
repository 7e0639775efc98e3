"""Write a figure or its table into one file, and list the figures, for `dse plot`."""

import os
import textwrap
from pathlib import Path
from typing import Any

import pandas as pd

from dse.core import files
from dse.core.documents import json_text
from dse.core.errors import InputError, show
from dse.core.version import VERSION
from dse.figures import FIGURES, Figure
from dse.figures.drawing import page_layout
from dse.figures.drawing.chart import Chart
from dse.figures.drawing.layout import Page
from dse.figures.export import image
from dse.figures.export.image import SIZED
from dse.figures.export.look import applied
from dse.figures.plot import load
from dse.figures.source import BESIDE, Only
from dse.model.results import RESULT_UNITS
from dse.specs.look import ASKED, Look

#: a figure as nobody asked otherwise: for a column of a paper
PAPER = Look()


def ending(out: str) -> str:
    """The format that a file's name asks for. Raises InputError."""
    suffix = Path(out).suffix.lower().removeprefix(".")
    if suffix not in image.FORMATS:
        known = ", ".join(f".{name}" for name in image.FORMATS)
        raise InputError(f"out = {show(out)}: must end in one of {known}")
    return suffix


def unused(format: str) -> tuple[str, ...]:
    """The fields of a look that a file of that format has no use for."""
    if format in SIZED:
        return ()
    return tuple(name for name in ASKED if format != "html" or name not in ("title", "x_label", "y_label"))


def checked(look: Look) -> Look:
    """The look itself. Raises InputError for a value that no figure can have, or that nobody would see."""
    look.check()
    if look.title is not None and not look.shows_title:
        raise InputError(f"title = {show(look.title)}: has no effect with --no-title: leave one out")
    return look


def write(kind: str, source: str, out: str, made_by: str, look: Look = PAPER, only: Only = ()) -> list[str]:
    """Draw the figure `kind` of what `source` names into the file `out`; what there is to say of it, a line each.

    An empty `source` is the report's own table (`has_own_table`). The file appears whole or not at all. Raises
    InputError, LimitError, OutputError.
    """
    format = ending(out)
    if os.path.exists(out) and os.path.exists(source) and os.path.samefile(out, source):
        raise InputError(f"out = {show(out)}: is the table itself: name another file")
    look = checked(look)
    chart, table = load.load(kind, source, only)
    chart, page = applied(look, chart)
    publish(load.find(kind), source, chart, table, out, made_by, page)
    if format not in SIZED:
        return [f"{'figure' if format == 'html' else 'table'}: {out}"]
    return [f"figure: {out} ({image.size_text(chart, page)})", *_left_off(chart, page)]


def publish(fig: Figure, where: str, chart: Chart, table: pd.DataFrame, out: str, made_by: str, page: Page) -> None:
    """Draw a chart of `where` for a page into a file, or write its table, as the file's name asks for."""
    format, path = ending(out), Path(out)
    with load.drawing(fig, where):
        content = image.export(chart, format, made_by, table, page)
    about = {f"{path.name}-metadata.json": _about_csv(chart, table, out, made_by)} if format == "csv" else {}
    files.publish(str(path.parent), {**about, path.name: content})


def _left_off(chart: Chart, page: Page) -> list[str]:
    """The notes that the picture leaves to its caption."""
    if page_layout.shows_all_notes(chart, page):
        return []
    return ["for the caption:", *(f"  {note}" for note in chart.notes)]


def _about_csv(chart: Chart, table: pd.DataFrame, out: str, made_by: str) -> bytes:
    """Provenance of a CSV file, beside it under the name that "CSV on the Web" (W3C, 2015) gives."""
    columns = [
        {"name": str(name), **({"unit": RESULT_UNITS[name]} if RESULT_UNITS.get(name) else {})}
        for name in table.columns
    ]
    about: dict[str, Any] = {
        "url": Path(out).name,
        "title": chart.title,
        "notes": list(chart.notes),
        "made_by": made_by,
        "dse_version": VERSION,
        "tableSchema": {"columns": columns},
    }
    return (json_text(about, 1) + "\n").encode()


def how_to(kind: str) -> str:
    """Command that writes the table of a figure. Raises InputError for an unknown one."""
    return f"give what `{load.find(kind).written.command}` wrote"


def has_own_table(kind: str) -> bool:
    """True for a figure of the report, which is drawn of the report's default systems where no table is named."""
    return bool(load.find(kind).table)


def listing() -> list[dict[str, Any]]:
    """Every figure as plain data."""
    return [
        {
            "kind": fig.name,
            "shows": fig.shows,
            "written_by": fig.written.command,
            "columns": list(fig.columns),
            "beside": f"{fig.written.stems[0]}{BESIDE}" if fig.needs_beside else None,
        }
        for fig in FIGURES.values()
    ]


def listing_text() -> str:
    """Every figure for the terminal: its name, what it shows, the command behind it, its columns."""
    lines = ["dse plot KIND DIR|TABLE --out FILE", ""]
    for fig in FIGURES.values():
        lines += [fig.name, f"  {fig.shows}", f"  from: {fig.written.command.replace('`', '')}"]
        if fig.needs_beside:
            lines.append(f"  needs beside its table: {fig.written.stems[0]}{BESIDE}, as that command writes it")
        lines += textwrap.wrap(f"columns: {', '.join(fig.columns)}", 100, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)
