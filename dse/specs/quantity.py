"""A number with its unit, source and kind, as files write it; and the types of such numbers with their bounds."""

import difflib
import math
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from dse.core import units
from dse.core.errors import InputError, show

Kind = Literal["datasheet", "published", "measured", "derived", "assumed"]
#: kinds that rest on no document or measurement; figures and tables mark them
ASSUMED: Literal["assumed"] = "assumed"
#: range of a number by its kind, as factors of it. Assumed by this project: what is assumed may be half or twice as
#: large; what a vendor prints is taken as printed (`--range` to vary it). Fits take their own stated error instead.
BY_KIND = {
    ASSUMED: (0.5, 2.0),
    "derived": (0.8, 1.25),
    "measured": (0.9, 1.1),
    "published": (0.95, 1.05),
    "datasheet": (1.0, 1.0),
}
#: units of what is counted: a plain number without a unit is as many of them
COUNTED = frozenset(("token", "layer", "head", "channel", "expert", "core", "row", "device", "parameter"))


class Quantity(BaseModel):
    """A number with its unit, its source and how it was obtained."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    value: float
    unit: str
    source: str = Field(min_length=1, max_length=500)
    kind: Kind
    #: ends of the range in which 8 of 10 measurements should lie, in the same unit; None: as others of its kind
    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def _in_order(self) -> "Quantity":
        if (self.low is None) != (self.high is None):
            raise ValueError("needs both low and high: add the other end")
        if self.low is not None and self.high is not None and not self.low <= self.value <= self.high:
            raise ValueError(f"value = {self.value:g}: must lie between low = {self.low:g} and high = {self.high:g}")
        return self

    @property
    def factors(self) -> tuple[float, float]:
        """The ends of the range as factors of the value: its own, else those of its kind (`BY_KIND`)."""
        if self.low is None or self.high is None or self.value == 0:
            return BY_KIND[self.kind]
        return self.low / self.value, self.high / self.value

    @property
    def si(self) -> float:
        """The value in the base unit (B, B/s, FLOP/s, s, W, ...)."""
        return units.to_base(self.value, self.unit)

    @property
    def count(self) -> int:
        """The value as an integer; the bounds of the field guarantee that it is one."""
        return int(self.si)


class Ranged(Quantity):
    """A number with the range in which it lies, in its own unit."""

    low: float
    high: float


def _parse_short(raw: Any, base: str) -> Any:
    """Accept "3.35 TB/s", a count such as "8" or "8 devices", and a bare number (of the base unit) of a user's file."""
    if isinstance(raw, str):
        if base in COUNTED:
            raw = re.sub(rf"\b{base}s\s*$", base, raw)
        parts = units.number_and_unit(raw)
        if not parts:
            raise ValueError(f'must be a number and a unit of {base}, such as "{_example(base)}"')
        value, unit = parts
        default = base if base in COUNTED else "1"
        return {"value": value, "unit": unit or default, "source": "user's file", "kind": ASSUMED}
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return {"value": raw, "unit": base, "source": "user's file", "kind": ASSUMED}
    return raw


def with_source(block: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """A block of a file whose numbers, `names`, share one source: the block with `source` and `kind` put into each.

    Numbers are short texts ("11.4 us"), bare shares (0.91) or tables without a source; one with its own keeps it.
    """
    numbers = {name: item for name, item in block.items() if name not in ("source", "kind")}
    shared = {"source": block["source"], "kind": block.get("kind", "measured")}
    for name in names & numbers.keys():
        number = numbers[name]
        if isinstance(number, str | int | float) and not isinstance(number, bool):
            number = _parse_short(number, "1") | shared
        numbers[name] = shared | number if isinstance(number, dict) else number
    return numbers


def _example(base: str) -> str:
    return {"B": "80 GB", "B/s": "2.0 TB/s", "FLOP/s": "312 TFLOP/s", "s": "5 us", "W": "400 W"}.get(base, f"1 {base}")


def _check_bounds(quantity: Quantity, base: str, low: float, high: float, whole: bool, slip: float) -> Quantity:
    if quantity.unit not in units.UNITS or units.base_of(quantity.unit) != base:
        known = {unit.lower().replace("/", ""): unit for unit in units.units_of(base)}
        if quantity.unit == "1":
            raise ValueError(
                f'has no unit: unit must be one of {", ".join(known.values())}, such as "{_example(base)}"'
            )
        near = difflib.get_close_matches(quantity.unit.lower().replace("/", ""), known, n=1, cutoff=0.7)
        hint = f"; did you mean {known[near[0]]}?" if near else ""
        raise ValueError(f"unit must be one of {', '.join(known.values())}, not {show(quantity.unit)}{hint}")
    si = quantity.si
    if not low <= si <= high:
        hint = ""
        likely = sorted(reversed(units.units_of(base)), key=lambda unit: "i" in unit)  # decimal units first
        for unit in likely:
            if low * slip <= units.to_base(quantity.value, unit) <= high / slip and unit != quantity.unit:
                hint = f"; did you mean {quantity.value:g} {unit}?"
                break
        raise ValueError(f"must be {units.human(low, base)} to {units.human(high, base)}{hint}")
    if whole and si != math.floor(si):
        raise ValueError(f"must be a whole number of {base}")
    return quantity


def quantity(base: str, low: float, high: float, whole: bool = False, slip: float = 1.0) -> Any:
    """The type of a field: a Quantity in base unit `base` within [low, high] (in base units).

    `slip` narrows the band in which a unit slip is suspected, so that the hint names a likely unit.
    """

    def check(value: Quantity) -> Quantity:
        return _check_bounds(value, base, low, high, whole, slip)

    return Annotated[Quantity, BeforeValidator(lambda raw: _parse_short(raw, base)), AfterValidator(check)]


def _holds_value(number: Ranged) -> Ranged:
    if not 0 < number.low <= number.value <= number.high:
        raise ValueError(f"low = {number.low:g}, high = {number.high:g}: must be above 0, with the value between them")
    return number


def ranged(base: str, low: float, high: float) -> Any:
    """The type of a field: a number with its range, whose value lies within [low, high] (in base units)."""

    def check(number: Ranged) -> Ranged:
        _check_bounds(number, base, low, high, False, 1.0)
        return _holds_value(number)

    return Annotated[Ranged, AfterValidator(check)]


def named_quantity(name: str, text: str, base: str, low: float, high: float) -> Quantity:
    """`text` ("300 GB/s") as a number of base unit `base`, kind assumed. Raises InputError naming `name`."""
    try:
        fields = _parse_short(text, base)
        return _check_bounds(Quantity(**{**fields, "source": f"--{name}"}), base, low, high, False, 1.0)
    except ValueError as error:
        raise InputError(f"{name} = {show(text)}: {error}") from None


def count(unit: str, high: float) -> Any:
    """The type of a field that counts `unit`s, from 1."""
    return quantity(unit, 1, high, whole=True)


if TYPE_CHECKING:  # to the type checker every number is a Quantity; the bounds are pydantic's business
    Bytes: TypeAlias = Quantity
    Bandwidth: TypeAlias = Quantity
    FlopRate: TypeAlias = Quantity
    OpRate: TypeAlias = Quantity
    Energy: TypeAlias = Quantity
    FlopEnergy: TypeAlias = Quantity
    IdlePower: TypeAlias = Quantity
    Area: TypeAlias = Quantity
    ElementRate: TypeAlias = Quantity
    Power: TypeAlias = Quantity
    Seconds: TypeAlias = Quantity
    Rounds: TypeAlias = Quantity
    UsableFrac: TypeAlias = Quantity
    Share: TypeAlias = Quantity
    Factor: TypeAlias = Quantity
    Overhead: TypeAlias = Quantity
    Price: TypeAlias = Quantity
    Clock: TypeAlias = Quantity
    Page: TypeAlias = Quantity
    Burst: TypeAlias = Quantity
    Devices: TypeAlias = Quantity
    Cores: TypeAlias = Quantity
    Rows: TypeAlias = Quantity
    Layers: TypeAlias = Quantity
    Channels: TypeAlias = Quantity
    Heads: TypeAlias = Quantity
    HeadChannels: TypeAlias = Quantity
    FfnChannels: TypeAlias = Quantity
    Tokens: TypeAlias = Quantity
    VocabTokens: TypeAlias = Quantity
    Experts: TypeAlias = Quantity
    Parameters: TypeAlias = Quantity
else:
    Bytes = quantity("B", 1e6, 1e16, slip=1e3)
    Bandwidth = quantity("B/s", 1e9, 1e15, slip=1e2)
    FlopRate = quantity("FLOP/s", 1e9, 1e19, slip=1e3)
    OpRate = quantity("OP/s", 1e9, 1e19, slip=1e3)
    Energy = quantity("J/B", 0.0, 1e-6)
    FlopEnergy = quantity("J/FLOP", 0.0, 1e-6)
    IdlePower = quantity("W", 0.0, 1e6)
    Area = quantity("mm2", 1e-6, 1e6)
    ElementRate = quantity("element/s", 1e6, 1e18, slip=1e3)
    Power = quantity("W", 0.1, 1e6)
    Seconds = quantity("s", 0.0, 1.0)
    Rounds = quantity("1", 1.0, 1e3)
    UsableFrac = quantity("1", 1e-3, 1.0)
    Share = quantity("1", 1e-3, 1.0)
    Factor = quantity("1", 0.0, 1e3)
    Overhead = quantity("B", 0.0, 1e16)
    Price = quantity("USD/h", 1e-6, 1e6)
    Clock = quantity("Hz", 1e6, 1e11, slip=1e2)
    Page = quantity("B", 1, 2**30, whole=True)
    Burst = quantity("B", 1, 2**20, whole=True)
    Devices = count("device", 4096)
    Cores = count("core", 1e6)
    Rows = count("row", 1e6)
    Layers = count("layer", 10_000)
    Channels = count("channel", 2**20)
    HeadChannels = count("channel", 65_536)
    FfnChannels = count("channel", 2**24)
    Heads = count("head", 65_536)
    Tokens = count("token", 2**40)
    VocabTokens = count("token", 2**24)
    Experts = count("expert", 65_536)
    Parameters = count("parameter", 1e15)
