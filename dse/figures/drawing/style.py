"""Colors, dashes, markers and hatches: told apart by color-blind readers and in gray print.

Colors: Okabe and Ito (2008), without the yellow that white paper swallows. Each style differs from its
neighbours in at least two of color, dash and marker, and from every other in its marker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from dse.figures.drawing.chart import Dash, Series

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, GRAY = "#0072B2", "#D55E00", "#CC79A7", "#7F7F7F"


class Style(NamedTuple):
    """Look of one system."""

    color: str
    dash: Dash = "solid"
    marker: str = "circle"


STYLES = (
    Style(BLACK, "solid", "circle"),
    Style(SKY, "dash", "square"),
    Style(PURPLE, "dot", "diamond"),
    Style(BLUE, "dashdot", "triangle-up"),
    Style(GREEN, "dash", "triangle-down"),
    Style(BLUE, "dot", "triangle-left"),
    Style(GREEN, "dashdot", "pentagon"),
    Style(GRAY, "solid", "hexagon"),
    Style(GRAY, "dash", "triangle-right"),
    Style(ORANGE, "solid", "star"),
    Style(VERMILLION, "solid", "cross"),
    Style(PURPLE, "solid", "diamond-tall"),
    Style(SKY, "solid", "octagon"),
)
#: place in STYLES of the methods that papers compare, the same in every figure; as the report's default systems
METHODS = {
    "FP16": 0,
    "KVQuant": 1,
    "KIVI": 2,
    "QServe": 3,
    "NQKV": 4,
    "SmoothQuant+NQKV": 4,
    "SinkQ": 5,
    "Tender": 6,
    "Atom": 7,
    "SmoothQuant": 8,
    "Oaken": 9,
}


def places(names: Sequence[str], known: Mapping[str, int]) -> dict[str, int]:
    """Place in STYLES of each name: the known one where it is free, else the first that nothing known here has, of a
    color that no other has where there is one."""
    wanted = {name: known[name] for name in names if known.get(name, MAX_SYSTEMS) < MAX_SYSTEMS}
    by_name: dict[str, int] = {}
    for name in names:
        if name in wanted and wanted[name] not in by_name.values():
            by_name[name] = wanted[name]
            continue
        taken = {*by_name.values(), *wanted.values()}
        inks = {_ink(place) for place in taken}
        free = [place for place in range(MAX_SYSTEMS) if place not in taken]
        free.sort(key=lambda place: _ink(place) in inks)
        rest = [place for place in range(MAX_SYSTEMS) if place not in by_name.values()]
        by_name[name] = (free or rest or [len(by_name) % MAX_SYSTEMS])[0]
    return by_name


def _ink(place: int) -> str:
    """The color of a style; black and gray are one, as pages of either theme show black as gray."""
    color = STYLES[place].color
    return GRAY if color == BLACK else color


def looks(names: Sequence[str]) -> dict[str, Style]:
    """The look of each name, by their order alone."""
    return {name: STYLES[place] for name, place in places(names, {}).items()}


def of_methods(names: Sequence[str]) -> dict[str, Style]:
    """The look of methods of papers; a variant ("SinkQ G=128", "NQKV, KV4") has its method's where no other has."""
    stems = {name: name.split(",")[0].removesuffix(" G=128") for name in names}
    at = places(names, {name: METHODS[stem] for name, stem in stems.items() if stem in METHODS})
    return {name: STYLES[place] for name, place in at.items()}


#: systems that one figure can tell apart
MAX_SYSTEMS = len(STYLES)
#: panels that one figure holds
MAX_PANELS = 9

#: fills of stacked bars: color and hatch
FILLS = (
    (BLUE, ""),
    (ORANGE, "/"),
    (GREEN, "\\"),
    (PURPLE, "x"),
    (SKY, "-"),
    (VERMILLION, "."),
    (GRAY, "|"),
    ("#D9D9D9", "+"),
)

OUT_OF_MEMORY = "out of memory"
NOT_AT_ONCE = "exceeds memory: in parts"
KERNELS_ASSUMED = "kernels assumed, not measured"
#: what stars mark: a point of a line, in the line's color
KNEE, CHOSEN = "knee", "chosen"

#: legend entries of marks
KEY_OUT_OF_MEMORY = Series(OUT_OF_MEMORY, kind="scatter", marker="x-thin", color=BLACK, is_note=True)
KEY_KERNELS_ASSUMED = Series(
    KERNELS_ASSUMED, kind="scatter", marker="square", color=GRAY, opened=(True,), size=1.15, is_note=True
)
KEY_KNEE, KEY_CHOSEN = (
    Series(name, kind="scatter", marker="star", color=BLACK, opened=(name == KNEE,), is_note=True)
    for name in (KNEE, CHOSEN)
)
KEY_NOT_AT_ONCE = Series(NOT_AT_ONCE, kind="scatter", marker="circle", color=BLACK, opened=(True,), is_note=True)


def mark(
    key: Series, x: tuple[float, ...], y: tuple[float, ...], size: float = 1.0, labels: tuple[str, ...] = ()
) -> Series:
    """Marks as a legend's key shows them, at places of a panel; the legend has them by the key alone."""
    return replace(key, x=x, y=y, size=size, opened=key.opened * len(x), labels=labels, in_legend=False)
