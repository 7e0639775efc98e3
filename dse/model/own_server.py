"""Predictions corrected by a user's own measurements of a server: a factor on the time per token, and how sure it is.

A prediction and the measured points err together as measured servers do (`catalog.shared_errors`): two loads of one
server by `load`, and less by each other thing in which servers differ; errors of other weights did not carry over.
Errors are taken as jointly normal around nothing, so the factor is what the points say of the prediction's own error,
drawn back to 1 by what they do not say; the interval keeps the rest. docs/explanation/model.md, How sure.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dse.core.errors import InputError, show
from dse.core.version import VERSION
from dse.model.intervals import END_80, FREEDOM, Interval, shared
from dse.model.kv_layout import KvPlan
from dse.model.stacks import KERNELS, kind_of, stack_text
from dse.specs import catalog, measured_memory
from dse.specs.device_and_model import HardwareSpec
from dse.specs.measured_memory import MeasuredPoint, MeasuredTimes
from dse.specs.stack import StackSpec
from dse.specs.workload import Workload

#: points of which each is predicted by the others to judge how sure a correction is, at least
LEAST_LEFT_OUT = 3


class Correction(NamedTuple):
    """A factor on a server's time per token, and the width of its interval, in logarithms, over that before."""

    factor: float
    width: float
    n_points: int

    def of(self, interval: Interval) -> Interval:
        """Return an interval narrowed around what is now predicted."""
        why = f"{interval.why}; {self.n_points} points of one's own leave {self.width:.0%} of that"
        return Interval(interval.low**self.width, interval.high**self.width, why)


def correction(points: Sequence[MeasuredPoint], server: Mapping[str, Any], half: float) -> Correction:
    """Return what the measured `points` say of a `server`, described as results describe it, whose error has an 80 %
    interval of `half` to either side, in logarithms. Points of other weights say nothing of it."""
    points = [point for point in points if point.weights == server["weights"]]
    factor, width = _known_by(points, server)
    if len(points) >= LEAST_LEFT_OUT and half > 0:
        width = min(width * math.sqrt(_spread(points, half)), 1.0)
    return Correction(math.exp(factor), width, len(points))


def left_out(points: Sequence[MeasuredPoint]) -> list[tuple[float, float]]:
    """Return each point's logarithm of measured over predicted, less what the others say of it, and the width."""
    found = []
    for i, point in enumerate(points):
        others = [other for other in (*points[:i], *points[i + 1 :]) if other.weights == point.weights]
        said, width = _known_by(others, as_server(point))
        found.append((math.log(point.measured_over_predicted) - said, width))
    return found


def _spread(points: Sequence[MeasuredPoint], half: float) -> float:
    """The square by which errors of points that the others predict are as expected: FREEDOM expected ones count too."""
    squares = [(off / (half / END_80 * width)) ** 2 for off, width in left_out(points)]
    return (FREEDOM + math.fsum(squares)) / (FREEDOM + len(squares))


def _known_by(points: Sequence[MeasuredPoint], server: Mapping[str, Any]) -> tuple[float, float]:
    """The expected logarithm of measured over predicted of a server that was not measured at this load, and the share
    of its standard deviation that is left."""
    import numpy as np  # not needed for a point without measurements

    if not points:
        return 0.0, 1.0
    load, servers = catalog.shared_errors().load, [as_server(point) for point in points]
    among = np.array([[load * shared(first, second) for second in servers] for first in servers])
    np.fill_diagonal(among, 1.0)
    weights = np.linalg.solve(among, np.array([load * shared(server, other) for other in servers]))
    errors = np.log([point.measured_over_predicted for point in points])
    explained = load * math.fsum(w * shared(server, other) for w, other in zip(weights, servers, strict=True))
    return float(weights @ errors), math.sqrt(max(1.0 - explained, 0.0))


def as_server(point: MeasuredPoint) -> dict[str, Any]:
    """Describe the server of a point as results do, for `shared`; all points of a file have one model and device."""
    return {
        **point.model_dump(exclude={"id", "quantizer", "measured_over_predicted"}),
        "model": "",
        "device": "",
        **_MEASURED,
    }


#: where times of a point come from, for `shared`
_MEASURED = {"model_kind": "calibrated"}


def why_not(times: MeasuredTimes, device: HardwareSpec, stack: StackSpec | None, work: Workload, engine: str) -> str:
    """Say why measured times say nothing of a design; "" where they do."""
    if times.device != device.name.partition("+")[0]:
        return f"of {times.device}, not {device.name}"
    if times.engine != engine.partition("@")[0] or engine.endswith(f"@{KERNELS}"):
        return f"of {times.engine}, not {engine or 'the peaks'}"
    if kind_of(stack, work) != "calibrated" or not work.kv_cache:
        return "of a server with its KV cache"
    formats = sorted({point.weights for point in times.points})
    if (weights := measured_memory.weights_name(work)) not in formats:  # errors by weights did not carry over
        return f"of weights in {' and '.join(formats)}, not {weights}"
    return ""


def correction_of(
    device: HardwareSpec, plan: KvPlan, work: Workload, stack: StackSpec | None, stack_name: str | None, half: float
) -> Correction | None:
    """Return the correction of a design by the file that it is asked with; None where that says nothing of it.

    Raises InputError for a file of another model.
    """
    times = measured_memory.times_of(work.calibrated)
    if times is None:
        return None
    if times.model != plan.whole_model.name:
        raise InputError(
            f"calibrated = {show(work.calibrated)}: was measured with model {times.model}, not "
            f"{plan.whole_model.name}: add --model {times.model}, or leave --calibrated out"
        )
    if times.predicted_by != VERSION:
        raise InputError(
            f"calibrated = {show(work.calibrated)}: was measured against predictions of release {times.predicted_by}, "
            f"this is {VERSION}: run `dse calibrate server` again"
        )
    engine = stack_text(stack_name, work) or ""
    if why_not(times, device, stack, work, engine):
        return None
    split = {name: getattr(work, name) for name in ("tp", "pp", "ep", "dp_attention", "dcp")}
    server = {
        "stack": engine,
        "weights": measured_memory.weights_name(work),
        "model": "",
        "device": "",
        **split,
        **_MEASURED,
    }
    return correction(times.points, server, half)
