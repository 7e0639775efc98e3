"""A design as a server of a load: the most that it holds within limits, and its times at a load."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from dse.model import engine, uncertainty
from dse.model.point import Point
from dse.questions import layouts
from dse.questions.common import Candidate, Result
from dse.questions.demand import Demand
from dse.questions.limits import LIMITS
from dse.questions.serve_command import ServeCommand, serve_command
from dse.serving.steady_state import FixedLengths, TrafficServer
from dse.specs import server_flags
from dse.specs.workload import Workload

#: less than a server by so much is rounding
ROUNDING = 1e-12


class ServerDesign:
    """A design on so many devices, as a server of requests of its lengths under limits. Raises DseError where the model
    does not run so."""

    def __init__(self, asked: str, design: Candidate, work: Workload, demand: Demand) -> None:
        self.asked, self.design, self.work, self.demand = asked, design, work, demand
        self.point = Point(design.device, design.plan, work)
        #: what loads have computed of it
        self.known: dict[Any, Any] = {}

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
        return {name: uncertainty.of_column(self._full, name).high for name in LIMITS}

    @cached_property
    def slowest(self) -> float:
        """The low end of the interval of the rate over what is computed, at most 1."""
        return min(uncertainty.of_column(self._full, uncertainty.RATE).low, 1.0)

    @cached_property
    def most(self) -> float:
        """The load that it holds without any limit: no more than this, and sooner computed than `holds`."""
        return self.demand.load.most(self)

    @cached_property
    def holds(self) -> float:
        """The largest load at which it surely keeps all limits; 0 where there is none."""
        return self.holds_within(self.demand.limits)

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
        """The fewest servers that hold a load; one where there is none."""
        return max(math.ceil(amount / self.holds * (1 - ROUNDING)), 1) if amount else 1
