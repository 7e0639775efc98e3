"""Doubt of a claim: which number, inside its stated range, would give what a paper prints, or take it away."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd

from dse.core import units
from dse.core.errors import InputError, did_you_mean, show
from dse.core.progress import Progress, each
from dse.model import implementations
from dse.model.kv_layout import KvPlan
from dse.questions import doubt
from dse.questions.common import THROUGHPUT, Candidate, QuestionAnswer, with_number
from dse.questions.effects import Number, range_text
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import Workload
from dse.validate import claims
from dse.validate.claims import Modeled, Relation, designs

#: how far beyond an end of a range the value is sought that would give what is printed
BEYOND = 4.0
#: halvings to it, enough for its printed digits
N_HALVINGS = 12
#: orders that do not hold are named where they are so few
MAX_TOLD = 3


@dataclass(frozen=True)
class Finding:
    """Ours of a claim with some numbers: whether it holds, in how many of its orders, and its value."""

    holds: bool
    #: the ratios that its order rests on, by name
    orders: dict[str, float]
    value: float | None
    #: all of its numbers: what tells whether anything moved
    numbers: tuple[float, ...]

    @property
    def n_held(self) -> int:
        """Orders that are as printed."""
        return sum(ratio > 1 for ratio in self.orders.values())

    @property
    def against(self) -> str:
        """Those that are not, where they are few."""
        others = [f"{name} {ratio:.2f}" for name, ratio in self.orders.items() if ratio <= 1]
        return f" (all but {', '.join(others)})" if 0 < len(others) <= MAX_TOLD else ""

    def text(self, unit: str) -> str:
        """The finding in a few words."""
        if not self.numbers:
            return "does not run"
        if self.orders:
            return f"{self.n_held} of {len(self.orders)} orders"
        told = "comes out" if self.holds else "does not"
        return told if self.value is None else f"{self.value:.4g}{'' if unit in ('-', '1') else f' {unit}'}, {told}"


@dataclass(frozen=True)
class ClaimEffect:
    """A number of some devices, what the claim comes to at the ends of its range, and where its verdict changes."""

    number: Number
    devices: tuple[str, ...]
    at_low: Finding
    at_high: Finding
    #: inside the range; else, where no number's range does, outside of it
    flips_at: float | None = None
    beyond_at: float | None = None

    @property
    def name(self) -> str:
        """The number with its devices."""
        return f"{self.number.name} ({', '.join(self.devices)})"

    @property
    def ends(self) -> tuple[Finding, Finding]:
        """Both findings."""
        return self.at_low, self.at_high


@dataclass(frozen=True, repr=False)
class ClaimDoubt(QuestionAnswer):
    """The answer: effects of the ranges on a claim, those that change its verdict first."""

    claim: claims.Claim
    base: Finding
    verdict: str
    effects: tuple[ClaimEffect, ...]

    @property
    def moving(self) -> list[ClaimEffect]:
        """Effects that are not none."""
        return [e for e in self.effects if any(end.numbers != self.base.numbers for end in e.ends) or e.flips_at]

    @property
    def table(self) -> pd.DataFrame:
        """A row per number: its range, whether the claim holds at both ends, in how many orders, where it changes."""
        rows = [
            {
                **asdict(e.number),
                "devices": ", ".join(e.devices),
                "holds_at_low": e.at_low.holds,
                "holds_at_high": e.at_high.holds,
                "orders_at_low": e.at_low.n_held,
                "orders_at_high": e.at_high.n_held,
                "at_low": e.at_low.value,
                "at_high": e.at_high.value,
                "flips_at": e.flips_at,
                "beyond_at": e.beyond_at,
            }
            for e in self.effects
        ]
        return pd.DataFrame(rows)

    @property
    def turning(self) -> list[ClaimEffect]:
        """Effects that change the verdict or an order; all that move anything where there are no orders."""
        if not self.base.orders:
            return self.moving
        return [
            e
            for e in self.moving
            if any((end.holds, end.n_held) != (self.base.holds, self.base.n_held) for end in e.ends)
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain data in base units."""
        return {
            "question": "doubt",
            "claim": asdict(self.claim),
            "verdict": self.verdict,
            "base": asdict(self.base),
            "effects": [asdict(e) for e in self.effects],
        }

    def text(self) -> str:
        """Say first which number would change the verdict, then a line per number that moves the claim."""
        unit, row = self.claim.unit if self.claim.unit != "order" else "-", self.claim
        lines = [
            f"Which number would give what the paper prints? {row.id}",
            f"{row.where}: {row.quantity}: printed {row.published}",
            "",
            f"  {self.base.text(unit)} as given: {self.verdict}",
            f"  {self._lead(unit)}",
        ]
        turning = self.turning
        width = max((len(e.name) for e in turning), default=0)
        ranges = [range_text(e.number) for e in turning]
        range_width = max(map(len, ranges), default=0)
        for effect, text in zip(turning, ranges, strict=True):
            ends = " to ".join(end.text(unit) for end in effect.ends)
            lines.append(f"  {effect.name:<{width}}  {text:<{range_width}}  {effect.number.kind:<9}  {ends}")
        rest = [e for e in self.moving if e not in turning]
        still = [e for e in self.effects if e not in self.moving]
        for head, others in (("No order changes by", rest), ("No effect", still)):
            lines += ["", f"{head}: {', '.join(e.name for e in others)}."] if others else []
        return "\n".join(lines)

    def _lead(self, unit: str) -> str:
        """The numbers that change the verdict inside their ranges; else the nearest one, and where it would."""

        def at(effect: ClaimEffect, si: float) -> str:
            side = "from" if si >= effect.number.value else "down from"
            return f"{effect.name} {side} {units.human(si, effect.number.unit, 3)} on"

        flips = [at(effect, effect.flips_at) for effect in self.effects if effect.flips_at is not None]
        does = "take it away" if self.base.holds else "give it"
        if flips:
            return f"Would {does}: {'; '.join(flips)}"
        lead = f"No number inside its range would {does}"
        if self.base.holds:
            return lead
        best = self.moving[0] if self.moving else None
        if best is None or max(end.n_held for end in best.ends) <= self.base.n_held:
            return lead
        end = max(best.ends, key=lambda end: end.n_held)
        si = best.number.high if end is best.at_high else best.number.low
        place = f"{best.name} at {units.human(si, best.number.unit, 3)}"
        nearest = f"{lead}; nearest: {place}, {end.text(unit)}{end.against}"
        outside = [at(effect, effect.beyond_at) for effect in self.effects if effect.beyond_at is not None]
        return f"{nearest}; outside of it: {'; '.join(outside)}" if outside else nearest


def _finding(row: claims.Claim, ours: claims.Ours) -> Finding:
    orders = ours.orders if isinstance(ours, Relation) else {}
    value = ours.value if isinstance(ours, Modeled) else None if isinstance(ours, Relation) else float(ours)
    numbers = (*orders.values(), *([] if value is None else [value]))
    if isinstance(ours, Relation):
        numbers = (*numbers, *ours.numbers, float(bool(ours.holds)))
    return Finding(claims.agrees(row, ours), dict(orders), value, numbers)


def doubt_of(claim_id: str, progress: Progress | None = None) -> ClaimDoubt:
    """Vary every number that a claim's design points rest on inside its range, one at a time.

    Numbers of the same value vary together: papers give one chip two memories, and one memory to two chips. Raises
    InputError for a claim that is not known, or that rests on no number of a device.
    """
    table = claims.load()
    if claim_id not in table:
        raise InputError(f"claim = {show(claim_id)}: {did_you_mean(claim_id, table)} (`dse validate claims`)")
    row, function = table[claim_id], claims.FUNCTIONS[claim_id]
    with designs.watched() as seen:
        base = function()
    if not seen:
        raise InputError(f"claim = {show(claim_id)}: rests on no number of a device whose range could be tried")
    numbers = _numbers(seen)

    def at(number: Number, names: Sequence[str], si: float) -> Finding:
        def varied(device: HardwareSpec, plan: KvPlan, work: Workload) -> tuple[HardwareSpec, KvPlan]:
            if device.name not in names:
                return device, plan
            stacked = doubt.with_stacks(device, work)
            if number.name.startswith(doubt.KERNELS):
                key, _, field = number.name.removeprefix(doubt.KERNELS).rpartition(".")
                return stacked, implementations.with_number(plan, stacked, work, key, field, si)
            return (with_number(stacked, number.name, si, "varied") if _has(stacked, number.name) else device), plan

        try:
            with designs.watched(varied):
                return _finding(row, function())
        except designs.DoesNotRun:
            return Finding(False, {}, None, ())

    finding = _finding(row, base)
    effects = []
    for number, names in each(numbers, progress, "numbers"):
        low, high = (at(number, names, end) for end in (number.low, number.high))
        effect = ClaimEffect(number=number, devices=names, at_low=low, at_high=high)
        for end, si in ((low, number.low), (high, number.high)):
            if end.holds != finding.holds:
                effect = replace(effect, flips_at=_flip(number, names, number.value, si, at, finding.holds))
        effects.append(effect)
    if not finding.holds and not any(effect.flips_at is not None for effect in effects):
        effects = [_beyond(effect, finding, at) for effect in effects]
    order = sorted(effects, key=lambda e: (e.flips_at is None, -max(end.n_held for end in e.ends)))
    return ClaimDoubt(row, finding, claims.evaluate(claim_id).verdict, tuple(order))


def _numbers(seen: Sequence[designs.Watched]) -> list[tuple[Number, tuple[str, ...]]]:
    """The numbers behind design points with the devices that they are of."""
    named: dict[tuple[str, float], tuple[Number, dict[str, None]]] = {}
    for device, plan, work in seen:
        for number in doubt.numbers([Candidate(device, plan)], work, THROUGHPUT):
            _, names = named.setdefault((number.name, number.value), (number, {}))
            names[device.name] = None
    return [(number, tuple(names)) for number, names in named.values()]


def _has(device: HardwareSpec, name: str) -> bool:
    """True where the device has the place of a number: a claim may ask for its kernels and for its peaks."""
    at: Any = device
    for part in name.split(".")[:-1]:
        at = at.get(part) if isinstance(at, dict) else getattr(at, part)
        if at is None:
            return False
    return True


def _flip(number: Number, names: Sequence[str], inside: float, outside: float, at: Any, holds: bool) -> float:
    """The value between both at which the verdict changes, seen from `inside`: a whole number where it counts."""
    for _ in range(N_HALVINGS):
        middle = (inside + outside) / 2
        if number.name in doubt.WHOLE:
            middle = float(int(middle))
        if middle in (inside, outside):
            break
        inside, outside = (middle, outside) if at(number, names, middle).holds == holds else (inside, middle)
    return outside


def _beyond(effect: ClaimEffect, base: Finding, at: Any) -> ClaimEffect:
    """The effect with the value outside its range that would give what is printed, where an end comes nearer to it."""
    number = effect.number
    for end, inside, outside in (
        (effect.at_low, number.low, number.low / BEYOND),
        (effect.at_high, number.high, number.high * BEYOND),
    ):
        can = number.kind == "assumed" and number.name not in doubt.SHARES and end.n_held > base.n_held
        if can and at(number, effect.devices, outside).holds:
            value = _flip(number, effect.devices, inside, outside, at, False)
            return replace(effect, beyond_at=value)
    return effect
