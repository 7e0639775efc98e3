"""What packing new keys and values and unpacking stored ones adds to the mean decode step, part by part."""

from dataclasses import dataclass

from dse import kv_sums, memory_unit, packing, sink_work
from dse.formulas import dequantize
from dse.kv_sums import KvSums
from dse.plan import KvPlan
from dse.specs import HardwareSpec, StackSpec
from dse.trace import Trace
from dse.workload import Workload


@dataclass(frozen=True)
class Packed:
    """Seconds of the mean decode step: exposed, and busy; and the bytes that packing and unpacking move."""

    quantize_s: float
    dequantize_s: float
    quantize_busy_s: float
    n_bytes: float


def evaluate(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    n_sequences: int,
    paths: dict[str, str],
    trace: Trace,
    stack: StackSpec | None,
    kv: KvSums,
    busy_cores: int | None,
) -> Packed:
    """`device` has the arithmetic of the `busy_cores`; `kv` are the sums over the steps of `n_sequences`."""
    steps, reached = work.output_tokens, kv_sums.stack_bandwidth(device, stack)
    scheduled = {"hideable_share": kv_sums.engine_hides(device, n_sequences), "busy_cores": busy_cores}
    scheduled = scheduled if busy_cores else {}
    first = work.input_tokens + 1
    fit = stack.materialised if stack else None
    in_place = {side: "none" if fit and path == "materialised" else path for side, path in paths.items()}
    n_read = packing.read_launches(plan, first, work.final_tokens, in_place) / steps
    n_copies = packing.copies(plan, first, work.final_tokens, paths) / steps if fit else 0
    n_pack = packing.pack_launches(plan, work.input_tokens, work.final_tokens, paths) / steps
    dequantize_launch_s = dequantize.launch_s(n_read, device.kernel_launch.si)
    copies_start_s = dequantize.launch_s(n_copies, fit.launch.si) if fit else 0.0
    quantize_launch_s = dequantize.launch_s(n_pack, device.kernel_launch.si)
    copy_s = n_sequences * packing.copy_s(device, plan, work.input_tokens, work.final_tokens, paths, reached) / steps
    write_s = memory_unit.write_s(plan, n_sequences, device.memory_bandwidth.si)
    sinks = sink_work.seconds(plan, work, n_sequences, reached)
    dequantize_s = trace.note(
        "dequantize_s",
        kv.unpack_exposed / steps + sinks.scores_s + dequantize_launch_s + copies_start_s,
        "s",
        f"mean over steps of what unpacking adds to {_hides_behind(stack)}, plus launches",
        "docs/model.md, Dequantisation",
        paths=", ".join(sorted(set(paths.values()))),
        busy_s=kv.unpack_busy / steps,
        materialised_traffic_s=kv.materialised / steps,
        mean_kv_read_s=kv.read / steps,
        **(
            {}
            if n_copies
            else {
                "launch_s": dequantize_launch_s,
                "launches_per_step": n_read,
                "kernel_launch_s": device.kernel_launch.si,
            }
        ),
        **({"copies_per_step": n_copies, "start_of_a_copy_s": fit.launch.si} if fit and n_copies else {}),
        **({"sink_scores_s": sinks.scores_s} if sinks.scores_s else {}),
        **scheduled,
        rates_elements_per_s=_unpack_rates(device, stack, plan, paths),
    )
    quantize_s = trace.note(
        "quantize_s",
        kv.pack_exposed / steps + copy_s + write_s + sinks.choice_s + quantize_launch_s,
        "s",
        "mean over steps of what packing new tokens adds, plus copies of packed buffers, bursts written, and launches",
        "docs/model.md, Dequantisation",
        paths=", ".join(sorted(set(paths.values()))),
        busy_s=kv.pack_busy / steps,
        copy_s=copy_s,
        **({"write_s": write_s} if write_s else {}),
        **scheduled,
        launch_s=quantize_launch_s,
        kernel_launch_s=device.kernel_launch.si,
        launches_per_step=n_pack,
        **({"sink_choice_s": sinks.choice_s} if sinks.choice_s else {}),
        rates_elements_per_s=_rates(device, paths),
    )
    unpack_rates = _unpack_rates(device, stack, plan, paths)
    for name, busy_s, rates, what in (
        (
            "dequantize_busy_s",
            kv.unpack_busy / steps,
            unpack_rates,
            "elements unpacked / rate, materialised traffic / BW",
        ),
        (
            "quantize_busy_s",
            kv.pack_busy / steps + write_s,
            _rates(device, paths),
            "elements packed / rate, traffic / BW",
        ),
    ):
        trace.note(
            name,
            busy_s,
            "s",
            f"mean over steps of {what}; overlap, copies and launches not counted",
            "docs/model.md, Dequantisation",
            paths=", ".join(sorted(set(paths.values()))),
            rates_elements_per_s=rates,
            n_sequences=n_sequences,
            unpacked_elements_at_end=n_sequences * plan.unpacked_elements(work.final_tokens),
        )
    bandwidth = device.memory_bandwidth.si
    copied = kv_sums.copy_bandwidth(device, stack) if stack and stack.attention else bandwidth
    moved = kv.materialised / steps * copied + write_s * bandwidth
    moved += (sinks.scores_s + sinks.choice_s + copy_s) * reached
    return Packed(float(quantize_s), float(dequantize_s), kv.pack_busy / steps + write_s, moved)


def _hides_behind(stack: StackSpec | None) -> str:
    return "the kernel's ceilings" if stack and stack.attention else "max(FLOP / F, KV bytes / BW)"


def _unpack_rates(device: HardwareSpec, stack: StackSpec | None, plan: KvPlan, paths: dict[str, str]) -> str:
    """Elements per second that unpack, and where they come from."""
    if stack is None or stack.attention is None:
        return _rates(device, paths)
    found = {}
    for g in plan.groups:
        if fit := kv_sums.packed_fit(stack, g, paths[g.place]) if g.layout.needs_unpacking else None:
            rate = f"{fit.core_rate.si:.4g} a core (fitted)" if fit.core_rate else "no ceiling (fitted)"
            found[kv_sums.kv_code(g)] = rate
    return "; ".join(f"{code} {rate}" for code, rate in found.items()) or _rates(device, paths)


def _rates(device: HardwareSpec, paths: dict[str, str]) -> str:
    found = {path: device.rate(path) for path in paths.values() if path in ("engine", "fused")}
    return "; ".join(f"{path} {rate.si:.4g} ({rate.kind})" for path, rate in sorted(found.items())) or "none"
