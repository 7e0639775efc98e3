"""The what-if page: one design point with sliders for everything, its numbers, where they come from, the figure."""

from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dse import catalog, token_policies, units
from dse.errors import DseError
from dse.explorer import bars, figure, request
from dse.explorer.request import Answer, Request
from dse.point import RESULT_UNITS
from dse.present import number
from dse.quantizers import FAMILIES

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
_SHOWN_PROBLEMS = 5


def render() -> None:
    """Draw the page."""
    guard_url()
    st.title("KV cache: what if?", anchor=False)
    asked, error_place = ask()
    show_notice()
    try:
        found = cached_answer(asked.key())
    except DseError as error:
        for line in error.lines():
            error_place.text(line)
        st.info("Nothing to show yet: the message beside the quantizer says what to change.")
        return
    show_summary(asked, found)
    show_metrics(found)
    show_figures(asked, found)
    show_explanations(found)
    st.subheader("As command line", anchor=False)
    st.code(request.command(asked), language="bash", wrap_lines=True)


def guard_url() -> None:
    """Before any widget reads the URL for the first time: keep what can be used, remember what cannot.

    Streamlit drops most bad values silently, and shows an exception for numbers like 1e400.
    """
    if "checked" in st.session_state:
        return
    st.session_state["checked"] = True
    query = {key: st.query_params.get_all(key) for key in st.query_params}
    good, problems = request.check_query(query)
    if problems:
        st.session_state["problems"] = problems
        st.query_params.from_dict(good)
        st.rerun()


def show_notice() -> None:
    """Say once what in the URL could not be used; its text is only ever shown as plain text."""
    problems = st.session_state.pop("problems", [])
    if problems:
        st.warning("The address held values that cannot be used; the defaults stand in for them:")
        shown = problems[:_SHOWN_PROBLEMS]
        if len(problems) > len(shown):
            shown.append(f"and {len(problems) - len(shown):,} more")
        st.code("\n".join(shown), language=None, wrap_lines=True)


def _clear_parameters() -> None:
    st.session_state["parameters"] = ""


def ask() -> tuple[Request, DeltaGenerator]:
    """The widgets, bound to the URL: what they ask for, and the place for a message about the quantizer."""
    default = request.DEFAULT
    with st.sidebar:
        device = _choose("Device", "device")
        st.caption(catalog.device(device).title)
        model = _choose("Language model", "model")
        st.caption(catalog.model(model).title)
        quantizer = _choose("KV quantizer", "quantizer", on_change=_clear_parameters)
        st.caption(FAMILIES[quantizer].title)
        parameters = st.text_input(
            "Quantizer parameters",
            default.parameters,
            key="parameters",
            bind="query-params",
            help="Only what differs from the defaults, separated by commas, for example bits=2,group=32.",
        )
        error_place = st.container()
        st.caption(_escaped(f"Defaults: {request.family_defaults(quantizer)}".replace(",", ", ")))
        tokens = _choose(
            "Tokens kept and read", "tokens", help="At each policy's defaults; the command line takes more."
        )
        policy = token_policies.FAMILIES[tokens]
        st.caption(_escaped(f"{policy.title}: {policy.source}."))
        batch = _count("Batch (requests)", "batch")
        input_tokens = _count("Prompt (tokens)", "input")
        output_tokens = _count("Generated (tokens)", "output")
        admission = _choose(
            "Admission",
            "admission",
            help="reserve: each request holds its final length from the start; paged: memory grows page by page.",
        )
        weights_bits = _choose("Weights (bits)", "weights_bits")
        kind = _choose(
            "Model",
            "model_kind",
            help="auto: kernels as measured where the device has them, else peak rates; ideal: peak rates.",
        )
    asked = Request(
        device,
        model,
        quantizer,
        parameters or "",
        batch,
        input_tokens,
        output_tokens,
        admission,
        int(weights_bits),
        kind,
        tokens,
    )
    return asked, error_place


def _choose(label: str, key: str, **options: Any) -> Any:
    choices = request.CHOICES[key]()
    index = choices.index(getattr(request.DEFAULT, key))
    return st.selectbox(label, choices, index, key=key, bind="query-params", **options)


def _count(label: str, key: str) -> int:
    """A whole number. As a float, because Streamlit fails on 1e400 in the URL of an integer (reached by going back)."""
    low, high = request.RANGES[key]
    start = float(getattr(request.DEFAULT, key))
    value = st.number_input(label, float(low), float(high), start, 1.0, format="%.0f", key=key, bind="query-params")
    return round(value)


@st.cache_data(max_entries=256, show_spinner=False)
def cached_answer(key: tuple[tuple[str, Any], ...]) -> Answer:
    """The answer to a request (see `Request.key`). Raises DseError."""
    return request.answer(Request(**dict(key)), [name for _, name in (*METRICS, *ALSO_EXPLAINED) if name != "bound"])


@st.cache_data(max_entries=64, show_spinner=False)
def cached_curve(key: tuple[tuple[str, Any], ...]) -> pd.DataFrame:
    """The points of the throughput figure (see `Request.key`). Raises DseError."""
    return request.curve(Request(**dict(key)))


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
        st.caption(_escaped(f"Rests on assumed numbers: {', '.join(found.result['assumptions'])}."))
    policy = token_policies.parse(found.result["tokens"]).family
    if policy.validity:
        stored, read = (number(found.result[name], "token") for name in ("stored_tokens", "read_tokens"))
        st.caption(_escaped(f"{policy.title}: {stored} stored and {read} read at the end; {policy.validity}."))


#: two in a row on a phone
_METRIC_WIDTH = 171


def _escaped(text: str) -> str:
    """Our own text (never the user's) in which Markdown sees no emphasis."""
    return text.replace("_", r"\_").replace("*", r"\*")


def _chart(drawn: go.Figure, key: str) -> None:
    st.plotly_chart(drawn, key=key, config={"displaylogo": False, "displayModeBar": False})


def show_figures(asked: Request, found: Answer) -> None:
    """Memory and step time as bars, and throughput against batch."""
    memory, step = st.columns(2)
    with memory:
        _chart(bars.memory(found.result), "memory")
    with step:
        if found.result["feasible"]:
            _chart(bars.step_time(found.result), "step")
    chart = figure.throughput(cached_curve(asked.key()), found.result)
    st.subheader(chart.title, anchor=False)
    _chart(figure.fitted(chart), "throughput")
    st.caption(_escaped(" ".join(chart.notes)))


def show_explanations(found: Answer) -> None:
    """Each number's formula, substituted values and sources."""
    st.subheader("Where the numbers come from", anchor=False)
    for label, name in (*METRICS, *ALSO_EXPLAINED):
        with st.expander(f"{label}: {shown_value(name, found.result)}"):
            st.code(found.explanations.get(name, found.text), language=None, wrap_lines=True)
