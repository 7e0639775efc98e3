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
from dse.explorer.tray import History, Tray, design_of, is_former_text, place_of, read, text_of, values_of

#: the part of an address behind its page: texts by key
Query = dict[str, list[str]]

_SHOWN_PROBLEMS = 5
#: addresses of a session that are remembered
_MOST = 500
#: keys of the address: the designs, and which of them is being changed, counted from 1
DESIGNS, AT = "designs", "at"
#: session keys: whether a change of a design is one of all designs; all that is in no widget
ALL, _SESSION = "tray all", "explorer"


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


@dataclass(kw_only=True)
class Session:
    """All of a session that is in no widget, in one key: Streamlit goes through all keys for each widget."""

    #: Streamlit's pages by path, and the one last drawn
    pages: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    page: str = ""
    #: values by field, of all pages; the designs, and those at first
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    tray: Tray = dataclasses.field(default_factory=Tray)
    opening: Tray = dataclasses.field(default_factory=Tray)
    #: fields of the page, and of a design
    fields: Sequence[Field] = ()
    design: Sequence[Field] = ()
    #: values and designs that `put` and `set_tray` set for the next run, before whose widgets they must be there
    put: dict[str, Any] = dataclasses.field(default_factory=dict)
    put_tray: Tray | None = None
    #: values that the run before has put into widgets, those that wait for their widget, and fields drawn in this run
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seeds: dict[str, Any] = dataclasses.field(default_factory=dict)
    drawn: set[str] = dataclasses.field(default_factory=set)
    #: lines on what of the address cannot be used, not yet said; and the addresses that were seen
    problems: list[str] = dataclasses.field(default_factory=list)
    trail: Trail = dataclasses.field(default_factory=Trail)
    #: files of the reader's own by the name shown in the lists
    uploads: dict[str, Any] = dataclasses.field(default_factory=dict)
    #: what undo and redo go through
    history: History = dataclasses.field(default_factory=History)
    #: whether it is in its second run, or a later one
    is_seen: bool = False


def session() -> Session:
    """All that this session holds."""
    if _SESSION not in st.session_state:
        st.session_state[_SESSION] = Session()
    held: Session = st.session_state[_SESSION]
    return held


def open_page(page: str, fields: Sequence[Field], design: Sequence[Field], opening: Tray) -> dict[str, Any]:
    """The page's values by key, from the URL, the widgets or the page before; call it first, once a run.

    `fields` are those of the workload and of the page, `design` those of a design, whose values are the current
    design's; `opening` is the tray that an address without designs stands for. The URL is read when a page is opened
    with one and when the reader goes back or forward; else the widgets and the values that other pages left win, and
    the URL follows. Says once what of the URL could not be used.
    """
    now = session()
    now.opening, now.fields, now.design = opening, tuple(fields), tuple(design)
    now.tray = now.put_tray or (now.tray if now.page else opening)
    now.values.update(now.put)
    is_first, now.page = now.page != page, page
    is_seeded = is_first
    query = {key: st.query_params.get_all(key) for key in st.query_params}
    if _gone_back():
        query = now.trail.returns_to(page, query)
    elif is_first and query:
        now.trail.goes_to(page, query)
    every = (*design, *fields)
    if _gone_back() or (is_first and query):
        known = {field.key for field in every} | {DESIGNS, AT}
        carried = {key: value for key, value in now.values.items() if key not in known}
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
        now.values = {**carried, **queried, **values_of(tray.current, design)}
        now.tray, now.problems = tray, [*unread, *problems]
        is_seeded = True
    elif is_first:
        for field in every:
            if problem_of(field, now.values.get(field.key, field.default), now.values):
                now.values[field.key] = field.default  # another page's value that this one cannot take
    drawn, now.drawn = now.drawn, set()
    values, anew = _follow(now, set() if is_seeded else drawn)
    now.given = values if is_seeded else anew
    _notice(now)
    return values


def _tray_of(
    query: Mapping[str, list[str]], design: Sequence[Field], opening: Tray, labels: Mapping[str, str]
) -> tuple[Tray, list[str]]:
    """The tray of an address, and what of it cannot be used; fields of a design by themselves are a single one."""
    text, at = (query.get(key, [""])[0] for key in (DESIGNS, AT))
    tray, problems = read(text, at, design, labels)
    if tray is None:
        tray = Tray() if any(field.key in query for field in design) else opening
        return tray.chosen(place_of(at, len(tray.designs), problems) - 1), problems
    return tray, problems


def drawn(key: str) -> Mapping[str, Any]:
    """Give a field's widget, which is drawn next, its value, and return those of all fields.

    The next run takes its value from there.
    """
    now = session()
    now.drawn.add(key)
    if key in now.seeds:
        st.session_state[key] = now.seeds.pop(key)
    return now.values


def _follow(now: Session, live: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values as the widgets have them, with the URL after them, and those that go into widgets anew.

    Widgets that are `live`, drawn by the run before, have their own value; of one that was not, the session's state
    still holds what was put there before it was last drawn. What the run before has given goes into the widget again,
    where it still holds: it is lost where another run overtakes it on its way to the browser, and the widget would show
    its default, and take it for the reader's choice.
    """
    every = (*now.design, *now.fields)
    put, now.put = now.put, {}
    is_for_all = now.put_tray is None and bool(st.session_state.get(ALL))
    now.put_tray = None
    anew, again = {}, {}
    for field in every:
        key = field.key
        if key in put or key not in live or key not in st.session_state:
            anew[key] = now.values.setdefault(key, field.default)
            continue
        now.values[key] = st.session_state[key]
        if key in now.given and now.given[key] == now.values[key]:
            again[key] = now.values[key]
    now.seeds = anew | again
    now.tray = now.tray.changed(design_of(now.values, now.design, now.tray.current.name), is_for_all=is_for_all)
    values = {field.key: now.values[field.key] for field in every}
    wanted = _query(now, values)
    if wanted != st.query_params.to_dict():
        st.query_params.from_dict(wanted)
    query = {key: [text] for key, text in wanted.items()}
    if _gone_back():
        now.trail.stands_at(query)  # the browser changes an address that it went back to where it is
    else:
        now.trail.goes_to(now.page, query)
    return values, anew


def _query(now: Session, values: Mapping[str, Any]) -> dict[str, str]:
    """The address's query of the tray as it is, and of the values of the workload and the page."""
    also = uploaded()
    query = query_of(now.fields, values, also=also)
    if now.tray.designs != now.opening.designs:
        query[DESIGNS] = text_of(now.tray, now.design, also)
    if now.tray.at:
        query[AT] = str(now.tray.at + 1)
    return query


def tray() -> Tray:
    """The designs of this session."""
    return session().tray


def set_tray(new: Tray) -> None:
    """Another tray for the next run: from a callback, or before `st.rerun` or `go`."""
    now = session()
    put(values_of(new.current, now.design))
    now.put_tray = new


def put(values: Mapping[str, Any]) -> None:
    """Set fields for the next run: from a callback, or before `st.rerun` or `go` (a point into the tray)."""
    session().put.update(values)


def go(page_path: str) -> None:
    """Leave for another page with the values as they are; not from a callback."""
    st.switch_page(session().pages[page_path])


def address(page_path: str, values: Mapping[str, Any]) -> str:
    """The page's address below the host, for what names where a figure comes from."""
    query = urlencode(_query(session(), values))
    return f"/{page_path}?{query}" if query else f"/{page_path}"


def chosen() -> set[str]:
    """Every name that some field of the session or some design has chosen, on whatever page."""
    now = session()
    held = [value for design in now.tray.designs for value in design.values.values()]
    lists = (value if isinstance(value, list) else [value] for value in (*now.values.values(), *held))
    return {str(value) for values in lists for value in values}


def uploaded() -> dict[str, str]:
    """Stand-ins of the session's files in addresses, by their names in the lists."""
    return {label: kept.address(file) for label, file in session().uploads.items()}


def _gone_back() -> bool:
    """True in the run after the browser's back or forward, where the URL is news and the widgets are not."""
    context = get_script_run_ctx()
    return context is not None and context.is_history_navigation


def _notice(now: Session) -> None:
    """Say once what in the URL could not be used; its text is only ever shown as plain text.

    Its place is there in every run, so that what stands below keeps its own: a file being loaded would else be lost.
    """
    place = st.empty()
    problems, now.problems = now.problems, []
    if problems:
        with place.container():
            st.warning("The address held values that cannot be used; the defaults stand in for them:")
            shown = problems[:_SHOWN_PROBLEMS]
            if len(problems) > len(shown):
                shown.append(f"and {len(problems) - len(shown):,} more")
            st.code("\n".join(shown), language=None, wrap_lines=True)
