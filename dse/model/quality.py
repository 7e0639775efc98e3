"""Cost of a KV format in scores: as published of the model or its like, else as measured on the sample model."""

from typing import Any

from dse.model.kv_layout import KvPlan
from dse.specs import published_scores, sample_scores
from dse.specs.oaken_grid import SAMPLE
from dse.specs.published_scores import Loss
from dse.specs.sample_scores import SampleScore

NAMES = ("sample_kl_nats", "sample_perplexity_frac", "score_drop_frac", "score_drop_of")
#: where a drop of scores comes from
EXACT, PUBLISHED, PERPLEXITY = "16 bits", "published", "measured"


def sample_score(plan: KvPlan) -> SampleScore | None:
    """Cost of the format to the sample model; None where not measured, and of two formats for keys and values."""
    key, value = plan.key_quantizer, plan.value_quantizer
    return sample_scores.of(key.name) if key.name == value.name else None


def published_drop(plan: KvPlan) -> Loss | None:
    """The largest published loss of the format by the scores nearest to the model; one that cannot be told from chance
    only where nothing was measured."""
    key, value = plan.key_quantizer, plan.value_quantizer
    if key.name != value.name:
        return None
    return published_scores.drop(key.name, plan.model.name, sample_scores.of(key.name) is not None)


def quality(plan: KvPlan) -> dict[str, Any]:
    """Divergence and perplexity on the sample model, and the drop of scores with where it comes from."""
    if plan.key_quantizer.family.exact and plan.value_quantizer.family.exact:
        return dict(zip(NAMES, (0.0, 0.0, 0.0, EXACT), strict=True))
    score, said = sample_score(plan), published_drop(plan)
    kl_nats = None if score is None else score.kl_nats.mean
    drop = perplexity_frac = None if score is None else score.perplexity_frac.mean
    of = None if score is None else f"{PERPLEXITY}: perplexity of {SAMPLE}"
    if said is not None:
        drop, of = said.loss, f"{PUBLISHED}: {said.of}, {published_scores.FAMILIES[said.family]}"
    at_least_0 = None if drop is None else max(drop, 0.0)
    return dict(zip(NAMES, (kl_nats, perplexity_frac, at_least_0, of), strict=True))
