"""Design-space exploration of KV-cache quantization for LLM serving.

The functions of dse/api.py are what scripts and notebooks use: `dse.formats`, `dse.evaluate`, `dse.grid`, `dse.sweep`,
`dse.front`, `dse.crossover`, `dse.need`, `dse.sensitivity`, `dse.best_map`, `dse.plot`, ... They are loaded when first
used, so that `import dse` takes no time; `__init__.pyi` tells editors their signatures.
"""

import importlib
from typing import Any

from dse.core.version import VERSION

__version__ = VERSION

__all__ = [
    "DesignResults",
    "Workload",
    "best_map",
    "check",
    "check_log",
    "claims",
    "crossover",
    "device",
    "doubt",
    "errors",
    "evaluate",
    "formats",
    "front",
    "grid",
    "hits",
    "interactivity",
    "lab",
    "load",
    "model",
    "need",
    "operations",
    "plot",
    "quantizer",
    "recommend",
    "report",
    "report_table",
    "results",
    "scores",
    "sensitivity",
    "simulate",
    "sweep",
    "units",
]

# packages that share their name with a function are imported before it: the import system then leaves the name alone
for _name in ("model", "operations", "report", "sweep"):
    importlib.import_module(f"dse.{_name}")
    del globals()[_name]


def __getattr__(name: str) -> Any:
    """Load a public function when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'dse' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module("dse.api"), name)
    return value


def __dir__() -> list[str]:
    """The public names, and those that every module has."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
