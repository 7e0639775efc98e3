"""Measured servers of the reader's table, beside the designs of the plot of speeds."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from dse.calibrate import servers
from dse.calibrate.table import MAX_TABLE_BYTES
from dse.explorer.bench import BenchRow
from dse.explorer.own_file import OwnFile
from dse.validate import serving

OWN = OwnFile(
    field="servers",
    label="Table of measured servers, .csv",
    help="With the columns of aiconfigurator-core's silicon_sample.csv: model_path, system, backend, batch_size, isl, "
    "osl, silicon_tpot_ms, silicon_ttft_ms and so on, as `dse ask interactivity --measured` takes it",
    endings=(".csv",),
    max_bytes=MAX_TABLE_BYTES,
    larger="leave rows out",
    read=lambda path, content: tuple(servers.read(path, content)),
    is_listed=False,
)


def draw(rows: Sequence[BenchRow]) -> None:
    """Take a table, and say how many of its servers are of the designs of `rows`."""
    OWN.draw()
    name, held = OWN.held()
    if name:
        n_shown, share = len(beside(rows)), f"{100 * serving.LENGTH_SHARE:.0f} %"
        of = f"{n_shown:,} of them of a design's device, model and lengths (within {share})"
        st.text(f"{name}: {len(held):,} servers, {of}.")


def beside(rows: Sequence[BenchRow]) -> list[dict[str, Any]]:
    """The session's measured servers of the designs' devices, models and lengths."""
    _, held = OWN.held()
    by_server = {}
    for request in [row.request for row in rows] if held else []:
        for server in serving.speeds_of(held, request.device_spec(), request.model_spec(), request.work):
            by_server[server["server"]] = server
    return list(by_server.values())
