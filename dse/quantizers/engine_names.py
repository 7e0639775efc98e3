"""Names of KV-cache types as serving engines spell them, each with the quantizer that stores the same.

A name whose family is not registered is left out of what is offered; one that this tool has under the very same name
is that family, without a look at this table.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass

from dse.core.errors import InputError, show

#: the option of an engine that takes its names
OPTIONS = {
    "vLLM": "--kv-cache-dtype",
    "SGLang": "--kv-cache-dtype",
    "TensorRT-LLM": "--kv_cache_dtype",
    "llama.cpp": "--cache-type-k, --cache-type-v",
}
#: most letters of a name that is looked up
_MAX_LETTERS = 40

_VLLM = "vllm/config/cache.py, CacheDType (vllm-project/vllm@002f10e)"
_VLLM_DTYPE = "vllm/utils/torch_utils.py, STR_DTYPE_TO_TORCH_DTYPE (vllm-project/vllm@0024350)"
_SGLANG = "python/sglang/srt/server_args.py, choices of kv_cache_dtype (SGLang 0.5.20)"
_SGLANG_OLD = "python/sglang/srt/mem_cache/kv_cache_dtype.py: fp4_mx_block16 by its former name (SGLang 0.5.20)"
_TRTLLM = "trtllm-serve --kv_cache_dtype (TensorRT-LLM 1.3.0rc22)"
_TRTLLM_MODE = "tensorrt_llm/quantization/mode.py, QuantMode"
_LLAMA = "common/arg.cpp, kv_cache_types (ggml-org/llama.cpp)"


@dataclass(frozen=True)
class EngineName:
    """A KV-cache type of an engine. `text` is the quantizer that stores the same, or the nearest where `missing`."""

    engine: str
    name: str
    text: str
    source: str
    #: what no family here stores, so that the name is refused; "" where one does
    missing: str = ""

    @property
    def family(self) -> str:
        """The family of `text`."""
        return self.text.partition(":")[0]


#: an engine's names that are families here under the same name, now or as soon as they are registered
_SAME = {
    "vLLM": (
        _VLLM,
        "fp8 fp8_ds_mla nvfp4_ds_mla turboquant_k8v4 turboquant_4bit_nc turboquant_k3v4_nc turboquant_3bit_nc "
        "int4_per_token_head int8_per_token_head fp8_per_token_head nvfp4 nvfp4_4over6",
    ),
    "SGLang": (_SGLANG, "bf16 mxfp8 nvfp4 fp4_mx_block16"),
    "TensorRT-LLM": (_TRTLLM, "fp8 nvfp4"),
    "llama.cpp": (_LLAMA, "bf16 q8_0 q5_1 q5_0 q4_1 q4_0"),
}

#: "auto" is the type of the model's weights, 16 bits, unless the checkpoint says how keys and values are stored.
#: TensorRT-LLM's INT8 has one scale for a tensor: its mode flag names it, since `int8` is here one scale a token
NAMES: tuple[EngineName, ...] = (
    EngineName("vLLM", "auto", "fp16", _VLLM),
    EngineName("vLLM", "half", "fp16", _VLLM_DTYPE),
    EngineName("vLLM", "float16", "fp16", _VLLM),
    EngineName("vLLM", "bfloat16", "bf16", _VLLM),
    EngineName("vLLM", "fp8_e4m3", "fp8", _VLLM),
    EngineName("vLLM", "fp8_e5m2", "fp8:format=e5m2", _VLLM),
    EngineName("vLLM", "fp8_inc", "fp8", _VLLM + ", Intel Gaudi"),
    EngineName("SGLang", "auto", "fp16", _SGLANG),
    EngineName("SGLang", "bfloat16", "bf16", _SGLANG),
    EngineName("SGLang", "fp8_e4m3", "fp8", _SGLANG),
    EngineName("SGLang", "fp8_e5m2", "fp8:format=e5m2", _SGLANG),
    EngineName("SGLang", "fp4_e2m1", "fp4_mx_block16", _SGLANG_OLD),
    EngineName("TensorRT-LLM", "auto", "fp16", _TRTLLM),
    EngineName("TensorRT-LLM", "int8_kv_cache", "int8:granularity=tensor", _TRTLLM_MODE),
    EngineName("TensorRT-LLM", "fp8_kv_cache", "fp8", _TRTLLM_MODE),
    EngineName("TensorRT-LLM", "nvfp4_kv_cache", "nvfp4", _TRTLLM_MODE),
    EngineName("llama.cpp", "f32", "fp16", _LLAMA, "stores 32 bits"),
    EngineName("llama.cpp", "f16", "fp16", _LLAMA),
    EngineName("llama.cpp", "iq4_nl", "q4_0", _LLAMA, "has uneven levels"),
    *(EngineName(engine, name, name, source) for engine, (source, names) in _SAME.items() for name in names.split()),
)

_BY_NAME = {one.name: one for one in reversed(NAMES)}


def offered(families: Container[str]) -> Iterator[EngineName]:
    """The names that a registered family stores, a name once for each engine that has it."""
    return (one for one in NAMES if one.family in families and not one.missing)


def of_family(name: str, families: Container[str]) -> list[EngineName]:
    """What engines call a family of this name."""
    return [one for one in offered(families) if (one.name if one.name in families else one.family) == name]


def ours(text: str, families: Container[str]) -> str:
    """`text` with an engine's name of a KV-cache type replaced by the quantizer that stores the same.

    Engines' names are taken in any case and with - for _. A family's name, and one that nobody knows, stays as it is.
    Raises InputError for a name that an engine knows and no family stores, with what is near.
    """
    name, _, parameters = text.partition(":")
    if name.strip().lower() in families or len(name) > _MAX_LETTERS:
        return text
    word = name.strip().lower().replace("-", "_")
    found = _BY_NAME.get(word)
    if word in families:
        same = word
    elif found is None or found.family not in families:
        return text
    elif found.missing:
        raise InputError(
            f"quantizer {show(name)}: {found.engine}'s {found.name} {found.missing}, which no family here does: "
            f"nearest is {found.text}"
        )
    else:
        same = found.text
    return same + ((("," if ":" in same else ":") + parameters) if parameters else "")
