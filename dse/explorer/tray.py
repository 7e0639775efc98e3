"""The tray: the designs that all pages compare, one of them being changed. Plain data, and its text in an address.

A design holds the fields in which it differs from the defaults, so that what nobody has touched costs nothing. In an
address designs stand behind each other, `quantizer.fp16~~device.b200~quantizer.nvfp4~name.Mine`: a tilde between
fields, two between designs, a dot behind a field's key; percent signs stand for what these would hide.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from dse.core.errors import MAX_LINE, DseError, InputError, clean
from dse.core.field import WHOLE, Field
from dse.explorer.fields import check_query, query_of

#: designs at most; from this many on, lists become tables
MAX_DESIGNS, MANY = 40, 7
#: longest text of a tray in an address
MAX_TEXT = 16_000
MAX_NAME = 40
_FIELDS, _DESIGNS, _NAME = "~", "~~", "name"
#: key of the question -> that of a design's own, which stands in its place; so designs of former addresses say it
OWN = {"device": "own_device", "model": "own_model", "devices": "tp"}
#: key of the changed numbers of a device, which another device has not
_EDITS = "edits"
#: a design that differs in nothing from the defaults
_PLAIN = "-"


@dataclass(frozen=True)
class TrayDesign:
    """A named design: its fields that differ from the defaults. Without a name, what tells it from others is one."""

    name: str = ""
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Tray:
    """At least one design, and the place, from 0, of the one that is being changed."""

    designs: tuple[TrayDesign, ...] = (TrayDesign(),)
    at: int = 0

    @property
    def current(self) -> TrayDesign:
        """The design that is being changed."""
        return self.designs[self.at]

    def hoisted(self, said: Collection[str] = ()) -> "tuple[dict[str, Any], Tray]":
        """Values that all designs have alike of their own, by the question's key, and the designs without them.

        What is `said` of the question stays as it is, and with it the designs' own.
        """

        def alike(key: str) -> Any:
            first, *others = (design.values.get(key) for design in self.designs)
            return None if any(other != first for other in others) else first

        question = {key: alike(own) for key, own in OWN.items() if key not in said and alike(own) is not None}
        n_stages = {design.values.get("pp", 1) for design in self.designs}
        if "devices" in question and len(n_stages) > 1:
            del question["devices"]  # split over so many, each has another number of devices
        elif "devices" in question:
            question["devices"] *= n_stages.pop()
        left_out = {OWN[key] for key in question}
        left = (
            replace(design, values={key: value for key, value in design.values.items() if key not in left_out})
            for design in self.designs
        )
        return question, replace(self, designs=tuple(left))

    def chosen(self, at: int) -> "Tray":
        """The tray with another design to change."""
        return replace(self, at=min(max(at, 0), len(self.designs) - 1))

    def put(self, at: int, design: TrayDesign) -> "Tray":
        """The tray with another design at a place."""
        return replace(self, designs=(*self.designs[:at], design, *self.designs[at + 1 :]))

    def changed(self, design: TrayDesign, is_for_all: bool = False) -> "Tray":
        """The tray with the current design as it is now; `is_for_all` changes the same fields of all designs."""
        before, after = self.current.values, design.values
        keys = {key for key in (*before, *after) if before.get(key) != after.get(key)} if is_for_all else set()
        keys |= {_EDITS} if OWN["device"] in keys else set()
        others = [
            replace(
                other,
                values={
                    **{key: value for key, value in other.values.items() if key not in keys},
                    **{key: value for key, value in after.items() if key in keys},
                },
            )
            for other in self.designs
        ]
        return replace(self, designs=tuple(others)).put(self.at, design)

    def with_all(self, values: Mapping[str, Any], fields: Sequence[Field]) -> "Tray":
        """The tray with the same values in all designs, but for changed numbers of a device of a design's own."""

        def changed(design: TrayDesign) -> TrayDesign:
            own = {key: v for key, v in values.items() if key != _EDITS or OWN["device"] not in design.values}
            return design_of({**values_of(design, fields), **own}, fields, design.name)

        return replace(self, designs=tuple(map(changed, self.designs)))

    def on_another_device(self) -> "Tray":
        """The tray without the changed numbers of the question's device, which is another now."""
        kept = [
            design
            if OWN["device"] in design.values
            else replace(design, values={key: value for key, value in design.values.items() if key != _EDITS})
            for design in self.designs
        ]
        return replace(self, designs=tuple(kept))

    def added(self, design: TrayDesign, at: int | None = None) -> "Tray":
        """The tray with one design more, at the end or before a place, which is now being changed.

        Raises InputError for a full tray.
        """
        if len(self.designs) >= MAX_DESIGNS:
            raise InputError(f"designs: {MAX_DESIGNS} are compared, which is as many as there can be: delete one first")
        place = len(self.designs) if at is None else at
        return Tray((*self.designs[:place], design, *self.designs[place:]), place)

    def duplicated(self) -> "Tray":
        """The tray with a copy of the current design behind it. Raises InputError for a full tray."""
        return self.added(replace(self.current, name=_copy_of(self.current.name)), self.at + 1)

    def deleted(self) -> "Tray":
        """The tray without the current design; the last one stays."""
        if len(self.designs) == 1:
            return self
        left = (*self.designs[: self.at], *self.designs[self.at + 1 :])
        return Tray(left, min(self.at, len(left) - 1))

    def first(self) -> "Tray":
        """The tray with the current design before the others."""
        return Tray((self.current, *self.designs[: self.at], *self.designs[self.at + 1 :]))


def _copy_of(name: str) -> str:
    return f"{name[: MAX_NAME - 5]} copy" if name else ""


def design_of(values: Mapping[str, Any], fields: Sequence[Field], name: str = "") -> TrayDesign:
    """The design of a page's values: those that differ from the defaults."""
    whole = {field.key: values.get(field.key, field.default) for field in fields}
    return TrayDesign(name, {field.key: whole[field.key] for field in fields if whole[field.key] != field.default})


def values_of(design: TrayDesign, fields: Sequence[Field]) -> dict[str, Any]:
    """All values of a design by field."""
    return {field.key: design.values.get(field.key, field.default) for field in fields}


def text_of(tray: Tray, fields: Sequence[Field], also: Mapping[str, str]) -> str:
    """The designs as an address holds them; loaded files as `also` has them."""
    return _DESIGNS.join(_design_text(design, fields, also) for design in tray.designs)


def _design_text(design: TrayDesign, fields: Sequence[Field], also: Mapping[str, str]) -> str:
    query = query_of(fields, values_of(design, fields), also)
    parts = [f"{key}.{_escaped(text)}" for key, text in query.items()]
    return _FIELDS.join([*parts, *([f"{_NAME}.{_escaped(design.name)}"] if design.name else [])]) or _PLAIN


def read(text: str, at: str, fields: Sequence[Field], labels: Mapping[str, str]) -> tuple[Tray | None, list[str]]:
    """The tray of an address, None where it has no design, and a line for each thing that cannot be used.

    `labels` are this session's names of loaded files by what stands for them in addresses.
    """
    if len(text) > MAX_TEXT:
        return None, [f"designs: longer than {MAX_TEXT:,} characters"]
    designs, problems = [], []
    parts = text.split(_DESIGNS) if text else []
    if len(parts) > MAX_DESIGNS:
        problems.append(f"designs: {len(parts):,} are given: the first {MAX_DESIGNS} are taken")
    for i, part in enumerate(parts[:MAX_DESIGNS]):
        pairs = [pair.partition(".") for pair in part.split(_FIELDS) if pair and part != _PLAIN]
        query: dict[str, list[str]] = {}
        for former, _, value in pairs:
            query.setdefault(OWN.get(former, former), []).append(unquote(value))
        name = clean(query.pop(_NAME, [""])[0], MAX_NAME)
        values, wrong = check_query(fields, query, labels)
        problems += [clean(f"design {i + 1}: {line}", MAX_LINE) for line in wrong]
        designs.append(design_of(values, fields, name))
    if not designs:
        return None, problems
    return Tray(tuple(designs), place_of(at, len(designs), problems) - 1), problems


def place_of(at: str, n_designs: int, problems: list[str]) -> int:
    """The place, from 1, of the design that is being changed, as an address has it; the first, with a line in
    `problems`, where it cannot be used."""
    try:
        return int(Field(name="at", kind=WHOLE, low=1, high=n_designs).read(clean(at, MAX_NAME))) if at else 1
    except DseError as error:
        problems.append(error.lines()[0])
        return 1


def _parts(text: str) -> list[tuple[str, str]]:
    """Keys and values of all designs of an address."""
    parts = [part.partition(".") for design in text[:MAX_TEXT].split(_DESIGNS) for part in design.split(_FIELDS)]
    return [(key, unquote(value)) for key, _, value in parts]


def values_in(text: str) -> list[str]:
    """All values of the designs of an address, such as files."""
    return [value for _, value in _parts(text)]


def is_former_text(text: str) -> bool:
    """Whether designs of an address are from when each had the device and the model itself."""
    return any(key in OWN for key, _ in _parts(text))


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace(_FIELDS, "%7E")


@dataclass
class History:
    """States in the order in which they were chosen, for undo and redo."""

    states: list[tuple[Any, int]] = dataclasses.field(default_factory=list)
    at: int = -1
    #: states that are remembered
    most: int = 200

    def goes_to(self, state: Any, at: int = 0) -> None:
        """Note a state, and the place of the design that is being changed, which by itself is nothing to undo.

        What could be redone is gone, unless it is the state that was just returned to.
        """
        if self.at >= 0 and self.states[self.at][0] == state:
            self.states[self.at] = (state, at)
            return
        del self.states[self.at + 1 :]
        self.states = [*self.states, (state, at)][-self.most :]
        self.at = len(self.states) - 1

    def can(self, by: int) -> bool:
        """True where there is a state to undo (-1) or to redo (1)."""
        return 0 <= self.at + by < len(self.states)

    def step(self, by: int) -> tuple[Any, int]:
        """The state before (-1) or after (1), and its place."""
        self.at += by
        return self.states[self.at]
