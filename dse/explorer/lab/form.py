"""Fields of the lab: the dump, the quantizers, and what of them is shown."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dse import quantizers
from dse.explorer import common_fields
from dse.explorer.fields import PageField
from dse.explorer.lab.dumps import SAMPLE, dump_names
from dse.measure import kernels, lab
from dse.measure.lab import ERRORS


def _compared(text: str, values: Mapping[str, Any]) -> None:
    for name in compared_of(text):
        spec = quantizers.parse(name)
        kernels.check(spec, kernels.Settings(1, "raise", None))


def compared_of(text: str) -> list[str]:
    """The quantizers of the field "compared", with their parameters."""
    return [name.strip() for name in text.split(";") if name.strip()]


COMPARED = PageField(
    key="lab_compared",
    label="Compared",
    kind="text",
    default="fp8; int4_per_token_head; nqkv",
    check=_compared,
    may_be_empty=True,
    placeholder="fp8; kivi:bits=4,group=32",
    help="Quantizers with semicolons between, each with its parameters behind a colon. All run on the whole dump.",
)


def closely(values: Mapping[str, Any]) -> str:
    """The quantizer of the field, or the first that is compared, with its parameters; "compared" may be empty."""
    compared = values.get(COMPARED.key) or COMPARED.default
    return values.get(QUANTIZER.key) or [*compared_of(compared), *compared_of(COMPARED.default)][0]


DATA = PageField(
    key="lab_data",
    label="KV dump",
    kind="choice",
    default=SAMPLE,
    choices=dump_names,
    titles=lambda name: "the sample that ships (SmolLM2-135M)" if name == SAMPLE else name,
    help="Keys and values as a cache holds them. The sample is of SmolLM2-135M, not your model.",
)
QUANTIZER = replace(
    common_fields.FAMILY,
    key="lab_quantizer",
    default=None,
    choices=kernels.measurable,
    clears="lab_parameters",
    placeholder="the first compared",
    help="Run by its bit-exact kernel, on every layer.",
)
PARAMETERS = replace(
    common_fields.PARAMETERS,
    key="lab_parameters",
    check=lambda text, values: quantizers.parse(f"{closely(values).partition(':')[0]}:{text}"),
)
ERROR = PageField(
    key="lab_error",
    label="Error shown",
    kind="choice",
    default="sqnr_db",
    choices=lambda: list(ERRORS),
    titles=lambda name: ERRORS[name][0],
    help="Of the tensor as attention sees it, tokens kept in FP16 included. Attention: relative error of its output, "
    "share of its weights moved to other tokens, divergence of the weights.",
)
PATH = PageField(
    key="lab_path",
    label="Path of a dump on this machine",
    kind="text",
    default="",
    placeholder="/data/keys.safetensors",
    help="A file that is too large to load: it is read where it lies, a layer at a time. Only where the explorer "
    "serves this machine alone.",
)
SIDE = PageField(
    key="lab_side",
    label="Keys or values",
    kind="choice",
    default="key",
    choices=lambda: list(lab.SIDES),
    titles=lambda side: f"{side}s",
    help="Most quantizers store the two differently.",
)
LAYER = PageField(
    key="lab_layer", label="Layer", kind="whole", default=0, high=999_999, help="Counted from 0, as the dump does."
)
HEAD = PageField(
    key="lab_head",
    label="Head",
    kind="whole",
    default=0,
    high=999_999,
    help="Head of the keys and values, counted from 0.",
)
FIRST = PageField(
    key="lab_first",
    label="First token shown",
    kind="whole",
    default=0,
    high=2**30,
    step=256,
    help="Where the maps begin.",
)
HEADS = PageField(
    key="lab_heads",
    label="Heads of flat tensors",
    kind="whole",
    default=None,
    low=1,
    high=2**20,
    placeholder="as the file says, else one",
    help="Only for tensors [tokens, channels], whose heads lie side by side.",
)
REPLACE = PageField(
    key="lab_replace",
    label="Take NaN as 0 and infinities as 65,504",
    kind="switch",
    default=False,
    help="Else a dump that holds such values is refused.",
)
#: what the page asks for
FIELDS = (DATA, COMPARED, QUANTIZER, PARAMETERS, SIDE, LAYER, HEAD, FIRST, ERROR, HEADS, REPLACE)
