"""Designs of the sidebar against the rate: what requests wait, in closed form, and one by one, simulated."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from dse.core.errors import DseError, InputError
from dse.core.field import WHOLE, Field
from dse.explorer import downloads, figure, request, state, widgets
from dse.explorer.bench import Bench, BenchRow, differences
from dse.explorer.request import PointRequest
from dse.explorer.size.recommended import HEIGHT, panels
from dse.figures import FIGURES
from dse.model import lower
from dse.model.results import title
from dse.operations.questions import PredictLoad
from dse.operations.serving import SimulateServing
from dse.questions import load
from dse.questions.common import Candidate
from dse.questions.load import UnderLoad
from dse.report import simulation
from dse.report.present import number
from dse.serving import arrivals, trace_tables
from dse.serving.steady_state import scheduler_of
from dse.specs.workload import ASKED

#: lengths that are simulated: the workload's, all alike
ALIKE = "workload"
#: of the rate that the weakest design holds, where no rate is given
SHARE_OF_WEAKEST = 0.7
SIMULATED = Field(
    name="simulated",
    label="Simulate",
    default=None,
    listed=lambda: {
        ALIKE: "requests of the workload, all alike",
        **{name: f"lengths of {name}" for name in trace_tables.files()},
    },
    open_means="nothing: closed form alone",
    help="Requests that come at random, drawn with the same seed for every design, served step by step.",
)
N_REQUESTS = Field(
    name="simulated_requests",
    label="Requests simulated",
    kind=WHOLE,
    default=1000,
    low=10,
    high=20_000,
    step=1000,
    help="1,000 take 1 to 3 seconds a design; a 99th percentile wants some thousands.",
)
FIELDS = (SIMULATED, N_REQUESTS)
#: fields of a workload that `dse simulate` does not take: a batch says how many run at once, rounds say nothing here
_NOT_SIMULATED = ("max_num_seqs", "rounds")


def show(page: str, bench: Bench, rate: float | None) -> None:
    """The designs under load, in closed form; below, what is simulated of them."""
    answers: dict[str, UnderLoad] = {}
    for row in bench.answered:
        try:
            answer = cached_load(of_design(row), row.name)
        except DseError as error:
            widgets.lines([f"{row.name}: {line}" for line in error.lines()])
            continue
        if not answer.rows:
            widgets.lines([f"{row.name}: {_why_empty(answer)}"])
        else:
            answers[row.name] = answer
    if answers:
        _in_closed_form(page, bench, answers, rate)
    _simulated(page, bench, rate)


def of_design(row: BenchRow) -> PointRequest:
    """The design of a row as it was asked for: with the question's requests at once, if any, as the most."""
    assert row.asked is not None  # of an answer
    return row.asked


def _why_empty(answer: UnderLoad) -> str:
    """Why a design has no line, and what to do."""
    if answer.full_requests_per_s is None:
        return "no request fits: give it more devices, fewer bits or shorter prompts"
    return "no rate holds in closed form: simulate it below"


def _in_closed_form(page: str, bench: Bench, answers: Mapping[str, UnderLoad], rate: float | None) -> None:
    """Means against the rate, a line a design."""
    wanted = request.limits_s(bench.values)
    rows = [row for row in bench.answered if row.name in answers]
    questions = [operation(of_design(row), wanted) for row in rows]
    made = downloads.made_by(questions, state.address(page, bench.values))
    table = pd.concat([answer.table for answer in answers.values()], ignore_index=True)
    if said := best_within(answers, wanted):
        st.markdown(f"**{widgets.escaped(said)}**")
    per_s = rate or _of_weakest(answer.full_requests_per_s or 0.0 for answer in answers.values())
    charts = panels(FIGURES["load"].chart(table, {"limits": wanted, "notes": []}), table, per_s)
    for place, (name, part) in zip(st.columns(len(charts)), charts.items(), strict=True):
        with place:
            drawn = figure.fitted(part, HEIGHT + 50)
            downloads.show(
                f"designs-{name}", part, lambda: table, made, drawn=drawn, titled=False, verdict=lambda: said
            )
    other = f" The designs differ in {names}." if (names := differences(rows)) else ""
    st.caption(widgets.escaped(f"At {per_s:.4g} requests a second to each design: {_whose(rate)}.{other}"))
    st.dataframe(at(answers, per_s, wanted), hide_index=True)


def _of_weakest(held: Iterable[float]) -> float:
    """The rate for all designs where none is given, by what each of them holds: short, as a reader would type it."""
    return float(f"{SHARE_OF_WEAKEST * min(held):.3g}")


def _whose(rate: float | None) -> str:
    """Where the rate comes from, in words."""
    return "the rate given" if rate else f"{SHARE_OF_WEAKEST:.0%} of what the design that holds least can hold"


def _simulated(page: str, bench: Bench, rate: float | None) -> None:
    """Simulate the designs request by request: the shares of requests that wait."""
    with st.container(horizontal=True):
        lengths = widgets.draw(SIMULATED, width=320)
        n_requests = widgets.draw(N_REQUESTS, width=220)
    if lengths is None:
        return
    trace = None if lengths == ALIKE else lengths
    held: dict[str, tuple[PointRequest, float]] = {}
    for row in bench.answered:
        try:
            point = simulated(of_design(row))
            held[row.name] = point, rate or cached_rate(point, trace, n_requests)
        except DseError as error:
            widgets.lines([f"{row.name}: {line}" for line in error.lines()])
    if not held:
        return
    per_s = rate or _of_weakest(held_rate for _, held_rate in held.values())
    runs: dict[str, tuple[dict[str, Any], pd.DataFrame]] = {}
    bar = st.progress(0.0)
    for i, (name, (point, _)) in enumerate(held.items()):
        bar.progress(i / len(held), text=widgets.escaped(f"{name}: {n_requests:,} requests"))
        try:
            runs[name] = cached_run(point, trace, per_s, n_requests, name)
        except DseError as error:
            widgets.lines([f"{name}: {line}" for line in error.lines()])
    bar.empty()
    if not runs:
        return
    points = [held[name][0] for name in runs]
    made = downloads.made_by(
        [simulation_of(point, trace, per_s, n_requests) for point in points],
        state.address(page, bench.values),
        [unused(point, trace) for point in points],
    )
    wanted = request.limits_s(bench.values)
    table = pd.concat([waits for _, waits in runs.values()], ignore_index=True)
    chart = FIGURES["waits"].chart(table, {"limits": wanted, "notes": []})
    charts = panels(chart, table)
    for place, (name, part) in zip(st.columns(len(charts)), charts.items(), strict=True):
        with place:
            part = replace(part, title=f"Share of the requests by {part.title}")
            drawn = figure.fitted(part, HEIGHT + 50)
            downloads.show(f"waits-{name}", part, lambda: table, made, drawn=drawn, titled=False)
    st.caption(f"The same {n_requests:,} requests for each design, {per_s:.4g} a second: {_whose(rate)}.")
    rows = [_percentiles(name, run, _missed(waits, wanted)) for name, (run, waits) in runs.items()]
    st.dataframe(pd.DataFrame(rows), hide_index=True)


def _missed(waits: pd.DataFrame, wanted: Mapping[str, float]) -> str:
    """The share of simulated requests beyond each limit that any misses; "" where none does."""
    said = []
    for name, limit in wanted.items():
        beyond = float((waits[name] > limit).mean())
        said += [f"{beyond:.0%} miss the limit of {name.removesuffix('_s').upper()}"] if beyond > 0 else []
    return "; ".join(said)


def _percentiles(name: str, run: Mapping[str, Any], missed: str) -> dict[str, str]:
    """A run as a row: what requests wait, what runs, what memory holds, and limits `missed`."""
    shares = ("p50", "p90", "p99")
    shown = {"design": name} | {
        f"{words}, {', '.join(shares)}": "; ".join(number(run[key][share], "s") for share in shares)
        for key, words in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"))
    }
    held = run["peak_used_bytes"] / run["free_bytes"]
    verdict = "the queue grows as long as they come" if run["is_stable"] is False else "holds"
    if missed:
        verdict += f"; {missed}"
    if run["n_rejected"]:
        verdict += f"; {run['n_rejected']:,} too long for its memory"
    return shown | {
        title("throughput_tokens_per_s"): number(run["throughput_tokens_per_s"], "tok/s"),
        "running": f"{run['mean_running']:.3g}",
        "memory, at most": f"{held:.0%}",
        "preempted": f"{run['n_preempted']:,}",
        "verdict": verdict,
    }


def kept_limits(row: Mapping[str, Any], wanted: Mapping[str, float]) -> str:
    """Whether waits stay short and the limits are met; which one is missed."""
    missed = [name.removesuffix("_s").upper() for name, limit in wanted.items() if (row[name] or 0.0) > limit]
    if missed:
        return f"misses the limit of {' and '.join(missed)}"
    return "holds" + (", within the limits" if wanted else "")


def best_within(answers: Mapping[str, UnderLoad], wanted: Mapping[str, float]) -> str:
    """The design that serves most requests a second within the limits, in a sentence; "" without limits."""
    most = {name: answer.most_within(wanted) or 0.0 for name, answer in answers.items()}
    if not wanted or not most:
        return ""
    name = max(most, key=lambda design: most[design])
    said = answers[name].within_text(wanted)
    return f"{name} serves most. {said}" if most[name] else said


def at(answers: Mapping[str, UnderLoad], per_s: float, wanted: Mapping[str, float]) -> pd.DataFrame:
    """Results of each design at equal request rates; `wanted` are limits in seconds by column."""
    rows = []
    for name, answer in answers.items():
        full = answer.full_requests_per_s or 0.0
        shown = {"design": name}
        if wanted:
            most = answer.most_within(wanted)
            shown["most requests/s within the limits"] = f"{most:.3g}" if most else "none"
        shown |= {"requests/s": f"{per_s:.4g}", "of the saturated rate": f"{per_s / full:.0%}"}
        row = answer.at(per_s)
        if row is None:
            last = answer.rows[-1]["requests_per_s"]
            shown["verdict"] = f"too many: waits stay short up to {last:.3g} requests/s; saturated at {full:.3g}"
            if per_s >= full:
                shown["verdict"] += f"; {int(per_s / full) + 1:,} such servers hold it"
        else:
            shown |= {
                "TPOT": number(row["tpot_s"], "s"),
                "TTFT": number(row["ttft_s"], "s"),
                "decoding": f"{row['running_requests']:.3g}",
                "verdict": kept_limits(row, wanted),
            }
        rows.append(shown)
    return pd.DataFrame(rows)


# kept as it is, not copied: it can be asked for rates between its rows
@st.cache_resource(max_entries=256, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr})
def cached_load(asked: PointRequest, name: str) -> UnderLoad:
    """The design under load. Raises DseError."""
    return load.under_load(Candidate(asked.device_spec(), asked.plan()), asked.work, name=name)


def simulated(asked: PointRequest) -> PointRequest:
    """The design as `dse simulate` takes it. Raises InputError for what is not simulated."""
    work = asked.work
    if work.prompt_chunk_tokens != 1:
        raise InputError(f"prompt-chunk = {work.prompt_chunk_tokens}: requests are simulated with 1 only: leave it out")
    least = min((n for n in (work.batch, work.max_num_seqs) if n), default=None)
    usual = {name: ASKED[name].default for name in _NOT_SIMULATED}
    return replace(asked, work=replace(work, batch=least, **usual))


@st.cache_data(max_entries=256, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr})
def cached_rate(asked: PointRequest, trace: str | None, n_requests: int) -> float:
    """Requests per second that a design holds in steady state. Raises DseError."""
    requests = arrivals.requests_of(
        arrivals.Traffic(trace=trace, rate=arrivals.FULL, n_requests=n_requests), asked.work
    )
    device, plan = asked.device_spec(), asked.plan()
    return arrivals.rate_that_holds(device, plan, asked.work, requests, scheduler_of(device, plan, asked.work))


@st.cache_data(max_entries=256, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr})
def cached_run(
    asked: PointRequest, trace: str | None, per_s: float, n_requests: int, name: str
) -> tuple[dict[str, Any], pd.DataFrame]:
    """A simulated run: its numbers, and what shares of the requests wait. Raises DseError."""
    ask = arrivals.Traffic(trace=trace, rate=str(per_s), n_requests=n_requests)
    device, plan = asked.device_spec(), asked.plan()
    result, run = simulation.serve(device, plan, asked.work, ask, scheduler_of(device, plan, asked.work))
    return result, simulation.waits_table(result, run, name)


def simulation_of(asked: PointRequest, trace: str | None, per_s: float, n_requests: int) -> SimulateServing:
    """The run as an operation. Raises InputError."""
    simulate: SimulateServing = request.operation(
        asked, SimulateServing, trace=trace, rate=per_s or None, n_requests=n_requests or None
    )
    return simulate


def unused(point: PointRequest, trace: str | None) -> tuple[str, ...]:
    """Fields of the workload that `dse simulate` refuses, since they would change nothing."""
    lengths = ("input_tokens", "output_tokens") if trace else ()
    admission = lower.with_admission(point.device_spec(), point.work).admission
    return (*lengths, "page_tokens") if admission == "reserve" else lengths


def operation(asked: PointRequest, limits: Mapping[str, float]) -> PredictLoad:
    """The question that the page answers of a design, with limits in seconds. Raises InputError."""
    predict: PredictLoad = request.operation(asked, PredictLoad, **request.limit_fields(limits))
    return predict
