"""16 bits as they come: FP16 and BF16."""

from dse.core.units import FP16_BITS
from dse.quantizers.base import EngineName, Family, TensorLayout, TensorShape, Values
from dse.quantizers.engine_names import LLAMA_CPP, SGLANG, TENSORRT_LLM, VLLM, VLLM_DTYPE


def _layout(values: Values, shape: TensorShape) -> TensorLayout:
    return TensorLayout(shape, packed={"payload": FP16_BITS * shape.n_elements}, needs_dequantizing=False)


FAMILIES = (
    Family(
        name="fp16",
        title="FP16",
        source="IEEE binary16, not quantised",
        layout=_layout,
        exact=True,
        listed=10,
        # "auto" is the type of the model's weights, 16 bits, unless the checkpoint says how keys and values are stored
        engines=(
            EngineName("vLLM", "auto", "fp16", VLLM),
            EngineName("vLLM", "half", "fp16", VLLM_DTYPE),
            EngineName("vLLM", "float16", "fp16", VLLM),
            EngineName("SGLang", "auto", "fp16", SGLANG),
            EngineName("TensorRT-LLM", "auto", "fp16", TENSORRT_LLM),
            EngineName("llama.cpp", "f32", "fp16", LLAMA_CPP, "stores 32 bits"),
            EngineName("llama.cpp", "f16", "fp16", LLAMA_CPP),
        ),
    ),
    Family(
        name="bf16",
        title="BF16",
        source="bfloat16, not quantised",
        layout=_layout,
        exact=True,
        listed=20,
        engines=(
            EngineName("vLLM", "bfloat16", "bf16", VLLM),
            EngineName("SGLang", "bfloat16", "bf16", SGLANG),
            EngineName("SGLang", "bf16", "bf16", SGLANG),
            EngineName("llama.cpp", "bf16", "bf16", LLAMA_CPP),
        ),
    ),
)
