"""Packed groups of keys or of values, in the arrays in which they are stored; they grow along the tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np

from kernels_ref.formats import storage
from kernels_ref.inputs import BLOCK_BYTES
from kernels_ref.kivi_core import count_overflows, pack_keys, transpose_words, unpack_keys
from kernels_ref.kivi_values import pack_values, unpack_values

Side = Literal["key", "value"]
SIDES: tuple[Side, Side] = ("key", "value")
BITS = (1, 2, 4, 8)
#: groups that FP16 steps take beyond 65504: refused; cut to 65504; infinite and NaN as in the released code
OVERFLOWS = ("raise", "saturate", "propagate")
#: words of keys: [batch, heads, tokens, channels] or [batch, heads, channels, tokens], tokens in words
KEY_LAYOUTS = ("torch", "triton")


def head_parts(
    n_batch: int, n_heads: int, n_tokens: int, token_bytes: int, multiple: int = 1
) -> Iterator[tuple[int, slice, slice]]:
    """(batch, heads, tokens) of parts of at most 8 MiB, tokens in multiples of `multiple` but the last ones.

    `token_bytes` are those of one head. Several heads at a time only where all of their tokens are.
    """
    per_head = max(n_tokens * token_bytes, 1)
    heads = max(min(BLOCK_BYTES // per_head, n_heads), 1)
    step = n_tokens if per_head <= BLOCK_BYTES else max(BLOCK_BYTES // (token_bytes * multiple), 1) * multiple
    for b in range(n_batch):
        for h in range(0, n_heads, heads):
            for t in range(0, n_tokens, max(step, 1)):
                yield b, slice(h, min(h + heads, n_heads)), slice(t, min(t + step, n_tokens))


@dataclass(frozen=True)
class GroupCodec:
    """KIVI's core for one side: parameters of `pack` and `unpack`."""

    side: Side
    bits: int
    group: int
    overflow: str = "raise"

    @property
    def token_multiple(self) -> int:
        """Tokens are packed in multiples of this."""
        return self.group if self.side == "key" else 1

    def group_of(self, head_dim: int) -> int:
        """Elements of a group: no more channels than a head has, but whole words."""
        codes = storage.word // self.bits
        return self.group if self.side == "key" else min(self.group, ceil(head_dim / codes) * codes)

    def shapes(self, n_tokens: int, head_dim: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """(words, groups) of one head: [word rows, channels] and [groups, channels], or [tokens, ...] for values."""
        if self.side == "key":
            return (n_tokens * self.bits // storage.word, head_dim), (n_tokens // self.group, head_dim)
        return (n_tokens, ceil(head_dim * self.bits / storage.word)), (n_tokens, ceil(head_dim / self.group))

    def padding_bits(self, n_tokens: int, head_dim: int) -> int:
        """Bits that fill up the words of one head."""
        return 0 if self.side == "key" else n_tokens * (-head_dim * self.bits % storage.word)

    def pack(self, patterns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """FP16 patterns [heads, tokens, channels] to words (uint32), scales and minima (FP16 patterns).

        Raises ValueError where a group overflows and overflow is "raise".
        """
        n, n_tokens, head_dim = patterns.shape
        words_shape, groups_shape = self.shapes(n_tokens, head_dim)
        words = np.empty((n, *words_shape), np.uint32)
        scales, mins = np.empty((n, *groups_shape), np.uint16), np.empty((n, *groups_shape), np.uint16)
        group, saturate = self.group_of(head_dim), self.overflow == "saturate"
        if self.side == "key":
            pack_keys(patterns, group, self.bits, saturate, words, scales, mins)
        else:
            rows = n * n_tokens
            self._pack_rows(
                patterns.reshape(rows, head_dim), group,
                words.reshape(rows, -1), scales.reshape(rows, -1), mins.reshape(rows, -1),
            )  # fmt: skip
        if self.overflow == "raise":
            count = count_overflows(scales.reshape(-1), mins.reshape(-1), self.bits)
            if count:
                raise ValueError(
                    f"x: {count} groups of {self.group} reach beyond 65504 when decoded (range, or scale rounded to "
                    "FP16): overflow='saturate' cuts them, 'propagate' gives infinity and NaN as the released code does"
                )
        return words, scales, mins

    def unpack(self, words: np.ndarray, scales: np.ndarray, mins: np.ndarray, out: np.ndarray) -> None:
        """The inverse of `pack`: all arrays C-contiguous, out[heads, tokens, channels] (FP16 patterns)."""
        group, saturate = self.group_of(out.shape[2]), self.overflow == "saturate"
        if self.side == "key":
            unpack_keys(words, scales, mins, group, self.bits, saturate, out)
        else:
            rows = out.shape[0] * out.shape[1]
            self._unpack_rows(
                words.reshape(rows, -1), scales.reshape(rows, -1), mins.reshape(rows, -1), group, out.reshape(rows, -1)
            )

    def _pack_rows(self, bits: np.ndarray, group: int, words: np.ndarray, scales: np.ndarray, mins: np.ndarray) -> None:
        """Values, [rows, channels]: rows that are not whole groups are filled up with their last element."""
        n_rows, n_channels = bits.shape
        n_wide, saturate = scales.shape[1] * group, self.overflow == "saturate"
        if n_wide == n_channels:
            flat = (array.reshape(-1) for array in (words, scales, mins))
            pack_values(bits.reshape(-1), n_channels, n_wide, group, self.bits, saturate, *flat)
            return
        step = max(BLOCK_BYTES // (2 * n_wide), 1)
        for a in range(0, n_rows, step):
            part = slice(a, a + step)
            wide = np.pad(bits[part], ((0, 0), (0, n_wide - n_channels)), mode="edge")
            found = np.empty((wide.shape[0], n_wide * self.bits // storage.word), np.uint32)
            flat = (array.reshape(-1) for array in (found, scales[part], mins[part]))
            pack_values(wide.reshape(-1), n_channels, n_wide, group, self.bits, saturate, *flat)
            words[part] = found[:, : words.shape[1]]

    def _unpack_rows(
        self, words: np.ndarray, scales: np.ndarray, mins: np.ndarray, group: int, out: np.ndarray
    ) -> None:
        """The inverse of `_pack_rows`."""
        n_rows, n_channels = out.shape
        n_wide, saturate = scales.shape[1] * group, self.overflow == "saturate"
        if n_wide == n_channels:
            unpack_values(
                words.reshape(-1),
                scales.reshape(-1),
                mins.reshape(-1),
                out.reshape(-1),
                n_wide,
                group,
                self.bits,
                saturate,
            )
            return
        step = max(BLOCK_BYTES // (2 * n_wide), 1)
        for a in range(0, n_rows, step):
            part = slice(a, a + step)
            wide = np.pad(words[part], ((0, 0), (0, n_wide * self.bits // storage.word - words.shape[1])))
            found = np.empty((wide.shape[0], n_wide), np.uint16)
            unpack_values(
                wide.reshape(-1), scales[part].reshape(-1), mins[part].reshape(-1), found.reshape(-1),
                n_wide, group, self.bits, saturate,
            )  # fmt: skip
            out[part] = found[:, :n_channels]


class Growing:
    """An array [heads, n, ...] or [heads, ..., n] that grows along `axis`, with spare room when it has grown once."""

    def __init__(self, shape: tuple[int, ...], axis: int, dtype: type) -> None:
        self.axis = axis
        self._room: np.ndarray = np.empty(shape, dtype)

    def adopt(self, array: np.ndarray) -> None:
        """Hold the bytes of `array` and nothing else."""
        self._room = array.view(self._room.dtype)

    def reserve(self, n: int) -> None:
        """Make room for n entries."""
        room = self._room.shape[self.axis]
        if n <= room:
            return
        shape = list(self._room.shape)
        shape[self.axis] = max(n, room + room // 2)
        old, self._room = self._room, np.empty(shape, self._room.dtype)
        self.view(room)[...] = old

    def view(self, n: int, start: int = 0, heads: slice = slice(None)) -> np.ndarray:
        """Entries `start` to n."""
        index: list[slice] = [heads] + [slice(None)] * (self._room.ndim - 1)
        index[self.axis] = slice(start, n)
        return self._room[tuple(index)]


class PackedGroups:
    """Packed tokens of one side, all heads of all batches: codes, scales and minima as they are stored.

    `put` writes beyond `n_tokens`; what it wrote counts once `n_tokens` is raised. So a failure leaves all as it was.
    """

    def __init__(self, codec: GroupCodec, n_batch: int, n_heads: int, head_dim: int, key_layout: str = "torch") -> None:
        self.codec, self.shape, self.n_tokens = codec, (n_batch, n_heads, head_dim), 0
        n = n_batch * n_heads
        words, groups = codec.shapes(0, head_dim)
        self._transposed = codec.side == "key" and key_layout == "triton"
        self._words = Growing(
            (n, *(words[::-1] if self._transposed else words)), 2 if self._transposed else 1, np.uint32
        )
        self._scales, self._mins = Growing((n, *groups), 1, np.uint16), Growing((n, *groups), 1, np.uint16)

    def adopt(self, n_tokens: int, codes: np.ndarray, scales: np.ndarray, mins: np.ndarray) -> None:
        """Take arrays that `arrays` gave for the packed tokens, without copying them."""
        n = self.shape[0] * self.shape[1]
        for growing, array in zip((self._words, self._scales, self._mins), (codes, scales, mins), strict=True):
            growing.adopt(array.reshape(n, *array.shape[2:]))
        self.n_tokens = n_tokens

    def _lengths(self, n_tokens: int) -> tuple[int, int]:
        """Word rows and group rows of n tokens."""
        words, groups = self.codec.shapes(n_tokens, self.shape[2])
        return words[0], groups[0]

    def reserve(self, n_tokens: int) -> None:
        """Make room for n tokens in all."""
        n_words, n_groups = self._lengths(n_tokens)
        self._words.reserve(n_words)
        self._scales.reserve(n_groups)
        self._mins.reserve(n_groups)

    def put(self, batch: int, heads: slice, token: int, patterns: np.ndarray) -> None:
        """Quantise patterns[heads, tokens, channels] as tokens `token` and after it; there must be room."""
        words, scales, mins = self.codec.pack(patterns)
        w0, g0 = self._lengths(token)
        w1, g1 = self._lengths(token + patterns.shape[1])
        at = slice(batch * self.shape[1] + heads.start, batch * self.shape[1] + heads.stop)
        if self._transposed:
            transpose_words(words, self._words.view(w1, w0, at))
        else:
            self._words.view(w1, w0, at)[...] = words
        self._scales.view(g1, g0, at)[...] = scales
        self._mins.view(g1, g0, at)[...] = mins

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Codes (int32), scales and minima (FP16), [batch, heads, ...], of the packed tokens; views."""
        n_words, n_groups = self._lengths(self.n_tokens)

        def shaped(array: np.ndarray, dtype: type) -> np.ndarray:
            return array.view(dtype).reshape(*self.shape[:2], *array.shape[1:])

        return (
            shaped(self._words.view(n_words), np.int32),
            shaped(self._scales.view(n_groups), np.float16),
            shaped(self._mins.view(n_groups), np.float16),
        )

    @property
    def padding_bits(self) -> int:
        """Bits of the codes that only fill up words."""
        return self.shape[0] * self.shape[1] * self.codec.padding_bits(self.n_tokens, self.shape[2])

    def _contiguous_words(self, n: int, start: int, heads: slice) -> np.ndarray:
        """Words [heads, n - start, .] as the kernels want them."""
        words = self._words.view(n, start, heads)
        if not self._transposed:
            return np.ascontiguousarray(words)
        found = np.empty((words.shape[0], words.shape[2], words.shape[1]), np.uint32)
        transpose_words(words, found)
        return found

    def unpack(self, out: np.ndarray) -> None:
        """Write the decoded tokens, FP16 patterns, to out[batch, heads, tokens, head_dim] of any strides."""
        n_batch, n_heads, head_dim = self.shape
        parts = head_parts(n_batch, n_heads, self.n_tokens, 2 * head_dim, self.codec.token_multiple)
        for b, heads, tokens in parts:
            at = slice(b * n_heads + heads.start, b * n_heads + heads.stop)
            (w0, g0), (w1, g1) = self._lengths(tokens.start), self._lengths(tokens.stop)
            target = out[b, heads, tokens]
            direct = target if target.flags.c_contiguous else np.empty(target.shape, np.uint16)
            self.codec.unpack(
                self._contiguous_words(w1, w0, at),
                np.ascontiguousarray(self._scales.view(g1, g0, at)),
                np.ascontiguousarray(self._mins.view(g1, g0, at)),
                direct,
            )
            if direct is not target:
                target[...] = direct
