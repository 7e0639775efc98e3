"""MX formats: blocks of channels with a scale that is a power of two (E8M0)."""

from typing import Any

from dse.quantizers.base import EngineName, Family, Values, param
from dse.quantizers.block_scales import family
from dse.quantizers.engine_names import SGLANG, SGLANG_OLD, VLLM_033
from dse.quantizers.kernel import Method, PerSide, Place
from kernels_ref import SCALED_TYPES

_RULES = ("floor", "ceil", "rceil", "even")
_PARAMS = {
    "mxfp4": (
        param(
            "rule", default="floor", help="scale from the largest magnitude (floor: OCP, rceil: cuBLAS)", choices=_RULES
        ),
    ),
    "mxfp8": (
        param("rule", default="sglang", help="scale from the largest magnitude", choices=("sglang", *_RULES, "vllm")),
    ),
    "fp4_mx_block16": (),
}
_ENGINES = {
    "mxfp4": (
        EngineName(
            "vLLM",
            "ultraquant_4bit",
            "mxfp4",
            VLLM_033,
            "has E2M1 with a scale of 8 bits for 32 channels, of rotated keys, for ROCm alone",
        ),
    ),
    "mxfp8": (EngineName("SGLang", "mxfp8", "mxfp8", SGLANG),),
    "fp4_mx_block16": (
        EngineName("SGLang", "fp4_e2m1", "fp4_mx_block16", SGLANG_OLD),
        EngineName("SGLang", "fp4_mx_block16", "fp4_mx_block16", SGLANG),
    ),
}


def _family(name: Any) -> Family:
    def kernel(values: Values, place: Place) -> Method:
        from kernels_ref.mx import MX

        return MX(name, **values_of_rule(values))

    return family(SCALED_TYPES[name], PerSide(kernel), _PARAMS[name], _ENGINES[name], listed=160)


def values_of_rule(values: Values) -> dict[str, Any]:
    """The argument `rule` of a format that has several."""
    return {"rule": values["rule"]} if "rule" in values else {}


FAMILIES = tuple(_family(name) for name in _PARAMS)
