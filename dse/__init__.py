"""Design-space exploration of KV-cache quantization for LLM serving.

The functions of dse/api.py are what scripts and notebooks use: `dse.formats`, `dse.evaluate`, `dse.grid`, `dse.sweep`,
`dse.front`, `dse.crossover`, `dse.need`, `dse.sensitivity`, `dse.best_map`, `dse.plot`, ...
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from dse.core.version import VERSION

__version__ = VERSION

_FUNCTIONS = (
    "Workload",
    "best_map",
    "check",
    "claims",
    "crossover",
    "device",
    "devices",
    "errors",
    "evaluate",
    "formats",
    "front",
    "grid",
    "load",
    "model",
    "need",
    "operations",
    "plot",
    "quantizer",
    "report",
    "report_table",
    "results",
    "sensitivity",
    "simulate",
    "sweep",
    "units",
)
#: those that a package has the name of
_PACKAGES = ("model", "report", "sweep")


class _Called(ModuleType):
    """A package that has the name of a function of the public face: it can be called as that."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """What the function of the same name in dse/api.py returns."""
        return getattr(importlib.import_module("dse.api"), self.__name__.rpartition(".")[2])(*args, **options)


class _Face(ModuleType):
    """This package: its functions are loaded when they are first used, so that `import dse` takes no time."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Make callable the packages that the import system puts here under the name of a function."""
        if name in _PACKAGES and isinstance(value, ModuleType):
            value.__class__ = _Called
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """A function of dse/api.py; the package of that name where there is one."""
        if name not in _FUNCTIONS:
            raise AttributeError(f"module 'dse' has no attribute {name!r}")
        if name in _PACKAGES:
            return importlib.import_module(f"dse.{name}")
        return getattr(importlib.import_module("dse.api"), name)

    def __dir__(self) -> list[str]:
        """The public names, and those that every module has."""
        return sorted({*(name for name in super().__dir__() if name.startswith("__")), *_FUNCTIONS})


sys.modules[__name__].__class__ = _Face
