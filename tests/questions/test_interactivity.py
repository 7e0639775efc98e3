"""Throughput a device against the speed of each user: by hand, against a front by all pairs, and the command."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dse
from cases import quick_first
from dse.core.errors import InputError
from dse.figures import FIGURES
from dse.figures.plot.answer import chart_of
from dse.model import uncertainty
from dse.questions import interactivity as speeds
from dse.questions import limits

ASKED = ("h200", "qwen3-32b", ["fp16", "fp8"])
LENGTHS = {"input_tokens": 1024, "output_tokens": 1024}


@pytest.fixture(scope="module")
def answer():
    return dse.interactivity(*ASKED, splits=[1, 2], max_tpot="20 ms", max_ttft="1 s", **LENGTHS)


def row(tpot_s, ttft_s=1.0, batch=64, n_devices=2, quantizer="fp16"):
    return {
        "tpot_s": tpot_s,
        "ttft_s": ttft_s,
        "batch": batch,
        "throughput_tokens_per_s": 1000 * batch / (ttft_s + 1000 * tpot_s),
        "n_devices": n_devices,
        "quantizer": quantizer,
        "tp": n_devices,
        "token_time_low": 0.8,
        "token_time_high": 1.25,
        "first_time_low": 0.8,
        "first_time_high": 1.25,
    }


def test_speeds_by_hand():
    """64 requests of 1,000 tokens at 20 ms take 1 + 20 s each: 3,047.6 tok/s on two devices; 50 a user."""
    user, device = speeds.speeds(row(0.020))
    assert user == pytest.approx(50)
    assert device == pytest.approx(64_000 / 21 / 2)


def test_the_interval_is_that_of_a_point():
    """Of KIVI too, whose kernels unpack at a rate that is known within a range: wider than that of times per token."""
    for name, is_wider in (("fp16", False), ("kivi", True)):
        found = dse.interactivity(*ASKED[:2], [name], splits=[1], **LENGTHS)
        point = dse.evaluate(*ASKED[:2], name, batch=64, **LENGTHS)
        one = next(row for row in found.rows if row["batch"] == 64)
        ends = [point["throughput_tokens_per_s"] * end for end in speeds.interval(one)[:2]]
        assert ends == pytest.approx(uncertainty.known_ends(point, "throughput_tokens_per_s"))
        assert (speeds.interval(one).low < 0.9 / point["token_time_high"]) == is_wider


times = st.tuples(st.sampled_from([0.01, 0.02, 0.03, 0.05]), st.sampled_from([0.1, 1.0]), st.integers(1, 9))


@given(found=st.lists(times, max_size=14))
def test_a_front_is_what_no_other_beats(found):
    """Against every pair; of equals one stays."""
    rows = [row(tpot, ttft, batch) for tpot, ttft, batch in found]
    places = [speeds.speeds(one) for one in rows]

    def beats(a, b):
        return a != b and a[0] >= b[0] and a[1] >= b[1]

    wanted = {at for at in places if not any(beats(other, at) for other in places)}
    front = [speeds.speeds(one) for one in speeds.front(rows)]
    assert set(front) == wanted
    assert len(front) == len(wanted)
    assert front == sorted(front, key=lambda at: -at[1])


def test_what_is_ahead_by_rounding_alone_leaves_the_front():
    """Slower for a user and the same for the device, to 1e-9: beaten; a millionth more is a trade."""
    places = [(50.0, 100.0), (40.0, 100.0 * (1 + 1e-12)), (30.0, 100.0), (20.0, 100.0001), (10.0, 99.0)]
    assert speeds._unbeaten(places, tuple) == [(20.0, 100.0001), (50.0, 100.0)]


def test_the_answer_is_the_best_of_single_designs(answer):
    """Each batch and split asked for by itself: none within the limits gives more tokens a device."""
    most = 0.0
    for quantizer in ("fp16", "fp8"):
        for tp in (1, 2):
            for batch in range(1, 129):
                r = dse.evaluate("h200", "qwen3-32b", quantizer, tp=tp, batch=batch, **LENGTHS)
                if not r["fits_whole_batch"]:
                    continue
                if all(uncertainty.ends(r, name)[1] <= most for name, most in (("tpot_s", 0.020), ("ttft_s", 1.0))):
                    request_s = r["ttft_s"] + 1024 * r["tpot_s"]
                    most = max(most, batch * 1024 / request_s / tp)
    assert speeds.speeds(answer.best)[1] == pytest.approx(most)
    assert answer.verdict.startswith("Best within TPOT 20 ms and TTFT 1 s: ")
    assert set(answer.table["quantizer"]) == {"fp16", "fp8"}
    assert answer.table["fits_whole_batch"].all()


@given(times, st.floats(0.5, 2.0))
def test_what_is_promised_holds_at_the_upper_end(found, over):
    one = row(*found)
    limit = over * one["tpot_s"]
    assert limits.within(one, {"tpot_s": limit}) == (1.25 * one["tpot_s"] <= limit * (1 + 1e-9))
    if limits.within(one, {"tpot_s": limit}):
        assert limits.within_as_computed(one, {"tpot_s": limit})
        assert limits.keeps(one, {"tpot_s": limit}) > 0.9 - 1e-6


def test_the_largest_batch_that_runs_is_on_the_curve(answer):
    most = dse.evaluate("h200", "qwen3-32b", "fp16", tp=1, **LENGTHS)["batch"]
    assert most in {one["batch"] for one in answer.rows if one["quantizer"] == "fp16" and one["tp"] == 1}


def test_what_fits_nowhere_says_what_to_do():
    found = dse.interactivity("l4", "llama3.1-70b", ["fp16"], splits=[1])
    assert "No design fits: give more devices (--splits)" in found.text()
    with pytest.raises(InputError, match=r"llama3.1-8b: is not split over so many devices: give others"):
        dse.interactivity("h200", "llama3.1-8b", ["fp16"], splits=[3])
    assert {row["tp"] for row in dse.interactivity("h200", "qwen3-32b", ["fp8"], tp=2).rows} == {2}
    with pytest.raises(InputError, match=r"splits = '0': must be whole numbers from 1"):
        dse.interactivity(*ASKED, splits=[0])


def test_the_figure_has_a_band_around_each_curve_and_the_limits(answer):
    chart = chart_of(answer)
    (panel,) = chart.panels
    kinds = [(series.name, series.kind) for series in panel.series]
    assert kinds == [
        ("outside", "area"),
        ("8 of 10 measurements", "area"),
        ("8 of 10 measurements", "area"),
        ("best within the limits", "scatter"),
        ("FP16", "line"),
        ("FP8", "line"),
    ]
    by_name = {series.name: series for series in panel.series}
    assert max(by_name["outside"].x) == pytest.approx(50)
    best = speeds.speeds(answer.best)
    assert (by_name["best within the limits"].x, by_name["best within the limits"].y) == ((best[0],), (best[1],))
    curve, band = panel.series[4], panel.series[1]
    n = len(curve.x)
    assert all(slow < at < fast for slow, at, fast in zip(band.x[:n], curve.x, band.x[::-1][:n], strict=True))
    late = [not limits.within(one, {"ttft_s": 1.0}) for one in answer.fronts["fp16"]]
    assert list(curve.opened) == late
    assert any("Grey: users get less than a TPOT of 20 ms gives." in note for note in chart.notes)


def test_a_report_has_it_for_each_system():
    table = dse.interactivity(*ASKED, splits=[1], **LENGTHS).table.assign(system="mine")
    chart = FIGURES["interactivity"].chart(table)
    assert [series.name for series in chart.panels[0].series if series.kind == "line"] == ["mine"]
    assert FIGURES["interactivity"].table == "results"


HEAD = (
    "id,backend,backend_version,model_path,system,precision,isl,osl,batch_size,tp_size,silicon_ttft_ms,silicon_tpot_ms"
)
#: made up, but for their order of size: one of these lengths, one of others, one of another device
SERVERS = (
    "mine,vllm,0.16.0,Qwen/Qwen3-32B,h200_sxm,bf16,1024,1024,64,2,1000,20",
    "long,vllm,0.16.0,Qwen/Qwen3-32B,h200_sxm,bf16,8192,1024,64,2,1000,20",
    "else,vllm,0.16.0,Qwen/Qwen3-32B,h100_sxm,bf16,1024,1024,64,2,1000,20",
)


def test_the_command(run, tmp_path):
    path = tmp_path / "servers.csv"
    path.write_text("\n".join([HEAD, *SERVERS]) + "\n")
    words = ["ask", "interactivity", "--device", "h200", "--model", "qwen3-32b", "--quantizers", "fp16,fp8"]
    words += ["--splits", "1,2", "--input", "1024", "--output", "1024"]
    code, out, err = run(*words, "--max-tpot", "20 ms", "--measured", path, "--json", "--out", tmp_path / "d")
    assert code == 0, err
    found = json.loads(out)
    assert found["limits_s"] == {"tpot_s": 0.02}
    (one,) = found["measured"]
    assert one["server"] == "mine"
    assert one["tokens_per_s_a_user"] == pytest.approx(50)
    assert one["tokens_per_s_a_device"] == pytest.approx(64 * 1024 / (1 + 1024 * 0.02) / 2)
    assert {file.suffix for file in (tmp_path / "d").glob("interactivity.*")} >= {
        ".csv",
        ".png",
        ".svg",
        ".pdf",
        ".html",
    }
    code, out, _ = run(*words, "--measured", path)
    assert "Measured: 1 servers" not in out
    assert "Measured: 1 server of this model and device" in out
    assert "mine" in out
    code, _, err = run(*words, "--max-tpot", "20")
    assert code == 2
    assert "max-tpot = '20'" in err
    code, _, err = run(*words, "--output", "9", "--measured", path)
    assert "has no server of qwen3-32b on H200 with 1,024 tokens in and 9 out: ask for lengths that it has" in err


def problem(seed):
    """Device, model, engine, formats, devices, lengths and limits: DeepSeek-R1 on 8 H200 within 50 ms, then drawn."""
    lot = random.Random(seed)
    if seed == 0:
        return "h200", "deepseek-r1", "vllm", None, 8, {"input_tokens": 4096, "max_tpot": "50 ms"}
    device, engine = lot.choice(("h100", "h200", "b200", "l40s")), lot.choice(("vllm", "sglang", "trtllm"))
    model = lot.choice(("llama3.1-8b", "qwen3-32b", "gpt-oss-20b", "qwen3-30b-a3b"))
    limits = {"max_tpot": lot.choice((None, "10 ms", "25 ms", "60 ms")), "max_ttft": lot.choice((None, "0.5 s", "3 s"))}
    more = {"input_tokens": lot.choice((200, 2048, 8192)), **limits}
    return device, model, engine, lot.choice((None, ["fp16"], ["fp16", "fp8"])), lot.choice((1, 2, 4, 8)), more


@quick_first(4, "seed", range(21))
def test_the_best_is_that_of_a_recommendation_for_full_devices(seed):
    """One answer, to the last digit."""
    device, model, engine, quantizers, n, more = problem(seed)
    more |= {"output_tokens": 500, "quantizers": quantizers}
    sizes = [size for size in (1, 2, 4, 8) if size <= n]
    curve = dse.interactivity(device, model, splits=sizes, stack=engine, **more)
    asked = {"model": model, "devices": [f"{n}x{device}"], "engines": [engine], "most": n, **more}
    if curve.best is None:
        with pytest.raises(InputError):
            dse.recommend(**asked)
        return
    first = dse.recommend(**asked).first
    names = ("quantizer", "batch", "tp", "pp", "ep", "dp_attention", "dcp", "tpot_s", "throughput_tokens_per_s")
    assert {name: curve.best[name] for name in names} == {name: first.results[name] for name in names}


def test_a_layout_that_is_given_is_the_only_one():
    found = dse.interactivity("h200", "gpt-oss-120b", ["fp16"], tp=4, ep=4, max_tpot="50 ms")
    assert {(row["tp"], row["pp"], row["ep"]) for row in found.rows} == {(4, 1, 4)}
    assert found.context.startswith("4 x H200, gpt-oss-120b, ")


def test_sixteen_bits_stay_where_fewer_give_as_much_as_runs_differ_by():
    """As `dse recommend` has it; what lost says why."""
    found = dse.interactivity("h200", "deepseek-r1", splits=[8], max_tpot="50 ms", input_tokens=4096, output_tokens=500)
    assert found.best["quantizer"] == "fp16"
    assert found.runner_up[0].server.design.name == "fp8"
    assert "it lost as it stores fewer bits for at most 4 % more throughput" in found.verdict


def test_what_a_runner_up_gives_is_told_of_a_device_as_all_else_is():
    found = dse.interactivity("h200", "gpt-oss-120b", max_tpot="40 ms", max_ttft="2 s")
    rival, first = found.runner_up[0], found.found.first
    given = [one.likely_tokens_per_s / one.n_devices for one in (rival, first)]
    assert f"it lost as it likely gives {given[0]:,.0f} tok/s a device at the most load" in found.verdict
    assert f", not {given[1]:,.0f}." in found.verdict


def test_what_a_format_gives_at_a_speed_is_the_best_within_that_time():
    """The table's columns are limits of TPOT: 50 tok/s a user is 20 ms."""
    asked = {"splits": [1, 2], **LENGTHS}
    free = dse.interactivity(*ASKED[:2], ["fp8"], **asked)
    cell = next(line for line in free.text().splitlines() if line.startswith("fp8 ")).split(")")[2]
    best = dse.interactivity(*ASKED[:2], ["fp8"], max_tpot="20 ms", **asked).best
    assert cell.split() == [f"{speeds.speeds(best)[1]:,.0f}", f"({best['batch']},", "tp", str(best["tp"])]
