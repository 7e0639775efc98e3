"""Count the points that satisfy a sweep's conditions, or estimate them from a sample."""

import numpy as np

from dse.sweep.grid import kept
from dse.sweep.spec import Dimension, Sweep

#: points that are looked at, to count or to estimate
MAX_LOOKED_AT = 2**20
#: stretches of points that an estimate takes
STRETCHES = 64


def rows_left(sweep: Sweep) -> tuple[int, bool]:
    """Points that meet all conditions, and whether that is exact.

    Axes that no condition names multiply. Where the others have too many combinations, points are taken evenly.
    """
    named = frozenset().union(*(condition.names for condition in sweep.where))
    inside = tuple(d for d in sweep.dimensions if named & _names(d))
    if not inside:
        return sweep.n_points, True
    small = Sweep(axes=sweep.axes, dimensions=inside, where=sweep.where)
    times = sweep.n_points // small.n_points
    if small.n_points <= MAX_LOOKED_AT:
        return times * len(kept(small, 0, small.n_points)[1]), True
    size = MAX_LOOKED_AT // STRETCHES
    starts = np.linspace(0, small.n_points - size, STRETCHES).astype(np.int64).tolist()
    n_kept = sum(len(kept(small, start, start + size)[1]) for start in starts)
    return times * round(small.n_points * n_kept / (STRETCHES * size)), False


def _names(dimension: Dimension) -> set[str]:
    blocks = dimension.blocks
    return {name for b in blocks for name, _ in b.fixed} | {axis.name for b in blocks for axis in b.varying}
