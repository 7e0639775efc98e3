"""The serving loop, step by step, on plain arrays: runs as Python or compiled, with the same numbers.

A step is what the device does at once: whole prompts, one token for every running sequence, or both. Between steps,
requests arrive, are admitted, finish and are sent back. All that happens to a step is found without looking at every
sequence: who finishes at it and who needs a page at it stand in lists kept by step number.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse.serving.step_times import Tables, attention_s

STATIC, CONTINUOUS, CHUNKED = 0, 1, 2
RESERVE, PAGED = 0, 1
#: no link in a list, no request in a place
NONE = -1

# places in State.i: whole numbers that change
(
    NOW_ARRIVED, NEXT_FRESH, N_AGAIN, N_DECODING, N_LIVE, CONTEXT, USED, STEP, N_DONE, TOKENS, PROMPT_TOKENS,
    N_PREEMPTED, PARTIAL, PARTIAL_DONE, N_FREE, N_NEW, N_JOINED, IS_OPEN, N_SAMPLES, SAMPLE_EVERY, N_STEPS,
    N_PROMPT_STEPS, PEAK_USED, PEAK_RUNNING, WARM_TOKENS, WARM_DONE, FULL_TOKENS, FULL_DONE, N_I,
) = range(29)  # fmt: skip
# places in State.f: seconds
NOW, LAST_DECODE, BUSY, RUNNING_S, USED_S, PROMPT_S, GAPS_S, LONGEST_GAP, WARM_AT, FULL_AT, N_F = range(11)
# places in State.rule: what does not change
BATCHING, ADMISSION, MAX_BATCH, CHUNK, PAGE, CAPACITY, WATERMARK, WARM_COUNT, PROMPT_STEP, N_RULE = range(10)
# rows of State.sample
S_TIME, S_RUNNING, S_WAITING, S_USED, S_TOKENS, N_SAMPLE_ROWS = range(6)


class State(NamedTuple):
    """All that a run knows. Arrays over requests, over places of the running batch, and over steps (rings)."""

    rule: NDArray[np.int64]
    i: NDArray[np.int64]
    f: NDArray[np.float64]
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
    #: lists through places: by step of the last token, by step modulo page, by age (the youngest first)
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


def _admit(s):
    """Give the first request in line a place and memory for its prompt, or all it will need; NONE if there is none.

    Paged admission leaves the watermark free, as vLLM does, unless nothing runs: what runs needs room to grow.
    """
    i, rule = s.i, s.rule
    if i[N_FREE] == 0:
        return NONE
    if i[N_AGAIN] > 0:
        request = s.again[i[N_AGAIN] - 1]
    elif i[NEXT_FRESH] < i[NOW_ARRIVED]:
        request = i[NEXT_FRESH]
    else:
        return NONE
    tokens = s.input_tokens[request] + s.generated[request]
    room = rule[CAPACITY] - i[USED]
    pages = (tokens + rule[PAGE] - 1) // rule[PAGE]
    if rule[ADMISSION] == RESERVE:
        pages = s.largest_pages[request]
    elif i[N_FREE] < rule[MAX_BATCH]:
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
    i[N_FREE] -= 1
    place = s.free[i[N_FREE]]
    s.request[place], s.pages[place] = request, pages
    i[USED] += s.held[pages]
    i[PEAK_USED] = max(i[PEAK_USED], i[USED])
    i[PEAK_RUNNING] = max(i[PEAK_RUNNING], rule[MAX_BATCH] - i[N_FREE])
    _link(s.youngest, s.older, s.younger, 0, place)
    return place


def _release(s, place):
    """Take the memory and the place back."""
    i = s.i
    i[USED] -= s.held[s.pages[place]]
    s.free[i[N_FREE]] = place
    i[N_FREE] += 1
    _unlink(s.youngest, s.older, s.younger, 0, place)


def _join(s, place):
    """A prompt is done: its first token is known, and from the next step on its request decodes."""
    i = s.i
    request = s.request[place]
    context = s.input_tokens[request] + s.generated[request]
    s.offset[place], s.joined_at[place], s.is_new[place] = context - i[STEP], i[STEP], True
    if s.first_s[request] == 0.0:  # one sent back before it decoded keeps its first token
        s.first_s[request] = s.last_s[request] = s.f[NOW]
    s.new[i[N_NEW]] = place
    i[N_NEW] += 1
    i[N_DECODING] += 1
    i[N_LIVE] += 1
    i[CONTEXT] += context
    last = i[STEP] + s.output_tokens[request] - s.generated[request]
    _link(s.finish_first, s.finish_next, s.finish_before, last % len(s.finish_first), place)
    if s.rule[ADMISSION] == PAGED:
        _link(s.page_first, s.page_next, s.page_before, (-s.offset[place]) % s.rule[PAGE], place)


def _leave(s, place):
    """A request decodes no more: it is done, or sent back."""
    i = s.i
    request = s.request[place]
    last = s.joined_at[place] + s.output_tokens[request] - s.generated[request]
    _unlink(s.finish_first, s.finish_next, s.finish_before, last % len(s.finish_first), place)
    if s.rule[ADMISSION] == PAGED:
        _unlink(s.page_first, s.page_next, s.page_before, (-s.offset[place]) % s.rule[PAGE], place)
    i[N_LIVE] -= 1


def _preempt_youngest(s):
    """Send the youngest back to the head of the line; it keeps its tokens and will compute their keys and values."""
    i = s.i
    place = s.youngest[0]
    request = s.request[place]
    if place == i[PARTIAL]:
        i[PARTIAL] = NONE
    else:
        _leave(s, place)
        i[N_DECODING] -= 1
        i[CONTEXT] -= s.offset[place] + i[STEP]
        if not s.is_new[place]:
            s.last_s[request] = s.f[LAST_DECODE]
        s.is_new[place] = False
        s.generated[request] += i[STEP] - s.joined_at[place]
    _release(s, place)
    s.again[i[N_AGAIN]] = request
    i[N_AGAIN] += 1
    i[N_PREEMPTED] += 1


def _grow(s):
    """Give a page to all whose next token starts one; True where others had to be sent back for it."""
    i, rule = s.i, s.rule
    sent_back = False
    while True:
        need = 0
        place = s.page_first[i[STEP] % rule[PAGE]]
        while place != NONE:
            need += s.held[s.pages[place] + 1] - s.held[s.pages[place]]
            place = s.page_next[place]
        if i[USED] + need <= rule[CAPACITY]:
            break
        _preempt_youngest(s)
        sent_back = True
    place = s.page_first[i[STEP] % rule[PAGE]]
    while place != NONE:
        s.pages[place] += 1
        place = s.page_next[place]
    i[USED] += need
    i[PEAK_USED] = max(i[PEAK_USED], i[USED])
    return sent_back


def _whole_prompts(s, tables):
    """Admit requests whose prompts are computed whole, together. Returns (their tokens, seconds of their attention)."""
    i = s.i
    n_tokens, seconds = 0, 0.0
    while n_tokens < s.rule[PROMPT_STEP]:
        if n_tokens:  # would the next one fit into the step?
            request = s.again[i[N_AGAIN] - 1] if i[N_AGAIN] > 0 else i[NEXT_FRESH]
            if request >= i[NOW_ARRIVED]:
                break
            if n_tokens + s.input_tokens[request] + s.generated[request] > s.rule[PROMPT_STEP]:
                break
        place = _admit(s)
        if place == NONE:
            break
        tokens = s.input_tokens[s.request[place]] + s.generated[s.request[place]]
        n_tokens += tokens
        seconds += tables.prompt_s[tokens]
        s.joined[i[N_JOINED]] = place
        i[N_JOINED] += 1
    return n_tokens, seconds


def _chunks(s, tables):
    """Fill the step up to its tokens with parts of prompts, in line. Returns (tokens, seconds of their attention)."""
    i = s.i
    left = s.rule[CHUNK] - i[N_DECODING]
    n_tokens, seconds = 0, 0.0
    while left > 0:
        if i[PARTIAL] == NONE:
            i[PARTIAL], i[PARTIAL_DONE] = _admit(s), 0
            if i[PARTIAL] == NONE:
                break
        place = i[PARTIAL]
        tokens = s.input_tokens[s.request[place]] + s.generated[s.request[place]]
        done = i[PARTIAL_DONE]
        part = min(left, tokens - done)
        seconds += tables.prompt_s[done + part] - tables.prompt_s[done]
        left -= part
        n_tokens += part
        i[PARTIAL_DONE] = done + part
        if done + part == tokens:
            s.joined[i[N_JOINED]] = place
            i[N_JOINED] += 1
            i[PARTIAL] = NONE
    return n_tokens, seconds


def _decoded(s):
    """One more token for every live sequence, at `NOW`: gaps, and who is done."""
    i, f = s.i, s.f
    n_new = 0
    for k in range(i[N_NEW]):
        place = s.new[k]
        if s.is_new[place]:
            s.is_new[place] = False
            n_new += 1
            _count_gap(s, f[NOW] - s.last_s[s.request[place]], 1)
    i[N_NEW] = 0
    if i[N_LIVE] > n_new:
        _count_gap(s, f[NOW] - f[LAST_DECODE], i[N_LIVE] - n_new)
    f[LAST_DECODE] = f[NOW]
    i[TOKENS] += i[N_LIVE]
    i[STEP] += 1
    ring = i[STEP] % len(s.finish_first)
    while s.finish_first[ring] != NONE:
        place = s.finish_first[ring]
        s.finish_s[s.request[place]] = f[NOW]
        i[N_DONE] += 1
        if i[N_DONE] == s.rule[WARM_COUNT]:
            f[WARM_AT], i[WARM_TOKENS], i[WARM_DONE] = f[NOW], i[TOKENS], i[N_DONE]
        _leave(s, place)
        if s.rule[BATCHING] != STATIC:  # a static batch keeps its places, and their work, until all are done
            i[N_DECODING] -= 1
            i[CONTEXT] -= s.offset[place] + i[STEP]
            _release(s, place)
    if s.rule[BATCHING] == STATIC and i[N_LIVE] == 0:
        while s.youngest[0] != NONE:
            _release(s, s.youngest[0])
        i[N_DECODING], i[CONTEXT], i[IS_OPEN] = 0, 0, 1


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
    s.sample[S_RUNNING, k] = s.rule[MAX_BATCH] - i[N_FREE]
    s.sample[S_WAITING, k] = i[N_AGAIN] + i[NOW_ARRIVED] - i[NEXT_FRESH]
    s.sample[S_USED, k] = i[USED]
    s.sample[S_TOKENS, k] = i[TOKENS]
    i[N_SAMPLES] += 1


def run(s, tables, max_steps):
    """Run at most `max_steps` steps from where the state stands. True when every request is done."""
    i, f, rule = s.i, s.f, s.rule
    n_requests = len(s.arrival_s)
    for _ in range(max_steps):
        if i[N_DONE] == n_requests:
            return True
        while i[NOW_ARRIVED] < n_requests and s.arrival_s[i[NOW_ARRIVED]] <= f[NOW]:
            i[NOW_ARRIVED] += 1
        if i[N_FREE] == rule[MAX_BATCH] and i[N_AGAIN] == 0 and i[NEXT_FRESH] == i[NOW_ARRIVED]:
            f[NOW] = s.arrival_s[i[NEXT_FRESH]]  # nothing to do: wait for the next one
            continue
        n_tokens, prompt_s = 0, 0.0
        decodes = i[N_DECODING] > 0
        if rule[BATCHING] == CHUNKED:
            if not (rule[ADMISSION] == PAGED and decodes and _grow(s)):
                n_tokens, prompt_s = _chunks(s, tables)
        else:
            if i[IS_OPEN]:
                n_tokens, prompt_s = _whole_prompts(s, tables)
                if rule[BATCHING] == STATIC and n_tokens == 0:
                    i[IS_OPEN] = 0
            decodes = decodes and n_tokens == 0
            if rule[ADMISSION] == PAGED and decodes:
                _grow(s)
        _take_sample(s)
        seconds = tables.matrix_s[n_tokens + (i[N_DECODING] if decodes else 0)] + prompt_s
        if decodes:
            i[CONTEXT] += i[N_LIVE]
            seconds += attention_s(tables, i[N_DECODING], i[CONTEXT])
        f[NOW] += seconds
        f[BUSY] += seconds
        f[RUNNING_S] += seconds * (rule[MAX_BATCH] - i[N_FREE])
        f[USED_S] += seconds * i[USED]
        f[PROMPT_S] += prompt_s
        i[N_STEPS] += 1
        i[PROMPT_TOKENS] += n_tokens
        if n_tokens:
            i[N_PROMPT_STEPS] += 1
        if decodes:
            _decoded(s)
        for k in range(i[N_JOINED]):
            _join(s, s.joined[k])
        i[N_JOINED] = 0
    return i[N_DONE] == n_requests


@cache
def compiled() -> Callable[[State, Tables, int], bool]:
    """`run` as machine code, kept on disk between runs where that is safe; some seconds the first time.

    Nothing in it makes an array, so nobody counts who holds those of the state, and its functions are merged into one:
    a call would pass every array anew. Together that is ten times as fast.
    """
    from numba.extending import register_jitable

    from kernels_ref import sequential

    helpers = (
        attention_s, _link, _unlink, _count_gap, _admit, _release, _join, _leave, _preempt_youngest, _grow,
        _whole_prompts, _chunks, _decoded, _take_sample,
    )  # fmt: skip
    for function in helpers:
        register_jitable(error_model="numpy", forceinline=True, _nrt=False)(function)
    return sequential(run, allocates=False)
