"""Doubt: which number, inside its stated range, moves a result most, or changes which of two designs wins."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dse.core import units
from dse.core.errors import InputError, did_you_mean, show
from dse.core.progress import Progress
from dse.core.units import number_and_unit
from dse.model import assumptions, implementations, kernels, kv_layout, lower, stacks
from dse.model.kv_layout import KvPlan
from dse.model.point import filled
from dse.questions.common import THROUGHPUT, Candidate, Measure, Result, context, lookup, number_problem, with_number
from dse.questions.effects import Effect, Effects, Number, answer_of, as_given, effects_of, range_text, winner_of
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
#: factors of bandwidth and FLOP/s by kind of times: at the peaks, as fitted kernels of the shipped GPUs reach 0.52 to
#: 0.96 and 0.57 to 1 of them; estimated, the ends of what devices reach over its middle
_REACHED = {"memory_bandwidth": kernels.REACHED_BANDWIDTH, "peak_flops": kernels.REACHED_COMPUTE}
FACTORS: dict[str, tuple[dict[str, tuple[float, ...]], str]] = {
    "ideal": (dict.fromkeys(_REACHED, (0.5, 1.0)), "peak rates: kernels reach half to all of it"),
    "estimated": (
        {name: tuple(2 * end / sum(ends) for end in ends) for name, ends in _REACHED.items()},
        "no measured kernels: what measured devices reach of it",
    ),
}
#: numbers that are whole
WHOLE = ("memory_capacity", "token_cores", "array_rows", "kv_page", "kv_burst")
#: numbers that are shares of one
SHARES = ("usable_frac", "memory_frac", "flops_frac", "index_frac")
#: how names of numbers of implementations begin
KERNELS = "implementations."


@dataclass(frozen=True, repr=False)
class Doubt(Effects):
    """The answer: effects of the ranges, the largest first."""

    def question(self) -> str:
        """The head of the text."""
        return f"What makes {self.measure.title} unsure, and by how much?"

    def name(self) -> str:
        """The question's name in JSON."""
        return "doubt"

    def lines(self) -> list[str]:
        """A line per number that moves the result."""
        ranges = [range_text(effect.number) for effect in self.moving]
        width = max((len(effect.number.name) for effect in self.moving), default=0)
        range_width = max(map(len, ranges), default=0)
        lines = []
        for effect, text in zip(self.moving, ranges, strict=True):
            ends = f"{self.measure.text(effect.at_low)} to {self.measure.text(effect.at_high)}"
            line = f"  {effect.number.name:<{width}}  {text:<{range_width}}  {effect.number.kind:<9}  {ends}"
            lines.append(f"{line}  {self.flip_text(effect)}".rstrip())
        return lines


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
    optional = ["token_cores", "array_rows"]
    optional += ["quantize_rate", "kv_page", "kv_burst"] if "engine" in used else []
    optional += ["peak_ops_int8", "peak_flops_fp8"] if work.activation_bits < units.FP16_BITS else []
    names += [name for name in optional if lookup(device, name)]
    names += {"energy": ["board_power"], "cost": ["usd_per_hour"]}.get(measure.name, [])
    numbers = [
        _number(
            device, name, lookup(device, name) or device.rate(name.removesuffix("_rate")), stacks.kind_of(stack, work)
        )
        for name in names
    ]
    if stack is None:
        return numbers
    if device.core_clock and any(assumptions.counts_cycles(plan, paths) for plan, paths in laid_out):
        numbers.append(_number(device, "core_clock", device.core_clock, "calibrated"))
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
    borrowed: dict[str, Any] = {}
    if not device.stacks:
        borrowed = {"stacks": catalog.device(stacks.DEFAULT_STACKS_OF).stacks, "stacks_of": stacks.DEFAULT_STACKS_OF}
    known = borrowed.get("stacks", device.stacks)
    if stack.host:
        known = {**known, stack_name: StackSpec(**{part: getattr(stack, part) for part in StackSpec.model_fields})}
    return device.model_copy(update={**borrowed, "stacks": known})


def _of_kernels(plans: Sequence[KvPlan], work: Workload, stack: StackSpec) -> list[Number]:
    """Achieved rates of the quantizers' kernels, within their own ranges; none for plans by layer."""
    by_key = {
        kernel.key: kernel
        for plan in plans
        if not (plan.key_quantizer.layers or plan.value_quantizer.layers)
        for kernel in implementations.ranged(plan, work, stack)
    }
    numbers = []
    for kernel in by_key.values():
        for field, number in kernel.numbers().items():
            low, high = (factor * number.si for factor in number.factors)
            rule = "range of its implementation"
            numbers.append(Number.of(f"{KERNELS}{kernel.key}.{field}", number, low, high, rule))
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
        numbers.append(Number.of(f"stacks.{stack_name}.host.{field}", number, low, high, rule))
    return numbers


def _number(device: HardwareSpec, name: str, quantity: Quantity, times: str) -> Number:
    value = quantity.si
    low, high = (factor * value for factor in quantity.factors)
    rule = f"kind {quantity.kind}"
    if name in BY_NAME:
        low, high, rule = BY_NAME[name]
        low, high = min(low, value), max(high, value)
    elif times in FACTORS and name in _REACHED:
        reached, rule = FACTORS[times]
        low, high = min(low, reached[name][0] * value), max(high, reached[name][1] * value)
    if name in WHOLE:
        low, high = float(int(low)), float(int(high))
    return Number.of(name, quantity, low, min(high, 1.0) if name in SHARES else high, rule)


def _fitted(name: str, quantity: Quantity, fit: Fit, stacks_of: str | None) -> Number:
    """A fitted parameter: within the error of its fit, or as assumed where the fit is another device's."""
    error = fit.serving_error if fit.serving_error is not None else fit.held_out_error
    low, high = BY_KIND[ASSUMED] if stacks_of else (max(1 - error, 0.1), 1 + error)
    rule = f"fitted on {stacks_of}: assumed here" if stacks_of else f"error of its fit: {100 * error:.3g} %"
    low, high = low * quantity.si, high * quantity.si
    high = min(high, 1.0) if name.endswith("_frac") else high
    return Number.of(name, quantity, low, high, rule, ASSUMED if stacks_of else None)


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
            if number.name.startswith(KERNELS):
                continue
            if problem := number_problem(device, number.name, si):
                raise InputError(f"range = {show(text)}: {number.name} = {units.human(si, number.unit)}: {problem}")
        numbers_by_name[hits[0]] = replace(number, low=low, high=high, rule="as given")
    return list(numbers_by_name.values())


def _end(text: str, end: str, number: Number) -> float:
    is_factor = end.startswith("x")
    try:
        parsed = number_and_unit(end.removeprefix("x"))
    except ValueError as error:
        raise InputError(f"range = {show(text)}: {show(end)} {error}") from None
    if not parsed or parsed[0] < 0 or (is_factor and parsed[1]):
        raise InputError(f"range = {show(text)}: {show(end)} must be a factor (x0.5) or a value with its unit")
    value, unit = parsed[0], parsed[1] or number.unit
    if is_factor:
        si = value * number.value
    else:
        if unit not in units.UNITS or units.base_of(unit) != number.unit:
            raise InputError(f"range = {show(text)}: unit must be one of {', '.join(units.units_of(number.unit))}")
        si = units.to_base(value, unit)
    return float(int(si)) if number.name in WHOLE and math.isfinite(si) else si


def doubt(
    design: Candidate,
    work: Workload,
    measure: Measure = THROUGHPUT,
    other: Candidate | None = None,
    ranges: Iterable[str] = (),
    progress: Progress | None = None,
    as_measured: Sequence[Candidate] = (),
) -> Doubt:
    """Vary every number that the result rests on inside its range, one at a time; `other` runs on the same device.

    `as_measured` are the same designs with outliers and sinks as data had them: one more number, the stored bits.
    Ranges are those of `BY_KIND`, `BY_NAME`, a fit's stated error, or as given. Where the winner at an end of a range
    differs from the one as given, `flips_at` is where it changes, by halving. Raises InputError where the design does
    not run as given, or the device lacks what the measure needs.
    """
    designs = [design] if other is None else [design, other]
    is_full, device = work.batch is None, with_stacks(design.device, work)
    given = with_ranges(numbers(designs, work, measure), ranges, device)
    work = filled(design.device, design.plan, work)
    base = as_given(designs, work, measure)

    def evaluated(name: str, si: float) -> list[float | None]:
        if name.startswith(KERNELS):
            key, _, field = name.removeprefix(KERNELS).rpartition(".")
            plans = [implementations.with_number(d.plan, device, work, key, field, si) for d in designs]
            return [measure.value(Candidate(device, plan).evaluate(work)) for plan in plans]
        varied = with_number(device, name, si, "varied")
        return [measure.value(Candidate(varied, d.plan).evaluate(work)) for d in designs]

    effects = effects_of(given, evaluated, designs, base, measure, progress)
    if as_measured:
        counted = [d.evaluate(work) for d in as_measured]
        values, pair = ([measure.value(result) for result in results] for results in (base, counted))
        winners = [winner_of(designs, computed, measure, base) for computed in (values, pair)]
        effects.append(_bits_effect(base, counted, values, pair, (winners[0], winners[1])))
    return answer_of(
        Doubt, designs, work, measure, base, effects, context(device, design.plan.model, work, base[0], is_full)
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
