"""The serving loop, step by step, on plain arrays: runs as Python or compiled, with the same numbers.

A step is what the device does at once: whole prompts, one token for every running sequence, or both. Between steps,
requests arrive, are admitted, finish and are sent back. All that happens to a step is found without looking at every
sequence: who finishes at it and who needs a page at it stand in lists kept by step number.

Groups of requests (`--dp-attention`) have places, memory, prompts and decode steps of their own; all wait for the one
that takes longest, and the next request goes to the group that has fewest.

What requests leave of their prompts stays in a radix tree of blocks (`dse.serving.prefix_tree`), one a group, until
its memory is wanted: the blocks used longest ago go first, the ends of prompts before their beginnings, to host memory
where there is some. A prompt is computed from the first block that neither holds.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse.serving.step_times import PROMPT, Asked, StepTables, asked_s, between_contexts

STATIC, CONTINUOUS, CHUNKED = 0, 1, 2
RESERVE, PAGED = 0, 1
#: no link in a list, no request in a place
NONE = -1


class Counts(NamedTuple):
    """Columns of `State.i`: whole numbers that change."""

    now_arrived: int
    next_fresh: int
    n_again: int
    n_running: int
    used: int
    n_done: int
    tokens: int
    prompt_tokens: int
    n_preempted: int
    n_samples: int
    sample_every: int
    n_steps: int
    n_decode_steps: int
    n_prompt_steps: int
    peak_used: int
    peak_running: int
    warm_tokens: int
    warm_done: int
    full_tokens: int
    full_done: int
    cached: int


class GroupColumns(NamedTuple):
    """Columns of `State.group`: whole numbers of one group; what it does in this step last."""

    n_decoding: int
    n_live: int
    context: int
    held: int
    step: int
    partial: int
    partial_done: int
    n_free: int
    n_new: int
    n_joined: int
    is_open: int
    part_tokens: int
    decodes: int
    is_closed: int
    cached: int
    in_host: int


class Clocks(NamedTuple):
    """Columns of `State.f`: seconds."""

    now: int
    busy: int
    running_s: int
    used_s: int
    prompt_s: int
    gaps_s: int
    longest_gap: int
    warm_at: int
    full_at: int
    #: `running_s` at both
    warm_running: int
    full_running: int


class GroupTimes(NamedTuple):
    """Columns of `State.group_s`: seconds of one group; of this step's parts of prompts as `step_times.OfPrompt`."""

    last_decode: int
    attention: int
    packing: int
    engine: int
    launch: int
    load_s: int


class RuleColumns(NamedTuple):
    """Columns of `State.rule`, which does not change; places, prompt tokens and memory are those of a group."""

    batching: int
    admission: int
    max_batch: int
    step_tokens: int
    page: int
    capacity: int
    watermark: int
    warm_count: int
    places: int
    page_size: int
    host_capacity: int
    loads_beside: int


class Samples(NamedTuple):
    """Rows of `State.sample`."""

    time: int
    running: int
    waiting: int
    used: int
    tokens: int
    cached: int


COUNT = Counts._make(range(len(Counts._fields)))
GROUP = GroupColumns._make(range(len(GroupColumns._fields)))
CLOCK = Clocks._make(range(len(Clocks._fields)))
GROUP_TIME = GroupTimes._make(range(len(GroupTimes._fields)))
RULE = RuleColumns._make(range(len(RuleColumns._fields)))
SAMPLE = Samples._make(range(len(Samples._fields)))


class State(NamedTuple):
    """All that a run knows. Arrays over requests, over places of the running batch, and over groups and steps (rings).

    The places of group g are g * RULE.places and the following.
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
    #: prompts in blocks: request r is the path of nodes from node_first[r] on; of a node its pages, and where it ends
    node_first: NDArray[np.int64]
    nodes: NDArray[np.int64]
    node_pages: NDArray[np.int64]
    node_end: NDArray[np.int64]
    #: a row for each group: how many requests use a node, NONE where the device does not hold it; whether host memory
    #: does; rings through those that nobody uses, and through those of the host, from the one used longest ago to the
    #: latest, opened and closed by one entry more
    users: NDArray[np.int64]
    in_host: NDArray[np.bool_]
    idle_next: NDArray[np.int64]
    idle_before: NDArray[np.int64]
    host_next: NDArray[np.int64]
    host_before: NDArray[np.int64]
    #: seconds before a load from host memory begins, and for each unit of it
    host_start_s: float
    host_unit_s: float
    #: requests: tokens found on the device and in host memory when first admitted; places: tokens found
    device_tokens: NDArray[np.int64]
    host_tokens: NDArray[np.int64]
    begun: NDArray[np.int64]
    #: tokens by the time since the one before, below each edge
    gap_edges_s: NDArray[np.float64]
    gap_counts: NDArray[np.int64]
    sample: NDArray[np.float64]


def _link(
    first: NDArray[np.int64], following: NDArray[np.int64], before: NDArray[np.int64], at: int, place: int
) -> None:
    """Put `place` at the head of list `at`."""
    head = first[at]
    following[place], before[place] = head, NONE
    if head != NONE:
        before[head] = place
    first[at] = place


def _unlink(
    first: NDArray[np.int64], following: NDArray[np.int64], before: NDArray[np.int64], at: int, place: int
) -> None:
    """Take `place` out of list `at`."""
    after, prior = following[place], before[place]
    if prior == NONE:
        first[at] = after
    else:
        following[prior] = after
    if after != NONE:
        before[after] = prior


def _put_latest(following: NDArray[np.int64], before: NDArray[np.int64], node: int) -> None:
    """Put `node` at the end of a ring."""
    end = len(following) - 1
    last = before[end]
    following[last], before[node] = node, last
    following[node], before[end] = end, node


def _take_out(following: NDArray[np.int64], before: NDArray[np.int64], node: int) -> None:
    """Take `node` out of a ring."""
    following[before[node]] = following[node]
    before[following[node]] = before[node]


def _reach(s: State, g: int, request: int) -> int:
    """Tokens of a prompt that group `g` and the host hold, up to the first block that neither does.

    The last token is computed in any case: the answer begins with what follows it.
    """
    tokens = s.input_tokens[request] + s.generated[request]
    held_tokens = 0
    for k in range(s.node_first[request], s.node_first[request + 1]):
        node = s.nodes[k]
        if s.node_end[node] >= tokens or (s.users[g, node] == NONE and not s.in_host[g, node]):
            break
        held_tokens = s.node_end[node]
    return held_tokens


def _pages_in_use(s: State, g: int, request: int) -> int:
    """Pages of a prompt that others of the group use already."""
    pages = 0
    for k in range(s.node_first[request], s.node_first[request + 1]):
        if s.users[g, s.nodes[k]] > 0:
            pages += s.node_pages[s.nodes[k]]
    return pages


def _to_host(s: State, g: int, node: int) -> None:
    """Keep a block in host memory, as the latest; what was used longest ago makes room."""
    group, size = s.group[g], s.rule[RULE.page_size]
    if s.in_host[g, node]:
        _take_out(s.host_next[g], s.host_before[g], node)
    else:
        s.in_host[g, node] = True
        group[GROUP.in_host] += size * s.node_pages[node]
    _put_latest(s.host_next[g], s.host_before[g], node)
    while group[GROUP.in_host] > s.rule[RULE.host_capacity]:
        oldest = s.host_next[g, len(s.node_pages)]
        _take_out(s.host_next[g], s.host_before[g], oldest)
        s.in_host[g, oldest] = False
        group[GROUP.in_host] -= size * s.node_pages[oldest]


def _evict(s: State, g: int) -> None:
    """Let blocks go that nobody uses, those used longest ago first, until what is held fits."""
    group = s.group[g]
    while group[GROUP.held] + group[GROUP.cached] > s.rule[RULE.capacity]:
        node = s.idle_next[g, len(s.node_pages)]
        _take_out(s.idle_next[g], s.idle_before[g], node)
        s.users[g, node] = NONE
        _keep(s, g, -s.node_pages[node])
        if s.rule[RULE.host_capacity] > 0:
            _to_host(s, g, node)


def _keep(s: State, g: int, n_pages: int) -> None:
    """Pages that nobody uses: kept from now on, or given up."""
    s.group[g, GROUP.cached] += s.rule[RULE.page_size] * n_pages
    s.i[COUNT.cached] += s.rule[RULE.page_size] * n_pages


def _share(s: State, g: int, place: int) -> None:
    """Use what the group and the host hold of a prompt, and let others use what it will compute."""
    request, first = s.request[place], s.node_first[s.request[place]]
    held_tokens = _reach(s, g, request)
    on_device, load = 0, 0
    for k in range(s.node_first[request + 1] - 1, first - 1, -1):  # beginnings stay longer than ends
        node = s.nodes[k]
        is_found = s.node_end[node] <= held_tokens
        if s.users[g, node] == NONE:
            s.users[g, node] = 0
            if is_found:
                load += s.rule[RULE.page_size] * s.node_pages[node]
                _to_host(s, g, node)
        else:
            if is_found:
                on_device = max(on_device, s.node_end[node])
            if s.users[g, node] == 0:
                _take_out(s.idle_next[g], s.idle_before[g], node)
                _keep(s, g, -s.node_pages[node])
        s.users[g, node] += 1
    s.begun[place] = held_tokens
    if load > 0:
        s.group_s[g, GROUP_TIME.load_s] += s.host_start_s + s.host_unit_s * load
    if s.device_tokens[request] == NONE:  # admitted for the first time
        s.device_tokens[request], s.host_tokens[request] = on_device, held_tokens - on_device


def _count_gap(s: State, gap_s: float, n_tokens: int) -> None:
    """`n_tokens` tokens came `gap_s` after the one before of the same answer."""
    s.gap_counts[np.searchsorted(s.gap_edges_s, gap_s)] += n_tokens
    s.f[CLOCK.gaps_s] += gap_s * n_tokens
    s.f[CLOCK.longest_gap] = max(s.f[CLOCK.longest_gap], gap_s)


def _admit(s: State, g: int) -> int:
    """Give the first request in line a place in group `g` and memory for its prompt, or all it will need; NONE if there
    is none.

    Paged admission leaves the watermark free, as vLLM does, unless nothing runs: what runs needs room to grow.
    """
    i, group, rule = s.i, s.group[g], s.rule
    if group[GROUP.n_free] == 0 or i[COUNT.n_running] == rule[RULE.max_batch]:
        return NONE
    if i[COUNT.n_again] > 0:
        request = s.again[i[COUNT.n_again] - 1]
    elif i[COUNT.next_fresh] < i[COUNT.now_arrived]:
        request = i[COUNT.next_fresh]
    else:
        return NONE
    tokens = s.input_tokens[request] + s.generated[request]
    room = rule[RULE.capacity] - group[GROUP.held]
    pages = (tokens + rule[RULE.page] - 1) // rule[RULE.page]
    if rule[RULE.admission] == RESERVE:
        pages = s.largest_pages[request]
    elif group[GROUP.n_free] < rule[RULE.places]:
        room -= rule[RULE.watermark]
    size = s.held[pages] - rule[RULE.page_size] * _pages_in_use(s, g, request)
    if size > room:
        return NONE
    if i[COUNT.n_again] > 0:
        i[COUNT.n_again] -= 1
    else:
        i[COUNT.next_fresh] += 1
        s.start_s[request] = s.f[CLOCK.now]
        if i[COUNT.next_fresh] == len(s.arrival_s):
            s.f[CLOCK.full_at], i[COUNT.full_tokens], i[COUNT.full_done] = (
                s.f[CLOCK.now],
                i[COUNT.tokens],
                i[COUNT.n_done],
            )
            s.f[CLOCK.full_running] = s.f[CLOCK.running_s]
    group[GROUP.n_free] -= 1
    place = s.free[g, group[GROUP.n_free]]
    s.request[place], s.pages[place] = request, pages
    _share(s, g, place)
    _hold(s, g, size)
    _evict(s, g)
    i[COUNT.n_running] += 1
    i[COUNT.peak_running] = max(i[COUNT.peak_running], i[COUNT.n_running])
    _link(s.youngest[g], s.older, s.younger, 0, place)
    return place


def _hold(s: State, g: int, n_bits: int) -> None:
    """Memory of group `g` that is taken, or given back."""
    group = s.group[g]
    group[GROUP.held] += n_bits
    s.i[COUNT.used] += n_bits
    s.i[COUNT.peak_used] = max(s.i[COUNT.peak_used], group[GROUP.held])


def _release(s: State, g: int, place: int, n_computed: int) -> None:
    """Take the memory and the place back; of its prompt stays what is computed, or others use."""
    group, request = s.group[g], s.request[place]
    pages_used = 0
    for k in range(s.node_first[request + 1] - 1, s.node_first[request] - 1, -1):
        node = s.nodes[k]
        s.users[g, node] -= 1
        if s.users[g, node] > 0:
            pages_used += s.node_pages[node]
        elif s.node_end[node] > n_computed:
            s.users[g, node] = NONE
        else:
            _put_latest(s.idle_next[g], s.idle_before[g], node)
            _keep(s, g, s.node_pages[node])
    _hold(s, g, s.rule[RULE.page_size] * pages_used - s.held[s.pages[place]])
    s.free[g, group[GROUP.n_free]] = place
    group[GROUP.n_free] += 1
    s.i[COUNT.n_running] -= 1
    _unlink(s.youngest[g], s.older, s.younger, 0, place)


def _join(s: State, g: int, place: int) -> None:
    """A prompt is done: its first token is known, and from the next step on its request decodes."""
    group = s.group[g]
    request = s.request[place]
    context = s.input_tokens[request] + s.generated[request]
    s.offset[place], s.joined_at[place], s.is_new[place] = context - group[GROUP.step], group[GROUP.step], True
    if s.first_s[request] == 0.0:  # one sent back before it decoded keeps its first token
        s.first_s[request] = s.last_s[request] = s.f[CLOCK.now]
    s.new[g, group[GROUP.n_new]] = place
    group[GROUP.n_new] += 1
    group[GROUP.n_decoding] += 1
    group[GROUP.n_live] += 1
    group[GROUP.context] += context
    ring = s.finish_first[g]
    last = group[GROUP.step] + s.output_tokens[request] - s.generated[request]
    _link(ring, s.finish_next, s.finish_before, last % len(ring), place)
    if s.rule[RULE.admission] == PAGED:
        _link(s.page_first[g], s.page_next, s.page_before, (-s.offset[place]) % s.rule[RULE.page], place)


def _leave(s: State, g: int, place: int) -> None:
    """A request decodes no more: it is done, or sent back."""
    request, ring = s.request[place], s.finish_first[g]
    last = s.joined_at[place] + s.output_tokens[request] - s.generated[request]
    _unlink(ring, s.finish_next, s.finish_before, last % len(ring), place)
    if s.rule[RULE.admission] == PAGED:
        _unlink(s.page_first[g], s.page_next, s.page_before, (-s.offset[place]) % s.rule[RULE.page], place)
    s.group[g, GROUP.n_live] -= 1


def _preempt_youngest(s: State, g: int) -> None:
    """Send the youngest of a group back to the head of the line; it keeps its tokens and will compute their keys and
    values."""
    i, group = s.i, s.group[g]
    place = s.youngest[g, 0]
    request = s.request[place]
    n_computed = s.input_tokens[request]
    if place == group[GROUP.partial]:
        group[GROUP.partial] = NONE
        n_computed = min(group[GROUP.partial_done], n_computed)
    else:
        _leave(s, g, place)
        group[GROUP.n_decoding] -= 1
        group[GROUP.context] -= s.offset[place] + group[GROUP.step]
        if not s.is_new[place]:
            s.last_s[request] = s.group_s[g, GROUP_TIME.last_decode]
        s.is_new[place] = False
        s.generated[request] += group[GROUP.step] - s.joined_at[place]
    _release(s, g, place, n_computed)
    s.again[i[COUNT.n_again]] = request
    i[COUNT.n_again] += 1
    i[COUNT.n_preempted] += 1


def _grow(s: State, g: int) -> bool:
    """Give a page to all whose next token starts one; True where others had to be sent back for it."""
    group, rule = s.group[g], s.rule
    sent_back = False
    while True:
        need = 0
        place = s.page_first[g, group[GROUP.step] % rule[RULE.page]]
        while place != NONE:
            need += s.held[s.pages[place] + 1] - s.held[s.pages[place]]
            place = s.page_next[place]
        if group[GROUP.held] + need <= rule[RULE.capacity]:
            break
        _preempt_youngest(s, g)
        sent_back = True
    place = s.page_first[g, group[GROUP.step] % rule[RULE.page]]
    while place != NONE:
        s.pages[place] += 1
        place = s.page_next[place]
    _hold(s, g, need)
    _evict(s, g)
    return sent_back


def _next_group(s: State) -> int:
    """The group that the next request goes to: of those that are open the one with most free places; NONE if there is
    none."""
    freest = NONE
    for g in range(len(s.group)):
        group = s.group[g]
        if group[GROUP.is_closed] == 0 and (freest == NONE or group[GROUP.n_free] > s.group[freest, GROUP.n_free]):
            freest = g
    return freest


def _join_after(s: State, g: int, place: int) -> None:
    """The prompt at `place` is done when the step is."""
    group = s.group[g]
    s.joined[g, group[GROUP.n_joined]] = place
    group[GROUP.n_joined] += 1


def _add_part(s: State, g: int, tables: StepTables, first: int, last: int) -> None:
    """Tokens first + 1 .. last of a prompt are computed in this step."""
    s.group[g, GROUP.part_tokens] += last - first
    own_s, before, after = s.group_s[g], tables.prompt[first], tables.prompt[last]
    own_s[GROUP_TIME.attention] += after[PROMPT.attention] - before[PROMPT.attention]
    own_s[GROUP_TIME.packing] += after[PROMPT.packing] - before[PROMPT.packing]
    own_s[GROUP_TIME.engine] += after[PROMPT.engine] - before[PROMPT.engine]
    own_s[GROUP_TIME.launch] = max(own_s[GROUP_TIME.launch], after[PROMPT.launch])


def _whole_prompts(s: State, tables: StepTables) -> None:
    """Admit requests whose prompts are computed whole, those of a group together."""
    i, rule = s.i, s.rule
    while True:
        g = _next_group(s)
        if g == NONE:
            return
        group = s.group[g]
        n_tokens = group[GROUP.part_tokens]
        if n_tokens:  # would the next one fit into the step?
            request = s.again[i[COUNT.n_again] - 1] if i[COUNT.n_again] > 0 else i[COUNT.next_fresh]
            if request >= i[COUNT.now_arrived]:
                return
            new_tokens = s.input_tokens[request] + s.generated[request] - _reach(s, g, request)
            if n_tokens + new_tokens > rule[RULE.step_tokens]:
                group[GROUP.is_closed] = 1
                continue
        place = _admit(s, g)
        if place == NONE:
            group[GROUP.is_closed] = 1
            continue
        tokens = s.input_tokens[s.request[place]] + s.generated[s.request[place]]
        _add_part(s, g, tables, s.begun[place], tokens)
        _join_after(s, g, place)
        if group[GROUP.part_tokens] >= rule[RULE.step_tokens]:
            group[GROUP.is_closed] = 1


def _part_of_prompt(s: State, g: int, tables: StepTables) -> None:
    """Fill the step of a group with the prompt that it has begun."""
    group = s.group[g]
    place, done = group[GROUP.partial], group[GROUP.partial_done]
    tokens = s.input_tokens[s.request[place]] + s.generated[s.request[place]]
    left = s.rule[RULE.step_tokens] - group[GROUP.n_decoding] - group[GROUP.part_tokens]
    part = min(left, tokens - done)
    _add_part(s, g, tables, done, done + part)
    group[GROUP.partial_done] = done + part
    if done + part == tokens:
        _join_after(s, g, place)
        group[GROUP.partial] = NONE
    if part == left:
        group[GROUP.is_closed] = 1


def _chunks(s: State, tables: StepTables) -> None:
    """Fill the step of every group up to its tokens with parts of prompts, in line."""
    for g in range(len(s.group)):
        group = s.group[g]
        if group[GROUP.n_decoding] >= s.rule[RULE.step_tokens]:
            group[GROUP.is_closed] = 1
        if group[GROUP.is_closed] == 0 and group[GROUP.partial] != NONE:
            _part_of_prompt(s, g, tables)
    while True:
        g = _next_group(s)
        if g == NONE:
            return
        group = s.group[g]
        group[GROUP.partial] = _admit(s, g)
        if group[GROUP.partial] == NONE:
            group[GROUP.is_closed] = 1
        else:
            group[GROUP.partial_done] = s.begun[group[GROUP.partial]]
            _part_of_prompt(s, g, tables)


def _decoded(s: State, g: int) -> None:
    """One more token for every live sequence of a group, at `NOW`: gaps, and who is done."""
    i, f, group = s.i, s.f, s.group[g]
    n_new = 0
    for k in range(group[GROUP.n_new]):
        place = s.new[g, k]
        if s.is_new[place]:
            s.is_new[place] = False
            n_new += 1
            _count_gap(s, f[CLOCK.now] - s.last_s[s.request[place]], 1)
    group[GROUP.n_new] = 0
    if group[GROUP.n_live] > n_new:
        _count_gap(s, f[CLOCK.now] - s.group_s[g, GROUP_TIME.last_decode], group[GROUP.n_live] - n_new)
    s.group_s[g, GROUP_TIME.last_decode] = f[CLOCK.now]
    i[COUNT.tokens] += group[GROUP.n_live]
    group[GROUP.step] += 1
    ring = s.finish_first[g]
    at = group[GROUP.step] % len(ring)
    while ring[at] != NONE:
        place = ring[at]
        s.finish_s[s.request[place]] = f[CLOCK.now]
        i[COUNT.n_done] += 1
        if i[COUNT.n_done] == s.rule[RULE.warm_count]:
            f[CLOCK.warm_at], i[COUNT.warm_tokens], i[COUNT.warm_done] = f[CLOCK.now], i[COUNT.tokens], i[COUNT.n_done]
            f[CLOCK.warm_running] = f[CLOCK.running_s]
        _leave(s, g, place)
        if s.rule[RULE.batching] != STATIC:  # a static batch keeps its places, and their work, until all are done
            group[GROUP.n_decoding] -= 1
            group[GROUP.context] -= s.offset[place] + group[GROUP.step]
            _release(s, g, place, s.input_tokens[s.request[place]])
    if s.rule[RULE.batching] == STATIC and group[GROUP.n_live] == 0:
        while s.youngest[g, 0] != NONE:
            place = s.youngest[g, 0]
            _release(s, g, place, s.input_tokens[s.request[place]])
        group[GROUP.n_decoding], group[GROUP.context], group[GROUP.is_open] = 0, 0, 1


def _take_sample(s: State) -> None:
    """Remember what runs; where there is no room, every second sample goes and samples are taken half as often."""
    i = s.i
    if i[COUNT.n_steps] % i[COUNT.sample_every]:
        return
    if i[COUNT.n_samples] == s.sample.shape[1]:
        i[COUNT.n_samples] //= 2
        i[COUNT.sample_every] *= 2
        for row in range(len(SAMPLE)):
            for k in range(i[COUNT.n_samples]):
                s.sample[row, k] = s.sample[row, 2 * k]
        if i[COUNT.n_steps] % i[COUNT.sample_every]:
            return
    k = i[COUNT.n_samples]
    s.sample[SAMPLE.time, k] = s.f[CLOCK.now]
    s.sample[SAMPLE.running, k] = i[COUNT.n_running]
    s.sample[SAMPLE.waiting, k] = i[COUNT.n_again] + i[COUNT.now_arrived] - i[COUNT.next_fresh]
    s.sample[SAMPLE.used, k] = i[COUNT.used]
    s.sample[SAMPLE.tokens, k] = i[COUNT.tokens]
    s.sample[SAMPLE.cached, k] = i[COUNT.cached]
    i[COUNT.n_samples] += 1


def _plan_step(s: State, tables: StepTables) -> None:
    """Plan the work of each group in this step: prompts, chunks of them, a token for each decoding request."""
    rule = s.rule
    is_paged, is_chunked = rule[RULE.admission] == PAGED, rule[RULE.batching] == CHUNKED
    for g in range(len(s.group)):
        group = s.group[g]
        group[GROUP.part_tokens] = 0
        s.group_s[g, GROUP_TIME.attention :] = 0.0
        group[GROUP.decodes] = 1 if group[GROUP.n_decoding] > 0 else 0
        group[GROUP.is_closed] = 0 if is_chunked or group[GROUP.is_open] else 1
        if is_chunked and is_paged and group[GROUP.decodes] and _grow(s, g):
            group[GROUP.is_closed] = 1
    if is_chunked:
        _chunks(s, tables)
        return
    _whole_prompts(s, tables)
    for g in range(len(s.group)):
        group = s.group[g]
        if group[GROUP.part_tokens]:
            group[GROUP.decodes] = 0
        elif rule[RULE.batching] == STATIC:
            group[GROUP.is_open] = 0
        if is_paged and group[GROUP.decodes]:
            _grow(s, g)


def _step_s(s: State, tables: StepTables) -> float:
    """Seconds of the step: products of all groups, and the rest of the one that takes longest."""
    n_groups, n_prompt_tokens, n_decoding, n_ended, most = len(s.group), 0, 0, 0, 0
    for g in range(n_groups):
        group = s.group[g]
        own_decoding = group[GROUP.n_decoding] if group[GROUP.decodes] else 0
        n_prompt_tokens += group[GROUP.part_tokens]
        n_decoding += own_decoding
        n_ended += group[GROUP.n_joined]
        most = max(most, group[GROUP.part_tokens] + own_decoding)
    longest_s = 0.0
    for g in range(n_groups):
        group, own_s = s.group[g], s.group_s[g]
        own_decoding = 0
        if group[GROUP.decodes]:
            own_decoding = group[GROUP.n_decoding]
            group[GROUP.context] += group[GROUP.n_live]
        asked = Asked(
            n_tokens=-(-(n_prompt_tokens + n_decoding) // n_groups),
            n_last=-(-(n_decoding + n_ended) // n_groups),
            n_decoding=-(-n_decoding // n_groups),
            most_tokens=most,
            has_prompts=1 if n_prompt_tokens else 0,
            own_decoding=own_decoding,
            own_context=group[GROUP.context],
            n_ended=group[GROUP.n_joined],
            attention_s=own_s[GROUP_TIME.attention],
            packing_s=own_s[GROUP_TIME.packing],
            engine_s=own_s[GROUP_TIME.engine],
            launch_s=own_s[GROUP_TIME.launch],
        )
        seconds, load_s = asked_s(tables, asked), own_s[GROUP_TIME.load_s]
        seconds = max(seconds, load_s) if s.rule[RULE.loads_beside] else seconds + load_s
        longest_s = max(longest_s, seconds)
    return longest_s


def run(s: State, tables: StepTables, max_steps: int) -> bool:
    """Run at most `max_steps` steps from where the state stands. True when every request is done."""
    i, f = s.i, s.f
    n_requests, n_groups = len(s.arrival_s), len(s.group)
    for _ in range(max_steps):
        if i[COUNT.n_done] == n_requests:
            return True
        while i[COUNT.now_arrived] < n_requests and s.arrival_s[i[COUNT.now_arrived]] <= f[CLOCK.now]:
            i[COUNT.now_arrived] += 1
        if i[COUNT.n_running] == 0 and i[COUNT.n_again] == 0 and i[COUNT.next_fresh] == i[COUNT.now_arrived]:
            f[CLOCK.now] = s.arrival_s[i[COUNT.next_fresh]]  # nothing to do: wait for the next one
            continue
        _plan_step(s, tables)
        _take_sample(s)
        seconds = _step_s(s, tables)
        f[CLOCK.now] += seconds
        f[CLOCK.busy] += seconds
        f[CLOCK.running_s] += seconds * i[COUNT.n_running]
        f[CLOCK.used_s] += seconds * i[COUNT.used]
        i[COUNT.n_steps] += 1
        n_tokens, n_decoding = 0, 0
        prompt_s = 0.0
        for g in range(n_groups):
            group = s.group[g]
            n_tokens += group[GROUP.part_tokens]
            n_decoding += group[GROUP.decodes]
            prompt_s = max(prompt_s, s.group_s[g, GROUP_TIME.attention])
            if group[GROUP.decodes]:
                _decoded(s, g)
            for k in range(group[GROUP.n_joined]):
                _join(s, g, s.joined[g, k])
            group[GROUP.n_joined] = 0
        f[CLOCK.prompt_s] += prompt_s
        i[COUNT.prompt_tokens] += n_tokens
        i[COUNT.n_prompt_steps] += 1 if n_tokens else 0
        i[COUNT.n_decode_steps] += 1 if n_decoding else 0
    return i[COUNT.n_done] == n_requests


@cache
def compiled() -> Callable[[State, StepTables, int], bool]:
    """`run` as machine code, kept on disk between runs where that is safe; some seconds the first time.

    Nothing in it makes an array, so nobody counts who holds those of the state, and its functions are merged into one:
    a call would pass every array anew. Together that is ten times as fast.
    """
    from numba.extending import register_jitable

    from dse.core import compiling
    from kernels_ref import sequential

    compiling.registered()
    helpers = (
        between_contexts,
        asked_s,
        _link,
        _unlink,
        _count_gap,
        _put_latest,
        _take_out,
        _reach,
        _pages_in_use,
        _keep,
        _to_host,
        _evict,
        _share,
        _hold,
        _admit,
        _release,
        _join,
        _leave,
        _preempt_youngest,
        _grow,
        _next_group,
        _join_after,
        _add_part,
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
    files = *(Path(function.__code__.co_filename) for function in (run, asked_s)), *compiling.sources()
    return sequential(run, allocates=False, sources=files)
