"""A server's start-up log beside our memory of it: loaded by the reader, kept in the session alone."""

import json
from typing import Any

import pandas as pd
import streamlit as st

from dse.core.errors import InputError, clean, show
from dse.core.field import Field
from dse.explorer import common_fields, uploads, widgets
from dse.explorer.bench import Bench
from dse.specs import catalog, device_names
from dse.validate import check_log, startup_log
from dse.validate.check_log import LogCheck
from dse.validate.startup_log import StartupLog

#: session key: name and values of the log
_LOG = "explorer log"
_MAX_NAME = 60
DEVICE = Field(
    name="log_device",
    label="GPU of the log",
    default=None,
    listed=common_fields.DEVICE.listed,
    open_means="as the log says",
    help="Logs of vLLM, SGLang and TensorRT-LLM rarely say the device.",
)


def draw(bench: Bench) -> None:
    """Take a log, and show its terms beside those of the design that it describes."""
    st.subheader("Start-up log of a server", anchor=False)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        wrong = uploads.take(
            "log",
            "Log of vLLM, SGLang, TensorRT-LLM or llama.cpp",
            ["log", "txt", "gz"],
            "What the server printed as it started, up to 2 MiB. It stays in the memory of this session.",
            _keep,
        )
        widgets.draw(DEVICE, width=260)
    widgets.lines(wrong)
    if _LOG not in st.session_state:
        return
    name, log = st.session_state[_LOG]
    with widgets.said():
        _show(found(log, name, bench.values.get(DEVICE.key)))


def _keep(file: Any) -> None:
    """Keep what a file says in the session. Raises InputError."""
    name = clean(file.name, _MAX_NAME)
    st.session_state.pop(_LOG, None)
    startup_log.refuse_larger(file.size, name)
    st.session_state[_LOG] = name, startup_log.read(startup_log.text_of(file.getvalue(), name))


def found(log: StartupLog, name: str, device: str | None) -> LogCheck:
    """A log beside its design, on the device that was chosen, else on the one that it names. Raises DseError."""
    if device is None and not (log.device and device_names.meant(log.device, catalog.device_aliases())):
        says = f"names {show(log.device)}, which is not shipped" if log.device else "names no device"
        raise InputError(f"{name}: {says}: choose the GPU of the log")
    spec = None if device is None else uploads.device(device)
    return check_log.check(log, spec, source=name, names=(device or "", log.model))


def _show(check: LogCheck) -> None:
    """Terms, sentence, notes, and the file of the log's memory."""
    head, *rows = check.rows()
    st.text(check.head())
    st.dataframe(pd.DataFrame(rows, columns=[*head[:-1], "percent"]), hide_index=True)
    st.text("\n".join([check.says, *check.usual(), *check.tries_text(), *check.notes]))
    st.code(check.command, language=None, wrap_lines=True)
    if check.memory is not None:
        content = json.dumps(check.memory.model_dump(), indent=2) + "\n"
        label = "Download its memory, for --calibrated"
        st.download_button(label, content, "memory.json", "application/json", key="log memory", on_click="ignore")
