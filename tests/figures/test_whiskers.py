"""Whiskers that would squash a figure end at its frame, with a triangle and a note."""

import pytest

from dse.figures.drawing import axes, whiskers
from dse.figures.drawing.chart import Chart, Panel


def drawn(*ends):
    """A figure of 10 and 20 ms, with an interval of 20 ms that ends there."""
    x = axes.linear("step", "ms", whiskers.held([0.01, 0.02], ends), axes.MILLISECOND)
    y = axes.linear("design", "1", [0.0, 1.0])
    return Chart("Steps", panels=(Panel("", x, y, tuple(whiskers.level(1.0, ends))),))


def test_an_end_far_beyond_all_values_is_cut():
    """Of 20 ms at most an axis holds 32: an interval to 100 ms ends at its frame."""
    assert whiskers.held([0.01, 0.02], [0.008, 0.1]) == pytest.approx([0.01, 0.02, 0.008, 0.032])
    before = drawn(0.015, 0.1)
    high = before.panels[0].x.high
    assert 0.032 <= high < 0.05
    found = whiskers.cut(before)
    line, mark = found.panels[0].series
    assert line.x == (0.015, high)
    assert (mark.x, mark.y, mark.marker) == ((high,), (1.0,), "triangle-right")
    assert mark.hover == ("step: goes on to 100 ms",)
    assert found.notes == (whiskers.CUT_NOTE,)
    assert whiskers.cut(found) is found


def test_an_end_in_reach_stays_where_it_is():
    before = drawn(0.015, 0.03)
    assert whiskers.cut(before) is before
