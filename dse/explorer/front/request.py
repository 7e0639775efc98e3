"""Fields of the front page, and the sweep and objectives that they ask for, as a file, as commands and as Python."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from dse import quantizers
from dse.core import toml
from dse.core.errors import InputError, did_you_mean
from dse.core.field import Field
from dse.explorer import names, request, sidebar, uploads
from dse.explorer.front.limits import NamedLimit, as_options, limits_in, objective_names
from dse.explorer.front.text import axis_problem, more_axes, values_of
from dse.explorer.uploads import FileText
from dse.model import uncertainty
from dse.model.results import RESULT_UNITS
from dse.operations.declare import words_of
from dse.operations.face import Name, call_of, script
from dse.operations.sweeps import FindFront, RunSweep
from dse.quantizers import layered
from dse.specs import catalog
from dse.specs.measurements import Bits
from dse.specs.workload import ASKED
from dse.sweep import spec
from dse.sweep.pareto import Sense, designs, limits
from dse.sweep.pareto.limits import Limit
from dse.sweep.spec import Sweep

_HOW = "Values with commas between, or a range: `1 to 256 factor 2`, `16 to 64 step 16`, `1 TB/s to 4 TB/s count 7`."


def _check_axis(name: str, text: str, values: Mapping[str, Any]) -> None:
    if problem := axis_problem(name, text):
        raise InputError(problem)


def _check_more(text: str, values: Mapping[str, Any]) -> None:
    for name, raw in more_axes(text, OWN):
        _check_axis(name, raw, values)


@lru_cache(maxsize=1)
def _objectives() -> dict[str, str]:
    return {name: names.titled(name) for name in objective_names()}


DEVICES = Field(
    name="front_devices",
    label="Devices",
    default=[],
    listed=lambda: [*catalog.device_files(), *uploads.names("device")],
    open_means="the current design's",
    help="Shipped devices, and files of your own.",
)
MODELS = Field(
    name="front_models",
    label="Language models",
    default=[],
    listed=lambda: [*catalog.model_files(), *uploads.names("model")],
    open_means="the current design's",
    help="Shipped models, and files of your own.",
)
QUANTIZERS = Field(
    name="front_quantizers",
    label="KV formats",
    default=["fp16", "fp8", "int8_per_token_head", "int4_per_token_head", "kivi"],
    listed=lambda: [*quantizers.FAMILIES, *uploads.names("plan")],
    help="As they stand, that of the design too. Their parameters are varied under More axes: kivi.bits = 2, 4.",
)
#: text fields that give an axis each
_AXIS_FIELDS = {
    "batch": Field(
        name="front_batches",
        label="Batches (requests)",
        default="1 to 256 factor 2",
        help=f"Requests that are served together. {_HOW}",
    ),
    "tp": Field(
        name="front_tps",
        label="Tensor parallel (devices)",
        default="1, 2, 4, 8",
        open_means="as the design",
        may_be_empty=True,
        help=f"Devices that every layer is split over. {_HOW}",
    ),
    "input_tokens": Field(
        name="front_inputs",
        label="Prompts (tokens)",
        default="",
        open_means="as the workload",
        help=f"Left open: the workload's, since shorter prompts always win. {_HOW}",
    ),
    "output_tokens": Field(
        name="front_outputs", label="Generated (tokens)", default="", open_means="as the workload", help=_HOW
    ),
    "memory_bandwidth": Field(
        name="front_bandwidths",
        label="Memory bandwidths",
        default="",
        open_means="as each device",
        help=f"In place of the devices' own. {_HOW}",
    ),
    "memory_capacity": Field(
        name="front_capacities",
        label="Memory capacities",
        default="",
        open_means="as each device",
        help="In place of the devices' own: `80 GB, 160 GB`, or a range as for bandwidths.",
    ),
}
AXIS_FIELDS = {axis: replace(field, accepts=partial(_check_axis, axis)) for axis, field in _AXIS_FIELDS.items()}
BATCHES, TPS, *_OTHER_AXES = AXIS_FIELDS.values()
OWN = {"device", "model", "quantizer", *AXIS_FIELDS}
MORE = Field(
    name="front_axes",
    label="More axes",
    default="",
    accepts=_check_more,
    open_means="weights_bits = 16, 8; kivi.bits = 2, 4",
    help="Anything else that a sweep can vary, with semicolons between: admission, tokens, numbers of a device, "
    "parameters of a quantizer.",
)
WHERE = Field(
    name="front_where",
    label="Only designs where",
    default="",
    open_means="batch * tp <= 512",
    help="A condition on the axes, as in a sweep file: names, numbers, quoted names, comparisons, and, or, not, in.",
)
MAXIMIZE = Field(
    name="front_maximize",
    label="More is better",
    default=["throughput_tokens_per_s"],
    listed=_objectives,
    help="Results of which a design should have much.",
)
MINIMIZE = Field(
    name="front_minimize",
    label="Less is better",
    default=["measured_error"],
    listed=_objectives,
    help="Results of which a design should have little: time of a step, energy, cost, bits.",
)
BY = Field(
    name="front_by",
    label="A front for each",
    default=["tp"],
    choices={
        name: names.words(name)
        for name in ("tp", "device", "model", "quantizer", "batch", "input_tokens", "output_tokens")
    },
    open_means="one front of all",
    help="Designs compete only with those that have the same values here.",
)
AT_MOST = Field(
    name="front_at_most",
    label="At most",
    default="TPOT = 100 ms; Error of the attention output =",
    accepts=lambda text, values: limits_in(text, "at most"),
    open_means="no limit",
    may_be_empty=True,
    help="Results and counts of which a design may have no more than a limit: each chosen one has a field below.",
)
AT_LEAST = Field(
    name="front_at_least",
    label="At least",
    default="",
    accepts=lambda text, values: limits_in(text, "at least"),
    open_means="no limit",
    may_be_empty=True,
    help="Results and counts of which a design must have no less than a limit: each chosen one has a field above.",
)
LIMITS = (AT_MOST, AT_LEAST)
#: of the sweep
AXES = (QUANTIZERS, BATCHES, TPS, DEVICES, MODELS, *_OTHER_AXES, MORE, WHERE)
OBJECTIVES = (MAXIMIZE, MINIMIZE, BY, *LIMITS)
FILTER = Field(
    name="front_filter",
    label="Of the front show only",
    default="",
    open_means='quantizer == "fp8" and batch >= 16',
    help="A condition on any column of the table below, in base units (s, B, B/s): decode_step_s <= 0.05.",
)
#: what the page asks for beside the designs and the workload
FIELDS = (*OBJECTIVES, *AXES, FILTER)
#: those that stand open, and the others
SHOWN = (QUANTIZERS, BATCHES, TPS, MAXIMIZE, MINIMIZE, AT_MOST)
FOLDED = tuple(field for field in (*OBJECTIVES, *AXES) if field not in SHOWN)

FILE, FOLDER = "sweep.toml", "sweep-result"


@dataclass(frozen=True, kw_only=True)
class FrontRequest:
    """A sweep with the objectives and limits of its front: all that a front depends on, so that it can be cached.

    Axes are texts, in the order of the table; `files` are name and text of uploads by their names in the lists.
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
    files: tuple[tuple[str, FileText], ...] = ()
    measurements: str = uploads.SHIPPED
    measurements_file: uploads.Upload | None = None

    @property
    def grid(self) -> tuple[Any, ...]:
        """All that the rows of the sweep depend on, which leaves out objectives and limits."""
        chosen = (self.devices, self.models, self.quantizers, self.axes, self.where, self.files)
        return (*chosen, self.measurements, self.measurements_file)

    def limits(self) -> tuple[Limit, ...]:
        """The limits. Raises InputError."""
        return limits.parse(self.at_most, self.at_least)

    def objectives(self) -> dict[str, Sense]:
        """Objectives by name. Raises InputError for none, or one given twice."""
        return designs.objectives_of(self.maximize, self.minimize)

    def document(self) -> dict[str, Any]:
        """The sweep as a file holds it; uploads by the names of their files. Raises InputError."""
        files = dict(self.files)
        axes = {
            "device": [files[name].name if name in files else name for name in self.devices],
            "model": [files[name].name if name in files else name for name in self.models],
            "quantizer": [layered.PREFIX + files[name].name if name in files else name for name in self.quantizers],
        }
        document: dict[str, Any] = {"axes": {**axes, **{name: values_of(text) for name, text in self.axes}}}
        if self.where.strip():
            document["where"] = [self.where.strip()]
        if self.measurements_file:
            document["measurements"] = self.measurements_file.name
        wanted = (*self.objectives(), *(limit.column for limit in self.limits()))
        results = [name for name in wanted if name in RESULT_UNITS]
        return {**document, "keep": list(dict.fromkeys((*spec.DEFAULT_KEEP, *results, *uncertainty.READ)))}

    def sweep(self) -> Sweep:
        """The sweep, ready to run. Raises InputError, SpecError, LimitError."""
        return _sweep(self)


@lru_cache(maxsize=16)
def _sweep(search: FrontRequest) -> Sweep:
    document, files = search.document(), dict(search.files)
    readers: dict[str, Any] = {
        "device": lambda name: uploads.device(name, file=files[name]),
        "model": lambda name: uploads.model(name, files[name]),
        "quantizer": lambda name: uploads.quantizer(name, files[name]),
    }
    chosen = (("device", search.devices), ("model", search.models), ("quantizer", search.quantizers))
    for axis, labels in chosen:
        for i, name in enumerate(labels):
            if name in files:
                document["axes"][axis][i] = readers[axis](name)
    document.pop("measurements", None)  # a name of the session's, not of a file here
    measured = search.measurements_file
    sweep = replace(spec.from_dict(document), bits=Bits(file=measured.measured if measured else None))
    for limit in search.limits():
        if limit.column not in sweep.columns:
            raise InputError(f"{limit.column}: {did_you_mean(limit.column, sweep.columns)}")
    return sweep


def front_request(values: Mapping[str, Any]) -> FrontRequest:
    """Build the request of the page's fields; an empty field takes the current design's value, or the workload's.

    Raises InputError.
    """
    point = request.point_request(values)
    devices = tuple(values[DEVICES.key]) or (point.device,)
    models = tuple(values[MODELS.key]) or (point.model,)
    stored = list(values[QUANTIZERS.key])
    own = point.quantizer if point.quantizer_file.text else point.key_quantizer_text
    if stored == QUANTIZERS.default and own not in stored:  # an engine's that has others, say
        stored.append(own)
    chosen = (*devices, *models, *stored)
    axes = [(name, values[field.key]) for name, field in AXIS_FIELDS.items() if values[field.key].strip()]
    axes += more_axes(values[MORE.key], OWN)
    if not values[DEVICES.key]:  # the device with its changed numbers
        taken = dict(axes)
        axes += [axis for axis in sidebar.edits_by_field(point.edits).items() if axis[0] not in taken]
    taken = dict(axes)
    axes += [
        (name, _text(value))
        for name in ASKED
        if name not in taken and (value := getattr(point.work, name)) != ASKED[name].default
    ]
    of_workload = request.limits_s(values)
    at_most = [limit for limit in limits_in(values[AT_MOST.key], "at most") if limit.column not in of_workload]
    at_most += [NamedLimit(*limit) for limit in of_workload.items()]
    return FrontRequest(
        devices=devices,
        models=models,
        quantizers=tuple(stored),
        axes=tuple(axes),
        where=values[WHERE.key],
        maximize=tuple(values[MAXIMIZE.key]),
        minimize=tuple(values[MINIMIZE.key]),
        by=tuple(name for name in values[BY.key] if name in {"device", "model", "quantizer", *dict(axes)}),
        at_most=as_options(at_most),
        at_least=as_options(limits_in(values[AT_LEAST.key], "at least")),
        files=tuple((name, file) for name in chosen if (file := uploads.text_of(name)).text),
        measurements=point.measurements,
        measurements_file=point.measurements_file,
    )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def sweep_toml(document: Mapping[str, Any]) -> str:
    """The sweep file of a document: `dse sweep` reads it."""
    head = {key: item for key, item in document.items() if key != "axes"}
    axes = [f"{toml.key(name)} = {toml.value(item)}\n" for name, item in document["axes"].items()]
    return "".join([toml.dumps(head), "\n[axes]\n", *axes])


def front_of(asked: FrontRequest, designs: str, **more: Any) -> FindFront:
    """The front of what a page asks for, of `designs`."""
    return FindFront(
        designs=designs,
        by=tuple(asked.by),
        at_most=tuple(asked.at_most),
        at_least=tuple(asked.at_least),
        drop_missing=True,
        **more,
    )


def commands(asked: FrontRequest) -> list[str]:
    """The command lines that give the same front from the sweep file."""
    front = front_of(asked, FOLDER, maximize=tuple(asked.maximize), minimize=tuple(asked.minimize))
    return [shlex.join(words_of(operation)) for operation in (RunSweep(axes=FILE, out=FOLDER), front)]


def python(asked: FrontRequest) -> str:
    """Python script that computes the front as `result`. Raises InputError."""
    front = front_of(asked, Name("table"), objectives=asked.objectives())
    sweep = RunSweep(axes=asked.document())
    return script(f"table = {call_of(sweep)}", f"result = {call_of(front)}")
