"""Design-space exploration of KV-cache quantization for LLM serving."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from dse.core import errors as errors
from dse.core import units as units
from dse.core.answer import Rows
from dse.model.results import Result
from dse.operations.dumps import LabResult
from dse.operations.shared import Device, Model, Quantizer
from dse.quantizers import QuantizerSpec
from dse.questions.best_map import BestMap
from dse.questions.crossing import Crossing
from dse.questions.doubt import Doubt
from dse.questions.formats import Formats
from dse.questions.hits import HitsByFormat
from dse.questions.interactivity import Interactivity
from dse.questions.load import UnderLoad
from dse.questions.need import Need, NeedBits
from dse.questions.recommend import Recommendation
from dse.questions.sensitivity import Sensitivity
from dse.report.design import DesignResults as _DesignResults
from dse.report.simulation import SimulatedRun
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.workload import Workload as Workload
from dse.sweep.pareto.designs import DesignFront
from dse.sweep.reading import StoredSweep
from dse.validate.bench_check import BenchCheck
from dse.validate.check_log import LogCheck
from dse.validate.claim_doubt import ClaimDoubt

__all__ = [
    "DesignResults",
    "Workload",
    "best_map",
    "check",
    "check_log",
    "claims",
    "crossover",
    "device",
    "doubt",
    "errors",
    "evaluate",
    "formats",
    "front",
    "grid",
    "hits",
    "interactivity",
    "lab",
    "load",
    "model",
    "need",
    "operations",
    "plot",
    "quantizer",
    "recommend",
    "report",
    "report_table",
    "results",
    "scores",
    "sensitivity",
    "simulate",
    "sweep",
    "units",
]
__version__: str
results: dict[str, Result]

class DesignResults(_DesignResults):
    """Results of one design, in SI base units (times in s, sizes in B): a dict whose entries are attributes too.

    `found.decode_step_s` is `found["decode_step_s"]`, None for what does not apply: times where nothing fits.
    `found.unit(name)` is its unit, `found.table` all of them with units, intervals and words, `found.to_dict()` a plain
    dict, `found.command` the command line that starts the design. Printed, it is the text of `dse point`; a notebook
    shows that as a table.
    """

    device: str | Any
    """device"""
    model: str | Any
    """model"""
    quantizer: str | Any
    """quantizer"""
    key_quantizer: str | Any
    """quantizer of keys"""
    value_quantizer: str | Any
    """quantizer of values"""
    model_kind: str | Any
    """times"""
    stack: str | Any
    """software stack"""
    tokens: str | Any
    """token policy"""
    batch: int | Any
    """batch (sequence)"""
    input_tokens: int | Any
    """prompt (token)"""
    output_tokens: int | Any
    """output (token)"""
    admission: str | Any
    """admission"""
    batching: str | Any
    """batching"""
    page_tokens: int | Any
    """page (token)"""
    prefix_tokens: int | Any
    """shared prefix (token)"""
    samples: int | Any
    """answers a prompt (sequence)"""
    kv_offload: float | Any
    """keys and values in host memory"""
    weights_bits: int | Any
    """bits of a weight (bit)"""
    activation_bits: int | Any
    """bits of an activation (bit)"""
    weights: str | Any
    """format of weights"""
    weights_size_bytes: int | Any
    """size of the weights (B)"""
    tower: bool
    """image tower"""
    state_type: str | Any
    """type of recurrent states"""
    state_slots: int | Any
    """states kept (sequence)"""
    state_share: float | Any
    """memory of states over keys and values"""
    prefix_cache: str | Any
    """prefix cache"""
    cuda_graphs: bool
    """CUDA graphs"""
    gpu_layers: int | Any
    """layers on the device"""
    cpu_moe_layers: int | Any
    """layers with experts in host memory"""
    cpu_offload_gib: float | Any
    """weights in host memory (GiB)"""
    prompt_chunk_tokens: int | Any
    """chunk of the prompt (token)"""
    rounds: int | Any
    """requests a slot"""
    max_num_seqs: int | Any
    """concurrency, at most (sequence)"""
    kv_cache: bool
    """KV cache"""
    cached_input_discount: float | Any
    """discount on cached input"""
    memory: str | Any
    """memory counted"""
    gpu_memory_utilization: float | Any
    """memory for the server"""
    kv_cache_memory_bytes: int | Any
    """memory for keys and values (B)"""
    free_memory_bytes: int | Any
    """memory free at the start (B)"""
    max_model_len: int | Any
    """longest context taken (token)"""
    prompt_budget_tokens: int | Any
    """prompt budget (token)"""
    max_total_tokens: int | Any
    """tokens of the pool, at most (token)"""
    swa_full_tokens_ratio: float | Any
    """tokens kept of layers with a window"""
    cuda_graph_max_bs: int | Any
    """largest batch with a graph (sequence)"""
    tp: int | Any
    """tensor parallel (device)"""
    pp: int | Any
    """pipeline parallel (device)"""
    pp_batches: int | Any
    """batches in the pipeline"""
    ep: int | Any
    """expert parallel (device)"""
    expert_skew: float | Any
    """skew of experts"""
    dp_attention: bool
    """attention data parallel"""
    dcp: int | Any
    """decode context parallel (device)"""
    implementation: str | Any
    """implementation"""
    strict_kernels: bool
    """kernels known"""
    n_devices: int | Any
    """devices (device)"""
    runs: bool
    """run by its software"""
    runs_why: str | Any
    """why not run"""
    key_dequant_path: str | Any
    """unpacking of keys"""
    value_dequant_path: str | Any
    """unpacking of values"""
    stored_tokens: float | Any
    """stored tokens (token)"""
    read_tokens: float | Any
    """tokens read (token)"""
    effective_bits: float | Any
    """effective bits (bit)"""
    stored_bits: float | Any
    """stored bits (bit)"""
    page_tail_bits: float | Any
    """bits left unused in pages (bit)"""
    write_amplification: float | Any
    """written over packed"""
    bits_kind: str | Any
    """bits from"""
    measured_bits: float | Any
    """measured bits (bit)"""
    mse: float | Any
    """mean squared error"""
    sqnr_db: float | Any
    """signal to noise (dB)"""
    measured_error: float | Any
    """error of the attention output"""
    measured_on: str | Any
    """measured on"""
    sample_kl_nats: float | Any
    """divergence on the sample (nat)"""
    sample_perplexity_frac: float | Any
    """perplexity"""
    score_drop_frac: float | Any
    """accuracy loss"""
    score_drop_low_frac: float | Any
    """accuracy loss, low"""
    score_drop_high_frac: float | Any
    """accuracy loss, high"""
    score_drop_of: str | Any
    """drop from"""
    kv_bytes_per_token: float | Any
    """KV cache of a token (B/token)"""
    kv_bytes_per_token_beyond_windows: float | Any
    """KV cache of a token beyond windows (B/token)"""
    state_bytes: float | Any
    """constant states of a request (B)"""
    kv_bytes: int | Any
    """KV cache of the batch (B)"""
    peak_kv_bytes_per_sequence: int | Any
    """peak KV cache of a sequence (B)"""
    weight_bytes: int | Any
    """weights (B)"""
    activation_bytes: int | Any
    """activations (B)"""
    workspace_bytes: int | Any
    """workspace (B)"""
    runtime_bytes: int | Any
    """graphs and buffers (B)"""
    capacity_bytes: int | Any
    """device memory (B)"""
    free_bytes: int | Any
    """room for keys and values (B)"""
    kv_pool_tokens: int | Any
    """KV tokens of the pool (token)"""
    kv_usable_tokens: int | Any
    """KV tokens that requests use (token)"""
    max_concurrency: float | Any
    """requests of the longest context (sequence)"""
    unused_bytes: int | Any
    """reserved memory (B)"""
    min_capacity_bytes: int | Any
    """smallest memory for the batch (B)"""
    feasible: bool
    """one request fits"""
    infeasible_reason: str | Any
    """why none fits"""
    fits_whole_batch: bool
    """whole batch fits"""
    max_batch: int | Any
    """largest batch (sequence)"""
    max_context_tokens: int | Any
    """longest context (token)"""
    running_batch: int | Any
    """running at once (sequence)"""
    n_waves: int | Any
    """waves"""
    linear_s: float | Any
    """linear layers (s)"""
    attention_s: float | Any
    """attention (s)"""
    quantize_s: float | Any
    """packing, exposed (s)"""
    dequantize_s: float | Any
    """unpacking, exposed (s)"""
    collective_s: float | Any
    """exchange between devices (s)"""
    host_s: float | Any
    """host and small kernels (s)"""
    power_s: float | Any
    """added by the board's power limit (s)"""
    quantize_busy_s: float | Any
    """packing (s)"""
    dequantize_busy_s: float | Any
    """unpacking (s)"""
    busy_cores: int | Any
    """busy cores"""
    decode_step_s: float | Any
    """decode step (s)"""
    prefill_s: float | Any
    """prefill of the running batch (s)"""
    total_s: float | Any
    """total time (s)"""
    prefill_alone_s: float | Any
    """prefill of one request alone (s)"""
    ttft_s: float | Any
    """TTFT (s)"""
    tpot_s: float | Any
    """TPOT (s)"""
    decoding_requests: float | Any
    """requests that decode (sequence)"""
    throughput_tokens_per_s: float | Any
    """throughput (tok/s)"""
    requests_per_s: float | Any
    """requests a second (request/s)"""
    static_batch_tokens_per_s: float | Any
    """throughput, one static batch (tok/s)"""
    bound: str | Any
    """bound by"""
    linear_bound: str | Any
    """linear layers bound by"""
    attention_bound: str | Any
    """attention bound by"""
    compute_utilisation: float | Any
    """share of peak FLOP/s"""
    bandwidth_utilisation: float | Any
    """share of peak bandwidth"""
    prefill_compute_utilisation: float | Any
    """share of peak FLOP/s, prompt"""
    prefill_bandwidth_utilisation: float | Any
    """share of peak bandwidth, prompt"""
    joules_per_token: float | Any
    """energy (J/token)"""
    joules_per_token_by_parts: float | Any
    """energy by parts (J/token)"""
    memory_joules_per_token: float | Any
    """energy of reads and writes (J/token)"""
    compute_joules_per_token: float | Any
    """energy of operations (J/token)"""
    idle_joules_per_token: float | Any
    """energy of idling (J/token)"""
    usd_per_million_tokens: float | Any
    """cost of a million tokens (USD per million tokens)"""
    usd_per_request: float | Any
    """cost of a request (USD per request)"""
    effective_bandwidth_bytes_per_s: float | Any
    """effective bandwidth (B/s)"""
    effective_capacity_bytes: float | Any
    """effective capacity (B)"""
    byte_energy_low: float | Any
    """measured over predicted energy of bytes, low"""
    byte_energy_high: float | Any
    """measured over predicted energy of bytes, high"""
    flop_energy_low: float | Any
    """measured over predicted energy of operations, low"""
    flop_energy_high: float | Any
    """measured over predicted energy of operations, high"""
    pool_low: float | Any
    """measured over predicted pool, low"""
    pool_high: float | Any
    """measured over predicted pool, high"""
    token_time_low: float | Any
    """measured over predicted time per token, low"""
    token_time_high: float | Any
    """measured over predicted time per token, high"""
    first_time_low: float | Any
    """measured over predicted time of prompts, low"""
    first_time_high: float | Any
    """measured over predicted time of prompts, high"""
    unpack_rate_low: float | Any
    """unpacking rate over what is taken, low"""
    unpack_rate_high: float | Any
    """unpacking rate over what is taken, high"""
    assumptions: list[str]
    """assumed numbers"""

def best_map(
    device: Device,
    model: Model,
    quantizers: Sequence[Quantizer] | None = None,
    workload: Workload | None = None,
    *,
    measure: Literal["throughput", "step", "energy", "cost"] = "throughput",
    batches: Sequence[int] | None = None,
    inputs: Sequence[int] | None = None,
    bits: Literal["closed", "measured"] = "closed",
    measurements: str | None = None,
    output_tokens: int = 1024,
    admission: Literal["reserve", "paged"] | None = None,
    batching: Literal["static", "continuous", "chunked"] | None = None,
    page_tokens: int = 16,
    prefix_tokens: int = 0,
    samples: int = 1,
    kv_offload: float = 0.0,
    weights_bits: int = 16,
    dequant_path: Literal["engine", "fused", "materialised"] | None = None,
    model_kind: Literal["auto", "ideal", "calibrated"] = "auto",
    stack: str | None = None,
    tokens: str = "full",
    activation_bits: int = 16,
    weights: str | None = None,
    weights_size_bytes: int | None = None,
    tower: bool = True,
    state_type: Literal["auto", "float32", "float16", "bfloat16", "float8", "int8"] = "auto",
    state_slots: int | None = None,
    state_share: float | None = None,
    prefix_cache: Literal["on", "off"] | None = None,
    cuda_graphs: bool = True,
    gpu_layers: int | None = None,
    cpu_moe_layers: int = 0,
    speculative_config: str | None = None,
    cpu_offload_gib: float = 0.0,
    prompt_chunk_tokens: int = 1,
    rounds: int | None = None,
    max_num_seqs: int | None = None,
    kv_cache: bool = True,
    cached_input_discount: float | None = None,
    memory: Literal["server", "paper"] | None = None,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    free_memory_bytes: int | None = None,
    max_model_len: int | None = None,
    prompt_budget_tokens: int | None = None,
    max_total_tokens: int | None = None,
    swa_full_tokens_ratio: float | None = None,
    cuda_graph_max_bs: int | None = None,
    calibrated: str | None = None,
    tp: int = 1,
    pp: int = 1,
    pp_batches: int | None = None,
    ep: int = 1,
    expert_skew: float = 0.0,
    dp_attention: bool = False,
    dcp: int = 1,
    implementation: str | None = None,
    strict_kernels: bool = False,
    other_software: bool = False,
) -> BestMap:
    """Map the best of several quantizers over batch and prompt length, and its gain over FP16. Ties name all.

    device: Device name or .toml file.
    model: Model name, .toml file or config.json.
    quantizers: KV quantizers to choose from; default: fp16 and all that the engine runs there for the
        model.
    workload: Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`.
    measure: What must be best.
    batches: Batches; default: powers of two from 1 to 256.
    inputs: Prompt tokens; default: powers of two from 256 to 32,768.
    bits: Nominal outlier and sink counts, or those that the measured data had.
    measurements: measurement.json of `dse measure` or `dse quantize`; default: of the sample of
        SmolLM2-135M that ships.
    Further parameters are the fields of `Workload`, in place of one.

    Returns: The best quantizer of each cell.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> found = dse.best_map("h100", "llama3.1-8b", ["fp16", "fp8"], batches=[1, 256], inputs=[512, 8192])
    >>> found.table["best"].tolist()
    ['fp16', 'fp8', 'fp8', 'fp8']
    """

def check(file: str | Path) -> str:
    """Say all that is wrong with a device file, a model file or a plan by layer.

    file: A name or a file.

    Returns: A text: every number with its source. A bad file raises SpecError, whose `lines()` have its problems.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> dse.check("h100").splitlines()[0]
    'device H100: no problem found'
    """

def check_log(
    log: str | Path | None = None,
    *,
    device: Device | None = None,
    model: Model | None = None,
    quantizer: Quantizer | None = None,
    workload: Workload | None = None,
    out: str | None = None,
    weights: str | None = None,
    weights_size_bytes: int | None = None,
    stack: str | None = None,
    page_tokens: int = 16,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    free_memory_bytes: int | None = None,
    max_model_len: int | None = None,
    prompt_budget_tokens: int | None = None,
    max_num_seqs: int | None = None,
    tower: bool = True,
    max_total_tokens: int | None = None,
    swa_full_tokens_ratio: float | None = None,
    cuda_graph_max_bs: int | None = None,
    dp_attention: bool = False,
    cuda_graphs: bool = True,
    speculative_config: str | None = None,
    cpu_offload_gib: float = 0.0,
    gpu_layers: int | None = None,
    cpu_moe_layers: int = 0,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dcp: int = 1,
) -> LogCheck | BenchCheck:
    """Read the start-up log of a server, make the design that it describes, and print each term of memory beside ours.

    LOG is what vLLM, SGLang, TensorRT-LLM or llama.cpp print as they start and run, from a file or from standard
    input: model, options, memory of weights, activations and keys and values, tokens, concurrency. Options given here
    stand for what it says; logs of vLLM, SGLang and TensorRT-LLM rarely say the device. `--out FILE` keeps the memory
    of the log: with `--calibrated FILE` every command answers for this server.

    A log that fails to start is answered with why, and with the engine's options that start; lines of a running server
    with what binds it and what to try. The JSON of `vllm bench serve` or SGLang's `bench_serving` is compared with our
    times (`--device 8xh200`).

    log: The text of a log (of several lines), or its file; default: standard input.
    device: Device name or .toml file; default: as the log says.
    model: Model name, .toml file or config.json; default: as the log says.
    quantizer: KV quantizer; default: as the log says.
    workload: Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`.
    out: Write the log's memory into this file, which --calibrated of other commands takes.
    Further parameters are the fields of `Workload`, in place of one.

    Returns: The log beside the design: its terms, their table, and a sentence about the largest difference.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> found = dse.check_log('''Initializing a V1 LLM engine (v0.19.0) with config: model='Qwen/Qwen3-14B', dtype=bf16
    ... Model loading took 27.52 GiB memory and 9.1 seconds
    ... Available KV cache memory: 45.23 GiB''', device="h100", gpu_memory_utilization=0.95)
    >>> found.says
    'Log and design agree; largest difference: keys and values, +0.03 GiB in the log.'
    """

def claims(prefix: str = "") -> pd.DataFrame:
    """Compute what the papers print: claims whose id begins with `prefix`, a row each.

    prefix: The first letters of the claims' ids; default: all claims.

    Returns: A table with a row a claim.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> dse.claims("text-attn-MHA-70b-4k")[["unit", "published", "ours", "verdict"]].values.tolist()
    [['GiB', '5.0', 10.0, 'erratum']]
    """

def crossover(
    device: Device,
    model: Model,
    quantizer: Quantizer = "fp16",
    workload: Workload | None = None,
    *,
    against: Quantizer = "fp16",
    measure: Literal["throughput", "step"] = "throughput",
    batches: Sequence[int] | None = None,
    inputs: Sequence[int] | None = None,
    key_quantizer: Quantizer | None = None,
    value_quantizer: Quantizer | None = None,
    bits: Literal["closed", "measured"] = "closed",
    measurements: str | None = None,
    output_tokens: int = 1024,
    admission: Literal["reserve", "paged"] | None = None,
    batching: Literal["static", "continuous", "chunked"] | None = None,
    page_tokens: int = 16,
    prefix_tokens: int = 0,
    samples: int = 1,
    kv_offload: float = 0.0,
    weights_bits: int = 16,
    dequant_path: Literal["engine", "fused", "materialised"] | None = None,
    model_kind: Literal["auto", "ideal", "calibrated"] = "auto",
    stack: str | None = None,
    tokens: str = "full",
    activation_bits: int = 16,
    weights: str | None = None,
    weights_size_bytes: int | None = None,
    tower: bool = True,
    state_type: Literal["auto", "float32", "float16", "bfloat16", "float8", "int8"] = "auto",
    state_slots: int | None = None,
    state_share: float | None = None,
    prefix_cache: Literal["on", "off"] | None = None,
    cuda_graphs: bool = True,
    gpu_layers: int | None = None,
    cpu_moe_layers: int = 0,
    speculative_config: str | None = None,
    cpu_offload_gib: float = 0.0,
    prompt_chunk_tokens: int = 1,
    rounds: int | None = None,
    max_num_seqs: int | None = None,
    kv_cache: bool = True,
    cached_input_discount: float | None = None,
    memory: Literal["server", "paper"] | None = None,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    free_memory_bytes: int | None = None,
    max_model_len: int | None = None,
    prompt_budget_tokens: int | None = None,
    max_total_tokens: int | None = None,
    swa_full_tokens_ratio: float | None = None,
    cuda_graph_max_bs: int | None = None,
    calibrated: str | None = None,
    tp: int = 1,
    pp: int = 1,
    pp_batches: int | None = None,
    ep: int = 1,
    expert_skew: float = 0.0,
    dp_attention: bool = False,
    dcp: int = 1,
    implementation: str | None = None,
    strict_kernels: bool = False,
    other_software: bool = False,
) -> Crossing:
    """Find the batch (at each prompt length) and the prompt length (at each batch) from which a quantizer pays.

    Every batch is decided and every prompt length, whole numbers. Where it pays the reason is named: a faster step, or
    only capacity (a step is no faster, more requests run at once). A step time counts where the whole batch runs.

    device: Device name or .toml file.
    model: Model name, .toml file or config.json.
    quantizer: KV quantizer with parameters, e.g. oaken or sinkq:bits=2,group=32, or as engines call it,
        e.g. fp8_e4m3 (`dse list quantizers`), or plan:FILE.toml.
    workload: Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`.
    against: The quantizer to compare with.
    measure: What must be better.
    batches: Batches to search prompts at; batches are searched up to the largest.
    inputs: Prompts to search batches at; prompts are searched up to the largest.
    key_quantizer: Quantizer of the keys, if different.
    value_quantizer: Quantizer of the values, if different.
    bits: Nominal outlier and sink counts, or those that the measured data had.
    measurements: measurement.json of `dse measure` or `dse quantize`; default: of the sample of
        SmolLM2-135M that ships.
    Further parameters are the fields of `Workload`, in place of one.

    Returns: Where the quantizer pays along batches and prompts.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> found = dse.crossover("h100", "llama2-13b", "nqkv", batches=[8], inputs=[512], dequant_path="fused")
    >>> [(run.first, run.last, run.verdict) for run in found.from_batch[0].runs]
    [(1, 6, 'no'), (7, 8, 'speed')]
    """

def device(name: str | Path) -> HardwareSpec:
    """A device by its name (`dse list devices`), or from a TOML file; numbers change on the spot.

    Printed, it is its main numbers; each is a quantity with its source, `.si` in base units: `memory_capacity`,
    `memory_bandwidth`, `peak_flops`, `board_power`, ... (`dse show h100` lists all). `stacks` are the software stacks
    whose kernels were measured on it. All functions take what this one returns in place of a name.

    >>> dse.device("h100").memory_bandwidth.si
    3350000000000.0
    >>> dse.device("h100:memory_bandwidth=4 TB/s").memory_bandwidth.si
    4000000000000.0

    Raises InputError for a name that is not known, SpecError for a file that is not right.
    """

def doubt(
    device: Device = "",
    model: Model = "",
    quantizer: Quantizer = "fp16",
    workload: Workload | None = None,
    *,
    claim: str = "",
    against: Quantizer | None = None,
    measure: Literal["throughput", "step", "energy", "cost"] = "throughput",
    ranges: Sequence[str] = (),
    key_quantizer: Quantizer | None = None,
    value_quantizer: Quantizer | None = None,
    bits: Literal["closed", "measured"] = "closed",
    measurements: str | None = None,
    batch: int | None = None,
    input_tokens: int = 1024,
    output_tokens: int = 1024,
    admission: Literal["reserve", "paged"] | None = None,
    batching: Literal["static", "continuous", "chunked"] | None = None,
    page_tokens: int = 16,
    prefix_tokens: int = 0,
    samples: int = 1,
    kv_offload: float = 0.0,
    weights_bits: int = 16,
    dequant_path: Literal["engine", "fused", "materialised"] | None = None,
    model_kind: Literal["auto", "ideal", "calibrated"] = "auto",
    stack: str | None = None,
    tokens: str = "full",
    activation_bits: int = 16,
    weights: str | None = None,
    weights_size_bytes: int | None = None,
    tower: bool = True,
    state_type: Literal["auto", "float32", "float16", "bfloat16", "float8", "int8"] = "auto",
    state_slots: int | None = None,
    state_share: float | None = None,
    prefix_cache: Literal["on", "off"] | None = None,
    cuda_graphs: bool = True,
    gpu_layers: int | None = None,
    cpu_moe_layers: int = 0,
    speculative_config: str | None = None,
    cpu_offload_gib: float = 0.0,
    prompt_chunk_tokens: int = 1,
    rounds: int | None = None,
    max_num_seqs: int | None = None,
    kv_cache: bool = True,
    cached_input_discount: float | None = None,
    memory: Literal["server", "paper"] | None = None,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    free_memory_bytes: int | None = None,
    max_model_len: int | None = None,
    prompt_budget_tokens: int | None = None,
    max_total_tokens: int | None = None,
    swa_full_tokens_ratio: float | None = None,
    cuda_graph_max_bs: int | None = None,
    calibrated: str | None = None,
    tp: int = 1,
    pp: int = 1,
    pp_batches: int | None = None,
    ep: int = 1,
    expert_skew: float = 0.0,
    dp_attention: bool = False,
    dcp: int = 1,
    implementation: str | None = None,
    strict_kernels: bool = False,
    other_software: bool = False,
) -> Doubt | ClaimDoubt:
    """Vary every number of the device that a result rests on inside its range, one at a time.

    Ranges by kind: assumed half to twice, derived 0.8 to 1.25, measured 0.9 to 1.1, published 0.95 to 1.05, datasheet
    as printed; fitted parameters within the error of their fit; usable_frac 0.8 to 1, runtime_overhead 0 to 4 GB; peak
    rates of the ideal model down to half; outliers and sinks as nominal or as measured (`--measurements`). Of a claim
    (`--claim`): the numbers of all its devices, and which of them would give what the paper prints.

    device: Device name or .toml file; not with --claim.
    model: Model name, .toml file or config.json.
    quantizer: KV quantizer with parameters, e.g. oaken or sinkq:bits=2,group=32, or as engines call it,
        e.g. fp8_e4m3 (`dse list quantizers`), or plan:FILE.toml.
    workload: Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`.
    claim: A claim of a paper in place of a design (`dse validate claims`).
    against: A second quantizer on the same device: does the better one change?
    measure: The result.
    ranges: A range of your own: x0.5:x2, 1TB/s:2TB/s.
    key_quantizer: Quantizer of the keys, if different.
    value_quantizer: Quantizer of the values, if different.
    bits: Nominal outlier and sink counts, or those that the measured data had.
    measurements: measurement.json of `dse measure` or `dse quantize`; default: of the sample of
        SmolLM2-135M that ships.
    Further parameters are the fields of `Workload`, in place of one.

    Returns: The effect of each number on the result, on which design wins, or on a claim.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> found = dse.doubt("oaken-lpddr", "llama2-13b", "oaken", against="qserve", batch=64, other_software=True)
    >>> found.winner, [effect.number.name for effect in found.effects if effect.flips_at]
    ('qserve', ['fused_rate'])
    """

def evaluate(
    device: Device,
    model: Model,
    quantizer: Quantizer = "fp16",
    workload: Workload | None = None,
    *,
    key_quantizer: Quantizer | None = None,
    value_quantizer: Quantizer | None = None,
    bits: Literal["closed", "measured"] = "closed",
    measurements: str | None = None,
    batch: int | None = None,
    input_tokens: int = 1024,
    output_tokens: int = 1024,
    admission: Literal["reserve", "paged"] | None = None,
    batching: Literal["static", "continuous", "chunked"] | None = None,
    page_tokens: int = 16,
    prefix_tokens: int = 0,
    samples: int = 1,
    kv_offload: float = 0.0,
    weights_bits: int = 16,
    dequant_path: Literal["engine", "fused", "materialised"] | None = None,
    model_kind: Literal["auto", "ideal", "calibrated"] = "auto",
    stack: str | None = None,
    tokens: str = "full",
    activation_bits: int = 16,
    weights: str | None = None,
    weights_size_bytes: int | None = None,
    tower: bool = True,
    state_type: Literal["auto", "float32", "float16", "bfloat16", "float8", "int8"] = "auto",
    state_slots: int | None = None,
    state_share: float | None = None,
    prefix_cache: Literal["on", "off"] | None = None,
    cuda_graphs: bool = True,
    gpu_layers: int | None = None,
    cpu_moe_layers: int = 0,
    speculative_config: str | None = None,
    cpu_offload_gib: float = 0.0,
    prompt_chunk_tokens: int = 1,
    rounds: int | None = None,
    max_num_seqs: int | None = None,
    kv_cache: bool = True,
    cached_input_discount: float | None = None,
    memory: Literal["server", "paper"] | None = None,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    free_memory_bytes: int | None = None,
    max_model_len: int | None = None,
    prompt_budget_tokens: int | None = None,
    max_total_tokens: int | None = None,
    swa_full_tokens_ratio: float | None = None,
    cuda_graph_max_bs: int | None = None,
    calibrated: str | None = None,
    tp: int = 1,
    pp: int = 1,
    pp_batches: int | None = None,
    ep: int = 1,
    expert_skew: float = 0.0,
    dp_attention: bool = False,
    dcp: int = 1,
    implementation: str | None = None,
    strict_kernels: bool = False,
    other_software: bool = False,
) -> DesignResults:
    """Everything about one design point: memory, time, throughput, and what binds.

    device: Device name or .toml file.
    model: Model name, .toml file or config.json.
    quantizer: KV quantizer with parameters, e.g. oaken or sinkq:bits=2,group=32, or as engines call it,
        e.g. fp8_e4m3 (`dse list quantizers`), or plan:FILE.toml.
    workload: Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`.
    key_quantizer: Quantizer of the keys, if different.
    value_quantizer: Quantizer of the values, if different.
    bits: Nominal outlier and sink counts, or those that the measured data had.
    measurements: measurement.json of `dse measure` or `dse quantize`; default: of the sample of
        SmolLM2-135M that ships.
    Further parameters are the fields of `Workload`, in place of one.

    Returns: Every result by name, in SI base units; None for what does not apply. A dict whose entries are attributes.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> found = dse.evaluate("a100-80gb", "llama2-13b", "qserve", batch=128, admission="paged")
    >>> found.max_batch, round(found.throughput_tokens_per_s), found.unit("decode_step_s")
    (114, 1326, 's')
    >>> found["max_batch"] == found.max_batch
    True
    """

def formats(
    device: Device,
    model: Model,
    quantizers: Sequence[str] | None = None,
    workload: Workload | None = None,
    *,
    max_drop: float | None = None,
    max_error: float | None = None,
    bits: Literal["closed", "measured"] = "closed",
    measurements: str | None = None,
    batch: int | None = None,
    input_tokens: int = 1024,
    output_tokens: int = 1024,
    admission: Literal["reserve", "paged"] | None = None,
    batching: Literal["static", "continuous", "chunked"] | None = None,
    page_tokens: int = 16,
    prefix_tokens: int = 0,
    samples: int = 1,
    kv_offload: float = 0.0,
    weights_bits: int = 16,
    dequant_path: Literal["engine", "fused", "materialised"] | None = None,
    model_kind: Literal["auto", "ideal", "calibrated"] = "auto",
    stack: str | None = None,
    tokens: str = "full",
    activation_bits: int = 16,
    weights: str | None = None,
    weights_size_bytes: int | None = None,
    tower: bool = True,
    state_type: Literal["auto", "float32", "float16", "bfloat16", "float8", "int8"] = "auto",
    state_slots: int | None = None,
    state_share: float | None = None,
    prefix_cache: Literal["on", "off"] | None = None,
    cuda_graphs: bool = True,
    gpu_layers: int | None = None,
    cpu_moe_layers: int = 0,
    speculative_config: str | None = None,
    cpu_offload_gib: float = 0.0,
    prompt_chunk_tokens: int = 1,
    rounds: int | None = None,
    max_num_seqs: int | None = None,
    kv_cache: bool = True,
    cached_input_discount: float | None = None,
    memory: Literal["server", "paper"] | None = None,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    free_memory_bytes: int | None = None,
    max_model_len: int | None = None,
    prompt_budget_tokens: int | None = None,
    max_total_tokens: int | None = None,
    swa_full_tokens_ratio: float | None = None,
    cuda_graph_max_bs: int | None = None,
    calibrated: str | None = None,
    tp: int = 1,
    pp: int = 1,
    pp_batches: int | None = None,
    ep: int = 1,
    expert_skew: float = 0.0,
    dp_attention: bool = False,
    dcp: int = 1,
    implementation: str | None = None,
    strict_kernels: bool = False,
    other_software: bool = False,
) -> Formats:
    """Compare the KV formats of a device and stack: what each takes and gives, and its gain over 16 bits.

    A format whose gain's whole interval lies above 1 pays; where it may lie on both sides, it may pay. Those that only
    let more requests run at once buy room. Compared are the formats that the engine's release runs on the device for
    the model, by its table (`hwspecs/engines`); what other software runs is told where it is asked for or named.

    device: Device name or .toml file.
    model: Model name, .toml file or config.json.
    quantizers: Formats to compare with 16 bits; default: all that the engine runs on the device for the
        model.
    workload: Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`.
    max_drop: Recommend no format whose published scores drop by more, or where that cannot be told.
    max_error: Recommend no format whose relative error of the attention output, as measured, is larger.
    bits: Nominal outlier and sink counts, or those that the measured data had.
    measurements: measurement.json of `dse measure` or `dse quantize`; default: of the sample of
        SmolLM2-135M that ships.
    Further parameters are the fields of `Workload`, in place of one.

    Returns: Memory, time, error and energy of each format, with intervals.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> found = dse.formats("h200", "qwen3-32b", ["fp8", "qserve"], batch=64, input_tokens=8192, admission="paged")
    >>> [(one.name, one.verdict) for one in found.formats]
    [('fp16', 'base'), ('fp8', 'pays'), ('qserve', 'refused')]
    """

def front(
    designs: pd.DataFrame | StoredSweep | str | Path,
    maximize: Sequence[str] = (),
    minimize: Sequence[str] = (),
    by: Sequence[str] = (),
    at_most: Sequence[str] = (),
    at_least: Sequence[str] = (),
    *,
    max_drop: float | None = None,
    drop_missing: bool = False,
    other_software: bool = False,
    objectives: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
) -> DesignFront:
    """Find the Pareto front of a sweep's directory, of any size, or of a .csv or .parquet TABLE.

    A design is on the front when no other is at least as good in every objective and better in one. Designs that do
    not fit (column feasible), or that the software of their device does not run (runs), are not considered. A knee is
    the design closest to being best in everything.

    `--maximize throughput_tokens_per_s --at-most measured_error=0.2` is the fastest design at that error; --at-most and
    --at-least may be given several times. A design without a value in such a column does not count.

    designs: A table, a handle on a sweep, its directory, or a .csv or .parquet file.
    maximize: Columns of which more is better.
    minimize: Columns of which less is better.
    by: A front for each value of these columns.
    at_most: Only designs with at most N, in base units, in column C.
    at_least: Only designs with at least N, in base units, in column C.
    max_drop: Only designs whose format, as published, drops scores by at most so much: the high end of
        its 95 % interval.
    drop_missing: Leave out designs whose objectives are unknown.
    other_software: Let designs compete that the device's software does not run, as if other software
        ran them.
    objectives: Both senses at once, as in {"power_w": "min"}, in the order of a figure's axes.
    units: Base units of columns of your own.

    Returns: The front: its `table` has the designs, `only(COLUMN=VALUE)` takes one of several fronts.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> table = dse.sweep({"device": ["a100-80gb", "h100"], "model": "llama2-13b", "batch": [16, 64]})
    >>> dse.front(table, maximize=["throughput_tokens_per_s"]).table["device"].tolist()
    ['H100']
    """

def grid(
    device: Device | Iterable[Device],
    model: Model | Iterable[Model],
    quantizer: Quantizer | Iterable[Quantizer] = "fp16",
    *,
    batch: int | Iterable[int | None] | None = None,
    input_tokens: int | Iterable[int] = 1024,
    output_tokens: int | Iterable[int] = 1024,
    admission: Literal["reserve", "paged"] | Iterable[Literal["reserve", "paged"] | None] | None = None,
    batching: Literal["static", "continuous", "chunked"]
    | Iterable[Literal["static", "continuous", "chunked"] | None]
    | None = None,
    page_tokens: int | Iterable[int] = 16,
    prefix_tokens: int | Iterable[int] = 0,
    samples: int | Iterable[int] = 1,
    kv_offload: float | Iterable[float] = 0.0,
    weights_bits: int | Iterable[int] = 16,
    dequant_path: Literal["engine", "fused", "materialised"]
    | Iterable[Literal["engine", "fused", "materialised"] | None]
    | None = None,
    model_kind: Literal["auto", "ideal", "calibrated"] | Iterable[Literal["auto", "ideal", "calibrated"]] = "auto",
    stack: str | Iterable[str | None] | None = None,
    tokens: str | Iterable[str] = "full",
    activation_bits: int | Iterable[int] = 16,
    weights: str | Iterable[str | None] | None = None,
    weights_size_bytes: int | Iterable[int | None] | None = None,
    tower: bool | Iterable[bool] = True,
    state_type: Literal["auto", "float32", "float16", "bfloat16", "float8", "int8"]
    | Iterable[Literal["auto", "float32", "float16", "bfloat16", "float8", "int8"]] = "auto",
    state_slots: int | Iterable[int | None] | None = None,
    state_share: float | Iterable[float | None] | None = None,
    prefix_cache: Literal["on", "off"] | Iterable[Literal["on", "off"] | None] | None = None,
    cuda_graphs: bool | Iterable[bool] = True,
    gpu_layers: int | Iterable[int | None] | None = None,
    cpu_moe_layers: int | Iterable[int] = 0,
    speculative_config: str | Iterable[str | None] | None = None,
    cpu_offload_gib: float | Iterable[float] = 0.0,
    prompt_chunk_tokens: int | Iterable[int] = 1,
    rounds: int | Iterable[int | None] | None = None,
    max_num_seqs: int | Iterable[int | None] | None = None,
    kv_cache: bool | Iterable[bool] = True,
    cached_input_discount: float | Iterable[float | None] | None = None,
    memory: Literal["server", "paper"] | Iterable[Literal["server", "paper"] | None] | None = None,
    gpu_memory_utilization: float | Iterable[float | None] | None = None,
    kv_cache_memory_bytes: int | Iterable[int | None] | None = None,
    free_memory_bytes: int | Iterable[int | None] | None = None,
    max_model_len: int | Iterable[int | None] | None = None,
    prompt_budget_tokens: int | Iterable[int | None] | None = None,
    max_total_tokens: int | Iterable[int | None] | None = None,
    swa_full_tokens_ratio: float | Iterable[float | None] | None = None,
    cuda_graph_max_bs: int | Iterable[int | None] | None = None,
    calibrated: str | Iterable[str | None] | None = None,
    tp: int | Iterable[int] = 1,
    pp: int | Iterable[int] = 1,
    pp_batches: int | Iterable[int | None] | None = None,
    ep: int | Iterable[int] = 1,
    expert_skew: float | Iterable[float] = 0.0,
    dp_attention: bool | Iterable[bool] = False,
    dcp: int | Iterable[int] = 1,
    implementation: str | Iterable[str | None] | None = None,
    strict_kernels: bool | Iterable[bool] = False,
    other_software: bool | Iterable[bool] = False,
) -> pd.DataFrame:
    """All results of several designs, a row each: as `evaluate`, with a list wherever more than one is meant.

    Every combination is a row, the last list varies fastest. Designs that do not fit stay, with their reason.
    `sweep` is for millions of designs, a few columns each.

    >>> table = dse.grid(["a100-80gb", "h100"], "llama2-13b", ["fp16", "qserve"], batch=[16, 256])
    >>> table.groupby("device")["max_batch"].max().to_dict()
    {'A100-80GB': 114, 'H100': 112}

    Raises InputError and SpecError for names and values, LimitError for more than a million designs.
    """

def hits(
    device: Device,
    model: Model,
    quantizers: Sequence[Quantizer] | None = None,
    workload: Workload | None = None,
    *,
    output_tokens: int = 256,
    trace: str | None = None,
    sessions: int | None = None,
    turns: int = 20,
    growth: int = 1200,
    think: str = "8 s",
    shared: int = 0,
    host_cache: int | None = None,
    host_link: str | None = None,
    host_start: str | None = None,
    host_overlap: Literal["layers", "none"] = "layers",
    host_format: Quantizer | None = None,
    bits: Literal["closed", "measured"] = "closed",
    measurements: str | None = None,
    batch: int | None = None,
    max_num_seqs: int | None = None,
    admission: Literal["reserve", "paged"] | None = None,
    page_tokens: int = 16,
    batching: Literal["static", "continuous", "chunked"] | None = None,
    weights_bits: int = 16,
    weights: str | None = None,
    activation_bits: int = 16,
    dequant_path: Literal["engine", "fused", "materialised"] | None = None,
    memory: Literal["server", "paper"] | None = None,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    free_memory_bytes: int | None = None,
    max_model_len: int | None = None,
    prompt_budget_tokens: int | None = None,
    tower: bool = True,
    state_type: Literal["auto", "float32", "float16", "bfloat16", "float8", "int8"] = "auto",
    state_slots: int | None = None,
    state_share: float | None = None,
    prefix_cache: Literal["on", "off"] | None = None,
    cuda_graphs: bool = True,
    speculative_config: str | None = None,
    cpu_offload_gib: float = 0.0,
    gpu_layers: int | None = None,
    cpu_moe_layers: int = 0,
    calibrated: str | None = None,
    max_total_tokens: int | None = None,
    swa_full_tokens_ratio: float | None = None,
    cuda_graph_max_bs: int | None = None,
    tp: int = 1,
    pp: int = 1,
    pp_batches: int | None = None,
    ep: int = 1,
    expert_skew: float = 0.0,
    dp_attention: bool = False,
    dcp: int = 1,
    model_kind: Literal["auto", "ideal", "calibrated"] = "auto",
    stack: str | None = None,
    implementation: str | None = None,
    strict_kernels: bool = False,
    other_software: bool = False,
) -> HitsByFormat:
    """Find what each KV format's pool keeps of prompts: hits, TTFT, requests per second, price, agents that fit.

    Of agents in a closed loop: --sessions of them at a time, each of --turns, whose prompts are --shared tokens and all
    before. Or of a trace (--trace) whose lines name the blocks of their prompts (hash_ids), on a server that is always
    full. One pass over the prompts gives the hits at every pool: the answer says where more of it brings no more.

    device: Device name or .toml file.
    model: Model name, .toml file or config.json.
    quantizers: Formats to compare with 16 bits; default: all that the engine runs there for the model.
    workload: Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`.
    output_tokens: Generated tokens of a turn, which its growth includes.
    trace: A trace that names the blocks of its prompts, in place of agents.
    sessions: Agents at a time.
    turns: Turns of a session, which a new one follows.
    growth: Tokens that a turn adds to the context, its answer included.
    think: Time between an answer and the next turn, mean.
    shared: Tokens that all sessions begin with: system prompt and tools.
    host_cache: Host memory for blocks that the device gives up, for each device; default: none.
    host_link: Bandwidth from host memory to a device, one direction; with --host-cache.
    host_start: Time before a load from host memory begins; default: none.
    host_overlap: Load beside the step that computes the rest, layer by layer, or before it.
    host_format: Format of blocks in host memory, where it is another than the device's.
    bits: Nominal outlier and sink counts, or those that the measured data had.
    measurements: measurement.json of `dse measure` or `dse quantize`; default: of the sample of
        SmolLM2-135M that ships.
    Further parameters are the fields of `Workload`, in place of one.

    Returns: Hits of each format's pool, and what they bring.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> found = dse.hits("h200", "qwen3-32b", ["fp8"], sessions=32, turns=20, growth=1200, shared=6000)
    >>> [(row["name"], row["agents"]) for row in found.rows]
    [('fp16', 19), ('fp8', 38)]
    """

def interactivity(
    device: Device,
    model: Model,
    quantizers: Sequence[Quantizer] | None = None,
    workload: Workload | None = None,
    *,
    splits: Sequence[int] | None = None,
    measured: str | None = None,
    bits: Literal["closed", "measured"] = "closed",
    measurements: str | None = None,
    max_tpot: str | None = None,
    max_ttft: str | None = None,
    input_tokens: int = 1024,
    output_tokens: int = 1024,
    admission: Literal["reserve", "paged"] | None = None,
    batching: Literal["static", "continuous", "chunked"] | None = None,
    page_tokens: int = 16,
    prefix_tokens: int = 0,
    samples: int = 1,
    kv_offload: float = 0.0,
    weights_bits: int = 16,
    dequant_path: Literal["engine", "fused", "materialised"] | None = None,
    model_kind: Literal["auto", "ideal", "calibrated"] = "auto",
    stack: str | None = None,
    tokens: str = "full",
    activation_bits: int = 16,
    weights: str | None = None,
    weights_size_bytes: int | None = None,
    tower: bool = True,
    state_type: Literal["auto", "float32", "float16", "bfloat16", "float8", "int8"] = "auto",
    state_slots: int | None = None,
    state_share: float | None = None,
    prefix_cache: Literal["on", "off"] | None = None,
    cuda_graphs: bool = True,
    gpu_layers: int | None = None,
    cpu_moe_layers: int = 0,
    speculative_config: str | None = None,
    cpu_offload_gib: float = 0.0,
    prompt_chunk_tokens: int = 1,
    rounds: int | None = None,
    max_num_seqs: int | None = None,
    kv_cache: bool = True,
    cached_input_discount: float | None = None,
    memory: Literal["server", "paper"] | None = None,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    free_memory_bytes: int | None = None,
    max_model_len: int | None = None,
    prompt_budget_tokens: int | None = None,
    max_total_tokens: int | None = None,
    swa_full_tokens_ratio: float | None = None,
    cuda_graph_max_bs: int | None = None,
    calibrated: str | None = None,
    tp: int = 1,
    pp: int = 1,
    pp_batches: int | None = None,
    ep: int = 1,
    expert_skew: float = 0.0,
    dp_attention: bool = False,
    dcp: int = 1,
    implementation: str | None = None,
    strict_kernels: bool = False,
    other_software: bool = False,
) -> Interactivity:
    """Trade throughput a device against the speed that each user sees, over batches and layouts, for KV formats.

    A curve holds the designs of a format that none of its others beats in both. The best within limits is that of
    `dse recommend` on as many devices with the same engine.

    device: Device name or .toml file.
    model: Model name, .toml file or config.json.
    quantizers: KV quantizers to compare; default: fp16 and all that the engine runs there for the
        model.
    workload: Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`.
    splits: Devices that the model is split over; default: 1, 2, 4 and 8, or the workload's own layout
        where it names several.
    measured: Measured servers to draw beside it, in the columns of aiconfigurator-core's
        silicon_sample.csv: those of the model, the device and the lengths.
    bits: Nominal outlier and sink counts, or those that the measured data had.
    measurements: measurement.json of `dse measure` or `dse quantize`; default: of the sample of
        SmolLM2-135M that ships.
    max_tpot: Most time per token of a user.
    max_ttft: Most time to the first token.
    Further parameters are the fields of `Workload`, in place of one.

    Returns: The servers of the search over batches, and the best within the limits.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> found = dse.interactivity("h200", "qwen3-32b", ["fp16", "fp8"], max_tpot="20 ms", input_tokens=8192)
    >>> found.best["quantizer"], found.best["tpot_s"] <= 0.020
    ('fp8', True)
    """

def lab(
    method: str,
    source: str | None = None,
    *,
    layer: int | None = None,
    side: Literal["key", "value"] = "key",
    head: int = 0,
    first: int = 0,
    heads: int | None = None,
    nonfinite: Literal["raise", "replace"] = "raise",
) -> LabResult:
    """Inspect one quantizer on a KV dump (default: the sample of SmolLM2-135M that ships), as tables for `dse plot`.

    Bits an element by part (bits.csv), errors by layer and head (errors.csv), and of one head the histogram with the
    quantizer's thresholds (histogram.csv) and the first 256 tokens before and after (values.csv). Oaken's thresholds
    are profiled on the dump itself; of many quantizers, at all context lengths: `dse measure`.

    method: KV quantizer with parameters, such as kivi:bits=2.
    layer: Layer whose values are shown; default: the first.
    side: Keys or values.
    head: Head whose values are shown.
    first: First token of the map of values.
    heads: Heads of tensors [tokens, channels].
    nonfinite: What to do with NaN and infinities: refuse, or take them as 0 and +-65504.

    Returns: The quantizer on the dump: `measured` and `view`.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> lab = dse.lab("kivi:bits=2")
    >>> lab.view.before.shape
    (256, 64)
    """

def load(
    device: Device,
    model: Model,
    quantizer: Quantizer = "fp16",
    workload: Workload | None = None,
    *,
    loads: Sequence[float] | None = None,
    key_quantizer: Quantizer | None = None,
    value_quantizer: Quantizer | None = None,
    bits: Literal["closed", "measured"] = "closed",
    measurements: str | None = None,
    max_tpot: str | None = None,
    max_ttft: str | None = None,
    batch: int | None = None,
    input_tokens: int = 1024,
    output_tokens: int = 1024,
    admission: Literal["reserve", "paged"] | None = None,
    batching: Literal["static", "continuous", "chunked"] | None = None,
    page_tokens: int = 16,
    prefix_tokens: int = 0,
    samples: int = 1,
    kv_offload: float = 0.0,
    weights_bits: int = 16,
    dequant_path: Literal["engine", "fused", "materialised"] | None = None,
    model_kind: Literal["auto", "ideal", "calibrated"] = "auto",
    stack: str | None = None,
    tokens: str = "full",
    activation_bits: int = 16,
    weights: str | None = None,
    weights_size_bytes: int | None = None,
    tower: bool = True,
    state_type: Literal["auto", "float32", "float16", "bfloat16", "float8", "int8"] = "auto",
    state_slots: int | None = None,
    state_share: float | None = None,
    prefix_cache: Literal["on", "off"] | None = None,
    cuda_graphs: bool = True,
    gpu_layers: int | None = None,
    cpu_moe_layers: int = 0,
    speculative_config: str | None = None,
    cpu_offload_gib: float = 0.0,
    prompt_chunk_tokens: int = 1,
    rounds: int | None = None,
    max_num_seqs: int | None = None,
    kv_cache: bool = True,
    cached_input_discount: float | None = None,
    memory: Literal["server", "paper"] | None = None,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    free_memory_bytes: int | None = None,
    max_model_len: int | None = None,
    prompt_budget_tokens: int | None = None,
    max_total_tokens: int | None = None,
    swa_full_tokens_ratio: float | None = None,
    cuda_graph_max_bs: int | None = None,
    calibrated: str | None = None,
    tp: int = 1,
    pp: int = 1,
    pp_batches: int | None = None,
    ep: int = 1,
    expert_skew: float = 0.0,
    dp_attention: bool = False,
    dcp: int = 1,
    implementation: str | None = None,
    strict_kernels: bool = False,
    other_software: bool = False,
) -> UnderLoad:
    """Predict TPOT and TTFT of requests that arrive at random, at shares of the saturated rate.

    In closed form, for requests of equal lengths; `dse simulate --rate` runs other lengths one by one.

    device: Device name or .toml file.
    model: Model name, .toml file or config.json.
    quantizer: KV quantizer with parameters, e.g. oaken or sinkq:bits=2,group=32, or as engines call it,
        e.g. fp8_e4m3 (`dse list quantizers`), or plan:FILE.toml.
    workload: Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`.
    loads: Shares of the saturated request rate; default: ten from 0.05 to 0.9.
    key_quantizer: Quantizer of the keys, if different.
    value_quantizer: Quantizer of the values, if different.
    bits: Nominal outlier and sink counts, or those that the measured data had.
    measurements: measurement.json of `dse measure` or `dse quantize`; default: of the sample of
        SmolLM2-135M that ships.
    max_tpot: Most time per token of a user.
    max_ttft: Most time to the first token.
    Further parameters are the fields of `Workload`, in place of one.

    Returns: TPOT and TTFT at fractions of the saturated request rate.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> waits = dse.load("h200", "qwen3-32b", "fp8", batch=64, input_tokens=8192, admission="paged")
    >>> waits.at(0.5)["tpot_s"] < waits.at(0.55)["tpot_s"]
    True
    """

def model(name: str | Path) -> ModelSpec:
    """A language model by its name (`dse list models`), or from a `config.json` or TOML file.

    Printed, it is its size and shape; counts are attributes: `parameters`, `active_parameters` (of a token),
    `n_layers`, `hidden_size`, `n_q_heads`, `vocab_size`, `max_position_tokens`, and by run of equal `layers`
    `n_kv_heads`, `key_dim`, `value_dim`, `window` (`dse show llama3.1-8b` lists all, with sources). `released` is the
    format of its weights. All functions take what this one returns in place of a name.

    >>> print(dse.model("llama3.1-8b"))
    llama3.1-8b (Llama 3.1 8B)
      8,030,261,248 parameters, 131,072 positions
      32 layers of 4,096 channels, 32 query heads, 8 KV heads (key 128, value 128)
      weights as released: bf16; source: model file
    >>> dse.model("llama3.1-8b").layers[0].n_kv_heads
    8

    Raises InputError for a name that is not known, with the nearest, SpecError for a file that is not right.
    """

def need(
    what: Literal["bandwidth", "capacity", "flops", "bits"],
    device: Device,
    model: Model,
    quantizer: Quantizer = "fp16",
    workload: Workload | None = None,
    *,
    throughput: float | None = None,
    step_ms: float | None = None,
    quantizers: Sequence[Quantizer] | None = None,
    key_quantizer: Quantizer | None = None,
    value_quantizer: Quantizer | None = None,
    bits: Literal["closed", "measured"] = "closed",
    measurements: str | None = None,
    batch: int | None = None,
    input_tokens: int = 1024,
    output_tokens: int = 1024,
    admission: Literal["reserve", "paged"] | None = None,
    batching: Literal["static", "continuous", "chunked"] | None = None,
    page_tokens: int = 16,
    prefix_tokens: int = 0,
    samples: int = 1,
    kv_offload: float = 0.0,
    weights_bits: int = 16,
    dequant_path: Literal["engine", "fused", "materialised"] | None = None,
    model_kind: Literal["auto", "ideal", "calibrated"] = "auto",
    stack: str | None = None,
    tokens: str = "full",
    activation_bits: int = 16,
    weights: str | None = None,
    weights_size_bytes: int | None = None,
    tower: bool = True,
    state_type: Literal["auto", "float32", "float16", "bfloat16", "float8", "int8"] = "auto",
    state_slots: int | None = None,
    state_share: float | None = None,
    prefix_cache: Literal["on", "off"] | None = None,
    cuda_graphs: bool = True,
    gpu_layers: int | None = None,
    cpu_moe_layers: int = 0,
    speculative_config: str | None = None,
    cpu_offload_gib: float = 0.0,
    prompt_chunk_tokens: int = 1,
    rounds: int | None = None,
    max_num_seqs: int | None = None,
    kv_cache: bool = True,
    cached_input_discount: float | None = None,
    memory: Literal["server", "paper"] | None = None,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    free_memory_bytes: int | None = None,
    max_model_len: int | None = None,
    prompt_budget_tokens: int | None = None,
    max_total_tokens: int | None = None,
    swa_full_tokens_ratio: float | None = None,
    cuda_graph_max_bs: int | None = None,
    calibrated: str | None = None,
    tp: int = 1,
    pp: int = 1,
    pp_batches: int | None = None,
    ep: int = 1,
    expert_skew: float = 0.0,
    dp_attention: bool = False,
    dcp: int = 1,
    implementation: str | None = None,
    strict_kernels: bool = False,
    other_software: bool = False,
) -> Need | NeedBits:
    """Find the smallest bandwidth, capacity or peak FLOP/s of a device that meets a target, and what stops a smaller.

    All else is as the device has it. `need bits` names the quantizer with most stored bits that meets the target: how
    far the cache must be compressed. Where no value does, that is the answer, with what stands in the way.

    what: bandwidth, capacity, flops, bits
    device: Device name or .toml file.
    model: Model name, .toml file or config.json.
    quantizer: KV quantizer with parameters, e.g. oaken or sinkq:bits=2,group=32, or as engines call it,
        e.g. fp8_e4m3 (`dse list quantizers`), or plan:FILE.toml.
    workload: Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`.
    throughput: Target: at least so many tok/s.
    step_ms: Target: a decode step of the whole batch in at most so many ms.
    quantizers: For bits: KV quantizers to choose from; default: those of `ask formats`.
    key_quantizer: Quantizer of the keys, if different.
    value_quantizer: Quantizer of the values, if different.
    bits: Nominal outlier and sink counts, or those that the measured data had.
    measurements: measurement.json of `dse measure` or `dse quantize`; default: of the sample of
        SmolLM2-135M that ships.
    Further parameters are the fields of `Workload`, in place of one.

    Returns: The number, or the quantizer, that meets the target.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> found = dse.need("bandwidth", "a100-80gb", "llama2-13b", batch=128, admission="paged", throughput=2000)
    >>> dse.units.human(found.value, found.unit)
    '10.32 TB/s'
    >>> dse.need("bits", "a100-80gb", "llama2-13b", throughput=1200, batch=128, admission="paged").best["quantizer"]
    'nvfp4'
    """

def operations(
    device: Device,
    model: Model,
    quantizers: Sequence[Quantizer] = ("fp16",),
    workload: Workload | None = None,
    *,
    batch: int | None = None,
    input_tokens: int = 1024,
    output_tokens: int = 1024,
    admission: Literal["reserve", "paged"] | None = None,
    batching: Literal["static", "continuous", "chunked"] | None = None,
    page_tokens: int = 16,
    prefix_tokens: int = 0,
    samples: int = 1,
    kv_offload: float = 0.0,
    weights_bits: int = 16,
    dequant_path: Literal["engine", "fused", "materialised"] | None = None,
    model_kind: Literal["auto", "ideal", "calibrated"] = "auto",
    stack: str | None = None,
    tokens: str = "full",
    activation_bits: int = 16,
    weights: str | None = None,
    weights_size_bytes: int | None = None,
    tower: bool = True,
    state_type: Literal["auto", "float32", "float16", "bfloat16", "float8", "int8"] = "auto",
    state_slots: int | None = None,
    state_share: float | None = None,
    prefix_cache: Literal["on", "off"] | None = None,
    cuda_graphs: bool = True,
    gpu_layers: int | None = None,
    cpu_moe_layers: int = 0,
    speculative_config: str | None = None,
    cpu_offload_gib: float = 0.0,
    prompt_chunk_tokens: int = 1,
    rounds: int | None = None,
    max_num_seqs: int | None = None,
    kv_cache: bool = True,
    cached_input_discount: float | None = None,
    memory: Literal["server", "paper"] | None = None,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    free_memory_bytes: int | None = None,
    max_model_len: int | None = None,
    prompt_budget_tokens: int | None = None,
    max_total_tokens: int | None = None,
    swa_full_tokens_ratio: float | None = None,
    cuda_graph_max_bs: int | None = None,
    calibrated: str | None = None,
    tp: int = 1,
    pp: int = 1,
    pp_batches: int | None = None,
    ep: int = 1,
    expert_skew: float = 0.0,
    dp_attention: bool = False,
    dcp: int = 1,
    implementation: str | None = None,
    strict_kernels: bool = False,
    other_software: bool = False,
) -> pd.DataFrame:
    """The operations of a decode step under each quantizer, and where the roofline lets them run; a row each.

    device: Device name or .toml file.
    model: Model name, .toml file or config.json.
    quantizers: KV quantizers with parameters.
    workload: Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`.
    Further parameters are the fields of `Workload`, in place of one.

    Returns: A table with a row an operation and quantizer.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> found = dse.operations("a100-80gb", "llama2-13b", ["fp16", "qserve"], batch=64)
    >>> found[found["operation"] == "attention"]["quantizer"].unique().tolist()
    ['fp16', 'qserve']
    """

def plot(
    source: Any,
    kind: str | None = None,
    out: str | Path | None = None,
    *,
    only: Mapping[str, Any] | None = None,
    preset: str = "paper",
    width: float | None = None,
    height: float | None = None,
    font: float | None = None,
    title: str | None = None,
    shows_title: bool = True,
    x_label: str | None = None,
    y_label: str | None = None,
    legend: str = "above",
    shows_notes: bool = True,
) -> Any:
    """The plotly figure of an answer or a front, or of a table with the `kind` that `dse plot` lists; with `out` a file
    too: .pdf, .svg, .png, .html, .csv (the rows behind it) or .parquet.

    What a sweep, or its table, holds fixed or did not keep is computed: any of them has every figure of designs.
    `only` chooses rows by column, a value or several: `only={"quantizer": "fp16", "batch": [16, 64]}`. The other
    keywords are the options of `dse plot`: `preset` is "paper" (85 mm wide), "paper-wide", "slide" or "report".

    >>> table = dse.grid("h100", "llama2-13b", ["fp16", "qserve"], batch=[16, 64, 256])
    >>> len(dse.plot(table, "throughput_batch").data) > 0
    True
    >>> figure = dse.plot(table, "throughput_batch", out="f.pdf", preset="paper", only={"batch": [64, 256]})

    Raises InputError for a kind that is not known, then for an option, a table that lacks the kind's columns, and what
    has no figure; LimitError for a page that is too small, OutputError for a file that cannot be written.
    """

def quantizer(name: str, measurements: str | Path | None = None) -> QuantizerSpec:
    """A KV quantizer by its name with options (`dse list quantizers`), with its errors on the shipped sample.

    `measurements` is a file of `dse measure` or `dse quantize`, whose data then stand for the sample.

    >>> dse.quantizer("kivi:bits=2").name
    'kivi'
    >>> dse.quantizer("kivi:bits=4,group=64").name
    'kivi:bits=4,group=64'

    Raises InputError with what is allowed.
    """

def recommend(
    *,
    model: Model = "",
    devices: Sequence[str] = (),
    rate: float | None = None,
    requests: int | None = None,
    trace: str | None = None,
    output_tokens: int | None = None,
    start: str | None = None,
    objective: Literal["cost", "devices", "throughput", "energy"] = "cost",
    budget: str | None = None,
    max_drop: float | None = None,
    engines: Sequence[str] | None = None,
    quantizers: Sequence[str] | None = None,
    cloud: Literal["aws", "azure"] | None = None,
    price: Sequence[str] = (),
    most: int | None = None,
    any_size: bool = False,
    workload: Workload | None = None,
    sessions: int | None = None,
    turns: int = 20,
    growth: int = 1200,
    think: str = "8 s",
    shared: int = 0,
    host_cache: int | None = None,
    host_link: str | None = None,
    host_start: str | None = None,
    host_overlap: Literal["layers", "none"] = "layers",
    host_format: Quantizer | None = None,
    max_tpot: str | None = None,
    max_ttft: str | None = None,
    bits: Literal["closed", "measured"] = "closed",
    measurements: str | None = None,
    input_tokens: int = 1024,
    weights: str | None = None,
    max_num_seqs: int | None = None,
    prompt_budget_tokens: int | None = None,
    gpu_memory_utilization: float | None = None,
    max_model_len: int | None = None,
    state_type: Literal["auto", "float32", "float16", "bfloat16", "float8", "int8"] = "auto",
    prefix_cache: Literal["on", "off"] | None = None,
    model_kind: Literal["auto", "ideal", "calibrated"] = "auto",
    other_software: bool = False,
    admission: Literal["reserve", "paged"] | None = None,
    batching: Literal["static", "continuous", "chunked"] | None = None,
    page_tokens: int = 16,
    prefix_tokens: int = 0,
    samples: int = 1,
    kv_offload: float = 0.0,
    weights_bits: int = 16,
    dequant_path: Literal["engine", "fused", "materialised"] | None = None,
    tokens: str = "full",
    activation_bits: int = 16,
    weights_size_bytes: int | None = None,
    tower: bool = True,
    state_slots: int | None = None,
    state_share: float | None = None,
    cuda_graphs: bool = True,
    gpu_layers: int | None = None,
    cpu_moe_layers: int = 0,
    speculative_config: str | None = None,
    cpu_offload_gib: float = 0.0,
    prompt_chunk_tokens: int = 1,
    rounds: int | None = None,
    kv_cache: bool = True,
    cached_input_discount: float | None = None,
    memory: Literal["server", "paper"] | None = None,
    kv_cache_memory_bytes: int | None = None,
    free_memory_bytes: int | None = None,
    max_total_tokens: int | None = None,
    swa_full_tokens_ratio: float | None = None,
    cuda_graph_max_bs: int | None = None,
    tp: int = 1,
    pp: int = 1,
    pp_batches: int | None = None,
    ep: int = 1,
    expert_skew: float = 0.0,
    dp_attention: bool = False,
    dcp: int = 1,
    implementation: str | None = None,
    strict_kernels: bool = False,
) -> Recommendation:
    """Recommend what to run for a load: devices, engine, KV format and layout, and how many servers.

    Searches every device with every engine, KV format that the engine runs there, and layout over 1, 2, 4, 8 devices
    and whole nodes, each in as many servers as hold the load within the limits at the upper end of their intervals. Of
    a rate or a number of requests, settings of engines are tried too, where these save servers.
    The load is a rate, a number of requests at all times, sessions of agents, or a trace; without one, as much as the
    devices hold (8xh200). What agents, or a trace that names its blocks, find of their prompts is that of each server's
    pool.

    model: Model name, .toml file or config.json.
    devices: Devices to choose from; with a number, 8xh200, no more than so many; default: all that
        --cloud lists.
    rate: Requests a second, which come at random.
    requests: Requests at all times, in place of a rate.
    trace: Requests as in a trace: its lengths, its rate or --rate, and what prompts share where a
        .jsonl file names their blocks.
    output_tokens: Output tokens of a request; default: 1,024, of a turn of --sessions 256.
    start: A server that runs today on the first device, as it is started, or its start-up log: each
        difference from the best, and its gain.
    objective: What must be best.
    budget: Most USD an hour.
    max_drop: No KV format whose scores may drop by more, as published; default: none that may drop by
        more than 12 %. Formats without scores of long tasks are tried only where --quantizers names
        them.
    engines: Engines to choose from; default: vllm, sglang, trtllm.
    quantizers: KV quantizers to choose from, fp8/int4 for keys and values; default: fp16 and all that
        the engine runs there.
    cloud: List prices of this cloud, by whole instance; default: the prices of device files.
    price: A price of your own, USD an hour of a device.
    most: Devices of one server at most; default: 16.
    any_size: Try other sizes than 1, 2, 4, 8 and whole nodes of 8 too.
    workload: Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`.
    sessions: Agents at a time.
    turns: Turns of a session, which a new one follows.
    growth: Tokens that a turn adds to the context, its answer included.
    think: Time between an answer and the next turn, mean.
    shared: Tokens that all sessions begin with: system prompt and tools.
    host_cache: Host memory for blocks that the device gives up, for each device; default: none.
    host_link: Bandwidth from host memory to a device, one direction; with --host-cache.
    host_start: Time before a load from host memory begins; default: none.
    host_overlap: Load beside the step that computes the rest, layer by layer, or before it.
    host_format: Format of blocks in host memory, where it is another than the device's.
    max_tpot: Most time per token of a user.
    max_ttft: Most time to the first token.
    bits: Nominal outlier and sink counts, or those that the measured data had.
    measurements: measurement.json of `dse measure` or `dse quantize`; default: of the sample of
        SmolLM2-135M that ships.
    Further parameters are the fields of `Workload`, in place of one.

    Returns: The deployments that hold the load within the limits.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> found = dse.recommend(model="qwen3-32b", devices=["h100", "l40s"], rate=2, max_tpot="30 ms")
    >>> found.best["device"], found.best["n_servers"]
    ('H100', 1)
    """

def report(
    out: str = "report",
    *,
    preset: Literal["today", "oaken"] = "today",
    devices: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    quantizers: Sequence[str] | None = None,
    batches: Sequence[int] | None = None,
    tokens: Sequence[str] | None = None,
    workload: Workload | None = None,
    bits: Literal["closed", "measured"] = "closed",
    measurements: str | None = None,
    input_tokens: int = 1024,
    output_tokens: int = 1024,
    tp: int = 1,
    pp: int = 1,
    pp_batches: int | None = None,
    ep: int = 1,
    expert_skew: float = 0.0,
    dp_attention: bool = False,
    dcp: int = 1,
    model_kind: Literal["auto", "ideal", "calibrated"] = "auto",
    stack: str | None = None,
    implementation: str | None = None,
    strict_kernels: bool = False,
    other_software: bool = False,
) -> str:
    """Write the throughput-versus-capacity report: one HTML page, the table behind it, every figure.

    out: Directory to write into.
    preset: Where no device is named: models and GPUs of today, or the systems and models of Oaken's
        Figure 11.
    devices: Devices (names or files); default: the preset's.
    models: Models (names or files); default: the preset's.
    quantizers: KV quantizers; default: those each device is evaluated with.
    batches: Batch sizes; default: 16,32,64,128,256.
    tokens: Token policies of `fewer tokens against fewer bits` (`dse list tokens`).
    workload: Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`.
    bits: Nominal outlier and sink counts, or those that the measured data had.
    measurements: measurement.json of `dse measure` or `dse quantize`; default: of the sample of
        SmolLM2-135M that ships.
    Further parameters are the fields of `Workload`, in place of one.

    Returns: The path of the page.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.
    """

def report_table(
    name: str,
    *,
    devices: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    quantizers: Sequence[str] | None = None,
    batches: Sequence[int] | None = None,
    tokens: Sequence[str] | None = None,
    workload: Workload | None = None,
    bits: Literal["closed", "measured"] = "closed",
    measurements: str | None = None,
    input_tokens: int = 1024,
    output_tokens: int = 1024,
    tp: int = 1,
    pp: int = 1,
    pp_batches: int | None = None,
    ep: int = 1,
    expert_skew: float = 0.0,
    dp_attention: bool = False,
    dcp: int = 1,
    model_kind: Literal["auto", "ideal", "calibrated"] = "auto",
    stack: str | None = None,
    implementation: str | None = None,
    strict_kernels: bool = False,
    other_software: bool = False,
) -> pd.DataFrame:
    """Compute one table of the report by its name, such as "results" or "roofline"; a wrong one is answered with all.

    By default of the systems and models of the Oaken paper.

    name: The table's name.
    devices: Devices (names or files); default: the preset's.
    models: Models (names or files); default: the preset's.
    quantizers: KV quantizers; default: those each device is evaluated with.
    batches: Batch sizes; default: 16,32,64,128,256.
    tokens: Token policies of `fewer tokens against fewer bits` (`dse list tokens`).
    workload: Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`.
    bits: Nominal outlier and sink counts, or those that the measured data had.
    measurements: measurement.json of `dse measure` or `dse quantize`; default: of the sample of
        SmolLM2-135M that ships.
    Further parameters are the fields of `Workload`, in place of one.

    Returns: The table.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> table = dse.report_table("results", devices=["lpu-hbm"], models=["llama2-13b"], batches=[16, 64])
    >>> table["system"].unique().tolist()
    ['LPU-HBM FP16']
    """

def scores(quantizers: Sequence[str] = (), *, model: str | None = None, measured: bool = False) -> Rows:
    """Find published scores of KV formats beside those of 16 bits in the same setup, by family of tasks.

    Of the model where there are some, else of its series, else of other models; the accuracy loss, and beside it the
    rise of perplexity, with a 95 % interval, and "not known" where too little was printed. Short answers hide a drop:
    look at the longest task that you run. Without a format: all that have scores, of the model where one is given. With
    --measured: perplexity, divergence and agreement of SmolLM2-135M with each format in the loop, on four texts, or
    with a token policy such as snapkv:budget=64 behind a prompt of 256.

    quantizers: KV quantizers, or formats by their published names.
    model: A model by name, such as qwen3-30b-a3b.
    measured: What was measured on the sample model instead, by text.

    Returns: The rows, printed as the table.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> dse.scores("fp8", model="llama3.1-8b")[0]["of"]
    'llama3.1-8b'
    """

def sensitivity(
    device: Device,
    model: Model,
    quantizer: Quantizer = "fp16",
    workload: Workload | None = None,
    *,
    against: Quantizer | None = None,
    measure: Literal["throughput", "step", "energy", "cost"] = "throughput",
    key_quantizer: Quantizer | None = None,
    value_quantizer: Quantizer | None = None,
    bits: Literal["closed", "measured"] = "closed",
    measurements: str | None = None,
    batch: int | None = None,
    input_tokens: int = 1024,
    output_tokens: int = 1024,
    admission: Literal["reserve", "paged"] | None = None,
    batching: Literal["static", "continuous", "chunked"] | None = None,
    page_tokens: int = 16,
    prefix_tokens: int = 0,
    samples: int = 1,
    kv_offload: float = 0.0,
    weights_bits: int = 16,
    dequant_path: Literal["engine", "fused", "materialised"] | None = None,
    model_kind: Literal["auto", "ideal", "calibrated"] = "auto",
    stack: str | None = None,
    tokens: str = "full",
    activation_bits: int = 16,
    weights: str | None = None,
    weights_size_bytes: int | None = None,
    tower: bool = True,
    state_type: Literal["auto", "float32", "float16", "bfloat16", "float8", "int8"] = "auto",
    state_slots: int | None = None,
    state_share: float | None = None,
    prefix_cache: Literal["on", "off"] | None = None,
    cuda_graphs: bool = True,
    gpu_layers: int | None = None,
    cpu_moe_layers: int = 0,
    speculative_config: str | None = None,
    cpu_offload_gib: float = 0.0,
    prompt_chunk_tokens: int = 1,
    rounds: int | None = None,
    max_num_seqs: int | None = None,
    kv_cache: bool = True,
    cached_input_discount: float | None = None,
    memory: Literal["server", "paper"] | None = None,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    free_memory_bytes: int | None = None,
    max_model_len: int | None = None,
    prompt_budget_tokens: int | None = None,
    max_total_tokens: int | None = None,
    swa_full_tokens_ratio: float | None = None,
    cuda_graph_max_bs: int | None = None,
    calibrated: str | None = None,
    tp: int = 1,
    pp: int = 1,
    pp_batches: int | None = None,
    ep: int = 1,
    expert_skew: float = 0.0,
    dp_attention: bool = False,
    dcp: int = 1,
    implementation: str | None = None,
    strict_kernels: bool = False,
    other_software: bool = False,
) -> Sensitivity:
    """Halve and double each number of the device, one at a time: bandwidth, capacity, peak FLOP/s, power, price, ...

    The result at both, over that as given. Without --batch as many requests run as fit at each value; kernels keep the
    shares of peak rates that they reach. How sure the numbers are is another question: `dse ask doubt`.

    device: Device name or .toml file.
    model: Model name, .toml file or config.json.
    quantizer: KV quantizer with parameters, e.g. oaken or sinkq:bits=2,group=32, or as engines call it,
        e.g. fp8_e4m3 (`dse list quantizers`), or plan:FILE.toml.
    workload: Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`.
    against: A second quantizer on the same device: does the better one change?
    measure: The result.
    key_quantizer: Quantizer of the keys, if different.
    value_quantizer: Quantizer of the values, if different.
    bits: Nominal outlier and sink counts, or those that the measured data had.
    measurements: measurement.json of `dse measure` or `dse quantize`; default: of the sample of
        SmolLM2-135M that ships.
    Further parameters are the fields of `Workload`, in place of one.

    Returns: The result at half and at twice each number.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> found = dse.sensitivity("a100-80gb", "llama2-13b", "fp16", admission="paged")
    >>> [effect.number.name for effect in found.effects[:2]]
    ['memory_bandwidth', 'memory_capacity']
    """

def simulate(
    device: Device,
    model: Model,
    quantizer: Quantizer = "fp16",
    workload: Workload | None = None,
    *,
    trace: str | Path | None = None,
    n_prefixes: int | None = None,
    rate: float | str | None = None,
    n_requests: int | None = None,
    n_servers: int = 1,
    seed: int = 1,
    key_quantizer: Quantizer | None = None,
    value_quantizer: Quantizer | None = None,
    bits: Literal["closed", "measured"] = "closed",
    measurements: str | None = None,
    host_cache: int | None = None,
    host_link: str | None = None,
    host_start: str | None = None,
    host_overlap: Literal["layers", "none"] = "layers",
    host_format: Quantizer | None = None,
    batch: int | None = None,
    input_tokens: int = 1024,
    output_tokens: int = 1024,
    admission: Literal["reserve", "paged"] | None = None,
    batching: Literal["static", "continuous", "chunked"] | None = None,
    page_tokens: int = 16,
    prefix_tokens: int = 0,
    samples: int = 1,
    kv_offload: float = 0.0,
    weights_bits: int = 16,
    dequant_path: Literal["engine", "fused", "materialised"] | None = None,
    model_kind: Literal["auto", "ideal", "calibrated"] = "auto",
    stack: str | None = None,
    tokens: str = "full",
    activation_bits: int = 16,
    weights: str | None = None,
    weights_size_bytes: int | None = None,
    tower: bool = True,
    state_type: Literal["auto", "float32", "float16", "bfloat16", "float8", "int8"] = "auto",
    state_slots: int | None = None,
    state_share: float | None = None,
    prefix_cache: Literal["on", "off"] | None = None,
    cuda_graphs: bool = True,
    gpu_layers: int | None = None,
    cpu_moe_layers: int = 0,
    speculative_config: str | None = None,
    cpu_offload_gib: float = 0.0,
    prompt_chunk_tokens: int = 1,
    rounds: int | None = None,
    max_num_seqs: int | None = None,
    kv_cache: bool = True,
    cached_input_discount: float | None = None,
    memory: Literal["server", "paper"] | None = None,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    free_memory_bytes: int | None = None,
    max_model_len: int | None = None,
    prompt_budget_tokens: int | None = None,
    max_total_tokens: int | None = None,
    swa_full_tokens_ratio: float | None = None,
    cuda_graph_max_bs: int | None = None,
    calibrated: str | None = None,
    tp: int = 1,
    pp: int = 1,
    pp_batches: int | None = None,
    ep: int = 1,
    expert_skew: float = 0.0,
    dp_attention: bool = False,
    dcp: int = 1,
    implementation: str | None = None,
    strict_kernels: bool = False,
    other_software: bool = False,
) -> SimulatedRun:
    """Serve requests step by step, seeded: throughput, TTFT, TPOT, queueing, memory.

    A request is admitted in order of arrival where a place and memory for its prompt are free; paged memory that runs
    out sends the youngest back. Beside it stands the steady state in closed form, and the rate that it can hold.

    The first token is known when the prompt is computed. Arrivals that are drawn are scaled to the rate asked for.

    Where prompts begin alike (--prefix, or a .jsonl trace that names their blocks), what they share is kept in a radix
    tree, as vLLM and SGLang do: it says what is found, and what that brings against keeping nothing.

    device: Device name or .toml file.
    model: Model name, .toml file or config.json.
    quantizer: KV quantizer with parameters, e.g. oaken or sinkq:bits=2,group=32, or as engines call it,
        e.g. fp8_e4m3 (`dse list quantizers`), or plan:FILE.toml.
    workload: Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`.
    trace: Whose lengths (and arrivals); default: all alike.
    n_prefixes: How many texts of --prefix tokens there are: each prompt begins with one of them;
        default: 1.
    rate: Requests per second (Poisson), a share of the rate that holds (70%), the trace's own arrivals
        (a shipped trace's: gaps drawn from its quantiles), or all at once; default: as the trace, all
        at once without one.
    n_requests: How many; default: 10,000, or all of a FILE.
    n_servers: Serve what one of N servers gets from a router by prefix: requests that begin alike come
        to the same one; --rate and --requests are of all servers.
    seed: Of lengths and arrivals.
    key_quantizer: Quantizer of the keys, if different.
    value_quantizer: Quantizer of the values, if different.
    bits: Nominal outlier and sink counts, or those that the measured data had.
    measurements: measurement.json of `dse measure` or `dse quantize`; default: of the sample of
        SmolLM2-135M that ships.
    host_cache: Host memory for blocks that the device gives up, for each device; default: none.
    host_link: Bandwidth from host memory to a device, one direction; with --host-cache.
    host_start: Time before a load from host memory begins; default: none.
    host_overlap: Load beside the step that computes the rest, layer by layer, or before it.
    host_format: Format of blocks in host memory, where it is another than the device's.
    Further parameters are the fields of `Workload`, in place of one.

    Returns: Throughput, waits, queueing and memory of the run: what `dse simulate --json` prints, in SI base units.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> found = dse.simulate("h200", "qwen3-32b", "fp8", trace="azure-conv", rate="50%", n_requests=200)
    >>> found["n_requests"], found["ttft_s"]["p50"] < found["ttft_s"]["p99"]
    (200, True)
    """

def sweep(
    axes: Mapping[str, Any] | str | Path | None = None,
    out: str | Path | None = None,
    *,
    threads: int | None = None,
    keep: Literal["all", "front"] = "all",
    maximize: Sequence[str] = (),
    minimize: Sequence[str] = (),
    by: Sequence[str] = (),
    at_most: Sequence[str] = (),
    at_least: Sequence[str] = (),
    drop_missing: bool = False,
    other_software: bool = False,
    scheduler: str | None = None,
    insecure_scheduler: bool = False,
    limits: bool = True,
    max_points: int | None = None,
) -> pd.DataFrame | StoredSweep:
    """Evaluate all points of the sweep in FILE (TOML; notebooks/sweep.toml is an example) into DIR.

    Stop it at any time, by Ctrl-C, a kill or a power cut: the same command goes on where it stopped, and the files are
    the same, byte for byte. `dse pareto DIR` finds the best designs in them. `--keep front --maximize A --minimize B`
    stores these alone, for sweeps of which the rows would not fit.

    axes: Names with values or ranges, a whole specification with "axes", "where" and "keep", or its
        file.
    out: Directory of the result; one that was begun by this sweep is finished.
    threads: Threads; default: one a core. The files do not depend on it.
    keep: Rows that are stored: all, or only the designs that no other beats.
    maximize: With --keep front: columns of which more is better.
    minimize: With --keep front: columns of which less is better.
    by: With --keep front: a front for each value of these columns.
    at_most: With --keep front: only designs with at most N in C.
    at_least: With --keep front: only designs with at least N in C.
    drop_missing: With --keep front: leave out designs whose objectives are unknown.
    other_software: Let designs compete that the device's software does not run, as if other software
        ran them.
    scheduler: Run on a Dask cluster: tcp://HOST:PORT, tls://HOST:PORT, or local:WORKERS to start one
        here.
    insecure_scheduler: Allow tcp:// to another machine, on a network you trust.
    limits: False: start whatever the number of points and the disk.
    max_points: Points of a table at most; default: 1,000,000.

    Returns: A table of the results; with `out` a handle on the Parquet files, which can be resumed.
    Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed.

    >>> table = dse.sweep({"device": "h100", "model": "llama3.1-8b", "quantizer": ["fp16", "fp8"], "batch": [1, 64]})
    >>> table.shape[0]
    4
    """
