"""Kinds of layers as transformers 5 writes them, in words of one list, told as published files of models tell them.

Each rule takes the keys of one family. What it makes of them stands for the key that the file has, in messages too.
"""

from collections.abc import Callable
from typing import Any

from dse.specs.huggingface.keys import MAX_LAYERS, MAX_TOKENS, Keys

KINDS, FEED_FORWARDS = "layer_types", "mlp_layer_types"
_GEMMA4 = "gemma4 gemma4_text gemma4_unified gemma4_unified_text"
#: words of transformers 5 -> those of published files
FULL, LINEAR, WINDOWED, INDEXED = "full_attention", "linear_attention", "sliding_attention", "indexed_attention"


def as_published(keys: Keys, model_type: str) -> None:
    """Tell what the file says in the words of transformers 5 in those that the rules read. Problems go to `keys`."""
    for types, tell in _RULES.items():
        if model_type in types.split():
            tell(keys)
    if (changes := keys.data.get("per_layer_config")) is not None and model_type not in _GEMMA4.split():
        _per_layer(keys, changes)


def _kinds(keys: Keys, known: tuple[str, ...], name: str = KINDS) -> list[str]:
    """The list of kinds, one of `known` each; empty where the file has none or a wrong one, which is a problem."""
    kinds = keys.data.get(name)
    if kinds is None:
        return []
    if not isinstance(kinds, list) or any(kind not in known for kind in kinds):
        keys.bad(name, f"a list of {', '.join(known)}")
        return []
    return kinds


def _sparse(keys: Keys) -> None:
    """DeepSeek-V3.2, GLM-5: each layer reads by an index."""
    kinds = keys.data.get(KINDS)
    if isinstance(kinds, list) and set(kinds) == {INDEXED}:
        keys.tell(KINDS, KINDS, ["deepseek_sparse_attention"] * len(kinds))


def _mistral_large4(keys: Keys) -> None:
    """Mistral Large 4: as GLM-5; a layer may take the latent of an earlier one (kv_source_layers)."""
    _sparse(keys)


def _glm5_next(keys: Keys) -> None:
    """GLM-5.3-Flash: Kimi delta attention, and layers with an index."""
    kinds = _kinds(keys, (LINEAR, INDEXED))
    if kinds:
        keys.tell(KINDS, KINDS, [FULL if kind == INDEXED else kind for kind in kinds])
    _kimi(keys)
    keys.used.add("linear_lower_bound")
    keys.tell(KINDS, KINDS, None)


def _laguna(keys: Keys) -> None:
    """Laguna: query heads by layer; a gate a head is less than a tenth of a percent, one an element as wide as them."""
    if isinstance(heads := keys.data.get("num_attention_heads_per_layer"), list):
        keys.tell("num_attention_heads", "num_attention_heads_per_layer", heads)
    if keys.get("gating") == "per-element":
        keys.tell("attn_output_gate", "gating", True)


def _compressed(keys: Keys) -> None:
    """DeepSeek-V4: tokens that make an entry of each layer's cache, 0 where it keeps a window alone."""
    words = {WINDOWED: 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    rates = keys.data.get("compress_rates")
    if isinstance(rates, dict):
        words |= {word: rate for word, rate in rates.items() if word in words}
        keys.used.add("compress_rates")
    if keys.data.get("compress_ratios") is None and (kinds := _kinds(keys, tuple(words))):
        keys.tell("compress_ratios", KINDS, [words[kind] for kind in kinds])
        keys.used.add(KINDS)
    if _kinds(keys, ("moe", "hash_moe"), FEED_FORWARDS):  # experts in every layer, whatever chooses them
        keys.tell(FEED_FORWARDS, FEED_FORWARDS, None)


def _nemotron_h(keys: Keys) -> None:
    """Nemotron-H: a mixer or a feed-forward a block."""
    words = {LINEAR: "mamba", FULL: "attention", "mlp": "mlp", "moe": "moe"}
    kinds = keys.data.get("layers_block_type")
    if isinstance(kinds, list) and kinds and all(kind in words for kind in kinds):
        keys.tell("layers_block_type", "layers_block_type", [words[kind] for kind in kinds])


def _kimi(keys: Keys) -> None:
    """Kimi Linear, Ling 2.6: numbers of layers from 1, and the sizes of their states."""
    if keys.data.get("linear_attn_config") is None and (kinds := _kinds(keys, (LINEAR, FULL))):
        table = {
            "kda_layers": [i + 1 for i, kind in enumerate(kinds) if kind == LINEAR],
            "full_attn_layers": [i + 1 for i, kind in enumerate(kinds) if kind == FULL],
            "num_heads": keys.get("linear_num_heads"),
            "head_dim": keys.get("linear_head_dim"),
            "short_conv_kernel_size": keys.get("linear_conv_kernel_dim"),
        }
        keys.tell("linear_attn_config", KINDS, table)
    keys.used.update((KINDS, "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"))


def _minimax_m3(keys: Keys) -> None:
    """MiniMax-M3: marks of the layers that read by blocks, and the sizes of their index."""
    names = {
        "sparse_block_size": "index_block_size",
        "sparse_topk_blocks": "index_topk_blocks",
        "sparse_index_dim": "index_head_dim",
        "sparse_num_index_heads": "index_n_heads",
    }
    sizes = {name: keys.get(new) for name, new in names.items()}
    keys.used.update(("index_local_blocks", "index_init_blocks"))
    kinds = _kinds(keys, (FULL, "minimax_m3_sparse"))
    if keys.data.get("sparse_attention_config") is None and kinds:
        marks = [int(kind != FULL) for kind in kinds]
        table = {"sparse_attention_freq": marks, "sparse_disable_index_value": marks, **sizes}
        keys.tell("sparse_attention_config", KINDS, table if any(marks) else None)
        keys.tell(KINDS, KINDS, None)


def _mimo(keys: Keys) -> None:
    """MiMo-V2: 1 for a window; transformers counts the token that reads as one of it."""
    if keys.data.get("hybrid_layer_pattern") is None and (kinds := _kinds(keys, (FULL, WINDOWED))):
        keys.tell("hybrid_layer_pattern", KINDS, [int(kind == WINDOWED) for kind in kinds])
    if isinstance(window := keys.data.get("sliding_window"), int) and keys.data.get(KINDS) is not None:
        keys.tell("sliding_window", "sliding_window", keys.data.get("sliding_window_size") or window - 1)
    keys.used.add(KINDS)


def _step(keys: Keys) -> None:
    """Step 3.5 and 3.7: windowed layers may have query heads of their own."""
    kinds, few = _kinds(keys, (FULL, WINDOWED)), keys.whole(["num_sliding_attention_heads"], 1, MAX_LAYERS)
    n_heads = keys.data.get("num_attention_heads")
    if kinds and few and few != n_heads:
        heads = [few if kind == WINDOWED else n_heads for kind in kinds]
        keys.tell("num_attention_heads", "num_sliding_attention_heads", heads)


def _lfm(keys: Keys) -> None:
    """LFM 2: Liquid's own names of two keys; numbers of the layers that have attention, where no kinds are listed."""
    for name, own in (("intermediate_size", "block_ff_dim"), ("tie_word_embeddings", "tie_embedding")):
        if keys.data.get(own) is not None:
            keys.tell(name, own, keys.data[own])
    places, n_layers = keys.data.get("full_attn_idxs"), keys.data.get("num_hidden_layers")
    if (
        keys.data.get(KINDS) is None
        and isinstance(places, list)
        and isinstance(n_layers, int)
        and n_layers <= MAX_LAYERS
    ):
        keys.tell(KINDS, "full_attn_idxs", [FULL if i in places else "conv" for i in range(n_layers)])


def _gemma4(keys: Keys) -> None:
    """Gemma 4: layers that attend to all have heads of their own, all alike."""
    changes, kinds = keys.data.get("per_layer_config"), keys.data.get(KINDS)
    if not changes or not isinstance(kinds, list):
        return
    full = [i for i, kind in enumerate(kinds) if kind == FULL]
    told = _by_layer(changes)
    names = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
    first = next(iter(told.values()), {}) if told else {}
    if (
        told is None
        or sorted(told) != full
        or any(change != first or not change.keys() <= names.keys() for change in told.values())
    ):
        keys.bad("per_layer_config", "a table of head_dim and num_key_value_heads, alike in all full_attention layers")
        return
    for name, value in first.items():
        keys.tell(names[name], "per_layer_config", value)
    keys.used.add("per_layer_config")


def _per_layer(keys: Keys, changes: Any) -> None:
    """Sizes of single layers in place of those of all."""
    told, n_layers = _by_layer(changes), keys.whole(["num_hidden_layers"], 1, MAX_LAYERS) or 0
    lists = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
    if told is None or any(i >= n_layers or not change.keys() <= set(lists) for i, change in told.items()):
        keys.bad("per_layer_config", f"a table of layers with {', '.join(lists)}")
        return
    for name in lists:
        if any(name in change for change in told.values()):
            values = [told.get(i, {}).get(name, keys.data.get(name)) for i in range(n_layers)]
            keys.tell(name, "per_layer_config", values)
    keys.used.add("per_layer_config")


def _by_layer(changes: Any) -> dict[int, dict[str, Any]] | None:
    """Changes by the number of the layer; None for what is no such table."""
    if not isinstance(changes, dict) or not all(str(i).isdigit() and isinstance(v, dict) for i, v in changes.items()):
        return None
    return {int(i): change for i, change in changes.items() if int(i) < MAX_TOKENS}


_RULES: dict[str, Callable[[Keys], None]] = {
    "deepseek_v32 glm_moe_dsa": _sparse,
    "mistral_large4 mistral_large4_text": _mistral_large4,
    "glm5_next glm5_next_text": _glm5_next,
    "laguna": _laguna,
    "deepseek_v4": _compressed,
    "nemotron_h": _nemotron_h,
    "kimi_linear bailing_hybrid": _kimi,
    "minimax_m3_vl minimax_m3_vl_text": _minimax_m3,
    "lfm2 lfm2_moe": _lfm,
    "mimo_v2 mimo_v2_flash": _mimo,
    "step3p5 step3p7": _step,
    _GEMMA4: _gemma4,
}
