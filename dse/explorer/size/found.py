"""A recommendation as the page Size keeps it: words and cells of `dse recommend`, and the curves of its servers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from dse.explorer import common_fields, request, uploads
from dse.figures import FIGURES
from dse.figures.charts import recommend
from dse.figures.drawing.chart import Chart
from dse.operations.declare import Console
from dse.operations.questions import PredictLoad
from dse.operations.recommend import Recommend
from dse.questions import load
from dse.questions.grid import AXES
from dse.questions.recommend import Recommendation
from dse.questions.search import Fleet
from dse.questions.server_design import RequestsAtRate
from dse.specs.workload import SETTINGS

#: what a design takes of a recommended server's workload
OF_SERVER = ("stack", "weights", "tp", "pp", "ep", "dp_attention", "dcp", *AXES, *SETTINGS)


@dataclass(frozen=True)
class Trace:
    """A trace of the reader's own."""

    name: str
    sha256: str
    content: bytes


@dataclass(frozen=True, kw_only=True)
class Card:
    """A deployment: its head, a cell for each label, the command that starts a server, and the server as a design."""

    head: str
    cells: tuple[str, ...]
    n_servers: int
    command: str
    not_in_command: str
    design: Mapping[str, Any]


@dataclass(frozen=True)
class Sized:
    """The answer of `dse recommend`; of a rate with `table`, its servers under load, and the `questions` of each."""

    verdict: str
    labels: tuple[str, ...]
    cards: tuple[Card, ...]
    runner_up: str
    others: tuple[Mapping[str, str], ...]
    notes: tuple[str, ...]
    chart: Chart
    table: pd.DataFrame
    questions: tuple[PredictLoad, ...] = ()


@contextmanager
def _stoppable(items: Any, label: str, length: int | None) -> Iterator[Any]:
    """Items of a search, which ends where the reader has asked for another: nothing is drawn meanwhile that would."""
    context = get_script_run_ctx()

    def each() -> Iterator[Any]:
        for item in items:
            if context is not None and context.yield_check is not None:
                context.yield_check()
            yield item

    yield each()


@st.cache_data(
    max_entries=64,
    ttl="1h",
    show_spinner="Searching devices, engines, formats and layouts…",
    show_time=True,
    hash_funcs={Recommend: repr, Trace: lambda trace: trace.sha256},
)
def cached(asked: Recommend, fields: Mapping[str, Mapping[str, Any]], model: str, trace: Trace | None) -> Sized:
    """The answer to an operation; `fields` are those of a design by device as the search calls it, `model` is what the
    command line calls the model. Raises DseError."""
    said: list[str] = []
    console = Console(progress=_stoppable, say=said.append)
    if trace is None:
        return _sized(asked.run(console), fields, model, said, lambda text: text)
    with uploads.on_disk(trace.name, trace.content) as path:
        answer = replace(asked, trace=path).run(console)
        return _sized(answer, fields, model, said, lambda text: text.replace(path, trace.name))


def _sized(
    answer: Any, fields: Mapping[str, Mapping[str, Any]], model: str, said: list[str], plain: Callable[[str], str]
) -> Sized:
    """Return the parts of an answer that the page keeps; `plain` names a file as the reader does."""
    assert isinstance(answer, Recommendation)  # no plan is checked here
    lines = answer.card_lines()
    cards = []
    for at, (head, fleet) in enumerate(answer.shown.items(), start=1):
        command = fleet.server.command
        cells = tuple(line[at] for line in lines)
        design = {**fields[fleet.server.asked], **server_fields(fleet)}
        cards.append(
            Card(
                head=head,
                cells=cells,
                n_servers=fleet.n_servers,
                command=command.line,
                not_in_command="; ".join(command.cannot),
                design=design,
            )
        )
    source = recommend.source_of(answer)
    chart, table = FIGURES["recommend"].chart(source.table, source.about), source.table
    questions: tuple[PredictLoad, ...] = ()
    demand = answer.search.demand
    if type(demand.load) is RequestsAtRate:  # those of sessions and traces are not in closed form
        table = pd.concat([_under_load(head, fleet) for head, fleet in answer.shown.items()], ignore_index=True)
        questions = tuple(_question(fleet, model, demand.limits) for fleet in answer.shown.values())
        chart = FIGURES["load"].chart(table, {"limits": demand.limits, "notes": []})
    return Sized(
        verdict=plain(f"{answer.verdict} {answer.positions_text}".rstrip()),
        labels=tuple(line[0] for line in lines),
        cards=tuple(cards),
        runner_up=plain(answer.runner_up_text()),
        others=tuple(answer.other_rows()) if answer.other_loads else (),
        notes=tuple(map(plain, (*said, *answer.notes(), *answer.small_print()))),
        chart=replace(chart, notes=()),
        table=table,
        questions=questions,
    )


def server_fields(fleet: Fleet) -> dict[str, Any]:
    """Format, engine and layout of a server as fields of a design."""
    server = fleet.server
    family, _, parameters = server.design.name.partition(":")
    work = {common_fields.WORK[name].key: getattr(server.work, name) for name in OF_SERVER}
    return {"quantizer": family, "parameters": parameters, **work}


def _under_load(head: str, fleet: Fleet) -> pd.DataFrame:
    """TPOT and TTFT of servers against the rate of all of them together."""
    table = load.under_load(fleet.server.design, fleet.server.work, name=head).table
    n = fleet.n_servers
    return table.assign(requests_per_s=n * table["requests_per_s"], tokens_per_s=n * table["tokens_per_s"], n_servers=n)


def _question(fleet: Fleet, model: str, limits: Mapping[str, float]) -> PredictLoad:
    """One of the servers under load, as an operation."""
    server = fleet.server
    most: dict[str, Any] = {**request.limit_fields(limits)}
    return PredictLoad(device=server.asked, model=model, quantizer=server.design.name, workload=server.work, **most)
