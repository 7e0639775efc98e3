"""The functions of `import dse`: what a script or notebook needs for common work, with names instead of objects.

Devices, models and quantizers are names or files as the command line takes them, or what the first three functions
return. Times are in seconds, sizes in bytes: every result with its unit is in `dse.results`. An operation that
names its function has it here, made from its declaration (`dse.operations`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.core import errors, units
from dse.core.answer import Answer
from dse.core.errors import InputError, LimitError, did_you_mean, show
from dse.model.results import RESULTS
from dse.operations import every
from dse.operations.face import function_of, signature_of_many, signature_with
from dse.operations.shared import Device, Model, Quantizer, hardware, language_model, quantizer_spec, several
from dse.report.design import DesignResults
from dse.specs.look import Look
from dse.specs.workload import ASKED, Workload

if TYPE_CHECKING:
    import pandas as pd

    from dse.quantizers import QuantizerSpec
    from dse.specs.device_and_model import HardwareSpec, ModelSpec

__all__ = ["DesignResults", "Workload", "device", "errors", "grid", "model", "plot", "quantizer", "results", "units"]

#: every result of `evaluate` and column of `sweep`: unit, words, what it reads
results = RESULTS

#: the functions of operations, `evaluate` and `crossover` among them
_FUNCTIONS = {cls.function: function_of(cls) for cls in every() if cls.function}
globals().update(_FUNCTIONS)
__all__ += sorted(_FUNCTIONS)


def device(name: str | Path) -> HardwareSpec:
    """A device by its name (`dse list devices`), or from a TOML file; numbers change on the spot.

    Printed, it is its main numbers; each is a quantity with its source, `.si` in base units: `memory_capacity`,
    `memory_bandwidth`, `peak_flops`, `board_power`, ... (`dse show h100` lists all). `stacks` are the software stacks
    whose kernels were measured on it. All functions take what this one returns in place of a name.

    >>> dse.device("h100").memory_bandwidth.si
    3350000000000.0
    >>> dse.device("h100:memory_bandwidth=4 TB/s").memory_bandwidth.si
    4000000000000.0

    Raises InputError for a name that is not known, SpecError for a file that is not right.
    """
    return hardware(name)


def model(name: str | Path) -> ModelSpec:
    """A language model by its name (`dse list models`), or from a `config.json` or TOML file.

    Printed, it is its size and shape; counts are attributes: `parameters`, `active_parameters` (of a token),
    `n_layers`, `hidden_size`, `n_q_heads`, `vocab_size`, `max_position_tokens`, and by run of equal `layers`
    `n_kv_heads`, `key_dim`, `value_dim`, `window` (`dse show llama3.1-8b` lists all, with sources). `released` is the
    format of its weights. All functions take what this one returns in place of a name.

    >>> print(dse.model("llama3.1-8b"))
    llama3.1-8b (Llama 3.1 8B)
      8,030,261,248 parameters, 131,072 positions
      32 layers of 4,096 channels, 32 query heads, 8 KV heads (key 128, value 128)
      weights as released: bf16; source: model file
    >>> dse.model("llama3.1-8b").layers[0].n_kv_heads
    8

    Raises InputError for a name that is not known, with the nearest, SpecError for a file that is not right.
    """
    return language_model(name)


def quantizer(name: str, measurements: str | Path | None = None) -> QuantizerSpec:
    """A KV quantizer by its name with options (`dse list quantizers`), with its errors on the shipped sample.

    `measurements` is a file of `dse measure` or `dse quantize`, whose data then stand for the sample.

    >>> dse.quantizer("kivi:bits=2").name
    'kivi'
    >>> dse.quantizer("kivi:bits=4,group=64").name
    'kivi:bits=4,group=64'

    Raises InputError with what is allowed.
    """
    from dse.specs.measurements import bits_from

    return bits_from("closed", None if measurements is None else str(measurements)).quantizer(name)


def grid(
    device: Device | Iterable[Device],
    model: Model | Iterable[Model],
    quantizer: Quantizer | Iterable[Quantizer] = "fp16",
    **asked: Any,
) -> pd.DataFrame:
    """All results of several designs, a row each: as `evaluate`, with a list wherever more than one is meant.

    Every combination is a row, the last list varies fastest. Designs that do not fit stay, with their reason.
    `sweep` is for millions of designs, a few columns each.

    >>> table = dse.grid(["a100-80gb", "h100"], "llama2-13b", ["fp16", "qserve"], batch=[16, 256])
    >>> table.groupby("device")["max_batch"].max().to_dict()
    {'A100-80GB': 114, 'H100': 112}

    Raises InputError and SpecError for names and values, LimitError for more than a million designs.
    """
    from dse.model import kv_layout
    from dse.model.engine import evaluate
    from dse.model.point import Point
    from dse.sweep import sweeps

    axes = [several(values) for values in (device, model, quantizer, *asked.values())]
    if (n_points := math.prod(map(len, axes))) > sweeps.MAX_POINTS:
        raise LimitError(f"grid of {n_points:,} designs: at most {sweeps.MAX_POINTS:,} fit in one table: see dse.sweep")
    devices, models, quantizers, *fields = axes
    for name in asked:
        if name not in ASKED:
            raise InputError(f"unknown {show(name)}: {did_you_mean(name, ASKED)}")
    works = [Workload(**dict(zip(asked, values, strict=True))) for values in itertools.product(*fields)]
    specs, kinds = [hardware(d) for d in devices], [quantizer_spec(q) for q in quantizers]
    plans = [[kv_layout.build(shape, kind, kind) for kind in kinds] for shape in map(language_model, models)]
    return sweeps.to_table(
        evaluate(Point(spec, plan, work), n_points=n_points)
        for spec in specs
        for model_plans in plans
        for plan in model_plans
        for work in works
    )


grid.__signature__ = signature_of_many(grid)  # type: ignore[attr-defined]


def plot(
    source: Any,
    kind: str | None = None,
    out: str | Path | None = None,
    *,
    only: Mapping[str, Any] | None = None,
    **look: Any,
) -> Any:
    """The plotly figure of an answer or a front, or of a table with the `kind` that `dse plot` lists; with `out` a file
    too: .pdf, .svg, .png, .html, .csv (the rows behind it) or .parquet.

    What a sweep, or its table, holds fixed or did not keep is computed: any of them has every figure of designs.
    `only` chooses rows by column, a value or several: `only={"quantizer": "fp16", "batch": [16, 64]}`. The other
    keywords are the options of `dse plot`: `preset` is "paper" (85 mm wide), "paper-wide", "slide" or "report".

    >>> table = dse.grid("h100", "llama2-13b", ["fp16", "qserve"], batch=[16, 64, 256])
    >>> len(dse.plot(table, "throughput_batch").data) > 0
    True
    >>> figure = dse.plot(table, "throughput_batch", out="f.pdf", preset="paper", only={"batch": [64, 256]})

    Raises InputError for a kind that is not known, then for an option, a table that lacks the kind's columns, and what
    has no figure; LimitError for a page that is too small, OutputError for a file that cannot be written.
    """
    from dse.figures.export import call

    return call.plot(source, kind, None if out is None else str(out), only or {}, look)


plot.__signature__ = signature_with(plot, Look)  # type: ignore[attr-defined]
Answer.plot = plot
