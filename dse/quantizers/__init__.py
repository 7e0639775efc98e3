"""KV quantizers as the models see them: which bits they store for a tensor, and when.

One entry per family in `plain`, `grouped`, `outliers` or `vllm`; `parse("sinkq:bits=2,group=32")` gives a
`QuantizerSpec`.
"""

from dse.quantizers import layered, skipping
from dse.quantizers.base import (
    Family,
    Param,
    QuantizerSpec,
    TensorLayout,
    TensorShape,
)
from dse.quantizers.registry import FAMILIES, parse

__all__ = [
    "FAMILIES", "Family", "Param", "QuantizerSpec", "TensorLayout", "TensorShape", "layered", "parse", "skipping",
]  # fmt: skip
