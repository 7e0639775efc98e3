"""Time of the matrix products with the weights, which a batch shares."""

import math

from dse.core.compiling import formula


@formula("s", "2 * P_active * n_tokens / F", "docs/explanation/model.md, Steps and times")
def linear_compute_s(n_tokens: float, active_parameters: float, peak_flops_per_s: float) -> float:
    """Seconds of the multiplications of one pass over `n_tokens` tokens."""
    return 2 * active_parameters * n_tokens / peak_flops_per_s


@formula("s", "max(2 * P_active * n_tokens / F, weight bytes / BW)", "docs/explanation/model.md, Steps and times")
def linear_s(
    n_tokens: float,
    active_parameters: float,
    weight_read_bytes: float,
    peak_flops_per_s: float,
    bandwidth_bytes_per_s: float,
) -> float:
    """Seconds of one pass over `n_tokens` tokens (decode: one a sequence). Peak rates; batchable, so read once."""
    return max(
        linear_compute_s(n_tokens, active_parameters, peak_flops_per_s), weight_read_bytes / bandwidth_bytes_per_s
    )


@formula("1", "4 * n_layers + 1", "QKV, output, gate and up, down in each layer; the output head")
def matrix_products(n_layers: int) -> int:
    """Matrix products that one pass starts, with fused QKV and gate-up weights; experts as one grouped product."""
    return 4 * n_layers + 1


@formula("1", "(attention + feed-forward) * n_layers + 1", "docs/explanation/calibration.md, Whole steps")
def served_products(n_layers: int, is_latent: bool, has_experts: bool) -> int:
    """Matrix products that a pass starts as servers run it: of attention two, five with latent heads (two that go down,
    one up, and the products that absorb keys and values); of a feed-forward two, beside routed experts the router and,
    with latent heads, two of shared experts."""
    attention = 5 if is_latent else 2
    feed_forward = (3 if is_latent else 1) if has_experts else 2
    return (attention + feed_forward) * n_layers + 1


@formula(
    "s",
    "n_products * launch + sqrt(compute^2 + memory^2)",
    "docs/explanation/calibration.md, The form, summed over products",
)
def linear_calibrated_s(n_products: float, launch_s: float, compute_s: float, memory_s: float) -> float:
    """Seconds of all matrix products of a pass: equal in their rows, so their times add before the root."""
    return n_products * launch_s + math.sqrt(compute_s * compute_s + memory_s * memory_s)


@formula("FLOP/B", "flops / bytes", "roofline (Williams et al., CACM 2009)")
def arithmetic_intensity(flops: float, n_bytes: float) -> float:
    """Operations per byte read."""
    return flops / n_bytes
