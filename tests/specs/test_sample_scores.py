"""Scores of the sample model: means over texts by hand, and every shipped format on every text."""

import math

import pytest

from dse import quantizers
from dse.specs import sample_scores
from dse.specs.oaken_grid import SAMPLE


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
