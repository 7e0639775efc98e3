"""KIVI: keys quantized per channel, values per token, the most recent tokens in FP16.

KIVI (arXiv:2402.02750) sections 3 and 4; released code jy-yuan/KIVI@876b4d2: quant/new_pack.py for the codes,
models/llama_kivi.py for what is packed when.

A group of elements - of `group` tokens of one channel (keys), or of `group` channels of one token and head (values) -
shares an FP16 scale and minimum. Every step rounds to FP16, written h(.), with levels = 2^bits - 1:

    scale = h(h(max - min) / levels)
    code = rint(clip(h(h(x - min) / scale), 0, levels))
    decoded: h(h(code * scale) + min)

Codes lie in 32-bit words, the first element lowest: a word holds consecutive tokens of one channel (keys), or
consecutive channels of one token and head (values; the last word of a head is filled up with 0).

Steps are taken in binary32 and rounded from there: for sums, products and quotients of FP16 values that is the same as
rounding once (24 >= 2 * 11 + 2 bits).
"""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

from kernels_ref import half
from kernels_ref.cache import SIDES, Side
from kernels_ref.formats import storage
from kernels_ref.groups import GroupCache, Groups, GroupSide, part_of
from kernels_ref.inputs import NonFinite, check_choice, check_count, kv_tensor
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.packed import Packed
from kernels_ref.packing import pack_words, unpack_words
from kernels_ref.rows import n_pieces, rows_of

__all__ = ["KIVI"]

BITS = (1, 2, 4, 8)
#: groups that FP16 steps take beyond 65504: refused; cut to 65504; infinite and NaN as in the released code
OVERFLOWS = ("raise", "saturate", "propagate")
#: words of keys: [batch, heads, tokens, channels] or [batch, heads, channels, tokens], tokens in words
KEY_LAYOUTS = ("torch", "triton")
#: elements that one thread takes at a time
TASK = 2**16
#: elements of values that are worked on at a time: they are read twice, from the first-level cache
PIECE = 2**12


@inner
def _code(x: np.uint16, base: np.float32, scale: np.float32, levels: np.float32) -> np.uint32:
    """The code of pattern x; 0 where a step is 0/0 or inf/inf.

    `eleven_bits` is h but for the range of FP16: of a quotient, what h would make of values below 2^-14 does not
    matter, the code is 0.
    """
    q = half.eleven_bits(np.float32(half.eleven_bits(np.float32(half.finite(x) - base)) / scale))
    q = q if q > np.float32(0.0) else np.float32(0.0)
    q = q if q < levels else levels
    return np.float32(q + half.TO_INTEGER).view(np.uint32) & np.uint32(0xFF)


@inner
def _decoded(code: np.uint32, base: np.float32, scale: np.float32, limit: np.float32) -> np.uint16:
    """The pattern of h(h(code * scale) + base); results beyond 65504 become `limit` (infinity or 65504)."""
    v = half.eleven_bits(np.float32(np.float32(np.int32(code)) * scale))
    v = limit if v > half.LARGEST_VALUE else v
    y = np.float32(v + base)
    return half.from_f32(limit if y > limit else y)


class GroupCoding(NamedTuple):
    """Coding of a group."""

    #: elements of a group, and bits of a code
    group: int
    width: int
    #: cut what goes beyond 65504
    saturate: bool


#: of each group of a piece: order keys of its smallest and largest value, minimum and scale
Scratch = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@inner
def _scratch(n_groups: int) -> Scratch:
    lowest, highest = np.empty(n_groups, np.int16), np.empty(n_groups, np.int16)
    return lowest, highest, np.empty(n_groups, np.float32), np.empty(n_groups, np.float32)


@inner
def _scales_and_mins(
    scratch: Scratch, levels: np.float32, saturate: bool, scales: np.ndarray, mins: np.ndarray
) -> None:
    """FP16 scale and minimum of groups from the order keys of their extremes, and both as float32."""
    lowest, highest, base, scale = scratch
    for i in range(scales.size):
        low = np.uint16(half.order(np.uint16(lowest[i])))
        base[i] = half.finite(low)
        size = half.rounded(np.float32(half.finite(np.uint16(half.order(np.uint16(highest[i])))) - base[i]))
        size = half.limited(size) if saturate else size
        scales[i] = half.from_f32(np.float32(size / levels))
        scale[i] = half.to_f32(scales[i])
        mins[i] = low


@inner
def _count_overflows(scales: np.ndarray, mins: np.ndarray, levels: np.float32) -> int:
    count = 0
    for i in range(scales.size):
        v = half.rounded(np.float32(half.to_f32(scales[i]) * levels))
        y = half.rounded(np.float32(v + half.to_f32(mins[i])))
        count += not y < np.float32(np.inf)
    return count


@kernel
def _count_overflowing(scales: np.ndarray, mins: np.ndarray, width: int) -> int:
    """Count the groups (flat) whose largest code decodes to infinity or NaN: their range, or its rounded
    scale, goes beyond 65504."""
    levels = np.float32(2**width - 1)
    n_tasks = (scales.size + TASK - 1) // TASK
    counts = np.zeros(n_tasks, np.int64)
    for task in prange(n_tasks):
        part = slice(task * TASK, (task + 1) * TASK)
        counts[task] = _count_overflows(scales[part], mins[part], levels)
    return counts.sum()


@inner
def _as_float(patterns: np.ndarray, values: np.ndarray) -> None:
    """FP16 patterns as float32."""
    for i in range(patterns.size):
        values[i] = half.to_f32(patterns[i])


@inner
def _fold(row: np.ndarray, lowest: np.ndarray, highest: np.ndarray) -> None:
    for c in range(row.size):
        key = half.order(row[c])
        lowest[c] = min(lowest[c], key)
        highest[c] = max(highest[c], key)


@inner
def _add_codes(
    row: np.ndarray, base: np.ndarray, scale: np.ndarray, levels: np.float32, shift: np.uint32, words: np.ndarray
) -> None:
    for c in range(row.size):
        words[c] |= np.uint32(_code(row[c], base[c], scale[c], levels) << shift)


@inner
def _quantize_key_group(
    bits: np.ndarray, coding: GroupCoding, words: np.ndarray, scales: np.ndarray, mins: np.ndarray, scratch: Scratch
) -> None:
    """One group of tokens, bits[group, channels], into words[group * width / 32, channels]."""
    width, levels = coding.width, np.float32(2**coding.width - 1)
    lowest, highest, base, scale = scratch
    lowest[:] = np.int16(32767)
    highest[:] = np.int16(-32768)
    for t in range(bits.shape[0]):
        _fold(bits[t], lowest, highest)
    _scales_and_mins(scratch, levels, coding.saturate, scales, mins)
    n_codes = 32 // width
    for w in range(words.shape[0]):
        words[w, :] = np.uint32(0)
        for j in range(n_codes):
            _add_codes(bits[w * n_codes + j], base, scale, levels, np.uint32(width * j), words[w])


@kernel
def quantize_keys(
    bits: np.ndarray, coding: GroupCoding, words: np.ndarray, scales: np.ndarray, mins: np.ndarray
) -> None:
    """Quantize bits[heads, groups * group, channels] (FP16 patterns) into
    words[heads, groups * group * width / 32, channels] (uint32), scales and mins[heads, groups, channels]."""
    n_heads, n_groups, n_channels = scales.shape
    group, n_words = coding.group, coding.group * coding.width // 32
    step = max(TASK // (group * n_channels), 1)
    n_steps = (n_groups + step - 1) // step
    for task in prange(n_heads * n_steps):
        h, first = task // n_steps, (task % n_steps) * step
        scratch = _scratch(n_channels)
        for g in range(first, min(first + step, n_groups)):
            tokens, own_words = bits[h, g * group : (g + 1) * group], words[h, g * n_words : (g + 1) * n_words]
            _quantize_key_group(tokens, coding, own_words, scales[h, g], mins[h, g], scratch)


@inner
def _decode_codes(
    words: np.ndarray,
    shift: np.uint32,
    mask: np.uint32,
    base: np.ndarray,
    scale: np.ndarray,
    limit: np.float32,
    out: np.ndarray,
) -> None:
    for c in range(words.size):
        out[c] = _decoded((words[c] >> shift) & mask, base[c], scale[c], limit)


@inner
def _limit(coding: GroupCoding) -> np.float32:
    """The largest value that a code decodes to."""
    return half.LARGEST_VALUE if coding.saturate else np.float32(np.inf)


@kernel
def dequantize_keys(
    words: np.ndarray, scales: np.ndarray, mins: np.ndarray, coding: GroupCoding, out: np.ndarray
) -> None:
    """The inverse of `quantize_keys`: writes the FP16 patterns out[heads, groups * group, channels]."""
    n_heads, n_groups, n_channels = scales.shape
    width, limit = coding.width, _limit(coding)
    n_codes, n_words, mask = 32 // width, coding.group * width // 32, np.uint32(2**width - 1)
    step = max(TASK // (coding.group * n_channels), 1)
    n_steps = (n_groups + step - 1) // step
    for task in prange(n_heads * n_steps):
        h, first = task // n_steps, (task % n_steps) * step
        base, scale = np.empty(n_channels, np.float32), np.empty(n_channels, np.float32)
        for g in range(first, min(first + step, n_groups)):
            _as_float(mins[h, g], base)
            _as_float(scales[h, g], scale)
            for w in range(g * n_words, (g + 1) * n_words):
                for j in range(n_codes):
                    shift = np.uint32(width * j)
                    _decode_codes(words[h, w], shift, mask, base, scale, limit, out[h, w * n_codes + j])


@inner
def _value_codes(bits: np.ndarray, base: np.float32, scale: np.float32, levels: np.float32, codes: np.ndarray) -> None:
    for i in range(bits.size):
        codes[i] = np.uint8(_code(bits[i], base, scale, levels))


@inner
def _quantize_value_rows(
    bits: np.ndarray,
    coding: GroupCoding,
    words: np.ndarray,
    scales: np.ndarray,
    mins: np.ndarray,
    scratch: Scratch,
    codes: np.ndarray,
) -> None:
    """Rows [n, .] of values; codes, flat, are scratch too."""
    lowest, highest, base, scale = scratch
    group, width, n_groups = coding.group, coding.width, scales.shape[1]
    levels, a_row = np.float32(2**width - 1), words.shape[1] * (32 // width)
    i = 0
    for row in range(bits.shape[0]):
        channels = bits[row]
        for g in range(n_groups):
            lowest[i], highest[i] = half.extremes(channels[g * group : (g + 1) * group])
            i += 1
    _scales_and_mins(scratch, levels, coding.saturate, scales.reshape(-1), mins.reshape(-1))
    i = 0
    for row in range(bits.shape[0]):
        channels, own_codes = bits[row], codes[row * a_row : (row + 1) * a_row]
        for g in range(n_groups):
            part = slice(g * group, (g + 1) * group)
            _value_codes(channels[part], base[i], scale[i], levels, own_codes[part])
            i += 1
    pack_words(codes[: words.shape[0] * a_row], width, words.reshape(-1))


@kernel
def quantize_values(
    bits: np.ndarray, coding: GroupCoding, words: np.ndarray, scales: np.ndarray, mins: np.ndarray
) -> None:
    """Quantize bits[rows, channels] (FP16 patterns), a row one token of one head, into words[rows, words], scales and
    mins[rows, groups]; the last group of a row may be short, what fills up its last word is 0."""
    n_rows = max(PIECE // bits.shape[1], 1)
    for task in prange(n_pieces(bits, TASK)):
        scratch = _scratch(n_rows * scales.shape[1])
        codes = np.zeros(n_rows * words.shape[1] * (32 // coding.width), np.uint8)
        rows = rows_of(task, bits, TASK)
        for first in range(rows.start, rows.stop, n_rows):
            part = slice(first, min(first + n_rows, rows.stop))
            _quantize_value_rows(bits[part], coding, words[part], scales[part], mins[part], scratch, codes)


@inner
def _decode_row(codes: np.ndarray, base: np.ndarray, scale: np.ndarray, limit: np.float32, out: np.ndarray) -> None:
    for i in range(out.size):
        out[i] = _decoded(codes[i], base[i], scale[i], limit)


@inner
def _fill(part: np.ndarray, value: np.float32) -> None:
    for i in range(part.size):
        part[i] = value


@inner
def _spread(patterns: np.ndarray, group: int, out: np.ndarray) -> None:
    """The float32 value of each group, for each of its channels."""
    for row in range(patterns.shape[0]):
        out_row = out[row]
        for g in range(patterns.shape[1]):
            _fill(out_row[g * group : (g + 1) * group], half.to_f32(patterns[row, g]))


@kernel
def dequantize_values(
    words: np.ndarray, scales: np.ndarray, mins: np.ndarray, coding: GroupCoding, out: np.ndarray
) -> None:
    """The inverse of `quantize_values`: writes the FP16 patterns out[rows, channels]."""
    limit = _limit(coding)
    n_rows = max(PIECE // out.shape[1], 1)
    for task in prange(n_pieces(out, TASK)):
        base, scale = np.empty((n_rows, out.shape[1]), np.float32), np.empty((n_rows, out.shape[1]), np.float32)
        codes = np.empty((n_rows, words.shape[1] * (32 // coding.width)), np.uint8)
        rows = rows_of(task, out, TASK)
        for first in range(rows.start, rows.stop, n_rows):
            part = slice(first, min(first + n_rows, rows.stop))
            unpack_words(words[part].reshape(-1), coding.width, codes[: part.stop - first].reshape(-1))
            _spread(mins[part], coding.group, base)
            _spread(scales[part], coding.group, scale)
            for row in range(first, part.stop):
                _decode_row(codes[row - first], base[row - first], scale[row - first], limit, out[row])


@dataclass(frozen=True)
class GroupCodec:
    """KIVI's core for keys or for values."""

    side: Side
    bits: int
    group: int
    overflow: str = "raise"

    @property
    def _coding(self) -> GroupCoding:
        return GroupCoding(self.group, self.bits, self.overflow == "saturate")

    @property
    def token_multiple(self) -> int:
        """Tokens are packed in multiples of this."""
        return self.group if self.side == "key" else 1

    def shapes(self, n_tokens: int, head_dim: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """(words, groups) of one head: [word rows, channels] and [groups, channels], or [tokens, ...] for values."""
        if self.side == "key":
            return (n_tokens * self.bits // storage.word, head_dim), (n_tokens // self.group, head_dim)
        return (n_tokens, ceil(head_dim * self.bits / storage.word)), (n_tokens, ceil(head_dim / self.group))

    def padding_bits(self, n_tokens: int, head_dim: int) -> int:
        """Bits that fill up the words of one head."""
        return 0 if self.side == "key" else n_tokens * (-head_dim * self.bits % storage.word)

    def quantize(self, patterns: np.ndarray) -> Groups:
        """FP16 patterns [heads, tokens, channels] to words (uint32), scales and minima (FP16 patterns).

        Raises ValueError where a group overflows and overflow is "raise".
        """
        n, n_tokens, head_dim = patterns.shape
        words, groups = self.shapes(n_tokens, head_dim)
        outputs = np.empty((n, *words), np.uint32), np.empty((n, *groups), np.uint16), np.empty((n, *groups), np.uint16)
        if self.side == "key":
            quantize_keys(patterns, self._coding, *outputs)
        else:
            rows = (x.reshape(n * n_tokens, x.shape[2]) for x in outputs)
            quantize_values(patterns.reshape(n * n_tokens, head_dim), self._coding, *rows)
        if self.overflow == "raise":
            count = _count_overflowing(outputs[1].reshape(-1), outputs[2].reshape(-1), self.bits)
            if count:
                raise ValueError(
                    f"x: {count} groups of {self.group} reach beyond 65504 when decoded (range, or scale rounded to "
                    "FP16): overflow='saturate' cuts them, 'propagate' gives infinity and NaN as the released code does"
                )
        return outputs

    def dequantize(self, groups: Groups, out: np.ndarray) -> None:
        """The inverse of `quantize`: all arrays C-contiguous, out[heads, tokens, channels] (FP16 patterns)."""
        if self.side == "key":
            dequantize_keys(*groups, self._coding, out)
        else:
            words, scales, mins, rows = (x.reshape(-1, x.shape[2]) for x in (*groups, out))
            dequantize_values(words, scales, mins, self._coding, rows)


def check_core(bits: int, group: int, overflow: str, key_layout: str) -> None:
    """Raise ValueError unless these are parameters of KIVI's core: codes of a group fill whole 32-bit words."""
    check_choice("bits", bits, BITS)
    check_count("group", group)
    codes = storage.word // bits
    if group % codes:
        raise ValueError(
            f"group = {group}: must be a multiple of {codes} ({bits}-bit codes in {storage.word}-bit words)"
        )
    check_choice("overflow", overflow, OVERFLOWS)
    check_choice("key_layout", key_layout, KEY_LAYOUTS)


@dataclass(frozen=True)
class KIVI:
    """KIVI with codes of 1, 2, 4 or 8 bits in groups of `group` elements that share an FP16 scale and minimum.

    Keys: groups of tokens per channel, packed `residual` tokens at a time. Values: groups of channels per token and
    head, one token a step once more than `residual` are held. residual = 0 packs all whole groups.

    overflow: what becomes of groups that would decode to infinity or NaN, since their range or its rounded scale goes
    beyond 65504: "raise" ValueError, "saturate" at 65504, or "propagate" as the released code does.
    key_layout: words of keys as [batch, heads, tokens, channels] ("torch") or [batch, heads, channels, tokens]
    ("triton", the released kernels); the bytes are as many.
    """

    bits: int = 2
    group: int = 32
    residual: int = 128
    overflow: str = "raise"
    key_layout: str = "torch"

    def __post_init__(self) -> None:
        check_core(self.bits, self.group, self.overflow, self.key_layout)
        check_count("residual", self.residual, 0)
        if self.residual % self.group:
            raise ValueError(f"residual = {self.residual}: must be a multiple of group = {self.group}")

    def codec(self, side: Side) -> GroupCodec:
        """The core for keys or for values.

        side: "key" or "value".
        """
        return GroupCodec(side, self.bits, self.group, self.overflow)

    def n_packed(self, side: Side, n_tokens: int) -> int:
        """Number of quantized tokens among n.

        side: "key" or "value".
        n_tokens: Tokens of a sequence, from 0.
        """
        if side == "value":
            return max(n_tokens - self.residual, 0)
        step = self.residual or self.group
        return n_tokens // step * step

    def quantize(self, x: np.ndarray, side: Side = "key", n_heads: int = 1, nonfinite: NonFinite = "raise") -> Packed:
        """Keys or values of one layer as they are stored at that length.

        Buffers, for side "key" (value: value_...): key_codes (int32), key_scales and key_mins (FP16) of the packed
        tokens, key_recent (FP16) [batch, heads, tokens, head_dim] of the others. Raises TypeError and ValueError.

        x: FP16, BF16 or FP32, [tokens, channels] of `n_heads` heads or [batch, heads, tokens, head_dim].
        side: "key" or "value".
        n_heads: Heads of tensors [tokens, channels], from 1; those of four axes say theirs.
        nonfinite: "raise" refuses NaN and infinities, "replace" takes them as 0 and +-65504.
        """
        check_choice("side", side, SIDES)
        kv = kv_tensor(x, n_heads, nonfinite)
        n_batch, heads, n_tokens, head_dim = kv.array.shape
        held = GroupSide(self.codec(side), (n_batch, heads, head_dim), self.key_layout)
        n_packed = self.n_packed(side, n_tokens)
        held.commit(n_packed, held.pack(kv, n_packed), held.rest(kv, n_packed))
        buffers = {f"{side}_{name}": array for name, array in held.buffers().items()}
        return Packed(
            self,
            shape=kv.shape,
            n_elements=kv.array.size,
            buffers=buffers,
            part_of={name: part_of(name) for name in buffers},
            padding_bits=held.padding_bits,
            counts={"n_packed_elements": n_packed * n_batch * heads * head_dim},
            n_heads=n_heads,
        )

    def dequantize(self, packed: Packed) -> np.ndarray:
        """The tensor that attention sees, FP16, of the shape that was quantized: h(h(code * scale) + min).

        packed: What `quantize` of this method gave.
        """
        side: Side = "key" if "key_codes" in packed.buffers else "value"
        codes, scales, mins, recent = (
            packed.buffers[f"{side}_{name}"] for name in ("codes", "scales", "mins", "recent")
        )
        n_batch, n_heads, n_recent, head_dim = recent.shape
        held = GroupSide(self.codec(side), (n_batch, n_heads, head_dim), self.key_layout)
        words, scales, mins, rest = (
            x.reshape(n_batch * n_heads, *x.shape[2:]).view(dtype)
            for x, dtype in ((codes, np.uint32), (scales, np.uint16), (mins, np.uint16), (recent, np.uint16))
        )
        n_tokens = packed.shape[0 if len(packed.shape) == 2 else 2]
        held.commit(n_tokens - n_recent, (words, scales, mins), rest)
        return held.decode(packed.shape)[0]

    def cache(self, n_heads: int = 1, nonfinite: NonFinite = "raise") -> GroupCache:
        """An empty cache of one layer.

        n_heads: Heads of tensors [tokens, channels], from 1; those of four axes say theirs.
        nonfinite: "raise" refuses NaN and infinities, "replace" takes them as 0 and +-65504.
        """
        return GroupCache(self, n_heads, nonfinite)
