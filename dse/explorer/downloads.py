"""A figure with its reproduction panel: command line, Python, downloads."""

import itertools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urljoin

import pandas as pd
import streamlit as st

from dse.explorer import clipboard, export, figure, request
from dse.explorer.widgets import escaped
from dse.figures.drawing.chart import Chart
from dse.figures.drawing.layout import REPORT, Page
from dse.operations.declare import Operation
from dse.operations.face import python_of

#: no logo, no tool bar that hides the figure on a phone, nothing that leaves the machine
CONFIG: dict[str, Any] = {"displaylogo": False, "displayModeBar": False, "plotlyServerURL": ""}

#: words below a figure: what notes have beyond that is in a tooltip
MAX_WORDS = 20


@dataclass(frozen=True)
class MadeBy:
    """Where a figure comes from: `command` prints its numbers, `python` makes them, `address` opens the page again.

    `options` of `dse plot` draw it alike.
    """

    command: str
    python: str
    address: str = ""
    options: str = ""

    @property
    def provenance(self) -> str:
        """Provenance that the files carry, in a line."""
        commands = "; ".join(self.command.splitlines())
        address = f" (explorer: {self.address})" if self.address else ""
        return f"{commands}{address}" + (f" (drawn with {self.options})" if self.options else "")


def made_by(
    questions: Iterable[Operation],
    address: str,
    without: Iterable[Collection[str]] = itertools.repeat(()),
    part: str = "",
) -> MadeBy:
    """The questions that a figure answers, or a `part` of their results, each `without` some fields of its workload."""
    said = list(zip(questions, without, strict=False))
    return MadeBy(
        "\n".join(request.command_of(question, unused) for question, unused in said),
        "\n\n".join(python_of(question, without=unused) + part for question, unused in said),
        address,
    )


def show(
    name: str,
    chart: Chart,
    table: Callable[[], pd.DataFrame],
    made: MadeBy,
    drawn: dict[str, Any] | None = None,
    titled: bool = True,
    verdict: Callable[[], str] = str,
    **options: Any,
) -> Any:
    """Draw a chart with one panel, its title and notes, and what stands beside it; returns Streamlit's plotly event.

    `name` is the key of the figure and the stem of its files, and differs from the page's other figures. `table` gives
    the numbers behind it, when they are asked for. `verdict` gives what the page says of it, which its copied picture
    has below. `drawn` replaces the plotly figure, as plain data; `options` go to
    `st.plotly_chart` (`on_select="rerun"` to be told of clicks).
    """
    if titled:
        st.markdown(f"**{escaped(chart.title)}**")
    event = st.plotly_chart(
        figure.Plain(figure.fitted(chart) if drawn is None else drawn),
        key=name,
        config=CONFIG,
        alt=chart.title,
        **options,
    )
    if chart.notes:
        is_long = sum(len(note.split()) for note in chart.notes) > MAX_WORDS
        shown, rest = (chart.notes[:1], chart.notes[1:]) if is_long else (chart.notes, ())
        st.caption(escaped(" ".join(shown)), help=escaped(" ".join(rest)) or None)
    with st.container(horizontal=True):
        box = st.popover("Copy link, picture, command", key=f"{name} beside", on_change="rerun")
        if st.button("Export…", key=f"{name} export", help="Another size, other words, with a preview."):
            export.show(name, chart, partial(looking, table, made))
    if not box.open:
        return event
    with box:
        said = replace(chart, notes=tuple(filter(None, (verdict(), *chart.notes))))
        clipboard.copy_picture(cached_picture(said, made), f"{name} copy")
        export.file_buttons(name, name, lambda kind: content(chart, table, kind, made))
        st.caption("As command line")
        st.code(made.command, language="bash", wrap_lines=True)
        st.caption("As Python")
        st.code(made.python, language="python", wrap_lines=True)
        if made.address:
            st.caption("As a link")
            st.code(urljoin(st.context.url or "", made.address), language=None, wrap_lines=True)
    return event


def looking(
    table: Callable[[], pd.DataFrame], made: MadeBy, chart: Chart, page: Page | None, kind: str, options: str
) -> bytes:
    """A file of the dialog: as `content`, and the picture's options stand behind what made its numbers."""
    if kind in export.TABLES or page is None:
        return content(chart, table, kind, made)
    return content(chart, table, kind, replace(made, options=options), page)


@st.cache_data(max_entries=64, ttl="1h", show_spinner=False, hash_funcs={Chart: repr})
def cached_picture(chart: Chart, made: MadeBy) -> bytes:
    """The picture to copy: the panel that is open asks for it in each run of the page."""
    return content(chart, pd.DataFrame, "png", made)


def content(chart: Chart, table: Callable[[], pd.DataFrame], kind: str, made: MadeBy, page: Page = REPORT) -> bytes:
    """A file of the figure for a page, made when it is asked for.

    CSV has no place beside its rows for what made them, so that each row says it.
    """
    from dse.figures.export import image

    rows = table() if kind in export.TABLES else None
    if rows is not None and kind == "csv":
        rows = rows.assign(made_by=made.provenance)
    return image.export(chart, kind, made.provenance, rows, page)
