"""Seconds of a decode step and its parts, of prompts, and of a server that replaces every request as it ends."""

from dse.model import assumed, kernels, step
from dse.model.capacity import is_replaced
from dse.model.facts import Facts
from dse.model.formulas import collectives, host, linear, prefill, scheduling, steady, weights
from dse.model.kv_bytes import attention_flops
from dse.model.results import reads
from dse.model.results.declare import (
    INTERVALS,
    NUMBER,
    PER_TOKEN,
    PROMPTS,
    SERVED,
    WHOLE,
    Derivation,
    TextLine,
    Topic,
    by,
    how,
    of_host,
)

_CAPACITY, _TIMES = "docs/explanation/model.md, Capacity", "docs/explanation/model.md, Steps and times"
_PATHS = "docs/explanation/model.md, Dequantization"
_FORM, _WHOLE_STEPS = "docs/explanation/calibration.md, The form", "docs/explanation/calibration.md, Whole steps"
_SERVER = "docs/explanation/model.md, One server"
_NO_CACHE = "docs/explanation/model.md, No KV cache"

topic = Topic(of_times=True)


@topic.result("sequence", WHOLE, "running at once", TextLine("Time", 1, ""), reads=reads.MEMORY)
def running_batch(at: Facts) -> Derivation | None:
    if not is_replaced(at.design):
        return None
    rule = "min(batch, max_batch): finished requests are replaced at once"
    return how(rule, _CAPACITY, batch=at.work.batch, max_batch=at.point.max_batch)


@topic.result("1", WHOLE, "waves", TextLine("Time", 2, ""), reads=reads.MEMORY)
def n_waves(at: Facts) -> Derivation | None:
    if not is_replaced(at.design):
        return None
    return how("requests are replaced as they end: no waves", _CAPACITY).giving(None)


def _products(at: Facts, n_tokens: float, compute_s: float, read_s: float, peak: float, experts_s: float) -> Derivation:
    """Explain all products with the weights of a pass over `n_tokens` tokens."""
    if at.terms.has_gemm:
        form, has_experts = linear.linear_calibrated_s, at.design.stack.has_experts
        return how(
            form.equation + (" + experts" if has_experts else ""),
            form.source,
            n_products=at.terms.n_products,
            launch_s=at.terms.gemm_launch_s,
            compute_s=compute_s,
            memory_s=read_s,
            **({"experts_s": experts_s} if has_experts else {}),
        )
    return by(
        linear.linear_s,
        n_tokens=n_tokens,
        peak_flops_per_s=peak,
        active_parameters=at.terms.active_parameters,
        weight_read_bytes=at.weight_read_bytes,
        bandwidth_bytes_per_s=at.terms.bandwidth_bytes_per_s,
    )


@topic.result("s", NUMBER, "linear layers", TextLine("Time", 3, "linear layers"), reads=reads.LINEAR)
def linear_s(at: Facts) -> Derivation:
    if at.cached:
        times = at.wave.linear_compute_s, at.dense_read_s
        return _products(at, float(at.run.n), *times, at.step_peak, at.experts_s)
    return how(
        "mean over steps t of the products over B * s tokens, s = I + t",
        _NO_CACHE,
        n_sequences=at.run.n,
        first_tokens=at.work.input_tokens + 1,
        last_tokens=at.n_tokens,
        active_parameters=float(at.plan.model.active_parameters),
        peak_flops_per_s=at.terms.product_peak_per_s,
        mean_compute_s=at.wave.linear_compute_s,
        mean_read_s=at.run.linear_read_s,
    )


@topic.step("s")
def prefill_matrix_s(at: Facts) -> Derivation | None:
    if not at.cached:
        return None
    times = at.wave.prompt_products_s, at.prompt_dense_read_s
    derivation = _products(at, float(at.prompt_tokens), *times, at.terms.product_peak_per_s, at.prompt_experts_s)
    return derivation.giving(at.wave.prompt_matrix_s)


@topic.step("B")
def weight_read_bytes(at: Facts) -> Derivation | None:
    if not at.cached:
        return None
    return by(
        weights.weight_read_bytes,
        n_dense_parameters=at.design.model.dense_parameters - at.design.model.unread_parameters,
        **at.kept(),
        n_expert_parameters=at.design.model.expert_parameters,
        share_touched=at.run.share_touched,
        **at.weight_bits(),
    ).giving(at.weight_read_bytes)


@topic.step("s")
def memory_s(at: Facts) -> Derivation | None:
    if not at.cached or not at.terms.has_gemm:
        return None
    return how(
        "weight bytes / (memory_frac * BW)",
        _FORM,
        weight_read_bytes=at.dense_read_bytes,
        memory_frac=at.design.stack.gemm_memory_frac,
        bandwidth_bytes_per_s=at.terms.bandwidth_bytes_per_s,
    ).giving(at.dense_read_s)


@topic.step("s")
def compute_s(at: Facts) -> Derivation | None:
    if not at.cached or not at.terms.has_gemm:
        return None
    return how(
        "2 * P_active * n_tokens / (flops_frac * F)",
        _FORM,
        n_tokens=float(at.run.n),
        active_parameters=at.terms.active_parameters,
        flops_frac=at.terms.gemm_flops_frac,
        peak_flops_per_s=at.step_peak,
    ).giving(at.wave.linear_compute_s)


def _experts(at: Facts, n_tokens: float, share_touched: float, compute_s: float, read_s: float) -> Derivation | None:
    """Explain the products of experts that were measured apart."""
    if not at.cached or not at.terms.has_gemm or not at.design.stack.has_experts:
        return None
    stack, source = at.design.stack, _WHOLE_STEPS
    if served := kernels.served_experts(at.device, at.plan.model, at.work, at.point.stack):
        source += (
            f"; launch x {served.start:g}, reads and products x {served.time:g} of the benchmarks': {served.source}"
        )
    return how(
        linear.linear_calibrated_s.equation,
        source,
        n_products=at.design.model.n_layers,
        launch_s=stack.expert_launch_s,
        compute_s=compute_s,
        memory_s=read_s,
        n_tokens=float(n_tokens),
        share_touched=share_touched,
        memory_frac=stack.expert_memory_frac,
        flops_frac=stack.expert_flops_frac,
        peak_flops_per_s=stack.expert_peak_per_s,
    )


@topic.step("s")
def experts_s(at: Facts) -> Derivation | None:
    if not at.cached:
        return None
    derivation = _experts(at, at.run.n, at.run.share_touched, at.experts.compute_s, at.experts.read_s)
    return derivation and derivation.giving(at.experts_s)


@topic.step("s")
def prefill_experts_s(at: Facts) -> Derivation | None:
    if not at.cached:
        return None
    experts = at.prompt_experts
    derivation = _experts(at, at.prompt_tokens, at.prompt_share_touched, experts.compute_s, experts.read_s)
    return derivation and derivation.giving(at.prompt_experts_s)


@topic.result("s", NUMBER, "attention", TextLine("Time", 4, "attention"), reads=reads.ATTENTION)
def attention_s(at: Facts) -> Derivation:
    if at.uncached:
        return how(
            "mean over steps t of causal attention over s = I + t tokens: FLOP / (flops_frac * F)",
            _NO_CACHE,
            flops=at.run.attention_flops,
            flops_frac=at.terms.prompt_flops_frac,
            peak_flops_per_s=at.device.peak_flops.si,
        )
    n = at.run.n
    return how(
        f"mean over steps t of {at.attention_form.equation}, s = I + t",
        at.attention_form.source,
        n_sequences=n,
        first_context_tokens=at.work.input_tokens + 1,
        last_context_tokens=at.n_tokens,
        mean_kv_read_s=at.run.attention_read_s,
        unpacked_elements_at_end=n * at.unpacked,
        mean_attention_compute_s=at.run.attention_compute_s,
        kv_read_bytes_at_end=n * at.kv_read_bytes,
        flops_at_end=n * attention_flops(at.design.layers, at.limits, at.n_tokens),
        bandwidth_bytes_per_s=at.device.memory_bandwidth.si,
        peak_flops_per_s=step.peak_flops(at.design, at.run.n),
        **at.fitted_attention(),
    )


def _uncached(at: Facts, rule: str = "nothing is stored") -> Derivation | None:
    """Explain a time that is 0 without a KV cache."""
    return how(rule, _NO_CACHE) if at.uncached else None


@topic.result(
    "s",
    NUMBER,
    "packing, exposed",
    TextLine("Time", 5, ""),
    reads=(*reads.PACKING, "quantize_rate", "kv_burst", "peak_flops"),
)
def quantize_s(at: Facts) -> Derivation | None:
    if not at.cached:
        return _uncached(at)
    return how(
        "mean over steps of what packing new tokens adds, plus copies of packed buffers, bursts written, launches, and "
        "work on sinks",
        _PATHS,
        paths=at.paths_text,
        busy_s=at.run.quantize_busy_s - at.write_s,
        copy_s=at.run.n * at.terms.buffer_s / at.n_steps,
        **({"write_s": at.write_s} if at.write_s else {}),
        **at.scheduled(),
        launch_s=at.terms.pack_launch_s,
        kernel_launch_s=at.device.kernel_launch.si,
        launches_per_step=at.made.pack_starts / at.n_steps,
        **({"sink_work_s": at.made.sink_s / at.n_steps} if at.made.sink_s and at.device.kernel_launch.si else {}),
        **at.of_sinks("sink_choice_s", at.terms.choice_bytes),
        rates_elements_per_s=assumed.rates(at.point, packs=True),
    )


@topic.result(
    "s", NUMBER, "unpacking, exposed", TextLine("Time", 6, ""), reads=(*reads.PACKING, "core_clock", "peak_flops")
)
def dequantize_s(at: Facts) -> Derivation | None:
    if not at.cached:
        return _uncached(at)
    hides = "the kernel's ceilings" if at.design.stack.has_attention else "max(FLOP / F, KV bytes / BW)"
    return how(
        f"mean over steps of what unpacking adds to {hides}, plus launches",
        _PATHS,
        paths=at.paths_text,
        busy_s=at.run.dequantize_busy_s,
        materialised_traffic_s=at.run.copies_s,
        mean_kv_read_s=at.run.attention_read_s,
        **at.launches(),
        **at.of_sinks("sink_scores_s", at.terms.score_bytes),
        **at.scheduled(),
        rates_elements_per_s=assumed.unpack_rates(at.point),
    )


@topic.result(
    "s",
    NUMBER,
    "exchange between devices",
    TextLine("Time", 7, "exchange between devices", lambda results: bool(results["n_devices"] > 1)),
    reads=reads.LINKS,
)
def collective_s(at: Facts) -> Derivation:
    form = collectives.collective_s
    rule = f"sum over exchanges of their number * {form.equation}" if at.exchanges else "one device: none"
    if at.work.kv_offload:
        rule += "; and what a step waits for keys and values from host memory"
    return how(rule, form.source, **at.split(), **at.exchanges)


@topic.result(
    "s",
    NUMBER,
    "host and small kernels",
    TextLine("Time", 8, "host and small kernels", of_host),
    reads=(*reads.MEMORY, "stacks_of", *reads.HOST),
)
def host_s(at: Facts) -> Derivation:
    return how(
        host.host_s.equation if at.has_host else "kernels alone: no server was measured, or none was asked for",
        host.host_s.source,
        n_sequences=at.run.n,
        n_layers=at.design.model.n_layers,
        layer_s=at.design.stack.host_layer_s,
        sequence_s=at.design.stack.host_sequence_s,
    )


# where it is not 0 the energy was measured: only how many requests run can rest on what is assumed
@topic.result(
    "s",
    NUMBER,
    "added by the board's power limit",
    TextLine("Time", 9, "", lambda results: bool(results["power_s"])),
    reads=reads.MEMORY,
)
def power_s(at: Facts) -> Derivation | None:
    if "power_s" in at.recorded:
        return None
    is_within = at.design.device.power_limit_w
    why = "times were measured within the limit" if is_within else "its energy is assumed"
    return how(f"none: {why}", "docs/explanation/model.md, Energy and cost").giving(0.0)


def _busy(at: Facts, parts: str, rates: str) -> Derivation | None:
    """Explain the time that units are busy with packing or unpacking."""
    if not at.cached:
        return _uncached(at)
    return how(
        f"mean over steps of {parts}; overlap, copies and launches not counted",
        _PATHS,
        paths=at.paths_text,
        rates_elements_per_s=rates,
        n_sequences=at.run.n,
        unpacked_elements_at_end=at.run.n * at.unpacked,
    )


@topic.result("s", NUMBER, "packing", reads=(*reads.BUSY, "quantize_rate", "kv_burst"))
def quantize_busy_s(at: Facts) -> Derivation | None:
    return _busy(at, "elements packed / rate, traffic / BW", assumed.rates(at.point, packs=True))


@topic.result("s", NUMBER, "unpacking", reads=(*reads.BUSY, "core_clock"))
def dequantize_busy_s(at: Facts) -> Derivation | None:
    return _busy(at, "elements unpacked / rate, materialised traffic / BW", assumed.unpack_rates(at.point))


@topic.result("1", WHOLE, "busy cores", reads=(*reads.PLAIN, "token_cores"))
def busy_cores(at: Facts) -> Derivation | None:
    if not at.cached:
        return _uncached(at, "every step is a prompt, on all cores")
    cores, form = at.design.device.token_cores, scheduling.busy_cores
    if not cores:
        return how("the device names no token_cores", form.source)
    return by(form, n_sequences=at.results["running_batch"], token_cores=cores)


topic.add(
    "decode_step_s",
    "s",
    NUMBER,
    "decode step",
    TextLine("Time", 10, "decode step, mean"),
    TextLine(INTERVALS, 1),
    reads=reads.ALL,
    interval=PER_TOKEN,
)


@topic.result(
    "s",
    NUMBER,
    "prefill of the running batch",
    TextLine("Time", 11, "prefill of the running batch"),
    TextLine(INTERVALS, 4),
    reads=reads.PROMPT,
    interval=PROMPTS,
)
def prefill_s(at: Facts) -> Derivation | None:
    if not at.cached:
        return _uncached(at, "no step of its own: every step runs the prompt")
    rule = "prefill_compute_s + quantising the prompt's keys and values + exchange"
    return how(
        f"{rule} + host" if at.has_host else rule,
        prefill.prefill_compute_s.source,
        prefill_tokens=at.prompt_tokens,
        prefill_compute_s=at.wave.prompt_compute_s,
        quantize_s=at.wave.prompt_quantize_s,
        exchange_s=at.wave.prompt_collective_s,
        **({"host_s_of_a_prompt": step.prompt_host_s(at.design)} if at.has_host else {}),
    )


@topic.step("s")
def one_prompt_s(at: Facts) -> Derivation:
    rule = "prefill_s of one request alone, whose shared prefix is cached"
    tokens = {"input_tokens": at.work.input_tokens, "prefix_tokens": at.made.prefix_tokens}
    return how(rule, _SERVER, **tokens).giving(step.one_prompt_s(at.design, at.terms))


@topic.result(
    "s",
    NUMBER,
    "total time",
    TextLine("Time", 12, "total time, all waves"),
    reads=reads.ALL,
    interval=SERVED,
    figure_unit="s",
)
def total_s(at: Facts) -> Derivation | None:
    if is_replaced(at.design):
        return None
    waves = at.point.waves
    return how(
        "sum over waves of output_tokens * decode_step_s + prefill_s",
        _TIMES,
        n_waves=int(waves.n_waves),
        running_batch=int(waves.running),
        wave_s=at.wave.wave_s,
        n_waves_of_one_less=int(waves.n_smaller),
    )


@topic.result(
    "s", NUMBER, "prefill of one request alone", TextLine("Time", 13, ""), reads=reads.PROMPT, interval=PROMPTS
)
def prefill_alone_s(at: Facts) -> Derivation | None:
    if not at.work.kv_cache:
        return None
    prompt_tokens = at.work.input_tokens - at.terms.prompt.prefix_tokens
    return how("a step over the tokens of one prompt, its cached prefix left out", _SERVER, prompt_tokens=prompt_tokens)


@topic.result("s", NUMBER, "TTFT", TextLine(INTERVALS, 3, "", of_host), reads=reads.ALL, interval=PROMPTS)
def ttft_s(at: Facts) -> Derivation:
    return how(
        "own prefill + prefills of others before it + queueing for a slot",
        _SERVER,
        batching=at.batching,
        own_prompt_s=at.cycle.prompt_s,
        of_which_host_s=at.design.stack.host_prompt_s + at.design.stack.host_request_s * at.cycle.n_places,
        burst_wait_s=at.cycle.burst_wait_s,
        place_wait_s=at.cycle.place_wait_s,
        n_requests=at.work.batch,
        n_places=int(at.cycle.n_places),
    )


@topic.step("s")
def prompt_step_s(at: Facts) -> Derivation:
    cycle = at.cycle.cycle
    rule = "a step over the tokens of the requests that decode and of prompts, up to the server's budget"
    return how(
        rule,
        _SERVER,
        batching=at.batching,
        budget_tokens=at.design.load.step_tokens,
        decoding=cycle.decoding,
        prompts=cycle.prompts,
    ).giving(at.cycle.prompt_step_s)


@topic.step("s")
def burst_wait_s(at: Facts) -> Derivation:
    return by(
        steady.burst_wait_s,
        prompt_steps=at.cycle.cycle.prompt_steps - at.cycle.cycle.own_steps,
        prompt_step_s=at.cycle.prompt_step_s,
        rounds_in_step=at.design.stack.rounds_in_step,
        rounds=at.work.rounds,
    ).giving(at.cycle.burst_wait_s)


@topic.step("s")
def place_wait_s(at: Facts) -> Derivation:
    request_s = at.cycle.prompt_s + at.cycle.burst_wait_s + at.cycle.decode_s
    places = {"n_requests": at.work.batch, "n_places": int(at.cycle.n_places)}
    return by(steady.place_wait_s, **places, request_s=request_s).giving(at.cycle.place_wait_s)


@topic.result("s", NUMBER, "TPOT", TextLine(INTERVALS, 2, "", of_host), reads=reads.ALL, interval=PER_TOKEN)
def tpot_s(at: Facts) -> Derivation:
    cycle, factor = at.cycle.cycle, at.design.stack.token_time
    own, prompt_step = ({}, "prompt_step_s") if factor == 1 else ({"own_server": factor}, "prompt_step_s * own_server")
    return how(
        f"((prompt_steps - own_steps) * {prompt_step} + (all_steps - prompt_steps) * decode_step_s) / output_tokens",
        _SERVER,
        **own,
        decoding_on_a_device=int(at.cycle.n),
        prompt_steps=cycle.prompt_steps,
        own_steps=cycle.own_steps,
        all_steps=cycle.all_steps,
        prompt_step_s=at.cycle.prompt_step_s,
        decode_step_s=at.cycle.decode_step_s,
        output_tokens=at.work.output_tokens,
    )


@topic.result("sequence", NUMBER, "requests that decode", reads=reads.ALL)
def decoding_requests(at: Facts) -> Derivation:
    return by(
        steady.decoding_requests,
        n_places=int(at.cycle.n_places),
        first_s=at.cycle.prompt_s + at.cycle.burst_wait_s,
        decode_s=at.cycle.decode_s,
    )
