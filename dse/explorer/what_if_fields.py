"""The fields of the what-if page: which design is changed, its fields, its device's numbers, the reader's own files."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st

from dse import quantizers, token_policies
from dse.errors import DseError, InputError
from dse.explorer import designs, loading, request, shared, state, uploads, widgets
from dse.explorer.fields import Field
from dse.explorer.uploads import Upload
from dse.explorer.widgets import escaped
from dse.quantizers import layered

#: in this order on the page; the rest under "More"
_FIRST = ("model", "quantizer", "parameters", "batch", "input", "output")
_MORE = (
    "value_quantizer", "value_parameters", "admission", "weights_bits", "tokens", "token_parameters", "model_kind",
    "stack", "measurements",
)  # fmt: skip


def draw(values: Mapping[str, Any], wrong: Mapping[int, DseError]) -> None:
    """The sidebar; `wrong` says which designs cannot be answered, and why."""
    with st.sidebar:
        widgets.draw(designs.COUNT)
        place = 1
        if values["designs"] > 1:
            state.drawn(designs.EDITING.key)
            st.segmented_control(
                designs.EDITING.label, range(1, values["designs"] + 1), key=designs.EDITING.key,
                help=designs.EDITING.help, required=True,
            )  # fmt: skip
            place = min(values["editing"] or 1, values["designs"])
        own = designs.of(place, values)
        fields = {
            field.key: _open(named, own[field.key], place)
            for field, named in zip(shared.DESIGN, designs.BY_DESIGN[place], strict=True)
        }
        widgets.draw(fields["device"])
        _device_numbers(place, own, fields["edits"])
        for name in _FIRST:
            widgets.draw(fields[name])
            if name == "parameters":
                stored_by = quantizers.FAMILIES.get(own["quantizer"], layered.FAMILY)
                defaults = request.family_defaults(own["quantizer"])
                st.caption(escaped(f"{stored_by.title}. Defaults: {defaults}"))
        for which, error in wrong.items():
            st.text(f"Design {which}:" if values["designs"] > 1 else "This cannot be answered:")
            widgets.problem(error)
        with st.expander("More: values, admission, weights, tokens, times, measurements"):
            for name in _MORE:
                widgets.draw(fields[name])
                if name == "tokens":
                    family = token_policies.FAMILIES[own["tokens"]]
                    st.caption(escaped(f"{family.title}: {family.source}."))
        loading.draw(partial(_chosen, place))


def _open(field: Field, own: Any, place: int) -> Field:
    """A field that may be left open says what it then means."""
    return field if place == 1 else replace(field, placeholder=f"as design 1: {own}" if own else "as design 1")


def _device_numbers(place: int, own: Mapping[str, Any], edits: Field) -> None:
    """Every number of the device, to change on the spot, with its source; drawn only when it is open."""
    box = st.expander("Numbers of the device", key=f"{place} device numbers", on_change="rerun")
    if not box.open:
        return
    with box:
        st.caption("With its unit, in the form shown. Empty takes a change back.")
        widgets.draw(edits)
        try:
            shipped = designs.editable(own["device"], "")
        except DseError as error:
            widgets.problem(error)
            return
        changed = designs.parts(own["edits"])
        for name, (text, source, kind) in shipped.items():
            key = f"{place} number of {name}"
            st.session_state[key] = changed.get(name, text)

            def change(key: str = key, name: str = name, text: str = text) -> None:
                edited = designs.edited(own["edits"], name, st.session_state[key], text)
                state.put({edits.key: edited})

            st.text_input(escaped(name.replace("_", " ")), key=key, on_change=change, max_chars=40)
            if name in changed:
                _say_wrong(own["device"], name, changed[name])
            st.text(f"{'changed; was ' + text + ': ' if name in changed else ''}{source} ({kind})")


def _say_wrong(device: str, name: str, text: str) -> None:
    try:
        uploads.device(device, f"{name}={text}")
    except InputError as error:
        widgets.problem(error)


def _chosen(place: int, upload: Upload, label: str) -> dict[str, Any]:
    """The fields of a design that a loaded file sets."""
    if upload.kind == "measurement":
        return {designs.key(place, "measurements"): label}
    if upload.kind != "plan":
        return {designs.key(place, upload.kind): label}
    sides = {"quantizer": label, "parameters": "", "value_quantizer": None, "value_parameters": ""}
    return {designs.key(place, name): value for name, value in sides.items()}
