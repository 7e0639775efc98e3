"""Fewer tokens instead of fewer bits: which tokens a layer stores and which of them a decode step reads.

A policy is a name with parameters, as a quantizer is: `streaming:sinks=4,window=1020`, `snapkv:share=0.16`. For a
prompt it gives plain numbers (`TokenLimits`), which the plan puts beside a layer's own window; the smaller holds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

from dse.formulas import tokens
from dse.quantizers.base import Param
from dse.quantizers.registry import named

#: stands for "no limit": beyond any length that the tool accepts
NO_LIMIT = 2**61
_MANY = 999_999_999


@dataclass(frozen=True)
class TokenLimits:
    """What a policy means for one prompt, in tokens; see dse/formulas/tokens.py. The defaults are full attention."""

    window_tokens: int = NO_LIMIT
    read_limit_tokens: int = NO_LIMIT
    prompt_kept_tokens: int = NO_LIMIT
    dropped_tokens: int = 0
    #: tokens that a token of the prompt looks back at
    prompt_window_tokens: int = NO_LIMIT
    #: kept and read for every stored token of layers that read only some; and what scoring one of them takes
    index_bits: int = 0
    index_flops: int = 0

    def entered(self, n_tokens: int) -> int:
        """Tokens that have come into a layer's cache at a context of `n_tokens`."""
        return tokens.entered_tokens(n_tokens, self.prompt_kept_tokens, self.dropped_tokens)

    def length_of(self, entered: int) -> int:
        """Shortest context at which `entered` tokens have come in."""
        return tokens.length_of_entered(entered, self.prompt_kept_tokens, self.dropped_tokens)

    @property
    def keeps_all(self) -> bool:
        """True where every token stays stored, however few of them a step reads."""
        return self.window_tokens == NO_LIMIT and not self.dropped_tokens

    @cached_property
    def ends(self) -> tuple[int, int]:
        """Contexts between which nothing comes in, since the prompt's tokens beyond are dropped."""
        return self.prompt_kept_tokens, self.prompt_kept_tokens + self.dropped_tokens


FULL = TokenLimits()


@dataclass(frozen=True)
class TokenFamily:
    """A policy with its parameters: `limits(values, input_tokens)` gives its numbers, `source` where they come from.

    `validity` says what the numbers leave out; it is shown with every result.
    """

    name: str
    title: str
    source: str
    limits: Callable[[Mapping[str, Any], int], TokenLimits]
    params: tuple[Param, ...] = ()
    problem: Callable[[Mapping[str, Any]], str] = lambda values: ""
    validity: str = ""


@dataclass(frozen=True)
class TokenPolicy:
    """A family with values for all of its parameters; `name` is its canonical text."""

    family: TokenFamily
    values: tuple[tuple[str, Any], ...]
    name: str

    def limits(self, input_tokens: int) -> TokenLimits:
        """The numbers of the policy for prompts of `input_tokens`."""
        return self.family.limits(dict(self.values), input_tokens)

    @cached_property
    def follows_prompt(self) -> bool:
        """True where the numbers depend on the prompt's length."""
        return self.limits(1) != self.limits(NO_LIMIT)


def _capped(window: int) -> TokenLimits:
    return TokenLimits(window_tokens=window, prompt_window_tokens=window)


def _evicted(input_tokens: int, kept: int, window: int = NO_LIMIT) -> TokenLimits:
    """All but `kept` tokens of the prompt leave once it is computed; `window` holds for what follows."""
    if kept >= input_tokens:
        return TokenLimits(window_tokens=window)
    return TokenLimits(window_tokens=window, prompt_kept_tokens=kept, dropped_tokens=input_tokens - kept)


def _h2o(values: Mapping[str, Any], input_tokens: int) -> TokenLimits:
    budget = max(int(values["heavy"] * input_tokens) + int(values["recent"] * input_tokens), 1)
    return _evicted(input_tokens, budget, budget if values["evict"] == "always" else NO_LIMIT)


def _snapkv(values: Mapping[str, Any], input_tokens: int) -> TokenLimits:
    share = values["share"]
    return _evicted(input_tokens, max(int(share * input_tokens), 1) if share else values["budget"])


def _sparse(values: Mapping[str, Any], input_tokens: int) -> TokenLimits:
    dim = values["index_dim"]
    bits = tokens.index_bits(dim, values["index_bits"], values["index_scale_bits"] if dim else 0)
    return TokenLimits(
        read_limit_tokens=values["k"], prompt_window_tokens=values["k"], index_bits=bits,
        index_flops=tokens.index_flops(values["index_heads"], dim),
    )  # fmt: skip


def _constant(values: Mapping[str, Any], input_tokens: int) -> TokenLimits:
    size = values["c"]
    return TokenLimits(
        window_tokens=size, prompt_kept_tokens=0, dropped_tokens=-size, prompt_window_tokens=size
    )  # fmt: skip


_EVICTION = (
    "choosing which tokens stay is taken to cost no time (scores, sorting, moving); the prompt is computed in full "
    "before tokens leave; accuracy is not part of it"
)

FAMILIES: dict[str, TokenFamily] = {
    family.name: family
    for family in (
        TokenFamily("full", "Full attention", "every token is stored and read", lambda values, n: FULL),
        TokenFamily(
            "window", "Sliding window", "Mistral (arXiv:2310.06825) 2: a token sees the last W",
            lambda values, n: _capped(values["tokens"]),
            (Param("tokens", 4096, "tokens stored and read", low=1, high=_MANY),),
            validity="as if the model had this window; accuracy is not part of it",
        ),
        TokenFamily(
            "streaming", "StreamingLLM", "StreamingLLM (arXiv:2309.17453) 3.2: attention sinks and a rolling window",
            lambda values, n: _capped(values["sinks"] + values["window"]),
            (
                Param("sinks", 4, "first tokens that always stay", low=0, high=_MANY),
                Param("window", 1020, "most recent tokens", low=1, high=_MANY),
            ),
            validity="the prompt runs through the window as well; accuracy is not part of it",
        ),
        TokenFamily(
            "h2o", "H2O", "H2O (arXiv:2306.14048) 5: heavy hitters and recent tokens, each 10 % of the prompt",
            _h2o,
            (
                Param("heavy", Fraction(1, 10), "share of the prompt kept for its scores", low=0, high=1),
                Param("recent", Fraction(1, 10), "share of the prompt kept as most recent", low=0, high=1),
                Param("evict", "always", "a token leaves for each new one, or only the prompt's do (SinkQ B.2)",
                      choices=("always", "prompt")),
            ),
            lambda values: "" if 0 < values["heavy"] + values["recent"] <= 1 else "heavy + recent: must be above 0 and "
            "at most 1, the whole prompt",
            validity=_EVICTION,
        ),
        TokenFamily(
            "snapkv", "SnapKV", "SnapKV (arXiv:2404.14469) 4: at most `budget` tokens of the prompt, all generated",
            _snapkv,
            (
                Param("budget", 1024, "tokens of the prompt that stay", low=1, high=_MANY),
                Param("share", Fraction(0), "share of the prompt that stays, in place of budget", low=1e-6, high=1),
            ),
            lambda values: "" if not values["share"] or values["budget"] == 1024 else "give budget or share, not both",
            validity=_EVICTION,
        ),
        TokenFamily(
            "sparse", "Sparse reading", "DeepSeek Sparse Attention (DeepSeek-V3.2-Exp, inference/model.py): k = 2,048 "
            "tokens by an index of 128 FP8 elements and an FP32 scale a token and layer, 64 heads",
            _sparse,
            (
                Param("k", 2048, "tokens read", low=1, high=_MANY),
                Param("index_dim", 128, "elements of the index of a token and layer; 0: no index", low=0, high=65536),
                Param("index_bits", 8, "bits of an element of the index", low=1, high=32),
                Param("index_scale_bits", 32, "bits of its scale", low=0, high=64),
                Param("index_heads", 64, "heads that score a token", low=0, high=65536),
            ),
            validity="scores of the index run at the FP16 peak; picking the k best and gathering them is taken to "
            "cost no time; a step reads what a cache of k tokens would hold; accuracy is not part of it",
        ),
        TokenFamily(
            "constant", "Constant state", "Infini-attention (arXiv:2404.07143): 2,048 local tokens and a d x d memory, "
            "worth d/2 tokens at d = 128; test-time training (arXiv:2407.04620): size given by c",
            _constant,
            (Param("c", 2112, "tokens that the state is worth", low=1, high=_MANY),),
            validity="updating the state is taken to cost no time; needs a model trained for it",
        ),
    )
}  # fmt: skip


@lru_cache(maxsize=4096)
def parse(text: str) -> TokenPolicy:
    """`full`, `streaming:sinks=4,window=1020`: a policy with parameters. Raises InputError with what is allowed."""
    family, values, canonical = named("token policy", text, FAMILIES)
    return TokenPolicy(family, tuple(values.items()), canonical)
