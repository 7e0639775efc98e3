"""Uncertainty of times: the interval in which 8 of 10 measurements of a result should lie, and its derivation.

Of a server that was measured whole, what its measured rows were over our predictions: of the same model and release,
or, where no row of the model was fitted, of models that were left out of the fit. Of kernels alone, the errors of their
fits. Of a device known by its data sheet alone, what measured devices reach of theirs.
docs/explanation/model.md, How sure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from dse.model.kernels import MIDDLE_BANDWIDTH, MIDDLE_COMPUTE, REACHED_BANDWIDTH, REACHED_COMPUTE, benchmarked_as
from dse.model.kv_layout import KvPlan
from dse.model.results import RESULTS, with_interval
from dse.model.results.declare import ENERGY, PER_TOKEN, PROMPTS, RATES
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec
from dse.specs.implementation import ANY_GPU
from dse.specs.quantity import ASSUMED, BY_KIND
from dse.specs.stack import Fit, ServedStack, Spread, StackSpec
from dse.specs.workload import Workload

#: half the width of the 80 % interval of a normal distribution over its mean absolute error: 1.2816 / sqrt(2 / pi)
WIDTH_80 = 1.606
#: a device that runs by the kernels of another is known so much less, either way: of its generation, of another
#: generation, of another vendor, whose kernels are other programs. Assumed, all three
OTHER_DEVICE, OTHER_GENERATION, OTHER_VENDOR = 1.15, 1.3, 1.5
#: a release that nobody measured is off by so much, either way, beside what the nearest is: 260 rows of 8 measured
#: releases (whole_steps.csv) predicted by the nearest other, whose logarithms spread 0.395 (dense) and 0.57 (mixtures)
#: from the 10th to the 90th percentile, by their own 0.277 and 0.45
OTHER_RELEASE = 1.17
#: a burst is known so much less than a steady server, either way; and where all prompts come before all decoding, so
#: that the server's choice of how many to admit decides. Of 183 bursts of public benchmarks
BURST, PROMPTS_FIRST_BURST = 1.1, 1.6
#: times per output token and what grows with them; what falls as they grow; times of prompts
TOKEN_TIMES, TOKEN_RATES, FIRST_TIMES = (with_interval(kind) for kind in (PER_TOKEN, RATES, PROMPTS))
RATE = "throughput_tokens_per_s"
#: parts of the energy by bytes, operations and idling, and the number of the device that each is proportional to
ENERGY_PARTS = {
    "memory_joules_per_token": "energy_per_byte",
    "compute_joules_per_token": "energy_per_flop",
    "idle_joules_per_token": "idle_power",
}
#: rates whose ranges are results, and the beginning of their names
ENERGY_RANGES = {"energy_per_byte": "byte_energy", "energy_per_flop": "flop_energy"}
#: the energy by parts: the sum, then its parts
BY_PARTS = with_interval(ENERGY)
#: parts of a step whose kernels another quantizer has not
KV_PARTS = ("attention_s", "quantize_s", "dequantize_s")
#: a part of a step whose kernels weights of another format have not; and how many times as long, either way, products
#: take that others stand in for: 13 of 16 published gains of weights of servers lie within (implementations.md)
WEIGHT_PART, STAND_IN_WIDTH = "linear_s", 1.5
#: assumptions of products that others stand in for
STAND_INS = ("nearest_format", "eight_bit_kernels")
#: how a model is laid out over devices: under another layout other shapes run, and other exchanges
LAYOUT = ("tp", "pp", "ep", "dp_attention", "dcp")
#: results that a comparison reads beside the one that it compares
COMPARED = (
    "device",
    "stack",
    "model_kind",
    *LAYOUT,
    "weights",
    "key_quantizer",
    "value_quantizer",
    "tokens",
    "token_time_low",
    "token_time_high",
    "decode_step_s",
    WEIGHT_PART,
    *KV_PARTS,
    "unpack_rate_low",
    "unpack_rate_high",
    "assumptions",
)
#: results that `known_ends` reads beside a decode step and the value itself
READ = (
    "token_time_low",
    "token_time_high",
    "first_time_low",
    "first_time_high",
    "unpack_rate_low",
    "unpack_rate_high",
    "attention_s",
    "dequantize_s",
)


class Interval(NamedTuple):
    """Interval of measured / predicted, with its derivation."""

    low: float
    high: float
    why: str

    def inverse(self) -> "Interval":
        """Return the interval of the reciprocal."""
        return Interval(1 / self.high, 1 / self.low, self.why)


class Intervals(NamedTuple):
    """Intervals of the times per output token and of the prefill times."""

    tokens: Interval
    first: Interval


def intervals(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    stack: StackSpec | None,
    stack_name: str | None,
    kind: str = "calibrated",
) -> Intervals:
    """Return the intervals of the times of a design, whatever its batch and lengths; `kind` is `stacks.kind_of`."""
    if stack is None:
        return without_kernels(kind)
    if isinstance(stack, ServedStack) and stack.host:
        spread, why = _spread(device, plan, work, stack, stack_name)
        wider = borrowed_width(device)
        why += f"; {wider:g} times wider: kernels of another device" if wider > 1 else ""
        return Intervals(
            Interval(spread.low / wider, spread.high * wider, why),
            Interval(spread.first_low / wider, spread.first_high * wider, why),
        )
    worst = of_fits([fit for fit in (stack.attention, stack.gemm) if fit])
    wider = borrowed_width(device)
    if wider > OTHER_DEVICE:  # of one generation the errors of the fits are kept
        why = f"{worst.why}; {wider:g} times wider: kernels of another device"
        worst = Interval(worst.low / wider, worst.high * wider, why)
    return Intervals(worst, worst)


def without_kernels(kind: str) -> Intervals:
    """Return the intervals of times that no kernels were measured for.

    The peaks are the lower end of theirs. What is estimated stands in the middle of what devices reach.
    """
    why = "no measured kernels: 0.85 to 0.93 of the bandwidth and 0.7 to 1.0 of the rate, as measured devices reach"
    least = REACHED_COMPUTE[0]
    if kind == "ideal":
        return Intervals(Interval(1.0, 1 / least, why), Interval(1.0, 1 / least, why))
    return Intervals(  # a step waits for memory at least, and maybe for products
        Interval(MIDDLE_BANDWIDTH / REACHED_BANDWIDTH[1], MIDDLE_BANDWIDTH / least, why),
        Interval(MIDDLE_COMPUTE / REACHED_COMPUTE[1], MIDDLE_COMPUTE / least, why),
    )


def borrowed_width(device: HardwareSpec) -> float:
    """Return the factor by which another device's kernels widen the interval; 1 for a device with its own.

    A file that names no architecture, or no chip that it borrows from, is taken for a GPU of the same generation.
    """
    if device.stacks and not device.stacks_of:
        return 1.0
    if not device.stacks_of:
        return OTHER_DEVICE
    own = device.architecture
    if own is None and device.vendor in ("", "NVIDIA"):
        return OTHER_GENERATION if device.vendor else OTHER_DEVICE
    if own is None or not own.startswith(ANY_GPU):
        return OTHER_VENDOR
    lender = catalog.device(device.stacks_of).architecture or own
    # compute capability 8.6 is sm_86: all but the last digit count generations
    return OTHER_DEVICE if own[:-1] == lender[:-1] else OTHER_GENERATION


def of_burst(interval: Interval, prompts_first: bool) -> Interval:
    """Return the interval of a burst, whose ramp, tail and mixed steps add to that of a steady server."""
    wider = PROMPTS_FIRST_BURST if prompts_first else BURST
    return Interval(
        interval.low / wider, interval.high * wider, f"{interval.why}; {wider:g} times wider: all requests at once"
    )


def _spread(
    device: HardwareSpec, plan: KvPlan, work: Workload, stack: ServedStack, stack_name: str | None
) -> tuple[Spread, str]:
    """Return the spread of measured rows about predictions, of this model and release, else of models left out; of a
    release for which another stands in, wider than of that one."""
    model = (plan.whole or plan).model
    assert stack.host is not None
    if public := benchmarked_as(device, model, work, stack):
        seen = public.spread
        return Spread(**seen._asdict()), f"{seen.n_points} values of public benchmarks of {public.kind} models"
    own = stack.host.models.get(model.name)
    if own and not stack.stands_in:
        return own, f"{own.n_points} measured rows of {model.name} on {stack_name}, this release"
    kind: Literal["mixture", "dense"] = "mixture" if model.n_experts > 1 else "dense"
    unseen = stack.unseen.get(kind) or next(iter(stack.unseen.values()))
    why = f"{unseen.n_points} measured rows of {kind} models, each left out of the fit that it judged"
    if not stack.stands_in:
        return unseen, why
    other = Interval(1 / OTHER_RELEASE, OTHER_RELEASE, "")
    both = [unseen, own or unseen]
    tokens = product([Interval(min(one.low for one in both), max(one.high for one in both), ""), other])
    first = product([Interval(min(one.first_low for one in both), max(one.first_high for one in both), ""), other])
    wider = Spread(
        low=tokens.low, high=tokens.high, first_low=first.low, first_high=first.high, n_points=unseen.n_points
    )
    return wider, f"{why}; {OTHER_RELEASE:g} times off by the release: {stack_name}@{stack.stands_in} stands in"


def of_fits(fits: Iterable[Fit]) -> Interval:
    """Return the interval of the worst of several kernel fits; errors are taken as normal."""
    errors = [fit.held_out_error if fit.serving_error is None else fit.serving_error for fit in fits]
    mean = max(errors, default=0.0)
    width = min(WIDTH_80 * mean, 0.9)
    return Interval(1 - width, 1 + width, f"kernels on rows held out of their fits, mean error {mean:.1%}")


def parts(stack: StackSpec | None, tokens: Interval) -> dict[str, Interval]:
    """The intervals of the parts of a step, from the errors of the fits behind each; at the peak, that of the step."""
    if stack is None:
        return dict.fromkeys(("linear_s", "attention_s", "quantize_s", "dequantize_s"), tokens)
    of_linear = [fit for fit in (stack.gemm, *stack.products.values(), *stack.experts.values()) if fit]
    of_attention = [fit for fit in (stack.attention, *stack.latent.values()) if fit]
    found = {}
    for name, fits in (("linear_s", of_linear), ("attention_s", of_attention)):
        if fits:
            found[name] = of_fits(fits)
    return found


def product(intervals: Sequence[Interval], why: str = "") -> Interval:
    """Interval of a product of independent factors: middles multiply, squares of the log widths add."""
    middle = math.sqrt(math.prod(one.low * one.high for one in intervals))
    half = math.exp(math.hypot(*(math.log(one.high / one.low) for one in intervals)) / 2)
    return Interval(middle / half, middle * half, why)


def total(parts: Sequence[tuple[float, Interval]], why: str = "") -> Interval:
    """Interval of a sum of parts (predicted, interval) with independent errors: squares add on either side."""
    middles = [value * math.sqrt(one.low * one.high) for value, one in parts]
    below = math.hypot(*(middle - value * one.low for middle, (value, one) in zip(middles, parts, strict=True)))
    above = math.hypot(*(value * one.high - middle for middle, (value, one) in zip(middles, parts, strict=True)))
    predicted = math.fsum(value for value, _ in parts)
    return Interval((math.fsum(middles) - below) / predicted, (math.fsum(middles) + above) / predicted, why)


def of_energy(results: Mapping[str, Any]) -> dict[str, Interval]:
    """The intervals of the energy by parts and of their sum, from the ranges of J/B, J/FLOP and the idle power.

    A rate that is assumed may be half or twice as large (`BY_KIND`, as `dse ask doubt` takes it); bytes and
    operations are counted, so of a rate of another kind its own range is all that is unsure (`energy_factors`). A board
    idles as long as its tokens take, which is unsure too. {} where the device has no such rates, or nothing fits.
    """
    if results.get("joules_per_token_by_parts") is None:
        return {}
    found = {}
    for name, rate in ENERGY_PARTS.items():
        if rate in results["assumptions"]:
            found[name] = Interval(*BY_KIND[ASSUMED], f"{rate} is assumed, half to twice")
        else:
            low, high = (results.get(f"{ENERGY_RANGES.get(rate)}_{end}") or 1.0 for end in ("low", "high"))
            found[name] = Interval(low, high, f"{rate} as the device's file has it")
    idle = found["idle_joules_per_token"]
    times = Interval(results["token_time_low"], results["token_time_high"], "")
    found["idle_joules_per_token"] = product([idle, times], f"{idle.why}; the board idles as long as the tokens take")
    each = [(float(results[name]), one) for name, one in found.items()]
    assumed = [rate for rate in ENERGY_PARTS.values() if rate in results["assumptions"]]
    why = f"half to twice what is assumed: {', '.join(assumed)}; " if assumed else ""
    why += "the board idles as long as the tokens take; the parts err independently"
    return {**found, "joules_per_token_by_parts": total(each, why)}


def energy_factors(device: HardwareSpec) -> dict[str, float]:
    """The ranges that a device's file gives its J/B and J/FLOP, as factors by the name of the result; 1 where none."""
    found = {}
    for rate, name in ENERGY_RANGES.items():
        own = getattr(device, rate)
        found[f"{name}_low"], found[f"{name}_high"] = own.factors if own and own.low is not None else (1.0, 1.0)
    return found


def of_results(results: Mapping[str, Any], stack: StackSpec | None, why: str = "") -> dict[str, Interval]:
    """Result -> its interval, of every time, rate, energy and cost of a design; `results` are those of its point."""
    if not results["feasible"]:
        return {}
    tokens = with_kernels(Interval(results["token_time_low"], results["token_time_high"], why), results)
    first = Interval(results["first_time_low"], results["first_time_high"], why)
    found = dict.fromkeys(TOKEN_TIMES, tokens) | dict.fromkeys(TOKEN_RATES, tokens.inverse())
    found |= dict.fromkeys(FIRST_TIMES, first) | parts(stack, tokens) | of_energy(results)
    return {name: found[name] for name in RESULTS if name in found and results.get(name) is not None}


def as_numbers(results: Mapping[str, Any], stack: StackSpec | None = None) -> dict[str, list[float]]:
    """Result -> [low, high] of its value, as JSON has it."""
    return {
        name: [results[name] * interval.low, results[name] * interval.high]
        for name, interval in of_results(results, stack).items()
    }


def ratio(first: float, second: float, interval: Interval, unsure: float | None = None) -> tuple[float, float]:
    """The 80 % interval of `first` over `second`, two times on one device and stack.

    What both have in common errs alike, so only a share of the longer is unsure: what it has beyond the shorter, if
    `unsure` does not say how much else (seconds). Equal times have the ratio 1 for sure.
    """
    longer = max(first, second)
    middle = math.sqrt(interval.low * interval.high) ** ((first - second) / longer)
    half = math.sqrt(interval.high / interval.low) ** ((abs(first - second) if unsure is None else unsure) / longer)
    return first / second * middle / half, first / second * middle * half


def chance(low: float, high: float) -> float:
    """The chance that a number with the 80 % interval low..high is above 1, errors being taken as log-normal."""
    if low == high:
        return 0.5 if low == 1 else float(low > 1)
    sigma = math.log(high / low) / (2 * 1.2816)
    return 0.5 * (1 + math.erf(math.log(low * high) / 2 / sigma / math.sqrt(2)))


def middle(low: float, high: float) -> float:
    """The median of a number with the 80 % interval low..high, errors being taken as log-normal (`chance`)."""
    return min(max(math.sqrt(low * high), low), high)


class Gain(NamedTuple):
    """Ratio by which one design is better than another: the middle of its distribution, its 80 % interval, and the
    chance that it is above 1. So a ratio above 1 is over 50 % sure, and one below it less."""

    ratio: float
    low: float
    high: float
    sure: float

    @property
    def sure_of_side(self) -> float:
        """The chance that the ratio really lies on the side of 1 on which its middle does."""
        return max(self.sure, 1 - self.sure)


def gain_within(low: float, high: float) -> Gain:
    """The gain whose 80 % interval is low..high."""
    return Gain(middle(low, high), low, high, chance(low, high))


def predicted_gain(first: Mapping[str, Any], second: Mapping[str, Any], column: str = RATE) -> float:
    """Return how many times as good the first design is as computed, whatever is unsure of it."""
    value, other = (float(results[column]) for results in (first, second))
    return value / other if column in TOKEN_RATES else other / value


def ends(results: Mapping[str, Any], column: str = RATE) -> tuple[float, float]:
    """The values of a time, rate, energy or cost between which 8 of 10 measurements of a design should lie.

    `results` are those of its point, or a row of a table.
    """
    value, interval = float(results[column]), of_column(results, column)
    return value * interval.low, value * interval.high


def known_ends(row: Mapping[str, Any], column: str) -> tuple[float, float] | None:
    """Return the `ends` of a table row; None if the row lacks the value or its intervals, or the column has none."""
    unknown = any(row.get(name) is None or row[name] != row[name] for name in (column, "token_time_low"))
    if unknown or column not in (*TOKEN_TIMES, *TOKEN_RATES, *FIRST_TIMES):
        return None
    return ends(row, column)


def with_kernels(tokens: Interval, results: Mapping[str, Any]) -> Interval:
    """The interval of times per token, in which what is known of the kernels of keys and values has its part.

    The ceiling of unpacking is taken from the exposed time, as it joins what attention takes otherwise in a root of
    squares, and moved by the range of its rate. `results` are those of a point, or a row of a table.
    """
    numbers = [results.get(name) for name in ("unpack_rate_low", "unpack_rate_high", "decode_step_s", "dequantize_s")]
    if any(number is None for number in numbers):
        return tokens
    slow, fast, step_s, exposed_s = (float(number) for number in numbers)  # type: ignore[arg-type]
    if not slow < fast or not exposed_s > 0:
        return tokens
    other_s = float(results["attention_s"])
    ceiling_s = math.sqrt((other_s + exposed_s) ** 2 - other_s**2)
    low, high = (
        (step_s + math.hypot(other_s, ceiling_s / rate) - other_s - exposed_s) / step_s for rate in (fast, slow)
    )
    both = product([tokens, Interval(low, high, "")])
    return Interval(both.low, both.high, f"{tokens.why}; what kernels unpack, within its range" if tokens.why else "")


def of_column(results: Mapping[str, Any], column: str, kernels: bool = True) -> Interval:
    """The interval of a time, rate or cost over what is predicted; without what is known of `kernels` of keys and
    values where a comparison counts that by itself. Raises KeyError for a column that has none."""
    kind = "first_time" if column in FIRST_TIMES else "token_time"
    times = Interval(float(results[f"{kind}_low"]), float(results[f"{kind}_high"]), "")
    if kernels and kind == "token_time":
        times = with_kernels(times, results)
    return {**dict.fromkeys((*TOKEN_TIMES, *FIRST_TIMES), times), **dict.fromkeys(TOKEN_RATES, times.inverse())}[column]


def gain(
    first: Mapping[str, Any], second: Mapping[str, Any], column: str = RATE, shifts: Sequence[Interval] = ()
) -> Gain:
    """Compare two designs in a rate, or in a time, energy or cost (less is better): the factor in favor of the first.

    On one device and stack what both have in common errs alike (`ratio`); else errors are independent, and the
    squares of the logarithms of their widths add. `shifts`: by which factors the gain moves inside the ranges of
    assumed numbers (`dse.model.compare`).
    """
    values = [float(results[column]) for results in (first, second)]
    intervals = [of_column(results, column, kernels=False) for results in (first, second)]
    better = predicted_gain(first, second, column)
    if column in TOKEN_RATES:
        values = [1 / rate for rate in values]
        intervals = [one.inverse() for one in intervals]
    if _err_alike(first, second) and intervals[0][:2] == intervals[1][:2]:
        alone = Interval(*ratio(values[1], values[0], intervals[0], unsure(first, second, values)), "")
    else:
        both = product([intervals[1], intervals[0].inverse()])
        alone = Interval(better * both.low, better * both.high, "")
    low, high, _ = product([alone, *of_weights(first, second), *shifts])
    return gain_within(low, high)


def unsure(first: Mapping[str, Any], second: Mapping[str, Any], times: Sequence[float]) -> float | None:
    """Return the time that the error of two designs' difference scales with; None for their plain difference.

    Designs of other quantizers, or that read other tokens, run other kernels on keys and values, and those of other
    weights other products: these err each by themselves, and of the rest its difference. Prompts count as the steps do.
    """
    parts: list[tuple[str, ...]] = []
    if any(first[name] != second[name] for name in ("key_quantizer", "value_quantizer", "tokens")):
        parts.append(KV_PARTS)
    if str(first["weights"]) != str(second["weights"]):
        parts.append((WEIGHT_PART,))
    if not parts:
        return None
    own = [
        [time * sum(float(one[name]) for name in names) / float(one["decode_step_s"]) for names in parts]
        for time, one in zip(times, (first, second), strict=True)
    ]
    rest = (times[0] - sum(own[0])) - (times[1] - sum(own[1]))
    return math.hypot(rest, *own[0], *own[1])


def of_weights(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Interval]:
    """The factors by which a gain moves as products that others stand in for take more or less, where two designs have
    weights of other formats."""
    if str(first["weights"]) == str(second["weights"]):
        return []
    found = []
    for one, is_first in ((first, True), (second, False)):
        if any(name in one["assumptions"] for name in STAND_INS):
            share = float(one[WEIGHT_PART]) / float(one["decode_step_s"])
            times = Interval(1 + share * (1 / STAND_IN_WIDTH - 1), 1 + share * (STAND_IN_WIDTH - 1), "stand-ins")
            found.append(times.inverse() if is_first else times)
    return found


def _err_alike(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """True for designs on one device and stack, in one layout; where no kernels were measured no stack counts."""
    if any(first[name] != second[name] for name in ("device", "model_kind", *LAYOUT)):
        return False
    return first["model_kind"] != "calibrated" or bool(first["stack"] == second["stack"])


def chance_of(results: Mapping[str, Any], column: str, target: float) -> float:
    """The chance that a rate really is at least `target`, or a time, energy or cost at most (base units)."""
    low, high = ends(results, column)
    return chance(low / target, high / target) if column in TOKEN_RATES else chance(target / high, target / low)
