"""What the explorer starts with: its pages, each a file of its own, registered here once."""

import gc
from dataclasses import dataclass
from importlib import import_module

import streamlit as st

from dse.explorer import state, uploads

_TITLE = "KV-cache design explorer"
#: where Streamlit shows no focus: a reader who goes from link to link by keyboard sees where they are
_FOCUS = "<style>[data-testid=stTopNavLink]:focus-visible { outline: 2px solid currentColor !important; }</style>"
#: session key: there from a session's second run on
_SEEN = "explorer seen"


@dataclass(frozen=True)
class Page:
    """A page: its name in the URL, its title, and the module that draws it, imported when it is opened."""

    path: str
    title: str
    module: str

    def render(self) -> None:
        """Draw the page."""
        import_module(self.module).render()


PAGES = (
    Page("formats", "Formats", "dse.explorer.pages.formats"),
    Page("what-if", "What if", "dse.explorer.pages.what_if"),
    Page("throughput", "Throughput and capacity", "dse.explorer.pages.throughput"),
    Page("roofline", "Roofline", "dse.explorer.pages.roofline"),
    Page("where", "Where does it pay", "dse.explorer.pages.best_quantizer"),
    Page("pareto", "Pareto", "dse.explorer.pages.pareto"),
    Page("lab", "Quantizer lab", "dse.explorer.pages.lab"),
    Page("validation", "Validation", "dse.explorer.pages.validation"),
)


def main(first: str = PAGES[0].path) -> None:
    """Run the explorer's script once, as Streamlit does on every interaction; `first` is the page that opens.

    Streamlit searches all of Python's memory for garbage after every run, which holds up every session for a tenth of a
    second. What is there when a run begins is kept out of that, but for the first run of each session: it finds what
    sessions before have left.
    """
    if not gc.get_freeze_count():
        gc.freeze()
    st.set_page_config(page_title=_TITLE, layout="wide")
    shown = {
        page.path: st.Page(page.render, title=page.title, url_path=page.path, default=page.path == first)
        for page in PAGES
    }
    st.session_state[state.PAGES] = shown
    uploads.restore()
    st.html(_FOCUS)
    st.navigation(list(shown.values()), position="top").run()
    if _SEEN not in st.session_state:
        st.session_state[_SEEN] = True
        gc.unfreeze()
