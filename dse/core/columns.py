"""Columns of a table, each declared once with its head and form; and tables as aligned lines and as CSV."""

import csv
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from dse.core import files

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Column:
    """One column of a table; a row is a mapping, or an object whose attributes have names such as `row.id`.

    Args:
        name: Name in JSON, DataFrames and CSV files, under which a row has its value unless `value` takes it.
        title: Head where people read it, by default the name; "" keeps it from there.
        form: Format of the value there, such as ".1f"; a text with fields of the row, such as "{low:.4g}-{high:.4g}";
            or a function that makes the cell of a row.
        missing: Cell of a value that is None or nan.
        times: Size of a base unit in the unit shown: 1e3 for times in ms, 100 for shares in percent.
        value: Takes the value from a row.
    """

    name: str
    title: str | None = None
    form: str | Callable[[Any], str] = ""
    times: float = 1
    value: Callable[[Any], Any] | None = None
    missing: str = "-"

    def of(self, row: Any) -> Any:
        """The value of a row, in base units."""
        if self.value:
            return self.value(row)
        return row[self.name] if isinstance(row, Mapping) else attrgetter(self.name)(row)

    def cell(self, row: Any) -> str:
        """The value of a row as people read it."""
        if callable(self.form):
            return self.form(row)
        value = self.of(row)
        if value is None or value != value:
            return self.missing
        if "{" in self.form:
            return self.form.format_map(row if isinstance(row, Mapping) else vars(row))
        return format(value if self.times == 1 else self.times * value, self.form)


def percent(name: str, title: str | None = None, digits: int = 1) -> Column:
    """A column of shares, shown in percent."""
    return Column(name, title=title, form=f".{digits}f", times=100)


def cells(columns: Sequence[Column], rows: Iterable[Any]) -> list[list[str]]:
    """The heads, then the rows as people read them; columns without a title are left out."""
    shown = [column for column in columns if column.title != ""]
    return [[column.title or column.name for column in shown], *([c.cell(row) for c in shown] for row in rows)]


def frame(columns: Sequence[Column], rows: Iterable[Any]) -> "pd.DataFrame":
    """The rows as people read them, as a DataFrame of text."""
    import pandas as pd

    heads, *lines = cells(columns, rows)
    return pd.DataFrame(lines, columns=heads)


def aligned(rows: Sequence[Sequence[str]], left: int | Collection[int] | None = None, indent: str = "") -> list[str]:
    """Lines of the rows, columns two spaces apart.

    Args:
        rows: Cells, as many in each row; a head is the first row.
        left: Columns that are aligned to the left: so many first ones, or their indices; all where None.
        indent: Text before each line.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    on_left = range(len(widths) if left is None else left) if left is None or isinstance(left, int) else left

    def padded(row: Sequence[str]) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(
            cell.ljust(width) if i in on_left else cell.rjust(width) for i, (cell, width) in enumerate(cells)
        )

    return [indent + padded(row).rstrip() for row in rows]


def csv_text(rows: Sequence[Mapping[str, Any]], names: Iterable[str] = (), digits: int = 6) -> str:
    """Records as CSV, floats to `digits` digits; a missing value is empty, and no text can be run by a spreadsheet. The
    columns are `names`, by default those of the first row."""
    heads = [*(names or rows[0])]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([heads, *([_plain(row[h], digits) for h in heads] for row in rows)])
    return out.getvalue()


def _plain(value: Any, digits: int) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.{digits}g}" if isinstance(value, float) else files.harmless(str(value))
