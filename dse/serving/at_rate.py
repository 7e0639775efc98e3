"""TPOT and TTFT of a server at a rate of requests that it sustains, in closed form."""

from collections.abc import Callable
from math import exp
from typing import NamedTuple

from dse.core.errors import InputError, show
from dse.model.deployed import n_groups_of
from dse.model.formulas import serving, steady
from dse.model.kv_layout import KvPlan
from dse.serving.steady_state import (
    CHUNK_TOKENS,
    Batching,
    Exact,
    LengthMoments,
    between,
    decode_attention_s,
    fitting_sequences,
    prompt_parts,
)
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import Workload

#: halvings of the interval in which the number of requests that decode lies
N_HALVINGS = 20
#: share of the time that changes no wait
NEGLIGIBLE = 1e-6


class AtRate(NamedTuple):
    """Means over the requests of a server that is asked for so many a second."""

    tpot_s: float
    ttft_s: float
    #: the part of TTFT spent waiting for a free slot
    place_wait_s: float
    #: requests that decode at once, and the share of the time that goes into prompts
    running: float
    prompt_share: float


def at_rate(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    moments: LengthMoments,
    requests_per_s: float,
    batching: Batching = "continuous",
    chunk_tokens: int = CHUNK_TOKENS,
) -> AtRate | None:
    """Means of a server that requests of these lengths come to, `requests_per_s` of them, at random (Poisson).

    `work` counts as for `dse.serving.steady_state.steady`. None where the rate does not hold; for static batching,
    whose requests wait for whole batches; and for groups that step together (--dp-attention). Up to a load of 0.8
    within 8 % (tpot, as tokens count) and 22 % (ttft) of `dse.serving.simulator` where requests find a place; where
    answers are short beside their prompts (28 tokens of 2,000) within 17 % (tpot). Where they wait for one of few
    places, ttft is within 25 % up to a load of 0.9, and up to 40 % too short where memory gives the places.
    docs/explanation/model.md, At a rate. Raises InputError for a rate that is not positive, a prefix or a token policy.
    """
    if not requests_per_s > 0:
        raise InputError(f"rate = {show(requests_per_s)}: must be more than 0 requests per second")
    exact = Exact.of(device, plan, work)
    if batching == "static" or n_groups_of(work) > 1:
        return None
    places = min(work.batch or exact.point.design.load.most_at_once, fitting_sequences(device, plan, work, moments))
    context = serving.mean_decode_context_tokens(
        moments.mean_input_output, moments.mean_output_squared, moments.mean_output_tokens
    )
    chunk = chunk_tokens if batching == "chunked" else 0
    matrix_s, rest_s = prompt_parts(exact, moments)
    chunk_matrix_s = exact.matrix_s(chunk) if chunk else 0.0

    def costs_of(n: float) -> tuple[float, float, float, float]:
        """Where `n` requests decode: seconds of a step, of a prompt, what that adds to steps, and lost at its end."""
        step_s = between(exact.matrix_s, n) + decode_attention_s(exact, max(n, 1.0), context)
        if not chunk:
            return step_s, matrix_s + rest_s, matrix_s + rest_s, 0.0
        # parts of it share decode steps, which take longer for that; its last part ends with its step
        n_chunks = moments.mean_input_tokens / (chunk - n)
        extra_s = n_chunks * (chunk_matrix_s - between(exact.matrix_s, n)) + rest_s
        prompt_s = n_chunks * step_s + extra_s
        return step_s, prompt_s, extra_s, prompt_s / n_chunks / 2

    def pass_of(n: float) -> AtRate | None:
        """Times of `n` requests that decode; None where prompts alone take all of the time."""
        step_s, prompt_s, extra_s, last_s = costs_of(n)
        share = requests_per_s * extra_s
        if requests_per_s * prompt_s >= 1:
            return None
        squared = prompt_s**2 * moments.mean_input_squared / moments.mean_input_tokens**2
        any_runs = 1 - exp(-n)
        wait_s = steady.prompt_queue_s(requests_per_s, prompt_s, squared, any_runs * step_s)
        behind_s = 0.0 if chunk else steady.backlog_s(wait_s + prompt_s, share)
        tpot_s = steady.interrupted_step_s(step_s, share) + behind_s / moments.mean_output_tokens
        own_s = exact.point.design.stack.host_prompt_s
        running = steady.running_at_rate(requests_per_s, moments.mean_output_tokens, tpot_s)
        return AtRate(tpot_s, wait_s + prompt_s + last_s + own_s, 0.0, running, share)

    def ended_per_s(n: int) -> float:
        """Requests that end a second while `n` decode, each of which another one's prompt follows."""
        step_s, _, extra_s, _ = costs_of(n)
        return steady.requests_per_s(steady.steady_request_s(moments.mean_output_tokens, n, step_s, extra_s))

    most = float(min(places, chunk - 1) if chunk else places)
    full = places
    if chunk:  # more never decode, since their prompts fill the chunks
        bound = steady.chunk_bound_sequences(chunk, moments.mean_input_tokens, moments.mean_output_tokens)
        full = min(places, max(int(bound), 1))
    if places < 1 or ended_per_s(full) <= requests_per_s:
        return None
    low, high = 0.0, 1.0
    while (last := pass_of(min(high, most))) is None or last.running > high:
        if high >= most:
            break  # all places are taken nearly all of the time
        low, high = high, 2 * high
    high = min(high, most)
    for _ in range(N_HALVINGS):
        middle = (low + high) / 2
        reached = pass_of(middle)
        if reached is None or reached.running > middle:
            low = middle
        else:
            high, last = middle, reached
    if last is None:
        return None
    if full == places:  # tpot is at most what it is where all places are always taken
        decode_s = places / ended_per_s(places) - costs_of(places)[1]
        last = last._replace(tpot_s=min(last.tpot_s, decode_s / moments.mean_output_tokens))
    variation = moments.mean_output_squared / moments.mean_output_tokens**2 - 1
    wait_s = steady.place_queue_s(
        requests_per_s, ended_per_s(full), _full_share(requests_per_s, full, ended_per_s), max(variation, 0.0)
    )
    return last._replace(ttft_s=last.ttft_s + wait_s, place_wait_s=wait_s, running=min(last.running, most))


def _full_share(requests_per_s: float, places: int, ended_per_s: Callable[[int], float]) -> float:
    """Share of the time in which all places are taken and no request waits for one.

    Requests come at random and end as fast as those that run let them: a birth-death chain, summed from the full
    places down, as far as it matters; 0 where that is hardly ever.
    """
    load = requests_per_s / ended_per_s(places)
    term, total = 1.0, 1.0 / (1.0 - load)  # all taken, with any number waiting
    for n in range(places, 0, -1):
        term *= ended_per_s(n) / requests_per_s
        total += term
        if total > 1 / NEGLIGIBLE:
            return 0.0
        if term < NEGLIGIBLE * total:
            break
    return 1.0 / total
