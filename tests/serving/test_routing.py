"""Requests as servers get them, by hand: between ticks of a clock, a router's share, several traces in one."""

import numpy as np
import pytest

from dse.serving import routing
from dse.serving.requests import PromptBlocks, Requests


def requests(at_s, prompts=None, block=10):
    """Requests whose prompts are lists of blocks of 10 tokens."""
    n = len(at_s)
    blocks, inputs = None, np.full(n, 10)
    if prompts:
        counts = [len(ids) for ids in prompts]
        ends = np.concatenate([block * np.arange(1, count + 1) for count in counts])
        blocks = PromptBlocks(np.concatenate(([0], np.cumsum(counts))), np.concatenate(prompts), ends)
        inputs = block * np.array(counts)
    return Requests(np.array(at_s, float), inputs, np.full(n, 5), blocks)


def test_between_ticks():
    """Three of the first second at 0, 1/3 and 2/3; the clock's tick is the least gap, 1 s."""
    spread = routing.between_ticks(requests([0, 0, 0, 1, 5, 5])).arrival_s
    assert spread == pytest.approx([0, 1 / 3, 2 / 3, 1, 5, 5.5])
    for kept in ([0, 0, 0], [0, 0.5, 3]):
        assert routing.between_ticks(requests(kept)).arrival_s.tolist() == kept


def test_a_router_sends_what_begins_alike_to_one_server():
    """Two users behind a system prompt (block 0): turns of each stay on its server, a new one goes where less is."""
    prompts = [
        [0, 1, 2, 3, 4],
        [0, 11, 12, 13, 14],
        [0, 1, 2, 3, 4, 5],
        [0, 11, 12, 13, 14, 15],
        [0, 21, 22, 23],
        [0, 1, 9],
    ]
    trace = requests(range(6), prompts)
    share = routing.share_of(trace, 2)
    assert share.arrival_s.tolist() == [0, 2, 4, 5]
    # two thirds of the last prompt are known there; of the one before it the system prompt alone
    assert share.blocks.ids.tolist() == [*prompts[0], *prompts[2], *prompts[4], *prompts[5]]
    assert routing.share_of(trace, 1) is trace
    assert routing.share_of(requests(range(5)), 2).arrival_s.tolist() == [0, 2, 4]


def test_twice_as_many_users():
    """A trace of 4 s that goes on as it began: its copy is 2 s later, and has blocks of its own."""
    double = routing.times_as_many(requests([0, 1, 2, 3], [[0], [0, 1], [2], [3]]), 2)
    assert double.arrival_s.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    ids = [double.blocks.ids[a:b].tolist() for a, b in zip(double.blocks.first, double.blocks.first[1:], strict=False)]
    assert ids == [[0], [6], [0, 1], [7], [2], [4], [3], [4, 5]]
    assert routing.at_rate(double, 7 / 6).arrival_s == pytest.approx(2 * double.arrival_s)
