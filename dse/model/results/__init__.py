"""Results of a design: each declared once, with what texts, tables, figures, sweeps and explanations say of it."""

from collections.abc import Iterable, Mapping
from typing import Any

from dse.core import units
from dse.model.results import bits, identity, memory, sure, throughput, times
from dse.model.results.declare import FLAG, WHOLE, Result, Results, TextLine

_TOPICS = tuple(module.topic for module in (identity, bits, memory, times, throughput, sure))
#: every result by name, in the order of tables
RESULTS: dict[str, Result] = {result.name: result for topic in _TOPICS for result in topic.results}
#: steps on the way to results, which explanations show
STEPS: dict[str, Result] = {step.name: step for topic in _TOPICS for step in topic.steps}
#: numbers of a device that results read
_READ = frozenset(name for result in RESULTS.values() for name in result.reads)
#: unit by name
RESULT_UNITS = {name: result.unit for name, result in RESULTS.items()}
#: whole numbers (missing where nothing fits or nothing limits), and yes/no
INTEGERS = frozenset(name for name, result in RESULTS.items() if result.dtype == WHOLE)
FLAGS = frozenset(name for name, result in RESULTS.items() if result.dtype == FLAG)
#: numbers of a device that figures vary, as people call them
DEVICE_TITLES = {
    "memory_bandwidth": "memory bandwidth",
    "memory_capacity": "memory capacity",
    "peak_flops": "peak FP16 rate",
    "board_power": "board power",
    "usd_per_hour": "rent of the device",
}
#: assumed numbers, as people call them, where their names do not say it
ASSUMED_TITLES = {
    "eight_bit_kernels": "speed of 8-bit products",
    "engine_rate": "rate of the unpacking engine",
    "exchanges": "links between devices",
    "fused_rate": "rate of unpacking inside attention",
    "implementation": "speed of the format's kernels",
    "kernel_launch": "starts of kernels",
    "nearest_format": "products with the nearest measured format of weights",
    "nearest_kernels": "kernels of another release or format",
    "nearest_release": "times of the nearest measured release",
    "no_kernel": "a kernel that nobody is known to have",
    "own_server": "your own measurements at other loads",
    "quantize_rate": "rate of packing",
    "reached_rates": "shares of peaks that measured devices reach",
    "server_memory": "memory that the server keeps for itself",
    "sparse_prompts": "prompts of sparse attention",
    "stacks_of": "kernels of another chip",
    "usable_frac": "usable share of the memory",
}
#: base unit -> the unit that figures show
_FIGURE_UNITS = {
    "B": "GB",
    "B/s": "TB/s",
    "s": "ms",
    "FLOP/s": "TFLOP/s",
    "1": "",
    "token": "tokens",
    "sequence": "sequences",
    "bit": "bit",
}


def title(name: str) -> str:
    """Title of a column; a name that is not known stays as it is."""
    return RESULTS[name].title if name in RESULTS else DEVICE_TITLES.get(name, name)


def assumed_title(name: str) -> str:
    """Title of an assumed number."""
    return ASSUMED_TITLES.get(name) or title(name).replace("_", " ")


def rests_on(names: Iterable[str]) -> str:
    """One line that names assumed numbers."""
    said = ", ".join(assumed_title(name) for name in names)
    return f"Rests on assumed numbers: {said}." if said else "Rests on no assumed number."


def shown_unit(name: str, unit: str) -> tuple[str, float]:
    """The unit that figures show a column of base unit `unit` in, and its size in base units; "" for a bare number."""
    figure_unit = RESULTS[name].figure_unit if name in RESULTS else ""
    shown = (figure_unit or _FIGURE_UNITS.get(unit, unit)) if unit else ""
    return shown, float(units.UNITS.get(shown, ("", 1))[1])


def with_interval(*kinds: str) -> tuple[str, ...]:
    """Names of the results whose interval is one of `kinds`."""
    return tuple(name for name, result in RESULTS.items() if result.interval in kinds)


def section(name: str, results: Results, declared: Mapping[str, Result] = RESULTS) -> list[tuple[TextLine, Result]]:
    """Lines of a section of a text that the results show, in their order; by default of a point's text."""
    lines = [
        (line, result)
        for result in declared.values()
        for line in result.lines
        if line.section == name and line.shown(results)
    ]
    return sorted(lines, key=lambda pair: pair[0].place)


def assumed_behind(result: str, names: Iterable[str], asked: Mapping[str, Any]) -> list[str]:
    """Keep the assumed numbers of a point (`assumptions.of`) that one result, a name of `RESULT_UNITS`, depends on.

    `asked` are the results of the point, or the fields of its workload. Names that are no number of a device (such as
    `answer_lengths` of a trace) are kept.
    """
    read = set(RESULTS[result].reads if result in RESULTS else ())
    has_wide = asked.get("activation_bits", units.FP16_BITS) >= units.FP16_BITS
    if not has_wide and result in ("linear_s", "linear_bound"):
        read.discard("peak_flops")  # products with the weights run at the 8-bit peak
    if has_wide and not asked.get("weights") and result == "compute_joules_per_token":
        read.discard("peak_flops")  # operations, however fast they are done
    return [name for name in names if name in read or name not in _READ]
