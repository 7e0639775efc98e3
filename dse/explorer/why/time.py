"""Where the time goes: what binds each design, the parts of its decode step, and its operations under their roofs."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from dse.explorer import downloads, figure, request, widgets
from dse.explorer.bench import BenchRow
from dse.explorer.request import PointRequest
from dse.figures import FIGURES
from dse.figures.charts import design_bars
from dse.figures.charts.operations import MAX_NAMED
from dse.model import engine
from dse.model.point import Point
from dse.operations.face import python_of
from dse.operations.point import TabulateOperations
from dse.questions import operations
from dse.report.present import LEAST_SHARE


def show(rows: Sequence[BenchRow], current: BenchRow, address: str) -> None:
    """Say what binds, above the parts of a step and the roofline of the device of `current`."""
    with widgets.said():
        st.markdown(f"**{widgets.escaped(verdict(rows))}**")
    left, right = st.columns(2)
    with left, widgets.said():
        show_step(rows, address)
    with right, widgets.said():
        show_roofline(rows, current, address)


def verdict(rows: Sequence[BenchRow]) -> str:
    """The part that binds each design, with its share of decoding and of prompts, as `dse point --all` prints them."""
    bound: dict[str, list[str]] = {}
    for row in rows:
        binds = row.result["bound"]
        parts = {} if binds == "capacity" else cached_shares(row.request)
        shares = [
            f"{100 * part[binds]:.0f} % of {phase}" for phase, part in parts.items() if part[binds] >= LEAST_SHARE
        ]
        bound.setdefault(binds, []).append(row.name + (f" ({', '.join(shares)})" if shares else ""))
    why = {**engine.WHY_BOUND, "capacity": "not all requests fit at once"}
    said = "; ".join(f"{binds} ({why[binds]}) binds {', '.join(names)}" for binds, names in bound.items())
    return f"{said[:1].upper()}{said[1:]}."


@st.cache_data(max_entries=512, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr})
def cached_shares(asked: PointRequest) -> dict[str, dict[str, float]]:
    """Shares of decoding and of prompts by what is waited for. Raises DseError."""
    return engine.time_shares(Point(asked.device_spec(), asked.plan(), asked.work))


def show_step(rows: Sequence[BenchRow], address: str) -> None:
    """Time of a decode step by part, a bar a design."""
    shown = [(row.name, row.result) for row in rows]
    made = downloads.made_by([request.operation(row.request) for row in rows], address)
    chart = design_bars.step_time(shown, 1 < len(rows) <= MAX_NAMED)
    downloads.show("step", chart, partial(design_bars.table, shown), made, figure.tall(chart))
    at_once = ", ".join(f"{row.name} {row.result['batch']:,}" for row in rows)
    st.caption(widgets.escaped(f"Requests at once: {at_once}. TPOT has the prompts of others in it, too."))


def show_roofline(rows: Sequence[BenchRow], current: BenchRow, address: str) -> None:
    """Operations of a step of the designs that have the device and the model of `current`."""
    here = [row for row in rows if _where(row) == _where(current)]
    left = [row.name for row in rows if row not in here]
    designs = tuple((row.name, row.request) for row in here)
    table = cached_table(designs)
    if table.empty:
        widgets.lines(["No roofline: no request of these designs fits."])
        return
    made = downloads.MadeBy(
        "\n".join(f"{request.command_of(request.operation(point))} --operations" for _, point in designs),
        "\n\n".join(map(python, (point for _, point in designs))),
        address,
    )
    chart = FIGURES["operations"].chart(table)
    downloads.show("operations", chart, partial(cached_table, designs), made)
    if left:
        st.caption(widgets.escaped(f"Of another device or model, and not in this figure: {', '.join(left)}."))


def _where(row: BenchRow) -> tuple[Any, ...]:
    return row.request.device_text, row.request.device_file, row.request.model_text


@st.cache_data(max_entries=64, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr})
def cached_table(each: tuple[tuple[str, PointRequest], ...]) -> pd.DataFrame:
    """The operations of named designs, by their names. Raises DseError."""
    tables = [
        operations.decode_step(point.device_spec(), [point.plan()], point.work).assign(quantizer=name)
        for name, point in each
    ]
    return pd.concat([table for table in tables if not table.empty] or tables[:1], ignore_index=True)


def python(asked: PointRequest) -> str:
    """The operations of a design in Python, ending with `result`. Raises InputError."""
    return python_of(request.operation(asked, TabulateOperations, quantizers=(asked.key_quantizer_text,)))
