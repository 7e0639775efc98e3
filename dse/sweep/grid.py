"""Decode the index of a sweep's point into places on the axes; runs of points that differ in few axes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.sweep.axes import SweepAxis
from dse.sweep.spec import Block, Dimension, Sweep


@dataclass(frozen=True, eq=False)
class Runs(Mapping[str, NDArray[np.int32]]):
    """`Digits` of points in runs that differ in their batch alone, where that is the last axis; else runs of one point.

    `outer` places are one a run. The points of a run have the places `batch[begin:end]`, which runs may share, on the
    axis of batches, and so many points of the grid after `base`; None: no axis varies within a run.
    """

    outer: Mapping[str, NDArray[np.int32]]
    base: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    batch: NDArray[np.int32] | None = None

    def __getitem__(self, name: str) -> NDArray[np.int32]:
        """One place a point."""
        if self.batch is not None and name == "batch":
            return self.batch[self._taken]
        return self.spread(self.outer[name])

    def __iter__(self) -> Iterator[str]:
        """Names of the axes; the batch first, as nothing has to be spread for it."""
        yield from [] if self.batch is None else ["batch"]
        yield from self.outer

    def __len__(self) -> int:
        """Number of axes."""
        return (self.batch is not None) + len(self.outer)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Points of each run."""
        return self.end - self.begin

    @cached_property
    def _taken(self) -> NDArray[np.int64]:
        """By point, its place in `batch`."""
        before = np.cumsum(self.lengths) - self.lengths
        return np.arange(self.lengths.sum()) + np.repeat(self.begin - before, self.lengths)

    @property
    def points(self) -> NDArray[np.int64]:
        """Points of the grid."""
        return self.base if self.batch is None else np.add(self.spread(self.base), self["batch"], dtype=np.int64)

    def spread(self, by_run: NDArray[Any]) -> NDArray[Any]:
        """One value a point from one a run."""
        return by_run if self.batch is None else np.repeat(by_run, self.lengths)

    def at(self, runs: NDArray[Any]) -> "Runs":
        """Some of the runs."""
        outer = {name: column[runs] for name, column in self.outer.items()}
        return Runs(outer, self.base[runs], self.begin[runs], self.end[runs], self.batch)


def split(sweep: Sweep) -> tuple[list[Dimension], int]:
    """Dimensions that runs share, and how many batches a run has: 1 where batches are not the last of several."""
    varying = [dimension for dimension in sweep.dimensions if dimension.size > 1]
    blocks = varying[-1].blocks if varying else ()
    if len(blocks) != 1 or [axis.name for axis in blocks[0].varying] != ["batch"]:
        return list(sweep.dimensions), 1
    return [dimension for dimension in sweep.dimensions if dimension is not varying[-1]], varying[-1].size


def decode_places(sweep: Sweep, places: Sequence[int] | NDArray[np.int64]) -> dict[str, NDArray[np.int32]]:
    """Place of the value of each axis for these points of the grid; -1 where a point has no such axis.

    The first dimension is the slowest digit, as in `itertools.product`.
    """
    return _decoded(sweep.axes, sweep.dimensions, np.asarray(places, dtype=np.int64))


def _decoded(
    axes: Sequence[SweepAxis], dimensions: Sequence[Dimension], rest: NDArray[np.int64]
) -> dict[str, NDArray[np.int32]]:
    digits = {axis.name: np.full(len(rest), -1, dtype=np.int32) for axis in axes}
    for dimension in reversed(dimensions):
        rest, digit = np.divmod(rest, dimension.size)
        if len(dimension.blocks) == 1:
            _decode_block(dimension.blocks[0], digit, slice(None), digits)
            continue
        starts = np.array([block.start for block in dimension.blocks], dtype=np.int64)
        which = np.searchsorted(starts, digit, side="right") - 1
        for number in np.unique(which):
            inside = which == number
            _decode_block(dimension.blocks[number], digit[inside] - starts[number], inside, digits)
    return digits


def _decode_block(block: Block, rest: NDArray[np.int64], where: Any, digits: dict[str, NDArray[np.int32]]) -> None:
    for name, value in block.fixed:
        digits[name][where] = value
    for axis in reversed(block.varying):
        rest, digit = np.divmod(rest, len(axis))
        digits[axis.name][where] = digit


def decode_runs(sweep: Sweep, first: int, last: int) -> Runs:
    """`decode` in runs."""
    outside, size = split(sweep)
    runs = np.arange(first // size, -(-last // size), dtype=np.int64)
    axes = [axis for axis in sweep.axes if size == 1 or axis.name != "batch"]
    begin, end = np.maximum(first - runs * size, 0), np.minimum(last - runs * size, size)
    batch = None if size == 1 else np.arange(size, dtype=np.int32)
    return Runs(_decoded(axes, outside, runs), runs * size, begin, end, batch)


def kept_digits(sweep: Sweep, first: int, last: int) -> Runs:
    """`decode_runs` of the points first..last-1 that meet all conditions."""
    runs = decode_runs(sweep, first, last)
    keep = np.ones(last - first, dtype=bool)
    for condition in sweep.where:  # what a run shares is looked at once a run
        shared = condition.names <= frozenset(runs.outer)
        keep &= runs.spread(condition.keep(runs.outer)) if shared else condition.keep(runs)
    if keep.all():
        return runs
    counts = np.concatenate([[0], np.cumsum(keep)])
    ends = np.cumsum(runs.lengths)
    begin, end = counts[ends - runs.lengths], counts[ends]
    batch = None if runs.batch is None else runs["batch"][keep]
    return Runs(runs.outer, runs.base, begin, end, batch).at(end > begin)


def kept(sweep: Sweep, first: int, last: int) -> tuple[Runs, NDArray[np.int64]]:
    """`kept_digits`, and which points of the grid they are."""
    runs = kept_digits(sweep, first, last)
    return runs, runs.points
