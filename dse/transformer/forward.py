"""The forward pass in numpy, float32: a text at once, through one attention or through several beside each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dse.core.errors import InputError
from dse.core.progress import Progress
from dse.transformer.checkpoint import Architecture, Checkpoint, Rotation, TransformerLayer

#: queries whose attention scores are in memory at a time
BLOCK_TOKENS = 128


def rms_norm(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + epsilon) * weight, along the last axis (arXiv:1910.07467)."""
    return x * (weight / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(epsilon)))


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """x[..., tokens, head_dim] turned, channel i with i + pairs; channels beyond the pairs stay (partial rotation)."""
    half = cos.shape[-1]
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate((low * cos - high * sin, high * cos + low * sin, rest), axis=-1)


def softmax(scores: np.ndarray) -> np.ndarray:
    """Weights along the last axis, in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + exp(-x)), without overflow."""
    return x * (np.float32(0.5) * (np.tanh(np.float32(0.5) * x) + np.float32(1)))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """GELU by its approximation with tanh (arXiv:1606.08415, section 2)."""
    inner = np.float32(np.sqrt(2 / np.pi)) * x * (np.float32(1) + np.float32(0.044715) * np.square(x))
    return x * (np.float32(0.5) * (np.tanh(inner) + np.float32(1)))


def capped(x: np.ndarray, cap: float | None) -> np.ndarray:
    """cap * tanh(x / cap), in place; x itself without a cap (arXiv:2408.00118, section 2)."""
    if cap is not None:
        x /= np.float32(cap)
        np.tanh(x, out=x)
        x *= np.float32(cap)
    return x


def nats(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """-ln p of each target, float64: logits [..., vocabulary], float32, targets [...]."""
    target_logits = np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    largest = logits.max(axis=-1, keepdims=True)
    total = np.exp(logits - largest).sum(axis=-1, dtype=np.float64)
    loss: np.ndarray = np.log(total) + (largest[..., 0] - target_logits).astype(np.float64)
    return loss


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """ln p of every token of the vocabulary, the last axis, in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


@dataclass(frozen=True)
class LayerHeads:
    """Queries, keys and values of a text in one layer, float32 [heads, tokens, head_dim], before RoPE."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray


@dataclass(frozen=True, kw_only=True)
class PackedTokens:
    """Keys (after RoPE) and values as their codes decode, and when: query i sees the first n_key[i] keys so."""

    key: np.ndarray
    value: np.ndarray
    n_key: np.ndarray
    n_value: np.ndarray


#: (layer, its heads) to the mixed values of its queries, [n_q_heads, tokens, head_dim]
Attention = Callable[[int, LayerHeads], np.ndarray]


def turned(x: np.ndarray, rotation: Rotation) -> np.ndarray:
    """x[heads, tokens, head_dim] after RoPE, the first token at position 0."""
    return rotate(x, *rotation.turns(0, x.shape[-2]))


def attend(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    of: Architecture,
    window: int | None = None,
    packed: PackedTokens | None = None,
) -> np.ndarray:
    """Causal attention of a text, all [heads, tokens, head_dim] after RoPE; query heads in groups on those of keys.

    `packed`: what queries see of packed tokens in place of `key` and `value`.
    """
    n_q, n, head_dim = query.shape
    n_group = n_q // key.shape[0]
    query = query * np.float32(of.query_scale)
    mixed = np.empty((n_q, n, head_dim), np.float32)
    for start in range(0, n, BLOCK_TOKENS):
        end = min(start + BLOCK_TOKENS, n)
        first = 0 if window is None else max(start - window + 1, 0)
        hidden = _hidden(start, end, first, window)
        at = [_columns(counts, start, end, first) for counts in (packed.n_key, packed.n_value)] if packed else []
        for j in range(key.shape[0]):
            group = slice(j * n_group, (j + 1) * n_group)
            rows = query[group, start:end].reshape(-1, head_dim)
            if packed is None:
                scores = rows @ key[j, first:end].T
            else:
                scores = _packed_scores(rows, key[j, first:end], packed.key[j, first:end], at[0])
            capped(scores, of.score_cap)
            by_head = scores.reshape(n_group, end - start, end - first)
            by_head[..., -hidden.shape[1] :] += hidden
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            total = scores.sum(axis=-1, keepdims=True)
            if packed is None:
                mix = scores @ value[j, first:end]
            else:
                mix = _packed_mix(scores, value[j, first:end], packed.value[j, first:end], at[1])
            mixed[group, start:end] = (mix / total).reshape(n_group, end - start, -1)
    return mixed


def _hidden(start: int, end: int, first: int, window: int | None) -> np.ndarray:
    """Minus infinity where query `start` + i does not see a token, else 0: of the last columns of `first` to `end`."""
    place = np.arange(start, end)[:, None]
    tokens = np.arange(start if window is None else first, end)  # without a window all tokens before are seen
    hidden = tokens > place
    if window is not None:
        hidden |= tokens <= place - window
    return np.where(hidden, np.float32(-np.inf), np.float32(0))


@dataclass(frozen=True)
class _Columns:
    """Tokens of a block of queries: those before `low` are packed for all, from `high` on for none, `between` says."""

    low: int
    high: int
    between: np.ndarray


def _columns(counts: np.ndarray, start: int, end: int, first: int) -> _Columns:
    seen = np.clip(counts[start:end] - first, 0, end - first)
    low, high = int(seen.min()), int(seen.max())
    return _Columns(low, high, np.arange(low, high) < seen[:, None])


def _packed_scores(rows: np.ndarray, key: np.ndarray, packed: np.ndarray, columns: _Columns) -> np.ndarray:
    """Queries times keys as they see them."""
    low, high = columns.low, columns.high
    scores = np.empty((len(rows), len(key)), np.float32)
    scores[:, :high] = rows @ packed[:high].T
    scores[:, high:] = rows @ key[high:].T
    if low < high:
        n_group = len(rows) // len(columns.between)
        is_exact = np.tile(~columns.between, (n_group, 1))
        np.copyto(scores[:, low:high], rows @ key[low:high].T, where=is_exact)
    return scores


def _packed_mix(shares: np.ndarray, value: np.ndarray, packed: np.ndarray, columns: _Columns) -> np.ndarray:
    """Shares times values as queries see them."""
    low, high = columns.low, columns.high
    mixed: np.ndarray = shares[:, :low] @ packed[:low] + shares[:, high:] @ value[high:]
    if low < high:
        middle = shares[:, low:high].reshape(-1, *columns.between.shape)
        for is_seen, side in ((columns.between, packed), (~columns.between, value)):
            mixed += (middle * is_seen).reshape(len(shares), -1) @ side[low:high]
    return mixed


def exact(of: Architecture) -> Attention:
    """Attention over keys and values as computed."""

    def attention(layer: int, heads: LayerHeads) -> np.ndarray:
        query, key = (turned(x, of.rotations[layer]) for x in (heads.query, heads.key))
        return attend(query, key, heads.value, of, of.windows[layer])

    return attention


def _mapped(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    y: np.ndarray = x @ weight.T
    return y if bias is None else y + bias


def _heads(of: Architecture, layer: TransformerLayer, h: np.ndarray) -> LayerHeads:
    query, key, value = (
        _mapped(h, weight, bias).reshape(len(h), n, of.head_dim).transpose(1, 0, 2)
        for weight, bias, n in (
            (layer.q, layer.q_bias, of.n_q_heads),
            (layer.k, layer.k_bias, of.n_kv_heads),
            (layer.v, layer.v_bias, of.n_kv_heads),
        )
    )
    if layer.q_norm is not None:
        query = rms_norm(query, layer.q_norm, of.norm_epsilon)
    if layer.k_norm is not None:
        key = rms_norm(key, layer.k_norm, of.norm_epsilon)
    return LayerHeads(query, key, value)


def _through(of: Architecture, layer: TransformerLayer, index: int, x: np.ndarray, attention: Attention) -> np.ndarray:
    """Hidden states [tokens, channels] behind a layer."""
    mixed = attention(index, _heads(of, layer, rms_norm(x, layer.attention_norm, of.norm_epsilon)))
    added = _mapped(mixed.transpose(1, 0, 2).reshape(len(x), -1), layer.o, layer.o_bias)
    if layer.post_attention_norm is not None:
        added = rms_norm(added, layer.post_attention_norm, of.norm_epsilon)
    x = x + added
    h = rms_norm(x, layer.mlp_norm, of.norm_epsilon)
    gate = h @ layer.gate.T
    added = ((silu if of.activation == "silu" else gelu_tanh)(gate) * (h @ layer.up.T)) @ layer.down.T
    if layer.post_mlp_norm is not None:
        added = rms_norm(added, layer.post_mlp_norm, of.norm_epsilon)
    return x + added


def hidden_states(
    model: Checkpoint,
    tokens: np.ndarray,
    attentions: Sequence[Attention],
    progress: Progress,
    label: str,
    first_own: Sequence[int] | None = None,
) -> list[np.ndarray]:
    """Final hidden states [tokens, channels], normed, of tokens [n], under each attention.

    The weights of a layer are read once for all of them, so that memory holds one layer at a time. `first_own`: the
    first layer in which each attention differs from that of the first, whose states it shares before.
    """
    starts = first_own or [0] * len(attentions)
    of = model.architecture
    # weights of a damaged file may be any number
    with np.errstate(all="ignore"), progress(range(of.n_layers), label=label, length=of.n_layers) as layers:
        x = model.embedded(tokens) * np.float32(of.embedding_scale)
        states = [x for _ in attentions]
        for index in layers:
            layer = model.layer(index)
            before, states = states, []
            for states_before, attention, start in zip(before, attentions, starts, strict=True):
                is_shared = bool(states) and index < start
                states.append(states[0] if is_shared else _through(of, layer, index, states_before, attention))
        norm = model.tensor("final_norm")
        ends = [rms_norm(last, norm, of.norm_epsilon) for last in states]
    if not all(np.isfinite(last).all() for last in ends):
        raise InputError(f"{model.path}: its hidden states overflow: download it again")
    return ends


def logits_of(model: Checkpoint, states: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Logits [tokens, vocabulary] of final hidden states."""
    return capped(states @ head.T, model.architecture.logit_cap)


def head_of(model: Checkpoint) -> np.ndarray:
    """The map to logits, [vocabulary, channels]: the embedding where the file has no other."""
    return model.tensor("head" if "head" in model.shapes else "embedding")
