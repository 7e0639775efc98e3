"""Up to four designs side by side: their fields, what each inherits from the first, and how numbers compare."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dse import units
from dse.errors import InputError
from dse.explorer import request, shared, uploads
from dse.explorer.fields import Field
from dse.explorer.request import Request
from dse.point import RESULT_UNITS
from dse.present import change, number

MAX_DESIGNS = 4
COUNT = Field(
    "designs", "Designs side by side", "choice", 1, choices=lambda: list(range(1, MAX_DESIGNS + 1)),
    help="The first one stands alone; the others are as the first but for what you set, and are compared with it.",
)  # fmt: skip
EDITING = Field(
    "editing", "Design to change", "choice", 1, choices=lambda: list(range(1, MAX_DESIGNS + 1)),
    help="Whose fields stand below.",
)  # fmt: skip
#: a text that belongs to a choice, and goes with it to the other designs
_WITH = {
    "edits": "device", "parameters": "quantizer", "value_parameters": "value_quantizer", "token_parameters": "tokens",
}  # fmt: skip


def key(place: int, name: str) -> str:
    """The key of a field of a design; the first design has the shared keys."""
    return name if place == 1 else f"{place}.{name}"


def _field(place: int, field: Field) -> Field:
    if place == 1:
        return field
    clears = key(place, field.clears) if field.clears else ""
    check = field.check and _check(place, field)
    open_value = "" if field.kind == "text" else None
    return replace(
        field, key=key(place, field.key), default=open_value, placeholder="as design 1", slides=(), clears=clears,
        check=check,
    )  # fmt: skip


def _check(place: int, field: Field) -> Any:
    """The field's own check, with the design's own values under the shared keys."""

    def check(text: str, values: Mapping[str, Any]) -> object:
        assert field.check is not None
        return field.check(text, of(place, values))

    return check


#: fields of each design, by its place from 1
BY_DESIGN: dict[int, tuple[Field, ...]] = {
    place: tuple(_field(place, field) for field in shared.DESIGN) for place in range(1, MAX_DESIGNS + 1)
}
FIELDS = (COUNT, EDITING, *(field for fields in BY_DESIGN.values() for field in fields))


def of(place: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """A design's values under the shared keys: its own where it has them, else the first design's.

    The text of a choice (parameters, changed numbers) comes from the first design only where the choice does too.
    """
    found = {}
    for field in shared.DESIGN:
        name = field.key
        own = values.get(key(place, name))
        if own in (None, ""):
            choice = _WITH.get(name)
            inherits = place == 1 or choice is None or values.get(key(place, choice)) in (None, "")
            own = values.get(name, field.default) if inherits else field.default
        found[name] = own
    return found


def request_of(place: int, values: Mapping[str, Any]) -> Request:
    """What a design asks for."""
    return request.of(of(place, values))


def editable(device: str, edits: str) -> dict[str, tuple[str, str, str]]:
    """The numbers of a device: field -> (text to edit, source, kind); without the changed ones where they are wrong.

    The text is in the short form of files, so that it goes back unchanged. Raises InputError for an unknown device.
    """
    try:
        spec = uploads.device(device, edits)
    except InputError:
        spec = uploads.device(device)
    return {
        name: (f"{quantity.value:.12g} {quantity.unit}", quantity.source, quantity.kind)
        for name, quantity in spec.quantities().items()
        if "." not in name
    }


def parts(edits: str) -> dict[str, str]:
    """The changed numbers of a text, by field."""
    pairs = (change.partition("=") for change in edits.split(",") if change.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def edited(edits: str, name: str, text: str, shipped: str) -> str:
    """The text of changed numbers after one was edited; empty, or as shipped, takes the change back."""
    found = parts(edits)
    found.pop(name, None)
    if text.strip() and text.strip() != shipped:
        found[name] = text.replace(",", "").strip()
    return ",".join(f"{field}={value}" for field, value in found.items())


def shown(name: str, result: Mapping[str, Any]) -> str:
    """A result as the page shows it; sizes in GB only, so that columns compare."""
    value, unit = result[name], RESULT_UNITS[name]
    if unit == "B" and value is not None:
        return units.human(value, unit)
    return number(value, unit)


def delta(name: str, result: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """How a number differs from the first design's: in percent, or as a factor from twice on; empty where it cannot."""
    value, base = result[name], first[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(base, int | float):
        return ""
    return change(value, base)


def title(asked: Request, place: int, alone: bool) -> str:
    """A design in a line."""
    keys, values = asked.key_quantizer_text, asked.value_quantizer_text
    stored = keys if keys == values else f"{keys} / {values}"
    text = f"{asked.model_text} on {asked.device_text}, KV cache in {stored}, batch {asked.batch:,}, "
    text += f"{asked.input:,} tokens in, {asked.output:,} out"
    return text if alone else f"{place}: {text}"


def short(asked: Request, others: Sequence[Request]) -> str:
    """What tells a design from the others, for the figures; its quantizer where all are the same."""
    ways = (
        lambda r: r.device_text, lambda r: r.model_text,
        lambda r: " / ".join(dict.fromkeys((r.key_quantizer_text, r.value_quantizer_text))),
        lambda r: f"batch {r.batch:,}", lambda r: f"{r.input:,} in", lambda r: f"{r.output:,} out",
        lambda r: r.admission, lambda r: f"{r.weights_bits}-bit weights", lambda r: r.model_kind,
        lambda r: r.stack or "", lambda r: r.tokens_text,
        lambda r: r.measurements,
    )  # fmt: skip
    differing = [way(asked) for way in ways if len({way(other) for other in others}) > 1]
    return ", ".join(text for text in differing if text) or asked.key_quantizer_text
