"""Largest batch, smallest capacity, waves. Integers: bytes as numerators over a denominator."""

from dse.core.compiling import ceil, formula


@formula("B", "floor(capacity * usable_frac) - weights - overhead", "docs/explanation/model.md, Capacity")
def free_bytes(capacity_bytes: int, usable_frac: float, weight_bytes: int, overhead_bytes: int) -> int:
    """Bytes left for KV and activations; negative when the weights do not fit."""
    usable = capacity_bytes if usable_frac == 1 else int(capacity_bytes * usable_frac)
    return usable - weight_bytes - overhead_bytes


@formula(
    "B", "smallest C with floor(C * usable_frac) >= needed + weights + overhead", "docs/explanation/model.md, Capacity"
)
def min_capacity_bytes(needed_bytes: int, usable_frac: float, weight_bytes: int, overhead_bytes: int) -> int:
    """Smallest memory that leaves `needed_bytes` free; the inverse of `free_bytes`, exact. 0 < usable_frac <= 1."""
    wanted = needed_bytes + weight_bytes + overhead_bytes
    if usable_frac == 1:
        return wanted
    guess = wanted / usable_frac
    low, high = int(guess * (1 - 1e-15)) - 2, int(guess * (1 + 1e-15)) + 2
    while high - low > 1:
        middle = (low + high) // 2
        if free_bytes(middle, usable_frac, 0, 0) >= wanted:
            high = middle
        else:
            low = middle
    return high


@formula(
    "B",
    "min(share_of_free * (share * reported - held + outside), usable_frac * reported - held), each rounded down",
    "docs/explanation/model.md, Memory of a server",
)
def pool_bytes(
    reported_bytes: int, share: float, share_of_free: float, usable_frac: float, held_bytes: int, outside_bytes: int
) -> int:
    """Bytes that a server gives to keys and values; negative when what it holds beside them does not fit.

    `held_bytes` are weights, activations, graphs and buffers, of which `outside_bytes` lie beside the share.
    """
    left = free_bytes(reported_bytes, share, held_bytes - outside_bytes, 0)
    if left > 0:
        left = free_bytes(left, share_of_free, 0, 0)
    return min(left, free_bytes(reported_bytes, usable_frac, held_bytes, 0))


@formula("B", "smallest reported memory with pool >= needed", "docs/explanation/model.md, Memory of a server")
def min_reported_bytes(
    needed_bytes: int, share: float, share_of_free: float, usable_frac: float, held_bytes: int, outside_bytes: int
) -> int:
    """Smallest memory, as its driver reports it, whose pool has `needed_bytes` > 0; the inverse of `pool_bytes`."""
    left = min_capacity_bytes(needed_bytes, share_of_free, 0, 0)
    return max(
        min_capacity_bytes(left, share, held_bytes - outside_bytes, 0),
        min_capacity_bytes(needed_bytes, usable_frac, held_bytes, 0),
    )


@formula(
    "token",
    "floor(free / ceil(block * per_sequence / n_tokens)) * block",
    "docs/explanation/model.md, Memory of a server",
)
def pool_tokens(free: int, per_sequence: int, n_tokens: int, block_tokens: int) -> int:
    """KV tokens of whole blocks in `free`, where a sequence of `n_tokens` takes `per_sequence`, in the same unit."""
    whole, rest = per_sequence // n_tokens, per_sequence % n_tokens
    block = whole * block_tokens - -rest * block_tokens // n_tokens
    return max(free // max(block, 1), 0) * block_tokens


@formula(
    "1",
    "full_groups * ceil(n / full_block) + window_groups * (ceil(min(n, kept) / window_block) + spare) + state_blocks",
    "docs/explanation/model.md, Memory of a server: vLLM, vllm/v1/core/kv_cache_utils.py",
)
def request_blocks(
    n_tokens: int,
    full_groups: int,
    full_block_tokens: int,
    window_groups: int,
    window_block_tokens: int,
    kept_tokens: int,
    spare_blocks: int,
    state_blocks: int,
) -> int:
    """Blocks of one request of `n_tokens`, of which layers with a window keep `kept_tokens` at most."""
    full = full_groups * -(-n_tokens // full_block_tokens)
    windowed = window_groups * (-(-min(n_tokens, kept_tokens) // window_block_tokens) + spare_blocks)
    return max(full + windowed + state_blocks, 1)


@formula("token", "floor(n_blocks / n_groups) * block_tokens", "docs/explanation/model.md, Memory of a server")
def tokens_of_groups(n_blocks: int, n_groups: int, block_tokens: int) -> int:
    """Tokens as a server prints them that divides its blocks among groups of layers."""
    return n_blocks // n_groups * block_tokens


@formula("token", "floor(n_blocks / request_blocks * n_tokens)", "docs/explanation/model.md, Memory of a server")
def tokens_of_requests(n_blocks: int, request_blocks: int, n_tokens: int) -> int:
    """Tokens of as many requests of `n_tokens` as there are blocks for, a part of one counted as a part."""
    return int(n_blocks / request_blocks * n_tokens)


@formula("sequence", "n_blocks / request_blocks", "docs/explanation/model.md, Memory of a server")
def concurrency(n_blocks: int, request_blocks: int) -> float:
    """Requests of the longest context that there are blocks for, a part of one counted as a part."""
    return n_blocks / request_blocks


@formula("sequence", "floor((free - shared) / per_sequence), not negative", "docs/explanation/model.md, Capacity")
def max_batch(free: int, shared: int, per_sequence: int) -> int:
    """Most sequences that fit, all arguments in the same unit; one that adds nothing counts as a unit."""
    return max((free - shared) // max(per_sequence, 1), 0)


@formula(
    "sequence",
    "samples * floor(free / (shared + samples * per_sequence)) + floor((rest - shared) / per_sequence), of the rest",
    "docs/explanation/model.md, Capacity",
)
def most_answers(free: int, shared: int, per_sequence: int, samples: int) -> int:
    """Most answers that fit where `samples` of one prompt share a part and add another each, all in the same unit.

    The last prompt may have fewer answers than the others. With 1 sample all sequences share one common part.
    """
    if samples == 1:
        return max_batch(free, shared, per_sequence)
    # no product far beyond what is free
    group = shared + samples * per_sequence if per_sequence <= free // samples else free + 1
    n_whole = max(free // max(group, 1), 0)
    return n_whole * samples + max_batch(free - n_whole * group, shared, per_sequence)


@formula("1", "ceil(batch / max_batch)", "docs/explanation/model.md: waves when a batch does not fit")
def n_waves(n_sequences: float, max_batch: float) -> float:
    """Rounds in which a batch is served. max_batch >= 1; a quotient of whole numbers below 2^53 never rounds to the
    wrong side of a whole number."""
    return ceil(n_sequences / max_batch)


@formula("sequence", "ceil(batch / n_waves)", "docs/explanation/model.md: waves differ by at most one request")
def running_batch(n_sequences: float, n_waves: float) -> float:
    """Sequences of the largest wave."""
    return ceil(n_sequences / n_waves)
