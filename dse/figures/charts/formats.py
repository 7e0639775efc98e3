"""KV formats over 16 bits: throughput, room, energy and error of each, with whiskers; drawn by `dse ask formats`."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from dse.core.errors import LimitError
from dse.figures.drawing import axes, marks, style, whiskers
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.figures.registry import by, figure
from dse.figures.source import Source
from dse.questions.common import refused_text
from dse.questions.formats import Formats

#: formats beneath each other
MAX_FORMATS = 40
#: kernels -> (what the legend says, whether hollow)
LOOKS = {"measured": ("kernels measured", False), "assumed": ("kernels assumed, not measured", True)}
_COLORS = {"measured": style.BLUE, "assumed": style.ORANGE}
_BAR = 0.62


def source_of(answer: Formats) -> Source:
    """The table of an answer of `dse ask formats` and what its figure says beside it."""
    title = f"Which KV format pays: {answer.model} on {answer.device}"
    where = f"{answer.context}, batch {answer.batch:,}, {answer.input_tokens:,} in."
    refused = filter(None, [refused_text(entry.result for entry in answer.formats)])
    notes = [answer.answer(), where, *refused, *answer.notes()[1:]]
    return Source(answer.table, about={"title": title, "notes": notes})


@figure(
    "formats",
    "KV formats over 16 bits: throughput, requests that fit, energy and error of each.",
    by("ask formats --out DIR", "formats"),
    ("format", "gain", "kernels", "max_batch"),
    order=100,
    key=("format",),
    answer=Formats,
    source_of=source_of,
)
def chart(source: Source) -> Chart:
    """Four panels with a line a format, the first on top; hollow where its kernels were not measured."""
    rows = source.table.to_dict("records")
    if len(rows) > MAX_FORMATS:
        raise LimitError(f"{len(rows):,} formats: a figure shows {MAX_FORMATS}: name some with --quantizers")
    y = axes.categories("quantizer", [str(row["format"]) for row in rows][::-1])
    panels = [
        Panel(
            "throughput over 16 bits",
            _axis("gain", "times", rows, "gain", ["gain_low", "gain_high"]),
            y,
            (_even(y), *_dots(rows, "gain", "gain_low", "gain_high", "times")),
        ),
        Panel(
            "requests that fit at once",
            _axis("largest batch", "sequences", rows, "max_batch"),
            y,
            (_bars(rows, "max_batch", "largest batch", 1.0, "sequences"),),
        ),
    ]
    if any(not pd.isna(row.get("joules_per_token")) for row in rows):
        ends = ["joules_per_token_low", "joules_per_token_high"]
        panels.append(
            Panel(
                "energy",
                _axis("energy", "J/token", rows, "joules_per_token", ends),
                y,
                tuple(_dots(rows, "joules_per_token", ends[0], ends[1], "J/token")),
            )
        )
    if any(not pd.isna(row.get("measured_error")) for row in rows):
        panels.append(
            Panel(
                "attention error (none: not measured)",
                axes.linear("error", "%", _values(rows, "measured_error"), 0.01),
                y,
                (_bars(rows, "measured_error", "error", 0.01, "%"),),
            )
        )
    return Chart(
        source.about.get("title", "KV formats over 16 bits"),
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=24 + 11 * len(rows),
        notes=(*source.about.get("notes", ()), whiskers.NOTE),
    )


def _values(rows: Sequence[dict[Any, Any]], *columns: str) -> list[float]:
    return [float(row[name]) for row in rows for name in columns if not pd.isna(row.get(name))]


def _axis(name: str, unit: str, rows: Sequence[dict[Any, Any]], column: str, ends: Sequence[str] = ()) -> Axis:
    return axes.linear(name, unit, whiskers.held(_values(rows, column), _values(rows, *ends)))


def _even(y: Axis) -> Series:
    """Where a format gives as much as 16 bits."""
    return marks.rule("as much as 16 bits", y, 1.0, style.GRAY, upright=True, in_legend=False)


def _places(rows: Sequence[dict[Any, Any]], column: str, kernels: str) -> list[tuple[float, dict[Any, Any]]]:
    """Rows that have a value and those kernels, each with its place, the first on top."""
    return [
        (float(len(rows) - 1 - i), row)
        for i, row in enumerate(rows)
        if row["kernels"] == kernels and not pd.isna(row.get(column))
    ]


def _dots(rows: Sequence[dict[Any, Any]], column: str, low: str, high: str, unit: str) -> list[Series]:
    series = []
    for kernels, (name, is_open) in LOOKS.items():
        placed = _places(rows, column, kernels)
        for place, row in placed:
            if not pd.isna(row.get(low)):
                series += whiskers.level(place, (float(row[low]), float(row[high])), _COLORS[kernels])
        look = style.Style(_COLORS[kernels], marker="square" if is_open else "circle")
        values = (row[column] for _, row in placed)
        texts = (_hover(row, column, 1.0, unit, (low, high)) for _, row in placed)
        opened = (is_open,) * len(placed)
        series.append(marks.points(name, values, (place for place, _ in placed), look, texts, opened=opened))
    return [line for line in series if line.x]


def _bars(rows: Sequence[dict[Any, Any]], column: str, name: str, per_unit: float, unit: str) -> Series:
    """Note on bars that follow from the bits alone, whatever the kernels: all look alike."""
    placed = [place for kernels in LOOKS for place in _places(rows, column, kernels)]
    return marks.bars(
        name,
        (place for place, _ in placed),
        (row[column] for _, row in placed),
        (style.GRAY, ""),
        (_hover(row, column, per_unit, unit) for _, row in placed),
        base=(0.0,) * len(placed),
        width=_BAR,
        in_legend=False,
    )


def _hover(row: dict[Any, Any], column: str, per_unit: float, unit: str, ends: Sequence[str] = ()) -> str:
    text = f"{row['format']} by {row.get('implementation', '-')}\n{row[column] / per_unit:,.4g} {unit}"
    if ends and not pd.isna(row.get(ends[0])):
        text += f"\n80 % interval: {row[ends[0]] / per_unit:,.4g} to {row[ends[1]] / per_unit:,.4g}"
    if marks := row.get("assumed_of_kernels"):
        text += f"\nassumed: {marks}"
    return text
