"""Fitted parameters of the kernels of a software stack on a device, each with the rows it was fitted on."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from dse.specs.quantity import ElementRate, Factor, Quantity, Rounds, Seconds, Share, with_source
from dse.specs.releases import NEWEST, release_of

#: how keys and values are stored, as far as kernels differ: 16-bit floats need no unpacking
KvCode = Literal["fp16", "fp8", "int8", "int4", "int2"]
PackedCode = Literal["fp8", "int8", "int4", "int2"]
#: formats of weights that products were measured in (hwspecs/weights.toml)
WeightCode = Literal["bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4", "int8", "w8a8", "gguf", "gguf_grid"]
LatentCode = Literal["fp16", "fp8"]
#: how a layer of a constant state updates it: Mamba-2, the gated delta rule, Kimi's delta attention
StateCode = Literal["mamba2", "gdn", "kda"]
#: how a layer is read that keeps or reads less than all tokens (`LayerKV.sparse_kind`), `_fp8` where it is stored so
SparseCode = Literal["dsa", "dsa_fp8", "dsa_shared", "dsa_shared_fp8", "msa", "msa_fp8", "csa_fp8", "hca_fp8"]
#: dimension of a head
HeadCode = Literal["d64", "d128", "dsa", "dsa_fp8"]
#: a framework's name, as a key of a TOML table
StackName = Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[a-z0-9][a-z0-9_.-]*$")]

#: measured over predicted
Ratio = Annotated[float, Field(gt=0, le=1000)]
ErrorShare = Annotated[float, Field(ge=0, le=100)]
#: what a source says of its rows, after where they come from
BEFORE_ROWS = re.compile("; (?=[0-9,]+ rows)")


class Spec(BaseModel):
    """Base of all specs: strict, nothing unknown, nothing infinite, never changed."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    def quantities(self) -> dict[str, Quantity]:
        """Every number of the spec by field name, for display with sources."""
        return {name: value for name in type(self).model_fields if isinstance(value := getattr(self, name), Quantity)}


class FittedBlock(Spec):
    """Fitted numbers whose source a file gives once, as `source` of the block, or in each of them.

    `fitted_on`, where left out, is the source up to what it says of its rows ("; 5,416 rows ...").
    """

    @model_validator(mode="before")
    @classmethod
    def _share_source(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(source := data.get("source"), str):
            return data
        fields = cls.model_fields.items()
        numbers = {name for name, field in fields if Quantity in (field.annotation, *_inside(field.annotation))}
        return with_source({"fitted_on": BEFORE_ROWS.split(source)[0], **data}, numbers)


def _inside(annotation: Any) -> tuple[Any, ...]:
    """The types that an optional field joins, without what bounds them."""
    return tuple(getattr(part, "__origin__", part) for part in get_args(annotation))


class Fit(FittedBlock):
    """The quality of fitted parameters: rows fitted, mean error on rows held out, and where the rows come from.

    Errors are shares (0.05 is 5 %). `serving_error` and `serving_p90` (mean and 90th percentile) count only the rows
    that serving is made of; see docs/explanation/calibration.md.
    """

    n_points: int = Field(ge=1)
    held_out_error: ErrorShare
    serving_error: ErrorShare | None = None
    serving_p90: ErrorShare | None = None
    fitted_on: str = Field(min_length=1, max_length=300)


class AttentionFit(Fit):
    """Parameters of one-layer decode attention over 16-bit keys and values (`attention_layer_s`)."""

    #: start of the kernels of a layer
    launch: Seconds
    #: added above 128 tokens, where sequences are split over cores and joined again
    split: Seconds
    #: scheduling per work unit and core
    per_unit: Seconds
    #: share of the peak bandwidth reached
    memory_frac: Share
    #: elements per second and core; none: no such ceiling was seen
    core_rate: ElementRate | None = None
    #: added where query heads share keys and the batch is larger than one; none: not seen
    layout_copy: Seconds | None = None


class PackedFit(Fit):
    """Changes where keys and values have fewer bits: the launch, and the elements that a core dequantizes."""

    launch: Seconds
    core_rate: ElementRate | None = None


class GemmFit(Fit):
    """Parameters of a 16-bit matrix product at decode sizes (`gemm_s`)."""

    launch: Seconds
    memory_frac: Share
    flops_frac: Share


class LatentFit(GemmFit):
    """Decode attention of latent heads over their cache."""

    #: elements per second and core at which the whole pool, whoever holds it, is written in 16 bits in every layer
    #: before the kernel reads its own; none: the kernel reads what is stored
    cast_rate: ElementRate | None = None


class StateFit(Fit):
    """Kernels of a layer that update constant states in a decode step, reading and writing them all."""

    launch: Seconds
    memory_frac: Share


class SparseFit(GemmFit):
    """A layer that reads chosen or compressed tokens: its index, the choice, and attention, one by one."""

    #: share of the peak bandwidth at which the index of all tokens is read; none: the layer has no index of its own
    index_frac: Share | None = None
    #: for each 1,000 tokens that a sequence chooses from, however many sequences run
    choice: Seconds | None = None


class PromptFit(Fit):
    """The share of the peak that attention over prompts reaches, causal: half of the products are not computed."""

    flops_frac: Share
    #: of layers that read chosen tokens of a latent: the share of their products that is computed for all tokens that
    #: may be chosen, however few there are, and the number to whose multiples query heads are filled up
    always_read: Annotated[float, Field(ge=0, le=1)] = 0.0
    head_rows: Annotated[float, Field(ge=1, le=256)] = 1.0


#: benchmarks below which nothing is said of a server: a factor of fewer is the chance of its rows
FEWEST_ROWS = 30
#: kinds of models that servers err on by different widths
Kind = Literal["dense", "mixture"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Spread(Spec):
    """Measured over predicted in 8 of 10 rows, of models left out of the fit unless said otherwise: times per output
    token, and to the first token. It holds 1: no prediction lies outside of its own interval."""

    low: Ratio
    high: Ratio
    first_low: Ratio
    first_high: Ratio
    n_points: int = Field(ge=1)


class HostFit(FittedBlock):
    """Time of a server in a step beside the modeled kernels: small kernels, scheduling, sampling.

    Fitted to whole measured steps, after kernels and exchanges (docs/explanation/calibration.md, Whole steps).
    """

    #: norms, rotations, activations, quantizing and other small kernels of a layer
    layer: Seconds
    #: the host's work for each sequence
    sequence: Seconds
    #: of a prompt and layer: what its first token waits for beside kernels; and what mixtures add to that
    prompt: Seconds
    experts_prompt: Seconds
    #: of every request that runs: its host serves them all before a first token; none: not seen
    request: Seconds | None = None
    #: rounds of requests, all started at once, after which they have fallen out of step: till then prompts queue
    rounds_in_step: Rounds
    n_points: int = Field(ge=1)
    fitted_on: str = Field(min_length=1, max_length=300)


class ServedExperts(Spec):
    """Routed experts in a server, as multiples of what benchmarks of their kernels say: `start` of their launches,
    `time` of their reads and products. Fitted to whole measured steps (docs/explanation/calibration.md, Whole steps).
    """

    start: Annotated[float, Field(ge=0.05, le=20)]
    time: Annotated[float, Field(ge=0.05, le=20)]
    #: rows of the server itself; 0: what other servers say of the format and the devices
    n_points: int = Field(ge=0)
    source: str = Field(min_length=1, max_length=300)


class PublicSpread(Spread):
    """A spread of public benchmarks, chosen by hand ("assumed") or fitted."""

    kind: Literal["derived", "assumed"]
    source: str = Field(min_length=1, max_length=500)


class Benchmarked(Spec):
    """Numbers of the releases of a server from `since` to before `until`, for one kind of models: their steps nobody
    published, so that closed loops and bursts of public benchmarks say them. docs/explanation/calibration.md, Public
    benchmarks.

    A share multiplies the rate that products reach in kernel benchmarks: steps of servers mix prompts of many lengths
    with decoding.
    """

    since: str = Field(pattern=r"^[0-9.]+$")
    until: str = Field(pattern=r"^[0-9.]+$")
    #: of the rate of products in kernel benchmarks: of dense products, of routed experts, of attention over prompts
    dense_share: Factor
    experts_share: Factor
    prompt_attention_share: Factor
    #: of a step and layer; of a sequence in a step; of a prompt and layer before its first token
    layer: Seconds
    sequence: Seconds
    prompt: Seconds
    #: of that, the share in which the others wait, as a prompt is started kernel by kernel
    blocking_share: Factor
    #: rounds until requests of unequal lengths have fallen out of step
    rounds_in_step: Factor
    #: benchmarks behind them, by device and format of weights (of the experts, in mixtures)
    rows: dict[str, dict[WeightCode, int]]
    #: measured over predicted in 8 of 10 values of these rows
    spread: PublicSpread

    def holds(self, device: str, code: str) -> bool:
        """Return True where the numbers may be used: on enough rows, and some of them of this device and format."""
        n_rows = sum(sum(by_code.values()) for by_code in self.rows.values())
        return n_rows >= FEWEST_ROWS and code in self.rows.get(device, {})

    def covers(self, release: str) -> bool:
        """Return True for a release that the numbers are of; False for none, or one without numbers."""
        return release[:1].isdigit() and release_of(self.since) <= release_of(release) < release_of(self.until)


class UnmeasuredKernels(Spec):
    """Kernels that no kernel benchmark has."""

    #: a GPU that runs by kernels of another vendor's takes so much longer: with weights of 16 bits; with narrower ones,
    #: a dense model; a mixture whose experts are narrower
    other_vendor_time: Factor
    other_vendor_narrow_time: Factor
    other_vendor_experts_time: Factor
    #: of the rate of 16-bit products, what those reach whose weights are unpacked first
    unpacked_share: Factor
    #: start of what quantizes the activations of a product with weights in FP8 blocks, by block too: tables time it
    #: outside of a graph
    block_quantizing: Seconds


class MaterialisedFit(Fit):
    """Code that writes an FP16 copy of the cache before it multiplies: starts of its kernels, and traffic."""

    #: all kernels that unpack the keys, or the values, of one layer
    launch: Seconds
    #: share of the peak bandwidth that the copies move at
    memory_frac: Share


#: formats of weights alone: how fast products unpack them is each stack's own, so no other's stands in; nor do products
#: of 8-bit integers, which were fitted to whole steps of one framework
OWN_PRODUCTS: tuple[WeightCode, ...] = ("int4", "int8", "w8a8")
#: prompts of layers that choose tokens of a latent, as these are stored
CHOSEN_PROMPTS: tuple[HeadCode, ...] = ("dsa", "dsa_fp8")
#: parts that are each stack's own, by table: SGLang computes short prompts of chosen tokens by other kernels
OWN: dict[str, tuple[str, ...]] = {"products": OWN_PRODUCTS, "prompt": CHOSEN_PROMPTS}
#: parts of a stack that whole steps need beside attention over plain heads and 16-bit products, each fitted by code
SERVED = ("products", "experts", "latent", "prompt", "state", "sparse")


class StackSpec(Spec):
    """Calibrated parameters of one software stack on one device."""

    attention: AttentionFit | None = None
    gemm: GemmFit | None = None
    #: products with weights (and activations) of other formats, and of routed experts, by `dse.specs.weights.CODES`
    products: dict[WeightCode, GemmFit] = Field(default_factory=dict)
    experts: dict[WeightCode, GemmFit] = Field(default_factory=dict)
    #: decode attention of latent heads (MLA), by how they are stored
    latent: dict[LatentCode, LatentFit] = Field(default_factory=dict)
    #: attention over prompts, by the dimension of a head
    prompt: dict[HeadCode, PromptFit] = Field(default_factory=dict)
    #: updates of constant states
    state: dict[StateCode, StateFit] = Field(default_factory=dict)
    #: decode attention of layers that read chosen or compressed tokens
    sparse: dict[SparseCode, SparseFit] = Field(default_factory=dict)
    #: how keys and values are stored -> what differs from `attention`
    kv: dict[PackedCode, PackedFit] = Field(default_factory=dict)
    #: fitted to whole steps of a published method, not to kernel times; none: `attention`'s bandwidth, `kernel_launch`
    materialised: MaterialisedFit | None = None
    #: what a server does beside the kernels; none: kernels alone
    host: HostFit | None = None
    #: how far off it is on models left out of its fit, by kind
    left_out: dict[Kind, Spread] = Field(default_factory=dict)

    def fits(self) -> dict[str, Fit]:
        """Everything that was fitted, by its place in the file."""
        whole = {"materialised": self.materialised}
        fitted: dict[str, Fit] = {**self.parts(), **{name: fit for name, fit in whole.items() if fit}}
        for table in SERVED:
            fitted |= {f"{table}.{code}": fit for code, fit in getattr(self, table).items()}
        return fitted

    def parts(self) -> dict[str, Fit]:
        """The fits that `dse validate silicon` judges, by their place in the file: attention, gemm, kv.fp8, ..."""
        fitted: dict[str, Fit] = {}
        if self.attention:
            fitted["attention"] = self.attention
        if self.gemm:
            fitted["gemm"] = self.gemm
        return {**fitted, **{f"kv.{code}": fit for code, fit in self.kv.items()}}

    def codes(self) -> list[KvCode]:
        """Storage of keys and values that `attention_terms` knows."""
        return ["fp16", *self.kv] if self.attention else []

    def attention_terms(self, code: KvCode = "fp16") -> dict[str, float]:
        """The parameters of `attention_layer_s` for keys and values stored as `code`, in SI units.

        Raises KeyError for a code that is not among `codes()`. A core rate of 0 stands for no ceiling.
        """
        if self.attention is None:
            raise KeyError(code)
        kernel = self.attention if code == "fp16" else self.kv[code]
        return {
            "launch_s": kernel.launch.si,
            "split_s": self.attention.split.si,
            "copy_s": self.attention.layout_copy.si if self.attention.layout_copy else 0.0,
            "unit_s": self.attention.per_unit.si,
            "memory_frac": self.attention.memory_frac.si,
            "core_rate_per_s": kernel.core_rate.si if kernel.core_rate else 0.0,
        }

    def gemm_terms(self) -> dict[str, float]:
        """The parameters of `gemm_s` in SI units. Raises KeyError where the stack has none."""
        if self.gemm is None:
            raise KeyError("gemm")
        return {
            "launch_s": self.gemm.launch.si,
            "flops_frac": self.gemm.flops_frac.si,
            "memory_frac": self.gemm.memory_frac.si,
        }


class ServedStack(StackSpec):
    """A stack as a server runs it on a device: what was not measured for it is taken from the nearest that was."""

    #: places of fits that belong to another stack of the device, as `fits` names them, and that stack
    borrowed: dict[str, str] = Field(default_factory=dict)
    #: the measured release that stands in for the one asked for, which was not measured, or on too few rows; "" else
    stands_in: str = ""
    #: the measured release whose own time counts; the newest of them where no release is asked for; "" for none
    measured: str = ""
    #: the release asked for as public benchmarks found it; each counts where it `holds`
    benchmarked: Mapping[Kind, Benchmarked] = Field(default_factory=dict)
    #: how far off it is on models with rows on it, each left out of its fit
    models: dict[str, Spread] = Field(default_factory=dict)
    #: format of routed experts -> generation of devices -> how long they take in the server
    served_experts: dict[str, dict[str, ServedExperts]] = Field(default_factory=dict)
    #: of software whose numbers hold for every device of one kind of kernels: that kind; "" else
    backend: str = ""


class Backend(Spec):
    """The kernels that a program has for one kind of device."""

    title: str = Field(min_length=1, max_length=60)
    #: devices that it runs on, by how their architectures begin
    architectures: Annotated[tuple[str, ...], BeforeValidator(tuple), Field(min_length=1)]
    #: other servers do not run there
    is_alone: bool = False
    #: the kernels of a step are recorded and start as one (CUDA graphs)
    records: bool = False
    #: measured rows; 0: the numbers are those of another backend
    n_points: int = Field(ge=0)
    left_out: dict[Kind, Spread]


class BackendsSpec(Spec):
    """A program whose kernels were written once for every device of a kind: shares of the peaks that all reach."""

    name: StackName
    title: str = Field(min_length=1, max_length=120)
    numbers: StackSpec
    #: start of a mixture's layer where its kernels are not recorded, and the date since when they are
    unrecorded: Seconds
    recorded_since: str = Field(pattern=r"^20\d\d-\d\d-\d\d$")
    backends: dict[StackName, Backend]

    def backend_of(self, architecture: str) -> str | None:
        """Return the backend that runs on an architecture; None where none does."""
        starts = ((name, backend.architectures) for name, backend in self.backends.items())
        return next((name for name, begins in starts if architecture.startswith(begins)), None)

    def records(self, name: str, release: str) -> bool:
        """Return True where a release, which may be a date, records the kernels of mixtures."""
        is_older = release[:2] == "20" and "-" in release and release < self.recorded_since
        return self.backends[name].records and not is_older

    def stack(self, name: str, own: StackSpec | None, release: str) -> ServedStack:
        """Return the stack of a backend, by the numbers that a device has of its `own`, else by those that all share;
        what was not measured there is of the backend that was."""
        backend, parts = self.backends[name], dict(own or self.numbers)
        if not own and not self.records(name, release):
            start = {"launch": self.unrecorded}
            parts["experts"] = {code: fit.model_copy(update=start) for code, fit in self.numbers.experts.items()}
        lender = next(measured.title for measured in self.backends.values() if measured.n_points)
        is_lent = not own and not backend.n_points
        borrowed = dict.fromkeys(self.numbers.fits(), f"{self.title} on {lender}") if is_lent else {}
        parts |= {"left_out": backend.left_out, "borrowed": borrowed, "backend": name}
        return ServedStack.model_construct(**parts)


class ServerSpec(Spec):
    """A serving software: what it does in a step beside the kernels, in general and in releases that were measured."""

    name: StackName
    title: str = Field(default="", max_length=120)
    host: HostFit
    #: release, as its containers are tagged -> the same
    releases: dict[str, HostFit] = Field(default_factory=dict)
    #: format of routed experts -> generation of devices (their architecture without its last digit: sm_9) -> how long
    #: they take
    experts: dict[str, dict[str, ServedExperts]] = Field(default_factory=dict)
    #: kind of models -> how far off fits without the model are: of all servers, or of this one if that is more
    left_out: dict[Kind, Spread]
    #: model with rows on it -> the same, or of its own rows if that is more
    models: dict[str, Spread] = Field(default_factory=dict)

    def nearest(self, release: str) -> str:
        """Return the release whose own time counts for `release`: itself where it was measured on enough rows, else the
        nearest by its numbers that was, of two as near the newer; "" where there is none."""
        enough = {name for name, host in self.releases.items() if host.n_points >= FEWEST_ROWS}
        if release in enough:
            return release
        named = [name for name in enough if release_of(name) != NEWEST]
        return min(named, key=lambda name: (abs(_place(name) - _place(release)), -_place(name)), default="")


def _place(release: str) -> int:
    """Return a release as one number: 0.5.9 lies between 0.5.6 and 0.7."""
    parts = (*release_of(release), 0, 0, 0)
    return (parts[0] * 10_000 + parts[1]) * 10_000 + parts[2]


def _casts_pool(stack: StackSpec) -> bool:
    """True where code writes all FP8 latents in 16 bits, as SGLang's on Hopper does: it is one software's, and stands
    in for another's only where no other was measured."""
    packed = stack.latent.get("fp8")
    return packed is not None and packed.cast_rate is not None


def served(
    name: str,
    stacks: Mapping[str, StackSpec],
    server: ServerSpec | None,
    release: str,
    public: Mapping[Kind, Benchmarked] | None = None,
) -> ServedStack:
    """The stack of that name among the `stacks` of a device; parts that it lacks are those of the others, in order.

    `server` is what is known of the software itself, None for kernels alone; `release` may be "" or one that is not
    known; `public` is what benchmarks of the release say.
    """
    stack_spec = stacks.get(name) or StackSpec()
    parts: dict[str, Any] = {part: getattr(stack_spec, part) for part in StackSpec.model_fields}
    borrowed: dict[str, str] = {}
    host, measured = stack_spec.host, ""
    if server and not host:
        measured = server.nearest(release)
        host = server.releases.get(measured, server.host) if release else server.host
    parts["host"] = host
    if host is None:  # kernels alone, as papers and the benchmarks of kernels have them
        parts |= {table: {} for table in SERVED}
    others = [(other, stack) for other, stack in stacks.items() if other != name and parts["host"]]
    for other, stack in others:
        for part in ("attention", "gemm"):
            if parts[part] is None and getattr(stack, part):
                parts[part], borrowed[part] = getattr(stack, part), other
    for table in (*SERVED, "kv"):
        for other, stack in sorted(others, key=lambda entry: table == "latent" and _casts_pool(entry[1])):
            for code, fit in getattr(stack, table).items():
                if code not in parts[table] and code not in OWN.get(table, ()):
                    parts[table] = {**parts[table], code: fit}
                    borrowed[f"{table}.{code}"] = other
    if server:
        parts |= {"left_out": server.left_out, "models": server.models, "served_experts": server.experts}
    parts |= {"measured": measured, "stands_in": measured if release and measured != release else ""}
    # every part was checked as its file was read
    return ServedStack.model_construct(**parts, borrowed=borrowed, benchmarked=public or {})
