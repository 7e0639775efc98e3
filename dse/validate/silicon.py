"""Errors of the calibrated kernels on measured times, by device, stack and size class, the naive roofline beside.

Computed from the tables of `aiconfigurator-core` where that package is installed, on the rows that the fit did not
see; else the errors that the device files record.
"""

import importlib.util
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal, cast

import numpy as np

from dse import data
from dse.calibrate import fit
from dse.calibrate.formulas import SCALES, Problem, problem
from dse.calibrate.solve import Floats
from dse.calibrate.table import PACKAGE, Kind, Table, from_package
from dse.core.columns import Column, aligned, cells, percent
from dse.core.errors import InputError, did_you_mean, install, show
from dse.core.progress import Progress, each
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec
from dse.specs.stack import KvCode, StackSpec

Origin = Literal["computed", "recorded"]
#: size classes as `calibrate` names them -> as people read them
CLASSES = {
    "all": "all sizes",
    "large": "64 MB and more",
    "serving": "like serving",
    "every": "all sizes, far-off rows too",
}
GEMM_CLASSES = {**CLASSES, "serving": "larger than the cache", "all": "all sizes, at most 256 rows"}
#: parts of kernels in words
PARTS = {
    "attention": "attention over 16-bit keys and values",
    "gemm": "products with weights",
    "kv.fp8": "attention over FP8 keys and values",
}
#: what the cache factor of rows inside the last-level cache is tried at, as a share of the time from memory
CACHE_SHARES = tuple(np.geomspace(0.05, 1.0, 61))


@dataclass(frozen=True)
class SiliconRow:
    """Errors of one part of a stack on the rows of one size class, as shares. Naive: bytes over peak bandwidth."""

    device: str
    stack: str
    part: str
    size_class: str
    mean: float
    p90: float | None = None
    naive_mean: float | None = None
    rows: int | None = None
    origin: Origin = "recorded"


@dataclass(frozen=True)
class Scatter:
    """Measured and predicted seconds of the rows of one part, and which the fit did not see."""

    device: str
    stack: str
    part: str
    measured_s: Floats
    predicted_s: Floats
    held_out: Any


@dataclass(frozen=True)
class Silicon:
    """All that was found. `notes` say where numbers come from and what is missing."""

    rows: list[SiliconRow]
    scatters: list[Scatter]
    notes: list[str]


def installed() -> bool:
    """True where the package with the measured times can be imported."""
    return importlib.util.find_spec("aiconfigurator_core") is not None


def chosen(device: str | None, stack: str | None) -> list[tuple[HardwareSpec, str]]:
    """The device and stack pairs to show; by default those with parameters of their own. A stack of which only parts of
    whole steps were fitted (`dse validate serving` judges those) is none.

    Raises InputError for what is not known or not calibrated.
    """
    if device is None:
        every = (catalog.device(name) for name in catalog.device_files())
        specs = [spec for spec in every if spec.stacks and not spec.stacks_of]
    else:
        specs = [catalog.device(device)]
        if not specs[0].stacks:
            known = [spec.name for name in catalog.device_files() if (spec := catalog.device(name)).stacks]
            raise InputError(f"device = {show(device)}: has no calibrated stack: {did_you_mean(device, known)}")
    judged = [(spec, name) for spec in specs for name, kernels in spec.stacks.items() if kernels.parts()]
    names = list(dict.fromkeys(name for _, name in judged))
    if stack is not None and stack not in names:
        place = "" if device is None else f" for {specs[0].name}"
        raise InputError(f"stack = {show(stack)}: is not calibrated{place}: {did_you_mean(stack, names)}")
    return [(spec, name) for spec, name in judged if stack in (None, name)]


@cache
def _shipped() -> list[SiliconRow]:
    """The rows of data/silicon.csv: what `compute` gave for the shipped parameters, to three digits."""
    numbers: dict[str, Any] = {"mean": float, "p90": float, "naive_mean": float, "rows": int}
    return [
        SiliconRow(**row | {name: of(row[name]) for name, of in numbers.items()}) for row in data.rows("silicon.csv")
    ]


def recorded(spec: HardwareSpec, stack: str) -> list[SiliconRow]:
    """Errors on held-out rows as they were when the parameters were fitted: of shipped stacks all size classes.

    Of a user's own stack, what its file says: all sizes, and like serving.
    """
    shipped = catalog.device(spec.name).stacks if spec.name.lower() in catalog.device_files() else {}
    if shipped.get(stack) == spec.stacks[stack]:
        known = [row for row in _shipped() if (row.device, row.stack) == (spec.name, stack)]
        if known:
            return known
    rows = []
    for part, fitted in spec.stacks[stack].parts().items():
        names = GEMM_CLASSES if part == "gemm" else CLASSES
        place: dict[str, Any] = {"device": spec.name, "stack": stack, "part": part}
        rows.append(SiliconRow(**place, size_class=names["all"], mean=fitted.held_out_error))
        if (error := fitted.serving_error) is not None:
            rows.append(SiliconRow(**place, size_class=names["serving"], mean=error, p90=fitted.serving_p90))
    return rows


def recorded_rows(device: str | None = None) -> list[SiliconRow]:
    """Recorded errors of every chosen stack. Raises InputError for a device that is not calibrated."""
    return [row for spec, name in chosen(device, None) for row in recorded(spec, name)]


def _point(stack: StackSpec, part: str) -> Floats:
    """The stack's parameters as a point of the space that `calibrate` searches, without a faster cache."""
    if part == "gemm":
        terms = stack.gemm_terms()
        return np.array([terms["launch_s"] / SCALES["launch"], 1 / terms["memory_frac"], 1 / terms["flops_frac"], 1.0])
    if part == "attention":
        return fit.point_of(stack)
    assert stack.attention is not None
    kernel = stack.kv[cast(Any, part.removeprefix("kv."))]
    mixed = stack.attention.model_copy(update={"launch": kernel.launch, "core_rate": kernel.core_rate})
    return fit.point_of(stack.model_copy(update={"attention": mixed}))


def _with_cache(rows: Problem, point: Floats) -> Floats:
    """The point with the bandwidth of the last-level cache that its rows show best; predictions leave it out."""
    if not rows.in_cache.any():
        return point
    inside = rows.take(rows.in_cache)

    def off(share: float) -> float:
        trial = np.array([*point[:-1], share])
        return float(np.median(np.abs(np.log(inside.predict(trial) / inside.measured_s))))

    return np.array([*point[:-1], min(CACHE_SHARES, key=off)])


def compute(spec: HardwareSpec, stack: str, part: str, table: Table) -> tuple[list[SiliconRow], Scatter]:
    """Errors of one part on the rows of its table: screened and split as the fit did it, the split by its seed."""
    rows = problem(table, spec)
    rows = rows.take(rows.in_cache | (rows.measured_s * fit.BANDWIDTH_SLACK >= rows.naive_s))
    point = _with_cache(rows, _point(spec.stacks[stack], part))
    held = fit.split(len(rows.measured_s))
    predicted = rows.predict(point)
    far = np.abs(np.log(predicted / rows.measured_s)) > np.log(fit.FAR_OFF)
    names = GEMM_CLASSES if part == "gemm" else CLASSES
    errors = [
        SiliconRow(
            device=spec.name,
            stack=stack,
            part=part,
            size_class=names[name],
            mean=e["mean"],
            p90=e["p90"],
            naive_mean=e["naive_mean"],
            rows=int(e["rows"]),
            origin="computed",
        )
        for name, e in fit.errors_by_class(rows, predicted, held, far).items()
    ]
    near = ~far
    scatter = Scatter(
        device=spec.name,
        stack=stack,
        part=part,
        measured_s=rows.measured_s[near],
        predicted_s=predicted[near],
        held_out=held[near],
    )
    return errors, scatter


def _parts(spec: HardwareSpec, stack: str) -> list[tuple[list[SiliconRow], Scatter]]:
    """Every part of a stack, on the package's tables."""
    parts = []
    tables: dict[Kind, Table] = {}
    for part in spec.stacks[stack].parts():
        kind: Kind = "gemm" if part == "gemm" else "attention"
        if kind not in tables:
            tables[kind] = from_package(spec.name, stack, kind)
        code: KvCode = "fp16" if part in ("gemm", "attention") else cast(KvCode, part.removeprefix("kv."))
        table = tables[kind]
        parts.append(compute(spec, stack, part, table.take(table.codes == code)))
    return parts


def run(device: str | None = None, stack: str | None = None, progress: Progress | None = None) -> Silicon:
    """The errors of all chosen stacks. Raises InputError for a device or stack that is not calibrated."""
    pairs = chosen(device, stack)
    if not installed():
        rows = [row for spec, name in pairs for row in recorded(spec, name)]
        return Silicon(
            rows,
            [],
            [
                f"recorded when the parameters were fitted: {PACKAGE} is not installed "
                f"({install('calibrate')}), so nothing is computed now"
            ],
        )
    errors: list[SiliconRow] = []
    scatters: list[Scatter] = []
    notes: list[str] = []

    for spec, name in each(pairs, progress, "kernels"):
        if spec.stacks_of:
            errors.extend(recorded(spec, name))
            notes.append(f"{spec.name} {name}: the kernels of {spec.stacks_of}, errors as recorded there")
            continue
        try:
            parts = _parts(spec, name)
        except InputError as error:  # a device file of one's own that the package does not have
            errors.extend(recorded(spec, name))
            notes.append(f"{spec.name} {name}: as recorded in its file: {error}")
            continue
        for rows, scatter in parts:
            errors.extend(rows)
            scatters.append(scatter)
    if scatters:
        notes.insert(0, f"computed from the tables of {PACKAGE}, on the rows that the fits did not see")
    return Silicon(errors, scatters, notes)


def to_json(result: Silicon) -> list[dict[str, Any]]:
    """The rows as plain data; errors are shares, `origin` says whether a row is computed or recorded."""
    return [asdict(row) for row in result.rows]


#: errors in percent
COLUMNS = (
    Column("device"),
    Column("stack"),
    Column("part"),
    Column("size_class", title="size class"),
    percent("mean", "mean (%)"),
    percent("p90", "90th percentile (%)"),
    percent("naive_mean", "naive roofline (%)"),
    Column("rows", form=","),
)


def text(result: Silicon) -> str:
    """The table, aligned, and its notes."""
    return "\n".join([*aligned(cells(COLUMNS, result.rows), 4), "", *result.notes])
