"""Methods that quantise every token vector on its own: blocks of rows in and out, and a cache that only ever grows.

Such a method stores, for every token, the same number of items in each buffer (a `Column`), or at least its bytes token
after token: then a new token never changes the bytes of the old ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from kernels_ref import inputs
from kernels_ref.formats import PARTS
from kernels_ref.packed import Packed

Buffers = dict[str, np.ndarray]


@dataclass(frozen=True)
class Column:
    """A buffer [rows, items]: `items` of `dtype` for every token vector, counted under ledger part `part`."""

    name: str
    dtype: Any
    items: int
    part: str


def checked_tensor(x: Any, n_heads: int, nonfinite: inputs.NonFinite) -> tuple[inputs.KVTensor, tuple[int, ...]]:
    """`inputs.kv_tensor` that takes [n] as one row, and the shape that the caller gave."""
    if isinstance(x, np.ndarray) and x.ndim == 1:
        return inputs.kv_tensor(x[None], n_heads, nonfinite), x.shape
    return inputs.kv_tensor(x, n_heads, nonfinite), getattr(x, "shape", ())


def encode_rows(
    method: Any,
    x: np.ndarray,
    columns: Sequence[Column],
    encode: Callable[[np.ndarray, Buffers], None],
    *,
    n_heads: int = 1,
    nonfinite: inputs.NonFinite = "raise",
    padding_bits: int = 0,
) -> Packed:
    """Quantise all token vectors of `x` in blocks of at most 8 MiB.

    `encode(bits, buffers)` fills the rows of all columns for FP16 patterns bits[n, channels]; `padding_bits` of every
    row's payload only fill up a byte.
    """
    tensor, shape = checked_tensor(x, n_heads, nonfinite)
    buffers = {column.name: np.empty((tensor.n_rows, column.items), column.dtype) for column in columns}
    for row, bits in tensor.row_blocks():
        encode(bits, {name: buffer[row : row + len(bits)] for name, buffer in buffers.items()})
    return Packed(
        method,
        shape,
        tensor.array.size,
        buffers,
        {column.name: column.part for column in columns},
        padding_bits=padding_bits * tensor.n_rows,
    )


def shape_of_rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """(token vectors, channels) of [n], [tokens, channels] or [batch, heads, tokens, head_dim]."""
    if len(shape) == 1:
        return 1, shape[0]
    if len(shape) == 2:
        return shape[0], shape[1]
    return shape[0] * shape[2], shape[1] * shape[3]


def channels_of(shape: tuple[int, ...]) -> int:
    """Channels of a token vector; 0 for a shape that is no tensor of keys or values (and is refused later)."""
    return shape_of_rows(shape)[1] if len(shape) in (1, 2, 4) else 0


def check_buffers(packed: Packed, columns: Sequence[Column]) -> None:
    """Raise ValueError unless the buffers are those of `columns`: kernels trust their sizes."""
    n_rows, _ = shape_of_rows(packed.shape)
    for column in columns:
        buffer = packed.buffers.get(column.name)
        want = (n_rows, column.items)
        if buffer is None or buffer.shape != want or buffer.dtype != np.dtype(column.dtype):
            found = "missing" if buffer is None else f"{buffer.dtype.name} {list(buffer.shape)}"
            raise ValueError(
                f"buffer {column.name}: is {found}, must be {np.dtype(column.dtype).name} {list(want)} for a tensor of "
                f"shape {list(packed.shape)}"
            )


def decode_rows(packed: Packed, columns: Sequence[Column], decode: Callable[[Buffers, np.ndarray], None]) -> np.ndarray:
    """The FP16 tensor of `packed`, in the shape that was quantised.

    `decode(buffers, bits)` writes the FP16 patterns bits[n, channels] of the rows whose columns it is given.
    """
    check_buffers(packed, columns)
    shape = packed.shape
    n_rows, channels = shape_of_rows(shape)
    out = np.empty(shape, np.float16)
    by_head = len(shape) == 4 and shape[1] > 1
    n_tokens = shape[2] if by_head else n_rows
    flat = None if by_head else out.view(np.uint16).reshape(n_rows, channels)
    step = max(inputs.BLOCK_BYTES // (2 * channels), 1)
    for start in range(0, n_rows, max(n_tokens, 1)):
        for t in range(0, n_tokens, step):
            n = min(step, n_tokens - t)
            rows = slice(start + t, start + t + n)
            part = {column.name: packed.buffers[column.name][rows] for column in columns}
            if flat is not None:
                decode(part, flat[rows])
                continue
            bits = np.empty((n, channels), np.uint16)
            decode(part, bits)
            heads = bits.view(np.float16).reshape(n, shape[1], shape[3])
            out[start // n_tokens, :, t : t + n] = heads.transpose(1, 0, 2)
    return out


class _Growing:
    """An array that grows along its first axis; what is in it never moves within the array and never changes."""

    def __init__(self, first: np.ndarray) -> None:
        self._store, self.n = first, len(first)

    def append(self, part: np.ndarray) -> None:
        if not len(part):
            return
        n = self.n + len(part)
        if n > len(self._store):
            store = np.empty((max(n, len(self._store) * 3 // 2), *self._store.shape[1:]), self._store.dtype)
            store[: self.n] = self._store[: self.n]
            self._store = store
        self._store[self.n : n] = part
        self.n = n

    def filled(self) -> np.ndarray:
        return self._store[: self.n]


class _Stream:
    """Keys or values of one sequence: what `method.quantize` gave for each append, buffer after buffer."""

    def __init__(self, first: Packed) -> None:
        self._first = first
        self.buffers = {name: _Growing(buffer) for name, buffer in first.buffers.items()}
        self.counts, self.padding_bits = dict(first.counts), first.padding_bits
        self.n_tokens, self.n_elements = first.shape[-2], first.n_elements

    def append(self, part: Packed) -> None:
        for name, buffer in part.buffers.items():
            self.buffers[name].append(buffer)
        for name, count in part.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        self.padding_bits += part.padding_bits
        self.n_tokens += part.shape[-2]
        self.n_elements += part.n_elements

    def packed(self) -> Packed:
        shape = (*self._first.shape[:-2], self.n_tokens, self._first.shape[-1])
        return Packed(
            self._first.method,
            shape,
            self.n_elements,
            {name: buffer.filled() for name, buffer in self.buffers.items()},
            self._first.part_of,
            padding_bits=self.padding_bits,
            counts=self.counts,
        )


class RowCache:
    """A KV cache of one layer for a method that quantises token by token (NF4, integers, FP8, ...): it only appends.

    `method` packs the keys, `value_method` the values (`method` where none is given). Any object serves whose
    `quantize(x, n_heads=..., nonfinite=...)` gives a `Packed` with token after token along the first axis of every
    buffer, entries of varying length included, and counts that add up. New tokens never change the bytes of old ones.
    Every sequence of a batch has its own buffers.
    """

    def __init__(
        self, method: Any, value_method: Any = None, *, n_heads: int = 1, nonfinite: inputs.NonFinite = "raise"
    ) -> None:
        self.key_method, self.value_method = method, method if value_method is None else value_method
        self.n_heads, self.nonfinite = n_heads, nonfinite
        self._streams: tuple[list[_Stream], list[_Stream]] = ([], [])
        self._shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def append(self, key: np.ndarray, value: np.ndarray) -> None:
        """Add tokens: [tokens, channels], or [batch, heads, tokens, head_dim] of every sequence of the batch.

        Raises ValueError where shapes do not fit each other or what is there; then nothing has been added.
        """
        shapes = self._check(key, value)
        parts = [
            [self._quantize(method, x, b) for b in range(x.shape[0] if x.ndim == 4 else 1)]
            for method, x in ((self.key_method, key), (self.value_method, value))
        ]
        if self._shapes is None:
            self._streams = ([_Stream(part) for part in parts[0]], [_Stream(part) for part in parts[1]])
            self._shapes = shapes
            return
        for streams, new in zip(self._streams, parts, strict=True):
            for stream, part in zip(streams, new, strict=True):
                stream.append(part)

    def _quantize(self, method: Any, x: np.ndarray, b: int) -> Packed:
        return method.quantize(x[b : b + 1] if x.ndim == 4 else x, n_heads=self.n_heads, nonfinite=self.nonfinite)

    def _check(self, key: np.ndarray, value: np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...]]:
        shapes = []
        for name, x in (("key", key), ("value", value)):
            if not isinstance(x, np.ndarray) or x.ndim not in (2, 4):
                raise ValueError(f"{name}: must be an array [tokens, channels] or [batch, heads, tokens, head_dim]")
            shapes.append((*x.shape[:-2], x.shape[-1]))
        if key.shape[:-1] != value.shape[:-1]:
            raise ValueError(f"key {list(key.shape)} and value {list(value.shape)}: must be of the same tokens")
        found = (shapes[0], shapes[1])
        if self._shapes is not None and found != self._shapes:
            raise ValueError(
                f"key {list(key.shape)} and value {list(value.shape)}: must be as before but for the tokens: "
                f"{list(self._shapes[0])} and {list(self._shapes[1])} without them"
            )
        return found

    @property
    def keys(self) -> tuple[Packed, ...]:
        """The packed keys, one `Packed` per sequence; views that later appends leave as they are."""
        return tuple(stream.packed() for stream in self._streams[0])

    @property
    def values(self) -> tuple[Packed, ...]:
        """The packed values, one `Packed` per sequence."""
        return tuple(stream.packed() for stream in self._streams[1])

    @property
    def buffers(self) -> Buffers:
        """All buffers by name: `key.0.codes` are the codes of the keys of sequence 0."""
        return {name: buffer for name, _, buffer in self._buffers()}

    def _buffers(self) -> Iterator[tuple[str, str, np.ndarray]]:
        for which, found in (("key", self.keys), ("value", self.values)):
            for b, packed in enumerate(found):
                for name, buffer in packed.buffers.items():
                    yield f"{which}.{b}.{name}", packed.part_of[name], buffer

    @property
    def n_tokens(self) -> int:
        """Tokens of every sequence."""
        return self._streams[0][0].n_tokens if self._streams[0] else 0

    @property
    def n_elements(self) -> int:
        """Elements of all keys and values."""
        return sum(stream.n_elements for streams in self._streams for stream in streams)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all buffers, as far as they are filled."""
        return sum(buffer.nbytes for _, _, buffer in self._buffers())

    @property
    def stored_bits(self) -> Fraction:
        """8 * stored_bytes / elements; 0 for an empty cache."""
        return Fraction(8 * self.stored_bytes, self.n_elements) if self.n_elements else Fraction(0)

    @property
    def ledger(self) -> dict[str, int]:
        """Bits of keys and values by part, in the order of `PARTS`; the sum is 8 * stored_bytes."""
        return _sum_ledgers([packed.ledger for packed in (*self.keys, *self.values)])

    @property
    def effective_bits(self) -> Fraction:
        """Bits an element as the method's paper counts them (`Packed.effective_bits`), over keys and values."""
        found = [packed for packed in (*self.keys, *self.values) if packed.n_elements]
        elements = [packed.counts.get("n_packed_elements", packed.n_elements) for packed in found]
        own = sum((packed.effective_bits * n for packed, n in zip(found, elements, strict=True)), Fraction(0))
        return own / sum(elements) if sum(elements) else Fraction(0)

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values as attention sees them, FP16, of the appended shape with all tokens.

        Raises ValueError where nothing has been appended yet.
        """
        if self._shapes is None:
            raise ValueError("cache: nothing has been appended, so the shape is not known")
        return _joined(self.keys), _joined(self.values)


def _sum_ledgers(ledgers: Sequence[Mapping[str, int]]) -> dict[str, int]:
    bits = {part: sum(ledger.get(part, 0) for ledger in ledgers) for part in PARTS}
    return {part: n for part, n in bits.items() if n}


def _joined(sequences: Sequence[Packed]) -> np.ndarray:
    """All sequences dequantised, along the batch axis where there is one."""
    if len(sequences) == 1:
        return sequences[0].dequantize()
    first = sequences[0].shape
    out = np.empty((len(sequences), *first[1:]), np.float16)
    for b, packed in enumerate(sequences):
        out[b] = packed.dequantize()[0]
    return out
