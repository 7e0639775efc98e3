"""All families by name, and the parser of `name:key=value,...`."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dse.core.errors import InputError, did_you_mean, show
from dse.quantizers import grouped, layered, outliers, plain, scaled
from dse.quantizers.base import Family, Param, QuantizerSpec

FAMILIES: dict[str, Family] = {
    family.name: family for family in (*plain.FAMILIES, *grouped.FAMILIES, *outliers.FAMILIES, *scaled.FAMILIES)
}
MAX_TEXT = 200


def _value(param: Param, text: str, where: str) -> Any:
    """`text` as the type of the parameter's default; ASCII decimal numbers only."""
    problem = InputError(f"{where} {param.name} = {show(text)}: must be {param.allowed()}")
    if isinstance(param.default, str):
        if param.choices and text not in param.choices:
            raise problem
        return text
    pattern = r"[0-9]{1,9}" if isinstance(param.default, int) else r"[0-9]{0,9}(\.[0-9]{1,12})?"
    if not text or not re.fullmatch(pattern, text, re.ASCII):
        raise problem
    value = int(text) if isinstance(param.default, int) else Fraction(text)
    if (value not in param.choices) if param.choices else not param.low <= value <= param.high:
        raise problem
    return value


def parameter(family: str, name: str, text: str) -> Any:
    """One parameter of a family as its type. Raises InputError with what is allowed."""
    param = next(param for param in FAMILIES[family].params if param.name == name)
    return _value(param, text, f"quantizer {show(family)}:")


def _text(value: Any) -> str:
    """A parameter value as one would write it; fractions as the shortest decimal."""
    return f"{float(value):.12g}" if isinstance(value, Fraction) else str(value)


def named(kind: str, text: str, families: Mapping[str, Any]) -> tuple[Any, dict[str, Any], str]:
    """`name:key=value,...` as (family, a value for each of its `params`, canonical text: what differs from defaults).

    A family has `name`, `params` and `problem`; `kind` names it in messages. Raises InputError with what is allowed.
    """
    where = f"{kind} {show(text)}:"
    if len(text) > MAX_TEXT:
        raise InputError(f"{where} is longer than {MAX_TEXT} characters")
    name, _, tail = text.strip().partition(":")
    family = families.get(name.strip().lower())
    if family is None:
        raise InputError(f"unknown {kind} {show(name)}: {did_you_mean(name, families)}")
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


def parse(text: str) -> QuantizerSpec:
    """`oaken`, `sinkq:bits=2,group=32`: a family with parameters; `plan:FILE.toml`: one by layer, read from a file.

    Raises InputError with what is allowed.
    """
    if text.strip()[: len(layered.PREFIX)].lower() == layered.PREFIX:
        return layered.read(text.strip()[len(layered.PREFIX) :], parse)
    family, values, canonical = named("quantizer", text, FAMILIES)
    return QuantizerSpec(family, tuple(values.items()), canonical)
