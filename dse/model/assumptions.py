"""Which assumed numbers a design point rests on, and which of them a single result of it depends on."""

from collections.abc import Iterable, Mapping

from dse.core import units
from dse.model.kv_layout import KvPlan
from dse.model.results import RESULTS
from dse.specs.device_and_model import ASSUMED, HardwareSpec, StackSpec

_PARTS = ("energy_per_byte", "energy_per_flop", "idle_power")


def of(
    device: HardwareSpec, plan: KvPlan, paths: Mapping[str, str], stack: StackSpec | None,
    activation_bits: int = units.FP16_BITS, has_assumed_links: bool = False, is_server: bool = False,
) -> list[str]:  # fmt: skip
    """Names of the assumed numbers that any result of a point rests on.

    `plan` and `paths` as `dse.model.evaluate.laid_out` gives them. A runtime overhead or kernel launch of 0 is none,
    whatever its kind.
    """
    # a fitted rate unpacks what is stored; packing new tokens takes the device's rate all the same
    used = {path for path in paths.values() if path in ("engine", "fused")}
    found = [f"{path}_rate" for path in sorted(used) if device.rate(path).kind == ASSUMED]
    launching = any(
        paths[g.place] != "engine" and g.layout.needs_unpacking and any(g.quantizer.family.gpu_code.read)
        for g in plan.groups
    )
    fields = ["kernel_launch"] if launching and device.kernel_launch.si else []
    fields += ["token_cores", *(("kv_page", "kv_burst") if any(g.streams for g in plan.groups) else ())]
    fields += ["board_power"]
    fields += _PARTS if all(getattr(device, name) for name in _PARTS) else ()
    fields += ["usd_per_hour", "memory_capacity", "memory_bandwidth", "peak_flops"]
    fields += ["reported_memory"] if is_server else []
    if activation_bits < units.FP16_BITS:  # the faster of both counts
        fields += ["peak_flops_fp8", "peak_ops_int8"]
    fields += ["link_bandwidth"] if has_assumed_links else []
    fields += ["n_cores"] if stack or ("fused" in used and device.fused_rate is None) else []
    fields += ["runtime_overhead"] if device.runtime_overhead.si else []
    found += [name for name in fields if (number := getattr(device, name)) is not None and number.kind == ASSUMED]
    if stack and (device.stacks_of or not device.stacks):
        found.append("stacks_of")
    if stack and stack.gemm and activation_bits < units.FP16_BITS:
        found.append("eight_bit_kernels")
    if not stack:
        found.append("peak_rates")
    if has_assumed_links:
        found.append("exchanges")
    if is_server:
        found.append("server_memory")
    if device.usable_frac.kind == ASSUMED and (device.usable_frac.si < 1 or not is_server):
        found.append("usable_frac")
    return found


def behind(result: str, names: Iterable[str], activation_bits: int = units.FP16_BITS) -> list[str]:
    """Of the assumed numbers that a point rests on (`of`) those that one result, a name of `RESULT_UNITS`, depends on.

    Names that are no number of a device (such as `answer_lengths` of a trace) are kept.
    """
    read = set(RESULTS[result].reads if result in RESULTS else ())
    if activation_bits < units.FP16_BITS and result in ("linear_s", "linear_bound"):
        read.discard("peak_flops")  # products with the weights run at the 8-bit peak
    if activation_bits >= units.FP16_BITS and result == "compute_joules_per_token":
        read.discard("peak_flops")  # operations, however fast they are done
    return [name for name in names if name in read or name not in _KNOWN]


_KNOWN = frozenset(name for result in RESULTS.values() for name in result.reads)
