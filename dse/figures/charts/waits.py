"""Waiting times of simulated requests: the share served within each time; of `dse simulate`."""

import pandas as pd

from dse.figures.charts.load_times import TIMES, times_of
from dse.figures.drawing import axes, style
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.figures.registry import by, figure
from dse.figures.source import Source


@figure(
    "waits",
    "Cumulative distribution of TPOT and TTFT over the simulated requests.",
    by("simulate ... --out DIR", "waits"),
    ("design", "share", "tpot_s", "ttft_s"),
    order=165,
    key=("design", "share"),
)
def chart(source: Source) -> Chart:
    """A panel a time, a line a design; beside the table: `limits`, seconds by column, each a dotted line."""
    table, limits = source.table, source.about.get("limits", {})
    looks = {
        name: style.STYLES[place] for name, place in style.places(list(dict.fromkeys(table["design"])), {}).items()
    }
    shares = Axis(
        "share of the requests",
        unit="%",
        low=0.0,
        high=1.0,
        ticks=tuple((at / 5, f"{20 * at}") for at in range(6)),
        per_unit=0.01,
    )
    panels = []
    for column, (name, unit, size) in times_of(table).items():
        limit = limits.get(column)
        x = axes.linear(name, unit, [*table[column].dropna().astype(float), *([limit] if limit else [])], size)
        series = [
            Series(
                design,
                kind="line",
                x=tuple(map(float, waits[column])),
                y=tuple(map(float, waits["share"])),
                color=look.color,
                dash=look.dash,
                marker="",
                hover=tuple(_hover(row, column) for _, row in waits.iterrows()),
            )
            for design, look in looks.items()
            if not (waits := table[(table["design"] == design) & table[column].notna()]).empty
        ]
        if limit:
            series.append(
                Series(
                    "limit",
                    kind="line",
                    x=(limit, limit),
                    y=(0.0, 1.0),
                    color=style.GRAY,
                    dash="dot",
                    marker="",
                    is_note=True,
                )
            )
        panels.append(Panel(name, x, shares, tuple(series)))
    title = "How long requests wait" + (f": {next(iter(looks))}" if len(looks) == 1 else "")
    return Chart(
        title, panels=tuple(panels), n_columns=2, panel_height_pt=200, notes=tuple(source.about.get("notes", ()))
    )


def _hover(row: pd.Series, column: str) -> str:
    name, unit, size = TIMES[column]
    return f"{row['design']}\n{row['share']:.0%} of the requests: {name} at most {row[column] / size:.4g} {unit}"
