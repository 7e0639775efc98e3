"""The files of a measurement for people: a page with its figures, and the figures as PNG, SVG and PDF."""

import html
from collections.abc import Callable

import pandas as pd

from dse import __version__, files, measure_table, report_static, web_page
from dse.measure_parts import PAGE, TABLE
from dse.measure_run import Found
from dse.plots import measured_errors
from dse.plots.chart import Chart

#: stem -> what draws it
FIGURES: dict[str, Callable[..., Chart | None]] = {
    "error_bits": measured_errors.error_bits,
    "error_context": measured_errors.error_context,
    "error_layer": measured_errors.error_layer,
}


def write(found: Found, command: str, static: str = "auto") -> str:
    """Write figures and page into the measurement's directory; the path of the page. Raises OutputError."""
    summary = pd.DataFrame(found.summary["rows"])
    drawn = {name: draw(summary, found.table, found.file.data.synthetic) for name, draw in FIGURES.items()}
    charts = {name: chart for name, chart in drawn.items() if chart}
    with report_static.painter(static) as brush:
        for name, chart in charts.items():
            for kind, content in brush.images(chart, command).items():
                files.write(found.folder / f"{name}.{kind}", content)
    parts = [f"<h1>{html.escape(_title(found))}</h1>"]
    for name, chart in charts.items():
        links = " ".join(f'<a href="{name}.{kind}">{kind.upper()}</a>' for kind in report_static.FORMATS)
        parts.append(
            f'<figure><h2>{html.escape(chart.title)}</h2>\n<figcaption>{links}</figcaption>\n<div class="scroll">'
            f'<div class="paper">{web_page.fragment(chart, name)}</div></div></figure>'
        )
    parts.append(
        f"<pre>{html.escape(measure_table.text(found.summary))}</pre>\n"
        f'<p class="soft">Table: <a href="{TABLE}">Parquet</a>. Made by <code>{html.escape(command)}</code>, '
        f"dse {html.escape(__version__)}.</p>"
    )
    head = (
        f"<script>{web_page.plotly_js()}</script>\n"
        "<style>pre { overflow-x: auto; font-size: 0.8rem; }</style>\n"
    )  # fmt: skip
    page = web_page.document(_title(found), head, "\n".join(parts))
    files.write(found.folder / PAGE, page.encode())
    files.sync(found.folder)
    return str(found.folder / PAGE)


def _title(found: Found) -> str:
    return f"Measured errors on {found.file.data.name}" + (" (synthetic)" if found.file.data.synthetic else "")
