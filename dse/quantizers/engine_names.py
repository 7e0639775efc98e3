"""Names of KV-cache types as serving engines spell them; each family says which ones store the same as it does.

A name that this tool has under the very same name is that family, without a look at engines.
"""

from collections.abc import Iterator, Mapping

from dse.core.errors import InputError, show
from dse.quantizers.base import EngineName, Family

#: the option of an engine that takes its names
OPTIONS = {
    "vLLM": "--kv-cache-dtype",
    "SGLang": "--kv-cache-dtype",
    "TensorRT-LLM": "--kv_cache_dtype",
    "llama.cpp": "--cache-type-k, --cache-type-v",
    "LMDeploy": "--quant-policy",
}
#: most letters of a name that is looked up
_MAX_LETTERS = 40

VLLM = "vllm/config/cache.py, CacheDType (vllm-project/vllm@002f10e)"
VLLM_033 = "vllm serve --kv-cache-dtype (vLLM 0.33.0)"
KVARN = "huawei-csl/KVarN, a fork of vLLM 0.22 (arXiv:2606.03458)"
VLLM_DTYPE = "vllm/utils/torch_utils.py, STR_DTYPE_TO_TORCH_DTYPE (vllm-project/vllm@0024350)"
SGLANG = "python/sglang/srt/server_args.py, choices of kv_cache_dtype (SGLang 0.5.20)"
SGLANG_OLD = "python/sglang/srt/mem_cache/kv_cache_dtype.py: fp4_mx_block16 by its former name (SGLang 0.5.20)"
TENSORRT_LLM = "trtllm-serve --kv_cache_dtype (TensorRT-LLM 1.3.0rc22)"
TENSORRT_LLM_MODE = "tensorrt_llm/quantization/mode.py, QuantMode"
LMDEPLOY = "lmdeploy/messages.py, QuantPolicy (LMDeploy 0.18.0)"
LLAMA_CPP = "common/arg.cpp, kv_cache_types (ggml-org/llama.cpp)"
IK_LLAMA_CPP = "common/common.cpp, kv_cache_type_from_str (ikawrakow/ik_llama.cpp)"
TURBO = "TheTom/llama-cpp-turboquant, a fork of llama.cpp"


def every(families: Mapping[str, Family]) -> Iterator[EngineName]:
    """The names of all engines, refused ones too."""
    return (entry for family in families.values() for entry in family.engines)


def offered(families: Mapping[str, Family]) -> Iterator[EngineName]:
    """The names that a family stores, a name once for each engine that has it."""
    return (entry for entry in every(families) if not entry.missing)


def of_family(name: str, families: Mapping[str, Family]) -> list[EngineName]:
    """The names that engines have for a family."""
    return [entry for entry in families[name].engines if not entry.missing] if name in families else []


def ours(text: str, families: Mapping[str, Family]) -> str:
    """`text` with an engine's name of a KV-cache type replaced by the quantizer that stores the same.

    Engines' names are taken in any case and with - for _. A family's name, and one that nobody knows, stays as it is.
    Raises InputError for a name that an engine knows and no family stores, with what is near.
    """
    name, _, parameters = text.partition(":")
    if name.strip().lower() in families or len(name) > _MAX_LETTERS:
        return text
    word = name.strip().lower().replace("-", "_")
    if word in families:
        same = word
    else:
        known = next((entry for entry in every(families) if entry.name == word), None)
        stem = word.partition("_")[0]  # octave, kvarn_k2v2: of what no family stores, one name stands for all
        if known is None and stem.isalpha():
            known = next((one for one in every(families) if one.missing and one.name.partition("_")[0] == stem), None)
        if known is None:
            return text
        if known.missing:
            raise InputError(
                f"quantizer {show(name)}: {known.engine}'s {known.name} {known.missing}, which no family here does: "
                f"nearest is {known.text}"
            )
        same = known.text
    return same + ((("," if ":" in same else ":") + parameters) if parameters else "")
