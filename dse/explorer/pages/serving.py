"""The serving page: what requests wait as the designs of the tray are asked for more of them a second."""

from functools import partial

import pandas as pd
import streamlit as st

from dse.core.errors import DseError
from dse.explorer import cards, figure, request, state, widgets
from dse.explorer import downloads as beside
from dse.explorer.bench import Bench
from dse.explorer.fields import Field
from dse.explorer.request import Request
from dse.figures import load_times
from dse.questions import load
from dse.report.present import number

PAGE = "serving"
RATE = Field(
    "rate", "Requests per second", "number", None, low=0.0001, high=1_000_000, step=1,
    placeholder="any", help="How many requests come a second: the table then says what they wait.",
)  # fmt: skip
#: what the page asks for beside the designs and the workload
FIELDS = (RATE,)


def render(bench: Bench) -> None:
    """Draw the page."""
    st.title("Serving", anchor=False)
    st.caption("How long do requests wait for their first token and for each after it, as more of them come a second?")
    rate = widgets.draw(RATE, width=220)
    tables: dict[str, pd.DataFrame] = {}
    for row in bench.answered:
        with widgets.said():
            try:
                table = cached_load(row.request)
            except DseError as error:
                widgets.lines([f"{row.name}: {line}" for line in error.lines()])
                continue
            if table.empty:
                widgets.lines([f"{row.name}: no rate holds: nothing fits, or its groups of devices step together"])
            else:
                tables[row.name] = table
    if not tables:
        return
    asked = [row for row in bench.answered if row.name in tables]
    same, other = cards.likeness(asked)
    st.caption(widgets.escaped(f"Alike: {same}." + (f" Not alike: {other}." if other else "")))
    made = beside.MadeBy(
        "\n".join(command(row.request) for row in asked), "\n\n".join(python(row.request) for row in asked),
        state.address(PAGE, bench.values),
    )  # fmt: skip
    for place, name in zip(st.columns(2), load_times.TIMES, strict=True):
        field, per_second = cards.LIMITS[f"steady_{name}"]
        limit = bench.values[field.key]
        chart = load_times.chart(list(tables.items()), name, limit / per_second if limit else None)
        with place:
            beside.show(f"load-{name}", chart, partial(_table, tables), made, drawn=figure.fitted(chart))
    st.dataframe(at(tables, rate), hide_index=True)


def at(tables: dict[str, pd.DataFrame], rate: float | None) -> pd.DataFrame:
    """What each design gives at a rate, between its loads; at half of its load where no rate is given."""
    rows = []
    for name, table in tables.items():
        full = table.attrs["full_requests_per_s"]
        own = rate if rate is not None else full / 2
        shown = {"design": name, "requests/s": f"{own:.4g}", "of a full server": f"{own / full:.0%}"}
        if own > table["requests_per_s"].iloc[-1]:
            shown["says"] = f"too many: at most {full:.3g} requests/s are served"
        else:
            for column, title in (("tpot_s", "per output token"), ("ttft_s", "to first token")):
                shown[title] = number(_between(table, own, column), "s")
            shown["decode at once"] = f"{_between(table, own, 'running_requests'):.3g}"
            shown["says"] = "holds"
        rows.append(shown)
    return pd.DataFrame(rows)


def _between(table: pd.DataFrame, rate: float, column: str) -> float:
    rates, values = table["requests_per_s"].tolist(), table[column].tolist()
    if rate <= rates[0]:
        return float(values[0])
    i = next(i for i, each in enumerate(rates) if each >= rate)
    share = (rate - rates[i - 1]) / (rates[i] - rates[i - 1])
    return float(values[i - 1] + share * (values[i] - values[i - 1]))


@st.cache_data(max_entries=256, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached_load(asked: Request) -> pd.DataFrame:
    """The design under load. Raises DseError."""
    return load.under_load(asked.device_spec(), asked.plan(), asked.work)


def _table(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([table.assign(design=name) for name, table in tables.items()], ignore_index=True)


def command(asked: Request) -> str:
    """The command that prints the design's numbers; its times at a full server bound those of the page."""
    return request.command(asked)


def python(asked: Request) -> str:
    """The table in Python, ending with `result`. Raises InputError."""
    key, value = (spec.name for spec in asked.quantizer_specs())
    work = ", ".join(request.work_arguments(asked))
    return "\n".join([
        "import dse", "from dse.questions import load", "",
        f"device, plan = dse.device({asked.device_text!r}), dse.plan({asked.model_text!r}, {key!r}, {value!r})",
        f"result = load.under_load(device, plan, dse.Workload({work}))",
    ])  # fmt: skip
