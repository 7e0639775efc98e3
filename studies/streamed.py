"""Perplexity of a text streamed token by token from its first token on, in one pass: for studies of many settings.

What a packed token decodes to does not depend on later tokens, so a query sees decoded those that are packed when it
comes, and the others in FP16: two products a layer in place of one a token.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dse.transformer.caches import Decoded, Packed, decoded
from dse.transformer.forward import nats, rotate, softmax
from studies.forward import forward, rotations
from studies.weights import ByteModel

#: (layer, keys, values) in FP16, keys before RoPE where `before_rope`, to what their codes decode to
Quantize = Callable[[int, np.ndarray, np.ndarray], Decoded]


class _HeldKeys:
    """One layer's keys and values, exact in FP16 and decoded."""

    def __init__(self, model: ByteModel, layer: int, quantize: Quantize, before_rope: bool) -> None:
        self.model, self.layer, self.quantize, self.before_rope = model, layer, quantize, before_rope

    def append(self, key: np.ndarray, value: np.ndarray) -> None:
        self.exact = key.astype(np.float16), value.astype(np.float16)
        self.decoded = self.quantize(self.layer, *self.exact)

    def keys(self, key: np.ndarray) -> np.ndarray:
        key = key.astype(np.float32)
        return rotate(key, *rotations(self.model, 0, key.shape[2])) if self.before_rope else key


def _is_packed(count: Packed, n: int) -> np.ndarray:
    """[queries, tokens]: query i comes when i + 1 tokens are there."""
    return np.arange(n) < np.array([count(i + 1) for i in range(n)])[:, None]


def attend(query: np.ndarray, held: _HeldKeys) -> np.ndarray:
    """Causal attention of all tokens of a text, [batch, n_q, n, head_dim], over what each sees when it comes."""
    n_batch, n_q, n, head_dim = query.shape
    decoded = held.decoded
    by_key, by_value = _is_packed(decoded.n_key, n), _is_packed(decoded.n_value, n)
    n_kv = decoded.key.shape[1]
    keys = held.keys(decoded.key), held.keys(held.exact[0])
    values = decoded.value.astype(np.float32), held.exact[1].astype(np.float32)
    grouped = query.reshape(n_batch, n_kv, n_q // n_kv, n, head_dim) * np.float32(head_dim**-0.5)
    hidden = np.triu(np.ones((n, n), bool), 1)
    out = np.empty_like(grouped)
    for b in range(n_batch):
        scores = [grouped[b] @ key[b][:, None].swapaxes(-1, -2) for key in keys]
        shares = np.where(by_key, *scores)
        shares[..., hidden] = -np.inf
        softmax(shares)
        out[b] = (shares * by_value) @ values[0][b][:, None] + (shares * ~by_value) @ values[1][b][:, None]
    return out.reshape(n_batch, n_q, n, head_dim)


def streamed_nats(
    model: ByteModel, quantize: Quantize, tokens: np.ndarray, first_scored: int, before_rope: bool = False
) -> np.ndarray:
    """-ln p of tokens[:, first_scored:], float64, each given the tokens before it as a cache held them by then."""
    held = [_HeldKeys(model, layer, quantize, before_rope) for layer in range(len(model.layers))]
    logits = forward(model, tokens[:, :-1], held, attention=attend)  # type: ignore[arg-type]
    return nats(logits[:, first_scored - 1 :], tokens[:, first_scored:])


def of_caches(found: Sequence[Any]) -> tuple[Quantize, bool]:
    """Empty caches, one a layer, as a function for `streamed_nats`, and whether they take keys before RoPE."""

    def quantize(layer: int, key: np.ndarray, value: np.ndarray) -> Decoded:
        return decoded(found[layer], key, value)

    return quantize, found[0].before_rope
