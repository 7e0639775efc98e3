"""Measured servers beside predictions: the files, by row and by group, and tables in another unit."""

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from calibration import host, server_errors
from dse.cli.main import cli
from dse.core.errors import InputError, OutputError
from dse.figures import FIGURES
from dse.figures.charts import servers_measured
from dse.figures.plot import load as plot_load
from dse.report import servers
from dse.specs import catalog
from dse.validate import serving

VALIDATE = cli.commands["validate"]

HEAD = (
    "id,backend,backend_version,model_path,system,precision,isl,osl,batch_size,tp_size,silicon_ttft_ms,"
    "silicon_tpot_ms\n"
)
#: made up, but for their order of size
ROWS = (
    "z9,vllm,0.16.0,meta-llama/Llama-3.1-8B-Instruct,h100_sxm,bf16,1024,1024,16,1,80,9.5",
    "a1,trtllm,1.0.0rc3,Llama-3.1-8B,h100_sxm,fp8,1024,1024,16,1,,6.1",
    "m5,sglang,,openai/gpt-oss-120b,b200_sxm,fp4,1024,1024,16,2,120,5.5",
    "n2,vllm,0.16.0,a-model-of-nobody,h100_sxm,bf16,1024,1024,16,1,80,9.5",
    "s3,vllm,0.16.0,Llama-3.1-8B,abacus,bf16,1024,1024,16,1,80,9.5",
)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("servers") / "t.csv"
    path.write_text(HEAD + "\n".join(ROWS) + "\n")
    return path


@pytest.fixture(scope="module")
def judged(table):
    return serving.run(str(table))


@pytest.fixture(scope="module")
def written(table, tmp_path_factory):
    out = tmp_path_factory.mktemp("judged") / "out"
    done = CliRunner().invoke(VALIDATE, ["serving", str(table), "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "mixture" in done.output
    return out


def test_predictions_have_these_columns_and_rows_in_their_order(written):
    content = (written / "predictions.csv").read_text()
    assert content.splitlines()[0] == "id,tpot_ms,tpot_low,tpot_high,ttft_ms,ttft_low,ttft_high,reason,marks"
    rows = list(csv.DictReader(io.StringIO(content)))
    assert [row["id"] for row in rows] == ["z9", "a1", "m5", "n2", "s3"]
    times = [name for name in rows[0] if name not in ("id", "reason", "marks")]
    for row in rows[:3]:
        low, middle, high = (float(row[f"tpot_{end}"]) for end in ("low", "ms", "high"))
        assert 0.5 < low <= middle * 1.2 < 40  # of models that were measured the interval may lie beside
        assert low < high
        assert float(row["ttft_low"]) < float(row["ttft_high"])
    for row, words in zip(rows[3:], ("a-model-of-nobody", "abacus"), strict=True):
        assert not any(row[name] for name in times)
        assert words in row["reason"]


def test_predictions_lie_inside_the_interval_of_a_release_that_nobody_measured(table, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(HEAD + "\n".join(ROWS[:3]).replace("0.16.0", "9.9").replace("1.0.0rc3", "9.9") + "\n")
    for one in serving.run(str(path))[:2]:
        assert one.tpot_s[1] <= one.tpot_s[0] <= one.tpot_s[2]
        assert one.ttft_s[1] <= one.ttft_s[0] <= one.ttft_s[2]
        assert (one.reason, one.marks.startswith("nearest_")) == ("", True)
        assert f"nearest_release: {one.row.stack}@9.9 was not measured" in one.marks


def test_orders_of_size(judged):
    """8B of BF16 weights are 16 GB: 4.8 ms at 3.35 TB/s. A step cannot be shorter, and a server not three times
    longer."""
    own = judged[0]
    assert own.naive_s > 16.06e9 / 3.35e12
    assert own.naive_s < own.kernels_s < own.tpot_s[0] < 3 * own.naive_s
    assert judged[1].tpot_s[0] < own.tpot_s[0]  # FP8 weights


def test_files_written(written):
    assert {path.name for path in written.iterdir()} == {
        "predictions.csv",
        "errors.csv",
        "errors.json",
        "servers.csv",
        "servers.html",
        "servers.svg",
        "servers.png",
        "servers-errors.svg",
        "servers-errors.png",
    }
    rows = json.loads((written / "errors.json").read_text())
    assert [row["by"] for row in rows][:3] == ["all", "kind", "kind"]
    page = (written / "servers.html").read_text()
    assert "Content-Security-Policy" in page
    assert "https://" not in page.replace("https://", "", 0)[:2000]


def made_up(measured, ours, low=0.9, high=1.2, kind="dense"):
    """A judged row of times in seconds, without a first token."""
    spec = catalog.model("gpt-oss-20b" if kind == "mixture" else "llama3.1-8b")
    row = serving.ServerRow(
        "r", 2, spec.name, "h100_sxm", "vllm", "1", "bf16", 8, 1, None, spec, None, "fp16", measured, None, ""
    )
    three = None if ours is None else (ours, low * ours, high * ours)
    return serving.JudgedServer(
        row, three, three, ours and 0.5 * ours, ours and 0.8 * ours, "" if ours else "nothing fits"
    )


def test_errors_by_hand():
    # predicted over measured 1.1, 0.9, 0.5 and 1.0; the last has no prediction
    found = [
        made_up(0.010, 0.011),
        made_up(0.010, 0.009),
        made_up(0.010, 0.005, kind="mixture"),
        made_up(0.010, 0.010),
        made_up(0.010, None),
    ]
    rows = {(row["by"], row["group"]): row for row in serving.errors(found)}
    every = rows["all", "all"]
    assert (every["rows"], every["predicted"]) == (5, 4)
    assert every["tpot_mean"] == pytest.approx((0.1 + 0.1 + 0.5 + 0.0) / 4)
    assert every["tpot_p90"] == pytest.approx(0.1 + 0.7 * 0.4)  # of four the 90th percentile is at place 2.7
    assert every["tpot_bias"] == pytest.approx(-0.05)  # the middle of -0.1 and 0
    # 0.010 inside 0.0099 to 0.0132, 0.0081 to 0.0108, not 0.0045 to 0.006, 0.009 to 0.012
    assert every["tpot_inside"] == pytest.approx(3 / 4)
    assert every["tpot_width"] == pytest.approx(0.3)
    assert every["naive_mean"] == pytest.approx((0.45 + 0.55 + 0.75 + 0.5) / 4)
    assert every["kernels_mean"] == pytest.approx((0.12 + 0.28 + 0.6 + 0.2) / 4)
    assert every["ttft_mean"] is None
    assert rows["kind", "mixture"]["tpot_mean"] == pytest.approx(0.5)
    assert rows["kind", "dense"]["rows"] == 4
    assert {row["by"] for row in rows.values()} == {"all", "kind", "model", "system", "stack", "release", "n_devices"}


def test_suspect_rows_count_apart():
    bad = made_up(0.010, 0.001)
    spec = catalog.model("qwen3-32b")
    bad = serving.JudgedServer(
        type(bad.row)(**{**vars(bad.row), "spec": spec, "release": "1.3.0rc1"}), *list(vars(bad).values())[1:]
    )
    assert host.is_suspect(bad.row)
    rows = {(row["by"], row["group"]): row for row in serving.errors([made_up(0.010, 0.010), bad])}
    assert rows["all", "all"]["rows"] == 1
    assert rows["suspect", "qwen3-32b 1.3.0rc1"]["tpot_mean"] == pytest.approx(0.9)


def test_names_that_a_spreadsheet_would_run_are_quoted(judged):
    first = judged[0]
    row = type(first.row)(**{**vars(first.row), "id": "=1+2"})
    text = serving.predictions_csv([serving.JudgedServer(row, *list(vars(first).values())[1:])])
    assert text.splitlines()[1].startswith("'=1+2,")
    groups = [{**serving.errors([first])[0], "group": "@run"}]
    assert "all,'@run," in serving.errors_csv(groups)


@pytest.mark.parametrize(("factor", "unit"), [(1e-3, "s"), (1e3, "us")])
def test_times_in_another_unit_are_refused(tmp_path, factor, unit):
    path = tmp_path / "t.csv"
    lines = [row.rsplit(",", 1) for row in ROWS[:3]]
    path.write_text(HEAD + "\n".join(f"{rest},{float(time) * factor:g}" for rest, time in lines) + "\n")
    done = CliRunner().invoke(VALIDATE, ["serving", str(path), "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, InputError)
    problem = str(done.exception)
    assert problem.startswith(f"{path}:2: silicon_tpot_ms = {9.5 * factor:g}: is ")
    assert problem.endswith(f"are the times in {unit}? give milliseconds")
    assert "\n" not in problem
    assert not (tmp_path / "out").exists()


def test_first_tokens_in_seconds_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(HEAD + ROWS[0].replace(",80,", ",0.08,") + "\n")
    with pytest.raises(InputError, match=r":2: silicon_ttft_ms = 0\.08: is .* times less .* in s\? give milliseconds"):
        serving.run(str(path))


def test_marks_say_what_was_not_measured(tmp_path):
    """A release that nobody measured, a model beyond the memory, and one row of three in seconds."""
    path = tmp_path / "t.csv"
    own = ROWS[0]
    rows = (
        own,
        ROWS[1],
        own.replace("z9", "r1").replace("0.16.0", "9.9"),
        own.replace("z9", "b2").replace("3.1-8B", "3.1-70B"),
        own.replace("z9", "u3").replace("9.5", "0.0095"),
    )
    path.write_text(HEAD + "\n".join(rows) + "\n")
    found = list(csv.DictReader(io.StringIO(serving.predictions_csv(serving.run(str(path))))))
    marks = {row["id"]: row["marks"] for row in found}
    assert (marks["z9"], marks["a1"]) == ("", "")
    assert marks["r1"].startswith("nearest_release: vllm@9.9 was not measured")
    assert marks["b2"].startswith("no_room: predicted as if it did fit: weights, activations")
    assert marks["u3"].startswith("silicon_tpot_ms: ")
    assert marks["u3"].endswith("times less than predicted: another unit?")
    assert not any(row["reason"] for row in found)


def test_a_directory_that_cannot_be_is_said_before_anything_is_predicted(table, monkeypatch):
    monkeypatch.setattr(serving, "run", lambda *_: pytest.fail("predicted"))
    done = CliRunner().invoke(VALIDATE, ["serving", str(table), "--out", str(table)])
    assert isinstance(done.exception, OutputError)


def test_figures_are_drawn_again(written, judged):
    drawn, table = plot_load.load("servers_measured", str(written))
    assert [panel.title for panel in drawn.panels] == ["Time per output token (TPOT)", "Time to first token (TTFT)"]
    assert len(table) == 3
    points = [series for series in drawn.panels[0].series if series.kind == "scatter"]
    assert {series.name for series in points} == {"vLLM", "TensorRT-LLM", "SGLang"}
    assert all(text.count("\n") < 6 for series in points for text in series.hover)
    (vllm,) = (series for series in points if series.name == "vLLM")
    assert (vllm.x, vllm.opened) == ((9.5e-3,), (False,))
    assert vllm.y[0] == pytest.approx(judged[0].tpot_s[0], rel=1e-5)
    (mixture,) = (series for series in points if series.name == "SGLang")
    assert mixture.opened == (True,)
    # a row without a time to the first token has none in that panel
    assert sum(len(series.x) for series in drawn.panels[1].series if series.kind == "scatter") == 2
    errors, _ = plot_load.load("servers_errors", str(written))
    (panel,) = errors.panels
    assert [text for _, text in panel.y.ticks] == ["Llama 3.1 8B", "GPT-OSS 120B", "all mixtures", "all dense models"]
    assert [series.name for series in panel.series] == ["this model", "kernels alone", "data sheet (naive roofline)"]


def test_bars_end_where_they_should(judged):
    (vllm, *_) = judged
    drawn = servers_measured.charts_of([vllm])["servers"]
    bars = next(series for series in drawn.panels[0].series if series.name == "80 % interval")
    assert bars.x[:2] == (vllm.row.tpot_s,) * 2
    low, high = drawn.panels[0].y.low, drawn.panels[0].y.high
    assert bars.y[:2] == pytest.approx((max(vllm.tpot_s[1], low), min(vllm.tpot_s[2], high)))
    assert np.isnan(bars.y[2])
    assert "servers.html" not in servers_measured.files_of([made_up(0.01, None)])


def test_errors_that_ship():
    """What `python -m calibration.server_errors` wrote: whole, and no row of a measured table."""
    found = servers.table()
    assert list(found.columns[:4]) == ["by", "group", "rows", "predicted"]
    every = found[found["by"] == "all"].iloc[0]
    kinds = found[found["by"] == "kind"].set_index("group")
    assert kinds["rows"].sum() == every["rows"] > 1000
    for by in (*serving.GROUPS, *server_errors.LEFT_OUT):
        own = found[found["by"] == by]
        own = own[~own["group"].isin(["dense", "mixture"])] if by in server_errors.LEFT_OUT else own
        assert own["rows"].sum() == every["predicted" if by in server_errors.LEFT_OUT else "rows"], by
    assert (found["tpot_mean"] <= found["tpot_p90"] * 2).all()
    # better than its parts and than a data sheet, of every model that was fitted
    models = found[found["by"] == "model"]
    assert (models["tpot_mean"] < models["kernels_mean"]).all()
    assert (models["kernels_mean"] < models["naive_mean"]).all()
    # a model left out is predicted no better than one that was fitted, taken together; of a kind alone it may be, as
    # left-out predictions are told how many requests decoded
    left = found[found["by"] == "model left out"].set_index("group").loc[["dense", "mixture"]]
    assert np.average(left["tpot_mean"], weights=left["rows"]) >= every["tpot_mean"]
    assert FIGURES["servers_errors"].chart(found).panels
    assert len(servers.shown()) > 1


def test_left_out_intervals_are_of_other_models():
    """By hand: two models whose measured times are 1.0 and 2.0 of what is predicted bound each other."""
    groups = np.array(["a"] * 5 + ["b"] * 5)
    ours = np.ones(10)
    measured = np.where(groups == "a", 1.0, 2.0)
    stacks = np.array(["vllm"] * 10)
    found = server_errors._bounded(np.zeros(10, bool), stacks, groups, measured, ours)
    assert found[groups == "a", 1:].tolist() == [[2.0, 2.0]] * 5
    assert found[groups == "b", 1:].tolist() == [[1.0, 1.0]] * 5
    assert found[:, 0].tolist() == [1.0] * 10
    # ten others on the stack, which lie further up than all others do, count as well
    groups, stacks = np.array(["a"] + ["b"] * 10 + ["c"] * 90), np.array(["s"] * 11 + ["t"] * 90)
    measured = np.where(groups == "b", 3.0, 1.0)
    found = server_errors._bounded(np.zeros(101, bool), stacks, groups, measured, np.ones(101))
    assert found[0, 1:].tolist() == [1.0, 3.0]


def test_the_page_has_them():
    assert pd.Series([row[0] for row in servers.shown()]).isin(["all", "model left out of the fit"]).any()


#: made up: the first row's servers of prompts have no room, the third does not say how many there are
APART = (
    "id,backend,backend_version,model_path,system,precision,mode,isl,osl,batch_size,silicon_ttft_ms,silicon_tpot_ms,"
    "prefill_num_workers,prefill_tp_size,decode_num_workers,decode_tp_size,decode_batch_size\n"
    "p1,vllm,0.16.0,Llama-3.1-70B,h100_sxm,bf16,disagg,1024,256,,900,40,2,1,1,4,32\n"
    "p2,vllm,0.16.0,Llama-3.1-8B,h100_sxm,bf16,disagg,1024,256,,80,9,1,1,2,1,32\n"
    "p3,vllm,0.16.0,Llama-3.1-8B,h100_sxm,bf16,disagg,1024,256,,80,9,,1,,1,32\n"
    "s4,vllm,0.16.0,Llama-3.1-8B,h100_sxm,bf16,agg,1024,256,32,80,9,,,,,\n"
)


def test_separate_pools_are_judged_as_other_rows(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(APART)
    full, own, unsaid, together = serving.run(str(path))
    # 141 GB of weights: on the one device of a server of prompts, not on the four of one that decodes
    assert full.marks.startswith("no_room: predicted as if it did fit: pool of prompts: weights, activations")
    assert "pool of decoding" not in full.marks
    assert full.tpot_s
    assert unsaid.reason.startswith("prefill_num_workers, decode_num_workers: not stated")
    # 32 requests on each of two servers without prompts: faster than 32 with, slower than a step at peak rates
    assert own.naive_s < own.tpot_s[0] < together.tpot_s[0]
    assert own.tpot_s[1] <= own.tpot_s[0] <= own.tpot_s[2]
    rows = {(row["by"], row["group"]): row for row in serving.errors([full, own, unsaid, together])}
    assert (rows["all", "all"]["rows"], rows["all", "all"]["predicted"]) == (4, 3)
    assert rows["n_devices", "3"]["predicted"] == 1
    # tokens a second and device: 64 * 256 / (0.08 + 256 * 0.009) / 3 measured
    ours = 64 * 256 / (own.ttft_s[0] + 256 * own.tpot_s[0]) / 3
    measured = 64 * 256 / (0.08 + 256 * 0.009) / 3
    assert rows["n_devices", "3"]["rate_mean"] == pytest.approx(abs(ours / measured - 1))


def test_fits_leave_separate_pools_out(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(APART)
    assert [row.id for row in host.features(host.read(str(path))).rows] == ["s4"]
