"""Times of one running batch under the ideal model: the mean decode step, its parts, and the prompt."""

from dataclasses import dataclass

from dse import packing, units
from dse.formulas import attention, dequantize, generation, linear, prefill, throughput, weights
from dse.plan import KvPlan
from dse.specs import HardwareSpec
from dse.trace import Trace
from dse.workload import Workload


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
    weight_read_s: float
    linear_compute_s: float
    kv_read_s: float
    attention_compute_s: float
    #: what `prefill_s` is made of, by what it waits for
    prefill_parts: dict[str, float]


@dataclass(frozen=True)
class _Kv:
    """Attention-side sums over the steps of a generation, in seconds."""

    attention: float = 0.0
    read: float = 0.0
    compute: float = 0.0
    unpack_busy: float = 0.0
    unpack_exposed: float = 0.0
    materialised: float = 0.0
    pack_busy: float = 0.0
    pack_exposed: float = 0.0


def evaluate(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    n_sequences: int,
    paths: dict[str, str],
    prefix_tokens: int,
    trace: Trace,
) -> StepTimes:
    """Times of `n_sequences` running together. Ideal model: peak rates (docs/model.md)."""
    model, steps = plan.model, work.output_tokens
    bandwidth, peak = device.memory_bandwidth.si, device.peak_flops.si
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
    linear_s = trace.call(
        "linear_s",
        linear.linear_s,
        n_tokens=n_sequences,
        active_parameters=active,
        weight_read_bytes=weight_read,
        peak_flops_per_s=peak,
        bandwidth_bytes_per_s=bandwidth,
    )

    kv = _sum_generation(device, plan, work, n_sequences, paths)
    attention_s = trace.note(
        "attention_s",
        kv.attention / steps,
        "s",
        f"mean over steps t of {attention.attention_s.equation}, s = I + t",
        attention.attention_s.source,
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
    )
    n_read = packing.read_launches(plan, work.input_tokens + 1, work.final_tokens, paths) / steps
    n_pack = packing.pack_launches(plan, work.input_tokens, work.final_tokens, paths) / steps
    dequantize_launch_s = dequantize.launch_s(n_read, device.kernel_launch.si)
    quantize_launch_s = dequantize.launch_s(n_pack, device.kernel_launch.si)
    copy_s = n_sequences * packing.copy_s(device, plan, work.input_tokens, work.final_tokens, paths) / steps
    dequantize_s = trace.note(
        "dequantize_s",
        kv.unpack_exposed / steps + dequantize_launch_s,
        "s",
        "mean over steps of what unpacking adds to max(FLOP / F, KV bytes / BW), plus launches",
        "docs/model.md, Dequantisation",
        paths=", ".join(sorted(set(paths.values()))),
        busy_s=kv.unpack_busy / steps,
        materialised_traffic_s=kv.materialised / steps,
        mean_kv_read_s=kv.read / steps,
        launch_s=dequantize_launch_s,
        launches_per_step=n_read,
        rates_elements_per_s=_rates(device, paths),
    )
    quantize_s = trace.note(
        "quantize_s",
        kv.pack_exposed / steps + copy_s + quantize_launch_s,
        "s",
        "mean over steps of what packing new tokens adds, plus copies of packed buffers, plus launches",
        "docs/model.md, Dequantisation",
        paths=", ".join(sorted(set(paths.values()))),
        busy_s=kv.pack_busy / steps,
        copy_s=copy_s,
        launch_s=quantize_launch_s,
        launches_per_step=n_pack,
        rates_elements_per_s=_rates(device, paths),
    )
    for name, busy_s, what in (
        ("dequantize_busy_s", kv.unpack_busy / steps, "elements unpacked / rate, materialised traffic / BW"),
        ("quantize_busy_s", kv.pack_busy / steps, "elements packed / rate, materialised traffic / BW"),
    ):
        trace.note(
            name,
            busy_s,
            "s",
            f"mean over steps of {what}; overlap, copies and launches not counted",
            "docs/model.md, Dequantisation",
            paths=", ".join(sorted(set(paths.values()))),
            rates_elements_per_s=_rates(device, paths),
            n_sequences=n_sequences,
            unpacked_elements_at_end=n_sequences * plan.unpacked_elements(work.final_tokens),
        )
    decode_step_s = trace.call(
        "decode_step_s",
        throughput.decode_step_s,
        linear_s=linear_s,
        attention_s=attention_s,
        quantize_s=quantize_s,
        dequantize_s=dequantize_s,
    )
    prefill_s, prefill_parts = _prefill(device, plan, work, n_sequences, paths, prefix_tokens, trace)
    return StepTimes(
        linear_s,
        attention_s,
        quantize_s,
        dequantize_s,
        decode_step_s,
        prefill_s,
        trace.call("wave_s", throughput.wave_s, output_tokens=steps, decode_step_s=decode_step_s, prefill_s=prefill_s),
        kv.pack_busy / steps,
        kv.unpack_busy / steps,
        attention.time_at_rate(weight_read, bandwidth),
        linear.linear_compute_s(n_sequences, active, peak),
        kv.read / steps,
        kv.compute / steps,
        prefill_parts,
    )


def waits_for(bandwidth_s: float, compute_s: float) -> str:
    """Name of the larger time; bandwidth on a tie."""
    return "compute" if compute_s > bandwidth_s else "bandwidth"


def _rates(device: HardwareSpec, paths: dict[str, str]) -> str:
    found = {path: device.rate(path) for path in paths.values() if path in ("engine", "fused")}
    return "; ".join(f"{path} {rate.si:.4g} ({rate.kind})" for path, rate in sorted(found.items())) or "none"


def _sum_generation(device: HardwareSpec, plan: KvPlan, work: Workload, n_sequences: int, paths: dict[str, str]) -> _Kv:
    """Sums over all decode steps, straight piece by straight piece."""
    bandwidth, peak = device.memory_bandwidth.si, device.peak_flops.si
    per_byte = units.BITS_PER_BYTE * plan.den
    engine_rate, fused_rate = device.rate("engine").si, device.rate("fused").si
    per_path = packing.seconds(device, plan, work.input_tokens, work.final_tokens, paths)
    pack_hidden = n_sequences * per_path["engine"] / work.output_tokens
    pack_paid = n_sequences * (per_path["fused"] + per_path["materialised"])
    total_attention = read = compute = unpack_busy = unpack_exposed = materialised = pack_exposed = 0.0
    for piece in plan.pieces(work.input_tokens + 1, work.final_tokens, paths):
        m = piece.n_steps
        read_0 = attention.time_at_rate(n_sequences * piece.read_bits / per_byte, bandwidth)
        read_1 = attention.time_at_rate(n_sequences * piece.read_slope / per_byte, bandwidth)
        flop_0 = attention.time_at_rate(n_sequences * piece.flops, peak)
        flop_1 = attention.time_at_rate(n_sequences * piece.flops_slope, peak)
        total_attention += generation.sum_of_max2(flop_0, flop_1, read_0, read_1, 0, m)
        read += generation.sum_of_line(read_0, read_1, 0, m)
        compute += generation.sum_of_line(flop_0, flop_1, 0, m)
        (engine_0, engine_1), (fused_0, fused_1) = piece.unpacked["engine"], piece.unpacked["fused"]
        unpack_0 = n_sequences * engine_0 / engine_rate + n_sequences * fused_0 / fused_rate
        unpack_1 = n_sequences * engine_1 / engine_rate + n_sequences * fused_1 / fused_rate
        unpack_busy += generation.sum_of_line(unpack_0, unpack_1, 0, m)
        unpack_exposed += generation.sum_of_excess(flop_0, flop_1, read_0, read_1, unpack_0, unpack_1, m)
        extra_0, extra_1 = (
            n_sequences * dequantize.materialised_bytes(n) / bandwidth for n in piece.unpacked["materialised"]
        )
        extra = generation.sum_of_line(extra_0, extra_1, 0, m)
        materialised += extra
        if pack_hidden:
            pack_exposed += generation.sum_of_excess(flop_0, flop_1, read_0, read_1, pack_hidden, 0.0, m)
    return _Kv(
        total_attention,
        read,
        compute,
        unpack_busy + materialised,
        unpack_exposed + materialised,
        materialised,
        pack_hidden * work.output_tokens + pack_paid,
        pack_exposed + pack_paid,
    )


def _prefill(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    n_sequences: int,
    paths: dict[str, str],
    prefix_tokens: int,
    trace: Trace,
) -> tuple[float, dict[str, float]]:
    """Seconds of the prompt of one running batch, and how much of them waits for what."""
    model = plan.model
    tokens = prefill.prefill_tokens(n_sequences, work.input_tokens, prefix_tokens)
    touched = weights.expert_share_touched(tokens, model.n_experts, model.n_active_experts)
    weight_read = weights.weight_read_bytes(model.dense_parameters, model.expert_parameters, touched, work.weights_bits)
    bandwidth, peak = device.memory_bandwidth.si, device.peak_flops.si
    active = float(model.active_parameters)
    matrix_s = linear.linear_s(tokens, active, weight_read, peak, bandwidth)
    shared = plan.prompt_flops(prefix_tokens)
    flops = shared + n_sequences * (plan.prompt_flops(work.input_tokens) - shared)
    compute_s = trace.call(
        "prefill_compute_s",
        prefill.prefill_compute_s,
        matrix_s=matrix_s,
        attention_flops=flops,
        peak_flops_per_s=peak,
    )
    once = packing.seconds(device, plan, 0, prefix_tokens, paths)
    each = packing.seconds(device, plan, prefix_tokens, work.input_tokens, paths)
    paid = sum(once[path] + n_sequences * each[path] for path in ("fused", "materialised"))
    engine_s = once["engine"] + n_sequences * each["engine"]
    launch_s = dequantize.launch_s(packing.prompt_launches(plan, work.input_tokens, paths), device.kernel_launch.si)
    quantize_s = paid + dequantize.exposed_s(engine_s, compute_s) + launch_s
    parts = {"bandwidth": 0.0, "compute": compute_s - matrix_s, "dequantization": quantize_s}
    read_s = attention.time_at_rate(weight_read, bandwidth)
    parts[waits_for(read_s, linear.linear_compute_s(tokens, active, peak))] += matrix_s
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
    return total_s, parts
