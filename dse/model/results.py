"""What a design point results in: each result declared once, with what tables, texts, figures and sweeps say of it."""

from dataclasses import dataclass

from dse.core import units
from dse.specs import workload

#: kinds of a result: a name, yes or no, a whole number, a number, several names
NAME, FLAG, WHOLE, NUMBER, NAMES = "name", "flag", "whole", "number", "names"

# numbers of a device that results read: what decides how many requests fit, and so how many run at once, and the rest
_PLAIN = ("memory_capacity", "usable_frac", "runtime_overhead", "kv_page")
_MEMORY = ("reported_memory", "server_memory", *_PLAIN)
_OF_POOL = _MEMORY[:-1]
_OF_UNUSED = ("memory_capacity", "reported_memory", "server_memory", "usable_frac", "runtime_overhead")
_BANDWIDTH, _STACK = ("memory_bandwidth", "peak_rates"), ("stacks_of", "nearest_kernels")
_NARROW = ("peak_flops_fp4", "peak_flops_fp8", "peak_ops_int8")
_FORMATS = (*_NARROW, "eight_bit_kernels", "nearest_format")
_HOST = ("nearest_release",)
_LINEAR = (*_MEMORY, *_BANDWIDTH, *_STACK, *_FORMATS, "peak_flops", "token_cores")
_ATTENTION = (*_MEMORY, *_BANDWIDTH, "pim_bandwidth", *_STACK, "peak_flops", "n_cores", "token_cores", "token_policy")
_KERNELS = ("implementation", "no_kernel")
_RATES = ("engine_rate", "fused_rate", *_KERNELS)
#: writing what is packed crosses the bus of a memory that computes; reading it does not
_WRITING = (*_MEMORY, *_BANDWIDTH, *_STACK, *_RATES, "kernel_launch", "n_cores", "token_cores", "token_policy")
_PACKING = (*_WRITING, "pim_bandwidth")
_STEP = tuple(dict.fromkeys((*_LINEAR, *_PACKING, *_HOST)))
_OF_PROMPTS = ("sparse_prompts",)
_PROMPT = (
    *(name for name in _STEP if name not in ("token_cores", "pim_bandwidth")),
    "link_bandwidth",
    "exchanges",
    *_OF_PROMPTS,
)
_LINKS = (*_MEMORY, "link_bandwidth", "exchanges")
#: everything that a time from first prompt to last token depends on
_ALL = (*_STEP, "core_clock", "kv_burst", "link_bandwidth", "exchanges", *_OF_PROMPTS)
#: of bytes and of operations of fewer bits
_BYTES = (
    "energy_per_byte",
    "energy_per_byte_fp8",
    "energy_per_byte_fp4",
    "energy_per_kv_byte",
    "energy_per_kv_byte_fp8",
)
_FLOPS = ("energy_per_flop", "energy_per_flop_fp8", "energy_per_flop_fp4")
_BUSY = (*_MEMORY, *_BANDWIDTH, *_STACK, *_RATES, "n_cores", "token_policy")


@dataclass(frozen=True)
class Result:
    """One result. `title`: the words on an axis or above a column; no two are the same."""

    name: str
    #: base unit; "" for names and yes/no
    unit: str
    kind: str
    title: str
    #: section of a point's text, place in it, and the words there
    line: tuple[str, int, str] | None = None
    #: unit that figures show it in, where not that of its base unit
    shown: str = ""
    #: numbers of a device that its formulas read; none: it depends on the model and the workload alone
    reads: tuple[str, ...] = ()


def _asked(name: str) -> Result:
    """The row of a field of a workload."""
    asked = workload.ASKED[name]
    kinds = {workload.WHOLE: WHOLE, workload.SHARE: NUMBER, workload.SWITCH: FLAG}
    kind = kinds.get(asked.kind, WHOLE if asked.unit else NAME)
    return Result(name, asked.unit, kind, asked.title, shown="%" if asked.kind == workload.SHARE else "")


_r = Result
#: fields of a workload that stand before the others: they say what times mean
_FIRST = ("model_kind", "stack", "tokens")
#: fields that results show as they come out, as `auto` or nothing leaves them to the device, and the rule
_KIND_RULE = "as given; auto: calibrated where the device has kernels of a stack, else ideal"
_SERVER_RULE = "as given, else the server's; none as papers count memory"
CHOSEN = {
    "model_kind": _KIND_RULE,
    "stack": _KIND_RULE,
    "implementation": "as given, else the device's, else what its stack has; generic: no kernel is known",
    "memory": "as given, else server where the device names reported_memory and a KV cache is kept, paper elsewhere",
    "gpu_memory_utilization": _SERVER_RULE,
    "prompt_budget_tokens": _SERVER_RULE,
}
#: lines of a point's text about what a server keeps
OF_SERVER = ("activation_bytes", "runtime_bytes", "free_bytes", "kv_pool_tokens", "unused_bytes")
#: every result by name, in the order of tables
RESULTS: dict[str, Result] = {
    result.name: result
    for result in (
        _r("device", "", NAME, "device"),
        _r("model", "", NAME, "model"),
        _r("quantizer", "", NAME, "quantizer"),
        _r("key_quantizer", "", NAME, "quantizer of keys"),
        _r("value_quantizer", "", NAME, "quantizer of values"),
        *(_asked(name) for name in _FIRST),
        *(_asked(name) for name, asked in workload.ASKED.items() if asked.title and name not in _FIRST),
        _r("n_devices", "device", WHOLE, "devices"),
        _r("key_dequant_path", "", NAME, "unpacking of keys"),
        _r("value_dequant_path", "", NAME, "unpacking of values"),
        _r("stored_tokens", "token", NUMBER, "stored tokens"),
        _r("read_tokens", "token", NUMBER, "tokens read"),
        _r(
            "effective_bits",
            "bit",
            NUMBER,
            "effective bits",
            line=("Bits per element", 1, "effective (as the paper counts)"),
        ),
        _r("stored_bits", "bit", NUMBER, "stored bits", line=("Bits per element", 2, "stored"), reads=("kv_page",)),
        _r("page_tail_bits", "bit", NUMBER, "bits left unused in pages", reads=("kv_page",)),
        _r("write_amplification", "1", NUMBER, "written over packed", reads=("kv_burst",)),
        _r("bits_kind", "", NAME, "bits from"),
        _r("measured_bits", "bit", NUMBER, "measured bits"),
        _r("mse", "1", NUMBER, "mean squared error"),
        _r("sqnr_db", "dB", NUMBER, "signal to noise"),
        _r("measured_error", "1", NUMBER, "error of the attention output", shown="%"),
        _r("measured_on", "", NAME, "measured on"),
        _r(
            "kv_bytes_per_token",
            "B/token",
            NUMBER,
            "KV cache of a token",
            line=("Memory", 8, "KV cache per token of one request"),
            reads=("kv_page",),
        ),
        _r(
            "kv_bytes_per_token_beyond_windows",
            "B/token",
            NUMBER,
            "KV cache of a token beyond windows",
            line=("Memory", 9, "  beyond windows"),
            reads=("kv_page",),
        ),
        _r(
            "state_bytes",
            "B",
            NUMBER,
            "constant states of a request",
            line=("Memory", 10, "constant states of one request"),
        ),
        _r(
            "kv_bytes",
            "B",
            WHOLE,
            "KV cache of the batch",
            line=("Memory", 7, "KV cache, whole batch at final length"),
            reads=("kv_page",),
        ),
        _r("peak_kv_bytes_per_sequence", "B", WHOLE, "peak KV cache of a sequence", reads=("kv_page",)),
        _r("weight_bytes", "B", WHOLE, "weights", line=("Memory", 1, "weights")),
        _r("activation_bytes", "B", WHOLE, "activations", line=("Memory", 2, "activations of the prompt budget")),
        _r("workspace_bytes", "B", WHOLE, "workspace"),
        _r(
            "runtime_bytes",
            "B",
            WHOLE,
            "graphs and buffers",
            line=("Memory", 3, "graphs, context and buffers"),
            reads=("runtime_overhead", "server_memory"),
        ),
        _r(
            "capacity_bytes",
            "B",
            WHOLE,
            "device memory",
            line=("Memory", 11, "device memory"),
            reads=("memory_capacity", "reported_memory"),
        ),
        _r(
            "free_bytes",
            "B",
            WHOLE,
            "room for keys and values",
            line=("Memory", 4, "pool of keys and values"),
            reads=_OF_POOL,
        ),
        _r(
            "kv_pool_tokens", "token", WHOLE, "KV tokens of the pool", line=("Memory", 5, "  in tokens"), reads=_OF_POOL
        ),
        _r(
            "unused_bytes",
            "B",
            WHOLE,
            "memory kept from use",
            line=("Memory", 6, "kept from the server"),
            reads=_OF_UNUSED,
        ),
        _r(
            "min_capacity_bytes",
            "B",
            WHOLE,
            "smallest memory for the batch",
            line=("Memory", 12, "smallest memory to run the whole batch"),
            reads=("server_memory", "usable_frac", "runtime_overhead", "kv_page"),
        ),
        _r("feasible", "", FLAG, "one request fits", reads=_MEMORY),
        _r("infeasible_reason", "", NAME, "why none fits", reads=_MEMORY),
        _r("fits_whole_batch", "", FLAG, "whole batch fits", reads=_MEMORY),
        _r("max_batch", "sequence", WHOLE, "largest batch", line=("Memory", 13, "largest batch"), reads=_MEMORY),
        _r(
            "max_context_tokens",
            "token",
            WHOLE,
            "longest context",
            line=("Memory", 14, "longest context, all requests at once"),
            reads=_MEMORY,
        ),
        _r("running_batch", "sequence", WHOLE, "running at once", line=("Time", 1, "running batch"), reads=_MEMORY),
        _r("n_waves", "1", WHOLE, "waves", line=("Time", 2, "waves"), reads=_MEMORY),
        _r("linear_s", "s", NUMBER, "linear layers", line=("Time", 3, "linear layers"), reads=_LINEAR),
        _r("attention_s", "s", NUMBER, "attention", line=("Time", 4, "attention"), reads=_ATTENTION),
        _r(
            "quantize_s",
            "s",
            NUMBER,
            "packing, exposed",
            line=("Time", 5, "quantize, exposed"),
            reads=(*_WRITING, "kv_burst"),
        ),
        _r(
            "dequantize_s",
            "s",
            NUMBER,
            "unpacking, exposed",
            line=("Time", 6, "dequantize, exposed"),
            reads=(*_PACKING, "core_clock", "peak_flops"),
        ),
        _r(
            "collective_s",
            "s",
            NUMBER,
            "exchange between devices",
            line=("Time", 7, "exchange between devices"),
            reads=_LINKS,
        ),
        _r(
            "host_s",
            "s",
            NUMBER,
            "host and small kernels",
            line=("Time", 8, "host and small kernels"),
            reads=(*_MEMORY, "stacks_of", *_HOST),
        ),
        # where it is not 0 the energy was measured: only how many requests run can rest on what is assumed
        _r(
            "power_s",
            "s",
            NUMBER,
            "added by the board's power limit",
            line=("Time", 9, "board's power limit"),
            reads=_MEMORY,
        ),
        _r("quantize_busy_s", "s", NUMBER, "packing", reads=(*_BUSY, "kv_burst")),
        _r("dequantize_busy_s", "s", NUMBER, "unpacking", reads=(*_BUSY, "core_clock")),
        _r("busy_cores", "1", WHOLE, "busy cores", reads=(*_PLAIN, "token_cores")),
        _r(
            "decode_step_s",
            "s",
            NUMBER,
            "decode step",
            line=("Time", 10, "decode step (mean): time per token"),
            reads=_ALL,
        ),
        _r("prefill_s", "s", NUMBER, "prompt of a running batch", line=("Time", 11, "prefill"), reads=_PROMPT),
        _r("total_s", "s", NUMBER, "total time", line=("Time", 12, "total, all waves"), shown="s", reads=_ALL),
        _r(
            "ttft_s", "s", NUMBER, "time to first token", line=("Time", 13, "time to first token, no queue"), reads=_ALL
        ),
        _r("tpot_s", "s", NUMBER, "time per output token", reads=_ALL),
        _r(
            "steady_ttft_s",
            "s",
            NUMBER,
            "time to first token, steady server",
            line=("Time", 14, "steady server: time to first token"),
            reads=_ALL,
        ),
        _r(
            "steady_tpot_s",
            "s",
            NUMBER,
            "time per output token, steady server",
            line=("Time", 15, "steady server: time per output token"),
            reads=_ALL,
        ),
        _r("decoding_requests", "sequence", NUMBER, "requests that decode", reads=_ALL),
        _r(
            "throughput_tokens_per_s", "token/s", NUMBER, "throughput", line=("Throughput", 1, "throughput"), reads=_ALL
        ),
        _r("bound", "", NAME, "bound by", reads=_ALL),
        _r("linear_bound", "", NAME, "linear layers bound by", reads=_LINEAR),
        _r("attention_bound", "", NAME, "attention bound by", reads=_ATTENTION),
        _r("compute_utilisation", "1", NUMBER, "share of peak FLOP/s", shown="%", reads=_ALL),
        _r("bandwidth_utilisation", "1", NUMBER, "share of peak bandwidth", shown="%", reads=_ALL),
        _r("prefill_compute_utilisation", "1", NUMBER, "share of peak FLOP/s, prompt", shown="%", reads=_PROMPT),
        _r("prefill_bandwidth_utilisation", "1", NUMBER, "share of peak bandwidth, prompt", shown="%", reads=_PROMPT),
        _r(
            "joules_per_token",
            "J/token",
            NUMBER,
            "energy",
            line=("Throughput", 2, "energy, board power"),
            reads=(*_ALL, "board_power"),
        ),
        _r(
            "joules_per_token_by_parts",
            "J/token",
            NUMBER,
            "energy by parts",
            line=("Throughput", 3, "energy by bytes, operations, idling"),
            reads=(*_ALL, *_BYTES, *_FLOPS, "idle_power"),
        ),
        _r(
            "memory_joules_per_token",
            "J/token",
            NUMBER,
            "energy of reads and writes",
            line=("Throughput", 4, "  bytes read and written"),
            reads=(*_MEMORY, *_BYTES, "kv_burst"),
        ),
        _r(
            "compute_joules_per_token",
            "J/token",
            NUMBER,
            "energy of operations",
            line=("Throughput", 5, "  operations"),
            reads=(*_MEMORY, *_FLOPS, "peak_flops", *_NARROW),
        ),
        _r(
            "idle_joules_per_token",
            "J/token",
            NUMBER,
            "energy of idling",
            line=("Throughput", 6, "  idling"),
            reads=(*_ALL, "idle_power"),
        ),
        _r(
            "usd_per_million_tokens",
            "USD per million tokens",
            NUMBER,
            "cost of a million tokens",
            line=("Throughput", 7, "price of output"),
            reads=(*_ALL, "usd_per_hour"),
        ),
        _r(
            "usd_per_request",
            "USD per request",
            NUMBER,
            "cost of a request",
            line=("Throughput", 8, "price of a request"),
            reads=(*_ALL, "usd_per_hour"),
        ),
        _r(
            "effective_bandwidth_bytes_per_s",
            "B/s",
            NUMBER,
            "effective bandwidth",
            line=("Throughput", 9, "effective bandwidth"),
            reads=("memory_bandwidth",),
        ),
        _r(
            "effective_capacity_bytes",
            "B",
            NUMBER,
            "effective capacity",
            line=("Throughput", 10, "effective capacity, by the data sheet"),
            reads=("memory_capacity",),
        ),
        _r("byte_energy_low", "1", NUMBER, "measured over predicted energy of bytes, low", reads=("energy_per_byte",)),
        _r(
            "byte_energy_high", "1", NUMBER, "measured over predicted energy of bytes, high", reads=("energy_per_byte",)
        ),
        _r(
            "flop_energy_low",
            "1",
            NUMBER,
            "measured over predicted energy of operations, low",
            reads=("energy_per_flop",),
        ),
        _r(
            "flop_energy_high",
            "1",
            NUMBER,
            "measured over predicted energy of operations, high",
            reads=("energy_per_flop",),
        ),
        _r("token_time_low", "1", NUMBER, "measured over predicted time per token, low", reads=_STACK),
        _r("token_time_high", "1", NUMBER, "measured over predicted time per token, high", reads=_STACK),
        _r("first_time_low", "1", NUMBER, "measured over predicted time of prompts, low", reads=_STACK),
        _r("first_time_high", "1", NUMBER, "measured over predicted time of prompts, high", reads=_STACK),
        _r("unpack_rate_low", "1", NUMBER, "unpacking rate over what is taken, low", reads=_KERNELS),
        _r("unpack_rate_high", "1", NUMBER, "unpacking rate over what is taken, high", reads=_KERNELS),
        _r("assumptions", "", NAMES, "assumed numbers"),
    )
}

#: results that are as they were asked for
GIVEN = frozenset(
    (
        "device",
        "model",
        "quantizer",
        "key_quantizer",
        "value_quantizer",
        *(name for name in RESULTS if name in workload.ASKED and name not in CHOSEN),
    )
)
#: unit by name
RESULT_UNITS = {name: result.unit for name, result in RESULTS.items()}
#: whole numbers (missing where nothing fits or nothing limits), and yes/no
INTEGERS = frozenset(name for name, result in RESULTS.items() if result.kind == WHOLE)
FLAGS = frozenset(name for name, result in RESULTS.items() if result.kind == FLAG)
#: numbers of a device that figures vary, as people call them
DEVICE_TITLES = {
    "memory_bandwidth": "memory bandwidth",
    "memory_capacity": "memory capacity",
    "peak_flops": "peak FP16 rate",
    "board_power": "board power",
    "usd_per_hour": "rent of the device",
}
#: sections of a point's text
SECTIONS = ("Memory", "Bits per element", "Time", "Throughput")
#: base unit -> the unit that figures show
_SHOWN = {
    "B": "GB",
    "B/s": "TB/s",
    "s": "ms",
    "FLOP/s": "TFLOP/s",
    "1": "",
    "token": "tokens",
    "sequence": "sequences",
    "bit": "bit",
}


def title(name: str) -> str:
    """What people call a column; a name that is not known stays as it is."""
    return RESULTS[name].title if name in RESULTS else DEVICE_TITLES.get(name, name)


def shown_unit(name: str, unit: str) -> tuple[str, float]:
    """The unit that figures show a column of base unit `unit` in, and its size in base units; "" for a bare number."""
    own = RESULTS[name].shown if name in RESULTS else ""
    shown = (own or _SHOWN.get(unit, unit)) if unit else ""
    return shown, float(units.UNITS.get(shown, ("", 1))[1])


def section(name: str) -> list[tuple[str, str]]:
    """The lines of a section of a point's text: (words, result)."""
    found = sorted((r.line[1], r.line[2], r.name) for r in RESULTS.values() if r.line and r.line[0] == name)
    return [(words, result) for _, words, result in found]
