"""Compile kernels: exact arithmetic, cached where the cache directory is ours, plain Python where JIT is disabled."""

import os
import pickle
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

try:
    import fcntl
except ImportError:  # not on Windows: processes that start together compile each for itself
    fcntl = None  # type: ignore[assignment]

# Waiting OpenMP threads spin by default; where the cores are shared, a small kernel then takes milliseconds. Read when
# the threads start, so it must be set before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

#: what numba raises when a cached file is damaged, foreign or from another version
_CACHE_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    ImportError,
    KeyError,
    IndexError,
    pickle.PickleError,
)

prange = numba.prange


def cache_problem(folder: Path) -> str:
    """Why compiled code that others could have put into `folder` must not be loaded; "" where there is no danger."""
    try:
        info = folder.stat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return (error.strerror or type(error).__name__).lower()
    if not stat.S_ISDIR(info.st_mode):
        return "is not a directory"
    if hasattr(os, "getuid"):
        if info.st_uid not in (os.getuid(), 0):
            return "belongs to another user"
        if stat.S_IMODE(info.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
            return "can be written by other users"
    return ""


_told: set[str] = set()


def _warn(text: str) -> None:
    """One warning for all kernels."""
    if text not in _told:
        _told.add(text)
        warnings.warn(
            f"compiled kernels are not kept, each start compiles anew: {text}; set NUMBA_CACHE_DIR to a folder of your "
            "own",
            stacklevel=5,
        )


def _compiled(function: Callable[..., Any], parallel: bool, cache: bool, allocates: bool) -> Callable[..., Any]:
    """`function` through numba; without a cache where its folder cannot be used or trusted."""
    options: Any = {"parallel": parallel, "error_model": "numpy", "nogil": True, "_nrt": allocates}
    compile_ = numba.njit(**options)
    if not cache:
        return compile_(function)
    own = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(own) if own else Path(function.__code__.co_filename).parent / "__pycache__"
    if problem := cache_problem(folder):
        _warn(f"{folder}: {problem}")
        return compile_(function)
    try:
        with _private_files():
            return _in_turn(numba.njit(**options, cache=True)(function))
    except (RuntimeError, OSError) as error:  # nowhere to write
        _warn(str(error).splitlines()[0])
        return compile_(function)


def _in_turn(dispatcher: Any) -> Any:
    """`dispatcher`, which compiles while no other process does: others that start then wait and load what is kept."""
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]  # the plain function
        return dispatcher
    compile_ = dispatcher.compile
    path = Path(dispatcher.stats.cache_path) / f"{dispatcher.__module__}.{dispatcher.__qualname__}.lock"

    def compile_in_turn(signature: Any) -> Any:
        with _locked(path):
            return compile_(signature)

    dispatcher.compile = compile_in_turn
    return dispatcher


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which its process loses as it ends; without one where files cannot be locked."""
    with ExitStack() as held:
        if fcntl is not None:
            try:
                with _private_files():
                    file = held.enter_context(path.open("a"))
                fcntl.lockf(file, fcntl.LOCK_EX)
            except OSError:  # as on some shared folders
                pass
        yield


@contextmanager
def _private_files() -> Iterator[None]:
    """Folders that numba makes are for us alone."""
    mask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(mask)


class Kernel:
    """A compiled function that survives a damaged cache: it is compiled again, without a cache, with one warning."""

    def __init__(self, function: Callable[..., Any], parallel: bool, allocates: bool = True) -> None:
        self.function, self.parallel, self.allocates = function, parallel, allocates
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self._compiled = _compiled(function, parallel, True, allocates)
        self._called = False

    def __call__(self, *args: Any) -> Any:
        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
            # plain Python: numpy scalars would warn where kernels wrap around or divide by zero
            with np.errstate(all="ignore"):
                return self.function(*args)
        if self._called:
            return self._compiled(*args)
        try:
            found = self._compiled(*args)
        except _CACHE_ERRORS as error:
            _warn(f"what was kept is damaged ({type(error).__name__})")
            self._compiled = _compiled(self.function, self.parallel, False, self.allocates)
            found = self._compiled(*args)
        self._called = True
        return found


def kernel(function: F) -> F:
    """An entry point called from Python, `prange` in parallel. It must not raise: it reports through its results."""
    return Kernel(function, parallel=True)  # type: ignore[return-value]


def sequential(function: F, allocates: bool = True) -> F:
    """An entry point called from Python that runs on one thread. It must not raise.

    One that makes no array need not count who holds those that it is given (`allocates` False): where functions pass
    a record of many arrays to each other, that counting is most of the time.
    """
    return Kernel(function, False, allocates)  # type: ignore[return-value]


def inner(function: F) -> F:
    """A function that kernels call: compiled into them, vectorised on its own, never cached by itself."""
    return numba.njit(error_model="numpy", nogil=True)(function)  # type: ignore[return-value]
