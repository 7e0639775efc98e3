"""Tables of measured kernel times: from a CSV file, or from an installed `aiconfigurator-core`.

Every cell is checked before anything is fitted; what is wrong is one line with file, line and column.
"""

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dse.core import files, tables, units
from dse.core.errors import InputError, did_you_mean, install, show

Floats = NDArray[np.float64]
Kind = Literal["attention", "gemm"]

MAX_TABLE_BYTES = 64 * 2**20
_COLUMNS = "docs/explanation/calibration.md has the columns"
#: columns that must be there, with the largest value of each; the time is named apart
ATTENTION = {"batch": 2**24, "n_q_heads": 2**16, "n_kv_heads": 2**16, "head_dim": 2**16, "kv_len_tokens": 2**40}
GEMM = {"m": 2**31, "n": 2**31, "k": 2**31}
TIME = "latency_us"
MAX_TIME_US = 1e9
#: how tables name the type of keys and values -> (what kernels differ by, nominal bits)
KV_DTYPES = {
    **dict.fromkeys(("bfloat16", "bf16", "float16", "fp16"), ("fp16", 16)),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2"), ("fp8", 8)),
    "int8": ("int8", 8),
    "int4": ("int4", 4),
    "int2": ("int2", 2),
}

_NUMBER = re.compile(r"\s*[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?\s*", re.ASCII)
PACKAGE = "aiconfigurator-core"


@dataclass(frozen=True)
class Table:
    """Rows of one kernel on one device. `columns` has a number per row, in the units that their names say."""

    path: str
    kind: Kind
    lines: NDArray[np.int64]
    columns: dict[str, Floats]
    #: how keys and values are stored, per row (attention)
    codes: NDArray[np.str_]
    frameworks: NDArray[np.str_]
    versions: NDArray[np.str_]
    gpu: str = ""
    #: the file itself, for writing it back with a column more
    header: tuple[str, ...] = ()
    cells: tuple[tuple[str, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, mask: NDArray[np.bool_]) -> "Table":
        """The rows where `mask` is true; the file's own cells stay behind."""
        return replace(
            self,
            lines=self.lines[mask],
            columns={name: values[mask] for name, values in self.columns.items()},
            codes=self.codes[mask],
            frameworks=self.frameworks[mask],
            versions=self.versions[mask],
            header=(),
            cells=(),
        )

    def where(self, row: int) -> str:
        """FILE:LINE of a row."""
        return f"{self.path}:{self.lines[row]}"

    def names(self) -> str:
        """Frameworks and versions of the rows, for the record."""
        return ", ".join(dict.fromkeys(f"{f} {v}".strip() for f, v in zip(self.frameworks, self.versions, strict=True)))


def rows_of(path: str, give: str = "the path of a .csv file") -> tuple[list[str], list[int], list[list[str]]]:
    """Header, line numbers and cells of a CSV file, every row as long as the header.

    `give` says in messages what to give in place of what is no file. Raises InputError with file and line.
    """
    return rows_in(path, files.read_bytes(path, MAX_TABLE_BYTES, "table", give, _COLUMNS))


def rows_in(path: str, content: bytes) -> tuple[list[str], list[int], list[list[str]]]:
    """`rows_of` of a file that has been read; `path` is for messages. Raises InputError with file and line."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}:{content[: error.start].count(10) + 1}: is not UTF-8 text: give a CSV file"
        ) from error
    if "\0" in text:
        raise InputError(f"{path}:{text[: text.index(chr(0))].count(chr(10)) + 1}: holds a NUL byte: give a CSV file")
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    header: list[str] = []
    lines: list[int] = []
    cells: list[list[str]] = []
    try:
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            if not header:
                header = [cell.strip() for cell in row]
                doubled = [name for name in header if header.count(name) > 1]
                if doubled:
                    raise InputError(f"{path}:1: column {show(doubled[0])} is given twice: give it once")
                continue
            if len(row) != len(header):
                raise InputError(
                    f"{path}:{reader.line_num}: has {len(row)} cells: the header has {len(header)} columns"
                )
            lines.append(reader.line_num)
            cells.append(row)
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: is not valid CSV: {error}") from error
    if not cells:
        raise InputError(f"{path}: has a header but no rows: add measured rows")
    return header, lines, cells


def named_rows(
    path: str,
    needed: Iterable[str],
    content: bytes | None = None,
    clean: Callable[[str], str] = str.strip,
    also: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Iterator[tuple[int, dict[str, str]]]:
    """Line and cells by column of each row, all columns `needed` among them, or one that has the name `also`; `id`
    names each row, and no two alike: where there is no such column, its line does.

    Raises InputError with file and line.
    """
    header, lines, cells = rows_of(path) if content is None else rows_in(path, content)
    if missing := [name for name in needed if not {name, *also.get(name, ())} & {*header}]:
        near = did_you_mean(missing[0], header) if len(missing) == 1 else f"the header has {', '.join(header[:20])}"
        are = "column {} is" if len(missing) == 1 else "columns {} are"
        raise InputError(f"{path}:1: {are.format(', '.join(missing))} missing: {near}")
    seen: set[str] = set()
    for line, values in zip(lines, cells, strict=True):
        row = {"id": str(line)} | {name: clean(cell) for name, cell in zip(header, values, strict=True)}
        if not row["id"] or row["id"] in seen:
            problem = "is given twice" if row["id"] else "must be there"
            raise InputError(f"{path}:{line}: id = {show(row['id'])}: {problem}: give each row its own")
        seen.add(row["id"])
        yield line, row


def number(path: str, line: int, name: str, cell: str, high: float, whole: bool) -> float:
    """A positive number of at most `high`. Raises InputError with the place."""
    place = f"{path}:{line}: {name} = {show(cell)}"
    if not _NUMBER.fullmatch(cell):
        raise InputError(f"{place}: must be a number, such as {'32' if whole else '12.5'}")
    value = float(cell)
    if not (math.isfinite(value) and 0 < value <= high) or (whole and value != int(value)):
        kind = "a whole number from 1" if whole else "more than 0 and at most"
        raise InputError(f"{place}: must be {kind}{' to' if whole else ''} {high:,.0f}")
    return value


def _column(path: str, name: str, lines: list[int], cells: list[str], high: float, whole: bool) -> Floats:
    return np.array([number(path, line, name, cell, high, whole) for line, cell in zip(lines, cells, strict=True)])


def _texts(header: list[str], cells: list[list[str]], name: str) -> NDArray[np.str_]:
    if name not in header:
        return np.full(len(cells), "", dtype="U1")
    place = header.index(name)
    return np.array([row[place].strip() for row in cells])


def read(path: str, timed: bool = True) -> Table:
    """The table in a CSV file: decode attention, or matrix products if it has columns m, n and k.

    `timed` asks for the column of times too. Raises InputError with file, line and column.
    """
    header, lines, cells = rows_of(path, f"the path of a .csv file, or {PACKAGE}")
    kind: Kind = "gemm" if {"m", "n", "k"} <= set(header) else "attention"
    wanted = dict(GEMM if kind == "gemm" else ATTENTION)
    text_columns = ["kv_dtype"] if kind == "attention" else []
    for name in [*wanted, *text_columns, *([TIME] if timed else [])]:
        if name not in header:
            hint = "separate cells by commas" if ";" in header[0] else did_you_mean(name, header)
            raise InputError(f"{path}:1: column {name} is missing: {hint}")

    def column(name: str, high: float, whole: bool = True) -> Floats:
        place = header.index(name)
        return _column(path, name, lines, [row[place] for row in cells], high, whole)

    columns = {name: column(name, high) for name, high in wanted.items()}
    if timed:
        columns[TIME] = column(TIME, MAX_TIME_US, whole=False)
    gpus = _texts(header, cells, "gpu")
    other = np.flatnonzero(gpus != gpus[0])
    if len(other):
        row = other[0]
        raise InputError(
            f"{path}:{lines[row]}: gpu = {show(str(gpus[row]))}: the rows above are of {show(str(gpus[0]))}: "
            "give one device a table"
        )
    codes = np.full(len(cells), "fp16", dtype="U8")
    if kind == "attention":
        codes, bits = _kv_codes(path, lines, _texts(header, cells, "kv_dtype"))
        columns["kv_bytes"] = _kv_bytes(path, lines, columns, bits, header, cells)
        _check_heads(path, lines, columns)
    return Table(
        path,
        kind=kind,
        lines=np.array(lines),
        columns=columns,
        codes=codes,
        frameworks=_texts(header, cells, "framework"),
        versions=_texts(header, cells, "framework_version"),
        gpu=str(gpus[0]),
        header=tuple(header),
        cells=tuple(tuple(row) for row in cells),
    )


def _kv_codes(path: str, lines: list[int], names: NDArray[np.str_]) -> tuple[NDArray[np.str_], Floats]:
    """The kernel code and the nominal bits of every row."""
    for line, name in zip(lines, names, strict=True):
        if name.lower() not in KV_DTYPES:
            known = did_you_mean(str(name), KV_DTYPES)
            raise InputError(f"{path}:{line}: kv_dtype = {show(str(name))}: is not known: {known}")
    types = [KV_DTYPES[str(name).lower()] for name in names]
    return np.array([code for code, _ in types]), np.array([float(bits) for _, bits in types])


def _kv_bytes(
    path: str, lines: list[int], columns: dict[str, Floats], bits: Floats, header: list[str], cells: list[list[str]]
) -> Floats:
    """Bytes of keys and values read: as the table says, else from the type."""
    nominal = elements(columns) * bits / units.BITS_PER_BYTE
    if "kv_bytes" not in header:
        return nominal
    place = header.index("kv_bytes")
    stated = _column(path, "kv_bytes", lines, [row[place] for row in cells], 1e18, whole=False)
    off = np.flatnonzero((stated < 0.5 * nominal) | (stated > 2.5 * nominal))
    if len(off):
        row = off[0]
        raise InputError(
            f"{path}:{lines[row]}: kv_bytes = {stated[row]:,.0f}: must be near {nominal[row]:,.0f}, as the shape says"
        )
    return stated


def _check_heads(path: str, lines: list[int], columns: dict[str, Floats]) -> None:
    off = np.flatnonzero(columns["n_q_heads"] % columns["n_kv_heads"])
    if len(off):
        row = off[0]
        heads = f"n_kv_heads = {columns['n_kv_heads'][row]:.0f}"
        raise InputError(f"{path}:{lines[row]}: {heads}: must divide n_q_heads = {columns['n_q_heads'][row]:.0f}")


def elements(columns: dict[str, Floats]) -> Floats:
    """Key and value elements that a row reads."""
    return 2 * columns["batch"] * columns["n_kv_heads"] * columns["head_dim"] * columns["kv_len_tokens"]


#: device names here -> folders of the package
_FOLDERS = {
    "A100-80GB": "a100_sxm",
    "H100": "h100_sxm",
    "H200": "h200_sxm",
    "B200": "b200_sxm",
    "L40S": "l40s",
    "B300": "b300_sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "RTX-PRO-6000": "rtx_pro_6000_server",
}


def _version_key(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[.]|(?<=\d)(?=[a-z])", name)]


def package_folder(device: str) -> Path:
    """The folder of a device in an installed `aiconfigurator-core`. Raises InputError where there is none."""
    try:
        from importlib import resources

        root = Path(str(resources.files("aiconfigurator_core"))) / "systems" / "data"
    except ModuleNotFoundError as error:
        raise InputError(f"{PACKAGE} is not installed: {install('calibrate')}") from error
    if device not in _FOLDERS:
        raise InputError(f"device = {show(device)}: not in {PACKAGE}: {did_you_mean(device, _FOLDERS)}")
    return root / _FOLDERS[device]


def newest(folder: Path, name: str) -> Path | None:
    """The table called `name` of the newest version: `folder` has a folder a version."""
    tables = sorted(folder.glob(f"*/{name}"), key=lambda path: _version_key(path.parent.name))
    return tables[-1] if tables else None


def from_package(device: str, stack: str, kind: Kind = "attention") -> Table:
    """The newest table of a device and framework from an installed `aiconfigurator-core` (extra `calibrate`).

    Attention: full context, head dimension 128, for each type of keys and values the kernel with most rows. Matrix
    products: 16 bits, at most 1,024 rows. Its times are milliseconds and its context is `isl` + `step`.
    """
    top = package_folder(device) / kind
    have = sorted(path.name for path in top.glob("*") if path.is_dir())
    if stack not in have:
        raise InputError(f"stack = {show(stack)}: not in {PACKAGE} for {device}: {did_you_mean(stack, have)}")
    name = "generation_attention_perf.parquet" if kind == "attention" else "gemm_perf.parquet"
    table_path = newest(top / stack, name)
    if table_path is None:
        raise InputError(f"{PACKAGE} has no {kind} table of {device} and {show(stack)}: give a CSV file")
    try:
        with tables.parquet(table_path) as file:
            frame = file.read().to_pandas()
        return _attention_frame(frame, stack) if kind == "attention" else _gemm_frame(frame, stack)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{table_path}: cannot be used: {error}: install {PACKAGE} 0.12.0") from error


def _attention_frame(frame: Any, stack: str) -> Table:
    keep = frame["head_dim"] == 128
    if "window_size" in frame:
        keep &= frame["window_size"] == 0
    frame = frame[keep & frame["kv_cache_dtype"].isin(list(KV_DTYPES))]
    most = frame.groupby("kv_cache_dtype")["kernel_source"].agg(lambda kernels: kernels.value_counts().index[0])
    frame = frame[frame["kernel_source"] == frame["kv_cache_dtype"].map(most)]
    columns = {
        "batch": frame["batch_size"],
        "n_q_heads": frame["num_heads"],
        "n_kv_heads": frame["num_key_value_heads"],
        "head_dim": frame["head_dim"],
        "kv_len_tokens": frame["isl"] + frame["step"],
    }
    types = [KV_DTYPES[name] for name in frame["kv_cache_dtype"]]
    return _from_frame(frame, "attention", columns, types, stack)


def _gemm_frame(frame: Any, stack: str) -> Table:
    frame = frame[frame["gemm_dtype"].isin(["bfloat16", "float16"]) & (frame["m"] <= 1024)]
    columns = {name: frame[name] for name in GEMM}
    return _from_frame(frame, "gemm", columns, [("fp16", 16)] * len(frame), stack)


def _from_frame(frame: Any, kind: Kind, columns: dict[str, Any], types: Sequence[tuple[str, int]], stack: str) -> Table:
    times = frame["latency"].to_numpy(float) * units.to_base(1, "ms") / units.to_base(1, "us")
    numbers = {**{name: values.to_numpy(float) for name, values in columns.items()}, TIME: times}
    good = np.isfinite(times) & (times > 0)
    if kind == "attention":
        bits = np.array([float(bits) for _, bits in types])
        numbers["kv_bytes"] = elements(numbers) * bits / units.BITS_PER_BYTE
    if not len(frame):
        raise ValueError("no row of a usable kind")
    table = Table(
        PACKAGE,
        kind=kind,
        lines=np.arange(1, len(frame) + 1),
        columns=numbers,
        codes=np.array([code for code, _ in types]),
        frameworks=np.full(len(frame), stack),
        versions=frame["version"].to_numpy(str),
        gpu=str(frame["device"].iloc[0]),
    )
    return table.take(good)
