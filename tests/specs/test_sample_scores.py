"""Scores of the sample model: means over texts by hand, and every shipped format on every text."""

import math

import pytest

from dse import quantizers
from dse.specs import sample_scores
from dse.specs.oaken_grid import SAMPLE
from factories import assert_one_line


def test_means_over_texts_by_hand(monkeypatch):
    kept = {"method": "fp8", "sides": "both"}
    monkeypatch.setattr(
        sample_scores,
        "rows",
        lambda: (
            kept | {"log_ratio": "0.01", "kl_nats": "0.02", "top1_agreement_frac": "0.9"},
            kept | {"log_ratio": "0.03", "kl_nats": "0.06", "top1_agreement_frac": "0.8"},
            kept | {"sides": "key", "log_ratio": "9", "kl_nats": "9", "top1_agreement_frac": "0"},
        ),
    )
    found = sample_scores.of.__wrapped__("fp8")
    assert found.kl_nats == pytest.approx((0.04, 0.02, 0.06))
    assert found.perplexity_frac == pytest.approx((math.exp(0.02) - 1, math.exp(0.01) - 1, math.exp(0.03) - 1))
    assert found.top1_agreement_frac == pytest.approx((0.85, 0.8, 0.9))
    assert found.n_texts == 2
    assert sample_scores.of.__wrapped__("nqkv") is None


def test_every_format_was_scored_on_every_text():
    texts = {row["text"] for row in sample_scores.rows()}
    assert len(texts) >= 4
    methods = {row["method"] for row in sample_scores.rows()}
    assert all(quantizers.parse(name).name == name for name in methods)
    for name in methods:
        found = sample_scores.of(name)
        assert found.n_texts == len(texts), name
        assert found.kl_nats.low >= 0
    # 16 bits with 8 a scale lose least, 2 bits most: the order that every paper prints
    kl = {name: sample_scores.of(name).kl_nats.mean for name in methods}
    assert kl["int8_per_token_head"] < kl["fp8"] < kl["int4_per_token_head"] < kl["kivi"]
    assert SAMPLE.startswith("SmolLM2-135M")


def test_policies_are_scored_apart_from_formats(run):
    rows = sample_scores.by_text("snapkv:budget=64")
    # 64 of the prompt and the 256 tokens behind it, of 512
    assert [(row["text"], row["stored_bits"]) for row in rows] == [("prose", 10.0), ("dialogue", 10.0)]
    # formats keep the scores of whole texts
    assert {row["n_scored_tokens"] for row in sample_scores.by_text("kivi")} == {1023, 4095}
    code, out, _ = run("scores", "--quantizers", "snapkv:budget=64", "--measured")
    assert (code, "Behind a prompt of 256 tokens" in out) == (0, True)
    assert_one_line(run("scores", "--quantizers", "snapkv:budget=65", "--measured"), 2, "not measured on SmolLM2-135M")
