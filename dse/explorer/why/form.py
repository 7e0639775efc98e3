"""Fields of the tab on quantization errors, and the inspection of a quantizer on a dump that they ask for."""

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from dse import quantizers
from dse.core.field import SWITCH, WHOLE, Field
from dse.explorer.bench import Bench
from dse.explorer.why.dumps import SAMPLE, loaded
from dse.figures.export.lab import MAX_TOKENS
from dse.measure import kernels, lab
from dse.measure.lab import ERRORS, DumpMeasurement, HeadView, Held, ReadOptions
from dse.operations.dumps import InspectQuantizer

#: what is compared where no design has a format that a kernel runs
_PLAIN = "fp8"


def _compared(text: str, values: Mapping[str, Any]) -> None:
    for name in names_of(text):
        kernels.check(quantizers.parse(name), kernels.Settings(1, "raise", None))


def names_of(text: str) -> list[str]:
    """The quantizers of the field "compared", with their parameters."""
    return [name.strip() for name in text.split(";") if name.strip()]


COMPARED = Field(
    name="lab_compared",
    label="Formats, the first one closely",
    default="",
    accepts=_compared,
    open_means="those of the designs; or fp8; kivi:bits=4,group=32",
    help="With semicolons between, each with its parameters behind a colon. All run on the whole dump.",
)
DATA = Field(
    name="lab_data",
    label="KV dump",
    default=SAMPLE,
    listed=lambda: {SAMPLE: "the sample (SmolLM2-135M)"} | {name: name for name in loaded()},
    help="Keys and values as a cache holds them. The sample is of SmolLM2-135M, not your model.",
)
ERROR = Field(
    name="lab_error",
    label="Error shown",
    default="sqnr_db",
    choices={name: error[0] for name, error in ERRORS.items()},
    help="Of the tensor as attention sees it, tokens kept in FP16 included. Attention: relative error of its output, "
    "share of its weights moved to other tokens, divergence of the weights.",
)
PATH = Field(
    name="lab_path",
    label="Path of a dump on this machine",
    default="",
    open_means="/data/keys.safetensors",
    help="A file that is too large to load: it is read where it lies, a layer at a time. Only where the explorer "
    "serves this machine alone.",
)
SIDE = Field(
    name="lab_side",
    label="Keys or values",
    default="key",
    choices={side: f"{side}s" for side in lab.SIDES},
    help="Most quantizers store the two differently.",
)
LAYER = Field(
    name="lab_layer",
    label="Layer",
    kind=WHOLE,
    default=0,
    low=0,
    high=999_999,
    help="Counted from 0, as the dump does.",
)
HEAD = Field(
    name="lab_head",
    label="Head",
    kind=WHOLE,
    default=0,
    low=0,
    high=999_999,
    help="Head of the keys and values, counted from 0.",
)
FIRST = Field(
    name="lab_first",
    label="First token",
    kind=WHOLE,
    default=0,
    low=0,
    high=2**30,
    step=256,
    help="Where the maps begin.",
)
HEADS = Field(
    name="lab_heads",
    label="Heads of flat tensors",
    kind=WHOLE,
    default=None,
    low=1,
    high=2**20,
    open_means="as the file says, else one",
    help="Only for tensors [tokens, channels], whose heads lie side by side.",
)
REPLACE = Field(
    name="lab_replace",
    label="Take NaN as 0 and infinities as 65,504",
    kind=SWITCH,
    default=False,
    help="Else a dump that holds such values is refused.",
)
VIEW = Field(
    name="lab_view",
    label="The first format, closely",
    default="bits",
    choices={
        "bits": "Bits by part",
        "errors": "Error by layer and head",
        "maps": "Values before and after",
        "histogram": "Histogram",
    },
)
#: what the tab asks for
FIELDS = (DATA, COMPARED, SIDE, LAYER, HEAD, FIRST, ERROR, HEADS, REPLACE, VIEW)
#: fields that each view takes
OF_VIEW = {
    "bits": (SIDE,),
    "errors": (SIDE, ERROR),
    "maps": (SIDE, LAYER, HEAD, FIRST),
    "histogram": (SIDE, LAYER, HEAD),
}


def compared_of(bench: Bench) -> tuple[str, ...]:
    """The quantizers of the field, else those of the designs that a kernel runs, the current one's first."""
    names = names_of(bench.values[COMPARED.key])
    if not names:
        rows = sorted(bench.answered, key=lambda row: row.at != bench.at)
        specs = [spec for row in rows for spec in row.request.quantizer_specs()]
        names = [spec.method for spec in specs if spec.family.name in kernels.measurable() and not spec.layers]
    return tuple(dict.fromkeys(quantizers.parse(name).name for name in names or [_PLAIN]))


def how_of(values: Mapping[str, Any]) -> ReadOptions:
    """Options by which the fields have the dump read."""
    return ReadOptions(values[HEADS.key], "replace" if values[REPLACE.key] else "raise")


def inspection(held: Held, quantizer: str, how: ReadOptions, layer: int = 0, **more: Any) -> InspectQuantizer:
    """The inspection of a quantizer on a dump, as the page's command and script ask for it."""
    source = None if held.thresholds_file is not None else held.name
    read: dict[str, Any] = {"heads": how.n_heads, "nonfinite": how.nonfinite}
    return InspectQuantizer(source=source, method=quantizer, out="lab", layer=layer, **read, **more)


def asked_of(values: Mapping[str, Any], held: Held, quantizer: str) -> InspectQuantizer:
    """The inspection of a quantizer that the page's fields ask for."""
    place = {field.key.removeprefix("lab_"): values[field.key] for field in (LAYER, SIDE, HEAD, FIRST, ERROR)}
    return inspection(held, quantizer, how_of(values), **place)


def place_of(asked: InspectQuantizer) -> tuple[ReadOptions, int, Any, int, int, int]:
    """Head and tokens shown closely, as arguments of `dse.measure.lab`."""
    how = ReadOptions(asked.heads, asked.nonfinite)
    return how, asked.layer or 0, asked.side, asked.head, asked.first, MAX_TOKENS


_HASHES: dict[str | type[Any], Callable[[Any], Any]] = {Held: lambda held: held.sha256, InspectQuantizer: repr}


@st.cache_data(max_entries=32, ttl="1h", show_spinner=False, hash_funcs=_HASHES)
def cached_measured(held: Held, quantizer: str, how: ReadOptions) -> DumpMeasurement:
    """The quantizer on the whole dump. Raises DseError."""
    return lab.measured(held, quantizers.parse(quantizer), how)


@st.cache_data(max_entries=32, ttl="1h", show_spinner=False, hash_funcs=_HASHES)
def cached_view(held: Held, asked: InspectQuantizer) -> HeadView:
    """One head of the dump. Raises DseError."""
    return lab.view(held, quantizers.parse(asked.method), *place_of(asked))
