"""KIVI's kernels for values: groups of `group` channels of one token and head; see `kivi_core` for the arithmetic.

Codes lie in 32-bit words, the first element lowest; a word holds consecutive channels of one token and head. The last
group of a head may be shorter; the last word of a head is filled up with 0.

Rows (one token of one head) are worked on as one flat array of whole groups, several rows at a time: loops over one
short group would not fill vector registers. Rows that do not consist of whole groups are filled up by the caller.
"""

import numpy as np

from kernels_ref import half
from kernels_ref.code_words import join, split
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.kivi_core import INFINITE, LARGEST, TASK, as_float, code_of, decoded, metadata

#: elements worked on at a time: their scratch arrays stay in the first-level cache
PIECE = 2**12
#: groups of at least this many channels are reduced one by one, shorter ones many at a time
LONG_GROUP = 128


@inner
def _extremes(row):
    lowest, highest = np.int16(32767), np.int16(-32768)
    for c in range(row.size):
        key = half.order(row[c])
        lowest = min(lowest, key)
        highest = max(highest, key)
    return lowest, highest


@inner
def _fold_pairs(pairs, lowest, highest):
    """Extremes of neighbours: order keys from pairs of patterns seen as one int32."""
    for i in range(pairs.size):
        a = half.order(np.uint16(pairs[i] & np.int32(0xFFFF)))
        b = half.order(np.uint16((pairs[i] >> np.int32(16)) & np.int32(0xFFFF)))
        lowest[i] = min(a, b)
        highest[i] = max(a, b)


@inner
def _fold_lowest(pairs, out):
    for i in range(pairs.size):
        low = np.int32(pairs[i] << np.int32(16)) >> np.int32(16)
        out[i] = np.int16(min(low, np.int32(pairs[i] >> np.int32(16))))


@inner
def _fold_highest(pairs, out):
    for i in range(pairs.size):
        low = np.int32(pairs[i] << np.int32(16)) >> np.int32(16)
        out[i] = np.int16(max(low, np.int32(pairs[i] >> np.int32(16))))


@inner
def _group_extremes(bits, group, lowest, highest, work):
    """Order keys of the extremes of each group of bits[groups * group]. work[2 or more, 2, elements / 2] (int16)."""
    if group >= LONG_GROUP:
        for g in range(lowest.size):
            lowest[g], highest[g] = _extremes(bits[g * group : (g + 1) * group])
        return
    size, n, now = group // 2, bits.size // 2, 0
    _fold_pairs(bits.view(np.int32), work[0, 0, :n], work[0, 1, :n])
    while size % 2 == 0:
        _fold_lowest(work[now, 0, :n].view(np.int32), work[1 - now, 0, : n // 2])
        _fold_highest(work[now, 1, :n].view(np.int32), work[1 - now, 1, : n // 2])
        size, n, now = size // 2, n // 2, 1 - now
    for g in range(lowest.size):
        lowest[g], highest[g] = work[now, 0, g * size], work[now, 1, g * size]
        for i in range(1, size):
            lowest[g] = min(lowest[g], work[now, 0, g * size + i])
            highest[g] = max(highest[g], work[now, 1, g * size + i])


@inner
def _fill(part, value):
    for i in range(part.size):
        part[i] = value


@inner
def _spread(values, group, out):
    """The value of each group, for each of its elements."""
    for g in range(values.size):
        _fill(out[g * group : (g + 1) * group], values[g])


@inner
def _codes(bits, base, scale, levels, codes):
    for i in range(bits.size):
        codes[i] = np.uint8(code_of(bits[i], base[i], scale[i], levels))


@inner
def _decode(codes, base, scale, limit, out):
    for i in range(codes.size):
        out[i] = decoded(codes[i], base[i], scale[i], limit)


@inner
def _clear_after(n_channels, n_wide, codes):
    """Codes of elements that only fill up a row become 0."""
    for first in range(n_channels, codes.size, n_wide):
        _fill(codes[first : first + n_wide - n_channels], np.uint8(0))


@inner
def _pack_piece(bits, n_channels, n_wide, group, width, saturate, words, scales, mins, floats, codes, work):
    """Whole rows, flat. floats[4, elements], codes[elements] and work are scratch."""
    n, n_groups = bits.size, scales.size
    base, scale, bases, divisors = floats[0, :n_groups], floats[1, :n_groups], floats[2, :n], floats[3, :n]
    levels = np.float32(2**width - 1)
    extremes = work[2]
    _group_extremes(bits, group, extremes[0, :n_groups], extremes[1, :n_groups], work)
    metadata(extremes[0, :n_groups], extremes[1, :n_groups], levels, saturate, scales, mins, base, scale)
    _spread(base, group, bases)
    _spread(scale, group, divisors)
    _codes(bits, bases, divisors, levels, codes)
    if n_wide > n_channels:
        _clear_after(n_channels, n_wide, codes)
    join(codes, width, words)


@kernel
def pack_values(bits, n_channels, n_wide, group, width, saturate, words, scales, mins):
    """Quantise and pack rows of n_wide FP16 patterns, of which n_channels count, in groups that divide n_wide.

    All flat: bits[rows * n_wide] into words[rows * n_wide * width / 32] (uint32), scales and mins, one per group.
    What only fills up a row must not change the extremes of its group; its codes are 0.
    """
    step = max(PIECE // n_wide, 1) * n_wide
    per_task = max(TASK // step, 1)
    n_pieces = (bits.size + step - 1) // step
    for task in prange((n_pieces + per_task - 1) // per_task):
        floats = np.empty((4, step), np.float32)
        codes = np.empty(step, np.uint8)
        work = np.empty((3, 2, step // 2), np.int16)
        for piece in range(task * per_task, min((task + 1) * per_task, n_pieces)):
            a, b = piece * step, min((piece + 1) * step, bits.size)
            _pack_piece(
                bits[a:b], n_channels, n_wide, group, width, saturate, words[a * width // 32 : b * width // 32],
                scales[a // group : b // group], mins[a // group : b // group], floats, codes[: b - a], work,
            )  # fmt: skip


@inner
def _unpack_piece(words, scales, mins, group, width, limit, floats, codes, out):
    n, n_groups = out.size, scales.size
    base, scale, bases, steps = floats[0, :n_groups], floats[1, :n_groups], floats[2, :n], floats[3, :n]
    as_float(mins, base)
    as_float(scales, scale)
    _spread(base, group, bases)
    _spread(scale, group, steps)
    split(words, width, codes)
    _decode(codes, bases, steps, limit, out)


@kernel
def unpack_values(words, scales, mins, out, n_wide, group, width, saturate):
    """The inverse of `pack_values`: writes the FP16 patterns out[rows * n_wide]."""
    limit = LARGEST if saturate else INFINITE
    step = max(PIECE // n_wide, 1) * n_wide
    per_task = max(TASK // step, 1)
    n_pieces = (out.size + step - 1) // step
    for task in prange((n_pieces + per_task - 1) // per_task):
        floats = np.empty((4, step), np.float32)
        codes = np.empty(step, np.uint8)
        for piece in range(task * per_task, min((task + 1) * per_task, n_pieces)):
            a, b = piece * step, min((piece + 1) * step, out.size)
            _unpack_piece(
                words[a * width // 32 : b * width // 32], scales[a // group : b // group],
                mins[a // group : b // group], group, width, limit, floats, codes[: b - a], out[a:b],
            )  # fmt: skip
