"""Fit the times of collectives between devices to measured ones, and write them into a device file as `links`.

Tables of `aiconfigurator-core`: NCCL's all-reduce, all-gather, reduce-scatter and all-to-all, and the all-reduce that
each engine runs, on the devices of a node: 2, 4 and mostly 8. The form is in
docs/explanation/calibration.md, Collectives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.part import FittedPart
from dse.calibrate import blocks
from dse.calibrate.fit import HELD_OUT_ONE_IN, MAX_ERROR, WORTH, percent
from dse.calibrate.solve import Floats, Space, solve
from dse.calibrate.table import PACKAGE, newest, package_folder
from dse.calibrate.write import cited
from dse.core import units
from dse.core.compiling import array
from dse.core.errors import InputError
from dse.model.formulas.collectives import collective_s
from dse.specs import catalog
from dse.specs.collectives import LinkTerms, library_terms, with_custom
from dse.specs.links import COLLECTIVES, Collective

#: tables name what we call all_to_all without underscores
_NAMES: dict[Collective, str] = {"all_to_all": "alltoall"}
STACKS = ("vllm", "sglang", "trtllm")
#: tensors are of 16-bit elements, and tables count elements
ELEMENT_BYTES = 2
#: tensors that are fitted, and those whose errors are given: of decode steps, and of prompts
FITTED = (512, 2**30)
DECODE, PROMPT = (2**13, 2**21), (2**21 + 1, 2**29)
#: devices in a node of most measured systems, all of which were used
MEASURED_NODE_DEVICES = 8

_US = units.to_base(1, "us")
#: start and step in us, rates as the inverse of the link's share that they reach
LIBRARY_SPACE = Space(
    ("start", "step", "rate", "rate_growth", "chunk_share"),
    usual=np.array([6.0, 2.0, 1.5, 0.2, 0.5]),
    low=np.array([0.3, 0.0, 0.8, -4.0, 0.0]),
    high=np.array([200.0, 50.0, 20.0, 2.0, 5.0]),
)
#: an engine's own kernels use the link at least half as well as a library, or are not worth running
CUSTOM_SPACE = Space(
    ("start", "step", "direct_rate", "split_rate"),
    usual=np.array([4.0, 0.1, 1.7, 1.7]),
    low=np.array([0.3, 0.0, 0.8, 0.8]),
    high=np.array([200.0, 20.0, 5.0, 5.0]),
)


@dataclass(frozen=True)
class LinkRows:
    """Measured collectives of one kind: devices, bytes of the tensor, seconds; and who measured what."""

    n_devices: NDArray[np.int64]
    n_bytes: Floats
    measured_s: Floats
    source: str

    def take(self, mask: NDArray[np.bool_]) -> "LinkRows":
        """The rows where `mask` is true."""
        return LinkRows(self.n_devices[mask], self.n_bytes[mask], self.measured_s[mask], self.source)


@dataclass(frozen=True, kw_only=True)
class FittedLink(FittedPart):
    """One fitted table of `links`; errors by "all", "decode" and "prompt"."""

    #: the most devices of a row
    n_devices: int = MEASURED_NODE_DEVICES


def read(device: str) -> tuple[dict[Collective, LinkRows], dict[str, LinkRows]]:
    """NCCL's collectives, and each stack's all-reduce, from the newest tables of the installed package.

    NCCL was measured on the devices of a node. Rows of engines on more devices, so over several nodes, are left out.
    """
    folder = package_folder(device) / "comm"
    library = _frame(folder / "nccl", "nccl_perf.parquet")
    if library is None:
        raise InputError(f"{PACKAGE} has no table of collectives of {device}")
    library = library[library["nccl_dtype"] == "half"]
    collectives = {kind: _rows(library[library["op_name"] == _NAMES.get(kind, kind)], "NCCL") for kind in COLLECTIVES}
    node_devices = max(int(rows.n_devices.max()) for rows in collectives.values())
    stacks = {}
    for stack in STACKS:
        frame = _frame(folder / stack, "custom_allreduce_perf.parquet")
        if frame is not None:  # decoding runs as a graph; eager rows show the time of Python
            kernels = frame[~frame["kernel_source"].str.endswith("_eager") & (frame["num_gpus"] <= node_devices)]
            stacks[stack] = _rows(kernels, stack)
    return collectives, stacks


def _frame(folder: Path, name: str) -> Any:
    path = newest(folder, name)
    if path is None:
        return None
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be used: {error}: install {PACKAGE} 0.12.0") from error


def _rows(frame: Any, name: str) -> LinkRows:
    """Rows of one table, its sizes in elements and its times in milliseconds."""
    frame = frame.sort_values(["num_gpus", "message_size"])
    n_bytes = frame["message_size"].to_numpy(float) * ELEMENT_BYTES
    seconds = frame["latency"].to_numpy(float) * units.to_base(1, "ms")
    first = frame.iloc[0]
    source = ", ".join((cited(), str(first["device"]), f"{name} {first['version']}"))
    rows = LinkRows(frame["num_gpus"].to_numpy(int), n_bytes, seconds, source)
    return rows.take((n_bytes >= FITTED[0]) & (n_bytes <= FITTED[1]) & np.isfinite(seconds) & (seconds > 0))


def fit(device: str, link_bytes_per_s: float) -> list[FittedLink]:
    """Every collective of the package's tables of a device, and each stack's all-reduce where that improves on NCCL."""
    library, stacks = read(device)
    fits = [fit_library(kind, rows, link_bytes_per_s) for kind, rows in library.items()]
    custom = [fit_custom(stack, rows, fits[0].parameters, link_bytes_per_s) for stack, rows in stacks.items()]
    return [*fits, *(outcome for outcome in custom if outcome)]


def fit_library(kind: Collective, rows: LinkRows, link_bytes_per_s: float) -> FittedLink:
    """Parameters of a library's collective."""

    def parameters(point: Floats) -> dict[str, float]:
        start, step, slowness, growth, chunks = point
        return {
            "start": start * _US,
            "step": step * _US,
            "rate": link_bytes_per_s / slowness,
            "rate_growth": growth,
            "chunk_share": chunks,
        }

    def predict(point: Floats, rows: LinkRows) -> Floats:
        return predict_library(kind, parameters(point), rows)

    free = tuple(range(len(LIBRARY_SPACE.names)))
    return _outcome(kind, rows, LIBRARY_SPACE, free, parameters, predict)[0]


def fit_custom(stack: str, rows: LinkRows, library: dict[str, float], link_bytes_per_s: float) -> FittedLink | None:
    """Parameters of a stack's own all-reduce beside NCCL's; None where these rows are described as well without."""

    def parameters(point: Floats, with_split: bool) -> dict[str, float]:
        start, step, direct, split = point
        terms = {"start": start * _US, "step": step * _US, "direct_rate": link_bytes_per_s / direct}
        return {**terms, "split_rate": link_bytes_per_s / split} if with_split else terms

    def fitted(with_split: bool) -> tuple[FittedLink, float]:
        return _outcome(
            f"custom_all_reduce.{stack}",
            rows,
            CUSTOM_SPACE,
            (0, 1, 2, 3) if with_split else (0, 1, 2),
            lambda point: parameters(point, with_split),
            lambda point, rows: predict_custom(parameters(point, with_split), library, rows),
        )

    without = _loss(predict_library("all_reduce", library, rows), rows)
    single, one_loss = fitted(False)
    two, two_loss = fitted(True)
    best, loss = (two, two_loss) if two_loss < (1 - WORTH) * one_loss else (single, one_loss)
    return best if loss < (1 - WORTH) * without else None


def predict_library(kind: Collective, parameters: dict[str, float], rows: LinkRows) -> Floats:
    """Seconds of every row by a library's collective."""
    return _predict([_library(kind, parameters, n) for n in rows.n_devices.tolist()], rows)


def predict_custom(parameters: dict[str, float], library: dict[str, float], rows: LinkRows) -> Floats:
    """Seconds of every row's all-reduce by the faster of a stack's own kernels and the library."""
    p = parameters
    return _predict(
        [
            with_custom(
                _library("all_reduce", library, n), n, p["start"], p["step"], p["direct_rate"], p.get("split_rate", 0.0)
            )
            for n in rows.n_devices.tolist()
        ],
        rows,
    )


def _library(kind: Collective, p: dict[str, float], n_devices: int) -> LinkTerms:
    return library_terms(kind, n_devices, p["start"], p["step"], p["rate"], p["rate_growth"], p["chunk_share"])


def _predict(terms: list[LinkTerms], rows: LinkRows) -> Floats:
    columns = np.array([term[:6] for term in terms], dtype=float).T
    seconds: Floats = array(collective_s)(rows.n_bytes, *columns)
    return seconds


def _loss(predicted: Floats, rows: LinkRows) -> float:
    """Mean absolute log error."""
    return float(np.abs(np.log(predicted / rows.measured_s)).mean())


def _outcome(
    part: str,
    rows: LinkRows,
    space: Space,
    free: tuple[int, ...],
    parameters: Callable[[Floats], dict[str, float]],
    predict: Callable[[Floats, LinkRows], Floats],
) -> tuple[FittedLink, float]:
    """The fit to all rows, with errors on every fifth row by fits to the others; and its loss."""
    fold = np.arange(len(rows.n_bytes)) % HELD_OUT_ONE_IN
    off = np.empty(len(fold))
    for held in range(HELD_OUT_ONE_IN):
        point = _best(rows.take(fold != held), space, free, predict)
        unseen = rows.take(fold == held)
        off[fold == held] = np.abs(predict(point, unseen) / unseen.measured_s - 1)
    point = _best(rows, space, free, predict)
    errors = {
        name: {"mean": float(in_class.mean()), "p90": float(np.quantile(in_class, 0.9)), "rows": len(in_class)}
        for name, (low, high) in {"all": (DECODE[0], PROMPT[1]), "decode": DECODE, "prompt": PROMPT}.items()
        if len(in_class := off[(rows.n_bytes >= low) & (rows.n_bytes <= high)])
    }
    rounded = {name: float(f"{value:.4g}") for name, value in parameters(point).items()}
    most = int(rows.n_devices.max())
    fitted_link = FittedLink(
        part=part, parameters=rounded, n_points=len(fold), errors=errors, source=rows.source, n_devices=most
    )
    return fitted_link, _loss(predict(point, rows), rows)


def _best(rows: LinkRows, space: Space, free: tuple[int, ...], predict: Callable[[Floats, LinkRows], Floats]) -> Floats:
    """The best point from three starts."""
    starts = [space.usual * np.resize(factors, len(space.usual)) for factors in ((1.0,), (0.5, 1.0, 2.0), (2.0, 0.5))]
    weights = np.ones(len(rows.n_bytes))
    tried = [
        solve(lambda point: predict(point, rows), rows.measured_s, weights, space, start, free) for start in starts
    ]
    return min(tried, key=lambda attempt: attempt[1])[0]


_UNITS = {"rate_growth": "1", "chunk_share": "1", "rate": "GB/s", "direct_rate": "GB/s", "split_rate": "GB/s"}


def fitted(outcome: FittedLink) -> dict[str, Any]:
    """One part as its block in a device file."""
    error = outcome.errors
    errors = {"held_out_error": error["all"]["mean"]}
    for size in ("decode", "prompt"):
        errors |= {f"{size}_error": error[size]["mean"], f"{size}_p90": error[size]["p90"]}
    rows = (
        f"{outcome.n_points} rows, mean error on rows not fitted {percent(error['decode']['mean'])} (8 KiB to 2 MiB), "
        f"{percent(error['prompt']['mean'])} (to 512 MiB)"
    )
    return blocks.block(
        outcome.parameters, _UNITS, fitted_on=outcome.source, rows=rows, n_points=outcome.n_points, errors=errors
    )


def with_links(data: dict[str, Any], outcomes: list[FittedLink]) -> dict[str, Any]:
    """The device's data with the trusted fits as `links`; what stands there of nodes is kept."""
    node = {
        "value": max((outcome.n_devices for outcome in outcomes), default=MEASURED_NODE_DEVICES),
        "unit": "device",
        "kind": "derived",
        "source": "the most devices whose collectives were measured",
    }
    old = data.get("links", {})
    links: dict[str, Any] = {"node_devices": old.get("node_devices", node)}
    if "inter_node_bandwidth" in old:
        links["inter_node_bandwidth"] = old["inter_node_bandwidth"]
    for outcome in outcomes:
        if not outcome.trusted:
            continue
        place, _, stack = outcome.part.partition(".")
        links[place] = {**links.get(place, {}), stack: fitted(outcome)} if stack else fitted(outcome)
    return {**data, "links": links}


def run(source: str, out: str, *, device: str, **_: Any) -> dict[str, Any]:
    """Fit the collectives of the package to the device's form and write a device file with them."""
    if source != PACKAGE:
        raise InputError(f"{source}: collectives are read from {PACKAGE} only: give its name")
    blocks.check_out(out)
    measured = catalog.device(device)
    if measured.link_bandwidth is None:
        raise InputError(f"device {measured.name} has no link_bandwidth: add it to its file")
    outcomes = fit(measured.name, measured.link_bandwidth.si)
    blocks.write_device(with_links(blocks.device_data(device), outcomes), out)
    return {"device": measured.name, "table": source, "out": out, "parts": [outcome.as_dict() for outcome in outcomes]}


def text(found: dict[str, Any]) -> str:
    """The report of `dse calibrate --kernel links`."""
    lines = [f"{found['device']}  collectives  from {found['table']}"]
    for part in found["parts"]:
        lines += ["", f"{part['part']}: {part['n_points']} rows fitted, each held out once"]
        for name, value in part["parameters"].items():
            base = units.base_of(_UNITS.get(name, "us"))
            lines.append(f"  {name:<14}{units.human(value, base)}")
        lines.append(f"  {'error on rows held out':<28}{'mean':>8}{'p90':>8}{'rows':>8}")
        for size, error in part["errors"].items():
            shares = "".join(f"{percent(error[key]):>8}" for key in ("mean", "p90"))
            lines.append(f"    {_SIZES[size]:<26}{shares}{error['rows']:>8}")
        if not part["trusted"]:
            lines.append(f"  not trusted, not written: mean error above {percent(MAX_ERROR)}")
    return "\n".join([*lines, "", f"written: {found['out']}"])


_SIZES = {"all": "8 KiB to 512 MiB", "decode": "8 KiB to 2 MiB", "prompt": "2 MiB to 512 MiB"}
