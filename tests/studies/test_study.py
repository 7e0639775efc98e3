"""The study of a language model: one-pass streaming against token by token, the normality test, the command."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from dse import quantizers
from dse.transformer import caches as kv
from factories import assert_one_line
from studies import perplexity, streamed, study_looks, study_points, weights
from studies.calibrate import calibrate
from studies.normality import dagostino_pearson, standardised


@pytest.mark.parametrize(
    "name", ["fp16", "int8", "kvquant", "kivi:bits=2,group=16,residual=16", "sinkq:bits=2,group=16,residual=8"]
)
def test_one_pass_is_token_by_token(model, name):
    tokens = np.random.default_rng(3).integers(0, 256, (2, 60))
    spec, known = quantizers.parse(name), calibrate(model, tokens)
    found, first = kv.caches(spec, model, known), perplexity.Prompted(model, tokens[:, :1])
    first.fill(found)
    want = perplexity.generated_nats(first, found, tokens[:, 1:])
    quantize, before = streamed.of_caches(kv.caches(spec, model, known))
    got = streamed.streamed_nats(model, quantize, tokens, 1, before)
    exact = streamed.streamed_nats(model, *_fp16(model, known)[:1], tokens, 1)
    # other sums round otherwise, and where that turns a code over its neighbour, a step of the method is seen
    lost = max(np.abs(want - exact).mean(), 0.01)
    assert np.abs(got - want).mean() < 0.1 * lost


def _fp16(model, known):
    return streamed.of_caches(kv.caches(quantizers.parse("fp16"), model, known))


def test_normality():
    # p-values of a first writing by D'Agostino's and Anscombe and Glynn's papers, which scipy 1.17.1 gave too
    x = (np.arange(40) * 7 % 41 / 41.0) ** 2
    y = np.sin(np.arange(64) * 1.7) * 3 + np.cos(np.arange(64))
    z = np.tan((np.arange(64) + 0.5) / 64 * 2.6 - 1.3) + 0.1 * np.arange(64) / 64
    assert dagostino_pearson(x) == pytest.approx(0.08679390718484555, rel=1e-9)
    assert dagostino_pearson(np.stack([y, z])) == pytest.approx([0.0003126681336440467, 0.7787861074350826], rel=1e-9)
    assert np.isnan(dagostino_pearson(np.stack([np.full(64, 0.1), y]))).tolist() == [True, False]
    with pytest.raises(ValueError, match="at least 20"):
        dagostino_pearson(x[:19])


def test_normal_blocks_are_not_rejected_19_times_in_20():
    p = dagostino_pearson(np.random.default_rng(4).normal(size=(4000, 64)))
    assert np.mean(p > 0.05) == pytest.approx(0.95, abs=0.015)


def test_standardised():
    # mean 2, deviation sqrt(2)
    assert standardised(np.array([4.0, 0.0, 2.0, 1.0, 3.0])) == pytest.approx(
        [-math.sqrt(2), -math.sqrt(0.5), 0, math.sqrt(0.5), math.sqrt(2)]
    )


def test_kivis_own_axes_are_kivi(model):
    tokens = np.random.default_rng(3).integers(0, 256, (1, 70))
    known = calibrate(model, tokens)
    one = study_points.StudyPoint("a", "", 0, "kivi:bits=2,group=16,residual=16")
    own = study_points.StudyPoint("a", "", 0, one.method, axes="channel/token")
    swapped = study_points.StudyPoint("a", "", 0, one.method, axes="token/channel")
    a, b, c = (
        streamed.streamed_nats(model, study_points.quantize_of(p, model, known)[0], tokens, 1)
        for p in (one, own, swapped)
    )
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_sinkq_without_layers_is_sinkq_without_sinks(model):
    tokens = np.random.default_rng(3).integers(0, 256, (1, 70))
    known = calibrate(model, tokens)
    method = "sinkq:bits=2,group=16,residual=8"
    asked = [
        study_points.StudyPoint("a", "", 0, method, first_layer=3),
        study_points.StudyPoint("a", "", 0, f"{method},sinks=0"),
        study_points.StudyPoint("a", "", 0, method, first_layer=2),
        study_points.StudyPoint("a", "", 0, method),
    ]
    none, without, two, own = (
        streamed.streamed_nats(model, study_points.quantize_of(p, model, known)[0], tokens, 1) for p in asked
    )
    assert np.array_equal(none, without)
    assert np.array_equal(two, own)
    assert not np.array_equal(none, two)


def test_points_are_the_papers(model):
    found = study_points.points(model)
    counts = pd.Series([p.experiment for p in found]).value_counts()
    # SinkQ Table 3: 3 x 6, Table 4: 0 to 6 sinks; Oaken Table 3: 9 rows, the last 3 read twice;
    # blocks of at most 2 x 16 channels: 16, 32
    assert [counts[name] for name in ("sinkq-sizes", "sinkq-sinks", "oaken-groups", "nqkv-blocks")] == [18, 7, 12, 2]
    assert all(quantizers.parse(p.method) for p in found)


@pytest.mark.slow
def test_command_writes_the_table_and_goes_on(run, path, tmp_path, monkeypatch):
    few = [p for p in study_points.points(weights.load(path)) if p.method in ("fp16", "int8", "nqkv:block=16")]
    monkeypatch.setattr("studies.study.points", lambda model: few)
    words = ("study", path, "--out", tmp_path / "out", "--windows", "2", "--tokens", "384")
    code, _, err = run(*words)
    assert (code, err) == (0, "")
    text = (tmp_path / "out" / "toy.study.csv").read_text()
    table = pd.read_csv(tmp_path / "out" / "toy.study.csv")
    assert {"ranges", "channels", "sinks", "overlap", "kept", "methods", "nqkv-blocks"} <= set(table["experiment"])
    fp16 = table[(table["series"] == "fp16") & (table["metric"] == "log_ratio")]
    assert fp16["value"].tolist() == [0.0]
    # every one of N tokens is among the N when all are asked for; chance is N / 300
    overlap = table[table["experiment"] == "overlap"]
    assert overlap["value"].between(0, 1).all()
    none = table[(table["experiment"] == "kept") & (table["x"] == 0) & (table["layer"] == 0)]["value"]
    assert none.nunique() == 1  # nothing kept: the criterion does not matter
    about = json.loads((tmp_path / "out" / "toy.study.json").read_text())
    assert len(about["weights_sha256"]) == 64
    monkeypatch.setattr("studies.study.looks", None)  # nothing is computed again
    assert run(*words)[0] == 0
    assert (tmp_path / "out" / "toy.study.csv").read_text() == text


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("study", "llama", "--out", "x"), ("model", "mha")),
        (("study", "mha", "--out", "x", "--tokens", "100"), ("tokens = 100",)),
        (("study", "mha", "--out", "x", "--windows", "0"), ("windows = 0",)),
    ],
)
def test_bad_words(run, words, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_one_line(run(*words), 2, *parts)
    assert not list(tmp_path.iterdir())


def test_outlier_channels_are_found():
    x = np.random.default_rng(1).normal(size=(2, 2, 200, 32)).astype(np.float32)
    x[:, :, :, 3] += 40
    found = {r["metric"]: r["value"] for r in study_looks._channels(0, "key", x)}
    # 2 of 64 channels hold 3.125 % of the elements: 0.78 of the top 4 %; largest 43, median channel 3.3
    assert found["largest_over_median"] > 8
    assert found["top_in_as_many_channels"] == pytest.approx(0.8, abs=0.05)
