"""A result against the number that an inverse design varies, with the target and the answer; by `dse ask need`."""

import math
from dataclasses import replace
from typing import Any

import pandas as pd

from dse.core.errors import InputError
from dse.figures.drawing import axes, marks, style, whiskers
from dse.figures.drawing.chart import Axis, Chart, Panel
from dse.figures.registry import by, figure
from dse.figures.source import Source
from dse.questions.common import MEASURES, Measure, assumption_text
from dse.questions.need import NUMBERS, Need, NeedBits

#: shown units of what an inverse design varies: (unit, size)
_NUMBER_UNITS = {"bandwidth": ("TB/s", axes.TB), "capacity": ("GB", axes.GB), "flops": ("TFLOP/s", axes.TERA_FLOPS)}


def source_of(answer: Need) -> Source:
    """The curve of an answer of `dse ask need` and what its figure says beside it."""
    measure, goal = answer.target.measure, answer.target
    unit, size = _NUMBER_UNITS[answer.what]
    column = answer.curve.columns[1]
    point = answer.curve[answer.curve.iloc[:, 0] == answer.given].iloc[0]
    marks = [["the device", float(point.iloc[0]), None if pd.isna(point[column]) else float(point[column])]]
    if answer.value is not None:
        marks.insert(0, ["smallest that meets it", answer.value, measure.value(answer.result)])
    question = (
        f"{answer.context}, {answer.design}, batch {answer.result['batch']:,}, {answer.result['input_tokens']:,} in."
    )
    outcome = f"{answer.value / size:,.4g} {unit}" if answer.value is not None else "none meets it"
    return Source(
        answer.curve,
        about={
            "title": f"Smallest {NUMBERS[answer.what][1]} for {goal.text()}: {outcome}",
            "what": answer.what,
            "measure": measure.name,
            "target": goal.value,
            "target_text": goal.text(),
            "marks": marks,
            "notes": [
                question,
                f"{'What stops a smaller one' if answer.value is not None else 'Cannot be met'}: {answer.why()}.",
                "Hollow: misses the target.",
                f"Smallest, {answer.sure_text()}.",
                assumption_text([answer.result], measure),
            ],
        },
    )


@figure(
    "need",
    "A result against the device's bandwidth, capacity or FLOP/s, and the smallest that will do.",
    by("ask need bandwidth|capacity|flops --out DIR", "need-bandwidth", "need-capacity", "need-flops"),
    ("running_batch", "bound", "meets"),
    order=130,
    answer=Need,
    source_of=source_of,
)
def chart(source: Source) -> Chart:
    """A result over the number that varies, hollow where the target is missed.

    The table's first two columns are both, in base units; a table of one's own, with nothing beside it, may have them
    anywhere. Beside it: `marks` (name, x, y or None) of points to tell apart, the answer and the device.
    """
    table, about = (source.table, source.about) if source.about else _own_curve(source.table)
    unit, size = _NUMBER_UNITS[about["what"]]
    x = axes.log2(NUMBERS[about["what"]][1], unit, list(table.iloc[:, 0]), size)
    y, goal = _result_axis(table, about), _goal(about)
    number, result = table.columns[:2]
    runs = table.dropna(subset=[result])
    hover = (_hover(row, x, y) for _, row in runs.iterrows())
    opened = tuple(not met for met in runs["meets"])
    series = [marks.line(y.name, runs[number], runs[result], style.Style(style.BLUE), hover, size=0.6, opened=opened)]
    for end in ("low", "high"):
        if end in runs:
            needs = runs.dropna(subset=[end])
            series.append(marks.line(whiskers.NAME, needs[number], needs[end], style.Style(style.BLUE, "dot", "")))
    if goal:
        series.append(marks.rule(goal[0], x, goal[1]))
    looks = ((style.VERMILLION, "star"), (style.GREEN, "diamond"))
    for (name, at, value), (color, marker) in zip(about["marks"], looks, strict=False):
        if value is not None and x.low <= at <= x.high:
            series.append(marks.points(name, [at], [value], style.Style(color, marker=marker), [name], size=1.2))
    return Chart(
        about["title"],
        panels=(Panel("", x, y, tuple(series)),),
        panel_height_pt=190,
        notes=tuple(about.get("notes", ())),
    )


def _own_measure(table: pd.DataFrame) -> Measure:
    """The first result that a table of one's own has. Raises InputError."""
    measures = [measure for measure in MEASURES.values() if measure.column in table]
    if not measures:
        raise InputError(f"columns: must have a result: {' or '.join(m.column for m in MEASURES.values())}")
    return measures[0]


def _own_curve(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A table of one's own, its first two columns in order, and what its columns say. Raises InputError."""
    measure = _own_measure(table)
    curves = [(what, column) for what, (column, _) in NUMBERS.items() if column in table]
    if not curves:
        raise InputError(f"columns: must have {' or '.join(column for column, _ in NUMBERS.values())}")
    what, column = curves[0]
    table = table.sort_values(column, kind="stable")
    order = [column, measure.column, *(name for name in table.columns if name not in (column, measure.column))]
    met = table[table["meets"].astype(bool)].head(1)
    marks = [
        ["smallest that meets it", float(a), float(b)] for a, b in zip(met[column], met[measure.column], strict=True)
    ]
    return table[order], {
        "title": f"{measure.title[0].upper()}{measure.title[1:]} against {NUMBERS[what][1]}",
        "what": what,
        "measure": measure.name,
        "marks": marks,
        "notes": ["Hollow: misses the target."],
    }


def _goal(about: dict[str, Any]) -> tuple[str, float] | None:
    """The target's name and value; None where it is not known."""
    return (f"target: {about['target_text']}", about["target"]) if "target" in about else None


def _result_axis(table: pd.DataFrame, about: dict[str, Any]) -> Axis:
    """From 0 to above the target and the results, but at most eight targets high, so that the crossing is seen."""
    measure, goal = MEASURES[about["measure"]], about.get("target")
    columns = [column for column in (measure.column, "low", "high") if column in table]
    values = [float(value) for column in columns for value in table[column].dropna()]
    name, unit, per_unit = measure.title, measure.shown_unit, measure.per_unit
    if goal is None:
        return axes.linear(name, unit, values, per_unit)
    axis = axes.linear(
        name, unit, [min(value, 8 * goal) for value in values if math.isfinite(value)] + [goal], per_unit
    )
    return replace(axis, high=max(axis.high, goal * 1.1))


def _hover(row: pd.Series, x: Axis, y: Axis) -> str:
    number, result = row.index[:2]
    lines = [f"{x.name}: {x.shown(row[number]):,.5g} {x.unit}", f"{y.name}: {y.shown(row[result]):,.5g} {y.unit}"]
    return "\n".join([*lines, f"running at once: {row['running_batch']:,}", f"bound by: {row['bound']}"])


def source_of_bits(answer: NeedBits) -> Source:
    """The table of an answer of `dse ask need bits` and what its figure says beside it."""
    measure, table = answer.target.measure, answer.table
    out = ["No bar: does not run."] if table[measure.column].isna().any() else []
    outcome = f"{answer.best['stored_bits']:.4g} bits ({answer.best['quantizer']})" if answer.best else "none meets it"
    return Source(
        table,
        about={
            "title": f"Most stored bits for {answer.target.text()}: {outcome}",
            "measure": measure.name,
            "target": answer.target.value,
            "target_text": answer.target.text(),
            "notes": [
                f"{answer.context}, {answer.asked()}.",
                f"{'What stops more bits' if answer.best else 'Cannot be met'}: {answer.why()}.",
                *out,
                whiskers.NOTE,
                assumption_text(answer.candidates, measure),
            ],
        },
    )


@figure(
    "need_bits",
    "Which quantizers meet a target, most stored bits first.",
    by("ask need bits --out DIR", "need-bits"),
    ("quantizer", "stored_bits", "bound", "meets"),
    order=140,
    answer=NeedBits,
    source_of=source_of_bits,
)
def bits_chart(source: Source) -> Chart:
    """A bar per quantizer, most stored bits on top; columns quantizer, stored_bits, bound, meets, and the result's."""
    table, about = source.table, source.about
    if not about:
        measure = _own_measure(table)
        about = {"title": f"{measure.title[0].upper()}{measure.title[1:]} by quantizer", "measure": measure.name}
    x, goal, result = _result_axis(table, about), _goal(about), MEASURES[about["measure"]].column
    labels = [f"{row['quantizer']}, {row['stored_bits']:.3g} bit" for _, row in table.iterrows()]
    series = []
    rows, places = list(table.to_dict("records")), range(len(labels) - 1, -1, -1)
    for name, meets, fill in (("meets the target", True, (style.GREEN, "")), ("misses it", False, ("#B8B8B8", "/"))):
        shown = [i for i, row in enumerate(rows) if bool(row["meets"]) == meets and pd.notna(row[result])]
        texts = (
            f"{labels[i]}\n{x.name}: {x.shown(rows[i][result]):,.5g} {x.unit}\nbound by: {rows[i]['bound']}"
            for i in shown
        )
        if shown:
            lengths = (rows[i][result] for i in shown)
            series.append(marks.bars(name, (places[i] for i in shown), lengths, fill, texts, width=0.6))
    for place, row in zip(places, rows, strict=True):
        if pd.notna(row.get("low")):
            series += whiskers.level(float(place), (float(row["low"]), float(row["high"])))
    y = axes.categories("quantizer", labels[::-1])
    if goal:
        series.append(marks.rule(goal[0], y, goal[1], upright=True))
    return Chart(
        about["title"],
        panels=(Panel("", x, y, tuple(series)),),
        panel_height_pt=max(60.0, 14.0 * len(labels)),
        notes=tuple(about.get("notes", ())),
    )
