"""Oaken's paper mode: groups as regions of the number line, and the kernels that pack token vectors and unpack them.

Groups count from 0, outermost first; group n - 1 is the innermost. Between and beyond its 2 (n - 1) thresholds the
number line has 2 n regions, counted upwards: region r < n is the lower side of group r (of the innermost group: its
negative values), region r >= n the upper side of group 2 n - 1 - r. Within a region the shifted value grows with x, so
a group's minimum and maximum are found from FP16 patterns in integer arithmetic, and a pattern has one region.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kernels_ref import half
from kernels_ref.formats import storage
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.packing import ODD_PAD, pack_low_first
from kernels_ref.rows import n_pieces, rows_of

#: groups that the packed layout can tell apart (Oaken Table 3 uses 2 to 5)
MIN_GROUPS, MAX_GROUPS = 2, 5
#: group bits of a sparse entry by number of groups (Oaken Table 3)
GROUP_BITS = {2: 0, 3: 1, 4: 2, 5: 2}
#: elements that an entry's index reaches
CHUNK = storage.coo_chunk
#: the least value of the innermost group's upper side. The paper leaves open where -0 is: here it goes by its sign bit,
#: to the lower side, and comes back as -0; np.float16(-0.0) would put it on the upper one
UPPER_FROM = np.float16(0.0)
#: bounds of the first and of the last region: no finite pattern is below or at them
LOWEST, HIGHEST = -(2**15), 2**15 - 1
#: steps of a 4-bit code, and of an outlier's magnitude where the fourth bit is its sign
_LEVELS, _SIGNED_LEVELS = np.float32(2**storage.oaken_dense - 1), np.float32(2 ** (storage.oaken_dense - 1) - 1)
#: the sign of an outlier inside its 4-bit code: the highest bit, 1 for the lower side or negative
_SIGN_MARK = np.uint16(2 ** (storage.oaken_dense - 1))


def rounded_threshold(value: float) -> np.float16:
    """A threshold as it is compared and added: rounded to FP32, then to FP16, as PyTorch makes scalars (may be inf)."""
    with np.errstate(over="ignore"):
        return np.float16(np.float32(value))


def _key(value: np.float16) -> int:
    """Place of an FP16 value among all of them (`half.order`): -0 has -1, +0 has 0."""
    return int(half.order_of(np.asarray(value).view(np.uint16)))


def _first_not_below(threshold: np.float16) -> int:
    """The key from which x < threshold is false: both zeros are equal."""
    return _key(np.float16(-0.0)) if threshold == 0 else _key(threshold)


def _first_above(threshold: np.float16) -> int:
    """The key from which x > threshold is true."""
    return _key(threshold + np.float16(0)) + 1


class Groups(NamedTuple):
    """Constants of one tensor's n groups, as kernels take them; arrays are per region or per group."""

    #: the dense group, from 0
    dense: int
    #: int16 [2 n + 1]: region r holds keys bounds[r] <= key < bounds[r + 1]
    bounds: np.ndarray
    #: float32 [2 n]: threshold that a region's values are shifted by; -0 in the innermost group (x + -0 is x, even -0)
    shift: np.ndarray
    #: bool [n]: stored with their sign in minimum, maximum and code; the others as magnitudes with a sign bit
    signed: np.ndarray
    #: int64 [n]: position of the group's pair in meta
    slot: np.ndarray
    #: float32 [n]: steps of a group's codes
    levels: np.ndarray
    #: uint16 [2 n]: sign bit of a code; 0 where the sign is in the entry or in the value
    mark: np.ndarray
    #: uint16 [2 n]: group and sign bits of an entry
    tag: np.ndarray
    #: of these bits, shifted to the lowest
    mask: int


@dataclass(frozen=True)
class Layout:
    """Groups of one tensor, and how its elements are stored.

    Buffers of T tokens of d channels (heads concatenated), n groups:
    dense   uint8 [T, ceil(d / 2)]: a 4-bit code of every element, element 2 i in the low nibble; a last odd one is
            `storage.odd_pad`. Of a 4-bit outlier with `code` "magnitude" bit 3 is the sign (1: lower side or negative)
    coo     one entry per element outside the dense group, ordered by token and channel: bits 0 to 5 channel % 64, then
            the group (n = 2: no bit, 3: one, 4 and 5: two; counted among the sparse groups from the innermost out),
            then with 5-bit outliers the sign (1: lower side or negative); uint8, or little-endian uint16 beyond 8 bits
    counts  uint8 [T, ceil(d / 64)]: entries of each 64 channels
    meta    float16 [T, 2 n]: minimum and maximum of the dense group, then of the others, outermost first
    """

    n_groups: int
    groups: Groups
    entry_dtype: np.dtype


@lru_cache(maxsize=1024)
def layout_of(
    lower: tuple[float, ...], upper: tuple[float, ...], dense: int, outlier_bits: int, code: str = "magnitude"
) -> Layout:
    """The layout of n groups by n - 1 thresholds a side, outermost first; `dense` from 0, `outlier_bits` 4 or 5.

    code: of 4-bit outliers, "magnitude" (a sign and 3 bits) or "signed" (one code from minimum to maximum).

    Thresholds must be finite in FP16 and nested (lower rising, upper falling, lower <= upper).
    """
    n = len(lower) + 1
    low16, high16 = [rounded_threshold(v) for v in lower], [rounded_threshold(v) for v in upper]
    below = [_first_not_below(threshold) for threshold in low16]
    above = [_first_above(threshold) for threshold in reversed(high16)]
    zero = min(
        max(_key(UPPER_FROM), below[-1]), above[0]
    )  # the innermost group's sides part at zero, if that is inside
    sparse = [group for group in range(n) if group != dense]
    slot = np.zeros(n, np.int64)
    slot[[dense, *sparse]] = range(n)
    tag = np.zeros(2 * n, np.uint16)
    sign_bit = storage.coo_index + GROUP_BITS[n]
    for number, group in enumerate(reversed(sparse)):
        tag[[group, 2 * n - 1 - group]] = number << storage.coo_index
        if outlier_bits == 5:
            tag[group] |= 1 << sign_bit
    entry_bits = sign_bit + outlier_bits - storage.oaken_dense
    signed = np.array([group == dense or code == "signed" for group in range(n)])
    has_mark = ~signed & (outlier_bits == storage.oaken_dense)
    groups = Groups(
        dense=dense,
        bounds=np.array([LOWEST, *below, zero, *above, HIGHEST], np.int16),
        shift=np.array([*low16, -0.0, -0.0, *reversed(high16)], np.float32),
        signed=signed,
        slot=slot,
        levels=np.where(has_mark, _SIGNED_LEVELS, _LEVELS).astype(np.float32),
        mark=np.array([*np.where(has_mark, _SIGN_MARK, 0), *[0] * n], np.uint16),
        tag=tag,
        mask=2 ** (GROUP_BITS[n] + outlier_bits - storage.oaken_dense) - 1,
    )
    return Layout(n, groups, np.dtype("u1" if entry_bits <= 8 else "<u2"))


def group_table(layout: Layout) -> np.ndarray:
    """uint8 [65536]: the group of every FP16 pattern (Oaken, Eq. 1); of NaN and infinities nothing meaningful."""
    keys = half.order_of(half.all_patterns().view(np.uint16))
    region = np.searchsorted(layout.groups.bounds[1:-1], keys, side="right")
    return np.minimum(region, 2 * layout.n_groups - 1 - region).astype(np.uint8)


@inner
def _to_keys(bits: np.ndarray, keys: np.ndarray) -> None:
    for i in range(bits.size):
        keys[i] = half.order(bits[i])


@inner
def _count_sparse(bits: np.ndarray, a: np.int16, b: np.int16, c: np.int16, d: np.int16) -> np.uint16:
    """Patterns whose key is in none of [a, b) and [c, d)."""
    n = np.uint16(0)
    for i in range(bits.size):
        key = half.order(bits[i])
        dense = ((key >= a) & (key < b)) | ((key >= c) & (key < d))
        n = np.uint16(n + np.uint16(not dense))
    return n


@kernel
def count_outliers(bits: np.ndarray, bounds: np.ndarray, dense: int, counts: np.ndarray) -> None:
    """counts[row, chunk] of the elements of bits[row, channel] outside the dense group, per 64 channels."""
    n_rows, d = bits.shape
    last = bounds.size - 2
    a, b = bounds[dense], bounds[dense + 1]
    c, e = bounds[last - dense], bounds[last - dense + 1]
    for row in prange(n_rows):
        for chunk in range(counts.shape[1]):
            counts[row, chunk] = _count_sparse(bits[row, chunk * CHUNK : min((chunk + 1) * CHUNK, d)], a, b, c, e)


@inner
def _split(keys: np.ndarray, bound: np.int16, region: np.ndarray) -> tuple[np.int16, np.int16]:
    """(largest key below `bound`, smallest key from it on); region[i] is raised where keys[i] is not below."""
    below, above = np.int16(LOWEST), np.int16(HIGHEST)
    for i in range(keys.size):
        key = keys[i]
        is_below = key < bound
        below = max(below, key if is_below else np.int16(LOWEST))
        above = min(above, np.int16(HIGHEST) if is_below else key)
        region[i] = np.uint8(region[i] + np.uint8(not is_below))
    return below, above


@inner
def _shifted(bits: np.uint16, shift: np.float32) -> np.float32:
    """x - shift as float32, rounded to FP16 and kept within +-65504; x finite.

    Finite FP16 values are multiples of 2**-24, and so is their difference.
    """
    return half.limited(half.eleven_bits(np.float32(half.finite(bits) - shift)))


@inner
def _code(value: np.float32, low: np.float32, scale: np.float32) -> np.uint16:
    """rint((value - low) * scale) of a group's member: 0 to its levels (15 or 7) without clipping, since low <= value
    <= low + levels / scale but for two roundings."""
    scaled = np.float32(np.float32(value - low) * scale)
    return np.uint16(np.uint32(np.float32(scaled + half.TO_INTEGER).view(np.uint32)) & np.uint32(15))


@inner
def _dense_codes(
    bits: np.ndarray,
    split: np.int16,
    lower: np.float32,
    upper: np.float32,
    low: np.float32,
    scale: np.float32,
    codes: np.ndarray,
) -> None:
    """Codes of the dense group, whose upper side starts at key `split`; anything for other elements."""
    for i in range(bits.size):
        shift = lower if half.order(bits[i]) < split else upper
        codes[i] = _code(_shifted(bits[i], shift), low, scale)


@inner
def _gather(region: np.ndarray, first: np.uint8, second: np.uint8, places: np.ndarray) -> int:
    """Indices of the elements in regions other than `first` and `second`, ascending; how many."""
    n = 0
    for i in range(region.size):
        places[n] = i
        n += (region[i] != first) & (region[i] != second)
    return n


@inner
def _sparse_codes(
    bits: np.ndarray,
    region: np.ndarray,
    places: np.ndarray,
    regions: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    codes: np.ndarray,
    entries: np.ndarray,
) -> None:
    """Codes and entries of the elements at `places`; `regions`: shift, whether negated, low, scale, mark and tag of
    each."""
    shift, negate, low, scale, mark, tag = regions
    for j in range(places.size):
        i = places[j]
        r = region[i]
        value = _shifted(bits[i], shift[r])
        value = np.float32(-value if negate[r] else value)
        codes[i] = _code(value, low[r], scale[r]) | mark[r]
        entries[j] = np.uint16(i & (CHUNK - 1)) | tag[r]


@inner
def _ranges(
    smallest: np.ndarray,
    largest: np.ndarray,
    bounds: np.ndarray,
    shift: np.ndarray,
    signed: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
) -> None:
    """low, high per group: the least and greatest stored value; 0 and 0 where a group has no member."""
    n = signed.size
    for group in range(n):
        has_values = False
        for side in range(2):
            r = group if side == 0 else 2 * n - 1 - group
            if smallest[r] < bounds[r + 1]:
                first = _shifted(np.uint16(half.order(np.uint16(smallest[r]))), shift[r])
                last = _shifted(np.uint16(half.order(np.uint16(largest[r]))), shift[r])
                if side == 0 and not signed[group]:
                    first, last = np.float32(-last), np.float32(-first)
                low[group] = min(low[group], first) if has_values else first
                high[group] = max(high[group], last) if has_values else last
                has_values = True
        if not has_values:
            low[group] = high[group] = np.float32(0.0)
        low[group] += np.float32(0.0)  # -0 becomes +0
        high[group] += np.float32(0.0)


@kernel
def encode(
    bits: np.ndarray, groups: Groups, starts: np.ndarray, packed: np.ndarray, entries: np.ndarray, meta: np.ndarray
) -> None:
    """Quantize and pack bits[row, channel] (finite FP16 patterns).

    `starts[row]` is the row's first entry in `entries`, starts[n] the end; packed[row, ceil(d / 2)] uint8,
    meta[row, 2 n] uint16 FP16 patterns.
    """
    dense, bounds, shift, signed, slot, levels, mark, tag, _ = groups
    d, n = bits.shape[1], signed.size
    other = 2 * n - 1 - dense
    for piece in prange(n_pieces(bits)):
        keys, region = np.empty(d, np.int16), np.empty(d, np.uint8)
        codes, places = np.full(2 * packed.shape[1], ODD_PAD, np.uint16), np.empty(d, np.int32)
        smallest, largest = np.empty(2 * n, np.int16), np.empty(2 * n, np.int16)
        low, high = np.empty(n, np.float32), np.empty(n, np.float32)
        low_of, scale_of = np.empty(2 * n, np.float32), np.empty(2 * n, np.float32)
        negate = np.empty(2 * n, np.bool_)
        for r in range(2 * n):
            negate[r] = r < n and not signed[r]
        for row in rows_of(piece, bits):
            _to_keys(bits[row], keys)
            region[:] = np.uint8(0)
            for r in range(1, 2 * n):
                largest[r - 1], smallest[r] = _split(keys, bounds[r], region)
            smallest[0], largest[2 * n - 1] = keys.min(), keys.max()
            _ranges(smallest, largest, bounds, shift, signed, low, high)
            for group in range(n):
                size = np.float32(high[group] - low[group])
                scale = np.float32(levels[group] / size) if size > 0 else np.float32(0.0)
                meta[row, 2 * slot[group]] = half.from_f32(low[group])
                meta[row, 2 * slot[group] + 1] = half.from_f32(high[group])
                low_of[group] = low_of[2 * n - 1 - group] = low[group]
                scale_of[group] = scale_of[2 * n - 1 - group] = scale
            _dense_codes(bits[row], bounds[other], shift[dense], shift[other], low[dense], scale_of[dense], codes[:d])
            n_sparse = _gather(region, np.uint8(dense), np.uint8(other), places)
            n_sparse = min(n_sparse, starts[row + 1] - starts[row])  # should another thread have changed x since
            regions = shift, negate, low_of, scale_of, mark, tag
            own_entries = entries[starts[row] : starts[row + 1]]
            _sparse_codes(bits[row], region, places[:n_sparse], regions, codes, own_entries)
            pack_low_first(codes, packed[row])


@inner
def _values(
    low: np.float32,
    high: np.float32,
    levels: np.float32,
    negate: bool,
    lower: np.float32,
    upper: np.float32,
    table: np.ndarray,
) -> None:
    """table[levels + 1]: the FP16 pattern of every code; `lower` is added to negative values, `upper` to the others."""
    step = np.float32(np.float32(high - low) / levels)
    for code in range(table.size):
        value = np.float32(np.float32(np.float32(code) * step) + low)
        value = np.float32(-value if negate else value)
        table[code] = half.from_f32(half.limited(np.float32(value + (lower if value < np.float32(0.0) else upper))))


@inner
def _pairs(table: np.ndarray, pairs: np.ndarray) -> None:
    """pairs[256]: the two values of every byte, the low nibble's in the low half."""
    for high in range(16):
        second = np.uint32(table[high]) << np.uint32(16)
        for low in range(16):
            pairs[16 * high + low] = np.uint32(table[low]) | second


@inner
def _spread(packed: np.ndarray, pairs: np.ndarray, out: np.ndarray) -> None:
    """out[d]: the dense group's value of every code."""
    for i in range(out.size // 2):
        both = pairs[packed[i]]
        out[2 * i] = np.uint16(both & np.uint32(0xFFFF))
        out[2 * i + 1] = np.uint16(both >> np.uint32(16))
    if out.size % 2:
        out[out.size - 1] = np.uint16(pairs[packed[out.size // 2]] & np.uint32(0xFFFF))


@inner
def _place(
    packed: np.ndarray, counts: np.ndarray, entries: np.ndarray, table: np.ndarray, mask: int, out: np.ndarray
) -> None:
    """Put the values of the sparse entries where they belong."""
    at = np.int64(0)
    for chunk in range(counts.size):
        base = chunk * CHUNK
        end = at + np.int64(counts[chunk])
        for j in range(at, end):
            entry = np.int64(entries[j])
            i = base + (entry & (CHUNK - 1))
            if i < out.size:
                code = (packed[i >> 1] >> (4 * (i & 1))) & 15
                out[i] = table[((entry >> 6) & mask) * 16 + code]
        at = end


@kernel
def decode(
    packed: np.ndarray,
    counts: np.ndarray,
    entries: np.ndarray,
    starts: np.ndarray,
    meta: np.ndarray,
    groups: Groups,
    out: np.ndarray,
) -> None:
    """out[row, channel] FP16 patterns from the packed buffers; `starts` as in `encode`."""
    dense, _, shift, signed, slot, levels, mark, tag, mask = groups
    n = signed.size
    for piece in prange(n_pieces(out)):
        pairs, table = np.empty(256, np.uint32), np.zeros(16 * (mask + 1), np.uint16)
        dense_table = np.empty(16, np.uint16)
        for row in rows_of(piece, out):
            for r in range(2 * n):
                group = min(r, 2 * n - 1 - r)
                low, high = half.to_f32(meta[row, 2 * slot[group]]), half.to_f32(meta[row, 2 * slot[group] + 1])
                other = 2 * n - 1 - r
                if group == dense:
                    if r < n:
                        _values(low, high, levels[group], False, shift[r], shift[other], dense_table)
                elif starts[row + 1] > starts[row]:
                    first = 16 * (np.int64(tag[r]) >> 6) + np.int64(mark[r])
                    part = table[first : first + np.int64(levels[group]) + 1]
                    if not signed[group]:
                        _values(low, high, levels[group], r < n, shift[r], shift[r], part)
                    elif r < n:
                        _values(low, high, levels[group], False, shift[r], shift[other], part)
            _pairs(dense_table, pairs)
            _spread(packed[row], pairs, out[row])
            _place(packed[row], counts[row], entries[starts[row] : starts[row + 1]], table, mask, out[row])
