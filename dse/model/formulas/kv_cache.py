"""Bits that the KV cache of one sequence occupies. Integer arithmetic throughout.

Bits are counted as numerators over a common denominator that the plan carries, because nominal outlier shares
give fractions of a bit; without such shares the denominator is 1 and every number is a count of bits.
"""

from dse.core.compiling import Number, formula
from dse.quantizers.base import packed_tokens


@formula(
    "token",
    "min(n_tokens, window_tokens)",
    "docs/explanation/model.md, KV bytes: a window stores min(s, W); Mistral (arXiv:2310.06825) 2",
)
def kept_tokens(n_tokens: int, window_tokens: int) -> int:
    """Tokens a layer stores at length `n_tokens`. Valid for window_tokens >= 1."""
    return min(n_tokens, window_tokens)


@formula(
    "token",
    "n_tokens - floor((n_tokens - 1) / chunk_tokens) * chunk_tokens",
    "Llama 4: a token attends to its own chunk (attention_chunk_size in config.json of Llama-4-Scout-17B-16E)",
)
def chunk_tokens_seen(n_tokens: int, chunk_tokens: int) -> int:
    """Tokens of the chunk that the last of `n_tokens` lies in, up to itself; 0 of none."""
    return n_tokens - max(n_tokens - 1, 0) // chunk_tokens * chunk_tokens


@formula(
    "token",
    "sum over s = 1..n of packed(s) = step * (step * k * (k - 1) / 2 + (r + 1) * k), n - residual = k * step + r",
    "docs/explanation/model.md, KV bytes",
)
def sum_of_packed_tokens(n_tokens: int, step_tokens: int, residual_tokens: int) -> int:
    """Packed tokens summed over the lengths 1..n_tokens; exact in integers."""
    beyond = max(n_tokens - residual_tokens, 0)
    events = beyond // step_tokens
    rest = beyond - events * step_tokens
    return step_tokens * (step_tokens * (events * (events - 1) // 2) + (rest + 1) * events)


@formula(
    "bit",
    "packed * packed_bits_per_token + (n_tokens - packed) * full_bits_per_token"
    " + once_bits [n_tokens > 0] + pool_bits [packed > 0]",
    "docs/explanation/model.md, Bits",
)
def tensor_bits(
    n_tokens: int,
    packed_bits_per_token: int,
    full_bits_per_token: int,
    once_bits: int,
    pool_bits: int,
    step_tokens: int,
    residual_tokens: int,
) -> int:
    """Bits (numerator) of one tensor of one layer and sequence at `n_tokens` kept tokens."""
    packed = packed_tokens(n_tokens, step_tokens, residual_tokens)
    bits = packed * packed_bits_per_token + (n_tokens - packed) * full_bits_per_token
    if n_tokens > 0:
        bits = bits + once_bits
    if packed > 0:
        bits = bits + pool_bits
    return bits


@formula("token", "ceil(n_tokens / page_tokens) * page_tokens - n_tokens", "PagedAttention (arXiv:2309.06180) 4")
def padding_tokens(n_tokens: int, page_tokens: int) -> int:
    """Unused token slots of the last page. Valid for page_tokens >= 1; at most page_tokens - 1."""
    return (-n_tokens) % page_tokens


@formula(
    "token",
    "sum over s = 1..n of ceil(s / p) = p * k * (k + 1) / 2 + r * (k + 1), n = k * p + r",
    "docs/explanation/model.md, KV bytes",
)
def sum_of_pages(n_tokens: int, page_tokens: int) -> int:
    """Pages in use, summed over the lengths 1..n_tokens; exact in integers."""
    full = n_tokens // page_tokens
    rest = n_tokens - full * page_tokens
    return page_tokens * full * (full + 1) // 2 + rest * (full + 1)


@formula("token", "sum over s = 1..n of min(s, W)", "docs/explanation/model.md, KV bytes")
def sum_of_kept_tokens(n_tokens: Number, window_tokens: int) -> Number:
    """Tokens kept, summed over the lengths 1..n_tokens; exact in integers. Also the score pairs of a causal prompt."""
    inside = min(n_tokens, window_tokens)
    return inside * (inside + 1) // 2 + (n_tokens - inside) * window_tokens


@formula(
    "token",
    "floor(n / C) * sum of min(s, W) over s = 1..C + the same over s = 1..(n mod C)",
    "docs/explanation/model.md, KV bytes: chunks of C tokens",
)
def sum_of_seen_tokens(n_tokens: Number, window_tokens: int, chunk_tokens: int) -> Number:
    """Score pairs of a causal prompt in chunks, each token with `window_tokens` of its own chunk; exact in integers."""
    chunks = n_tokens // chunk_tokens
    rest = n_tokens - chunks * chunk_tokens
    if chunks == 0:
        return sum_of_kept_tokens(rest, window_tokens)
    return chunks * sum_of_kept_tokens(chunk_tokens, window_tokens) + sum_of_kept_tokens(rest, window_tokens)


@formula(
    "token",
    "sum over n = 1..N of sum over s = 1..n of min(s, W) = W' (W' + 1) (W' + 2) / 6"
    " + (N - W') W (W + 1) / 2 + W (N - W') (N - W' + 1) / 2, W' = min(N, W)",
    "docs/explanation/model.md, No KV cache",
)
def sum_of_causal_pairs(n_tokens: Number, window_tokens: int) -> Number:
    """Score pairs of causal prompts of 1, 2, ... n_tokens tokens, all together; exact in integers."""
    inside = min(n_tokens, window_tokens)
    beyond = n_tokens - inside
    grown = inside * (inside + 1) // 2 * beyond + window_tokens * (beyond * (beyond + 1) // 2)
    return inside * (inside + 1) * (inside + 2) // 6 + grown


@formula(
    "token",
    "sum over n = 1..N of sum over s = 1..n of seen(s) = T (C q (q - 1) / 2 + q r) + q P(C) + P(r), N = q C + r,"
    " T = C (C + 1) / 2, P(n) = n (n + 1) (n + 2) / 6",
    "docs/explanation/model.md, No KV cache",
)
def sum_of_chunked_pairs(n_tokens: Number, chunk_tokens: int) -> Number:
    """Score pairs of causal prompts of 1, 2, ... n_tokens tokens in chunks, all together; exact in integers."""
    chunks = n_tokens // chunk_tokens
    rest = n_tokens - chunks * chunk_tokens
    alone = sum_of_causal_pairs(rest, chunk_tokens)
    if chunks == 0:
        return alone
    whole = sum_of_kept_tokens(chunk_tokens, chunk_tokens)
    before = whole * (chunk_tokens * (chunks * (chunks - 1) // 2) + chunks * rest)
    return before + chunks * sum_of_causal_pairs(chunk_tokens, chunk_tokens) + alone


@formula("1", "ceil(n_sequences / samples)", "docs/explanation/model.md, Capacity")
def n_prompts(n_sequences: int, samples: int) -> int:
    """Prompts of `n_sequences`, of which each has `samples` but for the last."""
    return -(-n_sequences // samples)


@formula(
    "bit",
    "floor(kv_bits / (1000 * n_layers)) * permille * n_away",
    "FlexGen (Sheng et al. 2023, 3.2): a share of the cache in host memory, fetched layer by layer",
)
def offloaded_bits(kv_bits: int, permille: int, n_away: int, n_layers: int) -> int:
    """Bits of keys and values in host memory: `permille` of 1,000 in `n_away` of all layers."""
    return kv_bits // (1000 * n_layers) * (permille * n_away)


@formula(
    "token",
    "the first prefix_tokens, in whole groups of step_tokens where they are packed",
    "textbook section 5 (prefix caching); a group that mixes sequences cannot be shared",
)
def shareable_tokens(prefix_tokens: int, packed: int, step_tokens: int) -> int:
    """Tokens of a common prefix that one copy can serve, when `packed` tokens of the sequence are quantised."""
    if prefix_tokens >= packed:
        return prefix_tokens
    return prefix_tokens // step_tokens * step_tokens


@formula(
    "token",
    "next length after n_tokens at which a tensor's bits leave their straight line",
    "docs/explanation/model.md: pieces end where a window fills or a group is packed",
)
def next_break(n_tokens: int, step_tokens: int, residual_tokens: int, window_tokens: int) -> int:
    """First length > n_tokens that starts a new straight piece, or 2**62 if there is none."""
    if n_tokens > window_tokens:
        return 2**62
    fill = window_tokens + 1
    if step_tokens == 1:
        return min(residual_tokens + 1, fill) if n_tokens <= residual_tokens else fill
    packing = packed_tokens(n_tokens, step_tokens, residual_tokens) + step_tokens + residual_tokens
    return min(packing, fill) if packing <= window_tokens else fill


@formula("bit", "bits that the next token adds inside a straight piece", "docs/explanation/model.md, Steps and times")
def piece_slope(
    n_tokens: int, packed_slope: int, full_slope: int, step_tokens: int, residual_tokens: int, window_tokens: int
) -> int:
    """Slope of the piece that starts at `n_tokens`: packed, full-precision, or 0 beyond the window."""
    if n_tokens >= window_tokens:
        return 0 * packed_slope
    if step_tokens == 1 and n_tokens >= residual_tokens:
        return packed_slope
    return full_slope
