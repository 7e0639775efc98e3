"""The recommendation on the page Size: a verdict, three cards with their commands, and what would change them."""

import html
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from dse.explorer import common_fields, downloads, figure, request, sidebar, state, tray, widgets
from dse.explorer.downloads import MadeBy, made_by
from dse.explorer.size import asked, found
from dse.explorer.size.found import Card, Sized, Trace
from dse.explorer.widgets import escaped
from dse.figures.charts.load_times import times_of
from dse.figures.drawing import marks, style
from dse.figures.drawing.chart import Chart
from dse.operations.face import python_of

#: pixels of a figure beside the cards
HEIGHT = 250
_ROW = "display:flex;justify-content:space-between;gap:0 8px;font-size:0.8rem;padding:1px 0"


def show(page: str, values: Mapping[str, Any], trace: Trace | None = None, name: str = "") -> None:
    """The answer to what the page asks, of the load or of a trace: shipped, by its `name`, or the reader's own."""
    with widgets.said():
        operation = asked.recommend_of(values, trace.name if trace else name or None)
        run, fields = asked.with_files(operation, values)
        sized = found.cached(run, fields, str(operation.model), trace)
        st.markdown(f"**{escaped(sized.verdict)}**")
        if not operation.trace and asked.is_open(values):
            full = " or ".join(operation.devices)
            st.caption(escaped(f"Requests at once is open: this fills {full}. Give a number to size for it."))
        unsaid = tuple(operation.unused())
        command = request.command_of(operation, unsaid)
        made = MadeBy(command, python_of(operation, without=unsaid), state.address(page, values))
        cards, figures = st.columns([3, 2] if len(sized.cards) > 1 else [2, 3], gap="medium")
        with cards:
            _cards(sized)
        with figures:
            _figures(sized, operation.rate, made)
        with st.expander("What else was compared, and what would change it"):
            st.markdown("\n".join(f"- {escaped(note)}" for note in sized.notes))
            st.code(command, language="bash", wrap_lines=True)


def _cards(sized: Sized) -> None:
    """The deployments beside each other, the runner-up, and what other loads take."""
    for place, (at, card) in zip(st.columns(len(sized.cards)), enumerate(sized.cards), strict=True):
        with place.container(border=True, key=f"card {at + 1}", gap="xsmall"):
            _card(at, card, sized.labels)
    st.markdown(escaped(sized.runner_up))
    if sized.others:
        table = pd.DataFrame([{"": row["load"], "run": row["run"], "an hour": row["usd"]} for row in sized.others])
        st.dataframe(table, hide_index=True)


def _card(at: int, card: Card, labels: tuple[str, ...]) -> None:
    st.markdown(f"**{escaped(card.head)}**")
    lines = zip(labels, card.cells, strict=True)
    st.html(
        "".join(
            f'<div style="{_ROW}"><span>{html.escape(label)}</span>'
            f'<span style="text-align:right;white-space:nowrap">{html.escape(cell)}</span></div>'
            for label, cell in lines
        )
    )
    if card.command:
        st.caption("Each server" if card.n_servers > 1 else "The server")
        st.code(card.command, language=None, wrap_lines=True)
    if card.not_in_command:
        st.caption(escaped(f"{'Not in this line' if card.command else 'No command'}: {card.not_in_command}"))
    st.button(
        "Add to the designs",
        key=f"size add {at}",
        on_click=partial(add, card.design),
        help="A server of it as a design: its device, engine, KV format and layout.",
    )


def add(server: Mapping[str, Any]) -> None:
    """Add a server that was found to the designs, by its fields (`found.server_fields`)."""
    values = {**{field.key: field.default for field in common_fields.DESIGN}, **server}
    of_all = {field.key for field in common_fields.SCENARIO}
    question = {key: value for key, value in server.items() if key in of_all and value is not None}
    sidebar.add(tray.design_of(values, common_fields.DESIGN), question)


def _figures(sized: Sized, rate: float | None, made: MadeBy) -> None:
    """Draw the servers of the cards against a rate, a figure a time; else what holds the load, by its cost."""
    if not sized.questions:
        downloads.show("recommend", sized.chart, lambda: sized.table, made, titled=False)
        st.caption("Each mark: the fewest servers of a device, engine, format and layout; stars: the cards.")
        return
    of_load = made_by(sized.questions, made.address)
    of_load = replace(of_load, command=f"{made.command}\n{of_load.command}")
    for name, part in panels(sized.chart, sized.table, rate).items():
        show_panel(f"load-{name}", part, sized.table, of_load)
    st.caption("Rates of all servers of a card; dotted: the limit, dashed: the rate.")


def show_panel(name: str, part: Chart, table: pd.DataFrame, made: MadeBy, said: str = "") -> None:
    """Draw a panel of times, below its title."""
    drawn = figure.fitted(part, HEIGHT)
    downloads.show(name, part, lambda: table, made, drawn=drawn, verdict=lambda: said)


def panels(chart: Chart, table: pd.DataFrame, rate: float | None = None) -> dict[str, Chart]:
    """The panels of a figure of times as charts of their own, by column; with a mark at a `rate`."""
    found = {}
    for name, panel in zip(times_of(table), chart.panels, strict=True):
        if rate and rate <= panel.x.high:
            mark = marks.rule("rate", panel.y, rate, style.GRAY, "dash", upright=True, in_legend=False)
            panel = replace(panel, series=(*panel.series, mark))
        title = panel.title[:1].upper() + panel.title[1:]
        found[name] = replace(chart, panels=(replace(panel, title=""),), title=title)
    return found
