"""Pages of HTML that need no network, from the templates of this package and of those above it."""

from functools import cache
from typing import Any

from dse.core.version import VERSION
from dse.figures.drawing import to_plotly
from dse.figures.drawing.chart import Chart


def plotly_js() -> str:
    """The source of plotly.js from the installed package."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def fragment(chart: Chart, div_id: str) -> str:
    """The part of a page that draws a chart, without plotly.js itself."""
    from plotly.io import to_html

    return str(
        to_html(
            to_plotly.figure(chart),
            config=to_plotly.CONFIG,
            include_plotlyjs=False,
            full_html=False,
            div_id=div_id,
            include_mathjax=False,
        )
    )


@cache
def _templates(package: str) -> Any:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, "dse.figures"))]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {  # scripts of plotly are the one thing that is not escaped
        "version": VERSION,
        "js_beside": False,
        "plotly_js": lambda: trusted(plotly_js()),
        "fragment": lambda chart, div_id: trusted(fragment(chart, div_id)),
    }
    return environment


def trusted(drawing: str) -> Any:
    """A `fragment`, for templates: not escaped."""
    from markupsafe import Markup

    return Markup(drawing)


def render(template: str, package: str = "dse.figures", **values: Any) -> str:
    """A page of a template in the folder `templates` of `package`, every value escaped.

    Templates that extend page.html take `title`, and `js_beside` where plotly.min.js lies beside the page.
    """
    return str(_templates(package).get_template(template).render(**values))


def figure_page(chart: Chart, made_by: str, question: str = "", is_beside: bool = False) -> str:
    """A page with one figure and what made it; plotly.js inside it, or in plotly.min.js beside it."""
    return render(
        "figure.html", title=chart.title, chart=chart, made_by=made_by, question=question, js_beside=is_beside
    )
