"""Published scores of KV formats beside those of 16 bits in the same setup: the loss, and how sure it is.

The rows are dse/data/kv_scores.csv; only those count whose 16-bit score was printed for the same model and setup.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from dse import data, quantizers
from dse.core.errors import InputError, did_you_mean, show
from dse.specs import catalog
from kernels_ref import GGML_TYPES

DATA = "kv_scores.csv"
#: labels of `comparability` whose score may be set against the 16-bit one
COMPARABLE = ("same", "recovery")
#: kinds of tasks, in the order in which they are shown, with the words for them
FAMILIES = {
    "short": "short answers",
    "long_generation": "long reasoning",
    "long_context": "long context",
    "multimodal": "pictures",
    "perplexity": "perplexity",
    "kld": "divergence (nat)",
}
#: published names of formats that are quantizers here under another name
SAME = {"fp8_e4m3": "fp8", "fp8_e5m2": "fp8:format=e5m2"}
#: llama.cpp's types in the rows, which are of builds that did not rotate (before April 2026, or forks that leave it
#: out) unless they say so
UNROTATED = {name: f"{name}:rotate=off" for name in GGML_TYPES} | {f"{name} +rot": name for name in GGML_TYPES}
#: models whose keys and values stand in one layer of four: what a format costs them says nothing of others
HYBRID = re.compile(r"qwen3\.[568]|qwen3-next|nemotron-?h")
#: families of tasks that an accuracy loss is of
DROPS = ("short", "long_generation", "long_context")
#: of these the ones in which errors of keys and values add up
LONG = ("long_generation", "long_context")
#: half of the interval of a loss that is told
MAX_WITHIN = 0.02
#: standard error of a loss up to which a row counts in full: of the median of those that tell one
USUAL_ERROR = 0.04
#: rows of one source from which the spread over them is taken for an error
MIN_ROWS = 5
#: 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom (Fisher and Yates, table III); a normal one's
T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
NORMAL = 1.96
#: shares of samples that an accuracy may be printed in
_PERCENT = ("accuracy_percent", "pass@1_percent")
_FRACTION = ("accuracy", "exact_match")


@dataclass(frozen=True, kw_only=True)
class Score:
    """A published score as what a format loses: a share of the 16-bit score, or nats of divergence."""

    model: str
    format: str
    family: str
    source: str
    loss: float
    #: standard error of the loss; None where neither errors nor samples were printed
    error: float | None


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The accuracy loss of a format in one family of tasks, the rise of perplexity, or the divergence (nats): the mean
    over sources, and how sure it is."""

    family: str
    #: of the model asked for, of its kin, or of other models
    of: str
    models: tuple[str, ...]
    loss: float
    #: half of a 95 % interval; None where nothing tells how sure the mean is
    within: float | None
    n_rows: int
    n_sources: int

    @property
    def is_told(self) -> bool:
        """Whether the rows tell the loss to MAX_WITHIN, or that there surely is one."""
        return self.within is not None and (self.within <= MAX_WITHIN or self.loss > self.within)

    @property
    def verdict(self) -> str:
        """In words whether there is a drop, a rise or a divergence."""
        if self.within is None:
            return "not known: too few rows, no errors printed"
        word, up, down = _WORDS.get(self.family, ("drop", "drops", "gains"))
        if abs(self.loss) <= self.within:
            return f"no clear {word}"
        return up if self.loss > 0 else down


#: by family of tasks what its mean is, and what it does above 0 and below, where it is no accuracy loss
_WORDS = {"perplexity": ("rise", "rises", "falls"), "kld": ("divergence", "diverges", "diverges")}


@cache
def name_of(text: str) -> str:
    """The quantizer's name where a published format is one of ours, else its own name."""
    word = SAME.get(text.strip().lower(), text.strip())
    try:
        return quantizers.parse(word).name if quantizers.is_named(word) else word
    except InputError:
        return word


def format_of(keys: str, values: str) -> str:
    """The name of a row's format, "K a / V b" where keys and values differ."""
    key, value = (name_of(UNROTATED.get(name, name)) for name in (keys, values))
    return key if key == value else f"K {key} / V {value}"


def _loss(row: dict[str, str]) -> float | None:
    """A share of the 16-bit score, or nats; None for a metric that is neither."""
    score, metric = float(row["score"]), row["metric"]
    if metric == "kld_mean":
        return score
    if metric in ("recovery_percent", "same_top_percent"):
        return 1 - score / 100 if metric == "recovery_percent" else None
    if metric == "perplexity_change_percent":
        return score / 100
    if row["baseline_score"] in ("", "0") or metric == "kld_median":
        return None
    ratio = score / float(row["baseline_score"])
    return 1 - ratio if row["higher_is_better"] == "1" else ratio - 1


def _error(row: dict[str, str]) -> float | None:
    """Standard error of the loss, as printed, or of two shares of as many samples."""
    if row["metric"] == "kld_mean":
        return float(row["stderr"]) if row["stderr"] else None
    if not row["baseline_score"] or row["metric"] == "recovery_percent":
        return None
    score, baseline = float(row["score"]), float(row["baseline_score"])
    if row["stderr"] and row["baseline_stderr"]:
        return math.hypot(float(row["stderr"]), float(row["baseline_stderr"])) / baseline
    whole = 100.0 if row["metric"] in _PERCENT else 1.0 if row["metric"] in _FRACTION else None
    n_samples = re.fullmatch(r"(\d+)( questions)?", row["n_samples"])
    if whole is None or n_samples is None or int(n_samples[1]) < 2:
        return None
    variance = sum(share * (1 - share) for share in (score / whole, baseline / whole)) / int(n_samples[1])
    return math.sqrt(variance) / (baseline / whole) or None  # all right, or all wrong: no error to be had


@cache
def rows() -> tuple[dict[str, str], ...]:
    """Every published row, its fields as text."""
    return data.rows(DATA)


@cache
def published() -> tuple[Score, ...]:
    """The rows that may be set against 16 bits."""
    scores = []
    for row in rows():
        loss = _loss(row) if row["comparability"] in COMPARABLE else None
        if loss is not None:
            scores.append(
                Score(
                    model=row["model"],
                    format=format_of(row["kv_keys"], row["kv_values"]),
                    family=row["task_family"],
                    source=row["source"],
                    loss=loss,
                    error=_error(row),
                )
            )
    return tuple(scores)


def plain(model: str) -> str:
    """A model's name in small letters, without what separates a series from its number."""
    return re.sub(r"(?<=[a-z])[ -](?=\d)", "", model.lower()).replace(" ", "-")


def is_of(score: Score, model: str) -> bool:
    """True where a score is of this model, whatever follows its name (-Instruct)."""
    name, wanted = plain(score.model), plain(model)
    return name == wanted or name.startswith(f"{wanted}-")


def series(model: str) -> str:
    """The series of a model, such as llama3.1 of llama3.1-8b."""
    match = re.match(r"[a-z]+[\d.]*", plain(model))
    return match[0] if match else plain(model)


def _weight(score: Score) -> float:
    """Weigh a row: less than 1 where its error is above the usual one, as its test had few right answers."""
    return 1.0 if score.error is None or score.error <= USUAL_ERROR else (USUAL_ERROR / score.error) ** 2


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / math.fsum(weights)


def _spread(values: Sequence[float], weights: Sequence[float]) -> float:
    """Half of a 95 % interval of the weighted mean of these values, from how they spread."""
    t = T[len(values) - 2] if len(values) - 2 < len(T) else NORMAL
    mean = _mean(values, weights)
    return t * math.sqrt(_mean([(value - mean) ** 2 for value in values], weights) / (len(values) - 1))


def pooled(scores: Sequence[Score]) -> tuple[float, float | None]:
    """The mean loss over sources, each the mean of its rows, and half of its 95 % interval; rows of tests with few
    right answers weigh little, and so does a source that has no others.

    Of several sources it is their spread; of one the rows' own errors, else the spread of at least MIN_ROWS rows.
    """
    by_source: dict[str, list[Score]] = {}
    for score in scores:
        by_source.setdefault(score.source, []).append(score)
    means, sources = [], []
    for scores_of_source in by_source.values():
        weights = [_weight(score) for score in scores_of_source]
        means.append(_mean([score.loss for score in scores_of_source], weights))
        sources.append(min(1.0, math.fsum(weights)))
    weights = [_weight(score) for score in scores]
    within: float | None = None
    if len(means) > 1:
        within = _spread(means, sources)
    elif all(score.error is not None for score in scores):
        errors = (weight * (score.error or 0.0) for weight, score in zip(weights, scores, strict=True))
        within = NORMAL * math.hypot(*errors) / math.fsum(weights)
    elif len(scores) >= MIN_ROWS:
        within = _spread([score.loss for score in scores], weights)
    return _mean(means, sources), within


def losses(format: str, model: str | None = None) -> list[Loss]:
    """Find the losses of a format by family of tasks: on the model, else on its series, else on models of its kind.

    Raises InputError for a format that nobody published a score of, and for a model that neither the scores nor
    `dse list models` name.
    """
    name = name_of(format)
    scores = [score for score in published() if score.format == name]
    if not scores:
        known = {score.format for score in published()}
        raise InputError(f"quantizer = {show(format)}: no published score: {did_you_mean(name, known)}")
    if model is not None and not any(is_of(score, model) for score in published()):
        catalog.model(model)  # refuses a name that nobody knows
    per_family = [next(_by_scope(scores, family, model), None) for family in FAMILIES]
    return [loss for loss in per_family if loss is not None]


class Drop(NamedTuple):
    """The largest accuracy loss over families of tasks: the mean of one, and where the largest of all lies (95 %)."""

    loss: Loss
    #: None where no family tells an interval
    low: float | None
    high: float | None
    #: whether scores of long reasoning or long context tell one: short answers hide a loss
    is_of_long: bool


@cache
def drop(format: str, model: str) -> Drop | None:
    """The largest accuracy loss of a format over families of tasks; None where nothing was published.

    Of the model's own families alone, where one of them tells its drop to MAX_WITHIN, or that there surely is one. Else
    of each family the model's own mean, where it has an interval; else by the scores nearest to the model that tell it;
    else by all of models of its kind. A family without an interval counts only where no other has one. The low end is
    the highest of any family, the high end that of the largest mean or of a family that is told, whichever is higher.
    """
    scores = [score for score in published() if score.format == name_of(format)]
    per_family = []
    for family in DROPS:
        scopes = list(_by_scope(scores, family, model))
        likely = [row for row in scopes if row.is_told or (row.of == model and row.within is not None)]
        widest = [row for row in scopes[::-1] if row.within is not None]
        per_family += [*likely, *widest, *scopes][:1]
    is_of_long = any(row.family in LONG and row.within is not None for row in per_family)
    own = [row for row in per_family if row.of == model and row.within is not None]
    per_family = own if any(row.is_told for row in own) else per_family
    with_ends = [row for row in per_family if row.within is not None]
    largest = max(with_ends or per_family, key=lambda row: row.loss, default=None)
    if largest is None:
        return None
    lows = [row.loss - row.within for row in with_ends if row.within is not None]
    highs = [row.loss + row.within for row in with_ends if row.within is not None and (row.is_told or row == largest)]
    return Drop(largest, max(lows, default=None), max(highs, default=None), is_of_long)


def _by_scope(scores_of_format: Sequence[Score], family: str, model: str | None) -> Iterator[Loss]:
    """Losses in a family of tasks: of the model, of its series, of its kind, each where there are scores."""
    scopes: list[tuple[str, Callable[[Score], bool]]] = [("all models", lambda score: True)]
    if model is not None:
        is_hybrid = bool(HYBRID.search(plain(model)))
        scopes = [
            (model, lambda score: is_of(score, model)),
            (f"{series(model)} models", lambda score: series(score.model) == series(model)),
            (
                "hybrid models" if is_hybrid else "other models",
                lambda score: bool(HYBRID.search(plain(score.model))) == is_hybrid,
            ),
        ]
    for of, belongs in scopes:
        scores = [score for score in scores_of_format if score.family == family and belongs(score)]
        if scores:
            loss, within = pooled(scores)
            yield Loss(
                family=family,
                of=of,
                models=tuple(sorted({score.model for score in scores})),
                loss=loss,
                within=within,
                n_rows=len(scores),
                n_sources=len({score.source for score in scores}),
            )
