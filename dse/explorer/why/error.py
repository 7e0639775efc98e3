"""Quantization error: what formats make of a KV dump, in bits, errors by head, values before and after."""

from functools import partial
from pathlib import PurePosixPath
from typing import Any

import pandas as pd
import streamlit as st

from dse.core.errors import InputError
from dse.explorer import downloads, figure, widgets
from dse.explorer.bench import Bench
from dse.explorer.why import dumps, form
from dse.explorer.why.dumps import SAMPLE, dump_of
from dse.figures.charts import lab
from dse.figures.export.lab import MAX_CHANNELS
from dse.measure.lab import ATTENTION, ERRORS, Held, compared, measurement_of
from dse.operations.dumps import InspectQuantizer
from dse.specs import measurements

#: room for the legend of the bits, which takes several lines on a phone; height of the first figure
LEGEND_PX, HEIGHT_PX = 60, 300
_WAIT = "Quantizing every layer; on a new installation a quantizer compiles first, for up to a minute"
#: headings of the table of compared quantizers
_COLUMNS = {
    "quantizer": "format",
    "stored_bits": "stored bits",
    "key_sqnr_db": "SQNR of keys (dB)",
    "value_sqnr_db": "SQNR of values (dB)",
    "output_error": "attention error (%)",
}


def show(bench: Bench, address: str) -> None:
    """The formats side by side, then the first of them closely."""
    values = bench.values
    with st.container(horizontal=True, vertical_alignment="bottom"):
        widgets.draw(form.COMPARED, width="stretch")
        widgets.draw(form.DATA, width=260)
        with st.popover("Own dump"):
            dumps.OWN.draw()
    with widgets.said():
        name, names = values[form.DATA.key], form.compared_of(bench)
        show_compared(name, names, address)
        with st.container(horizontal=True, vertical_alignment="bottom"):
            view = widgets.tabs(form.VIEW)
            for field in form.OF_VIEW[view]:
                widgets.draw(field, width=180)
        show_closely(name, form.asked_of(values, dump_of(name), names[0]), view, address)


def about(held: Held, is_sample: bool) -> str:
    """Whose keys and values a dump holds."""
    if held.about.synthetic:
        return f"{held.name}, synthetic: no language model's keys and values"
    words = [held.name, held.about.model, f"{len(held.layers):,} layers"]
    return ", ".join(filter(None, words)) + (", not your model" if is_sample else "")


def verdict(table: pd.DataFrame, held: Held, is_sample: bool) -> str:
    """Bits and errors of the compared formats in a sentence."""
    said = [
        f"{row.quantizer} stores {row.stored_bits:.4g} bits an element"
        + ("" if pd.isna(row.output_error) else f", its attention is {100 * row.output_error:.3g} % off")
        for row in table.itertuples()
    ]
    return f"{'; '.join(said)} ({about(held, is_sample)})."


@st.fragment(parallel=True)
def show_compared(name: str, names: tuple[str, ...], address: str) -> None:
    """Compare the formats on the whole dump."""
    with widgets.said():
        held, results = dump_of(name), {}
        bar = st.progress(0.0, text=_WAIT) if len(names) > 1 else None
        for i, quantizer in enumerate(names):
            if bar is not None:
                bar.progress(i / len(names), text=f"{quantizer}: {_WAIT}")
            results[quantizer] = form.cached_measured(held, quantizer)
        if bar is not None:
            bar.empty()
        table = compared(results)
        said = verdict(table, held, name == SAMPLE)
        st.markdown(f"**{widgets.escaped(said)}**")
        left, right = st.columns(2)
        if table["output_error"].notna().any():
            made = downloads.made_by([form.inspection(held, method) for method in names], address, part=".measured")
            chart = lab.compared(table, "Error over bits")
            drawn = figure.fitted(chart, HEIGHT_PX)
            with left:
                downloads.show("compared", chart, lambda: table, made, drawn=drawn, verdict=lambda: said)
        with right:
            shown = table.assign(output_error=100 * table["output_error"])[list(_COLUMNS)].rename(columns=_COLUMNS)
            st.dataframe(shown.round(1).assign(**{"stored bits": shown["stored bits"].round(3)}), hide_index=True)
            st.download_button(
                "Measurement file",
                lambda: measurements.to_json(measurement_of(held, results)),
                f"{PurePosixPath(held.name).stem}.lab.json",
                "application/json",
                on_click="ignore",
                help="Loaded under Files, designs take their bits and errors from it; commands as --measurements.",
                key="lab file",
            )


@st.fragment(parallel=True)
def show_closely(name: str, asked: InspectQuantizer, view: str, address: str) -> None:
    """One format: bits by part, an error by layer and head, or one head before and after.

    The dump by its name: a fragment's arguments stay in memory until the session's next run.
    """
    with widgets.said(), st.spinner(_WAIT):
        held = dump_of(name)
        if view in ("bits", "errors"):
            _measured(held, asked, view, address)
        else:
            _values(held, asked, view, address)


def _measured(held: Held, asked: InspectQuantizer, view: str, address: str) -> None:
    run = form.cached_measured(held, asked.method)
    made = downloads.made_by([asked], address, part=".measured")
    if view == "bits":
        formula = (f"By formula with nominal shares: {run.nominal_bits:.4g} bit.",)
        source = (run.thresholds,) if run.thresholds else ()
        chart = lab.bits(run.ledger, f"Bits an element as {asked.method} stores them", (*formula, *source))
        downloads.show("bits", chart, lambda: run.ledger, made, figure.tall(chart, LEGEND_PX))
        return
    errors = run.errors[run.errors["side"] == asked.side]
    error, unit, more = ERRORS[asked.error]
    if errors[asked.error].isna().all():
        raise InputError("not there: attention needs keys and values, a ratio what it divides: choose another")
    title = f"{error[0].upper()}{error[1:]} by layer and head, {asked.side}s, {asked.method}"
    notes = (f"{'More' if more else 'Less'} is better.", *([run.queries] if asked.error in ATTENTION else []))
    chart = lab.heads(errors, asked.error, error, unit, title, notes)
    downloads.show("errors", chart, lambda: run.errors, made, figure.map_of(chart))


def _values(held: Held, asked: InspectQuantizer, view: str, address: str) -> None:
    found = form.cached_view(held, asked)
    layer = held.indices[0] if asked.layer is None else asked.layer
    place = f"layer {layer:,}, head {asked.head:,}, {asked.side}s"
    made = downloads.made_by([asked], address, part=".view")
    if view == "histogram":
        chart = lab.histogram(found.histogram, found.marks, f"Values before and after {asked.method}, {place}")
        downloads.show("histogram", chart, lambda: found.histogram, made, figure.fitted(chart, HEIGHT_PX))
        return
    before, after = (part[:, :MAX_CHANNELS] for part in (found.before, found.after))
    off = abs(after - before)
    colors = lab.scale("value", "", before)
    maps = {
        "before": ("value", before, colors),
        "after": ("value", after, colors),
        "error": ("absolute error", off, lab.scale("absolute error", "", off, 0)),
    }
    for column, (when, (what, part, scale)) in zip(st.columns(3), maps.items(), strict=True):
        with column:
            st.markdown(f"**{when.capitalize()}**")
            chart = lab.values(part, asked.first, what, scale, f"{when.capitalize()}, {place}")
            drawn = figure.map_of(chart)
            downloads.show(f"map-{when}", chart, partial(frame, part, asked.first), made, drawn, titled=False)
    st.caption(
        f"Tokens {asked.first:,} to {asked.first + len(before) - 1:,} of {found.n_tokens:,}; one scale of colors "
        "before and after."
    )


def frame(part: Any, first_token: int) -> pd.DataFrame:
    """A map as a table: a row a token, a column a channel."""
    table = pd.DataFrame(part, columns=[f"channel_{i}" for i in range(part.shape[1])])
    table.insert(0, "token", range(first_token, first_token + len(table)))
    return table
