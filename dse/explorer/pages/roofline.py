"""Operations of one decode step under a device's ceilings, at peak rates and as measured kernels reach them."""

from functools import partial

import pandas as pd
import streamlit as st

from dse.core import units
from dse.explorer import downloads, request, state, widgets
from dse.explorer.bench import Bench
from dse.explorer.request import PointRequest
from dse.figures import FIGURES
from dse.figures.charts.operations import MARKERS
from dse.model.results import rests_on
from dse.operations.face import python_of
from dse.operations.point import TabulateOperations
from dse.questions import operations
from dse.report import present
from dse.specs.device_and_model import HardwareSpec

PAGE = "roofline"
#: what the page asks for beside the designs and the workload
FIELDS = ()
#: numbers of the table below the figure: title and unit
SHOWN = {
    "seconds": ("time of a step", "s"),
    "flops_per_s": ("reached", "FLOP/s"),
    "ceiling_flops_per_s": ("ceiling", "FLOP/s"),
    "intensity_flops_per_byte": ("intensity", "FLOP/B"),
    "flops": ("work", "FLOP"),
    "n_bytes": ("memory traffic", "B"),
}


def render(bench: Bench) -> None:
    """Draw the page."""
    st.title("Roofline", anchor=False)
    st.caption(
        "What do reading, multiplying and dequantizing allow each operation of a decode step, and what do real kernels "
        "reach?"
    )
    current = bench.current
    if current.answer is None:
        st.info("Nothing to show yet: the message beside the design's fields says what to change.")
        return
    where = (current.request.device_text, current.request.device_file, current.request.model_text)
    here = [
        row
        for row in bench.answered
        if (row.request.device_text, row.request.device_file, row.request.model_text) == where
    ]
    left = [row.name for row in bench.answered if row not in here]
    if left:
        st.caption(widgets.escaped(f"Of another device or model, and not in this figure: {', '.join(left)}."))
    designs = tuple((row.name, row.request) for row in here)
    with widgets.said():
        table = cached_table(designs)
        if table.empty:
            st.info("Nothing to show: no request of these designs fits.")
            return
        made = downloads.MadeBy(
            "\n".join(f"{request.command_of(request.operation(point))} --operations" for _, point in designs),
            "\n\n".join(map(python, (point for _, point in designs))),
            state.address(PAGE, bench.values),
        )
        show_ceilings(current.request.device_spec())
        chart = FIGURES["operations"].chart(table)
        downloads.show("operations", chart, partial(cached_table, designs), made)
        st.dataframe(shown_table(table), hide_index=True)
        if assumed := table["assumptions"].iloc[0]:
            st.caption(widgets.escaped(rests_on(assumed.split(", "))))


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


def show_ceilings(device: HardwareSpec) -> None:
    """The two numbers that make the roofline, and where they meet."""
    ceilings = (
        (
            "Peak of 16-bit products",
            (device.peak_flops.si, "FLOP/s"),
            "Operations a second at most, of dense FP16 or BF16 matrix products.",
        ),
        (
            "Memory bandwidth",
            (device.memory_bandwidth.si, "B/s"),
            "Bytes a second at most between the device's memory and its cores.",
        ),
        (
            "Ridge",
            (operations.ridge(device), "FLOP/B"),
            "Operations below this intensity wait for memory, those above for arithmetic.",
        ),
    )
    with st.container(horizontal=True):
        for label, number, meaning in ceilings:
            st.metric(label, present.number(*number), border=True, help=meaning)


def shown_table(table: pd.DataFrame) -> pd.DataFrame:
    """The operations as people read them."""
    named = {name: look[0] for name, look in MARKERS.items()}
    designs = zip(table["quantizer"], table["model_kind"], strict=True)
    return pd.DataFrame(
        {
            "operation": [named.get(name, name.replace("_", " ")) for name in table["operation"]],
            "design, timing model": [f"{stored}, {kind}" for stored, kind in designs],
            **{title: [units.human(value, unit) for value in table[name]] for name, (title, unit) in SHOWN.items()},
        }
    )
