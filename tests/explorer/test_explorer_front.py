"""The front page without a browser: its front is that of the whole table, and its threads end."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

import dse
from dse.core import specfile
from dse.core.errors import InputError
from dse.explorer import common_fields, kept, names, request, uploads
from dse.explorer.fields import MAX_TEXT, problem_of, read
from dse.explorer.front import job, limits, text
from dse.explorer.front.found import added, at, chart_of, filtered, limits_text, loaded, table_of
from dse.explorer.front.request import AT_MOST, FIELDS, MORE, commands, front_request, python, sweep_toml
from dse.explorer.uploads import FileText
from dse.model import results
from dse.model.results import RESULT_UNITS
from dse.operations.face import python_of
from dse.specs import catalog
from dse.sweep import spec
from dse.sweep.pareto import designs, stream
from dse.sweep.pareto.limits import Limit
from explorer_page import TIMEOUT_S, wrong

SMALL = {
    "front_devices": "oaken-lpddr;a100-80gb",
    "front_quantizers": "fp16;oaken",
    "front_batches": "16, 256",
    "front_inputs": "1024",
    "front_outputs": "512, 2048",
    "front_models": "llama2-7b",
    "front_tps": "",
    "admission": "reserve",
    "front_minimize": "decode_step_s",
    "front_by": "device",
    "front_at_most": "",
    "model_kind": "ideal",
    "front_axes": "oaken.outer = 0.02, 0.04; weights_bits = 16, 8; tokens = full, h2o:heavy=0.2",
    "front_bandwidths": "1 TB/s to 2 TB/s factor 2",
    "front_where": "batch * output_tokens <= 131072",
}


def field_values(query):
    fields = (*common_fields.DESIGN, *common_fields.SCENARIO, *FIELDS)
    found = {field.key: field.default for field in fields}
    by_key = {field.key: field for field in fields}
    for key, value in query.items():
        found[key] = read(by_key[key], value, found)
    return found


@pytest.fixture(scope="module")
def asked():
    return front_request(field_values(SMALL))


@pytest.fixture(scope="module")
def found(asked):
    return stream.front_of(asked.sweep(), asked.objectives(), asked.by)


def test_ranges_are_written_as_people_say_them():
    assert text.values_of("1, 2,4") == [1, 2, 4]
    assert text.values_of("1 to 256 factor 2") == {"from": 1, "to": 256, "factor": 2}
    assert text.values_of("1 TB/s to 4 TB/s count 7 log") == {
        "from": "1 TB/s",
        "to": "4 TB/s",
        "count": 7,
        "scale": "log",
    }
    for bad in ("1 to 4", "1 to step 2", "1 to 4 step 2 3 4"):
        with pytest.raises(InputError, match="a range is"):
            text.values_of(bad)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("batch = 1", "has a field of its own"),
        ("bacth = 1", "unknown axis"),
        ("weights_bits", "must be NAME = VALUES"),
        ("weights_bits = 5", "weights_bits"),
        ("prefix_tokens = 0; prefix_tokens = 1", "given twice"),
        ("prefix_tokens = 0 to 20000 step 1", "at most 10,000 here"),
    ],
)
def test_bad_axes_are_said_in_a_line(text, wrong):
    problem = problem_of(MORE, text, {})
    assert wrong in problem
    assert "\n" not in problem


def test_the_streamed_front_is_that_of_the_whole_table(asked, found):
    whole = designs.of_table(dse.sweep(asked.document()), asked.objectives(), asked.by, drop_missing=True)
    pd.testing.assert_frame_equal(found.table, whole.table)
    assert found.row.tolist() == whole.row.tolist()
    assert found.knee.tolist() == whole.knee.tolist()
    assert (found.n_rows, found.n_feasible, found.n_missing) == (whole.n_rows, whole.n_feasible, whole.n_missing)
    assert set(found.design) == set(whole.design)


def test_the_sweep_file_and_the_python_shown_ask_the_same(asked, found):
    document = specfile.parse("sweep.toml", sweep_toml(asked.document()), False)
    assert spec.of_document(document).sha256 == asked.sweep().sha256
    space = {}
    exec(python(asked), space)
    pd.testing.assert_frame_equal(space["result"].table, found.table)
    assert commands(asked)[1] == (
        "dse pareto sweep-result --maximize throughput_tokens_per_s --minimize decode_step_s --by device --drop-missing"
    )


def test_limits_are_those_of_the_command_line(asked):
    limited = replace(asked, at_most=("decode_step_s=0.05",), at_least=("measured_error=0.01",))
    found = stream.front_of(limited.sweep(), limited.objectives(), limited.by, limits=limited.limits())
    space = {}
    exec(python(limited), space)
    pd.testing.assert_frame_equal(space["result"].table, found.table)
    assert (space["result"].n_beyond, space["result"].n_missing) == (found.n_beyond, found.n_missing)
    assert 0 < found.n_beyond < found.n_feasible
    assert found.table["decode_step_s"].max() <= 0.05
    assert (found.cloud["decode_step_s"] <= 0.05).all()
    assert "--at-most decode_step_s=0.05 --at-least measured_error=0.01" in commands(limited)[1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("measured_error=0.2; Decode step = 50 ms", ["measured_error=0.2", "decode_step_s=0.05"]),
        ("kv_bytes = 40 GB", ["kv_bytes=40000000000"]),
        ("batch=8; TPOT =", ["batch=8"]),
        ("Error of the attention output = 20%", ["measured_error=0.2"]),
        (
            "Throughput = 1000; Total time = 2; Largest batch = 8; measured_error = 0.1",
            ["throughput_tokens_per_s=1000", "total_s=2", "max_batch=8", "measured_error=0.1"],
        ),
        ("throughput = 1000 token/s; largest batch = 8 sequences", ["throughput_tokens_per_s=1000", "max_batch=8"]),
    ],
)
def test_limits_take_words_and_units(given, expected):
    assert limits.as_options(limits.limits_in(given, "at most")) == tuple(expected)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("sped = 1", "write NAME = NUMBER UNIT; ..., such as Decode step = 50 ms"),
        ("decode_step = 1", "such as Decode step"),
        ("decode_stp_s = 1", "such as Decode step"),
        ("= 1", "write NAME = NUMBER UNIT; ..., such as Decode step = 50 ms"),
        (
            "error < 10%",
            "'error < 10%': write NAME = NUMBER UNIT; ..., such as Mean squared error or Error of the attention output",
        ),
        ("Error of the attention output = 10", "output = 10: say the unit, for example 10 %"),
        ("TPOT = 50", "TPOT = 50: say the unit, for example 50 ms"),
        ("Memory capacity = 80", "Memory capacity = 80: say the unit, for example 80 GB"),
        ("decode_step_s = 50 GB", "its unit one of s, ms"),
        ("decode_step_s = 5x ms", "must be a number, its unit one of s, ms"),
        ("decode_step_s = fast", "must be a number, its unit one of s, ms"),
        ("TPOT = 50 ms; tpot_s = 1", "at most tpot_s: is given twice"),
        ("; ".join(f"{name} = 1" for name in limits.objective_names()[:6]), "6 limits are given: must be at most 5"),
        ("decode_step_s", "write NAME = NUMBER UNIT; ..., such as Decode step"),
        ("quantizer = 1", "at most 'quantizer = 1': write NAME = NUMBER UNIT"),
    ],
)
def test_bad_limits_are_said_in_a_line(text, part):
    problem = problem_of(AT_MOST, text, {})
    assert part in problem
    assert "\n" not in problem


def test_limits_on_an_axis_need_the_axis(asked):
    with pytest.raises(InputError, match="memory_capacity: "):
        replace(asked, at_most=("memory_capacity=1",)).sweep()


def test_no_file_is_read_because_an_address_names_it():
    assert "no file is read" in problem_of(MORE, "key_quantizer = plan:/etc/plan.toml", {})
    assert "no file is read" in problem_of(MORE, "value_quantizer = fp16, PLAN:x.toml", {})


#: of two formats that vLLM keeps side by side
PLAN = "".join(
    f'[[layers]]\nlayer = {i}\nkey = "{name}"\nvalue = "{name}"\n'
    for i in range(32)
    for name in ("fp8" if i < 9 else "fp16",)
)


def test_files_of_the_reader_are_swept_and_join_the_tray(asked, tmp_path, monkeypatch):
    files = (
        (
            "mine.toml (loaded)",
            FileText("mine.toml", catalog.device_files()["h100"].read_text().replace('name = "H100"', 'name = "Mine"')),
        ),
        ("m.toml (loaded)", FileText("m.toml", catalog.model_files()["llama2-7b"].read_text())),
        ("p.toml (loaded)", FileText("p.toml", PLAN)),
    )
    own = replace(
        asked,
        devices=("mine.toml (loaded)", "h100"),
        models=("m.toml (loaded)",),
        quantizers=("p.toml (loaded)",),
        axes=(("batch", "16, 64"),),
        where="",
        files=files,
    )
    found = stream.front_of(own.sweep(), own.objectives(), own.by)
    assert set(found.table["device"]) == {"Mine", "H100"}
    row = found.table[found.table["device"] == "Mine"].iloc[0]
    fields = loaded(row.to_dict(), own)
    assert (fields["device"], fields["model"], fields["quantizer"]) == tuple(name for name, _ in files)
    by_name = dict(files)
    sides = {"device": "device_file", "model": "model_file", "quantizer": "quantizer_file"}
    design = replace(request.point_request(fields), **{side: by_name[fields[field]] for field, side in sides.items()})
    assert request.answer(design).result["throughput_tokens_per_s"] == row["throughput_tokens_per_s"]
    # the script and the command lines take the files from the folder they are run in
    monkeypatch.chdir(tmp_path)
    for name, content in by_name.values():
        (tmp_path / name).write_text(content)
    space = {}
    exec(python(own), space)
    pd.testing.assert_frame_equal(space["result"].table, found.table)
    exec(python_of(request.operation(design)), space)
    assert space["result"] == request.answer(design).result


def test_own_measurements_are_swept_and_join_the_tray(asked, tmp_path, monkeypatch):
    content = (Path(__file__).parents[2] / "dse" / "data" / "smollm2.measured.json").read_bytes()
    content = content.replace(b'"SmolLM2-135M, not your model"', b'"own.npz"')
    content = content.replace(b'"stored_bytes": 50025', b'"stored_bytes": 50026', 1)
    content = content.replace(b'"outliers": 59208', b'"outliers": 59216', 1)  # that byte more
    upload = uploads.read("m.json", content)[0]
    label = kept.label(upload, {})
    own = replace(
        asked,
        devices=("oaken-hbm",),
        quantizers=("oaken",),
        axes=(("batch", "16, 64"),),
        where="",
        measurements=label,
        minimize=("measured_bits",),
        measurements_file=upload,
    )
    found = stream.front_of(own.sweep(), own.objectives(), own.by)
    fields = loaded(found.table.iloc[0].to_dict(), own)
    design = request.answer(replace(request.point_request(fields), measurements_file=upload)).result
    shipped = request.answer(request.point_request({**fields, "measurements": "shipped"})).result
    assert design["measured_bits"] == found.table["measured_bits"].iloc[0] > shipped["measured_bits"]
    assert design["measured_on"] == "own.npz"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.json").write_bytes(content)
    space = {}
    exec(python(own), space)
    pd.testing.assert_frame_equal(space["result"].table, found.table)
    assert 'measurements = "m.json"' in sweep_toml(own.document())


def test_every_column_has_words_and_a_unit():
    assert set(RESULT_UNITS) <= set(results.RESULTS)
    assert names.titled("decode_step_s") == "Decode step (ms)"
    assert names.titled("measured_error") == "Error of the attention output (%)"
    words = [names.words(name) for name in RESULT_UNITS]
    assert len(set(words)) == len(words)


def test_every_design_of_the_front_has_its_result_in_the_tray(asked, found):
    assert "oaken" in set(found.table["quantizer"])
    for _, row in found.table.iterrows():
        fields = loaded(row.to_dict(), asked)
        result = request.answer(request.point_request(fields)).result
        assert result["throughput_tokens_per_s"] == row["throughput_tokens_per_s"], fields
        assert result["decode_step_s"] == row["decode_step_s"]


def test_a_click_finds_its_design(found):
    row = found.table.iloc[3]
    assert at(found, row["throughput_tokens_per_s"], row["decode_step_s"] * 1e3)["batch"] == row["batch"]
    assert at(found, row["throughput_tokens_per_s"], row["decode_step_s"] * 1.1e3) is None


def test_the_filter_is_a_condition_on_the_table(asked, found):
    sweep = asked.sweep()
    kept = filtered(found, 'quantizer == "oaken" and decode_step_s <= 0.05', sweep)
    naive = [row["quantizer"] == "oaken" and row["decode_step_s"] <= 0.05 for _, row in found.table.iterrows()]
    assert 0 < sum(naive) < len(naive)
    assert kept.row.tolist() == found.row[np.array(naive)].tolist()
    with pytest.raises(InputError, match="is not an axis"):
        filtered(found, "speed > 1", sweep)
    assert filtered(kept, 'quantizer == "fp16"', sweep).table.empty  # a name of the sweep that is not on this front
    shown = table_of(found, 2)
    assert len(shown) == 2
    assert shown["Decode step (ms)"][0] == pytest.approx(1e3 * found.table["decode_step_s"][0])


def test_threads_end_when_cancelled_or_left(asked, monkeypatch):
    entered = threading.Event()

    def slow(sweeps, objectives, by, check, count, limits, rows):
        entered.set()
        while True:
            check()
            time.sleep(0.001)

    monkeypatch.setattr(stream, "front_of", slow)
    cancelled = job.FrontJob(asked, asked.sweep())
    assert entered.wait(10)
    assert not cancelled.finished
    cancelled.cancel()
    cancelled.thread.join(10)
    assert not cancelled.thread.is_alive()
    assert cancelled.front is None
    assert cancelled.problem is None
    grace_s = job.GRACE_S
    monkeypatch.setattr(job, "GRACE_S", 0.01)
    left = job.FrontJob(asked, asked.sweep(), alive=lambda: False)
    left.thread.join(10)
    assert not left.thread.is_alive()
    assert left.front is None
    assert grace_s > 1  # a reload of the page takes less


def test_sweeps_are_interpreted_until_compiled_code_is_loaded_then_by_it(asked, monkeypatch):
    monkeypatch.setattr(job, "_is_loaded", threading.Event())
    monkeypatch.setattr(job, "_loading", threading.Lock())
    first = job.FrontJob(asked, asked.sweep())
    first.thread.join(60)
    assert not first.sweep.is_compiled
    assert job._is_loaded.wait(600)  # compiled here where no code was kept
    again = job.FrontJob(asked, asked.sweep())
    again.thread.join(60)
    assert again.sweep.is_compiled
    assert again.sweep == first.sweep
    pd.testing.assert_frame_equal(again.whole, first.whole, check_exact=True)
    pd.testing.assert_frame_equal(again.front.table, first.front.table, check_exact=True)


def finished(app):
    app.session_state["front job"].thread.join(60)
    return app.run()


def test_the_page_sweeps_filters_and_keeps_its_address(asked):
    app = AppTest.from_string("from dse.explorer.app import main; main('front')", default_timeout=TIMEOUT_S)
    for key, value in SMALL.items():
        app.query_params[key] = value
    finished(app.run())
    assert not app.exception
    assert not app.warning
    assert app.session_state["front job"].asked == asked
    assert len(app.dataframe[0].value) == len(app.session_state["front job"].front.table)
    first = app.session_state["front job"]
    assert "designs" not in vars(first.sweep)  # the plans that it built are gone
    app.text_input(key="front_filter").set_value('quantizer == "oaken"').run()
    assert app.session_state["front job"] is first  # nothing is swept again
    assert app.query_params["front_filter"] == 'quantizer == "oaken"'
    assert set(app.dataframe[0].value["Quantizer"]) == {"oaken"}
    app.text_input(key="front_filter").set_value("speed > 1").run()
    assert any("is not an axis" in text for text in wrong(app))
    app.multiselect(key="front_at_most on").set_value(["decode_step_s"]).run()
    assert app.session_state["front job"] is first  # a limit without its number limits nothing
    app.number_input(key="front_at_most decode_step_s").set_value(20.0).run()
    assert app.query_params["front_at_most"] == "Decode step = 20 ms"
    limited = app.session_state["front job"]
    assert limited is not first
    assert limited.whole is first.whole  # a changed limit evaluates nothing anew
    assert limited.front.table["decode_step_s"].max() <= 0.02
    app.text_input(key="front_where").set_value("batch >").run()
    assert any("is not a condition" in text for text in wrong(app))
    assert not app.dataframe
    app.text_input(key="front_where").set_value("batch > 1000").run()
    finished(app)
    assert any("No design is left" in text.value for text in app.info)
    assert not app.exception


def test_large_sweeps_wait_for_a_button_and_larger_ones_for_the_command_line():
    app = AppTest.from_string("from dse.explorer.app import main; main('front')", default_timeout=TIMEOUT_S)
    app.query_params["front_batches"] = "1 to 2000 step 1"
    app.run()
    assert "front job" not in app.session_state
    assert app.button(key="front start")
    app.text_input(key="front_batches").set_value("1 to 60000 step 1").run()
    assert any("1,200,000 designs" in text.value for text in app.info)
    assert "step = 1" in app.code[0].value
    assert "dse sweep sweep.toml" in app.code[1].value
    assert not app.exception


def test_what_is_left_open_is_the_current_designs_and_the_workloads():
    """The workload is no axis that a front would make smaller unasked, and limits of the workload are limits."""
    values = field_values({}) | {
        "device": "h100",
        "edits": "usd_per_hour=3 USD/h",
        "weights": "fp8",
        "tpot_limit": 30.0,
        "input": 8192,
        "admission": "reserve",
    }
    own = front_request(values)
    axes = dict(own.axes)
    assert (own.devices, own.models) == (("h100",), ("qwen3-32b",))
    assert {name: axes[name] for name in ("input_tokens", "weights", "admission", "usd_per_hour")} == {
        "input_tokens": "8192",
        "weights": "fp8",
        "admission": "reserve",
        "usd_per_hour": "3 USD/h",
    }
    assert own.at_most == ("tpot_s=0.03",)  # in place of the page's 100 ms
    assert [len(own.sweep().axis[name]) for name in ("batch", "tp", "quantizer", "input_tokens")] == [9, 4, 5, 1]


def test_a_limit_of_the_workload_stands_in_for_the_pages_own_at_most_and_for_none_at_least():
    app = AppTest.from_string("from dse.explorer.app import main; main('front')", default_timeout=TIMEOUT_S)
    app.query_params.update({**SMALL, "tpot_limit": "30", "front_at_most": "TPOT = 100 ms"})
    app.query_params["front_at_least"] = "TPOT = 1 ms"
    app.run()
    own = {kind: app.number_input(key=f"front_{kind} tpot_s") for kind in ("at_most", "at_least")}
    assert {kind: (field.value, field.disabled) for kind, field in own.items()} == {
        "at_most": (30.0, True),
        "at_least": (1.0, False),
    }
    limits = app.session_state["front job"].asked
    assert (limits.at_most, limits.at_least) == (("tpot_s=0.03",), ("tpot_s=0.001",))


def test_an_axis_that_is_left_open_has_no_front_of_its_own():
    """With the field of tensor parallel empty, `A front for each` has nothing to tell apart by it."""
    own = front_request(field_values({"front_tps": ""}))
    assert own.by == ()
    assert len(own.sweep().axes) > 1


def test_a_point_joins_the_tray_with_a_batch_of_its_own():
    values = field_values({}) | {"batch": 64, "input": 8192}
    found = {**values, "quantizer": "fp8", "tp": 2, "batch": 128, "input": 4096}
    design, workload = added(found, values)
    assert design.values == {"quantizer": "fp8", "tp": 2, "own_batch": 128}
    assert workload == {"input": 4096}
    assert added({**found, "batch": 64, "input": 8192}, values)[0].values == {"quantizer": "fp8", "tp": 2}


def test_the_batch_that_runs_is_said_beside_one_that_does_not():
    """Llama-2 70B on one H200: of 256 requests fewer run at once, as many as the card says."""
    asked = {"device": "h200", "model": "llama2-70b", "weights": "fp8", "input": "2048", "front_at_most": ""}
    own = front_request(field_values({**asked, "front_batches": "1, 256", "front_tps": "1"}))
    found = stream.front_of(own.sweep(), own.objectives(), own.by)
    at_once = found.table["running_batch"].tolist()
    assert at_once == [
        request.answer(request.point_request(loaded(row.to_dict(), own))).result["running_batch"]
        for _, row in found.table.iterrows()
    ]
    assert table_of(found, 9)["Running at once (sequences)"].tolist() == at_once
    (knee,) = (n for n, is_knee in zip(at_once, found.knee, strict=True) if is_knee)
    assert knee < 256
    notes = " ".join(chart_of(found).notes)
    assert f"batch 256, {knee} at once" in notes
    assert "8 of 10 measurements" in notes


def test_the_limits_are_said():
    """In words, in the units that people see."""
    assert limits_text(job_front(["tpot_s <= 0.05", "max_batch >= 8"])) == (
        "Limits: TPOT at most 50 ms, Largest batch at least 8 sequences."
    )
    assert limits_text(job_front([])) == ""


@given(
    st.dictionaries(
        st.sampled_from(limits.objective_names()),
        st.none() | st.floats(1e-9, 1e15, allow_nan=False),
        max_size=limits.MAX_LIMITS,
    )
)
def test_limits_survive_their_text(chosen):
    """What the fields write into the address, an address gives back, to twelve digits."""
    found = dict(limits.limits_in(limits.written(limits.NamedLimit(*each) for each in chosen.items()), "at most"))
    assert list(found) == list(chosen)
    for name, value in chosen.items():
        assert found[name] == (None if value is None else pytest.approx(value, rel=1e-11))


def test_the_longest_limits_fit_into_an_address():
    """As many as a field takes, of the longest names, each with twelve digits."""
    named = sorted((*limits.objective_names(), *limits.COUNTED), key=lambda name: len(names.words(name)))
    longest = [limits.NamedLimit(name, 1.23456789012e-7) for name in named[-limits.MAX_LIMITS :]]
    assert len(limits.written(longest)) <= MAX_TEXT


def job_front(texts):
    """A front with these limits and nothing on it."""
    found = [
        Limit(column, "at most" if sign == "<=" else "at least", float(value))
        for column, sign, value in (text.split() for text in texts)
    ]
    return a_front(limits=tuple(found))


def a_front(table=None, **more):
    """A front of this table, or with nothing on it."""
    table = pd.DataFrame() if table is None else table
    nothing = {
        "row": np.zeros(0, int),
        "knee": np.zeros(0, bool),
        "objectives": {},
        "by": (),
        "n_rows": 0,
        "n_feasible": 0,
        "n_missing": 0,
        "units": {},
        "design": (),
    }
    return designs.DesignFront(table=table, cloud=table.iloc[:0], **{**nothing, **more})
