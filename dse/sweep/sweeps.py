"""Tables of many design points: results as rows, and any points of a sweep again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from dse.core.errors import InputError, LimitError, show
from dse.core.field import check_whole
from dse.model.results import FLAGS, INTEGERS, RESULT_UNITS
from dse.sweep import table
from dse.sweep.grid import decode_places
from dse.sweep.points import columns_of
from dse.sweep.spec import Sweep, from_dict, read

#: points of one in-memory table; about 0.2 ms and 1 kB each
MAX_POINTS = 1_000_000


def to_table(rows: Iterable[dict[str, object]]) -> pd.DataFrame:
    """Results as a DataFrame with the documented columns and types, whatever the rows hold."""
    table = pd.DataFrame(list(rows), columns=list(RESULT_UNITS))
    for name, unit in RESULT_UNITS.items():
        if name == "assumptions":
            table[name] = [", ".join(names) for names in table[name]]
        elif name in FLAGS:
            table[name] = table[name].astype(bool)
        elif name in INTEGERS:
            table[name] = table[name].astype("Int64")
        elif unit:
            table[name] = table[name].astype("float64")
        else:
            table[name] = table[name].astype("string")
    return table


def rows(spec: Sweep | Mapping[str, Any] | str | Path, points: Sequence[int]) -> pd.DataFrame:
    """Rows of a sweep by `point`, their places in the grid from 0, evaluated now; conditions drop none of them.

    Raises InputError for a place that the grid has not, LimitError for over `MAX_POINTS`.
    """
    if isinstance(points, str) or not isinstance(points, Iterable):
        raise InputError(f"points = {show(points)}: must be a list of whole numbers: places in the grid")
    sweep = spec if isinstance(spec, Sweep) else from_dict(spec) if isinstance(spec, Mapping) else read(spec)
    if len(points) > MAX_POINTS:
        raise LimitError(f"rows of {len(points):,} points: at most {MAX_POINTS:,}")
    for place in points:
        check_whole("point", place, 0, sweep.n_points - 1)
    digits = decode_places(sweep, points)
    columns = columns_of(sweep, digits)
    return table.to_frame(table.to_arrow(replace(sweep, front=None), columns))
