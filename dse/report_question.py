"""The files of an answer: its figure as HTML, PNG, SVG and PDF, and the table behind it as CSV."""

import html

import pandas as pd

from dse import __version__, files, report_page, report_static
from dse.plots import axes, best_quantizer, crossover, need_curve, tornado
from dse.plots.chart import Axis, Chart
from dse.questions import crossing
from dse.questions.best_map import BestMap
from dse.questions.common import Measure, assumption_text
from dse.questions.crossing import Crossing
from dse.questions.need import NUMBERS, Need, NeedBits
from dse.questions.sensitivity import Sensitivity, range_text

Answer = Crossing | Need | NeedBits | Sensitivity | BestMap

#: shown units of what an inverse design varies: (unit, size)
_NUMBER_UNITS = {"bandwidth": ("TB/s", axes.TB), "capacity": ("GB", axes.GB), "flops": ("TFLOP/s", axes.TERA_FLOPS)}


def write(out: str, answer: Answer, command: str, static: str = "auto") -> str:
    """Write figure and table of an answer into directory `out`; return the path of the page.

    Raises InputError for a `static` that cannot draw, OutputError where the directory cannot be written.
    """
    report_static.check(static)
    folder = files.prepare(out)
    name, table, chart = name_of(answer), table_of(answer), chart_of(answer)
    files.write(folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n").encode())
    with report_static.painter(static) as brush:
        for kind, content in brush.images(chart).items():
            files.write(folder / f"{name}.{kind}", content)
    files.write(folder / "plotly.min.js", report_page.plotly_js().encode())
    drawing = report_page.fragment(chart, f"figure-{name}")
    body = (
        f'<div class="scroll"><div class="paper">{drawing}</div></div>\n'
        f"<pre>{html.escape(answer.text())}</pre>\n"
        f'<p class="soft">Table: <a href="{name}.csv">CSV</a>. Made by <code>{html.escape(command)}</code>, '
        f"dse {html.escape(__version__)}.</p>"
    )
    head = '<script src="plotly.min.js"></script>\n<style>pre { overflow-x: auto; font-size: 0.8rem; }</style>\n'
    page = report_page.document(chart.title, head, body, scripts="'self' file: ")
    files.write(folder / f"{name}.html", page.encode())
    files.sync(folder)
    return str(folder / f"{name}.html")


def name_of(answer: Answer) -> str:
    """The stem of the files of an answer."""
    if isinstance(answer, Need):
        return f"need-{answer.what}"
    names = {Crossing: "cross", NeedBits: "need-bits", Sensitivity: "sensitivity", BestMap: "map"}
    return names[type(answer)]


def table_of(answer: Answer) -> pd.DataFrame:
    """The table behind the figure."""
    return answer.curve if isinstance(answer, Need) else answer.table()


def chart_of(answer: Answer) -> Chart:
    """The figure of an answer."""
    if isinstance(answer, Crossing):
        return _cross(answer)
    if isinstance(answer, Need):
        return _need(answer)
    if isinstance(answer, NeedBits):
        return _bits(answer)
    return _tornado(answer) if isinstance(answer, Sensitivity) else _map(answer)


def _cross(answer: Crossing) -> Chart:
    title = f"Where {answer.new} pays against {answer.old} ({answer.measure.title})"
    return crossover.chart(answer.table(), title, crossing.VERDICTS, (f"{answer.context}.", answer.assumptions))


def _result_axis(measure: Measure, values: list[float], goal: float) -> Axis:
    return need_curve.result_axis(measure.title, measure.shown_unit, values, goal, measure.per_unit)


def _need(answer: Need) -> Chart:
    measure, goal = answer.target.measure, answer.target
    unit, size = _NUMBER_UNITS[answer.what]
    name = NUMBERS[answer.what][1]
    column = answer.curve.columns[1]
    own = answer.curve[answer.curve.iloc[:, 0] == answer.given].iloc[0]
    marks = [("the device", float(own.iloc[0]), None if pd.isna(own[column]) else float(own[column]))]
    if answer.value is not None:
        marks.insert(0, ("smallest that meets it", answer.value, measure.value(answer.result)))
    values = [float(value) for value in answer.curve[column].dropna()]
    asked = (
        f"{answer.context}, {answer.design}, batch {answer.result['batch']:,}, {answer.result['input_tokens']:,} in."
    )
    found = f"{answer.value / size:,.4g} {unit}" if answer.value is not None else "none meets it"
    return need_curve.chart(
        answer.curve, need_curve.number_axis(name, unit, list(answer.curve.iloc[:, 0]), size),
        _result_axis(measure, values, goal.value), marks, (f"target: {goal.text()}", goal.value),
        f"Smallest {name} for {goal.text()}: {found}",
        (asked, f"{'What stops a smaller one' if answer.value is not None else 'Cannot be met'}: {answer.why()}.",
         "Hollow: misses the target.", assumption_text([answer.result], measure)),
    )  # fmt: skip


def _bits(answer: NeedBits) -> Chart:
    measure, table = answer.target.measure, answer.table()
    values = [float(value) for value in table[measure.column].dropna()]
    out = ("No bar: does not run.",) if len(values) < len(table) else ()
    found = f"{answer.best['stored_bits']:.4g} bits ({answer.best['quantizer']})" if answer.best else "none meets it"
    return need_curve.bits_chart(
        table, _result_axis(measure, values, answer.target.value),
        (f"target: {answer.target.text()}", answer.target.value),
        f"Most stored bits for {answer.target.text()}: {found}",
        (f"{answer.context}, batch {answer.batch:,}, {answer.input_tokens:,} in.",
         f"{'What stops more bits' if answer.best else 'Cannot be met'}: {answer.why()}.",
         *out, assumption_text(answer.candidates, measure)),
    )  # fmt: skip


def _tornado(answer: Sensitivity) -> Chart:
    table = answer.table()
    moving = [e.span(answer.base) > 0 or bool(e.flips_at) for e in answer.effects]
    shown = [e for e, moves in zip(answer.effects, moving, strict=True) if moves] or list(answer.effects[:1])
    labels = [f"{e.number.name.removeprefix('stacks.')} ({range_text(e.number)})" for e in shown]
    m = answer.measure
    return tornado.chart(
        table[moving] if any(moving) else table[:1], labels, (m.title, m.shown_unit, m.per_unit),
        (answer.base or 0.0, answer.other_base), (answer.design, answer.other), answer.winner,
        f"What moves {m.title}, {answer.design}" + (f" against {answer.other}" if answer.other else ""),
        (f"{answer.context}.", answer.assumptions),
    )  # fmt: skip


def _map(answer: BestMap) -> Chart:
    return best_quantizer.chart(
        answer.table(), answer.quantizers, answer.over, f"Best quantizer ({answer.measure.title})",
        (f"{answer.context}. The number in a cell: how many times as good as {answer.over}; without one: {answer.over} "
         "does not run.", answer.assumptions),
    )  # fmt: skip
