"""Measured servers of a reader's table: loaded on Trust, drawn on Answer."""

import json

import pytest

from dse.explorer import measured
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


def test_a_table_loaded_on_trust_lies_over_the_figure_of_answer():
    """8 requests of 500 tokens take 0.1205 + 500 x 0.00725 s on two devices: 534 tok/s each, 138 a user."""
    design = {"device": "h100", "model": "llama3.1-8b", "designs": "tp.2", "output": "500", "batch": "8"}
    app = opened("trust", trust_tab="own", input="1024", **design)
    table_of(app).upload("mine.csv", f"{HEAD}\n{ROWS}".encode(), "text/csv").run()
    assert not app.exception
    said = "mine.csv: 3 servers, 1 of them of a design's device, model and lengths (within 15 %)."
    assert said in [text.value for text in app.text]
    app.number_input(key="input").set_value(64).run()
    assert not app.exception
    assert any("3 servers, 0 of them" in text.value for text in app.text)
    answer = opened("answer", input="1024", **design)
    answer.session_state["own servers"] = {"mine.csv": measured.OWN.read("mine.csv", f"{HEAD}\n{ROWS}".encode())}
    answer.run()
    assert not answer.exception
    traces = [trace for one in answer.get("plotly_chart") for trace in json.loads(one.proto.spec)["data"]]
    (drawn,) = [trace for trace in traces if trace["name"] == "measured" and trace["x"] not in ([], [None])]
    assert drawn["x"] == pytest.approx([1 / 0.00725])
    assert drawn["y"] == pytest.approx([8 * 500 / (0.1205 + 500 * 0.00725) / 2])


def test_a_table_that_is_none_is_refused_in_a_line():
    app = opened("trust", trust_tab="own")
    table_of(app).upload("bad.csv", b"id,model\n1,x\n", "text/csv").run()
    assert not app.exception
    assert any("bad.csv:1: column" in line for line in wrong(app))
