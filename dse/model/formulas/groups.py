"""Groups of requests that step together, each with prompts of its own (`--dp-attention`)."""

from dse.core.compiling import formula
from dse.model.formulas.weights import integer_power

_SOURCE = "docs/explanation/model.md, Steady state"


@formula("1", "1 - (1 - group_share)^groups", _SOURCE)
def some_share(group_share: float, n_groups: int) -> float:
    """Share of the steps in which at least one group works on a prompt, where each does in `group_share` of them,
    independently."""
    return 1.0 - integer_power(1.0 - group_share, n_groups)


@formula("s", "steps / n * ((1 - some_share) * decode_s + some_share * mixed_s)", _SOURCE)
def grouped_request_s(n_steps: float, n_sequences: float, some_share: float, decode_s: float, mixed_s: float) -> float:
    """Seconds that a request costs where groups step together: of the steps that it runs in, `some_share` last as long
    as a prompt of some group, the others a decode step."""
    return n_steps / n_sequences * ((1.0 - some_share) * decode_s + some_share * mixed_s)
