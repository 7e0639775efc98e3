"""Results of a design point: computed as it is asked for, interpreted or by compiled code, named and in order."""

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from dse.model import implementations, uncertainty
from dse.model.batch import prompt_shares, step_shares
from dse.model.point import NO_TIMES, Point
from dse.model.results import RESULT_UNITS
from dse.model.step import Wave
from dse.specs import measured_memory
from dse.specs.device_and_model import HardwareSpec, Quantity
from dse.specs.implementation import ENDS
from dse.specs.weights import WIDE, WIDE_BITS
from dse.specs.workload import MAX_BATCH


class By(Enum):
    """Ways to compute the numbers of a point, which are the same by both, bit for bit."""

    AUTO = "auto"
    COMPILED = "compiled"
    INTERPRETED = "interpreted"

    def compiles(self, n_points: int) -> bool:
        """True where compiled code computes so many points."""
        return self is By.COMPILED or (self is By.AUTO and n_points >= COMPILED_POINTS)


AUTO, COMPILED, INTERPRETED = By
#: so many points are computed by compiled code, which takes about a second to load, and longer where none was kept
COMPILED_POINTS = 4096

#: what the largest part of the time goes into, by `bound`
WHY_BOUND = {
    "bandwidth": "reading weights, keys and values",
    "compute": "arithmetic, the prompt included",
    "latency": "launching and scheduling kernels: take a larger batch",
    "dequantization": "packing and unpacking keys and values",
    "communication": "devices that exchange their results",
}
#: memory that holds every batch of interest
ROOM_BYTES = 2**53
#: results that say what memory keeps from a point
ROOM_RESULTS = ("throughput_tokens_per_s", "tpot_s", "bound")
#: parts of a step that comparisons read
_COMPARED_PARTS = tuple(name for name in uncertainty.COMPARED if name in Wave._fields)


def evaluate(point: Point, by: By = AUTO, n_points: int = 1) -> dict[str, Any]:
    """All results of a point, one of `n_points`, in the order of `RESULT_UNITS`; times are None where nothing fits.

    Raises LimitError beyond what can be counted.
    """
    return (compiled_results(point) if by.compiles(n_points) else None) or _named(point, point.numbers)


def compiled_results(point: Point) -> dict[str, Any] | None:
    """All results of a point by compiled code; None where nothing fits, or int64 might not hold what does."""
    from dse.model import many  # loads numba

    kept = point.lowered.kept
    if "tables" not in kept:
        try:
            kept["tables"] = many.tables_of([point.lowered.design], [point.design.device])
        except OverflowError:
            kept["tables"] = None
    work = point.work
    numbers = kept["tables"] and many.numbers_of(kept["tables"], work.input_tokens, work.output_tokens, point.batch)
    return numbers and _named(point, numbers)


def _named(point: Point, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """All results of a point, of which `numbers` are those that the core computes."""
    work = point.work
    lengths = {"batch": point.batch, "input_tokens": work.input_tokens, "output_tokens": work.output_tokens}
    most = numbers["max_batch"]
    fits = {"feasible": most > 0, "fits_whole_batch": most >= point.batch}
    fits["infeasible_reason"] = None if most else point.infeasible_reason
    results = {**point.lowered.results, **lengths, **numbers, **fits}
    for name in ("stored_tokens", "read_tokens"):  # means over layers: often whole
        results[name] = int(results[name]) if results[name].is_integer() else results[name]
    results["assumptions"] = [*results["assumptions"]]
    if missing := [name for name in RESULT_UNITS if name not in results]:
        raise AssertionError(
            f"{', '.join(missing)}: in RESULTS, and no function gives it (docs/contributing/adding.md)"
        )
    return {name: results[name] for name in RESULT_UNITS}


def speed(point: Point) -> dict[str, Any]:
    """Return the results of a point that searches need (feasibility and speed), in a fraction of its time.

    runs, runs_why, feasible, fits_whole_batch, and what comparisons read (`uncertainty.COMPARED`): running_batch,
    decode_step_s, tpot_s, throughput_tokens_per_s among it.
    """
    fixed = (*uncertainty.COMPARED, "runs", "runs_why")
    results = {name: point.lowered.results[name] for name in fixed if name in point.lowered.results}
    results |= {"feasible": point.max_batch > 0, "fits_whole_batch": point.max_batch >= point.batch}
    names = ("running_batch", "tpot_s", "throughput_tokens_per_s", *_COMPARED_PARTS)
    if not point.max_batch:
        return {**results, **{name: NO_TIMES[name] for name in names}}
    results |= {name: getattr(point.largest_wave.wave, name) for name in _COMPARED_PARTS}
    server = {name: getattr(point.server, name) for name in ("tpot_s", "throughput_tokens_per_s")}
    return {**results, **server, "running_batch": int(point.waves.running)}


def at_ends(point: Point) -> dict[str, dict[str, Any]]:
    """Return the `speed` of a point with the quantizers' kernels at the slow and at the fast end of their ranges.

    {} if their numbers have no ranges.
    """
    if not implementations.ranged(point.plan, point.work, point.stack):
        return {}
    works = {end: implementations.at_end(point.work, end) for end in ENDS}
    return {end: speed(Point(point.device, point.asked_plan, work)) for end, work in works.items()}


def roomy(device: HardwareSpec) -> HardwareSpec:
    """The device with memory in which every batch of interest runs at once."""
    endless = Quantity(value=ROOM_BYTES, unit="B", source="any", kind="derived")
    return device.model_copy(update={"memory_capacity": endless})


def with_room(point: Point) -> dict[str, Any] | None:
    """Evaluate a point again in memory that holds the whole batch.

    None where the memory is not what binds, where not one request fits (`infeasible_reason` says why), and where no
    memory would do.
    """
    if not 0 < point.max_batch < point.batch:
        return None
    results = evaluate(Point(roomy(point.device), point.plan, point.asked))
    return results if results["fits_whole_batch"] else None


def with_more(point: Point) -> dict[str, Any] | None:
    """Capacity and speed of a point with as many requests as fit; None where no more fit, or more than a batch has."""
    if not point.batch < point.max_batch <= MAX_BATCH:
        return None
    return speed(Point(point.device, point.plan, replace(point.asked, batch=point.max_batch)))


def in_wide_weights(point: Point) -> dict[str, Any] | None:
    """Evaluate a point whose weights have fewer bits again with weights of 16, in memory that holds all that runs.

    None where they have 16, or where not one request fits.
    """
    work = point.work
    if not point.max_batch or (not work.weights and work.weights_bits == WIDE_BITS) or work.weights == WIDE:
        return None
    running = min(point.batch, point.max_batch)
    wide = replace(work, batch=running, weights=WIDE, weights_bits=WIDE_BITS, activation_bits=WIDE_BITS, memory="paper")
    times = None if measured_memory.of(work.calibrated) else work.calibrated
    wide = replace(wide, gpu_memory_utilization=None, kv_cache_memory_bytes=None, calibrated=times)
    return speed(Point(roomy(point.device), point.plan, wide))


def bound_text(bound: str) -> str:
    """The bottleneck, with what that means, but for capacity."""
    return f"{bound}: the largest part of the time goes into {WHY_BOUND[bound]}"


def time_shares(point: Point) -> dict[str, dict[str, float]]:
    """The parts of a decode step and of prompts by what is waited for, as shares; {} where nothing fits."""
    if not point.max_batch:
        return {}
    waits = {"decoding": step_shares(point.largest_wave)}
    if point.work.kv_cache:
        waits["prompts"] = prompt_shares(point.design, point.largest_wave)
    return {
        name: {part: seconds / sum(shares) for part, seconds in shares._asdict().items()}
        for name, shares in waits.items()
        if sum(shares) > 0
    }


def room_text(rate: str, found: dict[str, Any]) -> str:
    """Say how fast a design would be with enough memory: `found` is from `with_room`, `rate` is text."""
    bound = found["bound"]
    return f"with room for all it would be {rate}, bound by {bound} ({WHY_BOUND[bound]})"
