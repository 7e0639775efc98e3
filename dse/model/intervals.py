"""Intervals of the times and of the pool of a design: what 8 of 10 measurements are of what is predicted, and why.

A server errs as measured ones did, each model left out of the fit that judged it. Kernels of another device, a data
sheet alone or another release make that wider. docs/explanation/model.md, How sure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dse.model.kernels import (
    MIDDLE_BANDWIDTH,
    MIDDLE_COMPUTE,
    REACHED_BANDWIDTH,
    REACHED_COMPUTE,
    benchmarked_as,
    by_backend,
)
from dse.model.kv_layout import KvPlan
from dse.model.stacks import age_text, kind_of
from dse.specs import catalog, measured_memory, releases, servers
from dse.specs.device_and_model import HardwareSpec
from dse.specs.implementation import ANY_GPU
from dse.specs.quantity import ASSUMED
from dse.specs.stack import Fit, Kind, ServedStack, Spread, StackSpec
from dse.specs.workload import Workload

#: half the width of the 80 % interval of a normal distribution over its mean absolute error: 1.2816 / sqrt(2 / pi)
WIDTH_80 = 1.606
#: degrees of freedom of errors, whose tails are heavier than a normal distribution's, and the end of 8 of 10 of them in
#: their unit: of pairs of servers likelier than 3 or 12, a little less so than 5 (calibration/shared_errors.py)
FREEDOM, END_80 = 4, 1.5332
#: how a model is laid out over devices: in how many parts, and whether attention or experts are laid out otherwise
SPLIT, GROUPS = ("tp", "pp"), ("ep", "dp_attention", "dcp")
#: a device that runs by the kernels of another is known so much less, either way: of its generation, or by numbers that
#: are assumed; of another generation; of another vendor, whose kernels are other programs. Assumed, all three
OTHER_DEVICE, OTHER_GENERATION, OTHER_VENDOR = 1.15, 1.3, 1.5
#: vendors whose GPUs' times per token were fitted to servers of their own (hwspecs/benchmarked/kernels.toml), 5 to 10 %
#: others as models and devices are left out, so they are known as another device's; first tokens were not fitted
FITTED_VENDORS = ("AMD",)
#: where no server was measured, its release is off by so much, either way: 260 rows of 8 measured releases
#: (whole_steps.csv) predicted by the nearest other, whose logarithms spread 0.395 (dense) and 0.57 (mixtures) from the
#: 10th to the 90th percentile, by their own 0.277 and 0.45
OTHER_RELEASE = 1.17
#: a burst is known so much less than a steady server, either way; and where all prompts come before all decoding, so
#: that the server's choice of how many to admit decides. Of 183 bursts of public benchmarks
BURST, PROMPTS_FIRST_BURST = 1.1, 1.6
#: rates whose ranges are results, and the beginning of their names
ENERGY_RANGES = {"energy_per_byte": "byte_energy", "energy_per_flop": "flop_energy"}


class Interval(NamedTuple):
    """Interval of measured / predicted, with its derivation."""

    low: float
    high: float
    why: str

    def inverse(self) -> "Interval":
        """Return the interval of the reciprocal."""
        return Interval(1 / self.high, 1 / self.low, self.why)

    def logs(self) -> tuple[float, float]:
        """Return the logarithm of its middle, and half its width in logarithms."""
        return math.log(self.low * self.high) / 2, math.log(self.high / self.low) / 2

    @classmethod
    def of_logs(cls, middle: float, half: float, why: str) -> "Interval":
        """Return the interval with these `logs`."""
        return cls(math.exp(middle - half), math.exp(middle + half), why)


class Intervals(NamedTuple):
    """Intervals of the times per output token and of the prefill times."""

    tokens: Interval
    first: Interval


def time_intervals(
    device: HardwareSpec, plan: KvPlan, work: Workload, stack: StackSpec | None, stack_name: str | None
) -> Intervals:
    """Return the intervals of the times of a design, whatever its batch and lengths."""
    kind = kind_of(stack, work)
    wider = 1.0 if by_backend(stack) else borrowed_width(device)
    if isinstance(stack, ServedStack) and stack.host:
        spread, why = _spread(device, plan, work, stack, stack_name)
        tokens, first = (Interval(*ends, why) for ends in _ends_of(spread))
    else:
        kernels = without_kernels(kind) if stack is None else Intervals(*[of_fits((stack.attention, stack.gemm))] * 2)
        model, servers = plan.whole_model.name, catalog.servers().values()
        spread = widest([server.models.get(model) or server.left_out[_kind_of(plan)] for server in servers])
        release = Interval(1 / OTHER_RELEASE, OTHER_RELEASE, "")
        why = f"{kernels.tokens.why}; a server errs as on {spread.n_points} measured rows"
        tokens, first = (
            product([kernel, Interval(*ends, ""), release], why)
            for kernel, ends in zip(kernels, _ends_of(spread), strict=True)
        )
    of_tokens = wider
    if stack and stack.host and device.vendor in FITTED_VENDORS and _other_width(device) == OTHER_VENDOR:
        of_tokens = wider / OTHER_VENDOR * OTHER_DEVICE
    least = 1.0 if kind == "ideal" else 0.0  # nothing is faster than the peaks

    def widened(error: Interval, times: float) -> Interval:
        more = f"; {times:g} times wider: kernels of another device, or assumed numbers" if times > 1 else ""
        return Interval(max(error.low / times, least), error.high * times, why + more)

    return Intervals(widened(tokens, of_tokens), widened(first, wider))


def pool_interval(device: HardwareSpec, work: Workload, stack_name: str | None, free_bytes: int) -> Interval | None:
    """Return the interval of a server's pool of `free_bytes`: start-ups of one command differ, by what was compiled
    before, and those of a class of devices by as much as they did from what was computed.

    None where no server lays out a pool, nothing is left for one, or its size is given, by the user or by a log.
    """
    is_given = work.kv_cache_memory_bytes or work.max_total_tokens or measured_memory.of(work.calibrated)
    if free_bytes <= 0 or not device.reported_memory or is_given:
        return None
    server = servers.of(stack_name, device, work.stack)
    low, high = (1 + end.si * device.reported_bytes / free_bytes for end in (server.pool_low, server.pool_high))
    return Interval(max(low, 0.0), high, server.pool_low.source)


def widest(spreads: Sequence[Spread]) -> Spread:
    """Return the spread from the lowest to the highest end of several."""
    lows, highs = (
        {name: pick(getattr(spread, name) for spread in spreads) for name in names}
        for pick, names in ((min, ("low", "first_low")), (max, ("high", "first_high")))
    )
    return Spread(**lows, **highs, n_points=spreads[0].n_points)


def _ends_of(spread: Spread) -> tuple[tuple[float, float], tuple[float, float]]:
    return (spread.low, spread.high), (spread.first_low, spread.first_high)


def _kind_of(plan: KvPlan) -> Kind:
    return "mixture" if plan.whole_model.n_experts > 1 else "dense"


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
    """Return the factor by which kernels of another device, or assumed numbers, widen the interval; 1 for neither.

    A file that names no architecture, or no chip that it borrows from, is taken for a GPU of the same generation.
    """
    assumed = ASSUMED in (device.memory_bandwidth.kind, device.peak_flops.kind)
    return (OTHER_DEVICE if assumed else 1.0) * _other_width(device)


def _other_width(device: HardwareSpec) -> float:
    if not device.stacks_of:
        return 1.0
    architecture = device.architecture
    if architecture is None and device.vendor in ("", "NVIDIA"):
        return OTHER_GENERATION if device.vendor else OTHER_DEVICE
    if architecture is None or not architecture.startswith(ANY_GPU):
        return OTHER_VENDOR
    lender = catalog.device(device.stacks_of).architecture or architecture
    # compute capability 8.6 is sm_86: all but the last digit count generations
    return OTHER_DEVICE if architecture[:-1] == lender[:-1] else OTHER_GENERATION


def of_burst(interval: Interval, prompts_first: bool) -> Interval:
    """Return the interval of a burst, whose ramp, tail and mixed steps add to that of a steady server."""
    wider = PROMPTS_FIRST_BURST if prompts_first else BURST
    return Interval(
        interval.low / wider, interval.high * wider, f"{interval.why}; {wider:g} times wider: all requests at once"
    )


def _spread(
    device: HardwareSpec, plan: KvPlan, work: Workload, stack: ServedStack, stack_name: str | None
) -> tuple[Spread, str]:
    """Return how far off a server is on models left out of its fit: on this model, or on its kind; of a release for
    which another stands in, wider by the weeks between the two."""
    model, kind = plan.whole_model, _kind_of(plan)
    spread = stack.models.get(model.name) or stack.left_out.get(kind) or next(iter(stack.left_out.values()))
    rows = f"{model.name} on {stack_name}" if model.name in stack.models else f"{kind} models"
    why = f"{spread.n_points} measured rows of {rows}, each by a fit that its model was left out of"
    if public := benchmarked_as(device, model, work, stack):
        return widest([public.spread, spread]), f"{why}; public benchmarks of {kind} models ({public.spread.kind})"
    if aged := age_text(stack_name, stack, work):
        why += f"; {aged}"
    if not stack.stands_in:
        return spread, why
    release = of_age(stack_name or "", stack.stands_in, work.stack or "")
    (low, high, _), (first_low, first_high, _) = (product([Interval(*ends, ""), release]) for ends in _ends_of(spread))
    wider = Spread(low=low, high=high, first_low=first_low, first_high=first_high, n_points=spread.n_points)
    return wider, f"{why}: {release.high:.2f} times off by that"


def of_age(stack_name: str, measured: str, asked: str) -> Interval:
    """Return by how much a release (`vllm@0.33.0`) differs from a measured one of the same software: as measured
    releases do, by the root of the weeks between them."""
    weeks = abs(releases.weeks_between(stack_name, measured, asked.partition("@")[2]))
    half = catalog.shared_errors().age.week * math.sqrt(weeks)
    return Interval.of_logs(0.0, half, "")


def of_fits(fits: Iterable[Fit | None]) -> Interval:
    """Return the interval of the worst of several kernel fits, those that there are; errors are taken as normal."""
    errors = [fit.held_out_error if fit.serving_error is None else fit.serving_error for fit in fits if fit]
    mean = max(errors, default=0.0)
    width = min(WIDTH_80 * mean, 0.9)
    return Interval(1 - width, 1 + width, f"kernels on rows held out of their fits, mean error {mean:.1%}")


def product(intervals: Sequence[Interval], why: str = "") -> Interval:
    """Interval of a product of independent factors: middles multiply, squares of the log widths add."""
    middle = math.sqrt(math.prod(factor.low * factor.high for factor in intervals))
    half = math.exp(math.hypot(*(math.log(factor.high / factor.low) for factor in intervals)) / 2)
    return Interval(middle / half, middle * half, why)


def total(parts: Sequence[tuple[float, Interval]], why: str = "") -> Interval:
    """Interval of a sum of parts (predicted, interval) with independent errors: squares add on either side. It reaches
    the sum of what is predicted, from which parts that err to one side all lie away."""
    middles = [value * math.sqrt(factor.low * factor.high) for value, factor in parts]
    below = math.hypot(*(middle - value * factor.low for middle, (value, factor) in zip(middles, parts, strict=True)))
    above = math.hypot(*(value * factor.high - middle for middle, (value, factor) in zip(middles, parts, strict=True)))
    predicted = math.fsum(value for value, _ in parts)
    low, high = ((math.fsum(middles) + end) / predicted for end in (-below, above))
    return Interval(min(low, 1.0), max(high, 1.0), why)


def energy_factors(device: HardwareSpec) -> dict[str, float]:
    """The ranges that a device's file gives its J/B and J/FLOP, as factors by the name of the result; 1 where none."""
    ends = {}
    for rate, name in ENERGY_RANGES.items():
        number = getattr(device, rate)
        ends[f"{name}_low"], ends[f"{name}_high"] = number.factors if number and number.low is not None else (1.0, 1.0)
    return ends


def shared(first: Mapping[str, Any], second: Mapping[str, Any]) -> float:
    """Return the correlation of two designs' errors: 1 for those that differ in batch, lengths, keys and values alone,
    else the product of what was measured of each difference (`catalog.shared_errors`), 0 for two models."""
    if first["model"] != second["model"] or first["model_kind"] != second["model_kind"]:
        return 0.0
    known = catalog.shared_errors()
    names = [str(results["stack"] or "") for results in (first, second)]
    engines = [name.partition("@")[0] for name in names]
    is_run = first["model_kind"] == "calibrated"  # where no kernels were measured no stack counts
    different = (
        (known.split, any(first[name] != second[name] for name in SPLIT)),
        (known.groups, any(first[name] != second[name] for name in GROUPS)),
        (known.engine, is_run and engines[0] != engines[1]),
        (known.release, is_run and engines[0] == engines[1] and names[0] != names[1]),
        (known.device, first["device"] != second["device"]),
        (known.weights, str(first["weights"]) != str(second["weights"])),
    )
    return math.prod(correlation for correlation, is_different in different if is_different)
