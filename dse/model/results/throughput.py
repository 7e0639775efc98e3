"""Tokens per second, what binds them, and what they cost in energy and money."""

from dse.model.batch import shares_of
from dse.model.facts import Facts
from dse.model.formulas import steady
from dse.model.formulas.utilisation import utilisation
from dse.model.results import reads
from dse.model.results.declare import (
    ENERGY,
    INTERVALS,
    NAME,
    NUMBER,
    RATES,
    SERVED,
    Derivation,
    TextLine,
    Topic,
    by,
    how,
)

_TIMES = "docs/explanation/model.md, Steps and times"

topic = Topic(of_times=True)


@topic.result(
    "tok/s",
    NUMBER,
    "throughput",
    TextLine("Throughput", 1, "throughput"),
    TextLine(INTERVALS, 5),
    reads=reads.ALL,
    interval=RATES,
)
def throughput_tokens_per_s(at: Facts) -> Derivation:
    return by(
        steady.closed_loop_tokens_per_s,
        n_requests=at.work.batch,
        output_tokens=at.work.output_tokens,
        ttft_s=at.results["ttft_s"],
        tpot_s=at.results["tpot_s"],
    )


@topic.result("request/s", NUMBER, "requests a second", reads=reads.ALL, interval=RATES)
def requests_per_s(at: Facts) -> Derivation:
    rate = at.results["throughput_tokens_per_s"]
    return how("throughput / output tokens", _TIMES, throughput_tokens_per_s=rate, output_tokens=at.work.output_tokens)


topic.add(
    "static_batch_tokens_per_s",
    "tok/s",
    NUMBER,
    "throughput, one static batch",
    TextLine("Throughput", 1.5, ""),
    reads=reads.ALL,
    interval=RATES,
)


@topic.result("", NAME, "bound by", reads=reads.ALL)
def bound(at: Facts) -> Derivation:
    return how(
        "capacity if running_batch < batch, else the largest of these times per decode step, prompt included",
        _TIMES,
        running_batch=at.results["running_batch"],
        batch=at.work.batch,
        **{f"{name}_s": seconds for name, seconds in shares_of(at.design, at.run)._asdict().items()},
    )


_LARGEST = "the largest of reading (bandwidth), multiplying (compute) and launching (latency)"


@topic.result("", NAME, "linear layers bound by", reads=reads.LINEAR)
def linear_bound(at: Facts) -> Derivation:
    waits = (at.run.linear_read_s, at.run.linear_compute_s, at.run.linear_latency_s)
    return how(_LARGEST, _TIMES, bandwidth_s=waits[0], compute_s=waits[1], latency_s=waits[2])


@topic.result("", NAME, "attention bound by", reads=reads.ATTENTION)
def attention_bound(at: Facts) -> Derivation:
    waits = (at.run.attention_read_s, at.run.attention_compute_s, at.run.attention_latency_s)
    return how(_LARGEST, _TIMES, bandwidth_s=waits[0], compute_s=waits[1], latency_s=waits[2])


def _share(at: Facts, name: str) -> Derivation | None:
    """Explain the share of a peak rate that a decode step, or the prompts, reach."""
    if at.results[name] is None:
        return None
    phase = at.prompt_total if name.startswith("prefill_") else at.step_total
    at_peak_s = phase.compute_at_peak_s if "compute" in name else phase.read_at_peak_s
    return by(utilisation, at_peak_s=at_peak_s, seconds=phase.seconds)


@topic.result("1", NUMBER, "share of peak FLOP/s", reads=reads.ALL, figure_unit="%")
def compute_utilisation(at: Facts) -> Derivation | None:
    return _share(at, "compute_utilisation")


@topic.result("1", NUMBER, "share of peak bandwidth", reads=reads.ALL, figure_unit="%")
def bandwidth_utilisation(at: Facts) -> Derivation | None:
    return _share(at, "bandwidth_utilisation")


@topic.result("1", NUMBER, "share of peak FLOP/s, prompt", reads=reads.PROMPT, figure_unit="%")
def prefill_compute_utilisation(at: Facts) -> Derivation | None:
    return _share(at, "prefill_compute_utilisation")


@topic.result("1", NUMBER, "share of peak bandwidth, prompt", reads=reads.PROMPT, figure_unit="%")
def prefill_bandwidth_utilisation(at: Facts) -> Derivation | None:
    return _share(at, "prefill_bandwidth_utilisation")


_BY_PARTS = (*reads.ALL, *reads.BYTES, *reads.FLOPS, "idle_power")
for name, title, place, words, read_by, interval in (
    ("joules_per_token", "energy", 2, "energy, at board power", (*reads.ALL, "board_power"), SERVED),
    ("joules_per_token_by_parts", "energy by parts", 3, "", _BY_PARTS, ENERGY),
    (
        "memory_joules_per_token",
        "energy of reads and writes",
        4,
        "  energy of reads and writes",
        (*reads.MEMORY, *reads.BYTES, "kv_burst"),
        ENERGY,
    ),
    (
        "compute_joules_per_token",
        "energy of operations",
        5,
        "  energy of operations",
        (*reads.MEMORY, *reads.FLOPS, "peak_flops", *reads.NARROW),
        ENERGY,
    ),
    ("idle_joules_per_token", "energy of idling", 6, "  energy of idling", (*reads.ALL, "idle_power"), ENERGY),
):
    lines = TextLine("Throughput", place, words), TextLine(INTERVALS, place + 4, words if words.startswith(" ") else "")
    topic.add(name, "J/token", NUMBER, title, *lines, reads=read_by, interval=interval)

for place, (name, unit, title, words) in enumerate(
    (
        ("usd_per_million_tokens", "USD per million tokens", "cost of a million tokens", ""),
        ("usd_per_request", "USD per request", "cost of a request", ""),
    ),
    7,
):
    line = TextLine("Throughput", place, words)
    topic.add(name, unit, NUMBER, title, line, reads=(*reads.ALL, "usd_per_hour"), interval=SERVED)

topic.add(
    "effective_bandwidth_bytes_per_s",
    "B/s",
    NUMBER,
    "effective bandwidth",
    TextLine("Throughput", 9, "effective bandwidth"),
    reads=("memory_bandwidth", "pim_bandwidth"),
)
topic.add(
    "effective_capacity_bytes",
    "B",
    NUMBER,
    "effective capacity",
    TextLine("Throughput", 10, "effective capacity, by the data sheet"),
    reads=("memory_capacity",),
)
