"""The quantizer lab: a KV dump, and what a quantizer does to it: bits, errors by head, values before and after."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from dse import measure, measure_view, present, quantizers
from dse.errors import DseError
from dse.explorer import beside, figure, lab_dump, request, shared, state, widgets
from dse.explorer.beside import MadeBy
from dse.explorer.fields import Field
from dse.measure_view import ATTENTION, ERRORS, Held, How, Measured, View
from dse.plots import lab as charts
from dse.report_lab import MAX_CHANNELS, MAX_TOKENS

PAGE = "lab"
QUANTIZER = replace(
    shared.FAMILY, key="lab_quantizer", choices=lambda: list(measure.RUN), clears="lab_parameters",
    help="Run by its bit-exact kernel, on every layer.",
)  # fmt: skip
PARAMETERS = replace(
    shared.PARAMETERS, key="lab_parameters",
    check=lambda text, values: quantizers.parse(f"{values.get('lab_quantizer') or QUANTIZER.default}:{text}"),
)  # fmt: skip
ERROR = Field(
    "lab_error", "Error shown", "choice", "sqnr_db", choices=lambda: list(ERRORS),
    titles=lambda name: ERRORS[name][0],
    help="Of the tensor as attention sees it, tokens kept in FP16 included. Attention: relative error of its output, "
    "share of its weights moved to other tokens, divergence of the weights.",
)  # fmt: skip
SIDE = Field(
    "lab_side", "Keys or values", "choice", "key", choices=lambda: list(measure_view.SIDES),
    titles=lambda side: f"{side}s", help="Most quantizers store the two differently.",
)  # fmt: skip
LAYER = Field("lab_layer", "Layer", "whole", 0, high=999_999, help="Counted from 0, as the dump does.")
HEAD = Field("lab_head", "Head", "whole", 0, high=999_999, help="Head of the keys and values, counted from 0.")
FIRST = Field("lab_first", "First token shown", "whole", 0, high=2**30, step=256, help="Where the maps begin.")
HEADS = Field(
    "lab_heads", "Heads of flat tensors", "whole", None, low=1, high=2**20, placeholder="as the file says, else one",
    help="Only for tensors [tokens, channels], whose heads lie side by side.",
)  # fmt: skip
REPLACE = Field(
    "lab_replace", "Take NaN as 0 and infinities as 65,504", "switch", False,
    help="Else a dump that holds such values is refused.",
)  # fmt: skip
#: what the page asks for
FIELDS = (lab_dump.DATA, QUANTIZER, PARAMETERS, SIDE, LAYER, HEAD, FIRST, ERROR, HEADS, REPLACE)
#: room for the legend of the bits, which takes several lines on a phone
LEGEND_PX = 60
_WAIT = "Quantising every layer; on a new installation a quantizer compiles first, for up to a minute"


@dataclass(frozen=True)
class Asked:
    """A dump by its hash, a quantizer by its full name, and what of it is looked at."""

    sha256: str
    quantizer: str
    how: How
    side: Any = "key"
    layer: int = 0
    head: int = 0
    first: int = 0
    error: str = "sqnr_db"


def render() -> None:
    """Draw the page."""
    values = state.open_page(PAGE, FIELDS)
    st.title("Quantizer lab", anchor=False)
    st.caption("What does a quantizer really store for these keys and values, and what does it do to them?")
    with st.sidebar:
        widgets.draw(lab_dump.DATA)
        lab_dump.load()
        for field in (QUANTIZER, PARAMETERS):
            widgets.draw(field)
        st.caption(widgets.escaped(f"Defaults: {request.family_defaults(values[QUANTIZER.key])}"))
        for field in (SIDE, LAYER, HEAD, FIRST, ERROR):
            widgets.draw(field)
        with st.expander("How the dump is read"):
            for field in (HEADS, REPLACE):
                widgets.draw(field)
    with said():
        held = lab_dump.held(values[lab_dump.DATA.key])
        asked = of(values, held)
        show_data(held)
        address = state.address(PAGE, FIELDS, values)
        show_measured(values[lab_dump.DATA.key], asked, address)
        show_view(values[lab_dump.DATA.key], asked, address)


def of(values: dict[str, Any], held: Held) -> Asked:
    """What the fields ask of a dump. Raises InputError."""
    text = values[PARAMETERS.key].strip()
    spec = quantizers.parse(f"{values[QUANTIZER.key]}:{text}" if text else values[QUANTIZER.key])
    how = How(values[HEADS.key], "replace" if values[REPLACE.key] else "raise")
    return Asked(
        held.sha256, spec.name, how, values[SIDE.key], values[LAYER.key], values[HEAD.key], values[FIRST.key],
        values[ERROR.key],
    )  # fmt: skip


@contextmanager
def said() -> Iterator[None]:
    """Errors of a part of the page are said in its place, as plain text."""
    try:
        yield
    except DseError as error:
        widgets.problem(error)


def show_data(held: Held) -> None:
    """What the dump is of."""
    if held.about.synthetic:
        st.warning("Synthetic data: no language model's keys and values. Load a dump to see your own.", icon="⚠️")
    words = [held.name, held.about.model, f"{len(held.layers):,} layers", held.about.note]
    st.text(", ".join(word for word in words if word))


@st.fragment(parallel=True)
def show_measured(name: str, asked: Asked, address: str) -> None:
    """Bits by part and errors by layer and head, of all layers.

    The dump by its name: a fragment's arguments stay in memory until the session's next run.
    """
    with said(), st.spinner(_WAIT):
        held = lab_dump.held(name)
        everywhere = Asked(asked.sha256, asked.quantizer, asked.how)
        found = cached_measured(held, everywhere)
        made = MadeBy(command(held, asked), python(held, asked, "measured"), address)
        show_numbers(found, asked)
        source = (found.thresholds,) if found.thresholds else ()
        chart = charts.bits(found.ledger, "Bits an element as stored", source)
        beside.show("bits", chart, lambda: found.ledger, made, figure.tall(chart, LEGEND_PX))
        own = found.errors[found.errors["side"] == asked.side]
        error, unit, more = ERRORS[asked.error]
        if own[asked.error].notna().any():
            title = f"{error[0].upper()}{error[1:]} by layer and head, {asked.side}s"
            notes = (f"{'More' if more else 'Less'} is better.", *([found.queries] if asked.error in ATTENTION else []))
            chart = charts.heads(own, asked.error, error, unit, title, notes)
            beside.show("errors", chart, lambda: found.errors, made, figure.map_of(chart))
        else:
            st.info("This error is not there: attention needs keys and values, and a ratio needs something to divide.")


def show_numbers(found: Measured, asked: Asked) -> None:
    """The numbers of the whole dump."""
    bits = found.ledger.set_index("quantizer").loc[f"{asked.side}s"]
    whole = found.errors[found.errors["layer"].isna() & (found.errors["side"] == asked.side)].iloc[0]
    shown = {
        f"Stored, {asked.side}s": (bits["stored_bits"], "bit", "Bits an element of the packed bytes."),
        "As papers count": (bits["effective_bits"], "bit", "Without counts, padding and tokens kept in FP16."),
        "By formula, both": (found.nominal_bits, "bit", "Stored bits by the closed form with nominal shares."),
        "Signal to noise": (whole["sqnr_db"], "dB", "Of all layers and heads together."),
        "Largest error": (whole["max_abs_error"], "1", "Of any element."),
    }  # fmt: skip
    with st.container(horizontal=True):
        for label, (number, unit, meaning) in shown.items():
            text = "-" if pd.isna(number) else present.number(float(number), unit)
            st.metric(label, text, border=True, help=meaning)


@st.fragment(parallel=True)
def show_view(name: str, asked: Asked, address: str) -> None:
    """One head: its histogram, and its tokens before, after, and their difference."""
    place = f"layer {asked.layer:,}, head {asked.head:,}, {asked.side}s"
    with said(), st.spinner(_WAIT):
        held = lab_dump.held(name)
        found = cached_view(held, replace(asked, error=ERROR.default))
        made = MadeBy(command(held, asked), python(held, asked, "view"), address)
        chart = charts.histogram(found.histogram, found.marks, f"Values before and after, {place}")
        beside.show("histogram", chart, lambda: found.histogram, made, figure.fitted(chart))
        before, after = found.before[:, :MAX_CHANNELS], found.after[:, :MAX_CHANNELS]
        last = found.first_token + len(before) - 1
        st.caption(f"Tokens {found.first_token:,} to {last:,} of {found.n_tokens:,}.")
        both = charts.scale("value", "", before, after)
        off = abs(after - before)
        parts = {
            "before": (before, "value", both), "after": (after, "value", both),
            "error": (off, "absolute error", charts.scale("absolute error", "", off, 0)),
        }  # fmt: skip
        for when, (part, what, colours) in parts.items():
            chart = charts.values(part, found.first_token, what, colours, f"{when[0].upper()}{when[1:]}, {place}")
            beside.show(f"map-{when}", chart, partial(frame, part, found.first_token), made, figure.map_of(chart))


def frame(part: Any, first_token: int) -> pd.DataFrame:
    """A map as a table: a row a token, a column a channel."""
    found = pd.DataFrame(part, columns=[f"channel_{i}" for i in range(part.shape[1])])
    found.insert(0, "token", range(first_token, first_token + len(found)))
    return found


_HASHES: dict[str | type[Any], Callable[[Any], Any]] = {Asked: repr}


@st.cache_data(max_entries=32, ttl="1h", show_spinner=False, hash_funcs=_HASHES)
def cached_measured(_held: Held, asked: Asked) -> Measured:
    """The quantizer on the whole dump. Raises DseError."""
    return measure_view.measured(_held, quantizers.parse(asked.quantizer), asked.how)


@st.cache_data(max_entries=32, ttl="1h", show_spinner=False, hash_funcs=_HASHES)
def cached_view(_held: Held, asked: Asked) -> View:
    """One head of the dump. Raises DseError."""
    return measure_view.view(
        _held, quantizers.parse(asked.quantizer), asked.how, asked.layer, asked.side, asked.head, asked.first,
        MAX_TOKENS,
    )  # fmt: skip


def command(held: Held, asked: Asked) -> str:
    """The command line that writes the same tables."""
    words = ["dse", "lab", *([] if held.thresholds is not None else [held.name]), "--method", asked.quantizer]
    words += ["--layer", str(asked.layer), "--side", asked.side, "--head", str(asked.head)]
    words += ["--first", str(asked.first), "--error", asked.error]
    words += ["--heads", str(asked.how.n_heads)] if asked.how.n_heads else []
    words += ["--nonfinite", asked.how.nonfinite] if asked.how.nonfinite != "raise" else []
    return shlex.join([*words, "--out", "lab"])


def python(held: Held, asked: Asked, what: str) -> str:
    """The same in Python: a script that ends with `result`."""
    place = f"{asked.layer}, {asked.side!r}, {asked.head}, {asked.first}, {MAX_TOKENS}"
    dump = "measure_view.sample()" if held.thresholds is not None else f"measure_view.hold({held.name!r})"
    return "\n".join([
        "from dse import measure_view, quantizers", "", f"dump = {dump}",
        f"spec = quantizers.parse({asked.quantizer!r})", f"how = measure_view.{asked.how!r}",
        "result = measure_view.measured(dump, spec, how)" if what == "measured"
        else f"result = measure_view.view(dump, spec, how, {place})",
    ])  # fmt: skip
