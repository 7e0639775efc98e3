"""Operations of one decode step under a device's ceilings."""

import streamlit as st

from dse.explorer import state
from dse.explorer.fields import Field

PAGE = "roofline"
#: what the page asks for
FIELDS: tuple[Field, ...] = ()


def render() -> None:
    """Draw the page."""
    state.open_page(PAGE, FIELDS)
    st.title("Roofline", anchor=False)
    st.info("This page will show the operations of a decode step under the device's ceilings, ideal and calibrated.")
