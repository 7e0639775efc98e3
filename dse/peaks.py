"""Lengths at which sequences that grow together take most memory: just before a group is packed, or at the end."""

import math

from dse.formulas import kv_cache
from dse.plan import KvPlan, TensorGroup


def lengths(plan: KvPlan, first: int, last: int, prefix_tokens: int = 0, page_tokens: int = 1) -> list[int]:
    """Lengths in first..last among which n sequences, sharing `prefix_tokens`, are largest, for any n.

    Between two packing events a batch only grows. From one event to the next the dip repeats, ever higher, within a
    regime: no window fills, no token of the prompt is dropped, the prefix stays packed or unpacked. So the largest
    length is the end of a regime, or lies at most one period before it, just before a group is packed; where pages
    are counted, at a page's first token.
    """
    ends = {last}
    for g in plan.groups:
        ends.update((g.length_of(g.window_tokens), *g.limits.ends))
        if prefix_tokens:
            ends.update((prefix_tokens, _prefix_packed(g, prefix_tokens) - 1))
    period = math.lcm(page_tokens, *(g.step_tokens for g in plan.groups))
    found = {first, *(end + 1 for end in ends if first <= end < last)}  # a regime may be shorter than a page
    for end in ends:
        if first <= end <= last:
            found.add(end)
            for g in plan.groups:
                if g.step_tokens > 1:
                    event = end - (g.entered(end) - g.residual_tokens) % g.step_tokens
                    found.update(e - 1 for e in range(event, max(end - period, first), -g.step_tokens))
    starts = {length - (plan.limits.entered(length) - 1) % page_tokens for length in found}
    return sorted(found | {length for length in starts if length >= first})


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
