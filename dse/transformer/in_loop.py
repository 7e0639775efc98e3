"""Perplexity, divergence and agreement of a language model whose cache is quantized as it is written.

One pass over the text does for all tokens: what a packed token decodes to does not depend on later ones, so a query
sees decoded those that are packed when it comes, and the others in 16 bits (`caches.decoded`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dse import quantizers
from dse.core.errors import InputError, LimitError, did_you_mean, show
from dse.core.progress import Progress
from dse.quantizers import QuantizerSpec
from dse.specs import tokens as token_policies
from dse.specs.tokens import TokenPolicy
from dse.transformer import caches, eviction
from dse.transformer.checkpoint import Architecture, Checkpoint
from dse.transformer.forward import (
    Attention,
    LayerHeads,
    PackedTokens,
    attend,
    exact,
    head_of,
    hidden_states,
    log_softmax,
    logits_of,
    nats,
    turned,
)

SIDES = ("both", "key", "value")
#: formats that are scored where none is named: of vLLM, with a scale or one per token and head, and of three papers
METHODS = ("fp8", "int8_per_token_head", "int4_per_token_head", "oaken", "nqkv", "sinkq")
#: tokens whose logits are in memory at a time
BLOCK_TOKENS = 64
#: stretches of the text whose means give the standard error
N_STRETCHES = 8
#: runs, and those that have their hidden states in memory at a time
MAX_RUNS, RUNS_AT_ONCE = 10_000, 64


@dataclass(frozen=True)
class Scoring:
    """Methods, sides and layers of a cache that are quantized, one after the other."""

    #: quantizers and token policies
    methods: Sequence[str]
    sides: Sequence[str] = ("both",)
    #: None: all
    layers: Sequence[int] | None = None
    #: each of the layers by itself
    by_layer: bool = False
    #: first tokens of the text that are not scored: the prompt that token policies evict from
    prompt_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class LoopScore:
    """Score of a model and a format of its cache, on a text; differences are to 16 bits."""

    model: str
    method: str
    #: the quantized sides, and how many layers have them; the rest is in 16 bits
    sides: str
    n_quantized_layers: int
    #: where each layer is quantized by itself: which; else None
    layer: int | None
    #: bits an element of keys and values of all layers when the text has ended; of a token policy 16 times the share of
    #: the tokens that are held at most behind the prompt
    stored_bits: float
    perplexity: float
    #: mean of sum p ln(p / p'), p of 16 bits
    kl_nats: float
    #: share of the tokens whose likeliest successor is that of 16 bits
    top1_agreement_frac: float
    #: mean ln(p / p') of the text's own tokens, that is ln of the ratio of perplexities, and its standard error
    log_ratio: float
    log_ratio_se: float
    n_scored_tokens: int


@dataclass(frozen=True, kw_only=True)
class LoopRun:
    """A pass over a text with a cache for each layer; a run serves once."""

    method: str
    sides: str = "both"
    #: empty caches, by layer
    caches: list[Any]
    #: evicts tokens, in place of caches that quantize
    policy: TokenPolicy | None = None
    layer: int | None = None
    #: bits an element of each layer, once it has run
    bits: list[float] = field(default_factory=list)


def scores(
    model: Checkpoint, tokens: np.ndarray, calibration: np.ndarray, scoring: Scoring, progress: Progress
) -> list[LoopScore]:
    """Score 16 bits, then each method on each side, on tokens [n].

    calibration: tokens whose keys and values give Oaken's thresholds and constants of other methods. Raises InputError
    for unknown methods, sides and layers before anything is run.
    """
    (specs, chosen), sides = checked(model, scoring), scoring.sides
    places: list[int | None] = [*sorted(chosen)] if scoring.by_layer else [None]
    if len(specs) * len(sides) * len(places) > MAX_RUNS:
        n_runs = len(specs) * len(sides) * len(places)
        raise InputError(f"methods times sides and layers = {n_runs:,}: must be 1 to {MAX_RUNS:,}: name fewer")
    known = calibrate(model, calibration, progress)
    policies = policies_of(scoring)
    wanted: list[tuple[QuantizerSpec | TokenPolicy, str, int | None]] = [(policy, "both", None) for policy in policies]
    wanted += [(spec, side, place) for spec in specs for side in dict.fromkeys(sides) for place in places]
    scored: list[LoopScore] = []
    for start in range(0, len(wanted), RUNS_AT_ONCE):
        runs = [exact_run(model.n_layers)]
        for spec, side, place in wanted[start : start + RUNS_AT_ONCE]:
            if isinstance(spec, TokenPolicy):
                runs.append(LoopRun(method=spec.name, caches=[], policy=spec))
                continue
            run_caches = _chosen(caches.caches(spec, model, known), model, side, chosen if place is None else {place})
            runs.append(LoopRun(method=spec.name, sides=side, caches=run_caches, layer=place))
        scores_by_run = token_scores(model, tokens, runs, progress, scoring.prompt_tokens)
        scored += [_score(model, run, scores_by_run, i, len(chosen)) for i, run in enumerate(runs) if i or not start]
    return scored


@dataclass(frozen=True)
class TokenScores:
    """Scores of each token behind the first scored, [runs, tokens]; of all but the first run against it."""

    #: -ln p of the text's own token
    nats: np.ndarray
    #: sum p ln(p / p'), p of the first run
    kl_nats: np.ndarray
    #: whether the likeliest token is that of the first run
    is_same: np.ndarray


def exact_run(n_layers: int) -> LoopRun:
    """A run with keys and values in 16 bits."""
    return LoopRun(method="fp16", caches=_exact_caches(n_layers))


def token_scores(
    model: Checkpoint, tokens: np.ndarray, runs: Sequence[LoopRun], progress: Progress, n_prompt: int = 0
) -> TokenScores:
    """Pass over tokens [n] with each run's caches or policy; tokens told by the prompt alone are not scored."""
    states = _states(model, tokens, runs, progress, n_prompt)
    return _scored(model, tokens[n_prompt:], [state[n_prompt:] for state in states], progress)


def token_nats(model: Checkpoint, tokens: np.ndarray, runs: Sequence[LoopRun], progress: Progress) -> np.ndarray:
    """-ln p of each token behind the first, [runs, tokens - 1], with each run's caches."""
    head, losses = head_of(model), []
    for states in _states(model, tokens, runs, progress):
        parts = [slice(start, start + BLOCK_TOKENS) for start in range(0, len(tokens) - 1, BLOCK_TOKENS)]
        blocks = [nats(logits_of(model, states[:-1][part], head), tokens[1:][part]) for part in parts]
        losses.append(np.concatenate(blocks))
    return np.array(losses)


def _states(
    model: Checkpoint, tokens: np.ndarray, runs: Sequence[LoopRun], progress: Progress, n_prompt: int = 0
) -> list[np.ndarray]:
    of, starts = model.architecture, [_first_own(run) for run in runs]
    for run, start in zip(runs[1:], starts[1:], strict=True):
        run.bits.extend([16.0] * start)
    attentions = [
        eviction.attention(of, run.policy, n_prompt, run.bits) if run.policy else _quantized(of, run) for run in runs
    ]
    return hidden_states(model, tokens, attentions, progress, "running", starts)


def canonical(method: str) -> str:
    """The full name of a quantizer or a token policy. Raises InputError."""
    return token_policies.parse(method).name if token_policies.is_policy(method) else quantizers.parse(method).name


def policies_of(scoring: Scoring) -> list[TokenPolicy]:
    """Its token policies, without repetitions."""
    policies = map(token_policies.parse, filter(token_policies.is_policy, scoring.methods))
    return list({policy.name: policy for policy in policies}.values())


def checked(model: Checkpoint, scoring: Scoring) -> tuple[list[QuantizerSpec], set[int]]:
    """Methods without repetitions, and the layers chosen. Raises InputError for what cannot be scored."""
    of, sides = model.architecture, scoring.sides
    named = [quantizers.parse(method) for method in scoring.methods if not token_policies.is_policy(method)]
    specs, policies = list({spec.name: spec for spec in named}.values()), policies_of(scoring)
    for policy in policies:
        eviction.checked(of, policy)
        if tuple(sides) != ("both",) or scoring.layers is not None or scoring.by_layer:
            text = "takes neither sides nor layers: tokens leave keys and values of every layer"
            raise InputError(f"policies = {show(policy.name)}: {text}")
    for side in sides:
        if side not in SIDES:
            raise InputError(f"sides = {show(side)}: {did_you_mean(side, SIDES)}")
    if not 1 <= len(policies) + len(specs) * len(sides) <= MAX_RUNS:
        raise InputError(f"methods times sides = {len(specs) * len(sides):,}: must be 1 to {MAX_RUNS:,}: name fewer")
    chosen = set(range(of.n_layers) if scoring.layers is None else scoring.layers)
    for layer in sorted(chosen):
        if not 0 <= layer < of.n_layers:
            raise InputError(f"only-layers = {layer}: {model.name} has layers 0 to {of.n_layers - 1}")
    for spec in specs:
        if not spec.layers and spec.family.name not in caches.cached():
            raise InputError(f"quantizer = {show(spec.name)}: has no cache: known: {', '.join(caches.cached())}")
    return specs, chosen


def calibrate(model: Checkpoint, tokens: np.ndarray, progress: Progress) -> caches.Calibration:
    """Keys before and after RoPE and values of tokens [n], exact, in FP16."""
    of, kept = model.architecture, list[tuple[np.ndarray, ...]]()
    attention = exact(of)

    def keep(layer: int, heads: LayerHeads) -> np.ndarray:
        key = turned(heads.key, of.rotations[layer])
        kept.append(tuple(_fp16(layer, x)[None] for x in (heads.key, key, heads.value)))
        return attention(layer, heads)

    hidden_states(model, tokens, [keep], progress, "calibrating")
    before, key, value = zip(*kept, strict=True)
    return caches.Calibration(before, key, value)


def _fp16(layer: int, x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        kept = x.astype(np.float16)
    if not np.isfinite(kept).all():
        raise LimitError(f"layer {layer}: {float(np.abs(x).max()):g} in its cache: kernels take FP16, at most 65504")
    return kept


def _exact_caches(n_layers: int) -> list[Any]:
    return [caches.FloatCache("fp16") for _ in range(n_layers)]


def _chosen(packed: Sequence[Any], model: Checkpoint, sides: str, layers: set[int]) -> list[Any]:
    """These caches in the chosen layers and on the chosen sides, 16 bits elsewhere."""
    mixed: list[Any] = []
    for layer, (cache, plain) in enumerate(zip(packed, _exact_caches(len(packed)), strict=True)):
        if layer not in layers:
            mixed.append(plain)
        elif sides == "both":
            mixed.append(cache)
        else:
            key, value = (cache, plain) if sides == "key" else (plain, cache)
            mixed.append(caches.SplitCache(key, value, model.rotation(layer)))
    return mixed


def _quantized(of: Architecture, run: LoopRun) -> Attention:
    """Attention over what each query sees of a run's cache."""

    def attention(layer: int, heads: LayerHeads) -> np.ndarray:
        cache, rotation = run.caches[layer], of.rotations[layer]
        run.caches[layer] = None  # a cache is used once
        query, n = turned(heads.query, rotation), heads.key.shape[1]
        key_fp16 = _fp16(layer, heads.key if cache.before_rope else turned(heads.key, rotation))
        value = _fp16(layer, heads.value)
        packed = None
        if isinstance(cache, caches.FloatCache):
            run.bits.append(cache.stored_bits)
        else:
            caches.show_queries(cache, query * np.float32(of.query_scale))
            seen = caches.decoded(cache, key_fp16[None], value[None])
            run.bits.append(cache.stored_bits)
            packed = PackedTokens(
                key=_after(seen.key[0].astype(np.float32), cache.before_rope, rotation),
                value=seen.value[0].astype(np.float32),
                n_key=_counts(seen.n_key, n),
                n_value=_counts(seen.n_value, n),
            )
        key = _after(key_fp16.astype(np.float32), cache.before_rope, rotation)
        return attend(query, key, value.astype(np.float32), of, of.windows[layer], packed)

    return attention


def _after(key: np.ndarray, is_before: bool, rotation: Any) -> np.ndarray:
    return turned(key, rotation) if is_before else key


def _counts(count: Callable[[int], int], n: int) -> np.ndarray:
    """Packed tokens when i + 1 tokens are there: query i sees its own."""
    return np.array([count(i + 1) for i in range(n)])


def _first_own(run: LoopRun) -> int:
    """The first layer whose cache is not one of 16 bits."""
    if run.policy:
        return 0
    quantized = (i for i, cache in enumerate(run.caches) if getattr(cache, "kind", "") != "fp16")
    return next(quantized, len(run.caches))


def _scored(model: Checkpoint, tokens: np.ndarray, states: Sequence[np.ndarray], progress: Progress) -> TokenScores:
    head, n = head_of(model), len(tokens) - 1
    nat, divergence = np.empty((len(states), n)), np.empty((len(states), n))
    same = np.empty((len(states), n), bool)
    blocks = range(0, n, BLOCK_TOKENS)
    with progress(blocks, label="scoring", length=len(blocks)) as shown:
        for start in shown:
            part, reference = slice(start, min(start + BLOCK_TOKENS, n)), np.empty(0)
            for i, hidden in enumerate(states):
                log_p = log_softmax(logits_of(model, hidden[part], head))
                reference = log_p if i == 0 else reference
                nat[i, part] = -np.take_along_axis(log_p, tokens[1:][part, None], axis=1)[:, 0]
                divergence[i, part] = (np.exp(reference) * (reference - log_p)).sum(axis=1) if i else 0
                same[i, part] = log_p.argmax(axis=1) == reference.argmax(axis=1)
    return TokenScores(nat, divergence, same)


def _score(model: Checkpoint, run: LoopRun, scores_by_token: TokenScores, i: int, n_layers: int) -> LoopScore:
    nat, off = scores_by_token.nats[i], scores_by_token.nats[i] - scores_by_token.nats[0]
    means = [float(part.mean()) for part in np.array_split(off, N_STRETCHES) if part.size]
    spread = float(np.std(means, ddof=1) / math.sqrt(len(means))) if len(means) > 1 else 0.0
    return LoopScore(
        model=model.name,
        method=run.method,
        sides=run.sides,
        n_quantized_layers=0 if run.method == "fp16" else n_layers if run.layer is None else 1,
        layer=run.layer,
        stored_bits=float(np.mean(run.bits)),
        perplexity=math.exp(nat.mean()),
        kl_nats=float(scores_by_token.kl_nats[i].mean()),
        top1_agreement_frac=float(scores_by_token.is_same[i].mean()),
        log_ratio=float(off.mean()),
        log_ratio_se=spread,
        n_scored_tokens=len(nat),
    )


def rows(loop_scores: Sequence[LoopScore]) -> list[dict[str, Any]]:
    """A row a method and sides, for JSON and CSV."""
    return [asdict(score) for score in loop_scores]


def readable(scores: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with as many digits as say something."""
    digits = {
        "stored_bits": 2,
        "perplexity": 3,
        "kl_nats": 5,
        "top1_agreement_frac": 4,
        "log_ratio": 5,
        "log_ratio_se": 5,
    }
    return [
        {name: f"{value:.{digits[name]}f}" if name in digits else value for name, value in row.items()}
        for row in scores
    ]
