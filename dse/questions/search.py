"""Search for deployments: every device, engine, KV format and layout is a server, of which a load takes so many.

Exact over its grid: what is left out costs more than twice the best even if it were full (`Search.of`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from dse.core.progress import Progress, each
from dse.model import uncertainty
from dse.model.formulas import energy
from dse.questions import common, settings
from dse.questions.common import Result
from dse.questions.grid import Grid
from dse.questions.limits import LIMITS, keeps
from dse.questions.measured_fronts import layout_times
from dse.questions.server_design import Demand, ServerDesign, n_servers
from dse.questions.two_runs import RERUN_90
from dse.specs.prices import Price

#: what the fastest and the roomiest deployment may cost where no budget is given, over the best by the objective
SPEND = 2.0
#: settings of which others than the engine's are tried where these may save servers
SETTINGS = "tokens of a step, requests at once, share of the memory"
#: objectives that count servers
COUNTED = ("cost", "devices")
#: loads at which a deployment grows that are looked at for another answer
MOST_STEPS = 200


@dataclass(frozen=True)
class Fleet:
    """Servers that share a load evenly, with what they cost."""

    server: ServerDesign
    n_servers: int
    usd_per_hour: float
    #: of all servers
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
        """The load of a server, of whole numbers that of the fullest."""
        share = self.load / self.n_servers
        return float(math.ceil(share)) if self.server.demand.load.is_whole else share

    @cached_property
    def time_s(self) -> float:
        """Time per token, of answers of one token to the first, at the upper end of its interval."""
        return self.server.time_s(self.each)

    @cached_property
    def results(self) -> Result:
        """Results of one server at its load."""
        return self.server.results(self.each)

    @cached_property
    def late_s(self) -> dict[str, float]:
        """Times of one server at its load at the upper ends of their intervals, on which limits are tested."""
        load = self.server.demand.load
        return {name: load.time_s(self.server, self.each, name) for name in LIMITS}

    @property
    def tokens_per_s(self) -> float:
        """Tokens that all servers give in a second."""
        if not self.server.demand.load.is_whole:
            return self.load * self.server.work.output_tokens
        return float(self.results[self.server.demand.load.tokens]) * self.load / self.each

    @property
    def usd_per_million_tokens(self) -> float:
        """USD a million tokens at this load."""
        return energy.usd_per_million_tokens(self.usd_per_hour, self.tokens_per_s)

    @cached_property
    def keeps(self) -> float:
        """The chance that it keeps the limit that it is likeliest to miss."""
        return keeps(self.results, self.server.demand.limits)

    @cached_property
    def computed_tokens_per_s(self) -> float:
        """Tokens a second where the load is all that it likely holds, in the middle of its interval: of all devices,
        and of one where a load is asked for, which some number of them holds. At the load that each surely holds the
        fastest would seem best: alternatives mostly err alike, and a run finds what they hold."""
        load, amount = self.server.demand.load, self.server.likely_holds
        row = self.server.results(amount)
        rate = row[load.tokens] if load.is_whole else amount * row["output_tokens"]
        low, high, _ = uncertainty.of_column(row, uncertainty.RATE)
        n = self.n_devices if self.server.demand.amount is None else 1
        return n * float(rate) / self.server.n_devices * uncertainty.middle(low, high)

    @property
    def measured_times(self) -> float | None:
        """Measured over computed rate of its layout beside the others; None where it was not measured."""
        return layout_times(self.server.fixed)

    @property
    def likely_tokens_per_s(self) -> float:
        """Tokens a second by which deployments are ranked: computed, and as measured layouts differ from that."""
        return self.computed_tokens_per_s * (self.measured_times or 1.0)


def _least_cost(fleet: "Fleet") -> tuple[float, ...]:
    """The cheapest first; of as much money what gives up least, then what holds more and is faster."""
    return fleet.usd_per_hour, *fleet.server.gives_up, -fleet.holds, fleet.time_s


#: what is best, by the name of an objective: the least key
OBJECTIVES = {
    "cost": _least_cost,
    "devices": lambda d: (d.n_devices, d.usd_per_hour, *d.server.gives_up, d.time_s, -d.holds),
    "throughput": lambda d: (-d.likely_tokens_per_s, d.usd_per_hour, *d.server.gives_up),
    "energy": lambda d: (d.results["joules_per_token"] or math.inf, d.usd_per_hour, *d.server.gives_up),
}


class Budget(NamedTuple):
    """The money and the devices that there are."""

    usd_per_hour: float = math.inf
    #: devices at most, by the name that was asked for
    counts: Mapping[str, int] = {}

    @property
    def given(self) -> list[str]:
        """Those that are limited, in words."""
        return ["the devices"] * bool(self.counts) + ["the budget"] * (self.usd_per_hour < math.inf)

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
class Search:
    """Deployments of the fewest servers that hold the load, the best first; what costs more than `SPEND` times the best
    is left out where the objective is the cost."""

    grid: Grid
    demand: Demand
    prices: Mapping[str, Price]
    objective: str
    budget: Budget
    found: tuple[Fleet, ...] = field(repr=False)
    #: the best with states in fewer bits than the model's, of which nobody published scores: `found` has such where no
    #: other holds the load
    unscored: Fleet | None = field(default=None, repr=False)

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
        search = cls(grid, demand, prices, objective, budget, ())
        tried = []
        for server in each(grid.servers, progress, "servers"):
            if common.competes(server.fixed) and (most := search.most(server)):
                usd = prices[server.asked].usd_per_hour(server.n_devices, n_servers(demand.amount, most))
                tried.append((usd, server))
        tried.sort(key=lambda pair: pair[0])
        best_usd, found, prunes = math.inf, [], _prunes(objective, budget)
        for least_usd, server in tried:
            if prunes and least_usd > SPEND * best_usd * (1 + common.TIE):
                break
            fleet = search.fleet(server, demand, SPEND * best_usd if prunes else math.inf)
            if fleet and fleet.server.starts:
                found.append(fleet)
                best_usd = best_usd if server.is_unscored else min(best_usd, fleet.usd_per_hour)
        found.sort(key=OBJECTIVES[objective])
        scored = tuple(fleet for fleet in found if not fleet.server.is_unscored)
        if search.allowed(scored):
            others = (fleet for fleet in found if fleet.server.is_unscored)
            return replace(search, found=scored, unscored=next(iter(search.allowed(others)), None))
        return replace(search, found=tuple(found))

    @property
    def in_settings(self) -> bool:
        """Whether other settings than the engines' own are tried: where they may save servers of a rate or of requests
        at once. Of full devices the order would turn on a few requests that a step has room for."""
        load = self.demand.load
        tried = load.amount is not None and self.objective in COUNTED and type(load) in settings.LOADS
        return tried and not self.grid.is_fixed

    @property
    def text(self) -> str:
        """The grid and the settings, in words."""
        if not self.in_settings:
            return f"{self.grid.text}; as the engine has them: {SETTINGS}"
        n = [settings.n_settings(server) for server in self.grid.servers]
        return (
            f"{self.grid.text}, with its engine's settings and up to {max(n) - 1:,} others ({SETTINGS}), "
            f"{sum(n):,} in all"
        )

    def most(self, server: ServerDesign) -> float:
        """The load that a server holds at most in the settings that are tried: no more than this, sooner computed."""
        return settings.most(server) if self.in_settings else server.most

    def fleet(self, server: ServerDesign, demand: Demand, usd: float = math.inf) -> Fleet | None:
        """The fewest servers for a load, with the fewest changes of their settings; None where they hold none, or those
        that do cost more than so many USD an hour. `server` is as its engine has it."""
        if self.in_settings and demand.amount:
            n_most = self.budget.most_servers(server, self.price(server), usd) if usd < math.inf else usd
            server = settings.holding(server, demand.amount, n_most)
        return fleet_of(server, demand, self.prices, self.budget) if server.holds else None

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
        """Deployments that may be the answer, the best first; of those that give no less throughput than one run gives
        under another of the same server, what gives up least."""
        fleets = self.allowed(self.found)
        if self.objective == "throughput" and fleets:
            least = fleets[0].likely_tokens_per_s * (1 - RERUN_90)
            first = min((d for d in fleets if d.likely_tokens_per_s >= least), key=lambda d: d.server.gives_up)
            fleets = [first, *(d for d in fleets if d is not first)]
        return fleets

    def at(self, amount: float, among: Sequence[Fleet] | None = None) -> Fleet | None:
        """The best fleet at another load, half to twice of this one; None where none is allowed."""
        demand, fleets = self.demand.of(amount), self.found if among is None else among
        best: Fleet | None = None
        for fleet in fleets:
            most_usd = best.usd_per_hour if best and self.objective == "cost" else math.inf
            moved = self.fleet(fleet.server.own, demand, most_usd)
            best = min(self.allowed(filter(None, (best, moved))), key=OBJECTIVES[self.objective], default=None)
        return best

    @property
    def tried_usd(self) -> float:
        """USD an hour up to which all fleets were tried."""
        return SPEND * self.ranked[0].usd_per_hour if _prunes(self.objective, self.budget) else math.inf

    @property
    def most_load(self) -> float:
        """The largest load that servers of one design hold within the devices or the money that are given, in all
        settings that are tried; of a trace, of the servers that were found."""
        servers = [fleet.server for fleet in self.found] if self.demand.load.is_run else self.grid.servers
        budget, bounds = self.budget, list[tuple[float, int, ServerDesign]]()
        for server in servers:
            is_limited = budget.usd_per_hour < math.inf or server.asked in budget.counts
            if is_limited and common.competes(server.fixed) and (most := self.most(server)):
                n = budget.most_servers(server, self.price(server), budget.usd_per_hour)
                bounds.append((n * most, n, server))
        best = 0.0
        for bound, n, server in sorted(bounds, key=lambda one: -one[0]):
            if bound <= best:
                break
            if server.starts:
                best = max(best, n * (settings.roomiest(server) if self.in_settings else server).holds)
        return best

    @cached_property
    def _largest(self) -> list[Fleet]:
        """Fleets whose servers hold most at each price of one, of those that give up as much: no other is ever
        cheapest."""
        largest: dict[tuple[object, ...], Fleet] = {}
        for fleet in self.found:  # in order, so that of equal ones the faster stays
            key = fleet.server.asked, fleet.server.n_devices, fleet.server.gives_up
            if key not in largest or fleet.server.holds > largest[key].server.holds:
                largest[key] = fleet
        return list(largest.values())

    def turns_at(self, upward: bool) -> tuple[float, Fleet] | None:
        """The nearest load above or below, half to twice of this one, from which another server is the best, and its
        fleet; None where there is none among the `MOST_STEPS` nearest loads at which a fleet grows."""
        amount, among = float(self.demand.amount or 0), self._largest
        low, high = (amount, 2 * amount) if upward else (amount / 2, amount)
        numbers = [range(math.ceil(low / one.server.holds), int(high / one.server.holds) + 1) for one in among]
        nearest = [ns[:MOST_STEPS] if upward else ns[-MOST_STEPS:] for ns in numbers]
        steps = {n * one.server.holds for one, ns in zip(among, nearest, strict=True) for n in ns}
        for step in sorted(steps, reverse=not upward)[:MOST_STEPS]:
            over = step if not upward else step + 1 if self.demand.load.is_whole else step * (1 + common.TIE)
            if (best := self.at(over, among)) and best.server.own is not self.ranked[0].server.own:
                return step, best
        return None

    @cached_property
    def spent_usd(self) -> float:
        """USD an hour that the fastest and the roomiest may cost: the budget, else `SPEND` times the best."""
        return self.budget.usd_per_hour if self.budget.usd_per_hour < math.inf else SPEND * self.ranked[0].usd_per_hour

    @cached_property
    def _widest(self) -> list[Fleet]:
        """Every server as often as the money allows, as its engine has it and in the settings that save servers."""
        widest = []
        servers = [(fleet, server) for fleet in self.ranked for server in {fleet.server.own: 0, fleet.server: 0}]
        for found in [replace(fleet, server=server) for fleet, server in servers if server.holds]:
            n = self.budget.most_servers(found.server, self.price(found.server), self.spent_usd)
            n = min(n, int(self.demand.amount or n)) if self.demand.load.is_whole else n
            if n >= found.server.count(self.demand.amount):
                usd = self.price(found.server).usd_per_hour(found.server.n_devices, n)
                widest.append(replace(found, n_servers=n, usd_per_hour=usd))
        return widest

    @property
    def fastest(self) -> Fleet:
        """The least time per token that the money buys (`ServerDesign.pace`)."""
        return min(self._widest, key=lambda d: (d.time_s, d.usd_per_hour, d.server.gives_up))

    @property
    def roomiest(self) -> Fleet:
        """The most load that the money buys."""
        return min(self._widest, key=lambda d: (-d.holds, d.usd_per_hour, d.server.gives_up))


def _prunes(objective: str, budget: Budget) -> bool:
    """Whether servers are left out that cost much."""
    return objective == "cost" and not budget.counts


def fleet_of(server: ServerDesign, demand: Demand, prices: Mapping[str, Price], budget: Budget) -> Fleet:
    """The fewest servers for a load; without one as many as there are devices for, full."""
    price = prices[server.asked]
    if demand.amount:
        n, amount = server.count(demand.amount), float(demand.amount)
    else:
        n = max(budget.most_servers(server, price, budget.usd_per_hour), 1)
        amount = n * server.holds
    return Fleet(server, n, price.usd_per_hour(server.n_devices, n), amount)
