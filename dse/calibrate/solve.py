"""Robust least squares for a handful of parameters within bounds: scipy's, on log errors."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Predict = Callable[[Floats], Floats]

#: relative error from which on a row pulls with constant force (Huber): measurements repeat within 1 to 3 %
HUBER = 0.05
#: pull towards the usual value of a parameter, weaker than one row that is 5 % off: decides only what no row does
PRIOR = 1e-3


@dataclass(frozen=True)
class Space:
    """Names, usual values and bounds of parameters, each in a scale where its usual value is near one."""

    names: tuple[str, ...]
    usual: Floats
    low: Floats
    high: Floats

    def index(self, names: Sequence[str]) -> list[int]:
        """Places of the named parameters."""
        return [self.names.index(name) for name in names]


def undetermined(predict: Predict, weights: Floats, space: Space, point: Floats, free: Sequence[int]) -> list[str]:
    """Names of parameters about which the rows say less than the pull towards the usual value."""
    from scipy.optimize import approx_fprime

    places = np.array(free)

    def log_predicted(values: Floats) -> Floats:
        return np.log(predict(_with(point, places, values)))

    slopes = approx_fprime(point[places], log_predicted, 1e-6 * np.maximum(1e-2, np.abs(point[places])))
    prior = PRIOR / _usual(space)[places] ** 2
    spread = np.diag(np.linalg.inv((slopes * weights[:, None]).T @ slopes + np.diag(prior)))
    return [space.names[place] for place, weight in zip(places, 1 / spread - prior, strict=True) if weight < PRIOR]


def solve(
    predict: Predict, measured: Floats, weights: Floats, space: Space, start: Floats, free: Sequence[int]
) -> tuple[Floats, float]:
    """The parameters that predict `measured` best (relative error, Huber), and the loss; only `free` ones move.

    The loss is the weighted sum over rows plus the weak pull towards the usual values.
    """
    from scipy.optimize import least_squares

    places = np.array(free)
    start = np.clip(start, space.low, space.high)
    log_measured = np.log(measured)
    usual, scale = space.usual[places], _usual(space)[places]
    counts = np.concatenate((weights, np.ones(len(places))))
    is_row = np.arange(len(counts)) < len(weights)

    def residuals(values: Floats) -> Floats:
        off = np.log(predict(_with(start, places, values))) - log_measured
        return np.concatenate((off, math.sqrt(PRIOR) * (values - usual) / scale))

    def loss(z: Floats) -> Floats:
        """The loss of squares over HUBER squared, with derivatives: Huber's for rows, the square for the pull."""
        far = is_row & (z > 1)
        root = np.sqrt(np.where(far, z, 1.0))
        return counts * np.array((np.where(far, 2 * root - 1, z), 1 / root, np.where(far, -0.5 / root**3, 0.0)))

    # dogbox: a parameter that belongs on its bound ends there exactly (0 is an absent term)
    solution = least_squares(
        residuals,
        start[places],
        bounds=(space.low[places], space.high[places]),
        method="dogbox",
        loss=loss,
        f_scale=HUBER,
    )
    return _with(start, places, solution.x), float(solution.cost)


def _usual(space: Space) -> Floats:
    return np.where(space.usual > 0, space.usual, 1.0)


def _with(point: Floats, places: NDArray[np.intp], values: Floats) -> Floats:
    moved = point.copy()
    moved[places] = values
    return moved
