"""The lab: what a quantizer does to a KV dump, in bits, errors by head, and values before and after."""

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
from dse.explorer import common_fields, downloads, figure, request, sidebar, state, tray, uploads, widgets
from dse.explorer.bench import Bench
from dse.explorer.lab import form
from dse.explorer.lab.dumps import SAMPLE, dump_of
from dse.explorer.lab.load import load_dump
from dse.explorer.uploads import Upload
from dse.figures.charts import lab
from dse.figures.export.lab import MAX_CHANNELS
from dse.measure.lab import ATTENTION, ERRORS, DumpMeasurement, Held, ReadOptions, before, compared, measurement_of
from dse.operations.dumps import InspectQuantizer
from dse.report import present
from dse.specs import measurements
from dse.specs.measurements import MeasurementFile

PAGE = "lab"
FIELDS = form.FIELDS
#: room for the legend of the bits, which takes several lines on a phone
LEGEND_PX = 60
_WAIT = "Quantizing every layer; on a new installation a quantizer compiles first, for up to a minute"
#: headings of the table of compared quantizers, and the units of its columns
_COLUMNS = {
    "quantizer": "quantizer",
    "stored_bits": "stored bits",
    "effective_bits": "effective bits (paper)",
    "key_sqnr_db": "SQNR of keys (dB)",
    "value_sqnr_db": "SQNR of values (dB)",
    "max_abs_error": "largest error",
    "output_error": "attention error (%)",
}


def render(bench: Bench) -> None:
    """Draw the page."""
    values = dict(bench.values)
    st.title("Lab", anchor=False)
    st.caption("What does a quantizer really store for these keys and values, and what does it do to them?")
    places = st.columns(2)
    with places[0]:
        widgets.draw(form.DATA)
        load_dump()
    with places[1]:
        widgets.draw(form.COMPARED)
        with st.expander("How the dump is read"):
            for field in (form.HEADS, form.REPLACE):
                widgets.draw(field)
    with widgets.said():
        held, address = dump_of(values[form.DATA.key]), state.address(PAGE, values)
        show_data(values[form.DATA.key], held)
        compared_names = form.compared_of(values[form.COMPARED.key])
        names = tuple(dict.fromkeys(quantizers.parse(name).name for name in compared_names))
        if names:
            show_compared(values[form.DATA.key], names, form.how_of(values), address)
    st.subheader("One of them, closely", anchor=False)
    thirds = st.columns(3)
    quantizer = form.closely(values)
    named = replace(form.QUANTIZER, open_means=f"{quantizer}, {form.QUANTIZER.open_means}")
    for i, field in enumerate((named, *form.CLOSELY)):
        with thirds[i % 3]:
            widgets.draw(field)
            if field is form.PARAMETERS:
                st.caption(widgets.escaped(f"Defaults: {request.family_defaults(quantizer.partition(':')[0])}"))
    with widgets.said():
        asked = form.asked_of(values, held)
        show_measured(values[form.DATA.key], asked, address)
        show_view(values[form.DATA.key], asked, address)


def show_data(name: str, held: Held) -> None:
    """Show the dump's name, model and layers."""
    if held.about.synthetic:
        st.warning("Synthetic data: no language model's keys and values. Load a dump to see your own.", icon="⚠️")
    if name == SAMPLE:
        st.info("Keys and values of SmolLM2-135M, not your model's. Load a dump to see your own.")
    words = [held.name, held.about.model, f"{len(held.layers):,} layers", held.about.note]
    st.text(", ".join(word for word in words if word))


@st.fragment(parallel=True)
def show_compared(name: str, names: tuple[str, ...], how: ReadOptions, address: str) -> None:
    """Compare the quantizers on the whole dump, with a button that adds some of them to the tray."""
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
        shown = table.assign(output_error=100 * table["output_error"])[list(_COLUMNS)].rename(columns=_COLUMNS)
        event: Any = st.dataframe(
            shown.round(4), hide_index=True, key="lab-compared", on_select="rerun", selection_mode="multi-row"
        )
        picked = [names[at] for at in event["selection"]["rows"]] or list(names)
        content = measurement_of(held, results)
        file = f"{PurePosixPath(held.name).stem}.lab.json"
        with st.container(horizontal=True):
            st.button(
                f"Add {', '.join(picked)} to the tray",
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
        if table["output_error"].notna().any():
            made = downloads.made_by(
                [form.inspection(held, method, how) for method in names], address, part=".measured"
            )
            chart = lab.compared(table, f"Error over bits, {held.name}")
            downloads.show("compared", chart, lambda: table, made, drawn=figure.fitted(chart, 300))


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
def show_measured(name: str, asked: InspectQuantizer, address: str) -> None:
    """Bits by part and errors by layer and head, of all layers.

    The dump by its name: a fragment's arguments stay in memory until the session's next run.
    """
    with widgets.said(), st.spinner(_WAIT):
        held = dump_of(name)
        run = form.cached_measured(held, asked.method, form.place_of(asked)[0])
        made = downloads.made_by([asked], address, part=".measured")
        show_numbers(run, asked)
        source = (run.thresholds,) if run.thresholds else ()
        chart = lab.bits(run.ledger, "Bits an element as stored", source)
        downloads.show("bits", chart, lambda: run.ledger, made, figure.tall(chart, LEGEND_PX))
        errors = run.errors[run.errors["side"] == asked.side]
        error, unit, more = ERRORS[asked.error]
        if errors[asked.error].notna().any():
            title = f"{error[0].upper()}{error[1:]} by layer and head, {asked.side}s"
            notes = (f"{'More' if more else 'Less'} is better.", *([run.queries] if asked.error in ATTENTION else []))
            chart = lab.heads(errors, asked.error, error, unit, title, notes)
            downloads.show("errors", chart, lambda: run.errors, made, figure.map_of(chart))
        else:
            st.info("This error is not there: attention needs keys and values, and a ratio needs something to divide.")


def show_numbers(measurement: DumpMeasurement, asked: InspectQuantizer) -> None:
    """The numbers of the whole dump."""
    bits = measurement.ledger.set_index("quantizer").loc[f"{asked.side}s"]
    whole = measurement.errors[measurement.errors["layer"].isna() & (measurement.errors["side"] == asked.side)].iloc[0]
    shown = {
        f"Stored, {asked.side}s": (bits["stored_bits"], "bit", "Bits an element of the packed bytes."),
        "Effective bits (paper)": (bits["effective_bits"], "bit", "Without counts, padding and tokens kept in FP16."),
        "By formula, both": (measurement.nominal_bits, "bit", "Stored bits by the closed form with nominal shares."),
        "Signal to noise": (whole["sqnr_db"], "dB", "Of all layers and heads together."),
        "Largest error": (whole["max_abs_error"], "1", "Of any element."),
    }
    with st.container(horizontal=True):
        for label, (number, unit, meaning) in shown.items():
            text = "-" if pd.isna(number) else present.number(float(number), unit)
            st.metric(label, text, border=True, help=meaning)


@st.fragment(parallel=True)
def show_view(name: str, asked: InspectQuantizer, address: str) -> None:
    """One head: its tokens before, drawn at once; after, their difference, and its histogram as the quantizer ends."""
    place = f"layer {asked.layer:,}, head {asked.head:,}, {asked.side}s"
    with widgets.said():
        held = dump_of(name)
        made = downloads.made_by([asked], address, part=".view")
        tokens = before(held, quantizers.parse(asked.method), *form.place_of(asked))[:, :MAX_CHANNELS]
        colors = lab.scale("value", "", tokens)

        def draw(when: str, part: Any, what: str, colors: Any) -> None:
            chart = lab.values(part, asked.first, what, colors, f"{when[0].upper()}{when[1:]}, {place}")
            downloads.show(f"map-{when}", chart, partial(frame, part, asked.first), made, figure.map_of(chart))

        draw("before", tokens, "value", colors)
        with st.spinner(_WAIT):
            view = form.cached_view(held, replace(asked, error=form.ERROR.default))
        last = asked.first + len(tokens) - 1
        st.caption(
            f"Tokens {asked.first:,} to {last:,} of {view.n_tokens:,}; colors of both maps span the values before."
        )
        after = view.after[:, :MAX_CHANNELS]
        draw("after", after, "value", colors)
        off = abs(after - tokens)
        draw("error", off, "absolute error", lab.scale("absolute error", "", off, 0))
        chart = lab.histogram(view.histogram, view.marks, f"Values before and after, {place}")
        downloads.show("histogram", chart, lambda: view.histogram, made, figure.fitted(chart))


def frame(part: Any, first_token: int) -> pd.DataFrame:
    """A map as a table: a row a token, a column a channel."""
    table = pd.DataFrame(part, columns=[f"channel_{i}" for i in range(part.shape[1])])
    table.insert(0, "token", range(first_token, first_token + len(table)))
    return table
