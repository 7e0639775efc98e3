"""The fields that pages share: chosen on one page, they hold on the next."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dse import quantizers
from dse.core.errors import MAX_LINE, InputError, show
from dse.core.field import NUMBER, SWITCH, WHOLE, Field, declarations
from dse.explorer import uploads
from dse.operations.recommend import Recommend
from dse.specs import catalog, device_names, drafts, model_names, releases, server_flags, tokens, workload
from dse.specs.quantity import named_quantity


def _parameters_of(key: str, parse: Any) -> Any:
    """A check that the text is parameters of the family named by the field `key`."""

    def check_parameters(text: str, values: Mapping[str, Any]) -> None:
        family = values.get(key) or DEFAULTS[key]
        if family in uploads.names("plan"):
            raise InputError(f"{show(text)}: a plan by layer has no parameters: leave it empty")
        parse(f"{family}:{text}")

    return check_parameters


def _edits(text: str, values: Mapping[str, Any]) -> None:
    if text.strip():
        uploads.device(device_of(values), text)


def device_of(values: Mapping[str, Any]) -> str:
    """The device of a design: its own, else the question's."""
    return str(values.get(OWN_DEVICE.key) or values.get(DEVICE.key, DEVICE.default))


def model_of(values: Mapping[str, Any]) -> str:
    """The model of a design: its own, else the question's."""
    return str(values.get(OWN_MODEL.key) or values.get(MODEL.key, MODEL.default))


def tp_of(values: Mapping[str, Any]) -> int:
    """Devices over which a design splits its tensors: its own number, else all that the question has."""
    n_stages = values.get(WORK["pp"].key) or 1
    return values.get(OWN_TP.key) or max(values.get(DEVICES.key, DEVICES.default) // n_stages, 1)


def _quantizers() -> list[str]:
    return [*quantizers.FAMILIES, *uploads.names("plan")]


def _stacks() -> list[str]:
    devices = (catalog.device(name) for name in catalog.device_files())
    names = sorted({stack for device in devices for stack in device.stacks} | {*catalog.servers(), *catalog.backends()})
    return [*names, *(f"{name}@{release}" for name in names for release in releases.dates(name))]


def _drafts(text: str, values: Mapping[str, Any]) -> None:
    """Refuse what is no draft, and a draft model that names a file: a page reads none of the server's machine."""
    if text.strip() and (name := drafts.parse(text).model) and not catalog.shipped_model_file(name):
        raise InputError(f"model = {show(name)}: {catalog.near_models(name)}; files are not read here")


DEVICE = Field(
    name="device",
    label="Device",
    default="h200",
    listed=lambda: [*catalog.device_files(), *uploads.names("device")],
    meant=lambda name: device_names.meant(name[:MAX_LINE], catalog.device_aliases()),
    help="A shipped device, typed as people write it (8x RTX 5090), or a file of your own, loaded below.",
)
EDITS = Field(
    name="edits",
    label="Changed numbers of the device",
    default="",
    accepts=_edits,
    open_means="memory_bandwidth=3 TB/s",
    help="FIELD=VALUE with its unit, separated by commas, as on the command line behind the device's name and a "
    "colon. A changed number counts as assumed.",
)
MODEL = Field(
    name="model",
    label="Language model",
    default="qwen3-32b",
    listed=lambda: [*catalog.model_files(), *uploads.names("model")],
    meant=lambda name: model_names.meant(name[:MAX_LINE], catalog.model_aliases()),
    help="A shipped model, typed as people write it (Gemma 4 31B), or a config.json or model file of your own, loaded "
    "below.",
)
OWN_DEVICE = replace(
    DEVICE,
    name="own_device",
    label="Device of its own",
    default=None,
    clears="edits",
    open_means="as the question",
    help="In place of the question's device.",
)
OWN_MODEL = replace(
    MODEL,
    name="own_model",
    label="Model of its own",
    default=None,
    open_means="as the question",
    help="In place of the question's language model.",
)
QUANTIZER = Field(
    name="quantizer",
    label="KV format",
    default="fp16",
    listed=_quantizers,
    clears="parameters",
    help="How keys and values are stored: fp16 leaves them as they are, the others store fewer bits. A plan by layer "
    "(`dse mix`) is loaded below.",
)
#: the quantizer where no file can be chosen
FAMILY = replace(QUANTIZER, listed=lambda: list(quantizers.FAMILIES))
PARAMETERS = Field(
    name="parameters",
    label="Parameters of the format",
    default="",
    accepts=_parameters_of("quantizer", quantizers.parse),
    help="Only what differs from the defaults, separated by commas, for example bits=2,group=32.",
)
VALUE_QUANTIZER = Field(
    name="value_quantizer",
    label="Format of the values",
    default=None,
    listed=_quantizers,
    clears="value_parameters",
    open_means="as the keys",
    help="Leave open to store values as keys are stored.",
)
VALUE_PARAMETERS = Field(
    name="value_parameters",
    label="Parameters of the values' format",
    default="",
    accepts=_parameters_of("value_quantizer", quantizers.parse),
    help="As for the keys.",
)
#: what a page asks otherwise than a workload says: where sliders stop, lists that are long
_HERE: dict[str, dict[str, Any]] = {
    "batch": {"label": "Requests at once", "open_means": "most within limits"},
    "input_tokens": {"label": "Tokens in"},
    "output_tokens": {"label": "Tokens out"},
    "stack": {"listed": _stacks, "meant": lambda name: server_flags.stack_of(name[:MAX_LINE])},
    "tokens": {"listed": lambda: list(tokens.FAMILIES), "clears": "token_parameters"},
    "speculative_config": {"accepts": _drafts},
}


def _on_page(field: Field, **here: Any) -> Field:
    """A field of a workload as a page asks for it: a switch as a choice, a share as a number."""
    if field.kind is SWITCH:
        here["choices"] = {True: "yes", False: "no"}
    if field.kind.word == "share":
        here.update(kind=NUMBER, low=0, high=1, step=0.05, unit="")
    return replace(field, name=field.key, **here)


#: names a file on the machine of the server, which a page does not read
_FILE = "calibrated"
#: the workload, by the names of its fields
WORK = {name: _on_page(field, **_HERE.get(name, {})) for name, field in workload.ASKED.items() if name != _FILE}
TOKEN_PARAMETERS = Field(
    name="token_parameters",
    label="Parameters of the token policy",
    default="",
    accepts=_parameters_of("tokens", tokens.parse),
    help="Only what differs from the defaults: share=0.16.",
)
DEVICES = replace(
    WORK["tp"],
    name="devices",
    label="Number",
    help="How many devices serve the model together: split by tensors, unless a design says its own layout.",
)
OWN_TP = replace(WORK["tp"], default=None, open_means="all devices")
OWN_BATCH = replace(
    WORK["batch"],
    name="own_batch",
    label="Requests at once of its own",
    default=None,
    open_means="as the question",
    help="In place of the question's load. Figures then say that the loads differ.",
)
TTFT_LIMIT = Field(
    name="ttft_limit",
    label="TTFT ≤ (s)",
    kind=NUMBER,
    default=None,
    low=0.001,
    high=100_000,
    step=0.5,
    open_means="no limit",
    help="Time to first token: from a request's arrival at a server that is as full as its load says.",
)
TPOT_LIMIT = Field(
    name="tpot_limit",
    label="TPOT ≤ (ms)",
    kind=NUMBER,
    default=None,
    low=0.001,
    high=1_000_000,
    step=10,
    open_means="no limit",
    help="Time per output token: mean milliseconds between two tokens of a request, prefills of others in between.",
)


def of_option(option: str, **here: Any) -> Field:
    """An option of `dse recommend` as a page asks for it."""
    return replace(declarations(Recommend)[option], **here)


LOAD = Field(
    name="load",
    label="Load",
    default="batch",
    choices={"batch": "requests at once", "rate": "requests a second", "sessions": "sessions of agents"},
    help="How requests come: so many at all times, at random at a rate, or turns of agents, whose prompts are found "
    "in the prefix cache.",
)
RATE = of_option("rate", label="Requests a second", default=10.0, high=1_000_000.0)
SESSIONS = of_option("sessions", label="Sessions", default=100)
#: of a load of sessions
OF_SESSIONS = (
    of_option("turns", label="Turns"),
    of_option("growth", label="Tokens a turn", kind=WHOLE),
    of_option("think", label="Time between turns", accepts=lambda text, _: named_quantity("think", text, "s", 0, 1e6)),
    of_option("shared", label="Tokens all share", kind=WHOLE),
)
#: the number of a load, by the load
AMOUNTS = {"batch": WORK["batch"], "rate": RATE, "sessions": SESSIONS}
#: what the line on top of each page asks
QUESTION = (
    MODEL,
    DEVICES,
    DEVICE,
    WORK["input_tokens"],
    WORK["output_tokens"],
    TPOT_LIMIT,
    TTFT_LIMIT,
    LOAD,
    *AMOUNTS.values(),
)
#: of the workload: what else is alike for all designs, how it is counted. All else is a design's own
_COUNTED = (
    "prefix_tokens",
    "samples",
    "kv_offload",
    "rounds",
    "kv_cache",
    "cached_input_discount",
    "model_kind",
    "memory",
    "gpu_memory_utilization",
)
SCENARIO_MORE = (*OF_SESSIONS, *(WORK[name] for name in _COUNTED))
#: one question for all designs
SCENARIO = (*QUESTION, *SCENARIO_MORE)
#: how a design lies on devices, and the rest that a workload says of a design
LAYOUT = (OWN_TP, *(WORK[name] for name in ("pp", "ep")))
DESIGN_WORK = tuple(
    field
    for name, work_field in WORK.items()
    if name not in ("batch", "input_tokens", "output_tokens", *_COUNTED)
    for field in (
        (OWN_TP,) if name == "tp" else (work_field, TOKEN_PARAMETERS) if work_field.key == "tokens" else (work_field,)
    )
)


def work_of(values: Mapping[str, Any]) -> workload.Workload:
    """The workload of a page's values; what the page does not ask for is at its default. Raises InputError."""
    fields = {}
    for name, field in WORK.items():
        fields[name] = values.get(field.key, field.default)
    _drafts(fields["speculative_config"] or "", values)
    fields["batch"] = values.get(OWN_BATCH.key) or (fields["batch"] if is_at_once(values) else None)
    fields["tp"] = tp_of(values)
    if parameters := (values.get(TOKEN_PARAMETERS.key) or "").strip():
        fields["tokens"] = f"{fields['tokens']}:{parameters}"
    return workload.Workload(**fields)


def is_at_once(values: Mapping[str, Any]) -> bool:
    """Whether the load of a design is requests at all times: of the question, or as it has a number of its own."""
    return values.get(LOAD.key, LOAD.default) == "batch" or bool(values.get(OWN_BATCH.key))


def work_values(work: workload.Workload) -> dict[str, Any]:
    """The values of a page that ask for a workload."""
    values = {field.key: getattr(work, name) for name, field in WORK.items()}
    values["tokens"], _, values[TOKEN_PARAMETERS.key] = work.tokens.partition(":")
    return values


MEASUREMENTS = Field(
    name="measurements",
    label="Measured bits and errors",
    default=uploads.SHIPPED,
    listed=lambda: (
        {uploads.SHIPPED: "the shipped sample (SmolLM2-135M)"} | {name: name for name in uploads.names("measurement")}
    ),
    help="Where the attention error, the signal to noise and the measured bits come from. `dse measure` writes such a "
    "file of your own keys and values, which is loaded below.",
)

#: one design of the tray; with the workload of all, what `dse.explorer.request.PointRequest` asks for
DESIGN = (
    OWN_MODEL,
    OWN_DEVICE,
    EDITS,
    QUANTIZER,
    PARAMETERS,
    VALUE_QUANTIZER,
    VALUE_PARAMETERS,
    OWN_BATCH,
    *DESIGN_WORK,
    MEASUREMENTS,
)
#: what the tray opens with: three formats on one device
OPENING: tuple[dict[str, Any], ...] = ({}, {"quantizer": "fp8"}, {"quantizer": "int4_per_token_head"})
DEFAULTS = {field.key: field.default for field in (*DESIGN, *SCENARIO)}
