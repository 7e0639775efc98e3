"""A server's start-up log or benchmark beside ours, as `dse check-log` says it: kept in the session alone."""

import json
from typing import Any

import pandas as pd
import streamlit as st

from dse.core.errors import InputError, clean, show
from dse.core.field import Field
from dse.explorer import common_fields, uploads, widgets
from dse.explorer.bench import Bench
from dse.specs import catalog, device_names
from dse.validate import bench_check, bench_result, check_log, own_server, startup_log
from dse.validate.check_log import LogCheck
from dse.validate.startup_log import StartupLog

#: session key: name and values of the log, or the JSON of a benchmark
_LOG = "explorer log"
_MAX_NAME = 60
DEVICE = Field(
    name="log_device",
    label="GPU of the log",
    default=None,
    listed=common_fields.DEVICE.listed,
    open_means="as the log says",
    help="Logs of vLLM, SGLang and TensorRT-LLM, and benchmarks, rarely say the device.",
)


def draw(bench: Bench) -> None:
    """Take a log or the result of a benchmark, and show it beside the design that it describes."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        wrong = uploads.take(
            "log",
            "Log of vLLM, SGLang, TensorRT-LLM or llama.cpp, or a benchmark's JSON",
            ["log", "txt", "gz", "json"],
            "What the server printed as it started, or the result of `vllm bench serve` or SGLang's bench_serving, up "
            "to 2 MiB, as `dse check-log` takes them. It stays in the memory of this session.",
            _keep,
        )
        widgets.draw(DEVICE, width=260)
    widgets.lines(wrong)
    if _LOG not in st.session_state:
        return
    name, log = st.session_state[_LOG]
    with widgets.said():
        if isinstance(log, bytes):
            _show_benchmark(name, log, bench)
        else:
            _show(found(log, name, bench.values.get(DEVICE.key)))


def _keep(file: Any) -> None:
    """Keep what a file says in the session: of a benchmark its JSON. Raises InputError."""
    name = clean(file.name, _MAX_NAME)
    st.session_state.pop(_LOG, None)
    startup_log.refuse_larger(file.size, name)
    text = startup_log.text_of(file.getvalue(), name)
    is_benchmark = bench_result.is_result(text.encode())
    st.session_state[_LOG] = name, text.encode() if is_benchmark else startup_log.read(text)


def given(bench: Bench) -> dict[str, str]:
    """Device and split of the chosen design, which results of benchmarks do not say. Raises InputError."""
    asked = bench.current.asked
    if asked is None:
        raise InputError("A benchmark does not say its devices: choose a design that has an answer")
    work, device = asked.work, bench.values.get(DEVICE.key) or asked.device
    return {"device": f"{work.n_devices}x{device}", **{name: str(getattr(work, name)) for name in ("tp", "pp", "ep")}}


def _show_benchmark(name: str, content: bytes, bench: Bench) -> None:
    """Measured times beside ours, and the file that corrects ours by them."""
    check = bench_check.check(name, content, given(bench), {})
    st.code(check.text(), language=None, wrap_lines=True)
    corrected = own_server.of_rows([run.row for run in check.runs], name)
    label = "Download its times, for --calibrated"
    st.download_button(label, corrected.content(), "server.toml", key="server times", on_click="ignore")


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
