"""Content of the report's page (templates/report.html), which needs no network."""

from dataclasses import astuple
from typing import Any

import pandas as pd

from dse.core import units
from dse.core.columns import cells
from dse.figures import REPORT
from dse.figures.drawing.rows import assumption_note, error_notes, run_notes
from dse.figures.export import web_page
from dse.questions.formats import Formats
from dse.questions.systems import ReportRequest
from dse.report.gains import HEAD, Gains
from dse.report.summary import answers, baseline, beside_figure_11, devices
from dse.report.tokens import table_7_text

#: rows of results shown on the page; the files have all
MAX_ROWS = 2000
#: columns of the page's table: (column, header, unit shown, size of that unit); "" where text
_COLUMNS = (
    ("system", "system", "", 0),
    ("device", "device", "", 0),
    ("quantizer", "quantizer", "", 0),
    ("batch", "batch", "seqs", 1),
    ("throughput_tokens_per_s", "throughput", "tok/s", 1),
    ("decode_step_s", "decode step", "ms", units.to_base(1, "ms")),
    ("running_batch", "concurrency", "seqs", 1),
    ("max_batch", "largest batch", "seqs", 1),
    ("kv_bytes", "KV", "GB", units.to_base(1, "GB")),
    ("weight_bytes", "weights", "GB", units.to_base(1, "GB")),
    ("stored_bits", "stored", "bit/element", 1),
    ("sqnr_db", "SQNR, measured", "dB", 1),
    ("joules_per_token", "energy", "J/token", 1),
    ("bound", "bound by", "", 0),
)


def page(
    request: ReportRequest,
    frames: dict[str, pd.DataFrame],
    fragments: dict[str, str],
    command: str,
    formats: tuple[Formats | None, str],
    first: Gains | None = None,
) -> str:
    """The whole report as one document; `fragments` are its drawn figures by name.

    `formats`: the answer to which format pays, or why there is none. `first`: the formats of all its models and
    devices, with which the page then begins.
    """
    pays, why_not = formats
    results = frames["results"]
    lengths = f"{request.input_tokens:,} prompt and {request.output_tokens:,} generated tokens a request"
    kinds = results.drop_duplicates(["device", "model_kind"])
    base, specs = baseline(request), devices(request)
    return web_page.render(
        "report.html",
        "dse.report",
        title="KV-cache quantization report",
        scope=f"{_count(len(request.models), 'model')}, {_count(len(request.systems), 'system')}, batch "
        f"{min(request.batches):,} to {max(request.batches):,}, {lengths}",
        kinds=sorted(set(results["model_kind"])),
        notes=" ".join((*run_notes(results), *error_notes(results), assumption_note(results))),
        largest_batch=f"{max(request.batches):,}",
        ideal=", ".join(kinds[kinds["model_kind"] == "ideal"]["device"]),
        estimated=", ".join(kinds[kinds["model_kind"] == "estimated"]["device"]),
        measured=", ".join(kinds[kinds["model_kind"] == "calibrated"]["device"]),
        summary_head=[
            "model",
            "best system",
            "device",
            "effective KV bits (bit)",
            "throughput (tok/s)",
            f"over {base.label}" if base else "over FP16 (not among the systems)",
            "bound by",
            "memory",
        ],
        summary=[astuple(answer) for answer in answers(request, results)],
        first=first,
        output_tokens=request.output_tokens,
        first_head=HEAD,
        pays=pays,
        of_papers=request.is_default,
        beside_figure_11=beside_figure_11(results) if request.is_default else [],
        why_not=why_not,
        formats=cells(pays.columns(), pays.formats) if pays else [],
        figures=REPORT.values(),
        drawn={name: web_page.trusted(drawing) for name, drawing in fragments.items()},
        tokens=table_7_text(),
        results_head=[f"{name} ({unit})" if unit else name for _, name, unit, _ in _COLUMNS],
        results_numbers=[i for i, column in enumerate(_COLUMNS) if column[3]],
        results=_results(results.head(MAX_ROWS)),
        n_shown=min(MAX_ROWS, len(results)),
        n_rows=len(results),
        n_devices=len(specs),
        devices=[
            (spec.name, name, units.human(number.si, units.base_of(number.unit)), number.kind, number.source)
            for spec in specs
            for name, number in spec.quantities().items()
        ],
        made_by=command,
    )


def _count(n: int, name: str) -> str:
    return f"{n} {name}" + ("" if n == 1 else "s")


def _cell(row: Any, column: str, size: float) -> str:
    value = row[column]
    if pd.isna(value):
        return "-"
    if not size:
        return str(value)
    return f"{value:,}" if isinstance(value, int) and size == 1 else units.plain(value / size)


def _results(shown: pd.DataFrame) -> list[tuple[str, list[list[str]], str]]:
    """Group the rows by model: its name, its rows as cells, and why some do not fit."""
    groups = []
    for model in dict.fromkeys(shown["model"]):
        lines, reasons = [], dict[str, str]()
        for row in shown[shown["model"] == model].to_dict("records"):
            cells = [_cell(row, column, size) for column, _, _, size in _COLUMNS]
            if not row["feasible"]:
                cells[-1] = "out of memory"
                reasons.setdefault(row["system"], row["infeasible_reason"])
            lines.append(cells)
        groups.append((str(model), lines, "; ".join(f"{system}: {reason}" for system, reason in reasons.items())))
    return groups
