"""Hits of prompts in a prefix cache of every size at once: one pass over a trace, by stack distances.

The cache is the radix tree of `dse.serving.loop`: the blocks used longest ago go first, the ends of prompts before
their beginnings. A prompt uses its blocks from the last to the first, so a block always lies above all that follow it,
and what a cache of C pages holds is the top C pages of one stack (R. L. Mattson et al., "Evaluation techniques for
storage hierarchies", 1970). The distance of a block is the pages above it and its own: it is found in every cache of at
least so many, and all before it in its prompt are then found too. Nothing of the last token is found: it is computed in
any case.

Exact for requests served one after another: capacity is then the pool less what the running request holds beside the
blocks of its prompt. Where several run at once their blocks stay whatever is wanted, and are used at their end rather
than at their start (docs/explanation/model.md, Hits at every pool, has measured differences).

The blocks that a request was the last to use are the end of its path, since others take over its beginning. So the
stack is kept as pages by request in a Fenwick tree: a query for each run of blocks with one last user, in place of one
for each block. Beyond `max_nodes` blocks are sampled by their hash, half as many at a time, and distances and counts
are scaled (SHARDS with a fixed size and its adjustment: C. Waldspurger et al., "Efficient MRC construction with
SHARDS", FAST 2015).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse.core.errors import InputError
from dse.core.progress import Progress, each
from dse.serving.requests import Floats, Ints, Requests

#: distinct blocks that are followed, 32 bytes each; a trace with more is sampled
MAX_NODES = 2**25
#: distances that are told apart: beyond, every second one, and so on
MAX_CELLS = 2**24
#: blocks between two looks at the room of the table
CHUNK_BLOCKS = 2**20
#: bits of a hash by which blocks are sampled, at most
MOST_HALVINGS = 16
#: odd constants of SplitMix64 (G. Steele, D. Lea, C. Flood, 2014), as signed numbers
_ADD, _ONCE, _TWICE = -7046029254386353131, -4658895280553007687, -7723592293110705685


class StackCounts(NamedTuple):
    """Columns of `BlockStack.i`: whole numbers that change."""

    n_requests: int
    n_nodes: int
    pages: int
    counted_pages: int
    sampled_pages: int


COUNT = StackCounts._make(range(len(StackCounts._fields)))


class BlockStack(NamedTuple):
    """The stack of blocks, and what was counted. Distances are in pages, of the sampled blocks alone."""

    i: Ints
    #: a hash table of blocks: key of a block after all before it (0: free), its last user, its pages
    keys: Ints
    last: NDArray[np.int32]
    n_pages: NDArray[np.int32]
    #: Fenwick tree: pages by the request that used them last
    tree: Ints
    #: pages found, by distance: cell d has those at (d - 1, d] times `step` pages
    cells: Floats
    step: int
    #: blocks whose hash has one of these bits are left out
    left_out: int
    #: pages of the caches whose found tokens are summed, and for each: their sum, that of their squares, and that of
    #: their products with the prompt's tokens
    capacity: Ints
    sums: Floats
    first_counted: int
    page_tokens: int


def _mixed(key: int, block: int, end: int) -> int:
    """Key of a block that ends at `end` after the block of `key`; never 0."""
    x = (key ^ block) * _ONCE + end * _TWICE + _ADD
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _ONCE
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _TWICE
    x ^= (x >> 31) & 0x1FFFFFFFF
    return x if x != 0 else 1


def _slot(keys: Ints, key: int) -> int:
    """Place of a key in the table, or the free one where it belongs."""
    mask = len(keys) - 1
    at = (key >> MOST_HALVINGS) & mask
    while keys[at] != 0 and keys[at] != key:
        at = (at + 1) & mask
    return at


def _add(tree: Ints, request: int, pages: int) -> None:
    """Add pages to those that a request was the last to use."""
    at = request + 1
    while at < len(tree):
        tree[at] += pages
        at += at & -at


def _up_to(tree: Ints, request: int) -> int:
    """Pages last used by requests up to this one."""
    at, pages = request + 1, 0
    while at > 0:
        pages += tree[at]
        at &= at - 1
    return pages


def scan(s: BlockStack, first: Ints, ids: Ints, end_tokens: Ints, input_tokens: Ints) -> None:
    """Take requests in order: count the distances of their blocks, then put these on top of the stack."""
    for r in range(len(first) - 1):
        now = s.i[COUNT.n_requests]
        is_counted = now >= s.first_counted
        key, whole, path, new = 0, 0, 0, 0
        user, above, run = -1, 0, 0
        reached, size = 0, 0
        for k in range(first[r], first[r + 1]):
            key = _mixed(key, ids[k], end_tokens[k])
            pages = end_tokens[k] // s.page_tokens - whole
            whole += pages
            is_inside = whole * s.page_tokens < input_tokens[r]
            if is_counted and is_inside:
                s.i[COUNT.counted_pages] += pages
            if key & s.left_out:
                continue
            if is_counted and is_inside:
                s.i[COUNT.sampled_pages] += pages
            path += pages
            at = _slot(s.keys, key)
            if s.keys[at] == 0:
                s.keys[at], s.n_pages[at] = key, pages
                s.i[COUNT.n_nodes] += 1
                new += pages
            else:
                if s.last[at] != user:
                    if user >= 0:
                        _add(s.tree, user, -run)
                    user, run = s.last[at], 0
                    above = s.i[COUNT.pages] - _up_to(s.tree, user)
                run += pages
                if is_counted and is_inside:
                    s.cells[(above + run + s.step - 1) // s.step] += pages
                    while size < len(s.capacity) and s.capacity[size] < above + run:
                        _count(s, size, reached, input_tokens[r])
                        size += 1
                    reached = whole * s.page_tokens
            s.last[at] = now
        if user >= 0:
            _add(s.tree, user, -run)
        _add(s.tree, now, path)
        s.i[COUNT.pages] += new
        if is_counted:
            while size < len(s.capacity):
                _count(s, size, reached, input_tokens[r])
                size += 1
        s.i[COUNT.n_requests] += 1


def _count(s: BlockStack, size: int, reached: int, input_tokens: int) -> None:
    """Count the tokens that a request finds in the cache of a size."""
    s.sums[size, 0] += reached
    s.sums[size, 1] += float(reached) * reached
    s.sums[size, 2] += float(reached) * input_tokens


def move(old: BlockStack, new: BlockStack) -> None:
    """Put the blocks of a stack into another one's empty table, without those that it leaves out."""
    for at in range(len(old.keys)):
        key = old.keys[at]
        if key == 0:
            continue
        if key & new.left_out:
            _add(new.tree, old.last[at], -old.n_pages[at])
            new.i[COUNT.n_nodes] -= 1
            new.i[COUNT.pages] -= old.n_pages[at]
            continue
        to = _slot(new.keys, key)
        new.keys[to], new.last[to], new.n_pages[to] = key, old.last[at], old.n_pages[at]


@cache
def _compiled() -> tuple[Callable[..., None], Callable[..., None]]:
    """`scan` and `move` as machine code, kept on disk between runs where that is safe."""
    from numba.extending import register_jitable

    from kernels_ref import sequential

    for function in (_mixed, _slot, _add, _up_to, _count):
        register_jitable(error_model="numpy", forceinline=True, _nrt=False)(function)
    sources = (Path(__file__),)
    return (sequential(scan, allocates=False, sources=sources), sequential(move, allocates=False, sources=sources))


@dataclass(frozen=True)
class Hits:
    """Prompt tokens found in a prefix cache, by its size.

    `found_tokens` at index d, of a cache of d * `step` pages; `prompt_tokens` is of all counted requests. Of the sizes
    asked for, `moments` has the means over requests of the tokens found, their square, and the square of the tokens
    computed.
    """

    found_tokens: Floats
    step_pages: int
    page_tokens: int
    n_requests: int
    prompt_tokens: int
    #: pages that all prompts have together, each block once
    distinct_pages: int
    #: 1, or the share of blocks that were followed
    sampled: float
    sampled_nodes: int
    moments: dict[int, tuple[float, float, float]]

    def rate(self, pages: float) -> float:
        """Share of the prompt tokens that a cache of so many pages finds."""
        at = int(min(max(pages, 0) // self.step_pages, len(self.found_tokens) - 1))
        return float(self.found_tokens[at]) / self.prompt_tokens

    def means(self, pages: float) -> tuple[float, float, float]:
        """The moments of the largest cache of at most so many pages, of those that were asked for."""
        return self.moments[max(size for size in self.moments if size <= pages)]

    @property
    def endless_rate(self) -> float:
        """Share that a cache without limit finds."""
        return float(self.found_tokens[-1]) / self.prompt_tokens

    def pages_for(self, rate: float) -> int:
        """The smallest cache, in pages, that finds a share of the prompt tokens (or all that any finds)."""
        wanted = min(rate * self.prompt_tokens, float(self.found_tokens[-1]))
        return int(np.searchsorted(self.found_tokens, wanted * (1 - 1e-12))) * self.step_pages

    @property
    def error(self) -> float:
        """Standard error of a hit rate: 0 where every block was followed, else as of so many independent blocks.

        Of caches of some hundred sampled blocks and more: smaller ones are told by few of them.
        """
        return 0.0 if self.sampled == 1 else 0.5 / self.sampled_nodes**0.5


def hits(
    requests: Requests,
    page_tokens: int,
    capacity_pages: Sequence[int] = (),
    first_counted: int = 0,
    max_nodes: int = MAX_NODES,
    progress: Progress | None = None,
) -> Hits:
    """Tokens that prompts find of each other in prefix caches of all sizes, requests in their order.

    Blocks may reach beyond a prompt (its answer, which a later prompt goes on from). Requests before `first_counted`
    fill the cache only. Moments are of the caches of `capacity_pages`. Raises InputError where requests have no blocks.
    """
    blocks = requests.blocks
    if blocks is None:
        raise InputError("trace: has no block hashes: give a .jsonl trace whose lines have hash_ids, or --sessions")
    run, moved = _compiled()
    n, sizes = len(requests.arrival_s), sorted({max(int(size), 0) for size in capacity_pages})
    s = BlockStack(
        i=np.zeros(len(COUNT), np.int64),
        keys=np.zeros(2**10, np.int64),
        last=np.zeros(2**10, np.int32),
        n_pages=np.zeros(2**10, np.int32),
        tree=np.zeros(n + 1, np.int64),
        cells=np.zeros(2**10),
        step=1,
        left_out=0,
        capacity=np.array(sizes, np.int64),
        sums=np.zeros((len(sizes), 3)),
        first_counted=first_counted,
        page_tokens=page_tokens,
    )
    for start, stop in each(_chunks(blocks.first), progress, "trace"):
        low, high = int(blocks.first[start]), int(blocks.first[stop])
        lasts = blocks.first[start + 1 : stop + 1] - 1
        s = _with_room(s, high - low, int(blocks.end_tokens[lasts].sum()) // page_tokens, max_nodes, moved)
        run(
            s,
            blocks.first[start : stop + 1] - low,
            blocks.ids[low:high],
            blocks.end_tokens[low:high],
            requests.input_tokens[start:stop],
        )
    counted = requests.input_tokens[first_counted:]
    times = s.left_out + 1
    found = np.cumsum(s.cells[: int(s.i[COUNT.pages]) // s.step + 2])
    found *= times * page_tokens
    if times > 1:
        missing = (int(s.i[COUNT.counted_pages]) - times * int(s.i[COUNT.sampled_pages])) * page_tokens
        found[1:] = np.maximum.accumulate(np.clip(found[1:] + missing, 0, None))
    made = Hits(
        found_tokens=found,
        step_pages=s.step * times,
        page_tokens=page_tokens,
        n_requests=len(counted),
        prompt_tokens=int(counted.sum()),
        distinct_pages=int(s.i[COUNT.pages]) * times,
        sampled=1 / times,
        sampled_nodes=int(s.i[COUNT.n_nodes]),
        moments={},
    )
    squared = float(np.mean(counted.astype(float) ** 2))
    for size, row in zip(sizes, s.sums / len(counted), strict=True):
        mean_found = made.rate(size) * made.prompt_tokens / len(counted) if times > 1 else float(row[0])
        made.moments[size] = _moments(row, mean_found, squared)
    return made


def _moments(row: Floats, mean_found: float, mean_squared: float) -> tuple[float, float, float]:
    """Means over requests: tokens found, their square, the square of those computed. Where blocks are sampled a prompt
    is found up to a sampled one: scaled to the mean of the curve."""
    found, squares, products = map(float, row)
    longer = mean_found / found if found else 1.0
    return mean_found, longer**2 * squares, mean_squared - 2 * longer * products + longer**2 * squares


def _chunks(first: Ints) -> list[tuple[int, int]]:
    """Stretches of requests with about CHUNK_BLOCKS blocks each, at least one request in each."""
    marks = np.searchsorted(first, np.arange(0, int(first[-1]) + CHUNK_BLOCKS, CHUNK_BLOCKS))
    ends = np.unique(np.minimum(marks, len(first) - 1))
    return list(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))


def _with_room(s: BlockStack, n_blocks: int, n_pages: int, max_nodes: int, moved: Callable[..., None]) -> BlockStack:
    """A stack with room for more blocks and pages: a larger table, half as many blocks, coarser cells."""
    while True:
        times = s.left_out + 1
        most = int(s.i[COUNT.n_nodes]) + -(-n_blocks // times)
        if s.i[COUNT.n_nodes] > max_nodes // 2 and most > max_nodes and times < 2**MOST_HALVINGS:
            folded = _folded(s.cells) / 2
            s.i[COUNT.sampled_pages] //= 2
            thinned = s._replace(cells=folded, left_out=2 * times - 1, capacity=s.capacity // 2)
            s = _in_table(thinned, len(s.keys), moved)
        elif 2 * most > len(s.keys):
            s = _in_table(s, 2 ** (2 * most - 1).bit_length(), moved)
        else:
            break
    most_pages = int(s.i[COUNT.pages]) + n_pages
    while -(-most_pages // s.step) + 2 > MAX_CELLS:
        s = s._replace(cells=_folded(s.cells), step=2 * s.step)
    missing = -(-most_pages // s.step) + 2 - len(s.cells)
    if missing > 0:
        cells = np.zeros(len(s.cells) + max(missing, len(s.cells)))  # of which few are ever touched
        cells[: len(s.cells)] = s.cells
        s = s._replace(cells=cells)
    return s


def _in_table(s: BlockStack, n_slots: int, moved: Callable[..., None]) -> BlockStack:
    """The stack with its blocks, but for those that it leaves out, in a new table."""
    keys = np.zeros(n_slots, np.int64)
    new = s._replace(keys=keys, last=np.zeros(n_slots, np.int32), n_pages=np.zeros(n_slots, np.int32))
    moved(s, new)
    return new


def _folded(cells: Floats) -> Floats:
    """Cells of twice the distance: those of 2 d - 1 and 2 d pages become that of d."""
    padded = np.concatenate((cells[1:], np.zeros((len(cells) - 1) % 2)))
    return np.concatenate((cells[:1], padded.reshape(-1, 2).sum(axis=1)))
