"""Ways to make a design fit that does not: fewer bits, more devices, shorter contexts. Each is evaluated before it is
proposed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from dse.core.errors import DseError
from dse.model.evaluate import Point
from dse.specs.weights import WIDE
from dse.specs.workload import MAX_DEVICES, Workload

Result = dict[str, Any]
#: KV formats of fewer bits that engines ship, in the order in which they are tried
KV_FORMATS = ("fp8", "int4_per_token_head")
#: weights of fewer bits that servers run where a model was released in 16, in the order in which they are tried
WEIGHTS = ("fp8", "int4")
#: devices that a layer is split over
TP = (2, 4, 8)
#: ways that are shown, and tokens that a shorter prompt is rounded down to
MOST_WAYS, ROUND_TOKENS = 3, 256


@dataclass(frozen=True)
class Way:
    """A change of a design: of the KV format, of the workload, or of both."""

    words: str
    work: Workload
    #: None: as it is
    quantizer: str | None = None


def ways(point: Point, work: Workload) -> Iterator[list[Way]]:
    """Changes by kind, the mildest of each first: KV and weights of fewer bits, more devices, a shorter prompt.

    `work` is the workload as it was asked for.
    """
    bits = point.lowered.results["effective_bits"]
    if work.gpu_memory_utilization is not None:
        own = replace(work, gpu_memory_utilization=None)
        yield [Way("the server's own share of the memory", own)]
    if point.free_bytes >= 0:  # else the weights alone take all of it
        yield [Way(f"KV in {name}", work, name) for name in _narrower(bits)]
    yield [Way(f"weights in {name}", _with_weights(work, name)) for name in weights_of(point)]
    yield _split(work)
    if point.free_bytes >= 0 and (shorter := _shorter(point, work)):
        yield [shorter]


def both_ways(point: Point, work: Workload) -> Iterator[list[Way]]:
    """Weights of fewer bits on more devices, a kind a format: for what neither makes fit alone."""
    for name in weights_of(point):
        yield _split(_with_weights(work, name), f"weights in {name} on ")


def weights_of(point: Point) -> list[str]:
    """Weights of fewer bits than a design has that servers run for its model: its release's own in place of 8 bits."""
    released, work = point.plan.model.released, point.work
    names = WEIGHTS if released == WIDE else (released, *WEIGHTS[1:])
    now = work.weight_format.dense_eighths
    return [name for name in names if name != work.weights and (name == released or _eighths(work, name) < now)]


def _split(work: Workload, words: str = "") -> list[Way]:
    more = [replace(work, tp=work.tp * n) for n in TP if work.tp * n <= MAX_DEVICES]
    return [Way(f"{words}{each.n_devices:,} devices", each) for each in more]


def _narrower(bits: float) -> list[str]:
    """KV formats of fewer bits than a design has now."""
    n_bits = {"fp8": 8, "int4_per_token_head": 4}
    return [name for name in KV_FORMATS if n_bits[name] < bits]


def _with_weights(work: Workload, name: str) -> Workload:
    return replace(work, weights=name, weights_bits=16, activation_bits=16)


def _eighths(work: Workload, name: str) -> int:
    """Eighths of a bit that a parameter outside the experts takes in a format."""
    return _with_weights(work, name).weight_format.dense_eighths


def _shorter(point: Point, work: Workload) -> Way | None:
    """The longest prompt with which one request fits; None where no prompt is short enough."""
    one = replace(point.work, batch=1)
    longest = Point(point.device, point.plan, one).max_context_tokens
    n_tokens = (longest or 0) - one.output_tokens
    if n_tokens > ROUND_TOKENS:
        n_tokens -= n_tokens % ROUND_TOKENS
    if n_tokens < max(1, one.prefix_tokens) or n_tokens >= one.input_tokens:
        return None
    return Way(f"prompts of {n_tokens:,} tokens", replace(work, input_tokens=n_tokens, max_model_len=None))


def that_fit(point: Point, work: Workload, evaluate: Callable[[Way], Result]) -> list[tuple[Way, Result]]:
    """Up to `MOST_WAYS` ways that make a point fit, of each kind the mildest that does, with their results; none for
    one that fits as it is."""
    if point.max_batch:
        return []
    for kinds in (ways, both_ways):
        if found := [each for kind in kinds(point, work) for each in _first(kind, evaluate)]:
            return found[:MOST_WAYS]
    return []


def _first(kind: list[Way], evaluate: Callable[[Way], Result]) -> list[tuple[Way, Result]]:
    for way in kind:
        try:
            result = evaluate(way)
        except DseError:
            continue
        if result["feasible"]:
            return [(way, result)]
    return []


def outcome(result: Result) -> str:
    """Room and throughput of a way in words, and its drop of scores where that is known."""
    most, rate = result["max_batch"], result["throughput_tokens_per_s"]
    said = [f"room for {most:,} request{'s' if most > 1 else ''} at once", f"{rate:,.0f} token/s"]
    if drop := result["score_drop_frac"]:
        said.append(f"scores drop by {100 * drop:.1f} %")
    return ", ".join(said)
