"""Memory that a sequence needs on its way from prompt to last token, and what fits: batch, context, capacity.

Sizes are whole numbers in units of 1 / den bit, so "it fits" is never a rounding.
"""

from typing import NamedTuple

from dse.core.compiling import compilable, inlined, making
from dse.model.formulas import activations, kv_cache
from dse.model.kv_bytes import (
    Limits,
    entered_tokens,
    keeps_all,
    length_of_entered,
    limits_for,
    prefix_packed_from,
    read_tokens,
    sequence_bits,
    shared_bits,
    unit_of,
    window_of,
)
from dse.model.records import MATERIALISED, Design, Policy

#: contexts are searched up to here; a design that still fits has no limit (every layer has a window)
MAX_CONTEXT_TOKENS = 2**40
#: what `longest_context` gives where there is no limit
NO_CONTEXT_LIMIT = -1
#: straight lines that a search for the longest context draws before it halves
MAX_GUESSES = 8
#: whole numbers below are exact as int64 with room for sums
WIDE = 2**61


class Size(NamedTuple):
    """Bits of sequences of one length: a shared part, and the part that each adds."""

    shared: int
    own: int


@compilable
def shared_prefix_tokens(design: Design, limits: Limits) -> int:
    """Shared prompt tokens that count: whole pages where memory is paged, none where a policy drops some."""
    prefix = design.load.prefix_tokens if design.load.samples == 1 else design.input_tokens
    if not keeps_all(limits):
        return 0
    return prefix - prefix % design.load.page_tokens if design.load.is_paged else prefix


@inlined
def n_shared(design: Design, n_sequences: int) -> int:
    """Shared parts that `n_sequences` keep: one of a common prefix, else one for the answers of each prompt."""
    return 1 if design.load.samples == 1 else kv_cache.n_prompts(n_sequences, design.load.samples)


@compilable
def activation_tokens(design: Design, n_tokens: int) -> int:
    """Tokens of one sequence that are worked on at once at a context of `n_tokens`: all without a KV cache."""
    if design.load.has_cache:
        chunk = design.load.chunk_tokens
        return activations.activation_tokens(n_tokens, design.input_tokens, design.output_tokens, chunk)
    return n_tokens


@compilable
def activation_bytes(design: Design, n_tokens: int) -> int:
    """Bytes of activations of one sequence at a context of `n_tokens`: the widest operation of a layer.

    None where a server has set aside what its largest batch of prompt tokens takes.
    """
    model = design.model
    if design.memory.is_server:
        return 0
    return activations.activation_bytes(
        activation_tokens(design, n_tokens),
        model.activation_elements,
        model.logits_elements,
        design.load.activation_bits,
    )


@compilable
def workspace_bytes(design: Design, limits: Limits, n_tokens: int) -> int:
    """FP16 keys and values of one layer and sequence that the materialised path keeps for the layer it works on.

    Where a method's code pads the token dimension for its product (NQKV 3.3), the padding counts.
    """
    most = total = 0
    shape = -1
    for g in design.tensors:
        if g.shape != shape:  # keys and values of a layer follow each other
            total, shape = 0, g.shape
        if g.path == MATERIALISED:
            kept = read_tokens(g, limits, n_tokens)
            total += g.n_elements * (kept + kv_cache.padding_tokens(kept, g.tile_tokens))
            most = max(most, total)
    return 2 * most


@compilable
def extra_bits(design: Design, limits: Limits, n_tokens: int) -> int:
    """Activations, workspace and places of drafted tokens of one sequence, in the unit of its bits; where a step joins
    keys and values to the new ones by copies, these or the activations of its prompt, which come before."""
    extra = unit_of(design) * activation_bytes(design, n_tokens) + design.memory.lookahead_bits
    if design.memory.cache_copies > 1:
        extra = max(extra, (design.memory.cache_copies - 1) * sequence_bits(design, limits, n_tokens))
    return extra + unit_of(design) * workspace_bytes(design, limits, n_tokens)


@compilable
def on_device(design: Design, kv_bits: int) -> int:
    """Bits of keys and values in the device's memory: the rest lies in host memory, but for two layers of
    each stage, the one that is read and the next, which is fetched meanwhile."""
    permille, n_layers = design.load.offloaded_permille, design.model.n_layers
    if permille == 0:
        return kv_bits
    n_away = max(n_layers - 2 * design.deployment.n_stages, 0)
    return kv_bits - kv_cache.offloaded_bits(kv_bits, permille, n_away, n_layers)


@compilable
def size_at(design: Design, limits: Limits, prefix_tokens: int, n_tokens: int) -> Size:
    """Count the shared and own bits of sequences of `n_tokens`."""
    shared = shared_bits(design, limits, n_tokens, prefix_tokens)
    own_bits = on_device(design, sequence_bits(design, limits, n_tokens) - shared)
    return Size(shared, own_bits + extra_bits(design, limits, n_tokens))


@making
def _add(lengths: list[int], limits: Limits, n_tokens: int, first: int, page_tokens: int) -> None:
    """Put a length and the first token of its page on the list."""
    lengths.append(n_tokens)
    if page_tokens > 1:
        start = n_tokens - (entered_tokens(limits, n_tokens) - 1) % page_tokens
        if start != n_tokens and start >= first:
            lengths.append(start)


@making
def _add_regime(
    lengths: list[int], design: Design, limits: Limits, period: int, first: int, last: int, end: int
) -> None:
    """Put on the list the end of a regime, its first length after, and those just before a group is packed."""
    page_tokens = design.load.page_tokens
    if not first <= end <= last:
        return
    _add(lengths, limits, end, first, page_tokens)
    if end < last:
        _add(lengths, limits, end + 1, first, page_tokens)
    entered = entered_tokens(limits, end)
    step = residual = 0
    for g in design.tensors:
        if g.step_tokens == 1 or (g.step_tokens == step and g.residual_tokens == residual):
            continue
        step, residual = g.step_tokens, g.residual_tokens
        event = end - (entered - residual) % step
        while event > max(end - period, first):
            _add(lengths, limits, event - 1, first, page_tokens)
            event -= step


@compilable
def packing_period(design: Design) -> int:
    """Tokens after which pages and packing events stand to each other as before."""
    period = design.load.page_tokens
    for g in design.tensors:
        if g.step_tokens > 1:
            a, b = period, g.step_tokens
            while b:
                a, b = b, a % b
            period = period // a * g.step_tokens
    return period


@making
def peak_lengths(design: Design, limits: Limits, prefix_tokens: int, first: int, last: int) -> list[int]:
    """Lengths in first..last among which n sequences that grow together are largest, for any n; some twice.

    Between two packing events a batch only grows. From one event to the next the dip repeats, ever higher, within a
    regime: no window fills, no token of the prompt is dropped, the prefix stays packed or unpacked. So the largest
    length is the end of a regime, or lies at most one period before it, just before a group is packed; where pages
    are counted, at a page's first token.
    """
    lengths, period = [first], packing_period(design)
    _add_regime(lengths, design, limits, period, first, last, last)
    kept = limits.prompt_kept_tokens
    _add_regime(lengths, design, limits, period, first, last, kept)
    if limits.dropped_tokens:
        _add_regime(lengths, design, limits, period, first, last, kept + limits.dropped_tokens)
    window = step = residual = 0
    for g in design.tensors:
        tensor_window = window_of(g, limits)
        if tensor_window != window:
            window = tensor_window
            _add_regime(lengths, design, limits, period, first, last, length_of_entered(limits, tensor_window))
        if prefix_tokens > 0 and (g.step_tokens != step or g.residual_tokens != residual):
            step, residual = g.step_tokens, g.residual_tokens
            _add_regime(lengths, design, limits, period, first, last, prefix_packed_from(g, prefix_tokens) - 1)
    if prefix_tokens > 0:
        _add_regime(lengths, design, limits, period, first, last, prefix_tokens)
    return lengths


@making
def _needed(design: Design, limits: Limits, n_sequences: int, known: int, last: int) -> int:
    """Most that `n_sequences` need while they grow together beyond `known` tokens to `last`."""
    most, prefix_tokens = 0, shared_prefix_tokens(design, limits)
    lengths = peak_lengths(design, limits, prefix_tokens, known, last)
    for i in range(1, len(lengths)):
        size = size_at(design, limits, prefix_tokens, lengths[i])
        most = max(most, n_shared(design, n_sequences) * size.shared + n_sequences * size.own)
    return most


@making
def _needed_after_prompt(design: Design, n_sequences: int, n_tokens: int) -> int:
    """Most that `n_sequences` need up to `n_tokens`, of which the output leaves the prompt that a policy follows."""
    first, most = max(n_tokens - design.output_tokens, 1), 0
    limits = limits_for(design.policy, first)
    prefix_tokens = shared_prefix_tokens(design, limits)
    for length in peak_lengths(design, limits, prefix_tokens, first, n_tokens):
        size = size_at(design, limits, prefix_tokens, length)
        most = max(most, n_shared(design, n_sequences) * size.shared + n_sequences * size.own)
    return most


@compilable
def follows_prompt(policy: Policy) -> bool:
    """True where the limits of a policy depend on the prompt's length by more than rounding its shares of it."""
    if policy.evicts == 0 or policy.rolls or policy.budget_tokens:
        return policy.evicts == 1
    return policy.heavy * policy.of_recent + policy.recent * policy.of_heavy < policy.of_heavy * policy.of_recent


@compilable
def longest_context(design: Design, free: int, n_sequences: int) -> int:
    """Longest context at which `n_sequences` fit into `free`, with every shorter one; 0 for none.

    `NO_CONTEXT_LIMIT` where all up to `MAX_CONTEXT_TOKENS` fit. Where a policy follows the prompt, what is needed may
    fall with the length: then the first doubling that does not fit bounds the search.
    """
    if not follows_prompt(design.policy):
        return _longest_where_it_grows(design, limits_for(design.policy, design.input_tokens), free, n_sequences)
    if _needed_after_prompt(design, n_sequences, 1) > free:
        return 0
    high = 2
    while high <= MAX_CONTEXT_TOKENS and _needed_after_prompt(design, n_sequences, high) <= free:
        high *= 2
    if high > MAX_CONTEXT_TOKENS:
        return NO_CONTEXT_LIMIT
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if _needed_after_prompt(design, n_sequences, middle) <= free:
            low = middle
        else:
            high = middle
    return low


@compilable
def is_bounded(design: Design) -> bool:
    """True where windows keep the memory of a sequence from growing for ever."""
    window = 0
    for g in design.tensors:
        window = max(window, min(g.window_tokens, design.policy.window_tokens))
    return design.load.has_cache > 0 and window < MAX_CONTEXT_TOKENS


@compilable
def most_bits(design: Design, n_tokens: int) -> float:
    """No sequence of `n_tokens` takes more, with what is worked on; a quick bound, in floats."""
    policy, model, load = design.policy, design.model, design.load
    n = float(n_tokens) + max(-policy.dropped_tokens, 0)
    most, per_byte = 0.0, float(unit_of(design))
    for g in design.tensors:
        kept = min(n, float(g.window_tokens)) + load.page_tokens + g.step_tokens
        bits = float(max(g.packed_bits, g.full_bits)) + g.index_bits
        most += float(max(g.n_stored_layers, g.n_read_layers)) * (
            kept * bits + g.once_bits + g.pool_bits + 2.0 * g.page_row_bits
        )
        most += per_byte * 4.0 * g.n_elements * (n + g.tile_tokens)
    return (
        design.memory.cache_copies * most + per_byte * n * max(model.activation_elements, model.logits_elements) * 2.0
    )


@compilable
def _longest_where_it_grows(design: Design, limits: Limits, free: int, n_sequences: int) -> int:
    """`longest_context` where what is needed never falls, so that only what lies beyond a context that fits is asked.

    Memory is nearly a straight line of the length, a whole number of packing periods apart quite: each guess is where a
    line through the last two would meet `free`. Guesses beyond twice of what fits are made only where int64 holds what
    they need.
    """
    low, high, at_low, period = 1, MAX_CONTEXT_TOKENS + 1, _needed(design, limits, n_sequences, 1, 1), 1
    if at_low > free:
        return 0
    holds_all = is_bounded(design) and n_sequences * most_bits(design, MAX_CONTEXT_TOKENS) < WIDE
    if holds_all and _needed(design, limits, n_sequences, 1, MAX_CONTEXT_TOKENS) <= free:
        return NO_CONTEXT_LIMIT
    guess = design.input_tokens + design.output_tokens
    for _ in range(MAX_GUESSES):
        if n_sequences * most_bits(design, guess) >= WIDE:
            guess = min(guess, 2 * low)
        needed = max(at_low, _needed(design, limits, n_sequences, low, guess))
        rate = (needed - at_low) / (guess - low)
        if needed <= free:
            low, at_low, period = guess, needed, packing_period(design)
        else:
            high = guess
        room = int(min((free - at_low) / max(rate, 1.0), 2.0**41)) // period * period
        guess = min(low + room, high - 1)
        if guess == low:
            break
    step = period
    while low + step < high and low < MAX_CONTEXT_TOKENS:
        if _needed(design, limits, n_sequences, low, low + step) <= free:
            low += step
            step = min(2 * step, low)
        else:
            high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if _needed(design, limits, n_sequences, low, middle) <= free:
            low = middle
        else:
            high = middle
    return NO_CONTEXT_LIMIT if low == MAX_CONTEXT_TOKENS else low
