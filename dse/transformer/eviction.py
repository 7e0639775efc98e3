"""Attention that evicts tokens by the papers' rules: StreamingLLM, H2O, Scissorhands, SnapKV.

A prompt is computed in full and tokens leave behind it, one new token after the other; StreamingLLM and a plain window
stream the prompt as well. Tokens are chosen by KV head, by the mean attention of its query heads
(assumed: the papers' models have as many KV heads as query heads). Keys and values are in 16 bits.
"""

from fractions import Fraction
from typing import Protocol

import numpy as np

from dse.core.errors import InputError, show
from dse.specs.tokens import TokenPolicy
from dse.transformer.checkpoint import Architecture, Rotation
from dse.transformer.forward import Attention, LayerHeads, attend, capped, rotate, softmax, turned

#: SnapKV (arXiv:2404.14469), its experiments on LongBench: queries that vote, and tokens that a vote spreads over
SNAPKV_QUERIES, SNAPKV_POOL = 32, 7
#: Scissorhands (arXiv:2305.17118) 4: queries that count, tokens that always stay, share of the budget that leaves
HISTORY_QUERIES, RECENT_TOKENS, DROPPED = 400, 10, Fraction(1, 2)
#: policies whose rule is run
KNOWN = ("full", "window", "streaming", "h2o", "snapkv", "scissorhands")


class Keeper(Protocol):
    """A rule that says which tokens stay; places are those of a head's held tokens, in the order of the text."""

    #: last queries of the prompt whose attention it asks for; None: all
    n_queries: int | None

    def after_prompt(self, drawn: np.ndarray) -> np.ndarray | None:
        """Places that stay, [KV heads, kept], of attention [KV heads, queries, prompt]; None: all."""

    def after_token(self, drawn: np.ndarray) -> np.ndarray | None:
        """Places that stay once a token has drawn attention [KV heads, held], itself the last; None: all."""


def attention(of: Architecture, policy: TokenPolicy, n_prompt: int, bits: list[float]) -> Attention:
    """Attention under a policy; `bits` gains 16 bits times the share of the text that a layer holds at most after the
    prompt. Raises InputError for a policy whose rule is not run and for layers with windows of their own."""
    checked(of, policy)
    values = dict(policy.values)

    def attend_layer(layer: int, heads: LayerHeads) -> np.ndarray:
        rotation, n = of.rotations[layer], heads.key.shape[1]
        if policy.family.name in ("window", "streaming"):
            sinks, window = values.get("sinks", 0), values["window" if "window" in values else "tokens"]
            bits.append(16.0 * min(sinks + window, n) / n)
            return streamed(heads, of, rotation, sinks, window)
        mixed, most = evicted(heads, of, rotation, keeper(policy, n_prompt), n_prompt)
        bits.append(16.0 * most / n)
        return mixed

    return attend_layer


def checked(of: Architecture, policy: TokenPolicy) -> None:
    """Raise InputError for a policy whose rule is not run, and for a model with windows of its own."""
    if policy.family.name not in KNOWN:
        raise InputError(f"policies = {show(policy.name)}: is not run in a model: known: {', '.join(KNOWN)}")
    if any(window is not None for window in of.windows):
        raise InputError(
            f"policies = {show(policy.name)}: the model's layers have windows of their own: full attention"
        )


def keeper(policy: TokenPolicy, n_prompt: int) -> Keeper:
    """The rule of a policy that evicts, for a prompt of so many tokens."""
    values, name = dict(policy.values), policy.family.name

    def share(key: str) -> int:
        return int(Fraction(values[key]) * n_prompt)

    if name == "h2o":
        return HeavyHitters(share("heavy"), share("recent"), values["evict"] == "always")
    if name == "full":
        return ObservedVotes(n_prompt)
    budget = share("share") if not values["budget"] or (name == "snapkv" and values["share"]) else values["budget"]
    return ObservedVotes(budget) if name == "snapkv" else LowCounts(budget)


class HeavyHitters:
    """H2O (arXiv:2306.14048), Algorithm 1: the most recent tokens, and of the others those whose attention, summed
    over all queries that saw them, is greatest; one leaves for each new one (`rolls`)."""

    n_queries: int | None = None

    def __init__(self, n_heavy: int, n_recent: int, rolls: bool) -> None:
        self._n_heavy, self._n_recent, self._rolls = n_heavy, n_recent, rolls
        self._sums = np.empty((0, 0))

    def after_prompt(self, drawn: np.ndarray) -> np.ndarray | None:
        """Keep the heavy and the recent ones."""
        sums = drawn.sum(axis=1, dtype=np.float64)
        kept = _best(sums, self._n_heavy, self._n_recent)
        self._sums = np.take_along_axis(sums, kept, axis=1)
        return kept

    def after_token(self, drawn: np.ndarray) -> np.ndarray | None:
        """Evict the least heavy of the tokens that are not recent."""
        sums = drawn.astype(np.float64)
        sums[:, :-1] += self._sums
        kept = _best(sums, self._n_heavy, self._n_recent) if self._rolls else None
        self._sums = sums if kept is None else np.take_along_axis(sums, kept, axis=1)
        return kept


class ObservedVotes:
    """SnapKV: the last queries of the prompt vote by their attention, a vote spreads to its neighbors by the greatest
    of SNAPKV_POOL; the best stay beside those last tokens, `budget` together, and all generated tokens.

    Of neighbors with one pooled vote those with most votes of their own stay (assumed: the paper leaves it open).
    """

    n_queries: int | None = SNAPKV_QUERIES

    def __init__(self, budget: int) -> None:
        self._budget = budget

    def after_prompt(self, drawn: np.ndarray) -> np.ndarray | None:
        """Keep the best voted and the last."""
        n, n_last = drawn.shape[2], min(SNAPKV_QUERIES, self._budget)
        if n <= self._budget:
            return None
        votes = drawn.sum(axis=1, dtype=np.float64)[:, : n - n_last]
        reach = SNAPKV_POOL // 2
        padded = np.pad(votes, ((0, 0), (reach, reach)), constant_values=-np.inf)
        pooled = np.lib.stride_tricks.sliding_window_view(padded, SNAPKV_POOL, axis=1).max(axis=2)
        sides = [np.pad(x, ((0, 0), (0, n_last))) for x in (pooled, votes)]
        return _best(sides[0], self._budget - n_last, n_last, sides[1])

    def after_token(self, drawn: np.ndarray) -> np.ndarray | None:
        """Keep every generated token."""
        return None


class LowCounts:
    """Scissorhands, Algorithm 2: count the last queries that paid a token less than an even share; once more than
    `budget` tokens are held, those with the highest counts leave, all but the most recent being candidates.

    DROPPED of the budget leaves at once, after the prompt as well.
    """

    n_queries: int | None = HISTORY_QUERIES

    def __init__(self, budget: int) -> None:
        self._budget, self._n_kept = budget, budget - int(DROPPED * budget)
        self._low = np.empty((0, 0, 0), bool)

    def after_prompt(self, drawn: np.ndarray) -> np.ndarray | None:
        """Compress the prompt where it is longer than the budget."""
        n_queries, n = drawn.shape[1:]
        n_seen = np.arange(n - n_queries, n)[:, None] + 1
        self._low = (drawn < 1 / n_seen) & (np.arange(n) < n_seen)
        return self._compressed()

    def after_token(self, drawn: np.ndarray) -> np.ndarray | None:
        """Count, and compress where too many are held."""
        n_heads, n_queries, n = self._low.shape
        grown = np.zeros((n_heads, min(n_queries + 1, HISTORY_QUERIES), n + 1), bool)
        grown[:, :-1, :-1] = self._low[:, n_queries + 1 - grown.shape[1] :]
        grown[:, -1] = drawn < 1 / (n + 1)
        self._low = grown
        return self._compressed()

    def _compressed(self) -> np.ndarray | None:
        if self._low.shape[2] <= self._budget:
            return None
        n_recent = min(RECENT_TOKENS, self._n_kept)
        kept = _best(-self._low.sum(axis=1, dtype=np.float64), self._n_kept - n_recent, n_recent)
        self._low = np.take_along_axis(self._low, kept[:, None], axis=2)
        return kept


def _best(scores: np.ndarray, n_best: int, n_last: int, then_by: np.ndarray | None = None) -> np.ndarray:
    """Places of the last tokens and of the best of the others, in order; of equal ones the earlier stays."""
    n_heads, n = scores.shape
    n_last = min(n_last, n)
    keys = [-x[:, : n - n_last] for x in (then_by, scores) if x is not None]
    best = np.sort(np.lexsort(keys, axis=1)[:, :n_best], axis=1)
    return np.concatenate((best, np.broadcast_to(np.arange(n - n_last, n), (n_heads, n_last))), axis=1)


def evicted(
    heads: LayerHeads, of: Architecture, rotation: Rotation, rule: Keeper, n_prompt: int
) -> tuple[np.ndarray, int]:
    """Mixed values of a layer, and the most tokens that it holds after the prompt; tokens keep their positions."""
    query, key, value = turned(heads.query, rotation), _halved(turned(heads.key, rotation)), _halved(heads.value)
    mixed = np.empty_like(query)
    mixed[:, :n_prompt] = attend(query[:, :n_prompt], key[:, :n_prompt], value[:, :n_prompt], of)
    n_kv, n = key.shape[:2]
    grouped = query.reshape(n_kv, -1, *query.shape[1:]) * np.float32(of.query_scale)
    first = max(n_prompt - (n_prompt if rule.n_queries is None else rule.n_queries), 0)
    held_key, held_value = key[:, :n_prompt], value[:, :n_prompt]
    kept, most = rule.after_prompt(prompt_attention(grouped[:, :, first:n_prompt], held_key, of.score_cap)), 0
    for t in range(n_prompt, n):
        if kept is not None:
            held_key, held_value = (np.take_along_axis(x, kept[..., None], axis=1) for x in (held_key, held_value))
        held_key, held_value = (
            np.concatenate((x, new[:, t : t + 1]), axis=1) for x, new in ((held_key, key), (held_value, value))
        )
        weights = softmax(capped(grouped[:, :, t] @ held_key.swapaxes(1, 2), of.score_cap))
        mixed[:, t] = (weights @ held_value).reshape(len(query), -1)
        kept = rule.after_token(weights.sum(axis=1) / np.float32(weights.shape[1]))
        most = max(most, held_key.shape[1] if kept is None else kept.shape[1])
    return mixed, most


def prompt_attention(grouped: np.ndarray, key: np.ndarray, cap: float | None) -> np.ndarray:
    """Attention [KV heads, queries, tokens] that the last queries [KV heads, group, queries, head_dim], scaled, pay to
    the tokens before them, the mean of the group."""
    n_queries, n = grouped.shape[2], key.shape[1]
    is_hidden = np.arange(n) > np.arange(n - n_queries, n)[:, None]
    drawn = np.zeros((len(key), n_queries, n), np.float32)
    for i in range(grouped.shape[1]):
        scores = capped(grouped[:, i] @ key.swapaxes(1, 2), cap)
        scores[:, is_hidden] = -np.inf
        drawn += softmax(scores)
    return drawn / np.float32(grouped.shape[1])


def streamed(heads: LayerHeads, of: Architecture, rotation: Rotation, sinks: int, window: int) -> np.ndarray:
    """StreamingLLM (arXiv:2309.17453) 3.2: the first and the last tokens, with positions as in the cache, not the text.

    Keys are kept before RoPE, and turned by their place among those held.
    """
    n_q, n, head_dim = heads.query.shape
    n_kv, key, value = len(heads.key), _halved(heads.key), _halved(heads.value)
    mixed = np.empty((n_q, n, head_dim), np.float32)
    cos, sin = rotation.turns(0, min(sinks + window, n))
    for t in range(n):
        places = np.r_[: min(sinks, t + 1), max(sinks, t + 1 - window) : t + 1]
        held = len(places)
        keys = rotate(key[:, places], cos[:held], sin[:held])
        query = rotate(heads.query[:, t], cos[held - 1], sin[held - 1]).reshape(n_kv, -1, head_dim)
        scores = capped(query @ keys.swapaxes(1, 2) * np.float32(of.query_scale), of.score_cap)
        mixed[:, t] = (softmax(scores) @ value[:, places]).reshape(n_q, -1)
    return mixed


def _halved(x: np.ndarray) -> np.ndarray:
    """x as FP16 holds it."""
    halved: np.ndarray = x.astype(np.float16).astype(np.float32)
    return halved
