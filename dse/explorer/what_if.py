"""The what-if page: one design point with sliders for everything, its numbers, where they come from, the figure."""

from functools import partial
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dse import token_policies, units
from dse.errors import DseError
from dse.explorer import bars, beside, figure, request, shared, state, widgets
from dse.explorer.beside import MadeBy
from dse.explorer.request import Answer, Request
from dse.explorer.widgets import escaped
from dse.point import RESULT_UNITS
from dse.present import number

#: the numbers on top: label, result
METRICS = (
    ("Throughput", "throughput_tokens_per_s"),
    ("Decode step", "decode_step_s"),
    ("Energy", "joules_per_token"),
    ("What binds", "bound"),
    ("Weights", "weight_bytes"),
    ("KV cache, whole batch", "kv_bytes"),
    ("Largest batch", "max_batch"),
    ("Longest context", "max_context_tokens"),
)
#: what is explained besides
ALSO_EXPLAINED = (("Running at once", "running_batch"), ("Effective bits", "effective_bits"))


PAGE = "what-if"
#: what the page asks for
FIELDS = shared.DESIGN


def render() -> None:
    """Draw the page."""
    values = state.open_page(PAGE, FIELDS)
    st.title("KV cache: what if?", anchor=False)
    error_place = ask(values)
    try:
        asked = request.of(values)
        found = cached_answer(asked)
        made = MadeBy(request.command(asked), request.python(asked), state.address(PAGE, FIELDS, values))
    except DseError as error:
        with error_place:
            widgets.problem(error)
        st.info("Nothing to show yet: the message beside the quantizer says what to change.")
        return
    show_summary(asked, found)
    show_metrics(found)
    show_figures(asked, found, made)
    show_explanations(found)


def ask(values: dict[str, Any]) -> DeltaGenerator:
    """The widgets; returns the place for a message."""
    with st.sidebar:
        for field in FIELDS:
            widgets.draw(field)
        return st.container()


@st.cache_data(max_entries=256, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached_answer(asked: Request) -> Answer:
    """The answer to a request. Raises DseError."""
    return request.answer(asked, [name for _, name in (*METRICS, *ALSO_EXPLAINED) if name != "bound"])


@st.cache_data(max_entries=64, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached_curve(asked: Request) -> pd.DataFrame:
    """The points of the throughput figure. Raises DseError."""
    return request.curve(asked)


def shown_value(name: str, result: dict[str, Any]) -> str:
    """A result as its metric shows it; sizes in GB only, so that columns compare."""
    value, unit = result[name], RESULT_UNITS[name]
    if unit == "B" and value is not None:
        return units.human(value, unit)
    return number(value, unit)


def show_summary(asked: Request, found: Answer) -> None:
    """One line that says what is shown, and what is wrong with it."""
    result = found.result
    st.text(
        f"{result['model']} on {result['device']}, KV cache in {result['quantizer']}, batch {asked.batch:,}, "
        f"{asked.input:,} tokens in, {asked.output:,} out"
    )
    if not result["feasible"]:
        st.warning("This does not fit:")
        st.text(result["infeasible_reason"])
    elif not result["fits_whole_batch"]:
        st.warning(f"The whole batch does not fit at once: at most {result['running_batch']:,} requests run together.")


def show_metrics(found: Answer) -> None:
    """The numbers, as many in a row as the screen takes."""
    with st.container(horizontal=True):
        for label, name in METRICS:
            st.metric(label, shown_value(name, found.result), border=True, width=_METRIC_WIDTH)
    if found.result["assumptions"]:
        st.caption(escaped(f"Rests on assumed numbers: {', '.join(found.result['assumptions'])}."))
    policy = token_policies.parse(found.result["tokens"]).family
    if policy.validity:
        stored, read = (number(found.result[name], "token") for name in ("stored_tokens", "read_tokens"))
        st.caption(escaped(f"{policy.title}: {stored} stored and {read} read at the end; {policy.validity}."))


#: two in a row on a phone
_METRIC_WIDTH = 171


def _chart(drawn: go.Figure, key: str) -> None:
    st.plotly_chart(drawn, key=key, config={"displaylogo": False, "displayModeBar": False})


def show_figures(asked: Request, found: Answer, made: MadeBy) -> None:
    """Memory and step time as bars, and throughput against batch."""
    memory, step = st.columns(2)
    with memory:
        _chart(bars.memory(found.result), "memory")
    with step:
        if found.result["feasible"]:
            _chart(bars.step_time(found.result), "step")
    chart = figure.throughput(cached_curve(asked), found.result)
    beside.show("throughput", chart, partial(cached_curve, asked), made)


def show_explanations(found: Answer) -> None:
    """Each number's formula, substituted values and sources."""
    st.subheader("Where the numbers come from", anchor=False)
    for label, name in (*METRICS, *ALSO_EXPLAINED):
        with st.expander(f"{label}: {shown_value(name, found.result)}"):
            st.code(found.explanations.get(name, found.text), language=None, wrap_lines=True)
