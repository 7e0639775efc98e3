"""Commands that need folders beside the package say so in one line where there is no checkout."""

import pytest

from dse.core import checkout
from factories import assert_one_line


@pytest.mark.parametrize(
    "words",
    ["study mha --out x", "measure --perplexity", "measure lm:mha --methods nqkv --out x"],
    ids=lambda words: words.split()[0],
)
def test_without_a_checkout_the_reason_is_one_line(run, monkeypatch, tmp_path, words):
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert_one_line(run(*words.split()), 2, "run it in a checkout of the repository, which has a folder studies")
    assert not list(tmp_path.iterdir())
