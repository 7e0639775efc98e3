"""One declaration of a value that somebody gives: its kind, bounds, words and spellings.

A command's option, a field of a page, a parameter of a quantizer and an axis of a sweep are views of a `Field`: each
adds only what it alone has.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from fractions import Fraction
from numbers import Integral, Number
from typing import Any, Literal

from dse.core.errors import InputError, show
from dse.core.units import number_and_unit


@dataclass(frozen=True)
class Kind:
    """A sort of value: `parse(name, text)` reads one and raises InputError naming it, `write` gives the text again.

    `has(field, value)` says whether a value can be taken, `allowed(field)` in words which can.
    """

    parse: Callable[[str, str], Any]
    write: Callable[[Any], str] = str
    has: Callable[["Field", Any], bool] = lambda field, value: True
    allowed: Callable[["Field"], str] = lambda field: field.help
    sort: Literal["text", "whole", "number", "switch"] = "text"
    #: what stands for the value in help
    word: str = "text"
    unit: str = ""


TEXT = Kind(lambda name, text: text)


@dataclass(frozen=True, kw_only=True)
class Field:
    """A value that somebody gives. `name` is how options and messages call it, without dashes.

    A default of None leaves it open, which then means what `open_means` says.
    """

    name: str = ""
    kind: Kind = TEXT
    default: Any = None
    help: str = ""
    #: words on an axis or above a column; "" where results say it otherwise
    title: str = ""
    #: beside the field of a page; of a declared one the title, where it says no other
    label: str = ""
    unit: str = ""
    low: float = -math.inf
    high: float = math.inf
    #: the values that are allowed, where they are few; a mapping has what a page calls each
    choices: Sequence[Any] | Mapping[Any, str] = ()
    open_means: str = ""
    #: of text: how it is written in canonical form, None for what is not allowed
    canonical: Callable[[str], str | None] | None = None
    #: a field that, where it is given, replaces this one
    unless: str = ""
    #: what stands for the value in a command's help
    metavar: str | None = None
    #: spellings of engines for the same, with their dashes; of a switch those that turn it off
    also: tuple[str, ...] = ()
    #: former and rare spellings, with their dashes: taken, not shown
    former: tuple[str, ...] = ()
    #: heading of a command's help that the option stands under; "": that of the command's own options
    group: str = ""
    #: a text that can be taken, and what there is not without it
    example: str = ""
    without: str = ""
    #: taken by its place on the command line; may be given several times
    is_argument: bool = False
    is_repeated: bool = False
    #: a page's command says it even at its default
    is_said: bool = False
    shows_default: bool = True
    #: False for what only the command line has, such as --json
    in_python: bool = True
    #: False for what only Python can give, such as a table of one's own
    in_command: bool = True
    #: of a page: choices that are asked for on each use, since files that a reader loads add some
    listed: Callable[[], Sequence[Any] | Mapping[Any, str]] | None = None
    #: of a page: the choice that another name means, or None
    meant: Callable[[str], Any] | None = None
    #: of a page's text: raises InputError for one that cannot be used beside the fields before it
    accepts: Callable[[str, Mapping[str, Any]], object] | None = None
    #: a text with a default can be taken away on a page
    may_be_empty: bool = False
    #: the text that another choice empties on a page: parameters leave with their family
    clears: str = ""
    #: of a page's number: how far its buttons go
    step: float = 1

    @property
    def key(self) -> str:
        """The name as a key of addresses and files."""
        return self.name.replace("-", "_")

    @property
    def is_bounded(self) -> bool:
        """True where not all values of the kind are allowed."""
        return bool(self.choices) or self.low > -math.inf or self.high < math.inf

    def options(self) -> Sequence[Any] | Mapping[Any, str]:
        """The choices, now; a mapping has what a page calls each."""
        return self.listed() if self.listed else self.choices

    def allowed(self) -> str:
        """The values that can be given, in words: the choices, or the kind and its bounds."""
        return f"one of {', '.join(map(str, self.choices))}" if self.choices else self.kind.allowed(self)

    def check(self, value: Any) -> None:
        """Raises InputError for a value that cannot be taken."""
        if (value is not None or self.default is not None) and not self._takes(value):
            raise self.refused(value)

    def read(self, text: str) -> Any:
        """The value that a text stands for. Raises InputError with what is allowed."""
        try:
            value = self.kind.parse(self.name, text)
        except InputError:
            raise self.refused(text) from None
        if not self._takes(value):
            raise self.refused(text)
        return value

    def _takes(self, value: Any) -> bool:
        if self.choices:  # texts and numbers: whether a list is among them is an error to ask of a mapping
            return isinstance(value, str | Number) and value in self.choices
        return self.kind.has(self, value)

    def refused(self, value: Any) -> InputError:
        """The error that says which values are allowed in place of this one."""
        value = self.kind.write(value) if isinstance(value, list | tuple) and not self.choices else value
        shown = f"{value:g}" if isinstance(value, float) else show(value)
        return InputError(f"{self.name} = {shown}: must be {self.allowed()}")


def check_whole(name: str, value: object, low: int, high: int) -> None:
    """Raises InputError for what is no whole number from `low` to `high`; one of numpy is one."""
    field = Field(name=name, kind=WHOLE, low=low, high=high)
    if not _is_whole(field, value):
        raise field.refused(value)


def declared(default: Any = MISSING, **more: Any) -> Any:
    """A field of a dataclass with what `Field` says of it; without a default it is required."""
    fallback, title = None if default is MISSING else default, more.get("title", "")
    more = {"label": title[:1].upper() + title[1:], "unit": more.get("kind", TEXT).unit} | more
    return dataclasses.field(default=default, metadata={"field": Field(default=fallback, **more)})


def declarations(cls: Any) -> dict[str, Field]:
    """The declared fields of a dataclass by their names in Python, which options have where they say no other."""
    forms = ((entry.name, entry.metadata["field"]) for entry in dataclasses.fields(cls) if "field" in entry.metadata)
    return {name: replace(form, name=form.name or name.replace("_", "-")) for name, form in forms}


def _reader(pattern: str, make: Callable[[str], Any], allowed: str) -> Callable[[str, str], Any]:
    """A parser of texts of ASCII that match and make a finite value."""
    whole = re.compile(pattern, re.ASCII | re.IGNORECASE)

    def parse(name: str, text: str) -> Any:
        value = make(text) if whole.fullmatch(text) else math.nan
        if not math.isfinite(value):
            raise InputError(f"{name} = {show(text)}: must be {allowed}")
        return value

    return parse


def _tokens(text: str) -> int:
    """Tokens, also in units of 1,024 as models' lengths are written: 128k, 1.5k."""
    number, unit = re.fullmatch(r"\s*([-+0-9.]+)([km]?)\s*", text.lower()).groups()  # type: ignore[union-attr]
    return round(Fraction(number) * {"": 1, "k": 1024, "m": 1024**2}[unit])


def _part(text: str) -> float:
    """A share as people write it, 1% or 0.01; NaN beyond 1."""
    share = float(text.rstrip("% ")) / (100 if text.endswith("%") else 1)
    return share if share <= 1 else math.nan


def _percent(text: str) -> float:
    """A small share: NaN for a bare 1, which may mean 1 %."""
    share = _part(text)
    return share if share < 1 or text.endswith("%") else math.nan


def parse_bytes(name: str, text: str) -> int:
    """Bytes as a whole number, or in a unit: 40GiB, 40G (the same, as engines read it), 40GB. Raises InputError."""
    try:
        number, unit = number_and_unit(text) or (math.nan, "")
    except ValueError as error:
        raise InputError(f"{name} = {show(text)}: {error}") from None
    match = re.fullmatch(r"([kKMGT]?)(iB|B)?", unit, re.ASCII)
    if not match or not 0 <= number < math.inf:
        raise InputError(f"{name} = {show(text)}: must be bytes, such as 40GiB, 40GB or 42949672960")
    power = ("", "K", "M", "G", "T").index(match[1].upper())
    return round(number * (1000 if match[2] == "B" else 1024) ** power)


def _bytes_text(n_bytes: int) -> str:
    """Bytes in the largest unit of which they are whole ones: 10GB, 256GiB."""
    for end, base in (("B", 1000), ("iB", 1024)):
        for power, letter in ((4, "T"), (3, "G"), (2, "M")):
            if n_bytes and n_bytes % base**power == 0:
                return f"{n_bytes // base**power}{letter}{end}"
    return str(n_bytes)


def parse_names(name: str, text: str) -> tuple[str, ...]:
    """Names between commas; the commas inside `sinkq:bits=2,group=32` do not separate. Raises InputError."""
    names = tuple(part.strip() for part in re.split(r",(?!\s*[a-z_]+=)", text))
    if not all(names):
        raise InputError(f"{name} = {show(text)}: has an empty entry: separate names by single commas")
    return names


def _is_whole(field: Field, value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and field.low <= int(value) <= field.high


def _is_number(field: Field, value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and field.low <= value <= field.high


def _is_line(field: Field, value: Any) -> bool:
    return isinstance(value, str) and len(value) <= field.high and value.isprintable()


def _bounds(field: Field) -> str:
    low, high = (f"{bound:,}".removesuffix(".0") for bound in (field.low, field.high))
    below = f" from {low}" if field.low > -math.inf else ""
    above = f" to {high}" if field.high < math.inf else ""
    return below + above + f" {field.unit}" * (field.kind is NUMBER and bool(field.unit))


def _several(kind: Kind, words: str) -> Kind:
    return Kind(
        lambda name, text: tuple(kind.parse(name, part) for part in parse_names(name, text)),
        write=_joined,
        has=lambda field, value: all(
            kind.has(field, part) for part in (value if isinstance(value, Iterable) else [value])
        ),
        allowed=lambda field: words + _bounds(field),
    )


def _joined(values: Iterable[Any]) -> str:
    return ",".join(map(str, values))


_WHOLE, _DECIMAL = r"[-+]?[0-9]{1,30}", r"[0-9]{1,30}(\.[0-9]{0,30})?"
#: one line on a figure
LINE = Kind(TEXT.parse, has=_is_line, allowed=lambda field: f"one line of at most {field.high:,} printable characters")
SWITCH = Kind(
    lambda name, text: True,
    has=lambda field, value: isinstance(value, bool),
    allowed=lambda field: "true or false",
    sort="switch",
)
WHOLE = Kind(
    _reader(_WHOLE, int, "a whole number, such as 64"),
    has=_is_whole,
    allowed=lambda field: f"a whole number{_bounds(field)}",
    sort="whole",
    word="number",
)
TOKENS = replace(
    WHOLE,
    parse=_reader(
        rf"{_WHOLE}|\s*[0-9]{{1,12}}(\.[0-9]{{1,6}})?[km]\s*",
        _tokens,
        "a whole number of tokens, such as 4096 or 128k (131,072)",
    ),
    unit="token",
)
BYTES = replace(WHOLE, parse=parse_bytes, write=_bytes_text, unit="B")
NUMBER = Kind(
    _reader(rf"[-+]?{_DECIMAL}(e[-+]?[0-9]{{1,3}})?", float, "a number, such as 40 or 1.5e3"),
    write=lambda value: f"{value:g}",
    has=_is_number,
    allowed=lambda field: f"a number{_bounds(field)}",
    sort="number",
)
#: from 0 to 1; with a `low` above 0 not less
SHARE = Kind(
    _reader(rf"[-+]?{_DECIMAL}", float, "a share from 0 to 1, such as 0.5"),
    has=lambda field, value: _is_number(field, value) and 0 <= value <= 1,
    allowed=lambda field: f"a share from {max(field.low, 0)} to 1, such as {0.9 if field.low > 0 else 0.5}",
    sort="number",
    word="share",
    unit="1",
)
#: of a quantizer: digits alone, and a decimal number as it is written
COUNT = replace(WHOLE, parse=_reader(r"[0-9]{1,9}", int, "a whole number"))
EXACT = Kind(
    _reader(r"(?=.)[0-9]{0,9}(\.[0-9]{1,12})?", Fraction, "a number"),
    has=lambda field, value: field.low <= value <= field.high,
    allowed=lambda field: f"a number from {field.low:g} to {field.high:g}",
    sort="number",
)
_WRITTEN = rf"{_DECIMAL} *%?", "a share from 0 to 1, such as 1% or 0.01"
PERCENT = Kind(
    _reader(_WRITTEN[0], _percent, _WRITTEN[1]),
    write=lambda value: f"{100 * value:.10g}%",
    has=SHARE.has,
    allowed=lambda field: _WRITTEN[1],
)
#: as SHARE, written 0.5 or 50%
PART = replace(SHARE, parse=_reader(_WRITTEN[0], _part, _WRITTEN[1]))
NAMES = Kind(parse_names, write=_joined)
WHOLES, NUMBERS, SHARES = _several(WHOLE, "whole numbers"), _several(NUMBER, "numbers"), _several(SHARE, "shares")
