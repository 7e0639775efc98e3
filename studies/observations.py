"""A model's own keys and values: the papers' observations, as rows of a table."""

from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

import kernels_ref
from dse.core.progress import Progress
from dse.transformer.checkpoint import Architecture, Checkpoint
from dse.transformer.forward import Attention, LayerHeads, attend, exact, hidden_states, softmax, turned
from studies.normality import ALPHA, dagostino_pearson, standardised

#: sizes of blocks whose normality is tested (NQKV: 256), and shares of the quantile plot
BLOCKS = (32, 64, 128, 192, 256)
SHARES = tuple((i + 0.5) / 32 for i in range(32))
#: tokens that may be sinks, queries behind them (SinkQ Figure 1 shows the first 300)
N_CANDIDATES = 300
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
#: SinkQ Figure 1(f): tokens kept in FP16 of a 2-bit cache
KEPT = (0, 1, 2, 4, 8, 16, 32)
TOP = 0.04
#: a sink draws this much times the even share; tokens from the first on that StreamingLLM keeps
SINK, FIRST = 10, 4
#: tokens when SinkQ's eliminated sinks are counted (Llama 2 reads 4,096), and its settings (SinkQ 4.1)
ELIMINATED_AT = (512, 1024, 2048, 4096)
SINKQ_GROUP, SINKQ_RESIDUAL, SINKQ_SINKS = 128, 32, 3
#: ranks of the tokens that draw most attention (SinkQ Figures 8 and 9)
RANKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
#: runs that Oaken's thresholds are means over (4.2: about a hundred), tokens of one, and numbers of them that are tried
N_RUNS, RUN_TOKENS = 100, 256
RUNS = (1, 2, 5, 10, 20, 50, 100)
#: thresholds of 4/90/6: shares of elements below them
THRESHOLDS = {"outer low": 0.02, "inner low": 0.47, "inner high": 0.53, "outer high": 0.98}

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


class _Layer(NamedTuple):
    """A layer on some texts, [texts, heads, tokens, head_dim]: queries and keys after RoPE, keys before it, values."""

    query: np.ndarray
    key: np.ndarray
    key_before: np.ndarray
    value: np.ndarray


def _layers(model: Checkpoint, tokens: np.ndarray, progress: Progress, label: str) -> list[_Layer]:
    """Every layer on tokens [texts, n], in FP16 to hold them all."""
    of, kept = model.architecture, list[list[tuple[np.ndarray, ...]]]()
    for text in tokens:
        kept.append([])
        hidden_states(model, text, [_keeping(of, kept[-1])], progress, label)
    return [_Layer(*(np.stack(parts) for parts in zip(*layer, strict=True))) for layer in zip(*kept, strict=True)]


def _keeping(of: Architecture, kept: list[tuple[np.ndarray, ...]]) -> Attention:
    """Exact attention that appends what a layer holds."""
    attention = exact(of)

    def keep(layer: int, heads: LayerHeads) -> np.ndarray:
        query, key = (turned(x, of.rotations[layer]) for x in (heads.query, heads.key))
        kept.append(tuple(x.astype(np.float16) for x in (query, key, heads.key, heads.value)))
        return attention(layer, heads)

    return keep


def looks(model: Checkpoint, tokens: np.ndarray, texts: Sequence[str], progress: Progress) -> Iterator[Row]:
    """Rows of every observation for tokens [texts, n], one window a text, n over N_CANDIDATES."""
    places: dict[tuple[str, int], list[np.ndarray]] = {}
    for layer, held in enumerate(_layers(model, tokens, progress, "looking")):
        qkv = _Layer(*(x.astype(np.float32) for x in held))
        for side, x in (("key", qkv.key), ("value", qkv.value)):
            yield from _ranges(layer, side, x, texts)
            yield from _channels(layer, side, x)
        for side, x in (("key", qkv.key), ("key before RoPE", qkv.key_before), ("value", qkv.value)):
            yield from _normality(layer, side, x, places)
        yield from _sinks(layer, qkv, model.architecture)
        yield from _kept(layer, qkv, model.architecture)
    for (side, block), of_layers in places.items():
        for share, value in zip(SHARES, np.mean(of_layers, axis=0), strict=True):
            yield row("quantiles", "mean", value, str(block), NormalDist().inv_cdf(share), side=side)


def runs(model: Checkpoint, tokens: np.ndarray, texts: Sequence[str], progress: Progress) -> Iterator[Row]:
    """Oaken 4.2: thresholds of single runs, tokens [runs, n], and how near the mean of a few is to that of all.

    `texts`: the text of each run. A distance is over the width between the thresholds of the outer group.
    """
    of, kept = model.architecture, list[np.ndarray]()
    shares = list(THRESHOLDS.values())
    with progress(tokens, label="profiling", length=len(tokens)) as shown:
        for sample in shown:
            held: list[tuple[np.ndarray, ...]] = []
            hidden_states(model, sample, [_keeping(of, held)], _silent, "")
            kept.append(np.array([[np.quantile(x.astype(np.float32), shares) for x in (k, v)] for _, k, _, v in held]))
    limits = np.stack(kept)  # [runs, layers, sides, thresholds]
    mean = limits.mean(axis=0)
    width = (mean[..., -1] - mean[..., 0])[..., None]
    order = np.random.default_rng(2025).permutation(len(limits))
    for layer in range(limits.shape[1]):
        for at, side in enumerate(("key", "value")):
            sample, whole, scale = limits[:, layer, at], mean[layer, at], width[layer, at, 0]
            for i, name in enumerate(THRESHOLDS):
                yield row("oaken-runs", "spread", sample[:, i].std(ddof=1) / scale, name, layer=layer, side=side)
            for n in (n for n in RUNS if n < len(limits)):
                parts = sample[order[: len(limits) // n * n]].reshape(-1, n, len(shares)).mean(axis=1)
                off = np.abs(parts - whole).mean() / scale
                yield row("oaken-runs", "off", off, "mean of runs", n, layer, side)
            for name in dict.fromkeys(texts):
                of_text = sample[[text == name for text in texts]].mean(axis=0)
                yield row("oaken-runs", "off text", np.abs(of_text - whole).mean() / scale, name, 0, layer, side)


def eliminated_by_chance(n_tokens: float) -> float:
    """Mean number of tokens pushed out of a head's pool, were the norms of keys in random order.

    Of g groups the pool holds the SINKQ_SINKS smallest keys; each stands in the last group with a chance of 1 / g.
    """
    groups = range(2, (int(n_tokens) - SINKQ_RESIDUAL) // SINKQ_GROUP + 1)
    return SINKQ_SINKS * sum(1 / g for g in groups)


def eliminated(model: Checkpoint, tokens: np.ndarray, texts: Sequence[str], progress: Progress) -> Iterator[Row]:
    """SinkQ 4.1: tokens that later ones have pushed out of the pool of a head, and where those in the pool stand.

    tokens: [texts, n]. No window bounds how many are eliminated.
    """
    of = model.architecture
    method = kernels_ref.SinkQ(
        2, group=SINKQ_GROUP, residual=SINKQ_RESIDUAL, sinks=SINKQ_SINKS, window=ELIMINATED_AT[-1], overflow="saturate"
    )
    found: list[Row] = []

    def counting(name: str) -> Attention:
        attention = exact(of)

        def count(layer: int, heads: LayerHeads) -> np.ndarray:
            key, value = (x.astype(np.float16)[None] for x in (turned(heads.key, of.rotations[layer]), heads.value))
            cache, start = method.cache(), 0
            for end in (n for n in ELIMINATED_AT if n <= key.shape[2]):
                cache.append(key[:, :, start:end], value[:, :, start:end])
                start = end
                n_eliminated, places = cache.n_evicted[0], cache.pool_positions[0]
                metrics = {
                    "mean": n_eliminated.mean(),
                    "most": n_eliminated.max(),
                    "first_in_pool": np.mean(places.min(axis=1) == 0),
                    "behind_first": np.mean(places >= FIRST),
                }
                found.extend(row("sinkq-eliminated", m, v, name, end, layer) for m, v in metrics.items())
            return attention(layer, heads)

        return count

    for name, text in zip(texts, tokens, strict=True):
        hidden_states(model, text, [counting(name)], progress, "following sinks")
    yield from found


def _silent(items: Any, **_: Any) -> Any:
    from contextlib import nullcontext

    return nullcontext(items)


def _ranges(layer: int, side: str, x: np.ndarray, texts: Sequence[str]) -> Iterator[Row]:
    """Oaken observations 1 and 2: least and greatest, and the limits of the outer 4 %, by text."""
    for name, of_text in zip(texts, x, strict=True):
        limits = np.quantile(of_text, (0, TOP / 2, 1 - TOP / 2, 1))
        for metric, value in zip(("least", "low", "high", "greatest"), limits, strict=True):
            yield row("ranges", metric, value, name, layer=layer, side=side)


def _channels(layer: int, side: str, x: np.ndarray) -> Iterator[Row]:
    """Oaken observation 3: largest channel over the median one, and the part of the top 4 % in as many channels."""
    size = np.abs(x).transpose(1, 3, 0, 2).reshape(x.shape[1] * x.shape[3], -1)
    largest = size.max(axis=1)
    yield row("channels", "largest_over_median", largest.max() / np.median(largest), layer=layer, side=side)
    top = np.sort((size >= np.quantile(size, 1 - TOP)).sum(axis=1))[::-1]
    n = max(round(TOP * len(top)), 1)
    yield row("channels", "top_in_as_many_channels", top[:n].sum() / top.sum(), layer=layer, side=side)


def _normality(layer: int, side: str, x: np.ndarray, places: dict[tuple[str, int], list[np.ndarray]]) -> Iterator[Row]:
    """NQKV Table 1 and Figure 4: of blocks of a token's channels, those not told from normal, and quantiles."""
    flat = x.transpose(0, 2, 1, 3).reshape(x.shape[0] * x.shape[2], -1)
    for block in (size for size in BLOCKS if size <= flat.shape[1] and flat.shape[1] % size == 0):
        parts = flat.reshape(-1, block)
        p = dagostino_pearson(parts)
        yield row("normality", "not_rejected", float(np.mean(p > ALPHA)), x=block, layer=layer, side=side)
        means = standardised(parts).mean(axis=0)
        places.setdefault((side, block), []).append(np.interp(SHARES, (np.arange(block) + 0.5) / block, means))


def _shares(query: np.ndarray, key: np.ndarray, query_scale: float) -> np.ndarray:
    """Mean attention to each of the first N_CANDIDATES tokens by later queries: [windows, KV heads, tokens]."""
    n_batch, n_q, n, head_dim = query.shape
    n_kv = key.shape[1]
    shares = np.empty((n_batch, n_kv, N_CANDIDATES))
    hidden = np.arange(n) > np.arange(N_CANDIDATES, n)[:, None]
    for b in range(n_batch):
        late = query[b, :, N_CANDIDATES:].reshape(n_kv, n_q // n_kv, -1, head_dim) * np.float32(query_scale)
        scores = late @ key[b][:, None].swapaxes(-1, -2)
        scores[..., hidden] = -np.inf
        shares[b] = softmax(scores)[..., :N_CANDIDATES].mean(axis=(1, 2))
    return shares


def _sinks(layer: int, qkv: _Layer, of: Architecture) -> Iterator[Row]:
    """SinkQ 3.1, Figures 1(c), 8 and 9: the first token and the smallest keys against the highest attention; 3.2: where
    sinks are."""
    key, value, shares = qkv.key, qkv.value, _shares(qkv.query, qkv.key, of.query_scale)
    norms = np.abs(key[:, :, :N_CANDIDATES]).sum(axis=-1)
    even = shares / shares.mean(axis=-1, keepdims=True)
    for head in range(key.shape[1]):
        yield row("sinks", "first_over_even", even[:, head, 0].mean(), x=head, layer=layer)
        yield row(
            "sinks",
            "first_key_over_median",
            (norms[:, head, 0] / np.median(norms[:, head], axis=-1)).mean(),
            x=head,
            layer=layer,
        )
        sizes = np.abs(value[:, head, :N_CANDIDATES]).sum(axis=-1)
        size = (sizes[:, 0] / np.median(sizes, axis=-1)).mean()
        yield row("sinks", "first_value_over_median", size, x=head, layer=layer)
        yield row("sinks", "first_share", shares[:, head, 0].mean(), x=head, layer=layer)
        smallest = np.take_along_axis(even[:, head], norms[:, head].argmin(axis=-1)[:, None], axis=-1)
        yield row("sinks", "smallest_key_over_even", smallest.mean(), x=head, layer=layer)
        yield row("sinks", "highest_over_even", even[:, head].max(axis=-1).mean(), x=head, layer=layer)
    is_sink = even >= SINK
    for metric, drawing in (("first", is_sink[..., :FIRST]), ("elsewhere", is_sink[..., FIRST:])):
        yield row("places", f"n_{metric}", drawing.sum(axis=-1).mean(), layer=layer)
        yield row("places", f"heads_{metric}", drawing.any(axis=-1).mean(), layer=layer)
    yield row("places", "share_first", shares[..., :FIRST].sum(axis=-1).mean(), layer=layer)
    elsewhere = np.where(is_sink, shares, 0)[..., FIRST:]
    yield row("places", "share_elsewhere", elsewhere.sum(axis=-1).mean(), layer=layer)
    drawn = np.sort(shares / shares.sum(axis=-1, keepdims=True), axis=-1)[..., ::-1].mean(axis=(0, 1))
    for rank in RANKS:
        yield row("accumulated", "share", drawn[rank - 1], x=rank, layer=layer)
    yield row("accumulated", "half", 1 + int(np.searchsorted(drawn.cumsum(), 0.5)), layer=layer)
    order, by_share = norms.argsort(axis=-1), (-shares).argsort(axis=-1)
    for n in COUNTS:
        both = (order[..., :n, None] == by_share[..., None, :n]).any(axis=-1)
        yield row("overlap", "both", both.mean(), x=n, layer=layer)


def _kept(layer: int, qkv: _Layer, of: Architecture) -> Iterator[Row]:
    """SinkQ Figure 1(f): L1 loss of the attention output, relative, of a 2-bit cache that keeps some tokens exact."""
    n = qkv.key.shape[2] // 128 * 128
    query, key, value = (x[:2, :, :n] for x in (qkv.query, qkv.key, qkv.value))

    def outputs(key: np.ndarray, value: np.ndarray) -> np.ndarray:
        return np.stack([attend(*part, of) for part in zip(query, key, value, strict=True)])

    whole = outputs(key, value)
    norms = np.abs(key).sum(axis=-1)
    grouped = query.reshape(query.shape[0], key.shape[1], -1, *query.shape[2:])
    scores = grouped @ key[:, :, None].swapaxes(-1, -2) * np.float32(of.query_scale)
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
            taken = x
            if excluded:
                mean = x.reshape(*x.shape[:2], -1, 128, x.shape[-1]).mean(axis=3).repeat(128, axis=2)
                taken = np.where(chosen[..., None], mean, x)
            seen = method.dequantize(method.quantize(taken, side))  # type: ignore[arg-type]
            sides.append(np.where(chosen[..., None], x, seen.astype(np.float32)))
        return float(np.abs(outputs(*sides) - whole).sum() / np.abs(whole).sum())

    for name, rank in ranks.items():
        places = rank.argsort(axis=-1, kind="stable").argsort(axis=-1, kind="stable")
        for count in KEPT:
            yield row("kept", "l1_loss", loss(places < count, False), name, count, layer)
            if name in ("smallest keys", "first tokens"):
                yield row("kept", "l1_loss", loss(places < count, True), f"{name}, excluded", count, layer)
