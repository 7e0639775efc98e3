"""Many design points at once: a grid as one table, or a sweep of any size into a directory of Parquet files."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from dse.core.errors import InputError, LimitError, show
from dse.core.field import check_whole
from dse.model import engine
from dse.model.point import Point
from dse.model.results import FLAGS, INTEGERS, RESULT_UNITS
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec
from dse.specs.measurements import CLOSED, Bits
from dse.specs.workload import Workload
from dse.sweep import front, spec, table
from dse.sweep.axes import of_items
from dse.sweep.grid import decode, decode_places
from dse.sweep.pareto.limits import parse
from dse.sweep.points import columns_of
from dse.sweep.reading import StoredSweep, stored
from dse.sweep.run import in_memory, to_directory
from dse.sweep.spec import Sweep, from_dict, read

__all__ = [
    "MAX_POINTS",
    "StoredSweep",
    "Sweep",
    "Workload",
    "from_dict",
    "grid",
    "read",
    "rows",
    "run",
    "stored",
    "to_table",
]

#: points of one in-memory table; about 0.2 ms and 1 kB each
MAX_POINTS = 1_000_000


def grid(
    devices: Sequence[str | HardwareSpec],
    models: Sequence[str],
    quantizer_names: Sequence[str],
    batches: Sequence[int],
    input_tokens: Sequence[int] | None = None,
    output_tokens: Sequence[int] | None = None,
    base: Workload | None = None,
    max_points: int = MAX_POINTS,
    bits: Bits = CLOSED,
    tokens: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Every combination of the axes as a row with the columns of `dse.model.results.RESULT_UNITS`.

    Rows are in the order of the axes, the last axis fastest. Points that do not fit stay, with their reason.
    A device is a name or a spec: `device.model_copy(update={"name": ..., "kv_page": ...})` varies any field.
    `base` gives what the axes do not (lengths, admission, weights' bits, ...), `bits` says where the bits come from.
    `tokens` are token policies (`dse list tokens`), the last axis.
    Raises LimitError above `max_points`, and InputError for unknown names or values outside their range.
    """
    base = base or Workload()
    work_axes = {
        "batch": batches,
        "input_tokens": (base.input_tokens,) if input_tokens is None else input_tokens,
        "output_tokens": (base.output_tokens,) if output_tokens is None else output_tokens,
        "tokens": (base.tokens,) if tokens is None else tokens,
    }
    n_points = math.prod(map(len, (devices, models, quantizer_names, *work_axes.values())))
    if n_points > max_points:
        raise LimitError(f"grid of {n_points:,} points: at most {max_points:,} fit in one table: pass max_points")
    if not n_points:
        return to_table([])
    axes = [
        of_items("device", [catalog.device(name) if isinstance(name, str) else name for name in devices]),
        of_items("model", [catalog.model(name) for name in models]),
        of_items("quantizer", [bits.quantizer(name) for name in quantizer_names]),
        *(of_items(name, values) for name, values in work_axes.items()),
    ]
    found = spec.of_axes(axes, base, bits)
    digits = decode(found, 0, n_points)
    return to_table(engine.evaluate(Point(*found.designs.at(*places))) for places in found.designs.rows(digits))


def to_table(rows: Iterable[dict[str, object]]) -> pd.DataFrame:
    """Results as a DataFrame with the documented columns and types, whatever the rows hold."""
    table = pd.DataFrame(list(rows), columns=list(RESULT_UNITS))
    for name, unit in RESULT_UNITS.items():
        if name == "assumptions":
            table[name] = [", ".join(names) for names in table[name]]
        elif name in FLAGS:
            table[name] = table[name].astype(bool)
        elif name in INTEGERS:
            table[name] = table[name].astype("Int64")
        elif unit:
            table[name] = table[name].astype("float64")
        else:
            table[name] = table[name].astype("string")
    return table


def run(
    spec: Sweep | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    threads: int | None = None,
    max_points: int = MAX_POINTS,
    limits: bool = True,
    keep: Literal["all", "front"] = "all",
    maximize: Sequence[str] = (),
    minimize: Sequence[str] = (),
    by: Sequence[str] = (),
    drop_missing: bool = False,
    at_most: Sequence[str] = (),
    at_least: Sequence[str] = (),
    scheduler: str | None = None,
    insecure_scheduler: bool = False,
) -> pd.DataFrame | StoredSweep:
    """Run a sweep: a file, a dict with the keys of a file, or a `Sweep`.

    Without `out` its table, of at most `max_points`; with `out` a handle on the Parquet files that are written there,
    or that an earlier run finished. `limits=False` lifts those on points and disk.

    `keep="front"` stores the designs alone that no other beats in the objectives to `maximize` and `minimize`, a front
    for each value of `by`, with all columns and `point`, the place in the grid; `drop_missing` leaves out points
    without one of the objectives; only those compete that are within `at_most` and `at_least`, such as
    `["measured_error=0.2"]` in base units. `rows` gives any other point again.

    `scheduler` has it done by a Dask cluster (`dse.sweep.cluster`): `local:WORKERS`, in a script behind
    `if __name__ == "__main__"`, or tcp://HOST:PORT.

    Raises InputError, SpecError, LimitError, BusyError, OutputError and ClusterError (exit status 2, 2, 5, 3, 4, 4 of
    `dse sweep`).
    """
    found = spec if isinstance(spec, Sweep) else from_dict(spec) if isinstance(spec, Mapping) else read(spec)
    if keep not in ("all", "front"):
        raise InputError(f'keep = {show(keep)}: must be "front" or "all"')
    if keep == "front":
        limits_asked = parse(at_most, at_least)
        found = front.asked(found, maximize, minimize, by, drop_missing, limits_asked)
        if out is None:
            raise InputError('keep = "front": needs a directory out: or take dse.sweep.pareto.front of the table')
    elif maximize or minimize or by or drop_missing or at_most or at_least:
        raise InputError('maximize, minimize, by, drop_missing, at_most and at_least: are for keep="front"')
    if scheduler is not None:
        from dse.sweep import cluster

        if out is None or threads is not None:
            raise InputError(f"scheduler = {show(scheduler)}: takes a directory `out`, and no `threads`")
        return cluster.to_directory(found, out, scheduler, insecure_scheduler, limits)
    if out is None:
        return in_memory(found, max_points)
    return to_directory(found, out, threads, limits)


def rows(spec: Sweep | Mapping[str, Any] | str | Path, points: Sequence[int]) -> pd.DataFrame:
    """Rows of a sweep by `point`, their places in the grid from 0, evaluated now; conditions drop none of them.

    Raises InputError for a place that the grid has not, LimitError for over `MAX_POINTS`.
    """
    if isinstance(points, str) or not isinstance(points, Iterable):
        raise InputError(f"points = {show(points)}: must be a list of whole numbers: places in the grid")
    found = spec if isinstance(spec, Sweep) else from_dict(spec) if isinstance(spec, Mapping) else read(spec)
    if len(points) > MAX_POINTS:
        raise LimitError(f"rows of {len(points):,} points: at most {MAX_POINTS:,}")
    for place in points:
        check_whole("point", place, 0, found.n_points - 1)
    digits = decode_places(found, points)
    columns = columns_of(found, digits)
    return table.to_frame(table.to_arrow(replace(found, front=None), columns))
