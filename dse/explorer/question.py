"""The question on top of every page: one model, devices, lengths, limits and load for all designs."""

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from dse.core.errors import DseError
from dse.explorer import common_fields, find, presets, state, tray, widgets
from dse.explorer.bench import Bench
from dse.explorer.fields import in_words, problem_of
from dse.explorer.find import Typed
from dse.explorer.uploads import Upload
from dse.explorer.widgets import escaped
from dse.specs import server_flags

#: session keys: the box that takes a text, what it was taken for, and a kind of use
_FIND, _SAID, _PRESET = "find", "find said", "use"
#: pixels of the fields of the line
_WIDTHS = {
    "model": 190,
    "devices": 85,
    "device": 150,
    "input": 105,
    "turns": 75,
    "growth": 110,
    "output": 105,
    "tpot_limit": 110,
    "ttft_limit": 110,
    "load": 165,
    "batch": 155,
    "rate": 155,
    "sessions": 105,
}
_LINE = ("model", "devices", "device", "input", "output", "tpot_limit", "ttft_limit", "load")
#: of sessions, in place of the tokens in
_TURNS = common_fields.OF_SESSIONS[:2]
#: fields whose lists take a name as people write it
_NAMED = (common_fields.MODEL, common_fields.DEVICE)
#: fields of a design that, named with the question or by a server's command, are the current one's alone: its format,
#: and what stands in place of the question. All else holds for all designs, or unlike things were compared
_OF_ONE = ("quantizer", "parameters", "value_quantizer", "value_parameters", "own_batch", "measurements")
#: fields that say the device of a design
_OF_DEVICE = (common_fields.DEVICE, common_fields.OWN_DEVICE)


#: limits of a first visit, assumed: those of the preset Chat
OPENING = {"tpot_limit": 50.0, "ttft_limit": 2.0}


def open_first() -> None:
    """Give a session that begins without an address limits, so that its first answer counts them."""
    if not st.query_params:
        state.put(OPENING)


def draw(bench: Bench, wrong: Mapping[str, Sequence[str]]) -> None:
    """Draw the line of fields, and the box that takes all of it as one text."""
    with st.container(key="question", gap="xsmall"):
        with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
            _ask()
            files = st.popover("Files", key="question files", on_change="rerun")
            if files.open:
                from dse.explorer import loading  # with all that reads logs: not before it is asked for

                with files:
                    loading.draw(bench.values, _load)
            _more(bench, wrong)
        if said := st.session_state.pop(_SAID, None):
            text, is_wrong = said
            widgets.lines([text]) if is_wrong else st.caption(escaped(text))
        with st.container(horizontal=True, gap="small", vertical_alignment="top", key="question_line"):
            fields = {field.key: field for field in common_fields.QUESTION}
            amount = common_fields.AMOUNTS[bench.values["load"]].key
            for key in (*_LINE, amount):
                if key == "input" and bench.values["load"] == "sessions":  # whose prompts are those of their turns
                    for field in _TURNS:
                        _field(field, bench.values, wrong.get(field.key, ()))
                else:
                    _field(fields[key], bench.values, wrong.get(key, ()))


def _field(field: Any, values: Mapping[str, Any], wrong: Sequence[str]) -> None:
    with st.container(width=_WIDTHS[field.key], gap=None):
        if field in _NAMED:
            named(field, values, wrong)
        else:
            widgets.draw(field, wrong)


def named(field: Any, values: Mapping[str, Any], wrong: Sequence[str] = ()) -> None:
    """A list of names, of which a name that it has not is taken as in the box: Gemma 4 31B, RTX 5090."""

    def choose() -> None:
        text = st.session_state[field.key]
        if text in field.options() or text is None:
            if field is common_fields.DEVICE:
                _without_numbers()
            state.put({field.clears: ""} if field.clears else {})
            return
        st.session_state[field.key] = values[field.key]
        take(str(text), is_own=field.key in tray.OWN.values())

    widgets.draw(field, wrong, accept_new_options=True, on_change=choose)


def _ask() -> None:
    def asked() -> None:
        text = st.session_state[_FIND].strip()
        if not text or take(text):
            st.session_state[_FIND] = ""

    st.text_input(
        "Ask",
        key=_FIND,
        on_change=asked,
        max_chars=server_flags.MAX_LETTERS,
        placeholder="Llama 3.1 70B on 8x H200, 8k in, 500 out, within 50 ms; a hub's name; vllm serve ...",
        label_visibility="collapsed",
        help="A model, devices, lengths, limits and a load in words, an address at Hugging Face, or a server's "
        "command: what it names is set below.",
        width="stretch",
    )


def take(text: str, is_own: bool = False) -> bool:
    """Set the fields that a text names, and say which; or say that it names none. Returns whether it names any.

    Of the current design where `is_own`, else of the question, to which what that design has of its own gives way.
    """
    try:
        typed = find.find(text)
        if is_own:
            typed.values = {tray.OWN.get(key, key): value for key, value in typed.values.items()}
        _set(typed, is_own)
    except DseError as error:
        st.session_state[_SAID] = error.lines()[0], True
        return False
    return True


def _set(typed: Typed, is_own: bool = False) -> None:
    """Set the fields that are named, and say which: of the current design where `is_own`."""
    values = typed.values
    values |= {own: None for key, own in tray.OWN.items() if key in values}
    fields = {field.key: field for field in (*common_fields.DESIGN, *common_fields.SCENARIO)}
    for key, value in list(values.items()):
        if problem := problem_of(fields[key], value, values):
            del values[key]
            typed.left_out.append(problem)
    held = state.session()
    now = {field.key: st.session_state.get(field.key, held.values.get(field.key)) for field in _OF_DEVICE}
    if values.get("device", now["device"]) != now["device"]:
        _without_numbers()
    if common_fields.device_of({**now, **values}) != common_fields.device_of(now):
        values.setdefault("edits", "")
    of_all = {field.key for field in common_fields.DESIGN} - {*_OF_ONE, *tray.OWN.values()}
    alike = {key: value for key, value in values.items() if key in of_all and value not in (None, "")}
    if alike and not is_own:
        state.set_tray((held.put_tray or held.tray).with_all(alike, common_fields.DESIGN))
    limits = (common_fields.TPOT_LIMIT, common_fields.TTFT_LIMIT)
    stay = [in_words(field, limit) for field in limits if field.key not in values and (limit := held.values[field.key])]
    state.put(values)
    st.session_state[_SAID] = typed.said(fields) + (f" As before: {', '.join(stay)}." if stay else ""), False


def _without_numbers() -> None:
    """Take changed numbers back from designs on the question's device, which another is chosen for; say so."""
    now = state.tray()
    if (plain := now.on_another_device()) != now:
        state.set_tray(plain)
        st.toast("Changed numbers of the former device are taken back: Undo brings them back.")


def _load(upload: Upload | Typed, label: str) -> None:
    """Set the fields of the question or of the current design that a loaded file sets."""
    if isinstance(upload, Typed):
        _set(upload)
    elif upload.kind == "measurement":
        state.put({"measurements": label})
    elif upload.kind == "plan":
        state.put({"quantizer": label, "parameters": "", "value_quantizer": None, "value_parameters": ""})
    else:
        _set(Typed({upload.kind: label}))


def _more(bench: Bench, wrong: Mapping[str, Sequence[str]]) -> None:
    """A kind of use, and what else is alike for all designs; drawn only while it is open."""
    box = st.popover("More", key="question more", on_change="rerun")
    if not box.open:
        return

    def use() -> None:
        if name := st.session_state[_PRESET]:
            state.put({"load": "batch", **presets.PRESETS[name].values})

    with box:
        st.session_state[_PRESET] = None
        st.selectbox(
            "Use",
            list(presets.PRESETS),
            key=_PRESET,
            on_change=use,
            placeholder="choose a kind of use",
            help="Sets lengths, load and limits to those of a kind of use: assumed, but for the lengths of traces.",
            format_func=lambda name: f"{name}: {presets.PRESETS[name].text}",
        )
        is_of_sessions = bench.values["load"] == "sessions"
        for field in common_fields.SCENARIO_MORE:
            if field not in common_fields.OF_SESSIONS or (is_of_sessions and field not in _TURNS):
                widgets.draw(field, wrong.get(field.key, ()))
