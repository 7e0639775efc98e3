"""Which assumed numbers a design point rests on, and which of them a single result of it depends on."""

from collections.abc import Iterable, Mapping

from dse import units
from dse.plan import KvPlan
from dse.specs import ASSUMED, HardwareSpec, StackSpec

#: what decides how many requests fit, and so how many run at once
_MEMORY = ("memory_capacity", "usable_frac", "runtime_overhead", "kv_page")
_BANDWIDTH, _STACK = ("memory_bandwidth", "peak_rates"), ("stacks_of",)
_EIGHT_BIT = ("peak_flops_fp8", "peak_ops_int8", "eight_bit_kernels")
_LINEAR = (*_MEMORY, *_BANDWIDTH, *_STACK, *_EIGHT_BIT, "peak_flops", "token_cores")
_ATTENTION = (*_MEMORY, *_BANDWIDTH, *_STACK, "peak_flops", "n_cores", "token_cores", "token_policy")
_RATES = ("engine_rate", "fused_rate")
_PACKING = (*_MEMORY, *_BANDWIDTH, *_STACK, *_RATES, "kernel_launch", "n_cores", "token_cores", "token_policy")
_PREFILL = tuple(dict.fromkeys((*_LINEAR, *_PACKING)))
#: everything that a time from first prompt to last token depends on
_ALL = (*_PREFILL, "kv_burst")
_BUSY = (*_MEMORY, *_BANDWIDTH, *_STACK, *_RATES, "n_cores", "token_policy")
_PARTS = ("energy_per_byte", "energy_per_flop", "idle_power")

#: result -> numbers that its formulas read; results that are not here depend on the model and the workload alone
READS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("stored_bits", "page_tail_bits", "kv_bytes_per_token", "kv_bytes", "peak_kv_bytes_per_sequence"),
                    ("kv_page",)),
    "write_amplification": ("kv_burst",), "capacity_bytes": ("memory_capacity",),
    "effective_capacity_bytes": ("memory_capacity",), "effective_bandwidth_bytes_per_s": ("memory_bandwidth",),
    "free_bytes": ("memory_capacity", "usable_frac", "runtime_overhead"),
    "min_capacity_bytes": ("usable_frac", "runtime_overhead", "kv_page"),
    **dict.fromkeys(("feasible", "infeasible_reason", "fits_whole_batch", "max_batch", "max_context_tokens",
                     "running_batch", "n_waves"), _MEMORY),
    "linear_s": _LINEAR, "linear_bound": _LINEAR, "attention_s": _ATTENTION, "attention_bound": _ATTENTION,
    "quantize_s": (*_PACKING, "kv_burst"), "dequantize_s": (*_PACKING, "peak_flops"),
    "quantize_busy_s": (*_BUSY, "kv_burst"), "dequantize_busy_s": _BUSY, "busy_cores": (*_MEMORY, "token_cores"),
    "prefill_s": tuple(name for name in _PREFILL if name != "token_cores"),
    "prefill_compute_utilisation": tuple(name for name in _PREFILL if name != "token_cores"),
    "prefill_bandwidth_utilisation": tuple(name for name in _PREFILL if name != "token_cores"),
    **dict.fromkeys(("decode_step_s", "tpot_s", "ttft_s", "total_s", "throughput_tokens_per_s", "bound",
                     "compute_utilisation", "bandwidth_utilisation"), _ALL),
    "joules_per_token": (*_ALL, "board_power"), "joules_per_token_by_parts": (*_ALL, *_PARTS),
    "memory_joules_per_token": (*_MEMORY, "energy_per_byte", "kv_burst"),
    "compute_joules_per_token": (*_MEMORY, "energy_per_flop", "peak_flops", "peak_flops_fp8", "peak_ops_int8"),
    "idle_joules_per_token": (*_ALL, "idle_power"),
    "usd_per_million_tokens": (*_ALL, "usd_per_hour"), "usd_per_request": (*_ALL, "usd_per_hour"),
}  # fmt: skip


def of(
    device: HardwareSpec, plan: KvPlan, paths: Mapping[str, str], stack: StackSpec | None,
    activation_bits: int = units.FP16_BITS,
) -> list[str]:  # fmt: skip
    """Names of the assumed numbers that any result of a point rests on.

    `plan` and `paths` as `dse.point.laid_out` gives them. A runtime overhead or kernel launch of 0 is none, whatever
    its kind.
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
    if activation_bits < units.FP16_BITS:  # the faster of both counts
        fields += ["peak_flops_fp8", "peak_ops_int8"]
    fields += ["n_cores"] if stack or ("fused" in used and device.fused_rate is None) else []
    fields += ["runtime_overhead"] if device.runtime_overhead.si else []
    found += [name for name in fields if (number := getattr(device, name)) is not None and number.kind == ASSUMED]
    if stack and (device.stacks_of or not device.stacks):
        found.append("stacks_of")
    if stack and stack.gemm and activation_bits < units.FP16_BITS:
        found.append("eight_bit_kernels")
    if not stack:
        found.append("peak_rates")
    if device.usable_frac.kind == ASSUMED:
        found.append("usable_frac")
    return found


def behind(result: str, names: Iterable[str], activation_bits: int = units.FP16_BITS) -> list[str]:
    """Of the assumed numbers that a point rests on (`of`) those that one result, a name of `RESULT_UNITS`, depends on.

    Names that are no number of a device (such as `answer_lengths` of a trace) are kept.
    """
    read = set(READS.get(result, ()))
    if activation_bits < units.FP16_BITS and result in ("linear_s", "linear_bound"):
        read.discard("peak_flops")  # products with the weights run at the 8-bit peak
    if activation_bits >= units.FP16_BITS and result == "compute_joules_per_token":
        read.discard("peak_flops")  # operations, however fast they are done
    return [name for name in names if name in read or name not in _KNOWN]


_KNOWN = frozenset(name for names in READS.values() for name in names)
