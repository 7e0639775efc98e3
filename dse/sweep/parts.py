"""Evaluating one part of a sweep: piece by piece, so that a stop is soon seen, into its file's bytes."""

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dse.core import files
from dse.sweep import front, points, table
from dse.sweep.columns import CODES, Columns, join
from dse.sweep.spec import Sweep
from dse.sweep.store import Part

#: a block that takes less is followed by a larger one
FAST_BLOCK_S = 0.1


class Stopped(Exception):
    """The sweep was asked to stop."""


@dataclass
class Pace:
    """Points that are evaluated together: more, as long as they take next to nothing, so that Ctrl-C is soon seen."""

    most: int = points.MAX_BLOCK_POINTS
    size: int = 0

    def after(self, seconds: float) -> None:
        """Decide by the time that the last ones took."""
        if seconds < FAST_BLOCK_S:
            self.size = min(4 * self.size, self.most)
        else:
            self.size = max(self.size // 2, points.BLOCK_POINTS)


def paced(
    sweep: Sweep,
    first: int,
    last: int,
    stop: threading.Event,
    count: Callable[[int], None],
    pace: Pace,
    evaluate: Callable[[int, int, Callable[[], None]], None],
) -> None:
    """Evaluate first..last-1 piece by piece."""

    def check() -> None:
        if stop.is_set():
            raise Stopped

    start = first
    while start < last or start == first:
        check()
        pace.size = pace.size or points.BLOCK_POINTS
        end, begun = min(start + pace.size, last), time.monotonic()
        evaluate(start, end, check)
        count(end - start)
        if end == start:
            return
        start = end
        pace.after(time.monotonic() - begun)


def blocks(
    sweep: Sweep, first: int, last: int, stop: threading.Event, count: Callable[[int], None], pace: Pace
) -> Columns:
    """The table of first..last-1, less the points that conditions drop, evaluated piece by piece."""
    chunks: list[Columns] = []
    paced(
        sweep,
        first,
        last,
        stop,
        count,
        pace,
        lambda start, end, check: chunks.append(points.evaluate_chunk(sweep, start, end, check)),
    )
    return join(chunks)


def make_part(
    sweep: Sweep,
    number: int,
    stop: threading.Event | None = None,
    count: Callable[[int], None] = lambda n: None,
    pace: Pace | None = None,
) -> tuple[Part, pa.Buffer]:
    """Evaluate a part: its line of the manifest, and its file. Raises Stopped once `stop` is set."""
    first = number * sweep.part_points
    last = min(first + sweep.part_points, sweep.n_points)
    stop, pace = stop or threading.Event(), pace or Pace(sweep.part_points)
    if sweep.front:
        builder = front.Builder(sweep)
        paced(sweep, first, last, stop, count, pace, builder.add)
        result = builder.result()
        columns, codes = result.columns, result.codes
        left_out = {"n_missing": result.n_missing, "n_beyond": result.n_beyond, "n_refused": result.n_refused}
    else:
        columns, left_out = blocks(sweep, first, last, stop, count, pace), dict[str, int]()
        counts = np.bincount(columns["infeasible_code"], minlength=len(CODES))
        codes = tuple(int(n) for n in counts)
    content = table.encode(sweep, columns)
    digest = hashlib.sha256(content).hexdigest()
    is_front = sweep.front is not None
    n_rows = len(columns["feasible"])
    return Part(
        number=number, first=first, last=last, rows=n_rows, sha256=digest, codes=codes, is_front=is_front, **left_out
    ), content


def publish(folder: Path, part: Part, content: Any) -> None:
    """Put the file of a part in place: temporary name, sync, rename, sync of the directory. Raises OutputError."""
    files.write(folder / part.name, content)
    files.sync(folder)
