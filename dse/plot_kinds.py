"""Every figure that `dse plot` draws by name: what it shows, which command writes its table, which columns it needs."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from dse import plot_design, plot_questions, plot_study, report_papers, report_validation, validate_accuracy
from dse.errors import InputError, did_you_mean, show
from dse.pareto_designs import label
from dse.plot_read import BESIDE, Source, read
from dse.plots import (
    FIGURES,
    Figure,
    accuracy_bits,
    design_bars,
    design_front,
    measured_errors,
    predicted_measured,
    rows,
    simulated,
    utilisation_batch,
)
from dse.plots.chart import Chart

#: letters of a word that a description is searched for, and more
MIN_WORD = 3
_REPORT, _VALIDATE, _MEASURE = "dse report --out DIR", "dse validate report --out DIR", "dse measure SOURCE --out DIR"
_POINT, _LAB = "dse point ... --out DIR", "dse lab SOURCE --method Q --out DIR"


@dataclass(frozen=True)
class Kind:
    """A figure by name. `stems` are its table's names in a directory, `written_by` the command that writes it.

    `needs_beside` is True where the table alone does not say enough and NAME.figure.json must stand beside it. Rows
    that agree in all of `key` would lie over each other, so they are refused; () where that cannot be. `system` in it
    is device and quantizer where the table has no such column.
    """

    name: str
    shows: str
    written_by: str
    stems: tuple[str, ...]
    columns: tuple[str, ...]
    draw: Callable[[Source], Chart | None]
    needs_beside: bool = False
    key: tuple[str, ...] = ()


#: columns that tell the marks of a figure apart
_KEYS = {
    "effective_axes": ("model", "batch"), "throughput_batch": ("model", "batch"), "weights_or_kv": ("batch",),
    "latency_breakdown": ("batch",), "throughput_length": ("input_tokens", "output_tokens"),
    "tokens_bits": ("input_tokens", "output_tokens"), "throughput_trace": ("model", "trace", "batch"),
}  # fmt: skip


def _of_report(figure: Figure) -> Kind:
    stem = "report" if figure.table == "results" else f"tables/{figure.table}"
    draw = _ledger(figure.chart) if figure.name == "bit_ledger" else lambda source: figure.chart(source.table)
    return Kind(
        figure.name, figure.question, _REPORT, (stem,), figure.columns, draw,
        key=("device", "system", *_KEYS[figure.name]) if figure.name in _KEYS else (),
    )  # fmt: skip


def _ledger(draw: Callable[[pd.DataFrame], Chart]) -> Callable[[Source], Chart]:
    """Bars of parts that add up to the whole."""

    def of(source: Source) -> Chart:
        plot_design.check_parts(source.table)
        return draw(source.table)

    return of


def _asked(
    name: str,
    shows: str,
    command: str,
    columns: str,
    *stems: str,
    needs_beside: bool = False,
    key: tuple[str, ...] = (),
) -> Kind:
    def draw(source: Source) -> Chart:
        return plot_questions.chart(name, source.table, source.about)

    return Kind(name, shows, f"dse ask {command} --out DIR", stems, tuple(columns.split()), draw, needs_beside, key)


def _front(source: Source) -> Chart:
    about, table = source.about, source.table
    cloud = source.other("front-others")
    return design_front.chart(
        table.drop(columns="knee"), [bool(knee) for knee in table["knee"]],
        table.iloc[:0] if cloud is None else cloud, about["objectives"], about["units"],
        partial(label, columns=tuple(about["design"]), units=about["units"]), tuple(about["by"]),
    )  # fmt: skip


def _measured(draw: Callable[..., Chart | None]) -> Callable[[Source], Chart | None]:
    def of(source: Source) -> Chart | None:
        return draw(source.table, source.table, bool(source.json("summary.json").get("synthetic")))

    return of


def _accuracy(view: validate_accuracy.View) -> Kind:
    def draw(source: Source) -> Chart:
        table = source.table[source.table["view"] == view.name] if "view" in source.table else source.table
        if table.empty:
            raise InputError(f"view = {view.name}: no row has it: is this accuracy.csv of `{_VALIDATE}`?")
        return accuracy_bits.chart(view.title, view.axis, view.unit, view.note, table)

    columns = ("model", "method", "config", "quantizer", "effective_bits", "value", "n_tasks")
    return Kind(f"accuracy_{view.name.replace('-', '_')}", f"{view.title}.", _VALIDATE, ("tables/accuracy", "accuracy"),
                columns, draw)  # fmt: skip


def _silicon(part: str) -> Callable[[Source], Chart]:
    def draw(source: Source) -> Chart:
        table = source.table[(source.table["part"] == "gemm") == (part == "gemm")]
        if table.empty:
            raise InputError(f"part = {part}: no row has it")
        devices = list(dict.fromkeys(table["device"]))
        if len(devices) > 1:
            raise InputError(f"device = {', '.join(devices)}: a figure shows one: choose it with --only device=NAME")
        return report_validation.silicon_chart(devices[0], report_validation.scatters_of(table))

    return draw


def _calibrated(source: Source) -> Chart:
    table, first = source.table, source.table.iloc[0]
    for name in ("device", "stack"):
        plot_design.one_of(table, name)
    parts = [
        (str(part), *(own[name].to_numpy() for name in ("measured_s", "predicted_s", "held_out")))
        for part, own in table.groupby("part", sort=False)
    ]
    return predicted_measured.chart(f"{first['device']}, {first['stack']}: predicted and measured", parts)


def _of_papers(name: str) -> Callable[[Source], Chart]:
    return lambda source: report_papers.chart(name, source.table)


def _phases(source: Source) -> Chart:
    for phase in dict.fromkeys(source.table["phase"]):
        if phase not in utilisation_batch.PHASES:
            raise InputError(f"phase = {show(phase)}: must be {' or '.join(utilisation_batch.PHASES)}")
    is_whole = source.table["name"] == "all"
    if is_whole.all() or not is_whole.any():
        raise InputError('name: must be "all" for a phase, and beside it the operations of decode by name')
    return report_papers.chart("oaken_figure_3", source.table)


def _sinkq(source: Source) -> Chart:
    lengths = source.other("sinkq-figure-3-length")
    if lengths is None:
        raise InputError(f"sinkq-figure-3-length.csv: must stand beside: made by `{_VALIDATE}`")
    return report_validation.sinkq_chart(source.table, lengths)


_MEMORY = ("system", "batch", "input_tokens", "memory_bytes", "capacity_bytes", "fits")
_TIMES = ("device", "stack", "part", "measured_s", "predicted_s", "held_out")
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        *map(_of_report, FIGURES.values()),
        Kind("front", "Any two objectives against each other, the Pareto front and its knees marked.",
             "dse pareto DIR --maximize ... --minimize ... --out DIR", ("front",), ("knee",), _front, True),
        _asked("cross", "From which batch and prompt on a quantizer pays, and why.",
               "cross", "axis at first last verdict gain_at_first gain_at_last", "cross", key=("axis", "at", "first")),
        _asked("map", "The best quantizer at each batch and prompt length, with its gain.",
               "map", "batch input_tokens best", "map",
               key=("batch", "input_tokens")),
        _asked("need", "A result against the device's bandwidth, capacity or FLOP/s, and the smallest that will do.",
               "need bandwidth|capacity|flops", "running_batch bound meets",
               "need-bandwidth", "need-capacity", "need-flops"),
        _asked("need_bits", "Which quantizers meet a target, most stored bits first.",
               "need bits", "quantizer stored_bits bound meets", "need-bits"),
        _asked("sensitivity", "A tornado: which assumption, inside its range, moves a result, the largest first.",
               "sensitivity", "at_low at_high other_at_low other_at_high flips_at", "sensitivity",
               needs_beside=True),
        Kind("simulation", "A simulated run over time: requests, memory, tokens per second.",
             "dse simulate ... --out DIR", ("over_time",),
             ("time_s", "running", "waiting", "used_bytes", "free_bytes", "tokens_per_s", "device", "model",
              "quantizer", "batching", "admission"), lambda source: simulated.chart(source.table)),
        Kind("error_bits", "Measured error of the attention output against stored bits, a point a method.", _MEASURE,
             ("summary.json",), ("method", "side", "context_tokens", "stored_bits", "output_error", "queries"),
             _measured(measured_errors.error_bits)),
        Kind("error_context", "Measured error of the attention output by context length.", _MEASURE, ("summary.json",),
             ("method", "side", "context_tokens", "output_error", "mass_moved", "queries"),
             _measured(measured_errors.error_context)),
        Kind("error_layer", "Measured errors of keys, values and attention by layer.", _MEASURE, ("measured",),
             ("method", "side", "context_tokens", "layer", "head", "sqnr_db", "output_error", "mass_moved", "queries"),
             _measured(measured_errors.error_layer)),
        Kind("predicted_measured", "Predicted against measured kernel times of a calibration.",
             "dse calibrate TABLE --device NAME --out FILE.toml (writes FILE.points.csv)", ("points",), _TIMES,
             _calibrated),
        Kind("design_memory", "What fills the memory: weights, KV cache and the rest, a bar a design.", _POINT,
             ("point", "report"), (*design_bars.MEMORY, "capacity_bytes"), plot_design.bars(design_bars.memory)),
        Kind("design_step", "What fills the mean decode step, a bar a design.", _POINT, ("point", "report"),
             (*design_bars.STEP, "feasible"), plot_design.bars(design_bars.step_time)),
        Kind("operations", "Operations of a decode step under the device's roofline, at peak rates and calibrated.",
             _POINT, ("operations",), ("device", "model", "quantizer", "model_kind", "stack", "operation", "batch",
             "seconds", "intensity_flops_per_byte", "flops_per_s", "ceiling_flops_per_s", "peak_flops_per_s",
             "bandwidth_bytes_per_s"), plot_design.roofline),
        Kind("lab_bits", "Bits an element that a quantizer really stored of a KV dump, by part.", _LAB, ("bits",),
             ("quantizer", "stored_bits", "effective_bits"), plot_design.lab_bits),
        Kind("lab_heads", "An error of keys or values as a map of layers and heads.",
             f"{_LAB}` or `{_MEASURE}", ("errors", "measured"), ("layer", "head", "side"), plot_design.lab_heads),
        Kind("lab_histogram", "Values of a head before and after a quantizer, its thresholds marked.", _LAB,
             ("histogram",), ("low", "high", "n_before", "n_after"), plot_design.lab_histogram),
        *(Kind(f"lab_{part}", f"Tokens and channels of a head as a map: {words}.", _LAB, ("values",),
               ("token", "channel", "before", "after"), plot_design.lab_values(part))
          for part, words in (("before", "as they were"), ("after", "as a quantizer gives them back"),
                              ("error", "how far the two are apart"))),
        Kind("mixed_plans", "Error against bits of plans by layer beside single methods, and each layer's method.",
             "dse mix DIR ... --figure mixed_plans.csv", ("mixed_plans",), ("kind", "method", "stored_bits", "error"),
             plot_design.mixed),
        Kind("claims", "Published claims: ours over the published number.", _VALIDATE, ("tables/claims", "claims"),
             ("id", "source", "published", "ours", "unit", "verdict", "basis"),
             lambda source: report_validation.claims_of(source.table)),
        *(Kind(f"silicon_{part}", f"Predicted against measured times of a device's kernels: {words}.",
               f"{_VALIDATE} (with the extra calibrate)", ("tables/silicon-points",), _TIMES, _silicon(part))
          for part, words in (("attention", "attention"), ("gemm", "matrix products"))),
        Kind("silicon_errors", "Errors of a device's calibrated kernels on measured times, by part and size.",
             _VALIDATE, ("tables/silicon", "silicon"),
             ("device", "stack", "part", "size_class", "mean", "p90", "naive_mean"), plot_design.silicon_error),
        *map(_accuracy, validate_accuracy.VIEWS),
        *(Kind(*parts) for parts in plot_study.KINDS),
        Kind("sinkq_figure_3", "SinkQ's Figure 3 as modelled: throughput and peak memory by batch and length.",
             _VALIDATE, ("tables/sinkq-figure-3-batch", "sinkq-figure-3-batch"),
             ("method", "batch", "throughput_tokens_per_s", "peak_memory_bytes", "over_kivi"), _sinkq),
        Kind("nqkv_figure_8", "Peak memory against batch (NQKV Figure 8).", _VALIDATE,
             ("tables/nqkv_figure_8", "nqkv_figure_8"), _MEMORY, _of_papers("nqkv_figure_8")),
        Kind("nqkv_figure_9", "Peak memory against prompt length (NQKV Figure 9).", _VALIDATE,
             ("tables/nqkv_figure_9", "nqkv_figure_9"), _MEMORY, _of_papers("nqkv_figure_9")),
        Kind("oaken_figure_3", "Shares of the peak rates against batch (Oaken Figure 3).", _VALIDATE,
             ("tables/oaken_figure_3", "oaken_figure_3"),
             ("batch", "phase", "name", "compute_utilisation", "bandwidth_utilisation"), _phases,
             key=("batch", "phase", "name")),
    )
}  # fmt: skip


def kind(name: str) -> Kind:
    """The kind of that name, `-` as `_`. Raises InputError with the nearest names."""
    found = KINDS.get(name.strip().lower().replace("-", "_"))
    if found is None:
        raise InputError(f"unknown figure {show(name)}: {_nearest(name)}")
    return found


def _nearest(name: str) -> str:
    """The figures whose names are near, or that speak of the word; else where all of them are listed."""
    if (text := did_you_mean(name, KINDS)).startswith("did you mean"):
        return text
    word = name.strip().lower().replace("-", "_")
    words = [part for part in word.split("_") if len(part) > MIN_WORD]
    near = [one.name for one in KINDS.values() if any(part in f"{one.name} {one.shows}".lower() for part in words)]
    return f"did you mean {', '.join(near[:4])}?" if near else "`dse plot` alone lists them"


def load(name: str, where: str, only: Sequence[str] = ()) -> tuple[Chart, pd.DataFrame]:
    """The chart of a kind and the table behind it, from a directory or a file. Raises InputError, LimitError."""
    one = kind(name)
    _check_beside(one, where)
    source = read(where, one.stems, one.written_by, only)
    _check(one, source, where)
    try:
        found = one.draw(source)
    except (TypeError, ValueError, KeyError, IndexError, ZeroDivisionError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{show(where)}: cannot be drawn as {one.name} ({show(str(error))[1:-1]}): is it as `{one.written_by}` "
            "writes it?"
        ) from error
    if found is None:
        raise InputError(f"{show(where)}: holds nothing that {one.name} draws")
    return found, source.table


def _check_beside(one: Kind, where: str) -> None:
    """What must stand beside a table is there, before the table is read."""
    file = Path(where)
    with contextlib.suppress(OSError, ValueError):  # said when it is read
        if one.needs_beside and file.is_file() and not file.with_name(f"{file.stem}{BESIDE}").is_file():
            raise InputError(
                f"{show(where)}: {one.name} needs {show(file.stem + BESIDE)} beside its table: `{one.written_by}` "
                "writes both"
            )


def _check(one: Kind, source: Source, where: str) -> None:
    """Columns are there, what must stand beside holds something, and no two rows are the same mark."""
    table = source.table
    wanted = list(one.columns)
    if "system" in one.key and "system" not in table:
        wanted.append("quantizer")
    missing = [name for name in dict.fromkeys(wanted) if name not in table]
    if one.needs_beside and not source.about:
        raise InputError(
            f"{show(where)}: {one.name} needs {one.stems[0]}{BESIDE} beside it: `{one.written_by}` writes both"
        )
    if missing:
        raise InputError(f"{show(where)}: lacks {', '.join(missing)}: `{one.written_by}` writes such a table")
    if one.key:
        own = rows.with_system(table) if "system" in one.key else table
        keys = list(one.key)
        again = own.duplicated(keys, keep=False)
        if again.any():
            first = own[again].groupby(keys, sort=False, dropna=False, observed=True).get_group(
                tuple(own[again].iloc[0][name] for name in keys)
            )  # fmt: skip
            differ = [str(name) for name in own.columns if first[name].astype(str).nunique() > 1]
            what = (f"differ in {', '.join(differ[:3])}: choose with --only COLUMN=VALUE" if differ
                    else "are the same: leave one")  # fmt: skip
            raise InputError(f"{show(where)}: {len(first):,} rows of one mark {what}")


def listing() -> list[dict[str, Any]]:
    """Every kind as plain data."""
    return [
        {"kind": one.name, "shows": one.shows, "written_by": one.written_by, "columns": list(one.columns),
         "beside": f"{one.stems[0]}{BESIDE}" if one.needs_beside else None}
        for one in KINDS.values()
    ]  # fmt: skip
