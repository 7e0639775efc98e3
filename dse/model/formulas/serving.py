"""Moments of the requests of a traffic, and the cost of batches of unequal requests."""

from dse.core.compiling import formula


@formula(
    "token",
    "(E[I*O] + E[O*(O+1)] / 2) / E[O]",
    "docs/explanation/model.md, Traffic: the decode steps of a request read I+1 .. I+O tokens",
)
def mean_decode_context_tokens(
    mean_input_output: float, mean_output_squared: float, mean_output_tokens: float
) -> float:
    """Context of a decode step, averaged over the steps of all requests (long answers count more). Exact."""
    return (mean_input_output + (mean_output_squared + mean_output_tokens) / 2) / mean_output_tokens


@formula("1/s", "(n_requests - 1) / duration, from first to last arrival", "docs/explanation/model.md, Traffic")
def arrival_rate_per_s(n_requests: float, duration_s: float) -> float:
    """Mean rate of arrivals; the gaps are one fewer than the requests. duration_s > 0."""
    return (n_requests - 1) / duration_s


@formula("1", "E[largest of B outputs] / E[output]", "textbook section 9.2, 6; docs/explanation/model.md, Traffic")
def batching_gain(largest_output_tokens: float, mean_output_tokens: float) -> float:
    """Steps of a static batch, which runs until its longest answer ends, over those that continuous batching needs."""
    return largest_output_tokens / mean_output_tokens


@formula(
    "1", "E[longest prompt of B] / E[prompt]", "Oaken 6.2, Real-world benchmark; docs/explanation/model.md, Traffic"
)
def padding_factor(longest_input_tokens: float, mean_input_tokens: float) -> float:
    """Prompt tokens computed over those asked for where a batch is padded to its longest prompt."""
    return longest_input_tokens / mean_input_tokens


@formula("1", "1 - used / held", "PagedAttention (arXiv:2309.06180) 3; docs/explanation/model.md, Traffic")
def waste_share(held_bytes: float, used_bytes: float) -> float:
    """Share of the memory held for keys and values in which no token is stored, mean over time."""
    return 1 - used_bytes / held_bytes
