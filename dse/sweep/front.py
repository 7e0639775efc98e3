"""Sweeps that keep only the designs no other beats: fronts of stretches, and the front of these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from dse.core.errors import InputError, did_you_mean, show
from dse.model.results import FLAGS, INTEGERS, RESULT_UNITS
from dse.sweep import columns, pareto, points, spec
from dse.sweep.columns import CODES, Columns, Names
from dse.sweep.conditions import Digits
from dse.sweep.grid import decode_places, kept
from dse.sweep.pareto import Sense, limits
from dse.sweep.pareto.limits import Limit
from dse.sweep.spec import Front, Sweep
from dse.sweep.table import POINT

#: rows of fronts that are held before they are merged
MERGE_ROWS = 500_000


def asked(
    sweep: Sweep,
    maximize: Sequence[str] = (),
    minimize: Sequence[str] = (),
    by: Sequence[str] = (),
    drop_missing: bool = False,
    limits: Sequence[Limit] = (),
) -> Sweep:
    """The sweep that keeps the front for these objectives of the designs within limits. Results that it needs are kept
    as well.

    Raises InputError for no objectives, or columns that are unknown or no numbers.
    """
    objectives = pareto.objectives_of(maximize, minimize)
    axes = {axis.name: axis for axis in sweep.axes}
    possible = [*axes, *(name for name in RESULT_UNITS if name not in spec.ALWAYS)]
    inside = tuple(sorted({(limit.column, limit.kind, limit.value) for limit in limits}))
    front = Front(tuple(objectives.items()), tuple(dict.fromkeys(by)), drop_missing, inside)
    for name in front.columns:
        if name not in possible:
            raise InputError(f"unknown column {show(name)}: {did_you_mean(name, possible)}")
    for what, name in (*(("objective", n) for n in objectives), *(("limit", limit.column) for limit in limits)):
        is_text = axes[name].kind == "text" if name in axes else name in FLAGS or _is_text(name)
        if is_text:
            raise InputError(f"{what} {name}: is not a column of numbers: choose another")
    keep = spec.keep_columns([*sweep.keep, *(n for n in front.columns if n not in axes)], set(axes))
    return replace(sweep, keep=keep, front=front)


def _is_text(name: str) -> bool:
    return not RESULT_UNITS[name] and name not in INTEGERS


@dataclass(frozen=True)
class Stretch:
    """The front of a stretch of points, whole rows; all its points by `infeasible_code`, and those left out because an
    objective was missing, because they are beyond a limit, or because no software of their device runs them."""

    columns: Columns
    codes: tuple[int, ...]
    n_missing: int
    n_beyond: int
    n_refused: int


class Builder:
    """Collects the front of points that are given block by block."""

    def __init__(self, sweep: Sweep) -> None:
        assert sweep.front is not None
        self.sweep, self.front = sweep, sweep.front
        self.objectives: dict[str, Sense] = dict(sweep.front.objectives)  # type: ignore[arg-type]
        self.held: list[tuple[dict[str, Any], NDArray[np.int64]]] = []
        self.codes = np.zeros(len(CODES), np.int64)
        self.limits = [Limit(*limit) for limit in sweep.front.limits]  # type: ignore[arg-type]
        self.n_missing = self.n_beyond = self.n_refused = 0

    def add(self, first: int, last: int, check: Callable[[], None] = points.no_check) -> None:
        """Take the points first..last-1. Raises InputError for a missing objective."""
        sifted = None
        if self.sweep.is_compiled:
            from dse.sweep import sift  # loads numba

            sifted = sift.sifted(self.sweep, first, last)
        if sifted is None:
            for start, end in points.stretches(first, last, points.MAX_BLOCK_POINTS) or [(first, last)]:
                self._add_all(*kept(self.sweep.narrow, start, end), check)
            return
        self.codes += sifted.codes
        self.n_refused += sifted.n_refused
        self.n_beyond += sifted.n_beyond
        digits = decode_places(self.sweep, sifted.points) if self.front.by else {}
        self._hold({**sifted.values, **{_key(name): digits[name] for name in self.front.by}}, sifted.points)
        if len(sifted.left):
            self._add_all(decode_places(self.sweep.narrow, sifted.left), sifted.left, check)

    def _add_all(self, digits: Digits, grid_rows: NDArray[np.int64], check: Callable[[], None]) -> None:
        """Take points with all of their columns."""
        results = points.evaluate_points(self.sweep.narrow, digits, check)
        self.codes += np.bincount(results["infeasible_code"], minlength=len(CODES))
        competes = results["feasible"] & results["runs"]
        self.n_refused += int((results["feasible"] & ~results["runs"]).sum())
        if self.limits:
            table = pd.DataFrame({limit.column: self._values(limit.column, digits, results) for limit in self.limits})
            inside = competes & limits.within(table, self.limits)
            self.n_beyond += int((competes & ~inside).sum())
            competes = inside
        values = {name: self._values(name, digits, results)[competes] for name in self.objectives}
        values |= {_key(name): self._group(name, digits, results)[competes] for name in self.front.by}
        self._hold(values, grid_rows[competes])

    def _hold(self, values: dict[str, Any], grid_rows: NDArray[np.int64]) -> None:
        """Keep the front of some points, of which a few may lack an objective."""
        missing = np.zeros(len(grid_rows), bool)
        for name in self.objectives:
            absent = np.isnan(values[name])
            if absent.any() and not self.front.drop_missing:
                raise InputError(
                    f"point {grid_rows[absent].min():,}: {name} is missing: leave such points out with --drop-missing, "
                    "or choose another objective"
                )
            missing |= absent
        self.n_missing += int(missing.sum())
        self.held.append(({name: column[~missing] for name, column in values.items()}, grid_rows[~missing]))
        self._merge()

    def _best(self, values: dict[str, Any]) -> NDArray[np.int64]:
        """Rows on the front, on this thread alone, as other threads have points of their own."""
        if self.front.by:
            groups = [_key(name) for name in self.front.by]
            return np.flatnonzero(pareto.front(pd.DataFrame(values), self.objectives, groups, alone=True))
        signs = [1.0 if sense == "min" else -1.0 for sense in self.objectives.values()]
        return pareto.front_rows([np.ascontiguousarray(values[name]) for name in self.objectives], signs, alone=True)

    def _values(self, name: str, digits: Any, results: Columns) -> NDArray[np.float64]:
        column = points.axis_column(self.sweep.axis[name], digits) if name in self.sweep.axis else results[name]
        if column.dtype == np.int64:
            return np.where(column == columns.MISSING, np.nan, column.astype(np.float64))
        return np.asarray(column)

    def _group(self, name: str, digits: Any, results: Columns) -> NDArray[Any]:
        if name in self.sweep.axis:
            return np.asarray(digits[name])
        column = results[name]
        return np.array([*column.names, ""], object)[column.codes] if isinstance(column, Names) else column

    def _merge(self) -> None:
        """The front of all that is held."""
        values, grid_rows = zip(*self.held, strict=True)
        joined, rows = (
            {name: np.concatenate([part[name] for part in values]) for name in values[0]},
            np.concatenate(grid_rows),
        )
        best = self._best(joined)
        self.held = [({name: column[best] for name, column in joined.items()}, rows[best])]

    def result(self) -> Stretch:
        """The front of all that was taken, in the order of the grid."""
        grid_rows = np.sort(self.held[0][1])
        rows = points.columns_of(self.sweep, decode_places(self.sweep, grid_rows))
        codes = tuple(self.codes.tolist())
        return Stretch({POINT: grid_rows, **rows}, codes, self.n_missing, self.n_beyond, self.n_refused)


def _key(name: str) -> str:
    """A column of groups, which may be an objective as well."""
    return f"by {name}"


def merged(paths: Sequence[Any], read: Callable[..., pa.Table], front: Mapping[str, Any]) -> pa.Table:
    """The front of the fronts in files, whole rows in their order; `read(path, columns)` reads one."""
    objectives: dict[str, Sense] = dict(front["objectives"])
    names = list(dict.fromkeys((*objectives, *front["by"])))
    held: list[tuple[pd.DataFrame, NDArray[np.int64], NDArray[np.int64]]] = []

    def merge() -> None:
        tables, files, rows = zip(*held, strict=True)
        table = pd.concat(tables, ignore_index=True)
        best = np.flatnonzero(pareto.front(table, objectives, list(front["by"])))
        held[:] = [(table.iloc[best], np.concatenate(files)[best], np.concatenate(rows)[best])]

    for number, path in enumerate(paths):
        table = read(path, names).to_pandas()
        texts = [name for name in names if isinstance(table[name].dtype, pd.CategoricalDtype)]
        held.append((table.astype(dict.fromkeys(texts, object)), np.full(len(table), number), np.arange(len(table))))
        if sum(len(table) for table, _, _ in held) > MERGE_ROWS:
            merge()
    merge()
    _, files, rows = held[0]
    pieces = [read(paths[number]).take(pa.array(rows[files == number])) for number in np.unique(files)]
    return pa.concat_tables(pieces or [read(paths[0]).slice(0, 0)]).unify_dictionaries().combine_chunks()
