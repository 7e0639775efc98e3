"""Pareto fronts: which rows of a table no other row beats in every objective."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.core.errors import InputError, did_you_mean, show

Sense = Literal["min", "max"]
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: up to so many rows the plain function takes less time than compiling it, or loading it
_FEW = 256
#: from so many rows on, most are rejected by comparing them with a few good ones first
_LONG = 100_000
#: rows of the sample that good ones are taken from, and the most that are taken
_SAMPLE_ROWS, _MAX_LIMITS = 4096, 8
#: parts that threads share; results do not depend on it
_N_PARTS = 64


def objectives_of(maximize: Sequence[str], minimize: Sequence[str]) -> dict[str, Sense]:
    """Objectives by name, those to maximise first. Raises InputError for none, or one given twice."""
    senses: dict[str, Sense] = {}
    for names, sense in ((maximize, "max"), (minimize, "min")):
        for name in names:
            if name in senses:
                raise InputError(f"objective {show(name)}: is given twice: leave one")
            senses[name] = sense  # type: ignore[assignment]
    if not senses:
        raise InputError("objectives: none given: name columns with --maximize and --minimize")
    return senses


def competing(table: pd.DataFrame) -> Mask:
    """Mask of the rows that may be on a front: one request fits, and the device's software runs them, where told."""
    mask: Mask = np.ones(len(table), bool)
    for name in ("feasible", "runs"):
        if name in table:
            mask = mask & table[name].to_numpy(dtype=bool)
    return mask


def front(
    table: pd.DataFrame,
    objectives: Mapping[str, Sense],
    by: Sequence[str] = (),
    alone: bool = False,
    rivals: pd.DataFrame | None = None,
) -> Mask:
    """Mask, in the order of the rows, of those that no other row dominates, nor any of `rivals`, where given.

    A row dominates another when it is no worse in every objective and better in one; equal rows are both kept. With
    `by`, rows compete only with those that have the same values in these columns: a front per model, say. Rows that do
    not compete (`competing`) are never on the front. `alone`: the caller's thread does all. `rivals`: a few good rows
    of elsewhere, objectives only; with `by` there can be none.
    Raises InputError for an unknown column or sense, or a number that is missing (NaN) in a row that is feasible.
    """
    for name in (*objectives, *by):
        if name not in table.columns:
            raise InputError(f"unknown objective {name!r}: {did_you_mean(name, table.columns)}")
    if not objectives:
        raise InputError("objectives: none given: name at least one column, with min or max")
    for name, sense in objectives.items():
        if sense not in ("min", "max"):
            raise InputError(f"objective {name}: sense must be min or max, not {sense!r}")
    competes = competing(table)
    rows = None if competes.all() else np.flatnonzero(competes)
    columns = [_column(table, name, rows) for name in objectives]
    signs = [1.0 if sense == "min" else -1.0 for sense in objectives.values()]
    mask = np.zeros(len(table), dtype=bool)
    if not by:
        against = None if rivals is None else rivals[list(objectives)].to_numpy(dtype="float64") * signs
        kept = front_rows(columns, signs, alone, against)
        mask[kept if rows is None else rows[kept]] = True
        return mask
    inside = table if rows is None else table.iloc[rows]
    for group in inside.groupby(list(by), sort=False, dropna=False).indices.values():
        kept = group[front_rows([column[group] for column in columns], signs, alone)]
        mask[kept if rows is None else rows[kept]] = True
    return mask


def _column(table: pd.DataFrame, name: str, rows: Rows | None) -> Floats:
    try:
        values = table[name].to_numpy(dtype="float64", na_value=np.nan)
    except (TypeError, ValueError):
        raise InputError(f"objective {name}: is not a column of numbers: choose another") from None
    values = np.ascontiguousarray(values if rows is None else values[rows])
    if np.isnan(values.sum()) and len(missing := np.flatnonzero(np.isnan(values))):  # inf - inf is no missing number
        place = int(missing[0])
        row = place if rows is None else int(rows[place])
        raise InputError(f"row {row}: {name} is missing: drop such rows, or mark them by a column `feasible`")
    return values


def front_rows(
    columns: Sequence[Floats], signs: Sequence[float], alone: bool = False, rivals: Floats | None = None
) -> Rows:
    """Rows on the front, ascending, of columns of equal length without NaN; sign 1 minimises, -1 maximises.

    Rows that one of `rivals` [m, objectives] (signed) dominates are left out.
    """
    if rivals is not None:
        rows = _not_dominated([_read_only(column) for column in columns], signs, rivals)
        return rows[front_rows([column[rows] for column in columns], signs, alone)]
    n = len(columns[0])
    columns = [_read_only(column) for column in columns]
    rows = np.arange(n) if n < _LONG else _not_rejected(columns, signs, alone)
    small = [(column if len(rows) == n else column[rows]) * sign for column, sign in zip(columns, signs, strict=True)]
    if len(rows) >= _LONG:  # a second look at what is left, which may equal the best in a column
        minima = [1.0] * len(small)
        again = _not_dominated(
            [_read_only(column) for column in small], minima, rivals_of(small, minima, strictly=False)
        )
        rows, small = rows[again], [column[again] for column in small]
    return rows[_front_of_minima(small)]


def _read_only(column: Floats) -> Floats:
    """A read-only view: columns from a file are read-only, and compiled code takes one kind alone."""
    view = column.view()
    view.flags.writeable = False
    return view


def _not_rejected(columns: Sequence[Floats], signs: Sequence[float], alone: bool) -> Rows:
    """Rows that none of a few good ones beats in every objective: all of the front and little else."""
    from dse.sweep.pareto import kernels

    n = len(columns[0])
    limits = rivals_of(columns, signs, strictly=True)
    rows, counts = np.empty(n + 1, np.int64), np.zeros(_N_PARTS, np.int64)
    reject = kernels.reject_alone if alone else kernels.reject
    reject(tuple(columns), np.array(signs), limits, rows, counts)
    share = -(-n // _N_PARTS)
    return np.concatenate([rows[i * share : i * share + count] for i, count in enumerate(counts)])


def _not_dominated(columns: Sequence[Floats], signs: Sequence[float], limits: Floats) -> Rows:
    """Rows that none of `limits` (signed) dominates."""
    from dse.sweep.pareto import kernels

    rows = np.empty(len(columns[0]) + 1, np.int64)
    limits = np.ascontiguousarray(limits)  # compiled code wants all alike
    return rows[: kernels.reject_dominated(tuple(columns), np.array(signs), limits, rows)]


def rivals_of(columns: Sequence[Floats], signs: Sequence[float] | Floats, strictly: bool) -> Floats:
    """Up to eight rows (signed) of a sample that together beat most others of it, chosen one after the other.

    `strictly`: in every objective; otherwise no worse in all and better in one is enough. None where they beat nothing.
    """
    step = max(len(columns[0]) // _SAMPLE_ROWS, 1)
    sample = np.column_stack([column[::step] * sign for column, sign in zip(columns, signs, strict=True)])
    best = sample[_front_of_minima([np.ascontiguousarray(column) for column in sample.T])][: 16 * _MAX_LIMITS]
    worse = best[:, None, :] < sample[None, :, :]
    beats: Mask = np.logical_and.reduce(worse if strictly else best[:, None, :] <= sample[None, :, :], axis=2)
    if not strictly:
        beats &= np.logical_or.reduce(worse, axis=2)
    left = np.ones(len(sample), bool)
    chosen: list[int] = []
    while len(chosen) < _MAX_LIMITS:
        gains = (beats & left).sum(axis=1)
        row = int(gains.argmax())
        if gains[row] * 1000 <= len(sample):
            break
        chosen.append(row)
        left &= ~beats[row]
    return np.ascontiguousarray(best[chosen])


def _front_of_minima(columns: Sequence[Floats]) -> Mask:
    """Mask of the front of minima of columns of equal length; exact."""
    from dse.sweep.pareto import kernels

    n = len(columns[0])
    keep: Mask = np.zeros(n, np.bool_)
    if n == 0:
        return keep
    if len(columns) == 1:
        keep[columns[0] == columns[0].min()] = True
        return keep
    if n <= _FEW:
        plain = kernels.front_of_many.function  # type: ignore[attr-defined]
        plain(np.column_stack(columns), _lexicographic(columns), keep, np.empty(n, np.int64))
        return keep
    if len(columns) == 2:
        x, y = columns
        kernels.front_of_two(x, y, np.argsort(x), keep)
        return keep
    order = _lexicographic(columns)
    if len(columns) == 3:
        x, y, z = columns
        rank, n_ranks = _ranks(y)
        kernels.front_of_three(x, y, z, order, rank, np.full(n_ranks + 1, np.inf), keep)
        return keep
    kernels.front_of_many(np.column_stack(columns), order, keep, np.empty(n, np.int64))
    return keep


def _lexicographic(columns: Sequence[Floats]) -> Rows:
    """Order by the first column, ties by the next: only ties are sorted again, which is far faster than a lexsort."""
    order = np.argsort(columns[0])
    in_order = columns[0][order]
    equal = in_order[1:] == in_order[:-1]
    if equal.any():
        tied = np.flatnonzero(np.concatenate([equal, [False]]) | np.concatenate([[False], equal]))
        rows = order[tied]
        order[tied] = rows[np.lexsort([column[rows] for column in columns[::-1]])]
    return order


def _ranks(values: Floats) -> tuple[Rows, int]:
    """Rank of each value among the distinct ones, from 0, and how many these are."""
    order = np.argsort(values)
    in_order = values[order]
    steps = np.concatenate([[0], np.cumsum(in_order[1:] != in_order[:-1])])
    rank = np.empty(len(values), np.int64)
    rank[order] = steps
    return rank, int(steps[-1]) + 1
