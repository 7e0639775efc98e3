"""What makes a function a formula: its unit, equation and source, and its compiled forms."""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol, cast


class Formula(Protocol):
    """A plain function that also says its unit, equation and source."""

    unit: str
    equation: str
    source: str
    __name__: str

    def __call__(self, *args: Any, **terms: Any) -> Any: ...

    def __hash__(self) -> int: ...


#: every formula by name
FORMULAS: dict[str, Formula] = {}


def formula(unit: str, equation: str, source: str) -> Callable[[Callable[..., Any]], Formula]:
    """Mark a function as a formula. It stays a plain function; `unit`, `equation` and `source` become attributes."""

    def mark(function: Callable[..., Any]) -> Formula:
        marked = cast(Formula, function)
        marked.unit, marked.equation, marked.source = unit, equation, source
        FORMULAS[function.__name__] = marked
        return marked

    return mark


def load_all() -> dict[str, Formula]:
    """Import every file of dse.formulas, so that FORMULAS is complete, and return it."""
    package = importlib.import_module("dse.formulas")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"dse.formulas.{module.name}")
    return FORMULAS


@cache
def registered() -> Any:
    """numba, with every formula made callable from compiled code. Costs a quarter second: only when asked for."""
    import numba
    from numba.extending import register_jitable

    for function in load_all().values():
        register_jitable(error_model="numpy")(function)
    return numba


@cache
def jit(function: Formula) -> Callable[..., Any]:
    """The formula compiled for scalars and for use inside other numba kernels."""
    return registered().njit(error_model="numpy")(function)


@cache
def array(function: Formula) -> Callable[..., Any]:
    """The formula over numpy arrays (broadcast), as a numba ufunc; integers must stay below 2**53."""
    numba = registered()
    return numba.vectorize(function)
