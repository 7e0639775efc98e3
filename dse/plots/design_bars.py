"""What fills the memory and what fills a decode step, a stacked bar a design; drawn by the explorer's What if."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dse.plots import axes, style
from dse.plots.chart import Axis, Chart, Panel, Series

MEMORY = {
    "weight_bytes": "weights", "kv_bytes": "KV cache", "activation_bytes": "activations",
    "workspace_bytes": "workspace",
}  # fmt: skip
STEP = {
    "linear_s": "linear layers", "attention_s": "attention", "quantize_s": "quantize (exposed)",
    "dequantize_s": "dequantize (exposed)",
}  # fmt: skip
_GB = 1e9
_BAR = 0.62

Rows = Sequence[tuple[str, Mapping[str, Any]]]


def memory(designs: Rows, is_named: bool = False) -> Chart:
    """Bytes that the whole batch takes at its final length, and each device's memory as a mark.

    Bars are numbered, names in a note; `is_named`: names beside the bars.
    """
    tops = [max(_total(result, MEMORY), result["capacity_bytes"]) for _, result in designs]
    x = axes.linear("memory", "GB", tops, _GB)
    places = _places(designs)
    marks = Series(
        "device memory", "scatter", tuple(float(result["capacity_bytes"]) for _, result in designs), places,
        style.VERMILLION, marker="diamond", size=0.8,
        hover=tuple(f"device memory: {result['capacity_bytes'] / _GB:,.4g} GB" for _, result in designs),
    )  # fmt: skip
    note = "A bar beyond the mark does not fit at once."
    return _chart(
        "Memory of the whole batch", x, designs, [*_stack(designs, MEMORY, _GB, "GB"), marks], (note,), is_named
    )


def step_time(designs: Rows, is_named: bool = False) -> Chart:
    """Mean time of a decode step, by part; designs that do not fit have no bar. Names as in `memory`."""
    x = axes.linear("mean decode step", "ms", [_total(result, STEP) for _, result in designs], axes.MILLISECOND)
    missing = [name for name, result in designs if not result["feasible"]]
    notes = ("Exposed: what does not hide behind the reads.", *(f"Does not fit: {name}." for name in missing))
    return _chart("Time of a decode step", x, designs, _stack(designs, STEP, axes.MILLISECOND, "ms"), notes, is_named)


def table(designs: Rows) -> pd.DataFrame:
    """The numbers of the designs, a row each, in SI base units."""
    return pd.DataFrame([
        {"design": name, **result, "assumptions": ", ".join(result["assumptions"])} for name, result in designs
    ])  # fmt: skip


def _total(result: Mapping[str, Any], columns: Mapping[str, str]) -> float:
    return sum(float(result[column] or 0) for column in columns)


def _places(designs: Rows) -> tuple[float, ...]:
    """Places on the axis, the first design on top."""
    return tuple(float(len(designs) - 1 - i) for i in range(len(designs)))


def _stack(designs: Rows, columns: Mapping[str, str], per_unit: float, unit: str) -> list[Series]:
    base = (0.0,) * len(designs)
    found = []
    for (column, name), (colour, hatch) in zip(columns.items(), style.FILLS, strict=False):
        lengths = tuple(float(result[column] or 0) for _, result in designs)
        texts = tuple(
            f"{design}\n{name}: {value / per_unit:,.4g} {unit}"
            for (design, _), value in zip(designs, lengths, strict=True)
        )
        found.append(
            Series(name, "hbar", lengths, _places(designs), colour, base=base, hatch=hatch, width=_BAR, hover=texts)
        )
        base = tuple(a + b for a, b in zip(base, lengths, strict=True))
    return found


def _chart(title: str, x: Axis, designs: Rows, series: list[Series], notes: tuple[str, ...], is_named: bool) -> Chart:
    if is_named:
        y = axes.categories("design", [name for name, _ in designs][::-1])
        return Chart(title, (Panel("", x, y, tuple(series)),), panel_height_pt=30 + 14 * len(designs), notes=notes)
    several = len(designs) > 1
    numbers = [str(i) if several else "" for i in range(len(designs), 0, -1)]
    keys = ("Designs " + "; ".join(name for name, _ in designs) + ".",) if several else ()
    y = axes.categories("design" if several else "", numbers)
    return Chart(
        title, (Panel("", x, y, tuple(series)),), panel_height_pt=30 + 26 * len(designs), notes=(*notes, *keys)
    )
