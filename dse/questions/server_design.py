"""A design as a server of a load: the most that it holds within limits, and its times at a load."""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar

from dse.model import engine, uncertainty
from dse.model.point import Point
from dse.questions import layouts
from dse.questions.common import Candidate, Result
from dse.questions.limits import LEAST_LOAD, LIMITS, MOST_LOAD, rate_within, within, within_as_computed
from dse.questions.serve_command import ServeCommand, serve_command
from dse.serving.at_rate import waits_at
from dse.serving.steady_state import FixedLengths, TrafficServer
from dse.specs import server_flags
from dse.specs.workload import Workload

T = TypeVar("T")
#: less than a server by so much is rounding
ROUNDING = 1e-12
#: of requests that come by themselves
MEANS = "times are means of all requests"


@dataclass(frozen=True)
class ServedLoad(ABC):
    """A load of `amount`, None for as much as the devices hold; what the methods are given is a server's share."""

    amount: float | None
    unit: ClassVar[str]
    #: the unit of 1
    one: ClassVar[str]
    #: whether it comes in whole numbers: a server has the rest
    is_whole: ClassVar[bool] = True
    #: result that says tokens a second, of a load in whole numbers
    tokens: ClassVar[str] = uncertainty.RATE
    #: whether what the best servers hold is settled by simulated runs
    is_run: ClassVar[bool] = False
    #: how it comes, in words
    how: ClassVar[str] = ""
    #: what is wrong where not even the least fits
    no_room: ClassVar[str] = "no request fits"

    def check(self, server: ServerDesign) -> None:
        """Raise InputError for a server that is not modeled under this load."""
        return

    def of(self, amount: float) -> ServedLoad:
        """The load at another amount."""
        return replace(self, amount=max(round(amount), 1) if self.is_whole else amount)

    def counted(self, amount: str) -> str:
        """An amount with its unit."""
        return f"{amount} {self.one if amount == '1' else self.unit}"

    def words(self, work: Workload) -> str:
        """The load in words."""
        amount = self.counted(f"{self.amount:,.6g}") if self.amount else "as many requests as they hold"
        return f"{amount} of {work.input_tokens:,} + {work.output_tokens:,} tokens"

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """All of it, in SI base units."""

    def served(self, work: Workload) -> Workload:
        """The workload as the load runs it: requests that come by themselves with one batch in a pipeline."""
        return work if work.pp == 1 else replace(work, pp_batches=1)

    def flags(self, server: ServerDesign) -> dict[str, Any]:
        """Flags of a server that the load decides, by the names of `dse.specs.server_flags.OF_LOADS`."""
        return {}

    def notes(self) -> list[str]:
        """Sentences for the small print."""
        return []

    @abstractmethod
    def bound(self, server: ServerDesign) -> str:
        """The words for what binds where no limit does."""

    @abstractmethod
    def most(self, server: ServerDesign, limits: Mapping[str, float]) -> float:
        """The load that a server holds within limits: no more than this, and sooner computed."""

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

    load: ServedLoad
    limits: dict[str, float]

    @property
    def amount(self) -> float | None:
        """The amount of the load."""
        return self.load.amount

    def of(self, amount: float) -> Demand:
        """The demand at another load."""
        return self._replace(load=self.load.of(amount))


@dataclass(frozen=True)
class RequestsAtOnce(ServedLoad):
    """Requests at all times, each replaced as it ends."""

    unit = "requests at once"
    one = "request at once"

    def bound(self, server: ServerDesign) -> str:
        """The memory, unless it has room for more than the server takes."""
        return "memory" if server.most < server.point.design.load.most_at_once else "requests at once of the engine"

    def served(self, work: Workload) -> Workload:
        """As it is."""
        return work

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {"requests_per_s": None, "requests": self.amount}

    def most(self, server: ServerDesign, limits: Mapping[str, float]) -> float:
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
        """A time of the batch."""
        return uncertainty.ends(server.row(int(amount)), name)[1]

    def results(self, server: ServerDesign, amount: float) -> Result:
        """Results of the batch."""
        key = "results", int(amount)
        if key not in server.known:
            server.known[key] = server.design.evaluate(replace(server.work, batch=int(amount)))
        found: Result = server.known[key]
        return found


@dataclass(frozen=True)
class RequestsAtRate(ServedLoad):
    """Requests of equal lengths that come at random, so many a second."""

    unit = "requests/s"
    one = "request/s"
    is_whole = False
    how = f"requests come at random (Poisson), to each server its share; {MEANS}"

    def bound(self, server: ServerDesign) -> str:
        """The rate of a server that is always full."""
        return "saturated rate"

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {"requests_per_s": self.amount, "requests": None}

    def traffic(self, server: ServerDesign, requests_per_s: float) -> TrafficServer:
        """The server at a rate."""
        return server.traffic

    def most(self, server: ServerDesign, limits: Mapping[str, float]) -> float:
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
        waits = waits_at(server.traffic, most)
        if waits is not None and all(getattr(waits, name) <= limit for name, limit in asked.items()):
            return most
        return min(rate_within(server.traffic, full_rate, asked) or 0.0, most)

    def time_s(self, server: ServerDesign, amount: float, name: str) -> float:
        """The mean of all requests."""
        return float(getattr(self.waits(server, amount), name)) * server.late[name]

    def waits(self, server: ServerDesign, requests_per_s: float) -> Any:
        """The times of requests at a rate that the server holds."""
        waits = waits_at(self.traffic(server, requests_per_s), requests_per_s)
        assert waits is not None  # below what it holds
        return waits

    def results(self, server: ServerDesign, amount: float) -> Result:
        """Results of the batch that decodes in the mean, TPOT and TTFT of requests that come at random."""
        waits = self.waits(server, amount)
        running = max(round(waits.running), 1)
        times = {"tpot_s": waits.tpot_s, "ttft_s": waits.ttft_s, "running_batch": running}
        return server.design.evaluate(replace(server.work, batch=running)) | times


def n_servers(amount: float | None, holds: float) -> int:
    """The fewest servers for a load, of which each holds so much; one where there is no load."""
    return max(math.ceil(amount / holds * (1 - ROUNDING)), 1) if amount else 1


def largest(most: float, keeps: Callable[[int], bool]) -> float:
    """The largest whole number up to `most` that keeps what each smaller one keeps; 0 where 1 does not."""
    low, high = 0, int(most) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return float(low)


class ErrorEnds(NamedTuple):
    """Ends of the intervals of a full server over what is computed: of its times the upper, of its rate the low one."""

    late: Mapping[str, float]
    slowest: float


def errors_of(row: Result) -> ErrorEnds:
    """The ends by the results of a full server."""
    late = {name: uncertainty.of_column(row, name).high for name in LIMITS}
    return ErrorEnds(late, min(uncertainty.of_column(row, uncertainty.RATE).low, 1.0))


class ServerDesign:
    """A design on so many devices, as a server of requests of its lengths under limits. Raises DseError where the model
    does not run so."""

    def __init__(
        self, asked: str, design: Candidate, work: Workload, demand: Demand, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.asked, self.design, self.work, self.demand = asked, design, work, demand
        #: what is changed of the engine's settings, by field
        self.settings = dict(settings or {})
        # held by none that it holds: searches are freed as soon as they end, with all their servers
        self._own = weakref.ref(self)
        self.point = Point(design.device, design.plan, work)
        #: what loads have computed of it
        self.known: dict[Any, Any] = {}
        #: what a search has found of its settings, under these limits
        self.found: dict[Any, Any] = {}
        demand.load.check(self)

    def under(self, limits: Mapping[str, float]) -> ServerDesign:
        """The server under other limits, with what is known of it."""
        demand = self.demand._replace(limits=dict(limits))
        other = ServerDesign(self.asked, self.design, self.work, demand, self.settings)
        other.known = self.known
        return other

    def in_settings(self, changed: Mapping[str, Any]) -> ServerDesign:
        """The server in other settings of its engine than its own."""
        if (key := tuple(changed.items())) not in self.found:
            work, settings = replace(self.work, **changed), {**self.settings, **changed}
            other = ServerDesign(self.asked, self.design, work, self.demand, settings)
            other._own, self.found[key] = weakref.ref(self), other
        server: ServerDesign = self.found[key]
        return server

    @property
    def own(self) -> ServerDesign:
        """The server in its engine's own settings, which the search that made this one holds."""
        return self._own() or self

    @property
    def fixed(self) -> Mapping[str, Any]:
        """Results that no load changes."""
        return self.point.lowered.results

    @property
    def n_devices(self) -> int:
        """Devices of the server."""
        return self.work.n_devices

    @cached_property
    def command(self) -> ServeCommand:
        """The command that starts it, and what it does not say."""
        work = replace(self.work, pp_batches=None)
        return serve_command(self.design.device, self.design.plan, work, self.demand.load.flags(self))

    @property
    def starts(self) -> bool:
        """Whether the engine's command line says the design; yes where no command is written for the engine, and where
        other software may run it."""
        name = str(self.fixed["stack"] or "").partition("@")[0]
        return self.work.other_software or name not in server_flags.engines() or bool(self.command.line)

    @property
    def is_exact(self) -> bool:
        """Whether keys and values are stored in 16 bits."""
        return not any(group.layout.needs_dequantizing for group in self.design.plan.groups)

    @property
    def gives_up(self) -> tuple[bool, bool]:
        """Whether it gives up 16 bits of keys and values, and its prefix cache: taken only where that pays."""
        return not self.is_exact, not self.keeps_prompts

    @property
    def is_unscored(self) -> bool:
        """Whether its recurrent states have fewer bits than the model's: nobody published scores of such."""
        return "state_type" in self.settings

    @property
    def keeps_prompts(self) -> bool:
        """Whether its prefix cache is on."""
        return self.work.prefix_cache != "off"

    @property
    def name(self) -> tuple[str, ...]:
        """Device, engine, format and layout: what tells servers apart."""
        split = layouts.words(vars(self.work))
        return self.design.device.name, str(self.fixed["stack"] or ""), self.design.name, split

    def kept(self, name: str, of: Callable[[], T]) -> T:
        """Return `of()`, called once for this design in searches of a load of these lengths."""
        kept, work = self.point.lowered.kept, self.work
        load = type(self.demand.load), work.input_tokens, work.output_tokens, work.batch
        if kept.get(name, (None,))[0] != load:
            kept[name] = load, of()
        found: T = kept[name][1]
        return found

    @cached_property
    def traffic(self) -> TrafficServer:
        """The server of requests that come at random."""
        lengths = FixedLengths(self.work.input_tokens, self.work.output_tokens)
        work = self.point.asked
        made = self.kept("traffic", lambda: TrafficServer.of(self.design.device, self.design.plan, work, lengths))
        return replace(made)  # that only passes are kept for other searches

    @cached_property
    def errors(self) -> ErrorEnds:
        """Ends of the intervals of the full server."""
        return self.kept("errors", lambda: errors_of(engine.speed(self.traffic.point)))

    @property
    def late(self) -> Mapping[str, float]:
        """The upper end of the interval of each time over what is computed, by column."""
        return self.errors.late

    @property
    def slowest(self) -> float:
        """The low end of the interval of the rate over what is computed, at most 1."""
        return self.errors.slowest

    @cached_property
    def least_late(self) -> Mapping[str, float]:
        """`late` in any settings, no more than this: how long kernels unpack goes by how many requests run."""
        without = uncertainty.of_column(self.fixed, "tpot_s", kernels=False)
        is_open = self.fixed["unpack_rate_low"] is not None
        return {**self.late, "tpot_s": uncertainty.middle(without.low, without.high) if is_open else without.high}

    @cached_property
    def least_slow(self) -> float:
        """`slowest` in any settings, no less than this: whatever part of the time decodes."""
        return 1.0 if self.fixed["unpack_rate_low"] is not None else uncertainty.least_slow(self.fixed)

    @cached_property
    def most(self) -> float:
        """The load that it holds: no more than this, and sooner computed than `holds`."""
        return self.demand.load.most(self, self.demand.limits)

    @property
    def has_room(self) -> bool:
        """Whether it holds anything at all, whatever the limits."""
        return self.demand.load.most(self, {}) > 0

    @cached_property
    def holds(self) -> float:
        """The largest load at which it surely keeps all limits; 0 where there is none."""
        return self.holds_within(self.demand.limits) if self.most else 0.0

    @cached_property
    def likely_holds(self) -> float:
        """The largest load at which it keeps all limits as likely as not, by the intervals at the load that it surely
        holds, and no less than that."""
        limits, row = {}, self.results(self.holds)
        for name, limit in self.demand.limits.items():
            low, high, _ = uncertainty.of_column(row, name)
            limits[name] = limit / uncertainty.middle(low, high)
        return max(self.holds_within(limits, False), self.holds)

    def holds_within(self, limits: Mapping[str, float], is_sure: bool = True) -> float:
        """The largest load at which times keep these limits at the upper ends of their intervals, or as computed."""
        return self.demand.load.holds_within(self, limits, is_sure)

    def row(self, batch: int) -> Result:
        """Times and rate with so many requests at all times."""
        if batch not in self.known:
            point = Point(self.design.device, self.design.plan, replace(self.work, batch=batch))
            self.known[batch] = engine.speed(point) | {"ttft_s": point.server.ttft_s}
        row: Result = self.known[batch]
        return row

    @property
    def pace(self) -> str:
        """The column of the time that says how fast it is: TPOT, of answers of one token TTFT."""
        return "tpot_s" if self.work.output_tokens > 1 else "ttft_s"

    def time_s(self, amount: float) -> float:
        """Time per token at a load, of answers of one token to the first, at the upper end of its interval."""
        return self.demand.load.time_s(self, amount, self.pace)

    @property
    def least_times(self) -> dict[str, float]:
        """Times where hardly any request comes, at the upper ends of their intervals, by column."""
        least = self.demand.load.least(self)
        return {name: self.demand.load.time_s(self, least, name) for name in LIMITS}

    def results(self, amount: float) -> Result:
        """All results at a load, TPOT and TTFT those of the load's requests."""
        return self.demand.load.results(self, amount)

    def count(self, amount: float | None) -> int:
        """The fewest servers that hold a load; one where there is none. It must hold some."""
        return n_servers(amount, self.holds)
