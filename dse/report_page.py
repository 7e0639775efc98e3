"""The report's HTML: one page that needs no network."""

import html
from dataclasses import astuple
from typing import Any

import pandas as pd

from dse import __version__, report_tokens, units
from dse.plots import FIGURES, Figure
from dse.plots.rows import assumption_note, error_notes, run_notes
from dse.report_summary import answers, baseline, devices
from dse.tables import Request
from dse.web_page import document, plotly_js

#: rows of results shown on the page; the files have all
MAX_ROWS = 2000
#: columns of the page's table: (column, header, unit shown, size of that unit); "" where text
_COLUMNS = (
    ("system", "system", "", 0), ("device", "device", "", 0), ("quantizer", "quantizer", "", 0),
    ("batch", "batch", "seqs", 1), ("throughput_tokens_per_s", "throughput", "token/s", 1),
    ("decode_step_s", "decode step", "ms", units.to_base(1, "ms")), ("running_batch", "at once", "seqs", 1),
    ("max_batch", "largest batch", "seqs", 1), ("kv_bytes", "KV", "GB", units.to_base(1, "GB")),
    ("weight_bytes", "weights", "GB", units.to_base(1, "GB")), ("stored_bits", "stored", "bit/element", 1),
    ("sqnr_db", "SQNR, measured", "dB", 1),
    ("joules_per_token", "energy", "J/token", 1), ("bound", "bound by", "", 0),
)  # fmt: skip


def page(
    request: Request, found: dict[str, pd.DataFrame], fragments: dict[str, str], drawn_by: str, command: str
) -> str:
    """The whole report as one document."""
    results = found["results"]
    lengths = f"{request.input_tokens:,} prompt and {request.output_tokens:,} generated tokens a request"
    parts = [
        "<h1>KV-cache quantization: throughput against capacity</h1>",
        f'<p class="soft">{_count(len(request.models), "model")}, {_count(len(request.systems), "system")}, batch '
        f"{min(request.batches):,} to {max(request.batches):,}, {lengths}. GB is 10<sup>9</sup> bytes. "
        f"{_kind(results)}; "
        f"the prompt is included in the throughput, accuracy is not part of it. "
        f"{html.escape(' '.join((*run_notes(results), *error_notes(results), assumption_note(results))))}</p>",
        _summary(request, results),
        "<h2>Figures</h2>",
        f'<p class="soft">PNG, SVG and PDF drawn by {drawn_by}.</p>',
        *(_figure(figure, fragments[figure.name]) + _beside(figure.name) for figure in FIGURES.values()),
        _results(request, results),
        _devices(request),
        "<h2>Made by</h2>",
        f"<p><code>{html.escape(command)}</code><br>dse {html.escape(__version__)}. The formula and sources behind any "
        "number: <code>dse point ... --explain NAME</code>.</p>",
    ]
    return document("KV-cache quantization report", f"<script>{plotly_js()}</script>\n", "\n".join(parts))


def _count(n: int, name: str) -> str:
    return f"{n} {name}" + ("" if n == 1 else "s")


def _figure(figure: Figure, drawing: str) -> str:
    kinds = ("html", "png", "svg", "pdf")
    links = " ".join(f'<a href="figures/{figure.name}.{kind}">{kind.upper()}</a>' for kind in kinds)
    stem = "report" if figure.table == "results" else f"tables/{figure.table}"
    return (
        f'<figure>\n<h3 id="{figure.name}">{html.escape(figure.title)}</h3>\n'
        f'<figcaption>{html.escape(figure.question)} {links}; table: <a href="{stem}.csv">CSV</a> '
        f'<a href="{stem}.parquet">Parquet</a>.</figcaption>\n'
        f'<div class="scroll"><div class="paper">{drawing}</div></div>\n</figure>'
    )


def _beside(figure: str) -> str:
    """What belongs under a figure: the published scores of dropping tokens and of dropping bits."""
    return report_tokens.table_7() if figure == "tokens_bits" else ""


def _kind(results: pd.DataFrame) -> str:
    """How times are modelled, as a sentence without its end."""
    kinds = set(results["model_kind"])
    if kinds == {"ideal"}:
        return "Ideal model: peak bandwidth and FLOP/s"
    if kinds == {"calibrated"}:
        return "Calibrated model: kernels as measured"
    return (
        "Two kinds of times stand side by side: kernels as measured where a device has them, else peak rates, "
        "which flatter (<code>--model-kind ideal</code> puts all at them)"
    )


def _care(results: pd.DataFrame) -> str:
    """What the comparison of systems rests on, where measured kernels stand beside peak rates."""
    kinds = results.drop_duplicates(["device", "model_kind"])
    ideal = ", ".join(kinds[kinds["model_kind"] == "ideal"]["device"])
    measured = ", ".join(kinds[kinds["model_kind"] != "ideal"]["device"])
    if not ideal or not measured:
        return ""
    return (
        f"<p><strong>Not like with like:</strong> {html.escape(ideal)} run at the peak rates of their data sheets, "
        f"which no kernel reaches; {html.escape(measured)} run by kernels as measured, which are slower. A gain marked "
        "* compares the two and is at most that. With <code>--model-kind ideal</code> all run at peak rates.</p>\n"
    )


def _summary(request: Request, results: pd.DataFrame) -> str:
    base = baseline(request)
    over = f"over {base.label}" if base else "over FP16 (not among the systems)"
    head = [
        "model",
        "best system",
        "device",
        "effective KV bits (bit)",
        "throughput (token/s)",
        over,
        "bound by",
        "memory",
    ]
    numbers = (3, 4, 5)
    rows = [_row(list(astuple(answer)), numbers) for answer in answers(request, results)]
    return (
        f"<h2>Which system serves each model best at batch {max(request.batches):,}?</h2>\n{_care(results)}"
        f'<div class="scroll"><table class="said">\n{_head(head, numbers)}\n{chr(10).join(rows)}\n</table></div>'
    )


def _head(cells: list[str], numbers: tuple[int, ...]) -> str:
    marks = "".join(
        f'<th scope="col"{" class=n" if i in numbers else ""}>{html.escape(cell)}</th>' for i, cell in enumerate(cells)
    )
    return f"<thead><tr>{marks}</tr></thead>"


def _row(cells: list[str], numbers: tuple[int, ...]) -> str:
    marks = "".join(
        f"<td{' class=n' if i in numbers else ' class=name' if i < 3 else ''}>{html.escape(cell)}</td>"
        for i, cell in enumerate(cells)
    )
    return f"<tr>{marks}</tr>"


def _cell(row: Any, column: str, size: float) -> str:
    value = row[column]
    if pd.isna(value):
        return "-"
    if not size:
        return str(value)
    return f"{value:,}" if isinstance(value, int) and size == 1 else f"{value / size:,.4g}" if value / size < 1e4 else (
        f"{value / size:,.0f}")  # fmt: skip


def _results(request: Request, results: pd.DataFrame) -> str:
    head = [f"{name} ({unit})" if unit else name for _, name, unit, _ in _COLUMNS]
    numbers = tuple(i for i, column in enumerate(_COLUMNS) if column[3])
    shown = results.head(MAX_ROWS)
    parts = [
        '<h2>Results</h2>\n<p class="soft">All columns: <a href="report.csv">report.csv</a>, '
        '<a href="report.parquet">report.parquet</a> (SI base units).'
        + (f" The first {MAX_ROWS:,} of {len(results):,} rows are shown." if len(results) > MAX_ROWS else "") + "</p>"
    ]  # fmt: skip
    for model in dict.fromkeys(shown["model"]):
        rows, reasons = [], dict[str, str]()
        for row in shown[shown["model"] == model].to_dict("records"):
            cells = [_cell(row, column, size) for column, _, _, size in _COLUMNS]
            if not row["feasible"]:
                cells[-1] = "out of memory"
                reasons.setdefault(row["system"], row["infeasible_reason"])
            rows.append(_row(cells, numbers))
        why = "; ".join(f"{system}: {reason}" for system, reason in reasons.items())
        note = f'<p class="soft">Out of memory. {html.escape(why)}.</p>' if why else ""
        parts.append(
            f"<details><summary>{html.escape(str(model))}</summary>\n"
            f'<div class="scroll"><table class="tight">\n{_head(head, numbers)}\n{chr(10).join(rows)}\n</table></div>'
            f"{note}</details>"
        )
    return "\n".join(parts)


def _devices(request: Request) -> str:
    head = ["device", "number", "value", "kind", "source"]
    rows = []
    for spec in devices(request):
        for name, number in spec.quantities().items():
            value = units.human(number.si, units.base_of(number.unit))
            rows.append(_row([spec.name, name, value, number.kind, number.source], numbers=(2,)))
    return (
        '<h2>Devices</h2>\n<p class="soft">Every number with its kind and source; "assumed" rests on no document or '
        f"measurement.</p>\n<details><summary>{len(devices(request))} devices</summary>\n"
        f'<div class="scroll"><table class="said">\n{_head(head, (2,))}\n{chr(10).join(rows)}\n</table></div></details>'
    )
