"""The fields of a page in its address: each checked, read and written by its key; nothing here knows Streamlit.

The address holds the fields that differ from their defaults.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from dse.core.errors import MAX_LINE, DseError, InputError, clean, did_you_mean, show
from dse.core.field import Field
from dse.explorer import kept

_MAX_NAME, _MAX_FILE = 40, 80
#: longest text of a field, and so of its part of the URL
MAX_TEXT = 400
#: between the entries of a field of several choices: neither names nor parameters of quantizers hold it
SEPARATOR = ";"


def sort_of(field: Field) -> Literal["choice", "choices", "text", "whole", "number", "switch"]:
    """The sort of widget that a field has: one or several choices of a list, else as its kind says."""
    if field.choices or field.listed:
        return "choices" if isinstance(field.default, list) else "choice"
    return field.kind.sort


def problem_of(field: Field, value: Any, values: Mapping[str, Any]) -> str:
    """Problem with a value beside those of the fields before it, in a line that names the field; empty for none."""
    if value is None or value == "":
        return "" if field.default in (None, "") or field.may_be_empty else f"{field.key}: must be given"
    sort = sort_of(field)
    if sort in ("choice", "choices"):
        known = field.options()
        wrong = [item for item in (value if sort == "choices" else [value]) if item not in known]
        if wrong and field.meant:
            return f"{field.key} = {show(wrong[0])}: {did_you_mean(str(wrong[0]), map(str, known))}"
        if wrong:
            return f"{field.key} = {show(wrong[0])}: must be one of {', '.join(map(written, known))}"
    elif sort in ("whole", "number") and not field.low <= value <= field.high:
        return str(field.refused(value))
    elif sort == "text":
        try:
            if len(value) > MAX_TEXT:
                raise InputError(f"{show(value)}: longer than {MAX_TEXT} characters")
            if field.accepts:
                field.accepts(value, values)
        except DseError as error:
            return f"{field.key}: {error.lines()[0]}"
    return ""


def read(field: Field, text: str, values: Mapping[str, Any], labels: Mapping[str, str] = MappingProxyType({})) -> Any:
    """The value that a text of the URL stands for; `labels` as in `check_query`. Raises InputError."""
    sort, value = sort_of(field), text
    if sort in ("whole", "number"):
        value = field.read(clean(text, _MAX_NAME))
    elif sort == "switch":
        if text not in ("yes", "no"):
            raise InputError(f"{field.key} = {show(text)}: must be yes or no")
        return text == "yes"
    elif sort in ("choice", "choices"):
        named = {written(option): option for option in field.options()} | dict(labels)
        parts = [part for part in text.split(SEPARATOR) if part] if sort == "choices" else [text]
        meant = field.meant or (lambda _: None)
        if lost := next((part for part in parts if part not in named and kept.name_in(part)), ""):
            name = clean(kept.name_in(lost), _MAX_FILE)
            raise InputError(f"{field.key}: {name} was loaded in another session: load it again")
        meanings: Any = [named[part] if part in named else meant(part) or part for part in parts]
        value = meanings if sort == "choices" else meanings[0]
    if problem := problem_of(field, value, values):
        raise InputError(problem)
    return value


def written(value: Any) -> str:
    """A value as the URL holds it."""
    if isinstance(value, list):
        return SEPARATOR.join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    short = f"{value:.12g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def in_words(field: Field, value: Any) -> str:
    """A value behind the label of its field, as a page draws them: Tokens in: 8,192."""
    choices = field.options()
    word = choices.get(value, value) if isinstance(choices, Mapping) else value
    return f"{field.label}: {word:,}" if type(word) is int else f"{field.label}: {written(word)}"


def check_query(
    fields: Sequence[Field], query: Mapping[str, Sequence[str]], labels: Mapping[str, str] = MappingProxyType({})
) -> tuple[dict[str, Any], list[str]]:
    """Every field's value, the default where the URL says nothing usable; and a line for each entry that is not.

    `labels` are this session's names of loaded files by what stands for them in addresses. The lines are clean:
    printable, and short enough for a message.
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
            values[field.key] = read(field, texts[0], values, labels)
        except DseError as error:
            problems.append(clean(error.lines()[0], MAX_LINE))
    known = [field.key for field in fields]
    unknown = (clean(key, _MAX_NAME) for key in query if key not in known)
    problems += [clean(f"{key}: unknown: {did_you_mean(key, known)}", MAX_LINE) for key in unknown]
    return values, problems


def query_of(
    fields: Sequence[Field], values: Mapping[str, Any], also: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The URL of a state: the fields that differ from their defaults and can be used.

    Choices that only this session has, its loaded files, are written as `also` has them.
    """
    query, also = {}, also or {}
    for field in fields:
        value = values.get(field.key, field.default)
        if value == field.default or value is None or problem_of(field, value, values):
            continue
        if sort_of(field) == "choices":
            value = [also.get(item, item) for item in value]
        elif sort_of(field) == "choice":
            value = also.get(value, value)
        query[field.key] = written(value)
    return query
