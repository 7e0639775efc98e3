"""All families by name, and the parser of `name:key=value,...`."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from dse.core.errors import InputError, did_you_mean, show
from dse.core.field import Field
from dse.quantizers import engine_names, layered, methods, skipping
from dse.quantizers.base import Family, QuantizerSpec

FAMILIES: dict[str, Family] = {family.name: skipping.with_skip(family) for family in methods.every()}
_ALIASES = {alias: text for family in FAMILIES.values() for alias, text in family.aliases.items()}
MAX_TEXT = 200


def _value(param: Field, text: str, where: str) -> Any:
    """The value of a parameter's text, of text in canonical form."""
    asked = replace(param, name=f"{where} {param.name}")
    value = asked.read(text)
    written = param.canonical(value) if param.canonical else value
    if written is None:
        raise asked.refused(text)
    return written


def parameter(family: str, name: str, text: str) -> Any:
    """One parameter of a family as its type. Raises InputError with what is allowed."""
    param = next(param for param in FAMILIES[family].params if param.name == name)
    return _value(param, text, f"quantizer {show(family)}:")


def _text(value: Any) -> str:
    """A parameter value as one would write it; fractions as the shortest decimal."""
    return f"{float(value):.12g}" if isinstance(value, Fraction) else str(value)


def named(
    kind: str, text: str, families: Mapping[str, Any], also: Iterable[str] = ()
) -> tuple[Any, dict[str, Any], str]:
    """`name:key=value,...` as (family, a value for each of its `params`, canonical text: what differs from defaults).

    A family has `name`, `params` and `problem`; `kind` names it in messages, which propose `also` where a name is near.
    Raises InputError with what is allowed.
    """
    where = f"{kind} {show(text)}:"
    if len(text) > MAX_TEXT:
        raise InputError(f"{where} is longer than {MAX_TEXT} characters")
    name, _, tail = text.strip().partition(":")
    family = families.get(name.strip().lower())
    if family is None:
        near = did_you_mean(name, [*families, *also])
        hint = near if near.startswith("did") else did_you_mean(name, families)
        raise InputError(f"unknown {kind} {show(name)}: {hint}")
    params = {param.name: param for param in family.params}
    given: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in tail.split(","))):
        key, equals, raw = item.partition("=")
        key = key.strip().lower()
        if key not in params:
            hint = did_you_mean(key, params) if params else "it has no parameters"
            raise InputError(f"{where} unknown parameter {show(key)}: {hint}")
        if not equals:
            raise InputError(f"{where} {key}: must be written {key}=VALUE, {params[key].allowed()}")
        if key in given:
            raise InputError(f"{where} {key} is given twice")
        given[key] = _value(params[key], raw.strip(), where)
    values = {param.name: given.get(param.name, param.default) for param in family.params}
    if problem := family.problem(values):
        raise InputError(f"{where} {problem}")
    changed = [f"{key}={_text(values[key])}" for key in params if values[key] != params[key].default]
    return family, values, family.name + (":" + ",".join(changed) if changed else "")


def _without_alias(text: str) -> str:
    """`text` with an alias replaced: vLLM writes fp8_e5m2 and turboquant:3bit_nc too."""
    name, comma, tail = text.strip().partition(",")
    head, _, rest = name.partition(":")
    for alias, more in ((name, tail), (head, rest + comma + tail)):
        if plain_name := _ALIASES.get(alias.strip().lower()):
            return plain_name + ((("," if ":" in plain_name else ":") + more) if more else "")
    return text


def is_named(text: str) -> bool:
    """True where a text begins with the name of a quantizer, ours or an engine's, or of a plan."""
    name = engine_names.ours(_without_alias(text.partition("@")[0]), FAMILIES).partition(":")[0].strip().lower()
    return name in FAMILIES or f"{name}:" == layered.PREFIX


def parse(text: str) -> QuantizerSpec:
    """`oaken`, `sinkq:bits=2,group=32`: a family with parameters; `plan:FILE.toml`: one by layer, read from a file.

    `fp8_e4m3`, `f16`: as an engine calls a family (dse/quantizers/engine_names.py); the result has this tool's name.
    `qserve@omniserve` says how it is run (dse/specs/implementation.py). Raises InputError with what is allowed.
    """
    if text.strip()[: len(layered.PREFIX)].lower() == layered.PREFIX:
        return layered.read(text.strip()[len(layered.PREFIX) :], parse)
    method, at, implementation = (part.strip() for part in text.partition("@"))
    if at and not implementation:
        raise InputError(f"quantizer {show(text)}: names no implementation behind @: see `dse list implementations`")
    engines = (entry.name for entry in engine_names.offered(FAMILIES))
    ours = engine_names.ours(_without_alias(method), FAMILIES)
    family, values, canonical = named("quantizer", ours, FAMILIES, engines)
    implementation = implementation.lower()
    return QuantizerSpec(
        family, values=tuple(values.items()), name=canonical + at + implementation, implementation=implementation
    )
