"""Bit-exact KV-cache quantizers, and the formats they store.

A method is a small object with parameters: `NF4(block=256).quantize(x)` gives a `Packed` result, which holds the very
bytes and counts them, and turns back with `dequantize`; `KIVI(...).cache()` and `SinkQ(...).cache()` grow by `append`.
This package knows nothing of the design-space models. A file here that names its class in `__all__` is registered by
that: `kernels_ref.NF4` finds it, and loads compiled code then.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from kernels_ref.formats import (
    FORMATS,
    GGML_TYPES,
    PARTS,
    SCALED_TYPES,
    TURBOQUANT_TYPES,
    BlockType,
    NumberFormat,
    ScaledType,
    StorageConstants,
    TurboQuantType,
    storage,
)

if TYPE_CHECKING:
    from kernels_ref.cache import RowCache
    from kernels_ref.groups import GroupCache
    from kernels_ref.jit import inner, kernel, prange, sequential
    from kernels_ref.packed import Packed
    from kernels_ref.patterns import fp16_patterns

__all__ = [
    "FORMATS",
    "GGML_TYPES",
    "PARTS",
    "SCALED_TYPES",
    "TURBOQUANT_TYPES",
    "BlockType",
    "GroupCache",
    "NumberFormat",
    "Packed",
    "RowCache",
    "ScaledType",
    "StorageConstants",
    "TurboQuantType",
    "fp16_patterns",
    "inner",
    "kernel",
    "prange",
    "sequential",
    "storage",
]

#: names that methods share, with the modules that define them
_SHARED = {
    "GroupCache": "groups",
    "Packed": "packed",
    "RowCache": "cache",
    "fp16_patterns": "patterns",
    **dict.fromkeys(("inner", "kernel", "prange", "sequential"), "jit"),
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name in _SHARED:
        return getattr(import_module(f"{__name__}.{_SHARED[name]}"), name)
    if name[0].isupper():  # a class, not a file
        files = (module.name for module in iter_modules(__path__))
        for file in sorted(files, key=lambda file: file not in name.lower()):  # most classes are called as their file
            module = import_module(f"{__name__}.{file}")
            if name in getattr(module, "__all__", ()):
                return getattr(module, name)
    raise AttributeError(f"module 'kernels_ref' has no attribute {name!r}")
