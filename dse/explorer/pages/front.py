"""The front page: vary the current design, sweep in a thread, see the designs that no other beats.

Axes, objectives and conditions are texts as people write them; the same can be had as a sweep file.
"""

import difflib
import json
import re
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from dse import quantizers
from dse.core import units
from dse.core.errors import DseError, InputError, did_you_mean, show
from dse.explorer import cards, figure, names, request, sidebar, state, tray, uploads, widgets
from dse.explorer import common_fields as shared
from dse.explorer import downloads as beside
from dse.explorer.bench import Bench
from dse.explorer.downloads import MadeBy
from dse.explorer.fields import Field
from dse.explorer.fragments import part
from dse.figures.charts import design_front
from dse.figures.drawing.chart import Chart
from dse.figures.plot.answer import source_of
from dse.model import results as point_names
from dse.model.results import RESULT_UNITS
from dse.quantizers import layered
from dse.specs import catalog
from dse.specs.measurements import Bits
from dse.specs.workload import ASKED, Workload
from dse.sweep import axes as sweep_axes
from dse.sweep import conditions as sweep_where
from dse.sweep import points as sweep_points
from dse.sweep import spec as sweep_spec
from dse.sweep.axes import Axis
from dse.sweep.pareto import Sense
from dse.sweep.pareto import designs as pareto_designs
from dse.sweep.pareto import limits as pareto_limits
from dse.sweep.pareto import stream as pareto_stream
from dse.sweep.pareto.designs import DesignFront
from dse.sweep.pareto.limits import Limit
from dse.sweep.parts import Stopped
from dse.sweep.spec import Sweep

PAGE = "front"
#: points that the page evaluates; more is for the command line
MAX_POINTS = 1_000_000
#: sweeps of so many points start by themselves, with all of their results kept in memory
AUTO_POINTS = 20_000
#: values of one axis
MAX_VALUES = 10_000
FILE, FOLDER = "sweep.toml", "sweep-result"
_WHOLE = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?(e[-+]?[0-9]{1,2})?", re.ASCII)
_NUMBER_AND_UNIT = re.compile(r"([-+.0-9]*(?:e[-+]?[0-9]+)?)\s*(.*)", re.ASCII | re.DOTALL)
_WAYS = ("step", "factor", "count")
#: columns of numbers that are chosen, not found
COUNTED = tuple(sorted(pareto_designs.COUNTS))
_LIMITS = (
    "Results by their words above, numbers with their unit, semicolons between: Error of the attention output = 20 %; "
    "Decode step = 50 ms. Names of columns take base units too: measured_error = 0.2."
)
#: from this share of common letters on, a name is taken for another that is misspelled
_ALIKE = 0.85
_HOW = "Values with commas between, or a range: `1 to 256 factor 2`, `16 to 64 step 16`, `1 TB/s to 4 TB/s count 7`."


def values_of(text: str) -> Any:
    """The values of an axis as a sweep file holds them: a list, or a range. Raises InputError for a range cut short."""
    low, is_range, rest = text.partition(" to ")
    if not is_range:
        return [_value(item) for item in text.split(",") if item.strip()]
    words = rest.split()
    way = next((word for word in words if word in _WAYS), "")
    at = words.index(way) if way else len(words)
    tail = words[at + 1 :]
    if not way or not words[:at] or len(tail) not in (1, 2) or tail[1:] not in ([], ["log"]):
        raise InputError(f"{show(text.strip())}: a range is `1 to 256 factor 2`: to, then step, factor or count")
    found = {"from": _value(low), "to": _value(" ".join(words[:at])), way: _value(tail[0])}
    return {**found, "scale": "log"} if tail[1:] else found


def _value(text: str) -> Any:
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


@lru_cache(maxsize=512)
def _problem(name: str, text: str) -> str:
    """What is wrong with the values of an axis; kept, since a field is checked again and again."""
    try:
        axis = sweep_axes.build(name, values_of(text))
    except sweep_axes.AxisError as error:
        return f"{name}: {error}"
    except InputError as error:
        return str(error)
    if len(axis) > MAX_VALUES:
        return f"{name}: has {len(axis):,} values: at most {MAX_VALUES:,} here: `dse sweep` takes more"
    return ""


def _axis(name: str) -> Any:
    def check(text: str, values: Mapping[str, Any]) -> None:
        if wrong := _problem(name, text):
            raise InputError(wrong)

    return check


def more_axes(text: str) -> list[tuple[str, str]]:
    """Axes of the field "more axes": `NAME = VALUES; NAME = VALUES`. Raises InputError."""
    found: list[tuple[str, str]] = []
    for item in text.split(";"):
        name, equals, raw = (piece.strip() for piece in item.partition("="))
        if not item.strip():
            continue
        if not equals:
            raise InputError(f"{show(item.strip())}: must be NAME = VALUES, such as weights_bits = 16, 8")
        if name in _OWN:
            raise InputError(f"{name}: has a field of its own")
        if name not in sweep_axes.known_axes():
            raise InputError(f"unknown axis {show(name)}: {did_you_mean(name, sweep_axes.known_axes())}")
        if name in sweep_axes.QUANTIZER_AXES and layered.PREFIX in raw.lower():
            raise InputError(f"{name}: a plan by layer is loaded below: no file is read from here")
        if name in dict(found):
            raise InputError(f"{name}: is given twice: leave one")
        found.append((name, raw))
    return found


def _more(text: str, values: Mapping[str, Any]) -> None:
    for name, raw in more_axes(text):
        _axis(name)(raw, values)


def limits_of(text: str, kind: str) -> list[str]:
    """Limits of a field, `NAME = NUMBER UNIT; ...`, as the command line takes them: in base units.

    A column goes by its words or its name. A number without a unit is in base units behind a name, as in conditions;
    behind words it needs its unit where people see another than the base unit. Raises InputError.
    """
    found, known = [], (*objective_names(), *COUNTED)
    for item in filter(None, map(str.strip, text.split(";"))):
        said, equals, number = (piece.strip() for piece in item.partition("="))
        name = names.column(said, known)
        if not equals or name not in known:
            raise InputError(f"{kind} {show(item)}: write NAME = NUMBER UNIT; ..., such as {_nearest(item, known)}")
        base = RESULT_UNITS.get(name, "B/s" if name.endswith("bandwidth") else "B")
        shown, size = point_names.shown_unit(name, base)
        sizes = {base: 1.0, shown: size, **{each: units.to_base(1, each) for each in units.units_of(base)}}
        value, unit = _NUMBER_AND_UNIT.match(number).groups()  # type: ignore[union-attr]  # it matches any text
        if not _NUMBER.fullmatch(value) or (unit and unit not in sizes):
            among = ", ".join(filter(None, sizes))
            raise InputError(f"{kind} {said} = {show(number)}: must be a number, its unit one of {among}")
        if not unit and size != 1 and said != name:
            raise InputError(f"{said} = {value}: say the unit, for example {value} {shown}")
        found.append(f"{name}={float(value) * sizes[unit]:.12g}" if unit else f"{name}={value}")
    return found


def _nearest(item: str, known: Sequence[str]) -> str:
    """The words of the columns that a limit may mean: those that hold what it names, else those spelled like it."""
    said = re.split("[<>=]", item)[0].strip().lower()
    words = {spelled: names.words(name) for name in known for spelled in (name, names.words(name).lower())}
    near = [words[spelled] for spelled in words if said and said in words[spelled].lower()]
    near = near or [words[spelled] for spelled in difflib.get_close_matches(said, words, cutoff=_ALIKE)]
    return " or ".join(list(dict.fromkeys(near))[:3]) or "Decode step = 50 ms"


def _limited(kind: str) -> Any:
    def check(text: str, values: Mapping[str, Any]) -> None:
        limits_of(text, kind)

    return check


def objective_names() -> list[str]:
    """Columns that can be objectives."""
    return [*(name for name, unit in RESULT_UNITS.items() if unit), "memory_bandwidth", "memory_capacity"]


DEVICES = Field(
    "front_devices",
    "Devices",
    "choices",
    [],
    choices=lambda: [*catalog.device_files(), *uploads.names("device")],
    placeholder="the current design's",
    help="Shipped devices, and files of your own.",
)
MODELS = Field(
    "front_models",
    "Language models",
    "choices",
    [],
    choices=lambda: [*catalog.model_files(), *uploads.names("model")],
    placeholder="the current design's",
    help="Shipped models, and files of your own.",
)
QUANTIZERS = Field(
    "front_quantizers",
    "KV formats",
    "choices",
    ["fp16", "fp8", "int8_per_token_head", "int4_per_token_head", "kivi"],
    choices=lambda: [*quantizers.FAMILIES, *uploads.names("plan")],
    help="Their parameters are varied under More axes: kivi.bits = 2, 4.",
)
BATCHES = Field(
    "front_batches",
    "Batches (requests)",
    "text",
    "1 to 256 factor 2",
    check=_axis("batch"),
    help=f"Requests that are served together. {_HOW}",
)
TPS = Field(
    "front_tps",
    "Tensor parallel (devices)",
    "text",
    "1, 2, 4, 8",
    check=_axis("tp"),
    placeholder="as the design",
    may_be_empty=True,
    help=f"Devices that every layer is split over. {_HOW}",
)
INPUTS = Field(
    "front_inputs",
    "Prompts (tokens)",
    "text",
    "",
    check=_axis("input_tokens"),
    placeholder="as the workload",
    help=f"Left open: the workload's, since shorter prompts always win. {_HOW}",
)
OUTPUTS = Field(
    "front_outputs",
    "Generated (tokens)",
    "text",
    "",
    check=_axis("output_tokens"),
    placeholder="as the workload",
    help=_HOW,
)
BANDWIDTHS = Field(
    "front_bandwidths",
    "Memory bandwidths",
    "text",
    "",
    check=_axis("memory_bandwidth"),
    placeholder="as each device",
    help=f"In place of the devices' own. {_HOW}",
)
CAPACITIES = Field(
    "front_capacities",
    "Memory capacities",
    "text",
    "",
    check=_axis("memory_capacity"),
    placeholder="as each device",
    help="In place of the devices' own: `80 GB, 160 GB`, or a range as for bandwidths.",
)
MORE = Field(
    "front_axes",
    "More axes",
    "text",
    "",
    check=_more,
    placeholder="weights_bits = 16, 8; kivi.bits = 2, 4",
    help="Anything else that a sweep can vary, with semicolons between: admission, tokens, numbers of a device, "
    "parameters of a quantizer.",
)
WHERE = Field(
    "front_where",
    "Only designs where",
    "text",
    "",
    placeholder="batch * input_tokens <= 262144",
    help="A condition on the axes, as in a sweep file: names, numbers, quoted names, comparisons, and, or, not, in.",
)
MAXIMIZE = Field(
    "front_maximize",
    "More is better",
    "choices",
    ["throughput_tokens_per_s"],
    choices=objective_names,
    titles=names.titled,
    help="Results of which a design should have much.",
)
MINIMIZE = Field(
    "front_minimize",
    "Less is better",
    "choices",
    ["measured_error"],
    choices=objective_names,
    titles=names.titled,
    help="Results of which a design should have little: time of a step, energy, cost, bits.",
)
BY = Field(
    "front_by",
    "A front for each",
    "choices",
    ["tp"],
    choices=lambda: ["tp", "device", "model", "quantizer", "batch", "input_tokens", "output_tokens"],
    titles=names.words,
    placeholder="one front of all",
    help="Designs compete only with those that have the same values here.",
)
AT_MOST = Field(
    "front_at_most",
    "At most",
    "text",
    "Time per output token, steady server = 100 ms",
    check=_limited("at most"),
    placeholder="Decode step = 50 ms",
    may_be_empty=True,
    help=f"Only designs that keep to it compete. {_LIMITS}",
)
AT_LEAST = Field(
    "front_at_least",
    "At least",
    "text",
    "",
    check=_limited("at least"),
    placeholder="Throughput = 1000",
    help=f"Only designs that reach it compete. {_LIMITS}",
)
#: text fields that give an axis each
_TEXTS = {
    "batch": BATCHES,
    "tp": TPS,
    "input_tokens": INPUTS,
    "output_tokens": OUTPUTS,
    "memory_bandwidth": BANDWIDTHS,
    "memory_capacity": CAPACITIES,
}
_OWN = {"device", "model", "quantizer", *_TEXTS}
#: of the sweep
AXES = (QUANTIZERS, BATCHES, TPS, DEVICES, MODELS, INPUTS, OUTPUTS, BANDWIDTHS, CAPACITIES, MORE, WHERE)
OBJECTIVES = (MAXIMIZE, MINIMIZE, BY, AT_MOST, AT_LEAST)
FILTER = Field(
    "front_filter",
    "Of the front show only",
    "text",
    "",
    placeholder='quantizer == "oaken" and batch >= 16',
    help="A condition on any column of the table below, in base units (s, B, B/s): decode_step_s <= 0.05.",
)
#: what the page asks for beside the designs and the workload
FIELDS = (*OBJECTIVES, *AXES, FILTER)
#: those that stand open, and the others
_SHOWN = (QUANTIZERS, BATCHES, TPS, MAXIMIZE, MINIMIZE, AT_MOST)
_HIDDEN_FIELDS = tuple(field for field in (*OBJECTIVES, *AXES) if field not in _SHOWN)


@dataclass(frozen=True)
class Asked:
    """A sweep, the objectives of its front and limits to it; axes in the order of the table, as texts.

    `files` are name and text of uploads by their names in the lists, so that this is all that a front depends on.
    """

    devices: tuple[str, ...]
    models: tuple[str, ...]
    quantizers: tuple[str, ...]
    axes: tuple[tuple[str, str], ...]
    where: str
    maximize: tuple[str, ...]
    minimize: tuple[str, ...]
    by: tuple[str, ...]
    at_most: tuple[str, ...] = ()
    at_least: tuple[str, ...] = ()
    files: tuple[tuple[str, tuple[str, str]], ...] = ()
    measurements: str = uploads.SHIPPED
    measurements_file: uploads.Upload | None = None

    @property
    def grid(self) -> tuple[Any, ...]:
        """What the rows of the sweep depend on: all but objectives and limits."""
        chosen = (self.devices, self.models, self.quantizers, self.axes, self.where, self.files)
        return (*chosen, self.measurements, self.measurements_file)

    def limits(self) -> tuple[Limit, ...]:
        """The limits. Raises InputError."""
        return pareto_limits.parse(self.at_most, self.at_least)

    def objectives(self) -> dict[str, Sense]:
        """Objectives by name. Raises InputError for none, or one given twice."""
        return pareto_designs.objectives_of(self.maximize, self.minimize)

    def document(self) -> dict[str, Any]:
        """The sweep as a file holds it; uploads by the names of their files. Raises InputError."""
        files = dict(self.files)
        axes = {
            "device": [files[name][0] if name in files else name for name in self.devices],
            "model": [files[name][0] if name in files else name for name in self.models],
            "quantizer": [layered.PREFIX + files[name][0] if name in files else name for name in self.quantizers],
        }
        found: dict[str, Any] = {"axes": {**axes, **{name: values_of(text) for name, text in self.axes}}}
        if self.where.strip():
            found["where"] = [self.where.strip()]
        if self.measurements_file:
            found["measurements"] = self.measurements_file.name
        wanted = (*self.objectives(), *(limit.column for limit in self.limits()))
        results = [name for name in wanted if name in RESULT_UNITS]
        return {**found, "keep": list(dict.fromkeys((*sweep_spec.DEFAULT_KEEP, *results)))}

    def sweep(self) -> Sweep:
        """The sweep, ready to run. Raises InputError, SpecError, LimitError."""
        return _sweep(self)


@lru_cache(maxsize=16)
def _sweep(asked: Asked) -> Sweep:
    document, files = asked.document(), dict(asked.files)
    readers: dict[str, Any] = {
        "device": lambda name: uploads.device(name, file=files[name]),
        "model": lambda name: uploads.model(name, files[name]),
        "quantizer": lambda name: uploads.quantizer(name, files[name]),
    }
    chosen = (("device", asked.devices), ("model", asked.models), ("quantizer", asked.quantizers))
    for axis, labels in chosen:
        for i, name in enumerate(labels):
            if name in files:
                document["axes"][axis][i] = readers[axis](name)
    document.pop("measurements", None)  # a name of the session's, not of a file here
    own = asked.measurements_file
    sweep = replace(sweep_spec.from_dict(document), bits=Bits(file=own.measured if own else None))
    for limit in asked.limits():
        if limit.column not in sweep.columns:
            raise InputError(f"{limit.column}: {did_you_mean(limit.column, sweep.columns)}")
    return sweep


def of(values: Mapping[str, Any]) -> Asked:
    """What the page's fields ask for; what they leave open is the current design's, or the workload's.

    Raises InputError.
    """
    own = request.of(values)
    devices = tuple(values[DEVICES.key]) or (own.device,)
    models = tuple(values[MODELS.key]) or (own.model,)
    chosen = (*devices, *models, *values[QUANTIZERS.key])
    axes = [(name, values[field.key]) for name, field in _TEXTS.items() if values[field.key].strip()]
    axes += more_axes(values[MORE.key])
    if not values[DEVICES.key]:  # the device with its changed numbers
        given = dict(axes)
        axes += [each for each in sidebar.edits_by_field(own.edits).items() if each[0] not in given]
    given = dict(axes)
    axes += [
        (name, _text(value))
        for name in ASKED
        if name not in given and (value := getattr(own.work, name)) != ASKED[name].default
    ]
    limits = [f"{name} = {_limit(values, name)}" for name in cards.LIMITS if _limit(values, name)]
    at_most = "; ".join([values[AT_MOST.key], *(each for each in limits if each.split()[0] not in values[AT_MOST.key])])
    return Asked(
        devices,
        models,
        tuple(values[QUANTIZERS.key]),
        tuple(axes),
        values[WHERE.key],
        tuple(values[MAXIMIZE.key]),
        tuple(values[MINIMIZE.key]),
        tuple(values[BY.key]),
        tuple(limits_of(at_most, "at most")),
        tuple(limits_of(values[AT_LEAST.key], "at least")),
        tuple((name, file) for name in chosen if (file := uploads.text_of(name))[1]),
        own.measurements,
        own.measurements_file,
    )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _limit(values: Mapping[str, Any], name: str) -> str:
    """The workload's limit of a time, in seconds as a text; empty where there is none."""
    field, per_second = cards.LIMITS[name]
    return f"{values[field.key] / per_second:.12g}" if values[field.key] else ""


#: sweeps that run at once, of all sessions together; others wait their turn
MAX_RUNNING = 2
#: seconds that a session may be disconnected before its sweep ends: a reload of the page takes less
GRACE_S = 10.0
#: seconds between two tries for a place
_TRY_S = 0.2
_places = threading.BoundedSemaphore(MAX_RUNNING)


class Job:
    """The front of a sweep, being found in a thread of its own: counted, cancelled, gone when nobody waits any more.

    `front` or `problem` is there once `finished`; neither where it was stopped.

    `alive` says whether somebody still waits; `whole` has the sweep's rows where they are known already.
    """

    def __init__(
        self, asked: Asked, sweep: Sweep, alive: Callable[[], bool] = lambda: True, whole: pd.DataFrame | None = None
    ) -> None:
        self.asked, self.sweep, self.n_points, self.n_done = asked, sweep, sweep.n_points, 0
        self.whole = whole
        self._parts: list[pd.DataFrame] = []
        every = (name for name, unit in RESULT_UNITS.items() if unit and name not in sweep.axis)
        self._wide = replace(sweep, keep=tuple(dict.fromkeys((*sweep.keep, *every))))
        self._unwanted = [name for name in self._wide.keep if name not in sweep.keep]
        self.front: DesignFront | None = None
        self.problem: DseError | None = None
        self._alive, self._stop = alive, threading.Event()
        self._begun = self._seen = time.monotonic()
        self.thread = threading.Thread(target=self._run, name="front sweep", daemon=True)
        self.thread.start()

    @property
    def finished(self) -> bool:
        """True once the thread has ended, whatever it has found, or was told to."""
        return self._stop.is_set() or not self.thread.is_alive()

    @property
    def taken_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._begun

    def cancel(self) -> None:
        """Ask the thread to end; returns at once."""
        self._stop.set()

    def _check(self) -> None:
        now = time.monotonic()
        if self._alive():
            self._seen = now
        if self._stop.is_set() or now - self._seen > GRACE_S:
            raise Stopped

    def _count(self, n: int) -> None:
        self.n_done += n

    def _rows(self, start: int, end: int) -> pd.DataFrame:
        """A stretch of the sweep, kept where it is short: a changed limit or objective evaluates nothing anew."""
        if self.whole is not None:
            return self.whole.iloc[start:end].reset_index(drop=True).drop(columns=self._unwanted)
        if self.n_points > AUTO_POINTS:
            return pareto_stream.stretch(self.sweep, start, end, self._check)
        rows = pareto_stream.stretch(self._wide, start, end, self._check)
        self._parts.append(rows)
        return rows.drop(columns=self._unwanted)

    def _run(self) -> None:
        try:
            while not _places.acquire(timeout=_TRY_S):
                self._check()
            try:
                found = pareto_stream.front_of(
                    self.sweep,
                    self.asked.objectives(),
                    self.asked.by,
                    self._check,
                    self._count,
                    self.asked.limits(),
                    self._rows,
                )
                if self._parts:
                    self.whole, self._parts = pd.concat(self._parts, ignore_index=True), []
                self.front = found
            finally:
                _places.release()
        except Stopped:
            pass
        except DseError as error:
            self.problem = error


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
        for i, field in enumerate((*_SHOWN, *_HIDDEN_FIELDS)):
            if i == len(_SHOWN):
                places = st.expander("More axes and limits").columns(3)
            with places[i % 3]:
                widgets.draw(field)
    try:
        asked = of(values)
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
        if st.button("Sweep", type="primary", key="front start"):
            start(asked, sweep)
            st.rerun()
    elif not job.finished:
        show_progress()
    elif job.problem is not None:
        widgets.problem(job.problem)
    elif job.front is None:
        st.text("The sweep was stopped.")
        if st.button("Sweep again", type="primary", key="front start"):
            start(asked, sweep)
            st.rerun()
    else:
        shown = show_front(job, bench)
        show_file(asked)
        if shown is not None:
            show_table(shown)  # last: the keys of a table, Tab among them, move among its cells
        return
    show_file(asked)


def job_of(asked: Asked, sweep: Sweep) -> Job | None:
    """The session's sweep of what is asked, begun here where it is short; another one ends."""
    job: Job | None = st.session_state.get(_JOB)
    whole = None
    if job is not None and job.asked != asked:
        whole = job.whole if job.asked.grid == asked.grid else None
        drop()
        job = None
    if job is None and sweep.n_points <= AUTO_POINTS:
        job = start(asked, sweep, whole)
        job.thread.join(FIRST_LOOK_S if whole is None else PATIENCE_S)
    return job


def start(asked: Asked, sweep: Sweep, whole: pd.DataFrame | None = None) -> Job:
    """Begin a sweep for this session; the one before ends. `whole` has its rows where they are known."""
    drop()
    job = Job(asked, sweep, uploads.session_lives(), whole)
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
    if not job.n_done and job.taken_s > PATIENCE_S and job.n_points >= sweep_points.KERNEL_POINTS:
        text += ": the first sweep of an installation compiles its parts, once, for up to a minute"
    st.progress(job.n_done / job.n_points, text=text)
    if st.button("Cancel", key="front cancel", on_click=job.cancel):
        st.rerun()


def show_front(job: Job, bench: Bench) -> DesignFront | None:
    """The figure of a finished sweep's front, filtered; what it shows, if any."""
    found = job.front
    assert found is not None
    missing = f", {found.n_beyond:,} beyond the limits" if found.limits else ""
    missing += f", {found.n_missing:,} without a number for an objective" if found.n_missing else ""
    st.text(f"{len(found.table):,} of {found.n_rows:,} designs are on the front ({found.n_feasible:,} fit{missing}).")
    if found.table.empty:
        st.info("No design is left: allow more, or choose objectives that these designs have.")
        return None
    widgets.draw(FILTER)
    try:
        shown = filtered(found, bench.values[FILTER.key])
    except DseError as error:
        widgets.problem(error)
        shown = found
    if shown.table.empty:
        st.info("The condition leaves no design of the front.")
        return None
    made = MadeBy(" && ".join(commands(job.asked)), python(job.asked), state.address(PAGE, bench.values))
    draw(shown, made, job.asked, bench)
    return shown


def show_table(shown: DesignFront) -> None:
    """The designs of the front."""
    rows = table_of(shown, MAX_ROWS)
    st.subheader("The front", anchor=False)
    st.dataframe(rows, hide_index=True, column_config=columns(shown, rows))
    if len(shown.table) > len(rows):
        st.caption(f"The first {len(rows):,} of {len(shown.table):,} designs; the downloads have all.")


def columns(shown: DesignFront, rows: pd.DataFrame) -> dict[str, Any]:
    """How the table shows its columns: thousands apart, and the name that a condition takes on hovering."""
    found = {}
    for heading, name in names_of(shown).items():
        numbers = rows[heading]
        is_number = pd.api.types.is_numeric_dtype(numbers) and not pd.api.types.is_bool_dtype(numbers)
        way: Any = None
        if is_number:
            way = "localized" if pd.api.types.is_integer_dtype(numbers) or numbers.abs().min() >= 1 else "%.4g"
        kind = partial(st.column_config.NumberColumn, format=way) if is_number else st.column_config.Column
        found[heading] = kind(help=widgets.escaped(f"In conditions: {name}, in base units."))
    return found


def draw(shown: DesignFront, made: MadeBy, asked: Asked, bench: Bench) -> None:
    """The figure; a click on a design of the front puts it into the tray."""
    chart = chart_of(shown)
    event: Any = beside.show(
        "front",
        chart,
        lambda: source_of(shown).table,
        made,
        drawn=figure.faint(chart, design_front.OTHERS),
        on_select="rerun",
        selection_mode="points",
    )
    st.caption("Click a design of the front to add it to the tray.")
    place = beside.clicked("front", event)
    row = at(shown, *place) if place else None
    if row is not None:
        sidebar.add(*added(loaded(row, asked), bench.values))
        st.rerun()


def added(found: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[tray.Design, dict[str, Any]]:
    """The design of a point, and what of the workload it changes: all but the batch, which it may have of its own."""
    work = {field.key: found[field.key] for field in shared.SCENARIO if field.key in found}
    batch = work.pop("batch")
    own = {**found, shared.OWN_BATCH.key: batch if batch != values["batch"] else None}
    changed = {key: value for key, value in work.items() if value != values[key]}
    return tray.design_of(own, shared.DESIGN), changed


#: columns that say nothing of a design on the front
_HIDDEN = ("row", "feasible", "infeasible_code")
#: relative distance within which a click belongs to a point
NEAR = 1e-6


def filtered(found: DesignFront, text: str) -> DesignFront:
    """The designs of a front that meet a condition on any of its columns, in base units. Raises InputError."""
    if not text.strip() or found.table.empty:
        return found
    axes, digits = [], {}
    for name in found.table.columns:
        codes, values = pd.factorize(found.table[name].astype(object).where(found.table[name].notna(), None))
        numbers = all(isinstance(v, int | float | np.number) and not isinstance(v, bool | np.bool_) for v in values)
        shown = tuple(values.tolist()) if numbers else tuple(str(v) for v in values)
        axes.append(Axis(name, "number" if numbers else "text", "workload", shown, shown))
        digits[name] = codes.astype(np.int32)
    keep = sweep_where.parse(text, axes).keep(digits)
    return replace(found, table=found.table[keep].reset_index(drop=True), row=found.row[keep], knee=found.knee[keep])


def table_of(found: DesignFront, most: int) -> pd.DataFrame:
    """The first `most` designs as people read them: knees marked, what varies and objectives first, shown units."""
    shown = {"Knee": ["★" if knee else "" for knee in found.knee[:most]]}
    for name in dict.fromkeys((*found.design, *found.objectives, *found.table.columns)):
        if name not in _HIDDEN:
            shown[heading_of(found, name)] = _shown(found, name, found.table[name].iloc[:most])
    return pd.DataFrame(shown)


def names_of(found: DesignFront) -> dict[str, str]:
    """Headings of `table_of` and the columns that they stand for, as conditions name them."""
    return {heading_of(found, name): name for name in found.table.columns if name not in _HIDDEN}


def heading_of(found: DesignFront, name: str) -> str:
    """A column in a reader's words with the unit it is shown in."""
    return names.heading(name, unit_of(found, name))


def unit_of(found: DesignFront, name: str) -> str:
    """Base unit of a column; of axes too, which a sweep leaves without one where the name says it."""
    return found.units.get(name, "") or RESULT_UNITS.get(name, "")


def _shown(found: DesignFront, name: str, column: pd.Series) -> pd.Series:
    _, size = point_names.shown_unit(name, unit_of(found, name))
    return column.astype(float) / size if size != 1 and pd.api.types.is_numeric_dtype(column) else column


def chart_of(found: DesignFront) -> Chart:
    """The figure of a front; hovering shows every value with its unit."""
    table = found.table.drop(columns=[name for name in _HIDDEN if name in found.table])
    units = {name: unit_of(found, name) for name in table.columns}
    return design_front.chart(
        table,
        list(found.knee),
        found.cloud,
        found.objectives,
        units,
        partial(pareto_designs.label, columns=found.design, units=units),
        found.by,
    )


def at(found: DesignFront, x: float, y: float) -> dict[str, Any] | None:
    """The design drawn at a place of the figure, in the units of its axes; None where none is."""
    axes = list(found.objectives)[:2]
    if len(axes) == 1 or found.table.empty:
        return None
    distance = pd.Series(0.0, index=found.table.index)
    for name, shown in zip(axes, (x, y), strict=True):
        values = found.table[name].astype(float)
        place = shown * design_front.axis(name, found.units.get(name, ""), values.tolist()).per_unit
        distance += (values - place).abs() / max(abs(place), np.finfo(float).tiny)
    nearest = distance.idxmin()
    return found.table.loc[nearest].to_dict() if distance[nearest] < NEAR else None


def loaded(row: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """Fields of a design of the tray for a point of what was asked."""
    sweep = asked.sweep()
    given = {name: row[name] for name in sweep.axis if name in row and not pd.isna(row[name])}
    key = _quantizer(given, asked, "key_quantizer" if "key_quantizer" in given else "quantizer")
    value = _quantizer(given, asked, "value_quantizer" if "value_quantizer" in given else "quantizer")
    numbers = [axis for axis in sweep.axes if axis.role == "device_field"]
    edits = [f"{axis.name}={given[axis.name]!r} {axis.unit}".strip() for axis in numbers]
    found = {
        "device": dict(zip(sweep.axis["device"].values, asked.devices, strict=True))[given["device"]],
        "edits": ",".join(edits),
        "model": dict(zip(sweep.axis["model"].values, asked.models, strict=True))[given["model"]],
        "quantizer": key[0],
        "parameters": key[1],
        "value_quantizer": None,
        "value_parameters": "",
        "measurements": asked.measurements,
        **shared.work_values(_work(given, sweep)),
    }
    if value != key:
        found.update(value_quantizer=value[0], value_parameters=value[1])
    return found


def _work(given: Mapping[str, Any], sweep: Sweep) -> Workload:
    """The workload of a row with these values of axes."""
    axes = [axis for axis in sweep.axes if axis.role == "workload" and axis.name in given]
    return Workload(**{axis.name: axis.items[axis.values.index(given[axis.name])] for axis in axes})


def _quantizer(given: Mapping[str, Any], asked: Asked, name: str) -> tuple[str, str]:
    """Family and parameters of a side, with the parameters that axes of their own give."""
    sweep = asked.sweep()
    text = str(given.get(name, "fp16"))
    if text.startswith(layered.PREFIX):  # a file of this session: the only plans there are here
        return asked.quantizers[sweep.axis[name].values.index(text)], ""
    family, _, parameters = text.partition(":")
    parts = [parameters] if parameters else []
    for axis in sweep.axes:
        if axis.role == "parameter" and axis.name in given and sweep_axes.applies(axis, quantizers.parse(text)):
            parts.append(f"{axis.name.partition('.')[2]}={axis.items[axis.values.index(given[axis.name])]}")
    return family, ",".join(parts)


def show_file(asked: Asked, expanded: bool = False) -> None:
    """The sweep as a file and the commands that run it: for any number of points."""
    with st.expander("As a sweep file, for any number of designs", expanded=expanded):
        text = toml(asked.document())
        st.code(text, language="toml", wrap_lines=True)
        st.download_button(f"Download {FILE}", text, FILE, "application/toml", key="front file", on_click="ignore")
        st.code("\n".join(commands(asked)), language="bash", wrap_lines=True)


def toml(document: Mapping[str, Any]) -> str:
    """The sweep file of a document: `dse sweep` reads it."""
    lines = [f"{key} = {_toml(value)}" for key, value in document.items() if key != "axes"]
    axes = [f"{name if name.isidentifier() else json.dumps(name)} = {_toml(v)}" for name, v in document["axes"].items()]
    return "\n".join([*lines, "", "[axes]", *axes]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value) if isinstance(value, str | bool) else repr(value)


def commands(asked: Asked) -> list[str]:
    """The command lines that give the same front from the sweep file."""
    words = ["dse", "pareto", FOLDER]
    given = {"--maximize": asked.maximize, "--minimize": asked.minimize, "--by": asked.by}
    words += [word for option, names in given.items() if names for word in (option, ",".join(names))]
    words += [word for text in asked.at_most for word in ("--at-most", text)]
    words += [word for text in asked.at_least for word in ("--at-least", text)]
    return [shlex.join(["dse", "sweep", FILE, "--out", FOLDER]), shlex.join([*words, "--drop-missing"])]


def python(asked: Asked) -> str:
    """The same in Python: a script that ends with `result`, the front. Raises InputError."""
    limited = bool(asked.limits())
    more = ", limits=limits" if limited else ""
    return "\n".join(
        [
            "from dse.sweep import sweeps as sweep",
            "from dse.sweep.pareto import designs as pareto_designs",
            *(["from dse.sweep.pareto import limits as pareto_limits"] if limited else []),
            "",
            f"spec = {asked.document()!r}",
            "table = sweep.run(spec)",
            *([f"limits = pareto_limits.parse({list(asked.at_most)!r}, {list(asked.at_least)!r})"] if limited else []),
            f"result = pareto_designs.of_table(table, {asked.objectives()!r}, {list(asked.by)!r}, "
            f"drop_missing=True{more})",
        ]
    )
