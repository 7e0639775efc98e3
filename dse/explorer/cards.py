"""A card a design: whether it fits and what to do about it, and its numbers with their intervals and limits."""

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import streamlit as st

from dse.explorer import common_fields, names, request, sidebar, state, tray, widgets
from dse.explorer.bench import Bench, BenchRow, badge, cached_answer, line
from dse.explorer.request import PointRequest
from dse.explorer.widgets import escaped, lines
from dse.figures.drawing import style
from dse.model import quality
from dse.model.compare import Comparison
from dse.model.point import Point
from dse.model.results import RESULT_UNITS
from dse.questions import room
from dse.questions.common import competes, ends_text, sure_text
from dse.questions.serve_command import serve_command
from dse.report.design import as_said
from dse.report.present import (
    change,
    design_notes,
    fits_text,
    memory_note,
    number,
    pool_ends,
    release_note,
    slower_note,
)
from dse.specs.device_and_model import ModelSpec
from dse.specs.weights import WIDE
from dse.specs.workload import Workload

#: what a card says in numbers, under their declared titles (`label`), and what each is, of a server that always has so
#: many requests; times and rates have intervals
MEANINGS = {
    "throughput_tokens_per_s": "Output tokens a second, of all devices together.",
    "tpot_s": "Time per output token: mean time between two tokens of a request at a server that always has so "
    "many requests, prompts of others in between.",
    "ttft_s": "Time to first token: from a request's arrival at such a server to its first token.",
    "kv_pool_tokens": "Of all requests together, on all devices; in brackets, of 8 of 10 start-ups.",
    "score_drop_frac": "Largest published drop over kinds of tasks, as a share of the score of 16 bits, with half of "
    "its 95 % interval.",
    "sample_perplexity_frac": "Over that of 16 bits, of a small language model: not your model's.",
    "joules_per_token": "At the power of the whole board.",
    "usd_per_million_tokens": "At the device's price per hour.",
}
#: the limit on a time, and how many of the field's units a second is
LIMITS = {"ttft_s": (common_fields.TTFT_LIMIT, 1.0), "tpot_s": (common_fields.TPOT_LIMIT, 1e3)}
#: chance from which on one design is called faster
DECIDED = 0.8
_COLUMNS = 3
#: bits of weights that models are trained with
WIDE_BITS = 16
#: notes on keys of a model's file that change nothing
_OF_FILE = re.compile(r"auto_map ignored|key \S+ absent")
#: what a note says of an option of the command line
_OPTION = re.compile(r"; --weights \S+ counts[^;]*")
#: colors of the parts of the memory, as figures have them
_PARTS = {
    "weights": style.BLUE,
    "reserved": style.GRAY,
    "keys and values": style.ORANGE,
    "rest of their blocks": style.SKY,
    "free": "transparent",
}
_COLORS = {"measured": "green", "assumed": "orange", "estimated": "orange", "peak": "gray"}


def show(bench: Bench) -> None:
    """The cards; a table where there are many designs."""
    if len(bench.rows) >= tray.MANY:
        st.dataframe(design_table(bench), hide_index=True)
        for row in bench.rows:
            if row.wrong:
                lines([f"{row.name}: {line}" for line in row.wrong.lines()])
        return
    places = st.columns(min(len(bench.rows), _COLUMNS))
    boxes = [
        places[row.at % len(places)].container(border=True, key=f"card {row.at + 1}", gap="xsmall")
        for row in bench.rows
    ]
    for row, box in zip(bench.rows, boxes, strict=True):
        with box, widgets.said():
            _card(bench, row)
    for row, box in zip(bench.rows, boxes, strict=True):  # what takes longer, when all cards have their numbers
        with box, widgets.said():
            _rest(bench, row)


def _card(bench: Bench, row: BenchRow) -> None:
    mark = badge(row)
    st.markdown(f"**{escaped(row.name)}**")
    if row.asked is None or row.answer is None:
        lines(row.wrong.lines() if row.wrong else [])
        return
    st.caption(escaped(line(row.asked)))
    st.badge(mark, color=_COLORS.get(mark.partition(" ")[0].strip(","), "red"))  # type: ignore[arg-type]
    st.markdown(escaped(fits_text(row.result, row.request.work.batch is None)))
    lines([f"{said}. The numbers are as if other software ran it." for said in row.refusals.values()])
    if row.result["feasible"]:
        st.html(memory_bar(row.result))
        st.html(numbers_html(numbers(bench, row)))


def _rest(bench: Bench, row: BenchRow) -> None:
    """Below a card's numbers: how sure its gain over the first design is, its command, and the next steps."""
    if row.answer is None:
        return
    if said := sure(bench.answered[0], row):
        st.markdown(escaped(said))
    for note in notes(row):
        st.caption(escaped(note))
    command = serve_command(row.request.device_spec(), row.request.plan(), row.request.work)
    if command.line:
        st.code(command.line, language="bash", wrap_lines=True)  # with a button that copies it
        if command.cannot:
            st.caption(escaped(f"Not in this line: {'; '.join(command.cannot)}"))
    _steps(bench, row)


def notes(row: BenchRow) -> list[str]:
    """Notes of `dse point` on a design, but for those on its lengths."""
    point_request = row.request
    remarks = design_notes(point_request.device_spec(), point_request.model_spec(), dict(row.result))
    if row.result["feasible"]:
        point = Point(point_request.device_spec(), point_request.plan(), point_request.work)
        remarks += [*slower_note(point), *release_note(point), *memory_note(point)]
    said = (_OPTION.sub("", note.removeprefix("Note: ")) for note in remarks)
    return [note for note in said if not _OF_FILE.search(note)]


def fitting(rows: Sequence[BenchRow]) -> str:
    """Whether each design fits, in sentences."""
    return " ".join(f"{row.name}: {fits_text(row.result, row.request.work.batch is None)}" for row in rows)


def gains(rows: Sequence[BenchRow]) -> str:
    """Chances that each design is faster or slower than the first, in sentences."""
    said = ((row.name, sure(rows[0], row)) for row in rows)
    return " ".join(f"{name}: {text[:1].lower()}{text[1:]}" for name, text in said if text)


def memory_parts(result: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of a device by what holds them: keys and values of all that runs, at their final lengths."""
    pool = int(result["free_bytes"])
    held = min(int(result["kv_bytes"]), pool)
    weights, whole = int(result["weight_bytes"]), int(result["capacity_bytes"])
    running, most = int(result["running_batch"]), int(result["max_batch"])
    # by their bytes more would fit: padding, and copies of states, fill what they are given whole
    taken = pool * running // most if held * (most + 1) <= pool * running else held
    parts = {
        "weights": weights,
        "reserved": whole - weights - pool,
        "keys and values": held,
        "rest of their blocks": taken - held,
        "free": pool - taken,
    }
    return {name: n for name, n in parts.items() if n > 0}


def memory_bar(result: Mapping[str, Any]) -> str:
    """The memory of a device as a bar of its parts, as HTML, with the parts in words."""
    parts = memory_parts(result)
    words = ", ".join(f"{name} {n / 1e9:,.3g} GB" for name, n in parts.items())
    pieces = "".join(f'<div style="flex:{n};background:{_PARTS[name]}"></div>' for name, n in parts.items())
    bar = "display:flex;gap:1px;height:10px;border:1px solid #888;border-radius:3px;overflow:hidden"
    keys = " ".join(
        f'<span style="white-space:nowrap"><span style="color:{_PARTS[name]}" aria-hidden="true">&#9632;</span> {name} '
        f"{n / 1e9:,.3g} GB</span>"
        for name, n in parts.items()
    )
    return (
        f'<div role="img" aria-label="Memory of a device: {words}" style="{bar}">{pieces}</div>'
        f'<div style="font-size:0.8rem">{keys}</div>'
    )


#: numbers that are shown as every page and the command line show them
_OF_SCORES = {"score_drop_frac": quality.drop_text, "sample_perplexity_frac": quality.rise_text}
#: what a number of a card is called: the declared title of the result
label = names.words


class CardNumber(NamedTuple):
    """A number of a card: what it is, its value, where it likely lies and how far it is from the first design's, and
    the limit that it keeps or misses."""

    name: str
    value: str
    details: str
    limit: str


def numbers(bench: Bench, row: BenchRow) -> list[CardNumber]:
    """The numbers of a card: with intervals, limits met or not, and against the first design."""
    result, first = as_said(row.result), as_said(bench.answered[0].result)
    entries = []
    for name in MEANINGS:
        if row.result[name] is None:
            continue
        said = [_ends(name, result)]
        compares = name not in _OF_SCORES and all(isinstance(values[name], int | float) for values in (result, first))
        if row.at != bench.answered[0].at and compares and first[name]:
            said.append(change(result[name], first[name]))
        details = ", ".join(filter(None, [*said, _note(name, row)]))
        entries.append(CardNumber(name, shown(name, result), details, limit_text(name, result, bench.values)))
    return entries


#: how the lines of a number look
_HEAD = "display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 8px;margin-top:4px"
_SMALL, _VALUE, _PALE, _MISSED = (
    "font-size:0.8rem;text-align:right",
    "white-space:nowrap;margin-left:auto",
    "opacity:0.8",
    "color:#C62828;font-weight:600",
)


def numbers_html(entries: Iterable[CardNumber]) -> str:
    """Numbers as HTML: names on the left, values on the right, what is known of each in small letters below."""

    def styled(tag: str, style: str, text: str) -> str:
        return f'<{tag} style="{style}">{html.escape(text)}</{tag}>'

    pieces = []
    for entry in entries:
        said = [styled("span", _PALE, entry.details)] if entry.details else []
        if entry.limit:
            said.append(styled("span", _MISSED if entry.limit.startswith("misses") else _PALE, entry.limit))
        name = f'<span title="{html.escape(MEANINGS[entry.name])}">{html.escape(label(entry.name))}</span>'
        pieces.append(f'<div style="{_HEAD}">{name} {styled("b", _VALUE, entry.value)}</div>')
        pieces.append(f'<div style="{_SMALL}">{", ".join(said)}</div>')
    return "".join(pieces)


def shown(name: str, result: Mapping[str, Any]) -> str:
    """A number of a card with its unit, as `dse point` prints it."""
    if result[name] is None:
        return "-"
    return _OF_SCORES[name](result) if name in _OF_SCORES else number(result[name], RESULT_UNITS[name])


def _ends(name: str, result: Mapping[str, Any]) -> str:
    """The ends of a number's interval; empty where it has none."""
    text = ends_text(result, name)
    if name == "kv_pool_tokens" and (ends := pool_ends(result)):
        return f"({ends})"
    return text and (f"at peak rates ({text})" if result["model_kind"] == "ideal" else f"({text})")


def _note(name: str, row: BenchRow) -> str:
    """Caveat of a number: where a drop of scores comes from and what it leaves out, or an assumed price."""
    result = row.result
    if name == "score_drop_frac":
        is_kept = keeps_weights(row.request.model_spec(), result)
        return f"{result['score_drop_of']}" + ("" if is_kept else "; what the weights lose is not known")
    return "assumed price" if name == "usd_per_million_tokens" and "usd_per_hour" in result["assumptions"] else ""


def keeps_weights(model: ModelSpec, result: Mapping[str, Any]) -> bool:
    """True where the weights are no narrower than those that the model was released with."""
    is_wide = result["weights"] in (None, WIDE) and result["weights_bits"] >= WIDE_BITS
    return is_wide or result["weights"] == model.released


def is_met(name: str, result: Mapping[str, Any], values: Mapping[str, Any]) -> bool | None:
    """Whether a time keeps to the reader's limit; None where there is no limit or no time."""
    field, per_second = LIMITS[name]
    limit = values.get(field.key)
    is_none = limit is None or result[name] is None or is_untimed(name, values)
    return None if is_none else result[name] * per_second <= limit


def is_untimed(name: str, values: Mapping[str, Any]) -> bool:
    """True of the time per output token of an answer of one token, which has none: no limit counts against it."""
    return name.endswith("tpot_s") and values.get("output") == 1


def limits_s(values: Mapping[str, Any]) -> dict[str, float]:
    """The reader's limits on times, in seconds by result."""
    limits = {name: (values.get(field.key), per_second) for name, (field, per_second) in LIMITS.items()}
    return {
        name: limit / per_second
        for name, (limit, per_second) in limits.items()
        if limit is not None and not is_untimed(name, values)
    }


def limit_text(name: str, result: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """The limit of a time, met or not; empty where there is none."""
    met = is_met(name, result, values) if name in LIMITS else None
    if name in LIMITS and is_untimed(name, values) and values.get(LIMITS[name][0].key) is not None:
        return "no limit: one token has no TPOT"
    if met is None:
        return ""
    field, per_second = LIMITS[name]
    limit = f"{values[field.key]:g} {'s' if per_second == 1 else 'ms'}"
    return f"within the limit of {limit}" if met else f"misses the limit of {limit}"


def sure(first: BenchRow, row: BenchRow) -> str:
    """Chance that a design is faster or slower than the first; empty where one of them does not fit or run."""
    if row is first or not all(design.result["feasible"] and competes(design.result) for design in (first, row)):
        return ""
    gain = Comparison().gain(row.case, first.case)
    if not gain or gain.ratio == 1:
        return ""
    side = "Faster" if gain.ratio > 1 else "Slower"
    chance = sure_text(gain.sure_of_side)
    if gain.sure_of_side < DECIDED:
        return (
            f"Undecided against {first.name}: {gain.ratio:.2f} times its throughput ({gain.low:.2f} to "
            f"{gain.high:.2f}), {side.lower()} with a chance of {chance}."
        )
    return (
        f"{side} than {first.name} with a chance of {chance}: {gain.ratio:.2f} times its "
        f"throughput ({gain.low:.2f} to {gain.high:.2f})."
    )


@dataclass(frozen=True)
class Proposal:
    """A proposal of a card: its label, its outcome, and the fields of the design or the workload that it sets."""

    label: str
    outcome: str
    design: Mapping[str, Any]
    workload: Mapping[str, Any]


def _steps(bench: Bench, row: BenchRow) -> None:
    """A button for each next step of a design that does not fit, or that misses a limit."""
    for place, step in enumerate(next_steps(bench, row)):
        label = escaped(f"{step.label}: {step.outcome}")
        st.button(label, key=f"step {row.at} {place}", on_click=partial(_take, row.at, step))


def _take(at: int, step: Proposal) -> None:
    def changed(now: tray.Tray) -> tray.Tray:
        design = now.designs[at]
        values = {**tray.values_of(design, common_fields.DESIGN), **step.design}
        return now.put(at, tray.design_of(values, common_fields.DESIGN, design.name))

    state.put(step.workload)
    sidebar.act(changed)


def is_fine(bench: Bench, result: Mapping[str, Any]) -> bool:
    """True where a design runs, the whole batch fits at once and no limit is missed."""
    missed = any(is_met(name, result, bench.values) is False for name in LIMITS)
    return bool(result["feasible"] and competes(result) and result["fits_whole_batch"] and not missed)


def next_steps(bench: Bench, row: BenchRow) -> list[Proposal]:
    """Changes after which a design fits and keeps its limits, else that bring it nearer, each with what it costs."""
    if is_fine(bench, row.result):
        return []
    current, before = row.request, row.result

    def evaluated(way: room.Way) -> dict[str, Any]:
        return cached_answer(_changed(current, way)).result

    point = Point(current.device_spec(), current.plan(), current.work)
    is_enough = partial(is_fine, bench)
    larger = room.that_fit(point, current.work, evaluated, is_enough)
    larger = larger or room.that_fit(point, current.work, evaluated, partial(_is_nearer, before))
    batch = _smaller(current.work, before, evaluated, is_enough)
    if "states" in row.refusals:  # a hybrid that starts with as many requests as its memory holds
        most = before["max_batch"]
        way = room.Way(f"concurrency at most {most:,}", replace(current.work, max_num_seqs=most))
        larger = [*room.first_of([way], evaluated, is_enough), *larger]
    return [
        Proposal(way.words[:1].upper() + way.words[1:], _outcome(bench, before, result), *_fields_of(current, way))
        for way, result in [*larger[: room.MOST_WAYS - len(batch)], *batch]
    ]


def _changed(point: PointRequest, way: room.Way) -> PointRequest:
    other = request.with_quantizer(point, way.quantizer) if way.quantizer else point
    return replace(other, work=way.work)


def _fields_of(point: PointRequest, way: room.Way) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the design, and those of the workload of all, that a way sets."""
    before, after = common_fields.work_values(point.work), common_fields.work_values(way.work)
    differ = {key: value for key, value in after.items() if value != before[key]}
    workload: dict[str, Any] = {key: differ.pop(key) for key in ("input", "max_model_len", "batch") if key in differ}
    batch = {"own_batch": None} if "batch" in workload else {}
    stored = {"quantizer": way.quantizer, "parameters": "", "value_quantizer": None, "value_parameters": ""}
    return {**differ, **batch, **(stored if way.quantizer else {})}, workload


def _smaller(
    work: Workload,
    before: Mapping[str, Any],
    evaluate: Callable[[room.Way], dict[str, Any]],
    is_enough: Callable[[Mapping[str, Any]], bool],
) -> list[tuple[room.Way, dict[str, Any]]]:
    """The largest smaller batch that is enough: fewer requests at once take less time, so that halving finds it."""
    if not before["feasible"]:
        return []
    low, high = 0, min(before["batch"], before["max_batch"] + 1)
    ways: list[tuple[room.Way, dict[str, Any]]] = []
    while high - low > 1:
        n = high - 1 if not ways and high > before["max_batch"] else (low + high) // 2
        way = room.Way(f"batch {n:,}", replace(work, batch=n))
        if tried := room.first_of([way], evaluate, is_enough):
            low, ways = n, tried
        else:
            high = n
    return ways


def _is_nearer(before: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    """True where a design that did not fit or run does, or more of its requests run at once."""
    if not competes(before):
        return bool(result["feasible"])
    if not before["feasible"]:
        return bool(result["feasible"])
    return not before["fits_whole_batch"] and result["max_batch"] > before["max_batch"]


def _outcome(bench: Bench, before: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """The reach of a step and its price: speed, cost of tokens, and scores where they are worse than before."""
    missed = any(is_met(name, result, bench.values) is False for name in LIMITS)
    whole = "fits" + (", a limit is missed" if missed else "")
    said = [whole if result["fits_whole_batch"] else f"{result['max_batch']:,} of {result['batch']:,} at once"]
    said.append(number(result["throughput_tokens_per_s"], "token/s"))
    if result["usd_per_million_tokens"] is not None:
        said.append(shown("usd_per_million_tokens", result))
    drop, was = (answer["score_drop_frac"] or 0.0 for answer in (result, before))
    if drop > was:
        said.append(f"drop of scores {quality.drop_text(result)}")
    rise, was = (answer["sample_perplexity_frac"] or 0.0 for answer in (result, before))
    if rise > was:
        said.append(f"rise of perplexity {quality.rise_text(result)} (of a small model)")
    if (result["weights"], result["weights_bits"]) != (before["weights"], before["weights_bits"]):
        said.append("what scores lose by the weights is not known")
    return ", ".join(said)


def design_table(bench: Bench) -> pd.DataFrame:
    """The designs as a table, a row each: what a narrow screen shows first comes first."""
    rows = []
    for row in bench.rows:
        cells = {"Design": row.name}
        if row.asked is not None and row.answer is not None:
            for name in MEANINGS:
                cells[label(name)] = shown(name, row.result)
                if name in LIMITS and is_met(name, row.result, bench.values) is False:
                    cells[label(name)] += " (misses the limit)"
            cells.update({"Fits": fits(row.result), "What": line(row.asked)})
        rows.append({**cells, "How sure": badge(row)})
    order = ["Design", label("throughput_tokens_per_s"), "How sure", "Fits", *map(label, MEANINGS), "What"]
    return pd.DataFrame(rows).reindex(columns=list(dict.fromkeys(order)))


def fits(result: Mapping[str, Any]) -> str:
    """`fits_text` in the few words of a cell."""
    if not result["feasible"]:
        return "does not fit"
    return "whole" if result["fits_whole_batch"] else f"{result['max_batch']:,} of {result['batch']:,}"
