"""Claims of the textbook section "KV Cache & Memory Optimization"."""

from functools import cache
from typing import Any

from dse.core import units
from dse.model import engine
from dse.model.formulas import attention, kv_cache, linear, serving, weights
from dse.model.kv_layout import Same
from dse.model.point import Point
from dse.serving import simulator, trace_tables
from dse.serving.steady_state import Scheduler, steady
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.workload import Workload
from dse.validate.claims.core import Modeled, Relation, claim, family
from dse.validate.claims.designs import (
    KINDS,
    PAPER,
    build,
    build_model,
    operations,
    results_at,
    sequence_bits,
    with_kv_heads,
)

#: the textbook's round 70B model
N_PARAMETERS_70B = 70 * 10**9
#: Section 5: requests, shared and own tokens
N_REQUESTS, PREFIX_TOKENS, OWN_TOKENS = 100, 2000, 500
#: PagedAttention example: slots reserved a request, sequences before and after
RESERVED_TOKENS, N_BEFORE, N_AFTER = 8192, 24, 58
#: PagedAttention blocks (section 3)
BLOCK_TOKENS = 16
MS_PER_S = 1000

KV_TABLE = {
    f"text-kv-{model}-s{n_tokens}-b{batch}": (model, n_tokens, batch)
    for model in ("llama3.1-8b", "llama3.1-70b", "llama3.1-405b")
    for n_tokens, batch in ((4096, 1), (8192, 1), (8192, 16), (8192, 64), (32768, 1), (131072, 1))
}


def _kv_bytes(model: str, n_tokens: int, batch: int = 1) -> int:
    """FP16 bytes of a batch of `n_tokens` each, as `dse point` reports them."""
    result = results_at("h200", model, batch=batch, input_tokens=n_tokens - 1, output_tokens=1)
    n_bytes: int = result["kv_bytes"]
    return n_bytes


@family({**KV_TABLE, "text-70b-batch32-8k": ("llama3.1-70b", 8192, 32)})
def kv_gib(model: str, n_tokens: int, batch: int) -> float:
    """KV cache of a batch in GiB."""
    return units.gib(_kv_bytes(model, n_tokens, batch))


@claim("text-selfcheck-70b-32k")
def kv_bytes_70b_32k() -> int:
    """KV cache of one sequence of 32,768 tokens, Llama 3.1 70B."""
    return _kv_bytes("llama3.1-70b", 32768)


def _weight_read_s() -> float:
    n_bytes = weights.weight_bytes(N_PARAMETERS_70B, units.FP16_BITS)
    seconds: float = attention.time_at_rate(n_bytes, catalog.device("h100").memory_bandwidth.si)
    return seconds


def _compute_s() -> float:
    """Compute side of one token's pass: no bytes, so only FLOP count."""
    seconds: float = linear.linear_s(1, N_PARAMETERS_70B, 0, catalog.device("h100").peak_flops.si, 1.0)
    return seconds


@claim("text-weights-read-70b-h100")
def weight_read_ms() -> float:
    """Milliseconds to read 70e9 FP16 parameters on an H100."""
    return _weight_read_s() * MS_PER_S


@claim("text-compute-70b-h100")
def compute_ms() -> float:
    """Milliseconds of one token at peak FLOP/s on an H100."""
    return _compute_s() * MS_PER_S


@claim("text-memory-bound-ratio")
def memory_bound_ratio() -> float:
    """Reading time over computing time."""
    return _weight_read_s() / _compute_s()


@claim("text-decode-intensity")
def decode_intensity() -> float:
    """FLOP over bytes of a batch-1 step's matrix products."""
    model = catalog.model("llama3.1-70b")
    n_bytes = weights.weight_bytes(model.parameters, units.FP16_BITS)
    intensity: float = linear.arithmetic_intensity(float(2 * model.active_parameters), n_bytes)
    return intensity


@claim("text-prealloc-waste")
def prealloc_waste() -> float:
    """Share of a reservation of 8192 tokens that 500 tokens leave unused."""
    kv = build("llama3.1-70b")
    return float(1 - sequence_bits(kv, 500) / sequence_bits(kv, RESERVED_TOKENS))


@claim("text-page-waste")
def page_waste() -> int:
    """Most unused slots over all lengths: one period of the page decides."""
    return max(kv_cache.padding_tokens(n, BLOCK_TOKENS) for n in range(1, BLOCK_TOKENS + 1))


_KV_HEADS = {"MHA": 64, "GQA-8": 8, "GQA-4": 4, "MQA": 1}


@cache
def _kv_heads_gib(n_kv_heads: int) -> float:
    """A request of 4096 tokens on the 70B class with `n_kv_heads` heads, FP16."""
    kv = build_model(with_kv_heads(catalog.model("llama2-70b"), n_kv_heads))
    return units.gib(float(sequence_bits(kv, 4096)) / units.BITS_PER_BYTE)


@family({f"text-attn-{name}-70b-4k": (heads,) for name, heads in _KV_HEADS.items()})
def attention_kind_gib(n_kv_heads: int) -> float:
    """KV cache of a request on the 70B class, in GiB."""
    return _kv_heads_gib(n_kv_heads)


@family({f"text-attn-{name}-saving": (heads,) for name, heads in _KV_HEADS.items()})
def attention_kind_saving(n_kv_heads: int) -> float:
    """64 KV heads over the given number, in bytes."""
    return _kv_heads_gib(_KV_HEADS["MHA"]) / _kv_heads_gib(n_kv_heads)


def _reduction(model: ModelSpec, quantizer: str) -> float:
    """FP16 bits with one KV head per query head over the bits as given."""
    full = build_model(with_kv_heads(model, model.n_q_heads))
    return float(sequence_bits(full, 4096) / sequence_bits(build_model(model, quantizer), 4096))


@family({"text-gqa-32-8": ("fp16",), "text-gqa-fp8-stack": ("fp8",)})
def grouped_query_reduction(quantizer: str) -> float:
    """Llama 3.1 8B: 32 query heads, 8 KV heads."""
    return _reduction(catalog.model("llama3.1-8b"), quantizer)


@claim("text-kv-fp8")
def fp8_reduction() -> float:
    """FP16 bytes over FP8 bytes."""
    return (
        _kv_bytes("llama3.1-8b", 4096)
        / (results_at("h200", "llama3.1-8b", "fp8", input_tokens=4095, output_tokens=1)["kv_bytes"])
    )


@family({"text-prefix-without": (0,), "text-prefix-with": (PREFIX_TOKENS,)})
def stored_tokens(prefix_tokens: int) -> float:
    """Tokens stored for the requests of section 5: their bytes over the bytes of a token."""
    result = results_at(
        "h200",
        "llama3.1-8b",
        batch=N_REQUESTS,
        input_tokens=PREFIX_TOKENS + OWN_TOKENS - 1,
        output_tokens=1,
        prefix_tokens=prefix_tokens,
    )
    tokens: float = result["kv_bytes"] / result["kv_bytes_per_token"]
    return tokens


@claim("text-sliding-window")
def sliding_window() -> Relation:
    """Mistral 7B: window of 4096 tokens in every layer."""
    kv = build("mistral-7b")
    window = kv.groups[0].window_tokens
    lengths = (window, window + 1, 2 * window, 32 * window)
    sizes = [units.gib(float(sequence_bits(kv, n)) / units.BITS_PER_BYTE) for n in lengths]
    below = sequence_bits(kv, window - 1) < sequence_bits(kv, window)
    return Relation(f"{sizes[0]:g} GiB at {window:,} tokens and at all after", holds=below and len(set(sizes)) == 1)


def _eight_a100() -> HardwareSpec:
    device = catalog.device("a100-80gb")
    capacity = device.memory_capacity.model_copy(update={"value": 8 * device.memory_capacity.value})
    return device.model_copy(update={"memory_capacity": capacity})


def _sequences(n_kv_heads: int, n_tokens: int, admission: str) -> int:
    """Sequences of `n_tokens` that the textbook's 70B model leaves room for on eight A100."""
    model = catalog.model("llama3.1-70b").model_copy(update={"dense_parameters": N_PARAMETERS_70B})
    fields: dict[str, Any] = {"model_kind": "ideal", "admission": admission, "page_tokens": BLOCK_TOKENS, **PAPER}
    work = Workload(input_tokens=n_tokens - 1, output_tokens=1, **fields)
    count: int = engine.evaluate(Point(_eight_a100(), build_model(with_kv_heads(model, n_kv_heads)), work))["max_batch"]
    return count


@claim("text-paged-24")
def reserved_sequences() -> Relation:
    """Sequences of 8192 reserved tokens on eight A100, with grouped queries and without."""
    grouped, full = (_sequences(heads, RESERVED_TOKENS, "reserve") for heads in (8, 64))
    return Relation(f"{grouped} with 8 KV heads; {full} with 64", numbers=(grouped, full))


@claim("text-paged-58")
def paging_gain() -> Relation:
    """Gain at the mean length that the published counts imply, against 8192 over that length."""
    mean_tokens = round(RESERVED_TOKENS * N_BEFORE / N_AFTER)
    reserved = _sequences(8, RESERVED_TOKENS, "reserve")
    gain = _sequences(8, mean_tokens, "paged") / reserved
    high, low = (_sequences(8, n, "paged") / reserved for n in (500, 2000))
    context = round(trace_tables.load("azure-conv").moments.mean_decode_context_tokens)
    of_trace = _sequences(8, context, "paged") / reserved
    return Relation(
        f"{gain:.2f} where {mean_tokens:,} tokens are in use; {low:.1f} to {high:.1f} for 2000 to 500 tokens, "
        f"{of_trace:.1f} for the {context:,} of a decode step of Azure's Conversation",
        holds=abs(gain * mean_tokens / RESERVED_TOKENS - 1) < 0.01 and abs(gain - N_AFTER / N_BEFORE) < 0.05,
    )


@claim("text-continuous-batching")
def continuous_gain() -> Modeled:
    """E[largest of B answers] / E[answer] of the Azure traces, mean over both and batches 16 to 128."""
    gains: dict[str, list[float]] = {}
    for name in ("azure-conv", "azure-code"):
        tables = trace_tables.load(name)
        lengths = tables.lengths()
        mean = tables.moments.mean_output_tokens
        gains[name] = [serving.batching_gain(lengths.largest_output(batch), mean) for batch in (16, 32, 64, 128)]
    text = "; ".join(f"{name} {', '.join(f'{gain:.2f}' for gain in series)}" for name, series in gains.items())
    values = [gain for series in gains.values() for gain in series]
    return Modeled(
        sum(values) / len(values),
        each=tuple(values),
        note=f"mean of steps saved at batch 16, 32, 64, 128: {text}; above 10 only where few answers are far longer "
        "than the mean (code, from batch 64); prompts, which both compute, make the gain in time smaller",
    )


#: requests that run at once, at most, where prompts in chunks are compared with whole ones
CHUNKED_BATCH = 64


@claim("text-chunked-prefill")
def chunked_prefill() -> Modeled:
    """P99 between two tokens of an answer, whole prompts over chunks; one model, device and trace, 80 % load."""
    return _chunked_prefill(Same(catalog.device("a100-80gb")))


@cache
def _chunked_prefill(of: Same) -> Modeled:
    device, kv = of.value, build("llama3.1-8b")
    assert isinstance(device, HardwareSpec)
    lower, throughputs, shown = [], [], []
    for kind in ("calibrated", "ideal"):
        work = Workload(batch=CHUNKED_BATCH, admission="paged", **KINDS[kind], **PAPER)
        most_per_s = steady(device, kv, work, trace_tables.load("azure-conv").moments)["requests_per_s"]
        requests = trace_tables.sample("azure-conv", 2000, 0.8 * most_per_s, seed=1)
        times = simulator.tables_for(device, kv, work, requests, 1024, CHUNKED_BATCH)
        whole = simulator.run(device, kv, work, requests, times=times)
        for chunk in (512, 1024):
            parts = simulator.run(device, kv, work, requests, Scheduler("chunked", chunk), times=times)
            lower.append((whole.gap_s(0.99) or 0.0) / (parts.gap_s(0.99) or 1.0))
            throughputs.append(whole.duration_s / parts.duration_s)
        shown.append(f"{lower[-2]:.1f} and {lower[-1]:.1f} ({kind})")
    change = max(abs(ratio - 1) for ratio in throughputs)
    return Modeled(
        max(lower),
        each=tuple(lower),
        note=f"P99 between tokens {' or '.join(shown)} times lower with chunks of 512 and 1024, throughput within "
        f"{change:.1%}: Azure conversations, Llama 3.1 8B, A100-80GB, 80 % load; more with more load or longer "
        "prompts, and the text states neither",
    )


@claim("text-70b-one-a100")
def fits_one_a100() -> bool:
    """Llama 2 70B in FP16 on one A100."""
    feasible: bool = results_at("a100-80gb", "llama2-70b", input_tokens=4095, output_tokens=1)["feasible"]
    return feasible


@claim("text-h100-fp8")
def h100_fp8_tflops() -> float:
    """FP8 peak of the H100 with structured sparsity: twice the dense one of its device file."""
    peak = catalog.device("h100").peak_flops_fp8
    return 2 * peak.si / units.to_base(1, "TFLOP/s") if peak else 0.0


@claim("text-vllm-8b-memory")
def weights_8b_gb() -> float:
    """FP16 weights of Llama 3.1 8B in GB."""
    weight_bytes: int = results_at("h100", "llama3.1-8b")["weight_bytes"]
    return weight_bytes / units.to_base(1, "GB")


@claim("text-70b-int4")
def weights_70b_int4_gb() -> float:
    """70e9 parameters in INT4, in GB."""
    n_bytes: int = weights.weight_bytes(N_PARAMETERS_70B, 4)
    return n_bytes / units.to_base(1, "GB")


@claim("text-prefix-price")
def prefix_price() -> Relation:
    """Price of a request of section 5, 100 tokens out, with cached input tokens at full price, 50 and 90 % cheaper."""
    work: dict[str, Any] = {"batch": N_REQUESTS, "input_tokens": PREFIX_TOKENS + OWN_TOKENS, "output_tokens": 100}

    def price(**fields: Any) -> float:
        usd: float = results_at("a100-80gb", "llama3.1-8b", **work, **fields)["usd_per_request"]
        return usd

    full, half, tenth = (price(prefix_tokens=PREFIX_TOKENS, cached_input_discount=d) for d in (0.0, 0.5, 0.9))
    saved = price(prefix_tokens=PREFIX_TOKENS) / price()
    return Relation(
        f"cached_input_discount 0.5 and 0.9: {half / full:.2f} and {tenth / full:.2f} of the price per request with "
        f"cached tokens at the full price; the device's own cost falls to {saved:.2f} by sharing the prefix",
        # the discount is of the input's price, in proportion
        holds=full > half > tenth and abs((full - tenth) / (full - half) - 0.9 / 0.5) < 1e-9 and saved < 1,
    )


@claim("text-vector-count")
def vectors_gib() -> float:
    """2 x 80 x 16 x 8192 vectors of 128 FP16 channels in GiB: one KV head's."""
    one_head = with_kv_heads(catalog.model("llama3.1-70b"), 1)
    return units.gib(16 * float(sequence_bits(build_model(one_head), 8192)) / units.BITS_PER_BYTE)


#: Example 3: token/s by batch
PROFILE = {1: 105.3, 4: 398.7, 16: 1423.6, 32: 2587.1}


@claim("text-vllm-profile")
def vllm_profile() -> Modeled:
    """vLLM on an A100 80 GB with an FP8 cache, prompts of 11 tokens and 100 generated ones."""
    ratios = []
    for batch, printed in PROFILE.items():
        work = {"batch": batch, "input_tokens": 11, "output_tokens": 100, "memory": None, "admission": "paged"}
        result = results_at("a100-80gb", "llama3.1-8b", "fp8", **work, model_kind="auto", stack="vllm")
        ratios.append(result["throughput_tokens_per_s"] / printed)
    return Modeled(
        sum(ratios) / len(ratios),
        each=tuple(ratios),
        note=f"{', '.join(f'{ratio:.2f}' for ratio in ratios)} at batch 1, 4, 16 and 32: no device, release or length "
        "of prompt is stated",
    )


@claim("text-p99")
def p99_latency() -> Relation:
    """Queueing needs a load, which is not stated."""
    return Relation("not computed: neither rate nor lengths of requests are stated (`dse simulate` takes both)")


@claim("text-prefix-speedup")
def prefix_speedup() -> float:
    """Seconds of the first request over those of each of the next two."""
    return 1.847 / (1.123 / 2)


@claim("text-sparse-compute")
def sparse_compute() -> Modeled:
    """FLOP of a decode step of DeepSeek-V3.2 against DeepSeek-V3, which reads all tokens."""

    def flops(model: str, n_tokens: int) -> float:
        ops = operations("h200:memory_capacity=2 TB", model, input_tokens=n_tokens - 1, output_tokens=1)
        return float(sum(op["flops"] for (phase, name), op in ops.items() if phase == "decode" and name != "all"))

    saved = {n: 1 - flops("deepseek-v3.2", n) / flops("deepseek-v3", n) for n in (16_384, 32_768, 131_072)}
    return Modeled(
        saved[32_768],
        f'at 32,768 tokens; {saved[16_384]:.2f} at 16,384 and {saved[131_072]:.2f} at 131,072: "long contexts" is not '
        "stated as a number",
    )


@claim("text-ttt-2m")
def trained_state() -> Relation:
    """A decode step of one request that reads all of 2M tokens over one with a state of TTT-MLP."""

    def gain(model: str) -> float:
        full, trained = (
            results_at("h100:memory_capacity=8 TB", model, batch=1, input_tokens=2**21, output_tokens=1, tokens=policy)
            for policy in ("full", "constant:ttt=mlp")
        )
        return float(full["decode_step_s"] / trained["decode_step_s"])

    gains = [gain(model) for model in ("llama3.2-3b", "llama3.1-8b", "llama2-7b")]
    return Relation(
        f"{gains[0]:.0f} times with Llama 3.2 3B, {gains[1]:.0f} with Llama 3.1 8B, {gains[2]:.0f} with Llama 2 7B, "
        "reading and weights alone: neither the model nor the state that is trained, nor what training it costs, is "
        "stated"
    )


@family({f"text-7b-{name}": (bits,) for name, bits in (("fp16", 16), ("int8", 8), ("int4", 4))})
def weights_7b_gb(bits: int) -> float:
    """7e9 parameters in GB."""
    return weights.weight_bytes(7 * 10**9, bits) / units.to_base(1, "GB")
