"""A server's start-up log or benchmark beside ours, as `dse check-log` says it: kept in the session alone."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from dse.core.errors import InputError, show
from dse.core.field import Field
from dse.explorer import common_fields, uploads, widgets
from dse.explorer.bench import Bench
from dse.explorer.find import Typed, find, of_server
from dse.explorer.own_file import OwnFile
from dse.explorer.tray import OWN
from dse.specs import catalog, device_names, releases, server_flags
from dse.validate import bench_check, bench_result, check_log, own_server, startup_log
from dse.validate.check_log import LogCheck
from dse.validate.startup_log import StartupLog


def _read(path: str, content: bytes) -> StartupLog | bytes:
    """A log, or the JSON of a benchmark. Raises InputError."""
    text = startup_log.text_of(content, path)
    return text.encode() if bench_result.is_result(text.encode()) else startup_log.read(text)


LOG = OwnFile(
    field="log",
    label="Log of vLLM, SGLang, TensorRT-LLM or llama.cpp, or a benchmark's JSON",
    help="What the server printed as it started, or the result of `vllm bench serve` or SGLang's bench_serving, as "
    "`dse check-log` takes them",
    endings=(".log", ".txt", ".gz", ".json"),
    max_bytes=startup_log.MAX_BYTES,
    larger="give its start-up alone",
    read=_read,
    is_listed=False,
)
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
        LOG.draw()
        widgets.draw(DEVICE, width=260)
    name, log = LOG.held()
    if not name:
        return
    with widgets.said():
        if isinstance(log, bytes):
            _show_benchmark(name, log, bench)
        else:
            _show(found(log, name, bench.values.get(DEVICE.key)))


def is_one(name: str, content: bytes) -> bool:
    """Whether a file is a log or a benchmark's result: neither TOML nor other JSON."""
    is_json, marks = name.lower().endswith(".json"), (f'"{mark}"'.encode() for mark in bench_result.MARKS)
    return all(mark in content for mark in marks) if is_json else not name.lower().endswith(".toml")


def question(name: str, log: StartupLog | bytes, values: Mapping[str, Any]) -> Typed:
    """The fields that a server's log sets, or the first run of a benchmark; what it does not say is as in `values`.

    Raises InputError where it says nothing.
    """
    if isinstance(log, bytes):
        return _of_run(bench_result.rows(name, log))
    typed = Typed(left_out=["its lines of memory and of steps, which Trust compares"])
    model = server_flags.model_fields(log.model) if log.model else {}
    device = device_names.meant(log.device, catalog.device_aliases()) if log.device else None
    for what, said, is_known in (("model", log.model, model), ("device", log.device, device)):
        if not is_known:
            typed.left_out.append(f"{what} {show(said)}, which does not ship" if said else f"no {what} in the log")
    known = {**values, **model, **({"device": device, OWN["device"]: None} if device else {})}
    known |= {OWN["model"]: None} if model else {}
    try:
        spec = uploads.device(common_fields.device_of(known))
        fields = check_log.fields_of(log, spec, uploads.model(common_fields.model_of(known)))
        typed.values |= of_server({"stack": log.engine, "tp": 1, **model, **fields}, typed.left_out).values
    except InputError as error:
        typed.values |= model
        typed.left_out.append(f"{error.lines()[0]}; then load it again")
    typed.values |= {"device": device} if device else {}
    stack, _, release = str(typed.values.get("stack", "")).partition("@")
    if release and (known_release := releases.listed(stack, release)) != release:
        typed.values["stack"] = f"{stack}@{known_release}".rstrip("@")
        typed.left_out.append(f"release {release}: {known_release or 'no release'} stands for it")
    return typed


def _of_run(rows: Sequence[Mapping[str, str]]) -> Typed:
    """The fields that the first run of a benchmark sets: its server, as a command would start it, and its load."""
    row = rows[0]
    engine = bench_result.engine_of(row.get("engine", ""))
    start = next((word for word, stack in server_flags.SERVERS.items() if stack == engine), "")
    options = {"--model": "model", "--tensor-parallel-size": "tp", "--kv-cache-dtype": "kv_dtype"}
    said = [f"{option} {shlex.quote(row[name])}" for option, name in options.items() if row.get(name)]
    typed = find(" ".join([start, *said, row.get("server", "")]))
    for field in (common_fields.WORK["input_tokens"], common_fields.WORK["output_tokens"]):
        typed.values[field.key] = int(row[f"{field.key}_tokens"])
    kind, name = ("rate", "requests_per_s") if row.get("requests_per_s") else ("batch", "concurrency")
    amount = common_fields.AMOUNTS[kind]
    typed.values |= {common_fields.LOAD.key: kind, amount.key: amount.read(row[name])}
    more = [f"{len(rows) - 1:,} more runs"] if len(rows) > 1 else []
    typed.left_out += [*more, "its times, which Trust compares", *([] if row.get("tp") else ["no number of devices"])]
    return typed


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
