"""Requests of a trace that fit at once: a longest request reserved for each, its own final length, or pages as they
fill.

A request runs for as many decode steps as its answer has tokens, so long answers are met more often than they come. All
means are over time, sums are exact integers over the lengths of the trace.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dse.core.compiling import elementwise
from dse.core.errors import InputError, LimitError, show
from dse.model.formulas import capacity, kv_cache, serving
from dse.model.kv_bytes import limits_for, next_break, padding_bits, stored_bits, stored_bits_slope
from dse.model.kv_layout import KvPlan
from dse.model.lower import check_traffic
from dse.model.point import Point
from dse.model.records import Design
from dse.serving.requests import MAX_TOKENS, Lengths
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import Workload

Rule = Literal["longest", "final", "paged"]
#: rule -> what is held for a request
RULES: dict[Rule, str] = {
    "longest": "reserve the longest length for each",
    "final": "reserve its own final length for each",
    "paged": "pages as they fill",
}
#: largest size of a sequence in units of the plan, so that arrays of sizes fit 64 bits
_MAX_NUMERATOR = 2**62

Sizes = NDArray[np.int64]


@dataclass(frozen=True)
class Concurrency:
    """Concurrency under a rule. Bytes are of one request's keys and values, mean over time; used ones hold a token."""

    rule: Rule
    n_sequences: int
    held_bytes: float
    used_bytes: float

    @property
    def waste_share(self) -> float:
        """Share of the held memory in which no token is stored."""
        return float(serving.waste_share(self.held_bytes, self.used_bytes))


def longest_tokens(plan: KvPlan, lengths: Lengths, max_tokens: int | None) -> int:
    """Tokens that a server reserves which knows no request: `max_tokens`, else what the model can hold, else the
    longest request. Raises InputError where a request of the trace is longer."""
    longest = len(lengths.final_counts) - 1
    if max_tokens is None:
        return max(longest, plan.model.max_position_tokens or 0)
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or not longest <= max_tokens <= 2 * MAX_TOKENS:
        raise InputError(
            f"max-tokens = {show(max_tokens)}: must be a whole number from {longest:,}, the longest request of the "
            f"trace, to {2 * MAX_TOKENS:,}"
        )
    return max_tokens


def fits(
    device: HardwareSpec, plan: KvPlan, work: Workload, lengths: Lengths, max_tokens: int | None = None
) -> list[Concurrency]:
    """Concurrency under each of RULES. Of `work`, page, weights' bits and paths count; its lengths and batch do not.

    A reserved request holds its largest size at any length up to its last (just before a group is packed), activations
    and workspace included. A trace tells how often a final length comes, not with which prompts: sizes shorter than
    the prompt count as well, so an answer shorter than a packed group is held up to a group of 16-bit tokens too much.
    0 sequences fit where the longest request alone does not. Raises InputError for max_tokens, LimitError where sizes
    are beyond 64 bits.
    """
    longest, asked = longest_tokens(plan, lengths, max_tokens), replace(work, prefix_tokens=0)
    check_traffic(asked)
    memory = Point(device, plan, asked)
    if 2 * memory.own_bits(longest) > _MAX_NUMERATOR:
        raise LimitError(f"{longest:,} tokens of {plan.model.name}: sizes beyond 64 bits: take a shorter trace")
    design = memory.design
    stored = _stored(design, longest)
    padding = _padding(design, longest, work.block_tokens)
    extra = _extra(memory, longest)
    at, ending = lengths.steps_at, lengths.final_steps
    n_steps = lengths.n_steps
    n_final = len(at)
    used = _dot(at, stored[:n_final])
    stored = stored + _byte_page_tails(design, longest)
    free = memory.free_bytes * memory.unit
    held: dict[Rule, tuple[int, int]] = {
        "longest": (int(stored.max()) * n_steps, int((stored + extra).max()) * n_steps),
        "final": (
            _dot(ending, np.maximum.accumulate(stored)[:n_final]),
            _dot(ending, np.maximum.accumulate(stored + extra)[:n_final]),
        ),
        "paged": (_dot(at, (stored + padding)[:n_final]), _dot(at, (stored + padding + extra)[:n_final])),
    }
    rows = []
    for rule, (kv, need) in held.items():
        alone = (stored + extra + (padding if rule == "paged" else 0))[:n_final].max()
        n = max(capacity.max_batch(free * n_steps, 0, need), 1 if rule != "longest" else 0) if alone <= free else 0
        rows.append(Concurrency(rule, n, kv / n_steps / memory.unit, used / n_steps / memory.unit))
    return rows


def _dot(counts: Sizes, sizes: Sizes) -> int:
    """Sum of counts times sizes in Python integers: exact."""
    return int(np.dot(counts.astype(object), sizes.astype(object)))


def _stored(design: Design, last: int) -> Sizes:
    """Bits (numerator) that a sequence of s tokens stores, at index s = 0..last, piece by piece."""
    sizes, start = np.zeros(last + 1, np.int64), 1
    limits = limits_for(design.policy, design.input_tokens)
    while start <= last:
        end = min(last + 1, *(next_break(g, limits, start) for g in design.tensors))
        bits = sum(g.n_stored_layers * stored_bits(g, limits, start) for g in design.tensors)
        slope = sum(g.n_stored_layers * stored_bits_slope(g, limits, start) for g in design.tensors)
        sizes[start:end] = bits + slope * np.arange(end - start)
        start = end
    return sizes


def _padding(design: Design, last: int, page_tokens: int) -> Sizes:
    """Bits (numerator) of the unused slots of last pages, at index s = 0..last: the same in every page."""
    one_page = np.array([kv_cache.padding_tokens(s, page_tokens) for s in range(page_tokens)], np.int64)
    slots = np.resize(one_page, last + 1)
    sizes = np.zeros(last + 1, np.int64)
    for g in design.tensors:
        if not g.page_row_bits:
            kept = np.minimum(np.arange(last + 1), g.window_tokens)
            sizes += g.n_stored_layers * g.tail_bits * slots[kept]
    return sizes


def _byte_page_tails(design: Design, last: int) -> Sizes:
    """Bytes that pages (`dse.model.memory_unit`) leave unused, at index s = 0..last, whatever the rule."""
    sizes = np.zeros(last + 1, np.int64)
    for g in design.tensors:
        if g.page_row_bits:
            kept = np.minimum(np.arange(last + 1), g.window_tokens)
            sizes += g.n_stored_layers * elementwise(padding_bits)(g, kept, 1)
    return sizes


def _extra(memory: Point, last: int) -> Sizes:
    """Activations and workspace (numerator) of a sequence, at index s = 0..last."""
    if memory.work.prompt_chunk_tokens == 1 and "materialised" not in memory.paths.values():
        return np.full(last + 1, memory.extra_bits(1), np.int64)
    return np.array([memory.extra_bits(s) for s in range(last + 1)], np.int64)
