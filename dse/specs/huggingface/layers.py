"""The layers of a config.json in order: which keys say what mixes the tokens of each, and what its feed-forward is."""

from dataclasses import dataclass, replace
from typing import Any

from dse.core.errors import show
from dse.specs.huggingface import heads
from dse.specs.huggingface.keys import (
    HEAD_DIM,
    LAYERS,
    MAX_DIM,
    MAX_LATENT,
    MAX_LAYERS,
    MAX_TOKENS,
    Q_HEADS,
    WINDOW,
    Keys,
)
from dse.specs.huggingface.mixers import (
    INDEX_BLOCK,
    NOTHING,
    Compressed,
    Heads,
    Index,
    LatentAttention,
    Mixer,
    gated_delta,
    kimi_delta,
    lightning,
    mamba2,
    short_convolution,
)
from dse.specs.huggingface.parameters import MAX_WIDTH, Rules, read_ffn

#: bytes of an element of a state by the type's name
STATE_TYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
#: Nemotron-H's blocks, as letters and as words -> what they are
BLOCKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
#: types of the models that have layers of the gated delta rule, and of Kimi delta attention
GATED_DELTA = ("qwen3_next", "qwen3_5", "olmo_hybrid")
KIMI = ("kimi_linear", "kimi_k3", "bailing_hybrid", "glm5_next", "glm5_next_text")
#: and those of Mamba-2 among attention in layers of a feed-forward each, and of short convolutions
MAMBA, CONVOLUTIONS = ("granitemoehybrid",), ("lfm2", "lfm2_moe", "lfm3")
#: and those whose layers choose what they read by an index: DeepSeek Sparse Attention, MiniMax Sparse Attention
MISTRAL, GLM_NEXT = ("mistral_large4", "mistral_large4_text"), ("glm5_next", "glm5_next_text")
INDEXED = ("deepseek_v32", "glm_moe_dsa", *MISTRAL, *GLM_NEXT)
BLOCK_INDEXED = ("minimax_m3", "minimax_m3_vl", "minimax_m3_vl_text")
#: and those of compressed caches
COMPRESSED = ("deepseek_v4", "deepseek_ref")
#: widths of Nemotron-NAS's feed-forwards are multiples of it
FFN_MULTIPLE = 256


@dataclass(frozen=True)
class Blocks:
    """Layers: a mixer each, the widths of feed-forwards, and which have experts where blocks are given one by one."""

    mixers: list[Mixer]
    #: 0: none
    ffn: list[int]
    experts: list[bool] | None = None


def alike(keys: Keys, rules: Rules, model_type: str, hidden: int) -> Blocks:
    """Read layers that follow one pattern. Problems go to `keys`."""
    n_layers = keys.whole(LAYERS, 1, MAX_LAYERS, required=True, same=True) or 0
    mixers = read(keys, rules, model_type, n_layers, hidden)
    return Blocks(mixers, read_ffn(keys, rules, model_type, n_layers, hidden))


def read(keys: Keys, rules: Rules, model_type: str, n_layers: int, hidden: int) -> list[Mixer]:
    """Read the mixer of every layer. Problems go to `keys`."""
    q_heads = keys.per_layer(Q_HEADS, n_layers, 1, MAX_DIM)
    if model_type in COMPRESSED:
        return _compressed(keys, n_layers, hidden, q_heads)
    states = _states(keys, model_type, n_layers, hidden)
    latent = _latent(keys, hidden)
    index: list[Index | None] = [None] * n_layers
    if latent and model_type in INDEXED:
        index = _index(keys, n_layers)
    elif model_type in BLOCK_INDEXED:
        index = _block_index(keys, n_layers)
    if latent:
        keys.whole(HEAD_DIM, 0, MAX_DIM)  # of the rope part alone
        heads.kv_heads(keys, model_type, q_heads)
        latents = [replace(latent, q_heads=q, index=idx) for q, idx in zip(q_heads, index, strict=True)]
        if model_type in MISTRAL and keys.get("no_rope_layers"):
            ropes = keys.per_layer(["no_rope_layers"], n_layers, 0, 1)
            wide = replace(latent, nope=latent.nope + latent.rope, rope=0)
            latents = [
                layer if rope else replace(wide, q_heads=layer.q_heads, index=layer.index)
                for layer, rope in zip(latents, ropes, strict=True)
            ]
        mixers = [layer.mixer() for layer in latents]
    else:
        mixers = _with_heads(keys, rules, model_type, n_layers, hidden, q_heads=q_heads, index=index, states=states)
    stored = n_layers - (keys.whole(["num_kv_shared_layers"], 0, max(n_layers - 1, 0), 0) or 0 if n_layers else 0)
    reads = [i >= stored or source != i for i, source in enumerate(_sources(keys, model_type, n_layers))]
    mixers = [mixer.reading_earlier() if late else mixer for mixer, late in zip(mixers, reads, strict=True)]
    return [state or mixer for state, mixer in zip(states, mixers, strict=True)]


def _sources(keys: Keys, model_type: str, n_layers: int) -> list[int]:
    """The layer whose latent each layer reads, itself or an earlier one (Mistral Large 4)."""
    itself = list(range(n_layers))
    sources: Any = keys.get("kv_source_layers") if model_type in MISTRAL else None
    if sources in (None, itself):
        return itself
    are_layers = isinstance(sources, list) and len(sources) == n_layers and all(isinstance(at, int) for at in sources)
    if not are_layers or any(not 0 <= at <= i or sources[at] != at for i, at in enumerate(sources)):
        keys.bad("kv_source_layers", f"a list of {n_layers} layers, each itself or an earlier one that is itself")
        return itself
    keys.note("layers that read an earlier one's latent: their index keys are not counted in the cache")
    return sources


def _with_heads(
    keys: Keys,
    rules: Rules,
    model_type: str,
    n_layers: int,
    hidden: int,
    q_heads: list[int],
    index: list[Index | None],
    states: list[Mixer | None],
) -> list[Mixer]:
    """Layers with query heads that share KV heads; some of another shape (Gemma 4's global ones, MiMo-V2's windows)."""
    kv_heads = heads.kv_heads(keys, model_type, q_heads)
    is_mimo = keys.get("hybrid_layer_pattern") is not None
    key_dim, value_dim = heads.head_dims(keys, hidden, q_heads, apart=is_mimo)
    gated = rules.output_gate or bool(keys.flag("attn_output_gate")) or bool(keys.flag("attention_output_gate"))
    plain = _plain(rules, hidden, 1, 1, key_dim, value_dim)
    plain = replace(plain, qk_norm=rules.qk_norm, sinks=rules.sinks, gated=gated)
    if is_mimo:
        return _mimo(keys, n_layers, plain, q_heads, kv_heads)
    windows = heads.windows(keys, rules, model_type, n_layers, [state is not None for state in states])
    plain = replace(plain, chunked=heads.in_chunks(keys))
    per_layer = [
        replace(plain, q_heads=q, kv_heads=kv, window=window, index=idx)
        for q, kv, window, idx in zip(q_heads, kv_heads, windows, index, strict=False)  # no number of layers: problems
    ]
    if model_type.startswith("gemma4"):
        wide = keys.whole(["global_head_dim"], 1, MAX_DIM)
        few = keys.whole(["num_global_key_value_heads"], 1, MAX_DIM)
        shares_keys = bool(keys.flag("attention_k_eq_v"))
        per_layer = [
            layer
            if layer.window
            else replace(
                layer,
                kv_heads=few or layer.kv_heads,
                key_dim=wide or key_dim,
                value_dim=wide or value_dim,
                one_projection=shares_keys,
            )
            for layer in per_layer
        ]
    return [layer.mixer() for layer in per_layer]


def _plain(rules: Rules, hidden: int, q_heads: int, kv_heads: int, key_dim: int, value_dim: int) -> Heads:
    """Attention to all tokens with the biases of a model type."""
    return Heads(
        hidden,
        q_heads=q_heads,
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        qkv_bias=rules.qkv_bias,
        out_bias=rules.out_bias,
    )


def _mimo(keys: Keys, n_layers: int, plain: Heads, q_heads: list[int], kv_heads: list[int]) -> list[Mixer]:
    """MiMo-V2: 1 in hybrid_layer_pattern is a window with heads and sinks of its own."""
    pattern = keys.per_layer(["hybrid_layer_pattern"], n_layers, 0, 1)
    window = keys.whole(WINDOW, 1, MAX_TOKENS, required=True)
    keys.get("attention_chunk_size")  # the window again
    local_heads = replace(
        plain,
        window=window,
        q_heads=keys.whole(["swa_num_attention_heads"], 1, MAX_DIM, q_heads[0]) or 1,
        kv_heads=keys.whole(["swa_num_key_value_heads"], 1, MAX_DIM, kv_heads[0]) or 1,
        key_dim=keys.whole(["swa_head_dim"], 1, MAX_DIM, plain.key_dim) or 1,
        value_dim=keys.whole(["swa_v_head_dim"], 1, MAX_DIM, plain.value_dim) or 1,
        sinks=bool(keys.flag("add_swa_attention_sink_bias")),
    )
    full = replace(plain, sinks=bool(keys.flag("add_full_attention_sink_bias")))
    return [
        local_heads.mixer() if local else replace(full, q_heads=q, kv_heads=kv).mixer()
        for local, q, kv in zip(pattern, q_heads, kv_heads, strict=True)
    ]


def _latent(keys: Keys, hidden: int) -> LatentAttention | None:
    """Multi-head latent attention; None where it is not used."""
    if keys.get("kv_lora_rank") is None:
        return None
    rank = keys.whole(["kv_lora_rank"], 1, MAX_LATENT) or 1
    least = 0 if keys.get("model_type") in GLM_NEXT else 1
    rope = keys.whole(["qk_rope_head_dim"], least, MAX_LATENT, required=True) or least
    nope = keys.whole(["qk_nope_head_dim"], 0, MAX_DIM, required=True) or 0
    value = keys.whole(["v_head_dim"], 1, MAX_DIM, required=True) or 1
    q_rank = keys.whole(["q_lora_rank"], 0, MAX_DIM, 0) or 0
    keys.get("qk_head_dim")  # nope + rope, written out
    return LatentAttention(
        hidden,
        q_heads=1,
        q_rank=q_rank,
        rank=rank,
        nope=nope,
        rope=rope,
        value_dim=value,
        gated=bool(keys.flag("mla_use_output_gate")),
    )


def _index(keys: Keys, n_layers: int) -> list[Index | None]:
    """DeepSeek Sparse Attention: the index of each layer, its own or, where "shared", that of the layer before."""
    if keys.get("index_topk") is None:
        return [None] * n_layers
    read_tokens = keys.whole(["index_topk"], 1, MAX_TOKENS) or 1
    n_heads = keys.whole(["index_n_heads"], 1, MAX_DIM, required=True) or 1
    dim = keys.whole(["index_head_dim"], 1, MAX_DIM, required=True) or 1
    kinds = keys.get("indexer_types")
    if kinds is None:
        kinds = ["full"] * n_layers
    elif not isinstance(kinds, list) or len(kinds) != n_layers or any(kind not in ("full", "shared") for kind in kinds):
        keys.bad("indexer_types", f'a list of {n_layers} entries, "full" or "shared"')
        kinds = ["full"] * n_layers
    elif kinds[0] == "shared":
        keys.bad("indexer_types", 'a list that begins with "full": the first layer has none to share')
    else:  # the same said by numbers
        for name in ("index_topk_freq", "index_topk_pattern", "index_skip_topk_offset"):
            keys.get(name)
    types = keys.get("layer_types")
    if types is not None and types != ["deepseek_sparse_attention"] * n_layers:
        keys.bad("layer_types", f'a list of {n_layers} entries "deepseek_sparse_attention"')
    keys.note(f"index keys are FP8 with an FP32 scale for every {INDEX_BLOCK} elements, whatever the KV quantizer")
    pool = keys.whole(["index_kpool"], 1, MAX_DIM, 1) or 1
    keys.used.add("index_kpool_always_select_tail")
    if pool > 1:
        keys.note(f"one index key for {pool} tokens, assumed")
    return [Index(read_tokens, heads=n_heads, dim=dim, own=kind == "full", pool=pool) for kind in kinds]


def _block_index(keys: Keys, n_layers: int) -> list[Index | None]:
    """MiniMax Sparse Attention: whole blocks are read, chosen by an index of one key a token."""
    if not isinstance(keys.get("sparse_attention_config"), dict):
        return [None] * n_layers
    table = "sparse_attention_config."
    if keys.flag(table + "use_sparse_attention") is False:
        keys.used.update(table + name for name in keys.data["sparse_attention_config"])
        return [None] * n_layers
    marks = keys.per_layer([table + "sparse_attention_freq"], n_layers, 0, 1)
    values = keys.per_layer([table + "sparse_disable_index_value"], n_layers, 0, 1)
    if any(mark and not no_value for mark, no_value in zip(marks, values, strict=True)):
        keys.bad(
            table + "sparse_disable_index_value",
            "1 in every layer that reads sparsely: values of an index are not supported",
        )
    block = keys.whole([table + "sparse_block_size"], 1, MAX_TOKENS, required=True) or 1
    n_blocks = keys.whole([table + "sparse_topk_blocks"], 1, MAX_TOKENS, required=True) or 1
    dim = keys.whole([table + "sparse_index_dim"], 1, MAX_DIM, required=True) or 1
    n_heads = keys.whole([table + "sparse_num_index_heads"], 1, MAX_DIM, required=True) or 1
    keys.used.update(table + name for name in ("sparse_local_block", "sparse_init_block", "sparse_score_type"))
    keys.note("index keys are 16-bit, assumed, whatever the KV quantizer; the local block is one of those chosen")
    layer_index = Index(n_blocks * block, heads=n_heads, dim=dim, element_bits=16, scale_bits=0)
    return [layer_index if mark else None for mark in marks]


def _compressed(keys: Keys, n_layers: int, hidden: int, q_heads: list[int]) -> list[Mixer]:
    """DeepSeek-V4: a window in every layer, and a compressed cache beside it by compress_ratios."""
    ratios = keys.get("compress_ratios")
    n_more = keys.whole(["num_nextn_predict_layers"], 0, MAX_LAYERS, 0) or 0
    if (
        not isinstance(ratios, list)
        or len(ratios) not in (n_layers, n_layers + max(n_more, 1))  # those that predict more tokens come last
        or any(ratio not in (0, 4, 128) for ratio in ratios)
    ):
        keys.bad("compress_ratios", f"a list of {n_layers} entries (and one of each MTP layer): 0, 4 or 128")
        return [NOTHING] * n_layers
    dim = keys.whole(HEAD_DIM, 1, MAX_DIM, required=True) or 128
    if dim % 128:
        keys.bad(keys.name_of(HEAD_DIM), "a multiple of 128, the most tokens of an entry")
        return [NOTHING] * n_layers
    keys.whole(["num_key_value_heads"], 1, 1, 1)
    window = keys.whole(WINDOW, 1, MAX_TOKENS, required=True) or 1
    rank = keys.whole(["q_lora_rank"], 1, MAX_DIM, required=True) or 1
    groups = keys.whole(["o_groups"], 1, MAX_DIM, required=True) or 1
    out_rank = keys.whole(["o_lora_rank"], 1, MAX_DIM, required=True) or 1
    keys.get("qk_rope_head_dim")  # a part of head_dim
    index = Index(
        keys.whole(["index_topk"], 1, MAX_TOKENS, required=True) or 1,
        heads=keys.whole(["index_n_heads"], 1, MAX_DIM, required=True) or 1,
        dim=keys.whole(["index_head_dim"], 1, MAX_DIM, required=True) or 1,
        element_bits=4,
        scale_bits=0,
    )
    keys.note("index keys are FP4, whatever the KV quantizer; tokens wait for their entry in FP32, not read by steps")
    return [
        Compressed(
            hidden,
            q_heads=q,
            q_rank=rank,
            dim=dim,
            out_groups=groups,
            out_rank=out_rank,
            window=window,
            ratio=ratio,
            index=index if ratio == 4 else None,
        ).mixer()
        for q, ratio in zip(q_heads, ratios, strict=False)
    ]


def _state_bytes(keys: Keys, names: list[str], default: str) -> int:
    """Bytes of an element of a state, by the name of its type."""
    key = next((name for name in names if keys.get(name) is not None), names[0])
    value = keys.get(key)
    if value is None:
        keys.note(f"states are {default}: key {key} absent")
        return STATE_TYPES[default]
    if value not in STATE_TYPES:
        keys.bad(key, f"one of {', '.join(STATE_TYPES)}")
        return STATE_TYPES[default]
    return STATE_TYPES[value]


def _states(keys: Keys, model_type: str, n_layers: int, hidden: int) -> list[Mixer | None]:
    """Layers of a constant state among those of attention: the gated delta rule, Kimi delta attention."""
    if model_type in (*MAMBA, *CONVOLUTIONS):
        return _mamba_or_convolution(keys, model_type, n_layers, hidden)
    if model_type in KIMI and isinstance(keys.get("linear_attn_config"), dict):
        return _kimi_states(keys, n_layers, hidden)
    if model_type == "minimax":
        return _lightning(keys, n_layers, hidden)
    types = keys.get("layer_types") if model_type.startswith(GATED_DELTA) else None
    if types is None and model_type.startswith(GATED_DELTA) and keys.data.get("linear_num_key_heads"):
        interval = keys.whole(["full_attention_interval"], 1, MAX_LAYERS, required=True) or 1
        types = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(n_layers)]
    if not isinstance(types, list) or "linear_attention" not in types or len(types) != n_layers:
        return [None] * n_layers
    keys.get("full_attention_interval")  # the list says it
    names = {
        "key_heads": "num_key_heads",
        "key_dim": "key_head_dim",
        "value_heads": "num_value_heads",
        "value_dim": "value_head_dim",
        "conv": "conv_kernel_dim",
    }
    sizes = {name: keys.whole([f"linear_{key}"], 1, MAX_DIM, required=True) or 1 for name, key in names.items()}
    for name in ("a_log_max", "allow_neg_eigval", "dt_init_floor", "dt_max", "dt_min"):  # of Olmo's training
        keys.get(f"linear_{name}")
    state = gated_delta(hidden, state_bytes=_state_bytes(keys, ["mamba_ssm_dtype"], "float32"), **sizes)
    return [state if kind == "linear_attention" else None for kind in types]


def _lightning(keys: Keys, n_layers: int, hidden: int) -> list[Mixer | None]:
    """MiniMax-Text-01's layers of lightning attention, with as many heads of keys and values as of queries."""
    kinds = keys.get("layer_types")
    if not isinstance(kinds, list) or "linear_attention" not in kinds or len(kinds) != n_layers:
        return [None] * n_layers
    for kind in ("full_attn", "linear_attn", "mlp"):
        for factor in ("alpha_factor", "beta_factor"):
            keys.get(f"{kind}_{factor}")
    keys.get("block_size")
    n_heads = keys.whole(Q_HEADS, 1, MAX_DIM, required=True) or 1
    state = lightning(hidden, n_heads, keys.whole(HEAD_DIM, 1, MAX_DIM) or hidden // n_heads, STATE_TYPES["float32"])
    keys.note("states are float32, as vLLM keeps those of lightning attention")
    return [state if kind == "linear_attention" else None for kind in kinds]


def _mamba_or_convolution(keys: Keys, model_type: str, n_layers: int, hidden: int) -> list[Mixer | None]:
    """Granite 4's layers of Mamba-2, LFM's of a short convolution."""
    words = ("linear_attention", "mamba", "conv")
    kinds = keys.data.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != n_layers:
        kinds = []
    keys.used.update(("conv_L_cache", "full_attn_idxs"))
    if not any(kind in words for kind in kinds):
        return [None] * n_layers
    if model_type in MAMBA:
        names = {"heads": "n_heads", "dim": "d_head", "groups": "n_groups", "state_size": "d_state", "conv": "d_conv"}
        sizes = {name: keys.whole([f"mamba_{key}"], 1, MAX_WIDTH, required=True) or 1 for name, key in names.items()}
        for name in ("mamba_expand", "mamba_chunk_size", "mamba_proj_bias"):
            keys.get(name)
        bias = bool(keys.flag("mamba_conv_bias"))
        state = mamba2(
            hidden, state_bytes=_state_bytes(keys, ["mamba_ssm_cache_dtype"], "bfloat16"), conv_bias=bias, **sizes
        )
    else:
        state = short_convolution(hidden, keys.whole(["conv_L_cache"], 1, MAX_DIM, required=True) or 1)
    return [state if kind in words else None for kind in kinds]


def _kimi_states(keys: Keys, n_layers: int, hidden: int) -> list[Mixer | None]:
    table = "linear_attn_config."
    kda, full = keys.get(table + "kda_layers"), keys.get(table + "full_attn_layers")
    if (
        not isinstance(kda, list)
        or not isinstance(full, list)
        or len(kda) + len(full) != n_layers
        or {*map(str, kda), *map(str, full)} != {str(i + 1) for i in range(n_layers)}
    ):
        keys.bad(table + "kda_layers", f"with full_attn_layers all layers 1 to {n_layers}, each once")
        return [None] * n_layers
    n_heads = keys.whole([table + "num_heads"], 1, MAX_DIM, required=True) or 1
    dim = keys.whole([table + "head_dim"], 1, MAX_DIM, required=True) or 1
    conv = keys.whole([table + "short_conv_kernel_size"], 1, MAX_DIM, required=True) or 1
    keys.used.add(table + "gate_lower_bound")
    is_ling = keys.get("model_type") == "bailing_hybrid"
    has_full_gate = keys.flag(table + "use_full_rank_gate") is True or is_ling
    state_bytes = _state_bytes(keys, ["mamba_ssm_dtype"], "float32")
    state = kimi_delta(hidden, n_heads, dim, conv, state_bytes, has_full_gate, has_full_decay=is_ling)
    return [state if i + 1 in kda else None for i in range(n_layers)]


def blocks(keys: Keys, rules: Rules, model_type: str, hidden: int) -> Blocks | None:
    """Layers whose blocks the file gives one by one; None where all are alike."""
    if model_type == "nemotron_h":
        return _nemotron_h(keys, rules, model_type, hidden)
    if model_type == "nemotron-nas":
        return _nemotron_nas(keys, rules, hidden)
    if model_type == "longcat_flash":
        return _longcat(keys, rules, hidden)
    return None


def _longcat(keys: Keys, rules: Rules, hidden: int) -> Blocks:
    """LongCat-Flash: two latent attentions a layer with a feed-forward each; the experts run beside the first of it."""
    n_pairs = keys.whole(LAYERS, 1, MAX_LAYERS, required=True) or 1
    q_heads, n_layers = keys.per_layer(Q_HEADS, 1, 1, MAX_DIM), 2 * n_pairs
    latent = _latent(keys, hidden)
    if latent is None:
        keys.missing("kv_lora_rank")
        return Blocks([NOTHING], [0])
    keys.whole(HEAD_DIM, 1, MAX_DIM)  # of the rope part alone
    heads.kv_heads(keys, "longcat_flash", q_heads)
    ffn = read_ffn(keys, rules, "longcat_flash", n_layers, hidden)
    return Blocks([replace(latent, q_heads=q_heads[0]).mixer()] * n_layers, ffn, [True, False] * n_pairs)


def _nemotron_h(keys: Keys, rules: Rules, model_type: str, hidden: int) -> Blocks:
    """Nemotron-H: blocks of Mamba-2, attention, feed-forward or experts. A mixer and what follows it is a layer."""
    text, words = keys.get("hybrid_override_pattern"), keys.get("layers_block_type")
    name = "layers_block_type" if words is not None else "hybrid_override_pattern"
    kinds = words if words is not None else [BLOCKS.get(letter) for letter in text] if isinstance(text, str) else None
    n_blocks = keys.whole(["num_hidden_layers"], 1, MAX_LAYERS)
    if (
        not isinstance(kinds, list)
        or not kinds
        or not all(kind in BLOCKS.values() for kind in kinds)
        or len(kinds) != (n_blocks or len(kinds))
        or kinds[0] not in ("mamba", "attention")
    ):
        known = ", ".join(f"{letter} ({kind})" for letter, kind in BLOCKS.items())
        keys.bad(name, f"one for each of {n_blocks or 'its'} blocks, a mixer first: {known}")
        return Blocks([NOTHING], [0])
    names = {
        "heads": "mamba_num_heads",
        "dim": "mamba_head_dim",
        "groups": "n_groups",
        "state_size": "ssm_state_size",
        "conv": "conv_kernel",
    }
    sizes = {name: keys.whole([key], 1, MAX_WIDTH, required=True) or 1 for name, key in names.items()}
    state_bytes = _state_bytes(keys, ["mamba_ssm_cache_dtype"], "float32")
    state = mamba2(hidden, state_bytes=state_bytes, conv_bias=bool(keys.flag("use_conv_bias")), **sizes)
    (q_heads,) = keys.per_layer(Q_HEADS, 1, 1, MAX_DIM)
    (kv_heads,) = heads.kv_heads(keys, model_type, [q_heads])
    dim, _ = heads.head_dims(keys, hidden, [q_heads])
    attention = _plain(rules, hidden, q_heads, kv_heads, dim, dim).mixer()
    width = keys.whole(["intermediate_size"], 1, MAX_WIDTH, required=True) or 1
    for name in ("expand", "chunk_size", "time_step_rank", "mamba_proj_bias", "use_mamba_kernels"):
        keys.get(name)
    mixers, ffn, experts = [], [], []
    for kind in kinds:
        if kind in ("mamba", "attention"):
            mixers.append(state if kind == "mamba" else attention)
            ffn.append(0)
            experts.append(False)
        elif ffn[-1] or experts[-1]:
            keys.bad(name, "blocks of which no two feed-forwards follow each other")
            break
        else:
            ffn[-1], experts[-1] = width, kind == "moe"
    keys.note(f"{len(kinds)} blocks are {len(mixers)} layers: each a mixer, and the feed-forward behind it if any")
    return Blocks(mixers, ffn, experts)


def _nemotron_nas(keys: Keys, rules: Rules, hidden: int) -> Blocks:
    """Nemotron-NAS: each layer's KV heads and feed-forward width, or none of either."""
    configs: Any = keys.get("block_configs")
    n_layers = keys.whole(["num_hidden_layers"], 1, MAX_LAYERS, required=True) or 1
    (q_heads,) = keys.per_layer(Q_HEADS, 1, 1, MAX_DIM)
    dim, _ = heads.head_dims(keys, hidden, [q_heads])
    mixers, widths = [], []
    if not isinstance(configs, list) or len(configs) != n_layers:
        keys.bad("block_configs", f"a list of {n_layers} tables, one per layer")
        return Blocks([NOTHING] * n_layers, [0] * n_layers)
    for place, block in enumerate(configs):
        problem = _problem_of_block(block, q_heads)
        if problem:
            keys.problems.append(f"{keys.where('block_configs')}: block_configs[{place}]: {problem}")
            break
        attention, ffn = block["attention"], block["ffn"]
        if attention.get("no_op"):
            mixers.append(NOTHING)
        else:
            kv_heads = q_heads // attention["n_heads_in_group"]
            mixers.append(_plain(rules, hidden, q_heads, kv_heads, dim, dim).mixer())
        width = 0 if ffn.get("no_op") else int(2 * ffn["ffn_mult"] * hidden / 3)
        widths.append(-(-width // FFN_MULTIPLE) * FFN_MULTIPLE)
    keys.used.update(("intermediate_size", "num_key_value_heads"))
    n_missing = n_layers - len(mixers)
    return Blocks(mixers + [NOTHING] * n_missing, widths + [0] * n_missing)


def _problem_of_block(block: Any, q_heads: int) -> str:
    """The part of a Nemotron-NAS layer that is not understood."""
    if not isinstance(block, dict) or not all(isinstance(block.get(part), dict) for part in ("attention", "ffn")):
        return "must have the tables attention and ffn"
    attention, ffn = block["attention"], block["ffn"]
    for part in (attention, ffn):
        for name in ("replace_with_linear", "sparsify", "window_length", "num_sink_tokens", "unshifted_sink"):
            if part.get(name):
                return f"{name} = {show(part[name])}: must be absent: it changes the layer and is not supported"
    group, wide = attention.get("n_heads_in_group"), ffn.get("ffn_mult")
    if not attention.get("no_op") and (not isinstance(group, int) or group < 1 or q_heads % group):
        return f"n_heads_in_group = {show(group)}: must divide the {q_heads} query heads"
    if not ffn.get("no_op") and (not isinstance(wide, int | float) or not 0 < wide <= 1024):
        return f"ffn_mult = {show(wide)}: must be a number above 0, at most 1,024"
    return ""
