"""Times the count of hits in prefix caches of every size, beside a stack in plain Python in the same run.

    python benchmarks/stack_distances.py [--blocks 40000000] [--rounds 2]

Goal: 1e8 blocks within 60 s, memory bounded. Conversations of 20 turns in mixed order that begin with one text; half of
the runs follow every block, half a sample. Compiled code is warm; the best of all rounds counts.
"""

import argparse
import resource
import time
from collections import OrderedDict
from itertools import pairwise

import numpy as np

from dse.serving.requests import PromptBlocks, Requests
from dse.serving.stack_distances import hits

TURNS, SHARED_BLOCKS, TURN_BLOCKS, PAGE_TOKENS = 20, 375, 75, 16
#: blocks that plain Python follows, at one size of the cache
FEW_BLOCKS = 200_000


def conversations(n_blocks: int) -> Requests:
    """Turns of as many conversations as have about so many blocks of prompts."""
    a_conversation = sum(SHARED_BLOCKS + TURN_BLOCKS * turn for turn in range(1, TURNS + 1))
    n = max(n_blocks // a_conversation, 2)
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(n), TURNS))
    turn = np.empty(len(order), np.int64)
    turn[np.argsort(order, kind="stable")] = np.tile(np.arange(TURNS), n)
    counts = SHARED_BLOCKS + TURN_BLOCKS * (turn + 1)
    first = np.concatenate(([0], np.cumsum(counts)))
    place = np.arange(first[-1]) - np.repeat(first[:-1], counts)
    ids = np.where(place < SHARED_BLOCKS, 0, np.repeat(order + 1, counts))
    blocks = PromptBlocks(first, ids, PAGE_TOKENS * (place + 1))
    return Requests(np.zeros(len(counts)), PAGE_TOKENS * counts + 5, np.ones(len(counts), np.int64), blocks)


def plain(requests: Requests, capacity: int) -> int:
    """Blocks found in one cache, an ordered dictionary of whole paths' hashes."""
    held: OrderedDict[int, None] = OrderedDict()
    found, blocks = 0, requests.blocks
    assert blocks is not None
    ids, first = blocks.ids.tolist(), blocks.first.tolist()
    for start, stop in pairwise(first):
        key, path = 0, []
        for block in ids[start:stop]:
            key = hash((key, block))
            path.append(key)
        for key in path:
            if key not in held:
                break
            found += 1
        for key in reversed(path):
            held.pop(key, None)
            held[key] = None
        while len(held) > capacity:
            held.popitem(last=False)
    return found


def main() -> None:
    """Seconds, blocks per second, the ratio to plain Python, and what 1e8 blocks would take."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=40_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    few, many = conversations(FEW_BLOCKS), conversations(args.blocks)
    assert few.blocks is not None
    assert many.blocks is not None
    n_few, n_many = len(few.blocks.ids), len(many.blocks.ids)
    of_few = hits(few, PAGE_TOKENS)
    capacity = of_few.pages_for(0.5)
    assert plain(few, capacity) * PAGE_TOKENS == round(of_few.rate(capacity) * of_few.prompt_tokens)
    runs = {
        "plain Python, one size": (n_few, lambda: plain(few, capacity)),
        "all sizes": (n_many, lambda: hits(many, PAGE_TOKENS)),
        "all sizes, sampled": (n_many, lambda: hits(many, PAGE_TOKENS, max_nodes=2**17)),
    }
    seconds = dict.fromkeys(runs, float("inf"))
    for _ in range(args.rounds):
        for name, (_, run) in runs.items():
            start = time.perf_counter()
            run()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    slowest = seconds["plain Python, one size"] / n_few
    for name, (n, _) in runs.items():
        each = seconds[name] / n
        print(f"{name}: {n:,} blocks in {seconds[name]:.2f} s, {1 / each:,.0f} a second, {slowest / each:.1f} times")
    at = seconds["all sizes"] / n_many
    print(f"1e8 blocks at that pace: {1e8 * at:.0f} s; peak memory of this run, trace included: ", end="")
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    exact, sampled = hits(many, PAGE_TOKENS), hits(many, PAGE_TOKENS, max_nodes=2**17)
    sizes = np.geomspace(200 / sampled.sampled, exact.distinct_pages, 40)
    off = max(abs(exact.rate(size) - sampled.rate(size)) for size in sizes)
    print(f"sampled 1 in {1 / sampled.sampled:.0f}: at most {off:.4f} off, one standard error {sampled.error:.4f}")


if __name__ == "__main__":
    main()
