"""Throughput of traffic in steady state, in closed form: what moments of a trace, step times and memory give."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, lcm, log, pi
from statistics import NormalDist
from typing import Any, Literal, Protocol

import numpy as np

from dse.core.errors import InputError, show
from dse.model.assumptions import behind
from dse.model.batch import step_shares
from dse.model.deployed import n_groups_of
from dse.model.evaluate import Point
from dse.model.formulas import groups, serving, throughput
from dse.model.formulas.steady import (
    chunk_bound_sequences,
    mean_prefill_s,
    mean_prompt_of_tokens,
    mean_reserved_tokens,
    requests_per_s,
    steady_chunked_request_s,
    steady_request_s,
)
from dse.model.kv_layout import KvPlan
from dse.model.lower import check_traffic, with_admission
from dse.serving.step_times import MIN_CONTEXT_TOKENS, Exact
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import Workload

Batching = Literal["static", "continuous", "chunked"]
#: tokens of a step with prompt chunks: as the textbook has it, section 6.1 (512 or 1,024)
CHUNK_TOKENS = 512
#: places and weights of a mean over a normal distribution (Gauss-Hermite, 9 nodes): prompts are taken as log-normal
NORMAL_NODES = tuple(
    (float(x), float(weight) / (2 * pi) ** 0.5)
    for x, weight in zip(*np.polynomial.hermite_e.hermegauss(9), strict=True)
)


#: places at which the longest of several prompts is taken
N_LONGEST = 32


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


def steady(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    moments: LengthMoments,
    n_sequences: int | None = None,
    batching: Batching = "continuous",
    chunk_tokens: int = CHUNK_TOKENS,
    largest_output: Callable[[int], float] | None = None,
) -> dict[str, Any]:
    """Requests and tokens per second where a finished request is replaced at once; times in seconds.

    `work` gives batch (most sequences at once), admission, page, weights' bits, path and model kind; its lengths do
    not count. `n_sequences` (default: what fits at the mean residency, at most the batch; without one,
    what the server takes) run at all times, a prompt in chunks among them, unless the chunk allows fewer:
    `running_sequences` run, `limited_by` (batch, server, memory, chunk) keeps more from it. `waits_s` is what a decode
    step of so many waits for, `prompt_share` the share of the time that goes into prompts. Static batching runs as
    long as the longest answer of a batch, `largest_output(n)` in expectation
    (`dse.serving.requests.Lengths.largest_output`), and reserves memory. Where nothing fits, `n_sequences` is 0 and
    rates and times are None.

    Exact means but for: a count of sequences that does not vary, one mean context for all, prompts that each cost
    their own products. Within 5 % of `dse.serving.simulator` on its tests. Raises InputError for a prefix or a token
    policy, n_sequences < 1, chunk < 1.
    """
    if n_sequences is not None and n_sequences < 1:
        raise InputError(f"n_sequences = {show(n_sequences)}: must be at least 1")
    if batching == "chunked" and chunk_tokens < 1:
        raise InputError(f"chunk = {show(chunk_tokens)}: must be at least 1 token")
    if batching == "static":
        if largest_output is None:
            raise InputError("batching = 'static': needs the expected largest output of a batch: give largest_output")
        work = replace(work, admission="reserve")
    work = with_admission(device, work)
    exact = Exact.of(device, plan, work)
    context = serving.mean_decode_context_tokens(
        moments.mean_input_output, moments.mean_output_squared, moments.mean_output_tokens
    )
    fitting = fitting_sequences(device, plan, work, moments)
    most = work.batch or exact.point.design.load.most_at_once
    n = n_sequences or min(most, fitting)
    result: dict[str, Any] = {
        "n_sequences": n,
        "fitting_sequences": fitting,
        "mean_decode_context_tokens": context,
        "decode_step_s": None,
        "running_sequences": 0.0,
        "limited_by": "memory",
        "waits_s": None,
        "prefill_s": None,
        "prompt_share": None,
        "request_s": None,
        "tpot_s": None,
        "requests_per_s": None,
        "throughput_tokens_per_s": None,
    }
    if n == 0:
        return result
    running, decoding, n_groups = float(n), float(n), n_groups_of(work)
    limit = "batch" if n_sequences or most <= fitting else "memory"
    if limit == "batch" and not (n_sequences or work.batch):
        limit = "server"
    mean_out = moments.mean_output_tokens
    if n_groups > 1:
        own = n / min(n, n_groups)
        longer = largest_output(round(own)) / mean_out if batching == "static" and largest_output else 1.0
        chunk = chunk_tokens if batching == "chunked" else 0
        step_s, prefill_s, request_s, decoding = _grouped(exact, n, context, moments, chunk, longer)
        if chunk and own > 1:
            running = _running(own, decoding * own / n, moments, chunk_tokens) * n / own
            limit = "chunk" if running < n - 0.5 * n_groups else limit
        prompt_share = 1 - longer * mean_out * step_s / (max(decoding, 1.0) * request_s)
    elif batching == "chunked":
        step_s, prefill_s, request_s, decoding = _chunked(exact, n, context, moments, chunk_tokens)
        running = _running(n, decoding, moments, chunk_tokens)
        limit = "chunk" if running < n - 0.5 else limit
        prompt_share = 1 - mean_out * step_s / (max(decoding, 1.0) * request_s)
    else:
        factor = largest_output(n) / moments.mean_output_tokens if batching == "static" and largest_output else 1.0
        step_s, prefill_s, request_s = _whole_prompts(exact, n, context, moments, factor)
        prompt_share = prefill_s / request_s
    tokens_per_s = throughput.static_batch_tokens_per_s(1, mean_out, request_s)
    return {
        **result,
        "decode_step_s": step_s,
        "prefill_s": prefill_s,
        "request_s": request_s,
        "running_sequences": running,
        "limited_by": limit,
        "prompt_share": prompt_share,
        "waits_s": _waits(exact, decoding / min(n, n_groups), context),
        "tpot_s": decoding / tokens_per_s,
        "requests_per_s": requests_per_s(request_s),
        "throughput_tokens_per_s": tokens_per_s,
    }


def assumptions(device: HardwareSpec, plan: KvPlan, work: Workload) -> list[str]:
    """Names of the assumed numbers that the rates and times of traffic rest on."""
    check_traffic(work)
    return behind("throughput_tokens_per_s", Point(device, plan, work).lowered.results["assumptions"], vars(work))


def with_batch(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    moments: LengthMoments,
    batching: Batching = "continuous",
    shares: bool = False,
) -> Workload:
    """The workload with batch and KV allocation: as given, else as many requests as fit in the mean, at most what the
    server takes, and as the device allocates. Static batching reserves memory.

    Where prompts share memory (`shares`) the server's own limit is the batch: how many fit hangs on what they share."""
    work = with_admission(device, work)
    if work.batch:
        return work
    most = Point(device, plan, work).design.load.most_at_once
    if shares:
        return replace(work, batch=most)
    held = replace(work, admission="reserve") if batching == "static" else work
    return replace(work, batch=max(min(most, fitting_sequences(device, plan, held, moments)), 1))


def fitting_sequences(device: HardwareSpec, plan: KvPlan, work: Workload, moments: LengthMoments) -> int:
    """Sequences that fit: paged at the mean size over their decode steps, reserved at the mean final length."""
    at = {
        "mean_input_output": moments.mean_input_output,
        "mean_output_squared": moments.mean_output_squared,
        "mean_output_tokens": moments.mean_output_tokens,
    }
    work = with_admission(device, work)
    if work.admission == "reserve":
        last = max(round(mean_reserved_tokens(**at)), MIN_CONTEXT_TOKENS)
        there = replace(work, input_tokens=last - 1, output_tokens=1)
    else:  # the mean over pages and packed groups around the mean context
        context = max(round(serving.mean_decode_context_tokens(**at)), MIN_CONTEXT_TOKENS)
        half = min(lcm(work.page_tokens, *(g.step_tokens for g in plan.groups)) // 2, context - MIN_CONTEXT_TOKENS)
        there = replace(work, input_tokens=context - half - 1, output_tokens=max(2 * half, 1))
    return Point(device, plan, there).max_batch


def prompt_parts(exact: Exact, moments: LengthMoments) -> tuple[float, float]:
    """Seconds of a prompt in the mean: its matrix products alone in a step, and the rest."""
    mean = moments.mean_input_tokens
    of_tokens = mean_prompt_of_tokens(moments.mean_input_squared, mean)
    length = max(round(of_tokens), 1)
    rest = mean_prefill_s(0.0, mean, length, exact.prompt_s(length))
    spread = log(max(moments.mean_input_squared / mean**2, 1.0)) ** 0.5
    # products have a kink where computing takes over from reading: their mean is not that of the mean prompt
    lengths = [mean * exp(spread * (x - spread / 2)) for x, _ in NORMAL_NODES]
    return sum(share * between(exact.matrix_s, n) for n, (_, share) in zip(lengths, NORMAL_NODES, strict=True)), rest


def between(at: Any, n: float) -> float:
    """A function of whole numbers >= 1 at `n`: a straight line between its neighbours."""
    low = max(int(n), 1)
    return float(at(low) if n <= low else at(low) + (n - low) * (at(low + 1) - at(low)))


def _whole_prompts(
    exact: Exact, n: int, context: float, moments: LengthMoments, longer: float
) -> tuple[float, float, float]:
    """`longer`: steps of a batch over those that its answers need; continuous batching needs no more."""
    matrix_s, rest_s = prompt_parts(exact, moments)
    step_s = exact.matrix_s(n) + decode_attention_s(exact, n, context)
    request_s = steady_request_s(longer * moments.mean_output_tokens, n, step_s, matrix_s + rest_s)
    return step_s, matrix_s + rest_s, request_s


def decode_attention_s(exact: Exact, n: float, context: float) -> float:
    """Seconds of a decode step without matrix products at a number of sequences between whole ones."""
    return between(lambda k: between(lambda c: exact.attention_s(k, max(c, MIN_CONTEXT_TOKENS)), context), n)


def _chunked(
    exact: Exact, n: int, context: float, moments: LengthMoments, chunk_tokens: int
) -> tuple[float, float, float, float]:
    """A prompt takes a place, and no decode step, while it is worked on: what decodes, last, is n less such places."""
    mean_in, mean_out = moments.mean_input_tokens, moments.mean_output_tokens
    matrix_s, rest_s = prompt_parts(exact, moments)
    chunk_matrix_s = exact.matrix_s(chunk_tokens)
    if n == 1:  # nobody shares a step with a chunk
        whole = int(mean_in) // chunk_tokens
        left = int(mean_in) - whole * chunk_tokens
        prefill_s = whole * chunk_matrix_s + (exact.matrix_s(left) if left else 0.0) + rest_s
        step_s = exact.matrix_s(1) + decode_attention_s(exact, 1, context)
        return step_s, prefill_s, steady_request_s(mean_out, 1, step_s, prefill_s), 1.0
    decoding = min(
        chunk_bound_sequences(chunk_tokens, mean_in, mean_out), _decoding(n, mean_in / mean_out, chunk_tokens)
    )
    # below one sequence in the mean, steps without any are as many as it lacks
    attention_s = decode_attention_s(exact, max(decoding, 1.0), context) * min(decoding, 1.0)
    pure_s = between(exact.matrix_s, decoding) * min(decoding, 1.0)
    request_s = steady_chunked_request_s(
        mean_out, decoding, mean_in, chunk_tokens, attention_s, pure_s, chunk_matrix_s, rest_s
    )
    return (pure_s + attention_s) / min(decoding, 1.0), matrix_s + rest_s, request_s, decoding


def _grouped(
    exact: Exact, n: int, context: float, moments: LengthMoments, chunk_tokens: int, longer: float
) -> tuple[float, float, float, float]:
    """`n` requests in groups that step together: where one of them computes a prompt, or a chunk of one (0: whole
    prompts), all wait for it and decode meanwhile. Groups come to their prompts independently."""
    busy = min(n, n_groups_of(exact.point.work))
    every, own = n_groups_of(exact.point.work), n / busy
    mean_in, n_steps = moments.mean_input_tokens, longer * moments.mean_output_tokens
    matrix_s, rest_s = prompt_parts(exact, moments)
    if chunk_tokens and own > 1:  # steps of a request's answer, some of which have a chunk beside it
        decoding = max(
            min(chunk_bound_sequences(chunk_tokens, mean_in, n_steps), _decoding(own, mean_in / n_steps, chunk_tokens)),
            1.0,
        )
        n_mixed, n_all, tokens = mean_in / (chunk_tokens - decoding) * decoding, n_steps, float(chunk_tokens)
        n_all = max(n_all, n_mixed)
        attention_s = decode_attention_s(exact, decoding, context)
        beside_s = rest_s * decoding / n_mixed + attention_s
        longest = [(tokens, beside_s)]
    else:  # steps of the answer, and those of the group's prompts, in which others decode
        parts = max(mean_in / chunk_tokens, 1.0) if chunk_tokens else 1.0
        decoding, n_mixed, tokens = own, own * parts, mean_in / parts
        n_all = n_steps + n_mixed
        attention_s = decode_attention_s(exact, decoding, context)
        longest = []
    share = n_mixed / n_all
    some = groups.some_share(share, busy)
    with_prompt = busy * share / some
    if not longest:
        lengths = [n / parts for n in _longest_prompts(moments, with_prompt)]
        longest = [(n, max(exact.prompt_s(max(round(n), 1)), attention_s if busy > 1 else 0.0)) for n in lengths]
    mean = max((with_prompt * tokens + (busy - with_prompt) * decoding) / every, 1.0)
    step_s = between(exact.matrix_s, decoding) + attention_s
    beside = [between(exact.own_s, max(n, mean)) + seconds for n, seconds in longest]
    mixed_s = between(exact.matrix_s, mean) - between(exact.own_s, mean) + sum(beside) / len(beside)
    request_s = groups.grouped_request_s(n_all, decoding * busy, some, step_s, mixed_s)
    return step_s, matrix_s + rest_s, request_s, decoding * busy


def _longest_prompts(moments: LengthMoments, k: float) -> list[float]:
    """Tokens of the longest of `k` prompts at equal steps of its distribution; prompts are taken as log-normal."""
    mean = moments.mean_input_tokens
    spread = log(max(moments.mean_input_squared / mean**2, 1.0)) ** 0.5
    places = (NormalDist().inv_cdf(((i + 0.5) / N_LONGEST) ** (1 / k)) for i in range(N_LONGEST))
    return [mean * exp(spread * (x - spread / 2)) for x in places]


def _running(n: float, decoding: float, moments: LengthMoments, chunk_tokens: int) -> float:
    """Sequences that run: those that decode, and the prompt in work in the share of steps that hold one."""
    if n == 1:
        return 1.0
    in_work = moments.mean_input_tokens / moments.mean_output_tokens * decoding / (chunk_tokens - decoding)
    return min(decoding + min(in_work, 1.0), float(n))


def _waits(exact: Exact, decoding: float, context: float) -> dict[str, float]:
    """Seconds of a decode step by what it waits for, as they count for `bound`."""
    run = exact.step(max(round(decoding), 1), max(round(context), MIN_CONTEXT_TOKENS))
    waits: dict[str, float] = step_shares(run)._asdict()
    return waits


def _decoding(n: float, prompt_per_answer: float, chunk_tokens: int) -> float:
    """x with x + (share of steps that hold a chunk) = n, that share being I / (chunk - x) over O / x; halving."""
    low, high = 0.0, float(min(n, chunk_tokens))
    for _ in range(60):
        middle = (low + high) / 2
        if middle + prompt_per_answer * middle / (chunk_tokens - middle) < n:
            low = middle
        else:
            high = middle
    return low
