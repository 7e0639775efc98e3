"""Fits of a device's kernel parameters to measured times, and predictions by them: calibrate, predict attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dse.core.errors import InputError, show
from dse.operations.declare import SILENT, Console, argument, operation, option
from dse.operations.shared import Printed, json_option, several

if TYPE_CHECKING:
    from dse.specs.measured_memory import MeasuredMemory
    from dse.validate.own_server import OwnServer

KERNELS = ("attention", "gemm", "links", "served", "host", "implementation", "framework", "backend", "power")


@operation("calibrate", "Fit a device's kernel parameters to measured times.")
class CalibrateDevice(Printed):
    """Fit a device's kernel parameters to a TABLE of measured times, and write a device file with them.

    TABLE is a CSV file (docs/explanation/calibration.md has the columns), or `aiconfigurator-core` where that package
    is installed. A fifth of the rows is held out to measure the error. A plot of predicted against measured times is
    written beside FILE.toml. A fit that cannot be trusted writes nothing.
    """

    table: str = argument()
    device: str | None = option(
        None, "The device that was measured; not for host, implementation, framework and backend.", metavar="NAME|FILE"
    )
    stack: str | None = option(None, "Software stack, such as vllm; default: the one the table names.", metavar="NAME")
    out: str = option(
        help="Device file to write, with the fitted stack in it; for host, implementation, framework and backend a "
        "directory.",
        metavar="FILE.toml|DIR",
    )
    kernel: str = option(
        "attention",
        "What to read from aiconfigurator-core (links: collectives; served: products by "
        "format, experts, latent heads, prompts); a CSV file's columns say. host: whole steps of a CSV "
        "table; implementation: published measurements of quantized KV; framework: those without a KV cache; "
        "backend: steps of llama.cpp, a table of `validate speed`; "
        "power: J a byte and an operation, idle power.",
        choices=KERNELS,
    )
    as_json: bool = json_option("Print parameters and errors as JSON, in SI units.")

    def run(self, console: Console = SILENT) -> Any:
        """The parameters and their errors."""
        from dse.calibrate import fitters

        fitter = fitters.of_kernel(self.kernel)
        if self.device is None and self.kernel not in fitters.WITHOUT_DEVICE:
            raise InputError("--device is missing: give the device that was measured")
        if self.kernel in fitters.SHIPPED:
            return fitter.run(self.table, self.out, device=self.device, stack=self.stack, progress=console.progress)

        def draw(outcomes: Sequence[Any], device: str, stack: str) -> tuple[bytes, bytes]:
            from dse.figures.export import calibration  # loads plotly and matplotlib: not before the fit is good

            return calibration.plots(list(outcomes), device, stack, console.command)

        return fitter.run(self.table, self.device, self.stack, self.out, console.progress, self.kernel, draw)

    def text(self, outcome: Any) -> str:
        """The fit as people read it."""
        from dse.calibrate import fitters

        return str(fitters.of_kernel(self.kernel).text(outcome))


@operation("calibrate server", "Correct times by measurements of your own server.")
class CalibrateServer(Printed):
    """Compare predicted times per token with runs of your own server, two or more, and write a FILE that --calibrated
    of other commands takes.

    ROWS are of one model, engine and device: JSON of `vllm bench serve` or SGLang's `bench_serving`, CSV files with the
    columns of `dse validate speed`, or lines of numbers with these columns or their short names, such as "tpot=21.3ms
    concurrency=64 input=4096 output=512". Options stand for what rows do not say. FILE holds how many times as long as
    predicted each run's tokens took. Predictions of this server are corrected by them, those of other loads, splits and
    releases by as much as these have in common (docs/explanation/model.md, How sure). Rows of two servers, times in
    another unit and times that are four times off are refused, and nothing is written.
    """

    rows: Sequence[str] = argument(metavar="ROWS...", is_repeated=True)
    out: str = option(help="File to write.", metavar="FILE.toml")
    device: str | None = option(None, "Device of the rows, such as 8xh200; default: as they say.", metavar="NAME")
    model: str | None = option(None, "Model of the rows; default: as they say.", metavar="NAME|FILE")
    weights: str | None = option(None, "Format of its weights; default: as they say.", metavar="FORMAT")
    stack: str | None = option(None, "Engine and release, such as vllm@0.19.0; default: as they say.", metavar="NAME")
    log: str | None = option(
        None,
        "Start-up log of the same server, whose memory is kept too: the file then holds for its split alone.",
        metavar="LOG",
    )
    as_json: bool = json_option("Print points and factors as JSON, in SI units.")

    def run(self, console: Console = SILENT) -> OwnServer:
        """The points, what they say, and the file."""
        from dse.validate import own_server

        if not self.out.lower().endswith(".toml"):
            raise InputError(f"out = {show(self.out)}: must end in .toml")
        engine, _, release = (self.stack or "").partition("@")
        said = {
            "device": self.device,
            "model": self.model,
            "weights": self.weights,
            "engine": engine,
            "version": release,
        }
        given = {name: value for name, value in said.items() if value}
        return own_server.calibrate(several(self.rows), self.out, given, self._memory(), console.progress)

    def _memory(self) -> MeasuredMemory | None:
        """The memory of the start-up log. Raises InputError where it says none."""
        if self.log is None:
            return None
        from dse.operations.logs import CheckLog
        from dse.specs import device_names

        counted = device_names.counted(self.device or "")
        device = counted[1] if counted else self.device
        memory = getattr(CheckLog(log=self.log, device=device, model=self.model).run(), "memory", None)
        if memory is None:
            raise InputError(f"log = {show(self.log)}: does not say the memory of keys and values: leave it out")
        return memory

    def text(self, outcome: OwnServer) -> str:
        """Points, factors and the file as people read them."""
        return outcome.text()


@operation("predict attention", "Add predicted_us to a table of decode attention.", indent=None)
class PredictAttention(Printed):
    """Write TABLE with a column predicted_us: one layer's decode attention, keys and values read from memory."""

    table: str = argument()
    device: str = option(help="Device with calibrated stacks.", metavar="NAME|FILE")
    stack: str = option("vllm", "Which of its stacks.", metavar="NAME")
    out: str = option(help="CSV file to write.", metavar="FILE.csv")
    as_json: bool = json_option("Print what was written as JSON.")

    def run(self, console: Console = SILENT) -> dict[str, Any]:
        """The file, and its number of rows."""
        from dse.calibrate import write

        return write.predict(self.table, self.device, self.stack, self.out)

    def text(self, outcome: dict[str, Any]) -> str:
        """The file and its rows."""
        return f"predictions: {outcome['out']} ({outcome['rows']:,} rows)"
