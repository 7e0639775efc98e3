"""The front page: vary the current design, sweep in a thread, see the designs that no other beats."""

from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from dse.core.errors import DseError
from dse.explorer import downloads, figure, sidebar, state, uploads, widgets
from dse.explorer.bench import Bench
from dse.explorer.downloads import MadeBy
from dse.explorer.fragments import part
from dse.explorer.front import found, limits, request
from dse.explorer.front.job import AUTO_POINTS, FrontJob
from dse.explorer.request import limits_s
from dse.figures.charts import design_front
from dse.figures.plot.answer import source_of
from dse.model.engine import COMPILED_POINTS
from dse.sweep.pareto.designs import DesignFront
from dse.sweep.spec import Sweep

PAGE = "front"
FIELDS = request.FIELDS
#: points that the page evaluates; more is for the command line
MAX_POINTS = 1_000_000
#: rows that the browser gets
MAX_ROWS = 2000
#: seconds between two looks at a running sweep; and that a page waits for one that is about to end
LOOK_S, FIRST_LOOK_S = 0.5, 1.0
#: seconds without progress from which on the page says what takes so long
PATIENCE_S = 3.0
#: session key: the sweep that runs or has run
_JOB = "front job"


def render(bench: Bench) -> None:
    """Draw the page."""
    st.title("Front", anchor=False)
    st.caption(
        "Which designs does no other beat? The current design is varied; what is left open is as it is and as the "
        "workload says."
    )
    values = bench.values
    with st.expander("What is varied, and what counts", expanded=True):
        places = st.columns(3)
        for i, field in enumerate((*request.SHOWN, *request.FOLDED)):
            if i == len(request.SHOWN):
                places = st.expander("More axes and limits").columns(3)
            with places[i % 3]:
                if field in request.LIMITS:
                    limits.draw_choice(field)
                else:
                    widgets.draw(field)
            if field is request.SHOWN[-1]:
                of_workload = {request.AT_MOST: limits_s(values), request.AT_LEAST: {}}
                limits.draw_numbers(of_workload, st.columns(3, vertical_alignment="bottom"))
    try:
        search = request.front_request(values)
        search.objectives()
        sweep = search.sweep()
    except DseError as error:
        drop()
        widgets.problem(error)
        return
    if sweep.n_points > MAX_POINTS:
        drop()
        st.info(
            f"{sweep.n_points:,} designs: this page evaluates up to {MAX_POINTS:,}. The command line takes any number, "
            "goes on where it was stopped, and writes the front as a page of its own:"
        )
        show_file(search, expanded=True)
        return
    job = job_of(search, sweep)
    if job is None:
        st.text(f"{sweep.n_points:,} designs: more than start by themselves.")
        if st.button("Sweep", type="primary", key="front start"):
            start(search, sweep)
            st.rerun()
    elif not job.finished:
        show_progress()
    elif job.problem is not None:
        widgets.problem(job.problem)
    elif job.front is None:
        st.text("The sweep was stopped.")
        if st.button("Sweep again", type="primary", key="front start"):
            start(search, sweep)
            st.rerun()
    else:
        shown = show_front(job, bench)
        show_file(search)
        if shown is not None:
            show_table(shown)  # last: the keys of a table, Tab among them, move among its cells
        return
    show_file(search)


def job_of(asked: request.FrontRequest, sweep: Sweep) -> FrontJob | None:
    """The session's sweep of what is asked, begun here where it is short; another one ends."""
    job: FrontJob | None = st.session_state.get(_JOB)
    whole = None
    if job is not None and job.asked != asked:
        whole = job.whole if job.asked.grid == asked.grid else None
        drop()
        job = None
    if job is None and sweep.n_points <= AUTO_POINTS:
        job = start(asked, sweep, whole)
        job.thread.join(FIRST_LOOK_S if whole is None else PATIENCE_S)
    return job


def start(asked: request.FrontRequest, sweep: Sweep, whole: pd.DataFrame | None = None) -> FrontJob:
    """Begin a sweep for this session; the one before ends. `whole` has its rows where they are known."""
    drop()
    job = FrontJob(asked, sweep, uploads.session_lives(), whole)
    st.session_state[_JOB] = job
    return job


def drop() -> None:
    """End the session's sweep, if any, and forget what it has found."""
    job = st.session_state.pop(_JOB, None)
    if job is not None:
        job.cancel()


@partial(part, run_every=LOOK_S)
def show_progress() -> None:
    """Show the progress of the sweep with a button to cancel it; redraw the page at its end."""
    job: FrontJob | None = st.session_state.get(_JOB)
    if job is None or job.finished:
        st.rerun()
        return
    text = f"{job.n_done:,} of {job.n_points:,} designs"
    if not job.n_done and job.taken_s > PATIENCE_S and job.n_points >= COMPILED_POINTS:
        text += ": the first sweep of an installation compiles its parts, once, for up to a minute"
    st.progress(job.n_done / job.n_points, text=text)
    if st.button("Cancel", key="front cancel", on_click=job.cancel):
        st.rerun()


def show_front(job: FrontJob, bench: Bench) -> DesignFront | None:
    """The figure of a finished sweep's front, filtered; what it shows, if any."""
    assert job.front is not None
    front = job.front.listed_once()
    missing = f", {front.n_beyond:,} beyond the limits" if front.limits else ""
    missing += f", {front.n_missing:,} without a number for an objective" if front.n_missing else ""
    missing += f", {front.n_refused:,} not run by the software of their device" if front.n_refused else ""
    ran = f"{front.n_feasible:,} run, whole or in parts"
    said = f"{len(front.table):,} of {front.n_rows:,} designs are on the front ({ran}{missing})."
    st.text(said)
    if limited := found.limits_text(front):
        st.caption(widgets.escaped(limited))
    if front.table.empty:
        why = "allow more, or choose objectives that these designs have"
        if not front.n_feasible:
            why = f"none runs: {bench.current.why_not}"
        st.info(f"No design is left: {why}.")
        return None
    widgets.draw(request.FILTER)
    try:
        shown = found.filtered(front, bench.values[request.FILTER.key], job.sweep)
    except DseError as error:
        widgets.problem(error)
        shown = front
    if shown.table.empty:
        st.info("The condition leaves no design of the front.")
        return None
    address = state.address(PAGE, bench.values)
    made = MadeBy(" && ".join(request.commands(job.asked)), request.python(job.asked), address)
    draw(shown, made, job.asked, bench, f"{said} {limited}".strip())
    return shown


def show_table(shown: DesignFront) -> None:
    """The designs of the front."""
    rows = found.table_of(shown, MAX_ROWS)
    st.subheader("The front", anchor=False)
    st.dataframe(rows, hide_index=True, column_config=columns(shown, rows))
    if len(shown.table) > len(rows):
        st.caption(f"The first {len(rows):,} of {len(shown.table):,} designs; the downloads have all.")


def columns(shown: DesignFront, rows: pd.DataFrame) -> dict[str, Any]:
    """Number formats of the table's columns, with the name that conditions use as their help."""
    configs = {}
    for heading, name in found.names_of(shown).items():
        numbers = rows[heading]
        is_number = pd.api.types.is_numeric_dtype(numbers) and not pd.api.types.is_bool_dtype(numbers)
        way: Any = None
        if is_number:
            way = "localized" if pd.api.types.is_integer_dtype(numbers) or numbers.abs().min() >= 1 else "%.4g"
        kind = partial(st.column_config.NumberColumn, format=way) if is_number else st.column_config.Column
        configs[heading] = kind(help=widgets.escaped(f"In conditions: {name}, in base units."))
    return configs


def draw(shown: DesignFront, made: MadeBy, asked: request.FrontRequest, bench: Bench, said: str) -> None:
    """The figure; a click on a design of the front puts it into the tray."""
    chart = found.chart_of(shown)
    event: Any = downloads.show(
        "front",
        chart,
        lambda: source_of(shown).table,
        made,
        drawn=figure.faint(chart, design_front.OTHERS),
        verdict=lambda: said,
        on_select="rerun",
        selection_mode="points",
    )
    st.caption("Click a design of the front to add it to the tray.")
    place = downloads.clicked("front", event)
    row = found.at(shown, *place) if place else None
    if row is not None:
        sidebar.add(*found.added(found.loaded(row, asked), bench.values))
        st.rerun()


def show_file(asked: request.FrontRequest, expanded: bool = False) -> None:
    """The sweep as a file and the commands that run it: for any number of points."""
    with st.expander("As a sweep file, for any number of designs", expanded=expanded):
        text = request.sweep_toml(asked.document())
        st.code(text, language="toml", wrap_lines=True)
        name = request.FILE
        st.download_button(f"Download {name}", text, name, "application/toml", key="front file", on_click="ignore")
        st.code("\n".join(request.commands(asked)), language="bash", wrap_lines=True)
