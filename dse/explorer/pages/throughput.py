"""The report's figures, live: published systems beside the reader's own design; a click loads a point into What if."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pandas as pd
import streamlit as st

from dse.core.errors import DseError
from dse.explorer import common_fields as shared
from dse.explorer import downloads as beside
from dse.explorer import figure, request, state, widgets
from dse.explorer.downloads import MadeBy
from dse.explorer.fields import Field
from dse.explorer.fragments import part
from dse.explorer.request import Request
from dse.figures import FIGURES
from dse.figures.drawing.chart import Chart
from dse.model import evaluate as point
from dse.questions import systems, tables
from dse.questions.systems import System
from dse.specs.workload import Workload
from dse.sweep import sweeps as sweep

PAGE = "throughput"
OWN = "your design"
BY_LABEL = {system.label: system for system in systems.DEFAULT}
SYSTEMS = Field(
    "throughput_systems", "Systems", "choices",
    ["A100 FP16 (vLLM)", "A100 KIVI 4-bit", "A100 QServe", "LPU-LPDDR FP16", "Oaken-HBM", "Oaken-LPDDR"],
    choices=lambda: list(BY_LABEL), placeholder="none",
    help="Systems that papers compare: a device, a KV quantizer, and how it admits requests. Models that fill more "
    "than half of an A100 run on two.",
)  # fmt: skip
#: what the page asks for: the workload of all, and the reader's own design
FIELDS = (SYSTEMS, *shared.DESIGN)
_OF_ALL = ("model", "batch", "input", "output", "model_kind")
#: of a published system and a workload: what What if opens with
_LOADED = {"batch": "batch", "input": "input_tokens", "output": "output_tokens", "admission": "admission"}


def render() -> None:
    """Draw the page."""
    values = state.open_page(PAGE, FIELDS)
    st.title("Throughput and capacity", anchor=False)
    st.caption("How do systems compare as batch, length and memory change? Click a point to open it in What if.")
    with st.sidebar:
        widgets.draw(SYSTEMS)
        for field in FIELDS:
            if field.key in _OF_ALL:
                widgets.draw(field)
        with st.expander("Your design"):
            for field in FIELDS[1:]:
                if field.key not in _OF_ALL:
                    widgets.draw(field)
    try:
        asked, labels = request.of(values), tuple(values[SYSTEMS.key])
        chart = cached_chart("throughput_batch", request.any_batch(asked), labels)
        answer = request.answer(asked).result
    except DseError as error:
        widgets.problem(error)
        return
    made = MadeBy(command(asked, labels), python(asked, labels), state.address(PAGE, FIELDS, values))
    results = partial(cached_table, "results", request.any_batch(asked), labels)
    show("throughput", figure.chosen(chart, [answer]), results, made, asked)
    show("capacity", cached_chart("effective_axes", request.any_batch(asked), labels), results, made, asked)
    show_lengths(asked, labels, made)


@part
def show_lengths(asked: Request, labels: tuple[str, ...], made: MadeBy) -> None:
    """Throughput against total length at the batch of Oaken's Figure 13."""
    everywhere = request.any_batch(asked)
    chart = cached_chart("throughput_length", everywhere, labels)
    show("lengths", chart, partial(cached_table, "lengths", everywhere, labels), made, asked)


def show(name: str, chart: Chart, table: Callable[[], pd.DataFrame], made: MadeBy, asked: Request) -> None:
    """A figure whose points open What if."""
    event = beside.show(
        name, chart, table, made, on_select="rerun", selection_mode="points",
        drawn=figure.with_colours(chart) if chart.colours else None,
    )  # fmt: skip
    clicked = event["selection"]["points"] if event else []
    if clicked:
        x, y = chart.panels[0].x, chart.panels[0].y
        row = row_at(table(), name, x.per_unit * float(clicked[0]["x"]), y.per_unit * float(clicked[0]["y"]))
        if row is not None:
            state.put(loaded(row, asked))
            state.go("what-if")


def row_at(table: pd.DataFrame, name: str, x: float, y: float) -> dict[str, Any] | None:
    """The row that figure `name` draws nearest to a place, in the order of its table; None where nothing is there."""
    total = table["input_tokens"] + table["output_tokens"]
    across, up = {
        "throughput": (table["batch"], table["throughput_tokens_per_s"]),
        "capacity": (table["effective_capacity_bytes"], table["effective_bandwidth_bytes_per_s"]),
        "lengths": (total, table["throughput_tokens_per_s"]),
    }[name]
    if name == "capacity":
        shown = table["batch"] == table["batch"].max()
        table, across, up = table[shown], across[shown], up[shown]
    distance = (across / x - 1).abs() + (up / y - 1).abs()
    if not (distance < NEAR).any():
        return None
    found: dict[str, Any] = table.loc[distance.idxmin()].to_dict()
    return found


#: relative distance within which a click belongs to a point
NEAR = 1e-6


def loaded(row: dict[str, Any], asked: Request) -> dict[str, Any]:
    """Fields of What if for a row of a figure."""
    found = {key: row[column] for key, column in _LOADED.items()}
    found = {key: int(value) if key != "admission" else str(value) for key, value in found.items()}
    if row["system"] == OWN:
        return found
    system = BY_LABEL[row["system"]]
    family, _, parameters = system.quantizer.partition(":")
    device = system.device_for(asked.model_spec()).name.lower()
    return {
        **shared.work_values(Workload(model_kind=_kind(asked), memory="paper")), **found, "device": device, "edits": "",
        "quantizer": family, "parameters": parameters, "value_quantizer": None, "value_parameters": "",
    }  # fmt: skip


def _kind(asked: Request) -> Literal["auto", "ideal"]:
    """Accelerators have no calibrated kernels: calibrated means auto for systems of several kinds."""
    return "ideal" if asked.work.model_kind == "ideal" else "auto"


def report_request(asked: Request, labels: tuple[str, ...]) -> tables.Request:
    """What the report would be asked for the same systems and workload."""
    return tables.Request(
        tuple(BY_LABEL[label] for label in labels), (asked.model_spec(),), request.CURVE, asked.work.input_tokens,
        asked.work.output_tokens, is_default=False, model_kind=_kind(asked),
    )  # fmt: skip


@st.cache_data(max_entries=64, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached_table(name: str, asked: Request, labels: tuple[str, ...]) -> pd.DataFrame:
    """A table of the report for the systems, and the reader's design at the same workloads. Raises DseError."""
    wanted = report_request(asked, labels)
    parts = [tables.one(name, wanted)] if labels else []
    device, kv, work = asked.device_spec(), asked.plan(), asked.work
    jobs = tables.POINTS[name](replace(wanted, systems=(BY_LABEL[next(iter(BY_LABEL))],)))
    own = sweep.to_table(
        point.evaluate(device, kv, replace(
            work, batch=job.work.batch, input_tokens=job.work.input_tokens, output_tokens=job.work.output_tokens
        )) for job in jobs
    )  # fmt: skip
    own.insert(0, "system", pd.array([OWN] * len(own), dtype="string"))
    found = pd.concat([*parts, own], ignore_index=True)
    found["model"] = asked.model_text
    own_look = [OWN, device.name, kv.quantizer_name]
    found.attrs["systems"] = [*(parts[0].attrs["systems"] if parts else ()), own_look]
    return found


@st.cache_data(max_entries=64, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached_chart(name: str, asked: Request, labels: tuple[str, ...]) -> Chart:
    """A figure of the report with the reader's design: nothing in it follows the chosen batch. Raises DseError."""
    return FIGURES[name].chart(cached_table(FIGURES[name].table, asked, labels))


def command(asked: Request, labels: tuple[str, ...]) -> str:
    """Commands that give the same numbers: one a system, and one for the reader's design, at the chosen batch."""
    requests = [_of_system(BY_LABEL[label], asked) for label in labels]
    return "\n".join(request.command(each) for each in (*requests, asked))


def _of_system(system: System, asked: Request) -> Request:
    device = system.device_for(asked.model_spec()).name.lower()
    plain = Request(
        device=device, model=asked.model, model_file=asked.model_file,
        work=Workload(
            asked.work.batch, asked.work.input_tokens, asked.work.output_tokens, system.admission,
            model_kind=_kind(asked), memory="paper",
        ),
    )  # fmt: skip
    return request.with_quantizer(plain, system.quantizer)


def python(asked: Request, labels: tuple[str, ...]) -> str:
    """The systems' points in Python, ending with `result`. Raises InputError."""
    work = asked.work
    return "\n".join([
        "from dse.specs import catalog\nfrom dse.questions import systems, tables", "",
        f"chosen = [system for system in systems.DEFAULT if system.label in {list(labels)!r}]",
        "request = tables.Request(",
        f"    tuple(chosen), (catalog.model({asked.model_text!r}),), {request.CURVE!r}, {work.input_tokens}, "
        f"{work.output_tokens},",
        f"    is_default=False, model_kind={_kind(asked)!r},", ")",
        'result = tables.one("results", request)',
    ])  # fmt: skip
