"""What fits: largest batch, smallest capacity, waves. Integers: bytes as numerators over a denominator."""

from dse.formulas.core import formula


@formula("B", "floor(capacity * usable_frac) - weights - overhead", "docs/model.md, Capacity")
def free_bytes(capacity_bytes, usable_frac, weight_bytes, overhead_bytes):
    """Bytes left for KV and activations; negative when the weights do not fit."""
    usable = capacity_bytes if usable_frac == 1 else int(capacity_bytes * usable_frac)
    return usable - weight_bytes - overhead_bytes


@formula("sequence", "floor((free - shared) / per_sequence), not negative", "docs/model.md, Capacity")
def max_batch(free, shared, per_sequence):
    """Most sequences that fit, all arguments in the same unit. per_sequence > 0."""
    return max((free - shared) // per_sequence, 0)


@formula("1", "ceil(batch / max_batch)", "docs/model.md: waves when a batch does not fit")
def n_waves(n_sequences, max_batch):
    """Rounds in which a batch is served. max_batch >= 1."""
    return -(-n_sequences // max_batch)


@formula("sequence", "ceil(batch / n_waves)", "docs/model.md: waves differ by at most one request")
def running_batch(n_sequences, n_waves):
    """Sequences of the largest wave."""
    return -(-n_sequences // n_waves)
