"""Bytes, operations, time and energy of each operation of a decode step and of the prompts."""

from collections.abc import Sequence
from typing import NamedTuple

from dse.core.compiling import compilable, making
from dse.model.energy import joules_per_kv_byte, joules_per_weight_byte, watts_at_peak
from dse.model.formulas import attention, linear, weights
from dse.model.records import Design
from dse.model.step import Run, Terms, experts_s, n_prompts_of, product_peak, prompt_tokens_of, share_touched

#: what an operation is: a product with weights counts by its place in `Design.products`; POWER is what the board's
#: limit adds to the others
ATTENTION, QUANTIZATION, COLLECTIVES, HOST, POWER = 100, 101, 102, 103, 104
DECODE, PREFILL = 0, 1


class OperationCost(NamedTuple):
    """One operation of a mean decode step, or of all prompts of a running batch.

    `compute_at_peak_s` and `read_at_peak_s` are what its FLOP and its bytes take at the peak rates.
    """

    phase: int
    kind: int
    seconds: float
    flops: float
    n_bytes: float
    compute_at_peak_s: float
    read_at_peak_s: float


@compilable
def _attended(design: Design, phase: int, seconds: float, flops: float, n_bytes: float) -> OperationCost:
    device = design.device
    peak = device.peak_flops * device.peak_flops_unit
    return OperationCost(
        phase=phase,
        kind=ATTENTION,
        seconds=seconds,
        flops=flops,
        n_bytes=n_bytes,
        compute_at_peak_s=attention.time_at_rate(flops, peak),
        read_at_peak_s=attention.time_at_rate(n_bytes, device.bandwidth_bytes_per_s),
    )


class PassTokens(NamedTuple):
    """Tokens that the products of a pass multiply."""

    #: all of them, and those that the output head multiplies: all in a decode step, the last of each prompt
    n_all: float
    n_last: float
    #: share of the experts that they touch
    touched: float
    #: how much the cores that are busy fall short of all cores' peak
    slower: float


@compilable
def _product(design: Design, terms: Terms, phase: int, place: int, tokens: PassTokens) -> OperationCost:
    """The product with the weights at a place."""
    peak, bandwidth, part = terms.product_peak_per_s, design.device.bandwidth_bytes_per_s, design.products[place]
    n_tokens, touched = tokens.n_last if part.is_last_only else tokens.n_all, tokens.touched
    n_bytes = weights.weight_read_bytes(
        part.dense, part.kept, part.experts, touched, design.load.dense_eighths, design.load.expert_eighths
    )
    compute_s = linear.linear_compute_s(n_tokens, part.active, peak)
    flops = compute_s * peak
    read_s = attention.time_at_rate(n_bytes, bandwidth)
    if terms.has_gemm and design.stack.has_experts and part.experts > 0:
        dense_bytes = weights.weight_read_bytes(part.dense, part.kept, 0, touched, design.load.dense_eighths, 0)
        dense_s = attention.time_at_rate(dense_bytes, bandwidth)
        experts = design.model.active_expert_parameters
        compute_s = linear.linear_compute_s(n_tokens, part.active - experts, peak)
        seconds = experts_s(design, n_tokens, touched) + linear.linear_calibrated_s(
            part.n_products,
            terms.gemm_launch_s,
            compute_s / terms.gemm_flops_frac,
            dense_s / design.stack.gemm_memory_frac,
        )
        compute_s += linear.linear_compute_s(n_tokens, experts, design.stack.expert_peak_per_s)
    elif terms.has_gemm:
        seconds = linear.linear_calibrated_s(
            part.n_products,
            terms.gemm_launch_s,
            compute_s / terms.gemm_flops_frac,
            read_s / design.stack.gemm_memory_frac,
        )
    else:
        seconds = max(compute_s / terms.gemm_flops_frac * tokens.slower, read_s / design.stack.gemm_memory_frac)
    return OperationCost(
        phase=phase,
        kind=place,
        seconds=seconds,
        flops=flops,
        n_bytes=n_bytes,
        compute_at_peak_s=compute_s,
        read_at_peak_s=read_s,
    )


@making
def _products(
    design: Design, terms: Terms, tokens: PassTokens, attended: OperationCost, total_s: float
) -> list[OperationCost]:
    """Products with the weights, and attention after the first: QKV, attention, output, ...

    All products take `total_s`, which overlaps reading with arithmetic over all of them: where some weights stay in 16
    bits, the head multiplies fewer tokens, or times are those of one's own server, each has its share of it.
    """
    scale, phase = 1.0, attended.phase
    is_plain = design.model.kept_parameters == 0 and terms.token_time == 1.0
    if not is_plain or (tokens.n_last < tokens.n_all and design.model.head_parameters > 0):
        own_s = 0.0
        for i in range(len(design.products)):
            own_s += _product(design, terms, phase, i, tokens).seconds
        scale = total_s / own_s if own_s > 0 else 1.0
    operations: list[OperationCost] = []
    for i in range(len(design.products)):
        cost = _product(design, terms, phase, i, tokens)
        operations.append(
            OperationCost(
                phase=phase,
                kind=i,
                seconds=cost.seconds * scale,
                flops=cost.flops,
                n_bytes=cost.n_bytes,
                compute_at_peak_s=cost.compute_at_peak_s,
                read_at_peak_s=cost.read_at_peak_s,
            )
        )
        if i == 0:
            operations.append(attended)
    return operations


@making
def _add_timed(operations: list[OperationCost], phase: int, kind: int, seconds: float) -> None:
    """Add an operation of which nothing but its time counts, if it takes any."""
    if seconds != 0:
        operations.append(
            OperationCost(
                phase=phase,
                kind=kind,
                seconds=seconds,
                flops=0.0,
                n_bytes=0.0,
                compute_at_peak_s=0.0,
                read_at_peak_s=0.0,
            )
        )


@making
def decode_operations(design: Design, terms: Terms, run: Run) -> list[OperationCost]:
    """The mean decode step of a run: products, attention, packing and unpacking."""
    slower, wave = 1.0, run.wave
    if design.load.has_cache:
        slower = terms.product_peak_per_s / product_peak(design, run.n)
    attended = _attended(design, DECODE, wave.attention_s, run.attention_flops, run.attention_bytes)
    tokens = PassTokens(run.product_tokens, run.product_tokens, run.share_touched, slower)
    operations = _products(design, terms, tokens, attended, wave.linear_s)
    packing_s, moved = wave.quantize_s + wave.dequantize_s, run.packing_bytes
    if packing_s != 0 or moved != 0:
        at_peak_s = attention.time_at_rate(moved, design.device.bandwidth_bytes_per_s)
        operations.append(
            OperationCost(
                phase=DECODE,
                kind=QUANTIZATION,
                seconds=packing_s,
                flops=0.0,
                n_bytes=moved,
                compute_at_peak_s=0.0,
                read_at_peak_s=at_peak_s,
            )
        )
    _add_timed(operations, DECODE, COLLECTIVES, wave.collective_s)
    _add_timed(operations, DECODE, HOST, wave.host_s)
    _add_timed(operations, DECODE, POWER, wave.power_s)
    return operations


@making
def prompt_operations(design: Design, terms: Terms, run: Run) -> list[OperationCost]:
    """The prompts of a run; none without a KV cache. Their attention counts no bytes, as its time does not."""
    prompt, wave, n = terms.prompt, run.wave, run.n
    if design.load.has_cache == 0:
        return [_attended(design, PREFILL, 0.0, 0.0, 0.0)][:0]  # numba cannot tell the type of []
    n_all = float(prompt_tokens_of(design, terms, n))
    flops = prompt.prefix_flops + n_prompts_of(design, n) * prompt.own_flops
    attended = _attended(design, PREFILL, wave.prompt_compute_s - wave.prompt_matrix_s, flops, 0.0)
    tokens = PassTokens(n_all, float(n), share_touched(design, int(n_all)), 1.0)
    operations = _products(design, terms, tokens, attended, wave.prompt_matrix_s)
    _add_timed(operations, PREFILL, QUANTIZATION, wave.prompt_quantize_s)
    _add_timed(operations, PREFILL, COLLECTIVES, wave.prompt_collective_s)
    _add_timed(operations, PREFILL, HOST, terms.host_s)
    _add_timed(operations, PREFILL, POWER, wave.prompt_power_s)
    return operations


@making
def joules_of(design: Design, terms: Terms, operations: Sequence[OperationCost]) -> tuple[float, float]:
    """J of reads and writes, and J of operations, of all operations of a phase."""
    peak = terms.product_peak_per_s
    if design.stack.has_experts:
        peak = design.stack.expert_peak_per_s
    of_product, of_attention = watts_at_peak(design, peak), watts_at_peak(design, terms.peak_flops_per_s)
    of_weight, of_kv = joules_per_weight_byte(design), joules_per_kv_byte(design)
    moved = calculated = 0.0
    for operation in operations:
        if operation.kind < ATTENTION:
            moved += operation.n_bytes * of_weight
            calculated += operation.compute_at_peak_s * of_product
        else:
            moved += operation.n_bytes * (of_kv if operation.kind < QUANTIZATION else design.device.energy_per_byte)
            calculated += operation.compute_at_peak_s * of_attention
    return moved, calculated


@making
def total_of(operations: Sequence[OperationCost], phase: int, seconds: float) -> OperationCost:
    """All operations of a phase as one that takes `seconds`, added from left to right."""
    flops = n_bytes = compute_s = read_s = 0.0
    for operation in operations:
        flops, n_bytes = flops + operation.flops, n_bytes + operation.n_bytes
        compute_s, read_s = compute_s + operation.compute_at_peak_s, read_s + operation.read_at_peak_s
    return OperationCost(
        phase=phase,
        kind=-1,
        seconds=seconds,
        flops=flops,
        n_bytes=n_bytes,
        compute_at_peak_s=compute_s,
        read_at_peak_s=read_s,
    )
