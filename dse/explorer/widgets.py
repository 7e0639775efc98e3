"""The widget of a field, and words that are safe to show. A widget's key is its field's key."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import streamlit as st

from dse.core.errors import MAX_LINE, DseError, clean
from dse.core.field import Field
from dse.explorer import state
from dse.explorer.fields import MAX_TEXT, problem_of, sort_of
from dse.explorer.state import put

#: in the log of the server, before the traceback of a defect
FAILED = "A part of a page failed"
_LOG = logging.getLogger(__name__)
#: where GitHub's Markdown begins a link of its own: www.a.b, http://a.b, a@b.c
_ADDRESS = re.compile(r"www(?=\.)|:(?=//)|@", re.IGNORECASE)


def draw(field: Field, wrong: Sequence[str] = (), **options: Any) -> Any:
    """Draw the field in the place that is current, with what is wrong with it; returns its value.

    `wrong` are lines that others say of it; `options` go to Streamlit's widget.
    """
    values = state.drawn(field.key)
    value = _widget(field, {"key": field.key, "help": field.help or None, **options})
    refusal = problem_of(field, value, values) if sort_of(field) == "text" else ""
    lines([refusal] if refusal else list(wrong))
    return value


def tabs(field: Field) -> Any:
    """Draw a field of few choices as tabs, and return the chosen one, which alone is to be drawn below."""
    state.drawn(field.key)
    choices = field.options()
    words = dict(choices) if isinstance(choices, Mapping) else {}
    return st.segmented_control(
        field.label,
        list(choices),
        key=field.key,
        required=True,
        help=field.help,
        format_func=lambda choice: words.get(choice, choice),
        label_visibility="collapsed",
    )


def _widget(field: Field, options: dict[str, Any]) -> Any:
    sort = sort_of(field)
    if field.clears:
        options.setdefault("on_change", partial(put, {field.clears: ""}))
    if sort == "switch":
        return st.checkbox(field.label, **options)
    options.setdefault("placeholder", field.open_means or None)
    if sort == "text":
        return st.text_input(field.label, max_chars=MAX_TEXT, **options)
    if sort in ("whole", "number"):
        return _number(field, options)
    choices = field.options()
    if isinstance(choices, Mapping):
        options["format_func"] = lambda choice: choices.get(choice, choice)
    if sort == "choices":
        return st.multiselect(field.label, list(choices), **options)
    return st.selectbox(field.label, list(choices), index=_start(field, 0), **options)


def _start(field: Field, value: Any) -> Any:
    """None lets the reader clear the field; the session's state holds the value either way."""
    return value if field.default is not None else None


def _number(field: Field, options: dict[str, Any]) -> Any:
    kind = int if field.kind.sort == "whole" else float
    return st.number_input(
        field.label,
        kind(field.low),
        kind(field.high),
        _start(field, "min"),
        kind(field.step),
        format="%d" if kind is int else "%g",
        **options,
    )


def problem(error: DseError) -> None:
    """An error beside the field it is about: its lines as plain text, never as markup."""
    lines(error.lines())


@contextmanager
def said() -> Iterator[None]:
    """Say errors of a part of a page in its place, as plain text, defects of ours too: the rest of the page stays."""
    try:
        yield
    except Exception as error:
        problem(as_said(error))


def as_said(error: Exception) -> DseError:
    """Return an error as a page says it; a defect of ours is logged with its traceback."""
    if isinstance(error, DseError):
        return error
    _LOG.error(FAILED, exc_info=error)
    return DseError(f"A defect of dse, please report it: {type(error).__name__}: {error}")


def lines(texts: list[str]) -> None:
    """Lines that say what is wrong, in red: plain text, never markup."""
    for line in texts:
        st.markdown(f":red[{escaped(clean(line, MAX_LINE))}]")


def escaped(text: str) -> str:
    """Text in which Markdown sees nothing: no emphasis, no formula, no link.

    What looks like an address would become a link even so: there a word joiner, which nobody sees, keeps it apart.
    """
    text = _ADDRESS.sub(lambda match: match[0] + "\u2060", text)
    return "".join(f"\\{char}" if char in "\\`*_{}[]<>#$~|:&" else char for char in text)
