"""A server that replaces every request as it ends: what a user waits for the first token and for each next one.

The prompts of new requests share the steps of those that decode, so a token takes a decode step and its part of the
prompts that come in meanwhile. All requests start at once, as load generators do, and each place is taken `rounds`
times.
"""

import math
from typing import NamedTuple

from dse.core.compiling import compilable
from dse.model.formulas import deployment, steady
from dse.model.step import one_prompt_s, run_of

#: passes of the fixed point between how many decode and how long a prompt takes; a third changes less than 1 %
N_PASSES = 2


class Steady(NamedTuple):
    """Means over the requests of a steady server."""

    steady_tpot_s: float
    steady_ttft_s: float
    #: requests that decode at once; the others wait for their prompt, or for a place
    decoding_requests: float


@compilable
def steady_of(design, made, terms, batch, most):
    """`batch` requests at any time, of which `most` >= 1 fit."""
    n_steps, split = float(design.output_tokens), design.deployment
    alone_s, rounds = one_prompt_s(design, terms), design.load.rounds
    places = min(batch, most)
    decoding, token_s, first_s = float(places), math.nan, math.nan
    for _ in range(N_PASSES):
        n = int(deployment.micro_batch(max(int(decoding + 0.5), 1), split.n_groups, split.n_in_flight))
        wave = run_of(design, made, terms, n).wave
        token_s = steady.shared_token_s(wave.decode_step_s, wave.prefill_s, n_steps)
        own_s = design.stack.host_prompt_s
        inside_s = alone_s + own_s
        inside_s += steady.burst_wait_s(places / split.n_groups, wave.prefill_s / n + own_s, rounds)
        first_s = inside_s + steady.place_wait_s(batch, places, inside_s + n_steps * token_s)
        decoding = steady.decoding_requests(places, inside_s, n_steps * token_s)
    return Steady(token_s, first_s, decoding)
