"""Published measurements of quantised KV beside predictions: each number, and its gain over its group's base."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dse.calibrate.evidence import RATES, STACKS, EvidenceRow, formula_of, predicted, read
from dse.core import files
from dse.core.documents import json_text
from dse.core.errors import DseError
from dse.core.table import aligned
from dse.model import intervals, uncertainty
from dse.model.assumed import reason
from dse.model.engine import evaluate, roomy
from dse.model.intervals import Interval
from dse.model.point import Point
from dse.specs.implementation import ENDS

#: columns of predictions.csv
COLUMNS = ("id", "predicted", "low", "high", "gain", "gain_low", "gain_high", "reason", "marks")
#: a gain that is no tie
WON = 0.03
#: assumptions that a prediction is marked with
MARKED = ("stacks_of", "nearest_kernels", "nearest_format", "implementation", "no_kernel", "eight_bit_kernels")


@dataclass(frozen=True)
class JudgedGain:
    """A row and what is predicted of it, in the row's unit; None where nothing is, for a `reason`."""

    row: EvidenceRow
    value: float | None = None
    low: float = math.nan
    high: float = math.nan
    gain: float | None = None
    gain_low: float = math.nan
    gain_high: float = math.nan
    printed_gain: float | None = None
    reason: str = ""
    marks: str = ""


def judge(row: EvidenceRow) -> JudgedGain:
    """The prediction of a row by itself, with its interval."""
    try:
        value, kind = predicted(row), formula_of(row.quantity)[1] if not row.reason else ""
        point = row.point(batch=1)
        marks = "; ".join([*row.marks, *_marks(point)])
        if not kind:
            return JudgedGain(row=row, value=value, low=value, high=value, marks=marks)
        sure = point.lowered.sure
        times = sure.first if kind == "first" else sure.tokens
        own = times.inverse() if row.unit in RATES else times
        low, high, _ = intervals.product([own, _ends(row, value)])
        return JudgedGain(row=row, value=value, low=value * low, high=value * high, marks=marks)
    except DseError as error:
        return JudgedGain(row=row, reason=str(error))


def _ends(row: EvidenceRow, value: float) -> Interval:
    """By which factors a prediction moves inside the range of its implementation's numbers."""
    point = row.point(batch=1)
    if not any(g.implementation and g.implementation.numbers() for g in point.plan.groups):
        return Interval(1.0, 1.0, "")
    moved = [predicted(row, implementation=f":{end}") / value for end in ENDS]
    return Interval(min(*moved, 1.0), max(*moved, 1.0), "implementation")


def _marks(point: Point) -> list[str]:
    return [f"{name}: {reason(point, name)}" for name in evaluate(point)["assumptions"] if name in MARKED]


def run(path: str, progress: Callable[..., Any] | None = None) -> list[JudgedGain]:
    """All rows of a table, judged, with gains over the base of each group."""
    rows = read(path)
    if progress is None:
        found = [judge(row) for row in rows]
    else:
        with progress(rows, "rows", len(rows)) as bar:
            found = [judge(row) for row in bar]
    bases = {one.row.group: one for one in found if one.row.is_base and one.row.group}
    return [_with_gain(one, bases[one.row.group]) if one.row.group in bases else one for one in found]


def _with_gain(one: JudgedGain, base: JudgedGain) -> JudgedGain:
    """Gain of a row over its group's base: printed and predicted."""
    row = one.row
    if row.quantity != base.row.quantity or row.unit != base.row.unit or row.unit == "bool":
        return one
    is_rate = row.unit in RATES

    def better(first: float, second: float) -> float:
        return first / second if is_rate else second / first

    printed = better(row.value, base.row.value)
    if not one.value or not base.value:  # no prediction, or nothing fits: no gain
        return replace(one, printed_gain=printed)
    gain = better(one.value, base.value)
    if row is base.row:
        return replace(one, gain=1.0, gain_low=1.0, gain_high=1.0, printed_gain=1.0)
    # both err alike in what they share: of the longer only what it has beyond the shorter is unsure, and the kernels
    # that one of them has
    times = [1 / v if is_rate else v for v in (one.value, base.value)]
    designs = [evaluate(each.point(device=roomy(each.device))) for each in (row, base.row)]  # type: ignore[arg-type]
    point = row.point(batch=1)
    sure = point.lowered.sure
    kind = formula_of(row.quantity)[1]
    own = sure.first if kind == "first" else sure.tokens
    if software(row) == software(base.row):
        low, high = _alike(designs, times, own)
    else:  # other code throughout: nothing is shared
        low, high, _ = intervals.product([Interval(gain, gain, ""), own, own.inverse()])
    shifts = [
        Interval(low / gain, high / gain, ""),
        *uncertainty.of_weights(designs[0], designs[1]),
        _ends(row, one.value),
    ]
    low, high, _ = intervals.product(shifts)
    return replace(one, gain=gain, gain_low=gain * low, gain_high=gain * high, printed_gain=printed)


def _alike(designs: Sequence[Mapping[str, Any]], times: Sequence[float], own: Interval) -> tuple[float, float]:
    """The interval of the gain of one server over another that errs as it does, but for kernels that it has not."""
    own_s = uncertainty.unsure(designs[0], designs[1], times)
    rest_s = (times[0] - own_s[0]) - (times[1] - own_s[1])
    return uncertainty.ratio(times[1], times[0], own, math.hypot(rest_s, *own_s))


def software(row: EvidenceRow) -> str:
    """The software of a row, as `STACKS` names it."""
    words = row.cells["stack"].lower()
    return next((start for start in STACKS if words.startswith(start)), words).replace("tensorrt", "trt")


def predictions_csv(found: Sequence[JudgedGain]) -> str:
    """The table `predictions.csv`: values in the unit of each row, 80 % intervals, gains, why there are none."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in found:
        values = [_cell(one.value), *(_cell(v) for v in (one.low, one.high))]
        gains = [_cell(one.gain), *(_cell(v) for v in (one.gain_low, one.gain_high))]
        writer.writerow(
            [files.harmless(one.row.id), *values, *gains, files.harmless(one.reason), files.harmless(one.marks)]
        )
    return out.getvalue()


def _cell(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.6g}"


def errors(found: Sequence[JudgedGain]) -> list[dict[str, Any]]:
    """By class of KV and by stack: errors of values, of gains, winners, coverage, as shares."""
    groups: dict[tuple[str, str], list[JudgedGain]] = {}
    for one in found:
        groups.setdefault(("all", "all"), []).append(one)
        groups.setdefault(("class", one.row.cls or "-"), []).append(one)
        groups.setdefault(("stack", one.row.cells["stack"]), []).append(one)
    order = ("all", "class", "stack")
    return [
        {"by": by, "group": name, **_summary(own)}
        for (by, name), own in sorted(groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
    ]


def _summary(found: Sequence[JudgedGain]) -> dict[str, Any]:
    known = [one for one in found if one.value is not None and one.row.unit != "bool" and one.row.value > 0]
    off = [abs(one.value / one.row.value - 1) for one in known if one.value]
    inside = [one.low <= one.row.value <= one.high for one in known if one.high > one.low]
    gains = [one for one in found if one.gain and one.printed_gain and not one.row.is_base]
    decided = [one for one in gains if abs(one.printed_gain - 1) > WON]  # type: ignore[operator]
    right = [(one.gain > 1) == (one.printed_gain > 1) for one in decided]  # type: ignore[operator]
    gain_off = [abs(one.gain / one.printed_gain - 1) for one in gains]  # type: ignore[operator]
    held = [one.gain_low <= one.printed_gain <= one.gain_high for one in gains]  # type: ignore[operator]
    return {
        "rows": len(found),
        "predicted": len(known),
        "mean": _mean(off),
        "median": _median(off),
        "inside": _mean(inside),
        "gains": len(gains),
        "gain_median": _median(gain_off),
        "decided": len(decided),
        "right": _mean(right),
        "gain_inside": _mean(held),
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if len(values) else None


def contents_of(found: Sequence[JudgedGain]) -> dict[str, bytes]:
    """The files `predictions.csv` and `errors.json`."""
    return {
        "predictions.csv": predictions_csv(found).encode(),
        "errors.json": (json_text(errors(found), 2) + "\n").encode(),
    }


def text(found: Sequence[JudgedGain]) -> str:
    """Every row with the printed number, ours and the interval; then the errors."""
    lines = [("id", "device", "model", "kv", "printed", "predicted", "interval", "unit", "gain", "ours", "interval")]
    for one in found:
        row = one.row
        interval = f"{_short(one.low)}..{_short(one.high)}" if one.value is not None else ""
        gains = ["", "", ""]
        if one.printed_gain and not row.is_base:
            gains = [_short(one.printed_gain), _short(one.gain), f"{_short(one.gain_low)}..{_short(one.gain_high)}"]
        lines.append(
            (  # type: ignore[arg-type]
                row.id,
                row.cells["device"][:12],
                row.cells["model"][:20],
                row.cells["kv"][:20],
                _short(row.value),
                _short(one.value) if not one.reason else one.reason[:60],
                interval,
                row.unit,
                *gains,
            )
        )
    shown = aligned(lines, 4)
    head = ("by", "group", "rows", "mean", "median", "inside", "gains", "median", "winner", "inside")
    table = [head]
    for each in errors(found):
        shares = [_percent(each[name]) for name in ("mean", "median", "inside")]
        right = f"{_percent(each['right'])} of {each['decided']}"
        rows = f"{each['predicted']}/{each['rows']}"
        gain = [_percent(each[name]) for name in ("gain_median", "gain_inside")]
        table.append((each["by"], each["group"], rows, *shares, str(each["gains"]), gain[0], right, gain[1]))
    return "\n".join(
        [
            *shown,
            "",
            *aligned(table, 2),
            "",
            "Errors in percent: of values, mean and median; inside: in their 80 % interval; of gains over the group's",
            f"base, median; winner: gains beyond {100 * WON:.0f} % whose side of 1 is right.",
        ]
    )


def _short(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.4g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
