"""Compiled fronts of minima: cheap rejection of most rows of long columns, then an exact pass over the rest.

A row dominates another when it is no worse (no larger) in every column and better in one. Long columns come with a
sign, so that nothing is copied to maximise: +1 minimises, -1 maximises.
"""

import numpy as np
from numpy.typing import NDArray

from kernels_ref import inner, kernel, prange, sequential

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Flags = NDArray[np.uint8]
Columns = tuple[Floats, ...]

#: rows rejected together: their flags and columns stay in the first cache
_BLOCK = 2048


@inner
def _worse(column: Floats, sign: float, limit: float, flags: Flags) -> None:
    """Keep a flag where the column is worse than the limit."""
    for i in range(column.size):
        flags[i] = flags[i] & np.uint8(column[i] * sign > limit)


@inner
def _first_worse(column: Floats, sign: float, limit: float, flags: Flags) -> None:
    for i in range(column.size):
        flags[i] = np.uint8(column[i] * sign > limit)


@inner
def _join(flags: Flags, dominated: Flags) -> None:
    for i in range(flags.size):
        dominated[i] = dominated[i] | flags[i]


@inner
def _reject(columns: Columns, signs: Floats, limits: Floats, start: int, end: int, rows: Rows) -> int:
    """Write the rows start..end that no row of `limits` beats in every column; how many."""
    dominated, flags = np.empty(_BLOCK, np.uint8), np.empty(_BLOCK, np.uint8)
    count = 0
    for block in range(start, end, _BLOCK):
        last = min(block + _BLOCK, end)
        size = last - block
        dominated[:] = 0
        for j in range(limits.shape[0]):
            _first_worse(columns[0][block:last], signs[0], limits[j, 0], flags[:size])
            for d in range(1, len(columns)):
                _worse(columns[d][block:last], signs[d], limits[j, d], flags[:size])
            _join(flags[:size], dominated[:size])
        for i in range(size):
            rows[count] = block + i
            count += 1 - dominated[i]
    return count


@inner
def _compare(column: Floats, sign: float, limit: float, worse: Flags, no_better: Flags) -> None:
    for i in range(column.size):
        value = column[i] * sign
        worse[i] = worse[i] | np.uint8(value > limit)
        no_better[i] = no_better[i] & np.uint8(value >= limit)


@sequential
def reject_dominated(columns: Columns, signs: Floats, limits: Floats, rows: Rows) -> int:
    """Write the rows that no row of `limits` [m, d] (signed) dominates to the start of `rows`; how many.

    Slower than `reject`, which keeps whatever equals the best in one column: of columns with few values, most rows.
    """
    dominated, worse, no_better = np.empty(_BLOCK, np.uint8), np.empty(_BLOCK, np.uint8), np.empty(_BLOCK, np.uint8)
    count = 0
    for block in range(0, columns[0].size, _BLOCK):
        last = min(block + _BLOCK, columns[0].size)
        size = last - block
        dominated[:] = 0
        for j in range(limits.shape[0]):
            worse[:], no_better[:] = 0, 1
            for d in range(len(columns)):
                _compare(columns[d][block:last], signs[d], limits[j, d], worse[:size], no_better[:size])
            for i in range(size):
                dominated[i] = dominated[i] | (worse[i] & no_better[i])
        for i in range(size):
            rows[count] = block + i
            count += 1 - dominated[i]
    return count


@kernel
def reject(columns: Columns, signs: Floats, limits: Floats, rows: Rows, counts: Rows) -> None:
    """Rows that no row of `limits` [m, d] (signed) beats in every column, and never one that belongs to the front.

    Each part of the rows, as many as `counts` has, writes its own to the start of its share of `rows`.
    """
    n, n_parts = columns[0].size, counts.size
    step = (n + n_parts - 1) // n_parts
    for part in prange(n_parts):
        start, end = min(part * step, n), min(part * step + step, n)
        counts[part] = _reject(columns, signs, limits, start, end, rows[start : end + 1])


@sequential
def reject_alone(columns: Columns, signs: Floats, limits: Floats, rows: Rows, counts: Rows) -> None:
    """`reject` on the thread that calls it, which may be one of many."""
    n, n_parts = columns[0].size, counts.size
    step = (n + n_parts - 1) // n_parts
    for part in range(n_parts):
        start, end = min(part * step, n), min(part * step + step, n)
        counts[part] = _reject(columns, signs, limits, start, end, rows[start : end + 1])


@sequential
def front_of_two(x: Floats, y: Floats, order: Rows, keep: Mask) -> None:
    """Mark in `keep` the front of minima of two columns; `order` sorts x.

    Of equal x, the rows with the smallest y stay if no smaller x has a y as small.
    """
    best = np.inf
    i = 0
    any_before = False
    while i < order.size:
        end = i
        low = y[order[i]]
        while end < order.size and x[order[end]] == x[order[i]]:
            low = min(low, y[order[end]])
            end += 1
        if not any_before or low < best:
            for k in range(i, end):
                if y[order[k]] == low:
                    keep[order[k]] = True
            best = low
            any_before = True
        i = end


@inner
def _lowest(tree: Floats, rank: int) -> float:
    """Smallest z among the ranks of y up to `rank`."""
    lowest = np.inf
    i = rank + 1
    while i > 0:
        lowest = min(lowest, tree[i])
        i -= i & -i
    return lowest


@inner
def _add(tree: Floats, rank: int, z: float) -> None:
    i = rank + 1
    while i < tree.size and tree[i] > z:
        tree[i] = z
        i += i & -i


@sequential
def front_of_three(x: Floats, y: Floats, z: Floats, order: Rows, rank_y: Rows, tree: Floats, keep: Mask) -> None:
    """Mark in `keep` the front of minima of three columns.

    `order` sorts by x, then y, then z; `rank_y` gives equal y equal ranks from 0; `tree` (ranks + 1, all inf) is a
    Fenwick tree of the smallest z seen up to a rank. An earlier row in this order that is no worse in y and z dominates
    unless it is equal in all three.
    """
    i = 0
    while i < order.size:
        first = order[i]
        end = i
        while end < order.size and (
            x[order[end]] == x[first] and y[order[end]] == y[first] and z[order[end]] == z[first]
        ):
            end += 1
        if i == 0 or not _lowest(tree, rank_y[first]) <= z[first]:
            for k in range(i, end):
                keep[order[k]] = True
            _add(tree, rank_y[first], z[first])
        i = end


@sequential
def front_of_many(values: Floats, order: Rows, keep: Mask, kept: Rows) -> None:
    """Mark in `keep` the front of minima of rows of `values` [n, d]; `order` sorts them lexicographically.

    A row can only be dominated by one before it; it is compared with the front so far, `kept` [n].
    """
    n_kept = 0
    n_columns = values.shape[1]
    for i in range(order.size):
        row = order[i]
        beaten = False
        for j in range(n_kept):
            other = kept[j]
            no_worse, better = True, False
            for d in range(n_columns):
                if values[other, d] > values[row, d]:
                    no_worse = False
                    break
                if values[other, d] < values[row, d]:
                    better = True
            if no_worse and better:
                beaten = True
                if j > 0:  # what beats much moves forward
                    kept[j], kept[j - 1] = kept[j - 1], kept[j]
                break
        if not beaten:
            keep[row] = True
            kept[n_kept] = row
            n_kept += 1
