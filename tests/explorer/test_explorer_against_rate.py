"""Designs against the rate, without a browser: designs under load in closed form, and the same simulated one by one."""

import json
import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from dse.cli import main
from dse.core.errors import InputError
from dse.explorer import request
from dse.explorer.size import against_rate
from dse.operations.face import python_of
from dse.questions import load
from explorer_page import opened, said, wrong


def _asked(**changed):
    values = {"device": "a100-80gb", "model": "llama2-7b", "quantizer": "fp8"}
    asked = request.point_request(values)
    return replace(asked, work=replace(asked.work, batch=16, input_tokens=200, output_tokens=50, **changed))


def test_nothing_is_simulated_unasked():
    app = opened("size", size_tab="rate")
    assert not app.exception
    assert len(app.dataframe) == 1
    assert app.selectbox(key="simulated").value is None


@pytest.mark.slow
def test_all_designs_serve_the_same_requests():
    app = opened("size", size_tab="rate", simulated="azure-conv", simulated_requests="50", load="rate", rate="0.5")
    assert not app.exception
    assert wrong(app) == []
    table = app.dataframe[1].value
    assert table["design"].tolist() == app.dataframe[0].value["design"].tolist()
    assert len(table) == 3
    assert set(table["verdict"]) == {"holds"}
    assert any(
        "The same 50 requests for each design, 0.5 a second: the rate given." in text.value for text in app.caption
    )
    app.selectbox(key="simulated").select(against_rate.ALIKE).run()
    assert not app.exception
    first = "TTFT, p50, p90, p99"
    assert app.dataframe[1].value[first].tolist() != table[first].tolist()


@pytest.mark.slow
def test_without_a_rate_all_are_asked_for_what_the_weakest_can_hold():
    app = opened("size", size_tab="rate", simulated="workload", simulated_requests="40", input="1024", output="64")
    rates = []
    for row in ({}, {"quantizer": "fp8"}, {"quantizer": "int4_per_token_head"}):
        one = request.point_request({"input": 1024, **row})
        work = replace(one.work, input_tokens=1024, output_tokens=64)
        rates.append(against_rate.cached_rate(replace(one, work=work), None, 40))
    asked = float(f"{0.7 * min(rates):.3g}")
    assert any(f", {asked:.4g} a second: 70%" in text.value for text in app.caption)


@pytest.mark.parametrize("trace", [None, "azure-code"])
@pytest.mark.parametrize("changed", [{}, {"admission": "reserve", "page_tokens": 32}, {"rounds": 3, "max_num_seqs": 4}])
@pytest.mark.slow
def test_command_and_python_shown_give_the_numbers_of_the_page(trace, changed):
    asked = against_rate.simulated(_asked(**changed))
    ours, waits = against_rate.cached_run(asked, trace, 2.0, 30, "x")
    words = shlex.split(
        request.command_of(against_rate.simulation_of(asked, trace, 2.0, 30), against_rate.unused(asked, trace))
    )
    outcome = CliRunner().invoke(main.cli, [*words[1:], "--json"])
    assert outcome.exit_code == 0, outcome.output
    assert json.loads(outcome.output) == ours
    space = {}
    exec(python_of(against_rate.simulation_of(asked, trace, 2.0, 30), without=against_rate.unused(asked, trace)), space)
    assert space["result"] == ours
    assert waits["design"].unique().tolist() == ["x"]
    if "max_num_seqs" in changed:
        assert ours["peak_running"] <= 4


def test_what_is_not_simulated_is_said_in_a_line():
    with pytest.raises(InputError, match="prompt-chunk = 512"):
        against_rate.simulated(_asked(prompt_chunk_tokens=512))
    app = opened("size", size_tab="rate", simulated="workload", simulated_requests="20", prefix="128")
    assert not app.exception
    assert all("prefix = 128" in line for line in wrong(app))


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
    app = opened(
        "size",
        size_tab="rate",
        simulated="workload",
        simulated_requests="50",
        load="rate",
        rate="0.5",
        ttft_limit="0.001",
    )
    assert set(app.dataframe[1].value["verdict"]) == {"holds; 100% miss the limit of TTFT"}


def test_a_design_that_does_not_fit_says_so_and_has_no_line():
    app = opened("size", size_tab="rate", quantizer="fp8", device="rtx-4090", model="deepseek-v3")
    assert any("no request fits: give it more devices" in line for line in wrong(app))
    assert not app.dataframe


def test_without_a_rate_the_table_has_one_rate_for_all_designs():
    """Each at a share of its own, what holds more would look slower."""
    app = opened("size", size_tab="rate")
    table = app.dataframe[0].value
    quantizers = ["fp16", "fp8", "int4_per_token_head"]
    assert table["design"].tolist() == quantizers
    full = [
        against_rate.cached_load(request.point_request({"quantizer": one}), one).full_requests_per_s
        for one in quantizers
    ]
    asked = f"{0.7 * min(full):.3g}"
    assert table["requests/s"].tolist() == [asked] * 3
    assert table["of the saturated rate"].tolist() == [f"{float(asked) / each:.0%}" for each in full]
    words = f"At {asked} requests a second to each design: 70% of what the design that holds least can"
    assert words in said(app)
    app.selectbox(key="load").set_value("rate").run()
    app.number_input(key="rate").set_value(0.5).run()
    assert app.dataframe[0].value["requests/s"].tolist() == ["0.5"] * 3
    assert "At 0.5 requests a second to each design: the rate given." in said(app)


def test_a_rate_above_what_is_held_says_how_many_servers_hold_it():
    """10 a second of a design that holds 4 are for three of them; 3.9 is too near to what is held."""
    found = {"a": load.UnderLoad("a", "", server(), (row("a", 1, 3),), {})}
    says = [against_rate.at(found, rate, {})["verdict"].tolist() for rate in (10, 3.9)]
    held = "too many: waits stay short up to 1 requests/s; saturated at 4"
    assert says == [[f"{held}; 3 such servers hold it"], [held]]


@pytest.mark.parametrize("simulated", [None, "workload"])
def test_answers_of_one_token_have_no_tpot(simulated):
    asked = {"simulated": simulated, "simulated_requests": "50"} if simulated else {}
    app = opened(
        "size", size_tab="rate", output="1", tpot_limit="1", ttft_limit="1000", load="rate", rate="0.5", **asked
    )
    assert not app.exception
    assert set(app.dataframe[0].value["TPOT"]) == {"-"}
    assert set(app.dataframe[0].value["verdict"]) == {"holds, within the limits"}
    if simulated:
        assert set(app.dataframe[1].value["TPOT, p50, p90, p99"]) == {"-; -; -"}


def test_a_rate_holds_only_within_the_limits():
    row = {"tpot_s": 0.0416, "ttft_s": 0.5}
    assert against_rate.kept_limits(row, {"tpot_s": 0.040}) == "misses the limit of TPOT"
    assert against_rate.kept_limits(row, {"tpot_s": 0.050, "ttft_s": 0.4}) == "misses the limit of TTFT"
    assert against_rate.kept_limits(row, {"tpot_s": 0.050}) == "holds, within the limits"
    assert against_rate.kept_limits(row, {}) == "holds"


def test_the_design_that_serves_most_within_the_limits_is_named_where_one_keeps_them():
    found = {name: load.UnderLoad(name, "", server(most), (), {}) for name, most in (("slow", 0.5), ("fast", 1.6))}
    assert (
        against_rate.best_within(found, {"tpot_s": 4.2})
        == "fast serves most. Within TPOT 4.2 s: up to 1.6 requests/s, 40% of the saturated rate."
    )
    none = {"slow": load.UnderLoad("slow", "", server(0.0), (), {})}
    assert against_rate.best_within(none, {"tpot_s": 1.0}).startswith("Nothing keeps TPOT 1 s, however few")
    assert against_rate.best_within(found, {}) == ""


@pytest.mark.parametrize(("limit", "words"), [("40", "Within TPOT 40 ms: up to "), ("1", "Nothing keeps TPOT 1 ms, ")])
def test_the_page_says_the_most_requests_within_its_limits(limit, words):
    assert words in said(opened("size", size_tab="rate", quantizer="fp8", tpot_limit=limit, load="rate", rate="0.1"))


def server(most=0.0):
    """A server that is full at 4 requests a second, and keeps limits up to `most`."""
    traffic = SimpleNamespace(places=1, full=SimpleNamespace(requests_per_s=4.0))
    return SimpleNamespace(traffic=traffic, holds_within=lambda limits, is_sure: most)


def row(name, rate, tpot_s):
    return dict(
        zip(
            [column.name for column in load.COLUMNS],
            (name, rate / 4, rate, rate, tpot_s, 1.0, 0.0, 1.0, 0.5),
            strict=True,
        )
    )
