"""Requests of a trace, and how many of them fit on a device: numbers and text of `dse traffic`."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dse.core import units
from dse.core.columns import Column, aligned, cells
from dse.core.errors import InputError, did_you_mean, show
from dse.core.progress import Progress
from dse.model import uncertainty
from dse.model.formulas.serving import batching_gain, padding_factor
from dse.model.kv_layout import KvPlan
from dse.model.point import Point
from dse.model.results import rests_on
from dse.model.stacks import kind_of, stack_of, stack_text
from dse.report import present
from dse.serving import admission, block_traces, steady_state, trace_files, trace_tables
from dse.serving.requests import Lengths, Moments, quantile
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import MAX_BATCH, Workload

#: shares of the requests whose lengths are shown
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0)
BATCHES = (16, 32, 64, 128)


@dataclass(frozen=True)
class TraceSummary:
    """A trace by name or from a file: exact moments, and its lengths (of a shipped one as its tables have them).

    `quantiles` are prompt and answer at SHARES.
    """

    name: str
    title: str
    moments: Moments
    lengths: Lengths
    quantiles: tuple[list[int], list[int]]
    n_failed: int = 0
    #: where the numbers come from, with licence; "" for a user's file
    source: str = ""


def find(name: str, progress: Progress | None = None) -> TraceSummary:
    """A shipped trace by name (any case), or one in a file. Raises InputError."""
    known = trace_tables.files()
    if name.strip().lower() in known:
        tables = trace_tables.load(name.strip().lower())
        source = f"{tables.source}; {tables.licence}; {tables.attribution}"
        lengths, quantiles = tables.lengths(), tables.quantiles(SHARES)
        return TraceSummary(
            tables.name, title=tables.title, moments=tables.moments, lengths=lengths, quantiles=quantiles, source=source
        )
    if not (
        name.lower().endswith((".csv", block_traces.ENDING))
        or os.sep in name
        or (name and "\0" not in name and os.path.exists(name))
    ):
        raise InputError(
            f"trace = {show(name)}: {did_you_mean(name, known)}; or give the path of a .csv or .jsonl file"
        )
    n_failed, schema = 0, "Mooncake"
    if name.lower().endswith(block_traces.ENDING):
        lengths = Lengths.of(block_traces.read(name, progress))
    else:
        trace = trace_files.summary(name, progress)
        lengths, n_failed, schema = trace.lengths, trace.n_failed, trace.schema
    at_shares = tuple(quantile(counts, SHARES) for counts in (lengths.input_counts, lengths.output_counts))
    return TraceSummary(
        name,
        title=f"{schema} schema",
        moments=lengths.moments,
        lengths=lengths,
        quantiles=(at_shares[0], at_shares[1]),
        n_failed=n_failed,
    )


def batching(trace: TraceSummary, batches: Sequence[int] = BATCHES) -> list[dict[str, float]]:
    """For each batch the expected largest answer and longest prompt, and what they cost."""
    rows = []
    for batch in batches:
        largest, longest = trace.lengths.largest_output(batch), trace.lengths.longest_input(batch)
        rows.append(
            {
                "batch": batch,
                "largest_output_tokens": largest,
                "longest_input_tokens": longest,
                "batching_gain": batching_gain(largest, trace.moments.mean_output_tokens),
                "padding_factor": padding_factor(longest, trace.moments.mean_input_tokens),
            }
        )
    return rows


def about(trace: TraceSummary, batches: Sequence[int] = BATCHES) -> dict[str, Any]:
    """Numbers of a trace alone, in SI units."""
    moments = trace.moments
    return {
        "trace": trace.name,
        "title": trace.title,
        "source": trace.source,
        **asdict(moments),
        "n_failed": trace.n_failed,
        "rate_per_s": moments.rate_per_s,
        "mean_decode_context_tokens": moments.mean_decode_context_tokens,
        "quantiles": [
            {"share": share, "input_tokens": n_in, "output_tokens": n_out}
            for share, n_in, n_out in zip(SHARES, *trace.quantiles, strict=True)
        ],
        "batching": batching(trace, batches),
    }


def fitting(
    trace: TraceSummary, device: HardwareSpec, plan: KvPlan, work: Workload, max_tokens: int | None = None
) -> dict[str, Any]:
    """Requests of the trace that fit on a device under each memory rule, and their throughput in steady state."""
    rows, sure = [], Point(device, plan, work).lowered.results
    for fit in admission.fits(device, plan, work, trace.lengths, max_tokens):
        rate = requests_per_s = None
        ends: tuple[float | None, float | None] = None, None
        if fit.n_sequences:
            steady = steady_state.steady(device, plan, work, trace.moments, min(fit.n_sequences, MAX_BATCH))
            rate, requests_per_s = steady["throughput_tokens_per_s"], steady["requests_per_s"]
            ends = uncertainty.ends({**sure, **steady, "running_batch": steady["running_sequences"]})
        rows.append(
            {
                "rule": fit.rule,
                "n_sequences": fit.n_sequences,
                "held_bytes": fit.held_bytes,
                "used_bytes": fit.used_bytes,
                "waste_share": fit.waste_share,
                "throughput_tokens_per_s": rate,
                "throughput_low": ends[0],
                "throughput_high": ends[1],
                "requests_per_s": requests_per_s,
            }
        )
    stack_name, stack = stack_of(device, work)
    return {
        "device": device.name,
        "model": plan.model.name,
        "quantizer": plan.quantizer_name,
        "model_kind": kind_of(stack, work),
        "stack": stack_text(stack_name, work),
        "page_tokens": work.page_tokens,
        **{name: getattr(work, name) for name in present.DEPLOYMENT},
        **present.weights_fields(plan.model, work),
        "longest_tokens": admission.longest_tokens(plan, trace.lengths, max_tokens),
        "rules": rows,
        "max_position_tokens": plan.model.max_position_tokens,
        "n_beyond_positions": _n_beyond(trace, plan),
        "runs_why": Point(device, plan, work).lowered.results["runs_why"],
        "assumptions": steady_state.assumptions(device, plan, work),
    }


def _n_beyond(trace: TraceSummary, plan: KvPlan) -> int:
    """Requests that need more positions than the model was trained for (of a shipped trace by its quantiles)."""
    most, counts = plan.model.max_position_tokens, trace.lengths.final_counts
    share = float(counts[most + 1 :].sum() / counts.sum()) if most else 0.0
    return round(share * trace.moments.n_requests)


def plural(n: int, noun: str) -> str:
    """1 token, 2 tokens."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def per_second(rate: float) -> str:
    """A rate of requests: 2.017 requests/s, 1,000,000 requests/s."""
    return f"{units.plain(rate)} requests/s"


def beyond_positions(n: int, most: int) -> str:
    """Sentence about `n` requests that are longer than a model was made for."""
    are = "is" if n == 1 else "are"
    return f"{plural(n, 'request')} {are} longer than the {most:,} positions the model was trained for"


#: batches of requests that start together
_BATCHING = (
    Column("batch", form=","),
    Column("largest_output_tokens", title="largest answer", form=",.0f"),
    Column("batching_gain", title="gain of continuous batching", form="{batching_gain:.2f}x"),
    Column("longest_input_tokens", title="longest prompt", form=",.0f"),
    Column("padding_factor", title="padding", form="{padding_factor:.2f}x"),
)
#: what each rule of memory gives
_RULES = (
    Column("n_sequences", title="concurrency", form=","),
    Column("held_bytes", title="held for a request", form=lambda row: units.human(row["held_bytes"], "B")),
    Column("waste_share", title="of it empty", form=".1%"),
    Column("throughput_tokens_per_s", title="steady throughput", form="{throughput_tokens_per_s:,.4g} tok/s"),
    Column("throughput_low", title="80 % interval", form="{throughput_low:,.4g} to {throughput_high:,.4g}"),
    Column("requests_per_s", title="requests/s", form=",.4g"),
)


def text(trace: dict[str, Any], fit: dict[str, Any] | None) -> str:
    """Format the numbers of `about` and `fitting`."""
    rate = trace["rate_per_s"]
    lines = [f"{trace['trace']}  {trace['title']}", ""]
    lines += aligned(
        [
            ("requests", f"{trace['n_requests']:,}"),
            *([("failed requests, left out", f"{trace['n_failed']:,}")] if trace["n_failed"] else []),
            ("from first to last arrival", units.human(trace["duration_s"], "s")),
            ("mean rate", per_second(rate) if rate else "-"),
            ("mean prompt", f"{trace['mean_input_tokens']:,.2f} tokens"),
            ("mean answer", f"{trace['mean_output_tokens']:,.2f} tokens"),
            ("mean context of a decode step", f"{trace['mean_decode_context_tokens']:,.1f} tokens"),
            (
                "E[I^2], E[I*O], E[O^2]",
                f"{trace['mean_input_squared']:,.5g}, {trace['mean_input_output']:,.5g}, "
                f"{trace['mean_output_squared']:,.5g} token^2",
            ),
        ],
        indent="  ",
    )
    lines += ["", "Lengths (tokens)"]
    shares = (f"{row['share']:.1%}" if row["share"] == 0.999 else f"{row['share']:.0%}" for row in trace["quantiles"])
    lines += aligned(
        [
            ("share of requests", *shares),
            *(
                (name, *(f"{row[column]:,}" for row in trace["quantiles"]))
                for name, column in (("prompt, at most", "input_tokens"), ("answer, at most", "output_tokens"))
            ),
        ],
        1,
        "  ",
    )
    lines += ["", "Batches of requests that start together (static batching)"]
    lines += aligned(cells(_BATCHING, trace["batching"]), 1, "  ")
    if fit:
        lines += [
            "",
            f"{fit['device']}  {fit['model']}  {present.weights_said(fit)}{fit['quantizer']}  "
            f"({fit['model_kind']} model{', ' + fit['stack'] if fit['stack'] else ''})",
        ]
        lines += [present.deployment_text(fit)] if fit["n_devices"] > 1 else []
        rules = [Column("rule", title="memory", form=lambda row: _rule_text(row["rule"], fit)), *_RULES]
        lines += aligned(cells(rules, fit["rules"]), 1, "  ")
        if not any(row["n_sequences"] for row in fit["rules"]):
            lines.append("  the longest request of the trace does not fit")
        if fit["n_beyond_positions"]:
            lines += ["", "Note: " + beyond_positions(fit["n_beyond_positions"], fit["max_position_tokens"])]
        if fit["runs_why"]:
            lines += ["", present.as_if_run(fit["runs_why"])]
        if fit["assumptions"]:
            lines += ["", rests_on(fit["assumptions"])]
    if trace["source"]:
        lines += ["", f"Derived from {trace['source']}."]
    return "\n".join(lines)


def _rule_text(rule: admission.Rule, fit: dict[str, Any]) -> str:
    longest = f" ({fit['longest_tokens']:,} tokens)" if rule == "longest" else ""
    pages = f" ({fit['page_tokens']} tokens)" if rule == "paged" else ""
    return admission.RULES[rule] + longest + pages
