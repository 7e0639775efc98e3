"""Answers to a log: why a server does not start and with which options it would, what binds one that runs and what to
try. Options are spelled as the engine takes them; a change counts where our own memory, with the pool that the log
prints, has room for one request of the longest context.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

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
_OPTIONS = {
    "vllm": {
        "max_model_len": "--max-model-len",
        "gpu_memory_utilization": "--gpu-memory-utilization",
        "tp": "--tensor-parallel-size",
        "max_num_seqs": "--max-num-seqs",
        "prompt_budget_tokens": "--max-num-batched-tokens",
        "kv": "--kv-cache-dtype",
    },
    "sglang": {
        "max_model_len": "--context-length",
        "gpu_memory_utilization": "--mem-fraction-static",
        "tp": "--tp-size",
        "max_num_seqs": "--max-running-requests",
        "prompt_budget_tokens": "--chunked-prefill-size",
        "kv": "--kv-cache-dtype",
    },
    "trtllm": {
        "max_model_len": "--max_seq_len",
        "gpu_memory_utilization": "--kv_cache_free_gpu_memory_fraction",
        "tp": "--tp_size",
        "max_num_seqs": "--max_batch_size",
        "prompt_budget_tokens": "--max_num_tokens",
        "kv": "--kv_cache_dtype",
    },
    "llama.cpp": {"max_model_len": "-c", "max_num_seqs": "-np", "prompt_budget_tokens": "-ub"},
}
#: KV formats that are tried, and names of llama.cpp's types
_FORMATS = {"llama.cpp": ("q8_0", "q4_0")}
_USUAL_FORMATS = ("fp8",)
#: formats of weights that are tried
_CHECKPOINTS = {"llama.cpp": ("q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k")}
_USUAL_CHECKPOINTS = ("fp8", "int4")
#: shares of the memory that are tried, and batches of prompt tokens
_SHARES, _BUDGETS = (0.9, 0.92, 0.95, 0.97), (2048, 1024, 512)
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

    def option(self, name: str, value: object) -> str:
        """An option as the engine's command takes it."""
        return f"{_OPTIONS[self.log.engine].get(name, '--' + name.replace('_', '-'))} {value}"

    def point(self, work: Workload, kinds: Kinds | None = None) -> Point:
        """The point with other options. Raises DseError for one that cannot be."""
        sides = kinds or self.kinds
        return Point(self.device, kv_layout.build(cached(self.log, self.model, sides[0]), *sides), work)

    def with_pool(self, share: float | None = None) -> Workload:
        """The workload with the pool of the log, where it prints one: with another share, by so much more."""
        log, work = self.log, self.work
        if share is not None:
            work = replace(work, gpu_memory_utilization=share, kv_cache_memory_bytes=None)
        if log.kv_gib is None or log.engine == "llama.cpp" or work.memory == "paper":
            return work
        more = 0.0
        if share is not None:
            asked = float(engine.evaluate(self.point(self.work))["gpu_memory_utilization"])
            more = (share - asked) * _whole_gib(self)
        pool = round((log.kv_gib + more) * GIB)
        return replace(work, kv_cache_memory_bytes=pool, gpu_memory_utilization=None) if pool > 0 else work

    def starts(self, work: Workload, kinds: Kinds | None = None) -> bool:
        """Whether the engine takes the options and one request of the longest context has room."""
        try:
            results = engine.evaluate(self.point(work, kinds))
        except DseError:
            return False
        if self.log.engine == "llama.cpp":
            return bool(results["feasible"] and results["fits_whole_batch"])
        return bool(results["runs"] and results["feasible"] and (results["max_concurrency"] or 0.0) >= 1)

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
        return f"Does not start: {free} are free, less than the share asked for: others use the device."
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
        startup_log.LATER: "memory ends beside the pool, as graphs are captured or requests run",
    }
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
    log, work = served.log, served.work
    if log.failure == startup_log.STATES and log.state_blocks:
        yield served.option("max_num_seqs", log.state_blocks)
    if log.failure == startup_log.LATER:
        yield from _leaves_more(served)
    if log.failure == startup_log.TAKEN:
        yield from _of_free(served)
    if log.failure == startup_log.PROFILE:
        yield from (served.option("prompt_budget_tokens", n) for n in _smaller_budgets(served))
    if log.failure in (startup_log.LONGEST, startup_log.NO_POOL, startup_log.POOL):
        if longest := _longest(served, served.with_pool()):
            yield served.option("max_model_len", longest)
        for words, kinds in served.formats():
            if served.starts(served.with_pool(), kinds):
                yield words
            elif longest := _longest(served, served.with_pool(), kinds):
                yield f"{words} {served.option('max_model_len', longest)}"
    if log.failure in (startup_log.LONGEST, startup_log.NO_POOL, startup_log.STATES) and (share := _share(served)):
        yield served.option("gpu_memory_utilization", share)
    if log.failure == startup_log.WEIGHTS:
        yield from _checkpoints(served)
    if log.failure != startup_log.TAKEN and log.engine != "llama.cpp" and (n := _devices(served)):
        yield f"{served.option('tp', n)} ({n * work.pp} devices)"


def _double(served: ServerOfLog) -> Iterator[str]:
    """A KV format of fewer bits with more devices."""
    for words, kinds in served.formats():
        if served.log.engine != "llama.cpp" and (n := _devices(served, kinds)):
            yield f"{served.option('tp', n)} {words} ({n * served.work.pp} devices)"


def _checkpoints(served: ServerOfLog) -> Iterator[str]:
    """Checkpoints of fewer bits with which the server starts, the largest."""
    now = _weight_gib(served, served.work)
    for name in _CHECKPOINTS.get(served.log.engine, _USUAL_CHECKPOINTS):
        work = replace(served.work, weights=name)
        if served.starts(work) and (size := _weight_gib(served, work)) < now:
            yield f"a checkpoint in {name} ({size:,.2f} GiB)"
            return


def _with_longest(served: ServerOfLog, work: Workload, longest: int) -> Workload:
    """A workload with another longest context; of llama.cpp the pool is as long."""
    if served.log.engine == "llama.cpp":
        return replace(work, max_model_len=longest, input_tokens=max(longest - 1, 1), output_tokens=1)
    half = max(min(work.input_tokens, longest // 2), 1)
    return replace(work, max_model_len=longest, input_tokens=half, output_tokens=max(min(half, longest - half), 1))


def _longest(served: ServerOfLog, work: Workload, kinds: Kinds | None = None) -> int | None:
    """The longest context that starts: the engine's own estimate, else by our memory; None where none does."""
    if served.log.fitting_len and kinds is None:
        return served.log.fitting_len
    low, high = 0, work.max_model_len or 0
    while high - low > max(low // 256, 16):
        middle = (low + high) // 2
        low, high = (middle, high) if served.starts(_with_longest(served, work, middle), kinds) else (low, middle)
    return low // _ROUND * _ROUND or None


def _share(served: ServerOfLog) -> float | None:
    """The least of the usual shares of the memory with which the server starts."""
    works = ((share, served.with_pool(share)) for share in _larger_shares(served))
    return next((share for share, work in works if served.starts(work) and _has_states(served, work)), None)


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
    """A smaller share, or fewer requests, which leave more memory beside the pool."""
    asked = engine.evaluate(served.point(served.work))["gpu_memory_utilization"]
    if asked is not None:
        share = round(float(asked) - 0.05, 2)
        if share > 0 and served.starts(served.with_pool(share)):
            yield served.option("gpu_memory_utilization", share)
    limit = served.work.max_num_seqs or 256
    yield served.option("max_num_seqs", max(limit // 4, 1))


def _of_free(served: ServerOfLog) -> Iterator[str]:
    """The share of the memory that is free, where the server starts with it, and a shorter context where it has to."""
    log = served.log
    if not (log.free_gib and log.total_gib):
        return
    share = math.floor(100 * log.free_gib / log.total_gib) / 100
    if share <= 0:
        return
    words, work = served.option("gpu_memory_utilization", share), served.with_pool(share)
    if served.starts(work):
        yield words
    elif longest := _longest(served, work):
        yield f"{words} {served.option('max_model_len', longest)}"


def lengths(served: ServerOfLog, steps: Steps, pool_tokens: float) -> tuple[int, int] | None:
    """Prompt and answer of the requests that run: tokens come in at the ratio of both, and a request holds its prompt
    and half of its answer in the mean. None where the lines do not say it."""
    if steps.usage is None or not steps.prompt_tokens_per_s or not steps.output_tokens_per_s:
        return None
    held = steps.usage * pool_tokens / steps.running
    ratio = steps.prompt_tokens_per_s / steps.output_tokens_per_s
    output = held / (ratio + 0.5)
    longest = served.work.max_model_len or 2**20
    n_output = min(max(round(output), 1), longest - 1)
    return min(max(round(ratio * output), 1), longest - n_output), n_output


def running(served: ServerOfLog, steps: Steps, pool_tokens: float | None) -> Workload | None:
    """The workload of the requests that run; None where the lines do not say their lengths."""
    held = lengths(served, steps, pool_tokens) if pool_tokens else None
    if held is None and served.log.engine == "sglang" and pool_tokens and steps.usage:
        each = max(round(steps.usage * pool_tokens / steps.running), 2)  # no rate of prompts: as much as the answer
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
        name = _OPTIONS[served.log.engine]["prompt_budget_tokens"]
        return "prompts", f"Prompts bind: {n}{usage}: requests wait to be computed ({name})."
    return "load", f"The load binds: {n}{usage}: the server takes more."


def to_try(served: ServerOfLog, work: Workload | None, what: str) -> tuple[str, ...]:
    """Options to try on a running server, each with the requests and tokens per second that we predict."""
    said = []
    for words, changed, kinds in () if work is None else _changes(served, work, what):
        try:
            results = engine.evaluate(served.point(changed, kinds))
        except DseError:
            continue
        if results["runs"] and results["throughput_tokens_per_s"]:
            said.append(
                f"{words}: {results['running_batch']:,} requests at once, "
                f"{results['throughput_tokens_per_s']:,.0f} token/s"
            )
    return tuple(said)


def _changes(served: ServerOfLog, work: Workload, what: str) -> Iterator[tuple[str, Workload, Kinds | None]]:
    """Options against what binds, with the workload and the KV formats that they make."""
    full = with_pool_of(served.with_pool(), replace(work, batch=None))
    if what == "pool":
        yield from ((words, full, kinds) for words, kinds in served.formats())
        if share := next(_larger_shares(served), None):
            yield served.option("gpu_memory_utilization", share), with_pool_of(served.with_pool(share), full), None
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
