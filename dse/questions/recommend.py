"""Recommend deployments for a load within limits: the cheapest, the fastest, the roomiest, each with its command."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from dse.core.columns import Column, aligned, cells
from dse.core.errors import DseError, InputError
from dse.core.progress import Progress
from dse.model import quality, uncertainty
from dse.model.uncertainty import Gain
from dse.questions import common, layouts, search, settings
from dse.questions.changes import Change, Changes
from dse.questions.common import QuestionAnswer, Result, limits_text, sure_text
from dse.questions.grid import Grid
from dse.questions.limits import LIMITS
from dse.questions.measured_fronts import MeasuredFront, measured_front
from dse.questions.search import Budget, Fleet, Search
from dse.questions.server_design import ROUNDING, Demand, ServerDesign, n_servers
from dse.questions.two_runs import RERUN_90, TwoRuns, two_runs
from dse.specs import server_flags
from dse.specs.prices import Price

if TYPE_CHECKING:
    import pandas as pd

#: heads of the first card, by objective
FIRST = {"cost": "cheapest", "devices": "fewest devices", "throughput": "most throughput", "energy": "least energy"}
#: letters of a line
WIDTH = 100
#: how much longer limits are looked at, in seconds by column
LOOSER = {"tpot_s": 1e-3, "ttft_s": 0.1}
#: share of the cost below which a device is as cheap: it would be printed as 0 %
LEAST_LESS = 0.005
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
        asked, name = self.first.server.asked, self.first.server.name
        return next((d for d in self.search.ranked if (d.server.asked, d.server.name) != (asked, name)), None)

    @cached_property
    def two_runs(self) -> TwoRuns | None:
        """The runs that would tell the best from the runner-up, where that may well be better; None where it is surely
        not, or of another device or engine, and of prompts that are found, as no benchmark has them."""
        if "hit_rate" in self.first.results:
            return None
        if (rival := self.runner_up) is None or rival.server.name[:2] != self.first.server.name[:2]:
            return None
        gain, names = ahead(self.first, rival), (words(self.first), words(rival))
        return two_runs(self.first.results, rival.results, names, gain) if 1 - gain.sure >= common.NAMED_FROM else None

    @cached_property
    def measured_front(self) -> MeasuredFront | None:
        """Measured servers beside the best deployment; None where none were measured near it, and where prompts are
        found, as they are in none of these."""
        if "hit_rate" in self.first.results:
            return None
        return measured_front(self.first.results, self.search.demand.limits.get("tpot_s"))

    @cached_property
    def table(self) -> "pd.DataFrame":
        """A row for each deployment that was compared, the best first, in SI base units."""
        import pandas as pd

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
            "measured_times": self.first.measured_times,
            "measured_front": self.measured_front and self.measured_front.to_json(),
            "changes": self.changes and self.changes.to_json(),
            "searched": self.search.text,
            "prices": {name: price.source for name, price in self.prices.items()},
        }

    def text(self) -> str:
        """One screen: the verdict, the cards, their commands, the runner-up, what would change it."""
        measured = wrap(self.measured_front.text(), WIDTH) if self.measured_front else []
        verdict = [*wrap(self.verdict, WIDTH), *wrap(self.positions_text, WIDTH)]
        lines = [f"What to run: {self.question}", "", *verdict, *measured, ""]
        heads = [["", *self.shown], *self.card_lines()]
        lines += [*aligned(heads, left=len(heads[0])), ""]
        for name, deployment in self.shown.items():
            of = f", on each of {deployment.n_servers:,}" if deployment.n_servers > 1 else ""
            lines.append(f"{name}{of}: " + "\n".join(deployment.server.command.lines))
        lines += ["", *self._size_lines(), *self._change_lines()]
        notes = [self.runner_up_text(), *self.notes()]
        lines += [line for note in notes for line in wrap(note, WIDTH)]
        lines += [self.two_runs.text(of_second=True)] if self.two_runs else []
        if self.other_loads:
            lines += ["", *aligned(cells(_OTHER, self.other_rows()), 2)]
        lines += ["", *(line for note in self.small_print() for line in wrap(note, WIDTH))]
        return "\n".join(lines)

    def notes(self) -> list[str]:
        """A sentence for each of what else was compared, and of what would change the answer."""
        notes = [self._layouts_text(), *self._others(), *self._more(), *self._turns(), *self._price_turns()]
        return list(filter(None, notes))

    def _layouts_text(self) -> str:
        """That the order rests on measured layouts, where it does; "" elsewhere."""
        named = {"the first": self.first, "the runner-up": self.runner_up}
        said = [f"{name} gave {one.measured_times:.2f}" for name, one in named.items() if one and one.measured_times]
        if self.search.objective != "throughput" or not said:
            return ""
        return f"Layouts measured side by side: {', '.join(said)} times what is computed of it; the order counts that."

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
        run = f"{words(first)}, for {_usd(first.usd_per_hour)} an hour{sure}."
        if self.changes and self.changes.best is first and self.changes.is_nothing:
            n = self.changes.n_today
            more = f", {n:,} of it" if n > 1 else ""
            return f"Keep today's server{more}: no change of it saves or gives much. Without it: run {run}"
        return f"Run {run}"

    @property
    def positions_text(self) -> str:
        """That contexts are longer than the model's positions; "" where they are not."""
        point = self.first.server.point
        model, longest = point.plan.whole_model, point.asked.longest_tokens
        if not model.lacks_positions(longest):
            return ""
        made_for = f"{self.model} has {model.max_position_tokens:,} positions"
        return f"{made_for}: contexts of {longest:,} tokens need rope scaling (YaRN), which no command here says."

    def card_lines(self) -> list[list[str]]:
        """The cells of the cards, a list a line: what it says, and what it is of each card in `shown`."""
        rows = [told(deployment) for deployment in self.shown.values()]
        shown: tuple[Column, ...] = _CARD if self.search.demand.limits else _CARD[:-1]
        if self.first.server.work.output_tokens == 1:
            shown = tuple(column for column in shown if column.name != "TPOT")
        shown = tuple(
            column for column in shown if column.name != "likely throughput" or "likely_tokens_per_s" in rows[0]
        )
        changed = {settings.TITLES[name][0] for row in rows for name in row["settings"]}
        shown = tuple(one for one in shown if one.name not in _SETTINGS or one.name in changed)
        if "hit_rate" in rows[0]:
            at = [column.name for column in shown].index("load limited by")
            hosted = tuple(
                column for column in _FOUND if column.name != "host memory" or any(r["host_bytes"] for r in rows)
            )
            shown = (*shown[:at], *hosted, *shown[at:])
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
        n, amount = from_today.n_today, self.search.demand.amount
        if from_today.is_nothing:
            held = f"{n:,} of today's server hold" if n > 1 else "today's server holds"
            said = f"Do nothing: {held} the load, and no change on its devices saves or gives much."
        elif from_today.today.fleet is None:
            said = f"Today's server {from_today.today.why}."
        elif best is None:
            said = "No server on today's devices holds the load within the limits."
        elif from_today.times > 1:
            said = f"Changing today's flags gives {from_today.times:.2f} times the throughput on the same devices."
        else:
            said = f"Changing today's flags saves {_usd(from_today.saves_usd)} an hour on the same devices."
        if n > 1 and amount and (today := from_today.today.fleet):
            unit = self.search.demand.load.unit
            held = f"{_three(today.server.holds)} of {_three(amount)} {unit}"
            said += f" One server as today's holds {held}: the load takes {n:,}."
        grid = self.search.grid
        where = f" Compared on {grid.servers[0].asked}, the first device given." if len(grid.devices) > 1 else ""
        unread = f" Not read: {', '.join(from_today.left_out)}." if from_today.left_out else ""
        heads = [*_CHANGE, f"{_pace(self.first)} at most"]
        table = aligned([heads, *rows], 2) if n or from_today.single else []
        return [*wrap(said + where + unread, WIDTH), *table, ""]

    def runner_up_text(self) -> str:
        """The runner-up, why it lost, and the chance that it is better."""
        first, rival = self.first, self.runner_up
        if rival is None:
            return "Nothing else that was tried holds this load within the limits."
        chance = sure_text(ahead(rival, first).sure)
        return (
            f"Runner-up: {words(rival)}. It lost as it {why_lost(rival, first, self.search.objective)}; {chance} sure "
            f"to {'hold more load for the same money' if self.search.demand.amount else 'give more'} after all."
        )

    def _best_of(self, axis: str) -> dict[str, Fleet | None]:
        """The best of each engine, or of each device; None where none was found, all of which the search has tried."""
        tried = self.search.grid.engines if axis == "engine" else self.search.grid.devices
        best: dict[str, Fleet | None] = dict.fromkeys(tried)
        most = self.search.tried_usd * (1 + common.TIE)
        for fleet in reversed(self.search.ranked):
            if fleet.usd_per_hour <= most:
                best[_tried_as(fleet)[axis]] = fleet
        return best

    @property
    def _none(self) -> str:
        """That none was found, and within what was tried."""
        is_cut = self.search.tried_usd < self.search.budget.usd_per_hour
        names = ["the limits"] * bool(self.search.demand.limits) + ([] if is_cut else self.search.budget.given)
        return f"none that runs{_within(names)}{' at up to twice the cost' if is_cut else ''}"

    def _others(self) -> list[str]:
        """The best of each other engine and device, a line each."""
        lines, none = [], self._none
        for axis, own in _tried_as(self.first).items():
            best = [(name, fleet) for name, fleet in self._best_of(axis).items() if name != own]
            said = [f"{name} {_at_best(fleet, self.search.objective) if fleet else none}" for name, fleet in best]
            lines += [f"Other {axis}s at best: {'; '.join(said)}."] if said else []
        return lines

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
        lines += [self._cache_text(), self._states_text()]
        if not server.is_exact:
            lines.append(f"16-bit keys and values: {self._at_best(lambda other: other.is_exact)}.")
        return lines

    def _at_best(self, allows: Callable[[ServerDesign], bool]) -> str:
        """The best deployment of servers that keep what the first gives up."""
        found = next((d for d in self.search.ranked if allows(d.server)), None)
        return _at_best(found, self.search.objective) if found else self._none

    def _states_text(self) -> str:
        """Say what recurrent states in fewer bits save, or that nothing else holds the load; "" where neither is so."""
        other, first, objective = self.search.unscored, self.first, self.search.objective
        known = f"nobody published what {(other or first).server.work.state_type} states do to scores"
        if first.server.is_unscored:
            return f"With the model's own states nothing holds this load; {known}."
        if other is None:
            return ""
        least, own = (search.OBJECTIVES[objective](fleet)[0] for fleet in (other, first))
        taken = f"{_at_best(other, objective)}; {known}: --state-type {other.server.work.state_type} takes them"
        return f"Smaller states: {taken}." if least < own - common.TIE * abs(own) else ""

    def _cache_text(self) -> str:
        """Say what the prefix cache gives, or what it saves to do without; "" where it makes no difference."""
        first, server = self.first, self.first.server
        if "prefix_cache" in server.settings:
            held = [_three(one.holds) for one in (server, server.in_settings({"prefix_cache": None}))]
            at_best = self._at_best(lambda other: other.keeps_prompts)
            asks = "" if "hit_rate" in first.results else " for prompts that begin alike, as --sessions and --trace say"
            return (
                f"Prefix cache off, as its states take the room of requests: a server holds {held[0]}, with it "
                f"{held[1]}. With it: {at_best}; --prefix-cache on keeps it{asks}."
            )
        if not first.results.get("hit_rate"):
            return ""
        holds = server.in_settings({"prefix_cache": "off"}).holds
        n = n_servers(first.load, holds) if holds else 0
        found = f"{100 * first.results['hit_rate']:.0f} % of the prompt tokens"
        but = f"{_three(holds)}, not {_three(server.holds)}: {n:,} server{'s' * (n > 1)}" if n else "nothing"
        return f"Without its prefix cache, which finds {found}, a server holds {but}."

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
        said, load = [], self.search.demand.load
        for upward, word in ((False, "below"), (True, "above")):
            if found := self.search.turns_at(upward):
                said.append(f"just {word} {load.counted(self._turn(*found, upward))} {words(found[1])}")
        if not said:
            return ["From half to twice the load no other server is better."]
        return [f"At another load: {'; '.join(said)}."]

    def _turn(self, amount: float, other: Fleet, upward: bool) -> str:
        """The load just below or above which another server is the best, in as many digits as that takes."""
        if self.search.demand.load.is_whole:
            return f"{amount + (not upward):,.0f}"
        for digits in (3, 4, 5, 6):
            said = rounded(amount, upward, digits)
            best = self.search.at(said * (1 + common.TIE * (1 if upward else -1)))
            if best and best.server.own is other.server.own:
                break
        return f"{said:,.6g}"

    def _price_turns(self) -> list[str]:
        """At which price of a device the answer is another, where several are compared by cost."""
        if self.search.objective != "cost" or len(self.prices) < 2 or not self.search.demand.amount:
            return []
        own, usd = self.first.server.asked, self.first.usd_per_hour
        others = {name: d.usd_per_hour for name, d in self._best_of("device").items() if d and name != own}
        same = [name for name, cost in others.items() if cost < usd * (1 + LEAST_LESS)]
        if same:
            return [f"As cheap at today's prices: {', '.join(same)}."]
        said = [f"{name} costs {100 * (1 - usd / cost):.0f} % less" for name, cost in others.items()]
        said += [f"{own} {100 * (min(others.values()) / usd - 1):.0f} % more"] if others else []
        return [f"At other prices: another device is as cheap where {' or '.join(said)}."] if said else []

    def other_rows(self) -> list[dict[str, Any]]:
        """The best at twice and at half the load: `load`, what to `run`, and `usd` an hour."""
        return [
            {"load": name, "run": words(d), "usd": _usd(d.usd_per_hour)}
            if d
            else {"load": name, "run": f"nothing{_within(self.search.budget.given)}", "usd": "-"}
            for name, d in self.other_loads.items()
        ]

    def small_print(self) -> list[str]:
        """Sentences on what was searched, and on what it rests."""
        rows = [deployment.results for deployment in self.cards.values()]
        limit = "A limit holds at the upper end of the 80 % interval of a time" if self.search.demand.limits else ""
        spent = f"the fastest and the roomiest cost at most {_usd(self.search.spent_usd)} an hour"
        if not self.search.demand.amount:
            spent = (
                "likely throughput, by which full devices are ranked, is at the load that they hold as likely as not"
            )
        how, grid = self.search.demand.load.how, self.search.grid
        said = "; ".join(filter(None, (limit, spent, how)))
        drops = {d.server.design.name: d.results["score_drop_of"] for d in self.cards.values() if not d.server.is_exact}
        of = [f"{name} of {of.removeprefix(f'{quality.PUBLISHED}: ')}" for name, of in drops.items() if of]
        is_full = any(row.get("is_full") for row in rows)
        return [
            f"Searched: {self.search.text}. {grid.left_out_text}".rstrip(),
            *([f"{said[0].upper()}{said[1:]}."] if said else []),
            *([f"Accuracy losses, as published: {'; '.join(of)}."] if of else []),
            *self.search.demand.load.notes(),
            *(["Requests that run fill the pool: `dse simulate` finds less there, down to half."] if is_full else []),
            f"Prices an hour: {prices_text(self.prices)}.",
            common.assumption_text(rows, common.THROUGHPUT),
            common.age_text(self.first.server.point),
        ]


_CHANGE = ["from today", "servers", "an hour", "holds", "tok/s"]


def _change_row(change: Change) -> list[str]:
    fleet = change.fleet
    if fleet is None:
        return [change.what, "does not hold it" if change.starts else "does not start", "-", "-", "-", "-"]
    servers = f"{fleet.n_servers:,} x {fleet.server.n_devices} {fleet.server.design.device.name}"
    numbers = [_usd(fleet.usd_per_hour), _three(fleet.holds), f"{fleet.tokens_per_s:,.0f}", _ms(fleet.time_s)]
    return [change.what, servers, *numbers]


def told(deployment: Fleet) -> Result:
    """A deployment by names, in SI base units."""
    row, server, command = deployment.results, deployment.server, deployment.server.command
    return {
        **_row(deployment),
        "usd_per_million_tokens": deployment.usd_per_million_tokens,
        **{name: row[name] for name in ("tpot_s", "ttft_s", "joules_per_token", "bound")},
        **{name: None if server.is_unscored else row[name] for name in quality.NAMES[2:]},
        **{f"{name}_low": uncertainty.ends(row, name)[0] for name in LIMITS},
        **{f"{name}_high": late for name, late in deployment.late_s.items()},
        "first_limit": first_limit(deployment),
        "sure": deployment.keeps,
        "runs": common.competes(row),
        "command": command.line,
        "not_in_command": list(command.lacks),
        "assumptions": list(row["assumptions"]),
        "input_tokens": server.work.input_tokens,
        "output_tokens": server.work.output_tokens,
        **({"hit_rate": row["hit_rate"], "host_bytes": row["host_bytes"]} if "hit_rate" in row else {}),
    }


def _row(deployment: Fleet) -> Result:
    """A row of the table: what is run, what it costs and holds."""
    server = deployment.server
    return {
        "device": server.design.device.name,
        "stack": server.fixed["stack"],
        "weights": server.work.of_model(server.design.plan.model).weights_text.removesuffix(" weights"),
        "quantizer": server.design.name,
        **{name: getattr(server.work, name) for name in layouts.SPLIT},
        "settings": server.settings,
        "n_devices_a_server": server.n_devices,
        "n_servers": deployment.n_servers,
        "n_devices": deployment.n_devices,
        "usd_per_hour": deployment.usd_per_hour,
        "load": deployment.load,
        "holds": deployment.holds,
        "load_a_server": deployment.each,
        "time_high_s": deployment.time_s,
        "tokens_per_s": deployment.tokens_per_s,
        **({} if server.demand.amount else {"likely_tokens_per_s": deployment.likely_tokens_per_s}),
    }


def first_limit(deployment: Fleet) -> str:
    """The limit that more load would break first: TPOT, TTFT, or what the server takes at all."""
    server, limits = deployment.server, deployment.server.demand.limits
    if server.holds < server.holds_within({}) * (1 - common.TIE):
        return min(limits, key=lambda name: server.holds_within({name: limits[name]})).removesuffix("_s").upper()
    return server.demand.load.bound(server)


def words(deployment: Fleet) -> str:
    """A deployment in words: 5 x 2 B200, vllm, fp8 keys and values, tp 2."""
    device, stack, quantizer, split = deployment.server.name
    n = deployment.server.n_devices
    devices = f"{deployment.n_servers:,} x {n if n > 1 else ''} {device}".replace("  ", " ")
    changed = settings.text(deployment.server.settings)
    return ", ".join(filter(None, [devices, stack, f"{quantizer} keys and values", split, changed]))


def _tried_as(fleet: Fleet) -> dict[str, str]:
    """The engine and the device of a deployment, as its grid names them."""
    return {"engine": fleet.server.work.stack or "the device's", "device": fleet.server.asked}


def _at_best(fleet: Fleet, objective: str) -> str:
    """A deployment by what was searched."""
    best = {
        "cost": f"{_usd(fleet.usd_per_hour)} an hour",
        "devices": f"{fleet.n_devices:,} device{'s' * (fleet.n_devices > 1)}",
        "throughput": f"likely {fleet.likely_tokens_per_s:,.0f} {_rate_unit(fleet)}",
        "energy": f"{fleet.results['joules_per_token'] or math.nan:.3g} J a token",
    }
    return f"{best[objective]} ({words(fleet)})"


def _rate_unit(fleet: Fleet) -> str:
    """The unit of what a deployment likely gives."""
    return "tok/s a device" if fleet.server.demand.amount else "tok/s"


def ahead(fleet: Fleet, other: Fleet) -> Gain:
    """The load that a fleet really holds for its money over that of another, of full devices the tokens that it likely
    gives: as computed, with what is unsure of the rates of the two servers."""
    rows = fleet.results, other.results
    gain = uncertainty.gain(*rows)
    rates = [float(row[uncertainty.RATE]) for row in rows]
    limits = fleet.server.demand.limits
    held = [one.n_servers * one.server.holds_within(limits, False) / one.usd_per_hour for one in (fleet, other)]
    scale = held[0] / held[1] / (rates[0] / rates[1])
    if fleet.server.demand.amount is None:  # which has the middles of the intervals in it
        scale = fleet.likely_tokens_per_s / other.likely_tokens_per_s / uncertainty.middle(gain.low, gain.high)
    scaled = uncertainty.gain_within(scale * gain.low, scale * gain.high)
    return scaled._replace(sure=uncertainty.at_most(scaled.sure, rows))


def why_lost(rival: Fleet, first: Fleet, objective: str, a_device: bool = False) -> str:
    """Why a runner-up lost, to follow "as it"; rates of full devices are of all together, or of one."""
    if objective == "energy":
        return f"takes {rival.results['joules_per_token'] / first.results['joules_per_token']:.2f} times the energy"
    if objective == "devices" and rival.n_devices > first.n_devices:
        return f"takes {rival.n_devices:,} devices, not {first.n_devices:,}"
    if objective == "throughput":
        if rival.likely_tokens_per_s > first.likely_tokens_per_s:
            is_alike = rival.server.is_exact == first.server.is_exact
            gives_up = "does without a prefix cache" if is_alike else "stores fewer bits"
            return f"{gives_up} for at most {100 * RERUN_90:.0f} % more throughput, as much as runs differ by"
        rates = [one.likely_tokens_per_s / (one.n_devices if a_device else 1) for one in (rival, first)]
        least, most = _apart(*rates)
        unit, within = "tok/s a device" if a_device else _rate_unit(first), _within_limits(first.server.demand)
        return f"likely gives {least} {unit} at the most load{within}, not {most}"
    if rival.usd_per_hour > first.usd_per_hour * (1 + common.TIE):
        return f"costs {_usd(rival.usd_per_hour)} an hour, {rival.usd_per_hour / first.usd_per_hour:.2f} times as much"
    if first.server.is_exact and not rival.server.is_exact:
        drop = quality.drop_text(rival.results)
        return f"stores fewer bits at the same cost (accuracy loss {drop}), though it holds {_three(rival.holds)}"
    if rival.server.gives_up > first.server.gives_up:
        return f"does without a prefix cache at the same cost, though it holds {_three(rival.holds)}"
    if objective != "devices" and rival.holds < first.holds * (1 - common.TIE):
        return "holds {} at the same cost, not {}".format(*_apart(rival.holds, first.holds))
    least, most = _apart(1e3 * rival.time_s, 1e3 * first.time_s)
    return f"is slower at the same cost: {_pace(first)} at most {least} ms, not {most} ms"


def _usd(usd: float) -> str:
    return f"{usd:,.2f} USD" if usd < 1000 else f"{usd:,.0f} USD"


def _pace(fleet: Fleet) -> str:
    """The time that says how fast it is, by its name."""
    return fleet.server.pace.removesuffix("_s").upper()


def _three(number: float) -> str:
    """Three digits, whole from a hundred on."""
    return f"{number:,.0f}" if number >= 100 else f"{number:,.3g}"


def _apart(*numbers: float) -> list[str]:
    """Numbers in as many digits as tell them apart, six at most."""
    said = [_three(number) for number in numbers]
    for digits in (4, 5, 6):
        if len(set(said)) > 1:
            break
        said = [f"{number:,.{digits}g}" for number in numbers]
    return said


def _within(names: Sequence[str]) -> str:
    """The words for what limits an answer, where anything does: within the limits, the devices and the budget."""
    return " within " + " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""


def _within_limits(demand: Demand) -> str:
    """The words for limits of times, where there are any."""
    return _within(["the limits"] * bool(demand.limits))


def _ms(seconds: float) -> str:
    return f"{_three(1e3 * seconds)} ms"


def prices_text(prices: Mapping[str, Price]) -> str:
    """Prices with their sources, of one source together."""
    by_source: dict[str, list[str]] = {}
    for name, price in prices.items():
        offers = [
            f"{o.n_devices} for {o.usd_per_hour:,.4g} ({o.instance})"
            if price.is_by_instance
            else f"{o.usd_per_hour:,.4g}"
            for o in price.offers
        ]
        by_source.setdefault(price.source, []).append(f"{name} {', '.join(offers)}")
    return "; ".join(f"{', '.join(told_of)} USD ({source})" for source, told_of in by_source.items())


def _times_text(name: str) -> Any:
    def text(row: Result) -> str:
        value, low, high = (1e3 * row[f"{name}{end}"] for end in ("", "_low", "_high"))
        return f"{_three(value)} ms ({_three(low)}-{_three(high)})"

    return text


def _setting(name: str, row: Result) -> str:
    return settings.cell(row["settings"], name)


def _load_text(load: float, holds: float) -> str:
    return f"{_three(load)} of {_three(holds)} ({100 * load / holds:.0f} %)"


_CARD = (
    Column("servers", form=lambda row: f"{row['n_servers']:,} x {row['n_devices_a_server']} {row['device']}"),
    Column("engine", form=lambda row: f"{row['stack'] or '-'}, {row['weights']} weights"),
    Column("keys and values", form=lambda row: row["quantizer"]),
    Column("split", form=lambda row: layouts.words(row) or "-"),
    *(Column(title, form=partial(_setting, name)) for name, (title, _) in settings.TITLES.items()),
    Column("an hour", form=lambda row: _usd(row["usd_per_hour"])),
    Column("likely throughput", form=lambda row: f"{row['likely_tokens_per_s']:,.0f} tok/s"),
    Column("throughput", form=lambda row: f"{row['tokens_per_s']:,.0f} tok/s"),
    Column("a million tokens", form=lambda row: _usd(row["usd_per_million_tokens"])),
    Column("TPOT", form=_times_text("tpot_s")),
    Column("TTFT", form=_times_text("ttft_s")),
    Column("load", form=lambda row: _load_text(row["load"], row["holds"])),
    Column("load limited by", form=lambda row: row["first_limit"]),
    Column("steps bound by", form=lambda row: row["bound"]),
    Column("accuracy loss", form=quality.drop_text),
    Column("sure to keep limits", form=lambda row: sure_text(row["sure"])),
)
#: rows of the card that are there where one of them is changed
_SETTINGS = frozenset(title for title, _ in settings.TITLES.values())
#: beside the card where prompts are found
_FOUND = (
    Column("prompts found", form=lambda row: f"{100 * row['hit_rate']:.0f} %"),
    Column("host memory", form=lambda row: f"{row['host_bytes'] / 1e9:,.4g} GB a device" if row["host_bytes"] else "-"),
    Column("a server", form=lambda row: f"{_three(row['load_a_server'])} of {_three(row['holds'] / row['n_servers'])}"),
)
#: a row for each number of devices
_SIZES = (
    Column("device"),
    Column("quantizer", title="keys and values"),
    Column("split", form=lambda row: layouts.words(row) or "-"),
    Column("n_devices_a_server", title="devices a server"),
    Column("holds", title="a server holds", form=lambda row: _three(row["holds"] / row["n_servers"])),
    Column("n_servers", title="servers", form=","),
    Column("n_devices", title="devices", form=","),
    Column("tokens_per_s", title="tok/s", form=",.0f"),
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
    if demand.load.is_run:
        from dse.questions.trace_runs import settled  # which loads the simulator

        found = settled(found, progress)
    model = grid.servers[0].design.plan.model
    if not found.ranked:
        raise InputError(_nothing(found))
    cards = {FIRST[objective]: found.ranked[0]}
    if demand.amount:
        cards |= {"fastest": found.fastest, "most room": found.roomiest}
    return Recommendation(found, model.alias or model.name, cards, prices)


def _nothing(found: Search) -> str:
    """Why nothing is recommended, what comes closest, and which limit to relax by how much."""
    demand, budget = found.demand, found.budget
    if found.found:  # it is the money, or the devices that there are
        nearest = min(found.found, key=lambda d: d.usd_per_hour)
        within, load = _within_limits(demand), demand.load
        most = found.most_load
        less = f", or ask for {load.counted(f'{rounded(most):.12g}')} at most" if most else ""
        asked = load.counted(_three(nearest.load))
        fits = [d for d in found.found if d.n_devices <= budget.counts.get(d.server.asked, math.inf)]
        if fits and budget.usd_per_hour < math.inf:
            nearest = min(fits, key=lambda d: d.usd_per_hour)
            return (
                f"budget = {budget.usd_per_hour:g}/h: the cheapest that holds {asked}"
                f"{within} costs {_usd(nearest.usd_per_hour)} an hour ({words(nearest)}): raise --budget{less}"
            )
        return (
            f"devices: those that there are hold less than {asked}: the cheapest that "
            f"holds it{within} is {words(nearest)}: give as many{less}"
        )
    servers = [server for server in found.grid.servers if common.competes(server.fixed)]
    if not servers:
        return _none_runs(found.grid, demand)
    if not (fitting := [server for server in servers if server.has_room]):
        reason, asked = servers[-1].point.infeasible_reason or demand.load.no_room, servers[-1].asked
        n = budget.counts.get(asked)
        more = f"more of them (--devices {max(2 * n, 8)}x{asked})" if n else "a larger --most"
        return f"no layout fits: {reason}: try --weights of fewer bits (fp8, mxfp4), {more}, or other --devices"
    if not (fitting := [server for server in fitting if server.starts]):
        return f"{servers[-1].command.cannot[0]}: name another with --quantizers, or add --other-software"
    return _too_short(found, [(server, server.least_times) for server in fitting])


def _too_short(found: Search, idle: list[tuple[ServerDesign, dict[str, float]]]) -> str:
    """Limits of times that no server keeps, and longer ones: that an idle server keeps, and that servers keep which
    hold the load. `idle`: times of servers to which hardly any request comes."""
    limits = found.demand.limits

    def missed(times: Mapping[str, float]) -> dict[str, float]:
        return {name: rounded(times[name], up=True) for name, limit in limits.items() if times[name] > limit}

    def worst(times: Mapping[str, float]) -> float:
        return max(times[name] / limit for name, limit in limits.items())

    idle = sorted(idle, key=lambda pair: worst(pair[1]))
    server, times = idle[0]
    alone = Fleet(server, 1, found.price(server).usd_per_hour(server.n_devices, 1), 0.0)
    by, fleet, least = f"which {words(alone)} keeps where hardly a request comes", None, math.inf
    for one, idle_times in idle:
        if worst(idle_times) >= least or found.demand.load.is_run:
            break
        if (loaded := _fewest(found, one, idle_times)) and worst(loaded[1]) < least:
            fleet, times = loaded
            least = worst(times)
    asked = " and ".join(f"--max-{name.removesuffix('_s')} {1e3 * s:.12g}ms" for name, s in missed(times).items())
    if fleet:
        by = f"which {words(fleet)} keeps at this load, an idle server {limits_text(missed(idle[0][1]))}"
    return (
        f"nothing surely keeps {limits_text(limits)}: allow {asked} or more, {by} (longer costs less), shorter prompts "
        "(--input), or give faster --devices"
    )


def _fewest(
    found: Search, server: ServerDesign, idle_times: Mapping[str, float]
) -> tuple[Fleet, dict[str, float]] | None:
    """The fewest servers that hold the load within the limits that an idle one keeps, and their times; None where there
    is no load, or there are not so many."""
    limits, amount = found.demand.limits, found.demand.amount
    kept = {name: limit for name, limit in limits.items() if idle_times[name] <= limit}
    if not amount or not (holds := server.holds_within(kept)):
        return None
    n = n_servers(amount, holds)
    fleet = Fleet(server, n, found.price(server).usd_per_hour(server.n_devices, n), float(amount))
    if not found.allowed([fleet]):
        return None
    return fleet, {name: found.demand.load.time_s(server, fleet.each, name) for name in limits}


def _none_runs(grid: Grid, demand: Demand) -> str:
    """Why no engine runs any server of the grid, and which other engines of its devices run its formats."""
    tried = {(server.asked, server.design.name): server for server in reversed(grid.servers)}  # the first of each
    run: dict[str, list[str]] = {}
    for server in tried.values():
        for engine in server_flags.engines():
            work = replace(server.work, stack=engine)
            try:
                if common.competes(ServerDesign(server.asked, server.design, work, demand).fixed):
                    run.setdefault(engine, []).append(f"{server.design.name} on {server.asked}")
            except DseError:  # not for a layout of this engine
                continue
    others = [f"--engines {engine} runs {', '.join(what)}" for engine, what in run.items()]
    others += ["name other --quantizers", "--other-software compares all"]
    why = common.refusals(server.fixed for server in grid.servers)
    return f"no server here starts: {why}: {'; '.join(others)}"


def rounded(number: float, up: bool = False, digits: int = 3) -> float:
    """A positive number in so many digits, rounded down or up."""
    unit = Fraction(10) ** (math.floor(math.log10(number)) - digits + 1)
    steps = number / float(unit)
    return float((math.ceil(steps * (1 - ROUNDING)) if up else math.floor(steps * (1 + ROUNDING))) * unit)
