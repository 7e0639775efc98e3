"""The what-if page: up to four designs, their numbers side by side, where each comes from, and the figures."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from dse import token_policies
from dse.errors import DseError
from dse.explorer import beside, designs, figure, request, state, what_if_fields, what_if_numbers
from dse.explorer.beside import MadeBy
from dse.explorer.request import Answer, Request
from dse.explorer.widgets import escaped
from dse.plots import design_bars
from dse.plots.chart import Chart
from dse.present import number

PAGE = "what-if"
FIELDS = designs.FIELDS
#: pixels of the bars: of a bar, of the legend above (an entry a row), of the axis below
_BAR_PX, _LEGEND_PX, _AXIS_PX = 44, 96, 55


def render() -> None:
    """Draw the page."""
    values = state.open_page(PAGE, FIELDS)
    st.title("KV cache: what if?", anchor=False)
    places = range(1, values["designs"] + 1)
    wrong = {}
    found: dict[int, tuple[Request, Answer]] = {}
    for place in places:
        try:
            asked = designs.request_of(place, values)
            found[place] = (asked, cached_answer(asked))
        except DseError as error:
            wrong[place] = error
    what_if_fields.draw(values, wrong)
    for place in wrong:
        which = f" of design {place}" if len(places) > 1 else ""
        st.info(f"Nothing to show{which} yet: the message beside its fields says what to change.")
    if not found:
        return
    show_summaries(found)
    what_if_numbers.headline(found)
    made = MadeBy(
        "\n".join(request.command(asked) for asked, _ in found.values()),
        "\n\n".join(request.python(asked) for asked, _ in found.values()),
        state.address("", FIELDS, values),
    )
    show_bars(found, made)
    show_curve(found, made)  # by itself: nothing waits for its points
    what_if_numbers.show(found)  # last: what the reader opens, while the figures follow the fields


@st.cache_data(max_entries=512, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached_answer(asked: Request) -> Answer:
    """The answer to a request. Raises DseError."""
    return request.answer(asked)


@st.cache_data(max_entries=128, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached_curve(asked: Request) -> pd.DataFrame:
    """The points of the throughput figure, for a request with any batch. Raises DseError."""
    return request.curve(asked)


def show_summaries(found: Mapping[int, tuple[Request, Answer]]) -> None:
    """A line a design that says what is shown, and what is wrong with it; names may come from files of the reader."""
    alone = len(found) == 1
    for place, (asked, answer) in found.items():
        result = answer.result
        st.text(designs.title(asked, place, alone))
        which = "This" if alone else f"Design {place}"
        if not result["feasible"]:
            st.warning(f"{which} does not fit:")
            st.text(result["infeasible_reason"])
        elif not result["fits_whole_batch"]:
            st.warning(
                f"{which} does not fit at once: at most {result['running_batch']:,} of {result['batch']:,} requests "
                "run together."
            )
        policy = token_policies.parse(result["tokens"]).family
        if policy.validity:
            stored, read = (number(result[name], "token") for name in ("stored_tokens", "read_tokens"))
            st.caption(escaped(f"{policy.title}: {stored} stored and {read} read at the end; {policy.validity}."))


def show_bars(found: Mapping[int, tuple[Request, Answer]], made: MadeBy) -> None:
    """Memory and step time, a bar a design."""
    rows = _rows(found)
    height = _LEGEND_PX + _AXIS_PX + _BAR_PX * len(rows)
    left, right = st.columns(2)
    for place, name, chart in (
        (left, "memory", design_bars.memory(rows)),
        (right, "step", design_bars.step_time(rows)),
    ):
        with place:
            beside.show(name, chart, partial(design_bars.table, rows), made, figure.fitted(chart, height, _LEGEND_PX))


@st.fragment(parallel=True)
def show_curve(found: Mapping[int, tuple[Request, Answer]], made: MadeBy) -> None:
    """Throughput against batch; a single design beside the same without quantization."""
    asked_for = [asked for asked, _ in found.values()]
    names = _names(found)
    if len(asked_for) == 1:
        plain = request.unquantized(asked_for[0])
        if plain.key_quantizer_text != asked_for[0].key_quantizer_text:
            asked_for, names = [*asked_for, plain], [*names, plain.key_quantizer_text]
    lines = tuple(zip(names, map(request.any_batch, asked_for), strict=True))
    chart = figure.chosen(cached_lines(lines), [answer.result for _, answer in found.values()])
    beside.show("throughput", chart, partial(_curves, lines), made)


@st.cache_data(max_entries=128, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached_lines(lines: tuple[tuple[str, Request], ...]) -> Chart:
    """The throughput figure of named requests with any batch, without the chosen points. Raises DseError."""
    return figure.throughput([(name, cached_curve(asked)) for name, asked in lines])


def _curves(lines: tuple[tuple[str, Request], ...]) -> pd.DataFrame:
    return pd.concat([cached_curve(asked).assign(design=name) for name, asked in lines], ignore_index=True)


def _names(found: Mapping[int, tuple[Request, Answer]]) -> list[str]:
    asked_for = [asked for asked, _ in found.values()]
    names = [designs.short(asked, asked_for) for asked in asked_for]
    return [f"{place}: {name}" for place, name in zip(found, names, strict=True)] if len(found) > 1 else names


def _rows(found: Mapping[int, tuple[Request, Answer]]) -> list[tuple[str, dict[str, Any]]]:
    results = [answer.result for _, answer in found.values()]
    return list(zip(_names(found), results, strict=True))
