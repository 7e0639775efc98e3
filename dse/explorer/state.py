"""The state of the explorer: in the URL, in the session, and carried from page to page."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from dse.core.field import Field
from dse.explorer import kept
from dse.explorer.fields import check_query, problem_of, query_of
from dse.explorer.tray import Tray, design_of, is_former_text, read, text_of, values_of

#: the part of an address behind its page: texts by key
Query = dict[str, list[str]]

_SHOWN_PROBLEMS = 5
#: addresses of a session that are remembered
_MOST = 500
#: session keys: Streamlit's pages by path; values by field, the page last drawn, what was wrong with the URL
PAGES = "explorer pages"
#: session key: files of the reader's own by the name shown in the lists
UPLOADS = "explorer uploads"
_VALUES, _PAGE, _PROBLEMS = "explorer values", "explorer page", "explorer problems"
#: keys of the address: the designs, and which of them is being changed, counted from 1
DESIGNS, AT = "designs", "at"
#: session key: whether a change of a design is one of all designs
ALL = "tray all"
#: key of the session's values: the tray; session keys: the fields of the page and of a design, the tray at first
_TRAY, _FIELDS, _OPENING = "explorer tray", "explorer fields", "explorer opening"
#: session key: fields that `put` sets for the next run, before whose widgets they must be there
_PUT = "explorer put"
#: session keys: values that the run before has put into widgets, those that wait for their widget, and the fields
#: drawn since the run began
_SET, _SEEDS, _DRAWN = "explorer set", "explorer seeds", "explorer drawn"
#: session key: the addresses that were seen
_TRAIL = "explorer trail"


def open_page(page: str, fields: Sequence[Field], design: Sequence[Field], opening: Tray) -> dict[str, Any]:
    """The page's values by key, from the URL, the widgets or the page before; call it first, once a run.

    `fields` are those of the workload and of the page, `design` those of a design, whose values are the current
    design's; `opening` is the tray that an address without designs stands for. The URL is read when a page is opened
    with one and when the reader goes back or forward; else the widgets and the values that other pages left win, and
    the URL follows. Says once what of the URL could not be used.
    """
    store = _store()
    st.session_state[_OPENING] = opening
    store.setdefault(_TRAY, opening)
    store.update(st.session_state.get(_PUT, {}))
    first = st.session_state.get(_PAGE) != page
    seeded = first
    st.session_state[_PAGE] = page
    query = {key: st.query_params.get_all(key) for key in st.query_params}
    if _gone_back():
        query = _trail().returns_to(page, query)
    elif first and query:
        _trail().goes_to(page, query)
    every = (*design, *fields)
    if _gone_back() or (first and query):
        known = {field.key for field in every} | {DESIGNS, AT, _TRAY}
        carried = {key: value for key, value in store.items() if key not in known}
        query = {key: texts for key, texts in query.items() if key not in carried}  # an address between two pages
        labels = {text: label for label, text in uploaded().items()}
        tray, unread = _tray_of(query, design, opening, labels)
        of_fields = {key: texts for key, texts in query.items() if key not in (DESIGNS, AT)}
        queried, problems = check_query(every, of_fields, labels)
        is_former = any(field.key in query for field in design)
        if is_former:
            tray = tray.put(tray.at, design_of(queried, design))
        is_former |= is_former_text(query.get(DESIGNS, [""])[0])
        shared, plain = tray.hoisted(query) if is_former else ({}, tray)
        if not any(problem_of(field, shared[field.key], {}) for field in fields if field.key in shared):
            queried, tray = {**queried, **shared}, plain
        queried.update(values_of(tray.current, design))
        store.clear()
        store.update({**carried, **queried, _TRAY: tray})
        seeded = True
        st.session_state[_PROBLEMS] = [*unread, *problems]
    elif first:
        for field in every:
            if problem_of(field, store.get(field.key, field.default), store):
                store[field.key] = field.default  # another page's value that this one cannot take
    drawn = st.session_state.pop(_DRAWN, set())
    st.session_state[_FIELDS] = (tuple(fields), tuple(design))
    values, anew = _follow(fields, design, set() if seeded else drawn, st.session_state.get(_SET, {}))
    st.session_state[_SET] = values if seeded else anew
    _notice()
    return values


def _tray_of(
    query: Mapping[str, list[str]], design: Sequence[Field], opening: Tray, labels: Mapping[str, str]
) -> tuple[Tray, list[str]]:
    """The tray of an address, and what of it cannot be used; fields of a design by themselves are a single one."""
    text, at = (query.get(key, [""])[0] for key in (DESIGNS, AT))
    tray, problems = read(text, at, design, labels)
    if tray is None:
        alone = any(field.key in query for field in design)
        return (Tray() if alone else opening), problems
    return tray, problems


def drawn(key: str) -> Mapping[str, Any]:
    """Give a field's widget, which is drawn next, its value, and return those of all fields.

    The next run takes its value from there. Streamlit goes through the whole session's state for each widget, so that a
    value waits outside of it until its widget is drawn.
    """
    st.session_state.setdefault(_DRAWN, set()).add(key)
    seeds = st.session_state.get(_SEEDS, {})
    if key in seeds:
        st.session_state[key] = seeds.pop(key)
    return _store()


def _follow(
    fields: Sequence[Field], design: Sequence[Field], live: Collection[str], said: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values as the widgets have them, with the URL after them, and which of them go into widgets: once more those
    of `said` that still hold.

    Widgets that are `live`, drawn by the run before, have their own value; of one that was not, the session's state
    still holds what was put there before it was last drawn. What the run before has put is lost where another run
    overtakes it on its way to the browser: the widget would show its default, and take it for the reader's choice.
    """
    store, every = _store(), (*design, *fields)
    put_before = st.session_state.pop(_PUT, {})
    store.update(put_before)
    anew, again = {}, {}
    for field in every:
        key = field.key
        if key in put_before or key not in live or key not in st.session_state:
            anew[key] = store.setdefault(key, field.default)
            continue
        store[key] = st.session_state[key]
        if key in said and said[key] == store[key]:
            again[key] = store[key]
    st.session_state[_SEEDS] = anew | again
    now, alone = store[_TRAY], _TRAY in put_before or not st.session_state.get(ALL)
    store[_TRAY] = now.changed(design_of(store, design, now.current.name), is_for_all=not alone)
    values = {field.key: store[field.key] for field in every}
    wanted = query_now(fields, design, values)
    if wanted != st.query_params.to_dict():
        st.query_params.from_dict(wanted)
    query = {key: [text] for key, text in wanted.items()}
    if _gone_back():
        _trail().stands_at(query)  # the browser changes an address that it went back to where it is
    else:
        _trail().goes_to(st.session_state[_PAGE], query)
    return values, anew


def query_now(fields: Sequence[Field], design: Sequence[Field], values: Mapping[str, Any]) -> dict[str, str]:
    """The address's query of the tray as it is, and of the values of the workload and the page."""
    now, also = tray(), uploaded()
    query = query_of(fields, values, also=also)
    opening = st.session_state[_OPENING]
    if now.designs != opening.designs:
        query[DESIGNS] = text_of(now, design, also)
    if now.at:
        query[AT] = str(now.at + 1)
    return query


def tray() -> Tray:
    """The designs of this session."""
    designs: Tray = _store()[_TRAY]
    return designs


def set_tray(new: Tray, design: Sequence[Field]) -> None:
    """Another tray for the next run: from a callback, or before `st.rerun` or `go`."""
    put({**values_of(new.current, design), _TRAY: new})


def put(values: Mapping[str, Any]) -> None:
    """Set fields for the next run: from a callback, or before `st.rerun` or `go` (a point into the tray)."""
    st.session_state.setdefault(_PUT, {}).update(values)


def go(page_path: str) -> None:
    """Leave for another page with the values as they are; not from a callback."""
    st.switch_page(st.session_state[PAGES][page_path])


def address(page_path: str, values: Mapping[str, Any]) -> str:
    """The page's address below the host, for what names where a figure comes from."""
    query = urlencode(query_now(st.session_state[_FIELDS][0], st.session_state[_FIELDS][1], values))
    return f"/{page_path}?{query}" if query else f"/{page_path}"


def chosen() -> set[str]:
    """Every name that some field of the session or some design has chosen, on whatever page."""
    store = dict(_store())
    held = [value for design in store.pop(_TRAY, Tray()).designs for value in design.values.values()]
    lists = (value if isinstance(value, list) else [value] for value in (*store.values(), *held))
    return {str(value) for values in lists for value in values}


def uploaded() -> dict[str, str]:
    """Stand-ins of the session's files in addresses, by their names in the lists."""
    return {label: kept.address(file) for label, file in st.session_state.get(UPLOADS, {}).items()}


@dataclass
class Trail:
    """The addresses of a session as the browser's history has them, each with what it stands for.

    On the way to another page Streamlit's page may leave an address that nobody asked for, by chance one of two: the
    new page's without its query, or the old page's with the new query. They stand for what was there before and after.
    """

    entries: list[tuple[str, Query, Query]] = dataclasses.field(default_factory=list)
    at: int = -1

    def goes_to(self, page: str, query: Query) -> None:
        """The reader has chosen something, or another page: what could be gone forward to is gone."""
        if self.at >= 0 and self.entries[self.at][:2] == (page, query):
            return
        del self.entries[self.at + 1 :]
        if self.entries and (left := self.entries[-1])[0] != page:
            between: list[tuple[str, Query, Query]] = [(page, {}, query), (left[0], query, left[2])]
            self.entries += [entry for entry in between if entry[1] != entry[2]]
        self.entries = [*self.entries, (page, query, query)][-_MOST:]
        self.at = len(self.entries) - 1

    def returns_to(self, page: str, query: Query) -> Query:
        """The reader went back or forward to an address: what it stands for, of equal ones the nearest."""
        places = [i for i, entry in enumerate(self.entries) if entry[:2] == (page, query) and i != self.at]
        if not places:  # from before a reload
            self.entries, self.at = [(page, query, query)], 0
            return query
        self.at = min(places, key=lambda i: (abs(i - self.at), i))
        return self.entries[self.at][2]

    def stands_at(self, query: Query) -> None:
        """The address that was gone back to has become this one."""
        if self.at >= 0:
            self.entries[self.at] = (self.entries[self.at][0], query, query)


def _trail() -> Trail:
    trail: Trail = st.session_state.setdefault(_TRAIL, Trail())
    return trail


def _store() -> dict[str, Any]:
    values: dict[str, Any] = st.session_state.setdefault(_VALUES, {})
    return values


def _gone_back() -> bool:
    """True in the run after the browser's back or forward, where the URL is news and the widgets are not."""
    context = get_script_run_ctx()
    return context is not None and context.is_history_navigation


def _notice() -> None:
    """Say once what in the URL could not be used; its text is only ever shown as plain text.

    Its place is there in every run, so that what stands below keeps its own: a file being loaded would else be lost.
    """
    place = st.empty()
    problems = st.session_state.pop(_PROBLEMS, [])
    if problems:
        with place.container():
            st.warning("The address held values that cannot be used; the defaults stand in for them:")
            shown = problems[:_SHOWN_PROBLEMS]
            if len(problems) > len(shown):
                shown.append(f"and {len(problems) - len(shown):,} more")
            st.code("\n".join(shown), language=None, wrap_lines=True)
