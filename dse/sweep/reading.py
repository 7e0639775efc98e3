"""Read a finished sweep from its directory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from dse.core.answer import Answer
from dse.core.errors import InputError, show
from dse.sweep import filling, store, table
from dse.sweep.store import Manifest


@dataclass(frozen=True, repr=False)
class StoredSweep(Answer):
    """A finished sweep in a directory; printed, how many rows it has and where."""

    folder: Path
    spec: dict[str, Any]
    manifest: Manifest
    #: what was set aside when it was resumed
    notes: tuple[str, ...] = ()
    #: parts that this run wrote; the others were there already
    n_written: int = 0

    @property
    def n_rows(self) -> int:
        """Rows of the table."""
        return self.manifest.n_rows

    @property
    def paths(self) -> list[Path]:
        """The Parquet files, in order; of a sweep that keeps a front, its one file."""
        if self.manifest.is_front:
            return [self.folder / store.FRONT]
        return [self.folder / part.name for _, part in sorted(self.manifest.parts.items())]

    @property
    def table(self) -> pd.DataFrame:
        """The whole table, in memory; `parts` gives it part by part, `read` some columns."""
        return self.read()

    def text(self) -> str:
        """Rows, parts and directory."""
        parts = self.manifest.n_parts
        return f"sweep: {self.folder} ({self.n_rows:,} rows, {parts:,} part{'s' * (parts > 1)})"

    @property
    def columns(self) -> dict[str, str]:
        """Columns and their units."""
        return dict(self.spec["columns"])

    @property
    def front(self) -> dict[str, Any] | None:
        """The front's settings, of a sweep that keeps one: `objectives`, `by`, `drop_missing`, `limits`."""
        return self.spec["spec"].get("front")

    def parts(self, columns: Sequence[str] | None = None) -> Iterator[pd.DataFrame]:
        """The table part by part: memory stays flat. Raises InputError for unknown columns or unreadable parts."""
        for path in self.paths:
            yield table.to_frame(read_part(path, columns))

    def read(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The whole table, or some columns of it, in memory."""
        tables = [read_part(path, columns) for path in self.paths]
        return filling.noted(table.to_frame(pa.concat_tables(tables)), self.spec["spec"])


def read_part(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """A Parquet file, or some columns of it. Raises InputError where it cannot be read."""
    try:
        return table.read_part(path, None if columns is None else list(columns))
    except InputError as error:
        raise InputError(f"{error}: `dse sweep --verify`") from error


def stored(out: str | Path) -> StoredSweep:
    """The finished sweep of a directory. Raises InputError where there is none."""
    spec, manifest = store.manifest_of(Path(out))
    if not manifest.complete:
        raise InputError(
            f"{show(str(out))}: {len(manifest.parts):,} of {manifest.n_parts:,} parts are done: "
            "run `dse sweep` again, it goes on"
        )
    return StoredSweep(Path(out), spec, manifest)
