"""Write the results of a calibration: a device file with the fitted stack, a plot, its points, a report."""

import csv
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dse.calibrate import blocks
from dse.calibrate.fit import Outcome, check_units, choose, fit, percent
from dse.calibrate.formulas import ATTENTION_SPACE, MICROSECOND, arguments, predict_s
from dse.calibrate.table import PACKAGE, TIME, Table, from_package, read
from dse.core import files, units
from dse.core.errors import InputError, did_you_mean, show
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec
from dse.specs.stack import KvCode, StackSpec

#: parameters of each part as files name them, with the unit they are written in
_UNITS = {"memory_frac": "1", "flops_frac": "1", "core_rate": "Gelement/s"}
_PACKED = ("launch", "core_rate")
#: names of data centre GPUs: a100, b200, gb200, h100, l40s, ...
_CHIP = re.compile(r"(?:gb|[abhl])[0-9]")
_CITED = f"{PACKAGE} %s (arXiv:2601.06288)"
PREDICTED = "predicted_us"
#: errors on fewer rows than this are shown with a note
FEW_ROWS = 10
#: the largest factor that the fit searches
MAX_CACHE_FACTOR = 0.999 / float(ATTENTION_SPACE.low[ATTENTION_SPACE.names.index("cache")])


def load(source: str, device: HardwareSpec, stack: str | None, kind: str = "attention") -> tuple[Table, str]:
    """The rows to fit and the stack's name: from a CSV file, or from the package where `source` is its name."""
    if source == PACKAGE:
        name = stack or "vllm"
        return from_package(device.name, name, "gemm" if kind == "gemm" else "attention"), name
    table = read(source)
    _check_device(table, device)
    return choose(table, stack)


def _check_device(table: Table, device: HardwareSpec) -> None:
    """Raise InputError where the table names a chip that plainly is another than the device."""
    chips = {name.split("-")[0] for name in catalog.device_files() if _CHIP.match(name)}

    def chips_in(text: str) -> set[str]:
        named_chips = {chip for chip in chips if chip in text}
        return {chip for chip in named_chips if not any(chip in other and chip != other for other in named_chips)}

    named, device_chips = chips_in(table.gpu.lower().replace(" ", "")), chips_in(device.name.lower())
    if named and device_chips and not named & device_chips:
        raise InputError(
            f"{table.where(0)}: gpu = {show(table.gpu)}: the device is {device.name}: give the device that was measured"
        )


def cited() -> str:
    """The installed package as a source names it."""
    from importlib.metadata import version

    return _CITED % version(PACKAGE)


def origin(table: Table) -> str:
    """Where rows come from, as a source names it."""
    where = os.path.basename(table.path)
    if table.path == PACKAGE:
        where = cited()
    kinds = []
    if table.kind == "attention":
        kinds = [
            f"{'16-bit' if code == 'fp16' else code} keys and values" for code in sorted(set(table.codes.tolist()))
        ]
        sizes = sorted({int(size) for size in table.columns["head_dim"]})
        kinds.append(f"head dimension {', '.join(str(size) for size in sizes[:6])}")
    return ", ".join(part for part in (where, table.gpu, table.names(), *kinds) if part)[:280]


def fitted(outcome: Outcome) -> dict[str, Any]:
    """One part as its block in a device file."""
    total = outcome.errors.get("all") or next(iter(outcome.errors.values()))
    serving = outcome.errors.get("serving")
    rows = f"{outcome.n_points:,} rows fitted, mean error {percent(total['mean'])} on {total['rows']:,} others"
    errors = {"held_out_error": total["mean"]}
    if serving:
        rows += f", {percent(serving['mean'])} on the {serving['rows']:,} of them like serving"
        errors |= {"serving_error": serving["mean"], "serving_p90": serving["p90"]}
    return blocks.block(
        shown(outcome), _UNITS, fitted_on=origin(outcome.table), rows=rows, n_points=outcome.n_points, errors=errors
    )


def shown(outcome: Outcome) -> dict[str, float]:
    """The parameters that this part sets, in SI units."""
    names = _PACKED if outcome.part.startswith("kv.") else tuple(outcome.parameters)
    return {name: outcome.parameters[name] for name in names if name in outcome.parameters}


def with_stack(data: dict[str, Any], name: str, outcomes: list[Outcome]) -> dict[str, Any]:
    """The device's data with the trusted parts put into one stack; what was built on replaced parts goes."""
    stacks = {key: dict(value) for key, value in data.get("stacks", {}).items()}
    stack = stacks.get(name, {})
    for outcome in outcomes:
        if not outcome.trusted:
            continue
        if outcome.part.startswith("kv."):
            stack["kv"] = {**stack.get("kv", {}), outcome.part.removeprefix("kv."): fitted(outcome)}
        else:
            stack[outcome.part] = fitted(outcome)
            if outcome.part == "attention":
                stack.pop("kv", None)
    return {**data, "stacks": {**stacks, name: stack}}


def run(
    source: str,
    device_name: str,
    stack: str | None,
    out: str,
    progress: Callable[..., Any],
    kind: str,
    draw: Callable[[list[Outcome], str, str], tuple[bytes, bytes]],
) -> dict[str, Any]:
    """Fit, and write the device file with the stack, its plot and points beside it; only what is trusted is written.

    `draw` makes the plot, as page and picture, of the outcomes, the device's name and the stack's.
    """
    blocks.check_out(out)
    device = catalog.device(device_name)
    table, name = load(source, device, stack, kind)
    _check_name(name)
    outcomes = fit(table, device, name, progress)
    good = [outcome for outcome in outcomes if outcome.trusted]
    if not good:
        reasons = "; ".join(f"{outcome.part}: {', '.join(outcome.problems)}" for outcome in outcomes)
        raise InputError(f"{source}: the fit cannot be trusted, nothing is written: {reasons}")
    text = blocks.device_text(with_stack(blocks.device_data(device_name), name, outcomes), out)
    target = Path(out)
    plot = target.with_suffix(".html")
    picture = target.with_suffix(".png")
    page, png = draw(outcomes, device.name, name)
    files.publish(
        str(target.parent),
        {
            target.with_suffix(".points.csv").name: files.csv_of(points(outcomes, device.name, name)),
            plot.name: page,
            picture.name: png,
            target.name: text.encode(),
        },
    )
    return {
        "device": device.name,
        "stack": name,
        "table": source,
        "out": str(target),
        "plot": str(plot),
        "parts": [as_dict(outcome) for outcome in outcomes],
    }


def _check_name(name: str) -> None:
    if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum() or name != name.lower():
        raise InputError(f"stack = {show(name)}: must be lower-case letters and digits, such as vllm")
    if len(name) > 32:
        raise InputError(f"stack = {show(name)}: must have at most 32 letters")


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """An outcome as `--json` prints it: SI units, errors as shares."""
    return {
        "part": outcome.part,
        "trusted": outcome.trusted,
        "problems": outcome.problems,
        "parameters": shown(outcome),
        "n_points": outcome.n_points,
        "n_held_out": outcome.n_held_out,
        "errors": outcome.errors,
        "left_out": outcome.left_out,
        "n_in_cache": outcome.n_in_cache,
        "cache_factor": outcome.cache_factor,
        "notes": outcome.notes,
        "fitted_on": origin(outcome.table),
    }


def points(outcomes: list[Outcome], device: str, stack: str) -> pd.DataFrame:
    """Points of the plot: a row per measured time, with the predicted one and whether it was held out."""
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "device": device,
                    "stack": stack,
                    "part": o.part,
                    "measured_s": o.measured_s,
                    "predicted_s": o.predicted_s,
                    "held_out": o.held_out,
                }
            )
            for o in outcomes
        ],
        ignore_index=True,
    )


def text(fitted: dict[str, Any]) -> str:
    """The report of `dse calibrate`."""
    lines = [f"{fitted['device']}  stack {fitted['stack']}  from {fitted['table']}"]
    for part in fitted["parts"]:
        lines += ["", f"{part['part']}: {part['n_points']:,} rows fitted, {part['n_held_out']:,} held out"]
        for name, value in part["parameters"].items():
            lines.append(f"  {name:<14}{_human(name, value)}")
        lines.append(f"  {'mean error on rows held out':<34}{'mean':>8}{'p90':>8}{'naive':>8}{'rows':>8}")
        for size, error in part["errors"].items():
            shares = "".join(f"{percent(error[key]):>8}" for key in ("mean", "p90", "naive_mean"))
            lines.append(f"    {_SIZES[part['part'] == 'gemm'][size]:<32}{shares}{error['rows']:>8,}")
        for left in part["left_out"]:
            where = ", ".join(str(line) for line in left["lines"])
            more = ", ..." if left["rows"] > len(left["lines"]) else ""
            lines.append(f"  left out: {left['rows']:,} rows {left['reason']} (lines {where}{more})")
        if part["n_in_cache"]:
            lines.append(
                f"  inside the last-level cache: {part['n_in_cache']:,} rows, fitted with "
                f"{part['cache_factor']:.2f} times the bandwidth, which predictions leave out"
            )
            if part["cache_factor"] >= MAX_CACHE_FACTOR:
                lines.append("  note: that factor is at its bound: these rows do not determine it, add larger ones")
        if any(error["rows"] < FEW_ROWS for error in part["errors"].values()):
            lines.append(f"  note: errors on fewer than {FEW_ROWS} rows say little: measure more")
        lines += [f"  note: {note}" for note in part["notes"]]
        lines += [f"  not trusted, not written: {problem}" for problem in part["problems"]]
    return "\n".join([*lines, "", f"written: {fitted['out']}", f"plot: {fitted['plot']}"])


_SIZES = (
    {"all": "all sizes", "large": "64 MB and more", "serving": "like serving", "every": "all sizes, far-off rows too"},
    {
        "all": "all sizes, at most 256 rows",
        "large": "64 MB and more",
        "serving": "larger than the cache",
        "every": "all sizes, far-off rows too",
    },
)


def _human(name: str, value: float) -> str:
    if name.endswith("_frac"):
        return f"{value:.4g} of the peak"
    return units.human(value, "element/s") + " a core" if name == "core_rate" else units.human(value, "s")


def predict(source: str, device_name: str, stack_name: str, out: str) -> dict[str, Any]:
    """Write the table with a column of predicted microseconds, from memory and not from a cache."""
    device = catalog.device(device_name)
    stack = _stack(device, stack_name)
    table = read(source, timed=False)
    if TIME in table.header:  # times are not needed here, but where they are given they must be right
        place = table.header.index(TIME)
        if any(row[place].strip() for row in table.cells):
            check_units(read(source), device)
    if table.kind != "attention":
        raise InputError(f"{source}:1: column kv_len_tokens is missing: give a table of decode attention")
    fixed = arguments(table, device)
    predicted = np.empty(len(table))
    for code in dict.fromkeys(table.codes.tolist()):
        rows = table.codes == code
        if code not in stack.codes():
            row = int(np.flatnonzero(rows)[0])
            raise InputError(
                f"{table.where(row)}: kv_dtype: stack {stack_name} of {device.name} has no parameters for {code}: "
                "calibrate with rows of it first"
            )
        fixed_rows = {name: value[rows] if isinstance(value, np.ndarray) else value for name, value in fixed.items()}
        kind: KvCode = code
        predicted[rows] = predict_s("attention", fixed_rows, stack.attention_terms(kind)) / MICROSECOND
    files.write(Path(out), _csv(table, predicted))
    return {"device": device.name, "stack": stack_name, "rows": len(table), "out": out}


def _stack(device: HardwareSpec, name: str) -> StackSpec:
    known = [key for key, stack in device.stacks.items() if stack.attention]
    if name not in known:
        hint = did_you_mean(name, known) if known else "calibrate it first: `dse calibrate`"
        raise InputError(f"stack = {show(name)}: device {device.name} has no such calibrated stack: {hint}")
    return device.stacks[name]


def _csv(table: Table, predicted: Any) -> bytes:
    """The file's own cells and the predictions; text that a spreadsheet would run as a formula is quoted."""
    header = [name for name in table.header if name != PREDICTED]
    places = [table.header.index(name) for name in header]
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([*(files.harmless(name) for name in header), PREDICTED])
    for cells, value in zip(table.cells, predicted, strict=True):
        writer.writerow([*(files.harmless(cells[place]) for place in places), f"{value:.6g}"])
    return written.getvalue().encode()
