"""Designs against the rate, without a browser: designs under load in closed form, and the same simulated one by one."""

import json
import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from dse.cli import main
from dse.core.errors import InputError
from dse.explorer import downloads, request
from dse.explorer.size import against_rate
from dse.operations.face import python_of
from dse.questions import load
from explorer_page import opened, said, wrong


def _asked(**changed):
    values = {"device": "a100-80gb", "model": "llama2-7b", "quantizer": "fp8"}
    asked = request.point_request(values)
    return replace(asked, work=replace(asked.work, batch=16, input_tokens=200, output_tokens=50, **changed))


RATE = {"size_tab": "rate", "load": "rate"}


def how(trace=None, rate=2.0, n_requests=30):
    return {"trace": trace, "rate": rate, "n_requests": n_requests}


def test_nothing_is_simulated_unasked_and_not_without_a_rate():
    app = opened("size", size_tab="rate")
    assert not app.exception
    assert not app.main.dataframe
    assert app.selectbox(key="simulated").value is None
    app.selectbox(key="simulated").select(against_rate.ALIKE).run()
    assert not app.main.dataframe
    assert wrong(app) == ["Every design gets the same requests: choose requests a second as the load above."]


@pytest.mark.slow
def test_all_designs_serve_the_same_requests():
    app = opened("size", **RATE, simulated="azure-conv", simulated_requests="50", rate="0.5")
    assert not app.exception
    assert wrong(app) == []
    table = app.dataframe[0].value
    assert table["design"].tolist() == ["fp16", "fp8", "int4_per_token_head"]
    assert all(verdict.startswith("holds") for verdict in table["verdict"])
    assert "Shares of the same 50 requests for each design, 0.5 a second." in said(app)
    app.selectbox(key="simulated").select(against_rate.ALIKE).run()
    assert not app.exception
    first = "TTFT, p50, p90, p99"
    assert app.dataframe[0].value[first].tolist() != table[first].tolist()


@pytest.mark.parametrize("trace", [None, "azure-code"])
@pytest.mark.parametrize("changed", [{}, {"admission": "reserve", "page_tokens": 32}, {"rounds": 3, "max_num_seqs": 4}])
@pytest.mark.slow
def test_command_and_python_shown_give_the_numbers_of_the_page(trace, changed):
    asked = _asked(**changed)
    question = against_rate.simulation_of(asked, **how(trace))
    ours, waits = against_rate.cached_run(question, asked, "x")
    made = downloads.made_by([question], "", [tuple(question.unused())])
    outcome = CliRunner().invoke(main.cli, [*shlex.split(made.command)[1:], "--json"])
    assert outcome.exit_code == 0, outcome.output
    assert json.loads(outcome.output) == ours
    space = {}
    exec(made.python, space)
    assert space["result"] == ours
    assert waits["design"].unique().tolist() == ["x"]
    if "max_num_seqs" in changed:
        assert ours["peak_running"] <= 4


def test_what_is_not_simulated_is_said_in_a_line():
    with pytest.raises(InputError, match="prompt-chunk = 512"):
        against_rate.simulation_of(_asked(prompt_chunk_tokens=512), **how())


def test_command_and_python_ask_for_the_limits_of_the_page():
    wanted = {"ttft_s": 1.0, "tpot_s": 0.04}
    words = shlex.split(request.command_of(against_rate.operation(_asked(), wanted)))
    assert [words[words.index(name) + 1] for name in ("--max-ttft", "--max-tpot")] == ["1 s", "0.04 s"]
    space = {}
    exec(python_of(against_rate.operation(_asked(), wanted)), space)
    assert space["result"].limits == wanted


@pytest.mark.slow
def test_simulated_requests_beyond_a_limit_are_counted():
    """Of 50 requests whose prompts take 0.1 s and more none keeps a limit of a millisecond."""
    simulated = {"simulated": "workload", "simulated_requests": "50", "rate": "0.5"}
    app = opened("size", **RATE, **simulated, ttft_limit="0.001")
    assert set(app.dataframe[0].value["verdict"]) == {"holds; 100 % miss the limit of TTFT"}


def test_a_design_that_does_not_fit_says_so_and_has_no_line():
    app = opened("size", size_tab="rate", quantizer="fp8", device="rtx-4090", model="deepseek-v3")
    assert any("No request fits: give more devices" in line for line in wrong(app))
    assert not app.get("plotly_chart")


@pytest.mark.slow
def test_answers_of_one_token_have_no_tpot():
    simulated = {"simulated": "workload", "simulated_requests": "50", "rate": "0.5"}
    app = opened("size", **RATE, output="1", tpot_limit="1", ttft_limit="1000", **simulated)
    assert not app.exception
    assert set(app.dataframe[0].value["TPOT, p50, p90, p99"]) == {"-; -; -"}


def test_the_design_that_serves_most_within_the_limits_is_named_where_one_keeps_them():
    found = {name: load.UnderLoad(name, "", server(most), (), {}) for name, most in (("slow", 0.5), ("fast", 1.6))}
    assert (
        against_rate.best_within(found, {"tpot_s": 4.2})
        == "fast serves most. Within TPOT 4.2 s: up to 1.6 requests/s, 40 % of the saturated rate."
    )
    none = {"slow": load.UnderLoad("slow", "", server(0.0), (), {})}
    assert against_rate.best_within(none, {"tpot_s": 1.0}).startswith("Nothing keeps TPOT 1 s, however few")
    assert against_rate.best_within(none, {}) == "Saturated at 4 requests/s."


@pytest.mark.parametrize(("limit", "words"), [("40", "Within TPOT 40 ms: up to "), ("1", "Nothing keeps TPOT 1 ms, ")])
def test_the_page_says_the_most_requests_within_its_limits(limit, words):
    assert words in said(opened("size", **RATE, quantizer="fp8", tpot_limit=limit, rate="0.1"))


def server(most=0.0):
    """A server that is full at 4 requests a second, and keeps limits up to `most`."""
    traffic = SimpleNamespace(places=1, full=SimpleNamespace(requests_per_s=4.0))
    return SimpleNamespace(traffic=traffic, holds_within=lambda limits, is_sure: most)
