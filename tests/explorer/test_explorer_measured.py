"""Measured servers of a reader's table in the plot of speeds."""

import json

import pytest

from explorer_page import opened, wrong

HEAD = "id,backend,backend_version,model_path,system,precision,isl,osl,batch_size,tp_size,pp_size,attention_dp_size,"
HEAD += "silicon_ttft_ms,silicon_tpot_ms"
#: the second has another length, the third another model
ROWS = """ours,vllm,0.16.0,meta-llama/Llama-3.1-8B-Instruct,h100_sxm,bf16,1000,500,8,2,1,1,120.5,7.25
long,vllm,0.16.0,meta-llama/Llama-3.1-8B-Instruct,h100_sxm,bf16,9000,500,8,2,1,1,120.5,7.25
other,vllm,0.16.0,Qwen/Qwen3-32B,h100_sxm,bf16,1000,500,8,2,1,1,120.5,7.25
"""


def table_of(app):
    return next(one for one in app.main.file_uploader if one.label.startswith("Table of measured"))


def test_a_loaded_table_lies_over_the_plot():
    """8 requests of 500 tokens take 0.1205 + 500 x 0.00725 s on two devices: 534 token/s each, 138 a user."""
    app = opened("compare", designs="device.h100~model.llama3.1-8b~tp.2", input="1024", output="500", batch="8")
    table_of(app).upload("mine.csv", f"{HEAD}\n{ROWS}".encode(), "text/csv").run()
    assert not app.exception
    said = "mine.csv: 3 servers, 1 of them of a design's device, model and lengths (within 15%)."
    assert said in [text.value for text in app.text]
    traces = json.loads(app.get("plotly_chart")[0].proto.spec)["data"]
    (measured,) = [trace for trace in traces if trace["name"] == "measured" and trace["x"] not in ([], [None])]
    assert measured["x"] == pytest.approx([1 / 0.00725])
    assert measured["y"] == pytest.approx([8 * 500 / (0.1205 + 500 * 0.00725) / 2])
    app.number_input(key="input").set_value(64).run()
    assert not app.exception
    assert any("3 servers, 0 of them" in text.value for text in app.text)


def test_a_table_is_taken_on_trust_too():
    app = opened("trust", trust_tab="own", designs="device.h100~model.llama3.1-8b~tp.2", input="1024", output="500")
    table_of(app).upload("mine.csv", f"{HEAD}\n{ROWS}".encode(), "text/csv").run()
    assert not app.exception
    assert any("mine.csv: 3 servers, 1 of them" in text.value for text in app.text)


def test_a_table_that_is_none_is_refused_in_a_line():
    app = opened("compare", designs="device.h100~model.llama3.1-8b")
    table_of(app).upload("bad.csv", b"id,model\n1,x\n", "text/csv").run()
    assert not app.exception
    assert any("bad.csv:1: column" in line for line in wrong(app))
