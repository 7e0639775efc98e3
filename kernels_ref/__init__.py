"""Bit-exact KV-cache quantizers, and the formats they store.

A method is a small object with parameters: `NF4(block=256).quantize(x)` gives a `Packed` result, which holds the very
bytes and counts them, and turns back with `dequantize`; `KIVI(...).cache()` and `SinkQ(...).cache()` grow by `append`.
This package knows nothing of the design-space models: they reach it through what it exports here. Compiled code is
loaded when a method is first asked for.
"""

from importlib import import_module
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
    from kernels_ref.atom import Atom
    from kernels_ref.cache import GroupCache, RowCache
    from kernels_ref.fp8 import FP8
    from kernels_ref.ggml import GGML
    from kernels_ref.inputs import fp16_patterns
    from kernels_ref.integers import PerTensorInteger, PerTokenInteger
    from kernels_ref.jit import inner, kernel, prange, sequential
    from kernels_ref.kivi import KIVI
    from kernels_ref.kvquant import KVQuantKeys, KVQuantValues
    from kernels_ref.latent import Latent
    from kernels_ref.mx import MX
    from kernels_ref.nf4 import NF4
    from kernels_ref.nvfp4 import NVFP4
    from kernels_ref.oaken import Oaken, Profiler, Thresholds
    from kernels_ref.packed import Packed
    from kernels_ref.per_head import PerTokenHead
    from kernels_ref.qserve import QServe
    from kernels_ref.quanto import Quanto
    from kernels_ref.sinkq import SinkQ, SinkQCache
    from kernels_ref.tender import Tender
    from kernels_ref.turboquant import TurboQuant

__all__ = [
    "FORMATS",
    "FP8",
    "GGML",
    "GGML_TYPES",
    "KIVI",
    "MX",
    "NF4",
    "NVFP4",
    "PARTS",
    "SCALED_TYPES",
    "TURBOQUANT_TYPES",
    "Atom",
    "BlockType",
    "GroupCache",
    "KVQuantKeys",
    "KVQuantValues",
    "Latent",
    "NumberFormat",
    "Oaken",
    "Packed",
    "PerTensorInteger",
    "PerTokenHead",
    "PerTokenInteger",
    "Profiler",
    "QServe",
    "Quanto",
    "RowCache",
    "ScaledType",
    "SinkQ",
    "SinkQCache",
    "StorageConstants",
    "Tender",
    "Thresholds",
    "TurboQuant",
    "TurboQuantType",
    "fp16_patterns",
    "inner",
    "kernel",
    "prange",
    "sequential",
    "storage",
]

#: module -> public names that it defines
_MODULES = {
    "atom": ("Atom",),
    "cache": ("GroupCache", "RowCache"),
    "fp8": ("FP8",),
    "ggml": ("GGML",),
    "inputs": ("fp16_patterns",),
    "integers": ("PerTensorInteger", "PerTokenInteger"),
    "jit": ("inner", "kernel", "prange", "sequential"),
    "kivi": ("KIVI",),
    "kvquant": ("KVQuantKeys", "KVQuantValues"),
    "latent": ("Latent",),
    "mx": ("MX",),
    "nf4": ("NF4",),
    "nvfp4": ("NVFP4",),
    "oaken": ("Oaken", "Profiler", "Thresholds"),
    "packed": ("Packed",),
    "per_head": ("PerTokenHead",),
    "qserve": ("QServe",),
    "quanto": ("Quanto",),
    "sinkq": ("SinkQ", "SinkQCache"),
    "tender": ("Tender",),
    "turboquant": ("TurboQuant",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kernels_ref' has no attribute {name!r}")
    return getattr(import_module(f"kernels_ref.{_HOMES[name]}"), name)
