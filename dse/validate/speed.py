"""Public benchmarks of servers beside predictions: time per token, to the first, and tokens per second, row by row.

A row is a closed loop (so many requests at any time), a burst (all at once, the tail counted) or a rate. Each is
evaluated by what the tool has for it: TPOT and TTFT of a point, `dse.serving.burst`, `dse.serving.at_rate`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from dse import quantizers
from dse.calibrate.table import MAX_TABLE_BYTES, named_rows, number
from dse.core import files, units
from dse.core.columns import Column, aligned, cells, csv_text, percent
from dse.core.errors import DseError, InputError, show
from dse.core.progress import Progress, each
from dse.model import engine, intervals, kv_layout
from dse.model.engine import roomy
from dse.model.formulas.steady import closed_loop_tokens_per_s
from dse.model.point import Point
from dse.serving import burst
from dse.serving.at_rate import at_rate
from dse.serving.steady_state import EvenLengths, FixedLengths, TrafficServer
from dse.specs import catalog, device_names, engines, servers
from dse.specs.device_and_model import HardwareSpec
from dse.specs.weights import RELEASED
from dse.specs.workload import MAX_BATCH, MAX_DEVICES, MAX_INPUT_TOKENS, MAX_OUTPUT_TOKENS, Workload
from dse.validate import bench_result
from dse.validate.measured import GROUP, errors_by_group, joined, marks, p90, slip, statistic

#: columns that must be there, and the largest value of those that are whole numbers
NEEDED = {
    "engine": 0,
    "device": 0,
    "concurrency": MAX_BATCH,
    "input_tokens": MAX_INPUT_TOKENS,
    "output_tokens": MAX_OUTPUT_TOKENS,
}
#: columns of whole numbers that are 1 where they are not there
SPLITS = ("tp", "pp", "ep")
#: values that a missing cell may have, for a message
_SUCH = {"device": "8xh200", "engine": "vllm"}
#: columns of measured values: what it is, and its unit as the table has it
MEASURED = {
    "measured_tpot_ms": ("tpot", "ms"),
    "measured_output_tok_s": ("output", "tok/s"),
    "measured_ttft_ms": ("ttft", "ms"),
}
MAX_VALUE = 1e9
#: lengths that people choose are multiples of one of these; others are means of lengths that were drawn
ROUND_TOKENS = (50, 128)
#: requests of a burst whose lengths are those of ShareGPT: means of the published samples, by the tokenizer
CHAT_INPUT, CHAT_OUTPUT = (190, 260), (170, 240)
#: rounds of requests that a closed loop loses as it ends, as lengths vary evenly from 0 to twice their mean: the
#: longest of the last runs for 1.5 to 1.8 means, and two thirds of a mean is left of each
DRAIN_ROUNDS = 0.6
#: of its memory that a server has for keys and values where it started though our count leaves nothing. Assumed
LITTLE_SHARE = 0.04
#: settings as engines print them in their commands, and the field of a workload
FLAGS: tuple[tuple[str, str, type], ...] = (
    (r"(?:gpu-memory-utilization|mem-fraction-static)", "gpu_memory_utilization", float),
    (r"(?:max-model-len|context-length|max_seq_len)", "max_model_len", int),
    (r"(?:max-num-seqs|max-running-requests|max_batch_size)", "max_num_seqs", int),
    (r"(?:max-num-batched-tokens|chunked-prefill-size|max_num_tokens)", "prompt_budget_tokens", int),
)
SPECULATES = re.compile(r"speculative[-_](?:config|algo|num)")
#: programs that run another's kernels, or a fork of them
SAME_ENGINE = {"ik_llama.cpp": "llama.cpp", "ollama": "llama.cpp"}
#: assumptions that a prediction is marked with
MARKED = ("stacks_of", "nearest_release", "nearest_kernels", "nearest_format", "exchanges")
GROUPS = ("kind", "model", "device", "engine", "measured")
_MS = units.to_base(1, "ms")


@dataclass(frozen=True)
class SpeedRow:
    """One benchmark: what was sent to which server, and what it printed, in SI base units."""

    #: the file it is of, as messages name it
    path: str
    id: str
    line: int
    engine: str
    release: str
    model: str
    device_name: str
    #: closed, burst, rate, or decode: steps without prompts in them
    kind: str
    n_requests: int = 0
    requests_per_s: float = 0.0
    is_varied: bool = False
    device: HardwareSpec | None = None
    is_mixture: bool = False
    plan: Any = None
    work: Workload | None = None
    #: what -> seconds, or tokens per second
    measured: Mapping[str, float] = field(default_factory=dict)
    #: why nothing is predicted; "" where something is
    reason: str = ""
    marks: str = ""
    #: marked by who made the table: shown, and left out of fits (calibration/benchmarked.py)
    is_suspect: bool = False


@dataclass(frozen=True)
class Judged:
    """One measured value beside ours; SI base units."""

    what: str
    measured: float | None
    ours: float
    low: float
    high: float

    @property
    def off(self) -> float | None:
        """Ours over measured, less 1."""
        return self.ours / self.measured - 1 if self.measured else None

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured value lies in the interval."""
        return self.low <= self.measured <= self.high if self.measured else None


@dataclass(frozen=True)
class JudgedSpeed:
    """A row with its values beside ours, none where nothing is predicted."""

    row: SpeedRow
    values: tuple[Judged, ...]
    reason: str
    marks: str


def read(path: str, given: Mapping[str, str] = MappingProxyType({}), options: str = "") -> list[SpeedRow]:
    """The rows of a table, of a result of `vllm bench serve` or SGLang's `bench_serving`, or a line of numbers; a row
    that says nothing has its reason. `given` columns stand for what it says, by the command's `options`.

    Raises InputError for a table without columns.
    """
    content, lacks = b"", ""
    if not (is_line := bench_result.is_line(path)):
        content = files.read_bytes(path, MAX_TABLE_BYTES, "table", "the path of a .csv file, or of a benchmark's .json")
    if is_line:
        rows = [(1, bench_result.line_row(path))]
        if missing := [name for name in (*NEEDED, "model") if not {**rows[0][1], **given}.get(name)]:
            such = " ".join(f"{name}={_SUCH.get(name, name.upper())}" for name in missing)
            raise InputError(f"{show(path)}: {', '.join(missing)}: must be there: add {such}{options}")
    elif bench_result.is_result(content):
        rows = [*enumerate(bench_result.rows(path, content), 1)]
        lacks = options or f", or say it to `dse check-log {path}`, as --device 8xh200 or --model NAME"
    else:
        measured = "measured_tpot_ms"
        also = bench_result.ALSO | {"model": ("dse_model", *bench_result.ALSO["model"])}
        also[measured] = tuple(name for column in MEASURED for name in (column, *bench_result.ALSO[column]))
        needed = [name for name in (*NEEDED, "model", measured) if name not in given]
        rows = [*named_rows(path, needed, content, also=also)]
        rows = [(line, bench_result.renamed(said)) for line, said in rows]
    parsed, path = [], show(path) if is_line else path
    for line, of_file in rows:
        said = {**of_file, **given}
        try:
            parsed.append(row(path, line, said))
        except DseError as error:
            why = str(error)
            why += lacks if "must be there: give them" in why else ""
            parsed.append(
                _blank(path, line, said, why if why.startswith(f"{path}:{line}: ") else f"{path}:{line}: {why}")
            )
    return parsed


def _blank(path: str, line: int, said: dict[str, str], why: str = "") -> SpeedRow:
    return SpeedRow(
        path=path,
        id=said.get("id") or str(line),
        line=line,
        engine=SAME_ENGINE.get(engine := bench_result.engine_of(said.get("engine", "")), engine),
        release=said.get("version", ""),
        model=said.get("dse_model") or said.get("model", ""),
        device_name=_device(said)[1],
        kind="burst" if _is_true(said.get("all_at_once", "")) else "closed",
        is_suspect=bool(said.get("suspect")),
        reason=why,
    )


def _is_true(cell: str) -> bool:
    return cell.lower() in ("true", "yes", "1")


def _device(said: Mapping[str, str]) -> tuple[int, str]:
    """The number of devices, 0 where the cell says none, and the name of one: 8xh200 is 8 of h200."""
    name = said.get("device", "").lower()
    return device_names.counted(name) or (0, name)


def _split(path: str, line: int, said: Mapping[str, str]) -> dict[str, int]:
    """Devices that share a model, by tp, pp and ep: a number of them before the name is tp where no column says it."""
    n_devices, name = _device(said)
    known = {name: said[name] for name in SPLITS if said.get(name)}
    split = {name: int(number(path, line, name, known.get(name, "1"), MAX_DEVICES, True)) for name in SPLITS}
    if n_devices and "tp" not in known:
        split["tp"] = max(n_devices // split["pp"], 1)
    if n_devices and split["tp"] * split["pp"] != n_devices:
        raise InputError(
            f"{path}:{line}: device = {show(said['device'])}: tp {split['tp']} x pp {split['pp']} are other numbers of "
            f"devices: give {name} for one, or tp and pp of {n_devices}"
        )
    return split


def row(path: str, line: int, said: dict[str, str]) -> SpeedRow:
    """One row. Raises DseError with its place for a cell that says nothing."""
    place = f"{path}:{line}"
    if missing := [name for name in (*NEEDED, "model") if not said.get(name) and not said.get(f"dse_{name}")]:
        raise InputError(
            f"{place}: {', '.join(missing)} = '': must be there: give them, for `vllm bench serve` as --metadata "
            f"{' '.join(f'{name}={_SUCH.get(name, name.upper())}' for name in missing)}"
        )
    whole = {name: int(number(path, line, name, said[name], high, True)) for name, high in NEEDED.items() if high}
    split = _split(path, line, said)
    n_requests = int(number(path, line, "requests", said.get("requests") or said["concurrency"], MAX_BATCH, True))
    rate = said.get("requests_per_s", "")
    per_s = number(path, line, "requests_per_s", rate, MAX_VALUE, False) if rate else 0.0
    blank = _blank(path, line, said)
    kind = "rate" if per_s else "decode" if _is_true(said.get("decode", "")) else blank.kind
    measured = {}
    for column, (what, unit) in MEASURED.items():
        cell = said.get(column, "")
        if cell and cell.lower() not in ("inf", "nan") and cell.strip("0."):  # printed so where nothing was measured
            measured[what] = number(path, line, column, cell, MAX_VALUE, False) * (_MS if unit == "ms" else 1.0)
    if not measured:
        raise InputError(f"{place}: measured_tpot_ms = '': nothing was measured: give one of {', '.join(MEASURED)}")
    known = [*catalog.servers(), *catalog.backends()]
    if blank.engine not in known:
        raise InputError(
            f"{place}: engine = {show(blank.engine)}: must be one of {', '.join(known)}: leave the row out"
        )
    device, spec = catalog.device(blank.device_name), catalog.model(blank.model)
    kv = quantizers.parse("fp16" if said.get("kv_dtype", "") in ("", "auto") else said["kv_dtype"])
    varied = said.get("lengths", "")
    if varied not in ("", "fixed", "varied"):
        raise InputError(f"{place}: lengths = {show(varied)}: must be fixed or varied, or nothing")
    inputs, outputs = whole["input_tokens"], whole["output_tokens"]
    is_chat = CHAT_INPUT[0] <= inputs <= CHAT_INPUT[1] and CHAT_OUTPUT[0] <= outputs <= CHAT_OUTPUT[1]
    settings: dict[str, Any] = {**split, **_flags(said.get("server", ""))}
    work = Workload(
        batch=whole["concurrency"],
        input_tokens=inputs,
        output_tokens=outputs,
        weights=said.get("weights") or RELEASED,
        stack=f"{blank.engine}@{engines.release_named(blank.release)}" if blank.release else blank.engine,
        dp_attention=_is_true(said.get("dp_attention", "")),
        model_kind="calibrated",
        rounds=max(round(n_requests / whole["concurrency"]), 1),
        **settings,
    )
    speculates = SPECULATES.search(said.get("server", ""))
    return replace(
        blank,
        kind=kind,
        n_requests=n_requests,
        requests_per_s=per_s,
        is_varied=varied == "varied"
        or (not varied and (is_chat if kind == "burst" else not _are_round(inputs, outputs))),
        device=device,
        is_mixture=spec.n_experts > 1,
        plan=kv_layout.build(spec, kv, kv),
        work=work,
        measured=measured,
        marks="speculates: several tokens a step are not predicted" if speculates else "",
    )


def _are_round(*lengths: int) -> bool:
    """True for lengths that somebody chose."""
    return all(any(tokens % step == 0 for step in ROUND_TOKENS) for tokens in lengths)


def _flags(server: str) -> dict[str, Any]:
    """Settings that the printed command of a server has."""
    flags: dict[str, Any] = {}
    for pattern, name, kind in FLAGS:
        if match := re.search(rf"{pattern}[ =]+([0-9.]+)", server):
            value = kind(float(match[1].rstrip(".")))
            if value > 0:
                flags[name] = value
    return flags


def judge(row: SpeedRow) -> JudgedSpeed:
    """Each measured value of a row beside ours."""
    if row.reason or row.work is None or row.device is None:
        return JudgedSpeed(row, (), row.reason, row.marks)
    try:
        point, marked = Point(row.device, row.plan, row.work), [row.marks]
        if not point.max_batch:  # a server ran it all the same
            marked.append(f"no_room: predicted as if it did fit: {engine.evaluate(point)['infeasible_reason']}")
            point = _with_little_room(row, point)
        ours = _ours(row, point)
        marked += marks(point, MARKED)
        return JudgedSpeed(row, tuple(_values(row, point, ours)), "", joined(*marked))
    except DseError as error:
        return JudgedSpeed(row, (), str(error), row.marks)


def _with_little_room(row: SpeedRow, point: Point) -> Point:
    """The point on a server that started though our count leaves nothing: a small pool for keys and values."""
    assert row.device is not None
    assert row.work is not None
    pool = int(LITTLE_SHARE * float(engine.evaluate(point)["capacity_bytes"]) * row.work.tp * row.work.pp)
    work = replace(row.work, kv_cache_memory_bytes=pool // (row.work.tp * row.work.pp), gpu_memory_utilization=None)
    return Point(roomy(row.device), row.plan, work)


def _ours(row: SpeedRow, point: Point) -> dict[str, float]:
    """Our values by name: seconds, tokens per second."""
    work, results = point.work, engine.evaluate(point)
    inputs, outputs, n = work.input_tokens, work.output_tokens, row.n_requests
    if row.kind == "rate":
        steady = at_rate(point.device, point.plan, work, FixedLengths(inputs, outputs), row.requests_per_s)
        if steady is None:
            raise InputError(f"requests_per_s = {row.requests_per_s:g}: does not hold: no time per token is steady")
        return {"tpot": steady.tpot_s, "ttft": steady.ttft_s, "output": row.requests_per_s * outputs}
    if row.kind == "burst" and work.pp == 1:
        lengths = (np.full(n, inputs, np.int64), np.full(n, outputs, np.int64))
        run = burst.serve(point, *(burst.varied_lengths(n, inputs, outputs) if row.is_varied else lengths))
        return {"tpot": run.tpot_s, "ttft": run.ttft_s, "output": run.output_tokens_per_s}
    tpot, ttft, batch = results["tpot_s"], results["ttft_s"], work.batch or 1
    if tpot is None:
        raise InputError(results["infeasible_reason"] or "not one request fits")
    if row.kind == "closed" and row.is_varied and batch <= point.max_batch:
        tpot, ttft = _out_of_step(row, point)
    if row.kind == "decode":
        return {"tpot": results["decode_step_s"], "ttft": ttft, "output": batch / results["decode_step_s"]}
    drain = 1 + DRAIN_ROUNDS * batch / n if n > batch > 1 else 1.0
    return {"tpot": tpot, "ttft": ttft, "output": closed_loop_tokens_per_s(batch, outputs, ttft, tpot) / drain}


def _out_of_step(row: SpeedRow, point: Point) -> tuple[float, float]:
    """TPOT and TTFT of a loop of requests of several lengths: they come to their prompts one by one. Those that all
    start at first are left out: printed times to first token lie far below what their prompts alone take."""
    work = replace(point.work, rounds=None)
    lengths = EvenLengths(work.input_tokens, work.output_tokens)
    server = TrafficServer.of(point.device, point.plan, work, lengths)
    results = server.closed(float(min(work.batch or 1, server.places)))
    return results.tpot_s, results.ttft_s


def _values(row: SpeedRow, point: Point, ours: dict[str, float]) -> Iterator[Judged]:
    tokens, first = point.lowered.sure
    if row.kind == "burst":
        first_in = servers.batching(row.engine) == "continuous"
        tokens, first = (intervals.of_burst(interval, first_in) for interval in (tokens, first))
    by = {"tpot": tokens, "ttft": first, "output": tokens.inverse()}
    for what, value in ours.items():
        yield Judged(what, row.measured.get(what), value, value * by[what].low, value * by[what].high)


def run(path: str, progress: Progress | None = None) -> list[JudgedSpeed]:
    """All rows of a table, judged. Raises InputError for a table whose times can only be in another unit."""
    judged = [judge(row) for row in each(read(path), progress, "rows")]
    _check_units(path, judged)
    return judged


def _check_units(path: str, speeds: Sequence[JudgedSpeed]) -> None:
    for column, (what, unit) in MEASURED.items():
        known = [
            (v.measured / v.ours, v, judged.row)
            for judged in speeds
            for v in judged.values
            if v.what == what and v.measured
        ]
        if known and (wrong := slip(float(np.median([over for over, *_ in known])))):
            _, first, row = known[0]
            value = (first.measured or 0.0) / (_MS if unit == "ms" else 1.0)
            raise InputError(f"{path}:{row.line}: {column} = {value:g}: is {wrong}, as most rows: give {unit}")


def _is(value: Judged, what: str) -> bool:
    return value.what == what and bool(value.measured)


def _slip(value: Judged) -> str:
    """A value that can only be in another unit; "" for none."""
    wrong = slip(value.measured / value.ours) if value.measured else ""
    return wrong and f"{value.what}: is {wrong}: another unit?"


def rows_of_values(judged: Sequence[JudgedSpeed]) -> list[dict[str, Any]]:
    """A row for each measured value, in the table's units; one without values where nothing is predicted."""
    units_of = dict(MEASURED.values())
    rows = []
    for row in judged:
        head = {"id": row.row.id, "kind": row.row.kind}
        values = [value for value in row.values if value.measured]
        for value in values:
            unit = units_of[value.what]
            scale = 1 / _MS if unit == "ms" else 1.0
            rows.append(
                {
                    **head,
                    "what": value.what,
                    "unit": unit,
                    "measured": (value.measured or 0.0) * scale,
                    "ours": value.ours * scale,
                    "off": value.off,
                    "low": value.low * scale,
                    "high": value.high * scale,
                    "inside": value.is_inside,
                    "marks": joined(row.marks, _slip(value)),
                }
            )
        if not values:
            rows.append({**dict.fromkeys(column.name for column in COLUMNS), **head, "marks": row.reason or row.marks})
    return rows


def summary(judged: Sequence[JudgedSpeed]) -> list[dict[str, Any]]:
    """Errors by group: rows, median and 90th percentile of the share off, median bias, share inside the interval."""
    return errors_by_group(judged, _groups, _summary, ("all", *GROUPS))


def _groups(judged: JudgedSpeed) -> dict[str, str]:
    row = judged.row
    model = "mixture" if row.is_mixture else "dense"
    return {"all": "all", "model": model, "device": row.device_name, "engine": row.engine, "measured": row.kind}


def _summary(judged: Sequence[JudgedSpeed]) -> dict[str, Any]:
    errors: dict[str, Any] = {"rows": len(judged), "predicted": sum(bool(row.values) for row in judged)}
    for what, _ in MEASURED.values():
        known = [value for row in judged for value in row.values if _is(value, what) and not _slip(value)]
        off = np.array([value.off for value in known])
        errors[f"{what}_median"] = statistic(np.median, np.abs(off))
        errors[f"{what}_p90"] = statistic(p90, np.abs(off))
        errors[f"{what}_bias"] = statistic(np.median, off)
        errors[f"{what}_inside"] = statistic(np.mean, [value.is_inside for value in known])
    return errors


def table_csv(judged: Sequence[JudgedSpeed]) -> str:
    """The table of values as CSV: shares for `off`, units as `unit` says."""
    return csv_text(rows_of_values(judged))


def errors(judged: Sequence[JudgedSpeed]) -> dict[str, Any]:
    """The values and the errors by group, as JSON has them."""
    return {"rows": rows_of_values(judged), "summary": summary(judged)}


#: a measured value beside ours
COLUMNS = (
    Column("id", title="row"),
    Column("kind", title="measured as"),
    Column("what"),
    Column("unit", title=""),
    Column("measured", form="{measured:.4g} {unit}"),
    Column("ours", form="{ours:.4g} {unit}"),
    Column("off", form=lambda row: f"{100 * row['off']:+.0f} %"),
    Column("low", title=""),
    Column("high", title=""),
    Column("inside", form=lambda row: "yes" if row["inside"] else "no"),
    Column("marks", title=""),
)
#: errors by group, in percent
_ERRORS = (
    *GROUP,
    *(
        percent(f"{what}_{name}", f"{what} {title}", 0)
        for what, _ in MEASURED.values()
        for name, title in (("median", "off"), ("p90", "p90"), ("inside", "in"))
    ),
)


def text(judged: Sequence[JudgedSpeed]) -> str:
    """The table and its summary as people read them."""
    rows = rows_of_values(judged)
    bad = [f"{row['id']}: {row['marks']}" for row in rows if row["what"] is None]
    marked: dict[str, list[str]] = {}
    for row in judged:
        for value in row.values:
            if slip := _slip(value):
                marked.setdefault(f"{slip}", []).append(row.row.id)
        for mark in row.marks.split("; ") if row.values else ():
            if mark.startswith(("nearest_release", "no_room", "speculates")):
                marked.setdefault(mark, []).append(row.row.id)
    notes = [
        f"{', '.join(ids[:4])}{f' and {len(ids) - 4} more' if len(ids) > 4 else ''}: {mark}"
        for mark, ids in marked.items()
    ]
    parts = ["\n".join(aligned(cells(COLUMNS, [row for row in rows if row["what"]]), 3))]
    parts += ["\n".join(bad)] if bad else []
    parts += ["\n".join(notes)] if notes else []
    parts.append("\n".join(aligned(cells(_ERRORS, summary(judged)), 2)))
    parts.append(
        "off, p90: median and 90th percentile of what ours is off, in percent of the measured value; in: percent of "
        "values in\ntheir 80 % interval. closed: so many requests at any time; burst: all at once, the tail counted."
    )
    return "\n\n".join(parts)
