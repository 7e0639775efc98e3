"""Golden files of SinkQ: which tokens are kept apart after every packed group, and what the cache holds at the end."""

from collections.abc import Iterator

import numpy as np

from kernels_ref.conformance.compare import Pair
from kernels_ref.conformance.kivi import SIDES, groups_of
from kernels_ref.conformance.vectors import Vectors
from kernels_ref.kivi import KIVI
from kernels_ref.kivi_store import Side
from kernels_ref.packed import Packed
from kernels_ref.sinkq import SinkQ, SinkQCache
from kernels_ref.streaming import part_of


def sinkq(vectors: Vectors) -> Iterator[Pair]:
    """sinkq_*: sinks, evicted tokens and whether tracking stopped, by event; packed groups; the effective cache.

    An event is the packing of one group. The cache is filled twice, once from event to event and once as one prompt.
    """
    params = vectors.entry.params
    method = SinkQ(params["bits"], params["G"], params["R"], params["sink_num"], params["window"], overflow="propagate")
    key, value = vectors["key"], vectors["value"]
    cache, states = method.cache(), []
    n_tokens = key.shape[2]
    ends = list(range(method.group + method.residual, n_tokens + 1, method.group))
    for start, end in zip([0, *ends], [*ends, n_tokens], strict=True):
        cache.append(key[:, :, start:end], value[:, :, start:end])
        states.append((cache.pool_positions, cache.n_evicted, cache.stopped))
    pools, evicted, stopped = (np.stack(state, axis=2) for state in zip(*states[: len(ends)], strict=True))
    yield Pair("pool_positions", vectors["pool_positions"], _padded(pools, vectors["pool_positions"]))
    yield Pair("evicted_count", vectors["evicted_count"], evicted.astype(np.int32))
    yield Pair("frozen", vectors["frozen"], stopped.astype(np.uint8))
    yield Pair("n_events", vectors["n_events"], np.array([len(ends)]))
    for name, filled in (("", cache), (" of one prompt", method.quantize(key, value))):
        for pair in _end(vectors, method, filled):
            yield Pair(pair.name + name, pair.expected, pair.found, pair.where)


def _end(vectors: Vectors, method: SinkQ, cache: SinkQCache) -> Iterator[Pair]:
    window = vectors["window_positions"]
    yield Pair("window_positions", window, _padded(cache.window_positions, window))
    n_packed = method.n_packed(cache.n_tokens)
    yield Pair("n_quantized", vectors["n_quantized"], np.array([n_packed]))
    yield Pair("replaced_mask", vectors["replaced_mask"], _kept(cache, n_packed))
    for (side, letter), effective in zip(SIDES, cache.seen(), strict=True):
        buffers = {f"{side}_{part}": cache.buffers[f"{side}_{part}"] for part in ("codes", "scales", "mins")}
        group = method.group if side == "key" else min(method.group, effective.shape[3])
        yield from groups_of(vectors, side, letter, method.bits, group, *buffers.values())
        yield Pair(
            f"{letter}_dequant", vectors[f"{letter}_dequant"], _decoded(method, side, buffers, n_packed, effective)
        )
        yield Pair(f"{letter}_effective", vectors[f"{letter}_effective"], effective)


def _padded(positions: np.ndarray, like: np.ndarray) -> np.ndarray:
    """With -1 for no token up to the width of `like`."""
    missing = max(like.shape[-1] - positions.shape[-1], 0)
    return np.pad(positions, [(0, 0)] * (positions.ndim - 1) + [(0, missing)], constant_values=-1)


def _kept(cache: SinkQCache, n_packed: int) -> np.ndarray:
    """1 for every packed token that is also kept apart: in its group the mean stands for it."""
    kept = np.concatenate([cache.pool_positions, cache.window_positions], axis=2)
    # -1, no token, lands in a column of its own
    mask = np.zeros((*kept.shape[:2], n_packed + 1), np.uint8)
    np.put_along_axis(mask, np.where(kept < 0, n_packed, kept).astype(np.int64), 1, axis=2)
    return mask[:, :, :n_packed]


def _decoded(
    method: SinkQ, side: Side, buffers: dict[str, np.ndarray], n_packed: int, effective: np.ndarray
) -> np.ndarray:
    """The packed tokens without what is kept apart: KIVI decodes the same groups."""
    n_batch, n_heads, _, head_dim = effective.shape
    core = KIVI(method.bits, method.group, residual=0, overflow="propagate")
    buffers = {**buffers, f"{side}_recent": np.empty((n_batch, n_heads, 0, head_dim), np.float16)}
    shape = (n_batch, n_heads, n_packed, head_dim)
    packed = Packed(core, shape, int(np.prod(shape)), buffers, {name: part_of(name) for name in buffers})
    return core.dequantize(packed)
