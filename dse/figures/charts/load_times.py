"""TPOT and TTFT: against the rate of requests, by `dse ask load`; how many wait so long, by `dse simulate`."""

from collections.abc import Callable

import pandas as pd

from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Axis, Chart, Panel
from dse.figures.registry import by, figure
from dse.figures.source import Source
from dse.questions.load import UnderLoad

#: column -> name of its axis, unit, and the size of the unit in seconds
TIMES = {"tpot_s": ("TPOT", "ms", 1e-3), "ttft_s": ("TTFT", "s", 1.0)}
_NOTE = "Requests of equal lengths arrive at random; means over requests, up to 0.9 of the saturated rate."


def source_of(answer: UnderLoad) -> Source:
    """The table of an answer of `dse ask load` and what its figure says beside it."""
    notes = [answer.context, _NOTE]
    if answer.limits and answer.rows:
        notes.insert(0, answer.within_text(answer.limits))
    about = {"title": "TPOT and TTFT as the load rises", "notes": notes, "limits": answer.limits}
    return Source(answer.table, about=about)


@figure(
    "load",
    "TPOT and TTFT against the rate of requests.",
    by("ask load --out DIR", "load"),
    ("design", "load", "requests_per_s", "tpot_s", "ttft_s", "running_requests"),
    order=135,
    key=("design", "load"),
    answer=UnderLoad,
    source_of=source_of,
)
def chart(source: Source) -> Chart:
    """A panel a time, a line a design; beside the table: `limits`, seconds by column, each a dotted line."""
    rates = axes.linear("requests per second", "1/s", source.table["requests_per_s"].astype(float))
    title = source.about.get("title", "TPOT and TTFT as the load rises")
    return _chart(source, title, rates, "requests_per_s", lambda row, _: _load_text(row))


@figure(
    "waits",
    "Cumulative distribution of TPOT and TTFT over the simulated requests.",
    by("simulate ... --out DIR", "waits"),
    ("design", "share", "tpot_s", "ttft_s"),
    order=165,
    key=("design", "share"),
)
def waits(source: Source) -> Chart:
    """A panel a time, a line a design; beside the table: `limits`, seconds by column, each a dotted line."""
    designs = set(source.table["design"])
    title = "How long requests wait" + (f": {designs.pop()}" if len(designs) == 1 else "")
    shares = axes.shares("share of the requests", 20)
    return _chart(source, title, shares, "share", _wait_text, is_distribution=True)


def _chart(
    source: Source,
    title: str,
    other: Axis,
    other_column: str,
    hover: Callable[[pd.Series, str], str],
    is_distribution: bool = False,
) -> Chart:
    """Times over the `other` axis, or of a distribution that axis over the times, without marks."""
    table, limits = source.table, source.about.get("limits", {})
    panels = []
    for column, (name, unit, size) in times_of(table).items():
        limit = limits.get(column)
        times = axes.linear(name, unit, [*table[column].dropna().astype(float), *([limit] if limit else [])], size)
        series = []
        for design, look in style.looks(list(dict.fromkeys(table["design"]))).items():
            rows = table[(table["design"] == design) & table[column].notna()]
            if rows.empty:
                continue
            texts = (hover(row, column) for _, row in rows.iterrows())
            if is_distribution:
                series.append(marks.line(design, rows[column], rows[other_column], look, texts, marker=""))
            else:
                series.append(marks.line(design, rows[other_column], rows[column], look, texts))
        if limit:
            series.append(marks.rule("limit", other, limit, style.GRAY, "dot", upright=is_distribution))
        panels.append(Panel(name, *((times, other) if is_distribution else (other, times)), tuple(series)))
    notes = tuple(source.about.get("notes", ()))
    return Chart(title, panels=tuple(panels), n_columns=2, panel_height_pt=200, notes=notes)


def times_of(table: pd.DataFrame) -> dict[str, tuple[str, str, float]]:
    """The times of `TIMES` that a table has: answers of one token have no TPOT; where nothing fits, all of them."""
    return {column: time for column, time in TIMES.items() if table.empty or table[column].notna().any()}


def _wait_text(row: pd.Series, column: str) -> str:
    name, unit, size = TIMES[column]
    return f"{row['design']}\n{row['share']:.0%} of the requests: {name} at most {row[column] / size:.4g} {unit}"


def _load_text(row: pd.Series) -> str:
    tpot = f"TPOT {1e3 * row['tpot_s']:.4g} ms, " if pd.notna(row["tpot_s"]) else ""
    return (
        f"{row['design']}\n{row['requests_per_s']:.4g} requests/s, load {row['load']:.2g}\n"
        f"{tpot}TTFT {row['ttft_s']:.4g} s\n"
        f"{row['running_requests']:.3g} requests decode at a time"
    )
