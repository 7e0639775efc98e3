"""The validation page: claims and measured kernels beside our values, with scatter plots; one file, no network."""

import html
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from dse import (
    __version__,
    catalog,
    files,
    report_papers,
    report_ranking,
    report_tokens,
    validate,
    validate_accuracy,
    validate_figures,
    validate_silicon,
    validate_tokens,
    web_page,
)
from dse.plots import accuracy_bits, claims_published, predicted_measured, sinkq_figure
from dse.plots.chart import Chart
from dse.validate import ClaimRow
from dse.validate_silicon import Scatter, Silicon, SiliconRow

PAGE = "validation.html"
#: half of the points that a scatter plot shows at most; the tables count all
MAX_POINTS = 500
#: characters of our value in its cell
MAX_CELL = 60
_STYLE = """<style>
.shade { white-space: nowrap; } .shade b { display: inline-block; min-width: 1.1rem; text-align: center;
  border-radius: 3px; margin-right: 0.4rem; color: #fff; }
.green b { background: #00704f; } .amber b { background: #8f5b00; } .red b { background: #b3261e; }
.shade.weak b { background: none; color: var(--text); border: 1px solid var(--text); line-height: 1.2; }
.claims { width: 100%; } .claims tr.top td { border-bottom: 0; font-weight: bold; }
.claims tr.top td[rowspan] { border-bottom: 1px solid var(--line); font-weight: normal; }
td.why { color: var(--soft); padding-top: 0; } td.what { min-width: 13rem; } .claims td { max-width: 22rem; }
.claims td.why { max-width: none; } .claims .shade { white-space: normal; display: inline-block; min-width: 6.5rem; }
tbody.green { border-left: 4px solid #00704f; } tbody.amber { border-left: 4px dashed #8f5b00; }
tbody.red { border-left: 4px double #b3261e; } tbody.weak { border-left: 4px dotted var(--soft); }
</style>
"""


def write(out: str, progress: Callable[..., Any] | None = None) -> tuple[str, list[ClaimRow]]:
    """Write the page and its tables into directory `out`; return the path of the page and the claims.

    Raises OutputError where the directory cannot be written. A missed claim is no failure.
    """
    folder = files.prepare(out)
    rows = validate.claim_rows()
    silicon = validate_silicon.run(progress=progress)
    accuracy = {view.name: validate_accuracy.table(view) for view in validate_accuracy.VIEWS}
    papers = report_papers.tables()
    ranking = report_ranking.table()
    for name, table in (
        *papers.items(),
        ("claims", pd.DataFrame(validate.to_json(rows))),
        ("silicon", pd.DataFrame(validate_silicon.to_json(silicon))),
        *([("silicon-points", points_of(silicon.scatters))] if silicon.scatters else []),
        ("eviction", validate_tokens.table_7()),
        ("accuracy", pd.concat([table.assign(view=name) for name, table in accuracy.items()])),
        ("ranking", ranking),
        ("sinkq-figure-3-batch", validate_figures.sinkq_batches()),
        ("sinkq-figure-3-length", validate_figures.sinkq_lengths()),
    ):
        files.write(folder / "tables" / f"{name}.csv", _csv(table))
    files.write(folder / PAGE, page(rows, silicon, accuracy, papers).encode())
    files.sync(folder)
    return str(folder / PAGE), rows


def _csv(table: pd.DataFrame) -> bytes:
    buffer = io.StringIO()
    table.to_csv(buffer, index=False, lineterminator="\n")
    return buffer.getvalue().encode()


def page(
    rows: list[ClaimRow], silicon: Silicon, accuracy: dict[str, pd.DataFrame], papers: dict[str, pd.DataFrame]
) -> str:
    """The whole page as one document."""
    body = [
        "<h1>Validation: published and measured numbers beside ours</h1>",
        f'<p class="soft">{html.escape(validate.summary(rows))}. Nothing is fitted to a claim but the copies of '
        "nqkv-t4-slower, as that row says. A red row is where our "
        "model and a measurement differ by more than the row allows; the reason stands beside it. A framed mark "
        "compares no two numbers.</p>",
        _key(rows),
        '<h2 id="claims">Published claims</h2>',
        _paper(claims_chart(rows), "claims-scatter"),
        *(_claims(source, [row for row in rows if row.source == source])
          for source in dict.fromkeys(row.source for row in rows)),
        '<h2 id="figures">Figures of the papers, as modelled</h2>',
        *_sinkq_figure(rows),
        *report_papers.parts(papers),
        '<h2 id="silicon">Measured kernels</h2>',
        _silicon(silicon),
        '<h2 id="accuracy">Published accuracy against effective bits</h2>',
        '<p class="soft">Measured by the papers\' authors, not by this tool; bits are ours. Methods without a '
        'quantizer here (ZipCache) are left out; token eviction has its own table below. Table: <a '
        'href="tables/accuracy.csv">CSV</a>.</p>',
        *_accuracy(accuracy),
        *report_ranking.parts(),
        '<h3 id="tokens">Dropping tokens or dropping bits</h3>',
        report_tokens.table_7(),
        "<h2>Made by</h2>",
        f"<p><code>dse validate report</code><br>dse {html.escape(__version__)}. The same as text: "
        "<code>dse validate claims</code>, <code>dse validate silicon</code>.</p>",
    ]  # fmt: skip
    head = f"<script>{web_page.plotly_js()}</script>\n{_STYLE}"
    return web_page.document("Validation of the KV-cache quantization model", head, "\n".join(body))


def _mark(row: ClaimRow) -> str:
    return f'<span class="shade {_shade(row)}"><b>{row.mark}</b>{html.escape(row.label)}</span>'


def _shade(row: ClaimRow) -> str:
    """The class of a row: green, amber or red, or weak where it does not compare two numbers."""
    return row.shade if row.label == row.verdict else "weak"


def _key(rows: list[ClaimRow]) -> str:
    lines = []
    for row, n in validate.labels(rows).values():
        meaning = validate.MEANINGS[row.verdict] if row.label == row.verdict else validate.WEAKER[row.basis][1]
        lines.append(f"<tr><td>{_mark(row)}</td><td class=n>{n}</td><td>{html.escape(meaning)}</td></tr>")
    head = _head(("verdict", "claims", "meaning"), (1,))
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{"".join(lines)}</tbody></table></div>'


def _head(cells: Sequence[str], numbers: Sequence[int]) -> str:
    marks = "".join(
        f'<th scope="col"{" class=n" if i in numbers else ""}>{html.escape(cell)}</th>' for i, cell in enumerate(cells)
    )
    return f"<tr>{marks}</tr>"


_CLAIM_HEAD = ("verdict", "claim", "where", "published", "ours", "unit", "difference", "tolerance or check")


def _claims(source: str, rows: list[ClaimRow]) -> str:
    """The claims of a document: a group of two rows each, numbers and reason."""
    groups = []
    for row in rows:
        right = [validate.published_number(row.published) is not None, isinstance(row.ours, int | float)]
        published, ours = (" class=n" if number else "" for number in right)
        cells = [
            f'<td rowspan="2">{_mark(row)}</td>',
            f'<td class="what">{html.escape(row.quantity)}</td>',
            f"<td>{html.escape(row.where)}</td>",
            f"<td{published}>{html.escape(row.published)}</td>",
            f"<td{ours}>{html.escape(_start(validate.shown(row.ours)))}</td>",
            f"<td>{html.escape(row.unit)}</td>",
            f"<td class=n>{validate.percent(row.difference)}</td>",
            f"<td>{html.escape(row.compared)}</td>",
        ]
        reason = f"<code>{html.escape(row.id)}</code>: {html.escape(row.reason)}"
        whole = validate.shown(row.ours)
        if _start(whole) != whole:
            reason += f"<br>Ours: {html.escape(whole)}"
        groups.append(
            f'<tbody class="{_shade(row)}" id="{html.escape(row.id)}"><tr class="top">{"".join(cells)}</tr>\n'
            f'<tr><td class="why" colspan="{len(_CLAIM_HEAD) - 1}">{reason}</td></tr></tbody>'
        )
    is_open = " open" if any(row.shade == "red" for row in rows) else ""
    return (
        f"<details{is_open}><summary>{html.escape(source)}: {html.escape(validate.summary(rows))}</summary>\n"
        f'<div class="scroll"><table class="claims"><thead>{_head(_CLAIM_HEAD, (3, 4, 6))}</thead>\n'
        f"{chr(10).join(groups)}</table></div></details>"
    )


def _start(text: str) -> str:
    """A value as a narrow cell shows it: what is long up to its first clause, whole in the line below."""
    if len(text) <= MAX_CELL:
        return text
    return re.split("[:;]", text, maxsplit=1)[0] + " ..."


def sinkq_chart(batches: pd.DataFrame, lengths: pd.DataFrame) -> Chart:
    """SinkQ's Figure 3 of the two tables of `validate_figures`."""
    by_batch, by_length = (
        catalog.device(name).name for name in (validate_figures.DEVICE, validate_figures.LENGTH_DEVICE)
    )
    return sinkq_figure.chart(batches, lengths, by_batch, f"{by_length}, batch 1")


def _sinkq_figure(rows: list[ClaimRow]) -> list[str]:
    """SinkQ's Figure 3 with what the paper prints of it beside ours."""
    chart = sinkq_chart(validate_figures.sinkq_batches(), validate_figures.sinkq_lengths())
    found = {row.id: row for row in rows}
    lines = "\n".join(
        f"<tr><td>{_mark(row)}</td><td>{html.escape(row.quantity)}</td><td>{html.escape(row.published)}</td>"
        f"<td>{html.escape(validate.shown(row.ours))}</td></tr>"
        for name in validate_figures.CLAIMS if (row := found.get(name))
    )  # fmt: skip
    return [
        f'<p class="soft">{validate_figures.ABOUT} Tables: <a href="tables/sinkq-figure-3-batch.csv">by batch</a>, '
        '<a href="tables/sinkq-figure-3-length.csv">by length</a>.</p>',
        _paper(chart, "sinkq-figure-3"),
        f'<div class="scroll"><table><thead>{_head(("verdict", "claim", "published", "ours"), ())}</thead>'
        f"<tbody>{lines}</tbody></table></div>",
        f'<p class="soft">{html.escape(validate_figures.small_groups_against_kivi())}</p>',
    ]


def claims_chart(rows: list[ClaimRow]) -> Chart:
    """Ours over published, for claims that are one number above 0 on both sides."""
    return claims_of(pd.DataFrame(validate.to_json(rows)))


def claims_of(table: pd.DataFrame) -> Chart:
    """The same of a table as it is written: columns id, source, published, ours, unit, verdict, basis."""
    points = [
        {"id": row.id, "document": short(row.source), "published": number, "ours": ours,
         "ratio": ours / number, "unit": row.unit, "verdict": row.verdict, "is_input": row.basis == "input"}
        for row in table.itertuples()
        if (number := validate.published_number(str(row.published))) and number > 0
        and (ours := _above_zero(row.ours))
    ]  # fmt: skip
    columns = ["id", "document", "published", "ours", "ratio", "unit", "verdict", "is_input"]
    return claims_published.chart(pd.DataFrame(points, columns=columns))


def _above_zero(value: Any) -> float:
    """The number of a cell, read from a file or not; 0 where it is none above 0."""
    try:
        return max(float(value), 0.0)
    except (TypeError, ValueError):
        return 0.0


def short(source: str) -> str:
    """A document's name in a figure."""
    return "textbook" if "textbook" in source else source.split(":")[0]


def _paper(chart: Chart, name: str) -> str:
    return f'<div class="scroll"><div class="paper">{web_page.fragment(chart, name)}</div></div>'


def _silicon(found: Silicon) -> str:
    notes = " ".join(f"{note[:1].upper()}{note[1:]}." for note in found.notes)
    parts = [
        f'<p class="soft">{html.escape(notes)} Errors are means of |predicted / measured - 1|; naive is the bytes over '
        'the peak bandwidth. Table: <a href="tables/silicon.csv">CSV</a>.</p>'
    ]
    for device in dict.fromkeys(row.device for row in found.rows):
        own = [row for row in found.rows if row.device == device]
        charts = [
            _paper(silicon_chart(device, scatters), f"silicon-{device.lower()}-{kind}")
            for kind in ("attention", "gemm")
            if (
                scatters := [s for s in found.scatters if s.device == device and (s.part == "gemm") == (kind == "gemm")]
            )
        ]
        best = min((row.mean for row in own if row.size_class == "like serving"), default=None)
        shown = "" if best is None else f": {100 * best:.1f} % at best like serving"
        parts.append(
            f"<details><summary>{html.escape(device)}{shown}</summary>\n{_silicon_table(own)}\n{chr(10).join(charts)}"
            "</details>"
        )
    return "\n".join(parts)


def _silicon_table(rows: list[SiliconRow]) -> str:
    numbers = (3, 4, 5, 6)
    lines = "\n".join(
        "<tr>" + "".join(
            f"<td{' class=n' if i in numbers else ''}>{html.escape(cell)}</td>"
            for i, cell in enumerate(validate_silicon.cells(row)[1:])
        ) + "</tr>"
        for row in rows
    )  # fmt: skip
    head = _head(validate_silicon.HEAD[1:], numbers)
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{lines}</tbody></table></div>'


_POINTS = ("device", "stack", "part", "measured_s", "predicted_s", "held_out")


def points_of(scatters: Sequence[Scatter]) -> pd.DataFrame:
    """What the scatter plots of measured kernels show, a row a point."""
    drawn = [_drawn(scatter) for scatter in scatters]
    columns = [pd.DataFrame({name: getattr(one, name) for name in _POINTS}) for one in drawn]
    return pd.concat(columns, ignore_index=True) if columns else pd.DataFrame(columns=list(_POINTS))


def scatters_of(table: pd.DataFrame) -> list[Scatter]:
    """The scatter plots behind such a table."""
    return [
        Scatter(str(device), str(stack), str(part), *(own[name].to_numpy() for name in _POINTS[3:]))
        for (device, stack, part), own in table.groupby(list(_POINTS[:3]), sort=False)
    ]


def _drawn(scatter: Scatter) -> Scatter:
    """The same with every so many points, at most twice MAX_POINTS."""
    cut = slice(None, None, max(1, -(-len(scatter.measured_s) // (2 * MAX_POINTS))))
    return replace(
        scatter, measured_s=scatter.measured_s[cut], predicted_s=scatter.predicted_s[cut],
        held_out=scatter.held_out[cut],
    )  # fmt: skip


def silicon_chart(device: str, scatters: list[Scatter]) -> Chart:
    """Predicted against measured times of a device, a panel per stack and part; thinned to MAX_POINTS."""
    parts = []
    for scatter in map(_drawn, scatters):
        name = f"{scatter.stack}, {_PARTS.get(scatter.part, scatter.part)}"
        parts.append((name, scatter.measured_s, scatter.predicted_s, scatter.held_out))
    found = predicted_measured.chart(f"{device}: predicted against measured", parts)
    note = f"Every so many rows are drawn, at most {2 * MAX_POINTS:,} a panel; the table counts all held-out ones. "
    return replace(found, notes=(note + "Rows inside the last-level cache are predicted with its own bandwidth.",))


_PARTS = {"attention": "attention, 16 bits", "kv.fp8": "attention, FP8", "gemm": "matrix products"}


def _accuracy(tables: dict[str, pd.DataFrame]) -> list[str]:
    return [
        _paper(accuracy_bits.chart(view.title, view.axis, view.unit, view.note, tables[view.name]), f"acc-{view.name}")
        for view in validate_accuracy.VIEWS
    ]
