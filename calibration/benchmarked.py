"""Fit what public benchmarks say of servers (hwspecs/benchmarked): `python -m calibration.benchmarked [TABLE.csv ...]`.

A table of benchmarks, as `dse validate speed` reads it, is predicted with the shipped numbers and with each of them
changed; how far off its times are, and how they follow each number, is `benchmarked.csv` beside this file. That table
ships, the benchmarks do not. Without a table the one that ships is fitted again. A number keeps its shipped value, and
is called assumed where the fit says another; `--take` takes the fit's.
"""

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import hwspecs
from calibration.host import robust
from dse.calibrate.solve import Floats
from dse.core import files, specfile, toml
from dse.model.kernels import benchmarked_as, is_other_vendor, other_vendor_number, stand_in_share
from dse.model.point import Point
from dse.specs import catalog
from dse.specs.quantity import ASSUMED
from dse.specs.stack import Benchmarked, Kind, UnmeasuredKernels
from dse.validate import speed

FOLDER = Path(hwspecs.__file__).parent / "benchmarked"
HEAD = "# Written by `python -m calibration.benchmarked`; docs/explanation/calibration.md, Public benchmarks.\n"
DERIVED = Path(__file__).parent / "benchmarked.csv"
#: numbers of GPUs that run by kernels of another vendor's, fitted to times per token: first tokens of these rows wait
#: for requests in front, or for kernels that are compiled (4 s for one prompt)
OTHER_VENDOR = ("other_vendor_time", "other_vendor_narrow_time", "other_vendor_experts_time")
#: numbers that benchmarks say, by the file and the table in it; all others are held
FREE: dict[tuple[str, str], tuple[str, ...]] = {
    ("vllm", "dense"): ("dense_share", "prompt_attention_share"),
    ("vllm", "mixture"): ("dense_share", "experts_share", "prompt_attention_share"),
    ("sglang", "mixture"): (
        "dense_share",
        "experts_share",
        "prompt_attention_share",
        "layer",
        "prompt",
        "blocking_share",
        "rounds_in_step",
    ),
    **{("kernels", name): (name,) for name in OTHER_VENDOR},
    ("kernels", "unpacked"): ("unpacked_share",),
}
#: what a number usually is: rates as in kernel benchmarks (1); a layer, a prompt (us), rounds as other fits hold them
USUAL = {"layer": 19.16, "prompt": 1319.2, "blocking_share": 0.5, "rounds_in_step": 1.396}
#: how far a number usually lies from that, as the logarithm of its factor (of blocking, as a difference): a fit is
#: pulled back as by one value that is off by 10 %
USUALLY = 0.5
#: the change of a number that its effect is taken from (of blocking, a difference); the most that a fit changes it by
STEP, BLOCKING_STEP, MOST = 1.2, -0.2, 4.0
#: least of a predicted time that is left where numbers change it
LEAST = 0.05
COLUMNS = ("id", "file", "table", "model", "device", "loop", "what", "measured_over_predicted")
TIMES = ("tpot", "ttft")
#: what the source of a number says last
SAID = "; a fit to "


_Numbers = TypeVar("_Numbers", Benchmarked, UnmeasuredKernels)


class Rows(NamedTuple):
    """Values of the derived table that one fit takes: logarithms of measured over predicted times, relative changes of
    these times by each free number as `_natural` has it, and what was measured of which model on which device."""

    off: Floats
    slopes: Floats
    models: NDArray[np.str_]
    devices: NDArray[np.str_]
    whats: NDArray[np.str_]

    def take(self, keep: NDArray[np.bool_]) -> "Rows":
        """The values where `keep` is true."""
        return Rows(
            self.off[keep],
            slopes=self.slopes[keep],
            models=self.models[keep],
            devices=self.devices[keep],
            whats=self.whats[keep],
        )


class Fitted(NamedTuple):
    """The free numbers of a fit, their ends as whole models and devices are left out, and what it leaves of times."""

    numbers: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]
    counts: str
    #: measured over predicted in 8 of 10 values, each by a fit without its model
    spread: dict[str, float]
    #: mean of the logarithms of that, without sign: "tpot", "tpot model left out", ...
    errors: dict[str, float]


def _natural(name: str, value: float) -> float:
    """A number as times are nearly linear in it: a share of a rate inverted."""
    return 1.0 / value if name.endswith("_share") and name != "blocking_share" else value


def shipped() -> dict[str, Any]:
    """The files as they are, by name."""
    return {path.stem: specfile.read(path).data for path in sorted(FOLDER.glob("*.toml"))}


def numbers_of(data: Mapping[str, Any], place: tuple[str, str]) -> dict[str, float]:
    """The shipped values of the free numbers of a fit."""
    block = data["kernels"] if place[0] == "kernels" else data[place[0]][place[1]]
    return {name: float(block[name]["value"]) for name in FREE[place]}


def place_of(row: speed.SpeedRow) -> tuple[str, str] | None:
    """The fit that a benchmark belongs to; None where it says nothing of any."""
    if row.is_suspect or row.reason or row.device is None or row.work is None:
        return None
    stack = Point(row.device, row.plan, row.work).stack
    if stack is None:
        return None
    if benchmarked_as(row.device, row.plan.model, row.work, stack):
        return row.engine, "mixture" if row.is_mixture else "dense"
    if is_other_vendor(row.device):
        return "kernels", other_vendor_number(row.plan.model, row.work.weight_format)
    return ("kernels", "unpacked") if stand_in_share(row.device, row.work, stack) < 1 else None


def derived(path: str) -> list[dict[str, Any]]:
    """The rows of the derived table of a table of benchmarks."""
    data, records = shipped(), []
    for row in speed.read(path):
        place = place_of(row)
        if place is None:
            continue
        now = numbers_of(data, place)
        base = _times(row, place, {})
        changed = {name: _changed(name, value) for name, value in now.items()}
        others = {name: _times(row, place, {name: value}) for name, value in changed.items()}
        for what in TIMES:
            if what not in row.measured or what not in base or (what == "ttft" and place[1] in OTHER_VENDOR):
                continue
            steps = {name: _natural(name, changed[name]) - _natural(name, now[name]) for name in now}
            slopes = {name: (others[name][what] / base[what] - 1) / step for name, step in steps.items()}
            records.append(
                {
                    "id": row.id,
                    "file": place[0],
                    "table": place[1],
                    "model": row.plan.model.name,
                    "device": row.device_name,
                    "loop": row.kind,
                    "what": what,
                    "measured_over_predicted": row.measured[what] / base[what],
                    **slopes,
                }
            )
    return records


def _changed(name: str, value: float) -> float:
    if name in OTHER_VENDOR:  # a server that takes longer may not hold a row's rate
        return value / STEP
    return value + BLOCKING_STEP if name == "blocking_share" else value * STEP


def _times(row: speed.SpeedRow, place: tuple[str, str], change: Mapping[str, float]) -> dict[str, float]:
    """Predicted times with some numbers changed; none where nothing is predicted."""
    fresh = replace(row, plan=replace(row.plan))  # a plan keeps what was computed of it
    public, kernels = catalog.benchmarked(row.engine), catalog.unmeasured_kernels()
    if place[0] == "kernels":
        kernels = _with(kernels, change)
    else:
        kind: Kind = "mixture" if row.is_mixture else "dense"
        public = {**public, kind: _with(public[kind], change)}
    with (
        mock.patch.object(catalog, "benchmarked", return_value=public),
        mock.patch.object(catalog, "unmeasured_kernels", return_value=kernels),
    ):
        judged = speed.judge(fresh)
    return {value.what: value.ours for value in judged.values}


def _with(spec: _Numbers, change: Mapping[str, float]) -> _Numbers:
    numbers = spec.quantities()
    return spec.model_copy(
        update={name: numbers[name].model_copy(update={"value": value}) for name, value in change.items()}
    )


def table_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """The derived table; a number that a fit does not have is left empty."""
    out = io.StringIO()
    names = [*COLUMNS, *dict.fromkeys(name for free in FREE.values() for name in free)]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: f"{cell:.4g}" if isinstance(cell, float) else cell for name, cell in row.items()})
    return out.getvalue()


def read() -> dict[tuple[str, str], Rows]:
    """The derived table that ships, by fit."""
    lines = list(csv.DictReader(io.StringIO(files.read_bytes(DERIVED).decode())))
    tables = {}
    for place, names in FREE.items():
        matching = [line for line in lines if (line["file"], line["table"]) == place]
        tables[place] = Rows(
            off=np.log([float(line["measured_over_predicted"]) for line in matching]),
            slopes=np.array([[float(line[name]) for name in names] for line in matching]),
            models=np.array([line["model"] for line in matching]),
            devices=np.array([line["device"] for line in matching]),
            whats=np.array([line["what"] for line in matching]),
        )
    return tables


def left(rows: Rows, change: Floats) -> Floats:
    """Logarithms of measured over predicted times after a change of the numbers, as `_natural` has them."""
    residuals: Floats = rows.off - np.log(np.maximum(1 + rows.slopes @ change, LEAST))
    return residuals


def solved(rows: Rows, shipped: Mapping[str, float]) -> dict[str, float]:
    """The numbers that leave least, robustly; values of one model on one device count as the root of their number."""
    from scipy.optimize import least_squares

    names = list(shipped)
    start = np.array([_natural(name, shipped[name]) for name in names])
    usual = np.array([_natural(name, USUAL.get(name, 1.0)) for name in names])
    is_part = np.array([name == "blocking_share" for name in names])
    groups = np.char.add(rows.models, rows.devices)
    weights = np.sqrt([float((groups == group).sum()) ** -0.5 for group in groups])

    def values(free: Floats) -> Floats:
        return np.where(is_part, free, np.exp(free))

    def free_of(natural: Floats) -> Floats:
        return np.where(is_part, natural, np.log(natural))

    def residuals(free: Floats) -> Floats:
        return np.concatenate((weights * robust(left(rows, values(free) - start)), (free - free_of(usual)) / USUALLY))

    first = free_of(start)
    low, high = np.where(is_part, 0.0, first - np.log(MOST)), np.where(is_part, 1.0, first + np.log(MOST))
    best = values(least_squares(residuals, first, bounds=(low, high)).x)
    return {name: _natural(name, float(value)) for name, value in zip(names, best, strict=True)}


def fit(rows: Rows, shipped: Mapping[str, float]) -> Fitted:
    """Fit one table, and again without each model and each device."""
    start = np.array([_natural(name, value) for name, value in shipped.items()])

    def off_of(part: Rows, numbers: Mapping[str, float]) -> Floats:
        return left(part, np.array([_natural(name, value) for name, value in numbers.items()]) - start)

    numbers = solved(rows, shipped)
    every, left_out = [numbers], {"seen": off_of(rows, numbers)}
    for by, groups in (("model", rows.models), ("device", rows.devices)):
        if len(set(groups.tolist())) < 2:
            continue
        left_out[by] = np.empty(len(groups))
        for group in sorted(set(groups.tolist())):
            in_group = groups == group
            every.append(solved(rows.take(~in_group), shipped))
            left_out[by][in_group] = off_of(rows.take(in_group), every[-1])
    spread: dict[str, float] = {}
    measured = [what for what in TIMES if what in rows.whats]
    for what in measured:
        low, high = ("low", "high") if what == "tpot" else ("first_low", "first_high")
        ends = np.exp(np.quantile(left_out.get("model", left_out["seen"])[rows.whats == what], (0.1, 0.9)))
        spread |= {low: min(float(ends[0]), 1.0), high: max(float(ends[1]), 1.0)}
    n_models, n_devices = (len(set(column.tolist())) for column in (rows.models, rows.devices))
    return Fitted(
        numbers,
        low={name: min(solution[name] for solution in every) for name in numbers},
        high={name: max(solution[name] for solution in every) for name in numbers},
        counts=f"{len(rows.off)} times of {n_models} models on {n_devices} device{'s' if n_devices > 1 else ''}",
        spread=spread,
        errors={
            f"{what}, {by}": float(np.abs(off[rows.whats == what]).mean())
            for by, off in left_out.items()
            for what in measured
        },
    )


def fit_all() -> dict[tuple[str, str], Fitted]:
    """Every fit to the derived table that ships."""
    data = shipped()
    return {place: fit(rows, numbers_of(data, place)) for place, rows in read().items()}


def written(fits: Mapping[tuple[str, str], Fitted], take: bool = False) -> dict[str, str]:
    """The texts of the files by name, what the fits say in them.

    A number that is not the fit's to two digits is assumed; with `take` all are.
    """
    data = shipped()
    for place, result in fits.items():
        block = data["kernels"] if place[0] == "kernels" else data[place[0]][place[1]]
        for name, value in result.numbers.items():
            number, fitted = block[name], float(f"{value:.2g}")
            if take:
                number["value"] = fitted
            number["kind"] = "derived" if number["value"] == fitted else ASSUMED
            says = f"{fitted:g} ({result.low[name]:.2g} to {result.high[name]:.2g} as models and devices are left out)"
            number["source"] = f"{number['source'].partition(SAID)[0]}{SAID}{result.counts}: {says}"
        if place[0] != "kernels":
            spread = block["spread"]
            if take:
                spread |= {name: float(f"{end:.2g}") for name, end in result.spread.items()}
            is_fitted = all(spread[name] == float(f"{end:.2g}") for name, end in result.spread.items())
            spread["kind"] = "derived" if is_fitted else ASSUMED
            says = ", ".join(f"{name} {end:.2g}" for name, end in result.spread.items())
            spread["source"] = f"{spread['source'].partition(SAID)[0]}{SAID}{result.counts}, by models left out: {says}"
    return {name: HEAD + toml.dumps(block) for name, block in data.items()}


def main(argv: list[str]) -> None:
    """Derive the table from benchmarks where one is given, fit it, and write what ships."""
    take, tables = "--take" in argv, [arg for arg in argv if arg != "--take"]
    if tables:
        files.write(DERIVED, table_csv([row for path in tables for row in derived(path)]).encode())
    for name, text in written(fit_all(), take).items():
        files.write(FOLDER / f"{name}.toml", text.encode())


if __name__ == "__main__":
    main(sys.argv[1:])
