"""What a progress bar says of the item at work."""

import re
from pathlib import Path

import numpy as np
import pytest

from dse import quantizers
from dse.cli import commands
from dse.cli.commands import MAX_AT_WORK, _at_work
from dse.core import progress
from dse.core.errors import LimitError
from dse.measure.dumps import DumpTensor
from dse.measure.kernels import DumpLayer
from studies.experiments import StudyPoint

LAYER = DumpLayer(3, {"key": DumpTensor("layer3.key", "fp16", (1, 2, 80, 16))})


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ("throughput", "throughput"),
        ((LAYER, quantizers.parse("kivi:bits=4")), "layer 3 kivi:bits=4"),
        (StudyPoint(experiment="kivi-axes", series="x", x=2, method="kivi"), "kivi-axes: kivi"),
        (Path("a/b.npz"), "b.npz"),
        (None, ""),
        ({"device": "h100"}, ""),
        ("x" * 100, "x" * MAX_AT_WORK),
    ],
)
def test_an_item_is_shown_by_its_name(item, text):
    assert _at_work(item) == text


def test_no_item_is_shown_as_its_fields():
    for item in (LAYER, quantizers.parse("oaken"), (quantizers.parse("oaken"), LAYER), np.zeros((2, 2))):
        assert "(" not in _at_work(item)


def test_long_work_says_how_far_it_is_where_no_bar_is_seen(monkeypatch, capsys):
    monkeypatch.setattr(commands, "PATIENCE_S", 0.001)
    err = ""
    with commands.progress_bar(range(3), "formats", 3) as items:
        for n_begun, _ in enumerate(items, start=1):
            while f"formats: at {n_begun} of 3\n" not in err:  # the teller may speak before the first item is begun
                err += capsys.readouterr().err
    assert re.fullmatch(r"(formats: at \d of 3\n)+", err)


def test_short_work_says_nothing(capsys):
    with commands.progress_bar(range(3), "formats", 3) as items:
        assert list(items) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_work_that_says_itself_how_far_it_is_is_told_of_inside_its_command(monkeypatch, capsys):
    """Lines tell of what runs inside; after it, of the command again; of neither while somebody is asked."""
    monkeypatch.setattr(commands, "PATIENCE_S", 0.001)

    def said(line):
        err = ""
        while line not in err:
            err += capsys.readouterr().err

    with commands.told(None, "simulate", None):
        said("simulate: at work\n")
        with commands.progress_bar(None, "requests", 20) as bar:
            bar.update(7)
            said("requests: at 7 of 20\n")
        with commands.progress_bar(iter("ab"), "trace", None) as lines:  # of a file: nobody knows how many
            assert next(iter(lines)) == "a"
            said("trace: at 1\n")
    assert not commands._running


def test_too_many_steps_are_refused_before_the_first():
    with pytest.raises(LimitError, match=r"rows: 1,000,001 at once: at most 1,000,000: ask for fewer"):
        next(progress.each(range(1_000_001), None, "rows"))
