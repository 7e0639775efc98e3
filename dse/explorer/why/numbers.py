"""Every number of the designs in a table, and one of them with its formula, values, units and sources."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from dse.core import units
from dse.core.field import Field
from dse.explorer import cards, names, request, state, widgets
from dse.explorer.bench import BenchRow
from dse.explorer.request import PointRequest
from dse.model.results import RESULT_UNITS, RESULTS
from dse.report.present import change, made_for_positions, number
from dse.specs.oaken_grid import SAMPLE

#: what the page calls otherwise than the declared title, since it shows something else: how much of the batch fits
LABELS = {"feasible": "Fits"}
#: what is looked for most, before all others in the order of their declaration
_FIRST = (
    "throughput_tokens_per_s",
    "tpot_s",
    "ttft_s",
    "decode_step_s",
    "feasible",
    "max_batch",
    "kv_pool_tokens",
    "kv_bytes",
    "weight_bytes",
    "score_drop_frac",
    "sample_perplexity_frac",
    "joules_per_token",
    "usd_per_million_tokens",
)
SHOWN = tuple(dict.fromkeys((*_FIRST, *(name for name, result in RESULTS.items() if not result.chosen))))
#: head of the table's column of names; key of the table; its height in pixels
HEAD, _TABLE, _HEIGHT_PX = "number", "numbers", 600


def label_of(name: str) -> str:
    """Title of a result on this page."""
    return LABELS.get(name) or names.words(name)


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
    with right, widgets.said():
        name = widgets.draw(NUMBER)
        explain = request.operation(explained.request, explain=name)
        st.caption(widgets.escaped(f"Of {explained.name}, as this command prints it:"))
        st.code(request.command_of(explain), language="bash", wrap_lines=True)
        st.code(cached_explanation(explained.request, name), language=None, wrap_lines=True, height=_HEIGHT_PX // 2)


def _take(shown: Sequence[str]) -> None:
    """Explain the number of the row that was pressed."""
    if picked := st.session_state[_TABLE]["selection"]["rows"]:
        state.put({NUMBER.key: shown[picked[0]]})


def table_of(rows: Sequence[BenchRow]) -> pd.DataFrame:
    """A row a number that a design has, or that most look for; a column a design, with the difference from the first.

    Column `name` has the results' names.
    """
    first = rows[0].result
    shown = [name for name in SHOWN if name in _FIRST or any(row.result[name] not in (None, []) for row in rows)]
    cells = {row.name: [_cell(name, row, first) for name in shown] for row in rows}
    return pd.DataFrame({"name": shown, HEAD: [label_of(name) for name in shown], **cells})


def _cell(name: str, row: BenchRow, first: Mapping[str, Any]) -> str:
    delta = "" if row.result is first else delta_of(name, row.result, first)
    said = ", ".join(filter(None, (delta, _limits(name, row.request, row.result))))
    return shown_number(name, row.result) + (f" ({said})" if said else "")


def shown_number(name: str, result: Mapping[str, Any]) -> str:
    """A result as the page shows it; sizes in GB only, so that columns compare."""
    if name == "feasible":
        return cards.fits(result)
    if name in ("score_drop_frac", "sample_perplexity_frac"):
        return cards.shown(name, result)
    value, unit = result[name], RESULT_UNITS[name]
    if unit == "B" and value is not None:
        return units.human(value, unit)
    return ", ".join(value) if isinstance(value, list | tuple) else number(value, unit)


def delta_of(name: str, result: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """Difference from the first design's number in percent, from twice on as a factor; empty where undefined."""
    value, base = result[name], first[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(base, int | float):
        return ""
    return change(value, base)


def _limits(name: str, point: PointRequest, result: Mapping[str, Any]) -> str:
    """Caveats of the numbers: measured on other data, or a context longer than the model was trained on."""
    if name in ("measured_error", "sqnr_db"):
        if "(synthetic)" in (result["measured_on"] or ""):
            return "synthetic data"
        return SAMPLE if result["measured_on"] == SAMPLE else ""
    if name in ("sample_kl_nats", "sample_perplexity_frac"):
        return SAMPLE
    if name == "score_drop_frac":
        return result["score_drop_of"] or ""
    if name == "max_context_tokens":
        return made_for_positions(point.model_spec(), result[name])
    return ""


@st.cache_data(max_entries=256, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr})
def cached_explanation(asked: PointRequest, name: str) -> str:
    """Formula, values, units and sources of one result. Raises DseError."""
    return request.explanation(asked, name)
