"""The size page: what to run for a load within limits, as `dse recommend` says it, and the designs under that load."""

import streamlit as st

from dse.core.field import Field
from dse.explorer import widgets
from dse.explorer.bench import Bench
from dse.explorer.size import against_rate, asked, recommended, trace, trade_offs

PAGE = "size"
PART = Field(
    name="size_tab",
    label="Part",
    default="recommendation",
    choices={
        "recommendation": "Recommendation",
        "rate": "Against the rate",
        "trace": "Trace",
        "trade_offs": "Best trade-offs",
    },
    help="What the page shows: what to run, the designs under load, a trace as the load, the front of a sweep.",
)
#: what the page asks for beside the designs and the workload
FIELDS = (PART, *asked.FIELDS, *against_rate.FIELDS, *trace.FIELDS, *trade_offs.FIELDS)


def render(bench: Bench) -> None:
    """Draw the page: of its parts the chosen one alone."""
    values = bench.values
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        part = widgets.tabs(PART)
        if part in ("recommendation", "trace"):
            _choose(part == "recommendation" and asked.is_open(values))
    if part == "trade_offs":
        trade_offs.show(PAGE, bench)
    elif part == "rate":
        against_rate.show(PAGE, bench)
    elif part == "trace":
        trace.show(PAGE, values)
    else:
        recommended.show(PAGE, values)


def _choose(is_open: bool) -> None:
    """The devices to choose from, and what few change; where no load is asked for, the question's are filled."""
    widgets.draw(asked.DEVICES, width=380, **({"placeholder": "the question's"} if is_open else {}))
    box = st.popover("Options", key="size more", on_change="rerun")
    if box.open:
        with box:
            for field in asked.MORE:
                widgets.draw(field)
