"""A server that replaces every request as it ends: what a user waits for the first token and for each next one.

Prompts of new requests share the steps of those that decode: a token takes a decode step and its part of the prompts
of others that come in meanwhile, and a place misses few steps, so that about as many decode in a step as there are
places. All requests start at once, as load generators do, and each place is taken `rounds` times; for the first of
these requests stay in step, and their prompts queue.
"""

from typing import NamedTuple

from dse.core.compiling import compilable
from dse.model.attention import KnownSums
from dse.model.formulas import deployment, steady
from dse.model.generation import Generation
from dse.model.records import Design
from dse.model.step import Terms, known_run, one_prompt_s


class Steady(NamedTuple):
    """Means over the requests of a steady server."""

    steady_tpot_s: float
    steady_ttft_s: float
    #: requests that decode at once; the others wait for their prompt, or for a place
    decoding_requests: float


class Pass(NamedTuple):
    """A steady server: `n` sequences that decode on a device, and what a request waits for meanwhile."""

    n: int
    n_places: float
    decode_step_s: float
    #: one prompt among those of all that decode; and those of the others while a request decodes
    each_prompt_s: float
    others_s: float
    token_s: float
    #: before its first token: its own prompt, those of others, and a place in memory
    prompt_s: float
    burst_wait_s: float
    place_wait_s: float
    first_s: float
    #: from its first token to its last
    decode_s: float
    decoding: float


@compilable
def last_pass(design: Design, made: Generation, terms: Terms, batch: float, most: float, sums: KnownSums) -> Pass:
    """The steady server of `batch` requests at any time, of which `most` >= 1 fit."""
    n_steps, split, stack = float(design.output_tokens), design.deployment, design.stack
    places = float(min(batch, most))
    in_group = places / split.n_groups
    n = int(deployment.micro_batch(max(int(places), 1), split.n_groups, split.n_in_flight))
    wave = known_run(design, made, terms, n, sums).wave
    # prompts that are started kernel by kernel keep the others waiting
    prefill_s = wave.prefill_s + (n - 1) * stack.host_blocks_s
    others_s = steady.others_share(in_group) * prefill_s
    token_s = steady.shared_token_s(wave.decode_step_s, others_s, n_steps)
    prompt_s, decode_s = one_prompt_s(design, terms) + stack.host_prompt_s, n_steps * token_s
    burst_s = steady.burst_wait_s(in_group, prefill_s / n, stack.rounds_in_step, design.load.rounds)
    inside_s = prompt_s + burst_s
    place_s = steady.place_wait_s(batch, places, inside_s + decode_s)
    return Pass(
        n=n,
        n_places=places,
        decode_step_s=wave.decode_step_s,
        each_prompt_s=prefill_s / n,
        others_s=others_s,
        token_s=token_s,
        prompt_s=prompt_s,
        burst_wait_s=burst_s,
        place_wait_s=place_s,
        first_s=inside_s + place_s,
        decode_s=decode_s,
        decoding=steady.decoding_requests(places, inside_s, decode_s),
    )


@compilable
def steady_of(design: Design, made: Generation, terms: Terms, batch: float, most: float, sums: KnownSums) -> Steady:
    """`batch` requests at any time, of which `most` >= 1 fit."""
    found = last_pass(design, made, terms, batch, most, sums)
    return Steady(found.token_s, found.first_s, found.decoding)
