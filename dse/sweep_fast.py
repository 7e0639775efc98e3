"""Many points of a sweep at once: what the kernel covers by it, the rest row by row; same columns, same bits."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse import assumptions, point, sweep_extra, sweep_kernel, sweep_points
from dse import sweep_cases as cases
from dse.formulas import effective_bits
from dse.sweep_digits import RUN_AXES, Runs
from dse.sweep_points import FEASIBLE, FLAGS, INTEGERS, MISSING, Columns, Names
from dse.sweep_runs import BOUNDS
from dse.sweep_spec import Sweep
from dse.sweep_where import Digits

_NOWHERE = np.int64(-1)


def evaluate(sweep: Sweep, digits: Digits, check: Callable[[], None] = sweep_points.no_check) -> Columns | None:
    """Columns as of `sweep_points.evaluate_rows`, which has the rest; None where the kernel is of no use."""
    if not set(sweep.keep) <= cases.COLUMNS:
        return None
    parts = of_digits(sweep, digits)
    if parts is None or all(one.state == sweep_kernel.LEFT for one in parts.cases):
        return None
    found, case, device, specs = parts.cases, parts.case, parts.device, parts.specs
    n_input, n_output, batch = parts.n_input, parts.n_output, parts.batch
    state = np.array([one.state for one in found], np.int8)[case]
    tables = cases.tables(found)
    at, outs = [], []
    kinds: list[tuple[tuple[str, ...], Any]] = [
        (sweep_kernel.WHOLE, np.int64), (sweep_kernel.FLOAT, np.float64), (sweep_kernel.CODE, np.int8)
    ]  # fmt: skip
    for names, kind in kinds:
        wanted = [name for name in names if _wanted(sweep, name)]
        at.append(np.array([wanted.index(name) if name in wanted else _NOWHERE for name in names], np.int64))
        outs.append(np.empty((len(wanted), len(case)), kind))
    context = np.empty(len(case) if "max_context_tokens" in sweep.keep else 0, np.int64)
    has_extra = not set(sweep_extra.COLUMNS).isdisjoint(sweep.keep)
    extra = np.empty((len(sweep_extra.COLUMNS) if has_extra else 0, len(case)))
    sweep_kernel.compiled()(
        case, device, n_input, n_output, batch, tables, parts.devices, parts.devices_f, parts.n_keys(tables), *at,
        *outs, context, extra, state,
    )  # fmt: skip
    known = state >= 0
    columns: Columns = {}
    for name in sweep.keep:
        for names, rows, out in zip((sweep_kernel.WHOLE, sweep_kernel.FLOAT, sweep_kernel.CODE), at, outs, strict=True):
            if name in names:
                columns[name] = out[rows[names.index(name)]]
        if name == "max_context_tokens":
            columns[name] = context
        elif name in sweep_extra.COLUMNS:
            columns[name] = extra[sweep_extra.COLUMNS.index(name)]
        elif name == "assumptions":
            columns[name] = _assumptions(found, case, specs, device)
        elif name in sweep_kernel.CODE:
            columns[name] = Names(columns[name].astype(np.int32), BOUNDS)
        elif name in cases.OF_CASE:
            columns[name] = _of_case(name, [one.results.get(name) if one.results else None for one in found], case)
        elif name in cases.OF_POINT:
            columns[name] = _of_point(sweep, name, at, outs, found, case, specs, device, n_input, n_output, batch)
    absent = state > sweep_kernel.REQUEST_TOO_LARGE
    if absent.any():
        for name in sweep.keep:
            _blank(name, columns[name], absent)
    columns = {"feasible": state == FEASIBLE, "infeasible_code": state, **columns}
    if not known.all():
        left = ~known
        rest = sweep_points.evaluate_rows(sweep, {name: column[left] for name, column in digits.items()}, check)
        for name, column in columns.items():
            columns[name] = _merged(column, rest[name], left)
    return columns


def _wanted(sweep: Sweep, name: str) -> bool:
    return name in sweep.keep or (name == "max_batch" and "fits_whole_batch" in sweep.keep)


def _of_case(name: str, values: list[Any], case: NDArray[np.int64]) -> Any:
    if name in FLAGS:
        return np.array([bool(value) for value in values], bool)[case]
    if name in INTEGERS:
        return np.array([MISSING if value is None else value for value in values], np.int64)[case]
    if point.RESULT_UNITS[name]:
        return np.array([np.nan if value is None else value for value in values], np.float64)[case]
    return _names(values, case)


def _of_point(
    sweep: Sweep, name: str, at: list[Any], outs: list[Any], found: list[cases.Case], case: Any, specs: list[Any],
    device: Any, n_input: Any, n_output: Any, batch: Any,
) -> Any:  # fmt: skip
    given = {"batch": batch, "input_tokens": n_input, "output_tokens": n_output}
    if name in given:
        return given[name]
    if name == "fits_whole_batch":
        return outs[0][at[0][sweep_kernel.WHOLE.index("max_batch")]] >= batch
    capacity = np.array([spec.capacity_bytes for spec in specs], np.int64)[device]
    if name == "capacity_bytes":
        return capacity
    bits = np.array([one.results["effective_bits"] if one.results else np.nan for one in found])[case]
    if name == "effective_capacity_bytes":
        return effective_bits.effective_capacity_bytes(capacity, bits)
    bandwidth = np.array([spec.memory_bandwidth.si for spec in specs])[device]
    return effective_bits.effective_bandwidth_bytes_per_s(bandwidth, bits)


def _assumptions(
    found: list[cases.Case], case: NDArray[np.int64], specs: list[Any], device: NDArray[np.int64]
) -> Names:
    """Assumed numbers by combination of a case and a device."""
    pairs, places = cases.distinct(case * len(specs) + device)
    texts = []
    for at in pairs:
        design = found[case[at]].design
        texts.append(", ".join(assumptions.of(specs[device[at]], *design)) if design else None)
    return _names(texts, places)


def _names(values: list[Any], places: NDArray[np.int64]) -> Names:
    place = {text: i for i, text in enumerate(dict.fromkeys(value for value in values if value is not None))}
    return Names(np.array([place.get(value, -1) for value in values], np.int32)[places], tuple(place))


def _blank(name: str, column: Any, absent: NDArray[np.bool_]) -> None:
    """No value where a point is not allowed."""
    if isinstance(column, Names):
        column.codes[absent] = -1
    elif name in FLAGS:
        column[absent] = False
    else:
        column[absent] = MISSING if name in INTEGERS else np.nan


def _merged(column: Any, rest: Any, left: NDArray[np.bool_]) -> Any:
    """`column` with `rest` at the places `left`."""
    if not isinstance(column, Names):
        column[left] = rest
        return column
    names = tuple(dict.fromkeys((*column.names, *rest.names)))
    place = np.array([*(names.index(name) for name in rest.names), -1], np.int32)
    codes = column.codes.copy()
    codes[left] = place[rest.codes]
    return Names(codes, names)


def of_digits(sweep: Sweep, digits: Digits) -> cases.Points | None:
    """`cases.of_points`; of points in runs, what they share is looked up once a run."""
    if not isinstance(digits, Runs):
        return cases.of_points(sweep, digits)
    none = np.zeros(len(digits.lengths), np.int32)
    parts = cases.of_points(sweep, {**digits.outer, **dict.fromkeys(digits.inner, none)})
    if parts is None:
        return None

    def by_point(name: str, by_run: NDArray[np.int64]) -> NDArray[np.int64]:
        if name in digits.inner:
            return np.array(sweep.axis[name].items, np.int64)[digits.inner[name]]
        return digits.spread(by_run)

    assert digits.inner.keys() <= RUN_AXES
    return replace(
        parts, case=digits.spread(parts.case), device=digits.spread(parts.device),
        n_input=by_point("input_tokens", parts.n_input), n_output=by_point("output_tokens", parts.n_output),
        batch=by_point("batch", parts.batch),
    )  # fmt: skip
