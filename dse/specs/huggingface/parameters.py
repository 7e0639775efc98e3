"""Count the parameters of a decoder that a Hugging Face config.json describes.

A config.json names its matrices only through `model_type`; RULES says, for each type we know, which
matrices, biases and norms its layers hold, and which values its config class fills in where the file is silent.
The rules are facts of the published models; tests/specs/test_huggingface.py checks them against published counts.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dse.core.errors import show

if TYPE_CHECKING:
    from dse.specs.huggingface.keys import Keys
    from dse.specs.huggingface.mixers import Mixer

MAX_WIDTH = 2**24
MAX_EXPERTS = 65_536
EXPERT_WIDTH = ["moe_intermediate_size", "moe_ffn_hidden_size", "expert_intermediate_size", "expert_ffn_hidden_size"]
FFN_WIDTH = ["intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "ffn_config.ffn_hidden_size"]


@dataclass(frozen=True)
class Rules:
    """Rules by `model_type` alone. Norms count parameters per channel: 1 weight, 2 weight and bias, 0 none."""

    gated: bool = True
    norm: int = 1
    norms_per_layer: int = 2
    qkv_bias: bool = False
    out_bias: bool = False
    ffn_bias: bool = False
    head_bias: bool = False
    qk_norm: str = ""  # "head": one head_dim each; "all": one per query and key channel
    tied: bool = False
    sinks: bool = False
    output_gate: bool = False  # the output of attention is multiplied with a gate as wide
    embedding_norm: bool = False
    learned_positions: bool = False
    extra_positions: int = 0
    ffn_multiple: int | None = None  # FFN width over hidden size where no key gives it
    ffn_divisor: int = 1  # the file's FFN width over one matrix's
    shared_width: bool = False  # one shared expert as wide as a routed one, without a key
    bias_reaches_out: bool = True  # attention_bias also gives the output projection one
    #: how windows fall on layers where layer_types is absent: none | all | tail | every (see `every`) | unknown
    windows: str = "none"
    every: int = 0
    defaults: dict[str, Any] = field(default_factory=dict)


def _sizes(*values: int | None, more: dict[str, Any] | None = None) -> dict[str, Any]:
    """A class's defaults: hidden, FFN, layers, heads, vocabulary, KV heads, head_dim, window."""
    names = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
    names += ["num_key_value_heads", "head_dim", "sliding_window"]
    return {name: value for name, value in zip(names, values, strict=False) if value is not None} | (more or {})


_BIAS: dict[str, Any] = {"qkv_bias": True, "out_bias": True, "ffn_bias": True}
_OLD = Rules(gated=False, norm=2, tied=True, ffn_multiple=4, **_BIAS)  # GPT-2 and its relatives
_GPT2 = replace(_OLD, learned_positions=True)
_LLAMA = Rules(defaults=_sizes(4096, 11008, 32, 32, 32000))
_LLAMA4 = Rules(shared_width=True, defaults=_sizes(*[None] * 5, 8, 128, more={"attention_chunk_size": 8192}))
_MISTRAL = Rules(windows="all", defaults=_sizes(4096, 14336, 32, 32, 32000, 8, None, 4096))
_MIXTRAL = Rules(windows="all", defaults=_sizes(4096, 14336, 32, 32, 32000, 8))
_QWEN2 = Rules(qkv_bias=True, windows="tail", bias_reaches_out=False)
_QWEN3 = Rules(qk_norm="head", windows="tail")
_GEMMA = Rules(tied=True, defaults=_sizes(3072, 24576, 28, 16, 256000, 16, 256))
_GEMMA2_SIZES = _sizes(2304, 9216, 26, 8, 256000, 4, 256, 4096)
_GEMMA2 = Rules(tied=True, norms_per_layer=4, windows="every", every=2, defaults=_GEMMA2_SIZES)
_GEMMA3 = replace(_GEMMA2, qk_norm="head", every=6, defaults={**_GEMMA2_SIZES, "vocab_size": 262208})
_GEMMA3N = replace(_GEMMA3, every=5, defaults=_sizes(*[None] * 3, 8, None, 2, 256, 512))
_GPTJ = Rules(gated=False, norm=2, norms_per_layer=1, ffn_bias=True, head_bias=True, ffn_multiple=4)
_PHI = Rules(gated=False, norm=2, norms_per_layer=1, head_bias=True, **_BIAS)
_FALCON = Rules(gated=False, norm=2, norms_per_layer=1, tied=True, ffn_multiple=4)
_COHERE = Rules(norms_per_layer=1, tied=True)
_OLMO2 = Rules(qk_norm="all")
_STARCODER2 = Rules(gated=False, norm=2, tied=True, windows="all", defaults={"num_key_value_heads": 2}, **_BIAS)
_GPT_OSS = Rules(sinks=True, windows="every", every=2, defaults=_sizes(*[None] * 5, 8, 64, 128), **_BIAS)

_FAMILIES = (
    ("llama granite baichuan internlm internlm2 Yi aquila exaone minicpm glm", _LLAMA),
    ("deepseek deepseek_v2 deepseek_v3 kimi_k2 minicpm3 chatglm dbrx seed_oss", Rules()),
    ("mistral_large4 mistral_large4_text glm5_next glm5_next_text longcat_flash muse_spark muse_spark_text", Rules()),
    ("laguna", Rules(qk_norm="head")),
    ("olmo_hybrid", Rules(qk_norm="all")),
    ("minimax", Rules()),
    ("deepseek_v32 glm_moe_dsa deepseek_v4 deepseek_ref kimi_k25 step3p5 step3p7", Rules()),
    ("glm4_moe_lite mistral4 axk1 sarvam_mla", Rules()),
    ("kimi_k3 kimi_linear bailing_hybrid", Rules()),
    ("ernie4_5 ernie4_5_moe solar_open sarvam_moe", Rules()),
    ("dots1 hy_v3", Rules(qk_norm="head")),
    ("exaone_moe", Rules(qk_norm="head", windows="every", every=4)),
    ("afmoe beam", Rules(qk_norm="head", norms_per_layer=4, output_gate=True)),
    ("granitemoehybrid", Rules()),
    ("lfm2 lfm2_moe", Rules(qk_norm="head", tied=True)),
    ("lfm3", Rules(qk_norm="head", norms_per_layer=4, tied=True)),
    ("minimax_m2", Rules(qk_norm="all")),
    ("minimax_m3 minimax_m3_vl minimax_m3_vl_text", Rules(qk_norm="head")),
    ("mimo", Rules(qkv_bias=True, bias_reaches_out=False)),
    ("mimo_v2 mimo_v2_flash", Rules()),
    ("nemotron_h", Rules(gated=False)),
    ("nemotron-nas", Rules()),
    ("mistral ministral", _MISTRAL),
    ("mixtral", _MIXTRAL),
    ("llama4 llama4_text", _LLAMA4),
    ("qwen", replace(_QWEN2, windows="none", ffn_divisor=2)),
    ("qwen2 qwen2_moe qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_5_omni_text", _QWEN2),
    ("qwen3", replace(_QWEN3, defaults={"head_dim": 128})),
    ("qwen3_moe qwen3_vl qwen3_vl_text qwen3_vl_moe qwen3_vl_moe_text qwen3_omni_moe_text", _QWEN3),
    ("qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text", replace(_QWEN3, windows="none")),
    ("gemma", _GEMMA),
    ("gemma2", _GEMMA2),
    ("gemma3 gemma3_text", _GEMMA3),
    ("gemma3n gemma3n_text", _GEMMA3N),
    ("gemma4 gemma4_text gemma4_unified gemma4_unified_text", replace(_GEMMA3, defaults={})),
    ("phi", _PHI),
    ("phi3", Rules(windows="all")),
    ("phimoe", Rules(windows="all", norm=2)),
    ("cohere", _COHERE),
    ("cohere2 cohere2_moe", replace(_COHERE, windows="every", every=4)),
    ("glm4_moe glm4v_moe glm4v_moe_text", Rules(bias_reaches_out=False)),
    ("olmo", Rules(norm=0)),
    ("olmo2 olmoe", _OLMO2),
    ("olmo3", replace(_OLMO2, windows="every", every=4)),
    ("exaone4", Rules(qk_norm="head", windows="every", every=4)),
    ("smollm3", Rules(windows="tail", tied=True)),
    ("gpt_oss", _GPT_OSS),
    ("gpt2 gpt_bigcode", _GPT2),
    ("gpt_neo", replace(_GPT2, qkv_bias=False)),
    ("gptj codegen", _GPTJ),
    ("gpt_neox", replace(_OLD, tied=False)),
    ("bloom", replace(_OLD, embedding_norm=True)),
    ("opt", replace(_GPT2, extra_positions=2)),
    ("falcon RefinedWebModel", _FALCON),
    ("RefinedWeb", replace(_FALCON, norms_per_layer=2)),
    ("mpt", Rules(gated=False, tied=True, ffn_multiple=4)),
    ("starcoder2", _STARCODER2),
    ("stablelm", Rules(norm=2)),
    ("nemotron", Rules(gated=False, norm=2)),
    ("openelm", Rules(qk_norm="head", tied=True)),
)
RULES: dict[str, Rules] = {name: rules for names, rules in _FAMILIES for name in names.split()}
UNKNOWN = Rules(windows="unknown")
#: types whose layers have no growing KV cache, or that have an encoder
NOT_DECODERS = re.compile(
    r"u?m?t5|longt5|m?bart|pegasus|marian|led|whisper|m2m_100|nllb-moe|.*bert.*|electra|deberta-v2|vit|clip|siglip"
    r"|falcon_mamba|mamba2?|rwkv.*|xlstm|retnet|jamba|bamba|zamba2?|recurrent_gemma|falcon_h1"
)


@dataclass(frozen=True)
class Experts:
    """Routed experts of a mixture: `width` channels each, in the layers marked True; `shared` runs for each token."""

    n: int
    active: int
    width: int
    shared: int
    shared_gate: bool
    layers: list[bool]
    #: channels of what an expert takes and gives, where that is projected from the hidden ones and back
    latent: int | None = None
    #: the feed-forward of a dense layer is the shared expert (Gemma 4)
    are_beside: bool = False


def mixture(experts: Experts | None) -> dict[str, Any]:
    """The fields of a ModelSpec that say what experts a token is sent to; of a dense model where there are none."""
    if experts is None:
        return {}
    return {
        "expert_width": experts.width,
        "shared_expert_width": experts.shared or None,
        "n_experts": experts.n,
        "n_active_experts": experts.active,
    }


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder, one entry per layer in the lists."""

    rules: Rules
    hidden: int
    vocab: int
    mixers: "list[Mixer]"
    ffn: list[int]
    experts: Experts | None
    embedding: int  # width of the token embedding, in channels
    tied: bool
    extra: int  # parameters outside the layers that one family alone has


def read_model_type(keys: "Keys", like: str = "") -> str:
    """The model type; notes what is ignored, and refuses what is no decoder with attention in every layer.

    A type that is not known is noted with what stands in for it: `like` where given, else Llama.
    """
    for place in (keys.data, keys.document.data):
        for name in ("auto_map", "trust_remote_code"):
            if place.get(name):
                keys.note(f"{name} ignored: the model's own code is never run")
        if place.get("is_encoder_decoder"):
            where = keys.document.where(
                (*keys.prefix, "is_encoder_decoder") if place is keys.data else ("is_encoder_decoder",)
            )
            keys.problems.append(
                f"{where}: is_encoder_decoder = {show(place['is_encoder_decoder'])}: must be false: "
                "a decoder-only model is expected"
            )
    value = keys.get("model_type")
    if value is None and keys.document.data.get("model_type") in RULES:  # a nested section without one
        value = keys.document.data["model_type"]
    if value is None:
        keys.note("model_type absent: parameters counted as for llama")
        return ""
    if not isinstance(value, str):
        keys.bad("model_type", "a text")
        return ""
    if NOT_DECODERS.fullmatch(value):
        keys.bad("model_type", "a decoder-only model with attention in every layer")
    elif value not in RULES:
        instead = f"read as {like}, assumed" if like else "parameters counted as for llama"
        keys.note(f"model_type {show(value)} unknown: {instead}")
    for name in ("num_nextn_predict_layers", "num_mtp_modules"):
        if (keys.whole([name], 0, 10_000, 0) or 0) > 0:
            keys.note(f"{name} ignored: multi-token prediction layers are not counted")
    return value


def read_rules(keys: "Keys", model_type: str) -> Rules:
    """Rules of `model_type`, changed by the keys of the file that switch biases, norms and gates."""
    rules = RULES.get(model_type, UNKNOWN)
    change: dict[str, Any] = {}

    def switch(name: str, *fields: str, when: bool = True) -> None:
        flag = keys.flag(name)
        if flag is not None:
            change.update(dict.fromkeys(fields, flag is when))

    switch("attention_bias", "qkv_bias", *(["out_bias"] if rules.bias_reaches_out else []))
    for name in ("add_qkv_bias", "use_qkv_bias", "qkv_bias"):
        switch(name, "qkv_bias")
    switch("use_bias", "qkv_bias", "out_bias", "ffn_bias")
    switch("mlp_bias", "ffn_bias")
    if model_type == "opt":
        switch("enable_bias", "qkv_bias", "out_bias", "ffn_bias")
    elif model_type == "internlm":
        switch("bias", "qkv_bias", "out_bias")
    elif model_type in ("falcon", "RefinedWeb", "RefinedWebModel", "internlm2"):
        switch("bias", "qkv_bias", "out_bias", "ffn_bias")
    elif model_type == "mpt":
        switch("no_bias", "qkv_bias", "out_bias", "ffn_bias", when=False)
    switch("lm_head_bias", "head_bias")
    if keys.flag("use_qk_norm") and not rules.qk_norm and not model_type.startswith("llama4"):
        change["qk_norm"] = "all" if model_type == "cohere" else "head"
    if model_type == "falcon":
        both = keys.flag("new_decoder_architecture") and keys.whole(["num_ln_in_parallel_attn"], 1, 2, 2) == 2
        change["norms_per_layer"] = 2 if both or keys.flag("parallel_attn") is False else 1
    return replace(rules, **change)


def read_ffn(keys: "Keys", rules: Rules, model_type: str, n_layers: int, hidden: int) -> list[int]:
    """FFN width of each layer, from the several names of that key. Problems go to `keys`."""
    if model_type == "openelm":
        return _openelm_widths(keys, n_layers, hidden)
    names = FFN_WIDTH
    if keys.get("dense_intermediate_size") is not None:  # MiniMax-M3: intermediate_size is that of an expert
        names = ["dense_intermediate_size"]
        keys.get("intermediate_size")
    if model_type.startswith("llama4"):
        names = ["intermediate_size_mlp", "intermediate_size"]
    if keys.find(names) is None:
        if model_type == "mpt":
            return [hidden * (keys.whole(["expansion_ratio"], 1, 1024, 4) or 4)] * n_layers
        if rules.ffn_multiple:
            keys.note(f"FFN width = {rules.ffn_multiple} * hidden size: {names[0]} absent or null")
            return [rules.ffn_multiple * hidden] * n_layers
    if keys.find(names) is None and keys.find(EXPERT_WIDTH):
        return [1] * n_layers  # read_experts asks for the width where a layer needs it
    widths = keys.per_layer(names, n_layers, 1, MAX_WIDTH)
    if model_type == "granitemoehybrid":  # the shared feed-forward alone; intermediate_size is that of an expert
        widths = keys.per_layer(["shared_intermediate_size"], n_layers, 1, MAX_WIDTH)
    if model_type == "lfm2" and keys.flag("block_auto_adjust_ff_dim") is not False:  # absent: yes
        multiple = keys.whole(["block_multiple_of"], 1, MAX_WIDTH, 256) or 1
        factor = keys.get("block_ffn_dim_multiplier") or 1
        widths = [-(-int(factor * (2 * width // 3)) // multiple) * multiple for width in widths]
    if keys.flag("use_double_wide_mlp"):  # Gemma 4 E2B: of layers that read an earlier one's cache
        n_shared = keys.whole(["num_kv_shared_layers"], 0, n_layers, 0) or 0
        widths = [width * (1 + (i >= n_layers - n_shared)) for i, width in enumerate(widths)]
    return [width // rules.ffn_divisor for width in widths]


def _openelm_widths(keys: "Keys", n_layers: int, hidden: int) -> list[int]:
    """FFN width of each layer as a multiple of the hidden size, rounded as the published widths show."""
    multiples = keys.get("ffn_multipliers")
    divisor = keys.whole(["ffn_dim_divisor"], 1, 4096, 256) or 256
    good = (
        isinstance(multiples, list)
        and len(multiples) == n_layers
        and all(isinstance(m, int | float) and not isinstance(m, bool) and 0 < m <= 1024 for m in multiples)
    )
    if not good or not isinstance(multiples, list):
        keys.bad("ffn_multipliers", f"a list of {n_layers} numbers in 0..1024, one per layer")
        return [0] * n_layers
    return [max(divisor, int(m * hidden + divisor / 2) // divisor * divisor) for m in multiples]


def read_experts(
    keys: "Keys", rules: Rules, model_type: str, n_layers: int, ffn: list[int], given: list[bool] | None = None
) -> Experts | None:
    """The routed experts, or None for a dense model; `given` says which layers have them where blocks are listed.

    Problems go to `keys`.
    """
    names = ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "ffn_config.moe_num_experts"]
    n = keys.whole(names, 0, MAX_EXPERTS, 0, same=True) or 0
    active_names = [
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "moe_topk",
        "moe_k",
        "moe_top_k",
        "num_selected_experts",
        "top_k_experts",
        "ffn_config.moe_top_k",
    ]
    if n <= 1:
        if model_type == "granitemoehybrid":
            keys.used.update(active_names)
            return None
        if keys.find(EXPERT_WIDTH) and keys.find(FFN_WIDTH) is None and not rules.ffn_multiple:
            keys.missing(FFN_WIDTH[0])
        active = keys.whole(active_names, 0, MAX_EXPERTS, 0) or 0
        if active > 1:
            keys.bad(keys.name_of(active_names), f"at most the number of experts, {n} ({keys.name_of(names)})")
        return None
    active = keys.whole(active_names, 1, MAX_EXPERTS, required=True, same=True) or 1
    if active > n:
        keys.bad(keys.name_of(active_names), f"at most {keys.name_of(names)} = {n}")
    width = _expert_width(keys, model_type, ffn)
    names = ["shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size"]
    shared = keys.whole([*names, "share_expert_dim"], 0, MAX_WIDTH)
    gate = bool(shared) and keys.find(["shared_expert_intermediate_size"]) is not None
    if shared is None:
        count = keys.whole(["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"], 0, MAX_EXPERTS, 0)
        shared = width * (int(rules.shared_width) or count or 0)
    if are_beside := bool(keys.flag("enable_moe_block")):  # Gemma 4: the dense feed-forward runs beside the experts
        shared = max(ffn, default=0)
    if zeros := keys.whole(["zero_expert_num"], 0, MAX_EXPERTS, 0) or 0:  # LongCat: experts that compute nothing
        active = max(1, active * n // (n + zeros))
        keys.note(f"{zeros} experts compute nothing: of those chosen {active} count, as even routing has it")
    if model_type == "longcat_flash":
        shared, are_beside = max(ffn, default=0), True
    layers = given or _expert_layers(keys, n_layers)
    latent = keys.whole(["moe_latent_size", "routed_expert_hidden_size", "moe_hidden_size"], 1, MAX_WIDTH)
    for name in ("n_shared_experts", "num_shared_experts", "moe_shared_expert_overlap"):
        keys.get(name)
    if not all(layers) and keys.find(FFN_WIDTH) is None:
        keys.missing(FFN_WIDTH[0])
    return Experts(
        n,
        active=active,
        width=width,
        shared=shared,
        shared_gate=gate,
        layers=layers,
        latent=latent,
        are_beside=are_beside,
    )


def _expert_width(keys: "Keys", model_type: str, ffn: list[int]) -> int:
    """Width of a routed expert, from the several names of that key."""
    names = EXPERT_WIDTH
    if model_type.startswith("llama4") or model_type == "granitemoehybrid":
        names = ["intermediate_size"]
    elif keys.get("dense_intermediate_size") is not None:
        names = [*names, "intermediate_size"]
    return (keys.whole(names, 1, MAX_WIDTH) if keys.find(names) else max(ffn, default=1)) or 1


def _expert_layers(keys: "Keys", n_layers: int) -> list[bool]:
    """Mark the layers that route to experts: each rule of a key that is present takes layers away."""
    chosen = [True] * n_layers
    first = keys.whole(["first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"], 0, 10_000, 0) or 0
    end = keys.get("moe_layer_end_index")  # the last one; -1: of all
    last = n_layers - 1 if end in (None, -1) else keys.whole(["moe_layer_end_index"], 0, 10_000, n_layers - 1)
    chosen = [first <= i <= (last or 0) for i in range(n_layers)]
    if isinstance(keys.get("moe_layer_freq"), list):
        marks = keys.per_layer(["moe_layer_freq"], n_layers, 0, 1)
        chosen = [old and mark == 1 for old, mark in zip(chosen, marks, strict=True)]
    else:
        every = keys.whole(["moe_layer_freq"], 1, 10_000, 1) or 1
        chosen = [old and i % every == 0 for i, old in enumerate(chosen)]
    names = ["decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"]
    step = keys.whole(names, 1, 10_000, 1) or 1
    chosen = [old and (i + 1) % step == 0 for i, old in enumerate(chosen)]
    if (kinds := keys.get("mlp_layer_types")) is not None:
        if not isinstance(kinds, list) or len(kinds) != n_layers or any(k not in ("dense", "sparse") for k in kinds):
            keys.bad("mlp_layer_types", f'a list of {n_layers} entries, "dense" or "sparse"')
        else:
            chosen = [old and kind == "sparse" for old, kind in zip(chosen, kinds, strict=True)]
    if (dense := keys.layer_indices("mlp_only_layers", n_layers)) is not None:
        chosen = [old and i not in dense for i, old in enumerate(chosen)]
    if listed := keys.layer_indices("moe_layers", n_layers):
        chosen = [i in listed for i in range(n_layers)]
    return chosen


def read_extra(keys: "Keys", rules: Rules, model_type: str, n_layers: int, hidden: int) -> int:
    """Parameters outside the layers that few families have: learned positions, Gemma 3n's per-layer embeddings."""
    extra = 0
    alibi = keys.flag("attn_config.alibi") if model_type == "mpt" else None
    learned = rules.learned_positions
    if model_type == "mpt":
        learned = keys.flag("learned_pos_emb") is not False and not alibi
    if learned:
        names = ["max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"]
        extra += ((keys.whole(names, 1, MAX_WIDTH, required=True) or 0) + rules.extra_positions) * hidden
    width = keys.whole(["hidden_size_per_layer_input"], 0, MAX_WIDTH, 0) or 0
    if width:
        vocab = keys.whole(["vocab_size_per_layer_input"], 1, MAX_WIDTH, 262_144) or 0
        extra += n_layers * width * (vocab + 3 * hidden)  # table, its projection, and a gate and a projection per layer
        small = "; the small AltUp and Laurel matrices are not" if model_type.startswith("gemma3n") else ""
        keys.note(f"per-layer embeddings counted{small}")
    streams = keys.whole(["hc_mult"], 1, 64, 1) or 1
    if streams > 1:  # DeepSeek-V4's hyper-connections: weights that mix the streams, before and after each block
        mixing = streams * hidden * (2 * streams + streams * streams)
        extra += 2 * n_layers * mixing + streams * streams * hidden
        keys.note("hyper-connections counted as two small products a layer; times do not know their streams")
    return extra


def read_tied(keys: "Keys", rules: Rules) -> bool:
    """Whether the output head is the embedding."""
    tied = keys.flag("tie_word_embeddings")
    if tied is None:
        tied = keys.flag("share_input_output_layers")
    if tied is None:
        keys.note(
            f"output head {'shared with' if rules.tied else 'apart from'} the embedding: key tie_word_embeddings absent"
        )
        return rules.tied
    # classes of both sections fill in true where neither file did
    return tied and keys.document.data.get("tie_word_embeddings") is not False


def _ffn(shape: Shape, width: int, hidden: int | None = None) -> int:
    matrices, channels = 3 if shape.rules.gated else 2, hidden or shape.hidden
    return matrices * channels * width + (shape.rules.ffn_bias * ((matrices - 1) * width + channels) if width else 0)


def count(shape: Shape) -> tuple[int, int]:
    """(parameters outside the routed experts, parameters of all routed experts)."""
    rules, hidden, experts = shape.rules, shape.hidden, shape.experts
    norm = rules.norm * hidden
    dense = shape.vocab * shape.embedding + shape.extra + norm * (1 + rules.embedding_norm)
    dense += 0 if shape.tied else shape.vocab * shape.embedding
    dense += shape.vocab * rules.head_bias
    if shape.embedding != hidden:  # OPT-350M: one projection in, one out, and no final norm
        dense += 2 * shape.embedding * hidden - norm
    routed = 0
    for layer, width in enumerate(shape.ffn):
        dense += shape.mixers[layer].parameters + rules.norms_per_layer * norm
        if experts is None or not experts.layers[layer]:
            dense += _ffn(shape, width)
            continue
        routed += experts.n * _ffn(shape, experts.width, experts.latent)
        dense += 2 * hidden * (experts.latent or 0)
        dense += experts.n * (hidden + rules.ffn_bias)  # router
        dense += (_ffn(shape, experts.shared) if experts.shared else 0) + experts.shared_gate * hidden
    return dense, routed


#: names of feed-forwards, shared experts and routed ones in the layers of checkpoints
_FFN_ROOTS = ("mlp", "feed_forward", "mixer", "ffn", "block_sparse_moe")
_SHARED_ROOTS = tuple(f"{root}.{name}" for root in _FFN_ROOTS for name in ("shared_expert", "shared_experts"))
_ROUTED_ROOTS = tuple(f"{root}.experts.0" for root in _FFN_ROOTS)


def ffn_matrices(shape: Shape, layer: int) -> Iterator[tuple[tuple[str, ...], str, int, bool]]:
    """Yield the matrices behind a layer's mixer: where they lie, name, parameters, and whether experts are routed."""
    experts, names = shape.experts, ("gate_proj", "up_proj", "down_proj")[not shape.rules.gated :]
    if experts is None or not experts.layers[layer]:
        yield from ((_FFN_ROOTS, name, shape.hidden * shape.ffn[layer], False) for name in names)
        return
    n_of_expert = (experts.latent or shape.hidden) * experts.width
    routed, shared = (("experts.0",), _FFN_ROOTS) if experts.are_beside else (_ROUTED_ROOTS, _SHARED_ROOTS)
    yield from ((routed, name, experts.n * n_of_expert, True) for name in names)
    yield from ((shared, name, shape.hidden * experts.shared, False) for name in names if experts.shared)


def routers(shape: Shape) -> int:
    """Parameters of all layers that choose experts, which each of several devices holds whole."""
    if shape.experts is None:
        return 0
    return sum(shape.experts.layers) * shape.experts.n * (shape.hidden + shape.rules.ffn_bias)


def activation_elements(shape: Shape) -> int:
    """Elements live at once per token in the widest operation: input and output rows and the widest inner one."""
    return max(layer_elements(shape), 2 * shape.hidden + shape.vocab)


def layer_elements(shape: Shape) -> int:
    """Elements live at once in the widest operation of a layer, without the output head."""
    inner = []
    gates = 2 if shape.rules.gated else 1
    for layer, width in enumerate(shape.ffn):
        experts = shape.experts
        inner.append(shape.mixers[layer].inner_elements)
        mixed = experts is not None and experts.layers[layer]
        inner.append(gates * (experts.active * experts.width + experts.shared if mixed and experts else width))
    return 2 * shape.hidden + max(inner)
