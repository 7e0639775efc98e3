"""The report's figures, live, with the chosen designs marked."""

import streamlit as st

from dse.explorer import state
from dse.explorer.fields import Field

PAGE = "throughput"
#: what the page asks for
FIELDS: tuple[Field, ...] = ()


def render() -> None:
    """Draw the page."""
    state.open_page(PAGE, FIELDS)
    st.title("Throughput and capacity", anchor=False)
    st.info("This page will show throughput and memory against batch and length for the chosen designs.")
