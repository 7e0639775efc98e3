"""Does the divergence measured on the sample model rank KV formats as published scores do, by family of tasks?"""

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dse.specs import published_scores, sample_scores

#: families of tasks that are ranked: of scores, and perplexities
FAMILIES = (*published_scores.DROPS, "perplexity")
#: half of a 95 % interval of a normal one, in standard errors
_NORMAL = 1.96
#: variance of the inverse hyperbolic tangent of a rank correlation times (n - 3): Fieller, Hartley and Pearson 1957
_VARIANCE = 1.06


@dataclass(frozen=True, kw_only=True)
class RankAgreement:
    """Agreement of the sample's divergence with published losses in one family of tasks."""

    family: str
    n_formats: int
    #: rank correlation over formats, each the mean over its sources, and its 95 % interval; nan under 4 formats
    rank_correlation: float
    low: float
    high: float
    #: pairs of formats scored by one source on one model, and those in the order of the divergence
    n_pairs: int
    n_alike: int


def agreement(family: str) -> RankAgreement:
    """Compare divergences with drops of scores of a family of `FAMILIES`, or rises of perplexity."""
    from scipy import stats

    scores = [one for one in published_scores.published() if one.family == family and sample_scores.of(one.format)]
    losses = {
        name: published_scores.pooled([one for one in scores if one.format == name])[0] for name in _formats(scores)
    }
    found = math.nan
    if len(losses) > 3:
        found = float(stats.spearmanr([_kl_nats(name) for name in losses], list(losses.values())).statistic)
    low, high = _interval(found, len(losses)) if len(losses) > 3 else (math.nan, math.nan)
    n_pairs, n_alike = _pairs(scores)
    return RankAgreement(
        family=family,
        n_formats=len(losses),
        rank_correlation=found,
        low=low,
        high=high,
        n_pairs=n_pairs,
        n_alike=n_alike,
    )


def _interval(correlation: float, n: int) -> tuple[float, float]:
    """95 % interval of a rank correlation of n pairs."""
    inside = min(max(correlation, -0.999), 0.999)
    half = _NORMAL * math.sqrt(_VARIANCE / (n - 3))
    return math.tanh(math.atanh(inside) - half), math.tanh(math.atanh(inside) + half)


def _formats(scores: list[published_scores.Score]) -> list[str]:
    return list(dict.fromkeys(one.format for one in scores))


def _kl_nats(method: str) -> float:
    found = sample_scores.of(method)
    return found.kl_nats.mean if found else math.nan


def _pairs(scores: list[published_scores.Score]) -> tuple[int, int]:
    """(pairs of formats with unequal losses in one source on one model, those in the order of the divergence)."""
    of_model: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in scores:
        of_model[one.source, one.model][one.format].append(one.loss)
    n_pairs = n_alike = 0
    for losses in of_model.values():
        for this, other in combinations(losses, 2):
            difference = float(np.mean(losses[this]) - np.mean(losses[other]))
            n_pairs += difference != 0
            n_alike += difference * (_kl_nats(this) - _kl_nats(other)) > 0
    return n_pairs, n_alike


def shown() -> str:
    """The agreement as a Markdown table, a row a family of tasks, and all pairs together."""
    found = [agreement(family) for family in FAMILIES]
    lines = ["| tasks | formats | rank correlation (95 %) | pairs alike |", "|---|---|---|---|"]
    for one in found:
        correlation = f"{one.rank_correlation:.2f} ({one.low:.2f} to {one.high:.2f})"
        tasks = published_scores.FAMILIES[one.family]
        lines.append(f"| {tasks} | {one.n_formats} | {correlation} | {one.n_alike} of {one.n_pairs} |")
    alike, pairs = sum(one.n_alike for one in found), sum(one.n_pairs for one in found)
    return "\n".join([*lines, f"| all | | | {alike} of {pairs} |"])
