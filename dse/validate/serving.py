"""Whole measured servers beside our predictions: errors by model, system, stack and tp, and how many intervals hold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dse.calibrate.servers import ServerRow, is_suspect, read
from dse.core import units
from dse.core.columns import aligned, cells, csv_text, percent
from dse.core.documents import json_text
from dse.core.errors import DseError, InputError
from dse.core.progress import Progress, each
from dse.model import disaggregated, engine
from dse.model.disaggregated import Servers
from dse.model.engine import roomy
from dse.model.formulas.steady import closed_loop_tokens_per_s
from dse.model.point import Point
from dse.specs import catalog, device_names
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.engines import ENGINES
from dse.specs.releases import dates
from dse.specs.workload import Workload
from dse.validate.measured import GROUP, errors_by_group, joined, marks, p90, slip, statistic

#: columns of predictions.csv
COLUMNS = ("id", "tpot_ms", "tpot_low", "tpot_high", "ttft_ms", "ttft_low", "ttft_high", "reason", "marks")
#: assumptions that a prediction is marked with: what was measured on none of its stack, release, format or links
MARKED = (
    "stacks_of",
    "nearest_kernels",
    "sparse_prompts",
    "nearest_format",
    "nearest_release",
    "eight_bit_kernels",
    "exchanges",
)
#: columns of measured times, and their fields of a row and of what was judged
_TIMES = {"silicon_tpot_ms": "tpot_s", "silicon_ttft_ms": "ttft_s"}
#: what rows are grouped by in errors.csv
GROUPS = ("kind", "model", "system", "stack", "release", "n_devices")
#: how far the lengths of a measured server may be from those asked for
LENGTH_SHARE = 0.15
_MS = units.to_base(1, "ms")


@dataclass(frozen=True)
class JudgedServer:
    """One row and what was predicted of it, in seconds; None where nothing could be."""

    row: ServerRow
    tpot_s: tuple[float, float, float] | None = None
    ttft_s: tuple[float, float, float] | None = None
    #: what else would have been said: bytes over bandwidth and operations over the peak; kernels alone
    naive_s: float | None = None
    kernels_s: float | None = None
    #: why nothing is predicted; "" where something is
    reason: str = ""
    #: what of the prediction is taken from the nearest that was measured, or assumed
    marks: str = ""

    @property
    def kind(self) -> str:
        """dense or mixture, as far as known."""
        return "mixture" if self.row.spec and self.row.spec.n_experts > 1 else "dense"


def judge(row: ServerRow) -> JudgedServer:
    """The prediction of a row."""
    if row.reason:
        return JudgedServer(row, reason=row.reason)
    try:
        marked = [row.marks]
        point = _with_room(row.point, marked, "pool of decoding: " if row.prompt_work else "")
        first_point = _with_room(row.prompt_point, marked, "pool of prompts: ") if row.prompt_work else point
        if row.prompt_work:
            pools = Servers(first_point, row.n_prompt_servers), Servers(point, row.n_servers)
            results = disaggregated.serve(*pools, row.concurrency)._asdict()
        else:
            results = engine.evaluate(point)
        if results["tpot_s"] is None:
            return JudgedServer(row, reason=results["infeasible_reason"] or "not one request fits")
        tokens, first = point.lowered.sure.tokens, first_point.lowered.sure.first
        tpot, ttft = results["tpot_s"], results["ttft_s"]
        return JudgedServer(
            row=row,
            tpot_s=(tpot, tpot * tokens.low, tpot * tokens.high),
            ttft_s=(ttft, ttft * first.low, ttft * first.high),
            naive_s=_naive_s(row),
            kernels_s=_kernels_s(point),
            marks=joined(*marked, *dict.fromkeys([*marks(point, MARKED), *marks(first_point, MARKED)])),
        )
    except DseError as error:
        return JudgedServer(row, reason=str(error))


def _with_room(point_of: Callable[..., Point], marked: list[str], pool: str) -> Point:
    """The design point of a row, or, as a server ran it, in memory where it fits; that is added to what is marked."""
    point = point_of()
    if point.max_batch:
        return point
    marked.append(f"no_room: predicted as if it did fit: {pool}{point.infeasible_reason}")
    return point_of(roomy(point.device))


def _naive_s(row: ServerRow) -> float:
    """A decode step of all requests at peak rates."""
    ideal: dict[str, Any] = {"model_kind": "ideal", "stack": None, "memory": "paper", "max_num_seqs": None}
    step_s: float = engine.evaluate(row.point(roomy(row.point(**ideal).device), **ideal))["decode_step_s"]
    return step_s


def _kernels_s(point: Point) -> float:
    """A decode step of all requests that fit, without the server's own time and without prompts."""
    wave = point.run(min(point.batch, point.max_batch)).wave
    step_s: float = wave.decode_step_s - wave.host_s
    return step_s


def run(path: str, progress: Progress | None = None) -> list[JudgedServer]:
    """All rows of a table, judged. Raises InputError for a table whose times can only be in another unit."""
    servers = [judge(row) for row in each(read(path), progress, "servers")]
    _check_units(path, servers)
    return [replace(server, marks=joined(server.marks, *_slips(server))) for server in servers]


def speeds(path: str, device: HardwareSpec, model: ModelSpec, work: Workload) -> list[dict[str, Any]]:
    """`speeds_of` the rows of a table. Raises InputError for a table that cannot be read, or that has none."""
    rows = speeds_of(read(path), device, model, work)
    if not rows:
        raise InputError(
            f"{path}: has no server of {model.name} on {device.name} with {work.input_tokens:,} tokens in and "
            f"{work.output_tokens:,} out: ask for lengths that it has (--input, --output)"
        )
    return rows


def speeds_of(
    rows: Sequence[ServerRow], device: HardwareSpec, model: ModelSpec, work: Workload
) -> list[dict[str, Any]]:
    """Measured servers of a device, model and lengths: tokens a second that a user gets, and that a device gives.

    Lengths may be off by LENGTH_SHARE: those of load generators are drawn from 0.8 to 1 times the name. Suspect rows
    are left out.
    """
    points = []
    for row in rows:
        if row.work is None or row.device is None or row.spec is None or is_suspect(row):
            continue
        near = _are_near(row.work.input_tokens, work.input_tokens) and _are_near(
            row.work.output_tokens, work.output_tokens
        )
        rate = _device_rate(row, row.ttft_s, row.tpot_s)
        if (row.device.name, row.spec.name) != (device.name, model.name) or not near or not (row.tpot_s and rate):
            continue
        points.append(
            {
                "server": row.id,
                "requests": row.concurrency,
                "n_devices": row.n_devices,
                "tokens_per_s_a_user": 1 / row.tpot_s,
                "tokens_per_s_a_device": rate,
            }
        )
    return points


def _device_rate(row: ServerRow, ttft_s: float | None, tpot_s: float | None) -> float | None:
    """Output tokens a second that a device of a row gives at these times; None where one of them is not known."""
    if row.work is None or not ttft_s or not tpot_s:
        return None
    rate: float = closed_loop_tokens_per_s(row.concurrency, row.work.output_tokens, ttft_s, tpot_s)
    return rate / row.n_devices


def _are_near(tokens: int, other: int) -> bool:
    return abs(tokens - other) <= LENGTH_SHARE * other


def _off(server: JudgedServer, name: str) -> float | None:
    """A measured time over what is predicted; None where one of them is not known."""
    measured, ours = getattr(server.row, name), getattr(server, name)
    return measured / ours[0] if measured and ours else None


def _check_units(path: str, servers: list[JudgedServer]) -> None:
    for column, name in _TIMES.items():
        known = [(over, server.row) for server in servers if (over := _off(server, name))]
        if known and (wrong := slip(float(np.median([over for over, _ in known])))):
            row = known[0][1]
            raise InputError(
                f"{path}:{row.line}: {column} = {getattr(row, name) / _MS:g}: is {wrong}, as most rows: are the "
                f"times in {'s' if ' less ' in wrong else 'us'}? give milliseconds"
            )


def _slips(server: JudgedServer) -> list[str]:
    """The times of a row that can only be in another unit, where those of most rows are not."""
    slips = {column: slip(_off(server, name) or 1.0) for column, name in _TIMES.items()}
    return [f"{column}: {wrong}: another unit?" for column, wrong in slips.items() if wrong]


def predictions_csv(judged: list[JudgedServer]) -> str:
    """The table `predictions.csv`: times in ms, 80 % intervals, why there are none, what was not measured."""
    rows = []
    for server in judged:
        times = [value and value / _MS for three in (server.tpot_s, server.ttft_s) for value in three or (None,) * 3]
        rows.append(dict(zip(COLUMNS, (server.row.id, *times, server.reason, server.marks), strict=True)))
    return csv_text(rows, COLUMNS)


def errors(judged: list[JudgedServer]) -> list[dict[str, Any]]:
    """Errors by group as shares: of times per token and to the first, coverage and width of the intervals.

    Suspect rows (dse/calibrate/servers.py says why) have groups of their own and do not count in `all`.
    """
    return errors_by_group(judged, _groups, _summary, ("all", *GROUPS, "suspect"))


def _groups(server: JudgedServer) -> dict[str, str]:
    row, model = server.row, server.row.spec.name if server.row.spec else ""
    if is_suspect(row):
        return {"suspect": f"{model} {row.release}"}
    names = {"all": "all", "kind": server.kind, "model": model or row.model or "-"}
    return names | {by: str(getattr(row, by) or "-") for by in GROUPS if by not in names}


def group_name(by: str, group: str) -> str:
    """A group of `errors` as people call it: H200, vLLM 0.19.0."""
    if group == "-":
        return "no release named" if by == "release" else group
    if by.startswith("system"):  # of fits without a device, kinds of models too
        device = device_names.meant(group, catalog.device_aliases())
        return catalog.device(device).name if device else group
    if by == "stack":
        return ENGINES[group]
    if by == "release":
        of = [ENGINES[stack] for stack, server in catalog.servers().items() if group in server.releases]
        of = of or [ENGINES[stack] for stack in catalog.servers() if group in dates(stack)]
        return " ".join([*of, group])
    return f"{group} models" if by == "kind" else group


def _summary(servers: list[JudgedServer]) -> dict[str, Any]:
    tokens = compare([(server.row.tpot_s, server.tpot_s) for server in servers])
    first = compare([(server.row.ttft_s, server.ttft_s) for server in servers])
    rates = [_rates(server) for server in servers]

    def mean_error(name: str) -> float | None:
        pairs = [(server.row.tpot_s, getattr(server, name)) for server in servers]
        return statistic(np.mean, [abs(ours / measured - 1) for measured, ours in pairs if measured and ours])

    return {
        "rows": len(servers),
        "predicted": sum(server.tpot_s is not None for server in servers),
        **{f"tpot_{name}": value for name, value in tokens.items()},
        **{f"ttft_{name}": value for name, value in first.items()},
        "rate_mean": statistic(np.mean, [abs(ours / measured - 1) for measured, ours in rates if measured and ours]),
        "naive_mean": mean_error("naive_s"),
        "kernels_mean": mean_error("kernels_s"),
    }


def _rates(server: JudgedServer) -> tuple[float | None, float | None]:
    """Output tokens a second and device, measured and predicted."""
    row, ours = server.row, (server.ttft_s and server.ttft_s[0], server.tpot_s and server.tpot_s[0])
    return _device_rate(row, row.ttft_s, row.tpot_s), _device_rate(row, *ours)


def compare(pairs: Sequence[tuple[float | None, tuple[float, ...] | None]]) -> dict[str, float | None]:
    """Errors of (measured, (predicted, low, high)): of sizes mean, median and 90th percentile, their median, share
    inside, relative width."""
    known = np.array([(m, *three) for m, three in pairs if m and three])
    if not len(known):
        return dict.fromkeys(("mean", "median", "p90", "bias", "inside", "width"))
    measured, ours, low, high = known.T
    off = ours / measured - 1
    return {
        "mean": float(np.abs(off).mean()),
        "median": float(np.median(np.abs(off))),
        "p90": p90(np.abs(off)),
        "bias": float(np.median(off)),
        "inside": float(((measured >= low) & (measured <= high)).mean()),
        "width": float(np.median((high - low) / ours)),
    }


def errors_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Errors by group as CSV, to four digits."""
    return csv_text(rows, digits=4)


def contents_of(judged: list[JudgedServer]) -> dict[str, bytes]:
    """The files `predictions.csv`, `errors.csv` and `errors.json`."""
    rows = errors(judged)
    return {
        "predictions.csv": predictions_csv(judged).encode(),
        "errors.csv": errors_csv(rows).encode(),
        "errors.json": (json_text(rows, 2) + "\n").encode(),
    }


#: the errors as people read them
_ERRORS = (
    *GROUP,
    percent("tpot_mean", "per token"),
    percent("tpot_p90", "p90"),
    percent("tpot_bias", "bias"),
    percent("tpot_inside", "inside"),
    percent("ttft_mean", "first token"),
    percent("ttft_inside", "inside"),
    percent("rate_mean", "tokens/s"),
    percent("naive_mean", "naive"),
    percent("kernels_mean", "kernels"),
)


def text(judged: list[JudgedServer]) -> str:
    """The errors as people read them."""
    return "\n".join(
        [
            *aligned(cells(_ERRORS, errors(judged)), 2),
            "",
            "Mean absolute errors, in percent of the measured median. inside: rows in their 80 % interval; tokens/s: "
            "of",
            "output, by device; naive: bytes and operations at peak rates; kernels: without the server's own time and",
            "prompts. Suspect rows count apart.",
        ]
    )
