"""One quantizer on a KV dump: bits by part, errors by head, values before and after."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from dse.core.errors import InputError
from dse.figures.charts import bit_ledger
from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Axis, Chart, ColorScale, Dash, Panel, Series
from dse.figures.registry import Written, by, figure
from dse.figures.source import Source
from dse.measure.lab import ERRORS

#: dashes of the marks of a histogram
_DASHES: tuple[Dash, ...] = ("dash", "dot", "dashdot", "solid")
#: where nothing is counted, on a logarithmic axis of counts
_NOTHING = 0.5


def scale(name: str, unit: str, *values: object) -> ColorScale:
    """Colors from the smallest to the largest of `values` (arrays, sequences, numbers), round ticks between."""
    together = np.concatenate([np.asarray(part, dtype=float).reshape(-1) for part in values])
    finite = together[np.isfinite(together)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    axis = axes.around(name, unit, [low, high])
    ticks = tuple(tick for tick in axis.ticks if low <= tick[0] <= high)
    return ColorScale(replace(axis, low=low, high=high, ticks=ticks))


def _counted(name: str, unit: str, first: int, n: int) -> Axis:
    """Places first, first + 1, ...: round ticks."""
    places = axes.round_ticks(first, first + n - 1, 8, (1, 2, 5, 10))
    ticks = tuple((at, f"{at:,.0f}") for at in places if at.is_integer())
    return Axis(name, unit=unit, low=first - 0.5, high=first + n - 0.5, ticks=ticks)


def bits(table: pd.DataFrame, title: str, notes: tuple[str, ...] = ()) -> Chart:
    """Stored bits an element by part: a bar for keys, for values and for both (`measure_view.ledger`)."""
    return Chart(title, panels=(bit_ledger.panel(table, "side"),), panel_height_pt=26.0 * len(table), notes=notes)


def compared(table: pd.DataFrame, title: str) -> Chart:
    """Error of the attention output over stored bits, a point a quantizer of `dse.measure.lab.compared`."""
    known = table[table["output_error"].notna()]
    looks, series = style.looks(list(known["quantizer"])), []
    for row in known.itertuples():
        hover = f"{row.quantizer}\n{row.stored_bits:.4g} bit stored\n{row.output_error:.2%} off"
        place = [row.stored_bits], [row.output_error]
        series.append(marks.points(row.quantizer, *place, looks[row.quantizer], [hover], size=1.3))
    x = axes.linear("stored bits", "bit", known["stored_bits"].astype(float))
    y = axes.linear("error of the attention output", "%", known["output_error"].astype(float), 0.01)
    return Chart(
        title, panels=(Panel("", x, y, tuple(series)),), panel_height_pt=200, notes=("Less is better on both axes.",)
    )


def heads(errors: pd.DataFrame, column: str, name: str, unit: str, title: str, notes: tuple[str, ...] = ()) -> Chart:
    """An error of one side as a map of layers and heads; columns layer, head and the error."""
    by_head = errors.dropna(subset=["layer", "head"])
    layers, n_heads = sorted(set(by_head["layer"])), int(by_head["head"].max()) + 1
    cells = {(row.layer, row.head): float(getattr(row, column)) for row in by_head.itertuples()}
    values = tuple(cells.get((layer, head), math.nan) for layer in layers for head in range(n_heads))
    texts = tuple(
        f"layer {layer}, head {head}\n{name} {cells.get((layer, head), math.nan):.5g} {unit}".rstrip()
        for layer in layers
        for head in range(n_heads)
    )
    every = -(-len(layers) // 16)
    ticks = tuple((float(i), str(layer)) for i, layer in enumerate(layers) if i % every == 0)
    y = Axis("layer", unit="", low=-0.5, high=len(layers) - 0.5, ticks=ticks)
    series = Series(
        name,
        kind="heat",
        x=tuple(map(float, range(n_heads))),
        y=tuple(map(float, range(len(layers)))),
        values=values,
        hover=texts,
        in_legend=False,
    )
    panel = Panel("", replace(_counted("head", "", 0, n_heads), unit=""), y, (series,))
    height = min(max(14.0 * len(layers), 80.0), 320.0)
    return Chart(title, panels=(panel,), panel_height_pt=height, notes=notes, colors=scale(name, unit, values))


def histogram(
    table: pd.DataFrame, bounds: Sequence[tuple[str, float, float]], title: str, notes: tuple[str, ...] = ()
) -> Chart:
    """Histogram of values before and after with counts on a logarithmic axis, and the quantizer's bounds."""
    top = float(max(table["n_before"].max(), table["n_after"].max(), 1))
    y = replace(axes.log10("values in a bin", "count", [1.0, top]), low=_NOTHING)
    edges = [float(table["low"].iloc[0]), float(table["high"].iloc[-1])]
    x = axes.around("value", "", [*edges, *(bound for _, low, high in bounds for bound in (low, high))])
    series = [_steps(table, "n_before", "before", style.BLUE), _steps(table, "n_after", "after", style.ORANGE)]
    for i, (name, low, high) in enumerate(bounds):
        dash = _DASHES[i % 4]
        series += [marks.rule(name, y, bound, dash=dash, upright=True, is_note=False) for bound in (low, high)]
    return Chart(title, panels=(Panel("", x, y, tuple(series)),), panel_height_pt=200, notes=notes)


def _steps(table: pd.DataFrame, column: str, name: str, color: str) -> Series:
    """The outline of the bars."""
    x = np.repeat(np.append(table["low"].to_numpy(), table["high"].iloc[-1]), 2)[1:-1]
    y = np.repeat(np.maximum(table[column].to_numpy(dtype=float), _NOTHING), 2)
    return marks.line(name, x, y, style.Style(color, marker=""))


def values(part: np.ndarray, first_token: int, name: str, colors: ColorScale, title: str) -> Chart:
    """Keys or values [tokens, channels] of a head as a map, tokens to the right; to four digits."""
    n_tokens, n_channels = part.shape
    series = Series(
        name,
        kind="heat",
        x=tuple(float(first_token + i) for i in range(n_tokens)),
        y=tuple(map(float, range(n_channels))),
        values=tuple(float(f"{value:.4g}") for value in part.T.reshape(-1)),
        in_legend=False,
    )
    panel = Panel(
        "",
        _counted("position", "token", first_token, n_tokens),
        _counted("channel", "of the head", 0, n_channels),
        (series,),
    )
    return Chart(title, panels=(panel,), panel_height_pt=150, colors=colors)


def _lab(*stems: str) -> Written:
    return by("lab SOURCE --quantizer Q --out DIR", *stems)


def _titles(source: Source, title: str) -> tuple[str, tuple[str, ...]]:
    return source.about.get("title", title), tuple(source.about.get("notes", ()))


@figure(
    "lab_bits",
    "Bits an element that a quantizer really stored of a KV dump, by part.",
    _lab("bits"),
    ("quantizer", "stored_bits", "effective_bits"),
    order=240,
)
def lab_bits(source: Source) -> Chart:
    """Bits by part as stored."""
    bit_ledger.check_parts(source.table)
    return bits(source.table, *_titles(source, "Bits an element as stored"))


@figure(
    "lab_heads",
    "An error of keys or values as a map of layers and heads.",
    by("lab SOURCE --quantizer Q --out DIR` or `dse measure SOURCE --out DIR", "errors", "measured"),
    ("layer", "head", "side"),
    order=250,
)
def lab_heads(source: Source) -> Chart:
    """One error of one side by layer and head: those that stand beside, else the first that the table has."""
    table = source.table.dropna(subset=["layer", "head"]).astype({"layer": int, "head": int})
    column = source.about.get("error") or next((name for name in ERRORS if name in table), "")
    if column not in ERRORS or column not in table:
        raise InputError(f"columns: must have one of {', '.join(ERRORS)}")
    side = source.about.get("side") or next((str(side) for side in table["side"]), "key")
    table = table[table["side"] == side]
    if "context_tokens" in table:  # of `dse measure`: the longest, as its own figures
        table = table[table["context_tokens"] == table["context_tokens"].max()]
    method = Source(table).single("method") if "method" in table else ""
    if table.empty or table[column].isna().all():
        raise InputError(f"{column}: no head of {side}s has it: choose another with --only side=NAME")
    if table.duplicated(["layer", "head"]).any():
        raise InputError("layer, head: several rows of one head: choose with --only COLUMN=VALUE")
    name, unit, _ = ERRORS[column]
    title = f"{name[0].upper()}{name[1:]} by layer and head, {side}s{f', {method}' if method else ''}"
    return heads(table, column, name, unit, *_titles(source, title))


@figure(
    "lab_histogram",
    "Values of a head before and after a quantizer, its thresholds marked.",
    _lab("histogram"),
    ("low", "high", "n_before", "n_after"),
    order=260,
)
def lab_histogram(source: Source) -> Chart:
    """Values before and after, with the bounds that stand beside the table."""
    bounds = [(str(name), float(low), float(high)) for name, low, high in source.about.get("marks", [])]
    return histogram(source.table, bounds, *_titles(source, "Values before and after"))


def lab_values(part: str, source: Source) -> Chart:
    """A map of tokens and channels of one head: `before`, `after` or `error`."""
    table = source.table
    if table.duplicated(["token", "channel"]).any():
        raise InputError("token, channel: several rows of one element: choose with --only COLUMN=VALUE")
    grids = {name: table.pivot(index="token", columns="channel", values=name) for name in ("before", "after")}
    before, after = (grid.to_numpy(dtype=float) for grid in grids.values())
    first = int(grids["before"].index[0])
    title = f"{part[0].upper()}{part[1:]}, {source.about.get('place', 'one head')}"
    if part == "error":
        off = abs(after - before)
        return values(off, first, "absolute error", scale("absolute error", "", off, 0), title)
    return values(before if part == "before" else after, first, "value", scale("value", "", before, after), title)


for _i, (_part, _words) in enumerate(
    (("before", "as they were"), ("after", "as a quantizer gives them back"), ("error", "how far the two are apart"))
):
    figure(
        f"lab_{_part}",
        f"Tokens and channels of a head as a map: {_words}.",
        _lab("values"),
        ("token", "channel", "before", "after"),
        order=270 + _i,
    )(partial(lab_values, _part))
