"""The weights of a language model, from .safetensors, and text as its tokens."""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dse.core.errors import InputError, did_you_mean, show
from dse.measure.dumps import open_dump
from dse.measure.study_table import SHIPPED
from dse.transformer.checkpoint import Rotation, plain_frequencies

#: tokens 0 to 255 are the bytes; this one begins every sequence
BOS = 256
N_TOKENS = 257
#: weights by name, and the held-out text
DATA = Path(__file__).parent / "data"
#: the linear maps of a layer: inputs and outputs, as names of sizes
_MAPS = {
    "q": ("d_model", "q_width"),
    "k": ("d_model", "kv_width"),
    "v": ("d_model", "kv_width"),
    "o": ("q_width", "d_model"),
    "gate": ("d_model", "d_ff"),
    "up": ("d_model", "d_ff"),
    "down": ("d_ff", "d_model"),
}
_SIZES = ("d_model", "n_layers", "n_q_heads", "n_kv_heads", "head_dim", "d_ff")
_MOST = {"d_model": 2**14, "n_layers": 256, "n_q_heads": 256, "n_kv_heads": 256, "head_dim": 1024, "d_ff": 2**16}


@dataclass(frozen=True)
class LayerWeights:
    """Weights of a layer, float32: norms [d_model], maps [inputs, outputs]."""

    attention_norm: np.ndarray
    mlp_norm: np.ndarray
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    o: np.ndarray
    gate: np.ndarray
    up: np.ndarray
    down: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ByteModel:
    """A decoder-only transformer: RoPE, RMSNorm, gated MLP, one embedding for tokens and logits, weights in float32."""

    name: str
    n_q_heads: int
    n_kv_heads: int
    head_dim: int
    rope_theta: float
    norm_epsilon: float
    embedding: np.ndarray
    final_norm: np.ndarray
    layers: tuple[LayerWeights, ...]

    @property
    def n_layers(self) -> int:
        """Layers."""
        return len(self.layers)

    def rotation(self, layer: int) -> Rotation:
        """RoPE, the same in every layer."""
        return Rotation(plain_frequencies(self.rope_theta, self.head_dim), self.rope_theta, True)

    @property
    def n_params(self) -> int:
        """Numbers in all weights."""
        own = self.embedding.size + self.final_norm.size
        return own + sum(weight.size for layer in self.layers for weight in vars(layer).values())


def load(source: str | os.PathLike[str]) -> ByteModel:
    """A model that ships, by name (mha, gqa), or a .safetensors file that studies/training/export.py wrote.

    Raises InputError for other names and for files that hold other tensors, shapes or metadata.
    """
    text = os.fspath(source)
    if text in SHIPPED:
        return _read(DATA / f"{text}.safetensors", text)
    if not text.lower().endswith(".safetensors"):
        raise InputError(f"model = {show(text)}: {did_you_mean(text, SHIPPED)}; or give a .safetensors file")
    return _read(Path(text), Path(text).stem)


def _read(path: Path, name: str) -> ByteModel:
    with open_dump(path) as dump:
        sizes = _sizes(path, dump.metadata)
        theta, epsilon = (_positive(path, dump.metadata, key) for key in ("rope_theta", "norm_epsilon"))
        shapes = _shapes(sizes)
        found = {tensor.name: tensor.shape for tensor in dump.tensors}
        for tensor in sorted(shapes.keys() ^ found.keys()):
            raise InputError(f"{path}: tensor {show(tensor)}: is {'missing' if tensor in shapes else 'not of a model'}")
        weights = {}
        for tensor, shape in shapes.items():
            if found[tensor] != shape:
                raise InputError(f"{path}: tensor {show(tensor)}: shape {list(found[tensor])}: must be {list(shape)}")
            weights[tensor] = dump.read(tensor).astype(np.float32)
            if not np.isfinite(weights[tensor]).all():
                raise InputError(f"{path}: tensor {show(tensor)}: holds NaN or infinity: export the model again")
    layers = []
    for i in range(sizes["n_layers"]):
        # stored [outputs, inputs], as torch does
        maps = {key: np.ascontiguousarray(weights[f"layers.{i}.{key}.weight"].T) for key in _MAPS}
        norms = (weights[f"layers.{i}.attention_norm"], weights[f"layers.{i}.mlp_norm"])
        layers.append(LayerWeights(*norms, **maps))
    return ByteModel(
        name=name,
        n_q_heads=sizes["n_q_heads"],
        n_kv_heads=sizes["n_kv_heads"],
        head_dim=sizes["head_dim"],
        rope_theta=theta,
        norm_epsilon=epsilon,
        embedding=weights["embedding"],
        final_norm=weights["final_norm"],
        layers=tuple(layers),
    )


def _sizes(path: Path, meta: Mapping[str, str]) -> dict[str, int]:
    sizes = {}
    for name in _SIZES:
        text = meta.get(name, "")
        if not re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) or not 1 <= int(text) <= _MOST[name]:
            raise InputError(f"{path}: {name} = {show(text)}: must be 1 to {_MOST[name]:,} in the metadata")
        sizes[name] = int(text)
    if sizes["n_q_heads"] % sizes["n_kv_heads"] or sizes["head_dim"] % 2:
        raise InputError(f"{path}: n_kv_heads must divide n_q_heads, and head_dim must be even, in the metadata")
    return sizes


def _positive(path: Path, meta: Mapping[str, str], name: str) -> float:
    text = meta.get(name, "")
    value = float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?(e-?[0-9]{1,2})?", text, re.ASCII) else 0.0
    if not 0 < value < math.inf:
        raise InputError(f"{path}: {name} = {show(text)}: must be a positive number in the metadata")
    return value


def _shapes(sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    widths = {
        "d_model": sizes["d_model"],
        "d_ff": sizes["d_ff"],
        "q_width": sizes["n_q_heads"] * sizes["head_dim"],
        "kv_width": sizes["n_kv_heads"] * sizes["head_dim"],
    }
    shapes: dict[str, tuple[int, ...]] = {"embedding": (N_TOKENS, sizes["d_model"]), "final_norm": (sizes["d_model"],)}
    for i in range(sizes["n_layers"]):
        shapes |= {f"layers.{i}.{norm}": (sizes["d_model"],) for norm in ("attention_norm", "mlp_norm")}
        shapes |= {f"layers.{i}.{key}.weight": (widths[into], widths[of]) for key, (of, into) in _MAPS.items()}
    return shapes


def tokens_of(text: bytes) -> np.ndarray:
    """BOS and the bytes, int64 [1 + len(text)]."""
    return np.concatenate(([BOS], np.frombuffer(text, np.uint8))).astype(np.int64)
