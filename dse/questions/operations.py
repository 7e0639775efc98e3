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
    "assumptions",
)
#: operations of a decode step that multiply and read; quantizing does not multiply, attention without a cache does not
#: read: neither has a place under a roofline
_SUM = "all"


def decode_step(device: HardwareSpec, plans: Sequence[KvPlan], work: Workload) -> pd.DataFrame:
    """Operations of the mean decode step of the running batch, for each plan at peak rates, and calibrated where the
    workload asks for it and the device has fitted kernels.

    A row an operation: seconds, FLOP and bytes of a step, attention with the dequantizing that does not hide behind it;
    intensity in FLOP/B; FLOP/s reached while it runs, and that its roof allows at that intensity; the numbers that make
    the roof: its peak FLOP/s and bandwidth. No operation is above its roof. A plan of which nothing fits has no rows.
    Raises InputError, LimitError.
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


def _row(device: HardwareSpec, result: dict[str, Any], kind: str, op: dict[str, Any]) -> dict[str, Any]:
    is_attention = op["name"] == "attention"
    bandwidth = (device.kv_bandwidth if is_attention else device.memory_bandwidth).si
    busy_s, exposed_s = (result[name] or 0.0 if is_attention else 0.0 for name in ("dequantize_busy_s", "dequantize_s"))
    allowed_s = max(op["compute_at_peak_s"], attention.time_at_rate(op["n_bytes"], bandwidth))
    # products that are read behind others have a share of the time of all, at times less than one alone takes
    seconds = max(op["seconds"] + exposed_s, allowed_s, busy_s)
    return {
        **{name: result[name] for name in ("device", "model", "quantizer")},
        "model_kind": kind,
        "stack": result["stack"],
        "operation": op["name"],
        "batch": result["running_batch"],
        "seconds": seconds,
        "flops": op["flops"],
        "n_bytes": op["n_bytes"],
        "intensity_flops_per_byte": linear.arithmetic_intensity(op["flops"], op["n_bytes"]),
        "flops_per_s": op["flops"] / seconds,
        "ceiling_flops_per_s": op["flops"] / allowed_s,
        "peak_flops_per_s": op["flops"] / op["compute_at_peak_s"],
        "bandwidth_bytes_per_s": bandwidth,
        "assumptions": ", ".join(_assumed(result)),
    }


def _assumed(result: dict[str, Any]) -> list[str]:
    """The assumed numbers that times of a decode step rest on: none of energy or price."""
    names = result["assumptions"]
    behind = {name for part in ("linear_s", "attention_s") for name in assumed_behind(part, names, result)}
    return [name for name in names if name in behind]
