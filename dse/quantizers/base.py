"""A quantizer family, and the ledger of bits that it keeps for one tensor of one layer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from dse.core.compiling import formula
from dse.core.field import COUNT, EXACT, TEXT, Field
from dse.core.units import BITS_PER_BYTE, FP16_BITS
from dse.quantizers.kernel import KernelRunner, Side, Values
from kernels_ref import PARTS

__all__ = [
    "PARTS",
    "Beside",
    "EngineName",
    "Family",
    "QuantizerSpec",
    "Side",
    "SideMeasurement",
    "TensorLayout",
    "TensorShape",
    "Values",
    "param",
]

#: how stored keys and values become numbers again: by a unit of its own, in the kernel that reads them, or written back
Path = Literal["engine", "fused", "materialised"]
#: layers without attention sinks (SinkQ 4.1: the first and second)
N_SHALLOW_LAYERS = 2


@formula(
    "token",
    "step_tokens * floor((n_tokens - residual_tokens) / step_tokens), 0 before the first step is full",
    "KIVI (arXiv:2402.02750) 3.2; SinkQ 3.2: floor((L - R) / G) groups once L >= G + R",
)
def packed_tokens(n_tokens: int, step_tokens: int, residual_tokens: int) -> int:
    """Tokens that have been quantized at length `n_tokens`. Valid for step_tokens >= 1, residual_tokens >= 0.

    Per-token methods are step 1, residual 0; KIVI keys step R, residual 0; KIVI values step 1, residual R; SinkQ
    step G, residual R.
    """
    return max((n_tokens - residual_tokens) // step_tokens, 0) * step_tokens


@dataclass(frozen=True)
class TensorShape:
    """Keys or values of one layer: `n_heads` vectors of `head_dim` elements a token."""

    which: Side
    n_heads: int
    head_dim: int
    #: one of the model's first two layers, where SinkQ keeps no sinks (SinkQ 4.1)
    shallow: bool = False
    #: nothing is stored once for both sides: the other one is quantized in another way, or there is none
    alone: bool = False
    #: head dimension of the other side, 0 for latent heads, which have none; None: not known
    other_dim: int | None = None
    #: elements of the layer's input; 0: not known
    hidden_size: int = 0

    @property
    def n_elements(self) -> int:
        """Elements of one token."""
        return self.n_heads * self.head_dim


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up, b > 0."""
    return -(-a // b)


def codes(n_codes: int, bits: int, unit: int = BITS_PER_BYTE, rows: int = 1) -> dict[str, Fraction | int]:
    """Ledger of `rows` rows of n codes, each row filled up to whole bytes (or words of `unit` bits)."""
    payload = rows * n_codes * bits
    return {"payload": payload, "padding": rows * unit * ceil_div(n_codes * bits, unit) - payload}


@dataclass(frozen=True)
class TensorLayout:
    """Bits that a quantizer stores for one tensor of one layer.

    Of n tokens, `packed_tokens(n, step, residual)` are quantized at `packed` bits each; the others are kept in FP16.
    `once` is stored per sequence, `pool` per sequence as soon as the first group has been quantized.
    """

    shape: TensorShape
    packed: Mapping[str, Fraction | int]
    once: Mapping[str, int] = field(default_factory=dict)
    pool: Mapping[str, Fraction | int] = field(default_factory=dict)
    step: int = 1
    residual: int = 0
    #: tokens of the pool
    pool_rows: Fraction | int = 0
    #: False where the stored elements are used as they are
    needs_dequantizing: bool = True
    #: operations that compute a token's elements from what is stored, for each read; dequantizing counts as none
    read_flops: int = 0

    @property
    def packed_bits_per_token(self) -> Fraction:
        return sum((Fraction(bits) for bits in self.packed.values()), Fraction(0))

    @property
    def full_bits_per_token(self) -> int:
        return FP16_BITS * self.shape.n_elements

    def ledger(self, n_tokens: int, tokens_per_entry: int = 1) -> dict[str, Fraction]:
        """Bits by part of one layer and sequence that keeps `n_tokens`, each its part of an entry that it shares."""
        parts = dict.fromkeys(PARTS, Fraction(0))
        packed = packed_tokens(n_tokens, self.step, self.residual)
        for part, bits in self.packed.items():
            parts[part] += packed * Fraction(bits)
        parts["full_precision"] += (n_tokens - packed) * self.full_bits_per_token
        for part, pool_bits in self.pool.items():
            parts[part] += Fraction(pool_bits) * (packed > 0)
        parts = {part: bits / tokens_per_entry for part, bits in parts.items()}
        for part, bits in self.once.items():
            parts[part] += bits * (n_tokens > 0)
        return parts

    @property
    def effective_bits(self) -> Fraction:
        """Bits an element as the papers count them: without what depends on the length, chunk counts or padding."""
        bits = self.packed_bits_per_token - self.packed.get("counts", 0) - self.packed.get("padding", 0)
        return Fraction(bits, self.shape.n_elements)


def param(name: str, default: int | Fraction | str, help: str, **more: Any) -> Field:
    """A parameter of a family: a whole number, a number or a text, as its default is."""
    kind = EXACT if isinstance(default, Fraction) else COUNT if isinstance(default, int) else TEXT
    return Field(name=name, kind=kind, default=default, help=help, **more)


@dataclass(frozen=True)
class Beside:
    """Memory that a family needs beside the cache, for one tensor of one layer and all sequences together."""

    name: str
    value: int
    unit: str
    source: str


@dataclass(frozen=True)
class EngineName:
    """A KV-cache type of an engine. `text` is the quantizer that stores the same, or the nearest where `missing`."""

    engine: str
    name: str
    text: str
    source: str
    #: why no family stores this type, so that the name is refused; "" where one does
    missing: str = ""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A quantizer family: parameters, the layout they give, its kernel, its names in engines and its source."""

    name: str
    title: str
    source: str
    layout: Callable[[Values, TensorShape], TensorLayout]
    params: tuple[Field, ...] = ()
    #: rules that join parameters: returns a message or ""
    problem: Callable[[Values], str] = lambda values: ""
    #: the bit-exact kernel and how it is run; None: there is none, so its error is not known
    kernel: KernelRunner | None = None
    #: keys are quantized before RoPE (KVQuant 3.2), not after it
    before_rope: bool = False
    #: 16 bits, stored as they come: nothing is lost, and no layer needs to be skipped
    exact: bool = False
    #: types of engines that store the same
    engines: tuple[EngineName, ...] = ()
    #: other spellings -> text of the quantizer
    aliases: Mapping[str, str] = field(default_factory=dict)
    #: what a measurement can put in place of nominal values: (value, count of, counted in)
    realised: tuple[tuple[str, str, str], ...] = ()
    #: a row of the report's table of bits where no quantizers are named
    by_default: bool = True
    #: for one latent (MLA) head only
    latent: bool = False
    #: layers kept in 16 bits where no others are named, as `skip` writes them (dse/quantizers/skipping.py)
    skip: str = ""
    #: memory beside the cache; shown, not counted with the weights
    beside: Callable[[Values, TensorShape], list[Beside]] = lambda values, shape: []
    #: place in lists: ascending, then by the name of its file
    listed: int = 1000


@dataclass(frozen=True)
class SideMeasurement:
    """Bits and errors of real keys (or values) once quantized, summed over all of them. `data` names them."""

    n_elements: int
    #: those that are quantized: the others are stored in FP16 and come back exactly
    n_packed_elements: int
    stored_bytes: int
    squared_error: float
    squared_signal: float
    data: str
    #: heads and head dimension of the data, where all tensors agree
    shape: tuple[int, int] | None = None
    #: error of the attention output over the output itself (root of the ratio of squares), with this side quantized,
    #: and with both sides by the same quantizer; None where attention was not measured
    output_error: float | None = None
    output_error_both: float | None = None

    @property
    def mse(self) -> float | None:
        """Mean squared error of a quantized element; None where nothing is quantized."""
        return self.squared_error / self.n_packed_elements if self.n_packed_elements else None

    @property
    def mean_square(self) -> float:
        """Mean square of an element of the data."""
        return self.squared_signal / self.n_elements


@dataclass(frozen=True, repr=False)
class QuantizerSpec:
    """A family with values for all of its parameters."""

    family: Family
    values: tuple[tuple[str, Any], ...]
    #: as written by the user, in canonical form: only what differs from the defaults
    name: str
    #: how it is run, as written behind an @; "" where that is left to the device
    implementation: str = ""
    #: measurements by side, "key" and "value"; empty where there are none
    measured: Mapping[str, SideMeasurement] = field(default_factory=dict, compare=False)
    #: by side, values that data realised and that replace nominal ones
    realised: Mapping[str, Mapping[str, Fraction]] = field(default_factory=dict, compare=False)
    #: where the bits come from: closed forms with nominal values, or values as measured
    bits_kind: Literal["closed", "measured"] = "closed"
    #: of a plan by layer (dse/quantizers/layered.py): the quantizers of keys and of values of every layer
    layers: tuple[tuple["QuantizerSpec", "QuantizerSpec"], ...] = ()
    #: measurements by side with the layers that `skip` keeps in 16 bits, by the layers of the data
    by_depth: Mapping[int, Mapping[str, SideMeasurement]] = field(default_factory=dict, compare=False)
    #: what the file of such a plan says of errors and bits
    predicted: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{self.name} ({self.family.title})"

    @property
    def method(self) -> str:
        """Its name without the implementation: the key of measured bits and errors."""
        return self.name.partition("@")[0]

    def of(self, which: str, layer: int) -> "QuantizerSpec":
        """The quantizer of a layer's keys or values: this one, unless it is a plan by layer."""
        return self.layers[layer][which == "value"] if self.layers else self

    def layout(self, shape: TensorShape) -> TensorLayout:
        """The bit ledger for one tensor."""
        return self.family.layout({**dict(self.values), **self.realised.get(shape.which, {})}, shape)
