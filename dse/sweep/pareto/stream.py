"""The front of a sweep that is kept nowhere: its points are evaluated, compared and dropped, so that memory is flat."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from dse.sweep import filling, points, table
from dse.sweep.pareto import Sense, competing, designs
from dse.sweep.pareto.designs import CLOUD_ROWS, DesignFront
from dse.sweep.pareto.limits import Limit, within
from dse.sweep.spec import Sweep

#: a stretch that takes less is followed by a longer one, one that takes more by a shorter one; each costs some
#: milliseconds whatever its length
SHORT_S, LONG_S = 0.5, 2.0
#: Knuth's multiplicative hash (The Art of Computer Programming 3, 6.4): which designs beside the front are shown does
#: not follow the order of the axes, nor the stretches
_MULTIPLIER, _BITS = 2654435761, 32


def front_of(
    sweep: Sweep,
    objectives: Mapping[str, Sense],
    by: Sequence[str] = (),
    check: Callable[[], None] = points.no_check,
    count: Callable[[int], None] = lambda n: None,
    limits: Sequence[Limit] = (),
    rows: Callable[[int, int], pd.DataFrame] | None = None,
) -> DesignFront:
    """The designs of a sweep that no other beats, as `designs.of_table` finds them in its whole table.

    Only designs within `limits` compete. Designs whose objectives are unknown are left out and counted. `check` is
    called now and then and may raise to stop; `count` is told points as they are done. Fronts of stretches are
    merged: a design that another one of its own stretch beats is beaten in the whole. `rows(start, end)` gives a
    stretch in place of `stretch`, to who has it already or wants to keep it. Raises InputError.
    """
    fronts: list[pd.DataFrame] = []
    places: list[np.ndarray] = []
    cloud: list[pd.DataFrame] = []
    n_rows = n_feasible = n_missing = n_beyond = n_refused = 0
    start, size = 0, points.BLOCK_POINTS
    while start < sweep.n_points:
        check()
        end, begun = min(start + size, sweep.n_points), time.monotonic()
        table = rows(start, end) if rows else stretch(sweep, start, end, check)
        part = designs.of_table(table, objectives, by, drop_missing=True, limits=limits)
        if len(part.table) or not fronts:
            fronts = fronts if fronts and len(fronts[0]) else []  # an empty table has no types of its own
            fronts.append(part.table)
        places.append(n_rows + part.row)
        if limits:
            table = table.assign(feasible=table["feasible"] & within(table, limits))
        cloud.append(_some(table, list(objectives), n_rows))
        if sum(map(len, cloud)) > 2 * CLOUD_ROWS:
            cloud = [_fewest(cloud)]
        n_rows, n_feasible, n_missing = (n_rows + part.n_rows, n_feasible + part.n_feasible, n_missing + part.n_missing)
        n_beyond += part.n_beyond or 0
        n_refused += part.n_refused
        count(end - start)
        start = end
        taken = time.monotonic() - begun
        if taken < SHORT_S:
            size = min(4 * size, points.MAX_BLOCK_POINTS)
        elif taken > LONG_S:
            size = max(size // 2, points.BLOCK_POINTS)
    merged = designs.of_table(pd.concat(fronts, ignore_index=True), objectives, by)
    return replace(
        merged,
        table=filling.noted(merged.table, sweep.identity),
        row=np.concatenate(places)[merged.row],
        n_rows=n_rows,
        n_feasible=n_feasible,
        n_missing=n_missing,
        limits=tuple(limits),
        n_beyond=n_beyond,
        n_refused=n_refused,
        cloud=_fewest(cloud).drop(columns="hash"),
        units={**merged.units, **sweep.columns},
        design=tuple(axis.name for axis in sweep.axes if len(axis) > 1 and axis.name not in objectives),
    )


def stretch(sweep: Sweep, start: int, end: int, check: Callable[[], None] = points.no_check) -> pd.DataFrame:
    """The rows of the sweep's points from `start` to before `end`."""
    return table.to_frame(table.to_arrow(sweep, points.evaluate_chunk(sweep, start, end, check)))


def _some(table: pd.DataFrame, objectives: list[str], first_row: int) -> pd.DataFrame:
    """Objectives of designs that compete: the CLOUD_ROWS first by the hash of their row in the whole table."""
    keep = competing(table) & table[objectives].notna().all(axis=1).to_numpy(dtype=bool)
    hashes = (first_row + np.flatnonzero(keep)) * _MULTIPLIER % 2**_BITS
    return _fewest([table.loc[keep, objectives].astype(float).assign(hash=hashes)])


def _fewest(cloud: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(cloud).sort_values("hash", ignore_index=True).head(CLOUD_ROWS)
