"""Small floats in kernels: codes of E2M1, E4M3, E5M2 and E8M0 from float32 and back (OCP Microscaling Formats 1.0).

Codes of E2M1, E4M3 and E5M2 saturate: 6, 448, 57344. Every function rounds once, in branch-free integer arithmetic on
the bit pattern, so that loops over them vectorize; NaN and infinities go where the docstrings say. `kernels_ref.fp8`
has the same conversions for arrays, with the ways that do not saturate.
"""

import numpy as np

from kernels_ref.jit import inner

#: largest finite value, and the exponent of the largest power of two, by format
LARGEST = {"e2m1": 6.0, "e4m3": 448.0, "e5m2": 57344.0}
LARGEST_EXPONENT = {"e2m1": 2, "e4m3": 8, "e5m2": 15}
#: values of the E2M1 codes 0 to 15, and of their magnitudes
E2M1_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1_VALUES = np.concatenate([E2M1_MAGNITUDES, -E2M1_MAGNITUDES])
#: bias of the E8M0 exponent, and its code of NaN
E8M0_BIAS = 127
E8M0_NAN = 255

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)


@inner
def pattern(value: np.float32) -> np.uint32:
    """The bits of a float32."""
    return np.uint32(np.float32(value).view(np.uint32))


@inner
def value_of(bits: np.uint32) -> np.float32:
    """The float32 of bits."""
    return np.float32(np.uint32(bits).view(np.float32))


@inner
def _e2m1(bits: np.uint32, above: np.uint32, small: np.uint32) -> np.uint8:
    """Sign and magnitude of E2M1: `above` is added before the bits that go are cut, `small` the code below 1."""
    magnitude = np.uint32(min(np.uint32(bits & _MAGNITUDE), np.uint32(0x40C00000)))  # 6
    normal = np.uint32(np.uint32(np.uint32(magnitude + above) >> np.uint32(22)) - np.uint32(252))
    code = small if magnitude < np.uint32(0x3F800000) else normal  # 1
    return np.uint8(np.uint32(code | np.uint32(np.uint32(bits >> np.uint32(28)) & np.uint32(8))))


@inner
def e2m1(value: np.float32) -> np.uint8:
    """The E2M1 code nearest to a float32, ties to even; saturates at 6, so do infinity and NaN; zero keeps its sign."""
    bits = pattern(value)
    magnitude = np.uint32(bits & _MAGNITUDE)
    small = np.uint32(np.uint32(magnitude > np.uint32(0x3E800000)) + np.uint32(magnitude >= np.uint32(0x3F400000)))
    odd = np.uint32(np.uint32(bits >> np.uint32(22)) & np.uint32(1))
    return _e2m1(bits, np.uint32(odd + np.uint32(0x1FFFFF)), small)


@inner
def e2m1_away(value: np.float32) -> np.uint8:
    """As `e2m1`, but ties go away from zero."""
    bits = pattern(value)
    magnitude = np.uint32(bits & _MAGNITUDE)
    small = np.uint32(np.uint32(magnitude >= np.uint32(0x3E800000)) + np.uint32(magnitude >= np.uint32(0x3F400000)))
    return _e2m1(bits, np.uint32(0x200000), small)


@inner
def e2m1_value(code: np.uint8) -> np.float32:
    """The value of an E2M1 code 0 to 15, exactly."""
    wide = np.uint32(code)
    magnitude = np.uint32(wide & np.uint32(7))
    normal = np.uint32(np.uint32(magnitude + np.uint32(252)) << np.uint32(22))
    small = np.uint32(np.uint32(0) - np.uint32(magnitude & np.uint32(1))) & np.uint32(0x3F000000)
    bits = small if magnitude < np.uint32(2) else normal
    return value_of(np.uint32(bits | np.uint32(np.uint32(wide & np.uint32(8)) << np.uint32(28))))


@inner
def e4m3(value: np.float32) -> np.uint8:
    """The E4M3 code nearest to a float32, ties to even; saturates at 448, infinity too; NaN is 0x7F and its sign."""
    bits = pattern(value)
    exact = np.uint32(bits & _MAGNITUDE)
    magnitude = np.uint32(min(exact, np.uint32(0x43E00000)))  # 448
    odd = np.uint32(np.uint32(magnitude >> np.uint32(20)) & np.uint32(1))
    normal = np.uint32(np.uint32(np.uint32(magnitude + np.uint32(0x7FFFF) + odd) >> np.uint32(20)) - np.uint32(960))
    # subnormal: the sum with 2^14 has its last bit at 2^-9
    small = np.uint32(pattern(value_of(magnitude) + np.float32(2.0**14)) - np.uint32(0x46800000))
    code = small if magnitude < np.uint32(0x3C800000) else normal  # 2^-6
    code = np.uint32(0x7F) if exact > _INFINITY else code
    return np.uint8(np.uint32(code | np.uint32(np.uint32(bits >> np.uint32(24)) & np.uint32(0x80))))


@inner
def e4m3_codes(x: np.ndarray, codes: np.ndarray) -> None:
    """E4M3 codes[n] of float32 x[n]."""
    for i in range(x.size):
        codes[i] = e4m3(x[i])


@inner
def bf16(value: np.float32) -> np.float32:
    """A float32 rounded to BF16, ties to even."""
    bits = pattern(value)
    odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
    return value_of(np.uint32(np.uint32(bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)))


@inner
def absmax(x: np.ndarray) -> np.float32:
    """The largest magnitude of float32 x[n]."""
    largest = np.uint32(0)
    for i in range(x.size):
        largest = max(largest, np.uint32(pattern(x[i]) & np.uint32(0x7FFFFFFF)))
    return value_of(largest)


@inner
def e4m3_value(code: np.uint8) -> np.float32:
    """The value of an E4M3 code, exactly; NaN for 0x7F and 0xFF."""
    wide = np.uint32(code)
    magnitude = np.uint32(wide & np.uint32(0x7F))
    value = np.float32(value_of(np.uint32(magnitude << np.uint32(20))) * np.float32(2.0**120))
    bits = np.uint32(0x7FC00000) if magnitude == np.uint32(0x7F) else pattern(value)
    return value_of(np.uint32(bits | np.uint32(np.uint32(wide & np.uint32(0x80)) << np.uint32(24))))


def _first_above() -> np.ndarray:
    """int32 [256]: by exponent e + 127, the first mantissa j for which float32(log2(2^e (1 + j / 2^23))) is above e."""
    exponents = np.arange(256)[:, None] - 127.0
    mantissas = np.arange(64)[None, :]
    logs = (exponents + np.log1p(mantissas * 2.0**-23) / np.log(2.0)).astype(np.float32)
    return np.argmax(logs > exponents, axis=1).astype(np.int32)


FIRST_ABOVE = _first_above()
#: the same of the subnormal 2^-127 (1 + j / 2^22)
FIRST_ABOVE_SUBNORMAL = int(
    np.argmax((-127 + np.log1p(np.arange(64) * 2.0**-22) / np.log(2.0)).astype(np.float32) > -127)
)


@inner
def ceil_log2(value: np.float32) -> np.int32:
    """ceil(log2(value)) where log2 gives the nearest float32, of a positive finite float32; -127 of 2^-127 and less.

    Just above a power of two the logarithm rounds to the whole number: 2^8 (1 + 2^-23) has 8.
    """
    bits = np.uint32(pattern(value) & _MAGNITUDE)
    field = np.int32(bits >> np.uint32(23))
    mantissa = np.int32(bits & np.uint32(0x7FFFFF))
    if field == np.int32(0):
        return np.int32(np.int32(-127) + np.int32(mantissa >= np.int32(0x400000 + FIRST_ABOVE_SUBNORMAL)))
    return np.int32(field - np.int32(127) + np.int32(mantissa >= FIRST_ABOVE[field]))
