"""Choose the kernels that run the quantizers of a plan on a device, with their costs (dse/specs/implementation.py)."""

from dataclasses import replace

from dse.core.errors import InputError
from dse.model.kv_layout import KvPlan, TensorGroup, build
from dse.model.stacks import stack_of
from dse.quantizers import QuantizerSpec
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec
from dse.specs.implementation import GENERIC, Implementation, Starts
from dse.specs.stack import StackSpec
from dse.specs.workload import Workload

#: cycles a second of a core whose device's file has none: between an A100's 1.41 GHz and an H100's 1.98; assumed
USUAL_CLOCK = 1.7e9


def path_of(device: HardwareSpec, quantizer: QuantizerSpec, run_by: Implementation | None, work: Workload) -> str:
    """Choose the dequantization path of a quantizer.

    The first that is given counts: the workload's, a named implementation's, the device file's (for this family, or
    its default), the implementation's, the usual one of the kind of device.
    """
    family = quantizer.family.name
    named = (work.implementation or "").partition(":")[0] or quantizer.implementation
    named_path = run_by and named and run_by.path
    device_path = device.dequant_path.get(family) or device.dequant_path.get("default")
    return work.dequant_path or named_path or device_path or (run_by and run_by.path) or device.path_of(family)


def implemented(device: HardwareSpec, plan: KvPlan, work: Workload, stack_name: str | None) -> KvPlan:
    """The plan with what runs each of its quantizers on the device: no code of others on a chip of the user's.

    Raises InputError for an implementation of other methods, or where kernels have to be known and are not.
    """
    catalog.known_implementation(work.implementation or "")
    groups = []
    for g in plan.groups:
        implementation, family, name = None, g.quantizer.family.name, g.quantizer.implementation
        if name and not g.layout.needs_dequantizing:  # fp16@NAME: only code that is named runs 16 bits in its own way
            implementation = catalog.implementation(device, family, stack_name, name)
        requested = work.implementation or ""
        if name and (not requested or requested.startswith(":")):
            requested = name + requested
        by_itself = device.is_own_chip and not stack_name and not requested.partition(":")[0]
        if g.layout.needs_dequantizing and not by_itself:
            implementation = catalog.implementation(device, family, stack_name, requested)
            if work.strict_kernels and (implementation is None or implementation.name.startswith(GENERIC)):
                raise InputError(no_kernel(device, family))
        groups.append(replace(g, implementation=implementation))
    return replace(plan, groups=tuple(groups))


def no_kernel(device: HardwareSpec, family: str) -> str:
    """Why a strict workload is refused."""
    known = catalog.implementations_of(family)
    where = "; ".join(f"{run.name} runs on {', '.join(run.architectures)}" for run in known.values()) or "none is known"
    return (
        f"strict-kernels: no kernel of {family} is known for {device.name} ({device.architecture}): {where}: take "
        "another quantizer, or leave --strict-kernels out"
    )


def starts_of(g: TensorGroup) -> Starts:
    """Kernels that run a group beside plain attention's."""
    return g.implementation.starts if g.implementation else Starts()


def sink_s(g: TensorGroup) -> float:
    """Seconds of work on sinks when a layer's keys, or its values, pack: half of both; 0 where they keep none."""
    number = g.implementation.sinks if g.implementation and g.layout.pool_rows else None
    return float(number.si) / 2 if number else 0.0


def core_clock(device: HardwareSpec) -> float:
    """Cycles a second of a core."""
    return device.core_clock.si if device.core_clock else USUAL_CLOCK


def cores_per_unit(g: TensorGroup) -> float:
    """Cores that a sequence and KV head keep busy at most in its implementation's kernel; 0: as many as it has
    splits."""
    number = g.implementation.cores_per_head if g.implementation else None
    return number.si * g.unpackings if number else 0.0


def implementation_text(plan: KvPlan) -> str | None:
    """Name the implementations that run the quantizers of a plan as `laid_out`; None if no kernel of a device does."""
    return ", ".join(dict.fromkeys(g.implementation.name for g in plan.groups if g.implementation)) or None


def at_end(work: Workload, end: str) -> Workload:
    """The workload with all numbers of its kernels at one end of their ranges, `dse.specs.implementation.ENDS`."""
    return replace(work, implementation=f"{(work.implementation or '').partition(':')[0]}:{end}")


def ranged(plan: KvPlan, work: Workload, stack: StackSpec | None) -> list[Implementation]:
    """The implementations inside whose ranges times of a plan as laid out move: none at peak rates, none whose numbers
    are given on the spot, none whose path another was asked for."""
    if stack is None or stack.attention is None or ":" in (work.implementation or ""):
        return []
    in_use = {g.implementation.key: g.implementation for g in plan.groups if g.implementation}
    path = work.dequant_path
    return [run for run in in_use.values() if run.numbers() and path in (None, run.path)]


def rate_range(plan: KvPlan, work: Workload, stack: StackSpec | None) -> tuple[float, float]:
    """The slowest and the fastest that keys and values may be unpacked, over what is taken: 1 where that has no range.

    Of several implementations the widest counts.
    """
    rates = [kernel.elements_per_cycle for kernel in ranged(plan, work, stack) if kernel.elements_per_cycle]
    return (
        min((number.low / number.value for number in rates), default=1.0),
        max((number.high / number.value for number in rates), default=1.0),
    )


def with_number(plan: KvPlan, device: HardwareSpec, work: Workload, key: str, field: str, value: float) -> KvPlan:
    """A plan, not by layer, whose quantizers run by the implementation of this `key` have one of its numbers (base
    unit) changed."""
    whole = plan.whole or plan
    run_by = {g.which: g.implementation for g in implemented(device, whole, work, stack_of(device, work)[0]).groups}

    def side(which: str, quantizer: QuantizerSpec) -> QuantizerSpec:
        implementation = run_by.get(which)
        if implementation is None or implementation.key != key:
            return quantizer
        number = implementation.numbers()[field]
        in_unit = value / (number.si / number.value)
        return replace(quantizer, implementation=f"{implementation.name}:{field}={in_unit!r}")

    return build(whole.model, side("key", whole.key_quantizer), side("value", whole.value_quantizer))
