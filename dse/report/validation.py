"""The validation page: claims and measured kernels beside our values, with scatter plots; one file, no network."""

import io
import re

import pandas as pd

from dse.core import files
from dse.core.columns import cells
from dse.core.progress import Progress
from dse.figures import FIGURES
from dse.figures.charts.predicted_measured import points_of
from dse.figures.drawing.chart import Chart
from dse.figures.export import web_page
from dse.report import servers
from dse.report.tokens import table_7_text
from dse.validate import accuracy, silicon, tokens, verdicts
from dse.validate.silicon import Silicon
from dse.validate.verdicts import ClaimRow

PAGE = "validation.html"
#: characters of our value in its cell
MAX_CELL = 60
CLAIM_HEAD = ("verdict", "claim", "where", "published", "ours", "unit", "difference", "tolerance or check")


def write(out: str, progress: Progress | None = None) -> tuple[str, list[ClaimRow]]:
    """Write the page and its tables into directory `out`; return the path of the page and the claims.

    Raises OutputError where the directory cannot be written. A missed claim is no failure.
    """
    with files.publishing(out) as published:
        return _write(published, progress)


def _write(published: files.Publication, progress: Progress | None) -> tuple[str, list[ClaimRow]]:
    rows = verdicts.claim_rows()
    kernels = silicon.run(progress=progress)
    views = {view.name: accuracy.table(view) for view in accuracy.VIEWS}
    for name, table in (
        ("claims", pd.DataFrame(verdicts.to_json(rows))),
        ("silicon", pd.DataFrame(silicon.to_json(kernels))),
        *([("silicon-points", points_of(kernels.scatters))] if kernels.scatters else []),
        ("serving", servers.table()),
        ("eviction", tokens.table_7()),
        ("accuracy", pd.concat([table.assign(view=name) for name, table in views.items()])),
    ):
        published.write(f"tables/{name}.csv", _csv(table))
    return str(published.write(PAGE, page(rows, kernels, views).encode())), rows


def _csv(table: pd.DataFrame) -> bytes:
    buffer = io.StringIO()
    table.to_csv(buffer, index=False, lineterminator="\n")
    return buffer.getvalue().encode()


def page(rows: list[ClaimRow], kernels: Silicon, views: dict[str, pd.DataFrame]) -> str:
    """The whole page as one document."""
    by_source = {
        source: [row for row in rows if row.source == source] for source in dict.fromkeys(r.source for r in rows)
    }
    return web_page.render(
        "validation.html",
        "dse.report",
        title="Validation of the KV-cache quantization model",
        # how a claim is shown
        shade=_shade,
        shown=verdicts.shown,
        start=_start,
        summary=verdicts.summary,
        percent=verdicts.percent,
        published_number=verdicts.published_number,
        claims=rows,
        claims_by_source=by_source,
        claim_head=CLAIM_HEAD,
        key=_key(rows),
        claims_chart=FIGURES["claims"].chart(pd.DataFrame(verdicts.to_json(rows))),
        silicon_notes=" ".join(f"{note[:1].upper()}{note[1:]}." for note in kernels.notes),
        silicon_head=cells(silicon.COLUMNS[1:], [])[0],
        silicon=_silicon(kernels),
        servers_chart=FIGURES["servers_errors"].chart(servers.table()),
        servers=servers.shown(),
        accuracy={name: FIGURES[f"accuracy_{name.replace('-', '_')}"].chart(table) for name, table in views.items()},
        tokens=table_7_text(),
    )


def _shade(row: ClaimRow) -> str:
    """The class of a row: green, amber or red, or weak where it does not compare two numbers."""
    return row.shade if row.label == row.verdict else "weak"


def _key(rows: list[ClaimRow]) -> list[tuple[ClaimRow, int, str]]:
    """A row of each label, how many there are, and what the label means."""
    return [
        (row, n, verdicts.MEANINGS[row.verdict] if row.label == row.verdict else verdicts.WEAKER[row.basis][1])
        for row, n in verdicts.labels(rows).values()
    ]


def _start(text: str) -> str:
    """A value as a narrow cell shows it: what is long up to its first clause, whole in the line below."""
    if len(text) <= MAX_CELL:
        return text
    return re.split("[:;]", text, maxsplit=1)[0] + " ..."


def _silicon(kernels: Silicon) -> list[tuple[str, str, list[list[str]], dict[str, Chart]]]:
    """Group rows by device: its name, its best error, its rows as cells, and its scatter plots."""
    points, shown = points_of(kernels.scatters), []
    for device in dict.fromkeys(row.device for row in kernels.rows):
        rows, drawn = [row for row in kernels.rows if row.device == device], points[points["device"] == device]
        best = min((row.mean for row in rows if row.size_class == "like serving"), default=None)
        charts = {
            kind: FIGURES[f"silicon_{kind}"].chart(drawn)
            for kind in ("attention", "gemm")
            if ((drawn["part"] == "gemm") == (kind == "gemm")).any()
        }
        shown.append(
            (
                device,
                "" if best is None else f": {100 * best:.1f} % at best like serving",
                cells(silicon.COLUMNS[1:], rows)[1:],
                charts,
            )
        )
    return shown
