"""Best trade-offs: servers of every format and layout, as `dse ask interactivity` finds them, or a sweep's table."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from dse.core.errors import InputError
from dse.core.field import Field
from dse.explorer import downloads, figure, request, state, widgets
from dse.explorer.bench import Bench
from dse.explorer.common_fields import EDITS, OWN_DEVICE, OWN_MODEL
from dse.explorer.downloads import MadeBy
from dse.explorer.own_file import OwnFile
from dse.explorer.request import PointRequest
from dse.explorer.size import asked, recommended
from dse.explorer.size.found import server_fields
from dse.explorer.widgets import escaped
from dse.figures.charts.design_front import trade_offs
from dse.operations.face import Name, call_of, script
from dse.operations.questions import TradeSpeeds
from dse.operations.sweeps import FindFront
from dse.questions.common import limits_text
from dse.questions.interactivity import speeds
from dse.specs.deployment import USUAL_SIZES
from dse.sweep.pareto import designs
from dse.sweep.pareto.designs import DesignFront

#: axes of the figure of servers, and the column that a table of several layouts is given
USER, DEVICE = "tokens_per_s_a_user", "tokens_per_s_a_device"
RATE = "throughput_tokens_per_s"
#: times of a table that the rate is set against, the first that it has
TIMES = ("tpot_s", "decode_step_s")
SEARCH, TITLE, HEIGHT_PX = "search", "Best trade-offs", 330


def _read(path: str, _: bytes) -> pd.DataFrame:
    """A table of designs. Raises InputError."""
    table = designs.read_table(path)
    if RATE not in table or not any(name in table for name in TIMES):
        raise InputError(f"{path}: lacks {RATE}, or both of {', '.join(TIMES)}: give a table of `dse sweep`")
    return table


OWN = OwnFile(
    field="front_table",
    label="A table of `dse sweep`",
    help=".csv or .parquet, with throughput and TPOT",
    endings=(".csv", ".parquet"),
    max_bytes=16 * 2**20,
    larger="`dse pareto` takes any size",
    read=_read,
)
SOURCE = Field(
    name="front_table",
    label="Designs",
    default=SEARCH,
    listed=lambda: {SEARCH: "all formats and layouts of the design's engine"} | OWN.names(),
    help="Searched here, or read from a table of `dse sweep` that you load.",
)
FIELDS = (SOURCE,)


@dataclass(frozen=True)
class Traded:
    """The answer of `dse ask interactivity`: its words, the fronts, the star's row, and that server as a design."""

    verdict: str
    table: pd.DataFrame
    best: pd.Series | None
    #: most tokens a device at some speeds of a user
    at_speeds: pd.DataFrame
    design: Mapping[str, Any]


def show(page: str, bench: Bench) -> None:
    """The fields, and what is best of a search or of a loaded table."""
    values = bench.values
    with st.container(horizontal=True, vertical_alignment="bottom"):
        widgets.draw(SOURCE, width=330)
        widgets.draw(asked.FORMATS, width="stretch")
        box = st.popover("Own table", key="front more", on_change="rerun")
    if box.open:
        with box:
            OWN.draw()
    with widgets.said():
        if values[SOURCE.key] != SEARCH:
            _show_table(page, values, *OWN.held())
        elif bench.current.asked is None:
            widgets.lines(["The design cannot be computed: the line beside its fields says what to change."])
        else:
            _show_search(page, values, bench.current.asked)


def speeds_of(point: PointRequest, values: Mapping[str, Any]) -> TradeSpeeds:
    """The question: the design in every format and layout, within the limits. Raises InputError."""
    most = values["most"] or max(USUAL_SIZES)
    whole = replace(point, work=replace(point.work, batch=None, tp=1, pp=1))
    splits = tuple(size for size in USUAL_SIZES if size <= most)
    formats = tuple(values[asked.FORMATS.key]) or None
    limits = request.limit_fields(request.limits_s(values))
    speeds: TradeSpeeds = request.operation(whole, TradeSpeeds, quantizers=formats, splits=splits, **limits)
    return speeds


@st.cache_data(
    max_entries=32,
    ttl="1h",
    show_spinner="Evaluating servers…",
    show_time=True,
    hash_funcs={PointRequest: repr, TradeSpeeds: repr},
)
def cached(question: TradeSpeeds, point: PointRequest) -> Traded:
    """The answer to the question of a design. Raises DseError."""
    answer = request.with_files(question, point).run()
    head, *rows = answer.speed_rows()
    best = None
    if answer.best:
        user, device = speeds(answer.best)
        best = pd.Series({**answer.best, USER: user, DEVICE: device})
    design = server_fields(answer.found.first) if answer.found else {}
    columns = [head[0], *(f"{speed} tok/s a user" for speed in head[1:])]
    return Traded(answer.verdict, answer.table, best, pd.DataFrame(rows, columns=columns), design)


def _show_search(page: str, values: Mapping[str, Any], point: PointRequest) -> None:
    question = speeds_of(point, values)
    found = cached(question, point)
    said, *more = found.verdict.splitlines()
    st.markdown(f"**{escaped(said)}**")
    if found.table.empty:
        return
    chart = trade_offs(found.table, found.best, USER, DEVICE, request.limits_s(values), TITLE)
    made = downloads.made_by([question], state.address(page, values))
    figures, side = st.columns([3, 2], gap="medium")
    with figures:
        drawn = figure.fitted(chart, HEIGHT_PX)
        downloads.show("front", chart, lambda: found.table, made, drawn, titled=False, verdict=lambda: found.verdict)
    with side:
        st.markdown(escaped("\n\n".join(more)))
        if found.design:
            where = {field.key: values[field.key] for field in (OWN_DEVICE, EDITS, OWN_MODEL)}
            add = partial(recommended.add, {**where, **found.design})
            st.button("Add the best to the designs", key="front add", on_click=add)
    st.dataframe(found.at_speeds, hide_index=True)
    st.caption("Most tok/s a device where each user surely gets so many tok/s (requests at once, layout).")


def front_of(name: str, table: pd.DataFrame, limits: Mapping[str, float]) -> tuple[FindFront, pd.DataFrame, str]:
    """The front of a loaded table by its file's name, as an operation; the table that it is of; and the script before.

    Of several layouts the rate is that of a device, which the table is given.
    """
    rate, time = RATE, next(name for name in TIMES if name in table)
    layout = [column for column in ("n_devices", "tp", "pp") if column in table][: 1 if "n_devices" in table else 2]
    added, units = "", None
    if layout and (n_devices := table[layout].prod(axis=1)).nunique() > 1:
        rate, units = DEVICE, {DEVICE: "tok/s"}
        table = table.assign(**{DEVICE: table[RATE] / n_devices})
        added = f"table[{DEVICE!r}] = table[{RATE!r}] / table[{layout!r}].prod(axis=1)"
    front = FindFront(
        designs=name,
        maximize=(rate,),
        minimize=(time,),
        by=("quantizer",) if "quantizer" in table else (),
        at_most=tuple(f"{column}={most:.12g}" for column, most in limits.items() if column in table),
        drop_missing=True,
        units=units,
    )
    return front, table, added


def script_of(name: str, front: FindFront, added: str) -> str:
    """The Python that gives the same front of the file; `added` is the line that gives its table another column."""
    reader = "read_parquet" if name.lower().endswith(".parquet") else "read_csv"
    lines = ["import pandas", "", f"table = pandas.{reader}({name!r})", *filter(None, [added])]
    return script(*lines, f"result = {call_of(replace(front, designs=Name('table')))}")


def best_of(front: FindFront, table: pd.DataFrame) -> pd.Series | None:
    """The one design that is named: within limits that with most throughput, without any the knee of all formats."""
    whole: DesignFront = replace(front, designs=table, by=()).run()
    if whole.table.empty:
        return None
    at = whole.table[front.maximize[0]].argmax() if whole.limits else whole.knee.argmax()
    return whole.table.iloc[at]


def _show_table(page: str, values: Mapping[str, Any], name: str, held: pd.DataFrame) -> None:
    """The front of a loaded table, as `dse pareto` finds it."""
    front, table, added = front_of(name, held, request.limits_s(values))
    found: DesignFront = replace(front, designs=table).run()
    best = best_of(front, table)
    if best is None:
        widgets.lines([f"{name}: no design is left within the limits: allow more."])
        return
    rate, time = front.maximize[0], front.minimize[0]
    limits = {limit.column: limit.value for limit in found.limits}
    head = f"Most throughput within {limits_text(limits)}" if limits else "Closest to best in both"
    said = f"{head}: {designs.label(best, [*found.design, rate, time], found.units)}."
    st.markdown(f"**{escaped(said)}**")
    command = "" if added else request.command_of(front)
    made = MadeBy(command, script_of(name, front, added), state.address(page, values))
    chart = trade_offs(found.table, best, time, rate, {}, TITLE)
    downloads.show("front", chart, lambda: found.table, made, titled=False, verdict=lambda: said)
    st.caption(escaped(f"{found!r}."))
