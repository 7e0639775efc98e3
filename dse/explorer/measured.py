"""Measured servers of the reader's table, beside the designs of the plot of speeds: kept in the session alone."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from dse.calibrate import servers
from dse.calibrate.servers import ServerRow
from dse.calibrate.table import MAX_TABLE_BYTES
from dse.core.errors import InputError, clean
from dse.explorer import uploads, widgets
from dse.explorer.bench import BenchRow
from dse.validate import serving

#: session key: name and rows of the table
_TABLE = "explorer servers"
_MAX_NAME = 60


def draw(n_shown: int) -> None:
    """Take a table; `n_shown` of its servers are of the designs."""
    wrong = uploads.take(
        "servers",
        "Table of measured servers, .csv",
        ["csv"],
        "With the columns of aiconfigurator-core's silicon_sample.csv: model_path, system, backend, batch_size, "
        "isl, osl, silicon_tpot_ms, silicon_ttft_ms and so on, as `dse ask interactivity --measured` takes it. It "
        "stays in the memory of this session.",
        _keep,
    )
    widgets.lines(wrong)
    if _TABLE in st.session_state:
        name, rows = st.session_state[_TABLE]
        st.text(
            f"{name}: {len(rows):,} servers, {n_shown:,} of them of a design's device, model and lengths (within "
            f"{serving.LENGTH_SHARE:.0%})."
        )


def beside(rows: Sequence[BenchRow]) -> list[dict[str, Any]]:
    """The session's measured servers of the designs' devices, models and lengths."""
    _, held = st.session_state.get(_TABLE, ("", ()))
    if not held:
        return []
    by_server = {}
    for row in rows:
        request = row.request
        for server in serving.speeds_of(held, request.device_spec(), request.model_spec(), request.work):
            by_server[server["server"]] = server
    return list(by_server.values())


def _keep(file: Any) -> None:
    """Keep the rows of a table in the session. Raises InputError."""
    st.session_state[_TABLE] = read(clean(file.name, _MAX_NAME), file.getvalue())


def read(name: str, content: bytes) -> tuple[str, tuple[ServerRow, ...]]:
    """Name and rows of a table. Raises InputError."""
    if len(content) > MAX_TABLE_BYTES:
        raise InputError(f"{name}: has {len(content):,} bytes: a table has at most {MAX_TABLE_BYTES:,}")
    return name, tuple(servers.read(name, content))
