"""Loads that servers must hold within limits: what a server holds of each, and its times there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dse.model import uncertainty
from dse.questions.common import Result
from dse.questions.limits import LEAST_LOAD, MOST_LOAD, rate_within, within, within_as_computed
from dse.serving.at_rate import AtRate, waits_at
from dse.serving.steady_state import TrafficServer
from dse.specs.workload import Workload

if TYPE_CHECKING:
    from dse.questions.server_design import ServerDesign


@dataclass(frozen=True)
class Load(ABC):
    """A load of `amount`, None for as much as the devices hold; what the methods are given is a server's share."""

    amount: float | None
    unit: ClassVar[str]
    #: whether it comes in whole numbers: a server has the rest
    is_whole: ClassVar[bool] = True
    #: what binds where no limit does, and how it comes, in words
    bound: ClassVar[str]
    how: ClassVar[str] = ""

    def of(self, amount: float) -> Load:
        """The load at another amount."""
        return replace(self, amount=max(round(amount), 1) if self.is_whole else amount)

    def words(self, work: Workload) -> str:
        """The load in words."""
        amount = f"{self.amount:,.6g} {self.unit}" if self.amount else "as many requests as they hold"
        return f"{amount} of {work.input_tokens:,} + {work.output_tokens:,} tokens"

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """All of it, in SI base units."""

    def served(self, work: Workload) -> Workload:
        """The workload as the load runs it."""
        return work

    @abstractmethod
    def most(self, server: ServerDesign) -> float:
        """The load that a server holds without any limit: no more than this, and sooner computed."""

    @abstractmethod
    def least(self, server: ServerDesign) -> float:
        """The load of a server to which hardly any request comes."""

    @abstractmethod
    def holds_within(self, server: ServerDesign, limits: Mapping[str, float], is_sure: bool) -> float:
        """The largest load at which times keep these limits at the upper ends of their intervals, or as computed."""

    @abstractmethod
    def time_s(self, server: ServerDesign, amount: float, name: str) -> float:
        """A time at a load, `tpot_s` or `ttft_s`, at the upper end of its interval."""

    @abstractmethod
    def results(self, server: ServerDesign, amount: float) -> Result:
        """All results at a load."""


class Demand(NamedTuple):
    """The load, and the longest times by column, in seconds."""

    load: Load
    limits: dict[str, float]

    @property
    def amount(self) -> float | None:
        """How much of the load."""
        return self.load.amount

    def of(self, amount: float) -> Demand:
        """The demand at another load."""
        return self._replace(load=self.load.of(amount))


@dataclass(frozen=True)
class AtOnce(Load):
    """Requests at all times, each replaced as it ends."""

    unit = "requests at once"
    bound = "memory"

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {"requests_per_s": None, "requests": self.amount}

    def most(self, server: ServerDesign) -> float:
        """As many as fit and as the server takes."""
        return float(server.point.batch if server.point.max_batch else 0)

    def least(self, server: ServerDesign) -> float:
        """One."""
        return 1.0

    def holds_within(self, server: ServerDesign, limits: Mapping[str, float], is_sure: bool) -> float:
        """By halving over whole numbers."""
        keeps = within if is_sure else within_as_computed
        return largest(server.most, lambda n: keeps(server.row(n), limits)) if limits else server.most

    def time_s(self, server: ServerDesign, amount: float, name: str) -> float:
        """Of the batch."""
        return uncertainty.ends(server.row(int(amount)), name)[1]

    def results(self, server: ServerDesign, amount: float) -> Result:
        """Of the batch."""
        return server.design.evaluate(replace(server.work, batch=int(amount)))


@dataclass(frozen=True)
class AtRandom(Load):
    """Requests of equal lengths that come at random, so many a second."""

    unit = "requests/s"
    is_whole = False
    bound = "saturated rate"
    how = "requests come at random (Poisson), to each server its share"

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {"requests_per_s": self.amount, "requests": None}

    def served(self, work: Workload) -> Workload:
        """With one batch in a pipeline."""
        return work if work.pp == 1 else replace(work, pp_batches=1)

    def traffic(self, server: ServerDesign, requests_per_s: float) -> TrafficServer:
        """The server at a rate."""
        return server.traffic

    def most(self, server: ServerDesign) -> float:
        """`MOST_LOAD` of what it serves at the low end when it is always full."""
        full = self.traffic(server, 0.0)
        return MOST_LOAD * server.slowest * full.full.requests_per_s if full.places else 0.0

    def least(self, server: ServerDesign) -> float:
        """`LEAST_LOAD` of the saturated rate."""
        return LEAST_LOAD * self.traffic(server, 0.0).full.requests_per_s

    def holds_within(self, server: ServerDesign, limits: Mapping[str, float], is_sure: bool) -> float:
        """By halving below the saturated rate."""
        full_rate = server.traffic.full.requests_per_s
        most = server.most if is_sure else MOST_LOAD * full_rate
        if not most or not limits:
            return most
        asked = {name: limit / (server.late[name] if is_sure else 1.0) for name, limit in limits.items()}
        return min(rate_within(server.traffic, full_rate, asked) or 0.0, most)

    def time_s(self, server: ServerDesign, amount: float, name: str) -> float:
        """The mean of all requests."""
        return float(getattr(self.waits(server, amount), name)) * server.late[name]

    def waits(self, server: ServerDesign, requests_per_s: float) -> AtRate:
        """The times of requests at a rate that the server holds."""
        waits = waits_at(self.traffic(server, requests_per_s), requests_per_s)
        assert waits is not None  # below what it holds
        return waits

    def results(self, server: ServerDesign, amount: float) -> Result:
        """Of the batch that decodes in the mean, TPOT and TTFT of requests that come at random."""
        waits = self.waits(server, amount)
        running = max(round(waits.running), 1)
        times = {"tpot_s": waits.tpot_s, "ttft_s": waits.ttft_s, "running_batch": running}
        return server.design.evaluate(replace(server.work, batch=running)) | times


def largest(most: float, keeps: Callable[[int], bool]) -> float:
    """The largest whole number up to `most` that keeps what each smaller one keeps; 0 where 1 does not."""
    low, high = 0, int(most) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return float(low)
