"""A design as a server of a load: the most that it holds within limits, and its times at a load."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from dse.model import engine, uncertainty
from dse.model.point import Point
from dse.questions import interactivity, layouts, load
from dse.questions.common import Candidate, Result
from dse.questions.serve_command import ServeCommand, serve_command
from dse.serving.at_rate import AtRate, waits_at
from dse.serving.steady_state import FixedLengths, TrafficServer
from dse.specs import server_flags
from dse.specs.workload import Workload

#: share of the saturated rate up to which times at a rate hold in closed form
MOST_LOAD = load.LOADS[-1]
#: less than a server by so much is rounding
ROUNDING = 1e-12


class Demand(NamedTuple):
    """The load: `rate` requests a second that come at random, or `requests` at all times; neither: as much as the
    devices hold. `limits` are the longest times by column, in seconds."""

    rate: float | None
    requests: int | None
    limits: dict[str, float]

    @property
    def amount(self) -> float | None:
        """Requests a second, or at once."""
        return self.rate if self.rate is not None else self.requests

    @property
    def unit(self) -> str:
        """Unit of the amount."""
        return "requests/s" if self.rate is not None else "requests at once"

    def served(self, work: Workload) -> Workload:
        """The workload as the load runs it: requests that come at random with one batch in a pipeline."""
        return work if self.rate is None or work.pp == 1 else replace(work, pp_batches=1)

    def of(self, amount: float) -> "Demand":
        """The demand at another load."""
        return self._replace(rate=amount) if self.rate is not None else self._replace(requests=max(round(amount), 1))


class ServerDesign:
    """A design on so many devices, as a server of requests of its lengths under limits. Raises DseError where the model
    does not run so."""

    def __init__(self, asked: str, design: Candidate, work: Workload, demand: Demand) -> None:
        self.asked, self.design, self.work, self.demand = asked, design, work, demand
        self.point = Point(design.device, design.plan, work)
        self._at_once: dict[int, Result] = {}

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
        return serve_command(self.design.device, self.design.plan, replace(self.work, pp_batches=None))

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
    def name(self) -> tuple[str, ...]:
        """Device, engine, format and layout: what tells servers apart."""
        split = layouts.words(vars(self.work))
        return self.design.device.name, str(self.fixed["stack"] or ""), self.design.name, split

    @cached_property
    def traffic(self) -> TrafficServer:
        """The server of requests that come at random."""
        lengths = FixedLengths(self.work.input_tokens, self.work.output_tokens)
        return TrafficServer.of(self.design.device, self.design.plan, self.work, lengths)

    @cached_property
    def _full(self) -> Result:
        return engine.speed(self.traffic.point)

    @cached_property
    def late(self) -> dict[str, float]:
        """The upper end of the interval of each time over what is computed, by column."""
        return {name: uncertainty.of_column(self._full, name).high for name in interactivity.LIMITS}

    @cached_property
    def most(self) -> float:
        """The load that it holds without any limit: no more than this, and sooner computed than `holds`."""
        if self.demand.rate is None:
            return float(self.point.batch if self.point.max_batch else 0)
        if self.traffic.places < 1:
            return 0.0
        slowest = min(uncertainty.of_column(self._full, uncertainty.RATE).low, 1.0)
        return MOST_LOAD * slowest * self.traffic.full.requests_per_s

    @cached_property
    def holds(self) -> float:
        """The largest load at which it surely keeps all limits; 0 where there is none."""
        return self.holds_within(self.demand.limits)

    def holds_within(self, limits: Mapping[str, float], is_sure: bool = True) -> float:
        """The largest load at which times keep these limits at the upper ends of their intervals, or as computed."""
        most = self.most if is_sure or self.demand.rate is None else MOST_LOAD * self.traffic.full.requests_per_s
        if not most or not limits:
            return most
        if self.demand.rate is not None:
            asked = {name: limit / (self.late[name] if is_sure else 1.0) for name, limit in limits.items()}
            return min(load.rate_within(self.traffic, self.traffic.full.requests_per_s, asked) or 0.0, most)
        keeps = interactivity.within if is_sure else interactivity.within_as_computed
        low, high = 0, int(most) + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if keeps(self._row(middle), limits) else (low, middle)
        return float(low)

    def _row(self, batch: int) -> Result:
        """Times and rate with so many requests at all times."""
        if batch not in self._at_once:
            point = Point(self.design.device, self.design.plan, replace(self.work, batch=batch))
            self._at_once[batch] = engine.speed(point) | {"ttft_s": point.server.ttft_s}
        return self._at_once[batch]

    def _waits(self, requests_per_s: float) -> AtRate:
        waits = waits_at(self.traffic, requests_per_s)
        assert waits is not None  # below what it holds
        return waits

    @property
    def pace(self) -> str:
        """The column of the time that says how fast it is: TPOT, of answers of one token TTFT."""
        return "tpot_s" if self.work.output_tokens > 1 else "ttft_s"

    def time_s(self, amount: float) -> float:
        """Time per token at a load, of answers of one token to the first, at the upper end of its interval."""
        if self.demand.rate is not None:
            return float(getattr(self._waits(amount), self.pace)) * self.late[self.pace]
        return uncertainty.ends(self._row(int(amount)), self.pace)[1]

    @property
    def least_times(self) -> dict[str, float]:
        """Times where hardly any request comes, at the upper ends of their intervals, by column."""
        if self.demand.rate is None:
            row = self._row(1)
            return {name: uncertainty.ends(row, name)[1] for name in interactivity.LIMITS}
        waits = self._waits(load.LEAST_LOAD * self.traffic.full.requests_per_s)
        return {name: getattr(waits, name) * self.late[name] for name in interactivity.LIMITS}

    def results(self, amount: float) -> Result:
        """All results at a load, TPOT and TTFT those of requests that come at random where they do."""
        if self.demand.rate is None:
            return self.design.evaluate(replace(self.work, batch=int(amount)))
        waits = self._waits(amount)
        running = max(round(waits.running), 1)
        times = {"tpot_s": waits.tpot_s, "ttft_s": waits.ttft_s, "running_batch": running}
        return self.design.evaluate(replace(self.work, batch=running)) | times

    def count(self, amount: float | None) -> int:
        """The fewest servers that hold a load; one where there is none."""
        return max(math.ceil(amount / self.holds * (1 - ROUNDING)), 1) if amount else 1
