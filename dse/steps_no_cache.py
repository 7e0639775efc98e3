"""Times without a KV cache: every decode step runs the whole prefix again, summed over the steps in closed form."""

from dse import steps_products
from dse.formulas import attention, calibrated, generation, kv_cache, linear, throughput, weights
from dse.plan import NO_WINDOW, KvPlan
from dse.specs import HardwareSpec, StackSpec
from dse.steps import Amounts, StepTimes
from dse.steps_products import Waits
from dse.trace import Trace
from dse.workload import Workload

_WHERE = "docs/model.md, No KV cache"


def causal_flops(plan: KvPlan, first: int, last: int) -> int:
    """Operations of causal attention over whole prefixes of first, ..., last tokens of one sequence; exact."""
    total = 0
    for layer in plan.model.layers:
        window = NO_WINDOW if layer.window is None else layer.window
        pairs = kv_cache.sum_of_causal_pairs(last, window) - kv_cache.sum_of_causal_pairs(first - 1, window)
        total += layer.n_layers * pairs * attention.attention_flops_per_token(plan.model.n_q_heads, layer.score_dim)
    return total


def _products(
    device: HardwareSpec, plan: KvPlan, work: Workload, n_sequences: int, stack: StackSpec | None
) -> tuple[Waits, float]:
    """Products with the weights summed over all steps, and the mean share of the experts that a step reads.

    Operations are a straight line of the length. The share of experts that a step touches is not, so its steps are
    added one by one until it is all of them (a few hundred tokens).
    """
    model, first, n_steps = plan.model, work.input_tokens + 1, work.output_tokens
    fit = stack.gemm_terms() if stack and stack.gemm else {"launch_s": 0.0, "memory_frac": 1.0, "flops_frac": 1.0}
    rate = steps_products.product_peak(device, work) * fit["flops_frac"]
    reached = device.memory_bandwidth.si * fit["memory_frac"]
    n_products = linear.matrix_products(sum(layer.n_layers for layer in model.layers))
    slope = linear.linear_compute_s(float(n_sequences), float(model.active_parameters), rate)

    def piece(start: int, m: int, n_bytes: float) -> float:
        read_s = attention.time_at_rate(n_bytes, reached)
        if stack and stack.gemm:
            return generation.sum_of_root(start * slope, slope, read_s, 0.0, 0.0, 0.0, 0.0, 0.0, m)
        return generation.sum_of_max2(start * slope, slope, read_s, 0.0, 0, m)

    def weight_read(touched: float) -> float:
        found: float = weights.weight_read_bytes(
            model.dense_parameters, model.expert_parameters, touched, work.weights_bits
        )
        return found

    total = all_bytes = all_touched = 0.0
    done = 0
    while done < n_steps:
        tokens = n_sequences * (first + done)
        touched = weights.expert_share_touched(tokens, model.n_experts, model.n_active_experts)
        m = n_steps - done if touched == 1.0 or not model.expert_parameters else 1
        n_bytes = weight_read(touched if model.expert_parameters else 1.0)
        total, all_bytes = total + piece(first + done, m, n_bytes), all_bytes + m * n_bytes
        all_touched, done = all_touched + m * touched, done + m
    launch_s = n_steps * n_products * fit["launch_s"]
    compute_s = generation.sum_of_line(first * slope, slope, 0, n_steps)
    return Waits(
        total + launch_s, attention.time_at_rate(all_bytes, reached), compute_s, launch_s
    ), all_touched / n_steps


def evaluate(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    n_sequences: int,
    trace: Trace,
    stack: StackSpec | None = None,
) -> StepTimes:
    """Times of `n_sequences` whose step t runs I + t tokens each, as long as a cached step's context; no prefill.

    All cores work, as on a prompt.
    """
    trace.note("busy_cores", None, "1", "every step is a prompt, on all cores", _WHERE)
    n_steps, peak = work.output_tokens, device.peak_flops.si
    summed, touched = _products(device, plan, work, n_sequences, stack)
    flops = n_sequences * causal_flops(plan, work.input_tokens + 1, work.final_tokens)
    frac = calibrated.ATTENTION_FLOPS_FRAC if stack and stack.attention else 1.0
    matrices = Waits(*(part / n_steps for part in (summed.seconds, summed.bandwidth, summed.compute, summed.latency)))
    linear_s = trace.note(
        "linear_s", matrices.seconds, "s", "mean over steps t of the products over B * s tokens, s = I + t", _WHERE,
        n_sequences=n_sequences, first_tokens=work.input_tokens + 1, last_tokens=work.final_tokens,
        active_parameters=float(plan.model.active_parameters),
        peak_flops_per_s=steps_products.product_peak(device, work), mean_compute_s=matrices.compute,
        mean_read_s=matrices.bandwidth,
    )  # fmt: skip
    attention_s = trace.note(
        "attention_s", attention.time_at_rate(flops / n_steps, frac * peak), "s",
        "mean over steps t of causal attention over s = I + t tokens: FLOP / (flops_frac * F)", _WHERE,
        flops=flops / n_steps, flops_frac=frac, peak_flops_per_s=peak,
    )  # fmt: skip
    for name in ("quantize_s", "dequantize_s", "quantize_busy_s", "dequantize_busy_s", "prefill_s"):
        why = "no step of its own: every step runs the prompt" if name == "prefill_s" else "nothing is stored"
        trace.note(name, 0.0, "s", why, _WHERE)
    decode_step_s = trace.call(
        "decode_step_s", throughput.decode_step_s, linear_s=linear_s, attention_s=attention_s, quantize_s=0.0,
        dequantize_s=0.0,
    )  # fmt: skip
    wave_s = trace.call("wave_s", throughput.wave_s, output_tokens=n_steps, decode_step_s=decode_step_s, prefill_s=0.0)
    return StepTimes(
        linear_s, attention_s, 0.0, 0.0, decode_step_s, 0.0, wave_s, 0.0, 0.0, matrices,
        Waits(attention_s, 0.0, attention_s), {},
        Amounts(0.0, flops / n_steps, 0.0, 0.0, 0.0, 0.0, 0.0, touched),
    )  # fmt: skip
