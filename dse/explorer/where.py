"""Where a quantizer pays: the best one over batch and context, crossings, and what the result hangs on."""

import streamlit as st

from dse.explorer import state
from dse.explorer.fields import Field

PAGE = "where"
#: what the page asks for
FIELDS: tuple[Field, ...] = ()


def render() -> None:
    """Draw the page."""
    state.open_page(PAGE, FIELDS)
    st.title("Where does it pay", anchor=False)
    st.info(
        "This page will show the best quantizer over batch and context, where two designs cross, and what matters most."
    )
