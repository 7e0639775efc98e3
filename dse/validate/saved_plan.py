"""A recommendation as `dse recommend --out` keeps it, and a log or benchmark of its server beside what it promised.

Both are compared as `dse check-log` compares them, with the design of the plan in place of what they say.
"""

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from dse import quantizers
from dse.core import specfile
from dse.core.answer import Answer
from dse.core.columns import aligned
from dse.core.documents import json_text
from dse.core.errors import InputError, SpecError, clean, show
from dse.core.version import VERSION
from dse.model import engine, uncertainty
from dse.quantizers import QuantizerSpec
from dse.questions import layouts
from dse.questions.recommend import Recommendation, told
from dse.questions.server_design import RequestsAtOnce, RequestsAtRate
from dse.specs import catalog, device_and_model, engines, server_flags
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.releases import release_of
from dse.specs.workload import ASKED, Workload
from dse.validate import bench_check, bench_result, check_log, startup_log
from dse.validate.bench_check import BenchCheck
from dse.validate.check_log import LOAD, STEP, TOKENS, LogCheck, LogTerm, shown
from dse.validate.speed import JudgedSpeed
from dse.validate.startup_log import StartupLog

if TYPE_CHECKING:
    import pandas as pd

#: name of the file, what it says it is, and the version of its fields
NAME = "plan.json"
KIND: Literal["plan of a deployment"] = "plan of a deployment"
FIRST_TOKEN = "time to the first token"
#: what a benchmark calls times -> results, and their names here
_TIMES = {"tpot": ("tpot_s", STEP), "ttft": ("ttft_s", FIRST_TOKEN)}
#: a rate and mean lengths of a benchmark that differ by less are the plan's: of drawn lengths means are never exact
_SAME_LOAD = 0.02
_IF_EMPTY = "`dse recommend ... --out DIR` writes one"
_Name = Annotated[str, Field(min_length=1, max_length=1000)]


class PromisedValue(BaseModel):
    """A predicted value and its 80 % interval, in SI base units."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    value: Annotated[float, Field(ge=0)]
    low: Annotated[float, Field(ge=0)]
    high: Annotated[float, Field(ge=0)]

    def beside(self, name: str, unit: str, measured: float) -> LogTerm:
        """A measured value beside it."""
        return LogTerm(name, unit, measured, self.value, (self.low, self.high))


class SavedPlan(BaseModel):
    """The best deployment of a recommendation: what was asked, one of its servers, and what was promised of that."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    kind: Literal["plan of a deployment"] = KIND
    version: Literal[1] = 1
    #: the version of the tool that predicted it
    dse: Annotated[str, Field(min_length=1, max_length=40)]
    #: the command, the question in words, load, limits and objective
    asked: dict[str, Any]
    #: the card, by names
    recommended: dict[str, Any]
    device: _Name
    model: _Name
    quantizer: _Name
    #: fields of a server that are not at their defaults
    workload: dict[str, str | int | float | bool]
    #: the load of a server: requests a second, or at all times
    requests_per_s: Annotated[float, Field(gt=0)] | None = None
    requests: Annotated[int, Field(ge=1)] | None = None
    #: of a server under its load
    promised: dict[str, PromisedValue]


class PlannedServer(NamedTuple):
    """A plan as read from its file: one of the servers that it recommends."""

    path: str
    plan: SavedPlan
    device: HardwareSpec
    model: ModelSpec
    kind: QuantizerSpec
    work: Workload


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanCheck(Answer):
    """A log or a benchmark beside the plan of its server."""

    plan: SavedPlan
    #: measured values, and the plan's with their intervals
    terms: tuple[LogTerm, ...]
    #: the comparison behind it
    check: LogCheck | BenchCheck
    next_step: str
    #: settings of the server that are not those of the plan, in words
    differs: tuple[str, ...] = ()
    #: whether a benchmark has another load than the plan, where times are predicted anew
    is_other_load: bool = False

    @property
    def outside(self) -> list[LogTerm]:
        """The terms whose measured value lies outside the interval."""
        return [term for term in self.terms if not term.is_inside]

    @cached_property
    def table(self) -> "pd.DataFrame":
        """A row a term, in SI base units."""
        import pandas as pd

        return pd.DataFrame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "name": term.name,
                "unit": term.unit,
                "measured": term.log,
                "planned": term.ours,
                **{name: term.row()[name] for name in ("low", "high", "share")},
                "inside": term.is_inside,
            }
            for term in self.terms
        ]

    @property
    def says(self) -> str:
        """The verdict in a sentence."""
        if not self.terms:
            return "Nothing that the plan promises is measured here."
        if not self.outside:
            return "As planned: all that is measured lies inside its 80 % interval."
        return f"Not as planned: {' and '.join(term.name for term in self.outside)} outside the 80 % interval."

    def text(self) -> str:
        """The plan, the terms, the verdict and the next step."""
        question = clean(str(self.plan.asked.get("question", self.plan.model)), 300)
        head = f"Plan of dse {clean(self.plan.dse, 40)}: {question}"
        rows = [("", "measured", "planned", "8 of 10 between", "inside")]
        for term in self.terms:
            low, high = (shown(term.unit, end) for end in term.ends or ())
            inside = "yes" if term.is_inside else "no"
            rows.append(
                (term.name, shown(term.unit, term.log), shown(term.unit, term.ours), f"{low} and {high}", inside)
            )
        table = ["", *aligned(rows, left=1), ""] if self.terms else [""]
        notes = [f"The server is not the planned one: {'; '.join(self.differs)}."] if self.differs else []
        if self.is_other_load:
            notes.append("At another load than the plan's: times are predicted anew for this one.")
        if self.plan.dse != VERSION:
            notes.append(f"The plan is of another version: this is dse {VERSION}.")
        behind = [self.check.says, *(self.check.tries_text() if isinstance(self.check, LogCheck) else [])]
        return "\n".join(
            [head, *table, self.says, *notes, *filter(None, behind), f"Next: {clean(self.next_step, 2000)}"]
        )

    def to_json(self) -> dict[str, Any]:
        """All of it, in SI base units; share is a share of the plan's."""
        return {
            "terms": self._rows(),
            "differs": list(self.differs),
            "is_other_load": self.is_other_load,
            "says": self.says,
            "next": self.next_step,
            "check": self.check.to_json(),
        }


def content(answer: Recommendation, model: str, command: str) -> bytes:
    """The file of a recommendation; `model` is as a command takes it, `command` what asked for it."""
    first, demand = answer.first, answer.search.demand
    at_rate = isinstance(demand.load, RequestsAtRate)
    server, results = first.server, first.results
    ends = uncertainty.as_numbers(results)
    names = ("kv_pool_tokens", "tpot_s", "ttft_s", *(() if at_rate else (uncertainty.RATE,)))
    promised = {name: (results[name], *ends[name]) for name in names if results[name] is not None and name in ends}
    if at_rate:
        full = server.traffic.full.requests_per_s
        interval = uncertainty.of_column(engine.speed(server.traffic.point), uncertainty.RATE)
        promised["full_requests_per_s"] = full, full * interval.low, full * interval.high
    keys = ("value", "low", "high")
    plan = {
        "kind": KIND,
        "version": 1,
        "dse": VERSION,
        "asked": {
            "command": command,
            "question": answer.question,
            **demand.load.to_json(),
            "limits_s": demand.limits,
            "objective": answer.search.objective,
        },
        "recommended": told(first),
        "device": server.asked,
        "model": model,
        "quantizer": server.design.name,
        "workload": {
            name: value for name, form in ASKED.items() if (value := getattr(server.work, name)) != form.default
        },
        "requests_per_s": first.each if at_rate else None,
        "requests": int(first.each) if isinstance(demand.load, RequestsAtOnce) else None,
        "promised": {
            name: dict(zip(keys, values, strict=True))
            for name, values in promised.items()
            if all(map(math.isfinite, values))
        },
    }
    return (json_text(plan, indent=2) + "\n").encode()


def read(path: str) -> PlannedServer:
    """The plan in a file, and its server. Raises InputError, in one line, for a file that is none or is damaged."""
    document = specfile.read(path, _IF_EMPTY)
    if document.data.get("kind") != KIND:
        raise InputError(f"check = {show(path)}: is no plan of a deployment: {_IF_EMPTY}")
    try:
        plan: SavedPlan = device_and_model.load(document, SavedPlan)
    except SpecError as error:
        raise InputError(f"{error.lines()[0]}: {_IF_EMPTY}") from None
    for name, value in plan.workload.items():
        is_text = name in ASKED and ASKED[name].kind.sort == "text"
        if name not in ASKED or name == "calibrated" or is_text != isinstance(value, str):
            place = document.where(("workload", name))
            raise InputError(f"{place}: {name} = {show(value)}: is no field of a server: {_IF_EMPTY}")
    try:
        work, kind = Workload(**plan.workload), quantizers.parse(plan.quantizer)  # type: ignore[arg-type]
        device, model = catalog.device(plan.device), catalog.model(plan.model)
        return PlannedServer(path=path, plan=plan, device=device, model=model, kind=kind, work=work)
    except InputError as error:
        raise InputError(f"{path}: {error.lines()[0]}") from None


def check(path: str, text: str, source: str) -> PlanCheck:
    """Compare a start-up log, or the result of a benchmark, of one server with the plan in a file.

    Raises InputError for a plan that is damaged, and for a log or result of another model or device.
    """
    planned = read(path)
    if bench_result.is_result(content := text.encode()):
        return _of_bench(planned, content, source)
    return _of_log(planned, startup_log.read(text), source)


def _refuse_other_model(name: str, model: ModelSpec) -> None:
    """Raises InputError for the name of another shipped model."""
    if name and catalog.shipped_model_file(name) and (said := catalog.model(name).name) != model.name:
        raise InputError(f"model = {show(said)}: is measured, and the plan is of {model.name}: give its own plan")


def _of_log(planned: PlannedServer, log: StartupLog, source: str) -> PlanCheck:
    """A start-up log beside the plan: the tokens of its pool, and in which settings the server is another."""
    path, plan, device, model, kind, _ = planned
    _refuse_other_model(log.model, model)
    differs = tuple(_differences(planned, log))
    given = {name: value for name, value in plan.workload.items() if name not in LOAD}
    found = check_log.check(log, device, model, (kind, kind), given, Path(source).name, (plan.device, plan.model))
    terms: tuple[LogTerm, ...] = ()
    if log.kv_tokens is not None and (promised := plan.promised.get("kv_pool_tokens")):
        terms = (promised.beside(TOKENS, "token", log.kv_tokens),)
    command = plan.recommended.get("command")
    if terms and terms[0].is_inside:
        then = f"measure it under its load, then `{shlex.join(['dse', 'recommend', '--check', path])} RESULT.json`"
    elif differs and command:
        then = f"start it as planned, or ask for a plan of what runs: {command}"
    else:
        then = _calibrate(planned, ["RESULT1.json", "RESULT2.json"], ["--log", source])
    return PlanCheck(plan=plan, terms=terms, differs=differs, check=found, next_step=then)


def _differences(planned: PlannedServer, log: StartupLog) -> Iterator[str]:
    """Settings of a log that are not those of the plan, or that its command does not have, in words."""
    plan, work = planned.plan, planned.work
    asked = {**plan.workload, **server_flags.read(str(plan.recommended.get("command", ""))).values}
    asked |= {name: getattr(work, name) for name in layouts.SPLIT}
    asked["quantizer"] = "fp16" if planned.kind.family.exact else planned.kind.name
    said = {name: getattr(log, name, None) for name in layouts.SPLIT}
    for name, theirs in {**said, **check_log.fields_of(log, planned.device, planned.model)}.items():
        ours = asked.get(name)
        if name == "stack" and "@" not in str(ours):  # the plan takes any release
            theirs = str(theirs).partition("@")[0]
        if None not in (ours, theirs) and ours != theirs:
            yield f"{name} {theirs}, planned {ours}"
    newest = next(iter(engines.releases().get(log.engine, {})), "")
    if work.stack == log.engine and log.release and newest and release_of(log.release) != release_of(newest):
        yield f"release {log.release}, planned the newest ({newest})"


def _of_bench(planned: PlannedServer, content: bytes, source: str) -> PlanCheck:
    """A benchmark beside the plan: its times, predicted anew for a run at another load."""
    plan, work = planned.plan, planned.work
    for row in bench_result.rows(source, content):
        _refuse_other_model(row.get("model", ""), planned.model)
    stack, _, release = (work.stack or "").partition("@")
    columns = {"device": plan.device, "model": plan.model, "kv_dtype": plan.quantizer, "weights": work.weights}
    columns |= {name: getattr(work, name) for name in ("tp", "pp", "ep", "dp_attention")}
    columns |= {"engine": stack, "version": release}
    given = {name: str(value) for name, value in columns.items() if value not in (None, "")}
    left = (*LOAD, *columns, "stack")
    found = bench_check.check(source, content, given, {n: v for n, v in plan.workload.items() if n not in left})
    others = [not _is_planned_load(run, planned) for run in found.runs]
    terms = []
    for run, is_other in zip(found.runs, others, strict=True):
        of_run = f" of run {run.row.id}" if len(found.runs) > 1 else ""
        for value in run.values:
            column, name = _TIMES.get(value.what, ("", ""))
            if name and value.measured:
                promised = PromisedValue(value=value.ours, low=value.low, high=value.high)
                # first tokens of a loop depend on its rounds: in the first all requests come at once
                if not is_other and (run.row.kind == "rate" or column == "tpot_s"):
                    promised = plan.promised.get(column, promised)
                terms.append(promised.beside(name + of_run, "s", value.measured))
    then = _calibrate(planned, [source, "RESULT_AT_ANOTHER_LOAD.json"], [])
    if all(term.is_inside for term in terms):
        then = f"nothing to mend; to be surer: {then}"
    return PlanCheck(plan=plan, terms=tuple(terms), is_other_load=any(others), check=found, next_step=then)


def _is_planned_load(run: JudgedSpeed, planned: PlannedServer) -> bool:
    """Whether a run has the load of the plan: requests of its lengths at its rate, or as many at all times."""
    row, plan, work = run.row, planned.plan, planned.work
    assert row.work is not None
    pairs = [(getattr(row.work, name), getattr(work, name)) for name in ("input_tokens", "output_tokens")]
    if row.kind == "rate" and plan.requests_per_s:
        pairs.append((row.requests_per_s, plan.requests_per_s))
    elif row.kind != "closed" or row.work.batch != plan.requests:
        return False
    return all(math.isclose(*pair, rel_tol=_SAME_LOAD) for pair in pairs)


def _calibrate(planned: PlannedServer, results: list[str], more: list[str]) -> str:
    """The command that corrects predictions of this server by what was measured of it, and what takes its file."""
    plan, work = planned.plan, planned.work
    n = "" if work.n_devices == 1 or plan.device.endswith(".toml") else f"{work.n_devices}x"
    options = ["--device", f"{n}{plan.device}", "--model", plan.model]
    options += ["--weights", work.weights] if work.weights else []
    options += ["--stack", work.stack] if work.stack else []
    words = ["dse", "calibrate", "server", *results, *options, *more, "--out", "server.toml"]
    return f"`{shlex.join(words)}`; `dse ask load ... --calibrated server.toml` then says what it holds"
