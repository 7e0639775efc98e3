"""KV quantizers as the models see them: which bits they store for a tensor, and when.

One file per method in `methods`; `parse("sinkq:bits=2,group=32")` gives a `QuantizerSpec`, as does a name that an
engine has for one (`engine_names`).
"""

from dse.quantizers import engine_names, layered, skipping
from dse.quantizers.base import Family, QuantizerSpec, TensorLayout, TensorShape
from dse.quantizers.registry import FAMILIES, is_named, parse

__all__ = [
    "FAMILIES",
    "Family",
    "QuantizerSpec",
    "TensorLayout",
    "TensorShape",
    "engine_names",
    "is_named",
    "layered",
    "parse",
    "skipping",
]
