"""Lines of vLLM, SGLang, TensorRT-LLM and llama.cpp: what a server says of its model, options and memory as it starts,
why it does not start, and how full it is as it runs.

Each line is searched by itself, for one pattern at a time without a way back, so that a log is read in linear time.
"""

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dse.core import specfile
from dse.core.errors import InputError, clean, show
from dse.core.units import GIB
from dse.specs import drafts
from dse.specs.engines import ENGINES
from dse.specs.measured_memory import Engine

#: bytes of a log at most
MAX_BYTES = 2 * 2**20
#: letters of a line that is searched, and of it that are: options of a server stand in one of some thousands
MIN_LINE_LETTERS, MAX_LINE_LETTERS = 8, 20_000
#: letters of an error that are repeated
MAX_ERROR_LETTERS = 160
#: GiB of anything at most
MAX_GIB = 2**20
#: digits of a count or a number of bytes at most
MAX_DIGITS = 15
#: tokens of a block, where a log of vLLM does not say it
BLOCK_TOKENS = 16
#: what one server prints of its pool on several devices differs by less
SAME_SERVER = 0.2
#: types of llama.cpp's files, as its lines call them -> formats of weights
_FILE_TYPES = {
    "all f32": "fp32",
    "f16": "bf16",
    "bf16": "bf16",
    "mxfp4 moe": "mxfp4_moe",
    "q2_k - medium": "q2_k",
    "iq3_s mix": "iq3_m",
}
_SIZES = {" - small": "_s", " - medium": "_m", " - large": "_l"}
#: quantization of an engine -> format of weights; what is not here is as the model's name says
QUANTIZATIONS = {
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "w8a8_fp8": "fp8",
    "w8a8_int8": "int8",
    "awq": "int4",
    "awq_marlin": "int4",
    "gptq": "int4",
    "gptq_marlin": "int4",
    "bitsandbytes": "nf4",
    "mxfp8": "mxfp8",
}


class Steps(NamedTuple):
    """Means of the lines that a running server prints every few seconds, over those with half of the most requests."""

    n_lines: int
    running: float
    waiting: float
    #: share of the pool; None where a line does not say it
    usage: float | None
    #: hits in the cache of prefixes
    hits: float | None
    prompt_tokens_per_s: float | None
    #: of a prompt, where lines of prompts are printed
    prompt_tokens: float | None
    output_tokens_per_s: float
    #: requests that lost their keys and values to others
    n_preempted: int


@dataclass(frozen=True, kw_only=True)
class StartupLog:
    """Values of a log; None or "" where it does not say them. GiB are of one device."""

    engine: Engine
    release: str = ""
    model: str = ""
    device: str = ""
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    dcp: int | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_tokens: int | None = None
    #: memory for keys and values that was given in place of a share
    given_kv_bytes: int | None = None
    #: KV format as the engine calls it; of llama.cpp those of keys and values
    kv_format: str = ""
    #: layers that vLLM was told to keep in 16 bits, in its words
    kept_layers: str = ""
    key_format: str = ""
    value_format: str = ""
    #: format of weights where the engine made it or names it; "" where it is that of the model's name
    weights: str = ""
    #: speculative decoding: weights and keys of a draft model lie beside
    has_draft: bool = False
    #: the same as --speculative-config takes it; "" where the log does not say what drafts
    speculative_config: str = ""
    cuda_graphs: bool | None = None
    cpu_offload_gib: float | None = None
    #: `auto` keys and values have 32 bits
    is_wide: bool = False
    tower: bool | None = None
    #: of SGLang: every device attends to requests of its own; limits of tokens, of windows and of graphs
    dp_attention: bool | None = None
    max_total_tokens: int | None = None
    window_share: float | None = None
    graph_requests: int | None = None
    weight_gib: float | None = None
    #: of llama.cpp: weights that stay in the host's memory, and layers on the device, of which the output is one
    host_weight_gib: float | None = None
    gpu_layers: int | None = None
    #: size of its file
    file_gib: float | None = None
    kv_gib: float | None = None
    #: of llama.cpp: windows of all sequences in one cache; whole contexts kept for them; values stored beside keys
    is_unified: bool = False
    whole_windows: bool = False
    has_values: bool = False
    kv_tokens: int | None = None
    max_concurrency: float | None = None
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    graph_gib: float | None = None
    #: memory that the driver reports
    total_gib: float | None = None
    backend: str = ""
    #: what it lacks as it starts or runs (LONGEST, NO_POOL, ...), "" where nothing
    failure: str = ""
    #: memory of one request of the longest context, and that length that would fit
    needed_gib: float | None = None
    fitting_len: int | None = None
    #: requests that there are states for
    state_blocks: int | None = None
    #: memory that was free at the start, and that an allocation asked for in vain
    free_gib: float | None = None
    tried_gib: float | None = None
    steps: Steps | None = None
    #: an error that is not of memory, in the log's words
    error: str = ""

    @property
    def title(self) -> str:
        """Engine and release in words: vLLM 0.19.0."""
        return f"{ENGINES[self.engine]} {self.release}".strip()


class LogPattern(NamedTuple):
    """A field of a log, the pattern of the line that says it, and what to take where several lines do."""

    name: str
    pattern: re.Pattern[str]
    take: Callable[[list[Any]], Any]
    #: what a number is multiplied by, for MiB in GiB
    scale: float = 1.0


def _first(values: list[Any]) -> Any:
    return values[0]


def _last(values: list[Any]) -> Any:
    return values[-1]


def _at(name: str, pattern: str, take: Callable[[list[Any]], Any] = _last, scale: float = 1.0) -> LogPattern:
    return LogPattern(name, re.compile(pattern), take, scale)


def _option(name: str, *spellings: str) -> LogPattern:
    """An option as Python prints it: 'tp_size': 2, tp_size=2, model='a/b'."""
    words = "|".join(spellings or (name,))
    take = _last if name == "model" else _first  # a draft's may come before it
    return _at(name, rf"""(?<![\w.-])(?:{words})['"]?\s?[=:]\s?['"]?([^'",\s)}}\]]+)""", take)


_GIB_TEXT, _COUNT = r"(-?\d{1,9}(?:\.\d{1,9})?)\s?Gi?B", r"(\d[\d,]{0,20})"
#: what comes before a setting of drafts
_OF_DRAFT = r"speculative_config['\"]?\s?[=:][^()\[\]]{0,100}[({]?[^()\[\]{}]{0,300}?\b"
#: an allocation that fails, as PyTorch, the runtimes and libraries of devices say it
_OUT_OF_MEMORY = (
    r"(?:CUDA|HIP|ROCm|XPU|NPU|MUSA)(?: driver)?(?: error:)? out of memory|hipErrorOutOfMemory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|(?:CU|HIP)BLAS_STATUS_ALLOC_FAILED|[Cc]uda failure \d{0,3} ?'out of memory'"
    r"|ErrorOutOfDeviceMemory|CUDA runtime error in [^:]{1,200}: out of memory"
)
#: any other error, but for the words of vLLM that repeat one of its engine
_ERROR = _at(
    "error",
    r"(?<!\w)((?:[A-Z]\w{0,40}(?:Error|Exception)|Exception): (?!.*(?:root cause|Worker failed)).{3,300})",
    _first,
)
#: what an allocation of PyTorch asked for in vain
_TRIED = _at("tried", r"(Tried to allocate \d{1,9}(?:\.\d{1,9})? [GM]iB)", _first)
#: lines in which options of a server stand
_OPTION_LINES = re.compile(r"args|Args|with config:|ServerArgs|LlmArgs|max_num_requests=|context_len=|max_num_batched")

#: patterns of options, searched in lines of options alone
_OPTIONS: Mapping[str, tuple[LogPattern, ...]] = {
    "vllm": (
        _option("model", "model", "model_tag"),
        _option("tp", "tensor_parallel_size"),
        _option("pp", "pipeline_parallel_size"),
        _option("dcp", "decode_context_parallel_size"),
        _option("expert_parallel", "enable_expert_parallel"),
        _option("gpu_memory_utilization"),
        _option("max_model_len", "max_seq_len", "max_model_len"),
        _option("max_num_seqs"),
        _option("max_num_batched_tokens"),
        _option("block_tokens", "block_size"),
        _option("given_kv_bytes", "kv_cache_memory_bytes", "kv_cache_memory"),
        _option("kv_format", "kv_cache_dtype"),
        _at("kept_layers", r"kv_cache_dtype_skip_layers['\"]?\s?[=:]\s?\[([^\]]{1,2000})\]", _first),
        _option("quantization"),
        _option("dtype"),
        _option("draft", "speculative_config", "speculative_model"),
        _at("draft_method", _OF_DRAFT + r"method['\"]?[=:]\s?['\"](\w{1,40})", _first),
        _at("draft_model", _OF_DRAFT + r"model['\"]?[=:]\s?['\"]([^'\"]{1,300})", _first),
        _at("draft_tokens", _OF_DRAFT + r"num_spec(?:ulative)?_tokens['\"]?[=:]\s?(\d{1,4})", _first),
        _option("eager", "enforce_eager"),
        _option("cpu_offload_gib", "cpu_offload_gb"),
        _option("language_model_only"),
    ),
    "sglang": (
        _option("model", "model_path"),
        _option("tp", "tp_size"),
        _option("pp", "pp_size"),
        _option("ep", "ep_size"),
        _option("gpu_memory_utilization", "mem_fraction_static"),
        _option("max_model_len", "context_len", "context_length"),
        # a later line has the number that the server finds by itself
        _at("max_num_seqs", r"^[^=]{0,200}server_args=.*?max_running_requests['\"]?[=:] ?(\d+)", _first),
        _option("max_num_batched_tokens", "chunked_prefill_size"),
        _option("max_total_tokens"),
        _option("window_share", "swa_full_tokens_ratio"),
        _option("without_windows", "disable_hybrid_swa_memory"),
        _option("graph_requests", "cuda_graph_max_bs"),
        _option("groups", "dp_size"),
        _option("dp_attention", "enable_dp_attention"),
        _option("block_tokens", "page_size"),
        _option("kv_format", "kv_cache_dtype"),
        _option("quantization"),
        _option("dtype"),
        _option("draft", "speculative_algorithm"),
        _option("draft_method", "speculative_algorithm"),
        _option("draft_model", "speculative_draft_model_path"),
        _option("draft_tokens", "speculative_num_steps"),
        _option("eager", "disable_cuda_graph"),
        _option("cpu_offload_gib", "cpu_offload_gb"),
        _option("backend", "attention_backend"),
    ),
    "trtllm": (
        _option("model", "model"),
        _option("tp", "tensor_parallel_size"),
        _option("pp", "pipeline_parallel_size"),
        _option("ep", "moe_expert_parallel_size"),
        _option("gpu_memory_utilization", "free_gpu_memory_fraction"),
        _option("max_model_len", "max_seq_len"),
        _at("max_num_seqs", r"^[^=]{0,200}Args.*?max_batch_size=(\d+)", _first),
        _option("max_num_batched_tokens", "max_num_tokens"),
        _option("block_tokens", "tokens_per_block"),
        _option("backend", "attn_backend"),
        _at("kv_format", r"KvCacheConfig\([^)]{0,2000}\bdtype='(\w+)'", _first),
    ),
    "llama.cpp": (),
}
#: patterns of all other lines
_LINES: Mapping[str, tuple[LogPattern, ...]] = {
    "vllm": (
        _at(
            "release",
            r"LLM engine \(v([0-9][\w.+-]{0,40})\)|vLLM (?:API server )?version:? v?([0-9][\w.+-]{0,40})",
            _first,
        ),
        _at("device", r"device_name=([\w -]+)", _first),
        _at("gpu_memory_utilization", r"gpu_memory_utilization \((\d\.\d+)\)|memory utilization is \((\d?\.?\d+),"),
        _at(
            "gpu_memory_utilization",
            r"current --gpu-memory-utilization=(\d\.\d+) is|\dGiB gpu_memory_utilization=(\d\.\d+)",
        ),
        _at("max_num_batched_tokens", r"max_num_batched_tokens=(\d+)", _first),
        _at("block_tokens", r"[Ss]etting attention block size to (\d+) tokens"),
        _at("weight_gib", rf"(?:Model loading took|Loading model weights took) {_GIB_TEXT}", max),
        _at(
            "weight_gib", rf"model weights take {_GIB_TEXT}|weights memory: {_GIB_TEXT}|is {_GIB_TEXT} for weight", max
        ),
        _at(
            "kv_gib",
            rf"Available KV cache memory: {_GIB_TEXT}|reserved for KV Cache is {_GIB_TEXT}|kv_cache_size={_GIB_TEXT}",
            min,
        ),
        _at("kv_tokens", rf"GPU KV cache size: {_COUNT} tokens", min),
        _at("n_blocks", rf"# (?:GPU|CUDA|cuda) blocks: {_COUNT}", min),
        _at("max_model_len", rf"Maximum concurrency for {_COUNT} tokens", _last),
        _at("max_concurrency", r"tokens per request: (\d+(?:\.\d+)?)x", min),
        _at(
            "activation_gib", rf"activation peak memory takes {_GIB_TEXT}|torch peak memory increase: {_GIB_TEXT}", max
        ),
        _at("activation_gib", rf"{_GIB_TEXT} for peak activation", max),
        _at("peak_gib", rf"peak_torch_memory={_GIB_TEXT}", max),
        _at("non_torch_gib", rf"non_torch_memory takes {_GIB_TEXT}|non_torch_memory={_GIB_TEXT}", max),
        _at("non_torch_gib", rf"non-torch forward increase memory: {_GIB_TEXT}|{_GIB_TEXT} for non-torch memory", max),
        _at("graph_gib", rf"Estimated CUDA graph memory: {_GIB_TEXT}", max),
        _at("captured_gib", rf"Graph capturing finished in \d+ secs?, took {_GIB_TEXT}", max),
        _at("total_gib", rf"total_gpu_memory \({_GIB_TEXT}\)|total_gpu_memory={_GIB_TEXT}", max),
        _at("total_gib", rf"Free memory on device[^/]{{0,60}}/{_GIB_TEXT}\) on startup", max),
        _at("backend", r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]{1,40}) (?:attention )?backend", _first),
        _at("backend", r"Using (Flash Attention|FlashInfer|Triton|FlashMLA|XFormers) backend", _first),
        _at(
            "failure",
            r"(KV cache is needed|that can be stored in KV cache|No available memory for the cache blocks|exceeds "
            rf"available Mamba cache blocks|less than desired GPU memory utilization|{_OUT_OF_MEMORY})",
            _first,
        ),
        _at("ready", r"(Application startup complete|Avg generation throughput: [1-9])", _last),
        _at("needed_gib", rf"\(?{_GIB_TEXT} KV cache is needed", max),
        _at("kv_gib", rf"memory \({_GIB_TEXT}\)\. Based on", min),
        _at("kv_gib", rf"larger than the available KV cache memory \({_GIB_TEXT}", min),
        _at("max_model_len", r"max seq len \((\d+)\)", _last),
        _at("kv_tokens", r"that can be stored in KV cache \((\d+)\)", min),
        _at("fitting_len", r"model length is (\d+)", min),
        _at("max_num_seqs", r"max_num_seqs \((\d+)\) exceeds available Mamba", _last),
        _at("state_blocks", r"exceeds available Mamba cache blocks \((\d+)\)", min),
        _at("free_gib", r"Free memory on device[^/(]{0,30}(?:\([^/)]{0,20}\) )?\((\d+(?:\.\d+)?)/", min),
        _at("gpu_memory_utilization", r"desired GPU memory utilization \((\d?\.\d+)"),
        _TRIED,
        _ERROR,
        _at("steps", r"(Avg prompt throughput: .*)", list),
        _at("preempted", r"total_num_cumulative_preemption=(\d+)", max),
    ),
    "sglang": (
        _at("release", r"[Ss][Gg][Ll]ang(?:==| version:? | v)([0-9][\w.+-]*)", _first),
        _at("device", r"device_name=([\w -]+)", _first),
        _at("weight_gib", rf"Load weight end\..{{0,300}} mem usage={_GIB_TEXT}", max),
        _at("free_before_gib", rf"Load weight begin\. avail mem={_GIB_TEXT}", _first),
        _at("free_after_gib", rf"Load weight end\..{{0,300}} avail mem={_GIB_TEXT}", _first),
        _at("kv_tokens", r"max_total_num_tokens=(\d+)", min),
        _at("pool_tokens", rf"KV Cache is allocated\. .{{0,100}}#tokens: {_COUNT}", _first),
        _at("key_gib", rf"KV Cache is allocated\. .{{0,300}} K size: {_GIB_TEXT}", _first),
        _at("value_gib", rf"KV Cache is allocated\. .{{0,300}} V size: {_GIB_TEXT}", _first),
        _at("kv_gib", rf"KV Cache is allocated\. .{{0,300}} KV size: {_GIB_TEXT}", _first),
        _at("state_gib", rf"Mamba Cache is allocated\. .{{0,300}} ssm_state size: {_GIB_TEXT}", _first),
        _at("convolution_gib", rf"Mamba Cache is allocated\. .{{0,300}} conv_state size: {_GIB_TEXT}", _first),
        _at("graph_gib", rf"Capture cuda graph end\. .{{0,300}} mem usage={_GIB_TEXT}", max),
        _at("backend", r"Use (\w+) (?:attention )?backend by default", _first),
        _at("failure", rf"(Not enough memory\. Please try|{_OUT_OF_MEMORY})", _first),
        _at("ready", r"(ready to roll|Decode batch[.,] #running-req: [1-9])", _last),
        _TRIED,
        _ERROR,
        _at("steps", r"Decode batch[.,] (#running-req: .*)", list),
        _at("prompts", r"Prefill batch[.,] (#new-seq: \d{1,9}, #new-token: \d{1,9}, #cached-token: \d{1,9})", list),
        # all devices of a split print it
        _at("preempted", r"^(?!.{0,200}\bTP[1-9]).{0,400}#retracted_reqs: (\d+)", sum),
    ),
    "trtllm": (
        _at("release", r"TensorRT[- ]LLM version: ?v?([0-9][\w.+-]*)", _first),
        _at("device", r"device_name=([\w -]+)", _first),
        _at("weight_gib", rf"after loading model weights \(inside torch\)[^:]{{0,80}}: {_GIB_TEXT}", max),
        _at("weight_mib", r"Loaded engine size: (\d+) MiB", max),
        _at("non_torch_gib", rf"Memory used outside torch [^:]{{0,120}}: {_GIB_TEXT}", max),
        _at("activation_gib", rf"allocated during inference \(inside torch\)[^:]{{0,80}}: {_GIB_TEXT}", max),
        _at("activation_gib", rf"Allocated {_GIB_TEXT} for execution context memory", max),
        _at("gpu_memory_utilization", r"fraction is set (\d?\.\d+)"),
        _at("total_gib", rf"device total memory {_GIB_TEXT}|paged kv cache: total: {_GIB_TEXT}", max),
        _at("block_tokens", r"Number of tokens per block: (\d+)", _first),
        _at("kv_gib", rf"Allocated {_GIB_TEXT} for max tokens in paged KV cache", _last),
        _at("kv_tokens", r"for max tokens in paged KV cache \((\d+)\)", _last),
        _at("failure", rf"(insufficient GPU memory|{_OUT_OF_MEMORY})", _first),
        _at("ready", r"(Application startup complete)", _last),
        _at("component", r"component could not be created: (.*)", _first),
        _at("total_gib", r"Total GPU memory \(GiB\): (\d+\.\d+)", max),
        _at("loaded", r"\bModel: (\d+\.\d+ / \d+\.\d+)", _first),
        _TRIED,
        _ERROR,
    ),
    "llama.cpp": (
        _at("release", r"(?:^|\s)(?:build|version): ?(\d+)", _first),
        _at("model", r"general\.name {0,40}(?:str)? {0,40}= (.*)", _first),
        _at(
            "device",
            r"Device 0: ([^,]+), (?:compute|gfx)|using device \w+ \((.{1,80}?)\) (?:-|\()"
            r"|ggml_vulkan: 0 = (.{1,80}?) \(|picking default device: (.+)|GPU name: +(.+)",
            _first,
        ),
        _at("file_type", r"(?:file type|model ftype)\s*= (.+)", _first),
        _at("n_sequences", r"n_seq_max\s*= (\d+)", _last),
        _at("kv_tokens", r"n_ctx\s*= (\d+)", _last),
        _at("max_num_batched_tokens", r"n_ubatch\s*= (\d+)", _last),
        _at("offloaded", r"offloaded (\d{1,6}/\d{1,6}) layers", _last),
        _at(
            "buffers",
            r"(?<!\S)(\S{1,60} {1,20}(?:(?:model|KV|RS|compute|output) )?buffer size = *\d{1,9}(?:\.\d{1,9})? MiB)",
            list,
        ),
        _at("key_format", r"[ ,](?:K|c\^KV) \((\w+)\):", _last),
        _at("value_format", r"[ ,]V \((\w+)\):", _last),
        _at("is_flash", r"flash_attn\s*= (\w+)", _last),
        _at("is_unified", r"kv_unified\s*= (\w+)", _last),
        _at("whole_windows", r"(KV self size|using full-size SWA cache)", _first),
        _at("value_gib", r"[ ,]V \(\w+\): *(\d{1,9}\.\d{1,9}) MiB", sum, 1 / 1024),
        _ERROR,
        _at("error", r"error loading model: (.{3,300})", _first),
        _at("fits", r"(params_fit|fit_params|fitting params)", _first),
        _at("file_gib", rf"(?:file|model) size {{1,9}}= {_GIB_TEXT}", _last),
        _at("tried", r"(allocating \d{1,9}(?:\.\d{1,9})? MiB on device \d+): \w+ failed: out of memory", _last),
        _at("tried_bytes", r"failed to allocate \w+ buffer of size (\d{1,15})", _last),
        _at(
            "component",
            r"failed to allocate (?:buffer for )?(kv cache|compute)|unable to allocate (?:\w+|backend) (buffer)",
            _last,
        ),
        _at(
            "failure",
            r"(failed to create (?:llama_)?context|error loading model|failed to initialize the context"
            r"|failed to load model|failed to allocate buffer for kv cache|with_model: failed to allocate compute"
            rf"|{_OUT_OF_MEMORY})",
            _first,
        ),
        _at("ready", r"(server is listening|starting the main loop|all slots are idle)", _last),
    ),
}
#: letters by which lines of an engine are known, those of its memory first
_MARKS: Mapping[Engine, re.Pattern[str]] = {
    "vllm": re.compile(
        r"GPU KV cache size:|Available KV cache memory:|LLM engine \(v|vLLM API server version|Model loading took"
        r"|Loading model weights took|# (?:GPU|CUDA|cuda) blocks:|reserved for KV Cache is|Memory profiling"
        r"|KV cache is needed|No available memory for the cache blocks|available Mamba cache blocks"
        r"|desired GPU memory utilization|Avg prompt throughput: "
    ),
    "sglang": re.compile(
        r"server_args=|Load weight (?:begin|end)\.|KV Cache is allocated\.|max_total_num_tokens=|Decode batch[.,] #"
        r"|Not enough memory\. Please try"
    ),
    "trtllm": re.compile(r"\[TensorRT-LLM\]|\[TRT-LLM\]|in paged (?:KV|kv) cache|Executor creation failed"),
    "llama.cpp": re.compile(
        r"load_tensors: |llama_(?:kv_cache|context|model_loader|new_context|init_from)\w*: |print_info: |print_meta: "
        r"|ggml_backend_\w+_alloc_buffer: "
    ),
}
#: the line that a server ends the sizes of its memory with, for logs that stop before it
_ENDS = {
    "vllm": "GPU KV cache size: ... tokens",
    "sglang": "KV Cache is allocated. ...",
    "trtllm": "Allocated ... GiB for max tokens in paged KV cache",
    "llama.cpp": "KV buffer size = ... MiB",
}
#: sizes that may be less than 0: what is left, and what changed
_BELOW_ZERO = frozenset(("kv_gib", "non_torch_gib", "captured_gib"))
#: fields that are no numbers, though they may look like them
_TEXTS = frozenset(
    ("release", "model", "device", "file_type", "buffers", "kv_format", "failure", "component", "loaded", "tried")
) | {"kept_layers", "steps", "prompts", "draft_model", "offloaded", "ready", "error", "fits"}
#: fields of which the later one counts: a server that fails as it starts, as it runs, or one that ran in the end
_ORDERED = ("failure", "ready")
#: colors, also those whose escape was lost, moves and links of terminals
_TERMINAL = re.compile(
    r"\x1b(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\x1b]{0,300}(?:\x07|\x1b\\)|[()][A-Z0-9])|\[[0-9;]{1,12}m"
)
#: a line of JSON of a container's log, and what its text is called there
_WRAPPED = re.compile(r'\s*\{"')
_TEXT_NAMES = ("log", "message", "msg", "textPayload")
#: the end of a line with all blank lines after it
_LINE_ENDS = re.compile(r"[\r\n]\s*")
#: endings of names of buffers of llama.cpp on one device: CUDA0, Metal_Mapped; names of those in the host's memory
_BUFFER_ENDING = re.compile(r"_(?:Mapped|Private|Split)$")
#: bits a weight, as llama.cpp writes them behind some types of files
_BITS_A_WEIGHT = re.compile(r" - \d{1,2}(?:\.\d{1,6})? bpw.*")
_HOST_BUFFER = re.compile(r"CPU|AMX|BLAS|\w+_Host$")


def refuse_larger(n_bytes: int, name: str = "log") -> None:
    """Raises InputError for a log of too many bytes: its start-up alone is read."""
    if n_bytes > MAX_BYTES:
        raise InputError(f"{name}: has {n_bytes:,} bytes: give its start-up alone, at most {MAX_BYTES:,}")


def text_of(content: bytes, name: str = "log") -> str:
    """The text of a log's file: unpacked where gzip packed it, as UTF-8 or UTF-16, without the JSON of containers.

    Raises InputError for one that cannot be unpacked.
    """
    if content.startswith(b"\x1f\x8b"):
        try:
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(MAX_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{name}: cannot be unpacked (cut off?): give its text") from error
        refuse_larger(len(content), f"{name}, unpacked")
    start = content[:1000]
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = content.decode("utf-16", "replace")
    elif 4 * start.count(0) > len(start):  # half of the bytes of plain letters
        text = content.decode("utf-16-be" if start.startswith(b"\0") else "utf-16-le", "replace")
    else:
        text = content.decode("utf-8-sig", "replace")
    return _unwrapped(text)


def _unwrapped(text: str) -> str:
    """A log without the JSON in which a container's log keeps each line."""
    if not _WRAPPED.match(text) or _inner(text.lstrip().partition("\n")[0]) is None:
        return text
    lines = ((line, _inner(line)) for line in text.splitlines())
    return "\n".join(line if inner is None else inner.rstrip("\n") for line, inner in lines)


def _inner(line: str) -> str | None:
    """The text in a line of JSON; None where it is no such line."""
    try:
        said = specfile.load_json(line)
    except (ValueError, RecursionError):
        return None
    texts = (said.get(name) for name in _TEXT_NAMES) if isinstance(said, dict) else ()
    return next((text for text in texts if isinstance(text, str)), None)


def read(text: str) -> StartupLog:
    """The start-up of one server in a text.

    Raises InputError for a log that is of no engine, of several servers, or that ends before the memory of keys and
    values.
    """
    refuse_larger(len(text))
    plain = _TERMINAL.sub("", text)
    engine = _engine_of(plain)
    lines = [line[:MAX_LINE_LETTERS] for line in _LINE_ENDS.split(plain) if len(line) >= MIN_LINE_LETTERS]
    fields = _found(engine, lines)
    log = {"vllm": _of_vllm, "sglang": _of_sglang, "trtllm": _of_trtllm, "llama.cpp": _of_llama}[engine](fields)
    if fields.get("failure") in _BEFORE_TOKENS and "kv_tokens" in fields:
        raise _several("starts", [fields["failure"], f"{fields['kv_tokens']:,} tokens"])
    log = replace(log, failure=_failure(log, fields), tried_gib=_tried_gib(fields), steps=_steps_of(fields))
    if log.failure == "" and log.steps is None and fields.get("order", [])[-1:] != ["ready"]:
        log = replace(log, error=clean(_text(fields, "error"), MAX_ERROR_LETTERS))
    if log.kv_gib is None and log.kv_tokens is None and not log.failure and log.steps is None:
        if log.error:
            raise InputError(f"log: of {log.title}, does not start for another reason than memory: {log.error}")
        raise InputError(
            f"log: of {log.title}, ends before the memory of keys and values ({show(_ENDS[engine])}): give all of its "
            "start-up"
        )
    return log


def _engine_of(text: str) -> Engine:
    """The engine whose lines they are. Raises InputError for none, and for several."""
    seen = [engine for engine, mark in _MARKS.items() if mark.search(text)]
    if not seen:
        *others, last = (ENGINES[engine] for engine in _MARKS)
        raise InputError(
            f"log: has no start-up lines of {', '.join(others)} or {last}: give the output of one of these, from its "
            "start on"
        )
    if len(seen) > 1:
        raise InputError(f"log: has lines of {' and '.join(ENGINES[name] for name in seen)}: give those of one server")
    return seen[0]


def _found(engine: str, lines: Iterable[str]) -> dict[str, Any]:
    """Values of the fields of a log, as text or numbers. Raises InputError where two servers say different ones."""
    seen: dict[LogPattern, list[Any]] = {}
    order: list[str] = []  # of failures and of lines of a server that runs
    for line in lines:
        patterns = (*_LINES[engine], *_OPTIONS[engine]) if _OPTION_LINES.search(line) else _LINES[engine]
        for field in patterns:
            if match := field.pattern.search(line):
                text = next(group for group in match.groups() if group is not None).strip()
                seen.setdefault(field, []).append(text if field.name in _TEXTS else _value(field.name, text))
                if field.name in _ORDERED and order[-1:] != [field.name]:
                    order.append(field.name)
    _refuse_several(seen)
    fields: dict[str, Any] = {}
    for field in (*_LINES[engine], *_OPTIONS[engine]):
        # an option that is None or left open is said by a later line, where one says it
        values = [value for value in seen.get(field, []) if value not in ("None", "auto", None)] or seen.get(field, [])
        if values and fields.get(field.name) in (None, "None", "auto"):
            fields[field.name] = field.take(values)
    return fields | {"order": order}


def _value(name: str, text: str) -> Any:
    """A number where a text is one. Raises InputError for one that no server has."""
    plain = text.replace(",", "")
    if name.endswith("_gib") and re.fullmatch(r"-?\d+", plain, re.ASCII):
        plain += ".0"
    if re.fullmatch(r"-?\d+", plain, re.ASCII):
        if len(plain) > MAX_DIGITS:
            raise InputError(f"log: {name} = {show(plain)}: must be a number of at most {MAX_DIGITS} digits")
        return int(plain)
    if not re.fullmatch(r"-?\d{1,12}\.\d{1,12}", plain):
        return text
    value = float(plain)
    if name.endswith("_gib") and not (-MAX_GIB if name in _BELOW_ZERO else 0) <= value <= MAX_GIB:
        raise InputError(f"log: {name} = {show(plain)}: must be {MAX_GIB:,} GiB at most, and no less than 0")
    return value


def _refuse_several(seen: Mapping[LogPattern, list[Any]]) -> None:
    """Raises InputError for two models, releases or splits, and for pools that no devices of one server have."""
    fits = any(field.name == "fits" for field in seen)  # which loads a model's shape to see what fits
    has_draft = any(field.name == "draft" and {*values} - {"None"} for field, values in seen.items())
    for field, values in seen.items():
        if field.name in ("model", "release", "tp", "pp") and not (field.name == "model" and has_draft):
            said = (str(value) for value in values if value not in ("None", "auto"))
            different = list(dict.fromkeys(_model_name(text) if field.name == "model" else text for text in said))
            if len(different) > 1:
                raise _several(field.name, different)
        if field.name == "offloaded" and len(values) > 1 and not fits:  # whose buffers would be added
            raise InputError(f"log: holds {len(values)} starts of llama.cpp: give the lines of one")
        if field.name == "kv_tokens" and field.take is min and min(values) < (1 - SAME_SERVER) * max(values):
            raise _several("tokens", [f"{value:,}" for value in (min(values), max(values))])


def _several(what: str, values: Iterable[str]) -> InputError:
    first, other = list(values)[:2]
    return InputError(f"log: holds several servers ({what} {show(first)} and {show(other)}): give the lines of one")


#: lines of a failure, as engines print them -> what is short
LONGEST, NO_POOL, STATES, TAKEN, WEIGHTS, PROFILE, POOL, LATER, RUNS = (
    "longest context",
    "no pool",
    "states",
    "taken by others",
    "weights",
    "activations",
    "keys and values",
    "graphs",
    "requests",
)
_FAILURES = {
    "KV cache is needed": LONGEST,
    "that can be stored in KV cache": LONGEST,
    "No available memory for the cache blocks": NO_POOL,
    "exceeds available Mamba cache blocks": STATES,
    "less than desired GPU memory utilization": TAKEN,
    "Not enough memory. Please try": NO_POOL,
    "insufficient GPU memory": NO_POOL,
}
#: failures that vLLM has before it prints the tokens of a pool
_BEFORE_TOKENS = ("KV cache is needed", "No available memory for the cache blocks")
#: parts that TensorRT-LLM and llama.cpp say cannot be made
_COMPONENTS = {
    "kv cache": POOL,
    "compute": PROFILE,
    "buffer": WEIGHTS,
    "model": WEIGHTS,
    "draft model for speculative decoding": WEIGHTS,
    "initial kv cache (temporary for kv cache size estimation)": POOL,
    "model resources created during usage": PROFILE,
    "additional executor resources": LATER,
    "additional executor resources (temporary for kv cache size estimation)": LATER,
    "sampler": LATER,
}


def _failure(log: StartupLog, fields: Mapping[str, Any]) -> str:
    """Name what is short where a server does not start, or ends as it runs; "" where it does not.

    An allocation that fails is of the part that the log has not come to the end of.
    """
    said = _text(fields, "failure")
    if not said or fields["order"][-1] == "ready":
        return ""
    if "ready" in fields["order"]:
        return RUNS
    component = _COMPONENTS.get(_text(fields, "component").lower())
    if component or said in _FAILURES:
        return component or _FAILURES[said]
    if (
        log.engine == "llama.cpp"
        and not re.search(_OUT_OF_MEMORY, said)
        and not fields.keys() & {"tried", "tried_bytes"}
    ):
        return ""  # of a file that cannot be read, or an architecture that is not known
    if log.engine == "llama.cpp" and log.weight_gib is not None:
        return PROFILE
    if log.weight_gib is None:
        return WEIGHTS
    return PROFILE if log.kv_gib is None and log.kv_tokens is None else LATER


def _tried_gib(fields: Mapping[str, Any]) -> float | None:
    """GiB of an allocation that failed: Tried to allocate 896.00 MiB."""
    if not (found := re.search(r"(\d+(?:\.\d+)?) ([GM])iB", _text(fields, "tried"))):
        n_bytes = _number(fields, "tried_bytes")
        return None if n_bytes is None else float(n_bytes / GIB)
    return float(found[1]) / (1 if found[2] == "G" else 1024)


#: numbers of a line of a running server, as vLLM (Waiting was Pending to 0.6) and SGLang print them
_STEP = {
    "running": re.compile(r"Running: (\d{1,9}) reqs|#running-req: (\d{1,9})"),
    "waiting": re.compile(r"(?:Waiting|Pending): (\d{1,9})\b|#queue-req: (\d{1,9})"),
    "percent": re.compile(r"KV cache usage:? (\d{1,3}\.\d+) ?%"),
    "share": re.compile(r"token usage: (\d{1,3}\.\d+)"),
    "hits": re.compile(r"Prefix cache hit rate: (?:GPU: )?(\d{1,3}\.\d+)%"),
    "prompt": re.compile(r"Avg prompt throughput: (\d{1,9}\.\d+)"),
    "output": re.compile(r"Avg generation throughput: (\d{1,9}\.\d+)|gen throughput \(token/s\): (\d{1,9}\.\d+)"),
    "preempted": re.compile(r"Preemptions: (\d{1,9})"),
}


def _steps_of(fields: Mapping[str, Any]) -> Steps | None:
    """Means of the lines of a running server; None where none of them has requests."""
    lines: list[dict[str, float]] = []
    for text in fields.get("steps", []):
        found = {name: match for name, pattern in _STEP.items() if (match := pattern.search(text))}
        lines.append({name: float(next(filter(None, match.groups()))) for name, match in found.items()})
    most = max((line.get("running", 0.0) for line in lines), default=0.0)
    busy = [line for line in lines if most and line.get("running", 0.0) >= most / 2 and line.get("output")]
    if not busy:
        return None

    def mean(name: str) -> float | None:
        values = [line[name] for line in busy if name in line]
        return sum(values) / len(values) if values else None

    percent, hits = mean("percent"), mean("hits")
    return Steps(
        n_lines=len(busy),
        running=mean("running") or 0.0,
        waiting=mean("waiting") or 0.0,
        usage=mean("share") if percent is None else percent / 100,
        hits=None if hits is None else hits / 100,
        prompt_tokens_per_s=mean("prompt"),
        prompt_tokens=_prompt_tokens(fields.get("prompts", [])),
        output_tokens_per_s=mean("output") or 0.0,
        n_preempted=int(fields.get("preempted", 0) + sum(line.get("preempted", 0) for line in lines)),
    )


def _prompt_tokens(lines: Iterable[str]) -> float | None:
    """Mean tokens of a prompt, computed and found in the cache; a prompt in several chunks counts as several."""
    counts = [[int(number) for number in re.findall(r"\d+", line)] for line in lines]
    n_prompts = sum(each[0] for each in counts)
    return sum(new + found for _, new, found in counts) / n_prompts if n_prompts else None


def _text(fields: Mapping[str, Any], name: str) -> str:
    """A value as text; "" for None."""
    value = fields.get(name)
    return "" if value in (None, "None") else str(value)


def _number(fields: Mapping[str, Any], name: str) -> Any:
    """A value where it is a number."""
    value = fields.get(name)
    return value if isinstance(value, int | float) else None


def _model_name(text: str) -> str:
    """The name of a model in a path: /models/Qwen3-8B, models--Qwen--Qwen3-14B/snapshots/...; a hub's name stays."""
    if stored := re.search(r"models--([\w.-]+?)--([\w.-]+)", text):
        return f"{stored[1]}/{stored[2]}"
    is_name = re.fullmatch(r"[\w.-]+(?:/[\w.-]+)?", text) and text[0] not in "./~"
    return text if is_name else text.rstrip("/").rpartition("/")[2]


def _weights(fields: Mapping[str, Any]) -> str:
    """Format of weights that an engine names; bf16 where it says that none was quantized."""
    quantization = fields.get("quantization")
    if quantization is None:
        return ""
    if quantization != "None":
        return QUANTIZATIONS.get(str(quantization), "")
    return "fp32" if "float32" in str(fields.get("dtype", "")) else ""


def _drafts(fields: Mapping[str, Any]) -> str:
    """The drafts of a log as JSON; "" where it does not say how many tokens are drafted."""
    n_tokens = _number(fields, "draft_tokens")
    if not n_tokens or not _text(fields, "draft"):
        return ""
    return drafts.config_text(_text(fields, "draft_method"), _model_name(_text(fields, "draft_model")), n_tokens)


def _common(engine: Engine, fields: Mapping[str, Any]) -> StartupLog:
    """The fields that all engines print alike."""
    counts = ("tp", "pp", "ep", "dcp", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_tokens")
    sizes = ("weight_gib", "kv_gib", "kv_tokens", "max_concurrency", "activation_gib", "non_torch_gib", "graph_gib")
    numbers = {name: _number(fields, name) for name in (*counts, *sizes, "gpu_memory_utilization", "total_gib")}
    numbers |= {name: None for name in counts if (numbers[name] or 0) < 1}  # -1: no limit
    return StartupLog(
        engine=engine,
        release=_text(fields, "release"),
        model=_model_name(_text(fields, "model")),
        device=_text(fields, "device").replace("_", " "),
        kv_format=_text(fields, "kv_format"),
        kept_layers=_text(fields, "kept_layers"),
        weights=_weights(fields),
        has_draft=bool(_text(fields, "draft")),
        speculative_config=_drafts(fields),
        cuda_graphs=False if _text(fields, "eager") == "True" else None,
        cpu_offload_gib=_number(fields, "cpu_offload_gib") or None,
        is_wide="float32" in str(fields.get("dtype", "")),
        backend=_text(fields, "backend"),
        **numbers,
    )


def _of_vllm(fields: Mapping[str, Any]) -> StartupLog:
    log = _common("vllm", fields)
    if log.kv_tokens is None and "n_blocks" in fields:
        log = replace(log, kv_tokens=fields["n_blocks"] * (log.block_tokens or BLOCK_TOKENS))
    if log.activation_gib is None and log.weight_gib is not None and "peak_gib" in fields:
        log = replace(log, activation_gib=max(fields["peak_gib"] - log.weight_gib, 0.0))
    return replace(
        log,
        ep=log.tp if fields.get("expert_parallel") == "True" else None,
        graph_gib=_number(fields, "captured_gib") if log.graph_gib is None else log.graph_gib,
        given_kv_bytes=_number(fields, "given_kv_bytes"),
        tower=False if fields.get("language_model_only") == "True" else None,
        **{name: _number(fields, name) for name in ("needed_gib", "fitting_len", "state_blocks", "free_gib")},
    )


def _of_sglang(fields: Mapping[str, Any]) -> StartupLog:
    log = _common("sglang", fields)
    if log.weight_gib is None and {"free_before_gib", "free_after_gib"} <= fields.keys():
        log = replace(log, weight_gib=fields["free_before_gib"] - fields["free_after_gib"])
    parts = [fields[name] for name in ("key_gib", "value_gib", "state_gib", "convolution_gib") if name in fields]
    return replace(
        log,
        kv_gib=sum(parts) if log.kv_gib is None and "key_gib" in fields else log.kv_gib,
        kv_tokens=_number(fields, "pool_tokens") if log.kv_tokens is None else log.kv_tokens,
        dp_attention=True if fields.get("dp_attention") == "True" and _number(fields, "groups") == log.tp else None,
        max_total_tokens=_number(fields, "max_total_tokens"),
        window_share=1.0 if fields.get("without_windows") == "True" else _number(fields, "window_share"),
        graph_requests=_number(fields, "graph_requests"),
    )


def _of_trtllm(fields: Mapping[str, Any]) -> StartupLog:
    log = _common("trtllm", fields)
    if log.weight_gib is None and "weight_mib" in fields:
        log = replace(log, weight_gib=fields["weight_mib"] / 1024)
    if log.weight_gib is None and "loaded" in fields:
        before, after = fields["loaded"].split(" / ")
        log = replace(log, weight_gib=float(before) - float(after))
    return log


def _of_llama(fields: Mapping[str, Any]) -> StartupLog:
    """Layers on several devices are stages; sizes are those of the fullest. Raises InputError for none on a device."""
    sizes: dict[str, dict[str, float]] = {"model": {}, "KV": {}, "RS": {}, "compute": {}}
    host = 0.0
    for text in fields.get("buffers", []):
        name, kind, size = _buffer(text)
        if _HOST_BUFFER.match(name):
            host += size if kind == "model" else 0.0
        elif kind in sizes:
            sizes[kind][name] = sizes[kind].get(name, 0.0) + size
    done, _, whole = _text(fields, "offloaded").partition("/")
    if done == "0":
        raise InputError(f"log: no layer of {whole} is on the device: give the log of a run with some (-ngl 99)")
    devices = list(sizes["model"])

    def most(*kinds: str) -> float | None:
        totals = [sum(sizes[kind].get(name, 0.0) for kind in kinds) for name in devices]
        return max(totals) / 1024 if any(sizes[kind] for kind in kinds) and totals else None

    n_sequences, tokens = _number(fields, "n_sequences") or 1, _number(fields, "kv_tokens")
    return replace(
        _common("llama.cpp", fields),
        model=_text(fields, "model"),
        device=_text(fields, "device"),
        pp=max(len(devices), 1),
        weights=_file_type(_text(fields, "file_type")),
        key_format=_text(fields, "key_format"),
        value_format=_text(fields, "value_format") or _text(fields, "key_format"),
        max_num_seqs=n_sequences,
        max_model_len=tokens // n_sequences if tokens else None,
        weight_gib=most("model"),
        host_weight_gib=host / 1024 if host else None,
        file_gib=_number(fields, "file_gib"),
        gpu_layers=int(done) if done else None,
        kv_gib=most("KV", "RS"),
        is_unified=_text(fields, "is_unified") == "true",
        whole_windows=bool(_text(fields, "whole_windows")),
        has_values=bool(_number(fields, "value_gib")),
        tower=False,  # images have a file of their own
        activation_gib=most("compute"),
        backend="flash attention" if _text(fields, "is_flash") in ("1", "enabled", "auto") else "",
    )


def _buffer(text: str) -> tuple[str, str, float]:
    """Device, kind and MiB of a buffer: CUDA0 model buffer size = 4455.34 MiB; without a kind it is the model's."""
    words = text.split()
    return _BUFFER_ENDING.sub("", words[0]), words[1] if words[1] != "buffer" else "model", float(words[-2])


def _file_type(text: str) -> str:
    """The format of weights of a file type: Q4_K - Medium is q4_k_m, IQ4_XS - 4.25 bpw is iq4_xs."""
    lower = _BITS_A_WEIGHT.sub("", text.lower().replace("(guessed)", "").strip())
    if lower in _FILE_TYPES:
        return _FILE_TYPES[lower]
    for words, ending in _SIZES.items():
        lower = lower.replace(words, ending)
    return lower
