"""Fields of a page as data, from which widgets, URL, checks and the notice about bad values follow.

A field is data; nothing here knows Streamlit. The URL holds the fields that differ from their defaults, by key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dse.core.errors import MAX_LINE, DseError, InputError, clean, did_you_mean, show
from dse.core.field import NUMBER, WHOLE, Field

#: choice: one of a list; choices: several of it, separated by ";" in the URL; whole and number: in a range;
#: switch: yes or no; text: a line that `check` accepts
Kind = Literal["choice", "choices", "whole", "number", "switch", "text"]

_MAX_NAME = 40
#: longest text of a field, and so of its part of the URL
MAX_TEXT = 400
#: between the entries of a `choices` field: neither names nor parameters of quantizers hold it
SEPARATOR = ";"


@dataclass(frozen=True)
class PageField:
    """One value of a page's state: a key of the URL, and how it is asked for and checked.

    `default` None: the field may be left open, and then means what `placeholder` says. `choices` are asked for on
    each use, since uploads add some. `low` and `high` bound numbers, `step` is that of the widget's buttons; `slides`
    are the stops of a slider below the field. `check(text, values)` raises InputError for a text that cannot be used;
    `values` are the fields before it. `titles` says how a choice is shown where it is not as written.
    `clears` names a text field that another choice empties: parameters leave with their family. `may_be_empty`: a text
    with a default can be taken away. `meant` gives the choice that another name means, or None.
    """

    key: str
    label: str
    kind: Kind
    default: Any
    help: str = ""
    choices: Callable[[], Sequence[Any]] | None = None
    low: float = 0
    high: float = 0
    step: float = 1
    slides: tuple[int, ...] = ()
    check: Callable[[str, Mapping[str, Any]], object] | None = None
    titles: Callable[[Any], str] | None = None
    placeholder: str = ""
    clears: str = ""
    may_be_empty: bool = False
    meant: Callable[[str], Any] | None = None

    def options(self) -> list[Any]:
        """The choices, now."""
        return list(self.choices()) if self.choices else []

    def problem(self, value: Any, values: Mapping[str, Any]) -> str:
        """Problem with a value, in a line that names the field; empty for none."""
        if value is None or value == "":
            return "" if self.default in (None, "") or self.may_be_empty else f"{self.key}: must be given"
        if self.kind in ("choice", "choices"):
            known = self.options()
            wrong = [item for item in (value if self.kind == "choices" else [value]) if item not in known]
            if wrong and self.meant:
                return f"{self.key} = {show(wrong[0])}: {did_you_mean(str(wrong[0]), map(str, known))}"
            if wrong:
                return f"{self.key} = {show(wrong[0])}: must be one of {', '.join(map(str, known))}"
        elif self.kind in ("whole", "number"):
            if not self.low <= value <= self.high:
                return str(self._number.refused(value))
        elif self.kind == "text":
            try:
                if len(value) > MAX_TEXT:
                    raise InputError(f"{show(value)}: longer than {MAX_TEXT} characters")
                if self.check:
                    self.check(value, values)
            except DseError as error:
                return f"{self.key}: {error.lines()[0]}"
        return ""

    @property
    def _number(self) -> Field:
        kind = WHOLE if self.kind == "whole" else NUMBER
        return Field(name=self.key, kind=kind, low=self.low, high=self.high)

    def read(self, text: str, values: Mapping[str, Any]) -> Any:
        """The value that a text of the URL stands for. Raises InputError."""
        value: Any
        if self.kind in ("whole", "number"):
            value = self._number.read(clean(text, _MAX_NAME))
        elif self.kind == "switch":
            if text not in ("yes", "no"):
                raise InputError(f"{self.key} = {show(text)}: must be yes or no")
            value = text == "yes"
        elif self.kind in ("choice", "choices"):
            named = {str(option): option for option in self.options()}
            parts = [part for part in text.split(SEPARATOR) if part] if self.kind == "choices" else [text]
            meant = self.meant or (lambda _: None)
            meanings = [named[part] if part in named else meant(part) or part for part in parts]
            value = meanings if self.kind == "choices" else meanings[0]
        else:
            value = text
        if problem := self.problem(value, values):
            raise InputError(problem)
        return value

    def written(self, value: Any) -> str:
        """A value as the URL holds it."""
        if self.kind == "choices":
            return SEPARATOR.join(map(str, value))
        if self.kind == "switch":
            return "yes" if value else "no"
        short = f"{value:.12g}" if isinstance(value, float) else str(value)
        return short if not isinstance(value, float) or float(short) == value else repr(value)


def check_query(fields: Sequence[PageField], query: Mapping[str, Sequence[str]]) -> tuple[dict[str, Any], list[str]]:
    """Every field's value, the default where the URL says nothing usable; and a line for each entry that is not.

    The lines are clean: printable, and short enough for a message.
    """
    values: dict[str, Any] = {}
    problems = []
    for field in fields:
        values[field.key] = field.default
        texts = query.get(field.key)
        if texts is None:
            continue
        try:
            if len(texts) != 1:
                raise InputError(f"{field.key}: given {len(texts):,} times: must be given once")
            values[field.key] = field.read(texts[0], values)
        except DseError as error:
            problems.append(clean(error.lines()[0], MAX_LINE))
    known = [field.key for field in fields]
    short = [key for key in known if "." not in key]
    problems += [
        clean(f"{clean(key, _MAX_NAME)}: unknown: {did_you_mean(clean(key, _MAX_NAME), short)}", MAX_LINE)
        for key in query
        if key not in known
    ]
    return values, problems


def query_of(
    fields: Sequence[PageField], values: Mapping[str, Any], also: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The URL of a state: the fields that differ from their defaults and can be used.

    Choices that only this session has, its loaded files, are written as `also` has them.
    """
    query, also = {}, also or {}
    for field in fields:
        value = values.get(field.key, field.default)
        if value == field.default or value is None or field.problem(value, values):
            continue
        if field.kind == "choices":
            value = [also.get(item, item) for item in value]
        elif field.kind == "choice":
            value = also.get(value, value)
        query[field.key] = field.written(value)
    return query
