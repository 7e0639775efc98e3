"""The answer: which of some designs to take, whether they fit, how fast they are, and what each needs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st

from dse.core.errors import DseError
from dse.explorer import cards, common_fields, downloads, figure, find, measured, opened, request, sidebar, state, tray
from dse.explorer.bench import Bench, BenchRow, differences
from dse.explorer.downloads import MadeBy, made_by
from dse.explorer.request import PointRequest
from dse.explorer.verdict import Verdict, verdict
from dse.explorer.widgets import escaped, lines
from dse.operations.questions import TradeSpeeds
from dse.questions import engine_formats, interactivity
from dse.questions.grid import Grid
from dse.questions.server_design import ServerDesign
from dse.report.present import position_note

PAGE = "answer"
#: what the page asks for beside the designs and the question
FIELDS = ()
#: choice of the box that adds formats: all that run
ALL = "all that the engine runs"
#: pixels of the figure
HEIGHT = 330


def render(bench: Bench) -> None:
    """Draw the page."""
    said = verdict(bench)
    shown = said.taken or said.nearest
    places = st.columns([7, 1] if shown is not None and shown.at != bench.at else 1, vertical_alignment="center")
    places[0].markdown(f"**{escaped(said.head)}** {escaped(said.said)}")
    if shown is not None and len(places) > 1:
        at, tip = shown.at, "Shows its numbers, its command and what would change them, below the table."
        act = partial(sidebar.act, lambda now: now.chosen(at))
        places[1].button(f"Open {escaped(shown.name)}", on_click=act, help=tip)
    rows = [row for row in bench.answered if row.result["feasible"]]
    left, right = st.columns([2, 3], gap="medium")
    with left:
        shown = shown or bench.current
        if shown in rows:
            st.html(cards.memory_bar(shown.result, shown.name))
        if rows:
            st.html(cards.room_bars(rows))
    with right:
        if rows:
            show_speeds(bench, said)
    show_table(bench)
    _widen(bench)
    opened.show(bench)


@st.fragment(parallel=True)
def show_speeds(bench: Bench, said: Verdict) -> None:
    """Throughput a device against the speed of each user, a line a design; a single one beside 16 bits."""
    rows = [row for row in bench.answered if row.result["feasible"]]
    limits = request.limits_s(bench.values)
    named = [(row.name, row.request) for row in rows]
    if len(named) == 1:
        plain = request.unquantized(named[0][1])
        if plain.key_quantizer_text != named[0][1].key_quantizer_text:
            named.append((plain.key_quantizer_text, plain))
    curves = tuple((name, request.any_load(point)) for name, point in named)
    servers = measured.beside(rows)
    answer = replace(cached_speeds(curves, tuple(limits.items())), measured=tuple(servers))
    is_of_sessions = bench.values["load"] == "sessions"  # which find their prompts: on no line
    held = [row for row in rows if row.load.kind == "batch" or (row.answer and row.answer.holds)]
    chart = figure.speeds(answer, [] if is_of_sessions else [(row.name, row.result) for row in held])
    if chart is None:
        return
    other = differences(rows)
    chart = replace(chart, title=f"{chart.title}; designs differ in {other}" if other else chart.title)
    address = state.address(PAGE, bench.values)
    made = asked_by(rows, limits, address) or made_by([request.operation(row.request) for row in rows], address)
    downloads.show(
        "speeds",
        replace(chart, notes=()),
        lambda: answer.table,
        made,
        drawn=figure.fitted(chart, HEIGHT),
        titled=False,
        verdict=lambda: f"{said.head} {said.said}",
    )
    if is_of_sessions:
        st.caption("Requests of these lengths at once, without a prefix cache; the table has the sessions.")


def asked_by(rows: Sequence[BenchRow], limits: Mapping[str, float], address: str) -> MadeBy | None:
    """The question that the figure answers, of designs that differ in their KV formats alone; else None."""
    plain = {request.any_load(request.unquantized(row.request)) for row in rows}
    if len(plain) > 1 or any(row.request.value_quantizer for row in rows):
        return None
    first = next(iter(plain))
    names = tuple(row.request.key_quantizer_text for row in rows)
    splits = None if first.work.n_devices > 1 else (1,)
    speeds = request.operation(first, TradeSpeeds, quantizers=names, splits=splits, **request.limit_fields(limits))
    return made_by([speeds], address)


# kept as it is, not copied: its servers know what was computed of them
@st.cache_resource(max_entries=64, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr})
def cached_speeds(
    curves: tuple[tuple[str, PointRequest], ...], limits: tuple[tuple[str, float], ...]
) -> interactivity.Interactivity:
    """Named designs over batches, as servers of a search that is among these alone. Raises DseError."""
    load = request.LoadRequest(limits=limits)
    servers: tuple[ServerDesign, ...] = tuple(request.server_of(asked, load, name) for name, asked in curves)
    names = tuple(name for name, _ in curves)
    grid = Grid(servers, devices=names, engines=(), formats=(), splits=())
    return interactivity.interactivity(grid, servers[0].demand, is_named=True)


def show_table(bench: Bench) -> None:
    """A row a design; a click opens it below. The row that is open is ticked: where another way has opened one, the
    table is a new one, as the browser's own tick would stay."""
    table = cards.design_table(bench)
    with st.container(key="designs"):
        event: Any = st.dataframe(
            table,
            hide_index=True,
            key=f"open {bench.at} of {len(table)}",
            on_select="rerun",
            selection_mode="single-row",
            selection_default={"selection": {"rows": [bench.at]}},
            column_config={name: st.column_config.TextColumn(help=tip) for name, tip in cards.TIPS.items()},
            height=min(38 + 35 * len(table), 330),
        )
    rows = event["selection"]["rows"] if event else []
    if rows and rows[0] != bench.at:
        sidebar.act(lambda now: now.chosen(rows[0]))
        st.rerun()
    for row in bench.rows:
        if row.wrong:
            lines([f"{row.name}: {line}" for line in row.wrong.lines()])
        elif row.answer and (beyond := position_note(row.request.model_spec(), _context(row))):
            lines([f"{row.name} has a longer context than its model was made for: {beyond[0]}"])


def _context(row: BenchRow) -> int:
    return int(row.result["input_tokens"] + row.result["output_tokens"])


def _widen(bench: Bench) -> None:
    """Boxes that add a device, a format or a model to what is compared."""

    def add(kind: str) -> None:
        chosen, st.session_state[f"add {kind}"] = st.session_state[f"add {kind}"], None
        if chosen:
            try:
                sidebar.add_all(added(bench, kind, str(chosen)))
            except DseError as error:
                st.toast(escaped(error.lines()[0]))

    ways: dict[str, tuple[str, Sequence[Any]]] = {
        "GPU": ("Add a GPU", list(common_fields.DEVICE.options())),
        "format": ("Add a format", [ALL, *common_fields.QUANTIZER.options()]),
        "model": ("Add a model", list(common_fields.MODEL.options())),
    }
    with st.container(horizontal=True, gap="small"):
        for kind, (label, options) in ways.items():
            st.selectbox(
                label,
                options,
                index=None,
                key=f"add {kind}",
                on_change=partial(add, kind),
                placeholder=label,
                label_visibility="collapsed",
                accept_new_options=kind != "format",
                width=230,
            )


def added(bench: Bench, kind: str, text: str) -> list[tray.TrayDesign]:
    """The designs that another GPU, format or model adds: else as the current one. Raises InputError."""
    own = tray.values_of(state.tray().current, common_fields.DESIGN)
    if kind == "format":
        names = [text]
        if text == ALL:
            point = bench.current.request
            told = engine_formats.compared(point.device_spec(), point.model_spec(), point.work)
            there = {row.request.key_quantizer_text for row in bench.answered}
            names = [design.name for design in told if design.name not in there]
        split = (name.partition(":") for name in names)
        changes = [
            {"quantizer": name, "parameters": of, "value_quantizer": None, "value_parameters": ""}
            for name, _, of in split
        ]
    else:
        named = find.find(text).values if text not in common_fields.DEVICE.options() else {"device": text}
        named = {"model": text} if kind == "model" and text in common_fields.MODEL.options() else named
        changes = [{tray.OWN.get(key, key): value for key, value in named.items() if key in (*tray.OWN, "weights")}]
        if kind == "GPU":
            changes[0]["edits"] = ""
    return [tray.design_of({**own, **change}, common_fields.DESIGN) for change in changes]
