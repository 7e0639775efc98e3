"""A user's own measurements of a server: the file that --calibrated takes, what it changes, and how sure that is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dse.core import files, toml, units
from dse.core.columns import Column, aligned, cells
from dse.core.errors import InputError, clean, show
from dse.core.progress import Progress, each
from dse.core.version import VERSION
from dse.model import own_server
from dse.model.intervals import Interval
from dse.model.point import Point
from dse.specs.measured_memory import MAX_POINTS, MOST_OFF, MeasuredMemory, MeasuredPoint, MeasuredTimes, weights_name
from dse.validate import speed
from dse.validate.bench_result import is_line
from dse.validate.measured import slip
from dse.validate.speed import SpeedRow

_MS = units.to_base(1, "ms")
#: names of a layout in which servers of one file may differ
_LAYOUT = ("tp", "pp", "ep", "dp_attention", "dcp")
_OPTIONS = ", or say it as --device 8xh200 or --model NAME"


@dataclass(frozen=True)
class Measured:
    """A point beside what is predicted of it, in seconds."""

    point: MeasuredPoint
    measured_s: float
    predicted_s: float
    #: of measured over predicted, before
    interval: Interval


@dataclass(frozen=True)
class OwnServer:
    """Measured points of one server and what they say."""

    times: MeasuredTimes
    measured: tuple[Measured, ...]
    #: rows that the table marks as suspect
    n_suspect: int
    out: str = ""

    def content(self) -> bytes:
        """The file that --calibrated takes."""
        data = self.times.model_dump(exclude_none=True)
        head = "# Written by `dse calibrate server`; --calibrated of other commands takes it.\n"
        return (head + toml.dumps(data)).encode()

    def rows(self) -> list[dict[str, Any]]:
        """A row a point: measured, predicted, corrected by all points, and by the others alone."""
        points, rows = self.times.points, []
        for one, (off, _) in zip(self.measured, own_server.left_out(points), strict=True):
            made = own_server.correction(points, own_server.as_server(one.point), one.interval.logs()[1])
            rows.append(
                {
                    "id": one.point.id,
                    "server": _layout(one.point),
                    "load": f"{one.point.batch:,} x {one.point.input_tokens:,} + {one.point.output_tokens:,}",
                    "measured_s": one.measured_s,
                    "predicted_s": one.predicted_s,
                    "corrected_s": one.predicted_s * made.factor,
                    "by_others_s": one.measured_s / math.exp(off) if len(points) > 1 else None,
                }
            )
        return rows

    def corrections(self) -> list[dict[str, Any]]:
        """A row a layout that was measured, and one of another number of devices: the factor, and the interval of
        measured over predicted before and now."""
        points, seen = self.times.points, {_layout(one.point): one for one in self.measured}
        other = {**own_server.as_server(points[0]), "tp": 0}  # no measured layout has it
        asked = [(name, own_server.as_server(one.point), one.interval) for name, one in seen.items()]
        asked.append(("other tp or pp", other, self.measured[0].interval))
        rows = []
        for name, server, interval in asked:
            made = own_server.correction(points, server, interval.logs()[1])
            now = made.of(interval)
            rows.append(
                {
                    "server": name,
                    "factor": made.factor,
                    "before": [interval.low, interval.high],
                    "now": [now.low, now.high],
                }
            )
        return rows

    def off(self) -> tuple[float, float] | None:
        """The mean share by which predictions are off before, and as the other points correct them; None of few."""
        if len(self.measured) < own_server.LEAST_LEFT_OUT:
            return None
        before = [abs(one.predicted_s / one.measured_s - 1) for one in self.measured]
        now = [abs(math.exp(-off) - 1) for off, _ in own_server.left_out(self.times.points)]
        return math.fsum(before) / len(before), math.fsum(now) / len(now)

    def text(self) -> str:
        """The points, the factors, how far off points are that the others predict, and the file."""
        times = self.times
        plural = "" if len(times.points) == 1 else "s"
        lines = [
            f"{times.engine}: {times.model} on {times.device}, {len(times.points)} point{plural} of {times.source}"
        ]
        lines += [
            "",
            *aligned(cells(_POINTS, self.rows()), 3),
            "",
            *aligned(cells(_FACTORS, self.corrections()), 1),
            "",
        ]
        if off := self.off():
            lines.append(f"Points that the others predict: off by {off[0]:.1%} in the mean before, {off[1]:.1%} now.")
        else:
            lines.append(
                f"With {own_server.LEAST_LEFT_OUT} points or more each is predicted by the others, as a check."
            )
        if self.n_suspect:
            lines.append(f"{self.n_suspect} suspect rows are left out.")
        return "\n".join([*lines, f"written: {self.out}"])

    def to_json(self) -> dict[str, Any]:
        """Points, factors and the file; times in seconds."""
        off = self.off()
        return {
            "points": self.rows(),
            "factors": self.corrections(),
            "off_before": off and off[0],
            "off_now": off and off[1],
            "out": self.out,
        }


def _shown_ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / _MS:.4g} ms"


_POINTS = (
    Column("id", title="point"),
    Column("server"),
    Column("load", title="requests x in + out"),
    Column("measured_s", title="measured", form=lambda row: _shown_ms(row["measured_s"])),
    Column("predicted_s", title="predicted", form=lambda row: _shown_ms(row["predicted_s"])),
    Column("corrected_s", title="corrected", form=lambda row: _shown_ms(row["corrected_s"])),
    Column("by_others_s", title="by the others", form=lambda row: _shown_ms(row["by_others_s"])),
)
_FACTORS = (
    Column("server"),
    Column("factor", form="{factor:.2f}"),
    Column("before", title="8 of 10 before", form=lambda row: "{:.2f} to {:.2f}".format(*row["before"])),
    Column("now", title="and now", form=lambda row: "{:.2f} to {:.2f}".format(*row["now"])),
)


def _layout(point: MeasuredPoint) -> str:
    """Words for the layout, release, weights and KV format of a point: vllm@0.16.0, fp8, fp16 KV, tp 8."""
    split = [f"{name} {getattr(point, name)}" for name in ("tp", "pp", "ep", "dcp") if getattr(point, name) > 1]
    kv = f"{point.quantizer} KV" if point.quantizer else ""
    names = [point.stack, point.weights, kv, *split, "dp-attention" if point.dp_attention else ""]
    return ", ".join(filter(None, names))


def calibrate(
    sources: Sequence[str],
    out: str,
    given: Mapping[str, str],
    memory: MeasuredMemory | None = None,
    progress: Progress | None = None,
) -> OwnServer:
    """Measure a server against what is predicted of it, and write the file: by tables, results of benchmarks and lines
    of numbers.

    `given` columns stand for what rows say, `memory` is of a start-up log. Raises InputError, before anything is
    written, for rows of two servers, times in another unit and rows that nothing is predicted of.
    """
    rows = []
    for i, source in enumerate(sources, 1):
        of_source = speed.read(source, given, _OPTIONS)
        rows += [replace(row, id=f"line {i}") for row in of_source] if is_line(source) else of_source
    names = ", ".join(dict.fromkeys(map(_source, sources)))
    if not rows:
        raise InputError(f"{', '.join(sources)}: has no rows: give two runs of a server, or more")
    found = replace(of_rows(rows, names, memory, progress), out=out)
    files.write(Path(out), found.content())
    return found


def of_rows(
    rows: Sequence[SpeedRow], source: str, memory: MeasuredMemory | None = None, progress: Progress | None = None
) -> OwnServer:
    """Measure a server against what is predicted of it, by at least one row; `source` names where they come from.

    Raises InputError as `calibrate` does.
    """
    path = ", ".join(dict.fromkeys(row.path for row in rows))
    if bad := next((row.reason for row in rows if row.reason), ""):
        raise InputError(bad)
    kept = [row for row in rows if not row.is_suspect]
    if not kept:
        raise InputError(f"{path}: has no rows but suspect ones: give two runs of a server, or more")
    if len(kept) > MAX_POINTS:
        raise InputError(f"{path}: has {len(kept):,} rows: must be at most {MAX_POINTS}: leave some out")
    _check_one_server(kept)
    measured = tuple(_measured(row) for row in each(kept, progress, "points"))
    first = kept[0]
    assert first.device is not None
    times = MeasuredTimes(
        source=clean(source, 200),
        predicted_by=VERSION,
        engine=first.engine,
        device=first.device.name.partition("+")[0],
        model=first.plan.whole_model.name,
        points=tuple(one.point for one in measured),
        memory=memory,
    )
    if memory:
        _check_log(memory, times)
    return OwnServer(times, measured, n_suspect=len(rows) - len(kept))


def _check_one_server(rows: Sequence[SpeedRow]) -> None:
    """Raises InputError where rows are of two models, engines or devices."""
    names = {
        "model": lambda row: row.plan.whole_model.name,
        "engine": lambda row: row.engine,
        "device": lambda row: row.device.name,
    }
    for name, of in names.items():
        for row in rows[1:]:
            if of(row) != of(rows[0]):
                raise InputError(
                    f"{row.path}:{row.line}: {name} = {show(of(row))}: is another server than that of "
                    f"{rows[0].path}:{rows[0].line}, {of(rows[0])}: measure each by itself"
                )


def _check_log(memory: MeasuredMemory, times: MeasuredTimes) -> None:
    """Raises InputError for the memory of a server that no run was of."""
    is_server = (memory.engine, memory.device, memory.model) == (times.engine, times.device, times.model)
    of_log = memory.weights, memory.tp, memory.pp, memory.ep
    if not is_server or of_log not in [(point.weights, point.tp, point.pp, point.ep) for point in times.points]:
        raise InputError(
            f"log: is of {memory.model} in {memory.weights} on {memory.device} under {memory.engine}, tp {memory.tp}, "
            f"pp {memory.pp}, ep {memory.ep}, which no row was measured on: give a log of their server, or leave it out"
        )


def _source(source: str) -> str:
    return "the command line" if is_line(source) else Path(source).name


def _measured(row: SpeedRow) -> Measured:
    """A row beside what is predicted of it. Raises InputError where that cannot be, or is not of this server."""
    place = f"{row.path}:{row.line}"
    judged = speed.judge(row)
    if judged.reason:
        raise InputError(judged.reason if judged.reason.startswith(row.path) else f"{place}: {judged.reason}")
    value = next((value for value in judged.values if value.what == "tpot"), None)
    if value is None or not value.measured:
        raise InputError(f"{place}: measured_tpot_ms = '': must be there: give the mean time per output token in ms")
    assert row.device is not None
    assert row.work is not None
    over, cell = value.measured / value.ours, f"measured_tpot_ms = {value.measured / _MS:g}"
    if wrong := slip(over):
        raise InputError(f"{place}: {cell}: is {wrong}: give milliseconds")
    if not 1 / MOST_OFF <= over <= MOST_OFF:
        times, word = (over, "more") if over > 1 else (1 / over, "less")
        raise InputError(
            f"{place}: {cell}: is {times:.1f} times {word} than predicted, {value.ours / _MS:.4g} ms: at most "
            f"{MOST_OFF:g} is taken for one server: check model, weights, tp, lengths, concurrency, drafts, eager mode"
        )
    if row.marks:  # drafts: several tokens a step
        raise InputError(f"{place}: {row.marks}: leave the row out")
    point = Point(row.device, row.plan, row.work)
    split = {name: getattr(row.work, name) for name in _LAYOUT}
    return Measured(
        MeasuredPoint(
            id=clean(row.id, 200),
            stack=point.lowered.results["stack"] or row.engine,
            weights=weights_name(point.asked),
            quantizer=row.plan.quantizer_name,
            batch=row.work.batch or row.n_requests,
            input_tokens=row.work.input_tokens,
            output_tokens=row.work.output_tokens,
            measured_over_predicted=over,
            **split,
        ),
        measured_s=value.measured,
        predicted_s=value.ours,
        interval=point.lowered.sure.tokens,
    )
