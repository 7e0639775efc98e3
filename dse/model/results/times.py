"""Seconds of a decode step and its parts, of prompts, and of a server that replaces every request as it ends."""

from typing import TYPE_CHECKING, Any

from dse.model.formulas import collectives, host, linear, prefill, scheduling, steady, weights
from dse.model.results import reads
from dse.model.results.declare import INTERVALS, NUMBER, PER_TOKEN, PROMPTS, WHOLE, How, Line, Result, by, of_host

if TYPE_CHECKING:
    from dse.model.facts import Facts

_CAPACITY, _TIMES = "docs/explanation/model.md, Capacity", "docs/explanation/model.md, Steps and times"
_PATHS, _LATENCY = "docs/explanation/model.md, Dequantisation", "docs/explanation/model.md, Latency"
_FORM, _WHOLE_STEPS = "docs/explanation/calibration.md, The form", "docs/explanation/calibration.md, Whole steps"
_NO_CACHE = "docs/explanation/model.md, No KV cache"


def _nothing_of(name: str) -> How:
    """Explain a time of packing without a KV cache."""
    return How(where=lambda at: at.uncached, equation="nothing is stored", source=_NO_CACHE)


def _busy(name: str, title: str, what: str, reads_of: tuple[str, ...]) -> Result:
    """Declare the time that units are busy with packing or unpacking."""
    is_packing = name == "quantize_busy_s"
    how = How(
        where=lambda at: at.cached,
        equation=f"mean over steps of {what}; overlap, copies and launches not counted",
        source=_PATHS,
        terms=lambda at: dict(
            paths=at.paths_text,
            rates_elements_per_s=at.rates if is_packing else at.unpack_rates,
            n_sequences=at.run.n,
            unpacked_elements_at_end=at.run.n * at.unpacked,
        ),
    )
    return Result(name, "s", NUMBER, title, reads=reads_of, how=(how, _nothing_of(name)))


def _linear_terms(at: "Facts", n_tokens: float, compute_s: float, read_s: float, peak: float, experts: float) -> Any:
    """The numbers of all products with the weights in a pass over `n_tokens` tokens."""
    if at.terms.has_gemm:
        found = dict(n_products=at.terms.n_products, launch_s=at.terms.gemm_launch_s)
        found |= dict(compute_s=compute_s, memory_s=read_s)
        return found | (dict(experts_s=experts) if at.design.stack.has_experts else {})
    return dict(
        n_tokens=n_tokens,
        peak_flops_per_s=peak,
        active_parameters=at.terms.active_parameters,
        weight_read_bytes=at.weight_read_bytes,
        bandwidth_bytes_per_s=at.terms.bandwidth_bytes_per_s,
    )


def _linear_equation(at: "Facts") -> str:
    if not at.terms.has_gemm:
        return linear.linear_s.equation
    return linear.linear_calibrated_s.equation + (" + experts" if at.design.stack.has_experts else "")


def _linear_source(at: "Facts") -> str:
    return (linear.linear_calibrated_s if at.terms.has_gemm else linear.linear_s).source


RESULTS = (
    Result(
        "running_batch",
        "sequence",
        WHOLE,
        "running at once",
        lines=(Line(section="Time", place=1, words="running batch"),),
        reads=reads.MEMORY,
        how=(
            How(
                where=lambda at: at.fits and at.work.admission == "paged",
                equation="min(batch, max_batch): finished requests are replaced at once",
                source=_CAPACITY,
                terms=lambda at: dict(batch=at.work.batch, max_batch=at.point.max_batch),
            ),
        ),
    ),
    Result(
        "n_waves",
        "1",
        WHOLE,
        "waves",
        lines=(Line(section="Time", place=2, words="waves"),),
        reads=reads.MEMORY,
        how=(
            How(
                where=lambda at: at.fits and at.work.admission == "paged",
                equation="paged admission has no waves",
                source=_CAPACITY,
                value=lambda at: None,
            ),
        ),
    ),
    Result(
        "linear_s",
        "s",
        NUMBER,
        "linear layers",
        lines=(Line(section="Time", place=3, words="linear layers"),),
        reads=reads.LINEAR,
        how=(
            How(
                where=lambda at: at.cached,
                equation=_linear_equation,
                source=_linear_source,
                terms=lambda at: _linear_terms(
                    at, float(at.run.n), at.wave.linear_compute_s, at.dense_read_s, at.step_peak, at.experts_s
                ),
            ),
            How(
                where=lambda at: at.uncached,
                equation="mean over steps t of the products over B * s tokens, s = I + t",
                source=_NO_CACHE,
                terms=lambda at: dict(
                    n_sequences=at.run.n,
                    first_tokens=at.work.input_tokens + 1,
                    last_tokens=at.n_tokens,
                    active_parameters=float(at.plan.model.active_parameters),
                    peak_flops_per_s=at.terms.product_peak_per_s,
                    mean_compute_s=at.wave.linear_compute_s,
                    mean_read_s=at.run.linear_read_s,
                ),
            ),
        ),
    ),
    Result(
        "attention_s",
        "s",
        NUMBER,
        "attention",
        lines=(Line(section="Time", place=4, words="attention"),),
        reads=reads.ATTENTION,
        how=(
            How(
                where=lambda at: at.cached,
                equation=lambda at: f"mean over steps t of {at.attention_form.equation}, s = I + t",
                source=lambda at: at.attention_form.source,
                terms=lambda at: dict(
                    n_sequences=at.run.n,
                    first_context_tokens=at.work.input_tokens + 1,
                    last_context_tokens=at.n_tokens,
                    mean_kv_read_s=at.run.attention_read_s,
                    unpacked_elements_at_end=at.run.n * at.unpacked,
                    mean_attention_compute_s=at.run.attention_compute_s,
                    kv_read_bytes_at_end=at.run.n * at.kv_read_bytes,
                    flops_at_end=at.run.n * at.attention_flops,
                    bandwidth_bytes_per_s=at.bandwidth,
                    peak_flops_per_s=at.attention_peak,
                    **at.fitted_attention(),
                ),
            ),
            How(
                where=lambda at: at.uncached,
                equation="mean over steps t of causal attention over s = I + t tokens: FLOP / (flops_frac * F)",
                source=_NO_CACHE,
                terms=lambda at: dict(
                    flops=at.run.attention_flops,
                    flops_frac=at.terms.prompt_flops_frac,
                    peak_flops_per_s=at.device.peak_flops.si,
                ),
            ),
        ),
    ),
    Result(
        "quantize_s",
        "s",
        NUMBER,
        "packing, exposed",
        lines=(Line(section="Time", place=5, words="quantize, exposed"),),
        reads=(*reads.WRITING, "kv_burst"),
        how=(
            How(
                where=lambda at: at.cached,
                equation=(
                    "mean over steps of what packing new tokens adds, plus copies of packed buffers, bursts written, "
                    "and launches"
                ),
                source=_PATHS,
                terms=lambda at: dict(
                    paths=at.paths_text,
                    busy_s=at.run.quantize_busy_s - at.write_s,
                    copy_s=at.run.n * at.terms.buffer_s / at.n_steps,
                    **({"write_s": at.write_s} if at.write_s else {}),
                    **at.scheduled(),
                    launch_s=at.terms.pack_launch_s,
                    kernel_launch_s=at.device.kernel_launch.si,
                    launches_per_step=at.made.pack_starts / at.n_steps,
                    **at.of_sinks("sink_choice_s", at.terms.choice_bytes),
                    rates_elements_per_s=at.rates,
                ),
            ),
            _nothing_of("quantize_s"),
        ),
    ),
    Result(
        "dequantize_s",
        "s",
        NUMBER,
        "unpacking, exposed",
        lines=(Line(section="Time", place=6, words="dequantize, exposed"),),
        reads=(*reads.PACKING, "core_clock", "peak_flops"),
        how=(
            How(
                where=lambda at: at.cached,
                equation=lambda at: (
                    "mean over steps of what unpacking adds to "
                    + ("the kernel's ceilings" if at.design.stack.has_attention else "max(FLOP / F, KV bytes / BW)")
                    + ", plus launches"
                ),
                source=_PATHS,
                terms=lambda at: dict(
                    paths=at.paths_text,
                    busy_s=at.run.dequantize_busy_s,
                    materialised_traffic_s=at.run.copies_s,
                    mean_kv_read_s=at.run.attention_read_s,
                    **at.launches(),
                    **at.of_sinks("sink_scores_s", at.terms.score_bytes),
                    **at.scheduled(),
                    rates_elements_per_s=at.unpack_rates,
                ),
            ),
            _nothing_of("dequantize_s"),
        ),
    ),
    Result(
        "collective_s",
        "s",
        NUMBER,
        "exchange between devices",
        lines=(
            Line(
                section="Time",
                place=7,
                words="exchange between devices",
                shown=lambda results: results["n_devices"] > 1,
            ),
        ),
        reads=reads.LINKS,
        how=(
            How(
                where=lambda at: at.fits,
                equation=lambda at: (
                    f"sum over exchanges of their number * {collectives.collective_s.equation}"
                    if at.exchanges
                    else "one device: none"
                ),
                source=collectives.collective_s.source,
                terms=lambda at: {**at.split(), **at.exchanges},
            ),
        ),
    ),
    Result(
        "host_s",
        "s",
        NUMBER,
        "host and small kernels",
        lines=(Line(section="Time", place=8, words="host and small kernels", shown=of_host),),
        reads=(*reads.MEMORY, "stacks_of", *reads.HOST),
        how=(
            How(
                where=lambda at: at.fits,
                equation=lambda at: (
                    host.host_s.equation
                    if at.has_host
                    else "kernels alone: no server was measured, or none was asked for"
                ),
                source=host.host_s.source,
                terms=lambda at: dict(
                    n_sequences=at.run.n,
                    n_layers=at.design.model.n_layers,
                    layer_s=at.design.stack.host_layer_s,
                    sequence_s=at.design.stack.host_sequence_s,
                ),
            ),
        ),
    ),
    # where it is not 0 the energy was measured: only how many requests run can rest on what is assumed
    Result(
        "power_s",
        "s",
        NUMBER,
        "added by the board's power limit",
        lines=(
            Line(section="Time", place=9, words="board's power limit", shown=lambda results: bool(results["power_s"])),
        ),
        reads=reads.MEMORY,
        how=(
            How(
                where=lambda at: at.fits and "power_s" not in at.recorded,
                equation=lambda at: (
                    "none: times were measured within the limit"
                    if at.design.device.power_limit_w
                    else "none: its energy is assumed"
                ),
                source="docs/explanation/model.md, Energy and cost",
                value=lambda at: 0.0,
            ),
        ),
    ),
    _busy("quantize_busy_s", "packing", "elements packed / rate, traffic / BW", (*reads.BUSY, "kv_burst")),
    _busy(
        "dequantize_busy_s",
        "unpacking",
        "elements unpacked / rate, materialised traffic / BW",
        (*reads.BUSY, "core_clock"),
    ),
    Result(
        "busy_cores",
        "1",
        WHOLE,
        "busy cores",
        reads=(*reads.PLAIN, "token_cores"),
        how=(
            by(
                scheduling.busy_cores,
                where=lambda at: at.cached and bool(at.design.device.token_cores),
                terms=lambda at: dict(
                    n_sequences=at.results["running_batch"], token_cores=at.design.device.token_cores
                ),
            ),
            How(
                where=lambda at: at.cached,
                equation="the device names no token_cores",
                source=scheduling.busy_cores.source,
            ),
            How(where=lambda at: at.uncached, equation="every step is a prompt, on all cores", source=_NO_CACHE),
        ),
    ),
    Result(
        "decode_step_s",
        "s",
        NUMBER,
        "decode step",
        lines=(
            Line(section="Time", place=10, words="decode step (mean): time per token"),
            Line(section=INTERVALS, place=1),
        ),
        reads=reads.ALL,
        interval=PER_TOKEN,
    ),
    Result(
        "prefill_s",
        "s",
        NUMBER,
        "prompt of a running batch",
        lines=(Line(section="Time", place=11, words="prefill"), Line(section=INTERVALS, place=4)),
        reads=reads.PROMPT,
        interval=PROMPTS,
        how=(
            How(
                where=lambda at: at.cached,
                equation=lambda at: (
                    "prefill_compute_s + quantising the prompt's keys and values + exchange"
                    + (" + host" if at.has_host else "")
                ),
                source=prefill.prefill_compute_s.source,
                terms=lambda at: dict(
                    prefill_tokens=at.prompt_tokens,
                    prefill_compute_s=at.wave.prompt_compute_s,
                    quantize_s=at.wave.prompt_quantize_s,
                    exchange_s=at.wave.prompt_collective_s,
                    **({"host_s_of_a_prompt": at.prompt_host_s} if at.has_host else {}),
                ),
            ),
            How(
                where=lambda at: at.uncached,
                equation="no step of its own: every step runs the prompt",
                source=_NO_CACHE,
            ),
        ),
    ),
    Result(
        "total_s",
        "s",
        NUMBER,
        "total time",
        lines=(Line(section="Time", place=12, words="total, all waves"),),
        figure_unit="s",
        reads=reads.ALL,
        interval=PER_TOKEN,
        how=(
            How(
                where=lambda at: at.fits and at.work.admission != "paged",
                equation="sum over waves of output_tokens * decode_step_s + prefill_s",
                source=_TIMES,
                terms=lambda at: dict(
                    n_waves=int(at.point.waves.n_waves),
                    running_batch=int(at.point.waves.running),
                    wave_s=at.wave.wave_s,
                    n_waves_of_one_less=int(at.point.waves.n_smaller),
                ),
            ),
        ),
    ),
    Result(
        "ttft_s",
        "s",
        NUMBER,
        "time to first token",
        lines=(Line(section="Time", place=13, words="time to first token, no queue"),),
        reads=reads.ALL,
        interval=PROMPTS,
    ),
    Result(
        "tpot_s",
        "s",
        NUMBER,
        "time per output token",
        reads=reads.ALL,
        interval=PER_TOKEN,
        how=(
            How(
                where=lambda at: at.fits,
                equation="decode_step_s: every step gives each running request a token",
                source=_LATENCY,
                terms=lambda at: dict(decode_step_s=at.wave.decode_step_s),
            ),
        ),
    ),
    Result(
        "steady_ttft_s",
        "s",
        NUMBER,
        "time to first token, steady server",
        lines=(
            Line(section="Time", place=14, words="steady server: time to first token", shown=of_host),
            Line(section=INTERVALS, place=3, shown=of_host),
        ),
        reads=reads.ALL,
        interval=PROMPTS,
        how=(
            How(
                where=lambda at: at.fits,
                equation="own prompt + prompts of others before it + wait for a place",
                source=steady.shared_token_s.source,
                terms=lambda at: dict(
                    own_prompt_s=at.steady.prompt_s,
                    of_which_host_s=at.design.stack.host_prompt_s,
                    burst_wait_s=at.steady.burst_wait_s,
                    place_wait_s=at.steady.place_wait_s,
                    n_requests=at.work.batch,
                    n_places=int(at.steady.n_places),
                ),
            ),
        ),
    ),
    Result(
        "steady_tpot_s",
        "s",
        NUMBER,
        "time per output token, steady server",
        lines=(
            Line(section="Time", place=15, words="steady server: time per output token", shown=of_host),
            Line(section=INTERVALS, place=2, shown=of_host),
        ),
        reads=reads.ALL,
        interval=PER_TOKEN,
        how=(
            by(
                steady.shared_token_s,
                where=lambda at: at.fits,
                terms=lambda at: dict(
                    decoding_on_a_device=int(at.steady.n),
                    decode_step_s=at.steady.decode_step_s,
                    prefill_s=at.steady.prefill_s,
                    output_tokens=at.work.output_tokens,
                ),
            ),
        ),
    ),
    Result(
        "decoding_requests",
        "sequence",
        NUMBER,
        "requests that decode",
        reads=reads.ALL,
        how=(
            by(
                steady.decoding_requests,
                where=lambda at: at.fits,
                terms=lambda at: dict(
                    n_places=int(at.steady.n_places),
                    first_s=at.steady.prompt_s + at.steady.burst_wait_s,
                    decode_s=at.steady.decode_s,
                ),
            ),
        ),
    ),
)


def _experts(name: str, is_prompt: bool) -> Result:
    """Declare the products of experts that were measured apart, in a step or over the prompts."""
    how = How(
        where=lambda at: at.cached and bool(at.terms.has_gemm and at.design.stack.has_experts),
        equation=linear.linear_calibrated_s.equation,
        source=_WHOLE_STEPS,
        terms=lambda at: dict(
            n_products=at.design.model.n_layers,
            launch_s=at.design.stack.expert_launch_s,
            compute_s=(at.prompt_experts if is_prompt else at.experts).compute_s,
            memory_s=(at.prompt_experts if is_prompt else at.experts).read_s,
            n_tokens=float(at.prompt_tokens if is_prompt else at.run.n),
            share_touched=at.prompt_share_touched if is_prompt else at.run.share_touched,
            memory_frac=at.design.stack.expert_memory_frac,
            flops_frac=at.design.stack.expert_flops_frac,
            peak_flops_per_s=at.design.stack.expert_peak_per_s,
        ),
        value=lambda at: at.prompt_experts_s if is_prompt else at.experts_s,
    )
    return Result(name, "s", NUMBER, how=(how,))


STEPS = (
    Result(
        "weight_read_bytes",
        "B",
        NUMBER,
        how=(
            by(
                weights.weight_read_bytes,
                where=lambda at: at.cached,
                terms=lambda at: dict(
                    n_dense_parameters=at.design.model.dense_parameters - at.design.model.unread_parameters,
                    n_expert_parameters=at.design.model.expert_parameters,
                    share_touched=at.run.share_touched,
                    **at.weight_bits(),
                ),
                value=lambda at: at.weight_read_bytes,
            ),
        ),
    ),
    Result(
        "prefill_matrix_s",
        "s",
        NUMBER,
        how=(
            How(
                where=lambda at: at.cached,
                equation=_linear_equation,
                source=_linear_source,
                terms=lambda at: _linear_terms(
                    at,
                    float(at.prompt_tokens),
                    at.wave.prompt_products_s,
                    at.prompt_dense_read_s,
                    at.terms.product_peak_per_s,
                    at.prompt_experts_s,
                ),
                value=lambda at: at.wave.prompt_matrix_s,
            ),
        ),
    ),
    Result(
        "memory_s",
        "s",
        NUMBER,
        how=(
            How(
                where=lambda at: at.cached and bool(at.terms.has_gemm),
                equation="weight bytes / (memory_frac * BW)",
                source=_FORM,
                terms=lambda at: dict(
                    weight_read_bytes=at.dense_read_bytes,
                    memory_frac=at.design.stack.gemm_memory_frac,
                    bandwidth_bytes_per_s=at.terms.bandwidth_bytes_per_s,
                ),
                value=lambda at: at.dense_read_s,
            ),
        ),
    ),
    Result(
        "compute_s",
        "s",
        NUMBER,
        how=(
            How(
                where=lambda at: at.cached and bool(at.terms.has_gemm),
                equation="2 * P_active * n_tokens / (flops_frac * F)",
                source=_FORM,
                terms=lambda at: dict(
                    n_tokens=float(at.run.n),
                    active_parameters=at.terms.active_parameters,
                    flops_frac=at.terms.gemm_flops_frac,
                    peak_flops_per_s=at.step_peak,
                ),
                value=lambda at: at.wave.linear_compute_s,
            ),
        ),
    ),
    _experts("experts_s", is_prompt=False),
    _experts("prefill_experts_s", is_prompt=True),
    Result(
        "one_prompt_s",
        "s",
        NUMBER,
        how=(
            How(
                where=lambda at: at.fits,
                equation="prefill_s of one request alone, whose shared prefix is cached",
                source=_LATENCY,
                terms=lambda at: dict(input_tokens=at.work.input_tokens, prefix_tokens=at.made.prefix_tokens),
                value=lambda at: at.one_prompt_s,
            ),
        ),
    ),
    Result(
        "burst_wait_s",
        "s",
        NUMBER,
        how=(
            by(
                steady.burst_wait_s,
                where=lambda at: at.fits,
                terms=lambda at: dict(
                    n_requests=at.steady.n_places / at.design.deployment.n_groups,
                    prompt_s=at.steady.prefill_s / at.steady.n,
                    rounds_in_step=at.design.stack.rounds_in_step,
                    rounds=at.work.rounds,
                ),
                value=lambda at: at.steady.burst_wait_s,
            ),
        ),
    ),
    Result(
        "place_wait_s",
        "s",
        NUMBER,
        how=(
            by(
                steady.place_wait_s,
                where=lambda at: at.fits,
                terms=lambda at: dict(
                    n_requests=at.work.batch,
                    n_places=int(at.steady.n_places),
                    request_s=at.steady.prompt_s + at.steady.burst_wait_s + at.steady.decode_s,
                ),
                value=lambda at: at.steady.place_wait_s,
            ),
        ),
    ),
)
