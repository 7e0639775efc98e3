"""Sensitivity: which number, inside its stated range, moves a result most, or changes which of two designs wins."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from dse.core import units
from dse.core.errors import InputError, did_you_mean, show
from dse.model import assumptions, evaluate, implementations, kernels, kv_layout, lower, stacks
from dse.model.compare import Comparison
from dse.model.kv_layout import KvPlan
from dse.model.uncertainty import Gain
from dse.questions.common import (
    THROUGHPUT,
    Candidate,
    Measure,
    Progress,
    QuestionAnswer,
    Result,
    assumption_text,
    context,
    each,
    lookup,
    number_problem,
    sure_text,
    with_number,
)
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec
from dse.specs.measurements import bits_from
from dse.specs.quantity import ASSUMED, BY_KIND, Quantity
from dse.specs.stack import Fit, HostFit, StackSpec
from dse.specs.workload import Workload

#: ranges of numbers that a factor does not suit, in base units; assumed
BY_NAME = {
    "usable_frac": (0.8, 1.0, "serving stacks leave 0 to 20 % of the memory (vLLM's default: 10 %)"),
    "runtime_overhead": (0.0, 4e9, "0 to 4 GB of runtime, graphs and buffers"),
}
#: share of its peak that the ideal model's bandwidth and FLOP/s may reach: fitted kernels of the shipped GPUs reach
#: 0.52 to 0.96 of the bandwidth and 0.57 to 1 of the FLOP/s
PEAK_REACHED = (0.5, 1.0)
#: numbers that are whole
WHOLE = ("memory_capacity", "token_cores", "kv_page", "kv_burst")
#: numbers that are shares of one
SHARES = ("usable_frac", "memory_frac", "flops_frac", "index_frac")
#: how names of numbers of implementations begin
_KERNELS = "implementations."
#: halvings to the value at which the winner changes
N_HALVINGS = 60


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


@dataclass(frozen=True)
class Sensitivity(QuestionAnswer):
    """The answer: effects, the largest first."""

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
            "question": "sensitivity",
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
            "sure": self.gain and self.gain.confidence,
            "effects": [
                {**asdict(effect), "span": span if (span := effect.span(self.base)) != float("inf") else None}
                for effect in self.effects
            ],
            "assumptions": self.assumptions,
        }

    def text(self) -> str:
        """A line per number that moves the result, the others in one."""
        m = self.measure
        lines = [f"What moves {m.title}, and by how much?", f"{self.context}, {self.design}", ""]
        lines.append(
            f"  {m.text(self.base)} as given{self._of(self.interval)}"
            + (
                f"; {self.other}: {m.text(self.other_base)}"
                + self._of(self.other_interval)
                + f"; better: {self.winner}"
                if self.other
                else ""
            )
        )
        if self.gain and self.winner != "tie":
            g = self.gain
            lines.append(
                f"  {sure_text(g.confidence)} sure that {self.winner} is better: {self.design} is "
                f"{g.ratio:.2f} ({g.low:.2f} to {g.high:.2f}) times as good as {self.other}"
            )
        moving = [e for e in self.effects if e.span(self.base) > 0 or e.flips_at]
        width = max([len(e.number.name) for e in moving], default=0)
        ranges = [range_text(e.number) for e in moving]
        range_width = max(map(len, ranges), default=0)
        for effect, text in zip(moving, ranges, strict=True):
            ends = f"{m.text(effect.at_low)} to {m.text(effect.at_high)}"
            line = f"  {effect.number.name:<{width}}  {text:<{range_width}}  {effect.number.kind:<9}  {ends}"
            if self.other:
                line += f"  {self._flip_text(effect)}"
            lines.append(line.rstrip())
        still = [e.number.name for e in self.effects if e not in moving]
        if still:
            lines += ["", f"Without effect inside their ranges: {', '.join(still)}."]
        return "\n".join([*lines, "", self.assumptions])

    def _of(self, interval: tuple[float, float] | None) -> str:
        return f" ({self.measure.ends_text(interval)})" if interval else ""

    def _flip_text(self, effect: Effect) -> str:
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


def numbers(designs: Sequence[Candidate], work: Workload, measure: Measure) -> list[Number]:
    """Every number of the device that the measure of the designs (of one device) rests on, with its range."""
    device = with_stacks(designs[0].device, work)
    stack_name, stack = stacks.stack_of(device, work)
    is_server = lower.memory_counted(device, work) == "server"  # which has its own share, graphs and buffers
    names = ["memory_bandwidth", "memory_capacity", "peak_flops"]
    names += ["kernel_launch"] if is_server else ["usable_frac", "runtime_overhead", "kernel_launch"]
    laid_out = [lower.laid_out(device, d.plan, work) for d in designs]
    used = {path for _, paths in laid_out for path in paths.values()}
    names += [f"{path}_rate" for path in ("engine", "fused") if path in used]
    optional = ["token_cores", *(("kv_page", "kv_burst") if "engine" in used else ())]
    optional += ["peak_ops_int8", "peak_flops_fp8"] if work.activation_bits < units.FP16_BITS else []
    names += [name for name in optional if lookup(device, name)]
    names += {"energy": ["board_power"], "cost": ["usd_per_hour"]}.get(measure.name, [])
    numbers = [
        _number(device, name, lookup(device, name) or device.rate(name.removesuffix("_rate")), not stack)
        for name in names
    ]
    if stack is None:
        return numbers
    if device.core_clock and any(assumptions.counts_cycles(plan, paths) for plan, paths in laid_out):
        numbers.append(_number(device, "core_clock", device.core_clock, False))
    numbers += _of_kernels([plan for plan, _ in laid_out], work, stack)
    runs = set().union(*(kernels.fits_used(plan, paths, work, stack) for plan, paths in laid_out))
    for place, fit in stack.fits().items():
        if place not in runs:
            continue
        for field, quantity in fit.quantities().items():
            name = f"stacks.{stack_name}.{place}.{field}"
            numbers.append(_fitted(name, quantity, fit, device.stacks_of))
    return [*numbers, *(_of_host(stack_name, stack.host, work) if stack.host and stack_name else ())]


def with_stacks(device: HardwareSpec, work: Workload) -> HardwareSpec:
    """The device with the stack it is run by in its own file, what it borrows and its server's time included, so that
    all of their numbers can be varied."""
    stack_name, stack = stacks.stack_of(device, work)
    if stack is None or stack_name is None:
        return device
    own: dict[str, Any] = {}
    if not device.stacks:
        own = {"stacks": catalog.device(stacks.DEFAULT_STACKS_OF).stacks, "stacks_of": stacks.DEFAULT_STACKS_OF}
    known = own.get("stacks", device.stacks)
    if stack.host:
        known = {**known, stack_name: StackSpec(**{part: getattr(stack, part) for part in StackSpec.model_fields})}
    return device.model_copy(update={**own, "stacks": known})


def _of_kernels(plans: Sequence[KvPlan], work: Workload, stack: StackSpec) -> list[Number]:
    """Achieved rates of the quantizers' kernels, within their own ranges; none for plans by layer."""
    own = {
        one.name: one
        for plan in plans
        if not (plan.key_quantizer.layers or plan.value_quantizer.layers)
        for one in implementations.ranged(plan, work, stack)
    }
    numbers = []
    for one in own.values():
        for field, number in one.numbers().items():
            low, high = (factor * number.si for factor in number.factors)
            name, unit = f"{_KERNELS}{one.name}.{field}", units.base_of(number.unit)
            rule = "range of its implementation"
            numbers.append(
                Number(
                    name=name,
                    value=number.si,
                    low=low,
                    high=high,
                    unit=unit,
                    kind=number.kind,
                    rule=rule,
                    source=number.source,
                )
            )
    return numbers


def _of_host(stack_name: str, host: HostFit, work: Workload) -> list[Number]:
    """Host times of a server: of no release in particular, within the values fitted to its releases."""
    server, numbers = catalog.servers().get(stack_name), []
    for field in ("layer", "sequence"):
        number: Quantity = getattr(host, field)
        low, high = (factor * number.si for factor in number.factors)
        rule = f"kind {number.kind}"
        if server and "@" not in (work.stack or "") and server.releases:
            ends = [getattr(release, field).si for release in server.releases.values()]
            low, high = min(*ends, number.si), max(*ends, number.si)
            rule = f"releases of {server.title or stack_name} that were measured"
        name = f"stacks.{stack_name}.host.{field}"
        numbers.append(
            Number(
                name=name,
                value=number.si,
                low=low,
                high=high,
                unit=units.base_of(number.unit),
                kind=number.kind,
                rule=rule,
                source=number.source,
            )
        )
    return numbers


def _number(device: HardwareSpec, name: str, quantity: Quantity, is_ideal: bool) -> Number:
    unit, value = units.base_of(quantity.unit), quantity.si
    low, high = (factor * value for factor in quantity.factors)
    rule = f"kind {quantity.kind}"
    if name in BY_NAME:
        low, high, rule = BY_NAME[name]
        low, high = min(low, value), max(high, value)
    elif is_ideal and name in ("memory_bandwidth", "peak_flops"):
        low, high = min(low, PEAK_REACHED[0] * value), max(high, PEAK_REACHED[1] * value)
        rule = "peak rates: kernels reach half to all of it"
    if name in WHOLE:
        low, high = float(int(low)), float(int(high))
    return Number(
        name=name,
        value=value,
        low=low,
        high=min(high, 1.0) if name in SHARES else high,
        unit=unit,
        kind=quantity.kind,
        rule=rule,
        source=quantity.source,
    )


def _fitted(name: str, quantity: Quantity, fit: Fit, stacks_of: str | None) -> Number:
    """A fitted parameter: within the error of its fit, or as assumed where the fit is another device's."""
    error = fit.serving_error if fit.serving_error is not None else fit.held_out_error
    low, high = BY_KIND[ASSUMED] if stacks_of else (max(1 - error, 0.1), 1 + error)
    rule = f"fitted on {stacks_of}: assumed here" if stacks_of else f"error of its fit: {100 * error:.3g} %"
    ends = (low * quantity.si, high * quantity.si)
    top = min(ends[1], 1.0) if name.endswith("_frac") else ends[1]
    kind = ASSUMED if stacks_of else quantity.kind
    return Number(
        name=name,
        value=quantity.si,
        low=ends[0],
        high=top,
        unit=units.base_of(quantity.unit),
        kind=kind,
        rule=rule,
        source=quantity.source,
    )


def with_ranges(numbers: Sequence[Number], texts: Iterable[str], device: HardwareSpec) -> list[Number]:
    """The numbers with the ranges given as NAME=LOW:HIGH, each end a factor (x0.5) or a value (1.6TB/s, 0.9).

    NAME may be the last part of a longer name (gemm.launch). Ends keep to the limits of a device file. Raises
    InputError.
    """
    numbers_by_name = {number.name: number for number in numbers}
    for text in texts:
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)=([^:]+):([^:]+)", text.strip())
        if not match:
            raise InputError(f"range = {show(text)}: must be NAME=LOW:HIGH, such as fused_rate=x0.5:x2")
        hits = [name for name in numbers_by_name if name == match[1] or name.endswith("." + match[1])]
        if len(hits) != 1:
            hint = f"means any of {', '.join(hits)}" if hits else did_you_mean(match[1], numbers_by_name)
            raise InputError(f"range = {show(text)}: {hint}")
        number = numbers_by_name[hits[0]]
        low, high = (_end(text, end.strip(), number) for end in (match[2], match[3]))
        if not low <= high:
            raise InputError(f"range = {show(text)}: must rise: give the smaller end first")
        for si in (low, high):
            if number.name.startswith(_KERNELS):
                continue
            if problem := number_problem(device, number.name, si):
                raise InputError(f"range = {show(text)}: {number.name} = {units.human(si, number.unit)}: {problem}")
        numbers_by_name[hits[0]] = Number(
            name=number.name,
            value=number.value,
            low=low,
            high=high,
            unit=number.unit,
            kind=number.kind,
            rule="as given",
            source=number.source,
        )
    return list(numbers_by_name.values())


def _end(text: str, end: str, number: Number) -> float:
    match = re.fullmatch(r"(x?)([0-9]++(?:\.[0-9]*+)?(?:[eE][-+]?[0-9]++)?)\s*(\S*)", end, re.ASCII)
    if not match or (match[1] and match[3]):
        raise InputError(f"range = {show(text)}: {show(end)} must be a factor (x0.5) or a value with its unit")
    if match[1]:
        si = float(match[2]) * number.value
    else:
        unit = match[3] or number.unit
        if unit not in units.UNITS or units.base_of(unit) != number.unit:
            raise InputError(f"range = {show(text)}: unit must be one of {', '.join(units.units_of(number.unit))}")
        si = units.to_base(float(match[2]), unit)
    return float(int(si)) if number.name in WHOLE and math.isfinite(si) else si


def sensitivity(
    design: Candidate,
    work: Workload,
    measure: Measure = THROUGHPUT,
    other: Candidate | None = None,
    ranges: Iterable[str] = (),
    progress: Progress | None = None,
    as_measured: Sequence[Candidate] = (),
) -> Sensitivity:
    """Vary every number that the result rests on inside its range, one at a time; `other` runs on the same device.

    `as_measured` are the same designs with outliers and sinks as data had them: one more number, the stored bits.
    Ranges are those of `BY_KIND`, `BY_NAME`, a fit's stated error, or as given. Where the winner at an end of a range
    differs from the one as given, `flips_at` is where it changes, by halving. Raises InputError where the design does
    not run as given, or the device lacks what the measure needs.
    """
    designs = [design] if other is None else [design, other]
    is_full = work.batch is None
    work = evaluate.filled(design.device, design.plan, work)
    device = with_stacks(design.device, work)
    base = [d.evaluate(work) for d in designs]
    values = [measure.value(result) for result in base]
    if values[0] is None:
        reason = base[0]["infeasible_reason"] or "the batch does not run at once, or the device lacks a number for it"
        raise InputError(f"measure = {measure.name}: {design.name} has none: {reason}")

    def measured(name: str, si: float) -> list[float | None]:
        if name.startswith(_KERNELS):
            one, _, field = name.removeprefix(_KERNELS).rpartition(".")
            plans = [implementations.with_number(d.plan, device, work, one, field, si) for d in designs]
            return [measure.value(Candidate(device, plan).evaluate(work)) for plan in plans]
        varied = with_number(device, name, si, "varied")
        return [measure.value(Candidate(varied, d.plan).evaluate(work)) for d in designs]

    def winner(pair: Sequence[float | None]) -> str:
        if other is None:
            return ""
        return design.name if measure.is_better(*pair) else other.name if measure.is_better(*pair[::-1]) else "tie"

    first = winner(values)
    effects = []
    for number in each(with_ranges(numbers(designs, work, measure), ranges, device), progress, "numbers"):
        ends = [measured(number.name, end) for end in (number.low, number.high)]
        winners = [winner(pair) for pair in ends]
        flips = []
        for end, name in zip((number.low, number.high), winners, strict=True):
            if name != first:
                flips.append(_flip(lambda si, n=number: winner(measured(n.name, si)) == first, number.value, end))  # type: ignore[misc]
        others = (ends[0][1], ends[1][1]) if other else (None, None)
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
    if as_measured:
        counted = [d.evaluate(work) for d in as_measured]
        pair = [measure.value(result) for result in counted]
        effects.append(_bits_effect(base, counted, values, pair, (first, winner(pair))))
    effects.sort(key=lambda effect: -effect.span(values[0]))
    return Sensitivity(
        measure=measure,
        context=f"{context(device, design.plan.model, work, base[0], is_full)}, batch {work.batch:,}, "
        f"{work.input_tokens:,} in",
        design=design.name,
        other=other.name if other else "",
        base=values[0],
        other_base=values[1] if other else None,
        winner=first,
        effects=tuple(effects),
        assumptions=assumption_text(base, measure),
        interval=measure.ends(base[0]),
        other_interval=measure.ends(base[1]) if other else None,
        gain=Comparison(measure.column).gain(design.at(work), other.at(work))
        if other and values[1] is not None
        else None,
    )


def with_measured_bits(design: Candidate, measurements: str | None = None) -> Candidate:
    """The design with measured shares of outliers and sinks, by default on the shipped sample."""
    measured = bits_from("measured", measurements)
    plan = design.plan
    sides = map(measured.attached, (plan.key_quantizer, plan.value_quantizer))
    return Candidate(design.device, kv_layout.build(plan.model, *sides))


def _bits_effect(
    base: Sequence[Result],
    counted: Sequence[Result],
    values: Sequence[float | None],
    pair: Sequence[float | None],
    winners: tuple[str, str],
) -> Effect:
    """The stored bits as one number: with nominal shares of outliers and sinks, or as measured."""
    bits = base[0]["stored_bits"], counted[0]["stored_bits"]
    rule = f"nominal outliers and sinks, or as measured on {counted[0]['measured_on'] or 'no data of this quantizer'}"
    number = Number(
        name="stored_bits",
        value=bits[0],
        low=min(bits),
        high=max(bits),
        unit="bit",
        kind=ASSUMED,
        rule=rule,
        source="dse quantize",
    )
    ends = list(zip((values, pair), winners, strict=True))
    if bits[1] < bits[0]:
        ends.reverse()
    (low, low_winner), (high, high_winner) = ends
    others = [side[1] if len(side) > 1 else None for side in (low, high)]
    flips = (bits[1],) if winners[0] != winners[1] else ()
    return Effect(
        number=number,
        at_low=low[0],
        at_high=high[0],
        other_at_low=others[0],
        other_at_high=others[1],
        winner_at_low=low_winner,
        winner_at_high=high_winner,
        flips_at=flips,
    )


def _flip(is_same: Callable[[float], bool], inside: float, outside: float) -> float:
    """A value between `inside`, where the winner is as given, and `outside`, where it is not, at which it changes."""
    for _ in range(N_HALVINGS):
        middle = (inside + outside) / 2
        if middle in (inside, outside):
            break
        inside, outside = (middle, outside) if is_same(middle) else (inside, middle)
    return outside
