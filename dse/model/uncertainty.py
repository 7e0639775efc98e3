"""How sure times are: the interval in which 8 of 10 measurements of a result should lie, and what it is made of.

Of a server that was measured whole, what its measured rows were over our predictions: of the same model and release,
or, where no row of the model was fitted, of models that were left out of the fit. Of kernels alone, the errors of their
fits. Of a device known by its data sheet alone, what measured devices reach of theirs. docs/model.md, How sure.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dse.model.kv_layout import KvPlan
from dse.model.results import RESULTS
from dse.specs.device_and_model import HardwareSpec
from dse.specs.stack import Fit, ServedStack, Spread, StackSpec

#: half the width of the 80 % interval of a normal distribution over its mean absolute error: 1.2816 / sqrt(2 / pi)
WIDTH_80 = 1.606
#: what measured devices reach of their data sheets: of bandwidth, and of the rate of products over prompts
REACHED_BANDWIDTH, REACHED_COMPUTE = (0.85, 0.93), (0.70, 1.00)
#: a device that runs by the kernels of another is known so much less, either way
OTHER_DEVICE = 1.15
#: times per output token and what grows with them; what falls as they grow
TOKEN_TIMES = (
    "decode_step_s", "total_s", "tpot_s", "steady_tpot_s", "joules_per_token", "idle_joules_per_token",
    "joules_per_token_by_parts", "usd_per_million_tokens", "usd_per_request",
)  # fmt: skip
TOKEN_RATES = ("throughput_tokens_per_s",)
#: times of prompts
FIRST_TIMES = ("prefill_s", "ttft_s", "steady_ttft_s")


class Interval(NamedTuple):
    """What a result may be over what is predicted, low and high, and why."""

    low: float
    high: float
    why: str

    def inverse(self) -> "Interval":
        """Of what falls as this one grows."""
        return Interval(1 / self.high, 1 / self.low, self.why)


class Intervals(NamedTuple):
    """Of times per output token, and of times of prompts."""

    tokens: Interval
    first: Interval


def intervals(device: HardwareSpec, plan: KvPlan, stack: StackSpec | None, stack_name: str | None) -> Intervals:
    """How sure times of a design are, whatever its batch and lengths."""
    if stack is None:
        why = "no measured kernels: 0.85 to 0.93 of the bandwidth and 0.7 to 1.0 of the rate, as measured devices reach"
        return Intervals(
            Interval(1 / REACHED_BANDWIDTH[1], 1 / REACHED_COMPUTE[0], why),
            Interval(1 / REACHED_COMPUTE[1], 1 / REACHED_COMPUTE[0], why),
        )
    if isinstance(stack, ServedStack) and stack.host:
        spread, why = _spread(plan, stack, stack_name)
        wider = OTHER_DEVICE if device.stacks_of or not device.stacks else 1.0
        why += f"; {wider:g} times wider: kernels of another device" if wider > 1 else ""
        return Intervals(
            Interval(spread.low / wider, spread.high * wider, why),
            Interval(spread.first_low / wider, spread.first_high * wider, why),
        )
    worst = of_fits([fit for fit in (stack.attention, stack.gemm) if fit])
    return Intervals(worst, worst)


def _spread(plan: KvPlan, stack: ServedStack, stack_name: str | None) -> tuple[Spread, str]:
    """How far measured rows were from predictions: of this model and release, else of models left out."""
    model = (plan.whole or plan).model
    assert stack.host is not None
    own = stack.host.models.get(model.name)
    if own:
        return own, f"{own.n_points} measured rows of {model.name} on {stack_name}, this release"
    kind = "mixture" if model.n_experts > 1 else "dense"
    unseen = stack.unseen.get(kind) or next(iter(stack.unseen.values()))  # type: ignore[call-overload]
    return unseen, f"{unseen.n_points} measured rows of {kind} models, each left out of the fit that it judged"


def of_fits(fits: Iterable[Fit]) -> Interval:
    """Of kernels, as the worst of their fits; errors are taken as normal."""
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


def of_results(
    results: Mapping[str, Any], stack: StackSpec | None, why: str = ""
) -> dict[str, Interval]:  # fmt: skip
    """Result -> its interval, of every time, rate, energy and cost of a design; `results` are those of its point."""
    if not results["feasible"]:
        return {}
    tokens = Interval(results["token_time_low"], results["token_time_high"], why)
    first = Interval(results["first_time_low"], results["first_time_high"], why)
    found = dict.fromkeys(TOKEN_TIMES, tokens) | dict.fromkeys(TOKEN_RATES, tokens.inverse())
    found |= dict.fromkeys(FIRST_TIMES, first) | parts(stack, tokens)
    return {name: found[name] for name in RESULTS if name in found and results.get(name) is not None}


def as_numbers(results: Mapping[str, Any], stack: StackSpec | None) -> dict[str, list[float]]:
    """Result -> [low, high] of its value, as JSON has it."""
    return {
        name: [results[name] * interval.low, results[name] * interval.high]
        for name, interval in of_results(results, stack).items()
    }


def ratio(first: float, second: float, interval: Interval) -> tuple[float, float]:
    """The 80 % interval of `first` over `second`, two times on one device and stack.

    What both have in common errs alike, so only the part in which they differ is unsure: equal times have the ratio 1
    for sure.
    """
    differs = abs(first - second) / max(first, second)
    return first / second * interval.low**differs, first / second * interval.high**differs


def confidence(ratio: float, low: float, high: float) -> float:
    """The chance that a ratio with this 80 % interval really lies on its side of 1, errors being taken as
    log-normal."""
    if ratio == 1:
        return 0.5
    if low == high:
        return 1.0
    sigma = math.log(high / low) / (2 * 1.2816)
    return 0.5 * (1 + math.erf(abs(math.log(ratio)) / sigma / math.sqrt(2)))


class Gain(NamedTuple):
    """Throughput of one design over that of another, its 80 % interval, and the chance that the faster one is
    faster."""

    ratio: float
    low: float
    high: float
    confidence: float


def rate_interval(results: Mapping[str, Any]) -> tuple[float, float]:
    """The throughput between which 8 of 10 measurements of a design should lie; `results` are those of its point."""
    rate = float(results["throughput_tokens_per_s"])
    return rate / float(results["token_time_high"]), rate / float(results["token_time_low"])


def gain(first: Mapping[str, Any], second: Mapping[str, Any]) -> Gain:
    """How much faster a design is than another, and how sure that is.

    On one device and stack what both have in common errs alike (`ratio`); else errors are independent, and the
    logarithms of their widths add as squares.
    """
    rates = [float(results["throughput_tokens_per_s"]) for results in (first, second)]
    if all(first[name] == second[name] for name in ("device", "stack", "model_kind")):
        tokens = Interval(float(first["token_time_low"]), float(first["token_time_high"]), "")
        low, high = ratio(rates[0], rates[1], tokens.inverse())
    else:
        (low_a, high_a), (low_b, high_b) = rate_interval(first), rate_interval(second)
        middle = math.sqrt(low_a * high_a / (low_b * high_b))
        half = math.hypot(math.log(high_a / low_a), math.log(high_b / low_b)) / 2
        low, high = middle * math.exp(-half), middle * math.exp(half)
    return Gain(rates[0] / rates[1], low, high, confidence(math.sqrt(low * high), low, high))
