"""Texts beside marks and names beside lines: where they go, and that both libraries put them there."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.figures.drawing import fit, labels, layout, page_layout, style, to_plotly
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.figures.drawing.layout import REPORT, Box
from dse.figures.export.image import PRESETS

_BOX = Box(0.0, 0.0, 200.0, 150.0)
_X = Axis("x", "s", low=0.0, high=200.0, ticks=((0.0, "0"),))  # a point of the page each
_Y = Axis("y", "s", low=0.0, high=150.0, ticks=((0.0, "0"),))


def _panel(*series: Series) -> Panel:
    return Panel("", _X, _Y, series)


def _marks(places, text="oaken") -> Series:
    x, y = zip(*places, strict=True)
    return Series("s", "scatter", x=x, y=y, labels=(text,) * len(x))


def _edges(label: labels.Label) -> tuple[float, float, float, float]:
    """Of a label on the panel of these tests, whose axes are points of the page."""
    x, y = label.x + label.dx, label.y + label.dy
    return x - label.width / 2, y - label.height / 2, x + label.width / 2, y + label.height / 2


def _overlap(one, other) -> bool:
    across = min(one[2], other[2]) - max(one[0], other[0])
    up = min(one[3], other[3]) - max(one[1], other[1])
    return across > 1e-6 and up > 1e-6


def test_a_label_alone_is_above_its_mark():
    (label,) = labels.placed(_panel(_marks([(100.0, 70.0)])), _BOX, REPORT)
    # a mark of radius 3.1 pt, 1.5 pt beyond it, half of a line of 1.1 * 7 pt
    assert (label.x, label.y, label.dx, label.dy) == pytest.approx((100.0, 70.0, 0.0, 3.1 + 1.5 + 3.85))
    assert (label.text, label.size, label.is_name, label.has_leader) == ("oaken", 7.0, False, False)


def test_a_label_at_the_upper_edge_or_under_a_line_goes_elsewhere():
    (label,) = labels.placed(_panel(_marks([(100.0, 149.0)])), _BOX, REPORT)
    assert label.dy <= 0
    bar = Series("b", "line", x=(0.0, 200.0), y=(78.0, 78.0), marker="")
    (label,) = labels.placed(_panel(_marks([(100.0, 70.0)]), bar), _BOX, REPORT)
    assert not _edges(label)[1] < 78.0 < _edges(label)[3]


def test_a_long_label_takes_several_lines():
    (label,) = labels.placed(_panel(_marks([(100.0, 70.0)], "INT4 per token and head")), _BOX, REPORT)
    assert label.text == "INT4 per\ntoken\nand head"  # at most 45 pt wide, of 7 pt letters
    assert label.width <= 45
    assert label.height == pytest.approx(3 * 1.1 * 7)


def test_the_name_of_a_line_is_beside_it_in_place_of_the_legend():
    named = Series("Oaken-HBM", "line", x=(20.0, 180.0), y=(20.0, 130.0), is_named=True, color=style.ORANGE)
    other = Series("other", "line", x=(20.0, 180.0), y=(10.0, 12.0))
    chart = Chart("", (_panel(named, other),))
    assert [series.name for series in chart.legend()] == ["other"]
    (label,) = labels.placed(chart.panels[0], _BOX, REPORT)
    assert (label.text, label.is_name, label.size) == ("Oaken-HBM", True, 8.0)
    assert (label.x, label.y) == (180.0, 130.0)  # its last point, where there is room


@given(st.lists(st.tuples(st.floats(8, 192), st.floats(8, 142)), min_size=1, max_size=5))
def test_no_label_is_over_another_or_outside(places):
    found = labels.placed(_panel(_marks(places)), _BOX, REPORT)
    edges = [_edges(label) for label in found]
    assert len(edges) == len(places)
    assert not any(_overlap(a, b) for a, b in combinations(edges, 2))
    assert all(left >= 0 and foot >= 0 and right <= 200 and top <= 150 for left, foot, right, top in edges)
    assert found == labels.placed(_panel(_marks(places)), _BOX, REPORT)


@pytest.mark.parametrize("page", [REPORT, *PRESETS.values()], ids=lambda page: page.name)
def test_throughput_against_capacity_names_every_mark_and_line(page, charts):
    """On each page: the twelve marks and three lines, no text over another or beyond the frame, none under 6 points."""
    chart = fit.fitted(charts["throughput_capacity"], page)
    assert chart.legend() == []
    box = page_layout.on(chart, page).panels[0]
    (panel,) = chart.panels
    found = labels.placed(panel, box, page)
    assert sorted(label.text.rstrip("*†").lower() for label in found if not label.is_name) == sorted(
        ["fp16", "oaken", "nqkv", "sinkq"] * 3
    )
    assert [label.text for label in found if label.is_name] == ["A100-80GB", "Oaken-HBM", "Oaken-LPDDR"]
    assert all(label.size >= 6 for label in found)
    middles = [
        (
            labels.place_on(panel.x, label.x, box.width) + label.dx,
            labels.place_on(panel.y, label.y, box.height) + label.dy,
        )
        for label in found
    ]
    edges = [
        (x - label.width / 2, y - label.height / 2, x + label.width / 2, y + label.height / 2)
        for label, (x, y) in zip(found, middles, strict=True)
    ]
    assert not any(_overlap(a, b) for a, b in combinations(edges, 2))
    assert all(left >= 0 and foot >= 0 and right <= box.width and top <= box.height for left, foot, right, top in edges)


def test_plotly_has_the_texts_at_the_same_places(charts):
    chart = charts["throughput_capacity"]
    place = layout.place(chart)
    wanted = labels.placed(chart.panels[0], place.panels[0], REPORT)
    drawn = [text for text in to_plotly.spec(chart)["layout"]["annotations"] if text["xref"] == "x"]
    assert [text["text"].replace("<b>", "").replace("</b>", "") for text in drawn] == [label.text for label in wanted]
    for text, label in zip(drawn, wanted, strict=True):
        assert 10 ** text["x"] == pytest.approx(label.x / 1e9)  # a logarithmic axis, in GB
        across, up = ("ax", "ay") if label.has_leader else ("xshift", "yshift")
        assert text[across] == pytest.approx(label.dx * 1000 / 518)
        assert abs(text[up]) == pytest.approx(abs(label.dy) * 1000 / 518)


def test_every_color_is_dark_enough_for_text():
    def luminance(color):  # WCAG 2.1
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    for look in style.STYLES:
        assert 1.05 / (luminance(labels.ink(look.color)) + 0.05) >= 4.5
    assert labels.ink(style.BLACK) == style.BLACK
