"""KV caches of one layer that grow by `append`.

`RowCache` is for methods that quantize token by token; `GroupCache` (groups.py) for those that keep recent tokens in
FP16 until they are quantized in groups (KIVI, SinkQ). Several appends store what one append of all their tokens stores,
and an append that fails changes nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np

from kernels_ref.inputs import KVTensor, NonFinite, kv_tensor
from kernels_ref.packed import Packed, Stored

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
        """A view of all that has been appended."""
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
        """Add tokens.

        key: FP16, BF16 or FP32, [batch, heads, tokens, head_dim] or [tokens, channels] of the cache's heads; batch,
            heads and head_dim are those of the first append.
        value: Likewise; it may differ from `key` in head_dim only.

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
        """New store of one side, for `_extend`, `_pieces` and `_seen`."""
        raise NotImplementedError

    def _extend(self, sides: dict[Side, Any], tensors: dict[Side, KVTensor]) -> None:
        """Quantize what is due, then store it; nothing may change before all has succeeded."""
        raise NotImplementedError

    def _shape(self, side: Side) -> tuple[int, ...]:
        n_batch, n_heads, head_dim = self._shapes[side]
        return (self.n_tokens, n_heads * head_dim) if self._flat else (n_batch, n_heads, self.n_tokens, head_dim)

    def _pieces(self, side: Side) -> list["Piece"]:
        """The stored pieces of one side."""
        raise NotImplementedError

    def packed(self, side: Side) -> tuple[Packed, ...]:
        """Keys or values with their ledger, in one piece or one for each sequence. Views, or copies where need be.

        side: "key" or "value".
        """
        return tuple(
            Packed(
                piece.method,
                shape=piece.shape,
                n_elements=int(np.prod(piece.shape)),
                buffers=piece.buffers,
                part_of=piece.part_of,
                padding_bits=piece.padding_bits,
                counts=piece.counts,
                once_bits=_once_bits(piece),
                n_heads=self.n_heads,
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
    """A cache for a method that quantizes token by token (NF4, integers, FP8, ...): it only appends.

    New tokens never change the bytes of old ones. Buffers: every sequence has its own, `key.0.codes` are the codes of
    the keys of sequence 0.

    method: Quantizes the keys: any object whose `quantize(x, n_heads=..., nonfinite=...)` gives a `Packed` with token
        after token along the first axis of every buffer, entries of varying number included, and counts that add up;
        buffers named in its `fixed` are kept once.
    value_method: Quantizes the values; default: `method`.
    n_heads: Heads of tensors [tokens, channels], from 1; those of four axes say theirs.
    nonfinite: "raise" refuses NaN and infinities, "replace" takes them as 0 and +-65504.
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
        for side, new_parts in parts.items():
            for sequence, part in zip(sides[side], new_parts, strict=False):
                sequence.append(part)
            sides[side] += [_Sequence(part) for part in new_parts[len(sides[side]) :]]

    def _pieces(self, side: Side) -> list[Piece]:
        shape = self._shape(side) if self._flat else (1, *self._shape(side)[1:])
        return [
            Piece(
                f"{side}.{b}.",
                method=sequence.method,
                shape=shape,
                buffers={name: growing.filled() for name, growing in sequence.growing.items()},
                part_of=sequence.part_of,
                counts=sequence.counts,
                padding_bits=sequence.padding_bits,
            )
            for b, sequence in enumerate(self._sides[side])
        ]

    def _seen(self, side: Side) -> np.ndarray:
        sequences = self.packed(side)
        if len(sequences) == 1:
            return sequences[0].dequantize()
        out = np.empty(self._shape(side), np.float16)
        for b, packed in enumerate(sequences):
            out[b] = packed.dequantize()[0]
        return out
