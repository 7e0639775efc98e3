"""Two designs against each other: how many times as good one is, and how sure that is, assumed rates included."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from dse.model import engine, implementations, kernels, uncertainty
from dse.model.intervals import Interval
from dse.model.kv_layout import KvPlan, Same
from dse.model.point import Point
from dse.model.uncertainty import Gain
from dse.specs.device_and_model import HardwareSpec
from dse.specs.implementation import ENDS
from dse.specs.quantity import ASSUMED, Quantity
from dse.specs.stack import ServedStack
from dse.specs.workload import Workload

#: numbers of a device that bear on one design and not on another: rates of packing and unpacking, starts, links
VARIED = ("engine_rate", "quantize_rate", "fused_rate", "kernel_launch", "link_bandwidth")
#: kernels that read keys and values, as `StackSpec.fits` names them
OF_ATTENTION = ("attention", "latent.", "sparse.", "kv.")
#: results that `engine.speed` has
_QUICK = (uncertainty.RATE, "decode_step_s")


class Case(NamedTuple):
    """A design to evaluate: a device, a model laid out under its quantizers, a workload."""

    device: HardwareSpec
    plan: KvPlan
    work: Workload


class Comparison:
    """Compares designs in one rate, time, energy or cost; keeps the devices that it varies."""

    def __init__(self, column: str = uncertainty.RATE) -> None:
        self.column = column
        self._varied: dict[tuple[Same, str], tuple[HardwareSpec, ...]] = {}

    def gain(self, first: Case, second: Case) -> Gain | None:
        """Compare two designs: the factor by which the first is better; None if one of them does not run.

        Errors are those of `uncertainty.gain`, and the ranges of the assumed numbers of `VARIED`, each at both ends of
        its range (half and twice its value, where it has none of its own) for both designs of one device, for one at a
        time of two devices.
        """
        base = self._results(first), self._results(second)
        if any(results.get(self.column) is None for results in base):
            return None
        return uncertainty.gain(*base, self.column, list(self._shifts(first, second, base)))

    def _results(self, case: Case) -> dict[str, Any]:
        return (engine.speed if self.column in _QUICK else engine.evaluate)(Point(*case))

    def _shifts(self, first: Case, second: Case, base: tuple[dict[str, Any], dict[str, Any]]) -> Iterator[Interval]:
        """Yield, for each assumed number, the factors by which the gain changes inside its range."""
        usual = uncertainty.predicted_gain(*base, self.column)
        yield from self._kernels(first, second, base, usual)
        yield from self._stacks(first, second, usual)
        sides = [(True, True)] if first.device == second.device else [(True, False), (False, True)]
        for side in sides:
            for name in VARIED:
                if not any(name in results["assumptions"] for results, is_on in zip(base, side, strict=True) if is_on):
                    continue
                ratios = [1.0]
                for end in (0, 1):
                    pair = [
                        self._results(case._replace(device=self._device(case.device, name, end))) if is_on else results
                        for case, results, is_on in zip((first, second), base, side, strict=True)
                    ]
                    ratios.append(uncertainty.predicted_gain(pair[0], pair[1], self.column) / usual)
                yield Interval(min(ratios), max(ratios), f"{name} is assumed, in its range")

    def _kernels(
        self, first: Case, second: Case, base: tuple[dict[str, Any], dict[str, Any]], usual: float
    ) -> Iterator[Interval]:
        """Yield the factors by which the gain changes at both ends of the ranges of the KV kernels.

        Both designs move together where they run the same kernels, one at a time where they differ.
        """
        ranged = [_ranged(case) for case in (first, second)]
        sides = [(True, True)] if ranged[0].keys() == ranged[1].keys() else [(True, False), (False, True)]
        for side in sides:
            names = sorted({name for runs, is_on in zip(ranged, side, strict=True) if is_on for name in runs.values()})
            if not names:
                continue
            ratios = [1.0]
            for end in ENDS:
                pair = [
                    self._results(case._replace(work=implementations.at_end(case.work, end)))
                    if is_on and runs
                    else results
                    for case, results, is_on, runs in zip((first, second), base, side, ranged, strict=True)
                ]
                if any(results.get(self.column) is None for results in pair):
                    continue
                ratios.append(uncertainty.predicted_gain(pair[0], pair[1], self.column) / usual)
            yield Interval(min(ratios), max(ratios), f"what {', '.join(names)} reach")

    def _stacks(self, first: Case, second: Case, usual: float) -> Iterator[Interval]:
        """Yield the factors by which the gain changes under the kernels of other stacks, where one design of a pair on
        one device runs by kernels that were borrowed from another stack and the other does not."""
        places = [borrowed_places(case) for case in (first, second)]
        if places[0] == places[1] or first.device != second.device:
            return
        wanted = places[0] ^ places[1]
        ratios = [1.0]
        for name, stack in first.device.stacks.items():
            if not wanted <= {*stack.fits()}:
                continue
            pair = [self._results(case._replace(work=replace(case.work, stack=name))) for case in (first, second)]
            if all(results.get(self.column) is not None for results in pair):
                ratios.append(uncertainty.predicted_gain(pair[0], pair[1], self.column) / usual)
        if len(ratios) > 1:
            yield Interval(min(ratios), max(ratios), "what kernels of the class reach in other stacks")

    def _device(self, device: HardwareSpec, name: str, end: int) -> HardwareSpec:
        """The device with a number at the low (0) or the high (1) end of its range."""
        key = Same(device), name
        if key not in self._varied:
            number = device.rate(name.removesuffix("_rate")) if name.endswith("_rate") else getattr(device, name)
            varied = [
                Quantity(value=factor * number.value, unit=number.unit, source="end of its range", kind=ASSUMED)
                for factor in number.factors
            ]
            self._varied[key] = tuple(device.model_copy(update={name: quantity}) for quantity in varied)
        return self._varied[key][end]


def borrowed_places(case: Case) -> frozenset[str]:
    """The kernels of attention that a design's stack has not, so that those of another stack stand in."""
    point = Point(*case)
    if not isinstance(point.stack, ServedStack):
        return frozenset()
    used = kernels.fits_used(point.plan, point.paths, point.work, point.stack)
    return frozenset(place for place in used if place in point.stack.borrowed and place.startswith(OF_ATTENTION))


def _ranged(case: Case) -> dict[str, str]:
    """The names, by key, of the implementations inside whose ranges the times of a design move."""
    point = Point(*case)
    return {run.key: run.name for run in implementations.ranged(point.plan, point.work, point.stack)}
