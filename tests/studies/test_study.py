"""The study of a language model: its points, the normality test, observations by hand, the command."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import model_files
from dse import quantizers
from dse.core import checkout
from dse.transformer import in_loop, load
from dse.transformer.in_loop import LoopRun
from factories import assert_one_line
from studies import experiments, observations, study
from studies.experiments import StudyPoint
from studies.normality import dagostino_pearson, standardised


@pytest.fixture(scope="module")
def model():
    return load.load(str(model_files.MODELS / "qwen3"))


def silent(items, **_):
    return study._silent(items)


def nats(model, *points):
    """-ln p of 60 tokens under each point."""
    tokens = np.random.default_rng(3).integers(3, 64, 60)
    known = in_loop.calibrate(model, tokens, silent)
    runs = [LoopRun(method=p.method, caches=experiments.caches_of(p, model, known)) for p in points]
    return in_loop.token_nats(model, tokens, [in_loop.exact_run(model.n_layers), *runs], silent)[1:]


def test_kivis_own_axes_are_kivi(model):
    name = "kivi:bits=2,group=16,residual=16"
    found = nats(
        model,
        StudyPoint(experiment="a", series="", x=0, method=name),
        StudyPoint(experiment="a", series="", x=0, method=name, axes="channel/token"),
        StudyPoint(experiment="a", series="", x=0, method=name, axes="token/channel"),
    )
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_sinkq_by_layers_and_windows(model):
    name = "sinkq:bits=2,group=16,residual=8"
    none, without, two, own, window, short = nats(
        model,
        StudyPoint(experiment="a", series="", x=0, method=name, first_layer=3),
        StudyPoint(experiment="a", series="", x=0, method=f"{name},sinks=0"),
        StudyPoint(experiment="a", series="", x=0, method=name, first_layer=2),
        StudyPoint(experiment="a", series="", x=0, method=name),
        StudyPoint(experiment="a", series="", x=0, method=name, window=32),
        StudyPoint(experiment="a", series="", x=0, method=name, window=8),
    )
    assert np.array_equal(none, without)
    assert np.array_equal(two, own)
    assert np.array_equal(window, own)
    assert not np.array_equal(none, two)
    assert np.isfinite(short).all()


def test_first_tokens_in_place_of_sinks(model):
    """No first token kept is SinkQ without sinks; of those kept nothing is lost, and others differ by their scale."""
    name = "sinkq:bits=2,group=16,residual=8"
    at = {"experiment": "a", "series": "", "x": 0}
    without, none, three = nats(
        model,
        StudyPoint(**at, method=f"{name},sinks=0"),
        StudyPoint(**at, method=f"{name},sinks=0", first_tokens=0),
        StudyPoint(**at, method=f"{name},sinks=0", first_tokens=3),
    )
    assert np.array_equal(without, none)
    assert not np.array_equal(without, three)
    cache = experiments._first_kept(dict(quantizers.parse(name).values), 3)
    key, value = np.random.default_rng(5).normal(size=(2, 1, 2, 40, 32)).astype(np.float16)
    key[:, :, 0] = 30  # kept, and left out of the scale of its group: the range of the others is as without it
    seen = cache.decoded(key, value)
    assert np.array_equal(seen.key[:, :, :3], key[:, :, :3])
    assert np.array_equal(seen.value[:, :, :3], value[:, :, :3])
    # 40 tokens: 2 groups of 16 are packed, the last 8 are exact; 3 codes more than a random group's range would allow
    assert np.array_equal(seen.key[:, :, 32:], key[:, :, 32:])
    # half a step of 2 bits of a range below 9, where one with the token of 30 in it has steps of 10
    assert np.abs(seen.key[:, :, 3:16].astype(float) - key[:, :, 3:16]).max() < 1.5
    assert seen.n_key(40) == 32


def test_sinks_that_are_eliminated_by_hand(model, monkeypatch):
    """One head of 4 channels, groups of 16: the pool of 3 is 0, 1, 2; each later group has two smaller keys."""
    monkeypatch.setattr(observations, "ELIMINATED_AT", (32, 64))
    monkeypatch.setattr(observations, "SINKQ_GROUP", 16)
    monkeypatch.setattr(observations, "SINKQ_RESIDUAL", 0)
    size = np.full(64, 10.0)
    size[:3] = 5, 6, 7
    for group in (1, 2, 3):
        size[16 * group : 16 * group + 2] = 4 - group
    key = np.repeat(size[None, :, None], 16, axis=2).astype(np.float32)

    def states(model, tokens, attentions, *_):
        heads = SimpleNamespace(key=key, value=np.ones_like(key), query=key)
        attentions[0](0, heads)

    monkeypatch.setattr(observations, "exact", lambda of: lambda layer, heads: None)
    monkeypatch.setattr(observations, "turned", lambda x, rotation: x)
    monkeypatch.setattr(observations, "hidden_states", states)
    rows = observations.eliminated(model, np.zeros((1, 64), int), ["text"], silent)
    found = {(r["metric"], r["x"]): r["value"] for r in rows}
    # group 1 eliminates 7 and 6, group 2 those of size 5 and one of 3, group 3 the other of 3 and one of 2
    assert [found["most", n] for n in (32, 64)] == [2, 6]
    assert [found["first_in_pool", n] for n in (32, 64)] == [1, 0]
    assert [found["behind_first", n] for n in (32, 64)] == [pytest.approx(2 / 3), 1]


def test_eliminated_by_chance():
    # 4,096 tokens: 31 groups of 128 behind 32 recent ones; 3 (1/2 + 1/3 + ... + 1/31) = 3 (4.0272 - 1)
    assert observations.eliminated_by_chance(4096) == pytest.approx(9.08, abs=0.005)
    assert observations.eliminated_by_chance(200) == 0


def test_points_are_the_papers(model):
    found = experiments.points(model, 32, ["a", "b"])
    counts = pd.Series([p.experiment for p in found]).value_counts()
    # SinkQ Table 3: 3 x 6, Table 4: 0 to 6 sinks; Oaken Table 3: 9 rows, the last 3 in both codes;
    # blocks that divide 32 channels: 16, 32; first layers 0, 1, 2 and none
    names = ("sinkq-sizes", "sinkq-sinks", "oaken-groups", "nqkv-blocks", "sinkq-layers", "oaken-texts")
    assert [counts[name] for name in names] == [18, 7, 12, 2, 4, 5]
    assert all(quantizers.parse(p.method) for p in found)


def test_points_that_run_beside_each_other_have_their_own_rows(model):
    tokens = np.random.default_rng(3).integers(3, 64, 60)
    scorer = study._Scorer(model, SimpleNamespace(windows=tokens[None], n_tokens=60, of=lambda _: tokens))
    points = [StudyPoint(experiment="a", series="", x=0, method=name) for name in ("fp16", "int8", "int4")]
    together = scorer.score(points)
    assert together == [scorer.score([point])[0] for point in points]
    bits = [row["value"] for rows in together for row in rows if row["metric"] == "stored_bits"]
    assert bits == sorted(bits, reverse=True)
    assert len(set(bits)) == 3


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


def test_outlier_channels_are_found():
    x = np.random.default_rng(1).normal(size=(2, 2, 200, 32)).astype(np.float32)
    x[:, :, :, 3] += 40
    found = {r["metric"]: r["value"] for r in observations._channels(0, "key", x)}
    # 2 of 64 channels hold 3.125 % of the elements: 0.78 of the top 4 %; largest 43, median channel 3.3
    assert found["largest_over_median"] > 8
    assert found["top_in_as_many_channels"] == pytest.approx(0.8, abs=0.05)


def test_blocks_lie_within_the_channels_of_a_token():
    """Two heads of 64: of the studied blocks 32, 64 and 128 divide 128; 192 and 256 would reach into the next token."""
    x = np.random.default_rng(1).normal(size=(1, 2, 300, 64)).astype(np.float32)
    found = list(observations._normality(0, "key", x, places := {}))
    assert [each["x"] for each in found] == [32, 64, 128]
    assert all(0.9 < each["value"] < 1 for each in found)
    assert [size for _, size in places] == [32, 64, 128]


def test_a_sink_by_hand(model):
    """One head; all queries draw the first token alone: its key points at them and is a tenth of the others."""
    n, of = 310, model.architecture
    key, value = np.zeros((1, 1, n, 16), np.float32), np.ones((1, 1, n, 16), np.float32)
    key[..., 1], key[0, 0, 0], value[0, 0, 0] = 10, [1, *[0] * 15], 0.5
    query = np.zeros((1, 1, n, 16), np.float32)
    query[..., 0], query[..., 1] = 1000, -1000
    own = observations._Layer(query, key, key, value)
    found = {(r["experiment"], r["metric"], r["x"]): r["value"] for r in observations._sinks(0, own, of)}
    assert found["sinks", "first_over_even", 0] == pytest.approx(300)
    assert found["sinks", "first_share", 0] == pytest.approx(1)
    assert found["sinks", "first_key_over_median", 0] == pytest.approx(0.1)
    assert found["sinks", "first_value_over_median", 0] == pytest.approx(0.5)
    assert found["accumulated", "half", 0] == 1
    assert found["accumulated", "share", 1] == pytest.approx(1)
    assert found["overlap", "both", 1] == 1


@pytest.fixture
def words(tmp_path):
    for name, text in (("one", model_files.TEXT), ("two", "an other hen. " * 4), ("known", "the land in rain ")):
        (tmp_path / f"{name}.txt").write_text(text * 400)
    texts = f"{tmp_path}/one.txt,{tmp_path}/two.txt"
    path = model_files.directory(tmp_path, "qwen3")
    return ("study", path, "--texts", texts, "--calibration", tmp_path / "known.txt", "--name", "toy")


@pytest.mark.slow
def test_command_writes_the_table_and_goes_on(run, words, model, tmp_path, monkeypatch):
    few = [p for p in experiments.points(model, 32, ["one", "two"]) if p.method in ("fp16", "int8", "nqkv:block=16")]
    monkeypatch.setattr(experiments, "points", lambda *_: few)
    monkeypatch.setattr(observations, "N_RUNS", 10)
    monkeypatch.setattr(study, "N_RUNS", 10)
    words = (*words, "--out", tmp_path / "out", "--windows", "1", "--tokens", "384")
    code, _, err = run(*words)
    assert code == 0, err
    text = (tmp_path / "out" / "toy.study.csv").read_text()
    table = pd.read_csv(tmp_path / "out" / "toy.study.csv")
    assert {"ranges", "channels", "sinks", "overlap", "kept", "accumulated", "oaken-runs"} <= set(table["experiment"])
    fp16 = table[(table["series"] == "fp16") & (table["metric"] == "log_ratio")]
    assert fp16["value"].tolist() == [0.0]
    assert table[table["experiment"] == "overlap"]["value"].between(0, 1).all()
    none = table[(table["experiment"] == "kept") & (table["x"] == 0) & (table["layer"] == 0)]["value"]
    assert none.nunique() == 1  # nothing kept: the criterion does not matter
    about = json.loads((tmp_path / "out" / "toy.study.json").read_text())
    assert (about["texts"], about["calibration"], len(about["weights_sha256"][0])) == (["one", "two"], "known", 64)
    monkeypatch.setattr(study, "looks", None)  # nothing is computed again
    monkeypatch.setattr(study, "runs", None)
    assert run(*words)[0] == 0
    assert (tmp_path / "out" / "toy.study.csv").read_text() == text


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (("--tokens", "100"), ("tokens = 100",)),
        (("--windows", "0"), ("windows = 0",)),
        (("--name", "a/b"), ("name = 'a/b'",)),
        (("--windows", "900"), ("one.txt", "give a longer text")),
    ],
)
def test_bad_words(run, words, more, parts, tmp_path):
    assert_one_line(run(*words, "--out", tmp_path / "x", *more), 2, *parts)
    assert not (tmp_path / "x").exists()


def test_without_a_checkout_the_reason_is_one_line(run, words, tmp_path, monkeypatch):
    """As installed: nothing is read or written, though another package is called `studies` there."""
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "__init__.py").write_text("raise SystemExit(9)")
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    code, _, err = run(*words, "--out", tmp_path / "out")
    assert (code, err.count("\n")) == (2, 1)
    assert "study: is not installed with the package: run it in a checkout of the repository" in err
    assert not (tmp_path / "out").exists()
