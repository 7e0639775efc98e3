"""The time that devices take to exchange tensors: fitted parameters, or assumed ones where none were fitted.

A tensor's bytes are counted whole: what each device holds before an all-reduce, a reduce-scatter or an all-to-all, and
after an all-gather. `terms` turns parameters, the number of devices and the stack into the arguments of
`collective_s` (dse/model/formulas/collectives.py).
"""

import math
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import hwspecs
from dse.core import specfile
from dse.core.errors import InputError, did_you_mean, show
from dse.specs.device_and_model import HardwareSpec, load
from dse.specs.links import COLLECTIVES, AssumedLinks, Collective, LibraryFit, LinksSpec
from dse.specs.quantity import ASSUMED, Bandwidth

#: the most that PCIe carries one direction: generation 5
PCIE_BYTES_PER_S = 64e9
_ASSUMED_LINKS = Path(hwspecs.__file__).parent / "links.toml"
#: the stack without kernels of its own
LIBRARY = "library"


class LinkTerms(NamedTuple):
    """Arguments of `collective_s` but for the bytes, in SI units, and what they rest on; rate 0: no such kernel."""

    start_s: float
    bytes_per_s: float
    chunk_share: float
    direct_start_s: float = 0.0
    direct_bytes_per_s: float = 0.0
    split_bytes_per_s: float = 0.0
    kind: Literal["measured", "assumed"] = "measured"
    source: str = ""


@cache
def assumed() -> AssumedLinks:
    """Read what is assumed of links whose collectives nobody measured."""
    links: AssumedLinks = load(specfile.read(_ASSUMED_LINKS), AssumedLinks)
    return links


def sent_share(kind: Collective, n_devices: int) -> float:
    """Bytes that each device of a ring sends per byte of the tensor: 2 (n - 1) / n to all-reduce, half of it else.

    Bandwidth-optimal collectives: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009) 117.
    """
    return (2 if kind == "all_reduce" else 1) * (n_devices - 1) / n_devices


def library_terms(
    kind: Collective, n_devices: int, start_s: float, step_s: float, rate: float, growth: float, chunk_share: float
) -> LinkTerms:
    """Arguments of `collective_s` for a library's collective; parameters as in LibraryFit, in SI units."""
    rate_of_n = rate * (n_devices / 2) ** growth
    return LinkTerms(
        start_s + step_s * (n_devices - 1), bytes_per_s=rate_of_n / sent_share(kind, n_devices), chunk_share=chunk_share
    )


def with_custom(
    terms: LinkTerms, n_devices: int, start_s: float, step_s: float, direct_rate: float, split_rate: float
) -> LinkTerms:
    """`terms` of an all-reduce with an engine's own kernels beside them; parameters as in CustomFit, 0: no split."""
    return terms._replace(
        direct_start_s=start_s + step_s * (n_devices - 1),
        direct_bytes_per_s=direct_rate / (n_devices - 1),
        split_bytes_per_s=split_rate / sent_share("all_reduce", n_devices),
    )


def terms(device: HardwareSpec, kind: Collective, n_devices: int, stack: str | None = None) -> LinkTerms:
    """Arguments of `collective_s` for a collective of `n_devices` devices under a software stack.

    Measured where the device has a fit, inside a node; else assumed from its bandwidths. One device exchanges nothing:
    0 s. A stack without kernels of its own takes the library's. Without a stack a device whose kernels were measured is
    at its peaks: bytes over its links. Raises InputError where a bandwidth is missing.
    """
    if kind not in COLLECTIVES:
        raise InputError(f"collective = {show(kind)}: is not known: {did_you_mean(kind, COLLECTIVES)}")
    if n_devices < 1:
        raise InputError(f"devices = {show(n_devices)}: must be a whole number from 1")
    if n_devices == 1:
        return LinkTerms(0.0, bytes_per_s=math.inf, chunk_share=0.0, source="one device exchanges nothing")
    links = device.links
    if links and n_devices > links.node_devices.count:
        return _between_nodes(device, links, kind, n_devices, stack)
    if is_at_peak(device, stack):
        return _peak(reached_link(device, n_devices) / sent_share(kind, n_devices))
    fit: LibraryFit | None = getattr(links, kind) if links else None
    if links is None or fit is None:
        return _assumed(device, kind, n_devices)
    library = library_terms(
        kind, n_devices, fit.start.si, fit.step.si, fit.rate.si, fit.rate_growth.si, fit.chunk_share.si
    )._replace(source=fit.fitted_on)
    custom = links.custom_all_reduce.get(stack) if stack and kind == "all_reduce" else None
    if custom is None:
        return library
    split_rate = custom.split_rate.si if custom.split_rate else 0.0
    measured = with_custom(library, n_devices, custom.start.si, custom.step.si, custom.direct_rate.si, split_rate)
    return measured._replace(source=f"{custom.fitted_on}; {fit.fitted_on}")


def is_at_peak(device: HardwareSpec, stack: str | None) -> bool:
    """Whether links are at their peak: without a stack, on a device whose kernels were measured."""
    return stack is None and device.has_kernels


def _peak(bytes_per_s: float) -> LinkTerms:
    source = "the bytes at the bandwidth of the links: a peak, without starts"
    return LinkTerms(0.0, bytes_per_s=bytes_per_s, chunk_share=0.0, kind=ASSUMED, source=source)


def send_terms(device: HardwareSpec, n_devices: int, stack: str | None = None) -> LinkTerms:
    """Arguments of `collective_s` for a tensor that one device sends to the next; assumed.

    Between nodes where `n_devices` are more than a node has. Raises InputError where the bandwidth is missing.
    """
    links, bandwidth, start_s = device.links, device.link_bandwidth, assumed().device.start.si
    if links and n_devices > links.node_devices.count:
        bandwidth, start_s = _inter_node(device, links, n_devices), assumed().nodes.start.si
    if bandwidth is None:
        raise InputError(f"device {device.name} has no link_bandwidth: add it to its file to share work over devices")
    rate = bandwidth.si if bandwidth is not device.link_bandwidth else reached_link(device, 2)
    if is_at_peak(device, stack):
        return _peak(rate)
    source = "assumed: a start, and the bytes at the bandwidth of the link"
    return LinkTerms(start_s, bytes_per_s=rate, chunk_share=0.0, kind=ASSUMED, source=source)


def reached_link(device: HardwareSpec, n_devices: int) -> float:
    """Bytes per second that each of `n_devices` of a node sends to the others, one direction, at most.

    All of `link_bandwidth` through a switch; of a mesh or a torus the links to the others alone, and a share of it
    where tensors go through the host. Raises InputError for a device without links.
    """
    if device.link_bandwidth is None:
        raise InputError(f"device {device.name} has no link_bandwidth: add it to its file to share work over devices")
    rate, links = float(device.link_bandwidth.si), device.links
    if links and links.pair_bandwidth:
        rate = min(rate, (n_devices - 1) * links.pair_bandwidth.si)
    return rate * links.host_share.si if links and links.host_share else rate


def most_devices(device: HardwareSpec, most: int) -> tuple[int, str]:
    """Count the devices, up to `most`, that can share work in every way, and say what the file lacks for one more."""
    for n_devices in range(2, most + 1):
        try:
            for kind in COLLECTIVES:
                terms(device, kind, n_devices, LIBRARY)
            send_terms(device, n_devices, LIBRARY)
        except InputError as error:
            return n_devices - 1, str(error)
    return most, ""


def _goes_through_host(device: HardwareSpec) -> bool:
    """Whether a server's devices exchange over PCIe without peer access, as far as their file says no more of links."""
    link, is_server = device.link_bandwidth, device.reported_memory is not None
    return is_server and link is not None and link.si <= PCIE_BYTES_PER_S and device.links is None


def _assumed(device: HardwareSpec, kind: Collective, n_devices: int) -> LinkTerms:
    """A ring over the device's link. Raises InputError where it has none."""
    ring = assumed().host if _goes_through_host(device) else assumed().device
    rate = ring.link_share.si * reached_link(device, n_devices)
    ring_terms = library_terms(kind, n_devices, ring.start.si, ring.step.si, rate, 0.0, ring.chunk_share.si)
    return ring_terms._replace(kind=ASSUMED, source=ring.start.source)


def _inter_node(device: HardwareSpec, links: LinksSpec, n_devices: int) -> Bandwidth:
    """The bandwidth between nodes. Raises InputError where the file has none for so many devices."""
    if links.inter_node_bandwidth is None:
        count = links.node_devices.count
        raise InputError(
            f"device {device.name} has {count} device{'s' if count > 1 else ''} a node, not {n_devices}: add "
            "links.inter_node_bandwidth to its file"
        )
    return links.inter_node_bandwidth


def _between_nodes(
    device: HardwareSpec, links: LinksSpec, kind: Collective, n_devices: int, stack: str | None
) -> LinkTerms:
    """Inside each node as there, then between nodes: every device with its peers, for its part of the tensor."""
    between = _inter_node(device, links, n_devices)
    in_node = links.node_devices.count
    n_nodes = -(-n_devices // in_node)
    at_peak = is_at_peak(device, stack)
    inside = (
        terms(device, kind, in_node, None if at_peak else LIBRARY)
        if in_node > 1
        else LinkTerms(0.0, bytes_per_s=math.inf, chunk_share=0.0)
    )
    # an all-to-all sends to each device its own part; else the devices of a node share what nodes exchange
    stays, leaves = 1.0, sent_share(kind, n_nodes) / in_node
    if kind == "all_to_all":
        stays, leaves = in_node / n_devices, (n_devices - in_node) / n_devices
    per_byte_s = stays / inside.bytes_per_s + leaves / between.si
    if at_peak:
        return _peak(1 / per_byte_s)
    exchanges = (2 if kind == "all_reduce" else 1) * (n_nodes - 1)
    return LinkTerms(
        inside.start_s + exchanges * assumed().nodes.start.si,
        bytes_per_s=1 / per_byte_s,
        chunk_share=inside.chunk_share,
        kind=ASSUMED,
        source=f"assumed: as inside a node, then {n_nodes} nodes over links.inter_node_bandwidth, 10 us an exchange",
    )
