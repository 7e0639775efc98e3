"""Gains of host memory beside measured ones: signs by hand, and documents whose questions share them."""

import pytest

from calibration.tier_errors import TierGain, documents
from dse.serving import block_traces


@pytest.mark.parametrize(
    ("told", "measured", "sign"),
    [
        (1.22, 0.96, "wrong"),
        (1.22, 1.06, "right"),
        (0.90, 0.70, "right"),
        (1.01, 0.99, "right"),  # none of both
        (1.03, 1.00, "near"),
    ],
)
def test_signs(told, measured, sign):
    row = TierGain("D", 8, "64 sessions", "host memory", 2.0, 4.0, 2.0 * told, 4.0 * measured).row()
    assert row["sign"] == sign
    assert row["level"] == pytest.approx(told / measured)


def test_questions_share_documents(tmp_path):
    """Five questions about one document of 512 tokens: two blocks of 256 alike, a third of 100 tokens is its own."""
    requests = block_traces.read(documents(tmp_path / "trace.jsonl", 1, 512, 100, 8, 5))
    ids = requests.blocks.ids.reshape(5, 3)
    assert (requests.input_tokens == 612).all()
    assert (ids[:, :2] == ids[0, :2]).all()
    assert len(set(ids[:, 2])) == 5
