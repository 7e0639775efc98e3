"""Fields of the lab, and the inspection of a quantizer on a dump that they ask for."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import streamlit as st

from dse import quantizers
from dse.core.field import SWITCH, WHOLE, Field
from dse.explorer import common_fields
from dse.explorer.lab.dumps import SAMPLE, loaded
from dse.figures.export.lab import MAX_TOKENS
from dse.measure import kernels, lab
from dse.measure.lab import ERRORS, DumpMeasurement, HeadView, Held, ReadOptions
from dse.operations.dumps import InspectQuantizer


def _compared(text: str, values: Mapping[str, Any]) -> None:
    for name in compared_of(text):
        spec = quantizers.parse(name)
        kernels.check(spec, kernels.Settings(1, "raise", None))


def compared_of(text: str) -> list[str]:
    """The quantizers of the field "compared", with their parameters."""
    return [name.strip() for name in text.split(";") if name.strip()]


COMPARED = Field(
    name="lab_compared",
    label="Compared",
    default="fp8; int4_per_token_head; nqkv",
    accepts=_compared,
    may_be_empty=True,
    open_means="fp8; kivi:bits=4,group=32",
    help="Quantizers with semicolons between, each with its parameters behind a colon. All run on the whole dump.",
)


def closely(values: Mapping[str, Any]) -> str:
    """The quantizer of the field, or the first that is compared, with its parameters; "compared" may be empty."""
    compared = values.get(COMPARED.key) or COMPARED.default
    return values.get(QUANTIZER.key) or [*compared_of(compared), *compared_of(COMPARED.default)][0]


DATA = Field(
    name="lab_data",
    label="KV dump",
    default=SAMPLE,
    listed=lambda: {SAMPLE: "the sample that ships (SmolLM2-135M)"} | {name: name for name in loaded()},
    help="Keys and values as a cache holds them. The sample is of SmolLM2-135M, not your model.",
)
QUANTIZER = replace(
    common_fields.FAMILY,
    name="lab_quantizer",
    default=None,
    listed=kernels.measurable,
    clears="lab_parameters",
    open_means="the first compared",
    help="Run by its bit-exact kernel, on every layer.",
)
PARAMETERS = replace(
    common_fields.PARAMETERS,
    name="lab_parameters",
    accepts=lambda text, values: quantizers.parse(f"{closely(values).partition(':')[0]}:{text}"),
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
    label="First token shown",
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
#: what the page asks for
FIELDS = (DATA, COMPARED, QUANTIZER, PARAMETERS, SIDE, LAYER, HEAD, FIRST, ERROR, HEADS, REPLACE)
#: of one quantizer, in the order of the page
CLOSELY = (SIDE, LAYER, PARAMETERS, ERROR, HEAD, FIRST)


def how_of(values: Mapping[str, Any]) -> ReadOptions:
    """Options by which the fields have the dump read."""
    return ReadOptions(values[HEADS.key], "replace" if values[REPLACE.key] else "raise")


def inspection(held: Held, quantizer: str, how: ReadOptions, layer: int = 0, **more: Any) -> InspectQuantizer:
    """The inspection of a quantizer on a dump, as the page's command and script ask for it."""
    source = None if held.thresholds_file is not None else held.name
    read: dict[str, Any] = {"heads": how.n_heads, "nonfinite": how.nonfinite}
    return InspectQuantizer(source=source, method=quantizer, out="lab", layer=layer, **read, **more)


def asked_of(values: dict[str, Any], held: Held) -> InspectQuantizer:
    """The inspection that the page's fields ask for. Raises InputError."""
    text, name = values[PARAMETERS.key].strip(), closely(values)
    spec = quantizers.parse(f"{name.partition(':')[0]}:{text}" if text else name)
    place = {field.key.removeprefix("lab_"): values[field.key] for field in (LAYER, SIDE, HEAD, FIRST, ERROR)}
    return inspection(held, spec.name, how_of(values), **place)


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
