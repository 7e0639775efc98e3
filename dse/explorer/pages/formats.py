"""Which KV format pays: memory, time, error and energy of each that the device and stack can run, over 16 bits."""

import shlex
from dataclasses import replace

import pandas as pd
import streamlit as st

from dse.core.errors import DseError
from dse.explorer import common_fields as shared
from dse.explorer import downloads as beside
from dse.explorer import figure, request, state, widgets
from dse.explorer.downloads import MadeBy
from dse.explorer.names import spoken
from dse.explorer.request import Request
from dse.figures.plot.answer import chart_of
from dse.questions import formats

PAGE = "formats"
FORMATS = replace(
    shared.several(shared.FAMILY, [], "formats", "Formats"), placeholder="all with a known kernel",
    help="What is compared with 16 bits. Left open: every format for which a kernel of the chosen stack, or of none, "
    "is known on the device.",
)  # fmt: skip
_WORK = {"batch": 64, "input": 8192, "admission": "paged"}


def _opening(field: shared.Field) -> shared.Field:
    """A field with what this page opens with."""
    return replace(field, default=_WORK.get(field.key, field.default))


#: what the page asks for: it opens with a model and a device of today
FIELDS = (
    replace(shared.DEVICE, default="h200"), shared.EDITS, replace(shared.MODEL, default="qwen3-32b"), FORMATS,
    *map(_opening, shared.WORK_FIRST), *map(_opening, shared.WORK_MORE),
)  # fmt: skip
_WAIT = "Comparing the formats"
#: columns of the table that a narrow page shows
_FIRST = ("format", "verdict", "gain", "sure", "token/s", "kernels")
#: the panels of the figure, by key
_PANELS = ("formats-gain", "formats-room", "formats-energy", "formats-error")


def render() -> None:
    """Draw the page."""
    values = state.open_page(PAGE, FIELDS)
    st.title("Which KV format pays?", anchor=False)
    st.caption("What does each format of keys and values take and give on this device and stack, over 16 bits?")
    with st.sidebar:
        widgets.draw_some(FIELDS, [field for field in FIELDS if field.key in {each.key for each in shared.WORK_MORE}])
    names = tuple(values[FORMATS.key])
    try:
        asked = request.unquantized(request.of(values))
        with st.spinner(_WAIT):
            answer = cached(asked, names)
    except DseError as error:
        widgets.problem(error)
        return
    made = MadeBy(
        command(asked, names), python(asked, names), state.address("", FIELDS, values)
    )  # what opens has no name in addresses
    show(answer, made)


def show(answer: formats.Formats, made: MadeBy) -> None:
    """The answer in words, the figure a panel at a time, the table, and what it rests on."""
    st.markdown(f"**{widgets.escaped(answer.answer())}**")
    chart = chart_of(answer)
    places = st.columns(2)
    for i, panel in enumerate(chart.panels):
        one = replace(chart, panels=(panel,), title=panel.title[:1].upper() + panel.title[1:], notes=())
        with places[i % 2]:
            beside.show(_PANELS[i], one, answer.table, made, drawn=figure.tall(one))
    rows = [formats.shown_row(each) for each in answer.formats]
    table = pd.DataFrame(rows, columns=list(formats.SHOWN))
    st.dataframe(table[[*_FIRST, *(name for name in formats.SHOWN if name not in _FIRST)]], hide_index=True)
    st.caption(widgets.escaped(spoken(" ".join(answer.notes()))))


@st.cache_data(max_entries=64, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached(asked: Request, names: tuple[str, ...]) -> formats.Formats:
    """The answer; of all known kernels where no names are given. Raises DseError."""
    return formats.formats(asked.device_spec(), asked.model_spec(), asked.work, list(names) or None, asked.bits())


def opening() -> formats.Formats:
    """What the page opens with, at its fields' defaults."""
    asked = request.of({field.key: field.default for field in FIELDS})
    return formats.formats(asked.device_spec(), asked.model_spec(), asked.work)


def command(asked: Request, names: tuple[str, ...]) -> str:
    """The question as a command line."""
    words = shlex.split(request.command(asked))[2:]
    at = words.index("--quantizer")
    named = ["--formats", ",".join(names)] if names else []
    return shlex.join(["dse", "ask", "formats", *words[:at], *words[at + 2 :], *named])


def python(asked: Request, names: tuple[str, ...]) -> str:
    """The question in Python, ending with `result`."""
    named = [repr(list(names))] if names else []
    return request.call(
        "formats", [repr(asked.device_text), repr(asked.model_text), *named, *request.work_arguments(asked)]
    )
