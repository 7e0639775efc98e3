"""What the explorer starts with: one page."""

import streamlit as st

from dse.explorer import what_if


def main() -> None:
    """Run the explorer's script once, as Streamlit does on every interaction."""
    st.set_page_config(page_title="KV-cache design explorer", layout="wide")
    what_if.render()
