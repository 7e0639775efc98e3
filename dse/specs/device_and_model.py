"""Devices and language models as pydantic models: numbers with units, bounds and sources.

A number in a file is `{ value = 2.0e12, unit = "B/s", source = "Oaken, Table 1", kind = "datasheet" }`, or, in a
user's own file, the short text `"3.35 TB/s"` (its source is then the file and its kind "assumed"). Inside the
tool it is a `Quantity`, whose `.si` is the value in the base unit.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from dse.core import units
from dse.core.errors import MAX_PROBLEMS, SpecError, clean, did_you_mean, show
from dse.core.specfile import Document, KeyPath
from dse.quantizers import FAMILIES
from dse.quantizers.base import Path
from dse.specs.links import LinksSpec
from dse.specs.quantity import (
    ASSUMED,
    Area,
    Bandwidth,
    Burst,
    Bytes,
    Channels,
    Clock,
    Cores,
    Devices,
    ElementRate,
    Energy,
    Experts,
    FfnChannels,
    FlopEnergy,
    FlopRate,
    HeadChannels,
    Heads,
    IdlePower,
    Layers,
    OpRate,
    Overhead,
    Page,
    Parameters,
    Power,
    Price,
    Quantity,
    Rows,
    Seconds,
    Tokens,
    UsableFrac,
    VocabTokens,
    with_source,
)
from dse.specs.stack import Spec, StackName, StackSpec, StateCode
from dse.specs.weights import ATTENTION, EIGHTHS, FORMATS, NOTHING, WIDE, WIDE_EIGHTHS, WeightFormat

__all__ = ["ASSUMED", "HardwareSpec", "LayerKV", "ModelFile", "ModelSpec", "Path", "Quantity", "StackSpec", "load"]

#: how GPUs run quantizers where the device does not say: these by writing FP16 back, the others in registers
GPU_PATHS: dict[str, Path] = {"nqkv": "materialised", "oaken": "materialised"}
#: elements per second and core of GPUs whose clock is not known: 13.7 a cycle
#: (docs/explanation/calibration.md, Shipped FP8 fits) at Hopper's 1.83 GHz; assumed for every core until calibrated
FUSED_ELEMENTS_PER_S_PER_CORE = 25e9
#: of the memory's pace at 4 bits an element, what kernels of 3 elements a cycle and core unpack on an H100: 0.1
SLOWEST_PACE = 0.1


def _family(name: str) -> str:
    if name != "default" and name not in FAMILIES:
        raise ValueError(f"unknown quantizer {show(name)}: {did_you_mean(name, ['default', *FAMILIES])}")
    return name


FamilyName = Annotated[str, AfterValidator(_family)]
ModuleName = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[a-z][a-z0-9_]*$")]
#: GPUs by compute capability, others by what they are called
Architecture = Annotated[str, Field(min_length=1, max_length=20, pattern=r"^[a-z][a-z0-9_]*$")]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]


def _weights_name(name: str) -> str:
    if name not in FORMATS:
        raise ValueError(f"unknown format of weights {show(name)}: {did_you_mean(name, FORMATS)}")
    return name


#: ORG/NAME on a hub of models
HubName = Annotated[str, Field(max_length=200, pattern=r"^$|^[A-Za-z0-9][\w.-]*/[\w.-]*\w$")]
WeightsName = Annotated[str, AfterValidator(_weights_name)]


#: bands in which the numbers of a serving device usually lie; outside them a unit slip is likely
PLAUSIBLE = {"memory_capacity": (4e9, 4e12), "memory_bandwidth": (2e10, 5e13), "peak_flops": (1e12, 5e16)}


class HardwareSpec(Spec):
    """A device (or several that act as one): memory, compute, power, and how it runs quantizers.

    Peak figures; what kernels really reach is in `stacks`, fitted to their times.
    """

    name: Name
    title: str = Field(default="", max_length=120)
    #: other names of a shipped device
    aliases: list[Name] = Field(default=[], max_length=100)
    #: who makes it, as lists group it; of a published design, who published it
    vendor: str = Field(default="", max_length=60)
    #: what kernels are written for: sm_90 is compute capability 9.0
    architecture: Architecture | None = None
    memory_capacity: Bytes
    memory_bandwidth: Bandwidth
    #: where the memory computes (PIM): at which attention reads keys and values inside it; the rest crosses the bus
    pim_bandwidth: Bandwidth | None = None
    #: dense FP16; and dense FP8, FP4 and INT8 where the device has them
    peak_flops: FlopRate
    peak_flops_fp8: FlopRate | None = None
    peak_flops_fp4: FlopRate | None = None
    peak_ops_int8: OpRate | None = None
    board_power: Power | None = None
    #: energy by parts: a byte read or written, an FP16 operation, and what is drawn all the time
    energy_per_byte: Energy | None = None
    energy_per_flop: FlopEnergy | None = None
    #: the same of bytes and operations of 8 and 4 bits; None: of bytes as of 16 bits, of operations by the peak rates
    energy_per_byte_fp8: Energy | None = None
    energy_per_byte_fp4: Energy | None = None
    #: keys and values, 16 bits and fewer, as attention reads them; None: as other bytes
    energy_per_kv_byte: Energy | None = None
    energy_per_kv_byte_fp8: Energy | None = None
    energy_per_flop_fp8: FlopEnergy | None = None
    energy_per_flop_fp4: FlopEnergy | None = None
    idle_power: IdlePower | None = None
    usd_per_hour: Price | None = None
    n_devices: Devices = Quantity(value=1, unit="device", source="default", kind="derived")
    n_cores: Cores | None = None
    #: last-level cache: measured rows that fit in it are faster than the memory lets a decode step be
    l2_cache: Bytes | None = None
    #: to the next device of a ring, one direction
    link_bandwidth: Bandwidth | None = None
    #: from host memory, one direction
    host_link: Bandwidth | None = None
    usable_frac: UsableFrac = Quantity(value=1.0, unit="1", source="Oaken 6.1 counts the whole memory", kind=ASSUMED)
    runtime_overhead: Overhead = Quantity(value=0, unit="B", source="none counted", kind=ASSUMED)
    kernel_launch: Seconds = Quantity(
        value=5, unit="us", source="assumed, as for the shipped GPUs; 0 where no host launches kernels", kind=ASSUMED
    )
    fused_rate: ElementRate | None = None
    #: of the engines of all cores: what they unpack, and what they pack where that is another number
    engine_rate: ElementRate | None = None
    quantize_rate: ElementRate | None = None
    #: boost clock of a core (a GPU's SM): rates of implementations are given a cycle. Products of tensor cores may run
    #: slower, at the clock that peak_flops and n_cores imply
    core_clock: Clock | None = None
    #: cores that each work on one token of one request in generation (Oaken 5.3)
    token_cores: Cores | None = None
    #: rows of its systolic arrays, which a decode step fills by as many as it has (Oaken 6.2, Real-world benchmark)
    array_rows: Rows | None = None
    #: page and burst of the memory unit that holds what the engine packs (Oaken 5.2)
    kv_page: Page | None = None
    kv_burst: Burst | None = None
    #: quantizer family -> path; "default" for the rest
    dequant_path: dict[FamilyName, Path] = Field(default_factory=dict)
    #: quantizer family -> the implementation that runs it, where it is not the one that the stack would take
    implementations: dict[FamilyName, Name] = Field(default_factory=dict)
    #: software stack -> calibrated parameters of its kernels
    stacks: dict[StackName, StackSpec] = Field(default_factory=dict)
    #: a shipped device whose stacks are taken to hold here: the same chip, or one known by its data sheet alone
    stacks_of: Name | None = None
    #: products of a core and clock over those of the chip that `stacks_of` names, where they are fewer by design: power
    #: and unpacking hold them up as much less, so that more of their rate is reached
    core_products: UsableFrac | None = None
    #: nodes, and measured collectives between devices
    links: LinksSpec | None = None
    #: modules of a compute core and the core itself, where published; the areas of modules do not add up to the core's
    core_area: dict[ModuleName, Area] = Field(default_factory=dict)
    #: bytes of all memory as CUDA reports them (torch.cuda.mem_get_info), which servers count from; None: no server
    reported_memory: Bytes | None = None
    #: memory that `reported_memory` goes with
    _described_bytes: int = PrivateAttr(default=0)

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, data: Any) -> Any:
        return flat(data) if isinstance(data, dict) else data

    def model_post_init(self, context: Any, /) -> None:
        """Note which memory the driver's number is for."""
        self._described_bytes = self.capacity_bytes

    def problems(self) -> list[tuple[str, object, str]]:
        """Rules that join several fields: (field, value, what must hold)."""
        if (self.stacks or self.stacks_of) and self.n_cores is None:
            return [("stacks", ", ".join(self.stacks) or self.stacks_of, "need n_cores: add the number of cores")]
        if self.stacks and self.stacks_of:
            return [("stacks_of", self.stacks_of, "cannot stand beside stacks: leave one of them out")]
        if self.token_cores and (self.stacks or self.stacks_of):
            return [("token_cores", self.token_cores.count, "cannot stand beside stacks, whose kernels were measured")]
        if self.array_rows and (self.stacks or self.stacks_of or self.token_cores):
            other = "token_cores: give one of both" if self.token_cores else "stacks, whose kernels were measured"
            return [("array_rows", self.array_rows.count, f"cannot stand beside {other}")]
        if self.quantize_rate and not self.engine_rate:
            return [("quantize_rate", self.quantize_rate.value, "is of an engine: give engine_rate too")]
        if self.pim_bandwidth and (self.stacks or self.stacks_of):
            return [
                ("pim_bandwidth", self.pim_bandwidth.value, "cannot stand beside stacks, whose kernels read the bus")
            ]
        if self.kv_page and self.kv_burst and self.kv_page.count % self.kv_burst.count:
            return [("kv_page", self.kv_page.count, f"must be a multiple of kv_burst = {self.kv_burst.count} B")]
        return []

    @property
    def kv_bandwidth(self) -> Quantity:
        """At which attention reads keys and values: inside a memory that computes, else over the bus."""
        return self.pim_bandwidth or self.memory_bandwidth

    @property
    def capacity_bytes(self) -> int:
        """Memory in bytes."""
        return self.memory_capacity.count

    @property
    def reported_bytes(self) -> int:
        """Memory in bytes as the driver reports it, in proportion where the memory is changed; 0 where not known."""
        if self.reported_memory is None:
            return 0
        if self.capacity_bytes == self._described_bytes:
            return self.reported_memory.count
        return int(self.reported_memory.count * (self.capacity_bytes / self._described_bytes))

    def with_memory(self, size: Quantity) -> "HardwareSpec":
        """The device with another memory, all of which its driver reports where it has one."""
        resized = self.model_copy(
            update={"memory_capacity": size, "reported_memory": size if self.reported_memory else None}
        )
        resized._described_bytes = resized.capacity_bytes
        return resized

    @property
    def has_kernels(self) -> bool:
        """Whether kernels were measured on it, or on a chip by whose kernels it runs."""
        return bool(self.stacks or self.stacks_of)

    @property
    def is_own_chip(self) -> bool:
        """Whether it is a chip of the user's: of no architecture that code is written for, without measured kernels."""
        return not self.architecture and not self.has_kernels

    def product_peak(self, activation_bits: int) -> Quantity | None:
        """Peak rate of products with the weights: FP16, or the larger of INT8 and FP8; None where it has neither."""
        if activation_bits > units.BITS_PER_BYTE:
            return self.peak_flops
        return max((q for q in (self.peak_ops_int8, self.peak_flops_fp8) if q), key=lambda q: q.si, default=None)

    def format_peak(self, code: str) -> Quantity:
        """Peak rate of products with weights of a measured format (`dse.specs.stack.WeightCode`)."""
        peak: Quantity = getattr(self, self.format_peak_name(code))
        return peak

    def format_peak_name(self, code: str) -> str:
        """The field of that rate: of the narrowest operations that the device has for the format; weights alone in
        fewer bits are multiplied in 16."""
        if code == "nvfp4" and self.peak_flops_fp4:
            return "peak_flops_fp4"
        if code == "w8a8" and self.peak_ops_int8:
            return "peak_ops_int8"
        if self.peak_flops_fp8 and (code in ("fp8", "fp8_block") or (code == "mxfp4" and self.peak_flops_fp4)):
            return "peak_flops_fp8"
        return "peak_flops"

    def path_of(self, family: str) -> Path:
        """The path that dequantizes a family: as the device says, else as GPUs do (and Oaken by its engine); a chip of
        the user's unpacks all alike."""
        path = self.dequant_path.get(family) or self.dequant_path.get("default")
        if path:
            return path
        if self.is_own_chip:
            return "engine" if self.engine_rate or not self.fused_rate else "fused"
        return "engine" if family == "oaken" and self.engine_rate else GPU_PATHS.get(family, "fused")

    def rate(self, path: str) -> Quantity:
        """Elements per second that a path dequantizes or quantizes; assumed where the file gives none.

        `quantize` is what engines pack, which may be another number than what they unpack.
        """
        if path == "quantize":
            return self.quantize_rate or self.rate("engine")
        stated_rate = self.engine_rate if path == "engine" else self.fused_rate
        if stated_rate is not None:
            return stated_rate
        if path == "fused" and self.n_cores is not None:
            return Quantity(
                value=self.n_cores.si * FUSED_ELEMENTS_PER_S_PER_CORE,
                unit="element/s",
                kind=ASSUMED,
                source="assumed: 25 G element/s a core, as measured for FP8 decode attention on Hopper",
            )
        pace = units.BITS_PER_BYTE * self.memory_bandwidth.si / 4
        if path == "engine" and self.is_own_chip:
            return Quantity(
                value=units.BITS_PER_BYTE * self.kv_bandwidth.si,
                low=SLOWEST_PACE * pace,
                high=units.BITS_PER_BYTE * self.kv_bandwidth.si,
                unit="element/s",
                kind=ASSUMED,
                source="assumed ideal: no format is unpacked more slowly than the memory gives it; give engine_rate",
            )
        return Quantity(
            value=pace,
            low=SLOWEST_PACE * pace,
            high=2 * pace,
            unit="element/s",
            kind=ASSUMED,
            source="assumed: keeps pace with the memory at 4 bits an element, down to a tenth of it; give fused_rate "
            "or n_cores",
        )

    def quantities(self) -> dict[str, Quantity]:
        """Every number by field name, the assumed rate included where the file gives none."""
        return {**super().quantities(), "fused_rate": self.rate("fused")}

    def text(self) -> str:
        """The numbers that decide most, in a few lines."""
        title = f" ({self.title})" if self.title else ""
        numbers = {
            "memory": self.memory_capacity,
            "bandwidth": self.memory_bandwidth,
            "FP16 peak": self.peak_flops,
            "board power": self.board_power,
        }
        known = [f"{name} {units.human(q.si, units.base_of(q.unit))}" for name, q in numbers.items() if q]
        stacks = f"  measured kernels: {', '.join(self.stacks)}" if self.stacks else "  no measured kernels"
        return "\n".join([f"{self.name}{title}", f"  {', '.join(known)}", stacks])

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    def warnings(self) -> list[str]:
        """Numbers that are possible but unusual for a serving device, one line each."""
        unusual = []
        for name, (low, high) in PLAUSIBLE.items():
            number: Quantity = getattr(self, name)
            base = units.base_of(number.unit)
            if not low <= number.si <= high:
                usual = f"{units.human(low, base)} to {units.human(high, base)}"
                unusual.append(f"{name} = {number.value:g} {number.unit} is unusual ({usual}): check the unit")
        return unusual


#: what a fit to a device's power gives, as the block `energy` of a file
FITTED_ENERGY = frozenset(name for name in HardwareSpec.model_fields if name.startswith("energy_")) | {"idle_power"}


def flat(data: dict[str, Any]) -> dict[str, Any]:
    """The keys of a device file with those of its block `energy` beside the others. Raises ValueError."""
    block = data.get("energy")
    if not isinstance(block, dict) or "source" not in block:
        return data
    for name in block.keys() - {"source", "kind"}:
        if name not in FITTED_ENERGY:
            raise ValueError(f"energy.{clean(str(name), 40)}: unknown key: {did_you_mean(str(name), FITTED_ENERGY)}")
        if name in data:
            raise ValueError(f"energy.{name}: is given twice: give it once")
    return {name: item for name, item in data.items() if name != "energy"} | with_source(block, FITTED_ENERGY)


class LayerKV(BaseModel):
    """The cache of a request in `n_layers` equal layers. `window` is None where a token sees all before it.

    MLA is one head whose key is the cached latent and rope part and whose value is empty. `stored` is False
    where a layer reads the cache of an earlier one. Layers of a constant state (Mamba-2, gated delta rule, KDA) have
    no heads; layers that keep nothing (a feed-forward alone) have neither.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    n_layers: int = Field(ge=1, le=10_000)
    n_kv_heads: int = Field(default=0, ge=0, le=65_536)
    key_dim: int = Field(default=0, ge=0, le=65_536)
    value_dim: int = Field(default=0, ge=0, le=65_536)
    window: int | None = Field(default=None, ge=1, le=2**40)
    #: the window starts anew at each multiple of its length: a token sees its own chunk alone (Llama 4)
    chunked: bool = False
    stored: bool = True
    #: multiply-add width of one query head over one token: key and value dims as attention computes them
    score_dim: int = Field(default=0, ge=0, le=2**20)
    #: the same where a prompt is computed and latent heads are expanded; None: as in decoding
    prompt_score_dim: int | None = Field(default=None, ge=1, le=2**20)
    #: tokens that a step reads, chosen by an index; None: all
    read_limit_tokens: int | None = Field(default=None, ge=1, le=2**40)
    #: bits of a token's index, kept beside its keys, and operations to score it; none where an earlier layer's is used
    index_bits: int = Field(default=0, ge=0, le=2**24)
    index_flops: int = Field(default=0, ge=0, le=2**40)
    #: tokens that are compressed into one entry of the cache; a token counts as its part of one
    tokens_per_entry: int = Field(default=1, ge=1, le=65_536)
    #: a second cache of the layers just before, which the same attention reads
    joined: bool = False
    #: a learned logit beside those of the tokens, which not every kernel takes
    sinks: bool = False
    #: what does not grow with the context: bytes of a request and layer, and operations of a token on it, for which a
    #: step reads and writes it whole; 0: tokens wait there for others, and a step touches little of it
    state_bytes: int = Field(default=0, ge=0, le=2**40)
    state_flops: int = Field(default=0, ge=0, le=2**50)
    #: which kernel updates it
    state_code: StateCode | None = None

    @model_validator(mode="after")
    def _keeps_one_thing(self) -> "LayerKV":
        heads = (self.n_kv_heads > 0, self.key_dim > 0, self.score_dim > 0)
        if len(set(heads)) > 1 or (self.value_dim and not self.key_dim):
            raise ValueError(
                "n_kv_heads, key_dim and score_dim must be given together, or none of them and no value_dim"
            )
        if self.chunked and not self.window:
            raise ValueError("chunked = true: needs window, the tokens of a chunk, beside it")
        if self.key_dim and self.state_bytes:
            raise ValueError("state_bytes: a layer with heads and a state is two, the second joined = true")
        if (self.n_kv_heads * self.key_dim) % self.tokens_per_entry or self.value_dim % self.tokens_per_entry:
            raise ValueError(f"tokens_per_entry = {self.tokens_per_entry}: must divide the elements of an entry")
        return self

    @property
    def is_latent(self) -> bool:
        """True for one head whose value is part of its key."""
        return self.key_dim > 0 and self.value_dim == 0

    @property
    def sparse_kind(self) -> str:
        """The kernels that read the layer, where not those of all tokens: of DeepSeek-V4's compressed caches with an
        index ("csa") or without ("hca"), of MiniMax's blocks ("msa"), of DeepSeek's tokens ("dsa") or of those that
        another layer chose ("dsa_shared"); "" for others."""
        if self.tokens_per_entry > 1:
            return "csa" if self.index_bits else "hca"
        if self.read_limit_tokens is None:
            return ""
        if self.value_dim:
            return "msa"
        return "dsa" if self.index_bits else "dsa_shared"


def order_problem(layers: Sequence[LayerKV]) -> str:
    """The rule that layers in this order break; "" where they break none."""
    with_heads = [layer for layer in layers if layer.key_dim]
    if not with_heads:
        return "one of them or more must have heads: constant states alone are no keys and values to quantize"
    if not with_heads[0].stored:
        return "the first with heads must have stored = true"
    for before, layer in zip((None, *layers), layers, strict=False):
        if layer.joined and (before is None or before.n_layers != layer.n_layers):
            return "one with joined = true must follow as many others"
    return ""


#: channels that kernels of MXFP4 experts (Marlin, in vLLM and SGLang) pad rows to: of the model's width, and of a
#: device's slice of an expert
MXFP4_HIDDEN_CHANNELS, MXFP4_EXPERT_CHANNELS = 256, 128
#: share by which counted parameters differ from published ones, which are rounded: all 113 shipped models with a
#: published number lie within
COUNTED_WITHIN = 0.03


class Wide(Spec):
    """Parameters that a checkpoint stores in more bits than its format says, in parameters of 16 bits.

    What has fewer than 16 bits, but more than the format, counts as so many that the bytes are right.
    """

    attention: int = Field(default=0, ge=0, le=10**15)
    #: other layers outside the routed experts
    rest: int = Field(default=0, ge=0, le=10**15)
    experts: int = Field(default=0, ge=0, le=10**15)
    #: of the output head, the parameters that are in the format, where others are left in 16 bits
    narrow_head: int = Field(default=0, ge=0, le=10**15)
    source: str = Field(default="", max_length=300)

    def split(self, n_devices: int, attention_share: Fraction) -> "Wide":
        """The part of one of several devices, which has a share of attention."""
        shares = {name: -(-getattr(self, name) // n_devices) for name in ("rest", "experts", "narrow_head")}
        return self.model_copy(update={"attention": math.ceil(self.attention * attention_share), **shares})

    def grown(self, share: Fraction) -> "Wide":
        """As of a model with so many times the layers."""
        more = {name: math.ceil(getattr(self, name) * share) for name in ("attention", "rest", "experts")}
        return self.model_copy(update=more)


#: of a checkpoint whose layers are all in its format
NOTHING_WIDE = Wide()


class ModelSpec(BaseModel):
    """A language model as the formulas need it, whatever file it came from."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: str
    title: str = ""
    source: str
    #: name on a hub of its checkpoint in the format below; "" where the sources of its numbers name it, or nothing
    hub: str = ""
    #: the name by which another checkpoint of this shape was asked for; "" for its own
    alias: str = ""
    hidden_size: int
    vocab_size: int
    n_q_heads: int
    layers: tuple[LayerKV, ...]
    #: parameters outside the routed experts, and of all routed experts together
    dense_parameters: int = Field(ge=0)
    expert_parameters: int = Field(default=0, ge=0)
    #: of those outside the experts, the parameters of attention; None: not known
    attention_parameters: int | None = Field(default=None, ge=0)
    #: of those outside the experts, the table of input embeddings where it is none of the output head's: looked up
    embedding_parameters: int = Field(default=0, ge=0)
    #: of those outside the experts, what each of several devices holds whole: down-projections of latent attention,
    #: indexes, routers; None: not known
    copied_parameters: int | None = Field(default=None, ge=0)
    #: towers that make tokens of images and sound, beside all of these; None: none known
    tower_parameters: int | None = Field(default=None, ge=0)
    #: values of one width of the tower for the largest image that a server prepares for; None: not known
    image_elements: int | None = Field(default=None, ge=0)
    #: tokens of an image see each other, which not every kernel takes
    image_mask: bool = False
    #: elements of the tables of rotary positions that servers keep; None: not known
    rotary_elements: int | None = Field(default=None, ge=0)
    n_experts: int = Field(default=1, ge=1)
    n_active_experts: int = Field(default=1, ge=1)
    #: channels of an expert's feed-forward; None: not known
    expert_width: int | None = Field(default=None, ge=1)
    #: channels of the feed-forward that runs for each token beside the experts; None: none, or not known
    shared_expert_width: int | None = Field(default=None, ge=1)
    #: elements live at once per token in the widest operation of a layer (or the output head)
    activation_elements: int = Field(ge=0)
    #: the same without the output head; None: not known
    layer_elements: int | None = Field(default=None, ge=0)
    published_parameters: int | None = None
    max_position_tokens: int | None = None
    #: rules the reader applied where the file was silent, one line each
    notes: tuple[str, ...] = ()
    #: format of the weights as published, a name of `dse.specs.weights.FORMATS`
    released: str = WIDE
    released_source: str = ""
    #: by the format of a checkpoint, what it stores in more bits
    wide: dict[str, Wide] = {}
    #: formats of well-known checkpoints by the word in their names, where they are not what the word says alone
    checkpoints: dict[str, str] = {}
    numbers: dict[str, Quantity] = {}

    @field_validator("layers")
    @classmethod
    def _first_stores(cls, layers: tuple[LayerKV, ...]) -> tuple[LayerKV, ...]:
        if problem := order_problem(layers):
            raise ValueError(problem)
        return layers

    @property
    def n_layers(self) -> int:
        """Decoder layers."""
        return sum(group.n_layers for group in self.layers if not group.joined)

    @property
    def is_hybrid(self) -> bool:
        """True where some layers keep a constant state."""
        return any(group.state_code for group in self.layers)

    @property
    def window_layers(self) -> frozenset[int]:
        """Numbers of the layers of which a token sees a sliding window."""
        kinds = [group for group in self.layers if not group.joined for _ in range(group.n_layers)]
        return frozenset(i for i, group in enumerate(kinds) if group.window and not group.chunked)

    @property
    def blocks_note(self) -> str:
        """The note that the checkpoint numbers more blocks than these layers; "" where it does not."""
        return next((note for note in self.notes if " blocks are " in note), "")

    @property
    def read_limit_tokens(self) -> int | None:
        """Tokens that a step reads of layers that choose by an index, the most of any; None: it reads all."""
        return max((limit for group in self.layers if (limit := group.read_limit_tokens)), default=None)

    @property
    def is_latent(self) -> bool:
        """True where all heads are latent (MLA): one key for all, whose part is the value."""
        with_heads = [group for group in self.layers if group.key_dim]
        return bool(with_heads) and all(group.is_latent for group in with_heads)

    @property
    def state_bytes(self) -> int:
        """Bytes of a request that all layers together keep, whatever its length."""
        return sum(group.n_layers * group.state_bytes for group in self.layers)

    @property
    def index_bits(self) -> int:
        """Bits of the indexes that all layers keep of a token, whatever the quantizer."""
        return sum(group.n_layers * group.index_bits for group in self.layers if group.stored)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.dense_parameters + self.expert_parameters

    def warnings(self) -> list[str]:
        """Say in a line that the parameters counted from the layers are not those published, with towers or without."""
        published, tower = self.published_parameters, self.tower_parameters or 0
        counted = [self.parameters, self.parameters + tower]
        if not published or any(abs(n / published - 1) <= COUNTED_WITHIN for n in counted):
            return []
        near = min(counted, key=lambda n: abs(n - published))
        side = "more" if near > published else "fewer"
        return [
            f"published_parameters = {published:,}, but {near:,} are counted from the layers, "
            f"{abs(near / published - 1):.1%} {side}: check the shape, and what was published"
        ]

    def text(self) -> str:
        """Size, shape and source in a few lines."""
        heads = next((group for group in self.layers if group.key_dim), None)
        title = f" ({self.title})" if self.title else ""
        shape = [f"{self.n_layers:,} layers of {self.hidden_size:,} channels", f"{self.n_q_heads:,} query heads"]
        if heads and heads.is_latent:
            shape.append(f"one latent of {heads.key_dim:,} for all heads")
        elif heads:
            shape.append(f"{heads.n_kv_heads:,} KV heads (key {heads.key_dim:,}, value {heads.value_dim:,})")
        sizes = [f"{self.parameters:,} parameters"]
        if self.active_parameters != self.parameters:
            sizes.append(f"{float(self.active_parameters):,.0f} of them for a token")
        if self.max_position_tokens:
            sizes.append(f"{self.max_position_tokens:,} positions")
        lines = [f"{self.name}{title}", f"  {', '.join(sizes)}", f"  {', '.join(shape)}"]
        return "\n".join([*lines, f"  weights as released: {self.released}; source: {self.source}"])

    def lacks_positions(self, n_tokens: int | None) -> bool:
        """Whether a context is longer than the positions that the model was made for; no where these are not known."""
        return self.max_position_tokens is not None and (n_tokens or 0) > self.max_position_tokens

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    @property
    def latent_copy_parameters(self) -> int:
        """Parameters of latent attention's up-projections, which servers copy in the shape that decoding needs."""
        total = 0
        for group in self.layers:
            if group.is_latent and group.prompt_score_dim:
                rank = group.score_dim - group.key_dim
                rotary = group.key_dim - rank
                total += group.n_layers * self.n_q_heads * rank * (group.prompt_score_dim - rotary)
        return total

    @property
    def active_parameters(self) -> Fraction:
        """Parameters that one token's forward pass uses."""
        return self.dense_parameters + Fraction(self.expert_parameters * self.n_active_experts, self.n_experts)

    def kept_attention(self, weights: WeightFormat) -> int:
        """Parameters of attention that a format leaves in 16 bits though others of the layers are not."""
        if weights.keeps == ATTENTION:
            return self.attention_parameters or 0
        return self.wide_in(weights).attention

    def wide_in(self, weights: WeightFormat) -> Wide:
        """Parameters that a checkpoint in a format stores in more bits."""
        return self.wide.get(weights.name, NOTHING_WIDE)

    def wide_expert_bytes(self, weights: WeightFormat) -> int:
        """Bytes that routed experts take beyond a format, as a checkpoint leaves some of them in 16 bits."""
        return -(
            -self.wide_in(weights).experts * (WIDE_EIGHTHS - weights.expert_eighths) // (EIGHTHS * units.BITS_PER_BYTE)
        )

    def kept_parameters(self, weights: WeightFormat) -> int:
        """Parameters outside the routed experts that a format leaves in 16 bits though those of the layers are not.

        Embeddings and output head, which are one table where `embedding_parameters` is 0. Norms, biases and routers
        are less than a thousandth and count with the layers.
        """
        if weights.keeps == NOTHING:
            return 0
        tables = self.vocab_size * self.hidden_size * (2 if self.embedding_parameters else 1)
        wide = self.wide_in(weights)
        kept = tables - wide.narrow_head + self.kept_attention(weights) + wide.rest
        return min(kept, self.dense_parameters)

    def stored_expert_parameters(self, weights: WeightFormat, n_slices: int) -> int:
        """Parameters of the routed experts as they lie in memory, padding included; each is cut into `n_slices`."""
        width = self.expert_width
        if not weights.pads or not width or not self.expert_parameters:
            return self.expert_parameters
        slice_width = -(-width // n_slices)
        rows = _padded(self.hidden_size, MXFP4_HIDDEN_CHANNELS) * _padded(slice_width, MXFP4_EXPERT_CHANNELS) * n_slices
        return -(-self.expert_parameters * rows // (self.hidden_size * width))


def _padded(channels: int, to: int) -> int:
    return -(-channels // to) * to


class Released(Spec):
    """The format of a model's weights as its publisher released them."""

    weights: WeightsName
    source: str = Field(min_length=1, max_length=300)


def released_fields(released: Released | None, checkpoints: dict[str, str], hub: str) -> dict[str, Any]:
    """The fields of a model that say how its weights were released, from those of its file."""
    fields: dict[str, Any] = {"checkpoints": checkpoints, "hub": hub}
    return fields | ({"released": released.weights, "released_source": released.source} if released else {})


class ModelFile(Spec):
    """A language model in our own file format: a uniform decoder, from which all else is computed."""

    name: Name
    title: str = Field(default="", max_length=120)
    #: other names of a shipped model of the same shape
    aliases: list[Name] = Field(default=[], max_length=100)
    n_layers: Layers
    hidden_size: Channels
    n_q_heads: Heads
    n_kv_heads: Heads
    head_dim: HeadChannels
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
    hub: HubName = ""
    released: Released | None = None
    checkpoints: dict[str, WeightsName] = Field(default_factory=dict)

    def problems(self) -> list[tuple[str, object, str]]:
        """Rules that join several fields: (field, value, what must hold)."""
        broken: list[tuple[str, object, str]] = []
        q, kv = self.n_q_heads.count, self.n_kv_heads.count
        if q % kv:
            broken.append(("n_kv_heads", kv, f"must divide n_q_heads = {q}"))
        experts = self.n_experts.count if self.n_experts else 1
        active = self.n_active_experts.count if self.n_active_experts else 1
        if active > experts:
            broken.append(("n_active_experts", active, f"must be at most n_experts = {experts}"))
        return broken

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
        inner = max(q_dim + 2 * kv_dim, (matrices - 1) * ffn * active)
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
            attention_parameters=n_layers * attention,
            embedding_parameters=0 if self.tied_embeddings else vocab * hidden,
            rotary_elements=self.max_position.count * head_dim if self.max_position and not positions else None,
            copied_parameters=n_layers * router or None,
            expert_width=ffn if experts > 1 else None,
            dense_parameters=outside + (n_layers * one_ffn if experts == 1 else 0),
            expert_parameters=n_layers * experts * one_ffn if experts > 1 else 0,
            n_experts=experts,
            n_active_experts=active,
            activation_elements=2 * hidden + max(inner, vocab),
            layer_elements=2 * hidden + inner,
            published_parameters=self.published_parameters.count if self.published_parameters else None,
            max_position_tokens=self.max_position.count if self.max_position else None,
            **released_fields(self.released, self.checkpoints, self.hub),
            numbers=self.quantities(),
        )


def _describe(error: dict[str, Any], known: Callable[[KeyPath], list[str]]) -> tuple[KeyPath, str]:
    """One pydantic problem as (key path, 'FIELD = VALUE: what must hold')."""
    path: KeyPath = tuple(part for part in error["loc"] if not str(part).startswith(("function-", "[key]")))
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


def _bare(annotation: Any) -> Any:
    """A type without what bounds it, and of a union its first member."""
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = get_args(annotation)[0]
    return annotation


def keys_at(kind: Any, path: KeyPath) -> list[str]:
    """Keys that a table at `path` may have inside a file of a model `kind`; none where any key will do."""
    for part in path:
        kind = _bare(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if part not in kind.model_fields:
                return []
            kind = kind.model_fields[str(part)].annotation
        elif members := get_args(kind):  # the values of a mapping, the items of a list
            kind = members[1] if get_origin(kind) is dict else members[0]
    kind = _bare(kind)
    if get_origin(kind) is dict:
        return list(get_args(_bare(get_args(kind)[0])))
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def load(document: Document, model: type[BaseModel]) -> Any:
    """Build `model` from a document, or raise a SpecError that lists every problem with file and line."""
    try:
        spec = model.model_validate(document.data)
    except ValidationError as error:
        problems = []
        items = error.errors(include_url=False)
        for item in items[:MAX_PROBLEMS]:
            path, text = _describe(dict(item), partial(keys_at, model))
            problems.append(f"{document.where(path)}: {text}")
        if len(items) > MAX_PROBLEMS:
            problems.append(f"{document.path}: {len(items) - MAX_PROBLEMS:,} more problems: mend these first")
        raise SpecError(dict.fromkeys(problems)) from error
    cross = spec.problems() if hasattr(spec, "problems") else []
    if cross:
        raise SpecError(f"{document.where((field,))}: {field} = {show(value)}: {rule}" for field, value, rule in cross)
    return spec
