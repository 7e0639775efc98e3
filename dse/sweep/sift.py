"""Points of a sweep that may be on its front, without the rows of all others.

A few good points of a stretch are its rivals. Compiled code compares a run of points with them as soon as it is
computed: what they beat in every objective is counted and forgotten.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.model import many
from dse.model.sieve import Sieve, sieve_of
from dse.sweep import compiled, pareto
from dse.sweep.columns import CODES, FEASIBLE, MISSING
from dse.sweep.grid import Runs, kept_digits
from dse.sweep.spec import Sweep

#: points among which rivals are looked for, and runs that these are taken from; of fewer points all are kept
SAMPLE_POINTS, SAMPLE_RUNS, FEW_POINTS = 4096, 64, 2**15
#: rivals that are taken from the front of these, evenly
MORE_RIVALS = 32


@dataclass(frozen=True)
class Sifted:
    """Points that may be on a front: their places in the grid, and objectives, nan where missing; all by
    `infeasible_code`, those beyond a limit or that no software of their device runs; those left to interpreted code."""

    points: NDArray[np.int64]
    values: dict[str, NDArray[np.float64]]
    codes: NDArray[np.int64]
    n_beyond: int
    n_refused: int
    left: NDArray[np.int64]


def sifted(sweep: Sweep, first: int, last: int) -> Sifted | None:
    """Sift the points first..last-1 by compiled code; None where there are none, or where points of a run have fronts
    of their own.
    """
    front, narrow = sweep.front, sweep.narrow
    digits = kept_digits(narrow, first, last)
    assert front is not None
    if not digits.outer.keys() >= set(front.by):
        return None
    points = compiled.points_at(narrow, digits)
    groups = compiled.number(digits.outer, front.by, [len(sweep.axis[name]) for name in front.by])
    if points is None or groups is None:
        return None
    sifting = _Sifting(narrow, digits, points, front)
    groups = groups[points.run_of]
    order = np.argsort(groups, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        sifting.sift(rows)
    return sifting.result()


class _Sifting:
    """The points of a stretch as they are sifted."""

    def __init__(self, sweep: Sweep, digits: Runs, points: compiled.SweepPoints, front: Any) -> None:
        self.digits, self.points, self.runs = digits, points, points.runs
        self.objectives = dict(front.objectives)
        self.signs = [*(1.0 if sense == "min" else -1.0 for sense in self.objectives.values())]
        of_limits = [1.0 if kind == "at most" else -1.0 for _, kind, _ in front.limits]
        self.bounds = [sign * value for sign, (_, _, value) in zip(of_limits, front.limits, strict=True)]
        self.signs_of_all = [*self.signs, *of_limits]
        names = [*self.objectives, *(name for name, _, _ in front.limits)]
        self.columns = many.found_for(names, many.ROW)
        self.places = [self._place(name) for name in names]
        by_name = {name: self._given(sweep, name) for at, name in zip(self.places, names, strict=True) if at < 0}
        self.given = np.array([by_name.get(name, np.zeros(len(points.run_of))) for name in names])
        self.competes = compiled.column_by_run("runs", points)
        self.state = compiled.states_of(points)
        _, self.tables, self.n_keys = points.numbers()
        self.n_beyond = 0
        self.kept: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []

    def _place(self, name: str) -> int:
        """The column of a test in compiled code; -1: one number a run."""
        places = self.columns.places
        if name in many.WHOLE:
            return int(places.whole[many.WHOLE.index(name)])
        return len(self.columns.whole) + int(places.floats[many.FLOAT.index(name)]) if name in many.FLOAT else -1

    def _given(self, sweep: Sweep, name: str) -> NDArray[np.float64]:
        if name in sweep.axis:
            values = np.array([*sweep.axis[name].values, np.nan], np.float64)
            return values[self.digits.outer[name][self.points.run_of]]
        column = compiled.column_by_run(name, self.points)
        return np.where(column == MISSING, np.nan, column) if column.dtype == np.int64 else np.asarray(column)

    def sift(self, rows: NDArray[np.int64]) -> None:
        """Take runs that compete with each other."""
        rivals = np.empty((0, len(self.signs)))
        if self.points.lengths[rows].sum() > FEW_POINTS:
            some = rows[:: max(len(rows) // SAMPLE_RUNS, 1)]
            step = max(int(self.points.lengths[some].sum()) // SAMPLE_POINTS, 1)
            values = self._sifted(some, self.state[some], step, rivals)[1]
            values = values[:, ~np.isnan(values).any(axis=0)]
            if values.shape[1]:
                columns = list(np.ascontiguousarray(values))
                best = pareto.front_rows(columns, self.signs, alone=True)
                best = best[:: -(-len(best) // MORE_RIVALS)]
                more = np.column_stack([sign * column[best] for sign, column in zip(self.signs, columns, strict=True)])
                first = pareto.rivals_of(columns, self.signs, strictly=True)
                second = pareto.rivals_of(columns, self.signs, strictly=False)
                rivals = np.concatenate([first, second, more])
        state = self.state[rows]
        sieve, values = self._sifted(rows, state, 1, rivals)
        self.state[rows] = state
        n = int(sieve.n_left[0])
        self.n_beyond += int(sieve.n_beyond[0])
        self.kept.append((self._grid(rows[sieve.runs[:n]], sieve.places[:n]), values))

    def _sifted(self, rows: Any, state: Any, step: int, rivals: Any) -> tuple[Sieve, NDArray[np.float64]]:
        """Every `step`-th point of some runs, compared with `rivals`."""
        runs = self.runs
        begin, end = -(-runs.begin[rows] // step), -(-runs.end[rows] // step)
        batches = np.ascontiguousarray(runs.batches[::step])
        some = many.PointRuns(
            case=runs.case[rows],
            device=runs.device[rows],
            n_input=runs.n_input[rows],
            n_output=runs.n_output[rows],
            begin=begin,
            end=end,
            batches=batches,
        )
        sieve = sieve_of(
            columns=self.places,
            signs=self.signs_of_all,
            given=np.ascontiguousarray(self.given[:, rows]),
            competes=self.competes[rows].astype(np.int8),
            bounds=self.bounds,
            rivals=rivals,
            n_points=int((end - begin).sum()),
            n_row=many.ROW,
        )
        many.evaluate(some, self.tables, self.n_keys, self.columns, state, sieve)
        return sieve, sieve.values[:, : sieve.n_left[0]].copy()

    def _grid(self, rows: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Points of the grid: at places in runs."""
        base = self.digits.base[self.points.run_of[rows]]
        return base if self.digits.batch is None else base + self.digits.batch[self.runs.begin[rows] + places]

    def result(self) -> Sifted:
        """All that was found."""
        lengths, state = self.points.lengths, self.state
        codes = np.bincount(state[state >= 0], lengths[state >= 0], len(CODES)).astype(np.int64)
        left = np.flatnonzero(state < 0)
        places = np.arange(lengths[left].sum()) - np.repeat(np.cumsum(lengths[left]) - lengths[left], lengths[left])
        values = np.concatenate([values for _, values in self.kept], axis=1)
        return Sifted(
            points=np.concatenate([points for points, _ in self.kept]),
            values=dict(zip(self.objectives, values, strict=True)),
            codes=codes,
            n_beyond=self.n_beyond,
            n_refused=int(lengths[(state == FEASIBLE) & ~self.competes].sum()),
            left=self._grid(np.repeat(left, lengths[left]), places),
        )
