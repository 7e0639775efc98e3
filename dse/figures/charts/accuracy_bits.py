"""Published accuracy or perplexity against effective bits, a panel per model: a figure for each view of the papers."""

from functools import partial

from dse.core.errors import InputError
from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Chart, Panel
from dse.figures.registry import by_validation, figure
from dse.figures.source import Source
from dse.validate.accuracy import VIEWS, AccuracyView

ACCURACY = by_validation("accuracy")


def chart(view: AccuracyView, source: Source) -> Chart:
    """A panel per model: the rows of a view, or all of a table without the column `view`."""
    table = source.table[source.table["view"] == view.name] if "view" in source.table else source.table
    if table.empty:
        raise InputError(f"view = {view.name}: no row has it: is this accuracy.csv of `{ACCURACY.command}`?")
    axis = view.axis
    looks = style.of_methods(list(dict.fromkeys(table["method"])))
    bits = axes.log2("effective bits", "bit", table["effective_bits"])
    panels = []
    for model in dict.fromkeys(table["model"]):
        scores = table[table["model"] == model]
        series = []
        for method in dict.fromkeys(scores["method"]):
            points = scores[scores["method"] == method]
            texts = (
                f"{model}, {method}{', ' + row.config if row.config else ''}\n{axis} {row.value:.2f}"
                f"{'' if row.n_tasks == 1 else f', mean of {row.n_tasks} tasks'}\n"
                f"{row.effective_bits:.3f} bit an element ({row.quantizer})"
                for row in points.itertuples()
            )
            places = points["effective_bits"], points["value"]
            series.append(marks.points(method, *places, looks[method], texts, size=0.75))
        y = axes.around(axis, view.unit, list(map(float, scores["value"])))
        panels.append(Panel(str(model), bits, y, tuple(series)))
    return Chart(
        view.title,
        panels=tuple(panels),
        n_columns=min(3, len(panels)),
        panel_height_pt=110,
        notes=(
            f"{view.note} Values as the paper prints them, bits as this tool computes them; axes do not start at 0.",
        ),
    )


for _i, _view in enumerate(VIEWS):
    figure(
        f"accuracy_{_view.name.replace('-', '_')}",
        f"{_view.title}.",
        ACCURACY,
        ("model", "method", "config", "quantizer", "effective_bits", "value", "n_tasks"),
        order=350 + _i,
    )(partial(chart, _view))
