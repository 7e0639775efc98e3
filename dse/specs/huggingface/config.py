"""Read a Hugging Face config.json as plain data into a ModelSpec. No model code is imported or run.

A key that changes what a layer caches and is not understood is an error that names it: a wrong KV size is worse
than none. Where the file is silent the rule applied is written into the notes of the ModelSpec.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import groupby
from pathlib import Path
from typing import Any

from dse.core.errors import MAX_PROBLEMS, InputError, SpecError, clean, did_you_mean, show
from dse.core.specfile import Document, KeyPath
from dse.specs.device_and_model import LayerKV, ModelSpec
from dse.specs.huggingface import layers, parameters, released, rotary, spelling, tower
from dse.specs.huggingface.keys import (
    HARMLESS,
    HIDDEN,
    MARKS,
    MAX_DIM,
    MAX_HIDDEN,
    MAX_TOKENS,
    MIXTURE,
    MIXTURE_HARMLESS,
    NESTED,
    NEUTRAL,
    OFF,
    POSITIONS,
    Q_HEADS,
    SUSPICIOUS,
    VOCAB,
    Keys,
)
from dse.specs.huggingface.mixers import NOTHING, Mixer
from dse.specs.huggingface.parameters import Shape

#: model_type -> keys that say again, as a number, what lists of the file say
_TOLD_ALREADY = {
    "afmoe": ("global_attn_every_n_layers",),
    "bailing_hybrid": ("layer_group_size", "short_conv_kernel_size"),
    "cohere2_moe": ("prefix_dense_sliding_window_pattern",),
}
#: model_types of which tokens of an image see each other (transformers, models/gemma3)
IMAGE_MASKED = ("gemma3", "gemma3_text")


def looks_like_config(data: dict[str, Any]) -> bool:
    """Whether parsed JSON is a Hugging Face config rather than a file in our own format."""
    return any(mark in data for mark in MARKS)


#: model type that files of an unknown one are read as, where someone has said that they may be
ASSUMED_LIKE: ContextVar[str] = ContextVar("ASSUMED_LIKE", default="")


def check_like(model_type: str) -> str:
    """A model type to read unknown ones as. Raises InputError."""
    if model_type and model_type not in parameters.RULES:
        near = did_you_mean(model_type, list(parameters.RULES))
        raise InputError(f"assume-like = {show(model_type)}: is no model_type that is known: {near}")
    return model_type


@contextmanager
def assumed_like(model_type: str) -> Iterator[None]:
    """Read files of unknown model types as this one inside the block. Raises InputError."""
    token = ASSUMED_LIKE.set(check_like(model_type))
    try:
        yield
    finally:
        ASSUMED_LIKE.reset(token)


def from_document(document: Document) -> ModelSpec:
    """The model that a parsed config.json describes. Raises SpecError with every problem, one line each.

    A file of a model_type that is not known may have no key that is not either; with `ASSUMED_LIKE` it is read as
    that type, and its name says so.

    Layers come in order, equal neighbours in one LayerKV. Key names follow the configuration classes of the
    transformers library and the published files of the models in tests/golden/hf_configs.
    """
    keys = Keys(document)
    own_type = parameters.read_model_type(keys, ASSUMED_LIKE.get())
    is_known = own_type in parameters.RULES or not own_type
    like = "" if is_known else ASSUMED_LIKE.get()
    model_type = like or own_type
    spelling.as_published(keys, model_type)
    rules = parameters.read_rules(keys, model_type)
    keys.defaults = rules.defaults
    shape, q_heads, stopped_early = _read_shape(keys, rules, model_type)
    mixers, experts = shape.mixers, shape.experts
    positions = rotary.stretched(keys, keys.whole(POSITIONS, 1, MAX_TOKENS))
    if not stopped_early:  # the rest has not been read
        _not_understood(keys)
    if not is_known and not like:
        _not_known(keys, own_type)
    _refuse_problems(keys)
    if len({mixer.parameters for mixer in mixers}) > 1 and isinstance(keys.get(keys.name_of(Q_HEADS)), list):
        keys.note(f"{keys.name_of(Q_HEADS)} varies by layer: the largest is shown")
    dense, routed = parameters.count(shape)
    tables = rotary.elements(keys, model_type, positions, mixers)
    stored = released.of_config(keys, shape)
    name = _name(document.path) + (f"-as-{like}" if like else "")
    return ModelSpec(
        name=name,
        title=name,
        source=f"config.json: {clean(document.path, 200)}",
        hidden_size=shape.hidden,
        vocab_size=shape.vocab,
        n_q_heads=q_heads,
        layers=_runs(mixers),
        attention_parameters=sum(mixer.parameters for mixer in mixers),
        embedding_parameters=0 if shape.tied else shape.vocab * shape.embedding,
        copied_parameters=sum(mixer.copied_parameters for mixer in mixers) + parameters.routers(shape) or None,
        tower_parameters=(towers := tower.parameters(keys, shape.hidden)) or None,
        image_elements=tower.image_elements(keys) if towers else None,
        image_mask=bool(towers) and model_type in IMAGE_MASKED,
        rotary_elements=tables or None,
        dense_parameters=dense,
        expert_parameters=routed,
        **parameters.mixture(experts if routed else None),
        activation_elements=parameters.activation_elements(shape),
        layer_elements=parameters.layer_elements(shape),
        max_position_tokens=positions,
        **stored,
        notes=tuple(keys.notes),
    )


def _read_shape(keys: Keys, rules: parameters.Rules, model_type: str) -> tuple[Shape, int, bool]:
    """The sizes of a model, its most query heads, and whether reading its layers stopped at a problem."""
    hidden = keys.whole(HIDDEN, 1, MAX_HIDDEN, required=True, same=True) or 0
    vocab = keys.whole(VOCAB, 1, 2**24, required=True) or 0
    per_block = layers.blocks(keys, rules, model_type, hidden)
    blocks = per_block or layers.alike(keys, rules, model_type, hidden)
    mixers, n_layers = blocks.mixers, len(blocks.mixers)
    if n_layers and not any(cache.n_kv_heads for mixer in mixers for cache in mixer.caches) and not keys.problems:
        keys.bad("layer_types", "a list with attention in some layers: constant states alone are no keys and values")
    stopped_early = NOTHING in mixers and bool(keys.problems)
    experts = parameters.read_experts(keys, rules, model_type, n_layers, blocks.ffn, blocks.experts)
    embedding = keys.whole(["word_embed_proj_dim"], 1, MAX_HIDDEN, hidden) or hidden
    tied = parameters.read_tied(keys, rules)
    extra = parameters.read_extra(keys, rules, model_type, n_layers, hidden)
    shape = Shape(
        rules,
        hidden=hidden,
        vocab=vocab,
        mixers=mixers,
        ffn=blocks.ffn,
        experts=experts,
        embedding=embedding,
        tied=tied,
        extra=extra,
    )
    q_heads = max(keys.per_layer(Q_HEADS, 1 if per_block else n_layers, 1, MAX_DIM), default=1)
    return shape, q_heads, stopped_early


def _name(path: str) -> str:
    """A short name from the path: the folder of a file called config.json, else the file without its ending."""
    stem = Path(path).stem
    word = Path(path).absolute().parent.name if stem == "config" else stem
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", word).lstrip("._+-")[:64] or "config"


def _refuse_problems(keys: Keys) -> None:
    """Raise SpecError with the first problems, if there are any."""
    if len(keys.problems) > MAX_PROBLEMS:
        more = f"{keys.document.path}: more than {MAX_PROBLEMS} problems: mend these first"
        keys.problems = [*keys.problems[:MAX_PROBLEMS], more]
    if keys.problems:
        raise SpecError(dict.fromkeys(keys.problems))


def _not_known(keys: Keys, model_type: str) -> None:
    """Record each key that no rule has read, of a model_type that has none: it may change anything."""
    places: list[tuple[KeyPath, dict[str, Any]]] = [(keys.prefix, keys.data)]
    if keys.prefix:
        places.append(((), keys.document.data))
    for prefix, data in places:
        for key, value in data.items():
            if key in keys.used or key in NESTED or value in OFF or NEUTRAL.search(key):
                continue
            if len(keys.problems) > MAX_PROBLEMS:
                return
            path = (*prefix, key)
            keys.problems.append(
                f"{keys.document.where(path)}: {'.'.join(map(str, path))} = {show(value)}: is not understood, and "
                f"model_type {show(model_type)} is unknown: --assume-like llama (of `dse point` or `dse model export`) "
                "reads the file as a Llama's"
            )


def _not_understood(keys: Keys) -> None:
    """Record each key that speaks of the cache, or of experts, and that no rule has read."""
    if isinstance(kinds := keys.data.get("attn_type_list"), list) and kinds and set(kinds) == {1}:
        keys.used.add("attn_type_list")  # MiniMax: 1 is full attention, 0 a constant state
    if keys.get("use_cla") is False:
        keys.used.add("cla_share_factor")
    keys.used.update(_TOLD_ALREADY.get(str(keys.get("model_type")), ()))
    if keys.get("model_type") == "openelm":
        keys.used.update(("qkv_multipliers", "num_gqa_groups"))  # the head lists say the same
    keys.used.update(("img_token_compression_config", "seconds_per_chunk"))  # of images, of sound
    places: list[tuple[KeyPath, str, dict[str, Any]]] = [(keys.prefix, "", keys.data)]
    if keys.prefix:
        places.append(((), "", keys.document.data))
    for table in ("attn_config", "ffn_config"):
        if isinstance(keys.data.get(table), dict):
            keys.used.add(table)
            places.append(((*keys.prefix, table), table + ".", keys.data[table]))
    for prefix, dotted, data in places:
        for key, value in data.items():
            if dotted + key in keys.used or key in NESTED or value in OFF:
                continue
            what = "what a layer caches" if SUSPICIOUS.search(key) and not HARMLESS.search(key) else ""
            if not what and MIXTURE.search(key) and not MIXTURE_HARMLESS.search(key):
                what = "the experts" if isinstance(value, int | list | dict) and value is not True else ""
            if what and len(keys.problems) > MAX_PROBLEMS:
                return
            if what:
                path = (*prefix, key)
                keys.problems.append(
                    f"{keys.document.where(path)}: {'.'.join(map(str, path))} = {show(value)}: "
                    f"must be absent or null: it changes {what} and is not understood"
                )


def _runs(mixers: list[Mixer]) -> tuple[LayerKV, ...]:
    """The caches of layers in their order, equal neighbors joined."""
    runs = []
    for caches, run in groupby(mixer.caches for mixer in mixers):
        n_layers = len(list(run))
        runs += [cache.model_copy(update={"n_layers": n_layers}) for cache in caches]
    return tuple(runs)
