"""Other conditions: the best format over batch and prompt, crossovers, and the numbers that a result rests on."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import streamlit as st

from dse.core.field import Field
from dse.explorer import common_fields, downloads, figure, request, uploads, widgets
from dse.explorer.bench import Bench, BenchRow
from dse.explorer.fragments import part
from dse.explorer.request import PointRequest
from dse.explorer.uploads import NO_FILE, FileText
from dse.figures.drawing.chart import Chart
from dse.figures.plot.answer import chart_of
from dse.operations.questions import FindCrossover, MapBest, VaryAssumptions, VaryDevice
from dse.questions import best_map, common, crossing, doubt, sensitivity
from dse.questions.common import QuestionAnswer
from dse.questions.effects import Effects

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
_WAIT = "Searching: each line decides every whole number"


@dataclass(frozen=True)
class CrossoverRequest:
    """The questions of the page: a design, what it is compared with, and by which measure.

    `files` are name and text of loaded plans by their names in the lists.
    """

    design: PointRequest
    quantizers: tuple[str, ...]
    against: str
    measure: str
    files: tuple[tuple[str, FileText], ...] = ()

    def stored(self, name: str) -> PointRequest:
        """The design with another quantizer."""
        return request.with_quantizer(self.design, name, dict(self.files).get(name, NO_FILE))


def show(bench: Bench, row: BenchRow, address: str) -> None:
    """The figure that is chosen: of the design of `row`, or of the formats of all designs."""
    with st.container(horizontal=True):
        for field in (AGAINST, MEASURE):
            widgets.draw(field, width=240)
    what = widgets.tabs(WHAT)
    with widgets.said():
        _DRAWN[what](crossover_of(bench, row), address)


def crossover_of(bench: Bench, row: BenchRow) -> CrossoverRequest:
    """The question of the fields, of the design of `row`. Raises InputError."""
    against, design = bench.values[AGAINST.key], row.request
    names = list(dict.fromkeys((against, *(_stored(each.request) for each in bench.answered))))
    if _stored(design) == against:  # of another design's format, else of one that servers run
        names.append("fp8" if against != "fp8" else "fp16")
        design = request.with_quantizer(design, names[1], uploads.text_of(names[1]))
    files = tuple((name, file) for name in names if (file := uploads.text_of(name)).text)
    return CrossoverRequest(design, tuple(dict.fromkeys(names)), against, bench.values[MEASURE.key], files)


def _stored(point: PointRequest) -> str:
    """Format of the keys, of a loaded plan its name in the lists."""
    return point.quantizer if point.quantizer_file.text else point.key_quantizer_text


def _anywhere(design: PointRequest) -> PointRequest:
    """The design at the smallest batch and prompt: what the map is cached by, which has its own."""
    shortest = max(design.work.prefix_tokens, 1)
    return replace(design, work=replace(design.work, batch=1, input_tokens=shortest))


@part
def show_map(asked: CrossoverRequest, address: str) -> None:
    """The best quantizer at each batch and prompt length."""
    everywhere = replace(asked, design=request.unquantized(_anywhere(asked.design)))
    with widgets.said():
        answer = cached_map(everywhere)
        made = downloads.made_by([operations(asked)["map"]], address)
        chart = chart_of(answer)
        downloads.show("map", chart, lambda: answer.table, made, drawn=figure.cells(chart))


@part
def show_sensitivity(asked: CrossoverRequest, address: str) -> None:
    """The result where each number of the device is halved and doubled."""
    with widgets.said():
        _tornado("sensitivity", cached_sensitivity(asked), asked, address)


@part
def show_doubt(asked: CrossoverRequest, address: str) -> None:
    """The numbers that move a result, or decide between two designs, within their ranges."""
    with widgets.said():
        _tornado("doubt", cached_doubt(asked), asked, address)


def _tornado(name: str, answer: Effects, crossover: CrossoverRequest, address: str) -> None:
    """The verdict as the numbers are, and effects of numbers, a figure a design."""
    said = ". ".join(answer.verdict)
    st.markdown(f"**{widgets.escaped(f'{answer.design}: {said}.')}**")
    _panels(name, answer, crossover, address, figure.tall)


def _panels(
    name: str, answer: QuestionAnswer, crossover: CrossoverRequest, address: str, drawn: Callable[[Chart], Any]
) -> None:
    made, chart = downloads.made_by([operations(crossover)[name]], address), chart_of(answer)
    for i, (place, panel) in enumerate(zip(st.columns(len(chart.panels)), chart.panels, strict=True)):
        title = f"{chart.title.partition(',')[0]}: {panel.title}"
        single = replace(chart, panels=(panel,), title=title, notes=() if i else chart.notes)
        with place:
            downloads.show(f"{name}-{i}", single, lambda: answer.table, made, drawn=drawn(single))


@st.fragment(parallel=True)
def show_lines(asked: CrossoverRequest, address: str) -> None:
    """From which batch at a prompt, and from which prompt at a batch, the quantizer pays; takes seconds."""
    with widgets.said(), st.spinner(_WAIT):
        _panels("cross", cached_lines(replace(asked, quantizers=())), asked, address, figure.fitted)


_DRAWN: dict[str, Callable[[CrossoverRequest, str], None]] = {
    "sensitivity": show_sensitivity,
    "doubt": show_doubt,
    "cross": show_lines,
    "map": show_map,
}


def _design(point: PointRequest) -> common.Candidate:
    """A design of the page. Raises InputError."""
    return common.Candidate(point.device_spec(), point.plan())


_HASHES: dict[str | type[Any], Callable[[Any], Any]] = {CrossoverRequest: repr}


@st.cache_data(max_entries=32, ttl="1h", show_spinner=False, hash_funcs=_HASHES)
def cached_map(asked: CrossoverRequest) -> best_map.BestMap:
    """The map of the quantizers. Raises DseError."""
    designs = [_design(asked.stored(name)) for name in asked.quantizers]
    return best_map.best_map(designs, asked.design.work, common.measure(asked.measure))


@st.cache_data(max_entries=32, ttl="1h", show_spinner=False, hash_funcs=_HASHES)
def cached_sensitivity(asked: CrossoverRequest) -> sensitivity.Sensitivity:
    """The design's result, or its lead over the other's, at half and twice each number. Raises DseError."""
    first, *other = _compared(asked)
    measure = common.measure(asked.measure)
    return sensitivity.sensitivity(first, asked.design.work, measure, other[0] if other else None)


@st.cache_data(max_entries=32, ttl="1h", show_spinner=False, hash_funcs=_HASHES)
def cached_doubt(asked: CrossoverRequest) -> doubt.Doubt:
    """The numbers that the design's result, or its lead over the other's, rests on. Raises DseError."""
    designs = _compared(asked)
    return doubt.doubt(
        designs[0],
        asked.design.work,
        common.measure(asked.measure),
        designs[1] if len(designs) > 1 else None,
        as_measured=[doubt.with_measured_bits(design) for design in designs],
    )


def _compared(crossover: CrossoverRequest) -> list[common.Candidate]:
    """The design and the one that it is compared with, where that is another. Raises InputError."""
    first, other = _design(crossover.design), _design(crossover.stored(crossover.against))
    return [first] if first == other else [first, other]


@st.cache_data(max_entries=32, ttl="1h", show_spinner=False, hash_funcs=_HASHES)
def cached_lines(asked: CrossoverRequest) -> crossing.Crossing:
    """Where the design pays against the other. Raises DseError."""
    return crossing.crossing(
        _design(asked.design),
        _design(asked.stored(asked.against)),
        asked.design.work,
        common.measure(asked.measure, crossing.MEASURES),
        BATCHES,
        INPUTS,
    )


def operations(asked: CrossoverRequest) -> dict[str, Any]:
    """The questions as operations, from which their commands and scripts are made. Raises InputError."""
    names = tuple(asked.stored(name).key_quantizer_text for name in asked.quantizers)
    against = asked.stored(asked.against).key_quantizer_text
    ask = partial(request.operation, asked.design, measure=asked.measure)
    return {
        "map": ask(MapBest, quantizers=names),
        "sensitivity": ask(VaryDevice, against=against),
        "doubt": ask(VaryAssumptions, against=against),
        "cross": ask(FindCrossover, against=against, batches=BATCHES, inputs=INPUTS),
    }
