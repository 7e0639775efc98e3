"""One option for each of many items so that a sum is least under a limit of another sum: exact, by dynamic programming.

The multiple-choice knapsack problem (Kellerer, Pferschy and Pisinger, Knapsack Problems, 2004, chapter 11). States are
sums over the first items that no other state beats in both; those that cannot lead to a better choice than a greedy
one are left out by the bound of the continuous relaxation (marginal gains along the convex hulls), which never
overrates a state, so the result stays exact. `scipy.optimize.milp` is not: HiGHS stops at 1e-6, which is up to
five times the least cost where costs span nine decades (8 of 300 random problems); it took 4 to 40 times as long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dse.core.errors import LimitError

Numbers = NDArray[np.float64]
#: states of one item; a problem with more is refused
MAX_STATES = 4_000_000
#: sums differ by rounding of this share
ROUNDING = 1e-12


@dataclass(frozen=True)
class Choice:
    """The option of each item, by place, and both sums."""

    options: tuple[int, ...]
    weight: float
    cost: float


def undominated(weights: Numbers, costs: Numbers) -> NDArray[np.int64]:
    """Places of options that no other one beats or equals in both numbers, by growing weight and falling cost."""
    order = np.lexsort((costs, weights))
    best = np.concatenate(([np.inf], np.minimum.accumulate(costs[order])[:-1]))
    return order[costs[order] < best].astype(np.int64)


def hull(weights: Numbers, costs: Numbers) -> list[int]:
    """Places of the corners of the lower convex hull of undominated options (in order of weight)."""
    corners: list[int] = []
    for i in range(len(weights)):
        while len(corners) > 1:
            a, b = corners[-2:]
            if (costs[b] - costs[a]) * (weights[i] - weights[a]) < (costs[i] - costs[a]) * (weights[b] - weights[a]):
                break
            corners.pop()
        corners.append(i)
    return corners


@dataclass(frozen=True)
class _Step:
    """From one corner of an item's hull to the next: what it adds to the weight and takes off the cost."""

    item: int
    option: int
    weight: float
    gain: float


class _Problem:
    def __init__(self, weights: Sequence[Numbers], costs: Sequence[Numbers]) -> None:
        self.places = [undominated(w, c) for w, c in zip(weights, costs, strict=True)]
        self.weights = [w[at] for w, at in zip(weights, self.places, strict=True)]
        self.costs = [c[at] for c, at in zip(costs, self.places, strict=True)]
        steps = []
        for item, (w, c) in enumerate(zip(self.weights, self.costs, strict=True)):
            corners = hull(w, c)
            steps += [_Step(item, b, float(w[b] - w[a]), float(c[a] - c[b])) for a, b in pairwise(corners)]
        #: steepest first; those of an item stay in their order, as its hull is convex
        self.steps = sorted(steps, key=lambda s: (-s.gain / s.weight, s.item, s.option))

    def sums(self, options: Sequence[int]) -> tuple[float, float]:
        return (
            float(sum(w[i] for w, i in zip(self.weights, options, strict=True))),
            float(sum(c[i] for c, i in zip(self.costs, options, strict=True))),
        )

    def choice(self, options: Sequence[int]) -> Choice:
        return Choice(tuple(int(at[i]) for at, i in zip(self.places, options, strict=True)), *self.sums(options))


def frontier(weights: Sequence[Numbers], costs: Sequence[Numbers]) -> list[Choice]:
    """The choices at the corners of the convex hull of all sums, by growing weight: each is exact for its weight."""
    problem = _Problem(weights, costs)
    options = [0] * len(weights)
    corners = [problem.choice(options)]
    for i, step in enumerate(problem.steps):
        options[step.item] = step.option
        follows = problem.steps[i + 1] if i + 1 < len(problem.steps) else None
        if follows is None or follows.gain * step.weight < step.gain * follows.weight * (1 - ROUNDING):
            corners.append(problem.choice(options))  # equal slopes are one edge: only its end is a corner
    return corners


def least(weights: Sequence[Numbers], costs: Sequence[Numbers], limit: float) -> Choice | None:
    """The choice of least total cost whose total weight is at most `limit`; None where there is none.

    `weights` and `costs` hold an array of the options of each item, numbers from 0 on. Of choices that cost the same,
    one of the least weight. Exact but for the rounding of float64 sums: a limit may be passed by a share of 1e-12.
    Raises LimitError for a problem of more than `MAX_STATES` states.
    """
    problem = _Problem(weights, costs)
    limit *= 1 + ROUNDING
    n_items = len(weights)
    if problem.sums([0] * n_items)[0] > limit:
        return None
    greedy = [0] * n_items
    stopped: set[int] = set()
    room = limit - problem.sums(greedy)[0]
    for step in problem.steps:
        if step.item not in stopped and step.weight <= room:
            greedy[step.item], room = step.option, room - step.weight
        else:
            stopped.add(step.item)
    known = problem.sums(greedy)[1]
    most = known + ROUNDING * problem.sums([0] * n_items)[1]  # a cost beyond this is no better

    w, c = np.zeros(1), np.zeros(1)
    parents: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
    for item in range(n_items):
        after = [s for s in problem.steps if s.item > item]
        rest_w = float(sum(item_weights[0] for item_weights in problem.weights[item + 1 :]))
        rest_c = float(sum(item_costs[0] for item_costs in problem.costs[item + 1 :]))
        reached = np.concatenate(([0.0], np.cumsum([s.weight for s in after])))
        gained = np.concatenate(([0.0], np.cumsum([s.gain for s in after])))
        new_w = (w[:, None] + problem.weights[item][None, :]).ravel()
        new_c = (c[:, None] + problem.costs[item][None, :]).ravel()
        room_left = limit - new_w - rest_w
        bound = new_c + rest_c - np.interp(room_left, reached, gained)
        kept = np.flatnonzero((room_left >= -ROUNDING * limit) & (bound <= most))
        kept = kept[undominated(new_w[kept], new_c[kept])]
        if len(kept) > MAX_STATES // max(map(len, problem.weights)):
            raise LimitError(f"mixed plan: {len(kept):,} open choices: name fewer methods, or another budget")
        n_options = len(problem.weights[item])
        parents.append(((kept // n_options).astype(np.int32), (kept % n_options).astype(np.int32)))
        w, c = new_w[kept], new_c[kept]
    state, options = int(np.argmin(c)), [0] * n_items
    for item in reversed(range(n_items)):
        before, option = parents[item]
        options[item], state = int(option[state]), int(before[state])
    return problem.choice(options)
