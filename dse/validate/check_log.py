"""The memory of a server as its start-up log has it, beside the same design computed: term by term.

What the log says makes the design; what is given in its place wins. The terms of the log can be kept as the memory of
further answers (dse/specs/measured_memory.py).
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dse import quantizers
from dse.core import units
from dse.core.answer import Answer
from dse.core.columns import aligned
from dse.core.errors import InputError, show
from dse.core.units import GIB
from dse.model import capacity, engine, uncertainty
from dse.model.lower import host_bytes, stored_bytes
from dse.model.point import Point
from dse.quantizers import QuantizerSpec
from dse.specs import catalog, device_names, drafts, engines, server_flags
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.measured_memory import MeasuredMemory, weights_name
from dse.specs.releases import release_of
from dse.specs.weights import FORMATS, WIDE
from dse.specs.workload import ASKED, Workload
from dse.validate import log_answers, startup_log
from dse.validate.log_answers import ServerOfLog
from dse.validate.startup_log import SAME_SERVER, StartupLog, Steps

if TYPE_CHECKING:
    import pandas as pd

#: tokens of a prompt and of an answer of the requests behind the design, where the longest context has room for them
LENGTH_TOKENS = 1024
#: memory of a device by the log and by its file may differ by so much: more is another device
SAME_DEVICE = 0.05
#: bytes of a token differ where tokens and memory do not fit each other by more than this share
SAME_TOKEN = 0.03
_MS = units.to_base(1, "ms")
#: a file of llama.cpp mixes types where its size is off by more than this share of what its type takes; types that
#: stand for such ones, and for those that are no formats here, by their size
SAME_FILE = 0.05
_FILE_FORMATS = ("q2_k", "iq3_xxs", "q3_k_m", "q4_0", "q5_0", "q6_k", "q8_0", "bf16")
#: GiB below which terms are said to agree, and half of the last digit that logs print
AGREES_GIB, ROUNDING_GIB = 0.1, 0.005
#: the same as a share of weights, whose bits differ by layer in files of llama.cpp
AGREES_SHARE = 0.01
#: fields that the design of a log has beside what the log says
LOAD = ("batch", "input_tokens", "output_tokens", "admission", "memory")
_NOTHING = "The log and the design have no term in common."
#: names of terms
WEIGHTS, ACTIVATIONS, BESIDE, POOL = "weights", "activations", "graphs, context and buffers", "keys and values"
TOKENS, CONCURRENCY = "tokens of the pool", "requests of the longest context"
NEEDED, RUNNING, STEP, RATE = (
    "a request of the longest context",
    "requests that run",
    "time per output token",
    "output tokens per second",
)
#: what a difference of a term likely means, where the log has more and where it has less, with options of the engine
_MEANS = {
    WEIGHTS: (
        "another format of weights (--weights), a draft model, or copies for the engine's kernels",
        "another format of weights (--weights), or a part that is not loaded ({tower})",
    ),
    ACTIVATIONS: (
        "more tokens or requests in a batch ({prompt_budget_tokens}, {max_num_seqs}), or another release (--stack)",
        "fewer tokens or requests in a batch ({prompt_budget_tokens}, {max_num_seqs}), or another release (--stack)",
    ),
    BESIDE: (
        "more or larger CUDA graphs, buffers of communication, or memory that others take on the device",
        "fewer CUDA graphs (eager mode), or buffers that this server does not make",
    ),
    POOL: (
        "a larger share than the design has ({gpu_memory_utilization}), or less of what the log does not print",
        "a smaller share than the design has ({gpu_memory_utilization}), others on the device, or more of what the log "
        "does not print",
    ),
}


@dataclass(frozen=True)
class LogTerm:
    """A term of a server's memory: of its log and ours, bytes or counts; None where one has none."""

    name: str
    unit: str
    log: float | None
    ours: float | None
    #: between which 8 of 10 start-ups have it; None where that is not known
    ends: Sequence[float] | None = None

    @property
    def difference(self) -> float | None:
        """The log's value less ours."""
        return None if self.log is None or self.ours is None else self.log - self.ours

    @property
    def share(self) -> float | None:
        """The difference over ours."""
        return self.difference / abs(self.ours) if self.difference is not None and self.ours else None

    @property
    def is_inside(self) -> bool | None:
        """Whether the log's value lies between the ends; None where either is not known."""
        return None if self.log is None or self.ends is None else self.ends[0] <= self.log <= self.ends[1]

    def row(self) -> dict[str, str | float | None]:
        """All of it by name."""
        low, high = self.ends or (None, None)
        numbers = {"name": self.name, "unit": self.unit, "log": self.log, "ours": self.ours, "low": low, "high": high}
        return {**numbers, "difference": self.difference, "share": self.share}


@dataclass(frozen=True, kw_only=True, repr=False)
class LogCheck(Answer):
    """A start-up log beside the design that it describes."""

    log: StartupLog
    device: str
    model: str
    quantizer: str
    workload: Workload
    terms: tuple[LogTerm, ...]
    #: the largest difference and what it likely means, in a sentence
    says: str
    #: options of the engine with which a server that does not start would, or that one that runs may try
    tries: tuple[str, ...]
    #: what the log says nothing of and the design takes as its default
    notes: tuple[str, ...]
    #: the command that evaluates the design
    command: str
    #: memory by the log; None where it does not hold enough
    memory: MeasuredMemory | None

    def head(self) -> str:
        """Engine and design in a line."""
        work = self.workload
        split = ", ".join(work.split())
        head = f"{self.log.title}: {self.model}, {weights_name(work)} weights, {self.quantizer} KV, on "
        return head + work.devices_text(self.device) + (f" ({split})" if split else "")

    def rows(self) -> list[tuple[str, ...]]:
        """The terms as people read them, with their head."""
        rows = [
            (term.name, *(shown(term.unit, n) for n in (term.log, term.ours)), *_apart(term)) for term in self.terms
        ]
        return [("term", "log", "ours", "difference", ""), *rows]

    def text(self) -> str:
        """The design, the table of terms, and the sentence."""
        backend = [f"attention: {self.log.backend}"] if self.log.backend else []
        more = [f"Note: {note}" for note in self.notes]
        table = aligned(self.rows(), left=1)
        says = [self.says, *self.usual(), *self.tries_text(), *more]
        return "\n".join([self.head(), *backend, "", *table, "", *says, f"design: {self.command}"])

    def tries_text(self) -> list[str]:
        """A line for each option with which the server starts, or that it may try."""
        word = "starts with" if self.log.failure else "try"
        return [f"{word}: {line}" for line in self.tries]

    def usual(self) -> list[str]:
        """Say between which values the pool of 8 of 10 start-ups lies, and whether this one does; nothing where the log
        does not print it."""
        pool = next((term for term in self.terms if term.ends and term.log is not None), None)
        if pool is None or pool.ends is None:
            return []
        assert pool.log is not None
        low, high = (shown(pool.unit, end) for end in pool.ends)
        this = "this one too" if pool.is_inside else "this one does not"
        return [f"8 of 10 start-ups on devices of this class have {low} to {high} of {pool.name}; {this}."]

    @cached_property
    def table(self) -> "pd.DataFrame":
        """A row a term: bytes or counts, and the difference as a share of ours."""
        import pandas as pd

        return pd.DataFrame([term.row() for term in self.terms])

    def to_json(self) -> dict[str, Any]:
        """The log, the design and the terms, in SI base units but for GiB of the log."""
        return {
            "log": {name: value for name, value in asdict(self.log).items() if value not in (None, "")},
            "device": self.device,
            "model": self.model,
            "quantizer": self.quantizer,
            "workload": {
                name: value for name, form in ASKED.items() if (value := getattr(self.workload, name)) != form.default
            },
            "terms": [term.row() for term in self.terms],
            "says": self.says,
            "tries": list(self.tries),
            "notes": list(self.notes),
            "command": self.command,
        }


def shown(unit: str, value: float | None) -> str:
    """A value of a term as people read it."""
    if value is None:
        return "-"
    if unit == "s":
        return f"{value / _MS:,.1f} ms"
    return f"{value / GIB:,.2f} GiB" if unit == "B" else f"{value:,.2f}" if unit == "sequence" else f"{value:,.0f}"


def _apart(term: LogTerm) -> tuple[str, str]:
    """A difference in the unit of its term, and in percent of ours."""
    if term.difference is None:
        return "-", ""
    whole = f"{term.difference:+,.2f}" if term.unit == "sequence" else f"{term.difference:+,.0f}"
    by = _gib(term.difference) if term.unit == "B" else whole
    if term.unit == "s":
        by = f"{term.difference / _MS:+,.1f} ms"
    return by, "" if term.share is None else f"{round(100 * term.share, 1) + 0.0:+.1f} %"


def _gib(n_bytes: float) -> str:
    """A difference of memory; a zero has no sign of its own."""
    return f"{round(n_bytes / GIB, 2) + 0.0:+,.2f} GiB"


def check(
    log: StartupLog,
    device: HardwareSpec | None = None,
    model: ModelSpec | None = None,
    kinds: tuple[QuantizerSpec, QuantizerSpec] | None = None,
    given: Mapping[str, Any] | None = None,
    source: str = "a text",
    names: tuple[str, str] = ("", ""),
) -> LogCheck:
    """Compare a log with the design that it describes; device, model, quantizers and the fields of a workload in
    `given` stand for what it says. `source` names the log, `names` device and model as a command takes them.

    Raises InputError where the log does not say what the design needs, and for what cannot be.
    """
    spec, shape = device or _device_of(log), model or model_of(log)
    _refuse_other_memory(log, spec)
    keys, values = kinds or _quantizers_of(log, shape)
    work, notes = _workload_of(log, spec, shape, given or {})
    notes = (*_other_device(log, spec), *notes)
    served = ServerOfLog(log, spec, shape, (keys, values), work)
    point = served.point(work)
    terms = _terms(log, point, served)
    says, tries = _says(terms, log, host_bytes(point.plan.model, point.work)), tuple[str, ...]()
    if log.failure or log.steps:  # which may have no lines of its memory
        says = "" if says == _NOTHING else says
    if log.failure:
        says = f"{log_answers.why(served)} {says if log.failure != startup_log.WEIGHTS else ''}".strip()
        tries = log_answers.would_start(served)
    elif log.steps is not None:
        says, tries, more = _of_running(served, point, log.steps, says)
        terms = (*terms, *more)
    name = keys.name if keys == values else f"{keys.name}/{values.name}"
    return LogCheck(
        log=log,
        device=spec.name,
        model=shape.name,
        quantizer=name,
        workload=point.work,
        terms=terms,
        says=says,
        tries=tries,
        notes=notes,
        command=_command(names[0] or spec.name, names[1] or shape.name, (keys.name, values.name), work),
        memory=_memory(log, point, source),
    )


def fields_of(log: StartupLog, device: HardwareSpec, model: ModelSpec) -> dict[str, Any]:
    """The fields that a log's server sets, its quantizers among them, as `dse.specs.server_flags` reads those of a
    command. Raises InputError for a log of another device."""
    _refuse_other_memory(log, device)
    if other := _other_device(log, device):
        raise InputError(f"device = {device.name}: {other[0].partition(':')[0]}: give that one")
    work, _ = _workload_of(log, device, model, {})
    own = {name: value for name, form in ASKED.items() if (value := getattr(work, name)) != form.default}
    if own.get("max_model_len") == model.max_position_tokens:  # printed where nobody set it
        del own["max_model_len"]
    sides = ["fp16" if side.family.exact else side.name for side in _quantizers_of(log, model)]
    kinds = {"quantizer": sides[0], **({"value_quantizer": sides[1]} if sides[0] != sides[1] else {})}
    return {name: value for name, value in own.items() if name not in LOAD} | kinds


def _refuse_other_memory(log: StartupLog, device: HardwareSpec) -> None:
    """Raises InputError where the driver reports another memory than the device has."""
    if log.total_gib is not None and device.reported_memory:
        reported = device.reported_memory.count / GIB
        if abs(log.total_gib / reported - 1) > SAME_DEVICE:
            has = f"has {reported:.2f} GiB, the log's has {log.total_gib:.2f} GiB"
            raise InputError(f"device = {device.name}: {has}: give the log's device")


def _device_of(log: StartupLog) -> HardwareSpec:
    """The shipped device that a log names: a log never opens a file. Raises InputError."""
    if not log.device:
        raise InputError(f"device: is missing, a log of {log.title} does not say it: give --device, such as h100")
    names = catalog.device_aliases()
    if (name := device_names.meant(log.device, names)) is None:
        near = device_names.near(log.device, names)
        raise InputError(f"unknown device {show(log.device)}: {near} (the log's): give --device")
    return catalog.device(name)


def _other_device(log: StartupLog, device: HardwareSpec) -> tuple[str, ...]:
    """A note where a log names another device than the one that stands for it."""
    meant = log.device and device_names.meant(log.device, catalog.device_aliases())
    if not log.device or (meant and catalog.device(meant).name == device.name):
        return ()
    return (f"the log names {show(log.device)}: {device.name} stands for it, as given",)


def model_of(log: StartupLog) -> ModelSpec:
    """The shipped model that a log names: a log never opens a file. Raises InputError."""
    if not log.model:
        raise InputError("model: is missing, the log does not say it (is its begin cut off?): give --model")
    if catalog.shipped_model_file(log.model) is None:
        near = catalog.near_models(log.model)
        raise InputError(f"unknown model {show(log.model)}: {near} (the log's): give --model")
    return catalog.model(log.model)


def _quantizers_of(log: StartupLog, model: ModelSpec) -> tuple[QuantizerSpec, QuantizerSpec]:
    """The quantizers of keys and of values by an engine's names of them; `auto` is 16 bits."""
    sides = (log.key_format or log.kv_format, log.value_format or log.kv_format)
    for side in sides:
        if ":" in side:  # of ours, names of files and numbers
            raise InputError(f"kv_format = {show(side)}: the log's, is no format: give --quantizer")
    try:
        plain = "fp16" if log.engine == "llama.cpp" else "bf16"
        key, value = (quantizers.parse(plain if side in ("", "auto", "bf16") else side) for side in sides)
    except InputError as error:
        raise InputError(f"{error.lines()[0]} (the log's): give --quantizer") from None
    if log.kept_layers:
        name, _ = server_flags.with_layers(key.name, re.findall(r"\w+", log.kept_layers), model)
        key = value = quantizers.parse(name)
    return key, value


#: fields of a workload by the names that a log has for them, where these are others
_SAID = {name: name for name in ASKED if name in {field.name for field in fields(StartupLog)}} | {
    "page_tokens": "block_tokens",
    "kv_cache_memory_bytes": "given_kv_bytes",
    "prompt_budget_tokens": "max_num_batched_tokens",
    "swa_full_tokens_ratio": "window_share",
    "cuda_graph_max_bs": "graph_requests",
}


def _newest(log: StartupLog) -> str:
    """The newest release of a log's engine that is known; "" of llama.cpp, whose builds are no releases."""
    return "" if log.engine == "llama.cpp" else next(iter(engines.releases().get(log.engine, {})), "")


#: what a log leaves open, each with its note: by the log, the fields that are known and those that are given
_OPEN: tuple[tuple[Callable[[StartupLog, Mapping[str, Any], Mapping[str, Any]], Any], str], ...] = (
    (
        lambda log, known, given: "weights_size_bytes" in known and log.file_gib and "weights_size_bytes" not in given,
        "a file of {type} of {log.file_gib:,.2f} GiB: memory is by its size, times are those of {work.weights}",
    ),
    (
        lambda log, known, given: log.engine != "llama.cpp" and not log.release and "@" not in known.get("stack", ""),
        "the log does not say its release: taken as the newest (--stack NAME@RELEASE)",
    ),
    (
        lambda log, known, given: log.release and _newest(log) and release_of(log.release) > release_of(_newest(log)),
        "{log.title} is newer than the newest release that is known ({newest}): counted as that",
    ),
    (
        lambda log, known, given: (
            log.engine in ("vllm", "sglang") and not {"gpu_memory_utilization", "kv_cache_memory_bytes"} & known.keys()
        ),
        "the log does not say the share of the memory: taken as the release's ({share})",
    ),
    (
        lambda log, known, given: log.is_wide and log.kv_format in ("", "auto"),
        "keys and values of the log have 32 bits, which no quantizer here has: taken as 16",
    ),
    (
        lambda log, known, given: log.has_draft and "speculative_config" not in known,
        "what drafts has weights, keys and values too: they are not computed (--speculative-config)",
    ),
    (lambda log, known, given: log.error, "the log has an error that is not of memory: {log.error}"),
    (
        lambda log, known, given: log.host_weight_gib,
        "{log.host_weight_gib:.2f} GiB of the weights stay in the host's memory",
    ),
)


def _workload_of(
    log: StartupLog, device: HardwareSpec, model: ModelSpec, overrides: Mapping[str, Any]
) -> tuple[Workload, tuple[str, ...]]:
    """The workload of a log, and what it leaves open."""
    is_file = log.engine == "llama.cpp"
    settings = {name: getattr(log, said) for name, said in _SAID.items()}
    if "weights" not in overrides:
        settings |= {"weights": _weights_of(log, model), "weights_size_bytes": _size_of(log, model)}
    if not is_file and (device.stacks or device.n_cores):
        settings["stack"] = f"{log.engine}@{log.release}".rstrip("@")
    if not model.tower_parameters:
        settings["tower"] = None
    settings |= {"speculative_config": _drafts_of(log, model), **overrides}
    known = {name: value for name, value in settings.items() if value is not None}
    if "cpu_moe_layers" not in known and (n_layers := _host_experts(log, model, known.get("weights"))):
        known["cpu_moe_layers"] = n_layers
    longest = known.get("max_model_len") or 2 * LENGTH_TOKENS
    n_input = max(min(LENGTH_TOKENS, longest // 2), 1)
    if is_file:  # the pool is as long as it was asked for: requests that fill it
        n_input, known["memory"] = max(longest - 1, 1), "server" if device.reported_memory else "paper"
    if known.get("memory") == "paper":
        known = {name: value for name, value in known.items() if name not in ("max_model_len", "prompt_budget_tokens")}
    work = Workload(
        batch=(log.max_num_seqs or 1) if is_file else None,  # as many as fit
        input_tokens=n_input,
        output_tokens=max(min(LENGTH_TOKENS, longest - n_input), 1),
        admission="reserve" if is_file else "paged",
        **known,
    )
    share = log_answers.OPTIONS[log.engine].get("gpu_memory_utilization")
    words = {"log": log, "work": work, "type": log.weights.upper(), "newest": _newest(log), "share": share}
    return work, tuple(note.format(**words) for is_open, note in _OPEN if is_open(log, known, overrides))


def _host_experts(log: StartupLog, model: ModelSpec, weights: str | None) -> int:
    """Layers whose experts lie in the host's memory: as many as its weights, but for input embeddings, are worth."""
    form = FORMATS[weights or WIDE]
    of_layer = model.expert_parameters * form.expert_eighths / 64 / model.n_layers
    if not log.host_weight_gib or not of_layer or (log.gpu_layers or 0) <= model.n_layers:
        return 0
    table = model.embedding_parameters * form.dense_eighths / 64
    return min(max(round((log.host_weight_gib * GIB - table) / of_layer), 0), model.n_layers)


def _drafts_of(log: StartupLog, model: ModelSpec) -> str | None:
    """The drafts of a log; None where it has none, or what drafts is not known. A log never opens a file."""
    try:
        draft = drafts.parse(log.speculative_config) if log.speculative_config else None
        is_known = draft is not None and (not draft.model or catalog.shipped_model_file(draft.model) is not None)
        if draft and is_known:
            drafts.model_of(draft, model)
    except InputError:
        return None
    return log.speculative_config if is_known else None


def _weights_of(log: StartupLog, model: ModelSpec) -> str | None:
    """The format of weights: as an engine made it where the checkpoint has 16 bits, else as the checkpoint has it; of
    a file of llama.cpp that mixes types, or whose type is no format here, the one whose size is nearest.

    Raises InputError where the log does not say the size of such a file.
    """
    if log.engine != "llama.cpp":
        return log.weights or None if model.released == WIDE else None
    if log.file_gib and (size := _size_of(log, model)):
        return min(_FILE_FORMATS, key=lambda name: abs(stored_bytes(model, FORMATS[name], 1) - size))
    if log.weights and log.weights not in FORMATS:
        raise InputError(
            f"weights = {show(log.weights)}: the log's, is not known (`dse list weights`), and it does not say the "
            "size of its file: give --weights, such as q4_k_m"
        )
    return log.weights or None


def _size_of(log: StartupLog, model: ModelSpec) -> int | None:
    """Bytes of a file of llama.cpp that mixes types, or whose type is no format here."""
    if log.engine != "llama.cpp" or not log.file_gib or not log.weights:
        return None
    size = round(log.file_gib * GIB)
    form = FORMATS.get(log.weights)
    is_same = form is not None and abs(size / stored_bytes(model, form, 1) - 1) <= SAME_FILE
    return None if is_same else size


def _of_running(
    served: ServerOfLog, point: Point, steps: Steps, memory: str
) -> tuple[str, tuple[str, ...], tuple[LogTerm, ...]]:
    """A running server: what binds it, what to try, and its times beside ours at the requests that its lines have."""
    log, results = served.log, engine.evaluate(point)
    tokens = log.kv_tokens or results["kv_pool_tokens"]
    work = log_answers.running(served, steps, tokens)
    what, says = log_answers.binds(served, steps, log.max_num_seqs)
    step_s = steps.running / steps.output_tokens_per_s
    ours = None
    if work is not None:
        at = log_answers.with_pool_of(served.with_pool() or served.work, work)
        found = engine.evaluate(served.point(at))
        is_known = log_answers.lengths(served, steps, tokens) is not None
        how = "They have about" if is_known else "Their lengths are not printed: taken as"
        says += f" {how} {work.input_tokens:,} tokens of prompt and {work.output_tokens:,} of answer."
        ours = found["tpot_s"]
        room = engine.evaluate(served.point(replace(at, batch=None)))["max_batch"]
        rate = None if ours is None else (work.batch or 1) / ours
    else:
        room = rate = None
    terms = [LogTerm(RUNNING, "sequence", steps.running, room if what == "pool" else None)]
    if what in ("pool", "limit"):  # requests are those of an instant, tokens a mean of seconds: alike where all is full
        terms += [LogTerm(STEP, "s", step_s, ours), LogTerm(RATE, "tok/s", steps.output_tokens_per_s, rate)]
    return f"{says} {memory}".strip(), log_answers.to_try(served, work, what), tuple(terms)


def _terms(log: StartupLog, point: Point, served: ServerOfLog) -> tuple[LogTerm, ...]:
    """The terms of a log beside those of a point."""
    results, memory = engine.evaluate(point), point.design.memory

    def of_gib(value: float | None) -> float | None:
        return None if value is None else value * GIB

    is_server = bool(memory.is_server)
    # buffers of llama.cpp are of another making than activations of a prompt budget
    activations = results["activation_bytes"] if is_server and log.engine != "llama.cpp" else None
    terms = [
        LogTerm(WEIGHTS, "B", of_gib(log.weight_gib), results["weight_bytes"]),
        LogTerm(ACTIVATIONS, "B", of_gib(log.activation_gib), activations),
    ]
    if log.engine == "llama.cpp":
        return (*terms, LogTerm(POOL, "B", of_gib(log.kv_gib), results["kv_bytes"]))
    if log.needed_gib is not None:
        terms.append(LogTerm(NEEDED, "B", of_gib(log.needed_gib), log_answers.needed_bytes(served)))
    beside = log.non_torch_gib
    if beside is not None and memory.graph_bytes:
        beside += log.graph_gib or 0.0
    ends = uncertainty.as_numbers(results)

    def of_pool(name: str, unit: str, logged: float | None, result: str) -> LogTerm:
        return LogTerm(name, unit, logged, results[result], ends.get(result))

    return (
        *terms,
        LogTerm(BESIDE, "B", of_gib(beside), results["runtime_bytes"] if is_server else None),
        of_pool(POOL, "B", of_gib(log.kv_gib), "free_bytes"),
        of_pool(TOKENS, "token", log.kv_tokens, "kv_pool_tokens"),
        of_pool(CONCURRENCY, "sequence", log.max_concurrency, "max_concurrency"),
    )


def _says(terms: tuple[LogTerm, ...], log: StartupLog, host_bytes: int) -> str:
    """The largest difference in a sentence, and what it likely means.

    The pool is what the other terms leave: it is named where none of them is known, or none explains it. Of the weights
    in host memory the design has `host_bytes`.
    """
    by_name, kv = {term.name: term for term in terms}, log_answers.OPTIONS[log.engine]["kv"]
    pool = by_name[POOL]
    ratio = _token_ratio(pool, by_name.get(TOKENS))
    if abs(ratio - 1) > SAME_TOKEN:
        return (
            f"Largest difference: bytes of a token, {100 * (ratio - 1):+.1f} % in the log: another KV format "
            f"({kv}), a device of the split with less room, or tokens printed in another way (--stack)."
        )
    apart = {term.name: term.difference for term in terms if term.unit == "B" and term.difference is not None}
    if not apart:
        shares = (f"{term.name}, {100 * term.share:+.1f} %" for term in terms if term.share is not None)
        return next((f"Largest difference: {share} in the log." for share in shares), _NOTHING)
    causes = {name: n_bytes for name, n_bytes in apart.items() if name not in (POOL, NEEDED)}
    largest = max(causes, key=lambda name: abs(causes[name]), default=POOL)
    if POOL in apart and abs(apart[POOL] + sum(causes.values())) > abs(causes.get(largest, 0.0)):
        largest = POOL
    n_bytes = apart.get(largest, 0.0)
    by = f"{largest}, {_gib(n_bytes)} in the log"
    if abs(n_bytes) <= AGREES_GIB * GIB:
        return f"Log and design agree; largest difference: {by}."
    host_gib = (log.host_weight_gib or 0.0) - host_bytes / GIB
    if log.engine == "llama.cpp" and largest == POOL:
        means = f"another KV format ({kv}), windows kept at full length, or another number of requests at once"
    elif largest == WEIGHTS and log.host_weight_gib and _is_on_host(n_bytes, by_name[WEIGHTS], host_gib):
        means = f"{host_gib:.2f} GiB more of them stay in the host's memory"
    else:
        means = _MEANS[largest][0 if n_bytes > 0 else 1].format(**log_answers.OPTIONS[log.engine])
    return f"Largest difference: {by}: {means}."


def _token_ratio(pool: LogTerm, tokens: LogTerm | None) -> float:
    """Bytes of a token in the log over ours; 1 where either does not say them."""
    sizes = (pool.log, pool.ours, tokens and tokens.log, tokens and tokens.ours)
    log_bytes, our_bytes, log_tokens, our_tokens = (max(size or 0.0, 0.0) for size in sizes)
    whole = log_bytes and our_bytes and log_tokens and our_tokens
    return (log_bytes / log_tokens) / (our_bytes / our_tokens) if whole else 1.0


def _is_on_host(apart: float, weights: LogTerm, host_gib: float) -> bool:
    """Whether weights that the device lacks are those that the host holds."""
    return abs(apart + host_gib * GIB) < max(AGREES_GIB * GIB, AGREES_SHARE * abs(weights.ours or 0.0))


def _memory(log: StartupLog, point: Point, source: str) -> MeasuredMemory | None:
    """The memory of a log; None where it does not say that of keys and values, or of a server that does not start, or
    where memory is a paper's.

    What the log does not print is as computed, and buffers are what the pool leaves: so the pool is the log's.
    """
    design, work = point.design, point.work
    memory = design.memory
    kv_bytes = _pool_bytes(log, point)
    if kv_bytes is None or kv_bytes < 0 or log.failure not in ("", startup_log.RUNS) or not memory.is_server:
        return None
    model_bytes = capacity.weight_bytes(design) - memory.beside_bytes
    weight = capacity.weight_bytes(design) if log.weight_gib is None else round(log.weight_gib * GIB)
    activation = memory.prompt_bytes if log.activation_gib is None else round(log.activation_gib * GIB)
    graph = memory.graph_bytes
    if graph and log.graph_gib is not None:
        graph = max(round(log.graph_gib * GIB), 0)
    is_given = bool(memory.given_bytes) or log.engine == "llama.cpp"
    buffers = memory.buffer_bytes
    if not is_given:
        is_static = memory.outside_bytes > 0
        held = memory._replace(
            prompt_bytes=activation,
            graph_bytes=graph,
            buffer_bytes=0,
            outside_bytes=activation + graph if is_static else 0,
            beside_bytes=weight - model_bytes,
        )
        room = capacity.free_bytes(design._replace(memory=held))
        buffers = round((room - kv_bytes) / memory.share_of_free)
    return MeasuredMemory(
        source=f"start-up log of {log.title}, {source}",
        engine=log.engine,
        release=log.release,
        device=point.device.name.partition("+")[0],
        model=(point.plan.whole or point.plan).model.name,
        weights=weights_name(work),
        tp=work.tp,
        pp=work.pp,
        ep=work.ep,
        gpu_memory_utilization=None if is_given else memory.asked_share,
        weight_bytes=int(weight),
        activation_bytes=int(activation),
        graph_bytes=int(graph),
        buffer_bytes=int(buffers),
        given_bytes=int(kv_bytes) if is_given else None,
    )


def _pool_bytes(log: StartupLog, point: Point) -> int | None:
    """Memory for keys and values by a log: that of its tokens, which says it more exactly than two decimals, and less
    where the device with the least room decides; the printed one where both do not fit each other."""
    printed = None if log.kv_gib is None else round(log.kv_gib * GIB)
    if not log.kv_tokens or log.engine == "llama.cpp" or point.design.memory.block_bits:
        return printed
    by_tokens = round(log.kv_tokens * engine.evaluate(point)["kv_bytes_per_token"])
    if printed is None or (1 - SAME_SERVER) * printed <= by_tokens <= printed + 2 * ROUNDING_GIB * GIB:
        return by_tokens
    return printed


def _command(device: str, model: str, kinds: tuple[str, str], work: Workload) -> str:
    """The command that evaluates a design."""
    words = ["dse", "point", "--device", device, "--model", model]
    sides = ("quantizer",) if kinds[0] == kinds[1] else ("key-quantizer", "value-quantizer")
    for side, kind in zip(sides, kinds, strict=False):
        words += [f"--{side}", kind]
    for name, form in ASKED.items():
        value = getattr(work, name)
        if value != form.default:
            is_switch = isinstance(value, bool)
            words += (
                [f"--{form.name}" if value else f"--no-{form.name}"] if is_switch else [f"--{form.name}", str(value)]
            )
    return shlex.join(words)
