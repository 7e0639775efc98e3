"""The closed form of given requests, with what their prompts find of each other in a server that is always full.

A block is found where it was used among the last requests, as many as memory holds prompts of: the working set of so
many requests, whose mean size follows from the distances between uses alone (docs/explanation/model.md, Traffic of a
trace; P. J. Denning and S. C. Schwartz, "Properties of the Working-Set Model", 1972).
"""

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dse.model.deployed import n_groups_of
from dse.model.kv_layout import KvPlan
from dse.model.lower import with_admission
from dse.serving import prefix_tree, simulator, steady_state
from dse.serving.requests import Floats, Ints, Lengths, Requests
from dse.serving.steady_state import FoundPrompts
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import MAX_BATCH, Workload


def steady_of(
    device: HardwareSpec, plan: KvPlan, work: Workload, served: Requests, scheduler: steady_state.Scheduler
) -> dict[str, Any]:
    """The steady state of requests that fit alone, what they share included: `dse.serving.steady_state.steady`."""
    lengths = Lengths.of(served)
    return steady_state.steady(
        device,
        plan,
        work,
        lengths.moments,
        scheduler=scheduler,
        largest_output=lengths.largest_output,
        reused=None if served.blocks is None else found_when_full(device, plan, work, served, scheduler),
    )


@dataclass(frozen=True)
class Reuse:
    """The requests since each block of each prompt was used before; `n` where nobody used it.

    A block's first use counts from its last one, as if the requests came again, where that is less than half of them
    ago: a text that is asked for all the time is there from the start, a conversation that is over is not.
    """

    n: int
    request: Ints
    distance: Ints
    pages: Ints
    end_tokens: Ints
    input_tokens: Ints

    @classmethod
    def of(cls, requests: Requests, tree: prefix_tree.PrefixTree) -> "Reuse":
        """The uses of the tree's nodes in order of arrival."""
        n, nodes = len(requests.arrival_s), tree.nodes
        request = np.repeat(np.arange(n), np.diff(tree.first))
        order = np.argsort(nodes, kind="stable")
        node, at = nodes[order], request[order]
        is_first = np.concatenate(([True], node[1:] != node[:-1]))
        starts = np.flatnonzero(is_first)
        last = at[np.concatenate((starts[1:], [len(at)])) - 1]
        apart = np.diff(at, prepend=0)
        around = n - (last - at[starts])
        apart[starts] = np.where(around <= n // 2, around, n)
        distance = np.empty_like(apart)
        distance[order] = apart
        return cls(n, request, distance, tree.pages[nodes], tree.end_tokens[nodes], requests.input_tokens)

    @property
    def mean_pages(self) -> float:
        """Pages of a prompt, mean over requests."""
        return float(self.pages.sum()) / self.n

    @cached_property
    def new_pages(self) -> Floats:
        """Pages of a prompt that the t requests before it did not use, mean over requests; at index t, 0 to n - 1."""
        used = np.cumsum(np.bincount(self.distance, self.pages, self.n + 1))[: self.n]
        return np.asarray(self.mean_pages - used / self.n)

    @cached_property
    def _sums(self) -> Floats:
        return np.concatenate(([0.0], np.cumsum(self.new_pages)))

    def held_pages(self, n_requests: int) -> float:
        """Pages of the prompts of so many requests in a row, each held once, mean over where they begin.

        One request more brings what those before it did not use (Denning and Schwartz).
        """
        beyond = max(n_requests - self.n, 0)
        return float(self._sums[n_requests - beyond] + beyond * self.new_pages[-1])

    def found_tokens(self, n_requests: int) -> Ints:
        """Tokens of each prompt that the last `n_requests` used; its last token is computed in any case."""
        tokens = np.zeros(self.n, np.int64)
        is_there = (self.distance <= min(n_requests, self.n - 1)) & (self.end_tokens < self.input_tokens[self.request])
        np.maximum.at(tokens, self.request[is_there], self.end_tokens[is_there])
        return tokens


def found_when_full(
    device: HardwareSpec, plan: KvPlan, work: Workload, served: Requests, scheduler: steady_state.Scheduler
) -> FoundPrompts:
    """Count the requests that fit at once, each block of their prompts held once, and what they find.

    What those that run leave free keeps the prompts of as many requests before them as it has room for, and host
    memory behind it those of more. Raises InputError where pages are not alike.
    """
    work, host = with_admission(device, work), scheduler.host
    if scheduler.batching == "static":
        work = replace(work, admission="reserve")
    n_groups = n_groups_of(work)
    mine = served.take(slice(None, None, n_groups))  # each group of requests has a tree of its own
    memory = simulator.memory_of(device, plan, work, int(np.max(served.input_tokens + served.output_tokens)))
    held, page = simulator.held_memory(memory), memory.page_tokens
    page_units = simulator.page_size(plan, held)
    reuse = Reuse.of(mine, prefix_tree.tree_of(mine, page))
    load, capacity = memory.design.load, memory.free_bytes * memory.unit
    # what a request holds beside the blocks of its prompt
    whole_pages = steady_state.held_tokens(memory.design, Lengths.of(served).moments) / page
    own_units = float(held[1]) + (whole_pages - 1 - reuse.mean_pages) * page_units

    def units(n_requests: int) -> float:
        return n_requests * own_units + reuse.held_pages(n_requests) * page_units

    most = -(-min(MAX_BATCH, load.max_num_seqs) // n_groups)
    fitting = bisect_right(range(most + 1), float(capacity), key=units) - 1
    places = min(fitting, -(-(work.batch or load.most_at_once) // n_groups))
    room_pages = (capacity - places * own_units) / page_units
    host_pages = host.capacity_bytes * memory.unit / page_units if host else 0.0
    # requests whose prompts are kept: on the device at least those that run
    kept, behind = (
        max(bisect_right(range(reuse.n + 1), pages, key=reuse.held_pages) - 1, places)
        for pages in (room_pages, room_pages + host_pages)
    )
    found_tokens = reuse.found_tokens(behind)
    computed, from_host = mine.input_tokens - found_tokens, found_tokens - reuse.found_tokens(kept)
    load_s = 0.0
    if host:
        page_s = page_units / memory.unit / host.bandwidth_bytes_per_s
        load_s = float(np.mean((from_host > 0) * host.start_s + from_host / page * page_s))
    return FoundPrompts(
        fitting=n_groups * fitting,
        mean_own_tokens=float(np.mean(computed)),
        mean_own_squared=float(np.mean(computed.astype(float) ** 2)),
        mean_found_tokens=float(np.mean(found_tokens)),
        mean_found_squared=float(np.mean(found_tokens.astype(float) ** 2)),
        load_s=load_s,
        loads_beside=host is None or host.is_beside,
    )
