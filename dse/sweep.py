"""Many design points at once: a grid of devices, models, quantizers and workloads as one table."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

import pandas as pd

from dse import catalog, plan, point
from dse.errors import LimitError
from dse.measurements import CLOSED, Bits
from dse.specs import HardwareSpec
from dse.workload import Workload

#: points of one in-memory table; about 0.2 ms and 1 kB each
MAX_POINTS = 1_000_000


def grid(
    devices: Sequence[str | HardwareSpec],
    models: Sequence[str],
    quantizer_names: Sequence[str],
    batches: Sequence[int],
    input_tokens: Sequence[int] | None = None,
    output_tokens: Sequence[int] | None = None,
    base: Workload | None = None,
    max_points: int = MAX_POINTS,
    bits: Bits = CLOSED,
) -> pd.DataFrame:
    """Every combination of the axes as a row with the columns of `dse.point.RESULT_UNITS`.

    Rows are in the order of the axes, the last axis fastest. Points that do not fit stay, with their reason.
    A device is a name or a spec: `device.model_copy(update={"name": ..., "kv_page": ...})` varies any field.
    `base` gives what the axes do not (lengths, admission, weights' bits, ...), `bits` says where the bits come from.
    Raises LimitError above `max_points`, and InputError for unknown names or values outside their range.
    """
    base = base or Workload()
    input_tokens = (base.input_tokens,) if input_tokens is None else input_tokens
    output_tokens = (base.output_tokens,) if output_tokens is None else output_tokens
    axes = (devices, models, quantizer_names, batches, input_tokens, output_tokens)
    n_points = 1
    for axis in axes:
        n_points *= len(axis)
    if n_points > max_points:
        raise LimitError(f"grid of {n_points:,} points: at most {max_points:,} fit in one table: pass max_points")
    rows = []
    for device_name, model_name, quantizer_name in product(devices, models, quantizer_names):
        device = catalog.device(device_name) if isinstance(device_name, str) else device_name
        quantizer = bits.quantizer(quantizer_name)
        kv = plan.build(catalog.model(model_name), quantizer, quantizer)
        for batch, n_in, n_out in product(batches, input_tokens, output_tokens):
            work = replace(base, batch=batch, input_tokens=n_in, output_tokens=n_out)
            rows.append(point.evaluate(device, kv, work))
    return to_table(rows)


def to_table(rows: Iterable[dict[str, object]]) -> pd.DataFrame:
    """Results as a DataFrame with the documented columns and types, whatever the rows hold."""
    table = pd.DataFrame(list(rows), columns=list(point.RESULT_UNITS))
    for name, unit in point.RESULT_UNITS.items():
        if name == "assumptions":
            table[name] = [", ".join(names) for names in table[name]]
        elif name in ("feasible", "fits_whole_batch"):
            table[name] = table[name].astype(bool)
        elif name in INTEGERS:
            table[name] = table[name].astype("Int64")
        elif unit:
            table[name] = table[name].astype("float64")
        else:
            table[name] = table[name].astype("string")
    return table


#: columns of whole numbers (missing where nothing fits or nothing limits)
INTEGERS = frozenset({
    "batch", "input_tokens", "output_tokens", "page_tokens", "prefix_tokens", "weights_bits", "kv_bytes",
    "peak_kv_bytes_per_sequence", "weight_bytes", "activation_bytes", "workspace_bytes", "capacity_bytes",
    "free_bytes", "min_capacity_bytes", "max_batch", "max_context_tokens", "running_batch", "n_waves", "busy_cores",
})  # fmt: skip
