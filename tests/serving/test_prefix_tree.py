"""Prompts that begin alike: their tree, what is found of them, and what goes first, by hand and by others' counts."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.core.errors import InputError, LimitError
from dse.serving import block_traces, loop, prefix_tree, simulator
from dse.serving.prefix_steps import COMPUTED, FOUND, GIVEN_UP, IN_HOST, KEPT, LOADED
from dse.serving.requests import PromptBlocks, Requests
from dse.serving.steady_state import HostMemory, Scheduler
from dse.serving.step_times import PromptPart
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import build
from small_servers import PLANS, room_for, times_of


def prompts(*texts, block=5, output=1, gap_s=1.0):
    """Requests far apart, one for each text; a letter is a block of `block` tokens."""
    first = np.cumsum([0, *map(len, texts)])
    ends = np.concatenate([block * np.arange(1, len(text) + 1) for text in texts])
    lengths = np.array([block * len(text) for text in texts])
    n = len(texts)
    blocks = PromptBlocks(first, np.array([ord(c) for text in texts for c in text]), ends)
    return Requests(gap_s * np.arange(n), lengths, np.full(n, output), blocks)


def served(requests, n_tokens, host=None, **fields):
    """A run on a device on which one sequence of `n_tokens` fits."""
    work = Workload(batch=4, admission="paged", page_tokens=1, model_kind="ideal", memory="paper")
    work = replace(work, **fields)
    device = room_for(PLANS["fp16"], work, n_tokens)
    times = times_of(PLANS["fp16"], 6)
    return simulator.run(device, PLANS["fp16"], work, requests, Scheduler(host=host), times, compiled=False), times


def test_prompts_share_what_stands_before_their_first_difference():
    """ab, abc, b: four nodes; b alone is another block than b after a."""
    tree = prefix_tree.tree_of(prompts("ab", "abc", "b", "abd"), 1)
    assert tree.nodes.tolist() == [0, 1, 0, 1, 2, 3, 0, 1, 4]
    assert tree.parent.tolist() == [-1, 0, 1, -1, 1]
    assert tree.end_tokens.tolist() == [5, 10, 15, 5, 15]
    assert tree.endless_tokens.tolist() == [0, 10, 0, 10]


def test_a_page_that_two_blocks_meet_in_is_of_the_later_one():
    """Blocks of 5 tokens in pages of 4: one page ends in the first, one in the second, one in the third, at 12."""
    tree = prefix_tree.tree_of(prompts("abc"), 4)
    assert tree.pages.tolist() == [1, 1, 1]
    assert tree.end_tokens.tolist() == [4, 8, 12]


def test_answers_share_their_prompts_pages_and_compute_what_fills_none():
    """Two prompts of 10 and 8 tokens in pages of 4, three answers each of 4 tokens, all at once.

    8 of the first prompt's tokens are in whole pages: the other two answers find them. Of the second they find 4, as
    the last token of a prompt is computed again, in a page that they share. Held at the end: 8 + 3 x 8 and 8 + 3 x 4.
    """
    requests = Requests(np.zeros(2), np.array([10, 8]), np.array([4, 4]))
    answers = prefix_tree.sampled(requests, 3, 4)
    assert answers.input_tokens.tolist() == [10] * 3 + [8] * 3
    run, _ = served(answers, 400, batch=6, page_tokens=4)
    assert run.device_tokens.tolist() == [0, 8, 8, 0, 4, 4]
    alone, _ = served(replace(answers, blocks=None), 400, batch=6, page_tokens=4)  # 3 x 16 + 3 x 12
    token = 2 * 12 * 768 * 2  # OPT-125M, keys and values of 12 layers in 16 bits
    assert alone.peak_used_bytes - run.peak_used_bytes == (84 - 52) * token


def test_the_last_token_of_a_prompt_is_computed_again():
    """An answer begins with what follows the last token: of two blocks found the second is computed again."""
    run, _ = served(prompts("ab", "ab"), 60)
    assert run.device_tokens.tolist() == [0, 5]
    assert run.endless_tokens.tolist() == [0, 5]


@pytest.mark.parametrize(
    ("texts", "on_device"),
    [
        (("ab", "cd", "ef", "ab"), [0, 0, 0, 0]),  # room for 25: of 20 kept, the 10 used longest ago went for ef
        (("ab", "cd", "ab", "ef", "ab"), [0, 0, 5, 0, 5]),  # ab was used after cd, so cd went
        (("abc", "abd", "abe"), [0, 10, 10]),  # what is in use does not go
        (("abc", "d", "e", "abf"), [0, 0, 0, 10]),  # the end of abc went first, its beginning stayed
    ],
)
def test_what_was_used_longest_ago_goes_first(texts, on_device):
    run, _ = served(prompts(*texts), 25)
    assert run.device_tokens.tolist() == on_device


def test_what_the_device_gives_up_is_found_in_host_memory_if_that_has_room():
    """Of ab, cd, ef, ab both blocks of the first are in host memory of 10 tokens; of 5 the beginning alone."""
    requests = prompts("ab", "cd", "ef", "abx")
    page = 36864  # bytes of a token of OPT-125M in FP16: 2 * 12 layers * 768 channels * 2 bytes
    for n_tokens, found in ((10, 10), (5, 5), (4, 0)):
        run, _ = served(requests, 21, HostMemory(n_tokens * page, 1e12))
        assert run.host_tokens.tolist() == [0, 0, 0, found], n_tokens


def test_a_prompt_takes_the_time_of_what_is_not_found():
    """10 of 15 tokens found: products over 5 tokens, attention of the last 5 over all before them."""
    run, times = served(prompts("abc", "abd"), 60)
    seconds = run.first_s - run.start_s
    assert run.n_prompt_tokens == 15 + 5
    assert seconds[0] == pytest.approx(times.step_s(0, 0, [PromptPart(0, 15)]), rel=1e-12)
    assert seconds[1] == pytest.approx(times.step_s(0, 0, [PromptPart(10, 15)]), rel=1e-9)


def test_blocks_from_host_memory_come_beside_the_step_or_before_it():
    """10 tokens of 36,864 bytes at 1 GB/s and 1 ms before them: 1.36864 ms."""
    requests, page = prompts("ab", "cd", "ef", "abx"), 36864
    for is_beside in (True, False):
        run, times = served(requests, 21, HostMemory(10 * page, 1e9, 1e-3, is_beside))
        step_s, load_s = times.step_s(0, 0, [PromptPart(10, 15)]), 1.36864e-3
        wanted = max(step_s, load_s) if is_beside else step_s + load_s
        assert run.first_s[3] - run.start_s[3] == pytest.approx(wanted, rel=1e-6)


def test_a_prefix_in_common_is_held_once():
    """The textbook's 100 prompts of 2,000 shared and 500 own tokens: 52,000 tokens are held in place of 250,000."""
    kv = build("llama2-7b", "fp16")
    alike = Requests(np.zeros(100), np.full(100, 2500), np.full(100, 4))
    work = Workload(batch=100, admission="paged", page_tokens=4, model_kind="ideal", memory="paper")
    held = []
    for requests in (alike, prefix_tree.drawn(alike, 2000, 1, 4, seed=1)):
        device = room_for(PLANS["fp16"], work, 100).model_copy(
            update={"memory_capacity": room_for(kv, work, 300_000).memory_capacity}
        )
        held.append(simulator.run(device, kv, work, requests, Scheduler(step_tokens=10**6)).peak_used_bytes)
    per_token = 2 * 32 * 4096 * 2
    # answers: a page of 4 tokens each; a sequence's buffers are the same in both
    assert held[0] - held[1] == (250_000 - 52_000) * per_token
    assert held[0] >= 250_400 * per_token


@given(texts=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=12), room=st.integers(27, 60))
def test_a_block_is_kept_only_after_the_one_before_it(texts, room):
    """And what is kept is what the counts say, in every step; nothing is found that an endless cache would not."""
    requests = prompts(*texts, gap_s=1e-4, output=2)
    seen = []

    def look(state):
        tree = prefix_tree.tree_of(requests, 1)
        kept = state.users[0] != loop.NONE
        has_parent = tree.parent >= 0
        assert (kept[tree.parent[has_parent]] | ~kept[has_parent]).all()
        idle = state.users[0] == 0
        assert state.group[0, loop.GROUP.cached] == state.rule[loop.RULE.page_size] * tree.pages[idle].sum()
        assert state.group[0, loop.GROUP.cached] + state.group[0, loop.GROUP.held] <= state.rule[loop.RULE.capacity]
        seen.append(1)

    original = simulator.prefix_steps.PrefixSteps.watch
    simulator.prefix_steps.PrefixSteps.watch = lambda self, state: (look(state), original(self, state))[1]
    try:
        run, _ = served(requests, room)
    finally:
        simulator.prefix_steps.PrefixSteps.watch = original
    assert seen
    assert (run.device_tokens <= run.endless_tokens).all()


def test_steps_say_what_each_prompt_finds_and_what_becomes_of_the_rest():
    run, _ = served(prompts("abx", "aby", "cde", "abz"), 21, HostMemory(36864 * 100, 1e12))
    table = run.steps.table()
    states = {
        step: dict(zip(part["requests"] + ":" + part["end_tokens"].astype(str), part["state"], strict=True))
        for step, part in table.groupby("step")
    }
    assert states[1] == {"1, 2, 4:10": COMPUTED, "1:15": COMPUTED}
    assert states[2] == {"1, 2, 4:10": FOUND, "1:15": KEPT, "2:15": COMPUTED}
    assert states[3] == {"1, 2, 4:5": KEPT, "1, 2, 4:10": IN_HOST, "1:15": IN_HOST, "2:15": IN_HOST, "3:15": COMPUTED}
    assert states[4]["4:15"] == COMPUTED
    assert states[4]["1, 2, 4:10"] == LOADED
    assert GIVEN_UP not in {*table["state"]}


def test_windows_are_refused_with_what_to_do():
    kv = build("gemma-3-27b", "fp16")
    work = Workload(batch=4, admission="paged", model_kind="ideal")
    with pytest.raises(InputError, match=r"model = 'gemma-3-27b' with 'fp16': has windows.* give --prefix-cache off"):
        simulator.run(catalog.device("h200"), kv, work, prompts("abcd", "ab", block=2000))


@pytest.mark.parametrize(
    ("tokens", "n", "message"),
    [
        (0, 1, "prefix = 0: must be from 1 to 9 tokens"),
        (10, 1, "prefix = 10: must be from 1 to 9 tokens"),
        (5, 0, "prefixes = 0: must be a whole number from 1"),
    ],
)
def test_prefixes_that_cannot_be_drawn(tokens, n, message):
    with pytest.raises(InputError, match=message):
        prefix_tree.drawn(Requests(np.zeros(2), np.full(2, 10), np.full(2, 1)), tokens, n, 16, 1)


def test_more_blocks_than_are_followed_are_refused_before_they_are_made():
    """A million prompts of 125 blocks of a prefix and one of their own."""
    alike = Requests(np.zeros(10**6), np.full(10**6, 2500), np.full(10**6, 1))
    with pytest.raises(LimitError, match="have 126,000,000 blocks of prompts: at most 20,000,000 are followed"):
        prefix_tree.drawn(alike, 2000, 1, 16, 1)


def test_prefixes_are_drawn_with_equal_chances():
    """Of 4,000 prompts some 1,000 begin with each of four texts, and find it but for the first time."""
    requests = prefix_tree.drawn(Requests(np.zeros(4000), np.full(4000, 64), np.full(4000, 1)), 32, 4, 16, 1)
    tree = prefix_tree.tree_of(requests, 16)
    counts = np.bincount(tree.nodes[tree.first[:-1]])
    assert (counts > 900).sum() == (counts > 1).sum() == 4
    assert tree.endless_tokens.sum() == 32 * (4000 - 4)


def line(**fields):
    row = {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2], **fields}
    return json.dumps({name: value for name, value in row.items() if value is not None})


def test_a_trace_that_names_blocks_is_read(tmp_path):
    """Mooncake's fields; 1,000 tokens in two blocks are blocks of 512; sorted by time."""
    path = tmp_path / "trace.jsonl"
    path.write_text(line(timestamp=3000) + "\n\n" + line(timestamp=1000, input_length=512, hash_ids=[7]) + "\n")
    found = block_traces.read(str(path))
    assert found.arrival_s.tolist() == [0.0, 2.0]
    assert found.input_tokens.tolist() == [512, 1000]
    assert found.blocks.ids.tolist() == [7, 1, 2]
    assert found.blocks.end_tokens.tolist() == [512, 512, 1000]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: give a line for each request"),
        ("[1]\n", ":1: must be a JSON object with timestamp, input_length, output_length, hash_ids"),
        ("{\n", ":1: must be a JSON object"),
        (line(hash_ids=None), ":1: hash_ids is missing"),
        (line(timestamp="now"), ":1: timestamp = 'now': must be milliseconds"),
        (line(input_length=0), ":1: input_length = 0: must be a whole number from 1"),
        (line(output_length=True), ":1: output_length = True: must be a whole number from 1"),
        (line(hash_ids=[1, "a"]), ":1: hash_ids = .*: must be whole numbers"),
        (line(hash_ids=[1, 2, 3]) + "\n" + line(hash_ids=[1]), "hash_ids: . for a prompt of 1,000 tokens: no block of"),
    ],
)
def test_traces_with_faults_are_refused_by_line(tmp_path, text, message):
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        block_traces.read(str(path))


def test_a_line_that_is_too_long_is_refused_and_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(block_traces, "MAX_LINE_BYTES", 100)
    path = tmp_path / "trace.jsonl"
    path.write_text(line() + "\n" + line(hash_ids=[1] * 99) + "\n")
    with pytest.raises(InputError, match=":2: has more than 100 bytes: give a JSON object a line"):
        block_traces.read(str(path))


def test_host_memory_in_half_the_bytes_holds_twice_the_blocks_and_brings_them_in_half_the_time():
    assert HostMemory(1000, 2e9, 1e-3).in_format(0.5) == HostMemory(2000, 4e9, 1e-3)
