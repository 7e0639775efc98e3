"""Fit a framework that runs a model operation by operation: its own time in a layer, and the share of the peak that its
8-bit products reach, to whole steps that somebody printed of it without a KV cache.

The table is one of `dse/calibrate/evidence.py`; rows whose `trust` is "judged" are left out of the fit and judge it.
`dse calibrate --kernel implementation` then fits what its code takes to read each kind of keys and values.
docs/explanation/calibration.md, A framework.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from calibration.implementations import HUBER, Floats
from dse.calibrate.evidence import WITHOUT_CACHE, EvidenceRow, predicted, read
from dse.calibrate.fit import percent
from dse.core import files, units
from dse.core.errors import InputError
from dse.specs.device_and_model import HardwareSpec

STACK, CODE = "transformers", "w8a8"
JUDGED = "judged"
_US = units.to_base(1, "us")
#: us in a layer, and share of the peak rate of 8-bit products: start, least and most
START, LEAST, MOST = (500.0, 0.3), (1.0, 0.01), (10_000.0, 1.0)
FEWEST_ROWS = 5


class Framework(NamedTuple):
    """Seconds of a layer and the share of products, with mean errors: of the rows fitted, of those left out in turn
    (all of a batch), and of those that judge."""

    layer_us: float
    flops_frac: float
    n_rows: int
    mean: float
    left_out_mean: float
    judged_mean: float


def with_numbers(device: HardwareSpec, layer_us: float, flops_frac: float) -> HardwareSpec:
    """The device with other numbers of the framework."""
    stack = device.stacks[STACK]
    host, products = stack.host, stack.products[CODE]  # type: ignore[index]
    assert host is not None
    layer = host.layer.model_copy(update={"value": layer_us, "unit": "us"})
    share = products.flops_frac.model_copy(update={"value": flops_frac})
    changed = stack.model_copy(
        update={
            "host": host.model_copy(update={"layer": layer}),
            "products": {CODE: products.model_copy(update={"flops_frac": share})},
        }
    )
    return device.model_copy(update={"stacks": {**device.stacks, STACK: changed}})


def errors(point: Sequence[float] | Floats, rows: Sequence[EvidenceRow]) -> Floats:
    """Logarithms of predicted over measured throughputs."""
    found = []
    for row in rows:
        assert row.device is not None
        device = with_numbers(row.device, float(point[0]), float(point[1]))
        found.append(np.log(predicted(row, device=device) / row.value))
    return np.array(found)


def _solved(rows: Sequence[EvidenceRow]) -> Floats:
    limits = np.log(LEAST), np.log(MOST)
    solution = least_squares(
        lambda logs: errors(np.exp(logs), rows),
        np.log(START),
        bounds=limits,
        diff_step=1e-3,
        loss="soft_l1",
        f_scale=HUBER,
    )
    return np.asarray(np.exp(solution.x))


def fit(rows: Sequence[EvidenceRow]) -> Framework:
    """Both numbers from rows without a cache, and how far off they are."""
    plain = [row for row in rows if row.cells["kv"].lower() == WITHOUT_CACHE and not row.reason]
    seen = [row for row in plain if row.cells.get("trust") != JUDGED]
    unseen = [row for row in plain if row.cells.get("trust") == JUDGED]
    best, off = _solved(seen), []
    for batch in dict.fromkeys(row.cells["batch"] for row in seen):
        block = [row for row in seen if row.cells["batch"] == batch]
        off.append(errors(_solved([row for row in seen if row not in block]), block))

    def mean(logs: Floats) -> float:
        return float(np.abs(np.expm1(logs)).mean()) if logs.size else float("nan")

    return Framework(
        layer_us=float(best[0]),
        flops_frac=float(best[1]),
        n_rows=len(seen),
        mean=mean(errors(best, seen)),
        left_out_mean=mean(np.concatenate(off)),
        judged_mean=mean(errors(best, unseen)),
    )


def judged(rows: Sequence[EvidenceRow]) -> dict[str, Floats]:
    """Times that were measured over those predicted by what ships, of the rows that judge, by keys and values."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.cells.get("trust") == JUDGED and not row.reason:
            found.setdefault(row.cells["kv"], []).append(predicted(row) / row.value)
    return {kv: np.array(over) for kv, over in found.items()}


def run(source: str, out: str, **_: Any) -> dict[str, Any]:
    """Fit the framework to a table and write its blocks of a device's file into the directory `out`.

    Raises InputError where too few rows run without a cache.
    """
    rows = read(source)
    plain = [row for row in rows if row.cells["kv"].lower() == WITHOUT_CACHE and not row.reason]
    if sum(row.cells.get("trust") != JUDGED for row in plain) < FEWEST_ROWS:
        raise InputError(f"{source}: fewer than {FEWEST_ROWS} rows with kv = none and trust other than {JUDGED}")
    found = fit(rows)
    files.publish(out, {f"{STACK}.toml": block_of(found, Path(source).name).encode()})
    return {"table": source, "out": out, **found._asdict()}


def block_of(found: Framework, table: str) -> str:
    """The blocks of a device's file."""
    said = f"{table}: {found.n_rows} rows without a KV cache, mean error {percent(found.mean)}"
    said += f", {percent(found.left_out_mean)} on a batch left out, {percent(found.judged_mean)} on rows that judge"
    return (
        f'[stacks.{STACK}.host]\nsource = "{said}"\nlayer = "{found.layer_us:.4g} us"\n\n'
        f'[stacks.{STACK}.products.{CODE}]\nsource = "{said}"\nflops_frac = {found.flops_frac:.4g}\n'
    )


def text(found: dict[str, Any]) -> str:
    """The report of `dse calibrate --kernel framework`."""
    return (
        f"{found['n_rows']} rows: {found['layer_us']:.4g} us in a layer, {found['flops_frac']:.3g} of the peak; mean "
        f"error {percent(found['mean'])}, on a batch left out {percent(found['left_out_mean'])}, on rows that judge "
        f"{percent(found['judged_mean'])}\n\nwritten: {found['out']}"
    )
