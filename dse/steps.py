"""Times of one running batch: the mean decode step, its parts, and the prompt; ideal, or calibrated by a stack."""

from dataclasses import dataclass

from dse import kv_sums, steps_packing, units
from dse.formulas import attention, calibrated, scheduling, throughput, weights
from dse.formulas.core import Formula
from dse.plan import KvPlan
from dse.specs import HardwareSpec, StackSpec
from dse.steps_products import Waits, matrix, product_peak
from dse.steps_prompt import prefill_of
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
    #: what matrix products and attention are made of
    linear: Waits
    attention: Waits
    #: `prefill_s` by what it waits for
    prefill_shares: dict[str, float]
    #: amounts moved and calculated, for utilisation and energy
    amounts: "Amounts"
    #: cores that work in a decode step, where the device schedules by token
    busy_cores: int | None = None


@dataclass(frozen=True)
class Amounts:
    """What a running batch moves (B) and calculates (FLOP): the mean decode step, and the whole prompt.

    Attention of the decode step counts the queries and outputs of its kernels where those are calibrated; attention
    of the prompt counts nothing that it reads, as its time does.
    """

    attention_bytes: float
    attention_flops: float
    #: traffic of packing and unpacking: FP16 copies, bursts, copied buffers, SinkQ's own
    packing_bytes: float
    prefill_tokens: float
    prefill_attention_flops: float
    prefill_attention_s: float
    prefill_quantize_s: float
    #: share of the experts that a step reads, where steps differ in it: their mean
    mean_share_touched: float | None = None


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
    rate = product_peak(device, work)
    matrices = matrix(device, stack, plan, float(n_sequences), active, weight_read, "linear_s", trace, rate)
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
    packed = steps_packing.evaluate(device, plan, work, n_sequences, paths, trace, stack, kv, busy_cores)
    decode_step_s = trace.call(
        "decode_step_s",
        throughput.decode_step_s,
        linear_s=matrices.seconds,
        attention_s=attention_s,
        quantize_s=packed.quantize_s,
        dequantize_s=packed.dequantize_s,
    )
    prompt = prefill_of(whole_device, plan, work, n_sequences, paths, prefix_tokens, trace, stack)
    prefill_s = prompt.seconds
    return StepTimes(
        matrices.seconds,
        attention_s,
        packed.quantize_s,
        packed.dequantize_s,
        decode_step_s,
        prefill_s,
        trace.call("wave_s", throughput.wave_s, output_tokens=steps, decode_step_s=decode_step_s, prefill_s=prefill_s),
        packed.quantize_busy_s,
        kv.unpack_busy / steps,
        matrices,
        Waits(attention_s, kv.read / steps, kv.compute / steps, (kv.fixed + kv.unit) / steps),
        prompt.shares,
        Amounts(
            kv.read / steps * kv_sums.stack_bandwidth(device, stack),
            kv.compute / steps * peak * (calibrated.ATTENTION_FLOPS_FRAC if stack and stack.attention else 1.0),
            packed.n_bytes,
            prompt.n_tokens,
            prompt.attention_flops,
            prompt.attention_s,
            prompt.quantize_s,
        ),
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


def _attention_form(stack: StackSpec | None) -> Formula:
    return calibrated.attention_layer_s if stack and stack.attention else attention.attention_s
