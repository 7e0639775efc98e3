"""Search for deployments: every device, engine, KV format and layout is a server, of which a load takes so many.

Exact over its grid: what is left out costs more than twice the best even if it were full (`Search.of`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, cast

from dse.core.errors import DseError, InputError, LimitError
from dse.core.progress import Progress, each
from dse.model import engine, quality, uncertainty
from dse.model.formulas import energy
from dse.model.kv_layout import Same
from dse.model.point import Point
from dse.questions import common, engine_formats, interactivity, layouts, load
from dse.questions.common import Candidate, Result
from dse.questions.serve_command import ServeCommand, serve_command
from dse.questions.two_runs import RERUN_90
from dse.serving.at_rate import AtRate, waits_at
from dse.serving.steady_state import FixedLengths, TrafficServer
from dse.specs import collectives, server_flags
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.measurements import CLOSED, Bits
from dse.specs.prices import Price
from dse.specs.weights import FORMATS
from dse.specs.workload import Workload

#: share of the saturated rate up to which times at a rate hold in closed form
MOST_LOAD = load.LOADS[-1]
#: engines that are tried where none are named and the device has measured stacks
ENGINES = ("vllm", "sglang", "trtllm")
#: the engine of weights that are a file
OF_FILES = "llama.cpp"
#: devices of a server at most, where none are asked for
MOST_DEVICES = layouts.MOST_DEVICES
#: servers that a search tries at most
MAX_SERVERS = 50_000
#: the largest drop of scores that a format may have (upper end of its 95 % interval) which is recommended without being
#: named, a share; assumed: FP8, the 8-bit format of all engines, has 0.11 at most
USUAL_DROP = 0.12
#: what the fastest and the roomiest deployment may cost where no budget is given, over the best by the objective
SPEND = 2.0
#: loads at which a deployment grows that are looked at for another answer
MOST_STEPS = 200
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


@dataclass(frozen=True)
class Fleet:
    """Servers that share a load evenly, with what they cost."""

    server: ServerDesign
    n_servers: int
    usd_per_hour: float
    #: of all servers: requests a second, or at once
    load: float

    @property
    def n_devices(self) -> int:
        """Devices of all servers."""
        return self.n_servers * self.server.n_devices

    @property
    def holds(self) -> float:
        """The load that all servers hold within the limits."""
        return self.n_servers * self.server.holds

    @property
    def each(self) -> float:
        """The load of a server, of requests at once that of the fullest."""
        share = self.load / self.n_servers
        return share if self.server.demand.rate is not None else float(math.ceil(share))

    @cached_property
    def time_s(self) -> float:
        """Time per token, of answers of one token to the first, at the upper end of its interval."""
        return self.server.time_s(self.each)

    @cached_property
    def results(self) -> Result:
        """Results of one server at its load."""
        return self.server.results(self.each)

    @property
    def tokens_per_s(self) -> float:
        """Tokens that all servers give in a second."""
        if self.server.demand.rate is not None:
            return self.load * self.server.work.output_tokens
        return float(self.results[uncertainty.RATE]) * self.load / self.each

    @property
    def usd_per_million_tokens(self) -> float:
        """USD a million tokens at this load."""
        return energy.usd_per_million_tokens(self.usd_per_hour, self.tokens_per_s)

    @cached_property
    def keeps(self) -> float:
        """The chance that it keeps the limit that it is likeliest to miss."""
        return interactivity.keeps(self.results, self.server.demand.limits)

    @cached_property
    def surely_tokens_per_s(self) -> float:
        """Tokens a second where the load is all that it holds, in the middle of its interval: of all devices, and of
        one where a load is asked for, which some number of them holds."""
        row = self.server.results(self.server.holds)
        rate = row[uncertainty.RATE] if self.server.demand.rate is None else self.server.holds * row["output_tokens"]
        low, high, _ = uncertainty.of_column(row, uncertainty.RATE)
        n = self.n_devices if self.server.demand.amount is None else 1
        return n * float(rate) / self.server.n_devices * uncertainty.middle(low, high)


def _least_cost(fleet: "Fleet") -> tuple[float, ...]:
    """The cheapest first; of as much money 16-bit keys and values, then what holds more and is faster."""
    return fleet.usd_per_hour, not fleet.server.is_exact, -fleet.holds, fleet.time_s


#: what is best, by the name of an objective: the least key
OBJECTIVES = {
    "cost": _least_cost,
    "devices": lambda d: (d.n_devices, *_least_cost(d)),
    "throughput": lambda d: (-d.surely_tokens_per_s, d.usd_per_hour),
    "energy": lambda d: (d.results["joules_per_token"] or math.inf, d.usd_per_hour),
}


@dataclass(frozen=True)
class Grid:
    """Servers that the search tries, and over what."""

    servers: tuple[ServerDesign, ...]
    devices: tuple[str, ...]
    engines: tuple[str, ...]
    formats: tuple[str, ...]
    splits: tuple[str, ...]
    #: formats that lose too much
    left_out: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The grid in words."""
        axes = {"device": self.devices, "engine": self.engines, "KV format": self.formats, "layout": self.splits}
        sizes = ", ".join(f"{len(names)} {name}{'s' if len(names) > 1 else ''}" for name, names in axes.items())
        return f"{len(self.servers):,} servers ({sizes}), each in any number"


class Budget(NamedTuple):
    """The money and the devices that there are."""

    usd_per_hour: float = math.inf
    #: devices at most, by the name that was asked for
    counts: Mapping[str, int] = {}

    def most_servers(self, server: ServerDesign, price: Price, usd: float) -> int:
        """The most servers within the devices that there are and so many USD an hour."""
        there_are = self.counts.get(server.asked, math.inf)

        def fits(n: int) -> bool:
            is_there = n * server.n_devices <= there_are
            return is_there and price.usd_per_hour(server.n_devices, n) <= usd * (1 + common.TIE)

        low, high = 0, 1
        while fits(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low


@dataclass(frozen=True)
class Choices:
    """Names that the search chooses from, None for all that run, and what it leaves out."""

    engines: tuple[str, ...] | None = None
    quantizers: tuple[str, ...] | None = None
    #: devices of a server at most, and whether in any number
    most: int = MOST_DEVICES
    any_size: bool = False
    #: the largest drop of scores, a share; None: `USUAL_DROP`, of formats that are named any
    max_drop_frac: float | None = None
    bits: Bits = CLOSED

    def keeps_scores(self, design: Candidate) -> bool:
        """Whether the format of a design loses so little that it may be recommended."""
        scores = quality.quality(design.plan)
        if self.max_drop_frac is not None:
            return bool(quality.judged(scores, self.max_drop_frac))
        drop = scores["score_drop_high_frac"]
        return self.quantizers is not None or (drop is not None and drop <= USUAL_DROP)


def grid(
    devices: Mapping[str, HardwareSpec],
    model: ModelSpec,
    work: Workload,
    demand: Demand,
    choices: Choices,
    counts: Mapping[str, int],
) -> Grid:
    """Every device, engine, format that it runs and layout. Raises InputError and LimitError."""
    engines, splits, left_out = dict[str, None](), dict[str, None](), dict[str, None]()
    asked: list[tuple[str, Candidate, Workload]] = []
    for name, device in devices.items():
        n_most, _ = collectives.most_devices(device, min(choices.most, counts.get(name, choices.most)))
        for stack in _engines(device, model, work, choices.engines):
            of_stack = replace(work, stack=stack)
            designs = _designs(Same(device), Same(model), of_stack, choices.quantizers, choices.bits)
            kept = [design for design in designs if choices.keeps_scores(design)]
            left_out |= dict.fromkeys(design.name for design in designs if design not in kept)
            ways = [
                demand.served(way)
                for tp, pp in layouts.sizes(model, n_most, choices.any_size)
                for way in layouts.layouts(model, of_stack, tp, pp)
            ]
            if len(asked) + len(kept) * len(ways) > MAX_SERVERS:
                raise LimitError(
                    f"the search has more than {MAX_SERVERS:,} servers ({len(devices):,} devices, {len(kept):,} KV "
                    f"formats, {len(ways):,} layouts, ...): name fewer --devices, --quantizers or --engines, leave "
                    "out --any, or lower --most"
                )
            engines[stack or "the device's"] = None
            splits |= dict.fromkeys(layouts.words(vars(way)) for way in ways)
            asked += [(name, design, way) for design in kept for way in ways]
    if left_out and not asked:
        raise InputError(
            f"max-drop = {choices.max_drop_frac:.3g}: {', '.join(left_out)} may lose more: add fp16, or allow more"
        )
    servers, wrong = [], None
    for name, design, way in asked:
        try:
            servers.append(ServerDesign(name, design, way, demand))
        except DseError as error:
            wrong = wrong or error
    if not servers:
        raise wrong or InputError(f"{model.name}: is not split over so many devices: give others, or --any")
    formats = dict.fromkeys(server.design.name for server in servers)
    return Grid(
        tuple(servers),
        devices=tuple(devices),
        engines=tuple(engines),
        formats=tuple(formats),
        splits=tuple(splits),
        left_out=tuple(left_out),
    )


@lru_cache(maxsize=64)
def _designs(
    device: Same, model: Same, work: Workload, quantizers: tuple[str, ...] | None, bits: Bits
) -> tuple[Candidate, ...]:
    """The named formats on a device, or all that its engine runs; kept, as plans keep what is computed of them."""
    spec, lm = cast(HardwareSpec, device.value), cast(ModelSpec, model.value)
    if quantizers is None:
        return tuple(engine_formats.compared(spec, lm, work, bits))
    return tuple(common.design(spec, lm, quantizer, bits=bits) for quantizer in quantizers)


def _engines(
    device: HardwareSpec, model: ModelSpec, work: Workload, engines: tuple[str, ...] | None
) -> list[str | None]:
    if engines is not None:
        return list(engines)
    form = FORMATS.get(work.weights or model.released)
    if form and form.is_file:
        return [OF_FILES]
    if work.stack or work.model_kind == "ideal":
        return [work.stack]
    return [name for name in ENGINES if name in device.stacks] or [None]


@dataclass(frozen=True)
class Search:
    """Deployments of the fewest servers that hold the load, the best first; what costs more than `SPEND` times the best
    is left out where the objective is the cost."""

    grid: Grid
    demand: Demand
    prices: Mapping[str, Price]
    objective: str
    budget: Budget
    found: tuple[Fleet, ...] = field(repr=False)

    @classmethod
    def of(
        cls,
        grid: Grid,
        demand: Demand,
        prices: Mapping[str, Price],
        objective: str,
        budget: Budget,
        progress: Progress | None = None,
    ) -> "Search":
        """Search the grid, what is cheapest if it were full first: what costs more than `SPEND` times the best even so
        is the best neither at this load nor at half or twice of it. Where there are only so many devices all are tried.
        """
        tried, prunes = [], objective == "cost" and not budget.counts
        for server in each(grid.servers, progress, "servers"):
            if common.competes(server.fixed) and server.most:
                price, n_least = prices[server.asked], 1
                if demand.amount:
                    n_least = max(math.ceil(demand.amount / server.most * (1 - ROUNDING)), 1)
                tried.append((price.usd_per_hour(server.n_devices, n_least), server))
        tried.sort(key=lambda pair: pair[0])
        best_usd, found = math.inf, []
        for least_usd, server in tried:
            if prunes and least_usd > SPEND * best_usd * (1 + common.TIE):
                break
            if server.holds and server.starts:
                fleet = fleet_of(server, demand, prices, budget)
                found.append(fleet)
                best_usd = min(best_usd, fleet.usd_per_hour)
        found.sort(key=OBJECTIVES[objective])
        return cls(grid, demand, prices, objective, budget, tuple(found))

    def price(self, server: ServerDesign) -> Price:
        """The price of a server's devices."""
        return self.prices[server.asked]

    def allowed(self, deployments: Iterable[Fleet]) -> list[Fleet]:
        """Those within the budget and the devices that there are."""
        most, counts = self.budget.usd_per_hour * (1 + common.TIE), self.budget.counts
        return [
            d for d in deployments if d.usd_per_hour <= most and d.n_devices <= counts.get(d.server.asked, math.inf)
        ]

    @cached_property
    def ranked(self) -> list[Fleet]:
        """Deployments that may be the answer, the best first; before fewer bits that give no more throughput than one
        run gives over another of the same server, 16 bits."""
        fleets = self.allowed(self.found)
        if self.objective == "throughput" and fleets and not fleets[0].server.is_exact:
            least = fleets[0].surely_tokens_per_s * (1 - RERUN_90)
            exact = next((d for d in fleets if d.server.is_exact and d.surely_tokens_per_s >= least), None)
            if exact:
                fleets = [exact, *(d for d in fleets if d is not exact)]
        return fleets

    def at(self, amount: float, among: Sequence[Fleet] | None = None) -> Fleet | None:
        """The best fleet at another load, half to twice of this one; None where none is allowed."""
        demand, fleets = self.demand.of(amount), self.found if among is None else among
        moved = [fleet_of(fleet.server, demand, self.prices, self.budget) for fleet in fleets]
        return min(self.allowed(moved), key=OBJECTIVES[self.objective], default=None)

    @cached_property
    def _largest(self) -> list[Fleet]:
        """Fleets whose servers hold most at each price of one, in 16 bits and in fewer: no other is ever cheapest."""
        largest: dict[tuple[str, int, bool], Fleet] = {}
        for fleet in self.found:  # in order, so that of equal ones the faster stays
            key = fleet.server.asked, fleet.server.n_devices, fleet.server.is_exact
            if key not in largest or fleet.server.holds > largest[key].server.holds:
                largest[key] = fleet
        return list(largest.values())

    def turns_at(self, upward: bool) -> tuple[float, Fleet] | None:
        """The nearest load above or below, half to twice of this one, from which another server is the best, and its
        fleet; None where there is none among the `MOST_STEPS` nearest loads at which a fleet grows."""
        amount, among = float(self.demand.amount or 0), self._largest
        low, high = (amount, 2 * amount) if upward else (amount / 2, amount)
        steps = {
            n * fleet.server.holds
            for fleet in among
            for n in range(math.ceil(low / fleet.server.holds), int(high / fleet.server.holds) + 1)
        }
        for step in sorted(steps, reverse=not upward)[:MOST_STEPS]:
            over = step if not upward else step * (1 + common.TIE) if self.demand.rate is not None else step + 1
            if (best := self.at(over, among)) and best.server is not self.ranked[0].server:
                return step, best
        return None

    @cached_property
    def spent_usd(self) -> float:
        """USD an hour that the fastest and the roomiest may cost: the budget, else `SPEND` times the best."""
        return self.budget.usd_per_hour if self.budget.usd_per_hour < math.inf else SPEND * self.ranked[0].usd_per_hour

    @cached_property
    def _widest(self) -> list[Fleet]:
        """Every server as often as the money allows."""
        widest = []
        for found in self.ranked:
            n = self.budget.most_servers(found.server, self.price(found.server), self.spent_usd)
            n = min(n, self.demand.requests or n)
            if n >= found.n_servers:
                usd = self.price(found.server).usd_per_hour(found.server.n_devices, n)
                widest.append(replace(found, n_servers=n, usd_per_hour=usd))
        return widest

    @property
    def fastest(self) -> Fleet:
        """The least time per token that the money buys (`ServerDesign.pace`)."""
        return min(self._widest, key=lambda d: (d.time_s, d.usd_per_hour))

    @property
    def roomiest(self) -> Fleet:
        """The most load that the money buys."""
        return min(self._widest, key=lambda d: (-d.holds, d.usd_per_hour))


def fleet_of(server: ServerDesign, demand: Demand, prices: Mapping[str, Price], budget: Budget) -> Fleet:
    """The fewest servers for a load; without one as many as there are devices for, full."""
    price = prices[server.asked]
    if demand.amount:
        n, amount = server.count(demand.amount), float(demand.amount)
    else:
        n = max(budget.most_servers(server, price, budget.usd_per_hour), 1)
        amount = n * server.holds
    return Fleet(server, n, price.usd_per_hour(server.n_devices, n), amount)
