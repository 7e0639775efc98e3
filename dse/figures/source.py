"""Read the table behind a figure from a directory that a command wrote, or from a CSV or Parquet file."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from dse.core import tables
from dse.core.documents import json_text
from dse.core.errors import InputError, LimitError, did_you_mean, show
from dse.sweep import filling, store
from dse.sweep.columns import CODES

#: rows that are asked for: NAME=VALUE or NAME=A,B, or by column a value or several
Only = str | Sequence[str] | Mapping[str, Any]
#: what a figure needs beside its table NAME.csv stands in NAME.figure.json
BESIDE = ".figure.json"
#: rows that a figure draws, and bytes of a file that is read, at most
MAX_ROWS, MAX_BYTES = 100_000, 2**30
#: columns of words in which nothing is "", not missing
WORDS = (
    "assumptions",
    "infeasible_reason",
    "runs_why",
    "flips_at",
    "best",
    "config",
    "winner_at_low",
    "winner_at_high",
)

#: columns of names, which stay text where they read like numbers ("3", "2024-01-01")
NAMES = (
    "admission",
    "basis",
    "batching",
    "bound",
    "config",
    "data",
    "device",
    "experiment",
    "id",
    "key_quantizer",
    "kind",
    "label",
    "method",
    "metric",
    "model",
    "name",
    "operation",
    "part",
    "phase",
    "quantizer",
    "series",
    "side",
    "size_class",
    "source",
    "stack",
    "system",
    "trace",
    "unit",
    "value_quantizer",
    "verdict",
    "view",
    *WORDS,
)


@dataclass(frozen=True)
class Source:
    """A table, its file (None: a sweep's parts, or no file at all), what NAME.figure.json beside it says.

    `others` are further tables by the names of their files, `-` as `_`, where they are at hand.
    """

    table: pd.DataFrame
    path: Path | None = None
    about: dict[str, Any] = field(default_factory=dict)
    others: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    #: of a sweep's table, what identifies the sweep (`dse.sweep.spec.Sweep.identity`)
    identity: Mapping[str, Any] | None = None

    def other(self, stem: str) -> pd.DataFrame | None:
        """Another table, at hand or in the same directory; None where there is none."""
        if (known := self.others.get(stem.replace("-", "_"))) is not None:
            return known
        file = in_folder(self.path.parent, (stem,)) if self.path else None
        return None if file is None else read_table(file)

    def json(self, name: str) -> dict[str, Any]:
        """A JSON file in the same directory; empty where there is none."""
        return (store.load_json(self.path.parent / name) if self.path else None) or {}

    def single(self, name: str) -> str:
        """The one name that a column holds. Raises InputError where a figure of one would mix several."""
        values = list(dict.fromkeys(map(str, self.table[name])))
        if len(values) > 1:
            raise InputError(
                f"{name} = {', '.join(values)}: a figure shows one: choose it with --only {name}={values[0]}"
            )
        return values[0]


def beside(about: dict[str, Any]) -> bytes:
    """The file that stands beside a table."""
    return (json_text(about, 1) + "\n").encode()


def read(where: str, stems: Sequence[str], written_by: str, only: Only = ()) -> Source:
    """The table `where` names: a file, or in a directory the first of `stems`, or of a sweep all parts.

    `only` keeps rows. Raises InputError, LimitError for more than MAX_ROWS rows.
    """
    path = Path(where)
    try:
        is_folder = path.is_dir()
        file = in_folder(path, stems) if is_folder else path
        if file is None and (path / store.SPEC).is_file():
            table, identity = _of_sweep(path, only)
            return Source(_checked(table, where), identity=identity)
        if file is None:
            raise InputError(f"{show(where)}: has no {stems[0]}.csv or .parquet: made by `{written_by}`")
        if not file.is_file():
            raise InputError(f"{show(where)}: is no directory or file: made by `{written_by}`")
    except (OSError, ValueError) as error:  # a name that no file can have
        raise InputError(f"{show(where)}: cannot be read: {type(error).__name__}") from None
    table = _checked(kept(read_table(file), only), where)
    return Source(table, file, _about(file), identity=filling.note_of(table))


def in_folder(folder: Path, stems: Sequence[str]) -> Path | None:
    """The first of the tables that is there, or None; Parquet before CSV: it keeps types and the order of systems."""
    for stem in stems:
        for suffix in ("", ".parquet", ".csv"):
            if (file := folder / f"{stem}{suffix}").is_file():
                return file
    return None


def _about(file: Path) -> dict[str, Any]:
    return store.load_json(file.parent / f"{file.stem}{BESIDE}") or {}


def read_table(file: Path) -> pd.DataFrame:
    """A table of a CSV, Parquet or JSON file (rows under "rows"). Raises InputError."""
    name, suffix = show(str(file)), file.suffix.lower()
    if suffix not in (".csv", ".parquet", ".json"):
        raise InputError(f"{name}: must be a directory, or a file that ends in .csv or .parquet")
    give = "a directory, or a .csv or .parquet file"
    if suffix == ".csv":
        return plain(tables.read_csv(file, give, MAX_BYTES, keep_default_na=False, na_values=["", "nan", "NaN"]))
    if suffix == ".json":
        with tables.refused(name):
            return plain(pd.DataFrame((store.load_json(file) or {}).get("rows", [])))
    with tables.parquet(file, give, max_bytes=MAX_BYTES) as whole:
        return plain(whole.read().to_pandas())


def plain(table: pd.DataFrame) -> pd.DataFrame:
    """Names as text, not as categories or numbers; words that are missing as none; reasons by their codes."""
    attrs = table.attrs
    for name in table.columns:
        if isinstance(table[name].dtype, pd.CategoricalDtype):
            table = table.assign(**{name: table[name].astype(object)})
        if name in WORDS:
            table = table.assign(**{name: table[name].astype(object).where(table[name].notna(), "")})
        if name in NAMES and not pd.api.types.is_string_dtype(table[name]):
            column = table[name].astype(object)
            table = table.assign(**{name: [word if _is_missing(word) else _word(word) for word in column]})
    if "infeasible_code" in table and "infeasible_reason" not in table:
        table = table.assign(
            infeasible_reason=[CODES[code] if 0 < code < len(CODES) else "" for code in table["infeasible_code"]]
        )
    table.attrs = attrs
    return table


def _is_missing(word: Any) -> bool:
    return pd.api.types.is_scalar(word) and bool(pd.isna(word))


def _word(value: Any) -> str:
    """A name as text; 7.0, which a file with a gap in the column makes of 7, as 7."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _of_sweep(folder: Path, only: Only) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Some rows of a sweep, and what identifies it."""
    from dse.sweep import reading  # pyarrow: not before a sweep is read

    tables: list[pd.DataFrame] = []
    stored = reading.stored(folder)
    for part in stored.parts():
        tables.append(kept(plain(part), only, may_be_empty=True))
        if sum(map(len, tables)) > MAX_ROWS:
            break
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(), stored.spec["spec"]


def _checked(table: pd.DataFrame, where: str) -> pd.DataFrame:
    if table.empty:
        raise InputError(f"{show(where)}: has no rows" + (" like these" if len(table.columns) else ""))
    if len(table) > MAX_ROWS:
        raise LimitError(
            f"{show(where)}: has over {MAX_ROWS:,} rows: choose some with --only, or draw a front (`dse pareto`)"
        )
    if "feasible" in table and table["feasible"].dtype != bool:
        raise InputError(f"{show(where)}: feasible: must be True or False in every row")
    return table


def _conditions(only: Only) -> Iterator[tuple[str, str, list[str]]]:
    """Each condition as it was asked for, its column, and the values in small letters."""
    if isinstance(only, Mapping):
        for name, values in only.items():
            words = [values] if isinstance(values, str) or not isinstance(values, Iterable) else values
            texts = [str(word).strip() for word in words]
            if not texts:
                raise InputError(f"only = {show({name: values})}: names no value: leave it out")
            yield f"{name}={','.join(texts)}", name, [text.lower() for text in texts]
        return
    if not isinstance(only, str | Sequence):
        raise InputError(f'only = {show(only)}: must be by column, such as {{"model": "llama2-13b"}}')
    for condition in [only] if isinstance(only, str) else only:
        name, sign, text = str(condition).partition("=")
        if not sign or not text:
            raise InputError(f"only = {show(condition)}: must be COLUMN=VALUE, such as model=llama2-13b")
        yield condition, name, [word.strip().lower() for word in text.split(",")]


def kept(table: pd.DataFrame, only: Only, may_be_empty: bool = False) -> pd.DataFrame:
    """The rows whose columns have one of the values asked for. Raises InputError."""
    for condition, name, words in _conditions(only):
        if name not in table:
            raise InputError(f"only = {show(condition)}: unknown column: {did_you_mean(name, map(str, table.columns))}")
        column = table[name]
        matches = column.astype(str).str.lower().isin(words)
        if pd.api.types.is_numeric_dtype(column) and column.dtype != bool:
            matches |= column.isin([number for word in words if (number := _number(word)) is not None])
        held = set(column.astype(str).str.lower())
        unknown = [word for word in words if word not in held and not column.isin([_number(word)]).any()]
        if unknown and not may_be_empty and matches.any():
            raise InputError(f"only = {show(condition)}: no row has {show(unknown[0])}: leave it out")
        if not matches.any() and not may_be_empty:
            some = ", ".join(dict.fromkeys(map(str, column.dropna())))
            raise InputError(f"only = {show(condition)}: no row has it: {name} is one of {show(some)[1:-1]}")
        table = table[matches]
    return table


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
