"""The sidebar of every page: the designs, and what the one that is being changed has of its own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from dse import quantizers
from dse.core.errors import InputError, clean
from dse.core.field import Field
from dse.explorer import common_fields, question, state, tray, uploads, widgets
from dse.explorer.badge import badge_of
from dse.explorer.bench import Bench, BenchRow
from dse.explorer.fields import problem_of, sort_of
from dse.explorer.tray import Tray
from dse.explorer.widgets import escaped
from dse.quantizers import layered
from dse.report import listing
from dse.specs import tokens
from dse.specs.workload import HEADINGS, heading_of

#: session keys: the widget that chooses a design, that of its name
_AT, _NAME = "tray at", "tray name"
#: of a design, in this order; the rest under "More"
_NAMED = (common_fields.OWN_DEVICE, common_fields.EDITS, common_fields.OWN_MODEL)
_FIRST = (common_fields.QUANTIZER, common_fields.PARAMETERS, *common_fields.LAYOUT)
_HEADINGS = {
    field.key: heading_of(name)
    for name, field in (*common_fields.WORK.items(), ("tokens", common_fields.TOKEN_PARAMETERS))
    if heading_of(name) in HEADINGS
}
_MORE = tuple(
    sorted(
        (field for field in common_fields.DESIGN if field not in (*_NAMED, *_FIRST)),
        key=lambda field: ["", *HEADINGS].index(_HEADINGS.get(field.key, "")),
    )
)
#: of these, what some stacks alone have, and what models without constant states have not
_OF_STACKS = {
    "max_total_tokens": ("sglang", "llama.cpp"),
    "swa_full_tokens_ratio": ("sglang", "llama.cpp"),
    "max_mamba_cache_size": ("sglang",),
    "mamba_full_memory_ratio": ("sglang",),
    "n_gpu_layers": ("llama.cpp",),
    "n_cpu_moe": ("llama.cpp",),
}
_OF_STATES = ("state_type", "max_mamba_cache_size", "mamba_full_memory_ratio")


def draw(bench: Bench) -> None:
    """Draw the sidebar."""
    history = _history(bench)
    with st.sidebar:
        _designs(bench, history)
        _current(bench, wrong_of(bench))


def act(change: Callable[[Tray], Tray]) -> None:
    """Change the tray, for the next run: from a callback, or before `st.rerun`. A full tray says so in a toast."""
    try:
        state.set_tray(change(state.tray()))
    except InputError as error:
        st.toast(escaped(error.lines()[0]))


#: a button that opens the sidebar as the reader would: once they have closed it, Streamlit's page lets no script do so
_OPENER = st.components.v2.component(
    "dse_change_design",
    html='<button type="button" class="dse-change">Change this design</button>',
    css=""".dse-change {
        font: inherit; font-size: 0.875rem; color: inherit; background: none; border: 0; padding: 0.25rem 0;
        cursor: pointer;
    }
    .dse-change:is(:hover, :focus-visible) { color: var(--st-primary-color); }""",
    js="""export default function ({ parentElement }) {
        parentElement.querySelector("button").onclick = () => {
            document.querySelector("[data-testid=stExpandSidebarButton]")?.click();
            const reach = (tries) => {  // the field, once it is seen
                const field = document.querySelector("[class*=st-key-tray-name] input");
                field?.focus();
                if (document.activeElement !== field && tries) requestAnimationFrame(() => reach(tries - 1));
            };
            reach(60);
        };
    }""",
    isolate_styles=False,
)


def opener() -> None:
    """Draw the button that opens the sidebar, and brings the reader to the first field of the design."""
    _OPENER(key="change", width="content")


def add(design: tray.TrayDesign, question: Mapping[str, Any] | None = None) -> None:
    """Add a design, and say so; `question` changes that of all, which is said too."""
    add_all([design])
    if question:
        state.put(question)
        st.toast("The question of all designs has changed with it: Undo takes both back.")


def add_all(designs: Sequence[tray.TrayDesign]) -> None:
    """Add designs behind those of the tray, and say so. The last one is now being changed."""

    def added(now: Tray) -> Tray:
        for design in designs:
            now = now.added(design)
        return now

    act(added)
    st.toast(f"{len(designs)} more in the designs.")


def _history(bench: Bench) -> tray.History:
    history = state.session().history
    workload = {field.key: bench.values[field.key] for field in common_fields.SCENARIO}
    history.goes_to((state.tray().designs, workload), bench.at)
    return history


def _step(history: tray.History, by: int) -> None:
    (designs, workload), at = history.step(by)
    state.put(workload)
    act(lambda _: Tray(designs, at))


def _reset() -> None:
    act(lambda _: opening())
    state.put({field.key: field.default for field in common_fields.SCENARIO} | question.OPENING)


def opening() -> Tray:
    """The designs of a first visit."""
    return Tray(tuple(tray.TrayDesign(values=values) for values in common_fields.OPENING))


def _designs(bench: Bench, history: tray.History) -> None:
    """The list of designs, and what can be done with it."""
    rows = bench.rows
    places = list(range(len(rows)))
    st.session_state[_AT] = bench.at

    def choose() -> None:
        act(lambda now: now.chosen(st.session_state[_AT]))

    shown: dict[str, Any] = {
        "format_func": lambda at: escaped(rows[at].name),
        "key": _AT,
        "on_change": choose,
        "help": "All pages compare these designs. The chosen one is changed by the fields below.",
    }
    if len(rows) < tray.MANY:
        captions = [escaped(badge_of(row).text) for row in rows]
        st.radio("Designs", places, captions=captions, **shown)
    else:
        st.selectbox(f"Designs ({len(rows)})", places, **shown)
    full, alone = len(rows) >= tray.MAX_DESIGNS, len(rows) == 1
    with st.container(horizontal=True, gap="xsmall"):
        _button("Duplicate", "Add a copy of the chosen design.", lambda: act(Tray.duplicated), disabled=full)
        _button("Delete", "Take the chosen design out.", lambda: act(Tray.deleted), disabled=alone)
        tip = "Make the chosen design the first, against which the others' gains are."
        _button("First", tip, lambda: act(Tray.first), disabled=bench.at == 0)
    with st.container(horizontal=True, gap="xsmall"):
        _button("Undo", "Take back the last change.", lambda: _step(history, -1), disabled=not history.can(-1))
        _button("Redo", "Change it again.", lambda: _step(history, 1), disabled=not history.can(1))
        _button("Reset", "Back to the designs and the question of a first visit.", _reset)


def _button(label: str, tip: str, act: Callable[[], None], disabled: bool = False) -> None:
    st.button(label, help=tip, on_click=act, key=f"tray {label.lower()}", disabled=disabled, type="tertiary")


def wrong_of(bench: Bench) -> dict[str, list[str]]:
    """Problems of the current design by field; "" for those of no field."""
    error = bench.current.wrong
    if error is None:
        return {}
    drawn = (*common_fields.DESIGN, *common_fields.SCENARIO)
    if any(problem_of(field, bench.values[field.key], bench.values) for field in drawn if sort_of(field) == "text"):
        return {}  # the field says it
    lines = error.lines()
    about = lines[0].partition(" ")[0].partition(":")[0].replace("-", "_")
    about = about if about not in ("device", "model") or not bench.values[f"own_{about}"] else f"own_{about}"
    return {about if about in {field.key for field in drawn} else "": lines}


def _current(bench: Bench, wrong: Mapping[str, list[str]]) -> None:
    """The fields of the design that is being changed."""
    values = bench.values
    with st.container(key="design fields", gap="small"):
        st.markdown(f"**Change: {escaped(bench.current.name)}**")
        if len(bench.rows) > 1:
            st.checkbox(
                "Change all designs",
                key=state.ALL,
                help="What you change below changes in every design: another device for all of them, say.",
            )
        widgets.lines(wrong.get("", []))
        st.session_state[_NAME] = state.tray().current.name

        def rename() -> None:
            act(
                lambda now: now.put(
                    now.at, tray.TrayDesign(clean(st.session_state[_NAME].strip(), tray.MAX_NAME), now.current.values)
                )
            )

        st.text_input(
            "Name",
            key=_NAME,
            on_change=rename,
            max_chars=tray.MAX_NAME,
            placeholder=bench.current.name,
            help="Left open, a design is called for what tells it from the others.",
        )
        for field in _FIRST:
            widgets.draw(field, wrong.get(field.key, ()))
            if field is common_fields.PARAMETERS:
                stored_by = quantizers.FAMILIES.get(values["quantizer"], layered.FAMILY)
                st.caption(escaped(f"{stored_by.title}. Defaults: {listing.defaults_text(stored_by)}"))
        question.named(common_fields.OWN_DEVICE, values, wrong.get("own_device", ()))
        _device_numbers(values)
        question.named(common_fields.OWN_MODEL, values, wrong.get("own_model", ()))
        box = _box("More of this design", "design more", any(field.key in wrong for field in _MORE))
        if box.open:
            with box:
                heading = ""
                for field in _MORE:
                    if not _has(bench.current, field, values):
                        continue
                    if heading != (heading := _HEADINGS.get(field.key, "")):
                        st.markdown(f"**{heading}**")
                    widgets.draw(field, wrong.get(field.key, ()))
                    if field.key == "tokens":
                        family = tokens.FAMILIES[values["tokens"]]
                        st.caption(escaped(f"{family.title}: {family.source}."))


def _has(row: BenchRow, field: Field, values: Mapping[str, Any]) -> bool:
    """False for a field that the stack or the model of an answered design has nothing of, at its default."""
    if row.answer is None or values[field.key] != field.default:
        return True
    stack = str(row.result["stack"]).partition("@")[0]
    has_states = field.key not in _OF_STATES or row.request.model_spec().state_bytes > 0
    return has_states and stack in _OF_STACKS.get(field.key, (stack,))


def _box(label: str, key: str, is_wrong: bool = False) -> Any:
    """A box whose content is drawn only while it is open, since widgets cost time; it opens where it holds an error."""
    if is_wrong:
        st.session_state[key] = True
    return st.expander(label, key=key, on_change="rerun")


def _device_numbers(values: Mapping[str, Any]) -> None:
    """Changed numbers of the device, above all that it has, with their sources; drawn only when it is open."""
    box = _box("Numbers of the device", "device numbers")
    if box.open:
        with box:
            widgets.draw(common_fields.EDITS)
            numbers = uploads.device(common_fields.device_of(values)).quantities()
            rows = [
                {"field": name, "value": f"{one.value:.12g} {one.unit}", "source": f"{one.source} ({one.kind})"}
                for name, one in numbers.items()
                if "." not in name
            ]
            st.dataframe(rows, hide_index=True)
