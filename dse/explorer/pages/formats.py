"""The formats page: memory, time, error and energy of every KV format that device and stack run, against 16 bits."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st

from dse.core.columns import frame
from dse.explorer import cards, common_fields, crossovers, downloads, figure, request, sidebar, state, tray, widgets
from dse.explorer.bench import Bench
from dse.explorer.downloads import MadeBy
from dse.explorer.request import PointRequest
from dse.figures.drawing import whiskers
from dse.figures.plot.answer import chart_of
from dse.model.results import title
from dse.operations.questions import CompareFormats
from dse.questions import formats
from dse.report.present import position_note

PAGE = "formats"
FORMATS = replace(
    common_fields.FAMILY,
    name="formats",
    label="Formats",
    default=[],
    clears="",
    open_means="all that the engine runs",
    help="What is compared with 16 bits. Left open: every format that the chosen engine runs on the device for the "
    "model.",
)
#: what the page asks for beside the designs and the workload
FIELDS = (FORMATS, *crossovers.FIELDS)
_WAIT = "Comparing the formats"
#: columns of the table that a narrow page shows
_FIRST = ("format", "verdict", "gain", "sure", title("throughput_tokens_per_s"), "kernels")
#: the panels of the figure, by key
_PANELS = ("formats-gain", "formats-room", "formats-energy", "formats-error")


def render(bench: Bench) -> None:
    """Draw the page."""
    st.title("Which KV format pays?", anchor=False)
    st.caption(
        "What does each format of keys and values take and give, over 16 bits, on the device of the design that is "
        "being changed?"
    )
    widgets.draw(FORMATS)
    if cards.limits_s(bench.values):
        st.info("Limits on TTFT and TPOT do not count on this page: Compare and Serving say what keeps them.")
    names = mapped = tuple(bench.values[FORMATS.key])
    with widgets.said():
        point = request.unquantized(request.point_request(bench.values))
        with st.spinner(_WAIT):
            answer = cached(point, names)
        made = downloads.made_by([operation(point, names)], state.address(PAGE, bench.values))
        widgets.lines(position_note(point.model_spec(), point.work.input_tokens + point.work.output_tokens))
        show(answer, made)
        mapped = tuple(entry.name for entry in answer.formats)
    crossovers.show(bench, mapped, state.address(PAGE, bench.values))


def show(answer: formats.Formats, made: MadeBy) -> None:
    """The answer in words, the figure a panel at a time, the table, and what it rests on."""
    said = answer.answer()
    st.markdown(f"**{widgets.escaped(said)}**")
    chart = chart_of(answer)
    places = st.columns(2)
    for i, panel in enumerate(chart.panels):
        part = replace(chart, panels=(panel,), title=panel.title[:1].upper() + panel.title[1:], notes=())
        with places[i % 2]:
            drawn = figure.tall(part)
            downloads.show(_PANELS[i], part, lambda: answer.table, made, drawn=drawn, verdict=lambda: said)
    table = frame(answer.columns(), answer.formats)
    event: Any = st.dataframe(
        table[[*_FIRST, *(name for name in table if name not in _FIRST)]],
        hide_index=True,
        key="formats-table",
        on_select="rerun",
        selection_mode="multi-row",
    )
    picked = [str(table["format"].iloc[at]) for at in event["selection"]["rows"]]
    st.button(
        f"Add {', '.join(picked)} to the tray" if picked else "Choose rows to add them to the tray",
        disabled=not picked,
        on_click=partial(_add, picked),
    )
    cut = (whiskers.CUT_NOTE,) if whiskers.CUT_NOTE in chart.notes else ()
    st.caption(widgets.escaped(" ".join((*answer.notes(), *cut))))


def _add(picked: Sequence[str]) -> None:
    sidebar.add_all(designs_of(tray.values_of(state.tray().current, common_fields.DESIGN), picked))


def designs_of(values: Mapping[str, Any], picked: Sequence[str]) -> list[tray.TrayDesign]:
    """A design a format, else as `values`."""
    plain = {**values, "parameters": "", "value_quantizer": None, "value_parameters": ""}
    return [tray.design_of({**plain, "quantizer": name}, common_fields.DESIGN) for name in picked]


@st.cache_data(max_entries=64, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr})
def cached(asked: PointRequest, names: tuple[str, ...]) -> formats.Formats:
    """The answer; of all known kernels where no names are given. Raises DseError."""
    return formats.formats(asked.device_spec(), asked.model_spec(), asked.work, list(names) or None, asked.bits())


def operation(asked: PointRequest, names: tuple[str, ...]) -> CompareFormats:
    """The question as an operation."""
    compare: CompareFormats = request.operation(asked, CompareFormats, quantizers=names or None)
    return compare
