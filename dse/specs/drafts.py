"""Drafts of speculative decoding, in memory: the weights of what drafts, its keys and values, places of drafted tokens.

`--speculative-config` is JSON as vLLM takes it. Rules are those of vLLM (vllm/config/speculative.py): layers of
multi-token prediction and EAGLE's heads share the embeddings of their model; a draft model has all of its own.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from dse.core.errors import InputError, show
from dse.core.specfile import load_json
from dse.specs.weights import FORMATS, WIDE, WeightFormat

if TYPE_CHECKING:
    from dse.specs.device_and_model import LayerKV, ModelSpec

MTP, EAGLE, EAGLE3, MODEL, TEXT = "mtp", "eagle", "eagle3", "draft_model", "ngram"
#: words of vLLM that mean one of these; of methods that draft from the text alone
_METHODS = {
    **{name: name for name in (MTP, EAGLE, EAGLE3, MODEL, TEXT)},
    "nextn": MTP,
    "suffix": TEXT,
    "ngram_gpu": TEXT,
}
#: names of methods that draft: of SGLang's with vLLM's
_SGLANG = {"standalone": MODEL, "nextn": MTP}
#: tokens that are drafted at most
MAX_DRAFTED = 64
#: rows of an EAGLE-3 head's own vocabulary, as its authors train it
_EAGLE3_VOCABULARY = 32_000
_EXAMPLE = '\'{"method": "mtp", "num_speculative_tokens": 2}\''


@dataclass(frozen=True)
class Draft:
    """A model or head that drafts: its method, tokens a step, and the name of its model, "" for the target's own."""

    method: str
    n_tokens: int
    model: str = ""
    #: all tokens in one pass
    in_parallel: bool = False

    @property
    def slots(self) -> int:
        """Tokens of a batch that drafting takes for each request that runs.

        Source: vLLM, vllm/config/speculative.py, max_num_new_slots_for_drafting.
        """
        return (self.n_tokens - 1) * self.in_parallel + (self.method == MODEL)

    @property
    def lookahead_tokens(self) -> int:
        """Places for keys and values that a request keeps beyond its last token."""
        return 0 if self.method == TEXT else self.n_tokens


@lru_cache(maxsize=64)
def parse(text: str) -> Draft:
    """The draft that a JSON object asks for. Raises InputError."""
    asked = f"speculative-config = {show(text)}"
    try:
        fields = load_json(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise InputError(f"{asked}: must be a JSON object as vLLM takes it, such as {_EXAMPLE}")
    model, n_tokens = fields.get("model") or "", fields.get("num_speculative_tokens")
    if not isinstance(model, str) or not model.isprintable():
        raise InputError(f"{asked}: model = {show(model)}: must be a name")
    if type(n_tokens) is not int or not 1 <= n_tokens <= MAX_DRAFTED:
        raise InputError(
            f"{asked}: num_speculative_tokens = {show(n_tokens)}: must be a whole number from 1 to {MAX_DRAFTED}"
        )
    said = fields.get("method") or _method_of(model)
    method = _METHODS.get(str(said), MTP if str(said).endswith("_mtp") else "")
    if not method:
        raise InputError(f"{asked}: method = {show(said)}: is not modeled: use one of {', '.join(_METHODS)}")
    if method == MODEL and not model:
        raise InputError(f"{asked}: model: is missing: name the model that drafts, such as qwen3-0.6b")
    return Draft(method, n_tokens, model if method == MODEL else "", bool(fields.get("parallel_drafting")))


def config_text(method: str, model: str, n_tokens: int) -> str:
    """Return the JSON of what an engine drafts by, from its own words.

    SGLang calls layers of multi-token prediction EAGLE, whose head has a model of its own.
    """
    method = method.lower()
    if method == EAGLE and (not model or "nextn" in model.lower()):
        method = MTP
    return written({"method": _SGLANG.get(method, method), "model": model, "num_speculative_tokens": n_tokens})


def written(said: Mapping[str, object]) -> str:
    """Write an object as --speculative-config takes it, without what is empty."""
    return json.dumps({name: value for name, value in said.items() if value})


def _method_of(model: str) -> str:
    """The method by the name of what drafts, as vLLM takes it where none is given."""
    match = re.search(r"eagle-?3|eagle|(?:^|[-_])mtp(?:$|[-_])", model.lower())
    if not match:
        return MODEL if model and model != TEXT else TEXT if model else MTP
    return {"eagle": EAGLE}.get(match[0], EAGLE3 if match[0].startswith("eagle") else MTP)


def model_of(draft: Draft, target: "ModelSpec") -> "ModelSpec | None":
    """The layers that draft and their weights, as a model; None where the text alone is searched.

    A layer of multi-token prediction is one of the target's that keeps all tokens, with the product that joins a hidden
    state and an embedding. EAGLE's head is such a layer without experts; its third version joins three hidden states,
    reads both inputs and has an output head of its own.
    """
    if draft.method == TEXT:
        return None
    if draft.method == MODEL:
        from dse.specs import catalog

        return catalog.model(draft.model)
    layer = _full_layer(target)
    if layer is None:
        raise InputError(f"speculative-config: {target.name} has no layer that keeps all tokens: leave it out")
    hidden, n_layers = target.hidden_size, target.n_layers
    tables = target.embedding_parameters + target.vocab_size * hidden
    dense = max(target.dense_parameters - tables, 0) // n_layers
    attention, joined = (target.attention_parameters or 0) // n_layers, 2 * hidden * hidden
    experts = rows = 0
    if draft.method == MTP:
        experts = target.expert_parameters // n_layers
    elif target.n_experts > 1:  # a head is dense: as wide as all experts of a token
        width = (target.expert_width or 0) * target.n_active_experts + (target.shared_expert_width or 0)
        dense = attention + 3 * hidden * width
    if draft.method == EAGLE3:
        heads = target.n_q_heads * layer.key_dim + layer.n_kv_heads * (layer.key_dim + layer.value_dim)
        rows = min(_EAGLE3_VOCABULARY, target.vocab_size)
        joined = 3 * hidden * hidden + hidden * heads + hidden * rows
    return target.model_copy(
        update={
            "layers": (layer,),
            "vocab_size": rows,
            "dense_parameters": dense + joined,
            "attention_parameters": attention,
            "expert_parameters": experts,
            "embedding_parameters": 0,
            "copied_parameters": 0,
            "tower_parameters": None,
            "image_elements": None,
        }
    )


def _full_layer(target: "ModelSpec") -> "LayerKV | None":
    """One of the last layers of a model that keep all tokens."""
    full = [layer for layer in target.layers if layer.key_dim and not layer.window and not layer.joined]
    if not full:
        return None
    return full[-1].model_copy(update={"n_layers": 1, "stored": True})


def format_of(draft: Draft, target: "ModelSpec", form: WeightFormat) -> WeightFormat:
    """The format of the weights of a draft beside those of the target.

    Files with 4 bits that others made of a checkpoint (NVFP4, AWQ, AutoRound) leave its layers of multi-token
    prediction in 16 bits; heads and models of their own have 16, but for what the name of a model says.
    """
    wide = FORMATS[WIDE]
    if draft.method != MTP:
        return wide
    is_narrow = min(form.dense_eighths, form.expert_eighths) < 64
    return wide if is_narrow and form.name != target.released else form
