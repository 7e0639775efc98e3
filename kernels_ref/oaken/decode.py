"""Kernel of Oaken's paper mode: from the packed buffers back to FP16, by tables of 16 values a group and side."""

import numpy as np

from kernels_ref import half
from kernels_ref.jit import inner, kernel, prange

TILE = 2**16
CHUNK = 64

_LARGEST = np.float32(65504.0)
_LEVELS = np.float32(15.0)


@inner
def _values(low, high, negate, lower, upper, table):
    """table[16]: the FP16 pattern of every code; `lower` is added to negative values, `upper` to the others."""
    step = np.float32(np.float32(high - low) / _LEVELS)
    for code in range(16):
        value = np.float32(np.float32(np.float32(code) * step) + low)
        value = np.float32(-value if negate else value)
        moved = np.float32(value + (lower if value < np.float32(0.0) else upper))
        table[code] = half.from_f32(min(max(moved, -_LARGEST), _LARGEST))


@inner
def _pairs(table, pairs):
    """pairs[256]: the two values of every byte, the low nibble's in the low half."""
    for high in range(16):
        second = np.uint32(table[high]) << np.uint32(16)
        for low in range(16):
            pairs[16 * high + low] = np.uint32(table[low]) | second


@inner
def _spread(packed, pairs, out):
    """out[d]: the dense group's value of every code."""
    for i in range(out.size // 2):
        both = pairs[packed[i]]
        out[2 * i] = np.uint16(both & np.uint32(0xFFFF))
        out[2 * i + 1] = np.uint16(both >> np.uint32(16))
    if out.size % 2:
        out[out.size - 1] = np.uint16(pairs[packed[out.size // 2]] & np.uint32(0xFFFF))


@inner
def _place(packed, counts, entries, table, mask, out):
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
def decode(packed, counts, entries, starts, meta, shift, signed, slot, tag, dense, mask, out):
    """out[row, channel] FP16 patterns from the packed buffers; `starts` as in `encode`, `mask` of the tag bits."""
    n_rows, d = out.shape
    n = signed.size
    per_tile = max(TILE // d, 1)
    for tile in prange((n_rows + per_tile - 1) // per_tile):
        pairs, table = np.empty(256, np.uint32), np.zeros(16 * (mask + 1), np.uint16)
        dense_table = np.empty(16, np.uint16)
        for row in range(tile * per_tile, min((tile + 1) * per_tile, n_rows)):
            for r in range(2 * n):
                group = min(r, 2 * n - 1 - r)
                low, high = half.to_f32(meta[row, 2 * slot[group]]), half.to_f32(meta[row, 2 * slot[group] + 1])
                other = 2 * n - 1 - r
                if group == dense:
                    if r < n:
                        _values(low, high, False, shift[r], shift[other], dense_table)
                elif starts[row + 1] > starts[row]:
                    first = 16 * (np.int64(tag[r]) >> 6)
                    if not signed[group]:
                        _values(low, high, r < n, shift[r], shift[r], table[first : first + 16])
                    elif r < n:
                        _values(low, high, False, shift[r], shift[other], table[first : first + 16])
            _pairs(dense_table, pairs)
            _spread(packed[row], pairs, out[row])
            _place(packed[row], counts[row], entries[starts[row] : starts[row + 1]], table, mask, out[row])
