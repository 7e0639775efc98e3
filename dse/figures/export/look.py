"""A reader's look (`dse.specs.look`) applied to a chart: its words changed, and the page that it is drawn for."""

from dataclasses import replace
from typing import Any

from dse.core.errors import InputError, show
from dse.core.field import LINE
from dse.figures.drawing import page_layout
from dse.figures.drawing.chart import Axis, Chart
from dse.figures.drawing.layout import REPORT, Page
from dse.figures.export.image import MM, PRESETS
from dse.specs.look import ASKED, Look

#: size by name: the report's, and those of papers and slides
SIZES = {"report": REPORT, **PRESETS}


def check(name: str, value: Any) -> None:
    """Raises InputError for a value of a field that no figure can have, or whose letters its font lacks."""
    field = ASKED[name]
    field.check(value)
    missing = [] if field.kind is not LINE else [char for char in value or "" if not page_layout.has_letter(char)]
    if missing:
        raise InputError(f"{field.name} = {show(value)}: the font of figures has no {missing[0]}: write it otherwise")


def applied(look: Look, chart: Chart) -> tuple[Chart, Page]:
    """The chart with its words changed, and the page that it is drawn for. Raises InputError."""
    for name in ASKED:
        check(name, getattr(look, name))
    if look.title is not None:
        chart = replace(chart, title=look.title)
    return _relabelled(chart, look.x_label, look.y_label), _page(look)


def _page(look: Look) -> Page:
    page = base = SIZES[look.preset]
    if look.width is not None:
        page = replace(page, width=look.width * MM)
    if look.height is not None:
        page = replace(page, height=look.height * MM)
    if look.font is not None:
        by = look.font / page.text
        page = replace(page, text=look.font, title=by * page.title, panel=by * page.panel, note=by * page.note)
    page = replace(page, legend=look.legend, shows_title=look.shows_title, shows_notes=look.shows_notes)
    # the report's own layout knows one size: a changed one is laid out as for a paper
    return page if page == base else replace(page, fits=True)


def _relabelled(chart: Chart, x_label: str | None, y_label: str | None) -> Chart:
    """The chart with other names of its axes. Raises InputError where its panels have several."""
    panels = chart.panels
    if x_label is not None:
        _only("x", x_label, {panel.x.label for panel in panels})
        panels = tuple(replace(panel, x=_named(panel.x, x_label)) for panel in panels)
    if y_label is not None:
        _only("y", y_label, {panel.y.label for panel in panels})
        panels = tuple(replace(panel, y=_named(panel.y, y_label)) for panel in panels)
    return replace(chart, panels=panels)


def _only(name: str, label: str, known: set[str]) -> None:
    """Raises InputError where a new label would stand for several."""
    if len(known) > 1:
        raise InputError(
            f"{name}-label = {show(label)}: this figure has {len(known)} different {name} axes: leave it out"
        )


def _named(axis: Axis, label: str) -> Axis:
    """The axis with the whole of its label given: no unit is added to the reader's words."""
    return replace(axis, name=label, unit="1")
