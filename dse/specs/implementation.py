"""Kernels by which a release of a stack runs a quantized cache, with rates fitted to measurements.

A method (dse/quantizers) says bits and error; an implementation of it says what its kernels take. A file each under
hwspecs/implementations; docs/explanation/implementations.md has the form, the fits and what cannot be told apart.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from dse.core import units
from dse.core.errors import show
from dse.quantizers.base import Path
from dse.specs.device_and_model import Architecture, FamilyName, Name
from dse.specs.quantity import Ranged, ranged
from dse.specs.stack import Spec, StackName

#: numbers with a range that `NAME:FIELD=VALUE` changes -> base unit, and what they may be in it
BOUNDS = {
    "elements_per_cycle": ("element/cycle", 1e-3, 1e4),
    "cores_per_head": ("core", 1e-3, 1e4),
    "memory_frac": ("1", 1e-3, 1.0),
    "launch": ("s", 1e-9, 1.0),
    "sinks": ("s", 1e-9, 1.0),
}
#: of these, what slows a kernel down the larger it is
TIMES = ("launch", "sinks")
if TYPE_CHECKING:  # to the type checker every number is one with a range; the bounds are pydantic's business
    ElementsPerCycle: TypeAlias = Ranged
    CoresPerHead: TypeAlias = Ranged
    ReachedShare: TypeAlias = Ranged
    StartSeconds: TypeAlias = Ranged
    SinkSeconds: TypeAlias = Ranged
else:
    ElementsPerCycle = ranged(*BOUNDS["elements_per_cycle"])
    CoresPerHead = ranged(*BOUNDS["cores_per_head"])
    ReachedShare = ranged(*BOUNDS["memory_frac"])
    StartSeconds = ranged(*BOUNDS["launch"])
    SinkSeconds = ranged(*BOUNDS["sinks"])

#: what unpacks an element as often as there are query heads of a group, or once for all of them
QUERY_HEAD = "query_head"
#: both ends of what its numbers may be: all where steps take longest, or shortest
SLOWEST, FASTEST = ENDS = ("slowest", "fastest")
#: stands for kernels that nobody is known to have: what runs them is assumed
GENERIC = "generic"
#: how architectures of GPUs begin
ANY_GPU = "sm_"


def _as_tuple(raw: Any) -> Any:
    """Files write lists."""
    return tuple(raw) if isinstance(raw, list) else raw


_FromList = BeforeValidator(_as_tuple)
_Count = Annotated[int, Field(ge=0, le=1000)]
#: of keys and of values
Pair = Annotated[tuple[_Count, _Count], _FromList]


class Starts(Spec):
    """Kernels that an implementation starts beside plain attention's, per layer, for (keys, values), and its copies.

    Counted from code or description, not measured: shown as assumed.
    """

    #: in a decode step, and when tokens are packed
    read: Pair = (0, 0)
    pack: Pair = (0, 0)
    #: what keeping sinks adds to a decode step, in layers that keep any
    pool_read: Pair = (0, 0)
    #: every packing event reads and writes the whole packed buffer again
    copies_to_append: bool = False
    #: every step reads and writes the 16-bit tokens that wait to be packed again
    copies_window: bool = False
    #: unpacked keys and values are padded to a multiple of so many tokens before the product
    tile_tokens: int = Field(default=1, ge=1, le=4096)


class Implementation(Spec):
    """Kernels of one release for one or more methods. A number that is left out is that of the device's stack."""

    name: Name
    title: str = Field(min_length=1, max_length=120)
    methods: Annotated[tuple[FamilyName, ...], _FromList] = ()
    #: those of them that its numbers were fitted to, where they are not all: of the others they are assumed
    fitted_to: Annotated[tuple[FamilyName, ...], _FromList] = ()
    #: serving software that it is part of; None: code released with a paper
    stack: StackName | None = None
    #: releases that were read or measured
    release: str = Field(min_length=1, max_length=200)
    #: what it was written for, by how an architecture begins; none: everything
    architectures: Annotated[tuple[Architecture, ...], _FromList] = ()
    #: what a GPU without the kernel does instead
    elsewhere: str = Field(default="", max_length=300)
    #: where several are known of a method, the one that runs by default has the larger rank
    rank: int = Field(default=0, ge=0, le=100)

    path: Path = "fused"
    #: how often a key or value is unpacked
    unpacked_per: Literal["kv_head", "query_head"] = "kv_head"
    #: units that do the products with the query, and in what arithmetic
    products: Literal["tensor cores", "cores", "both"] = "tensor cores"
    arithmetic: str = Field(max_length=300)
    new_token: str = Field(max_length=300)
    #: whether a prompt's keys are quantised before attention reads them, or after
    prompts_quantised: Literal["before attention", "after attention"] = "before attention"
    sixteen_bit: str = Field(default="nothing", max_length=200)
    #: files and commits that were read, or what was measured
    source: str = Field(min_length=1, max_length=600)

    #: elements that a core unpacks in a cycle beside all else; None: as fitted for the stack, or no such ceiling
    elements_per_cycle: ElementsPerCycle | None = None
    #: cores that one sequence and head (as `unpacked_per` has them) keep busy at most, where every sequence is split
    #: into as many parts; None: a part for 128 tokens
    cores_per_head: CoresPerHead | None = None
    #: share of the peak bandwidth that its kernel reaches; None: that of the stack's 16-bit kernel
    memory_frac: ReachedShare | None = None
    #: start of a layer's kernels; None: that of the stack's
    launch: StartSeconds | None = None
    #: work on sinks at each packing of a layer that keeps any, keys and values together; None: none
    sinks: SinkSeconds | None = None
    starts: Starts = Starts.model_construct()

    @property
    def key(self) -> str:
        """Its name and the first of its methods: a stack's name is that of several, each for methods of its own."""
        return ".".join((self.name, *self.methods[:1]))

    def numbers(self) -> dict[str, Ranged]:
        """Its numbers with ranges by name."""
        return {name: number for name in BOUNDS if (number := getattr(self, name)) is not None}

    def at(self, end: str) -> "Implementation":
        """A copy with every number at the slow or the fast end of its range."""
        changed = {}
        for name, number in self.numbers().items():
            is_low = (end == SLOWEST) != (name in TIMES)
            changed[name] = number.model_copy(update={"value": number.low if is_low else number.high})
        return self.model_copy(update={**changed, "name": f"{self.name}:{end}"})

    def with_number(self, name: str, value: float) -> "Implementation":
        """A copy with one number given on the spot, in the unit of its file.

        Raises KeyError for one that it has not, ValueError with what is allowed for a value out of bounds.
        """
        number, (base, low, high) = self.numbers()[name], BOUNDS[name]
        if not low <= units.to_base(value, number.unit) <= high:
            unit = units.to_base(1.0, number.unit)
            raise ValueError(f"must be {low / unit:g} to {high / unit:g}" + (f" {number.unit}" if base != "1" else ""))
        change = {"value": value, "low": value, "high": value, "source": "given on the spot", "kind": "assumed"}
        label = f"{self.name}{',' if ':' in self.name else ':'}{name}={value:g}"
        return self.model_copy(update={name: number.model_copy(update=change), "name": label})

    def runs_on(self, architecture: str | None) -> bool:
        """True for devices that have its kernels; one without an architecture is taken for a GPU."""
        return not self.architectures or (architecture or ANY_GPU).startswith(self.architectures)

    def problems(self) -> list[tuple[str, object, str]]:
        """Rules that join several fields: (field, value, what must hold)."""
        if not self.methods and self.name != GENERIC:
            return [("methods", "()", "must name a quantizer or more")]
        if not set(self.fitted_to) <= set(self.methods):
            return [("fitted_to", ", ".join(self.fitted_to), "must be some of its methods")]
        if self.path != "fused" and self.elements_per_cycle:
            return [("path", self.path, "only fused kernels unpack on the cores: leave elements_per_cycle out")]
        return []

    def is_assumed(self, method: str) -> bool:
        """True where a number of it was fitted to no measurement, or to one of other methods."""
        foreign = bool(self.fitted_to) and method not in self.fitted_to
        return any(foreign or number.kind == "assumed" for number in self.numbers().values())

    def rate_text(self) -> str:
        """The rates of its kernels, with ranges, in a line."""
        said = [
            f"{name} {number.value:g} {number.unit} ({number.low:g} to {number.high:g}, {number.kind})".replace(
                " 1 ", " "
            )
            for name, number in self.numbers().items()
        ]
        return "; ".join(said) or "as the stack's kernels were measured"


def unknown(text: str, known: list[str], of: str) -> str:
    """The message for an implementation that `of` has not."""
    names = ", ".join(known) or "none: leave it out"
    return f"implementation = {show(text)}: {of} has {names} (`dse list implementations`)"
