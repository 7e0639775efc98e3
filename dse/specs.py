"""What a device and a language model are: pydantic models with units, bounds and sources.

A number in a file is `{ value = 2.0e12, unit = "B/s", source = "Oaken, Table 1", kind = "datasheet" }`, or, in a
user's own file, the short text `"3.35 TB/s"` (its source is then the file and its kind "assumed"). Inside the
tool it is a `Quantity`, whose `.si` is the value in the base unit.
"""

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from dse import units
from dse.errors import SpecError, clean, did_you_mean, show
from dse.specfile import Document, KeyPath

Kind = Literal["datasheet", "published", "measured", "derived", "assumed"]
#: kinds that rest on no document or measurement; figures and tables mark them
ASSUMED: Literal["assumed"] = "assumed"


class Quantity(BaseModel):
    """A number with its unit, its source and how it was obtained."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    value: float
    unit: str
    source: str = Field(min_length=1, max_length=500)
    kind: Kind

    @property
    def si(self) -> float:
        """The value in the base unit (B, B/s, FLOP/s, s, W, ...)."""
        return units.to_base(self.value, self.unit)

    @property
    def count(self) -> int:
        """The value as an integer; the bounds of the field guarantee that it is one."""
        return int(self.si)


def _parse_short(raw: Any, base: str) -> Any:
    """Accept "3.35 TB/s" and a bare number (of the base unit) from a user's file."""
    if isinstance(raw, str):
        match = re.fullmatch(r"\s*([-+]?[0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*(\S*)\s*", raw, re.ASCII)
        if not match:
            raise ValueError(f'must be a number and a unit of {base}, such as "{_example(base)}"')
        return {
            "value": float(match[1].replace("_", "")),
            "unit": match[2] or "1",
            "source": "user's file",
            "kind": ASSUMED,
        }
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return {"value": raw, "unit": base, "source": "user's file", "kind": ASSUMED}
    return raw


def _example(base: str) -> str:
    return {"B": "80 GB", "B/s": "2.0 TB/s", "FLOP/s": "312 TFLOP/s", "s": "5 us", "W": "400 W"}.get(base, f"1 {base}")


def _check_bounds(quantity: Quantity, base: str, low: float, high: float, whole: bool, slip: float) -> Quantity:
    if quantity.unit not in units.UNITS or units.base_of(quantity.unit) != base:
        raise ValueError(f"unit must be one of {', '.join(units.units_of(base))}, not {show(quantity.unit)}")
    si = quantity.si
    if not low <= si <= high:
        hint = ""
        likely = sorted(reversed(units.units_of(base)), key=lambda unit: "i" in unit)  # decimal units first
        for unit in likely:
            if low * slip <= units.to_base(quantity.value, unit) <= high / slip and unit != quantity.unit:
                hint = f"; did you mean {quantity.value:g} {unit}?"
                break
        raise ValueError(f"must be {units.human(low, base)} to {units.human(high, base)}{hint}")
    if whole and si != math.floor(si):
        raise ValueError(f"must be a whole number of {base}")
    return quantity


def quantity(base: str, low: float, high: float, whole: bool = False, slip: float = 1.0) -> Any:
    """The type of a field: a Quantity in base unit `base` within [low, high] (in base units).

    `slip` narrows the band in which a unit slip is suspected, so that the hint names a likely unit.
    """

    def check(value: Quantity) -> Quantity:
        return _check_bounds(value, base, low, high, whole, slip)

    return Annotated[Quantity, BeforeValidator(lambda raw: _parse_short(raw, base)), AfterValidator(check)]


def count(unit: str, high: float) -> Any:
    """The type of a field that counts `unit`s, from 1."""
    return quantity(unit, 1, high, whole=True)


if TYPE_CHECKING:  # to the type checker every number is a Quantity; the bounds are pydantic's business
    Bytes: TypeAlias = Quantity
    Bandwidth: TypeAlias = Quantity
    FlopRate: TypeAlias = Quantity
    ElementRate: TypeAlias = Quantity
    Power: TypeAlias = Quantity
    Seconds: TypeAlias = Quantity
    UsableFrac: TypeAlias = Quantity
    Overhead: TypeAlias = Quantity
    Price: TypeAlias = Quantity
    Devices: TypeAlias = Quantity
    Cores: TypeAlias = Quantity
    Layers: TypeAlias = Quantity
    Channels: TypeAlias = Quantity
    Heads: TypeAlias = Quantity
    FfnChannels: TypeAlias = Quantity
    Tokens: TypeAlias = Quantity
    VocabTokens: TypeAlias = Quantity
    Experts: TypeAlias = Quantity
    Parameters: TypeAlias = Quantity
else:
    Bytes = quantity("B", 1e6, 1e16, slip=1e3)
    Bandwidth = quantity("B/s", 1e9, 1e15, slip=1e2)
    FlopRate = quantity("FLOP/s", 1e9, 1e19, slip=1e3)
    ElementRate = quantity("element/s", 1e6, 1e18, slip=1e3)
    Power = quantity("W", 0.1, 1e6)
    Seconds = quantity("s", 0.0, 1.0)
    UsableFrac = quantity("1", 1e-3, 1.0)
    Overhead = quantity("B", 0.0, 1e16)
    Price = quantity("USD/h", 1e-6, 1e6)
    Devices = count("device", 4096)
    Cores = count("core", 1e6)
    Layers = count("layer", 10_000)
    Channels = count("channel", 2**20)
    FfnChannels = count("channel", 2**24)
    Heads = count("head", 65_536)
    Tokens = count("token", 2**40)
    VocabTokens = count("token", 2**24)
    Experts = count("expert", 65_536)
    Parameters = count("parameter", 1e15)

Path = Literal["engine", "fused", "materialised"]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]


class _Spec(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    def quantities(self) -> dict[str, Quantity]:
        """Every number of the spec by field name, for display with sources."""
        return {name: value for name in type(self).model_fields if isinstance(value := getattr(self, name), Quantity)}


class HardwareSpec(_Spec):
    """A device (or several that act as one): memory, compute, power, and how it runs quantizers.

    Peak figures only; what a kernel really achieves is the calibration's business.
    """

    name: Name
    title: str = Field(default="", max_length=120)
    memory_capacity: Bytes
    memory_bandwidth: Bandwidth
    #: dense FP16; and dense FP8 where the device has it
    peak_flops: FlopRate
    peak_flops_fp8: FlopRate | None = None
    board_power: Power | None = None
    usd_per_hour: Price | None = None
    n_devices: Devices = Quantity(value=1, unit="device", source="default", kind="derived")
    n_cores: Cores | None = None
    usable_frac: UsableFrac = Quantity(value=1.0, unit="1", source="Oaken 6.1 counts the whole memory", kind=ASSUMED)
    runtime_overhead: Overhead = Quantity(value=0, unit="B", source="none counted", kind=ASSUMED)
    kernel_launch: Seconds = Quantity(value=0, unit="s", source="no host-launched kernels", kind=ASSUMED)
    fused_rate: ElementRate | None = None
    engine_rate: ElementRate | None = None
    #: quantizer family -> path; "default" for the rest
    dequant_path: dict[str, Path] = {"default": "fused"}

    @property
    def capacity_bytes(self) -> int:
        """Memory in bytes."""
        return self.memory_capacity.count

    def rate(self, path: str) -> Quantity:
        """Elements per second that a dequantisation path unpacks or packs; one is assumed where none is given."""
        given = self.engine_rate if path == "engine" else self.fused_rate
        if given is not None:
            return given
        return Quantity(
            value=units.BITS_PER_BYTE * self.memory_bandwidth.si / 4,
            unit="element/s",
            kind=ASSUMED,
            source=f"no {path}_rate in the device: taken to keep pace with the memory at 4 bits an element",
        )

    @field_validator("dequant_path")
    @classmethod
    def _has_default(cls, value: dict[str, Path]) -> dict[str, Path]:
        if "default" not in value:
            raise ValueError('must have an entry "default"')
        return value


class LayerKV(BaseModel):
    """The KV shape of `n_layers` equal layers. `window` is None where a token sees all before it.

    MLA is one head whose key is the cached latent and rope part and whose value is empty. `stored` is False
    where a layer reads the cache of an earlier one.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    n_layers: int = Field(ge=1, le=10_000)
    n_kv_heads: int = Field(ge=1, le=65_536)
    key_dim: int = Field(ge=1, le=65_536)
    value_dim: int = Field(ge=0, le=65_536)
    window: int | None = Field(default=None, ge=1, le=2**40)
    stored: bool = True
    #: multiply-add width of one query head over one token: key and value dims as attention computes them
    score_dim: int = Field(ge=1, le=2**20)


class ModelSpec(BaseModel):
    """A language model as the formulas need it, whatever file it came from."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: str
    title: str = ""
    source: str
    hidden_size: int
    vocab_size: int
    n_q_heads: int
    layers: tuple[LayerKV, ...]
    #: parameters outside the routed experts, and of all routed experts together
    dense_parameters: int = Field(ge=0)
    expert_parameters: int = Field(default=0, ge=0)
    n_experts: int = Field(default=1, ge=1)
    n_active_experts: int = Field(default=1, ge=1)
    #: elements live at once per token in the widest operation of a layer (or the output head)
    activation_elements: int = Field(ge=0)
    published_parameters: int | None = None
    max_position_tokens: int | None = None
    #: rules the reader applied where the file was silent, one line each
    notes: tuple[str, ...] = ()
    numbers: dict[str, Quantity] = {}

    @field_validator("layers")
    @classmethod
    def _first_stores(cls, layers: tuple[LayerKV, ...]) -> tuple[LayerKV, ...]:
        if not layers or not layers[0].stored:
            raise ValueError("the first layer must store its own cache")
        return layers

    @property
    def n_layers(self) -> int:
        """Decoder layers."""
        return sum(group.n_layers for group in self.layers)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.dense_parameters + self.expert_parameters

    @property
    def active_parameters(self) -> Fraction:
        """Parameters that one token's forward pass uses."""
        return self.dense_parameters + Fraction(self.expert_parameters * self.n_active_experts, self.n_experts)


class ModelFile(_Spec):
    """A language model in our own file format: a uniform decoder, from which all else is computed."""

    name: Name
    title: str = Field(default="", max_length=120)
    n_layers: Layers
    hidden_size: Channels
    n_q_heads: Heads
    n_kv_heads: Heads
    head_dim: Channels
    ffn_size: FfnChannels
    vocab_size: VocabTokens
    window: Tokens | None = None
    n_experts: Experts | None = None
    n_active_experts: Experts | None = None
    learned_positions: VocabTokens | None = None
    max_position: Tokens | None = None
    published_parameters: Parameters | None = None
    ffn: Literal["gated", "plain"] = "gated"
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    biases: bool = False
    tied_embeddings: bool = False

    def problems(self) -> list[tuple[str, object, str]]:
        """Rules that join several fields: (field, value, what must hold)."""
        found: list[tuple[str, object, str]] = []
        q, kv = self.n_q_heads.count, self.n_kv_heads.count
        if q % kv:
            found.append(("n_kv_heads", kv, f"must divide n_q_heads = {q}"))
        experts = self.n_experts.count if self.n_experts else 1
        active = self.n_active_experts.count if self.n_active_experts else 1
        if active > experts:
            found.append(("n_active_experts", active, f"must be at most n_experts = {experts}"))
        return found

    def to_model(self) -> ModelSpec:
        """Count the parameters from the shape and lay out the KV shapes."""
        hidden, head_dim = self.hidden_size.count, self.head_dim.count
        q_dim, kv_dim = self.n_q_heads.count * head_dim, self.n_kv_heads.count * head_dim
        ffn, vocab, n_layers = self.ffn_size.count, self.vocab_size.count, self.n_layers.count
        experts = self.n_experts.count if self.n_experts else 1
        active = self.n_active_experts.count if self.n_active_experts else 1
        matrices = 3 if self.ffn == "gated" else 2
        bias = int(self.biases)
        attention = 2 * hidden * q_dim + 2 * hidden * kv_dim + bias * (q_dim + 2 * kv_dim + hidden)
        one_ffn = matrices * hidden * ffn + bias * ((matrices - 1) * ffn + hidden)
        norm = hidden * (2 if self.norm == "layernorm" else 1)
        router = hidden * experts if experts > 1 else 0
        embeddings = vocab * hidden * (1 if self.tied_embeddings else 2)
        positions = self.learned_positions.count * hidden if self.learned_positions else 0
        outside = embeddings + positions + norm + n_layers * (attention + 2 * norm + router)
        return ModelSpec(
            name=self.name,
            title=self.title or self.name,
            source="model file",
            hidden_size=hidden,
            vocab_size=vocab,
            n_q_heads=self.n_q_heads.count,
            layers=(
                LayerKV(
                    n_layers=n_layers,
                    n_kv_heads=self.n_kv_heads.count,
                    key_dim=head_dim,
                    value_dim=head_dim,
                    window=self.window.count if self.window else None,
                    score_dim=2 * head_dim,
                ),
            ),
            dense_parameters=outside + (n_layers * one_ffn if experts == 1 else 0),
            expert_parameters=n_layers * experts * one_ffn if experts > 1 else 0,
            n_experts=experts,
            n_active_experts=active,
            activation_elements=2 * hidden + max(q_dim + 2 * kv_dim, (matrices - 1) * ffn * active, vocab),
            published_parameters=self.published_parameters.count if self.published_parameters else None,
            max_position_tokens=self.max_position.count if self.max_position else None,
            numbers=self.quantities(),
        )


def _describe(error: dict[str, Any], known: Callable[[KeyPath], list[str]]) -> tuple[KeyPath, str]:
    """One pydantic problem as (key path, 'FIELD = VALUE: what must hold')."""
    path: KeyPath = tuple(part for part in error["loc"] if not str(part).startswith("function-"))
    field = ".".join(str(part) for part in path)
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        return path, f"{field}: unknown key: {did_you_mean(str(path[-1]), known(path[:-1]))}"
    if kind == "missing":
        return path, f"{field}: is missing: add it"
    if kind == "model_type":
        return path, f"{field} = {show(value)}: must be a number with a unit or a table of value, unit, source, kind"
    if kind == "finite_number":
        return path, f"{field} = {show(value)}: must be a finite number"
    reason = str(error["ctx"]["error"]) if kind == "value_error" else error["msg"].lower()
    if isinstance(value, Quantity):
        value = f"{value.value:g} {value.unit}"
        return path, f"{field} = {value}: {reason}"
    if isinstance(value, dict) and {"value", "unit"} <= value.keys():
        return path, f"{field} = {show(value['value'])} {clean(str(value['unit']), 20)}: {reason}"
    return path, f"{field} = {show(value)}: {reason}"


def load(document: Document, model: type[BaseModel]) -> Any:
    """Build `model` from a document, or raise a SpecError that lists every problem with file and line."""

    def known(prefix: KeyPath) -> list[str]:
        return list((Quantity if prefix else model).model_fields)

    try:
        spec = model.model_validate(document.data)
    except ValidationError as error:
        problems = []
        for item in error.errors():
            path, text = _describe(dict(item), known)
            problems.append(f"{document.where(path)}: {text}")
        raise SpecError(dict.fromkeys(problems)) from error
    cross = spec.problems() if hasattr(spec, "problems") else []
    if cross:
        raise SpecError(f"{document.where((field,))}: {field} = {show(value)}: {rule}" for field, value, rule in cross)
    return spec
