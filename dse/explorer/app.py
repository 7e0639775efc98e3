"""The explorer's pages, each a file registered here once, and the run of the script."""

import gc
import itertools
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs

import streamlit as st

from dse.explorer import bench, common_fields, memory, question, sidebar, state, uploads, widgets
from dse.explorer.bench import Bench

#: of the browser's tab, behind the name of the page
_TITLE = "KV-cache design explorer"
#: where Streamlit shows no focus, a reader who goes from link to link by keyboard sees where they are; less empty room;
#: captions and the words of figures in the page's own color, a little paler, which is dark enough to read (AA); so are
#: commands in one color, and dark letters on the light blue of the dark theme
_STYLE = """<style>
[data-testid=stTopNavLink]:focus-visible { outline: 2px solid currentColor !important; }
[data-testid=stMainBlockContainer] { padding: 4.2rem 2.5rem 3rem; }
.st-key-question_line button[data-testid^=stNumberInputStep] { display: none; }
[data-testid=stSidebarUserContent] { padding-top: 0; }
[data-testid=stSidebar][data-collapsed=true] { visibility: hidden; }
[data-testid=stSidebar][data-collapsed=true] * { visibility: inherit !important; }
[data-testid=stElementContainer]:has(.dse-title) { position: absolute; width: 1px !important; }
[data-testid=stExpandSidebarButton] * { color: inherit !important; }
.dse-title { position: absolute; height: 1px; width: 1px; overflow: hidden; clip-path: inset(50%); }
[data-testid=stCaptionContainer] { color: inherit !important; opacity: 0.8 !important; }
[data-testid=stCaptionContainer] * { color: inherit !important; opacity: 1 !important; }
[data-testid=stCode] .token { color: inherit !important; }
:is([data-testid=stBaseButton-primary], [data-tag]) :is(p, span, button) { color: light-dark(white, #111) !important; }
.js-plotly-plot :is(.xtick, .ytick) text, .js-plotly-plot :is(.xtitle, .ytitle, .legendtext, .annotation-text) {
    fill: currentColor !important; fill-opacity: 0.85 !important;
}
@media (max-width: 640px) {
    [data-testid=stMain] h1 { font-size: 1.5rem !important; padding: 0 0 1rem; }
    [data-testid=stMain] h2 { font-size: 1.3rem !important; }
    [data-testid=stMainBlockContainer] { padding: 4.2rem 1rem 2rem; }
    [data-testid=stElementContainer]:has(> [data-testid=stButtonGroup]) { max-width: 100%; }
    [data-testid=stButtonGroup] * { flex-wrap: wrap; }
    [data-testid=stMain] [data-testid=stVerticalBlock] { row-gap: 0.6rem; }
}
</style>"""
#: what is in memory is kept out of searches for garbage
_is_frozen = False
#: runs of all sessions together, and of how many one has all of memory searched
_runs, SEARCHED_RUNS = itertools.count(1), 100


@dataclass(frozen=True)
class ExplorerPage:
    """A page: its name in the URL, its title, and the module that draws it, imported when it is opened.

    Addresses of the pages that it has come from, `former`, lead to it, with what stands behind their "?".
    """

    path: str
    title: str
    module: str
    former: tuple[str, ...] = ()

    def loaded(self) -> Any:
        """Its module: `FIELDS`, what it asks for, and `render`, which draws it."""
        return import_module(self.module)


PAGES = (
    ExplorerPage("answer", "Answer", "dse.explorer.pages.answer", former=("answer", "start", "compare", "formats")),
    ExplorerPage("size", "Size", "dse.explorer.pages.size", former=("front", "serving")),
    ExplorerPage("why", "Why", "dse.explorer.pages.why", former=("roofline", "lab?why=error")),
    ExplorerPage("trust", "Trust", "dse.explorer.pages.trust", former=("validation",)),
)


def main(first: str = PAGES[0].path) -> None:
    """Run the explorer's script once, as Streamlit does on every interaction; `first` is the page that opens.

    Streamlit searches all of Python's memory for garbage after every run, which holds up every session for a tenth of a
    second. What is there when a run begins is kept out of that, but for the first run of each session and one of
    SEARCHED_RUNS others: they find what runs and sessions before have left, and the next returns it.
    """
    global _is_frozen
    n_run = next(_runs)
    if n_run % SEARCHED_RUNS == 0:
        memory.give_back()
    if not _is_frozen:  # asking gc for it would count all objects
        gc.freeze()
        _is_frozen = True
    st.set_page_config(layout="wide", initial_sidebar_state="collapsed")
    benches: list[Bench] = []
    shown = {
        page.path: st.Page(
            partial(_render, page, benches),
            title=page.title,
            url_path=None if page.path == first else page.path,
            default=page.path == first,
        )
        for page in PAGES
    }
    session = state.session()
    session.pages = shown
    former = ((page.path, *old.partition("?")) for page in PAGES for old in page.former)
    leads_to = {old: (path, more) for path, old, _, more in former if old != path or old == first}
    hidden = [
        st.Page(partial(_redirect, *to), title=old, url_path=old, visibility="hidden") for old, to in leads_to.items()
    ]
    uploads.restore()
    if not session.is_seen:
        question.open_first()
    st.html(_STYLE)
    opened = st.navigation([*shown.values(), *hidden], position="top")
    if opened.url_path in leads_to:
        opened.run()
    page = next(page for page in PAGES if page.path == (opened.url_path or first))
    st.set_page_config(page_title=f"{page.title}: {_TITLE}")
    values = state.open_page(
        page.path, (*common_fields.SCENARIO, *page.loaded().FIELDS), common_fields.DESIGN, sidebar.opening()
    )
    benches.append(bench.evaluate(values, session.tray))
    st.html(f'<h1 class="dse-title">{page.title}</h1>')  # the menu shows it; for who hears the page
    question.draw(benches[0], sidebar.wrong_of(benches[0]))
    with widgets.said():
        opened.run()
    sidebar.draw(benches[0])  # last: what was asked for is on the page
    if (n_run + 1) % SEARCHED_RUNS == 0 or not session.is_seen:
        session.is_seen = True
        gc.unfreeze()
        _is_frozen = False


def _redirect(path: str, more: str) -> None:
    """Leave an old address for the page that it leads to, with what it asks, and `more`."""
    query = {key: st.query_params.get_all(key) for key in st.query_params} | parse_qs(more)
    st.switch_page(state.session().pages[path], query_params=query)


def _render(page: ExplorerPage, benches: list[Bench]) -> None:
    page.loaded().render(benches[0])
