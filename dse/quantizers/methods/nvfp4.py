"""NVFP4: E2M1 codes in blocks of 16 with an E4M3 scale and one FP32 factor for a layer's keys, or values."""

from typing import Literal

from dse.quantizers.base import EngineName, Family, Values, param
from dse.quantizers.block_scales import family
from dse.quantizers.engine_names import SGLANG, TENSORRT_LLM, TENSORRT_LLM_MODE, VLLM
from dse.quantizers.kernel import Method, PerSide, Place
from kernels_ref import SCALED_TYPES

_SCALE = param(
    "scale",
    default="amax",
    help="FP32 factor of a layer's keys, and values: largest magnitude / 2688 (ModelOpt), or 1 (no factor)",
    choices=("amax", "one"),
)
_ENGINES = {
    "nvfp4": (
        EngineName("TensorRT-LLM", "nvfp4_kv_cache", "nvfp4", TENSORRT_LLM_MODE),
        EngineName("vLLM", "nvfp4", "nvfp4", VLLM),
        EngineName("SGLang", "nvfp4", "nvfp4", SGLANG),
        EngineName("TensorRT-LLM", "nvfp4", "nvfp4", TENSORRT_LLM),
    ),
    "nvfp4_4over6": (EngineName("vLLM", "nvfp4_4over6", "nvfp4_4over6", VLLM),),
}


def _kernel(code: Literal["vllm", "4over6"]) -> PerSide:
    def make(values: Values, place: Place) -> Method:
        from kernels_ref.nvfp4 import NVFP4

        if values["scale"] == "one":
            return NVFP4(1.0, code)
        return NVFP4.measured(place.x, code, place.settings.n_heads, place.settings.nonfinite)

    return PerSide(make)


def _family(name: str, code: Literal["vllm", "4over6"]) -> Family:
    return family(SCALED_TYPES[name], _kernel(code), (_SCALE,), _ENGINES[name], listed=150)


FAMILIES = (_family("nvfp4", "vllm"), _family("nvfp4_4over6", "4over6"))
