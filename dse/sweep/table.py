"""Columns of a sweep as an Arrow table, a DataFrame, and the bytes of a Parquet file: the same bytes each time."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dse.core import tables
from dse.model.results import FLAGS, INTEGERS, RESULT_UNITS
from dse.sweep.columns import MISSING, Columns, Names
from dse.sweep.spec import Sweep

#: of zstd: its fast levels take whole numbers that repeat or count five times as fast as level 1, and no more space
COMPRESSION_LEVEL = -5
#: values that the encoder takes at a time
WRITE_BATCH = 2**16
_NAMES = pa.dictionary(pa.int32(), pa.string())
#: columns that every point has a value of; so has every axis but the parameters of quantizers
ALWAYS = ("feasible", "infeasible_code", "runs")
#: column of a front that says which point of the grid a design is
POINT = "point"


def schema(sweep: Sweep) -> pa.Schema:
    """Types and units of the columns; they depend on the sweep alone, never on its values."""
    fields = [pa.field(POINT, pa.int64(), False)] if sweep.front else []
    for name, unit in sweep.columns.items():
        axis = sweep.axis.get(name)
        always = name in ALWAYS if axis is None else axis.role != "parameter"
        if axis is not None:
            kind = {"text": _NAMES, "whole": pa.int64(), "number": pa.float64()}[axis.kind]
        elif name in FLAGS:
            kind = pa.bool_()
        elif name == "infeasible_code":
            kind = pa.int8()
        elif name in INTEGERS:
            kind = pa.int64()
        else:
            kind = pa.float64() if RESULT_UNITS[name] else _NAMES
        fields.append(pa.field(name, kind, not always, metadata={"unit": unit} if unit else None))
    return pa.schema(fields)


def to_arrow(sweep: Sweep, columns: Columns) -> pa.Table:
    """The columns as a table; NaN, MISSING and -1 become nulls."""
    return to_arrow_of(schema(sweep), columns)


def to_arrow_of(types: pa.Schema, columns: Columns) -> pa.Table:
    """`to_arrow` of the columns of a schema."""
    return pa.table([_array(columns[field.name], field.type) for field in types], schema=types)


def _array(column: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(column, Names):
        normal = column.normal()
        indices = pa.array(normal.codes, mask=_mask(normal.codes < 0))
        return pa.DictionaryArray.from_arrays(indices, pa.array(normal.names, type=pa.string()))
    if column.dtype == np.float64:
        return pa.array(column, type=kind, mask=_mask(np.isnan(column)))
    if column.dtype == np.int64:
        return pa.array(column, type=kind, mask=_mask(column == MISSING))
    return pa.array(column, type=kind)


def _mask(missing: Any) -> Any:
    """Where values are missing; None where none is, since then nothing is copied."""
    return missing if missing.any() else None


def encode(sweep: Sweep, columns: Columns) -> pa.Buffer:
    """The Parquet file of a part. No time, host or path is in it; pyarrow's version is."""
    return encode_table(sweep, to_arrow(sweep, columns))


def encode_table(sweep: Sweep, table: pa.Table) -> pa.Buffer:
    """The Parquet file of a table with the columns of a sweep."""
    sink = pa.BufferOutputStream()
    names = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type) and field.name not in sweep.axis]
    pq.write_table(
        table,
        sink,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=COMPRESSION_LEVEL,
        use_dictionary=names,
        use_byte_stream_split=floats,
        store_schema=True,
        row_group_size=max(sweep.part_points, 1),
        write_batch_size=WRITE_BATCH,
        write_statistics=[name for name in table.column_names if name not in names],
    )
    return sink.getvalue()


def to_frame(table: pa.Table) -> pd.DataFrame:
    """A DataFrame: names as categories in order of the alphabet, whole numbers as Int64, since some may be missing."""
    whole = {pa.int64(): pd.Int64Dtype()}
    frame: pd.DataFrame = table.unify_dictionaries().to_pandas(types_mapper=whole.get)
    for field in table.schema:
        if pa.types.is_dictionary(field.type):
            names = frame[field.name].cat
            frame[field.name] = names.reorder_categories(sorted(names.categories))
    return frame


def read_part(path: Path, columns: list[str] | None = None) -> pa.Table:
    """One part, or some of its columns."""
    with tables.parquet(path, columns=columns) as file:
        return file.read(columns=columns, use_threads=False)
