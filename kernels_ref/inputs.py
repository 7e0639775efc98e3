"""Check arguments, and give KV tensors to kernels as FP16 patterns, block by block."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from kernels_ref import half
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.patterns import fp16_patterns

#: bytes of FP16 that are converted and checked at a time: they stay in the last-level cache
BLOCK_BYTES = 8 * 2**20
#: elements that one thread checks at a time
CHUNK = 2**15

NonFinite = Literal["raise", "replace"]


def shown(value: Any) -> str:
    """A value as it appears in a message: its repr, or its type where that is long or an array."""
    if isinstance(value, np.ndarray | list | tuple | dict):
        return f"({type(value).__name__})"
    text = repr(value)
    return text if len(text) <= 80 else f"({type(value).__name__})"


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise ValueError unless `value` is one of `choices`, of the same type (True is not 1)."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ValueError(f"{name} = {shown(value)}: must be one of {', '.join(repr(choice) for choice in choices)}")


def check_count(name: str, value: Any, low: int = 1) -> None:
    """Raise ValueError unless `value` is an int from `low` to 2^31 - 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**31:
        raise ValueError(f"{name} = {shown(value)}: must be a whole number from {low} to {2**31 - 1}")


def check_scale(name: str, value: Any) -> None:
    """Raise ValueError unless `value` is a positive finite number, as a float32 too."""
    number = isinstance(value, int | float | np.floating) and not isinstance(value, bool)
    with np.errstate(over="ignore", under="ignore"):
        narrow = np.float32(value) if number else np.float32(np.nan)
    if not (np.isfinite(narrow) and narrow > 0):
        raise ValueError(f"{name} = {shown(value)}: must be a positive number that float32 holds")


@inner
def _count(bits: np.ndarray) -> int:
    bad = 0
    for i in range(bits.size):
        bad += (bits[i] & np.uint16(0x7C00)) == np.uint16(0x7C00)
    return bad


@kernel
def _count_nonfinite(bits: np.ndarray) -> int:
    """Count the patterns bits[n] that are infinite or NaN."""
    n_chunks = (bits.size + CHUNK - 1) // CHUNK
    counts = np.zeros(n_chunks, np.int64)
    for chunk in prange(n_chunks):
        counts[chunk] = _count(bits[chunk * CHUNK : (chunk + 1) * CHUNK])
    return counts.sum()


def replace_nonfinite(bits: np.ndarray) -> np.ndarray:
    """A copy with NaN as +0 and infinities as the largest finite FP16 of their sign."""
    bits = bits.copy()
    magnitude = bits & half.ABS
    bits[magnitude > half.INFINITY] = 0
    infinite = magnitude == half.INFINITY
    bits[infinite] = (bits[infinite] & half.SIGN) | half.LARGEST
    return bits


@dataclass(frozen=True)
class KVTensor:
    """A checked view of keys or values of one layer: `array` is [batch, heads, tokens, head_dim], any strides."""

    array: np.ndarray
    #: as the caller gave it, for results of the same shape
    shape: tuple[int, ...]
    #: "propagate" leaves NaN and infinities as they are
    nonfinite: str = "raise"

    @property
    def n_rows(self) -> int:
        """Token vectors: batch * tokens."""
        return self.array.shape[0] * self.array.shape[2]

    @property
    def n_channels(self) -> int:
        """Elements of a token vector: all heads concatenated."""
        return self.array.shape[1] * self.array.shape[3]

    def _finite(self, part: np.ndarray) -> np.ndarray:
        bits = fp16_patterns(part)
        if self.nonfinite == "propagate" or not _count_nonfinite(bits.reshape(-1)):
            return bits
        if self.nonfinite == "replace":
            return replace_nonfinite(bits)
        raise ValueError(self._complaint())

    def patterns(self, batch: int, heads: slice, tokens: slice) -> np.ndarray:
        """The FP16 patterns [heads, tokens, head_dim] of a part, checked; a view of x where nothing had to change."""
        return self._finite(self.array[batch, heads, tokens])

    def sequences(self) -> list[np.ndarray]:
        """x by sequence: [1, heads, tokens, head_dim] each, or x itself where it is [tokens, channels]."""
        if len(self.shape) == 2:
            return [self.array[0].transpose(1, 0, 2).reshape(self.shape)]
        return [self.array[b : b + 1] for b in range(len(self.array))]

    def _complaint(self) -> str:
        """All values that are not finite: how many, and where the first one is."""
        array, count = self.array, 0
        first: tuple[int, ...] = ()
        for b in range(array.shape[0]):
            for h in range(array.shape[1]):
                bits = fp16_patterns(array[b, h])
                bad = np.flatnonzero((bits & half.INFINITY) == half.INFINITY)
                if bad.size and not count:
                    t, c = divmod(int(bad[0]), array.shape[3])
                    first = (b, h, t, c) if len(self.shape) == 4 else (t, h * array.shape[3] + c)
                count += bad.size
        where = ", ".join(str(i) for i in first)
        return (
            f"x: {count} of {array.size} values are NaN, infinite or beyond 65504, the first at [{where}]: must be "
            "finite in FP16; nonfinite='replace' takes NaN as 0 and the rest as +-65504"
        )

    def row_blocks(self, block_bytes: int = 0) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, FP16 patterns [n, channels]) of consecutive token vectors of a sequence, heads concatenated."""
        n_batch, n_heads, n_tokens, head_dim = self.array.shape
        step = max((block_bytes or BLOCK_BYTES) // (2 * self.n_channels), 1)
        for b in range(n_batch):
            for t in range(0, n_tokens, step):
                part = self.array[b, :, t : t + step].transpose(1, 0, 2)  # of [tokens, channels] still a view
                yield b * n_tokens + t, self._finite(part.reshape(part.shape[0], n_heads * head_dim))


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


def kv_tensor(x: Any, n_heads: int = 1, nonfinite: NonFinite = "raise") -> KVTensor:
    """Check `x`: FP16, BF16 or FP32, [tokens, channels] of `n_heads` heads or [batch, heads, tokens, head_dim].

    Raises TypeError and ValueError that name the parameter. `x` is never changed.
    """
    if nonfinite not in ("raise", "replace"):
        raise ValueError(f"nonfinite = {nonfinite!r}: must be 'raise' or 'replace'")
    if not isinstance(x, np.ndarray):
        raise TypeError(f"x is {type(x).__name__}: must be a numpy array")
    if x.dtype != np.float16 and x.dtype.name not in ("float16", "float32", "bfloat16"):
        raise TypeError(f"x has dtype {x.dtype.name}: must be float16, bfloat16 or float32")
    if x.ndim == 2:
        if n_heads < 1 or x.shape[1] % n_heads:
            raise ValueError(f"n_heads = {n_heads}: must divide the {x.shape[1]} channels of x")
        array = (
            x.reshape(1, x.shape[0], n_heads, -1).transpose(0, 2, 1, 3)
            if x.size
            else x.reshape(1, n_heads, x.shape[0], x.shape[1] // n_heads)
        )
    elif x.ndim == 4:
        array = x
    else:
        raise ValueError(f"x has {x.ndim} axes: must be [tokens, channels] or [batch, heads, tokens, head_dim]")
    if not array.shape[1] or not array.shape[3]:
        raise ValueError(f"x has shape {x.shape}: must have at least one head and one channel")
    return KVTensor(array, x.shape, nonfinite)


def row_tensor(x: Any, n_heads: int = 1, nonfinite: NonFinite = "raise") -> KVTensor:
    """`kv_tensor` that takes [n] as one row."""
    if isinstance(x, np.ndarray) and x.ndim == 1:
        return replace(kv_tensor(x[None], n_heads, nonfinite), shape=x.shape)
    return kv_tensor(x, n_heads, nonfinite)
