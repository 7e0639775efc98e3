"""KIVI's quantise and pack kernels, and their inverse: groups of elements that share an FP16 scale and minimum.

KIVI (arXiv:2402.02750) section 4; released code jy-yuan/KIVI@876b4d2, quant/new_pack.py. Every step rounds to FP16,
written h(.): extent = h(max - min), scale = h(extent / levels), code = rint(clip(h(h(x - min) / scale), 0, levels)),
decoded h(h(code * scale) + min), with levels = 2^bits - 1. Steps are taken in binary32 and rounded from there: for
sums, products and quotients of FP16 values that is the same as rounding once (24 >= 2 * 11 + 2 bits).

Here: the arithmetic, and the keys - groups of `group` tokens per channel. Codes lie in 32-bit words, the first element
lowest; a word holds consecutive tokens of one channel.
"""

import numpy as np

from kernels_ref import half
from kernels_ref.jit import inner, kernel, prange

#: elements that one thread takes at a time
TASK = 2**16

_UP = np.float32(2.0**112)  # from a binary32 with the exponent of binary16 to its value
LARGEST = np.float32(65504.0)
INFINITE = np.float32(np.inf)
_ROUND = np.float32(1.5 * 2.0**23)  # added to a small number it leaves the nearest integer in the lowest bits


@inner
def value_of(bits):
    """The value of a finite FP16 pattern."""
    wide = np.uint32(np.int32(np.int16(bits)) << np.int32(13)) & np.uint32(0x8FFFE000)
    return np.float32(np.uint32(wide).view(np.float32) * _UP)


@inner
def _eleven(value):
    """A float32 rounded to 11 significant bits, ties to even, without the range of FP16.

    That is h(value) up to 65520 where value is a multiple of 2^-24, as sums of FP16 values and integer multiples of
    one are. Of a quotient, what h would make of values below 2^-14 does not matter: the code is 0.
    """
    bits = np.float32(value).view(np.uint32)
    odd = (bits >> np.uint32(13)) & np.uint32(1)
    return np.uint32((bits + np.uint32(0xFFF) + odd) & np.uint32(0xFFFFE000)).view(np.float32)


@inner
def code_of(x, base, scale, levels):
    """The code of pattern x; 0 where a step is 0/0 or inf/inf."""
    q = _eleven(np.float32(_eleven(np.float32(value_of(x) - base)) / scale))
    q = q if q > np.float32(0.0) else np.float32(0.0)
    q = q if q < levels else levels
    return np.float32(q + _ROUND).view(np.uint32) & np.uint32(0xFF)


@inner
def decoded(code, base, scale, limit):
    """The pattern of h(h(code * scale) + base); results beyond 65504 become `limit` (infinity or 65504)."""
    v = _eleven(np.float32(np.float32(np.int32(code)) * scale))
    v = limit if v > LARGEST else v
    y = np.float32(v + base)
    return half.from_f32(limit if y > limit else y)


@inner
def metadata(lowest, highest, levels, saturate, scales, mins, base, scale):
    """FP16 scale and minimum of groups from the order keys of their extremes, and both as float32."""
    for i in range(lowest.size):
        low = half.order(lowest[i])  # its own inverse
        base[i] = value_of(low)
        extent = half.rounded(np.float32(value_of(half.order(highest[i])) - base[i]))
        extent = LARGEST if saturate and extent > LARGEST else extent
        found = half.from_f32(np.float32(extent / levels))
        scale[i] = half.to_f32(found)
        scales[i] = found
        mins[i] = np.uint16(low)


@inner
def as_float(patterns, values):
    """FP16 patterns as float32."""
    for i in range(patterns.size):
        values[i] = half.to_f32(patterns[i])


@inner
def _count_overflows(scales, mins, levels):
    count = 0
    for i in range(scales.size):
        v = half.rounded(np.float32(half.to_f32(scales[i]) * levels))
        y = half.rounded(np.float32(v + half.to_f32(mins[i])))
        count += not y < INFINITE
    return count


@kernel
def count_overflows(scales, mins, width):
    """How many groups (any number, flat) decode their largest code to infinity or NaN: their range, or its rounded
    scale, goes beyond 65504."""
    levels = np.float32(2**width - 1)
    n_tasks = (scales.size + TASK - 1) // TASK
    found = np.zeros(n_tasks, np.int64)
    for task in prange(n_tasks):
        part = slice(task * TASK, (task + 1) * TASK)
        found[task] = _count_overflows(scales[part], mins[part], levels)
    return found.sum()


@inner
def _fold(row, lowest, highest):
    for c in range(row.size):
        key = half.order(row[c])
        lowest[c] = min(lowest[c], key)
        highest[c] = max(highest[c], key)


@inner
def _add_codes(row, base, scale, levels, shift, words):
    for c in range(row.size):
        words[c] |= np.uint32(code_of(row[c], base[c], scale[c], levels) << shift)


@inner
def _pack_key_group(bits, width, saturate, words, scales, mins, lowest, highest, base, scale):
    """One group of tokens, bits[group, channels], into words[group * width / 32, channels]."""
    levels = np.float32(2**width - 1)
    lowest[:] = np.int16(32767)
    highest[:] = np.int16(-32768)
    for t in range(bits.shape[0]):
        _fold(bits[t], lowest, highest)
    metadata(lowest, highest, levels, saturate, scales, mins, base, scale)
    n_codes = 32 // width
    for w in range(words.shape[0]):
        words[w, :] = np.uint32(0)
        for j in range(n_codes):
            _add_codes(bits[w * n_codes + j], base, scale, levels, np.uint32(width * j), words[w])


@kernel
def pack_keys(bits, group, width, saturate, words, scales, mins):
    """Quantise and pack bits[heads, groups * group, channels] (FP16 patterns) into
    words[heads, groups * group * width / 32, channels] (uint32), scales and mins[heads, groups, channels]."""
    n_heads, n_groups, n_channels = scales.shape
    n_words = group * width // 32
    step = max(TASK // (group * n_channels), 1)
    n_steps = (n_groups + step - 1) // step
    for task in prange(n_heads * n_steps):
        h, first = task // n_steps, (task % n_steps) * step
        lowest = np.empty(n_channels, np.int16)
        highest = np.empty(n_channels, np.int16)
        base = np.empty(n_channels, np.float32)
        scale = np.empty(n_channels, np.float32)
        for g in range(first, min(first + step, n_groups)):
            _pack_key_group(
                bits[h, g * group : (g + 1) * group], width, saturate, words[h, g * n_words : (g + 1) * n_words],
                scales[h, g], mins[h, g], lowest, highest, base, scale,
            )  # fmt: skip


@inner
def _decode_codes(words, shift, mask, base, scale, limit, out):
    for c in range(words.size):
        out[c] = decoded((words[c] >> shift) & mask, base[c], scale[c], limit)


@inner
def _unpack_key_group(words, width, limit, scales, mins, base, scale, out):
    as_float(mins, base)
    as_float(scales, scale)
    n_codes, mask = 32 // width, np.uint32(2**width - 1)
    for w in range(words.shape[0]):
        for j in range(n_codes):
            _decode_codes(words[w], np.uint32(width * j), mask, base, scale, limit, out[w * n_codes + j])


@kernel
def unpack_keys(words, scales, mins, group, width, saturate, out):
    """The inverse of `pack_keys`: writes the FP16 patterns out[heads, groups * group, channels]."""
    n_heads, n_groups, n_channels = scales.shape
    n_words = group * width // 32
    limit = LARGEST if saturate else INFINITE
    step = max(TASK // (group * n_channels), 1)
    n_steps = (n_groups + step - 1) // step
    for task in prange(n_heads * n_steps):
        h, first = task // n_steps, (task % n_steps) * step
        base = np.empty(n_channels, np.float32)
        scale = np.empty(n_channels, np.float32)
        for g in range(first, min(first + step, n_groups)):
            _unpack_key_group(
                words[h, g * n_words : (g + 1) * n_words], width, limit, scales[h, g], mins[h, g], base, scale,
                out[h, g * group : (g + 1) * group],
            )  # fmt: skip


@inner
def _transpose_tile(source, target):
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[j, i] = source[i, j]


@kernel
def transpose_words(source, target):
    """target[heads, j, i] = source[heads, i, j], any strides, tile by tile."""
    n_heads, n, m = source.shape
    n_steps = (n + 15) // 16
    for task in prange(n_heads * n_steps):
        h, rows = task // n_steps, slice(task % n_steps * 16, min(task % n_steps * 16 + 16, n))
        for first in range(0, m, 16):
            columns = slice(first, min(first + 16, m))
            _transpose_tile(source[h, rows, columns], target[h, columns, rows])
