"""Designs of the sidebar against the rate: what requests wait, in closed form, and one by one, simulated."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from dse.core.errors import DseError, InputError
from dse.core.field import Field, declarations
from dse.explorer import downloads, request, state, widgets
from dse.explorer.bench import Bench, differences
from dse.explorer.downloads import MadeBy
from dse.explorer.request import PointRequest
from dse.explorer.size import asked
from dse.explorer.size.recommended import panels, show_panel
from dse.figures import FIGURES
from dse.figures.drawing.chart import Chart
from dse.model.results import title
from dse.operations.questions import PredictLoad
from dse.operations.serving import SimulateServing
from dse.questions import load
from dse.questions.common import Candidate
from dse.questions.load import UnderLoad
from dse.report import simulation
from dse.report.present import number
from dse.serving import trace_tables
from dse.specs.workload import ASKED

_OPTIONS = declarations(SimulateServing)
#: lengths that are simulated: the workload's, all alike
ALIKE = "workload"
SIMULATED: Field = replace(
    _OPTIONS["trace"],
    name="simulated",
    label="Simulate",
    listed=lambda: {ALIKE: "equal lengths", **{name: f"lengths of {name}" for name in trace_tables.files()}},
    open_means="nothing: closed form alone",
    help="Requests that come at random, drawn with the same seed for every design, served step by step.",
)
N_REQUESTS: Field = replace(
    _OPTIONS["n_requests"],
    name="simulated_requests",
    label="Requests simulated",
    default=1000,
    low=10,
    high=20_000,
    step=1000,
    help="1,000 take 1 to 3 seconds a design; a 99th percentile wants some thousands.",
)
FIELDS = (SIMULATED, N_REQUESTS)


def show(page: str, bench: Bench) -> None:
    """The designs under load, in closed form; below, what is simulated of them."""
    rate = asked.load_of(bench.values).get("rate")
    designs = {row.name: row.asked for row in bench.answered if row.asked is not None}
    _in_closed_form(page, bench, designs, rate)
    with st.container(horizontal=True):
        lengths = widgets.draw(SIMULATED, width=320)
        n_requests = widgets.draw(N_REQUESTS, width=220)
    if lengths is None:
        return
    if rate is None:
        widgets.lines(["Every design gets the same requests: choose requests a second as the load above."])
        return
    trace = None if lengths == ALIKE else lengths
    _simulated(page, bench, designs, {"trace": trace, "rate": rate, "n_requests": n_requests})


def _of_each(names: Iterable[str], answer_of: Callable[[str], Any]) -> dict[str, Any]:
    """The answer of each design that has one; a line for each other."""
    answers = {}
    for name in names:
        try:
            answers[name] = answer_of(name)
        except DseError as error:
            widgets.lines([f"{name}: {line}" for line in error.lines()])
    return answers


def _in_closed_form(page: str, bench: Bench, designs: Mapping[str, PointRequest], rate: float | None) -> None:
    """Means against the rate, a line a design."""
    answers = _of_each(designs, lambda name: cached_load(designs[name], name))
    widgets.lines([f"{name}: {answer.why_empty}" for name, answer in answers.items() if not answer.rows])
    answers = {name: answer for name, answer in answers.items() if answer.rows}
    if not answers:
        return
    wanted = request.limits_s(bench.values)
    questions = [operation(designs[name], wanted) for name in answers]
    made = downloads.made_by(questions, state.address(page, bench.values))
    table = pd.concat([answer.table for answer in answers.values()], ignore_index=True)
    said = best_within(answers, wanted)
    st.markdown(f"**{widgets.escaped(said)}**")
    charts = panels(FIGURES["load"].chart(table, {"limits": wanted, "notes": []}), table, rate)
    _draw("designs", charts, table, made, said)
    other = differences([row for row in bench.answered if row.name in answers])
    if other:
        st.caption(widgets.escaped(f"The designs differ in {other}."))


def _draw(stem: str, charts: Mapping[str, Chart], table: pd.DataFrame, made: MadeBy, said: str = "") -> None:
    """The panels of a figure of times beside each other."""
    for place, (name, part) in zip(st.columns(len(charts)), charts.items(), strict=True):
        with place:
            show_panel(f"{stem}-{name}", part, table, made, said)


def _simulated(page: str, bench: Bench, designs: Mapping[str, PointRequest], how: Mapping[str, Any]) -> None:
    """Simulate the designs request by request: the shares of requests that wait."""
    bar, n = st.progress(0.0), how["n_requests"]
    questions: dict[str, SimulateServing] = {}

    def run(name: str) -> tuple[dict[str, Any], pd.DataFrame]:
        bar.progress(len(questions) / len(designs), text=widgets.escaped(f"{name}: {n:,} requests"))
        questions[name] = simulation_of(designs[name], **how)
        return cached_run(questions[name], designs[name], name)

    runs_of = _of_each(designs, run)
    bar.empty()
    if not runs_of:
        return
    of_runs = [questions[name] for name in runs_of]
    made = downloads.made_by(of_runs, state.address(page, bench.values), [tuple(one.unused()) for one in of_runs])
    wanted = request.limits_s(bench.values)
    table = pd.concat([waits for _, waits in runs_of.values()], ignore_index=True)
    charts = panels(FIGURES["waits"].chart(table, {"limits": wanted, "notes": []}), table)
    titled = {name: replace(part, title=f"Share of the requests by {part.title}") for name, part in charts.items()}
    _draw("waits", titled, table, made)
    st.caption(f"Shares of the same {n:,} requests for each design, {how['rate']:.4g} a second.")
    rows = [percentiles(name, run, waits, wanted) for name, (run, waits) in runs_of.items()]
    st.dataframe(pd.DataFrame(rows), hide_index=True)


def percentiles(name: str, run: Mapping[str, Any], waits: pd.DataFrame, wanted: Mapping[str, float]) -> dict[str, str]:
    """A run as a row: what requests wait, what it gives, and whether the queue grows or limits are missed."""
    shares = ("p50", "p90", "p99")
    times = {
        f"{key.removesuffix('_s').upper()}, {', '.join(shares)}": "; ".join(number(run[key][s], "s") for s in shares)
        for key in ("ttft_s", "tpot_s")
    }
    said = ["the queue grows as long as they come" if run["is_stable"] is False else "holds"]
    for column, limit in wanted.items():
        if (beyond := float((waits[column] > limit).mean())) > 0:
            said.append(f"{100 * beyond:.0f} % miss the limit of {column.removesuffix('_s').upper()}")
    if run["n_rejected"]:
        said.append(f"{run['n_rejected']:,} too long for its memory")
    rate = number(run["throughput_tokens_per_s"], "tok/s")
    return {"design": name, **times, title("throughput_tokens_per_s"): rate, "verdict": "; ".join(said)}


def best_within(answers: Mapping[str, UnderLoad], wanted: Mapping[str, float]) -> str:
    """The design that serves most requests a second within the limits, in a sentence."""
    most = {
        name: (answer.most_within(wanted) if wanted else answer.full_requests_per_s) or 0.0
        for name, answer in answers.items()
    }
    name = max(most, key=lambda design: most[design])
    said = answers[name].within_text(wanted)
    return f"{name} serves most. {said}" if most[name] and len(most) > 1 else said


# kept as it is, not copied: it can be asked for the most within other limits
@st.cache_resource(max_entries=256, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr})
def cached_load(point: PointRequest, name: str) -> UnderLoad:
    """The design under load. Raises DseError."""
    return load.under_load(Candidate(point.device_spec(), point.plan()), point.work, name=name)


@st.cache_data(max_entries=256, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr, SimulateServing: repr})
def cached_run(question: SimulateServing, point: PointRequest, name: str) -> tuple[dict[str, Any], pd.DataFrame]:
    """A simulated run: its numbers, and what shares of the requests wait. Raises DseError."""
    result, run = request.with_files(question, point).run()
    return result, simulation.waits_table(result, run, name)


def simulation_of(point: PointRequest, **how: Any) -> SimulateServing:
    """A run as an operation, of as many requests at once as both limits allow. Raises InputError."""
    work = point.work
    if work.prompt_chunk_tokens != 1:
        raise InputError(f"prompt-chunk = {work.prompt_chunk_tokens}: requests are simulated with 1 only: leave it out")
    least = min((n for n in (work.batch, work.max_num_seqs) if n), default=None)
    taken = replace(work, batch=least, max_num_seqs=ASKED["max_num_seqs"].default, rounds=ASKED["rounds"].default)
    simulate: SimulateServing = request.operation(replace(point, work=taken), SimulateServing, **how)
    return simulate


def operation(point: PointRequest, limits: Mapping[str, float]) -> PredictLoad:
    """The question that the page answers of a design, with limits in seconds. Raises InputError."""
    predict: PredictLoad = request.operation(point, PredictLoad, **request.limit_fields(limits))
    return predict
