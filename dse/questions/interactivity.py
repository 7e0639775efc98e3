"""Throughput a device against the speed that each user sees, over batches and splits: which design serves whom."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from dse.core.columns import Column, aligned, cells
from dse.core.errors import DseError
from dse.core.progress import Progress, each
from dse.model import intervals, uncertainty
from dse.model.point import Point
from dse.model.uncertainty import Gain
from dse.questions import common, layouts
from dse.questions.common import Candidate, QuestionAnswer, Result, limits_text, seconds_text
from dse.questions.measured_fronts import MeasuredFront, measured_front
from dse.questions.two_runs import TwoRuns, two_runs
from dse.specs.deployment import USUAL_SIZES
from dse.specs.device_and_model import ModelSpec
from dse.specs.workload import Workload

#: requests at once that are tried
BATCHES = tuple(sorted({1, *(n * 2**k for n in (2, 3) for k in range(11))}))
#: speeds at which formats are compared, in tokens a second that each user gets
SPEEDS = (10, 20, 50, 100, 200)
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
#: what tells designs apart, whatever their batch
DESIGN = ("system", "device", "stack", "quantizer", "weights", "n_devices", *uncertainty.SPLIT, *uncertainty.GROUPS)
#: limits that may be set, by column
LIMITS = ("tpot_s", "ttft_s")


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


def keeps(row: Mapping[str, Any], limits: Mapping[str, float]) -> float:
    """The chance that a design keeps the limit that it is likeliest to miss; 1 where there is none."""
    return min((uncertainty.chance_of(row, column, most) for column, most in limits.items()), default=1.0)


def within(row: Mapping[str, Any], limits: Mapping[str, float]) -> bool:
    """True where a design keeps every limit at the upper end of its interval: what is promised of a load."""
    return all(uncertainty.ends(row, column)[1] <= most * (1 + common.TIE) for column, most in limits.items())


def within_as_computed(row: Mapping[str, Any], limits: Mapping[str, float]) -> bool:
    """True where a design keeps every limit as computed, whatever its interval."""
    return all(float(row[column]) <= most for column, most in limits.items())


def middle_speed(row: Mapping[str, Any]) -> float:
    """Tokens a second of a device in the middle of its interval: what is best is likelier faster than each other."""
    low, high, _ = interval(row)
    return speeds(row)[1] * uncertainty.middle(low, high)


def at_limit(
    rows: Sequence[Result], limits: Mapping[str, float], evaluate: Callable[[int], Mapping[str, Any]]
) -> Result | None:
    """The largest batch of a design surely within limits, between the batches of its `rows`; None where they have it.

    More requests at once take longer: the batch is found by halving.
    """
    kept_rows = [int(row["batch"]) for row in rows if within(row, limits)]
    low = max(kept_rows, default=0)
    high = min((int(row["batch"]) for row in rows if row["batch"] > low), default=low)
    limit_row = None
    while low and high - low > 1:
        middle = (low + high) // 2
        result = evaluate(middle)
        if result["fits_whole_batch"] and within(result, limits):
            low, limit_row = middle, kept(result)
        else:
            high = middle
    return limit_row


def best(rows: Iterable[Result], limits: Mapping[str, float]) -> Result | None:
    """The design with most tokens a device of those that run and surely keep every limit; None where none does."""
    kept = (row for row in rows if common.competes(row) and within(row, limits))
    return max(kept, key=middle_speed, default=None)


def verdict(rows: Sequence[Result], limits: Mapping[str, float]) -> str:
    """The best design within the limits, of those that run, in a sentence; of no rows ""."""
    if not rows:
        return ""
    if not (rows := [row for row in rows if common.competes(row)]):
        return f"{common.NONE_RUNS}."
    if not limits:
        winner = max(rows, key=middle_speed)
        return f"Most tokens a device: {told(winner)}.{_rival_text(rows, winner, limits)}"
    said = limits_text(limits)
    if surest := best(rows, limits):
        own = [row for row in rows if _design(row) == _design(surest) and within_as_computed(row, limits)]
        most = max((int(row["batch"]) for row in own), default=0)
        more = f" ({most:,} as computed)" if most > surest["batch"] else ""
        sure = common.sure_text(keeps(surest, limits))
        front = front_of(surest, limits)
        best_word = "Best as computed within" if front and front.contradicts else "Best within"
        rest = f"{_front_text(front, limits)}{_rival_text(rows, surest, limits)}"
        return f"{best_word} {said}: {told(surest)}; {sure} sure to keep that{more}.{rest}"
    if computed := [row for row in rows if within_as_computed(row, limits)]:
        likeliest = max(computed, key=lambda row: (keeps(row, limits), middle_speed(row)))
        sure = common.sure_text(keeps(likeliest, limits))
        return f"Nothing surely keeps {said}: the likeliest is {told(likeliest)}; {sure} sure."
    return f"Nothing keeps {said}: the fastest for a user is {told(max(rows, key=lambda row: speeds(row)[0]))}."


def front_of(winner: Result, limits: Mapping[str, float]) -> MeasuredFront | None:
    """Measured servers beside the best design within a limit on the time per token; None without one, and where none
    were measured near it."""
    return measured_front(winner, limits["tpot_s"]) if "tpot_s" in limits else None


def _front_text(front: MeasuredFront | None, limits: Mapping[str, float]) -> str:
    """A sentence on measured servers, after a space; on a line of its own where they say otherwise; "" for none."""
    if front is None:
        return ""
    aside = " Times to the first token are not limited there." if "ttft_s" in limits else ""
    between = "\n" if front.contradicts else " "
    return f"{between}{front.text()}{aside}"


def _design(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(row.get(name)) for name in DESIGN)


def runner_up(rows: Iterable[Result], winner: Result, limits: Mapping[str, float]) -> tuple[Result, float] | None:
    """The best of another split or format within limits that is likeliest to give more tokens a device after all, and
    the chance of that; None where it is below `NAMED_FROM`, and for rows of tables that lack what a chance reads."""
    rivals: dict[tuple[str, ...], Result] = {}
    for row in rows:
        name = _design(row)
        is_rival = name != _design(winner) and common.competes(row) and within(row, limits)
        if is_rival and (name not in rivals or middle_speed(row) > middle_speed(rivals[name])):
            rivals[name] = row
    known = [row for row in rivals.values() if all(name in row for name in uncertainty.COMPARED)]
    if not known or any(name not in winner for name in uncertainty.COMPARED):
        return None
    rival, chance = max(((row, _gain(row, winner).sure) for row in known), key=lambda pair: pair[1])
    return (rival, chance) if chance >= common.NAMED_FROM else None


def _gain(row: Result, other: Result) -> Gain:
    """By how much a design gives more tokens a device than another."""
    of_all, devices = uncertainty.gain(row, other), other["n_devices"] / row["n_devices"]
    gain = uncertainty.gain_within(devices * of_all.low, devices * of_all.high)
    return gain._replace(sure=uncertainty.at_most(gain.sure, (row, other)))


def runs_of(winner: Result, rival: Result) -> TwoRuns | None:
    """The runs that would tell the best from its runner-up; None where `two_runs` knows none."""
    return two_runs(winner, rival, (named(winner), named(rival)), _gain(winner, rival))


def _rival_text(rows: Iterable[Result], winner: Result, limits: Mapping[str, float]) -> str:
    """The runner-up in a sentence, after a space; "" where there is none."""
    if not (found := runner_up(rows, winner, limits)):
        return ""
    rival, chance = found
    return f" Runner-up, {common.sure_text(chance)} sure to be better: {told(rival)}."


@dataclass(frozen=True, repr=False)
class Interactivity(QuestionAnswer):
    """Every design that was tried and fits, under `limits` (seconds by column); `measured` are published servers."""

    context: str
    rows: tuple[Result, ...]
    limits: dict[str, float]
    measured: tuple[dict[str, Any], ...] = ()
    age: str = ""

    @cached_property
    def fronts(self) -> dict[str, list[Result]]:
        """The front of each quantizer, over batches and splits."""
        names = dict.fromkeys(row["quantizer"] for row in self.rows)
        return {name: front([row for row in self.rows if row["quantizer"] == name]) for name in names}

    @cached_property
    def best(self) -> Result | None:
        """The design that runs with most tokens a device surely within the limits; None without limits, and where none
        surely keeps them."""
        return best(self.rows, self.limits) if self.limits else None

    @cached_property
    def runner_up(self) -> tuple[Result, float] | None:
        """The design of another split or format that may be better than the best, and the chance of that."""
        return runner_up(self.rows, self.best, self.limits) if self.best else None

    @property
    def measured_front(self) -> MeasuredFront | None:
        """Measured servers beside the best."""
        return front_of(self.best, self.limits) if self.best else None

    @cached_property
    def two_runs(self) -> TwoRuns | None:
        """The runs that would tell the best from the runner-up, within the limits if there are any; None where no
        runner-up is named."""
        running = filter(common.competes, self.rows)
        winner = self.best if self.limits else max(running, key=middle_speed, default=None)
        found = runner_up(self.rows, winner, self.limits) if winner else None
        return runs_of(winner, found[0]) if winner and found else None

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
        return {
            "question": "interactivity",
            "context": self.context,
            "limits_s": self.limits,
            "best": self.best and told_of(self.best),
            "runner_up": self.runner_up and {**told_of(self.runner_up[0]), "sure": self.runner_up[1]},
            "two_runs": self.two_runs and self.two_runs.to_json(),
            "measured_front": self.measured_front and self.measured_front.to_json(),
            "rows": self.table.to_dict("records"),
            "measured": list(self.measured),
            "age": self.age,
        }

    @property
    def verdict(self) -> str:
        """The best design within the limits, in a sentence."""
        return verdict(self.rows, self.limits) or (
            "No design fits: give more devices (--splits), fewer bits, or shorter prompts."
        )

    def text(self) -> str:
        """The verdict, and for each format the most tokens a device at some speeds for a user."""
        hint = "" if self.limits or not self.rows else " --max-tpot '50 ms' asks for the best that keeps it."
        lines = [f"Throughput a device against the speed of each user: {self.context}", "", self.verdict + hint]
        lines += [self.two_runs.text()] if self.two_runs else []
        if self.rows:
            lines += ["", "Most tokens/s a device where each user surely gets at least so many tokens/s:", ""]
            lines += aligned([["KV format", *map(str, SPEEDS)], *map(self._speed_row, self.fronts)], left=1)
            lines += ["", refused] if (refused := common.refused_text(self.rows)) else []
            lines += [
                "",
                "In brackets: requests at once, and devices by tp. A server that always has so many requests; "
                "a user's speed is 1 / TPOT, here at the slow end of its interval.",
                common.SURE_NOTE,
                common.assumption_text(self.rows, common.THROUGHPUT),
                *filter(None, [self.age]),
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

    def _speed_row(self, name: str) -> list[str]:
        cells = []
        for speed in SPEEDS:
            fast = [row for row in self.fronts[name] if within(row, {**self._first_limit, "tpot_s": 1 / speed})]
            row = max(fast, key=middle_speed, default=None)
            cells.append(f"{speeds(row)[1]:,.0f} ({row['batch']:,}, {_split(row)})" if row else "-")
        return [name if common.competes(self.fronts[name][0]) else f"{name}, {common.NOT_RUN}", *cells]

    @property
    def _first_limit(self) -> dict[str, float]:
        return {name: most for name, most in self.limits.items() if name == "ttft_s"}


_MEASURED = (
    Column("server"),
    Column("requests", form=","),
    Column("n_devices", title="devices"),
    Column("tokens_per_s_a_user", title="token/s a user", form=",.1f"),
    Column("tokens_per_s_a_device", title="token/s a device", form=",.0f"),
)


def named(row: Mapping[str, Any]) -> str:
    """A design by its format, or as a page names it, and its split."""
    name = row.get("system") or row["quantizer"]
    return f"{name}, {_split(row)}" if row["n_devices"] > 1 and f"tp {row['tp']}" not in str(name) else str(name)


def _split(row: Mapping[str, Any]) -> str:
    return layouts.words(row) or "tp 1"


def told(row: Mapping[str, Any]) -> str:
    """A design in words: what it is, and its speeds."""
    user, device = speeds(row)
    low, high, _ = interval(row)
    n = int(row["batch"])
    requests = f"{n:,} request{'s' if n > 1 else ''} at once"
    ttft = seconds_text(float(row["ttft_s"]))
    return (
        f"{named(row)}, {requests}: {device:,.0f} token/s a device (8 of 10 measurements: {device * low:,.0f} "
        f"to {device * high:,.0f}), {user:,.3g} token/s a user, first token after {ttft}"
    )


def interactivity(
    designs: Sequence[Candidate],
    work: Workload,
    splits: Sequence[int] | None = None,
    limits: Mapping[str, float] | None = None,
    measured: Sequence[dict[str, Any]] = (),
    progress: Progress | None = None,
    batches: Sequence[int] = BATCHES,
) -> Interactivity:
    """Every design over batches and splits by tp, as servers that replace each request as it ends.

    `splits` None: those of USUAL_SIZES that the model allows, or the workload's own where that names several devices;
    each in every way to share experts, requests and tokens (`layouts`), unless the workload says one. A batch that does
    not run at once is left out: its requests wait, and no user gets more. Raises InputError for a split that is out of
    range, and what keeps every design from being split so.
    """
    if splits is None and work.n_devices > 1:
        works = [work]
    else:
        works = [way for n in splits or USUAL_SIZES for way in _ways(designs[0].plan.model, work, n)]
    rows: list[Result] = []
    pairs = [(design, split_work) for design in designs for split_work in works]
    wrong: list[DseError] = []
    chosen: dict[str, Result] = {}  # of each format the best split at the limits: more would be one point of the curve
    for design, split in each(pairs, progress, "designs"):
        try:
            curve = _over_batches(design, split, batches)
        except DseError as error:  # the model is not split so
            wrong.append(error)
            continue
        rows += curve
        if limits and (last := at_limit(curve, limits, _at_batch(design, split))):
            first = chosen.get(design.name)
            chosen[design.name] = best([row for row in (first, last) if row], limits) or last
    if len(wrong) == len(pairs):
        raise wrong[0]
    first_design = designs[0]
    kept = f"{work.input_tokens:,} tokens in, {work.output_tokens:,} out"
    name = first_design.device.name if len(works) > 1 else works[0].devices_text(first_design.device.name)
    how = f", {rows[0]['model_kind']} model" + (f", {rows[0]['stack']}" if rows[0]["stack"] else "") if rows else ""
    context = ", ".join([name, first_design.plan.model.name, *work.ways(first_design.plan.model), kept]) + how
    age = common.age_text(Point(first_design.device, first_design.plan, works[0]))
    return Interactivity(context, (*rows, *chosen.values()), dict(limits or {}), tuple(measured), age)


def _ways(model: ModelSpec, work: Workload, tp: int) -> list[Workload]:
    """The layouts of a split by tp; where there are none, the plain one, which says why."""
    ways = layouts.layouts(model, work, tp, work.pp) or [replace(work, tp=tp)]
    return [replace(way, pp_batches=work.pp_batches) for way in ways]


def _at_batch(design: Candidate, work: Workload) -> Callable[[int], Result]:
    return lambda n: design.evaluate(replace(work, batch=n))


def _over_batches(design: Candidate, work: Workload, batches: Sequence[int]) -> list[Result]:
    """The design at every batch that runs at once, the largest of all too. Raises DseError where it is not split so."""
    rows: list[Result] = []
    for batch in batches:
        result = design.evaluate(replace(work, batch=batch))
        if not result["fits_whole_batch"]:
            last = largest(_at_batch(design, work), batch)
            return [*rows, last] if last and last not in rows else rows
        rows.append(kept(result))
    return rows


def largest(evaluate: Callable[[int], Mapping[str, Any]], most: int = BATCHES[-1]) -> Result | None:
    """The largest batch of a design that runs at once, of at most `most` requests; None where not even one does."""
    result = evaluate(most)
    if not result["fits_whole_batch"] and result["running_batch"]:
        result = evaluate(int(result["running_batch"]))
    return kept(result) if result["fits_whole_batch"] else None
