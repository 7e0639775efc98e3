"""A sweep in a thread of its own: counted, cancelled, and gone when nobody waits for it any more."""

import threading
import time
from collections.abc import Callable

from dse import pareto_stream
from dse.errors import DseError
from dse.explorer.pareto_asked import Asked
from dse.pareto_designs import DesignFront
from dse.sweep_parts import Stopped
from dse.sweep_spec import Sweep

#: sweeps that run at once, of all sessions together; others wait their turn
MAX_RUNNING = 2
#: seconds that a session may be disconnected before its sweep ends: a reload of the page takes less
GRACE_S = 10.0
_LOOK_S = 0.2
_places = threading.BoundedSemaphore(MAX_RUNNING)


class Job:
    """The front of a sweep, being found. `front` or `problem` is there once `finished`; neither where it was stopped.

    `alive` says whether somebody still waits.
    """

    def __init__(self, asked: Asked, sweep: Sweep, alive: Callable[[], bool] = lambda: True) -> None:
        self.asked, self.sweep, self.n_points, self.n_done = asked, sweep, sweep.n_points, 0
        self.front: DesignFront | None = None
        self.problem: DseError | None = None
        self._alive, self._stop = alive, threading.Event()
        self._begun = self._seen = time.monotonic()
        self.thread = threading.Thread(target=self._run, name="pareto sweep", daemon=True)
        self.thread.start()

    @property
    def finished(self) -> bool:
        """True once the thread has ended, whatever it has found, or was told to."""
        return self._stop.is_set() or not self.thread.is_alive()

    @property
    def taken_s(self) -> float:
        """Seconds since it began."""
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

    def _run(self) -> None:
        try:
            while not _places.acquire(timeout=_LOOK_S):
                self._check()
            try:
                self.front = pareto_stream.front_of(
                    self.sweep,
                    self.asked.objectives(),
                    self.asked.by,
                    self._check,
                    self._count,
                    self.asked.limits(),
                )
            finally:
                _places.release()
        except Stopped:
            pass
        except DseError as error:
            self.problem = error
