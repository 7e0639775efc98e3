"""FP16 as bit patterns (uint16) in kernels: numba has no half precision on CPUs.

Every function is exact or rounds once, to nearest even (IEEE 754-2019), in branch-free integer arithmetic, so that
loops over them vectorise.
"""

import numpy as np

from kernels_ref.jit import inner

#: bit patterns
ABS = np.uint16(0x7FFF)
SIGN = np.uint16(0x8000)
INFINITY = np.uint16(0x7C00)
LARGEST = np.uint16(0x7BFF)  # 65504
NAN = np.uint16(0x7E00)

_UP = np.float32(2.0**112)  # from a binary32 with the exponent of binary16 to its value


@inner
def to_f32(bits):
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
def from_f32(value):
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
    found = small if magnitude < np.uint32(0x38800000) else normal
    found = np.uint32(0x7C00) if magnitude >= np.uint32(0x477FF000) else found
    found = np.uint32(0x7E00) if magnitude > np.uint32(0x7F800000) else found
    return np.uint16(found | sign)


@inner
def rounded(value):
    """A float32 rounded to the nearest FP16 value, as float32: one step of half-precision arithmetic."""
    return to_f32(from_f32(value))


@inner
def order(bits):
    """An int16 that orders finite FP16 patterns as their values do, with -0 just below +0."""
    signed = np.int16(bits)
    return np.int16(signed ^ ((signed >> np.int16(15)) & np.int16(0x7FFF)))


@inner
def absmax(bits):
    """The pattern of the largest magnitude in bits[n], +0 for none: finite magnitudes order as their patterns do."""
    largest = np.uint16(0)
    for i in range(bits.size):
        largest = max(largest, np.uint16(bits[i] & ABS))
    return largest
