"""TPOT and TTFT of a server at a rate of requests that it sustains, in closed form."""

from typing import NamedTuple

import numpy as np

from dse.core.errors import InputError, show
from dse.model.formulas import steady
from dse.model.kv_layout import KvPlan
from dse.model.records import CONTINUOUS, STATIC
from dse.serving import steady_state
from dse.serving.steady_state import USUAL, LengthMoments, Scheduler, TrafficServer
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import Workload

#: share of the time that prompts alone take at most in the wait behind others
MOST_BUSY = 0.999


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
    scheduler: Scheduler = USUAL,
) -> AtRate | None:
    """Means of a server that requests of these lengths come to, `requests_per_s` of them, at random (Poisson).

    `work` counts as for `dse.serving.steady_state.steady`. None where the rate does not hold, and for static batching,
    whose requests wait for whole batches. Raises InputError for a rate that is not positive, a prefix or a token
    policy.
    """
    if not requests_per_s > 0:
        raise InputError(f"rate = {show(requests_per_s)}: must be more than 0 requests per second")
    if scheduler.batching == "static":
        return None
    return waits_at(TrafficServer.of(device, plan, work, moments, scheduler), requests_per_s)


def waits_at(server: TrafficServer, requests_per_s: float) -> AtRate | None:
    """The means of `at_rate`; None where the server does not sustain the rate.

    With n requests at it a server ends as many a second as the closed loop of n does: a birth-death chain over n, whose
    rates of deaths those are. A request meets those that are there, and is one of them itself. Source:
    docs/explanation/model.md, At a rate (flow-equivalent server: Chandy, Herzog and Woo 1975).
    """
    places, moments, (mean_tokens, mean_squared) = server.places, server.lengths, server.computed
    if places < 1 or server.design.load.batching == STATIC or server.full.requests_per_s <= requests_per_s:
        return None
    nodes, ended_per_s, decoding, alone_s = server.loop
    load = requests_per_s / ended_per_s
    logs = np.concatenate(([0.0], np.cumsum(np.log(load))))
    share = np.exp(logs - logs.max())
    waiting = float(share[-1] * load[-1] / (1 - load[-1]))  # all places taken, and some wait
    total = float(share.sum()) + waiting
    n_decode = float((share[1:] * decoding).sum() + waiting * decoding[-1]) / total
    n_running = float((share[1:] * np.arange(1.0, places + 1)).sum() + waiting * places) / total
    variation = max(moments.mean_output_squared / moments.mean_output_tokens**2 - 1, 0.0)
    place_s = steady.place_queue_s(requests_per_s, float(ended_per_s[-1]), float(share[-1]) / total, variation)
    typical = server.cycle(nodes[int(np.searchsorted(nodes, min(max(n_running, 1.0), places)))])
    # a step holds several prompts, or a part of one
    room = max(server.design.load.step_tokens - typical.cycle.decoding, 1.0)
    prompt_s = typical.prompt_step_s * mean_tokens / room
    prompt_s = min(prompt_s, MOST_BUSY / requests_per_s)
    squared = prompt_s**2 * mean_squared / mean_tokens**2
    # where a place is free: prompts before it, and, where some run, the end of their step
    is_free, runs = float(share[:-1].sum()) / total, float(share[1:-1].sum()) / total
    wait_s = is_free * steady.prompt_queue_s(requests_per_s, prompt_s, squared, 0.0) + runs * typical.decode_step_s / 2
    tpot_s = n_decode / requests_per_s / moments.mean_output_tokens
    own_s = (n_running - n_decode) / requests_per_s
    if server.design.load.batching == CONTINUOUS:  # whole prompts are in step where all places are taken, not here
        own_s = alone_s
    first_s = own_s + steady_state.start_s(server.point, n_running) + wait_s
    prompt_share = max(1 - typical.decode_step_s / tpot_s, 0.0)
    behind_s = steady.behind_wait_s(requests_per_s, own_s + wait_s, mean_tokens / room, typical.prompt_step_s, tpot_s)
    tpot_s = steady.tpot_of_requests_s(tpot_s, behind_s, moments.mean_inverse_output, moments.mean_output_tokens)
    return AtRate(tpot_s, first_s + place_s, place_s, n_decode, prompt_share)
