"""Ways to make a design fit that does not: fewer bits, more devices, shorter contexts, or several of them at once. Each
is evaluated before it is proposed, and none is what the engine does not run."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from dse import quantizers
from dse.core.errors import DseError
from dse.model import quality, starts
from dse.model.point import Point
from dse.questions import common
from dse.specs.weights import WIDE
from dse.specs.workload import MAX_DEVICES, Workload

Result = dict[str, Any]
#: KV formats of fewer bits that engines ship, and their bits, in the order in which they are tried
KV_FORMATS = {"fp8": 8, "int4_per_token_head": 4}
#: weights of fewer bits that servers run where a model was released in 16, in the order in which they are tried
WEIGHTS = ("fp8", "int4")
#: devices that a layer is split over, and servers of the most of them that stages are split over
TP, SERVERS = (2, 4, 8), (2, 4)
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
    """Changes by kind, the mildest of each first: KV and weights of fewer bits, another layout, more devices.

    `work` is the workload as it was asked for.
    """
    if work.gpu_memory_utilization is not None:
        default_share = replace(work, gpu_memory_utilization=None)
        yield [Way("the server's own share of the memory", default_share)]
    if point.free_bytes >= 0:  # else the weights alone take all of it
        yield [Way(f"KV in {name}", work, name) for name in formats_of(point)]
    yield [Way(f"weights in {name}", _with_weights(work, name)) for name in weights_of(point)]
    yield _in_stages(work)
    yield _split(Way("", work))


def two_ways(point: Point, work: Workload) -> Iterator[list[Way]]:
    """Two changes at once, a kind a format: weights or KV of fewer bits on more devices, or both on as many."""
    weights = [Way(f"weights in {name}", _with_weights(work, name)) for name in weights_of(point)]
    for way in weights:
        yield _split(way)
    for name in formats_of(point):
        yield _split(Way(f"KV in {name}", work, name))
        yield [replace(way, words=f"{way.words} and KV in {name}", quantizer=name) for way in weights]


def all_ways(point: Point, work: Workload) -> Iterator[list[Way]]:
    """Weights and KV of the fewest bits on more devices, then over several servers of the most of them."""
    fewest = Way("", work)
    for name in weights_of(point)[-1:]:
        fewest = Way(f"weights in {name}", _with_weights(work, name))
    for name in formats_of(point)[-1:]:
        fewest = Way(f"{fewest.words} and KV in {name}".removeprefix(" and "), fewest.work, name)
    yield _split(fewest)
    yield _servers(Way("", work))
    yield _servers(fewest)


def formats_of(point: Point) -> list[str]:
    """KV formats of fewer bits than a design has that the engine runs: of a chip with engines for formats, those."""
    bits, device, now = point.lowered.results["effective_bits"], point.device, point.plan.key_quantizer.family.name
    if device.engine_rate is not None and not device.is_own_chip:
        return [name for name in quantizers.FAMILIES if device.path_of(name) == "engine" and name != now and bits > 8]
    model, work, stack = point.plan.model, point.work, str(point.lowered.results["stack"] or "")
    narrower = [name for name, n_bits in KV_FORMATS.items() if n_bits < bits]
    return [name for name in narrower if not starts.of_format(device, model, work, stack, name).reason]


def weights_of(point: Point) -> list[str]:
    """Weights of fewer bits than a design has that servers run for its model: its release's own in place of 8 bits."""
    released, work = point.plan.model.released, point.work
    names = WEIGHTS if released == WIDE else (released, *WEIGHTS[1:])
    now = work.weight_format.dense_eighths
    return [name for name in names if name != work.weights and (name == released or _eighths(work, name) < now)]


def _split(way: Way) -> list[Way]:
    """A way on more devices, fewest first."""
    start = 1 << way.work.tp.bit_length()  # the next power of two: nobody rents 3 or 6 devices for one model
    return [_on_devices(way, replace(way.work, tp=start * n)) for n in (1, 2, 4) if start * n <= MAX_DEVICES]


def _in_stages(work: Workload) -> list[Way]:
    """As many devices with more stages of layers: heads of which each device holds a copy are then held once."""
    splits = [replace(work, tp=work.tp // n, pp=work.pp * n) for n in TP if work.tp % n == 0]
    return [Way(f"stages of layers (tp {split.tp}, pp {split.pp})", split) for split in splits]


def _servers(way: Way) -> list[Way]:
    """A way over several servers, each with a stage of the layers and the most devices."""
    return [_on_devices(way, replace(way.work, tp=TP[-1], pp=n)) for n in SERVERS]


def _on_devices(way: Way, work: Workload) -> Way:
    words = f"{way.words} on " if way.words else ""
    return replace(way, words=f"{words}{work.n_devices:,} devices", work=work)


def _with_weights(work: Workload, name: str) -> Workload:
    return replace(work, weights=name, weights_bits=16, activation_bits=16)


def _eighths(work: Workload, name: str) -> int:
    """Eighths of a bit that a parameter outside the experts takes in a format."""
    return _with_weights(work, name).weight_format.dense_eighths


def _shorter(point: Point, work: Workload) -> Way | None:
    """The longest prompt with which one request fits; None where no prompt is short enough."""
    single = replace(point.work, batch=1)
    longest = Point(point.device, point.plan, single).max_context_tokens
    n_tokens = (longest or 0) - single.output_tokens
    if n_tokens > ROUND_TOKENS:
        n_tokens -= n_tokens % ROUND_TOKENS
    if n_tokens < max(1, single.prefix_tokens) or n_tokens >= single.input_tokens:
        return None
    return Way(f"prompts of {n_tokens:,} tokens", replace(work, input_tokens=n_tokens, max_model_len=None))


def fits(result: Result) -> bool:
    """True where at least one request fits."""
    return bool(result["feasible"])


def that_fit(
    point: Point, work: Workload, evaluate: Callable[[Way], Result], is_enough: Callable[[Result], bool] = fits
) -> list[tuple[Way, Result]]:
    """Up to `MOST_WAYS` ways after which a point is enough, of each kind the mildest, with their results.

    Several changes at once are tried where fewer than two single ones are enough, on fewer devices than these take;
    several servers where nothing fits as it is.
    """
    fitting: list[tuple[Way, Result]] = []
    for kinds in (ways, two_ways) if point.max_batch else (ways, two_ways, all_ways):
        if len(fitting) < 2:
            least = min((way.work.n_devices for way, _ in fitting), default=MAX_DEVICES + 1)
            kept = ([way for way in kind if way.work.n_devices < least] for kind in kinds(point, work))
            fitting += [pair for kind in kept for pair in first_of(kind, evaluate, is_enough)]
    if not point.max_batch and point.free_bytes >= 0 and (shorter := _shorter(point, work)):
        fitting += first_of([shorter], evaluate, is_enough)
    return fitting[:MOST_WAYS]


def first_of(
    kind: Iterable[Way], evaluate: Callable[[Way], Result], is_enough: Callable[[Result], bool]
) -> list[tuple[Way, Result]]:
    """The first way of a kind after which a point is enough, with its results; none where there is none."""
    for way in kind:
        try:
            result = evaluate(way)
        except DseError:
            continue
        if common.competes(result) and is_enough(result):
            return [(way, result)]
    return []


def outcome(result: Result) -> str:
    """Room and throughput of a way in words, and its accuracy loss where that is known."""
    most, rate = result["max_batch"], result["throughput_tokens_per_s"]
    said = [f"room for {most:,} request{'s' if most > 1 else ''} at once", f"{rate:,.0f} tok/s"]
    if result["score_drop_frac"]:
        said.append(f"accuracy loss {quality.drop_text(result)}")
    if (result["sample_perplexity_frac"] or 0.0) > 0:
        said.append(f"rise of perplexity {quality.rise_text(result)} (of a small model)")
    return ", ".join(said)
