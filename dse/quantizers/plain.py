"""Formats without groups: FP16, BF16, FP8, and integers with one scale a token (or a fixed one)."""

from dse.quantizers.base import Family, Param, TensorLayout, TensorShape, Values
from kernels_ref import FORMATS


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up, b > 0."""
    return -(-a // b)


def nibbles(n_elements: int) -> int:
    """Bits of n 4-bit codes, two a byte."""
    return 8 * ceil_div(n_elements, 2)


def _sixteen(values: Values, shape: TensorShape) -> TensorLayout:
    return TensorLayout(shape, {"payload": 16 * shape.n_elements}, needs_unpacking=False)


def _fp8(values: Values, shape: TensorShape) -> TensorLayout:
    return TensorLayout(shape, {"payload": FORMATS[f"fp8_{values['format']}"].bits * shape.n_elements})


def _integer(bits: int):
    def layout(values: Values, shape: TensorShape) -> TensorLayout:
        payload = 8 * shape.n_elements if bits == 8 else nibbles(shape.n_elements)
        scale = FORMATS[values["scale"]].bits if values["granularity"] == "token" else 0
        return TensorLayout(shape, {"payload": payload, "scales": scale})

    return layout


_FORMAT = Param("format", "e4m3", "FP8 variant", choices=("e4m3", "e5m2"))
_INTEGER = (
    Param(
        "granularity",
        "token",
        "one scale per token vector, or a fixed one per tensor",
        choices=("token", "tensor"),
    ),
    Param("scale", "fp32", "format of the scale", choices=("fp16", "fp32")),
)

FAMILIES = (
    Family("fp16", "FP16", "IEEE binary16, not quantised", _sixteen),
    Family("bf16", "BF16", "bfloat16, not quantised", _sixteen),
    Family(
        "fp8",
        "FP8",
        "OCP FP8; the scale is fixed with the weights (vLLM kv_cache_dtype=fp8)",
        _fp8,
        (_FORMAT,),
    ),
    Family(
        "int8",
        "INT8",
        "absmax per token, bitsandbytes int8_vectorwise; tensor: SmoothQuant",
        _integer(8),
        _INTEGER,
    ),
    Family("int4", "INT4", "absmax per token", _integer(4), _INTEGER),
)
