"""Fit the numbers of implementations to a table of published measurements (dse/calibrate/evidence.py).

Of each implementation the numbers that its file calls measured are fitted to the rows that run it: to gains over the
base of their group where it differs in keys and values alone, which holds what both sides share, else to the printed
numbers. Ranges come from leaving out the
rows of one model, or one batch, at a time. docs/explanation/implementations.md, The fits.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from dse.calibrate.evidence import RATES, EvidenceRow, formula_of, predicted, read
from dse.core import files, specfile
from dse.core.errors import DseError, InputError
from dse.specs import catalog
from dse.specs.device_and_model import load
from dse.specs.implementation import Implementation

Floats = NDArray[np.float64]
#: relative error from which on a row pulls with constant force
HUBER = 0.1
#: half the width of the 80 % interval of a normal distribution, in standard deviations; and the least of those
WIDTH_80, LEAST_SD = 1.2816, 0.08
#: a range that is wider says that a number cannot be told from these rows
WIDEST = 4.0
FEWEST_ROWS = 5
#: rows that are not fitted to (column `trust`): a kernel that its table names as another, and those that judge a fit
LEFT_OUT = ("plain GPTQ kernel", "judged")


@dataclass(frozen=True)
class Fitted:
    """Numbers of an implementation as fitted, in their units, with ranges and errors (shares)."""

    name: str
    file: Path
    n_rows: int
    values: dict[str, tuple[float, float, float]]
    mean: float
    left_out_mean: float
    left_out_median: float
    #: numbers that these rows do not tell
    unknown: tuple[str, ...]


def run(source: str, out: str, **_: Any) -> dict[str, Any]:
    """Fit all implementations that have rows in the table, and write their files into the directory `out`.

    Raises InputError where none has.
    """
    rows = [row for row in read(source) if not row.reason and row.cells.get("trust") not in LEFT_OUT]
    bases = {row.group: row for row in rows if row.is_base}
    bases = {row.id: bases[row.group] for row in rows if row.group in bases and _differs_in_kv(row, bases[row.group])}
    fits = []
    for impl, path in shipped():
        matching = [row for row in rows if formula_of(row.quantity)[1] and runs(row, impl)]
        names = [name for name, number in impl.numbers().items() if number.kind == "measured"]
        if len(matching) >= FEWEST_ROWS and names:
            fitted = fit(impl, path, matching, bases, names)
            fits.append(fitted)
    if not fits:
        raise InputError(
            f"{source}: no rows of an implementation with numbers to fit: see docs/explanation/implementations.md"
        )
    files.publish(out, {outcome.file.name: file_of(outcome, Path(source).name) for outcome in fits})
    return {"table": source, "out": out, "fits": [_plain(outcome) for outcome in fits]}


def shipped() -> list[tuple[Implementation, Path]]:
    """The implementations with their files."""
    folder = catalog.implementation_folder()
    return [(load(specfile.read(path), Implementation), path) for path in sorted(folder.glob("*.toml"))]


def _differs_in_kv(row: EvidenceRow, base: EvidenceRow) -> bool:
    """True where nothing but how keys and values are stored tells a row from its base."""
    return row.quantity == base.quantity and all(
        row.cells.get(name) == base.cells.get(name) for name in ("weights", "activations", "batch")
    )


def runs(row: EvidenceRow, one: Implementation) -> bool:
    """True for rows whose keys and values the implementation runs."""
    try:
        plan = row.point(batch=1).plan
    except DseError:
        return False
    return any(
        g.implementation and g.implementation.name == one.name and g.quantizer.family.name in one.methods
        for g in plan.groups
    )


def fit(
    one: Implementation, path: Path, rows: Sequence[EvidenceRow], bases: dict[str, EvidenceRow], names: Sequence[str]
) -> Fitted:
    """The numbers `names` of an implementation, all rows together, with what leaving out blocks of rows makes of it."""
    against = {row.id: predicted(bases[row.id]) for row in rows if row.id in bases}

    def errors(logs: Floats, some: Sequence[EvidenceRow]) -> Floats:
        values = dict(zip(names, np.exp(logs), strict=True))
        spelling = f"{one.name}:" + ",".join(f"{name}={value:.9g}" for name, value in values.items())
        return np.array([_error(row, predicted(row, implementation=spelling), bases, against) for row in some])

    start = np.log([one.numbers()[name].value for name in names])

    def solved(some: Sequence[EvidenceRow]) -> Floats:
        limits = np.log([LIMITS_OF.get(one.stack or "", LIMITS)[name] for name in names]).T
        solution = least_squares(
            lambda x: errors(x, some),
            np.clip(start, *limits),
            bounds=limits,
            diff_step=1e-3,
            loss="soft_l1",
            f_scale=HUBER,
        )
        return np.asarray(solution.x)

    best = solved(rows)
    blocks = [block for block in _blocks(rows) if len(rows) - len(block) >= len(names)]
    left, off = [], []
    for block in blocks:
        others = [row for row in rows if row not in block]
        left.append(solved(others))
        off.append(errors(left[-1], block))
    sd = np.sqrt((len(left) - 1) / len(left) * ((np.array(left) - np.mean(left, axis=0)) ** 2).sum(axis=0))
    half = WIDTH_80 * np.maximum(sd, LEAST_SD)
    values = {
        name: (float(np.exp(v)), float(np.exp(v - h)), float(np.exp(v + h)))
        for name, v, h in zip(names, best, half, strict=True)
    }
    apart = np.abs(np.expm1(np.concatenate(off)))
    unknown = tuple(name for name, h in zip(names, half, strict=True) if h > np.log(WIDEST))
    seen = float(np.abs(np.expm1(errors(best, rows))).mean())
    return Fitted(
        one.name,
        file=path,
        n_rows=len(rows),
        values=values,
        mean=seen,
        left_out_mean=float(apart.mean()),
        left_out_median=float(np.median(apart)),
        unknown=unknown,
    )


#: what the numbers may be, in their units
LIMITS = {
    "elements_per_cycle": (0.05, 500.0),
    "cores_per_head": (0.05, 500.0),
    "memory_frac": (0.2, 1.0),
    "launch": (0.5, 500.0),
}
#: a framework that runs operation by operation: a layer's attention is dozens of them, started from Python, and each
#: passes over all keys and values, which it joins to the new ones by a copy
LIMITS_OF = {"transformers": {**LIMITS, "memory_frac": (0.002, 1.0), "launch": (0.5, 5000.0)}}


def _error(row: EvidenceRow, value: float, bases: dict[str, EvidenceRow], against: dict[str, float]) -> float:
    """Logarithm of predicted over measured: of the gain over the base of its group where it has one."""
    base = bases.get(row.id)
    if base is None:
        return float(np.log(value / row.value))
    better = 1 if row.unit in RATES else -1
    return better * float(np.log(value / against[row.id] / (row.value / base.value)))


def _blocks(rows: Sequence[EvidenceRow]) -> list[list[EvidenceRow]]:
    """Rows that are left out together: of one model, else of one batch and quantity."""
    for key in (lambda row: row.cells["model"], lambda row: (row.cells["kv"], row.cells.get("batch"))):
        names = list(dict.fromkeys(map(key, rows)))
        if len(names) > 2:
            return [[row for row in rows if key(row) == name] for name in names]
    return [[row] for row in rows]


def file_of(found: Fitted, table: str) -> bytes:
    """The implementation's file with the fitted numbers in place of those that it had."""
    text = found.file.read_text()
    said = f"{table}: {found.n_rows} rows, mean error {100 * found.mean:.1f} %"
    said += f", {100 * found.left_out_mean:.1f} % on rows left out"
    for name, numbers in found.values.items():
        note = f"{said}; these rows hardly tell it" if name in found.unknown else said
        block = re.compile(rf"(?m)^\[{name}\]\n(?:(?!\[).*\n?)*")
        unit = re.search(r'(?m)^unit = "(.*)"$', block.search(text)[0])[1]  # type: ignore[index]
        value, low, high = (f"{number:.4g}" for number in numbers)
        text = block.sub(
            f'[{name}]\nvalue = {value}\nlow = {low}\nhigh = {high}\nunit = "{unit}"\nsource = "{note}"\n'
            f'kind = "measured"\n\n',
            text,
        )
    return (text.rstrip() + "\n").encode()


def _plain(outcome: Fitted) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "rows": outcome.n_rows,
        "numbers": {name: dict(zip(("value", "low", "high"), v, strict=True)) for name, v in outcome.values.items()},
        "mean": outcome.mean,
        "left_out_mean": outcome.left_out_mean,
        "left_out_median": outcome.left_out_median,
        "not_told": list(outcome.unknown),
    }


def text(found: dict[str, Any]) -> str:
    """The report of `dse calibrate --kernel implementation`."""
    lines = []
    for row in found["fits"]:
        numbers = ", ".join(
            f"{n} {v['value']:.3g} ({v['low']:.3g} to {v['high']:.3g})" for n, v in row["numbers"].items()
        )
        lines.append(
            f"{row['name']}: {row['rows']} rows, mean error {100 * row['mean']:.1f} %, on rows left out "
            f"{100 * row['left_out_mean']:.1f} % (median {100 * row['left_out_median']:.1f}): {numbers}"
            + (f"; not told by these rows: {', '.join(row['not_told'])}" if row["not_told"] else "")
        )
    return "\n".join([*lines, "", f"written: {found['out']}"])
