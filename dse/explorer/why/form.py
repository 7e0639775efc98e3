"""Fields of the tab on quantization errors, and the inspection of a quantizer on a dump that they ask for."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import streamlit as st

from dse import quantizers
from dse.core.field import Field, declarations
from dse.explorer.bench import Bench
from dse.explorer.why.dumps import OWN, SAMPLE
from dse.figures.export.lab import MAX_TOKENS
from dse.measure import kernels, lab
from dse.measure.lab import ERRORS, DumpMeasurement, HeadView, Held, ReadOptions
from dse.operations.dumps import InspectQuantizer

#: what is compared where no design has a format that a kernel runs
_PLAIN = "fp8"
_MOST = 999_999


def _compared(text: str, values: Mapping[str, Any]) -> None:
    for name in names_of(text):
        kernels.check(quantizers.parse(name), kernels.Settings(1, "raise", None))


def names_of(text: str) -> list[str]:
    """The quantizers of the field "compared", with their parameters."""
    return [name.strip() for name in text.split(";") if name.strip()]


def _of_lab(option: str, **here: Any) -> Field:
    """An option of `dse lab` as the tab asks for it."""
    return replace(declarations(InspectQuantizer)[option], name=f"lab_{option}", **here)


COMPARED = Field(
    name="lab_compared",
    label="Formats, the first one closely",
    default="",
    accepts=_compared,
    open_means="those of the designs; or fp8; kivi:bits=4,group=32",
    help="With semicolons between, each with its parameters behind a colon. All run on the whole dump.",
)
DATA = Field(
    name=OWN.field,
    label="KV dump",
    default=SAMPLE,
    listed=lambda: {SAMPLE: "the sample (SmolLM2-135M)"} | OWN.names(),
    help="Keys and values as a cache holds them. The sample is of SmolLM2-135M, not your model.",
)
SIDE = _of_lab("side", label="Keys or values", choices={side: f"{side}s" for side in lab.SIDES})
ERROR = _of_lab("error", label="Error shown", choices={name: error[0] for name, error in ERRORS.items()})
LAYER = _of_lab("layer", label="Layer", low=0, high=_MOST, open_means="the first")
HEAD = _of_lab("head", label="Head", low=0, high=_MOST)
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
FIELDS = (DATA, COMPARED, SIDE, LAYER, HEAD, ERROR, VIEW)
#: fields that each view takes
OF_VIEW = {"bits": (), "errors": (SIDE, ERROR), "maps": (SIDE, LAYER, HEAD), "histogram": (SIDE, LAYER, HEAD)}


def compared_of(bench: Bench) -> tuple[str, ...]:
    """The quantizers of the field, else those of the designs that a kernel runs, the current one's first."""
    names = names_of(bench.values[COMPARED.key])
    if not names:
        rows = sorted(bench.answered, key=lambda row: row.at != bench.at)
        specs = [spec for row in rows for spec in row.request.quantizer_specs()]
        names = [spec.method for spec in specs if spec.family.name in kernels.measurable() and not spec.layers]
    return tuple(dict.fromkeys(quantizers.parse(name).name for name in names or [_PLAIN]))


def inspection(held: Held, quantizer: str, **more: Any) -> InspectQuantizer:
    """The inspection of a quantizer on a dump, as the page's command and script ask for it."""
    source = None if held.thresholds_file is not None else held.name
    return InspectQuantizer(source=source, method=quantizer, out="lab", **more)


def asked_of(values: Mapping[str, Any], held: Held, quantizer: str) -> InspectQuantizer:
    """The inspection of a quantizer that the page's fields ask for."""
    place = {field.key.removeprefix("lab_"): values[field.key] for field in (LAYER, SIDE, HEAD, ERROR)}
    return inspection(held, quantizer, **place)


_HASHES: dict[str | type[Any], Callable[[Any], Any]] = {Held: lambda held: held.sha256, InspectQuantizer: repr}


@st.cache_data(max_entries=32, ttl="1h", show_spinner=False, hash_funcs=_HASHES)
def cached_measured(held: Held, quantizer: str) -> DumpMeasurement:
    """The quantizer on the whole dump. Raises DseError."""
    return lab.measured(held, quantizers.parse(quantizer), ReadOptions())


@st.cache_data(max_entries=32, ttl="1h", show_spinner=False, hash_funcs=_HASHES)
def cached_view(held: Held, asked: InspectQuantizer) -> HeadView:
    """One head of the dump. Raises DseError."""
    layer = held.indices[0] if asked.layer is None else asked.layer
    place = layer, asked.side, asked.head, asked.first, MAX_TOKENS
    return lab.view(held, quantizers.parse(asked.method), ReadOptions(), *place)
