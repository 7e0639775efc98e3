"""Colours, dashes, markers and hatches: told apart by colour-blind readers and in grey print.

Colours: Okabe and Ito (2008), without the yellow that white paper swallows. Each style differs from its
neighbours in at least two of colour, dash and marker.
"""

from typing import NamedTuple

from dse.plots.chart import Dash, Series

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#7F7F7F"


class Style(NamedTuple):
    """How one system is drawn."""

    colour: str
    dash: Dash
    marker: str


STYLES = (
    Style(BLACK, "solid", "circle"),
    Style(SKY, "dash", "square"),
    Style(PURPLE, "dot", "diamond"),
    Style(BLUE, "dashdot", "triangle-up"),
    Style(GREEN, "dash", "triangle-down"),
    Style(BLUE, "dot", "triangle-left"),
    Style(GREEN, "dashdot", "pentagon"),
    Style(GREY, "solid", "hexagon"),
    Style(GREY, "dash", "triangle-right"),
    Style(ORANGE, "solid", "star"),
    Style(VERMILLION, "solid", "cross"),
    Style(PURPLE, "solid", "diamond"),
)
#: systems that one figure can tell apart
MAX_SYSTEMS = len(STYLES)
#: panels that one figure holds
MAX_PANELS = 9

#: fills of stacked bars: colour and hatch
FILLS = (
    (BLUE, ""),
    (ORANGE, "/"),
    (GREEN, "\\"),
    (PURPLE, "x"),
    (SKY, "-"),
    (VERMILLION, "."),
    (GREY, "|"),
    ("#D9D9D9", "+"),
)

OUT_OF_MEMORY = "out of memory"
NOT_AT_ONCE = "not all at once"

#: legend entries of the two marks
KEY_OUT_OF_MEMORY = Series(OUT_OF_MEMORY, "scatter", marker="x-thin", colour=BLACK, is_note=True)
KEY_NOT_AT_ONCE = Series(NOT_AT_ONCE, "scatter", marker="circle", colour=BLACK, opened=(True,), is_note=True)
