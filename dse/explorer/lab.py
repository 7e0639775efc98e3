"""The quantizer lab: a KV dump, and what a quantizer does to it."""

import streamlit as st

from dse.explorer import state
from dse.explorer.fields import Field

PAGE = "lab"
#: what the page asks for
FIELDS: tuple[Field, ...] = ()


def render() -> None:
    """Draw the page."""
    state.open_page(PAGE, FIELDS)
    st.title("Quantizer lab", anchor=False)
    st.info("This page will show bits, errors and histograms of a quantizer on your own keys and values.")
