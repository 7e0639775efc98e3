"""All that the golden tables know of the code: one design point evaluated, one command run. Change imports here."""

import contextlib
import gzip
import io
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

#: paths in the tables are relative to this directory: config.json files, plans by layer, device files
GOLDEN = Path(__file__).parent


@lru_cache(maxsize=1024)
def _device(text: str) -> Any:
    from dse.specs import catalog

    return catalog.device(text)


@lru_cache(maxsize=1024)
def _plan(model: str, key: str, value: str, bits: str) -> Any:
    from dse.model import kv_layout as plan
    from dse.specs import catalog
    from dse.specs.measurements import bits_from

    source = bits_from(bits, None)
    # 16 bits where none are asked for
    wide = catalog.model(model).model_copy(update={"released": "bf16"})
    return plan.build(wide, source.required(key), source.required(value))


INPUTS_FOLDER = GOLDEN / "inputs"


@cache
def old_document(path: Path) -> Any:
    """The file of a shipped device as it was when the tables were made, where a number of it was mended since."""
    from dse.core import specfile
    from dse.specs import catalog

    kept = INPUTS_FOLDER / "shipped" / path.name
    text = kept.read_text(encoding="utf-8") if kept.is_file() else catalog.device_text(path)
    return specfile.parse(str(path), text)


@cache
def old_device(path: Path) -> Any:
    """That device, where `kernels_alone` reads its file."""
    from dse.specs import catalog

    return catalog.device_from(catalog.shipped_device(path))


@cache
def synthetic_errors() -> Any:
    """What was measured on the synthetic sample that shipped before one of a language model did."""
    from dse.specs import measurements

    text = gzip.decompress((INPUTS_FOLDER / "kv_sample.measured.json.gz").read_bytes())
    return measurements.MeasurementFile.model_validate_json(text)


@cache
def synthetic_grid() -> Any:
    """Oaken's parameters as measured on that sample."""
    from dse.specs import oaken_grid

    text = gzip.decompress((INPUTS_FOLDER / "oaken_grid.csv.gz").read_bytes()).decode()
    return oaken_grid.rows_of(text, "kv_sample.npz (synthetic)")


def synthetic_sample() -> Any:
    """That sample as the lab holds it."""
    from dse.measure import kernels, lab, synthetic

    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/kv_sample.npz", **synthetic.arrays(synthetic.synthetic(4, 2, 320, 128, 2025)))
        held = lab.hold(f"{folder}/kv_sample.npz")
    note = "the synthetic sample that ships: no language model's keys and values"
    thresholds = kernels.thresholds_of(str(INPUTS_FOLDER / "kv_sample.thresholds.toml"))
    return replace(held, about=replace(held.about, synthetic=True, note=note), thresholds=thresholds)


def slower_than_peaks(kind: str) -> Any:
    """Intervals as they were: of times at the peaks what measured devices reach of them."""
    from dse.model.uncertainty import Interval, Intervals

    why = "no measured kernels: 0.85 to 0.93 of the bandwidth and 0.7 to 1.0 of the rate, as measured devices reach"
    return Intervals(Interval(1 / 0.93, 1 / 0.7, why), Interval(1 / 1.0, 1 / 0.7, why))


@contextlib.contextmanager
def kernels_alone() -> Iterator[None]:
    """Times as they were before servers were measured whole: 16-bit kernels without a host, prompts of latent heads
    counted as decoding is, weights that unpack for nothing; errors of the synthetic sample. What came later has tests
    of its own."""
    from dse.measure import lab
    from dse.model import kernels, kv_layout, lower, stacks, uncertainty
    from dse.model.records import NO_LIMIT
    from dse.operations import shared
    from dse.report import present
    from dse.specs import catalog, measurements, oaken_grid, workload
    from dse.specs.device_and_model import HardwareSpec
    from dse.validate import figures
    from dse.validate.claims import textbook

    def split_alone(work: Any, model: Any) -> list[str]:
        weights = [work.weights_text] if work.weights or work.weights_bits != 16 else []
        return [*work.split(), *weights]

    layers_of, tensor_of = lower.layers_of, lower.tensor_of
    known: dict[Any, dict[Any, Any]] = {}

    def narrow(kv: Any, *policy: Any) -> Any:
        layers = tuple((layer.model_copy(update={"prompt_score_dim": None}), n) for layer, n in kv.layers)
        return layers_of(replace(kv, layers=layers), *policy)

    changed = (
        mock.patch.object(catalog, "servers", dict),
        mock.patch.object(catalog, "shipped_device", old_document),
        mock.patch.object(catalog, "_shipped_device", old_device),
        mock.patch.object(lower, "layers_of", narrow),
        # 16-bit tokens that wait to be packed were not copied
        mock.patch.object(lower, "tensor_of", lambda *parts: tensor_of(*parts)._replace(copies_window=0)),
        mock.patch.object(lower, "chunk_of", return_value=NO_LIMIT),  # Llama 4's chunks were read as windows
        mock.patch.object(kernels, "UNPACKED_SHARE", 1.0),
        # devices whose kernels nobody measured ran at their peaks, beside an interval of slower times
        mock.patch.object(kernels, "as_devices_reach", lambda found: found),
        mock.patch.object(stacks, "WITHOUT_KERNELS", "ideal"),
        mock.patch.object(uncertainty, "without_kernels", slower_than_peaks),
        mock.patch.object(HardwareSpec, "has_kernels", False),  # peaks counted assumed costs of kernels, too
        mock.patch.object(measurements, "_shipped", synthetic_errors),
        mock.patch.object(oaken_grid, "_rows", synthetic_grid),
        mock.patch.object(lab, "sample", synthetic_sample),
        mock.patch.object(shared, "_shipped_layout", shared._shipped_layout.__wrapped__),  # keeps measured errors
        # what plans kept before is of other times, and what they keep meanwhile is for here alone
        mock.patch.object(
            kv_layout.KvPlan, "_known", property(lambda kept: known.setdefault(kv_layout.Same(kept), {}))
        ),
        mock.patch.object(figures, "sinkq_batches", figures.sinkq_batches.__wrapped__),  # others may have asked before
        mock.patch.object(figures, "sinkq_lengths", figures.sinkq_lengths.__wrapped__),
        mock.patch.object(textbook, "_chunked_prefill", textbook._chunked_prefill.__wrapped__),
        mock.patch.object(present, "how_sure", return_value=[]),
        mock.patch.object(present, "weights_said", return_value=""),
        mock.patch.object(workload.Workload, "ways", split_alone),
        mock.patch.object(present, "_interval_text", return_value=[]),
    )
    with contextlib.ExitStack() as held:
        for one in changed:
            held.enter_context(one)
        yield


def evaluate_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Every result of a design, or {"error": message} of one that is refused.

    `row` has texts `device`, `model`, `key_quantizer`, `value_quantizer` and `bits`, and every field of a workload.
    """
    from dse.core.errors import DseError

    with contextlib.chdir(GOLDEN), kernels_alone():
        try:
            found = _point(row).results
        except DseError as error:
            return {"error": str(error)}
    return {**found, "assumptions": "; ".join(found["assumptions"])}


def evaluate_quick(row: Mapping[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The results of a design by compiled code, None where it leaves them to the interpreter, and by that."""
    from dse.model import many

    with contextlib.chdir(GOLDEN), kernels_alone():
        point = _point(row)
        return many.results_of(point), point.results


def _point(row: Mapping[str, Any]) -> Any:
    """The design of a row; raises DseError for one that is refused."""
    from dse.model.evaluate import Point
    from dse.specs.workload import Workload

    plan = _plan(row["model"], row["key_quantizer"], row["value_quantizer"], row["bits"])
    work = {name: row[name] for name in row if name not in INPUTS}
    return Point(_device(row["device"]), plan, Workload(**{"memory": "paper", **work}))


def evaluate_compiled(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
    """What compiled code computes of all designs in one call, as `evaluate_row`: {"error": message} where a design is
    refused, None where compiled code leaves a design to the interpreter, as its whole numbers might not fit int64."""
    import numpy as np

    from dse.core.errors import DseError
    from dse.model import many
    from dse.model.batch import BOUNDS
    from dse.model.results import RESULT_UNITS

    found: list[dict[str, Any] | None] = [None] * len(rows)
    asked = []
    for i, row in enumerate(rows):
        with contextlib.chdir(GOLDEN), kernels_alone():
            try:
                point = _point(row)
                many.tables_of([point.design])
                asked.append((i, point))
            except DseError as error:
                found[i] = {"error": str(error)}
            except OverflowError:
                continue
    designs, n = [point.design for _, point in asked], len(asked)
    tables = many.tables_of(designs, [design.device for design in designs])
    n_keys = 2 + max(int(tables.stacks["n_cores"].max()), int(tables.devices["token_cores"].max()), 2)
    each, state = np.arange(n), np.zeros(n, np.int8)
    work = [
        np.array([getattr(point.work, name) for _, point in asked])
        for name in ("input_tokens", "output_tokens", "batch")
    ]
    filled = many.found_for(RESULT_UNITS, n)
    many.evaluate(many.PointColumns(each, each, *work), tables, n_keys, filled, state)
    columns = {name: column.tolist() for name, column in many.columns_of(filled).items()}
    for at, (i, point) in enumerate(asked):
        if state[at] == many.LEFT:
            continue
        result = {name: column[at] for name, column in columns.items()}
        result = {name: None if value == many.MISSING or value != value else value for name, value in result.items()}
        result |= {name: None if result[name] < 0 else BOUNDS[result[name]] for name in many.CODE}
        for name in ("stored_tokens", "read_tokens"):  # means over layers: often whole
            result[name] = int(result[name]) if result[name].is_integer() else result[name]
        result["feasible"] = bool(state[at] == many.FEASIBLE)
        result["fits_whole_batch"] = result["max_batch"] >= point.work.batch
        found[i] = result
    return found


#: what a row has beside the fields of a workload
INPUTS = ("device", "model", "key_quantizer", "value_quantizer", "bits")


def result_names() -> list[str]:
    """The names of all results of a design point."""
    from dse.model.results import RESULT_UNITS

    return list(RESULT_UNITS)


def names() -> dict[str, list[str]]:
    """What there is: shipped devices, models, quantizer and token families, stacks by device, fields of a workload."""
    from dataclasses import fields

    from dse import quantizers
    from dse.specs import catalog
    from dse.specs import tokens as token_policies
    from dse.specs.workload import Workload

    devices = list(catalog.device_files())
    return {
        "devices": devices,
        "models": list(catalog.model_files()),
        "quantizers": list(quantizers.FAMILIES),
        "tokens": list(token_policies.FAMILIES),
        "stacks": [f"{name} {stack}" for name in devices for stack in catalog.device(name).stacks],
        "workload": [field.name for field in fields(Workload)],
    }


@contextlib.contextmanager
def papers_memory() -> Iterator[None]:
    """Commands that leave it to the device count memory as papers do, by which the tables were made."""
    from dse.model import evaluate, lower

    with (
        mock.patch.object(lower, "memory_counted", return_value="paper"),
        mock.patch.object(evaluate, "memory_counted", return_value="paper"),
        mock.patch.object(lower, "runs_server", return_value=False),
    ):
        yield


#: what commands took where nothing was given, when the tables were made
OLD_DEFAULTS = {
    "simulate": {"--batch": "256", "--output": "256", "--admission": "paged"},
    "point": {"--batch": "1", "--admission": "reserve"},
}
#: commands that have another name now: what is unsure was a sensitivity
RENAMED = {("ask", "sensitivity"): ["ask", "doubt"]}


def with_old_defaults(argv: list[str]) -> list[str]:
    """A command that says what it took by default when the tables were made."""
    given = dict(OLD_DEFAULTS.get(argv[0], {}))
    if "--trace" in argv:
        given.pop("--output", None)  # a trace has its own
    if "static" in argv:
        given.pop("--admission", None)
    if argv[:2] == ["ask", "map"]:
        given = {"--quantizers": "fp16,fp8,kivi:bits=4,qserve,nqkv,oaken"}
    return [*argv, *(word for name, value in given.items() if name not in argv for word in (name, value))]


@contextlib.contextmanager
def known_kernels() -> Iterator[None]:
    """Commands choose formats by known kernels, whatever engine has them, as when the tables were made."""
    from dse.model import starts

    with (
        mock.patch.object(starts.engines, "release_for", return_value=None),
        mock.patch.object(starts, "_offers", return_value=True),
    ):
        yield


def run_command(argv: list[str]) -> str:
    """What a command prints, with its exit status where that is not 0 and its complaint; runs in this process."""
    argv = with_old_defaults(argv)
    argv = [*RENAMED.get(tuple(argv[:2]), argv[:2]), *argv[2:]]
    from dse.cli import main as cli

    out, err, status = io.StringIO(), io.StringIO(), 0
    from dse.report import present

    later = mock.patch.object(present, "quality_lines", return_value=[])  # of a point's text: tested there
    apart = mock.patch.object(present, "_share_lines", return_value=[])
    with (
        papers_memory(),
        known_kernels(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        kernels_alone(),
        later,
        apart,
    ):
        try:
            cli.main(argv)
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 1
    return out.getvalue() if status == 0 else f"exit status {status}\n{err.getvalue()}"


@contextlib.contextmanager
def evaluated_once() -> Iterator[None]:
    """Commands that ask for one and the same design share its point and its run, which each would make anew."""
    from dse.model import evaluate
    from dse.report import present

    def once(function: Callable[..., Any]) -> Callable[..., Any]:
        made: list[Any] = []

        def call(*args: Any, **kwargs: Any) -> Any:
            if not made:
                made.append(function(*args, **kwargs))
            return made[0]

        return call

    with (
        mock.patch.object(evaluate, "Point", once(evaluate.Point)),
        mock.patch.object(present, "explained", once(present.explained)),
    ):
        yield


def report_tables(options: list[str]) -> dict[str, str]:
    """The tables of `dse report` with these options, as CSV by file name, without drawing a figure."""
    from dse.questions import tables
    from dse.report import throughput as report

    given = dict(zip(options[::2], options[1::2], strict=True))
    lists = [given[name].split(",") for name in ("--devices", "--models")]
    sizes = [int(size) for size in given["--batches"].split(",")]
    with kernels_alone():
        found = tables.build(report.ask(*lists, None, sizes), None)
    return {name: content.decode() for name, content in report.table_files(found).items() if name.endswith(".csv")}
