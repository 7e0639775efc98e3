"""Errors of answers on what was measured: servers, kernels, and measurements of the reader's."""

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
from dse.figures import FIGURES
from dse.report import servers
from dse.validate import nearest, silicon

PAGE = "trust"
NEAR = "near"
BY = Field(
    name="trust_by",
    label="Servers by",
    default=NEAR,
    choices={NEAR: "Near the design"} | servers.TITLES,
    help="Errors of groups of measured servers: those near the chosen design, or all of a kind.",
)
SERVERS, KERNELS, OWN = "servers", "kernels", "own"
TAB = Field(
    name="trust_tab",
    label="Show",
    default=SERVERS,
    choices={SERVERS: "Servers", KERNELS: "Kernels", OWN: "Your own"},
    help="Servers, kernels, or measurements of your own.",
)
#: what the page asks for
FIELDS = (BY, TAB, startup_log.DEVICE)


def render(bench: Bench) -> None:
    """Draw the page: of its parts the chosen one alone."""
    row = bench.current
    groups: dict[str, str] = {}
    by = ""
    if row.answer is None:
        st.info("The design has no answer yet: the message beside its fields says what to change.")
    else:
        badge, point = badge_of(row), row.request.point()
        groups, by = nearest.groups_of(point), badge.by
        with widgets.said():
            mark = f":{badge.color}-badge[{widgets.escaped(badge.text)}]"
            st.markdown(f"**{widgets.escaped(row.name)}** {mark} {widgets.escaped(nearest.sentence(point))}")
    tab = widgets.tabs(TAB)
    if tab == SERVERS:
        show_servers(bench, groups, by)
    elif tab == KERNELS:
        show_kernels(bench)
    else:
        startup_log.draw(bench)
        measured.draw(bench.answered)
        st.caption("Servers of a design's device, model and lengths lie as crosses over the figure of Answer.")


def show_servers(bench: Bench, groups: dict[str, str], marked: str) -> None:
    """Draw the errors of groups of measured servers, with a star at those of the design.

    Of those near the design the star is at the group that its interval is from, `marked`.
    """
    chosen = widgets.tabs(BY)
    rows, names = rows_of(chosen, groups, marked)
    if not rows:
        st.info("No server near this design was measured: choose a group.")
        return
    python = "from dse.report import servers\n\nresult = servers.table()"
    made = MadeBy("dse docs", python, state.address(PAGE, bench.values))
    chart = FIGURES["servers_accuracy"].chart(pd.DataFrame(rows), {"chosen": names})
    downloads.show("servers", chart, lambda: pd.DataFrame(rows), made, figure.tall(chart, _LEGEND_PX), titled=False)
    star = Column("star", title="chosen", form=lambda row: "★" if row["name"] in names else "")
    columns = servers.ACCURACY if chosen == NEAR else servers.columns(chosen)
    st.dataframe(frame((star, *columns), rows), hide_index=True)
    st.caption("`dse docs` writes these as accuracy.html; `dse validate serving` judges a table of your own.")


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


def show_kernels(bench: Bench) -> None:
    """Errors of fitted kernels of the design's device, on times that the fits did not see."""
    device = bench.current.asked.device_spec().name if bench.current.asked else "a design without an answer"
    recorded = silicon.recorded_rows()
    rows = [row for row in recorded if row.device == device and row.size_class in _LIKE_SERVING]
    if not rows:
        there = ", ".join(dict.fromkeys(row.device for row in recorded))
        st.caption(widgets.escaped(f"No kernels of {device} were timed; those of {there} were."))
        return
    table = pd.DataFrame([asdict(row) | {"part": silicon.PARTS.get(row.part, row.part)} for row in rows])
    chart = FIGURES["silicon_errors"].chart(table)
    made = MadeBy(
        "dse validate silicon --json",
        "from dse.validate import silicon\n\nresult = silicon.to_json(silicon.run())",
        state.address(PAGE, bench.values),
    )
    downloads.show("silicon", chart, lambda: table, made, figure.tall(chart), titled=False)
