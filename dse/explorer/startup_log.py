"""A server's start-up log beside our memory of it: loaded by the reader, kept in the session alone."""

import json
from typing import Any

import pandas as pd
import streamlit as st

from dse.core.errors import DseError, InputError, clean
from dse.explorer import common_fields, uploads, widgets
from dse.explorer.bench import Bench
from dse.explorer.fields import Field
from dse.validate import check_log, startup_log
from dse.validate.check_log import LogCheck

#: session keys: name and text of the log, and what the last load said
_LOG, _SAID = "explorer log", "explorer log said"
_MAX_NAME = 60
DEVICE = Field(
    key="log_device",
    label="GPU of the log",
    kind="choice",
    default=None,
    choices=common_fields.DEVICE.choices,
    placeholder="as it says, else the design's",
    help="Logs of vLLM, SGLang and TensorRT-LLM rarely say the device.",
)


def draw(bench: Bench) -> None:
    """Take a log, and show its terms beside those of the design that it describes."""
    st.subheader("Start-up log of a server", anchor=False)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        uploads.take(
            "log",
            "Log of vLLM, SGLang, TensorRT-LLM or llama.cpp",
            ["log", "txt"],
            "What the server printed as it started, up to 8 MB. It stays in the memory of this session.",
            _keep,
        )
        widgets.draw(DEVICE, width=260)
    widgets.lines(st.session_state.get(_SAID, []))
    if _LOG not in st.session_state:
        return
    name, text = st.session_state[_LOG]
    with widgets.said():
        _show(found(text, name, bench.values.get(DEVICE.key), bench.values["device"]))


def _keep(file: Any) -> None:
    """Keep the text of a file in the session, or what is wrong with it."""
    content = file.getvalue()
    st.session_state[_SAID] = []
    if len(content) > startup_log.MAX_LETTERS:
        st.session_state[_SAID] = [f"{file.name}: has {len(content):,} bytes: give the start of the log alone"]
    else:
        st.session_state[_LOG] = clean(file.name, _MAX_NAME), content.decode("utf-8", "replace")


def found(text: str, name: str, device: str | None, other: str) -> LogCheck:
    """A log beside its design, on a device: as chosen, else as the log says, else the `other`. Raises DseError."""
    log = startup_log.read(text)
    label = device or ("" if log.device else other)
    try:
        spec = uploads.device(label) if label else None
    except DseError as error:
        raise InputError(error.lines()[0]) from None
    return check_log.check(log, spec, source=name, names=(label, log.model))


def _show(check: LogCheck) -> None:
    """Terms, sentence, notes, and the file of the log's memory."""
    head, *rows = check.rows()
    st.text(check.head())
    st.dataframe(pd.DataFrame(rows, columns=[*head[:-1], "percent"]), hide_index=True)
    st.text("\n".join([check.says, *check.notes]))
    st.code(check.command, language=None, wrap_lines=True)
    if check.memory is not None:
        content = json.dumps(check.memory.model_dump(), indent=2) + "\n"
        label = "Download its memory, for --calibrated"
        st.download_button(label, content, "memory.json", "application/json", key="log memory", on_click="ignore")
