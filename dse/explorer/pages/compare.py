"""The compare page: the designs of the tray side by side, each number with where it comes from, and the figures."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from dse.core import units
from dse.core.errors import DseError
from dse.explorer import cards, common_fields, downloads, figure, measured, names, request, sidebar, state, tray
from dse.explorer.bench import Bench, BenchRow, likeness
from dse.explorer.downloads import MadeBy, made_by
from dse.explorer.fragments import part
from dse.explorer.request import PointRequest
from dse.explorer.widgets import escaped, lines, problem
from dse.figures.charts import design_bars
from dse.figures.drawing.chart import Chart
from dse.figures.drawing.names import printed
from dse.model.results import RESULT_UNITS
from dse.operations.questions import TradeSpeeds
from dse.questions import interactivity
from dse.questions.common import Candidate
from dse.questions.grid import Grid
from dse.questions.server_design import Demand, RequestsAtOnce, ServerDesign
from dse.report.present import change, made_for_positions, number, position_note
from dse.specs import tokens
from dse.specs.oaken_grid import SAMPLE

PAGE = "compare"
#: what the page asks for beside the designs and the workload
FIELDS = ()


def render(bench: Bench) -> None:
    """Draw the page."""
    st.title("Compare", anchor=False)
    cards.show(bench)
    rows = bench.answered
    if not rows:
        st.info("Nothing to show yet: the message beside the design's fields says what to change.")
        return
    say_notes(rows)
    same, other = likeness(rows)
    alike = f"Alike: {same}." if same else ""
    st.caption(escaped(" ".join(filter(None, (alike, f"Not alike: {other}." if other else "")))))
    made = made_by([request.operation(row.request) for row in rows], state.address(PAGE, bench.values))
    limits = cards.limits_s(bench.values)
    show_curve(rows, made, other, limits)  # by itself: nothing waits for its points
    show_bars(rows, made, other)
    show_numbers(rows)  # last: what the reader opens, while the figures follow the fields


@st.cache_data(max_entries=128, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr})
def cached_curve(asked: PointRequest) -> pd.DataFrame:
    """The points of the throughput figure, for a request with any batch. Raises DseError."""
    return request.curve(asked)


def say_notes(rows: Sequence[BenchRow]) -> None:
    """Warnings about a design: contexts longer than its model was trained on, tokens that are dropped."""
    for row in rows:
        result = row.result
        if beyond := position_note(row.request.model_spec(), result["input_tokens"] + result["output_tokens"]):
            st.warning(f"{escaped(row.name)} has a longer context than its model was made for:")
            lines(beyond)
        policy = tokens.parse(result["tokens"]).family
        if policy.validity:
            stored, read = (number(result[name], "token") for name in ("stored_tokens", "read_tokens"))
            st.caption(escaped(f"{policy.title}: {stored} stored and {read} read at the end; {policy.validity}."))


#: on top: result -> tooltip
HEADLINE = {
    "throughput_tokens_per_s": cards.MEANINGS["throughput_tokens_per_s"],
    "decode_step_s": "Mean time in which every running request gets one token.",
    "kv_bytes": "Keys and values of the whole batch, all requests at their final length.",
    "max_batch": "Concurrent requests that fit in memory.",
}
#: below: heading -> result -> tooltip
GROUPS = {
    "Capacity and bottleneck": {
        "feasible": "Whether the whole batch runs at once, or how many requests of it.",
        "bound": "What the largest part of the time, or the memory, goes into.",
        "max_batch": HEADLINE["max_batch"],
        "running_batch": "Requests of the batch that run together.",
        "max_context_tokens": "Prompt and output of each request of the batch.",
    },
    "Memory": {
        "weight_bytes": "The model's weights.",
        "kv_bytes": "Of the whole batch, all requests at their final length.",
        "kv_pool_tokens": cards.MEANINGS["kv_pool_tokens"],
        "kv_bytes_per_token": "Of one request.",
        "min_capacity_bytes": "To run the whole batch at once: the smallest device that does.",
        "capacity_bytes": "As the device's file says; counted by a server, as its driver reports it.",
    },
    "Time": {
        "throughput_tokens_per_s": HEADLINE["throughput_tokens_per_s"],
        "decode_step_s": HEADLINE["decode_step_s"],
        "prefill_s": "Time to compute the prompts before the first token.",
        "total_s": "The whole batch from the first prompt to the last token.",
    },
    "Energy and cost": {
        "joules_per_token": cards.MEANINGS["joules_per_token"],
        "joules_per_token_by_parts": "By bytes moved, operations and idling.",
        "usd_per_million_tokens": cards.MEANINGS["usd_per_million_tokens"],
    },
    "Bits and error": {
        "effective_bits": "Bits an element as the method's paper counts them.",
        "stored_bits": "Bits an element with all that is stored beside the codes.",
        "measured_error": "Relative error of its output, as measured (More).",
        "sqnr_db": "Signal to quantization noise of keys and values, measured.",
        "score_drop_frac": cards.MEANINGS["score_drop_frac"],
        "sample_perplexity_frac": cards.MEANINGS["sample_perplexity_frac"],
        "sample_kl_nats": "Mean divergence of the sample model's next token from 16 bits.",
    },
}
#: what the page calls otherwise than the declared title, since it shows something else: how much of the batch fits
LABELS = {"feasible": "Fits"}
#: pixels of a row's label and of each design's number
_LABEL, _CELL = 175, 150


def label_of(name: str) -> str:
    """Title of a result on this page."""
    return LABELS.get(name) or names.words(name)


def shown_number(name: str, result: Mapping[str, Any]) -> str:
    """A result as the page shows it; sizes in GB only, so that columns compare."""
    if name == "feasible":
        return cards.fits(result)
    if name in ("score_drop_frac", "sample_perplexity_frac"):
        return cards.shown(name, result)
    value, unit = result[name], RESULT_UNITS[name]
    if unit == "B" and value is not None:
        return units.human(value, unit)
    return number(value, unit)


def delta_of(name: str, result: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """Difference from the first design's number in percent, from twice on as a factor; empty where undefined."""
    value, base = result[name], first[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(base, int | float):
        return ""
    return change(value, base)


#: pixels of the bars: of a bar, of an entry of the legend above (a row each on a phone), of the axis below
_BAR_PX, _ENTRY_PX, _AXIS_PX = 44, 24, 55
#: letters of a name that a phone has room for beside a bar
_SHORT = 22


def show_bars(rows: Sequence[BenchRow], made: MadeBy, other: str) -> None:
    """Memory and step time, a bar a design: with its name beside it where all names are short, else with a number."""
    shown = [(row.name, row.result) for row in rows]
    is_named = len(rows) > 1 and max(len(printed(row.name)) for row in rows) <= _SHORT
    charts = (design_bars.memory(shown, is_named), design_bars.step_time(shown, is_named))
    memory, step = (_said(chart, other) for chart in charts)
    legend_px = _ENTRY_PX * max(len(memory.legend()), len(step.legend()))
    height = legend_px + _AXIS_PX + _BAR_PX * len(rows)
    figures = (("memory_bars", memory, partial(cards.fitting, rows)), ("step", step, partial(cards.gains, rows)))
    for place, (name, chart, verdict) in zip(st.columns(2), figures, strict=True):
        with place:
            drawn = figure.fitted(chart, height, legend_px)
            if is_named:
                drawn = figure.bars(chart, height, legend_px, [printed(row.name) for row in rows])
            downloads.show(name, chart, partial(design_bars.table, shown), made, drawn=drawn, verdict=verdict)


def _said(chart: Chart, other: str) -> Chart:
    """The chart with what its designs differ in beside their KV formats in the title."""
    return replace(chart, title=f"{chart.title}; designs differ in {other}") if other else chart


@st.fragment(parallel=True)
def show_curve(rows: Sequence[BenchRow], made: MadeBy, other: str, limits: Mapping[str, float]) -> None:
    """Throughput a device against the speed of each user, and against batch, a click on which adds the design with that
    batch; a single design beside 16 bits."""
    named = [(row.name, row.request) for row in rows]
    if len(named) == 1:
        plain = request.unquantized(named[0][1])
        if plain.key_quantizer_text != named[0][1].key_quantizer_text:
            named.append((plain.key_quantizer_text, plain))
    curves = tuple((name, request.any_batch(point)) for name, point in named)
    _show_speeds(rows, curves, made, other, limits)
    drawn = _said(cached_lines(curves), other)
    chart = figure.chosen(drawn, [row.result for row in rows], [row.name for row in rows])
    event = downloads.show(
        "throughput",
        chart,
        partial(_curves, curves),
        made,
        verdict=partial(cards.gains, rows),
        on_select="rerun",
        selection_mode="points",
    )
    st.caption("Click a point to add the design with that batch to the tray.")
    place = downloads.clicked("throughput", event)
    if place and (design := at(rows, state.tray(), drawn, *place)):
        sidebar.add(design)
        st.rerun()


def _show_speeds(
    rows: Sequence[BenchRow],
    curves: tuple[tuple[str, PointRequest], ...],
    made: MadeBy,
    other: str,
    limits: Mapping[str, float],
) -> None:
    servers = measured.beside(rows)
    answer = replace(cached_speeds(curves, tuple(limits.items())), measured=tuple(servers))
    chart = figure.speeds(answer, [(row.name, row.result) for row in rows])
    if chart is None:
        return
    shown = _said(chart, other)
    made = asked_by(rows, limits, made.address) or made
    downloads.show("interactivity", shown, partial(_curves, curves), made, verdict=lambda: answer.verdict)
    st.markdown(escaped(answer.verdict))
    measured.draw(len(servers))


def asked_by(rows: Sequence[BenchRow], limits: Mapping[str, float], address: str) -> MadeBy | None:
    """The question that the plot of speeds answers, of designs that differ in their KV formats alone; else None."""
    plain = {request.unquantized(row.request) for row in rows}
    if len(plain) > 1 or any(row.request.value_quantizer for row in rows):
        return None
    first = next(iter(plain))
    names = tuple(row.request.key_quantizer_text for row in rows)
    splits = None if first.work.n_devices > 1 else (1,)
    batchless = replace(first, work=replace(first.work, batch=None))
    speeds = request.operation(batchless, TradeSpeeds, quantizers=names, splits=splits, **request.limit_fields(limits))
    return made_by([speeds], address)


# kept as it is, not copied: its servers know what was computed of them
@st.cache_resource(max_entries=64, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr})
def cached_speeds(
    curves: tuple[tuple[str, PointRequest], ...], limits: tuple[tuple[str, float], ...]
) -> interactivity.Interactivity:
    """Named designs over batches, as servers of a search that is among these alone. Raises DseError."""
    demand = Demand(RequestsAtOnce(None), dict(limits))
    servers = tuple(
        ServerDesign(name, Candidate(asked.device_spec(), asked.plan()), replace(asked.work, batch=None), demand)
        for name, asked in curves
    )
    names = tuple(name for name, _ in curves)
    grid = Grid(servers, devices=names, engines=(), formats=(), splits=())
    return interactivity.interactivity(grid, demand, is_named=True)


def at(rows: Sequence[BenchRow], designs: tray.Tray, drawn: Chart, x: float, y: float) -> tray.TrayDesign | None:
    """The design of the tray whose line has a point there, with its batch; None where that is as it is, or none has."""
    lines_there = {series.name for series in drawn.panels[0].series if (x, y) in zip(series.x, series.y, strict=True)}
    row = next((row for row in rows if printed(row.name) in lines_there), None)
    if row is None or row.result["batch"] == round(x):
        return None
    return tray.TrayDesign(values={**designs.designs[row.at].values, common_fields.OWN_BATCH.key: round(x)})


@st.cache_data(max_entries=128, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr})
def cached_lines(curves: tuple[tuple[str, PointRequest], ...]) -> Chart:
    """The throughput figure of named requests with any batch, without the chosen points. Raises DseError."""
    return figure.throughput([(name, cached_curve(point)) for name, point in curves])


def _curves(curves: tuple[tuple[str, PointRequest], ...]) -> pd.DataFrame:
    return pd.concat([cached_curve(point).assign(design=name) for name, point in curves], ignore_index=True)


@part
def show_numbers(rows: Sequence[BenchRow]) -> None:
    """Every number, a column a design; alone, the groups stand side by side. A fragment: opening one draws no more."""
    box = st.expander("Every number, and where it comes from", key="every number", on_change="rerun")
    if not box.open:
        return
    with box:
        _numbers_of(rows)


def _numbers_of(rows: Sequence[BenchRow]) -> None:
    if len(rows) >= tray.MANY:
        st.dataframe(pd.DataFrame(_column(row) for row in rows), hide_index=True)
        return
    st.caption("Press a number for its formula, values, units and sources. GB is a thousand million bytes.")
    first = rows[0].result
    if len(rows) == 1:
        columns = st.columns(3)
        for i, (heading, entries) in enumerate(GROUPS.items()):
            with columns[i % 3].container(gap="xsmall"):
                st.markdown(f"**{escaped(heading)}**")
                for name, tip in entries.items():
                    _number(rows[0], first, name, tip, f"{escaped(label_of(name))}: ")
    else:
        st.text(", ".join(f"{row.at + 1}: {row.name}" for row in rows))
        for heading, entries in GROUPS.items():
            st.markdown(f"**{escaped(heading)}**")
            with st.container(gap="xsmall"):
                for name, tip in entries.items():
                    with st.container(horizontal=True, gap="xsmall", vertical_alignment="center"):
                        st.markdown(escaped(label_of(name)), width=_LABEL, help=tip)
                        for row in rows:
                            _number(row, first, name, "", f"{row.at + 1}: ", width=_CELL)
    for row in rows:
        with st.expander(f"{escaped(row.name)}: all of it as text"):
            assert row.answer is not None
            st.code(row.answer.text, language=None, wrap_lines=True)


def _column(row: BenchRow) -> dict[str, str]:
    """The numbers of a design, by what the page calls them."""
    shown = [name for entries in GROUPS.values() for name in entries]
    return {"design": row.name, **{label_of(name): shown_number(name, row.result) for name in shown}}


def _number(row: BenchRow, first: Mapping[str, Any], name: str, tip: str, before: str, width: Any = "content") -> None:
    """A number as a button that opens its explanation, which is worked out when it is opened."""
    delta = "" if row.result is first else delta_of(name, row.result, first)
    said = ", ".join(filter(None, (delta, _limits(name, row.request, row.result))))
    text = f"{before}**{escaped(shown_number(name, row.result))}**" + (f" ({escaped(said)})" if said else "")
    box = st.popover(
        text,
        type="tertiary",
        help=tip or None,
        key=f"{row.at + 1} number {name}",
        on_change="rerun",
        wrap=True,
        width=width,
    )
    if box.open:
        with box:
            try:
                st.code(cached_explanation(row.request, name), language=None, wrap_lines=True)
            except DseError as error:
                problem(error)


def _limits(name: str, point: PointRequest, result: Mapping[str, Any]) -> str:
    """Caveats of the numbers: measured on other data, or a context longer than the model was trained on."""
    if name in ("measured_error", "sqnr_db"):
        if "(synthetic)" in (result["measured_on"] or ""):
            return "synthetic data"
        return SAMPLE if result["measured_on"] == SAMPLE else ""
    if name in ("sample_kl_nats", "sample_perplexity_frac"):
        return SAMPLE
    if name == "score_drop_frac":
        return result["score_drop_of"] or ""
    if name == "max_context_tokens":
        return made_for_positions(point.model_spec(), result[name])
    return ""


@st.cache_data(max_entries=256, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr})
def cached_explanation(asked: PointRequest, name: str) -> str:
    """Formula, values, units and sources of one result. Raises DseError."""
    return request.explanation(asked, name)
