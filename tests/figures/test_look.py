"""A figure's look: words, size, fonts, legend and notes; its options; what no figure can have."""

import io
import re
import zlib
from dataclasses import replace

import PIL.Image as pil
import pytest

from dse.cli import commands
from dse.cli.main import cli
from dse.core.errors import InputError, LimitError
from dse.explorer import figure, request
from dse.explorer.pages import answer
from dse.figures.charts import design_bars
from dse.figures.drawing import fit, page_layout, style
from dse.figures.drawing.chart import MAX_HOVER_LINES, Axis, Chart, Panel, Series, hover_box
from dse.figures.export import image, look
from dse.specs.look import ASKED, Look

#: points of a millimetre
MM = 72 / 25.4


def axis(name, unit="s"):
    return Axis(name, unit, low=0.0, high=10.0, ticks=((0.0, "0"), (10.0, "10")))


@pytest.fixture
def lines() -> Chart:
    """Three lines in one panel."""
    series = tuple(
        Series(name, "line", x=(0.0, 10.0), y=(0.0, at), color=color)
        for name, at, color in (("first", 2.0, style.BLACK), ("second", 5.0, style.SKY), ("third", 9.0, style.BLUE))
    )
    return Chart("The chart's title", (Panel("", axis("time"), axis("rate", "1/s"), series),), notes=("A note.",))


def media_box(content):
    """Width and height of a PDF's page in points."""
    parts = [content]
    for stream in re.findall(rb"stream\r?\n(.*?)endstream", content, re.S):
        try:
            parts.append(zlib.decompress(stream))
        except zlib.error:
            continue
    found = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", b"".join(parts))
    return tuple(map(float, found.groups()))


@pytest.mark.parametrize(
    ("preset", "width_mm"),
    [("paper", 85), ("paper-wide", 178), ("slide", 960 / MM), ("report", 518 / MM)],  # as their descriptions say
)
def test_files_have_the_size_of_their_look(lines, preset, width_mm):
    drawn, page = look.applied(Look(preset=preset), lines)
    width, height = media_box(image.export(drawn, "pdf", "made", page=page))
    assert width == pytest.approx(width_mm * MM, abs=0.01)
    assert image.size_text(drawn, page) == f"{width_mm:.0f} x {height / MM:.0f} mm"
    if preset == "slide":
        assert height == pytest.approx(540, abs=0.01)
    shown = pil.open(io.BytesIO(image.preview(drawn, page)))  # 110 dots an inch, whole dots
    assert shown.size == pytest.approx((width / 72 * 110, height / 72 * 110), abs=1)


def test_width_and_height_are_millimetres_and_replace_the_presets(lines):
    drawn, page = look.applied(Look(preset="report", width=100.0, height=70.0), lines)
    assert media_box(image.export(drawn, "pdf", "made", page=page)) == pytest.approx((100 * MM, 70 * MM), abs=0.01)


def test_words_are_the_readers(lines):
    asked = Look(title="My words", x_label="elapsed, in seconds", y_label="", shows_notes=False)
    drawn, page = look.applied(asked, lines)
    assert drawn.title == "My words"
    assert (drawn.panels[0].x.label, drawn.panels[0].y.label) == ("elapsed, in seconds", "")
    assert drawn.panels[0].series == lines.panels[0].series
    assert drawn.notes == lines.notes  # of the file's properties
    place = page_layout.place(drawn, page)
    assert (place.title, place.notes) == (("My words",), ())
    assert [text.lines for text in place.x_labels] == [("elapsed, in seconds",)]
    assert page_layout.place(*look.applied(Look(shows_title=False), lines)).title == ()


def test_a_label_stands_for_one_axis(lines):
    two = replace(lines, panels=(lines.panels[0], replace(lines.panels[0], x=axis("length", "m"))))
    with pytest.raises(InputError, match="x-label = 'z': this figure has 2 different x axes: leave it out"):
        look.applied(Look(x_label="z"), two)
    assert {panel.y.label for panel in look.applied(Look(y_label="z"), two)[0].panels} == {"z"}


def test_a_font_changes_all_texts_alike(lines):
    _, page = look.applied(Look(preset="slide", font=9.0), lines)  # half of 18 points
    slide = image.PRESETS["slide"]
    assert (page.text, page.title, page.note) == (9.0, slide.title / 2, slide.note / 2)
    _, page = look.applied(Look(preset="report"), lines)
    assert not page.fits
    assert look.applied(Look(preset="report", font=12.0), lines)[1].fits


def test_the_legend_is_where_the_look_says(lines):
    def placed(where, **more):
        drawn, page = look.applied(Look(preset="paper-wide", legend=where, **more), lines)
        drawn = fit.fitted(drawn, page)
        return drawn, page_layout.place(drawn, page)

    for where in ("above", "below", "right"):
        drawn, place = placed(where)
        assert [series.name for series in place.legend] == ["first", "second", "third"]
        box, rows = place.panels[0], -(-3 // place.legend_columns)
        foot = place.legend_top - rows * 13.5  # a row at 8 points
        if where == "above":
            assert foot >= box.y + box.height
        if where == "below":
            assert place.notes_top <= foot
            assert place.legend_top <= box.y - 1.1 * 8
        if where == "right":
            assert place.width - place.legend_width >= box.x + box.width
            assert place.legend_columns == 1
        assert image.export(drawn, "svg", "made", page=place.page)
    assert placed("none")[1].legend == ()
    # many marks in a legend on the right (the lines are named at their ends) make the figure as high as it needs;
    # where the height is given, it is refused
    many = replace(lines, keys=tuple(Series(f"key {i}", "line", is_note=True) for i in range(30)))
    drawn, page = look.applied(Look(preset="paper-wide", legend="right"), many)
    assert page_layout.place(fit.fitted(drawn, page), page).height > 30 * 13.5
    drawn, page = look.applied(Look(preset="paper-wide", legend="right", height=80.0), many)
    with pytest.raises(LimitError, match=r"too small for this figure.*put its legend elsewhere with --legend"):
        fit.fitted(drawn, page)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"font": 0.0}, "font = 0: must be a number from 4 to 60 pt"),
        ({"font": float("nan")}, "font = nan: must be a number from 4 to 60 pt"),
        ({"width": 39.0}, "width = 39: must be a number from 40 to 1,200 mm"),
        ({"legend": "left"}, "legend = 'left'"),
        ({"preset": "poster"}, "preset = 'poster'"),
        ({"preset": ["paper"]}, "preset = ['paper']: must be one of report, paper, paper-wide, slide"),
        ({"legend": {"above": "below"}}, "must be one of above, right, below, none"),
        ({"title": "x" * 400}, "must be one line of at most 200 printable characters"),
        ({"title": "a\nb"}, "title = 'a\\nb': must be one line of at most 200 printable characters"),
        ({"x_label": "\u4e2d"}, "the font of figures has no \u4e2d"),
    ],
)
def test_what_no_figure_can_have_is_one_line(lines, wrong, line):
    with pytest.raises(InputError) as error:
        look.applied(Look(**wrong), lines)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_options_and_fields_come_from_one_declaration():
    options = {option.opts[0] for option in cli.commands["plot"].params}
    assert {f"--{asked.name}" for asked in ASKED.values()} <= options
    assert all(asked.label and asked.help.endswith(".") for asked in ASKED.values())
    assert set(look.SIZES) == set(ASKED["preset"].choices)
    asked = Look(preset="slide", title="It's mine", font=20.0, shows_notes=False, legend="none")
    assert asked.options == """--preset slide --font 20 --title 'It'"'"'s mine' --legend none --no-notes"""
    assert Look().options == ""


def test_options_of_the_command_draw_the_look(run, lines, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr("dse.figures.plot.load.load", lambda *_: (lines, None))
    monkeypatch.setattr(image, "export", lambda chart, *_: seen.append((chart, _[-1])) or b"")
    given = ["--preset", "report", "--font", "9", "--x-label", "t", "--legend", "right", "--no-notes", "--title", "T"]
    code, *_ = run("plot", "roofline", tmp_path, "--out", tmp_path / "f.pdf", *given)
    assert code == 0
    (found,) = seen
    wanted = Look(preset="report", font=9.0, x_label="t", legend="right", shows_notes=False, title="T")
    assert found == look.applied(wanted, lines)
    for ending, option in (("csv", "--legend=below"), ("csv", "--x-label=t"), ("html", "--font=9")):
        code, _, error = run("plot", "roofline", tmp_path, "--out", tmp_path / f"f.{ending}", option)
        name = option.removeprefix("--").partition("=")[0]
        assert code == 2
        assert error.count("\n") == 1
        assert f"{name} = " in error
        assert f"has no effect in .{ending}" in error
    code, _, error = run("plot", "roofline", tmp_path, "--out", tmp_path / "f.pdf", "--font", "0")
    assert (code, error.count("\n")) == (2, 1)
    assert "font = 0: must be a number from 4 to 60 pt" in error
    assert commands.record_of(Look, dict.fromkeys(ASKED)).shows_title
    assert not (tmp_path / "f.csv").exists()


def test_a_hover_box_has_six_lines():
    assert hover_box("t", ["a", "b"]) == "t\na\nb"
    assert hover_box("t", list("abcde")) == "t\na\nb\nc\nd\ne"
    assert hover_box("t", list("abcdefg")) == "t\na\nb, c\nd\ne, f\ng"
    assert hover_box("t", [str(i) for i in range(40)]).count("\n") == 5
    assert hover_box("t", []) == "t"
    assert MAX_HOVER_LINES == 6


def test_series_have_colors_of_their_own_while_there_are_any():
    names = [str(i) for i in range(7)]  # eight inks, and gray is black's
    assert len({look.color for look in style.looks(names).values()}) == 7
    assert style.GRAY not in {look.color for look in style.looks(names).values()}
    assert len(set(style.looks([str(i) for i in range(style.MAX_SYSTEMS)]).values())) == style.MAX_SYSTEMS


#: colors that lines take: black, or gray, and six others
N_INKS = 7


def shared_colors(chart, black):
    """Entries of the legend of one panel that have one color, `black` standing for black; none of a panel with more
    entries than there are colors, where dashes and marks tell them apart."""
    found = []
    for panel in chart.panels:
        by: dict[str, set[str]] = {}
        for series in panel.series:
            if series.in_legend and not series.is_note and not series.values:
                ink = black if series.color == style.BLACK else series.color
                by.setdefault(ink, set()).add(series.name)
        if sum(map(len, by.values())) <= N_INKS:
            found += [names for names in by.values() if len(names) > 1]
    return found


def drawn_in_the_explorer():
    """Charts of the explorer: three designs compared, one that has no name of a paper."""
    asked = {
        name: request.point_request({"quantizer": name, "batch": 16})
        for name in ("fp16", "fp8", "oaken", "kivi", "qserve")
    }
    load = request.LoadRequest(amount=16)
    rows = [(name, request.answer(one, load).result) for name, one in asked.items()]
    found = answer.cached_speeds(tuple((name, request.any_load(one)) for name, one in asked.items()), ())
    starred = figure.speeds(found, rows)
    stars = [series for series in starred.panels[0].series if series.name == style.CHOSEN]
    colors = {series.name: series.color for series in starred.panels[0].series if series.kind == "line"}
    printed = ("FP16", "FP8", "Oaken", "KIVI", "QServe")
    assert [star.color for star in stars] == [colors[name] for name in printed]  # each in the color of its line
    return {"memory": design_bars.memory(rows), "step": design_bars.step_time(rows), "speeds": starred}


def test_a_color_means_one_thing_and_hover_boxes_have_six_lines(charts):
    found = {}
    here = drawn_in_the_explorer()
    for name, drawn in {**charts, **here}.items():
        texts = [text for panel in drawn.panels for series in panel.series for text in series.hover]
        assert max((text.count("\n") + 1 for text in texts), default=0) <= MAX_HOVER_LINES, name
        found[name] = shared_colors(
            drawn, style.GRAY if name in here else style.BLACK
        )  # whose pages show black as gray
    capacities = found.pop("memory_batch")  # one thing, at several sizes
    assert all(text.startswith("capacity") for names in capacities for text in names)
    assert {name: shared for name, shared in found.items() if shared} == {}
