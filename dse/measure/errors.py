"""Errors of quantized keys and values by head, of the tensors themselves and of the attention output.

Everything is summed in float64; ratios are left to `ratios`, so that heads and layers can be pooled.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import kernels_ref
from dse.measure import kernels, synthetic
from dse.measure.kernels import DumpLayer, Settings, Side
from dse.measure.source import About, axes
from dse.model.formulas import effective_bits
from dse.quantizers import QuantizerSpec
from dse.specs.measurements import AttentionSums, TensorMeasurement

#: the sums of a tensor, and those of attention, in a row
TENSOR_SUMS = ("squared_error", "squared_signal", "squared_seen", "product")
ATTENTION_SUMS = ("squared_output_error", "squared_output", "mass_moved", "kl_nats")


def by_head(x: np.ndarray, n_heads: int) -> np.ndarray:
    """A view [batch, heads, tokens, head_dim] of a tensor of four axes or [tokens, channels]."""
    _, heads, tokens, dim = axes(x.shape, n_heads)
    return x if x.ndim == 4 else x.reshape(tokens, heads, dim).transpose(1, 0, 2)[None]


def prefix(x: np.ndarray, n_tokens: int) -> np.ndarray:
    """The first tokens of a tensor of either kind, in memory of its own where it is shorter."""
    if x.ndim == 4:
        return np.ascontiguousarray(x[:, :, :n_tokens])
    return np.ascontiguousarray(x[:n_tokens])


def exact(part: np.ndarray) -> np.ndarray:
    """A part of a tensor as the kernels take it (in FP16), in float64."""
    return kernels.as_taken(kernels_ref.fp16_patterns(part))


def tensor_sums(x: np.ndarray, seen: np.ndarray) -> dict[str, float]:
    """Sums over one head, float64 [batch, tokens, head_dim]: squared error, x**2, seen**2, x * seen, largest error."""
    off = x - seen
    return {
        "squared_error": float(np.square(off).sum()),
        "squared_signal": float(np.square(x).sum()),
        "squared_seen": float(np.square(seen).sum()),
        "product": float((x * seen).sum()),
        "max_abs_error": float(np.abs(off).max(initial=0.0)),
    }


def rotated(x: np.ndarray, positions: np.ndarray, theta: float) -> np.ndarray:
    """Rotary position embedding of x[..., tokens, head_dim] at `positions`[tokens].

    Channel i turns with channel i + head_dim / 2 by positions * theta**(-2 i / head_dim), the convention of Llama in
    Hugging Face transformers (RoFormer, equation 34, with the channels regrouped). Scaled variants are not covered.
    """
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles), np.sin(angles)
    low, high = x[..., :half], x[..., half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def is_turned_back(spec: QuantizerSpec, of: About) -> bool:
    """Whether a method takes keys before RoPE that the dump holds after it and that can be turned back."""
    return spec.family.before_rope and of.rope == "after" and of.theta is not None


def turned_back(x: np.ndarray, of: About, first: int = 0) -> np.ndarray:
    """Keys or queries of a dump, from token `first` on, before RoPE: FP16 of the same shape, finite."""
    assert of.theta is not None
    heads = by_head(x, of.n_heads)
    turned = rotated(exact(heads), -(of.first_position + first + np.arange(heads.shape[2], dtype=np.float64)), of.theta)
    half = np.clip(turned, -kernels.FP16_LARGEST, kernels.FP16_LARGEST).astype(np.float16)
    return half if x.ndim == 4 else np.ascontiguousarray(half[0].transpose(1, 0, 2)).reshape(x.shape)


def as_defined(
    spec: QuantizerSpec, tensors: Mapping[Side, np.ndarray], query: np.ndarray | None, of: About
) -> tuple[dict[Side, np.ndarray], np.ndarray | None, About]:
    """A layer's tensors and queries (those of its last tokens, by head) as the method takes them, and what they are."""
    if "key" not in tensors or not is_turned_back(spec, of):
        return dict(tensors), query, of
    n_tokens = by_head(tensors["key"], of.n_heads).shape[2]
    if query is not None:
        query = turned_back(query, replace(of, n_heads=query.shape[1]), n_tokens - query.shape[2])
    return {**tensors, "key": turned_back(tensors["key"], of)}, query, replace(of, rope="before")


def drawn(keys: np.ndarray, n_queries: int, seed: int, place: tuple[int, int, int]) -> np.ndarray:
    """Queries [n, head_dim] for `keys`[tokens, head_dim] (as attention uses them), where none were dumped.

    Bell-shaped without a preferred direction, all scaled alike so that their attention scores spread over the tokens
    with synthetic.SPREAD. `place` is (layer, batch, head): each has a stream of its own under `seed`.
    """
    bits = np.random.PCG64(np.random.SeedSequence((seed, *place)))
    queries = synthetic.bell(bits, (n_queries, keys.shape[1]))
    scores = queries @ keys.T / math.sqrt(keys.shape[1])
    spread = math.sqrt(float(np.square(scores - scores.mean(axis=1, keepdims=True)).mean()))
    return queries * (synthetic.SPREAD / spread) if spread > 0 else queries


def log_weights(queries: np.ndarray, keys: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Logarithms of the attention weights [queries, tokens]; query i sees the tokens 0..last[i], others get -inf."""
    scores = queries @ keys.T / math.sqrt(keys.shape[1])
    scores[np.arange(keys.shape[0]) > last[:, None]] = -np.inf
    scores -= scores.max(axis=1, keepdims=True)
    shifted: np.ndarray = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return shifted


def attention_sums(
    queries: np.ndarray, last: np.ndarray, keys: tuple[np.ndarray, np.ndarray], values: tuple[np.ndarray, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Sums over the queries with keys, values or both as quantized: (exact, seen), each [tokens, head_dim], float64.

    `squared_output_error` of the attention output and `squared_output` of the exact one; `mass_moved`: half the
    absolute differences of the weights, 0 to 1 a query; `kl_nats`: divergence of the weights from the exact ones.
    """
    logs = [log_weights(queries, k, last) for k in keys]
    weights = [np.exp(log) for log in logs]
    moved = 0.5 * float(np.abs(weights[1] - weights[0]).sum())
    seen = weights[0] > 0
    kl = float((weights[0][seen] * (logs[0][seen] - logs[1][seen])).sum())
    output = weights[0] @ values[0]
    sums = {}
    for side, (k, v) in {"key": (1, 0), "value": (0, 1), "both": (1, 1)}.items():
        sums[side] = {
            "squared_output_error": float(np.square(weights[k] @ values[v] - output).sum()),
            "squared_output": float(np.square(output).sum()),
            "mass_moved": moved if k else 0.0,
            "kl_nats": max(kl, 0.0) if k else 0.0,
        }
    return sums


class Queries(NamedTuple):
    """Queries that attention is measured with: how many of a head, the seed of drawn ones, the last ones or spread."""

    n: int
    seed: int = 0
    spread: bool = False


def of_layer(
    spec: QuantizerSpec,
    layer: DumpLayer,
    tensors: Mapping[Side, np.ndarray],
    query: np.ndarray | None,
    of: About,
    settings: Settings,
    asked: Queries,
) -> tuple[list[dict[str, Any]], dict[Any, dict[str, Any]], dict[Side, TensorMeasurement]]:
    """Quantize a layer: the sums of its heads (`head_rows`), of each side over all heads, and what a measurement file
    holds of each tensor."""
    tensors, query, of = as_defined(spec, tensors, query, of)
    outcomes = {m.which: (m, outcome) for m, outcome in kernels.measure(spec, layer, tensors, settings)}
    seen = {side: outcome.seen for side, (_, outcome) in outcomes.items()}
    rows = list(head_rows(tensors, seen, query, of, layer.index, asked))
    sides = dict.fromkeys(row["side"] for row in rows)
    totals = {side: pooled([row for row in rows if row["side"] == side]) for side in sides}
    output = outputs(totals)
    return rows, totals, {side: m.model_copy(update={"output": output.get(side)}) for side, (m, _) in outcomes.items()}


def head_rows(
    tensors: Mapping[Side, np.ndarray],
    seen: Mapping[Side, np.ndarray],
    query: np.ndarray | None,
    of: About,
    layer: int,
    asked: Queries,
) -> Iterator[dict[str, Any]]:
    """Rows of sums, a head and side each (key, value, and both where both are there), for these tokens of a layer.

    `query` is [batch, query heads, tokens of the dump's end that are among these, head_dim] or None: then queries are
    drawn. The last `asked.n` of them are used, or as many evenly spread over those that are there; each stands at its
    own position and sees the tokens up to it.
    """
    n_queries, seed, spread = asked
    exacts, founds = ({side: by_head(x, of.n_heads) for side, x in part.items()} for part in (tensors, seen))
    n_batch, n_heads, n_tokens, _ = next(iter(exacts.values())).shape
    kind = ("drawn" if query is None else "dumped") + (", spread" if spread else "")
    for head in range(n_heads):
        pairs = {side: (exact(exacts[side][:, head]), founds[side][:, head].astype(np.float64)) for side in exacts}
        sums: dict[str, dict[str, Any]] = {side: tensor_sums(*pair) for side, pair in pairs.items()}
        if len(pairs) == 2 and n_queries:
            n_asked, total = 0, {side: dict.fromkeys(ATTENTION_SUMS, 0.0) for side in ("key", "value", "both")}
            for batch in range(n_batch):
                keys = tuple(_turned(k[batch], of, np.arange(n_tokens)) for k in pairs["key"])
                last = positions(n_tokens, n_tokens if query is None else query.shape[2], n_queries, spread)
                if query is None:
                    groups = [drawn(keys[0], last.size, seed, (layer, batch, head))]
                else:
                    batch_q, n_group = query[batch], query.shape[1] // n_heads
                    batch_q = batch_q[:, last - (n_tokens - batch_q.shape[1])]
                    groups = [_turned(exact(batch_q[g]), of, last) for g in range(head * n_group, (head + 1) * n_group)]
                for queries in groups:
                    n_asked += last.size
                    values = (pairs["value"][0][batch], pairs["value"][1][batch])
                    for side, part in attention_sums(queries, last, (keys[0], keys[1]), values).items():
                        for name, number in part.items():
                            total[side][name] += number
            for side, part in total.items():
                sums.setdefault(side, {}).update(part, n_queries=n_asked, queries=kind)
        for side, part in sums.items():
            n_elements = sum(pair[0].size for name, pair in pairs.items() if side in (name, "both"))
            yield {"side": side, "head": head, "n_elements": n_elements, **part}


def positions(n_tokens: int, n_asking: int, n_queries: int, spread: bool) -> np.ndarray:
    """Where queries stand, ascending, of the last `n_asking` tokens: the last ones, or evenly spread up to the last."""
    count = min(n_queries, n_asking)
    if not spread:
        return np.arange(n_tokens - count, n_tokens)
    steps: np.ndarray = np.arange(1, count + 1) * n_asking // count
    return n_tokens - n_asking + steps - 1


def _turned(x: np.ndarray, of: About, places: np.ndarray) -> np.ndarray:
    if of.rope != "before" or of.theta is None:
        return x
    return rotated(x, of.first_position + places.astype(np.float64), of.theta)


def pooled(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums of several rows: of the heads of a layer, or of layers."""
    sums: dict[str, Any] = {"n_elements": sum(row["n_elements"] for row in rows)}
    for name in (*TENSOR_SUMS, *ATTENTION_SUMS):
        if all(row.get(name) is not None for row in rows):
            sums[name] = math.fsum(row[name] for row in rows)
    if all(row.get("max_abs_error") is not None for row in rows):
        sums["max_abs_error"] = max(row["max_abs_error"] for row in rows)
    if all(row.get("n_queries") for row in rows):
        sums["n_queries"] = sum(row["n_queries"] for row in rows)
        sums["queries"] = " and ".join(sorted({row["queries"] for row in rows}))
    return sums


def outputs(sums: Mapping[str, Mapping[str, Any]]) -> dict[Side, AttentionSums]:
    """Error of a layer's attention output for each quantized side, from the pooled sums of its sides; {} where
    attention was not measured."""
    if "both" not in sums or sums["key"].get("squared_output") is None:
        return {}
    both = sums["both"]["squared_output_error"]
    sides: tuple[Side, ...] = ("key", "value")
    return {
        side: AttentionSums(
            squared=sums[side]["squared_output"],
            squared_error=sums[side]["squared_output_error"],
            squared_error_both=both,
        )
        for side in sides
    }


def ratios(row: Mapping[str, Any]) -> dict[str, float | None]:
    """The errors of a row of sums; None where the tensor or the queries are missing, or where nothing is to divide by.

    `mse`: over all elements, also those kept in FP16; `sqnr_db`: of the same; `cosine`: of the tensor as one vector;
    `output_error`: square root of the squared error of the attention output over that of the exact one; `mass_moved`
    and `kl_nats`: mean over the queries.
    """
    errors: dict[str, float | None] = dict.fromkeys(
        ("sqnr_db", "mse", "max_abs_error", "cosine", "output_error", "mass_moved", "kl_nats")
    )
    if row.get("squared_error") is not None:
        error, signal = row["squared_error"] / row["n_elements"], row["squared_signal"] / row["n_elements"]
        errors["mse"], errors["max_abs_error"] = error, row["max_abs_error"]
        errors["sqnr_db"] = effective_bits.sqnr_db(signal, error) if error and signal else None
        norms = math.sqrt(row["squared_signal"]) * math.sqrt(row["squared_seen"])
        errors["cosine"] = min(max(row["product"] / norms, -1.0), 1.0) if norms else None
    if row.get("n_queries") and row.get("squared_output_error") is not None:
        if row["squared_output"]:
            errors["output_error"] = math.sqrt(row["squared_output_error"] / row["squared_output"])
        errors["mass_moved"], errors["kl_nats"] = (row[name] / row["n_queries"] for name in ("mass_moved", "kl_nats"))
    return errors
