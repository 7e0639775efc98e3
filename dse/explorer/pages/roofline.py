"""Operations of one decode step under a device's ceilings, at peak rates and as measured kernels reach them."""

from functools import partial

import pandas as pd
import streamlit as st

from dse.core import units
from dse.core.errors import DseError
from dse.explorer import common_fields as shared
from dse.explorer import downloads as beside
from dse.explorer import request, state, uploads, widgets
from dse.explorer.names import spoken
from dse.explorer.request import Request
from dse.figures import FIGURES
from dse.figures.operations import MARKERS
from dse.questions import operations as tables_operations
from dse.report import present
from dse.specs.device_and_model import HardwareSpec

PAGE = "roofline"
QUANTIZERS = shared.several(shared.QUANTIZER, ["fp16", "oaken"], "roofline_quantizers", "KV quantizers")
#: what the page asks for
FIELDS = (
    shared.DEVICE, shared.EDITS, shared.MODEL, QUANTIZERS, *shared.WORK_FIRST, *shared.WORK_MORE,
)  # fmt: skip
#: numbers of the table below the figure: title and unit
SHOWN = {
    "seconds": ("time of a step", "s"), "flops_per_s": ("reached", "FLOP/s"),
    "ceiling_flops_per_s": ("ceiling", "FLOP/s"), "intensity_flops_per_byte": ("intensity", "FLOP/B"),
    "flops": ("work", "FLOP"), "n_bytes": ("memory traffic", "B"),
}  # fmt: skip


def render() -> None:
    """Draw the page."""
    values = state.open_page(PAGE, FIELDS)
    st.title("Roofline", anchor=False)
    st.caption("What do reading and multiplying allow each operation of a decode step, and what do real kernels reach?")
    with st.sidebar:
        widgets.draw_some(FIELDS, shared.WORK_MORE)
    try:
        asked = request.of(values)
        each = tuple(request.with_quantizer(asked, name, uploads.text_of(name)) for name in values[QUANTIZERS.key])
        table = cached_table(each)
        made = beside.MadeBy(command(each), python(asked, each), state.address(PAGE, FIELDS, values))
        device = asked.device_spec()
    except DseError as error:
        widgets.problem(error)
        return
    if table.empty:
        st.info("Nothing to show: choose a quantizer, or a design of which at least one request fits.")
        return
    show_ceilings(device)
    chart = FIGURES["operations"].chart(table)
    beside.show("operations", chart, partial(cached_table, each), made)
    st.dataframe(shown_table(table), hide_index=True)
    if assumed := table["assumptions"].iloc[0]:
        st.caption(widgets.escaped(spoken(f"Rests on assumed numbers: {assumed}.")))


@st.cache_data(max_entries=64, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached_table(each: tuple[Request, ...]) -> pd.DataFrame:
    """The operations of a design under each quantizer. Raises DseError."""
    plans = [asked.plan() for asked in each]
    return tables_operations.decode_step(each[0].device_spec(), plans, each[0].work) if plans else pd.DataFrame()


def command(each: tuple[Request, ...]) -> str:
    """A command a quantizer, each of which prints the operations."""
    return "\n".join(f"{request.command(asked)} --operations" for asked in each)


def python(asked: Request, each: tuple[Request, ...]) -> str:
    """The table in Python, ending with `result`. Raises InputError."""
    names = [one.key_quantizer_text for one in each]
    of_all = [repr(asked.device_text), repr(asked.model_text), repr(names)]
    return request.call("operations", [*of_all, *request.work_arguments(asked)])


def show_ceilings(device: HardwareSpec) -> None:
    """The two numbers that make the roofline, and where they meet."""
    peak, bandwidth = device.peak_flops.si, device.memory_bandwidth.si
    with st.container(horizontal=True):
        st.metric(
            "Peak of 16-bit products", present.number(peak, "FLOP/s"), border=True,
            help="Operations a second at most, of dense FP16 or BF16 matrix products.",
        )  # fmt: skip
        st.metric(
            "Memory bandwidth", present.number(bandwidth, "B/s"), border=True,
            help="Bytes a second at most between the device's memory and its cores.",
        )  # fmt: skip
        st.metric(
            "Ridge", present.number(tables_operations.ridge(device), "FLOP/B"), border=True,
            help="Operations below this intensity wait for memory, those above for arithmetic.",
        )  # fmt: skip


def shown_table(table: pd.DataFrame) -> pd.DataFrame:
    """The operations as people read them."""
    named = {name: look[0] for name, look in MARKERS.items()}
    designs = zip(table["quantizer"], table["model_kind"], strict=True)
    return pd.DataFrame({
        "operation": [named.get(name, name.replace("_", " ")) for name in table["operation"]],
        "KV cache, times": [f"{stored}, {kind}" for stored, kind in designs],
        **{title: [units.human(value, unit) for value in table[name]] for name, (title, unit) in SHOWN.items()},
    })  # fmt: skip
