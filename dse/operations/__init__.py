"""Operations: frozen dataclasses from which commands, functions and printed texts are derived.

A class in this folder that `@operation` gives words or a function is registered by standing here.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.operations.declare import Operation


def every() -> list[type[Operation]]:
    """Return the operations of all files in this folder that have a command or a function."""
    from dse.operations.declare import Operation

    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    classes = [
        member
        for module in modules
        for member in vars(module).values()
        if isinstance(member, type) and issubclass(member, Operation) and member.__module__ == module.__name__
    ]
    return [cls for cls in classes if cls.words or cls.function]
