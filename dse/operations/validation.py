"""Published claims, measured kernels, servers and gains beside predictions: the commands of `dse validate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dse.operations.declare import SILENT, Console, Operation, argument, operation, option
from dse.operations.shared import Printed, json_option

if TYPE_CHECKING:
    import pandas as pd


@operation("validate claims", "Every published claim, ours, and the verdict.")
class CheckClaims(Printed):
    """Compute every checkable number that four documents print, and compare.

    Verdicts: reproduced (exact numbers and relations), within (a model within 15 %, in each number), missed, erratum
    (the printed number does not follow from the document), not derivable (the document does not say enough), not
    attempted. Inputs of ours are not counted.
    """

    as_json: bool = json_option("Print a list of objects, one a claim.")

    def run(self, console: Console = SILENT) -> Any:
        """A row a claim."""
        from dse.validate import verdicts

        return verdicts.claim_rows()

    def text(self, outcome: Any) -> str:
        """The claims as people read them."""
        from dse.validate import verdicts

        return verdicts.text(outcome)

    def document(self, outcome: Any) -> Any:
        """An object a claim."""
        from dse.validate import verdicts

        return verdicts.to_json(outcome)


@operation(function="claims", positional=("prefix",))
class TabulateClaims(Operation):
    """Compute what the papers print: claims whose id begins with `prefix`, a row each.

    >>> dse.claims("text-attn-MHA-70b-4k")[["unit", "published", "ours", "verdict"]].values.tolist()
    [['GiB', '5.0', 10.0, 'erratum']]
    """

    prefix: str = option("", "The first letters of the claims' ids; default: all claims.")

    def run(self, console: Console = SILENT) -> pd.DataFrame:
        """A table with a row a claim."""
        from dse.validate import claims

        return claims.table(self.prefix)


@operation("validate silicon", "Errors on measured kernel times by device, stack and size.")
class CheckSilicon(Printed):
    """Compare the calibrated kernels and the naive roofline (bytes over bandwidth) with measured times.

    Computed where `aiconfigurator-core` is installed (extra `calibrate`); else as recorded in the device files.
    """

    device: str | None = option(None, "One device; default: all with calibrated stacks.", metavar="NAME|FILE")
    stack: str | None = option(None, "One software stack; default: all.", metavar="vllm|sglang|...")
    as_json: bool = json_option("Print a list of objects, one a row; errors are shares.")

    def run(self, console: Console = SILENT) -> Any:
        """A row a device, stack and size."""
        from dse.validate import silicon

        return silicon.run(self.device, self.stack, console.progress)

    def text(self, outcome: Any) -> str:
        """The errors as people read them."""
        from dse.validate import silicon

        return silicon.text(outcome)

    def document(self, outcome: Any) -> Any:
        """An object a row."""
        from dse.validate import silicon

        return silicon.to_json(outcome)


@operation("validate report", "Both as a page with scatter plots.")
class WriteValidation(Operation):
    """Write claims, measured kernels and the papers' accuracy tables as one HTML page, with the tables beside it."""

    out: str = option("report", "Directory to write into.", metavar="DIR")

    def run(self, console: Console = SILENT) -> Any:
        """The page, and a row a claim."""
        from dse.report import validation

        return validation.write(self.out, console.progress)

    def text(self, outcome: Any) -> str:
        """The page and the number of claims by verdict."""
        from dse.validate import verdicts

        index, rows = outcome
        return f"validation: {index} ({verdicts.summary(rows)})"


@operation()
class ChecksTable(Printed):
    """A table of measurements beside predictions."""

    table: str = argument()
    out: str = option(help="Directory to write predictions.csv and errors into.", metavar="DIR")
    as_json: bool = json_option("Print the errors by group as JSON; errors are shares.")

    def _module(self) -> Any:
        raise NotImplementedError

    def _contents(self, outcome: Any) -> dict[str, bytes]:
        return dict(self._module().contents_of(outcome))

    def run(self, console: Console = SILENT) -> tuple[Any, list[str]]:
        """The rows with their predictions, and the files that were written."""
        from dse.core import files

        with files.publishing(self.out) as published:
            judged = self._module().run(self.table, console.progress)
            return judged, [str(published.write(*item)) for item in self._contents(judged).items()]

    def text(self, outcome: tuple[Any, list[str]]) -> str:
        """The errors as people read them, and the files."""
        judged, written = outcome
        return f"{self._module().text(judged)}\n\nwritten: {', '.join(written)}"

    def document(self, outcome: tuple[Any, list[str]]) -> Any:
        """The errors."""
        return self._module().errors(outcome[0])


@operation("validate serving", "Measured servers beside predictions, row by row.")
class CheckServing(ChecksTable):
    """Predict every row of a TABLE of measured servers, and say how far off it is.

    TABLE is a CSV file with the columns id, backend, model_path, system, isl, osl and batch_size (the requests at any
    time), and where known backend_version, precision, tp_size and other splits, silicon_tpot_ms and silicon_ttft_ms.
    A row whose mode is disagg has separate pools: prefill_num_workers, decode_num_workers, both tp_size and
    decode_batch_size with the same prefixes. predictions.csv has times in ms with 80 % intervals, marked where the
    nearest measured release, kernel or format stands in; errors.csv the errors by model, system, stack and devices;
    servers.html and .svg the figure.
    """

    def _module(self) -> Any:
        from dse.validate import serving

        return serving

    def _contents(self, outcome: Any) -> dict[str, bytes]:
        from dse.figures.charts import servers_measured

        return {**super()._contents(outcome), **servers_measured.files_of(outcome)}


@operation("validate gains", "Published gains of quantized KV beside predictions, row by row.")
class CheckGains(ChecksTable):
    """Predict every row of a TABLE of printed measurements, and each gain over the base of its group.

    TABLE is a CSV file with the columns id, device, model, kv, stack, quantity, value and unit, and where they apply
    n_devices, weights, activations, batch, input_tokens, output_tokens, cls, group and is_base
    (docs/explanation/implementations.md). predictions.csv has values in the unit of each row with 80 % intervals, the
    gains, and why there is none.
    """

    out: str = option(help="Directory to write predictions.csv and errors.json into.", metavar="DIR")
    as_json: bool = json_option("Print the errors by class and stack as JSON; they are shares.")

    def _module(self) -> Any:
        from dse.validate import gains

        return gains


@operation("validate speed", "Public benchmarks of servers beside predictions, row by row.")
class CheckSpeed(Printed):
    """Predict every row of a TABLE of benchmarks, and print it beside what was measured, with the errors by group.

    TABLE is the JSON of `vllm bench serve` (its `--metadata device=8xh200 tp=8` says what it lacks), the lines of
    SGLang's `bench_serving`, or a CSV file with the columns engine, device (h200, 8xh200), model (or dse_model),
    concurrency, input_tokens, output_tokens and one of measured_tpot_ms, measured_output_tok_s and measured_ttft_ms, or
    their names in such results (backend, model_id, mean_tpot_ms, ...) or short ones (conc, inp, out, tpot, ots, ttft);
    where known id, weights, version, tp, pp,
    ep, dp_attention, kv_dtype, requests, all_at_once (a burst), requests_per_s (a rate), lengths (fixed, varied),
    decode (steps without prompts in them, as llama-bench has them), suspect and server (the command as printed: memory,
    longest context, requests and prompt tokens are read off). Without all_at_once, requests_per_s and decode,
    `concurrency` requests are there at any time; a column kind may say it too (rate, concurrency, decode, burst).
    """

    table: str = argument()
    out: str | None = option(None, "Write the rows into this CSV file.", metavar="FILE")
    as_json: bool = json_option("Print rows and errors by group as JSON; off and errors are shares.")

    def run(self, console: Console = SILENT) -> Any:
        """The rows with what is predicted of them."""
        from dse.validate import speed

        judged = speed.run(self.table, console.progress)
        if self.out is not None:
            from pathlib import Path

            from dse.core import files

            files.write(Path(self.out), speed.table_csv(judged).encode())
        return judged

    def text(self, outcome: Any) -> str:
        """The rows and the errors as people read them, and the file."""
        from dse.validate import speed

        written = "" if self.out is None else f"\n\nwritten: {self.out}"
        return f"{speed.text(outcome)}{written}"

    def document(self, outcome: Any) -> Any:
        """Rows and errors."""
        from dse.validate import speed

        return speed.errors(outcome)
