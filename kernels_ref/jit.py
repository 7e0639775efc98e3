"""Compile kernels: exact arithmetic, code kept between runs, plain Python where JIT is disabled."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

# Waiting OpenMP threads spin by default; where the cores are shared, a small kernel then takes milliseconds. Read when
# the threads start, so it must be set before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numba
import numpy as np

from kernels_ref.code_cache import CodeCache, code_folder

F = TypeVar("F", bound=Callable[..., Any])

prange = numba.prange


class Kernel:
    """A function that is compiled when first called, or loaded where its code was kept (`kernels_ref.code_cache`)."""

    def __init__(
        self, function: Callable[..., Any], parallel: bool, allocates: bool = True, sources: tuple[Path, ...] = ()
    ) -> None:
        self.function = function
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        options: Any = {"parallel": parallel, "error_model": "numpy", "nogil": True, "_nrt": allocates}
        self._compiled: Any = numba.njit(**options)(function)
        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
            return
        folder = code_folder(function.__module__ if sources else "kernels_ref", sources)
        if folder is not None:
            _keep_code(self._compiled, CodeCache(function, folder))

    def __call__(self, *args: Any) -> Any:
        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
            # plain Python: numpy scalars would warn where kernels wrap around or divide by zero
            with np.errstate(all="ignore"):
                return self.function(*args)
        return self._compiled(*args)


def _keep_code(dispatcher: Any, kept: CodeCache) -> None:
    """Let `dispatcher` load and save its code, and compile while no other process compiles the same."""
    dispatcher._cache, compile_ = kept, dispatcher.compile

    def compile_in_turn(signature: Any) -> Any:
        with kept.locked():
            return compile_(signature)

    dispatcher.compile = compile_in_turn


def kernel(function: F) -> F:
    """An entry point called from Python, `prange` in parallel. It must not raise: it reports through its results.

    function: Takes arrays, numbers and named tuples of them, by position, in numba's part of Python.
    """
    return Kernel(function, parallel=True)  # type: ignore[return-value]


def sequential(function: F, allocates: bool = True, sources: tuple[Path, ...] = ()) -> F:
    """An entry point called from Python that runs on one thread. It must not raise.

    function: As of `kernel`.
    allocates: False for one that makes no array: it need not count who holds those that it is given, which is most of
        the time where functions pass a record of many arrays to each other.
    sources: Files outside this package that the code is made of; a change in one of them compiles anew.
    """
    return Kernel(function, False, allocates, sources)  # type: ignore[return-value]


def inner(function: F) -> F:
    """A function that kernels call: compiled into them, vectorized on its own, never cached by itself.

    function: As of `kernel`; it may return values.
    """
    return numba.njit(error_model="numpy", nogil=True)(function)  # type: ignore[return-value]
