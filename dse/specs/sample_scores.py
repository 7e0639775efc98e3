"""Perplexity, divergence and agreement that KV formats cost SmolLM2-135M, each in the loop of the model on four texts.

`python -m scripts.score_sample` makes the tables; their columns are described in dse/data/README.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from dse import data
from dse.core.errors import InputError, did_you_mean, show
from dse.specs import tokens
from dse.specs.oaken_grid import SAMPLE

SCORES, LAYERS, EVICTION = "smollm2.scores.csv", "smollm2.layers.csv", "smollm2.eviction.csv"


class OverTexts(NamedTuple):
    """The mean over texts, and the least and the greatest of one."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class SampleScore:
    """Cost of a format to the language model that ships, against 16 bits, over the texts."""

    #: mean sum p ln(p / p'), p of 16 bits
    kl_nats: OverTexts
    #: perplexity over that of 16 bits, less 1
    perplexity_frac: OverTexts
    #: share of tokens whose likeliest successor is that of 16 bits
    top1_agreement_frac: OverTexts
    n_texts: int


@cache
def rows() -> tuple[dict[str, str], ...]:
    """A row a text, a format and its quantized sides, fields as text."""
    return data.rows(SCORES)


@cache
def layers() -> tuple[dict[str, str], ...]:
    """A row a format and layer: the relative error of the attention output on each text."""
    return data.rows(LAYERS)


@cache
def evictions() -> tuple[dict[str, str], ...]:
    """A row a text and a token policy or a format, scored behind a prompt, fields as text."""
    return data.rows(EVICTION)


def by_text(method: str) -> list[dict[str, Any]]:
    """Scores of a format or a token policy by its canonical name, a row a text and its quantized sides.

    Raises InputError for one that was not measured.
    """
    names = ("stored_bits", "perplexity", "log_ratio", "log_ratio_se", "kl_nats", "top1_agreement_frac")
    is_policy = tokens.is_policy(method)
    table = [row for row in evictions() if tokens.is_policy(row["method"])] if is_policy else rows()
    matching = [row for row in table if row["method"] == method]
    if not matching:
        known = dict.fromkeys(row["method"] for row in table)
        raise InputError(f"quantizer = {show(method)}: not measured on {SAMPLE}: {did_you_mean(method, known)}")
    return [
        {"text": row["text"], "sides": row.get("sides", "both")}
        | {name: float(row[name]) for name in names}
        | {"n_scored_tokens": int(row["n_scored_tokens"])}
        for row in matching
    ]


def worst_layer(method: str) -> tuple[int, float, int, float]:
    """(layer with the least error of the attention output, that error, layer with the greatest, that error).

    Mean over texts, keys and values quantized.
    """
    matching = [row for row in layers() if row["method"] == method]
    texts = [name for name in matching[0] if name not in ("method", "layer")]
    error = {int(row["layer"]): math.fsum(float(row[name]) for name in texts) / len(texts) for row in matching}
    least, greatest = min(error, key=error.__getitem__), max(error, key=error.__getitem__)
    return least, error[least], greatest, error[greatest]


@cache
def of(method: str) -> SampleScore | None:
    """Find what a format by its canonical name costs; None where it was not measured."""
    matching = [row for row in rows() if (row["method"], row["sides"]) == (method, "both")]
    if not matching:
        return None
    ratio = _over_texts([float(row["log_ratio"]) for row in matching])
    return SampleScore(
        kl_nats=_over_texts([float(row["kl_nats"]) for row in matching]),
        perplexity_frac=OverTexts(*(math.expm1(value) for value in ratio)),
        top1_agreement_frac=_over_texts([float(row["top1_agreement_frac"]) for row in matching]),
        n_texts=len(matching),
    )


def _over_texts(values: Sequence[float]) -> OverTexts:
    return OverTexts(math.fsum(values) / len(values), min(values), max(values))
