"""A Hugging Face directory as a model: config.json, *.safetensors and tokenizer.json as plain data.

Nothing in it is executed.

Options: the modeling files of huggingface/transformers, release 5.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from dse.core import specfile
from dse.core.errors import InputError, clean, show
from dse.measure.dumps import DumpLimits, open_dump
from dse.transformer import tokenizer
from dse.transformer.checkpoint import (
    MOST,
    Architecture,
    Checkpoint,
    Rotation,
    Said,
    checked,
    plain_frequencies,
    refuse_family,
)

_FAMILIES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gemma3": "gemma3",
    "phi3": "phi3",
}
#: scalings of RoPE that are run
ROPES = ("default", "linear", "llama3", "yarn", "longrope")
#: where the layers stand in a file of text alone, and in those with a part for images
_PREFIXES = ("model.", "language_model.model.", "model.language_model.")
_ATTENTION = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "qkv_proj": "qkv", "o_proj": "o"}
_HEAD_NORMS = {"q_norm": "q_norm", "k_norm": "k_norm"}
_MLP = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "gate_up_proj": "gate_up"}
_NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"}
_SANDWICH = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "post_mlp_norm",
}
#: tensors of all sizes are read, one at a time
_LIMITS = DumpLimits(max_bytes=2**50)


def load(path: str) -> Checkpoint:
    """Read the config and the headers of the weights. Raises InputError for what is missing or cannot be run."""
    folder = Path(path)
    config = specfile.read(folder / "config.json", "download it again").data
    kind = config.get("model_type")
    family = _FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise refuse_family(path, kind)
    if isinstance(config.get("text_config"), dict):
        config = config | config["text_config"]
    if config.get("quantization_config"):
        raise InputError(f"{path}: quantization_config: quantized weights are read from GGUF files only")
    architecture = checked(path, _architecture(path, family, config))
    places, names = _names(path, folder, family)
    gemma = family.startswith("gemma")

    def tensor(name: str) -> np.ndarray:
        if name not in names:
            raise InputError(f"{path}: weight {name} is missing: download the files again")
        with open_dump(places[names[name]][0], _LIMITS) as dump:
            weights = dump.read(names[name]).astype(np.float32, copy=False)
        return weights + np.float32(1) if gemma and name.endswith("norm") else weights  # Gemma keeps norms less 1

    return Checkpoint(
        path=path,
        name=clean(str(config.get("_name_or_path") or folder.resolve().name), 200),
        architecture=architecture,
        shapes={ours: places[name][1] for ours, name in names.items()},
        tensor=tensor,
        rows=lambda tokens: tensor("embedding")[tokens],
        encode=tokenizer.of_hugging_face(folder / "tokenizer.json"),
    )


_Places = dict[str, tuple[Path, tuple[int, ...]]]


def _names(path: str, folder: Path, family: str) -> tuple[_Places, dict[str, str]]:
    """File and shape of each tensor, and our names of them. Raises InputError for one that is not understood."""
    files: _Places = {}
    for file in sorted(folder.glob("*.safetensors")):
        with open_dump(file, _LIMITS) as dump:
            files |= {tensor.name: (file, tensor.shape) for tensor in dump.tensors}
    if not files:
        raise InputError(f"{path}: holds no .safetensors file: download the weights in that format")
    prefix = next((start for start in _PREFIXES if f"{start}embed_tokens.weight" in files), None)
    if prefix is None:
        raise InputError(f"{path}: weight embed_tokens is missing: download the files again")
    known = {
        f"{prefix}embed_tokens.weight": "embedding",
        f"{prefix}norm.weight": "final_norm",
        "lm_head.weight": "head",
        "language_model.lm_head.weight": "head",
    }
    inside = {f"{name}.weight": ours for name, ours in (_SANDWICH if family.startswith("gemma") else _NORMS).items()}
    inside |= {f"self_attn.{name}.weight": ours for name, ours in (_ATTENTION | _HEAD_NORMS).items()}
    inside |= {f"self_attn.{name}.bias": f"{ours}_bias" for name, ours in _ATTENTION.items()}
    inside |= {f"mlp.{name}.weight": ours for name, ours in _MLP.items()}
    names = {}
    for name in files:
        index, _, rest = name.removeprefix(f"{prefix}layers.").partition(".")
        if name in known:
            names[known[name]] = name
        elif name.startswith(f"{prefix}layers.") and rest in inside:
            names[f"{index}.{inside[rest]}"] = name
        elif name.startswith(prefix) and not name.endswith("rotary_emb.inv_freq"):
            raise InputError(f"{path}: tensor {show(name)}: is not one of a {family} model that can be run")
    return files, names


def _architecture(path: str, family: str, config: dict[str, Any]) -> Architecture:
    said = Said(f"{path}/config.json", config.get)
    n_layers, n_q = (said.whole("num_hidden_layers", MOST["layers"]), said.whole("num_attention_heads", MOST["heads"]))
    hidden = said.whole("hidden_size", MOST["channels"])
    gemma, head_dim = family.startswith("gemma"), said.whole("head_dim", MOST["channels"], hidden // n_q)
    wanted = "gelu_pytorch_tanh" if gemma else "silu"
    activation = config.get("hidden_activation" if gemma else "hidden_act") or wanted
    if activation != wanted:
        raise InputError(f"{path}: activation {show(activation)}: cannot be run; of {family}: {wanted}")
    scale = said.number("query_pre_attn_scalar", head_dim) if gemma else head_dim
    kinds = _kinds(path, family, config, said, n_layers)
    window = said.window("sliding_window")
    near, wide = _rotations(family, config, head_dim, said.path)
    caps = {
        key: said.number(key) if gemma and config.get(key) is not None else None
        for key in ("attn_logit_softcapping", "final_logit_softcapping")
    }
    return Architecture(
        family=family,
        hidden_size=hidden,
        n_q_heads=n_q,
        n_kv_heads=said.whole("num_key_value_heads", MOST["heads"], n_q),
        head_dim=head_dim,
        context_tokens=max(said.whole("max_position_embeddings", MOST["tokens"]), wide.context_tokens),
        norm_epsilon=said.number("rms_norm_eps"),
        activation="gelu_tanh" if gemma else "silu",
        query_scale=scale**-0.5,
        embedding_scale=math.sqrt(hidden) if gemma else 1.0,
        score_cap=caps["attn_logit_softcapping"],
        logit_cap=caps["final_logit_softcapping"],
        windows=tuple(window if is_near else None for is_near in kinds),
        rotations=tuple(near if is_near else wide for is_near in kinds),
    )


def _kinds(path: str, family: str, config: dict[str, Any], said: Said, n_layers: int) -> list[bool]:
    """True for a layer with a sliding window."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        known = {"sliding_attention": True, "full_attention": False}
        if len(kinds) != n_layers or not all(isinstance(kind, str) and kind in known for kind in kinds):
            raise InputError(f"{path}: layer_types = {show(kinds)}: must name sliding_attention or full_attention")
        return [known[kind] for kind in kinds]
    if family == "gemma2":
        return [i % 2 == 0 for i in range(n_layers)]
    if family == "gemma3":
        every = said.whole("sliding_window_pattern", MOST["layers"], 6)
        return [(i + 1) % every != 0 for i in range(n_layers)]
    if family in ("qwen2", "qwen3"):
        first = said.whole("max_window_layers", MOST["layers"], n_layers, least=0)
        return [bool(config.get("use_sliding_window")) and i >= first for i in range(n_layers)]
    return [family in ("mistral", "phi3")] * n_layers


def _rotations(family: str, config: dict[str, Any], head_dim: int, path: str) -> tuple[Rotation, Rotation]:
    """RoPE of layers with and without a window, from rope_parameters (release 5) or rope_theta and rope_scaling."""
    said = config.get("rope_parameters")
    if isinstance(said, dict) and "full_attention" in said:
        near, wide = said.get("sliding_attention"), said.get("full_attention")
    else:
        keys = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
        wide = {key: config[key] for key in keys if config.get(key) is not None}
        for more in (config.get("rope_scaling"), said):
            wide |= more if isinstance(more, dict) else {}
        near = {"rope_theta": config.get("rope_local_base_freq", 10_000.0)} if family == "gemma3" else wide
    tokens = Said(path, config.get).whole("max_position_embeddings", MOST["tokens"])
    return _rotation(path, near, head_dim, tokens), _rotation(path, wide, head_dim, tokens)


def _rotation(path: str, scaling: Any, head_dim: int, max_tokens: int) -> Rotation:
    """RoPE with its scaling, as modeling_rope_utils.py of transformers computes it."""
    scaling = scaling if isinstance(scaling, dict) else {}
    said, kind = Said(path, scaling.get), scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ROPES:
        raise InputError(f"{path}: RoPE scaled by {show(kind)}: cannot be run; known: {', '.join(ROPES)}")
    theta, share = said.number("rope_theta", 10_000.0), said.number("partial_rotary_factor", 1.0)
    frequencies = plain_frequencies(theta, int(head_dim * min(share, 1)))
    if kind == "linear":
        frequencies = frequencies / said.number("factor")
    if kind == "llama3":
        turns = said.number("original_max_position_embeddings") * frequencies / (2 * np.pi)
        low, high = said.number("low_freq_factor"), said.number("high_freq_factor")
        if low >= high:
            raise InputError(f"{path}: low_freq_factor = {low:g}: must be below high_freq_factor, {high:g}")
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        frequencies = (1 - smooth) * frequencies / said.number("factor") + smooth * frequencies
    if kind == "yarn":
        return yarn(said, frequencies, theta, max_tokens)
    if kind == "longrope":
        return longrope(said, frequencies, theta, max_tokens)
    return Rotation(frequencies, theta=theta, is_plain=kind == "default")


def yarn(said: Said, frequencies: np.ndarray, theta: float, max_tokens: int) -> Rotation:
    """YaRN (arXiv:2309.00071) 3.2 to 3.4: pairs that turn seldom in the original context are slowed by the factor.

    Those that turn often are not, and attention is sharper by (0.1 ln factor + 1)^2.

    As the paper's own code and transformers have it the ramp runs over whole pairs, not over their turns.
    """
    factor, original = said.number("factor"), said.whole("original_max_position_embeddings", MOST["tokens"], max_tokens)
    n_rotated = 2 * len(frequencies)
    often, seldom = said.number("beta_fast", 32.0), said.number("beta_slow", 1.0)

    def pair(turns: float) -> float:
        """The pair, in fractions, that turns so often in the original context."""
        return n_rotated * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(often), pair(seldom)
    if said.get("truncate") is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n_rotated - 1)
    slowed = np.clip((np.arange(len(frequencies)) - low) / (high - low or 0.001), 0, 1)
    scaled = slowed * frequencies / factor + (1 - slowed) * frequencies
    length = said.number("attention_factor", _yarn_length(said, factor))
    return Rotation(scaled, theta=theta, is_plain=False, length=length, context_tokens=int(factor * original))


def _yarn_length(said: Said, factor: float) -> float:
    """0.1 ln factor + 1; with DeepSeek's two scales of it their ratio."""

    def of(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    if said.get("mscale") and said.get("mscale_all_dim"):
        return of(said.number("mscale")) / of(said.number("mscale_all_dim"))
    return of(1.0)


def longrope(said: Said, frequencies: np.ndarray, theta: float, max_tokens: int) -> Rotation:
    """LongRoPE (arXiv:2402.13753) 3: each pair is slowed by a factor of its own that a search found, one list for texts
    up to the original context and one for longer ones.

    Attention is sharper by 1 + ln s / ln L, s of contexts new over original, L the original tokens, as Phi-3 has it.
    """
    original = said.whole("original_max_position_embeddings", MOST["tokens"], max_tokens)
    scaled = []
    for key in ("short_factor", "long_factor"):
        factors = said.get(key)
        is_list = isinstance(factors, list) and len(factors) == len(frequencies)
        if not is_list or not all(type(x) in (int, float) and 0 < x < 1e30 for x in factors):
            raise InputError(
                f"{said.path}: {key}: must be {len(frequencies):,} positive numbers, one a pair of channels"
            )
        scaled.append(frequencies / np.array(factors, float))
    growth = said.number("factor", max_tokens / original)
    length = math.sqrt(1 + math.log(growth) / math.log(original)) if growth > 1 and original > 1 else 1.0
    return Rotation(
        scaled[0],
        theta=theta,
        is_plain=False,
        length=said.number("attention_factor", length),
        long_frequencies=scaled[1],
        short_tokens=original,
    )
