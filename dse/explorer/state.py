"""The state of the explorer: in the URL, in the session, and carried from page to page."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from dse.explorer import fields as fields_module
from dse.explorer.fields import Field

_SHOWN_PROBLEMS = 5
#: session keys: Streamlit's pages by path; values by field, the page last drawn, what was wrong with the URL
PAGES = "explorer pages"
#: session keys: files of the reader's own by the name shown in the lists: specs, and a KV dump
UPLOADS, DUMP = "explorer uploads", "explorer dump"
_VALUES, _PAGE, _PROBLEMS = "explorer values", "explorer page", "explorer problems"
#: session key: fields that `put` sets for the next run, before whose widgets they must be there
_PUT = "explorer put"
#: session keys: values that the run before has put into widgets, and the fields drawn since it began
_SET, _DRAWN = "explorer set", "explorer drawn"


def open_page(page: str, fields: Sequence[Field]) -> dict[str, Any]:
    """The page's values by key, from the URL, the widgets or the page before; call it first, once a run.

    The URL is read when a page is opened with one and when the reader goes back or forward; else the widgets and the
    values that other pages left win, and the URL follows. Says once what of the URL could not be used.
    """
    store = _store()
    store.update(st.session_state.get(_PUT, {}))
    first = st.session_state.get(_PAGE) != page
    seeded = first
    st.session_state[_PAGE] = page
    query = {key: st.query_params.get_all(key) for key in st.query_params}
    if _gone_back() or (first and query):
        known = {field.key for field in fields}
        carried = {key: value for key, value in store.items() if key not in known}
        query = {key: texts for key, texts in query.items() if key not in carried}  # an address between two pages
        found, problems = fields_module.check_query(fields, query)
        store.clear()
        store.update({**carried, **found})
        _seed(fields, store)
        seeded = True
        st.session_state[_PROBLEMS] = problems
    elif first:
        for field in fields:
            if field.problem(store.get(field.key, field.default), store):
                store[field.key] = field.default  # another page's value that this one cannot take
        _seed(fields, store)
    drawn = st.session_state.pop(_DRAWN, set())
    values, anew = _follow(fields, set() if seeded else drawn, st.session_state.get(_SET, {}))
    st.session_state[_SET] = values if seeded else anew
    _notice()
    return values


def follow(fields: Sequence[Field]) -> dict[str, Any]:
    """The values as the widgets have them now, and the URL after them. For fragments, which run without their page."""
    return _follow(fields, {field.key for field in fields}, {})[0]


def drawn(key: str) -> None:
    """Say that a field's widget is drawn: the next run takes its value from there."""
    st.session_state.setdefault(_DRAWN, set()).add(key)


def _follow(
    fields: Sequence[Field], live: Collection[str], said: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`follow`, and which values it has put into widgets; those of `said` that still hold it puts again.

    Widgets that are `live`, drawn by the run before, have their own value; of one that was not, the session's state
    still holds what was put there before it was last drawn. What the run before has put is lost where another run
    overtakes it on its way to the browser: the widget would show its default, and take it for the reader's choice.
    """
    store = _store()
    put_before = st.session_state.pop(_PUT, {})
    store.update(put_before)
    anew = {}
    for field in fields:
        key = field.key
        if key in put_before or key not in live or key not in st.session_state:
            st.session_state[key] = anew[key] = store.setdefault(key, field.default)
            continue
        store[key] = st.session_state[key]
        if key in said and said[key] == store[key]:
            st.session_state[key] = store[key]
    values = {field.key: store[field.key] for field in fields}
    wanted = fields_module.query_of(fields, values, also=uploaded())
    if wanted != st.query_params.to_dict():
        st.query_params.from_dict(wanted)
    return values, anew


def put(values: Mapping[str, Any]) -> None:
    """Set fields for the next run: from a callback, or before `st.rerun` or `go` ("load this point into What if")."""
    st.session_state.setdefault(_PUT, {}).update(values)


def go(page_path: str) -> None:
    """Leave for another page with the values as they are; not from a callback."""
    st.switch_page(st.session_state[PAGES][page_path])


def address(page_path: str, fields: Sequence[Field], values: Mapping[str, Any]) -> str:
    """The page's address below the host, for what names where a figure comes from."""
    query = urlencode(fields_module.query_of(fields, values, also=uploaded()))
    return f"/{page_path}?{query}" if query else f"/{page_path}"


def chosen() -> set[str]:
    """Every name that some field of the session has chosen, on whatever page."""
    lists = (value if isinstance(value, list) else [value] for value in _store().values())
    return {str(value) for values in lists for value in values}


def uploaded() -> list[str]:
    """Names of the files uploaded in this session, which no URL can hold."""
    return [name for key in (UPLOADS, DUMP) for name in st.session_state.get(key, {})]


def _store() -> dict[str, Any]:
    found: dict[str, Any] = st.session_state.setdefault(_VALUES, {})
    return found


def _seed(fields: Sequence[Field], store: Mapping[str, Any]) -> None:
    for field in fields:
        st.session_state[field.key] = store.get(field.key, field.default)


def _gone_back() -> bool:
    """True in the run after the browser's back or forward, where the URL is news and the widgets are not."""
    context = get_script_run_ctx()
    return context is not None and context.is_history_navigation


def _notice() -> None:
    """Say once what in the URL could not be used; its text is only ever shown as plain text."""
    problems = st.session_state.pop(_PROBLEMS, [])
    if problems:
        st.warning("The address held values that cannot be used; the defaults stand in for them:")
        shown = problems[:_SHOWN_PROBLEMS]
        if len(problems) > len(shown):
            shown.append(f"and {len(problems) - len(shown):,} more")
        st.code("\n".join(shown), language=None, wrap_lines=True)
