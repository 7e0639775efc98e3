"""FP16 as bit patterns (uint16) in kernels: numba has no half precision on CPUs.

Every function is exact or rounds once, to nearest even (IEEE 754-2019), in branch-free integer arithmetic, so that
loops over them vectorize.
"""

import numpy as np

from kernels_ref.jit import inner

#: bit patterns
ABS = np.uint16(0x7FFF)
SIGN = np.uint16(0x8000)
INFINITY = np.uint16(0x7C00)
LARGEST = np.uint16(0x7BFF)  # 65504

#: the value of `LARGEST`
LARGEST_VALUE = np.float32(65504)
#: added to a float32 below 2^22 it leaves the nearest integer, ties to even, in the low bits of the pattern
TO_INTEGER = np.float32(1.5 * 2.0**23)
_UP = np.float32(2.0**112)  # from a binary32 with the exponent of binary16 to its value


@inner
def to_f32(bits: np.uint16) -> np.float32:
    """The value of an FP16 pattern as float32, exactly; subnormals, infinities and NaN included."""
    wide = np.uint32(bits)
    magnitude = (wide & np.uint32(0x7FFF)) << np.uint32(13)
    value = np.float32(np.uint32(magnitude).view(np.float32) * _UP)
    special = np.uint32(magnitude | np.uint32(0x7F800000)).view(np.float32)
    chosen = np.float32(special if magnitude >= np.uint32(0x0F800000) else value)
    return np.uint32(np.float32(chosen).view(np.uint32) | ((wide & np.uint32(0x8000)) << np.uint32(16))).view(
        np.float32
    )


@inner
def finite(bits: np.uint16) -> np.float32:
    """The value of a finite FP16 pattern as float32."""
    wide = np.uint32(np.int32(np.int16(bits)) << np.int32(13)) & np.uint32(0x8FFFE000)
    return np.float32(np.uint32(wide).view(np.float32) * _UP)


@inner
def from_f32(value: np.float32) -> np.uint16:
    """The FP16 pattern nearest to a float32, ties to even; beyond 65504 + half a step infinity, NaN 0x7E00."""
    bits = np.float32(value).view(np.uint32)  # numba widens what follows to 64 bits: cast back before each view
    sign = (bits >> np.uint32(16)) & np.uint32(0x8000)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    # normal results: drop 13 bits of the significand, ties to even, and rebase the exponent
    odd = (magnitude >> np.uint32(13)) & np.uint32(1)
    normal = np.uint32(magnitude + np.uint32(0xFFF) + odd - np.uint32(0x38000000)) >> np.uint32(13)
    # subnormal results: adding 0.5 leaves the 10 bits at the bottom of the sum, rounded by the addition itself
    lifted = np.float32(np.uint32(magnitude).view(np.float32) + np.float32(0.5))
    small = np.float32(lifted).view(np.uint32) - np.uint32(0x3F000000)
    nearest = small if magnitude < np.uint32(0x38800000) else normal
    nearest = np.uint32(0x7C00) if magnitude >= np.uint32(0x477FF000) else nearest
    nearest = np.uint32(0x7E00) if magnitude > np.uint32(0x7F800000) else nearest
    return np.uint16(nearest | sign)


@inner
def rounded(value: np.float32) -> np.float32:
    """A float32 rounded to the nearest FP16 value, as float32: one step of half-precision arithmetic."""
    return to_f32(from_f32(value))


@inner
def eleven_bits(value: np.float32) -> np.float32:
    """A float32 rounded to 11 significant bits, ties to even: `rounded` without the range of FP16.

    The two agree up to 65520 where the value is a multiple of 2^-24, as sums of FP16 values and their integer multiples
    are.
    """
    bits = np.float32(value).view(np.uint32)
    odd = (bits >> np.uint32(13)) & np.uint32(1)
    return np.uint32((bits + np.uint32(0xFFF) + odd) & np.uint32(0xFFFFE000)).view(np.float32)


@inner
def widen(bits: np.ndarray, values: np.ndarray) -> None:
    """Finite patterns bits[n] as float32 values[n]."""
    for i in range(bits.size):
        values[i] = finite(bits[i])


@inner
def rint(value: np.float32) -> np.float32:
    """A float32 below 2^22 rounded to an integer, ties to even."""
    return np.float32(np.float32(value + TO_INTEGER) - TO_INTEGER)


@inner
def limited(value: np.float32) -> np.float32:
    """A float32 within +-65504."""
    return min(max(value, -LARGEST_VALUE), LARGEST_VALUE)


@inner
def order(bits: np.uint16) -> np.int16:
    """An int16 that orders finite FP16 patterns as their values do, with -0 just below +0; its own inverse."""
    signed = np.int16(bits)
    return np.int16(signed ^ ((signed >> np.int16(15)) & np.int16(0x7FFF)))


@inner
def extremes(bits: np.ndarray) -> tuple[np.int16, np.int16]:
    """Order keys of the smallest and the largest of bits[n]."""
    lowest, highest = np.int16(32767), np.int16(-32768)
    for i in range(bits.size):
        key = order(bits[i])
        lowest = min(lowest, key)
        highest = max(highest, key)
    return lowest, highest


@inner
def absmax(bits: np.ndarray) -> np.uint16:
    """The pattern of the largest magnitude in bits[n], +0 for none: finite magnitudes order as their patterns do."""
    largest = np.uint16(0)
    for i in range(bits.size):
        largest = max(largest, np.uint16(bits[i] & ABS))
    return largest


@inner
def extent(bits: np.ndarray) -> tuple[np.float32, np.float32]:
    """(smallest, largest) of bits[n] as float32."""
    lowest, highest = extremes(bits)
    return to_f32(np.uint16(order(np.uint16(lowest)))), to_f32(np.uint16(order(np.uint16(highest))))


@inner
def to_nibble(value: np.float32) -> np.uint16:
    """An integer in float32, clipped into 0 to 15, as uint16; 0 for NaN."""
    positive = value if value > np.float32(0) else np.float32(0)
    return np.uint16(np.int32(positive if positive < np.float32(15) else np.float32(15)))


def order_of(bits: np.ndarray) -> np.ndarray:
    """`order` on arrays of patterns, int16."""
    signed = bits.view(np.int16)
    return signed ^ ((signed >> 15) & np.int16(ABS))


def values_of(keys: np.ndarray) -> np.ndarray:
    """The float32 values of finite FP16 numbers by their order keys."""
    return order_of(keys.astype(np.int16)).view(np.float16).astype(np.float32)


def all_patterns() -> np.ndarray:
    """All 65,536 FP16 patterns as float16, by pattern."""
    return np.arange(2**16, dtype=np.uint16).view(np.float16)
