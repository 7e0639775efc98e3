"""Write how much measured servers give beside one another (dse/data/measured_fronts.csv): `python -m
calibration.measured_fronts TABLE.csv ...`.

A cell is a model with its lengths, and a limit on the time per token or so many requests at once. In it stands, of each
deployment, the output tokens a second and device over those of the best one. At a limit they are interpolated between
the loads that keep it and break it; where no load was measured that breaks it, the last that keeps it stands, as the
least that the deployment gives (`is_open`). Rows of the tables do not ship.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from dse import data
from dse.calibrate.servers import ServerRow, is_suspect, read
from dse.core import files, units
from dse.core.columns import csv_text
from dse.core.errors import InputError
from dse.model.formulas.steady import closed_loop_tokens_per_s

SHIPPED = Path(data.__file__).parent / "measured_fronts.csv"
#: limits on the time per output token, in ms
LIMITS_MS = (5, 10, 20, 30, 50, 100)
#: most that two loads are apart, as a factor, between which times and rates are interpolated
NEXT_LOAD = 4
#: digits of a ratio: reruns within days differ by 0.4 % in the middle
DIGITS = 3
_MS = units.to_base(1, "ms")


class Deployment(NamedTuple):
    """A server's device, software, formats and layout; columns of the table."""

    device: str
    engine: str
    release: str
    month: str
    weights: str
    kv: str
    n_devices: int
    tp: int
    pp: int
    ep: int
    dp_attention: int
    source: str

    @property
    def alike(self) -> tuple[str, ...]:
        """All but the layout."""
        return self[:6]


class MeasuredLoad(NamedTuple):
    """One measured load of a deployment."""

    requests: int
    tpot_s: float
    #: output tokens a second and device
    rate: float
    #: more load was not measured, and keeps the limit maybe
    is_open: bool = False


#: model, mean prompt and answer in tokens
Lengths = tuple[str, int, int]
Loads = dict[Lengths, dict[Deployment, list[MeasuredLoad]]]


def deployment_of(row: ServerRow) -> Deployment:
    """The deployment of a row that is predicted; a release that is not stated is the month of its measurement, and a
    type of keys and values that is not stated is ""."""
    assert row.work is not None
    assert row.device is not None
    work = row.work
    return Deployment(
        device=row.device.name,
        engine=row.stack,
        release=row.release,
        month=row.measured_on[:7],
        weights=str(work.weights),
        kv=row.kv if row.is_inferencex else "",
        n_devices=row.n_devices,
        tp=work.tp,
        pp=work.pp,
        ep=work.ep,
        dp_attention=int(work.dp_attention),
        source="InferenceX" if row.is_inferencex else "NVIDIA",
    )


def loads_of(rows: Iterable[ServerRow]) -> Loads:
    """Measured loads by lengths and deployment: of reruns of one load the median. Suspect rows, separate pools, rows
    without both times, and rows of InferenceX that name no day (copies of others) are left out."""
    runs: dict[tuple[Lengths, Deployment, int], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        is_copy = row.is_inferencex and not row.measured_on
        if is_suspect(row) or is_copy or row.work is None or row.spec is None or row.prompt_work:
            continue
        if not (row.tpot_s and row.ttft_s):
            continue
        lengths = row.spec.name, row.work.input_tokens, row.work.output_tokens
        rate = closed_loop_tokens_per_s(row.concurrency, row.work.output_tokens, row.ttft_s, row.tpot_s)
        runs[lengths, deployment_of(row), row.concurrency].append((row.tpot_s, rate / row.n_devices))
    loads: Loads = defaultdict(lambda: defaultdict(list))
    for (lengths, deployment, requests), of_load in runs.items():
        tpots, rates = zip(*of_load, strict=True)
        loads[lengths][deployment].append(MeasuredLoad(requests, median(tpots), median(rates)))
    return loads


def fronts(loads: Loads) -> list[dict[str, Any]]:
    """The rows of the table: cells of each limit, and cells of so many requests at once where two layouts of one number
    of devices differ in nothing else."""
    rows = []
    for lengths, of_lengths in sorted(loads.items()):
        for limit_ms in LIMITS_MS:
            cell = {}
            for deployment, measured in of_lengths.items():
                if found := at_limit(measured, limit_ms * _MS):
                    cell[deployment] = found
            rows += _cell(lengths, limit_ms, cell)
        by_load: dict[int, dict[Deployment, MeasuredLoad]] = defaultdict(dict)
        for deployment, measured in of_lengths.items():
            for one in measured:
                by_load[one.requests][deployment] = one
        for _, cell in sorted(by_load.items()):
            groups = defaultdict(list)
            for deployment in cell:
                groups[deployment.alike, deployment.n_devices].append(deployment)
            rows += _cell(
                lengths, None, {one: cell[one] for group in groups.values() if len(group) > 1 for one in group}
            )
    return rows


def at_limit(measured: Iterable[MeasuredLoad], limit_s: float) -> MeasuredLoad | None:
    """The load of a deployment at a limit on its time per token, with its rate: logarithms are interpolated between the
    largest load that keeps the limit and the next; None where no load keeps it."""
    ordered = sorted(measured)
    within = [one for one in ordered if one.tpot_s <= limit_s]
    if not within:
        return None
    last = within[-1]
    beyond = next((one for one in ordered if one.requests > last.requests), None)
    if beyond is None or beyond.requests > NEXT_LOAD * last.requests:
        return last._replace(is_open=True)
    share = math.log(limit_s / last.tpot_s) / math.log(beyond.tpot_s / last.tpot_s)

    def between(low: float, high: float) -> float:
        return math.exp(math.log(low) + share * math.log(high / low))

    requests = round(between(last.requests, beyond.requests))
    return MeasuredLoad(requests, limit_s, between(last.rate, beyond.rate))


def _cell(lengths: Lengths, limit_ms: int | None, cell: dict[Deployment, MeasuredLoad]) -> list[dict[str, Any]]:
    """The rows of a cell, none where it has one deployment."""
    if len(cell) < 2:
        return []
    best = max(one.rate for one in cell.values())
    model, inputs, outputs = lengths
    head = {"model": model, "input_tokens": inputs, "output_tokens": outputs, "tpot_limit_ms": limit_ms}
    return [
        {
            **head,
            **deployment._asdict(),
            "requests": one.requests,
            "is_open": int(one.is_open),
            "ratio": one.rate / best,
        }
        for deployment, one in sorted(cell.items())
    ]


def text_of(rows: list[dict[str, Any]]) -> str:
    """The table as it ships."""
    return csv_text(rows, digits=DIGITS)


def main(argv: list[str]) -> None:
    """Read tables and write what ships. Raises InputError without an argument."""
    if not argv:
        raise InputError("give the path of a table of measured servers, or of several")
    rows = fronts(loads_of(row for path in argv for row in read(path)))
    files.write(SHIPPED, text_of(rows).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
