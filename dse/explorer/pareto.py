"""The Pareto page: choose axes and objectives, sweep in a thread, see the designs that no other beats."""

from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from dse import report_front
from dse.errors import DseError
from dse.explorer import beside, figure, loading, pareto_asked, pareto_front, state, uploads, widgets
from dse.explorer.beside import MadeBy
from dse.explorer.fields import Field
from dse.explorer.pareto_asked import AXES, DEVICES, MAX_POINTS, MODELS, OBJECTIVES, QUANTIZERS, Asked
from dse.explorer.pareto_job import Job
from dse.explorer.parts import part
from dse.explorer.uploads import Upload
from dse.pareto_designs import DesignFront
from dse.plots import design_front
from dse.sweep_spec import Sweep

PAGE = "pareto"
FILTER = Field(
    "pareto_filter", "Of the front show only", "text", "", placeholder='quantizer == "oaken" and batch >= 16',
    help="A condition on any column of the table below, in base units (s, B, B/s): decode_step_s <= 0.05.",
)  # fmt: skip
#: what the page asks for
FIELDS = (*OBJECTIVES, *AXES, FILTER)
#: sweeps of so many points start by themselves
AUTO_POINTS = 20_000
#: rows that the browser gets
MAX_ROWS = 2000
#: seconds between two looks at a running sweep; and that a page waits for one that is about to end
LOOK_S, FIRST_LOOK_S = 0.5, 0.1
#: seconds without progress from which on the page says what takes so long
PATIENCE_S = 3.0
#: session key: the sweep that runs or has run
_JOB = "pareto job"


def render() -> None:
    """Draw the page."""
    values = state.open_page(PAGE, FIELDS)
    st.title("Pareto", anchor=False)
    st.caption("Which designs does no other beat? Choose what is varied and what counts.")
    with st.sidebar:
        for field in (*OBJECTIVES, *AXES):
            widgets.draw(field)
        loading.draw(partial(chosen, values))
    try:
        asked = pareto_asked.of(values)
        asked.objectives()
        sweep = asked.sweep()
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
        show_file(asked, expanded=True)
        return
    job = job_of(asked, sweep)
    if job is None:
        st.text(f"{sweep.n_points:,} designs: more than start by themselves.")
        if st.button("Sweep", type="primary", key="pareto start"):
            start(asked, sweep)
            st.rerun()
    elif not job.finished:
        show_progress()
    elif job.problem is not None:
        widgets.problem(job.problem)
    elif job.front is None:
        st.text("The sweep was stopped.")
        if st.button("Sweep again", type="primary", key="pareto start"):
            start(asked, sweep)
            st.rerun()
    else:
        shown = show_front(job, values)
        show_file(asked)
        if shown is not None:
            show_table(shown)  # last: the keys of a table, Tab among them, move among its cells
        return
    show_file(asked)


def chosen(values: dict[str, Any], upload: Upload, label: str) -> dict[str, Any]:
    """The field that a loaded file joins."""
    if upload.kind == "measurement":
        return {pareto_asked.MEASUREMENTS.key: label}
    field = {"device": DEVICES, "model": MODELS, "plan": QUANTIZERS}[upload.kind]
    return {field.key: list(dict.fromkeys((*values[field.key], label)))}


def job_of(asked: Asked, sweep: Sweep) -> Job | None:
    """The session's sweep of what is asked, begun here where it is short; another one ends."""
    job: Job | None = st.session_state.get(_JOB)
    if job is not None and job.asked != asked:
        drop()
        job = None
    if job is None and sweep.n_points <= AUTO_POINTS:
        job = start(asked, sweep)
        job.thread.join(FIRST_LOOK_S)
    return job


def start(asked: Asked, sweep: Sweep) -> Job:
    """Begin a sweep for this session; the one before ends."""
    drop()
    job = Job(asked, sweep, uploads.session_lives())
    st.session_state[_JOB] = job
    return job


def drop() -> None:
    """End the session's sweep, if any, and forget what it has found."""
    job = st.session_state.pop(_JOB, None)
    if job is not None:
        job.cancel()


@partial(part, run_every=LOOK_S)
def show_progress() -> None:
    """How far the sweep is, and the button that ends it; the page is drawn anew when it has ended."""
    job: Job | None = st.session_state.get(_JOB)
    if job is None or job.finished:
        st.rerun()
        return
    text = f"{job.n_done:,} of {job.n_points:,} designs"
    if not job.n_done and job.taken_s > PATIENCE_S:
        text += ": the first sweep of an installation compiles its parts, once, for up to a minute"
    st.progress(job.n_done / job.n_points, text=text)
    if st.button("Cancel", key="pareto cancel", on_click=job.cancel):
        st.rerun()


def show_front(job: Job, values: dict[str, Any]) -> DesignFront | None:
    """The figure of a finished sweep's front, filtered; what it shows, if any."""
    found = job.front
    assert found is not None
    missing = f", {found.n_beyond:,} beyond the limits" if found.limits else ""
    missing += f", {found.n_missing:,} without a number for an objective" if found.n_missing else ""
    st.text(
        f"{len(found.table):,} of {found.n_rows:,} designs are on the front ({found.n_feasible:,} fit{missing})."
    )  # fmt: skip
    if found.table.empty:
        st.info("No design is left: allow more, or choose objectives that these designs have.")
        return None
    widgets.draw(FILTER)
    try:
        shown = pareto_front.filtered(found, values[FILTER.key])
    except DseError as error:
        widgets.problem(error)
        shown = found
    if shown.table.empty:
        st.info("The condition leaves no design of the front.")
        return None
    made = MadeBy(
        " && ".join(pareto_asked.commands(job.asked)), pareto_asked.python(job.asked),
        state.address(PAGE, FIELDS, values),
    )  # fmt: skip
    draw(shown, made, job.asked)
    return shown


def show_table(shown: DesignFront) -> None:
    """The designs of the front."""
    rows = pareto_front.table(shown, MAX_ROWS)
    st.subheader("The front", anchor=False)
    st.dataframe(rows, hide_index=True, column_config=columns(shown, rows))
    if len(shown.table) > len(rows):
        st.caption(f"The first {len(rows):,} of {len(shown.table):,} designs; the downloads have all.")


def columns(shown: DesignFront, rows: pd.DataFrame) -> dict[str, Any]:
    """How the table shows its columns: thousands apart, and the name that a condition takes on hovering."""
    found = {}
    for heading, name in pareto_front.names_of(shown).items():
        numbers = rows[heading]
        is_number = pd.api.types.is_numeric_dtype(numbers) and not pd.api.types.is_bool_dtype(numbers)
        way: Any = None
        if is_number:
            way = "localized" if pd.api.types.is_integer_dtype(numbers) or numbers.abs().min() >= 1 else "%.4g"
        kind = partial(st.column_config.NumberColumn, format=way) if is_number else st.column_config.Column
        found[heading] = kind(help=widgets.escaped(f"In conditions: {name}, in base units."))
    return found


def draw(shown: DesignFront, made: MadeBy, asked: Asked) -> None:
    """The figure; a click on a design of the front opens it in What if."""
    chart = pareto_front.chart(shown)
    event: Any = beside.show(
        "front", chart, partial(report_front.rows, shown), made, drawn=figure.faint(chart, design_front.OTHERS),
        on_select="rerun", selection_mode="points",
    )  # fmt: skip
    without = pareto_front.not_loaded(asked.sweep())
    lost = f" What if has no field for {', '.join(without)}: it takes the default." if without else ""
    st.caption(widgets.escaped(f"Click a design of the front to open it in What if.{lost}"))
    clicked = event["selection"]["points"] if event else []
    row = pareto_front.at(shown, float(clicked[0]["x"]), float(clicked[0]["y"])) if clicked else None
    if row is not None:
        state.put(pareto_front.loaded(row, asked))
        state.go("what-if")


def show_file(asked: Asked, expanded: bool = False) -> None:
    """The sweep as a file and the commands that run it: for any number of points."""
    with st.expander("As a sweep file, for any number of designs", expanded=expanded):
        text = pareto_asked.toml(asked.document())
        st.code(text, language="toml", wrap_lines=True)
        st.download_button(
            f"Download {pareto_asked.FILE}", text, pareto_asked.FILE, "application/toml", key="pareto file",
            on_click="ignore",
        )  # fmt: skip
        st.code("\n".join(pareto_asked.commands(asked)), language="bash", wrap_lines=True)
