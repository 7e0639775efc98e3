"""One design from the fields of a page: its command line, its Python, and its answer."""

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import pandas as pd

from dse.explorer import common_fields, uploads
from dse.explorer.uploads import NO_FILE, FileText
from dse.model import engine, kv_layout
from dse.model.point import Point
from dse.operations.declare import Operation, words_of
from dse.operations.face import SAID
from dse.operations.point import EvaluatePoint
from dse.quantizers import QuantizerSpec, layered
from dse.report import listing, present
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.measurements import Bits
from dse.specs.workload import Workload
from dse.sweep import sweeps

#: batches of the curve
CURVE = tuple(2**i for i in range(9))


_WORK = common_fields.work_of({})


@dataclass(frozen=True)
class PointRequest:
    """One design: what the fields of `dse.explorer.common_fields` ask for.

    The last five are uploaded files, so that a request is all that a cached answer depends on.
    """

    device: str = common_fields.DEVICE.default
    edits: str = ""
    model: str = common_fields.MODEL.default
    quantizer: str = common_fields.QUANTIZER.default
    parameters: str = ""
    value_quantizer: str | None = None
    value_parameters: str = ""
    work: Workload = _WORK
    measurements: str = uploads.SHIPPED
    device_file: FileText = NO_FILE
    model_file: FileText = NO_FILE
    quantizer_file: FileText = NO_FILE
    value_quantizer_file: FileText = NO_FILE
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
        base = self.device_file.name or self.device
        return _with(base, self.edits)

    @property
    def model_text(self) -> str:
        """The model as the command line takes it; an upload by the name of its file."""
        return self.model_file.name or self.model

    def device_spec(self) -> HardwareSpec:
        """The device. Raises InputError or SpecError."""
        return uploads.device(self.device, self.edits, self.device_file)

    def model_spec(self) -> ModelSpec:
        """The model. Raises InputError or SpecError."""
        return uploads.model(self.model, self.model_file)

    def plan(self) -> kv_layout.KvPlan:
        """The model with its quantizers. Raises InputError or SpecError."""
        return kv_layout.build(self.model_spec(), *map(self.bits().attached, self.quantizer_specs()))

    def bits(self) -> Bits:
        """Bits by closed forms, errors and measured bits as shipped or as loaded."""
        return Bits(file=self.measurements_file.measured if self.measurements_file else None)

    def quantizer_specs(self) -> tuple[QuantizerSpec, QuantizerSpec]:
        """The quantizers of keys and values. Raises InputError."""
        key = uploads.quantizer(self.key_quantizer_text, self.quantizer_file)
        if not self.value_quantizer:
            return key, key
        return key, uploads.quantizer(self.value_quantizer_text, self.value_quantizer_file)


DEFAULT = PointRequest()


def point_request(values: Mapping[str, Any]) -> PointRequest:
    """The design of a page's values; what the page does not ask for is at its default. Raises InputError."""
    known = {field.name for field in fields(PointRequest)}
    chosen = {key: value for key, value in values.items() if key in known}
    point = PointRequest(**chosen, work=common_fields.work_of(values))
    return replace(
        point,
        device_file=uploads.text_of(point.device),
        model_file=uploads.text_of(point.model),
        quantizer_file=uploads.text_of(point.quantizer),
        value_quantizer_file=uploads.text_of(point.value_quantizer or ""),
        measurements_file=uploads.measurement(point.measurements),
    )


def with_quantizer(asked: PointRequest, name: str, file: FileText = NO_FILE) -> PointRequest:
    """Replace the quantizer of keys and values; `name` holds its parameters.

    Of a loaded plan, `name` is that in the lists, and `file` name and text of its file.
    """
    family, _, parameters = (name, "", "") if file.text else name.partition(":")
    return replace(
        asked,
        quantizer=family,
        parameters=parameters,
        value_quantizer=None,
        value_parameters="",
        quantizer_file=file,
        value_quantizer_file=NO_FILE,
    )


def _quantizer_text(name: str, parameters: str, file: FileText) -> str:
    return _with(layered.PREFIX + file.name if file.name else name, parameters)


def _with(name: str, parameters: str) -> str:
    return f"{name}:{parameters.strip()}" if parameters.strip() else name


def family_defaults(name: str) -> str:
    """A family's parameters with their defaults, as one would write them; "-" where it has none, as a plan."""
    return next((row["parameters"] for row in listing.list_quantizers() if row["name"] == name), "-")


def operation(request: PointRequest, cls: type[Operation] = EvaluatePoint, **more: Any) -> Any:
    """The operation `cls` on the design, with fields of its own in `more`. Raises InputError."""
    key, value = (spec.name for spec in request.quantizer_specs())
    values = {
        "device": request.device_text,
        "model": request.model_text,
        "quantizer": key,
        "value_quantizer": None if value == key else value,
        "measurements": request.measurements_file.name if request.measurements_file else None,
        "workload": replace(request.work, tokens=request.work.token_policy.name),
    }
    known = {field.name for field in fields(cls)}
    return cls(**{name: value for name, value in values.items() if name in known}, **more)


def limit_fields(limits: Mapping[str, float]) -> dict[str, str]:
    """Limits in seconds, by result, as questions take them."""
    return {f"max_{name.removesuffix('_s')}": f"{most:g} s" for name, most in limits.items()}


def command_of(asked: Operation, without: Collection[str] = ()) -> str:
    """The command line of an operation, but for some fields of the workload."""
    return shlex.join(words_of(asked, SAID, without))


@dataclass(frozen=True)
class PointAnswer:
    """Results of one request by name, and what `dse point` prints."""

    result: dict[str, Any]
    text: str


def answer(request: PointRequest) -> PointAnswer:
    """Evaluate one request. Raises InputError."""
    device, kv = request.device_spec(), request.plan()
    work = request.work
    work.refuse_idle()
    point = Point(device, kv, work)
    return PointAnswer(engine.evaluate(point), present.point_text(point))


def curve(request: PointRequest) -> pd.DataFrame:
    """The request at every batch of `CURVE`; its own batch does not matter. Raises InputError."""
    device, work, kv = request.device_spec(), request.work, request.plan()
    return sweeps.to_table(engine.evaluate(Point(device, kv, replace(work, batch=n))) for n in CURVE)


def explanation(request: PointRequest, name: str) -> str:
    """Formula, values, units and sources behind one result, as `dse point --explain` prints them. Raises InputError."""
    device, kv = request.device_spec(), request.plan()
    return present.explanation_text(present.explain(name, Point(device, kv, request.work)))


def unquantized(request: PointRequest) -> PointRequest:
    """Store keys and values in FP16."""
    return with_quantizer(request, "fp16")


def any_batch(request: PointRequest) -> PointRequest:
    """The request under a batch of one: what it is cached by where its batch does not matter."""
    return replace(request, work=replace(request.work, batch=1))
