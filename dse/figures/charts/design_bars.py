"""Parts of the memory and of a decode step, a stacked bar for each design."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dse.core.errors import LimitError
from dse.figures.drawing import axes, marks, rows, style, whiskers
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.figures.registry import by, figure
from dse.figures.source import Source
from dse.model.results import RESULT_UNITS
from dse.questions.common import refused_text
from dse.sweep.pareto.designs import label

MEMORY = {
    "weight_bytes": "weights",
    "kv_bytes": "KV cache",
    "activation_bytes": "activations",
    "workspace_bytes": "workspace",
}

#: bars of designs beside each other
MAX_DESIGNS = 24

Rows = Sequence[tuple[str, Mapping[str, Any]]]


def _designs(table: pd.DataFrame) -> Rows:
    """The designs of a table of results, named by what tells them apart."""
    if len(table) > MAX_DESIGNS:
        raise LimitError(f"{len(table):,} designs: a figure shows {MAX_DESIGNS}: choose some with --only COLUMN=A,B")
    columns = [
        name for name in ("device", "model", "quantizer", "batch", "input_tokens", "output_tokens") if name in table
    ]
    shown = [name for name in columns if table[name].nunique() > 1] or columns[:3]
    return [(label(row, shown, RESULT_UNITS), row.to_dict()) for _, row in table.iterrows()]


@figure(
    "design_memory",
    "What fills the memory: weights, KV cache and the rest, a bar a design.",
    by("point ... --out DIR", "point", "report"),
    (*MEMORY, "capacity_bytes"),
    order=210,
)
def memory_of_table(source: Source) -> Chart:
    """`memory` of the rows of a table."""
    return memory(_designs(source.table), is_named=True)


@figure(
    "design_step",
    "What fills the mean decode step, a bar a design.",
    by("point ... --out DIR", "point", "report"),
    (*rows.STEP, "feasible"),
    order=220,
)
def step_of_table(source: Source) -> Chart:
    """`step_time` of the rows of a table."""
    return step_time(_designs(source.table), is_named=True)


def memory(designs: Rows, is_named: bool = False) -> Chart:
    """Bytes that the whole batch takes at its final length, with marks at each device's memory and its usable part.

    Of a batch that runs at once, keys and values fill no more than their pool: in pages, requests are staggered. Bars
    are numbered, names in a note; `is_named`: names beside the bars.
    """
    shown = [(name, _held(result)) for name, result in designs]
    staggered = any(after is not before for (_, after), (_, before) in zip(shown, designs, strict=True))
    designs = shown
    tops = [max(_total(result, MEMORY), result["capacity_bytes"]) for _, result in designs]
    x = axes.linear("memory", "GB", tops, axes.GB)
    places = _places(designs)
    whole = [float(result["capacity_bytes"]) for _, result in designs]
    # what bars may take: the usable part, less what the runtime takes; a server sets activations aside
    usable = [
        float(r["weight_bytes"] + r["free_bytes"] + (r["activation_bytes"] if r.get("memory") == "server" else 0))
        for _, r in designs
    ]
    if usable == whole:
        marks = [_marks("device memory", whole, places)]
        note = "A bar beyond the mark does not fit at once."
    else:
        marks = [_marks("usable memory", usable, places), _marks("device memory", whole, places, is_limit=False)]
        note = "A bar beyond the usable memory does not fit at once."
    notes = (note, *(("Staggered requests share what their final lengths would exceed.",) if staggered else ()))
    series = [*_stack(designs, MEMORY, axes.GB, "GB"), *marks]
    return _chart("Memory of the whole batch", x, designs, series, notes, is_named)


def _held(result: Mapping[str, Any]) -> Mapping[str, Any]:
    if not result.get("fits_whole_batch") or result["kv_bytes"] <= result["free_bytes"]:
        return result
    return {**result, "kv_bytes": result["free_bytes"]}


def _marks(name: str, values: Sequence[float], places: tuple[float, ...], is_limit: bool = True) -> Series:
    look = style.Style(style.VERMILLION, marker="diamond") if is_limit else style.Style(style.BLACK, marker="square")
    return marks.points(name, values, places, look, (f"{name}: {v / axes.GB:,.4g} GB" for v in values), size=0.8)


def step_time(designs: Rows, is_named: bool = False) -> Chart:
    """Mean time of a decode step, by part; designs that do not fit have no bar. Names as in `memory`."""
    parts = rows.step_parts(result for _, result in designs)
    results = [result for _, result in designs]
    tops = [_total(result, parts) for result in results] + whiskers.spread(results, "decode_step_s")
    x = axes.linear("mean decode step", "ms", tops, axes.MILLISECOND)
    series = _stack(designs, parts, axes.MILLISECOND, "ms")
    for place, result in zip(_places(designs), results, strict=True):
        series += whiskers.level(place, whiskers.ends(result, "decode_step_s"))
    missing = [name for name, result in designs if not result["feasible"]]
    notes = (
        "Exposed: what does not hide behind the reads.",
        *whiskers.notes(results, "decode_step_s"),
        *filter(None, [refused_text(results)]),
        *(f"Does not fit: {name}." for name in missing),
    )
    return whiskers.cut(_chart("Time of a decode step", x, designs, series, notes, is_named))


def table(designs: Rows) -> pd.DataFrame:
    """The numbers of the designs, a row each, in SI base units."""
    return pd.DataFrame(
        [{"design": name, **result, "assumptions": ", ".join(result["assumptions"])} for name, result in designs]
    )


def _total(result: Mapping[str, Any], columns: Mapping[str, str]) -> float:
    return sum(float(result[column] or 0) for column in columns)


def _places(designs: Rows) -> tuple[float, ...]:
    """Places on the axis, the first design on top."""
    return tuple(float(len(designs) - 1 - i) for i in range(len(designs)))


def _stack(designs: Rows, columns: Mapping[str, str], per_unit: float, unit: str) -> list[Series]:
    lengths = {name: [float(result[column] or 0) for _, result in designs] for column, name in columns.items()}

    def texts(part: str) -> list[str]:
        named = zip(designs, lengths[part], strict=True)
        return [f"{design}\n{part}: {value / per_unit:,.4g} {unit}" for (design, _), value in named]

    return marks.stacked(lengths, _places(designs), texts, 0.62)


def _chart(title: str, x: Axis, designs: Rows, series: list[Series], notes: tuple[str, ...], is_named: bool) -> Chart:
    several = len(designs) > 1
    if is_named:
        y = axes.categories("design", [name for name, _ in designs][::-1])
    else:
        numbers = [str(i) if several else "" for i in range(len(designs), 0, -1)]
        y = axes.categories("design" if several else "", numbers)
        if several:
            keys = "; ".join(f"{i}: {name}" for i, (name, _) in enumerate(designs, 1))
            notes = (*notes, f"Designs {keys}.")
    height = 30 + (14 if is_named else 26) * len(designs)
    return Chart(title, panels=(Panel("", x, y, tuple(series)),), panel_height_pt=height, notes=notes)
