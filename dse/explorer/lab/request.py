"""A quantizer run on a dump: what the lab computes, as a command and as Python."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from dse import quantizers
from dse.explorer.lab.form import ERROR, FIRST, HEAD, HEADS, LAYER, PARAMETERS, REPLACE, SIDE, closely
from dse.figures.export.lab import MAX_TOKENS
from dse.measure import lab
from dse.measure.lab import DumpMeasurement, HeadView, Held, ReadOptions
from dse.operations.declare import words_of
from dse.operations.dumps import InspectQuantizer
from dse.operations.face import call_of, script


@dataclass(frozen=True)
class LabRequest:
    """A dump by its hash, a quantizer by its full name, and what of it is looked at."""

    sha256: str
    quantizer: str
    how: ReadOptions
    side: Any = "key"
    layer: int = 0
    head: int = 0
    first: int = 0
    error: str = "sqnr_db"


def how_of(values: Mapping[str, Any]) -> ReadOptions:
    """Options by which the fields have the dump read."""
    return ReadOptions(values[HEADS.key], "replace" if values[REPLACE.key] else "raise")


def lab_request(values: dict[str, Any], held: Held) -> LabRequest:
    """Build the request of the page's fields for a dump. Raises InputError."""
    text, name = values[PARAMETERS.key].strip(), closely(values)
    spec = quantizers.parse(f"{name.partition(':')[0]}:{text}" if text else name)
    return LabRequest(
        sha256=held.sha256,
        quantizer=spec.name,
        how=how_of(values),
        side=values[SIDE.key],
        layer=values[LAYER.key],
        head=values[HEAD.key],
        first=values[FIRST.key],
        error=values[ERROR.key],
    )


def place_of(asked: LabRequest) -> tuple[ReadOptions, int, Any, int, int, int]:
    """Head and tokens shown closely, as arguments of `dse.measure.lab`."""
    return asked.how, asked.layer, asked.side, asked.head, asked.first, MAX_TOKENS


_HASHES: dict[str | type[Any], Callable[[Any], Any]] = {LabRequest: repr}


@st.cache_data(max_entries=32, ttl="1h", show_spinner=False, hash_funcs=_HASHES)
def cached_measured(_held: Held, asked: LabRequest) -> DumpMeasurement:
    """The quantizer on the whole dump. Raises DseError."""
    return lab.measured(_held, quantizers.parse(asked.quantizer), asked.how)


@st.cache_data(max_entries=32, ttl="1h", show_spinner=False, hash_funcs=_HASHES)
def cached_view(_held: Held, asked: LabRequest) -> HeadView:
    """One head of the dump. Raises DseError."""
    return lab.view(_held, quantizers.parse(asked.quantizer), *place_of(asked))


def operation(held: Held, asked: LabRequest) -> InspectQuantizer:
    """The inspection as an operation, from which its command and script are made."""
    return InspectQuantizer(
        source=None if held.thresholds_file is not None else held.name,
        method=asked.quantizer,
        out="lab",
        layer=asked.layer,
        side=asked.side,
        head=asked.head,
        first=asked.first,
        error=asked.error,
        heads=asked.how.n_heads,
        nonfinite=asked.how.nonfinite,
    )


def command(held: Held, asked: LabRequest) -> str:
    """The command line that writes the same tables."""
    return shlex.join(words_of(operation(held, asked)))


def python(held: Held, asked: LabRequest, what: str) -> str:
    """Python script that computes the tables or the view as `result`."""
    return script(f"result = {call_of(operation(held, asked))}.{what}")
