"""SinkQ: KIVI's core with sink tokens traced and kept in FP16.

SinkQ sections 3.2 and 4.1, after OTT (Outlier Tokens Tracing, arXiv:2505.10938); no code is released. Where the papers
are silent: state is kept per batch and head, a token's score is the L1 norm of its key, ties stay in order, the mean
that takes a sink's place is that of all tokens of its group, sinks included.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels_ref.checks import check_count
from kernels_ref.inputs import KVTensor, NonFinite
from kernels_ref.kivi import check_core
from kernels_ref.kivi_store import GroupCodec, Side, head_parts
from kernels_ref.sinkq_select import key_norms, replace_by_mean, track_sinks
from kernels_ref.streaming import Half, StreamingCache, complaints_about

#: layers whose sinks are not tracked: the first ones (SinkQ 4.1)
SHALLOW_LAYERS = 2


@dataclass(frozen=True)
class SinkQ:
    """SinkQ for layer `layer` (from 0): groups of `group` tokens packed as soon as group + residual are held.

    Keys and values of a group are packed together, by KIVI's core: keys per channel, values per token in groups of
    `group` channels (at most head_dim). Of pool and group the `sinks` tokens with the smallest keys form the pool, kept
    in FP16; those pushed out of it stay in FP16 too, up to `window` a head, beyond which tracking stops. Layers 0 and 1
    have no sinks. overflow and key_layout as for `KIVI`.
    """

    bits: int = 2
    group: int = 128
    residual: int = 32
    sinks: int = 3
    window: int = 32
    layer: int = SHALLOW_LAYERS
    overflow: str = "raise"
    key_layout: str = "torch"

    def __post_init__(self) -> None:
        check_core(self.bits, self.group, self.overflow, self.key_layout)
        for name in ("residual", "sinks", "window", "layer"):
            check_count(name, getattr(self, name), 0)

    def codec(self, side: Side) -> GroupCodec:
        """The core for keys or for values."""
        return GroupCodec(side, self.bits, self.group, self.overflow)

    @property
    def pool_size(self) -> int:
        """Sinks that are tracked in this layer."""
        return 0 if self.layer < SHALLOW_LAYERS else self.sinks

    def n_packed(self, n_tokens: int) -> int:
        """Of n tokens, how many are packed."""
        return max((n_tokens - self.residual) // self.group, 0) * self.group

    def quantize(
        self, key: np.ndarray, value: np.ndarray, n_heads: int = 1, nonfinite: NonFinite = "raise"
    ) -> "SinkQCache":
        """A cache of these tokens: sinks are chosen by key and kept for both, so both are needed."""
        cache = self.cache(n_heads, nonfinite)
        cache.append(key, value)
        return cache

    def cache(self, n_heads: int = 1, nonfinite: NonFinite = "raise") -> "SinkQCache":
        """An empty cache of one layer. n_heads: heads of tensors [tokens, channels]."""
        return SinkQCache(self, n_heads, nonfinite)


@dataclass(frozen=True)
class _Sinks:
    """Pool and evicted tokens: first axis batch * heads, then entries; positions are -1 where there is none."""

    norms: np.ndarray
    positions: np.ndarray
    #: tokens in the pool, evicted tokens, 1 once tracking has stopped
    sizes: np.ndarray
    rows: dict[Side, np.ndarray]
    out_positions: np.ndarray
    out_rows: dict[Side, np.ndarray]

    @staticmethod
    def empty(n: int, pool_size: int, head_dims: dict[Side, int]) -> "_Sinks":
        return _Sinks(
            np.zeros((n, pool_size), np.int64),
            np.full((n, pool_size), -1, np.int32),
            np.zeros((n, 3), np.int64),
            {side: np.zeros((n, pool_size, d), np.uint16) for side, d in head_dims.items()},
            np.full((n, 0), -1, np.int32),
            {side: np.zeros((n, 0, d), np.uint16) for side, d in head_dims.items()},
        )

    def copy(self, more: int, window: int) -> "_Sinks":
        """A copy to be changed, with room for `more` evicted tokens a head, but no more than `window`."""
        room = min(int(self.sizes[:, 1].max(initial=0)) + more, window) - self.out_positions.shape[1]
        pad = [(0, 0), (0, max(room, 0))]
        return _Sinks(
            self.norms.copy(),
            self.positions.copy(),
            self.sizes.copy(),
            {side: rows.copy() for side, rows in self.rows.items()},
            np.pad(self.out_positions, pad, constant_values=-1),
            {side: np.pad(rows, [*pad, (0, 0)]) for side, rows in self.out_rows.items()},
        )

    def follow(
        self, at: slice, keys: np.ndarray, values: np.ndarray, first: int, method: SinkQ
    ) -> tuple[np.ndarray, np.ndarray]:
        """Track the sinks through patterns [heads, tokens, head_dim] of heads `at`; gives what is to be packed."""
        n, n_tokens, _ = keys.shape
        norms = np.empty((n, n_tokens), np.int64)
        key_norms(keys.reshape(n * n_tokens, -1), norms.reshape(-1))
        marks = np.zeros((n, n_tokens), np.bool_)
        changed = np.zeros((n, n_tokens // method.group), np.bool_)
        track_sinks(
            norms, keys, values, first, method.group, method.window, marks, changed,
            self.norms[at], self.positions[at], self.sizes[at], self.rows["key"][at], self.rows["value"][at],
            self.out_positions[at], self.out_rows["key"][at], self.out_rows["value"][at],
        )  # fmt: skip
        if not changed.any():
            return keys, values
        keys, values = keys.copy(), values.copy()  # they may be the caller's
        replace_by_mean(keys, method.group, marks, changed)
        replace_by_mean(values, method.group, marks, changed)
        return keys, values

    def stored(self) -> tuple[np.ndarray, np.ndarray]:
        """(pool, evicted): which entries [batch * heads, .] hold a token."""
        return (
            np.arange(self.positions.shape[1]) < self.sizes[:, :1],
            np.arange(self.out_positions.shape[1]) < self.sizes[:, 1:2],
        )


class SinkQCache(StreamingCache):
    """A SinkQ cache that grows by `append`.

    Buffers: for keys and values codes, scales, mins and recent as in `KIVI.quantize`; key_sinks and value_sinks [n,
    head_dim] (FP16), the rows of all tokens kept apart, head by head, of each first the pool in its order, then the
    evicted ones; key_positions [n] (int32), where those tokens stand, stored once for key and value.
    `pool_positions`, `window_positions`, `n_evicted` and `stopped` show the state of every head.
    """

    def __init__(self, method: SinkQ, n_heads: int = 1, nonfinite: NonFinite = "raise") -> None:
        super().__init__(method, method.codec, n_heads, nonfinite)
        self._sinks: _Sinks | None = None

    def _extend(self, halves: dict[Side, Half], tensors: dict[Side, KVTensor]) -> None:
        method: SinkQ = self.method
        key, value = halves["key"], halves["value"]
        n_batch, n_heads, _ = key.groups.shape
        first = key.groups.n_tokens
        n = method.n_packed(key.n_tokens + tensors["key"].array.shape[2]) - first
        head_dims: dict[Side, int] = {side: half.groups.shape[2] for side, half in halves.items()}
        sinks = self._sinks or _Sinks.empty(n_batch * n_heads, method.pool_size, head_dims)
        if n:
            sinks = sinks.copy(n // method.group * method.pool_size, method.window)
        for half in halves.values():
            half.groups.reserve(first + n)
        for b, heads, tokens in head_parts(n_batch, n_heads, n, 2 * max(head_dims.values()), method.group):
            parts: dict[Side, np.ndarray] = {}
            for side, half in halves.items():
                with complaints_about(side):
                    parts[side] = half.read(tensors[side], b, heads, tokens)
            if method.pool_size:
                at = slice(b * n_heads + heads.start, b * n_heads + heads.stop)
                parts["key"], parts["value"] = sinks.follow(
                    at, parts["key"], parts["value"], first + tokens.start, method
                )
            for side, half in halves.items():
                with complaints_about(side):
                    half.groups.put(b, heads, first + tokens.start, parts[side])
        rests = {}
        for side, half in halves.items():
            with complaints_about(side):
                rests[side] = half.rest(tensors[side], n)
        self._sinks = sinks
        key.commit(n, rests["key"])
        value.commit(n, rests["value"])

    def _shaped(self, array: np.ndarray) -> np.ndarray:
        n_batch, n_heads, _ = self.halves["key"].groups.shape
        return array.reshape(n_batch, n_heads, *array.shape[1:])

    def _state(self) -> _Sinks:
        if self._sinks is None:
            raise ValueError("the cache is empty: append keys and values first")
        return self._sinks

    @property
    def pool_positions(self) -> np.ndarray:
        """Positions of the sinks [batch, heads, sinks] (int32) in the order of the pool; -1 where there is none."""
        return self._shaped(self._state().positions.copy())

    @property
    def window_positions(self) -> np.ndarray:
        """Positions of the evicted tokens [batch, heads, .] (int32), oldest first; -1 where there is none."""
        return self._shaped(self._state().out_positions.copy())

    @property
    def n_evicted(self) -> np.ndarray:
        """Evicted tokens [batch, heads]."""
        return self._shaped(self._state().sizes[:, 1].copy())

    @property
    def stopped(self) -> np.ndarray:
        """Whether tracking has stopped, since the evicted tokens no longer fitted: [batch, heads], bool."""
        return self._shaped(self._state().sizes[:, 2] != 0)

    def _kept(self, pool: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Stored entries of pool and evicted tokens, head by head."""
        in_pool, in_out = self._state().stored()
        return np.concatenate((pool, out), axis=1)[np.concatenate((in_pool, in_out), axis=1)]

    def _side_buffers(self, side: Side) -> dict[str, np.ndarray]:
        sinks = self._state()
        buffers = super()._side_buffers(side)
        buffers[f"{side}_sinks"] = self._kept(sinks.rows[side], sinks.out_rows[side]).view(np.float16)
        if side == "key":
            buffers["key_positions"] = self._kept(sinks.positions, sinks.out_positions)
        return buffers

    def _counts(self, side: Side) -> dict[str, int]:
        n_pool, n_evicted, _ = self._state().sizes.sum(axis=0)
        return {**super()._counts(side), "n_pool": int(n_pool), "n_evicted": int(n_evicted)}

    @property
    def counts(self) -> dict[str, int]:
        """Packed elements of both sides; tokens in the pools and evicted ones, over all heads."""
        counts: dict[str, Any] = super().counts
        return {**counts, **{name: counts[name] // 2 for name in ("n_pool", "n_evicted") if name in counts}}

    def _override(self, side: Side, patterns: np.ndarray) -> None:
        sinks, n_heads = self._state(), patterns.shape[1]
        for positions, rows, held in zip(
            (sinks.positions, sinks.out_positions),
            (sinks.rows[side], sinks.out_rows[side]),
            sinks.stored(),
            strict=True,
        ):
            for i in np.flatnonzero(held.any(axis=1)):
                patterns[i // n_heads, i % n_heads, positions[i, held[i]]] = rows[i, held[i]]
