"""Compiled: sweeps over a batch axis, reduced as they go or written into buffers that are reused.

Nothing of the grid is stored. `scan` goes through combinations of a case, a device and lengths (tables as of
`dse.sweep_kernel`), each with every batch, and keeps of each the best throughput and how many batches run at once.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse import sweep_cases as cases
from dse import sweep_device as on_device
from dse import sweep_generation as generation
from dse import sweep_kernel, sweep_points
from dse import sweep_runs as runs
from dse import sweep_sums as sums
from dse.errors import InputError
from dse.sweep_spec import Sweep
from kernels_ref import inner, sequential

#: columns that `columns` writes, in this order
COLUMNS = (
    "running_batch", "linear_s", "attention_s", "decode_step_s", "prefill_s", "total_s", "throughput_tokens_per_s",
    "joules_per_token",
)  # fmt: skip
_ROWS = (
    runs.RUNNING, runs.LINEAR_S, runs.ATTENTION_S, runs.DECODE_STEP_S, runs.PREFILL_S, runs.TOTAL_S, runs.THROUGHPUT,
    runs.JOULES,
)  # fmt: skip
#: points of a buffer of `COLUMNS`: 4 MB
BUFFER_POINTS = 2**16


@inner
def _best(row, work, n_points):
    """The largest THROUGHPUT: halves are compared place by place, which compiles into vector instructions."""
    for i in range(runs.ROW):
        work[i] = 0.0
    for i in range(n_points):
        work[i] = row[runs.THROUGHPUT + i]
    width = runs.ROW // 2
    while width:
        for i in range(width):
            work[i] = max(work[i], work[width + i])
        width //= 2
    return work[0]


def _scan(
    first, last, case, device_of, n_input, n_output, batch, tables, devices, devices_f, n_keys, best, at_once, buffer,
    version,
):  # fmt: skip
    room, widest = runs.scratch(n_keys), np.empty(2 * runs.ROW)
    row, other, terms, by_n, known = room.row, room.other, room.terms, room.by_n, room.known
    n_written, n_columns = 0, len(buffer)
    for k in range(first, last):
        design, n_steps = sums.design(tables, case[k]), n_output[k]
        device, device_f = devices[device_of[k]], devices_f[device_of[k]]
        best[k], at_once[k] = 0.0, 0
        is_exact = generation.of_generation(
            design, n_input[k], n_steps, room.found, room.found_f, room.pieces, room.packed, room.lengths
        )  # fmt: skip
        most = -1
        if is_exact and on_device.same_from(design, device, n_input[k]) < len(known):
            _, most = on_device.most_sequences(room.found, design.plan, design.work, device, n_steps)
        if most <= 0:
            at_once[k] = most
            continue
        runs.of_device(design, device, device_f, n_input[k], n_steps, room)
        is_paged, power, price = design.work[sums.PAGED] == 1, device_f[sums.POWER], device_f[sums.PRICE]
        for start in range(0, len(batch), runs.ROW):
            m = min(runs.ROW, len(batch) - start)
            asked = batch[start : start + m]
            for i in range(m):
                row[runs.BATCH + i] = asked[i]
            n_smaller = runs.waves(row, m, float(most), is_paged)
            if start == 0 or terms[runs.SAME_FROM] > 1:
                runs.fill_sums(row, m, is_paged, design, device, device_f, n_input[k], n_steps, room)
            runs.run(row, other, m, n_smaller, is_paged, power, price, n_steps, terms, by_n)
            best[k] = max(best[k], _best(row, widest, m))
            whole = 0
            for i in range(m):
                whole += 1 if row[runs.RUNNING + i] == row[runs.BATCH + i] else 0
            at_once[k] += whole
            if n_columns:
                if n_written + m > buffer.shape[1]:
                    n_written = 0
                for c in range(n_columns):
                    out, source = buffer[c, n_written : n_written + m], _ROWS[c]
                    for i in range(m):
                        out[i] = row[source + i]
                n_written += m


@cache
def _compiled() -> Callable[..., Any]:
    return sequential(sweep_kernel.versioned(_scan))


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
    """The grid of a sweep without conditions on batch. Raises InputError where the kernel does not cover a design."""
    if "batch" not in sweep.axis or any("batch" in condition.names for condition in sweep.where):
        raise InputError("batch: must be an axis that no condition names")
    dimensions = tuple(d for d in sweep.dimensions if all(axis.name != "batch" for b in d.blocks for axis in b.varying))
    others = Sweep(
        tuple(axis for axis in sweep.axes if axis.name != "batch"), dimensions, sweep.where, sweep.keep, sweep.base,
        sweep.bits,
    )  # fmt: skip
    digits = dict(sweep_points.kept_digits(others, 0, others.n_points))
    parts = cases.of_points(others, digits)
    if parts is None or any(case.state != sweep_kernel.FEASIBLE for case in parts.cases):
        raise InputError("sweep: has designs that are evaluated row by row only (`dse.sweep_cases.covers`)")
    tables = cases.tables(parts.cases)
    numbers = (parts.case, parts.device, parts.n_input, parts.n_output)
    batch = np.array(sweep.axis["batch"].items, np.float64)
    return Grid(digits, batch, (*numbers, batch, tables, parts.devices, parts.devices_f, parts.n_keys(tables)))


def scan(
    grid: Grid, threads: int = 1, columns: Sequence[NDArray[np.float64]] = ()
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """By combination: the best throughput of any batch (token/s, 0 where nothing runs), and how many batches run at
    once (0: nothing runs; -1: beyond exact numbers, see `dse.sweep_cases.covers`). The same for any `threads`.

    `columns`: a buffer by thread, `COLUMNS` x `BUFFER_POINTS`, into which all results are written, over and over.
    """
    n = len(grid.digits["device"])
    best, at_once = np.empty(n), np.empty(n, np.int64)
    bounds = [n * i // threads for i in range(threads + 1)]
    buffers = columns or [np.empty((0, 0))] * threads

    def work(i: int) -> None:
        _compiled()(bounds[i], bounds[i + 1], *grid.numbers, best, at_once, buffers[i])

    _compiled()(0, 0, *grid.numbers, best, at_once, buffers[0])  # compiled once
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return best, at_once
