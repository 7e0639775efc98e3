"""KV caches that grow: a packed part of old tokens, and the most recent ones in FP16, for keys and for values."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np

from kernels_ref.formats import PARTS
from kernels_ref.inputs import KVTensor, NonFinite, kv_tensor
from kernels_ref.kivi_store import SIDES, GroupCodec, PackedGroups, Side, head_parts
from kernels_ref.packed import Packed

#: ledger parts of what is stored on either side, by the last word of a buffer's name
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


class Half:
    """Keys or values: packed groups, and the patterns `recent`[batch * heads, tokens, head_dim] not yet packed."""

    def __init__(self, codec: GroupCodec, n_batch: int, n_heads: int, head_dim: int, key_layout: str = "torch") -> None:
        self.groups = PackedGroups(codec, n_batch, n_heads, head_dim, key_layout)
        self.recent = np.empty((n_batch * n_heads, 0, head_dim), np.uint16)

    def read(self, kv: KVTensor, batch: int, heads: slice, tokens: slice) -> np.ndarray:
        """Patterns of the tokens that follow the packed ones: first those of `recent`, then those of kv."""
        n_heads, n_recent = self.groups.shape[1], self.recent.shape[1]
        at = slice(batch * n_heads + heads.start, batch * n_heads + heads.stop)
        old = self.recent[at, tokens.start : min(tokens.stop, n_recent)]
        if tokens.stop <= n_recent:
            return np.ascontiguousarray(old)
        new = kv.patterns(batch, heads, slice(max(tokens.start - n_recent, 0), tokens.stop - n_recent))
        return np.concatenate((old, new), axis=1) if old.shape[1] else new

    def rest(self, kv: KVTensor, n_packed: int) -> np.ndarray:
        """What `recent` becomes when the first n_packed of its tokens and those of kv have been packed."""
        n_batch, n_heads, head_dim = self.groups.shape
        n_tokens = self.recent.shape[1] + kv.array.shape[2]
        rest = np.empty((n_batch * n_heads, n_tokens - n_packed, head_dim), np.uint16)
        for b, heads, tokens in head_parts(n_batch, n_heads, n_tokens - n_packed, 2 * head_dim):
            at = slice(b * n_heads + heads.start, b * n_heads + heads.stop)
            rest[at, tokens] = self.read(kv, b, heads, slice(tokens.start + n_packed, tokens.stop + n_packed))
        return rest

    def pack(self, kv: KVTensor, n_packed: int) -> None:
        """Write n_packed tokens beyond the packed ones; they count after `commit`."""
        n_batch, n_heads, head_dim = self.groups.shape
        first = self.groups.n_tokens
        self.groups.reserve(first + n_packed)
        for b, heads, tokens in head_parts(n_batch, n_heads, n_packed, 2 * head_dim, self.groups.codec.token_multiple):
            self.groups.put(b, heads, first + tokens.start, self.read(kv, b, heads, tokens))

    def commit(self, n_packed: int, rest: np.ndarray) -> None:
        """Take what was packed, and the rest, for the state."""
        self.groups.n_tokens += n_packed
        self.recent = rest

    @property
    def n_tokens(self) -> int:
        """Packed and recent tokens."""
        return self.groups.n_tokens + self.recent.shape[1]

    def buffers(self) -> dict[str, np.ndarray]:
        """What is stored: codes, scales, mins, recent; views, [batch, heads, ...]."""
        codes, scales, mins = self.groups.arrays()
        recent = self.recent.view(np.float16).reshape(*self.groups.shape[:2], *self.recent.shape[1:])
        return {"codes": codes, "scales": scales, "mins": mins, "recent": recent}

    def unpack(self, out: np.ndarray) -> None:
        """Write packed, then recent tokens to out[batch, heads, tokens, head_dim], any strides."""
        n = self.groups.n_tokens
        self.groups.unpack(out[:, :, :n])
        out[:, :, n:] = self.recent.reshape(*self.groups.shape[:2], *self.recent.shape[1:])


def empty_result(shape: tuple[int, ...], n_heads: int) -> tuple[np.ndarray, np.ndarray]:
    """A new FP16 array of that shape, and its patterns as [batch, heads, tokens, head_dim]."""
    result = np.empty(shape, np.float16)
    patterns = result.view(np.uint16)
    if len(shape) == 2:
        patterns = patterns.reshape(1, shape[0], n_heads, shape[1] // n_heads).transpose(0, 2, 1, 3)
    return result, patterns


class StreamingCache:
    """Keys and values of one layer that grow by `append`; subclasses say what is packed when.

    The state after several appends is that after one append of all their tokens. An append that fails changes nothing.
    """

    def __init__(self, method: Any, codec: Callable[[Side], GroupCodec], n_heads: int, nonfinite: NonFinite) -> None:
        self.method, self._codec, self._n_heads, self._nonfinite = method, codec, n_heads, nonfinite
        self.halves: dict[Side, Half] = {}
        self._flat = False

    @property
    def n_tokens(self) -> int:
        """Tokens appended so far."""
        return self.halves["key"].n_tokens if self.halves else 0

    def append(self, key: np.ndarray, value: np.ndarray) -> None:
        """Add tokens: key and value [batch, heads, tokens, head_dim] or [tokens, channels] of n_heads heads.

        Batch, heads and head_dim are those of the first append; key and value may differ in head_dim only.
        Raises TypeError and ValueError that name the parameter; the cache is then as it was.
        """
        tensors: dict[Side, KVTensor] = {}
        for side, x in zip(SIDES, (key, value), strict=True):
            with complaints_about(side):
                tensors[side] = kv_tensor(x, self._n_heads, self._nonfinite)
        if tensors["key"].array.shape[:3] != tensors["value"].array.shape[:3] or key.ndim != value.ndim:
            raise ValueError(f"value has shape {value.shape}: must be that of key, {key.shape}, but for the last axis")
        halves = self.halves or {side: self._new_half(side, kv) for side, kv in tensors.items()}
        for side, kv in tensors.items():
            n_batch, n_heads, _, head_dim = kv.array.shape
            if (n_batch, n_heads, head_dim) != halves[side].groups.shape or (
                self.halves and self._flat != (key.ndim == 2)
            ):
                raise ValueError(f"{side} has shape {kv.shape}: must be that of the first append, but for the tokens")
        self._extend(halves, tensors)
        self.halves, self._flat = halves, key.ndim == 2

    def _new_half(self, side: Side, kv: KVTensor) -> Half:
        n_batch, n_heads, _, head_dim = kv.array.shape
        return Half(self._codec(side), n_batch, n_heads, head_dim, getattr(self.method, "key_layout", "torch"))

    def _extend(self, halves: dict[Side, Half], tensors: dict[Side, KVTensor]) -> None:
        """Pack what is due, then commit; nothing may change before all has succeeded."""
        raise NotImplementedError

    def _side_buffers(self, side: Side) -> dict[str, np.ndarray]:
        """Buffers of one side, by their full names."""
        return {f"{side}_{name}": array for name, array in self.halves[side].buffers().items()}

    def _counts(self, side: Side) -> dict[str, int]:
        groups = self.halves[side].groups
        return {"n_packed_elements": groups.n_tokens * groups.shape[0] * groups.shape[1] * groups.shape[2]}

    def packed(self, side: Side) -> Packed:
        """One side with its ledger: what the closed form for keys or for values counts. A copy where need be."""
        n_batch, n_heads, head_dim = self.halves[side].groups.shape
        buffers = self._side_buffers(side)
        shape = (self.n_tokens, n_heads * head_dim) if self._flat else (n_batch, n_heads, self.n_tokens, head_dim)
        return Packed(
            self.method,
            shape,
            self.n_tokens * n_batch * n_heads * head_dim,
            buffers,
            {name: part_of(name) for name in buffers},
            self.halves[side].groups.padding_bits,
            self._counts(side),
        )

    @property
    def buffers(self) -> Mapping[str, np.ndarray]:
        """The very arrays that are stored; views, to be left unchanged."""
        return {name: array for side in self.halves for name, array in self._side_buffers(side).items()}

    @property
    def counts(self) -> dict[str, int]:
        """Counts that the closed form needs, summed over both sides, heads and batches."""
        sides = [self._counts(side) for side in self.halves]
        return {name: sum(counts[name] for counts in sides) for name in (sides[0] if sides else ())}

    @property
    def ledger(self) -> dict[str, int]:
        """Bits by part, both sides, in the order of `PARTS`, zeros left out; the sum is 8 * stored_bytes."""
        bits = dict.fromkeys(PARTS, 0)
        for name, array in self.buffers.items():
            bits[part_of(name)] += 8 * array.nbytes
        padding = sum(half.groups.padding_bits for half in self.halves.values())
        bits["payload"] -= padding
        bits["padding"] += padding
        return {part: n for part, n in bits.items() if n}

    @property
    def stored_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(array.nbytes for array in self.buffers.values())

    @property
    def n_elements(self) -> int:
        """Elements of keys and values."""
        shapes = [half.groups.shape for half in self.halves.values()]
        return self.n_tokens * sum(n_batch * n_heads * head_dim for n_batch, n_heads, head_dim in shapes)

    @property
    def stored_bits(self) -> Fraction:
        """8 * stored_bytes / elements; 0 while empty."""
        return Fraction(8 * self.stored_bytes, self.n_elements) if self.n_elements else Fraction(0)

    @property
    def effective_bits(self) -> Fraction:
        """Bits a packed element, without what the length decides (recent tokens, sinks) and padding; 0 if none."""
        own = sum(n for part, n in self.ledger.items() if part in ("payload", "scales", "zero_points"))
        elements = self.counts.get("n_packed_elements", 0)
        return Fraction(own, elements) if elements else Fraction(0)

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values as attention sees them: FP16, new arrays of the layout that was appended.

        Raises ValueError before the first append.
        """
        if not self.halves:
            raise ValueError("the cache is empty: append keys and values first")
        return self._seen("key"), self._seen("value")

    def _seen(self, side: Side) -> np.ndarray:
        n_batch, n_heads, head_dim = self.halves[side].groups.shape
        shape = (self.n_tokens, n_heads * head_dim) if self._flat else (n_batch, n_heads, self.n_tokens, head_dim)
        result, patterns = empty_result(shape, n_heads)
        self.halves[side].unpack(patterns)
        self._override(side, patterns)
        return result

    def decoded(self, side: Side) -> np.ndarray:
        """What the codes of the packed tokens decode to, FP16 [batch, heads, packed tokens, head_dim]."""
        groups = self.halves[side].groups
        n_batch, n_heads, head_dim = groups.shape
        result = np.empty((n_batch, n_heads, groups.n_tokens, head_dim), np.float16)
        groups.unpack(result.view(np.uint16))
        return result

    def _override(self, side: Side, patterns: np.ndarray) -> None:
        """Tokens that are kept apart, in place of the decoded ones."""
