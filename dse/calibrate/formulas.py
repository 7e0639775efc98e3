"""The calibrated formulas over whole tables, and the space in which their parameters are fitted."""

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.calibrate.solve import Floats, Space
from dse.calibrate.table import TIME, Table, elements
from dse.core import units
from dse.core.compiling import Formula, array, elementwise
from dse.core.errors import InputError
from dse.model.formulas import attention, calibrated
from dse.specs.device_and_model import HardwareSpec

MICROSECOND = units.to_base(1, "us")
#: from which KV size on a row counts as large
LARGE_BYTES = units.to_base(64, "MB")
#: what serving is made of: many sequences of some length, keys and values that no cache holds
SERVING_BATCH, SERVING_TOKENS, SERVING_UNITS = 8, 256, 64
#: rows of a matrix product in decoding: one a sequence
DECODE_ROWS = 256

#: what a parameter is one of in the space that is searched, in SI units; `memory`, `core`, `flops` and `cache` are
#: searched as their inverses, so that times are nearly linear in all of them
SCALES = {
    "launch": 1e-5,
    "split": 5e-6,
    "per_unit": 4e-6,
    "memory": 1.0,
    "core": 1 / 10e9,
    "copy": 5e-6,
    "cache": 1.0,
    "flops": 1.0,
}
ATTENTION_SPACE = Space(
    ("launch", "split", "per_unit", "memory", "core", "copy", "cache"),
    usual=np.array([1.0, 0.8, 0.9, 1.15, 0.0, 0.0, 0.5]),
    low=np.array([0.01, 0.0, 0.0, 1.0, 0.0, 0.0, 0.05]),
    high=np.array([100.0, 100.0, 100.0, 20.0, 50.0, 100.0, 1.0]),
)
GEMM_SPACE = Space(
    ("launch", "memory", "flops", "cache"),
    usual=np.array([0.5, 1.2, 1.3, 1.0]),
    low=np.array([0.01, 1.0, 1.0, 0.05]),
    high=np.array([100.0, 20.0, 20.0, 1.0]),
)


@dataclass(frozen=True)
class Problem:
    """Rows of a table as arguments of the formula, with the device's own numbers. `fixed` are the arguments but for
    parameters; `in_cache` marks rows whose data the last-level cache holds."""

    kind: str
    measured_s: Floats
    naive_s: Floats
    fixed: dict[str, Any]
    in_cache: NDArray[np.bool_]
    large: NDArray[np.bool_]
    serving: NDArray[np.bool_]

    @property
    def space(self) -> Space:
        """Names, usual values and bounds of the parameters."""
        return ATTENTION_SPACE if self.kind == "attention" else GEMM_SPACE

    def take(self, mask: NDArray[np.bool_]) -> "Problem":
        """The rows where `mask` is true."""
        fixed = {name: value[mask] if isinstance(value, np.ndarray) else value for name, value in self.fixed.items()}
        return Problem(
            self.kind,
            measured_s=self.measured_s[mask],
            naive_s=self.naive_s[mask],
            fixed=fixed,
            in_cache=self.in_cache[mask],
            large=self.large[mask],
            serving=self.serving[mask],
        )

    def terms(self, parameters: Floats, cached: bool = True) -> dict[str, Any]:
        """A point of the space as arguments of the formula; rows in the cache see a faster memory if `cached`."""
        raw = dict(zip(self.space.names, parameters, strict=True))
        value = {name: number * SCALES[name] for name, number in raw.items()}
        share: Any = 1 / value["memory"]
        if cached:
            share = np.where(self.in_cache, share / value["cache"], share)
        kernel_terms = {"launch_s": value["launch"], "memory_frac": share}
        if self.kind == "gemm":
            return {**kernel_terms, "flops_frac": 1 / value["flops"]}
        return {
            **kernel_terms,
            "split_s": value["split"],
            "copy_s": value["copy"],
            "unit_s": value["per_unit"],
            "core_rate_per_s": 1 / value["core"] if value["core"] > 0 else 0.0,
        }

    def predict(self, parameters: Floats, cached: bool = True) -> Floats:
        """Seconds of every row at a point of the space."""
        return predict_s(self.kind, self.fixed, self.terms(parameters, cached))


def predict_s(kind: str, fixed: dict[str, Any], terms: dict[str, Any]) -> Floats:
    """Seconds of every row: the one formula, over arrays."""
    formula: Formula[..., float] = calibrated.attention_layer_s if kind == "attention" else calibrated.gemm_s
    names = inspect.signature(formula).parameters
    both = {**fixed, **terms}
    seconds: Floats = array(formula)(*(np.asarray(both[name], dtype=float) for name in names))
    return seconds


def arguments(table: Table, device: HardwareSpec) -> dict[str, Any]:
    """Arguments of the formula that the table and the data sheet give, all but the fitted parameters."""
    if device.n_cores is None:
        raise InputError(f"device {device.name} has no n_cores: add the number of cores to its file")
    rates = {"bandwidth_bytes_per_s": device.memory_bandwidth.si, "peak_flops_per_s": device.peak_flops.si}
    column = table.columns
    if table.kind == "gemm":
        m, n, k = column["m"], column["n"], column["k"]
        sizes = {
            "flops": elementwise(calibrated.gemm_flops)(m, n, k),
            "n_bytes": elementwise(calibrated.gemm_bytes)(m, n, k),
        }
        return {**rates, "m_rows": m, **sizes}
    batch, queries, heads = column["batch"], column["n_q_heads"], column["n_kv_heads"]
    score_dim = 2 * column["head_dim"]
    per_token = elementwise(attention.attention_flops_per_token)(queries, score_dim)
    return {
        **rates,
        "n_cores": device.n_cores.si,
        "n_tokens": column["kv_len_tokens"],
        "n_units": batch * heads,
        "n_elements": elements(column),
        "kv_read_bytes": column["kv_bytes"],
        "io_bytes": elementwise(calibrated.attention_io_bytes)(batch, queries, score_dim),
        "flops": batch * column["kv_len_tokens"] * per_token,
        "n_copies": array(calibrated.layout_copies)(batch, queries, heads).astype(float),
    }


def problem(table: Table, device: HardwareSpec) -> Problem:
    """A timed table as rows to fit."""
    fixed = arguments(table, device)
    cache = device.l2_cache.si if device.l2_cache else 0.0
    is_gemm = table.kind == "gemm"
    moved = fixed["n_bytes"] if is_gemm else fixed["kv_read_bytes"]
    in_cache = moved <= cache
    naive = moved / device.memory_bandwidth.si
    if is_gemm:
        naive = np.maximum(naive, fixed["flops"] / device.peak_flops.si)
        decode = table.columns["m"] <= DECODE_ROWS
        large, serving = decode & (moved >= LARGE_BYTES), decode & ~in_cache
    else:
        large = moved >= LARGE_BYTES
        serving = (
            large
            & ~in_cache
            & (table.columns["batch"] >= SERVING_BATCH)
            & (table.columns["kv_len_tokens"] >= SERVING_TOKENS)
            & (fixed["n_units"] >= SERVING_UNITS)
        )
    return Problem(
        table.kind,
        measured_s=table.columns[TIME] * MICROSECOND,
        naive_s=naive,
        fixed=fixed,
        in_cache=in_cache,
        large=large,
        serving=serving,
    )
