"""The radix tree of prompts, request by request."""

import pandas as pd

from dse.core.errors import InputError
from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Chart, Panel, Series
from dse.figures.registry import by, figure
from dse.figures.source import Source
from dse.serving.prefix_steps import COMPUTED, FOUND, GIVEN_UP, IN_HOST, IN_USE, KEPT, LOADED

#: color and hatch of what may become of a block, in the order of the legend
STATES = {
    FOUND: (style.GREEN, ""),
    LOADED: (style.SKY, ""),
    COMPUTED: (style.ORANGE, ""),
    IN_USE: (style.GRAY, ""),
    KEPT: ("#BBBBBB", ""),
    IN_HOST: (style.SKY, "/"),
    GIVEN_UP: ("#E6E6E6", "."),
}


@figure(
    "prefix_steps",
    "The radix tree of prompts, request by request: what each finds, computes, and leaves.",
    by("simulate ... --out DIR", "prefix_steps"),
    ("step", "admitted", "first_row", "requests", "start_tokens", "end_tokens", "state"),
    order=162,
)
def chart(source: Source) -> Chart:
    """A panel for each step; in it a row for each prompt, and a box for each stretch of blocks, over its prompts."""
    table = source.table
    unknown = sorted({*table["state"]} - {*STATES})
    if unknown:
        raise InputError(f"state = {unknown[0]}: must be one of {', '.join(STATES)}")
    prompts: dict[int, str] = {}
    for first, requests in zip(table["first_row"], table["requests"], strict=True):
        for i, request in enumerate(str(requests).split(", ")):
            prompts.setdefault(int(first) + i, request)
    n_rows = max(prompts) + 1
    labels = [prompts.get(row, "") for row in range(n_rows)]
    y = axes.categories("request", labels[::-1])
    x = axes.linear("place in the prompt", "token", [float(v) for v in table["end_tokens"]])
    panels = [
        Panel(str(part["admitted"].iloc[0]), x, y, tuple(_boxes(part, n_rows))) for _, part in table.groupby("step")
    ]
    return Chart(
        "The tree of prompts, request by request",
        panels=tuple(panels),
        # in the legend, however many: stretches of few blocks have no room for a name
        keys=tuple({box.name: box for panel in panels for box in panel.series}.values()),
        n_columns=3,
        panel_height_pt=30.0 + 9.0 * n_rows,
        notes=(
            "Each panel: the tree after the step that admits the request named above it; boxes over several rows are"
            " blocks that those prompts share.",
            "Blocks that nobody uses are kept until their memory is wanted; those used longest ago go first.",
        ),
    )


def _boxes(part: pd.DataFrame, n_rows: int) -> list[Series]:
    """The boxes of one step, by state and by how many rows they stand over."""
    height = part["requests"].astype(str).str.count(",") + 1
    boxes = []
    for name, fill in STATES.items():
        for n, rows in part[part["state"] == name].groupby(height):
            places = [n_rows - 1 - float(row) - (int(n) - 1) / 2 for row in rows["first_row"]]
            starts, ends = ([float(v) for v in rows[column]] for column in ("start_tokens", "end_tokens"))
            hover = (
                f"requests {who}\n{name}: tokens {int(a):,} to {int(b):,}"
                for who, a, b in zip(rows["requests"], starts, ends, strict=True)
            )
            lengths = [b - a for a, b in zip(starts, ends, strict=True)]
            boxes.append(marks.bars(name, places, lengths, fill, hover, base=starts, width=int(n) - 0.2))
    return boxes
