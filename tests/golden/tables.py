"""The stored tables: how they are written and read, and what changed between two of them."""

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dse.model.results import RESULT_UNITS
from golden import designs

#: random designs as they are asked by default, and in the papers' conventions
DESIGNS, PAPERS = designs.GOLDEN / "designs.parquet", designs.GOLDEN / "papers.parquet"
#: relative error of floats, of times at peak rates and of others; and what rounding to so many bits of mantissa adds
IDEAL, CALIBRATED = 1e-12, 1e-9
MANTISSA_BITS, ROUNDED = 44, 3e-14
#: of a result that changed, the designs that are shown
N_SHOWN = 3


class Row(NamedTuple):
    """A design and its results, or {"error": message}."""

    design: dict[str, Any]
    results: dict[str, Any]

    @property
    def tolerance(self) -> float:
        """Relative error that a float may have."""
        return (IDEAL if self.results.get("model_kind") == "ideal" else CALIBRATED) + ROUNDED


def _rounded(values: list[float | None]) -> np.ndarray:
    """Floats with the last bits of their mantissa rounded away; whole numbers below 2**44 keep all of theirs."""
    drop = 52 - MANTISSA_BITS
    whole = np.array([0.0 if value is None else value for value in values]).view(np.int64)
    return ((whole + (1 << (drop - 1))) >> drop << drop).view(np.float64)


def _column(values: list[Any]) -> tuple[pa.Array, str]:
    """A column and how to read it: values as they are, whole numbers beyond int64 and mixed numbers as text."""
    types = {type(value) for value in values if value is not None}
    if types == {float}:
        return pa.array(_rounded(values), pa.float64(), mask=np.array([value is None for value in values])), "float"
    if types == {int} and all(value is None or abs(value) < 2**63 for value in values):
        return pa.array(values, pa.int64()), "int"
    if types <= {int, float} and types:
        return pa.array([None if value is None else repr(value) for value in values], pa.string()), "number"
    if types == {bool}:
        return pa.array(values, pa.bool_()), "bool"
    if types <= {str}:
        return pa.array(values, pa.string()), "text"
    raise TypeError(f"a column of {types}")


def write(path: Path, rows: list[Row]) -> None:
    """A table: each design as JSON, then its results, then the `error` of refused designs."""
    made = {name: _column([row.results.get(name) for row in rows]) for name in (*RESULT_UNITS, "error")}
    asked = pa.array([json.dumps(row.design) for row in rows])
    split = {n for n, (array, kind) in made.items() if kind == "float" and len(array.unique()) > len(rows) // 4}
    table = pa.table({"design": asked, **{name: array for name, (array, _) in made.items()}})
    pq.write_table(
        table.replace_schema_metadata({"kinds": json.dumps({name: kind for name, (_, kind) in made.items()})}),
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in table.column_names if name not in split],
        column_encoding=dict.fromkeys(split, "BYTE_STREAM_SPLIT"),
        write_statistics=False,
    )


def read(source: Path | bytes) -> list[Row]:
    """The rows of a table."""
    table = pq.read_table(BytesIO(source) if isinstance(source, bytes) else source)
    kinds = json.loads(table.schema.metadata[b"kinds"])
    asked = [json.loads(text) for text in table["design"].to_pylist()]
    columns = [_restored(table[name].to_pylist(), kind) for name, kind in kinds.items()]
    found = [dict(zip(kinds, values, strict=True)) for values in zip(*columns, strict=True)]
    return [
        Row(design, {"error": error} if (error := results.pop("error")) else results)
        for design, results in zip(asked, found, strict=True)
    ]


def _restored(column: list[Any], kind: str) -> list[Any]:
    """Numbers that are stored as text: whole ones exactly."""
    if kind != "number":
        return column
    return [text if text is None else int(text) if text.lstrip("-").isdigit() else float(text) for text in column]


def today(rows: list[Row]) -> list[Row]:
    """The same designs, evaluated."""
    return [Row(row.design, designs.evaluated(row.design)) for row in rows]


def same(expected: Any, actual: Any, tolerance: float) -> bool:
    """Whole numbers, texts and None equal, floats close."""
    if isinstance(expected, float) and isinstance(actual, int | float) and not isinstance(actual, bool):
        return expected == actual or abs(expected - actual) <= tolerance * max(abs(expected), abs(actual))
    return type(expected) is type(actual) and expected == actual


def asked_text(design: dict[str, Any]) -> str:
    """A design in a line."""
    return ", ".join(f"{name}={value}" for name, value in design.items())


def difference(before: list[Row], after: list[Row]) -> Iterator[str]:
    """What changed between two tables, as lines: by result how many designs, how far, and where most."""
    if [row.design for row in before] != [row.design for row in after]:
        yield f"designs were drawn anew: {len(before):,} before, {len(after):,} after: no design is compared"
        return
    pairs = list(zip(before, after, strict=True))
    names = list(dict.fromkeys(name for row in (*before, *after) for name in row.results if name != "error"))
    both = [(old, new) for old, new in pairs if "error" not in old.results and "error" not in new.results]
    refused = [(old, new) for old, new in pairs if old.results.get("error") != new.results.get("error")]
    known = [{name for row in rows for name in row.results} for rows in (before, after)]
    changed: dict[str, list[tuple[Row, Row]]] = {}
    for name in (name for name in names if all(name in own for own in known)):
        wrong = [
            (old, new) for old, new in both if not same(old.results.get(name), new.results.get(name), new.tolerance)
        ]
        if wrong:
            changed[name] = wrong
    touched = {id(old) for wrong in changed.values() for old, _ in wrong} | {id(old) for old, _ in refused}
    yield f"{len(touched):,} of {len(pairs):,} designs changed"
    for old, new in refused[:N_SHOWN]:
        yield f"  refusal: {old.results.get('error') or 'none'} -> {new.results.get('error') or 'none'}"
        yield f"      {asked_text(new.design)}"
    if len(refused) > N_SHOWN:
        yield f"  refusal: {len(refused):,} designs in all"
    for name in (name for name in names if not all(name in own for own in known)):
        yield f"  {name}: {'is new' if name in known[1] else 'is no result any more'}"
    for name, wrong in changed.items():
        yield from _of_result(name, wrong)


def _of_result(name: str, wrong: list[tuple[Row, Row]]) -> Iterator[str]:
    """How a result changed: of numbers the ratios of after to before, and the designs where they are largest."""
    values = [(old.results.get(name), new.results.get(name), new.design) for old, new in wrong]
    numbers = [
        (b / a, a, b, design)
        for a, b, design in values
        if all(isinstance(one, int | float) and not isinstance(one, bool) for one in (a, b)) and a
    ]
    far = [abs(np.log(ratio)) if ratio > 0 else np.inf for ratio, *_ in numbers]
    said = f"  {name}: {len(wrong):,} designs"
    if finite := [each for each in far if np.isfinite(each)]:
        middle, most = np.exp(np.median(finite)), np.exp(np.quantile(finite, 0.9))
        said += f", ratio {np.median([ratio for ratio, *_ in numbers]):.6g} in the median"
        said += f"; {middle:.6g} either way in the median, {most:.6g} in the 90th percentile"
    yield said
    order = np.argsort(far)[::-1][:N_SHOWN]
    shown = [(a, b, design) for _, a, b, design in (numbers[i] for i in order)] or values[:N_SHOWN]
    for a, b, design in shown:
        yield f"    {a!r} -> {b!r}: {asked_text(design)}"
