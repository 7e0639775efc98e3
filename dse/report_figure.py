"""The figure of an answer (`dse.questions`) or of a front (`dse.pareto_designs`), in Python and in notebooks."""

from typing import Any

from dse import report_front, report_question
from dse.pareto_designs import DesignFront
from dse.plots import to_plotly
from dse.plots.chart import Chart
from dse.report_question import Answer


def chart_of(found: Answer | DesignFront) -> Chart:
    """The figure as data."""
    return report_front.chart_of(found) if isinstance(found, DesignFront) else report_question.chart_of(found)


def figure(found: Answer | DesignFront) -> Any:
    """The plotly figure; that of a front shows its first two objectives, hovering a whole design."""
    return to_plotly.figure(chart_of(found))
