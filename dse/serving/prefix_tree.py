"""The radix tree of prompts: which blocks they share, and what a cache without limit would find of each.

A node is a block after all that stand before it: two prompts share a node where they begin alike up to its end. Memory
is given in whole pages, so a page that two blocks meet in belongs to the later one.
"""

from dataclasses import dataclass, replace

import numpy as np

from dse.core.errors import InputError, LimitError, show
from dse.core.field import check_whole
from dse.serving.requests import Ints, PromptBlocks, Requests

#: nodes that a run keeps track of: 50 bytes each for every group of requests
MAX_NODES = 20_000_000
#: most prefixes to draw from
MAX_PREFIXES = 1_000_000


@dataclass(frozen=True)
class PrefixTree:
    """Prompts as paths: request r has nodes[first[r] : first[r + 1]], from the root on.

    Of a node `pages` are its own, `end_tokens` is where its last page ends in a prompt, `parent` the one before (-1 at
    the root). `endless_tokens`: of each request, what is found where nothing is ever given up.
    """

    first: Ints
    nodes: Ints
    pages: Ints
    end_tokens: Ints
    parent: Ints
    endless_tokens: Ints


def tree_of(requests: Requests, page_tokens: int) -> PrefixTree:
    """The tree of the prompts of `requests`, in pages of `page_tokens`; empty where they say nothing of their text."""
    n, blocks = len(requests.arrival_s), requests.blocks
    if blocks is None:
        none = np.zeros(0, np.int64)
        return PrefixTree(
            first=np.zeros(n + 1, np.int64),
            nodes=none,
            pages=none,
            end_tokens=none,
            parent=none,
            endless_tokens=np.zeros(n, np.int64),
        )
    _check_blocks(len(blocks.ids))
    known: dict[tuple[int, int, int], int] = {}
    nodes: list[int] = []
    pages: list[int] = []
    ends: list[int] = []
    parents: list[int] = []
    endless = np.zeros(n, np.int64)
    ids, end_tokens = blocks.ids.tolist(), blocks.end_tokens.tolist()
    for r, (start, stop) in enumerate(zip(blocks.first[:-1].tolist(), blocks.first[1:].tolist(), strict=True)):
        parent, before = -1, 0
        for k in range(start, stop):
            new = len(pages)
            node = known.setdefault((parent, ids[k], end_tokens[k]), new)
            whole = end_tokens[k] // page_tokens
            if node == new:
                pages.append(whole - before)
                ends.append(whole * page_tokens)
                parents.append(parent)
            elif ends[node] < requests.input_tokens[r]:
                endless[r] = ends[node]
            nodes.append(node)
            parent, before = node, whole
    return PrefixTree(
        first=blocks.first,
        nodes=np.array(nodes, np.int64),
        pages=np.array(pages, np.int64),
        end_tokens=np.array(ends, np.int64),
        parent=np.array(parents, np.int64),
        endless_tokens=endless,
    )


def _check_blocks(n: int) -> None:
    if n > MAX_NODES:
        raise LimitError(f"requests: have {n:,} blocks of prompts: at most {MAX_NODES:,} are followed: ask for fewer")


def drawn(requests: Requests, prefix_tokens: int, n_prefixes: int, page_tokens: int, seed: int) -> Requests:
    """The requests, each beginning with one of `n_prefixes` texts of `prefix_tokens`, drawn with equal chances.

    What follows is nobody else's. Raises InputError for a prefix that leaves a prompt no token of its own, LimitError
    above MAX_NODES blocks in all.
    """
    shortest = int(requests.input_tokens.min())
    if not 1 <= prefix_tokens < shortest:
        raise InputError(
            f"prefix = {show(prefix_tokens)}: must be from 1 to {shortest - 1:,} tokens, so that a prompt of "
            f"{shortest:,} has one of its own"
        )
    check_whole("prefixes", n_prefixes, 1, MAX_PREFIXES)
    n, n_blocks = len(requests.arrival_s), -(-prefix_tokens // page_tokens) + 1
    _check_blocks(n * n_blocks)
    which = np.random.Generator(np.random.PCG64([seed, 2])).integers(0, n_prefixes, n)
    ends = np.array([*range(page_tokens, prefix_tokens, page_tokens), prefix_tokens], np.int64)
    ids = np.concatenate((np.zeros((n, len(ends)), np.int64) + which[:, None], n_prefixes + np.arange(n)[:, None]), 1)
    end_tokens = np.concatenate((np.tile(ends, (n, 1)), requests.input_tokens[:, None]), 1)
    first = np.arange(n + 1, dtype=np.int64) * n_blocks
    blocks = PromptBlocks(first, ids.ravel(), end_tokens.ravel())
    return Requests(requests.arrival_s, requests.input_tokens, requests.output_tokens, blocks)


def sampled(requests: Requests, samples: int, page_tokens: int) -> Requests:
    """The answers to the requests, `samples` to each, which arrive together and share their prompt's whole pages.

    The page of the last token of a prompt, which an answer computes again, is a block of its own. Raises LimitError
    above MAX_NODES blocks in all.
    """
    n = len(requests.arrival_s)
    _check_blocks(2 * n * samples if requests.blocks is None else len(requests.blocks.ids) * samples)
    if requests.blocks is None:
        before_last = (requests.input_tokens - 1) // page_tokens * page_tokens
        blocks = PromptBlocks(
            2 * np.arange(n + 1, dtype=np.int64),
            np.repeat(np.arange(n, dtype=np.int64), 2),
            np.stack((before_last, requests.input_tokens), 1).ravel(),
        )
        requests = replace(requests, blocks=blocks)
    return requests.take(np.repeat(np.arange(n, dtype=np.int64), samples))
