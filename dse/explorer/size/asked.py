"""Fields of the page Size, as options of `dse recommend`, and that operation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dse import quantizers
from dse.core.field import NUMBER, TEXT
from dse.explorer import common_fields, request, uploads
from dse.explorer.common_fields import of_option
from dse.explorer.request import PointRequest
from dse.operations.recommend import SAID, Recommend
from dse.operations.shared import counted
from dse.specs import catalog, prices
from dse.specs.workload import Workload

#: devices that are tried beside the question's, the first two that are not it
OTHERS = ("h100", "b200", "h200")


DEVICES = of_option(
    "devices",
    name="size_devices",
    label="Devices to choose from",
    kind=TEXT,
    default=[],
    listed=lambda: [*catalog.device_files(), *uploads.names("device")],
    open_means="the question's and two others",
    help="Each is tried with every engine, KV format and layout.",
)
FORMATS = of_option(
    "quantizers",
    name="size_quantizers",
    label="KV formats",
    kind=TEXT,
    default=[],
    listed=lambda: list(quantizers.FAMILIES),
    open_means="all that the engine runs",
)
#: what few change
MORE = (
    of_option(
        "objective",
        label="What must be best",
        choices={"cost": "cost", "devices": "number of devices", "throughput": "throughput", "energy": "energy"},
    ),
    of_option("budget", label="Budget (USD an hour)", default="", open_means="40/h"),
    of_option("cloud", label="List prices of", listed=lambda: sorted(prices.clouds()), open_means="device files"),
    of_option("price", label="Prices of your own", default="", open_means="h100=2.1, h200=3"),
    of_option(
        "engines",
        label="Engines",
        kind=TEXT,
        default=[],
        listed=lambda: sorted({*catalog.servers(), *catalog.backends()}),
    ),
    FORMATS,
    of_option("most", label="Devices of a server, at most", open_means="16"),
)
#: a trace in place of the load
TRACE_RATE = of_option(
    "rate", name="trace_rate", label="Requests a second", kind=NUMBER, high=1e6, open_means="its own"
)
FIELDS = (DEVICES, *MORE, TRACE_RATE)


def question_of(values: Mapping[str, Any]) -> PointRequest:
    """The current design on the device and with the model of the question. Raises InputError."""
    edits = "" if values[common_fields.OWN_DEVICE.key] else values[common_fields.EDITS.key]
    of_all = {common_fields.OWN_DEVICE.key: None, common_fields.OWN_MODEL.key: None, common_fields.EDITS.key: edits}
    return request.point_request({**values, **of_all})


def load_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The load of the question, as options of `dse recommend`."""
    kind = values[common_fields.LOAD.key]
    name = "requests" if kind == "batch" else kind
    fields = common_fields.OF_SESSIONS if kind == "sessions" else ()
    return {name: values[common_fields.AMOUNTS[kind].key], **{field.key: values[field.key] for field in fields}}


def is_open(values: Mapping[str, Any]) -> bool:
    """True where no load is asked for: as much as there are devices for."""
    return not any(load_of(values).get(kind) for kind in ("rate", "requests", "sessions"))


def device_labels(values: Mapping[str, Any], point: PointRequest, trace: str | None) -> list[str]:
    """Devices to choose from, by their names in the lists; of no load the question's alone is filled."""
    is_full = trace is None and is_open(values)
    others = [] if is_full else [name for name in OTHERS if name != point.device][:2]
    return list(values[DEVICES.key]) or [point.device, *others]


def recommend_of(values: Mapping[str, Any], trace: str | None = None) -> Recommend:
    """The question of a page's values as an operation, files of the reader's own by their names; of a `trace` in place
    of the load. Raises InputError."""
    point = question_of(values)
    work = point.work
    limits: dict[str, Any] = {**request.limit_fields(request.limits_s(values))}
    load = load_of(values) if trace is None else {"trace": trace, "rate": values[TRACE_RATE.key]}
    has_load = trace is not None or not is_open(values)
    count = "" if has_load else f"{values[common_fields.DEVICES.key]}x"
    texts = [
        count + (point.device_text if label == point.device else uploads.text_of(label).name or label)
        for label in device_labels(values, point, trace)
    ]
    has_lengths = trace is not None or "sessions" in load
    said = {name: getattr(work, name) for name in SAID if name != "input_tokens" or not has_lengths}
    return Recommend(
        model=point.model_text,
        devices=tuple(texts),
        output_tokens=None if trace is not None else work.output_tokens,
        objective=values["objective"] if has_load else "cost",
        budget=values["budget"].strip() or None,
        cloud=values["cloud"],
        price=tuple(filter(None, map(str.strip, values["price"].split(",")))),
        engines=tuple(values["engines"]) or None,
        quantizers=tuple(values[FORMATS.key]) or None,
        most=values["most"],
        workload=Workload(**said),
        **load,
        **limits,
    )


def with_files(asked: Recommend, values: Mapping[str, Any]) -> tuple[Recommend, dict[str, Mapping[str, Any]]]:
    """The operation with what the reader's own files hold in place of their names; and fields of a design by what the
    search calls each device. Raises InputError and SpecError."""
    point = question_of(values)
    devices: list[Any] = []
    fields: dict[str, Mapping[str, Any]] = {}
    for label, text in zip(device_labels(values, point, asked.trace), asked.devices, strict=True):
        edits = point.edits if label == point.device else ""
        is_file = bool(uploads.text_of(label).text)
        devices.append(uploads.device(label, edits) if is_file else text)
        found = counted(text)
        fields[devices[-1].name if is_file else found[1] if found else text] = {
            common_fields.OWN_DEVICE.key: None if label == point.device else label,
            common_fields.EDITS.key: edits,
        }
    model: Any = point.model_spec() if point.model_file.text else asked.model
    return replace(asked, model=model, devices=tuple(devices)), fields
