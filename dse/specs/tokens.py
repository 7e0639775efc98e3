"""Fewer tokens instead of fewer bits: which tokens a layer stores and which of them a decode step reads.

A policy is a name with parameters, as a quantizer is: `streaming:sinks=4,window=1020`, `snapkv:share=0.16`. For a
model it gives plain numbers (`TokenPolicy.numbers`), which stand beside a layer's own window; the smaller holds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

from dse.core.compiling import formula
from dse.core.field import Field
from dse.quantizers.base import param
from dse.quantizers.registry import named

_MANY = 999_999_999


@dataclass(frozen=True)
class TokenFamily:
    """A policy with its parameters: `numbers(values)` gives fields of `dse.model.records.Policy` that differ from full
    attention, `source` where they come from.

    `validity` says what the numbers leave out; it is shown with every result.
    """

    name: str
    title: str
    source: str
    numbers: Callable[[Mapping[str, Any]], dict[str, int]]
    params: tuple[Field, ...] = ()
    problem: Callable[[Mapping[str, Any]], str] = lambda values: ""
    validity: str = ""


@dataclass(frozen=True)
class TokenPolicy:
    """A family with values for all of its parameters; `name` is its canonical text."""

    family: TokenFamily
    values: tuple[tuple[str, Any], ...]
    name: str

    @property
    def trained(self) -> int:
        """Elements over d x d that test-time training trains in each query head; 0: none."""
        return TRAINED[dict(self.values).get("ttt", "none")]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Fields of `dse.model.records.Policy` that differ from full attention."""
        return self.family.numbers(dict(self.values))


def _capped(window: int) -> dict[str, int]:
    return {"window_tokens": window, "prompt_window_tokens": window}


def _share(name: str, share: Fraction) -> dict[str, int]:
    share = Fraction(share)
    return {name: share.numerator, f"of_{name}": share.denominator}


def _h2o(values: Mapping[str, Any]) -> dict[str, int]:
    shares = _share("heavy", values["heavy"]) | _share("recent", values["recent"])
    return {"evicts": 1, "rolls": int(values["evict"] == "always"), **shares}


def _snapkv(values: Mapping[str, Any]) -> dict[str, int]:
    if values["share"]:
        return {"evicts": 1, **_share("heavy", values["share"])}
    return {"evicts": 1, "budget_tokens": values["budget"]}


def _scissorhands(values: Mapping[str, Any]) -> dict[str, int]:
    if values["budget"]:
        return {"evicts": 1, "rolls": 1, "budget_tokens": values["budget"]}
    return {"evicts": 1, "rolls": 1, **_share("heavy", values["share"])}


@formula("bit", "index_dim * index_element_bits + index_scale_bits", "DeepSeek-V3.2-Exp, inference/model.py (Indexer)")
def index_bits(index_dim: int, index_element_bits: int, index_scale_bits: int) -> int:
    """Bits of the index that sparse reading keeps for one token and layer."""
    return index_dim * index_element_bits + index_scale_bits


@formula("FLOP", "2 * index_heads * index_dim", "DeepSeek-V3.2-Exp, inference/model.py (Indexer): heads share a key")
def index_flops(index_heads: int, index_dim: int) -> int:
    """Operations that score one stored token for one query in one layer."""
    return 2 * index_heads * index_dim


def _sparse(values: Mapping[str, Any]) -> dict[str, int]:
    dim = values["index_dim"]
    return {
        "read_limit_tokens": values["k"],
        "prompt_window_tokens": values["k"],
        "index_bits": index_bits(dim, values["index_bits"], values["index_scale_bits"] if dim else 0),
        "index_flops": index_flops(values["index_heads"], dim),
    }


def _constant(values: Mapping[str, Any]) -> dict[str, int]:
    size = values["c"]
    return {**_capped(size), "prompt_kept_tokens": 0, "dropped_tokens": -size}


#: what test-time training trains in each query head -> elements over d x d
TRAINED = {"none": 0, "linear": 1, "mlp": 8}

_EVICTION = (
    "choosing which tokens stay is taken to cost no time (scores, sorting, moving); the prompt is computed in full "
    "before tokens leave; accuracy is not part of it"
)

FAMILIES: dict[str, TokenFamily] = {
    family.name: family
    for family in (
        TokenFamily("full", title="Full attention", source="every token is stored and read", numbers=lambda values: {}),
        TokenFamily(
            "window",
            title="Sliding window",
            source="Mistral (arXiv:2310.06825) 2: a token sees the last W",
            numbers=lambda values: _capped(values["tokens"]),
            params=(param("tokens", default=4096, help="tokens stored and read", low=1, high=_MANY),),
            validity="as if the model had this window; accuracy is not part of it",
        ),
        TokenFamily(
            "streaming",
            title="StreamingLLM",
            source="StreamingLLM (arXiv:2309.17453) 3.2: attention sinks and a rolling window",
            numbers=lambda values: _capped(values["sinks"] + values["window"]),
            params=(
                param("sinks", default=4, help="first tokens that always stay", low=0, high=_MANY),
                param("window", default=1020, help="most recent tokens", low=1, high=_MANY),
            ),
            validity="the prompt runs through the window as well; accuracy is not part of it",
        ),
        TokenFamily(
            "h2o",
            title="H2O",
            source="H2O (arXiv:2306.14048) 5: heavy hitters and recent tokens, each 10 % of the prompt",
            numbers=_h2o,
            params=(
                param("heavy", default=Fraction(1, 10), help="share of the prompt kept for its scores", low=0, high=1),
                param("recent", default=Fraction(1, 10), help="share of the prompt kept as most recent", low=0, high=1),
                param(
                    "evict",
                    default="always",
                    help="a token leaves for each new one, or only the prompt's do (SinkQ B.2)",
                    choices=("always", "prompt"),
                ),
            ),
            problem=lambda values: (
                ""
                if 0 < values["heavy"] + values["recent"] <= 1
                else "heavy + recent: must be above 0 and at most 1, the whole prompt"
            ),
            validity=_EVICTION,
        ),
        TokenFamily(
            "snapkv",
            title="SnapKV",
            source="SnapKV (arXiv:2404.14469) 4: at most `budget` tokens of the prompt, all generated",
            numbers=_snapkv,
            params=(
                param("budget", default=1024, help="tokens of the prompt that stay", low=1, high=_MANY),
                param(
                    "share",
                    default=Fraction(0),
                    help="share of the prompt that stays, in place of budget",
                    low=1e-6,
                    high=1,
                ),
            ),
            problem=lambda values: (
                "" if not values["share"] or values["budget"] == 1024 else "give budget or share, not both"
            ),
            validity=_EVICTION,
        ),
        TokenFamily(
            "scissorhands",
            title="Scissorhands",
            source="Scissorhands (arXiv:2305.17118) 4: a fixed budget of tokens that were important before, prompt and "
            "generated ones alike; a fifth of the prompt where no budget is given",
            numbers=_scissorhands,
            params=(
                param("budget", default=0, help="tokens that stay at most; 0: by share", low=0, high=_MANY),
                param("share", default=Fraction(1, 5), help="share of the prompt that is the budget", low=1e-6, high=1),
            ),
            problem=lambda values: (
                "" if not values["budget"] or values["share"] == Fraction(1, 5) else "give budget or share, not both"
            ),
            validity=_EVICTION,
        ),
        TokenFamily(
            "sparse",
            title="Sparse reading",
            source="DeepSeek Sparse Attention (DeepSeek-V3.2-Exp, inference/model.py): k = 2,048 "
            "tokens by an index of 128 FP8 elements and an FP32 scale a token and layer, 64 heads",
            numbers=_sparse,
            params=(
                param("k", default=2048, help="tokens read", low=1, high=_MANY),
                param(
                    "index_dim",
                    default=128,
                    help="elements of the index of a token and layer; 0: no index",
                    low=0,
                    high=65536,
                ),
                param("index_bits", default=8, help="bits of an element of the index", low=1, high=32),
                param("index_scale_bits", default=32, help="bits of its scale", low=0, high=64),
                param("index_heads", default=64, help="heads that score a token", low=0, high=65536),
            ),
            validity="scores of the index run at the FP16 peak; picking the k best and gathering them is taken to "
            "cost no time; a step reads what a cache of k tokens would hold; accuracy is not part of it",
        ),
        TokenFamily(
            "constant",
            title="Constant state",
            source="Infini-attention (arXiv:2404.07143): 2,048 local tokens and a d x d memory, "
            "worth d/2 tokens at d = 128; test-time training (arXiv:2407.04620) 2.7: each query head trains a matrix "
            "of d x d (TTT-Linear), or two of d x 4d (TTT-MLP)",
            numbers=_constant,
            params=(
                param("c", default=2112, help="tokens that the state is worth", low=1, high=_MANY),
                param(
                    "ttt",
                    default="none",
                    help="test-time training in every layer, whose state in 16 bits takes the place of c",
                    choices=tuple(TRAINED),
                ),
            ),
            problem=lambda values: "" if values["ttt"] == "none" or values["c"] == 2112 else "give c or ttt, not both",
            validity="updating the state is taken to cost no time; needs a model trained for it",
        ),
    )
}


def is_policy(text: str) -> bool:
    """Whether a name with parameters is that of a policy, not of a quantizer."""
    return text.partition(":")[0] in FAMILIES


@lru_cache(maxsize=4096)
def parse(text: str) -> TokenPolicy:
    """`full`, `streaming:sinks=4,window=1020`: a policy with parameters. Raises InputError with what is allowed."""
    family, values, canonical = named("token policy", text, FAMILIES)
    return TokenPolicy(family, tuple(values.items()), canonical)
