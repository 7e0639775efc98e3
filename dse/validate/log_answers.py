"""Answers to a log: why a server does not start and with which options it would, what binds one that runs and what to
try. Options are spelled as the engine takes them; a change counts where our own memory, with the pool that the log
prints, has room for one request of the longest context.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dse import quantizers
from dse.core.errors import DseError
from dse.core.units import GIB
from dse.model import engine, kv_layout, starts
from dse.model.point import Point
from dse.quantizers import QuantizerSpec
from dse.specs import engines, llama_cpp
from dse.specs.deployment import USUAL_SIZES
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.workload import Workload
from dse.validate import startup_log
from dse.validate.startup_log import StartupLog, Steps

#: quantizers of keys and of values
Kinds = tuple[QuantizerSpec, QuantizerSpec]
#: options by engine, as their commands take them
OPTIONS = {
    "vllm": {
        "max_model_len": "--max-model-len",
        "gpu_memory_utilization": "--gpu-memory-utilization",
        "tp": "--tensor-parallel-size",
        "max_num_seqs": "--max-num-seqs",
        "prompt_budget_tokens": "--max-num-batched-tokens",
        "kv": "--kv-cache-dtype",
        "no_graphs": "--enforce-eager",
        "tower": "--language-model-only",
    },
    "sglang": {
        "max_model_len": "--context-length",
        "gpu_memory_utilization": "--mem-fraction-static",
        "tp": "--tp-size",
        "max_num_seqs": "--max-running-requests",
        "prompt_budget_tokens": "--chunked-prefill-size",
        "kv": "--kv-cache-dtype",
        "no_graphs": "--disable-cuda-graph",
        "tower": "--no-tower",
    },
    "trtllm": {
        "max_model_len": "--max_seq_len",
        "gpu_memory_utilization": "--kv_cache_free_gpu_memory_fraction",
        "tp": "--tp_size",
        "max_num_seqs": "--max_batch_size",
        "prompt_budget_tokens": "--max_num_tokens",
        "kv": "--kv_cache_dtype",
        "tower": "--no-tower",
    },
    "llama.cpp": {
        "max_model_len": "-c",
        "max_num_seqs": "-np",
        "prompt_budget_tokens": "-ub",
        "gpu_layers": "-ngl",
        "cpu_moe_layers": "--n-cpu-moe",
        "kv": "-ctk, -ctv",
        "tower": "of images or drafts",
    },
}
#: KV formats that are tried, and names of llama.cpp's types
_FORMATS = {"llama.cpp": ("q8_0", "q4_0")}
_USUAL_FORMATS = ("fp8",)
#: formats of weights that are tried
_CHECKPOINTS = {"llama.cpp": ("q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k")}
_USUAL_CHECKPOINTS = ("fp8", "int4")
#: shares of the memory that are tried, and batches of prompt tokens
_SHARES, _BUDGETS = (0.9, 0.92, 0.95, 0.97), (2048, 1024, 512)
#: what an allocation of llama.cpp lacked, where it does not say it. Assumed
LITTLE_GIB = 0.5
#: tokens that llama.cpp computes at once by default (--ubatch-size)
LLAMA_CPP_BATCH_TOKENS = 512
#: a longest context is said in whole such tokens, where it has more
_ROUND = 1024
#: a pool is full from this share on, and a server runs as many requests as it may from this share of its limit on
FULL, AT_LIMIT = 0.9, 0.95


@dataclass(frozen=True)
class ServerOfLog:
    """A server that is asked about: what runs on which device, and the pool that its log prints."""

    log: StartupLog
    device: HardwareSpec
    model: ModelSpec
    kinds: Kinds
    work: Workload

    def option(self, name: str, value: object = "") -> str:
        """An option as the engine's command takes it."""
        return f"{OPTIONS[self.log.engine][name]} {value}".strip()

    def point(self, work: Workload, kinds: Kinds | None = None) -> Point:
        """The point with other options. Raises DseError for one that cannot be."""
        sides = kinds or self.kinds
        return Point(self.device, kv_layout.build(cached(self.log, self.model, sides[0]), *sides), work)

    def with_pool(self, **changed: Any) -> Workload | None:
        """The workload with other settings, and with the pool that the log would have: what it prints, and by how much
        ours changes. Ours where it prints none; None where nothing is left of it."""
        log, work = self.log, self.work
        if "gpu_memory_utilization" in changed:
            work = replace(work, kv_cache_memory_bytes=None)
        work = replace(work, **changed)
        if log.kv_gib is None or log.engine == "llama.cpp" or work.memory == "paper":
            return work
        try:
            more = self._pool_bytes(work) - self._pool_bytes(self.work) if changed else 0.0
        except DseError:
            return None
        pool = round(log.kv_gib * GIB + more)
        return replace(work, kv_cache_memory_bytes=pool, gpu_memory_utilization=None) if pool > 0 else None

    def _pool_bytes(self, work: Workload) -> float:
        """Our memory for keys and values; less than 0 where other things take more than there is."""
        return float(engine.evaluate(self.point(work))["free_bytes"])

    def starts(self, work: Workload | None, kinds: Kinds | None = None) -> bool:
        """Whether the engine takes the options and one request of the longest context has room."""
        if work is None:
            return False
        try:
            results = engine.evaluate(self.point(work, kinds))
        except DseError:
            return False
        if self.log.engine == "llama.cpp":
            return bool(results["feasible"] and results["fits_whole_batch"]) and self._frees(results)
        return bool(results["runs"] and results["feasible"] and (results["max_concurrency"] or 0.0) >= 1)

    def _frees(self, results: Mapping[str, Any]) -> bool:
        """Whether a design of llama.cpp leaves as much more than the log's as an allocation lacked beside the pool."""
        if self.log.failure not in (startup_log.PROFILE, startup_log.RUNS):
            return True
        now = engine.evaluate(self.point(self.work))
        held, less = (float(each["weight_bytes"]) + float(each["kv_bytes"]) for each in (now, results))
        return held - less >= (LITTLE_GIB if self.log.tried_gib is None else self.log.tried_gib) * GIB

    def formats(self) -> Iterator[tuple[str, Kinds]]:
        """KV formats of fewer bits that the engine takes, with its option."""
        bits = kv_layout.build(self.model, *self.kinds).effective_bits
        for name in _FORMATS.get(self.log.engine, _USUAL_FORMATS):
            kind = quantizers.parse(name)
            if kv_layout.build(self.model, kind, kind).effective_bits < bits:
                if self.log.engine == "llama.cpp":
                    yield f"-ctk {name} -ctv {name}", (kind, kind)
                else:
                    release = engines.release_for(self.log.engine, self.log.release) or ""
                    yield self.option("kv", starts.kv_dtype(self.log.engine, release, name) or name), (kind, kind)


def cached(log: StartupLog, model: ModelSpec, keys: QuantizerSpec) -> ModelSpec:
    """The model as the engine's cache holds it, where that is not as it computes with it."""
    if log.engine != "llama.cpp":
        return model
    return llama_cpp.cached(
        model,
        keys,
        log.max_num_batched_tokens or LLAMA_CPP_BATCH_TOKENS,
        log.max_num_seqs or 1,
        is_unified=log.is_unified,
        whole_windows=log.whole_windows,
        is_expanded=log.has_values,
    )


def needed_bytes(served: ServerOfLog) -> int | None:
    """Our memory of keys and values of one request of the longest context; None where that is not known."""
    longest = served.work.max_model_len
    if longest is None or served.log.engine == "llama.cpp":
        return None
    alone = replace(served.work, batch=1, input_tokens=max(longest - 1, 1), output_tokens=1)
    return int(engine.evaluate(served.point(alone))["peak_kv_bytes_per_sequence"])


def why(served: ServerOfLog) -> str:
    """Why a server does not start, in a sentence."""
    log, work = served.log, served.work
    pool = "" if log.kv_gib is None else f"{log.kv_gib:,.2f} GiB"
    tried = "" if log.tried_gib is None else f" ({log.tried_gib:,.2f} GiB more)"
    longest = f"{work.max_model_len:,} tokens" if work.max_model_len else "the longest context"
    if log.failure == startup_log.LONGEST:
        need = f"needs {log.needed_gib:,.2f} GiB" if log.needed_gib else "does not fit"
        room = f"{pool} are left" if pool else f"{log.kv_tokens:,} tokens are left" if log.kv_tokens else "less is left"
        return f"Does not start: one request of {longest} {need} of keys and values, {room}."
    if log.failure == startup_log.STATES:
        return (
            f"Does not start: {work.max_num_seqs or 0:,} requests need a block of states each, and the pool has "
            f"{log.state_blocks}."
        )
    if log.failure == startup_log.TAKEN:
        whole = "" if log.total_gib is None else f" of {log.total_gib:,.2f} GiB"
        free = "less" if log.free_gib is None else f"{log.free_gib:,.2f}{whole}"
        return (
            f"Does not start: {free} are free, less than the share asked for: others use the device (nvidia-smi or "
            "rocm-smi says which; a server that ended may still be there)."
        )
    if log.failure == startup_log.NO_POOL:
        left = f" ({pool})" if pool else ""
        return f"Does not start: weights, activations and buffers leave no memory for keys and values{left}."
    if log.failure == startup_log.WEIGHTS:
        return (
            f"Does not start: the weights do not fit{tried}: {_weight_gib(served, work):,.2f} GiB by our count on a "
            f"device of {_whole_gib(served):,.2f} GiB."
        )
    words = {
        startup_log.PROFILE: "a batch of prompt tokens does not fit beside the weights",
        startup_log.POOL: "keys and values do not fit beside the weights",
        startup_log.LATER: "memory ends beside the pool, as graphs are captured or kernels warm up",
    }
    if log.failure == startup_log.RUNS:
        return f"Ends as requests run: their activations do not fit beside weights and pool{tried}."
    return f"Does not start: {words[log.failure]}{tried}."


def _weight_gib(served: ServerOfLog, work: Workload) -> float:
    """Our GiB of weights of a device."""
    return float(engine.evaluate(served.point(work))["weight_bytes"]) / GIB


def _whole_gib(served: ServerOfLog) -> float:
    """GiB that the driver reports of a device."""
    return served.log.total_gib or (served.device.reported_memory or served.device.memory_capacity).count / GIB


def would_start(served: ServerOfLog) -> tuple[str, ...]:
    """Options with which the server would start, each alone; two together where none does alone."""
    return tuple(_single(served)) or tuple(_double(served))


def _single(served: ServerOfLog) -> Iterator[str]:
    log, failure = served.log, served.log.failure
    if failure == startup_log.STATES and log.state_blocks:
        yield served.option("max_num_seqs", log.state_blocks)
    is_file = log.engine == "llama.cpp"
    if failure in (startup_log.LATER, startup_log.RUNS) and not is_file:
        yield from _leaves_more(served)
    if failure == startup_log.TAKEN:
        yield from _of_free(served)
    if failure in (startup_log.PROFILE, startup_log.RUNS) and not is_file:
        yield from (served.option("prompt_budget_tokens", n) for n in _smaller_budgets(served))
    if is_file and failure in (startup_log.PROFILE, startup_log.RUNS):
        yield served.option("prompt_budget_tokens", (log.max_num_batched_tokens or LLAMA_CPP_BATCH_TOKENS) // 2)
    beside = (startup_log.PROFILE, startup_log.RUNS) if is_file else ()
    if failure in (startup_log.LONGEST, startup_log.NO_POOL, startup_log.POOL, *beside):
        pool = served.with_pool()
        if longest := _longest(served, pool):
            yield served.option("max_model_len", longest)
        for words, kinds in served.formats():
            yield from _with_length(served, words, pool, kinds)
    if failure in (startup_log.LONGEST, startup_log.NO_POOL, startup_log.STATES):
        yield from _shares_that_start(served)
    if failure in (startup_log.WEIGHTS, startup_log.NO_POOL):
        yield from _checkpoints(served)
    if is_file:
        yield from _fewer_layers(served)
    elif failure != startup_log.TAKEN and (n := _devices(served)):
        yield f"{served.option('tp', n)} ({n * served.work.pp} devices)"


def _double(served: ServerOfLog) -> Iterator[str]:
    """A KV format of fewer bits with more devices."""
    log = served.log
    for words, kinds in () if log.engine == "llama.cpp" or log.failure == startup_log.TAKEN else served.formats():
        if n := _devices(served, kinds):
            yield f"{served.option('tp', n)} {words} ({n * served.work.pp} devices)"


def _with_length(served: ServerOfLog, words: str, work: Workload | None, kinds: Kinds | None = None) -> Iterator[str]:
    """Options where the server starts with them, else with the longest context that does; nothing where none does."""
    if served.starts(work, kinds):
        yield words
    elif longest := _longest(served, work, kinds):
        yield f"{words} {served.option('max_model_len', longest)}"


def _fewer_layers(served: ServerOfLog) -> Iterator[str]:
    """Options of llama.cpp by which the device holds most: experts of few layers, or few layers, on the host."""
    n_layers, work = served.model.n_layers, served.work
    moved = ((n, replace(work, cpu_moe_layers=n)) for n in range(1, n_layers + 1) if served.model.n_experts > 1)
    fewer = ((n, replace(work, gpu_layers=n)) for n in range(n_layers, 0, -1))
    for name, works in (("cpu_moe_layers", moved), ("gpu_layers", fewer)):
        if n := next((n for n, changed in works if served.starts(changed)), None):
            yield served.option(name, n)


def _checkpoints(served: ServerOfLog) -> Iterator[str]:
    """Checkpoints of fewer bits with which the server starts, the largest."""
    now = _weight_gib(served, served.work)
    for name in _CHECKPOINTS.get(served.log.engine, _USUAL_CHECKPOINTS):
        work = served.with_pool(weights=name, weights_size_bytes=None)
        if work is not None and served.starts(work) and (size := _weight_gib(served, work)) < now:
            yield f"a checkpoint in {name} ({size:,.2f} GiB)"
            return


def _with_longest(served: ServerOfLog, work: Workload, longest: int) -> Workload:
    """A workload with another longest context; of llama.cpp the pool is as long."""
    if served.log.engine == "llama.cpp":
        return replace(work, max_model_len=longest, input_tokens=max(longest - 1, 1), output_tokens=1)
    half = max(min(work.input_tokens, longest // 2), 1)
    return replace(work, max_model_len=longest, input_tokens=half, output_tokens=max(min(half, longest - half), 1))


def _longest(served: ServerOfLog, work: Workload | None, kinds: Kinds | None = None) -> int | None:
    """The longest context that starts: the engine's own estimate, else by our memory; None where none does."""
    if served.log.fitting_len and kinds is None and work == served.with_pool():
        return served.log.fitting_len
    if work is None:
        return None
    low, high = 0, work.max_model_len or 0
    while high - low > max(low // 256, 16):
        middle = (low + high) // 2
        low, high = (middle, high) if served.starts(_with_longest(served, work, middle), kinds) else (low, middle)
    return low // _ROUND * _ROUND or None


def _shares_that_start(served: ServerOfLog) -> Iterator[str]:
    """The least of the usual shares of the memory that starts the server, else the largest with a shorter context."""
    works = [(share, served.with_pool(gpu_memory_utilization=share)) for share in _larger_shares(served)]
    for share, work in works:
        if work is not None and served.starts(work) and _has_states(served, work):
            yield served.option("gpu_memory_utilization", share)
            return
    if works and served.log.failure == startup_log.NO_POOL:
        share, work = works[-1]
        words = served.option("gpu_memory_utilization", share)
        for more, kinds in (("", None), *served.formats()):
            yield from _with_length(served, f"{words} {more}".strip(), work, kinds)


def _has_states(served: ServerOfLog, work: Workload) -> bool:
    """Whether a larger pool has a block of states for each request: as many more as it has memory."""
    log = served.log
    if log.failure != startup_log.STATES:
        return True
    if not (log.kv_gib and log.state_blocks and work.kv_cache_memory_bytes):
        return False
    return log.state_blocks * work.kv_cache_memory_bytes / GIB / log.kv_gib >= (served.work.max_num_seqs or 0)


def _devices(served: ServerOfLog, kinds: Kinds | None = None) -> int | None:
    """The least of the usual numbers of devices that share the layers with which the server starts."""
    sizes = (n for n in USUAL_SIZES if n > served.work.tp)
    ep = served.work.ep > 1
    works = ((n, replace(served.work, tp=n, ep=n if ep else 1, calibrated=None)) for n in sizes)
    return next((n for n, work in works if served.starts(work, kinds)), None)


def _smaller_budgets(served: ServerOfLog) -> Iterator[int]:
    """The largest of the usual batches of prompt tokens below the server's with which it starts."""
    now = engine.evaluate(served.point(served.work))["prompt_budget_tokens"] or 0
    smaller = (n for n in _BUDGETS if n < now and served.starts(replace(served.work, prompt_budget_tokens=n)))
    if (first := next(smaller, None)) is not None:
        yield first


def _leaves_more(served: ServerOfLog) -> Iterator[str]:
    """A smaller share, fewer requests, or no graphs, which leave more memory beside the pool."""
    asked = engine.evaluate(served.point(served.work))["gpu_memory_utilization"]
    if asked is not None and (share := round(float(asked) - 0.05, 2)) > 0:
        name = served.option("gpu_memory_utilization", share)
        yield from _with_length(served, name, served.with_pool(gpu_memory_utilization=share))
    yield served.option("max_num_seqs", max((served.work.max_num_seqs or 256) // 4, 1))
    if served.log.failure == startup_log.LATER and "no_graphs" in OPTIONS[served.log.engine]:
        yield served.option("no_graphs")


def _of_free(served: ServerOfLog) -> Iterator[str]:
    """The share of the memory that is free, where the server starts with it, and a shorter context where it has to."""
    log = served.log
    if not (log.free_gib and log.total_gib):
        return
    share = math.floor(100 * log.free_gib / log.total_gib) / 100
    if share > 0:
        words = served.option("gpu_memory_utilization", share)
        yield from _with_length(served, words, served.with_pool(gpu_memory_utilization=share))


def lengths(served: ServerOfLog, steps: Steps, pool_tokens: float) -> tuple[int, int] | None:
    """Prompt and answer of the requests that run: a request holds its prompt and half of its answer in the mean, and
    prompts are printed, or tokens come in at the ratio of both. None where the lines do not say it."""
    if not steps.usage:
        return None
    held = steps.usage * pool_tokens / steps.running
    if steps.prompt_tokens:
        prompt = min(steps.prompt_tokens, held)
        output = 2 * (held - prompt)
    elif steps.prompt_tokens_per_s:
        ratio = steps.prompt_tokens_per_s / steps.output_tokens_per_s
        output = held / (ratio + 0.5)
        prompt = ratio * output
    else:
        return None
    longest = served.work.max_model_len or 2**20
    n_output = min(max(round(output), 1), longest - 1)
    return min(max(round(prompt), 1), longest - n_output), n_output


def running(served: ServerOfLog, steps: Steps, pool_tokens: float | None) -> Workload | None:
    """The workload of the requests that run; None where the lines do not say their lengths."""
    held = lengths(served, steps, pool_tokens) if pool_tokens else None
    if held is None and pool_tokens and steps.usage:
        each = max(round(steps.usage * pool_tokens / steps.running), 2)  # as many of the prompt as of the answer
        held = (each * 2 // 3 or 1, each * 2 // 3 or 1)
    if held is None:
        return None
    batch = max(round(steps.running), 1)
    return replace(served.work, batch=batch, input_tokens=held[0], output_tokens=held[1])


def binds(served: ServerOfLog, steps: Steps, limit: float | None) -> tuple[str, str]:
    """Name what binds a running server, as a word and in a sentence."""
    n = f"{steps.running:,.0f} requests run, {steps.waiting:,.0f} wait"
    usage = "" if steps.usage is None else f", {100 * steps.usage:.0f} % of the pool in use"
    full = (steps.usage or 0.0) >= FULL
    lost = f", {steps.n_preempted} lost their keys and values to others and are computed again" * bool(
        steps.n_preempted
    )
    if steps.n_preempted or (full and steps.waiting >= 1):
        return "pool", f"The pool of keys and values binds: {n}{usage}{lost}."
    if steps.waiting >= 1 and limit and steps.running >= AT_LIMIT * limit:
        name = served.option("max_num_seqs", f"{limit:.0f}")
        return "limit", f"The limit of requests binds ({name}): {n}{usage}."
    if steps.waiting >= 1:
        name = OPTIONS[served.log.engine]["prompt_budget_tokens"]
        return "prompts", f"Prompts bind: {n}{usage}: requests wait to be computed ({name})."
    if full:
        return "pool", f"The pool of keys and values is nearly full: {n}{usage}: more requests would wait."
    return "load", f"The load binds: {n}{usage}: the server takes more."


def to_try(served: ServerOfLog, work: Workload | None, what: str) -> tuple[str, ...]:
    """Options to try on a running server, each with the requests and tokens per second that we predict, and by how much
    they are above those that we predict of it as it is."""
    now, said = None, []
    for words, changed, kinds in () if work is None else _changes(served, work, what):
        try:
            results = engine.evaluate(served.point(changed, kinds))
        except DseError:
            continue
        counts = results["running_batch"], results["throughput_tokens_per_s"]
        if not words:
            now = counts
        elif results["runs"] and all(counts):
            more = [
                f" ({100 * (count / as_is - 1):+.0f} %)"
                for count, as_is in zip(counts, now or (), strict=False)
                if as_is
            ]
            at_once, rate = more if len(more) == 2 else ("", "")
            said.append(f"{words}: {counts[0]:,} requests at once{at_once}, {counts[1]:,.0f} tok/s{rate}")
    return tuple(said)


def _changes(served: ServerOfLog, work: Workload, what: str) -> Iterator[tuple[str, Workload, Kinds | None]]:
    """Options against what binds, with the workload and the KV formats that they make; the server as it is first."""
    pool = served.with_pool()
    if pool is None:
        return
    full = with_pool_of(pool, replace(work, batch=None))
    yield "", full if what in ("pool", "limit") else work, None
    if what == "pool":
        yield from ((words, full, kinds) for words, kinds in served.formats())
        share = next(_larger_shares(served), None)
        if share and (larger := served.with_pool(gpu_memory_utilization=share)):
            yield served.option("gpu_memory_utilization", share), with_pool_of(larger, full), None
        if n := next((n for n in USUAL_SIZES if n > work.tp), None):
            alone = with_pool_of(served.work, full)
            yield served.option("tp", n), replace(alone, tp=n, ep=n if work.ep > 1 else 1), None
    if what == "limit" and work.max_num_seqs:
        more = 2 * work.max_num_seqs
        yield served.option("max_num_seqs", more), replace(full, max_num_seqs=more), None
    if what == "prompts" and (budget := engine.evaluate(served.point(work))["prompt_budget_tokens"]):
        more = 2 * int(budget)
        yield served.option("prompt_budget_tokens", more), replace(work, prompt_budget_tokens=more), None


def with_pool_of(pool: Workload, work: Workload) -> Workload:
    """A workload with the memory for keys and values of another."""
    return replace(
        work, gpu_memory_utilization=pool.gpu_memory_utilization, kv_cache_memory_bytes=pool.kv_cache_memory_bytes
    )


def _larger_shares(served: ServerOfLog) -> Iterator[float]:
    """The usual shares of the memory above the server's."""
    asked = engine.evaluate(served.point(served.work))["gpu_memory_utilization"]
    if served.log.engine != "llama.cpp" and asked is not None:
        yield from (share for share in _SHARES if share > float(asked) + 1e-9)
