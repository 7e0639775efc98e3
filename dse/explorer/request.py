"""One design from the fields of a page: its command line, its Python, and its answer."""

import shlex
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import pandas as pd

from dse.explorer import common_fields as shared
from dse.explorer import uploads
from dse.model import evaluate as point
from dse.model import kv_layout as plan
from dse.quantizers import QuantizerSpec, layered
from dse.report import listing, present
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.measurements import Bits
from dse.specs.workload import ASKED, Workload
from dse.sweep import sweeps as sweep

#: batches of the curve
CURVE = tuple(2**i for i in range(9))


_WORK = shared.work_of({})


@dataclass(frozen=True)
class Request:
    """One design: what the fields of `dse.explorer.common_fields` ask for.

    The last five are uploaded files, so that a request is all that a cached answer depends on.
    """

    device: str = shared.DEVICE.default
    edits: str = ""
    model: str = shared.MODEL.default
    quantizer: str = shared.QUANTIZER.default
    parameters: str = ""
    value_quantizer: str | None = None
    value_parameters: str = ""
    work: Workload = _WORK
    measurements: str = uploads.SHIPPED
    device_file: tuple[str, str] = ("", "")
    model_file: tuple[str, str] = ("", "")
    quantizer_file: tuple[str, str] = ("", "")
    value_quantizer_file: tuple[str, str] = ("", "")
    measurements_file: uploads.Upload | None = None

    @property
    def key_quantizer_text(self) -> str:
        """The quantizer of the keys as the command line takes it; an uploaded plan by the name of its file."""
        return _quantizer_text(self.quantizer, self.parameters, self.quantizer_file)

    @property
    def value_quantizer_text(self) -> str:
        """The quantizer of the values as the command line takes it."""
        if not self.value_quantizer:
            return self.key_quantizer_text
        return _quantizer_text(self.value_quantizer, self.value_parameters, self.value_quantizer_file)

    @property
    def device_text(self) -> str:
        """The device as the command line takes it; an upload by the name of its file."""
        base = self.device_file[0] or self.device
        return _with(base, self.edits)

    @property
    def model_text(self) -> str:
        """The model as the command line takes it; an upload by the name of its file."""
        return self.model_file[0] or self.model

    def device_spec(self) -> HardwareSpec:
        """The device. Raises InputError or SpecError."""
        return uploads.device(self.device, self.edits, self.device_file)

    def model_spec(self) -> ModelSpec:
        """The model. Raises InputError or SpecError."""
        return uploads.model(self.model, self.model_file)

    def plan(self) -> plan.KvPlan:
        """The model with its quantizers. Raises InputError or SpecError."""
        return plan.build(self.model_spec(), *map(self.bits().attached, self.quantizer_specs()))

    def bits(self) -> Bits:
        """Bits by closed forms, errors and measured bits as shipped or as loaded."""
        return Bits(file=self.measurements_file.measured if self.measurements_file else None)

    def quantizer_specs(self) -> tuple[QuantizerSpec, QuantizerSpec]:
        """The quantizers of keys and values. Raises InputError."""
        key = uploads.quantizer(self.key_quantizer_text, self.quantizer_file)
        if not self.value_quantizer:
            return key, key
        return key, uploads.quantizer(self.value_quantizer_text, self.value_quantizer_file)


DEFAULT = Request()


def of(values: Mapping[str, Any]) -> Request:
    """The design of a page's values; what the page does not ask for is at its default. Raises InputError."""
    known = {field.name for field in fields(Request)}
    chosen = {key: value for key, value in values.items() if key in known}
    asked = Request(**chosen, work=shared.work_of(values))
    return replace(
        asked,
        device_file=uploads.text_of(asked.device),
        model_file=uploads.text_of(asked.model),
        quantizer_file=uploads.text_of(asked.quantizer),
        value_quantizer_file=uploads.text_of(asked.value_quantizer or ""),
        measurements_file=uploads.measurement(asked.measurements),
    )


def with_quantizer(asked: Request, name: str, file: tuple[str, str] = ("", "")) -> Request:
    """Replace the quantizer of keys and values; `name` holds its parameters.

    Of a loaded plan, `name` is that in the lists, and `file` name and text of its file.
    """
    family, _, parameters = (name, "", "") if file[1] else name.partition(":")
    return replace(
        asked,
        quantizer=family,
        parameters=parameters,
        value_quantizer=None,
        value_parameters="",
        quantizer_file=file,
        value_quantizer_file=("", ""),
    )


def _quantizer_text(name: str, parameters: str, file: tuple[str, str]) -> str:
    return _with(layered.PREFIX + file[0] if file[0] else name, parameters)


def _with(name: str, parameters: str) -> str:
    return f"{name}:{parameters.strip()}" if parameters.strip() else name


def family_defaults(name: str) -> str:
    """A family's parameters with their defaults, as one would write them; "-" where it has none, as a plan."""
    return next((row["parameters"] for row in listing.list_quantizers() if row["name"] == name), "-")


#: fields of a workload that a command and a script say even where they are the default
_SAID = ("batch", "input_tokens", "output_tokens", "admission", "weights_bits")


def _given(request: Request) -> dict[str, Any]:
    """Fields of the workload, with their values, that a command or a script has to say."""
    work = replace(request.work, tokens=request.work.token_policy.name)
    found = {name: getattr(work, name) for name in ASKED}
    return {name: value for name, value in found.items() if name in _SAID or value != ASKED[name].default}


def _words(name: str, value: Any) -> list[str]:
    """An option of a field of the workload, and its value."""
    option = ASKED[name].option
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", str(value)]


def command(request: Request, without: Collection[str] = ()) -> str:
    """The command line that prints what the page shows, but for some fields of the workload. Raises InputError."""
    words = ["dse", "point", "--device", request.device_text, "--model", request.model_text]
    key, value = (spec.name for spec in request.quantizer_specs())
    words += ["--quantizer", key] if key == value else ["--key-quantizer", key, "--value-quantizer", value]
    for name, given in _given(request).items():
        if name not in without:
            words += _words(name, given)
    if request.measurements_file:
        words += ["--measurements", request.measurements_file.name]
    return shlex.join(words)


def call(name: str, arguments: Sequence[str]) -> str:
    """A script that ends with `result`, what a function of the package gives."""
    text = textwrap.fill(", ".join(arguments), 100, break_long_words=False, break_on_hyphens=False)
    return f"import dse\n\nresult = dse.{name}(\n{textwrap.indent(text, '    ')},\n)"


def work_arguments(request: Request, without: Collection[str] = ()) -> list[str]:
    """The workload as arguments of a function of the package, but for some fields."""
    return [f"{name}={given!r}" for name, given in _given(request).items() if name not in without]


def python(request: Request, name: str = "evaluate", more: Sequence[str] = (), without: Collection[str] = ()) -> str:
    """A script that ends with `result`: what `dse.NAME` gives of the design, in SI base units; `more` are arguments of
    its own. Raises InputError."""
    own = request.measurements_file

    def stored(name: str) -> str:
        return f"dse.quantizer({name!r}, measurements={own.name!r})" if own else repr(name)

    key, value = (spec.name for spec in request.quantizer_specs())
    return call(
        name,
        [
            repr(request.device_text),
            repr(request.model_text),
            stored(key),
            *([f"value_quantizer={stored(value)}"] if value != key else []),
            *more,
            *work_arguments(request, without),
        ],
    )


@dataclass(frozen=True)
class Answer:
    """Results of one request by name, and what `dse point` prints."""

    result: dict[str, Any]
    text: str
    device_title: str
    model_title: str


def answer(request: Request) -> Answer:
    """Evaluate one request. Raises InputError."""
    device, kv = request.device_spec(), request.plan()
    work = request.work
    work.refuse_idle()
    result = point.evaluate(device, kv, work)
    text = present.point_text(result, device, kv, with_room=point.with_room(device, kv, work, result))
    return Answer(result, text, device.title or device.name, kv.model.title)


def curve(request: Request) -> pd.DataFrame:
    """The request at every batch of `CURVE`; its own batch does not matter. Raises InputError."""
    device, work, kv = request.device_spec(), request.work, request.plan()
    return sweep.to_table(point.evaluate(device, kv, replace(work, batch=n)) for n in CURVE)


def explanation(request: Request, name: str) -> str:
    """Formula, values, units and sources behind one result, as `dse point --explain` prints them. Raises InputError."""
    device, kv = request.device_spec(), request.plan()
    return present.explanation_text(present.explain(name, point.Point(device, kv, request.work)))


def unquantized(request: Request) -> Request:
    """Store keys and values in FP16."""
    return with_quantizer(request, "fp16")


def any_batch(request: Request) -> Request:
    """The request under a batch of one: what it is cached by where its batch does not matter."""
    return replace(request, work=replace(request.work, batch=1))
