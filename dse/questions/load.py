"""TPOT and TTFT at fractions of the saturated request rate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from dse.core.columns import Column, cells
from dse.core.errors import InputError, show
from dse.model import engine, uncertainty
from dse.model.kv_layout import KvPlan
from dse.model.point import Point
from dse.questions.common import QuestionAnswer, age_text, limits_text
from dse.questions.interactivity import LIMITS
from dse.serving.at_rate import waits_at
from dse.serving.steady_state import FixedLengths, TrafficServer
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import Workload

#: shares of what a server that is always full serves; above the last the closed form does not hold
LOADS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
#: loads above which nothing is said of how many servers hold them
MOST_LOAD = 1e6
#: share of the saturated rate below which none is looked for, and halvings of the interval of rates
LEAST_LOAD, N_HALVINGS = 0.001, 30
COLUMNS = (
    Column("design", title=""),
    Column("load", form=".2f"),
    Column("requests_per_s", title="requests/s", form=".4g"),
    Column("tokens_per_s", title="token/s", form=",.4g"),
    Column("tpot_s", title="TPOT (ms)", form=".4g", times=1e3),
    Column("ttft_s", title="TTFT (s)", form=".4g"),
    Column("place_wait_s", title="queueing (s)", form=".3f"),
    Column("running_requests", title="decoding", form=".3g"),
    Column("prompt_share", title=""),
)


@dataclass(frozen=True, repr=False)
class UnderLoad(QuestionAnswer):
    """Means over requests, a row a load; `full_requests_per_s` is that of a full server, None where nothing fits."""

    design: str
    context: str
    full_requests_per_s: float | None
    rows: tuple[dict[str, Any], ...]
    #: most seconds of times that are asked for, by column
    limits: dict[str, float] = field(default_factory=dict)
    #: the upper end of the interval of each time over what is computed, by column
    late: dict[str, float] = field(default_factory=dict)
    #: asked for rates between the rows
    server: TrafficServer | None = field(default=None, compare=False, repr=False)
    age: str = ""

    @cached_property
    def table(self) -> pd.DataFrame:
        """The rows, in SI base units."""
        return pd.DataFrame(self.rows, columns=[column.name for column in COLUMNS])

    def to_json(self) -> dict[str, Any]:
        """All of it, in SI base units."""
        return {
            "question": "load",
            "design": self.design,
            "context": self.context,
            "full_requests_per_s": self.full_requests_per_s,
            "rows": list(self.rows),
            "limits_s": self.limits,
            "requests_per_s_within": self.most_within(self.limits) if self.limits else None,
            "requests_per_s_within_as_computed": self.most_within(self.limits, False) if self.limits else None,
            "age": self.age,
        }

    def text(self) -> str:
        """A table, and what its columns mean."""
        lines = [f"TPOT and TTFT as the load rises: {self.context}", ""]
        if self.full_requests_per_s is None:
            return "\n".join([*lines, "No request fits: give more devices (--tp), fewer bits, or shorter prompts."])
        lines += ["".join(f"{cell:>16}" for cell in row) for row in cells(COLUMNS, self.rows)]
        end = (
            f"Load 1 is {self.full_requests_per_s:.4g} requests/s, a saturated server (for more, add servers); "
            "requests of equal lengths arrive at random (Poisson).\nQueueing: the part of TTFT spent waiting for a "
            "free slot. Decoding: requests that decode at a time, in the mean."
        )
        if any(row["tpot_s"] is None for row in self.rows):
            end += " An answer of one token has no TPOT."
        if not self.rows:
            end += " No rate below that holds in closed form: `dse simulate --rate` runs the requests one by one."
        if self.limits and self.rows:
            end = f"{self.within_text(self.limits)}\n{end}"
        return "\n".join([*lines, "", end, *filter(None, [self.age])])

    def most_within(self, limits: Mapping[str, float], is_sure: bool = True) -> float | None:
        """Most requests a second at which every time keeps its limit (seconds by column) at the upper end of its
        interval, or as computed, found by halving; None where hardly any rate does."""
        limits = {name: limit / (self.late.get(name, 1.0) if is_sure else 1.0) for name, limit in limits.items()}
        if self.server is None or not self.full_requests_per_s:
            return None
        return rate_within(self.server, self.full_requests_per_s, limits)

    def within_text(self, limits: Mapping[str, float]) -> str:
        """The most requests a second within limits, in a sentence."""
        said = limits_text(limits)
        most, computed = self.most_within(limits), self.most_within(limits, False)
        if computed is None:
            return f"Nothing keeps {said}, however few requests come."
        if most is None:
            return f"Nothing surely keeps {said}; as computed up to {computed:.4g} requests/s do."
        share = f"{most / (self.full_requests_per_s or most):.0%} of the saturated rate"
        more = f"; as computed up to {computed:.4g}" if f"{computed:.4g}" != f"{most:.4g}" else ""
        return f"Within {said}: up to {most:.4g} requests/s, {share}{more}."

    def at(self, requests_per_s: float) -> dict[str, Any] | None:
        """The row at a rate; None for more than the last row has, or where nothing fits.

        Raises InputError for a rate that is not positive.
        """
        if not requests_per_s > 0:
            raise InputError(f"rate = {show(requests_per_s)}: must be more than 0 requests per second")
        if self.server is None or not self.rows or requests_per_s > self.rows[-1]["requests_per_s"]:
            return None
        return _row(self.design, self.server, requests_per_s)


def rate_within(server: TrafficServer, full_requests_per_s: float, limits: Mapping[str, float]) -> float | None:
    """Most requests a second at which the times of a server keep their limits (seconds by column) as computed, found by
    halving below what it serves when it is always full; None where hardly any rate does."""

    def keeps(requests_per_s: float) -> bool:
        waits = waits_at(server, requests_per_s)
        return waits is not None and all(getattr(waits, name) <= limit for name, limit in limits.items())

    low, high = LEAST_LOAD * full_requests_per_s, full_requests_per_s
    if not keeps(low):
        return None
    for _ in range(N_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def _row(design: str, server: TrafficServer, requests_per_s: float) -> dict[str, Any] | None:
    """Means over requests that come at a rate, by column; None where the server does not sustain it."""
    latency = waits_at(server, requests_per_s)
    if latency is None:
        return None
    output_tokens = server.lengths.mean_output_tokens
    return {
        "design": design,
        "load": requests_per_s / server.full.requests_per_s,
        "requests_per_s": requests_per_s,
        "tokens_per_s": requests_per_s * output_tokens,
        "tpot_s": latency.tpot_s if output_tokens > 1 else None,
        "ttft_s": latency.ttft_s,
        "place_wait_s": latency.place_wait_s,
        "running_requests": latency.running,
        "prompt_share": latency.prompt_share,
    }


def under_load(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    loads: Sequence[float] = LOADS,
    name: str = "",
    limits: Mapping[str, float] | None = None,
) -> UnderLoad:
    """Means over requests of the workload's lengths that come at random, a row a load.

    A load is the share of the requests per second that the server serves when it is always full
    (`dse.serving.steady_state.steady`); times are those of `dse.serving.at_rate.waits_at`. Rates that
    do not hold have no row. `name` is what tables and figures call the design. Raises InputError for a load that is not
    above 0 and below 1, a prefix or a token policy.
    """
    moments = FixedLengths(work.input_tokens, work.output_tokens)
    server, name = TrafficServer.of(device, plan, work, moments), name or plan.quantizer_name
    full = server.full.requests_per_s if server.places else None
    results = engine.evaluate(server.point)
    for load in loads:
        if not 0 < load < 1:
            raise InputError(f"loads: {show(load)}: must be above 0 and below 1, such as 0.5{_would_hold(load, full)}")
    by_load = [(load, _row(name, server, load * full)) for load in loads] if full else []
    rows = [row | {"load": load} for load, row in by_load if row is not None]
    design = ", ".join([work.devices_text(device.name), plan.model.name, *work.ways(plan.model), plan.quantizer_name])
    filled = "" if work.batch else " (as many as fit)"
    lengths = f"{work.input_tokens:,} + {work.output_tokens:,} tokens"
    why = Point(device, plan, work).lowered.results["runs_why"]
    refused = f", as if other software ran it ({why})" if why else ""
    context = f"{design}, at most {server.places:,}{filled} concurrent requests of {lengths}{refused}"
    return UnderLoad(
        design=name,
        context=context,
        full_requests_per_s=full,
        rows=tuple(rows),
        limits=dict(limits or {}),
        late={name: uncertainty.of_column(results, name).high for name in LIMITS} if full else {},
        age=age_text(server.point),
        server=server,
    )


def _would_hold(load: float, full_requests_per_s: float | None) -> str:
    """Say the rate that one server holds, and how many servers hold this load; "" for other mistakes."""
    if not 1 <= load < MOST_LOAD or not full_requests_per_s:
        return ""
    n = int(load) + 1
    return f": a server holds {full_requests_per_s:.4g} requests/s, {n:,} hold this at {load / n:.2g} each"
