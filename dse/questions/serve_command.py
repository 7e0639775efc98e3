"""Write the command line that starts a design on its engine, by the flags of hwspecs/commands.toml.

`dse.specs.server_flags` reads such lines by the same table. What a design leaves open is left to the engine, but for
the longest context (else the model's, which a pool may not hold) and what releases differ in.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from dse.core.errors import InputError
from dse.core.specfile import load_json
from dse.core.units import GIB
from dse.model import starts
from dse.model.kv_layout import KvPlan
from dse.model.lower import most_at_once
from dse.model.point import Point
from dse.quantizers import FAMILIES, QuantizerSpec, engine_names, parse, skipping, vllm
from dse.specs import catalog, deployment, drafts, engines, server_flags, servers
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.llama_options import MOST_LAYERS
from dse.specs.server_flags import EngineFlags, Flag
from dse.specs.weight_names import usual_file
from dse.specs.weights import FORMATS, WIDE, WIDE_BITS
from dse.specs.workload import ASKED, TIMING, Workload

#: fields that say what is asked of a server, how it is counted, or what others of its device take: no server's own
_NOT_SET = frozenset(
    ("batch", "input_tokens", "output_tokens", "prefix_tokens", "samples", "rounds", "cached_input_discount")
) | {"expert_skew", "weights_size_bytes", "dequant_path", "memory", "calibrated", "free_memory_bytes", *TIMING}
#: what flags say that together make a field, or say two
_FIELDS = {
    **{f"draft_{part}": ("speculative_config",) for part in ("method", "model", "steps", "width", "tokens")},
    "dp_attention": ("tp", "dp_attention"),
    "split": ("tp", "pp"),
    "parts": ("tp", "pp"),
    "step": ("prompt_budget_tokens",),
}
#: tokens of a batch that llama.cpp computes in micro-batches: no micro-batch is larger; the default of -b in
#: tools/server/README.md, as hwspecs/commands.toml reads it
_LLAMA_BATCH = 2048
#: SGLang's words for methods that draft
_SGLANG_DRAFTS = {
    drafts.MTP: "EAGLE",
    drafts.EAGLE: "EAGLE",
    drafts.EAGLE3: "EAGLE3",
    drafts.MODEL: "STANDALONE",
    drafts.TEXT: "NGRAM",
}


@dataclass(frozen=True)
class ServeCommand:
    """The command that starts a design on its engine; without a line, `cannot` says in a line why there is none."""

    #: one shell command, quoted where needed; "" where no engine starts the design
    line: str
    #: fields of the design that flags say
    set_by: tuple[str, ...] = ()
    #: in words, what is left to the engine, with the numbers that are counted
    left: tuple[str, ...] = ()
    #: in words, what of the design no flag of the engine says: the line does not start that
    cannot: tuple[str, ...] = ()
    #: what joins several machines, which have addresses of their own; "" on one
    machines: str = ""

    @property
    def lacks(self) -> tuple[str, ...]:
        """Parts of the design and names of machines that the line leaves out, in words."""
        return self.cannot + ((f"several machines, joined by {self.machines}",) if self.machines else ())

    @property
    def lines(self) -> list[str]:
        """The command and, on a line of its own that is not copied with it, what it does not say; else why there is
        none."""
        said = [f"Not in this line: {'; '.join(self.lacks)}"] if self.lacks else []
        return [self.line, *said] if self.line else [f"no command: {'; '.join(self.lacks)}"]

    def text(self) -> str:
        """The command with what it does not say, in lines; "" where there is none."""
        return "\n".join(["Run it: " + self.line, *self.lines[1:]]) if self.line else ""


@dataclass
class _Line:
    """A command as it is written: words of the model, flags of fields, and what is said beside."""

    engine: EngineFlags
    title: str
    #: words of the model or its file
    model: list[str] = field(default_factory=list)
    words: dict[str, list[str]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    cannot: list[str] = field(default_factory=list)
    machines: str = ""

    def say(self, name: str, value: Any, shown: str = "") -> None:
        """Write the flag of a field, or say that there is none for this value."""
        flag = self.engine.flags.get(name)
        if flag is None or (words := _words(flag, value)) is None:
            title = ASKED[name].title or ASKED[name].name if name in ASKED else name.replace("_", " ")
            self.cannot.append(f"{title} {shown or value}: no flag of {self.title} says it")
        else:
            self.words[name] = words


def serve_command(
    device: HardwareSpec, plan: KvPlan, work: Workload, of_load: Mapping[str, Any] | None = None
) -> ServeCommand:
    """Return the command that starts a design on the engine of its stack, or of its times where none is named.

    `plan` is as it was asked for; `of_load` says what a load has of the server (`server_flags.OF_LOADS`): bytes of host
    memory for each device. Raises InputError for a device, model and workload that do not go
    together."""
    point = Point(device, plan, work)
    lowered = point.lowered
    stack = starts.engine_of(device, point.asked, lowered.stack_name or "").partition("@")[0]
    if why := _why_none(point, plan, stack):
        return ServeCommand("", cannot=(why,))
    line = _Line(server_flags.engines()[stack], title=engines.ENGINES[stack])
    _weights(line, point, stack)
    _devices(line, point.asked, stack)
    _quantizers(line, plan, stack)
    _lengths(line, point, stack)
    _drafting(line, point.asked, stack)
    _rest(line, work, stack)
    _of_load(line, of_load or {}, point, stack)
    _left(line, point, stack)
    start = [*line.engine.start.split(), *line.model]
    said = [word for name in line.engine.flags for word in line.words.get(name, ())]
    names = dict.fromkeys(part for name in ("model", *line.words) for part in _FIELDS.get(name, (name,)))
    return ServeCommand(
        line=shlex.join([*start, *said]),
        set_by=tuple(names),
        left=tuple(line.left),
        cannot=tuple(dict.fromkeys(line.cannot)),
        machines=line.machines,
    )


def _why_none(point: Point, plan: KvPlan, stack: str) -> str:
    """The line for a design that no engine starts; "" where one does."""
    lowered = point.lowered
    if point.asked.model_kind == "ideal" or (lowered.results["memory"] != "server" and stack):
        return "counted as papers do, not as an engine runs it: use --memory server, without --model-kind ideal"
    if stack not in server_flags.engines() or lowered.results["memory"] != "server":
        known = ", ".join(engines.ENGINES[name] for name in server_flags.engines())
        return f"{engines.ENGINES.get(stack, stack) or point.device.name}: commands are written for {known}"
    if lowered.refused:
        return starts.why_not(lowered.refused)
    stacks = {g.implementation.stack for g in point.plan.groups if g.implementation and g.implementation.stack}
    asked, title = (point.asked.implementation or "").partition(":")[0], engines.ENGINES[stack]
    if asked and stacks != {stack}:
        return f"implementation {asked}: is no code of {title}"
    try:
        _kv_words(plan, stack)
    except InputError as error:
        return str(error)
    form = FORMATS.get(point.asked.weights or point.plan.whole_model.released)
    if form and form.is_file and stack != "llama.cpp":
        return f"{form.name} weights: are a file of llama.cpp, which {title} is not planned with: use --stack llama.cpp"
    return "" if point.max_batch else "not one request fits: no server starts"


def _words(flag: Flag, value: Any) -> list[str] | None:
    """The words of a flag with its value; None for a value that it does not take."""
    if flag.stands_for is not None:
        return list(flag.names) if value == flag.stands_for else None
    if flag.takes == "layers":
        return [flag.names[0], "all" if value == MOST_LAYERS else str(value)]
    if flag.takes == "several":
        return [*flag.names, *map(str, value)]
    if flag.takes == "whole" and value != int(value):
        return None
    text = f"{value:.12g}" if isinstance(value, float) else str(value)
    return None if flag.words and text not in flag.words else [*flag.names, text]


def _weights(line: _Line, point: Point, stack: str) -> None:
    """The checkpoint, and the format that the engine makes of it."""
    model, work = point.plan.whole_model, point.asked
    hub, is_wide = catalog.hub_name(model), (work.weights_bits, work.activation_bits) == (WIDE_BITS, WIDE_BITS)
    form = work.weights or (WIDE if is_wide else "")
    if stack == "llama.cpp":
        _file(line, model, hub, form)
        return
    name = hub or model.alias or model.name
    line.model = [*line.engine.flags["model"].names, name] if "model" in line.engine.flags else [name]
    if not hub:
        line.cannot.append(f"{name}: its name on a hub is not known here: put that, or a path, in its place")
    elif form != model.released and model.released == WIDE and form in line.engine.online:
        line.say("weights", line.engine.online[form])
    elif form != model.released:
        line.cannot.append(f"{work.weights_text}: name a checkpoint that has them in place of {hub} (--model)")


def _file(line: _Line, model: ModelSpec, hub: str, form: str) -> None:
    """The file of llama.cpp: of the repository that was named, else one that the reader has."""
    kind = form if form == WIDE or (form in FORMATS and FORMATS[form].is_file) else ""
    if not kind:
        usual = usual_file(model)
        line.cannot.append(f"{form or 'such'} weights: no type of llama.cpp's files: --weights {usual} is one")
    repository = hub.partition(":")[0]
    if kind and "gguf" in repository.lower():
        line.model = [*line.engine.flags["model"].names, f"{repository}:{kind.upper()}"]
        return
    name = f"{model.name}-{kind.upper()}.gguf" if kind else f"{model.name}.gguf"
    line.model = [*line.engine.flags["file"].names, name]
    line.cannot.append(f"{name}: no repository with this file is known here: put its path in its place")


def _devices(line: _Line, work: Workload, stack: str) -> None:
    """The split over devices."""
    if stack == "llama.cpp":
        if work.tp > 1 and work.pp > 1:
            split = f"tensor parallel {work.tp} and pipeline parallel {work.pp}"
            line.cannot.append(f"{split}: llama.cpp splits tensors or layers")
        elif work.n_devices == 1:
            line.say("split", "none")
        else:
            line.say("split", "tensor" if work.tp > 1 else "layer")
            line.say("parts", ",".join("1" * work.n_devices))
        return
    if work.dp_attention:
        flag = line.engine.flags["dp_attention"]
        line.say("dp_attention", work.tp if flag.takes == "whole" else True)
    if work.tp > 1 and not (work.dp_attention and stack == "vllm"):  # whose ranks are devices of their own
        line.say("tp", work.tp)
    for name in ("pp", "ep", "dcp"):
        if (value := getattr(work, name)) > 1:
            is_all = name == "ep" and value == work.tp and line.engine.flags["ep"].takes == "switch"
            line.say(name, server_flags.ALL if is_all else value)
    if work.n_devices > deployment.SERVER:
        line.machines = line.engine.machines["ranks" if work.dp_attention and stack == "vllm" else "usual"]


def _quantizers(line: _Line, plan: KvPlan, stack: str) -> None:
    """The types of keys and values, where they are not what the engine keeps by itself."""
    usual = "f16" if stack == "llama.cpp" else "auto"
    words, kept = _kv_words(plan, stack)
    for name, word in words.items():
        spec = plan.value_quantizer if name == "value_quantizer" else plan.key_quantizer
        if word != usual and not (usual == "auto" and spec.family.exact):
            line.say(name, word)
    if kept:
        line.say("skip_layers", kept)


def _kv_words(plan: KvPlan, stack: str) -> tuple[dict[str, str], tuple[int, ...]]:
    """The words of an engine for the quantizers of a plan, by flag, and the layers that it must be told to keep in 16
    bits. Raises InputError where its types do not store the same."""
    key, value, words = plan.key_quantizer, plan.value_quantizer, dict[str, str]()
    if stack == "vllm":
        sides = [(key.of("key", i), value.of("value", i)) for i in range(plan.model.n_layers)]
        named = [(skipping.bare(one).name, skipping.bare(other).name) for one, other in sides]
        name, kept = vllm.one_type(named, is_hybrid=plan.model.is_hybrid)
        if kept and plan.model.blocks_note:
            raise InputError(f"{key.name}: vLLM numbers blocks, not layers: {plan.model.blocks_note}")
        return {"quantizer": vllm.served().get(name, "auto")}, kept
    for flag, spec in (("quantizer", key), ("value_quantizer", value)):
        if flag in server_flags.engines()[stack].flags:
            words[flag] = _kv_word(flag, spec, stack)
    return words, ()


def _kv_word(flag: str, spec: QuantizerSpec, stack: str) -> str:
    """The word of an engine for a KV quantizer, of those that its flag takes. Raises InputError for none."""
    words, bare = server_flags.engines()[stack].flags[flag].words, skipping.bare(spec)
    names = [bare.name] if bare.name in FAMILIES else []
    names += [name for name, ours in _offered(engines.ENGINES[stack]) if ours == bare.name]
    names += ["auto"] if spec.family.exact else []
    found = [name for name in names if name in words and spec.family.name in FAMILIES and not spec.layers]
    if not found:
        raise InputError(f"{spec.name}: no KV type of {engines.ENGINES[stack]} stores the same (`dse list quantizers`)")
    return found[0]


@cache
def _offered(engine: str) -> tuple[tuple[str, str], ...]:
    """Names of an engine for KV quantizers, and those of the quantizers."""
    offered = engine_names.offered(FAMILIES)
    return tuple((entry.name, parse(entry.text).name) for entry in offered if entry.engine == engine)


def _lengths(line: _Line, point: Point, stack: str) -> None:
    """The longest context, and requests and tokens at once."""
    work, longest = point.asked, point.asked.longest_tokens
    positions = point.plan.whole_model.max_position_tokens
    if point.plan.whole_model.lacks_positions(longest):
        line.cannot.append(f"context of {longest:,} tokens: the model has {positions:,} positions")
    most, at_once = most_at_once(point.device, work, point.lowered.stack_name), min(point.batch, point.max_batch)
    running = work.max_num_seqs or (at_once if at_once > most else None)
    if stack == "llama.cpp":
        running = _slots(line, point, running, at_once)
    elif longest != positions:
        line.say("max_model_len", longest)
    n_ranks = work.tp if work.dp_attention and "max_num_seqs" in line.engine.per_rank else 1
    if running and running % n_ranks:
        title = f"{ASKED['max_num_seqs'].title} {running:,}"
        line.cannot.append(f"{title}: {line.title} has the same limit on each of {n_ranks} devices")
    elif running or "max_num_seqs" in line.engine.always:
        usual = servers.of(stack, point.device, work.stack).sequences.count
        line.say("max_num_seqs", -(-(running or usual) // n_ranks))


def _slots(line: _Line, point: Point, running: int | None, at_once: int) -> int | None:
    """The tokens of llama.cpp's slots, each of which has room for the longest context, and their number, None for its
    own: fewer than were asked for where memory holds no more."""
    work, longest = point.asked, point.asked.longest_tokens
    if work.max_total_tokens:
        line.say("max_total_tokens", work.max_total_tokens)
        if work.max_model_len:
            line.cannot.append(f"{ASKED['max_model_len'].title} {longest:,}: is a slot's part of --ctx-size")
    else:
        full = replace(work, max_num_seqs=running, input_tokens=longest - work.output_tokens)
        held = min(running or at_once, max(Point(point.device, point.asked_plan, full).max_batch, 1))
        if work.max_num_seqs and held < work.max_num_seqs:
            asked = f"{ASKED['max_num_seqs'].title} {work.max_num_seqs:,}"
            line.cannot.append(f"{asked}: memory holds {held:,} slots of {longest:,} tokens")
        running = running and held
        line.say("max_total_tokens", held * longest)
    if (budget := work.prompt_budget_tokens or 0) > _LLAMA_BATCH:
        line.say("step", budget)
    return running


def _drafting(line: _Line, work: Workload, stack: str) -> None:
    """Drafts, in the words of the engine."""
    if not (asked := work.draft) or not work.speculative_config:
        return
    said = load_json(work.speculative_config)
    name = str(said.get("model") or "")
    if asked.method == drafts.MODEL and "/" not in name:
        said["model"] = name = catalog.hub_name(catalog.model(name)) or name
    if "draft_method" not in line.engine.flags:
        line.say("speculative_config", drafts.written(said), f"({asked.method})")
        return
    if asked.method in (drafts.EAGLE, drafts.EAGLE3) and not name:
        line.cannot.append(f'drafts by {asked.method}: name its head in --speculative-config, as "model"')
    if asked.in_parallel:
        line.cannot.append(f"parallel drafting: no flag of {line.title} says it")
    line.say("draft_method", _SGLANG_DRAFTS[asked.method])
    if name and asked.method != drafts.TEXT:
        line.say("draft_model", name)
    if asked.method == drafts.TEXT:
        line.say("draft_tokens", asked.n_tokens)
    else:
        line.say("draft_steps", asked.n_tokens)
        line.say("draft_width", 1)
        line.say("draft_tokens", asked.n_tokens + 1)


def _rest(line: _Line, work: Workload, stack: str) -> None:
    """All other fields that are not at their defaults."""
    done = {"tp", "pp", "ep", "dcp", "dp_attention", "max_num_seqs", "max_model_len", "speculative_config", "weights"}
    done |= {"max_total_tokens"} if stack == "llama.cpp" else set()
    for name, asked in ASKED.items():
        value = getattr(work, name)
        if name in done or name in _NOT_SET or value == asked.default:
            continue
        is_own = {
            "admission": value == "paged",
            "batching": value == servers.batching(stack, work.stack),
            "prefix_cache": value == "on",
            "pp_batches": value == work.pp,
            "weights_bits": True,
            "activation_bits": True,
            "prompt_chunk_tokens": True,  # of a paper's memory
        }
        if not is_own.get(name, False):
            line.say(name, value)


def _of_load(line: _Line, of_load: Mapping[str, Any], point: Point, stack: str) -> None:
    """Host memory behind the prefix cache: GiB of all devices for vLLM, GB of each for SGLang."""
    if point.asked.prefix_cache != "off":
        line.left.append("prefix cache: on where the model allows it, as by default")
    if n_bytes := of_load.get("host_cache"):
        size = n_bytes // 10**9 if stack == "sglang" else n_bytes * point.asked.n_devices // GIB
        line.say("host_cache", size, f"of {n_bytes / 1e9:,.4g} GB a device")


def _left(line: _Line, point: Point, stack: str) -> None:
    """Fields that the design leaves open: written where releases differ, else said with the counted number."""
    work, results = point.asked, point.lowered.results
    counted: dict[str, Any] = {
        "gpu_memory_utilization": results["gpu_memory_utilization"],
        "prompt_budget_tokens": results["prompt_budget_tokens"],
        "max_num_seqs": most_at_once(point.device, work, point.lowered.stack_name),
    }
    for name, value in counted.items():
        if name in line.words or name not in line.engine.flags or value is None or getattr(work, name) is not None:
            continue
        is_replaced = name == "gpu_memory_utilization" and work.kv_cache_memory_bytes
        if name in line.engine.always and not is_replaced:
            line.say(name, value)
        elif not is_replaced:
            line.left.append(f"{ASKED[name].title}: {line.title}'s own, {value:,.6g} counted")
    if work.gpu_layers is None and "gpu_layers" in line.engine.flags:
        line.left.append(f"{ASKED['gpu_layers'].title}: as many as it finds room for, all counted")
    if point.asked.page_tokens == ASKED["page_tokens"].default and "page_tokens" in line.engine.flags:
        line.left.append(f"{ASKED['page_tokens'].title}: as the attention kernels take it, {work.page_tokens} counted")
    if (release := (work.stack or "").partition("@")[2]) and release != line.engine.release:
        line.left.append(f"flags are those of {line.title} {line.engine.release}, not of {release}")
