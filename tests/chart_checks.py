"""What is true of every chart: axes with units and ticks, numbers inside them, texts without what is no number."""

import math
import re

from dse.figures.drawing.chart import Chart

#: words that say that there is none
NONE_IS_MEANT = re.compile("none (runs|meets it)|none: not measured")


def drawn_texts(chart: Chart) -> list[str]:
    """Titles, axes and labels."""
    found = [chart.title, *(key.name for key in chart.keys)]
    for panel in chart.panels:
        found += [panel.title, panel.x.label, panel.y.label]
        found += [text for axis in (panel.x, panel.y) for _, text in axis.ticks]
        for series in panel.series:
            found += [series.name, *series.labels]
    return found


def texts_of(chart: Chart) -> list[str]:
    """All that a reader of the chart sees or points at."""
    hovers = [text for panel in chart.panels for series in panel.series for text in series.hover]
    return [*drawn_texts(chart), *chart.notes, *hovers]


def has_units_and_numbers(chart: Chart, without_unit: tuple[str, ...] = ("quantizer",)) -> None:
    """Axes have units, but for those of names, and ticks; nothing is NaN; what is assumed is said."""
    for panel in chart.panels:
        for axis in (panel.x, panel.y):
            assert axis.unit or axis.name in without_unit
            assert axis.low < axis.high
            assert axis.ticks
            assert all(axis.low <= at <= axis.high for at, _ in axis.ticks)
        for series in panel.series:
            assert all(map(math.isfinite, (*series.x, *series.y, *series.base, *series.values)))
    texts = [NONE_IS_MEANT.sub("", text.lower()) for text in texts_of(chart)]
    assert [text for text in texts if "nan" in text or "none" in text or "<na>" in text] == []
    assert any("assumed number" in note or "Exact counts" in note for note in chart.notes)


def lies_inside_its_axes(chart: Chart, slack: float = 0.0) -> None:
    """Marks, lines and the ends of bars."""
    for panel in chart.panels:
        for series in panel.series:
            ends = [a + b for a, b in zip(series.base, series.x if series.kind == "hbar" else series.y, strict=False)]
            xs, ys = (ends or series.x, series.y) if series.kind == "hbar" else (series.x, ends or series.y)
            for axis, values in ((panel.x, xs), (panel.y, ys)):
                over = slack * (axis.high - axis.low)
                assert all(axis.low - over <= value <= axis.high + over for value in values), chart.title
