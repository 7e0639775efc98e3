"""FP8 with one scale for a tensor, fixed with the weights."""

from dse.quantizers.base import EngineName, Family, TensorLayout, TensorShape, Values, param
from dse.quantizers.engine_names import LMDEPLOY, SGLANG, TENSORRT_LLM, TENSORRT_LLM_MODE, VLLM
from dse.quantizers.kernel import Method, PerSide, Place
from kernels_ref import FORMATS


def _layout(values: Values, shape: TensorShape) -> TensorLayout:
    return TensorLayout(shape, packed={"payload": FORMATS[f"fp8_{values['format']}"].bits * shape.n_elements})


def _kernel(values: Values, place: Place) -> Method:
    from kernels_ref.fp8 import FP8

    return FP8(values["format"], saturate=True)


FAMILIES = (
    Family(
        name="fp8",
        title="FP8",
        source="OCP FP8; the scale is fixed with the weights (vLLM kv_cache_dtype=fp8)",
        layout=_layout,
        params=(param("format", default="e4m3", help="FP8 variant", choices=("e4m3", "e5m2")),),
        kernel=PerSide(_kernel),
        aliases={"fp8_e4m3": "fp8", "fp8_e5m2": "fp8:format=e5m2"},
        listed=30,
        engines=(
            EngineName("vLLM", "fp8_e4m3", "fp8", VLLM),
            EngineName("vLLM", "fp8_e5m2", "fp8:format=e5m2", VLLM),
            EngineName("vLLM", "fp8_inc", "fp8", VLLM + ", Intel Gaudi"),
            EngineName("SGLang", "fp8_e4m3", "fp8", SGLANG),
            EngineName("SGLang", "fp8_e5m2", "fp8:format=e5m2", SGLANG),
            EngineName("TensorRT-LLM", "fp8_kv_cache", "fp8", TENSORRT_LLM_MODE),
            EngineName("vLLM", "fp8", "fp8", VLLM),
            EngineName("TensorRT-LLM", "fp8", "fp8", TENSORRT_LLM),
            EngineName("LMDeploy", "quant_policy_16", "fp8", LMDEPLOY),
            EngineName("LMDeploy", "quant_policy_17", "fp8:format=e5m2", LMDEPLOY),
        ),
    ),
)
