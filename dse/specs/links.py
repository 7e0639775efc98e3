"""Links between devices as a device file describes them: nodes, and fitted parameters of collectives."""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from pydantic import Field, model_validator

from dse.specs.quantity import Bandwidth, Devices, Quantity, Seconds, Share, quantity, with_source
from dse.specs.stack import ErrorShare, Fit, Spec, StackName

if TYPE_CHECKING:
    Exponent: TypeAlias = Quantity
    ChunkShare: TypeAlias = Quantity
    HostShare: TypeAlias = Quantity
else:
    Exponent = quantity("1", -4.0, 4.0)
    ChunkShare = quantity("1", 0.0, 10.0)
    HostShare = quantity("1", 0.01, 1.0)

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)


class LinkFit(Fit):
    """A fit whose errors are also given apart: tensors of 8 KiB to 2 MiB (decode) and above, to 512 MiB (prompts)."""

    decode_error: ErrorShare
    decode_p90: ErrorShare
    prompt_error: ErrorShare
    prompt_p90: ErrorShare


class LibraryFit(LinkFit):
    """Parameters of a library's collective (`library_collective_s`) for 2 to 8 devices of a node."""

    #: without any device; and for every device beyond the first
    start: Seconds
    step: Seconds
    #: bytes that each of two devices sends in a second; n devices: rate * (n / 2) ** rate_growth
    rate: Bandwidth
    rate_growth: Exponent
    #: what chunks in a pipeline cost, as a share of what the best size of chunks costs in theory
    chunk_share: ChunkShare


class CustomFit(LinkFit):
    """Parameters of an engine's own all-reduce kernels (`direct_all_reduce_s`, `split_all_reduce_s`).

    Errors are those of what the engine runs: its kernels where they are faster, the library elsewhere.
    """

    start: Seconds
    step: Seconds
    #: bytes that a device receives in a second, one exchange: n - 1 tensors
    direct_rate: Bandwidth
    #: the same, two exchanges: 2 (n - 1) / n of a tensor; none: not seen
    split_rate: Bandwidth | None = None


class AssumedExchange(Spec):
    """The start of an exchange where none was measured."""

    start: Seconds

    @model_validator(mode="before")
    @classmethod
    def _share_source(cls, data: Any) -> Any:
        return with_source(data, cls.model_fields.keys()) if isinstance(data, dict) and "source" in data else data


class AssumedRing(AssumedExchange):
    """A ring where no collective was measured: parameters as in LibraryFit, its rate a share of the link's."""

    step: Seconds
    link_share: Share
    chunk_share: ChunkShare


class AssumedLinks(Spec):
    """Rings over the links of devices, and through the memory of the host; exchanges between nodes."""

    device: AssumedRing
    host: AssumedRing
    nodes: AssumedExchange


class LinksSpec(Spec):
    """Links inside a node and between nodes, and the fitted times of collectives."""

    #: devices that `link_bandwidth` joins
    node_devices: Devices
    #: from each device to other nodes, one direction
    inter_node_bandwidth: Bandwidth | None = None
    #: between two devices alone, one direction, where each has links of its own to its peers: of n devices each uses
    #: those to the n - 1 others, up to `link_bandwidth`
    pair_bandwidth: Bandwidth | None = None
    #: share of `link_bandwidth` that is left where devices have no access to one another and tensors go through the
    #: memory of the host
    host_share: HostShare | None = None
    all_reduce: LibraryFit | None = None
    all_gather: LibraryFit | None = None
    reduce_scatter: LibraryFit | None = None
    all_to_all: LibraryFit | None = None
    #: software stack -> its own kernels for small tensors
    custom_all_reduce: dict[StackName, CustomFit] = Field(default_factory=dict)

    def fits(self) -> dict[str, LinkFit]:
        """Everything that was fitted, by its place in the file."""
        fitted: dict[str, LinkFit] = {kind: fit for kind in COLLECTIVES if (fit := getattr(self, kind))}
        return {**fitted, **{f"custom_all_reduce.{name}": fit for name, fit in self.custom_all_reduce.items()}}
