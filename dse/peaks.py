"""Lengths at which sequences that grow together take most memory: just before a group is packed, or at the end."""

import math
from collections.abc import Callable

from dse.formulas import kv_cache
from dse.plan import KvPlan, TensorGroup


def lengths(plan: KvPlan, first: int, last: int, prefix_tokens: int = 0, page_tokens: int = 1) -> list[int]:
    """Lengths in first..last among which n sequences, sharing `prefix_tokens`, are largest, for any n.

    Between two packing events a batch only grows. From one event to the next the dip repeats, ever higher, within a
    regime: no window fills, no token of the prompt is dropped, the prefix stays packed or unpacked. So the largest
    length is the end of a regime, or lies at most one period before it, just before a group is packed; where pages
    are counted, at a page's first token.
    """
    ends = {last, *(end for end in plan.regime_ends if first <= end <= last)}
    if prefix_tokens:
        packed = (_prefix_packed(g, prefix_tokens) - 1 for g in plan.groups)
        ends.update(end for end in (prefix_tokens, *packed) if first <= end <= last)
    found = {first, *ends, *(end + 1 for end in ends if end < last)}  # a regime may be shorter than a page
    if plan.packings:
        period = math.lcm(page_tokens, *(step for step, _ in plan.packings))
        for end in ends:
            entered = plan.limits.entered(end)
            for step, residual in plan.packings:
                event = end - (entered - residual) % step
                found.update(range(event - 1, max(end - period, first) - 1, -step))
    if page_tokens > 1:
        starts = {length - (plan.limits.entered(length) - 1) % page_tokens for length in found}
        found.update(length for length in starts if length >= first)
    return sorted(found)


def _prefix_packed(g: TensorGroup, prefix_tokens: int) -> int:
    """First length at which more tokens than the prefix are packed: from there on the shared part is constant."""
    return (prefix_tokens // g.step_tokens + 1) * g.step_tokens + g.residual_tokens


def sum_of_shared_bits(plan: KvPlan, first: int, last: int, prefix_tokens: int) -> int:
    """`plan.shared_bits` summed over the lengths first..last >= prefix_tokens; closed form, exact."""
    total = 0
    for g in plan.groups:
        inside_window = min(last, g.whole_tokens)
        if g.page_row_bits:  # the same pages from the first token after the prefix to the window's end
            n_lengths = max(inside_window + 1 - first, 0)
            at_prefix = g.shared_bits(prefix_tokens, prefix_tokens) if first == prefix_tokens else 0
            after = g.shared_bits(prefix_tokens + 1, prefix_tokens) if inside_window > prefix_tokens else 0
            total += g.n_stored_layers * (at_prefix + after * (n_lengths - (first == prefix_tokens)))
            continue
        turn = min(max(_prefix_packed(g, prefix_tokens), first), inside_window + 1)

        def packed_up_to(n: int, g: TensorGroup = g) -> int:
            return kv_cache.sum_of_packed_tokens(n, g.step_tokens, g.residual_tokens)

        if turn > first:  # some tokens of the prefix are not packed yet
            packed = packed_up_to(turn - 1) - packed_up_to(first - 1)
            unpacked = (turn - first) * prefix_tokens - packed
            index = (turn - first) * prefix_tokens * g.index_bits
            total += g.n_stored_layers * (packed * g.packed_bits + unpacked * g.full_bits + index)
        if inside_window >= turn:  # whole groups of it are shared
            whole = prefix_tokens // g.step_tokens * g.step_tokens
            total += g.n_stored_layers * (inside_window + 1 - turn) * whole * (g.packed_bits + g.index_bits)
    return total


def longest(
    largest: Callable[[int], int], free: int, most_tokens: int, step_tokens: int, never_falls: bool
) -> int | None:
    """Longest length whose `largest`, what is needed on the way to it, is at most `free`; 0 where that of 1 is not.

    None where all up to `most_tokens`, a power of two, fit. `step_tokens` are packed at once. Where `largest`
    `never_falls` the answer does not depend on how it is sought, and is sought on the chord.
    """
    if largest(1) > free:
        return 0
    low, high = (_on_the_chord if never_falls else _by_doubling)(largest, free, most_tokens, step_tokens)
    if high > most_tokens:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if largest(middle) <= free:
            low = middle
        else:
            high = middle
    return low


def _by_doubling(largest: Callable[[int], int], free: int, most_tokens: int, step_tokens: int) -> tuple[int, int]:
    """A length that fits and twice that, which does not; the second beyond `most_tokens` where all fit."""
    high = 2
    while high <= most_tokens and largest(high) <= free:
        high *= 2
    return high // 2, high


def _on_the_chord(largest: Callable[[int], int], free: int, most_tokens: int, step_tokens: int) -> tuple[int, int]:
    """The same, close together: memory is nearly a straight line of the length, but for what is packed at once."""
    low, high = 1, most_tokens
    at_low, at_high = largest(low), largest(high)
    if at_high <= free:
        return high, high + 1
    for _ in range(4):
        guess = low + (free - at_low) * (high - low) // (at_high - at_low)
        if not low < guess < high:
            break
        needed = largest(guess)
        if needed <= free:
            low, at_low = guess, needed
        else:
            high, at_high = guess, needed
    while low + step_tokens < high and largest(low + step_tokens) <= free:
        low, step_tokens = low + step_tokens, 2 * step_tokens
    return low, min(low + step_tokens, high)
