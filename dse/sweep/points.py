"""The points of a sweep, in stretches, evaluated into columns."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.core.errors import InputError, LimitError
from dse.model import evaluate as point
from dse.model.results import FLAGS, INTEGERS, RESULT_UNITS
from dse.sweep.axes import Axis
from dse.sweep.conditions import Digits
from dse.sweep.grid import Runs, kept_digits
from dse.sweep.spec import Sweep

#: `infeasible_code` of a point and what it means; points that do not run stay in the table
CODES = (
    "feasible",
    "the weights alone are larger than the memory",
    "the weights fit, but not one request beside them",
    "the combination is not allowed (`dse point` says why)",
    "beyond a limit: a number of bytes over 2^63, or too many packed groups",
)
FEASIBLE, WEIGHTS_TOO_LARGE, REQUEST_TOO_LARGE, NOT_ALLOWED, BEYOND_LIMIT = range(len(CODES))

#: a whole number that is missing
MISSING = np.iinfo(np.int64).min
#: sweeps of so many points run compiled, which takes about a second to load, and longer where nothing was kept; once
#: it is loaded, those of so many
KERNEL_POINTS, LOADED_POINTS = 4096, 32
#: points evaluated at a time, at first and at most; rows evaluated one by one between two looks at whether to stop.
#: Results do not depend on them.
BLOCK_POINTS, MAX_BLOCK_POINTS = 256, 2**19


@dataclass(frozen=True)
class Names:
    """A column of names: `codes` are places in `names`, -1 where there is none."""

    codes: NDArray[np.int32]
    names: tuple[str, ...]
    #: names are sorted, and all of them occur
    is_normal: bool = False

    def __len__(self) -> int:
        return len(self.codes)

    def normal(self) -> "Names":
        """The same column with names sorted and only those that occur: one form for equal columns."""
        if self.is_normal:
            return self
        used = np.flatnonzero(np.bincount(self.codes + 1, minlength=1)[1:])
        names = sorted({self.names[code] for code in used})
        place = {name: i for i, name in enumerate(names)}
        table = np.full(len(self.names) + 1, -1, dtype=np.int32)  # the last: no name
        for code in used:
            table[code] = place[self.names[code]]
        return Names(table[self.codes], tuple(names), True)


#: by name, equally long: float64 (NaN missing), int64 (MISSING missing), bool, int8 codes, Names
Columns = dict[str, Any]


def no_check() -> None:
    """Goes on."""


def evaluate_chunk(sweep: Sweep, first: int, last: int, check: Callable[[], None] = no_check) -> Columns:
    """The table of the grid's points first..last-1 that meet the conditions, in order: columns of `sweep.columns`.

    `check` is called now and then; it may raise to stop.
    """
    return columns_of(sweep, kept_digits(sweep, first, last), check)


def columns_of(sweep: Sweep, digits: Digits, check: Callable[[], None] = no_check) -> Columns:
    """The table of the points at `digits`."""
    axes = {axis.name: axis_column(axis, digits) for axis in sweep.axes}
    return {
        name: column for name, column in (axes | evaluate_points(sweep, digits, check)).items() if name in sweep.columns
    }


def axis_column(axis: Axis, digits: Digits) -> Any:
    """The values of an axis at the points at `digits`."""
    if isinstance(digits, Runs) and axis.name in digits.outer:
        by_run = _axis_values(axis, digits.outer[axis.name])
        if isinstance(by_run, Names):
            return Names(digits.spread(by_run.codes), by_run.names, True)
        return digits.spread(by_run)
    return _axis_values(axis, digits[axis.name])


def _axis_values(axis: Axis, digits: NDArray[np.int32]) -> Any:
    if axis.kind == "text":
        return Names(digits, axis.values).normal()
    if axis.kind == "whole":
        return np.array([*axis.values, MISSING], dtype=np.int64)[digits]
    return np.array([*axis.values, np.nan], dtype=np.float64)[digits]


def evaluate_points(sweep: Sweep, digits: Digits, check: Callable[[], None] = no_check) -> Columns:
    """Results of points: `feasible`, `infeasible_code` and the columns of `sweep.keep`.

    Large sweeps run through the compiled core, small ones once it is there: same bits.
    """
    # None, or half a module while another thread imports it
    is_loaded = getattr(sys.modules.get("dse.model.many"), "is_loaded", bool)()
    if sweep.n_points >= (LOADED_POINTS if is_loaded else KERNEL_POINTS):
        from dse.sweep import compiled  # loads numba

        found = compiled.evaluate(sweep, digits, check)
        if found is not None:
            return found
    return evaluate_rows(sweep, digits, check)


def evaluate_rows(sweep: Sweep, digits: Digits, check: Callable[[], None] = no_check) -> Columns:
    """`evaluate_points` by `dse.model.evaluate.evaluate`, point by point."""
    rows: list[Mapping[str, Any]] = []
    codes: list[int] = []
    for place, places in enumerate(sweep.designs.rows(digits)):
        if place % BLOCK_POINTS == 0:
            check()
        try:
            row: Mapping[str, Any] = point.evaluate(*sweep.designs.at(*places))
            code = FEASIBLE if row["feasible"] else WEIGHTS_TOO_LARGE if row["free_bytes"] < 0 else REQUEST_TOO_LARGE
            if any(row[name] is not None and abs(row[name]) >= 2**63 for name in sweep.keep if name in INTEGERS):
                row, code = {}, BEYOND_LIMIT
        except InputError:
            row, code = {}, NOT_ALLOWED
        except (LimitError, OverflowError):
            row, code = {}, BEYOND_LIMIT
        rows.append(row)
        codes.append(code)
    code_column = np.array(codes, dtype=np.int8)
    columns: Columns = {"feasible": code_column == FEASIBLE, "infeasible_code": code_column}
    for name in sweep.keep:
        columns[name] = _result_column(name, [row.get(name) for row in rows])
    return columns


def _result_column(name: str, values: Sequence[Any]) -> Any:
    if name in FLAGS:
        return np.array([bool(value) for value in values], dtype=bool)
    if name in INTEGERS:
        return np.array([MISSING if value is None else value for value in values], dtype=np.int64)
    if RESULT_UNITS[name]:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    texts = [", ".join(value) if isinstance(value, list) else value for value in values]
    place = {text: code for code, text in enumerate(dict.fromkeys(text for text in texts if text is not None))}
    return Names(np.array([place.get(text, -1) for text in texts], dtype=np.int32), tuple(place))


def join(chunks: Sequence[Columns]) -> Columns:
    """Chunks one after the other."""
    if len(chunks) == 1:
        return chunks[0]
    joined: Columns = {}
    for name, column in chunks[0].items():
        columns = [chunk[name] for chunk in chunks]
        joined[name] = _join_names(columns) if isinstance(column, Names) else np.concatenate(columns)
    return joined


def _join_names(columns: Sequence[Names]) -> Names:
    place: dict[str, int] = {}
    codes = []
    for column in columns:
        table = np.array([*(place.setdefault(name, len(place)) for name in column.names), -1], dtype=np.int32)
        codes.append(table[column.codes])
    return Names(np.concatenate(codes), tuple(place))


def stretches(first: int, last: int, size: int) -> list[tuple[int, int]]:
    """first..last-1 in pieces of at most `size`."""
    return [(start, min(start + size, last)) for start in range(first, last, size)]
