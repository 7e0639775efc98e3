"""Crossover: from which batch, and from which prompt length, does one quantizer pay against another on a device?"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import pandas as pd

from dse.core.columns import aligned
from dse.core.errors import InputError, LimitError
from dse.core.progress import Progress, each
from dse.model import lower
from dse.model.compare import Comparison
from dse.model.uncertainty import Gain
from dse.questions import engine_formats
from dse.questions.common import (
    THROUGHPUT,
    TIE,
    Candidate,
    Measure,
    QuestionAnswer,
    Result,
    assumption_text,
    context,
    sure_text,
)
from dse.specs.workload import Workload

BATCHES = (1, 4, 16, 64, 256)
INPUTS = (512, 2048, 8192, 32768)
#: every batch up to the largest is evaluated, half a millisecond each, where designs are not one; prompts are searched
MAX_BATCH, MAX_INPUT = 4096, 2**20
MEASURES = ("throughput", "step")
#: stretches that a line of text tells one by one
MAX_SHOWN = 4

#: why a design pays, or not; the texts are those of tables and figures
PAYS = {
    "speed": "a step is faster",
    "both": "faster, and more requests at once",
    "capacity": "only capacity: more requests at once",
    "prompt": "the prompt is faster",
}
VERDICTS = {**PAYS, "no": "does not pay", "none": "neither fits"}


@dataclass(frozen=True)
class VerdictRun:
    """A stretch first..last of batches or prompts with one verdict; of its ends how many times as good the new design
    is (None where one of both does not run), and how sure that is."""

    first: int
    last: int
    verdict: str
    gain_at_first: float | None = None
    gain_at_last: float | None = None
    #: 80 % intervals of these gains, and the chances that the new design really is better
    interval_at_first: tuple[float, float] | None = None
    interval_at_last: tuple[float, float] | None = None
    sure_at_first: float | None = None
    sure_at_last: float | None = None

    @property
    def pays(self) -> bool:
        """True where the quantizer is better."""
        return self.verdict in PAYS


@dataclass(frozen=True)
class CrossingLine:
    """One search: along `axis` ("batch" or "input_tokens"), the other held at `at`. Runs cover the whole range."""

    axis: str
    at: int
    runs: tuple[VerdictRun, ...]

    @property
    def pays_in(self) -> list[tuple[int, int]]:
        """The intervals on which the quantizer pays, whatever the reason."""
        intervals: list[tuple[int, int]] = []
        for run in self.runs:
            if run.pays and intervals and intervals[-1][1] + 1 == run.first:
                intervals[-1] = (intervals[-1][0], run.last)
            elif run.pays:
                intervals.append((run.first, run.last))
        return intervals

    @property
    def pays_from(self) -> int | None:
        """The smallest from which on it pays, to the end of the range or to where neither fits; None without one."""
        pays = self.pays_in
        fits = self.runs[:-1] if self.runs[-1].verdict == "none" else self.runs
        return pays[-1][0] if pays and pays[-1][1] == fits[-1].last else None


@dataclass(frozen=True)
class Ends:
    """Bounds of one design over a range of prompts; or that it does not run (None: not everywhere)."""

    is_out: bool | None
    #: fewest and most requests at once
    running: tuple[int, int] = (0, 0)
    #: lowest and highest seconds: of a token, or of a step where that is the measure
    seconds: tuple[float, float] = (0.0, 0.0)


@dataclass
class DesignPair:
    """Two designs under one measure; remembers what it has evaluated."""

    new: Candidate
    old: Candidate
    work: Workload
    measure: Measure
    seen: dict[tuple[Any, ...], Result] = field(default_factory=dict)

    def result(self, is_new: bool, batch: int, input_tokens: int, has_room: bool = False) -> Result:
        """Capacity and speed of one of the designs; with `has_room` in as much memory as it needs."""
        key = (is_new, batch, input_tokens, has_room)
        if key not in self.seen:
            work = replace(self.work, batch=batch, input_tokens=input_tokens)
            design = self.new if is_new else self.old
            self.seen[key] = (self.roomy[not is_new] if has_room else design).speed(work)
        return self.seen[key]

    @cached_property
    def roomy(self) -> tuple[Candidate, Candidate]:
        """Both designs with as much memory as they need."""
        return self.new.roomy(), self.old.roomy()

    def step_s(self, is_new: bool, n_running: int, input_tokens: int) -> float:
        """Seconds of a decode step of `n_running` requests, whether they fit or not."""
        return float(self.result(is_new, n_running, input_tokens, has_room=True)["decode_step_s"])

    def verdict(self, batch: int, input_tokens: int) -> str:
        """Why the new design pays at a point, or that it does not (`VERDICTS`)."""
        a, b = self.result(True, batch, input_tokens), self.result(False, batch, input_tokens)
        new, old = self.measure.value(a), self.measure.value(b)
        if new is None and old is None:
            return "none"
        if not self.measure.is_better(new, old):
            return "no"
        if old is None:
            return "capacity"
        if self.measure.name == "step":
            return "speed"
        both = min(a["running_batch"], b["running_batch"])
        more = a["running_batch"] > b["running_batch"]
        steps = [
            result["decode_step_s"] if result["running_batch"] == both else self.step_s(is_new, both, input_tokens)
            for is_new, result in ((True, a), (False, b))
        ]
        if steps[0] < steps[1] * (1 - TIE):
            return "both" if more else "speed"
        return "capacity" if more else "prompt"

    def gain(self, batch: int, input_tokens: int) -> Gain | None:
        """Gain of the new design over the old; None where one of them does not run."""
        if any(self.measure.value(self.result(is_new, batch, input_tokens)) is None for is_new in (True, False)):
            return None
        work = replace(self.work, batch=batch, input_tokens=input_tokens)
        return self.compared.gain(self.new.at(work), self.old.at(work))

    @cached_property
    def compared(self) -> Comparison:
        """Comparison of designs by the measure."""
        return Comparison(self.measure.column)

    def is_sure(self, batch: int, first: int, last: int) -> bool:
        """True when the verdict is the same on all prompts first..last, by what only grows with the prompt.

        A longer prompt takes more time and memory, so fewer requests run at once and tokens come at a lower rate; more
        requests at once take longer steps. That holds at equal phase of the packing (`period_of`): so what is lowest
        in the first period is lowest of all, and what is highest in the last one highest.
        """
        periods = [period_of(design, self.work) for design in (self.new, self.old)]
        if last - first + 1 < 2 * max(periods):
            return False
        if self.is_one:
            period = max(periods)
            ends = (*range(first, first + period), *range(last - period + 1, last + 1))
            return len({self.verdict(batch, n) for n in ends}) == 1
        # the ends alone say where there is no hope, without a whole period of evaluations
        return self._is_decided(batch, first, last, [1, 1]) and (
            periods == [1, 1] or self._is_decided(batch, first, last, periods)
        )

    def is_sure_of_batches(self, input_tokens: int, first: int, last: int) -> bool:
        """True when the verdict is surely the same on all batches first..last: designs that are one fit alike, and what
        fits only falls as the batch grows. All others are told apart batch by batch."""
        return self.is_one and self.verdict(first, input_tokens) == self.verdict(last, input_tokens)

    @cached_property
    def is_one(self) -> bool:
        """True where the model is given the same numbers for both designs, as of bf16 and fp16: no prompt and no batch
        tells them apart, since these are given to both alike."""
        return self.new.lowered(self.work) == self.old.lowered(self.work)

    def _is_decided(self, batch: int, first: int, last: int, periods: list[int]) -> bool:
        """True when the bounds that the first and the last period give leave one verdict only."""
        new, old = (
            self._ends(is_new, batch, range(first, first + period), range(last - period + 1, last + 1))
            for is_new, period in zip((True, False), periods, strict=True)
        )
        if new.is_out is None or old.is_out is None:
            return False
        if new.is_out or old.is_out:
            return True
        if not _are_apart(new.seconds, old.seconds):
            return False
        if new.seconds[0] > old.seconds[0] or self.measure.name == "step":
            return True
        (new_few, new_many), (old_few, old_many) = new.running, old.running
        are_equal = new_few == new_many == old_few == old_many
        if not (are_equal or new_few > old_many or new_many < old_few):
            return False
        few, many = min(new_few, old_few), min(new_many, old_many)
        return _are_apart(
            *(
                self._steps(is_new, range(first, first + period), range(last - period + 1, last + 1), few, many)
                for is_new, period in zip((True, False), periods, strict=True)
            )
        )

    def _ends(self, is_new: bool, batch: int, low: range, high: range) -> Ends:
        """Bounds of one design from the first to the last prompt; `low` and `high` are a period each."""
        lows, highs = ([self.result(is_new, batch, n) for n in ends] for ends in (low, high))
        out = {self.measure.value(result) is None for result in (*lows, *highs)}
        if True in out:
            return Ends(True if out == {True} else None)
        if self.measure.name == "step":
            return Ends(False, (batch, batch), self._steps(is_new, low, high, batch, batch))
        running = min(r["running_batch"] for r in highs), max(r["running_batch"] for r in lows)
        rates = max(r[self.measure.column] for r in lows), min(r[self.measure.column] for r in highs)
        return Ends(False, running, (1 / rates[0], 1 / rates[1]))

    def _steps(self, is_new: bool, low: range, high: range, few: int, many: int) -> tuple[float, float]:
        """Lowest and highest seconds of a step of few..many requests."""
        return min(self.step_s(is_new, few, n) for n in low), max(self.step_s(is_new, many, n) for n in high)


def _are_apart(a: tuple[float, float], b: tuple[float, float]) -> bool:
    """True when two ranges (lowest, highest) differ everywhere, by more than a tie."""
    return a[1] < b[0] * (1 - TIE) or b[1] < a[0] * (1 - TIE)


def period_of(design: Candidate, work: Workload) -> int:
    """Prompt tokens after which times and sizes have surely not fallen: 1 where they only grow.

    A quantizer that packs groups takes less right after it has packed one. Over an output of whole periods one more
    prompt token swaps a decode step for another at the same phase, which is never smaller.
    """
    steps = {g.step_tokens for g in design.plan.groups}
    if steps == {1}:
        return 1
    admission = lower.with_admission(design.device, work).admission
    period = math.lcm(work.block_tokens if admission == "paged" else 1, *steps)
    return 1 if work.output_tokens % period == 0 else period


def runs(
    verdict: Callable[[int], str], is_sure: Callable[[int, int], bool], low: int, high: int
) -> Iterator[VerdictRun]:
    """Maximal stretches of equal verdict that cover low..high, by halving whatever is not sure; exact."""
    todo, start, last, current = [(low, high)], low, low - 1, ""
    while todo:
        a, b = todo.pop()
        if a < b and not is_sure(a, b):
            middle = (a + b) // 2
            todo += [(middle + 1, b), (a, middle)]
            continue
        reached = verdict(a)
        if reached != current and current:
            yield VerdictRun(first=start, last=last, verdict=current)
            start = a
        current, last = reached, b
    yield VerdictRun(first=start, last=last, verdict=current)


@dataclass(frozen=True, repr=False)
class Crossing(QuestionAnswer):
    """The answer: a line of runs for each prompt (along the batch) and for each batch (along the prompt)."""

    new: str
    old: str
    measure: Measure
    context: str
    from_batch: tuple[CrossingLine, ...]
    from_input: tuple[CrossingLine, ...]
    assumptions: str
    #: on formats that the engine does not run
    note: str = ""

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per run: axis, at, first, last, verdict, pays; at its first and last the gain (a ratio), the ends of
        its interval, and the chance that the better design really is better."""
        rows = []
        for line in (*self.from_batch, *self.from_input):
            for run in line.runs:
                sure: dict[str, float | None] = {}
                for end in ("first", "last"):
                    low, high = getattr(run, f"interval_at_{end}") or (None, None)
                    sure |= {f"gain_low_at_{end}": low, f"gain_high_at_{end}": high}
                rows.append({"axis": line.axis, "at": line.at, **asdict(run), "pays": run.pays, **sure})
        ends = [f"{name}_at_{end}" for name in ("gain", "gain_low", "gain_high", "sure") for end in ("first", "last")]
        return pd.DataFrame(rows, columns=["axis", "at", "first", "last", "verdict", "pays", *ends])

    @property
    def verdict(self) -> list[str]:
        """From which batch and from which prompt on it pays, a sentence each; searches of one answer together."""
        said = []
        for lines, what, fixed in ((self.from_batch, "batch", "a prompt of"), (self.from_input, "prompt", "batch")):
            places: dict[str, list[str]] = {}
            for line in lines:
                places.setdefault(_start(line), []).append(f"{line.at:,}")
            parts = [f"{start} at {fixed} {' and '.join(at)}" for start, at in places.items()]
            said += [f"From which {what} on {self.new} pays against {self.old}: {'; '.join(parts)}"] if parts else []
        return said

    def to_json(self) -> dict[str, Any]:
        """Plain data, tokens and requests as integers."""

        def of(line: CrossingLine, fixed: str) -> dict[str, Any]:
            return {
                fixed: line.at,
                "pays_from": line.pays_from,
                "pays_in": [list(ends) for ends in line.pays_in],
                "runs": [asdict(run) for run in line.runs],
            }

        return {
            "question": "cross",
            "context": self.context,
            "quantizer": self.new,
            "against": self.old,
            "measure": self.measure.column,
            "from_batch": [of(line, "input_tokens") for line in self.from_batch],
            "from_input": [of(line, "batch") for line in self.from_input],
            "assumptions": self.assumptions,
            "note": self.note,
        }

    def text(self) -> str:
        """The answer in words, a line per search."""
        head = f"From where on does {self.new} pay against {self.old}?  ({self.measure.title})"
        parts = [head, self.context, "", *(f"  {line}" for line in self.verdict)]
        for lines, what, fixed in (
            (self.from_batch, "batch", "prompt of {:,}"),
            (self.from_input, "prompt", "batch {:,}"),
        ):
            if lines:
                ends = lines[0].runs[0].first, lines[0].runs[-1].last
                parts += ["", f"From which {what} on, of {ends[0]:,} to {ends[1]:,}?"]
                parts += aligned([(fixed.format(line.at), _answer(line)) for line in lines], indent="  ")
        return "\n".join([*parts, "", *filter(None, [self.note]), self.assumptions])


def _start(line: CrossingLine) -> str:
    """From where on it pays."""
    start, pays = line.pays_from, line.pays_in
    if start == line.runs[0].first:
        head = "always" if line.runs[-1].verdict != "none" else "wherever one fits"
    elif start is not None:
        head = f"from {start:,} on"
    elif pays:
        head = "not up to the end, only in " + _list([_ends(*ends) for ends in pays])
    else:
        head = "never"
    if start is not None and len(pays) > 1:
        head += ", and before that in " + _list([_ends(*ends) for ends in pays[:-1]])
    return head


def _answer(line: CrossingLine) -> str:
    """From where on, then what holds in each stretch, where there is more than one to tell."""
    head, pays = _start(line), line.pays_in
    shown = [run for run in line.runs if run.verdict != "no"] if len(line.runs) > 1 or pays else []
    reasons = {run.verdict for run in shown}
    if len(shown) > MAX_SHOWN or (
        len(shown) > 1 and len(reasons) == 1
    ):  # the stretches stand in the head: say once why
        tail = " or ".join(text for verdict, text in VERDICTS.items() if verdict in reasons)
    else:
        tail = "; ".join(f"{_ends(run.first, run.last)} {VERDICTS[run.verdict]}{_gain(run)}" for run in shown)
    return f"{head}: {tail}" if tail else head


def _list(texts: list[str]) -> str:
    """The first few of a list, and how many more there are."""
    more = f" and {len(texts) - MAX_SHOWN} more (--json has all)" if len(texts) > MAX_SHOWN else ""
    return ", ".join(texts[:MAX_SHOWN]) + more


def _ends(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"


def _gain(run: VerdictRun) -> str:
    if run.gain_at_first is None or run.gain_at_last is None or not run.pays:
        return ""
    gains = dict.fromkeys(f"{gain:.2f}x" for gain in (run.gain_at_first, run.gain_at_last))
    sure = dict.fromkeys(sure_text(chance) for chance in (run.sure_at_first, run.sure_at_last) if chance is not None)
    return f" ({' to '.join(gains)}, {' to '.join(sure)} sure)"


def crossing(
    new: Candidate,
    old: Candidate,
    work: Workload,
    measure: Measure = THROUGHPUT,
    batches: Sequence[int] = BATCHES,
    inputs: Sequence[int] = INPUTS,
    progress: Progress | None = None,
) -> Crossing:
    """From which batch at each of `inputs` (prompt tokens), and from which prompt at each of `batches`, `new` pays.

    Batches from 1 to the largest of `batches` and prompts from 1 (or the shared prefix) to the largest of `inputs` are
    searched; every integer is decided, those in between by monotony (`DesignPair.is_sure`). `work` gives the rest.
    Quantizers that pack groups take minutes where the output is not whole groups: each end then evaluates a period.
    Paying means a better `measure` by more than a tie; a step time counts only where the whole batch runs at once.
    Raises InputError where the designs are the same or a list is empty, LimitError beyond MAX_BATCH or MAX_INPUT.
    """
    if new == old:
        raise InputError(f"against = {old.name}: is the same as the quantizer: name another")
    for name, values, limit in (("batches", batches, MAX_BATCH), ("inputs", inputs, MAX_INPUT)):
        if not values:
            raise InputError(f"{name} = []: must name at least one")
        if max(values) > limit:
            raise LimitError(f"{name} = {max(values):,}: must be at most {limit:,}: take smaller ones")
    shortest = max(1, work.prefix_tokens)
    for batch in batches:
        replace(work, batch=batch)
    for n in inputs:
        replace(work, input_tokens=n)
    pair = DesignPair(new, old, work, measure)
    searches: list[tuple[str, int]] = [("batch", n) for n in sorted(set(inputs))]
    searches += [("input_tokens", batch) for batch in sorted(set(batches))]
    lines = []
    for axis, at in each(searches, progress, "searches"):
        if axis == "batch":
            spans = runs(
                lambda b, n=at: pair.verdict(b, n),  # type: ignore[misc]
                lambda first, last, n=at: pair.is_sure_of_batches(n, first, last),  # type: ignore[misc]
                1,
                max(batches),
            )
        else:
            spans = runs(
                lambda n, b=at: pair.verdict(b, n),  # type: ignore[misc]
                lambda first, last, b=at: pair.is_sure(b, first, last),  # type: ignore[misc]
                shortest,
                max(inputs),
            )
        lines.append(CrossingLine(axis, at, tuple(_with_gains(pair, axis, at, run) for run in spans)))
        pair.seen.clear()
    largest = replace(work, batch=max(batches), input_tokens=max(inputs))
    example, other = new.evaluate(largest), old.evaluate(largest)
    note = engine_formats.other_software((new, old), largest)
    if pair.is_one:
        note = " ".join(filter(None, [f"{new.name} and {old.name} take the same memory and time here.", note]))
    return Crossing(
        new=new.name,
        old=old.name,
        measure=measure,
        context=context(new.device, new.plan.model, work, example),
        from_batch=tuple(line for line in lines if line.axis == "batch"),
        from_input=tuple(line for line in lines if line.axis == "input_tokens"),
        assumptions=assumption_text((example, other), measure),
        note=note,
    )


def _with_gains(pair: DesignPair, axis: str, at: int, run: VerdictRun) -> VerdictRun:
    points = [(n, at) if axis == "batch" else (at, n) for n in (run.first, run.last)]
    gains: dict[str, Any] = {}
    for end, where in zip(("first", "last"), points, strict=True):
        if gain := pair.gain(*where):
            gains |= {f"gain_at_{end}": gain.ratio, f"sure_at_{end}": gain.sure}
            gains[f"interval_at_{end}"] = gain.low, gain.high
    return replace(run, **gains)
