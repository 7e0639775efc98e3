"""TPOT and TTFT of a server at a rate of requests that it sustains, in closed form."""

from bisect import bisect_left
from functools import cache
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse.core.errors import InputError, show
from dse.model.formulas import steady
from dse.model.kv_layout import KvPlan
from dse.model.records import CONTINUOUS, STATIC
from dse.serving import steady_state
from dse.serving.steady_state import USUAL, LengthMoments, Scheduler, TrafficServer
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import Workload

#: numbers of requests at which a closed loop is solved: all up to here, then each this much larger; between, straight
DENSE_REQUESTS, REQUESTS_RATIO = 8, 1.25
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
    n, decoding, logs_ended, most_per_s, nodes = server.kept(_chain)
    logs = log(requests_per_s) * n - logs_ended
    share = np.exp(logs - logs.max())
    load, idle, taken = requests_per_s / most_per_s, float(share[0]), float(share[-1])
    waiting = taken * load / (1 - load)  # all places taken, and some wait
    known = float(share.sum())
    total = known + waiting
    n_decode = float(share @ decoding + waiting * decoding[-1]) / total
    n_running = float(share @ n + waiting * places) / total
    variation = max(moments.mean_output_squared / moments.mean_output_tokens**2 - 1, 0.0)
    place_s = steady.place_queue_s(requests_per_s, most_per_s, taken / total, variation)
    typical = server.cycle(float(nodes[bisect_left(nodes, min(max(n_running, 1.0), places))]))
    # a step holds several prompts, or a part of one
    room = max(server.design.load.step_tokens - typical.cycle.decoding, 1.0)
    prompt_s = typical.prompt_step_s * mean_tokens / room
    prompt_s = min(prompt_s, MOST_BUSY / requests_per_s)
    squared = prompt_s**2 * mean_squared / mean_tokens**2
    # where a place is free: prompts before it, and, where some run, the end of their step
    is_free, runs = (known - taken) / total, (known - taken - idle) / total
    wait_s = is_free * steady.prompt_queue_s(requests_per_s, prompt_s, squared, 0.0) + runs * typical.decode_step_s / 2
    tpot_s = n_decode / requests_per_s / moments.mean_output_tokens
    own_s = (n_running - n_decode) / requests_per_s
    if server.design.load.batching == CONTINUOUS:  # whole prompts are in step where all places are taken, not here
        own_s = server.cycle(1.0).prompt_s - steady_state.start_s(server.point, 1.0)
    first_s = own_s + steady_state.start_s(server.point, n_running) + wait_s
    prompt_share = max(1 - typical.decode_step_s / tpot_s, 0.0)
    behind_s = steady.behind_wait_s(requests_per_s, own_s + wait_s, mean_tokens / room, typical.prompt_step_s, tpot_s)
    tpot_s = steady.tpot_of_requests_s(tpot_s, behind_s, moments.mean_inverse_output, moments.mean_output_tokens)
    return AtRate(tpot_s, first_s + place_s, place_s, n_decode, prompt_share)


class _Chain(NamedTuple):
    """Closed loops of none to as many requests as there are places."""

    n: NDArray[np.float64]
    #: those of them that decode, times the requests that end in a second
    decoding: NDArray[np.float64]
    #: logarithms of the products of requests that end in a second with 1 to n at once
    logs_ended: NDArray[np.float64]
    #: requests that end in a second where all places are taken
    most_per_s: float
    #: numbers of requests at which the loop is solved
    nodes: tuple[int, ...]


def _chain(server: TrafficServer) -> _Chain:
    nodes = _nodes(server.places)
    cycles = [server.cycle(float(n)) for n in nodes]
    # beside the loop: a request holds no place meanwhile
    starts = [steady_state.start_s(server.point, n) for n in nodes]
    n = np.arange(server.places + 1.0)
    held_s = np.interp(
        n[1:], nodes, [cycle.prompt_s - start_s + cycle.decode_s for cycle, start_s in zip(cycles, starts, strict=True)]
    )
    ended_per_s = n[1:] / held_s
    decoding, logs_ended = np.zeros_like(n), np.zeros_like(n)
    decoding[1:] = ended_per_s * np.interp(n[1:], nodes, [cycle.decode_s for cycle in cycles])
    np.cumsum(np.log(ended_per_s), out=logs_ended[1:])
    return _Chain(n, decoding, logs_ended, float(ended_per_s[-1]), nodes)


@cache
def _nodes(places: int) -> tuple[int, ...]:
    """Rising whole numbers from 1 to `places`."""
    numbers, n = [], 1
    while n < places:
        numbers.append(n)
        n = n + 1 if n < DENSE_REQUESTS else max(n + 1, int(n * REQUESTS_RATIO))
    return (*numbers, places)
