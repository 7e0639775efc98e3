"""The first screen: what the tool answers, three questions to begin with, and how far its answers can be trusted."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import streamlit as st

from dse.explorer import cards, common_fields, figure, presets, sidebar, state, tray
from dse.explorer.bench import Bench, likeness
from dse.explorer.widgets import escaped

PAGE = "start"
#: what the page asks for beside the designs and the workload
FIELDS = ()
#: key of a place that is not shown (`app`)
EMPTY = "start-empty"
#: session key: the page that a question opens
_TO = "start opens"


@dataclass(frozen=True)
class Question:
    """A question to begin with: the designs and the workload that ask it, and the page that answers it."""

    text: str
    says: str
    designs: tuple[Mapping[str, Any], ...]
    workload: Mapping[str, Any]
    page: str


_LLAMA = {"model": "llama3.1-70b"}
QUESTIONS = (
    Question(
        "Does it fit?",
        "Llama 3.1 70B with FP8 keys and values, 32 requests of 32K tokens: one H200, or two?",
        ({**_LLAMA, "quantizer": "fp8", "weights": "fp8"}, {**_LLAMA, "quantizer": "fp8", "weights": "fp8", "tp": 2}),
        {"batch": 32, "input": 32768, "output": 1024},
        "compare",
    ),
    Question(
        "Which KV format pays?",
        "Every format that a server runs on an H200, for Qwen3 32B answering from documents.",
        ({},),
        presets.PRESETS["RAG"].values,
        "formats",
    ),
    Question(
        "What is the best design?",
        "Formats, batches and one to eight H200s: most tokens a second within 50 ms each.",
        ({"quantizer": "fp8"},),
        presets.PRESETS["Chat"].values,
        "front",
    ),
)


def render(bench: Bench) -> None:
    """Draw the page."""
    st.title("What does the KV cache cost, and what does quantizing it buy?", anchor=False)
    st.markdown("What fits, how fast, with what error, and how sure: begin with a question, or change the designs.")
    if page := st.session_state.pop(_TO, None):
        state.go(page)
    for place, question in zip(st.columns(len(QUESTIONS)), QUESTIONS, strict=True):
        with place.container(gap="xsmall"):
            st.button(
                question.text,
                key=f"ask {question.page}",
                on_click=partial(_ask, question),
                type="primary",
                help=f"Opens {question.page} with these designs, in place of those in the tray.",
                width="stretch",
            )
            st.caption(escaped(question.says))
    rows = bench.answered
    same = f" Alike: {likeness(rows)[0]}." if rows else ""
    st.markdown(f"**In the tray now.**{escaped(same)}")
    st.dataframe(cards.design_table(bench), hide_index=True)
    st.caption(
        "How sure: measured, the kernels were timed, and 8 of 10 measurements should lie so near; assumed, some were "
        "not; estimated, none; peak rates, as data sheets have them."
    )
    with st.container(key=EMPTY):  # the browser loads what draws figures, megabytes of it, while the page is read
        st.plotly_chart(figure.unchecked({"data": [], "layout": {"height": 10}}), key=f"{EMPTY} figure")


def _ask(question: Question) -> None:
    workload = {field.key: field.default for field in common_fields.SCENARIO}
    state.put({**workload, **question.workload})
    designs = tuple(tray.TrayDesign(values=values) for values in question.designs)
    sidebar.act(lambda _: tray.Tray(designs))
    st.session_state[_TO] = question.page
