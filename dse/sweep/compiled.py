"""Evaluate many points of a sweep by the compiled core: equal, bit for bit, to point by point.

A `SweepPoints` names each point by a case (a design whose device rates, batch and lengths are open) and a device. What
int64 might not hold exactly is left to the interpreted core, row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.core.compiling import elementwise
from dse.model import many
from dse.model.batch import BOUNDS
from dse.model.formulas import effective_bits
from dse.model.records import Device
from dse.specs.device_and_model import HardwareSpec
from dse.sweep.cases import BY_POINT, OpenDesign
from dse.sweep.columns import FEASIBLE, NOT_ALLOWED, Columns, Names, at_places, blank, column_of, names_of
from dse.sweep.conditions import Digits
from dse.sweep.designs import Designs
from dse.sweep.grid import Runs
from dse.sweep.spec import Sweep

#: numbers of a device that decide what a plan looks like on it, and whether the ideal model is meant
LAYOUT_FIELDS = frozenset(
    {"engine_rate", "kv_page", "kv_burst", "n_cores", "fused_rate", "link_bandwidth", "host_link", "reported_memory"}
)


def number(digits: Digits, names: Sequence[str], sizes: Sequence[int]) -> NDArray[np.int64] | None:
    """One whole number for the places on some axes, -1 (none) included; None where int64 has too few."""
    total = 1
    for size in sizes:
        total *= size + 1
    if total >= 2**62:
        return None
    n = len(next(iter(digits.values())))
    numbers = np.zeros(n, np.int64)
    for name, size in zip(names, sizes, strict=True):
        numbers *= size + 1
        numbers += digits[name]
        numbers += 1
    return numbers


def distinct(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first place of each distinct number, and for every place which of them it is. Runs make it fast."""
    heads = np.concatenate(([0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1))
    _, first, inverse = np.unique(numbers[heads], return_index=True, return_inverse=True)
    lengths = np.diff(np.concatenate((heads, [len(numbers)])))
    return heads[first], np.repeat(inverse, lengths)


@dataclass(frozen=True)
class SweepPoints:
    """Points as numbers: the cases and devices of runs are places in `cases` and `specs`."""

    cases: list[OpenDesign]
    specs: list[HardwareSpec]
    devices: list[Device]
    runs: many.PointRuns
    #: of which run of the digits each is a stretch
    run_of: NDArray[np.int64]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Points of each run."""
        return self.runs.end - self.runs.begin

    def spread(self, by_run: Any) -> Any:
        """One value a point from one a run."""
        if isinstance(by_run, Names):
            return Names(np.repeat(by_run.codes, self.lengths), by_run.names)
        return np.repeat(by_run, self.lengths)

    def numbers(self) -> tuple[many.PointRuns, many.DesignTables, int]:
        """Runs, the tables they lead to, and more than any number of sequences on which sums depend one by one."""
        tables = many.tables_of([case.design for case in self.cases], self.devices)
        return self.runs, tables, many.n_keys_of(tables)


def points_at(sweep: Sweep, digits: Digits) -> SweepPoints | None:
    """The points at `digits`; None for no points, or more axes than int64 can number."""
    outer = digits.outer if isinstance(digits, Runs) else digits
    designs = sweep.designs
    device_axes = ["device", *designs.fields]
    layout = [name for name in designs.fields if name in LAYOUT_FIELDS]
    open_work = [name for name in designs.work_fields if name not in BY_POINT]
    case_axes = ["device", *layout, "model", *designs.sides, *designs.parameters, *open_work]
    case_number = number(outer, case_axes, [len(sweep.axis[name]) for name in case_axes])
    device_number = number(outer, device_axes, [len(sweep.axis[name]) for name in device_axes])
    if case_number is None or device_number is None or not len(case_number):
        return None
    case_first, case = distinct(case_number)
    device_first, device = distinct(device_number)
    if "batch" in sweep.axis and "batch" not in outer:  # whatever it is, a case leaves it open
        outer = {**outer, "batch": np.zeros(len(case), np.int32)}

    def rows_at(places: NDArray[np.int64]) -> list[Any]:
        return designs.rows({name: column[places] for name, column in outer.items()})

    def by_run(name: str) -> NDArray[np.int64]:
        if name in sweep.axis:
            return np.array(sweep.axis[name].items, np.int64)[outer[name]]
        value = getattr(sweep.base, name)
        return np.full(len(case), many.OPEN if value is None else value, np.int64)

    begin = np.arange(len(case))
    end, batches = begin + 1, by_run("batch")
    if isinstance(digits, Runs) and digits.batch is not None:
        begin, end = digits.begin, digits.end
        batches = np.array(sweep.axis["batch"].items, np.int64)[digits.batch]
    run_of, begin, end = stretches_of(begin, end)
    return SweepPoints(
        cases=[sweep.case(_opened(designs, row)) for row in rows_at(case_first)],
        specs=[designs.device(*row[:2]) for row in rows_at(device_first)],
        devices=[designs.device_numbers(*row[:2]) for row in rows_at(device_first)],
        runs=many.PointRuns(
            case=case[run_of],
            device=device[run_of],
            n_input=by_run("input_tokens")[run_of],
            n_output=by_run("output_tokens")[run_of],
            begin=begin,
            end=end,
            batches=batches,
        ),
        run_of=run_of,
    )


def stretches_of(begin: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Runs in stretches of at most `many.ROW` points: of which run each is, where it begins and ends."""
    n = -(-(end - begin) // many.ROW)
    run_of = np.repeat(np.arange(len(n)), n)
    first = begin[run_of] + many.ROW * (np.arange(len(run_of)) - np.repeat(np.cumsum(n) - n, n))
    return run_of, first, np.minimum(first + many.ROW, end[run_of])


def _opened(designs: Designs, row: Any) -> Any:
    """A row of `Designs.rows` with one value for every axis that a case leaves open: the first, the longest prompt."""
    device, fields, model, sides, parameters, work = row
    fields = tuple(i if name in LAYOUT_FIELDS else 0 for name, i in zip(designs.fields, fields, strict=True))
    prompts = designs.axis["input_tokens"].items if "input_tokens" in designs.axis else [0]
    places = {name: 0 for name in BY_POINT} | {"input_tokens": prompts.index(max(prompts))}
    work = tuple(places.get(name, i) for name, i in zip(designs.work_fields, work, strict=True))
    return device, fields, model, sides, parameters, work


def evaluate(sweep: Sweep, digits: Digits) -> tuple[Columns, NDArray[np.bool_]] | None:
    """Columns as of `dse.sweep.points.evaluate_rows`, and the points left to it; None where all of them are."""
    points = points_at(sweep, digits)
    if points is None or all(case.state == many.LEFT for case in points.cases):
        return None
    by_run = states_of(points)
    wanted = {*sweep.keep, *(["max_batch", "batch"] if "fits_whole_batch" in sweep.keep else [])}
    outputs = many.found_for(wanted, int(points.lengths.sum()))
    many.evaluate(*points.numbers(), outputs, by_run)
    by_name, state = many.columns_of(outputs), points.spread(by_run)
    columns: Columns = {name: _column(name, points, by_name) for name in ("runs", *sweep.keep)}
    absent = state > many.REQUEST_TOO_LARGE
    if absent.any():
        for name, column in columns.items():
            blank(name, column, absent)
    columns = {"feasible": state == FEASIBLE, "infeasible_code": state, **columns}
    return columns, state < 0


def states_of(points: SweepPoints) -> NDArray[np.int8]:
    """By run: FEASIBLE where it is to be evaluated, or why it is not."""
    runs = points.runs
    state = np.array([case.state for case in points.cases], np.int8)[runs.case]
    prefixes = np.array([case.design.load.prefix_tokens if case.design else 0 for case in points.cases])
    state[(state == FEASIBLE) & (prefixes[runs.case] > runs.n_input)] = NOT_ALLOWED  # none is longer than its prompt
    return state


def _column(name: str, points: SweepPoints, by_name: dict[str, Any]) -> Any:
    """The column of a result, from the kernel, or of runs."""
    if name in many.CODE:
        return Names(by_name[name].astype(np.int32), BOUNDS)
    if name in by_name:
        return by_name[name]
    if name == "fits_whole_batch":
        return by_name["max_batch"] >= by_name["batch"]
    return points.spread(column_by_run(name, points))


def column_by_run(name: str, points: SweepPoints) -> Any:
    """The column of a result that points of a run share, one value a run: of their cases, devices and lengths."""
    runs = points.runs
    counts = {"input_tokens": runs.n_input, "output_tokens": runs.n_output}
    if name in counts:
        return counts[name]
    if name == "assumptions":
        return _assumptions(points)
    capacity = np.array([spec.capacity_bytes for spec in points.specs], np.int64)[runs.device]
    if name == "capacity_bytes":
        counted = [case.design.memory.is_server if case.design else 0 for case in points.cases]
        reported = np.array([spec.reported_bytes for spec in points.specs], np.int64)[runs.device]
        return np.where(np.array(counted, bool)[runs.case], reported, capacity)
    bits = np.array([case.results["effective_bits"] if case.results else np.nan for case in points.cases])[runs.case]
    if name == "effective_capacity_bytes":
        return elementwise(effective_bits.effective_capacity_bytes)(capacity, bits)
    if name == "effective_bandwidth_bytes_per_s":
        bandwidth = np.array([spec.memory_bandwidth.si for spec in points.specs])[runs.device]
        return elementwise(effective_bits.effective_bandwidth_bytes_per_s)(bandwidth, bits)
    by_case = column_of(name, [case.results[name] if case.results else None for case in points.cases])
    return at_places(by_case, runs.case)


def _assumptions(points: SweepPoints) -> Names:
    """Assumed numbers by combination of a case and a device."""
    runs = points.runs
    pairs, places = distinct(runs.case * len(points.specs) + runs.device)
    texts = []
    for at in pairs:
        point, device = points.cases[runs.case[at]].point, points.specs[runs.device[at]]
        texts.append(", ".join(point.assumptions(device)) if point else None)
    return at_places(names_of(texts), places)
