"""Other conditions: the best format over batch and prompt, crossovers, and the numbers that a result rests on."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from dse.core.field import Field
from dse.explorer import common_fields, downloads, figure, request, uploads, widgets
from dse.explorer.bench import Bench, BenchRow
from dse.explorer.request import PointRequest
from dse.figures.drawing.chart import Chart
from dse.figures.plot.answer import chart_of
from dse.operations.declare import Operation
from dse.operations.questions import FindCrossover, MapBest, VaryAssumptions, VaryDevice
from dse.questions import common, crossing

AGAINST = Field(
    name="against",
    label="Against",
    default="fp16",
    listed=common_fields.QUANTIZER.listed,
    help="The format that the current design's must beat; where that has it itself, another design's.",
)
MEASURE = Field(
    name="measure",
    label="What must be better",
    default="throughput",
    choices={name: common.MEASURES[name].title for name in crossing.MEASURES},
    help="A decode step counts only where the whole batch runs at once.",
)
WHAT = Field(
    name="what_if",
    label="What if",
    default="sensitivity",
    choices={
        "sensitivity": "Half or twice a number of the device",
        "doubt": "Unsure numbers",
        "cross": "From which batch and prompt on",
        "map": "Best format at each batch and prompt",
    },
)
FIELDS = (MEASURE, AGAINST, WHAT)
#: searches of the crossover lines: each decides every whole number between
BATCHES, INPUTS = (1, 16, 64, 256), (512, 2048, 8192, 32768)
#: the question of each, and how its figure is drawn
_ASKS: dict[str, tuple[type[Operation], Callable[[Chart], dict[str, Any]]]] = {
    "sensitivity": (VaryDevice, figure.tall),
    "doubt": (VaryAssumptions, figure.tall),
    "cross": (FindCrossover, figure.fitted),
    "map": (MapBest, figure.cells),
}


@dataclass(frozen=True)
class WhatIf:
    """A question of the tab: of a design against another, or of a map the best of both and `more`, by a measure."""

    what: str
    design: PointRequest
    against: PointRequest
    measure: str
    more: tuple[PointRequest, ...] = ()

    def operation(self) -> Any:
        """The question as an operation, from which its command and script are made. Raises InputError."""
        kind, _ = _ASKS[self.what]
        named = self._stored(lambda point: point.key_quantizer_text)
        searched = {"batches": BATCHES, "inputs": INPUTS} if kind is FindCrossover else {}
        return request.operation(self.design, kind, measure=self.measure, **named, **searched)

    def run(self) -> Any:
        """The answer, also where files of the reader's own are in it. Raises DseError."""
        return request.with_files(self.operation(), self.design, **self._stored(request.stored)).run()

    def _stored(self, of: Callable[[PointRequest], Any]) -> dict[str, Any]:
        """Formats that are compared, as `of` has them."""
        if self.what != "map":
            return {"against": of(self.against)}
        return {"quantizers": tuple(map(of, (self.against, self.design, *self.more)))}


def show(bench: Bench, row: BenchRow, address: str) -> None:
    """The figure that is chosen: of the design of `row`, or of the formats of all designs."""
    with st.container(horizontal=True):
        for field in (AGAINST, MEASURE):
            widgets.draw(field, width=240)
    what = widgets.tabs(WHAT)
    with widgets.said():
        _show(question_of(bench, row, what), address)


def question_of(bench: Bench, row: BenchRow, what: str) -> WhatIf:
    """The question of the fields, of the design of `row`. Raises InputError."""
    design, others = row.request, [each.request for each in bench.answered]
    against = _with(design, bench.values[AGAINST.key])
    if design.key_quantizer_text == against.key_quantizer_text:  # another design's format, else one that servers run
        usual = _with(design, "fp8" if against.quantizer != "fp8" else "fp16")
        design = next((other for other in others if other.key_quantizer_text != against.key_quantizer_text), usual)
        design = _formatted(row.request, design)
    if what != "map":
        return WhatIf(what, design, against, bench.values[MEASURE.key])
    # the map has batches and prompts of its own
    shortest: dict[str, Any] = {"batch": 1, "input_tokens": max(design.work.prefix_tokens, 1)}
    design, against = (replace(one, work=replace(one.work, **shortest)) for one in (design, against))
    named = {one.key_quantizer_text: _formatted(design, one) for one in others}
    more = tuple(
        one for text, one in named.items() if text not in (design.key_quantizer_text, against.key_quantizer_text)
    )
    return WhatIf(what, design, against, bench.values[MEASURE.key], more)


def _with(design: PointRequest, name: str) -> PointRequest:
    return request.with_quantizer(design, name, uploads.text_of(name))


def _formatted(design: PointRequest, other: PointRequest) -> PointRequest:
    """The design with the format of another's keys."""
    name = other.quantizer if other.quantizer_file.text else other.key_quantizer_text
    return request.with_quantizer(design, name, other.quantizer_file)


@st.cache_data(max_entries=64, ttl="1h", show_spinner="Evaluating…", show_time=True, hash_funcs={WhatIf: repr})
def cached(question: WhatIf) -> Any:
    """The answer to a question. Raises DseError."""
    return question.run()


@st.fragment(parallel=True)
def _show(question: WhatIf, address: str) -> None:
    """The verdict of a question in its own words, and a figure a panel."""
    with widgets.said():
        answer = cached(question)
        at_once = f" at {question.design.work.batch:,} at once" if question.design.work.batch else ""
        head = f"{answer.design}{at_once}: " if question.what in ("sensitivity", "doubt") else ""
        st.markdown(f"**{widgets.escaped(head + '. '.join(answer.verdict))}.**")
        made, chart = downloads.made_by([question.operation()], address), chart_of(answer)
        _, drawn = _ASKS[question.what]
        for i, (place, panel) in enumerate(zip(st.columns(len(chart.panels)), chart.panels, strict=True)):
            title = f"{chart.title.partition(',')[0]}: {panel.title}" if len(chart.panels) > 1 else chart.title
            single = replace(chart, panels=(panel,), title=title, notes=() if i else chart.notes)
            with place:
                downloads.show(f"{question.what}-{i}", single, lambda: answer.table, made, drawn(single))
