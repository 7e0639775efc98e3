"""Texts of the fields of best trade-offs: values of axes."""

from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from typing import Any

from dse.core.errors import InputError, did_you_mean, show
from dse.core.field import NUMBER, WHOLE
from dse.quantizers import layered
from dse.sweep import axes

#: values of one axis
MAX_VALUES = 10_000
_WAYS = ("step", "factor", "count")


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
    spread = {"from": _value(low), "to": _value(" ".join(words[:at])), way: _value(tail[0])}
    return {**spread, "scale": "log"} if tail[1:] else spread


def _value(text: str) -> Any:
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    for kind in (WHOLE, NUMBER):
        with suppress(InputError):
            return kind.parse("", text)
    return text


@lru_cache(maxsize=512)
def axis_problem(name: str, text: str) -> str:
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
    pairs: list[tuple[str, str]] = []
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
        if name in dict(pairs):
            raise InputError(f"{name}: is given twice: leave one")
        pairs.append((name, raw))
    return pairs
