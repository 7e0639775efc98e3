"""Read the heads of keys and values, their channels, and the window of each layer."""

from typing import Any

from dse.core.errors import show
from dse.specs.huggingface.keys import (
    FALCON,
    HEAD_DIM,
    HIDDEN,
    KV_HEADS,
    MAX_DIM,
    MAX_LAYERS,
    MAX_TOKENS,
    PATTERN,
    Q_HEADS,
    WINDOW,
    Keys,
)
from dse.specs.huggingface.parameters import Rules


def kv_heads(keys: Keys, model_type: str, q_heads: list[int]) -> list[int]:
    """KV heads of each layer; one where the file asks for multi-query, all query heads where it is silent."""
    n_layers, names = len(q_heads), list(KV_HEADS)
    multi_query = keys.flag("multi_query")
    if model_type in FALCON or model_type == "gpt_bigcode":
        # Falcon's new architecture has kv groups whatever multi_query says; its first 40B file has n_head_kv alone
        groups = keys.flag("new_decoder_architecture") or (model_type == "RefinedWeb" and keys.get("n_head_kv"))
        if multi_query is None and not groups:
            keys.note("multi_query = true: key absent, the default of this model_type")
        multi_query = multi_query is not False and not groups
    if keys.flag("multi_query_attention"):
        names.insert(0, "multi_query_group_num")
    else:
        keys.used.add("multi_query_group_num")
    kind = keys.get("attn_config.attn_type")
    if kind not in (None, "multihead_attention", "multiquery_attention", "grouped_query_attention"):
        keys.bad("attn_config.attn_type", "multihead_attention, multiquery_attention or grouped_query_attention")
    if multi_query or kind == "multiquery_attention":
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


def head_dims(keys: Keys, hidden: int, q_heads: list[int], apart: bool = False) -> tuple[int, int]:
    """Channels of a head's keys and values: the explicit key, else hidden size over attention heads.

    Where keys and values are `apart` v_head_dim may be another number.
    """
    explicit = keys.whole(HEAD_DIM, 1, MAX_DIM)
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
    if explicit and value_dim and value_dim != explicit and not apart:
        keys.bad("v_head_dim", f"equal to head_dim = {explicit}, or kv_lora_rank be given")
    return explicit or 1, (value_dim if apart else None) or explicit or 1


def windows(keys: Keys, rules: Rules, model_type: str, n_layers: int, has_state: list[bool]) -> list[int | None]:
    """Past tokens that each layer keeps at most; None where it keeps all, or a constant state."""
    chunk = keys.whole(["attention_chunk_size"], 1, MAX_TOKENS)
    uses_window = keys.flag("use_sliding_window")
    keys.whole(["max_window_layers"], 0, MAX_LAYERS)
    if (types := keys.get("layer_types")) is not None:
        keys.used.update((*PATTERN, *WINDOW))
        return _from_types(keys, types, n_layers, chunk, uses_window is not False, has_state)
    if model_type == "gpt_neo":
        return _neo_windows(keys, n_layers)
    if chunk:
        return _chunks(keys, n_layers, chunk)
    return _by_pattern(keys, rules, model_type, n_layers, uses_window)


def _by_pattern(keys: Keys, rules: Rules, model_type: str, n_layers: int, uses_window: bool | None) -> list[int | None]:
    """Windows by one number for all layers that have one, and a rule which do; `uses_window`: by use_sliding_window."""
    everything: list[int | None] = [None] * n_layers
    window = keys.whole(WINDOW, 1, MAX_TOKENS)
    if window is None or rules.windows == "none":
        keys.used.update(PATTERN)
        if window:
            keys.note(f"sliding_window ignored: {model_type} attends to all tokens in every layer")
        return everything
    letters = next((text for name in PATTERN if isinstance(text := keys.get(name), str)), "")
    if letters and set(letters) <= {"L", "G"}:  # EXAONE 4: local and global
        return [window if letters[i % len(letters)] == "L" else None for i in range(n_layers)]
    step = keys.whole(PATTERN, 1, MAX_LAYERS)
    if uses_window is False or (uses_window is None and rules.windows == "tail"):
        keys.note("sliding_window ignored: use_sliding_window is " + ("false" if uses_window is False else "absent"))
        return everything
    if rules.windows == "tail":
        tail = keys.whole(["max_window_layers"], 0, MAX_LAYERS, 0) or 0
        return [window if i >= tail else None for i in range(n_layers)]
    if rules.windows == "all":
        return [window] * n_layers
    if step is None and rules.windows == "unknown":
        keys.bad(keys.name_of(WINDOW), "null, or layer_types be given: this model_type does not say which layers")
        return everything
    if step is None:
        keys.note(f"sliding window in all but every layer {rules.every}: keys layer_types, {PATTERN[0]} absent")
    return [window if (i + 1) % (step or rules.every) else None for i in range(n_layers)]


def in_chunks(keys: Keys) -> bool:
    """True where layers with a window attend within chunks of that length, by `attention_chunk_size` (Llama 4)."""
    types = keys.get("layer_types")
    return bool(keys.get("attention_chunk_size")) and (not isinstance(types, list) or "chunked_attention" in types)


def _from_types(
    keys: Keys, types: Any, n_layers: int, chunk: int | None, use_window: bool, has_state: list[bool]
) -> list[int | None]:
    """Windows by the names in layer_types."""
    if not isinstance(types, list) or (n_layers and len(types) != n_layers):
        keys.bad("layer_types", f"a list of {n_layers} entries, one per layer")
        return [None] * n_layers
    limits: list[int | None] = []
    for place, kind in enumerate(types):
        if kind in ("full_attention", "attention") or any(has_state[place : place + 1]):
            limits.append(None)
        elif kind == "sliding_attention":
            if not use_window:
                keys.note("sliding_window ignored: use_sliding_window is false")
            limits.append(keys.whole(WINDOW, 1, MAX_TOKENS, required=True) if use_window else None)
        elif kind == "chunked_attention":
            if chunk is None:
                keys.missing("attention_chunk_size")
            limits.append(chunk)
        else:
            keys.problems.append(
                f"{keys.where('layer_types')}: layer_types[{len(limits)}] = {show(kind)}: must be full_attention, "
                "sliding_attention or chunked_attention: layers of a constant state are not known of this model_type"
            )
            break
    keys.used.update(WINDOW)
    return limits + [None] * (n_layers - len(limits))


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
