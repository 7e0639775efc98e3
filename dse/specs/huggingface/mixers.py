"""Mixers of the tokens of one layer: attention with heads, over a latent or a compressed cache, or a constant state.

Each function gives what a layer keeps of a request and how many parameters it has. The rules are those of the
published models' code; tests/specs/test_huggingface.py and test_architectures.py check them against published counts.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from dse.specs.device_and_model import LayerKV
from dse.specs.tokens import index_bits, index_flops

#: elements of an index key that share a scale, and the bits of an element and of a scale
INDEX_BLOCK, INDEX_ELEMENT_BITS, INDEX_SCALE_BITS = 128, 8, 32
#: operations on an element of a state for a token: it decays, is read with the key, corrected, and read with the query
DELTA_FLOPS = 7
#: of Mamba-2's: it decays, takes an input and is read
MAMBA_FLOPS = 5
#: bytes of an element of the inputs that a short convolution keeps
CONV_BYTES = 2
#: tokens of such a convolution, the newest included
_WIDTH = 4
#: of what a compressor keeps of tokens that have not made an entry yet: values and scores, in FP32
COMPRESSOR_BYTES = 2 * 4


#: names of attention in the layers of checkpoints
ATTENTION_ROOTS = ("self_attn", "attention", "attn", "mixer")


@dataclass(frozen=True)
class Mixer:
    """One layer: its caches, its parameters, and the elements of a token that it computes with at once."""

    caches: tuple[LayerKV, ...]
    parameters: int
    inner_elements: int
    #: of the parameters, those that each of several devices holds whole
    copied_parameters: int = 0
    #: where its matrices lie in a checkpoint, in several spellings, and the parameters of each by name
    roots: tuple[str, ...] = ATTENTION_ROOTS
    matrices: dict[str, int] = field(default_factory=dict)

    def reading_earlier(self) -> "Mixer":
        """A copy of the layer that reads the cache of an earlier one."""
        return replace(self, caches=tuple(cache.model_copy(update={"stored": False}) for cache in self.caches))


#: a layer without one: a feed-forward alone
NOTHING = Mixer((LayerKV(n_layers=1),), parameters=0, inner_elements=0)


@dataclass(frozen=True)
class Index:
    """The index that chooses tokens to read: `heads` for a query and one key of `dim` for a token."""

    read_tokens: int
    heads: int
    dim: int
    element_bits: int = INDEX_ELEMENT_BITS
    scale_bits: int = INDEX_SCALE_BITS
    #: False: the choice of an earlier layer is taken over
    own: bool = True
    #: tokens that share a key
    pool: int = 1

    @property
    def bits(self) -> int:
        """Bits of a token's key, scales included."""
        scales = -(-self.dim // INDEX_BLOCK) * self.scale_bits
        return index_bits(self.dim, self.element_bits, scales) // self.pool if self.own else 0

    @property
    def flops(self) -> int:
        """Operations that score one token for one query."""
        return index_flops(self.heads, self.dim) // self.pool if self.own else 0

    def parameters(self, hidden: int, query_rank: int) -> int:
        """Queries (from `query_rank` channels), one key and its norm, a weight for each head."""
        if not self.own:
            return 0
        return query_rank * self.heads * self.dim + hidden * self.dim + 2 * self.dim + hidden * self.heads

    def of_layer(self) -> dict[str, Any]:
        """The fields of a layer that has it."""
        return {"read_limit_tokens": self.read_tokens, "index_bits": self.bits, "index_flops": self.flops}


@dataclass(frozen=True)
class Heads:
    """Attention with query heads that share KV heads."""

    hidden: int
    q_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    chunked: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    #: "head": one head_dim each; "all": one per query and key channel
    qk_norm: str = ""
    sinks: bool = False
    #: the output is multiplied with a gate as wide, made like the queries
    gated: bool = False
    #: keys and values are made by the same weights, and kept apart
    one_projection: bool = False
    index: Index | None = None

    def mixer(self) -> Mixer:
        """The layer."""
        q_dim, out_dim = self.q_heads * self.key_dim, self.q_heads * self.value_dim
        k_dim, v_dim = self.kv_heads * self.key_dim, self.kv_heads * self.value_dim
        norm = {"": 0, "head": 2 * self.key_dim, "all": q_dim + k_dim}[self.qk_norm]
        bias = self.qkv_bias * (q_dim + k_dim + v_dim) + self.out_bias * self.hidden + self.sinks * self.q_heads
        index = self.index.parameters(self.hidden, self.hidden) if self.index else 0
        cache = LayerKV(
            n_layers=1,
            n_kv_heads=self.kv_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            window=self.window,
            chunked=self.chunked and self.window is not None,
            sinks=self.sinks,
            score_dim=self.key_dim + self.value_dim,
            **(self.index.of_layer() if self.index else {}),
        )
        channels = {"q_proj": q_dim + self.gated * out_dim, "k_proj": k_dim, "o_proj": out_dim}
        channels |= {} if self.one_projection else {"v_proj": v_dim}
        matrices = {name: self.hidden * n for name, n in channels.items()} | {"indexer": index}
        return Mixer(
            (cache,),
            parameters=sum(matrices.values()) + norm + bias,
            inner_elements=q_dim + k_dim + v_dim,
            copied_parameters=index,
            matrices=matrices,
        )


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): one latent and a rope part for all heads."""

    hidden: int
    q_heads: int
    q_rank: int
    rank: int
    nope: int
    rope: int
    value_dim: int
    gated: bool = False
    index: Index | None = None

    def mixer(self) -> Mixer:
        """The layer."""
        hidden, heads, q_rank, rank = self.hidden, self.q_heads, self.q_rank, self.rank
        wide = heads * (self.nope + self.rope)
        index = self.index.parameters(hidden, q_rank or hidden) if self.index else 0
        cache = LayerKV(
            n_layers=1,
            n_kv_heads=1,
            key_dim=rank + self.rope,
            value_dim=0,
            score_dim=2 * rank + self.rope,
            prompt_score_dim=self.nope + self.rope + self.value_dim,
            **(self.index.of_layer() if self.index else {}),
        )
        copied = hidden * (q_rank + rank + self.rope) + q_rank + rank + index
        inner = heads * (2 * self.nope + self.rope + self.value_dim) + rank + self.rope
        matrices = {"q_a_proj": hidden * q_rank, "q_b_proj": q_rank * wide} if q_rank else {"q_proj": hidden * wide}
        matrices |= {
            "kv_a_proj_with_mqa": hidden * (rank + self.rope),
            "kv_b_proj": rank * heads * (self.nope + self.value_dim),
            "o_proj": heads * self.value_dim * hidden * (1 + self.gated),
            "indexer": index,
        }
        parameters = sum(matrices.values()) + q_rank + rank
        return Mixer((cache,), parameters=parameters, inner_elements=inner, copied_parameters=copied, matrices=matrices)


@dataclass(frozen=True)
class Compressed:
    """DeepSeek-V4: one key for all heads, which is its own value, of the last tokens and of entries that many make.

    Four tokens make an entry of a cache of which an index chooses what is read (CSA); 128 make one of a cache that is
    read whole (HCA); a ratio of 0 keeps the window alone.
    """

    hidden: int
    q_heads: int
    q_rank: int
    dim: int
    out_groups: int
    out_rank: int
    window: int
    ratio: int
    index: Index | None = None

    def mixer(self) -> Mixer:
        """The layer. What is read and kept is counted by tokens: an entry comes in parts, as its tokens do."""
        hidden, heads, dim, ratio = self.hidden, self.q_heads, self.dim, self.ratio
        inner = heads * dim + dim + self.q_rank
        copied = hidden * (self.q_rank + dim) + self.q_rank + dim
        both: dict[str, Any] = {"n_layers": 1, "n_kv_heads": 1, "key_dim": dim, "score_dim": 2 * dim}
        window = LayerKV(**both, window=self.window)
        matrices = {
            "wq_a": hidden * self.q_rank,
            "wq_b": self.q_rank * heads * dim,
            "wkv": hidden * dim,
            "wo_a": heads * dim * self.out_rank,
            "wo_b": self.out_groups * self.out_rank * hidden,
        }
        parameters = sum(matrices.values()) + self.q_rank + dim + heads
        if not ratio:
            return Mixer(
                (window,), parameters=parameters, inner_elements=inner, copied_parameters=copied, matrices=matrices
            )
        twice = 2 if self.index else 1  # entries of CSA overlap: two sets of weights make them
        compressor = self._compressor(dim, twice)
        waiting, fields = self._waiting(dim, twice), dict[str, Any]()
        if self.index:
            index = self.index
            compressor += self.q_rank * index.heads * index.dim + hidden * index.heads
            compressor += self._compressor(index.dim, 2)
            waiting += self._waiting(index.dim, 2)
            fields = {
                "read_limit_tokens": index.read_tokens * ratio,
                "index_bits": index.bits // ratio,
                "index_flops": index.flops // ratio,
            }
        entries = LayerKV(**both, tokens_per_entry=ratio, **fields)
        joined = window.model_copy(update={"joined": True})
        state = LayerKV(n_layers=1, state_bytes=waiting, joined=True)
        return Mixer(
            (entries, joined, state),
            parameters=parameters + compressor,
            inner_elements=inner,
            copied_parameters=copied + compressor,
            matrices=matrices | {"compressor": compressor},
        )

    def _compressor(self, dim: int, twice: int) -> int:
        """Parameters that make an entry: values, scores, their places in it, a norm."""
        return 2 * self.hidden * twice * dim + self.ratio * twice * dim + dim

    def _waiting(self, dim: int, twice: int) -> int:
        """Bytes of tokens that have not made an entry yet."""
        return self.ratio * twice * dim * COMPRESSOR_BYTES


def gated_delta(
    hidden: int, key_heads: int, key_dim: int, value_heads: int, value_dim: int, conv: int, state_bytes: int
) -> Mixer:
    """A layer of the gated delta rule (Qwen3-Next, 3.5, 3.6): a matrix of key by value channels for each value head."""
    keys, values = key_heads * key_dim, value_heads * value_dim
    channels, state = 2 * keys + values, value_heads * key_dim * value_dim
    cache = LayerKV(
        n_layers=1,
        state_code="gdn",
        state_bytes=state * state_bytes + channels * (conv - 1) * CONV_BYTES,
        state_flops=DELTA_FLOPS * state + 2 * conv * channels,
    )
    matrices = {
        "in_proj_qkv": hidden * channels,
        "in_proj_z": hidden * values,
        "in_proj_a": hidden * value_heads,
        "in_proj_b": hidden * value_heads,
        "out_proj": values * hidden,
    }
    parameters = sum(matrices.values()) + channels * conv + 2 * value_heads + value_dim
    return Mixer(
        (cache,), parameters=parameters, inner_elements=2 * keys + 2 * values, roots=("linear_attn",), matrices=matrices
    )


def kimi_delta(
    hidden: int, heads: int, dim: int, conv: int, state_bytes: int, has_full_gate: bool, has_full_decay: bool = False
) -> Mixer:
    """A layer of Kimi delta attention (Kimi Linear, K3, Ling 2.6): a matrix for each head, which decays by channel.

    The gate of the output and the decay are one product each, or (Kimi Linear) two over `dim` channels.
    """
    wide, state = heads * dim, heads * dim * dim
    full, thin = hidden * wide, hidden * dim + dim * wide
    gates = (full if has_full_gate else thin) + (full if has_full_decay else thin)
    cache = LayerKV(
        n_layers=1,
        state_code="kda",
        state_bytes=state * state_bytes + 3 * wide * (conv - 1) * CONV_BYTES,
        state_flops=DELTA_FLOPS * state + 6 * conv * wide,
    )
    matrices = {name: hidden * wide for name in ("q_proj", "k_proj", "v_proj", "o_proj")} | {"g_proj": gates}
    return Mixer(
        (cache,),
        parameters=sum(matrices.values()) + hidden * heads + 3 * wide * conv + heads + wide + dim,
        inner_elements=4 * wide,
        roots=("self_attn", "attention", "linear_attn"),
        matrices=matrices,
    )


def lightning(hidden: int, heads: int, dim: int, state_bytes: int) -> Mixer:
    """A layer of lightning attention (MiniMax-Text-01, M1): a matrix for each head, which decays by a constant."""
    wide, state = heads * dim, heads * dim * dim
    matrices = {"qkv_proj": 3 * hidden * wide, "output_gate": hidden * wide, "out_proj": wide * hidden}
    cache = LayerKV(n_layers=1, state_bytes=state * state_bytes, state_flops=MAMBA_FLOPS * state)
    return Mixer((cache,), parameters=sum(matrices.values()) + wide, inner_elements=4 * wide, matrices=matrices)


def with_states_in(layer: LayerKV, element_bytes: int) -> LayerKV:
    """The layer with the elements of its state in so many bytes; the inputs of its convolution stay."""
    if (parts := _parts(layer)) is None:
        return layer
    elements, of_inputs = parts
    return layer.model_copy(update={"state_bytes": elements * element_bytes + (_WIDTH - 1) * of_inputs})


def input_bytes(layer: LayerKV) -> int:
    """Bytes of one token's inputs to the convolution before a state: a drafted token's are kept beside it."""
    parts = _parts(layer)
    return parts[1] if parts else 0


def _parts(layer: LayerKV) -> tuple[int, int] | None:
    """Elements of a state, and bytes of a token's inputs to the convolution before it; None where it has none.

    Bytes of a layer and operations of a token, both as above, have the elements of the state and the channels of its
    convolution, of width 4 in all known models, as their only unknowns: the size of an element is 4 B, 2 or 1.
    """
    flops = {"gdn": DELTA_FLOPS, "kda": DELTA_FLOPS, "mamba2": MAMBA_FLOPS}.get(layer.state_code or "", 0)
    for element_bytes in (4, 2, 1) if flops else ():
        of_inputs, of_flops = (_WIDTH - 1) * CONV_BYTES, 2 * _WIDTH
        channels, rest = divmod(
            flops * layer.state_bytes - element_bytes * layer.state_flops, flops * of_inputs - element_bytes * of_flops
        )
        elements, left = divmod(layer.state_bytes - channels * of_inputs, element_bytes)
        if rest == left == 0 and channels > 0 and elements > 0:
            return elements, channels * CONV_BYTES
    return None


def short_convolution(hidden: int, conv: int) -> Mixer:
    """A layer of a gated short convolution (LFM): the last inputs of each channel."""
    cache = LayerKV(n_layers=1, state_bytes=hidden * (conv - 1) * CONV_BYTES, state_flops=2 * conv * hidden)
    matrices = {"in_proj": 3 * hidden * hidden, "out_proj": hidden * hidden}
    parameters = sum(matrices.values()) + hidden * conv
    return Mixer((cache,), parameters=parameters, inner_elements=3 * hidden, roots=("conv",), matrices=matrices)


def mamba2(
    hidden: int, heads: int, dim: int, groups: int, state_size: int, conv: int, state_bytes: int, conv_bias: bool
) -> Mixer:
    """A layer of Mamba-2 (Nemotron-H): a matrix of head by state channels for each head."""
    wide = heads * dim
    channels, state = wide + 2 * groups * state_size, wide * state_size
    cache = LayerKV(
        n_layers=1,
        state_code="mamba2",
        state_bytes=state * state_bytes + channels * (conv - 1) * CONV_BYTES,
        state_flops=MAMBA_FLOPS * state + 2 * conv * channels,
    )
    matrices = {"in_proj": hidden * (wide + channels + heads), "out_proj": wide * hidden}
    parameters = sum(matrices.values()) + channels * (conv + conv_bias) + 3 * heads + wide
    return Mixer(
        (cache,), parameters=parameters, inner_elements=wide + channels, roots=("mixer", "mamba"), matrices=matrices
    )
