"""Time of the prompts of a running batch."""

from dataclasses import dataclass

from dse import kv_sums, packing
from dse.formulas import calibrated, dequantize, prefill, weights
from dse.plan import KvPlan
from dse.specs import HardwareSpec, StackSpec
from dse.steps_products import matrix, product_peak
from dse.trace import Trace
from dse.workload import Workload


@dataclass(frozen=True)
class Prompt:
    """The prompt of one running batch: seconds, what they wait for, and what is calculated."""

    seconds: float
    shares: dict[str, float]
    n_tokens: float
    attention_flops: float
    attention_s: float
    quantize_s: float


def prefill_of(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    n_sequences: int,
    paths: dict[str, str],
    prefix_tokens: int,
    trace: Trace,
    stack: StackSpec | None,
    prefix_is_cached: bool = False,
) -> Prompt:
    """The prompts of `n_sequences`; their common prefix is computed once, or not at all where it is cached already."""
    model = plan.model
    n_prefixes = 0 if prefix_is_cached else 1
    tokens = prefill.prefill_tokens(n_sequences, work.input_tokens, prefix_tokens)
    tokens -= 0 if n_prefixes else prefix_tokens
    if tokens == 0:
        return Prompt(0.0, {}, 0.0, 0.0, 0.0, 0.0)
    touched = weights.expert_share_touched(tokens, model.n_experts, model.n_active_experts)
    weight_read = weights.weight_read_bytes(model.dense_parameters, model.expert_parameters, touched, work.weights_bits)
    peak, reached = device.peak_flops.si, kv_sums.stack_bandwidth(device, stack)
    active, rate = float(model.active_parameters), product_peak(device, work)
    matrices = matrix(device, stack, plan, float(tokens), active, weight_read, "prefill_matrix_s", trace, rate)
    shared = plan.prompt_flops(prefix_tokens)
    flops = n_prefixes * shared + n_sequences * float(plan.prompt_flops(work.input_tokens) - shared)
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
    paid = sum(n_prefixes * once[path] + n_sequences * each[path] for path in ("fused", "materialised"))
    engine_s = n_prefixes * once["engine"] + n_sequences * each["engine"]
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
    return Prompt(float(total_s), shares, float(tokens), float(flops), compute_s - matrices.seconds, quantize_s)
