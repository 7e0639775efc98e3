"""Times of the products with the weights: at the peak of their bits, or as a stack's kernels run."""

from dataclasses import dataclass

from dse.errors import InputError
from dse.formulas import attention, linear
from dse.plan import KvPlan
from dse.specs import HardwareSpec, StackSpec
from dse.trace import Trace
from dse.workload import Workload

_FORM = "docs/calibration.md, The form"


@dataclass(frozen=True)
class Waits:
    """Seconds of an operation, and those of its parts: reading and computing overlap, latency comes on top.

    `latency` is launching and scheduling; 0 in the ideal model.
    """

    seconds: float
    bandwidth: float
    compute: float
    latency: float = 0.0

    @property
    def bound(self) -> str:
        """The largest part; the first of equals."""
        return max(("bandwidth", "compute", "latency"), key=lambda part: getattr(self, part))

    def shares(self) -> dict[str, float]:
        """The seconds by what is waited for."""
        larger = "compute" if self.compute > self.bandwidth else "bandwidth"
        return {larger: self.seconds - self.latency, "latency": self.latency}


def product_peak(device: HardwareSpec, work: Workload) -> float:
    """Peak rate of products with the weights at the workload's activation bits. Raises InputError where it has none."""
    peak = device.product_peak(work.activation_bits)
    if peak is None:
        raise InputError(
            f"activation-bits = {work.activation_bits}: {device.name} has no 8-bit rate: use 16, or add "
            "peak_ops_int8 or peak_flops_fp8 to its file"
        )
    return peak.si


def matrix(
    device: HardwareSpec,
    stack: StackSpec | None,
    plan: KvPlan,
    n_tokens: float,
    active: float,
    weight_read: float,
    name: str,
    trace: Trace,
    peak: float,
) -> Waits:
    """All matrix products with the weights over `n_tokens` tokens, at `peak` operations per second at most."""
    bandwidth = device.memory_bandwidth.si
    read_s = attention.time_at_rate(weight_read, bandwidth)
    compute_s = linear.linear_compute_s(n_tokens, active, peak)
    if stack is None or stack.gemm is None:
        seconds = trace.call(
            name, linear.linear_s, n_tokens=n_tokens, active_parameters=active, weight_read_bytes=weight_read,
            peak_flops_per_s=peak, bandwidth_bytes_per_s=bandwidth,
        )  # fmt: skip
        return Waits(seconds, read_s, compute_s)
    fit = stack.gemm_terms()
    n_products = linear.matrix_products(sum(layer.n_layers for layer in plan.model.layers))
    read_s, compute_s = read_s / fit["memory_frac"], compute_s / fit["flops_frac"]
    seconds = trace.call(
        name, linear.linear_calibrated_s, n_products=n_products, launch_s=fit["launch_s"], compute_s=compute_s,
        memory_s=read_s,
    )  # fmt: skip
    trace.note(
        "memory_s", read_s, "s", "weight bytes / (memory_frac * BW)", _FORM, weight_read_bytes=weight_read,
        memory_frac=fit["memory_frac"], bandwidth_bytes_per_s=bandwidth,
    )  # fmt: skip
    trace.note(
        "compute_s", compute_s, "s", "2 * P_active * n_tokens / (flops_frac * F)", _FORM, n_tokens=n_tokens,
        active_parameters=active, flops_frac=fit["flops_frac"], peak_flops_per_s=peak,
    )  # fmt: skip
    return Waits(seconds, read_s, compute_s, n_products * fit["launch_s"])
