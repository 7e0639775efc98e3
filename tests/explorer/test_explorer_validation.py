"""The validation page without a browser."""

from pathlib import Path

import pytest

from dse.explorer.pages import validation
from dse.validate import verdicts
from explorer_page import opened, said


@pytest.fixture(scope="module")
def rows():
    return validation.cached_claims()


@pytest.mark.slow
def test_fields_leave_the_claims_they_name(rows):
    values = {field.key: field.default for field in validation.FIELDS}
    assert validation.chosen(rows, values) == rows
    missed = validation.chosen(rows, {**values, "validation_verdicts": ["missed"]})
    assert {row.verdict for row in missed} == {"missed"}
    assert len(missed) == verdicts.counts(rows)["missed"]
    sinkq = validation.chosen(rows, {**values, "validation_document": "SinkQ"})
    assert sinkq
    assert all(row.id.startswith("sinkq") for row in sinkq)
    assert [row.id for row in validation.chosen(rows, {**values, "validation_words": "sinkq max-gain"})] == [
        "sinkq-max-gain"
    ]
    assert {validation.short(row.source) for row in rows} | {"all"} == set(validation.DOCUMENTS)


def test_the_page_runs_and_follows_its_widgets(rows):
    app = opened("validation")
    assert not app.exception
    assert "Kernels of vllm on H200 err by up to" in said(app)  # of the current design
    assert "same model" in app.dataframe[0].value["how near"].tolist()
    # each verdict that occurs, with its count
    shown = {metric.label[2:]: metric.value for metric in app.metric}
    assert shown == {verdict: f"{n:,}" for verdict, n in verdicts.counts(rows).items() if n}
    app.selectbox(key="validation_document").select("Oaken")
    app.selectbox(key="validation_device").select("B200").run()
    assert not app.exception
    assert app.query_params["validation_device"] == "B200"
    assert app.query_params["validation_document"] == "Oaken"
    app.text_input(key="validation_words").set_value("no such claim").run()
    assert not app.exception
    assert "No claim is left" in app.info[0].value


def test_kernels_are_of_the_design_device_unless_another_is_chosen(rows):
    assert "choose a device" not in said(opened("validation"))
    other = opened("validation", designs="device.mi300x")
    assert "No times of MI300X were fitted: choose a device." in said(other)
    other.selectbox(key="validation_device").select("H200").run()
    assert not other.exception
    assert "choose a device" not in said(other)


LOG = Path(__file__).parents[1] / "validate" / "logs" / "vllm-0.19-llama-3.1-8b.log"


def log_loader(app):
    return next(one for one in app.file_uploader if one.label.startswith("Log of vLLM"))


def test_a_start_up_log_stands_beside_its_design(rows):
    app = opened("validation", designs="device.b200")
    log_loader(app).upload("server.log", LOG.read_bytes(), "text/plain").run()
    assert not app.exception
    # vLLM says no device, and the page's own is none of the log's
    assert "server.log: names no device: choose the GPU of the log" in said(app)
    assert not any("log" in one.value for one in app.dataframe)
    app.selectbox(key="log_device").select("h100").run()
    assert not app.exception
    terms = next(one.value for one in app.dataframe if "log" in one.value)
    assert terms["log"].tolist()[4:] == ["476,016", "58.11"]
    texts = "\n".join(one.value for one in app.text)
    assert "vLLM 0.19.0: llama3.1-8b, bf16 weights, bf16 KV, on H100" in texts
    assert "Log and design agree" in texts
    assert any(one.value.startswith("dse point --device h100 --model meta-llama") for one in app.code)
    app.selectbox(key="log_device").select("h200").run()
    assert any("bf16 KV, on H200" in one.value for one in app.text)
    app.selectbox(key="log_device").set_value(None)
    named = (LOG.parent / "llamacpp-llama-3.1-8b-q4_k_m.log").read_text()
    log_loader(app).upload("named.log", named.encode(), "text/plain").run()
    assert any("fp16 KV, on RTX-4090" in one.value for one in app.text)
    unknown = named.replace("RTX 4090", "RTX 2060").encode()
    log_loader(app).upload("unknown.log", unknown, "text/plain").run()
    names = "unknown.log: names 'NVIDIA GeForce RTX 2060', which is not shipped: choose the GPU of the log"
    assert names in said(app)
    log_loader(app).upload("large.log", b"\n" * (2**21 + 1), "text/plain").run()
    assert "large.log: has 2,097,153 bytes: give its start-up alone" in said(app)
    log_loader(app).upload("other.txt", b"nothing\nof a server\n", "text/plain").run()
    assert not app.exception
    assert "has no start-up lines of vLLM, SGLang, TensorRT-LLM or llama.cpp" in said(app)
