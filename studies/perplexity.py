"""Perplexity of a language model under a quantized KV cache, and how long its greedy continuations agree with FP16's.

prompt: all tokens at once, attention over the cache's keys and values. generation: a prompt whose attention sees its
own keys and values exactly, as serving systems do, then token by token through the streaming cache.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dse.quantizers import QuantizerSpec
from dse.transformer import caches
from dse.transformer.forward import nats, rotate
from studies.forward import forward, rotations
from studies.weights import BOS, ByteModel

#: greedy continuations are made of every second window
GREEDY_STEP = 2


@dataclass(frozen=True)
class Score:
    """Score of one model and method."""

    model: str
    method: str
    #: bits an element of the packed bytes when the text has ended
    stored_bits: float
    #: e to the mean nats a byte, generation
    perplexity: float
    #: the same with the whole text as a prompt that sees the cache
    prompt_perplexity: float
    #: share of the greedy tokens that are FP16's at the same place, and mean tokens before the first other one
    greedy_agreement_frac: float | None
    greedy_common_tokens: float | None
    n_scored_tokens: int
    #: standard error of ln(perplexity / FP16's), over the windows; None for one window
    log_ratio_se: float | None = None
    #: mean nats of each window less FP16's: methods lose on the same windows, so pairs are compared window by window
    log_ratios: tuple[float, ...] = ()


@dataclass(frozen=True)
class Windows:
    """Scored tokens [windows, 1 + n_prompt + n_generated], BOS first."""

    tokens: np.ndarray
    n_prompt: int

    @property
    def n_generated(self) -> int:
        """Tokens that are scored."""
        return self.tokens.shape[1] - self.n_prompt


def windows(text: np.ndarray, count: int, length: int) -> np.ndarray:
    """`count` stretches of text (uint8), evenly spread, as tokens int64 [count, length]: BOS and length - 1 bytes."""
    if len(text) < length - 1:
        raise ValueError(f"text of {len(text)} bytes: must have at least {length - 1}")
    starts = np.linspace(0, len(text) - (length - 1), count).astype(int)
    cut = np.stack([text[start : start + length - 1] for start in starts]).astype(np.int64)
    return np.concatenate((np.full((count, 1), BOS), cut), axis=1)


class _Recorder:
    """Keeps what a prompt gave to a layer's cache, to give it to other caches too."""

    before_rope = True

    def __init__(self) -> None:
        self.key = self.value = np.empty(0)

    def append(self, key: np.ndarray, value: np.ndarray) -> None:
        self.key, self.value = key, value

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        return self.key, self.value


class Prompted:
    """A prompt's keys and values, computed once for all methods: until it has ended they do not depend on the cache."""

    def __init__(self, model: ByteModel, tokens: np.ndarray) -> None:
        """tokens [windows, n_prompt]."""
        recorders = [_Recorder() for _ in model.layers]
        self.model = model
        self.n_tokens = tokens.shape[1]
        self.logits = forward(model, tokens, recorders, own=True, last_only=True)
        turns = rotations(model, 0, self.n_tokens)
        self._layers = [(recorder.key, rotate(recorder.key, *turns), recorder.value) for recorder in recorders]

    def every(self, step: int) -> "Prompted":
        """Every step-th window alone."""
        fewer = copy.copy(self)
        fewer.logits = self.logits[::step]
        fewer._layers = [(before[::step], after[::step], value[::step]) for before, after, value in self._layers]
        return fewer

    def fill(self, found: Sequence[Any]) -> None:
        """Append the prompt to empty caches, one a layer."""
        for cache, (before, after, value) in zip(found, self._layers, strict=True):
            cache.append(before if cache.before_rope else after, value)


def generated_nats(prompted: Prompted, found: Sequence[Any], tokens: np.ndarray) -> np.ndarray:
    """-ln p of tokens [windows, n] behind the prompt, fed one by one through caches that hold the prompt."""
    logits, nat = prompted.logits, np.empty(tokens.shape)
    for i in range(tokens.shape[1]):
        nat[:, i] = nats(logits[:, 0], tokens[:, i])
        if i + 1 < tokens.shape[1]:
            logits = forward(prompted.model, tokens[:, i : i + 1], found, first=prompted.n_tokens + i)
    return nat


def greedy(prompted: Prompted, found: Sequence[Any], n_tokens: int) -> np.ndarray:
    """The likeliest tokens one by one, int64 [windows, n_tokens], the first of equals; never BOS."""
    chosen = np.empty((prompted.logits.shape[0], n_tokens), np.int64)
    logits = prompted.logits
    for i in range(n_tokens):
        chosen[:, i] = logits[:, 0, :BOS].argmax(axis=-1)
        if i + 1 < n_tokens:
            logits = forward(prompted.model, chosen[:, i : i + 1], found, first=prompted.n_tokens + i)
    return chosen


def prompt_nats(model: ByteModel, found: Sequence[Any], tokens: np.ndarray, first_scored: int) -> np.ndarray:
    """-ln p of tokens[:, first_scored:] with all tokens at once and attention over what the caches give back."""
    logits = forward(model, tokens[:, :-1], found)
    return nats(logits[:, first_scored - 1 :], tokens[:, first_scored:])


def agreement(mine: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """(share of equal tokens, mean tokens before the first unequal one) of [windows, n]."""
    same = mine == theirs
    return float(same.mean()), float(np.cumprod(same, axis=1).sum(axis=1).mean())


class PerplexityBench:
    """Scores the methods of one model on the same windows; FP16's own results are kept to compare with."""

    def __init__(self, model: ByteModel, asked: Windows, known: caches.Calibration, n_greedy: int) -> None:
        self.model, self.asked, self.known, self.n_greedy = model, asked, known, n_greedy
        self._prompted = Prompted(model, asked.tokens[:, : asked.n_prompt])
        self._reference: tuple[np.ndarray, np.ndarray | None] | None = None

    def _run(self, spec: QuantizerSpec) -> tuple[np.ndarray, np.ndarray | None, float]:
        found = caches.caches(spec, self.model, self.known)
        self._prompted.fill(found)
        nat = generated_nats(self._prompted, found, self.asked.tokens[:, self.asked.n_prompt :])
        bits, chosen = caches.stored_bits(found), None
        if self.n_greedy:
            found = caches.caches(spec, self.model, self.known)
            fewer = self._prompted.every(GREEDY_STEP)
            fewer.fill(found)
            chosen = greedy(fewer, found, self.n_greedy)
        return nat, chosen, bits

    def score(self, spec: QuantizerSpec, fp16: QuantizerSpec) -> Score:
        """Score one method."""
        if self._reference is None:
            self._reference = self._run(fp16)[:2]
        base, base_chosen = self._reference
        nat, chosen, bits = self._run(spec)
        whole = prompt_nats(
            self.model, caches.caches(spec, self.model, self.known), self.asked.tokens, self.asked.n_prompt
        )
        equal: tuple[float | None, float | None] = (None, None)
        if chosen is not None and base_chosen is not None:
            equal = agreement(chosen, base_chosen)
        ratios = nat.mean(axis=1) - base.mean(axis=1)
        spread = float(ratios.std(ddof=1) / math.sqrt(len(ratios))) if len(ratios) > 1 else None
        return Score(
            model=self.model.name,
            method=spec.name,
            stored_bits=bits,
            perplexity=math.exp(nat.mean()),
            prompt_perplexity=math.exp(whole.mean()),
            greedy_agreement_frac=equal[0],
            greedy_common_tokens=equal[1],
            n_scored_tokens=nat.size,
            log_ratio_se=spread,
            log_ratios=tuple(ratios.tolist()),
        )
