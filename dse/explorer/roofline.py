"""Operations of one decode step under a device's ceilings, at peak rates and as measured kernels reach them."""

from functools import partial

import pandas as pd
import streamlit as st

from dse import plan, present, tables_operations, units
from dse.errors import DseError
from dse.explorer import beside, request, shared, state, widgets
from dse.explorer.names import spoken
from dse.explorer.request import Request
from dse.measurements import CLOSED
from dse.plots import operations
from dse.specs import HardwareSpec

PAGE = "roofline"
QUANTIZERS = shared.several(shared.FAMILY, ["fp16", "oaken"], "roofline_quantizers", "KV quantizers")
#: what the page asks for
FIELDS = (
    shared.DEVICE, shared.EDITS, shared.MODEL, QUANTIZERS, shared.BATCH, shared.INPUT, shared.OUTPUT,
    shared.ADMISSION, shared.WEIGHTS_BITS, shared.MODEL_KIND, shared.STACK,
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
        for field in FIELDS:
            widgets.draw(field)
    try:
        asked, names = request.of(values), tuple(values[QUANTIZERS.key])
        table = cached_table(asked, names)
        made = beside.MadeBy(command(asked, names), python(asked, names), state.address(PAGE, FIELDS, values))
        device = asked.device_spec()
    except DseError as error:
        widgets.problem(error)
        return
    if table.empty:
        st.info("Nothing to show: choose a quantizer, or a design of which at least one request fits.")
        return
    show_ceilings(device)
    chart = operations.chart(table)
    beside.show("operations", chart, partial(cached_table, asked, names), made)
    st.dataframe(shown_table(table), hide_index=True)
    if assumed := table["assumptions"].iloc[0]:
        st.caption(widgets.escaped(spoken(f"Rests on assumed numbers: {assumed}.")))


@st.cache_data(max_entries=64, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached_table(asked: Request, names: tuple[str, ...]) -> pd.DataFrame:
    """The operations of a design under each quantizer. Raises DseError."""
    model = asked.model_spec()
    plans = [plan.build(model, quantizer, quantizer) for quantizer in map(CLOSED.quantizer, names)]
    return tables_operations.decode_step(asked.device_spec(), plans, asked.work())


def command(asked: Request, names: tuple[str, ...]) -> str:
    """A command a quantizer, each of which prints the operations."""
    asked_for = [request.command(request.with_quantizer(asked, name)) for name in names]
    return "\n".join(f"{line} --operations" for line in asked_for)


def python(asked: Request, names: tuple[str, ...]) -> str:
    """The table in Python, ending with `result`. Raises InputError."""
    first, _, last = request.python(asked).rpartition("result = point.evaluate(device, kv, ")
    head = "\n".join(line for line in first.splitlines() if not line.startswith("kv = "))
    head = head.replace("from dse import catalog, plan, point", "from dse import catalog, plan, tables_operations")
    return "\n".join([
        head, f"quantizers = [CLOSED.quantizer(name) for name in {list(names)!r}]",
        "plans = [plan.build(model, quantizer, quantizer) for quantizer in quantizers]",
        f"result = tables_operations.decode_step(device, plans, {last}",
    ])  # fmt: skip


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
    named = {name: look[0] for name, look in operations.MARKERS.items()}
    designs = zip(table["quantizer"], table["model_kind"], strict=True)
    return pd.DataFrame({
        "operation": [named.get(name, name.replace("_", " ")) for name in table["operation"]],
        "KV cache, times": [f"{stored}, {kind}" for stored, kind in designs],
        **{title: [units.human(value, unit) for value in table[name]] for name, (title, unit) in SHOWN.items()},
    })  # fmt: skip
