"""Cost of a KV format: the accuracy loss as published of the model or its like, and, which is another thing, the rise
of perplexity of the sample model."""

from collections.abc import Mapping
from typing import Any

from dse.model.kv_layout import KvPlan
from dse.specs import published_scores, sample_scores
from dse.specs.published_scores import Drop
from dse.specs.sample_scores import SampleScore

NAMES = (
    "sample_kl_nats",
    "sample_perplexity_frac",
    "score_drop_frac",
    "score_drop_low_frac",
    "score_drop_high_frac",
    "score_drop_of",
)
#: where an accuracy loss comes from
EXACT, PUBLISHED = "16 bits", "published"


def sample_score(plan: KvPlan) -> SampleScore | None:
    """Cost of the format to the sample model; None where not measured, and of two formats for keys and values."""
    key, value = plan.key_quantizer, plan.value_quantizer
    return sample_scores.of(key.name) if key.name == value.name else None


def published_drop(plan: KvPlan) -> Drop | None:
    """The largest published accuracy loss of the format, by the scores nearest to the model; None where there is none,
    and of two formats for keys and values."""
    key, value = plan.key_quantizer, plan.value_quantizer
    return published_scores.drop(key.name, plan.model.name) if key.name == value.name else None


def has_long_scores(plan: KvPlan) -> bool:
    """Whether the accuracy loss is known of long answers or contexts too; of 16 bits there is none."""
    drop = published_drop(plan)
    is_exact = plan.key_quantizer.family.exact and plan.value_quantizer.family.exact
    return is_exact or bool(drop and drop.is_of_long)


def quality(plan: KvPlan) -> dict[str, Any]:
    """Divergence and rise of perplexity on the sample model, and the published accuracy loss, its interval and where
    it comes from."""
    if plan.key_quantizer.family.exact and plan.value_quantizer.family.exact:
        return dict(zip(NAMES, (*(0.0,) * 5, EXACT), strict=True))
    score, drop = sample_score(plan), published_drop(plan)
    of_sample = (None, None) if score is None else (score.kl_nats.mean, score.perplexity_frac.mean)
    if drop is None:
        return dict(zip(NAMES, (*of_sample, None, None, None, None), strict=True))
    of = f"{PUBLISHED}: {drop.loss.of}, {published_scores.FAMILIES[drop.loss.family]}"
    return dict(zip(NAMES, (*of_sample, max(drop.loss.loss, 0.0), drop.low, drop.high, of), strict=True))


def judged(result: Mapping[str, Any], most: float) -> bool | None:
    """Whether the accuracy loss is at most `most`, of results or a row of a table; None where that cannot be told: its
    interval lies on both sides, or nobody published one."""
    low, high = result["score_drop_low_frac"], result["score_drop_high_frac"]
    if low is None or high is None:
        return None
    return True if high <= most else False if low > most else None


def drop_text(result: Mapping[str, Any]) -> str:
    """The accuracy loss with half of its 95 % interval, as people read it; - where nobody published one."""
    drop, high = result["score_drop_frac"], result["score_drop_high_frac"]
    if drop is None:
        return "-"
    within = f" ± {100 * (high - drop):.2g}" if high is not None and high > drop else ""
    return f"{100 * drop:.1f}{within} %"


def rise_text(result: Mapping[str, Any]) -> str:
    """The rise of perplexity on the sample model as people read it; - where it was not measured."""
    rise = result["sample_perplexity_frac"]
    return "-" if rise is None else f"{100 * rise:+.1f} %" if rise else "0.0 %"
