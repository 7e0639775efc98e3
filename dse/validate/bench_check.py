"""Results of a benchmark of a server beside ours, run by run: the times per token, to the first, and tokens per second
of `vllm bench serve` and SGLang's `bench_serving`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dse.core import units
from dse.core.answer import Answer
from dse.core.columns import aligned, cells
from dse.core.errors import InputError
from dse.model import engine
from dse.model.point import Point
from dse.validate import bench_result, speed
from dse.validate.speed import Judged, JudgedSpeed

if TYPE_CHECKING:
    import pandas as pd

_MS = units.to_base(1, "ms")
#: parts of a step, as results have them, and what makes each smaller
_PARTS = {
    "linear_s": ("products with weights", "weights of fewer bits"),
    "attention_s": ("attention", "keys and values of fewer bits"),
    "collective_s": ("exchanges between devices", "fewer devices a replica"),
    "host_s": ("the server's own time", "a newer release"),
}


@dataclass(frozen=True, kw_only=True, repr=False)
class BenchCheck(Answer):
    """Runs of a benchmark beside ours."""

    runs: tuple[JudgedSpeed, ...]
    #: which time is off and what the step is made of, a sentence a run
    says: str

    @cached_property
    def table(self) -> "pd.DataFrame":
        """A row a measured value, in the units of the result."""
        import pandas as pd

        return pd.DataFrame(speed.rows_of_values(self.runs))

    def text(self) -> str:
        """The servers, their values and the sentences."""
        heads = [_head(run) for run in self.runs]
        rows = [row for row in speed.rows_of_values(self.runs) if row["what"]]
        return "\n".join([*heads, "", *aligned(cells(speed.COLUMNS, rows), 3), "", self.says])

    def to_json(self) -> dict[str, Any]:
        """The values and the sentences; off is a share."""
        return {"rows": speed.rows_of_values(self.runs), "says": self.says}


def check(path: str, content: bytes, given: Mapping[str, str], fields: Mapping[str, Any]) -> BenchCheck:
    """Compare the runs of a result with ours. `given` columns of a table stand for what the result says, `fields` of a
    workload for the server's settings, which no result has.

    Raises InputError where a run does not say its device or model.
    """
    runs = []
    for line, said in enumerate(bench_result.rows(path, content), 1):
        whole = {**said, **given}
        if not whole.get("device"):
            raise InputError(
                f"device: is missing, a benchmark of {whole.get('model') or 'a server'} does not say it: "
                "give --device, such as 8xh200"
            )
        if not whole.get("model"):
            raise InputError("model: is missing, the result does not say it: give --model")
        row = speed.row(path, line, whole)
        assert row.work is not None
        runs.append(speed.judge(replace(row, work=replace(row.work, **fields))))
    if reasons := [run.reason for run in runs if run.reason]:
        raise InputError(reasons[0])
    return BenchCheck(runs=tuple(runs), says=" ".join(_says(run, len(runs) > 1) for run in runs))


def _head(run: JudgedSpeed) -> str:
    """Engine, model, device and load of a run in a line."""
    row, work = run.row, run.row.work
    assert work is not None
    assert row.device is not None
    server = " ".join(filter(None, (row.engine, row.release)))
    load = {
        "rate": f"{row.requests_per_s:g} requests a second",
        "burst": f"{row.n_requests:,} requests at once",
        "closed": f"{work.batch or 0:,} requests at any time",
    }[row.kind]
    where = work.devices_text(row.device.name)
    return f"{server}: {row.plan.model.name} on {where}, {load}, {work.input_tokens:,} in, {work.output_tokens:,} out"


def _says(run: JudgedSpeed, is_named: bool) -> str:
    """The values outside our interval, and the largest part of a step."""
    assert run.row.work is not None
    assert run.row.device is not None
    outside = [value for value in run.values if value.is_inside is False]
    words = "; ".join(_outside(value) for value in outside)
    verdict = f"{words}." if outside else "All measured values lie in our 80 % intervals."
    results = engine.evaluate(Point(run.row.device, run.row.plan, run.row.work))
    marks = f" {run.marks}." if run.marks else ""
    name = f"Run {run.row.id}: " if is_named else ""
    if run.row.kind == "rate" or not results["decode_step_s"]:  # how many run at a rate is another number
        return f"{name}{verdict}{marks}"
    parts = {part: results[part] or 0.0 for part in _PARTS}
    largest = max(parts, key=lambda part: parts[part])
    title, try_it = _PARTS[largest]
    step = results["decode_step_s"] / _MS
    return (
        f"{name}{verdict} Most of our step of {step:.1f} ms: {title}, {parts[largest] / _MS:.1f} ms "
        f"(less with {try_it}).{marks}"
    )


def _outside(value: Judged) -> str:
    """A value outside our interval, and what that likely means."""
    measured = value.measured or 0.0
    worse = measured < value.low if value.what == "output" else measured > value.high
    by = f"{value.what} is {100 * (measured / value.ours - 1):+.0f} % over ours, outside the interval"
    if value.what == "ttft":
        return f"{by}: " + ("requests queue at the start" if worse else "prompts share a prefix, or are shorter")
    return f"{by}: " + (
        "eager mode, a lower power limit, other requests, or another release (--stack)"
        if worse
        else "drafts, a shared prefix, or another release (--stack)"
    )
