"""KV caches of one layer that grow by `append`.

`RowCache` is for methods that quantise token by token; `GroupCache` for those that keep recent tokens in FP16 until
they are packed in groups (KIVI, SinkQ). What is stored after several appends is what one append of all their tokens
stores, and an append that fails changes nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from kernels_ref.inputs import KVTensor, NonFinite, head_parts, kv_tensor
from kernels_ref.packed import Packed, Stored
from kernels_ref.packing import transpose_words

if TYPE_CHECKING:
    from kernels_ref.kivi import GroupCodec

Side = Literal["key", "value"]
SIDES: tuple[Side, Side] = ("key", "value")


class Growing:
    """An array that grows along `axis`, with spare room once it has grown; what is in it never changes."""

    def __init__(self, first: np.ndarray, axis: int = 0) -> None:
        self._room, self._axis, self._n = first, axis, first.shape[axis]

    def _at(self, start: int, stop: int) -> tuple[slice, ...]:
        return (slice(None),) * self._axis + (slice(start, stop),)

    def append(self, part: np.ndarray) -> None:
        """Add `part`, of the same shape but for the axis."""
        if self._n and not part.shape[self._axis]:
            return
        n, room = self._n + part.shape[self._axis], self._room.shape[self._axis]
        if not self._n:
            self._room = part
        elif n > room:
            shape = list(self._room.shape)
            shape[self._axis] = max(n, room * 3 // 2)
            old, self._room = self.filled(), np.empty(shape, part.dtype)
            self._room[self._at(0, self._n)] = old
        if self._n:
            self._room[self._at(self._n, n)] = part
        self._n = n

    def filled(self) -> np.ndarray:
        """What has been appended; a view."""
        return self._room[self._at(0, self._n)]


@contextmanager
def complaints_about(name: str) -> Iterator[None]:
    """Let errors about x be about parameter `name`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        message = str(error)
        if not message.startswith(("x ", "x:")):
            raise
        raise type(error)(name + message[1:]) from None


class KVCache(Stored):
    """Keys and values of one layer. `n_heads`: heads of tensors [tokens, channels]."""

    def __init__(self, n_heads: int, nonfinite: NonFinite) -> None:
        self.n_heads, self.nonfinite = n_heads, nonfinite
        #: tokens of every sequence
        self.n_tokens = 0
        self._sides: dict[Side, Any] = {}
        #: (batch, heads, head_dim) of either side
        self._shapes: dict[Side, tuple[int, int, int]] = {}
        self._flat = False

    def append(self, key: np.ndarray, value: np.ndarray) -> None:
        """Add tokens: key and value [batch, heads, tokens, head_dim] or [tokens, channels] of n_heads heads.

        Batch, heads and head_dim are those of the first append; key and value may differ in head_dim only.
        Raises TypeError and ValueError that name the parameter; the cache is then as it was.
        """
        tensors: dict[Side, KVTensor] = {}
        for side, x in zip(SIDES, (key, value), strict=True):
            with complaints_about(side):
                tensors[side] = kv_tensor(x, self.n_heads, self.nonfinite)
        if tensors["key"].array.shape[:3] != tensors["value"].array.shape[:3] or key.ndim != value.ndim:
            raise ValueError(f"value has shape {value.shape}: must be that of key, {key.shape}, but for the last axis")
        shapes: dict[Side, tuple[int, int, int]] = {}
        for side, kv in tensors.items():
            n_batch, n_heads, n_tokens, head_dim = kv.array.shape
            shapes[side] = n_batch, n_heads, head_dim
            if self._sides and (shapes[side], key.ndim == 2) != (self._shapes[side], self._flat):
                raise ValueError(f"{side} has shape {kv.shape}: must be that of the first append, but for the tokens")
        sides = self._sides or {side: self._new_side(side, shape) for side, shape in shapes.items()}
        self._extend(sides, tensors)
        self._sides, self._shapes, self._flat = sides, shapes, key.ndim == 2
        self.n_tokens += n_tokens

    def _new_side(self, side: Side, shape: tuple[int, int, int]) -> Any:
        """What stores one side, for `_extend`, `_pieces` and `_seen`."""
        raise NotImplementedError

    def _extend(self, sides: dict[Side, Any], tensors: dict[Side, KVTensor]) -> None:
        """Quantise what is due, then store it; nothing may change before all has succeeded."""
        raise NotImplementedError

    def _shape(self, side: Side) -> tuple[int, ...]:
        n_batch, n_heads, head_dim = self._shapes[side]
        return (self.n_tokens, n_heads * head_dim) if self._flat else (n_batch, n_heads, self.n_tokens, head_dim)

    def _pieces(self, side: Side) -> list["Piece"]:
        """What is stored of one side."""
        raise NotImplementedError

    def packed(self, side: Side) -> tuple[Packed, ...]:
        """Keys or values with their ledger, in one piece or one for each sequence. Views, or copies where need be."""
        return tuple(
            Packed(
                piece.method,
                piece.shape,
                int(np.prod(piece.shape)),
                piece.buffers,
                piece.part_of,
                piece.padding_bits,
                piece.counts,
                _once_bits(piece),
                self.n_heads,
            )
            for piece in (self._pieces(side) if self._sides else ())
        )

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values as attention sees them: FP16, new arrays of the layout that was appended.

        Raises ValueError before the first append.
        """
        if not self._sides:
            raise ValueError("the cache is empty: append keys and values first")
        return self._seen("key"), self._seen("value")

    def _seen(self, side: Side) -> np.ndarray:
        raise NotImplementedError

    def _all_pieces(self) -> list["Piece"]:
        return [piece for side in self._sides for piece in self._pieces(side)]

    @property
    def buffers(self) -> dict[str, np.ndarray]:  # type: ignore[override]
        """The very arrays that are stored; views, to be left unchanged."""
        return {piece.prefix + name: array for piece in self._all_pieces() for name, array in piece.buffers.items()}

    @property
    def part_of(self) -> dict[str, str]:  # type: ignore[override]
        """The ledger part of every buffer."""
        return {piece.prefix + name: part for piece in self._all_pieces() for name, part in piece.part_of.items()}

    @property
    def counts(self) -> dict[str, int]:  # type: ignore[override]
        """Counts that the closed form needs, summed over both sides, heads and batches."""
        total: dict[str, int] = {}
        for piece in self._all_pieces():
            _add_counts(total, piece.counts)
        return total

    @property
    def once_bits(self) -> int:  # type: ignore[override]
        """Bits stored once, however long the cache."""
        return sum(_once_bits(piece) for piece in self._all_pieces())

    @property
    def padding_bits(self) -> int:  # type: ignore[override]
        """Bits that fill up bytes and words."""
        return sum(piece.padding_bits for piece in self._all_pieces())

    @property
    def n_elements(self) -> int:  # type: ignore[override]
        """Elements of keys and values."""
        return self.n_tokens * sum(n_batch * n_heads * head_dim for n_batch, n_heads, head_dim in self._shapes.values())


class Piece(NamedTuple):
    """Buffers of a cache, all or those of one sequence, as in `Packed`; `prefix` is for their names in the cache."""

    prefix: str
    method: Any
    shape: tuple[int, ...]
    buffers: dict[str, np.ndarray]
    part_of: Mapping[str, str]
    counts: dict[str, int]
    padding_bits: int


def _once_bits(piece: Piece) -> int:
    """Bits of the buffers that a method says are fixed: stored once, however the cache grows."""
    return 8 * sum(piece.buffers[name].nbytes for name in getattr(piece.method, "fixed", ()))


def _add_counts(total: dict[str, int], counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        total[name] = total.get(name, 0) + count


class _Sequence:
    """Keys or values of one sequence: what `method.quantize` gave for each append, buffer after buffer."""

    def __init__(self, first: Packed) -> None:
        self.method, self.part_of = first.method, first.part_of
        self.growing = {name: Growing(buffer) for name, buffer in first.buffers.items()}
        self.counts, self.padding_bits = dict(first.counts), first.padding_bits

    def append(self, part: Packed) -> None:
        for name, buffer in part.buffers.items():
            if name not in getattr(self.method, "fixed", ()):
                self.growing[name].append(buffer)
        _add_counts(self.counts, part.counts)
        self.padding_bits += part.padding_bits


class RowCache(KVCache):
    """A cache for a method that quantises token by token (NF4, integers, FP8, ...): it only appends.

    `method` quantises the keys, `value_method` the values (`method` where none is given). Any object serves whose
    `quantize(x, n_heads=..., nonfinite=...)` gives a `Packed` with token after token along the first axis of every
    buffer, entries of varying number included, and counts that add up; buffers named in its `fixed` are kept once.
    New tokens never change the bytes of old ones.
    Buffers: every sequence has its own, `key.0.codes` are the codes of the keys of sequence 0.
    """

    def __init__(
        self, method: Any, value_method: Any = None, *, n_heads: int = 1, nonfinite: NonFinite = "raise"
    ) -> None:
        super().__init__(n_heads, nonfinite)
        self.key_method, self.value_method = method, method if value_method is None else value_method

    def _new_side(self, side: Side, shape: tuple[int, int, int]) -> list[_Sequence]:
        return []

    def _extend(self, sides: dict[Side, list[_Sequence]], tensors: dict[Side, KVTensor]) -> None:
        parts = {}
        for side, kv in tensors.items():
            method = self.key_method if side == "key" else self.value_method
            with complaints_about(side):
                parts[side] = [
                    method.quantize(x, n_heads=self.n_heads, nonfinite=self.nonfinite) for x in kv.sequences()
                ]
        for side, found in parts.items():
            for sequence, part in zip(sides[side], found, strict=False):
                sequence.append(part)
            sides[side] += [_Sequence(part) for part in found[len(sides[side]) :]]

    def _pieces(self, side: Side) -> list[Piece]:
        shape = self._shape(side) if self._flat else (1, *self._shape(side)[1:])
        return [
            Piece(
                f"{side}.{b}.",
                own.method,
                shape,
                {name: growing.filled() for name, growing in own.growing.items()},
                own.part_of,
                own.counts,
                own.padding_bits,
            )
            for b, own in enumerate(self._sides[side])
        ]

    def _seen(self, side: Side) -> np.ndarray:
        sequences = self.packed(side)
        if len(sequences) == 1:
            return sequences[0].dequantize()
        out = np.empty(self._shape(side), np.float16)
        for b, packed in enumerate(sequences):
            out[b] = packed.dequantize()[0]
        return out


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


class GroupSide:
    """Keys or values: packed groups of the old tokens, and the patterns `recent`[batch * heads, tokens, head_dim]."""

    def __init__(self, codec: "GroupCodec", shape: tuple[int, int, int], key_layout: str = "torch") -> None:
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
        """What `recent` becomes when the first n of its tokens and those of kv have been packed."""
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
        """Quantise patterns[heads, tokens, channels] into these tokens of `groups`."""
        found, into = self.codec.quantize(patterns), self._part(groups, batch, heads, tokens)
        if self._transposed:
            transpose_words(found[0], into[0])
        else:
            into[0][...] = found[0]
        into[1][...], into[2][...] = found[1:]

    def pack(self, kv: KVTensor, n: int) -> Groups:
        """The first n tokens of `recent` and kv, quantised."""
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
        """What is stored, [batch, heads, ...]: codes (int32), scales, mins and recent (FP16); views."""

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
            own = np.ascontiguousarray(part[0])
            if self._transposed:
                own = np.empty((own.shape[0], own.shape[2], own.shape[1]), np.uint32)
                transpose_words(part[0], own)
            target = out[b, heads, tokens]
            direct = target if target.flags.c_contiguous else np.empty(target.shape, np.uint16)
            self.codec.dequantize((own, np.ascontiguousarray(part[1]), np.ascontiguousarray(part[2])), direct)
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
    """A cache for KIVI's groups: `method` gives a `codec(side)` and says by `n_packed(side, n)` how many of n tokens
    are packed. Buffers are those of `KIVI.quantize` for both sides.
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
        return [Piece("", self.method, self._shape(side), buffers, parts, self._side_counts(side), held.padding_bits)]

    def _seen(self, side: Side) -> np.ndarray:
        result, patterns = self._sides[side].decode(self._shape(side))
        self._override(side, patterns)
        return result

    def decoded(self, side: Side) -> np.ndarray:
        """What the codes of the packed tokens decode to, FP16 [batch, heads, packed tokens, head_dim]."""
        held: GroupSide = self._sides[side]
        result = np.empty((*held.shape[:2], held.n_packed, held.shape[2]), np.float16)
        held.decode_packed(result.view(np.uint16))
        return result

    def _override(self, side: Side, patterns: np.ndarray) -> None:
        """Put tokens that are kept apart in place of the decoded ones."""
