"""A Hugging Face directory as a model: config.json, *.safetensors and tokenizer.json as plain data.

Nothing in it is executed.

Options: the modeling files of huggingface/transformers, release 5.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from dse.core.errors import InputError, clean, show
from dse.measure.dumps import DumpLimits, open_dump
from dse.transformer import tokenizer
from dse.transformer.checkpoint import (
    Architecture,
    Checkpoint,
    Rotation,
    check_counts,
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
#: bytes of a config or an index that are read
MAX_JSON_BYTES = 64 * 2**20
#: tensors of all sizes are read, one at a time
_LIMITS = DumpLimits(max_bytes=2**50)


def load(path: str) -> Checkpoint:
    """Read the config and the headers of the weights. Raises InputError for what is missing or cannot be run."""
    folder = Path(path)
    config = _json(folder / "config.json")
    kind = config.get("model_type")
    family = _FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise refuse_family(path, kind)
    if isinstance(config.get("text_config"), dict):
        config = config | config["text_config"]
    if config.get("quantization_config"):
        raise InputError(f"{path}: quantization_config: quantized weights are read from GGUF files only")
    architecture = checked(path, _architecture(path, family, config))
    files, names = _names(path, folder, family)
    gemma = family.startswith("gemma")

    def tensor(name: str) -> np.ndarray:
        if name not in names:
            raise InputError(f"{path}: weight {name} is missing: download the files again")
        with open_dump(files[names[name]], _LIMITS) as dump:
            found = dump.read(names[name]).astype(np.float32, copy=False)
        return found + np.float32(1) if gemma and name.endswith("norm") else found  # Gemma keeps norms less 1

    return Checkpoint(
        path=path,
        name=clean(str(config.get("_name_or_path") or folder.resolve().name), 200),
        architecture=architecture,
        names=frozenset(names),
        tensor=tensor,
        embedded=lambda tokens: tensor("embedding")[tokens],
        encode=tokenizer.of_hugging_face(folder / "tokenizer.json"),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise InputError(f"{path}: has more than {MAX_JSON_BYTES:,} bytes: is it a config?")
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {(error.strerror or type(error).__name__).lower()}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not valid JSON: {clean(str(error), 80)}: download it again") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: is a {type(found).__name__}: must be a JSON object")
    return found


def _names(path: str, folder: Path, family: str) -> tuple[dict[str, Path], dict[str, str]]:
    """The file of each tensor, and our names of the tensors. Raises InputError for one that is not understood."""
    files: dict[str, Path] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with open_dump(file, _LIMITS) as dump:
            files |= {tensor.name: file for tensor in dump.tensors}
    if not files:
        raise InputError(f"{path}: holds no .safetensors file: download the weights in that format")
    prefix = next((one for one in _PREFIXES if f"{one}embed_tokens.weight" in files), None)
    if prefix is None:
        raise InputError(f"{path}: weight embed_tokens is missing: download the files again")
    known = {
        f"{prefix}embed_tokens.weight": "embedding",
        f"{prefix}norm.weight": "final_norm",
        "lm_head.weight": "head",
        "language_model.lm_head.weight": "head",
    }
    inside = {f"{name}.weight": own for name, own in (_SANDWICH if family.startswith("gemma") else _NORMS).items()}
    inside |= {f"self_attn.{name}.weight": own for name, own in (_ATTENTION | _HEAD_NORMS).items()}
    inside |= {f"self_attn.{name}.bias": f"{own}_bias" for name, own in _ATTENTION.items()}
    inside |= {f"mlp.{name}.weight": own for name, own in _MLP.items()}
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
    def number(key: str, default: Any = None) -> Any:
        found = config.get(key)
        found = default if found is None else found
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise InputError(f"{path}: {key} = {show(found)}: must be a number in config.json")
        return found

    n_layers, hidden, n_q = (number(key) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    check_counts(path, n_layers, n_q)
    gemma, head_dim = family.startswith("gemma"), number("head_dim", hidden // n_q)
    wanted = "gelu_pytorch_tanh" if gemma else "silu"
    given = config.get("hidden_activation" if gemma else "hidden_act") or wanted
    if given != wanted:
        raise InputError(f"{path}: activation {show(given)}: cannot be run; of {family}: {wanted}")
    scale = number("query_pre_attn_scalar", head_dim) if gemma else head_dim
    kinds = _kinds(path, family, config, n_layers)
    window = number("sliding_window", 0) or None
    near, wide = _rotations(path, family, config, head_dim)
    return Architecture(
        family=family,
        hidden_size=hidden,
        n_q_heads=n_q,
        n_kv_heads=number("num_key_value_heads", n_q),
        head_dim=head_dim,
        context_tokens=number("max_position_embeddings"),
        norm_epsilon=number("rms_norm_eps"),
        activation="gelu_tanh" if gemma else "silu",
        query_scale=scale**-0.5,
        embedding_scale=math.sqrt(hidden) if gemma else 1.0,
        score_cap=config.get("attn_logit_softcapping") if gemma else None,
        logit_cap=config.get("final_logit_softcapping") if gemma else None,
        windows=tuple(window if is_near else None for is_near in kinds),
        rotations=tuple(near if is_near else wide for is_near in kinds),
    )


def _kinds(path: str, family: str, config: dict[str, Any], n_layers: int) -> list[bool]:
    """True for a layer with a sliding window."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        known = {"sliding_attention": True, "full_attention": False}
        if len(kinds) != n_layers or not all(isinstance(one, str) and one in known for one in kinds):
            raise InputError(f"{path}: layer_types = {show(kinds)}: must name sliding_attention or full_attention")
        return [known[one] for one in kinds]
    if family == "gemma2":
        return [i % 2 == 0 for i in range(n_layers)]
    if family == "gemma3":
        every = config.get("sliding_window_pattern", 6)
        return [(i + 1) % every != 0 for i in range(n_layers)]
    if family in ("qwen2", "qwen3"):
        first = config.get("max_window_layers", n_layers)
        return [bool(config.get("use_sliding_window")) and i >= first for i in range(n_layers)]
    return [family in ("mistral", "phi3")] * n_layers


def _rotations(path: str, family: str, config: dict[str, Any], head_dim: int) -> tuple[Rotation, Rotation]:
    """RoPE of layers with and without a window, from rope_parameters (release 5) or rope_theta and rope_scaling."""
    said = config.get("rope_parameters")
    if isinstance(said, dict) and "full_attention" in said:
        near, wide = said.get("sliding_attention"), said.get("full_attention")
    else:
        base = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if config.get(key) is not None}
        wide = base | (config.get("rope_scaling") or {}) | (said if isinstance(said, dict) else {})
        near = {"rope_theta": config.get("rope_local_base_freq", 10_000.0)} if family == "gemma3" else wide
    return _rotation(path, near, head_dim), _rotation(path, wide, head_dim)


def _rotation(path: str, said: Any, head_dim: int) -> Rotation:
    """RoPE with its scaling, as modeling_rope_utils.py of transformers computes it."""
    said = {"rope_theta": 10_000.0, "partial_rotary_factor": 1.0} | (said if isinstance(said, dict) else {})
    kind = said.get("rope_type", said.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise InputError(f"{path}: RoPE scaled by {show(kind)}: cannot be run; known: default, linear, llama3")
    needed = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}.get(kind, ())
    if kind == "llama3":
        needed = (*needed, "original_max_position_embeddings")
    for key in ("rope_theta", "partial_rotary_factor", *needed):
        if isinstance(said.get(key), bool) or not isinstance(said.get(key), (int, float)) or said[key] <= 0:
            raise InputError(f"{path}: {key} = {show(said.get(key))}: must be a positive number in config.json")
    theta = float(said["rope_theta"])
    frequencies = plain_frequencies(theta, int(head_dim * min(said["partial_rotary_factor"], 1)))
    if kind == "linear":
        frequencies = frequencies / said["factor"]
    if kind == "llama3":
        turns = said["original_max_position_embeddings"] * frequencies / (2 * np.pi)
        low, high = said["low_freq_factor"], said["high_freq_factor"]
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        frequencies = (1 - smooth) * frequencies / said["factor"] + smooth * frequencies
    return Rotation(frequencies, theta, kind == "default")
