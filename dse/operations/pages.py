"""The report, and figures of any table: report, plot."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dse.core.errors import InputError
from dse.core.field import NAMES, SWITCH, WHOLES
from dse.operations.declare import SILENT, Console, Operation, argument, look, operation, option, words_of, work
from dse.operations.shared import OUTPUT, Sourced, WithWorkload, json_option, several
from dse.specs.look import Look
from dse.specs.workload import DEPLOYMENT, MAX_BATCH, TIMING, Workload

if TYPE_CHECKING:
    import pandas as pd

    from dse.questions.systems import ReportRequest


@operation()
class AsksReport(WithWorkload, Sourced):
    """The systems, models and batches of a report."""

    devices: Sequence[str] | None = option(
        None, "Devices (names or files); default: the preset's.", NAMES, metavar="A,B"
    )
    models: Sequence[str] | None = option(None, "Models (names or files); default: the preset's.", NAMES, metavar="A,B")
    quantizers: Sequence[str] | None = option(
        None,
        "KV quantizers; default: those each device is evaluated with.",
        NAMES,
        former=("--quantizer",),
        metavar="A,B",
    )
    batches: Sequence[int] | None = option(
        None, "Batch sizes; default: 16,32,64,128,256.", WHOLES, metavar="16,32", low=1, high=MAX_BATCH
    )
    tokens: Sequence[str] | None = option(
        None, "Token policies of `fewer tokens against fewer bits` (`dse list tokens`).", NAMES, metavar="A,B"
    )
    workload: Workload = work(only=("input_tokens", "output_tokens", *DEPLOYMENT, *TIMING), takes_all=False)

    def asked(self, preset: str | None = None) -> ReportRequest:
        """The request of the report. Raises InputError and SpecError."""
        from dse.report import throughput
        from dse.specs.measurements import CLOSED

        names = ("devices", "models", "quantizers", "batches", "tokens")
        chosen = {name: None if getattr(self, name) is None else several(getattr(self, name)) for name in names}
        return throughput.ask(**chosen, work=self.workload, bits=self.source() or CLOSED, preset=preset)


@operation("report", "Write the throughput-versus-capacity report.", function="report", positional=("out",))
class WriteReport(AsksReport):
    """Write the throughput-versus-capacity report: one HTML page, the table behind it, every figure."""

    out: str = option("report", "Directory to write into.", metavar="DIR", is_said=True, group=OUTPUT)
    preset: str = option(
        "today",
        "Where no device is named: models and GPUs of today, or the systems and models of Oaken's Figure 11.",
        metavar="today|oaken",
    )

    def run(self, console: Console = SILENT) -> str:
        """The path of the page."""
        from dse.report import throughput

        return throughput.write(self.out, shlex.join(words_of(self)), self.asked(self.preset), console.progress)

    def text(self, outcome: str) -> str:
        """The page."""
        return f"report: {outcome}"


@operation(function="report_table", positional=("name",))
class TabulateReport(AsksReport):
    """Compute one table of the report by its name, such as "results" or "roofline"; a wrong one is answered with all.

    By default of the systems and models of the Oaken paper.

    >>> table = dse.report_table("results", devices=["lpu-hbm"], models=["llama2-13b"], batches=[16, 64])
    >>> table["system"].unique().tolist()
    ['LPU-HBM FP16']
    """

    name: str = argument(help="The table's name.")

    def run(self, console: Console = SILENT) -> pd.DataFrame:
        """The table."""
        from dse.questions import tables

        return tables.one(self.name, self.asked())


@operation("plot", "Any figure for a paper or a slide, or its table.")
class DrawFigure(Operation):
    """Draw the figure KIND of what another command wrote: sized for a column of a paper or for a slide.

    DIR is the --out of that command, TABLE a CSV or Parquet file with the figure's columns; those that a directory of
    `dse sweep` did not keep, or holds fixed, are computed. PDF holds its fonts, SVG draws letters as paths; both, PNG
    and Parquet say in their metadata which command and version made them, HTML beneath the figure, CSV in
    FILE-metadata.json beside it. A figure of `dse report` without a table shows the systems and models of Oaken's
    paper. `dse plot` alone lists the figures.
    """

    kind: str | None = argument(None)
    source: str | None = argument(None, metavar="DIR|TABLE")
    out: str | None = option(None, "File to write: .pdf, .svg, .png, .html, .csv or .parquet.", metavar="FILE")
    look: Look = look()
    only: Sequence[str] = option((), "Rows to draw, such as model=llama2-13b.", metavar="COLUMN=A,B", is_repeated=True)
    as_list: bool = option(
        False, "Every figure: what it shows, which command writes its table.", SWITCH, name="list", in_python=False
    )
    as_json: bool = json_option("The list as JSON.")

    @property
    def is_list(self) -> bool:
        """True where the figures are to be listed."""
        return self.kind is None or self.as_list or (self.kind == "list" and self.source is None)

    def unused(self) -> dict[str, str]:
        """Only a list is JSON, and a table has no look."""
        from dse.figures.export import write

        if self.is_list or self.kind is None or self.out is None:
            return {} if self.is_list else {"as_json": "without --list"}
        write.how_to(self.kind)  # an unknown one is said first
        ending = write.ending(self.out)
        return {"as_json": "without --list", **dict.fromkeys(write.unused(ending), f"in .{ending}")}

    def run(self, console: Console = SILENT) -> Any:
        """The files that were written, or the figures that there are."""
        from dse.figures.export import write

        if self.is_list or self.kind is None:
            return write.listing()
        how = write.how_to(self.kind)
        if self.source is None and not write.has_own_table(self.kind):
            raise InputError(f"DIR or TABLE is missing: {how}")
        if self.out is None:
            raise InputError("--out is missing: name a file that ends in .pdf, .svg, .png, .html, .csv or .parquet")
        return write.write(self.kind, self.source or "", self.out, console.command, self.look, several(self.only))

    def text(self, outcome: Any) -> str:
        """The files or the figures."""
        from dse.figures.export import write

        return write.listing_text() if self.is_list else "\n".join(outcome)
