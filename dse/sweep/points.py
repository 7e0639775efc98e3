"""The points of a sweep, in stretches, evaluated into columns."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.core.errors import InputError, LimitError
from dse.model import engine
from dse.model.point import Point
from dse.model.results import INTEGERS
from dse.sweep.axes import SweepAxis
from dse.sweep.columns import (
    BEYOND_LIMIT,
    FEASIBLE,
    MISSING,
    NOT_ALLOWED,
    REQUEST_TOO_LARGE,
    WEIGHTS_TOO_LARGE,
    Columns,
    Names,
    column_of,
    merged,
)
from dse.sweep.conditions import Digits
from dse.sweep.grid import Runs, kept_digits
from dse.sweep.spec import Sweep

#: points evaluated at a time, at first and at most; rows evaluated one by one between two looks at whether to stop.
#: Results do not depend on them.
BLOCK_POINTS, MAX_BLOCK_POINTS = 256, 2**19


def no_check() -> None:
    """Do nothing (default callback)."""


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


def axis_column(axis: SweepAxis, digits: Digits) -> Any:
    """The values of an axis at the points at `digits`."""
    if isinstance(digits, Runs) and axis.name in digits.outer:
        by_run = _axis_values(axis, digits.outer[axis.name])
        if isinstance(by_run, Names):
            return Names(digits.spread(by_run.codes), by_run.names, True)
        return digits.spread(by_run)
    return _axis_values(axis, digits[axis.name])


def _axis_values(axis: SweepAxis, digits: NDArray[np.int32]) -> Any:
    if axis.kind == "text":
        return Names(digits, axis.values).normal()
    if axis.kind == "whole":
        return np.array([*axis.values, MISSING], dtype=np.int64)[digits]
    return np.array([*axis.values, np.nan], dtype=np.float64)[digits]


def evaluate_points(sweep: Sweep, digits: Digits, check: Callable[[], None] = no_check) -> Columns:
    """Results of points: `feasible`, `infeasible_code`, `runs` and the columns of `sweep.keep`.

    By compiled code or point by point, as `sweep.by` says: same bits.
    """
    if sweep.is_compiled:
        columns = evaluate_compiled(sweep, digits, check)
        if columns is not None:
            return columns
    return evaluate_rows(sweep, digits, check)


def evaluate_compiled(sweep: Sweep, digits: Digits, check: Callable[[], None] = no_check) -> Columns | None:
    """`evaluate_points` by compiled code, points beyond int64 row by row; None where all are."""
    from dse.sweep import compiled  # loads numba

    evaluated = compiled.evaluate(sweep, digits)
    if evaluated is None:
        return None
    columns, left = evaluated
    if not left.any():
        return columns
    rest = evaluate_rows(sweep, {name: column[left] for name, column in digits.items()}, check)
    return {name: merged(column, rest[name], left) for name, column in columns.items()}


def evaluate_rows(sweep: Sweep, digits: Digits, check: Callable[[], None] = no_check) -> Columns:
    """`evaluate_points` by `dse.model.engine.evaluate`, point by point."""
    rows: list[Mapping[str, Any]] = []
    codes: list[int] = []
    for place, places in enumerate(sweep.designs.rows(digits)):
        if place % BLOCK_POINTS == 0:
            check()
        try:
            row: Mapping[str, Any] = engine.evaluate(Point(*sweep.designs.at(*places)))
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
    for name in ("runs", *sweep.keep):
        columns[name] = column_of(name, [row.get(name) for row in rows])
    return columns


def stretches(first: int, last: int, size: int) -> list[tuple[int, int]]:
    """first..last-1 in pieces of at most `size`."""
    return [(start, min(start + size, last)) for start in range(first, last, size)]
