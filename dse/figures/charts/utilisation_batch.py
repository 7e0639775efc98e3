"""Shares of the peak rates against batch: prefill and generation, and generation by operation (Oaken Figure 3)."""

import pandas as pd

from dse.core.errors import InputError, show
from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Chart, Panel, Series
from dse.figures.registry import by_validation, figure
from dse.figures.source import Source
from dse.validate.papers import UTILISATION_MODEL

#: phase -> its name in the figure
PHASES = {"prefill": "prefill", "decode": "generation"}


@figure(
    "oaken_figure_3",
    "Shares of the peak rates against batch (Oaken Figure 3).",
    by_validation("oaken_figure_3"),
    ("batch", "phase", "name", "compute_utilisation", "bandwidth_utilisation"),
    order=530,
    key=("batch", "phase", "name"),
)
def chart(source: Source) -> Chart:
    """Three panels: FLOP/s of both phases, FLOP/s of generation by operation, bandwidth of generation by operation.

    Phases are prefill and decode; the name "all" stands for a whole phase.
    """
    table = source.table
    for phase in dict.fromkeys(table["phase"]):
        if phase not in PHASES:
            raise InputError(f"phase = {show(phase)}: must be {' or '.join(PHASES)}")
    is_whole = table["name"] == "all"
    if is_whole.all() or not is_whole.any():
        raise InputError('name: must be "all" for a phase, and beside it the operations of decode by name')
    x = axes.log2_at("batch", "sequences", [float(n) for n in table["batch"]])
    y = [axes.shares(f"share of peak {rate}", 20, high=1.05) for rate in ("FLOP/s", "bandwidth")]
    whole, decode = table[table["name"] == "all"], table[(table["phase"] == "decode") & (table["name"] != "all")]
    phases = [(name, whole[whole["phase"] == phase]) for phase, name in PHASES.items()]
    parts = [(name.replace("_", " "), decode[decode["name"] == name]) for name in dict.fromkeys(decode["name"])]
    compute, bandwidth = "compute_utilisation", "bandwidth_utilisation"
    # the host of a server uses neither
    parts = [(name, part) for name, part in parts if (part[compute] > 0).any() or (part[bandwidth] > 0).any()]
    decode = decode[(decode[compute] > 0) | (decode[bandwidth] > 0)]
    looks = style.looks([name for name, _ in (*phases, *parts)])
    # far below the peak: on a logarithmic axis, which shows them apart
    small = axes.log10(y[0].name, "%", decode[compute].astype(float), axes.PERCENT)
    panels = (
        Panel("prefill and generation", x, y[0], _lines(phases, compute, looks)),
        Panel("generation, by operation", x, small, _lines(parts, compute, looks)),
        Panel("generation, by operation", x, y[1], _lines(parts, bandwidth, looks)),
    )
    return Chart(
        f"Use of the peaks, {UTILISATION_MODEL} FP16 on an A100, 1K in, 1K out (Oaken Figure 3)",
        panels=panels,
        n_columns=3,
        panel_height_pt=150,
        notes=("Kernels as measured (vLLM); the paper shows busy cores. Each operation over its own time.",),
    )


def _lines(groups: list[tuple[str, pd.DataFrame]], column: str, looks: dict[str, style.Style]) -> tuple[Series, ...]:
    lines = []
    for name, points in groups:
        texts = (f"{name}, batch {row['batch']:,}\n{100 * row[column]:.3g} %" for _, row in points.iterrows())
        lines.append(marks.line(name, points["batch"], points[column], looks[name], texts))
    return tuple(lines)
