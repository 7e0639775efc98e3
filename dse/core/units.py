"""The one place that knows 1e9, 2**30 and 8.

Every number inside the tool is in SI base units (B, B/s, FLOP/s, s, W, J); this module converts
what files and people write, and formats what people read. GB is 10**9 bytes and GiB is 2**30.
"""

import re
from typing import Any

BITS_PER_BYTE = 8
FP16_BITS = 16
GIB = 2**30

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SMALL = {"n": 1e-9, "u": 1e-6, "m": 1e-3}


def _table() -> dict[str, tuple[str, float]]:
    units: dict[str, tuple[str, float]] = {}
    for base in ("B", "B/s", "FLOP/s", "OP/s", "element/s", "W", "Hz"):
        units.update({prefix + base: (base, factor) for prefix, factor in _DECIMAL.items()})
    for base in ("B", "B/s"):
        units.update({prefix + base: (base, factor) for prefix, factor in _BINARY.items()})
    units["%"] = ("1", 0.01)
    units.update({prefix + "s": ("s", factor) for prefix, factor in {"": 1, **_SMALL}.items()})
    for base in ("J/B", "J/FLOP"):
        units.update({f"{prefix}{base}": (base, factor) for prefix, factor in {"": 1, "n": 1e-9, "p": 1e-12}.items()})
    for base in (
        "mm2",
        "1",
        "token",
        "layer",
        "head",
        "channel",
        "expert",
        "core",
        "row",
        "device",
        "parameter",
        "USD/h",
        "element/cycle",
    ):
        units[base] = (base, 1)
    return units


#: unit as written -> (base unit, factor to it); factors are exact integers wherever they can be
UNITS = _table()


#: digits with commas between thousands; a number with these, or underscores; a number and its unit
_THOUSANDS = r"[1-9][0-9]{0,2}(?:,[0-9]{3})++(?![0-9])"
_PLAIN = rf"[-+]?(?:{_THOUSANDS}|[0-9][0-9_]*+)(?:\.[0-9]*+)?(?:[eE][-+]?[0-9]++)?"
_NUMBER = re.compile(rf"({_PLAIN})\s*(1|[^\s,.0-9]\S*+|)", re.ASCII)
#: a comma where a point should be
_DECIMAL_COMMA = re.compile(r"[-+]?([0-9]++,[0-9]++)\s*[^\s,.0-9]*+", re.ASCII)
#: commas between quantities, but for those inside a number
BETWEEN = re.compile(r"(?<![0-9]),|,(?![0-9])", re.ASCII)


def number_and_unit(text: str) -> tuple[float, str] | None:
    """The number and the unit, "" for none, of "3.35 TB/s" or "1,024 GB"; None for what is no such text.

    Raises ValueError for a decimal comma: 9,6 is neither 9.6 nor 96.
    """
    if match := _NUMBER.fullmatch(text.strip()):
        return float(match[1].replace("_", "").replace(",", "")), match[2]
    if comma := _DECIMAL_COMMA.fullmatch(text.strip()):
        point = comma[1].replace(",", ".")
        raise ValueError(f"has a decimal comma: write {point} (commas stand between thousands only, as in 1,024)")
    return None


def to_base(value: float, unit: str) -> float:
    """`value` in `unit` as a number of the base unit; exact for integers and decimal prefixes.

    Raises KeyError when the unit is not known; `units_of` lists those of a base unit.
    """
    return value * UNITS[unit][1]


def base_of(unit: str) -> str:
    """The base unit that `unit` measures in, e.g. "B/s" for "TB/s"."""
    return UNITS[unit][0]


def units_of(base: str) -> list[str]:
    """All spellings of one base unit, in rising size."""
    return [unit for unit, (b, _) in sorted(UNITS.items(), key=lambda item: item[1][1]) if b == base]


def _scaled(value: float, unit: str, prefixes: list[tuple[str, float]], digits: int) -> str:
    if value == 0:
        return f"0 {unit}"
    prefix, factor = next(((p, f) for p, f in prefixes if abs(value) >= f), prefixes[-1])
    return f"{plain(value / factor, digits)} {prefix}{unit}"


def plain(value: float, digits: int = 4) -> str:
    """`value` with so many digits; large numbers as whole ones rather than with an exponent."""
    return f"{value:,.0f}" if 10**digits <= abs(value) < 1e15 else f"{value:,.{digits}g}"


_LARGE_FIRST = [("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)]
#: units that are counted, which have a plural
_THINGS = ("token", "sequence", "device")
_TIME_FIRST = [("", 1.0), ("m", 1e-3), ("u", 1e-6), ("n", 1e-9)]


def human(value: float, unit: str, digits: int = 4) -> str:
    """`value` (base unit `unit`) with a decimal prefix, e.g. "80 GB", "3.35 TB/s", "12.5 ms"."""
    if unit in ("s", "J"):
        return _scaled(value, unit, _TIME_FIRST, digits)
    if unit in ("B", "B/s", "FLOP", "FLOP/s", "element/s", "W", "Hz"):
        return _scaled(value, unit, _LARGE_FIRST, digits)
    unit = "" if unit == "1" else f"{unit}s" if unit in _THINGS and value != 1 else unit
    if isinstance(value, int):
        return f"{value:,} {unit}".rstrip()
    return f"{plain(value, digits)} {unit}".rstrip()


def gib(n_bytes: float) -> float:
    """Bytes as GiB (2**30 B)."""
    return n_bytes / GIB


def number(value: Any, unit: str) -> str:
    """A result with its unit as people read it; sizes in GB (1e9) and GiB (2**30) side by side."""
    if value is None:
        return "no limit" if unit == "token" else "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit == "B" and abs(value) >= GIB:
        return f"{human(value, 'B')} ({gib(value):,.4g} GiB)"
    if unit == "1":
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    if unit == "sequence":
        value = value if isinstance(value, int) else round(value, 2)
        return f"{value:,} request{'s' if value != 1 else ''}"
    if unit in ("J/token", "bit", "tok/s", "B/token", "dB") or unit.startswith("USD"):
        return f"{plain(value)} {unit}"
    if unit == "token":
        return f"{value:,} tokens"
    return human(value, unit) if unit else str(value)
