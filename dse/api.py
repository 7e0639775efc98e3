"""The functions of `import dse`: what a script or notebook needs for common work, with names instead of objects.

Devices, models and quantizers are names or files as the command line takes them, or what the first three functions
return. Times are in seconds, sizes in bytes: every result with its unit is in `dse.results`.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from dse.core import errors, units
from dse.core.errors import InputError, LimitError, did_you_mean, show
from dse.model import evaluate as design_point
from dse.model import kv_layout
from dse.model.results import RESULTS
from dse.quantizers import QuantizerSpec, layered
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.measurements import bits_from
from dse.specs.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

    from dse.questions.best_map import BestMap
    from dse.questions.common import Design
    from dse.questions.crossing import Crossing
    from dse.questions.devices import Devices
    from dse.questions.formats import Formats
    from dse.questions.load import Load
    from dse.questions.need import Need, NeedBits
    from dse.questions.sensitivity import Sensitivity
    from dse.serving.steady_state import Batching
    from dse.sweep.pareto.designs import DesignFront
    from dse.sweep.run import Stored

__all__ = [
    "Workload",
    "best_map",
    "check",
    "claims",
    "crossover",
    "device",
    "devices",
    "errors",
    "evaluate",
    "formats",
    "front",
    "grid",
    "load",
    "model",
    "need",
    "operations",
    "plot",
    "quantizer",
    "report",
    "report_table",
    "results",
    "sensitivity",
    "simulate",
    "sweep",
    "units",
]

#: every result of `evaluate` and column of `sweep`: unit, words, what it reads
results = RESULTS

#: a device, a model or a quantizer: by name, or what `device`, `model` and `quantizer` return
Device = str | Path | HardwareSpec
Model = str | Path | ModelSpec
Quantizer = str | QuantizerSpec


def device(name: str | Path) -> HardwareSpec:
    """A shipped device, or one from a TOML file; numbers change on the spot.

    >>> dse.device("h100").memory_bandwidth.si
    3350000000000.0
    >>> dse.device("h100:memory_bandwidth=4 TB/s").memory_bandwidth.si
    4000000000000.0

    Raises InputError for a name that is not known, SpecError for a file that is not right.
    """
    return catalog.device(str(name))


def model(name: str | Path) -> ModelSpec:
    """A shipped language model, or one from a `config.json` or TOML file.

    >>> dse.model("llama2-13b").parameters
    13015864320

    Raises InputError for a name that is not known, SpecError for a file that is not right.
    """
    return catalog.model(str(name))


def quantizer(name: str, measurements: str | Path | None = None) -> QuantizerSpec:
    """A KV quantizer with its options, and with its errors as measured on the shipped sample.

    `measurements` is a file of `dse measure` or `dse quantize`, whose data then stand for the sample.

    >>> dse.quantizer("kivi:bits=2").name
    'kivi'
    >>> dse.quantizer("kivi:bits=4,group=64").name
    'kivi:bits=4,group=64'

    Raises InputError with what is allowed.
    """
    return bits_from("closed", None if measurements is None else str(measurements)).quantizer(name)


def check(file: str | Path) -> str:
    """What `dse check` says of a good device file, model file or plan by layer: every number with its source.

    >>> dse.check("h100").splitlines()[0]
    'device H100: no problem found'

    Raises SpecError with all problems of a bad one: its `lines()` have one each.
    """
    from dse.report import listing

    return listing.check(str(file))


def evaluate(
    device: Device,
    model: Model,
    quantizer: Quantizer = "fp16",
    workload: Workload | None = None,
    *,
    value_quantizer: Quantizer | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """All results of one design: memory, what fits, times, throughput, energy, cost; None for what there is not.

    `asked` are fields of `Workload`, in place of one.

    >>> found = dse.evaluate("a100-80gb", "llama2-13b", "qserve", batch=128, admission="paged")
    >>> found["max_batch"], round(found["throughput_tokens_per_s"])
    (146, 1318)

    Raises InputError and SpecError for names and values, LimitError beyond what can be counted.
    """
    work = _workload(workload, asked, own=evaluate.__kwdefaults__)
    values = quantizer if value_quantizer is None else value_quantizer
    return design_point.evaluate(_device(device), _plan(model, quantizer, values), work)


def grid(
    device: Device | Iterable[Device],
    model: Model | Iterable[Model],
    quantizer: Quantizer | Iterable[Quantizer] = "fp16",
    **asked: Any,
) -> "pd.DataFrame":
    """All results of several designs, a row each: as `evaluate`, with a list wherever more than one is meant.

    Every combination is a row, the last list varies fastest. Designs that do not fit stay, with their reason.
    `sweep` is for millions of designs, a few columns each.

    >>> table = dse.grid(["a100-80gb", "h100"], "llama2-13b", ["fp16", "qserve"], batch=[16, 256])
    >>> table.groupby("device")["max_batch"].max().to_dict()
    {'A100-80GB': 110, 'H100': 110}

    Raises InputError and SpecError for names and values, LimitError for more than a million designs.
    """
    from dse.sweep import sweeps

    axes = [_list(values) for values in (device, model, quantizer, *asked.values())]
    if (n_points := math.prod(map(len, axes))) > sweeps.MAX_POINTS:
        raise LimitError(f"grid of {n_points:,} designs: at most {sweeps.MAX_POINTS:,} fit in one table: see dse.sweep")
    devices, models, quantizers, *fields = axes
    works = [_workload(None, dict(zip(asked, values, strict=True))) for values in itertools.product(*fields)]
    specs, kinds = [_device(one) for one in devices], [_quantizer(one) for one in quantizers]
    plans = [[kv_layout.build(shape, kind, kind) for kind in kinds] for shape in map(_model, models)]
    return sweeps.to_table(
        design_point.evaluate(spec, plan, work) for spec in specs for own in plans for plan in own for work in works
    )


def sweep(
    axes: Mapping[str, Any] | str | Path, out: str | Path | None = None, **options: Any
) -> "pd.DataFrame | Stored":
    """Every combination of some axes: a table, or with `out` a directory of Parquet files that can be resumed.

    `axes` are names with values or ranges, a whole specification with "axes", "where" and "keep", or its TOML file;
    `options` those of `dse.sweep.sweeps.run`.

    >>> table = dse.sweep({"device": "h100", "model": "llama3.1-8b", "quantizer": ["fp16", "fp8"], "batch": [1, 64]})
    >>> table.shape[0]
    4

    Raises InputError, SpecError, LimitError, and with `out` BusyError and OutputError.
    """
    from dse.sweep import sweeps

    spec: Any = axes
    if isinstance(axes, Mapping) and "axes" not in axes:
        spec = {"axes": dict(axes)}
    return sweeps.run(spec, out, **options)


def front(
    designs: "pd.DataFrame | Stored | str | Path",
    maximize: Sequence[str] = (),
    minimize: Sequence[str] = (),
    by: Sequence[str] = (),
    at_most: Sequence[str] = (),
    at_least: Sequence[str] = (),
    *,
    objectives: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
) -> "DesignFront":
    """The designs that no other beats, of a table, a file, or a sweep's directory; its `table` has them.

    `at_most` and `at_least` are limits such as `["decode_step_s=0.05"]` in base units; `by` makes a front for each
    value of a column, of which `only(COLUMN=VALUE)` takes one. `objectives` says both senses at once, as in
    `{"power_w": "min"}`, in the order of a figure's axes. One name may stand for a list of it. `units` are base units
    of columns of your own.

    >>> table = dse.sweep({"device": ["a100-80gb", "h100"], "model": "llama2-13b", "batch": [16, 64]})
    >>> dse.front(table, maximize=["throughput_tokens_per_s"]).table["device"].tolist()
    ['H100']

    Raises InputError for columns that are not there or not numbers.
    """
    from dse.sweep import pareto
    from dse.sweep.pareto import designs as of
    from dse.sweep.pareto import limits
    from dse.sweep.run import Stored

    if objectives is None:
        objectives = pareto.objectives_of(_list(maximize), _list(minimize))
    elif maximize or minimize:
        raise InputError("objectives: cannot stand beside maximize and minimize: give one of both")
    for name, sense in objectives.items():
        if sense not in ("max", "min"):
            raise InputError(f"objectives: {show(name)} = {show(sense)}: must be max or min")
    senses: Any = dict(objectives)
    within = limits.parse(_list(at_most), _list(at_least))
    place = designs.folder if isinstance(designs, Stored) else designs
    if not isinstance(place, str | Path):
        return of.of_table(place, senses, _list(by), units=units, limits=within)
    if units is not None:
        raise InputError("units: are for a table: a file's columns are results and axes")
    return of.of_file(place, senses, _list(by), limits=within)


def formats(
    device: Device, model: Model, formats: Sequence[str] | None = None, workload: Workload | None = None, **asked: Any
) -> "Formats":
    """Which KV format pays on a device and stack: memory, time, error and energy of each, and its gain over 16 bits.

    `formats` are names of quantizers; by default all that a kernel of the stack, or of no stack, runs on the device.
    The answer has `text()`, `answer()`, `table()` and `to_json()`, and `plot` draws it.

    >>> found = dse.formats("h200", "qwen3-32b", ["fp8", "qserve"], batch=64, input_tokens=8192, admission="paged")
    >>> [(one.name, one.verdict) for one in found.formats]
    [('fp16', 'base'), ('fp8', 'pays'), ('qserve', 'room')]

    Raises InputError and SpecError for names and values.
    """
    from dse.questions import formats as module

    return module.formats(
        _device(device), _model(model), _workload(workload, asked), None if formats is None else _list(formats)
    )


def crossover(
    device: Device,
    model: Model,
    quantizer: Quantizer,
    workload: Workload | None = None,
    *,
    against: Quantizer = "fp16",
    measure: str = "throughput",
    batches: Sequence[int] | None = None,
    inputs: Sequence[int] | None = None,
    **asked: Any,
) -> "Crossing":
    """From which batch (at each prompt of `inputs`) and prompt (at each of `batches`) on does a quantizer pay, and why?

    All batches and prompts up to the largest are decided. `measure` is "throughput" or "step"; the default lists are
    those of `dse ask cross`. The answer has `text()`, `table()` and `to_json()`, and `plot` draws it.

    >>> found = dse.crossover("h100", "llama2-13b", "nqkv", batches=[8], inputs=[512], dequant_path="fused")
    >>> [(run.first, run.last, run.verdict) for run in found.from_batch[0].runs]
    [(1, 6, 'no'), (7, 8, 'speed')]

    Raises InputError and SpecError for names and values, LimitError for a batch or prompt too large to search.
    """
    from dse.questions import common, crossing

    work = _workload(
        workload, asked, searched={"batch": "batches", "input_tokens": "inputs"}, own=crossover.__kwdefaults__
    )
    return crossing.crossing(
        _design(device, model, quantizer),
        _design(device, model, against),
        work,
        common.measure(measure, crossing.MEASURES),
        crossing.BATCHES if batches is None else batches,
        crossing.INPUTS if inputs is None else inputs,
    )


def need(
    what: str,
    device: Device,
    model: Model,
    quantizer: Quantizer | None = None,
    workload: Workload | None = None,
    *,
    throughput: float | None = None,
    step_ms: float | None = None,
    quantizers: Sequence[Quantizer] | None = None,
    **asked: Any,
) -> "Need | NeedBits":
    """The smallest "bandwidth", "capacity" or "flops" of a device for a target, or the most "bits" that meet it.

    The target is a `throughput` in token/s or a `step_ms` of the whole batch. For bits, `quantizers` are those to
    choose from (default: 16 bits, and those that `formats` compares with them). `value` is None where
    nothing meets the target, and `why()` says why.

    >>> found = dse.need("bandwidth", "a100-80gb", "llama2-13b", batch=128, admission="paged", throughput=2000)
    >>> dse.units.human(found.value, found.unit)
    '9.407 TB/s'
    >>> dse.need("bits", "a100-80gb", "llama2-13b", throughput=1200, batch=128, admission="paged").best["quantizer"]
    'nvfp4'

    Raises InputError and SpecError for names and values.
    """
    from dse.questions import need as needs

    goal, work = needs.target(throughput, step_ms), _workload(workload, asked, own=need.__kwdefaults__)
    if what != "bits":
        if quantizers is not None:
            raise InputError(f"quantizers: have no effect on {show(what)}: give one quantizer")
        return needs.smallest(_design(device, model, quantizer or "fp16"), work, what, goal)
    if quantizer is not None:
        raise InputError("quantizer: has no effect on bits: give quantizers to choose from")
    if quantizers is None:
        return needs.most_bits(needs.candidates(_device(device), _model(model), work), work, goal)
    return needs.most_bits([_design(device, model, name) for name in _list(quantizers)], work, goal)


def sensitivity(
    device: Device,
    model: Model,
    quantizer: Quantizer = "fp16",
    workload: Workload | None = None,
    *,
    against: Quantizer | None = None,
    measure: str = "throughput",
    ranges: Sequence[str] = (),
    **asked: Any,
) -> "Sensitivity":
    """Which number of the device, each inside its range, moves a result, or which of two quantizers wins `against`?

    `measure` is "throughput", "step", "energy" or "cost"; `ranges` are your own, as in `["fused_rate=x0.2:x2"]`.

    >>> found = dse.sensitivity("oaken-lpddr", "llama2-13b", "oaken", against="qserve", batch=64)
    >>> found.winner, [effect.number.name for effect in found.effects if effect.flips_at]
    ('qserve', ['fused_rate'])

    Raises InputError and SpecError for names and values, and where the design does not run as given.
    """
    from dse.questions import common
    from dse.questions import sensitivity as module

    designs = [_design(device, model, name) for name in (quantizer, against) if name is not None]
    work = _workload(workload, asked, own=sensitivity.__kwdefaults__)
    return module.sensitivity(
        designs[0],
        work,
        common.measure(measure),
        designs[1] if against is not None else None,
        _list(ranges),
        as_measured=[module.with_measured_bits(design) for design in designs],
    )


def load(
    device: Device,
    model: Model,
    quantizer: Quantizer = "fp16",
    workload: Workload | None = None,
    *,
    value_quantizer: Quantizer | None = None,
    loads: Sequence[float] | None = None,
    **asked: Any,
) -> "Load":
    """What requests wait at shares of what a full server serves: time per output token and to the first.

    >>> waits = dse.load("h200", "qwen3-32b", "fp8", batch=64, input_tokens=8192, admission="paged")
    >>> waits.at(0.5)["tpot_s"] < waits.at(0.55)["tpot_s"]
    True

    Raises InputError and SpecError for names and values, a load that is not above 0 and below 1, a prefix.
    """
    from dse.questions import load as module

    values = quantizer if value_quantizer is None else value_quantizer
    plan, work = _plan(model, quantizer, values), _workload(workload, asked, own=load.__kwdefaults__)
    return module.under_load(_device(device), plan, work, module.LOADS if loads is None else loads)


def simulate(
    device: Device,
    model: Model,
    quantizer: Quantizer = "fp16",
    workload: Workload | None = None,
    *,
    value_quantizer: Quantizer | None = None,
    trace: str | Path | None = None,
    rate: float | str | None = None,
    n_requests: int | None = None,
    batching: "Batching" = "continuous",
    chunk_tokens: int = 512,
    prompt_step_tokens: int = 2048,
    seed: int = 1,
    **asked: Any,
) -> dict[str, Any]:
    """Serve requests one by one, seeded: what `dse simulate --json` prints, in SI base units.

    `trace` is a shipped trace's name or a CSV file, None for the workload's lengths; `rate` requests per second, a
    share of the rate that holds ("70%"), "trace" or "full".

    >>> found = dse.simulate("h200", "qwen3-32b", "fp8", trace="azure-conv", rate="50%", n_requests=200)
    >>> found["n_requests"], found["ttft_s"]["p50"] < found["ttft_s"]["p99"]
    (200, True)

    Raises InputError and SpecError for names and values, a prefix, a token policy, requests none of which fits.
    """
    from dse.report import simulation
    from dse.serving.arrivals import Traffic

    values = quantizer if value_quantizer is None else value_quantizer
    ask = Traffic(None if trace is None else str(trace), None if rate is None else str(rate), n_requests, seed)
    work = _workload(workload, asked, own=simulate.__kwdefaults__)
    work.refuse_idle()
    return simulation.serve(
        _device(device),
        _plan(model, quantizer, values),
        work,
        ask,
        batching,
        chunk_tokens,
        prompt_step_tokens=prompt_step_tokens,
    )[0]


def devices(
    device: Device,
    model: Model,
    quantizer: Quantizer = "fp16",
    workload: Workload | None = None,
    *,
    most: int | None = None,
    **asked: Any,
) -> "Devices":
    """Every split of a model by tp and pp over up to `most` devices, and the fewest that hold the whole batch.

    By default up to 16, or as many as the device's file lets share work, where those are fewer.

    >>> dse.devices("h100", "llama3.1-70b", batch=64).fewest["n_devices"]
    4

    Raises InputError and SpecError for names and values, and for more devices than the device's file allows.
    """
    from dse.questions import devices as module

    searched = dict.fromkeys(("tp", "pp", "pp_batches"), "most")
    work = _workload(workload, asked, searched, devices.__kwdefaults__)
    return module.devices(_device(device), _plan(model, quantizer, quantizer), work, most)


def best_map(
    device: Device,
    model: Model,
    quantizers: Sequence[Quantizer] | None = None,
    workload: Workload | None = None,
    *,
    measure: str = "throughput",
    batches: Sequence[int] | None = None,
    inputs: Sequence[int] | None = None,
    **asked: Any,
) -> "BestMap":
    """Which of several quantizers is best at each batch and prompt, and by how much? Ties name all.

    `measure` is "throughput", "step", "energy" or "cost"; the default lists are those of `dse ask map`.

    >>> found = dse.best_map("h100", "llama3.1-8b", ["fp16", "fp8"], batches=[1, 256], inputs=[512, 8192])
    >>> found.table()["best"].tolist()
    ['fp16', 'fp8', 'fp8', 'fp8']

    Raises InputError and SpecError for names and values, LimitError for too many cells.
    """
    from dse.questions import best_map as module
    from dse.questions import common

    work = _workload(
        workload, asked, searched={"batch": "batches", "input_tokens": "inputs"}, own=best_map.__kwdefaults__
    )
    names = module.QUANTIZERS if quantizers is None else _list(quantizers)
    return module.best_map(
        [_design(device, model, name) for name in names],
        work,
        common.measure(measure),
        module.BATCHES if batches is None else batches,
        module.INPUTS if inputs is None else inputs,
    )


def operations(
    device: Device,
    model: Model,
    quantizers: Sequence[Quantizer] = ("fp16",),
    workload: Workload | None = None,
    **asked: Any,
) -> "pd.DataFrame":
    """The operations of a decode step under each quantizer, and where the roofline lets them run; a row each.

    >>> found = dse.operations("a100-80gb", "llama2-13b", ["fp16", "qserve"], batch=64)
    >>> found[found["operation"] == "attention"]["quantizer"].unique().tolist()
    ['fp16', 'qserve']

    Raises InputError and SpecError for names and values.
    """
    from dse.questions.operations import decode_step

    shape, kinds = _model(model), [_quantizer(name) for name in _list(quantizers)]
    plans = [kv_layout.build(shape, kind, kind) for kind in kinds]
    return decode_step(_device(device), plans, _workload(workload, asked))


def plot(source: Any, kind: str | None = None) -> Any:
    """The plotly figure of an answer or a front, or of a table with the `kind` that `dse plot` lists.

    >>> table = dse.grid("h100", "llama2-13b", ["fp16", "qserve"], batch=[16, 64, 256])
    >>> len(dse.plot(table, "throughput_batch").data) > 0
    True

    Raises InputError for a kind that is not known, a table that lacks its columns, and what has no figure.
    """
    if kind is None:
        from dse.figures.plot import answer

        return answer.figure(source)
    from dse.figures.drawing import to_plotly
    from dse.figures.plot import load

    return to_plotly.figure(load.of_table(kind, source))


def claims(prefix: str = "") -> "pd.DataFrame":
    """What the papers print beside what this tool computes: claims whose id begins with `prefix`, a row each.

    >>> dse.claims("text-attn-MHA-70b-4k")[["unit", "published", "ours", "verdict"]].values.tolist()
    [['GiB', '5.0', 10.0, 'erratum']]

    Raises InputError where no id begins so.
    """
    from dse.validate import claims as published

    return published.table(prefix)


def report_table(name: str, **options: Any) -> "pd.DataFrame":
    """One table of the report by its name, such as "results" or "roofline"; a wrong one is answered with all.

    `options` are those of `dse report`, as `report` takes them; by default the systems and models of the Oaken paper.

    >>> table = dse.report_table("results", devices=["lpu-hbm"], models=["llama2-13b"], batches=[16, 64])
    >>> table["system"].unique().tolist()
    ['LPU-HBM FP16']

    Raises InputError and SpecError for names and values, LimitError for too many points.
    """
    from dse.questions import tables
    from dse.report import throughput

    return tables.one(name, throughput.ask(**options))


def report(out: str, **options: Any) -> str:
    """Write the throughput-versus-capacity report into directory `out`; returns the path of its page.

    `options` are those of `dse report`: devices, models, quantizers, batches, input_tokens, output_tokens, preset.
    """
    from dse.report import throughput

    return throughput.write(out, **options)


def _device(given: Device) -> HardwareSpec:
    return given if isinstance(given, HardwareSpec) else device(given)


def _model(given: Model) -> ModelSpec:
    return given if isinstance(given, ModelSpec) else model(given)


def _quantizer(given: Quantizer) -> QuantizerSpec:
    return given if isinstance(given, QuantizerSpec) else quantizer(given)


def _plan(model: Model, keys: Quantizer, values: Quantizer) -> kv_layout.KvPlan:
    if isinstance(model, str) and model in catalog.model_files() and _is_fixed(keys) and _is_fixed(values):
        return _shipped_plan(model, keys, values)
    return kv_layout.build(_model(model), _quantizer(keys), _quantizer(values))


def _is_fixed(quantizer: Quantizer) -> TypeGuard[str]:
    """True for a name that no file can change."""
    return isinstance(quantizer, str) and not quantizer.strip().lower().startswith(layered.PREFIX)


@lru_cache(maxsize=256)
def _shipped_plan(model: str, keys: str, values: str) -> kv_layout.KvPlan:
    """A plan of names that mean the same all along, with what is computed of it."""
    return kv_layout.build(catalog.model(model), quantizer(keys), quantizer(values))


def _design(device: Device, model: Model, quantizer: Quantizer) -> "Design":
    from dse.questions.common import Design

    kind = _quantizer(quantizer)
    return Design(_device(device), kv_layout.build(_model(model), kind, kind))


def _workload(
    workload: Workload | None,
    asked: Mapping[str, Any],
    searched: Mapping[str, str] | None = None,
    own: Mapping[str, Any] | None = None,
) -> Workload:
    """The workload given, or one of the fields `asked`; a question gives fields that it searches by other names.

    `own` are arguments that a function takes beside fields: a wrong name may have meant one of them.
    """
    if workload is not None and asked:
        raise InputError(f"workload: cannot stand beside {show(next(iter(asked)))}: give one of both")
    known = Workload.__dataclass_fields__
    for name in asked:
        if searched and name in searched:
            raise InputError(f"{name}: is what the question searches: give {searched[name]}")
        if name not in known:
            raise InputError(f"unknown {show(name)}: {did_you_mean(name, [*known, *(own or {})])}")
    return workload or Workload(**asked)


def _list(values: Any) -> list[Any]:
    """Several values as they come, one as a list of it."""
    is_one = isinstance(values, str | HardwareSpec | ModelSpec) or not isinstance(values, Iterable)
    return [values] if is_one else list(values)
