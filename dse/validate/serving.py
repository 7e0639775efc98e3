"""Whole measured servers beside our predictions: errors by model, system, stack and tp, and how many intervals hold."""

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dse.calibrate.servers import UNIT_SLIP, ServerRow, is_suspect, read
from dse.core import files, units
from dse.core.documents import json_text
from dse.core.errors import DseError, InputError
from dse.core.table import aligned
from dse.model.assumed import reason
from dse.model.engine import evaluate, roomy
from dse.model.formulas.steady import closed_loop_tokens_per_s
from dse.model.point import Point
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.workload import Workload

#: columns of predictions.csv
COLUMNS = ("id", "tpot_ms", "tpot_low", "tpot_high", "ttft_ms", "ttft_low", "ttft_high", "reason", "marks")
#: assumptions that a prediction is marked with: what was measured on none of its stack, release, format or links
MARKED = (
    "stacks_of",
    "nearest_kernels",
    "sparse_prompts",
    "nearest_format",
    "nearest_release",
    "eight_bit_kernels",
    "exchanges",
)
#: columns of measured times, and their fields of a row and of what was judged
_TIMES = {"silicon_tpot_ms": "tpot_s", "silicon_ttft_ms": "ttft_s"}
#: what rows are grouped by in errors.csv
GROUPS = ("kind", "model", "system", "stack", "release", "n_devices")
#: how far the lengths of a measured server may be from those asked for
LENGTH_SHARE = 0.15
_MS = units.to_base(1, "ms")


@dataclass(frozen=True)
class JudgedServer:
    """One row and what was predicted of it, in seconds; None where nothing could be."""

    row: ServerRow
    tpot_s: tuple[float, float, float] | None
    ttft_s: tuple[float, float, float] | None
    #: what else would have been said: bytes over bandwidth and operations over the peak; kernels alone
    naive_s: float | None
    kernels_s: float | None
    #: why nothing is predicted; "" where something is
    reason: str
    #: what of the prediction is taken from the nearest that was measured, or assumed
    marks: str = ""

    @property
    def kind(self) -> str:
        """dense or mixture, as far as known."""
        return "mixture" if self.row.spec and self.row.spec.n_experts > 1 else "dense"


def judge(row: ServerRow) -> JudgedServer:
    """The prediction of a row."""
    nothing = JudgedServer(row, tpot_s=None, ttft_s=None, naive_s=None, kernels_s=None, reason=row.reason)
    if row.reason:
        return nothing
    try:
        point, marks = row.point(), row.marks
        if not point.max_batch:  # a server ran it all the same
            marks += (
                f"{'; ' if marks else ''}no_room: predicted as if it did fit: {evaluate(point)['infeasible_reason']}"
            )
            point = row.point(roomy(point.device))
        results = evaluate(point)
        if results["tpot_s"] is None:
            return replace(nothing, reason=results["infeasible_reason"] or "not one request fits")
        tokens, first = point.lowered.sure
        tpot, ttft = results["tpot_s"], results["ttft_s"]
        return JudgedServer(
            row=row,
            tpot_s=(tpot, tpot * tokens.low, tpot * tokens.high),
            ttft_s=(ttft, ttft * first.low, ttft * first.high),
            naive_s=_naive_s(row),
            kernels_s=_kernels_s(point),
            reason="",
            marks="; ".join(filter(None, (marks, _marks(point)))),
        )
    except DseError as error:
        return replace(nothing, reason=str(error))


def _marks(point: Point) -> str:
    """Parts of a prediction that rest on the nearest measurement or an assumption; "" for none."""
    return "; ".join(f"{name}: {reason(point, name)}" for name in evaluate(point)["assumptions"] if name in MARKED)


def _naive_s(row: ServerRow) -> float:
    """A decode step of all requests at peak rates."""
    ideal: dict[str, Any] = {"model_kind": "ideal", "stack": None, "memory": "paper", "max_num_seqs": None}
    found: float = evaluate(row.point(roomy(row.point(**ideal).device), **ideal))["decode_step_s"]
    return found


def _kernels_s(point: Point) -> float:
    """A decode step of all requests that fit, without the server's own time and without prompts."""
    wave = point.run(min(point.batch, point.max_batch)).wave
    found: float = wave.decode_step_s - wave.host_s
    return found


def run(path: str, progress: Callable[..., Any] | None = None) -> list[JudgedServer]:
    """All rows of a table, judged. Raises InputError for a table whose times can only be in another unit."""
    rows = read(path)
    if progress is None:
        found = [judge(row) for row in rows]
    else:
        with progress(rows, "servers", len(rows)) as bar:
            found = [judge(row) for row in bar]
    _check_units(path, found)
    return [replace(one, marks="; ".join(filter(None, (one.marks, _slips(one))))) for one in found]


def speeds(path: str, device: HardwareSpec, model: ModelSpec, work: Workload) -> list[dict[str, Any]]:
    """`speeds_of` the rows of a table. Raises InputError for a table that cannot be read, or that has none."""
    found = speeds_of(read(path), device, model, work)
    if not found:
        raise InputError(
            f"{path}: has no server of {model.name} on {device.name} with {work.input_tokens:,} tokens in and "
            f"{work.output_tokens:,} out: ask for lengths that it has (--input, --output)"
        )
    return found


def speeds_of(
    rows: Sequence[ServerRow], device: HardwareSpec, model: ModelSpec, work: Workload
) -> list[dict[str, Any]]:
    """Measured servers of a device, model and lengths: tokens a second that a user gets, and that a device gives.

    Lengths may be off by LENGTH_SHARE: those of load generators are drawn from 0.8 to 1 times the name. Suspect rows
    are left out.
    """
    found = []
    for row in rows:
        if row.work is None or row.device is None or row.spec is None or is_suspect(row):
            continue
        near = _are_near(row.work.input_tokens, work.input_tokens) and _are_near(
            row.work.output_tokens, work.output_tokens
        )
        if (row.device.name, row.spec.name) != (device.name, model.name) or not near or not (row.tpot_s and row.ttft_s):
            continue
        rate = closed_loop_tokens_per_s(row.concurrency, row.work.output_tokens, row.ttft_s, row.tpot_s)
        found.append(
            {
                "server": row.id,
                "requests": row.concurrency,
                "n_devices": row.n_devices,
                "tokens_per_s_a_user": 1 / row.tpot_s,
                "tokens_per_s_a_device": rate / row.n_devices,
            }
        )
    return found


def _are_near(one: int, other: int) -> bool:
    return abs(one - other) <= LENGTH_SHARE * other


def _off(one: JudgedServer, name: str) -> float | None:
    """A measured time over what is predicted; None where one of them is not known."""
    measured, ours = getattr(one.row, name), getattr(one, name)
    return measured / ours[0] if measured and ours else None


def _slip(ratio: float | None) -> tuple[str, str] | None:
    """Factor and unit of a time that cannot be in milliseconds; None where it may be."""
    if ratio is None or 1 / UNIT_SLIP <= ratio <= UNIT_SLIP:
        return None
    if ratio < 1:
        return f"{1 / ratio:,.0f} times less than predicted", "s"
    return f"{ratio:,.0f} times more than predicted", "us"


def _check_units(path: str, found: list[JudgedServer]) -> None:
    for column, name in _TIMES.items():
        known = [(ratio, one.row) for one in found if (ratio := _off(one, name))]
        if known and (slip := _slip(float(np.median([ratio for ratio, _ in known])))):
            row = known[0][1]
            raise InputError(
                f"{path}:{row.line}: {column} = {getattr(row, name) / _MS:g}: is {slip[0]}, as most rows: are the "
                f"times in {slip[1]}? give milliseconds"
            )


def _slips(one: JudgedServer) -> str:
    """The times of a row that can only be in another unit, where those of most rows are not."""
    slips = ((column, _slip(_off(one, name))) for column, name in _TIMES.items())
    return "; ".join(f"{column}: {slip[0]}: another unit?" for column, slip in slips if slip)


def predictions_csv(found: list[JudgedServer]) -> str:
    """The table `predictions.csv`: times in ms, 80 % intervals, why there are none, what was not measured."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in found:
        times = [f"{value / _MS:.6g}" for three in (one.tpot_s, one.ttft_s) if three for value in three]
        writer.writerow(
            [files.harmless(one.row.id), *(times or [""] * 6), files.harmless(one.reason), files.harmless(one.marks)]
        )
    return out.getvalue()


def errors(found: list[JudgedServer]) -> list[dict[str, Any]]:
    """Errors by group as shares: of times per token and to the first, coverage and width of the intervals.

    Suspect rows (dse/calibrate/servers.py says why) have groups of their own and do not count in `all`.
    """
    groups: dict[tuple[str, str], list[JudgedServer]] = {}
    for one in found:
        if is_suspect(one.row):
            groups.setdefault(("suspect", f"{one.row.spec.name if one.row.spec else ''} {one.row.release}"), []).append(
                one
            )
            continue
        groups.setdefault(("all", "all"), []).append(one)
        for by in GROUPS:
            name = one.kind if by == "kind" else one.row.spec.name if by == "model" and one.row.spec else None
            value = name or str(getattr(one.row, by, None))
            groups.setdefault((by, value or "-"), []).append(one)
    order = ("all", *GROUPS, "suspect")
    return [
        {"by": by, "group": name, **_summary(own)}
        for (by, name), own in sorted(groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
    ]


def _summary(found: list[JudgedServer]) -> dict[str, Any]:
    tokens = compare([(one.row.tpot_s, one.tpot_s) for one in found])
    first = compare([(one.row.ttft_s, one.ttft_s) for one in found])
    beside = {}
    for name in ("naive_s", "kernels_s"):
        pairs = [(one.row.tpot_s, getattr(one, name)) for one in found]
        off = [abs(ours / measured - 1) for measured, ours in pairs if measured and ours]
        beside[name.removesuffix("_s")] = float(np.mean(off)) if off else None
    return {
        "rows": len(found),
        "predicted": sum(one.tpot_s is not None for one in found),
        **{f"tpot_{name}": value for name, value in tokens.items()},
        **{f"ttft_{name}": value for name, value in first.items()},
        "naive_mean": beside["naive"],
        "kernels_mean": beside["kernels"],
    }


def compare(pairs: Sequence[tuple[float | None, tuple[float, ...] | None]]) -> dict[str, float | None]:
    """Errors of (measured, (predicted, low, high)): mean, 90th percentile, median, share inside, relative width."""
    known = np.array([(m, *three) for m, three in pairs if m and three])
    if not len(known):
        return dict.fromkeys(("mean", "p90", "bias", "inside", "width"))
    measured, ours, low, high = known.T
    off = ours / measured - 1
    return {
        "mean": float(np.abs(off).mean()),
        "p90": float(np.quantile(np.abs(off), 0.9)),
        "bias": float(np.median(off)),
        "inside": float(((measured >= low) & (measured <= high)).mean()),
        "width": float(np.median((high - low) / ours)),
    }


def errors_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Errors by group as CSV, to four digits."""
    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
        writer.writerow({key: files.harmless(cell) if isinstance(cell, str) else cell for key, cell in cells.items()})
    return table.getvalue()


def contents_of(found: list[JudgedServer]) -> dict[str, bytes]:
    """The files `predictions.csv`, `errors.csv` and `errors.json`."""
    rows = errors(found)
    return {
        "predictions.csv": predictions_csv(found).encode(),
        "errors.csv": errors_csv(rows).encode(),
        "errors.json": (json_text(rows, 2) + "\n").encode(),
    }


def text(found: list[JudgedServer]) -> str:
    """The errors as people read them."""
    head = ("by", "group", "rows", "per token", "p90", "bias", "inside", "first token", "inside", "naive", "kernels")
    lines = [head]
    for row in errors(found):
        numbers = (
            row["tpot_mean"],
            row["tpot_p90"],
            row["tpot_bias"],
            row["tpot_inside"],
            row["ttft_mean"],
            row["ttft_inside"],
            row["naive_mean"],
            row["kernels_mean"],
        )
        lines.append((row["by"], row["group"], f"{row['predicted']}/{row['rows']}", *(_percent(n) for n in numbers)))
    return "\n".join(
        [
            *aligned(lines, 2),
            "",
            "Mean absolute errors, in percent of the measured median. inside: rows in their 80 % interval; naive: "
            "bytes",
            "and operations at peak rates; kernels: without the server's own time and prompts. Suspect rows count "
            "apart.",
        ]
    )


def _percent(share: float | None) -> str:
    return "-" if share is None or math.isnan(share) else f"{100 * share:.1f}"
