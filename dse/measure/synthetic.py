"""A synthetic KV cache with the features that quantizers live from: for tests, benchmarks and a first try.

Synthetic, not taken from a language model: every number below is assumed, in the range that papers describe.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dse.measure.recipe import Recipe


class LayerSample(NamedTuple):
    """Keys and values of one layer, FP16, [1, heads, tokens, head_dim]."""

    key: np.ndarray
    value: np.ndarray


#: spread (standard deviation over the tokens) of the attention scores of queries that are drawn, in nats; assumed
SPREAD = 2.0


def bell(bits: np.random.PCG64, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of mean 0 and variance 1, bell-shaped (four uniform 16-bit numbers summed): the same everywhere.

    numpy keeps a bit generator's stream over its versions, but not the order in which it draws normal numbers.
    """
    n = int(np.prod(shape))
    raw = np.asarray(bits.random_raw(n)).view(np.uint16).reshape(n, 4)
    total = raw.astype(np.float64).sum(axis=1)  # four exact integers
    return ((total - 4 * 32767.5) / np.sqrt(4 * (2.0**32 - 1) / 12)).reshape(shape)


def _picked(first: list[int], count: int, below: int, bits: np.random.PCG64) -> list[int]:
    """`count` different numbers below `below`: those of `first`, then drawn ones."""
    picked = list(dict.fromkeys(first))[:count]
    while len(picked) < min(count, below):
        number = int(bits.random_raw()) % below
        if number not in picked:
            picked.append(number)
    return picked


def layer_of(recipe: Recipe, layer: int) -> tuple[LayerSample, np.ndarray | None]:
    """One layer of a synthetic cache (see `synthetic`) and its queries [1, heads, n_queries, head_dim], if any.

    Values beyond 65504 become infinite.
    """
    n_heads, n_tokens, head_dim = recipe.n_heads, recipe.n_tokens, recipe.head_dim
    bits = np.random.PCG64(recipe.seed * 1000 + layer)
    key, value, tails = (bell(bits, (n_heads, n_tokens, head_dim)) for _ in range(3))
    channels = bell(bits, (3, n_heads, 1, head_dim))
    picks = np.asarray(bits.random_raw(n_heads * 8)).reshape(n_heads, 8)
    # tails: by default one element in about eight is up to three times as large
    stretch = 1.0 + np.maximum(np.abs(tails) - 1.5, 0.0) * recipe.tails
    offset = np.zeros((n_heads, 1, head_dim))
    for head in range(n_heads):
        places = [int(pick) % head_dim for pick in picks[head]]
        if recipe.n_outlier_channels is None:
            places = places[: max(head_dim // 32, 1)]
        else:
            places = _picked(places, recipe.n_outlier_channels, head_dim, bits)
        for place in places:
            offset[head, 0, place] = recipe.outlier_offset + channels[0, head, 0, place]
    key = (key * (1.0 + 0.3 * np.abs(channels[1])) * stretch + offset) * _range(recipe.key_ranges, layer, 1.0, 0.25)
    value = value * (0.5 + 0.2 * np.abs(channels[2])) * stretch * _range(recipe.value_ranges, layer, 0.4, 0.3)
    for head in range(n_heads):
        first = [t % n_tokens for t in (0, 1, *map(int, picks[head, 4:6]))] if n_tokens else []
        sinks = sorted(set(first) if recipe.n_sinks == 4 else _picked(first, recipe.n_sinks, n_tokens, bits))
        key[head, sinks] *= recipe.sink_key
        value[head, sinks] *= recipe.sink_value
    query = None if not recipe.n_queries else _queries(recipe, key, bits)[None].astype(np.float16)
    with np.errstate(over="ignore"):
        return LayerSample(key[None].astype(np.float16), value[None].astype(np.float16)), query


def _range(ranges: Sequence[float], layer: int, first: float, step: float) -> float:
    return ranges[min(layer, len(ranges) - 1)] if ranges else first + step * layer


def _queries(recipe: Recipe, key: np.ndarray, bits: np.random.PCG64) -> np.ndarray:
    """Queries [heads, n_queries, head_dim]: a bell, and a part against the mean key, which keys of low norm escape.

    The bell's scores spread over the tokens with SPREAD. The scores of sinks, whose keys are sink_key times as large,
    are sink_pull nats above those of other tokens on average (the mechanism of SinkQ 3.1).
    """
    drawn = bell(bits, (recipe.n_heads, recipe.n_queries, recipe.head_dim))
    mean = key.mean(axis=1, keepdims=True)
    deviation = np.sqrt(np.square(key - mean).mean(axis=(1, 2), keepdims=True))
    drawn *= SPREAD / np.maximum(deviation, 1e-9)
    size = np.maximum(np.square(mean).sum(axis=2, keepdims=True), 1e-9) * (1 - recipe.sink_key)
    pull: np.ndarray = -recipe.sink_pull * math.sqrt(recipe.head_dim) / size if recipe.sink_key != 1 else 0 * size
    return drawn + pull * mean


def synthetic(n_layers: int, n_heads: int, n_tokens: int, head_dim: int, seed: int) -> list[LayerSample]:
    """Keys and values of `n_layers` layers.

    Keys have outlier channels (one in 32: an offset of several deviations, same for all tokens, as KIVI and KVQuant
    report), values have none; both have heavier tails than a bell. Tokens 0, 1 and a few later ones are attention
    sinks: keys of about a tenth of the norm, values of about a third (OTT, SinkQ 3.1). Each layer has a range of its
    own (Oaken, Figure 6).
    """
    recipe = Recipe(n_layers, n_heads=n_heads, n_tokens=n_tokens, head_dim=head_dim, seed=seed)
    return [layer_of(recipe, layer)[0] for layer in range(n_layers)]


def arrays(layers: list[LayerSample]) -> dict[str, np.ndarray]:
    """The sample as a dump holds it: `layer0.key`, `layer0.value`, ..."""
    return {f"layer{i}.{side}": getattr(layer, side) for i, layer in enumerate(layers) for side in ("key", "value")}
