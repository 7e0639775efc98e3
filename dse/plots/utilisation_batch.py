"""Shares of the peak rates against batch: prefill and generation, and generation by operation (Oaken Figure 3)."""

import pandas as pd

from dse.plots import axes, style
from dse.plots.chart import Axis, Chart, Panel, Series

PERCENT = 0.01

#: phase -> its name in the figure
PHASES = {"prefill": "prefill", "decode": "generation"}


def chart(title: str, table: pd.DataFrame, note: str) -> Chart:
    """Three panels: FLOP/s of both phases, FLOP/s of generation by operation, bandwidth of generation by operation.

    Columns: batch, phase (prefill, decode), name ("all" for a phase), compute_utilisation, bandwidth_utilisation.
    """
    x = axes.log2_at("batch", "sequences", [float(n) for n in table["batch"]])
    y = _percent("share of peak FLOP/s"), _percent("share of peak bandwidth")
    whole, decode = table[table["name"] == "all"], table[(table["phase"] == "decode") & (table["name"] != "all")]
    phases = [(name, whole[whole["phase"] == phase]) for phase, name in PHASES.items()]
    parts = [(name.replace("_", " "), decode[decode["name"] == name]) for name in dict.fromkeys(decode["name"])]
    compute, bandwidth = "compute_utilisation", "bandwidth_utilisation"
    panels = (
        Panel("prefill and generation", x, y[0], _lines(phases, compute, 0)),
        Panel("generation, by operation", x, _small(y[0].name, decode[compute]), _lines(parts, compute, len(phases))),
        Panel("generation, by operation", x, y[1], _lines(parts, bandwidth, len(phases))),
    )
    return Chart(title, panels, n_columns=3, panel_height_pt=150, notes=(note,))


def _percent(name: str) -> Axis:
    ticks = tuple((n * PERCENT, f"{n}") for n in (0, 20, 40, 60, 80, 100))
    return Axis(name, "%", 0.0, 1.05, ticks, per_unit=PERCENT)


def _small(name: str, shares: pd.Series) -> Axis:
    """Shares far below the peak, on a logarithmic axis that shows them apart."""
    return axes.log10(name, "%", [float(share) for share in shares], PERCENT)


def _lines(groups: list[tuple[str, pd.DataFrame]], column: str, first_style: int) -> tuple[Series, ...]:
    found = []
    for i, (name, own) in enumerate(groups):
        look = style.STYLES[first_style + i]
        texts = tuple(f"{name}, batch {row['batch']:,}\n{100 * row[column]:.3g} %" for _, row in own.iterrows())
        found.append(Series(
            name, "line", tuple(map(float, own["batch"])), tuple(map(float, own[column])), colour=look.colour,
            dash=look.dash, marker=look.marker, hover=texts,
        ))  # fmt: skip
    return tuple(found)
