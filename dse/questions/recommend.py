"""Recommend deployments for a load within limits: the cheapest, the fastest, the roomiest, each with its command."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from textwrap import wrap
from typing import Any

import pandas as pd

from dse.core.columns import Column, aligned, cells
from dse.core.errors import InputError
from dse.core.progress import Progress
from dse.model import quality, uncertainty
from dse.model.uncertainty import Gain
from dse.questions import common, layouts, search
from dse.questions.changes import Change, Changes
from dse.questions.common import QuestionAnswer, Result, limits_text, sure_text
from dse.questions.demand import Demand
from dse.questions.grid import Grid
from dse.questions.limits import LIMITS
from dse.questions.measured_fronts import MeasuredFront, measured_front
from dse.questions.search import Budget, Fleet, Search
from dse.questions.server_design import ServerDesign
from dse.questions.two_runs import RERUN_90, TwoRuns, two_runs
from dse.specs.prices import Price

#: heads of the first card, by objective
FIRST = {"cost": "cheapest", "devices": "fewest devices", "throughput": "most throughput", "energy": "least energy"}
#: letters of a line
WIDTH = 100
#: what the search leaves as the engine has it
AS_THE_ENGINE = "memory utilization, batched tokens, sequences at once, type of states, host memory"
#: how much longer limits are looked at, in seconds by column
LOOSER = {"tpot_s": 1e-3, "ttft_s": 0.1}
#: any budget, any number of devices
NO_BUDGET = Budget()
#: deployments of the table
MOST_ROWS = 200


@dataclass(frozen=True, repr=False)
class Recommendation(QuestionAnswer):
    """The answer: `cards` by their heads, the best by the objective first; and what was searched."""

    search: Search
    model: str
    cards: dict[str, Fleet]
    #: the prices by device
    prices: Mapping[str, Price]
    #: from a server that runs today, where one is given
    changes: Changes | None = None

    @property
    def shown(self) -> dict[str, Fleet]:
        """The cards by their heads, those that coincide as one."""
        heads: dict[tuple[ServerDesign, int], list[str]] = {}
        for name, fleet in self.cards.items():
            heads.setdefault((fleet.server, fleet.n_servers), []).append(name)
        return {", ".join(names): self.cards[names[0]] for names in heads.values()}

    @cached_property
    def best(self) -> Result:
        """The best deployment by the objective, in SI base units."""
        return told(self.first)

    @property
    def first(self) -> Fleet:
        """The best deployment by the objective."""
        return next(iter(self.cards.values()))

    @property
    def command(self) -> str:
        """The command that starts a server of the best deployment; "" where there is none."""
        return self.first.server.command.line

    @property
    def runner_up(self) -> Fleet | None:
        """The best of another device, engine, format or layout."""
        return next((d for d in self.search.ranked if d.server is not self.first.server), None)

    @cached_property
    def two_runs(self) -> TwoRuns | None:
        """The runs that would tell the best from the runner-up, where that may well be better; None where it is surely
        not, or of another device or engine."""
        if (rival := self.runner_up) is None or rival.server.name[:2] != self.first.server.name[:2]:
            return None
        gain, names = ahead(self.first, rival), (words(self.first), words(rival))
        return two_runs(self.first.results, rival.results, names, gain) if 1 - gain.sure >= common.NAMED_FROM else None

    @cached_property
    def measured_front(self) -> MeasuredFront | None:
        """Measured servers beside the best deployment; None where none were measured near it."""
        return measured_front(self.first.results, self.search.demand.limits.get("tpot_s"))

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each deployment that was compared, the best first, in SI base units."""
        return pd.DataFrame([_row(deployment) for deployment in self.search.ranked[:MOST_ROWS]])

    @cached_property
    def other_loads(self) -> dict[str, Fleet | None]:
        """The best deployment at twice and at half the load."""
        amount = self.search.demand.amount
        factors = {"twice the load": 2.0, "half the load": 0.5} if amount else {}
        return {name: self.search.at(factor * float(amount or 0)) for name, factor in factors.items()}

    def to_json(self) -> dict[str, Any]:
        """All of it, in SI base units."""
        demand, rival = self.search.demand, self.runner_up
        return {
            "question": "recommend",
            "model": self.model,
            **demand.load.to_json(),
            "limits_s": demand.limits,
            "objective": self.search.objective,
            "cards": {name: told(deployment) for name, deployment in self.cards.items()},
            "runner_up": rival and {**told(rival), "sure": ahead(rival, self.first).sure},
            "other_loads": {name: d and told(d) for name, d in self.other_loads.items()},
            "two_runs": self.two_runs and self.two_runs.to_json(),
            "measured_front": self.measured_front and self.measured_front.to_json(),
            "changes": self.changes and self.changes.to_json(),
            "searched": self.search.grid.text,
            "prices": {name: price.source for name, price in self.prices.items()},
        }

    def text(self) -> str:
        """One screen: the verdict, the cards, their commands, the runner-up, what would change it."""
        measured = wrap(self.measured_front.text(), WIDTH) if self.measured_front else []
        lines = [f"What to run: {self.question}", "", *wrap(self.verdict, WIDTH), *measured, ""]
        heads = [["", *self.shown], *self._card_lines()]
        lines += [*aligned(heads, left=len(heads[0])), ""]
        for name, deployment in self.shown.items():
            of = f", on each of {deployment.n_servers:,}" if deployment.n_servers > 1 else ""
            lines.append(f"{name}{of}: {_command_text(deployment)}")
        lines += ["", *self._size_lines(), *self._change_lines()]
        notes = [self._runner_up_text(), *self._more(), *self._turns(), *self._price_turns()]
        lines += [line for note in notes if note for line in wrap(note, WIDTH)]
        lines += [self.two_runs.text()] if self.two_runs else []
        if self.other_loads:
            lines += ["", *aligned(cells(_OTHER, self._other_rows()), 2)]
        lines += ["", *(line for note in self._small_print() for line in wrap(note, WIDTH))]
        return "\n".join(lines)

    @property
    def question(self) -> str:
        """The model, the load and the limits, in words."""
        demand, work = self.search.demand, self.first.server.work
        within = f", {limits_text(demand.limits)}" if demand.limits else ""
        return f"{self.model}, {demand.load.words(work)}{within}"

    @property
    def verdict(self) -> str:
        """The best deployment, in a sentence."""
        first, limits = self.first, self.search.demand.limits
        sure = f"; {sure_text(first.keeps)} sure to keep {limits_text(limits)}" if limits else ""
        return f"Run {words(first)}, for {_usd(first.usd_per_hour)} an hour{sure}."

    def _card_lines(self) -> list[list[str]]:
        rows = [told(deployment) for deployment in self.shown.values()]
        shown: tuple[Column, ...] = _CARD if self.search.demand.limits else _CARD[:-1]
        if self.first.server.work.output_tokens == 1:
            shown = tuple(column for column in shown if column.name != "TPOT")
        return [[column.title or column.name, *(column.cell(row) for row in rows)] for column in shown]

    def _size_lines(self) -> list[str]:
        """The best servers of each number of devices, where the fewest are searched."""
        if self.search.objective != "devices":
            return []
        best: dict[tuple[str, int], Fleet] = {}
        for fleet in self.search.ranked:
            best.setdefault((fleet.server.asked, fleet.server.n_devices), fleet)
        return [*aligned(cells(_SIZES, [_row(best[size]) for size in sorted(best)]), 3), ""]

    def _change_lines(self) -> list[str]:
        """Each difference from today's server, and what it gives; or that nothing is to be done."""
        if not (from_today := self.changes):
            return []
        best = from_today.best
        rows = [_change_row(change) for change in (from_today.today, *from_today.single)]
        if best is not None:
            rows.append(_change_row(Change("all of it", best)))
        if from_today.is_nothing:
            said = "Do nothing: today's server holds the load, and no change on its devices saves or gives much."
        elif best is None:
            said = "No server on today's devices holds the load within the limits."
        elif from_today.today.fleet is None:
            said = "Today's server does not hold the load within the limits, however many there are."
        elif from_today.times > 1:
            said = f"Changing today's flags gives {from_today.times:.2f} times the throughput on the same devices."
        else:
            said = f"Changing today's flags saves {_usd(from_today.saves_usd)} an hour on the same devices."
        unread = f" Not read: {', '.join(from_today.left_out)}." if from_today.left_out else ""
        return [*wrap(said + unread, WIDTH), *aligned([[*_CHANGE, f"{_pace(self.first)} at most"], *rows], 2), ""]

    def _runner_up_text(self) -> str:
        first, rival = self.first, self.runner_up
        if rival is None:
            return "Nothing else that was tried holds this load within the limits."
        chance = sure_text(ahead(rival, first).sure)
        return (
            f"Runner-up: {words(rival)}. It lost as it {why_lost(rival, first, self.search.objective)}; {chance} sure "
            "to hold more for its money after all."
        )

    def _more(self) -> list[str]:
        """Gains of one more server, of longer limits, of 16-bit keys and values."""
        first, demand = self.first, self.search.demand
        lines, n, server = [], first.n_servers, first.server
        pace = _pace(first)
        if demand.amount:
            price = self.search.price(server)
            usd = price.usd_per_hour(server.n_devices, n + 1) - first.usd_per_hour
            more = replace(first, n_servers=n + 1)
            lines.append(
                f"One more server of {server.n_devices}: {_usd(usd)} an hour more, holds {_three(more.holds)} in place "
                f"of {_three(first.holds)}, {pace} at most {_ms(more.time_s)} in place of {_ms(first.time_s)}."
            )
        looser = {name: demand.limits[name] + step for name, step in LOOSER.items() if name in demand.limits}
        lines += [self._looser(looser)] if looser else []
        if not server.is_exact:
            exact = next((d for d in self.search.ranked if d.server.is_exact), None)
            over = f"more than {_usd(search.SPEND * first.usd_per_hour)}" if exact is None else _usd(exact.usd_per_hour)
            lines.append(
                f"16-bit keys and values: {over} an hour" + (f" ({words(exact)})." if exact else ", or out of reach.")
            )
        return lines

    def _looser(self, looser: Mapping[str, float]) -> str:
        """The load that is held where each limit is a little longer."""
        server, limits, said = self.first.server, self.search.demand.limits, []
        for column, limit in looser.items():
            holds = self.first.n_servers * server.holds_within({**limits, column: limit})
            is_more = holds > self.first.holds * (1 + 1e-6)
            more = f"{_three(holds)}, not {_three(self.first.holds)}" if is_more else "no more"
            name = limits_text({column: limit - limits[column]})
            said.append(f"{name} longer holds {more}")
        return f"{'; '.join(said)}."

    def _turns(self) -> list[str]:
        if not self.search.demand.amount or self.search.objective != "cost":
            return []
        said, unit = [], self.search.demand.load.unit
        for upward, word in ((False, "up to"), (True, "above")):
            if found := self.search.turns_at(upward):
                said.append(f"{word} {_three(found[0])} {unit} {words(found[1])}")
        if not said:
            return ["From half to twice the load no other server is better."]
        return [f"At another load: {'; '.join(said)}."]

    def _price_turns(self) -> list[str]:
        """At which price of a device the answer is another, where several are compared by cost."""
        if self.search.objective != "cost" or len(self.prices) < 2 or not self.search.demand.amount:
            return []
        best: dict[str, float] = {}
        for deployment in self.search.ranked:
            best.setdefault(deployment.server.asked, deployment.usd_per_hour)
        own, usd = self.first.server.asked, self.first.usd_per_hour
        others = {name: cost for name, cost in best.items() if name != own}
        said = [f"{name} costs {100 * (1 - usd / cost):.0f} % less" for name, cost in others.items()]
        if others:
            said.append(f"{own} {100 * (min(others.values()) / usd - 1):.0f} % more")
        far = [name for name in self.prices if name not in best]
        turns = f"At other prices: another device is as cheap where {' or '.join(said)}." if said else ""
        beyond = f"{', '.join(far)}: beyond the limits or twice the cost." if far else ""
        return [" ".join(filter(None, (turns, beyond)))]

    def _other_rows(self) -> list[dict[str, Any]]:
        return [
            {"load": name, "run": words(d), "usd": _usd(d.usd_per_hour)}
            if d
            else {"load": name, "run": "-", "usd": "-"}
            for name, d in self.other_loads.items()
        ]

    def _small_print(self) -> list[str]:
        """The grid, and what prices and chances are, and what it rests on."""
        rows = [deployment.results for deployment in self.cards.values()]
        limit = "A limit holds at the upper end of the 80 % interval of a time" if self.search.demand.limits else ""
        spent = f"the fastest and the roomiest cost at most {_usd(self.search.spent_usd)} an hour"
        how, grid = self.search.demand.load.how, self.search.grid
        said = "; ".join(filter(None, (limit, spent if self.search.demand.amount else "", how)))
        return [
            f"Searched: {grid.text}; as the engine has them: {AS_THE_ENGINE}. {grid.left_out_text}".rstrip(),
            *([f"{said[0].upper()}{said[1:]}."] if said else []),
            f"Prices an hour: {prices_text(self.prices)}.",
            common.assumption_text(rows, common.THROUGHPUT),
            common.age_text(self.first.server.point),
        ]


_CHANGE = ["from today", "servers", "an hour", "holds", "token/s"]


def _change_row(change: Change) -> list[str]:
    fleet = change.fleet
    if fleet is None:
        return [change.what, "does not hold it", "-", "-", "-", "-"]
    servers = f"{fleet.n_servers:,} x {fleet.server.n_devices} {fleet.server.design.device.name}"
    numbers = [_usd(fleet.usd_per_hour), _three(fleet.holds), f"{fleet.tokens_per_s:,.0f}", _ms(fleet.time_s)]
    return [change.what, servers, *numbers]


def told(deployment: Fleet) -> Result:
    """A deployment by names, in SI base units."""
    row, server, command = deployment.results, deployment.server, deployment.server.command
    return {
        **_row(deployment),
        "usd_per_million_tokens": deployment.usd_per_million_tokens,
        **{name: row[name] for name in ("tpot_s", "ttft_s", "joules_per_token", "bound", *quality.NAMES[2:])},
        **{f"{name}_{end}": value for name in LIMITS for end, value in _ends(row, name)},
        "first_limit": first_limit(deployment),
        "sure": deployment.keeps,
        "runs": common.competes(row),
        "command": command.line,
        "not_in_command": list(command.cannot),
        "assumptions": list(row["assumptions"]),
        "input_tokens": server.work.input_tokens,
        "output_tokens": server.work.output_tokens,
    }


def _ends(row: Result, name: str) -> list[tuple[str, float]]:
    return list(zip(("low", "high"), uncertainty.ends(row, name), strict=True))


def _row(deployment: Fleet) -> Result:
    """A row of the table: what is run, what it costs and holds."""
    server = deployment.server
    return {
        "device": server.design.device.name,
        "stack": server.fixed["stack"],
        "weights": server.work.of_model(server.design.plan.model).weights_text.removesuffix(" weights"),
        "quantizer": server.design.name,
        **{name: getattr(server.work, name) for name in layouts.SPLIT},
        "n_devices_a_server": server.n_devices,
        "n_servers": deployment.n_servers,
        "n_devices": deployment.n_devices,
        "usd_per_hour": deployment.usd_per_hour,
        "load": deployment.load,
        "holds": deployment.holds,
        "time_high_s": deployment.time_s,
        "tokens_per_s": deployment.tokens_per_s,
    }


def first_limit(deployment: Fleet) -> str:
    """The limit that more load would break first: TPOT, TTFT, or what the server takes at all."""
    server, limits = deployment.server, deployment.server.demand.limits
    if server.holds < server.most:
        return min(limits, key=lambda name: server.holds_within({name: limits[name]})).removesuffix("_s").upper()
    return server.demand.load.bound


def _command_text(deployment: Fleet) -> str:
    command = deployment.server.command
    lacks = "; ".join(command.cannot)
    if not command.line:
        return f"no command: {lacks}"
    return f"{command.line}  (not in this line: {lacks})" if lacks else command.line


def words(deployment: Fleet) -> str:
    """A deployment in words: 5 x 2 B200, vllm, fp8 keys and values, tp 2."""
    device, stack, quantizer, split = deployment.server.name
    n = deployment.server.n_devices
    devices = f"{deployment.n_servers:,} x {n if n > 1 else ''} {device}".replace("  ", " ")
    return ", ".join(filter(None, [devices, stack, f"{quantizer} keys and values", split]))


def ahead(fleet: Fleet, other: Fleet) -> Gain:
    """The load that a fleet really holds for its money over that of another: as computed, with what is unsure of the
    rates of the two servers."""
    rows = fleet.results, other.results
    gain = uncertainty.gain(*rows)
    rates = [float(row[uncertainty.RATE]) for row in rows]
    limits = fleet.server.demand.limits
    held = [one.n_servers * one.server.holds_within(limits, False) / one.usd_per_hour for one in (fleet, other)]
    scale = held[0] / held[1] / (rates[0] / rates[1])
    scaled = uncertainty.gain_within(scale * gain.low, scale * gain.high)
    return scaled._replace(sure=uncertainty.at_most(scaled.sure, rows))


def why_lost(rival: Fleet, first: Fleet, objective: str) -> str:
    """Why a runner-up lost, to follow "as it"."""
    if objective == "energy":
        return f"takes {rival.results['joules_per_token'] / first.results['joules_per_token']:.2f} times the energy"
    if objective == "devices" and rival.n_devices > first.n_devices:
        return f"takes {rival.n_devices:,} devices, not {first.n_devices:,}"
    if objective == "throughput":
        if first.server.is_exact and not rival.server.is_exact:
            return f"stores fewer bits for at most {RERUN_90:.0%} more throughput, as much as runs differ by"
        if rival.tokens_per_s >= first.tokens_per_s:
            return "gives less throughput in the middle of its interval"
        return f"gives {rival.tokens_per_s:,.0f} token/s, not {first.tokens_per_s:,.0f}"
    if rival.usd_per_hour > first.usd_per_hour * (1 + common.TIE):
        return f"costs {_usd(rival.usd_per_hour)} an hour, {rival.usd_per_hour / first.usd_per_hour:.2f} times as much"
    if first.server.is_exact and not rival.server.is_exact:
        drop = quality.drop_text(rival.results)
        return f"stores fewer bits at the same cost (drop of scores {drop}), though it holds {_three(rival.holds)}"
    if objective != "devices" and rival.holds < first.holds * (1 - common.TIE):
        return f"holds {_three(rival.holds)} at the same cost, not {_three(first.holds)}"
    return f"is slower at the same cost: {_pace(first)} at most {_ms(rival.time_s)}, not {_ms(first.time_s)}"


def _usd(usd: float) -> str:
    return f"{usd:,.2f} USD" if usd < 1000 else f"{usd:,.0f} USD"


def _pace(fleet: Fleet) -> str:
    """The time that says how fast it is, by its name."""
    return fleet.server.pace.removesuffix("_s").upper()


def _three(number: float) -> str:
    """Three digits, whole from a hundred on."""
    return f"{number:,.0f}" if number >= 100 else f"{number:,.3g}"


def _ms(seconds: float) -> str:
    return f"{_three(1e3 * seconds)} ms"


def prices_text(prices: Mapping[str, Price]) -> str:
    """Prices with their sources, of one source together."""
    by_source: dict[str, list[str]] = {}
    for name, price in prices.items():
        offers = [
            f"{o.n_devices} for {o.usd_per_hour:,.4g}" if price.is_by_instance else f"{o.usd_per_hour:,.4g}"
            for o in price.offers
        ]
        by_source.setdefault(price.source, []).append(f"{name} {', '.join(offers)}")
    return "; ".join(f"{', '.join(told_of)} USD ({source})" for source, told_of in by_source.items())


def _times_text(name: str) -> Any:
    def text(row: Result) -> str:
        value, low, high = (1e3 * row[f"{name}{end}"] for end in ("", "_low", "_high"))
        return f"{_three(value)} ms ({_three(low)}-{_three(high)})"

    return text


_CARD = (
    Column("servers", form=lambda row: f"{row['n_servers']:,} x {row['n_devices_a_server']} {row['device']}"),
    Column("engine", form=lambda row: f"{row['stack'] or '-'}, {row['weights']} weights"),
    Column("keys and values", form=lambda row: row["quantizer"]),
    Column("split", form=lambda row: layouts.words(row) or "-"),
    Column("an hour", form=lambda row: _usd(row["usd_per_hour"])),
    Column("throughput", form=lambda row: f"{row['tokens_per_s']:,.0f} token/s"),
    Column("a million tokens", form=lambda row: _usd(row["usd_per_million_tokens"])),
    Column("TPOT", form=_times_text("tpot_s")),
    Column("TTFT", form=_times_text("ttft_s")),
    Column(
        "load", form=lambda row: f"{_three(row['load'])} of {_three(row['holds'])} ({row['load'] / row['holds']:.0%})"
    ),
    Column("binds first", form=lambda row: f"{row['first_limit']}; steps: {row['bound']}"),
    Column("drop of scores", form=quality.drop_text),
    Column("sure to keep limits", form=lambda row: sure_text(row["sure"])),
)
_SIZES = (
    Column("device"),
    Column("quantizer", title="keys and values"),
    Column("split", form=lambda row: layouts.words(row) or "-"),
    Column("n_devices_a_server", title="devices a server"),
    Column("holds", title="a server holds", form=lambda row: _three(row["holds"] / row["n_servers"])),
    Column("n_servers", title="servers", form=","),
    Column("n_devices", title="devices", form=","),
    Column("tokens_per_s", title="token/s", form=",.0f"),
)
_OTHER = (Column("load", title=" "), Column("run"), Column("usd", title="an hour"))


def recommend(
    grid: Grid,
    demand: Demand,
    prices: Mapping[str, Price],
    objective: str = "cost",
    budget: Budget = NO_BUDGET,
    progress: Progress | None = None,
) -> Recommendation:
    """The deployments of a grid that hold a load within its limits, the best by an objective.

    Raises InputError where nothing does, with what comes closest.
    """
    found = Search.of(grid, demand, prices, objective, budget, progress)
    model = grid.servers[0].design.plan.model
    if not found.ranked:
        raise InputError(_nothing(found))
    cards = {FIRST[objective]: found.ranked[0]}
    if demand.amount:
        cards |= {"fastest": found.fastest, "most room": found.roomiest}
    return Recommendation(found, model.alias or model.name, cards, prices)


def _nothing(found: Search) -> str:
    """Why nothing is recommended, what comes closest, and which limit to relax by how much."""
    demand, budget, unit = found.demand, found.budget, found.demand.load.unit
    if found.found:  # it is the money, or the devices that there are
        nearest = min(found.found, key=lambda d: d.usd_per_hour)
        fits = [d for d in found.found if d.n_devices <= budget.counts.get(d.server.asked, math.inf)]
        if fits and budget.usd_per_hour < math.inf:
            nearest = min(fits, key=lambda d: d.usd_per_hour)
            return (
                f"budget = {budget.usd_per_hour:g}/h: the cheapest that holds {_three(nearest.load)} {unit} "
                f"within the limits costs {_usd(nearest.usd_per_hour)} an hour ({words(nearest)}): raise --budget, or "
                "serve less"
            )
        return (
            f"devices: those that there are hold less than {_three(nearest.load)} {unit} within the limits: the "
            f"cheapest that holds it is {words(nearest)}"
        )
    servers = [server for server in found.grid.servers if common.competes(server.fixed)]
    if not servers:
        return f"{common.NONE_RUNS}"
    if not (fitting := [server for server in servers if server.most]):
        reason = servers[-1].point.infeasible_reason
        return f"no layout fits: {reason}: add --most, other --devices, or --weights of fewer bits"
    if not (fitting := [server for server in fitting if server.starts]):
        return f"{servers[-1].command.cannot[0]}: name another with --quantizers, or add --other-software"
    least = [(server, server.least_times) for server in fitting]
    server, times = min(least, key=lambda pair: max(pair[1][name] / limit for name, limit in demand.limits.items()))
    alone = replace(_alone(server, found), load=0.0)
    needed = [name for name, limit in demand.limits.items() if times[name] > limit]
    asked = " and ".join(f"--max-{name.removesuffix('_s')} {_up(times[name])}" for name in needed)
    return (
        f"nothing surely keeps {limits_text(demand.limits)}: closest comes {words(alone)}, hardly loaded: "
        f"{limits_text({name: times[name] for name in needed})}: use more than {asked}, the longer the fewer servers"
    )


def _alone(server: ServerDesign, found: Search) -> Fleet:
    return Fleet(server, 1, found.price(server).usd_per_hour(server.n_devices, 1), 1.0)


def _up(seconds: float) -> str:
    """A time that is rounded up, as an option takes it."""
    ms = 1e3 * seconds
    digits = 10 ** max(math.floor(math.log10(ms)) - 2, -3)
    return f"{math.ceil(ms / digits) * digits:.6g}ms"
