"""Compile kernels: exact arithmetic, cached where the cache directory is ours, plain Python where JIT is disabled."""

import os
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

# Waiting OpenMP threads spin by default; where the cores are shared, a small kernel then takes milliseconds. Read when
# the threads start, so it must be set before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

#: what numba raises when a cached file is damaged, foreign or from another version
_CACHE_ERRORS = (OSError, EOFError, ValueError, TypeError, AttributeError, ImportError, KeyError, IndexError)

prange = numba.prange


def _cache_folder(file: str) -> Path:
    return Path(os.environ.get("NUMBA_CACHE_DIR") or Path(file).parent / "__pycache__")


def cache_problem(folder: Path) -> str:
    """Why compiled code must not be kept in `folder`; "" where it may. Creates the folder, for us alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.stat()
        if hasattr(os, "getuid"):
            if info.st_uid != os.getuid():
                return "belongs to another user"
            if stat.S_IMODE(info.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
                return "can be written by other users"
        probe = folder / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""


_found: dict[Path, bool] = {}


def _may_cache(file: str) -> bool:
    folder = _cache_folder(file)
    if folder not in _found:
        problem = cache_problem(folder)
        _found[folder] = not problem
        if problem:
            warnings.warn(
                f"compiled kernels are not kept, each start compiles anew: {folder}: {problem}; "
                "set NUMBA_CACHE_DIR to a folder of your own",
                stacklevel=4,
            )
    return _found[folder]


class Kernel:
    """A compiled function that survives a damaged cache: it is compiled again, without a cache, with one warning."""

    def __init__(self, function: Callable[..., Any], parallel: bool) -> None:
        self.function, self.parallel = function, parallel
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self._compiled = self._compile(_may_cache(function.__code__.co_filename))
        self._called = False

    def _compile(self, cache: bool) -> Callable[..., Any]:
        return numba.njit(cache=cache, parallel=self.parallel, error_model="numpy", nogil=True)(self.function)

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
            warnings.warn(f"cache of {self.__name__}: {type(error).__name__}: compiled anew", stacklevel=2)
            self._compiled = self._compile(cache=False)
            found = self._compiled(*args)
        self._called = True
        return found


def kernel(function: F) -> F:
    """An entry point called from Python, `prange` in parallel. It must not raise: it reports through its results."""
    return Kernel(function, parallel=True)  # type: ignore[return-value]


def inner(function: F) -> F:
    """A function that kernels call: compiled into them, vectorised on its own, never cached by itself."""
    return numba.njit(error_model="numpy", nogil=True)(function)  # type: ignore[return-value]
