"""Uncertainty of a front: intervals of its objectives, the chance that a design really beats the next one, and the
assumed numbers that they rest on."""

from itertools import pairwise
from typing import Any

import pandas as pd

from dse.core.errors import InputError
from dse.model import uncertainty
from dse.model.results import RESULT_UNITS, assumed_behind, rests_on
from dse.sweep import filling
from dse.sweep.pareto.designs import DesignFront

#: designs of a front whose assumptions are looked up, where its table has none
MAX_LOOKED_UP = 256


def assumed(found: DesignFront) -> str:
    """A line that names the assumed numbers behind the objectives of a front's designs; "" of a table of your own."""
    table = filling.filled(found.table.head(MAX_LOOKED_UP), filling.note_of(found.table), ["assumptions"])
    if "assumptions" not in table:
        return ""
    known = [name for name in found.objectives if name in RESULT_UNITS]
    names = {name for text in table["assumptions"].dropna() for name in str(text).split(", ") if name}
    return rests_on(sorted({name for result in known for name in assumed_behind(result, names, {})}))


def intervals(found: DesignFront) -> list[dict[str, tuple[float, float]]]:
    """For each design of a front, objective -> the ends of its 80 % interval; {} where the table has no intervals.

    Raises InputError for text in a column that intervals read.
    """
    if found.table.empty:  # columns without rows have no kind
        return []
    for name in uncertainty.COMPARED:
        if RESULT_UNITS[name] and name in found.table and pd.api.types.is_string_dtype(found.table[name].dropna()):
            raise InputError(f"{name}: is not a column of numbers: mend it, or leave it out")
    rows = found.table.to_dict("records")
    return [
        {name: ends for name in found.objectives if (ends := uncertainty.known_ends(row, name))}  # type: ignore[arg-type]
        for row in rows
    ]


def chances(found: DesignFront) -> list[float | None]:
    """For each design the chance that it really is better than the next best of its front in the first objective that
    has intervals; None for the last, and where the table lacks columns that comparisons read (`keep = "all"`)."""
    rows: list[dict[Any, Any]] = found.table.to_dict("records")
    sure: list[float | None] = [None] * len(rows)
    column = next((name for name in found.objectives if rows and uncertainty.known_ends(rows[0], name)), None)
    if column is None or any(name not in rows[0] for name in (*uncertainty.COMPARED[:-1], column)):
        return sure
    sign = -1 if found.objectives[column] == "max" else 1
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(tuple(row[name] for name in found.by), []).append(i)
    for places in groups.values():
        places.sort(key=lambda i: sign * rows[i][column])
        for i, after in pairwise(places):
            sure[i] = uncertainty.gain(rows[i], rows[after], column).sure
    return sure
