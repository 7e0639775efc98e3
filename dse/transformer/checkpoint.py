"""A language model on disk: the options of its architecture, its weights a layer at a time, its tokenizer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dse.core.errors import InputError, show

#: architectures that the forward pass runs, by the name that files give them
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
#: sizes beyond these are no model's: a file that claims them is damaged
MOST = {"layers": 1024, "heads": 1024, "channels": 2**20}


@dataclass(frozen=True)
class Rotation:
    """RoPE of a layer: radians a token of each pair of channels, and whether they are those of one plain base."""

    frequencies: np.ndarray
    theta: float
    is_plain: bool

    def turns(self, first: int, n_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines, float32 [n_tokens, pairs], at positions from `first` on (arXiv:2104.09864)."""
        angles = np.arange(first, first + n_tokens)[:, None] * self.frequencies
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Sizes and options of a decoder-only transformer with RMS norms and gated MLPs."""

    family: str
    hidden_size: int
    n_q_heads: int
    n_kv_heads: int
    head_dim: int
    context_tokens: int
    norm_epsilon: float
    activation: Literal["silu", "gelu_tanh"]
    #: attention scores are query . key times this
    query_scale: float
    embedding_scale: float = 1.0
    #: x becomes cap * tanh(x / cap)
    score_cap: float | None = None
    logit_cap: float | None = None
    #: of each layer: tokens that a query sees, its own included; None: all
    windows: tuple[int | None, ...]
    rotations: tuple[Rotation, ...]

    @property
    def n_layers(self) -> int:
        """Layers."""
        return len(self.windows)


@dataclass(frozen=True, kw_only=True)
class TransformerLayer:
    """Weights of a layer, float32: norms [channels], maps [outputs, inputs], biases [outputs]."""

    attention_norm: np.ndarray
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    o: np.ndarray
    mlp_norm: np.ndarray
    gate: np.ndarray
    up: np.ndarray
    down: np.ndarray
    q_bias: np.ndarray | None = None
    k_bias: np.ndarray | None = None
    v_bias: np.ndarray | None = None
    o_bias: np.ndarray | None = None
    #: of each head's channels, before RoPE
    q_norm: np.ndarray | None = None
    k_norm: np.ndarray | None = None
    #: of what attention and MLP add
    post_attention_norm: np.ndarray | None = None
    post_mlp_norm: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A model whose weights are read when they are needed; tensors go by the names of `TransformerLayer`.

    Outside of layers: embedding, final_norm, head. Of layer 3: 3.q, 3.q_bias; fused: 3.qkv, 3.gate_up.
    """

    path: str
    name: str
    architecture: Architecture
    names: frozenset[str]
    #: a tensor in float32
    tensor: Callable[[str], np.ndarray]
    #: rows of the embedding, by token
    embedded: Callable[[np.ndarray], np.ndarray]
    #: text as tokens, special ones added where the file says so; made at the first call
    encode: Callable[[str], list[int]]

    @property
    def n_layers(self) -> int:
        """Layers."""
        return self.architecture.n_layers

    def rotation(self, layer: int) -> Rotation:
        """RoPE of a layer."""
        return self.architecture.rotations[layer]

    def layer(self, index: int) -> TransformerLayer:
        """The weights of a layer. Raises InputError for a missing tensor or one of another shape."""
        shape = self.architecture
        width, kv_width = shape.n_q_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
        own = {name.partition(".")[2] for name in self.names if name.startswith(f"{index}.")}
        found = {name: self.tensor(f"{index}.{name}") for name in sorted(own)}
        if "qkv" in found:
            parts = self._split(f"{index}.qkv", found.pop("qkv"), [width, kv_width, kv_width])
            found |= dict(zip("qkv", parts, strict=True))
        if "gate_up" in found:
            n_rows = found["gate_up"].shape[0] // 2
            parts = self._split(f"{index}.gate_up", found.pop("gate_up"), [n_rows, n_rows])
            found |= dict(zip(("gate", "up"), parts, strict=True))
        ffn = found["gate"].shape[0] if "gate" in found else 0
        wide = shape.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            **dict.fromkeys(("attention_norm", "mlp_norm", "post_attention_norm", "post_mlp_norm", "o_bias"), (wide,)),
            **dict.fromkeys(("q_norm", "k_norm"), (shape.head_dim,)),
            **{"q": (width, wide), "k": (kv_width, wide), "v": (kv_width, wide), "o": (wide, width)},
            **{"gate": (ffn, wide), "up": (ffn, wide), "down": (wide, ffn)},
            **{"q_bias": (width,), "k_bias": (kv_width,), "v_bias": (kv_width,)},
        }
        optional = ("_bias", "q_norm", "k_norm", "post_attention_norm", "post_mlp_norm")
        for name, must in shapes.items():
            if name not in found and not name.endswith(optional):
                raise InputError(f"{self.path}: layer {index}: weight {name} is missing: download the file again")
            if name in found and found[name].shape != must:
                text = f"shape {list(found[name].shape)}: must be {list(must)} by the file's own sizes"
                raise InputError(f"{self.path}: layer {index}: weight {name}: {text}")
        return TransformerLayer(**found)

    def _split(self, name: str, fused: np.ndarray, rows: list[int]) -> list[np.ndarray]:
        if fused.shape[0] != sum(rows):
            text = f"{fused.shape[0]:,} rows: must be {sum(rows):,} by the file's own sizes"
            raise InputError(f"{self.path}: weight {name}: {text}")
        return np.split(fused, np.cumsum(rows)[:-1])


def refuse_family(path: str, family: Any) -> InputError:
    """The error for an architecture that is not run."""
    return InputError(f"{path}: architecture {show(family)}: cannot be run; known: {', '.join(FAMILIES)}")


def plain_frequencies(theta: float, n_channels: int) -> np.ndarray:
    """theta^(-2 i / n_channels) of pair i, float64 (arXiv:2104.09864)."""
    return np.asarray(theta ** (-np.arange(0, n_channels, 2) / n_channels))


def check_counts(path: str, n_layers: Any, n_heads: Any) -> None:
    """Raises InputError for numbers of layers and query heads that no model has; they size what is made of them."""
    for name, value in (("layers", n_layers), ("heads", n_heads)):
        if type(value) is not int or not 1 <= value <= MOST[name]:
            raise InputError(f"{path}: {name} = {show(value)}: must be 1 to {MOST[name]:,}: is the file damaged?")


def checked(path: str, architecture: Architecture) -> Architecture:
    """An architecture whose sizes agree. Raises InputError."""
    sizes = {
        "hidden size": (architecture.hidden_size, MOST["channels"]),
        "KV heads": (architecture.n_kv_heads, MOST["heads"]),
        "head dimension": (architecture.head_dim, MOST["channels"]),
        "context": (architecture.context_tokens, 2**40),
    }
    for name, (value, most) in sizes.items():
        if type(value) is not int or not 1 <= value <= most:
            raise InputError(f"{path}: {name} = {show(value)}: must be 1 to {most:,}: is the file damaged?")
    if architecture.n_q_heads % architecture.n_kv_heads or architecture.head_dim % 2:
        heads = f"{architecture.n_q_heads} query and {architecture.n_kv_heads} KV heads of {architecture.head_dim}"
        raise InputError(f"{path}: {heads}: KV heads must divide query heads, and their dimension be even")
    return architecture
