"""Throughput a device against the speed that each user sees, of the servers of a search over batches."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from dse.core.columns import Column, aligned, cells
from dse.core.errors import InputError
from dse.core.progress import Progress, each
from dse.model import intervals, uncertainty
from dse.questions import common, layouts
from dse.questions.common import QuestionAnswer, Result, limits_text, seconds_text, sure_text
from dse.questions.grid import Grid
from dse.questions.recommend import Recommendation, ahead, recommend, why_lost
from dse.questions.search import Budget, Fleet
from dse.questions.server_design import Demand, ServerDesign
from dse.specs.prices import Offer, Price

#: requests at once that are tried
BATCHES = tuple(sorted({1, *(n * 2**k for n in (2, 3) for k in range(11))}))
#: speeds at which formats are compared, in tokens a second that each user gets
SPEEDS = (10, 20, 50, 100, 200)
#: devices count alike, whatever they cost
ALIKE = Price((Offer(1, 1.0),), "each device as much", False)
#: what a table keeps of each design
COLUMNS = (
    "device",
    "model",
    "quantizer",
    "batch",
    "input_tokens",
    "output_tokens",
    "n_devices",
    "tp",
    "pp",
    *layouts.SHARED,
    "model_kind",
    "stack",
    "ttft_s",
    *uncertainty.READ,
    "fits_whole_batch",
    "sample_perplexity_frac",
    "score_drop_frac",
    "score_drop_high_frac",
    "assumptions",
    "runs",
    "runs_why",
)
#: what is kept of each design, to compare it with others
KEPT = tuple(dict.fromkeys((*COLUMNS, "prefix_tokens", "weights_bits", *uncertainty.COMPARED)))


def speeds(row: Mapping[str, Any]) -> tuple[float, float]:
    """Tokens a second that each user gets, and that a device gives: of a server with `batch` requests at all times."""
    return 1 / float(row["tpot_s"]), float(row[uncertainty.RATE]) / float(row["n_devices"])


def kept(result: Mapping[str, Any]) -> Result:
    """The part of a point's results that tables keep."""
    return {**{name: result[name] for name in KEPT}, "assumptions": ", ".join(result["assumptions"])}


def told_of(row: Mapping[str, Any]) -> Result:
    """The part of a kept design that answers tell."""
    return {name: row[name] for name in COLUMNS}


def interval(row: Mapping[str, Any]) -> intervals.Interval:
    """Where 8 of 10 measurements of the tokens that a device gives should lie, over what is predicted."""
    return uncertainty.of_column(row, uncertainty.RATE)


def front(rows: Sequence[Result]) -> list[Result]:
    """The rows that no other beats in both speeds, from the most tokens a device to the fastest for a user."""
    return _unbeaten(rows, speeds)


def _unbeaten(rows: Sequence[Any], of: Callable[[Any], tuple[float, float]]) -> list[Any]:
    unbeaten: list[Any] = []
    best = -1.0
    for row in sorted(rows, key=lambda row: tuple(-speed for speed in of(row))):
        if of(row)[1] > best * (1 + common.TIE):
            unbeaten.append(row)
            best = of(row)[1]
    return unbeaten[::-1]


def _measured_speeds(row: Mapping[str, Any]) -> tuple[float, float]:
    return float(row["tokens_per_s_a_user"]), float(row["tokens_per_s_a_device"])


def middle_speed(row: Mapping[str, Any]) -> float:
    """Tokens a second of a device in the middle of its interval: what is best is likelier faster than each other."""
    low, high, _ = interval(row)
    return speeds(row)[1] * uncertainty.middle(low, high)


@dataclass(frozen=True, repr=False)
class Interactivity(QuestionAnswer):
    """The servers of a grid at every batch that runs at once, and the best of full devices; `measured` are published
    servers."""

    grid: Grid
    demand: Demand
    rows: tuple[Result, ...]
    #: the search's answer for as many devices as every layout fills; None where nothing holds the limits, and why
    found: Recommendation | None
    nothing: str = ""
    measured: tuple[dict[str, Any], ...] = ()
    #: a curve for each name that was asked for, not for each KV format
    is_named: bool = False

    @property
    def limits(self) -> dict[str, float]:
        """The longest times by column, in seconds."""
        return self.demand.limits

    @cached_property
    def fronts(self) -> dict[str, list[Result]]:
        """The front of each quantizer, of designs that are named by themselves of each, over batches and layouts."""
        names = dict.fromkeys(row["system"] for row in self.rows)
        return {name: front([row for row in self.rows if row["system"] == name]) for name in names}

    @cached_property
    def best(self) -> Result | None:
        """The design with most tokens a device surely within the limits: that of `dse recommend` on full devices; None
        where there is none."""
        return told_of(kept(self.found.first.results)) if self.found else None

    @cached_property
    def runner_up(self) -> tuple[Fleet, float] | None:
        """The search's runner-up and the chance that it is better; None where that is below `NAMED_FROM`."""
        if self.found is None or (rival := self.found.runner_up) is None:
            return None
        chance = ahead(rival, self.found.first).sure
        return (rival, chance) if chance >= common.NAMED_FROM else None

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each design on the front of its quantizer, in SI base units."""
        rows = [row for rows in self.fronts.values() for row in rows]
        shown = [
            {**told_of(row), "tokens_per_s_a_user": speeds(row)[0], "tokens_per_s_a_device": speeds(row)[1]}
            for row in rows
        ]
        return pd.DataFrame(shown, columns=[*COLUMNS, "tokens_per_s_a_user", "tokens_per_s_a_device"])

    def to_json(self) -> dict[str, Any]:
        """All of it, in SI base units."""
        found, rival = self.found, self.runner_up
        return {
            "question": "interactivity",
            "context": self.context,
            "limits_s": self.limits,
            "best": self.best,
            "runner_up": rival and {**told_of(kept(rival[0].results)), "sure": rival[1]},
            "two_runs": found and found.two_runs and found.two_runs.to_json(),
            "measured_front": found and found.measured_front and found.measured_front.to_json(),
            "rows": self.table.to_dict("records"),
            "measured": list(self.measured),
            "left_out": list(self.grid.left_out),
            "age": self.age,
        }

    @property
    def age(self) -> str:
        """The age of the times, in a sentence."""
        return common.age_text(self.grid.servers[0].point)

    @property
    def context(self) -> str:
        """Device, model and lengths."""
        server = self.grid.servers[0]
        device, model, work = server.design.device, server.design.plan.model, server.work
        if len(self.grid.splits) > 1:
            work = layouts.on_one_device(work)
        lengths = f"{work.input_tokens:,} tokens in, {work.output_tokens:,} out"
        how = [f"{self.rows[0]['model_kind']} model", str(self.rows[0]["stack"] or "")] if self.rows else []
        return ", ".join(filter(None, [work.devices_text(device.name), model.name, *work.ways(model), lengths, *how]))

    @property
    def verdict(self) -> str:
        """The best design within the limits, of those that run, in a sentence."""
        if not self.rows:
            return "No design fits: give more devices (--splits), fewer bits, or shorter prompts."
        if self.found is None:
            return f"{self.nothing[0].upper()}{self.nothing[1:]}."
        first, measured = self.found.first, self.found.measured_front
        said = f"Best within {limits_text(self.limits)}" if self.limits else "Most tokens a device"
        if measured and measured.contradicts:
            said = said.replace(" within", " as computed within")
        said += f": {self._told(first)}"
        if self.limits:
            most = int(first.server.holds_within(self.limits, is_sure=False))
            more = f" ({most:,} as computed)" if most > first.each else ""
            said += f"; {sure_text(first.keeps)} sure to keep that{more}"
        lines = [f"{said}."]
        if measured:
            aside = " Times to the first token are not limited there." if "ttft_s" in self.limits else ""
            lines.append(f"{measured.text()}{aside}")
        if self.runner_up:
            rival, chance = self.runner_up
            said = f"Runner-up, {sure_text(chance)} sure to be better: {self._told(rival)}"
            lines.append(f"{said}; it lost as it {why_lost(rival, first, 'throughput', a_device=True)}.")
        return "\n".join(lines)

    def text(self) -> str:
        """The verdict, and for each format the most tokens a device at some speeds for a user."""
        hint = "" if self.limits or not self.rows else " --max-tpot '50 ms' asks for the best that keeps it."
        lines = [f"Throughput a device against the speed of each user: {self.context}", "", self.verdict + hint]
        lines += [self.found.two_runs.text()] if self.found and self.found.two_runs else []
        if self.rows:
            lines += ["", "Most tokens/s a device where each user surely gets at least so many tokens/s:", ""]
            lines += aligned(self.speed_rows(), left=1)
            lines += ["", refused] if (refused := common.refused_text(self.rows)) else []
            lines += [
                "",
                "In brackets: requests at once, and the layout. A server that always has so many requests; "
                "a user's speed is 1 / TPOT, here at the slow end of its interval.",
                common.SURE_NOTE,
                common.assumption_text(self.rows, common.THROUGHPUT),
                *filter(None, [self.grid.left_out_text, self.age]),
            ]
        if self.measured:
            n, best = len(self.measured), _unbeaten(self.measured, _measured_speeds)
            lines += [
                "",
                f"Measured: {n:,} server{'s' if n > 1 else ''} of this model and device; what none beats:",
                "",
            ]
            lines += aligned(cells(_MEASURED, best), 1)
        return "\n".join(lines)

    def speed_rows(self) -> list[list[str]]:
        """Most tokens a device of each format where each user surely gets so many tokens a second; the heads first."""
        return [["KV format", *map(str, SPEEDS)], *map(self._speed_row, self.fronts)]

    def _speed_row(self, name: str) -> list[str]:
        limits = {column: most for column, most in self.limits.items() if column == "ttft_s"}
        servers = [server for server in self.grid.servers if _system(server, self.is_named) == name]
        shown = []
        for speed in SPEEDS:
            held = [(server, server.holds_within({**limits, "tpot_s": 1 / speed})) for server in servers]
            rows = [server.results(most) for server, most in held if most]
            row = max(rows, key=middle_speed, default=None)
            shown.append(f"{speeds(row)[1]:,.0f} ({row['batch']:,}, {layouts.words(row) or 'tp 1'})" if row else "-")
        return [name if common.competes(servers[0].fixed) else f"{name}, {common.NOT_RUN}", *shown]

    def _told(self, fleet: Fleet) -> str:
        """A design in words: its name and layout, and its speeds."""
        row, name = fleet.results, _system(fleet.server, self.is_named)
        user, device = speeds(row)
        low, high, _ = interval(row)
        n = int(row["batch"])
        split = "" if self.is_named else layouts.words(row)
        return (
            f"{', '.join(filter(None, [name, split]))}, {n:,} request{'s' if n > 1 else ''} at once: {device:,.0f} "
            f"tok/s a device (8 of 10 measurements: {device * low:,.0f} to {device * high:,.0f}), {user:,.3g} "
            f"tok/s a user, first token after {seconds_text(float(row['ttft_s']))}"
        )


_MEASURED = (
    Column("server"),
    Column("requests", form=","),
    Column("n_devices", title="devices"),
    Column("tokens_per_s_a_user", title="tok/s a user", form=",.1f"),
    Column("tokens_per_s_a_device", title="tok/s a device", form=",.0f"),
)


def _system(server: ServerDesign, is_named: bool) -> str:
    """The curve of a server: of its KV format, or of the name that was asked for."""
    return server.asked if is_named else server.design.name


def _search(grid: Grid, demand: Demand) -> Recommendation:
    """The best of as many devices as servers of every layout fill. Raises InputError where nothing holds the limits."""
    n = math.lcm(*(server.n_devices for server in grid.servers))
    prices, budget = dict.fromkeys(grid.devices, ALIKE), Budget(counts=dict.fromkeys(grid.devices, n))
    return recommend(grid, demand, prices, "throughput", budget)


def best_of(grid: Grid, demand: Demand) -> Fleet | None:
    """The best of full devices; None where nothing holds the limits."""
    try:
        return _search(grid, demand).first
    except InputError:
        return None


def interactivity(
    grid: Grid,
    demand: Demand,
    measured: Sequence[dict[str, Any]] = (),
    progress: Progress | None = None,
    batches: Sequence[int] = BATCHES,
    is_named: bool = False,
) -> Interactivity:
    """Every server of a grid over batches, as one that replaces each request as it ends, the largest batch of all too.

    A curve holds a KV format, or where designs are named (`is_named`) what was asked for by one name. The best is that
    of the search on as many devices as servers of every layout fill.
    """
    found, nothing = None, ""
    try:
        found = _search(grid, demand)
    except InputError as error:
        nothing = str(error)
    rows: list[Result] = []
    for server in each(grid.servers, progress, "designs"):
        tried = {*(batch for batch in batches if batch <= server.most), int(server.most)} - {0}
        rows += [kept(server.results(batch)) | {"system": _system(server, is_named)} for batch in sorted(tried)]
    if found and demand.limits:  # of each curve the best at the limits
        best = {_system(fleet.server, is_named): fleet for fleet in reversed(found.search.found)}
        rows += [kept(fleet.results) | {"system": name} for name, fleet in best.items()]
    return Interactivity(
        grid=grid,
        demand=demand,
        rows=tuple(rows),
        found=found,
        nothing=nothing,
        measured=tuple(measured),
        is_named=is_named,
    )
