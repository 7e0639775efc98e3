"""The Pareto page: choose axes and objectives, sweep, see the front."""

import streamlit as st

from dse.explorer import state
from dse.explorer.fields import Field

PAGE = "pareto"
#: what the page asks for
FIELDS: tuple[Field, ...] = ()


def render() -> None:
    """Draw the page."""
    state.open_page(PAGE, FIELDS)
    st.title("Pareto", anchor=False)
    st.info("This page will sweep chosen axes and show the designs that no other design beats.")
