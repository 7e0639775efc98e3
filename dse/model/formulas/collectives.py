"""Time of a collective between devices: the library's rings, and the kernels that engines use for small messages.

The form, what it was fitted on and its errors are in docs/explanation/calibration.md. Parameters for a number of
devices come from `dse.specs.collectives.terms`, which folds what each device sends into rates of whole tensors. A rate
of 0 stands for no such kernel. Nothing falls when a message grows.
"""

from math import sqrt

from dse.core.compiling import formula

#: starts that a kernel takes which reduces parts of a tensor and then gathers them: two meetings of all devices
SPLIT_STARTS = 2

_FORM = "docs/explanation/calibration.md, Collectives"


@formula("s", "start + b + 2 * chunk_share * sqrt(start * b), b = bytes / rate", _FORM + ": chunks in a pipeline")
def library_collective_s(n_bytes: float, start_s: float, bytes_per_s: float, chunk_share: float) -> float:
    """Seconds of a library's collective (NCCL) on a tensor of n_bytes, all of it as one device holds or receives it.

    A tensor in chunks passes several devices at once: with the best size of chunks that costs 2 sqrt(start * b) more
    than start and transfer alone (chunk_share 1); 0 stands for no such cost.
    """
    transfer_s = n_bytes / bytes_per_s
    return start_s + transfer_s + 2 * chunk_share * sqrt(start_s * transfer_s)


@formula("s", "start + bytes / rate", _FORM + ": every device reads the tensors of all others")
def direct_all_reduce_s(n_bytes: float, direct_start_s: float, direct_bytes_per_s: float) -> float:
    """Seconds of an all-reduce in one exchange; direct_bytes_per_s is for the tensor of one device."""
    return direct_start_s + n_bytes / direct_bytes_per_s


@formula("s", "2 * start + bytes / rate", _FORM + ": every device reduces a part, then all gather the parts")
def split_all_reduce_s(n_bytes: float, direct_start_s: float, split_bytes_per_s: float) -> float:
    """Seconds of an all-reduce in two exchanges; split_bytes_per_s is for the tensor of one device."""
    return SPLIT_STARTS * direct_start_s + n_bytes / split_bytes_per_s


@formula("s", "the least of library, direct and split", _FORM + ": engines choose by size")
def collective_s(
    n_bytes: float,
    start_s: float,
    bytes_per_s: float,
    chunk_share: float,
    direct_start_s: float,
    direct_bytes_per_s: float,
    split_bytes_per_s: float,
) -> float:
    """Seconds of one collective on a tensor of n_bytes by the fastest way that the stack has; arguments as `terms`."""
    seconds = library_collective_s(n_bytes, start_s, bytes_per_s, chunk_share)
    if direct_bytes_per_s > 0:
        seconds = min(seconds, direct_all_reduce_s(n_bytes, direct_start_s, direct_bytes_per_s))
    if split_bytes_per_s > 0:
        seconds = min(seconds, split_all_reduce_s(n_bytes, direct_start_s, split_bytes_per_s))
    return seconds
