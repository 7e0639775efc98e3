"""A model's own keys and values: which of the papers' observations it shows, as rows of a table."""

from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

import numpy as np

import kernels_ref
from dse.transformer.caches import FloatCache
from dse.transformer.forward import softmax
from studies.forward import attend, forward
from studies.normality import ALPHA, dagostino_pearson, standardised
from studies.weights import ByteModel

#: sizes of blocks whose normality is tested (NQKV: 256), and shares of the quantile plot
BLOCKS = (32, 64, 128, 256)
SHARES = tuple((i + 0.5) / 32 for i in range(32))
#: tokens that may be sinks, queries behind them (SinkQ Figure 1 shows the first 300)
N_CANDIDATES = 300
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
#: SinkQ Figure 1(f): tokens kept in FP16 of a 2-bit cache
KEPT = (0, 1, 2, 4, 8, 16, 32)
TOP = 0.04

Row = dict[str, Any]


def row(
    experiment: str, metric: str, value: float, series: str = "", x: float = 0.0, layer: int = -1, side: str = ""
) -> Row:
    """A row of the study's table; layer -1: all layers."""
    return {
        "experiment": experiment,
        "series": series,
        "layer": layer,
        "side": side,
        "x": float(x),
        "metric": metric,
        "value": float(value),
    }


def looks(model: ByteModel, tokens: np.ndarray, texts: list[str]) -> Iterator[Row]:
    """Rows of every observation for tokens [texts, n], one window a text, n over N_CANDIDATES."""
    caches = [FloatCache("fp16") for _ in model.layers]
    queries: list[np.ndarray] = []
    forward(model, tokens, caches, last_only=True, queries=queries)
    for layer, cache in enumerate(caches):
        key, value = (x.astype(np.float32) for x in cache.seen())
        for side, x in (("key", key), ("value", value)):
            yield from _ranges(layer, side, x, texts)
            yield from _channels(layer, side, x)
            yield from _normality(layer, side, x)
        yield from _sinks(layer, queries[layer], key, value)
        yield from _kept(layer, queries[layer], key, value)


def _ranges(layer: int, side: str, x: np.ndarray, texts: list[str]) -> Iterator[Row]:
    """Oaken observations 1 and 2: least and greatest, and the limits of the outer 4 %, by text."""
    for name, own in zip(texts, x, strict=True):
        found = np.quantile(own, (0, TOP / 2, 1 - TOP / 2, 1))
        for metric, value in zip(("least", "low", "high", "greatest"), found, strict=True):
            yield row("ranges", metric, value, name, layer=layer, side=side)


def _channels(layer: int, side: str, x: np.ndarray) -> Iterator[Row]:
    """Oaken observation 3: largest channel over the median one, and the part of the top 4 % in as many channels."""
    size = np.abs(x).transpose(1, 3, 0, 2).reshape(x.shape[1] * x.shape[3], -1)
    largest = size.max(axis=1)
    yield row("channels", "largest_over_median", largest.max() / np.median(largest), layer=layer, side=side)
    top = np.sort((size >= np.quantile(size, 1 - TOP)).sum(axis=1))[::-1]
    n = max(round(TOP * len(top)), 1)
    yield row("channels", "top_in_as_many_channels", top[:n].sum() / top.sum(), layer=layer, side=side)


def _normality(layer: int, side: str, x: np.ndarray) -> Iterator[Row]:
    """NQKV Table 1 and Figure 4: of blocks of a token's channels, those not told from normal, and quantiles."""
    flat = x.transpose(0, 2, 1, 3).reshape(x.shape[0] * x.shape[2], -1)
    for block in (size for size in BLOCKS if size <= flat.shape[1] and flat.shape[1] % size == 0):
        parts = flat.reshape(-1, block)
        p = dagostino_pearson(parts)
        yield row("normality", "not_rejected", float(np.mean(p > ALPHA)), x=block, layer=layer, side=side)
        means = standardised(parts).mean(axis=0)
        places = np.interp(SHARES, (np.arange(block) + 0.5) / block, means)
        for share, value in zip(SHARES, places, strict=True):
            yield row("quantiles", "mean", value, str(block), NormalDist().inv_cdf(share), layer, side)


def _shares(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Mean attention to each of the first N_CANDIDATES tokens by later queries: [windows, KV heads, tokens]."""
    n_batch, n_q, n, head_dim = query.shape
    n_kv = key.shape[1]
    found = np.empty((n_batch, n_kv, N_CANDIDATES))
    hidden = np.arange(n) > np.arange(N_CANDIDATES, n)[:, None]
    for b in range(n_batch):
        late = query[b, :, N_CANDIDATES:].reshape(n_kv, n_q // n_kv, -1, head_dim) * np.float32(head_dim**-0.5)
        scores = late @ key[b][:, None].swapaxes(-1, -2)
        scores[..., hidden] = -np.inf
        found[b] = softmax(scores)[..., :N_CANDIDATES].mean(axis=(1, 2))
    return found


def _sinks(layer: int, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> Iterator[Row]:
    """SinkQ 3.1 and Figure 1(c): BOS and the smallest keys against the highest attention."""
    shares = _shares(query, key)
    norms = np.abs(key[:, :, :N_CANDIDATES]).sum(axis=-1)
    even = shares / shares.mean(axis=-1, keepdims=True)
    for head in range(key.shape[1]):
        yield row("sinks", "bos_over_even", even[:, head, 0].mean(), x=head, layer=layer)
        yield row(
            "sinks",
            "bos_key_over_median",
            (norms[:, head, 0] / np.median(norms[:, head], axis=-1)).mean(),
            x=head,
            layer=layer,
        )
        smallest = np.take_along_axis(even[:, head], norms[:, head].argmin(axis=-1)[:, None], axis=-1)
        yield row("sinks", "smallest_key_over_even", smallest.mean(), x=head, layer=layer)
        yield row("sinks", "highest_over_even", even[:, head].max(axis=-1).mean(), x=head, layer=layer)
    order, by_share = norms.argsort(axis=-1), (-shares).argsort(axis=-1)
    for n in COUNTS:
        both = (order[..., :n, None] == by_share[..., None, :n]).any(axis=-1)
        yield row("overlap", "both", both.mean(), x=n, layer=layer)


def _kept(layer: int, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> Iterator[Row]:
    """SinkQ Figure 1(f): L1 loss of the attention output, relative, of a 2-bit cache that keeps some tokens exact."""
    n = key.shape[2] // 128 * 128
    windows = slice(0, 2)
    query, key, value = (x[windows, :, :n] for x in (query, key, value))
    exact = attend(query, key, value)
    norms = np.abs(key).sum(axis=-1)
    grouped = query.reshape(query.shape[0], key.shape[1], -1, *query.shape[2:])
    scores = grouped @ key[:, :, None].swapaxes(-1, -2) * np.float32(key.shape[-1] ** -0.5)
    scores[..., np.triu(np.ones((n, n), bool), 1)] = -np.inf
    # a token's attention over the even share of the queries that see it
    drawn = (softmax(scores) * np.arange(1, n + 1)[:, None]).sum(axis=(2, 3)) / np.arange(n, 0, -1)
    ranks = {
        "smallest keys": norms,
        "largest keys": -norms,
        "highest attention": -drawn,
        "first tokens": np.broadcast_to(np.arange(n), norms.shape),
    }
    method = kernels_ref.KIVI(2, 128, 0, overflow="saturate")

    def loss(chosen: np.ndarray, excluded: bool) -> float:
        sides = []
        for side, x in (("key", key), ("value", value)):
            given = x
            if excluded:
                mean = x.reshape(*x.shape[:2], -1, 128, x.shape[-1]).mean(axis=3).repeat(128, axis=2)
                given = np.where(chosen[..., None], mean, x)
            seen = method.dequantize(method.quantize(given, side))  # type: ignore[arg-type]
            sides.append(np.where(chosen[..., None], x, seen.astype(np.float32)))
        return float(np.abs(attend(query, *sides) - exact).sum() / np.abs(exact).sum())

    for name, rank in ranks.items():
        places = rank.argsort(axis=-1, kind="stable").argsort(axis=-1, kind="stable")
        for count in KEPT:
            yield row("kept", "l1_loss", loss(places < count, False), name, count, layer)
            if name == "smallest keys":
                yield row("kept", "l1_loss", loss(places < count, True), f"{name}, excluded", count, layer)
