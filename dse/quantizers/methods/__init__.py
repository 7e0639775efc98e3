"""Quantizers, one file each: bits, layout, kernel, names in engines, source.

A file in this folder is registered by standing here: all that its `FAMILIES` holds.
"""

from importlib import import_module
from pkgutil import iter_modules

from dse.quantizers.base import Family


def every() -> list[Family]:
    """The families of all files in this folder, in the order of lists."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    return sorted((family for module in modules for family in module.FAMILIES), key=lambda family: family.listed)
