"""The forward pass of a language model in numpy, float32: a prompt at once or token by token, through KV caches.

`studies/training/model.py` is the same network in torch.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dse.transformer.caches import LayerCache
from dse.transformer.forward import rms_norm, rotate, silu, softmax
from studies.weights import ByteModel, LayerWeights


def rotations(model: ByteModel, first: int, n_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines, float32 [n_tokens, head_dim / 2], of RoPE at positions from `first` on (arXiv:2104.09864)."""
    return model.rotation(0).turns(first, n_tokens)


def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Causal attention: query [batch, n_q, n, head_dim] are the last n of the tokens of key [batch, n_kv, tokens, .].

    Query heads in groups, in order, on the heads of keys. Returns [batch, n_q, n, head_dim], float32.
    """
    n_batch, n_q, n, head_dim = query.shape
    n_kv, n_tokens = key.shape[1:3]
    query = query.reshape(n_batch, n_kv, n_q // n_kv * n, head_dim) * np.float32(1 / math.sqrt(head_dim))
    hidden = np.arange(n_tokens) > np.arange(n_tokens - n, n_tokens)[:, None] if n > 1 else None
    mixed = np.empty_like(query)
    for b in range(n_batch):  # a sequence at a time: the scores of a whole batch would not fit into caches
        scores = query[b] @ key[b].swapaxes(-1, -2)
        if hidden is not None:
            scores.reshape(n_q, n, n_tokens)[:, hidden] = -np.inf
        np.matmul(softmax(scores), value[b], out=mixed[b])
    return mixed.reshape(n_batch, n_q, n, head_dim)


def heads_of(x: np.ndarray, n_heads: int) -> np.ndarray:
    """[batch, tokens, channels] as [batch, n_heads, tokens, head_dim]."""
    return x.reshape(*x.shape[:2], n_heads, -1).transpose(0, 2, 1, 3)


def _attention(
    model: ByteModel,
    layer: LayerWeights,
    x: np.ndarray,
    cache: LayerCache,
    first: int,
    own: bool,
    queries: list[np.ndarray] | None,
    attention: Callable[[np.ndarray, Any], np.ndarray] | None,
) -> np.ndarray:
    h = rms_norm(x, layer.attention_norm, model.norm_epsilon)
    query = heads_of(h @ layer.q, model.n_q_heads)
    key, value = heads_of(h @ layer.k, model.n_kv_heads), heads_of(h @ layer.v, model.n_kv_heads)
    cos, sin = rotations(model, first, x.shape[1])
    turned = rotate(key, cos, sin)
    cache.append(key if cache.before_rope else turned, value)
    query = rotate(query, cos, sin)
    if queries is not None:
        queries.append(query)
    if attention is not None:
        return attention(query, cache).transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1) @ layer.o
    if own:
        seen_key, seen_value = turned, value
    else:
        seen_key, seen_value = (side.astype(np.float32, copy=False) for side in cache.seen())
        if cache.before_rope:
            seen_key = rotate(seen_key, *rotations(model, 0, seen_key.shape[2]))
    mixed = attend(query, seen_key, seen_value)
    return mixed.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1) @ layer.o


def forward(
    model: ByteModel,
    tokens: np.ndarray,
    caches: Sequence[LayerCache],
    first: int = 0,
    own: bool = False,
    last_only: bool = False,
    queries: list[np.ndarray] | None = None,
    attention: Callable[[np.ndarray, Any], np.ndarray] | None = None,
) -> np.ndarray:
    """Logits [batch, n, N_TOKENS] (with last_only of the last token, [batch, 1, N_TOKENS]) of tokens [batch, n].

    The tokens stand at positions `first`, `first` + 1, ...; the caches, one a layer, hold those before and get these.
    own: attention sees this call's keys and values as computed, not the cache's, as serving systems do for a prompt
    (then first must be 0). queries: a list that gets each layer's, after RoPE, [batch, n_q_heads, n, head_dim].
    attention: what gives the mixed values of queries from a layer's cache, in place of `attend` over what it has seen.
    """
    if own and first:
        raise ValueError(f"first = {first}: a prompt that sees its own keys begins at 0")
    x = model.embedding[tokens]
    for layer, cache in zip(model.layers, caches, strict=True):
        x = x + _attention(model, layer, x, cache, first, own, queries, attention)
        h = rms_norm(x, layer.mlp_norm, model.norm_epsilon)
        x = x + (silu(h @ layer.gate) * (h @ layer.up)) @ layer.down
    if last_only:
        x = x[:, -1:]
    return rms_norm(x, model.final_norm, model.norm_epsilon) @ model.embedding.T
