"""What the explorer starts with: its pages, each a file of its own, registered here once."""

from collections.abc import Callable
from dataclasses import dataclass

import streamlit as st

from dse.explorer import lab, pareto, roofline, state, throughput, validation, what_if, where

_TITLE = "KV-cache design explorer"


@dataclass(frozen=True)
class Page:
    """A page: its name in the URL, its title, and what draws it."""

    path: str
    title: str
    render: Callable[[], None]


PAGES = (
    Page("what-if", "What if", what_if.render),
    Page("throughput", "Throughput and capacity", throughput.render),
    Page("roofline", "Roofline", roofline.render),
    Page("where", "Where does it pay", where.render),
    Page("pareto", "Pareto", pareto.render),
    Page("lab", "Quantizer lab", lab.render),
    Page("validation", "Validation", validation.render),
)


def main() -> None:
    """Run the explorer's script once, as Streamlit does on every interaction."""
    st.set_page_config(page_title=_TITLE, layout="wide")
    shown = {
        page.path: st.Page(page.render, title=page.title, url_path=page.path, default=page is PAGES[0])
        for page in PAGES
    }
    st.session_state[state.PAGES] = shown
    st.navigation(list(shown.values()), position="top").run()
