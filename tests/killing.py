"""Runs that are killed at the n-th call that changes files."""

import math
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dse.core import files

#: calls at which a run is killed: all that change a directory or a file's state on disk
STEPS = ("replace", "rename", "link", "fsync", "fchmod", "unlink", "rmdir", "mkdir")


def alone(run: Callable[..., None], *given: Any) -> None:
    """Call `run` in a process of its own: it has no threads, and few imports, which each child has to copy."""
    process = multiprocessing.get_context("spawn").Process(target=run, args=given)
    process.start()
    process.join()
    assert process.exitcode == 0


def content_of(folder: Path) -> dict[str, bytes]:
    """Every file that is not temporary, by its name."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: content for name, content in found.items() if not files.TEMPORARY.match(name.split("/")[0])}


def _child(run: Callable[[], object], step: float) -> tuple[int, int]:
    """Its state at the end and the calls of `STEPS` it made: killed at the n-th, or at its end by itself."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        n_calls = 0

        def counted(call):
            def replaced(*args, **options):
                nonlocal n_calls
                n_calls += 1
                if n_calls > step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **options)

            return replaced

        os.fsync = lambda handle: None
        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        with suppress(SystemExit):
            run()
        os.write(writing, str(n_calls).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as report:
        n_calls = int(report.read() or 0)
    return os.waitpid(child, 0)[1], n_calls


def killed_at(step: int, run: Callable[[], object]) -> bool:
    """Whether a child that is killed at its n-th call of `STEPS` got that far."""
    return os.WIFSIGNALED(_child(run, step)[0])


def n_steps_of(run: Callable[[], object]) -> int:
    """Calls of `STEPS` that a child makes that runs to its end."""
    state, n_calls = _child(run, math.inf)
    assert state == 0
    return n_calls
