"""Times per token and to the first against the requests a second that servers are asked for; by `dse ask load`."""

import pandas as pd

from dse.figures.drawing import axes, style
from dse.figures.drawing.chart import Chart, Panel, Series
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
    table, limits = source.table, source.about.get("limits", {})
    looks = {
        name: style.STYLES[place] for name, place in style.places(list(dict.fromkeys(table["design"])), {}).items()
    }
    rates = [float(rate) for rate in table["requests_per_s"]]
    panels = []
    for column, (name, unit, size) in times_of(table).items():
        limit = limits.get(column)
        x = axes.linear("requests per second", "1/s", rates)
        y = axes.linear(name, unit, [*table[column].dropna().astype(float), *([limit] if limit else [])], size)
        series = [
            Series(
                design,
                kind="line",
                x=tuple(map(float, points["requests_per_s"])),
                y=tuple(map(float, points[column])),
                color=look.color,
                dash=look.dash,
                marker=look.marker,
                hover=tuple(_hover(row) for _, row in points.iterrows()),
            )
            for design, look in looks.items()
            if not (points := table[(table["design"] == design) & table[column].notna()]).empty
        ]
        if limit:
            ends = (limit, limit)
            series.append(
                Series(
                    "limit",
                    kind="line",
                    x=(x.low, x.high),
                    y=ends,
                    color=style.GRAY,
                    dash="dot",
                    marker="",
                    is_note=True,
                )
            )
        panels.append(Panel(name, x, y, tuple(series)))
    title = source.about.get("title", "TPOT and TTFT as the load rises")
    return Chart(
        title, panels=tuple(panels), n_columns=2, panel_height_pt=200, notes=tuple(source.about.get("notes", ()))
    )


def times_of(table: pd.DataFrame) -> dict[str, tuple[str, str, float]]:
    """The times of `TIMES` that a table has: answers of one token have no TPOT; where nothing fits, all of them."""
    return {column: time for column, time in TIMES.items() if table.empty or table[column].notna().any()}


def _hover(row: pd.Series) -> str:
    tpot = f"TPOT {1e3 * row['tpot_s']:.4g} ms, " if pd.notna(row["tpot_s"]) else ""
    return (
        f"{row['design']}\n{row['requests_per_s']:.4g} requests/s, load {row['load']:.2g}\n"
        f"{tpot}TTFT {row['ttft_s']:.4g} s\n"
        f"{row['running_requests']:.3g} requests decode at a time"
    )
