"""Quantization error: what formats make of a KV dump, in bits, errors by head, values before and after."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import pandas as pd
import streamlit as st

from dse import quantizers
from dse.core.errors import InputError
from dse.explorer import common_fields, downloads, figure, sidebar, state, tray, uploads, widgets
from dse.explorer.bench import Bench
from dse.explorer.uploads import Upload
from dse.explorer.why import form
from dse.explorer.why.dumps import SAMPLE, dump_of
from dse.explorer.why.load import load_dump
from dse.figures.charts import lab
from dse.figures.export.lab import MAX_CHANNELS
from dse.measure.lab import ATTENTION, ERRORS, Held, ReadOptions, before, compared, measurement_of
from dse.operations.dumps import InspectQuantizer
from dse.specs import measurements
from dse.specs.measurements import MeasurementFile

#: room for the legend of the bits, which takes several lines on a phone; height of the first figure
LEGEND_PX, HEIGHT_PX = 60, 300
_WAIT = "Quantizing every layer; on a new installation a quantizer compiles first, for up to a minute"
#: headings of the table of compared quantizers
_COLUMNS = {
    "quantizer": "format",
    "stored_bits": "stored bits",
    "effective_bits": "effective bits (paper)",
    "key_sqnr_db": "SQNR of keys (dB)",
    "value_sqnr_db": "SQNR of values (dB)",
    "max_abs_error": "largest error",
    "output_error": "attention error (%)",
}


def show(bench: Bench, address: str) -> None:
    """The formats side by side, then the first of them closely."""
    values = bench.values
    with st.container(horizontal=True, vertical_alignment="bottom"):
        widgets.draw(form.COMPARED, width="stretch")
        widgets.draw(form.DATA, width=260)
        wrong = load_dump()
    widgets.lines(wrong)
    with widgets.said():
        name, how = values[form.DATA.key], form.how_of(values)
        names = form.compared_of(bench)
        show_compared(name, names, how, address)
        with st.container(horizontal=True, vertical_alignment="bottom"):
            view = widgets.tabs(form.VIEW)
            for field in form.OF_VIEW[view]:
                widgets.draw(field, width=180)
        asked = form.asked_of(values, dump_of(name), names[0])
        (show_measured if view in ("bits", "errors") else show_values)(name, asked, view, address)


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
def show_compared(name: str, names: tuple[str, ...], how: ReadOptions, address: str) -> None:
    """Compare the formats on the whole dump, with a button that adds some of them to the designs."""
    with widgets.said():
        held, results = dump_of(name), {}
        bar = st.progress(0.0, text=_WAIT) if len(names) > 1 else None
        for i, quantizer in enumerate(names):
            if bar is not None:
                bar.progress(i / len(names), text=f"{quantizer}: {_WAIT}")
            results[quantizer] = form.cached_measured(held, quantizer, how)
        if bar is not None:
            bar.empty()
        table = compared(results)
        said = verdict(table, held, name == SAMPLE)
        st.markdown(f"**{widgets.escaped(said)}**")
        left, right = st.columns(2)
        if table["output_error"].notna().any():
            made = downloads.made_by(
                [form.inspection(held, method, how) for method in names], address, part=".measured"
            )
            chart = lab.compared(table, "Error over bits")
            drawn = figure.fitted(chart, HEIGHT_PX)
            with left:
                downloads.show("compared", chart, lambda: table, made, drawn=drawn, verdict=lambda: said)
        with right:
            _table(table, measurement_of(held, results), f"{PurePosixPath(held.name).stem}.lab.json")


def _table(table: pd.DataFrame, content: MeasurementFile, file: str) -> None:
    """The formats in numbers, to be added to the designs as measured here, and the file of that."""
    shown = table.assign(output_error=100 * table["output_error"])[list(_COLUMNS)].rename(columns=_COLUMNS)
    event: Any = st.dataframe(
        shown.round(4), hide_index=True, key="lab-compared", on_select="rerun", selection_mode="multi-row"
    )
    names = list(table["quantizer"])
    picked = [names[at] for at in event["selection"]["rows"]] or names
    with st.container(horizontal=True):
        st.button(
            f"Add {', '.join(picked)} to the designs",
            on_click=partial(_add, file, content, picked),
            key="lab add",
            help="As the current design, with bits and errors as measured here.",
        )
        st.download_button(
            "Measurement file",
            partial(measurements.to_json, content),
            file,
            "application/json",
            on_click="ignore",
            help="What commands take as --measurements.",
            key="lab file",
        )


def _add(file: str, content: MeasurementFile, picked: Sequence[str]) -> None:
    """A design a quantizer, as the current one, with what was measured here."""
    text = hashlib.sha256(measurements.to_json(content)).hexdigest()
    try:
        label = uploads.keep(Upload("measurement", file, text, content))
    except InputError as error:
        st.toast(widgets.escaped(error.lines()[0]))
        return
    sidebar.add_all(designs_of(tray.values_of(state.tray().current, common_fields.DESIGN), picked, label))


def designs_of(values: Mapping[str, Any], picked: Sequence[str], label: str) -> list[tray.TrayDesign]:
    """A design a quantizer, else as `values`, with the measurements of that name."""
    plain = {**values, "value_quantizer": None, "value_parameters": "", "measurements": label}
    split = (name.partition(":") for name in picked)
    designs = ({**plain, "quantizer": family, "parameters": parameters} for family, _, parameters in split)
    return [tray.design_of(design, common_fields.DESIGN) for design in designs]


@st.fragment(parallel=True)
def show_measured(name: str, asked: InspectQuantizer, view: str, address: str) -> None:
    """Bits by part, or an error by layer and head, of all layers.

    The dump by its name: a fragment's arguments stay in memory until the session's next run.
    """
    with widgets.said(), st.spinner(_WAIT):
        run = form.cached_measured(dump_of(name), asked.method, form.place_of(asked)[0])
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


@st.fragment(parallel=True)
def show_values(name: str, asked: InspectQuantizer, view: str, address: str) -> None:
    """One head: its tokens before, drawn at once, after, and their difference; or its histogram."""
    place = f"layer {asked.layer:,}, head {asked.head:,}, {asked.side}s"
    with widgets.said():
        held = dump_of(name)
        made = downloads.made_by([asked], address, part=".view")
        closely = partial(form.cached_view, held, replace(asked, error=form.ERROR.default))
        if view == "histogram":
            with st.spinner(_WAIT):
                found = closely()
            chart = lab.histogram(found.histogram, found.marks, f"Values before and after {asked.method}, {place}")
            drawn = figure.fitted(chart, HEIGHT_PX)
            downloads.show("histogram", chart, lambda: found.histogram, made, drawn)
            return
        tokens = before(held, quantizers.parse(asked.method), *form.place_of(asked))[:, :MAX_CHANNELS]
        colors = lab.scale("value", "", tokens)
        places = st.columns(3)

        def draw(at: int, when: str, part: Any, what: str, colors: Any) -> None:
            chart = lab.values(part, asked.first, what, colors, f"{when[0].upper()}{when[1:]}, {place}")
            table = partial(frame, part, asked.first)
            with places[at]:
                st.markdown(f"**{when[0].upper()}{when[1:]}**")
                downloads.show(f"map-{when}", chart, table, made, figure.map_of(chart), titled=False)

        draw(0, "before", tokens, "value", colors)
        with st.spinner(_WAIT):
            found = closely()
        after = found.after[:, :MAX_CHANNELS]
        draw(1, "after", after, "value", colors)
        off = abs(after - tokens)
        draw(2, "error", off, "absolute error", lab.scale("absolute error", "", off, 0))
        st.caption(
            f"Tokens {asked.first:,} to {asked.first + len(tokens) - 1:,} of {found.n_tokens:,}; one scale of colors "
            "before and after."
        )


def frame(part: Any, first_token: int) -> pd.DataFrame:
    """A map as a table: a row a token, a column a channel."""
    table = pd.DataFrame(part, columns=[f"channel_{i}" for i in range(part.shape[1])])
    table.insert(0, "token", range(first_token, first_token + len(table)))
    return table
