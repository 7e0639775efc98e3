"""The files of an answer: its figure as HTML, PNG, SVG and PDF, and the table behind it as CSV."""

import html

from dse import files, plot_questions, report_static, web_page
from dse.plot_questions import Answer
from dse.plot_read import BESIDE, beside
from dse.questions.need import Need


def write(out: str, answer: Answer, command: str, static: str = "auto") -> str:
    """Write figure and table of an answer into directory `out`; return the path of the page.

    Raises InputError for a `static` that cannot draw, OutputError where the directory cannot be written.
    """
    report_static.check(static)
    folder = files.prepare(out)
    name, table, about = name_of(answer), plot_questions.table_of(answer), plot_questions.about(answer)
    chart = plot_questions.chart(plot_questions.kind_of(answer), table, about)
    files.write(folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n").encode())
    files.write(folder / f"{name}{BESIDE}", beside(about))
    with report_static.painter(static) as brush:
        for kind, content in brush.images(chart, command).items():
            files.write(folder / f"{name}.{kind}", content)
    files.write(folder / "plotly.min.js", web_page.plotly_js().encode())
    drawing = web_page.fragment(chart, f"figure-{name}")
    body = (
        f'<div class="scroll"><div class="paper">{drawing}</div></div>\n'
        f"<pre>{html.escape(answer.text())}</pre>\n"
        f'<p class="soft">Table: <a href="{name}.csv">CSV</a>.</p>\n{web_page.made_by_line(command)}'
    )
    head = '<script src="plotly.min.js"></script>\n<style>pre { overflow-x: auto; font-size: 0.8rem; }</style>\n'
    page = web_page.document(chart.title, head, body, scripts="'self' file: ")
    files.write(folder / f"{name}.html", page.encode())
    files.sync(folder)
    return str(folder / f"{name}.html")


def name_of(answer: Answer) -> str:
    """The stem of the files of an answer."""
    return f"need-{answer.what}" if isinstance(answer, Need) else plot_questions.kind_of(answer).replace("_", "-")
