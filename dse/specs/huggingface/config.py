"""Read a Hugging Face config.json as plain data into a ModelSpec. No model code is imported or run.

A key that changes what a layer caches and is not understood is an error that names it: a wrong KV size is worse
than none. Where the file is silent the rule applied is written into the notes of the ModelSpec.
"""

import re
from itertools import groupby
from pathlib import Path
from typing import Any

from dse.core.errors import SpecError, clean, show
from dse.core.specfile import Document, KeyPath
from dse.specs.device_and_model import LayerKV, ModelSpec
from dse.specs.huggingface import parameters as hf_params
from dse.specs.huggingface.keys import (
    FALCON,
    HARMLESS,
    HEAD_DIM,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    MARKS,
    MAX_DIM,
    MAX_HIDDEN,
    MAX_LATENT,
    MAX_LAYERS,
    MAX_TOKENS,
    MIXTURE,
    MIXTURE_HARMLESS,
    NESTED,
    OFF,
    PATTERN,
    POSITIONS,
    Q_HEADS,
    SUSPICIOUS,
    VOCAB,
    WINDOW,
    Keys,
)
from dse.specs.huggingface.parameters import Index, Rules, Shape
from dse.specs.tokens import index_bits, index_flops

#: elements of an index key that share a scale, and the bits of an element and of a scale
INDEX_BLOCK, INDEX_ELEMENT_BITS, INDEX_SCALE_BITS = 128, 8, 32


def looks_like_config(data: dict[str, Any]) -> bool:
    """Whether parsed JSON is a Hugging Face config rather than a file in our own format."""
    return any(mark in data for mark in MARKS)


def from_document(document: Document) -> ModelSpec:
    """The model that a parsed config.json describes. Raises SpecError with every problem, one line each.

    Layers come in order, equal neighbours in one LayerKV. Key names follow the configuration classes of the
    transformers library and the published files of the models in tests/golden/hf_configs.
    """
    keys = Keys(document)
    model_type = hf_params.read_model_type(keys)
    rules = hf_params.read_rules(keys, model_type)
    keys.defaults = rules.defaults
    n_layers = keys.whole(LAYERS, 1, MAX_LAYERS, required=True, same=True) or 0
    hidden = keys.whole(HIDDEN, 1, MAX_HIDDEN, required=True, same=True) or 0
    vocab = keys.whole(VOCAB, 1, 2**24, required=True) or 0
    q_heads = keys.per_layer(Q_HEADS, n_layers, 1, MAX_DIM)
    latent = _latent(keys)
    index = _index(keys, n_layers) if rules.indexed and latent else None
    kv_heads = _kv_heads(keys, model_type, q_heads)
    head_dim = _head_dim(keys, hidden, q_heads, latent is not None)
    windows = _windows(keys, rules, model_type, n_layers)
    stored = n_layers - (keys.whole(["num_kv_shared_layers"], 0, max(n_layers - 1, 0), 0) or 0 if n_layers else 0)
    ffn = hf_params.read_ffn(keys, rules, model_type, n_layers, hidden)
    experts = hf_params.read_experts(keys, rules, model_type, n_layers, ffn)
    embedding = keys.whole(["word_embed_proj_dim"], 1, MAX_HIDDEN, hidden) or hidden
    tied = hf_params.read_tied(keys, rules)
    extra = hf_params.read_extra(keys, rules, model_type, n_layers, hidden)
    shape = Shape(
        rules, hidden, vocab, q_heads, kv_heads, head_dim, latent, ffn, experts, embedding, tied, extra, index
    )  # fmt: skip
    positions = keys.whole(POSITIONS, 1, MAX_TOKENS)
    _not_understood(keys)
    if keys.problems:
        raise SpecError(dict.fromkeys(keys.problems))
    if len(set(q_heads)) > 1:
        keys.note(f"{keys.name_of(Q_HEADS)} varies by layer: the largest is shown")
    dense, routed = hf_params.count(shape)
    name = _name(document.path)
    return ModelSpec(
        name=name,
        title=name,
        source=f"config.json: {clean(document.path, 200)}",
        hidden_size=hidden,
        vocab_size=vocab,
        n_q_heads=max(q_heads),
        layers=_runs(shape, windows, stored),
        attention_parameters=hf_params.count_attention(shape),
        embedding_parameters=0 if shape.tied else shape.vocab * shape.embedding,
        dense_parameters=dense,
        expert_parameters=routed,
        n_experts=experts.n if routed and experts else 1,
        n_active_experts=experts.active if routed and experts else 1,
        activation_elements=hf_params.activation_elements(shape),
        layer_elements=hf_params.layer_elements(shape),
        max_position_tokens=positions,
        notes=tuple(keys.notes),
    )


def _name(path: str) -> str:
    """A short name from the path: the folder of a file called config.json, else the file without its ending."""
    stem = Path(path).stem
    word = Path(path).absolute().parent.name if stem == "config" else stem
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", word).lstrip("._+-")[:64] or "config"


def _latent(keys: Keys) -> tuple[int, int, int, int, int] | None:
    """(q rank, kv rank, nope dim, rope dim, v dim) of multi-head latent attention; None where it is not used."""
    if keys.get("kv_lora_rank") is None:
        return None
    rank = keys.whole(["kv_lora_rank"], 1, MAX_LATENT) or 1
    rope = keys.whole(["qk_rope_head_dim"], 1, MAX_LATENT, required=True) or 1
    nope = keys.whole(["qk_nope_head_dim"], 0, MAX_DIM, required=True) or 0
    value = keys.whole(["v_head_dim"], 1, MAX_DIM, required=True) or 1
    q_rank = keys.whole(["q_lora_rank"], 0, MAX_DIM, 0) or 0
    keys.used.add("qk_head_dim")  # nope + rope, written out
    return q_rank, rank, nope, rope, value


def _index(keys: Keys, n_layers: int) -> Index | None:
    """The index by which every layer chooses the tokens that it reads; None where the file has none."""
    if keys.get("index_topk") is None:
        return None
    read_tokens = keys.whole(["index_topk"], 1, MAX_TOKENS) or 1
    heads = keys.whole(["index_n_heads"], 1, MAX_DIM, required=True) or 1
    dim = keys.whole(["index_head_dim"], 1, MAX_DIM, required=True) or 1
    for name, kind in (("indexer_types", "full"), ("layer_types", "deepseek_sparse_attention")):
        if keys.get(name) is not None and keys.get(name) != [kind] * n_layers:
            keys.bad(name, f'a list of {n_layers} entries "{kind}": layers that share an index are not supported')
    keys.note(f"index keys are FP8 with an FP32 scale for every {INDEX_BLOCK} elements, whatever the KV quantizer")
    return Index(read_tokens, heads, dim)


def _kv_heads(keys: Keys, model_type: str, q_heads: list[int]) -> list[int]:
    """KV heads of each layer; one where the file asks for multi-query, all query heads where it is silent."""
    n_layers, names = len(q_heads), list(KV_HEADS)
    one = keys.flag("multi_query")
    if model_type in FALCON or model_type == "gpt_bigcode":
        # Falcon's new architecture has kv groups whatever multi_query says; its first 40B file has n_head_kv alone
        groups = keys.flag("new_decoder_architecture") or (model_type == "RefinedWeb" and keys.get("n_head_kv"))
        if one is None and not groups:
            keys.note("multi_query = true: key absent, the default of this model_type")
        one = one is not False and not groups
    if keys.flag("multi_query_attention"):
        names.insert(0, "multi_query_group_num")
    else:
        keys.used.add("multi_query_group_num")
    kind = keys.get("attn_config.attn_type")
    if kind not in (None, "multihead_attention", "multiquery_attention", "grouped_query_attention"):
        keys.bad("attn_config.attn_type", "multihead_attention, multiquery_attention or grouped_query_attention")
    if one or kind == "multiquery_attention":
        keys.used.update(names)
        return [1] * n_layers
    if keys.find(names) is None:
        state = "null" if names[0] in keys.data else "absent"
        keys.note(f"kv heads = attention heads: key {names[0]} {state}")
        return list(q_heads)
    kv_heads = keys.per_layer(names, n_layers, 1, MAX_DIM)
    for q, kv in sorted(set(zip(q_heads, kv_heads, strict=True))):
        if q % kv:
            keys.bad(keys.name_of(names), f"a divisor of {keys.name_of(Q_HEADS)} = {q}")
    return kv_heads


def _head_dim(keys: Keys, hidden: int, q_heads: list[int], latent: bool) -> int:
    """Channels of one head: the explicit key, else hidden size over attention heads."""
    explicit = keys.whole(HEAD_DIM, 1, MAX_DIM)
    if latent:  # a file with a latent also carries head_dim for the rope part alone
        return explicit or 1
    value_dim = keys.whole(["v_head_dim"], 1, MAX_DIM)
    if explicit is None and keys.find(HEAD_DIM) is None and hidden and q_heads:
        heads = max(q_heads)
        if hidden % heads or min(q_heads) != heads:
            keys.bad(keys.name_of(HIDDEN), f"a multiple of {keys.name_of(Q_HEADS)} = {heads}, or head_dim be given")
        elif hidden // heads > MAX_DIM:
            keys.bad(keys.name_of(HIDDEN), f"at most {MAX_DIM:,} per head")
        else:
            explicit = hidden // heads
            keys.note(f"head_dim = {keys.name_of(HIDDEN)} / {keys.name_of(Q_HEADS)} = {explicit}: key head_dim absent")
    if explicit and value_dim and value_dim != explicit:
        keys.bad("v_head_dim", f"equal to head_dim = {explicit}, or kv_lora_rank be given")
    return explicit or 1


def _windows(keys: Keys, rules: Rules, model_type: str, n_layers: int) -> list[int | None]:
    """How many past tokens each layer keeps; None where it keeps all."""
    everything: list[int | None] = [None] * n_layers
    chunk = keys.whole(["attention_chunk_size"], 1, MAX_TOKENS)
    asked = keys.flag("use_sliding_window")
    tail = keys.whole(["max_window_layers"], 0, MAX_LAYERS, 0) or 0
    if (types := keys.get("layer_types")) is not None and not rules.indexed:
        keys.used.update((*PATTERN, *WINDOW))
        return _from_types(keys, types, n_layers, chunk, asked is not False)
    if model_type == "gpt_neo":
        return _neo_windows(keys, n_layers)
    if chunk:
        return _chunks(keys, n_layers, chunk)
    window = keys.whole(WINDOW, 1, MAX_TOKENS)
    if window is None or rules.windows == "none":
        keys.used.update(PATTERN)
        if window:
            keys.note(f"sliding_window ignored: {model_type} attends to all tokens in every layer")
        return everything
    step = keys.whole(PATTERN, 1, MAX_LAYERS)
    if asked is False or (asked is None and rules.windows == "tail"):
        keys.note("sliding_window ignored: use_sliding_window is " + ("false" if asked is False else "absent"))
        return everything
    if rules.windows == "tail":
        return [window if i >= tail else None for i in range(n_layers)]
    if rules.windows == "all":
        return [window] * n_layers
    if step is None and rules.windows == "unknown":
        keys.bad(keys.name_of(WINDOW), "null, or layer_types be given: this model_type does not say which layers")
        return everything
    if step is None:
        keys.note(f"sliding window in all but every layer {rules.every}: keys layer_types, {PATTERN[0]} absent")
    return [window if (i + 1) % (step or rules.every) else None for i in range(n_layers)]


def _from_types(keys: Keys, types: Any, n_layers: int, chunk: int | None, use_window: bool) -> list[int | None]:
    """Windows by the names in layer_types."""
    if not isinstance(types, list) or (n_layers and len(types) != n_layers):
        keys.bad("layer_types", f"a list of {n_layers} entries, one per layer")
        return [None] * n_layers
    windows: list[int | None] = []
    for kind in types:
        if kind in ("full_attention", "attention"):
            windows.append(None)
        elif kind == "sliding_attention":
            if not use_window:
                keys.note("sliding_window ignored: use_sliding_window is false")
            windows.append(keys.whole(WINDOW, 1, MAX_TOKENS, required=True) if use_window else None)
        elif kind == "chunked_attention":
            if chunk is None:
                keys.missing("attention_chunk_size")
            windows.append(chunk)
        else:
            keys.problems.append(
                f"{keys.where('layer_types')}: layer_types[{len(windows)}] = {show(kind)}: must be full_attention, "
                "sliding_attention or chunked_attention: layers of a constant state are not supported"
            )
            break
    keys.used.update(WINDOW)
    return windows + [None] * (n_layers - len(windows))


def _chunks(keys: Keys, n_layers: int, chunk: int) -> list[int | None]:
    """Llama 4: layers with rope attend within a chunk, those without (1 in 4 if no list says) to all tokens."""
    if keys.get("no_rope_layers"):
        ropes = keys.per_layer(["no_rope_layers"], n_layers, 0, 1)
        return [chunk if rope else None for rope in ropes]
    step = keys.whole(["no_rope_layer_interval"], 1, MAX_LAYERS, 4) or 4
    keys.note(f"chunked attention in all but every layer {step}: keys layer_types, no_rope_layers absent or empty")
    return [chunk if (i + 1) % step else None for i in range(n_layers)]


def _neo_windows(keys: Keys, n_layers: int) -> list[int | None]:
    """GPT-Neo: attention_layers lists "global" or "local" for each layer."""
    window = keys.whole(["window_size"], 1, MAX_TOKENS, 256)
    kinds = keys.get("attention_layers")
    keys.used.add("attention_types")  # the same list, run-length coded
    if not isinstance(kinds, list) or len(kinds) != n_layers or any(k not in ("global", "local") for k in kinds):
        keys.bad("attention_layers", f'a list of {n_layers} entries, "global" or "local"')
        return [None] * n_layers
    return [window if kind == "local" else None for kind in kinds]


def _not_understood(keys: Keys) -> None:
    """Record each key that speaks of the cache, or of experts, and that no rule has read."""
    if isinstance(kinds := keys.data.get("attn_type_list"), list) and kinds and set(kinds) == {1}:
        keys.used.add("attn_type_list")  # MiniMax: 1 is full attention, 0 a constant state
    if keys.get("use_cla") is False:
        keys.used.add("cla_share_factor")
    if keys.get("model_type") == "openelm":
        keys.used.update(("qkv_multipliers", "num_gqa_groups"))  # the head lists say the same
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
            if what:
                path = (*prefix, key)
                keys.problems.append(
                    f"{keys.document.where(path)}: {'.'.join(map(str, path))} = {show(value)}: "
                    f"must be absent or null: it changes {what} and is not understood"
                )


def _runs(shape: Shape, windows: list[int | None], stored: int) -> tuple[LayerKV, ...]:
    """The KV shapes in layer order, equal neighbours joined; layers from `stored` on read earlier caches."""
    each = [(kv, window, i < stored) for i, (kv, window) in enumerate(zip(shape.kv_heads, windows, strict=True))]
    groups, bits, flops, index = [], 0, 0, shape.index
    if index:
        scales = -(-index.dim // INDEX_BLOCK)
        bits = index_bits(index.dim, INDEX_ELEMENT_BITS, scales * INDEX_SCALE_BITS)
        flops = index_flops(index.heads, index.dim)
    for (kv, window, keeps), run in groupby(each):
        key_dim, value_dim, score_dim = shape.head_dim, shape.head_dim, 2 * shape.head_dim
        prompt_score_dim = None
        if shape.latent:
            _, rank, nope, rope, v = shape.latent
            kv, key_dim, value_dim, score_dim = 1, rank + rope, 0, 2 * rank + rope
            prompt_score_dim = nope + rope + v
        groups.append(
            LayerKV(
                n_layers=len(list(run)),
                n_kv_heads=kv,
                key_dim=key_dim,
                value_dim=value_dim,
                window=window,
                stored=keeps,
                score_dim=score_dim,
                prompt_score_dim=prompt_score_dim,
                read_limit_tokens=index.read_tokens if index else None,
                index_bits=bits,
                index_flops=flops,
            )
        )
    return tuple(groups)
