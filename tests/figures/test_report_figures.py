"""Every figure of the report: drawn by both libraries, axes with units, numbers equal to the table's."""

import io
import math
from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest

from chart_checks import has_units_and_numbers, lies_inside_its_axes
from dse.core import units
from dse.core.errors import InputError
from dse.figures import FIGURES, REPORT
from dse.figures.drawing import axes, layout, rows, style, to_matplotlib, to_plotly
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.questions import systems, tables
from dse.specs import catalog

_MODELS = ("llama2-7b", "llama2-13b", "mixtral-8x7b-oaken")


def test_each_figure_of_the_report_has_its_table_and_a_question():
    assert len(REPORT) == 12
    known = {*tables.POINTS, *tables.OTHERS}
    assert all(figure.table in known and figure.shows.endswith("?") for figure in REPORT.values())


def failing(charts: dict[str, Chart], check: Callable[[Chart], None]) -> dict[str, str]:
    """Figures of the report whose chart fails a check, and how."""
    found = {}
    for name in REPORT:
        try:
            check(charts[name])
        except AssertionError as error:
            found[name] = str(error)
    return found


def test_axes_have_units_and_nothing_is_nan(charts: dict[str, Chart]):
    assert failing(charts, has_units_and_numbers) == {}


def test_series_lie_inside_their_axes(charts: dict[str, Chart]):
    assert failing(charts, lies_inside_its_axes) == {}


@pytest.mark.slow
def test_both_libraries_draw_every_figure(charts: dict[str, Chart], sketch):
    from PIL import Image  # comes with matplotlib

    def is_drawn(chart: Chart) -> None:
        pixels = Image.open(io.BytesIO(sketch(chart))).convert("L")
        low, high = pixels.getextrema()
        assert low < 32
        assert high == 255
        drawn = to_plotly.figure(chart)
        drawn.to_json()
        assert drawn.layout.width == 1000

    assert failing(charts, is_drawn) == {}


def test_matplotlib_gives_the_same_bytes_twice(charts: dict[str, Chart], pictures):
    assert to_matplotlib.images(charts["memory_batch"]) == pictures("memory_batch")


def test_throughput_lines_equal_the_table(small: dict[str, pd.DataFrame], charts: dict[str, Chart]):
    table = small["results"]
    titles = ("Llama 2 7B", "Llama 2 13B", "Mixtral 8x7B (Oaken)")
    for panel, model, title in zip(charts["throughput_batch"].panels, _MODELS, titles, strict=True):
        assert panel.title == title
        own = table[(table["model"] == model) & table["feasible"]]
        drawn = {series.name: series for series in panel.series if not series.is_note}
        for system in own["system"].unique():
            expected = own[own["system"] == system]
            assert drawn[system].x == tuple(expected["batch"])
            assert drawn[system].y == tuple(expected["throughput_tokens_per_s"])
            assert drawn[system].opened == tuple(expected["running_batch"] < expected["batch"])
        crosses = [series for series in panel.series if series.name == style.OUT_OF_MEMORY]
        assert sum(len(s.x) for s in crosses) == (~table[table["model"] == model]["feasible"]).sum()


def test_bars_equal_the_table(small: dict[str, pd.DataFrame], charts: dict[str, Chart]):
    results = small["results"]
    own = results[(results["model"] == "llama2-13b") & (results["quantizer"] == "oaken")].drop_duplicates("batch")
    weights, kv = charts["memory_batch"].panels[1].series[:2]
    assert weights.y == tuple(own["weight_bytes"])
    assert kv.y == tuple(own["kv_bytes"])
    assert kv.base == weights.y
    step = small["breakdown"][small["breakdown"]["system"] == "Oaken-LPDDR"]
    bars = [s for s in charts["latency_breakdown"].panels[1].series if s.kind == "bar"]
    parts = ("linear_s", "attention_s", "quantize_s", "dequantize_s", "host_s")
    assert [s.y for s in bars] == [tuple(step[c]) for c in parts]
    tops = [sum(heights) for heights in zip(*(s.y for s in bars), strict=True)]
    assert tops == pytest.approx(list(step["decode_step_s"]), rel=1e-12)
    ledger = small["ledger"]
    parts = [s for s in charts["bit_ledger"].panels[0].series if s.kind == "hbar"]
    sums = [sum(widths) for widths in zip(*(s.x for s in parts), strict=True)]
    assert sums == pytest.approx(list(ledger["stored_bits"]), rel=1e-12)


def test_lengths_weights_and_capacities_equal_the_table(small: dict[str, pd.DataFrame], charts: dict[str, Chart]):
    lengths = small["lengths"]
    for series in charts["throughput_length"].panels[0].series:
        own = lengths[(lengths["system"] == series.name) & lengths["feasible"]]
        if not series.is_note:
            assert series.x == tuple(own["input_tokens"] + own["output_tokens"])
            assert series.y == tuple(own["throughput_tokens_per_s"])
    weights = small["weights"]
    for panel in charts["weights_or_kv"].panels:
        for series in (s for s in panel.series if s.kind == "bar"):
            own = weights[(weights["device"] == panel.title) & (weights["system"] == series.name)]
            assert series.y == tuple(own["throughput_tokens_per_s"])
    capacity = small["capacity"]
    lines = [series for series in charts["throughput_capacity"].panels[0].series if series.is_named]
    assert [series.name for series in lines] == ["A100-80GB", "Oaken-HBM", "Oaken-LPDDR"]
    for series in lines:
        own = capacity[(capacity["device"] == series.name)].sort_values("effective_capacity_bytes")
        assert series.x == tuple(own["effective_capacity_bytes"])
        assert series.y == tuple(own["throughput_tokens_per_s"])
        printed = {"fp16": "FP16", "oaken": "Oaken", "nqkv": "NQKV", "sinkq": "SinkQ"}
        assert [label.rstrip("*†") for label in series.labels] == [printed[name] for name in own["quantizer"]]


def test_roofline_by_hand(small: dict[str, pd.DataFrame]):
    # A100: 312 TFLOP/s over 2.039 TB/s: the ridge is at 153 FLOP/B; FP16 weights give 1 FLOP/B a sequence
    table = small["roofline"]
    own = table[table["device"] == "A100-80GB"]
    ridge = own[own["operation"] == "ceiling"].iloc[1]
    assert ridge["intensity_flops_per_byte"] == pytest.approx(312 / 2.039)
    assert ridge["flops_per_s"] == pytest.approx(312e12)
    linear = own[own["operation"] == "linear"].set_index("label")
    assert linear.loc["batch 16", "intensity_flops_per_byte"] == pytest.approx(16.0)
    assert linear.loc["batch 16", "flops_per_s"] == pytest.approx(16 * 2.039e12)
    assert linear.loc["batch 256", "flops_per_s"] == pytest.approx(312e12)
    attention = own[own["operation"] == "attention"].set_index("label")
    assert attention.loc["fp16", "intensity_flops_per_byte"] == pytest.approx(1.0)


def test_default_systems_follow_oaken():
    large = {"llama2-70b", "opt-30b", "mixtral-8x7b-oaken"}  # Oaken 6.1: two A100 as a pipeline
    for name in systems.MODELS:
        device = systems.DEFAULT[0].device_for(catalog.model(name)).name
        assert device == ("2xA100-80GB" if name in large else "A100-80GB")
    assert {s.admission for s in systems.DEFAULT if s.device == "a100-80gb"} == {"paged"}
    assert {s.admission for s in systems.DEFAULT if s.device != "a100-80gb"} == {"reserve"}
    assert [s.quantizer for s in systems.chosen(["oaken-hbm"])] == ["oaken"]
    assert [(s.device, s.quantizer) for s in systems.chosen(["h100"], ["fp16", "int4"])] == [
        ("h100", "fp16"),
        ("h100", "int4"),
    ]
    assert systems.chosen(["h100"])[0].admission == "paged"


def test_a_table_without_systems_is_drawn_too(small: dict[str, pd.DataFrame]):
    table = small["results"].drop(columns="system")
    chart = FIGURES["throughput_batch"].chart(table)
    assert chart.panels[0].series[0].name == "A100-80GB FP16"


def test_notes_say_which_devices_page_their_memory():
    columns = ["device", "model", "quantizer", "admission", "memory", "capacity_bytes"]
    reserved = ("h100", "m", "fp16", "reserve", "paper", 80e9)
    paged = ("oaken-lpddr", "m", "oaken", "paged", "paper", 256e9)
    served = ("h200", "m", "fp8", "paged", "server", 141e9)  # counts requests at their full length

    def notes(*each):
        return rows.run_notes(pd.DataFrame(each, columns=columns))

    assert notes(reserved) == ()
    assert notes(paged) == ("All devices page their memory: requests are staggered, each at its mean size.",)
    (note,) = notes(reserved, paged)
    assert note == "Paged memory (staggered requests at their mean size): oaken-lpddr; reserved: the others."
    assert notes(served) == ()
    assert notes(reserved, served) == ("Paged memory: h200; reserved: the others.",)


def test_more_systems_than_styles_are_left_out_with_a_note(small: dict[str, pd.DataFrame]):
    many = pd.concat([small["results"].assign(system=f"system {i}") for i in range(style.MAX_SYSTEMS + 3)])
    shown = rows.drawn(many)
    assert len(shown.systems) == style.MAX_SYSTEMS
    assert "table has all" in shown.notes[0]


def test_linear_ticks_are_round_and_inside():
    for top in (0.003, 1.0, 7.3, 99.0, 100.0, 5016.4, 6.6e8):
        axis = axes.linear("x", "s", [top])
        places = [at for at, _ in axis.ticks]
        assert 3 <= len(places) <= 8, top
        assert places[0] == 0
        assert places[-1] <= axis.high
        assert top < axis.high <= 1.1 * top
        assert len({text for _, text in axis.ticks}) == len(places)


def test_linear_ticks_by_hand():
    # to 1.08 of the largest in at most 5 steps of 1, 2, 2.5, 5 times a power of ten: 7.884 / 5 = 1.58 gives 2
    for top, texts in ((7.3, "0 2 4 6"), (99.0, "0 25 50 75 100"), (0.003, "0 0.001 0.002 0.003")):
        assert [text for _, text in axes.linear("x", "s", [top]).ticks] == texts.split()
    assert axes.round_ticks(5, 7, 8, (1, 2, 5, 10)) == [5.0, 5.5, 6.0, 6.5, 7.0]  # 2 / 8 = 0.25 gives 0.5


def test_log_ticks_and_units():
    axis = axes.log2("capacity", "GB", [80e9, 640e9], axes.GB)
    assert [text for _, text in axis.ticks] == ["64", "128", "256", "512"]
    assert axis.shown(axis.ticks[0][0]) == pytest.approx(64)
    assert units.to_base(1, "GB") == axes.GB
    batches = axes.log2_at("batch", "sequences", [16.0, 32.0, 64.0, 128.0, 256.0])
    assert [text for _, text in batches.ticks] == ["16", "32", "64", "128", "256"]
    assert [axes.tokens_text(n) for n in (512, 1024, 32768, 1025)] == ["512", "1K", "32K", "1,025"]


def does_not_overlap(chart: Chart) -> None:
    place = layout.place(chart)
    legend_rows = -(-len(place.legend) // place.legend_columns) if place.legend else 0
    legend_bottom = place.legend_top - legend_rows * layout.LEGEND_ROW
    for i, box in enumerate(place.panels):
        assert box.x >= layout.LEFT - 1e-9
        assert box.x + box.width <= place.width
        assert box.y + box.height + layout.PANEL_TITLE <= legend_bottom
        assert box.y - layout.TICKS - layout.LABEL >= place.notes_top
        for other in place.panels[:i]:
            apart_x = other.x + other.width < box.x or box.x + box.width < other.x
            apart_y = box.y + box.height < other.y or other.y + other.height < box.y
            assert apart_x or apart_y
    widest = max((layout.LEGEND_SYMBOL + layout.text_width(s.name, layout.TEXT_SIZE) for s in place.legend), default=0)
    assert place.legend_columns == 1 or widest <= place.legend_cell


def test_panels_legend_and_notes_do_not_overlap(charts: dict[str, Chart]):
    assert failing(charts, does_not_overlap) == {}


def test_names_are_text_in_both_libraries(sketch):
    axis = Axis("x", "s", low=0.0, high=2.0, ticks=((0.0, "0"), (1.0, "$1$")))
    nasty = Series("</script><b>$x_{$", "line", (0.0, 1.0), (1.0, 0.5), hover=("<a href='x'>", "$"))
    chart = Chart("$\\frac{<i>", (Panel("<b>$^$", axis, axis, (nasty, replace(nasty, name="other"))),))
    text = to_plotly.figure(chart).to_json()
    assert "<b>$" not in text
    assert "</script>" not in text
    assert sketch(chart).startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["bar", "hbar"])
def test_bars_stand_on_their_base(kind, sketch):
    """One of length 1 and, on top of it, one of length 2: of their colors the second fills twice as many pixels."""
    from PIL import Image

    along, across = (
        Axis("x", "s", low=0.0, high=4.0, ticks=((0.0, "0"),)),
        Axis("y", "", low=-1.0, high=1.0, ticks=((0.0, "a"),)),
    )
    red, blue = "#FF0000", "#0000FF"

    def bar(name, length, base, color):
        x, y = ((0.0,), (length,)) if kind == "bar" else ((length,), (0.0,))
        return Series(name, kind, x=x, y=y, color=color, base=(base,), in_legend=False)

    x, y = (across, along) if kind == "bar" else (along, across)
    chart = Chart("", (Panel("", x, y, (bar("a", 1.0, 0.0, red), bar("b", 2.0, 1.0, blue))),))
    pixels = Image.open(io.BytesIO(sketch(chart))).convert("RGB").get_flattened_data()
    counts = [sum(pixel == color for pixel in pixels) for color in ((255, 0, 0), (0, 0, 255))]
    assert counts[1] == pytest.approx(2 * counts[0], rel=0.2)  # less their white edges
    first, second = (trace for trace in to_plotly.figure(chart).data if trace.base is not None)
    assert (first.base, second.base) == ((0.0,), (1.0,))


def test_a_system_looks_the_same_in_every_figure(charts: dict[str, Chart]):
    looks: dict[str, set[tuple[str, ...]]] = {}
    for name in ("throughput_batch", "throughput_length", "throughput_trace"):
        for series in charts[name].entries():
            if not series.is_note:
                looks.setdefault(series.name, set()).add((series.color, series.dash, series.marker))
    assert all(len(found) == 1 for found in looks.values()), looks
    assert looks["Oaken-HBM"] == {(style.ORANGE, "solid", "star")}  # the tenth of the default systems
    memories = {series.name: series for series in charts["throughput_capacity"].panels[0].series if series.is_named}
    assert {("#E69F00", "solid", "star")} == {(memories["Oaken-HBM"].color, "solid", memories["Oaken-HBM"].marker)}
    roofline = {series.name: series for series in charts["roofline"].entries()}
    # Oaken-LPDDR is on the roofline, Oaken-HBM is not
    assert roofline["attention, Oaken"].marker == "cross"


def test_places_are_distinct_and_known_where_free():
    assert style.places(["b", "new", "a"], {"a": 0, "b": 1}) == {"b": 1, "new": 2, "a": 0}
    assert style.places(["a", "again"], {"a": 3, "again": 3}) == {"a": 3, "again": 0}
    assert style.places(["far"], {"far": 13}) == {"far": 0}  # thirteen styles
    many = style.places([str(i) for i in range(style.MAX_SYSTEMS)], {"3": 0})
    assert sorted(many.values()) == list(range(style.MAX_SYSTEMS))
    looks = style.of_methods(["FP16", "SmoothQuant, KV8", "NQKV, KV4", "SinkQ G=32", "SinkQ G=128"])
    assert len({one.marker for one in style.STYLES}) == len(style.STYLES)  # colors may show something else
    assert (looks["FP16"], looks["NQKV, KV4"], looks["SinkQ G=128"]) == tuple(style.STYLES[i] for i in (0, 4, 5))
    assert len(set(looks.values())) == 5


@pytest.mark.parametrize("log", [False, True])
def test_crosses_are_below_every_value_and_inside(log: bool):
    axis = axes.log2("throughput", "tok/s", [10.0, 1000.0]) if log else axes.linear("throughput", "tok/s", [1000.0])
    table = pd.DataFrame(
        {
            "system": ["a", "b", "c"],
            "model": "m",
            "x": [1.0, 1.0, 1.0],
            "feasible": [False, False, True],
            "infeasible_reason": "too large",
            "running_batch": 1,
            "batch": 1,
            "y": [math.nan, math.nan, 10.0],
            "assumptions": "",
        }
    )
    low = rows.room_for_crosses(axis, table, "x")
    shown = rows.Drawn(table, ["a", "b", "c"], [])
    found = list(rows.lines(table.iloc[:2], shown, lambda row: row["x"], "y", low))
    crosses = [series.y[0] for series in found if series.marker == "x-thin"]
    assert len(crosses) == 2
    assert low.low < crosses[1] < crosses[0] < (axis.low if log else 0.0)
    if log:  # two slots and 0.7 of one, each 5.5 % of the octaves above
        octaves = math.log2(axis.high / axis.low)
        assert math.log2(axis.low / low.low) == pytest.approx(2.7 * 0.055 * octaves)
        assert math.log2(axis.low / crosses[0]) == pytest.approx(0.055 * octaves)


def test_one_table_is_that_of_the_report(small: dict[str, pd.DataFrame]):
    for name in ("results", "lengths", "ledger"):
        one = tables.table(name, _MODELS, batches=(16, 256))
        pd.testing.assert_frame_equal(one, small[name])
        assert one.attrs["systems"] == small[name].attrs["systems"]
    with pytest.raises(InputError, match=r"table = 'result'.*results"):
        tables.table("result")


def test_memory_over_the_batch_fills_two_panels_with_any_quantizers(small: dict[str, pd.DataFrame]):
    figure, table = FIGURES["memory_batch"], small["results"]
    shown = [
        [panel.title.split(",")[0] for panel in figure.chart(table[table["quantizer"].isin(names)]).panels]
        for names in (("kivi:bits=4", "fp16", "nqkv"), ("kivi:bits=4", "nqkv"), ("oaken", "fp16"))
    ]
    assert shown == [["KV FP16", "KV KIVI 4-bit"], ["KV KIVI 4-bit", "KV NQKV"], ["KV FP16", "KV Oaken"]]


def test_points_of_kernels_that_nobody_measured_are_framed_and_named():
    """KIVI's released code runs at assumed rates, QServe's kernels were measured."""
    table = tables.table("results", ("llama2-7b",), systems=systems.chosen(["a100-80gb"], ["fp16", "qserve", "kivi"]))
    chart = FIGURES["throughput_batch"].chart(table)
    framed = [one for one in chart.panels[0].series if one.name == style.KERNELS_ASSUMED]
    own = table[table["quantizer"] == "kivi"]
    assert [one.y for one in framed] == [tuple(own["throughput_tokens_per_s"])]
    assert all(framed[0].opened)
    assert style.KERNELS_ASSUMED in {one.name for one in chart.legend()}
    (note,) = (note for note in chart.notes if note.startswith("Squares"))
    assert note.endswith("A100-80GB KIVI.")
    measured = FIGURES["throughput_batch"].chart(table[table["quantizer"] != "kivi"])
    assert style.KERNELS_ASSUMED not in {one.name for one in measured.legend()}
