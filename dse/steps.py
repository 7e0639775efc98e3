"""Times of one running batch: the mean decode step, its parts, and the prompt; ideal, or calibrated by a stack."""

from dataclasses import dataclass

from dse import kv_sums, memory_unit, packing, sink_work, units
from dse.formulas import attention, calibrated, dequantize, linear, prefill, scheduling, throughput, weights
from dse.formulas.core import Formula
from dse.plan import KvPlan
from dse.specs import HardwareSpec, StackSpec
from dse.trace import Trace
from dse.workload import Workload

_FORM = "docs/calibration.md, The form"


@dataclass(frozen=True)
class StepTimes:
    """Seconds, each the mean per decode step of one running batch, but `prefill_s` (its whole prompt)."""

    linear_s: float
    attention_s: float
    quantize_s: float
    dequantize_s: float
    decode_step_s: float
    prefill_s: float
    wave_s: float
    #: what the units are busy, overlap ignored
    quantize_busy_s: float
    dequantize_busy_s: float
    #: what matrix products and attention are made of
    linear: "Waits"
    attention: "Waits"
    #: `prefill_s` by what it waits for
    prefill_shares: dict[str, float]
    #: cores that work in a decode step, where the device schedules by token
    busy_cores: int | None = None


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


def evaluate(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    n_sequences: int,
    paths: dict[str, str],
    prefix_tokens: int,
    trace: Trace,
    stack: StackSpec | None = None,
) -> StepTimes:
    """Times of `n_sequences` running together: at peak rates (docs/model.md), or as the kernels of `stack` run."""
    model, steps, whole_device = plan.model, work.output_tokens, device
    device, busy_cores = _generation_cores(device, n_sequences, trace)
    scheduled = {"hideable_share": kv_sums.engine_hides(device, n_sequences), "busy_cores": busy_cores}
    scheduled = scheduled if busy_cores else {}
    bandwidth, peak = device.memory_bandwidth.si, device.peak_flops.si
    reached = kv_sums.stack_bandwidth(device, stack)
    active = float(model.active_parameters)

    touched = (
        trace.call(
            "expert_share_touched",
            weights.expert_share_touched,
            n_tokens=n_sequences,
            n_experts=model.n_experts,
            n_active_experts=model.n_active_experts,
        )
        if model.expert_parameters
        else 1.0
    )
    weight_read = trace.call(
        "weight_read_bytes",
        weights.weight_read_bytes,
        n_dense_parameters=model.dense_parameters,
        n_expert_parameters=model.expert_parameters,
        share_touched=touched,
        weights_bits=work.weights_bits,
    )
    matrices = _matrix(device, stack, plan, float(n_sequences), active, weight_read, "linear_s", trace)
    if stack and stack.attention:
        kv = kv_sums.calibrated_sums(device, stack, plan, work, n_sequences, paths)
    else:
        kv = kv_sums.ideal(device, plan, work, n_sequences, paths)
    attention_s = trace.note(
        "attention_s",
        kv.attention / steps,
        "s",
        f"mean over steps t of {_attention_form(stack).equation}, s = I + t",
        _attention_form(stack).source,
        n_sequences=n_sequences,
        first_context_tokens=work.input_tokens + 1,
        last_context_tokens=work.final_tokens,
        mean_kv_read_s=kv.read / steps,
        unpacked_elements_at_end=n_sequences * plan.unpacked_elements(work.final_tokens),
        mean_attention_compute_s=kv.compute / steps,
        kv_read_bytes_at_end=n_sequences * plan.read_bits(work.final_tokens) / (units.BITS_PER_BYTE * plan.den),
        flops_at_end=n_sequences * plan.flops(work.final_tokens),
        bandwidth_bytes_per_s=bandwidth,
        peak_flops_per_s=peak,
        **({"mean_fixed_s": kv.fixed / steps, "mean_unit_s": kv.unit / steps, **stack.attention_terms()}
           if stack and stack.attention else {}),
    )  # fmt: skip
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
    write_s = memory_unit.write_s(plan, n_sequences, bandwidth)
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
        **({} if n_copies else {"launch_s": dequantize_launch_s, "launches_per_step": n_read}),
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
    decode_step_s = trace.call(
        "decode_step_s",
        throughput.decode_step_s,
        linear_s=matrices.seconds,
        attention_s=attention_s,
        quantize_s=quantize_s,
        dequantize_s=dequantize_s,
    )
    prefill_s, prefill_shares = _prefill(whole_device, plan, work, n_sequences, paths, prefix_tokens, trace, stack)
    return StepTimes(
        matrices.seconds,
        attention_s,
        quantize_s,
        dequantize_s,
        decode_step_s,
        prefill_s,
        trace.call("wave_s", throughput.wave_s, output_tokens=steps, decode_step_s=decode_step_s, prefill_s=prefill_s),
        kv.pack_busy / steps + write_s,
        kv.unpack_busy / steps,
        matrices,
        Waits(attention_s, kv.read / steps, kv.compute / steps, (kv.fixed + kv.unit) / steps),
        prefill_shares,
        busy_cores,
    )


def _generation_cores(device: HardwareSpec, n_sequences: int, trace: Trace) -> tuple[HardwareSpec, int | None]:
    """The device with the arithmetic of the cores that a decode step keeps busy, and their number."""
    if device.token_cores is None:
        trace.note("busy_cores", None, "1", "the device names no token_cores", scheduling.busy_cores.source)
        return device, None
    busy = trace.call(
        "busy_cores", scheduling.busy_cores, n_sequences=n_sequences, token_cores=device.token_cores.count
    )
    return kv_sums.in_generation(device, n_sequences), busy


def _hides_behind(stack: StackSpec | None) -> str:
    return "the kernel's ceilings" if stack and stack.attention else "max(FLOP / F, KV bytes / BW)"


def _unpack_rates(device: HardwareSpec, stack: StackSpec | None, plan: KvPlan, paths: dict[str, str]) -> str:
    """Elements per second that unpack, and where they come from."""
    if stack is None or stack.attention is None:
        return _rates(device, paths)
    found = {}
    for g in plan.groups:
        if fit := kv_sums.packed_fit(stack, g, paths[g.which]) if g.layout.needs_unpacking else None:
            rate = f"{fit.core_rate.si:.4g} a core (fitted)" if fit.core_rate else "no ceiling (fitted)"
            found[kv_sums.kv_code(g)] = rate
    return "; ".join(f"{code} {rate}" for code, rate in found.items()) or _rates(device, paths)


def _attention_form(stack: StackSpec | None) -> Formula:
    return calibrated.attention_layer_s if stack and stack.attention else attention.attention_s


def _matrix(
    device: HardwareSpec,
    stack: StackSpec | None,
    plan: KvPlan,
    n_tokens: float,
    active: float,
    weight_read: float,
    name: str,
    trace: Trace,
) -> Waits:
    """All matrix products with the weights over `n_tokens` tokens."""
    bandwidth, peak = device.memory_bandwidth.si, device.peak_flops.si
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


def _rates(device: HardwareSpec, paths: dict[str, str]) -> str:
    found = {path: device.rate(path) for path in paths.values() if path in ("engine", "fused")}
    return "; ".join(f"{path} {rate.si:.4g} ({rate.kind})" for path, rate in sorted(found.items())) or "none"


def _prefill(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    n_sequences: int,
    paths: dict[str, str],
    prefix_tokens: int,
    trace: Trace,
    stack: StackSpec | None,
) -> tuple[float, dict[str, float]]:
    """Seconds of the prompt of one running batch, and what they wait for."""
    model = plan.model
    tokens = prefill.prefill_tokens(n_sequences, work.input_tokens, prefix_tokens)
    touched = weights.expert_share_touched(tokens, model.n_experts, model.n_active_experts)
    weight_read = weights.weight_read_bytes(model.dense_parameters, model.expert_parameters, touched, work.weights_bits)
    peak, reached = device.peak_flops.si, kv_sums.stack_bandwidth(device, stack)
    active = float(model.active_parameters)
    matrices = _matrix(device, stack, plan, float(tokens), active, weight_read, "prefill_matrix_s", trace)
    shared = plan.prompt_flops(prefix_tokens)
    flops = shared + n_sequences * (plan.prompt_flops(work.input_tokens) - shared)
    compute_s = trace.call(
        "prefill_compute_s",
        prefill.prefill_compute_s,
        matrix_s=matrices.seconds,
        attention_flops=flops,
        flops_frac=calibrated.ATTENTION_FLOPS_FRAC if stack and stack.attention else 1.0,
        peak_flops_per_s=peak,
    )
    once = packing.seconds(device, plan, 0, prefix_tokens, paths, reached)
    each = packing.seconds(device, plan, prefix_tokens, work.input_tokens, paths, reached)
    paid = sum(once[path] + n_sequences * each[path] for path in ("fused", "materialised"))
    engine_s = once["engine"] + n_sequences * each["engine"]
    launch_s = dequantize.launch_s(packing.prompt_launches(plan, work.input_tokens, paths), device.kernel_launch.si)
    quantize_s = paid + dequantize.exposed_s(engine_s, compute_s) + launch_s
    total_s = trace.note(
        "prefill_s",
        compute_s + quantize_s,
        "s",
        "prefill_compute_s + quantising the prompt's keys and values",
        prefill.prefill_compute_s.source,
        prefill_tokens=tokens,
        prefill_compute_s=compute_s,
        quantize_s=quantize_s,
    )
    shares = {"bandwidth": 0.0, "compute": 0.0, **matrices.shares(), "dequantization": quantize_s}
    shares["compute"] += compute_s - matrices.seconds
    return float(total_s), shares
