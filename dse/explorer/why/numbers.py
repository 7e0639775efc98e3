"""Every number of the designs in a table, and one of them with its formula, values, units and sources."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from dse.core.field import Field
from dse.explorer import cards, request, state, widgets
from dse.explorer.bench import BenchRow
from dse.explorer.request import PointRequest
from dse.model.results import RESULTS
from dse.report.present import change, explain, explanation_text

#: what is looked for most, before all others in the order of their declaration
_FIRST = (*cards.MEANINGS, "feasible", "max_batch", "decode_step_s", "kv_bytes", "weight_bytes")
SHOWN = tuple(dict.fromkeys((*_FIRST, *(name for name, result in RESULTS.items() if not result.chosen))))
#: head of the table's column of names; key of the table; its height in pixels
HEAD, _TABLE, _HEIGHT_PX = "number", "numbers", 500


def label_of(name: str) -> str:
    """Title of a result on this page, which shows how much of the batch fits."""
    return "Fits" if name == "feasible" else cards.label(name)


NUMBER = Field(
    name="number",
    label="Explained",
    default=SHOWN[0],
    choices={name: label_of(name) for name in SHOWN},
    help="A press on a row of the table chooses it, too.",
)


def show(rows: Sequence[BenchRow], explained: BenchRow) -> None:
    """The table of all designs, beside one number of `explained`."""
    table = table_of(rows)
    left, right = st.columns(2)
    with left:
        st.dataframe(
            table.drop(columns="name"),
            hide_index=True,
            height=_HEIGHT_PX,
            key=_TABLE,
            on_select=lambda: _take(list(table["name"])),
            selection_mode="single-row",
        )
        if len(rows) > 1:
            st.caption(
                "In brackets: difference from the first as computed; the gain on Answer is the middle of its interval."
            )
    with right, widgets.said():
        name = widgets.draw(NUMBER)
        st.code(cached_explanation(explained.request, name), language=None, wrap_lines=True, height=_HEIGHT_PX // 2)
        explain = request.operation(explained.request, explain=name)
        st.caption(widgets.escaped(f"Of {explained.name}, as this command prints it:"))
        st.code(request.command_of(explain), language="bash", wrap_lines=True)


def _take(shown: Sequence[str]) -> None:
    """Explain the number of the row that was pressed."""
    if picked := st.session_state[_TABLE]["selection"]["rows"]:
        state.put({NUMBER.key: shown[picked[0]]})


def table_of(rows: Sequence[BenchRow]) -> pd.DataFrame:
    """A row a number that a design has; a column a design, with the difference from the first.

    Column `name` has the results' names.
    """
    shown = [name for name in SHOWN if any(row.result[name] not in (None, []) for row in rows)]
    cells = {row.name: [_cell(name, row.result, rows[0].result) for name in shown] for row in rows}
    return pd.DataFrame({"name": shown, HEAD: list(map(label_of, shown)), **cells})


def _cell(name: str, result: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """A result with its unit, and its difference from the first design's."""
    value, base = result[name], first[name]
    if name == "feasible":
        return cards.fits(result)
    text = ", ".join(value) if isinstance(value, list | tuple) else cards.shown(name, result)
    is_counted = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (value, base))
    delta = change(value, base) if is_counted and result is not first else ""
    return f"{text} ({delta})" if delta else text


@st.cache_data(max_entries=256, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr})
def cached_explanation(asked: PointRequest, name: str) -> str:
    """Formula, values, units and sources of one result, as `dse point --explain` prints them. Raises DseError."""
    return explanation_text(explain(name, asked.point()))
