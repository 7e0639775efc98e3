"""What the Pareto page asks for: axes as people write them, objectives, conditions; and the same as a sweep file."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dse import catalog, pareto_designs, pareto_limits, point, point_names, quantizers, sweep_axes, sweep_spec, units
from dse.errors import InputError, did_you_mean, show
from dse.explorer import names, shared, uploads
from dse.explorer.fields import Field
from dse.measurements import Bits
from dse.pareto import Sense
from dse.pareto_limits import Limit
from dse.quantizers import layered
from dse.sweep_spec import Sweep

#: points that the page evaluates; more is for the command line
MAX_POINTS = 1_000_000
#: values of one axis
MAX_VALUES = 10_000
FILE, FOLDER = "sweep.toml", "sweep-result"
_WHOLE = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?(e[-+]?[0-9]{1,2})?", re.ASCII)
_NUMBER_AND_UNIT = re.compile(r"([-+.0-9]*(?:e[-+]?[0-9]+)?)\s*(.*)", re.ASCII | re.DOTALL)
_WAYS = ("step", "factor", "count")
#: columns of numbers that are chosen, not found
COUNTED = ("batch", "input_tokens", "output_tokens", "weights_bits")
_LIMITS = (
    "Results by their words above or their names, numbers with a unit or in base units, semicolons between: "
    "measured_error = 20 %; Decode step = 50 ms; kv_bytes = 40 GB."
)
_HOW = "Values with commas between, or a range: `1 to 256 factor 2`, `16 to 64 step 16`, `1 TB/s to 4 TB/s count 7`."


def values_of(text: str) -> Any:
    """The values of an axis as a sweep file holds them: a list, or a range. Raises InputError for a range cut short."""
    low, is_range, rest = text.partition(" to ")
    if not is_range:
        return [_value(part) for part in text.split(",") if part.strip()]
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
    for part in text.split(";"):
        name, equals, raw = (piece.strip() for piece in part.partition("="))
        if not part.strip():
            continue
        if not equals:
            raise InputError(f"{show(part.strip())}: must be NAME = VALUES, such as weights_bits = 16, 8")
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
    """Limits of a field, `NAME = NUMBER; NAME = NUMBER`, as the command line takes them: in base units.

    A column goes by its name or its words, a number has a unit or is in base units. Raises InputError.
    """
    found = []
    for part in text.split(";"):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if not part.strip():
            continue
        name = names.column(name, point.RESULT_UNITS)
        if name not in (*numbers(), *COUNTED):
            raise InputError(f"{kind} {show(name)}: {did_you_mean(name, (*numbers(), *COUNTED))}")
        value, unit = _NUMBER_AND_UNIT.match(number).groups()  # type: ignore[union-attr]  # it matches any text
        if value and unit:
            base = point.RESULT_UNITS.get(name, "B/s" if name.endswith("bandwidth") else "B")
            shown, size = point_names.shown_unit(name, base)
            known = {base: 1.0, shown: size, **{each: units.to_base(1, each) for each in units.units_of(base)}}
            if unit not in known or not _NUMBER.fullmatch(value):
                among = ", ".join(filter(None, known))
                raise InputError(f"{kind} {name} = {show(number)}: must be a number, its unit one of {among}")
            number = f"{float(value) * known[unit]:.12g}"
        pareto_limits.parse([f"{name}={number}"])
        found.append(f"{name}={number}")
    return found


def _limited(kind: str) -> Any:
    def check(text: str, values: Mapping[str, Any]) -> None:
        limits_of(text, kind)

    return check


def numbers() -> list[str]:
    """Columns that can be objectives."""
    return [*(name for name, unit in point.RESULT_UNITS.items() if unit), "memory_bandwidth", "memory_capacity"]


DEVICES = Field(
    "pareto_devices", "Devices", "choices", ["a100-80gb", "h100", "oaken-lpddr"],
    choices=lambda: [*catalog.device_files(), *uploads.names("device")],
    help="Shipped devices, and files that you load below.",
)  # fmt: skip
MODELS = Field(
    "pareto_models", "Language models", "choices", ["llama2-7b"],
    choices=lambda: [*catalog.model_files(), *uploads.names("model")], help="Shipped models, and files that you load "
    "below: a config.json or a model file.",
)  # fmt: skip
QUANTIZERS = Field(
    "pareto_quantizers", "KV quantizers", "choices", ["fp16", "kivi", "qserve", "nqkv", "sinkq", "oaken"],
    choices=lambda: [*quantizers.FAMILIES, *uploads.names("plan")],
    help="Their parameters are varied under More axes: kivi.bits = 2, 4. Plans by layer are loaded below.",
)  # fmt: skip
BATCHES = Field(
    "pareto_batches", "Batches (requests)", "text", "1 to 256 factor 2", check=_axis("batch"),
    help=f"Requests that are served together. {_HOW}",
)  # fmt: skip
INPUTS = Field(
    "pareto_inputs", "Prompts (tokens)", "text", "512 to 16384 factor 2", check=_axis("input_tokens"), help=_HOW
)
OUTPUTS = Field(
    "pareto_outputs", "Generated (tokens)", "text", "128 to 4096 factor 2", check=_axis("output_tokens"), help=_HOW
)
BANDWIDTHS = Field(
    "pareto_bandwidths", "Memory bandwidths", "text", "", check=_axis("memory_bandwidth"),
    placeholder="as each device", help=f"In place of the devices' own. {_HOW}",
)  # fmt: skip
CAPACITIES = Field(
    "pareto_capacities", "Memory capacities", "text", "", check=_axis("memory_capacity"),
    placeholder="as each device", help="In place of the devices' own: `80 GB, 160 GB`, or a range as for bandwidths.",
)  # fmt: skip
KIND = Field(
    "pareto_kind", "Times", "choice", "ideal", choices=lambda: ["ideal", "auto", "calibrated"],
    help="ideal: peak rates, alike for all devices; calibrated: kernels as measured, for devices that have such "
    "parameters; auto: calibrated where there are some.",
)  # fmt: skip
MORE = Field(
    "pareto_axes", "More axes", "text", "", check=_more, placeholder="weights_bits = 16, 8; kivi.bits = 2, 4",
    help="Anything else that a sweep can vary, with semicolons between: admission, tokens, numbers of a device, "
    "parameters of a quantizer.",
)  # fmt: skip
WHERE = Field(
    "pareto_where", "Only designs where", "text", "", placeholder="batch * input_tokens <= 262144",
    help="A condition on the axes, as in a sweep file: names, numbers, quoted names, comparisons, and, or, not, in.",
)  # fmt: skip
MAXIMIZE = Field(
    "pareto_maximize", "More is better", "choices", ["throughput_tokens_per_s"], choices=numbers, titles=names.titled,
    help="Results of which a design should have much. The README's glossary says what each is.",
)  # fmt: skip
MINIMIZE = Field(
    "pareto_minimize", "Less is better", "choices", ["decode_step_s"], choices=numbers, titles=names.titled,
    help="Results of which a design should have little: time of a step, energy, cost, bits.",
)  # fmt: skip
BY = Field(
    "pareto_by", "A front for each", "choices", ["device"],
    choices=lambda: ["device", "model", "quantizer", "batch", "input_tokens", "output_tokens"],
    titles=names.words, placeholder="one front of all",
    help="Designs compete only with those that have the same values here.",
)  # fmt: skip
AT_MOST = Field(
    "pareto_at_most", "At most", "text", "", check=_limited("at most"), placeholder="Decode step = 50 ms",
    help=f"Only designs that keep to it compete. {_LIMITS}",
)  # fmt: skip
AT_LEAST = Field(
    "pareto_at_least", "At least", "text", "", check=_limited("at least"), placeholder="Throughput = 1000",
    help=f"Only designs that reach it compete. {_LIMITS}",
)  # fmt: skip
MEASUREMENTS = replace(shared.MEASUREMENTS, key="pareto_measurements", help="Where measured errors and bits come "
                       "from, as objectives and limits: `dse measure` writes such a file, loaded below.")  # fmt: skip
#: text fields that give an axis each
_TEXTS = {
    "batch": BATCHES, "input_tokens": INPUTS, "output_tokens": OUTPUTS, "memory_bandwidth": BANDWIDTHS,
    "memory_capacity": CAPACITIES,
}  # fmt: skip
_OWN = {"device", "model", "quantizer", "model_kind", *_TEXTS}
#: of the sweep
AXES = (DEVICES, MODELS, QUANTIZERS, BATCHES, INPUTS, OUTPUTS, BANDWIDTHS, CAPACITIES, KIND, MORE, WHERE, MEASUREMENTS)
OBJECTIVES = (MAXIMIZE, MINIMIZE, BY, AT_MOST, AT_LEAST)


@dataclass(frozen=True)
class Asked:
    """A sweep, the objectives of its front and limits to it; axes in the order of the table, as texts.

    `files` are name and text of uploads by their names in the lists, so that this is all that a front depends on.
    """

    devices: tuple[str, ...]
    models: tuple[str, ...]
    quantizers: tuple[str, ...]
    axes: tuple[tuple[str, str], ...]
    kind: str
    where: str
    maximize: tuple[str, ...]
    minimize: tuple[str, ...]
    by: tuple[str, ...]
    at_most: tuple[str, ...] = ()
    at_least: tuple[str, ...] = ()
    files: tuple[tuple[str, tuple[str, str]], ...] = ()
    measurements: str = uploads.SHIPPED
    measurements_file: uploads.Upload | None = None

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
        found["axes"]["model_kind"] = [self.kind]
        if self.where.strip():
            found["where"] = [self.where.strip()]
        if self.measurements_file:
            found["measurements"] = self.measurements_file.name
        wanted = (*self.objectives(), *(limit.column for limit in self.limits()))
        results = [name for name in wanted if name in point.RESULT_UNITS]
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
    """What the page's fields ask for. Raises InputError."""
    chosen = (*values[DEVICES.key], *values[MODELS.key], *values[QUANTIZERS.key])
    axes = [(name, values[field.key]) for name, field in _TEXTS.items() if values[field.key].strip()]
    return Asked(
        tuple(values[DEVICES.key]), tuple(values[MODELS.key]), tuple(values[QUANTIZERS.key]),
        (*axes, *more_axes(values[MORE.key])), values[KIND.key], values[WHERE.key], tuple(values[MAXIMIZE.key]),
        tuple(values[MINIMIZE.key]), tuple(values[BY.key]), tuple(limits_of(values[AT_MOST.key], "at most")),
        tuple(limits_of(values[AT_LEAST.key], "at least")),
        tuple((name, file) for name in chosen if (file := uploads.text_of(name))[1]), values[MEASUREMENTS.key],
        uploads.measurement(values[MEASUREMENTS.key]),
    )  # fmt: skip


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
    return "\n".join([
        f"from dse import pareto_designs, {'pareto_limits, ' if limited else ''}sweep", "",
        f"spec = {asked.document()!r}", "table = sweep.run(spec)",
        *([f"limits = pareto_limits.parse({list(asked.at_most)!r}, {list(asked.at_least)!r})"] if limited else []),
        f"result = pareto_designs.of_table(table, {asked.objectives()!r}, {list(asked.by)!r}, drop_missing=True{more})",
    ])  # fmt: skip
