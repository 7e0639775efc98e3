"""Sweep in a thread of its own: counted, cancelled, and ended when its session is gone."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pandas as pd

from dse.core.errors import DseError
from dse.explorer.front.request import FrontRequest
from dse.model.engine import COMPILED
from dse.model.results import RESULT_UNITS
from dse.sweep import sweeps
from dse.sweep.pareto import stream
from dse.sweep.pareto.designs import DesignFront
from dse.sweep.parts import Stopped
from dse.sweep.spec import Sweep

#: sweeps of so many points start by themselves, with all of their results kept in memory
AUTO_POINTS = 20_000
#: sweeps that run at once, of all sessions together; others wait their turn
MAX_RUNNING = 2
#: seconds that a session may be disconnected before its sweep ends: a reload of the page takes less
GRACE_S = 10.0
#: seconds between two tries for a place
_TRY_S = 0.2
_places = threading.BoundedSemaphore(MAX_RUNNING)
#: once compiled code is loaded, sweeps of any size run by it; one thread loads it, for all sessions
_is_loaded, _loading = threading.Event(), threading.Lock()


def _load(sweep: Sweep) -> None:
    """Load compiled code, or compile it where none was kept: by a point of a sweep, which then is forgotten."""
    if _loading.acquire(blocking=False):
        try:
            sweeps.rows(replace(sweep, by=COMPILED), [0])
            _is_loaded.set()
        finally:
            _loading.release()


class FrontJob:
    """Compute the front of a sweep in a thread that counts points, can be cancelled, and ends with its session.

    Once `finished`, `front` or `problem` is set; neither after a cancellation. `alive` returns False once the session
    has left; `whole` holds the sweep's rows where an earlier job evaluated them.
    """

    def __init__(
        self,
        asked: FrontRequest,
        sweep: Sweep,
        alive: Callable[[], bool] = lambda: True,
        whole: pd.DataFrame | None = None,
    ) -> None:
        if _is_loaded.is_set():
            sweep = replace(sweep, by=COMPILED)
        self.asked, self.sweep, self.n_points, self.n_done = asked, sweep, sweep.n_points, 0
        self.whole = whole
        self._parts: list[pd.DataFrame] = []
        every = (name for name, unit in RESULT_UNITS.items() if unit and name not in sweep.axis)
        self._wide = replace(sweep, keep=tuple(dict.fromkeys((*sweep.keep, *every))))
        self._unwanted = [name for name in self._wide.keep if name not in sweep.keep]
        self.front: DesignFront | None = None
        self.problem: DseError | None = None
        self._alive, self._stop = alive, threading.Event()
        self._begun = self._seen = time.monotonic()
        self.thread = threading.Thread(target=self._run, name="front sweep", daemon=True)
        self.thread.start()

    @property
    def finished(self) -> bool:
        """True when the thread has finished or been cancelled."""
        return self._stop.is_set() or not self.thread.is_alive()

    @property
    def taken_s(self) -> float:
        """Seconds since the job started."""
        return time.monotonic() - self._begun

    def cancel(self) -> None:
        """Ask the thread to end; returns at once."""
        self._stop.set()

    def _check(self) -> None:
        now = time.monotonic()
        if self._alive():
            self._seen = now
        if self._stop.is_set() or now - self._seen > GRACE_S:
            raise Stopped

    def _count(self, n: int) -> None:
        self.n_done += n

    def _rows(self, start: int, end: int) -> pd.DataFrame:
        """Rows start to end of the sweep, kept where it is short: another limit or objective evaluates nothing anew."""
        if self.whole is not None:
            return self.whole.iloc[start:end].reset_index(drop=True).drop(columns=self._unwanted)
        if self.n_points > AUTO_POINTS:
            return stream.stretch(self.sweep, start, end, self._check)
        rows = stream.stretch(self._wide, start, end, self._check)
        self._parts.append(rows)
        return rows.drop(columns=self._unwanted)

    def _run(self) -> None:
        try:
            while not _places.acquire(timeout=_TRY_S):
                self._check()
            try:
                front = stream.front_of(
                    self.sweep,
                    self.asked.objectives(),
                    self.asked.by,
                    self._check,
                    self._count,
                    self.asked.limits(),
                    self._rows,
                )
                if self._parts:
                    self.whole, self._parts = pd.concat(self._parts, ignore_index=True), []
                self.front = front
                if self.sweep.is_compiled:
                    _is_loaded.set()
                else:  # after the answer, so that it does not wait
                    threading.Thread(target=_load, args=(self.sweep,), name="compiled code").start()
            finally:
                _places.release()
        except Stopped:
            pass
        except DseError as error:
            self.problem = error
        self.sweep = self._wide = replace(self.sweep)  # without the plans that it built: a megabyte a session
