"""A language model on disk: the options of its architecture, its weights a layer at a time, its tokenizer."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dse.core.errors import InputError, LimitError, show

#: architectures that the forward pass runs, by the name that files give them
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
#: sizes beyond these are no model's: a file that claims them is damaged
MOST = {"layers": 1024, "heads": 1024, "channels": 2**20, "tokens": 2**40}


@dataclass(frozen=True)
class Rotation:
    """RoPE of a layer: radians a token of each pair of channels, and whether they are those of one plain base."""

    frequencies: np.ndarray
    theta: float
    is_plain: bool
    #: of queries and keys beside the turn: YaRN's and LongRoPE's temperature of attention, so that its scores grow by
    #: the square
    length: float = 1.0
    #: LongRoPE: radians a token of texts longer than `short_tokens`
    long_frequencies: np.ndarray | None = None
    short_tokens: int = 0
    #: YaRN: positions that it stretches the original context to; 0: as the model says
    context_tokens: int = 0

    def turns(self, first: int, n_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines, float32 [n_tokens, pairs], at positions from `first` on (arXiv:2104.09864)."""
        long = self.long_frequencies
        frequencies = self.frequencies if long is None or first + n_tokens <= self.short_tokens else long
        angles = np.arange(first, first + n_tokens)[:, None] * frequencies
        return (self.length * np.cos(angles)).astype(np.float32), (self.length * np.sin(angles)).astype(np.float32)


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
    #: as the files announce them; the tensors that there are
    shapes: Mapping[str, tuple[int, ...]]
    #: a tensor in float32
    tensor: Callable[[str], np.ndarray]
    #: rows of the embedding, by token
    rows: Callable[[np.ndarray], np.ndarray]
    #: text as tokens, special ones added where the file says so; made at the first call
    encode: Callable[[str], list[int]]

    def __post_init__(self) -> None:
        wide, sizes = self.architecture.hidden_size, dict[str, int]()
        n_tokens = (self.shapes.get("embedding") or (0,))[0]
        for name, must in (("embedding", (n_tokens, wide)), ("head", (n_tokens, wide)), ("final_norm", (wide,))):
            if name not in self.shapes and name != "head":
                raise InputError(f"{self.path}: weight {name} is missing: download the file again")
            if (shape := self.shapes.get(name, must)) != must:
                text = f"shape {show(list(shape))}: must be {list(must)} by the file's own sizes"
                raise InputError(f"{self.path}: weight {name}: {text}")
        for name, shape in self.shapes.items():
            part = name.partition(".")[0]
            sizes[part] = sizes.get(part, 0) + 4 * math.prod(shape)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        for part, n_bytes in sizes.items():
            if n_bytes > memory:
                what = f"layer {part}" if part.isdecimal() else f"weight {part}"
                raise LimitError(f"{self.path}: {what} takes {n_bytes:,} bytes: this machine has {memory:,} of memory")

    @property
    def n_layers(self) -> int:
        """Layers."""
        return self.architecture.n_layers

    def embedded(self, tokens: np.ndarray) -> np.ndarray:
        """Rows of the embedding. Raises InputError where a token has none."""
        n_rows = self.shapes["embedding"][0]
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < n_rows:
            raise InputError(f"{self.path}: token {tokens.max():,}: its embedding has {n_rows:,}: is the file damaged?")
        return self.rows(tokens)

    def rotation(self, layer: int) -> Rotation:
        """RoPE of a layer."""
        return self.architecture.rotations[layer]

    def layer(self, index: int) -> TransformerLayer:
        """The weights of a layer. Raises InputError for a missing tensor or one of another shape."""
        shape = self.architecture
        width, kv_width = shape.n_q_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
        self._check(index)
        names = {name.partition(".")[2] for name in self.shapes if name.startswith(f"{index}.")}
        tensors = {name: self.tensor(f"{index}.{name}") for name in sorted(names)}
        of = self.architecture
        width, kv_width = of.n_q_heads * of.head_dim, of.n_kv_heads * of.head_dim
        if "qkv" in tensors:
            tensors |= dict(zip("qkv", np.split(tensors.pop("qkv"), [width, width + kv_width]), strict=True))
        if "gate_up" in tensors:
            tensors |= dict(zip(("gate", "up"), np.split(tensors.pop("gate_up"), 2), strict=True))
        return TransformerLayer(**tensors)

    def _check(self, index: int) -> None:
        """Raises InputError for a tensor of a layer that is missing or of another shape, before any is read."""
        of = self.architecture
        width, kv_width, wide = of.n_q_heads * of.head_dim, of.n_kv_heads * of.head_dim, of.hidden_size
        start = f"{index}."
        by_name = {name[len(start) :]: shape for name, shape in self.shapes.items() if name.startswith(start)}
        fused = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
        rows = {name: shape[0] for name, shape in by_name.items() if shape}
        ffn = rows["gate_up"] // 2 if "gate_up" in rows else rows.get("gate", 0)
        shapes: dict[str, tuple[int, ...]] = {
            **dict.fromkeys(("attention_norm", "mlp_norm", "post_attention_norm", "post_mlp_norm", "o_bias"), (wide,)),
            **dict.fromkeys(("q_norm", "k_norm"), (of.head_dim,)),
            **{"q": (width, wide), "k": (kv_width, wide), "v": (kv_width, wide), "o": (wide, width)},
            **{"gate": (ffn, wide), "up": (ffn, wide), "down": (wide, ffn)},
            **{"q_bias": (width,), "k_bias": (kv_width,), "v_bias": (kv_width,)},
        }
        for whole, parts in fused.items():
            if whole in by_name:
                shapes[whole] = (sum(shapes.pop(part)[0] for part in parts), wide)
        optional = ("_bias", "q_norm", "k_norm", "post_attention_norm", "post_mlp_norm")
        for name, must in shapes.items():
            if name not in by_name and not name.endswith(optional):
                raise InputError(f"{self.path}: layer {index}: weight {name} is missing: download the file again")
            if name in by_name and by_name[name] != must:
                text = f"shape {show(list(by_name[name]))}: must be {list(must)} by the file's own sizes"
                raise InputError(f"{self.path}: layer {index}: weight {name}: {text}")
        for name in by_name:
            if name not in shapes:
                text = "is not one of a model that can be run"
                raise InputError(f"{self.path}: layer {index}: weight {show(name)}: {text}")


def refuse_family(path: str, family: Any) -> InputError:
    """The error for an architecture that is not run."""
    return InputError(f"{path}: architecture {show(family)}: cannot be run; known: {', '.join(FAMILIES)}")


def plain_frequencies(theta: float, n_channels: int) -> np.ndarray:
    """theta^(-2 i / n_channels) of pair i, float64 (arXiv:2104.09864)."""
    return np.asarray(theta ** (-np.arange(0, n_channels, 2) / n_channels))


@dataclass(frozen=True)
class Said:
    """Numbers that a model file says of itself, each of its type and bounds; they size what is made of them."""

    path: str
    #: the value of a key, None where the file has none
    get: Callable[[str], Any]
    #: in front of a key in messages
    prefix: str = ""

    def whole(self, key: str, most: int, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least` to `most`. Raises InputError."""
        value = self.get(key)
        value = default if value is None else value
        if type(value) is not int or not least <= value <= most:
            raise self._refused(key, value, f"a whole number from {least} to {most:,}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number. Raises InputError."""
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
            raise self._refused(key, value, "a positive number")
        return float(value)

    def window(self, key: str) -> int | None:
        """Tokens of a window, None for 0 and where none is said. Raises InputError."""
        return None if self.get(key) in (None, 0) else self.whole(key, MOST["tokens"])

    def _refused(self, key: str, value: Any, must: str) -> InputError:
        return InputError(f"{self.path}: {self.prefix}{key} = {show(value)}: must be {must}: is the file damaged?")


def checked(path: str, architecture: Architecture) -> Architecture:
    """An architecture whose sizes agree. Raises InputError."""
    if architecture.n_q_heads % architecture.n_kv_heads or architecture.head_dim % 2:
        heads = f"{architecture.n_q_heads} query and {architecture.n_kv_heads} KV heads of {architecture.head_dim}"
        raise InputError(f"{path}: {heads}: KV heads must divide query heads, and their dimension be even")
    return architecture
