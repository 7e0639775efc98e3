"""The validation page: claims and measured kernels beside our values, with scatter plots; one file, no network."""

import io
import re
from collections.abc import Callable
from typing import Any

import pandas as pd

from dse.core import files
from dse.figures import FIGURES
from dse.figures.charts.memory_limit import WHOLE
from dse.figures.charts.predicted_measured import points_of
from dse.figures.drawing.chart import Chart
from dse.figures.export import web_page
from dse.measure.study_table import SURE
from dse.report import papers as report_papers
from dse.report import ranking as report_ranking
from dse.report import servers as report_servers
from dse.report import tokens as report_tokens
from dse.validate import accuracy as validate_accuracy
from dse.validate import figures as validate_figures
from dse.validate import ranking
from dse.validate import silicon as validate_silicon
from dse.validate import tokens as validate_tokens
from dse.validate import verdicts as validate
from dse.validate.silicon import Silicon
from dse.validate.verdicts import ClaimRow

PAGE = "validation.html"
#: characters of our value in its cell
MAX_CELL = 60
CLAIM_HEAD = ("verdict", "claim", "where", "published", "ours", "unit", "difference", "tolerance or check")


def write(out: str, progress: Callable[..., Any] | None = None) -> tuple[str, list[ClaimRow]]:
    """Write the page and its tables into directory `out`; return the path of the page and the claims.

    Raises OutputError where the directory cannot be written. A missed claim is no failure.
    """
    with files.publishing(out) as published:
        return _write(published, progress)


def _write(published: files.Publication, progress: Callable[..., Any] | None) -> tuple[str, list[ClaimRow]]:
    rows = validate.claim_rows()
    silicon = validate_silicon.run(progress=progress)
    accuracy = {view.name: validate_accuracy.table(view) for view in validate_accuracy.VIEWS}
    papers = report_papers.tables()
    for name, table in (
        *papers.items(),
        ("claims", pd.DataFrame(validate.to_json(rows))),
        ("silicon", pd.DataFrame(validate_silicon.to_json(silicon))),
        *([("silicon-points", points_of(silicon.scatters))] if silicon.scatters else []),
        ("serving", report_servers.table()),
        ("eviction", validate_tokens.table_7()),
        ("accuracy", pd.concat([table.assign(view=name) for name, table in accuracy.items()])),
        ("ranking", report_ranking.table()),
        ("sinkq-figure-3-batch", validate_figures.sinkq_batches()),
        ("sinkq-figure-3-length", validate_figures.sinkq_lengths()),
    ):
        published.write(f"tables/{name}.csv", _csv(table))
    return str(published.write(PAGE, page(rows, silicon, accuracy, papers).encode())), rows


def _csv(table: pd.DataFrame) -> bytes:
    buffer = io.StringIO()
    table.to_csv(buffer, index=False, lineterminator="\n")
    return buffer.getvalue().encode()


def page(
    rows: list[ClaimRow], silicon: Silicon, accuracy: dict[str, pd.DataFrame], papers: dict[str, pd.DataFrame]
) -> str:
    """The whole page as one document."""
    by_id = {row.id: row for row in rows}
    by_source = {
        source: [row for row in rows if row.source == source] for source in dict.fromkeys(r.source for r in rows)
    }
    ranked = ranking.summary(report_ranking.table())
    return web_page.render(
        "validation.html",
        "dse.report",
        title="Validation of the KV-cache quantization model",
        # how a claim is shown
        shade=_shade,
        shown=validate.shown,
        start=_start,
        summary=validate.summary,
        percent=validate.percent,
        published_number=validate.published_number,
        claims=rows,
        claims_by_source=by_source,
        claim_head=CLAIM_HEAD,
        key=_key(rows),
        claims_chart=FIGURES["claims"].chart(pd.DataFrame(validate.to_json(rows))),
        sinkq_about=validate_figures.ABOUT,
        sinkq_chart=FIGURES["sinkq_figure_3"].chart(
            validate_figures.sinkq_batches(), sinkq_figure_3_length=validate_figures.sinkq_lengths()
        ),
        sinkq_claims=[by_id[name] for name in validate_figures.CLAIMS if name in by_id],
        small_groups=validate_figures.small_groups_against_kivi(),
        papers={
            "whole": WHOLE,
            "tables": list(papers),
            "head": report_papers.TABLE_4_HEAD,
            "table_4": report_papers.table_4(papers["nqkv_table_4"]),
            "charts": {name: FIGURES[name].chart(papers[name]) for name in report_papers.FIGURES},
        },
        silicon_notes=" ".join(f"{note[:1].upper()}{note[1:]}." for note in silicon.notes),
        silicon_head=validate_silicon.HEAD[1:],
        silicon=_silicon(silicon),
        servers_chart=FIGURES["servers_errors"].chart(report_servers.table()),
        servers_head=report_servers.HEAD,
        servers=report_servers.cells(),
        accuracy={name: FIGURES[f"accuracy_{name.replace('-', '_')}"].chart(table) for name, table in accuracy.items()},
        sure=SURE,
        ranking_head=list(map(str, ranked.columns)),
        ranking=ranked.to_numpy(dtype=object).tolist(),
        ranking_numbers=[i for i, name in enumerate(ranked.columns) if name in report_ranking.NUMBERS],
        unlike=report_ranking.unlike(),
        tokens=report_tokens.table_7(),
    )


def _shade(row: ClaimRow) -> str:
    """The class of a row: green, amber or red, or weak where it does not compare two numbers."""
    return row.shade if row.label == row.verdict else "weak"


def _key(rows: list[ClaimRow]) -> list[tuple[ClaimRow, int, str]]:
    """A row of each label, how many there are, and what the label means."""
    return [
        (row, n, validate.MEANINGS[row.verdict] if row.label == row.verdict else validate.WEAKER[row.basis][1])
        for row, n in validate.labels(rows).values()
    ]


def _start(text: str) -> str:
    """A value as a narrow cell shows it: what is long up to its first clause, whole in the line below."""
    if len(text) <= MAX_CELL:
        return text
    return re.split("[:;]", text, maxsplit=1)[0] + " ..."


def _silicon(found: Silicon) -> list[tuple[str, str, list[list[str]], dict[str, Chart]]]:
    """Group rows by device: its name, its best error, its rows as cells, and its scatter plots."""
    points, shown = points_of(found.scatters), []
    for device in dict.fromkeys(row.device for row in found.rows):
        own, drawn = [row for row in found.rows if row.device == device], points[points["device"] == device]
        best = min((row.mean for row in own if row.size_class == "like serving"), default=None)
        charts = {
            kind: FIGURES[f"silicon_{kind}"].chart(drawn)
            for kind in ("attention", "gemm")
            if ((drawn["part"] == "gemm") == (kind == "gemm")).any()
        }
        shown.append(
            (
                device,
                "" if best is None else f": {100 * best:.1f} % at best like serving",
                [validate_silicon.cells(row)[1:] for row in own],
                charts,
            )
        )
    return shown
