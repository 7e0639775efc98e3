"""Robust least squares for a handful of parameters within bounds: Levenberg and Marquardt's method on log errors."""

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
_MAX_STEPS = 200
_TRIES = 12
_SMALL = 1e-12


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


def _loss(residual: Floats, weights: Floats) -> float:
    size = np.abs(residual)
    return float((weights * np.where(size < HUBER, residual * residual / 2, HUBER * (size - HUBER / 2))).sum())


def _slopes(predict: Predict, point: Floats, log_predicted: Floats, places: NDArray[np.intp]) -> Floats:
    """Derivatives of the logarithms of the predictions, a column per parameter."""
    found = np.empty((len(log_predicted), len(places)))
    for column, place in enumerate(places):
        moved = point.copy()
        step = 1e-6 * max(1e-2, abs(point[place]))
        moved[place] += step
        found[:, column] = (np.log(predict(moved)) - log_predicted) / step
    return found


def undetermined(predict: Predict, weights: Floats, space: Space, point: Floats, free: Sequence[int]) -> list[str]:
    """Names of parameters about which the rows say less than the pull towards the usual value."""
    places = np.array(free)
    slopes = _slopes(predict, point, np.log(predict(point)), places)
    prior = PRIOR / np.where(space.usual > 0, space.usual, 1.0)[places] ** 2
    spread = np.diag(np.linalg.inv((slopes * weights[:, None]).T @ slopes + np.diag(prior)))
    return [space.names[place] for place, own in zip(places, 1 / spread - prior, strict=True) if own < PRIOR]


def solve(
    predict: Predict, measured: Floats, weights: Floats, space: Space, start: Floats, free: Sequence[int]
) -> tuple[Floats, float]:
    """The parameters that predict `measured` best (relative error, Huber), and the loss; only `free` ones move.

    The loss is the weighted sum over rows plus the weak pull towards the usual values.
    """
    places = np.array(free)
    log_measured = np.log(measured)
    usual = np.where(space.usual > 0, space.usual, 1.0)

    def at(parameters: Floats) -> tuple[Floats, float]:
        residual = np.log(predict(parameters)) - log_measured
        off = ((parameters - space.usual) / usual)[places]
        return residual, _loss(residual, weights) + PRIOR * float(off @ off) / 2

    now = np.clip(start, space.low, space.high)
    residual, loss = at(now)
    damping = 1e-3
    for _ in range(_MAX_STEPS):
        slopes = _slopes(predict, now, residual + log_measured, places)
        pull = weights * np.where(np.abs(residual) < HUBER, 1.0, HUBER / np.maximum(np.abs(residual), _SMALL))
        prior = PRIOR / usual[places] ** 2
        gradient = slopes.T @ (pull * residual) + prior * (now - space.usual)[places]
        curvature = (slopes * pull[:, None]).T @ slopes + np.diag(prior)
        stuck_low = (now[places] <= space.low[places]) & (gradient > 0)
        stuck_high = (now[places] >= space.high[places]) & (gradient < 0)
        moving = ~(stuck_low | stuck_high)
        if not moving.any():
            break
        better = False
        for _ in range(_TRIES):
            matrix = curvature[np.ix_(moving, moving)]
            matrix = matrix + damping * np.diag(np.diag(matrix))
            trial = now.copy()
            trial[places[moving]] += np.linalg.solve(matrix, -gradient[moving])
            trial = np.clip(trial, space.low, space.high)
            trial_residual, trial_loss = at(trial)
            if trial_loss < loss:
                better = True
                damping = max(damping / 5, 1e-9)
                break
            damping *= 4
        if not better:
            break
        gain = loss - trial_loss
        now, residual, loss = trial, trial_residual, trial_loss
        if gain < 1e-10 * loss:
            break
    return now, loss
