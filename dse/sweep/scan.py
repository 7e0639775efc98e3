"""Sweeps over a batch axis, reduced as they go or written into buffers that are reused: nothing of the grid is stored.

`scan` goes through combinations of a case, a device and lengths, each with every batch, and keeps of each the best
throughput and how many batches run at once.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.core.errors import InputError
from dse.model import many
from dse.sweep import compiled
from dse.sweep import points as sweep_points
from dse.sweep.spec import Sweep

#: points of a buffer of `many.SCANNED`: 4 MB
BUFFER_POINTS = 2**16


@dataclass(frozen=True)
class Grid:
    """A sweep whose batch axis is scanned: places of all other axes, as numbers for compiled code."""

    digits: dict[str, NDArray[np.int32]]
    batch: NDArray[np.float64]
    numbers: tuple[Any, ...]

    @property
    def n_points(self) -> int:
        """Design points."""
        return len(self.digits["device"]) * len(self.batch)


def of_sweep(sweep: Sweep) -> Grid:
    """The grid of a sweep without conditions on batch. Raises InputError for a design that is not allowed."""
    if "batch" not in sweep.axis or any("batch" in condition.names for condition in sweep.where):
        raise InputError("batch: must be an axis that no condition names")
    dimensions = tuple(d for d in sweep.dimensions if all(axis.name != "batch" for b in d.blocks for axis in b.varying))
    others = Sweep(
        tuple(axis for axis in sweep.axes if axis.name != "batch"),
        dimensions,
        sweep.where,
        sweep.keep,
        sweep.base,
        sweep.bits,
    )
    digits = dict(sweep_points.kept_digits(others, 0, others.n_points))
    parts = compiled.points_at(others, digits)
    if parts is None or any(case.state != many.FEASIBLE for case in parts.cases):
        raise InputError("sweep: has designs that are not allowed, or whose whole numbers do not fit int64")
    points, tables, n_keys = parts.numbers()
    batch = np.array(sweep.axis["batch"].items, np.float64)
    return Grid(digits, batch, (points._replace(batch=batch), tables, n_keys))


def scan(
    grid: Grid, threads: int = 1, columns: Sequence[NDArray[np.float64]] = ()
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """By combination: the best throughput of any batch (token/s, 0 where nothing runs), and how many batches run at
    once (0: nothing runs; -1: beyond int64). The same for any `threads`.

    `columns`: a buffer by thread, `SCANNED` x `BUFFER_POINTS`, into which all results are written, over and over.
    """
    n = len(grid.digits["device"])
    best, at_once = np.empty(n), np.empty(n, np.int64)
    bounds = [n * i // threads for i in range(threads + 1)]
    buffers = columns or [np.empty((0, 0))] * threads

    def work(i: int) -> None:
        many.compiled_scan()(bounds[i], bounds[i + 1], *grid.numbers, many.Scanned(best, at_once, buffers[i]))

    many.compiled_scan()(0, 0, *grid.numbers, many.Scanned(best, at_once, buffers[0]))  # compiled once
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return best, at_once
