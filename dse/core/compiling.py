"""One source for one point and for many: functions that run as they are, and compiled inside the loop of a sweep.

`formula` marks an equation, `compilable` a function of numbers and records made of equations. Called from Python both
are the plain function: whole numbers are Python's, exact at any size, and no compiler is loaded. numba compiles the
same source where compiled code calls it. Only + - * / // sqrt log min max and comparisons are used, so that both agree.
"""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
#: of formulas that are exact in whole numbers and bounds in floats
Number = TypeVar("Number", int, float)


class Formula(Protocol[P, R_co]):
    """A plain function that also says its unit, equation and source."""

    unit: str
    equation: str
    source: str
    __name__: str

    def __call__(self, *args: P.args, **terms: P.kwargs) -> R_co: ...

    def __hash__(self) -> int: ...


#: every formula that has been imported, by name
FORMULAS: dict[str, Formula[..., Any]] = {}
#: functions that compiled code may call, and whether each is merged into its caller
_FUNCTIONS: dict[Callable[..., Any], bool] = {}
_registered: set[Callable[..., Any]] = set()
#: those of them that read or make lists, or make arrays
_MAKING: set[Callable[..., Any]] = set()
#: where marked functions may be, in `dse`
SOURCES = ("core/compiling.py", "model/**/*.py", "quantizers/base.py", "specs/tokens.py")


def formula(unit: str, equation: str, source: str) -> Callable[[Callable[P, R_co]], Formula[P, R_co]]:
    """Mark a function as a formula. It stays a plain function; `unit`, `equation` and `source` become attributes.

    Raises ValueError where another function is a formula of that name.
    """

    def mark(function: Callable[P, R_co]) -> Formula[P, R_co]:
        marked = cast(Formula[P, R_co], function)
        name, known = function.__name__, FORMULAS.get(function.__name__)
        if known and known.__module__ != function.__module__:
            raise ValueError(f"formula {name} of {function.__module__}: {known.__module__} has one of that name")
        marked.unit, marked.equation, marked.source = unit, equation, source
        FORMULAS[name] = marked
        _FUNCTIONS[function] = False
        return marked

    return mark


def compilable(function: F) -> F:
    """Mark a function that compiled code may call. It stays a plain function."""
    _FUNCTIONS[function] = False
    return function


def inlined(function: F) -> F:
    """`compilable`, merged into every loop that calls it, so that constants fold and the loop becomes vectors."""
    _FUNCTIONS[function] = True
    return function


def making(function: F) -> F:
    """`compilable`, for a function that reads or makes a list, or makes an array.

    Compiled code counts who holds what is made, so that it is given back. All other functions leave arrays that they
    are given uncounted, which takes longer than most of them compute: they must not return one.
    """
    _MAKING.add(function)
    return compilable(function)


def ceil(number: float) -> float:
    """The smallest whole number that is not below `number`, as a float."""
    return float(math.ceil(number))


def registered() -> Any:
    """numba, with every function marked so far callable from compiled code; takes a quarter second the first time."""
    import numba
    import numpy as np
    from numba.extending import overload, register_jitable

    if not _registered:
        overload(ceil)(lambda number: lambda number: np.ceil(number))  # one instruction, for whole vectors
    for function, is_inlined in _FUNCTIONS.items():
        if function not in _registered:
            options = {"no_cfunc_wrapper": True, "no_cpython_wrapper": True, "forceinline": is_inlined}
            options["_nrt"] = function in _MAKING
            register_jitable(error_model="numpy", **options)(function)
            _registered.add(function)
    return numba


@cache
def array(function: Formula[..., Any]) -> Callable[..., Any]:
    """The formula over numpy arrays (broadcast), as a numba ufunc; integers must stay below 2**53.

    Wide vectors compute both sides of a branch and keep one: a division by zero on the other is no news.
    """
    import numpy as np

    compiled: Callable[..., Any] = registered().vectorize(function)
    return np.errstate(divide="ignore", invalid="ignore")(compiled)


def elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """A formula over numpy arrays as plain Python runs it: only for those of + - * / and //."""
    return function


@cache
def sources() -> tuple[Path, ...]:
    """Files of compiled code, imported or not: each command imports the formulas that it needs, and all share code."""
    return tuple(sorted(path for pattern in SOURCES for path in Path(__file__).parents[1].glob(pattern)))
