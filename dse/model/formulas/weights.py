"""Bytes of the weights, and how many of them one step reads."""

from math import sqrt

from dse.core.compiling import formula


@formula(
    "B",
    "ceil(((n_dense - n_kept) * dense_eighths + n_kept * 128 + n_experts * expert_eighths) / 64)",
    "docs/explanation/model.md, Capacity",
)
def stored_weight_bytes(
    n_dense_parameters: int, n_kept_parameters: int, n_expert_parameters: int, dense_eighths: int, expert_eighths: int
) -> int:
    """Bytes of all weights; exact in integers. Eighths: bits of a parameter times 8, with scales where named formats
    have them; of those outside the experts, `n_kept_parameters` stay in 16 bits."""
    dense = (n_dense_parameters - n_kept_parameters) * dense_eighths + n_kept_parameters * 128
    return -(-(dense + n_expert_parameters * expert_eighths) // 64)


@formula(
    "B",
    "ceil((n_tower + n_copied) * 2 / n_stages) + n_table_elements * 2",
    "docs/explanation/model.md, Memory of a server",
)
def beside_bytes(n_tower_parameters: int, n_copied_parameters: int, n_table_elements: int, n_stages: int) -> int:
    """Bytes that a server's log counts among the weights, beside those of the language model: its towers, copies of
    latent attention's up-projections, and on every stage the tables of rotary positions; all in 16 bits."""
    return -(-2 * (n_tower_parameters + n_copied_parameters) // n_stages) + 2 * n_table_elements


@formula("B", "2 * (n_fullest - n_tables / n_stages); 0 in one stage", "docs/explanation/model.md, Memory of a server")
def end_stage_bytes(n_fullest_parameters: int, n_table_parameters: int, n_stages: int) -> int:
    """Bytes of embeddings in 16 bits that the fullest stage has beyond an even share of all of them; negative where a
    stage between the ends is fuller."""
    if n_stages == 1:
        return 0
    return -(-2 * (n_stages * n_fullest_parameters - n_table_parameters) // n_stages)


@formula("B", "ceil(n_parameters * weights_bits / 8)", "docs/explanation/model.md, Capacity")
def weight_bytes(n_parameters: int, weights_bits: int) -> int:
    """Bytes of weights of as many bits; scales are not counted (about 1 to 3 %)."""
    return stored_weight_bytes(n_parameters, 0, 0, 8 * weights_bits, 0)


@formula("1", "base ** exponent by repeated squaring", "kept to multiplications: the same bits in Python and numba")
def integer_power(base: float, exponent: int) -> float:
    """base ** exponent for exponent >= 0, with multiplications only."""
    result = 1.0
    while exponent > 0:
        if exponent % 2 == 1:
            result = result * base
        base = base * base
        exponent = exponent // 2
    return result


@formula("1", "1 - (1 - k / E) ** n_tokens", "docs/explanation/model.md: routing independent and even over the experts")
def expert_share_touched(n_tokens: int, n_experts: float, n_active_experts: float) -> float:
    """Expected share of the experts that `n_tokens` tokens use; 1 where there is one expert."""
    return 1.0 - integer_power(1.0 - n_active_experts / n_experts, n_tokens)


@formula(
    "1", "min(share + fullest * (share * (1 - share) / experts)^0.5, 1)", "docs/explanation/model.md, Steps and times"
)
def fullest_share(share: float, experts_each: float, fullest: float) -> float:
    """Share of its experts that the fullest of several devices reads, where tokens reach `share` of all experts, each
    by itself; `fullest` is in standard deviations above the mean. 0 experts each: every device has a slice of all."""
    if experts_each == 0.0:
        return share
    return min(share + fullest * sqrt(max(share * (1.0 - share), 0.0) / experts_each), 1.0)


@formula(
    "B",
    "((n_dense - n_kept) * dense_eighths + n_kept * 128 + n_experts * share_touched * expert_eighths) / 64",
    "docs/explanation/model.md, Steps and times",
)
def weight_read_bytes(
    n_dense_parameters: float,
    n_kept_parameters: float,
    n_expert_parameters: float,
    share_touched: float,
    dense_eighths: float,
    expert_eighths: float,
) -> float:
    """Bytes of weights that one step reads: all of a dense model, the touched experts of a mixture."""
    dense = (n_dense_parameters - n_kept_parameters) * dense_eighths + n_kept_parameters * 128
    return (dense + n_expert_parameters * share_touched * expert_eighths) / 64
