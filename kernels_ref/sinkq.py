"""SinkQ: KIVI's core with sink tokens traced and kept in FP16.

SinkQ sections 3.2 and 4.1, after OTT (Outlier Tokens Tracing, arXiv:2505.10938); no code is released. Where the papers
are silent: state is kept per batch and head, a token's score is the L1 norm of its key, ties stay in order, the mean
that takes a sink's place is that of all tokens of its group, sinks included.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kernels_ref import half
from kernels_ref.cache import Side, complaints_about
from kernels_ref.groups import GroupCache, GroupSide
from kernels_ref.inputs import KVTensor, NonFinite, check_count, head_parts
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.kivi import GroupCodec, check_core

__all__ = ["SinkQ", "SinkQCache"]

#: layers whose sinks are not tracked: the first ones (SinkQ 4.1)
SHALLOW_LAYERS = 2
#: elements that one thread takes at a time
TASK = 2**15


@inner
def _norm(row: np.ndarray) -> np.int64:
    """Sum of magnitudes of finite patterns, in units of 2^-24."""
    total = np.int64(0)
    for c in range(row.size):
        magnitude = np.int64(row[c] & np.uint16(0x7FFF))
        exponent = magnitude >> np.int64(10)
        normal = (magnitude & np.int64(0x3FF)) | np.int64(0x400)
        total += (normal << (exponent - np.int64(1))) if exponent > np.int64(0) else magnitude
    return total


@inner
def _norms(rows: np.ndarray, out: np.ndarray) -> None:
    for r in range(rows.shape[0]):
        out[r] = _norm(rows[r])


@kernel
def key_norms(rows: np.ndarray, out: np.ndarray) -> None:
    """L1 norm of each of rows[tokens, channels] (FP16 patterns), exactly, as an integer of units of 2^-24."""
    n_rows = rows.shape[0]
    step = max(TASK // rows.shape[1], 1)
    for task in prange((n_rows + step - 1) // step):
        part = slice(task * step, min((task + 1) * step, n_rows))
        _norms(rows[part], out[part])


@inner
def _add(row: np.ndarray, total: np.ndarray) -> None:
    for c in range(row.size):
        total[c] += np.float64(half.to_f32(row[c]))


@inner
def _replace(rows: np.ndarray, marks: np.ndarray, total: np.ndarray, mean: np.ndarray) -> None:
    total[:] = 0.0
    for t in range(rows.shape[0]):
        _add(rows[t], total)
    for c in range(total.size):
        mean[c] = half.from_f32(np.float32(total[c] / rows.shape[0]))
    for t in range(rows.shape[0]):
        if marks[t]:
            for c in range(mean.size):  # numba compiles three seconds of broadcasting for `rows[t] = mean`
                rows[t, c] = mean[c]


@kernel
def replace_by_mean(rows: np.ndarray, group: int, marks: np.ndarray, changed: np.ndarray) -> None:
    """Overwrite the marked tokens of rows[heads, groups * group, channels] by the mean of all tokens of their group.

    Per channel: exact sum (up to 8192 tokens), one division in binary64, rounded to binary32 and then to FP16.
    """
    n_heads, n_groups = changed.shape
    for task in prange(n_heads * n_groups):
        h, g = task // n_groups, task % n_groups
        if changed[h, g]:
            total = np.empty(rows.shape[2], np.float64)
            mean = np.empty(rows.shape[2], np.uint16)
            _replace(rows[h, g * group : (g + 1) * group], marks[h, g * group : (g + 1) * group], total, mean)


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
        """The core for keys or for values.

        side: "key" or "value".
        """
        return GroupCodec(side, self.bits, self.group, self.overflow)

    @property
    def pool_size(self) -> int:
        """Sinks that are tracked in this layer."""
        return 0 if self.layer < SHALLOW_LAYERS else self.sinks

    def n_packed(self, n_tokens: int) -> int:
        """Number of quantized tokens among n.

        n_tokens: Tokens of a sequence, from 0.
        """
        return max((n_tokens - self.residual) // self.group, 0) * self.group

    def quantize(
        self, key: np.ndarray, value: np.ndarray, n_heads: int = 1, nonfinite: NonFinite = "raise"
    ) -> "SinkQCache":
        """A cache of these tokens: sinks are chosen by key and kept for both, so both are needed.

        key: FP16, BF16 or FP32, [tokens, channels] of `n_heads` heads or [batch, heads, tokens, head_dim].
        value: Likewise; it may differ from `key` in head_dim only.
        n_heads: Heads of tensors [tokens, channels], from 1; those of four axes say theirs.
        nonfinite: "raise" refuses NaN and infinities, "replace" takes them as 0 and +-65504.
        """
        cache = self.cache(n_heads, nonfinite)
        cache.append(key, value)
        return cache

    def cache(self, n_heads: int = 1, nonfinite: NonFinite = "raise") -> "SinkQCache":
        """An empty cache of one layer.

        n_heads: Heads of tensors [tokens, channels], from 1; those of four axes say theirs.
        nonfinite: "raise" refuses NaN and infinities, "replace" takes them as 0 and +-65504.
        """
        return SinkQCache(self, n_heads, nonfinite)


class Sink(NamedTuple):
    """A token kept apart: the norm of its key, its position, its FP16 patterns."""

    norm: int
    position: int
    key: np.ndarray
    value: np.ndarray


@dataclass
class HeadSinks:
    """The sinks of one head: the pool in its order, and those pushed out of it, oldest first."""

    pool: tuple[Sink, ...] = ()
    evicted: tuple[Sink, ...] = ()
    #: tracking has stopped, since the evicted tokens no longer fitted
    stopped: bool = False

    def follow(self, group: list[Sink], pool_size: int, window: int) -> list[Sink]:
        """Update the pool by the tokens of a group, in order of their positions; returns those that enter it.

        Of pool and group the smallest stay, ties in order. Where more than `window` tokens would have been evicted the
        pool stays as it is, from then on.
        """
        pool = tuple(sorted((*self.pool, *group), key=lambda sink: sink.norm)[:pool_size])
        positions = {sink.position for sink in pool}
        pushed = tuple(sink for sink in self.pool if sink.position not in positions)
        if len(self.evicted) + len(pushed) > window:
            self.stopped = True
            return []
        self.pool, self.evicted = pool, self.evicted + pushed
        return [sink for sink in group if sink.position in positions]


def track(
    heads: list[HeadSinks], keys: np.ndarray, values: np.ndarray, first: int, method: SinkQ
) -> tuple[np.ndarray, np.ndarray]:
    """Follow the sinks through patterns [heads, groups * group, head_dim]; gives what is to be packed.

    `first` is the position of the first token. A token that enters a pool is replaced by the mean of its group.
    """
    n, n_tokens, _ = keys.shape
    norms = np.empty((n, n_tokens), np.int64)
    key_norms(keys.reshape(n * n_tokens, -1), norms.reshape(-1))
    n_groups = n_tokens // method.group
    smallest = norms.reshape(n, n_groups, method.group).min(axis=2)
    marks, changed = np.zeros((n, n_tokens), np.bool_), np.zeros((n, n_groups), np.bool_)
    for h, head in enumerate(heads):
        for g in range(n_groups):
            is_full = len(head.pool) == method.pool_size
            if head.stopped or (is_full and smallest[h, g] >= head.pool[-1].norm):
                continue  # nothing to do, as nearly always
            members = slice(g * method.group, (g + 1) * method.group)
            tokens = np.sort(np.argsort(norms[h, members], kind="stable")[: method.pool_size]) + members.start
            group = [Sink(int(norms[h, t]), first + int(t), keys[h, t].copy(), values[h, t].copy()) for t in tokens]
            for sink in head.follow(group, method.pool_size, method.window):
                marks[h, sink.position - first] = changed[h, g] = True
    if not changed.any():
        return keys, values
    keys, values = keys.copy(), values.copy()  # they may be the caller's
    replace_by_mean(keys, method.group, marks, changed)
    replace_by_mean(values, method.group, marks, changed)
    return keys, values


class SinkQCache(GroupCache):
    """A SinkQ cache that grows by `append`.

    Buffers: for keys and values codes, scales, mins and recent as in `KIVI.quantize`; key_sinks and value_sinks [n,
    head_dim] (FP16), the rows of all tokens kept apart, head by head, of each first the pool in its order, then the
    evicted ones; key_positions [n] (int32), where those tokens stand, stored once for key and value.
    `pool_positions`, `window_positions`, `n_evicted` and `stopped` show the state of every head.

    method: A `SinkQ`.
    n_heads: Heads of tensors [tokens, channels], from 1; those of four axes say theirs.
    nonfinite: "raise" refuses NaN and infinities, "replace" takes them as 0 and +-65504.
    """

    def __init__(self, method: SinkQ, n_heads: int = 1, nonfinite: NonFinite = "raise") -> None:
        super().__init__(method, n_heads, nonfinite)
        #: by batch and head
        self._heads: list[HeadSinks] = []

    def _extend(self, sides: dict[Side, GroupSide], tensors: dict[Side, KVTensor]) -> None:
        method: SinkQ = self.method
        n_batch, n_heads, _ = sides["key"].shape
        first = sides["key"].n_packed
        n = method.n_packed(self.n_tokens + tensors["key"].array.shape[2]) - first
        all_heads = self._heads or [HeadSinks() for _ in range(n_batch * n_heads)]
        all_heads = [replace(head) for head in all_heads] if n else all_heads  # as it was, should the append fail
        groups = {side: held.new_groups(n) for side, held in sides.items()}
        token_bytes = 2 * max(held.shape[2] for held in sides.values())
        for b, heads, tokens in head_parts(n_batch, n_heads, n, token_bytes, method.group):
            parts: dict[Side, np.ndarray] = {}
            for side, held in sides.items():
                with complaints_about(side):
                    parts[side] = held.read(tensors[side], b, heads, tokens)
            if method.pool_size:
                sinks = all_heads[b * n_heads + heads.start : b * n_heads + heads.stop]
                parts["key"], parts["value"] = track(sinks, parts["key"], parts["value"], first + tokens.start, method)
            for side, held in sides.items():
                with complaints_about(side):
                    held.put(groups[side], b, heads, tokens, parts[side])
        rests = {}
        for side, held in sides.items():
            with complaints_about(side):
                rests[side] = held.rest(tensors[side], n)
        self._heads = all_heads
        for side, held in sides.items():
            held.commit(n, groups[side], rests[side])

    def _shaped(self, rows: list[list[int]]) -> np.ndarray:
        """[batch, heads, .] (int32) of rows of positions, short ones filled up with -1."""
        if not self._sides:
            raise ValueError("the cache is empty: append keys and values first")
        positions_out = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int32)
        for row, positions in zip(positions_out, rows, strict=True):
            row[: len(positions)] = positions
        return positions_out.reshape(*self._shapes["key"][:2], -1)

    @property
    def pool_positions(self) -> np.ndarray:
        """Positions of the sinks [batch, heads, sinks] (int32) in the order of the pool; -1 where there is none."""
        positions = self._shaped([[sink.position for sink in head.pool] for head in self._heads])
        missing = self.method.pool_size - positions.shape[2]
        return np.pad(positions, [(0, 0), (0, 0), (0, missing)], constant_values=-1)

    @property
    def window_positions(self) -> np.ndarray:
        """Positions of the evicted tokens [batch, heads, .] (int32), oldest first; -1 where there is none."""
        return self._shaped([[sink.position for sink in head.evicted] for head in self._heads])

    @property
    def n_evicted(self) -> np.ndarray:
        """Evicted tokens [batch, heads]."""
        return self._shaped([[len(head.evicted)] for head in self._heads])[:, :, 0].astype(np.int64)

    @property
    def stopped(self) -> np.ndarray:
        """Whether tracking has stopped, since the evicted tokens no longer fitted: [batch, heads], bool."""
        return self._shaped([[head.stopped] for head in self._heads])[:, :, 0].astype(np.bool_)

    def _kept(self) -> list[Sink]:
        """All tokens kept apart, in the order in which they are stored."""
        return [sink for head in self._heads for sink in (*head.pool, *head.evicted)]

    def _side_buffers(self, side: Side) -> dict[str, np.ndarray]:
        kept, buffers = self._kept(), super()._side_buffers(side)
        rows = np.array([getattr(sink, side) for sink in kept], np.uint16).reshape(len(kept), self._shapes[side][2])
        buffers[f"{side}_sinks"] = rows.view(np.float16)
        if side == "key":
            buffers["key_positions"] = np.array([sink.position for sink in kept], np.int32)
        return buffers

    def _side_counts(self, side: Side) -> dict[str, int]:
        n_pool, n_evicted = (sum(len(getattr(head, name)) for head in self._heads) for name in ("pool", "evicted"))
        return {**super()._side_counts(side), "n_pool": n_pool, "n_evicted": n_evicted}

    @property
    def counts(self) -> dict[str, int]:  # type: ignore[override]
        """Packed elements of both sides; tokens in the pools and evicted ones, over all heads."""
        counts = super().counts
        return {**counts, **{name: counts[name] // 2 for name in ("n_pool", "n_evicted") if name in counts}}

    def _override(self, side: Side, patterns: np.ndarray) -> None:
        n_heads = patterns.shape[1]
        for i, head in enumerate(self._heads):
            for sink in (*head.pool, *head.evicted):
                patterns[i // n_heads, i % n_heads, sink.position] = getattr(sink, side)
