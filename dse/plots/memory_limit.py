"""Memory of a few systems against batch or length, up to what the device has (NQKV Figures 8 and 9)."""

import pandas as pd

from dse.plots import axes, style
from dse.plots.chart import Chart, Panel, Series

#: distance of the crosses above the capacity, as a share of it
CROSS_STEP = 0.045


def chart(title: str, column: str, unit: str, table: pd.DataFrame, note: str) -> Chart:
    """One panel: a line per system over `column`, and above the capacity a cross for what does not fit.

    Columns: system, `column`, memory_bytes, capacity_bytes, fits.
    """
    systems = list(dict.fromkeys(table["system"]))
    capacity = float(table["capacity_bytes"].iloc[0])
    name = "prompt" if column == "input_tokens" else column
    x = axes.log2_at(name, unit, [float(n) for n in table[column]], unit == "tokens")
    y = axes.linear("peak memory", "GB", [capacity * (1 + CROSS_STEP * (len(systems) + 0.5))], axes.GB)
    series, looks = [], style.of_methods(systems)
    for i, system in enumerate(systems):
        own, look = table[table["system"] == system], looks[system]
        good, bad = own[own["fits"]], own[~own["fits"]]
        series.append(Series(
            system, "line", tuple(map(float, good[column])), tuple(map(float, good["memory_bytes"])),
            colour=look.colour, dash=look.dash, marker=look.marker, hover=_texts(good, column, unit),
        ))  # fmt: skip
        if len(bad):
            heights = (capacity * (1 + CROSS_STEP * (i + 1)),) * len(bad)
            series.append(Series(
                style.OUT_OF_MEMORY, "scatter", tuple(map(float, bad[column])), heights, colour=look.colour,
                marker="x-thin", hover=_texts(bad, column, unit), is_note=True, in_legend=False,
            ))  # fmt: skip
    held = f"capacity {capacity / axes.GB:,.4g} GB"
    series.append(Series(held, "line", (x.low, x.high), (capacity, capacity), style.BLACK, dash="dash", marker=""))
    return Chart(
        title, (Panel("", x, y, tuple(series)),), panel_height_pt=200, keys=(style.KEY_OUT_OF_MEMORY,),
        notes=(f"Crosses above the capacity: out of memory, in the order of the legend. {note}",),
    )  # fmt: skip


def _texts(own: pd.DataFrame, column: str, unit: str) -> tuple[str, ...]:
    return tuple(
        f"{row['system']}, {row[column]:,} {unit}\nneeds {row['memory_bytes'] / axes.GB:,.4g} GB"
        for _, row in own.iterrows()
    )
