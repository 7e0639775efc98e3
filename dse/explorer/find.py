"""Texts that a reader types or pastes, as fields: a question in words, a model, a device, several of one, an address, a
server's command line."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dse.core.errors import DseError, InputError, did_you_mean, show
from dse.core.field import Field
from dse.explorer.common_fields import AMOUNTS, OF_SESSIONS, QUANTIZER, TPOT_LIMIT, TTFT_LIMIT, WORK
from dse.explorer.fields import in_words
from dse.specs import catalog, device_names, model_names, server_flags, weights
from dse.specs.workload import ASKED

_NUMBER = r"(?P<number>\d[\d.,]*k?)"
#: numbers of a question in words, and their fields
_WORDED = (
    (rf"{_NUMBER} ?(?:tokens? )?(?:in|input|prompts?|context)\b", WORK["input_tokens"]),
    (rf"prompts? of {_NUMBER}(?: tokens)?\b", WORK["input_tokens"]),
    (rf"{_NUMBER} ?(?:tokens? )?(?:out|output|answer)\b", WORK["output_tokens"]),
    (rf"{_NUMBER} ?(?:(?:requests?|req)?(?: (?:a|per) second|/s)|rps|qps)\b", AMOUNTS["rate"]),
    (rf"{_NUMBER} ?(?:concurrent (?:requests|users)|(?:(?:requests?|users) )?at once)\b", AMOUNTS["batch"]),
    (rf"(?:batch|concurrency)(?: size)?(?: of)? {_NUMBER}\b", AMOUNTS["batch"]),
    (rf"{_NUMBER} ?(?:sessions|agents|users)\b", AMOUNTS["sessions"]),
    (rf"{_NUMBER} ?requests?\b", AMOUNTS["batch"]),
    (rf"{_NUMBER} ?turns\b", next(asked for asked in OF_SESSIONS if asked.key == "turns")),
    (rf"tpot {_NUMBER}\b", TPOT_LIMIT),
    (rf"ttft {_NUMBER}\b", TTFT_LIMIT),
)
#: a limit on a time, named before it or behind it; without a name ms are of a token, s of the first one
_TIME = re.compile(
    r"(?<![\w.-])(?:(?P<ahead>ttft|tpot|first token|(?:each|per) token)\s*)?"
    rf"(?:(?:within|under|below|at most|and|of|[<≤=:]+)\s*)*{_NUMBER}\s?"
    r"(?P<unit>m?s)\b(?(ahead)|(?:\s*(?P<behind>ttft|tpot))?)",
    re.IGNORECASE,
)
_OF_FIRST, _OF_TOKEN = (TTFT_LIMIT, "s"), (TPOT_LIMIT, "ms")
_LIMITS = {
    **dict.fromkeys(("ttft", "first token"), _OF_FIRST),
    **dict.fromkeys(("tpot", "each token", "per token"), _OF_TOKEN),
}
#: a limit as the speed of a user
_SPEED = re.compile(
    rf"{_NUMBER} ?(?:tok|tokens?)(?:/s| (?:a|per) second) (?:a|per|each|for each) user\b", re.IGNORECASE
)
#: parts of a question in words: 70B on 8x H200, 70B 8x H200, H100 vs L40S
_BETWEEN = re.compile(
    r"\s+(?:on|with|for|at|of|vs\.?|versus|against|and|or)\s+|[,;?]|\s+(?=\d+\s?x\s?[A-Z])|(?<=\S)\s+(?=\w+ weights\b)",
    re.IGNORECASE,
)
#: a part that says how many devices, how weights are stored, and how keys and values are
_COUNTS = {"one": 1, "a single": 1, "two": 2, "four": 4, "eight": 8, "sixteen": 16}
_COUNTED = re.compile(rf"(\d{{1,4}}|{'|'.join(_COUNTS)})\s+([a-z].*)", re.IGNORECASE)
_WEIGHTS = re.compile(r"(\w+)[ -]weights", re.IGNORECASE)
_FORMAT = re.compile(r"(\w+) (?:kv(?:[ -]cache)?|keys and values)", re.IGNORECASE)
#: a changed number of the device, named: links have a bandwidth, too
_RATE = r"(\d[\d.]*\s?[TG]B/s)"
_BANDWIDTH = re.compile(
    rf"memory bandwidth(?: of| is| were| was)? {_RATE}|{_RATE}(?: of)? memory bandwidth", re.IGNORECASE
)
#: fields that a question has once, and where another goes
_ONCE = {
    "model": "a second model: add it below the table",
    "device": "a second device: add it below the table",
    "quantizer": "a second KV format: add it below the table",
    "weights": "a second format of the weights: duplicate a design, and change it there",
}


@dataclass
class Typed:
    """Fields and their values, what of a text was not taken, and what stands for a name in it."""

    values: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    stands_in: str = ""

    def said(self, fields: Mapping[str, Field]) -> str:
        """Say what was taken, by the labels of `fields`, and what was not, in a line."""
        told = {key: value for key, value in self.values.items() if value not in ("", None)}
        taken = ", ".join(in_words(fields[key], value) for key, value in told.items())
        rest = f"; not taken: {', '.join(self.left_out)}" if self.left_out else ""
        return f"Set: {taken or 'nothing'}{rest}.{self.stands_in}"


def find(text: str) -> Typed:
    """The fields that a text sets. Raises InputError where nothing in it is known, with what is near."""
    text = text.strip()[: server_flags.MAX_LETTERS]
    if re.search(r"(^|\s)--?[a-z]", text) or text.partition(" ")[0] in server_flags.SERVERS:
        return _of_command(text)
    typed = Typed()
    rest = _numbers(server_flags.ADDRESS.sub(r"\1", text), typed)
    for part in _BETWEEN.split(f" {rest} "):
        name = _FILLERS.sub(" ", part).strip()
        try:
            named = _named(name) if re.search(r"\w", name) else {}
        except InputError as error:
            typed.left_out += error.lines()
            continue
        named = {key: value for key, value in named.items() if value is not None or key not in typed.values}
        if twice := [key for key in _ONCE if named.get(key) and typed.values.get(key) not in (None, named[key])]:
            typed.left_out.append(f"{show(name)}: {_ONCE[twice[0]]}")
            continue
        if model := named.get("model"):
            said, meant = device_names.plain(name), device_names.plain(model)
            is_named = meant in said or said in meant
            typed.stands_in = "" if is_named else f" {model} counts for {show(name)}, of the same shape."
        typed.values |= named
    if not typed.values:
        names_nothing = f"{show(text)}: names nothing: give a model, a device, 8x H200, or a vllm serve command"
        raise InputError("; ".join(typed.left_out) or names_nothing)
    return typed


#: words between what is meant
_FILLERS = re.compile(
    r"(?<!\S)(?:what|if|the|is|were|does|do|fits?|in|of|on|with|for|at|and|within|tokens?|tpot|ttft)(?!\S)",
    re.IGNORECASE,
)


def _numbers(text: str, typed: Typed) -> str:
    """Take the numbers of a question in words; returns the rest."""

    def take(asked: Any, number: str, scale: float = 1) -> str:
        try:
            value = asked.read(number.lower().replace(",", "").rstrip("."))
            typed.values[asked.key] = value if scale == 1 else value * scale
            if asked in AMOUNTS.values():
                typed.values["load"] = asked.key
        except DseError as error:
            typed.left_out += error.lines()
        return ", "

    def limit(found: re.Match[str]) -> str:
        unit = found["unit"].lower()
        name = (found["ahead"] or found["behind"] or ("tpot" if unit == "ms" else "ttft")).lower()
        asked, own_unit = _LIMITS[name]
        return take(asked, found["number"], 1 if unit == own_unit else 1e3 if unit == "s" else 1e-3)

    def bandwidth(found: re.Match[str]) -> str:
        typed.values["edits"] = f"memory_bandwidth={found[1] or found[2]}"
        return ", "

    def speed(found: re.Match[str]) -> str:
        said = take(TPOT_LIMIT, found["number"])
        if per_s := typed.values.get(TPOT_LIMIT.key):
            typed.values[TPOT_LIMIT.key] = 1e3 / per_s
        return said

    text = _BANDWIDTH.sub(bandwidth, _TIME.sub(limit, _SPEED.sub(speed, text)))
    for pattern, asked in _WORDED:
        while found := re.search(rf"(?<![\w.-]){pattern}", text, re.IGNORECASE):
            text = f"{text[: found.start()]}{take(asked, found['number'])}{text[found.end() :]}"
    return text


def _named(text: str) -> dict[str, Any]:
    """The fields that a device, a model, weights, or a KV format sets by its name. Raises InputError."""
    if (match := _WEIGHTS.fullmatch(text)) and weights.is_format(match[1].lower()):
        return {"weights": match[1].lower()}
    if (match := _FORMAT.fullmatch(text)) and match[1].lower() in QUANTIZER.options():
        return {"quantizer": match[1].lower(), "parameters": ""}
    if (match := _COUNTED.fullmatch(text)) and device_names.meant(match[2], catalog.device_aliases()):
        text = f"{_COUNTS.get(match[1].lower(), match[1])}x {match[2]}"
    counted = device_names.counted(text)
    if device := device_names.meant(counted[1] if counted else text, catalog.device_aliases()):
        return {"device": device, **({"devices": counted[0]} if counted else {})}
    if named := server_flags.model_fields(text):
        return named
    if known := model_names.without_file(text):
        raise InputError(f"{show(text)}: {known}")
    near = did_you_mean(text.rpartition("/")[2], [*dict(catalog.model_aliases()), *catalog.device_files()])
    near = near if near.startswith("did") else "give a model, a device, 8x H200, or load a config.json under Files"
    raise InputError(f"{show(text)}: no model or device that is known: {near}")


def _of_command(text: str) -> Typed:
    """The fields that a server's command line sets. Raises InputError."""
    command = server_flags.read(text)
    if not command.values:
        raise InputError(f"{show(text)}: nothing that a design has: give a model, or vllm serve MODEL with its flags")
    return of_server(command.values, command.left_out)


def of_server(fields: Mapping[str, Any], left_out: list[str]) -> Typed:
    """The fields of pages that those of a server set, by their names in a workload (`server_flags.ReadCommand`)."""
    typed = Typed(left_out=left_out)
    for name, value in fields.items():
        if name in ("quantizer", "value_quantizer"):
            family, _, parameters = value.partition(":")
            typed.values |= {name: family, name.replace("quantizer", "parameters"): parameters}
        else:
            typed.values[ASKED[name].key if name in ASKED else name] = value
    if "tp" in typed.values or "pp" in typed.values:  # so many devices, unless a design has its own layout
        typed.values["devices"] = typed.values.pop("tp", 1) * typed.values.setdefault("pp", 1)
    return typed
