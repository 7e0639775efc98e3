"""Times of one running batch: the mean decode step, its parts, and its prompts.

`terms_of` gathers what no batch changes; `wave_of` then needs a few dozen operations for a number of sequences, so
that a sweep over batches compiles to vectors.
"""

from typing import NamedTuple

from dse.core.compiling import compilable, inlined, making
from dse.model.attention import (
    NO_SUMS,
    KnownSums,
    Sums,
    busy_share,
    known_sums,
    peak_flops,
    quantising,
    reached_bandwidth,
    same_from,
    sums_of,
)
from dse.model.energy import added_s, joules_per_kv_byte, joules_per_weight_byte, watts_at_peak
from dse.model.formulas import (
    attention,
    collectives,
    dequantize,
    generation,
    host,
    kv_cache,
    linear,
    prefill,
    throughput,
    weights,
)
from dse.model.generation import Generation
from dse.model.kv_bytes import causal_flops
from dse.model.records import Design, Exchange, LanguageModel


class PromptTerms(NamedTuple):
    """The prompts of a running batch, whose common prefix of `prefix_tokens` is computed once."""

    prefix_tokens: int
    #: operations of attention: of the prefix, and of the rest of each prompt
    prefix_flops: float
    own_flops: float
    #: seconds to quantise them, by path
    prefix_engine_s: float
    prefix_fused_s: float
    prefix_materialised_s: float
    own_engine_s: float
    own_fused_s: float
    own_materialised_s: float
    launch_s: float


class Terms(NamedTuple):
    """Terms of the times of a design, shared by all batches."""

    has_gemm: int
    has_experts: int
    #: anything is quantised: packed, moved or launched for it
    quantises: int
    #: number of sequences from which on the sums over the steps of one are the same
    same_from: int
    input_tokens: int
    output_tokens: int
    active_parameters: float
    #: of these, those that a prompt meets for its last token alone
    head_parameters: float
    #: all weights read at once, where no experts choose
    weight_read_s: float
    n_products: int
    gemm_launch_s: float
    gemm_flops_frac: float
    attention_flops_frac: float
    prompt_flops_frac: float
    #: seconds of a step beside its kernels: whatever runs, and for each sequence
    host_s: float
    host_sequence_s: float
    #: peak rates of a prompt, which keeps all cores busy
    peak_flops_per_s: float
    product_peak_per_s: float
    bandwidth_bytes_per_s: float
    reached_bytes_per_s: float
    #: bytes of one sequence over all steps
    score_bytes: float
    choice_bytes: float
    #: bits that the memory takes to write a token of one sequence, and the unit of a byte
    burst_bits: float
    per_byte: float
    buffer_s: float
    #: operations of attention of one sequence in a step, where no cache is kept
    uncached_flops: float
    #: seconds a step that all sequences share
    read_launch_s: float
    copy_launch_s: float
    pack_launch_s: float
    #: W that bound the power of times at peak rates, 0: none; W of idling, of reading weights, of products, of reading
    #: keys and values, and of attention
    limit_w: float
    idle_w: float
    weight_w: float
    product_w: float
    kv_w: float
    attention_w: float
    #: seconds over the link to host memory for each that attention reads
    host_link_per_read: float
    #: on times per token, as a server of one's own was measured
    token_time: float
    prompt: PromptTerms


class Wave(NamedTuple):
    """Times of sequences that run together: means of a decode step, and `prompt_*` of their prompts."""

    linear_compute_s: float
    linear_s: float
    attention_s: float
    quantize_s: float
    dequantize_s: float
    #: devices exchange their results, and wait for keys and values from host memory
    collective_s: float
    #: small kernels, and the host of the server
    host_s: float
    #: the board's limit adds, where its energy was measured
    power_s: float
    decode_step_s: float
    prompt_products_s: float
    prompt_matrix_s: float
    prompt_compute_s: float
    prompt_quantize_s: float
    prompt_collective_s: float
    prompt_power_s: float
    prefill_s: float
    wave_s: float


@inlined
def product_peak(design: Design, n_sequences: int) -> float:
    """Peak rate of the products with the weights: of 8-bit operations where activations have 8 bits."""
    device, named = design.device, design.stack.dense_peak_per_s
    share = busy_share(design, n_sequences, n_sequences)
    if design.load.activation_bits > 8 and named == 0:
        return device.peak_flops * share * device.peak_flops_unit
    if named > 0:
        return share * named
    return max(
        device.peak_flops_fp8 * share * device.peak_flops_fp8_unit,
        device.peak_ops_int8 * share * device.peak_ops_int8_unit,
    )


@inlined
def n_prompts_of(design: Design, n: int) -> int:
    """Prompts of `n` sequences: one each, or one for so many answers."""
    return kv_cache.n_prompts(n, design.load.samples)


@making
def prompt_terms(
    design: Design, made: Generation, prefix_tokens: int, prefix_flops: int, launch_s: float
) -> PromptTerms:
    """The terms of prompts that share `prefix_tokens` of theirs."""
    reached = reached_bandwidth(design)
    if prefix_tokens:
        once = quantising(design, reached, [amounts.in_prefix for amounts in made.quantised])
        per_prompt = quantising(design, reached, [amounts.in_prompt for amounts in made.quantised])
    else:
        once = quantising(design, reached, [0.0 for _ in made.quantised])
        per_prompt = quantising(design, reached, [amounts.in_prefix + amounts.in_prompt for amounts in made.quantised])
    return PromptTerms(
        prefix_tokens=prefix_tokens,
        prefix_flops=float(prefix_flops),
        own_flops=float(made.prompt_flops - prefix_flops),
        prefix_engine_s=once.engine_s,
        prefix_fused_s=once.fused_s,
        prefix_materialised_s=once.materialised_s,
        own_engine_s=per_prompt.engine_s,
        own_fused_s=per_prompt.fused_s,
        own_materialised_s=per_prompt.materialised_s,
        launch_s=launch_s,
    )


@inlined
def kept_read_parameters(model: LanguageModel) -> int:
    """Parameters in 16 bits that a step reads though those of the layers have fewer."""
    return max(model.kept_parameters - model.unread_parameters, 0)


@inlined
def weight_read_s(design: Design, share_touched: float) -> float:
    """Seconds to read the weights of a pass that touches such a share of the experts."""
    model, stack, load = design.model, design.stack, design.load
    experts = 0 if stack.has_experts else model.expert_parameters
    n_bytes = weights.weight_read_bytes(
        model.dense_parameters - model.unread_parameters,
        kept_read_parameters(model),
        experts,
        share_touched,
        load.dense_eighths,
        load.expert_eighths,
    )
    read_s = attention.time_at_rate(n_bytes, design.device.bandwidth_bytes_per_s)
    return read_s / stack.gemm_memory_frac


class ExpertTimes(NamedTuple):
    """Read, compute and launch times of the routed experts of all layers in a pass; 0 where not measured apart."""

    read_s: float
    compute_s: float
    launch_s: float


@inlined
def experts_of(design: Design, n_tokens: float, touched: float) -> ExpertTimes:
    """Compute the expert times over `n_tokens` tokens, which read the share `touched` of them."""
    model, stack = design.model, design.stack
    if stack.has_experts == 0:
        return ExpertTimes(0.0, 0.0, 0.0)
    n_bytes = weights.weight_read_bytes(0, 0, model.expert_parameters, touched, 0, design.load.expert_eighths)
    read_s = attention.time_at_rate(n_bytes, design.device.bandwidth_bytes_per_s) / stack.expert_memory_frac
    compute_s = linear.linear_compute_s(n_tokens, model.active_expert_parameters, stack.expert_peak_per_s)
    return ExpertTimes(read_s, compute_s / stack.expert_flops_frac, model.n_layers * stack.expert_launch_s)


@inlined
def experts_s(design: Design, n_tokens: float, touched: float) -> float:
    """Seconds of the routed experts of all layers over `n_tokens` tokens, where their products were measured: 0 else.

    `touched` is the share of the experts that those tokens read.
    """
    if design.stack.has_experts == 0:
        return 0.0
    experts = experts_of(design, n_tokens, touched)
    return linear.linear_calibrated_s(
        design.model.n_layers, design.stack.expert_launch_s, experts.compute_s, experts.read_s
    )


@compilable
def prompt_host_s(design: Design) -> float:
    """Seconds that a server adds to a pass, however many sequences are in it."""
    return host.host_s(0, design.model.n_layers, design.stack.host_layer_s, 0.0)


@compilable
def sequence_host_s(design: Design) -> float:
    """Seconds that a server adds to a pass for each sequence of a device: one process hands on tokens of all groups."""
    return design.deployment.n_groups * design.stack.host_sequence_s


@inlined
def share_touched(design: Design, n_tokens: int) -> float:
    """Share of its experts that a pass over `n_tokens` tokens reads on the device that waits longest; all of a dense
    model."""
    if design.model.expert_parameters == 0:
        return 1.0
    split = design.deployment
    share = weights.expert_share_touched(
        n_tokens * split.n_groups, design.model.n_experts, design.model.n_active_experts
    )
    return weights.fullest_share(share, split.experts_each, split.fullest)


@compilable
def terms_of(design: Design, made: Generation) -> Terms:
    """Compute the terms that all batches of a design share; `made` is its `Generation`."""
    model, stack, device, n_steps = design.model, design.stack, design.device, design.output_tokens
    launch_s, reached = device.kernel_launch_s, reached_bandwidth(design)
    buffer_s = attention.time_at_rate(made.buffer_bytes, reached) if launch_s else 0.0
    read_launch_s = dequantize.launch_s(made.read_starts / n_steps, launch_s)
    pack_launch_s = dequantize.launch_s(made.pack_starts / n_steps, launch_s)
    copy_launch_s = dequantize.launch_s(made.copy_starts / n_steps, stack.copy_launch_s)
    prompt_launch_s = dequantize.launch_s(made.prompt_starts, launch_s)
    if launch_s:  # a chip that starts no kernels works on sinks in its stream
        pack_launch_s += made.sink_s / n_steps
        prompt_launch_s += made.prompt_sink_s
    uncached_flops, quantises = 0.0, 0
    if design.load.has_cache == 0:
        first = design.input_tokens + 1
        uncached_flops = float(causal_flops(design.layers, first, first + n_steps - 1))
    for g in design.tensors:
        if g.is_packed:
            quantises = 1
    peak, wide = (
        product_peak(design, max(device.token_cores, device.array_rows, 1)),
        device.peak_flops * device.peak_flops_unit,
    )
    # measured times were measured within the limit
    limit_w = 0.0 if stack.has_gemm or stack.has_attention or stack.at_peak else device.power_limit_w
    if model.burst_bits or made.buffer_bytes or made.score_bytes:
        quantises = 1
    has_experts = 1 if model.expert_parameters else 0  # not in the call: numba cannot branch inside a long one
    fetched = design.load.offloaded_permille / 1000.0
    if fetched > 0.0:
        fetched *= reached * (device.kv_bandwidth_bytes_per_s / device.bandwidth_bytes_per_s) / device.host_bytes_per_s
    prefix_tokens, prefix_flops = made.prefix_tokens, made.prefix_flops
    if design.load.samples > 1:  # answers of one prompt share all of it, computed once for all of them
        prefix_tokens = prefix_flops = 0
    return Terms(
        has_gemm=stack.has_gemm,
        has_experts=has_experts,
        quantises=quantises,
        same_from=same_from(design, made.limits),
        input_tokens=design.input_tokens,
        output_tokens=n_steps,
        active_parameters=model.active_parameters
        - model.unread_parameters
        - stack.has_experts * model.active_expert_parameters,
        head_parameters=model.head_parameters,
        weight_read_s=weight_read_s(design, 1.0),
        n_products=model.n_products,
        gemm_launch_s=stack.gemm_launch_s,
        gemm_flops_frac=stack.gemm_flops_frac,
        attention_flops_frac=stack.flops_frac,
        prompt_flops_frac=stack.prompt_flops_frac,
        host_s=prompt_host_s(design),
        host_sequence_s=sequence_host_s(design),
        peak_flops_per_s=wide,
        product_peak_per_s=peak,
        bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
        reached_bytes_per_s=reached,
        score_bytes=made.score_bytes,
        choice_bytes=made.choice_bytes,
        burst_bits=float(model.burst_bits),
        per_byte=float(8 * model.den),
        buffer_s=buffer_s,
        uncached_flops=uncached_flops,
        read_launch_s=read_launch_s,
        copy_launch_s=copy_launch_s,
        pack_launch_s=pack_launch_s,
        limit_w=limit_w,
        idle_w=device.idle_power_w,
        weight_w=joules_per_weight_byte(design) * device.bandwidth_bytes_per_s * stack.gemm_memory_frac,
        product_w=watts_at_peak(design, peak),
        kv_w=joules_per_kv_byte(design) * reached,
        attention_w=watts_at_peak(design, wide),
        host_link_per_read=fetched,
        token_time=stack.token_time,
        prompt=prompt_terms(design, made, prefix_tokens, prefix_flops, prompt_launch_s),
    )


@inlined
def exchange_s(n_tokens: float, exchange: Exchange) -> float:
    """Seconds of equal collectives in one pass of all layers over `n_tokens` tokens."""
    return exchange.n_per_pass * collectives.collective_s(
        n_tokens * exchange.token_bytes,
        exchange.start_s,
        exchange.bytes_per_s,
        exchange.chunk_share,
        exchange.direct_start_s,
        exchange.direct_bytes_per_s,
        exchange.split_bytes_per_s,
    )


@inlined
def exchanges_s(design: Design, n_tokens: float, is_prompt: int) -> float:
    """Seconds that the devices exchange results in one pass of all layers over `n_tokens` tokens."""
    total = 0.0
    for exchange in design.exchanges:
        if exchange.in_prompt or not is_prompt:
            total += exchange_s(float(n_tokens), exchange)
    return total


@inlined
def products_s(n_tokens: float, n_last: float, read_s: float, peak: float, terms: Terms) -> tuple[float, float]:
    """Seconds of all products with the weights over `n_tokens` tokens, and what their multiplications take.

    The output head multiplies `n_last` of them: all in a decode step, the last of each prompt.
    """
    compute_s = linear.linear_compute_s(n_tokens, terms.active_parameters, peak)
    if n_last < n_tokens:
        compute_s -= linear.linear_compute_s(n_tokens - n_last, terms.head_parameters, peak)
    compute_s = compute_s / terms.gemm_flops_frac
    if terms.has_gemm:
        return linear.linear_calibrated_s(terms.n_products, terms.gemm_launch_s, compute_s, read_s), compute_s
    return max(compute_s, read_s), compute_s


@inlined
def prompt_quantize_s(n: float, n_prefixes: int, compute_s: float, prompt: PromptTerms) -> float:
    """Seconds to quantize the prompts of `n` sequences, whose products and attention take `compute_s`."""
    fused_s = n_prefixes * prompt.prefix_fused_s + n * prompt.own_fused_s
    materialised_s = n_prefixes * prompt.prefix_materialised_s + n * prompt.own_materialised_s
    engine_s = n_prefixes * prompt.prefix_engine_s + n * prompt.own_engine_s
    return fused_s + materialised_s + dequantize.exposed_s(engine_s, compute_s) + prompt.launch_s


@inlined
def prompt_s(
    n: float, n_prefixes: int, prompt_read_s: float, prompt_experts_s: float, terms: Terms, prompt: PromptTerms
) -> tuple[float, float, float, float]:
    """Seconds of the prompts of `n` sequences: (their products at the peak, all products, with attention, quantising).

    `n_prefixes` is 0 where the common prefix is cached already.
    """
    n_tokens = n_prefixes * prompt.prefix_tokens + n * (terms.input_tokens - prompt.prefix_tokens)
    dense_s, products = products_s(n_tokens, n, prompt_read_s, terms.product_peak_per_s, terms)
    matrix_s = dense_s + prompt_experts_s
    flops = n_prefixes * prompt.prefix_flops + n * prompt.own_flops
    compute_s = prefill.prefill_compute_s(matrix_s, flops, terms.prompt_flops_frac, terms.peak_flops_per_s)
    quantize_s = 0.0
    if terms.quantises:
        quantize_s = prompt_quantize_s(n, n_prefixes, compute_s, prompt)
    return products, matrix_s, compute_s, quantize_s


@inlined
def prompt_power_s(
    read_s: float, products: float, matrix_s: float, compute_s: float, other_s: float, terms: Terms
) -> float:
    """Seconds that the board's limit adds to prompts, whose products take `products` and attention the rest of
    `compute_s`; `other_s` is what they take beside."""
    joules = read_s * terms.weight_w + products * terms.gemm_flops_frac * terms.product_w
    joules += (compute_s - matrix_s) * terms.prompt_flops_frac * terms.attention_w
    return added_s(compute_s + other_s, joules, terms.limit_w, terms.idle_w)


class PassTimes(NamedTuple):
    """Times of a wave, in a step and over its `n_prompts` prompts, that are no sums over its sequences."""

    n_prompts: float
    #: weights read, but for experts whose products were measured apart; and those
    read_s: float
    prompt_read_s: float
    experts_s: float
    prompt_experts_s: float
    #: results exchanged between devices
    exchange_s: float
    prompt_exchange_s: float


@inlined
def step_packing_s(n: float, sums: Sums, terms: Terms) -> tuple[float, float]:
    """Seconds that a decode step of `n` sequences takes to quantize and to dequantize; `sums` of one of them."""
    n_steps = terms.output_tokens
    scale = n / n_steps
    write_s = n * terms.burst_bits / terms.per_byte / terms.bandwidth_bytes_per_s
    quantize_s = (
        n * sums.quantize_s / n_steps
        + n * terms.buffer_s / n_steps
        + write_s
        + scale * terms.choice_bytes / terms.reached_bytes_per_s
        + terms.pack_launch_s
    )
    dequantize_s = (
        n * sums.unpack_s / n_steps
        + scale * terms.score_bytes / terms.reached_bytes_per_s
        + terms.read_launch_s
        + terms.copy_launch_s
    )
    return quantize_s, dequantize_s


@inlined
def host_wait_s(step_s: float, n: float, sums: Sums, terms: Terms) -> float:
    """Seconds that a step of `n` sequences, which else takes `step_s`, waits for keys and values from host memory: they
    are fetched layer by layer beside it (FlexGen 3.2)."""
    return max(n * sums.read_s / terms.output_tokens * terms.host_link_per_read - step_s, 0.0)


@inlined
def wave_of(n: float, times: PassTimes, sums: Sums, peak: float, terms: Terms) -> Wave:
    """Times of `n` sequences that run together; `sums` of one of them, `peak` that of the products in a step.

    `times` are those that depend on how many experts they touch, and on what is exchanged.
    """
    n_steps = terms.output_tokens
    dense_s, compute_s = products_s(n, n, times.read_s, peak, terms)
    linear_s = dense_s + times.experts_s
    attention_s = (sums.fixed_s + n * sums.attention_s) / n_steps
    quantize_s = dequantize_s = 0.0
    if terms.quantises:
        quantize_s, dequantize_s = step_packing_s(n, sums, terms)
    host_s = terms.host_s + n * terms.host_sequence_s
    working_s = linear_s + attention_s + quantize_s + dequantize_s + times.exchange_s + host_s
    joules = times.read_s * terms.weight_w + compute_s * terms.gemm_flops_frac * terms.product_w
    joules += n / n_steps * (sums.read_s * terms.kv_w + sums.compute_s * terms.attention_flops_frac * terms.attention_w)
    power_s = added_s(working_s, joules, terms.limit_w, terms.idle_w)
    exchange_s = times.exchange_s + host_wait_s(working_s + power_s, n, sums, terms)
    linear_s, attention_s, host_s = (
        linear_s * terms.token_time,
        attention_s * terms.token_time,
        host_s * terms.token_time,
    )
    quantize_s, dequantize_s = quantize_s * terms.token_time, dequantize_s * terms.token_time
    exchange_s, power_s = exchange_s * terms.token_time, power_s * terms.token_time
    decode_step_s = throughput.decode_step_s(
        linear_s, attention_s, quantize_s, dequantize_s, exchange_s, host_s, power_s
    )
    products, matrix_s, prompt_compute_s, prompt_quantize_s = prompt_s(
        times.n_prompts, 1, times.prompt_read_s, times.prompt_experts_s, terms, terms.prompt
    )
    other_s = prompt_quantize_s + times.prompt_exchange_s + terms.host_s
    of_limit_s = prompt_power_s(times.prompt_read_s, products, matrix_s, prompt_compute_s, other_s, terms)
    prefill_s = prompt_compute_s + prompt_quantize_s + times.prompt_exchange_s + terms.host_s + of_limit_s
    return Wave(
        linear_compute_s=compute_s,
        linear_s=linear_s,
        attention_s=attention_s,
        quantize_s=quantize_s,
        dequantize_s=dequantize_s,
        collective_s=exchange_s,
        host_s=host_s,
        power_s=power_s,
        decode_step_s=decode_step_s,
        prompt_products_s=products,
        prompt_matrix_s=matrix_s,
        prompt_compute_s=prompt_compute_s,
        prompt_quantize_s=prompt_quantize_s,
        prompt_collective_s=times.prompt_exchange_s,
        prompt_power_s=of_limit_s,
        prefill_s=prefill_s,
        wave_s=throughput.wave_s(n_steps, decode_step_s, prefill_s),
    )


class SharedPass(NamedTuple):
    """Parts of a step that prompts share with decoding requests, beside sums over them."""

    #: weights read; products counted apart: experts that were measured so, and of a group with more tokens than the
    #: mean; results exchanged
    read_s: float
    apart_s: float
    exchange_s: float
    #: tokens of a step, mean over groups of requests
    n_tokens: float


@compilable
def own_products_s(design: Design, terms: Terms, n_tokens: float) -> float:
    """Seconds of the products with weights that meet only the tokens of a device's own requests."""
    model = design.model
    n_bytes = weights.weight_read_bytes(
        model.own_parameters, model.own_kept_parameters, 0, 1.0, design.load.dense_eighths, 0
    )
    read_s = attention.time_at_rate(n_bytes, terms.bandwidth_bytes_per_s) / design.stack.gemm_memory_frac
    compute_s = linear.linear_compute_s(n_tokens, float(model.own_parameters), product_peak(design, int(n_tokens)))
    compute_s = compute_s / terms.gemm_flops_frac
    if terms.has_gemm:
        return linear.linear_calibrated_s(terms.n_products, terms.gemm_launch_s, compute_s, read_s)
    return max(compute_s, read_s)


@compilable
def shared_pass(design: Design, terms: Terms, decoding: float, n_tokens: float, n_mean: float) -> SharedPass:
    """Times of a step over `n_tokens` of a group, those of `decoding` requests and of prompts; `n_mean` over groups."""
    touched = share_touched(design, int(n_mean))
    exchanged_s, apart_s = exchanges_s(design, n_mean, 1), experts_s(design, n_mean, touched)
    if decoding > 0:
        exchanged_s += exchanges_s(design, decoding, 0) - exchanges_s(design, decoding, 1)
    if n_tokens > n_mean:
        apart_s += own_products_s(design, terms, n_tokens) - own_products_s(design, terms, n_mean)
    return SharedPass(weight_read_s(design, touched), apart_s, exchanged_s, n_mean)


class StepWork(NamedTuple):
    """All that a device does in a step."""

    #: tokens that the products multiply, and those of them that meet the output head: decoding, and the last of each
    #: prompt that ends
    n_tokens: float
    n_last: float
    n_decoding: float
    #: weights read, and the peak rate of their products
    read_s: float
    peak: float
    #: products counted apart: of routed experts that were measured so, of the fullest group of requests
    apart_s: float
    exchange_s: float
    #: of decoding: attention, unpacking and packing, and the energy of attention
    decode_s: float
    decode_joules: float
    #: of prompts: attention, packing, what engines pack beside both, and starts of kernels that pack
    attention_s: float
    packing_s: float
    engine_s: float
    launch_s: float


@inlined
def step_s(work: StepWork, terms: Terms) -> float:
    """Seconds of a step that decoding requests and prompts share; `terms` are those of a design, of any lengths.

    With whole prompts alone it is `Wave.prefill_s` of theirs, with decoding requests alone `Wave.decode_step_s`, both
    as predicted: `token_time` is the caller's.
    """
    dense_s, compute_s = products_s(work.n_tokens, work.n_last, work.read_s, work.peak, terms)
    matrix_s = dense_s + work.apart_s
    packing_s = work.packing_s + work.launch_s
    if work.engine_s > 0.0:
        packing_s += dequantize.exposed_s(work.engine_s, matrix_s + work.attention_s)
    host_s = terms.host_s + work.n_decoding * terms.host_sequence_s
    working_s = matrix_s + work.attention_s + packing_s + work.decode_s + work.exchange_s + host_s
    if terms.limit_w > 0.0:
        joules = work.read_s * terms.weight_w + compute_s * terms.gemm_flops_frac * terms.product_w
        joules += work.decode_joules + work.attention_s * terms.prompt_flops_frac * terms.attention_w
        working_s += added_s(working_s, joules, terms.limit_w, terms.idle_w)
    return working_s


@compilable
def shared_step_s(
    decoding: float, prompts: float, shared: SharedPass, sums: Sums, terms: Terms, blocks_s: float
) -> float:
    """Seconds of a step in which `decoding` requests get a token each and `prompts` prompts are computed, below 1 a
    part of one, whose shared prefix is cached.

    `sums` are those of a decoding request; a step with prompts starts its kernels one by one,
    which keeps all waiting for `blocks_s`, however many prompts are in it.
    """
    n_steps, prompt = terms.output_tokens, terms.prompt
    decode_s = sums.fixed_s / n_steps if decoding > 0.0 else 0.0
    decode_s += decoding * sums.attention_s / n_steps
    packing_s = launch_s = engine_s = 0.0
    if terms.quantises:
        quantize_s, dequantize_s = step_packing_s(decoding, sums, terms)
        decode_s += quantize_s + dequantize_s if decoding > 0.0 else 0.0
        packing_s = prompts * (prompt.own_fused_s + prompt.own_materialised_s)
        engine_s, launch_s = prompts * prompt.own_engine_s, prompt.launch_s
    work = StepWork(
        n_tokens=shared.n_tokens,
        n_last=decoding + prompts,
        n_decoding=decoding,
        read_s=shared.read_s,
        peak=terms.product_peak_per_s,
        apart_s=shared.apart_s,
        exchange_s=shared.exchange_s,
        decode_s=decode_s,
        decode_joules=decoding
        / n_steps
        * (sums.read_s * terms.kv_w + sums.compute_s * terms.attention_flops_frac * terms.attention_w),
        attention_s=prompts
        * attention.time_at_rate(prompt.own_flops, terms.prompt_flops_frac * terms.peak_flops_per_s),
        packing_s=packing_s,
        engine_s=engine_s,
        launch_s=launch_s,
    )
    working_s = step_s(work, terms)
    return working_s + host_wait_s(working_s, decoding, sums, terms) + min(prompts, 1.0) * blocks_s


@compilable
def one_prompt_s(design: Design, terms: Terms) -> float:
    """Seconds of one prompt alone, whose shared prefix is cached: the time to its first token without a queue.

    Of several groups of requests the others have nothing to do: all devices share the products that meet all tokens.
    """
    n_tokens = design.input_tokens - terms.prompt.prefix_tokens
    if n_tokens == 0:
        return 0.0
    n_mean = max(n_tokens / design.deployment.n_groups, 1.0)
    shared = shared_pass(design, terms, 0.0, float(n_tokens), n_mean)
    return shared_step_s(0.0, 1.0, shared, NO_SUMS, terms, 0.0)


@compilable
def unshared_prompts_s(design: Design, made: Generation, terms: Terms, n: float) -> float:
    """Seconds of the prompts of `n` sequences if none shared a prefix."""
    prompt = prompt_terms(design, made, 0, 0, terms.prompt.launch_s)
    touched = share_touched(design, int(n) * design.input_tokens)
    read_s, chosen_s = weight_read_s(design, touched), experts_s(design, n * design.input_tokens, touched)
    products, matrix_s, compute_s, quantize_s = prompt_s(n, 1, read_s, chosen_s, terms, prompt)
    exchange = exchanges_s(design, n * design.input_tokens, 1)
    other_s = quantize_s + exchange + terms.host_s
    of_limit_s = prompt_power_s(read_s, products, matrix_s, compute_s, other_s, terms)
    return compute_s + quantize_s + exchange + terms.host_s + of_limit_s


class Run(NamedTuple):
    """`n` sequences that pass the devices together: their times, what these wait for, and what is moved and calculated.

    All are means of a decode step, but for `wave.prompt_*`, `wave.prefill_s` and `prompt_read_s`.
    """

    n: int
    wave: Wave
    #: what the products wait for, experts that were measured apart included
    linear_read_s: float
    linear_compute_s: float
    linear_latency_s: float
    prompt_read_s: float
    prompt_products_s: float
    #: what attention waits for; latency is launching and scheduling
    attention_read_s: float
    attention_compute_s: float
    attention_latency_s: float
    #: what the units are busy, overlap ignored
    quantize_busy_s: float
    dequantize_busy_s: float
    copies_s: float
    #: tokens that the products multiply, and the share of the experts that they touch
    product_tokens: float
    share_touched: float
    attention_bytes: float
    attention_flops: float
    #: traffic of packing and unpacking: FP16 copies, bursts, copied buffers, SinkQ's own
    packing_bytes: float


@compilable
def cached_run(design: Design, terms: Terms, n: int, wave: Wave, sums: Sums, times: PassTimes) -> Run:
    """The run of `n` sequences with these times; `sums` are those of one of them."""
    n_steps, bandwidth, reached = terms.output_tokens, terms.bandwidth_bytes_per_s, terms.reached_bytes_per_s
    touched, prompt_tokens, token_time = share_touched(design, n), prompt_tokens_of(design, terms, n), terms.token_time
    chosen = experts_of(design, float(n), touched)
    of_prompts = experts_of(design, float(prompt_tokens), share_touched(design, prompt_tokens))
    attention_read_s, attention_compute_s = n * sums.read_s / n_steps, n * sums.compute_s / n_steps
    write_s, scale = n * terms.burst_bits / terms.per_byte / bandwidth, n / n_steps
    moved = n * sums.copies_s / n_steps * (bandwidth * design.stack.copy_frac) + write_s * bandwidth
    scores_s, choice_s = scale * terms.score_bytes / reached, scale * terms.choice_bytes / reached
    moved += (scores_s + choice_s + n * terms.buffer_s / n_steps) * reached
    return Run(
        n=n,
        wave=wave,
        linear_read_s=times.read_s + chosen.read_s,
        linear_compute_s=wave.linear_compute_s + chosen.compute_s,
        linear_latency_s=(terms.n_products * terms.gemm_launch_s + chosen.launch_s) * token_time,
        prompt_read_s=times.prompt_read_s + of_prompts.read_s,
        prompt_products_s=wave.prompt_products_s + of_prompts.compute_s,
        attention_read_s=attention_read_s,
        attention_compute_s=attention_compute_s,
        attention_latency_s=(sums.fixed_s + n * sums.unit_s) / n_steps * token_time,
        quantize_busy_s=n * sums.quantize_busy_s / n_steps + write_s,
        dequantize_busy_s=n * sums.unpack_busy_s / n_steps,
        copies_s=n * sums.copies_s / n_steps,
        product_tokens=float(n),
        share_touched=touched,
        attention_bytes=attention_read_s
        * (reached * (design.device.kv_bandwidth_bytes_per_s / design.device.bandwidth_bytes_per_s)),
        attention_flops=attention_compute_s * peak_flops(design, n) * terms.attention_flops_frac,
        packing_bytes=moved,
    )


@compilable
def uncached_run(design: Design, terms: Terms, n: int) -> Run:
    """`n` sequences whose step t runs I + t tokens each, as long as a cached step's context; no prefill.

    All cores work, as on a prompt. Operations are a straight line of the length. The share of experts that a step
    touches is not, so its steps are added one by one until it is all of them (a few hundred tokens).
    """
    model, stack, first, n_steps = design.model, design.stack, design.input_tokens + 1, design.output_tokens
    rate = terms.product_peak_per_s * stack.gemm_flops_frac
    reached = design.device.bandwidth_bytes_per_s * stack.gemm_memory_frac
    slope = linear.linear_compute_s(float(n), model.active_parameters - model.unread_parameters, rate)
    total = all_bytes = all_touched = 0.0
    done = 0
    while done < n_steps:
        touched = share_touched(design, n * (first + done))
        m = n_steps - done if touched == 1.0 else 1
        n_bytes = weights.weight_read_bytes(
            model.dense_parameters - model.unread_parameters,
            kept_read_parameters(model),
            model.expert_parameters,
            touched,
            design.load.dense_eighths,
            design.load.expert_eighths,
        )
        read_s, start_s = attention.time_at_rate(n_bytes, reached), (first + done) * slope
        if terms.has_gemm:
            total += generation.sum_of_root((start_s, slope), (read_s, 0.0), (0.0, 0.0), (0.0, 0.0), m)
        else:
            total += generation.sum_of_max2(start_s, slope, read_s, 0.0, 0, m)
        all_bytes, all_touched, done = all_bytes + m * n_bytes, all_touched + m * touched, done + m
    launch_s = n_steps * model.n_products * stack.gemm_launch_s
    compute_s = generation.sum_of_line(first * slope, slope, 0, n_steps)
    flops = float(n) * terms.uncached_flops / n_steps
    linear_s = (total + launch_s) / n_steps
    attention_s = attention.time_at_rate(flops, terms.prompt_flops_frac * terms.peak_flops_per_s)
    n_tokens = n * (design.input_tokens + (n_steps + 1) / 2)
    collective_s = exchanges_s(design, n_tokens, 1)
    host_s = terms.host_s + n * terms.host_sequence_s
    read_s, calculated_s = attention.time_at_rate(all_bytes, reached) / n_steps, compute_s / n_steps
    joules = read_s * terms.weight_w + calculated_s * stack.gemm_flops_frac * terms.product_w
    joules += attention_s * terms.prompt_flops_frac * terms.attention_w
    power_s = added_s(linear_s + attention_s + collective_s + host_s, joules, terms.limit_w, terms.idle_w)
    step_s = throughput.decode_step_s(linear_s, attention_s, 0.0, 0.0, collective_s, host_s, power_s)
    wave = Wave(
        linear_compute_s=compute_s / n_steps,
        linear_s=linear_s,
        attention_s=attention_s,
        quantize_s=0.0,
        dequantize_s=0.0,
        collective_s=collective_s,
        host_s=host_s,
        power_s=power_s,
        decode_step_s=step_s,
        prompt_products_s=0.0,
        prompt_matrix_s=0.0,
        prompt_compute_s=0.0,
        prompt_quantize_s=0.0,
        prompt_collective_s=0.0,
        prompt_power_s=0.0,
        prefill_s=0.0,
        wave_s=throughput.wave_s(n_steps, step_s, 0.0),
    )
    return Run(
        n=n,
        wave=wave,
        linear_read_s=attention.time_at_rate(all_bytes, reached) / n_steps,
        linear_compute_s=wave.linear_compute_s,
        linear_latency_s=launch_s / n_steps,
        prompt_read_s=0.0,
        prompt_products_s=0.0,
        attention_read_s=0.0,
        attention_compute_s=attention_s,
        attention_latency_s=0.0,
        quantize_busy_s=0.0,
        dequantize_busy_s=0.0,
        copies_s=0.0,
        product_tokens=n_tokens,
        share_touched=all_touched / n_steps,
        attention_bytes=0.0,
        attention_flops=flops,
        packing_bytes=0.0,
    )


@compilable
def run_of(design: Design, made: Generation, terms: Terms, n: int) -> Run:
    """`n` sequences that pass the devices together (`micro_batch`), with their KV cache or without."""
    if design.load.has_cache == 0:
        return uncached_run(design, terms, n)
    return run_with(design, terms, n, sums_of(design, made, n))


@compilable
def known_run(design: Design, made: Generation, terms: Terms, n: int, sums: KnownSums) -> Run:
    """`run_of`, with sums over the steps that are made once."""
    if design.load.has_cache == 0:
        return uncached_run(design, terms, n)
    return run_with(design, terms, n, known_sums(design, made, terms.same_from, n, sums))


@inlined
def known_wave(design: Design, made: Generation, terms: Terms, n: int, sums: KnownSums) -> Wave:
    """The times of `known_run` alone."""
    if design.load.has_cache == 0:
        return uncached_run(design, terms, n).wave
    return wave_with(design, terms, n, pass_times(design, terms, n), known_sums(design, made, terms.same_from, n, sums))


@inlined
def wave_with(design: Design, terms: Terms, n: int, times: PassTimes, sums: Sums) -> Wave:
    """Times of `n` sequences with a KV cache, whose sums over the steps are `sums` each."""
    return wave_of(float(n), times, sums, product_peak(design, n), terms)


@inlined
def prompt_tokens_of(design: Design, terms: Terms, n: int) -> int:
    """Tokens of the prompts of `n` sequences, which share a prefix, or all of a prompt."""
    return terms.prompt.prefix_tokens + n_prompts_of(design, n) * (design.input_tokens - terms.prompt.prefix_tokens)


@inlined
def pass_times(design: Design, terms: Terms, n: int) -> PassTimes:
    """Times of a wave of `n` sequences that are no sums over them."""
    prompt_tokens = prompt_tokens_of(design, terms, n)
    touched, prompts_touch = share_touched(design, n), share_touched(design, prompt_tokens)
    return PassTimes(
        n_prompts=float(n_prompts_of(design, n)),
        read_s=weight_read_s(design, touched),
        prompt_read_s=weight_read_s(design, prompts_touch),
        experts_s=experts_s(design, float(n), touched),
        prompt_experts_s=experts_s(design, float(prompt_tokens), prompts_touch),
        exchange_s=exchanges_s(design, n, 0),
        prompt_exchange_s=exchanges_s(design, prompt_tokens, 1),
    )


@compilable
def run_with(design: Design, terms: Terms, n: int, sums: Sums) -> Run:
    """The run of `n` sequences with a KV cache, whose sums over the steps are `sums` each."""
    times = pass_times(design, terms, n)
    return cached_run(design, terms, n, wave_with(design, terms, n, times, sums), sums, times)
