"""The table behind Oaken's Figure 14: throughput of request traces in steady state."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pandas as pd

from dse.model import kv_layout
from dse.model.formulas import steady, throughput
from dse.model.formulas.serving import padding_factor
from dse.model.point import Point
from dse.model.stacks import kind_of, stack_of, stack_text
from dse.questions.systems import BATCHES, DEFAULT, ReportRequest, System
from dse.serving import steady_state, trace_tables
from dse.serving.requests import Lengths, Moments
from dse.specs.device_and_model import ModelSpec
from dse.specs.workload import Workload

#: systems and models of Figure 14 (Oaken 6.2): FP16 on GPU and LPU, QServe, Tender, Oaken
SYSTEMS = ("A100 FP16 (vLLM)", "A100 QServe", "Tender", "LPU-LPDDR FP16", "Oaken-HBM", "Oaken-LPDDR")
MODELS = ("llama2-13b", "mixtral-8x7b-oaken")
FIGURE_BATCHES = (16, 32, 64, 128)
#: batches of a report with many: so many of them at most
MAX_BATCHES = 16
#: devices whose systolic arrays compute a batch's prompts padded to the longest (Oaken 6.2, Real-world benchmark)
PADDING_DEVICES = ("tender-a100",)
#: BurstGPT's files are the user's; in their place answers of Conversation, so many times as long (assumed)
LONGER_ANSWERS = 5


@dataclass(frozen=True)
class NamedTrace:
    """A trace of the figure. `lengths` are those of the prompts: answers may be made longer."""

    name: str
    moments: Moments
    lengths: Lengths
    assumption: str = ""


@cache
def traces() -> tuple[NamedTrace, ...]:
    """Conversation and code as shipped, and Conversation with long answers in place of BurstGPT."""
    traces = []
    for name, title in (("azure-conv", "Conversation"), ("azure-code", "Code")):
        tables = trace_tables.load(name)
        traces.append(NamedTrace(title, tables.moments, tables.lengths()))
    longer = replace(
        traces[0],
        name="Long answers",
        moments=traces[0].moments.with_longer_answers(LONGER_ANSWERS),
        assumption="answer_lengths",
    )
    return (*traces, longer)


def evaluate(system: System, kv: kv_layout.KvPlan, trace: NamedTrace, work: Workload) -> dict[str, Any]:
    """One system on one trace in steady state, at most `work.batch` requests at once; padded prompts where it pads."""
    device = system.device_for(kv.model)
    state = steady_state.steady(device, kv, work, trace.moments)
    n, mean_out = state["n_sequences"], trace.moments.mean_output_tokens
    stack_name, stack = stack_of(device, work)
    lowered = Point(device, kv, work).lowered
    sure = lowered.sure.tokens
    padding, tokens_per_s = 1.0, state["throughput_tokens_per_s"]
    if n and system.device in PADDING_DEVICES:
        padding = padding_factor(trace.lengths.longest_input(n), trace.moments.mean_input_tokens)
        request_s = steady.steady_request_s(mean_out, n, state["decode_step_s"], padding * state["prefill_s"])
        tokens_per_s = throughput.static_batch_tokens_per_s(1, mean_out, request_s)
    assumptions = [*steady_state.assumptions(device, kv, work), *([trace.assumption] if trace.assumption else [])]
    return {
        "system": system.label,
        "device": device.name,
        "model": kv.model.name,
        "quantizer": kv.quantizer_name,
        "model_kind": kind_of(stack, work),
        "stack": stack_text(stack_name, work),
        "trace": trace.name,
        "input_tokens": trace.moments.mean_input_tokens,
        "output_tokens": mean_out,
        "mean_decode_context_tokens": trace.moments.mean_decode_context_tokens,
        "batch": work.batch,
        "admission": work.admission,
        "running_batch": n,
        "max_batch": state["fitting_sequences"],
        "feasible": n > 0,
        "infeasible_reason": None if n else "not one request of the trace's mean length fits",
        "capacity_bytes": device.capacity_bytes,
        "effective_bits": float(kv.effective_bits),
        "bound": None,
        "padding_factor": padding,
        "decode_step_s": state["decode_step_s"],
        "prefill_s": state["prefill_s"],
        "throughput_tokens_per_s": tokens_per_s,
        "token_time_low": sure.low,
        "token_time_high": sure.high,
        "assumptions": ", ".join(assumptions),
        "runs": lowered.results["runs"],
        "runs_why": lowered.results["runs_why"],
    }


def _asked(request: ReportRequest) -> tuple[Sequence[System], Sequence[ModelSpec], Sequence[int]]:
    """Systems, models and batches of the figure: the paper's where the report is about the paper's."""
    by_label = {system.label: system for system in DEFAULT}
    systems = [by_label[label] for label in SYSTEMS] if request.is_default else request.systems
    models = [model for model in request.models if model.name in MODELS] or request.models[:2]
    every = -(-len(request.batches) // MAX_BATCHES)
    return systems, models, FIGURE_BATCHES if request.batches == BATCHES else request.batches[::every]


def _rows(request: ReportRequest) -> Iterator[dict[str, Any]]:
    systems, models, batches = _asked(request)
    for model in models:
        for system in systems:
            if request.is_default and system.quantizer == "qserve" and model.n_experts > 1:
                continue  # Oaken 6.2: QServe does not support mixtures of experts
            quantizer = request.bits.quantizer(system.quantizer)
            kv = kv_layout.build(model, quantizer, quantizer)
            stack = request.stack if system.device_for(model).stacks else None
            for trace in traces():
                for batch in batches:
                    work = Workload(
                        batch=batch,
                        admission=system.admission,
                        model_kind=request.model_kind,
                        stack=stack,
                        memory=request.memory,
                        **request.deployment,
                    )
                    yield evaluate(system, kv, trace, work)


def throughput_of_traces(request: ReportRequest) -> pd.DataFrame:
    """Tokens per second in steady state: a row per model, system, trace and batch. Lengths are means, in tokens.

    `running_batch` requests run at all times, `max_batch` would fit; `prefill_s` is of one prompt, without padding.
    """
    table = pd.DataFrame(list(_rows(request)))
    texts = (
        "system",
        "device",
        "model",
        "quantizer",
        "model_kind",
        "stack",
        "trace",
        "admission",
        "assumptions",
        "runs_why",
        "infeasible_reason",
        "bound",
    )
    return table.astype(dict.fromkeys(texts, "string"))


def lengths_of_traces(request: ReportRequest) -> pd.DataFrame:
    """Lengths of the shipped traces: at most that many prompt and answer tokens in a `share` of the requests.

    Columns: trace, share, input_tokens, output_tokens, source, licence. The same in every report.
    """
    rows = []
    for name in trace_tables.files():
        tables = trace_tables.load(name)
        at = zip(trace_tables.LEVELS, tables.input_tokens, tables.output_tokens, strict=True)
        rows += [
            {
                "trace": tables.title,
                "share": share,
                "input_tokens": int(n_in),
                "output_tokens": int(n_out),
                "source": tables.source,
                "licence": tables.licence,
            }
            for share, n_in, n_out in at
        ]
    return pd.DataFrame(rows).astype(dict.fromkeys(("trace", "source", "licence"), "string"))
