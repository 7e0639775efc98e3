"""Running a sweep into a directory: what it will take, threads that write parts, and the finished table."""

import contextlib
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dse.core import files, interrupt
from dse.core.errors import DseError, LimitError, OutputError, show
from dse.core.field import check_whole
from dse.core.units import human
from dse.model.results import FLAGS
from dse.sweep import count, filling, front, parts, points, store, table
from dse.sweep.reading import StoredSweep, read_part
from dse.sweep.spec import Sweep
from dse.sweep.store import Manifest, Part

#: points of a sweep, unless its limits are lifted
MAX_POINTS = 10**10
#: part of the free space that a sweep may take
DISK_SHARE = 1 / 1.2
#: points of which one is on the front of its part, for what a sweep is expected to store
FRONT_SHARE = 1000
#: bytes of a column in each part beside its values, at most: measured 250 to 330 (pyarrow 15 to 21, 7 to 79 columns)
COLUMN_BYTES = 400
#: values of an axis that repeat so often that a row takes a byte of them
FEW_VALUES = 256
MAX_THREADS = 1024
#: points timed to say how long a sweep will take
SAMPLE_POINTS = 64
#: points of the first stretch at a place
FIRST_POINTS = 64
#: places between one stretch and the next that is timed: of no factor with any number of places up to SAMPLE_POINTS
STRIDE = 103
#: seconds after which that is enough
SAMPLE_S = 0.5
#: seconds between two writes of the manifest, and between two looks at the progress
MANIFEST_S, LOOK_S = 2.0, 0.2
#: writes the parts of a list: directory, sweep, manifest, their numbers, progress
WriteParts = Callable[[Path, Sweep, Manifest, Sequence[int], Callable[[int, int], None]], None]


@dataclass(frozen=True)
class Estimate:
    """Estimate of a sweep: points of its grid, rows that meet the conditions (from a sample where not
    `is_exact`), bytes of its files at most, seconds on one core."""

    n_points: int
    n_bytes: int
    seconds: float
    n_rows: int
    is_exact: bool


def check_threads(threads: int | None) -> int:
    """Threads to use: all cores that this process may use, unless given. Raises InputError."""
    if threads is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    check_whole("threads", threads, 1, MAX_THREADS)
    return threads


def most_bytes(sweep: Sweep, n_points: int, n_parts: int) -> int:
    """Bytes of the files of so many points in so many parts at most; of a front, as if one point in `FRONT_SHARE` were
    on that of its part."""
    rows = -(-n_points * row_bytes(sweep) // (FRONT_SHARE if sweep.front else 1))
    return rows + n_parts * part_bytes(sweep)


def part_bytes(sweep: Sweep) -> int:
    """Bytes of a part beside its rows at most: heads and footers of columns, names, and its line of the manifest."""
    names = sum(len(str(value).encode()) + 4 for axis in sweep.axes if axis.kind == "text" for value in axis.values)
    return COLUMN_BYTES * (len(sweep.columns) + 1) + names


def row_bytes(sweep: Sweep) -> int:
    """Bytes of a row of the files at most: 8 a number, 1 a name or flag; axes of few values repeat, and take 1."""
    names = sum(1 for name in sweep.keep if not sweep.columns[name] or name in FLAGS)
    axes = sum(1 if len(axis) <= FEW_VALUES else 2 if axis.kind == "text" else 8 for axis in sweep.axes)
    return 8 * (len(sweep.keep) - names) + names + axes + 3


def check_points(sweep: Sweep) -> None:
    """Raises LimitError for too many points."""
    if sweep.n_points > MAX_POINTS:
        raise LimitError(
            f"sweep of {sweep.n_points:,} points: at most {MAX_POINTS:,}: shorten an axis, or lift it with --no-limit"
        )


def check_limits(sweep: Sweep, out: str | Path) -> int:
    """Bytes that the files of the points not yet done take at most. Raises LimitError for too many points, or for more
    bytes than the disk holds, and OutputError where no disk is."""
    check_points(sweep)
    folder = Path(out).absolute()
    n_done = n_parts_done = 0
    if store.is_folder(out) and (manifest := store.load_json(folder / store.MANIFEST)):
        parts = store.parts_of(manifest).values()
        n_done, n_parts_done = sum(part.last - part.first for part in parts), len(parts)
    n_parts = store.n_parts(sweep) - n_parts_done
    n_bytes = most_bytes(sweep, max(sweep.n_points - n_done, 0), max(n_parts, 0))
    free = _free_bytes(folder)
    if n_bytes > free * DISK_SHARE:
        raise LimitError(
            f"sweep of {sweep.n_points:,} points: up to {human(n_bytes, 'B')}, the disk has {human(free, 'B')} free: "
            "keep fewer columns, or start with --no-limit"
        )
    return n_bytes


def _free_bytes(folder: Path) -> int:
    """Bytes that can be written where a directory is, or would be. Raises OutputError where none ever can."""
    there = folder
    try:
        while not there.exists():
            there = there.parent
        usage = shutil.disk_usage(there)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise OutputError(f"cannot write {show(str(folder))}: {reason}: give another directory with --out") from error
    if not usage.total:  # /proc, /sys: views of the kernel
        raise OutputError(
            f"cannot write {show(str(folder))}: {show(str(there))} is not a file system that holds files: give another "
            "directory with --out"
        )
    return usage.free


def estimate(sweep: Sweep) -> Estimate:
    """Points, bytes and time, from stretches of points spread over the sweep that are evaluated and timed.

    At each place stretches grow, as time allows, up to those of the run: what is done once for each then weighs little.
    By the clock of this thread, since what else runs on the machine is another matter.
    """

    def taken(first: int, width: int) -> float:
        start = time.thread_time()
        if sweep.front:
            front.Builder(sweep).add(first, first + width)
        else:
            table.encode(sweep, points.evaluate_chunk(sweep, first, first + width))
        return time.thread_time() - start

    def point_s(first: int) -> float:
        """Seconds for a point here."""
        width = min(FIRST_POINTS, most)
        seconds = taken(min(first, sweep.n_points - width), width)
        while 2 * seconds < SAMPLE_S and 4 * width <= most:
            width *= 4
            seconds = taken(min(first, sweep.n_points - width), width)
        return seconds / width

    taken(0, 1)  # whatever is compiled or loaded once
    most = min(points.MAX_BLOCK_POINTS, sweep.n_points)
    n_places, times_s, begun = min(SAMPLE_POINTS, sweep.n_points), [], time.perf_counter()
    for i in range(n_places):
        # not in order: where time runs out, what was looked at still comes from everywhere
        times_s.append(point_s(STRIDE * i % n_places * sweep.n_points // n_places))
        if time.perf_counter() - begun > SAMPLE_S:
            break
    seconds = sweep.n_points * sum(times_s) / len(times_s)
    n_rows, is_exact = count.rows_left(sweep)
    n_bytes = most_bytes(sweep, n_rows if is_exact else sweep.n_points, store.n_parts(sweep))
    return Estimate(sweep.n_points, n_bytes, seconds, n_rows, is_exact)


def in_memory(sweep: Sweep, max_points: int) -> pd.DataFrame:
    """The whole table at once. Raises LimitError above `max_points`."""
    if sweep.n_points > max_points:
        raise LimitError(
            f"sweep of {sweep.n_points:,} points: at most {max_points:,} in memory: give a directory `out`"
        )
    chunks = parts.blocks(sweep, 0, sweep.n_points, threading.Event(), lambda n: None, parts.Pace())
    return filling.noted(table.to_frame(table.to_arrow(sweep, chunks)), sweep.identity)


def to_directory(
    sweep: Sweep,
    out: str | Path,
    threads: int | None = None,
    limits: bool = True,
    progress: Callable[[int, int], None] = lambda done, of: None,
    say: Callable[[str], None] = lambda line: None,
    ready: Callable[[], None] = lambda: None,
    write: WriteParts | None = None,
) -> StoredSweep:
    """Run a sweep into a directory, or finish what an earlier run left; the files come out the same either way.

    `ready` is called once the directory is known to be usable and before the first part is written; `progress(done,
    of)` now and then, with points; `say` with a line for each thing that was set aside; all from this thread. `write`
    evaluates and writes parts elsewhere than in threads (`dse.sweep.cluster`). Raises LimitError, BusyError,
    InputError (the directory holds something else), OutputError (full or unwritable: what is finished stays);
    KeyboardInterrupt once the running threads have stopped and the manifest is written.
    """
    n_threads = check_threads(threads)
    if limits:
        check_limits(sweep, out)
    if store.is_folder(out):
        store.check(Path(out), sweep)  # before a lock is put into a directory of something else
    with store.locked(out) as folder:
        try:
            manifest, notes = store.begin(folder, sweep)
        except OSError as error:
            raise OutputError(f"cannot read {show(str(folder))}: {(error.strerror or str(error)).lower()}") from error
        for note in notes:
            say(note)
        ready()
        todo = [number for number in range(manifest.n_parts) if number not in manifest.parts]
        if write is None:
            write_parts(folder, sweep, manifest, todo, n_threads, progress)
        else:
            write(folder, sweep, manifest, todo, progress)
        finish(folder, sweep, manifest)
        spec, _ = store.manifest_of(folder)
        return StoredSweep(folder, spec, manifest, tuple(notes), len(todo))


def write_parts(
    folder: Path,
    sweep: Sweep,
    manifest: Manifest,
    todo: Sequence[int],
    n_threads: int,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> None:
    """Write the parts of `todo`, in any order, and the manifest beside them."""
    stop, counter, pace = threading.Event(), _Counter(), parts.Pace(sweep.part_points)
    before = sum(part.last - part.first for part in manifest.parts.values())
    running: set[Future[Part]] = set()
    started: list[Future[Part]] = []
    waiting, written_at = iter(todo), time.monotonic()

    def collect() -> None:
        for future in started:
            if future.done() and not future.cancelled() and future.exception() is None:
                manifest.parts[future.result().number] = future.result()

    with ThreadPoolExecutor(n_threads) as pool:
        try:
            while True:
                while len(running) < 2 * n_threads and (number := next(waiting, None)) is not None:
                    future = pool.submit(_write_part, folder, sweep, number, stop, counter.add, pace)
                    running.add(future)
                    started.append(future)
                if not running:
                    break
                done, running = wait(running, LOOK_S, FIRST_COMPLETED)
                interrupt.look()
                progress(before + counter.total, sweep.n_points)
                for future in done:
                    future.result()
                    collect()
                    started.remove(future)
                if done and running and time.monotonic() - written_at > MANIFEST_S:
                    manifest.write(folder)
                    written_at = time.monotonic()
        except BaseException as error:
            stop.set()
            for future in started:
                future.cancel()
            wait(started)
            collect()
            with contextlib.suppress(DseError):
                manifest.write(folder)
            if isinstance(error, OutputError):
                raise unwritable(error, manifest) from error
            raise
    manifest.write(folder)


def finish(folder: Path, sweep: Sweep, manifest: Manifest) -> None:
    """Merge the fronts of the parts, once all of them are written."""
    if sweep.front is None or manifest.front is not None or len(manifest.parts) < manifest.n_parts:
        return
    paths = [folder / part.name for _, part in sorted(manifest.parts.items())]
    merged = front.merged(paths, read_part, sweep.identity["front"])
    content = table.encode_table(sweep, merged)
    files.write(folder / store.FRONT, content)
    manifest.front = (merged.num_rows, hashlib.sha256(content).hexdigest())
    manifest.write(folder)


def unwritable(error: OutputError, manifest: Manifest) -> OutputError:
    """Error for a part that cannot be written: the reason, the parts done, how to resume."""
    cause = error.__cause__
    reason = f"cannot write: {(cause.strerror or str(cause)).lower()}" if isinstance(cause, OSError) else str(error)
    return OutputError(
        f"{reason}: {len(manifest.parts):,} of {manifest.n_parts:,} parts are done: free space and run the same "
        "command again, it goes on"
    )


class _Counter:
    """A number that threads add to."""

    def __init__(self) -> None:
        self.total, self._lock = 0, threading.Lock()

    def add(self, n: int) -> None:
        """Add `n`."""
        with self._lock:
            self.total += n


def _write_part(
    folder: Path, sweep: Sweep, number: int, stop: threading.Event, count: Callable[[int], None], pace: parts.Pace
) -> Part:
    part, content = parts.make_part(sweep, number, stop, count, pace)
    parts.publish(folder, part, content)
    return part
