"""What each operation of a decode step and of the prompt moves, calculates and takes: shares of the peak rates used."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from typing import Any, Literal

from dse import kv_sums, steps, steps_no_cache, steps_products
from dse.formulas import attention, linear, utilisation, weights
from dse.plan import KvPlan
from dse.specs import HardwareSpec, ModelSpec, StackSpec
from dse.steps import StepTimes
from dse.trace import Trace
from dse.workload import Workload

Phase = Literal["decode", "prefill"]


@dataclass(frozen=True)
class Operation:
    """One operation of a phase: a mean decode step, or the whole prompt of a running batch.

    `compute_at_peak_s` and `read_at_peak_s` are what its FLOP and its bytes take at the peak rates.
    """

    phase: Phase
    name: str
    seconds: float
    flops: float
    n_bytes: float
    compute_at_peak_s: float
    read_at_peak_s: float

    @property
    def compute_utilisation(self) -> float:
        """Share of the peak FLOP/s (of the 8-bit peak where it runs at that) used while it runs; 0 if it takes none."""
        return float(utilisation.utilisation(self.compute_at_peak_s, self.seconds)) if self.seconds else 0.0

    @property
    def bandwidth_utilisation(self) -> float:
        """Share of the peak memory bandwidth used while it runs."""
        return float(utilisation.utilisation(self.read_at_peak_s, self.seconds)) if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Fields and both shares, for JSON and tables."""
        shares = {
            "compute_utilisation": self.compute_utilisation, "bandwidth_utilisation": self.bandwidth_utilisation,
        }  # fmt: skip
        return {**asdict(self), **shares}


def total(operations: list[Operation], phase: Phase, seconds: float) -> Operation:
    """All operations of a phase as one that takes `seconds`."""
    own = [op for op in operations if op.phase == phase]
    return Operation(
        phase, "all", seconds, added(op.flops for op in own), added(op.n_bytes for op in own),
        added(op.compute_at_peak_s for op in own), added(op.read_at_peak_s for op in own),
    )  # fmt: skip


def added(values: Iterable[float]) -> float:
    """The sum from left to right, as the kernel of sweeps adds: from Python 3.12 on `sum` rounds floats otherwise."""
    return reduce(add, values, 0.0)


@dataclass(frozen=True)
class _Matrices:
    """Products with some of the weights: parameters outside and of the experts, and kernels that a pass starts."""

    name: str
    dense: int
    experts: int
    n_products: int


def products(model: ModelSpec) -> list[_Matrices]:
    """The weights by operation. What is neither QKV, output projection nor head counts with the feed-forward: norms,
    and the table of input embeddings, which the model takes to be read and multiplied like the others.

    Latent attention (MLA) has projections of other shapes: there all layers are one operation.
    """
    n_layers = sum(layer.n_layers for layer in model.layers)
    head = _Matrices("head", model.vocab_size * model.hidden_size, 0, 1)
    rest = model.dense_parameters - head.dense
    if rest < 0:
        return [_Matrices("layers", model.dense_parameters, model.expert_parameters, head.n_products + 4 * n_layers)]
    whole = [_Matrices("layers", rest, model.expert_parameters, linear.matrix_products(n_layers) - 1), head]
    if any(layer.value_dim == 0 for layer in model.layers):
        return whole
    q_heads, hidden = model.n_q_heads, model.hidden_size
    qkv = sum(
        layer.n_layers * hidden * (q_heads * layer.key_dim + layer.n_kv_heads * (layer.key_dim + layer.value_dim))
        for layer in model.layers
    )
    out = sum(layer.n_layers * hidden * q_heads * layer.value_dim for layer in model.layers)
    if rest < qkv + out:
        return whole
    return [
        _Matrices("qkv", qkv, 0, n_layers), _Matrices("output_projection", out, 0, n_layers),
        _Matrices("feed_forward", rest - qkv - out, model.expert_parameters, 2 * n_layers), head,
    ]  # fmt: skip


def _products(
    device: HardwareSpec, plan: KvPlan, work: Workload, n_tokens: float, stack: StackSpec | None, phase: Phase,
    running_device: HardwareSpec, touched: float | None = None,
) -> Iterator[Operation]:  # fmt: skip
    """Products with the weights over `n_tokens` tokens by operation, as `dse.steps_products.matrix` times them all.

    `running_device` has the arithmetic of the cores that are busy; shares are of all cores' peak. `touched` is the
    share of the experts that is read; default: that of `n_tokens`.
    """
    model = plan.model
    peak, bandwidth = steps_products.product_peak(device, work), device.memory_bandwidth.si
    slower = peak / steps_products.product_peak(running_device, work)
    if touched is None:
        touched = weights.expert_share_touched(int(n_tokens), model.n_experts, model.n_active_experts)
    for part in products(model):
        active = part.dense + part.experts * model.n_active_experts / model.n_experts
        n_bytes = weights.weight_read_bytes(part.dense, part.experts, touched, work.weights_bits)
        compute_s = linear.linear_compute_s(n_tokens, active, peak)
        read_s = attention.time_at_rate(n_bytes, bandwidth)
        if stack and stack.gemm:
            fit = stack.gemm_terms()
            seconds = linear.linear_calibrated_s(
                part.n_products, fit["launch_s"], compute_s / fit["flops_frac"], read_s / fit["memory_frac"]
            )
        else:
            seconds = max(compute_s * slower, read_s)
        yield Operation(phase, part.name, seconds, compute_s * peak, n_bytes, compute_s, read_s)


def operations(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    n_sequences: int,
    times: StepTimes,
    stack: StackSpec | None,
) -> list[Operation]:
    """Every operation of the mean decode step of `n_sequences`, then of their prompts.

    Decode: QKV, attention, output projection, feed-forward, head, packing and unpacking. Prefill: the same over the
    prompt; its attention counts no bytes, as its time does not. Without a KV cache a step is a prompt of the mean
    length, and there is no prefill.
    """
    amounts, peak, bandwidth = times.amounts, device.peak_flops.si, device.memory_bandwidth.si
    mean_tokens = work.input_tokens + (work.output_tokens + 1) / 2
    n_tokens = float(n_sequences) if work.kv_cache else n_sequences * mean_tokens

    running = kv_sums.in_generation(device, n_sequences) if work.kv_cache else device

    def attended(phase: Phase, seconds: float, flops: float, n_bytes: float) -> Operation:
        at_peak = attention.time_at_rate(flops, peak), attention.time_at_rate(n_bytes, bandwidth)
        return Operation(phase, "attention", seconds, flops, n_bytes, *at_peak)

    found = _in_order(
        list(_products(device, plan, work, n_tokens, stack, "decode", running, amounts.mean_share_touched)),
        attended("decode", times.attention_s, amounts.attention_flops, amounts.attention_bytes),
    )
    packing_s = times.quantize_s + times.dequantize_s
    if packing_s or amounts.packing_bytes:
        moved = amounts.packing_bytes
        found.append(
            Operation("decode", "quantization", packing_s, 0.0, moved, 0.0, attention.time_at_rate(moved, bandwidth))
        )
    if amounts.prefill_tokens:
        found += _in_order(
            list(_products(device, plan, work, amounts.prefill_tokens, stack, "prefill", device)),
            attended("prefill", amounts.prefill_attention_s, amounts.prefill_attention_flops, 0.0),
        )
        if amounts.prefill_quantize_s:
            found.append(Operation("prefill", "quantization", amounts.prefill_quantize_s, 0.0, 0.0, 0.0, 0.0))
    return found


def _in_order(parts: list[Operation], attended: Operation) -> list[Operation]:
    """Attention after the first product: QKV, attention, output projection, ..."""
    return [parts[0], attended, *parts[1:]]


def of(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    n_sequences: int,
    paths: dict[str, str],
    prefix_tokens: int,
    stack: StackSpec | None,
) -> list[Operation]:
    """The operations of `n_sequences` running together, and of each phase the sum of its operations as "all"."""
    if work.kv_cache:
        times = steps.evaluate(device, plan, work, n_sequences, paths, prefix_tokens, Trace(), stack)
    else:
        times = steps_no_cache.evaluate(device, plan, work, n_sequences, Trace(), stack)
    found = operations(device, plan, work, n_sequences, times, stack)
    ends = [total(found, "decode", times.decode_step_s), total(found, "prefill", times.prefill_s)]
    return [op for end in ends for op in (*(each for each in found if each.phase == end.phase), end) if end.seconds]
