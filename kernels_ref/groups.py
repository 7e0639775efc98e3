"""Groups of tokens that are quantized together, the most recent tokens in FP16: what KIVI and SinkQ store."""

from typing import Any, Protocol

import numpy as np

from kernels_ref.cache import Growing, KVCache, Piece, Side, complaints_about
from kernels_ref.inputs import KVTensor, NonFinite, head_parts
from kernels_ref.packing import transpose_words

#: ledger parts of what a `GroupCache` stores, by the last word of a buffer's name
PART_OF = {
    "codes": "payload",
    "scales": "scales",
    "mins": "zero_points",
    "recent": "full_precision",
    "sinks": "sinks",
    "positions": "sinks",
}


def part_of(buffer: str) -> str:
    """The ledger part of a buffer: "key_codes" is payload."""
    return PART_OF[buffer.rpartition("_")[2]]


#: packed groups of all heads: words (uint32), scales and minima (FP16 patterns), first axis batch * heads
Groups = tuple[np.ndarray, np.ndarray, np.ndarray]


class Codec(Protocol):
    """Quantizes groups of one side; shapes are those of one head."""

    @property
    def side(self) -> Side: ...

    @property
    def token_multiple(self) -> int: ...

    def shapes(self, n_tokens: int, head_dim: int) -> tuple[tuple[int, int], tuple[int, int]]: ...

    def padding_bits(self, n_tokens: int, head_dim: int) -> int: ...

    def quantize(self, patterns: np.ndarray) -> Groups: ...

    def dequantize(self, groups: Groups, out: np.ndarray) -> None: ...


class GroupSide:
    """Keys or values: packed groups of the old tokens, and the patterns `recent`[batch * heads, tokens, head_dim]."""

    def __init__(self, codec: Codec, shape: tuple[int, int, int], key_layout: str = "torch") -> None:
        self.codec, self.shape, self.n_packed = codec, shape, 0
        self._transposed = codec.side == "key" and key_layout == "triton"
        words, scales, mins = self.new_groups(0)
        self._packed = (Growing(words, 2 if self._transposed else 1), Growing(scales, 1), Growing(mins, 1))
        self.recent = np.empty((shape[0] * shape[1], 0, shape[2]), np.uint16)

    def _at(self, batch: int, heads: slice) -> slice:
        return slice(batch * self.shape[1] + heads.start, batch * self.shape[1] + heads.stop)

    def read(self, kv: KVTensor, batch: int, heads: slice, tokens: slice) -> np.ndarray:
        """Patterns of the tokens that follow the packed ones: first those of `recent`, then those of kv."""
        n_recent = self.recent.shape[1]
        old = self.recent[self._at(batch, heads), tokens.start : min(tokens.stop, n_recent)]
        if tokens.stop <= n_recent:
            return np.ascontiguousarray(old)
        new = kv.patterns(batch, heads, slice(max(tokens.start - n_recent, 0), tokens.stop - n_recent))
        return np.concatenate((old, new), axis=1) if old.shape[1] else new

    def rest(self, kv: KVTensor, n: int) -> np.ndarray:
        """The rest of `recent` and kv once the first n of their tokens have been quantized."""
        n_batch, n_heads, head_dim = self.shape
        n_tokens = self.recent.shape[1] + kv.array.shape[2]
        rest = np.empty((n_batch * n_heads, n_tokens - n, head_dim), np.uint16)
        for b, heads, tokens in head_parts(n_batch, n_heads, n_tokens - n, 2 * head_dim):
            rest[self._at(b, heads), tokens] = self.read(kv, b, heads, slice(tokens.start + n, tokens.stop + n))
        return rest

    def new_groups(self, n_tokens: int) -> Groups:
        """Arrays for n tokens of all heads."""
        n_heads, (words, groups) = self.shape[0] * self.shape[1], self.codec.shapes(n_tokens, self.shape[2])
        words = words[::-1] if self._transposed else words
        return (
            np.empty((n_heads, *words), np.uint32),
            np.empty((n_heads, *groups), np.uint16),
            np.empty((n_heads, *groups), np.uint16),
        )

    def _part(self, groups: Groups, batch: int, heads: slice, tokens: slice) -> Groups:
        """Views of some heads and tokens."""
        at = self._at(batch, heads)
        first, last = self._lengths(tokens.start), self._lengths(tokens.stop)
        words, rows = slice(first[0], last[0]), slice(first[1], last[1])
        return (
            groups[0][at, :, words] if self._transposed else groups[0][at, words],
            groups[1][at, rows],
            groups[2][at, rows],
        )

    def _lengths(self, n_tokens: int) -> tuple[int, int]:
        """Rows of words and of groups of n tokens."""
        words, groups = self.codec.shapes(n_tokens, self.shape[2])
        return words[0], groups[0]

    def put(self, groups: Groups, batch: int, heads: slice, tokens: slice, patterns: np.ndarray) -> None:
        """Quantize patterns[heads, tokens, channels] into these tokens of `groups`."""
        packed, into = self.codec.quantize(patterns), self._part(groups, batch, heads, tokens)
        if self._transposed:
            transpose_words(packed[0], into[0])
        else:
            into[0][...] = packed[0]
        into[1][...], into[2][...] = packed[1:]

    def pack(self, kv: KVTensor, n: int) -> Groups:
        """Quantize the first n tokens of `recent` and kv."""
        n_batch, n_heads, head_dim = self.shape
        groups = self.new_groups(n)
        for b, heads, tokens in head_parts(n_batch, n_heads, n, 2 * head_dim, self.codec.token_multiple):
            self.put(groups, b, heads, tokens, self.read(kv, b, heads, tokens))
        return groups

    def commit(self, n: int, groups: Groups, rest: np.ndarray) -> None:
        """Take n packed tokens, and the rest, for the state."""
        for growing, part in zip(self._packed, groups, strict=True):
            growing.append(part)
        self.n_packed, self.recent = self.n_packed + n, rest

    @property
    def padding_bits(self) -> int:
        """Bits of the codes that only fill up words."""
        return self.shape[0] * self.shape[1] * self.codec.padding_bits(self.n_packed, self.shape[2])

    def buffers(self) -> dict[str, np.ndarray]:
        """Views of the stored arrays, [batch, heads, ...]: codes (int32), scales, mins and recent (FP16)."""

        def shaped(array: np.ndarray, dtype: type) -> np.ndarray:
            return array.view(dtype).reshape(*self.shape[:2], *array.shape[1:])

        words, scales, mins = (growing.filled() for growing in self._packed)
        halves = {"scales": scales, "mins": mins, "recent": self.recent}
        return {"codes": shaped(words, np.int32)} | {name: shaped(x, np.float16) for name, x in halves.items()}

    def decode_packed(self, out: np.ndarray) -> None:
        """Write the decoded tokens, FP16 patterns, to out[batch, heads, tokens, head_dim] of any strides."""
        n_batch, n_heads, head_dim = self.shape
        words, scales, mins = (growing.filled() for growing in self._packed)
        multiple = self.codec.token_multiple
        for b, heads, tokens in head_parts(n_batch, n_heads, self.n_packed, 2 * head_dim, multiple):
            part = self._part((words, scales, mins), b, heads, tokens)
            code_words = np.ascontiguousarray(part[0])
            if self._transposed:
                code_words = np.empty((code_words.shape[0], code_words.shape[2], code_words.shape[1]), np.uint32)
                transpose_words(part[0], code_words)
            target = out[b, heads, tokens]
            direct = target if target.flags.c_contiguous else np.empty(target.shape, np.uint16)
            self.codec.dequantize((code_words, np.ascontiguousarray(part[1]), np.ascontiguousarray(part[2])), direct)
            if direct is not target:
                target[...] = direct

    def decode(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Packed, then recent tokens: FP16 of `shape`, and a view of its patterns [batch, heads, tokens, head_dim]."""
        result = np.empty(shape, np.float16)
        patterns = result.view(np.uint16)
        if len(shape) == 2:
            patterns = patterns.reshape(1, shape[0], self.shape[1], self.shape[2]).transpose(0, 2, 1, 3)
        self.decode_packed(patterns[:, :, : self.n_packed])
        patterns[:, :, self.n_packed :] = self.recent.reshape(*self.shape[:2], *self.recent.shape[1:])
        return result, patterns


class GroupCache(KVCache):
    """A cache for KIVI's groups. Buffers are those of `KIVI.quantize` for both sides.

    method: Gives a `codec(side)` and says by `n_packed(side, n)` how many of n tokens are packed, such as `KIVI`.
    n_heads: Heads of tensors [tokens, channels], from 1; those of four axes say theirs.
    nonfinite: "raise" refuses NaN and infinities, "replace" takes them as 0 and +-65504.
    """

    def __init__(self, method: Any, n_heads: int = 1, nonfinite: NonFinite = "raise") -> None:
        super().__init__(n_heads, nonfinite)
        self.method = method

    def _new_side(self, side: Side, shape: tuple[int, int, int]) -> GroupSide:
        return GroupSide(self.method.codec(side), shape, self.method.key_layout)

    def _extend(self, sides: dict[Side, GroupSide], tensors: dict[Side, KVTensor]) -> None:
        due = {}
        for side, held in sides.items():
            with complaints_about(side):
                kv = tensors[side]
                n = self.method.n_packed(side, self.n_tokens + kv.array.shape[2]) - held.n_packed
                due[side] = n, held.pack(kv, n), held.rest(kv, n)
        for side, held in sides.items():
            held.commit(*due[side])

    def _side_buffers(self, side: Side) -> dict[str, np.ndarray]:
        return {f"{side}_{name}": array for name, array in self._sides[side].buffers().items()}

    def _side_counts(self, side: Side) -> dict[str, int]:
        return {"n_packed_elements": self._sides[side].n_packed * int(np.prod(self._shapes[side]))}

    def _pieces(self, side: Side) -> list[Piece]:
        buffers, held = self._side_buffers(side), self._sides[side]
        parts = {name: part_of(name) for name in buffers}
        return [
            Piece(
                "",
                method=self.method,
                shape=self._shape(side),
                buffers=buffers,
                part_of=parts,
                counts=self._side_counts(side),
                padding_bits=held.padding_bits,
            )
        ]

    def _seen(self, side: Side) -> np.ndarray:
        result, patterns = self._sides[side].decode(self._shape(side))
        self._override(side, patterns)
        return result

    def decoded(self, side: Side) -> np.ndarray:
        """Dequantize the codes alone: FP16 [batch, heads, quantized tokens, head_dim].

        side: "key" or "value".
        """
        held: GroupSide = self._sides[side]
        result = np.empty((*held.shape[:2], held.n_packed, held.shape[2]), np.float16)
        held.decode_packed(result.view(np.uint16))
        return result

    def _override(self, side: Side, patterns: np.ndarray) -> None:
        """Put tokens that are kept apart in place of the decoded ones."""
