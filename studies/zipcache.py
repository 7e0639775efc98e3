"""ZipCache (arXiv:2405.14256) on a text: tokens that draw attention in 4 bits, the others in 2.

It chooses tokens by attention, which the quantizers of this tool do not see, so that it is run in a study alone. Every
BLOCK tokens are packed together. A token's saliency is the mean attention that those queries of the block pay it which
see it, over all heads of the layer; the paper takes a part of the queries for speed, here all count. Keys have a scale
and a minimum a channel, values a token, after each channel is divided by the root of its largest magnitude. As SinkQ's
Table 8 sets it: 20 % of the tokens in 4 bits.
"""

import numpy as np

from dse.transformer.caches import Decoded, DecodingCache
from dse.transformer.forward import softmax

#: tokens that are packed together; those behind the last whole block are in 16 bits
BLOCK = 100
HIGH_BITS, LOW_BITS, PARAMETER_BITS = 4, 2, 16


def cache(salient_frac: float, query_scale: float) -> DecodingCache:
    """An empty cache of a layer; its bits are those of whole blocks."""

    def decode(key: np.ndarray, value: np.ndarray) -> Decoded:
        assert decoding.query is not None
        key, value = key[0].astype(np.float32), value[0].astype(np.float32)
        n_packed = key.shape[1] // BLOCK * BLOCK
        seen = key.copy(), value.copy()
        for start in range(0, n_packed, BLOCK):
            block = slice(start, start + BLOCK)
            is_salient = salient(decoding.query[:, block], key[:, : block.stop], salient_frac, query_scale)
            for chosen, bits in ((is_salient, HIGH_BITS), (~is_salient, LOW_BITS)):
                places = np.flatnonzero(chosen) + start
                if len(places):
                    seen[0][:, places] = rounded(key[:, places], bits, axis=1)
            seen[1][:, block] = values(value[:, block], is_salient)
        decoding.stored_bits = stored_bits(salient_frac, key.shape[0], key.shape[2])
        halves = [x.astype(np.float16)[None] for x in seen]
        return Decoded(halves[0], halves[1], _packed, _packed)

    decoding = DecodingCache(decode, 16.0)
    return decoding


def _packed(n: int) -> int:
    return n // BLOCK * BLOCK


def salient(query: np.ndarray, key: np.ndarray, frac: float, query_scale: float) -> np.ndarray:
    """Mark the `frac` of the last block's tokens that draw most attention: query [heads, BLOCK, head_dim], key
    [KV heads, tokens to the block's end, head_dim]."""
    n_kv, n = key.shape[:2]
    grouped = query.reshape(n_kv, -1, BLOCK, key.shape[2]) * np.float32(query_scale)
    scores = grouped @ key[:, None].swapaxes(-1, -2)
    place = np.arange(n - BLOCK, n)
    scores[..., np.arange(n) > place[:, None]] = -np.inf
    drawn = softmax(scores)[..., n - BLOCK :].sum(axis=(0, 1, 2)) / np.arange(BLOCK, 0, -1)
    chosen = np.zeros(BLOCK, bool)
    chosen[np.argsort(-drawn, kind="stable")[: round(frac * BLOCK)]] = True
    return chosen


def rounded(x: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """x as codes of `bits` bits between the least and the greatest along an axis give it back."""
    low, high = x.min(axis=axis, keepdims=True), x.max(axis=axis, keepdims=True)
    step = (high - low) / np.float32(2**bits - 1)
    codes = np.rint(np.divide(x - low, step, out=np.zeros_like(x), where=step > 0))
    restored: np.ndarray = codes * step + low
    return restored


def values(value: np.ndarray, is_salient: np.ndarray) -> np.ndarray:
    """Values of a block, [KV heads, BLOCK, head_dim], a scale a token over all heads, channels levelled before."""
    level = np.sqrt(np.abs(value).max(axis=1, keepdims=True))
    level[level == 0] = 1
    flat = (value / level).transpose(1, 0, 2).reshape(BLOCK, -1)
    seen = np.where(is_salient[:, None], rounded(flat, HIGH_BITS, 1), rounded(flat, LOW_BITS, 1))
    restored: np.ndarray = seen.reshape(BLOCK, value.shape[0], -1).transpose(1, 0, 2) * level
    return restored


def stored_bits(salient_frac: float, n_heads: int, head_dim: int) -> float:
    """Bits an element of whole blocks: codes, a bit a token that says which, scales and minima, levels of channels."""
    width, n_salient = n_heads * head_dim, round(salient_frac * BLOCK)
    codes = 2 * width * (n_salient * HIGH_BITS + (BLOCK - n_salient) * LOW_BITS)
    keys = 2 * PARAMETER_BITS * width * ((n_salient > 0) + (n_salient < BLOCK))
    of_values = 2 * PARAMETER_BITS * BLOCK + PARAMETER_BITS * width
    return (codes + BLOCK + keys + of_values) / (2 * width * BLOCK)
