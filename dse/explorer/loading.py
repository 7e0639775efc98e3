"""Where a page takes files of the reader's own: devices, models, plans by layer, measurements."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import streamlit as st

from dse.explorer import state, uploads, widgets
from dse.explorer.uploads import Upload
from dse.report import listing
from dse.report.listing import Checked

#: session key: what the last file held
_CHECKED = "explorer load checked"


def draw(chosen: Callable[[Upload, str], Mapping[str, Any]]) -> None:
    """Files are checked, kept as text in this session, and let go.

    `chosen` says which fields a file sets, by itself and its name in the lists.
    """

    def keep(file: Any) -> None:
        st.session_state.pop(_CHECKED, None)
        upload, summary = uploads.read(file.name, file.getvalue())
        state.put(chosen(upload, uploads.keep(upload)))
        st.session_state[_CHECKED] = summary

    wrong = uploads.take(
        "load",
        "Device .toml, model .toml or config.json, plan .toml, measurement.json",
        ["toml", "json"],
        "Checked as the commands do. A plan has a quantizer for each layer: `dse mix` writes one. "
        "Measured bits and errors of your own data: `dse measure` writes them. It stays in the memory of this "
        "machine, for at most eight hours after it was last used.",
        keep,
    )
    st.caption("The address names a loaded file, which opens again on this machine while `dse app` runs.")
    widgets.lines(wrong)
    if checked := st.session_state.get(_CHECKED):
        st.text("\n".join([checked.head, *checked.notes]))
        if checked.rows and st.button("All of it", help="Every number of the file, with its source."):
            _show(checked)


@st.dialog("As it was read", width="large")
def _show(checked: Checked) -> None:
    st.text(checked.head)
    headings, *rows = listing.cells(checked.rows)
    st.dataframe(pd.DataFrame(rows, columns=headings), hide_index=True)
