"""A trace in place of the load on the page Size: shipped, or a file of the reader's own."""

import hashlib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import streamlit as st

from dse.core.errors import InputError, clean
from dse.core.field import Field
from dse.explorer import state, uploads, widgets
from dse.explorer.size import asked, recommended
from dse.explorer.size.found import Trace
from dse.serving import arrivals, trace_tables
from dse.specs.workload import Workload

#: session key: the trace that was loaded last; what its name has in the list
_HELD, _LOADED = "size trace", " (loaded)"
#: bytes of a file: a session holds one
MAX_BYTES = 32 * 2**20
_MAX_NAME = 60
ENDINGS = ("csv", "jsonl")


def _listed() -> dict[str, str]:
    held = _held()
    return {name: name for name in (*trace_tables.files(), *([held.name + _LOADED] if held else []))}


TRACE = Field(
    name="trace",
    label="Trace",
    default=None,
    listed=_listed,
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
        wrong = uploads.take(
            "trace file",
            "A trace of your own",
            ENDINGS,
            f"As `dse recommend --trace` reads it: .csv of Azure's or BurstGPT's columns, or .jsonl, whose lines may "
            f"name the blocks of their prompts; at most {MAX_BYTES // 2**20} MiB. It stays in this session's memory.",
            _keep,
            max_mib=MAX_BYTES // 2**20,
        )
        widgets.lines(wrong)
    if name := values[TRACE.key]:
        recommended.show(page, values, _held() if name.endswith(_LOADED) else None, name)


def _keep(file: Any) -> None:
    """Hold a file that is a trace. Raises InputError and LimitError as the commands do."""
    name = clean(PurePosixPath(file.name.replace("\\", "/")).name, _MAX_NAME)
    content = file.getvalue()
    if len(content) > MAX_BYTES:
        raise InputError(f"{name}: has {len(content):,} bytes: at most {MAX_BYTES:,}: `dse recommend` takes any size")
    if not name.lower().endswith(tuple(f".{ending}" for ending in ENDINGS)):
        raise InputError(f"{name}: must end with .csv or .jsonl")
    trace = Trace(name, hashlib.sha256(content).hexdigest(), content)
    with uploads.on_disk(name, content) as path:
        arrivals.requests_of(arrivals.Traffic(trace=path), Workload())
    st.session_state[_HELD] = trace
    state.put({TRACE.key: name + _LOADED})


def _held() -> Trace | None:
    try:
        held: Trace | None = st.session_state.get(_HELD)
    except RuntimeError:  # no session: outside the app
        held = None
    return held
