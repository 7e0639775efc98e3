"""A GGUF file as a model: its metadata as an architecture, tensors dequantized by the package `gguf` when needed.

Names and options: gguf-py/gguf/constants.py and src/llama-model.cpp of ggml-org/llama.cpp.
"""

import math
from pathlib import Path

import numpy as np

from dse.core.errors import InputError, clean, install, show
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
from dse.transformer.gguf_header import GgufFile

_FAMILIES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
_OUTSIDE = {"token_embd.weight": "embedding", "output_norm.weight": "final_norm", "output.weight": "head"}
_INSIDE = {
    "attn_norm": "attention_norm",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_qkv": "qkv",
    "attn_output": "o",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "post_attention_norm": "post_attention_norm",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
    "post_ffw_norm": "post_mlp_norm",
}
#: Llama 3.1's divisors of frequencies
_DIVISORS = "rope_freqs.weight"
#: layers of the models whose queries are scaled by hidden size / heads, not by the head dimension: Gemma 2 and 3, 27 B
_OTHER_SCALE = {"gemma2": 46, "gemma3": 62}
#: base of RoPE of Gemma 3's local layers (arXiv:2503.19786, section 2.1); files do not say it
_LOCAL_THETA = 10_000.0
#: every n-th layer is global: Gemma 2 alternates (arXiv:2408.00118), Gemma 3 has five local layers to a global one
_GLOBAL_EVERY = {"gemma2": 2, "gemma3": 6}


def load(path: str) -> Checkpoint:
    """Read the metadata of a GGUF file. Raises InputError for one that is cut, damaged or cannot be run."""
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise InputError(f"{path}: reading GGUF files needs the package gguf: {install('models')}") from error
    file = GgufFile(path)
    family = file.meta.get("general.architecture")
    if not isinstance(family, str) or family not in _FAMILIES:
        raise refuse_family(path, family)
    if "rope_factors_long.weight" in file.tensors or "rope_factors_short.weight" in file.tensors:
        raise InputError(f"{path}: RoPE factors for long contexts (longrope): cannot be run: take a model without")
    names = _names(path, family, file)
    said = Said(path, lambda key: file.meta.get(f"{family}.{key}"), f"{family}.")
    architecture = checked(path, _architecture(path, family, said, file))

    def tensor(name: str) -> np.ndarray:
        if name not in names:
            raise InputError(f"{path}: weight {name} is missing: download the file again")
        values = file.read(names[name])
        part = name.rpartition(".")[2].partition("_")
        if family == "llama" and part[0] in ("q", "k") and part[2] in ("", "bias"):
            values = _hugging_face_order(values, architecture.n_q_heads if part[0] == "q" else architecture.n_kv_heads)
        return values

    if "embedding" not in names:
        raise InputError(f"{path}: weight token_embd is missing: download the file again")
    return Checkpoint(
        path=path,
        name=clean(str(file.meta.get("general.name") or Path(path).stem), 200),
        architecture=architecture,
        shapes={ours: file.tensors[name].shape for ours, name in names.items()},
        tensor=tensor,
        rows=lambda tokens: file.read(names["embedding"], tokens),
        encode=tokenizer.of_gguf(path, file.meta.get),
    )


def _names(path: str, family: str, file: GgufFile) -> dict[str, str]:
    """Our names of the file's tensors. Raises InputError for a tensor that is not understood."""
    names = {}
    for name in file.tensors:
        parts = name.split(".")
        if name in _OUTSIDE:
            names[_OUTSIDE[name]] = name
        elif len(parts) == 4 and parts[0] == "blk" and parts[2] in _INSIDE and parts[3] in ("weight", "bias"):
            part = _INSIDE[parts[2]]
            part = "gate_up" if family == "phi3" and part == "up" else part
            names[f"{parts[1]}.{part}" + ("_bias" if parts[3] == "bias" else "")] = name
        elif name != _DIVISORS:
            raise InputError(f"{path}: tensor {show(name)}: is not one of a {family} model that can be run")
    return names


def _hugging_face_order(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows of Q or K with channel i beside i + head_dim / 2 turned back: the converter had put both of a pair together.

    `LlamaModel.permute` of convert_hf_to_gguf.py, undone.
    """
    split = weight.reshape(n_heads, weight.shape[0] // n_heads // 2, 2, *weight.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(weight.shape)


def _architecture(path: str, family: str, said: Said, file: GgufFile) -> Architecture:
    n_layers, n_q = said.whole("block_count", MOST["layers"]), said.whole("attention.head_count", MOST["heads"])
    hidden = said.whole("embedding_length", MOST["channels"])
    head_dim = said.whole("attention.key_length", MOST["channels"], hidden // n_q)
    if said.whole("attention.value_length", MOST["channels"], head_dim) != head_dim:
        raise InputError(f"{path}: values of another dimension than keys: cannot be run")
    if n_experts := said.get("expert_count"):
        raise InputError(f"{path}: expert_count = {show(n_experts)}: mixtures of experts cannot be run")
    theta, n_rotated = said.number("rope.freq_base", 10_000.0), said.whole("rope.dimension_count", head_dim, head_dim)
    kind = said.get("rope.scaling.type") or "none"
    if kind not in ("none", "linear"):
        raise InputError(f"{path}: RoPE scaled by {show(kind)}: cannot be run; known: none, linear, Llama 3.1's")
    frequencies = plain_frequencies(theta, n_rotated)
    divisors = file.tensors.get(_DIVISORS)
    if divisors is not None:
        factors = file.read(_DIVISORS) if divisors.shape == frequencies.shape else np.zeros(1)
        if not (np.isfinite(factors) & (factors > 0)).all():
            raise InputError(f"{path}: tensor {_DIVISORS}: must be {len(frequencies):,} positive numbers")
        frequencies = frequencies / factors
    factor = "rope.scaling.factor" if said.get("rope.scaling.factor") else "rope.scale_linear"
    scale = said.number(factor, 1.0) if kind == "linear" else 1.0
    wide = Rotation(frequencies / scale, theta=theta, is_plain=divisors is None and scale == 1.0)
    window, every = said.window("attention.sliding_window"), _GLOBAL_EVERY.get(family, 0)
    is_global = [bool(every) and (i + 1) % every == 0 for i in range(n_layers)]
    local = plain_frequencies(_LOCAL_THETA, n_rotated)
    near = Rotation(local, theta=_LOCAL_THETA, is_plain=True) if family == "gemma3" else wide
    gemma = family.startswith("gemma")
    squared = hidden // n_q if gemma and _OTHER_SCALE[family] == n_layers else head_dim
    return Architecture(
        family=family,
        hidden_size=hidden,
        n_q_heads=n_q,
        n_kv_heads=said.whole("attention.head_count_kv", MOST["heads"], n_q),
        head_dim=head_dim,
        context_tokens=said.whole("context_length", MOST["tokens"]),
        norm_epsilon=said.number("attention.layer_norm_rms_epsilon"),
        activation="gelu_tanh" if gemma else "silu",
        query_scale=squared**-0.5,
        embedding_scale=math.sqrt(hidden) if gemma else 1.0,
        score_cap=said.number("attn_logit_softcapping", 50.0) if family == "gemma2" else None,
        logit_cap=said.number("final_logit_softcapping", 30.0) if family == "gemma2" else None,
        windows=tuple(None if is_wide else window for is_wide in is_global),
        rotations=tuple(wide if is_wide or window is None else near for is_wide in is_global),
    )
