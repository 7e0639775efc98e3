"""Evaluate many points of a sweep by the compiled core: equal, bit for bit, to point by point.

A `SweepPoints` names each point by a case (a design whose device rates, batch and lengths are open) and a device. What
int64 might not hold exactly is left to the interpreted core, row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.core.compiling import elementwise
from dse.model import many
from dse.model.batch import BOUNDS
from dse.model.formulas import effective_bits
from dse.model.lower import device_of
from dse.specs.device_and_model import HardwareSpec
from dse.sweep.cases import BY_POINT, OpenDesign
from dse.sweep.columns import FEASIBLE, NOT_ALLOWED, Columns, Names, at_places, blank, column_of, names_of
from dse.sweep.conditions import Digits
from dse.sweep.designs import Designs
from dse.sweep.grid import RUN_AXES, Runs
from dse.sweep.spec import Sweep

#: numbers of a device that decide what a plan looks like on it, and whether the ideal model is meant
LAYOUT_FIELDS = frozenset(
    {"engine_rate", "kv_page", "kv_burst", "n_cores", "fused_rate", "link_bandwidth", "reported_memory"}
)


def number(digits: Digits, names: Sequence[str], sizes: Sequence[int]) -> NDArray[np.int64] | None:
    """One whole number for the places on some axes, -1 (none) included; None where int64 has too few."""
    total = 1
    for size in sizes:
        total *= size + 1
    if total >= 2**62:
        return None
    n = len(next(iter(digits.values())))
    found = np.zeros(n, np.int64)
    for name, size in zip(names, sizes, strict=True):
        found *= size + 1
        found += digits[name]
        found += 1
    return found


def distinct(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first place of each distinct number, and for every place which of them it is. Runs make it fast."""
    heads = np.concatenate(([0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1))
    _, first, inverse = np.unique(numbers[heads], return_index=True, return_inverse=True)
    lengths = np.diff(np.concatenate((heads, [len(numbers)])))
    return heads[first], np.repeat(inverse, lengths)


@dataclass(frozen=True)
class SweepPoints:
    """Many points as numbers: `case` and `device` are places in `cases` and `specs`, the lengths and batch by point."""

    cases: list[OpenDesign]
    case: NDArray[np.int64]
    specs: list[HardwareSpec]
    device: NDArray[np.int64]
    n_input: NDArray[np.int64]
    n_output: NDArray[np.int64]
    batch: NDArray[np.int64]

    def numbers(self) -> tuple[many.PointColumns, many.DesignTables, int]:
        """Columns of places and lengths, the tables they lead to, and more than any number of sequences on which sums
        depend one by one."""
        tables = many.tables_of([case.design for case in self.cases], [device_of(spec) for spec in self.specs])
        columns = many.PointColumns(self.case, self.device, self.n_input, self.n_output, self.batch)
        return columns, tables, many.n_keys_of(tables)


def points_at(sweep: Sweep, digits: Digits) -> SweepPoints | None:
    """The points at `digits`; None for no points, or more axes than int64 can number."""
    if isinstance(digits, Runs):  # what the points of a run share is looked up once
        none = np.zeros(len(digits.lengths), np.int32)
        runs = points_at(sweep, {**digits.outer, **dict.fromkeys(digits.inner, none)})
        if runs is None:
            return None
        assert digits.inner.keys() <= RUN_AXES
        of_runs = {"input_tokens": runs.n_input, "output_tokens": runs.n_output, "batch": runs.batch}
        by_point = {
            name: np.array(sweep.axis[name].items, np.int64)[digits.inner[name]]
            if name in digits.inner
            else digits.spread(by_run)
            for name, by_run in of_runs.items()
        }
        return replace(
            runs,
            case=digits.spread(runs.case),
            device=digits.spread(runs.device),
            n_input=by_point["input_tokens"],
            n_output=by_point["output_tokens"],
            batch=by_point["batch"],
        )
    designs = sweep.designs
    device_axes = ["device", *designs.fields]
    layout = [name for name in designs.fields if name in LAYOUT_FIELDS]
    open_work = [name for name in designs.work_fields if name not in BY_POINT]
    case_axes = ["device", *layout, "model", *designs.sides, *designs.parameters, *open_work]
    case_number = number(digits, case_axes, [len(sweep.axis[name]) for name in case_axes])
    device_number = number(digits, device_axes, [len(sweep.axis[name]) for name in device_axes])
    if case_number is None or device_number is None or not len(case_number):
        return None
    case_first, case = distinct(case_number)
    device_first, device = distinct(device_number)

    def rows_at(places: NDArray[np.int64]) -> list[Any]:
        return designs.rows({name: column[places] for name, column in digits.items()})

    def by_point_of(name: str) -> NDArray[np.int64]:
        if name in sweep.axis:
            return np.array(sweep.axis[name].items, np.int64)[digits[name]]
        given = getattr(sweep.base, name)
        return np.full(len(case), many.OPEN if given is None else given, np.int64)

    return SweepPoints(
        cases=[sweep.case(_opened(designs, row)) for row in rows_at(case_first)],
        case=case,
        specs=[designs.device(row[0], row[1]) for row in rows_at(device_first)],
        device=device,
        n_input=by_point_of("input_tokens"),
        n_output=by_point_of("output_tokens"),
        batch=by_point_of("batch"),
    )


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
    state = np.array([case.state for case in points.cases], np.int8)[points.case]
    prefixes = np.array([case.design.load.prefix_tokens if case.design else 0 for case in points.cases])
    if prefixes.any():  # no prefix is longer than its prompt
        state[(state == FEASIBLE) & (prefixes[points.case] > points.n_input)] = NOT_ALLOWED
    wanted = {*sweep.keep, *(["max_batch"] if "fits_whole_batch" in sweep.keep else [])}
    found = many.found_for(wanted, len(state))
    many.evaluate(*points.numbers(), found, state)
    by_name = many.columns_of(found)
    columns: Columns = {name: _column(name, points, by_name) for name in ("runs", *sweep.keep)}
    absent = state > many.REQUEST_TOO_LARGE
    if absent.any():
        for name, column in columns.items():
            blank(name, column, absent)
    columns = {"feasible": state == FEASIBLE, "infeasible_code": state, **columns}
    return columns, state < 0


def _column(name: str, points: SweepPoints, by_name: dict[str, Any]) -> Any:
    """The column of a result, from the kernel, the points, or their cases and devices."""
    if name in many.CODE:
        return Names(by_name[name].astype(np.int32), BOUNDS)
    if name in by_name:
        return by_name[name]
    given = {"batch": points.batch, "input_tokens": points.n_input, "output_tokens": points.n_output}
    if name in given:
        return given[name]
    if name == "fits_whole_batch":
        return by_name["max_batch"] >= points.batch
    if name == "assumptions":
        return _assumptions(points)
    capacity = np.array([spec.capacity_bytes for spec in points.specs], np.int64)[points.device]
    if name == "capacity_bytes":
        counted = [case.design.memory.is_server if case.design else 0 for case in points.cases]
        reported = np.array([spec.reported_bytes for spec in points.specs], np.int64)[points.device]
        return np.where(np.array(counted, bool)[points.case], reported, capacity)
    bits = np.array([case.results["effective_bits"] if case.results else np.nan for case in points.cases])[points.case]
    if name == "effective_capacity_bytes":
        return elementwise(effective_bits.effective_capacity_bytes)(capacity, bits)
    if name == "effective_bandwidth_bytes_per_s":
        bandwidth = np.array([spec.memory_bandwidth.si for spec in points.specs])[points.device]
        return elementwise(effective_bits.effective_bandwidth_bytes_per_s)(bandwidth, bits)
    by_case = column_of(name, [case.results[name] if case.results else None for case in points.cases])
    return at_places(by_case, points.case)


def _assumptions(points: SweepPoints) -> Names:
    """Assumed numbers by combination of a case and a device."""
    pairs, places = distinct(points.case * len(points.specs) + points.device)
    texts = []
    for at in pairs:
        point, device = points.cases[points.case[at]].point, points.specs[points.device[at]]
        texts.append(", ".join(point.assumptions(device)) if point else None)
    return at_places(names_of(texts), places)
