"""The operations of one decode step as points under a device's roofline, at peak rates and as kernels reach them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from dse.model import engine
from dse.model.formulas import attention, linear
from dse.model.kv_layout import KvPlan
from dse.model.point import Point, filled
from dse.model.results import assumed_behind
from dse.model.stacks import stack_of
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import Workload

COLUMNS = (
    "device",
    "model",
    "quantizer",
    "model_kind",
    "stack",
    "operation",
    "batch",
    "seconds",
    "flops",
    "n_bytes",
    "intensity_flops_per_byte",
    "flops_per_s",
    "ceiling_flops_per_s",
    "peak_flops_per_s",
    "bandwidth_bytes_per_s",
    "dequantize_bytes_per_s",
    "assumptions",
)
#: operations of a decode step that multiply and read; quantizing does not multiply, attention without a cache does not
#: read: neither has a place under a roofline
_SUM = "all"


def decode_step(device: HardwareSpec, plans: Sequence[KvPlan], work: Workload) -> pd.DataFrame:
    """Operations of the mean decode step of the running batch, for each plan at peak rates, and calibrated where the
    workload asks for it and the device has fitted kernels.

    A row an operation: seconds, FLOP and bytes of a step; intensity in FLOP/B; FLOP/s reached while it runs; FLOP/s
    that the roofline allows at that intensity (of an 8-bit product, 16-bit peak: it may be exceeded), and the two
    numbers that make the roofline; of attention also the bytes a second that are dequantized, a ceiling of its own
    where it is below the bandwidth (None where nothing is). A plan of which nothing fits has no rows. Raises
    InputError, LimitError.
    """
    rows: list[dict[str, Any]] = []
    is_measured = stack_of(device, work)[1] is not None
    for kind in ("ideal", "calibrated")[: 1 + is_measured]:
        for plan in plans:
            kind_work = work
            if kind == "ideal":  # of as many requests as the stack runs, where it is beside its kernels
                batch = filled(device, plan, work).batch if is_measured else work.batch
                kind_work = replace(work, model_kind="ideal", stack=None, batch=batch)
            result = engine.evaluate(Point(device, plan, kind_work))
            for op in Point(device, plan, kind_work).operations():
                if op["phase"] == "decode" and op["name"] != _SUM and op["flops"] and op["n_bytes"] and op["seconds"]:
                    rows.append(_row(device, result, kind, op))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def ridge(device: HardwareSpec) -> float:
    """Intensity in FLOP/B at which reading and multiplying take the same time (of 16-bit products)."""
    return linear.arithmetic_intensity(device.peak_flops.si, device.memory_bandwidth.si)  # type: ignore[no-any-return]


def _row(device: HardwareSpec, result: dict[str, Any], kind: str, op: dict[str, Any]) -> dict[str, Any]:
    intensity = linear.arithmetic_intensity(op["flops"], op["n_bytes"])
    allowed_s = attention.attention_s(op["flops"], op["n_bytes"], device.peak_flops.si, device.memory_bandwidth.si)
    return {
        **{name: result[name] for name in ("device", "model", "quantizer")},
        "model_kind": kind,
        "stack": result["stack"],
        "operation": op["name"],
        "batch": result["running_batch"],
        "seconds": op["seconds"],
        "flops": op["flops"],
        "n_bytes": op["n_bytes"],
        "intensity_flops_per_byte": intensity,
        "flops_per_s": op["flops"] / op["seconds"],
        "ceiling_flops_per_s": op["flops"] / allowed_s,
        "peak_flops_per_s": device.peak_flops.si,
        "bandwidth_bytes_per_s": device.memory_bandwidth.si,
        "dequantize_bytes_per_s": _dequantized(result, op),
        "assumptions": ", ".join(_assumed(result)),
    }


def _dequantized(result: dict[str, Any], op: dict[str, Any]) -> float | None:
    """Bytes of keys and values that a second of dequantizing takes; None for other operations, and where none is."""
    busy_s = result["dequantize_busy_s"]
    return op["n_bytes"] / busy_s if op["name"] == "attention" and busy_s else None


def _assumed(result: dict[str, Any]) -> list[str]:
    """The assumed numbers that times of a decode step rest on: none of energy or price."""
    names = result["assumptions"]
    behind = {name for part in ("linear_s", "attention_s") for name in assumed_behind(part, names, result)}
    return [name for name in names if name in behind]
