"""The figures of `dse ask`: what an answer's figure needs beside its table, as plain data, and the chart of both."""

from typing import Any

import pandas as pd

from dse.errors import InputError
from dse.plots import axes, best_quantizer, crossover, need_curve, tornado
from dse.plots.chart import Axis, Chart
from dse.questions import crossing
from dse.questions.best_map import BestMap
from dse.questions.common import MEASURES, assumption_text
from dse.questions.crossing import Crossing
from dse.questions.need import NUMBERS, Need, NeedBits
from dse.questions.sensitivity import Sensitivity, range_text

Answer = Crossing | Need | NeedBits | Sensitivity | BestMap
#: what a figure needs beside its table; it goes through JSON and back
About = dict[str, Any]

#: shown units of what an inverse design varies: (unit, size)
_NUMBER_UNITS = {"bandwidth": ("TB/s", axes.TB), "capacity": ("GB", axes.GB), "flops": ("TFLOP/s", axes.TERA_FLOPS)}


def kind_of(answer: Answer) -> str:
    """The figure of an answer, as `dse plot` calls it."""
    kinds = {Crossing: "cross", Need: "need", NeedBits: "need_bits", Sensitivity: "sensitivity", BestMap: "map"}
    return kinds[type(answer)]


def table_of(answer: Answer) -> pd.DataFrame:
    """The table behind the figure."""
    return answer.curve if isinstance(answer, Need) else answer.table()


def about(answer: Answer) -> About:
    """What the figure of an answer says that its table does not."""
    if isinstance(answer, Crossing):
        title = f"Where {answer.new} pays against {answer.old} ({answer.measure.title})"
        return {"title": title, "notes": [f"{answer.context}.", answer.assumptions]}
    if isinstance(answer, Need):
        return _about_need(answer)
    if isinstance(answer, NeedBits):
        return _about_bits(answer)
    return _about_effects(answer) if isinstance(answer, Sensitivity) else _about_map(answer)


def _about_need(answer: Need) -> About:
    measure, goal = answer.target.measure, answer.target
    unit, size = _NUMBER_UNITS[answer.what]
    column = answer.curve.columns[1]
    own = answer.curve[answer.curve.iloc[:, 0] == answer.given].iloc[0]
    marks = [["the device", float(own.iloc[0]), None if pd.isna(own[column]) else float(own[column])]]
    if answer.value is not None:
        marks.insert(0, ["smallest that meets it", answer.value, measure.value(answer.result)])
    asked = (
        f"{answer.context}, {answer.design}, batch {answer.result['batch']:,}, {answer.result['input_tokens']:,} in."
    )
    found = f"{answer.value / size:,.4g} {unit}" if answer.value is not None else "none meets it"
    return {
        "title": f"Smallest {NUMBERS[answer.what][1]} for {goal.text()}: {found}", "what": answer.what,
        "measure": measure.name, "target": goal.value, "target_text": goal.text(), "marks": marks,
        "notes": [asked, f"{'What stops a smaller one' if answer.value is not None else 'Cannot be met'}: "
                  f"{answer.why()}.", "Hollow: misses the target.", assumption_text([answer.result], measure)],
    }  # fmt: skip


def _about_bits(answer: NeedBits) -> About:
    measure, table = answer.target.measure, answer.table()
    out = ["No bar: does not run."] if table[measure.column].isna().any() else []
    found = f"{answer.best['stored_bits']:.4g} bits ({answer.best['quantizer']})" if answer.best else "none meets it"
    return {
        "title": f"Most stored bits for {answer.target.text()}: {found}", "measure": measure.name,
        "target": answer.target.value, "target_text": answer.target.text(),
        "notes": [f"{answer.context}, batch {answer.batch:,}, {answer.input_tokens:,} in.",
                  f"{'What stops more bits' if answer.best else 'Cannot be met'}: {answer.why()}.", *out,
                  assumption_text(answer.candidates, measure)],
    }  # fmt: skip


def _about_effects(answer: Sensitivity) -> About:
    moving = [i for i, e in enumerate(answer.effects) if e.span(answer.base) > 0 or e.flips_at] or [0]
    numbers = [answer.effects[i].number for i in moving]
    m = answer.measure
    return {
        "title": f"What moves {m.title}, {answer.design}" + (f" against {answer.other}" if answer.other else ""),
        "measure": m.name, "rows": moving,
        "labels": [f"{number.name.removeprefix('stacks.')} ({range_text(number)})" for number in numbers],
        "base": [answer.base or 0.0, answer.other_base], "names": [answer.design, answer.other],
        "winner": answer.winner, "notes": [f"{answer.context}.", answer.assumptions],
    }  # fmt: skip


def _about_map(answer: BestMap) -> About:
    over = answer.over
    return {
        "title": f"Best quantizer ({answer.measure.title})", "quantizers": list(answer.quantizers), "over": over,
        "notes": [f"{answer.context}. The number in a cell: how many times as good as {over}; without one: {over} "
                  "does not run.", answer.assumptions],
    }  # fmt: skip


def chart(kind: str, table: pd.DataFrame, about: About) -> Chart:
    """The figure of a table and of what `about` says beside it; empty, a table of one's own says it all, but that of
    sensitivity. Raises InputError."""
    if not about and kind in ("need", "need_bits"):
        table, about = _own(kind, table)
    return {"cross": _cross, "need": _need, "need_bits": _bits, "sensitivity": _tornado, "map": _map}[kind](
        table, about, tuple(about.get("notes", ()))
    )


def chart_of(answer: Answer) -> Chart:
    """The figure of an answer."""
    return chart(kind_of(answer), table_of(answer), about(answer))


def _cross(table: pd.DataFrame, about: About, notes: tuple[str, ...]) -> Chart:
    return crossover.chart(table, about.get("title", "Where it pays"), crossing.VERDICTS, notes)


def _own(kind: str, table: pd.DataFrame) -> tuple[pd.DataFrame, About]:
    """A table of one's own with its first two columns in order, and what its columns say. Raises InputError."""
    names = [measure.name for measure in MEASURES.values() if measure.column in table]
    if not names:
        raise InputError(f"columns: must have a result: {' or '.join(m.column for m in MEASURES.values())}")
    measure = MEASURES[names[0]]
    if kind == "need_bits":
        drop = [m.column for m in MEASURES.values() if m.column in table and m is not measure]
        return table.drop(columns=drop), {
            "title": f"{measure.title[0].upper()}{measure.title[1:]} by quantizer", "measure": measure.name,
        }  # fmt: skip
    found = [(what, column) for what, (column, _) in NUMBERS.items() if column in table]
    if not found:
        raise InputError(f"columns: must have {' or '.join(column for column, _ in NUMBERS.values())}")
    what, column = found[0]
    table = table.sort_values(column, kind="stable")
    order = [column, measure.column, *(name for name in table.columns if name not in (column, measure.column))]
    met = table[table["meets"].astype(bool)].head(1)
    marks = [
        ["smallest that meets it", float(a), float(b)] for a, b in zip(met[column], met[measure.column], strict=True)
    ]
    return table[order], {
        "title": f"{measure.title[0].upper()}{measure.title[1:]} against {NUMBERS[what][1]}", "what": what,
        "measure": measure.name, "marks": marks, "notes": ["Hollow: misses the target."],
    }  # fmt: skip


def _goal(about: About) -> tuple[str, float] | None:
    return (f"target: {about['target_text']}", about["target"]) if "target" in about else None


def _result_axis(table: pd.DataFrame, about: About) -> Axis:
    measure = MEASURES[about["measure"]]
    values = [float(value) for value in table[measure.column].dropna()]
    return need_curve.result_axis(measure.title, measure.shown_unit, values, about.get("target"), measure.per_unit)


def _need(table: pd.DataFrame, about: About, notes: tuple[str, ...]) -> Chart:
    unit, size = _NUMBER_UNITS[about["what"]]
    return need_curve.chart(
        table, need_curve.number_axis(NUMBERS[about["what"]][1], unit, list(table.iloc[:, 0]), size),
        _result_axis(table, about), [tuple(mark) for mark in about["marks"]],
        _goal(about), about["title"], notes,
    )  # fmt: skip


def _bits(table: pd.DataFrame, about: About, notes: tuple[str, ...]) -> Chart:
    return need_curve.bits_chart(table, _result_axis(table, about), _goal(about), about["title"], notes)


def _tornado(table: pd.DataFrame, about: About, notes: tuple[str, ...]) -> Chart:
    m = MEASURES[about["measure"]]
    return tornado.chart(
        table.iloc[about["rows"]], about["labels"], (m.title, m.shown_unit, m.per_unit), tuple(about["base"]),
        tuple(about["names"]), about["winner"], about["title"], notes,
    )  # fmt: skip


def _map(table: pd.DataFrame, about: About, notes: tuple[str, ...]) -> Chart:
    gains = [str(name) for name in table.columns if str(name).startswith("gain_over_")]
    over = about.get("over", gains[0].removeprefix("gain_over_") if gains else "")
    measured = [str(name) for name in table.columns if " " in str(name)]
    names = list(about.get("quantizers", [name.split(" ", 1)[1] for name in measured]))
    named = (name for text in table["best"] for name in str(text).split(" = ") if name)
    names += [name for name in dict.fromkeys(named) if name not in names]
    return best_quantizer.chart(table, tuple(names), over, about.get("title", "Best quantizer"), notes)
