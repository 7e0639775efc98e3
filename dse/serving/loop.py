"""The serving loop, step by step, on plain arrays: runs as Python or compiled, with the same numbers.

A step is what the device does at once: whole prompts, one token for every running sequence, or both. Between steps,
requests arrive, are admitted, finish and are sent back. All that happens to a step is found without looking at every
sequence: who finishes at it and who needs a page at it stand in lists kept by step number.

Groups of requests (`--dp-attention`) have places, memory, prompts and decode steps of their own; all wait for the one
that takes longest, and the next request goes to the group that has fewest.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse.serving.step_times import StepTables, attention_s

STATIC, CONTINUOUS, CHUNKED = 0, 1, 2
RESERVE, PAGED = 0, 1
#: no link in a list, no request in a place
NONE = -1

# places in State.i: whole numbers that change
(
    NOW_ARRIVED,
    NEXT_FRESH,
    N_AGAIN,
    N_RUNNING,
    USED,
    N_DONE,
    TOKENS,
    PROMPT_TOKENS,
    N_PREEMPTED,
    N_SAMPLES,
    SAMPLE_EVERY,
    N_STEPS,
    N_DECODE_STEPS,
    N_PROMPT_STEPS,
    PEAK_USED,
    PEAK_RUNNING,
    WARM_TOKENS,
    WARM_DONE,
    FULL_TOKENS,
    FULL_DONE,
    N_I,
) = range(21)
# places in a row of State.group: those of one group; what it does in this step last
(
    N_DECODING,
    N_LIVE,
    CONTEXT,
    HELD,
    STEP,
    PARTIAL,
    PARTIAL_DONE,
    N_FREE,
    N_NEW,
    N_JOINED,
    IS_OPEN,
    PART_TOKENS,
    DECODES,
    IS_CLOSED,
    N_G,
) = range(15)
# places in State.f: seconds; and of a row of State.group_s
NOW, BUSY, RUNNING_S, USED_S, PROMPT_S, GAPS_S, LONGEST_GAP, WARM_AT, FULL_AT, N_F = range(10)
LAST_DECODE, PART_S, N_GS = range(3)
# places in State.rule: what does not change; places, prompt tokens and memory are those of a group
BATCHING, ADMISSION, MAX_BATCH, CHUNK, PAGE, CAPACITY, WATERMARK, WARM_COUNT, PROMPT_STEP, PLACES, N_RULE = range(11)
# rows of State.sample
S_TIME, S_RUNNING, S_WAITING, S_USED, S_TOKENS, N_SAMPLE_ROWS = range(6)


class State(NamedTuple):
    """All that a run knows. Arrays over requests, over places of the running batch, and over groups and steps (rings).

    The places of group g are g * PLACES and the following.
    """

    rule: NDArray[np.int64]
    i: NDArray[np.int64]
    f: NDArray[np.float64]
    #: a row for each group
    group: NDArray[np.int64]
    group_s: NDArray[np.float64]
    #: requests: given
    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    #: memory that a sequence of k pages holds at most while it has so many
    held: NDArray[np.int64]
    #: pages, from its prompt's to its last token's, at which a request holds most: what it reserves
    largest_pages: NDArray[np.int64]
    #: requests: found. `first_s` is 0 until known; `last_s` is the end of the latest token, `generated` the tokens made
    #: before it was sent back
    start_s: NDArray[np.float64]
    first_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    last_s: NDArray[np.float64]
    generated: NDArray[np.int64]
    #: those sent back, latest on top
    again: NDArray[np.int64]
    #: places: request, pages, context less step number, step at which it joined, whether it has not decoded yet
    request: NDArray[np.int64]
    pages: NDArray[np.int64]
    offset: NDArray[np.int64]
    joined_at: NDArray[np.int64]
    is_new: NDArray[np.bool_]
    #: lists through places: by step of the last token, by step modulo page, by age (the youngest first); a row of
    #: heads for each group
    finish_next: NDArray[np.int64]
    finish_before: NDArray[np.int64]
    page_next: NDArray[np.int64]
    page_before: NDArray[np.int64]
    older: NDArray[np.int64]
    younger: NDArray[np.int64]
    finish_first: NDArray[np.int64]
    page_first: NDArray[np.int64]
    youngest: NDArray[np.int64]
    free: NDArray[np.int64]
    new: NDArray[np.int64]
    joined: NDArray[np.int64]
    #: tokens by the time since the one before, below each edge
    gap_edges_s: NDArray[np.float64]
    gap_counts: NDArray[np.int64]
    sample: NDArray[np.float64]


def _link(first, following, before, at, place):
    """Put `place` at the head of list `at`."""
    head = first[at]
    following[place], before[place] = head, NONE
    if head != NONE:
        before[head] = place
    first[at] = place


def _unlink(first, following, before, at, place):
    """Take `place` out of list `at`."""
    after, prior = following[place], before[place]
    if prior == NONE:
        first[at] = after
    else:
        following[prior] = after
    if after != NONE:
        before[after] = prior


def _count_gap(s, gap_s, n_tokens):
    """`n_tokens` tokens came `gap_s` after the one before of the same answer."""
    s.gap_counts[np.searchsorted(s.gap_edges_s, gap_s)] += n_tokens
    s.f[GAPS_S] += gap_s * n_tokens
    s.f[LONGEST_GAP] = max(s.f[LONGEST_GAP], gap_s)


def _admit(s, g):
    """Give the first request in line a place in group `g` and memory for its prompt, or all it will need; NONE if there
    is none.

    Paged admission leaves the watermark free, as vLLM does, unless nothing runs: what runs needs room to grow.
    """
    i, own, rule = s.i, s.group[g], s.rule
    if own[N_FREE] == 0 or i[N_RUNNING] == rule[MAX_BATCH]:
        return NONE
    if i[N_AGAIN] > 0:
        request = s.again[i[N_AGAIN] - 1]
    elif i[NEXT_FRESH] < i[NOW_ARRIVED]:
        request = i[NEXT_FRESH]
    else:
        return NONE
    tokens = s.input_tokens[request] + s.generated[request]
    room = rule[CAPACITY] - own[HELD]
    pages = (tokens + rule[PAGE] - 1) // rule[PAGE]
    if rule[ADMISSION] == RESERVE:
        pages = s.largest_pages[request]
    elif own[N_FREE] < rule[PLACES]:
        room -= rule[WATERMARK]
    if s.held[pages] > room:
        return NONE
    if i[N_AGAIN] > 0:
        i[N_AGAIN] -= 1
    else:
        i[NEXT_FRESH] += 1
        s.start_s[request] = s.f[NOW]
        if i[NEXT_FRESH] == len(s.arrival_s):
            s.f[FULL_AT], i[FULL_TOKENS], i[FULL_DONE] = s.f[NOW], i[TOKENS], i[N_DONE]
    own[N_FREE] -= 1
    place = s.free[g, own[N_FREE]]
    s.request[place], s.pages[place] = request, pages
    _hold(s, g, s.held[pages])
    i[N_RUNNING] += 1
    i[PEAK_RUNNING] = max(i[PEAK_RUNNING], i[N_RUNNING])
    _link(s.youngest[g], s.older, s.younger, 0, place)
    return place


def _hold(s, g, n_bits):
    """Memory of group `g` that is taken, or given back."""
    own = s.group[g]
    own[HELD] += n_bits
    s.i[USED] += n_bits
    s.i[PEAK_USED] = max(s.i[PEAK_USED], own[HELD])


def _release(s, g, place):
    """Take the memory and the place back."""
    own = s.group[g]
    _hold(s, g, -s.held[s.pages[place]])
    s.free[g, own[N_FREE]] = place
    own[N_FREE] += 1
    s.i[N_RUNNING] -= 1
    _unlink(s.youngest[g], s.older, s.younger, 0, place)


def _join(s, g, place):
    """A prompt is done: its first token is known, and from the next step on its request decodes."""
    own = s.group[g]
    request = s.request[place]
    context = s.input_tokens[request] + s.generated[request]
    s.offset[place], s.joined_at[place], s.is_new[place] = context - own[STEP], own[STEP], True
    if s.first_s[request] == 0.0:  # one sent back before it decoded keeps its first token
        s.first_s[request] = s.last_s[request] = s.f[NOW]
    s.new[g, own[N_NEW]] = place
    own[N_NEW] += 1
    own[N_DECODING] += 1
    own[N_LIVE] += 1
    own[CONTEXT] += context
    ring = s.finish_first[g]
    last = own[STEP] + s.output_tokens[request] - s.generated[request]
    _link(ring, s.finish_next, s.finish_before, last % len(ring), place)
    if s.rule[ADMISSION] == PAGED:
        _link(s.page_first[g], s.page_next, s.page_before, (-s.offset[place]) % s.rule[PAGE], place)


def _leave(s, g, place):
    """A request decodes no more: it is done, or sent back."""
    request, ring = s.request[place], s.finish_first[g]
    last = s.joined_at[place] + s.output_tokens[request] - s.generated[request]
    _unlink(ring, s.finish_next, s.finish_before, last % len(ring), place)
    if s.rule[ADMISSION] == PAGED:
        _unlink(s.page_first[g], s.page_next, s.page_before, (-s.offset[place]) % s.rule[PAGE], place)
    s.group[g, N_LIVE] -= 1


def _preempt_youngest(s, g):
    """Send the youngest of a group back to the head of the line; it keeps its tokens and will compute their keys and
    values."""
    i, own = s.i, s.group[g]
    place = s.youngest[g, 0]
    request = s.request[place]
    if place == own[PARTIAL]:
        own[PARTIAL] = NONE
    else:
        _leave(s, g, place)
        own[N_DECODING] -= 1
        own[CONTEXT] -= s.offset[place] + own[STEP]
        if not s.is_new[place]:
            s.last_s[request] = s.group_s[g, LAST_DECODE]
        s.is_new[place] = False
        s.generated[request] += own[STEP] - s.joined_at[place]
    _release(s, g, place)
    s.again[i[N_AGAIN]] = request
    i[N_AGAIN] += 1
    i[N_PREEMPTED] += 1


def _grow(s, g):
    """Give a page to all whose next token starts one; True where others had to be sent back for it."""
    own, rule = s.group[g], s.rule
    sent_back = False
    while True:
        need = 0
        place = s.page_first[g, own[STEP] % rule[PAGE]]
        while place != NONE:
            need += s.held[s.pages[place] + 1] - s.held[s.pages[place]]
            place = s.page_next[place]
        if own[HELD] + need <= rule[CAPACITY]:
            break
        _preempt_youngest(s, g)
        sent_back = True
    place = s.page_first[g, own[STEP] % rule[PAGE]]
    while place != NONE:
        s.pages[place] += 1
        place = s.page_next[place]
    _hold(s, g, need)
    return sent_back


def _next_group(s):
    """The group that the next request goes to: of those that are open the one with most free places; NONE if there is
    none."""
    found = NONE
    for g in range(len(s.group)):
        own = s.group[g]
        if own[IS_CLOSED] == 0 and (found == NONE or own[N_FREE] > s.group[found, N_FREE]):
            found = g
    return found


def _join_after(s, g, place):
    """The prompt at `place` is done when the step is."""
    own = s.group[g]
    s.joined[g, own[N_JOINED]] = place
    own[N_JOINED] += 1


def _whole_prompts(s, tables):
    """Admit requests whose prompts are computed whole, those of a group together."""
    i, rule = s.i, s.rule
    while True:
        g = _next_group(s)
        if g == NONE:
            return
        own = s.group[g]
        n_tokens = own[PART_TOKENS]
        if n_tokens:  # would the next one fit into the step?
            request = s.again[i[N_AGAIN] - 1] if i[N_AGAIN] > 0 else i[NEXT_FRESH]
            if request >= i[NOW_ARRIVED]:
                return
            if n_tokens + s.input_tokens[request] + s.generated[request] > rule[PROMPT_STEP]:
                own[IS_CLOSED] = 1
                continue
        place = _admit(s, g)
        if place == NONE:
            own[IS_CLOSED] = 1
            continue
        tokens = s.input_tokens[s.request[place]] + s.generated[s.request[place]]
        own[PART_TOKENS] += tokens
        s.group_s[g, PART_S] += tables.prompt_s[tokens]
        _join_after(s, g, place)
        if own[PART_TOKENS] >= rule[PROMPT_STEP]:
            own[IS_CLOSED] = 1


def _part_of_prompt(s, g, tables):
    """Fill the step of a group with the prompt that it has begun."""
    own = s.group[g]
    place, done = own[PARTIAL], own[PARTIAL_DONE]
    tokens = s.input_tokens[s.request[place]] + s.generated[s.request[place]]
    left = s.rule[CHUNK] - own[N_DECODING] - own[PART_TOKENS]
    part = min(left, tokens - done)
    s.group_s[g, PART_S] += tables.prompt_s[done + part] - tables.prompt_s[done]
    own[PART_TOKENS] += part
    own[PARTIAL_DONE] = done + part
    if done + part == tokens:
        _join_after(s, g, place)
        own[PARTIAL] = NONE
    if part == left:
        own[IS_CLOSED] = 1


def _chunks(s, tables):
    """Fill the step of every group up to its tokens with parts of prompts, in line."""
    for g in range(len(s.group)):
        own = s.group[g]
        if own[N_DECODING] >= s.rule[CHUNK]:
            own[IS_CLOSED] = 1
        if own[IS_CLOSED] == 0 and own[PARTIAL] != NONE:
            _part_of_prompt(s, g, tables)
    while True:
        g = _next_group(s)
        if g == NONE:
            return
        own = s.group[g]
        own[PARTIAL], own[PARTIAL_DONE] = _admit(s, g), 0
        if own[PARTIAL] == NONE:
            own[IS_CLOSED] = 1
        else:
            _part_of_prompt(s, g, tables)


def _decoded(s, g):
    """One more token for every live sequence of a group, at `NOW`: gaps, and who is done."""
    i, f, own = s.i, s.f, s.group[g]
    n_new = 0
    for k in range(own[N_NEW]):
        place = s.new[g, k]
        if s.is_new[place]:
            s.is_new[place] = False
            n_new += 1
            _count_gap(s, f[NOW] - s.last_s[s.request[place]], 1)
    own[N_NEW] = 0
    if own[N_LIVE] > n_new:
        _count_gap(s, f[NOW] - s.group_s[g, LAST_DECODE], own[N_LIVE] - n_new)
    s.group_s[g, LAST_DECODE] = f[NOW]
    i[TOKENS] += own[N_LIVE]
    own[STEP] += 1
    ring = s.finish_first[g]
    at = own[STEP] % len(ring)
    while ring[at] != NONE:
        place = ring[at]
        s.finish_s[s.request[place]] = f[NOW]
        i[N_DONE] += 1
        if i[N_DONE] == s.rule[WARM_COUNT]:
            f[WARM_AT], i[WARM_TOKENS], i[WARM_DONE] = f[NOW], i[TOKENS], i[N_DONE]
        _leave(s, g, place)
        if s.rule[BATCHING] != STATIC:  # a static batch keeps its places, and their work, until all are done
            own[N_DECODING] -= 1
            own[CONTEXT] -= s.offset[place] + own[STEP]
            _release(s, g, place)
    if s.rule[BATCHING] == STATIC and own[N_LIVE] == 0:
        while s.youngest[g, 0] != NONE:
            _release(s, g, s.youngest[g, 0])
        own[N_DECODING], own[CONTEXT], own[IS_OPEN] = 0, 0, 1


def _take_sample(s):
    """Remember what runs; where there is no room, every second sample goes and samples are taken half as often."""
    i = s.i
    if i[N_STEPS] % i[SAMPLE_EVERY]:
        return
    if i[N_SAMPLES] == s.sample.shape[1]:
        i[N_SAMPLES] //= 2
        i[SAMPLE_EVERY] *= 2
        for row in range(N_SAMPLE_ROWS):
            for k in range(i[N_SAMPLES]):
                s.sample[row, k] = s.sample[row, 2 * k]
        if i[N_STEPS] % i[SAMPLE_EVERY]:
            return
    k = i[N_SAMPLES]
    s.sample[S_TIME, k] = s.f[NOW]
    s.sample[S_RUNNING, k] = i[N_RUNNING]
    s.sample[S_WAITING, k] = i[N_AGAIN] + i[NOW_ARRIVED] - i[NEXT_FRESH]
    s.sample[S_USED, k] = i[USED]
    s.sample[S_TOKENS, k] = i[TOKENS]
    i[N_SAMPLES] += 1


def _plan_step(s, tables):
    """What each group does in this step: prompts, parts of them, a token for each that decodes."""
    rule = s.rule
    is_paged, is_chunked = rule[ADMISSION] == PAGED, rule[BATCHING] == CHUNKED
    for g in range(len(s.group)):
        own = s.group[g]
        own[PART_TOKENS], s.group_s[g, PART_S] = 0, 0.0
        own[DECODES] = 1 if own[N_DECODING] > 0 else 0
        own[IS_CLOSED] = 0 if is_chunked or own[IS_OPEN] else 1
        if is_chunked and is_paged and own[DECODES] and _grow(s, g):
            own[IS_CLOSED] = 1
    if is_chunked:
        _chunks(s, tables)
        return
    _whole_prompts(s, tables)
    for g in range(len(s.group)):
        own = s.group[g]
        if own[PART_TOKENS]:
            own[DECODES] = 0
        elif rule[BATCHING] == STATIC:
            own[IS_OPEN] = 0
        if is_paged and own[DECODES]:
            _grow(s, g)


def _step_s(s, tables):
    """Seconds of the step: products of all groups, and the rest of the one that takes longest."""
    n_tokens, most = 0, 0
    for g in range(len(s.group)):
        own = s.group[g]
        tokens = own[PART_TOKENS] + (own[N_DECODING] if own[DECODES] else 0)
        n_tokens += tokens
        most = max(most, tokens)
    mean = -(-n_tokens // len(s.group))
    products_s = tables.matrix_s[mean]
    if most > mean:
        products_s += tables.own_s[most] - tables.own_s[mean]
    longest_s = 0.0
    for g in range(len(s.group)):
        own = s.group[g]
        seconds = products_s + s.group_s[g, PART_S]
        if own[DECODES]:
            own[CONTEXT] += own[N_LIVE]
            seconds += attention_s(tables, own[N_DECODING], own[CONTEXT])
        longest_s = max(longest_s, seconds)
    return longest_s


def run(s, tables, max_steps):
    """Run at most `max_steps` steps from where the state stands. True when every request is done."""
    i, f = s.i, s.f
    n_requests, n_groups = len(s.arrival_s), len(s.group)
    for _ in range(max_steps):
        if i[N_DONE] == n_requests:
            return True
        while i[NOW_ARRIVED] < n_requests and s.arrival_s[i[NOW_ARRIVED]] <= f[NOW]:
            i[NOW_ARRIVED] += 1
        if i[N_RUNNING] == 0 and i[N_AGAIN] == 0 and i[NEXT_FRESH] == i[NOW_ARRIVED]:
            f[NOW] = s.arrival_s[i[NEXT_FRESH]]  # nothing to do: wait for the next one
            continue
        _plan_step(s, tables)
        _take_sample(s)
        seconds = _step_s(s, tables)
        f[NOW] += seconds
        f[BUSY] += seconds
        f[RUNNING_S] += seconds * i[N_RUNNING]
        f[USED_S] += seconds * i[USED]
        i[N_STEPS] += 1
        n_tokens, n_decoding, prompt_s = 0, 0, 0.0
        for g in range(n_groups):
            own = s.group[g]
            n_tokens += own[PART_TOKENS]
            n_decoding += own[DECODES]
            prompt_s = max(prompt_s, s.group_s[g, PART_S])
            if own[DECODES]:
                _decoded(s, g)
            for k in range(own[N_JOINED]):
                _join(s, g, s.joined[g, k])
            own[N_JOINED] = 0
        f[PROMPT_S] += prompt_s
        i[PROMPT_TOKENS] += n_tokens
        i[N_PROMPT_STEPS] += 1 if n_tokens else 0
        i[N_DECODE_STEPS] += 1 if n_decoding else 0
    return i[N_DONE] == n_requests


@cache
def compiled() -> Callable[[State, StepTables, int], bool]:
    """`run` as machine code, kept on disk between runs where that is safe; some seconds the first time.

    Nothing in it makes an array, so nobody counts who holds those of the state, and its functions are merged into one:
    a call would pass every array anew. Together that is ten times as fast.
    """
    from numba.extending import register_jitable

    from kernels_ref import sequential

    helpers = (
        attention_s,
        _link,
        _unlink,
        _count_gap,
        _hold,
        _admit,
        _release,
        _join,
        _leave,
        _preempt_youngest,
        _grow,
        _next_group,
        _join_after,
        _whole_prompts,
        _part_of_prompt,
        _chunks,
        _decoded,
        _take_sample,
        _plan_step,
        _step_s,
    )
    for function in helpers:
        register_jitable(error_model="numpy", forceinline=True, _nrt=False)(function)
    files = tuple(Path(function.__code__.co_filename) for function in (run, attention_s))
    return sequential(run, allocates=False, sources=files)
