"""Points that a few good rivals do not beat: a run is compared while it is at hand, and most of it forgotten."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse.core.compiling import compilable
from dse.model.records import MISSING

#: rivals that all points are compared with, before what is left is compared with each
N_FIRST = 8


class Sieve(NamedTuple):
    """Objectives and limits of points, all to be small (`signs`), the rivals, and what is left of the points."""

    #: 0: nothing is compared
    sifts: int
    #: column of each objective, then of each limit: whole numbers first, then floats; -1: `given` by run
    columns: NDArray[np.int64]
    signs: NDArray[np.float64]
    given: NDArray[np.float64]
    #: by run: its points compete
    competes: NDArray[np.int8]
    #: what limited columns are at most
    bounds: NDArray[np.float64]
    #: real points, below each other: the first beat most of the others in every objective
    rivals: NDArray[np.float64]
    #: points that no rival beats, by run and place in it, and their objectives
    runs: NDArray[np.int64]
    places: NDArray[np.int64]
    values: NDArray[np.float64]
    #: how many these are, and points beyond a limit
    n_left: NDArray[np.int64]
    n_beyond: NDArray[np.int64]
    #: to work in: values by test, points that are left, and that a rival beats
    work: NDArray[np.float64]
    is_left: NDArray[np.int64]
    is_beaten: NDArray[np.int64]


def sieve_of(
    columns: Any, signs: Any, given: Any, competes: Any, bounds: Any, rivals: Any, n_points: int, n_row: int
) -> Sieve:
    """A sieve with room for `n_points`, `n_row` of a run."""
    n_objectives = rivals.shape[1]
    return Sieve(
        sifts=int(n_row > 0),
        columns=np.array(columns, np.int64),
        signs=np.array(signs, np.float64),
        given=given,
        competes=competes,
        bounds=np.array(bounds, np.float64),
        rivals=np.ascontiguousarray(rivals),
        runs=np.empty(n_points, np.int64),
        places=np.empty(n_points, np.int64),
        values=np.empty((n_objectives, n_points)),
        n_left=np.zeros(1, np.int64),
        n_beyond=np.zeros(1, np.int64),
        work=np.empty((len(signs), n_row)),
        is_left=np.empty(n_row, np.int64),
        is_beaten=np.empty(n_row, np.int64),
    )


#: keeps all columns of all points
ALL = sieve_of((), (), np.empty((0, 0)), np.empty(0, np.int8), (), np.empty((0, 0)), 0, 0)


@compilable
def _read(sieve: Sieve, whole: Any, floats: Any, r: int, m: int) -> None:
    """The values of a run by test, signed; what is missing is nan, which neither beats nor is beaten."""
    for j in range(len(sieve.columns)):
        at, sign, values = sieve.columns[j], sieve.signs[j], sieve.work[j]
        if at < 0:
            values[:m] = sign * sieve.given[j, r]
        elif at < len(whole):
            for i in range(m):
                values[i] = np.nan if whole[at, i] == MISSING else sign * float(whole[at, i])
        else:
            for i in range(m):
                values[i] = sign * floats[at - len(whole), i]


@compilable
def _beaten(sieve: Sieve, i: int) -> bool:
    """True where a rival is no worse than the point at `i` in all objectives, and better in one."""
    for rival in range(len(sieve.rivals)):
        n_better = n_worse = 0
        for j in range(len(sieve.values)):
            n_better += sieve.rivals[rival, j] < sieve.work[j, i]
            n_worse += not sieve.rivals[rival, j] <= sieve.work[j, i]
        if n_better > 0 and n_worse == 0:
            return True
    return False


@compilable
def sift(sieve: Sieve, whole: Any, floats: Any, r: int, m: int) -> None:
    """Keep those of the `m` points of run `r` that are within limits, and that no rival beats."""
    _read(sieve, whole, floats, r, m)
    n_objectives, work, is_left, is_beaten = len(sieve.values), sieve.work, sieve.is_left, sieve.is_beaten
    n_within = 0
    for i in range(m):
        is_left[i] = 1
    for j in range(len(sieve.bounds)):
        for i in range(m):
            is_left[i] &= work[n_objectives + j, i] <= sieve.bounds[j]
    for i in range(m):
        n_within += is_left[i]
    sieve.n_beyond[0] += m - n_within
    for rival in range(min(len(sieve.rivals), N_FIRST)):
        for i in range(m):
            is_beaten[i] = is_left[i]
        for j in range(n_objectives):
            value = sieve.rivals[rival, j]
            for i in range(m):
                is_beaten[i] &= value < work[j, i]
        for i in range(m):
            is_left[i] -= is_beaten[i]
    n = sieve.n_left[0]
    for i in range(m):
        if is_left[i] and not _beaten(sieve, i):
            sieve.runs[n], sieve.places[n] = r, i
            for j in range(n_objectives):
                sieve.values[j, n] = sieve.signs[j] * work[j, i]
            n += 1
    sieve.n_left[0] = n
