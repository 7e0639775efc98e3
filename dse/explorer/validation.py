"""Claims of papers and times of silicon, each with its verdict."""

import streamlit as st

from dse.explorer import state
from dse.explorer.fields import Field

PAGE = "validation"
#: what the page asks for
FIELDS: tuple[Field, ...] = ()


def render() -> None:
    """Draw the page."""
    state.open_page(PAGE, FIELDS)
    st.title("Validation", anchor=False)
    st.info("This page will show how the tool's numbers compare with published ones and with measured times.")
