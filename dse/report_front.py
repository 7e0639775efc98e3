"""A front written down: its table as CSV, its figure as a page to hover over and as PNG, SVG and PDF."""

from functools import partial
from typing import Any

import pandas as pd

from dse import files, report_static, web_page
from dse.pareto_designs import DesignFront, label
from dse.plot_read import BESIDE, beside
from dse.plots import design_front
from dse.plots.chart import Chart

INDEX = "front.html"


def rows(found: DesignFront) -> pd.DataFrame:
    """The front's whole rows, with a column `knee`."""
    return found.table.assign(knee=found.knee)


def chart_of(found: DesignFront) -> Chart:
    """The figure of a front: its first two objectives."""
    return design_front.chart(
        found.table, list(found.knee), found.cloud, found.objectives, found.units,
        partial(label, columns=found.design, units=found.units), found.by,
    )  # fmt: skip


def write(found: DesignFront, out: str, command: str, static: str = "auto") -> str:
    """Write front.csv, what its figure needs beside it, and the figure into `out`; the path of the page.

    Raises OutputError.
    """
    report_static.check(static)
    folder = files.prepare(out)
    chart = chart_of(found)
    files.write(folder / "front.csv", files.csv_of(rows(found)))
    files.write(folder / "front-others.csv", files.csv_of(found.cloud))
    files.write(folder / f"front{BESIDE}", beside({
        "objectives": dict(found.objectives), "units": dict(found.units), "design": list(found.design),
        "by": list(found.by),
    }))  # fmt: skip
    with report_static.painter(static) as brush:
        for kind, content in brush.images(chart, command).items():
            files.write(folder / f"front.{kind}", content)
    files.write(folder / INDEX, _page(web_page.fragment(chart, "front"), chart.title, command).encode())
    files.sync(folder)
    return str(folder / INDEX)


def _page(drawing: str, title: str, command: str) -> str:
    import html

    from dse import __version__

    body = (
        f'<div class="scroll"><div class="paper">{drawing}</div></div>\n'
        f"<p><code>{html.escape(command)}</code><br>dse {html.escape(__version__)}</p>"
    )
    return web_page.document(title, f"<script>{web_page.plotly_js()}</script>\n", body)


def to_json(found: DesignFront) -> dict[str, Any]:
    """The front for `--json`: numbers in SI units, missing ones as null."""
    table = found.table.astype(object).where(found.table.notna(), None)
    return {
        "objectives": found.objectives, "by": list(found.by), "n_rows": found.n_rows, "n_feasible": found.n_feasible,
        "n_missing": found.n_missing, "limits": [str(limit) for limit in found.limits], "n_beyond": found.n_beyond,
        "n_front": len(table),
        "front": [
            {**row, "row": int(place), "knee": bool(knee)}
            for row, place, knee in zip(table.to_dict("records"), found.row, found.knee, strict=True)
        ],
    }  # fmt: skip


def text(found: DesignFront, max_rows: int = 20) -> str:
    """The front as a table for the terminal: what varies, the objectives, knees marked."""
    from dse.units import human

    aims = ", ".join(f"{sense}imize {name}" for name, sense in found.objectives.items())
    group = f", a front for each {', '.join(found.by)}" if found.by else ""
    missing = f", {found.n_missing:,} left out" if found.n_missing else ""
    if found.limits and found.n_beyond is not None:
        missing += f", {found.n_beyond:,} beyond the limits or without a value there"
    group += f"; within {', '.join(map(str, found.limits))}" if found.limits else ""
    head = (
        f"front: {len(found.table):,} of {found.n_rows:,} designs "
        f"({found.n_feasible:,} feasible{missing}); {aims}{group}"
    )
    columns = list(dict.fromkeys((*found.design, *found.objectives, *(limit.column for limit in found.limits))))

    def cell(name: str, value: Any) -> str:
        if value is None or pd.isna(value):
            return "-"
        if isinstance(value, str):
            return value
        return human(value.item() if hasattr(value, "item") else value, found.units.get(name, ""))

    first = list(range(min(len(found.table), max_rows)))
    shown = [*first, *(int(i) for i in found.knee.nonzero()[0] if i >= max_rows)][: 2 * max_rows]
    lines = [["", *columns]]
    for i in shown:
        row = found.table.iloc[i]
        lines.append(["knee" if found.knee[i] else "", *(cell(name, row[name]) for name in columns)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns) + 1)]
    body = ["  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    rest = len(found.table) - len(shown)
    tail = [f"... and {rest:,} more: --out writes all of them"] if rest > 0 else []
    return "\n".join([head, *body, *tail])
