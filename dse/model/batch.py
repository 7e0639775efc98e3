"""A batch served to the end: throughput, latency, what binds, utilisation, energy and cost over all of its waves."""

import math
from typing import NamedTuple

from dse.core.compiling import compilable, inlined, making
from dse.model.capacity import Waves
from dse.model.energy import knows_bits
from dse.model.formulas import energy, throughput, utilisation
from dse.model.generation import Generation
from dse.model.operations import DECODE, PREFILL, decode_operations, joules_of, prompt_operations, total_of
from dse.model.records import MISSING, STATIC, Design
from dse.model.step import Run, Terms, prompt_host_s, unshared_prompts_s

#: what a time is bound by; ties go to the first
BOUNDS = ("bandwidth", "compute", "latency", "dequantization", "capacity", "communication")
BANDWIDTH, COMPUTE, LATENCY, DEQUANTIZATION, CAPACITY, COMMUNICATION = range(6)


class Bounds(NamedTuple):
    """Places in `BOUNDS` of what the whole, the matrix products and attention wait for."""

    bound: int
    linear_bound: int
    attention_bound: int


class Shares(NamedTuple):
    """Seconds of a decode step by what is waited for."""

    bandwidth: float
    compute: float
    latency: float
    dequantization: float
    communication: float


class Totals(NamedTuple):
    """Over all waves."""

    total_s: float
    static_batch_tokens_per_s: float


class Served(NamedTuple):
    """Running sequences, waves and busy cores of a batch; MISSING where a count does not apply."""

    running_batch: int
    n_waves: int
    busy_cores: int


class Spent(NamedTuple):
    """Shares of the peak rates and busy times in the largest wave, energy by parts and cost over all; nan where not
    known."""

    compute_utilisation: float
    bandwidth_utilisation: float
    prefill_compute_utilisation: float
    prefill_bandwidth_utilisation: float
    memory_joules_per_token: float
    compute_joules_per_token: float
    idle_joules_per_token: float
    joules_per_token_by_parts: float
    usd_per_request: float
    quantize_busy_s: float
    dequantize_busy_s: float


@inlined
def full_batch(design: Design, most: int) -> int:
    """The batch where none is given: the `most` that fit, at most what the server takes; 1 where none fits."""
    return max(min(most, design.load.most_at_once), 1)


@inlined
def totals_of(
    batch: float, output_tokens: int, waves: Waves, wave_s: float, smaller_s: float, is_replaced: int
) -> Totals:
    """Seconds of all requests of a static batch, and its rate; `smaller_s` is a wave of one sequence less."""
    waves_s = waves.n_full * wave_s + waves.n_smaller * smaller_s
    total_s = throughput.paged_total_s(batch, waves.running, wave_s) if is_replaced else waves_s
    return Totals(total_s, throughput.static_batch_tokens_per_s(batch, output_tokens, total_s))


@inlined
def served_s(design: Design, batch: float, tokens_per_s: float, total_s: float) -> float:
    """Seconds in which all requests of a batch are served: at the server's rate, or in `total_s` as a static batch."""
    if design.load.batching == STATIC:
        return total_s
    return batch * design.output_tokens / tokens_per_s


@compilable
def busy_cores(design: Design, running: float) -> int:
    """Cores that decode, each a sequence; MISSING where tokens are not computed by cores of their own."""
    cores = design.device.token_cores if design.load.has_cache else 0
    return min(int(running), cores) if cores else MISSING


@inlined
def served_of(design: Design, running: float, n_waves: float) -> Served:
    """Count the waves and busy cores with `running` sequences at once; `n_waves` is 0 without waves."""
    return Served(int(running), int(n_waves) if n_waves > 0 else MISSING, busy_cores(design, running))


@compilable
def _largest(read_s: float, compute_s: float, latency_s: float) -> int:
    bound, most = BANDWIDTH, read_s
    if compute_s > most:
        bound, most = COMPUTE, compute_s
    return LATENCY if latency_s > most else bound


@compilable
def step_shares(run: Run) -> Shares:
    """Seconds of the mean decode step by what is waited for: reading and computing overlap, the larger counts."""
    wave = run.wave
    by_bandwidth = by_compute = 0.0
    if run.linear_compute_s > run.linear_read_s:
        by_compute += wave.linear_s - run.linear_latency_s
    else:
        by_bandwidth += wave.linear_s - run.linear_latency_s
    if run.attention_compute_s > run.attention_read_s:
        by_compute += wave.attention_s - run.attention_latency_s
    else:
        by_bandwidth += wave.attention_s - run.attention_latency_s
    if by_compute > by_bandwidth:  # slower clocks stretch what counts most
        by_compute += wave.power_s
    else:
        by_bandwidth += wave.power_s
    latency = run.linear_latency_s + run.attention_latency_s + wave.host_s
    return Shares(by_bandwidth, by_compute, latency, wave.dequantize_s + wave.quantize_s, wave.collective_s)


@compilable
def prompt_shares(design: Design, run: Run) -> Shares:
    """Seconds of the prompts of a run by what is waited for."""
    wave, bandwidth, compute = run.wave, 0.0, 0.0
    latency = run.linear_latency_s / design.stack.token_time
    if run.prompt_products_s > run.prompt_read_s:
        compute = wave.prompt_matrix_s - latency
    else:
        bandwidth = wave.prompt_matrix_s - latency
    compute += wave.prompt_compute_s - wave.prompt_matrix_s + wave.prompt_power_s
    latency += prompt_host_s(design)
    return Shares(bandwidth, compute, latency, wave.prompt_quantize_s, wave.prompt_collective_s)


@compilable
def shares_of(design: Design, run: Run) -> Shares:
    """Seconds of the mean decode step by what is waited for, with each step's part of the prompts."""
    n_steps, step = design.output_tokens, step_shares(run)
    if design.load.has_cache == 0:
        return step
    prompts = prompt_shares(design, run)
    return Shares(
        step.bandwidth + prompts.bandwidth / n_steps,
        step.compute + prompts.compute / n_steps,
        step.latency + prompts.latency / n_steps,
        step.dequantization + prompts.dequantization / n_steps,
        step.communication + prompts.communication / n_steps,
    )


@compilable
def bounds_of(design: Design, run: Run, running: float, batch: float) -> Bounds:
    """Name the bottlenecks of a run, of its matrix products and of attention, with `running` sequences at once."""
    linear = _largest(run.linear_read_s, run.linear_compute_s, run.linear_latency_s)
    attended = _largest(run.attention_read_s, run.attention_compute_s, run.attention_latency_s)
    if running < batch:
        return Bounds(CAPACITY, linear, attended)
    shares = shares_of(design, run)
    whole = _largest(shares.bandwidth, shares.compute, shares.latency)
    if shares.dequantization > max(shares.bandwidth, shares.compute, shares.latency):
        whole = DEQUANTIZATION
    if shares.communication > max(shares.bandwidth, shares.compute, shares.latency, shares.dequantization):
        whole = COMMUNICATION
    return Bounds(whole, linear, attended)


@compilable
def _utilised(at_peak_s: float, seconds: float) -> float:
    return utilisation.utilisation(at_peak_s, seconds) if seconds else math.nan


@making
def spent_of(
    design: Design, made: Generation, terms: Terms, run: Run, smaller: Run, waves: Waves, batch: float, total_s: float
) -> Spent:
    """Utilisation of the largest wave, `run`; energy and cost over all, `smaller` being those of one sequence less."""
    device, n_steps = design.device, float(design.output_tokens)
    of_step, of_prompt = decode_operations(design, terms, run), prompt_operations(design, terms, run)
    step = total_of(of_step, DECODE, run.wave.decode_step_s)
    prompt = total_of(of_prompt, PREFILL, run.wave.prefill_s)
    (moved, calculated), (moved_once, calculated_once) = (
        joules_of(design, terms, of_step),
        joules_of(design, terms, of_prompt),
    )
    # a run is all stages of one of the devices that a layer is split over: every batch in flight passes all of them
    split = design.deployment
    of_all = float(split.n_devices // split.n_stages * split.n_in_flight)
    busy = split.n_in_flight / split.n_stages
    n_bytes = waves.n_full * (n_steps * step.n_bytes + prompt.n_bytes)
    at_peak_s = waves.n_full * (n_steps * step.compute_at_peak_s + prompt.compute_at_peak_s)
    moved = waves.n_full * (n_steps * moved + moved_once)
    calculated = waves.n_full * (n_steps * calculated + calculated_once)
    prompts_s = waves.n_full * run.wave.prefill_s
    if waves.n_smaller:
        of_less, of_once = decode_operations(design, terms, smaller), prompt_operations(design, terms, smaller)
        less = total_of(of_less, DECODE, smaller.wave.decode_step_s)
        prompt_less = total_of(of_once, PREFILL, smaller.wave.prefill_s)
        n_bytes += waves.n_smaller * (n_steps * less.n_bytes + prompt_less.n_bytes)
        at_peak_s += waves.n_smaller * (n_steps * less.compute_at_peak_s + prompt_less.compute_at_peak_s)
        (moved_less, calculated_less), (moved_once, calculated_once) = (
            joules_of(design, terms, of_less),
            joules_of(design, terms, of_once),
        )
        moved += waves.n_smaller * (n_steps * moved_less + moved_once)
        calculated += waves.n_smaller * (n_steps * calculated_less + calculated_once)
        prompts_s += waves.n_smaller * smaller.wave.prefill_s
    n_tokens = batch * n_steps
    within = 1.0
    if device.power_limit_w > 0.0:
        within = energy.share_within_limit(
            of_all * (moved + calculated), split.n_devices * total_s, device.power_limit_w, device.idle_power_w
        )
    per_byte, per_flop = device.energy_per_byte, device.energy_per_flop
    at_peak_flops = at_peak_s * terms.peak_flops_per_s
    if knows_bits(device):  # others to the last digit as one rate has it: designs that tie go on doing so
        per_byte = within * moved / n_bytes if n_bytes > 0.0 else per_byte
        per_flop = within * calculated / at_peak_flops if at_peak_flops > 0.0 else per_flop
    n_bytes, at_peak_s = of_all * n_bytes, of_all * at_peak_s
    memory = energy.memory_joules_per_token(n_bytes, per_byte, n_tokens)
    compute = energy.compute_joules_per_token(at_peak_s, terms.peak_flops_per_s, per_flop, n_tokens)
    idle = energy.idle_joules_per_token(split.n_devices * device.idle_power_w, total_s, n_tokens)
    generation_s, discount = (total_s - prompts_s) / batch, design.load.cached_input_discount
    if math.isnan(discount):
        discount = 0.0
    elif design.load.has_cache:
        prompts_s = waves.n_full * unshared_prompts_s(design, made, terms, float(run.n))
        if waves.n_smaller:
            prompts_s += waves.n_smaller * unshared_prompts_s(design, made, terms, float(smaller.n))
    usd = energy.usd_per_request(
        split.n_devices * device.usd_per_hour,
        generation_s,
        prompts_s / batch,
        design.input_tokens,
        made.prefix_tokens,
        discount,
    )
    return Spent(
        compute_utilisation=_utilised(busy * step.compute_at_peak_s, step.seconds),
        bandwidth_utilisation=_utilised(busy * step.read_at_peak_s, step.seconds),
        prefill_compute_utilisation=_utilised(busy * prompt.compute_at_peak_s, prompt.seconds),
        prefill_bandwidth_utilisation=_utilised(busy * prompt.read_at_peak_s, prompt.seconds),
        memory_joules_per_token=memory,
        compute_joules_per_token=compute,
        idle_joules_per_token=idle,
        joules_per_token_by_parts=energy.joules_per_token_by_parts(memory, compute, idle),
        usd_per_request=usd,
        quantize_busy_s=run.quantize_busy_s,
        dequantize_busy_s=run.dequantize_busy_s,
    )
