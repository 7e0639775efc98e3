"""Inverse design: the smallest bandwidth, memory or peak FLOP/s, or the most bits, that meets a target.

Everything else is as given. A target is a throughput to reach, or a step time to keep with the whole batch at once.
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from dse.core import units
from dse.core.errors import InputError, did_you_mean, show
from dse.core.progress import Progress, each
from dse.model import engine, lower, uncertainty
from dse.model.point import Point, filled
from dse.questions import formats
from dse.questions.common import (
    MEASURES,
    NOT_RUN,
    Candidate,
    Measure,
    QuestionAnswer,
    Result,
    assumption_text,
    competes,
    context,
    design,
    refused_text,
    sure_text,
    with_number,
)
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.measurements import CLOSED, Bits
from dse.specs.workload import Workload

#: what can be asked for: the number of the device that is varied, and its name in texts
NUMBERS = {
    "bandwidth": ("memory_bandwidth", "memory bandwidth"),
    "capacity": ("memory_capacity", "memory"),
    "flops": ("peak_flops", "peak FLOP/s"),
}
#: ends of the search in base units: next to nothing, and for all that matters infinite; whole bytes up to ROOM_BYTES
LOWEST, ENDLESS = 1.0, 1e300
#: steps by a straight line in a search, after which it halves
MAX_LINES = 40
#: points of a figure's curve, and how far it reaches to both sides of the answer and the device
N_CURVE, REACH = 65, 4.0


@dataclass(frozen=True)
class Target:
    """A measure (throughput or step) and the value that it must reach, in base units."""

    measure: Measure
    value: float
    #: whether the result counts at the end of its interval where times are shortest (0) or longest (1); None: as is
    end: int | None = None

    def of(self, result: Result) -> float | None:
        """The number that has to meet the target; None where the result has none."""
        value = self.measure.value(result)
        if value is None or self.end is None:
            return value
        ends = uncertainty.ends(result, self.measure.column)
        return ends[self.end if self.measure.sense == "min" else 1 - self.end]

    def is_met(self, result: Result) -> bool:
        """True when the result is at least as good as the target."""
        value = self.of(result)
        if value is None:
            return False
        return value >= self.value if self.measure.sense == "max" else value <= self.value

    def distance(self, value: float) -> float:
        """Logarithm of value over target, from 0 on where the target is met."""
        ratio = value / self.value
        ratio = math.log(ratio) if ratio > 0 else -math.inf
        return ratio if self.measure.sense == "max" else -ratio

    def text(self) -> str:
        """The target as a condition."""
        return f"{'at least' if self.measure.sense == 'max' else 'at most'} {self.measure.text(self.value)}"


#: smallest target, far below what any device reaches; the chance of meeting a smaller one is beyond a float
LEAST_TARGET = 1e-9


def target(tokens_per_s: float | None = None, step_ms: float | None = None) -> Target:
    """The target behind `--throughput` or `--step-ms`. Raises InputError unless exactly one is given, above 0."""
    options = [("throughput", tokens_per_s, 1.0), ("step-ms", step_ms, units.to_base(1, "ms"))]
    chosen = [(name, value, size) for name, value, size in options if value is not None]
    if len(chosen) != 1:
        raise InputError("target: give one of --throughput (tok/s) and --step-ms")
    name, value, size = chosen[0]
    if not LEAST_TARGET <= value < 1e15:
        raise InputError(f"{name} = {show(value)}: must be from {LEAST_TARGET:g} to below 1e15")
    return Target(MEASURES["throughput" if name == "throughput" else "step"], value * size)


@dataclass(frozen=True, repr=False)
class Need(QuestionAnswer):
    """The answer for a number of the device. `value` is None where no value meets the target."""

    what: str
    unit: str
    target: Target
    context: str
    design: str
    #: the device's own value
    given: float
    value: float | None
    #: at the answer, or where there is none at the end of the search
    result: Result
    #: at the next smaller value
    result_below: Result | None
    #: computes the points of `curve`, of which a figure alone has need
    draw: Callable[[], pd.DataFrame]
    #: what capacity keeps from the answer, in endless memory; None where capacity does not bind
    with_room: Result | None = None
    #: searches the ends of `interval`, and evaluates the device as it is
    search_ends: Callable[[], tuple[float | None, float | None]] = lambda: (None, None)
    as_given: Callable[[], Result | None] = lambda: None

    @cached_property
    def interval(self) -> tuple[float | None, float | None]:
        """The smallest where times are at the low and at the high end of their interval; None where none would do."""
        return self.search_ends()

    @cached_property
    def given_chance(self) -> float | None:
        """The chance that the device as it is meets the target; None where it does not run."""
        result = self.as_given()
        return None if result is None else self.target.measure.chance(result, self.target.value)

    @cached_property
    def curve(self) -> pd.DataFrame:
        """The measure around the answer, a row per value; computed once it is asked for."""
        return self.draw()

    @property
    def table(self) -> pd.DataFrame:
        """`curve`: the measure around the answer, a row per value."""
        return self.curve

    @property
    def binding(self) -> str:
        """The bottleneck of a smaller value, or of any value where none will do: a name of `bound`, or capacity."""
        if self.what == "capacity" and self.value is not None:
            return "capacity"
        return _binding(self.result, self.target)

    def to_json(self) -> dict[str, Any]:
        """Plain data in base units."""
        measure = self.target.measure
        return {
            "question": f"need {self.what}",
            "context": self.context,
            "quantizer": self.design,
            "batch": self.result["batch"],
            "input_tokens": self.result["input_tokens"],
            "output_tokens": self.result["output_tokens"],
            "measure": measure.column,
            "target": self.target.value,
            "can_be_met": self.value is not None,
            "value": self.value,
            "unit": self.unit,
            "given": self.given,
            "interval": list(self.interval),
            "chance_as_given": self.given_chance,
            "measure_at_value": measure.value(self.result),
            "binding": self.binding,
            "why": self.why(),
            "measure_below": measure.value(self.result_below) if self.result_below else None,
            "assumptions": assumption_text([self.result], self.target.measure),
        }

    def why(self) -> str:
        """The bottleneck of a smaller value, or of any value where none will do, as a sentence."""
        measure = self.target.measure
        if self.value is None:
            at = "in any memory" if self.what == "capacity" else f"at infinite {NUMBERS[self.what][1]}"
            value = measure.value(self.result)
            reached = f"still {measure.text(value)}" if value is not None else "the batch never runs at once"
            return f"{at} {reached}: {_reason(self.result, self.target, self.with_room)}"
        below = self.result_below
        if below is None:
            return "the smallest that the search knows meets it"
        if not below["feasible"]:
            return f"less does not run at all: {below['infeasible_reason']}"
        if self.what == "capacity":
            few, many = below["running_batch"], self.result["running_batch"]
            if measure.name == "step":
                return f"a byte less and the whole batch no longer runs at once: {below['max_batch']:,} do"
            return f"a byte less and {few:,} instead of {many:,} requests run at once: {measure.text(_of(below))}"
        return f"any less misses the target; what binds there is {_reason(self.result, self.target, self.with_room)}"

    def text(self) -> str:
        """The answer in words."""
        name = NUMBERS[self.what][1]
        load = f"batch {self.result['batch']:,}, {self.result['input_tokens']:,} in"
        head = f"Smallest {name} for {self.target.text()} ({self.target.measure.title})"
        lines = [head, f"{self.context}, {self.design}, {load}", ""]
        device_number = units.human(self.given, self.unit)
        if self.value is None:
            lines.append(f"  cannot be met: {self.why()}")
            lines.append(f"  the device has {device_number}{self._chance_text()}")
        else:
            share = self.value / self.given
            device_number += f" of the device{self._chance_text()}"
            lines.append(f"  {units.human(self.value, self.unit)}  ({share:.4g} x the {device_number})")
            lines.append(f"  gives {self.target.measure.text(self.target.measure.value(self.result))}")
            lines.append(f"  what stops a smaller one: {self.why()}")
        lines.append(f"  {self.sure_text()}")
        return "\n".join([*lines, "", assumption_text([self.result], self.target.measure)])

    def _chance_text(self) -> str:
        chance = self.given_chance
        return "" if chance is None else f", which meets it with a chance of {sure_text(chance)}"

    def sure_text(self) -> str:
        """Between which values 8 of 10 measurements would put the smallest."""
        low, high = (None if end is None else units.human(end, self.unit) for end in self.interval)
        if low is None:
            return "80 % interval: no value will do, whatever times really are"
        rest = "nothing will do" if high is None else high
        return f"80 % interval: {low}, if times are at the low end of theirs, to {rest}, if at the high end"


def _of(result: Result) -> float | None:
    value = result["throughput_tokens_per_s"]
    return None if value is None else float(value)


def _binding(result: Result, target: Target) -> str:
    if not result["feasible"] or (target.measure.name == "step" and not result["fits_whole_batch"]):
        return "capacity"
    return str(result["bound"])


def _reason(result: Result, target: Target, with_room: Result | None = None) -> str:
    """The bottleneck of a result, as text. `with_room`: the same in endless memory."""
    if not result["feasible"]:
        return f"capacity: {result['infeasible_reason']}"
    if _binding(result, target) == "capacity":
        n = result["running_batch"] if target.measure.name == "throughput" else result["max_batch"]
        if with_room is not None:
            rate = target.measure.text(target.measure.value(with_room))
            how = engine.room_text(rate, with_room)
        else:
            how = "`dse ask need capacity` says what is missing"
        return f"capacity: {n:,} of {result['batch']:,} requests run at once; {how}"
    return engine.bound_text(result["bound"])


def smallest(design: Candidate, work: Workload, what: str, goal: Target, progress: Progress | None = None) -> Need:
    """The smallest bandwidth (B/s), capacity (B) or peak FLOP/s with which `work` meets the goal; a batch that is not
    given is as many requests as fit the device as it is.

    The search ends at neighbouring numbers (floats, whole bytes): the value meets the goal, the next smaller does not.
    More of each never hurts, so it is the smallest. Raises InputError for an unknown `what`.
    """
    is_full = work.batch is None
    work = filled(design.device, design.plan, work)
    if what not in NUMBERS:
        raise InputError(f"need {show(what)}: {did_you_mean(what, [*NUMBERS, 'bits'])}")
    field = NUMBERS[what][0]
    given = float(getattr(design.device, field).si)
    if what == "capacity" and lower.memory_counted(design.device, work) == "server":
        given = float(design.device.reported_bytes)

    def at(value: float) -> Result:
        return Candidate(varied(design.device, what, value), design.plan).evaluate(work)

    is_whole = what == "capacity"
    lowest, endless = (1, engine.ROOM_BYTES) if is_whole else (_key(LOWEST), _key(ENDLESS))
    of: Callable[[int], float] = (lambda key: key) if is_whole else _number

    def search(goal: Target, progress: Progress | None = None) -> tuple[int | None, int | None]:
        """Keys of the smallest value that meets a goal and of the next smaller one; None where there is none."""
        if not goal.is_met(at(of(endless))):
            return None, endless
        if goal.is_met(at(of(lowest))):
            return lowest, None

        def off(key: int) -> float | None:
            """`Target.distance` of a key; None where nothing runs."""
            number = goal.of(Candidate(varied(design.device, what, of(key)), design.plan).speed(work))
            return None if number is None else goal.distance(number)

        low, high = _neighbours(off, lowest, endless, int(given) if is_whole else _key(given), progress)
        return high, low

    key, key_below = search(goal, progress)
    value = None if key is None else of(key)
    best = at(of(endless if key is None else key))
    below = at(of(key_below)) if key is not None and key_below is not None else None

    def search_ends() -> tuple[float | None, float | None]:
        low, high = (search(replace(goal, end=end))[0] for end in (0, 1))
        return None if low is None else of(low), None if high is None else of(high)

    ends = [given, *([value] if value is not None else [])]
    with_room = None
    if what != "capacity" and _binding(best, goal) == "capacity":  # of what misses the goal: a step below the answer
        smaller = varied(design.device, what, of(lowest if key_below is None else key_below))
        roomy = Candidate(smaller, design.plan).roomy().evaluate(work)
        with_room = roomy if roomy["fits_whole_batch"] else None
    return Need(
        what=what,
        unit=units.base_of(getattr(design.device, field).unit),
        target=goal,
        context=context(design.device, design.plan.model, work, best, is_full),
        design=design.name,
        given=given,
        value=value,
        result=best,
        result_below=below,
        draw=lambda: _curve(at, what, goal, ends),
        with_room=with_room,
        search_ends=search_ends,
        as_given=lambda: at(given),
    )


def _neighbours(
    off: Callable[[int], float | None], low: int, high: int, first: int, progress: Progress | None
) -> tuple[int, int]:
    """Neighbouring keys, the lower of which misses the goal (`off` below 0, or None) and the higher meets it.

    `low` must miss it and `high` meet it. Where the distances of both ends are known a straight line says where the
    goal is (the Illinois rule); what does not halve the gap in three steps is followed by a half.
    """
    at_low: float | None = None
    at_high: float | None = None
    probe, side, gap, n_slow = min(max(first, low + 1), high - 1), 0, high - low, 0
    for n_steps in each(range(MAX_LINES + high.bit_length()), progress, "searching"):  # enough to halve down to one
        if high - low <= 1:
            break
        distance = off(probe)
        is_met = distance is not None and distance >= 0
        low, at_low, high, at_high = (low, at_low, probe, distance) if is_met else (probe, distance, high, at_high)
        repeated, side = side == (1 if is_met else -1), 1 if is_met else -1
        if repeated:  # the end that stays counts half, so that the next line ends beyond the goal
            at_low, at_high = (_half(at_low), at_high) if is_met else (at_low, _half(at_high))
        n_slow, gap = (n_slow + 1, gap) if 2 * (high - low) > gap else (0, high - low)
        probe = (low + high) // 2
        finite = at_low is not None and at_high is not None and math.isfinite(at_low - at_high)
        if finite and n_slow < 3 and n_steps < MAX_LINES:
            line = low + int(at_low / (at_low - at_high) * (high - low))  # type: ignore[operator]
            probe = min(max(line, low + 1), high - 1)
        elif n_slow >= 3:
            n_slow = 0
    return low, high


def _half(distance: float | None) -> float | None:
    return None if distance is None else distance / 2


def varied(device: HardwareSpec, what: str, value: float) -> HardwareSpec:
    """The device with another bandwidth, capacity or peak FLOP/s."""
    changed = with_number(device, NUMBERS[what][0], value, "inverse design")
    return changed.with_memory(changed.memory_capacity) if what == "capacity" else changed


def _curve(at: Callable[[float], Result], what: str, goal: Target, ends: list[float]) -> pd.DataFrame:
    """The measure around the answer, a row per value; missing where the workload does not run."""
    low, high = min(ends) / REACH, max(ends) * REACH
    steps = [low * (high / low) ** (i / (N_CURVE - 1)) for i in range(N_CURVE)]
    rows = []
    for value in sorted({*ends, *(float(int(step)) if what == "capacity" else step for step in steps)}):
        result = at(value)
        ends_of = goal.measure.ends(result) or (None, None)
        rows.append(
            {
                NUMBERS[what][0]: value,
                goal.measure.column: goal.measure.value(result),
                "low": ends_of[0],
                "high": ends_of[1],
                "running_batch": result["running_batch"],
                "bound": result["bound"],
                "meets": goal.is_met(result),
            }
        )
    return pd.DataFrame(rows)


def _key(value: float) -> int:
    """The bits of a positive float as an integer: neighbouring floats are neighbouring integers."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _number(key: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", key))[0])


@dataclass(frozen=True, repr=False)
class NeedBits(QuestionAnswer):
    """The answer for bits: every candidate, the most stored bits first. `best` is None where none meets the target."""

    target: Target
    context: str
    #: None: of each as many requests as fit
    batch: int | None
    input_tokens: int
    candidates: tuple[Result, ...]
    best: Result | None
    #: the candidate with the next more bits, which misses the target
    above: Result | None
    #: what capacity keeps from that one, or where none meets it from the best of all; None where it does not bind
    with_room: Result | None = None

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per quantizer: bits, the measure with the ends of its interval, whether it meets the target and how
        likely really, what binds."""
        names = ["quantizer", "stored_bits", "effective_bits", "max_batch", "running_batch", "bound"]
        names += [self.target.measure.column, "low", "high", "meets", "chance"]
        return pd.DataFrame(self._rows(), columns=names)

    def _rows(self) -> list[Result]:
        """The candidates, each with the measure, its interval, and whether it meets the target."""
        measure, target = self.target.measure, self.target
        return [
            {
                **result,
                measure.column: measure.value(result),
                "interval": ends,
                "low": ends and ends[0],
                "high": ends and ends[1],
                "meets": target.is_met(result),
                "chance": measure.chance(result, target.value),
            }
            for result in self.candidates
            for ends in (measure.ends(result),)
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain data in base units."""
        measure = self.target.measure
        names = ["quantizer", "stored_bits", "effective_bits", "bound", measure.column]
        names += ["runs", "meets", "interval", "chance"]
        return {
            "question": "need bits",
            "context": self.context,
            "batch": self.batch,
            "input_tokens": self.input_tokens,
            "measure": measure.column,
            "target": self.target.value,
            "can_be_met": self.best is not None,
            "value": self.best["stored_bits"] if self.best else None,
            "unit": "bit",
            "quantizer": self.best["quantizer"] if self.best else None,
            "why": self.why(),
            "candidates": [{name: row[name] for name in names} for row in self._rows()],
            "assumptions": assumption_text(self.candidates, self.target.measure),
        }

    def why(self) -> str:
        """The bottleneck of more bits, or of any format where none will do."""
        measure = self.target.measure
        if self.best is None:
            top = _top(self.candidates, self.target)
            reason = _reason(top, self.target, self.with_room)
            if measure.value(top) is None:
                return f"no quantizer runs this: {reason}"
            return f"the best is {top['quantizer']}: {measure.text(measure.value(top))}, {reason}"
        if self.above is None:
            return "no quantization is needed: the most bits of all meet it"
        value = measure.text(measure.value(self.above))
        name = f"{self.above['quantizer']} ({self.above['stored_bits']:.3g} bits)"
        return f"{name}: {value}, {_reason(self.above, self.target, self.with_room)}"

    def asked(self) -> str:
        """Batch and prompt in words."""
        batch = "each its own batch" if self.batch is None else f"batch {self.batch:,}"
        return f"{batch}, {self.input_tokens:,} in"

    def text(self) -> str:
        """The answer and all candidates."""
        measure = self.target.measure
        head = f"Most stored bits for {self.target.text()} ({measure.title}): more bits, less error"
        lines = [head, f"{self.context}, {self.asked()}", ""]
        if self.best is None:
            lines.append(f"  cannot be met: {self.why()}")
        else:
            chance = measure.chance(self.best, self.target.value)
            sure = "" if chance is None else f", which meets it with a chance of {sure_text(chance)}"
            lines.append(f"  {self.best['stored_bits']:.4g} bits: {self.best['quantizer']}{sure}")
            lines.append(f"  what stops more: {self.why()}")
        width = max(len(r["quantizer"]) for r in self.candidates)
        lines += ["", "  In percent: the chance that a measurement meets it."]
        for r in self.candidates:
            met = ("meets" if self.target.is_met(r) else "misses") if competes(r) else NOT_RUN
            bound, chance = r["infeasible_reason"] or r["bound"], measure.chance(r, self.target.value)
            sure = "" if chance is None else sure_text(chance)
            lines.append(
                f"  {r['stored_bits']:7.4g} bits  {r['quantizer']:<{width}}  {met:<7}  "
                f"{measure.text(measure.value(r)):>14}  {sure:>9}  {bound}"
            )
        notes = [*filter(None, [refused_text(self.candidates)]), assumption_text(self.candidates, self.target.measure)]
        return "\n".join([*lines, "", *notes])


def _top(candidates: Sequence[Result], target: Target) -> Result:
    """The candidate that comes closest to the target; of none that runs the one with fewest bits."""
    valued = [r for r in candidates if target.measure.value(r) is not None]
    runs = [r for r in valued if competes(r)] or valued
    sign = -1 if target.measure.sense == "max" else 1
    return min(runs, key=lambda r: sign * (target.measure.value(r) or 0.0)) if runs else candidates[-1]


#: formats that are chosen from in another width too
WIDER = {"kivi": "kivi:bits=4", "sinkq": "sinkq:bits=4"}


def candidates(device: HardwareSpec, model: ModelSpec, work: Workload, bits: Bits = CLOSED) -> list[Candidate]:
    """Default candidates: 16 bits, and every format that `formats` compares with them."""
    known = [candidate.name for candidate in formats.candidates(device, model, work, bits)[0]]
    names = [formats.PLAIN, *known, *(wide for name, wide in WIDER.items() if name in known)]
    return [design(device, model, name, bits=bits) for name in names]


def most_bits(designs: Sequence[Candidate], work: Workload, goal: Target, progress: Progress | None = None) -> NeedBits:
    """Find the design (one device and model, several quantizers) with most stored bits that meets the goal.

    Fewer bits mean more error, so the question is how many may be kept. Of equal bits the better measure counts.
    """
    if not designs:
        raise InputError("quantizers = []: must name at least one")
    designs_of = [(design.evaluate(work), design) for design in each(list(designs), progress, "quantizers")]
    sign = 1 if goal.measure.sense == "max" else -1
    designs_of.sort(
        key=lambda pair: (-pair[0]["stored_bits"], -sign * (goal.measure.value(pair[0]) or 0.0), pair[0]["quantizer"])
    )
    results = [result for result, _ in designs_of]
    best = next((i for i, result in enumerate(results) if competes(result) and goal.is_met(result)), None)
    first = designs[0]
    shown = _top(results, goal) if best is None else results[best - 1]  # what misses the target, and is said why
    of = next(design for result, design in designs_of if result is shown)
    with_room = engine.with_room(Point(of.device, of.plan, work)) if best != 0 else None
    return NeedBits(
        target=goal,
        context=context(first.device, first.plan.model, work, results[0], work.batch is None),
        batch=work.batch,
        input_tokens=work.input_tokens,
        candidates=tuple(results),
        best=None if best is None else results[best],
        above=results[best - 1] if best else None,
        with_room=with_room,
    )
