"""Times, utilisation, energy and cost of a design point in which something fits: all waves of a batch, or its flow."""

from typing import Any, NamedTuple

from dse import steps, steps_no_cache, steps_prompt, utilisation
from dse.formulas import capacity, energy, throughput
from dse.formulas import utilisation as share
from dse.memory import Memory
from dse.plan import KvPlan
from dse.specs import HardwareSpec, StackSpec
from dse.steps import StepTimes
from dse.trace import Trace
from dse.workload import Workload

ENERGY_PARTS = (
    "joules_per_token_by_parts", "memory_joules_per_token", "compute_joules_per_token", "idle_joules_per_token",
)  # fmt: skip
UTILISATIONS = (
    "compute_utilisation", "bandwidth_utilisation", "prefill_compute_utilisation", "prefill_bandwidth_utilisation",
)  # fmt: skip
#: how often a wave runs, how many sequences it has, and its times
Wave = tuple[float, int, StepTimes]


NO_TIMES: dict[str, Any] = {
    "running_batch": 0, "n_waves": None, "bound": "capacity", "linear_bound": None, "attention_bound": None,
    **dict.fromkeys((
        "linear_s", "attention_s", "quantize_s", "dequantize_s", "quantize_busy_s", "dequantize_busy_s",
        "busy_cores", "decode_step_s", "prefill_s", "total_s", "ttft_s", "tpot_s", "throughput_tokens_per_s",
        "joules_per_token", *ENERGY_PARTS, *UTILISATIONS, "usd_per_million_tokens", "usd_per_request",
    )),
}  # fmt: skip


class Served(NamedTuple):
    """A batch served: how many run at once, in how many waves (None: replaced one by one), and how fast."""

    running: int
    n_waves: int | None
    waves: list[Wave]
    total_s: float
    tokens_per_s: float

    @property
    def times(self) -> StepTimes:
        """Times of the largest wave."""
        return self.waves[0][2]


def served(
    device: HardwareSpec, plan: KvPlan, work: Workload, memory: Memory, trace: Trace, stack: StackSpec | None
) -> Served:
    """The batch of a design in which at least one request fits."""
    paths, prefix = memory.paths, memory.prefix_tokens
    if work.admission == "reserve":
        n_waves = trace.call("n_waves", capacity.n_waves, n_sequences=work.batch, max_batch=memory.max_batch)
        running = trace.call("running_batch", capacity.running_batch, n_sequences=work.batch, n_waves=n_waves)
        times = step_times(device, plan, work, running, paths, prefix, trace, stack)
        n_full = work.batch - n_waves * (running - 1)
        smaller = (
            step_times(device, plan, work, running - 1, paths, prefix, Trace(), stack) if n_full < n_waves else times
        )
        waves = [(float(n_full), running, times), (float(n_waves - n_full), running - 1, smaller)]
        total_s = trace.note(
            "total_s",
            n_full * times.wave_s + (n_waves - n_full) * smaller.wave_s,
            "s",
            "sum over waves of output_tokens * decode_step_s + prefill_s",
            "docs/model.md, Steps and times",
            n_waves=n_waves,
            running_batch=running,
            wave_s=times.wave_s,
            n_waves_of_one_less=n_waves - n_full,
        )
    else:
        running = trace.note(
            "running_batch",
            min(work.batch, memory.max_batch),
            "sequence",
            "min(batch, max_batch): finished requests are replaced at once",
            "docs/model.md, Capacity",
            batch=work.batch,
            max_batch=memory.max_batch,
        )
        n_waves = trace.note("n_waves", None, "", "paged admission has no waves", "docs/model.md, Capacity")
        times = step_times(device, plan, work, running, paths, prefix, trace, stack)
        waves = [(work.batch / running, running, times)]
        total_s = trace.call(
            "total_s", throughput.paged_total_s, n_sequences=work.batch, running_batch=running, wave_s=times.wave_s
        )
    tokens_per_s = trace.call(
        "throughput_tokens_per_s",
        throughput.throughput_tokens_per_s,
        n_sequences=work.batch,
        output_tokens=work.output_tokens,
        total_s=total_s,
    )
    return Served(running, n_waves, waves, total_s, tokens_per_s)


def evaluate(
    device: HardwareSpec, plan: KvPlan, work: Workload, memory: Memory, trace: Trace, stack: StackSpec | None
) -> dict[str, Any]:
    """The results from `running_batch` on, of a design in which at least one request fits."""
    paths, prefix = memory.paths, memory.prefix_tokens
    batch = served(device, plan, work, memory, trace, stack)
    running, n_waves, waves, total_s, tokens_per_s = batch
    times = batch.times
    power, price = device.board_power, device.usd_per_hour
    return {
        "running_batch": running, "n_waves": n_waves, "linear_s": times.linear_s, "attention_s": times.attention_s,
        "quantize_s": times.quantize_s, "dequantize_s": times.dequantize_s,
        "quantize_busy_s": times.quantize_busy_s, "dequantize_busy_s": times.dequantize_busy_s,
        "busy_cores": times.busy_cores, "decode_step_s": times.decode_step_s,
        "prefill_s": times.prefill_s, "total_s": total_s,
        "throughput_tokens_per_s": tokens_per_s,
        **_latency(device, plan, work, paths, prefix, times, trace, stack),
        **_bounds(times, work, running, trace),
        **_utilisation_and_energy(device, plan, work, waves, total_s, trace, stack),
        "joules_per_token": trace.call(
            "joules_per_token", energy.joules_per_token, board_power_w=power.si, throughput_tokens_per_s=tokens_per_s
        ) if power else None,
        "usd_per_million_tokens": trace.call(
            "usd_per_million_tokens", energy.usd_per_million_tokens, usd_per_hour=price.si,
            throughput_tokens_per_s=tokens_per_s,
        ) if price else None,
        "usd_per_request": _usd_per_request(device, plan, work, paths, prefix, waves, total_s, trace, stack)
        if price else None,
    }  # fmt: skip


def _bounds(times: steps.StepTimes, work: Workload, running: int, trace: Trace) -> dict[str, str]:
    """What the whole, the matrix products and attention wait for."""
    where = "docs/model.md, Steps and times"
    shares = dict.fromkeys(("bandwidth", "compute", "latency", "dequantization"), 0.0)
    bounds = {}
    for name, waits in (("linear_bound", times.linear), ("attention_bound", times.attention)):
        bounds[name] = trace.note(
            name, waits.bound, "", "the largest of reading (bandwidth), multiplying (compute) and launching (latency)",
            where, bandwidth_s=waits.bandwidth, compute_s=waits.compute, latency_s=waits.latency,
        )  # fmt: skip
        for part, seconds in waits.shares().items():
            shares[part] += seconds
    for part, seconds in times.prefill_shares.items():
        shares[part] += seconds / work.output_tokens
    shares["dequantization"] += times.dequantize_s + times.quantize_s
    largest = "capacity" if running < work.batch else max(shares, key=lambda name: shares[name])
    trace.note(
        "bound", largest, "",
        "capacity if running_batch < batch, else the largest of these times per decode step, prompt included", where,
        running_batch=running, batch=work.batch, **{f"{name}_s": seconds for name, seconds in shares.items()},
    )  # fmt: skip
    return {"bound": largest, **bounds}


def step_times(
    device: HardwareSpec, plan: KvPlan, work: Workload, n_sequences: int, paths: dict[str, str], prefix_tokens: int,
    trace: Trace, stack: StackSpec | None,
) -> StepTimes:  # fmt: skip
    """Times of `n_sequences` running together, with their KV cache or without."""
    if not work.kv_cache:
        return steps_no_cache.evaluate(device, plan, work, n_sequences, trace, stack)
    return steps.evaluate(device, plan, work, n_sequences, paths, prefix_tokens, trace, stack)


def _latency(
    device: HardwareSpec, plan: KvPlan, work: Workload, paths: dict[str, str], prefix_tokens: int, times: StepTimes,
    trace: Trace, stack: StackSpec | None,
) -> dict[str, float]:  # fmt: skip
    """Time to first token and time per output token of a request that does not queue."""
    one_prompt_s = steps_prompt.prefill_of(
        device, plan, work, 1, paths, prefix_tokens, Trace(), stack, prefix_is_cached=True
    ).seconds
    trace.note(
        "one_prompt_s", one_prompt_s, "s", "prefill_s of one request alone, whose shared prefix is cached",
        "docs/model.md, Latency", input_tokens=work.input_tokens, prefix_tokens=prefix_tokens,
    )  # fmt: skip
    ttft_s = trace.call(
        "ttft_s", throughput.ttft_s, one_prompt_s=one_prompt_s,
        decode_step_s=times.decode_step_s if work.kv_cache else 0.0,  # without a cache a step is a prompt of its own
    )  # fmt: skip
    tpot_s = trace.note(
        "tpot_s", times.decode_step_s, "s", "decode_step_s: every step gives each running request a token",
        "docs/model.md, Latency", decode_step_s=times.decode_step_s,
    )  # fmt: skip
    return {"ttft_s": ttft_s, "tpot_s": tpot_s}


def _utilisation_and_energy(
    device: HardwareSpec, plan: KvPlan, work: Workload, waves: list[Wave], total_s: float, trace: Trace,
    stack: StackSpec | None,
) -> dict[str, float | None]:  # fmt: skip
    """Shares of the peak rates of the first wave, and energy by parts over all waves."""
    n_bytes = at_peak_s = 0.0
    found: dict[str, float | None] = {}
    for count, n, times in waves:
        operations = utilisation.operations(device, plan, work, n, times, stack) if count else []
        step = utilisation.total(operations, "decode", times.decode_step_s)
        prompt = utilisation.total(operations, "prefill", times.prefill_s)
        n_bytes += count * (work.output_tokens * step.n_bytes + prompt.n_bytes)
        at_peak_s += count * (work.output_tokens * step.compute_at_peak_s + prompt.compute_at_peak_s)
        if not found:
            found = {
                **_utilised("", step, trace),
                **(_utilised("prefill_", prompt, trace) if prompt.seconds else dict.fromkeys(UTILISATIONS[2:])),
            }
    per_byte, per_flop, idle = device.energy_per_byte, device.energy_per_flop, device.idle_power
    if per_byte is None or per_flop is None or idle is None:
        return {**found, **dict.fromkeys(ENERGY_PARTS)}
    n_tokens = work.batch * work.output_tokens
    parts = {
        "memory_joules_per_token": trace.call(
            "memory_joules_per_token", energy.memory_joules_per_token, n_bytes=n_bytes, energy_per_byte=per_byte.si,
            n_tokens=n_tokens,
        ),
        "compute_joules_per_token": trace.call(
            "compute_joules_per_token", energy.compute_joules_per_token, at_peak_s=at_peak_s,
            peak_flops_per_s=device.peak_flops.si, energy_per_flop=per_flop.si, n_tokens=n_tokens,
        ),
        "idle_joules_per_token": trace.call(
            "idle_joules_per_token", energy.idle_joules_per_token, idle_power_w=idle.si, total_s=total_s,
            n_tokens=n_tokens,
        ),
    }  # fmt: skip
    whole = trace.call("joules_per_token_by_parts", energy.joules_per_token_by_parts, **parts)
    return {**found, "joules_per_token_by_parts": whole, **parts}


def _utilised(prefix: str, phase: utilisation.Operation, trace: Trace) -> dict[str, float | None]:
    """Both shares of a phase of the first wave."""
    return {
        f"{prefix}{name}_utilisation": trace.call(
            f"{prefix}{name}_utilisation", share.utilisation, at_peak_s=at_peak_s, seconds=phase.seconds
        )
        for name, at_peak_s in (("compute", phase.compute_at_peak_s), ("bandwidth", phase.read_at_peak_s))
    }


def _usd_per_request(
    device: HardwareSpec, plan: KvPlan, work: Workload, paths: dict[str, str], prefix_tokens: int, waves: list[Wave],
    total_s: float, trace: Trace, stack: StackSpec | None,
) -> float:  # fmt: skip
    """The rent of the device seconds of a request; with a discount, its cached input tokens at a share of the price.

    With a discount an input token costs what it takes to compute it here unshared, and a cached one that much less.
    """
    assert device.usd_per_hour is not None
    prompts_s = sum(count * times.prefill_s for count, _, times in waves)
    generation_s = (total_s - prompts_s) / work.batch
    discount = work.cached_input_discount
    if discount is not None and work.kv_cache:
        prompts_s = sum(
            count * steps_prompt.prefill_of(device, plan, work, n, paths, 0, Trace(), stack).seconds
            for count, n, _ in waves if count
        )  # fmt: skip
    found: float = trace.call(
        "usd_per_request", energy.usd_per_request, usd_per_hour=device.usd_per_hour.si, generation_s=generation_s,
        prompt_s=prompts_s / work.batch, input_tokens=work.input_tokens, cached_tokens=prefix_tokens,
        cached_input_discount=discount or 0.0,
    )  # fmt: skip
    return found
