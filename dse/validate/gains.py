"""Published measurements of quantised KV beside predictions: each number, and its gain over its group's base."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dse.calibrate.evidence import RATES, STACKS, EvidenceRow, formula_of, predicted, read
from dse.core.columns import Column, aligned, cells, csv_text, percent
from dse.core.documents import json_text
from dse.core.errors import DseError
from dse.core.progress import Progress, each
from dse.model import engine, intervals, uncertainty
from dse.model.engine import roomy
from dse.model.intervals import Interval
from dse.specs.implementation import ENDS
from dse.validate.measured import GROUP, errors_by_group, marks, statistic

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
        marked = "; ".join([*row.marks, *marks(point, MARKED)])
        if not kind:
            return JudgedGain(row=row, value=value, low=value, high=value, marks=marked)
        sure = point.lowered.sure
        times = sure.first if kind == "first" else sure.tokens
        spread = times.inverse() if row.unit in RATES else times
        low, high, _ = intervals.product([spread, _ends(row, value)])
        return JudgedGain(row=row, value=value, low=value * low, high=value * high, marks=marked)
    except DseError as error:
        return JudgedGain(row=row, reason=str(error))


def _ends(row: EvidenceRow, value: float) -> Interval:
    """By which factors a prediction moves inside the range of its implementation's numbers."""
    point = row.point(batch=1)
    if not any(g.implementation and g.implementation.numbers() for g in point.plan.groups):
        return Interval(1.0, 1.0, "")
    moved = [predicted(row, implementation=f":{end}") / value for end in ENDS]
    return Interval(min(*moved, 1.0), max(*moved, 1.0), "implementation")


def run(path: str, progress: Progress | None = None) -> list[JudgedGain]:
    """All rows of a table, judged, with gains over the base of each group."""
    judged = [judge(row) for row in each(read(path), progress, "rows")]
    bases = {j.row.group: j for j in judged if j.row.is_base and j.row.group}
    return [_with_gain(j, bases[j.row.group]) if j.row.group in bases else j for j in judged]


def _with_gain(judged: JudgedGain, base: JudgedGain) -> JudgedGain:
    """Gain of a row over its group's base: printed and predicted."""
    row = judged.row
    if row.quantity != base.row.quantity or row.unit != base.row.unit or row.unit == "bool":
        return judged
    is_rate = row.unit in RATES

    def better(first: float, second: float) -> float:
        return first / second if is_rate else second / first

    printed = better(row.value, base.row.value)
    if not judged.value or not base.value:  # no prediction, or nothing fits: no gain
        return replace(judged, printed_gain=printed)
    gain = better(judged.value, base.value)
    if row is base.row:
        return replace(judged, gain=1.0, gain_low=1.0, gain_high=1.0, printed_gain=1.0)
    # both err alike in what they share: of the longer only what it has beyond the shorter is unsure, and the kernels
    # that one of them has
    times = [1 / v if is_rate else v for v in (judged.value, base.value)]
    designs = [engine.evaluate(r.point(device=roomy(r.device))) for r in (row, base.row)]  # type: ignore[arg-type]
    point = row.point(batch=1)
    sure = point.lowered.sure
    kind = formula_of(row.quantity)[1]
    spread = sure.first if kind == "first" else sure.tokens
    if software(row) == software(base.row):
        low, high = _alike(designs, times, spread)
    else:  # other code throughout: nothing is shared
        low, high, _ = intervals.product([Interval(gain, gain, ""), spread, spread.inverse()])
    shifts = [
        Interval(low / gain, high / gain, ""),
        *uncertainty.of_weights(designs[0], designs[1]),
        _ends(row, judged.value),
    ]
    low, high, _ = intervals.product(shifts)
    return replace(judged, gain=gain, gain_low=gain * low, gain_high=gain * high, printed_gain=printed)


def _alike(designs: Sequence[Mapping[str, Any]], times: Sequence[float], spread: Interval) -> tuple[float, float]:
    """The interval of the gain of one server over another that errs as it does, but for kernels that it has not."""
    own_s = uncertainty.unsure(designs[0], designs[1], times)
    rest_s = (times[0] - own_s[0]) - (times[1] - own_s[1])
    return uncertainty.ratio(times[1], times[0], spread, math.hypot(rest_s, *own_s))


def software(row: EvidenceRow) -> str:
    """The software of a row, as `STACKS` names it."""
    words = row.cells["stack"].lower()
    return next((start for start in STACKS if words.startswith(start)), words).replace("tensorrt", "trt")


def predictions_csv(judged: Sequence[JudgedGain]) -> str:
    """The table `predictions.csv`: values in the unit of each row, 80 % intervals, gains, why there are none."""
    return csv_text([{**vars(j), "id": j.row.id, "predicted": j.value} for j in judged], COLUMNS)


def errors(judged: Sequence[JudgedGain]) -> list[dict[str, Any]]:
    """By class of KV and by stack: errors of values, of gains, winners, coverage, as shares."""
    return errors_by_group(judged, _groups, _summary, ("all", "class", "stack"))


def _groups(judged: JudgedGain) -> dict[str, str]:
    return {"all": "all", "class": judged.row.cls or "-", "stack": judged.row.cells["stack"]}


def _summary(judged: Sequence[JudgedGain]) -> dict[str, Any]:
    known = [j for j in judged if j.value is not None and j.row.unit != "bool" and j.row.value > 0]
    off = [abs(j.value / j.row.value - 1) for j in known if j.value]
    inside = [j.low <= j.row.value <= j.high for j in known if j.high > j.low]
    gains = [j for j in judged if j.gain and j.printed_gain and not j.row.is_base]
    decided = [j for j in gains if abs(j.printed_gain - 1) > WON]  # type: ignore[operator]
    right = [(j.gain > 1) == (j.printed_gain > 1) for j in decided]  # type: ignore[operator]
    gain_off = [abs(j.gain / j.printed_gain - 1) for j in gains]  # type: ignore[operator]
    held = [j.gain_low <= j.printed_gain <= j.gain_high for j in gains]  # type: ignore[operator]
    return {
        "rows": len(judged),
        "predicted": len(known),
        "mean": statistic(np.mean, off),
        "median": statistic(np.median, off),
        "inside": statistic(np.mean, inside),
        "gains": len(gains),
        "gain_median": statistic(np.median, gain_off),
        "decided": len(decided),
        "right": statistic(np.mean, right),
        "gain_inside": statistic(np.mean, held),
    }


def contents_of(judged: Sequence[JudgedGain]) -> dict[str, bytes]:
    """The files `predictions.csv` and `errors.json`."""
    return {
        "predictions.csv": predictions_csv(judged).encode(),
        "errors.json": (json_text(errors(judged), 2) + "\n").encode(),
    }


def _gain_interval(judged: JudgedGain) -> str:
    return f"{_short(judged.gain_low)}..{_short(judged.gain_high)}"


def _of_gain(name: str, form: Callable[[JudgedGain], str]) -> Column:
    """A column of gains over bases, empty where a row has none."""
    return Column(name, form=lambda j: form(j) if j.printed_gain and not j.row.is_base else "")


#: rows with the printed number, ours and the interval
_ROWS = (
    Column("row.id", title="id"),
    Column("device", form=lambda judged: judged.row.cells["device"][:12]),
    Column("model", form=lambda judged: judged.row.cells["model"][:20]),
    Column("kv", form=lambda judged: judged.row.cells["kv"][:20]),
    Column("row.value", title="printed", form=".4g"),
    Column("predicted", form=lambda judged: judged.reason[:60] or _short(judged.value)),
    Column("value", title="interval", form="{low:.4g}..{high:.4g}", missing=""),
    Column("row.unit", title="unit"),
    _of_gain("gain", lambda judged: _short(judged.printed_gain)),
    _of_gain("ours", lambda judged: _short(judged.gain)),
    _of_gain("interval", _gain_interval),
)
#: errors by group, in percent
_ERRORS = (
    *GROUP,
    percent("mean"),
    percent("median"),
    percent("inside"),
    Column("gains"),
    percent("gain_median", "median"),
    Column("winner", form=lambda row: f"{percent('right').cell(row)} of {row['decided']}"),
    percent("gain_inside", "inside"),
)


def text(judged: Sequence[JudgedGain]) -> str:
    """Every row with the printed number, ours and the interval; then the errors."""
    return "\n".join(
        [
            *aligned(cells(_ROWS, judged), 4),
            "",
            *aligned(cells(_ERRORS, errors(judged)), 2),
            "",
            "Errors in percent: of values, mean and median; inside: in their 80 % interval; of gains over the group's",
            f"base, median; winner: gains beyond {100 * WON:.0f} % whose side of 1 is right.",
        ]
    )


def _short(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.4g}"
