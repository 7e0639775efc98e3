"""Throughput and waits of traffic in closed form: the one server (dse/model/server.py) at the moments of a trace."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, lcm, log
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from dse.core.errors import InputError, show
from dse.model.batch import step_shares
from dse.model.capacity import counts_mean
from dse.model.formulas import host, serving
from dse.model.formulas.steady import mean_prompt_of_tokens, mean_reserved_tokens
from dse.model.kv_layout import KvPlan
from dse.model.lower import BATCHINGS, check_traffic, with_admission
from dse.model.point import Point
from dse.model.records import CHUNKED, CONTINUOUS, STATIC, Design
from dse.model.results import assumed_behind
from dse.model.server import AtOnce, Cycle, Pass, ServerResults, last_pass, server_results
from dse.model.step import Terms
from dse.serving.step_times import MIN_CONTEXT_TOKENS
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import Workload

Floats = NDArray[np.float64]
Batching = Literal["static", "continuous", "chunked"]
#: numbers of requests at which a closed loop is solved: all up to here, then each this much larger; between, straight
DENSE_REQUESTS, REQUESTS_RATIO = 8, 1.25
#: places at which the longest of several prompts is taken, and the mean over lengths
N_LONGEST, N_LENGTHS = 32, 9


@dataclass(frozen=True)
class HostMemory:
    """Host memory behind the pool of a device: bytes, and how fast blocks come back from it.

    A prompt's blocks arrive `start_s` and their bytes over the bandwidth after it is admitted: beside the step that
    computes the rest where `is_beside` (layer by layer), else before it. What leaves the device is written beside
    everything else.
    """

    capacity_bytes: int
    bandwidth_bytes_per_s: float
    start_s: float = 0.0
    is_beside: bool = True

    def in_format(self, share: float) -> "HostMemory":
        """The memory and its link where a token takes `share` of the bytes that it has on the device.

        Sizes stay in bytes of the device's format; that the device converts blocks on the way takes no time.
        """
        capacity_bytes = int(self.capacity_bytes / share)
        return replace(self, capacity_bytes=capacity_bytes, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s / share)


class Scheduler(NamedTuple):
    """Scheduler of a server: the order of prompts, and host memory for blocks that its device gives up."""

    batching: Batching | None = None
    #: most tokens of a step with prompts
    step_tokens: int | None = None
    host: HostMemory | None = None


#: nothing said: as the server's release does
USUAL = Scheduler()


class LengthMoments(Protocol):
    """The moments that steady state needs (`dse.serving.requests.Moments` has them); products count token^2."""

    @property
    def mean_input_tokens(self) -> float:
        """E[I]."""

    @property
    def mean_output_tokens(self) -> float:
        """E[O]."""

    @property
    def mean_input_squared(self) -> float:
        """E[I^2]."""

    @property
    def mean_output_squared(self) -> float:
        """E[O^2]."""

    @property
    def mean_input_output(self) -> float:
        """E[I*O]."""

    @property
    def mean_inverse_output(self) -> float:
        """E[1/O] of answers of two tokens or more."""


@dataclass(frozen=True)
class FixedLengths:
    """Moments of requests that are all alike."""

    mean_input_tokens: float
    mean_output_tokens: float

    @property
    def mean_input_squared(self) -> float:
        """E[I^2]."""
        return self.mean_input_tokens**2

    @property
    def mean_output_squared(self) -> float:
        """E[O^2]."""
        return self.mean_output_tokens**2

    @property
    def mean_input_output(self) -> float:
        """E[I*O]."""
        return self.mean_input_tokens * self.mean_output_tokens

    @property
    def mean_inverse_output(self) -> float:
        """1/O: answers that are even around their mean are taken as that too."""
        return 1 / self.mean_output_tokens


@dataclass(frozen=True)
class EvenLengths(FixedLengths):
    """Moments of requests whose lengths are drawn evenly from 0 to twice their mean, as benchmarks' random ones are."""

    @property
    def mean_input_squared(self) -> float:
        """E[I^2]."""
        return self.mean_input_tokens**2 * 4 / 3

    @property
    def mean_output_squared(self) -> float:
        """E[O^2]."""
        return self.mean_output_tokens**2 * 4 / 3


@dataclass(frozen=True)
class FoundPrompts:
    """Prompts of which parts are found in memory; means over requests (`dse.serving.reuse.found_when_full`)."""

    #: requests that fit at once, each block of their prompts held once
    fitting: int
    #: tokens of a prompt that are computed, and those that are found
    mean_own_tokens: float
    mean_own_squared: float
    mean_found_tokens: float
    mean_found_squared: float
    #: until what host memory has of a prompt is on the device: beside the step that computes the rest, or before it
    load_s: float = 0.0
    loads_beside: bool = True


@dataclass(frozen=True)
class TrafficServer:
    """A server of requests with given moments of their lengths: that of `Point` where all are alike.

    Decode steps are those at the mean context, prompts those at the mean over their tokens, so that what is a straight
    line of the context, or a square of the prompt, is exact; one mean context stands for all.
    """

    #: at lengths with the mean decode context
    point: Point
    design: Design
    terms: Terms
    mean_output_tokens: float
    lengths: LengthMoments
    #: of the logarithm of prompts' lengths, taken as log-normal
    prompt_spread: float
    #: requests that fit at once, and of these as many as the server takes
    fitting: int
    places: int
    #: what of prompts is found
    reused: FoundPrompts | None = None
    #: passes by requests and tokens of a step, whatever fits
    _known: dict[tuple[float, int], Pass] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        device: HardwareSpec,
        plan: KvPlan,
        work: Workload,
        moments: LengthMoments,
        scheduler: Scheduler = USUAL,
        reused: FoundPrompts | None = None,
    ) -> "TrafficServer":
        """`work` gives all but lengths. What of prompts is `reused` is not computed.

        Raises InputError for a prefix or a token policy, and what `Point` raises.
        """
        check_traffic(work)
        work = with_admission(device, work)
        mean_in, mean_out = moments.mean_input_tokens, moments.mean_output_tokens
        context = serving.mean_decode_context_tokens(moments.mean_input_output, moments.mean_output_squared, mean_out)
        n_out = max(round(mean_out), 1)
        n_in = max(round(context - (n_out + 1) / 2), 1)
        point = Point(device, plan, replace(work, input_tokens=n_in, output_tokens=n_out, max_model_len=None))
        terms, prompt_tokens, prompt_squared = point.terms, mean_in, moments.mean_input_squared
        if (max(round(mean_prompt_of_tokens(prompt_squared, mean_in)), 1), mean_in) != (n_in, n_in):
            whole = _prompt_sums(device, plan, work, mean_in, prompt_squared)
            terms = terms._replace(input_tokens=mean_in, prompt=terms.prompt._replace(**whole))  # type: ignore[arg-type]
        if reused and reused.mean_found_tokens:
            prompt_tokens, prompt_squared = reused.mean_own_tokens, reused.mean_own_squared
            saved = _prompt_sums(device, plan, work, reused.mean_found_tokens, reused.mean_found_squared)
            rest = {name: max(getattr(terms.prompt, name) - value, 0.0) for name, value in saved.items()}
            terms = terms._replace(input_tokens=prompt_tokens, prompt=terms.prompt._replace(**rest))  # type: ignore[arg-type]
        design, load = point.design, point.design.load
        how = BATCHINGS[scheduler.batching] if scheduler.batching else _for_traffic(load.batching)
        step_tokens = scheduler.step_tokens or load.step_tokens
        design = design._replace(load=load._replace(batching=how, step_tokens=step_tokens))
        if reused:
            fitting = reused.fitting
        elif isinstance(moments, FixedLengths) and (n_in, n_out) == (mean_in, mean_out):
            fitting = point.max_batch
        else:
            fitting = fitting_sequences(device, plan, work, moments)
        return cls(
            point=point,
            design=design,
            terms=terms,
            mean_output_tokens=mean_out,
            lengths=moments,
            prompt_spread=log(max(prompt_squared / prompt_tokens**2, 1.0)) ** 0.5,
            fitting=fitting,
            places=min(work.batch or load.most_at_once, fitting),
            reused=reused,
        )

    @property
    def computed(self) -> tuple[float, float]:
        """Tokens of a prompt that are computed, and their square: means over requests."""
        if self.reused and self.reused.mean_found_tokens:
            return self.reused.mean_own_tokens, self.reused.mean_own_squared
        return self.lengths.mean_input_tokens, self.lengths.mean_input_squared

    def cycle(self, n: float) -> Pass:
        """The cycle with `n` requests at once, 1 to `places`; in steps of one, of which the mean is taken."""
        if (key := (n, self.design.load.step_tokens)) not in self._known:
            cycle_pass = self._pass(n, 1.0)
            if self.n_apart > 1:
                cycle_pass = self._pass(n, self._longest(cycle_pass.cycle))
            elif self.n_apart and self.prompt_spread and self.design.load.batching == CONTINUOUS:
                cycle_pass = self._mean_pass(n)
            self._known[key] = self._loaded(cycle_pass)
        return self._known[key]

    def _loaded(self, unloaded: Pass) -> Pass:
        """The cycle with what comes from host memory: a step waits for its prompts' blocks."""
        if not (self.reused and self.reused.load_s):
            return unloaded
        load_s, step_s = unloaded.cycle.prompts * self.reused.load_s, unloaded.prompt_step_s
        longer_s = max(load_s - step_s, 0.0) if self.reused.loads_beside else load_s
        steps = unloaded.cycle.own_steps, unloaded.cycle.prompt_steps - unloaded.cycle.own_steps
        return unloaded._replace(
            prompt_step_s=step_s + longer_s,
            prompt_s=unloaded.prompt_s + steps[0] * longer_s,
            decode_s=unloaded.decode_s + steps[1] * longer_s,
        )

    def _pass(self, n: float, longest: float) -> Pass:
        requests = AtOnce(n, n, self.mean_output_tokens, self.n_apart, longest)
        return last_pass(self.design, self.point.made, self.terms, self.point.sums, requests, 0.0)

    def _mean_pass(self, n: float) -> Pass:
        """The cycle with the mean step over prompts of all lengths: products have a kink, and prompts are alone."""
        places = (NormalDist().inv_cdf((i + 0.5) / N_LENGTHS) for i in range(N_LENGTHS))
        shares = [exp(self.prompt_spread * (x - self.prompt_spread / 2)) for x in places]
        passes = [self._pass(n, share * N_LENGTHS / sum(shares)) for share in shares]
        times = {
            name: sum(getattr(p, name) for p in passes) / N_LENGTHS for name in Pass._fields if name.endswith("_s")
        }
        return passes[0]._replace(**times)  # all of them straight lines of the time of a step with prompts

    @property
    def n_apart(self) -> int:
        """Groups of requests that come to their prompts by themselves, as requests of several lengths do; 0 of requests
        that are alike."""
        of, mean = self.lengths, self.mean_output_tokens
        is_alike = self.prompt_spread == 0 and of.mean_output_squared <= mean**2 * (1 + 1e-9)
        return 0 if is_alike or self.design.load.batching == STATIC else int(self.design.deployment.n_groups)

    def _longest(self, cycle: Cycle) -> float:
        """The longest prompt of the groups that compute one in a step, over the mean; prompts as log-normal."""
        share = cycle.prompt_steps / cycle.all_steps  # of steps in which some group has a prompt
        group_share = 1.0 - (1.0 - share) ** (1.0 / self.n_apart)
        k, spread = self.n_apart * group_share / share, self.prompt_spread
        places = (NormalDist().inv_cdf(((i + 0.5) / N_LONGEST) ** (1 / k)) for i in range(N_LONGEST))
        return sum(exp(spread * (x - spread / 2)) for x in places) / N_LONGEST

    def closed(self, n: float) -> ServerResults:
        """The server of a closed loop of `n` requests that all have a place."""
        return server_results(self.design, self.cycle(n), n, self.mean_output_tokens)

    @cached_property
    def loop(self) -> "Loop":
        """The closed loops of 1 to `places` requests."""
        nodes = [float(n) for n in _nodes(self.places)]
        cycles = [self.cycle(n) for n in nodes]
        # beside the loop: a request holds no place meanwhile
        starts = [start_s(self.point, n) for n in nodes]
        n, own_s = np.arange(1.0, self.places + 1), [of.prompt_s - s for of, s in zip(cycles, starts, strict=True)]
        held_s = np.interp(n, nodes, [s + cycle.decode_s for s, cycle in zip(own_s, cycles, strict=True)])
        decoding = n / held_s * np.interp(n, nodes, [cycle.decode_s for cycle in cycles])
        return Loop(nodes, n / held_s, decoding, own_s[0])

    @cached_property
    def full(self) -> ServerResults:
        """The server whose places are always taken; at least one request must fit."""
        return self.closed(float(self.places))


class Loop(NamedTuple):
    """Closed loops of a server of 1 request, 2 and so on: at which numbers of them it was solved, and of each how many
    requests end a second and how many decode; the seconds of a prompt that is alone."""

    nodes: list[float]
    ended_per_s: Floats
    decoding: Floats
    alone_s: float


def _nodes(places: int) -> list[int]:
    """Rising whole numbers from 1 to `places`."""
    numbers, n = [], 1
    while n < places:
        numbers.append(n)
        n = n + 1 if n < DENSE_REQUESTS else max(n + 1, int(n * REQUESTS_RATIO))
    return [*numbers, places]


def _prompt_sums(
    device: HardwareSpec, plan: KvPlan, work: Workload, mean_tokens: float, mean_squared: float
) -> dict[str, float]:
    """Attention and packing of prompts with these moments: exact for a straight line and a square of the length."""
    longer = max(round(mean_prompt_of_tokens(mean_squared, mean_tokens)), 1)
    alone = replace(work, input_tokens=longer, output_tokens=1, max_model_len=None)
    prompt, share = Point(device, plan, alone).terms.prompt, mean_tokens / longer
    return {name: share * value for name, value in prompt._asdict().items() if name.startswith("own_")}


def start_s(point: Point, n_running: float) -> float:
    """Seconds of a server before a prompt is at its turn, which keep nobody else waiting: the rest is in the steps."""
    stack = point.design.stack
    return float(host.start_s(n_running, stack.host_prompt_s, stack.host_blocks_s, stack.host_request_s))


def _for_traffic(batching: int) -> int:
    """A static batch, as papers have it, is no server of requests that come and go: those are replaced as they end."""
    return CONTINUOUS if batching == STATIC else batching


def scheduler_of(device: HardwareSpec, plan: KvPlan, work: Workload, host: HostMemory | None = None) -> Scheduler:
    """The scheduler of a server of traffic: as given, else as its release does."""
    load = Point(device, plan, work).design.load
    how = BATCHINGS[work.batching] if work.batching else _for_traffic(load.batching)
    return Scheduler(next(name for name in get_args(Batching) if BATCHINGS[name] == how), load.step_tokens, host)


def steady(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    moments: LengthMoments,
    n_sequences: int | None = None,
    scheduler: Scheduler = USUAL,
    largest_output: Callable[[int], float] | None = None,
    reused: FoundPrompts | None = None,
) -> dict[str, Any]:
    """Requests and tokens per second where a finished request is replaced at once; times in seconds.

    `work` gives batch (most sequences at once), admission, page, weights' bits, path and model kind; its lengths do
    not count. `n_sequences` (default: what fits, at most the batch; without one, what the server takes) run at all
    times: `limited_by` (batch, max_num_seqs, server, memory, chunk) keeps more from it. `waits_s` is what a decode
    step of so many waits for, `prompt_share` the share of the time that steps with prompts add to those of decoding
    alone. Static batching runs as long as the longest answer of a batch, `largest_output(n)` in expectation
    (`dse.serving.requests.Lengths.largest_output`), and reserves memory. `reused`: parts of prompts that are not
    computed (`dse.serving.reuse.steady_of` gives those of requests that say what they share). Where nothing fits,
    `n_sequences` is 0 and rates and times are None. Raises InputError for a prefix or a token policy, n_sequences < 1,
    step_tokens < 1.
    """
    if n_sequences is not None and n_sequences < 1:
        raise InputError(f"n_sequences = {show(n_sequences)}: must be at least 1")
    if scheduler.step_tokens is not None and scheduler.step_tokens < 1:
        raise InputError(f"step_tokens = {show(scheduler.step_tokens)}: must be at least 1 token")
    if scheduler.batching == "static":
        if largest_output is None:
            raise InputError("batching = 'static': needs the expected largest output of a batch: give largest_output")
        work = replace(work, admission="reserve")
    server = TrafficServer.of(device, plan, work, moments, scheduler, reused)
    context = serving.mean_decode_context_tokens(
        moments.mean_input_output, moments.mean_output_squared, moments.mean_output_tokens
    )
    n = n_sequences or server.places
    result: dict[str, Any] = {
        "n_sequences": n,
        "fitting_sequences": server.fitting,
        "mean_decode_context_tokens": context,
        "decode_step_s": None,
        "running_sequences": 0.0,
        "limited_by": "memory",
        "waits_s": None,
        "prefill_s": None,
        "prompt_share": None,
        "request_s": None,
        "tpot_s": None,
        "ttft_s": None,
        "requests_per_s": None,
        "throughput_tokens_per_s": None,
    }
    if n == 0:
        return result
    limit = "memory" if server.fitting <= server.places and not n_sequences else "batch"
    if limit == "batch" and not (n_sequences or work.batch):
        limit = "server"
    if n == work.max_num_seqs and not n_sequences:
        limit = "max_num_seqs"
    mean_out, cycle = moments.mean_output_tokens, server.cycle(float(n))
    running = float(n)
    if server.design.load.batching == CHUNKED:  # a prompt is admitted where its tokens have room in a step
        lanes = n / cycle.n
        running = min(running, lanes * (cycle.cycle.decoding + max(cycle.cycle.prompts, 1.0)))
        limit = "chunk" if running < n - 0.5 * lanes else limit
    numbers: Mapping[str, Any] = server.closed(float(n))._asdict()
    decode_s = mean_out * cycle.decode_step_s
    if scheduler.batching == "static" and largest_output:  # places are kept until the longest answer of the batch ends
        decode_s *= largest_output(round(cycle.n)) / mean_out
        request_s = (cycle.prompt_step_s + decode_s) / n
        numbers = {
            "tpot_s": cycle.decode_step_s,
            "ttft_s": cycle.prompt_step_s,
            "requests_per_s": 1 / request_s,
            "throughput_tokens_per_s": mean_out / request_s,
        }
    rate = numbers["requests_per_s"]
    return {
        **result,
        "decode_step_s": cycle.decode_step_s,
        "prefill_s": (n / rate - decode_s) / n,
        "request_s": 1 / rate,
        "running_sequences": running,
        "limited_by": limit,
        "prompt_share": 1 - decode_s * rate / n,
        "waits_s": step_shares(server.point.run(n))._asdict(),
        **{name: numbers[name] for name in ("tpot_s", "ttft_s", "requests_per_s", "throughput_tokens_per_s")},
    }


def assumptions(device: HardwareSpec, plan: KvPlan, work: Workload) -> list[str]:
    """Names of the assumed numbers that the rates and times of traffic rest on."""
    check_traffic(work)
    return assumed_behind(
        "throughput_tokens_per_s", Point(device, plan, work).lowered.results["assumptions"], vars(work)
    )


def with_batch(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    moments: LengthMoments,
    batching: Batching | None = None,
    shares: bool = False,
) -> Workload:
    """The workload with batch and KV allocation: as given, at most `max_num_seqs`; else what the server takes, which
    admits by the memory that is free; as papers count memory, as many requests as fit in the mean. Static batching
    reserves memory."""
    work = with_admission(device, work)
    if work.batch:
        return replace(work, batch=min(work.batch, work.max_num_seqs or work.batch))
    design = Point(device, plan, work).design
    if shares or (design.memory.is_server and batching != "static"):
        return replace(work, batch=design.load.most_at_once)
    held = replace(work, admission="reserve") if batching == "static" else work
    return replace(work, batch=max(min(design.load.most_at_once, fitting_sequences(device, plan, held, moments)), 1))


def fitting_sequences(device: HardwareSpec, plan: KvPlan, work: Workload, moments: LengthMoments) -> int:
    """Sequences that fit: at the mean final length of those that run, or paged, as papers count memory, at the mean
    size over their decode steps."""
    at = {
        "mean_input_output": moments.mean_input_output,
        "mean_output_squared": moments.mean_output_squared,
        "mean_output_tokens": moments.mean_output_tokens,
    }
    work = replace(with_admission(device, work), max_model_len=None)
    if isinstance(moments, FixedLengths):
        n_in, n_out = int(moments.mean_input_tokens), int(moments.mean_output_tokens)
        return Point(device, plan, replace(work, input_tokens=n_in, output_tokens=n_out)).max_batch
    last = max(round(mean_reserved_tokens(**at)), MIN_CONTEXT_TOKENS)
    point = Point(device, plan, replace(work, input_tokens=last - 1, output_tokens=1))
    if point.design.load.is_paged == 0 or point.design.memory.is_server:
        return point.max_batch
    # the mean over pages and packed groups around the mean context
    context = max(round(serving.mean_decode_context_tokens(**at)), MIN_CONTEXT_TOKENS)
    half = min(lcm(work.block_tokens, *(g.step_tokens for g in plan.groups)) // 2, context - MIN_CONTEXT_TOKENS)
    there = replace(work, input_tokens=context - half - 1, output_tokens=max(2 * half, 1))
    return Point(device, plan, there).max_batch


def held_tokens(design: Design, moments: LengthMoments) -> float:
    """Tokens that a running request counts at, in whole pages: at its final length, or paged, as papers count memory,
    at the mean over its decode steps."""
    page = int(design.load.page_tokens)
    if counts_mean(design):
        context = serving.mean_decode_context_tokens(
            moments.mean_input_output, moments.mean_output_squared, moments.mean_output_tokens
        )
        return float(context) + (page - 1) / 2
    last = mean_reserved_tokens(moments.mean_input_output, moments.mean_output_squared, moments.mean_output_tokens)
    return float(-(-max(round(last), MIN_CONTEXT_TOKENS) // page) * page)
