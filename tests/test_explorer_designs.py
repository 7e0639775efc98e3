"""Designs side by side, the device's numbers, the reader's own files, and the files of a figure."""

import io
import json
import re
import struct
from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import pandas as pd
import pyarrow.parquet as pq
import pytest
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.uploaded_file_manager import UploadedFileRec
from streamlit.testing.v1 import AppTest

from dse import catalog
from dse.errors import InputError
from dse.explorer import beside, designs, launch, request, shared, uploads
from dse.explorer.beside import MadeBy
from dse.plots import design_bars


def page(**query):
    app = AppTest.from_file(launch.SCRIPT, default_timeout=60)
    app.session_state["memory beside"] = True  # what stands beside a figure is drawn when it is open
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


def values(**changed):
    found = {field.key: field.default for field in designs.FIELDS}
    return {**found, **changed}


def test_another_design_is_as_the_first_but_for_what_it_sets():
    asked = values(batch=32, quantizer="kivi", parameters="bits=4")
    asked["2.device"] = "h100"
    first, second = (designs.request_of(place, asked) for place in (1, 2))
    assert first.device == "a100-80gb"
    assert (second.device, second.batch, second.key_quantizer_text) == ("h100", 32, "kivi:bits=4")


def test_parameters_and_edits_stay_with_their_choice():
    asked = values(quantizer="kivi", parameters="bits=4", edits="usd_per_hour=9")
    asked |= {"2.quantizer": "sinkq", "2.device": "h100"}
    second = designs.request_of(2, asked)
    assert second.key_quantizer_text == "sinkq"
    assert second.device_text == "h100"


def test_two_designs_side_by_side_with_the_delta_to_the_first():
    app = AppTest.from_file(launch.SCRIPT, default_timeout=60)
    app.session_state["memory beside"] = True  # what stands beside a figure is drawn when it is open
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
    app = AppTest.from_file(launch.SCRIPT, default_timeout=60)
    app.session_state["memory beside"] = True  # what stands beside a figure is drawn when it is open
    app.query_params["designs"] = "2"
    app.query_params["2.model_kind"] = "ideal"
    app.query_params["2.stack"] = "vllm"
    app.run()
    assert not app.exception
    assert any("the ideal model has no software stack" in text.value for text in app.sidebar.text)
    assert {metric.label for metric in app.metric} >= {"Throughput"}


def test_a_number_of_the_device_is_changed_and_taken_back():
    text, source, kind = designs.editable("a100-80gb", "")["memory_bandwidth"]
    assert source
    assert kind
    edits = designs.edited("usd_per_hour=2 USD/h", "memory_bandwidth", "3 TB/s", text)
    assert edits == "usd_per_hour=2 USD/h,memory_bandwidth=3 TB/s"
    assert uploads.device("a100-80gb", edits).memory_bandwidth.si == 3e12
    assert designs.edited(edits, "memory_bandwidth", "", text) == "usd_per_hour=2 USD/h"
    assert designs.edited(edits, "memory_bandwidth", text, text) == "usd_per_hour=2 USD/h"


@pytest.mark.parametrize("name", sorted(catalog.device_files()))
def test_every_number_of_a_device_goes_back_as_it_is_shown(name):
    spec = uploads.device(name)
    given = {n: text for n, (text, _, kind) in designs.editable(name, "").items() if n in spec.model_fields_set}
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


DEVICE = (catalog.device_files()["a100-80gb"]).read_bytes()
CONFIG = b"""{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 4,
"num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 2048, "vocab_size": 1000}"""


def test_a_loaded_file_is_checked_and_named_never_as_a_path():
    label, upload, summary = uploads.read("../../etc/my.toml", DEVICE)
    assert (label, upload.kind) == ("my.toml (loaded device)", "device")
    assert "A100" in summary
    assert uploads.read("config.json", CONFIG)[1].kind == "model"


PLAN = b'[[layers]]\nlayer = 0\nkey = "kivi"\nvalue = "oaken:outer=0.02"\n'


def test_a_plan_by_layer_stores_keys_and_values(tmp_path, monkeypatch):
    label, upload, summary = uploads.read("p.toml", PLAN)
    assert (label, upload.kind) == ("p.toml (loaded plan)", "plan")
    assert summary.startswith("plan of 1 layers: no problem found")
    model = (
        catalog.model_files()["llama2-7b"]
        .read_text()
        .replace('{ value = 32, unit = "layer"', '{ value = 1, unit = "layer"')
    )
    asked = request.Request(
        model="m", model_file=("m.toml", model), quantizer=label, quantizer_file=(upload.name, upload.text)
    )
    assert asked.key_quantizer_text == asked.value_quantizer_text == "plan:p.toml"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_bytes(PLAN)
    (tmp_path / "m.toml").write_text(model)
    found = {}
    exec(request.python(asked), found)
    assert found["result"] == request.answer(asked).result
    assert "--quantizer plan:p.toml" in request.command(asked)
    sides = replace(asked, value_quantizer="fp16")
    assert "--key-quantizer plan:p.toml --value-quantizer fp16" in request.command(sides)


def test_a_loaded_plan_is_chosen_and_what_is_wrong_with_it_is_said():
    app = page()
    app.file_uploader[0].upload("p.toml", PLAN, "application/toml").run()
    assert not app.exception
    assert app.selectbox(key="quantizer").value == "p.toml (loaded plan)"
    assert any("has 1 layers, llama2-7b has 32" in text.value for text in app.sidebar.text)
    app.text_input(key="parameters").set_value("bits=2").run()
    assert any("a plan by layer has no parameters" in text.value for text in app.sidebar.text)
    app.file_uploader[0].upload("q.toml", PLAN.replace(b"kivi", b"kivvi"), "application/toml").run()
    assert any("q.toml:3: unknown quantizer 'kivvi'" in text.value for text in app.sidebar.text)
    assert not app.exception


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


def measured_file():
    """A measurement file whose tensors take 4 bits and whose attention output is off by 3/4."""
    tensors = [
        {
            "name": f"layer0.{which}", "layer": 0, "which": which, "n_heads": 1, "head_dim": 2, "n_tokens": 4,
            "n_elements": 8, "stored_bytes": 4, "ledger": {"payload": 32}, "counts": {}, "squared_error": 1.0,
            "squared_signal": 100.0, "max_abs_error": 1.0,
            "output": {"squared": 16.0, "squared_error": 9.0, "squared_error_both": 9.0},
        } for which in ("key", "value")
    ]  # fmt: skip
    data = {"name": "own.npz", "sha256": "0" * 64, "synthetic": False}
    return json.dumps(
        {"format": 1, "data": data, "methods": [{"quantizer": "oaken", "tensors": tensors}]}, indent=1
    ).encode()


def test_own_measurements_give_errors_and_bits_and_the_command_names_them(tmp_path, monkeypatch):
    content = measured_file()
    label, upload, summary = uploads.read("m.json", content)
    assert (label, upload.kind, summary) == (
        "m.json (loaded measurement)",
        "measurement",
        "measurements on own.npz: oaken",
    )
    asked = request.Request(measurements=label, measurements_file=upload)
    result = request.answer(asked).result
    assert result["measured_error"] == 0.75  # sqrt(9 / 16), of both sides together
    assert result["measured_bits"] == 4  # 4 bytes of 8 elements, keys as values
    assert result["measured_on"] == "own.npz"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.json").write_bytes(content)
    space = {}
    exec(request.python(asked), space)
    assert space["result"] == result
    assert request.command(asked).endswith(" --measurements m.json")
    assert str(upload.text) in repr(asked)  # what cached answers are kept by
    assert "own.npz" not in repr(asked)


def test_loaded_measurements_are_chosen_and_what_is_wrong_with_a_file_is_said():
    app = page()
    app.file_uploader[0].upload("m.json", measured_file(), "application/json").run()
    assert not app.exception
    assert app.selectbox(key="measurements").value == "m.json (loaded measurement)"
    assert not app.query_params
    assert any("relative error of the attention output  0.75" in code.value for code in app.code)
    wrong = measured_file().replace(b'"stored_bytes": 4', b'"stored_bytes": 5')
    app.file_uploader[0].upload("w.json", wrong, "application/json").run()
    assert any("w.json: 'oaken': 'layer0.key': ledger: must add up" in text.value for text in app.sidebar.text)
    wrong = measured_file().replace(b'"squared": 16.0', b'"squared": -1')
    app.file_uploader[0].upload("w.json", wrong, "application/json").run()
    assert any("w.json:" in text.value and "squared" in text.value for text in app.sidebar.text)
    assert app.selectbox(key="measurements").value == "m.json (loaded measurement)"


def test_a_file_that_a_field_has_chosen_is_not_dropped(monkeypatch):
    held = {f"{i}": None for i in range(uploads.MAX_UPLOADS)}
    monkeypatch.setattr(uploads.st, "session_state", {"explorer uploads": held, "explorer values": {"x": ["0", "1"]}})
    uploads.keep("new", uploads.Upload("device", "new.toml", "x"))
    assert list(held) == ["0", "1", "3", "4", "5", "6", "7", "new"]


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.toml", b"", "is empty"),
        ("a.toml", b"\xff\xfe", "not UTF-8"),
        ("a.toml", b"memory_capacity = '80 Gb'", "a.toml:1: memory_capacity"),
        ("a.json", b"[" * 1000, "nests more than"),
        ("a.toml", b"#" * 300_000, "at most 262,144"),
        ("a.toml", DEVICE.replace(b"[", b"x = 1\n[", 1), "unknown key"),
    ],
)
def test_a_bad_file_is_refused_as_dse_check_does(name, content, part):
    with pytest.raises(InputError) as caught:
        uploads.read(name, content)
    assert any(part in line for line in caught.value.lines())


def test_a_request_with_loaded_files_gives_the_same_as_the_shipped_ones():
    text = DEVICE.decode()
    file = ("mine.toml", text)
    own = request.Request(device="mine (loaded device)", device_file=file, edits="usd_per_hour=3 USD/h")
    assert own.device_text == "mine.toml:usd_per_hour=3 USD/h"
    shipped = request.Request(edits="usd_per_hour=3 USD/h")
    assert (
        request.answer(own).result["throughput_tokens_per_s"]
        == (request.answer(shipped).result["throughput_tokens_per_s"])
    )


def test_a_loaded_device_is_chosen_and_stays_out_of_the_url():
    app = page(batch="8")
    app.file_uploader[0].upload("mine.toml", DEVICE, "application/toml").run()
    assert not app.exception
    assert app.selectbox(key="device").value == "mine.toml (loaded device)"
    assert app.query_params in ({"batch": "8"}, {"batch": ["8"]})
    assert "--device mine.toml" in next(c.value for c in app.code if "dse point" in c.value)


def test_the_memory_of_an_upload_is_freed(monkeypatch):
    manager = MemoryUploadedFileManager("/upload")
    for name in ("read", "kept"):
        manager.add_file("session", UploadedFileRec(name, f"{name}.toml", "application/toml", b"0" * 1000))
    context = SimpleNamespace(session_id="session", uploaded_file_mgr=manager)
    monkeypatch.setattr(uploads, "get_script_run_ctx", lambda: context)
    uploads.let_go(SimpleNamespace(file_id="read"))
    assert [file.file_id for file in manager.get_files("session", ["read", "kept"])] == ["kept"]


def test_python_beside_a_figure_runs_and_gives_the_result():
    asked = request.Request(quantizer="kivi", parameters="bits=4", value_quantizer="fp16", batch=8, admission="paged")
    found = {}
    exec(request.python(asked), found)
    assert found["result"] == request.answer(asked).result


MADE = MadeBy("dse point --device a100-80gb\ndse point --device h100", "", "/?batch=64")
SAID = "dse point --device a100-80gb; dse point --device h100 (explorer: /?batch=64)"
ROWS = [("oaken", request.answer(request.DEFAULT).result)]


def texts_of_png(content):
    """Key and text of each tEXt or iTXt chunk, by the format's own layout: length, type, data, checksum."""
    at, found = 8, {}
    while at < len(content):
        length, kind = struct.unpack(">I4s", content[at : at + 8])
        if kind in (b"tEXt", b"iTXt"):
            key, _, text = content[at + 8 : at + 8 + length].partition(b"\0")
            found[key.decode()] = text.lstrip(b"\0").decode()
        at += length + 12
    return found


def state_in(kind, content):
    """What a file says made it, read back as its format keeps it."""
    if kind == "png":
        return texts_of_png(content)["Source"]
    if kind == "svg":
        place = "{http://purl.org/dc/elements/1.1/}source"
        return next(ElementTree.fromstring(content).iter(place)).text
    if kind == "pdf":
        return re.search(rb"/Subject \(Made by: ((?:[^()\\]|\\.)*)\)", content)[1].decode().replace("\\", "")
    if kind == "csv":
        table = pd.read_csv(io.BytesIO(content))
        assert table["kv_bytes"][0] == ROWS[0][1]["kv_bytes"]
        return table["made_by"][0]
    table = pq.read_table(io.BytesIO(content))
    assert table["kv_bytes"][0].as_py() == ROWS[0][1]["kv_bytes"]
    return table.schema.metadata[b"made_by"].decode()


@pytest.mark.parametrize("kind", list(beside.FORMATS))
def test_files_of_a_figure_open_and_carry_their_state(kind):
    content = beside.content(design_bars.memory(ROWS), lambda: design_bars.table(ROWS), kind, MADE)
    assert state_in(kind, content) == SAID


def test_bars_add_up_to_the_total():
    (panel,) = design_bars.memory(ROWS).panels
    *parts, mark = panel.series
    result = ROWS[0][1]
    assert sum(part.x[0] for part in parts) == sum(result[name] for name in design_bars.MEMORY)
    assert parts[-1].base[0] + parts[-1].x[0] == sum(part.x[0] for part in parts)
    assert mark.x == (result["capacity_bytes"],)


def test_every_field_of_a_design_is_a_field_of_the_request():
    assert {field.key for field in shared.DESIGN} == {
        name for name in request.Request.__dataclass_fields__ if not name.endswith("_file")
    }
