"""Texts that a reader types or pastes, as fields of a design: a model, a device, several of one, an address, a server's
command line."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dse import quantizers
from dse.core.errors import DseError, InputError, did_you_mean, show
from dse.core.field import SWITCH
from dse.explorer.common_fields import WORK
from dse.explorer.fields import MAX_TEXT
from dse.quantizers import engine_names
from dse.specs import catalog, device_names, model_names, weight_names

#: what a workload asks for, by its key; flags of servers -> the field that says the same
_WORK = {field.key: field for field in WORK.values()}
FLAGS = {
    "--model": "model",
    "--model-path": "model",
    "-hf": "model",
    "--hf-repo": "model",
    "--enable-expert-parallel": "ep",
    "--kv-cache-dtype": "quantizer",
    "--cache-type-k": "quantizer",
    "-ctk": "quantizer",
    "--cache-type-v": "value_quantizer",
    "-ctv": "value_quantizer",
    "--quantization": "weights",
    "-q": "weights",
    **{
        flag: key
        for key, field in _WORK.items()
        for flag in (f"--{key.replace('_', '-')}", *field.also, *field.former)
        if field.kind is not SWITCH
    },
}
#: flags that turn a switch on or off
TURNS = {
    "--enable-dp-attention": ("dp_attention", True),
    "--enable-attention-dp": ("dp_attention", True),
    **{flag: (key, False) for key, field in _WORK.items() if field.kind is SWITCH for flag in field.also},
}
#: flags that take none of the words after them; the last of these change nothing here
SWITCHES = (*TURNS, "--enable-expert-parallel", "--trust-remote-code", "--enable-prefix-caching", "--jinja")
#: words before a server's arguments -> its stack
SERVERS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "sglang.launch_server": "sglang",
    "llama-server": "llama.cpp",
    "llama-cli": "llama.cpp",
    "llama-bench": "llama.cpp",
}
_ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)\S*")


@dataclass
class Typed:
    """Fields and their values, and what of a text was not taken."""

    values: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def said(self) -> str:
        """Say what was taken, and what was not, in a line."""
        told = {key.replace("_", " "): value for key, value in self.values.items() if value not in ("", None)}
        taken = ", ".join(f"{key} {value}" for key, value in told.items())
        rest = f"; not taken: {', '.join(self.left_out)}" if self.left_out else ""
        return f"Set: {taken or 'nothing'}{rest}."


def find(text: str) -> Typed:
    """The fields that a text sets. Raises InputError where nothing in it is known, with what is near."""
    text = text.strip()[:MAX_TEXT]
    if re.search(r"(^|\s)--?[a-z]", text) or text.startswith("vllm "):
        return _of_command(text)
    typed = Typed()
    for part in re.split(r"\s+on\s+|,|;", _ADDRESS.sub(r"\1", text)):
        if part.strip():
            typed.values |= _named(part.strip())
    if not typed.values:
        raise InputError(f"{show(text)}: names nothing: give a model, a device, 8x H200, or a vllm serve command")
    return typed


def _named(text: str) -> dict[str, Any]:
    """The fields that the name of a device or of a model sets. Raises InputError."""
    counted = device_names.counted(text)
    if device := device_names.meant(counted[1] if counted else text, catalog.device_aliases()):
        return {"device": device, "edits": "", **({"tp": counted[0]} if counted else {})}
    if path := catalog.shipped_model_file(text):
        model = catalog.model(text)
        said = weight_names.format_in(text)
        return {"model": path.stem, "weights": weight_names.of_model(said, model) if said.name else None}
    if known := model_names.without_file(text):
        raise InputError(f"{show(text)}: {known}; a config.json can be loaded below")
    near = did_you_mean(text.rpartition("/")[2], [*dict(catalog.model_aliases()), *catalog.device_files()])
    near = near if near.startswith("did") else "give a model, a device, 8x H200, or a vllm serve command"
    raise InputError(f"{show(text)}: no model or device that is known: {near}; a config.json can be loaded below")


def _of_command(text: str) -> Typed:
    """The fields that a server's command line sets. Raises InputError."""
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise InputError(f"{show(text)}: {error}: close the quotes") from None
    typed = Typed()
    for flag, value in _arguments(words):
        if flag == "-m" and typed.values.get("stack") == "llama.cpp":
            flag = "--model"
        if flag in ("", "-m"):  # of Python: a module
            if server := SERVERS.get(value.rpartition("/")[2]):
                typed.values["stack"] = server
            elif "/" in value or catalog.shipped_model_file(value):
                _take(typed, "model", flag, value)
            continue
        if flag in TURNS:
            typed.values |= [TURNS[flag]]
        elif key := FLAGS.get(flag):
            _take(typed, key, flag, value)
        elif flag not in SWITCHES:
            typed.left_out.append(f"{flag} {value}".strip())
    if said := typed.values.get("weights"):
        form = weight_names.format_in(f"model-{said}")
        model = catalog.model(typed.values["model"]) if "model" in typed.values else None
        typed.values["weights"] = weight_names.of_model(form, model) if model and form.name else form.name or said
    if typed.values.get("ep") == "all":
        typed.values["ep"] = typed.values.get("tp", 1)
    if not typed.values:
        raise InputError(f"{show(text)}: nothing that a design has: give a model, or vllm serve MODEL with its flags")
    return typed


def _arguments(words: list[str]) -> Iterator[tuple[str, str]]:
    """Flags with their values, and words without a flag under ""."""
    words = list(words)
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if not word.startswith("-"):
            yield "", word
        elif equals:
            yield flag, value
        elif flag in SWITCHES or not words or words[0].startswith("-"):
            yield flag, ""
        else:
            yield flag, words.pop(0)


def _take(typed: Typed, key: str, flag: str, value: str) -> None:
    """One flag; one whose value no design has is left out, and said."""
    try:
        if key == "model":
            typed.values |= _named(_ADDRESS.sub(r"\1", value))
        elif key in ("quantizer", "value_quantizer"):
            name = engine_names.ours(value, quantizers.FAMILIES)
            if name in quantizers.FAMILIES:
                typed.values |= {key: name, "parameters" if key == "quantizer" else "value_parameters": ""}
            else:
                typed.left_out.append(f"{flag} {value}")
        elif flag == "--enable-expert-parallel":
            typed.values["ep"] = "all"
        elif key == "weights":
            typed.values[key] = value
            weight_names.format_in(f"model-{value}")
        else:
            typed.values[key] = _WORK[key].kind.parse(flag, value)
    except DseError:
        typed.left_out.append(f"{flag} {value}".strip())
