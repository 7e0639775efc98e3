"""One quantizer on a KV dump: bits by part, errors by head, values before and after; drawn by the explorer."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from dse.plots import axes, bit_ledger, style
from dse.plots.chart import Axis, Chart, ColourScale, Dash, Panel, Series

#: dashes of the marks of a histogram
_DASHES: tuple[Dash, ...] = ("dash", "dot", "dashdot", "solid")
#: where nothing is counted, on a logarithmic axis of counts
_NOTHING = 0.5


def scale(name: str, unit: str, *values: object) -> ColourScale:
    """Colours from the smallest to the largest of `values` (arrays, sequences, numbers), round ticks between."""
    together = np.concatenate([np.asarray(part, dtype=float).reshape(-1) for part in values])
    finite = together[np.isfinite(together)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    axis = axes.around(name, unit, [low, high])
    ticks = tuple(tick for tick in axis.ticks if low <= tick[0] <= high)
    return ColourScale(replace(axis, low=low, high=high, ticks=ticks))


def _counted(name: str, unit: str, first: int, n: int) -> Axis:
    """Places first, first + 1, ...: round ticks."""
    raw = max(n / 8, 1)
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    ticks = tuple((float(i), f"{i:,}") for i in range(-(-first // step) * step, first + n, step))
    return Axis(name, unit, first - 0.5, first + n - 0.5, ticks)


def bits(table: pd.DataFrame, title: str, notes: tuple[str, ...] = ()) -> Chart:
    """Stored bits an element by part: a bar for keys, for values and for both (`measure_view.ledger`)."""
    return Chart(title, (bit_ledger.panel(table, "side"),), panel_height_pt=26.0 * len(table), notes=notes)


def heads(errors: pd.DataFrame, column: str, name: str, unit: str, title: str, notes: tuple[str, ...] = ()) -> Chart:
    """An error of one side as a map of layers and heads; columns layer, head and the error."""
    own = errors.dropna(subset=["layer", "head"])
    layers, n_heads = sorted(set(own["layer"])), int(own["head"].max()) + 1
    cells = {(row.layer, row.head): float(getattr(row, column)) for row in own.itertuples()}
    values = tuple(cells.get((layer, head), math.nan) for layer in layers for head in range(n_heads))
    texts = tuple(
        f"layer {layer}, head {head}\n{name} {cells.get((layer, head), math.nan):.5g} {unit}".rstrip()
        for layer in layers for head in range(n_heads)
    )  # fmt: skip
    every = -(-len(layers) // 16)
    ticks = tuple((float(i), str(layer)) for i, layer in enumerate(layers) if i % every == 0)
    y = Axis("layer", "", -0.5, len(layers) - 0.5, ticks)
    series = Series(
        name, "heat", tuple(map(float, range(n_heads))), tuple(map(float, range(len(layers)))), values=values,
        hover=texts, in_legend=False,
    )  # fmt: skip
    panel = Panel("", replace(_counted("head", "", 0, n_heads), unit=""), y, (series,))
    height = min(max(14.0 * len(layers), 80.0), 320.0)
    return Chart(title, (panel,), panel_height_pt=height, notes=notes, colours=scale(name, unit, values))


def histogram(
    table: pd.DataFrame, marks: Sequence[tuple[str, float, float]], title: str, notes: tuple[str, ...] = ()
) -> Chart:
    """How often values occur before and after, counts on a logarithmic axis, and pairs of bounds between them."""
    top = float(max(table["n_before"].max(), table["n_after"].max(), 1))
    y = replace(axes.log10("values in a bin", "count", [1.0, top]), low=_NOTHING)
    edges = [float(table["low"].iloc[0]), float(table["high"].iloc[-1])]
    x = axes.around("value", "", [*edges, *(bound for _, low, high in marks for bound in (low, high))])
    series = [
        Series("before", "line", *_steps(table, "n_before"), colour=style.BLUE, marker=""),
        Series("after", "line", *_steps(table, "n_after"), colour=style.ORANGE, marker=""),
    ]
    for i, (name, low, high) in enumerate(marks):
        series += [
            Series(name, "line", (bound, bound), (y.low, y.high), colour=style.BLACK, dash=_DASHES[i % 4], marker="")
            for bound in (low, high)
        ]
    return Chart(title, (Panel("", x, y, tuple(series)),), panel_height_pt=200, notes=notes)


def _steps(table: pd.DataFrame, column: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The outline of the bars."""
    x = np.repeat(np.append(table["low"].to_numpy(), table["high"].iloc[-1]), 2)[1:-1]
    y = np.repeat(np.maximum(table[column].to_numpy(dtype=float), _NOTHING), 2)
    return tuple(map(float, x)), tuple(map(float, y))


def values(part: np.ndarray, first_token: int, name: str, colours: ColourScale, title: str) -> Chart:
    """Keys or values [tokens, channels] of a head as a map, tokens to the right; to four digits."""
    n_tokens, n_channels = part.shape
    series = Series(
        name, "heat", tuple(float(first_token + i) for i in range(n_tokens)), tuple(map(float, range(n_channels))),
        values=tuple(float(f"{value:.4g}") for value in part.T.reshape(-1)), in_legend=False,
    )  # fmt: skip
    panel = Panel(
        "", _counted("position", "token", first_token, n_tokens), _counted("channel", "of the head", 0, n_channels),
        (series,),
    )  # fmt: skip
    return Chart(title, (panel,), panel_height_pt=150, colours=colours)
