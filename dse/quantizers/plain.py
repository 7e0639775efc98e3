"""Formats without groups: FP16, BF16, FP8, and integers with one scale a token (or a fixed one)."""

from dse.core.units import FP16_BITS
from dse.quantizers.base import Family, Param, TensorLayout, TensorShape, Values, codes
from kernels_ref import FORMATS


def _sixteen(values: Values, shape: TensorShape) -> TensorLayout:
    return TensorLayout(shape, {"payload": FP16_BITS * shape.n_elements}, needs_unpacking=False)


def _fp8(values: Values, shape: TensorShape) -> TensorLayout:
    return TensorLayout(shape, {"payload": FORMATS[f"fp8_{values['format']}"].bits * shape.n_elements})


def _integer(bits: int):
    def layout(values: Values, shape: TensorShape) -> TensorLayout:
        scale = FORMATS[values["scale"]].bits if values["granularity"] == "token" else 0
        return TensorLayout(shape, {**codes(shape.n_elements, bits), "scales": scale})

    return layout


_FORMAT = Param("format", "e4m3", "FP8 variant", choices=("e4m3", "e5m2"))
_INTEGER = (
    Param("granularity", "token", "one scale per token vector, or a fixed one per tensor", choices=("token", "tensor")),
    Param("scale", "fp32", "format of the scale", choices=("fp16", "fp32")),
)

FAMILIES = (
    Family("fp16", "FP16", "IEEE binary16, not quantised", _sixteen),
    Family("bf16", "BF16", "bfloat16, not quantised", _sixteen),
    Family("fp8", "FP8", "OCP FP8; the scale is fixed with the weights (vLLM kv_cache_dtype=fp8)", _fp8, (_FORMAT,)),
    Family(
        "int8",
        "INT8",
        "absmax per token, bitsandbytes int8_vectorwise; tensor: SmoothQuant",
        _integer(FORMATS["int8"].bits),
        _INTEGER,
    ),
    Family("int4", "INT4", "absmax per token", _integer(FORMATS["int4"].bits), _INTEGER),
)
