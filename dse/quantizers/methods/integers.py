"""INT8 and INT4 with a scale for each token, or a fixed one for a tensor."""

from collections.abc import Callable
from typing import Literal

from dse.quantizers.base import EngineName, Family, TensorLayout, TensorShape, Values, codes, param
from dse.quantizers.engine_names import TENSORRT_LLM_MODE
from dse.quantizers.kernel import Method, PerSide, Place
from kernels_ref import FORMATS


def _layout(bits: int) -> Callable[[Values, TensorShape], TensorLayout]:
    def layout(values: Values, shape: TensorShape) -> TensorLayout:
        scale = FORMATS[values["scale"]].bits if values["granularity"] == "token" else 0
        return TensorLayout(shape, packed={**codes(shape.n_elements, bits), "scales": scale})

    return layout


def _kernel(bits: Literal[8, 4]) -> PerSide:
    def make(values: Values, place: Place) -> Method:
        from kernels_ref.integers import PerTensorInteger, PerTokenInteger

        if values["granularity"] == "token":
            return PerTokenInteger(bits, values["scale"])
        return PerTensorInteger.measured(place.x, bits, place.settings.n_heads, place.settings.nonfinite)

    return PerSide(make)


_PARAMS = (
    param(
        "granularity",
        default="token",
        help="one scale per token vector, or a fixed one per tensor",
        choices=("token", "tensor"),
    ),
    param("scale", default="fp32", help="format of the scale", choices=("fp16", "fp32")),
)

FAMILIES = (
    Family(
        name="int8",
        title="INT8",
        source="absmax per token, bitsandbytes int8_vectorwise; tensor: SmoothQuant",
        layout=_layout(FORMATS["int8"].bits),
        params=_PARAMS,
        kernel=_kernel(8),
        listed=40,
        # TensorRT-LLM's INT8 has one scale for a tensor: its mode flag names it, since `int8` is one scale a token
        engines=(EngineName("TensorRT-LLM", "int8_kv_cache", "int8:granularity=tensor", TENSORRT_LLM_MODE),),
    ),
    Family(
        name="int4",
        title="INT4",
        source="absmax per token",
        layout=_layout(FORMATS["int4"].bits),
        params=_PARAMS,
        kernel=_kernel(4),
        listed=50,
    ),
)
