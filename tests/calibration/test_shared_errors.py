"""Errors that servers share: known correlations are found again, and pairs are what they say they are."""

import math

import numpy as np
import pytest

from calibration import shared_errors
from calibration.shared_errors import DIFFERENCES, Pairs
from dse.calibrate.servers import read
from dse.core.errors import InputError
from dse.specs import catalog

TRUE = np.array([0.9, 0.8, 0.1, 0.3, 0.4, 0.6])


def drawn(n=24000, seed=5):
    """Pairs that differ in one thing or two, t-distributed with the correlations TRUE."""
    rng = np.random.default_rng(seed)
    different = np.eye(6, dtype=bool)[rng.integers(0, 6, n)] | (np.eye(6, dtype=bool)[rng.integers(0, 6, n)])
    first, second = rng.uniform(0.2, 0.5, (2, n))
    common = np.where(different, TRUE, 1.0).prod(axis=1)
    half = np.sqrt(first**2 + second**2 - 2 * common * first * second)
    return Pairs(half / 1.5332 * rng.standard_t(4, n), first, second, different, np.ones(n))


def test_known_correlations_are_found_again():
    pairs = drawn()
    found, likely = shared_errors.fit(pairs)
    assert found == pytest.approx(TRUE, abs=0.08)
    assert likely > max(shared_errors.fit(pairs, freedom)[1] for freedom in (2, 12))
    inside = np.abs(pairs.apart) <= shared_errors.halves(pairs, found)
    assert inside.mean() == pytest.approx(0.8, abs=0.02)


def test_what_two_loads_share_is_found_again():
    """Pairs of one deployment at two loads, correlated by 0.7: one number, whatever else servers may differ in."""
    rng, half = np.random.default_rng(6), np.full(8000, 0.3)
    apart = math.sqrt(2 - 2 * 0.7) * 0.3 / 1.5332 * rng.standard_t(4, 8000)
    found, _ = shared_errors.fit(Pairs(apart, half, half, np.ones((8000, 1)), np.ones(8000)))
    assert found == pytest.approx([0.7], abs=0.02)


def test_pairs_of_loads_are_of_one_deployment(tmp_path):
    path = tmp_path / "t.csv"
    lines = [f"a{n},vllm,0.16.0,llama3.1-8b,h100_sxm,1024,256,{n},1,1,1,bf16,9,100" for n in (1, 8, 64)]
    lines += [f"b{n},vllm,0.16.0,llama3.1-8b,h100_sxm,1024,256,{n},2,1,1,bf16,9,100" for n in (1, 8)]
    path.write_text(HEAD + "\n".join(lines) + "\n")
    features = shared_errors.host.features(read(str(path)))
    loads = shared_errors._loads(features, np.array([0.0, 1.0, 3.0, 5.0, 9.0]), np.full(5, 0.2))
    assert loads.apart.tolist() == [-1, -3, -2, -4]
    assert loads.counts == pytest.approx([3**-0.5] * 3 + [1])


HEAD = (
    "id,backend,backend_version,model_path,system,isl,osl,batch_size,tp_size,attention_dp_size,moe_ep_size,precision,"
)
HEAD += "silicon_tpot_ms,silicon_ttft_ms\n"


def test_pairs_serve_one_model_the_same(tmp_path):
    path = tmp_path / "t.csv"
    lines = (
        "a,vllm,0.16.0,llama3.1-8b,h100_sxm,1024,256,16,1,1,1,bf16,9,100",
        "b,vllm,0.16.0,llama3.1-8b,h100_sxm,1024,256,16,2,1,1,bf16,6,100",
        "c,sglang,0.5.9,llama3.1-8b,h100_sxm,1024,256,16,1,1,1,fp8,7,100",
        "d,vllm,0.18.0,llama3.1-8b,h200_sxm,1024,256,16,1,1,1,bf16,7,100",
        "e,vllm,0.16.0,llama3.1-8b,h100_sxm,2048,256,16,1,1,1,bf16,9,100",  # other lengths
        "f,vllm,0.16.0,qwen3-32b,h100_sxm,1024,256,16,1,1,1,bf16,30,100",  # another model
        "g,vllm,0.16.0,llama3.1-8b,h100_sxm,1024,256,8,1,1,1,bf16,8,100",  # another load
        "h,vllm,0.16.0,llama3.1-8b,h100_sxm,1024,256,16,1,1,1,bf16,9,100",  # a itself, once more
    )
    path.write_text(HEAD + "\n".join(lines) + "\n")
    rows = {row.id: row for row in read(str(path))}
    expected = {
        ("a", "b"): ("split",),
        ("a", "c"): ("engine", "weights"),
        ("a", "d"): ("release", "device"),
        ("c", "d"): ("engine", "device", "weights"),
        ("a", "h"): (),
    }
    for (one, other), names in expected.items():
        found = shared_errors.differences(rows[one], rows[other])
        assert tuple(name for name, is_different in zip(DIFFERENCES, found, strict=True) if is_different) == names
    features = shared_errors.host.features(rows.values())
    pairs = {(features.rows[i].id, features.rows[j].id) for i, j in shared_errors.both_differ(features)}
    assert pairs == {*[(x, y) for x in "abcd" for y in "abcd" if x < y], ("b", "h"), ("c", "h"), ("d", "h")}


def test_a_known_drift_is_found_again():
    rng = np.random.default_rng(3)
    n = 6000
    weeks = np.where(rng.random(n) < 0.5, 0.0, rng.uniform(1, 30, n))
    models = np.array(list("abc"))[rng.integers(0, 3, n)]
    scale = np.hypot(0.09, 0.05 * np.sqrt(weeks))
    pairs = shared_errors.AgedPairs(scale * rng.standard_t(4, n), weeks, np.ones(n), models)
    assert shared_errors.fit_age(pairs) == pytest.approx([0.09, 0.05], abs=0.005)
    age = shared_errors.age_of(pairs, "drawn")
    assert age["week"] == pytest.approx(1.5332 * 0.05, abs=0.008)  # the end of 8 of 10 of four degrees of freedom
    assert age["n_points"] == (weeks > 0).sum()
    assert age["inside"] == pytest.approx(0.8, abs=0.03)


def test_pairs_of_two_releases_are_alike_but_for_the_split(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    head = HEAD.replace("silicon_ttft_ms", "silicon_ttft_ms,silicon_data_source")
    lines = (
        "a,vllm,0.16.0,llama3.1-8b,h100_sxm,1024,256,16,1,1,1,bf16,9,100,",
        "b,vllm,0.18.0,llama3.1-8b,h100_sxm,1024,256,16,2,1,1,bf16,6,100,",
        "c,vllm,0.16.0,llama3.1-8b,h100_sxm,1024,256,16,2,1,1,bf16,7,100,",
        "d,vllm,0.18.0,llama3.1-8b,h200_sxm,1024,256,16,1,1,1,bf16,7,100,",  # another device
        "e,sglang,0.5.9,llama3.1-8b,h100_sxm,1024,256,16,1,1,1,bf16,7,100,",  # another software
        "f,vllm,,llama3.1-8b,h100_sxm,1024,256,16,1,1,1,bf16,8,100,measured=2026-03-06T00",
        "g,vllm,,llama3.1-8b,h100_sxm,1024,256,16,1,1,1,bf16,8.5,100,",  # of no day
        "h,vllm,0.16.0,qwen3-32b,h100_sxm,1024,256,16,1,1,1,bf16,30,100,",
    )
    path.write_text(head + "\n".join(lines) + "\n")
    rows = shared_errors.host.features(read(str(path)))
    predicted_s = np.full(len(rows.rows), 0.01)
    monkeypatch.setattr(shared_errors.host, "left_out", lambda rows: (predicted_s, predicted_s))
    pairs = shared_errors.aged_pairs_of(rows)
    # 0.16.0 is of 26 February 2026, 0.18.0 of 20 March: 22 days; f was measured 8 days after the first
    expected = {("a", "b"): (6 / 9, 22), ("a", "c"): (7 / 9, 0), ("a", "f"): (8 / 9, 8), ("c", "b"): (6 / 7, 22)}
    expected |= {("f", "b"): (6 / 8, 14), ("c", "f"): (8 / 7, 8)}
    found = sorted(zip(pairs.apart.tolist(), (7 * pairs.weeks).tolist(), strict=True))
    hand = sorted((float(np.log(ratio)), days) for ratio, days in expected.values())
    assert np.array(found) == pytest.approx(np.array(hand))
    assert {*pairs.models} == {"llama3.1-8b"}


def test_a_table_without_pairs_is_one_line(tmp_path):
    path = tmp_path / "t.csv"
    rows = [
        f"{i},vllm,0.16.0,{model},h100_sxm,1024,256,{2**i},1,1,1,bf16,9,100"
        for i in range(6)
        for model in ("llama3.1-8b",)
    ]
    path.write_text(HEAD + "\n".join([*rows, "x,vllm,0.16.0,qwen3-32b,h100_sxm,1024,256,1,1,1,1,bf16,30,100"]) + "\n")
    features = shared_errors.host.features(read(str(path)))
    with pytest.raises(InputError, match="give such rows"):
        shared_errors.pairs_of(features)
    with pytest.raises(InputError, match="give the path"):
        shared_errors.main([])


def test_what_ships_was_fitted():
    shipped = catalog.shared_errors()
    assert "aiconfigurator-core" in shipped.source
    assert shipped.n_points > 1000
    assert shipped.age.n_points > 500
    assert 0.7 < shipped.age.inside < 0.9
    # two days apart little, half a year as much as a model that was not seen
    assert 0.02 < shipped.age.week * (2 / 7) ** 0.5 < 0.06
    # an engine shares least of what was asked for, a split most
    others = (shipped.release, shipped.weights, shipped.device)
    assert shipped.engine < min(others) <= max(others) < shipped.split
