"""The figure of an answer (`dse.questions`, `dse mix`) or of a front (`dse pareto`), in Python and in notebooks."""

from dse.core.errors import InputError
from dse.figures import FIGURES, Figure
from dse.figures.drawing.chart import Chart
from dse.figures.source import Source


def figure_of(answer: object) -> Figure:
    """The figure that draws answers of that type. Raises InputError where none does."""
    for fig in FIGURES.values():
        if fig.answer is type(answer):
            return fig
    raise InputError(f"{type(answer).__name__}: is no answer with a figure of its own: name a kind that draws it")


def source_of(answer: object) -> Source:
    """The table behind the figure of an answer, and what its figure says beside it."""
    to_source = figure_of(answer).source_of
    assert to_source is not None
    return to_source(answer)


def chart_of(answer: object) -> Chart:
    """The figure as data."""
    chart = figure_of(answer).drawn(source_of(answer))
    assert chart is not None
    return chart
