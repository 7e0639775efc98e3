"""The fields that pages share: chosen on one page, they hold on the next."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dse import quantizers
from dse.core.errors import InputError, show
from dse.explorer import uploads
from dse.explorer.fields import Field
from dse.specs import catalog, workload
from dse.specs import tokens as token_policies

_DOUBLED = tuple(2**i for i in range(15))
_LENGTHS = tuple(2**i for i in range(5, 18))


def _parameters_of(key: str, parse: Any) -> Any:
    """A check that the text is parameters of the family named by the field `key`."""

    def check(text: str, values: Mapping[str, Any]) -> None:
        family = values.get(key) or values.get(key.split(".")[-1]) or DEFAULTS[key.split(".")[-1]]
        if family in uploads.names("plan"):
            raise InputError(f"{show(text)}: a plan by layer has no parameters: leave it empty")
        parse(f"{family}:{text}")

    return check


def _edits(text: str, values: Mapping[str, Any]) -> None:
    own = values.get("device", DEFAULTS["device"])
    if text.strip():
        uploads.device(own, text)


def _quantizers() -> list[str]:
    return [*quantizers.FAMILIES, *uploads.names("plan")]


def _stacks() -> list[str]:
    devices = (catalog.device(name) for name in catalog.device_files())
    return sorted({stack for device in devices for stack in device.stacks})


DEVICE = Field(
    "device", "Device", "choice", "a100-80gb", choices=lambda: [*catalog.device_files(), *uploads.names("device")],
    clears="edits",
    help="A shipped device, or a file that you load on the What if page. `2xa100-80gb` is two that act as one.",
)  # fmt: skip
EDITS = Field(
    "edits", "Changed numbers of the device", "text", "", check=_edits, placeholder="memory_bandwidth=3 TB/s",
    help="FIELD=VALUE with its unit, separated by commas, as on the command line behind the device's name and a "
    "colon. A changed number counts as assumed.",
)  # fmt: skip
MODEL = Field(
    "model", "Language model", "choice", "llama2-7b", choices=lambda: [*catalog.model_files(), *uploads.names("model")],
    help="A shipped model, or a config.json or model file that you load on the What if page.",
)  # fmt: skip
QUANTIZER = Field(
    "quantizer", "KV quantizer", "choice", "oaken", choices=_quantizers, clears="parameters",
    help="How keys and values are stored: fp16 leaves them as they are, the others store fewer bits. A plan by layer "
    "(`dse mix`) is loaded on the What if page.",
)  # fmt: skip
#: the quantizer where no file can be chosen
FAMILY = replace(QUANTIZER, choices=lambda: list(quantizers.FAMILIES))
PARAMETERS = Field(
    "parameters", "Quantizer parameters", "text", "", check=_parameters_of("quantizer", quantizers.parse),
    help="Only what differs from the defaults, separated by commas, for example bits=2,group=32.",
)  # fmt: skip
VALUE_QUANTIZER = Field(
    "value_quantizer", "Quantizer of the values", "choice", None, choices=_quantizers,
    clears="value_parameters",
    placeholder="as the keys", help="Leave open to store values as keys are stored.",
)  # fmt: skip
VALUE_PARAMETERS = Field(
    "value_parameters", "Parameters of the values' quantizer", "text", "",
    check=_parameters_of("value_quantizer", quantizers.parse), help="As for the keys.",
)  # fmt: skip
BATCH = Field(
    "batch", "Batch (requests)", "whole", 64, low=1, high=workload.MAX_BATCH, slides=_DOUBLED,
    help="Requests that are served together; each decode step gives one token to every one of them.",
)  # fmt: skip
INPUT = Field(
    "input", "Prompt (tokens)", "whole", 1024, low=1, high=workload.MAX_INPUT_TOKENS, slides=_LENGTHS,
    help="Tokens of each request's prompt.",
)  # fmt: skip
OUTPUT = Field(
    "output", "Generated (tokens)", "whole", 1024, low=1, high=workload.MAX_OUTPUT_TOKENS, slides=_LENGTHS,
    help="Tokens that each request generates.",
)  # fmt: skip
ADMISSION = Field(
    "admission", "Admission", "choice", "reserve", choices=lambda: ["reserve", "paged"],
    help="reserve: each request holds its final length from the start; paged: memory grows page by page.",
)  # fmt: skip
WEIGHTS_BITS = Field(
    "weights_bits", "Weights (bits)", "choice", 16, choices=lambda: list(workload.WEIGHT_BITS),
    help="Bits that a weight of the model takes in memory.",
)  # fmt: skip
MODEL_KIND = Field(
    "model_kind", "Times", "choice", "auto", choices=lambda: ["auto", "ideal", "calibrated"],
    help="ideal: peak rates of the device; calibrated: kernels as measured on a software stack; auto: calibrated "
    "where the device has such parameters.",
)  # fmt: skip
STACK = Field(
    "stack", "Software stack", "choice", None, choices=_stacks, placeholder="the device's first",
    help="Serving software whose kernels were measured; only for calibrated times.",
)  # fmt: skip
TOKENS = Field(
    "tokens", "Tokens kept and read", "choice", "full", choices=lambda: list(token_policies.FAMILIES),
    clears="token_parameters",
    help="full: all of them. The others store or read fewer tokens instead of fewer bits.",
)  # fmt: skip
TOKEN_PARAMETERS = Field(
    "token_parameters", "Parameters of the token policy", "text", "",
    check=_parameters_of("tokens", token_policies.parse), help="Only what differs from the defaults: share=0.16.",
)  # fmt: skip

MEASUREMENTS = Field(
    "measurements", "Measured bits and errors", "choice", uploads.SHIPPED, choices=uploads.measurement_names,
    titles=lambda name: "the shipped sample (synthetic)" if name == uploads.SHIPPED else name,
    help="Where the attention error, the signal to noise and the measured bits come from. `dse measure` writes such a "
    "file of your own keys and values, which is loaded on the What if page.",
)  # fmt: skip

#: one design: what `dse.explorer.request.Request` asks for
DESIGN = (
    DEVICE, EDITS, MODEL, QUANTIZER, PARAMETERS, VALUE_QUANTIZER, VALUE_PARAMETERS, BATCH, INPUT, OUTPUT, ADMISSION,
    WEIGHTS_BITS, MODEL_KIND, STACK, TOKENS, TOKEN_PARAMETERS, MEASUREMENTS,
)  # fmt: skip
DEFAULTS = {field.key: field.default for field in DESIGN}
#: of a design: batch, lengths and how they are served
WORKLOAD = (BATCH, INPUT, OUTPUT, ADMISSION, WEIGHTS_BITS, MODEL_KIND, STACK, TOKENS, TOKEN_PARAMETERS)


def several(field: Field, default: Sequence[Any], key: str, label: str) -> Field:
    """The choice of several where `field` chooses one, under a key of its own."""
    return replace(field, key=key, label=label, kind="choices", default=list(default), clears="")
