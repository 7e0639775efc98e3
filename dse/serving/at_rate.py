"""A server at a rate of requests that it holds, in closed form: time per output token, and to the first."""

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


class AtRate(NamedTuple):
    """Means over the requests of a server that is asked for so many a second."""

    tpot_s: float
    ttft_s: float
    #: requests that decode at once, and the share of the time that goes into prompts
    running: float
    prompt_share: float


def at_rate(
    device: HardwareSpec, plan: KvPlan, work: Workload, moments: LengthMoments, requests_per_s: float,
    batching: Batching = "continuous", chunk_tokens: int = CHUNK_TOKENS,
) -> AtRate | None:  # fmt: skip
    """Means of a server that requests of these lengths come to, `requests_per_s` of them, at random (Poisson).

    `work` counts as for `dse.serving.steady_state.steady`. None where the rate does not hold, or so many requests run
    that they wait for places; for static batching, whose requests wait for whole batches; and for groups that step
    together (--dp-attention). Up to a load of 0.8 within 8 % (tpot, as tokens count) and 22 % (ttft) of
    `dse.serving.simulator`; where answers are short beside their prompts (28 tokens of 2,000) within 17 % (tpot).
    docs/explanation/model.md, At a rate. Raises InputError for a rate that is not positive, a prefix or a token policy.
    """
    if not requests_per_s > 0:
        raise InputError(f"rate = {show(requests_per_s)}: must be more than 0 requests per second")
    exact = Exact.of(device, plan, work)
    if batching == "static" or n_groups_of(work) > 1:
        return None
    places = min(work.batch, fitting_sequences(device, plan, work, moments))
    context = serving.mean_decode_context_tokens(
        moments.mean_input_output, moments.mean_output_squared, moments.mean_output_tokens
    )
    chunk = chunk_tokens if batching == "chunked" else 0
    matrix_s, rest_s = prompt_parts(exact, moments)
    chunk_matrix_s = exact.matrix_s(chunk) if chunk else 0.0

    def pass_of(n: float) -> AtRate | None:
        """What `n` requests that decode see; None where prompts alone take all of the time."""
        step_s = between(exact.matrix_s, n) + decode_attention_s(exact, max(n, 1.0), context)
        prompt_s = extra_s = matrix_s + rest_s
        last_s = 0.0
        if chunk:  # parts of it share decode steps, which take longer for that; its last part ends with its step
            n_chunks = moments.mean_input_tokens / (chunk - n)
            extra_s = n_chunks * (chunk_matrix_s - between(exact.matrix_s, n)) + rest_s
            prompt_s = n_chunks * step_s + extra_s
            last_s = prompt_s / n_chunks / 2
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
        return AtRate(tpot_s, wait_s + prompt_s + last_s + own_s, running, share)

    low, high, most = 0.0, 1.0, float(min(places, chunk - 1) if chunk else places)
    while (last := pass_of(min(high, most))) is None or last.running > high:
        if last is None or high >= most:
            return None
        low, high = high, 2 * high
    high = min(high, most)
    for _ in range(N_HALVINGS):
        middle = (low + high) / 2
        found = pass_of(middle)
        if found is None or found.running > middle:
            low = middle
        else:
            high, last = middle, found
    return last
