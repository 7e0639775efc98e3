"""Claims of papers, times of silicon and start-up logs beside the tool's own numbers."""

from dataclasses import asdict
from typing import Any

import pandas as pd
import streamlit as st

from dse.core.columns import Column, frame
from dse.core.field import Field
from dse.explorer import downloads, figure, startup_log, state, widgets
from dse.explorer.bench import Bench
from dse.explorer.downloads import MadeBy
from dse.explorer.fragments import part
from dse.figures import FIGURES
from dse.figures.charts.claims_published import short
from dse.validate import nearest, silicon
from dse.validate.verdicts import MEANINGS, SHADES, ClaimRow, claim_rows, counts, percent, shown, to_json

PAGE = "validation"
ALL = "all"
DOCUMENTS = {
    "all": "all documents",
    "textbook": "textbook chapter",
    "Oaken": "Oaken",
    "NQKV": "NQKV",
    "SinkQ": "SinkQ",
    "AttAcc": "AttAcc",
    "NeuPIMs": "NeuPIMs",
}
DOCUMENT = Field(
    name="validation_document",
    label="Document",
    default=ALL,
    choices=DOCUMENTS,
    help="Whose printed numbers are compared.",
)
VERDICTS = Field(
    name="validation_verdicts",
    label="Verdicts",
    default=[],
    choices=list(SHADES),
    open_means="all",
    help="Show only claims with these verdicts; none chosen shows all.",
)
WORDS = Field(
    name="validation_words",
    label="Words",
    default="",
    open_means="throughput",
    help="Show only claims whose name, place or text holds these words.",
)
SILICON_DEVICE = Field(
    name="validation_device",
    label="Device",
    default=None,
    listed=lambda: _measured_devices(),
    open_means="that of the design",
    help="Devices whose kernels were measured by others and fitted here.",
)
#: what the page asks for
FIELDS = (DOCUMENT, VERDICTS, WORDS, SILICON_DEVICE, startup_log.DEVICE)


def _measured_devices() -> list[str]:
    return list(dict.fromkeys(row.device for row in silicon.recorded_rows()))


def render(bench: Bench) -> None:
    """Draw the page."""
    st.title("Validation", anchor=False)
    st.caption("What do papers print and what was measured on silicon, and what does this tool say?")
    show_nearest(bench)
    startup_log.draw(bench)
    show_silicon(bench)
    show_claims()


def show_nearest(bench: Bench) -> None:
    """Measurements nearest to the current design."""
    st.subheader("Measured nearest to this design", anchor=False)
    if bench.current.asked is None:
        st.info("The design has no answer yet: the message beside its fields says what to change.")
        return
    point = bench.current.asked
    with widgets.said():
        sentence, servers = nearest.nearest(point.device_spec(), point.model_spec(), point.work)
        st.markdown(widgets.escaped(f"{bench.current.name}: {sentence}"))
        st.dataframe(frame(_NEAREST, servers), hide_index=True)


def _error(name: str, title: str) -> Column:
    return Column(name, title=title, form=lambda row: percent(getattr(row, name)).lstrip("+"))


_NEAREST = (
    Column("what"),
    Column("near", title="how near"),
    Column("n_rows", title="rows", form=","),
    _error("mean", "mean error"),
    _error("p90", "9 of 10 within"),
    Column("inside", title="inside their intervals", form=".0%"),
)


@st.cache_resource(show_spinner="Evaluating every claim")
def cached_claims() -> list[ClaimRow]:
    """Every claim, computed once a process: nothing that the reader chooses changes it."""
    return claim_rows()


def chosen(rows: list[ClaimRow], values: dict[str, Any]) -> list[ClaimRow]:
    """The claims that the fields leave."""
    document, verdicts = values[DOCUMENT.key], values[VERDICTS.key]
    words = values[WORDS.key].lower().split()
    return [
        row
        for row in rows
        if document in (ALL, short(row.source))
        and (not verdicts or row.verdict in verdicts)
        and all(word in f"{row.id} {row.where} {row.quantity} {row.reason}".lower() for word in words)
    ]


_CLAIMS = (
    Column("verdict", form=lambda row: f"{row.mark} {row.label}"),
    Column("id", title="claim"),
    Column("published", form=lambda row: f"{row.published} {row.unit}".strip()),
    Column("ours", form=lambda row: f"{shown(row.ours)} {row.unit}".strip()),
    Column("difference", form=lambda row: percent(row.difference)),
    Column("quantity", title="what"),
    Column("where"),
    Column("document", form=lambda row: short(row.source)),
    Column("compared", title="tolerance or check"),
    Column("reason"),
)


@part
def show_claims() -> None:
    """The claims: counts, scatter and table."""
    st.subheader("Claims of the papers", anchor=False)
    values = state.follow()
    with st.container(horizontal=True):
        for field in (DOCUMENT, VERDICTS, WORDS):
            widgets.draw(field)
    show_chosen(values)


@st.fragment(parallel=True)
def show_chosen(values: dict[str, Any]) -> None:
    """The claims that the fields leave. Evaluating them all, once a process, takes seconds: the page goes on."""
    rows = chosen(cached_claims(), values)
    with st.container(horizontal=True):
        for verdict, count in counts(rows).items():
            if count:
                mark = SHADES[verdict][1]
                st.metric(f"{mark} {verdict}", f"{count:,}", border=True, help=MEANINGS[verdict])
    if not rows:
        st.info("No claim is left: choose fewer verdicts or words.")
        return
    chart = FIGURES["claims"].chart(pd.DataFrame(to_json(rows)))
    made = MadeBy(
        "dse validate claims --json",
        "from dse.validate import verdicts\n\nresult = verdicts.to_json(verdicts.claim_rows())",
        state.address(PAGE, values),
    )
    if len(chart.panels[0].series) > 1:  # beside the line of equal numbers
        downloads.show("claims", chart, lambda: pd.DataFrame(to_json(rows)), made, figure.tall(chart))
    st.caption(
        "Each row has the unit that its document prints: 1 GB is 1,000,000,000 bytes, 1 GiB is 1,073,741,824 bytes."
    )
    st.dataframe(frame(_CLAIMS, rows), hide_index=True)


@part
def show_silicon(bench: Bench) -> None:
    """Errors of fitted kernels on times that the fits did not see: of the design's device unless another is chosen."""
    st.subheader("Measured kernels", anchor=False)
    values = state.follow()
    widgets.draw(SILICON_DEVICE)
    current = bench.current.asked.device_spec().name if bench.current.asked else None
    device = values[SILICON_DEVICE.key] or current
    if device not in _measured_devices():
        st.caption(
            widgets.escaped(f"No times of {device or 'a design without an answer'} were fitted: choose a device.")
        )
        return
    table = pd.DataFrame([asdict(row) for row in silicon.recorded_rows(device)])
    chart = FIGURES["silicon_errors"].chart(table)
    made = MadeBy(
        "dse validate silicon --json",
        "from dse.validate import silicon\n\nresult = silicon.to_json(silicon.run())",
        state.address(PAGE, values),
    )
    downloads.show("silicon", chart, lambda: table, made, figure.tall(chart))
    st.caption(
        "Recorded when the parameters were fitted. `dse validate report` draws predicted against measured times, where "
        "the package with the measurements is installed."
    )
