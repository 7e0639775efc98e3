"""Kernels of Oaken's paper mode: count outliers, then quantise and pack token vector by token vector."""

import numpy as np

from kernels_ref import half
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.nibbles import pack_low_first

#: elements that a thread takes at a time: scratch memory is allocated once for them
TILE = 2**16
CHUNK = 64

_LOWEST = np.int16(-(2**15))
_HIGHEST = np.int16(2**15 - 1)
_LARGEST = np.float32(65504.0)
_LEVELS = np.float32(15.0)
_UP = np.float32(2.0**112)
#: added to a float32 in [0, 2**22) it leaves the nearest integer, ties to even, in the low bits of the significand
_TO_INTEGER = np.float32(1.5 * 2**23)


@inner
def _to_keys(bits, keys):
    for i in range(bits.size):
        keys[i] = half.order(bits[i])


@inner
def _count_sparse(bits, a, b, c, d):
    """Patterns whose key is in none of [a, b) and [c, d)."""
    n = np.uint16(0)
    for i in range(bits.size):
        key = half.order(bits[i])
        dense = ((key >= a) & (key < b)) | ((key >= c) & (key < d))
        n = np.uint16(n + np.uint16(not dense))
    return n


@kernel
def count_outliers(bits, bounds, dense, counts):
    """counts[row, chunk] of the elements of bits[row, channel] outside the dense group, per 64 channels."""
    n_rows, d = bits.shape
    last = bounds.size - 2
    a, b = bounds[dense], bounds[dense + 1]
    c, e = bounds[last - dense], bounds[last - dense + 1]
    for row in prange(n_rows):
        for chunk in range(counts.shape[1]):
            counts[row, chunk] = _count_sparse(bits[row, chunk * CHUNK : min((chunk + 1) * CHUNK, d)], a, b, c, e)


@inner
def _split(keys, bound, region):
    """(largest key below `bound`, smallest key from it on); region[i] is raised where keys[i] is not below."""
    below, above = _LOWEST, _HIGHEST
    for i in range(keys.size):
        key = keys[i]
        is_below = key < bound
        below = max(below, key if is_below else _LOWEST)
        above = min(above, _HIGHEST if is_below else key)
        region[i] = np.uint8(region[i] + np.uint8(not is_below))
    return below, above


@inner
def _shifted(bits, shift):
    """x - shift as float32, rounded to FP16 and kept within +-65504; x finite.

    Finite FP16 values are multiples of 2**-24, and so is their difference: below 2**-13 it needs no rounding, so that
    rounding to 11 significant bits is rounding to FP16.
    """
    wide = np.uint32(bits)
    magnitude = np.float32(np.uint32((wide & np.uint32(0x7FFF)) << np.uint32(13)).view(np.float32) * _UP)
    value = np.uint32(np.float32(magnitude).view(np.uint32) | ((wide & np.uint32(0x8000)) << np.uint32(16))).view(
        np.float32
    )
    difference = np.float32(value - shift).view(np.uint32)
    odd = (difference >> np.uint32(13)) & np.uint32(1)
    near = np.uint32((difference + np.uint32(0xFFF) + odd) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.float32(min(max(near, -_LARGEST), _LARGEST))


@inner
def _code(value, low, scale):
    """rint((value - low) * scale) of a group's member: 0 to 15 without clipping, since low <= value <= low + 15 / scale
    but for two roundings."""
    scaled = np.float32(np.float32(value - low) * scale)
    return np.uint16(np.uint32(np.float32(scaled + _TO_INTEGER).view(np.uint32)) & np.uint32(15))


@inner
def _dense_codes(bits, split, lower, upper, low, scale, codes):
    """Codes of the dense group, whose upper side starts at key `split`; anything for other elements."""
    for i in range(bits.size):
        shift = lower if half.order(bits[i]) < split else upper
        codes[i] = _code(_shifted(bits[i], shift), low, scale)


@inner
def _gather(region, first, second, places):
    """Indices of the elements in regions other than `first` and `second`, ascending; how many."""
    n = 0
    for i in range(region.size):
        places[n] = i
        n += (region[i] != first) & (region[i] != second)
    return n


@inner
def _sparse_codes(bits, region, places, shift, negate, low, scale, tag, codes, entries):
    """Codes and entries of the elements at `places`; shift, negate, low, scale and tag are per region."""
    for j in range(places.size):
        i = places[j]
        r = region[i]
        value = _shifted(bits[i], shift[r])
        value = np.float32(-value if negate[r] else value)
        codes[i] = _code(value, low[r], scale[r])
        entries[j] = np.uint16(i & (CHUNK - 1)) | tag[r]


@inner
def _pattern(key):
    """The FP16 pattern of a key: the inverse of `half.order`."""
    return np.uint16(key ^ ((key >> np.int16(15)) & np.int16(0x7FFF)))


@inner
def _ranges(smallest, largest, bounds, shift, signed, low, high):
    """low, high per group: the least and greatest stored value; 0 and 0 where a group has no member."""
    n = signed.size
    for group in range(n):
        found = False
        for side in range(2):
            r = group if side == 0 else 2 * n - 1 - group
            if smallest[r] < bounds[r + 1]:
                first = _shifted(_pattern(smallest[r]), shift[r])
                last = _shifted(_pattern(largest[r]), shift[r])
                if side == 0 and not signed[group]:
                    first, last = np.float32(-last), np.float32(-first)
                low[group] = min(low[group], first) if found else first
                high[group] = max(high[group], last) if found else last
                found = True
        if not found:
            low[group] = high[group] = np.float32(0.0)
        low[group] += np.float32(0.0)  # -0 becomes +0
        high[group] += np.float32(0.0)


@kernel
def encode(bits, bounds, shift, signed, slot, tag, dense, starts, packed, entries, meta):
    """Quantise and pack bits[row, channel] (finite FP16 patterns).

    `starts[row]` is the row's first entry in `entries`, starts[n] the end; packed[row, ceil(d / 2)] uint8,
    meta[row, 2 n] uint16 FP16 patterns; the rest is the `Layout`'s.
    """
    n_rows, d = bits.shape
    n = signed.size
    other = 2 * n - 1 - dense
    per_tile = max(TILE // d, 1)
    for tile in prange((n_rows + per_tile - 1) // per_tile):
        keys, region = np.empty(d, np.int16), np.empty(d, np.uint8)
        codes, places = np.zeros(2 * packed.shape[1], np.uint16), np.empty(d, np.int32)
        smallest, largest = np.empty(2 * n, np.int16), np.empty(2 * n, np.int16)
        low, high = np.empty(n, np.float32), np.empty(n, np.float32)
        low_of, scale_of = np.empty(2 * n, np.float32), np.empty(2 * n, np.float32)
        negate = np.empty(2 * n, np.bool_)
        for r in range(2 * n):
            negate[r] = r < n and not signed[r]
        for row in range(tile * per_tile, min((tile + 1) * per_tile, n_rows)):
            _to_keys(bits[row], keys)
            region[:] = np.uint8(0)
            for r in range(1, 2 * n):
                largest[r - 1], smallest[r] = _split(keys, bounds[r], region)
            smallest[0], largest[2 * n - 1] = keys.min(), keys.max()
            _ranges(smallest, largest, bounds, shift, signed, low, high)
            for group in range(n):
                size = np.float32(high[group] - low[group])
                scale = np.float32(_LEVELS / size) if size > 0 else np.float32(0.0)
                meta[row, 2 * slot[group]] = half.from_f32(low[group])
                meta[row, 2 * slot[group] + 1] = half.from_f32(high[group])
                low_of[group] = low_of[2 * n - 1 - group] = low[group]
                scale_of[group] = scale_of[2 * n - 1 - group] = scale
            _dense_codes(bits[row], bounds[other], shift[dense], shift[other], low[dense], scale_of[dense], codes[:d])
            n_sparse = _gather(region, np.uint8(dense), np.uint8(other), places)
            n_sparse = min(n_sparse, starts[row + 1] - starts[row])  # should another thread have changed x since
            _sparse_codes(
                bits[row], region, places[:n_sparse], shift, negate, low_of, scale_of, tag, codes,
                entries[starts[row] : starts[row + 1]],
            )  # fmt: skip
            pack_low_first(codes, packed[row])
