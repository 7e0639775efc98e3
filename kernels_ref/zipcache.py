"""ZipCache (arXiv:2405.14256): of each block of tokens those that draw attention in 4 bits, the others in 2.

It needs the queries of the text beside its keys and values. A token's saliency is the mean attention that those queries
of the block pay it which see it, over all heads of the layer; the paper takes a part of the queries for speed, here all
count. Keys have a scale and a minimum a channel and bit-width, values a token over all heads, after each channel is
divided by the root of its largest magnitude. Values are decoded in float32 and rounded to FP16; its codes are not
packed: no bytes of a released form were found to compare with.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernels_ref.cache import Side
from kernels_ref.inputs import check_count

__all__ = ["ZipCache"]

HIGH_BITS, LOW_BITS, PARAMETER_BITS = 4, 2, 16


@dataclass(frozen=True)
class ZipCache:
    """ZipCache for one layer: blocks of `block` tokens, of which round(salient * block) have 4 bits and the others 2.

    Tokens behind the last whole block are in FP16.
    """

    salient: float = 0.6
    block: int = 100

    def __post_init__(self) -> None:
        check_count("block", self.block, 1)
        if not 0 <= self.salient <= 1:
            raise ValueError(f"salient = {self.salient!r}: must be a share, 0 to 1")

    @property
    def n_salient(self) -> int:
        """Tokens of a block in 4 bits."""
        return round(self.salient * self.block)

    def n_packed(self, side: Side, n_tokens: int) -> int:
        """Number of quantized tokens among n.

        side: "key" or "value"; both are packed together.
        n_tokens: Tokens of a sequence, from 0.
        """
        return n_tokens // self.block * self.block

    def cache(self) -> "ZipCacheCache":
        """An empty cache of one layer."""
        return ZipCacheCache(self)


class CountedBytes(NamedTuple):
    """Bytes of one side, and the elements they stand for."""

    stored_bytes: int
    n_elements: int


class ZipCacheCache:
    """Keys and values of one text as ZipCache decodes them, given at once, with `query` set before.

    query: [query heads, tokens, head_dim], after RoPE and times the scale of attention.
    """

    def __init__(self, method: ZipCache) -> None:
        self.method = method
        self.query: np.ndarray | None = None
        #: side -> FP16 [1, heads, tokens, head_dim]
        self._seen: dict[Side, np.ndarray] = {}

    def append(self, key: np.ndarray, value: np.ndarray) -> None:
        """Quantize a text [1, heads, tokens, head_dim].

        key: FP16 or FP32, after RoPE.
        value: Likewise.
        """
        if self.query is None or self._seen or len(key) != 1 or self.query.shape[1] != key.shape[2]:
            raise ValueError(
                "ZipCache chooses tokens by attention: needs one whole text with the queries of all tokens"
            )
        keys, values = (x[0].astype(np.float16).astype(np.float32) for x in (key, value))
        seen = keys.copy(), values.copy()
        block = self.method.block
        for start in range(0, self.method.n_packed("key", keys.shape[1]), block):
            places = slice(start, start + block)
            chosen = salient(self.query[:, places], keys[:, : places.stop], self.method.n_salient)
            for tokens, bits in ((chosen, HIGH_BITS), (~chosen, LOW_BITS)):
                indices = np.flatnonzero(tokens) + start
                if len(indices):
                    seen[0][:, indices] = rounded(keys[:, indices], bits, axis=1)
            seen[1][:, places] = decoded_values(values[:, places], chosen)
        self._seen = {"key": seen[0].astype(np.float16)[None], "value": seen[1].astype(np.float16)[None]}

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values as attention sees them, FP16."""
        return self._seen["key"], self._seen["value"]

    @property
    def buffers(self) -> dict[str, np.ndarray]:
        """No buffers: codes are not packed."""
        return {}

    def packed(self, side: Side) -> list[CountedBytes]:
        """Bytes that one side would take: codes, a bit a token of the keys that says which, scales, minima and levels.

        side: "key" or "value".
        """
        x = self._seen[side]
        n_packed = self.method.n_packed(side, x.shape[2])
        bits = n_packed // self.method.block * block_bits(self.method, side, x.shape[1] * x.shape[3])
        bits += 16 * x.shape[1] * x.shape[3] * (x.shape[2] - n_packed)
        return [CountedBytes(-(-bits // 8), x.size)]

    @property
    def stored_bits(self) -> float:
        """Bits an element, tokens that are not packed yet included."""
        held = [*self.packed("key"), *self.packed("value")]
        return 8 * sum(part.stored_bytes for part in held) / sum(part.n_elements for part in held)


def salient(query: np.ndarray, key: np.ndarray, n_salient: int) -> np.ndarray:
    """Mark the tokens of the last block that draw most attention, ties to the earlier one.

    query: [query heads, block, head_dim], times the scale of attention.
    key: [KV heads, tokens to the block's end, head_dim].
    n_salient: How many.
    """
    n_kv, n, head_dim = key.shape
    block = query.shape[1]
    scores = query.reshape(n_kv, -1, block, head_dim) @ key[:, None].swapaxes(-1, -2)
    scores[..., np.arange(n) > np.arange(n - block, n)[:, None]] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    drawn = weights[..., n - block :].sum(axis=(0, 1, 2)) / np.arange(block, 0, -1)
    chosen = np.zeros(block, bool)
    chosen[np.argsort(-drawn, kind="stable")[:n_salient]] = True
    return chosen


def rounded(x: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """x as codes of `bits` bits between the least and the greatest along an axis give it back.

    x: float32.
    bits: Of a code, from 1.
    axis: Of the elements that share a scale and a minimum.
    """
    low, high = x.min(axis=axis, keepdims=True), x.max(axis=axis, keepdims=True)
    step = (high - low) / np.float32(2**bits - 1)
    codes = np.rint(np.divide(x - low, step, out=np.zeros_like(x), where=step > 0))
    restored: np.ndarray = codes * step + low
    return restored


def decoded_values(value: np.ndarray, is_salient: np.ndarray) -> np.ndarray:
    """Values of a block: a scale a token over all heads, channels levelled before.

    value: float32 [KV heads, block, head_dim].
    is_salient: [block].
    """
    n_heads, block, _ = value.shape
    level = np.sqrt(np.abs(value).max(axis=1, keepdims=True))
    level[level == 0] = 1
    flat = (value / level).transpose(1, 0, 2).reshape(block, -1)
    seen = np.where(is_salient[:, None], rounded(flat, HIGH_BITS, 1), rounded(flat, LOW_BITS, 1))
    restored: np.ndarray = seen.reshape(block, n_heads, -1).transpose(1, 0, 2) * level
    return restored


def block_bits(method: ZipCache, side: Side, width: int) -> int:
    """Bits of a block of one side: `width` elements a token.

    method: Says how many tokens of a block have 4 bits.
    side: "key" (with the bit a token that says which) or "value".
    width: Elements of a token.
    """
    n_low = method.block - method.n_salient
    codes = width * (method.n_salient * HIGH_BITS + n_low * LOW_BITS)
    if side == "key":
        return codes + method.block + 2 * PARAMETER_BITS * width * ((method.n_salient > 0) + (n_low > 0))
    return codes + 2 * PARAMETER_BITS * method.block + PARAMETER_BITS * width
