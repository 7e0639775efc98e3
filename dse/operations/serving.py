"""Requests one by one, traces, and a ring of devices: simulate, traffic, ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.core.errors import InputError
from dse.core.field import TOKENS, WHOLE, WHOLES
from dse.operations.declare import SILENT, Console, argument, operation, option, work
from dse.operations.shared import (
    OUTPUT,
    TRAFFIC,
    AssumesLike,
    Device,
    Model,
    OnDesign,
    Printed,
    Quantized,
    Quantizer,
    WithHost,
    WithWorkload,
    device_option,
    hardware,
    json_option,
    layout,
    model_option,
    quantizer_option,
    several,
)
from dse.specs.workload import ASKED, DEPLOYMENT, MAX_BATCH, MEMORY, TIMING, Workload

if TYPE_CHECKING:
    from dse.report.simulation import SimulatedRun
    from dse.serving.simulator import Simulation
    from dse.specs.device_and_model import ModelSpec


@operation(
    "simulate",
    "Serve a trace or a rate of requests, step by step.",
    function="simulate",
    positional=("device", "model", "quantizer", "workload"),
)
class SimulateServing(OnDesign, WithHost, Printed):
    """Serve requests step by step, seeded: throughput, TTFT, TPOT, queueing, memory.

    A request is admitted in order of arrival where a place and memory for its prompt are free; paged memory that runs
    out sends the youngest back. Beside it stands the steady state in closed form, and the rate that it can hold.

    The first token is known when the prompt is computed. Arrivals that are drawn are scaled to the rate asked for.

    Where prompts begin alike (--prefix, or a .jsonl trace that names their blocks), what they share is kept in a radix
    tree, as vLLM and SGLang do: it says what is found, and what that brings against keeping nothing.

    >>> found = dse.simulate("h200", "qwen3-32b", "fp8", trace="azure-conv", rate="50%", n_requests=200)
    >>> found["n_requests"], found["ttft_s"]["p50"] < found["ttft_s"]["p99"]
    (200, True)
    """

    trace: str | Path | None = option(
        None, "Whose lengths (and arrivals); default: all alike.", metavar="azure-conv|azure-code|FILE"
    )
    n_prefixes: int | None = option(
        None,
        "How many texts of --prefix tokens there are: each prompt begins with one of them; default: 1.",
        WHOLE,
        name="prefixes",
        metavar="N",
    )
    rate: float | str | None = option(
        None,
        "Requests per second (Poisson), a share of the rate that holds (70%), the trace's own arrivals (a "
        "shipped trace's: gaps drawn from its quantiles), or all at once; default: as the trace, all at once "
        "without one.",
        metavar="R|70%|trace|full",
    )
    n_requests: int | None = option(
        None, "How many; default: 10,000, or all of a FILE.", WHOLE, name="requests", metavar="N"
    )
    n_servers: int = option(
        1,
        "Serve what one of N servers gets from a router by prefix: requests that begin alike come to the same one; "
        "--rate and --requests are of all servers.",
        WHOLE,
        name="servers",
        metavar="N",
    )
    seed: int = option(1, "Of lengths and arrivals.", WHOLE)
    workload: Workload = work(
        only=("input_tokens", "output_tokens", "prefix_tokens", "samples", *TRAFFIC),
        helps={
            "batching": "static: until the longest answer ends; continuous: replaced at once, prompts computed whole; "
            "chunked: parts of prompts beside what decodes; steps of up to --prompt-budget tokens; default: as the "
            "server's release, continuous where memory is counted as papers do.",
            "input_tokens": "Prompt tokens, without --trace.",
            "output_tokens": "Generated tokens, without --trace.",
            "prefix_tokens": "Tokens that a prompt shares with others, from its start on, without --trace.",
            "max_model_len": "Longest request, prompt and answer, that servers take: longer ones are left out.",
            "samples": "Answers drawn for each prompt, which share its whole blocks; requests, batch and rate count "
            "answers.",
            "batch": "Most requests that run at once, no more than --max-num-seqs; default: as many as the server "
            "takes, which admits by the memory that is free.",
            "admission": "Memory held from the start, or page by page; static batching reserves; default: paged on "
            "GPUs, reserve on other devices and with --memory paper.",
        },
    )
    as_json: bool = json_option("Print every number as JSON, in SI base units.")
    out: str | None = option(
        None, "Write tables, JSON and the figures there.", metavar="DIR", in_python=False, group=OUTPUT
    )

    def unused(self) -> dict[str, str]:
        """A trace has its own lengths, and static batching reserves memory."""
        unused: dict[str, str] = {}
        if self.trace is not None:
            lengths = dict.fromkeys(("input_tokens", "output_tokens"), "with --trace, which has its own lengths")
            shared = dict.fromkeys(
                ("prefix_tokens", "n_prefixes"), "with --trace: a .jsonl file says what prompts share"
            )
            unused |= lengths | shared
        elif not self.workload.prefix_tokens:
            unused |= {"n_prefixes": "without --prefix"}
        shares = self.workload.prefix_tokens or self.workload.samples > 1
        if not shares and not str(self.trace or "").lower().endswith(".jsonl"):
            unused |= {"host_cache": "where prompts share nothing: give --prefix, --samples, or a .jsonl trace"}
        if self.workload.prefix_cache == "off":
            unused |= {"host_cache": "with --prefix-cache off: it keeps what the prefix cache gives up"}
        unused |= self.unused_of_host()
        if self.workload.batching == "static":
            unused |= {"page_tokens": "with --batching static, which reserves memory"}
            if self.workload.admission == "paged":
                unused |= {"admission": "with --batching static, which reserves memory"}
        elif self.workload.admission == "reserve":
            unused |= {"page_tokens": "with --admission reserve"}
        return unused

    def run(self, console: Console = SILENT) -> tuple[dict[str, Any], Simulation]:
        """Serve the requests: the numbers of the run, and the run itself."""
        from dse.core import files
        from dse.model.lower import check_samples
        from dse.questions.common import Candidate
        from dse.report import simulation
        from dse.serving import simulator, steady_state
        from dse.serving.arrivals import Traffic

        self.workload.refuse_idle()
        spec, plan = self.hardware(), self.plan()
        host = self.host(Candidate(spec, plan), self.workload)
        check_samples(spec, plan, self.workload)
        scheduler = steady_state.scheduler_of(spec, plan, self.workload, host)
        simulator.check(1 if self.n_requests is None else self.n_requests, scheduler)
        if self.out is not None:
            with files.publishing(self.out):  # seen to be writable before the run, and left as it was
                pass
        trace, rate = (None if value is None else str(value) for value in (self.trace, self.rate))
        return simulation.serve(
            spec,
            plan,
            replace(self.workload, prefix_tokens=0, samples=1),
            Traffic(
                trace=trace,
                rate=rate,
                n_requests=self.n_requests,
                seed=self.seed,
                prefix_tokens=self.workload.prefix_tokens,
                n_prefixes=1 if self.n_prefixes is None else self.n_prefixes,
                samples=self.workload.samples,
                n_servers=self.n_servers,
            ),
            scheduler,
            console.progress,
        )

    def value(self, outcome: tuple[dict[str, Any], Simulation]) -> SimulatedRun:
        """Throughput, waits, queueing and memory of the run: what `dse simulate --json` prints, in SI base units."""
        from dse.report.simulation import SimulatedRun

        return SimulatedRun(outcome[0])

    def written(self, outcome: tuple[dict[str, Any], Simulation], console: Console) -> list[str]:
        """Write tables, JSON and figures where a directory is given."""
        from dse.report import simulation

        paths = simulation.write(self.out, *outcome, console.command) if self.out is not None else []
        return [] if self.as_json else [f"wrote {path}" for path in paths]

    def text(self, outcome: tuple[dict[str, Any], Simulation]) -> str:
        """The run as people read it."""
        from dse.report import simulation

        return simulation.text(outcome[0])

    def document(self, outcome: tuple[dict[str, Any], Simulation]) -> dict[str, Any]:
        """The numbers as they are."""
        return outcome[0]


@operation("traffic", "What a request trace is made of, and what of it fits.")
class DescribeTraffic(AssumesLike, Quantized, WithWorkload, Printed):
    """Describe a trace of requests: rate, lengths, moments, what batches of unequal requests cost.

    FILE is a CSV file of Azure's schema (TIMESTAMP, a date and time; ContextTokens, GeneratedTokens) or BurstGPT's
    (Timestamp, in seconds; Request tokens, Response tokens; rows without tokens failed and are left out), of any size.
    With --device and --model: how many of its requests fit at once with the longest length reserved for each, its own
    final length, or paged memory, and the requests and tokens per second of so many in steady state.
    """

    trace: str = argument(metavar="azure-conv|azure-code|FILE")
    device: Device | None = device_option(None, "Device name or .toml file; with --model: what fits.")
    model: Model | None = model_option(None)
    max_tokens: int | None = option(
        None,
        "Length reserved for each request; default: the model's longest, at least the trace's.",
        TOKENS,
        metavar="N",
    )
    batches: Sequence[int] | None = option(
        None, "Batch sizes; default: 16,32,64,128.", WHOLES, name="batch", metavar="16,32", low=1, high=MAX_BATCH
    )
    workload: Workload = work(
        only=("weights_bits", "weights", "page_tokens", "dequant_path", *MEMORY, *DEPLOYMENT, *TIMING),
        fixed={"admission": "paged"},
    )
    as_json: bool = json_option("Print every number as JSON, in SI base units.")

    def unused(self) -> dict[str, str]:
        """Without a device nothing is laid out."""
        names = ("quantizer", "key_quantizer", "value_quantizer", *ASKED)
        return dict.fromkeys(names, "without a device") if self.device is None else {}

    def run(self, console: Console = SILENT) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """The numbers of the trace, and what of it fits on a device."""
        from dse.report import present_traffic

        if (self.device is None) != (self.model is None):
            missing = "device" if self.device is None else "model"
            raise InputError(f"{missing} is missing: give both --device and --model, or neither")
        if self.device is None and self.max_tokens is not None:
            raise InputError(f"max-tokens = {self.max_tokens}: says what a device reserves: give --device and --model")
        spec = plan = None
        if self.device is not None and self.model is not None:
            spec, plan = hardware(self.device), layout(self.model, *self.sides())
            self.workload.refuse_idle()
        trace = present_traffic.find(self.trace, console.progress)
        summary = present_traffic.about(trace, several(self.batches or present_traffic.BATCHES))
        if spec is None or plan is None:
            return summary, None
        return summary, present_traffic.fitting(trace, spec, plan, self.workload, self.max_tokens)

    def text(self, outcome: tuple[dict[str, Any], dict[str, Any] | None]) -> str:
        """The trace as people read it."""
        from dse.report import present_traffic

        return present_traffic.text(*outcome)

    def document(self, outcome: tuple[dict[str, Any], dict[str, Any] | None]) -> dict[str, Any]:
        """The numbers of the trace, and under `fit` those of the device."""
        summary, fit = outcome
        return {**summary, **({"fit": fit} if fit else {})}


@operation("ring", "A long context over a ring of devices.")
class EvaluateRing(AssumesLike, WithWorkload, Printed):
    """Ring attention: longest context, prompt and decode step with a context in blocks on equal devices.

    Every device holds all weights, so a ring takes none of --tp, --pp, --ep, --dp-attention and --dcp; blocks are
    contiguous, so under a causal mask the last device has most to do. The decode step is that of the last token,
    packing at its mean over a group.
    """

    device: Device = device_option(help="Device name or .toml file; all are equal.")
    model: Model = model_option()
    quantizer: Quantizer = quantizer_option()
    n_ring: int = option(8, "Devices in the ring.", WHOLE, name="devices", unit="device")
    link: str | None = option(
        None, "Bandwidth to the next device, one direction; default: the device's.", metavar="'300 GB/s'", unit="B/s"
    )
    workload: Workload = work(
        only=("batch", "input_tokens", "output_tokens", "weights_bits", *MEMORY, *DEPLOYMENT, *TIMING),
        defaults={"input_tokens": 131072, "batch": 1},
        helps={"batch": "Requests served together."},
        hidden=DEPLOYMENT,
    )
    as_json: bool = json_option("Print every result as JSON, in SI base units.")

    def run(self, console: Console = SILENT) -> tuple[dict[str, Any], ModelSpec]:
        """The results of the ring, and the model that it serves."""
        from dse.model import ring
        from dse.specs.quantity import named_quantity

        spec, plan = hardware(self.device), layout(self.model, self.quantizer, self.quantizer)
        bandwidth = named_quantity("link", self.link, "B/s", 1e6, 1e15) if self.link else None
        self.workload.refuse_idle()
        return ring.evaluate(spec, plan, self.workload, self.n_ring, bandwidth), plan.model

    def text(self, outcome: tuple[dict[str, Any], ModelSpec]) -> str:
        """The ring as people read it."""
        from dse.report import present

        return present.ring_text(*outcome)

    def document(self, outcome: tuple[dict[str, Any], ModelSpec]) -> dict[str, Any]:
        """The numbers as they are."""
        return outcome[0]
