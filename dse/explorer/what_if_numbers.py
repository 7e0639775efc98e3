"""The numbers of the what-if page: side by side, against the first design, each opening its explanation."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

from dse.errors import DseError
from dse.explorer import designs, request
from dse.explorer.parts import part
from dse.explorer.request import Answer, Request
from dse.explorer.widgets import escaped, problem

Designs = Mapping[int, tuple[Request, Answer]]

#: on top: label, result, tooltip
HEADLINE = (
    ("Throughput", "throughput_tokens_per_s", "Tokens generated a second, all requests together."),
    ("Decode step", "decode_step_s", "Mean time in which every running request gets one token."),
    ("KV cache", "kv_bytes", "Keys and values of the whole batch, all requests at their final length."),
    ("Largest batch", "max_batch", "Requests that fit at once."),
)
#: below: heading, then label, result, tooltip
GROUPS = (
    ("What fits, what binds", (
        ("Fits", "feasible", "At least one request fits."),
        ("What binds", "bound", "What most of the time, or the memory, goes into."),
        ("Largest batch", "max_batch", "Requests that fit at once."),
        ("Running at once", "running_batch", "Requests of the batch that run together."),
        ("Longest context", "max_context_tokens", "Prompt and output, for all requests at once."),
    )),
    ("Memory", (
        ("Weights", "weight_bytes", "The model's weights."),
        ("KV cache", "kv_bytes", "Of the whole batch, all requests at their final length."),
        ("KV cache per token", "kv_bytes_per_token", "Of one request."),
        ("Memory it needs", "min_capacity_bytes", "To run the whole batch at once: the smallest device that does."),
        ("Device memory", "capacity_bytes", "As the device's file says."),
    )),
    ("Time", (
        ("Throughput", "throughput_tokens_per_s", "Tokens generated a second, all requests together."),
        ("Decode step", "decode_step_s", "Mean time in which every running request gets one token."),
        ("Prefill", "prefill_s", "Time to compute the prompts before the first token."),
        ("Total", "total_s", "The whole batch from the first prompt to the last token."),
    )),
    ("Energy and cost", (
        ("Energy", "joules_per_token", "At the power of the whole board."),
        ("Energy by parts", "joules_per_token_by_parts", "By bytes moved, operations and idling."),
        ("Cost", "usd_per_million_tokens", "At the device's price per hour."),
    )),
    ("Bits and error", (
        ("Effective bits", "effective_bits", "Bits an element as the method's paper counts them."),
        ("Stored bits", "stored_bits", "Bits an element with all that is stored beside the codes."),
        ("Attention error", "measured_error", "Relative error of its output, as measured (More)."),
        ("Signal to noise", "sqnr_db", "Signal to quantization noise of keys and values, measured."),
    )),
)  # fmt: skip
#: pixels: of a number on top, two of a row on a phone; of a row's label and of each design's number
_WIDTH, _LABEL, _CELL = 171, 175, 150


def headline(found: Designs) -> None:
    """The numbers on top, as many in a row as the screen takes; the others against the first design."""
    first = next(iter(found.values()))[1].result
    for place, (_, answer) in found.items():
        with st.container(horizontal=True, key=f"headline {place}"):
            for label, name, tip in HEADLINE:
                delta = designs.delta(name, answer.result, first) if answer.result is not first else ""
                st.metric(
                    label if len(found) == 1 else f"{place}: {label}", escaped(designs.shown(name, answer.result)),
                    delta or None, delta_color="off", delta_arrow="off", help=tip, border=True, width=_WIDTH,
                )  # fmt: skip


@part
def show(found: Designs) -> None:
    """Every number, a column a design; alone, the groups stand side by side. A fragment: opening one draws no more."""
    st.subheader("Every number, and where it comes from", anchor=False)
    st.caption("Press a number for its formula, values, units and sources. GB is a thousand million bytes.")
    if len(found) == 1:
        columns = st.columns(3)
        for i, (heading, entries) in enumerate(GROUPS):
            with columns[i % 3].container(gap="xsmall"):
                st.markdown(f"**{escaped(heading)}**")
                for label, name, tip in entries:
                    _number(found, 1, name, tip, f"{escaped(label)}: ")
    else:
        for heading, entries in GROUPS:
            st.markdown(f"**{escaped(heading)}**")
            with st.container(gap="xsmall"):
                for label, name, tip in entries:
                    with st.container(horizontal=True, gap="xsmall", vertical_alignment="center"):
                        st.markdown(escaped(label), width=_LABEL, help=tip)
                        for place in found:
                            _number(found, place, name, "", f"{place}: ", width=_CELL)
    for place, (_, answer) in found.items():
        with st.expander("All of it as text" if len(found) == 1 else f"{place}: all of it as text"):
            st.code(answer.text, language=None, wrap_lines=True)


def _number(found: Designs, place: int, name: str, tip: str, before: str, width: Any = "content") -> None:
    """A number as a button that opens its explanation, which is worked out when it is opened."""
    asked, answer = found[place]
    first = next(iter(found.values()))[1].result
    delta = "" if answer.result is first else designs.delta(name, answer.result, first)
    text = f"{before}**{escaped(designs.shown(name, answer.result))}**" + (f" ({escaped(delta)})" if delta else "")
    box = st.popover(
        text, type="tertiary", help=tip or None, key=f"{place} number {name}", on_change="rerun", wrap=True, width=width
    )
    if box.open:
        with box:
            try:
                st.code(cached_explanation(asked, name), language=None, wrap_lines=True)
            except DseError as error:
                problem(error)


@st.cache_data(max_entries=256, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached_explanation(asked: Request, name: str) -> str:
    """Formula, values, units and sources of one result. Raises DseError."""
    return request.explanation(asked, name)
