"""Where a page takes files of the reader's own: devices, models, plans by layer, measurements, logs of servers."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import streamlit as st

from dse.core import specfile
from dse.core.errors import MAX_LINE, InputError, clean
from dse.explorer import startup_log, uploads, widgets
from dse.explorer.find import Typed
from dse.explorer.uploads import Upload
from dse.report import listing
from dse.report.listing import Checked

#: endings of files that other places take
_TABLES = (".csv", ".jsonl", ".parquet")
#: session key: what the last file held
_CHECKED = "explorer load checked"


def draw(values: Mapping[str, Any], chosen: Callable[[Upload | Typed, str], None]) -> None:
    """Files are checked, kept as text in this session, and let go.

    `chosen` sets the fields that a file says, by itself and its name in the lists, or by what a server's log says;
    `values` are those of the page.
    """

    def keep(file: Any) -> None:
        st.session_state.pop(_CHECKED, None)
        if file.name.lower().endswith(_TABLES):
            name = clean(file.name, MAX_LINE)
            raise InputError(
                f"{name}: a trace and a table of `dse sweep` are loaded on Size, measured servers on Trust"
            )
        if startup_log.is_one(file.name, file.getvalue()):
            startup_log.LOG.keep(file)
            chosen(startup_log.question(*startup_log.LOG.held(), values), file.name)
            return
        upload, summary = uploads.read(file.name, file.getvalue())
        chosen(upload, uploads.keep(upload))
        st.session_state[_CHECKED] = summary

    wrong = uploads.take(
        "load",
        "Device .toml, model .toml or config.json, plan .toml, measurement.json, a server's log or benchmark",
        [".toml", *startup_log.LOG.endings, *_TABLES],
        "Checked as the commands do. A plan has a quantizer for each layer: `dse mix` writes one. "
        "Measured bits and errors of your own data: `dse measure` writes them. A server's start-up log, or the JSON of "
        "its benchmark, sets the question and the designs, its KV format this one; Trust compares it. All stays in the "
        "memory of this machine, for at most eight hours after it was last used.",
        keep,
        max_mib=max(specfile.MAX_JSON_BYTES, specfile.MAX_TOML_BYTES, startup_log.LOG.max_bytes) // 2**20,
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
