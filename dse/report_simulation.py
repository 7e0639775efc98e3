"""What `dse simulate` tells of a run: requests from a trace or a rate, the numbers, their text, tables and figure."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse import files, point, present, report_static, serving, simulate, traffic_file, traffic_tables
from dse.errors import InputError, did_you_mean, show
from dse.plan import KvPlan
from dse.plots import simulated, to_plotly
from dse.simulate import Simulation
from dse.specs import HardwareSpec
from dse.traffic import MAX_TOKENS, Lengths, Requests
from dse.workload import Workload

#: the shares of latencies that are shown
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
#: arrivals that are no rate: all at once, and as in the trace
FULL, AS_TRACE = "full", "trace"
MAX_RATE_PER_S = 1e9


@dataclass(frozen=True)
class Traffic:
    """What to serve. `trace` is a shipped one's name, a file, or None for `work`'s lengths, all alike.

    `rate`: requests per second (Poisson), "trace" for the trace's own arrivals, "full" for all at once; None: as the
    trace where there is one. `n_requests` None: all of a file, else 10,000.
    """

    trace: str | None = None
    rate: str | None = None
    n_requests: int | None = None
    seed: int = 1


def requests_of(ask: Traffic, work: Workload, progress: Any = None) -> Requests:
    """The requests, the same for the same seed. Raises InputError, LimitError."""
    simulate.check(work, 1 if ask.n_requests is None else ask.n_requests, "continuous", 1)
    if not 0 <= ask.seed < 2**63:
        raise InputError(f"seed = {show(ask.seed)}: must be a whole number from 0 to {2**63 - 1:,}")
    rate = rate_of(ask)
    n = ask.n_requests or 10_000
    own = rate == AS_TRACE
    if ask.trace is None:
        for name, value in (("input", work.input_tokens), ("output", work.output_tokens)):
            if value > MAX_TOKENS:
                raise InputError(f"{name} = {show(value)}: must be a whole number from 1 to {MAX_TOKENS:,}")
        found = Requests(np.zeros(n), np.full(n, work.input_tokens), np.full(n, work.output_tokens))
    elif ask.trace.strip().lower() in traffic_tables.files():
        found = traffic_tables.sample(ask.trace.strip().lower(), n, None, ask.seed)
    elif ask.trace.lower().endswith(".csv") or os.path.exists(ask.trace.replace("\0", "")):
        found = traffic_file.read(ask.trace, progress, max_requests=simulate.MAX_REQUESTS)
        k = ask.n_requests or len(found.arrival_s)
        if k > len(found.arrival_s):
            raise InputError(f"requests = {k:,}: the trace has {len(found.arrival_s):,}: ask for no more")
        found = Requests(found.arrival_s[:k], found.input_tokens[:k], found.output_tokens[:k])
    else:
        known = did_you_mean(ask.trace, traffic_tables.files())
        raise InputError(f"trace = {show(ask.trace)}: {known}; or give the path of a .csv file")
    if own:
        return found
    n = len(found.arrival_s)
    arrivals = np.zeros(n)
    if rate != FULL:
        gaps = np.random.Generator(np.random.PCG64([ask.seed, 1])).exponential(1.0, n)
        gaps[0] = 0.0
        arrivals = np.cumsum(gaps) / float(rate)
    return Requests(arrivals, found.input_tokens, found.output_tokens)


def rate_of(ask: Traffic) -> str | float:
    """A rate, "full" or "trace". Raises InputError."""
    if ask.rate is None:
        return AS_TRACE if ask.trace else FULL
    word = ask.rate.strip().lower()
    if word == FULL or (word == AS_TRACE and ask.trace):
        return word
    try:
        rate = float(word)
    except ValueError:
        rate = 0.0
    if not 1e-9 <= rate <= MAX_RATE_PER_S:
        others = f"full or trace{'' if ask.trace else ' (which needs --trace)'}"
        raise InputError(f"rate = {show(ask.rate)}: must be from 1e-9 to 1e9 requests per second, or {others}")
    return rate


def evaluate(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    requests: Requests,
    batching: serving.Batching = "continuous",
    chunk_tokens: int = serving.CHUNK_TOKENS,
    progress: Callable[..., Any] | None = None,
    rate_per_s: float | None = None,
) -> tuple[dict[str, Any], Simulation]:
    """All numbers of a run, in SI base units, JSON-ready, with the closed form beside; and the run itself.

    `rate_per_s` is the rate that arrivals were drawn with; default: what they had.
    """
    simulate.check(work, len(requests.arrival_s), batching, chunk_tokens)
    if progress is None:
        run = simulate.run(device, plan, work, requests, batching, chunk_tokens)
    else:
        with progress(None, "requests", len(requests.arrival_s)) as bar:
            tell = lambda done, _: bar.update(done - bar.pos)  # noqa: E731
            run = simulate.run(device, plan, work, requests, batching, chunk_tokens, progress=tell)
    served = run.requests
    lengths = Lengths.of(served)
    steady = serving.steady(
        device, plan, work, lengths.moments, None, batching, chunk_tokens, largest_output=lengths.largest_output
    )
    offered = rate_per_s or Lengths.of(requests).moments.rate_per_s
    several = served.output_tokens > 1
    per_token = (run.finish_s - run.first_s)[several] / (served.output_tokens[several] - 1)
    stack_name, stack = point.stack_of(device, work)
    duration = run.duration_s
    result = {
        "device": device.name, "model": plan.model.name, "quantizer": plan.quantizer_name,
        "model_kind": "calibrated" if stack else "ideal", "stack": stack_name, "batching": batching,
        "chunk_tokens": chunk_tokens if batching == "chunked" else None, "admission": work.admission,
        "page_tokens": work.page_tokens if work.admission == "paged" else None, "batch": work.batch,
        "offered_requests_per_s": offered, "n_requests": len(served.arrival_s), "n_rejected": run.n_rejected,
        "mean_input_tokens": lengths.moments.mean_input_tokens,
        "mean_output_tokens": lengths.moments.mean_output_tokens,
        "duration_s": duration, "requests_per_s": len(served.arrival_s) / duration,
        "throughput_tokens_per_s": run.n_tokens / duration,
        "saturated_tokens_per_s": run.saturated_tokens_per_s if offered is None else None,
        "ttft_s": _spread(run.first_s - served.arrival_s), "tpot_s": _spread(per_token),
        "token_gap_s": _gaps(run), "latency_s": _spread(run.finish_s - served.arrival_s),
        "queueing_s": _spread(run.start_s - served.arrival_s),
        "mean_running": run.mean_running, "peak_running": run.peak_running,
        "mean_used_bytes": run.mean_used_bytes, "peak_used_bytes": run.peak_used_bytes, "free_bytes": run.free_bytes,
        "utilisation": min(run.busy_s / duration, 1.0), "n_preempted": run.n_preempted,
        "recomputed_tokens": run.n_prompt_tokens - int(served.input_tokens.sum()), "n_steps": run.n_steps,
        "steady": steady,
        "is_stable": None if offered is None else bool(offered <= (steady["requests_per_s"] or 0.0)),
        "assumptions": serving.assumptions(device, plan, work),
    }  # fmt: skip
    return result, run


def _spread(values: NDArray[np.float64]) -> dict[str, float | None]:
    """Mean, the smallest values that the shares do not exceed, and the largest."""
    if not len(values):
        return dict.fromkeys(("mean", *SHARES, "max"))
    found = np.quantile(values, list(SHARES.values()), method="inverted_cdf")
    spread = {name: float(value) for name, value in zip(SHARES, found, strict=True)}
    return {"mean": float(np.mean(values)), **spread, "max": float(values.max())}


def _gaps(run: Simulation) -> dict[str, float | None]:
    """The same of the times between two tokens of an answer; shares up to one percent more."""
    shares = {name: run.gap_s(share) for name, share in SHARES.items()}
    return {"mean": run.mean_gap_s, **shares, "max": run.longest_gap_s if run.mean_gap_s is not None else None}


_LATENCIES = (
    ("time to first token", "ttft_s"), ("time per output token", "tpot_s"), ("between two tokens", "token_gap_s"),
    ("whole request", "latency_s"), ("waiting for a place", "queueing_s"),
)  # fmt: skip
_COLUMNS = ("mean", *SHARES, "max")


def text(result: dict[str, Any]) -> str:
    """The run as a person reads it."""
    r, s = result, result["steady"]
    how = f"{r['batching']}{', ' + format(r['chunk_tokens'], ',') + ' tokens a step' if r['chunk_tokens'] else ''}"
    per_s = f"{r['offered_requests_per_s']:.4g} requests/s" if r["offered_requests_per_s"] else "all at once"
    lines = [
        f"{r['device']}  {r['model']}  {r['quantizer']}  at most {r['batch']:,} at once  {how}  {r['admission']}  "
        f"({r['model_kind']} model{', ' + r['stack'] if r['stack'] else ''})",
        f"{r['n_requests']:,} requests, {per_s}; {r['mean_input_tokens']:,.4g} tokens in, "
        f"{r['mean_output_tokens']:,.4g} out in the mean",
    ]
    if r["n_rejected"]:
        lines.append(f"{r['n_rejected']:,} more do not fit alone and were rejected")
    lines += ["", f"{'Latency':<26}" + "".join(f"{name.upper() if name[0] == 'p' else name:>12}" for name in _COLUMNS)]
    for label, name in _LATENCIES:
        cells = "".join(f"{present.number(r[name][column], 's'):>12}" for column in _COLUMNS)
        lines.append(f"  {label:<24}{cells}")
    whole = (
        ("throughput", present.number(r["throughput_tokens_per_s"], "token/s")),
        ("", f"{r['requests_per_s']:,.4g} requests/s over {present.number(r['duration_s'], 's')}"),
        *([("throughput while full", present.number(r["saturated_tokens_per_s"], "token/s"))]
          if r["saturated_tokens_per_s"] else []),
        ("steady state, closed form", f"{present.number(s['throughput_tokens_per_s'], 'token/s')}, "
         f"{s['requests_per_s'] or 0:,.4g} requests/s with {s['n_sequences']:,} running"),
        ("running", f"{r['mean_running']:,.4g} in the mean, at most {r['peak_running']:,}"),
        ("memory of requests", f"{present.number(round(r['mean_used_bytes']), 'B')} in the mean"),
        ("", f"{present.number(r['peak_used_bytes'], 'B')} at most, of {present.number(r['free_bytes'], 'B')}"),
        ("busy", f"{100 * r['utilisation']:.4g} % of the time"),
        ("sent back for memory", f"{r['n_preempted']:,} times, {r['recomputed_tokens']:,} tokens computed again"),
    )  # fmt: skip
    lines += ["", "Whole run", *(f"  {label:<40}{value}" for label, value in whole)]
    if r["is_stable"] is False:
        lines += [
            "",
            f"Unstable: {r['offered_requests_per_s']:.4g} requests/s come, {s['requests_per_s'] or 0:.4g} can be "
            "served: the line grows as long as they come, and latencies with the number of requests",
        ]
    if r["assumptions"]:
        lines += ["", f"Rests on assumed numbers: {', '.join(r['assumptions'])} (`dse show {r['device'].lower()}`)"]
    return "\n".join(lines)


def samples_table(result: dict[str, Any], run: Simulation) -> pd.DataFrame:
    """What ran over time: a row per sample, with tokens per second since the one before."""
    table = pd.DataFrame(run.samples)
    gap = table["time_s"].diff()
    table["tokens_per_s"] = (table["tokens"].diff() / gap.where(gap > 0)).fillna(0.0)
    table["free_bytes"] = float(run.free_bytes)
    for name in ("device", "model", "quantizer", "batching", "admission"):
        table[name] = result[name]
    return table


def latency_table(result: dict[str, Any]) -> pd.DataFrame:
    """A row per kind of latency; seconds."""
    return pd.DataFrame([{"name": name, **result[name]} for _, name in _LATENCIES])


def write(out: str, result: dict[str, Any], run: Simulation, static: str = "auto") -> list[str]:
    """Tables, JSON and the figure into directory `out`; the paths. Raises InputError, OutputError."""
    import plotly.io as pio

    report_static.check(static)
    folder = files.prepare(out)
    table = samples_table(result, run)
    chart = simulated.chart(table)
    with report_static.painter(static) as brush:
        images = brush.images(chart)
    page = pio.to_html(to_plotly.figure(chart), config=to_plotly.CONFIG, include_plotlyjs=True, include_mathjax=False)
    contents = {
        "simulation.json": json.dumps(result, indent=2, allow_nan=False).encode(),
        "over_time.csv": table.to_csv(index=False, lineterminator="\n").encode(),
        "latencies.csv": latency_table(result).to_csv(index=False, lineterminator="\n").encode(),
        **{f"simulation.{kind}": content for kind, content in images.items()},
        "simulation.html": page.encode(),
    }
    for name, content in contents.items():
        files.write(folder / name, content)
    files.sync(folder)
    return [str(folder / name) for name in contents]
