"""Errors of answers on what was measured: servers, kernels, papers' numbers, and measurements of the reader's."""

from dataclasses import asdict
from typing import Any

import pandas as pd
import streamlit as st

from dse.core.columns import Column, frame
from dse.core.field import Field
from dse.explorer import downloads, figure, measured, startup_log, state, widgets
from dse.explorer.badge import badge_of
from dse.explorer.bench import Bench
from dse.explorer.downloads import MadeBy
from dse.explorer.fragments import part
from dse.figures import FIGURES
from dse.figures.charts.claims_published import short
from dse.report import servers
from dse.validate import nearest, silicon
from dse.validate.verdicts import ClaimRow, claim_rows, percent, shown, summary

PAGE = "trust"
ALL, NEAR = "all", "near"
BY = Field(
    name="trust_by",
    label="Servers by",
    default=NEAR,
    choices={NEAR: "Near the design"} | servers.TITLES,
    help="Errors of groups of measured servers: those near the chosen design, or all of a kind.",
)
SERVERS, PAPERS, OWN = "servers", "papers", "own"
TAB = Field(
    name="trust_tab",
    label="Show",
    default=SERVERS,
    choices={SERVERS: "Servers", PAPERS: "Kernels and papers", OWN: "Your own"},
    help="Tables of servers, kernels and papers' numbers, or measurements of your own.",
)
DOCUMENT = Field(
    name="validation_document",
    label="Document",
    default=ALL,
    choices={
        ALL: "all documents",
        "textbook": "textbook chapter",
        **{name: name for name in ("Oaken", "NQKV", "SinkQ", "AttAcc", "NeuPIMs")},
    },
    help="Whose printed numbers are compared.",
)
KERNELS_OF = Field(
    name="validation_device",
    label="Kernels of",
    default=None,
    listed=lambda: list(dict.fromkeys(row.device for row in silicon.recorded_rows())),
    open_means="the design's device",
    help="Devices whose kernels were timed by others and fitted here.",
)
#: what the page asks for
FIELDS = (BY, TAB, DOCUMENT, KERNELS_OF, startup_log.DEVICE)


def render(bench: Bench) -> None:
    """Draw the page."""
    row = bench.current
    if row.answer is None:
        st.info("The design has no answer yet: the message beside its fields says what to change.")
        groups: dict[str, str] = {}
        by = ""
    else:
        badge = badge_of(row)
        point = row.request.point()
        groups, by = nearest.groups_of(point), badge.by
        with widgets.said():
            mark = f":{badge.color}-badge[{widgets.escaped(badge.text)}]"
            st.markdown(f"**{widgets.escaped(row.name)}** {mark} {widgets.escaped(nearest.sentence(point))}")
    table = show_servers(bench, groups, by)
    tab = widgets.tabs(TAB)
    if tab == SERVERS:
        st.dataframe(table, hide_index=True)
        st.caption("`dse docs` writes these as accuracy.html; `dse validate serving` judges a table of your own.")
    elif tab == PAPERS:
        show_kernels(bench)
        show_claims(bench)
    else:
        startup_log.draw(bench)
        measured.draw(len(measured.beside(bench.answered)))
        st.caption("Servers of a design's device, model and lengths lie as crosses over the figure of Answer.")


def show_servers(bench: Bench, groups: dict[str, str], marked: str) -> pd.DataFrame:
    """Draw the errors of groups of measured servers, with a star at those of the design; returns their table.

    Of those near the design the star is at the group that its interval is from, `marked`.
    """
    chosen = widgets.tabs(BY)
    rows, names = rows_of(chosen, groups, marked)
    if not rows:
        st.info("No server near this design was measured: choose a group.")
        return pd.DataFrame()
    made = MadeBy(
        "dse docs", "from dse.report import servers\n\nresult = servers.table()", state.address(PAGE, bench.values)
    )
    chart = FIGURES["servers_accuracy"].chart(pd.DataFrame(rows), {"chosen": names})
    downloads.show("servers", chart, lambda: pd.DataFrame(rows), made, figure.tall(chart, _LEGEND_PX), titled=False)
    star = Column("star", title="chosen", form=lambda row: "★" if row["name"] in names else "")
    return frame((star, *(servers.ACCURACY if chosen == NEAR else servers.columns(chosen))), rows)


#: room above the figure for a legend of four
_LEGEND_PX = 40


def rows_of(chosen: str, groups: dict[str, str], marked: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of the table of servers to show, and the names of those with a star.

    `groups` are the design's own (`nearest.groups_of`): all of them, or every group of a kind where one is chosen.
    """
    if chosen != NEAR:
        rows = servers.groups(chosen)
        return rows, [row["name"] for row in rows if row["group"] == groups.get(chosen)]
    own = [row for by, group in groups.items() for row in servers.groups(by) if row["group"] == group]
    return own, [row["name"] for row in own if row["by"] == marked]


#: sizes of kernels that a server runs
_LIKE_SERVING = (silicon.CLASSES["serving"], silicon.GEMM_CLASSES["serving"])


@part
def show_kernels(bench: Bench) -> None:
    """Errors of fitted kernels on times that the fits did not see: of the design's device unless another is chosen."""
    values = state.follow()
    widgets.draw(KERNELS_OF, width=260)
    current = bench.current.asked.device_spec().name if bench.current.asked else None
    device = values[KERNELS_OF.key] or current
    if device not in KERNELS_OF.options():
        st.caption(widgets.escaped(f"No times of {device or 'a design without an answer'} were fitted: choose one."))
        return
    rows = [row for row in silicon.recorded_rows(device) if row.size_class in _LIKE_SERVING]
    table = pd.DataFrame([asdict(row) | {"part": silicon.PARTS.get(row.part, row.part)} for row in rows])
    chart = FIGURES["silicon_errors"].chart(table)
    made = MadeBy(
        "dse validate silicon --json",
        "from dse.validate import silicon\n\nresult = silicon.to_json(silicon.run())",
        state.address(PAGE, values),
    )
    downloads.show("silicon", chart, lambda: table, made, figure.tall(chart), titled=False)


@st.cache_resource(show_spinner="Evaluating every claim")
def cached_claims() -> list[ClaimRow]:
    """Every claim, computed once a process: nothing that the reader chooses changes it."""
    return claim_rows()


def chosen_claims(rows: list[ClaimRow], document: str) -> list[ClaimRow]:
    """The claims of a document, or of all."""
    return [row for row in rows if document in (ALL, short(row.source))]


_CLAIMS = (
    Column("verdict", form=lambda row: f"{row.mark} {row.label}"),
    Column("published", form=lambda row: f"{row.published} {row.unit}".strip()),
    Column("ours", form=lambda row: f"{shown(row.ours)} {row.unit}".strip()),
    Column("difference", form=lambda row: percent(row.difference)),
    Column("quantity", title="what"),
    Column("where"),
    Column("document", form=lambda row: short(row.source)),
    Column("reason"),
    Column("id", title="claim"),
)


@st.fragment(parallel=True)
def show_claims(bench: Bench) -> None:
    """The numbers that papers print beside ours. Evaluating them all, once a process, takes seconds."""
    values = state.follow()
    widgets.draw(DOCUMENT, width=260)
    rows = chosen_claims(cached_claims(), values[DOCUMENT.key])
    st.markdown(widgets.escaped(f"{summary(rows)}."))
    st.dataframe(frame(_CLAIMS, rows), hide_index=True, height=300)
    st.caption("`dse validate claims` prints each with its tolerance, `dse validate report` draws them.")
