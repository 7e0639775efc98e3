"""The tables behind the report: which design points each figure needs, the bit ledgers, the roofline."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from dse import quantizers
from dse.core import units
from dse.core.errors import InputError, LimitError, did_you_mean, show
from dse.core.progress import Progress, each
from dse.model import engine, kv_layout
from dse.model.formulas import attention, linear, weights
from dse.model.point import Point
from dse.quantizers.base import PARTS
from dse.questions import traces
from dse.questions.systems import MODELS, ReportRequest, System, systems_of_capacity
from dse.specs import catalog, tokens
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.measurements import Bits
from dse.specs.workload import Workload
from dse.sweep import sweeps

#: points of one report; about 0.3 ms each
MAX_POINTS = 100_000
#: total lengths of Oaken Figure 13
TOTAL_TOKENS = tuple(2**power for power in range(10, 16))
#: batch of Oaken Figure 13
LENGTH_BATCH = 16
#: total lengths, generated tokens, policies and second quantizer of "fewer tokens against fewer bits"; 16 % of the
#: prompt kept is SinkQ's Table 7, which compares with SinkQ at its default of 2 bits, G = 128
TOKENS_TOTAL = tuple(2**power for power in range(10, 18))
TOKENS_OUTPUT = 256
TOKEN_POLICIES = ("full", "snapkv:share=0.16", "h2o", "streaming", "window", "sparse", "constant")
TOKENS_WITH_BITS = ("full", "snapkv:share=0.16", "sparse")
TOKENS_QUANTIZER = "sinkq"
#: batches of the roofline's linear layers
ROOFLINE_BATCHES = (1, 16, 64, 256)


@dataclass(frozen=True)
class Job:
    """One design point to evaluate."""

    system: System
    model: ModelSpec
    work: Workload

    def __str__(self) -> str:
        return f"{self.system.label}, {self.model.name}"


def _job(request: ReportRequest, system: System, model: ModelSpec, batch: int, **changes: Any) -> Job:
    work = Workload(
        batch=batch,
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        admission=system.admission,
        memory=request.memory,
        model_kind=request.model_kind,
        stack=request.stack if system.device_for(model).stacks else None,
        **request.deployment,
    )
    return Job(system, model, replace(work, **changes))


def _results(request: ReportRequest) -> list[Job]:
    """Every model, system and batch."""
    return [_job(request, s, m, b) for m in request.models for s in request.systems for b in request.batches]


def _capacity(request: ReportRequest) -> list[Job]:
    """Each memory over the bits of quantizers, at the largest batch (after Oaken Figure 1)."""
    model = request.pick("llama2-13b")
    systems = systems_of_capacity() if request.is_default else request.systems
    return [_job(request, s, model, max(request.batches)) for s in systems]


def _lengths(request: ReportRequest) -> list[Job]:
    """Oaken Figure 13: one model, one batch, total length 1K to 32K, half in and half out."""
    model = request.pick("llama2-13b")
    return [
        _job(request, s, model, LENGTH_BATCH, input_tokens=total // 2, output_tokens=total // 2)
        for s in request.systems
        for total in TOTAL_TOKENS
    ]


def _weights(request: ReportRequest) -> list[Job]:
    """Oaken Figure 5(b): weights at 16 or 4 bits with keys and values in FP16 or INT4."""
    devices = {s.device: s for s in request.systems}
    if request.is_default:
        devices = {name: devices[name] for name in ("lpu-lpddr", "a100-80gb")}
    model = request.pick("llama2-13b")
    names = {16: "FP16 weights", 4: "4-bit weights"}, {"fp16": "FP16 KV", "int4": "INT4 KV"}
    return [
        _job(
            request,
            replace(s, quantizer=kv, label=f"{names[0][bits]}, {names[1][kv]}"),
            model,
            batch,
            weights_bits=bits,
        )
        for s in list(devices.values())[:2]
        for bits, kv in ((16, "fp16"), (4, "fp16"), (16, "int4"), (4, "int4"))
        for batch in request.batches
    ]


def _breakdown(request: ReportRequest) -> list[Job]:
    """Oaken Figure 12(b): the parts of a decode step on LPU, Oaken, and Oaken's algorithm on a GPU."""
    systems = request.systems[:6]
    if request.is_default:
        by_label = {s.label: s for s in request.systems}
        gpu = replace(by_label["A100 FP16 (vLLM)"], quantizer="oaken", label="A100, Oaken's algorithm")
        systems = (by_label["LPU-LPDDR FP16"], by_label["Oaken-LPDDR"], gpu)
    model = request.pick("llama2-7b")
    return [_job(request, s, model, batch) for s in systems for batch in request.batches]


def _tokens(request: ReportRequest) -> list[Job]:
    """Token policies with FP16 and with quantized keys and values, long prompts and short outputs, on one device."""
    first, model = request.systems[0], request.pick("llama2-7b")
    names = [quantizers.parse(s.quantizer).name for s in request.systems if s.device == first.device]
    second = next((name for name in names if name != "fp16"), TOKENS_QUANTIZER)
    second = TOKENS_QUANTIZER if request.is_default else second
    jobs = []
    for policy in request.tokens or TOKEN_POLICIES:
        with_bits = request.tokens or policy in TOKENS_WITH_BITS
        for name in dict.fromkeys(("fp16", second)) if with_bits else ("fp16",):
            system = replace(first, quantizer=name, label=f"{tokens.parse(policy).name}, {name}")
            jobs += [
                _job(
                    request,
                    system,
                    model,
                    LENGTH_BATCH,
                    input_tokens=total - TOKENS_OUTPUT,
                    output_tokens=TOKENS_OUTPUT,
                    tokens=policy,
                )
                for total in TOKENS_TOTAL
            ]
    return jobs


#: tables of design points by name
POINTS: dict[str, Callable[[ReportRequest], list[Job]]] = {
    "results": _results,
    "capacity": _capacity,
    "lengths": _lengths,
    "weights": _weights,
    "breakdown": _breakdown,
    "tokens": _tokens,
}


def _evaluate(jobs: Sequence[Job], steps: Iterable[Job], bits: Bits) -> pd.DataFrame:
    """One row per job, with the columns of RESULT_UNITS after a column `system`."""
    plans: dict[tuple[str, str], kv_layout.KvPlan] = {}
    rows = []
    for job in steps:
        key = (job.model.name, job.system.quantizer)
        if key not in plans:
            quantizer = bits.quantizer(job.system.quantizer)
            plans[key] = kv_layout.build(job.model, quantizer, quantizer)
        rows.append(engine.evaluate(Point(job.system.device_for(job.model), plans[key], job.work)))
    table = sweeps.to_table(rows)
    table.insert(0, "system", pd.array([job.system.label for job in jobs], dtype="string"))
    return table


def ledger(request: ReportRequest) -> pd.DataFrame:
    """Bits an element of the quantizers by part, for one model and sequence at its final length: defaults and named.

    Columns: model, quantizer, n_tokens, effective_bits, stored_bits and one column `<part>_bits` per part; the parts
    add up to `stored_bits` (without page padding).
    """
    model = request.pick("llama2-7b")
    n_tokens = request.input_tokens + request.output_tokens
    named = {quantizers.parse(system.quantizer).name for system in request.systems}
    names = [
        name
        for family in (name for name, spec in quantizers.FAMILIES.items() if spec.by_default or name in named)
        for name in (family, *sorted(n for n in named if n.startswith(f"{family}:")))
    ]
    rows = []
    for name in names:
        quantizer = request.bits.quantizer(name)
        kv = kv_layout.build(model, quantizer, quantizer)
        elements = kv.elements(n_tokens)
        parts = kv.ledger(kv.kept_tokens(n_tokens))
        rows.append(
            {
                "model": model.name,
                "quantizer": quantizer.name,
                "n_tokens": n_tokens,
                "effective_bits": float(kv.effective_bits),
                "stored_bits": float(sum(parts.values()) / elements),
                **{f"{part}_bits": float(parts[part] / elements) for part in PARTS},
            }
        )
    return pd.DataFrame(rows)


def roofline(request: ReportRequest) -> pd.DataFrame:
    """Ceilings of one or two devices, and the decode operations of a model under them.

    Columns: device, model, operation ("ceiling", "linear", "attention"), label, intensity_flops_per_byte,
    flops_per_s (what the roofline allows), assumptions.
    """
    model = request.pick("llama2-13b")
    systems = {system.device: system for system in request.systems}
    if request.is_default:
        systems = {name: systems[name] for name in ("a100-80gb", "oaken-lpddr")}
    n_tokens = request.input_tokens + request.output_tokens
    rows: list[dict[str, Any]] = []
    for name in list(systems)[:2]:
        names = [system.quantizer for system in request.systems if system.device == name]
        rows += _roofline_rows(systems[name].device_for(model), model, ["fp16", *names], n_tokens, request.bits)
    return pd.DataFrame(rows)


def _roofline_rows(
    device: HardwareSpec, model: ModelSpec, names: list[str], n_tokens: int, bits: Bits
) -> Iterator[dict[str, Any]]:
    peak, bandwidth = device.peak_flops.si, device.memory_bandwidth.si
    fields = ("memory_bandwidth", "peak_flops")
    assumed = ", ".join(field for field in fields if getattr(device, field).kind == "assumed")

    def row(operation: str, label: str, flops: float, n_bytes: float, seconds: float) -> dict[str, Any]:
        return {
            "device": device.name,
            "model": model.name,
            "operation": operation,
            "label": label,
            "intensity_flops_per_byte": linear.arithmetic_intensity(flops, n_bytes),
            "flops_per_s": flops / seconds,
            "assumptions": assumed,
        }

    for intensity in (0.1, peak / bandwidth, 1000.0):
        yield row("ceiling", "", intensity, 1.0, attention.attention_s(intensity, 1.0, peak, bandwidth))
    active = float(model.active_parameters)
    for batch in ROOFLINE_BATCHES:
        touched = weights.expert_share_touched(batch, model.n_experts, model.n_active_experts)
        n_bytes = weights.weight_read_bytes(
            model.dense_parameters, 0, model.expert_parameters, touched, *(8 * units.FP16_BITS,) * 2
        )
        seconds = linear.linear_s(batch, active, n_bytes, peak, bandwidth)
        yield row("linear", f"batch {batch}", 2 * active * batch, n_bytes, seconds)
    for name in dict.fromkeys(quantizers.parse(name).name for name in names):
        quantizer = bits.quantizer(name)
        kv = kv_layout.build(model, quantizer, quantizer)
        last = Workload(input_tokens=n_tokens - 1, output_tokens=1, model_kind="ideal")
        step = Point(device, kv, last).made.pieces[0]
        n_bytes, flops = step.read_bytes, step.flops
        yield row("attention", name, flops, n_bytes, attention.attention_s(flops, n_bytes, peak, bandwidth))


#: tables that are no design points
OTHERS: dict[str, Callable[[ReportRequest], pd.DataFrame]] = {
    "ledger": ledger,
    "roofline": roofline,
    "traffic": traces.throughput_of_traces,
    "traffic_lengths": traces.lengths_of_traces,
}


def check(request: ReportRequest) -> None:
    """Raises LimitError above MAX_POINTS, before anything is evaluated or written."""
    n_points = len(request.models) * len(request.systems) * len(request.batches)
    if n_points > MAX_POINTS:
        raise LimitError(f"report of {n_points:,} points: at most {MAX_POINTS:,}: give fewer models or batches")


def build(request: ReportRequest, progress: Progress | None = None) -> dict[str, pd.DataFrame]:
    """All tables by name, each with the report's systems in `attrs`: (label, device, quantizer). Raises LimitError."""
    check(request)
    jobs = {name: find(request) for name, find in POINTS.items()}
    tables: dict[str, pd.DataFrame] = {}
    steps = [job for table_jobs in jobs.values() for job in table_jobs]
    _fill(tables, jobs, each(steps, progress, "points"), request.bits)
    by_name = {**tables, **{name: make(request) for name, make in OTHERS.items()}}
    for frame in by_name.values():
        _name_systems(frame, request)
    return by_name


def table(name: str, models: Sequence[str] = MODELS, **fields: Any) -> pd.DataFrame:
    """One of the tables of `build` by its name (`Figure.table`): models by name, `fields` as of `ReportRequest`.

    Raises InputError for an unknown name of a table or model, LimitError as `check`.
    """
    return one(name, ReportRequest(models=tuple(catalog.model(model) for model in models), **fields))


def one(name: str, request: ReportRequest) -> pd.DataFrame:
    """The table of `build` by that name alone. Raises InputError for an unknown one, LimitError as `check`."""
    if name not in (known := [*POINTS, *OTHERS]):
        raise InputError(f"table = {show(name)}: {did_you_mean(name, known)}")
    check(request)
    if name in OTHERS:
        return _name_systems(OTHERS[name](request), request)
    jobs = POINTS[name](request)
    return _name_systems(_evaluate(jobs, jobs, request.bits), request)


def _name_systems(table: pd.DataFrame, request: ReportRequest) -> pd.DataFrame:
    """With the report's systems: a figure of some of them draws each as the figures of all do."""
    table.attrs["systems"] = [
        [s.label, catalog.device(s.device).name, quantizers.parse(s.quantizer).name] for s in request.systems
    ]
    return table


def _fill(tables: dict[str, pd.DataFrame], jobs: dict[str, list[Job]], steps: Iterator[Job], bits: Bits) -> None:
    for name, table_jobs in jobs.items():
        tables[name] = _evaluate(table_jobs, (next(steps) for _ in table_jobs), bits)
    next(steps, None)  # lets a progress bar draw its end
