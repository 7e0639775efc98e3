"""The opened row of the table: a design's numbers with what they mean, what would make it fit, and its command."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import streamlit as st

from dse.explorer import badge, common_fields, request, sidebar, state, tray, widgets
from dse.explorer.bench import Bench, BenchRow, cached_answer, line
from dse.explorer.cards import MEANINGS, fits, label, loss, shown
from dse.explorer.request import PointRequest
from dse.explorer.verdict import is_enough, keeps, lead
from dse.explorer.widgets import escaped, lines
from dse.model import quality
from dse.questions import room
from dse.questions.common import competes, ends_text
from dse.questions.serve_command import serve_command
from dse.questions.server_design import largest
from dse.report.design import as_said
from dse.report.present import design_notes, fits_text, memory_note, number, pool_ends, release_note, slower_note
from dse.specs.workload import Workload

#: notes on keys of a model's file that change nothing
_OF_FILE = re.compile(r"auto_map ignored|key \S+ absent")
#: what a note says of an option of the command line
_OPTION = re.compile(r"; --weights \S+ counts[^;]*")


def show(bench: Bench) -> None:
    """Draw the row of the design that is chosen."""
    row = bench.current
    with st.container(border=True, key="opened"), widgets.said():
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.markdown(f"**{escaped(row.name)}**", width="content")
            badge.show(badge.badge_of(row))
            full, alone = len(bench.rows) >= tray.MAX_DESIGNS, len(bench.rows) == 1
            sidebar.opener()
            st.button("Duplicate", on_click=partial(sidebar.act, tray.Tray.duplicated), key="copy", disabled=full)
            st.button("Delete", on_click=partial(sidebar.act, tray.Tray.deleted), key="delete", disabled=alone)
        if row.asked is None or row.answer is None:
            return  # the table says why
        st.caption(escaped(line(row.request)))
        numbers, more = st.columns(2, gap="medium")
        with numbers:
            is_full = row.asked.work.batch is None and row.result["batch"] == row.result["max_batch"]
            st.markdown(escaped(fits_text(row.result, is_full)))
            lines([f"{said}. The numbers are as if other software ran it." for said in row.refusals.values()])
            is_idle = row.result["feasible"] and row.load.kind != "batch" and not row.answer.holds
            if is_idle:
                lines(
                    ["No server holds any of this load within the limits: the numbers are of one that is almost idle."]
                )
            if row.result["feasible"]:
                st.markdown("\n".join(_number(row, name) for name in MEANINGS if row.result[name] is not None))
        with more:
            first = next((other for other in bench.answered if other.result["feasible"]), row)
            if not is_idle and (said := lead(row, first)):
                st.markdown(escaped(f"{said}."))
            _steps(bench, row)
            _command(row)
            for note in notes(row):
                st.caption(escaped(note))


def _number(row: BenchRow, name: str) -> str:
    """A number with its interval and what it is, as a line of a list."""
    is_drop = name == "score_drop_frac"
    queue = f"{row.load.queue}: " if name == "ttft_s" else ""
    text = f"**{escaped(loss(row) if is_drop else shown(name, as_said(row.result)))}**"
    late_s = row.answer.late_s.get(name) if row.answer else None
    ends = pool_ends(row.result) if name == "kv_pool_tokens" else ends_text(row.result, name, late_s)
    of = row.result["score_drop_of"] if is_drop else ""
    if name == "usd_per_million_tokens" and "usd_per_hour" in row.result["assumptions"]:
        of = "assumed price"
    means = MEANINGS[name].rstrip(".")
    if name == "throughput_tokens_per_s" and row.load.kind != "batch":
        means = "Output tokens a second, of one server"
    details = ", ".join(filter(None, [ends, of, queue + means]))
    return f"- {escaped(label(name))}: {text} :small[({escaped(details)})]"


def _command(row: BenchRow) -> None:
    """The server's command, with a button that copies it, and what it does not say."""
    assert row.asked is not None
    assert row.answer is not None
    if row.load.kind == "batch":
        command = serve_command(row.request.device_spec(), row.request.plan(), row.request.work)
    else:  # with the lengths of its load
        command = request.server_of(row.asked, row.load).command
    if command.line:
        st.code(command.line, language="bash", wrap_lines=True)
        for said in command.lines[1:]:
            st.caption(escaped(said))
    ours = request.command(row.asked, row.load, row.answer)
    st.code(ours, language="bash", wrap_lines=True)
    if "--price " in ours:
        name = escaped(row.request.device_spec().name)
        st.caption(f"No price of {name} is known: 1 USD an hour stands for it here, so its USD are hours of a device.")


def notes(row: BenchRow) -> list[str]:
    """Notes of `dse point` on a design, but for those on its lengths."""
    point_request = row.request
    remarks = design_notes(point_request.device_spec(), point_request.model_spec(), dict(row.result))
    if row.result["feasible"]:
        point = point_request.point()
        remarks += [*slower_note(point), *release_note(point), *memory_note(point)]
    said = (_OPTION.sub("", note.removeprefix("Note: ")) for note in remarks)
    return [note for note in said if not _OF_FILE.search(note)]


@dataclass(frozen=True)
class Proposal:
    """A step: its label, its outcome, and the fields of the design or the question that it sets."""

    label: str
    outcome: str
    design: Mapping[str, Any]
    question: Mapping[str, Any]


def _steps(bench: Bench, row: BenchRow) -> None:
    """A button for each next step of a design that does not fit, or that misses a limit."""
    for place, step in enumerate(next_steps(bench, row)):
        text = escaped(f"{step.label}: {step.outcome}")
        st.button(text, key=f"step {row.at} {place}", on_click=partial(_take, row.at, step))


def _take(at: int, step: Proposal) -> None:
    values, question = dict(step.design), dict(step.question)
    design = state.tray().designs[at]
    has_layout = "pp" in values or not {"tp", "pp"}.isdisjoint(design.values)
    if "tp" in values and not has_layout:
        question["devices"] = values.pop("tp")  # of all: designs on unlike numbers of devices do not compare
    whole = {**tray.values_of(design, common_fields.DESIGN), **values}
    sidebar.act(lambda now: now.put(at, tray.design_of(whole, common_fields.DESIGN, design.name)))
    state.put(question)


def next_steps(bench: Bench, row: BenchRow) -> list[Proposal]:
    """Changes after which a design fits and keeps its limits, else that bring it nearer, each with what it costs."""
    limits = request.limits_s(bench.values)
    if row.asked is None or keeps(row, limits):
        return []
    current, before, load = row.asked, row.result, row.load

    def evaluated(way: room.Way) -> dict[str, Any]:
        changed = _changed(current, way)
        answer = cached_answer(changed, replace(load, amount=way.work.batch) if load.kind == "batch" else load)
        return answer.result | {"enough": is_enough(answer, changed, limits)}

    def enough(result: Mapping[str, Any]) -> bool:
        return bool(result["enough"])

    point = current.point()
    larger = room.that_fit(point, current.work, evaluated, enough)
    larger = larger or room.that_fit(point, current.work, evaluated, partial(_is_nearer, before))
    batch = _smaller(current.work, before, evaluated, enough) if current.work.batch else []
    if "states" in row.refusals:  # a hybrid that starts with as many requests as its memory holds
        most = before["max_batch"]
        way = room.Way(f"concurrency at most {most:,}", replace(current.work, max_num_seqs=most))
        larger = [*room.first_of([way], evaluated, enough), *larger]
    return [
        Proposal(way.words[:1].upper() + way.words[1:], _outcome(before, result), *_fields_of(current, way))
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

    def tried(n: int) -> list[tuple[room.Way, dict[str, Any]]]:
        return room.first_of([room.Way(f"batch {n:,}", replace(work, batch=n))], evaluate, is_enough)

    most = min(before["batch"] - 1, before["max_batch"]) if before["feasible"] else 0
    return tried(int(n)) if (n := largest(most, lambda n: bool(tried(n)))) else []


def _is_nearer(before: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    """True where a design that did not fit or run does, or more of its requests run at once."""
    if not competes(before) or not before["feasible"]:
        return bool(result["feasible"])
    return not before["fits_whole_batch"] and result["max_batch"] > before["max_batch"]


def _outcome(before: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """The reach of a step and its price: speed, cost of tokens, and scores where they are worse than before."""
    said = [fits(result), number(result["throughput_tokens_per_s"], "tok/s")]
    said += [] if result["enough"] else ["a limit is missed"]
    if result["usd_per_million_tokens"] is not None:
        said.append(shown("usd_per_million_tokens", result))
    for name, text, of in (
        ("score_drop_frac", quality.drop_text, "accuracy loss {}"),
        ("sample_perplexity_frac", quality.rise_text, "perplexity {} (of a small model)"),
    ):
        if (result[name] or 0.0) > (before[name] or 0.0):
            said.append(of.format(text(result)))
    if (result["weights"], result["weights_bits"]) != (before["weights"], before["weights_bits"]):
        said.append("what scores lose by the weights is not known")
    return ", ".join(said)
