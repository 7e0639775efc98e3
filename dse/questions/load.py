"""TPOT and TTFT of a server of the search at fractions of its saturated request rate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from dse.core.columns import Column, cells
from dse.core.errors import InputError, show
from dse.questions.common import Candidate, QuestionAnswer, age_text, limits_text
from dse.questions.limits import MOST_LOAD
from dse.questions.server_design import Demand, RequestsAtRate, ServerDesign
from dse.serving.at_rate import waits_at
from dse.specs.workload import Workload

#: shares of what a server that is always full serves
LOADS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, MOST_LOAD)
#: loads above which nothing is said of how many servers hold them
TOO_MANY = 1e6
COLUMNS = (
    Column("design", title=""),
    Column("load", form=".2f"),
    Column("requests_per_s", title="requests/s", form=".4g"),
    Column("tokens_per_s", title="tok/s", form=",.4g"),
    Column("tpot_s", title="TPOT (ms)", form=".4g", times=1e3),
    Column("ttft_s", title="TTFT (s)", form=".4g"),
    Column("place_wait_s", title="queueing (s)", form=".3f"),
    Column("running_requests", title="decoding", form=".3g"),
    Column("prompt_share", title=""),
)


@dataclass(frozen=True, repr=False)
class UnderLoad(QuestionAnswer):
    """Means over requests, a row a load, of a server under `limits`: most seconds of times by column."""

    design: str
    context: str
    server: ServerDesign
    rows: tuple[dict[str, Any], ...]
    limits: dict[str, float]

    @property
    def full_requests_per_s(self) -> float | None:
        """The rate of a server that is always full; None where nothing fits."""
        return self.server.traffic.full.requests_per_s if self.server.traffic.places else None

    @property
    def age(self) -> str:
        """The age of the times, in a sentence."""
        return age_text(self.server.traffic.point)

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
            return "\n".join([*lines, self.why_empty])
        lines += ["".join(f"{cell:>16}" for cell in row) for row in cells(COLUMNS, self.rows)]
        end = (
            f"Load 1 is {self.full_requests_per_s:.4g} requests/s, a saturated server (for more, add servers); "
            "requests of equal lengths arrive at random (Poisson).\nQueueing: the part of TTFT spent waiting for a "
            "free slot. Decoding: requests that decode at a time, in the mean."
        )
        if any(row["tpot_s"] is None for row in self.rows):
            end += " An answer of one token has no TPOT."
        if not self.rows:
            end += f" {self.why_empty}"
        if self.limits and self.rows:
            end = f"{self.within_text(self.limits)}\n{end}"
        return "\n".join([*lines, "", end, *filter(None, [self.age])])

    @property
    def why_empty(self) -> str:
        """Why there are no rows, and what to do; "" where there are some."""
        if self.full_requests_per_s is None:
            return "No request fits: give more devices (--tp), fewer bits, or shorter prompts."
        none = "No rate below that holds in closed form: `dse simulate --rate` runs the requests one by one."
        return "" if self.rows else none

    def most_within(self, limits: Mapping[str, float], is_sure: bool = True) -> float | None:
        """Most requests a second that the server holds within limits (`ServerDesign.holds_within`); None where hardly
        any rate keeps them."""
        return (self.full_requests_per_s and self.server.holds_within(limits, is_sure)) or None

    def within_text(self, limits: Mapping[str, float]) -> str:
        """The most requests a second within limits, in a sentence; without any, the saturated rate."""
        if not limits:
            return f"Saturated at {self.full_requests_per_s or 0:.4g} requests/s."
        said = limits_text(limits)
        most, computed = self.most_within(limits), self.most_within(limits, False)
        if computed is None:
            return f"Nothing keeps {said}, however few requests come."
        if most is None:
            return f"Nothing surely keeps {said}; as computed up to {computed:.4g} requests/s do."
        share = f"{100 * (most / (self.full_requests_per_s or most)):.0f} % of the saturated rate"
        more = f"; as computed up to {computed:.4g}" if f"{computed:.4g}" != f"{most:.4g}" else ""
        return f"Within {said}: up to {most:.4g} requests/s, {share}{more}."

    def at(self, requests_per_s: float) -> dict[str, Any] | None:
        """The row at a rate; None for more than the last row has, or where nothing fits.

        Raises InputError for a rate that is not positive.
        """
        if not requests_per_s > 0:
            raise InputError(f"rate = {show(requests_per_s)}: must be more than 0 requests per second")
        if not self.rows or requests_per_s > self.rows[-1]["requests_per_s"]:
            return None
        return _row(self.design, self.server, requests_per_s)


def _row(design: str, server: ServerDesign, requests_per_s: float) -> dict[str, Any] | None:
    """Means over requests that come at a rate, by column; None where the server does not sustain it."""
    latency = waits_at(server.traffic, requests_per_s)
    if latency is None:
        return None
    output_tokens = server.work.output_tokens
    return {
        "design": design,
        "load": requests_per_s / server.traffic.full.requests_per_s,
        "requests_per_s": requests_per_s,
        "tokens_per_s": requests_per_s * output_tokens,
        "tpot_s": latency.tpot_s if output_tokens > 1 else None,
        "ttft_s": latency.ttft_s,
        "place_wait_s": latency.place_wait_s,
        "running_requests": latency.running,
        "prompt_share": latency.prompt_share,
    }


def under_load(
    design: Candidate,
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
    limits, name = dict(limits or {}), name or design.name
    server = ServerDesign(design.device.name, design, work, Demand(RequestsAtRate(None), limits))
    places = server.traffic.places
    full = server.traffic.full.requests_per_s if places else None
    for load in loads:
        if not 0 < load < 1:
            raise InputError(f"loads: {show(load)}: must be above 0 and below 1, such as 0.5{_would_hold(load, full)}")
    by_load = [(load, _row(name, server, load * full)) for load in loads] if full else []
    rows = [row | {"load": load} for load, row in by_load if row is not None]
    model = design.plan.model
    what = ", ".join([work.devices_text(design.device.name), model.name, *work.ways(model), design.name])
    filled = "" if work.batch else " (as many as fit)"
    lengths = f"{work.input_tokens:,} + {work.output_tokens:,} tokens"
    why = server.fixed["runs_why"]
    refused = f", as if other software ran it ({why})" if why else ""
    context = f"{what}, at most {places:,}{filled} concurrent requests of {lengths}{refused}"
    return UnderLoad(name, context, server, tuple(rows), limits)


def _would_hold(load: float, full_requests_per_s: float | None) -> str:
    """Say the rate that one server holds, and how many servers hold this load; "" for other mistakes."""
    if not 1 <= load < TOO_MANY or not full_requests_per_s:
        return ""
    n = int(load) + 1
    return f": a server holds {full_requests_per_s:.4g} requests/s, {n:,} hold this at {load / n:.2g} each"
