"""The what-if page without a browser: every widget moved, designs side by side, bad input as a line of text."""

import json
import shlex
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from dse.cli import main as cli
from dse.core import errors
from dse.explorer import common_fields as shared
from dse.explorer import names, request, uploads
from dse.explorer.pages import what_if
from dse.explorer.request import DEFAULT
from dse.figures import design_bars
from dse.specs import catalog
from explorer_page import WHAT_IF, command_of, measured_file, metrics, page, shown_text


def test_first_page_shows_the_headline_and_every_number(opened):
    assert not opened.exception
    assert set(metrics(opened)) == set(map(what_if.label_of, what_if.HEADLINE))
    assert metrics(opened)["KV cache"] == "21.25 GB"
    assert not opened.warning


def test_the_page_calls_results_as_tables_do_but_for_a_few():
    assert what_if.label_of("sqnr_db") == "Signal to noise"  # as the table of results says it
    assert what_if.label_of("kv_bytes") == "KV cache"  # not "KV cache of the batch": its tooltip says whose
    shown = {name for rows in what_if.GROUPS.values() for name in rows}
    assert set(what_if.HEADLINE) <= shown
    assert set(what_if.LABELS) <= shown
    assert [name for name, label in what_if.LABELS.items() if label == names.words(name)] == []


@pytest.mark.parametrize("name", sorted({name for rows in what_if.GROUPS.values() for name in rows}))
def test_every_number_has_an_explanation(name):
    text = request.explanation(DEFAULT, name)
    assert f"{name} = " in text
    assert "source   " in text


def test_sizes_are_in_gb_only(opened):
    assert not any("GiB" in value for value in metrics(opened).values())


CHOSEN = {
    "device": "oaken-hbm", "model": "mistral-7b", "quantizer": "kivi", "admission": "paged", "weights_bits": 8,
    "model_kind": "ideal", "tokens": "h2o", "value_quantizer": "fp16", "stack": "sglang",
}  # fmt: skip


@pytest.mark.parametrize("key", list(CHOSEN))
def test_every_choice_moves_the_page(key, opened):
    app = page()
    app.selectbox(key=key).select(CHOSEN[key]).run()
    assert not app.exception
    assert app.query_params[key] in (str(CHOSEN[key]), [str(CHOSEN[key])])
    assert len(app.metric) == len(what_if.HEADLINE)
    assert shown_text(app) != shown_text(opened)


@pytest.mark.parametrize("key", ["batch", "input", "output"])
def test_every_number_to_its_limits(key):
    app = page()
    field = next(field for field in shared.DESIGN if field.key == key)
    for value in (int(field.low), int(field.high)):
        app.number_input(key=key).set_value(value).run()
        assert not app.exception, value
        assert len(app.metric) == len(what_if.HEADLINE), value


def test_a_token_policy_shows_what_it_keeps_and_what_it_leaves_out():
    app = page(tokens="h2o", quantizer="kivi")
    assert not app.exception
    assert app.selectbox(key="tokens").value == "h2o"
    assert "--tokens h2o" in command_of(app)
    shown = "\n".join(caption.value for caption in app.caption)
    assert "204 tokens stored and 204 tokens read at the end" in shown  # 102 + 102 of 1,024
    assert "taken to cost no time" in shown
    assert metrics(app)["KV cache"] != metrics(page(quantizer="kivi"))["KV cache"]


def test_parameters_change_the_result_and_leave_with_their_family():
    app = page()
    app.selectbox(key="quantizer").select("sinkq").run()
    before = metrics(app)
    app.text_input(key="parameters").set_value("bits=4,group=32").run()
    assert not app.exception
    assert metrics(app)["KV cache"] != before["KV cache"]
    assert "sinkq:bits=4,group=32" in command_of(app)
    app.selectbox(key="quantizer").select("fp16").run()
    assert app.text_input(key="parameters").value == ""
    assert len(app.metric) == len(what_if.HEADLINE)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("bits=7", "unknown parameter 'bits'"),
        ("outer=2", "must be a number from 0 to"),
        ("<script>alert(1)</script>", "unknown parameter"),
        ("![x](https://example.org/x.png)", "unknown parameter"),
        ("\x00\u202e", r"\x00\u202e"),
        ("x" * 100_000, "longer than 200 characters"),
    ],
)
def test_bad_parameters_show_one_line_beside_the_field(text, part):
    app = page()
    app.text_input(key="parameters").set_value(text).run()
    assert not app.exception
    assert not app.metric
    lines = [element.value for element in app.sidebar.text]
    assert any(part in line for line in lines)
    assert all(len(line) <= errors.MAX_LINE and line.isprintable() for line in lines)
    app.text_input(key="parameters").set_value("").run()
    assert len(app.metric) == len(what_if.HEADLINE)


def test_a_model_that_does_not_fit_says_why():
    app = page(model="llama3.1-405b")
    assert not app.exception
    assert metrics(app)["Throughput"] == "-"
    assert "This does not fit:" in [warning.value for warning in app.warning]
    assert any(" GB" in text.value for text in app.text)


def test_a_batch_that_does_not_fit_at_once_says_so():
    app = page(batch="100000")
    fit = metrics(app)["Largest batch"].split()[0]
    assert any(f"at most {fit} of 100,000 requests fit together" in warning.value for warning in app.warning)


def test_command_line_prints_the_same_numbers(capsys):
    asked = request.of({
        "quantizer": "sinkq", "parameters": "bits=4,group=32", "batch": 48, "input": 1000, "output": 300,
        "admission": "paged", "weights_bits": 8,
    })  # fmt: skip
    words = shlex.split(request.command(asked))
    assert words[0] == "dse"
    with pytest.raises(SystemExit) as stop:
        cli.main([*words[1:], "--json"])
    assert stop.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    for name in ("intervals", "bit_ledger", "operations", "with_room", "kernels"):  # of the command alone
        del printed[name]
    assert printed == request.answer(asked).result


def values(**changed):
    found = {field.key: field.default for field in what_if.FIELDS}
    return {**found, **changed}


def test_another_design_is_as_the_first_but_for_what_it_sets():
    asked = values(batch=32, quantizer="kivi", parameters="bits=4")
    asked["2.device"] = "h100"
    first, second = (what_if.request_of(place, asked) for place in (1, 2))
    assert first.device == "a100-80gb"
    assert (second.device, second.work.batch, second.key_quantizer_text) == ("h100", 32, "kivi:bits=4")


def test_parameters_and_edits_stay_with_their_choice():
    asked = values(quantizer="kivi", parameters="bits=4", edits="usd_per_hour=9")
    asked |= {"2.quantizer": "sinkq", "2.device": "h100"}
    second = what_if.request_of(2, asked)
    assert second.key_quantizer_text == "sinkq"
    assert second.device_text == "h100"


def test_two_designs_side_by_side_with_the_delta_to_the_first():
    app = AppTest.from_string(WHAT_IF, default_timeout=60)
    app.session_state["memory_bars beside"] = True  # what stands beside a figure is drawn when it is open
    for key, value in {"designs": "2", "2.quantizer": "fp16", "editing": "2"}.items():
        app.query_params[key] = value
    app.run()
    assert not app.exception
    assert "Design 2 does not fit at once" in app.warning[0].value  # 68.7 GB and 13.5 GB of weights in 80 GB
    shown = {metric.label: (metric.value, metric.delta) for metric in app.metric}
    assert shown["1: KV cache"] == ("21.25 GB", "")
    # FP16: 2 x 32 layers x 32 heads x 128 x 2 B x 2,048 tokens x 64 requests = 68.72 GB, 3.23 times the first
    assert shown["2: KV cache"] == ("68.72 GB", "3.23 x")
    app.number_input(key="2.batch").set_value(8).run()
    assert not app.exception
    assert {metric.label: metric.value for metric in app.metric}["2: KV cache"] == "8.59 GB"
    commands = next(code.value for code in app.code if code.value.startswith("dse point")).splitlines()
    assert [line.count("--batch 8 ") for line in commands] == [0, 1]


def test_a_wrong_design_leaves_the_others():
    app = AppTest.from_string(WHAT_IF, default_timeout=60)
    app.session_state["memory_bars beside"] = True  # what stands beside a figure is drawn when it is open
    app.query_params["designs"] = "2"
    app.query_params["2.model_kind"] = "ideal"
    app.query_params["2.stack"] = "vllm"
    app.run()
    assert not app.exception
    assert any("the ideal model has no software stack" in text.value for text in app.sidebar.text)
    assert {metric.label for metric in app.metric} >= {"Throughput"}


def test_a_number_of_the_device_is_changed_and_taken_back():
    text, source, kind = what_if.editable("a100-80gb", "")["memory_bandwidth"]
    assert source
    assert kind
    edits = what_if.with_edit("usd_per_hour=2 USD/h", "memory_bandwidth", "3 TB/s", text)
    assert edits == "usd_per_hour=2 USD/h,memory_bandwidth=3 TB/s"
    assert uploads.device("a100-80gb", edits).memory_bandwidth.si == 3e12
    assert what_if.with_edit(edits, "memory_bandwidth", "", text) == "usd_per_hour=2 USD/h"
    assert what_if.with_edit(edits, "memory_bandwidth", text, text) == "usd_per_hour=2 USD/h"


@pytest.mark.parametrize("name", sorted(catalog.device_files()))
def test_every_number_of_a_device_goes_back_as_it_is_shown(name):
    spec = uploads.device(name)
    given = {n: text for n, (text, _, kind) in what_if.editable(name, "").items() if n in spec.model_fields_set}
    again = uploads.device(name, ",".join(f"{n}={text}" for n, text in given.items()))
    for field in given:
        assert getattr(again, field).si == pytest.approx(getattr(spec, field).si, rel=1e-11), field


def test_edits_of_the_url_reach_the_result_and_the_command():
    app = page(edits="memory_bandwidth=3 TB/s", quantizer="fp16")
    assert not app.exception
    assert "--device 'a100-80gb:memory_bandwidth=3 TB/s'" in next(c.value for c in app.code if "dse point" in c.value)
    wrong = page(edits="memory_bandwidth=3 TBs")
    assert len(wrong.warning) == 1
    assert "memory_bandwidth" in wrong.code[0].value


def test_a_design_keeps_its_fields_while_another_is_changed():
    app = page(designs="2", editing="2")
    app.number_input(key="2.batch").set_value(7).run()
    app.session_state["editing"] = 1
    app.run()
    for length in (99, 98):
        app.number_input(key="input").set_value(length).run()
        assert {key: "".join(text) for key, text in app.query_params.items()} == {
            "designs": "2", "2.batch": "7", "input": str(length)
        }  # fmt: skip


def test_the_usable_memory_is_marked_where_it_is_not_the_whole():
    edits, paper = "usable_frac=0.9,runtime_overhead=2 GB", replace(DEFAULT.work, memory="paper")
    result = request.answer(replace(DEFAULT, edits=edits, work=paper)).result
    (panel,) = design_bars.memory([("a", result)]).panels
    marks = {series.name: series.x for series in panel.series if series.kind == "scatter"}
    assert marks == {"usable memory": (70e9,), "device memory": (80e9,)}  # 0.9 * 80 GB - 2 GB
    batch = result["max_batch"]
    for n, fits in ((batch, True), (batch + 1, False)):
        asked = request.of({"edits": edits, "batch": n, "memory": "paper"})
        (panel,) = design_bars.memory([("a", request.answer(asked).result)]).panels
        *parts, usable, _ = panel.series
        assert (sum(part.x[0] for part in parts) <= usable.x[0]) == fits


@pytest.mark.parametrize(
    ("admission", "said"),
    [
        # (40 GB - 26.03 GB of weights) / (819,200 B * 1,324 tokens = 1.085 GB) = 12.9; 32 in 3 waves of 11, 11, 10
        ("reserve", "at most 12 of 32 requests fit together, so that they run in 3 waves of up to 11."),
        ("paged", "requests fit together."),
    ],
)
def test_what_fits_together_is_the_largest_batch(admission, said):
    asked = request.of({
        "device": "a100-40gb", "model": "llama2-13b", "quantizer": "fp16", "batch": 32, "input": 300, "output": 1024,
        "admission": admission, "memory": "paper",
    })  # fmt: skip
    result = request.answer(asked).result
    assert not result["fits_whole_batch"]
    text = what_if.together(result)
    assert text.endswith(said)
    assert text.startswith(f"at most {result['max_batch']:,} of 32 ")


def test_a_limit_of_the_server_is_not_said_to_be_memory():
    asked = request.of({"device": "h100", "model": "llama3.1-8b", "quantizer": "fp16", "batch": 32, "max_num_seqs": 8})
    said = "at most 8 of 32 requests run together (the server's own limit), so that they run in 4 waves of up to 8."
    assert what_if.together(request.answer(asked).result) == said


def shown_labels(app):
    """The numbers that open their explanation."""
    return [block.proto.popover.label for block in app if block.type == "popover"]


def test_numbers_measured_on_made_up_data_say_so():
    def error_of(app):
        return next(label for label in shown_labels(app) if label.startswith("Attention error"))

    assert error_of(page()).endswith("(synthetic data)")
    assert next(label for label in shown_labels(page()) if label.startswith("Signal to")).endswith("(synthetic data)")
    assert "synthetic" not in error_of(page(quantizer="fp16"))
    app = page()
    app.file_uploader[0].upload("m.json", measured_file(), "application/json").run()
    assert error_of(app) == "Attention error: **0.75**"


def test_a_context_beyond_the_models_positions_is_marked():
    app = page(input="4000", output="97", batch="1")
    assert any("longer context than its model was made for" in warning.value for warning in app.warning)
    said = "Note: 4,097 tokens are beyond the 4,096 positions that llama2-7b was made for"
    assert said in [text.value for text in app.text]
    fits = page(input="4000", output="96", batch="1")
    assert not fits.warning
    longest = next(label for label in shown_labels(fits) if label.startswith("Longest context"))
    assert longest.endswith(r"(model\: 4,096 positions)")
    two = page(designs="2", **{"2.input": "5000", "2.batch": "1"})
    assert [warning.value for warning in two.warning] == ["Design 2 has a longer context than its model was made for:"]


def test_bars_add_up_to_the_total():
    result = request.answer(replace(DEFAULT, work=replace(DEFAULT.work, memory="paper"))).result
    (panel,) = design_bars.memory([("oaken", result)]).panels
    *parts, mark = panel.series
    assert sum(part.x[0] for part in parts) == sum(result[name] for name in design_bars.MEMORY)
    assert parts[-1].base[0] + parts[-1].x[0] == sum(part.x[0] for part in parts)
    assert mark.x == (result["capacity_bytes"],)
