"""Decode the index of a sweep's point into places on the axes; runs of points that differ in few axes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.sweep.axes import SweepAxis
from dse.sweep.conditions import Digits
from dse.sweep.spec import Block, Dimension, Sweep

#: axes that a compiled run of points may vary, and the points that a run should have
RUN_AXES = frozenset({"batch", "input_tokens", "output_tokens"})
RUN_POINTS = 256


@dataclass(frozen=True, eq=False)
class Runs(Mapping[str, NDArray[np.int32]]):
    """`Digits` of points in runs: `outer` places are one a run of `lengths` points, `inner` places one a point."""

    outer: Mapping[str, NDArray[np.int32]]
    inner: Mapping[str, NDArray[np.int32]]
    lengths: NDArray[np.int64]

    def __getitem__(self, name: str) -> NDArray[np.int32]:
        """One place a point."""
        return self.inner[name] if name in self.inner else self.spread(self.outer[name])

    def __iter__(self) -> Iterator[str]:
        """Names of the axes; inner ones first, as nothing has to be spread for them."""
        yield from self.inner
        yield from self.outer

    def __len__(self) -> int:
        """Number of axes."""
        return len(self.inner) + len(self.outer)

    def spread(self, by_run: NDArray[Any]) -> NDArray[Any]:
        """One value a point from one a run."""
        return np.repeat(by_run, self.lengths)


def split(sweep: Sweep) -> tuple[list[Dimension], list[Dimension]]:
    """Dimensions that runs share, and those that vary within a run: the last ones, if they are of `RUN_AXES`."""
    outer, inner, size = [], [], 1
    for dimension in reversed(sweep.dimensions):
        axes = dimension.blocks[0].varying
        is_inner = len(dimension.blocks) == 1 and len(axes) == 1 and axes[0].name in RUN_AXES and size < RUN_POINTS
        if dimension.size == 1:
            outer.append(dimension)  # wherever it is, it changes no index
        elif is_inner:
            inner.append(dimension)
            size *= dimension.size
        else:
            size = RUN_POINTS
            outer.append(dimension)
    return outer[::-1], inner[::-1]


def decode(sweep: Sweep, first: int, last: int) -> dict[str, NDArray[np.int32]]:
    """Place of the value of each axis for the points first..last-1 of the grid; -1 where a point has no such axis.

    The first dimension is the slowest digit, as in `itertools.product`.
    """
    return _decoded(sweep.axes, sweep.dimensions, np.arange(first, last, dtype=np.int64))


def decode_places(sweep: Sweep, places: Sequence[int]) -> dict[str, NDArray[np.int32]]:
    """`decode` of any points of the grid."""
    return _decoded(sweep.axes, sweep.dimensions, np.array(places, dtype=np.int64))


def _decoded(
    axes: Sequence[SweepAxis], dimensions: Sequence[Dimension], rest: NDArray[np.int64]
) -> dict[str, NDArray[np.int32]]:
    found = {axis.name: np.full(len(rest), -1, dtype=np.int32) for axis in axes}
    for dimension in reversed(dimensions):
        rest, digit = np.divmod(rest, dimension.size)
        if len(dimension.blocks) == 1:
            _decode_block(dimension.blocks[0], digit, slice(None), found)
            continue
        starts = np.array([block.start for block in dimension.blocks], dtype=np.int64)
        which = np.searchsorted(starts, digit, side="right") - 1
        for number in np.unique(which):
            inside = which == number
            _decode_block(dimension.blocks[number], digit[inside] - starts[number], inside, found)
    return found


def _decode_block(block: Block, rest: NDArray[np.int64], where: Any, found: dict[str, NDArray[np.int32]]) -> None:
    for name, value in block.fixed:
        found[name][where] = value
    for axis in reversed(block.varying):
        rest, digit = np.divmod(rest, len(axis))
        found[axis.name][where] = digit


def decode_runs(sweep: Sweep, first: int, last: int) -> Runs:
    """`decode` in runs."""
    outside, inside = split(sweep)
    size = math.prod(dimension.size for dimension in inside)
    names = {axis.name for dimension in inside for axis in dimension.blocks[0].varying}
    numbers = np.arange(first // size, (last - 1) // size + 1)
    lengths = np.minimum((numbers + 1) * size, last) - np.maximum(numbers * size, first)
    outer = _decoded([axis for axis in sweep.axes if axis.name not in names], outside, numbers)
    inner_axes, skip = [axis for axis in sweep.axes if axis.name in names], first % size
    if last - first < size:
        inner = _decoded(inner_axes, inside, np.arange(skip, skip + last - first) % size)
    else:  # decoded once, then repeated, which is far faster
        once = _decoded(inner_axes, inside, np.arange(size))
        inner = {name: np.tile(column, len(numbers))[skip : skip + last - first] for name, column in once.items()}
    return Runs(outer, inner, lengths)


def kept_digits(sweep: Sweep, first: int, last: int) -> Digits:
    """`decode` of the points first..last-1 that meet all conditions; as `Runs` where the sweep has them."""
    return kept(sweep, first, last)[0]


def kept(sweep: Sweep, first: int, last: int) -> tuple[Digits, NDArray[np.int64]]:
    """`kept_digits`, and which points of the grid they are."""
    points = np.arange(first, last, dtype=np.int64)
    if first < last and split(sweep)[1]:
        runs = decode_runs(sweep, first, last)
        keep = _mask(sweep, runs, last - first)
        return (runs, points) if keep is None else (_kept_runs(runs, keep), points[keep])
    digits = decode(sweep, first, last)
    keep = _mask(sweep, digits, last - first)
    return (digits, points) if keep is None else ({name: column[keep] for name, column in digits.items()}, points[keep])


def _mask(sweep: Sweep, digits: Digits, n: int) -> NDArray[np.bool_] | None:
    """The points that meet all conditions; None where all do. What a run shares is looked at once a run."""
    keep = np.ones(n, dtype=bool)
    for condition in sweep.where:
        if isinstance(digits, Runs) and condition.names <= frozenset(digits.outer):
            keep &= digits.spread(condition.keep(digits.outer))
        else:
            keep &= condition.keep(digits)
    return None if keep.all() else keep


def _kept_runs(runs: Runs, keep: NDArray[np.bool_]) -> Runs:
    ends = np.cumsum(runs.lengths)
    counts = np.concatenate([[0], np.cumsum(keep)])
    lengths = counts[ends] - counts[ends - runs.lengths]
    some = lengths > 0
    return Runs(
        {name: column[some] for name, column in runs.outer.items()},
        {name: column[keep] for name, column in runs.inner.items()},
        lengths[some],
    )
