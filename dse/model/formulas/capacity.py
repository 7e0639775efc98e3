"""What fits: largest batch, smallest capacity, waves. Integers: bytes as numerators over a denominator."""

from dse.core.compiling import ceil, formula


@formula("B", "floor(capacity * usable_frac) - weights - overhead", "docs/model.md, Capacity")
def free_bytes(capacity_bytes, usable_frac, weight_bytes, overhead_bytes):
    """Bytes left for KV and activations; negative when the weights do not fit."""
    usable = capacity_bytes if usable_frac == 1 else int(capacity_bytes * usable_frac)
    return usable - weight_bytes - overhead_bytes


@formula("B", "smallest C with floor(C * usable_frac) >= needed + weights + overhead", "docs/model.md, Capacity")
def min_capacity_bytes(needed_bytes, usable_frac, weight_bytes, overhead_bytes):
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


@formula("sequence", "floor((free - shared) / per_sequence), not negative", "docs/model.md, Capacity")
def max_batch(free, shared, per_sequence):
    """Most sequences that fit, all arguments in the same unit. per_sequence > 0."""
    return max((free - shared) // per_sequence, 0)


@formula("1", "ceil(batch / max_batch)", "docs/model.md: waves when a batch does not fit")
def n_waves(n_sequences, max_batch):
    """Rounds in which a batch is served. max_batch >= 1; a quotient of whole numbers below 2^53 never rounds to the
    wrong side of a whole number."""
    return ceil(n_sequences / max_batch)


@formula("sequence", "ceil(batch / n_waves)", "docs/model.md: waves differ by at most one request")
def running_batch(n_sequences, n_waves):
    """Sequences of the largest wave."""
    return ceil(n_sequences / n_waves)
