"""Compare without a browser: every widget moved, designs side by side, bad input as a line of text."""

import json
from dataclasses import replace

import pytest

from dse.core import errors
from dse.explorer import bench, common_fields, names, request, sidebar, tray, uploads
from dse.explorer.pages import compare
from dse.figures.charts import design_bars
from dse.questions.limits import within
from dse.report import present
from dse.specs import catalog
from explorer_page import asked, command_of, measured_file, numbers, opened, page, plain, said, values_of, wrong

DEFAULT = asked()


def test_it_shows_every_number(one):
    assert not one.exception
    assert set(numbers(one)) == {compare.label_of(name) for rows in compare.GROUPS.values() for name in rows}
    assert numbers(one)["KV cache of the batch"] == "21.25 GB"
    assert not one.warning


def test_the_page_calls_results_as_tables_do_but_for_one():
    assert compare.label_of("sqnr_db") == "Signal to noise"  # as the table of results says it
    assert compare.label_of("kv_bytes") == "KV cache of the batch"
    shown = {name for rows in compare.GROUPS.values() for name in rows}
    assert set(compare.LABELS) <= shown
    assert [name for name, label in compare.LABELS.items() if label == names.words(name)] == []


def test_every_number_has_an_explanation():
    texts = {name: request.explanation(DEFAULT, name) for rows in compare.GROUPS.values() for name in rows}
    assert [name for name, text in texts.items() if f"{name} = " not in text or "source   " not in text] == []


def test_sizes_are_in_gb_only(one):
    assert not any("GiB" in value for value in numbers(one).values())


def test_every_number_to_its_limits():
    """All at once, then the batch alone."""
    app = page()
    fields = {field.key: field for field in (*common_fields.DESIGN, *common_fields.SCENARIO)}
    keys = ("batch", "input", "output", "own_batch", "tp")
    before = {key: app.number_input(key=key).value for key in keys}
    lows, highs = ({key: int(getattr(fields[key], end)) for key in keys} for end in ("low", "high"))
    for values in (lows, highs, {**before, "batch": highs["batch"]}):
        for key, value in values.items():
            app.number_input(key=key).set_value(value)
        app.run()
        assert not app.exception, values
        assert numbers(app) or wrong(app), values


def test_a_token_policy_shows_what_it_keeps_and_what_it_leaves_out():
    app = page(tokens="h2o", quantizer="kivi")
    assert not app.exception
    assert app.selectbox(key="tokens").value == "h2o"
    assert "--tokens h2o" in command_of(app)
    shown = "\n".join(caption.value for caption in app.caption)
    assert "204 tokens stored and 204 tokens read at the end" in shown  # 102 + 102 of 1,024
    assert "taken to cost no time" in shown
    assert numbers(app)["KV cache of the batch"] != numbers(page(quantizer="kivi"))["KV cache of the batch"]


def test_parameters_change_the_result_and_leave_with_their_family():
    app = page()
    app.selectbox(key="quantizer").select("sinkq").run()
    before = numbers(app)
    app.text_input(key="parameters").set_value("bits=4,group=32").run()
    assert not app.exception
    assert numbers(app)["KV cache of the batch"] != before["KV cache of the batch"]
    assert "sinkq:bits=4,group=32" in command_of(app)
    app.selectbox(key="quantizer").select("fp16").run()
    assert app.text_input(key="parameters").value == ""
    assert numbers(app)


def test_bad_parameters_show_one_line_beside_the_field():
    app = page()
    for text, part in (
        ("bits=7", "unknown parameter 'bits'"),
        ("outer=2", "must be a number from 0 to"),
        ("<script>alert(1)</script>", "unknown parameter"),
        ("![x](https://example.org/x.png)", "unknown parameter"),
        ("\x00\u202e", r"\x00\u202e"),
        ("x" * 100_000, "longer than 200 characters"),
    ):
        app.text_input(key="parameters").set_value(text).run()
        assert not app.exception
        assert not numbers(app)
        lines = wrong(app)
        assert {part in line for line in lines} == {True}  # beside the field and on the card
        assert all(len(line) <= errors.MAX_LINE and line.isprintable() for line in lines)
    app.text_input(key="parameters").set_value("").run()
    assert numbers(app)


def test_a_model_that_does_not_fit_says_why():
    app = page(model="llama3.1-405b")
    assert not app.exception
    assert numbers(app)["Throughput"] == "-"
    assert "Does not fit: " in said(app)


def test_a_batch_that_does_not_fit_at_once_says_so():
    app = page(batch="100000")
    fit = numbers(app)["Largest batch"].split()[0]
    assert f"at most {fit} of 100,000 requests run at once, the others wait." in said(app)
    assert numbers(app)["Fits"] == f"{fit} of 100,000"


def two(**second):
    """Compare with `BASE` and one more design, `second` different from it; the second is being changed."""
    own = [tray.design_of(values_of(**changed), common_fields.DESIGN) for changed in ({}, second)]
    text = tray.text_of(tray.Tray(tuple(own)), common_fields.DESIGN, {})
    return opened("compare", designs=text, at="2", batch="64", input="1024")


def test_two_designs_side_by_side_with_the_delta_to_the_first():
    app = two(quantizer="fp16")
    assert not app.exception
    assert "Exceeds memory: at most 59 of 64 requests run at once" in said(app)  # 1.07 GB each in 63.6 GB
    labels = [plain(label) for label in shown_labels(app)]
    assert "1: **21.25 GB**" in labels
    # FP16: 2 x 32 layers x 32 heads x 128 x 2 B x 2,048 tokens x 64 requests = 68.72 GB, 3.23 times the first
    assert "2: **68.72 GB** (3.23 x)" in labels
    app.number_input(key="own_batch").set_value(8).run()
    assert not app.exception
    assert any(label.startswith("2: **8.59 GB**") for label in map(plain, shown_labels(app)))
    assert "Not alike: batches." in said(app)


def test_a_wrong_design_leaves_the_others():
    app = two(tp=3)
    assert not app.exception
    assert any("tp = 3" in line for line in wrong(app))
    assert numbers(app)["KV cache of the batch"] == "21.25 GB"


def test_a_number_of_the_device_is_changed_and_taken_back():
    text, source, kind = sidebar.editable("a100-80gb", "")["memory_bandwidth"]
    assert source
    assert kind
    edits = sidebar.with_edit("usd_per_hour=2 USD/h", "memory_bandwidth", "3 TB/s", text)
    assert edits == "usd_per_hour=2 USD/h,memory_bandwidth=3 TB/s"
    assert uploads.device("a100-80gb", edits).memory_bandwidth.si == 3e12
    assert sidebar.with_edit(edits, "memory_bandwidth", "", text) == "usd_per_hour=2 USD/h"
    assert sidebar.with_edit(edits, "memory_bandwidth", text, text) == "usd_per_hour=2 USD/h"


def test_every_number_of_a_device_goes_back_as_it_is_shown():
    for name in catalog.device_files():
        spec = uploads.device(name)
        given = {n: text for n, (text, _, kind) in sidebar.editable(name, "").items() if n in spec.model_fields_set}
        again = uploads.device(name, ",".join(f"{n}={text}" for n, text in given.items()))
        for field in given:
            assert getattr(again, field).si == pytest.approx(getattr(spec, field).si, rel=1e-11), (name, field)


def test_edits_of_the_url_reach_the_result_and_the_command():
    app = page(edits="memory_bandwidth=3 TB/s", quantizer="fp16")
    assert not app.exception
    assert "--device 'a100-80gb:memory_bandwidth=3 TB/s'" in next(c.value for c in app.code if "dse point" in c.value)
    bad = page(edits="memory_bandwidth=3 TBs")
    assert len(bad.warning) == 1
    assert "memory_bandwidth" in bad.code[0].value


def test_the_usable_memory_is_marked_where_it_is_not_the_whole():
    edits, paper = "usable_frac=0.9,runtime_overhead=2 GB", replace(DEFAULT.work, memory="paper")
    result = request.answer(replace(DEFAULT, edits=edits, work=paper)).result
    (panel,) = design_bars.memory([("a", result)]).panels
    marks = {series.name: series.x for series in panel.series if series.kind == "scatter"}
    assert marks == {"usable memory": (70e9,), "device memory": (80e9,)}  # 0.9 * 80 GB - 2 GB
    batch = result["max_batch"]
    for n, fits in ((batch, True), (batch + 1, False)):
        (panel,) = design_bars.memory(
            [("a", request.answer(asked(edits=edits, batch=n, memory="paper")).result)]
        ).panels
        *parts, usable, _ = panel.series
        assert (sum(part.x[0] for part in parts) <= usable.x[0]) == fits


@pytest.mark.parametrize(
    ("admission", "words"),
    [
        # (40 GB - 26.03 GB of weights) / (819,200 B * 1,324 tokens = 1.085 GB) = 12.9; 32 in 3 waves of 11, 11, 10
        ("reserve", "Exceeds memory: runs in 3 waves of up to 11 of 32 requests."),
        ("paged", "of 32 requests run at once, the others wait."),
    ],
)
def test_what_fits_together_is_the_largest_batch(admission, words):
    result = request.answer(
        asked(
            device="a100-40gb",
            model="llama2-13b",
            quantizer="fp16",
            batch=32,
            input=300,
            output=1024,
            admission=admission,
            memory="paper",
        )
    ).result
    assert not result["fits_whole_batch"]
    assert present.fits_text(result).endswith(words)
    if admission == "paged":
        assert present.fits_text(result).startswith(f"Exceeds memory: at most {result['max_batch']:,} ")


def test_a_limit_of_the_server_is_not_said_to_be_memory():
    given = asked(device="h100", model="llama3.1-8b", quantizer="fp16", batch=32, max_num_seqs=8)
    words = "Exceeds the server's own limit: at most 8 of 32 requests run at once, the others wait."
    assert present.fits_text(request.answer(given).result) == words


def shown_labels(app):
    """The numbers that open their explanation."""
    return [block.proto.popover.label for block in app if block.type == "popover"]


def test_numbers_measured_on_other_data_say_so(one):
    def error_of(app):
        return next(label for label in shown_labels(app) if label.startswith("Error of the attention output"))

    assert error_of(one).endswith("(SmolLM2-135M, not your model)")
    assert next(label for label in shown_labels(one) if label.startswith("Signal to")).endswith(
        "(SmolLM2-135M, not your model)"
    )
    assert "SmolLM2" not in error_of(page(quantizer="fp16"))
    app = page()
    app.sidebar.file_uploader[0].upload("m.json", measured_file(), "application/json").run()
    assert error_of(app) == "Error of the attention output: **0.75**"


def test_a_context_beyond_the_models_positions_is_marked():
    app = page(input="4000", output="97", batch="1")
    assert any("longer context than its model was made for" in warning.value for warning in app.warning)
    note = "Note: 4,097 tokens are beyond the 4,096 positions that llama2-7b was made for"
    assert note in wrong(app)
    fits = page(input="4000", output="96", batch="1")
    assert not fits.warning
    longest = next(label for label in shown_labels(fits) if label.startswith("Longest context"))
    assert longest.endswith(r"(model\: 4,096 positions)")


def test_a_point_of_the_throughput_figure_is_its_design_with_that_batch():
    designs = tray.Tray((tray.TrayDesign(), tray.TrayDesign("Mine", {"quantizer": "fp8"})))
    defaults = {field.key: field.default for field in (*common_fields.DESIGN, *common_fields.SCENARIO)}
    here = bench.evaluate({**defaults, "batch": 64, "input": 8192}, designs)
    drawn = compare.cached_lines(tuple((row.name, request.any_batch(row.request)) for row in here.answered))
    # the first is called by its key in the tray, and in the figure as people print it
    for name, added in (("FP16", {}), ("Mine", {"quantizer": "fp8"})):
        line = next(series for series in drawn.panels[0].series if series.name == name and 256.0 in series.x)
        y = line.y[line.x.index(256.0)]
        found = compare.at(here.answered, designs, drawn, 256.0, y)
        assert found == tray.TrayDesign("", added | {"own_batch": 256})
    assert compare.at(here.answered, designs, drawn, 64.0, line.y[line.x.index(64.0)]) is None  # there already
    assert compare.at(here.answered, designs, drawn, 256.0, y / 2) is None  # no point


@pytest.mark.parametrize(
    ("names", "beside"),
    [
        (("a design of 22 letters", "b"), ["b", "a design of 22 letters"]),
        (("a design of 23 letters.", "b"), ["2", "1"]),
        (("alone",), [""]),
    ],
)
def test_bars_have_their_names_beside_them_where_all_are_short(names, beside):
    text = "~~".join(f"name.{name}" for name in names)
    page = opened("compare", designs=text)
    bars = [chart for chart in page.get("plotly_chart") if chart.key in ("memory_bars", "step")]
    drawn = [json.loads(chart.proto.spec) for chart in bars]
    assert [one["layout"]["yaxis"]["ticktext"] for one in drawn] == [beside] * 2


def test_the_question_of_the_plot_of_speeds_gives_its_best():
    """Of designs that differ in their formats alone; the command and the Python say the same as the page."""
    fields = (*common_fields.DESIGN, *common_fields.SCENARIO)
    values = {field.key: field.default for field in fields} | {"tpot_limit": 35.0}

    def of(*designs):
        return bench.evaluate(values, tray.Tray(tuple(tray.TrayDesign(values=each) for each in designs))).answered

    rows, limits = of({"quantizer": "fp16"}, {"quantizer": "fp8"}), {"tpot_s": 0.035}
    made = compare.asked_by(rows, limits, "")
    assert made.command.startswith("dse ask interactivity --device h200 --model qwen3-32b")
    space = {}
    exec(made.python, space)
    found = space["result"].best
    assert (found["quantizer"], within(found, limits)) == ("fp8", True)
    curves = tuple((row.name, request.any_batch(row.request)) for row in rows)
    assert compare.cached_speeds(curves, tuple(limits.items())).best == found
    exec(compare.asked_by(rows, {}, "").python, space)  # without limits: the largest batches that run at once
    assert compare.cached_speeds(curves, ()).fronts == space["result"].fronts
    longer = request.answer(replace(rows[1].request, work=replace(rows[1].request.work, batch=found["batch"] + 1)))
    assert not within(longer.result, limits)
    assert compare.asked_by(of({}, {"tp": 2}), limits, "") is None
