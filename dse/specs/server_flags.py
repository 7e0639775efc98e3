"""Command lines of serving engines: their flags, and the fields of the design that a line starts.

The flags are those of hwspecs/commands.toml, by which `dse.questions.serve_command` writes lines, and other spellings
of the same that fields declare (`Field.also`).
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import hwspecs
from dse import quantizers
from dse.core import specfile
from dse.core.errors import DseError, InputError, show
from dse.core.field import SWITCH, WHOLE
from dse.quantizers import engine_names, vllm
from dse.specs import catalog, drafts, engine_options, weight_names
from dse.specs.device_and_model import ModelSpec
from dse.specs.engines import ENGINES, release_for, types
from dse.specs.weights import WIDE
from dse.specs.workload import ASKED, StateType

#: letters of a command at most
MAX_LETTERS = 2000
#: of a switch for experts: over all devices
ALL = "all"
#: what a flag takes that has no list of words
_KINDS = ("whole", "number", "layers", "text", "json", "several", "switch")
#: what is written of a load, and is no field of a design
OF_LOADS = ("host_cache",)
#: of drafts, of SGLang
_DRAFTS = ("method", "model", "steps", "width", "tokens")
#: words before a server's arguments -> its stack
SERVERS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm-openai": "vllm",  # of an image
    "sglang.launch_server": "sglang",
    "trtllm-serve": "trtllm",
    "llama-server": "llama.cpp",
    "llama-cli": "llama.cpp",
    "llama-bench": "llama.cpp",
}
#: spellings of flags that neither the table nor a field has -> field
_SPELLED = {
    "--model": "model",
    "--hf-repo": "model",
    "-q": "weights",
    "-ctk": "quantizer",
    "-ctv": "value_quantizer",
    "--dp-size": "ranks",
    "--dp": "ranks",
    "-dp": "ranks",
    "--data-parallel-size": "ranks",
    "-sm": "split",
    "-ts": "parts",
    "-b": "step",
}
#: switches of former releases -> field and what they stand for
_TURNS = {"--enable-dp-attention": ("dp_attention", True), "-nkvo": ("kv_offload", 1.0)}
#: vLLM's word for layers with a sliding window
_WINDOWS = "sliding_window"
#: switches that change nothing here
_IDLE = ("--trust-remote-code", "--jinja")
#: of a page, whose reader has no files on this machine
_OF_FILES = "calibrated"
#: of a model on a hub
ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)\S*")


@dataclass(frozen=True)
class Flag:
    """A flag of an engine: its name, or two that go together, and what it takes."""

    names: tuple[str, ...]
    #: whole, number, layers, text, json, several, switch, or words with | between
    takes: str
    #: of a switch: the value of the field
    stands_for: Any = None

    @property
    def words(self) -> tuple[str, ...]:
        """Values that the flag takes; () where these are no list."""
        return () if self.takes in _KINDS else tuple(self.takes.split("|"))


@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """The flags of an engine's release that say something of a design, by field, and how its command begins."""

    release: str
    start: str
    always: tuple[str, ...]
    per_rank: tuple[str, ...]
    #: whether its parser takes the beginning of a flag for the flag
    prefixes: bool
    #: formats that are made of 16-bit weights as they are loaded -> the engine's word
    online: Mapping[str, str]
    #: values of settings that a search tries beside the engine's own, by field
    tried: Mapping[str, tuple[float, ...]]
    #: types of recurrent states that it tries too, by code of their layers
    tried_states: Mapping[str, tuple[StateType, ...]]
    flags: Mapping[str, Flag]
    #: what joins the machines of one server: as usual, and where ranks of data parallel are devices of their own
    machines: Mapping[str, str]


@dataclass
class ReadCommand:
    """Fields that a command line sets, by their names in a workload or model, weights, quantizer, value_quantizer,
    stack; and the flags that no field has."""

    values: dict[str, Any] = field(default_factory=dict)
    #: the model's name as the line has it; "" where it names none that is known
    model_name: str = ""
    left_out: list[str] = field(default_factory=list)
    #: flags with whose values the engine does not start -> why
    refused: dict[str, str] = field(default_factory=dict)


@cache
def engines() -> Mapping[str, EngineFlags]:
    """The flags of each engine that commands are written for, by stack."""
    data = specfile.read(Path(hwspecs.__file__).parent / "commands.toml").data
    return {
        stack: EngineFlags(
            release=entry["release"],
            start=entry["start"],
            always=tuple(entry["always"]),
            per_rank=tuple(entry["per_rank"]),
            prefixes=entry.get("prefixes", False),
            online=entry["online"],
            machines=entry["machines"],
            tried={name: tuple(values) for name, values in entry["tried"].items()},
            tried_states={code: tuple(names) for code, names in entry.get("tried_states", {}).items()},
            flags={name: Flag(tuple(names.split()), *more) for name, (names, *more) in entry["flags"].items()},
        )
        for stack, entry in data.items()
    }


@cache
def _fields(stack: str) -> Mapping[str, tuple[str, Any]]:
    """The field of each flag, with dashes, and of a switch its value; of all engines where no stack is known."""
    known: dict[str, tuple[str, Any]] = {flag: (name, None) for flag, name in _SPELLED.items()} | _TURNS
    for name, asked in ASKED.items():
        if asked.kind is SWITCH:
            known |= {flag: (name, False) for flag in asked.also}
        elif name != _OF_FILES:
            known |= {flag: (name, None) for flag in (f"--{asked.name}", *asked.also, *asked.former)}
    for entry in [engines()[stack]] if stack in engines() else engines().values():
        for name, flag in entry.flags.items():
            if name in OF_LOADS:
                continue
            meant = "ranks" if name == "dp_attention" and flag.stands_for is None else name
            known |= {word.replace("_", "-"): (meant, flag.stands_for) for word in flag.names}
    return known


def stack_of(text: str) -> str:
    """The stack of an engine as people write it, SGLang, TensorRT-LLM@1.2.0 or llama-server; others as they are."""
    name, at, release = text.partition("@")
    titles = {title.lower(): stack for stack, title in ENGINES.items()}
    return (titles | SERVERS).get(name.lower(), name) + at + release


def flag_of(stack: str, name: str, value: Any = None) -> str:
    """The flag of a field in the words of an engine, that of `dse` where it has none; with a value, which a switch says
    by itself."""
    flag = engines()[stack].flags.get(name) if stack in engines() else None
    said = flag.names[0] if flag else f"--{ASKED[name].name}"
    return said if value is None or (flag and flag.stands_for == value) else f"{said} {value}"


def model_fields(text: str) -> dict[str, Any]:
    """The model that a name or an address means, with the weights that it says; {} for none that ships."""
    text = ADDRESS.sub(r"\1", text)
    if not (path := catalog.shipped_model_file(text)):
        return {}
    said = weight_names.format_in(text)
    weights = weight_names.of_model(said, catalog.model(text)) if said.name else None
    return {"model": path.stem, "weights": weights}


def read(text: str) -> ReadCommand:
    """The fields that a server's command line sets. Raises InputError for quotes that are open."""
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise InputError(f"{show(text)}: {error}: close the quotes") from None
    command, stack = ReadCommand(), ""
    for flag, value in _arguments(engine_options.spelled_out(_written_out(words))):
        if flag == "" or (flag == "-m" and stack != "llama.cpp"):  # of Python: a module
            server, tag = _server(value)
            if server:
                command.values["stack"] = stack = server
                command.left_out += [f"the image's release {tag}"] if tag else []
            elif "/" in value or catalog.shipped_model_file(value):
                _take(command, "model", flag, value)
        elif flag in _fields(stack):
            name, stands_for = _fields(stack)[flag]
            if stands_for is None:
                _take(command, name, flag, value)
                command.refused |= _no_type(stack, name, flag, value)
            else:
                command.values[name] = stands_for
        elif flag not in _IDLE:
            known = [engines()[stack]] if stack else engines().values()
            own = [name for engine in known for entry in engine.flags.values() for name in entry.names]
            near = engine_options.near(flag, ENGINES.get(stack, ""), own)
            command.left_out.append(f"{flag} {value}".strip() + (f" ({near})" if near else ""))
    _settle(command, stack)
    return command


def _server(word: str) -> tuple[str, str]:
    """The stack that a word before a server's arguments names, and the tag of an image; "" for none."""
    name, _, tag = word.rpartition("/")[2].partition(":")
    return SERVERS.get(name, ""), tag


def _written_out(words: list[str]) -> list[str]:
    """A command's words, each beginning of one flag alone in full where the engine's parser takes it for that."""
    stack = next(filter(None, (_server(word)[0] for word in words)), "")
    if stack not in engines() or not engines()[stack].prefixes:
        return words
    known = _options_of(stack)
    written = []
    for word in words:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        begun = [name for name in known if name.startswith(flag)] if flag[:2] == "--" and flag not in known else []
        written.append(f"{begun[0]}{equals}{value}" if len(begun) == 1 else word)
    return written


@cache
def _options_of(stack: str) -> frozenset[str]:
    """All options that an engine's lines may have, with two dashes, those that switch others off too."""
    names = {*engine_options.names(ENGINES[stack]), *engine_options.STAND_FOR, *_fields(stack), *_IDLE}
    options = {name for name in names if name[:2] == "--"}
    return frozenset(options | {f"--no-{name[2:]}" for name in options})


def _no_type(stack: str, name: str, flag: str, value: str) -> dict[str, str]:
    """The line for a KV type that an engine does not know; {} for one that it does, and for other flags."""
    entry = engines()[stack].flags.get(name) if stack in engines() else None
    is_own = entry is not None and flag in (word.replace("_", "-") for word in entry.names)
    if name not in ("quantizer", "value_quantizer") or entry is None or not is_own:
        return {}
    if value in (*entry.words, *types(stack, release_for(stack, "") or "")):
        return {}
    return {f"{flag} {value}".strip(): f"no KV type of {ENGINES[stack]} {engines()[stack].release}"}


def _arguments(words: list[str]) -> Iterator[tuple[str, str]]:
    """Flags with their values, and words without a flag under ""."""
    switches = {*_IDLE, *(flag for flag, (_, stands_for) in _fields("").items() if stands_for is not None)}
    flags = [flag for engine in engines().values() for flag in engine.flags.values()]
    several = {name for flag in flags if flag.takes == "several" for name in flag.names}
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if not word.startswith("-"):
            yield "", word
        elif equals:
            yield flag, value
        elif flag in switches or not words or words[0].startswith("-"):
            yield flag, ""
        elif flag in several:
            n_values = next((i for i, value in enumerate(words) if value.startswith("-")), len(words))
            yield flag, " ".join(words.pop(0) for _ in range(n_values))
        else:
            yield flag, words.pop(0)


def _take(command: ReadCommand, name: str, flag: str, value: str) -> None:
    """One flag; one whose value no design has is left out, and said."""
    try:
        if name in ("model", "file"):
            found: dict[str, Any] = model_fields(value)
            command.model_name = value if found else ""
        elif name in ("quantizer", "value_quantizer"):
            said = engine_names.ours(value, quantizers.FAMILIES)
            found = {name: said} if said.partition(":")[0] in quantizers.FAMILIES else {}
        elif name == "weights":
            weight_names.format_in(f"model-{value}")
            found = {name: value}
        elif name in ("ranks", "draft_steps", "draft_width", "draft_tokens"):
            found = {name: WHOLE.parse(flag, value)}
        else:
            found = {name: ASKED[name].kind.parse(flag, value) if name in ASKED else value}
    except DseError:
        found = {}
    command.values |= found
    if not found:
        command.left_out.append(f"{flag} {value}".strip())


def _settle(command: ReadCommand, stack: str) -> None:
    """Replace what several flags say together by the fields of a design."""
    values = command.values
    tp, ranks = values.get("tp", 1), values.pop("ranks", None)
    if ranks and ranks > 1:
        # ranks of vLLM are devices of their own, those of others share the devices
        if (stack == "vllm" and tp == 1) or (stack == "sglang" and ranks == tp):
            values["tp"], values["dp_attention"] = ranks, True
        else:
            values.pop("dp_attention", None)
            command.left_out.append(f"data parallel {ranks}")
    if values.get("ep") == ALL:
        values["ep"] = values.get("tp", 1)
    for name in engines()[stack].per_rank if stack in engines() and values.get("dp_attention") else ():
        if name in values:
            values[name] *= values["tp"]
    _settle_weights(values, stack)
    _settle_layers(command)
    drafted = {name: values.pop(f"draft_{name}", None) for name in _DRAFTS}
    if drafted["method"] and (n_tokens := drafted["steps"] or drafted["tokens"]):
        values["speculative_config"] = drafts.config_text(drafted["method"], drafted["model"] or "", n_tokens)
    values.pop("step", None)
    split, parts = values.pop("split", ""), values.pop("parts", "").split(",")
    if len(set(parts)) > 1 or (split in ("row", "tensor") and len(parts) == 1):
        command.left_out.append(f"split {split} {','.join(parts)}".replace("  ", " ").strip())
    elif len(parts) > 1:
        values["tp" if split in ("row", "tensor") else "pp"] = len(parts)


def _settle_weights(values: dict[str, Any], stack: str) -> None:
    """The format that a word of an engine means: of 16-bit weights what it makes of them, else that of the files."""
    said = values.get("weights")
    if not said:
        return
    model = catalog.model(values["model"]) if "model" in values else None
    made = {word: name for name, word in engines()[stack].online.items()} if stack in engines() else {}
    form = weight_names.format_in(f"model-{said}")
    if model and model.released == WIDE and said in made:
        values["weights"] = made[said]
    elif form.name:
        values["weights"] = weight_names.of_model(form, model) if model else form.name


def _settle_layers(command: ReadCommand) -> None:
    """Join the layers in 16 bits, which a flag of their own lists, to the quantizer."""
    words, values = command.values.pop("skip_layers", "").split(), command.values
    if "quantizer" in values:
        model = catalog.model(values["model"]) if "model" in values else None
        values["quantizer"], unread = with_layers(values["quantizer"], words, model)
        flag = engines()["vllm"].flags["skip_layers"].names[0]
        command.left_out += [" ".join([flag, *unread])] if unread else []


def with_layers(name: str, words: Sequence[str], model: ModelSpec | None) -> tuple[str, list[str]]:
    """A quantizer with the layers that vLLM is told to keep in 16 bits, by number or those with windows, beside its
    own; and the words that mean none of the model's.

    Source: vllm/model_executor/layers/attention/attention.py and mla_attention.py of vLLM 0.33.0.
    """
    if not words or quantizers.FAMILIES[name.partition(":")[0]].exact:  # nothing is listed, or nothing packed
        return name, []
    if model is None or model.blocks_note:
        return name, list(words)
    numbers = {str(i): {i} for i in range(model.n_layers)}
    meant = numbers if model.is_latent else numbers | {_WINDOWS: model.window_layers}
    own = set(vllm.own_layers(name, model.n_layers, is_hybrid=model.is_hybrid))
    kept = own.union(*(meant.get(word, ()) for word in words))
    skip = f"{',' if ':' in name else ':'}skip={'+'.join(map(str, sorted(kept)))}" if kept - own else ""
    return name + skip, [word for word in words if word not in meant]
