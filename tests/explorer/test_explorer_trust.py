"""The page Trust without a browser."""

import json
import re
from pathlib import Path

import pytest

from browser import needs_browser
from dse.explorer.pages import trust
from dse.report import servers
from explorer_page import opened, plain, said, wrong


def stars(app):
    """The groups with a star in the table of servers."""
    table = app.dataframe[0].value
    return table[table["chosen"] == "★"]["group"].tolist()


def test_the_verdict_of_the_chosen_design_and_the_servers_near_it():
    app = opened("trust")
    assert not app.exception
    verdict = app.markdown[0].value
    assert plain(verdict).startswith("**fp16** :green-badge[±26 %, kernels timed] ")
    assert "vLLM's kernels on H200 were timed" in said(app)
    assert app.dataframe[0].value["group"].tolist() == ["qwen3-32b", "H200", "vLLM", "vLLM 0.19.0", "dense models"]
    assert stars(app) == ["dense models"]  # the group that the interval is from
    other = opened("trust", model="llama3.1-70b", designs="tp.2")
    assert "servers timed" in said(other)
    assert stars(other) == ["llama3.1-70b"]


@pytest.mark.parametrize("by", servers.TITLES)
def test_tables_of_servers_are_those_of_the_page_of_accuracy_to_the_digit(by):
    app = opened("trust", trust_by=by)
    assert not app.exception
    shown = app.dataframe[0].value.drop(columns="chosen")
    accuracy = servers.page("answers.html")
    for line in shown.to_numpy().tolist():
        cells = (f"<td class=n>{cell}</td>" for cell in line[1:])
        assert f'<tr><th scope="row">{line[0]}</th>{"".join(cells)}</tr>' in accuracy
    assert len(stars(app)) == 1  # every one of the design's own was measured
    (drawn,) = [json.loads(one.proto.spec)["data"] for one in app.get("plotly_chart")]
    means = next(trace for trace in drawn if trace["name"] == "mean error" and trace["x"] not in ([], [None]))
    assert [f"{x:.1f} %" for x in means["x"]] == shown["TPOT: mean error"].tolist()


def test_a_design_without_an_answer_leaves_the_groups():
    app = opened("trust", designs="tp.3", trust_by="system")
    assert not app.exception
    assert [one.value for one in app.info] == [
        "The design has no answer yet: the message beside its fields says what to change."
    ]
    assert stars(app) == []
    assert len(app.dataframe[0].value) == 4
    assert trust.rows_of("near", {}, "kind") == ([], [])


def test_what_a_tab_hides_is_not_drawn():
    app = opened("trust")
    assert not app.exception
    assert [one.label for one in app.file_uploader if one.label.startswith(("Log of", "Table of"))] == []
    assert not opened("trust", trust_tab="own").get("plotly_chart")


def test_kernels_are_of_the_design_device():
    app = opened("trust", trust_tab="kernels")
    assert "silicon" in {chart.key for chart in app.get("plotly_chart")}
    other = opened("trust", trust_tab="kernels", device="mi300x")
    assert not other.exception
    assert "No kernels of MI300X were timed; those of" in said(other)


#: what `vllm bench serve --save-result` writes, shortened: it says neither device nor split
BENCHMARK = {
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "request_rate": "inf",
    "max_concurrency": 32,
    "completed": 320,
    "total_input_tokens": 327680,
    "total_output_tokens": 163840,
    "output_throughput": 3000.5,
    "mean_ttft_ms": 150.5,
    "mean_tpot_ms": 9.5,
}


def test_a_benchmark_stands_beside_ours_on_the_devices_of_the_design(run, tmp_path):
    app = opened("trust", trust_tab="own", device="h100", designs="tp.2")
    log_loader(app).upload("bench.json", json.dumps(BENCHMARK).encode(), "application/json").run()
    assert not app.exception
    (tmp_path / "bench.json").write_text(json.dumps(BENCHMARK))
    code, printed, _ = run("check-log", tmp_path / "bench.json", "--device", "2xh100", "--tp", "2")
    assert code == 0
    assert printed.strip() in [one.value.strip() for one in app.code]
    (button,) = app.get("download_button")
    assert button.label == "Download its times, for --calibrated"
    log_loader(app).upload("bad.json", json.dumps({**BENCHMARK, "model_id": "no/such"}).encode(), "text/json").run()
    assert not app.exception
    assert wrong(app)


LOG = Path(__file__).parents[1] / "validate" / "logs" / "vllm-0.19-llama-3.1-8b.log"


def log_loader(app):
    return next(one for one in app.file_uploader if one.label.startswith("Log of vLLM"))


def test_a_start_up_log_stands_beside_its_design():
    app = opened("trust", trust_tab="own", device="b200")
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
    assert "large.log: has 2,097,153 bytes: at most 2,097,152: give its start-up alone" in said(app)
    log_loader(app).upload("other.txt", b"nothing\nof a server\n", "text/plain").run()
    assert not app.exception
    assert "has no start-up lines of vLLM, SGLang, TensorRT-LLM or llama.cpp" in said(app)


@needs_browser
@pytest.mark.browser
def test_a_badge_opens_its_row_and_escape_closes_a_dialog(page, server):
    from playwright import sync_api

    page.goto(server)
    page.get_by_role("button", name="From what?").click()
    page.wait_for_url("**/trust?**trust_by=kind")
    sync_api.expect(page).to_have_title(re.compile("^Trust: "))
    page.get_by_role("button", name="Export").click()
    page.get_by_role("dialog").wait_for()
    page.get_by_role("dialog").get_by_role("textbox").first.click()  # drawn, and in focus
    page.keyboard.press("Escape")
    sync_api.expect(page.get_by_role("dialog")).to_have_count(0)
