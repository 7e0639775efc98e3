"""Series from columns of numbers: lines, points, bars, stacks of bars, and rules at a value."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from dse.figures.drawing.chart import Axis, Dash, Series
from dse.figures.drawing.style import BLACK, FILLS, Style


def _floats(values: Iterable[Any]) -> tuple[float, ...]:
    return tuple(map(float, values))


def line(name: str, x: Iterable[Any], y: Iterable[Any], look: Style, hover: Iterable[str] = (), **more: Any) -> Series:
    """Points joined by a line; `more` are further fields of `Series`."""
    color, dash, marker = look
    fields = {"color": color, "dash": dash, "marker": marker, "hover": tuple(hover), **more}
    return Series(name, kind="line", x=_floats(x), y=_floats(y), **fields)


def points(
    name: str, x: Iterable[Any], y: Iterable[Any], look: Style, hover: Iterable[str] = (), **more: Any
) -> Series:
    """Points apart; `more` are further fields of `Series`."""
    fields = {"color": look.color, "marker": look.marker, "hover": tuple(hover), **more}
    return Series(name, kind="scatter", x=_floats(x), y=_floats(y), **fields)


def bars(
    name: str,
    places: Iterable[Any],
    lengths: Iterable[Any],
    fill: tuple[str, str],
    hover: Iterable[str] = (),
    *,
    kind: Literal["bar", "hbar"] = "hbar",
    base: Iterable[Any] = (),
    **more: Any,
) -> Series:
    """Bars from `base`, or zero, at their places: upright (bar) or level (hbar), in a color and a hatch."""
    x, y = (_floats(lengths), _floats(places)) if kind == "hbar" else (_floats(places), _floats(lengths))
    fields = {"color": fill[0], "hatch": fill[1], "hover": tuple(hover), "base": _floats(base), **more}
    return Series(name, kind=kind, x=x, y=y, **fields)


def stacked(
    parts: Mapping[str, Iterable[Any]],
    places: Iterable[Any],
    hover: Callable[[str], Iterable[str]],
    width: float,
    kind: Literal["bar", "hbar"] = "hbar",
) -> list[Series]:
    """Bars of several parts, each on those before it; `hover` gives the texts of a part."""
    places = _floats(places)
    base, stack = (0.0,) * len(places), []
    for (name, values), fill in zip(parts.items(), FILLS, strict=False):
        lengths = _floats(values)
        stack.append(bars(name, places, lengths, fill, hover(name), kind=kind, base=base, width=width))
        base = tuple(a + b for a, b in zip(base, lengths, strict=True))
    return stack


def rule(
    name: str,
    along: Axis,
    value: float,
    color: str = BLACK,
    dash: Dash = "dash",
    *,
    upright: bool = False,
    is_note: bool = True,
    **more: Any,
) -> Series:
    """A line at a value, over the whole length of the axis that it is parallel to."""
    ends, same = (along.low, along.high), (float(value),) * 2
    x, y = (same, ends) if upright else (ends, same)
    return Series(name, kind="line", x=x, y=y, color=color, dash=dash, marker="", is_note=is_note, **more)


def diagonals(name: str, axis: Axis, factor: float = 1.0, color: str = BLACK, dash: Dash = "solid") -> list[Series]:
    """Lines where y is `factor` times x, or x is `factor` times y, over the length of the axis of x."""
    ends = (axis.low, axis.high)
    return [
        line(name, ends, (off * end for end in ends), Style(color, dash, ""), is_note=True)
        for off in dict.fromkeys((factor, 1 / factor))
    ]
