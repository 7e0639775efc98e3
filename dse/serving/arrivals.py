"""The requests that `dse simulate` serves: from a trace, or all alike, arriving as they did or at a rate."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dse.core.errors import InputError, did_you_mean, show
from dse.core.field import check_whole
from dse.model.kv_layout import KvPlan
from dse.serving import block_traces, prefix_tree, reuse, routing, simulator, steady_state, trace_files, trace_tables
from dse.serving.requests import MAX_TOKENS, Requests
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import Workload

#: arrivals that are no rate: all at once, and as in the trace
FULL, AS_TRACE = "full", "trace"
MAX_RATE_PER_S = 1e9


#: shares of the rate that holds that may be asked for
MAX_SHARE = 10.0
#: servers that share the requests
MAX_SERVERS = 100_000


@dataclass(frozen=True)
class Traffic:
    """Requests to serve. `trace` is a shipped one's name, a file, or None for `work`'s lengths, all alike.

    `rate`: requests per second (Poisson), a share of the rate that holds in steady state ("70%"), "trace" for the
    trace's own arrivals, "full" for all at once; None: as the trace where there is one. `n_requests` None: all of a
    file, else 10,000. Requests that are all alike begin with one of `n_prefixes` texts of `prefix_tokens`, if any.
    `samples` requests, which the rate and `n_requests` count, are answers to one prompt. Of `n_servers` the first gets
    its share of them (`routing.share_of`); rate and `n_requests` are of all.
    """

    trace: str | None = None
    rate: str | None = None
    n_requests: int | None = None
    seed: int = 1
    prefix_tokens: int = 0
    n_prefixes: int = 1
    samples: int = 1
    n_servers: int = 1

    @property
    def is_shipped(self) -> bool:
        """Whether the trace ships as moments and quantiles."""
        return self.trace is not None and self.trace.strip().lower() in trace_tables.files()

    @property
    def arrivals(self) -> str:
        """Describe the arrivals. Raises InputError for a wrong rate."""
        rate = rate_of(self)
        if rate == AS_TRACE:
            said = "gaps drawn from the trace's" if self.is_shipped else "as in the file"
        else:
            said = "all at once" if rate == FULL else "Poisson"
        return said if self.n_servers == 1 else f"{said}, one of {self.n_servers:,} servers"


@dataclass(frozen=True)
class Share:
    """A rate as a share of the one that holds in steady state."""

    share: float


def requests_of(
    ask: Traffic, work: Workload, progress: Any = None, holds: Callable[[Requests], float] | None = None
) -> Requests:
    """The requests, the same for the same seed. `holds` gives the rate of a server that a rate in % is a share of.

    Arrivals that are drawn are scaled to have the mean rate asked for: a sample of gaps alone is some percent off.
    Those of a file whose clock is coarse are spread between its ticks. Raises InputError, LimitError.
    """
    check_whole("servers", ask.n_servers, 1, MAX_SERVERS)
    if ask.samples > 1:
        return _answers(ask, work, progress, holds)
    drawn = _all_requests(ask, work, progress, holds)
    if work.max_model_len:  # servers refuse longer ones
        fits = drawn.input_tokens + drawn.output_tokens <= work.max_model_len
        if not fits.any():
            raise InputError(f"max-model-len = {work.max_model_len}: must be as long as a request, and none is shorter")
        drawn = drawn if fits.all() else drawn.take(fits)
    share = routing.share_of(drawn, ask.n_servers)
    return replace(share, arrival_s=share.arrival_s - share.arrival_s[0])


def _all_requests(ask: Traffic, work: Workload, progress: Any, holds: Callable[[Requests], float] | None) -> Requests:
    """The requests of all servers."""
    simulator.check(1 if ask.n_requests is None else ask.n_requests)
    check_whole("seed", ask.seed, 0, 2**63 - 1)
    rate = rate_of(ask)
    n = ask.n_requests or 10_000
    if ask.trace is None:
        for name, value in (("input", work.input_tokens), ("output", work.output_tokens)):
            check_whole(name, value, 1, MAX_TOKENS)
        requests = Requests(np.zeros(n), np.full(n, work.input_tokens), np.full(n, work.output_tokens))
        if ask.prefix_tokens:
            requests = prefix_tree.drawn(requests, ask.prefix_tokens, ask.n_prefixes, work.block_tokens, ask.seed)
    elif ask.is_shipped:
        tables = trace_tables.load(ask.trace.strip().lower())
        requests = trace_tables.sample(tables, n, None, ask.seed, arrivals="trace")
        if rate == AS_TRACE and tables.moments.rate_per_s:
            return routing.at_rate(requests, tables.moments.rate_per_s)
    elif ask.trace.lower().endswith((".csv", block_traces.ENDING)) or os.path.exists(ask.trace.replace("\0", "")):
        reader = block_traces if ask.trace.lower().endswith(block_traces.ENDING) else trace_files
        requests = reader.read(ask.trace, progress, max_requests=simulator.MAX_REQUESTS)
        k = ask.n_requests or len(requests.arrival_s)
        if k > len(requests.arrival_s):
            raise InputError(f"requests = {k:,}: the trace has {len(requests.arrival_s):,}: ask for no more")
        requests = routing.between_ticks(requests.take(slice(k)))
    else:
        known = did_you_mean(ask.trace, trace_tables.files())
        raise InputError(f"trace = {show(ask.trace)}: {known}; or give the path of a .csv or .jsonl file")
    if rate == AS_TRACE:
        return requests
    n = len(requests.arrival_s)
    if rate == FULL:
        return replace(requests, arrival_s=np.zeros(n))
    if isinstance(rate, Share):
        if holds is None:
            raise InputError(f"rate = {show(ask.rate)}: a share of what a device holds: give requests per second")
        rate = rate.share * holds(requests) * ask.n_servers
    gaps = np.random.Generator(np.random.PCG64([ask.seed, 1])).exponential(1.0, n)
    gaps[0] = 0.0
    return routing.at_rate(replace(requests, arrival_s=np.cumsum(gaps)), float(rate))


def _answers(ask: Traffic, work: Workload, progress: Any, holds: Callable[[Requests], float] | None) -> Requests:
    """The answers to prompts that come at as many a second less."""
    samples, rate = ask.samples, rate_of(ask)
    n = ask.n_requests or (10_000 if ask.trace is None or ask.is_shipped else None)
    prompts = replace(
        ask,
        samples=1,
        rate=repr(rate / samples) if isinstance(rate, float) else ask.rate,
        n_requests=None if n is None else -(-n // samples),
    )

    def answers_of(requests: Requests) -> Requests:
        return prefix_tree.sampled(requests, samples, work.block_tokens)

    of_prompts = None if holds is None else lambda requests: holds(answers_of(requests)) / samples
    return answers_of(requests_of(prompts, work, progress, of_prompts)).take(slice(n))


def rate_of(ask: Traffic) -> str | float | Share:
    """A rate, a share of the rate that holds, "full" or "trace". Raises InputError."""
    if ask.rate is None:
        return AS_TRACE if ask.trace else FULL
    word = ask.rate.strip().lower()
    if word == FULL or (word == AS_TRACE and ask.trace):
        return word
    is_share = word.endswith("%")
    try:
        rate = float(word.removesuffix("%"))
    except ValueError:
        rate = 0.0
    if is_share:
        if not 1e-9 <= rate / 100 <= MAX_SHARE:
            raise InputError(
                f"rate = {show(ask.rate)}: must be above 0 % of the rate that holds, and at most {MAX_SHARE:,.0%}"
            )
        return Share(rate / 100)
    if not 1e-9 <= rate <= MAX_RATE_PER_S:
        others = f"70%, full or trace{'' if ask.trace else ' (which needs --trace)'}"
        raise InputError(f"rate = {show(ask.rate)}: must be from 1e-9 to 1e9 requests per second, or {others}")
    return rate


def rate_that_holds(
    device: HardwareSpec, plan: KvPlan, work: Workload, requests: Requests, scheduler: steady_state.Scheduler
) -> float:
    """Requests per second in steady state, of those that fit alone, with what their prompts share computed and held
    once. Raises InputError where there is none."""
    served = simulator.served_of(device, plan, work, requests)[0]
    steady = reuse.steady_of(device, plan, work, served, scheduler)
    if not steady["requests_per_s"]:
        raise InputError("rate in %: not one request of the trace's mean length fits: give requests per second")
    return float(steady["requests_per_s"])
