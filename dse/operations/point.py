"""One design point: all of its results, the operations of its decode step, and what explains a result."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.core.errors import InputError, show
from dse.core.field import SWITCH
from dse.operations.declare import SILENT, Console, operation, option, words_of
from dse.operations.shared import (
    OUTPUT,
    Device,
    Model,
    OnDesign,
    Printed,
    Quantizer,
    WithWorkload,
    device_option,
    hardware,
    json_option,
    layout,
    model_option,
    several,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from dse.model.point import Point
    from dse.questions.room import Way
    from dse.questions.serve_command import ServeCommand
    from dse.report.design import DesignResults


@operation(
    "point",
    "Memory, time, throughput and energy of one design.",
    function="evaluate",
    positional=("device", "model", "quantizer", "workload"),
)
class EvaluatePoint(OnDesign, Printed):
    """Everything about one design point: memory, time, throughput, and what binds.

    >>> found = dse.evaluate("a100-80gb", "llama2-13b", "qserve", batch=128, admission="paged")
    >>> found.max_batch, round(found.throughput_tokens_per_s), found.unit("decode_step_s")
    (114, 1326, 's')
    >>> found["max_batch"] == found.max_batch
    True
    """

    as_json: bool = json_option("Print every result as JSON, in SI base units.")
    explain: str | None = option(
        None, "Show the formula, values and sources behind one result.", metavar="NAME", in_python=False, group=OUTPUT
    )
    operations: bool = option(
        False,
        "Show what each operation takes, and its shares of the peak rates.",
        SWITCH,
        in_python=False,
        group=OUTPUT,
    )
    everything: bool = option(
        False,
        "Show every result with its interval, bits by part, measurements and kernels, below the answer.",
        SWITCH,
        name="all",
        in_python=False,
        group=OUTPUT,
    )
    out: str | None = option(
        None,
        "Write the result and the operations of a decode step as tables.",
        metavar="DIR",
        in_python=False,
        group=OUTPUT,
    )

    def run(self, console: Console = SILENT) -> Point:
        """Every result by name, in SI base units; None for what does not apply."""
        from dse.model.point import Point

        if self.out is not None and self.explain is not None:
            raise InputError(f"out = {show(self.out)}: has no effect with --explain: leave it out")
        spec, plan = self.hardware(), self.plan()
        self.workload.refuse_idle("" if spec.reported_memory else spec.name)
        return Point(spec, plan, self.workload)

    def value(self, outcome: Point) -> DesignResults:
        """Every result by name, in SI base units; None for what does not apply. A dict whose entries are attributes."""
        from dse.model.engine import evaluate
        from dse.report.design import DesignResults, as_said

        return DesignResults(as_said(evaluate(outcome)), partial(self.text, outcome), partial(self._command, outcome))

    def _command(self, outcome: Point) -> ServeCommand:
        """The command line that starts the design."""
        from dse.questions.serve_command import serve_command

        return serve_command(outcome.device, outcome.asked_plan, self.workload)

    def written(self, outcome: Point, console: Console) -> list[str]:
        """Write the tables where a directory is given."""
        if self.out is None:
            return []
        from dse.figures.export import point
        from dse.model.engine import evaluate

        point.write(self.out, outcome.device, outcome.plan, self.workload, evaluate(outcome))
        return [] if self.as_json else [f"\ntables: {self.out} (dse plot design_memory, design_step, operations)"]

    def text(self, outcome: Point) -> str:
        """The report of the point, or the explanation of one result."""
        from dse.questions import room
        from dse.report import present

        if self.explain is not None:
            return present.explanation_text(present.explain(self.explain, outcome))
        text = present.point_text(
            outcome,
            str(self.device) if isinstance(self.device, str | Path) else None,
            [(command, f"{way.words}: {room.outcome(result)}") for command, way, result in self._ways(outcome)],
            is_brief=not self.everything,
        )
        rest = [] if self.everything else ["All results, intervals and kernels: --all; one result: --explain NAME"]
        notes = (
            *present.slower_note(outcome),
            *present.cast_note(outcome),
            *present.release_note(outcome),
            *present.memory_note(outcome),
        )
        text = "\n".join([text, *notes, *rest, *filter(None, [self._command(outcome).text()])])
        rows = outcome.operations() if self.operations else []
        return f"{text}\n\nOperations\n{present.operations_text(rows)}" if rows else text

    def document(self, outcome: Point) -> Any:
        """Every result, its interval, the bits by part, the operations, and what a larger memory would give; of what
        does not fit, commands that do."""
        from dse.model import engine, uncertainty
        from dse.model.offload import offload_of
        from dse.report import present
        from dse.report.design import as_said

        if self.explain is not None:
            return present.explain(self.explain, outcome)
        room, results = engine.with_room(outcome), as_said(engine.evaluate(outcome))
        return {
            **results,
            "intervals": uncertainty.as_numbers(results, outcome.stack),
            "bit_ledger": present.bit_ledger(outcome),
            "operations": outcome.operations(),
            "with_room": room and {name: as_said(room)[name] for name in engine.ROOM_RESULTS},
            "kernels": present.kernels(outcome),
            "time_shares": engine.time_shares(outcome),
            **({"offload": offloaded.to_dict()} if (offloaded := offload_of(outcome)) else {}),
            "command": asdict(self._command(outcome)),
            "would_fit": [
                {
                    "command": command,
                    "change": way.words,
                    **{name: result[name] for name in ("max_batch", "throughput_tokens_per_s", "score_drop_frac")},
                }
                for command, way, result in self._ways(outcome)
            ],
        }

    def _ways(self, outcome: Point) -> list[tuple[str, Way, dict[str, Any]]]:
        """Ways that make a design fit that does not: the command, the change, its results."""
        from dse.model import engine
        from dse.model.point import Point
        from dse.questions import room

        is_named = all(isinstance(spec, str | Path) for spec in (self.device, self.model, *self.sides()))
        if outcome.max_batch or not is_named:  # no command can name a spec
            return []

        def changed(way: Way) -> EvaluatePoint:
            sides = {"quantizer": way.quantizer, "key_quantizer": None, "value_quantizer": None}
            plain = {"explain": None, "out": None, "as_json": False, "operations": False, "everything": False}
            return replace(self, workload=way.work, **(sides if way.quantizer else {}), **plain)  # type: ignore[arg-type]

        def results(way: Way) -> dict[str, Any]:
            return engine.evaluate(Point(outcome.device, changed(way).plan(), way.work))

        ways = room.that_fit(outcome, self.workload, results)
        return [(shlex.join(words_of(changed(way))), way, result) for way, result in ways]


@operation(function="operations", positional=("device", "model", "quantizers", "workload"))
class TabulateOperations(WithWorkload):
    """The operations of a decode step under each quantizer, and where the roofline lets them run; a row each.

    >>> found = dse.operations("a100-80gb", "llama2-13b", ["fp16", "qserve"], batch=64)
    >>> found[found["operation"] == "attention"]["quantizer"].unique().tolist()
    ['fp16', 'qserve']
    """

    device: Device = device_option()
    model: Model = model_option()
    quantizers: Sequence[Quantizer] = option(("fp16",), "KV quantizers with parameters.", is_said=True)

    def run(self, console: Console = SILENT) -> pd.DataFrame:
        """A table with a row an operation and quantizer."""
        from dse.questions.operations import decode_step

        plans = [layout(self.model, name, name) for name in several(self.quantizers)]
        return decode_step(hardware(self.device), plans, self.workload)
