"""The points of a sweep as numbers for `dse.sweep_kernel`: tables of devices, plans and workloads, and places in them.

`covers` says which designs the kernel evaluates, `COLUMNS` which results. All else is left to `dse.point.evaluate`,
row by row, so that results never depend on what is covered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse import kv_sums, memory_unit, packing, point, utilisation
from dse import sweep_kernel as kernel
from dse import sweep_sums as sums
from dse.errors import InputError, LimitError
from dse.formulas import calibrated, linear
from dse.plan import KvPlan
from dse.specs import HardwareSpec, ModelSpec, StackSpec
from dse.sweep_designs import Designs
from dse.sweep_where import Digits
from dse.trace import Trace
from dse.units import UNITS
from dse.workload import Workload

#: numbers of a device that decide what a plan looks like on it, and whether the ideal model is meant
LAYOUT_FIELDS = frozenset({"engine_rate", "kv_page", "kv_burst", "n_cores", "fused_rate"})
#: fields of a workload that are given by point
BY_POINT = ("batch", "input_tokens", "output_tokens")

_OF_PLAN = ("effective_bits", "write_amplification", "quantizer", "key_quantizer", "value_quantizer")
_OF_PATHS = ("key_dequant_path", "value_dequant_path")
_OF_MEASUREMENTS = ("bits_kind", "measured_bits", "mse", "sqnr_db", "measured_error", "measured_on")
_OF_WORK = (
    "model_kind", "stack", "tokens", "admission", "page_tokens", "prefix_tokens", "weights_bits", "activation_bits",
    "prompt_chunk_tokens", "kv_cache", "cached_input_discount",
)  # fmt: skip
#: results that are the same whatever batch, lengths and rates
OF_CASE = frozenset({*_OF_PLAN, *_OF_PATHS, *_OF_MEASUREMENTS, *_OF_WORK})
OF_KERNEL = frozenset({*kernel.WHOLE, *kernel.FLOAT, *kernel.CODE, *kernel.EXTRA})
OF_POINT = frozenset({
    *BY_POINT, "capacity_bytes", "fits_whole_batch", "effective_bandwidth_bytes_per_s", "effective_capacity_bytes",
    "assumptions",
})  # fmt: skip
#: results that need not be left to the evaluation row by row
COLUMNS = OF_CASE | OF_KERNEL | OF_POINT


def covers(device: HardwareSpec, plan: KvPlan, work: Workload) -> bool:
    """True for what the kernel evaluates: full attention with a KV cache, no shared prefix.

    Both models, every quantizer, path, admission rule, bits of weights and activations, prompt chunk, window, mixture
    of experts, memory unit and token-level scheduling is covered. Not: token policies, prefixes, running without a
    cache, 8-bit activations on a device without such a rate, more than 64 different tensors. Whole numbers
    that float64 or int64 could not hold exactly are found by point, and left as well. `plan` is as laid out.
    """
    return (
        work.kv_cache
        and work.prefix_tokens == 0
        and work.token_policy.name == "full"
        and len(plan.groups) <= sums.MAX_TENSORS
        and device.product_peak(work.activation_bits) is not None
    )


@dataclass(frozen=True)
class Case:
    """A plan on a device under a workload whose batch and lengths are open, as numbers. `state`: see `sweep_kernel`."""

    state: int
    plan: tuple[int, ...] = ()
    plan_f: tuple[float, ...] = ()
    tensors: NDArray[np.int64] | None = None
    tensors_f: NDArray[np.float64] | None = None
    layers: NDArray[np.int64] | None = None
    kernels: NDArray[np.float64] | None = None
    work: tuple[int, ...] = ()
    fit: tuple[float, ...] = ()
    products: tuple[tuple[float, ...], ...] = ()
    #: results by name; what `dse.assumptions.of` takes beside the device
    results: Any = None
    design: Any = None


def case_of(designs: Designs, row: Sequence[Any], keep: Sequence[str]) -> Case:
    """The case of a point, `row` of `Designs.rows`; those of `keep` that it decides are in `results`."""
    from dse.sweep_points import NOT_ALLOWED  # which loads this module where many points are evaluated

    try:
        device, plan, work = designs.at(*row)
        laid, paths = point.laid_out(device, plan, work)
        if not covers(device, laid, work):
            return Case(kernel.LEFT)
        stack_name, stack = point.stack_of(device, work)
        results = _results(laid, paths, work, keep, stack_name)
        found = _numbers(device, laid, paths, work, stack, results)
        return replace(found, design=(laid, paths, stack, work.activation_bits)) if "assumptions" in keep else found
    except InputError:
        return Case(NOT_ALLOWED)
    except (LimitError, OverflowError):  # row by row finds and says the same
        return Case(kernel.LEFT)


def _results(
    plan: KvPlan, paths: dict[str, str], work: Workload, keep: Sequence[str], stack: str | None
) -> dict[str, Any]:
    wanted = OF_CASE.intersection(keep)
    found: dict[str, Any] = {
        "quantizer": plan.quantizer_name, "key_quantizer": plan.key_quantizer.name,
        "value_quantizer": plan.value_quantizer.name, "key_dequant_path": point.path_text(paths, "key"),
        "value_dequant_path": point.path_text(paths, "value"), "model_kind": "calibrated" if stack else "ideal",
        "stack": stack, "tokens": "full",
    }  # fmt: skip
    if "effective_bits" in wanted or OF_POINT.intersection(keep):
        found["effective_bits"] = float(plan.effective_bits)
    if "write_amplification" in wanted:
        found["write_amplification"] = memory_unit.write_amplification(plan)
    if wanted.intersection(_OF_MEASUREMENTS):
        found |= point.measured(plan, Trace())
    for name in wanted.intersection(_OF_WORK).difference(found):
        found[name] = getattr(work, name)
    return found


def _numbers(
    device: HardwareSpec, plan: KvPlan, paths: dict[str, str], work: Workload, stack: StackSpec | None,
    results: dict[str, Any],
) -> Case:  # fmt: skip
    model, den = plan.model, plan.den
    tensors = []
    for g in plan.groups:
        code, side = g.quantizer.family.gpu_code, int(g.which == "value")
        streams = (*g.streams, 0, 0)
        tensors.append((
            side, g.shape_index, g.n_stored_layers, g.n_read_layers, g.n_elements, g.window_tokens, g.packed_bits,
            g.full_bits, g.once_bits, g.pool_bits, g.step_tokens, g.residual_tokens, int(g.layout.needs_unpacking),
            sums.PATHS[paths[g.place]] if g.layout.needs_unpacking else sums.NONE, *packing.kernels(g, side),
            int(code.copies_to_append), g.tile_tokens, streams[0], streams[1], g.page_row_bits, g.tail_bits,
        ))  # fmt: skip
        assert len(g.streams) <= 2
        assert not g.index_bits
    layers = [
        (layer.n_layers, sums.NO_WINDOW if layer.window is None else layer.window,
         sums.pair_flops(model.n_q_heads, layer.score_dim))
        for layer in model.layers
    ]  # fmt: skip
    burst_bits = sum(g.n_stored_layers * g.written_bits for g in plan.groups if g.burst_row_bits)
    numbers = (
        den, model.n_q_heads, model.dense_parameters, model.expert_parameters, model.n_experts,
        model.n_active_experts, model.activation_elements,
        min(model.activation_elements, 2 * model.hidden_size + model.vocab_size), burst_bits,
    )  # fmt: skip
    kernels, fit, packed_core_s, rates = _fits(device, plan, paths, stack)
    tensors_f = [
        (float(g.layout.pool_rows), core_s, rate)
        for g, core_s, rate in zip(plan.groups, packed_core_s, rates, strict=True)
    ]  # fmt: skip
    paged = work.admission == "paged"
    return Case(
        0, tuple(int(number) for number in np.array(numbers, np.int64)),  # OverflowError beyond int64
        (float(model.active_parameters),), np.array(tensors, np.int64), np.array(tensors_f),
        np.array(layers, np.int64), np.array(kernels, np.float64).reshape(-1, sums.N_KERNEL),
        (int(paged), work.page_tokens if paged else 1, work.weights_bits, work.activation_bits,
         work.prompt_chunk_tokens),
        fit, _products(model), results,
    )  # fmt: skip


def _products(model: ModelSpec) -> tuple[tuple[float, ...], ...]:
    """The weights by operation, see `sums.ACTIVE_PART`; zeros where a model has fewer."""
    found = [
        (float(part.dense + part.experts * model.n_active_experts / model.n_experts), float(part.dense),
         float(part.experts))
        for part in utilisation.products(model)
    ]  # fmt: skip
    return (*found, *((0.0,) * sums.N_PART for _ in range(sums.MAX_PRODUCTS - len(found))))


def _fits(
    device: HardwareSpec, plan: KvPlan, paths: dict[str, str], stack: StackSpec | None
) -> tuple[list[tuple[float, ...]], tuple[float, ...], list[float], list[float]]:
    """Attention kernels by layer and what else was fitted; seconds of a core for a packed element, and rates at which
    such elements are unpacked, by tensor (0: no ceiling). Without a stack all zeros, and shares of 1."""
    core_s, rates = [0.0] * len(plan.groups), [0.0] * len(plan.groups)
    fit = dict.fromkeys(range(sums.N_FIT), 0.0)
    for share in (sums.GEMM_MEMORY_FRAC, sums.GEMM_FLOPS_FRAC, sums.MEMORY_FRAC, sums.COPY_FRAC, sums.FLOPS_FRAC):
        fit[share] = 1.0
    kernels: list[tuple[float, ...]] = []
    if stack and stack.gemm:
        gemm = stack.gemm_terms()
        fit |= {
            sums.HAS_GEMM: 1.0, sums.GEMM_LAUNCH_S: gemm["launch_s"], sums.GEMM_MEMORY_FRAC: gemm["memory_frac"],
            sums.GEMM_FLOPS_FRAC: gemm["flops_frac"],
            sums.N_PRODUCTS: linear.matrix_products(sum(layer.n_layers for layer in plan.model.layers)),
        }  # fmt: skip
    if stack and stack.materialised:
        fit |= {sums.HAS_COPIES: 1.0, sums.COPY_LAUNCH_S: stack.materialised.launch.si}
    if stack and stack.attention:
        terms = stack.attention_terms()
        copies = stack.materialised.memory_frac.si if stack.materialised else terms["memory_frac"]
        n_cores = device.n_cores.count if device.n_cores else 1
        for index, (layer, n_layers) in enumerate(plan.layers):
            one = kv_sums.LayerKernel.of(device, stack, plan, index, 1, paths)
            places = [i for i, g in enumerate(plan.groups) if g.shape_index == index]
            for i, seconds in zip(places, one.packed_core_s, strict=True):
                core_s[i] = seconds
            plain_core_s = one.plain_core_s
            kernels.append((
                n_layers, layer.n_kv_heads, one.io_bytes, one.flops_per_token, one.terms["launch_s"],
                plan.model.n_q_heads > layer.n_kv_heads, any((plain_core_s, *one.packed_core_s)),
            ))  # fmt: skip
        rates = [
            kv_sums.core_rate(device, stack, g, paths[g.place]) * n_cores
            if g.layout.needs_unpacking and paths[g.place] in ("fused", "engine") else 0.0
            for g in plan.groups
        ]  # fmt: skip
        fit |= {
            sums.HAS_ATTENTION: 1.0, sums.SPLIT_S: terms["split_s"], sums.LAYOUT_COPY_S: terms["copy_s"],
            sums.UNIT_S: terms["unit_s"], sums.MEMORY_FRAC: terms["memory_frac"], sums.N_CORES: n_cores,
            sums.PLAIN_CORE_S: plain_core_s, sums.COPY_FRAC: copies, sums.FLOPS_FRAC: calibrated.ATTENTION_FLOPS_FRAC,
        }  # fmt: skip
    return kernels, tuple(float(fit[i]) for i in range(sums.N_FIT)), core_s, rates


def device_numbers(device: HardwareSpec) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """A device as the kernel takes it: whole numbers, and others; nan where there is no power or price."""

    def rate(name: str) -> tuple[float, float]:
        quantity = getattr(device, name)
        return (quantity.value, float(UNITS[quantity.unit][1])) if quantity else (0.0, 1.0)

    frac, capacity = device.usable_frac.si, device.capacity_bytes
    usable = capacity if frac == 1 else int(capacity * frac)
    whole = (
        usable, device.runtime_overhead.count, device.token_cores.count if device.token_cores else 0, int(frac == 1),
    )  # fmt: skip
    power, price = device.board_power, device.usd_per_hour
    parts = (device.energy_per_byte, device.energy_per_flop, device.idle_power)
    return whole, (
        device.memory_bandwidth.si, *rate("peak_flops"), *rate("peak_flops_fp8"), *rate("peak_ops_int8"),
        device.rate("engine").si, device.rate("fused").si, device.kernel_launch.si,
        power.si if power else np.nan, price.si if price else np.nan, frac,
        *(part.si if part and all(parts) else np.nan for part in parts),
    )  # fmt: skip


def tables(cases: Sequence[Case]) -> sums.Tables:
    """The cases below each other; those without numbers as zeros."""
    plans = np.zeros((len(cases), sums.N_PLAN), np.int64)
    plans_f = np.zeros((len(cases), sums.N_PLAN_F))
    works = np.zeros((len(cases), sums.N_WORK), np.int64)
    fits = np.zeros((len(cases), sums.N_FIT))
    products = np.zeros((len(cases), sums.MAX_PRODUCTS, sums.N_PART))
    tensors: list[Any] = [np.zeros((0, sums.N_TENSOR), np.int64)]
    tensors_f: list[Any] = [np.zeros((0, sums.N_TENSOR_F))]
    layers: list[Any] = [np.zeros((0, sums.N_LAYER), np.int64)]
    kernels: list[Any] = [np.zeros((0, sums.N_KERNEL))]
    ends = (0, 0, 0)
    for i, case in enumerate(cases):
        if case.state == 0:
            parts = (case.tensors, case.layers, case.kernels)
            begin, ends = ends, tuple(end + len(part) for end, part in zip(ends, parts, strict=True))  # type: ignore
            plans[i] = (*case.plan, *(place for pair in zip(begin, ends, strict=True) for place in pair))
            plans_f[i], works[i], fits[i], products[i] = case.plan_f, case.work, case.fit, case.products
            tensors.append(case.tensors)
            tensors_f.append(case.tensors_f)
            layers.append(case.layers)
            kernels.append(case.kernels)
    return sums.Tables(
        np.concatenate(tensors), np.concatenate(tensors_f), np.concatenate(layers), np.concatenate(kernels), plans,
        plans_f, works, fits, products,
    )  # fmt: skip


def number(digits: Digits, names: Sequence[str], sizes: Sequence[int]) -> NDArray[np.int64] | None:
    """One whole number for the places on some axes, -1 (none) included; None where int64 has too few."""
    total = 1
    for size in sizes:
        total *= size + 1
    if total >= 2**62:
        return None
    n = len(next(iter(digits.values())))
    found = np.zeros(n, np.int64)
    for name, size in zip(names, sizes, strict=True):
        found *= size + 1
        found += digits[name]
        found += 1
    return found


def distinct(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first place of each distinct number, and for every place which of them it is. Runs make it fast."""
    heads = np.concatenate(([0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1))
    _, first, inverse = np.unique(numbers[heads], return_index=True, return_inverse=True)
    lengths = np.diff(np.concatenate((heads, [len(numbers)])))
    return heads[first], np.repeat(inverse, lengths)


@dataclass(frozen=True)
class Points:
    """Many points as numbers: `case` and `device` are places in `cases` and `specs`, the lengths and batch by point."""

    cases: list[Case]
    case: NDArray[np.int64]
    specs: list[HardwareSpec]
    device: NDArray[np.int64]
    devices: NDArray[np.int64]
    devices_f: NDArray[np.float64]
    n_input: NDArray[np.int64]
    n_output: NDArray[np.int64]
    batch: NDArray[np.int64]

    def n_keys(self, tables: sums.Tables) -> int:
        """More than any number of sequences on which sums over a generation depend one by one."""
        return 2 + max(int(tables.fits[:, sums.N_CORES].max()), int(self.devices[:, sums.TOKEN_CORES].max()), 2)


def of_points(sweep: Any, digits: Digits) -> Points | None:
    """The points at `digits` of a `dse.sweep_spec.Sweep`; None for no points, or more axes than int64 can number."""
    designs = sweep.designs
    device_axes = ["device", *designs.fields]
    layout = [name for name in designs.fields if name in LAYOUT_FIELDS]
    open_work = [name for name in designs.work_fields if name not in BY_POINT]
    case_axes = ["device", *layout, "model", *designs.sides, *designs.parameters, *open_work]
    case_number = number(digits, case_axes, [len(sweep.axis[name]) for name in case_axes])
    device_number = number(digits, device_axes, [len(sweep.axis[name]) for name in device_axes])
    if case_number is None or device_number is None or not len(case_number):
        return None
    case_first, case = distinct(case_number)
    device_first, device = distinct(device_number)

    def rows_at(places: NDArray[np.int64]) -> list[Any]:
        return designs.rows({name: column[places] for name, column in digits.items()})  # type: ignore[no-any-return]

    specs = [designs.device(row[0], row[1]) for row in rows_at(device_first)]
    numbers = [device_numbers(spec) for spec in specs]

    def by_point(name: str) -> NDArray[np.int64]:
        if name in sweep.axis:
            return np.array(sweep.axis[name].items, np.int64)[digits[name]]
        return np.full(len(case), getattr(sweep.base, name), np.int64)

    return Points(
        [sweep.case(_opened(designs, row)) for row in rows_at(case_first)], case, specs, device,
        np.array([whole for whole, _ in numbers], np.int64), np.array([others for _, others in numbers]),
        by_point("input_tokens"), by_point("output_tokens"), by_point("batch"),
    )  # fmt: skip


def _opened(designs: Designs, row: Any) -> Any:
    """A row of `Designs.rows` with the first value of every axis that a case leaves open."""
    device, fields, model, sides, parameters, work = row
    fields = tuple(i if name in LAYOUT_FIELDS else 0 for name, i in zip(designs.fields, fields, strict=True))
    work = tuple(0 if name in BY_POINT else i for name, i in zip(designs.work_fields, work, strict=True))
    return device, fields, model, sides, parameters, work
