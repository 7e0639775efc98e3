"""Limits on times: which servers keep them, how surely, and up to which rate."""

from collections.abc import Mapping
from typing import Any

from dse.model import uncertainty
from dse.questions.common import TIE
from dse.serving.at_rate import waits_at
from dse.serving.steady_state import TrafficServer

#: limits that may be set, by column
LIMITS = ("tpot_s", "ttft_s")
#: share of the saturated rate up to which times at a rate hold in closed form
MOST_LOAD = 0.9
#: share of the saturated rate below which none is looked for, and halvings of the interval of rates
LEAST_LOAD, N_HALVINGS = 0.001, 30


def keeps(row: Mapping[str, Any], limits: Mapping[str, float]) -> float:
    """The chance that a design keeps the limit that it is likeliest to miss; 1 where there is none."""
    return min((uncertainty.chance_of(row, column, most) for column, most in limits.items()), default=1.0)


def within(row: Mapping[str, Any], limits: Mapping[str, float]) -> bool:
    """True where a design keeps every limit at the upper end of its interval: what is promised of a load."""
    return all(uncertainty.ends(row, column)[1] <= most * (1 + TIE) for column, most in limits.items())


def within_as_computed(row: Mapping[str, Any], limits: Mapping[str, float]) -> bool:
    """True where a design keeps every limit as computed, whatever its interval."""
    return all(float(row[column]) <= most for column, most in limits.items())


def rate_within(server: TrafficServer, full_requests_per_s: float, limits: Mapping[str, float]) -> float | None:
    """Most requests a second at which the times of a server keep their limits (seconds by column) as computed, found by
    halving below what it serves when it is always full; None where hardly any rate does."""

    def is_kept(requests_per_s: float) -> bool:
        waits = waits_at(server, requests_per_s)
        return waits is not None and all(getattr(waits, name) <= limit for name, limit in limits.items())

    low, high = LEAST_LOAD * full_requests_per_s, full_requests_per_s
    if not is_kept(low):
        return None
    for _ in range(N_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_kept(middle) else (low, middle)
    return low
