"""Files of the reader's own in the explorer: checked, chosen, named in addresses, and freed."""

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.uploaded_file_manager import UploadedFileRec

from dse.core.errors import DseError, InputError
from dse.explorer import common_fields, kept, request, state, uploads
from dse.operations.face import python_of
from dse.specs import catalog
from explorer_page import address_of, asked, command_of, measured_file, numbers, opened, page, said, wrong

DEVICE = catalog.device_text(catalog.device_files()["a100-80gb"]).encode()
CONFIG = b"""{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 4,
"num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 2048, "vocab_size": 1000}"""


def answer(point):
    """The numbers of a design at the batch that it asks for."""
    return request.answer(point, request.LoadRequest(amount=point.work.batch)).result


def test_a_loaded_file_is_checked_and_named_never_as_a_path():
    upload, summary = uploads.read("../../etc/my.toml", DEVICE)
    assert (upload.name, upload.kind) == ("my.toml", "device")
    assert "A100" in summary.text
    assert uploads.read("config.json", CONFIG)[0].kind == "model"


#: files that a reader may stumble over: what they begin with, and what then is repeated, with a number in it
LONG = {
    "unclosed string.toml": ('a = "', '\\"'),
    "unclosed lines.toml": ('a = """', '\\"""'),
    "keys.toml": ("", "k{} = 1\n"),
    "tables.toml": ("", "[t{}]\nx = 1\n"),
    "dotted key.toml": ("", "a."),
    "nested.toml": ("a = ", "["),
    "comments.toml": ("memory_capacity = 1\n", "# x\n"),
    "unclosed string.json": ('{"a": "', '\\"'),
    "keys.json": ("{", '"k{}": 1,'),
    "nested.json": ("", '{"a":'),
}


def reading_s(name, n_bytes):
    """Processor time of this thread to refuse a file of about that size."""
    start, unit = LONG[name]
    n = n_bytes // len(unit)
    content = (start + "".join(unit.replace("{}", str(i)) for i in range(n))).encode()
    begun = time.thread_time()
    with pytest.raises(DseError):
        uploads.read(name, content)
    return time.thread_time() - begun


def test_a_file_takes_time_in_proportion_to_its_size():
    """All sessions wait for the file of one: eight times the size takes eight times as long, not 64 times."""
    ratios = {name: min(reading_s(name, 32_000) / reading_s(name, 4_000) for _ in range(3)) for name in LONG}
    assert {name: ratio for name, ratio in ratios.items() if ratio > 24} == {}


PLAN = b'[[layers]]\nlayer = 0\nkey = "kivi"\nvalue = "oaken:outer=0.02"\n'


def test_a_plan_by_layer_stores_keys_and_values(tmp_path, monkeypatch):
    upload, summary = uploads.read("p.toml", PLAN)
    label = kept.label(upload, {})
    assert (label, upload.kind) == ("p.toml (loaded plan)", "plan")
    assert summary.head.startswith("plan of 1 layers: no problem found")
    model = (
        catalog.model_files()["llama2-7b"]
        .read_text()
        .replace('{ value = 32, unit = "layer"', '{ value = 1, unit = "layer"')
    )
    one = replace(
        asked(),
        model="m",
        model_file=uploads.FileText("m.toml", model),
        quantizer=label,
        quantizer_file=uploads.FileText(upload.name, upload.text),
    )
    assert one.key_quantizer_text == one.value_quantizer_text == "plan:p.toml"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_bytes(PLAN)
    (tmp_path / "m.toml").write_text(model)
    found = {}
    exec(python_of(request.operation(one)), found)
    assert found["result"] == answer(one)
    assert "--quantizer plan:p.toml" in request.command_of(request.operation(one))
    sides = replace(one, value_quantizer="fp16")
    assert "--quantizer plan:p.toml --value-quantizer fp16" in request.command_of(request.operation(sides))


def test_a_loaded_file_is_said_in_a_line_and_shown_whole_on_demand():
    app = page()
    app.file_uploader[0].upload("my.toml", DEVICE, "application/toml").run()
    assert "device A100-80GB: no problem found" in [text.value for text in app.text]
    next(button for button in app.button if button.label == "All of it").click().run()
    assert not app.exception
    table = app.dataframe[-1].value
    assert list(table.columns) == ["name", "value", "unit", "kind", "source"]
    assert table.set_index("name").loc["memory_bandwidth", ["value", "unit"]].tolist() == ["2.039", "TB/s"]


def test_a_loaded_plan_is_chosen_and_what_is_wrong_with_it_is_said():
    app = page()
    app.file_uploader[0].upload("p.toml", PLAN, "application/toml").run()
    assert not app.exception
    assert app.selectbox(key="quantizer").value == "p.toml (loaded plan)"
    assert any("has 1 layers, llama2-7b has 32" in text for text in wrong(app))
    app.text_input(key="parameters").set_value("bits=2").run()
    assert any("a plan by layer has no parameters" in text for text in wrong(app))
    app.file_uploader[0].upload("q.toml", PLAN.replace(b"kivi", b"kivvi"), "application/toml").run()
    assert any("q.toml:3: unknown quantizer 'kivvi'" in text for text in wrong(app))
    assert not app.exception


def test_own_measurements_give_errors_and_bits_and_the_command_names_them(tmp_path, monkeypatch):
    content = measured_file()
    upload, summary = uploads.read("m.json", content)
    label = kept.label(upload, {})
    assert (label, upload.kind, summary.text) == (
        "m.json (loaded measurement)",
        "measurement",
        "measurements on own.npz: oaken",
    )
    one = replace(asked(), measurements=label, measurements_file=upload)
    result = answer(one)
    assert result["measured_error"] == 0.75  # sqrt(9 / 16), of both sides together
    assert result["measured_bits"] == 4  # 4 bytes of 8 elements, keys as values
    assert result["measured_on"] == "own.npz"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.json").write_bytes(content)
    space = {}
    exec(python_of(request.operation(one)), space)
    assert space["result"] == result
    assert request.command_of(request.operation(one)).endswith(" --measurements m.json")
    assert str(upload.text) in repr(one)  # what cached answers are kept by
    assert "own.npz" not in repr(one)


def test_loaded_measurements_are_chosen_and_what_is_wrong_with_a_file_is_said():
    app = page()
    app.file_uploader[0].upload("m.json", measured_file(), "application/json").run()
    assert not app.exception
    assert app.selectbox(key="measurements").value == "m.json (loaded measurement)"
    assert "measurements.m.json@" in "".join(app.query_params["designs"])
    assert command_of(app).endswith("--measurements m.json")
    bad = measured_file().replace(b'"stored_bytes": 4', b'"stored_bytes": 5')
    app.file_uploader[0].upload("w.json", bad, "application/json").run()
    assert any("w.json: 'oaken': 'layer0.key': ledger: must add up" in text for text in wrong(app))
    bad = measured_file().replace(b'"squared": 16.0', b'"squared": -1')
    app.file_uploader[0].upload("w.json", bad, "application/json").run()
    assert any("w.json:" in text and "squared" in text for text in wrong(app))
    assert app.selectbox(key="measurements").value == "m.json (loaded measurement)"


@pytest.mark.parametrize("name", ["trace.csv", "trace.jsonl", "sweep.PARQUET"])
def test_a_table_under_files_says_where_it_is_loaded(name):
    app = opened("answer")
    app.file_uploader[0].upload(name, b"a,b\n1,2\n", "text/csv").run()
    assert not app.exception
    assert wrong(app) == [f"{name}: a trace and a table of `dse sweep` are loaded on Size, measured servers on Trust"]


def test_a_file_that_a_field_has_chosen_is_not_dropped(monkeypatch):
    held = {f"{i}": None for i in range(uploads.MAX_UPLOADS)}
    monkeypatch.setattr(state, "session", lambda: state.Session(uploads=held, values={"x": ["0", "1"]}))
    assert uploads.keep(uploads.Upload("device", "new.toml", "x")) == "new.toml (loaded device)"
    assert list(held) == ["0", "1", "3", "4", "5", "6", "7", "new.toml (loaded device)"]


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.toml", b"", "is empty"),
        ("a.toml", b"\xff\xfe", "not UTF-8"),
        ("a.toml", b"memory_capacity = '80 Gb'", "a.toml:1: memory_capacity"),
        ("a.json", b"[" * 1000, "nests more than"),
        ("a.toml", b"#" * 300_000, "at most 262,144"),
        ("a.toml", DEVICE.replace(b"\n[", b"\nx = 1\n[", 1), "unknown key"),
    ],
)
def test_a_bad_file_is_refused_as_dse_check_does(name, content, part):
    with pytest.raises(InputError) as caught:
        uploads.read(name, content)
    assert any(part in line for line in caught.value.lines())


def test_a_request_with_loaded_files_gives_the_same_as_the_shipped_ones():
    text = DEVICE.decode()
    file = uploads.FileText("mine.toml", text)
    own = replace(asked(), device="mine (loaded device)", device_file=file, edits="usd_per_hour=3 USD/h")
    assert own.device_text == "mine.toml:usd_per_hour=3 USD/h"
    shipped = asked(edits="usd_per_hour=3 USD/h")
    assert answer(own)["throughput_tokens_per_s"] == answer(shipped)["throughput_tokens_per_s"]


def test_a_loaded_device_is_chosen_and_survives_a_reload_or_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(kept, "_files", {})
    app = page(batch="8")
    app.file_uploader[0].upload("mine.toml", DEVICE, "application/toml").run()
    assert not app.exception
    assert app.selectbox(key="device").value == "mine.toml (loaded device)"
    assert "--device mine.toml" in next(c.value for c in app.code if "dse point" in c.value)
    address = address_of(app)
    assert (address["batch"], address["device"].split("@")[0]) == ("8", "mine.toml")
    again = opened("answer", **address)  # another session, as after a reload
    assert not again.warning
    assert again.selectbox(key="device").value == "mine.toml (loaded device)"
    assert address_of(again) == address
    guessed = page(device="mine.toml@0123456789abcdef")
    own = opened("/compare", designs="device.mine.toml@0123456789abcdef~tp.2~~quantizer.fp8")
    kept._files.clear()  # as after `dse app` was started anew
    for lost, what in ((opened("answer", **address), "device"), (guessed, "device"), (own, "design 1: own_device")):
        assert not lost.exception
        assert lost.code[0].value == f"{what}: mine.toml was loaded in another session: load it again"
        assert lost.selectbox(key="device").value == common_fields.DEVICE.default


def pool(app):
    """Tokens that all requests can hold, as the opened row says it."""
    return float(numbers(app)["KV tokens of the pool"].partition(" ")[0].replace(",", ""))


def test_two_files_of_one_name_are_two():
    app = page()
    for content in (CONFIG, CONFIG.replace(b"1024", b"2048"), CONFIG):
        app.file_uploader[0].upload("config.json", content, "application/json").run()
        assert not app.exception
    both = ["config.json (loaded model)", "config.json (loaded model 2)"]
    model = app.selectbox(key="model")
    assert set(model.options[-2:]) == set(both)
    assert model.value == both[0]  # the same once more
    first = pool(app)
    model.select(both[1]).run()
    assert "a100-80gb, config.json (2), KV oaken" in said(app)
    assert pool(app) < first / 1.9  # twice the width of hidden states and so of heads
    assert pool(opened("answer", **address_of(app))) == pool(app)


def test_files_are_kept_for_a_while_and_few(monkeypatch):
    monkeypatch.setattr(kept, "_files", {})
    monkeypatch.setattr(kept, "MAX_FILES", 3)
    now = [0.0]
    monkeypatch.setattr(kept.time, "monotonic", lambda: now[0])
    files = [uploads.Upload("device", f"{i};.toml", "x") for i in range(4)]
    for now[0], file in enumerate([*files[:3], files[0], files[3]]):
        kept.remember(file)
    assert [kept.file_of(kept.address(file)) for file in files] == [files[0], None, *files[2:]]
    assert ";" not in kept.address(files[0])
    now[0] = kept.KEEP_S + 3.5  # the first was last used at 3, the third at 2
    assert kept.file_of(kept.address(files[2])) is None
    kept.remember(files[3])
    assert [kept.file_of(kept.address(file)) for file in files] == [None, None, None, files[3]]


def test_the_memory_of_an_upload_is_freed(monkeypatch):
    manager = MemoryUploadedFileManager("/upload")
    for name in ("read", "kept"):
        manager.add_file("session", UploadedFileRec(name, f"{name}.toml", "application/toml", b"0" * 1000))
    context = SimpleNamespace(session_id="session", uploaded_file_mgr=manager)
    monkeypatch.setattr(uploads, "get_script_run_ctx", lambda: context)
    uploads.let_go(SimpleNamespace(file_id="read"))
    assert [file.file_id for file in manager.get_files("session", ["read", "kept"])] == ["kept"]


LOGS = Path(__file__).parents[1] / "validate" / "logs"


def set_by(app):
    """What the page says that it set, and what not."""
    return next((line for line in said(app).splitlines() if line.startswith("Set: ")), "")


@pytest.mark.parametrize(
    ("log", "device", "fields", "says"),
    [
        (
            "vllm-0.19-llama-3.1-8b-kv-fp8.log",
            "h100",
            {
                "model": "llama3.1-8b",
                "device": "h100",
                "devices": 1,
                "quantizer": "fp8",
                "gpu_memory_utilization": 0.95,
                "max_model_len": 8192,
                "stack": "vllm@0.19.0",
            },
            "no device in the log",
        ),
        (
            "vllm-0.10-qwen2-7b-tp2.log",
            "h100",
            {"model": "qwen2.5-7b", "devices": 2, "tp": None},
            "no device in the log",
        ),
        (
            "llamacpp-llama-3.1-8b-q4_k_m.log",
            "h200",
            {"model": "llama3.1-8b", "device": "rtx-4090", "devices": 1, "weights": "q4_k_m", "stack": "llama.cpp"},
            "which Trust compares",
        ),
    ],
)
def test_a_log_sets_the_question_and_the_design(log, device, fields, says):
    """As `dse recommend --from` reads it; Trust has the same log."""
    app = opened("answer", device=device, designs="own_model.qwen3-8b~tp.4~~quantizer.fp8")
    app.file_uploader[0].upload(log, (LOGS / log).read_bytes(), "text/plain").run()
    assert not app.exception
    assert {key: app.session_state[key] for key in fields} == fields
    assert app.session_state["own_model"] is None
    assert says in set_by(app)
    assert list(app.session_state["own log"]) == [log]
    assert wrong(app) == []
    next(button for button in app.sidebar.button if button.label == "Undo").click().run()
    assert address_of(app)["designs"] == "own_model.qwen3-8b~tp.4~~quantizer.fp8"


def test_a_log_of_another_device_sets_what_does_not_need_it():
    app = opened("answer", device="l4")
    log = "vllm-0.11-llama-3.1-8b.log"  # of 79 GiB
    app.file_uploader[0].upload(log, (LOGS / log).read_bytes(), "text/plain").run()
    assert (app.selectbox(key="model").value, app.selectbox(key="device").value) == ("llama3.1-8b", "l4")
    assert "GiB: give the log's device; then load it again" in set_by(app)


RUN = {
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "request_rate": 4.5,
    "tensor_parallel_size": 2,
    "completed": 320,
    "total_input_tokens": 327680,
    "total_output_tokens": 163840,
    "output_throughput": 3000.5,
}


def test_a_benchmark_sets_its_server_its_lengths_and_its_load():
    app = opened("answer")
    app.file_uploader[0].upload("bench.json", json.dumps(RUN).encode(), "application/json").run()
    assert not app.exception
    wanted = {"model": "llama3.1-8b", "devices": 2, "input": 1024, "output": 512, "load": "rate", "rate": 4.5}
    assert {key: app.session_state[key] for key in wanted} == wanted
    closed = {**RUN, "request_rate": "inf", "max_concurrency": 32, "tensor_parallel_size": None}
    app.file_uploader[0].upload("bench.json", json.dumps(closed).encode(), "application/json").run()
    assert (app.session_state["load"], app.session_state["batch"]) == ("batch", 32)
    assert "no number of devices" in set_by(app)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("other.txt", b"nothing\nof a server\n", "has no start-up lines of vLLM, SGLang, TensorRT-LLM or llama.cpp"),
        (
            "large.log",
            b"\n" * (2**21 + 1),
            "large.log: has 2,097,153 bytes: at most 2,097,152: give its start-up alone",
        ),
        ("bad.json", json.dumps({**RUN, "completed": 0}).encode(), "completed = '0': must be more than 0"),
        ("other.json", b'{"a": 1}', "other.json"),
    ],
)
def test_a_bad_log_is_a_line_beside_the_field(name, content, says):
    app = opened("answer")
    before = address_of(app)
    app.file_uploader[0].upload(name, content, "text/plain").run()
    assert not app.exception
    assert any(says in line for line in wrong(app))
    assert address_of(app) == before
