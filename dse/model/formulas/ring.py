"""Ring attention: a context in blocks on several devices that pass blocks or queries round (arXiv:2310.01889)."""

from dse.core.compiling import formula

_WHERE = "docs/explanation/model.md, Ring attention"


@formula("token", "ceil(n_tokens / n_ring)", "Ring Attention (arXiv:2310.01889) 3")
def ring_block_tokens(n_tokens: int, n_ring: int) -> int:
    """Tokens of the largest block when a context is spread over `n_ring` devices."""
    return -(-n_tokens // n_ring)


@formula(
    "1", "2 * kv_elements + 2 * hidden_size", "Ring Attention (arXiv:2310.01889) 3: six blocks of hidden_size in MHA"
)
def ring_buffer_elements(kv_elements: int, hidden_size: int) -> int:
    """Elements a token of a block that a device works with: keys and values at hand and arriving, query, output."""
    return 2 * kv_elements + 2 * hidden_size


@formula("1", "pairs (a, b) of block offsets with distance_blocks * c + a - b < W", _WHERE)
def ring_block_pairs(block_tokens: int, distance_blocks: int, window_tokens: int) -> int:
    """Query-key pairs of two blocks that lie `distance_blocks` >= 1 apart, queries in the later one; exact."""
    reach = window_tokens - distance_blocks * block_tokens
    if reach > 0:
        missing = max(block_tokens - reach, 0)
        return block_tokens * block_tokens - missing * (missing + 1) // 2
    near = max(block_tokens + reach, 1)
    return near * (near - 1) // 2


@formula("s", "hop_s + n_bytes / link_bytes_per_s", _WHERE)
def ring_transfer_s(n_bytes: float, link_bytes_per_s: float, hop_s: float) -> float:
    """Seconds to pass `n_bytes` to the next device; hop_s is what starting a transfer takes."""
    return hop_s + n_bytes / link_bytes_per_s


@formula("B", "n_sequences * n_q_heads * (2 * score_dim + 8)", _WHERE + ": FP16 query and output, two FP32 statistics")
def ring_message_bytes(n_sequences: int, n_q_heads: int, score_dim: int) -> int:
    """Bytes of one layer's queries and partial results of a decode step; score_dim = key dim + value dim of a head."""
    return n_sequences * n_q_heads * (2 * score_dim + 8)


@formula("s", "(n_ring - 1) * (2 * hop_s + message bytes / link)", _WHERE + ": queries round once, results round once")
def ring_pass_s(n_ring: float, message_bytes: float, link_bytes_per_s: float, hop_s: float) -> float:
    """Seconds that one layer of a decode step spends on passing queries and partial results."""
    return (n_ring - 1) * (2 * hop_s + message_bytes / link_bytes_per_s)


@formula(
    "token",
    "ceil(KV bytes a token * F / (FLOP a pair * link))",
    "Ring Attention (arXiv:2310.01889) 3: block size >= FLOPS / bandwidth in MHA",
)
def ring_hiding_block_tokens(
    kv_token_bytes: float, pair_flops: float, peak_flops_per_s: float, link_bytes_per_s: float
) -> float:
    """Smallest block whose computation hides passing the next one; starting transfers not counted."""
    return -(-(kv_token_bytes * peak_flops_per_s) // (pair_flops * link_bytes_per_s))
