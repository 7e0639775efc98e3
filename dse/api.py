"""The functions of `import dse`: what a script or notebook needs for common work, with names instead of objects.

Devices, models and quantizers are names or files as the command line takes them, or what the first three functions
return. Times are in seconds, sizes in bytes: every result with its unit is in `dse.results`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.core.errors import InputError, did_you_mean, show
from dse.model import evaluate as design_point
from dse.model import kv_layout
from dse.model.results import RESULTS
from dse.quantizers import QuantizerSpec, parse
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

    from dse.sweep.pareto.designs import DesignFront
    from dse.sweep.run import Stored

__all__ = ["Workload", "device", "evaluate", "front", "model", "quantizer", "report", "results", "sweep"]

#: every result of `evaluate` and column of `sweep`: unit, words, what it reads
results = RESULTS


def device(name: str) -> HardwareSpec:
    """A shipped device, or one from a TOML file; numbers change on the spot.

    >>> dse.device("h100").memory_bandwidth.si
    3350000000000.0
    >>> dse.device("h100:memory_bandwidth=4 TB/s").memory_bandwidth.si
    4000000000000.0

    Raises InputError for a name that is not known, SpecError for a file that is not right.
    """
    return catalog.device(name)


def model(name: str) -> ModelSpec:
    """A shipped language model, or one from a `config.json` or TOML file.

    >>> dse.model("llama2-13b").parameters
    13015864320

    Raises InputError for a name that is not known, SpecError for a file that is not right.
    """
    return catalog.model(name)


def quantizer(name: str) -> QuantizerSpec:
    """A KV quantizer with its options.

    >>> dse.quantizer("kivi:bits=2").name
    'kivi'
    >>> dse.quantizer("kivi:bits=4,group=64").name
    'kivi:bits=4,group=64'

    Raises InputError with what is allowed.
    """
    return parse(name)


def evaluate(
    device: str | HardwareSpec,
    model: str | ModelSpec,
    quantizer: str | QuantizerSpec = "fp16",
    workload: Workload | None = None,
    *,
    value_quantizer: str | QuantizerSpec | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """All results of one design: memory, what fits, times, throughput, energy, cost; None for what there is not.

    `asked` are fields of `Workload`, in place of one.

    >>> found = dse.evaluate("a100-80gb", "llama2-13b", "qserve", batch=128, admission="paged")
    >>> found["max_batch"], round(found["throughput_tokens_per_s"])
    (160, 1497)

    Raises InputError and SpecError for names and values, LimitError beyond what can be counted.
    """
    if workload is not None and asked:
        raise InputError(f"workload: cannot stand beside {show(next(iter(asked)))}: give one of both")
    unknown = [name for name in asked if name not in Workload.__dataclass_fields__]
    if unknown:
        raise InputError(f"unknown {show(unknown[0])}: {did_you_mean(unknown[0], Workload.__dataclass_fields__)}")
    spec = catalog.device(device) if isinstance(device, str) else device
    shape = catalog.model(model) if isinstance(model, str) else model
    keys = parse(quantizer) if isinstance(quantizer, str) else quantizer
    values = value_quantizer or keys
    values = parse(values) if isinstance(values, str) else values
    return design_point.evaluate(spec, kv_layout.build(shape, keys, values), workload or Workload(**asked))


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
    designs: "pd.DataFrame | str | Path",
    maximize: Sequence[str] = (),
    minimize: Sequence[str] = (),
    by: Sequence[str] = (),
    at_most: Sequence[str] = (),
    at_least: Sequence[str] = (),
) -> "DesignFront":
    """The designs that no other beats, of a table, a file, or the directory of a sweep; its `table` has them.

    `at_most` and `at_least` are limits such as `["decode_step_s=0.05"]` in base units; `by` makes a front for each
    value of a column.

    >>> table = dse.sweep({"device": ["a100-80gb", "h100"], "model": "llama2-13b", "batch": [16, 64]})
    >>> dse.front(table, maximize=["throughput_tokens_per_s"]).table["device"].tolist()
    ['H100']

    Raises InputError for columns that are not there or not numbers.
    """
    from dse.sweep import pareto
    from dse.sweep.pareto import designs as of
    from dse.sweep.pareto import limits

    objectives, within = pareto.objectives_of(maximize, minimize), limits.parse(at_most, at_least)
    if isinstance(designs, str | Path):
        return of.of_file(designs, objectives, by, limits=within)
    return of.of_table(designs, objectives, by, limits=within)


def report(out: str, **options: Any) -> str:
    """Write the throughput-versus-capacity report into directory `out`; returns the path of its page.

    `options` are those of `dse report`: devices, models, quantizers, batches, input_tokens, output_tokens.
    """
    from dse.report import throughput

    return throughput.write(out, **options)
