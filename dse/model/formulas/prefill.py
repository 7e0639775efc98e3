"""Time of the prompt: matrix products over all prompt tokens, and attention quadratic in the prompt."""

from dse.core.compiling import formula


@formula("s", "matrix_s + attention FLOP / (flops_frac * F)", "docs/explanation/model.md, Prefill")
def prefill_compute_s(matrix_s: float, attention_flops: float, flops_frac: float, peak_flops_per_s: float) -> float:
    """Seconds of the prompt without quantising its keys and values; flops_frac is 1 in the ideal model."""
    return matrix_s + attention_flops / (flops_frac * peak_flops_per_s)
