"""Parts of a page that run by themselves: what they need so that the rest of the page stays whole."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import streamlit as st


def part(draw: Callable[..., None], run_every: float | None = None) -> Callable[..., None]:
    """`st.fragment` in a place that belongs to the page.

    A fragment that runs anew drops what of it was not yet sent to the browser, the container that it stands in among
    it: what the page has below would then come with a gap before it, which the browser refuses, page and all. The
    container here is the page's own, and is sent with it. (`parallel=True` needs none: its containers are the page's.)
    """
    fragment = st.fragment(draw, run_every=run_every)

    @wraps(draw)
    def placed(*args: Any) -> None:
        with st.container():
            fragment(*args)

    return placed
