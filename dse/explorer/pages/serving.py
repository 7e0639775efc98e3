"""The serving page: what requests wait as the designs of the tray are asked for more of them a second."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from dse.core.errors import DseError
from dse.explorer import cards, figure, request, state, widgets
from dse.explorer import downloads as beside
from dse.explorer.bench import Bench
from dse.explorer.fields import Field
from dse.explorer.request import Request
from dse.figures import FIGURES
from dse.figures.load_times import TIMES
from dse.questions import load
from dse.questions.load import Load
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
    found: dict[str, Load] = {}
    for row in bench.answered:
        try:
            answer = cached_load(row.request, row.name)
        except DseError as error:
            widgets.lines([f"{row.name}: {line}" for line in error.lines()])
            continue
        if not answer.rows:
            widgets.lines([f"{row.name}: no rate holds: nothing fits, or its groups of devices step together"])
        else:
            found[row.name] = answer
    if not found:
        return
    asked = [row for row in bench.answered if row.name in found]
    same, other = cards.likeness(asked)
    st.caption(widgets.escaped(f"Alike: {same}." + (f" Not alike: {other}." if other else "")))
    made = beside.MadeBy(
        "\n".join(command(row.request) for row in asked), "\n\n".join(python(row.request) for row in asked),
        state.address(PAGE, bench.values),
    )  # fmt: skip
    table = pd.concat([answer.table() for answer in found.values()], ignore_index=True)
    chart = FIGURES["load"].chart(table, {"limits": limits(bench.values), "notes": []})
    for place, panel, name in zip(st.columns(2), chart.panels, TIMES, strict=True):
        with place:
            one = replace(chart, panels=(panel,), title=panel.title[:1].upper() + panel.title[1:])
            beside.show(f"load-{name}", one, lambda: table, made, drawn=figure.fitted(one))
    st.caption("Requests of equal lengths come at random; each line goes up to 0.9 of what a full server serves.")
    st.dataframe(at(found, rate), hide_index=True)


def limits(values: Mapping[str, Any]) -> dict[str, float]:
    """The workload's limits in seconds, by column of the table."""
    wanted = {name: cards.LIMITS[f"steady_{name}"] for name in TIMES}
    return {name: values[field.key] / size for name, (field, size) in wanted.items() if values[field.key]}


def at(found: Mapping[str, Load], rate: float | None) -> pd.DataFrame:
    """What each design gives at a rate; at half of what it serves when full, where no rate is given."""
    rows = []
    for name, answer in found.items():
        full = answer.full_requests_per_s or 0.0
        own = rate if rate is not None else full / 2
        shown = {"design": name, "requests/s": f"{own:.4g}", "of a full server": f"{own / full:.0%}"}
        row = answer.at(own)
        if row is None:
            most = answer.rows[-1]["requests_per_s"]
            shown["says"] = f"too many: waits stay short up to {most:.3g} requests/s; a full server serves {full:.3g}"
        else:
            shown |= {
                "per output token": number(row["tpot_s"], "s"), "to first token": number(row["ttft_s"], "s"),
                "decode at once": f"{row['running_requests']:.3g}", "says": "holds",
            }  # fmt: skip
        rows.append(shown)
    return pd.DataFrame(rows)


@st.cache_data(max_entries=256, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached_load(asked: Request, name: str) -> Load:
    """The design under load. Raises DseError."""
    return load.under_load(asked.device_spec(), asked.plan(), asked.work, name=name)


def command(asked: Request) -> str:
    """The command line that prints the same. Raises InputError."""
    return shlex.join(["dse", "ask", "load", *shlex.split(request.command(asked))[2:]])


def python(asked: Request) -> str:
    """The same in Python, ending with `result`. Raises InputError."""
    key, value = (spec.name for spec in asked.quantizer_specs())
    return request.call("load", [
        repr(asked.device_text), repr(asked.model_text), repr(key),
        *([f"value_quantizer={value!r}"] if value != key else []), *request.work_arguments(asked),
    ])  # fmt: skip
