"""A front written down: its table as CSV, its figure as a page to hover over and as PNG, SVG and PDF."""

import math
from typing import Any

import pandas as pd

from dse.core import files
from dse.core.columns import aligned
from dse.figures.export import image, web_page
from dse.figures.plot import answer
from dse.figures.source import BESIDE, beside
from dse.questions.common import refused_text, sure_text
from dse.sweep.pareto import sure
from dse.sweep.pareto.designs import DesignFront

INDEX = "front.html"


def write(front: DesignFront, out: str, command: str) -> str:
    """Write front.csv, what its figure needs beside it, and the figure into `out`; the path of the page.

    Raises OutputError.
    """
    chart, source = answer.chart_of(front), answer.source_of(front)
    with files.publishing(out) as published:
        published.write("front.csv", files.csv_of(source.table))
        published.write("front-others.csv", files.csv_of(front.cloud))
        published.write(f"front{BESIDE}", beside(source.about))
        for kind, content in image.images(chart, command).items():
            published.write(f"front.{kind}", content)
        page = web_page.render("front.html", title=chart.title, chart=chart, made_by=command)
        return str(published.write(INDEX, page.encode()))


def to_json(front: DesignFront) -> dict[str, Any]:
    """The front for `--json`: numbers in SI units, missing and infinite ones, which JSON does not have, as null."""
    rows = [{name: _json_value(value) for name, value in row.items()} for row in front.table.to_dict("records")]
    return {
        "objectives": front.objectives,
        "by": list(front.by),
        "n_rows": front.n_rows,
        "n_feasible": front.n_feasible,
        "n_missing": front.n_missing,
        "limits": [str(limit) for limit in front.limits],
        "n_beyond": front.n_beyond,
        "n_refused": front.n_refused,
        "n_again": front.n_again,
        "n_front": len(rows),
        "assumptions": sure.assumed(front),
        "front": [
            {**row, "row": int(place), "knee": bool(knee), "intervals": ends, "sure": chance}
            for row, place, knee, ends, chance in zip(
                rows, front.row, front.knee, sure.intervals(front), sure.chances(front), strict=True
            )
        ],
    }


def infinite(front: DesignFront) -> list[tuple[str, int]]:
    """(column, row of the source) of each infinite number of the front, which `to_json` writes as null."""
    return [
        (str(name), int(place))
        for name in front.table.columns
        if pd.api.types.is_float_dtype(front.table[name])
        for place, value in zip(front.row, front.table[name], strict=True)
        if not pd.isna(value) and math.isinf(value)
    ]


def _json_value(value: Any) -> Any:
    """A cell as JSON has it: null for what is missing or infinite, text for dates and the like."""
    if value is None or isinstance(value, str | bool):
        return value
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return None if isinstance(value, float) or pd.isna(value) else str(value)


def text(front: DesignFront, max_rows: int = 20) -> str:
    """The front as a table for the terminal: what varies, the objectives, knees marked."""
    from dse.core.units import human

    columns = list(dict.fromkeys((*front.design, *front.objectives, *(limit.column for limit in front.limits))))

    known, chances = sure.intervals(front), sure.chances(front)
    timed = [name for name in front.objectives if any(name in ends for ends in known)]
    is_sure = any(chance is not None for chance in chances)

    def between(i: int, name: str) -> str:
        return " to ".join(cell(name, end) for end in known[i].get(name, ()))

    def cell(name: str, value: Any) -> str:
        if value is None or pd.isna(value):
            return "-"
        if isinstance(value, str):
            return value
        return human(value.item() if hasattr(value, "item") else value, front.units.get(name, ""))

    first = list(range(min(len(front.table), max_rows)))
    shown = [*first, *(int(i) for i in front.knee.nonzero()[0] if i >= max_rows)][: 2 * max_rows]
    lines = [["", *columns, *(f"80 % of {name}" for name in timed), *(["beats the next"] if is_sure else [])]]
    for i in shown:
        row, chance = front.table.iloc[i], chances[i]
        cells = [*(cell(name, row[name]) for name in columns), *(between(i, name) for name in timed)]
        cells += ["-" if chance is None else sure_text(chance)] if is_sure else []
        lines.append(["knee" if front.knee[i] else "", *cells])
    rest = len(front.table) - len(shown)
    tail = [f"... and {rest:,} more: --out writes all of them"] if rest > 0 else []
    rows = front.table.to_dict("records") if "runs_why" in front.table else []
    notes = filter(None, [refused_text(rows), sure.assumed(front)])
    return "\n".join([str(front), *aligned(lines), *tail, *notes])
