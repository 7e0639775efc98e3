"""Fields of the front page: what is varied, and what counts."""

from collections.abc import Mapping
from typing import Any

from dse import quantizers
from dse.core.errors import InputError
from dse.explorer import names, uploads
from dse.explorer.fields import PageField
from dse.explorer.front.limits import limits_in, objective_names
from dse.explorer.front.text import more_axes, problem_of
from dse.specs import catalog

_HOW = "Values with commas between, or a range: `1 to 256 factor 2`, `16 to 64 step 16`, `1 TB/s to 4 TB/s count 7`."


def _axis(name: str) -> Any:
    def check(text: str, values: Mapping[str, Any]) -> None:
        if wrong := problem_of(name, text):
            raise InputError(wrong)

    return check


def _more(text: str, values: Mapping[str, Any]) -> None:
    for name, raw in more_axes(text, OWN):
        _axis(name)(raw, values)


def _limited(kind: str) -> Any:
    def check(text: str, values: Mapping[str, Any]) -> None:
        limits_in(text, kind)

    return check


DEVICES = PageField(
    key="front_devices",
    label="Devices",
    kind="choices",
    default=[],
    choices=lambda: [*catalog.device_files(), *uploads.names("device")],
    placeholder="the current design's",
    help="Shipped devices, and files of your own.",
)
MODELS = PageField(
    key="front_models",
    label="Language models",
    kind="choices",
    default=[],
    choices=lambda: [*catalog.model_files(), *uploads.names("model")],
    placeholder="the current design's",
    help="Shipped models, and files of your own.",
)
QUANTIZERS = PageField(
    key="front_quantizers",
    label="KV formats",
    kind="choices",
    default=["fp16", "fp8", "int8_per_token_head", "int4_per_token_head", "kivi"],
    choices=lambda: [*quantizers.FAMILIES, *uploads.names("plan")],
    help="Their parameters are varied under More axes: kivi.bits = 2, 4.",
)
BATCHES = PageField(
    key="front_batches",
    label="Batches (requests)",
    kind="text",
    default="1 to 256 factor 2",
    check=_axis("batch"),
    help=f"Requests that are served together. {_HOW}",
)
TPS = PageField(
    key="front_tps",
    label="Tensor parallel (devices)",
    kind="text",
    default="1, 2, 4, 8",
    check=_axis("tp"),
    placeholder="as the design",
    may_be_empty=True,
    help=f"Devices that every layer is split over. {_HOW}",
)
INPUTS = PageField(
    key="front_inputs",
    label="Prompts (tokens)",
    kind="text",
    default="",
    check=_axis("input_tokens"),
    placeholder="as the workload",
    help=f"Left open: the workload's, since shorter prompts always win. {_HOW}",
)
OUTPUTS = PageField(
    key="front_outputs",
    label="Generated (tokens)",
    kind="text",
    default="",
    check=_axis("output_tokens"),
    placeholder="as the workload",
    help=_HOW,
)
BANDWIDTHS = PageField(
    key="front_bandwidths",
    label="Memory bandwidths",
    kind="text",
    default="",
    check=_axis("memory_bandwidth"),
    placeholder="as each device",
    help=f"In place of the devices' own. {_HOW}",
)
CAPACITIES = PageField(
    key="front_capacities",
    label="Memory capacities",
    kind="text",
    default="",
    check=_axis("memory_capacity"),
    placeholder="as each device",
    help="In place of the devices' own: `80 GB, 160 GB`, or a range as for bandwidths.",
)
MORE = PageField(
    key="front_axes",
    label="More axes",
    kind="text",
    default="",
    check=_more,
    placeholder="weights_bits = 16, 8; kivi.bits = 2, 4",
    help="Anything else that a sweep can vary, with semicolons between: admission, tokens, numbers of a device, "
    "parameters of a quantizer.",
)
WHERE = PageField(
    key="front_where",
    label="Only designs where",
    kind="text",
    default="",
    placeholder="batch * tp <= 512",
    help="A condition on the axes, as in a sweep file: names, numbers, quoted names, comparisons, and, or, not, in.",
)
MAXIMIZE = PageField(
    key="front_maximize",
    label="More is better",
    kind="choices",
    default=["throughput_tokens_per_s"],
    choices=objective_names,
    titles=names.titled,
    help="Results of which a design should have much.",
)
MINIMIZE = PageField(
    key="front_minimize",
    label="Less is better",
    kind="choices",
    default=["measured_error"],
    choices=objective_names,
    titles=names.titled,
    help="Results of which a design should have little: time of a step, energy, cost, bits.",
)
BY = PageField(
    key="front_by",
    label="A front for each",
    kind="choices",
    default=["tp"],
    choices=lambda: ["tp", "device", "model", "quantizer", "batch", "input_tokens", "output_tokens"],
    titles=names.words,
    placeholder="one front of all",
    help="Designs compete only with those that have the same values here.",
)
AT_MOST = PageField(
    key="front_at_most",
    label="At most",
    kind="text",
    default="TPOT = 100 ms; Error of the attention output =",
    check=_limited("at most"),
    placeholder="no limit",
    may_be_empty=True,
    help="Results and counts of which a design may have no more than a limit: each chosen one has a field below.",
)
AT_LEAST = PageField(
    key="front_at_least",
    label="At least",
    kind="text",
    default="",
    check=_limited("at least"),
    placeholder="no limit",
    may_be_empty=True,
    help="Results and counts of which a design must have no less than a limit: each chosen one has a field above.",
)
LIMITS = (AT_MOST, AT_LEAST)
#: text fields that give an axis each
AXIS_FIELDS = {
    "batch": BATCHES,
    "tp": TPS,
    "input_tokens": INPUTS,
    "output_tokens": OUTPUTS,
    "memory_bandwidth": BANDWIDTHS,
    "memory_capacity": CAPACITIES,
}
OWN = {"device", "model", "quantizer", *AXIS_FIELDS}
#: of the sweep
AXES = (QUANTIZERS, BATCHES, TPS, DEVICES, MODELS, INPUTS, OUTPUTS, BANDWIDTHS, CAPACITIES, MORE, WHERE)
OBJECTIVES = (MAXIMIZE, MINIMIZE, BY, *LIMITS)
FILTER = PageField(
    key="front_filter",
    label="Of the front show only",
    kind="text",
    default="",
    placeholder='quantizer == "fp8" and batch >= 16',
    help="A condition on any column of the table below, in base units (s, B, B/s): decode_step_s <= 0.05.",
)
#: what the page asks for beside the designs and the workload
FIELDS = (*OBJECTIVES, *AXES, FILTER)
#: those that stand open, and the others
SHOWN = (QUANTIZERS, BATCHES, TPS, MAXIMIZE, MINIMIZE, AT_MOST)
FOLDED = tuple(field for field in (*OBJECTIVES, *AXES) if field not in SHOWN)
