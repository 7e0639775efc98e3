"""Time of the matrix products with the weights, which a batch shares."""

from dse.formulas.core import formula


@formula("s", "2 * P_active * n_tokens / F", "docs/model.md, Steps and times")
def linear_compute_s(n_tokens, active_parameters, peak_flops_per_s):
    """Seconds of the multiplications of one pass over `n_tokens` tokens."""
    return 2 * active_parameters * n_tokens / peak_flops_per_s


@formula("s", "max(2 * P_active * n_tokens / F, weight bytes / BW)", "docs/model.md, Steps and times")
def linear_s(n_tokens, active_parameters, weight_read_bytes, peak_flops_per_s, bandwidth_bytes_per_s):
    """Seconds of one pass over `n_tokens` tokens (decode: one a sequence). Peak rates; batchable, so read once."""
    return max(
        linear_compute_s(n_tokens, active_parameters, peak_flops_per_s), weight_read_bytes / bandwidth_bytes_per_s
    )


@formula("FLOP/B", "flops / bytes", "roofline (Williams et al., CACM 2009)")
def arithmetic_intensity(flops, n_bytes):
    """Operations per byte read."""
    return flops / n_bytes
