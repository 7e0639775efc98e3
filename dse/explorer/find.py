"""Texts that a reader types or pastes, as fields: a question in words, a model, a device, several of one, an address, a
server's command line."""

import re
from dataclasses import dataclass, field
from typing import Any

from dse.core.errors import InputError, did_you_mean, show
from dse.core.field import TOKENS
from dse.specs import catalog, device_names, model_names, server_flags
from dse.specs.workload import ASKED

_NUMBER = r"(\d[\d.,]*k?)"
#: numbers of a question in words -> their fields
_WORDED = {
    rf"{_NUMBER} ?(?:tokens? )?(?:in|prompt)\b": "input",
    rf"{_NUMBER} ?(?:tokens? )?(?:out|output|answer)\b": "output",
    rf"(?:tpot |within |under |below )*{_NUMBER} ?ms\b": "tpot_limit",
    rf"(?:ttft |within |under |below |and )*{_NUMBER} ?s\b": "ttft_limit",
    rf"{_NUMBER} ?(?:requests?|req)?(?: (?:a|per) second|/s)\b": "rate",
    rf"{_NUMBER} ?(?:sessions|agents|users)\b": "sessions",
    rf"{_NUMBER} ?(?:requests? at once|requests?|at once)\b": "batch",
}


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
    text = text.strip()[: server_flags.MAX_LETTERS]
    if re.search(r"(^|\s)--?[a-z]", text) or text.partition(" ")[0] in server_flags.SERVERS:
        return _of_command(text)
    typed = Typed()
    rest = _numbers(server_flags.ADDRESS.sub(r"\1", text), typed)
    for part in re.split(r"\s+(?:on|with|for|at)\s+|[,;]", f" {rest} "):
        if name := _FILLERS.sub(" ", part).strip():
            typed.values |= _named(name)
    if not typed.values:
        raise InputError(f"{show(text)}: names nothing: give a model, a device, 8x H200, or a vllm serve command")
    return typed


#: words between what is meant
_FILLERS = re.compile(r"(?<!\S)(?:on|with|for|at|and|within|tokens?|tpot|ttft)(?!\S)", re.IGNORECASE)


def _numbers(text: str, typed: Typed) -> str:
    """Take the numbers of a question in words; returns the rest."""
    for pattern, key in _WORDED.items():
        while match := re.search(rf"(?<![\w.-]){pattern}", text, re.IGNORECASE):
            number = match[1].replace(",", "").rstrip(".")
            whole = key in ("input", "output", "batch", "sessions")
            typed.values[key] = TOKENS.parse(key, number) if whole else float(number)
            if key in ("rate", "sessions", "batch"):
                typed.values["load"] = key
            text = f"{text[: match.start()]}, {text[match.end() :]}"
    return text


def _named(text: str) -> dict[str, Any]:
    """The fields that the name of a device or of a model sets. Raises InputError."""
    counted = device_names.counted(text)
    if device := device_names.meant(counted[1] if counted else text, catalog.device_aliases()):
        return {"device": device, **({"devices": counted[0]} if counted else {})}
    if named := server_flags.model_fields(text):
        return named
    if known := model_names.without_file(text):
        raise InputError(f"{show(text)}: {known}; a config.json can be loaded below")
    near = did_you_mean(text.rpartition("/")[2], [*dict(catalog.model_aliases()), *catalog.device_files()])
    near = near if near.startswith("did") else "give a model, a device, 8x H200, or a vllm serve command"
    raise InputError(f"{show(text)}: no model or device that is known: {near}; a config.json can be loaded below")


def _of_command(text: str) -> Typed:
    """The fields that a server's command line sets. Raises InputError."""
    command = server_flags.read(text)
    if not command.values:
        raise InputError(f"{show(text)}: nothing that a design has: give a model, or vllm serve MODEL with its flags")
    typed = Typed(left_out=command.left_out)
    for name, value in command.values.items():
        if name in ("quantizer", "value_quantizer"):
            family, _, parameters = value.partition(":")
            typed.values |= {name: family, name.replace("quantizer", "parameters"): parameters}
        else:
            typed.values[ASKED[name].key if name in ASKED else name] = value
    if "tp" in typed.values or "pp" in typed.values:  # so many devices, unless a design has its own layout
        typed.values["devices"] = typed.values.pop("tp", 1) * typed.values.get("pp", 1)
    return typed
