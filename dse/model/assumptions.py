"""List the assumed numbers behind a design point."""

from collections.abc import Mapping
from typing import Any

from dse.core import units
from dse.model import energy, implementations, kernels
from dse.model.kv_layout import KvPlan
from dse.model.stacks import kind_of
from dse.specs.device_and_model import ASSUMED, HardwareSpec, ModelSpec, Quantity, StackSpec
from dse.specs.implementation import GENERIC
from dse.specs.stack import ServedStack
from dse.specs.workload import Workload

_PARTS = ("energy_per_byte", "energy_per_flop", "idle_power")
#: numbers of a device that some result of every point rests on
_ALWAYS = ("usd_per_hour", "memory_capacity", "memory_bandwidth", "pim_bandwidth", "peak_flops")


def of(
    device: HardwareSpec,
    plan: KvPlan,
    paths: Mapping[str, str],
    stack: StackSpec | None,
    work: Workload,
    has_assumed_links: bool = False,
    is_server: bool = False,
) -> list[str]:
    """Names of the assumed numbers that any result of a point rests on.

    `plan` and `paths` as `dse.model.lower.laid_out` gives them. A runtime overhead or kernel launch of 0 is none,
    whatever its kind.
    """
    # a fitted rate unpacks what is stored; packing new tokens takes the device's rate all the same
    by_cores = () if device.has_kernels and not stack else ("fused",)
    used = {"engine", *by_cores} & set(paths.values())
    launches = any(
        paths[g.place] != "engine" and g.layout.needs_dequantizing and any(implementations.starts_of(g).read)
        for g in plan.groups
    )
    streams = any(g.streams for g in plan.groups)
    peaks = kernels.product_peaks(device, plan.model, work, stack)
    has_energy = all(getattr(device, name) for name in _PARTS)
    by_core = _counts_cores(plan, paths, stack) if stack else "fused" in used and device.fused_rate is None
    by_cycle = stack and by_core and counts_cycles(plan, paths)
    numbers = {
        "kernel_launch": launches and device.kernel_launch.si,
        "token_cores": True,
        "array_rows": True,
        "quantize_rate": "engine" in used,
        "kv_page": streams,
        "kv_burst": streams,
        "board_power": True,
        **dict.fromkeys((*_PARTS, *_energy_by_bits(device, plan, work, peaks[-1])), has_energy),
        **dict.fromkeys(_ALWAYS, True),
        "reported_memory": is_server,
        **{name: name in peaks for name in ("peak_flops_fp4", "peak_flops_fp8", "peak_ops_int8")},
        "link_bandwidth": has_assumed_links,
        "n_cores": by_core,
        "core_clock": by_cycle,
        "runtime_overhead": device.runtime_overhead.si,
    }
    stand_ins = [*nearest(plan, paths, work, stack), *unmeasured(plan, paths)] if stack else []
    has_rest = device.usable_frac.si < 1 or not is_server
    rules = {
        "core_clock": by_cycle and device.core_clock is None,
        "stacks_of": stack and not kernels.by_backend(stack) and (device.stacks_of or not device.stacks),
        **dict.fromkeys(stand_ins, True),
        "peak_rates" if kind_of(stack, work) == "ideal" else "reached_rates": not stack,
        "exchanges": has_assumed_links,
        "server_memory": is_server,
        "usable_frac": has_rest and device.usable_frac.kind == ASSUMED,
    }
    return [
        *(f"{path}_rate" for path in sorted(used) if device.rate(path).kind == ASSUMED),
        *(name for name, is_used in numbers.items() if is_used and _is_assumed(getattr(device, name))),
        *(name for name, applies in rules.items() if applies),
    ]


def _is_assumed(number: Quantity | None) -> bool:
    return number is not None and number.kind == ASSUMED


def _energy_by_bits(device: HardwareSpec, plan: KvPlan, work: Workload, peak: str) -> list[str]:
    """List the device energies per byte and per operation that a design uses beside the 16-bit ones.

    `peak` is the name of the peak rate of its products (`dse.model.energy`).
    """
    weights, packs = work.weight_format, [g.layout.needs_dequantizing for g in plan.groups]
    eighths = weights.expert_eighths if plan.model.expert_parameters else weights.dense_eighths
    energies = []
    if eighths <= energy.MORE_THAN_4 and device.energy_per_byte_fp4:
        energies.append("energy_per_byte_fp4")
    elif eighths <= energy.MORE_THAN_8 and device.energy_per_byte_fp8:
        energies.append("energy_per_byte_fp8")
    if any(packs) and device.energy_per_kv_byte_fp8:
        energies.append("energy_per_kv_byte_fp8")
    elif any(packs) and not device.energy_per_kv_byte and device.energy_per_byte_fp8:
        energies.append("energy_per_byte_fp8")
    if device.energy_per_kv_byte and (not all(packs) or not device.energy_per_kv_byte_fp8):
        energies.append("energy_per_kv_byte")
    if peak == "peak_flops_fp4" and device.energy_per_flop_fp4:
        energies.append("energy_per_flop_fp4")
    if peak in ("peak_flops_fp8", "peak_ops_int8") and device.energy_per_flop_fp8:
        energies.append("energy_per_flop_fp8")
    return list(dict.fromkeys(energies))


def _counts_cores(plan: KvPlan, paths: Mapping[str, str], stack: StackSpec) -> bool:
    """True where times of attention follow from what a core does: not of latent heads as they were measured."""
    return kernels.latent_code(plan, paths, stack) is None or any(
        g.layout.needs_dequantizing and paths[g.place] in ("engine", "fused") and kernels.kv_code(g) not in stack.latent
        for g in plan.groups
    )


def counts_cycles(plan: KvPlan, paths: Mapping[str, str]) -> bool:
    """True where kernels unpack so many elements in a cycle of a core."""
    runs = (g.implementation for g in plan.groups if g.implementation and paths[g.place] == "fused")
    return any(implementation.elements_per_cycle for implementation in runs)


def unmeasured(plan: KvPlan, paths: Mapping[str, str]) -> list[str]:
    """Kernels of keys and values that nobody measured: of an implementation that is known, or of none."""
    fused = [g for g in plan.groups if paths[g.place] == "fused"]
    runs = [(g.implementation, g.quantizer.family.name) for g in fused if g.implementation]
    known = [(implementation, method) for implementation, method in runs if not implementation.name.startswith(GENERIC)]
    names = ["implementation"] if any(implementation.is_assumed(method) for implementation, method in known) else []
    return names + (["no_kernel"] if len(known) < len(runs) else [])


def nearest(plan: KvPlan, paths: Mapping[str, str], work: Workload, stack: StackSpec) -> list[str]:
    """List the kernels and the server release that were not measured, so that the nearest measured ones stand in.

    Compressed caches and tokens chosen by an index are read as if by the kernels of plain or latent attention where
    their own were not measured, and states that nobody measured are updated at its pace. Prompts of such layers
    are always computed as those of plain attention.
    """
    used, served = kernels.fits_used(plan, paths, work, stack), stack if isinstance(stack, ServedStack) else None
    stand_ins = _nearest_format(plan.model, work, stack, used)
    sparse = [kernels.sparse_code(plan, paths, g.shape_index) for g in plan.groups]
    foreign = any(code and f"sparse.{code}" not in used for code in sparse)
    layers = plan.model.layers
    if stack.attention and any(layer.state_code and layer.state_code not in stack.state for layer in layers):
        foreign = True
    if foreign or (served and any(place in served.borrowed for place in used)):
        stand_ins.append("nearest_kernels")
    if stack.attention and any(sparse) and kernels.prompt_code(plan, paths, stack) not in kernels.CHOSEN:
        stand_ins.append("sparse_prompts")
    if served and served.stands_in:
        stand_ins.append("nearest_release")
    return stand_ins


def _nearest_format(model: ModelSpec, work: Workload, stack: StackSpec, used: Mapping[str, Any]) -> list[str]:
    """Products that stand in for those of the weights' format: of 16-bit operations, or of the nearest format."""
    weights, is_narrow = work.weight_format, work.activation_bits < units.FP16_BITS
    codes = {weights.dense_code, "w8a8"} if is_narrow else {weights.dense_code}
    measured = next((place for code in codes if (place := f"products.{code}") in used), None)
    if is_narrow and not measured and stack.gemm:
        return ["eight_bit_kernels"]
    if not (isinstance(stack, ServedStack) and (stack.host or work.weights)):
        return []
    places = [measured or f"products.{weights.dense_code}"]
    places += [f"experts.{weights.expert_code}"] if kernels.has_experts(model, work) else []
    return ["nearest_format"] if any(place not in used for place in places) else []
