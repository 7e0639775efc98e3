"""How sure times are: the interval in which 8 of 10 measurements of a result should lie, and what it is made of.

Of a server that was measured whole, what its measured rows were over our predictions: of the same model and release, or,
where no row of the model was fitted, of models that were left out of the fit. Of kernels alone, the errors of their fits. Of
a device known by its data sheet alone, what measured devices reach of theirs. docs/model.md, How sure.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dse.model.batch import shares_of
from dse.model.evaluate import Point
from dse.model.results import RESULTS
from dse.specs.stack import Fit, ServedStack, Spread

#: mean absolute errors of a normal distribution in half the width of its 80 % interval: 1.2816 / sqrt(2 / pi)
WIDTH_80 = 1.606
#: what measured devices reach of their data sheets: bytes (attention and products) and products of prompts
REACHED_BANDWIDTH, REACHED_COMPUTE = (0.85, 0.93), (0.70, 1.00)
#: a device that runs by the kernels of another is known so much less, either way
OTHER_DEVICE = 1.15
#: times per output token and what follows from them in proportion; and in inverse proportion
TOKEN_TIMES = ("decode_step_s", "tpot_s", "steady_tpot_s", "total_s")
TOKEN_COSTS = ("joules_per_token", "usd_per_million_tokens", "usd_per_request", "idle_joules_per_token")
TOKEN_RATES = ("throughput_tokens_per_s",)
#: times to first token
FIRST_TIMES = ("prefill_s", "ttft_s", "steady_ttft_s")


class Interval(NamedTuple):
    """What a result may be over what is predicted, low and high, and why."""

    low: float
    high: float
    why: str

    def of(self, value: float | None) -> tuple[float, float] | None:
        """The interval of a value."""
        return None if value is None else (value * self.low, value * self.high)

    def inverse(self) -> "Interval":
        """Of what falls as this one grows."""
        return Interval(1 / self.high, 1 / self.low, self.why)


def intervals(point: Point) -> dict[str, Interval]:
    """Result -> its interval, of every time, rate, energy and cost that is more than a count."""
    if not point.max_batch:
        return {}
    tokens, first = token_and_first(point)
    found = {name: tokens for name in (*TOKEN_TIMES, *TOKEN_COSTS)}
    found |= {name: tokens.inverse() for name in TOKEN_RATES}
    found |= {name: first for name in FIRST_TIMES}
    found |= parts(point)
    results = point.results
    return {name: found[name] for name in RESULTS if name in found and results.get(name) is not None}


def token_and_first(point: Point) -> tuple[Interval, Interval]:
    """The intervals of times per output token, and to the first."""
    stack = point.stack
    if stack is None:
        return _derated(point)
    if isinstance(stack, ServedStack) and stack.host:
        spread, why = _spread(point, stack)
        wider = OTHER_DEVICE if point.device.stacks_of or not point.device.stacks else 1.0
        why += f", {wider:g} times wider: kernels of another device" if wider > 1 else ""
        return (
            Interval(spread.low / wider, spread.high * wider, why),
            Interval(spread.first_low / wider, spread.first_high * wider, why),
        )
    return (_of_fits(stack.fits().values()),) * 2


def _spread(point: Point, stack: ServedStack) -> tuple[Spread, str]:
    """How far measured rows were from predictions: of this model and release, else of models left out."""
    model = point.plan.whole.model if point.plan.whole else point.plan.model
    assert stack.host is not None
    own = stack.host.models.get(model.name)
    if own:
        return own, f"{own.n_points} measured rows of {model.name} on {point.stack_name} of this release"
    kind = "mixture" if model.n_experts > 1 else "dense"
    unseen = stack.unseen.get(kind) or next(iter(stack.unseen.values()))  # type: ignore[call-overload]
    return unseen, f"{unseen.n_points} measured rows of {kind} models, each left out of the fit it was judged by"


def _of_fits(fits: Iterable[Fit]) -> Interval:
    """Of a sum of kernels: as the worst of them, errors being taken as normal."""
    errors = [fit.serving_error if fit.serving_error is not None else fit.held_out_error for fit in fits]
    width = min(WIDTH_80 * max(errors, default=0.0), 0.9)
    return Interval(
        1 - width, 1 + width, f"errors of the kernels' fits on rows held out, mean {max(errors, default=0):.1%}"
    )


def parts(point: Point) -> dict[str, Interval]:
    """The intervals of the parts of a step, from the errors of the fits behind each."""
    stack, found = point.stack, {}
    if stack is None:
        tokens, _ = _derated(point)
        return dict.fromkeys(("linear_s", "attention_s", "quantize_s", "dequantize_s"), tokens)
    behind: dict[str, list[Fit]] = {
        "linear_s": [*stack.products.values(), *stack.experts.values()] if stack.host else [],
        "attention_s": [*stack.latent.values()] if point.design.stack.unit_s == 0 else [],
    }
    behind["linear_s"] = behind["linear_s"] or ([stack.gemm] if stack.gemm else [])
    behind["attention_s"] = behind["attention_s"] or ([stack.attention] if stack.attention else [])
    for name, fits in behind.items():
        if fits:
            mean = sum(fit.serving_error or fit.held_out_error for fit in fits) / len(fits)
            width = min(WIDTH_80 * mean, 0.9)
            found[name] = Interval(1 - width, 1 + width, f"errors of kernels on rows held out, mean {mean:.1%}")
    return found


def _derated(point: Point) -> tuple[Interval, Interval]:
    """Of a device without measured kernels: beside its peak, what it would take if it reached what measured ones do."""
    shares = shares_of(point.design, point.largest_wave)
    whole = sum(shares) or 1.0
    memory, compute = shares.bandwidth / whole, (shares.compute + shares.dequantization) / whole
    rest = max(0.0, 1 - memory - compute)
    low = memory / REACHED_BANDWIDTH[1] + compute / REACHED_COMPUTE[1] + rest
    high = memory / REACHED_BANDWIDTH[0] + compute / REACHED_COMPUTE[0] + rest
    why = "no measured kernels: at 0.85 to 0.93 of the peak bandwidth and 0.7 to 1.0 of the peak rate, as measured devices"
    return Interval(low, high, why), Interval(1 / REACHED_COMPUTE[1], 1 / REACHED_COMPUTE[0], why)


def numbers(point: Point) -> dict[str, list[float]]:
    """Result -> [low, high], as JSON has it."""
    results = point.results
    return {
        name: [results[name] * interval.low, results[name] * interval.high]
        for name, interval in intervals(point).items()
    }


def comparison(
    first: Mapping[str, Any], second: Mapping[str, Any], name: str, interval: Interval
) -> tuple[float, float]:
    """The 80 % interval of `first` over `second` in the result `name`, for designs on one device and stack.

    What both have in common errs alike: of two times, only the part in which they differ is unsure.
    """
    a, b = float(first[name]), float(second[name])
    differs = abs(a - b) / max(a, b)
    return a / b * interval.low**differs, a / b * interval.high**differs


def confidence(ratio: float, low: float, high: float) -> float:
    """The chance that a ratio with this 80 % interval is on the side of 1 where it stands; 0.5 where nothing is known."""
    if ratio == 1 or low == high:
        return 0.5 if ratio == 1 else 1.0
    sigma = math.log(high / low) / (2 * 1.2816)
    return 0.5 * (1 + math.erf(abs(math.log(ratio)) / sigma / math.sqrt(2)))
