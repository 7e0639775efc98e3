"""Tokens per second, what binds them, and what they cost in energy and money."""

from typing import TYPE_CHECKING, Any

from dse.model.formulas.utilisation import utilisation
from dse.model.results import reads
from dse.model.results.declare import ENERGY, INTERVALS, NAME, NUMBER, PER_TOKEN, RATES, How, Line, Result, by

if TYPE_CHECKING:
    from dse.model.facts import Facts

_TIMES = "docs/explanation/model.md, Steps and times"


def _bound(name: str, title: str, part: str, reads_of: tuple[str, ...]) -> Result:
    """Declare what a part of a step waits for: `part` begins the names of its times."""

    def terms(at: "Facts") -> dict[str, Any]:
        waits = {"bandwidth_s": "read_s", "compute_s": "compute_s", "latency_s": "latency_s"}
        return {term: getattr(at.run, f"{part}_{time}") for term, time in waits.items()}

    how = How(
        where=lambda at: at.fits,
        equation="the largest of reading (bandwidth), multiplying (compute) and launching (latency)",
        source=_TIMES,
        terms=terms,
    )
    return Result(name, "", NAME, title, reads=reads_of, how=(how,))


def _share(name: str, title: str, reads_of: tuple[str, ...]) -> Result:
    """Declare the share of a peak rate that a decode step, or the prompts, reach."""
    of_prompt, of_compute = name.startswith("prefill_"), "compute" in name

    def terms(at: "Facts") -> dict[str, Any]:
        phase = at.prompt_total if of_prompt else at.step_total
        return dict(at_peak_s=phase.compute_at_peak_s if of_compute else phase.read_at_peak_s, seconds=phase.seconds)

    how = by(utilisation, terms, where=lambda at: at.fits and at.results[name] is not None)
    return Result(name, "1", NUMBER, title, figure_unit="%", reads=reads_of, how=(how,))


def _energy_part(name: str, title: str, place: int, words: str, reads_of: tuple[str, ...]) -> Result:
    """Declare a part of the energy by parts."""
    lines = (
        Line(section="Throughput", place=place, words=words),
        Line(section=INTERVALS, place=place + 4, words=words),
    )
    return Result(name, "J/token", NUMBER, title, lines=lines, reads=reads_of, interval=ENERGY)


RESULTS = (
    Result(
        "throughput_tokens_per_s",
        "token/s",
        NUMBER,
        "throughput",
        lines=(Line(section="Throughput", place=1, words="throughput"), Line(section=INTERVALS, place=5)),
        reads=reads.ALL,
        interval=RATES,
    ),
    Result(
        "bound",
        "",
        NAME,
        "bound by",
        reads=reads.ALL,
        how=(
            How(
                where=lambda at: at.fits,
                equation=(
                    "capacity if running_batch < batch, else the largest of these times per decode step, prompt "
                    "included"
                ),
                source=_TIMES,
                terms=lambda at: dict(
                    running_batch=at.results["running_batch"], batch=at.work.batch, **at.waited_for()
                ),
            ),
        ),
    ),
    _bound("linear_bound", "linear layers bound by", "linear", reads.LINEAR),
    _bound("attention_bound", "attention bound by", "attention", reads.ATTENTION),
    _share("compute_utilisation", "share of peak FLOP/s", reads.ALL),
    _share("bandwidth_utilisation", "share of peak bandwidth", reads.ALL),
    _share("prefill_compute_utilisation", "share of peak FLOP/s, prompt", reads.PROMPT),
    _share("prefill_bandwidth_utilisation", "share of peak bandwidth, prompt", reads.PROMPT),
    Result(
        "joules_per_token",
        "J/token",
        NUMBER,
        "energy",
        lines=(Line(section="Throughput", place=2, words="energy, board power"), Line(section=INTERVALS, place=6)),
        reads=(*reads.ALL, "board_power"),
        interval=PER_TOKEN,
    ),
    Result(
        "joules_per_token_by_parts",
        "J/token",
        NUMBER,
        "energy by parts",
        lines=(
            Line(section="Throughput", place=3, words="energy by bytes, operations, idling"),
            Line(section=INTERVALS, place=7),
        ),
        reads=(*reads.ALL, *reads.BYTES, *reads.FLOPS, "idle_power"),
        interval=ENERGY,
    ),
    _energy_part(
        "memory_joules_per_token",
        "energy of reads and writes",
        4,
        "  bytes read and written",
        (*reads.MEMORY, *reads.BYTES, "kv_burst"),
    ),
    _energy_part(
        "compute_joules_per_token",
        "energy of operations",
        5,
        "  operations",
        (*reads.MEMORY, *reads.FLOPS, "peak_flops", *reads.NARROW),
    ),
    _energy_part("idle_joules_per_token", "energy of idling", 6, "  idling", (*reads.ALL, "idle_power")),
    Result(
        "usd_per_million_tokens",
        "USD per million tokens",
        NUMBER,
        "cost of a million tokens",
        lines=(Line(section="Throughput", place=7, words="price of output"),),
        reads=(*reads.ALL, "usd_per_hour"),
        interval=PER_TOKEN,
    ),
    Result(
        "usd_per_request",
        "USD per request",
        NUMBER,
        "cost of a request",
        lines=(Line(section="Throughput", place=8, words="price of a request"),),
        reads=(*reads.ALL, "usd_per_hour"),
        interval=PER_TOKEN,
    ),
    Result(
        "effective_bandwidth_bytes_per_s",
        "B/s",
        NUMBER,
        "effective bandwidth",
        lines=(Line(section="Throughput", place=9, words="effective bandwidth"),),
        reads=("memory_bandwidth",),
    ),
    Result(
        "effective_capacity_bytes",
        "B",
        NUMBER,
        "effective capacity",
        lines=(Line(section="Throughput", place=10, words="effective capacity, by the data sheet"),),
        reads=("memory_capacity",),
    ),
)
