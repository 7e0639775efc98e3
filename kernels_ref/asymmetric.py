"""4-bit codes in groups of a token vector with a scale and a zero point each, in the forms that methods released.

The forms differ in how the two FP16 values of a group come from its minimum and maximum, and in the rounding steps from
there to the codes and back; a form is a number here, so that one compiled kernel serves all. A code has at most 16
values in a group: decoding computes them once.
"""

import numpy as np

from kernels_ref import half
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.nibbles import pack_low_first, unpack_low_first

#: Atom as in Oaken's artifact: scale h(range / 15), integer zero point
ATOM = 0
#: QServe's released kernel: scale range / 15 and zero -15 min / range, each rounded to FP16, codes in float32
QSERVE_HEAD = 1
#: QServe as in Oaken's artifact: factor 15 / range and offset min * factor, every step in FP16
QSERVE_ARTIFACT = 2

LEVELS = np.float32(15)
#: Atom: the smallest range, as FP16
_ATOM_SMALLEST = np.float32(np.float16(1e-5))
_LARGEST = np.float32(65504)
#: elements of a unit of work
PIECE = 2**14
#: adding and subtracting it rounds a float32 below 2^22 to an integer, ties to even
_TO_INTEGER = np.float32(1.5 * 2.0**23)


@inner
def _rint(value):
    return np.float32(np.float32(value + _TO_INTEGER) - _TO_INTEGER)


@inner
def _clip(value):
    """Into 0 to 15."""
    positive = value if value > np.float32(0) else np.float32(0)
    return positive if positive < LEVELS else LEVELS


@inner
def _extent(bits):
    """(minimum, maximum) of FP16 patterns as float32, -0 as +0."""
    low, high = np.int16(0x7FFF), np.int16(-0x8000)
    for i in range(bits.size):
        key = half.order(bits[i])
        low, high = min(low, key), max(high, key)
    # adding zero makes +0 of -0
    return (
        np.float32(half.to_f32(np.uint16(half.order(np.uint16(low)))) + np.float32(0)),
        np.float32(half.to_f32(np.uint16(half.order(np.uint16(high)))) + np.float32(0)),
    )


@inner
def _range(low, high):
    """The range in FP16; what is beyond 65504 is taken as 65504."""
    return min(half.rounded(np.float32(high - low)), _LARGEST)


@inner
def _parameters(form, low, high):
    """(scale, zero, whether all codes are zero) of a group, the first two FP16 values as float32."""
    if form == ATOM:
        scale = half.rounded(np.float32(max(_range(low, high), _ATOM_SMALLEST) / LEVELS))
        return scale, _clip(_rint(half.rounded(np.float32(-low / scale)))), False
    if form == QSERVE_HEAD:
        extent = np.float32(high - low)
        scale = half.rounded(np.float32(extent / LEVELS))
        if scale > np.float32(0):
            return scale, half.rounded(np.float32(np.float32(-LEVELS * low) / extent)), False
        return np.float32(1), np.float32(-low), True
    extent = _range(low, high)
    factor = half.rounded(np.float32(half.rounded(np.float32(np.float32(1) / extent)) * LEVELS))
    if factor <= _LARGEST:  # neither infinite nor NaN
        return factor, half.rounded(np.float32(low * factor)), False
    return np.float32(1), low, True


@inner
def _decode(form, code, scale, zero):
    """The FP16 pattern of a code; what is beyond 65504 by rounding is 65504."""
    if form == QSERVE_ARTIFACT:
        value = np.float32(half.rounded(np.float32(np.float32(code) + zero)) / scale)
    else:
        value = np.float32(np.float32(np.float32(code) - zero) * scale)
    return half.from_f32(min(max(value, -_LARGEST), _LARGEST))


@inner
def _codes_atom(bits, scale, zero, codes):
    for i in range(bits.size):
        steps = _rint(half.rounded(np.float32(half.to_f32(bits[i]) / scale)))
        codes[i] = np.uint16(np.int32(_clip(np.float32(steps + zero))))


@inner
def _codes_head(bits, scale, zero, codes):
    reciprocal = np.float32(np.float32(1) / scale)
    for i in range(bits.size):
        value = np.float32(np.float32(half.to_f32(bits[i]) * reciprocal) + zero)
        codes[i] = np.uint16(np.int32(_clip(_rint(value))))


@inner
def _codes_artifact(bits, scale, zero, codes):
    for i in range(bits.size):
        value = half.rounded(np.float32(half.rounded(np.float32(half.to_f32(bits[i]) * scale)) - zero))
        codes[i] = np.uint16(np.int32(_clip(_rint(value))))


@inner
def _quantize_row(bits, starts, form, codes, scale, zero):
    for group in range(scale.size):
        part = bits[starts[group] : starts[group + 1]]
        into = codes[starts[group] : starts[group + 1]]
        low, high = _extent(part)
        one, other, constant = _parameters(form, low, high)
        scale[group], zero[group] = half.from_f32(one), half.from_f32(other)
        if constant:
            into[:] = np.uint16(0)
        elif form == ATOM:
            _codes_atom(part, one, other, into)
        elif form == QSERVE_HEAD:
            _codes_head(part, one, other, into)
        else:
            _codes_artifact(part, one, other, into)


@inner
def _look_up(codes, values, bits):
    for i in range(bits.size):
        bits[i] = values[codes[i]]


@inner
def _dequantize_row(codes, starts, form, scale, zero, values, bits):
    for group in range(scale.size):
        one, other = half.to_f32(scale[group]), half.to_f32(zero[group])
        for code in range(16):
            values[code] = _decode(form, code, one, other)
        _look_up(codes[starts[group] : starts[group + 1]], values, bits[starts[group] : starts[group + 1]])


@kernel
def quantize(bits, starts, form, packed, scale, zero):
    """FP16 patterns bits[n, channels] -> packed[n, ceil(channels / 2)], patterns scale and zero[n, groups].

    Group g is the channels starts[g] to starts[g + 1]; `form` is ATOM, QSERVE_HEAD or QSERVE_ARTIFACT.
    """
    n_rows, channels = bits.shape
    rows = max(PIECE // channels, 1)
    for piece in prange((n_rows + rows - 1) // rows):
        codes = np.zeros(2 * packed.shape[1], np.uint16)  # an odd row ends with a zero
        for row in range(piece * rows, min((piece + 1) * rows, n_rows)):
            _quantize_row(bits[row], starts, form, codes, scale[row], zero[row])
            pack_low_first(codes, packed[row])


@kernel
def dequantize(packed, scale, zero, starts, form, bits):
    """The reverse of `quantize`."""
    n_rows, channels = bits.shape
    rows = max(PIECE // channels, 1)
    for piece in prange((n_rows + rows - 1) // rows):
        codes = np.empty(2 * packed.shape[1], np.uint16)
        values = np.empty(16, np.uint16)
        for row in range(piece * rows, min((piece + 1) * rows, n_rows)):
            unpack_low_first(packed[row], codes)
            _dequantize_row(codes, starts, form, scale[row], zero[row], values, bits[row])


@inner
def _scale_row(bits, factors, out):
    for i in range(bits.size):
        value = half.from_f32(np.float32(half.to_f32(bits[i]) * factors[i]))
        out[i] = min(np.uint16(value & half.ABS), half.LARGEST) | (value & half.SIGN)


@kernel
def scale_channels(bits, factors, out):
    """out[n, channels] = h(bits * factors[channels]), FP16 patterns by float32; beyond 65504 that value."""
    for row in prange(bits.shape[0]):
        _scale_row(bits[row], factors, out[row])


def group_starts(n_heads: int, head_dim: int, group: int) -> np.ndarray:
    """int64 [groups + 1]: where groups of `group` channels start, the last of every head may be short; then the end."""
    inside = np.arange(0, head_dim, group)
    return np.append((np.arange(n_heads)[:, None] * head_dim + inside).reshape(-1), n_heads * head_dim)
