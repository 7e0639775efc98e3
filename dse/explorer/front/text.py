"""Read the texts of the front page: values of axes, and limits with their units."""

import difflib
import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from dse.core import units
from dse.core.errors import InputError, did_you_mean, show
from dse.explorer import names
from dse.model.results import RESULT_UNITS, shown_unit
from dse.quantizers import layered
from dse.sweep import axes
from dse.sweep.pareto import designs

#: values of one axis
MAX_VALUES = 10_000
#: columns of numbers that a sweep sets, not results
COUNTED = tuple(sorted(designs.COUNTS))
_WHOLE = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?(e[-+]?[0-9]{1,2})?", re.ASCII)
_NUMBER_AND_UNIT = re.compile(r"([-+.0-9]*(?:e[-+]?[0-9]+)?)\s*(.*)", re.ASCII | re.DOTALL)
_WAYS = ("step", "factor", "count")
#: from this share of common letters on, a name is taken for another that is misspelled
_ALIKE = 0.85


def values_of(text: str) -> Any:
    """Values of an axis as a sweep file holds them, a list or a range. Raises InputError for an incomplete range."""
    low, is_range, rest = text.partition(" to ")
    if not is_range:
        return [_value(item) for item in text.split(",") if item.strip()]
    words = rest.split()
    way = next((word for word in words if word in _WAYS), "")
    at = words.index(way) if way else len(words)
    tail = words[at + 1 :]
    if not way or not words[:at] or len(tail) not in (1, 2) or tail[1:] not in ([], ["log"]):
        raise InputError(f"{show(text.strip())}: a range is `1 to 256 factor 2`: to, then step, factor or count")
    found = {"from": _value(low), "to": _value(" ".join(words[:at])), way: _value(tail[0])}
    return {**found, "scale": "log"} if tail[1:] else found


def _value(text: str) -> Any:
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


@lru_cache(maxsize=512)
def problem_of(name: str, text: str) -> str:
    """Problem with the values of an axis, empty for none; cached, since every run checks every field."""
    try:
        axis = axes.build(name, values_of(text))
    except axes.AxisError as error:
        return f"{name}: {error}"
    except InputError as error:
        return str(error)
    if len(axis) > MAX_VALUES:
        return f"{name}: has {len(axis):,} values: at most {MAX_VALUES:,} here: `dse sweep` takes more"
    return ""


def more_axes(text: str, taken: Collection[str] = ()) -> list[tuple[str, str]]:
    """Axes of the field "more axes": `NAME = VALUES; NAME = VALUES`, none of them `taken`. Raises InputError."""
    found: list[tuple[str, str]] = []
    for item in text.split(";"):
        name, equals, raw = (piece.strip() for piece in item.partition("="))
        if not item.strip():
            continue
        if not equals:
            raise InputError(f"{show(item.strip())}: must be NAME = VALUES, such as weights_bits = 16, 8")
        if name in taken:
            raise InputError(f"{name}: has a field of its own")
        if name not in axes.known_axes():
            raise InputError(f"unknown axis {show(name)}: {did_you_mean(name, axes.known_axes())}")
        if name in axes.QUANTIZER_AXES and layered.PREFIX in raw.lower():
            raise InputError(f"{name}: a plan by layer is loaded below: no file is read from here")
        if name in dict(found):
            raise InputError(f"{name}: is given twice: leave one")
        found.append((name, raw))
    return found


def limits_of(text: str, kind: str) -> list[str]:
    """Convert the limits of a field, `NAME = NUMBER UNIT; ...`, to the command line's form, in base units.

    A column goes by its words or its name. A number without a unit is in base units behind a name, as in conditions;
    behind words it needs its unit where people see another than the base unit. Raises InputError.
    """
    found, known = [], (*objective_names(), *COUNTED)
    for item in filter(None, map(str.strip, text.split(";"))):
        said, equals, number = (piece.strip() for piece in item.partition("="))
        name = names.column(said, known)
        if not equals or name not in known:
            raise InputError(f"{kind} {show(item)}: write NAME = NUMBER UNIT; ..., such as {_nearest(item, known)}")
        base = RESULT_UNITS.get(name, "B/s" if name.endswith("bandwidth") else "B")
        shown, size = shown_unit(name, base)
        sizes = {base: 1.0, shown: size, **{each: units.to_base(1, each) for each in units.units_of(base)}}
        value, unit = _NUMBER_AND_UNIT.match(number).groups()  # type: ignore[union-attr]  # it matches any text
        if not _NUMBER.fullmatch(value) or (unit and unit not in sizes):
            among = ", ".join(filter(None, sizes))
            raise InputError(f"{kind} {said} = {show(number)}: must be a number, its unit one of {among}")
        if not unit and size != 1 and said != name:
            raise InputError(f"{said} = {value}: say the unit, for example {value} {shown}")
        found.append(f"{name}={float(value) * sizes[unit]:.12g}" if unit else f"{name}={value}")
    return found


def _nearest(item: str, known: Sequence[str]) -> str:
    """Suggest up to three columns whose words contain what a limit names, or else are spelled like it."""
    said = re.split("[<>=]", item)[0].strip().lower()
    words = {spelled: names.words(name) for name in known for spelled in (name, names.words(name).lower())}
    near = [words[spelled] for spelled in words if said and said in words[spelled].lower()]
    near = near or [words[spelled] for spelled in difflib.get_close_matches(said, words, cutoff=_ALIKE)]
    return " or ".join(list(dict.fromkeys(near))[:3]) or "Decode step = 50 ms"


def objective_names() -> list[str]:
    """Columns that can be objectives."""
    return [*(name for name, unit in RESULT_UNITS.items() if unit), "memory_bandwidth", "memory_capacity"]
