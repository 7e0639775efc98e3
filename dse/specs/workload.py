"""The workload of a design: batch, lengths, admission, weight bits. Checked once, on entry.

Each field is declared once: options of commands, axes of sweeps, fields of pages and columns of results come from it.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from dse.core.errors import InputError, show
from dse.core.field import BYTES, NUMBER, PART, SHARE, SWITCH, TEXT, TOKENS, WHOLE, declarations, declared
from dse.quantizers.base import Path
from dse.specs import drafts, weight_names
from dse.specs.drafts import Draft
from dse.specs.llama_options import EXPERT_LAYERS, LAYERS, MOST_LAYERS
from dse.specs.tokens import TokenPolicy, parse
from dse.specs.weights import RELEASED, WIDE, WIDE_BITS, WeightFormat, is_format, weight_format

if TYPE_CHECKING:
    from dse.specs.device_and_model import ModelSpec

#: largest batch, prompt and output that the tool accepts: generous, and far below where float64 loses integers
MAX_BATCH = 2**24
MAX_INPUT_TOKENS = 2**30
MAX_OUTPUT_TOKENS = 2**24
MAX_PAGE_TOKENS = 4096
MAX_SAMPLES = 4096
#: of a share that may not be 0, the least
LEAST_SHARE = 0.0001
#: devices along one way of splitting a model
MAX_DEVICES = 1024
#: devices of a server at most, where none are asked for: two nodes of eight
MOST_DEVICES = 16
#: engines that a search tries where none are named and the device has measured stacks
SEARCHED_ENGINES = ("vllm", "sglang", "trtllm")
#: the largest accuracy loss that a format may have (upper end of its 95 % interval) which is recommended without being
#: named, a share; assumed: FP8, the 8-bit format of all engines, has 0.11 at most
USUAL_DROP = 0.12
#: type of recurrent states; auto: as the model says
StateType = Literal["auto", "float32", "float16", "bfloat16", "float8", "int8"]


@dataclass(frozen=True)
class Workload:
    """`batch` requests of `input_tokens` prompt and `output_tokens` generated tokens each.

    These are the defaults of all commands, functions and pages. A batch of None is as many requests as fit at these
    lengths, at most as many as the server takes; an admission of None is paged where a server runs (GPUs, but
    for memory as papers count it). Both depend on the design: `dse.model.point.filled` gives them.

    admission: "reserve" gives every request its final length from the start; "paged" lets staggered requests
    share memory page by page: a server counts each at its full length, papers at its mean size. `prefix_tokens` of
    the prompt are common to all requests. `samples` answers are drawn for each prompt: `batch` counts answers, of which
    so many share the whole blocks of one prompt (each has its own copy of the last, partly filled one).
    `activation_bits` 8: products with the weights run at the INT8 or FP8 peak, and need weights of 8 bits or less.
    `prompt_chunk_tokens` of a prompt are live at once, in memory (times do not depend on it). Without `kv_cache` each
    step runs the whole prefix. `cached_input_discount` prices a shared prefix as providers do (`usd_per_request`).
    """

    batch: int | None = declared(
        None,
        kind=WHOLE,
        title="batch",
        label="Batch (requests)",
        help="Requests that run concurrently: a decode step gives each of them a token; default: as many as fit, at "
        "most as many as the server takes.",
        unit="sequence",
        low=1,
        high=MAX_BATCH,
        open_means="as many as fit",
    )
    input_tokens: int = declared(
        1024,
        name="input",
        kind=TOKENS,
        title="prompt",
        label="Prompt (tokens)",
        help="Prompt tokens of a request.",
        low=1,
        high=MAX_INPUT_TOKENS,
    )
    output_tokens: int = declared(
        1024,
        name="output",
        kind=TOKENS,
        title="output",
        label="Generated (tokens)",
        help="Output tokens of a request.",
        low=1,
        high=MAX_OUTPUT_TOKENS,
    )
    admission: Literal["reserve", "paged"] | None = declared(
        None,
        kind=TEXT,
        title="admission",
        label="KV allocation",
        help="reserve: each request holds its final length from the start; paged: memory grows page by page; default: "
        "paged on GPUs, reserve on other devices and with --memory paper.",
        choices=("reserve", "paged"),
        open_means="paged on GPUs",
    )
    batching: Literal["static", "continuous", "chunked"] | None = declared(
        None,
        kind=TEXT,
        title="batching",
        label="Scheduling of prompts",
        help="static: a batch runs from its prompts to its longest answer; continuous: each request is replaced as it "
        "ends, prompts are computed whole in steps of their own; chunked: parts of prompts fill up the steps of those "
        "that decode, to --prompt-budget tokens; default: as the server's release, static with --memory paper.",
        choices=("static", "continuous", "chunked"),
        open_means="as the release",
    )
    page_tokens: int = declared(
        16,
        name="page",
        kind=TOKENS,
        title="page",
        label="Page (tokens)",
        help="Tokens of a page of paged memory.",
        also=("--block-size", "--page-size"),
        low=1,
        high=MAX_PAGE_TOKENS,
    )
    prefix_tokens: int = declared(
        0,
        name="prefix",
        kind=TOKENS,
        title="shared prefix",
        label="Shared prefix (tokens)",
        help="Prompt tokens that all requests share, stored and computed once.",
        high=MAX_INPUT_TOKENS,
        low=0,
    )
    samples: int = declared(
        1,
        kind=WHOLE,
        title="answers a prompt",
        label="Answers for each prompt",
        help="Answers drawn for each prompt (parallel sampling): they share its whole blocks, and copy the last one, "
        "partly filled, to write to it; a batch counts answers.",
        unit="sequence",
        low=1,
        high=MAX_SAMPLES,
    )
    kv_offload: float = declared(
        0.0,
        kind=PART,
        title="keys and values in host memory",
        help="Share of the keys and values of running requests that lies in host memory: each step fetches it over the "
        "device's host_link, layer by layer beside the others, counted in steps of 0.1 %.",
        metavar="50%",
    )
    weights_bits: int = declared(
        16,
        kind=WHOLE,
        title="bits of a weight",
        label="Weights (bits)",
        help="Bits that a weight of the model takes in memory: 16, 8 or 4.",
        unit="bit",
        choices=(16, 8, 4),
    )
    dequant_path: Path | None = declared(
        None,
        kind=TEXT,
        label="Dequantization path",
        help="How stored keys and values are unpacked; default: as the device says.",
        choices=get_args(Path),
        open_means="as the device says",
    )
    model_kind: Literal["auto", "ideal", "calibrated"] = declared(
        "auto",
        kind=TEXT,
        title="times",
        label="Timing model",
        help="ideal: peak rates of the device; calibrated: kernels as measured on a software stack; auto: calibrated "
        "where the device has such parameters, else the middle of what measured devices reach of their peaks.",
        choices=("auto", "ideal", "calibrated"),
        metavar="ideal|calibrated",
    )
    stack: str | None = declared(
        None,
        kind=TEXT,
        title="software stack",
        help="Serving software whose kernels were measured; only for calibrated times. NAME@RELEASE is one release of "
        "it, NAME@kernels its kernels without the server's own time.",
        metavar="vllm|sglang|...",
        open_means="the device's first",
    )
    #: which tokens are stored and read, with parameters (dse/specs/tokens.py)
    tokens: str = declared(
        "full",
        kind=TEXT,
        title="token policy",
        label="Tokens kept and read",
        help="full: all of them; others store or read fewer tokens instead of fewer bits, e.g. snapkv:share=0.16 "
        "(`dse list tokens`).",
        metavar="POLICY",
    )
    activation_bits: int = declared(
        16,
        kind=WHOLE,
        title="bits of an activation",
        label="Activations (bits)",
        help="Bits of the activations that the weights are multiplied with: 16, or 8 (W8A8).",
        unit="bit",
        choices=(16, 8),
    )
    weights: str | None = declared(
        None,
        kind=TEXT,
        title="format of weights",
        label="Format of the weights",
        help="How the weights are stored and multiplied, as checkpoints name it: bf16, fp8, fp8-block, int8, int4, "
        "nvfp4, nvfp4-experts, mxfp4-experts, q4_k_m, awq, ... (`dse list weights`); default: released, as the "
        "checkpoint that the model's name means; --weights-bits below 16 takes its place.",
        metavar="FORMAT",
        open_means="as released",
    )
    weights_size_bytes: int | None = declared(
        None,
        name="weights-size",
        kind=BYTES,
        title="size of the weights",
        label="Size of the weights (bytes)",
        help="Bytes of all weights, on all devices together, such as 23.5GiB, where no file tells what a checkpoint "
        "leaves in 16 bits; each device holds its part, times take the format; default: counted from the format.",
        low=1,
        high=2**50,
        open_means="by the format",
    )
    tower: bool = declared(
        True,
        kind=SWITCH,
        title="image tower",
        help="Whether a server loads the tower that makes tokens of images.",
        also=("--language-model-only",),
    )
    state_type: StateType = declared(
        "auto",
        kind=TEXT,
        title="type of recurrent states",
        label="Recurrent states",
        help="Type of the states of hybrids (gated delta rule, Mamba-2, KDA), read and written whole by each step; "
        "8 bits, without scales, are proposals for vLLM and SGLang; auto: the model's.",
        also=("--mamba-ssm-cache-dtype", "--mamba-ssm-dtype"),
        choices=("auto", "float32", "float16", "bfloat16", "float8", "int8"),
    )
    state_slots: int | None = declared(
        None,
        name="max-mamba-cache-size",
        kind=WHOLE,
        title="states kept",
        label="States kept by SGLang",
        help="States of hybrids that SGLang keeps, of requests that run and of prefixes; default: "
        "--mamba-full-memory-ratio of the memory of keys and values.",
        unit="sequence",
        low=1,
        high=MAX_BATCH,
        open_means="by their share",
    )
    state_share: float | None = declared(
        None,
        name="mamba-full-memory-ratio",
        kind=NUMBER,
        title="memory of states over keys and values",
        help="Memory that SGLang keeps for states of hybrids, over that of keys and values; default: 0.9.",
        unit="1",
        low=0.001,
        high=100,
        open_means="0.9",
    )
    prefix_cache: Literal["on", "off"] | None = declared(
        None,
        kind=TEXT,
        title="prefix cache",
        help="Whether a server keeps prompts for later ones that begin alike. Off, none is found, and a request of a "
        "hybrid takes one recurrent state: of vLLM from 0.21 on two with it, of SGLang 3 to 5; default: on, and tried "
        "off where `dse recommend` searches.",
        choices=("on", "off"),
        open_means="on",
    )
    cuda_graphs: bool = declared(
        True,
        kind=SWITCH,
        title="CUDA graphs",
        help="Whether a server records CUDA graphs: their memory is counted, times are those with them.",
        also=("--enforce-eager", "--disable-cuda-graph"),
    )
    gpu_layers: int | None = declared(
        None,
        name="n-gpu-layers",
        kind=LAYERS,
        title="layers on the device",
        help="Layers of llama.cpp that lie on the device, the last ones, with their keys and values; the output is one "
        "more. Memory alone: times are those of all layers on the device; default: all.",
        also=("--gpu-layers", "-ngl"),
        unit="1",
        low=1,
        high=MOST_LAYERS,
        open_means="all",
    )
    cpu_moe_layers: int = declared(
        0,
        name="n-cpu-moe",
        kind=EXPERT_LAYERS,
        title="layers with experts in host memory",
        help="Layers of llama.cpp, the first ones, whose experts lie in host memory, or the pattern that -ot has for "
        "them, '.ffn_.*_exps.=CPU'; all: --cpu-moe. Memory alone, as --n-gpu-layers.",
        also=("-ncmoe", "--override-tensor", "-ot"),
        unit="1",
        low=0,
        high=MOST_LAYERS,
    )
    speculative_config: str | None = declared(
        None,
        kind=TEXT,
        label="Drafts",
        help='Speculative decoding as vLLM takes it, \'{"method": "mtp", "num_speculative_tokens": 2}\': weights, keys '
        "and values of what drafts (mtp, eagle, eagle3, a draft model's name) and places of drafted tokens are counted "
        "in memory; times are those without drafts.",
        also=("-sc",),
        metavar="JSON",
        open_means="no drafts",
    )
    cpu_offload_gib: float = declared(
        0.0,
        name="cpu-offload-gb",
        kind=NUMBER,
        title="weights in host memory",
        label="Weights in host memory (GiB)",
        help="GiB of each device's weights that lie in host memory; the times do not count their way to the device.",
        unit="GiB",
        low=0,
        high=2**20,
    )
    prompt_chunk_tokens: int = declared(
        1,
        name="prompt-chunk",
        kind=TOKENS,
        title="chunk of the prompt",
        label="Chunk of the prompt (tokens)",
        help="Prompt tokens of a request whose activations are in memory at once, as papers count memory.",
        low=1,
        high=MAX_INPUT_TOKENS,
    )
    rounds: int | None = declared(
        None,
        kind=WHOLE,
        title="requests a slot",
        help="TTFT and TPOT are means over this many requests for each of the batch's slots, as a benchmark has them: "
        "all slots start together, so the first prefills queue; default: a server that has run for long.",
        unit="1",
        low=1,
        high=2**20,
        open_means="steady state",
    )
    max_num_seqs: int | None = declared(
        None,
        kind=WHOLE,
        title="concurrency, at most",
        help="Limit of the server on concurrent requests, on all devices together; default: as many as fit.",
        unit="sequence",
        also=("--max-running-requests",),
        former=("--max-batch-size", "--parallel", "-np"),
        low=1,
        high=MAX_BATCH,
        open_means="as many as fit",
    )
    kv_cache: bool = declared(True, kind=SWITCH, title="KV cache", help="Without it each step runs the whole prefix.")
    cached_input_discount: float | None = declared(
        None,
        kind=SHARE,
        title="discount on cached input",
        help="Discount on cached input tokens in the price of a request, 0 to 1; default: what sharing the prefix "
        "saves.",
        metavar="FRAC",
        open_means="what sharing saves",
    )
    memory: Literal["server", "paper"] | None = declared(
        None,
        kind=TEXT,
        title="memory counted",
        label="Memory rule",
        help="server: what the driver reports times gpu-memory-utilization, less weights, activations, graphs and "
        "buffers; paper: the memory of the data sheet, all of it usable; default: server on GPUs of today, paper "
        "elsewhere.",
        choices=("server", "paper"),
        open_means="as the device says",
    )
    gpu_memory_utilization: float | None = declared(
        None,
        kind=SHARE,
        title="memory for the server",
        label="Memory for the server (share)",
        help="Share of the reported memory that the server may use; SGLang: for weights and keys and values alone; "
        "TensorRT-LLM: of what is left, for keys and values; default: the release's, vLLM 0.92.",
        also=("--device-memory-utilization", "--mem-fraction-static"),
        former=(
            "--kv-cache-free-gpu-memory-fraction",
            "--kv-cache-free-gpu-mem-fraction",
            "--free-gpu-memory-fraction",
        ),
        metavar="FRAC",
        open_means="the release's",
        low=LEAST_SHARE,
    )
    kv_cache_memory_bytes: int | None = declared(
        None,
        name="kv-cache-memory",
        kind=BYTES,
        title="memory for keys and values",
        label="Memory for keys and values (bytes)",
        help="Memory of a device for keys and values, such as 40GiB, in place of a share.",
        also=("--kv-cache-memory-bytes",),
        low=1,
        high=2**50,
        open_means="by the share",
    )
    free_memory_bytes: int | None = declared(
        None,
        name="free-memory",
        kind=BYTES,
        title="memory free at the start",
        label="Memory free at the start (bytes)",
        help="Memory of a device that is free when the server starts, such as 22GiB, where others take some.",
        low=1,
        high=2**50,
        open_means="all",
    )
    max_model_len: int | None = declared(
        None,
        kind=TOKENS,
        title="longest context taken",
        label="Longest context (tokens)",
        help="Longest context that the server takes: its tokens and concurrency are printed for it; default: that of "
        "the requests.",
        also=("--context-length", "--max-seq-len"),
        low=1,
        high=MAX_INPUT_TOKENS,
        open_means="that of the requests",
    )
    prompt_budget_tokens: int | None = declared(
        None,
        name="prompt-budget",
        kind=TOKENS,
        title="prompt budget",
        label="Prompt budget (tokens)",
        help="Tokens of the largest batch of prompt tokens, whose activations a server sets aside: "
        "max_num_batched_tokens, chunked_prefill_size, max_num_tokens; default: the release's, by the device's memory.",
        also=("--max-num-batched-tokens", "--chunked-prefill-size", "--max-num-tokens"),
        former=("--ubatch-size", "-ub"),
        low=1,
        high=MAX_INPUT_TOKENS,
        open_means="the server's",
    )
    max_total_tokens: int | None = declared(
        None,
        kind=TOKENS,
        title="tokens of the pool, at most",
        help="Of SGLang: tokens of the pool, fewer where memory holds fewer; of llama.cpp: those of all slots, without "
        "which it does not start; default: as many as memory holds.",
        also=("--ctx-size", "-c"),
        low=1,
        high=2**40,
        open_means="as memory allows",
    )
    swa_full_tokens_ratio: float | None = declared(
        None,
        kind=SHARE,
        title="tokens kept of layers with a window",
        label="Tokens kept of layers with a window (share)",
        help="Of SGLang: tokens kept of layers with a window, of those of layers without; 1 is "
        "--disable-hybrid-swa-memory, and of llama.cpp --swa-full; default: 0.8.",
        metavar="FRAC",
        low=LEAST_SHARE,
        open_means="the release's",
    )
    cuda_graph_max_bs: int | None = declared(
        None,
        kind=WHOLE,
        title="largest batch with a graph",
        help="Requests of the largest batch that CUDA graphs are recorded for: of SGLang its default share allows for "
        "them, of vLLM from 0.21 on fewer take less memory; default: the release's, by the device's memory.",
        also=("--max-cudagraph-capture-size", "--cuda-graph-max-bs-decode"),
        unit="sequence",
        low=1,
        high=MAX_BATCH,
        open_means="the server's",
    )
    calibrated: str | None = declared(
        None,
        kind=TEXT,
        label="Measured server",
        help="A server of your own as measured: its times per token, a file of `dse calibrate server --out`, or its "
        "memory, one of `dse check-log --out`.",
        metavar="FILE",
        open_means="computed",
    )
    # how the model lies on several devices (dse/specs/deployment.py); names as vLLM and SGLang use them
    tp: int = declared(
        1,
        kind=WHOLE,
        title="tensor parallel",
        label="Tensor parallel (tp)",
        help="Tensor-parallel size: devices that share every layer, its weights, query heads and KV heads (one a "
        "device at least).",
        also=("--tensor-parallel-size", "--tp-size"),
        former=("-tp",),
        unit="device",
        low=1,
        high=MAX_DEVICES,
    )
    pp: int = declared(
        1,
        kind=WHOLE,
        title="pipeline parallel",
        label="Pipeline stages (pp)",
        help="Pipeline-parallel size: stages that the layers are divided into, each of tp devices.",
        also=("--pipeline-parallel-size", "--pp-size"),
        former=("-pp",),
        unit="device",
        low=1,
        high=MAX_DEVICES,
    )
    pp_batches: int | None = declared(
        None,
        kind=WHOLE,
        title="batches in the pipeline",
        help="Microbatches in flight in the pipeline, 1 to pp; default: pp, a full pipeline.",
        unit="1",
        low=1,
        high=MAX_DEVICES,
        open_means="as many as stages",
    )
    ep: int = declared(
        1,
        kind=WHOLE,
        title="expert parallel",
        label="Expert parallel (ep)",
        help="Expert-parallel size: the experts are distributed over so many groups of the tp devices, each expert "
        "whole in one group; 1: every expert is sharded over all tp devices.",
        also=("--expert-parallel-size", "--ep-size"),
        unit="device",
        low=1,
        high=MAX_DEVICES,
    )
    expert_skew: float = declared(
        0.0,
        kind=SHARE,
        title="skew of experts",
        help="Load imbalance of expert parallelism: tokens of the busiest group over the mean, less 1; 0 to 1.",
        metavar="FRAC",
    )
    dp_attention: bool = declared(
        False,
        kind=SWITCH,
        title="attention data parallel",
        help="Data-parallel attention: each of the tp devices holds the KV cache of its own requests and all attention "
        "weights.",
    )
    dcp: int = declared(
        1,
        kind=WHOLE,
        title="decode context parallel",
        label="Decode context parallel (dcp)",
        help="Decode-context-parallel size: of the tp devices that would hold copies of the same KV heads, so many "
        "share their tokens.",
        also=("--decode-context-parallel-size",),
        former=("-dcp", "--dcp-size"),
        unit="device",
        low=1,
        high=MAX_DEVICES,
    )
    implementation: str | None = declared(
        None,
        kind=TEXT,
        title="implementation",
        help="How a stack's release runs the quantizer (`dse list implementations`): NAME, or NAME:slowest, "
        "NAME:fastest for the ends of what its numbers may be, or NAME:FIELD=VALUE; default: the device's.",
        metavar="NAME",
        open_means="the device's",
    )
    strict_kernels: bool = declared(
        False,
        kind=SWITCH,
        title="kernels known",
        label="Refuse what no kernel runs",
        help="Refuse a quantizer that no known kernel runs on the device, in place of assuming one, and a format of "
        "weights that the model was not released in and no measured kernel of the stack runs.",
    )
    other_software: bool = declared(
        False,
        kind=SWITCH,
        label="Other software too",
        help="Let designs compete that the device's software does not run, as if other software ran them.",
    )

    def __post_init__(self) -> None:
        values = vars(self)
        for name, field in ASKED.items():
            if values[name] is not field.default:
                field.check(values[name])
        if self.prefix_tokens > self.input_tokens:
            raise InputError(
                f"prefix = {self.prefix_tokens}: must be a whole number from 0 to {self.input_tokens:,}, the prompt"
            )
        self._check_shared()
        if self.weights is not None and (self.weights_bits, self.activation_bits) != (16, 16):
            raise InputError(
                f"weights = {show(self.weights)}: says what weights and activations have: leave out --weights-bits and "
                "--activation-bits, or ask for any bits by these two alone, 8 and 8 for SmoothQuant"
            )
        if self.activation_bits < self.weights_bits:
            raise InputError(
                f"activation-bits = {self.activation_bits}: must be at least weights-bits = {self.weights_bits}: "
                f"add --weights-bits {self.activation_bits}"
            )
        if not self.kv_cache and self.prefix_tokens:
            raise InputError(
                f"prefix = {self.prefix_tokens}: without a KV cache no prefix is kept: leave it out, or keep the cache"
            )
        if self.stack is not None and self.model_kind == "ideal":
            raise InputError(f"stack = {show(self.stack)}: the ideal model has no software stack: leave it out")
        if self.max_model_len is not None and self.max_model_len < self.final_tokens:
            raise InputError(
                f"max-model-len = {self.max_model_len}: requests of {self.input_tokens:,} + {self.output_tokens:,} "
                f"tokens are longer: use {self.final_tokens} or more, or shorter --input and --output"
            )
        self._check_slots()
        if self.pp_batches is not None and self.pp_batches > self.pp:
            raise InputError(f"pp-batches = {self.pp_batches}: must be at most pp = {self.pp}: more would wait")
        if self.dp_attention and self.dcp > 1:
            raise InputError(f"dcp = {self.dcp}: with dp-attention every device has its own requests: use dcp 1")
        if self.draft and self.pp > 1:
            raise InputError(f"speculative-config: drafts are counted in one stage: use --tp, not pp = {self.pp}")
        parse(self.tokens)
        self.weight_format  # noqa: B018  raises for a format that is not known

    def _check_slots(self) -> None:
        """Raises InputError for requests that are longer than a slot of llama.cpp: with -np each has its part of -c."""
        is_llama_cpp = self.stack.startswith("llama.cpp") if self.stack else self.weight_format.is_file
        if self.max_total_tokens is None or not is_llama_cpp:
            return
        n_slots = self.max_num_seqs or 1
        if self.final_tokens > (longest := self.max_total_tokens // n_slots):
            raise InputError(
                f"max-total-tokens = {self.max_total_tokens}: requests of {self.input_tokens:,} + "
                f"{self.output_tokens:,} tokens are longer than a slot of {longest:,}: use "
                f"-c {self.final_tokens * n_slots}, fewer slots (-np), or shorter --input and --output"
            )

    def _check_shared(self) -> None:
        """Raises InputError for answers that cannot share their prompt, and for host memory behind what is shared, or
        no cache of it."""
        if self.samples > 1 and self.prefix_tokens:
            raise InputError(
                f"samples = {self.samples}: answers of one prompt share all of it, a prefix of {self.prefix_tokens} is "
                "of all prompts: give one of the two"
            )
        shares = "prefix" if self.prefix_tokens else "samples" if self.samples > 1 else ""
        if shares and self.kv_offload:
            raise InputError(
                f"kv-offload = {self.kv_offload:g}: counted for requests that share nothing: leave out --{shares}, or "
                "--kv-offload"
            )
        if shares and self.prefix_cache == "off":
            raise InputError(f"prefix-cache = off: no prompt is shared: leave out --{shares}, or keep the cache")
        if self.kv_offload and not self.kv_cache:
            raise InputError(f"kv-offload = {self.kv_offload:g}: without a KV cache nothing is stored: leave it out")
        if self.samples > 1 and not self.kv_cache:
            raise InputError(f"samples = {self.samples}: without a KV cache nothing is shared: keep it, or use 1")

    def of_model(self, model: "ModelSpec") -> "Workload":
        """The workload with the format in which the model was released, where it asks for no other.

        FP8 of a mixture means blocks where its checkpoints have blocks: scales of tensors run on slow kernels there.
        A word in names of checkpoints (awq, gptq) means what such a name does. Raises InputError for a format of
        experts where the model has none.
        """
        if self.weights not in (None, RELEASED) and not is_format(self.weights):
            named = weight_names.of_model(weight_names.format_in(f"{model.name}-{self.weights}"), model)
            return replace(self, weights=named).of_model(model)
        if self.weights and self.weights.endswith(OF_EXPERTS) and model.n_experts == 1:
            plain = self.weights.removesuffix(OF_EXPERTS).rpartition("-")[2]
            raise InputError(
                f"weights = {show(self.weights)}: {model.name} has no experts: use {plain}, or leave --weights out"
            )
        if (
            self.weights == "fp8"
            and model.n_experts > 1
            and "fp8-block" in (model.released, model.checkpoints.get("fp8"))
        ):
            return replace(self, weights="fp8-block")
        if self.weights not in (None, RELEASED) or (self.weights_bits, self.activation_bits) != (16, 16):
            return self
        released = None if model.released == WIDE else model.released
        return self if self.weights == released else replace(self, weights=released)

    def refuse_idle(self, without_driver: str = "") -> None:
        """Raises InputError for what would have no effect; on a device `without_driver`, what a server's memory has."""
        if self.cached_input_discount is not None and not self.prefix_tokens:
            raise InputError(
                f"cached-input-discount = {self.cached_input_discount:g}: nothing is cached: give --prefix"
            )
        for name in OF_SERVERS:
            value, form = getattr(self, name), ASKED[name]
            shown = f"{form.name} = {value if isinstance(value, bool | str) else f'{value or 0:g}'}"
            if without_driver and value != form.default:
                raise InputError(
                    f"{shown}: {without_driver} has no driver that reports its memory, of which a server takes a "
                    "share: leave it out, or add reported_memory to its file"
                )
            if self.memory == "paper" and value != form.default:
                raise InputError(f"{shown}: a paper's memory has none: use --memory server")

    @property
    def token_policy(self) -> TokenPolicy:
        """The policy that says which tokens are stored and read."""
        return parse(self.tokens)

    @property
    def draft(self) -> Draft | None:
        """Drafts that are asked for; None: plain decoding."""
        return drafts.parse(self.speculative_config) if self.speculative_config else None

    @property
    def weight_format(self) -> WeightFormat:
        """The format in which weights are stored and multiplied."""
        return weight_format(self.weights, self.weights_bits, self.activation_bits)

    @property
    def n_devices(self) -> int:
        """Devices that serve it together."""
        return self.tp * self.pp

    @property
    def block_tokens(self) -> int:
        """Tokens that a request is given memory by: a page of their own on each device that shares them."""
        return self.page_tokens * self.dcp

    def devices_text(self, device: str) -> str:
        """The devices in a line: 8 x H200; one by its name alone."""
        return f"{self.n_devices:,} x {device}" if self.n_devices > 1 else device

    @property
    def weights_text(self) -> str:
        """The weights in a line: fp8 weights, or their bits."""
        return weights_text(self.weights, self.weights_bits)

    def ways(self, model: "ModelSpec") -> list[str]:
        """The split over devices where there is one, and the weights of a model: tp 8, fp8 weights."""
        return [*self.split(), self.of_model(model).weights_text]

    def split(self) -> list[str]:
        """The split over devices in words: tp 8."""
        return [f"{name} {getattr(self, name)}" for name in ("tp", "pp", "ep", "dcp") if getattr(self, name) > 1]

    @property
    def longest_tokens(self) -> int:
        """Longest context that the server takes: as given, else that of the requests."""
        return self.max_model_len or self.final_tokens

    @property
    def final_tokens(self) -> int:
        """Context of a request after its last token."""
        return self.input_tokens + self.output_tokens


def weights_text(weights: str | None, bits: int) -> str:
    """The weights in a line, by the name of their format or their bits."""
    return f"{weights or (WIDE if bits == WIDE_BITS else f'{bits}-bit')} weights"


#: how names of formats end that pack a mixture's experts alone
OF_EXPERTS = "-experts"
#: fields that say how a model lies on several devices
DEPLOYMENT = ("tp", "pp", "pp_batches", "ep", "expert_skew", "dp_attention", "dcp")
#: fields that say how memory is counted
MEMORY = (
    "memory",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "free_memory_bytes",
    "max_model_len",
    "prompt_budget_tokens",
    "tower",
    "state_type",
    "state_slots",
    "state_share",
    "prefix_cache",
    "cuda_graphs",
    "speculative_config",
    "cpu_offload_gib",
    "gpu_layers",
    "cpu_moe_layers",
    "calibrated",
    "max_total_tokens",
    "swa_full_tokens_ratio",
    "cuda_graph_max_bs",
)
#: of these, what only a server's memory has
OF_SERVERS = (*MEMORY[1:6], *MEMORY[-3:], "prefix_cache", "cuda_graphs", "speculative_config", "cpu_offload_gib")
#: settings of a server that change its load and memory alone, no layout and no kernel
SETTINGS = ("prompt_budget_tokens", "max_num_seqs", "gpu_memory_utilization")
#: fields that say how times are modelled
TIMING = ("model_kind", "stack", "implementation", "strict_kernels", "other_software")
#: headings of a long help -> the fields that stand under them; all others are the requests
HEADINGS = {
    "Design": ("tokens", "weights", "weights_size_bytes", "weights_bits", "activation_bits"),
    "Memory": ("admission", "page_tokens", "kv_offload", "prompt_chunk_tokens", *MEMORY),
    "Devices": DEPLOYMENT,
    "Times": (*TIMING, "dequant_path"),
}
#: fields of a workload by name, in the order in which it takes them
ASKED = declarations(Workload)


def heading_of(name: str) -> str:
    """The heading of a long help under which a field stands."""
    return next((heading for heading, names in HEADINGS.items() if name in names), "Workload")
