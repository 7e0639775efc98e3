"""A trace in place of the load on the page Size: shipped, or a file of the reader's own."""

import hashlib
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import streamlit as st

from dse.core.field import Field
from dse.explorer import widgets
from dse.explorer.own_file import LOADED, OwnFile
from dse.explorer.size import asked, recommended
from dse.explorer.size.found import Trace
from dse.serving import arrivals, trace_tables
from dse.specs.workload import Workload


def _read(path: str, content: bytes) -> Trace:
    """A file that is a trace, which is read anew for each question. Raises InputError."""
    arrivals.requests_of(arrivals.Traffic(trace=path), Workload())
    return Trace(PurePath(path).name, hashlib.sha256(content).hexdigest(), content)


OWN = OwnFile(
    field="trace",
    label="A trace of your own",
    help="As `dse recommend --trace` reads it: .csv of Azure's or BurstGPT's columns, or .jsonl, whose lines may name "
    "the blocks of their prompts",
    endings=(".csv", ".jsonl"),
    max_bytes=32 * 2**20,
    larger="`dse recommend` takes any size",
    read=_read,
)
TRACE = Field(
    name="trace",
    label="Trace",
    default=None,
    listed=lambda: {name: name for name in trace_tables.files()} | OWN.names(),
    open_means="choose one, or load a file",
    help="Its lengths and its rate, and what its prompts share where a .jsonl file names their blocks.",
)
FIELDS = (TRACE,)


def show(page: str, values: Mapping[str, Any]) -> None:
    """Draw what to run for a trace."""
    fields, files = st.columns(2, vertical_alignment="top")
    with fields, st.container(horizontal=True):
        widgets.draw(TRACE, width=260)
        widgets.draw(asked.TRACE_RATE, width=200)
    with files:
        OWN.draw()
    if name := values[TRACE.key]:
        recommended.show(page, values, OWN.held()[1] if name.endswith(LOADED) else None, name)
