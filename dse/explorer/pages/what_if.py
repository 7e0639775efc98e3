"""The what-if page: up to four designs, their numbers side by side, where each comes from, and the figures.

The first design stands alone; the others are as the first but for what they set, and are compared with it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from dse import quantizers
from dse.core import units
from dse.core.errors import DseError, InputError
from dse.explorer import common_fields as shared
from dse.explorer import downloads as beside
from dse.explorer import figure, kept, loading, names, request, state, uploads, widgets
from dse.explorer.downloads import MadeBy
from dse.explorer.fields import Field
from dse.explorer.fragments import part
from dse.explorer.request import Answer, Request
from dse.explorer.uploads import Upload
from dse.explorer.widgets import escaped, problem
from dse.figures import design_bars
from dse.figures.drawing.chart import Chart
from dse.model import uncertainty
from dse.model.compare import Case, Comparison
from dse.model.results import RESULT_UNITS
from dse.quantizers import layered
from dse.questions.common import sure_text
from dse.report.present import change, number, position_note
from dse.specs import tokens as token_policies
from dse.specs.workload import ASKED

PAGE = "what-if"
MAX_DESIGNS = 4
COUNT = Field(
    "designs", "Designs side by side", "choice", 1, choices=lambda: list(range(1, MAX_DESIGNS + 1)),
    help="The first one stands alone; the others are as the first but for what you set, and are compared with it.",
)  # fmt: skip
EDITING = Field(
    "editing", "Design to change", "choice", 1, choices=lambda: list(range(1, MAX_DESIGNS + 1)),
    help="Whose fields stand below.",
)  # fmt: skip
#: a text that belongs to a choice, and goes with it to the other designs
_WITH = {
    "edits": "device", "parameters": "quantizer", "value_parameters": "value_quantizer", "token_parameters": "tokens",
}  # fmt: skip


def key_of(place: int, name: str) -> str:
    """The key of a field of a design; the first design has the shared keys."""
    return name if place == 1 else f"{place}.{name}"


def _field(place: int, field: Field) -> Field:
    if place == 1:
        return field
    clears = key_of(place, field.clears) if field.clears else ""
    check = field.check and _check(place, field)
    open_value = "" if field.kind == "text" else None
    return replace(
        field, key=key_of(place, field.key), default=open_value, placeholder="as design 1", slides=(), clears=clears,
        check=check,
    )  # fmt: skip


def _check(place: int, field: Field) -> Any:
    """The field's own check, with the design's own values under the shared keys."""

    def check(text: str, values: Mapping[str, Any]) -> object:
        assert field.check is not None
        return field.check(text, values_of(place, values))

    return check


#: fields of each design, by its place from 1
BY_DESIGN: dict[int, tuple[Field, ...]] = {
    place: tuple(_field(place, field) for field in shared.DESIGN) for place in range(1, MAX_DESIGNS + 1)
}
FIELDS = (COUNT, EDITING, *(field for fields in BY_DESIGN.values() for field in fields))


def values_of(place: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """A design's values under the shared keys: its own where it has them, else the first design's.

    The text of a choice (parameters, changed numbers) comes from the first design only where the choice does too.
    """
    found = {}
    for field in shared.DESIGN:
        name = field.key
        own = values.get(key_of(place, name))
        if own in (None, ""):
            choice = _WITH.get(name)
            inherits = place == 1 or choice is None or values.get(key_of(place, choice)) in (None, "")
            own = values.get(name, field.default) if inherits else field.default
        found[name] = own
    return found


def request_of(place: int, values: Mapping[str, Any]) -> Request:
    """What a design asks for."""
    return request.of(values_of(place, values))


#: designs by their places from 1: what each asks for, and its answer
Designs = Mapping[int, tuple[Request, Answer]]


def render() -> None:
    """Draw the page."""
    values = state.open_page(PAGE, FIELDS)
    st.title("KV cache: what if?", anchor=False)
    places = range(1, values["designs"] + 1)
    wrong = {}
    found: dict[int, tuple[Request, Answer]] = {}
    for place in places:
        try:
            asked = request_of(place, values)
            found[place] = (asked, cached_answer(asked))
        except DseError as error:
            wrong[place] = error
    draw_sidebar(values, wrong)
    for place in wrong:
        which = f" of design {place}" if len(places) > 1 else ""
        st.info(f"Nothing to show{which} yet: the message beside its fields says what to change.")
    if not found:
        return
    show_summaries(found)
    headline(found)
    how_sure(found)
    made = MadeBy(
        "\n".join(request.command(asked) for asked, _ in found.values()),
        "\n\n".join(request.python(asked) for asked, _ in found.values()),
        state.address(PAGE, FIELDS, values),
    )
    show_bars(found, made)
    show_curve(found, made)  # by itself: nothing waits for its points
    show_numbers(found)  # last: what the reader opens, while the figures follow the fields


@st.cache_data(max_entries=512, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached_answer(asked: Request) -> Answer:
    """The answer to a request. Raises DseError."""
    return request.answer(asked)


@st.cache_data(max_entries=128, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached_curve(asked: Request) -> pd.DataFrame:
    """The points of the throughput figure, for a request with any batch. Raises DseError."""
    return request.curve(asked)


#: in this order on the page; the rest under "More"
_FIRST = ("model", "quantizer", "parameters", "batch", "input", "output")
_MORE = tuple(field.key for field in shared.DESIGN if field.key not in ("device", "edits", *_FIRST))


def draw_sidebar(values: Mapping[str, Any], wrong: Mapping[int, DseError]) -> None:
    """The sidebar; `wrong` says which designs cannot be answered, and why."""
    with st.sidebar:
        widgets.draw(COUNT)
        place = 1
        if values["designs"] > 1:
            state.drawn(EDITING.key)
            st.segmented_control(
                EDITING.label, range(1, values["designs"] + 1), key=EDITING.key, help=EDITING.help, required=True
            )
            place = min(values["editing"] or 1, values["designs"])
        own = values_of(place, values)
        fields = {
            field.key: _open(named, own[field.key], place)
            for field, named in zip(shared.DESIGN, BY_DESIGN[place], strict=True)
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
            problem(error)
        with st.expander("More: values, memory, weights, tokens, times, measurements"):
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
            shipped = editable(own["device"], "")
        except DseError as error:
            problem(error)
            return
        changed = edits_by_field(own["edits"])
        for name, (text, source, kind) in shipped.items():
            key = f"{place} number of {name}"
            st.session_state[key] = changed.get(name, text)

            def keep(key: str = key, name: str = name, text: str = text) -> None:
                state.put({edits.key: with_edit(own["edits"], name, st.session_state[key], text)})

            st.text_input(escaped(name.replace("_", " ")), key=key, on_change=keep, max_chars=40)
            if name in changed:
                _say_wrong(own["device"], name, changed[name])
            st.text(f"{'changed; was ' + text + ': ' if name in changed else ''}{source} ({kind})")


def _say_wrong(device: str, name: str, text: str) -> None:
    try:
        uploads.device(device, f"{name}={text}")
    except InputError as error:
        problem(error)


def editable(device: str, edits: str) -> dict[str, tuple[str, str, str]]:
    """The numbers of a device: field -> (text to edit, source, kind); without the changed ones where they are wrong.

    The text is in the short form of files, so that it goes back unchanged. Raises InputError for an unknown device.
    """
    try:
        spec = uploads.device(device, edits)
    except InputError:
        spec = uploads.device(device)
    return {
        name: (f"{quantity.value:.12g} {quantity.unit}", quantity.source, quantity.kind)
        for name, quantity in spec.quantities().items()
        if "." not in name
    }


def edits_by_field(edits: str) -> dict[str, str]:
    """The changed numbers of a text, by field."""
    pairs = (edit.partition("=") for edit in edits.split(",") if edit.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def with_edit(edits: str, name: str, text: str, shipped: str) -> str:
    """The text of changed numbers after one was edited; empty, or as shipped, takes the change back."""
    found = edits_by_field(edits)
    found.pop(name, None)
    if text.strip() and text.strip() != shipped:
        found[name] = text.replace(",", "").strip()
    return ",".join(f"{field}={value}" for field, value in found.items())


def _chosen(place: int, upload: Upload, label: str) -> dict[str, Any]:
    """The fields of a design that a loaded file sets."""
    if upload.kind == "measurement":
        return {key_of(place, "measurements"): label}
    if upload.kind != "plan":
        return {key_of(place, upload.kind): label}
    sides = {"quantizer": label, "parameters": "", "value_quantizer": None, "value_parameters": ""}
    return {key_of(place, name): value for name, value in sides.items()}


def show_summaries(found: Designs) -> None:
    """A line a design that says what is shown, and what is wrong with it; names may come from files of the reader."""
    alone = len(found) == 1
    for place, (asked, answer) in found.items():
        result = answer.result
        st.text(title(asked, place, alone))
        which = "This" if alone else f"Design {place}"
        if not result["feasible"]:
            st.warning(f"{which} does not fit:")
            st.text(result["infeasible_reason"])
        elif not result["fits_whole_batch"]:
            st.warning(f"{which} does not fit at once: {together(result)}")
        if beyond := position_note(asked.model_spec(), result["input_tokens"] + result["output_tokens"]):
            st.warning(f"{which} has a longer context than its model was made for:")
            widgets.lines(beyond)
        policy = token_policies.parse(result["tokens"]).family
        if policy.validity:
            stored, read = (number(result[name], "token") for name in ("stored_tokens", "read_tokens"))
            st.caption(escaped(f"{policy.title}: {stored} stored and {read} read at the end; {policy.validity}."))


def together(result: Mapping[str, Any]) -> str:
    """How a batch that does not fit at once is served: in equal waves, which may be smaller than what fits."""
    limited = result.get("max_num_seqs") == result["max_batch"]
    how = "run together (the server's own limit)" if limited else "fit together"
    text = f"at most {result['max_batch']:,} of {result['batch']:,} requests {how}"
    if result["n_waves"] is None:  # paged: requests come and go
        return f"{text}."
    return f"{text}, so that they run in {result['n_waves']:,} waves of up to {result['running_batch']:,}."


def title(asked: Request, place: int, alone: bool) -> str:
    """A design in a line."""
    keys = kept.numbered(asked.key_quantizer_text, asked.quantizer)
    values = kept.numbered(asked.value_quantizer_text, asked.value_quantizer or asked.quantizer)
    stored = keys if keys == values else f"{keys} / {values}"
    model, device = kept.numbered(asked.model_text, asked.model), kept.numbered(asked.device_text, asked.device)
    n = asked.work.n_devices
    text = f"{model} on {f'{n:,} x {device}' if n > 1 else device}, KV cache in {stored}, batch {asked.work.batch:,}, "
    text += f"{asked.work.input_tokens:,} tokens in, {asked.work.output_tokens:,} out"
    return text if alone else f"{place}: {text}"


#: on top: result -> tooltip
HEADLINE = {
    "throughput_tokens_per_s": "Tokens generated a second, all requests together.",
    "decode_step_s": "Mean time in which every running request gets one token.",
    "kv_bytes": "Keys and values of the whole batch, all requests at their final length.",
    "max_batch": "Requests that fit at once.",
}
#: below: heading -> result -> tooltip
GROUPS = {
    "What fits, what binds": {
        "feasible": "At least one request fits.",
        "bound": "What most of the time, or the memory, goes into.",
        "max_batch": HEADLINE["max_batch"],
        "running_batch": "Requests of the batch that run together.",
        "max_context_tokens": "Prompt and output, for all requests at once.",
    },
    "Memory": {
        "weight_bytes": "The model's weights.",
        "kv_bytes": "Of the whole batch, all requests at their final length.",
        "kv_bytes_per_token": "Of one request.",
        "min_capacity_bytes": "To run the whole batch at once: the smallest device that does.",
        "capacity_bytes": "As the device's file says; counted by a server, as its driver reports it.",
    },
    "Time": {
        "throughput_tokens_per_s": HEADLINE["throughput_tokens_per_s"],
        "decode_step_s": HEADLINE["decode_step_s"],
        "prefill_s": "Time to compute the prompts before the first token.",
        "total_s": "The whole batch from the first prompt to the last token.",
    },
    "Energy and cost": {
        "joules_per_token": "At the power of the whole board.",
        "joules_per_token_by_parts": "By bytes moved, operations and idling.",
        "usd_per_million_tokens": "At the device's price per hour.",
    },
    "Bits and error": {
        "effective_bits": "Bits an element as the method's paper counts them.",
        "stored_bits": "Bits an element with all that is stored beside the codes.",
        "measured_error": "Relative error of its output, as measured (More).",
        "sqnr_db": "Signal to quantization noise of keys and values, measured.",
    },
}
#: results that the page calls otherwise than tables and figures do: headings and tooltips say the rest
LABELS = {
    "kv_bytes": "KV cache", "feasible": "Fits", "bound": "What binds", "kv_bytes_per_token": "KV cache per token",
    "min_capacity_bytes": "Memory it needs", "prefill_s": "Prefill", "total_s": "Total",
    "usd_per_million_tokens": "Cost", "measured_error": "Attention error",
}  # fmt: skip
#: pixels: of a number on top, two of a row on a phone; of a row's label and of each design's number
_WIDTH, _LABEL, _CELL = 171, 175, 150


def label_of(name: str) -> str:
    """What the page calls a result."""
    return LABELS.get(name) or names.words(name)


def headline(found: Designs) -> None:
    """The numbers on top, as many in a row as the screen takes; the others against the first design."""
    first = next(iter(found.values()))[1].result
    for place, (_, answer) in found.items():
        with st.container(horizontal=True, key=f"headline {place}"):
            for name, tip in HEADLINE.items():
                label = label_of(name)
                delta = delta_of(name, answer.result, first) if answer.result is not first else ""
                st.metric(
                    label if len(found) == 1 else f"{place}: {label}", escaped(shown_number(name, answer.result)),
                    delta or None, delta_color="off", delta_arrow="off", help=tip, border=True, width=_WIDTH,
                )  # fmt: skip


def how_sure(found: Designs) -> None:
    """In a line: where 8 of 10 measurements should lie, and how sure the faster of two designs is."""
    answers = [(place, answer.result) for place, (_, answer) in found.items() if answer.result["feasible"]]
    said = []
    for place, result in answers:
        low, high = (number(rate, "token/s") for rate in uncertainty.ends(result))
        said.append(f"{low} to {high}" if len(found) == 1 else f"{place}: {low} to {high}")
    if not said:
        return
    text = "8 of 10 measurements should lie within " + "; ".join(said) + "."
    compared = Comparison()
    for place, _ in answers[1:]:
        gain = compared.gain(_case(found[place][0]), _case(found[answers[0][0]][0]))
        if gain and gain.ratio != 1:
            side = "faster" if gain.ratio > 1 else "slower"
            text += (
                f" {place} is {side} than {answers[0][0]} with a chance of {sure_text(gain.confidence)}: "
                f"{gain.ratio:.2f} times its throughput ({gain.low:.2f} to {gain.high:.2f})."
            )
    st.caption(escaped(text))


def _case(asked: Request) -> Case:
    """What a comparison evaluates of a design."""
    return Case(asked.device_spec(), asked.plan(), asked.work)


def shown_number(name: str, result: Mapping[str, Any]) -> str:
    """A result as the page shows it; sizes in GB only, so that columns compare."""
    value, unit = result[name], RESULT_UNITS[name]
    if unit == "B" and value is not None:
        return units.human(value, unit)
    return number(value, unit)


def delta_of(name: str, result: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """How a number differs from the first design's: in percent, or as a factor from twice on; empty where it cannot."""
    value, base = result[name], first[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(base, int | float):
        return ""
    return change(value, base)


#: pixels of the bars: of a bar, of an entry of the legend above (a row each for parts of a step), of the axis below
_BAR_PX, _ENTRY_PX, _AXIS_PX = 44, 24, 55


def show_bars(found: Designs, made: MadeBy) -> None:
    """Memory and step time, a bar a design."""
    rows = _rows(found)
    memory, step = design_bars.memory(rows), design_bars.step_time(rows)
    legend_px = _ENTRY_PX * len(step.legend())
    height = legend_px + _AXIS_PX + _BAR_PX * len(rows)
    for place, name, chart in zip(st.columns(2), ("memory_bars", "step"), (memory, step), strict=True):
        with place:
            beside.show(name, chart, partial(design_bars.table, rows), made, figure.fitted(chart, height, legend_px))


@st.fragment(parallel=True)
def show_curve(found: Designs, made: MadeBy) -> None:
    """Throughput against batch; a single design beside the same without quantization."""
    asked_for = [asked for asked, _ in found.values()]
    labels = _names(found)
    if len(asked_for) == 1:
        plain = request.unquantized(asked_for[0])
        if plain.key_quantizer_text != asked_for[0].key_quantizer_text:
            asked_for, labels = [*asked_for, plain], [*labels, plain.key_quantizer_text]
    lines = tuple(zip(labels, map(request.any_batch, asked_for), strict=True))
    chart = figure.chosen(cached_lines(lines), [answer.result for _, answer in found.values()])
    beside.show("throughput", chart, partial(_curves, lines), made)


@st.cache_data(max_entries=128, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached_lines(lines: tuple[tuple[str, Request], ...]) -> Chart:
    """The throughput figure of named requests with any batch, without the chosen points. Raises DseError."""
    return figure.throughput([(name, cached_curve(asked)) for name, asked in lines])


def _curves(lines: tuple[tuple[str, Request], ...]) -> pd.DataFrame:
    return pd.concat([cached_curve(asked).assign(design=name) for name, asked in lines], ignore_index=True)


def _names(found: Designs) -> list[str]:
    asked_for = [asked for asked, _ in found.values()]
    texts = [short(asked, asked_for) for asked in asked_for]
    return [f"{place}: {text}" for place, text in zip(found, texts, strict=True)] if len(found) > 1 else texts


def _rows(found: Designs) -> list[tuple[str, dict[str, Any]]]:
    results = [answer.result for _, answer in found.values()]
    return list(zip(_names(found), results, strict=True))


#: fields of a workload that a figure's names say in the words of tables
_UNWORDED = tuple(name for name in ASKED if name not in (
    "batch", "input_tokens", "output_tokens", "admission", "weights_bits", "model_kind", "stack", "tokens"
))  # fmt: skip


def _in_words(name: str, asked: Request) -> str:
    value = getattr(asked.work, name)
    if value is None:
        return ""
    if isinstance(value, bool):
        return ASKED[name].label if value else f"no {ASKED[name].label}"
    return f"{ASKED[name].title or ASKED[name].label.lower()} {value}"


def short(asked: Request, others: Sequence[Request]) -> str:
    """What tells a design from the others, for the figures; its quantizer where all are the same."""
    ways: tuple[Callable[[Request], str], ...] = (
        lambda r: kept.numbered(r.device_text, r.device), lambda r: kept.numbered(r.model_text, r.model),
        lambda r: " / ".join(dict.fromkeys((
            kept.numbered(r.key_quantizer_text, r.quantizer),
            kept.numbered(r.value_quantizer_text, r.value_quantizer or r.quantizer),
        ))),
        lambda r: f"batch {r.work.batch:,}", lambda r: f"{r.work.input_tokens:,} in",
        lambda r: f"{r.work.output_tokens:,} out", lambda r: r.work.admission,
        lambda r: f"{r.work.weights_bits}-bit weights", lambda r: r.work.model_kind, lambda r: r.work.stack or "",
        lambda r: r.work.tokens, *(partial(_in_words, name) for name in _UNWORDED), lambda r: r.measurements,
    )  # fmt: skip
    differing = [way(asked) for way in ways if len({way(other) for other in others}) > 1]
    return ", ".join(text for text in differing if text) or asked.key_quantizer_text


@part
def show_numbers(found: Designs) -> None:
    """Every number, a column a design; alone, the groups stand side by side. A fragment: opening one draws no more."""
    st.subheader("Every number, and where it comes from", anchor=False)
    st.caption("Press a number for its formula, values, units and sources. GB is a thousand million bytes.")
    if len(found) == 1:
        columns = st.columns(3)
        for i, (heading, entries) in enumerate(GROUPS.items()):
            with columns[i % 3].container(gap="xsmall"):
                st.markdown(f"**{escaped(heading)}**")
                for name, tip in entries.items():
                    _number(found, 1, name, tip, f"{escaped(label_of(name))}: ")
    else:
        for heading, entries in GROUPS.items():
            st.markdown(f"**{escaped(heading)}**")
            with st.container(gap="xsmall"):
                for name, tip in entries.items():
                    with st.container(horizontal=True, gap="xsmall", vertical_alignment="center"):
                        st.markdown(escaped(label_of(name)), width=_LABEL, help=tip)
                        for place in found:
                            _number(found, place, name, "", f"{place}: ", width=_CELL)
    for place, (_, answer) in found.items():
        with st.expander("All of it as text" if len(found) == 1 else f"{place}: all of it as text"):
            st.code(answer.text, language=None, wrap_lines=True)


def _number(found: Designs, place: int, name: str, tip: str, before: str, width: Any = "content") -> None:
    """A number as a button that opens its explanation, which is worked out when it is opened."""
    asked, answer = found[place]
    first = next(iter(found.values()))[1].result
    delta = "" if answer.result is first else delta_of(name, answer.result, first)
    said = ", ".join(filter(None, (delta, _limits(name, asked, answer.result))))
    text = f"{before}**{escaped(shown_number(name, answer.result))}**" + (f" ({escaped(said)})" if said else "")
    box = st.popover(
        text, type="tertiary", help=tip or None, key=f"{place} number {name}", on_change="rerun", wrap=True, width=width
    )
    if box.open:
        with box:
            try:
                st.code(cached_explanation(asked, name), language=None, wrap_lines=True)
            except DseError as error:
                problem(error)


def _limits(name: str, asked: Request, result: Mapping[str, Any]) -> str:
    """What a number must not be taken for: measured on made-up data, or a context that the model has not seen."""
    if name in ("measured_error", "sqnr_db") and "(synthetic)" in (result["measured_on"] or ""):
        return "synthetic data"
    if name == "max_context_tokens":
        most = asked.model_spec().max_position_tokens
        return f"model: {most:,} positions" if most and (result[name] or 0) > most else ""
    return ""


@st.cache_data(max_entries=256, ttl="1h", show_spinner=False, hash_funcs={Request: repr})
def cached_explanation(asked: Request, name: str) -> str:
    """Formula, values, units and sources of one result. Raises DseError."""
    return request.explanation(asked, name)
