"""`dse simulate`: what it prints, writes and refuses."""

import csv
import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from cases import each
from dse.cli import main as cli
from dse.core.errors import InputError
from dse.figures import FIGURES
from dse.figures.drawing import to_plotly
from dse.report import present
from dse.report import simulation as report_simulation
from dse.serving import arrivals as simulate_requests
from dse.serving import simulator as simulate
from dse.serving import trace_tables as traffic_tables
from dse.serving.requests import Moments, Requests
from dse.serving.steady_state import Scheduler
from dse.specs.workload import Workload

BASE = ("--device", "a100-80gb", "--model", "opt-6.7b", "--model-kind", "ideal")
SMALL = (*BASE, "--input", "100", "--output", "20", "--requests", "50")


def run(*args):
    return CliRunner().invoke(cli.cli, ["simulate", *args])


def numbers(*args):
    outcome = run(*args, "--json")
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.output)


def refused(capsys, *args):
    with pytest.raises(SystemExit) as caught:
        cli.main(["simulate", *args])
    shown = capsys.readouterr().err.strip().split("\n")
    assert len(shown) == 1
    return caught.value.code, shown[0]


def test_every_number_and_the_same_for_a_seed():
    found = numbers(*SMALL, "--rate", "5", "--seed", "7")
    assert found == numbers(*SMALL, "--rate", "5", "--seed", "7")
    assert found["latency_s"] != numbers(*SMALL, "--rate", "5", "--seed", "8")["latency_s"]
    assert (found["n_requests"], found["n_rejected"]) == (50, 0)
    assert found["throughput_tokens_per_s"] == pytest.approx(50 * 20 / found["duration_s"])
    for name in ("ttft_s", "tpot_s", "token_gap_s", "latency_s", "queueing_s"):
        spread = found[name]
        assert 0 <= spread["p50"] <= spread["p90"] <= spread["p99"] <= spread["max"]
        assert spread["mean"] <= spread["max"]
    assert found["ttft_s"]["p50"] < found["latency_s"]["p50"]
    assert found["is_stable"] is True
    # queueing and prompt, then all 20 decode steps
    assert found["latency_s"]["mean"] == pytest.approx(found["ttft_s"]["mean"] + 20 * found["tpot_s"]["mean"], rel=1e-9)
    assert found["token_gap_s"]["mean"] == pytest.approx(found["tpot_s"]["mean"], rel=1e-9)
    assert found["offered_requests_per_s"] == pytest.approx(5, rel=1e-12)  # no sample of a rate, but the rate


def test_a_share_of_the_rate_that_holds():
    found = numbers(*SMALL, "--rate", "70%")
    assert found["load"] == pytest.approx(0.7, rel=1e-12)
    assert found["offered_requests_per_s"] == pytest.approx(0.7 * found["steady"]["requests_per_s"], rel=1e-12)
    shown = run(*SMALL, "--rate", "70 %").output
    assert "load                                    70 % of the rate that holds" in shown
    assert "(Poisson)" in shown


@pytest.mark.parametrize("rate", ["2.017", "trace"])
def test_arrivals_have_the_rate_asked_for(rate):
    """Scaled, not drawn anew: gaps keep the shape of a sample (of Poisson's, or of the trace's quantiles)."""
    ask = simulate_requests.Traffic("azure-conv", rate, 3000, 5)
    found = simulate_requests.requests_of(ask, Workload())
    tables = traffic_tables.load("azure-conv")
    wanted = tables.moments.rate_per_s if rate == "trace" else 2.017
    assert Moments.of(found).rate_per_s == pytest.approx(wanted, rel=1e-12)
    drawn = np.random.Generator(np.random.PCG64([5, 1])).exponential(1.0, 3000)[1:]
    if rate == "trace":
        drawn = np.diff(traffic_tables.sample("azure-conv", 3000, None, 5, "trace").arrival_s)
    gaps = np.diff(found.arrival_s)
    assert gaps / gaps.mean() == pytest.approx(drawn / drawn.mean(), rel=1e-6, abs=1e-9)
    assert ask.arrivals == ("gaps drawn from the trace's" if rate == "trace" else "Poisson")


def test_a_deployment_its_intervals_and_what_it_rests_on():
    asked = ("--device", "h100", "--model", "llama3.1-70b", "--tp", "8", "--dp-attention", "--requests", "40")
    found = numbers(*asked, "--input", "64", "--output", "16")
    assert (found["n_devices"], found["tp"], found["dp_attention"], found["pp_batches"]) == (8, 8, True, None)
    assert found["assumptions"] == ["server_memory"]
    low, high = found["token_time_low"], found["token_time_high"]
    assert low < 1 < high
    shown = run(*asked, "--input", "64", "--output", "16").output
    assert "8 devices: tp 8, attention data parallel; memory is that of each" in shown
    assert "How sure: 8 of 10 measurements lie within, at this load" in shown
    assert f"{present.number(low * found['tpot_s']['mean'], 's')} to " in shown
    far = numbers(*asked[:4], "--tp", "16", "--requests", "10")  # two nodes: links between them were not measured
    assert far["assumptions"] == ["exchanges", "server_memory"]


def test_a_full_pipeline_is_refused(capsys):
    code, message = refused(capsys, *SMALL, "--pp", "2")
    assert (code, message) == (
        2,
        "error: pp = 2: traffic is modelled with one batch in the pipeline: add --pp-batches 1",
    )


def test_close_to_its_limit():
    """At 98 % of the closed form's rate, and at 94 % where the line grows."""
    assert numbers(*SMALL, "--rate", "98%")["is_near_limit"] is True
    assert "Close to its limit: load 98 %" in run(*SMALL, "--rate", "98%").output
    assert numbers(*SMALL, "--rate", "30%")["is_near_limit"] is False
    assert numbers(*SMALL)["is_near_limit"] is None
    assert report_simulation._grows([1.0, 3.0, 5.0], 2.0)
    assert not report_simulation._grows([1.0, 3.0, 2.0], 2.0)  # a burst in the middle
    assert not report_simulation._grows([1e-3, 2e-3, 3e-3], 2.0)  # next to nothing


def test_what_limits_how_many_run():
    """Steps of 30 tokens, 100 in and 20 out: about 30 * 20 / 120 = 5 decode, and one prompt is in work."""
    args = (*BASE, "--input", "100", "--output", "20", "--requests", "400", "--batch", "64")
    found = numbers(*args, "--batching", "chunked", "--prompt-budget", "30")
    assert found["steady"]["limited_by"] == "chunk"
    assert found["steady"]["running_sequences"] == pytest.approx(29 * 20 / 120 + 1)  # a token of a step stays free
    assert found["mean_running"] == pytest.approx(6, rel=0.1)
    shown = run(*args, "--batching", "chunked", "--prompt-budget", "30").output
    assert "5.83 running" in shown
    assert "the tokens of a step, not memory" in shown
    assert "--batch, not memory" in run(*args).output


def test_what_a_step_waits_for():
    shown = run(*BASE[:-2], "--quantizer", "nqkv", *SMALL[len(BASE) :]).output
    assert "ms: dequantization " in shown  # most of it, as `dse point` says of NQKV on a GPU
    assert "prefill takes" in shown
    assert "whole prompts, up to" not in shown.splitlines()[0]
    assert f"chunked ({numbers(*SMALL)['step_tokens']:,} tokens a step)" in shown.splitlines()[0]


def test_whole_prompts_that_share_a_step():
    """100 tokens each: one a step up to 150, two up to 200."""
    whole = (*SMALL, "--batching", "continuous", "--prompt-budget")
    one, two = numbers(*whole, "150"), numbers(*whole, "200")
    assert one["n_steps"] > two["n_steps"]
    assert "whole prompts, up to 1 token a step" in run(*whole, "1").output


def test_static_batching_says_that_it_reserves():
    found = numbers(*SMALL, "--batching", "static")
    assert (found["admission"], found["page_tokens"]) == ("reserve", None)


def test_one_request_and_longer_than_the_positions():
    shown = run(*BASE, "--requests", "1", "--input", "2040", "--output", "9").output  # OPT has 2,048 positions
    assert "\n1 request, all at once" in shown
    assert "Note: 1 request is longer than the 2,048 positions the model was trained for" in shown
    assert "positions" not in run(*BASE, "--requests", "1", "--input", "2040", "--output", "8").output


@each(
    ("args", "message"),
    [
        (("--chunk", "100"), "unknown option '--chunk': it is now --prompt-budget"),
        (("--prompt-batch", "9"), "unknown option '--prompt-batch': it is now --prompt-budget"),
        (("--trace", "azure-conv", "--input", "9"), "input = 9: has no effect with --trace"),
        (("--trace", "azure-conv", "--output", "9"), "output = 9: has no effect with --trace"),
        (("--batching", "static", "--admission", "paged"), "admission = 'paged': has no effect with --batching static"),
        (("--batching", "static", "--page", "8"), "page = 8: has no effect with --batching static"),
        (("--admission", "reserve", "--page", "8"), "page = 8: has no effect with --admission reserve"),
        (("--rate", "0%"), "rate = '0%': must be above 0 %"),
        (("--rate", "9999%"), "at most 1,000%"),
        (("--rate", "x%"), "rate = 'x%'"),
        (("--prompt-budget", "0"), "prompt-budget = 0: must be a whole number from 1"),
    ],
)
def test_options_without_effect_and_rates(capsys, args, message):
    status, line = refused(capsys, *BASE, *args)
    assert status == 2
    assert message in line


def test_a_rate_above_capacity_is_unstable_and_names_the_one_that_holds():
    found = numbers(*SMALL, "--rate", "1e6")
    assert found["is_stable"] is False
    shown = run(*SMALL, "--rate", "1e6").output
    assert "Unstable: 1,000,000 requests/s come" in shown
    held = found["steady"]["requests_per_s"]
    assert f"{held:.4g} can be served ({int(1e6 / held) + 1:,} such servers would hold them)" in shown


def test_all_at_once_tells_the_throughput_while_full():
    args = (
        *SMALL,
        "--batch",
        "8",
        "--input",
        "400",
        "--batching",
        "continuous",
    )  # prompts long enough to gain nothing from each other's company
    found = numbers(*args)
    assert found["is_stable"] is None
    assert found["saturated_tokens_per_s"] == pytest.approx(found["steady"]["throughput_tokens_per_s"], rel=0.1)
    assert "throughput while full" in run(*args).output


@pytest.mark.parametrize("batching", ["static", "continuous", "chunked"])
def test_a_shipped_trace(batching):
    asked = ("--batching", batching, "--prompt-budget", "512")
    found = numbers(*BASE, "--trace", "Azure-Conv", "--requests", "40", *asked)
    assert found["n_requests"] == 40
    assert found["batching"] == batching
    assert found["step_tokens"] == 512
    assert found["offered_requests_per_s"] > 0


def test_a_file_by_hand(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,100,1\n2023-11-16 18:15:56,200,3\n")
    found = numbers(*BASE, "--trace", str(path))
    assert (found["n_requests"], found["offered_requests_per_s"]) == (2, 0.1)
    assert found["queueing_s"]["max"] == 0  # ten seconds apart: nobody waits
    assert (found["mean_input_tokens"], found["mean_output_tokens"]) == (150, 2)
    assert 10 < found["duration_s"] < 11
    assert numbers(*BASE, "--trace", str(path), "--rate", "full")["offered_requests_per_s"] is None


def test_out_writes_tables_and_the_figure(tmp_path):
    outcome = run(*SMALL, "--rate", "20", "--out", str(tmp_path / "run"))
    assert outcome.exit_code == 0, outcome.output
    written = {path.name for path in (tmp_path / "run").iterdir()}
    figures = {f"{name}.{kind}" for name in ("simulation", "waits") for kind in ("html", "png", "svg", "pdf")}
    assert written == {"simulation.json", "over_time.csv", "latencies.csv", "waits.csv", *figures}
    rows = list(csv.DictReader((tmp_path / "run" / "over_time.csv").open()))
    assert 0 < len(rows) <= simulate.MAX_SAMPLES
    assert all(float(row["used_bytes"]) <= float(row["free_bytes"]) for row in rows)
    found = json.loads((tmp_path / "run" / "simulation.json").read_text())
    latencies = {row["name"]: row for row in csv.DictReader((tmp_path / "run" / "latencies.csv").open())}
    assert float(latencies["ttft_s"]["p99"]) == found["ttft_s"]["p99"]
    waits = list(csv.DictReader((tmp_path / "run" / "waits.csv").open()))
    assert [float(row["share"]) for row in waits] == [percent / 100 for percent in range(1, 100)]
    for row in waits:
        if row["share"] in ("0.5", "0.9", "0.99"):
            percentile = f"p{float(row['share']):.0%}".removesuffix("%")
            assert float(row["ttft_s"]) == found["ttft_s"][percentile]
            assert float(row["tpot_s"]) == found["tpot_s"][percentile]


PREFIXES = ("--prefix", "64", "--prefixes", "2")


def test_prompts_that_begin_alike(tmp_path):
    """50 prompts of 100 tokens, of which 64 are one of two texts: all but two prompts find them, 61.44 %."""
    found = numbers(*SMALL, *PREFIXES, "--rate", "5")
    assert found["shared_prompts"]["device_share"] == pytest.approx(48 * 64 / (50 * 100))
    assert found["shared_prompts"]["endless_share"] == found["shared_prompts"]["device_share"]
    assert found["ttft_s"]["mean"] < found["shared_prompts"]["without"]["ttft_s"]["mean"]
    alone = numbers(*SMALL, "--rate", "5")
    assert found["load"] == pytest.approx(5 / found["steady"]["requests_per_s"], rel=1e-12)
    assert found["shared_prompts"]["without"]["steady_requests_per_s"] == alone["steady"]["requests_per_s"]
    assert found["shared_prompts"]["without"]["ttft_s"] == alone["ttft_s"]
    assert "shared_prompts" not in alone
    outcome = run(*SMALL, *PREFIXES, "--rate", "5", "--out", str(tmp_path / "run"))
    assert outcome.exit_code == 0, outcome.output
    assert "found on the device                     61.4 % of the prompts' tokens" in outcome.output
    rows = list(csv.DictReader((tmp_path / "run" / "prefix_steps.csv").open()))
    assert {row["state"] for row in rows} <= {"computed", "found on the device", "in use by others", "kept"}
    assert (tmp_path / "run" / "prefix_steps.png").exists()


def test_without_a_prefix_cache_a_trace_is_as_if_it_shared_nothing(tmp_path):
    """And so a hybrid's is simulated, whose states the tree of prompts does not keep."""
    rows = [
        {"timestamp": 500 * r, "input_length": 512 * (1 + r // 4), "output_length": 8, "hash_ids": [*range(1 + r // 4)]}
        for r in range(24)
    ]
    file = tmp_path / "users.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    asked = ("--device", "h100", "--model", "qwen3-8b", "--trace", str(file), "--rate", "80%")
    on, off = numbers(*asked), numbers(*asked, "--prefix-cache", "off")
    assert on["shared_prompts"]["device_share"] > 0.5
    assert "shared_prompts" not in off
    without = on["shared_prompts"]["without"]["steady_requests_per_s"]
    assert without == off["steady"]["requests_per_s"] == pytest.approx(off["offered_requests_per_s"] / 0.8)
    assert "give --prefix-cache off, or take fp16" in str(run(*asked, "--model", "nemotron-nano-12b-v2").exception)
    assert "shared_prompts" not in numbers(*asked, "--model", "nemotron-nano-12b-v2", "--prefix-cache", "off")


def test_a_share_of_the_rate_that_a_server_with_a_prefix_cache_holds():
    """And what the cache brings: the ratio of what is held with it and without, whatever rate comes."""
    gains = []
    for rate in ("70%", "5", "full"):
        found = numbers(*SMALL, *PREFIXES, "--rate", rate)
        held, shared = found["steady"]["requests_per_s"], found["shared_prompts"]
        without = shared["without"]["steady_requests_per_s"]
        assert without == numbers(*SMALL)["steady"]["requests_per_s"]
        assert shared["gain"] == held / without > 1.05
        gains.append(shared["gain"])
        if rate == "70%":
            assert found["load"] == pytest.approx(0.7, rel=1e-12)
            assert found["offered_requests_per_s"] == pytest.approx(0.7 * held, rel=1e-12)
    assert len({*gains}) == 1
    shown = run(*SMALL, *PREFIXES, "--rate", "5").output
    assert (
        f"gain                                    {gains[0]:.3g} times the requests that can be served; the first"
        in shown
    )
    shown = run(*SMALL, *PREFIXES, "--rate", "95%").output
    assert "times the requests that can be served; without, more come than that, and the queue grows" in shown
    assert "load                                    95 % of the rate that holds" in shown
    assert "Unstable" not in shown


def test_a_trace_that_names_blocks(tmp_path):
    """Two prompts of two blocks of 512, alike but for the last token, which is computed in any case."""
    path = tmp_path / "own.jsonl"
    row = {"input_length": 1024, "output_length": 2, "hash_ids": [1, 2]}
    path.write_text("".join(json.dumps({"timestamp": 1e4 * i, **row}) + "\n" for i in range(2)))
    found = numbers(*BASE, "--trace", str(path))
    assert found["shared_prompts"]["device_share"] == 512 / 2048
    assert found["offered_requests_per_s"] == 0.1


def test_waits_of_three_requests_by_hand():
    """Each waits a second; a token takes 0.25 and 0.5 s, and an answer of one token has no time a token."""
    served = Requests(np.zeros(3), np.ones(3, np.int64), np.array([1, 2, 4]))
    run = SimpleNamespace(requests=served, first_s=np.array([3.0, 0.0, 1.0]), finish_s=np.array([5.0, 1.0, 2.0]))
    run.ttft_s, run.tpot_s = partial(simulate.Simulation.ttft_s, run), simulate.Simulation.tpot_s.fget(run)
    found = report_simulation.waits_table(
        {"device": "D", "model": "M", "quantizer": "Q", "host_prompt_s": 1.0}, run
    ).set_index("share")
    assert found["ttft_s"].tolist() == [1.0] * 33 + [2.0] * 33 + [4.0] * 33
    assert found["tpot_s"].tolist() == [0.25] * 50 + [0.5] * 49
    assert set(found["design"]) == {"D, M, Q"}


def test_an_answer_of_one_token_has_no_tpot(tmp_path):
    """Nor has it a part in the mean of others: of a trace of 1 and 21 tokens TPOT is that of the second."""
    one = (*BASE, "--input", "100", "--output", "1", "--requests", "20", "--rate", "5")
    found = numbers(*one)
    for name in ("tpot_s", "token_gap_s"):
        assert {*found[name].values()} == {None}
    assert found["steady"]["tpot_s"] is found["at_rate"]["tpot_s"] is None
    assert found["ttft_s"]["mean"] > 0
    outcome = run(*one, "--out", str(tmp_path / "one"))
    assert outcome.exit_code == 0, outcome.output
    assert "an answer of one token has no time per output token (TPOT)" in outcome.output
    assert "(TPOT), mean" not in outcome.output
    assert {row["tpot_s"] for row in csv.DictReader((tmp_path / "one" / "waits.csv").open())} == {""}
    means = []
    for name, texts in (("alone", [21]), ("both", [1, 21])):
        path = tmp_path / f"{name}.csv"
        rows = "".join(f"2024-05-10 00:{10 * i:02d}:00.0+00:00,100,{n}\n" for i, n in enumerate(texts))
        path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
        means.append(numbers(*BASE, "--trace", str(path))["tpot_s"]["mean"])
    assert means[1] == pytest.approx(means[0], rel=1e-6)


def test_a_rate_above_what_is_held_says_what_is_and_what_would_hold_it():
    """250 % of the rate is held by three servers."""
    found = numbers(*SMALL, "--rate", "250%")
    held = found["steady"]["requests_per_s"]
    assert (found["is_stable"], found["load"]) == (False, pytest.approx(2.5, rel=1e-12))
    lines = [line for line in run(*SMALL, "--rate", "250%").output.split("\n") if line.startswith("Unstable")]
    assert len(lines) == 1
    assert f"{2.5 * held:.4g} requests/s come, {held:,.4g} can be served (3 such servers would hold them)" in lines[0]


def test_the_figure_shows_numbers_of_its_table(sketch):
    work = Workload(batch=8, input_tokens=50, output_tokens=300, model_kind="ideal", admission="paged")
    requests = simulate_requests.requests_of(simulate_requests.Traffic(rate="3", n_requests=40), work)
    from dse.model import kv_layout as plan
    from dse.specs import catalog
    from dse.specs.measurements import CLOSED

    fp16 = CLOSED.quantizer("fp16")
    kv = plan.build(catalog.model("opt-6.7b"), fp16, fp16)
    table = report_simulation.samples_table(
        *report_simulation.evaluate(catalog.device("a100-80gb"), kv, work, requests, Scheduler("continuous", 2048))
    )
    chart = FIGURES["simulation"].chart(table)
    for panel in chart.panels:
        for series in panel.series:
            assert set(series.x) <= set(table["time_s"])
            assert panel.y.low <= min(series.y)
            assert max(series.y) <= panel.y.high
    assert (np.diff(table["time_s"]) >= 0).all()
    to_plotly.figure(chart)
    assert sketch(chart).startswith(b"\x89PNG")


@each(
    ("args", "message"),
    [
        (("--rate", "0"), "rate = '0': must be from"),
        (("--rate", "-3"), "rate = '-3'"),
        (("--rate", "nan"), "rate = 'nan'"),
        (("--rate", "soon"), "rate = 'soon'"),
        (("--rate", "trace"), "which needs --trace"),
        (("--requests", "0"), "requests = 0: must be at least 1"),
        (("--prefix", "1024"), "prefix = 1024: must be from 1 to 1,023 tokens"),
        (("--prefix", "10", "--prefixes", "0"), "prefixes = 0: must be a whole number from 1 to"),
        (("--prefixes", "2"), "prefixes = 2: has no effect without --prefix"),
        (("--prefix", "10", "--trace", "azure-conv"), "with --trace: a .jsonl file says what prompts share"),
        (("--host-link", "64 GB/s"), "without --host-cache"),
        (
            ("--host-cache", "1GB", "--host-link", "64 GB/s"),
            "where prompts share nothing: give --prefix, --samples, or a .jsonl",
        ),
        (("--prefix", "9", "--host-cache", "1GB"), "host-link is missing: the bandwidth from host memory"),
        (("--prefix", "9", "--host-cache", "0", "--host-link", "64 GB/s"), "host-cache = 0: must be from 1 byte"),
        (("--prefix", "9", "--host-cache", "1GB", "--host-link", "64"), "host-link = '64'"),
        (
            ("--prefix", "9", "--host-cache", "1GB", "--host-link", "64 GB/s", "--host-overlap", "some"),
            "host-overlap = 'some': must be one of layers, none",
        ),
        (("--requests", "1.5"), "requests = '1.5': must be a whole number"),
        (("--prompt-budget", "x"), "prompt-budget = 'x'"),
        (("--batching", "dynamic"), "batching = 'dynamic': must be one of static, continuous, chunked"),
        (("--seed", "-1"), "seed = -1"),
        (("--trace", "azure-chat"), "did you mean azure-"),
        (("--trace", "nowhere.csv"), "no such file"),
        (("--trace", "a\0b"), "trace = "),
        (("--model", "llama3.1-405b"), "no request fits: weights, activations, graphs and buffers need"),
    ],
)
def test_bad_input_is_one_line(capsys, args, message):
    status, line = refused(capsys, *BASE, *args)
    assert status == 2
    assert message in line


def test_too_many_requests(capsys):
    status, line = refused(capsys, *BASE, "--requests", "99999999999")
    assert status == 5
    assert "at most" in line


def test_no_file_is_written_where_the_input_is_wrong(tmp_path, capsys):
    refused(capsys, *BASE, "--rate", "0", "--out", str(tmp_path / "run"))
    assert not list(tmp_path.rglob("*.*"))


def test_products_of_8_bits_are_faster(capsys):
    """On an H100 they run at twice the rate; prompts of 1,024 tokens are products for the most part."""
    args = ("--device", "h100", "--model", "llama3.1-8b", "--weights-bits", "8", "--requests", "50")
    rates = [numbers(*args, "--activation-bits", bits)["throughput_tokens_per_s"] for bits in ("16", "8")]
    assert rates[0] < rates[1] < 2 * rates[0]
    assert refused(capsys, *args, "--activation-bits", "4")[0] == 2


def test_one_of_several_servers_without_what_it_refuses(tmp_path):
    """Four lines, one too long: of the other three a router in turn sends the first and the third to one of two."""
    file = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:15:4{k},{n},10" for k, n in enumerate((100, 5000, 200, 300))]
    file.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows, ""]))
    ask = simulate_requests.Traffic(trace=str(file), n_servers=2)
    share = simulate_requests.requests_of(ask, Workload(max_model_len=4096))
    assert (share.input_tokens.tolist(), share.arrival_s.tolist()) == ([100, 300], [0, 3])
    assert ask.arrivals == "as in the file, one of 2 servers"
    with pytest.raises(InputError, match="max-model-len = 60: "):
        simulate_requests.requests_of(ask, Workload(input_tokens=40, output_tokens=20, max_model_len=60))
