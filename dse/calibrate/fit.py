"""Fit a device's kernel parameters to measured times: screen the rows, hold some out, fit, say how good it is.

One table gives up to three kinds of parts of a stack: `attention` (16-bit keys and values), `kv.CODE` (what changes
where they have fewer bits) and `gemm`. See docs/explanation/calibration.md.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.calibrate.formulas import DECODE_ROWS, MICROSECOND, SCALES, Problem, problem
from dse.calibrate.solve import Floats, solve, undetermined
from dse.calibrate.table import TIME, Table
from dse.core import units
from dse.core.errors import InputError, did_you_mean, show
from dse.core.progress import Progress, each
from dse.specs.device_and_model import HardwareSpec
from dse.specs.stack import StackSpec

Mask = NDArray[np.bool_]

#: one row in this many is held out of the fit and only used to measure its error
HELD_OUT_ONE_IN = 5
SEED = 0
#: how much more a row counts that serving is made of
SERVING_WEIGHT = 8.0
#: an optional term stays if it lowers the loss by this share, and only with so many rows for each parameter
WORTH, ROWS_PER_PARAMETER = 0.05, 5
#: a row this many times off the fit of all others is left out; more such rows than this share, and no fit is trusted
FAR_OFF, FAR_OFF_SHARE = 3.0, 0.10
#: a fit whose mean error on held-out rows is larger is not trusted
MAX_ERROR = 0.25
#: rows on which starts are compared, and how often a start is tried on all
TRIAL_ROWS, FINALISTS = 800, 2
#: data sheets round the bandwidth; above this multiple a row cannot be right
BANDWIDTH_SLACK = 1.05
#: rows that seem this many times too fast or too slow have their time in another unit
UNIT_SLIP = 30.0
SHORTEST_S, LONGEST_LAUNCH_S = 0.3e-6, 200e-6

BASE = ("launch", "split", "per_unit", "memory")
OPTIONAL = ("core", "copy")
#: where fits start, as multiples of the usual values; optional terms start at these values of their scale
STARTS = (
    (1.0, 1.0, 1.0, 1.0, 0.2, 0.5),
    (0.5, 0.3, 0.4, 1.1, 1.0, 1.0),
    (1.5, 1.5, 1.5, 1.4, 0.5, 0.3),
    (1.0, 1.0, 1.0, 1.1, 2.0, 0.5),
)


@dataclass
class Outcome:
    """One fitted part: parameters in SI units, errors as shares, rows left out, and why it is not trusted if so."""

    part: str
    parameters: dict[str, float]
    n_points: int
    n_held_out: int
    #: size class -> mean error, 90th percentile, naive roofline's mean error, rows; on held-out rows
    errors: dict[str, dict[str, float]]
    left_out: list[dict[str, Any]]
    n_in_cache: int
    cache_factor: float
    problems: list[str]
    notes: list[str]
    source: str
    table: Table
    measured_s: Floats
    predicted_s: Floats
    held_out: Mask
    codes: NDArray[np.str_] = field(default_factory=lambda: np.array([]))

    @property
    def trusted(self) -> bool:
        """False where the parameters should not be used."""
        return not self.problems


def check_units(table: Table, device: HardwareSpec) -> None:
    """Raise InputError where most times can only be in another unit than microseconds, by the chip's own limits."""
    rows = problem(table, device)
    beyond = ~rows.in_cache
    chosen = beyond if beyond.any() else np.ones(len(table), bool)
    ratio = rows.measured_s / rows.naive_s
    fast = chosen & ((ratio < 1 / UNIT_SLIP) if beyond.any() else (rows.measured_s < SHORTEST_S))
    slow = chosen & (rows.measured_s > UNIT_SLIP * (rows.naive_s + LONGEST_LAUNCH_S))
    for wrong, unit, why in ((fast, "ms or s", "faster"), (slow, "ns", "slower")):
        if 2 * wrong.sum() > chosen.sum():
            row = int(np.flatnonzero(wrong)[0])
            times = max(ratio[row], 1 / ratio[row])
            raise InputError(
                f"{table.where(row)}: {TIME} = {table.columns[TIME][row]:g}: is {times:,.0f} times {why} than the "
                f"bandwidth of {device.name} allows, as most rows: are the times in {unit}? give microseconds"
                if why == "faster"
                else f"{table.where(row)}: {TIME} = {table.columns[TIME][row]:g}: is {times:,.0f} times {why} than "
                f"{device.name} at its peak, as most rows: are the times in {unit}? give microseconds"
            )


def choose(table: Table, stack: str | None) -> tuple[Table, str]:
    """The rows of one framework and the name of the stack. Raises InputError where the choice is open."""
    names = list(dict.fromkeys(name.lower() for name in table.frameworks if name))
    if len(names) > 1:
        if stack is None or stack not in names:
            choice = f"stack = {show(stack)}" if stack else "--stack is missing"
            raise InputError(f"{table.path}: {choice}: has rows of {', '.join(names)}: give one of them with --stack")
        table = table.take(np.array([name.lower() == stack for name in table.frameworks]))
    name = stack or (names[0] if names else "custom")
    return table, name


def _left_out(table: Table, mask: Mask, reason: str) -> list[dict[str, Any]]:
    lines = table.lines[mask]
    return (
        [{"reason": reason, "rows": int(mask.sum()), "lines": [int(line) for line in lines[:5]]}] if len(lines) else []
    )


def split(n_rows: int) -> Mask:
    """Mark the rows that are held out of the fit: the same ones every time."""
    held = np.zeros(n_rows, bool)
    order = np.random.default_rng(SEED).permutation(n_rows)
    held[order[: max(1, n_rows // HELD_OUT_ONE_IN)]] = True
    return held


def _weights(rows: Problem) -> Floats:
    return np.where(rows.serving, SERVING_WEIGHT, 1.0)


def _fit(rows: Problem, free: list[str], start: Floats | None = None) -> tuple[Floats, float]:
    """The best point over several starts (or from `start` with other values of `core`), and the mean loss."""
    space = rows.space
    places = space.index(free)
    starts = []
    for factors in STARTS:
        point = space.usual * np.resize(factors[:4], len(space.usual)) if start is None else start.copy()
        for name, value in zip(OPTIONAL, factors[4:], strict=True):
            if name in free:
                point[space.names.index(name)] = value
            elif start is None and name in space.names:
                point[space.names.index(name)] = 0.0
        for name in space.names:
            if start is None and name not in free and name in ("split", "cache"):
                point[space.names.index(name)] = 0.0 if name == "split" else 1.0
        starts.append(point)
    every = max(1, len(rows.measured_s) // TRIAL_ROWS)
    few = rows.take(np.arange(len(rows.measured_s)) % every == 0)

    def run(part: Problem, point: Floats) -> tuple[Floats, float]:
        return solve(part.predict, part.measured_s, _weights(part), space, point, places)

    tried = sorted((run(few, point) for point in starts), key=lambda tried_fit: tried_fit[1])
    best = min((run(rows, point) for point, _ in tried[:FINALISTS]), key=lambda tried_fit: tried_fit[1])
    return best[0], best[1] / float(_weights(rows).sum())


def _base_names(rows: Problem, notes: list[str]) -> list[str]:
    """Parameters that these rows can tell apart."""
    if rows.kind == "gemm":
        names = ["launch", "memory", "flops"]
    else:
        names = list(BASE)
        above = rows.fixed["n_tokens"] > 128
        if above.all() or not above.any():
            names.remove("split")
            side = "more" if above.all() else "fewer"
            notes.append(f"all rows have {side} than 128 tokens: split is taken as 0 and is part of launch")
    return names


def fit_rows(rows: Problem, notes: list[str], start: Floats | None = None) -> Floats:
    """The parameters of these rows; with `start`, only what changes with the bits of keys and values."""
    cache = ["cache"] if rows.in_cache.any() and start is None else []
    free = _base_names(rows, notes) if start is None else ["launch"]
    if len(rows.measured_s) < len(free) + (start is not None):
        raise InputError(f"{len(rows.measured_s)} usable rows for {len(free)} parameters: measure more")
    if start is not None:
        start = start.copy()
        start[rows.space.names.index("core")] = 0.0
    point, loss = _fit(rows, free + cache, start)
    options = [name for name in OPTIONAL if name in rows.space.names and (start is None or name == "core")]
    while options and len(rows.measured_s) >= ROWS_PER_PARAMETER * (len(free) + 1):
        tried = {name: _fit(rows, [*free, name, *cache], start) for name in options}
        best = min(tried, key=lambda name: tried[name][1])
        if tried[best][1] > (1 - WORTH) * loss:
            break
        point, loss = tried[best]
        free.append(best)
        options.remove(best)
    return point


def _rounded(rows: Problem, point: Floats) -> Floats:
    """The parameters as a file will hold them: four digits of what they are there."""
    names, rounded = rows.space.names, []
    for name, number in zip(names, point, strict=True):
        inverse = name in ("memory", "flops", "core", "cache")
        value = 1 / number if inverse and number > 0 else number
        value = float(f"{value:.4g}")
        rounded.append(1 / value if inverse and value > 0 else value)
    return np.clip(np.array(rounded), rows.space.low, rows.space.high)


def errors_by_class(rows: Problem, predicted: Floats, held: Mask, far: Mask) -> dict[str, dict[str, float]]:
    """Errors on held-out rows by size class; `every` counts the rows far off the fit too."""
    wanted = rows.fixed["m_rows"] <= DECODE_ROWS if rows.kind == "gemm" else np.ones(len(held), bool)
    near = held & ~far
    classes = {"all": near & wanted, "large": near & rows.large, "serving": near & rows.serving}
    if (held & far).any():
        classes["every"] = held & wanted
    errors = {}
    for name, chosen in classes.items():
        if chosen.any():
            off = np.abs(predicted[chosen] / rows.measured_s[chosen] - 1)
            naive = np.abs(rows.naive_s[chosen] / rows.measured_s[chosen] - 1)
            errors[name] = {
                "mean": float(off.mean()),
                "p90": float(np.percentile(off, 90)),
                "naive_mean": float(naive.mean()),
                "rows": int(chosen.sum()),
            }
    return errors


def _say_undetermined(rows: Problem, point: Floats, problems: list[str], notes: list[str]) -> None:
    """Report parameters that the rows leave open: a fit without launch or memory is none."""
    places = rows.space.index(_base_names(rows, []))
    for name in undetermined(rows.predict, _weights(rows), rows.space, point, places):
        if name in ("launch", "memory"):
            problems.append(f"the rows do not determine {name}: add rows of other sizes")
        else:
            notes.append(f"the rows hardly depend on {name}: it stays near its usual value")


def _bounds(rows: Problem, point: Floats) -> list[str]:
    """Parameters that ended at a bound where the data should have decided."""
    notes = []
    free_at_low = {"split", "per_unit", "core", "copy", "cache"}
    for name, value, low, high in zip(rows.space.names, point, rows.space.low, rows.space.high, strict=True):
        if name != "cache" and (value >= high or (value <= low and name not in free_at_low)):
            if name == "flops" and value <= low:
                continue  # at few rows the products never bind
            shown = f"{value * SCALES[name] / MICROSECOND:g} us"
            shown = f"{1 / value:g} of the peak" if name in ("memory", "flops") else shown
            notes.append(f"{name} is at its bound ({shown}): the rows do not determine it")
    return notes


def fit_part(part: str, table: Table, device: HardwareSpec, start: Floats | None = None) -> tuple[Outcome, Floats]:
    """One part of a stack from the rows of one kind. Raises InputError where there are too few."""
    rows = problem(table, device)
    notes: list[str] = []
    too_fast = ~rows.in_cache & (rows.measured_s * BANDWIDTH_SLACK < rows.naive_s)
    limit = f"faster than the bandwidth of {device.name} allows" if rows.kind == "attention" else "faster than the peak"
    left_out = _left_out(table, too_fast, limit)
    table, rows = table.take(~too_fast), rows.take(~too_fast)
    if not len(table):
        raise InputError(f"{table.path}: all {int(too_fast.sum()):,} rows are {limit}: is it the device measured?")
    if not (~rows.in_cache).any():
        raise InputError(f"{table.path}: no usable row is larger than the last-level cache of {device.name}: add some")
    held = split(len(table))
    try:
        point = fit_rows(rows.take(~held), notes, start)
        far = np.abs(np.log(rows.predict(point) / rows.measured_s)) > np.log(FAR_OFF)
        if far.any() and (~held & ~far).sum() >= len(BASE):
            point = fit_rows(rows.take(~held & ~far), [], start)
            far = np.abs(np.log(rows.predict(point) / rows.measured_s)) > np.log(FAR_OFF)
    except InputError as error:
        raise InputError(f"{table.path}: {part}: {error}") from error
    point = _rounded(rows, point)
    problems = _bounds(rows, point)
    if start is None:
        _say_undetermined(rows.take(~held & ~far), point, problems, notes)
    if far.mean() > FAR_OFF_SHARE:
        problems.append(f"{far.mean():.0%} of the rows are more than three times off the fit")
    left_out += _left_out(table, far, "more than three times off the fit of the others")
    predicted = rows.predict(point)
    errors = errors_by_class(rows, predicted, held, far)
    judged = errors.get("serving" if rows.kind == "gemm" else "all") or next(iter(errors.values()), None)
    if judged is None:
        problems.append("no row is left to measure the error on")
    elif judged["mean"] > MAX_ERROR:
        problems.append(
            f"the mean error on rows not fitted is {percent(judged['mean'])}, more than {percent(MAX_ERROR)}"
        )
    value = dict(zip(rows.space.names, point, strict=True))
    outcome = Outcome(
        part,
        parameters=_parameters(rows, point),
        n_points=int((~held & ~far).sum()),
        n_held_out=int((held & ~far).sum()),
        errors=errors,
        left_out=left_out,
        n_in_cache=int(rows.in_cache.sum()),
        cache_factor=1 / float(value["cache"]),
        problems=problems,
        notes=notes,
        source="",
        table=table.take(~far),
        measured_s=rows.measured_s[~far],
        predicted_s=predicted[~far],
        held_out=held[~far],
    )
    return outcome, point


def _parameters(rows: Problem, point: Floats) -> dict[str, float]:
    """A point of the space as the fields of a file have it, in SI units; absent terms are left out."""
    value = {name: float(number) * SCALES[name] for name, number in zip(rows.space.names, point, strict=True)}
    fields = {"launch": value["launch"], "memory_frac": 1 / value["memory"]}
    if rows.kind == "gemm":
        return {**fields, "flops_frac": 1 / value["flops"]}
    fields |= {"split": value["split"], "per_unit": value["per_unit"]}
    if value["core"] > 0:
        fields["core_rate"] = 1 / value["core"]
    if value["copy"] > 0:
        fields["layout_copy"] = value["copy"]
    return fields


def point_of(stack: StackSpec) -> Floats:
    """The parameters of a stack's attention as a point of the space, to fit packed rows beside it."""
    terms = stack.attention_terms()
    core = terms["core_rate_per_s"]
    return np.array(
        [
            terms["launch_s"] / SCALES["launch"],
            terms["split_s"] / SCALES["split"],
            terms["unit_s"] / SCALES["per_unit"],
            1 / terms["memory_frac"],
            1 / core / SCALES["core"] if core else 0.0,
            terms["copy_s"] / SCALES["copy"],
            1.0,
        ]
    )


def fit(table: Table, device: HardwareSpec, stack: str, progress: Progress | None = None) -> list[Outcome]:
    """Every part that the rows of one framework give. Raises InputError where none can be fitted."""
    check_units(table, device)
    if table.kind == "gemm":
        outcome, _ = fit_part("gemm", table, device)
        return [outcome]
    codes = sorted(set(table.codes.tolist()), key=lambda code: code != "fp16")
    known = device.stacks.get(stack)
    start = point_of(known) if known and known.attention and "fp16" not in codes else None
    if "fp16" not in codes and start is None:
        raise InputError(
            f"{table.path}: has no rows of 16-bit keys and values, and {device.name} has no stack {show(stack)} to "
            f"build on: add such rows ({did_you_mean('bfloat16', ['bfloat16', 'float16'])})"
        )
    outcomes: list[Outcome] = []

    def one(code: str) -> None:
        nonlocal start
        part = table.take(table.codes == code)
        if code == "fp16":
            outcome, start = fit_part("attention", part, device)
        else:
            try:
                outcome, _ = fit_part(f"kv.{code}", part, device, start)
            except InputError as error:
                if len(codes) == 1:
                    raise
                outcomes[0].notes.append(f"{code}: not fitted: {error}")
                return
        outcomes.append(outcome)

    for code in each(codes, progress, "fitting"):
        one(code)
    return outcomes


def percent(share: float) -> str:
    """A share as a percentage with one digit."""
    return f"{share / units.to_base(1, '%'):.1f} %"
