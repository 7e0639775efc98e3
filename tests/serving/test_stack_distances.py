"""Hits at every size of a prefix cache: by hand, by a stack in plain Python, by the simulator's tree."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.core.errors import InputError
from dse.serving import simulator, stack_distances
from dse.serving.requests import PromptBlocks, Requests
from dse.serving.stack_distances import hits
from dse.serving.steady_state import Scheduler
from dse.specs.workload import Workload
from small_servers import PLANS, room_for, times_of

TEXTS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=14)


def prompts(texts, block=5, short=0):
    """Requests far apart, one for each text; a letter is a block of `block` tokens, the last one `short` fewer."""
    first = np.cumsum([0, *map(len, texts)])
    lengths = np.array([block * len(text) - short for text in texts])
    ends = np.concatenate(
        [np.minimum(block * np.arange(1, len(t) + 1), n) for t, n in zip(texts, lengths, strict=True)]
    )
    blocks = PromptBlocks(first, np.array([ord(c) for text in texts for c in text]), ends)
    return Requests(np.arange(len(texts), dtype=float), lengths, np.ones(len(texts), np.int64), blocks)


def naive(requests, page, capacity):
    """Tokens that each prompt finds: a list of nodes, the one used last first, of which the top `capacity` pages are
    held."""
    stack, pages, found, blocks = [], {}, [], requests.blocks
    for r, n_tokens in enumerate(requests.input_tokens):
        path, before = [], 0
        for k in range(blocks.first[r], blocks.first[r + 1]):
            node = (*(path[-1][0] if path else ()), (blocks.ids[k], blocks.end_tokens[k]))
            whole = blocks.end_tokens[k] // page
            pages[node], before = whole - before, whole
            path.append((node, whole * page))
        total = np.cumsum([pages[node] for node in stack])
        held = {node for node, upto in zip(stack, total, strict=True) if upto <= capacity}
        reached = 0
        for node, end in path:
            if node not in held or end >= n_tokens:
                break
            reached = end
        found.append(int(reached))
        mine = [node for node, _ in path]
        stack = mine + [node for node in stack if node not in set(mine)]
    return found


def test_distances_by_hand():
    """ab, ac, ab in pages of a token: a is found below itself (5 pages), of the third prompt with b under a and c
    (15); the last block of a prompt ends in its last token, and is computed."""
    of = hits(prompts(["ab", "ac", "ab", "abx"]), 1, [4, 5, 15])
    assert of.prompt_tokens == 45
    assert [45 * of.rate(pages) for pages in (4, 5, 9, 10, 99)] == pytest.approx([0, 15, 15, 20, 20])
    assert of.moments[15] == pytest.approx((20 / 4, (25 + 25 + 100) / 4, (100 + 25 + 25 + 25) / 4))
    assert (of.endless_rate, of.distinct_pages, of.error) == (20 / 45, 20, 0)
    assert (of.pages_for(1.0), of.pages_for(15 / 45)) == (10, 5)


@given(TEXTS, st.integers(1, 7), st.integers(0, 4), st.lists(st.integers(0, 80), min_size=1, max_size=5))
def test_one_pass_is_a_stack_at_every_size(texts, page, short, sizes):
    requests = prompts(texts, short=short)
    of = hits(requests, page, sizes)
    for size in sizes:
        found = naive(requests, page, size)
        assert of.rate(size) * of.prompt_tokens == pytest.approx(sum(found))
        squares = np.array(
            [[n, n * n, (total - n) ** 2] for n, total in zip(found, requests.input_tokens, strict=True)]
        )
        assert of.moments[size] == pytest.approx(tuple(squares.mean(axis=0)))


@settings(max_examples=25)
@given(TEXTS, st.integers(26, 90))
def test_it_is_the_simulators_tree_where_requests_come_one_after_another(texts, n_tokens):
    """A request holds a token more than its prompt: its answer's."""
    requests = prompts(texts)
    work = Workload(batch=4, admission="paged", page_tokens=1, model_kind="ideal", memory="paper")
    device = room_for(PLANS["fp16"], work, n_tokens)
    run = simulator.run(device, PLANS["fp16"], work, requests, Scheduler(), times_of(PLANS["fp16"], 6), compiled=False)
    of = hits(requests, 1)
    assert of.rate(n_tokens - 1) * of.prompt_tokens == pytest.approx(run.device_tokens.sum())
    assert of.endless_rate * of.prompt_tokens == pytest.approx(run.endless_tokens.sum())


def test_requests_before_those_counted_fill_the_cache_only():
    of = hits(prompts(["ab", "abx", "abx"]), 1, first_counted=2)
    assert (of.n_requests, of.prompt_tokens, of.endless_rate) == (1, 15, 10 / 15)


def test_an_answer_is_kept_where_blocks_reach_beyond_the_prompt():
    """Two turns: 10 tokens and an answer of 5, which the next prompt of 20 begins with."""
    turns = prompts(["abc", "abcde"])
    of = hits(replace(turns, input_tokens=np.array([10, 20])), 1)
    assert of.endless_rate * of.prompt_tokens == pytest.approx(15)


def test_distances_beyond_what_is_told_apart_are_rounded_up(monkeypatch):
    texts = ["abab", "ba", "abab", "bb", "abb", "ba"]
    exact = hits(prompts(texts), 1)
    monkeypatch.setattr(stack_distances, "MAX_CELLS", 40)
    coarse = hits(prompts(texts), 1)
    assert coarse.step_pages > 1
    for pages in range(0, 60, coarse.step_pages):
        assert coarse.rate(pages) == exact.rate(pages)


@pytest.mark.parametrize("max_nodes", [20_000, 5_000])
def test_a_sample_of_blocks_tells_the_curve_within_its_error(monkeypatch, max_nodes):
    """300 conversations of 20 turns in mixed order, 170,000 blocks of which 48,000 differ."""
    monkeypatch.setattr(stack_distances, "CHUNK_BLOCKS", 2_000)
    drawn, n, turns = np.random.default_rng(7), 300, 20
    order = drawn.permutation(np.repeat(np.arange(n), turns))
    turn = np.empty(n * turns, np.int64)
    turn[np.argsort(order, kind="stable")] = np.tile(np.arange(turns), n)
    counts = 20 + 7 * (turn + 1)
    first = np.concatenate(([0], np.cumsum(counts)))
    place = np.arange(first[-1]) - np.repeat(first[:-1], counts)
    ids = np.where(place < 20, 0, np.repeat(order + 1, counts))
    requests = Requests(
        np.arange(n * turns, dtype=float),
        16 * counts + 3,
        np.ones(n * turns, np.int64),
        PromptBlocks(first, ids, 16 * (place + 1)),
    )
    exact, sampled = hits(requests, 16, [2_000, 20_000]), hits(requests, 16, [2_000, 20_000], max_nodes=max_nodes)
    assert exact.sampled == 1 > sampled.sampled
    assert sampled.sampled_nodes <= max_nodes
    for pages in np.geomspace(100, 60_000, 30):
        assert abs(exact.rate(pages) - sampled.rate(pages)) < 3 * sampled.error
    for size in (2_000, 20_000):
        assert sampled.moments[size][0] == pytest.approx(exact.moments[size][0], rel=0.05)


def test_a_trace_without_hashes_is_refused():
    with pytest.raises(InputError, match="has no block hashes"):
        hits(replace(prompts(["a"]), blocks=None), 16)
