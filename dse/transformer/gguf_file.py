"""A GGUF file as a model: its metadata as an architecture, tensors dequantized by the package `gguf` when needed.

Names and options: gguf-py/gguf/constants.py and src/llama-model.cpp of ggml-org/llama.cpp.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from dse.core.errors import InputError, clean, install, show
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
    reader = _reader(path)
    meta = reader.fields

    def value(key: str, default: Any = None) -> Any:
        return meta[key].contents() if key in meta else default

    family = value("general.architecture")
    if family not in _FAMILIES:
        raise refuse_family(path, family)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "rope_factors_long.weight" in tensors or "rope_factors_short.weight" in tensors:
        raise InputError(f"{path}: RoPE factors for long contexts (longrope): cannot be run: take a model without")
    names = _names(path, family, tensors)

    def raw(name: str) -> np.ndarray:
        return _dequantized(path, tensors[name])

    divisors = raw(_DIVISORS) if _DIVISORS in tensors else None
    architecture = checked(path, _architecture(path, family, value, divisors))

    def tensor(name: str) -> np.ndarray:
        if name not in names:
            raise InputError(f"{path}: weight {name} is missing: download the file again")
        found = raw(names[name])
        part = name.rpartition(".")[2].partition("_")
        if family == "llama" and part[0] in ("q", "k") and part[2] in ("", "bias"):
            found = _hugging_face_order(found, architecture.n_q_heads if part[0] == "q" else architecture.n_kv_heads)
        return found

    def embedded(tokens: np.ndarray) -> np.ndarray:
        return _dequantized(path, tensors[names["embedding"]], tokens)

    if "embedding" not in names:
        raise InputError(f"{path}: weight token_embd is missing: download the file again")
    return Checkpoint(
        path=path,
        name=clean(str(value("general.name") or Path(path).stem), 200),
        architecture=architecture,
        names=frozenset(names),
        tensor=tensor,
        embedded=embedded,
        encode=tokenizer.of_gguf(path, value),
    )


def _reader(path: str) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise InputError(f"{path}: reading GGUF files needs the package gguf: {install('models')}") from error
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {(error.strerror or type(error).__name__).lower()}") from error
    if magic != b"GGUF":
        raise InputError(f"{path}: begins with {show(magic)}: a GGUF file begins with b'GGUF'")
    try:
        return GGUFReader(path)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, OSError, MemoryError) as error:
        reason = clean(str(error), 80)
        raise InputError(f"{path}: is cut or damaged: {reason}: download the file again") from error


def _names(path: str, family: str, tensors: dict[str, Any]) -> dict[str, str]:
    """Our names of the file's tensors. Raises InputError for a tensor that is not understood."""
    found = {}
    for name in tensors:
        parts = name.split(".")
        if name in _OUTSIDE:
            found[_OUTSIDE[name]] = name
        elif len(parts) == 4 and parts[0] == "blk" and parts[2] in _INSIDE and parts[3] in ("weight", "bias"):
            own = _INSIDE[parts[2]]
            own = "gate_up" if family == "phi3" and own == "up" else own
            found[f"{parts[1]}.{own}" + ("_bias" if parts[3] == "bias" else "")] = name
        elif name != _DIVISORS:
            raise InputError(f"{path}: tensor {show(name)}: is not one of a {family} model that can be run")
    return found


def _dequantized(path: str, tensor: Any, rows: np.ndarray | None = None) -> np.ndarray:
    """A tensor, or these rows of it, in float32, as the file's shape read backwards."""
    from gguf.quants import dequantize

    data = tensor.data if rows is None else tensor.data[rows]
    try:
        found = dequantize(data, tensor.tensor_type)
    except NotImplementedError as error:
        kind = getattr(tensor.tensor_type, "name", tensor.tensor_type)
        raise InputError(f"{path}: tensor {show(tensor.name)}: type {kind} cannot be dequantized by gguf") from error
    return np.asarray(found, np.float32)


def _hugging_face_order(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows of Q or K with channel i beside i + head_dim / 2 turned back: the converter had put both of a pair together.

    `LlamaModel.permute` of convert_hf_to_gguf.py, undone.
    """
    split = weight.reshape(n_heads, weight.shape[0] // n_heads // 2, 2, *weight.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(weight.shape)


def _architecture(path: str, family: str, value: Any, divisors: np.ndarray | None) -> Architecture:
    def own(key: str, default: Any = None) -> Any:
        return value(f"{family}.{key}", default)

    def needed(key: str) -> Any:
        found = own(key)
        if found is None or isinstance(found, (list, str)):
            raise InputError(f"{path}: {family}.{key} = {show(found)}: must be one number: download the file again")
        return found

    n_layers, hidden, n_q = needed("block_count"), needed("embedding_length"), needed("attention.head_count")
    check_counts(path, n_layers, n_q)
    head_dim = own("attention.key_length", hidden // n_q)
    if own("attention.value_length", head_dim) != head_dim:
        raise InputError(f"{path}: values of another dimension than keys: cannot be run")
    if own("expert_count", 0):
        raise InputError(f"{path}: expert_count = {own('expert_count')}: mixtures of experts cannot be run")
    theta, n_rotated = own("rope.freq_base", 10_000.0), own("rope.dimension_count", head_dim)
    kind, factor = own("rope.scaling.type", "none"), own("rope.scaling.factor") or own("rope.scale_linear") or 1.0
    if kind not in ("none", "linear"):
        raise InputError(f"{path}: RoPE scaled by {show(kind)}: cannot be run; known: none, linear, Llama 3.1's")
    frequencies = plain_frequencies(theta, n_rotated)
    if divisors is not None:
        frequencies = frequencies / divisors
    scale = factor if kind == "linear" else 1.0
    wide = Rotation(frequencies / scale, theta, divisors is None and scale == 1.0)
    window, every = own("attention.sliding_window") or None, _GLOBAL_EVERY.get(family, 0)
    is_global = [bool(every) and (i + 1) % every == 0 for i in range(n_layers)]
    near = Rotation(plain_frequencies(_LOCAL_THETA, n_rotated), _LOCAL_THETA, True) if family == "gemma3" else wide
    gemma = family.startswith("gemma")
    squared = hidden // n_q if gemma and _OTHER_SCALE[family] == n_layers else head_dim
    return Architecture(
        family=family,
        hidden_size=hidden,
        n_q_heads=n_q,
        n_kv_heads=own("attention.head_count_kv", n_q),
        head_dim=head_dim,
        context_tokens=needed("context_length"),
        norm_epsilon=needed("attention.layer_norm_rms_epsilon"),
        activation="gelu_tanh" if gemma else "silu",
        query_scale=squared**-0.5,
        embedding_scale=math.sqrt(hidden) if gemma else 1.0,
        score_cap=own("attn_logit_softcapping", 50.0) if family == "gemma2" else None,
        logit_cap=own("final_logit_softcapping", 30.0) if family == "gemma2" else None,
        windows=tuple(None if one else window for one in is_global),
        rotations=tuple(wide if one or window is None else near for one in is_global),
    )
