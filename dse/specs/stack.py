"""What a software stack reaches on a device: fitted parameters of its kernels, each with what it was fitted on."""

from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from dse.specs.quantity import ElementRate, Quantity, Seconds, Share

#: how keys and values are stored, as far as kernels differ: 16-bit floats need no unpacking
KvCode = Literal["fp16", "fp8", "int8", "int4", "int2"]
PackedCode = Literal["fp8", "int8", "int4", "int2"]
PACKED_CODES: tuple[PackedCode, ...] = get_args(PackedCode)
#: a framework's name, as a key of a TOML table
StackName = Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[a-z0-9][a-z0-9_-]*$")]

ErrorShare = Annotated[float, Field(ge=0, le=100)]


class Spec(BaseModel):
    """Base of all specs: strict, nothing unknown, nothing infinite, never changed."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    def quantities(self) -> dict[str, Quantity]:
        """Every number of the spec by field name, for display with sources."""
        return {name: value for name in type(self).model_fields if isinstance(value := getattr(self, name), Quantity)}


class Fit(Spec):
    """How good a set of parameters is: rows fitted, mean error on rows held out, and where the rows come from.

    Errors are shares (0.05 is 5 %). `serving_error` and `serving_p90` (mean and 90th percentile) count only the rows
    that serving is made of; see docs/calibration.md.
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
    """What changes where keys and values are stored in fewer bits: the launch, and what a core unpacks."""

    launch: Seconds
    core_rate: ElementRate | None = None


class GemmFit(Fit):
    """Parameters of a 16-bit matrix product at decode sizes (`gemm_s`)."""

    launch: Seconds
    memory_frac: Share
    flops_frac: Share


class MaterialisedFit(Fit):
    """How code runs that writes an FP16 copy of the cache before it multiplies: starts of its kernels, and traffic."""

    #: all kernels that unpack the keys, or the values, of one layer
    launch: Seconds
    #: share of the peak bandwidth that the copies move at
    memory_frac: Share


class StackSpec(Spec):
    """Calibrated parameters of one software stack on one device."""

    attention: AttentionFit | None = None
    gemm: GemmFit | None = None
    #: how keys and values are stored -> what differs from `attention`
    kv: dict[PackedCode, PackedFit] = Field(default_factory=dict)
    #: fitted to whole steps of a published method, not to kernel times; none: `attention`'s bandwidth, `kernel_launch`
    materialised: MaterialisedFit | None = None

    def fits(self) -> dict[str, Fit]:
        """Everything that was fitted, by its place in the file."""
        return {**self.parts(), **({"materialised": self.materialised} if self.materialised else {})}

    def parts(self) -> dict[str, Fit]:
        """The fits to kernel times, by their place in the file: attention, gemm, kv.fp8, ..."""
        found: dict[str, Fit] = {}
        if self.attention:
            found["attention"] = self.attention
        if self.gemm:
            found["gemm"] = self.gemm
        return {**found, **{f"kv.{code}": fit for code, fit in self.kv.items()}}

    def codes(self) -> list[KvCode]:
        """How keys and values may be stored for `attention_terms` to know."""
        return ["fp16", *self.kv] if self.attention else []

    def attention_terms(self, code: KvCode = "fp16") -> dict[str, float]:
        """The parameters of `attention_layer_s` for keys and values stored as `code`, in SI units.

        Raises KeyError for a code that is not among `codes()`. A core rate of 0 stands for no ceiling.
        """
        if self.attention is None:
            raise KeyError(code)
        own = self.attention if code == "fp16" else self.kv[code]
        return {
            "launch_s": own.launch.si,
            "split_s": self.attention.split.si,
            "copy_s": self.attention.layout_copy.si if self.attention.layout_copy else 0.0,
            "unit_s": self.attention.per_unit.si,
            "memory_frac": self.attention.memory_frac.si,
            "core_rate_per_s": own.core_rate.si if own.core_rate else 0.0,
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


def keys_at(path: tuple[str | int, ...]) -> list[str]:
    """The keys that a table inside `stacks` may have; `path` is its place below `stacks`."""
    parts: dict[str, type[Spec]] = {"attention": AttentionFit, "gemm": GemmFit, "materialised": MaterialisedFit}
    if len(path) == 1:
        return list(StackSpec.model_fields)
    if len(path) == 2:
        return list(parts[str(path[1])].model_fields) if path[1] in parts else list(PACKED_CODES)
    if len(path) == 3 and path[1] == "kv":
        return list(PackedFit.model_fields)
    return list(Quantity.model_fields)
