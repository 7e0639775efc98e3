"""What requests wait at a load: rates by hand from the full server's, rows between rows, and the command."""

import json
from types import SimpleNamespace

import pytest

import dse
from dse.core.errors import InputError
from dse.figures.charts import load_times
from dse.model import uncertainty
from dse.operations.shared import layout
from dse.questions import limits, load
from dse.questions.common import Candidate
from dse.serving.at_rate import at_rate
from dse.serving.steady_state import FixedLengths, steady
from dse.specs import catalog

ASKED = {"batch": 64, "input_tokens": 8192, "output_tokens": 1024, "admission": "paged"}


@pytest.fixture(scope="module")
def answer():
    return dse.load("h200", "qwen3-32b", "fp8", **ASKED)


def test_a_load_is_a_share_of_what_a_full_server_serves(answer):
    device, plan, work = catalog.device("h200"), layout("qwen3-32b", "fp8", "fp8"), dse.Workload(**ASKED)
    full = steady(device, plan, work, FixedLengths(8192, 1024))["requests_per_s"]
    assert answer.full_requests_per_s == full
    row = answer.rows[3]
    assert (row["load"], row["requests_per_s"], row["tokens_per_s"]) == (0.3, 0.3 * full, 0.3 * full * 1024)
    alone = at_rate(device, plan, work, FixedLengths(8192, 1024), 0.3 * full)
    assert (row["tpot_s"], row["ttft_s"], row["running_requests"]) == (alone.tpot_s, alone.ttft_s, alone.running)


def test_requests_wait_longer_the_more_come(answer):
    for name in ("tpot_s", "ttft_s", "running_requests"):
        values = [row[name] for row in answer.rows]
        assert values == sorted(values)


def test_any_rate_up_to_the_last_row_has_a_row_of_its_own(answer):
    device, plan, work = catalog.device("h200"), layout("qwen3-32b", "fp8", "fp8"), dse.Workload(**ASKED)
    least, last = answer.rows[0], answer.rows[-1]
    assert answer.at(last["requests_per_s"])["tpot_s"] == last["tpot_s"]
    for rate in (0.01 * least["requests_per_s"], 0.99 * last["requests_per_s"]):
        row, alone = answer.at(rate), at_rate(device, plan, work, FixedLengths(8192, 1024), rate)
        assert (row["requests_per_s"], row["tokens_per_s"]) == (rate, 1024 * rate)
        assert (row["tpot_s"], row["ttft_s"], row["running_requests"]) == (alone.tpot_s, alone.ttft_s, alone.running)
    assert answer.at(0.01 * least["requests_per_s"])["running_requests"] < 0.02 * least["running_requests"]
    assert answer.at(1.01 * last["requests_per_s"]) is None
    with pytest.raises(InputError, match="rate = 0: must be more than 0"):
        answer.at(0)


def test_an_answer_of_one_token_has_no_tpot():
    found = dse.load("h100", "llama3.1-8b", output_tokens=1, max_tpot="1 ms", max_ttft="2 s")
    assert {row["tpot_s"] for row in found.rows} == {None}
    assert found.at(found.rows[1]["requests_per_s"] * 1.1)["tpot_s"] is None
    assert found.limits == {"ttft_s": 2.0}
    cells = [line.split() for line in found.text().split("\n")]
    assert [line[3] for line in cells if line and line[0] == "0.50"] == ["-"]
    assert "An answer of one token has no TPOT." in found.text()
    chart = load_times.chart(load_times.source_of(found))
    assert [panel.title for panel in chart.panels] == ["TTFT"]
    assert "An answer of one token" not in dse.load("h100", "llama3.1-8b", output_tokens=2).text()


def test_a_load_that_no_server_holds_says_what_would(run):
    """2.5 times what is held are five sixths of it at each of three servers."""
    words = ["ask", "load", "--device", "h100", "--model", "llama3.1-8b", "--loads"]
    held = json.loads(run(*words, "0.5", "--json")[1])["full_requests_per_s"]
    code, out, error = run(*words, "0.5,2.5")
    assert (code, out) == (2, "")
    assert error == (
        "error: loads: 2.5: must be above 0 and below 1, such as 0.5: "
        f"a server holds {held:.4g} requests/s, 3 hold this at 0.83 each\n"
    )
    assert run(*words, "1")[2].endswith("2 hold this at 0.5 each\n")
    assert run(*words, "0")[2].endswith("such as 0.5\n")


def test_where_nothing_fits_it_says_what_to_do():
    found = dse.load("l4", "llama3.1-70b", batch=4)
    assert found.rows == ()
    assert "No request fits: give more devices (--tp)" in found.text()


def test_the_command_prints_writes_and_refuses(run, tmp_path):
    words = ["ask", "load", "--device", "h200", "--model", "qwen3-32b", "--quantizer", "fp8", "--batch", "16"]
    code, out, err = run(*words, "--loads", "0.2,0.8", "--json", "--out", tmp_path / "d")
    assert (code, err.startswith("figure: ")) == (0, True)
    assert [row["load"] for row in json.loads(out)["rows"]] == [0.2, 0.8]
    assert {path.suffix for path in (tmp_path / "d").glob("load.*")} >= {".csv", ".png", ".svg", ".pdf", ".html"}
    assert "TTFT (s)" in run(*words, "--loads", "0.5")[1]
    code, _, err = run(*words, "--loads", "1.5")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "loads: 1.5: must be above 0 and below 1" in err
    assert "loads = 'x': must be a share from 0 to 1" in run(*words, "--loads", "x")[2]


def test_the_most_requests_within_limits_is_solved(monkeypatch):
    """TPOT 1 + 2 r and TTFT 2 + 4 r at a rate r of up to 4: 4 s is kept up to 1.5; TTFT 7 up to 1.25; 1 s nowhere."""
    monkeypatch.setattr(limits, "waits_at", lambda _, r: SimpleNamespace(tpot_s=1 + 2 * r, ttft_s=2 + 4 * r))
    for most, rate in (({"tpot_s": 4}, 1.5), ({"tpot_s": 4, "ttft_s": 7}, 1.25), ({"tpot_s": 10}, 4.0)):
        assert limits.rate_within(None, 4.0, most) == pytest.approx(rate)
    assert limits.rate_within(None, 4.0, {"tpot_s": 1}) is None


@pytest.mark.parametrize(
    ("sure", "computed", "says"),
    [
        (1.6, 1.6, "Within TPOT 4.2 s: up to 1.6 requests/s, 40 % of the saturated rate."),
        (1.6, 3.7, "Within TPOT 4.2 s: up to 1.6 requests/s, 40 % of the saturated rate; as computed up to 3.7."),
        (0.0, 0.4, "Nothing surely keeps TPOT 4.2 s; as computed up to 0.4 requests/s do."),
        (0.0, 0.0, "Nothing keeps TPOT 4.2 s, however few requests come."),
    ],
)
def test_the_most_requests_within_limits_in_a_sentence(sure, computed, says):
    server = SimpleNamespace(
        traffic=SimpleNamespace(places=1, full=SimpleNamespace(requests_per_s=4.0)),
        holds_within=lambda _, is_sure: sure if is_sure else computed,
    )
    assert load.UnderLoad("a", "", server, (), {}).within_text({"tpot_s": 4.2}) == says


def test_limits_of_the_command(run):
    words = ["ask", "load", "--device", "h200", "--model", "qwen3-32b", "--quantizer", "fp8", "--input", "8192"]
    code, out, _ = run(*words, "--max-tpot", "30 ms", "--json")
    found = json.loads(out)
    assert (code, found["limits_s"]) == (0, {"tpot_s": 0.03})
    late = uncertainty.ends(dse.evaluate("h200", "qwen3-32b", "fp8", input_tokens=8192), "tpot_s")[1]
    late /= dse.evaluate("h200", "qwen3-32b", "fp8", input_tokens=8192)["tpot_s"]
    for most, end in ((found["requests_per_s_within"], late), (found["requests_per_s_within_as_computed"], 1.0)):
        below = [row["tpot_s"] for row in found["rows"] if row["requests_per_s"] <= most]
        above = [row["tpot_s"] for row in found["rows"] if row["requests_per_s"] > most]
        assert end * max(below) <= 0.03 < end * min(above)
    assert found["requests_per_s_within"] < found["requests_per_s_within_as_computed"]
    assert run(*words, "--max-ttft", "soon")[0] == 2


def test_the_most_within_limits_is_a_rate_of_the_server_whatever_loads_are_shown(answer):
    """At the rate found, the server takes as long as allowed."""
    device, plan, work = catalog.device("h200"), layout("qwen3-32b", "fp8", "fp8"), dse.Workload(**ASKED)
    asked = {"tpot_s": (answer.rows[4]["tpot_s"] + answer.rows[5]["tpot_s"]) / 2}
    most = answer.most_within(asked, is_sure=False)
    assert answer.rows[4]["requests_per_s"] < most < answer.rows[5]["requests_per_s"]
    assert at_rate(device, plan, work, FixedLengths(8192, 1024), most).tpot_s == pytest.approx(asked["tpot_s"])
    for loads in ((0.1, 0.8), (0.8,), (0.05,)):
        assert load.under_load(Candidate(device, plan), work, loads).most_within(asked, False) == most
    assert answer.most_within({"tpot_s": 1e-6}) is None
    assert answer.most_within({"tpot_s": 1e6}, is_sure=False) == 0.9 * answer.full_requests_per_s
