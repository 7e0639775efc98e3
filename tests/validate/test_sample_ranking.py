"""The sample's divergence beside published losses: correlation and pairs by hand, and the docs."""

import math
from pathlib import Path

import pytest

from dse.specs import published_scores, sample_scores
from dse.specs.published_scores import Score
from dse.specs.sample_scores import OverTexts, SampleScore
from scripts import sample_ranking

ROOT = Path(__file__).parents[2]
KL = {"fp8": 0.01, "int8": 0.02, "int4": 0.3, "kivi": 0.2, "nqkv": 0.1}


def of(name):
    same = OverTexts(0.0, 0.0, 0.0)
    if name not in KL:
        return None
    kl = OverTexts(KL[name], KL[name], KL[name])
    return SampleScore(kl_nats=kl, perplexity_frac=same, top1_agreement_frac=same, n_texts=1)


def test_agreement_by_hand(monkeypatch):
    def score(name, loss, source="a", model="m"):
        return Score(model=model, format=name, family="short", source=source, loss=loss, error=None)

    rows = [
        *(score("fp8", 0.0), score("int8", 0.01), score("int4", 0.2), score("nqkv", 0.03)),
        # kivi is best in another source: no pair with the others, but a place among the formats
        score("kivi", -0.1, source="b"),
        score("unknown", 0.9),
    ]
    monkeypatch.setattr(published_scores, "published", lambda: tuple(rows))
    monkeypatch.setattr(sample_scores, "of", of)
    found = sample_ranking.agreement("short")
    # by divergence fp8 int8 nqkv kivi int4, by loss kivi fp8 int8 nqkv int4: differences 1, 1, 1, 3, 0:
    # 1 - 6 * 12 / (5 * 24) = 0.4; interval: tanh(atanh 0.4 -+ 1.96 sqrt(1.06 / 2))
    assert (found.n_formats, found.n_pairs, found.n_alike) == (5, 6, 6)
    assert found.rank_correlation == pytest.approx(0.4)
    half = 1.96 * math.sqrt(1.06 / 2)
    assert (found.low, found.high) == pytest.approx(
        (math.tanh(math.atanh(0.4) - half), math.tanh(math.atanh(0.4) + half))
    )
    assert math.isnan(sample_ranking.agreement("long_context").rank_correlation)


def test_the_docs_show_the_table():
    assert sample_ranking.shown() in (ROOT / "docs" / "how-to" / "which-format.md").read_text()
