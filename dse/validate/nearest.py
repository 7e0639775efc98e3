"""The measurements nearest to a design: kernels of its device and stack, servers of its model, device, stack, size.

Rows of measurements do not ship, their errors do: dse/data/silicon.csv of kernels, dse/data/serving.csv of servers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dse import data
from dse.model.stacks import stack_of
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.workload import Workload
from dse.validate import silicon

#: devices as the table of servers calls them
SYSTEMS = {"H100": "h100_sxm", "H200": "h200_sxm", "B200": "b200_sxm"}
#: parts of kernels in words
_PARTS = {
    "attention": "decode attention, 16-bit keys and values",
    "gemm": "products with weights",
    "kv.fp8": "decode attention, FP8 keys and values",
}


@dataclass(frozen=True)
class NearestMeasurement:
    """Errors on rows that were measured: shares, of kernel times or of times per output token."""

    what: str
    near: str
    n_rows: int | None
    mean: float
    p90: float | None
    #: share of the rows inside their 80 % intervals; None for kernels
    inside: float | None = None


@cache
def _servers() -> tuple[Mapping[str, str], ...]:
    return data.rows("serving.csv")


def nearest(device: HardwareSpec, model: ModelSpec, work: Workload) -> tuple[str, list[NearestMeasurement]]:
    """A sentence on how the design's times are known, and what was measured nearest to it, the nearest first.

    Kernel errors are those on rows that no fit saw; servers' are of the shipped fit, and of one that did not see the
    model. Raises InputError for a stack that the device has not.
    """
    name, stack = stack_of(device, work)
    measurements: list[NearestMeasurement] = []
    if stack is not None:
        rows = [row for row in silicon.recorded_rows() if row.stack == name and row.device == device.name]
        measurements += [
            NearestMeasurement(
                what=f"kernels: {_PARTS.get(row.part, row.part)}",
                near=f"{device.name}, {name}",
                n_rows=row.rows,
                mean=row.mean,
                p90=row.p90,
            )
            for row in rows
            if row.size_class == "like serving"
        ]
    measurements += _of_servers(device, model, work, name)
    return _sentence(device, model, name, stack, measurements), measurements


def _of_servers(device: HardwareSpec, model: ModelSpec, work: Workload, stack: str | None) -> list[NearestMeasurement]:
    kind = "mixture" if model.n_experts > 1 else "dense"
    wanted = [
        ("model", model.name, "same model"),
        ("model left out", model.name, "same model, by a fit that saw none of it"),
        ("system", SYSTEMS.get(device.name, ""), "same device"),
        ("stack", (stack or "").partition("@")[0], "same stack"),
        ("n_devices", str(work.n_devices), "as many devices"),
        ("kind", kind, f"{kind} models"),
        ("model left out", kind, f"{kind} models, each by a fit that saw none of it"),
    ]
    rows = {(row["by"], row["group"]): row for row in _servers()}
    return [
        NearestMeasurement(
            what="servers: time per output token",
            near=near,
            n_rows=int(row["rows"]),
            mean=float(row["tpot_mean"]),
            p90=float(row["tpot_p90"]),
            inside=float(row["tpot_inside"]),
        )
        for by, group, near in wanted
        if (row := rows.get((by, group))) is not None
    ]


def _sentence(
    device: HardwareSpec, model: ModelSpec, name: str | None, stack: Any, measurements: list[NearestMeasurement]
) -> str:
    if stack is None:
        return f"Nobody measured kernels of {device.title or device.name} here: times are what its data sheet allows."
    kernels = [m for m in measurements if m.what.startswith("kernels")]
    text = f"Kernels of {name} on {device.name}"
    if kernels:
        worst = max(kernels, key=lambda m: m.mean)
        text += f" err by up to {worst.mean:.0%} in the mean on rows that no fit saw, at sizes like serving"
    else:
        text += " were not measured: those of the nearest device stand in, with wider intervals"
    same = any(m.near == "same model" for m in measurements)
    return f"{text}. Servers of {model.name} were {'measured too' if same else 'not measured: the nearest are below'}."
