"""Bits that keys and values take: by tensor, by sequence, and how they grow from token to token.

Sums over tensors of formulas of `dse.model.formulas`, under the limits that a token policy sets for a prompt.
"""

from collections.abc import Sequence
from typing import NamedTuple

from dse.core.compiling import Number, compilable
from dse.model.formulas import kv_cache, memory_unit, tokens
from dse.model.records import NO_LIMIT, Design, Layer, Policy, Tensor


class Limits(NamedTuple):
    """Limits of a token policy for one prompt, in tokens (dse/model/formulas/tokens.py)."""

    window_tokens: int
    prompt_kept_tokens: int
    dropped_tokens: int


@compilable
def unit_of(design: Design) -> int:
    """Bits of the sums over all layers, over the model's denominator, that make a byte of one stage's device."""
    return 8 * design.model.den * design.deployment.n_stages


@compilable
def limits_for(policy: Policy, input_tokens: int) -> Limits:
    """The limits of a policy for a prompt of `input_tokens`."""
    kept, dropped, window = policy.prompt_kept_tokens, policy.dropped_tokens, policy.window_tokens
    if policy.evicts:
        kept = policy.budget_tokens
        if kept == 0:
            shares = input_tokens * policy.heavy // policy.of_heavy + input_tokens * policy.recent // policy.of_recent
            kept = max(shares, 1)
        if policy.rolls:
            window = kept
        if kept >= input_tokens:
            kept = NO_LIMIT
        else:
            dropped = input_tokens - kept
    return Limits(window, kept, dropped)


@compilable
def keeps_all(limits: Limits) -> bool:
    """True where every token stays stored, however few of them a step reads."""
    return limits.window_tokens == NO_LIMIT and limits.dropped_tokens == 0


@compilable
def entered_tokens(limits: Limits, n_tokens: int) -> int:
    """Tokens that have come into the cache at a context of `n_tokens`, whether or not a window keeps them."""
    return tokens.entered_tokens(n_tokens, limits.prompt_kept_tokens, limits.dropped_tokens)


@compilable
def length_of_entered(limits: Limits, entered: int) -> int:
    """Shortest context at which `entered` tokens have come into the cache."""
    return tokens.length_of_entered(entered, limits.prompt_kept_tokens, limits.dropped_tokens)


@compilable
def window_of(g: Tensor, limits: Limits) -> int:
    """Most tokens that a tensor stores."""
    return min(g.window_tokens, limits.window_tokens)


@compilable
def read_window_of(g: Tensor, limits: Limits) -> int:
    """Most tokens of a tensor that a step reads."""
    return min(window_of(g, limits), g.read_limit_tokens)


@compilable
def stored_tokens(g: Tensor, limits: Limits, n_tokens: int) -> int:
    """Tokens stored at a context of `n_tokens`."""
    return kv_cache.kept_tokens(entered_tokens(limits, n_tokens), window_of(g, limits))


@compilable
def seen_tokens(g: Tensor, limits: Limits, n_tokens: int) -> int:
    """Entered tokens that a step could read: those of its own chunk, where a layer reads in chunks."""
    return kv_cache.chunk_tokens_seen(entered_tokens(limits, n_tokens), g.chunk_tokens)


@compilable
def read_tokens(g: Tensor, limits: Limits, n_tokens: int) -> int:
    """Tokens that a step reads at a context of `n_tokens`."""
    return kv_cache.kept_tokens(seen_tokens(g, limits, n_tokens), read_window_of(g, limits))


@compilable
def packed_tokens_ever(g: Tensor, limits: Limits, n_tokens: int) -> int:
    """Tokens quantised by length n, whether or not a window still keeps them; none where a window never packs."""
    if window_of(g, limits) < g.step_tokens + g.residual_tokens:
        return 0
    return kv_cache.packed_tokens(entered_tokens(limits, n_tokens), g.step_tokens, g.residual_tokens)


@compilable
def bits_of(g: Tensor, kept: int) -> int:
    """Bits of one layer's tensor with `kept` tokens, its index left out."""
    return kv_cache.tensor_bits(
        kept, g.packed_bits, g.full_bits, g.once_bits, g.pool_bits, g.step_tokens, g.residual_tokens
    )


@compilable
def stored_bits(g: Tensor, limits: Limits, n_tokens: int) -> int:
    """Bits that one layer and sequence stores at a context of `n_tokens`."""
    kept = stored_tokens(g, limits, n_tokens)
    return bits_of(g, kept) + kept * g.index_bits


@compilable
def token_slope(g: Tensor, limits: Limits, n_tokens: int, packed: int, full: int, window: int) -> int:
    """Slope of the piecewise-linear bit count at `n_tokens`, with `packed` and `full` per token of each kind.

    0 while the prompt drops tokens.
    """
    first = limits.prompt_kept_tokens
    if first <= n_tokens < first + limits.dropped_tokens:
        return 0
    entered = entered_tokens(limits, n_tokens)
    return kv_cache.piece_slope(entered, packed, full, g.step_tokens, g.residual_tokens, window)


@compilable
def stored_bits_slope(g: Tensor, limits: Limits, n_tokens: int) -> int:
    """Stored bits that the next token adds inside the straight piece at `n_tokens`."""
    window = window_of(g, limits)
    added = token_slope(g, limits, n_tokens, g.packed_bits, g.full_bits, window)
    if g.index_bits:
        added += g.index_bits * token_slope(g, limits, n_tokens, 1, 1, window)
    return added


class Reading(NamedTuple):
    """Tokens and bits of a tensor that a step reads in one layer and sequence, each with its slope per token."""

    tokens: int
    tokens_slope: int
    #: quantised ones among them
    packed: int
    packed_slope: int
    bits: int
    bits_slope: int


@compilable
def reading_of(g: Tensor, limits: Limits, n_tokens: int) -> Reading:
    """Count the tokens and bits that a step reads at a context of `n_tokens`.

    The bits are those of a cache of the tokens read, and of the index over all stored ones.
    """
    entered, window = entered_tokens(limits, n_tokens), window_of(g, limits)
    read_window, seen = min(window, g.read_limit_tokens), kv_cache.chunk_tokens_seen(entered, g.chunk_tokens)
    kept = kv_cache.kept_tokens(seen, read_window)
    bits, grows, packs, packed = bits_of(g, kept), 0, 0, 0
    first = limits.prompt_kept_tokens
    drops = first <= n_tokens < first + limits.dropped_tokens  # nothing is added while the prompt drops tokens
    if not drops:
        grows = kv_cache.piece_slope(seen, 1, 1, g.step_tokens, g.residual_tokens, read_window)
        packs = kv_cache.piece_slope(seen, 1, 0, g.step_tokens, g.residual_tokens, read_window)
    slope = packs * g.packed_bits + (grows - packs) * g.full_bits
    if g.index_bits:
        bits += kv_cache.kept_tokens(entered, window) * g.index_bits
        if not drops:
            slope += g.index_bits * kv_cache.piece_slope(entered, 1, 1, g.step_tokens, g.residual_tokens, window)
    if g.is_packed:
        packed = kv_cache.packed_tokens(kept, g.step_tokens, g.residual_tokens)
    return Reading(tokens=kept, tokens_slope=grows, packed=packed, packed_slope=packs, bits=bits, bits_slope=slope)


@compilable
def next_break(g: Tensor, limits: Limits, n_tokens: int) -> int:
    """First length after `n_tokens` that starts a new straight piece of what is stored or read."""
    entered, window, read_window = entered_tokens(limits, n_tokens), window_of(g, limits), read_window_of(g, limits)
    end = kv_cache.next_break(entered, g.step_tokens, g.residual_tokens, window)
    seen = kv_cache.chunk_tokens_seen(entered, g.chunk_tokens)
    if read_window != window or g.chunk_tokens != NO_LIMIT:
        chunk_break = min(kv_cache.next_break(seen, g.step_tokens, g.residual_tokens, read_window), g.chunk_tokens + 1)
        end = min(end, entered - seen + chunk_break)
    length = length_of_entered(limits, end)
    if limits.prompt_kept_tokens >= n_tokens:
        length = min(length, limits.prompt_kept_tokens + 1)
    if limits.prompt_kept_tokens + limits.dropped_tokens >= n_tokens:
        length = min(length, limits.prompt_kept_tokens + limits.dropped_tokens + 1)
    return length


@compilable
def padding_bits(g: Tensor, kept: int, page_tokens: int) -> int:
    """Bits of the unused slots of the last page of one layer and sequence with `kept` tokens."""
    if g.page_row_bits:
        dense = memory_unit.page_tail_bits(kept, g.dense_stream_bits, g.page_row_bits)
        return dense + memory_unit.page_tail_bits(kept, g.sparse_stream_bits, g.page_row_bits)
    return g.tail_bits * kv_cache.padding_tokens(kept, page_tokens)


@compilable
def _sum_of_page_tails(g: Tensor, window: int, entered: int) -> int:
    """Sum the bits that last pages leave unused while `entered` tokens come in one by one."""
    inside = min(entered, window)
    dense = memory_unit.sum_of_page_tail_bits(inside, g.dense_stream_bits, g.page_row_bits)
    sparse = memory_unit.sum_of_page_tail_bits(inside, g.sparse_stream_bits, g.page_row_bits)
    return dense + sparse + (entered - inside) * padding_bits(g, inside, 1)


@compilable
def sum_of_padding_bits(g: Tensor, limits: Limits, n_tokens: int, page_tokens: int) -> int:
    """`padding_bits` summed over the lengths 1..n_tokens; closed form, exact."""
    kept, dropped, window = limits.prompt_kept_tokens, limits.dropped_tokens, window_of(g, limits)
    if g.page_row_bits == 0:
        return g.tail_bits * tokens.sum_of_padding_tokens(n_tokens, kept, dropped, window, page_tokens)
    still = min(max(n_tokens - kept, 0), max(dropped, 0))
    grown = _sum_of_page_tails(g, window, entered_tokens(limits, n_tokens))
    grown -= _sum_of_page_tails(g, window, entered_tokens(limits, 0))
    return grown + still * padding_bits(g, min(kept, window), page_tokens)


@compilable
def shared_bits_of(g: Tensor, limits: Limits, n_tokens: int, prefix_tokens: int) -> int:
    """Bits of one layer and sequence of `n_tokens` that a common prefix lets sequences share."""
    if n_tokens > min(window_of(g, limits), limits.prompt_kept_tokens):
        return 0  # a window has moved past the start of the prompt, or tokens were evicted
    index = min(prefix_tokens, n_tokens) * g.index_bits
    if g.page_row_bits:  # pages that the prefix fills; a sequence that is nothing but prefix is shared whole
        if n_tokens <= prefix_tokens:
            return n_tokens * g.packed_bits + padding_bits(g, stored_tokens(g, limits, n_tokens), 1) + index
        whole = memory_unit.whole_page_bits(prefix_tokens, g.dense_stream_bits, g.page_row_bits)
        whole += memory_unit.whole_page_bits(prefix_tokens, g.sparse_stream_bits, g.page_row_bits)
        return whole + prefix_tokens * (g.packed_bits - (g.dense_stream_bits + g.sparse_stream_bits)) + index
    packed = kv_cache.packed_tokens(stored_tokens(g, limits, n_tokens), g.step_tokens, g.residual_tokens)
    shared = kv_cache.shareable_tokens(min(prefix_tokens, n_tokens), packed, g.step_tokens)
    inside = min(shared, packed)
    return inside * g.packed_bits + (shared - inside) * g.full_bits + shared * g.index_bits


@compilable
def prefix_packed_from(g: Tensor, prefix_tokens: int) -> int:
    """First length at which more tokens than the prefix are packed: from there on the shared part is constant."""
    return (prefix_tokens // g.step_tokens + 1) * g.step_tokens + g.residual_tokens


@compilable
def sum_of_shared_bits(g: Tensor, limits: Limits, first: int, last: int, prefix_tokens: int) -> int:
    """`shared_bits_of` summed over the lengths first..last >= prefix_tokens; closed form, exact."""
    inside_window = min(last, min(window_of(g, limits), limits.prompt_kept_tokens))
    if g.page_row_bits:  # the same pages from the first token after the prefix to the window's end
        n_lengths = max(inside_window + 1 - first, 0)
        total = 0
        if first == prefix_tokens:
            total += shared_bits_of(g, limits, prefix_tokens, prefix_tokens)
            n_lengths -= 1
        if inside_window > prefix_tokens:
            total += n_lengths * shared_bits_of(g, limits, prefix_tokens + 1, prefix_tokens)
        return total
    total = 0
    turn = min(max(prefix_packed_from(g, prefix_tokens), first), inside_window + 1)
    if turn > first:  # some tokens of the prefix are not packed yet
        packed = kv_cache.sum_of_packed_tokens(turn - 1, g.step_tokens, g.residual_tokens)
        packed -= kv_cache.sum_of_packed_tokens(first - 1, g.step_tokens, g.residual_tokens)
        unpacked = (turn - first) * prefix_tokens - packed
        total += packed * g.packed_bits + unpacked * g.full_bits + (turn - first) * prefix_tokens * g.index_bits
    if inside_window >= turn:  # whole groups of it are shared
        whole = prefix_tokens // g.step_tokens * g.step_tokens
        total += (inside_window + 1 - turn) * whole * (g.packed_bits + g.index_bits)
    return total


@compilable
def sequence_bits(design: Design, limits: Limits, n_tokens: int) -> int:
    """Bits of one sequence of `n_tokens`, page padding included; none where no cache is kept."""
    total = 0
    if design.load.has_cache:
        entered = entered_tokens(limits, n_tokens)
        for g in design.tensors:
            kept = kv_cache.kept_tokens(entered, window_of(g, limits))
            padding = padding_bits(g, kept, design.load.page_tokens)
            total += g.n_stored_layers * (bits_of(g, kept) + kept * g.index_bits + padding)
    return total


@compilable
def shared_bits(design: Design, limits: Limits, n_tokens: int, prefix_tokens: int) -> int:
    """Bits of a sequence of `n_tokens` that a common prefix lets all sequences share."""
    total = 0
    if prefix_tokens > 0:
        for g in design.tensors:
            total += g.n_stored_layers * shared_bits_of(g, limits, n_tokens, prefix_tokens)
    return total


@compilable
def n_elements(design: Design, limits: Limits, n_tokens: int) -> int:
    """Elements that one sequence stores at a context of `n_tokens`."""
    total = 0
    for g in design.tensors:
        total += g.n_stored_layers * g.n_elements * stored_tokens(g, limits, n_tokens)
    return total


@compilable
def attention_flops(layers: Sequence[Layer], limits: Limits, n_tokens: int) -> int:
    """Operations of attention in one decode step of one sequence, scoring for sparse reading included."""
    entered, total = entered_tokens(limits, n_tokens), 0
    for layer in layers:
        window = min(layer.window_tokens, limits.window_tokens)
        seen = kv_cache.chunk_tokens_seen(entered, layer.chunk_tokens)
        pairs = kv_cache.kept_tokens(seen, min(window, layer.read_limit_tokens))
        total += layer.n_layers * pairs * layer.pair_flops
        if layer.index_flops:
            total += layer.n_layers * kv_cache.kept_tokens(entered, window) * layer.index_flops
    return total


@compilable
def prompt_flops(layers: Sequence[Layer], prompt_window_tokens: int, n_tokens: Number) -> Number:
    """Operations of causal attention over a prompt of one sequence."""
    total = 0 * n_tokens
    for layer in layers:
        window = min(layer.window_tokens, prompt_window_tokens, layer.read_limit_tokens)
        pairs = kv_cache.sum_of_seen_tokens(n_tokens, window, layer.chunk_tokens)
        total += layer.n_layers * (pairs * layer.prompt_pair_flops + n_tokens * layer.prompt_token_flops)
        if layer.index_flops:
            total += layer.n_layers * kv_cache.sum_of_kept_tokens(n_tokens, layer.window_tokens) * layer.index_flops
    return total


@compilable
def causal_flops(layers: Sequence[Layer], first: Number, last: Number) -> Number:
    """Operations of causal attention over whole prefixes of first, ..., last tokens of one sequence; exact."""
    total = 0 * last
    for layer in layers:
        if layer.chunk_tokens == NO_LIMIT:
            pairs = kv_cache.sum_of_causal_pairs(last, layer.window_tokens)
            pairs -= kv_cache.sum_of_causal_pairs(first - 1, layer.window_tokens)
        else:
            pairs = kv_cache.sum_of_chunked_pairs(last, layer.chunk_tokens)
            pairs -= kv_cache.sum_of_chunked_pairs(first - 1, layer.chunk_tokens)
        total += layer.n_layers * pairs * layer.prompt_pair_flops
    return total
