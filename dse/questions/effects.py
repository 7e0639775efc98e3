"""Effects of numbers on a result, one varied at a time: what `dse ask sensitivity` and `dse ask doubt` share."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypeVar

import pandas as pd

from dse.core import units
from dse.core.errors import InputError
from dse.core.progress import Progress, each
from dse.model.compare import Comparison
from dse.model.uncertainty import Gain
from dse.questions.common import (
    Candidate,
    Measure,
    QuestionAnswer,
    Result,
    assumption_text,
    competes,
    refused_text,
    sure_text,
)
from dse.specs.quantity import Quantity
from dse.specs.workload import Workload

#: halvings to the value at which the winner changes
N_HALVINGS = 60
#: how the line of numbers that move nothing begins
STILL = "No effect"


@dataclass(frozen=True)
class Number:
    """A number that results rest on, with the range it is varied in; all in base units."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    kind: str
    #: where the range comes from
    rule: str
    source: str

    @classmethod
    def of(cls, name: str, quantity: Quantity, low: float, high: float, rule: str, kind: str | None = None) -> "Number":
        """A quantity with its range in base units, of its own kind unless another is given."""
        unit, of_kind = units.base_of(quantity.unit), kind or quantity.kind
        return cls(name, quantity.si, low=low, high=high, unit=unit, kind=of_kind, rule=rule, source=quantity.source)


@dataclass(frozen=True)
class Effect:
    """Effect of one number: the measure of both designs at the ends of its range; None where a design does not run."""

    number: Number
    at_low: float | None
    at_high: float | None
    other_at_low: float | None = None
    other_at_high: float | None = None
    #: the winner at the ends of the range: the design, the other one, or "tie"
    winner_at_low: str = ""
    winner_at_high: str = ""
    #: where inside the range the winner changes
    flips_at: tuple[float, ...] = ()

    def span(self, base: float | None) -> float:
        """Change of the measure over the range, as a share of its value; infinite where it stops to run."""
        if self.at_low is None or self.at_high is None:
            return 0.0 if self.at_low == self.at_high else float("inf")
        return abs(self.at_high - self.at_low) / base if base else float("inf")


@dataclass(frozen=True, repr=False)
class Effects(QuestionAnswer):
    """Effects of numbers on a result, or on which of two designs is better, the largest first."""

    measure: Measure
    context: str
    design: str
    other: str
    base: float | None
    other_base: float | None
    winner: str
    effects: tuple[Effect, ...]
    assumptions: str
    #: 80 % intervals of both results as given, from the errors of fits; and how sure the winner is
    interval: tuple[float, float] | None = None
    other_interval: tuple[float, float] | None = None
    gain: Gain | None = None
    #: a line on what of them the software of the device does not run
    refused: str = ""

    @property
    def sure(self) -> float | None:
        """The chance that the winner, as computed, really is the better; None where there is none to beat."""
        if self.gain is None:
            return None
        return 1 - self.gain.sure if self.winner == self.other else self.gain.sure

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per number: its range, the measure at both ends, its span, the winners, where they change."""
        rows = []
        for effect in self.effects:
            row = {**asdict(effect.number), **asdict(effect), "span": effect.span(self.base)}
            del row["number"]
            rows.append({**row, "flips_at": " ".join(f"{at:.6g}" for at in effect.flips_at)})
        return pd.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        """Plain data in base units; a span is None where the design stops to run."""
        return {
            "question": self.name(),
            "context": self.context,
            "quantizer": self.design,
            "against": self.other or None,
            "measure": self.measure.column,
            "base": self.base,
            "against_base": self.other_base,
            "winner": self.winner or None,
            "base_interval": self.interval,
            "against_interval": self.other_interval,
            "gain": self.gain and self.gain.ratio,
            "gain_interval": [self.gain.low, self.gain.high] if self.gain else None,
            "sure": self.sure,
            "effects": [
                {**asdict(effect), "span": span if (span := effect.span(self.base)) != float("inf") else None}
                for effect in self.effects
            ],
            "assumptions": self.assumptions,
        }

    @abstractmethod
    def name(self) -> str:
        """The question's name in JSON."""

    @abstractmethod
    def question(self) -> str:
        """The head of the text."""

    @abstractmethod
    def lines(self) -> list[str]:
        """A line per number that moves the result."""

    @property
    def moving(self) -> list[Effect]:
        """Effects that are not none."""
        return [effect for effect in self.effects if effect.span(self.base) > 0 or effect.flips_at]

    @property
    def verdict(self) -> list[str]:
        """The result as given beside that of the other design, and how sure the better one is."""
        m = self.measure
        said = f"{m.text(self.base)} as given{self._of(self.interval)}"
        if not self.other:
            return [said]
        of_other = f"{m.text(self.other_base)}{self._of(self.other_interval)}"
        lines = [f"{said}; {self.other}: {of_other}; better: {self.winner}"]
        is_better = self.design if m.is_better(self.base, self.other_base) else self.other
        if self.gain and self.winner == is_better:  # another wins where one of both does not run
            g = self.gain
            lines.append(
                f"{sure_text(self.sure or 0.0)} sure that {self.winner} is better: {self.design} is "
                f"{g.ratio:.2f} ({g.low:.2f} to {g.high:.2f}) times as good as {self.other}"
            )
        return lines

    def text(self) -> str:
        """A line per number that moves the result, the others in one."""
        lines = [self.question(), f"{self.context}, {self.design}", "", *(f"  {line}" for line in self.verdict)]
        lines += self.lines()
        moving = self.moving
        still = [effect.number.name for effect in self.effects if effect not in moving]
        if still:
            lines += ["", f"{STILL}: {', '.join(still)}."]
        return "\n".join([*lines, "", *filter(None, [self.refused]), self.assumptions])

    def _of(self, interval: tuple[float, float] | None) -> str:
        return f" ({self.measure.ends_text(interval)})" if interval else ""

    def flip_text(self, effect: Effect) -> str:
        """Where the better design changes, "" where it does not."""
        if not effect.flips_at:
            return ""
        unit = effect.number.unit
        ends = [(effect.winner_at_low, "below"), (effect.winner_at_high, "above")]
        other = [(winner, side) for winner, side in ends if winner != self.winner]
        return "flips: " + ", ".join(
            f"{winner} {side} {units.human(at, unit)}"
            for (winner, side), at in zip(other, effect.flips_at, strict=True)
        )


def range_text(number: Number) -> str:
    """The range as people read it."""
    low, high = (units.human(end, number.unit, 3) for end in (number.low, number.high))
    if low == high:
        return low
    shared = low.split(" ")[1:] == high.split(" ")[1:]
    return f"{low.split(' ')[0] if shared else low} to {high}"


Answer = TypeVar("Answer", bound=Effects)
#: the measure of each design where a number has a value, in base units
Evaluated = Callable[[str, float], list[float | None]]


def as_given(designs: Sequence[Candidate], work: Workload, measure: Measure) -> list[Result]:
    """Results of the designs as given. Raises InputError where the first has none of the measure."""
    base = [design.evaluate(work) for design in designs]
    if measure.value(base[0]) is None:
        reason = base[0]["infeasible_reason"] or "the batch does not run at once, or the device lacks a number for it"
        raise InputError(f"measure = {measure.name}: {designs[0].name} has none: {reason}")
    return base


def winner_of(
    designs: Sequence[Candidate], values: Sequence[float | None], measure: Measure, base: Sequence[Result]
) -> str:
    """The better of two designs by its name, "tie", or "" for one alone; where one alone runs, that one. `base` are
    their results as given."""
    if len(designs) == 1:
        return ""
    design, other = designs
    if competes(base[0]) != competes(base[1]):
        return design.name if competes(base[0]) else other.name
    return design.name if measure.is_better(*values) else other.name if measure.is_better(*values[::-1]) else "tie"


def effects_of(
    numbers: Sequence[Number],
    evaluated: Evaluated,
    designs: Sequence[Candidate],
    base: Sequence[Result],
    measure: Measure,
    progress: Progress | None,
) -> list[Effect]:
    """The effect of each number over its range, on one design or on which of two is better."""
    first = winner_of(designs, [measure.value(result) for result in base], measure, base)
    effects = []
    for number in each(numbers, progress, "numbers"):
        ends = [evaluated(number.name, end) for end in (number.low, number.high)]
        winners = [winner_of(designs, pair, measure, base) for pair in ends]

        def is_same(si: float, name: str = number.name) -> bool:
            return winner_of(designs, evaluated(name, si), measure, base) == first

        flips = [
            _flip(is_same, number.value, end)
            for end, name in zip((number.low, number.high), winners, strict=True)
            if name != first
        ]
        others = (ends[0][1], ends[1][1]) if len(designs) > 1 else (None, None)
        effects.append(
            Effect(
                number=number,
                at_low=ends[0][0],
                at_high=ends[1][0],
                other_at_low=others[0],
                other_at_high=others[1],
                winner_at_low=winners[0],
                winner_at_high=winners[1],
                flips_at=tuple(flips),
            )
        )
    return effects


def answer_of(
    kind: type[Answer],
    designs: Sequence[Candidate],
    work: Workload,
    measure: Measure,
    base: Sequence[Result],
    effects: Sequence[Effect],
    context: str,
) -> Answer:
    """The answer with its effects, the largest first."""
    design, other = designs[0], designs[1] if len(designs) > 1 else None
    values = [measure.value(result) for result in base]
    return kind(
        measure=measure,
        context=f"{context}, batch {work.batch:,}, {work.input_tokens:,} in",
        design=design.name,
        other=other.name if other else "",
        base=values[0],
        other_base=values[1] if other else None,
        winner=winner_of(designs, values, measure, base),
        refused=refused_text(base),
        effects=tuple(sorted(effects, key=lambda effect: -effect.span(values[0]))),
        assumptions=assumption_text(base, measure),
        interval=measure.ends(base[0]),
        other_interval=measure.ends(base[1]) if other else None,
        gain=Comparison(measure.column).gain(design.at(work), other.at(work))
        if other and values[1] is not None
        else None,
    )


def _flip(is_same: Callable[[float], bool], inside: float, outside: float) -> float:
    """A value between `inside`, where the winner is as given, and `outside`, where it is not, at which it changes."""
    for _ in range(N_HALVINGS):
        middle = (inside + outside) / 2
        if middle in (inside, outside):
            break
        inside, outside = (middle, outside) if is_same(middle) else (inside, middle)
    return outside
