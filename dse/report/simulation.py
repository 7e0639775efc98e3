"""Results of a simulated run: numbers, text, tables and figure of `dse simulate`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.core import files
from dse.core.answer import Answer
from dse.core.documents import json_text
from dse.core.progress import Progress
from dse.figures import FIGURES
from dse.figures.export import image
from dse.model.kv_layout import KvPlan
from dse.model.point import Point
from dse.model.results import rests_on
from dse.model.stacks import kind_of, stack_of, stack_text
from dse.report import present
from dse.report.present_traffic import beyond_positions, per_second, plural
from dse.serving import reuse, simulator, steady_state
from dse.serving.arrivals import Traffic, rate_that_holds, requests_of
from dse.serving.at_rate import at_rate
from dse.serving.requests import Lengths, Requests
from dse.serving.simulator import Simulation
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import Workload

#: the shares of latencies that are shown
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
#: above this load a design is called close to its limit: closed form and simulation agree within 5 %
NEAR_LOAD = 0.95
#: mean wait in the last third of a run over the time that requests come, from which on it is overloaded: at a load of x
#: it is about 5/6 * (1 - 1/x), so this is a load of 1.06
OVERLOADED_WAIT_SHARE = 0.05


class SimulatedRun(Answer, dict[str, Any]):
    """Numbers of a run, in SI base units: a dict, which prints as the text of `dse simulate`."""

    @property
    def table(self) -> pd.DataFrame:
        """A row per kind of latency: its mean and percentiles, in seconds."""
        return latency_table(self)

    def text(self) -> str:
        """Return the text of `dse simulate`."""
        return text(self)


def evaluate(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    requests: Requests,
    scheduler: steady_state.Scheduler,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], Simulation]:
    """All numbers of a run, in SI base units, JSON-ready, with the closed form beside; and the run itself."""
    if progress is None:
        run = simulator.run(device, plan, work, requests, scheduler)
    else:
        with progress(None, "requests", len(requests.arrival_s)) as bar:
            tell = lambda done, _: bar.update(done - bar.pos)  # noqa: E731
            run = simulator.run(device, plan, work, requests, scheduler, progress=tell)
    served = run.requests
    steady = reuse.steady_of(device, plan, work, served, scheduler)
    own_s = steady_state.start_s(Point(device, plan, work), run.mean_running)  # no part of the loop
    shared = None
    if shares := served.blocks is not None:
        alone, hostless = replace(requests, blocks=None), scheduler._replace(host=None)
        without = simulator.run(device, plan, work, alone, hostless)
        kept_nothing = reuse.steady_of(device, plan, work, without.requests, hostless)
        shared = _shared(run, without, own_s, steady, kept_nothing)
    lengths = Lengths.of(served)
    settled = steady_state.with_batch(device, plan, work, lengths.moments, scheduler.batching, shares)
    offered = Lengths.of(requests).moments.rate_per_s
    load = None
    if offered is not None and steady["requests_per_s"]:  # what is rejected is no load
        load = offered * len(served.arrival_s) / len(requests.arrival_s) / steady["requests_per_s"]
    thirds = [float(np.mean(part)) for part in np.array_split(run.start_s - served.arrival_s, 3) if len(part)]
    latency = _spread(run.finish_s - served.arrival_s + own_s)
    at_offered = None if offered is None or shared else at_rate(device, plan, work, lengths.moments, offered, scheduler)
    stack_name, stack = stack_of(device, work)
    duration = run.duration_s
    # nothing is admitted later to a static batch: what its requests will need is reserved
    admission = "reserve" if scheduler.batching == "static" else settled.admission
    most = plan.model.max_position_tokens
    sure = lowered_of(device, plan, work)
    untimed = {"tpot_s": None} if lengths.moments.max_output_tokens == 1 else {}
    result = {
        "device": device.name,
        "model": plan.model.name,
        "quantizer": plan.quantizer_name,
        "model_kind": kind_of(stack, work),
        "stack": stack_text(stack_name, work),
        "batching": scheduler.batching,
        "step_tokens": scheduler.step_tokens,
        **present.weights_fields(plan.model, work),
        "admission": admission,
        "page_tokens": work.page_tokens if admission == "paged" else None,
        "batch": settled.batch,
        "is_full_batch": work.batch is None and settled.batch != work.max_num_seqs,
        **{name: getattr(work, name) for name in present.DEPLOYMENT},
        "offered_requests_per_s": offered,
        "n_requests": len(served.arrival_s),
        "n_rejected": run.n_rejected,
        "mean_input_tokens": lengths.moments.mean_input_tokens,
        "mean_output_tokens": lengths.moments.mean_output_tokens,
        "max_position_tokens": most,
        "n_beyond_positions": int(np.sum(served.input_tokens + served.output_tokens > most)) if most else 0,
        "duration_s": duration,
        "requests_per_s": len(served.arrival_s) / duration,
        "throughput_tokens_per_s": run.n_tokens / duration,
        "saturated_tokens_per_s": run.saturated_tokens_per_s if offered is None else None,
        "host_prompt_s": own_s,
        "ttft_s": _spread(run.ttft_s(own_s)),
        "tpot_s": _spread(run.tpot_s),
        "token_gap_s": _gaps(run),
        "latency_s": latency,
        "queueing_s": _spread(run.start_s - served.arrival_s),
        "queueing_thirds_s": thirds,
        "mean_running": run.mean_running,
        "saturated_running": run.saturated_running if offered is None else None,
        "peak_running": run.peak_running,
        "mean_used_bytes": run.mean_used_bytes,
        "peak_used_bytes": run.peak_used_bytes,
        "free_bytes": run.free_bytes,
        "utilisation": min(run.busy_s / duration, 1.0),
        "n_preempted": run.n_preempted,
        "recomputed_tokens": _recomputed(run),
        "recomputed_share": _recomputed(run) / max(run.n_prompt_tokens, 1),
        **({"shared_prompts": shared} if shared else {}),
        "n_steps": run.n_steps,
        "steady": {**steady, **untimed},
        "load": load,
        "at_rate": at_offered and at_offered._asdict() | untimed,
        "is_stable": None
        if offered is None
        else bool(load is not None and load <= 1 and not _overloaded(thirds, float(np.ptp(served.arrival_s)))),
        "is_near_limit": None if load is None else bool(NEAR_LOAD < load <= 1 or _grows(thirds, latency["p50"] or 0.0)),
        **{name: sure[name] for name in INTERVALS},
        "runs_why": Point(device, plan, work).lowered.results["runs_why"],
        "assumptions": steady_state.assumptions(device, plan, work),
    }
    return result, run


def serve(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    ask: Traffic,
    scheduler: steady_state.Scheduler,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], Simulation]:
    """All numbers of the run of what is asked for, as `evaluate`, with where its requests come from; and the run.

    Raises InputError and LimitError for requests or a workload that cannot be simulated.
    """
    requests = requests_of(
        ask, work, progress, lambda requests: rate_that_holds(device, plan, work, requests, scheduler)
    )
    result, run = evaluate(device, plan, work, requests, scheduler, progress)
    return {**result, "trace": ask.trace, "seed": ask.seed, "arrivals": ask.arrivals}, run


def _recomputed(run: Simulation) -> int:
    """Prompt tokens computed beyond those that were not found at first; some are found when they come again."""
    new = int((run.requests.input_tokens - run.device_tokens - run.host_tokens).sum())
    return max(run.n_prompt_tokens - new, 0)


def _shared(
    run: Simulation, without: Simulation, own_s: float, steady: Mapping[str, Any], kept_nothing: Mapping[str, Any]
) -> dict[str, Any]:
    """Shares of the prompts' tokens by where they were found, and what the run would be were nothing kept.

    The gain is in what each can serve in steady state: below that both serve what comes.
    """
    n = int(run.requests.input_tokens.sum())
    held, alone = steady["requests_per_s"], kept_nothing["requests_per_s"]
    return {
        "device_share": int(run.device_tokens.sum()) / n,
        "host_share": int(run.host_tokens.sum()) / n,
        "endless_share": int(run.endless_tokens.sum()) / n,
        "mean_cached_bytes": float(np.mean(run.samples["cached_bytes"])),
        "gain": held / alone if held and alone else None,
        "without": {
            "steady_requests_per_s": alone,
            "steady_tokens_per_s": kept_nothing["throughput_tokens_per_s"],
            "throughput_tokens_per_s": without.n_tokens / without.duration_s,
            "ttft_s": _spread(without.ttft_s(own_s)),
            "tpot_s": _spread(without.tpot_s),
        },
    }


def lowered_of(device: HardwareSpec, plan: KvPlan, work: Workload) -> Mapping[str, Any]:
    """Results of a design that its batch and lengths do not change."""
    return Point(device, plan, work).lowered.results


def _overloaded(thirds: list[float], span_s: float) -> bool:
    """Whether waits grow as they do under a load above one, whatever the closed form says: with the run's length."""
    return len(thirds) == 3 and thirds[2] > 2 * thirds[0] and thirds[2] > OVERLOADED_WAIT_SHARE * span_s


def _grows(thirds: list[float], latency_s: float) -> bool:
    """Whether requests wait longer and longer: a line that grows steadily gives thirds as 1 to 3 to 5."""
    return len(thirds) == 3 and thirds[0] < thirds[1] < thirds[2] > max(2 * thirds[0], 0.1 * latency_s)


def _spread(values: NDArray[np.float64]) -> dict[str, float | None]:
    """Mean, the smallest values that the shares do not exceed, and the largest."""
    if not len(values):
        return dict.fromkeys(("mean", *SHARES, "max"))
    quantiles = np.quantile(values, list(SHARES.values()), method="inverted_cdf")
    spread = {name: float(value) for name, value in zip(SHARES, quantiles, strict=True)}
    return {"mean": float(np.mean(values)), **spread, "max": float(values.max())}


def _gaps(run: Simulation) -> dict[str, float | None]:
    """Spread of the times between two tokens of an answer; shares up to one percent more."""
    if run.requests.output_tokens.max() == 1:
        return dict.fromkeys(_COLUMNS)
    shares = {name: run.gap_s(share) for name, share in SHARES.items()}
    return {"mean": run.mean_gap_s, **shares, "max": run.longest_gap_s if run.mean_gap_s is not None else None}


#: ends of the 80 % intervals: of times per token, and of times to the first
INTERVALS = ("token_time_low", "token_time_high", "first_time_low", "first_time_high")

_LATENCIES = (
    ("time to first token", "ttft_s"),
    ("time per output token", "tpot_s"),
    ("inter-token latency", "token_gap_s"),
    ("whole request", "latency_s"),
    ("queueing", "queueing_s"),
)
_COLUMNS = ("mean", *SHARES, "max")


#: what a step waits for, in words, and the least share that is told
_WAITS = {
    "bandwidth": "reading",
    "compute": "arithmetic",
    "latency": "launching",
    "dequantization": "dequantization",
    "communication": "exchange between devices",
}
_TOLD_SHARE = 0.02


def _how_batched(r: dict[str, Any]) -> str:
    what = "" if r["batching"] == "chunked" else "whole prompts, up to "
    return f"{r['batching']} ({what}{plural(r['step_tokens'], 'token')} a step)"


def _running(r: dict[str, Any]) -> str:
    """Requests at once, which paged memory lets grow beyond those that fit at full length."""
    full = f", {r['saturated_running']:,.4g} while full" if r["saturated_running"] else ""
    return f"{r['mean_running']:,.4g} in the mean{full}, at most {r['peak_running']:,}"


def _limit(r: dict[str, Any]) -> str:
    """Limit on the requests that run at once in steady state."""
    s = r["steady"]
    if s["limited_by"] == "batch":
        return f"--batch, not memory ({s['fitting_sequences']:,} fit), limits how many run"
    if s["limited_by"] == "max_num_seqs":
        return "--max-num-seqs, not memory, limits how many run"
    if s["limited_by"] == "chunk":
        fit = f"{s['fitting_sequences']:,} fit"
        return f"the tokens of a step, not memory ({fit}), limit how many run: raise --prompt-budget"
    if s["limited_by"] == "server":
        return f"the server's own limit, not memory ({s['fitting_sequences']:,} fit), limits how many run"
    return "memory limits how many run"


def _steady_lines(r: dict[str, Any]) -> list[tuple[str, str]]:
    s = r["steady"]
    if not s["requests_per_s"]:
        return [("steady state, closed form", "not one request of the mean length fits")]
    waits = sorted(s["waits_s"].items(), key=lambda item: -item[1])
    scale = s["decode_step_s"] / sum(s["waits_s"].values())  # at whole numbers of sequences and tokens
    parts = [
        f"{_WAITS[name]} {present.number(seconds * scale, 's')}"
        for name, seconds in waits
        if seconds * scale > _TOLD_SHARE * s["decode_step_s"]
    ]
    running = f"{s['running_sequences']:,.{0 if s['running_sequences'] >= 10 else 2}f}"
    return [
        (
            "steady state, closed form",
            f"{present.number(s['throughput_tokens_per_s'], 'tok/s')}, "
            f"{per_second(s['requests_per_s'])} with {running} running",
        ),
        ("", _limit(r)),
        ("", f"decode step {present.number(s['decode_step_s'], 's')}: {', '.join(parts)}"),
        ("", f"prefill takes {100 * s['prompt_share']:.3g} % of the time"),
    ]


def _shared_lines(r: dict[str, Any]) -> list[str]:
    """Where the tokens of prompts were found, and what keeping them brought."""
    shared = r.get("shared_prompts")
    if not shared:
        return []
    without, offered = shared["without"], r["offered_requests_per_s"]
    gains = [f"{shared['gain']:.3g} times the requests that can be served"] if shared["gain"] else []
    if offered is None or offered < (without["steady_requests_per_s"] or 0.0):
        sooner = r["ttft_s"]["mean"] / without["ttft_s"]["mean"]
        gains.append(f"the first token after {100 * sooner:.3g} % of the time")
    else:
        gains.append("without, more come than that, and the queue grows")
    rows = [
        ("found on the device", f"{100 * shared['device_share']:.3g} % of the prompts' tokens"),
        *([("found in host memory", f"{100 * shared['host_share']:.3g} %")] if shared["host_share"] else []),
        ("a cache without limit", f"{100 * shared['endless_share']:.3g} %"),
        ("kept beside requests", f"{present.number(round(shared['mean_cached_bytes']), 'B')} in the mean"),
        (
            "without, steady state",
            f"{present.number(without['steady_tokens_per_s'], 'tok/s')}, {per_second(without['steady_requests_per_s'])}"
            if without["steady_requests_per_s"]
            else "not one request of the mean length fits",
        ),
        (
            "without, this run",
            f"{present.number(without['throughput_tokens_per_s'], 'tok/s')}, "
            f"TTFT {present.number(without['ttft_s']['mean'], 's')}, "
            f"TPOT {present.number(without['tpot_s']['mean'], 's')} in the mean",
        ),
        ("gain", "; ".join(gains)),
    ]
    return ["", "What prompts share, kept in a radix tree", *(present.line(label, value) for label, value in rows)]


def _how_sure(r: dict[str, Any]) -> list[str]:
    """Between which values 8 of 10 measurements should lie, at this load."""
    token, first = ([r[f"{kind}_time_{end}"] for end in ("low", "high")] for kind in ("token", "first"))
    rate = r["steady"]["throughput_tokens_per_s"]
    rows = [
        ("time per output token (TPOT), mean", r["tpot_s"]["mean"], "s", token),
        ("time to first token (TTFT), mean", r["ttft_s"]["mean"], "s", first),
    ]
    rows = [row for row in rows if row[1] is not None]
    rows += [("steady state, closed form", rate, "tok/s", [1 / ratio for ratio in reversed(token)])] if rate else []
    lines = (
        present.line(label, " to ".join(present.number(value * ratio, unit) for ratio in ends))
        for label, value, unit, ends in rows
    )
    return ["", "How sure: 8 of 10 measurements lie within, at this load", *lines]


def _limit_lines(r: dict[str, Any]) -> list[str]:
    """Say that more requests come than can be served, or nearly so."""
    if r["is_stable"] is False:
        # a run that ends is served slower at its end: its own rate counts where the closed form has none above it
        is_above = r["load"] is not None and r["load"] > 1
        offered, served = r["offered_requests_per_s"], (r["steady"] if is_above else r)["requests_per_s"]
        return [
            "",
            f"Unstable: {per_second(offered)} come, {served:,.4g} can be served"
            + (f" ({int(offered / served) + 1:,} such servers would hold them)" if served else "")
            + ": the queue grows as long as they come, and latencies with the number of requests",
        ]
    if not r["is_near_limit"]:
        return []
    load = f": load {100 * r['load']:.4g} %, and the closed form may be 5 % off" if r["load"] else ""
    first, *_, last = (present.number(seconds, "s") for seconds in r["queueing_thirds_s"])
    return [
        "",
        f"Close to its limit{load}; requests queued "
        f"{first} in the first third of the run, {last} in the last: where that grows, so do latencies "
        "with the number of requests",
    ]


def text(result: dict[str, Any]) -> str:
    """Format the run."""
    r = result
    offered = r["offered_requests_per_s"]
    arrivals = (
        f"{per_second(offered)}{' (' + r['arrivals'] + ')' if r.get('arrivals') else ''}" if offered else "all at once"
    )
    lines = [
        f"{r['device']}  {r['model']}  {present.weights_said(r)}{r['quantizer']}  concurrency {r['batch']:,}"
        f"{' (as many as fit)' if r['is_full_batch'] else ''}  "
        f"{_how_batched(r)}  {r['admission']}  ({r['model_kind']} model{', ' + r['stack'] if r['stack'] else ''})",
        f"{plural(r['n_requests'], 'request')}, {arrivals}; {r['mean_input_tokens']:,.4g} tokens in, "
        f"{r['mean_output_tokens']:,.4g} out in the mean",
    ]
    if r["n_devices"] > 1:
        lines.insert(1, present.deployment_text(r))
    if r["n_rejected"]:
        does, was = ("does", "was") if r["n_rejected"] == 1 else ("do", "were")
        lines.append(f"{r['n_rejected']:,} more {does} not fit alone and {was} rejected")
    lines += ["", f"{'Latency':<26}" + "".join(f"{name.upper() if name[0] == 'p' else name:>12}" for name in _COLUMNS)]
    for label, name in _LATENCIES:
        cells = "".join(f"{present.number(r[name][column], 's'):>12}" for column in _COLUMNS)
        lines.append(f"  {label:<24}{cells}")
    if r["tpot_s"]["mean"] is None:
        lines.append("  an answer of one token has no time per output token (TPOT)")
    again = plural(r["recomputed_tokens"], "token")
    whole = (
        ("throughput", present.number(r["throughput_tokens_per_s"], "tok/s")),
        ("", f"{per_second(r['requests_per_s'])} over {present.number(r['duration_s'], 's')}"),
        *(
            [("throughput while full", present.number(r["saturated_tokens_per_s"], "tok/s"))]
            if r["saturated_tokens_per_s"]
            else []
        ),
        *_steady_lines(r),
        *([("load", f"{100 * r['load']:.4g} % of the rate that holds in steady state")] if r["load"] else []),
        *(
            [
                (
                    "closed form at this rate",
                    f"TPOT {present.number(r['at_rate']['tpot_s'], 's')}, "
                    f"TTFT {present.number(r['at_rate']['ttft_s'], 's')}",
                )
            ]
            if r["at_rate"]
            else []
        ),
        ("busy", f"{100 * r['utilisation']:.4g} % of the time, however few requests run"),
        ("running", _running(r)),
        ("memory of requests", f"{present.number(round(r['mean_used_bytes']), 'B')} in the mean"),
        ("", f"{present.number(r['peak_used_bytes'], 'B')} at most, of {present.number(r['free_bytes'], 'B')}"),
        (
            "preempted for memory",
            f"{plural(r['n_preempted'], 'time')}, {again} recomputed, {100 * r['recomputed_share']:.3g} % of the "
            "prompts' work",
        ),
    )
    lines += ["", "Whole run", *(present.line(label, value) for label, value in whole)]
    lines += [*_shared_lines(r), *_how_sure(r), *_limit_lines(r)]
    if r["n_beyond_positions"]:
        lines += ["", "Note: " + beyond_positions(r["n_beyond_positions"], r["max_position_tokens"])]
    if r["runs_why"]:
        lines += ["", present.as_if_run(r["runs_why"])]
    if r["assumptions"]:
        lines += ["", f"{rests_on(r['assumptions'])} Their sources: `dse show {r['device'].lower()}`."]
    return "\n".join(lines)


def samples_table(result: dict[str, Any], run: Simulation) -> pd.DataFrame:
    """Running requests over time: a row per sample, with tokens per second since the one before."""
    table = pd.DataFrame(run.samples)
    gap = table["time_s"].diff()
    table["tokens_per_s"] = (table["tokens"].diff() / gap.where(gap > 0)).fillna(0.0)
    table["free_bytes"] = float(run.free_bytes)
    cached = table.pop("cached_bytes")
    if run.requests.blocks is not None:
        table["held_bytes"] = table["used_bytes"] + cached
    for name in ("device", "model", "quantizer", "batching", "admission"):
        table[name] = result[name]
    return table


def latency_table(result: dict[str, Any]) -> pd.DataFrame:
    """A row per kind of latency; seconds."""
    return pd.DataFrame([{"name": name, **result[name]} for _, name in _LATENCIES])


def waits_table(result: dict[str, Any], run: Simulation, name: str = "") -> pd.DataFrame:
    """A row per percent of the requests, 1 to 99: the times that so many of them do not exceed; seconds.

    `name` is what the figure calls the design: by default its device, model and quantizer.
    """
    shares, per_token_s = np.arange(1, 100) / 100, run.tpot_s
    return pd.DataFrame(
        {
            "design": name or f"{result['device']}, {result['model']}, {result['quantizer']}",
            "share": shares,
            "ttft_s": np.quantile(run.ttft_s(result["host_prompt_s"]), shares, method="inverted_cdf"),
            "tpot_s": np.quantile(per_token_s, shares, method="inverted_cdf") if len(per_token_s) else np.nan,
        }
    )


def write(out: str, result: dict[str, Any], run: Simulation, command: str) -> list[str]:
    """Tables, JSON and the figures, made by `command`, into directory `out`; paths. Raises InputError, OutputError."""
    table, waits = samples_table(result, run), waits_table(result, run)
    charts = {"simulation": FIGURES["simulation"].chart(table), "waits": FIGURES["waits"].chart(waits)}
    steps = run.steps.table()
    if len(steps):
        charts["prefix_steps"] = FIGURES["prefix_steps"].chart(steps)
    images = {name: image.images(chart, command) for name, chart in charts.items()}
    contents = {
        "simulation.json": json_text(result, 2).encode(),
        "over_time.csv": table.to_csv(index=False, lineterminator="\n").encode(),
        "latencies.csv": latency_table(result).to_csv(index=False, lineterminator="\n").encode(),
        "waits.csv": waits.to_csv(index=False, lineterminator="\n").encode(),
        **({"prefix_steps.csv": steps.to_csv(index=False, lineterminator="\n").encode()} if len(steps) else {}),
        **{f"{name}.{kind}": content for name, drawn in images.items() for kind, content in drawn.items()},
        **{f"{name}.html": image.export(chart, "html", command) for name, chart in charts.items()},
    }
    return files.publish(out, contents)
