"""Operations and time of attention over the cached keys and values."""

from dse.core.compiling import formula


@formula(
    "FLOP",
    "2 * n_q_heads * score_dim",
    "docs/explanation/model.md, Steps and times: 4 * n_q * d for key and value dims of d each",
)
def attention_flops_per_token(n_q_heads: int, score_dim: int) -> int:
    """Operations of one layer per query token and cached token; score_dim = key dim + value dim of a head."""
    return 2 * n_q_heads * score_dim


@formula("s", "amount / rate", "bandwidth-bound or compute-bound time")
def time_at_rate(amount: float, rate_per_s: float) -> float:
    """Seconds to move `amount` bytes (or do operations, or unpack elements) at a rate."""
    return amount / rate_per_s


@formula("s", "max(FLOP / F, KV bytes / BW)", "docs/explanation/model.md, Steps and times")
def attention_s(flops: float, kv_read_bytes: float, peak_flops_per_s: float, bandwidth_bytes_per_s: float) -> float:
    """Seconds of attention in one decode step at one context length."""
    return max(flops / peak_flops_per_s, kv_read_bytes / bandwidth_bytes_per_s)
