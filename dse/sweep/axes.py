"""The axes of a sweep: what can be varied, and how lists, steps and ranges become values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from dse import quantizers
from dse.core import units
from dse.core.errors import DseError, did_you_mean, show
from dse.core.field import Field
from dse.core.units import number_and_unit
from dse.quantizers.base import QuantizerSpec
from dse.specs import catalog, tokens, workload
from dse.specs.device_and_model import ASSUMED, HardwareSpec, ModelSpec, Quantity
from dse.specs.workload import MAX_INPUT_TOKENS, Workload

Kind = Literal["text", "whole", "number"]
Role = Literal["device", "model", "quantizer", "parameter", "device_field", "workload"]
#: values of one axis
MAX_VALUES = 1_000_000
#: from so many values on, a range is checked at its ends
MANY_VALUES = 1000
#: digits that values of a range keep, so that no library's last bit decides what a sweep holds
DIGITS = 12
QUANTIZER_AXES = ("quantizer", "key_quantizer", "value_quantizer")
#: how a file writes "as the device says"
AUTO = "auto"
#: where a value of one field is bound by another, the value of the other that lets all through
_ROOMY: dict[str, dict[str, Any]] = {
    "prefix_tokens": {"input_tokens": MAX_INPUT_TOKENS},
    "activation_bits": {"weights_bits": 4},
}
KeyPath = tuple[str | int, ...]


class AxisError(Exception):
    """An invalid axis, and the key at fault."""

    def __init__(self, text: str, *path: str | int, over_limit: bool = False) -> None:
        super().__init__(text)
        self.path: KeyPath = path
        self.over_limit = over_limit


@dataclass(frozen=True)
class SweepAxis:
    """One thing that is varied.

    `values` are what columns and conditions show, in base units; `items` are what the evaluation takes: specs,
    quantities, parameter texts. Names are dotted for parameters of a quantizer family (`oaken.outer`).
    """

    name: str
    kind: Kind
    role: Role
    values: tuple[Any, ...]
    items: tuple[Any, ...]
    unit: str = ""

    def __len__(self) -> int:
        return len(self.values)


class Range(BaseModel):
    """`{ from, to, step }` or `{ from, to, count }` for equal steps, `{ from, to, factor }` or `{ from, to, count,
    scale = "log" }` for equal ratios. `to` is a value of the range where a step or factor meets it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    start: float | str
    to: float | str
    step: float | str | None = None
    count: int | None = None
    factor: float | None = None
    scale: Literal["linear", "log"] = "linear"


@cache
def _device_fields() -> dict[str, TypeAdapter[Quantity]]:
    """The numbers of a device that a sweep can vary, with what checks a value."""
    adapters = {}
    for name, field in HardwareSpec.model_fields.items():
        if "Quantity" in str(field.annotation):
            kind: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
            adapters[name] = TypeAdapter(kind)
    return adapters


@cache
def _parameters() -> dict[str, Field]:
    return {f"{family.name}.{p.name}": p for family in quantizers.FAMILIES.values() for p in family.params}


def known_axes() -> list[str]:
    """The names of everything that can be an axis."""
    return ["device", "model", *QUANTIZER_AXES, *_device_fields(), *workload.ASKED, *_parameters()]


def build(name: str, raw: Any) -> SweepAxis:
    """The axis of that name with the values that a file (or a dict) gives. Raises AxisError."""
    if name in ("device", "model", *QUANTIZER_AXES):
        return _of_specs(name, raw)
    if name in _device_fields():
        return _of_device_field(name, raw)
    if name in workload.ASKED:
        return _of_workload(name, raw)
    if name in _parameters():
        return _of_parameter(name, raw)
    raise AxisError(f"unknown axis: {did_you_mean(name, known_axes())}")


def of_items(name: str, items: Sequence[Any]) -> SweepAxis:
    """An axis of devices, models, quantizers or numbers of a workload that are known to be right; any may repeat."""
    if name in ("device", "model", *QUANTIZER_AXES):
        return SweepAxis(
            name=name, kind="text", role=_role(name), values=tuple(item.name for item in items), items=tuple(items)
        )
    return SweepAxis(
        name=name, kind=_kind_of(name), role="workload", values=tuple(items), items=tuple(items), unit=_unit(name)
    )


def _role(name: str) -> Any:
    return "quantizer" if name in QUANTIZER_AXES else name


def _unit(name: str) -> str:
    return "bit" if name.endswith("_bits") else "token" if name.endswith("_tokens") else ""


def _kind_of(name: str) -> Kind:
    """Kind of a workload's field: whole numbers, others, or names (and yes or no)."""
    sort = workload.ASKED[name].kind.sort
    return "text" if sort == "switch" else sort


def _of_specs(name: str, raw: Any) -> SweepAxis:
    read: Any = catalog.device if name == "device" else catalog.model if name == "model" else quantizers.parse
    kind = HardwareSpec if name == "device" else ModelSpec if name == "model" else QuantizerSpec
    ready = {i: item for i, item in enumerate(_listed(raw)) if isinstance(item, kind)}
    texts = _texts(["" if i in ready else item for i, item in enumerate(_listed(raw))])
    items = [ready[i] if i in ready else _tried(lambda text=text: read(text), i) for i, text in enumerate(texts)]
    axis = of_items(name, items)
    _refuse_twice(axis.values)
    return axis


def _of_device_field(name: str, raw: Any) -> SweepAxis:
    adapter = _device_fields()[name]

    def quantity(value: Any, *path: str | int) -> Quantity:
        if value is None or isinstance(value, dict):
            key = f"{path[0]}: " if path[0] in ("from", "to") else ""
            raise AxisError(f"{key}is missing: give a number", *path)
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            text = str(error.errors()[0].get("ctx", {}).get("error", error.errors()[0]["msg"].lower()))
            raise AxisError(f"{show(value)}: {text}", *path) from None

    if isinstance(raw, dict):
        first, last = quantity(raw.get("from"), "from"), quantity(raw.get("to"), "to")
        if not first.si < last.si:
            raise AxisError(f"from = {show(raw['from'])}: must be below to = {show(raw['to'])}", "from")
        base = units.base_of(first.unit)
        numbers: list[Any] = _spread({**raw, "from": first.si, "to": last.si, "step": _si(raw, base)})
        numbers = _rounded(numbers) if base == "B" else numbers
    else:
        quantities = [quantity(value, i) for i, value in enumerate(_listed(raw))]
        base = units.base_of(quantities[0].unit)
        numbers = [value.si for value in quantities]
    items = [quantity(number, i) for i, number in enumerate(numbers)]
    named = tuple(Quantity(value=item.si, unit=base, source=f"axis {name} of a sweep", kind=ASSUMED) for item in items)
    values = tuple(item.si for item in named)
    _refuse_twice(values)
    return SweepAxis(
        name=name, kind="number", role="device_field", values=values, items=named, unit="" if base == "1" else base
    )


def _si(raw: dict[str, Any], base: str) -> Any:
    """The step of a range in base units; it may be written with a unit, and is not bound as values are."""
    step = raw.get("step")
    if not isinstance(step, str):
        return step
    try:
        number, unit = number_and_unit(step) or (0.0, "")
    except ValueError as error:
        raise AxisError(f"step = {show(step)}: {error}", "step") from None
    if unit not in units.UNITS or units.base_of(unit) != base:
        raise AxisError(f'step = {show(step)}: must be a number and a unit of {base}, such as "1 {base}"', "step")
    return units.to_base(number, unit)


def _of_workload(name: str, raw: Any) -> SweepAxis:
    default = workload.ASKED[name].default
    kind = _kind_of(name)
    items: list[Any]
    if kind == "text":
        flags = isinstance(default, bool)
        items = _listed(raw) if flags else _texts(raw)
        items = [None if default is None and item == AUTO else item for item in items]
        if name == "tokens":
            items = [_tried(lambda text=text: tokens.parse(text).name, i) for i, text in enumerate(items)]
    elif isinstance(raw, dict):
        items = _rounded(_spread(raw)) if kind == "whole" else _spread(raw)
    else:
        items = _listed(raw)
    if kind != "text" and any(item is None for item in items):
        raise AxisError(f"{name} = None: must be a number, or leave the axis out for the default")
    roomy = _ROOMY.get(name, {})
    if isinstance(raw, dict) and len(items) > MANY_VALUES:  # what lies between two good numbers is good
        _tried(lambda: [Workload(**{**roomy, name: item}) for item in (items[0], items[-1])])
    else:
        for i, item in enumerate(items):
            _tried(lambda item=item: Workload(**{**roomy, name: item}), i)
    values = tuple((AUTO if item is None else str(item).lower() if kind == "text" else item) for item in items)
    _refuse_twice(values)
    return SweepAxis(name=name, kind=kind, role="workload", values=values, items=tuple(items), unit=_unit(name))


def _of_parameter(name: str, raw: Any) -> SweepAxis:
    param = _parameters()[name]
    family = name.partition(".")[0]
    kind: Kind = param.kind.sort  # type: ignore[assignment]  # no parameter is a switch
    if kind == "text":
        texts = _texts(raw)
        values: tuple[Any, ...] = tuple(texts)
    else:
        numbers = _spread(raw) if isinstance(raw, dict) else _listed(raw)
        if kind == "whole" and isinstance(raw, dict):
            numbers = _rounded(numbers)
        values = tuple(numbers)
        texts = [_parameter_text(param, number, i) for i, number in enumerate(numbers)]
    for i, text in enumerate(texts):
        if text:
            _tried(lambda text=text: quantizers.registry.parameter(family, param.name, text), i)
    if kind == "number":
        values = tuple(float(text) for text in texts)
    _refuse_twice(values)
    return SweepAxis(name=name, kind=kind, role="parameter", values=values, items=tuple(texts))


def _parameter_text(param: Field, number: Any, i: int) -> str:
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise AxisError(f"{show(number)}: must be a number, {param.allowed()}", i)
    if param.kind.sort == "whole":
        return str(number)
    return f"{Decimal(repr(number)):.{DIGITS}f}".rstrip("0").rstrip(".") if number else "0"


def applies(param_axis: SweepAxis, spec: QuantizerSpec) -> bool:
    """True where a parameter axis varies this quantizer: it is of that family and leaves the parameter open."""
    family, _, name = param_axis.name.partition(".")
    if spec.family.name != family:
        return False
    values, defaults = dict(spec.values), {p.name: p.default for p in spec.family.params}
    unless = _parameters()[param_axis.name].unless
    return values[name] == defaults[name] and not (unless and values[unless] != defaults[unless])


def _listed(raw: Any) -> list[Any]:
    """A list of at least one value; a single value is a list of one."""
    if isinstance(raw, dict):
        raise AxisError("names cannot be a range: list them")
    values = list(raw) if isinstance(raw, list | tuple | range) else [raw]
    if not values:
        raise AxisError("has no value: list at least one, or leave the axis out")
    if len(values) > MAX_VALUES:
        raise AxisError(f"has {len(values):,} values: an axis has at most {MAX_VALUES:,}", over_limit=True)
    return values


def _texts(raw: Any) -> list[str]:
    values = _listed(raw)
    for i, value in enumerate(values):
        if not isinstance(value, str):
            raise AxisError(f"{show(value)}: must be a name in quotes", i)
    return values


def _tried(make: Any, *path: str | int) -> Any:
    try:
        return make()
    except DseError as error:
        raise AxisError(str(error), *path) from None


def _refuse_twice(values: Sequence[Any]) -> None:
    seen: set[Any] = set()
    for i, value in enumerate(values):
        if value in seen:
            raise AxisError(f"{show(value)}: is given twice: leave one", i)
        seen.add(value)


def _rounded(numbers: Sequence[float]) -> list[int]:
    """Whole numbers of a range, each once."""
    return list(dict.fromkeys(round(number) for number in numbers))


def _range(raw: dict[str, Any]) -> Range:
    """A range as it is written, each number a number."""
    renamed = {"start" if key == "from" else key: value for key, value in raw.items() if value is not None}
    if "start" in raw:
        raise AxisError(f"start: unknown key: {did_you_mean('from', ['from'])}", "start")
    try:
        span = Range.model_validate(renamed)
    except ValidationError as error:
        item = error.errors()[0]
        key = {"start": "from"}.get(str(item["loc"][0]), str(item["loc"][0]))
        if item["type"] == "extra_forbidden":
            raise AxisError(
                f"{key}: unknown key: {did_you_mean(key, ['from', 'to', 'step', 'count', 'factor', 'scale'])}", key
            ) from None
        if item["type"] == "missing":
            raise AxisError(f"{key}: is missing: a range is {{ from, to, step }} or {{ from, to, count }}") from None
        must = '"linear" or "log"' if key == "scale" else "a whole number" if key == "count" else "a finite number"
        raise AxisError(f"{key} = {show(item['input'])}: must be {must}", key) from None
    for key, value in (("from", span.start), ("to", span.to), ("step", span.step)):
        if isinstance(value, str):
            raise AxisError(f"{key} = {show(value)}: must be a number", key)
    return span


def _spread(raw: dict[str, Any]) -> list[float]:
    """The values of a range, in order; whole numbers as int where start and step are."""
    span = _range(raw)
    low, high = _exact(span.start), _exact(span.to)
    if not low < high:
        raise AxisError(f"from = {show(raw['from'])}: must be below to = {show(raw['to'])}", "from")
    ways = [key for key in ("step", "count", "factor") if getattr(span, key) is not None]
    if len(ways) != 1:
        what = f"has {' and '.join(ways)}" if ways else "says no number of values"
        raise AxisError(f"{what}: give one of step, count and factor")
    is_log = span.scale == "log" or span.factor is not None
    if is_log and low <= 0:
        raise AxisError(f"from = {show(raw['from'])}: must be above 0 for equal ratios", "from")
    if span.step is not None:
        if is_log:
            raise AxisError('scale = "log": takes count or factor, not step', "scale")
        return _steps(low, high, _exact(span.step))
    if span.factor is not None:
        return _ratios(low, high, _exact(span.factor))
    assert span.count is not None
    _check_count(span.count, "count")
    if span.count < 2:
        raise AxisError(f"count = {span.count}: must be at least 2, for from and to", "count")
    n = span.count - 1
    if not is_log:
        return [_plain(low + (high - low) * Fraction(i, n)) for i in range(span.count)]
    ratio = float(high / low)
    inner = [float(f"{float(low) * ratio ** (i / n):.{DIGITS}g}") for i in range(1, n)]
    return [_plain(low), *inner, _plain(high)]


def _exact(number: Any) -> Fraction:
    """A number as it is written in decimal."""
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


def _plain(number: Fraction) -> int | float:
    return int(number) if number.denominator == 1 and abs(number) < 2**53 else float(number)


def _steps(low: Fraction, high: Fraction, step: Fraction) -> list[float]:
    if step <= 0:
        raise AxisError(f"step = {float(step):g}: must be above 0", "step")
    count = math.floor((high - low) / step) + 1
    _check_count(count, "step")
    return [_plain(low + i * step) for i in range(count)]


def _ratios(low: Fraction, high: Fraction, factor: Fraction) -> list[float]:
    if factor <= 1:
        raise AxisError(f"factor = {float(factor):g}: must be above 1", "factor")
    _check_count(math.ceil(math.log(high / low) / math.log(factor)), "factor")
    values: list[float] = []
    while True:
        i = len(values)
        whole = low.denominator == factor.denominator == 1
        value = low * factor**i if whole else Fraction(f"{float(low) * float(factor) ** i:.{DIGITS}g}")
        if value > high:
            return values
        values.append(_plain(value))


def _check_count(count: int, key: str) -> None:
    if count > MAX_VALUES:
        raise AxisError(f"{key}: gives {count:,} values: an axis has at most {MAX_VALUES:,}", key, over_limit=True)
