"""CSV and Parquet files as frames: other packages read a file that is open, of a bounded size, and what fits memory."""

import contextlib
import csv
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from dse.core import files
from dse.core.errors import InputError, LimitError, clean, show

#: cells that a Parquet file announces: a few bytes of it may stand for any number of them
MAX_CELLS = 2**30
#: characters of the first line of a CSV file that are looked at
MAX_HEADER = 1_000_000
CANNOT = "cannot be read as a table"


@contextlib.contextmanager
def refused(name: str, says: str = CANNOT) -> Iterator[None]:
    """Turn what pandas and pyarrow raise for a file that is no table, or a damaged one, into an InputError."""
    try:
        yield
    except (OSError, ValueError, TypeError, ArithmeticError, LookupError, NotImplementedError, csv.Error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{name}: {says}: {clean(reason, 100)}") from error


@contextlib.contextmanager
def parquet(
    path: str | os.PathLike[str],
    give: str = "a .parquet file",
    columns: Sequence[str] | None = None,
    says: str = CANNOT,
    max_bytes: float = float("inf"),
) -> Iterator[Any]:
    """An open `pyarrow.parquet.ParquetFile`, of which `columns` (None: all) are read. Raises InputError, LimitError.

    What fails as it is read is an InputError, too: `says` what such a file is not.
    """
    import pyarrow.parquet as pq

    name = show(str(path))
    raw, size = files.open_regular(path, give, name)
    with raw, refused(name, says):
        _check_size(name, size, max_bytes)
        with pq.ParquetFile(raw) as file:
            _check_once(name, file.schema_arrow.names)
            n_cells = file.metadata.num_rows * (file.metadata.num_columns if columns is None else len(columns))
            if n_cells > MAX_CELLS:
                raise LimitError(f"{name}: has {n_cells:,} cells: at most {MAX_CELLS:,} are read: take fewer rows")
            yield file


def read_csv(path: str | os.PathLike[str], give: str, max_bytes: int, says: str = CANNOT, **options: Any) -> Any:
    """A CSV file by `pandas.read_csv` with its options, each column there once. Raises InputError, LimitError."""
    import pandas as pd

    name = show(str(path))
    raw, size = files.open_regular(path, give, name)
    with raw, refused(name, says):
        _check_size(name, size, max_bytes)
        first = re.split("[\r\n]", raw.readline(MAX_HEADER).decode("utf-8-sig", "replace"), maxsplit=1)[:1]
        _check_once(name, next(csv.reader(first), []))
        raw.seek(0)
        return pd.read_csv(raw, **options).copy()  # in few blocks: pandas warns of one more column beside a hundred


def _check_size(name: str, size: int, max_bytes: float) -> None:
    if size > max_bytes:
        raise LimitError(f"{name}: has {size:,} bytes: at most {max_bytes:,} are read: take fewer rows")


def _check_once(name: str, columns: Sequence[str]) -> None:
    if twice := next((column for column in columns if columns.count(column) > 1), ""):
        raise InputError(f"{name}: column {show(twice)} is there twice: leave one")
