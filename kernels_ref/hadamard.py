"""Walsh-Hadamard transforms of many short vectors in float32, in the order of additions that butterflies have.

A stage takes neighbours (2i, 2i + 1) of the whole tile to places i and i + half: after m stages every run of 2^m
channels is transformed in natural order, steps of 1, 2, 4, .. as in the textbook, and the tile is transposed. All
loops are long and contiguous, whatever the length of a run.
"""

import numpy as np

from kernels_ref.jit import inner
from kernels_ref.minifloat import pattern, value_of
from kernels_ref.packing import copied

#: elements of a tile: two buffers of it stay in the second-level cache
TILE = 2**12


@inner
def _by_two(x: np.ndarray, y: np.ndarray) -> None:
    n = x.size // 2
    low, high = y[:n], y[n:]
    for i in range(n):
        a, b = x[2 * i], x[2 * i + 1]
        low[i] = np.float32(a + b)
        high[i] = np.float32(a - b)


@inner
def transform(x: np.ndarray, y: np.ndarray, stages: np.int64) -> None:
    """Runs of 2^stages of x[runs * 2^stages] -> x[channel * runs + run], not normalized; y is as large, for work."""
    for _ in range(stages // 2):
        _by_two(x, y)
        _by_two(y, x)
    if stages % 2:
        _by_two(x, y)
        copied(y, x)


@inner
def saturated(value: np.float32) -> np.uint16:
    """The FP16 pattern nearest to a float32, ties to even, of what is beyond 65504 that of 65504; not for NaN."""
    bits = pattern(value)
    magnitude = np.uint32(min(np.uint32(bits & np.uint32(0x7FFFFFFF)), np.uint32(0x477FE000)))
    odd = np.uint32(np.uint32(magnitude >> np.uint32(13)) & np.uint32(1))
    lifted = np.uint32(np.uint32(magnitude + np.uint32(0xFFF)) + odd)
    normal = np.uint32(np.uint32(lifted - np.uint32(0x38000000)) >> np.uint32(13))
    # subnormal results: the sum with 0.5 has its last bit at 2^-24
    small = np.uint32(pattern(np.float32(value_of(magnitude) + np.float32(0.5))) - np.uint32(0x3F000000))
    rounded = small if magnitude < np.uint32(0x38800000) else normal
    return np.uint16(np.uint32(rounded | np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(0x8000))))


@inner
def saturated_value(value: np.float32) -> np.float32:
    """The value of `saturated` as float32."""
    bits = pattern(value)
    magnitude = np.uint32(min(np.uint32(bits & np.uint32(0x7FFFFFFF)), np.uint32(0x477FE000)))
    odd = np.uint32(np.uint32(magnitude >> np.uint32(13)) & np.uint32(1))
    lifted = np.uint32(np.uint32(magnitude + np.uint32(0xFFF)) + odd)
    normal = np.uint32(lifted & np.uint32(0xFFFFE000))
    small = pattern(np.float32(np.float32(value_of(magnitude) + np.float32(0.5)) - np.float32(0.5)))
    rounded = small if magnitude < np.uint32(0x38800000) else normal
    return value_of(np.uint32(rounded | np.uint32(bits & np.uint32(0x80000000))))


@inner
def narrowed(values: np.ndarray, bits: np.ndarray) -> None:
    """float32 -> FP16 patterns within +-65504."""
    for i in range(bits.size):
        bits[i] = saturated(values[i])


@inner
def transposed(source: np.ndarray, n_runs: int, target: np.ndarray) -> None:
    """source[channel * n_runs + run] -> target[run * channels + channel]."""
    length = source.size // n_runs
    for run in range(n_runs):
        for channel in range(length):
            target[run * length + channel] = source[channel * n_runs + run]
