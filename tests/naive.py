"""Slow twins: the models written again as loops over tokens, layers and groups, sharing no code with `dse`.

Expected values of the property tests come from here; every function is short enough to check by eye.
"""

from fractions import Fraction

#: tokens packed and tokens in the buffer after 0, 1, 2, ... tokens, by (step, residual): each is walked once
_WALKS: dict = {}


def packed_tokens(n, step, residual):
    """Append n tokens to a buffer one by one; whenever it holds step + residual, pack its oldest `step`."""
    packed, buffer = _WALKS.setdefault((step, residual), ([0], [0]))
    while len(packed) <= n:
        held, is_full = buffer[-1] + 1, buffer[-1] + 1 == step + residual
        packed.append(packed[-1] + step if is_full else packed[-1])
        buffer.append(held - step if is_full else held)
    return packed[n]


def tensor_bits(n, packed_bits, full_bits, once, pool, step, residual):
    """Bits of one tensor after n appended tokens."""
    packed = packed_tokens(n, step, residual)
    tokens = packed * Fraction(packed_bits) + (n - packed) * full_bits
    return tokens + (once if n else 0) + (pool if packed else 0)


def seen_tokens(n, window, chunked):
    """Tokens that the last of n sees: of a window the newest, in chunks those since the last one began."""
    count = 0
    for _ in range(n):
        count = 1 if chunked and count == window else min(count + 1, window)
    return count


def sequence_bits(groups, n):
    """Bits over all tensors: groups of (layers, packed, full, once, pool, step, residual, window)."""
    return sum(
        layers * tensor_bits(min(n, window), packed, full, once, pool, step, residual)
        for layers, packed, full, once, pool, step, residual, window in groups
    )


def shared_bits(groups, n, prefix):
    """Bits of n tokens that a common prefix shares: token by token, packed ones only in groups wholly inside it."""
    total = 0
    for layers, packed_bits, full_bits, _, _, step, residual, window in groups:
        if n > window:  # the first tokens have left
            continue
        packed, n_full, n_packed = packed_tokens(n, step, residual), 0, 0
        for token in range(min(prefix, n)):
            if token >= packed:
                n_full += 1
            elif token // step * step + step <= prefix:
                n_packed += 1
        total += layers * (n_full * full_bits + n_packed * packed_bits)
    return total


def pages(n, page):
    """Pages that n tokens take."""
    count = 0
    while count * page < n:
        count += 1
    return count


def page_bits(n, slice_bits, n_heads, page):
    """Bits of the pages that n tokens take: every head of every stream fills pages of its own, token by token."""
    total = 0
    for bits in slice_bits:
        for _ in range(n_heads):
            pages_in_use, filled = 0, Fraction(0)
            for _ in range(n):
                filled += Fraction(bits)
                while filled > pages_in_use * page:
                    pages_in_use += 1
            total += pages_in_use * page
    return total


def shared_page_bits(n, prefix, slice_bits, other_bits, n_heads, page):
    """What sequences of n tokens share of a common prefix: the pages that it fills, and a token's other bits.

    Sequences that are nothing but prefix so far share their last pages too.
    """
    if n <= prefix:
        return page_bits(n, slice_bits, n_heads, page) + n * other_bits
    total = prefix * other_bits
    for bits in slice_bits:
        full = 0
        while (full + 1) * page <= prefix * Fraction(bits):
            full += 1
        total += n_heads * full * page
    return total


def written_bits(slice_bits, other_bits, n_heads, burst):
    """Bits that the memory takes for one token: every slice of a head in whole bursts."""
    total = Fraction(other_bits)
    for bits in slice_bits:
        bursts = 0
        while bursts * burst < bits:
            bursts += 1
        total += n_heads * bursts * burst
    return total


def decode_step(flops, read_bytes, unpack_s, extra_bytes, peak, bandwidth):
    """Attention and exposed dequantization of one step, in exact fractions of a second."""
    attention = max(Fraction(flops) / peak, Fraction(read_bytes) / bandwidth)
    exposed = max(Fraction(0), unpack_s - attention) + Fraction(extra_bytes) / bandwidth
    return attention, exposed


def naive_states_bytes(model, n_in, n_out):
    """Bytes that the decode steps of one request move: caches read, 16 bits an element, states read and written."""
    total = 0
    for length in range(n_in + 1, n_in + n_out + 1):
        for layer in model.layers:
            kept = min(length, layer.window or length, layer.read_limit_tokens or length)
            row = layer.n_kv_heads * (layer.key_dim + layer.value_dim) * 2 / layer.tokens_per_entry
            index = length * layer.index_bits / 8 if layer.read_limit_tokens and layer.read_limit_tokens < 10**9 else 0
            states = 2 * layer.state_bytes if layer.state_flops else 0
            total += layer.n_layers * (kept * row + index + states)
    return total
