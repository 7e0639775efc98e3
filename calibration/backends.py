"""Fit a program whose kernels were written once for every device of a kind (llama.cpp) to whole decode steps.

Shares of the peaks and seconds are common to all devices: a step is what it reads over a share of the bandwidth, and a
constant for each layer and sequence. The table is one of `dse validate speed` whose rows have `decode`;
docs/explanation/calibration.md, llama.cpp.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from calibration.implementations import HUBER, Floats
from dse.calibrate.fit import percent
from dse.core import files
from dse.core.errors import InputError
from dse.core.progress import Progress, each
from dse.model import engine
from dse.model.intervals import OTHER_VENDOR
from dse.model.kernels import MIDDLE_BANDWIDTH
from dse.model.point import Point
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec
from dse.specs.quantity import Quantity
from dse.specs.stack import KINDS, BackendsSpec, StackSpec
from dse.validate.speed import SpeedRow, read

#: the program, and the backend that all rows are of
PROGRAM, BACKEND = "llama.cpp", "cuda"
#: formats of files, and of them those that are looked up in a grid
PLAIN_CODES, GRID_CODE = ("bf16", "gguf"), "gguf_grid"
#: what is fitted -> unit, start, least, most. Starts are what other software is known to take: a layer and a sequence
#: of servers (hwspecs/stacks), shares of measured devices, and what was assumed of unpacking
NUMBERS = {
    "layer": ("us", 19.5, 0.1, 500.0),
    "experts_layer": ("us", 19.5, 0.1, 500.0),
    "unrecorded": ("us", 19.5, 0.1, 500.0),
    "sequence": ("us", 16.3, 0.1, 5000.0),
    "weights_share": ("1", MIDDLE_BANDWIDTH, 0.2, 1.0),
    "grid_share": ("1", MIDDLE_BANDWIDTH, 0.1, 1.0),
    "attention_share": ("1", MIDDLE_BANDWIDTH, 0.2, 1.0),
    "elements_per_cycle": ("element/cycle", 8.0, 0.5, 50.0),
    "products_share": ("1", 0.5, 0.05, 1.0),
    "experts_share": ("1", 0.5, 0.02, 1.0),
    "experts_prompt": ("us", 750.0, 1.0, 50_000.0),
}
#: weights of priors beside a model on a device: what the rows do not tell stays near its start; products reach what
#: measured devices do of their bandwidth, 0.85 to 0.93
OPEN, KNOWN = 0.02, 2.0
#: ends of the interval that holds 8 of 10, and what times to the first token are off at least: prompts of few rows
ENDS, LEAST_FIRST = (0.1, 0.9), 2.0
FEWEST_ROWS = 10


class Judged(NamedTuple):
    """A measured value: of a row, time per token or to the first, as the logarithm of measured over predicted."""

    row: SpeedRow
    what: str
    log: float


class Fitted(NamedTuple):
    """The numbers, and the errors of rows by fits that saw them, and that their device or model was left out of."""

    numbers: dict[str, float]
    n_rows: int
    seen: list[Judged]
    by_device: list[Judged]
    by_model: list[Judged]


def _numbers(stack: StackSpec, numbers: dict[str, float], start: str) -> StackSpec:
    """The stack with other numbers, of which `start` is a mixture's layer's."""

    def of(quantity: Quantity, name: str) -> Quantity:
        return quantity.model_copy(update={"value": numbers[name], "unit": NUMBERS[name][0]})

    def share(code: str) -> str:
        return "grid_share" if code == GRID_CODE else "weights_share"

    host, attention = stack.host, stack.attention
    assert host is not None
    assert attention is not None
    products = {
        code: fit.model_copy(
            update={"memory_frac": of(fit.memory_frac, share(code)), "flops_frac": of(fit.flops_frac, "products_share")}
        )
        for code, fit in stack.products.items()
    }
    experts = {
        code: fit.model_copy(
            update={
                "launch": of(fit.launch, start),
                "memory_frac": of(fit.memory_frac, share(code)),
                "flops_frac": of(fit.flops_frac, "experts_share"),
            }
        )
        for code, fit in stack.experts.items()
    }
    return stack.model_copy(
        update={
            "host": host.model_copy(
                update={name: of(getattr(host, name), name) for name in ("layer", "sequence", "experts_prompt")}
            ),
            "attention": attention.model_copy(update={"memory_frac": of(attention.memory_frac, "attention_share")}),
            "products": products,
            "experts": experts,
        }
    )


def predicted(row: SpeedRow, numbers: dict[str, float]) -> dict[str, float]:
    """Seconds of a step, and of a prompt where that was measured, by these numbers."""
    assert row.device is not None
    assert row.work is not None
    program, work = catalog.backends()[PROGRAM], row.work
    release = (work.stack or "").partition("@")[2]
    start = "experts_layer" if program.records(BACKEND, release) else "unrecorded"
    stack = _numbers(program.numbers, numbers, start)
    device: HardwareSpec = row.device.model_copy(update={"stacks": {**row.device.stacks, PROGRAM: stack}})
    if any(g.layout.needs_dequantizing for g in row.plan.groups):
        rate = numbers["elements_per_cycle"]
        work = replace(work, implementation=f"{PROGRAM}:elements_per_cycle={rate!r}")
    point = Point(device, row.plan, work)
    found = engine.evaluate(point) if "ttft" in row.measured else engine.speed(point)
    times = {"tpot": found["decode_step_s"]}
    return times | ({"ttft": found["ttft_s"]} if "ttft" in row.measured else {})


def judge(numbers: dict[str, float], rows: Sequence[SpeedRow]) -> list[Judged]:
    """Every measured time of the rows beside the numbers' prediction."""
    found = []
    for row in rows:
        times = predicted(row, numbers)
        found += [
            Judged(row, what, float(np.log(row.measured[what] / times[what])))
            for what in ("tpot", "ttft")
            if what in row.measured
        ]
    return found


def solve(rows: Sequence[SpeedRow]) -> dict[str, float]:
    """The numbers that fit the rows best; every model on a device counts alike, however many rows it has. Numbers that
    the rows do not tell stay where they start."""
    start, least, most = (np.array(column) for column in [*zip(*NUMBERS.values(), strict=True)][1:])
    names = [*NUMBERS]
    prior = np.array([KNOWN if name == "weights_share" else OPEN for name in names])

    def residuals(logs: Floats) -> Floats:
        numbers = dict(zip(names, (float(x) for x in np.exp(logs)), strict=True))
        judged = judge(numbers, rows)
        groups = [(one.row.device_name, one.row.model, one.what) for one in judged]
        fit = [one.log / np.sqrt(groups.count(group)) for one, group in zip(judged, groups, strict=True)]
        return np.array([*fit, *(prior * (logs - np.log(start)))])

    solution = least_squares(
        residuals,
        np.log(start),
        bounds=(np.log(least), np.log(most)),
        diff_step=1e-3,
        loss="soft_l1",
        f_scale=HUBER,
        xtol=1e-4,
        ftol=1e-4,
    )
    return dict(zip(names, (float(x) for x in np.exp(solution.x)), strict=True))


def left_out(rows: Sequence[SpeedRow], of: Callable[[SpeedRow], str], progress: Progress | None) -> list[Judged]:
    """Every row by a fit that its device, or its model, was left out of: of kernels that others have
    too."""
    found = []
    for name in each(sorted({of(row) for row in rows}), progress, "left out"):
        others = [row for row in rows if of(row) != name]
        known = {_code(row) for row in others}
        if own := [row for row in rows if of(row) == name and _code(row) in known]:
            found += judge(solve(others), own)
    return found


def _code(row: SpeedRow) -> tuple[str, bool]:
    """The kernels of a row's weights, and whether a mixture's start as one."""
    assert row.work is not None
    release = (row.work.stack or "").partition("@")[2]
    is_recorded = not row.is_mixture or catalog.backends()[PROGRAM].records(BACKEND, release)
    return row.work.weight_format.dense_code, is_recorded


def fit(rows: Sequence[SpeedRow], progress: Progress | None = None) -> Fitted:
    """The numbers of the program, and how far off they are."""
    numbers = solve(rows)
    return Fitted(
        numbers,
        len(rows),
        judge(numbers, rows),
        left_out(rows, lambda row: row.device_name, progress),
        left_out(rows, lambda row: row.model, progress),
    )


def errors(judged: Sequence[Judged], what: str) -> tuple[float, float]:
    """Median and 90th percentile of what predictions are off, as shares of what was measured."""
    off = np.abs(np.expm1([-one.log for one in judged if one.what == what]))
    return float(np.median(off)), float(np.quantile(off, 0.9))


def ends(judged: Sequence[Judged], what: str) -> tuple[float, float]:
    """Measured over predicted of 8 of 10 rows left out, where each model on a device counts alike."""
    own = sorted((one.log, (one.row.device_name, one.row.model)) for one in judged if one.what == what)
    groups = [group for _, group in own]
    weights = np.cumsum([1 / groups.count(group) for group in groups])
    low, high = (own[int(np.searchsorted(weights, end * weights[-1]))][0] for end in ENDS)
    return float(min(np.exp(low), 1.0)), float(max(np.exp(high), 1.0))


def run(source: str, out: str, progress: Progress | None = None, **_: Any) -> dict[str, Any]:
    """Fit the program to a table and write its file into the directory `out`.

    Raises InputError where the table has too few steps of it.
    """
    rows = [
        row
        for row in read(source)
        if row.engine == PROGRAM and row.kind == "decode" and not row.reason and not row.is_suspect
    ]
    if len(rows) < FEWEST_ROWS:
        raise InputError(f"{source}: {len(rows)} rows of {PROGRAM} with decode = yes: give {FEWEST_ROWS} or more")
    found = fit(rows, progress)
    text = file_text(found, catalog.backends()[PROGRAM], Path(source).name)
    files.publish(out, {f"{PROGRAM}.toml": text.encode()})
    said = {
        name: dict(zip(("median", "p90"), errors(judged, "tpot"), strict=True))
        for name, judged in (("seen", found.seen), ("device", found.by_device), ("model", found.by_model))
    }
    return {"table": source, "out": out, "n_rows": found.n_rows, "numbers": found.numbers, "errors": said}


def file_text(found: Fitted, program: BackendsSpec, table: str) -> str:
    """The file of the program: shares and seconds, and the intervals of each backend."""
    numbers, n = found.numbers, found.n_rows
    median, p90 = errors(found.by_device, "tpot")
    said = f"{table}: {n} steps, time per token off by {percent(errors(found.seen, 'tpot')[0])} in the median, by "
    said += f"{percent(median)} (90th percentile {percent(p90)}) on a device left out"
    fit = f'source = "{said}"\nn_points = {n}\nheld_out_error = {median:.3g}\nlaunch = "0 us"\n'
    lines = [
        f"# Written by `dse calibrate {table} --kernel backend`; docs/explanation/calibration.md, llama.cpp.",
        f'name = "{program.name}"\ntitle = "{program.title}"\nrecorded_since = "{program.recorded_since}"',
        f'unrecorded = {{ value = {numbers["unrecorded"]:.4g}, unit = "us", source = "{said}", kind = "measured" }}\n',
        f'[numbers.host]\nsource = "{said}"\nn_points = {n}\nlayer = "{numbers["layer"]:.4g} us"',
        f'sequence = "{numbers["sequence"]:.4g} us"\nprompt = "0 us"',
        f'experts_prompt = "{numbers["experts_prompt"]:.4g} us"\nrounds_in_step = 1.0\n',
        f'[numbers.attention]\n{fit}split = "0 us"\nper_unit = "0 us"\n'
        f"memory_frac = {numbers['attention_share']:.4g}\n",
    ]
    for table_name, launch, flops in (
        ("products", None, "products_share"),
        ("experts", "experts_layer", "experts_share"),
    ):
        block = fit if launch is None else fit.replace('"0 us"', f'"{numbers[launch]:.4g} us"')
        for code in (*PLAIN_CODES, GRID_CODE):
            share = numbers["grid_share" if code == GRID_CODE else "weights_share"]
            lines.append(
                f"[numbers.{table_name}.{code}]\n{block}memory_frac = {share:.4g}\nflops_frac = {numbers[flops]:.4g}\n"
            )
    for name, backend in program.backends.items():
        lines.append(f'[backends.{name}]\ntitle = "{backend.title}"\narchitectures = {list(backend.architectures)}')
        lines[-1] = lines[-1].replace("'", '"') + ("\nis_alone = true" if backend.is_alone else "")
        lines[-1] += "\nrecords = true" if backend.records else ""
        lines.append(f"n_points = {n if backend.n_points else 0}\n\n[backends.{name}.left_out]")
        lines += [f"{kind} = {_spread(found, bool(backend.n_points), n)}" for kind in KINDS]
        lines.append("")
    return "\n".join(lines)


def _spread(found: Fitted, is_measured: bool, n: int) -> str:
    """The interval of a backend, the wider of both ways to leave rows out; of one without rows wider still."""
    by = [ends(judged, "tpot") for judged in (found.by_device, found.by_model)]
    first = [*(ends(judged, "ttft") for judged in (found.by_device, found.by_model)), (1 / LEAST_FIRST, LEAST_FIRST)]
    wider = 1.0 if is_measured else OTHER_VENDOR
    said = {
        "low": min(low for low, _ in by) / wider,
        "high": max(high for _, high in by) * wider,
        "first_low": min(low for low, _ in first) / wider,
        "first_high": max(high for _, high in first) * wider,
    }
    return "{ " + ", ".join(f"{name} = {value:.3g}" for name, value in said.items()) + f", n_points = {n} }}"


def text(found: dict[str, Any]) -> str:
    """The report of `dse calibrate --kernel backend`."""
    off = (
        f"{name} {percent(one['median'])} in the median, {percent(one['p90'])} at the 90th percentile"
        for name, one in found["errors"].items()
    )
    numbers = ", ".join(
        f"{name} {value:.4g} {NUMBERS[name][0]}".removesuffix(" 1") for name, value in found["numbers"].items()
    )
    return (
        f"{found['n_rows']} steps: {numbers}\ntime per token, of rows seen, or left out by: {'; '.join(off)}\n\n"
        f"written: {found['out']}"
    )
