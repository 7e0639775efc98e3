"""Write a device file from the few numbers that a user has, the rest borrowed from a shipped device where asked."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from dse.core import toml, units
from dse.core.errors import InputError, did_you_mean, show
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec
from dse.specs.quantity import ASSUMED, Quantity

#: source of a number that came without one
GIVEN = "given by the user"
#: what a device has for itself: its name, its price, its collectives, and what has a rule of its own below
_OWN = frozenset(("name", "title", "aliases", "usd_per_hour", "links", "n_devices", "stacks", "stacks_of", "core_area"))
#: borrowed numbers that follow another of the device
_IN_PROPORTION = {
    "peak_flops_fp8": "peak_flops",
    "peak_flops_fp4": "peak_flops",
    "peak_ops_int8": "peak_flops",
    "reported_memory": "memory_capacity",
    "fused_rate": "n_cores",
}
#: how the shipped files assume two energies, in their words: the sources of those numbers there
_IDLE_RULE = "15 % of the board power (H200 boards have been seen to idle at 11 to 14 %)"
_IDLE_SHARE = 0.15
_FLOP_RULE = (
    "(board_power - idle_power - energy_per_byte * memory_bandwidth) / peak_flops, so that all at once draw the board "
    "power"
)


def is_needed(field: str) -> bool:
    """Whether no device file can do without a number."""
    return HardwareSpec.model_fields[field].is_required()


def check_name(name: str) -> None:
    """Raises InputError for a name that no device file may have."""
    try:
        _checked("name", name)
    except InputError:
        rule = "must be 1 to 64 letters, digits and ._+- that begin with a letter or a digit, such as My-GPU"
        raise InputError(f"name = {show(name)}: {rule}") from None


def number(field: str, text: str, source: str | None = None) -> Quantity:
    """`text` ("80 GB") as a number of a device's field, from a data sheet (`source`) or assumed.

    Raises InputError, which does not name the field.
    """
    quantity: Quantity = _checked(field, text)
    origin = {"source": source, "kind": "datasheet"} if source else {"source": GIVEN, "kind": ASSUMED}
    return quantity.model_copy(update=origin)


def _checked(field: str, text: str) -> Any:
    info = HardwareSpec.model_fields[field]
    # where a field may not be left out, its bounds stand beside the type
    kind: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    try:
        return TypeAdapter(kind).validate_python(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{show(text)}: {first.get('ctx', {}).get('error', first['msg'].lower())}") from None


@dataclass(frozen=True)
class Borrowed:
    """Fields that a device file takes from a shipped device, the owner of its fitted kernels, and warnings."""

    name: str
    fields: dict[str, Any]
    stacks_of: str | None
    warnings: tuple[str, ...] = ()


def borrow(name: str, given: dict[str, Quantity]) -> Borrowed:
    """Borrow from the shipped device `name` what the `given` numbers leave open. Raises InputError."""
    files = catalog.device_files()
    if name.strip().lower() not in files:
        raise InputError(f"like = {show(name)}: must be a shipped device: {did_you_mean(name, files)}")
    stem = name.strip().lower()
    other = catalog.device(stem)
    if other.n_devices.count > 1:
        raise InputError(
            f"like = {show(name)}: stands for {other.n_devices.count} devices: name one of a single device"
        )
    fields: dict[str, Any] = {}
    for field in HardwareSpec.model_fields:
        value = getattr(other, field)
        # only what its file says: what is a default there is one here
        if field in _OWN or field in given or not value or field not in other.model_fields_set:
            continue
        fields[field] = _as(stem, field, value, other, given) if isinstance(value, Quantity) else value
    fields = {field: value for field, value in fields.items() if value is not None}
    warnings = _assume_energies(fields, other, given)
    return Borrowed(stem, fields, (other.stacks_of or stem) if other.stacks else None, warnings)


def _assume_energies(fields: dict[str, Any], other: HardwareSpec, stated: dict[str, Quantity]) -> tuple[str, ...]:
    """Put the idle power, W, and the energy of an FP16 operation, pJ, by the rules of the shipped files into `fields`.

    What the other device has measured or published is left. Where idling and memory alone would draw the board power
    the operation's energy is taken out, and a warning says so.
    """
    numbers = {field: getattr(other, field) for field in ("memory_bandwidth", "peak_flops")} | fields | stated

    def by_rule(field: str) -> bool:
        return field in fields and getattr(other, field).kind == ASSUMED

    def put(field: str, value: float, unit: str, rule: str) -> None:
        source = f"by the rule of the shipped devices: {rule}"
        digits = float(f"{value:.6g}")
        fields[field] = numbers[field] = Quantity(value=digits, unit=unit, source=source, kind=ASSUMED)

    if by_rule("idle_power"):
        put("idle_power", _IDLE_SHARE * numbers["board_power"].si, "W", _IDLE_RULE)
    if not by_rule("energy_per_flop"):
        return ()
    board_w = numbers["board_power"].si
    others_w = numbers["idle_power"].si + numbers["energy_per_byte"].si * numbers["memory_bandwidth"].si
    if others_w >= board_w:
        del fields["energy_per_flop"]
        return (f"no energy by parts: idling and memory alone would draw {others_w:g} W of board_power {board_w:g} W",)
    per_flop = (board_w - others_w) / numbers["peak_flops"].si
    put("energy_per_flop", per_flop / units.to_base(1, "pJ/FLOP"), "pJ/FLOP", _FLOP_RULE)
    return ()


def _as(stem: str, field: str, value: Quantity, other: HardwareSpec, stated: dict[str, Quantity]) -> Quantity | None:
    """A number of another device, here assumed; in proportion where it follows a number that is given."""
    factor, how = 1.0, f"as {stem}"
    leader = _IN_PROPORTION.get(field)
    if leader in stated:
        base: Quantity | None = getattr(other, leader)
        if base is None:
            return None
        factor, how = stated[leader].si / base.si, f"as {stem}, in proportion to {leader}"
    elif field in ("idle_power", "energy_per_flop") and "board_power" in stated:
        how = f"as {stem}, {value.kind} there and kept whatever the board power"
    ends = (
        {}
        if value.low is None or value.high is None
        else {"low": _rounded(value.low, factor), "high": _rounded(value.high, factor)}
    )
    source = f"{how}: {value.source.removeprefix('assumed: ')}"
    return value.model_copy(
        update={
            "value": _rounded(value.value, factor),
            "source": source if len(source) <= 500 else source[:497] + "...",
            "kind": ASSUMED,
            **ends,
        }
    )


def _rounded(value: float, factor: float) -> float:
    return value if factor == 1 else float(f"{value * factor:.6g}")


def text(name: str, given: dict[str, Quantity], borrowed: Borrowed | None = None) -> str:
    """The TOML text of a device file."""
    rest = borrowed.fields if borrowed else {}
    # numbers in the order of the specification; tables, which take all lines after them, last
    numbers = {field: (given | rest)[field] for field in HardwareSpec.model_fields if field in given or field in rest}
    written = {field: _plain(item) if isinstance(item, Quantity) else item for field, item in numbers.items()}
    tables = {field: item for field, item in written.items() if isinstance(numbers[field], dict)}
    lines = toml.dumps({"name": name}) + "\n" + toml.dumps({f: x for f, x in written.items() if f not in tables})
    if borrowed and borrowed.stacks_of:
        stacks = toml.dumps({"stacks_of": borrowed.stacks_of}).rstrip()
        lines += f"{stacks} # shares of the peak rates as its kernels reach them\n"
    return lines + toml.dumps({f: {key: _plain(x) for key, x in table.items()} for f, table in tables.items()})


def _plain(item: Any) -> Any:
    """A number as a table of plain values, whole ones without a point."""
    if not isinstance(item, Quantity):
        return item
    whole = item.model_dump(exclude_none=True)
    ends = {end: int(whole[end]) for end in ("value", "low", "high") if end in whole and whole[end] == int(whole[end])}
    return whole | ends
