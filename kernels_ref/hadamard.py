"""Walsh-Hadamard transforms of many short vectors in float32, in the order of additions that butterflies have.

A stage takes neighbours (2i, 2i + 1) of the whole tile to places i and i + half: after m stages every run of 2^m
channels is transformed in natural order, steps of 1, 2, 4, .. as in the textbook, and the tile is transposed. All
loops are long and contiguous, whatever the length of a run.
"""

import numpy as np

from kernels_ref import half
from kernels_ref.jit import inner

#: elements of a tile: two buffers of it stay in the second-level cache
TILE = 2**12


@inner
def _by_two(x, y):
    n = x.size // 2
    low, high = y[:n], y[n:]
    for i in range(n):
        a, b = x[2 * i], x[2 * i + 1]
        low[i] = np.float32(a + b)
        high[i] = np.float32(a - b)


@inner
def _by_four(x, y):
    n = x.size // 4
    first, second, third, fourth = y[:n], y[n : 2 * n], y[2 * n : 3 * n], y[3 * n :]
    for i in range(n):
        a, b, c, d = x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]
        left, left_difference = np.float32(a + b), np.float32(a - b)
        right, right_difference = np.float32(c + d), np.float32(c - d)
        first[i] = np.float32(left + right)
        second[i] = np.float32(left_difference + right_difference)
        third[i] = np.float32(left - right)
        fourth[i] = np.float32(left_difference - right_difference)


@inner
def _copied(x, y):
    for i in range(x.size):
        y[i] = x[i]


@inner
def transform(x, y, stages):
    """Runs of 2^stages of x[runs * 2^stages] -> x[channel * runs + run], not normalised; y is as large, for work."""
    for _ in range(stages // 4):
        _by_four(x, y)
        _by_four(y, x)
    left = stages % 4
    if left == 3:
        _by_two(x, y)
        _by_four(y, x)
    elif left == 2:
        _by_four(x, y)
        _copied(y, x)
    elif left == 1:
        _by_two(x, y)
        _copied(y, x)


@inner
def transposed_halves(values, n_runs, bits):
    """float32 values[channel * n_runs + run] -> FP16 patterns bits[run * length + channel], within +-65504."""
    length = values.size // n_runs
    for first in range(0, length, 16):
        for run in range(n_runs):
            for channel in range(first, min(first + 16, length)):
                bits[run * length + channel] = half.from_f32(half.limited(values[channel * n_runs + run]))


def transposed(values: np.ndarray, n_runs: int) -> np.ndarray:
    """values[channel * n_runs + run] as [runs, channels]."""
    return np.ascontiguousarray(values.reshape(-1, n_runs).T)
