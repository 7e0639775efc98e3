"""Axes with round ticks: linear from zero, powers of two, powers of ten, and categories.

Ticks of linear axes are matplotlib's; plotly gets the same. Those of logarithmic axes are ours: LogLocator widens the
axis to whole decades or names none of what lies between, where ours end at the values and stand at powers of two.
"""

import math
from collections.abc import Iterable, Sequence

from dse.core import units
from dse.figures.drawing.chart import Axis

GB, TB, TERA_FLOPS = units.to_base(1, "GB"), units.to_base(1, "TB"), units.to_base(1, "TFLOP/s")
MILLISECOND, PERCENT = units.to_base(1, "ms"), 0.01

#: room beyond the outermost points of a logarithmic axis, in octaves or as a share of the range
LOG_ROOM = 0.35
#: the same of a linear axis that need not start at zero, as a share of the range
ROOM = 0.12


def _text(value: float) -> str:
    """A tick as people write it: 1,000, 0.5, 20."""
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def round_ticks(low: float, high: float, n: int, steps: Sequence[float] = (1, 2, 2.5, 5, 10)) -> list[float]:
    """Places from `low` to `high` at `steps` times a power of ten, about `n` of them."""
    from matplotlib.ticker import MaxNLocator

    places = MaxNLocator(n, steps=steps).tick_values(low, high)
    shown = dict.fromkeys(round(float(at), 12) + 0.0 for at in places)  # each once, no -0
    return [at for at in shown if low <= at <= high]


def linear(name: str, unit: str, values: Iterable[float], per_unit: float = 1.0, n_ticks: int = 5) -> Axis:
    """From 0 to a little above the largest of `values` (base units), ticks at 1, 2, 2.5 or 5 times ten to the n."""
    top = max([value / per_unit for value in values if math.isfinite(value)], default=1.0) or 1.0
    high = top * 1.08
    ticks = tuple((at * per_unit, _text(at)) for at in round_ticks(0.0, high, n_ticks))
    return Axis(name, unit=unit, low=0.0, high=high * per_unit, ticks=ticks, per_unit=per_unit)


def around(name: str, unit: str, values: Iterable[float], per_unit: float = 1.0, n_ticks: int = 4) -> Axis:
    """A linear axis around `values` (base units) that need not start at zero, ticks at 1, 2, 2.5 or 5 times ten to the
    n."""
    shown = [value / per_unit for value in values]
    low, high = min(shown), max(shown)
    room = ROOM * (high - low) or 0.05 * abs(high) or 1.0
    low, high = low - room, high + room
    ticks = tuple((at * per_unit, _text(at)) for at in round_ticks(low, high, n_ticks))
    return Axis(name, unit=unit, low=low * per_unit, high=high * per_unit, ticks=ticks, per_unit=per_unit)


def shares(name: str, every: int, high: float = 1.0) -> Axis:
    """Shares from 0 to `high` in percent, a tick at each `every` percent."""
    ticks = tuple((percent / 100, f"{percent}") for percent in range(0, 101, every))
    return Axis(name, unit="%", low=0.0, high=high, ticks=ticks, per_unit=PERCENT)


def layers(numbers: Sequence[int], room: float) -> Axis:
    """Layers by number, at most 12 of them named, with room before the first and after the last."""
    ticks = tuple((float(n), f"{n}") for n in numbers[:: -(-len(numbers) // 12)])
    return Axis("layer", unit="index", low=numbers[0] - room, high=numbers[-1] + room, ticks=ticks)


def tokens_text(n_tokens: int) -> str:
    """1024 as 1K: the papers' K is 1024."""
    return f"{n_tokens / 1024:,.0f}K" if n_tokens >= 1024 and n_tokens % 1024 == 0 else f"{n_tokens:,}"


def count_text(n: float) -> str:
    """A count as a short tick: 16, 1,024, 131k, 16.8M."""
    if n < 100_000:
        return f"{n:,.0f}"
    size, letter = next((s, t) for s, t in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if n >= s)
    return f"{n / size:,.3g}{letter}" if n < 1e12 else f"{n:.2g}"


def log2_at(name: str, unit: str, positions: Sequence[float], in_k: bool = False) -> Axis:
    """A base-2 axis with a tick at each of `positions` (thinned to at most 8), as of a sweep over batches."""
    places = sorted(set(positions)) or [1.0]
    every = -(-len(places) // 8)
    ticks = tuple((p, tokens_text(int(p)) if in_k else count_text(p)) for p in places[::every])
    room = 2.0**LOG_ROOM
    return Axis(name, unit=unit, low=places[0] / room, high=places[-1] * room, ticks=ticks, log=True)


def log2(name: str, unit: str, values: Iterable[float], per_unit: float = 1.0) -> Axis:
    """A base-2 axis around `values` with ticks at powers of two of the shown unit."""
    shown = [value / per_unit for value in values if value > 0 and math.isfinite(value)] or [1.0]
    room = 2.0**LOG_ROOM
    low, high = min(shown) / room, max(shown) * room
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    every = max(1, -(-(last - first + 1) // 7))
    ticks = tuple((2.0**e * per_unit, _text(2.0**e)) for e in range(first, last + 1, every))
    return Axis(name, unit=unit, low=low * per_unit, high=high * per_unit, ticks=ticks, log=True, per_unit=per_unit)


def log10(name: str, unit: str, values: Iterable[float], per_unit: float = 1.0) -> Axis:
    """A base-10 axis around `values`, from a power of ten to a power of ten."""
    shown = [value / per_unit for value in values if value > 0 and math.isfinite(value)] or [1.0]
    first, last = math.floor(math.log10(min(shown))), math.ceil(math.log10(max(shown)))
    last = max(last, first + 1)
    steps = (1, 2, 5) if last == first + 1 else (1,)  # a single power of ten has names between
    places = [m * 10.0**e for e in range(first, last + 1) for m in steps if e < last or m == 1]
    ticks = tuple((at * per_unit, _text(round(at, 12))) for at in places)
    return Axis(
        name,
        unit=unit,
        low=10.0**first * per_unit,
        high=10.0**last * per_unit,
        ticks=ticks,
        log=True,
        per_unit=per_unit,
    )


def categories(name: str, labels: Sequence[str], unit: str = "") -> Axis:
    """Places 0, 1, 2, ... with names; `unit` where the names are numbers (batches)."""
    ticks = tuple((float(i), label) for i, label in enumerate(labels))
    return Axis(name, unit=unit, low=-0.6, high=len(labels) - 0.4, ticks=ticks)
