"""Requests of a trace as servers get them: between two ticks of the clock that wrote it, and by a router's choice."""

from dataclasses import replace

import numpy as np

from dse.serving.requests import PromptBlocks, Requests

#: share of a prompt that a server must have seen for a router to send the request there: what routers take by default
#: (https://github.com/lightseekorg/smg, Cache-Aware Routing, --cache-threshold)
SEEN_SHARE = 0.3


def between_ticks(requests: Requests) -> Requests:
    """Spread requests that share an arrival time evenly up to the next tick of their clock.

    The tick is the least time between two arrivals, 3 s in Mooncake's conversations. A clock tells nothing of the time
    between its ticks: requests of one second were sent one after another in it
    (https://github.com/HPMLL/BurstGPT/issues/2). Batches that truly come at once, and nothing between them, would be
    spread too. Where all come at once nothing changes.
    """
    ticks, first, counts = np.unique(requests.arrival_s, return_index=True, return_counts=True)
    if len(ticks) in (1, len(requests.arrival_s)):
        return requests
    place = np.arange(len(requests.arrival_s)) - np.repeat(first, counts)
    within_s = np.diff(ticks).min() * place / np.repeat(counts, counts)
    return replace(requests, arrival_s=requests.arrival_s + within_s)


def share_of(requests: Requests, n_servers: int) -> Requests:
    """The requests that the first of `n_servers` gets from a router by prefix.

    A request goes to the server that last had the longest known beginning of its prompt, where that is SEEN_SHARE of it
    or more, else to the one with fewest prompt tokens so far. Without blocks requests go round.
    """
    if n_servers == 1:
        return requests
    if requests.blocks is None:
        return requests.take(slice(None, None, n_servers))
    last_at: dict[int, int] = {}
    tokens, servers = np.zeros(n_servers, np.int64), np.zeros(len(requests.arrival_s), np.int64)
    blocks = requests.blocks
    for r, n_tokens in enumerate(requests.input_tokens):
        own = slice(blocks.first[r], blocks.first[r + 1])
        ids, ends = blocks.ids[own].tolist(), blocks.end_tokens[own]
        known = next((k for k in reversed(range(len(ids))) if ids[k] in last_at), None)
        is_seen = known is not None and ends[known] >= SEEN_SHARE * n_tokens
        servers[r] = last_at[ids[known]] if is_seen else int(tokens.argmin())  # type: ignore[index]
        tokens[servers[r]] += n_tokens
        last_at.update(dict.fromkeys(ids, servers[r]))
    return requests.take(servers == 0)


def times_as_many(requests: Requests, n: int) -> Requests:
    """The trace of `n` times as many users alike, who share no block: its copies, each begun later by a part of it."""
    if n == 1:
        return requests
    n_requests, at_s = len(requests.arrival_s), requests.arrival_s
    whole_s = at_s[-1] * n_requests / max(n_requests - 1, 1)
    arrival_s = np.concatenate([(at_s + whole_s * k / n) % whole_s if whole_s else at_s for k in range(n)])
    blocks = requests.blocks
    if blocks is not None:
        most = int(blocks.ids.max(initial=0)) + 1
        ids = np.concatenate([blocks.ids + most * k for k in range(n)])
        counts = np.tile(np.diff(blocks.first), n)
        blocks = PromptBlocks(np.concatenate(([0], np.cumsum(counts))), ids, np.tile(blocks.end_tokens, n))
    all_of = Requests(arrival_s, np.tile(requests.input_tokens, n), np.tile(requests.output_tokens, n), blocks)
    taken = all_of.take(np.argsort(arrival_s, kind="stable"))
    return replace(taken, arrival_s=taken.arrival_s - taken.arrival_s[0])


def at_rate(requests: Requests, requests_per_s: float) -> Requests:
    """Scale the arrival times so that their mean rate is `requests_per_s`; from the first on."""
    at_s = requests.arrival_s - requests.arrival_s[0]
    if at_s[-1] <= 0:
        return requests
    return replace(requests, arrival_s=at_s * ((len(at_s) - 1) / requests_per_s / at_s[-1]))
