"""The figure of an answer (`dse.questions`) or of a front (`dse.pareto_designs`), in Python and in notebooks."""

from typing import Any

from dse import plot_questions, report_front
from dse.pareto_designs import DesignFront
from dse.plot_questions import Answer
from dse.plots import to_plotly
from dse.plots.chart import Chart


def chart_of(found: Answer | DesignFront) -> Chart:
    """The figure as data."""
    return report_front.chart_of(found) if isinstance(found, DesignFront) else plot_questions.chart_of(found)


def figure(found: Answer | DesignFront) -> Any:
    """The plotly figure; that of a front shows its first two objectives, hovering a whole design."""
    return to_plotly.figure(chart_of(found))
