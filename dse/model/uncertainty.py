"""Uncertainty of results: the interval in which 8 of 10 measurements of each should lie, and chances.

A design has two errors, of its time per token and of its time to the first (`dse.model.intervals`), log-t with
`FREEDOM`, and every result has its interval from both. Designs share a part of their errors, by what they differ in.
docs/explanation/model.md, How sure.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dse.model.intervals import END_80, ENERGY_RANGES, FREEDOM, GROUPS, SPLIT, Interval, of_fits, product, shared, total
from dse.model.results import INTEGERS, RESULTS, with_interval
from dse.model.results.declare import ENERGY, PER_TOKEN, POOLED, PROMPTS, RATES, SERVED
from dse.specs import catalog
from dse.specs.quantity import ASSUMED, BY_KIND
from dse.specs.stack import StackSpec

#: half the width of the 80 % interval of a normal distribution over its mean absolute error: 1.2816 / sqrt(2 / pi)
WIDTH_80 = 1.606
#: chance beyond which nothing is said of designs that rest on what nobody measured; assumed
MOST_SURE = 0.95
#: times per output token; of prompts; what grows with a request's whole time, and what falls
TOKEN_TIMES, FIRST_TIMES, SERVED_TIMES, SERVED_RATES = (
    with_interval(kind) for kind in (PER_TOKEN, PROMPTS, SERVED, RATES)
)
#: what a server's pool decides alone
OF_POOL = with_interval(POOLED)
RATE = "throughput_tokens_per_s"
#: parts of the energy by bytes, operations and idling, and the number of the device that each is proportional to
ENERGY_PARTS = {
    "memory_joules_per_token": "energy_per_byte",
    "compute_joules_per_token": "energy_per_flop",
    "idle_joules_per_token": "idle_power",
}
#: the energy by parts: the sum, then its parts
BY_PARTS = with_interval(ENERGY)
#: parts of a step whose kernels another quantizer has not
KV_PARTS = ("attention_s", "quantize_s", "dequantize_s")
#: a part of a step whose kernels weights of another format have not; and how many times as long, either way, products
#: take that others stand in for: 13 of 16 published gains of weights of servers lie within (implementations.md)
WEIGHT_PART, STAND_IN_WIDTH = "linear_s", 1.5
#: assumptions of products that others stand in for
STAND_INS = ("nearest_format", "eight_bit_kernels")
#: assumptions of designs whose kernels, device or server nobody measured: of these little is called sure
UNMEASURED = (
    "peak_rates",
    "reached_rates",
    "stacks_of",
    "no_kernel",
    "implementation",
    "nearest_kernels",
    "nearest_release",
    "sparse_prompts",
    *STAND_INS,
)
#: results that an interval reads beside the value itself
READ = (
    "token_time_low",
    "token_time_high",
    "first_time_low",
    "first_time_high",
    "tpot_s",
    RATE,
    "running_batch",
    "decode_step_s",
    "unpack_rate_low",
    "unpack_rate_high",
    "attention_s",
    "dequantize_s",
)
#: results that a comparison reads beside the one that it compares
COMPARED = (
    "device",
    "model",
    "stack",
    "model_kind",
    *SPLIT,
    *GROUPS,
    "weights",
    "key_quantizer",
    "value_quantizer",
    "tokens",
    WEIGHT_PART,
    "quantize_s",
    *READ,
    "assumptions",
)


#: steps between no share and all
N_SHARES = 32


def parts(stack: StackSpec | None, tokens: Interval) -> dict[str, Interval]:
    """The intervals of the parts of a step, from the errors of the fits behind each; at the peak, that of the step."""
    if stack is None:
        return dict.fromkeys(("linear_s", "attention_s", "quantize_s", "dequantize_s"), tokens)
    of_linear = [fit for fit in (stack.gemm, *stack.products.values(), *stack.experts.values()) if fit]
    of_attention = [fit for fit in (stack.attention, *stack.latent.values()) if fit]
    intervals = {}
    for name, fits in (("linear_s", of_linear), ("attention_s", of_attention)):
        if fits:
            intervals[name] = of_fits(fits)
    return intervals


def of_energy(results: Mapping[str, Any]) -> dict[str, Interval]:
    """The intervals of the energy by parts and of their sum, from the ranges of J/B, J/FLOP and the idle power.

    A rate that is assumed may be half or twice as large (`BY_KIND`, as `dse ask doubt` takes it); bytes and
    operations are counted, so of a rate of another kind its own range is all that is unsure (`energy_factors`). A board
    idles as long as its tokens take, which is unsure too. {} where the device has no such rates, or nothing fits.
    """
    if results.get("joules_per_token_by_parts") is None:
        return {}
    by_part = {}
    for name, rate in ENERGY_PARTS.items():
        if rate in results["assumptions"]:
            by_part[name] = Interval(*BY_KIND[ASSUMED], f"{rate} is assumed, half to twice")
        else:
            low, high = (results.get(f"{ENERGY_RANGES.get(rate)}_{end}") or 1.0 for end in ("low", "high"))
            by_part[name] = Interval(low, high, f"{rate} as the device's file has it")
    idle = by_part["idle_joules_per_token"]
    times = of_column(results, RATE).inverse()
    by_part["idle_joules_per_token"] = product([idle, times], f"{idle.why}; the board idles as long as the tokens take")
    weighted = [(float(results[name]), interval) for name, interval in by_part.items()]
    assumed = [rate for rate in ENERGY_PARTS.values() if rate in results["assumptions"]]
    why = f"half to twice what is assumed: {', '.join(assumed)}; " if assumed else ""
    why += "the board idles as long as the tokens take; the parts err independently"
    return {**by_part, "joules_per_token_by_parts": total(weighted, why)}


def of_results(results: Mapping[str, Any], stack: StackSpec | None, why: str = "") -> dict[str, Interval]:
    """Result -> its interval, of a pool and every time, rate, energy and cost; `results` are those of its point."""
    if not results["feasible"]:
        return {}
    columns = (*TOKEN_TIMES, *FIRST_TIMES, *SERVED_TIMES, *SERVED_RATES)
    intervals = {name: of_column(results, name)._replace(why=why) for name in columns if results.get(name) is not None}
    if results.get("pool_low") is not None:
        pool = Interval(float(results["pool_low"]), float(results["pool_high"]), why)
        intervals |= dict.fromkeys(OF_POOL, pool)
    intervals |= parts(stack, of_column(results, "decode_step_s")) | of_energy(results)
    return {name: intervals[name] for name in RESULTS if name in intervals and results.get(name) is not None}


def as_numbers(results: Mapping[str, Any], stack: StackSpec | None = None) -> dict[str, list[float]]:
    """Result -> [low, high] of its value, as JSON has it."""
    return {name: numbers_at(results, name, interval) for name, interval in of_results(results, stack).items()}


def numbers_at(results: Mapping[str, Any], name: str, interval: Interval) -> list[float]:
    """The value of a result at both ends of its interval; what is counted is rounded."""
    ends = [results[name] * end for end in interval[:2]]
    return [round(end) for end in ends] if name in INTEGERS else ends


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
    """The chance that a number with the 80 % interval low..high is above 1, errors being log-t (`FREEDOM`)."""
    if low == high:
        return 0.5 if low == 1 else float(low > 1)
    off = math.log(low * high) / math.log(high / low) * END_80
    stretched = off * off / (1 + off * off / FREEDOM)
    # the distribution function of four degrees of freedom, in closed form
    return 0.5 + 0.375 * math.copysign(math.sqrt(stretched), off) * (1 - stretched / 12)


def middle(low: float, high: float) -> float:
    """The median of a number with the 80 % interval low..high, errors being as likely up as down (`chance`)."""
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
    return value / other if column in SERVED_RATES else other / value


def ends(results: Mapping[str, Any], column: str = RATE) -> tuple[float, float]:
    """The values of a time, rate, energy or cost between which 8 of 10 measurements of a design should lie.

    `results` are those of its point, or a row of a table.
    """
    value, interval = float(results[column]), of_column(results, column)
    return value * interval.low, value * interval.high


def known_ends(row: Mapping[str, Any], column: str) -> tuple[float, float] | None:
    """Return the `ends` of a table row; None if the row lacks the value or what its interval reads, or has none."""
    unknown = any(row.get(name) is None or row[name] != row[name] for name in (column, "token_time_low", *READ[2:4]))
    if unknown or column not in (*TOKEN_TIMES, *FIRST_TIMES, *SERVED_TIMES, *SERVED_RATES):
        return None
    return ends(row, column)


def decoding_share(results: Mapping[str, Any]) -> float | None:
    """The share of a request's time in its place that its tokens after the first take; None where a table does not say
    it.

    By Little's law, requests that decode are the rate times TPOT; the others of those that run compute prompts. An
    answer of one token is all prompt.
    """
    if any(name not in results for name in ("tpot_s", RATE, "running_batch")):
        return None
    tpot_s = results["tpot_s"]
    if tpot_s is None or tpot_s != tpot_s or results.get("output_tokens") == 1:
        return 0.0
    return min(float(results[RATE]) * float(tpot_s) / float(results["running_batch"]), 1.0)


def joined(tokens: Interval, first: Interval, share: float, correlation: float) -> Interval:
    """Interval of a time of which `share` errs as times per token do and the rest as times to the first token, whose
    errors have this correlation."""
    (middle, half), (other_middle, other_half) = tokens.logs(), first.logs()
    shares = share * half, (1 - share) * other_half
    joint_half = math.sqrt(shares[0] ** 2 + shares[1] ** 2 + 2 * correlation * shares[0] * shares[1])
    joint = Interval.of_logs(share * middle + (1 - share) * other_middle, joint_half, tokens.why)
    return joint._replace(low=min(joint.low, 1.0), high=max(joint.high, 1.0))  # a prediction is inside of its own


def least_slow(results: Mapping[str, Any]) -> float:
    """The low end of the interval of a server's rate over what is predicted, at most 1 and no less than that of any
    share of the time that decodes; `results` are those that no batch changes."""
    tokens, first = (of_column(results, name, kernels=False) for name in ("tpot_s", "ttft_s"))
    shares = (joined(tokens, first, n / N_SHARES, catalog.shared_errors().first) for n in range(N_SHARES + 1))
    return min(max(one.inverse().low for one in shares), 1.0)


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
    joint = product([tokens, Interval(low, high, "")])
    return Interval(joint.low, joint.high, f"{tokens.why}; what kernels unpack, within its range" if tokens.why else "")


def of_column(results: Mapping[str, Any], column: str, kernels: bool = True) -> Interval:
    """The interval of a time, rate or cost over what is predicted; without what is known of `kernels` of keys and
    values where a comparison counts that by itself. Raises KeyError for a column that has none."""
    tokens, first = (
        Interval(float(results[f"{kind}_time_low"]), float(results[f"{kind}_time_high"]), "")
        for kind in ("token", "first")
    )
    if column in FIRST_TIMES:
        return first
    if kernels:
        tokens = with_kernels(tokens, results)
    if column in TOKEN_TIMES:
        return tokens
    share = decoding_share(results)
    served = tokens if share is None else joined(tokens, first, share, catalog.shared_errors().first)
    return {**dict.fromkeys(SERVED_TIMES, served), **dict.fromkeys(SERVED_RATES, served.inverse())}[column]


def gain(
    first: Mapping[str, Any], second: Mapping[str, Any], column: str = RATE, shifts: Sequence[Interval] = ()
) -> Gain:
    """Compare two designs in a rate, or in a time, energy or cost (less is better): the factor in favor of the first.

    Designs share a part of their errors, by what they differ in (`shared`). On one device, server, layout and weights
    they err alike (`ratio`), but for kernels of keys and values that one of them has not. `shifts`: by which factors
    the gain moves inside the ranges of assumed numbers (`dse.model.compare`).
    """
    values = [float(results[column]) for results in (first, second)]
    intervals = [of_column(results, column, kernels=False) for results in (first, second)]
    if column in SERVED_RATES:
        values = [1 / rate for rate in values]
        intervals = [interval.inverse() for interval in intervals]
    common, own_s = shared(first, second), unsure(first, second, values)
    (middle, half), (other_middle, other_half) = (interval.logs() for interval in intervals)
    if common == 1:
        rest_s = (values[0] - own_s[0]) - (values[1] - own_s[1])
        joint = Interval.of_logs((middle + other_middle) / 2, (half + other_half) / 2, "")
        parts = [Interval(*ratio(values[1], values[0], joint, math.hypot(rest_s, *own_s)), "")]
    else:
        apart = math.sqrt(half**2 + other_half**2 - 2 * common * half * other_half)
        kernels = max(half, other_half) * math.hypot(*own_s) / max(values)
        middle = math.log(values[1] / values[0]) + other_middle - middle
        parts = [Interval.of_logs(middle, apart, ""), Interval.of_logs(0.0, kernels, "")]
    low, high, _ = product([*parts, *of_weights(first, second), *shifts])
    compared = gain_within(low, high)
    return compared._replace(sure=at_most(compared.sure, (first, second)))


def unsure(first: Mapping[str, Any], second: Mapping[str, Any], times: Sequence[float]) -> tuple[float, float]:
    """Return the part of each of two times that its kernels of keys and values take, where the designs have others: by
    other quantizers, or reading other tokens. These err by themselves. Prompts count as the steps do."""
    if all(first[name] == second[name] for name in ("key_quantizer", "value_quantizer", "tokens")):
        return 0.0, 0.0
    parts = [
        time * sum(float(results[name]) for name in KV_PARTS) / float(results["decode_step_s"])
        for time, results in zip(times, (first, second), strict=True)
    ]
    return parts[0], parts[1]


def of_weights(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Interval]:
    """The factors by which a gain moves as products that others stand in for take more or less, where two designs have
    weights of other formats."""
    if str(first["weights"]) == str(second["weights"]):
        return []
    shifts = []
    for results, is_first in ((first, True), (second, False)):
        if {*STAND_INS} & {*_assumed(results)}:
            share = float(results[WEIGHT_PART]) / float(results["decode_step_s"])
            times = Interval(1 + share * (1 / STAND_IN_WIDTH - 1), 1 + share * (STAND_IN_WIDTH - 1), "stand-ins")
            shifts.append(times.inverse() if is_first else times)
    return shifts


def at_most(chance: float, designs: Sequence[Mapping[str, Any]]) -> float:
    """The chance, no surer than `MOST_SURE` where a design rests on what nobody measured."""
    if all(design.get("model_kind") == "calibrated" and not {*UNMEASURED} & {*_assumed(design)} for design in designs):
        return chance
    return min(max(chance, 1 - MOST_SURE), MOST_SURE)


def _assumed(results: Mapping[str, Any]) -> Sequence[str]:
    """The names of a design's assumptions, which tables write as one text."""
    names = results.get("assumptions")
    if isinstance(names, str):
        return names.split(", ")
    return names if isinstance(names, list | tuple) else ()  # a table has NaN for none


def chance_of(results: Mapping[str, Any], column: str, target: float) -> float:
    """The chance that a rate really is at least `target`, or a time, energy or cost at most (base units)."""
    low, high = ends(results, column)
    probability = chance(low / target, high / target) if column in SERVED_RATES else chance(target / high, target / low)
    return at_most(probability, (results,))
