"""The files of an answer: its figure as HTML, PNG, SVG and PDF, and the table behind it as CSV."""

from collections.abc import Mapping
from types import MappingProxyType

from dse.core import files
from dse.figures.export import image, web_page
from dse.figures.plot.answer import chart_of, figure_of, source_of
from dse.figures.source import BESIDE, beside
from dse.questions.best_map import BestMap
from dse.questions.crossing import Crossing
from dse.questions.effects import Effects
from dse.questions.formats import Formats
from dse.questions.interactivity import Interactivity
from dse.questions.load import UnderLoad
from dse.questions.need import Need, NeedBits
from dse.questions.recommend import Recommendation

Answer = Formats | Crossing | Need | NeedBits | Effects | BestMap | UnderLoad | Interactivity | Recommendation


def write(out: str, answer: Answer, command: str, more: Mapping[str, bytes] = MappingProxyType({})) -> str:
    """Write figure and table of an answer, and `more` files, into directory `out`; return the path of the page.

    Raises OutputError where the directory cannot be written.
    """
    name, source, chart = name_of(answer), source_of(answer), chart_of(answer)
    with files.publishing(out) as published:
        published.write(f"{name}.csv", source.table.to_csv(index=False, lineterminator="\n").encode())
        published.write(f"{name}{BESIDE}", beside(source.about))
        for other, content in more.items():
            published.write(other, content)
        for kind, content in image.images(chart, command).items():
            published.write(f"{name}.{kind}", content)
        published.write("plotly.min.js", web_page.plotly_js().encode())
        page = web_page.render(
            "answer.html",
            title=chart.title,
            chart=chart,
            name=name,
            text=answer.text(),
            made_by=command,
            js_beside=True,
        )
        return str(published.write(f"{name}.html", page.encode()))


def name_of(answer: Answer) -> str:
    """The stem of the files of an answer."""
    return f"need-{answer.what}" if isinstance(answer, Need) else figure_of(answer).name.replace("_", "-")
