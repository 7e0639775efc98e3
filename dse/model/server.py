"""A server of N requests, each replaced as it ends: TPOT, TTFT, requests and tokens a second, energy and price.

A request holds one of the server's places: its prompt is computed, then each of its O tokens takes a decode step.
Between two requests of a place each other place takes one prompt as well, so that a cycle of the server has the steps
in which prompts are computed, alone or beside decoding requests (`batching`), and the steps in which all requests
decode. All follows from the times of two steps, one of each kind. N = X (TTFT + O TPOT) / O (Little's law) holds, as
the rate X follows from the times.
"""

from typing import NamedTuple

from dse.core.compiling import compilable, inlined
from dse.model.attention import KnownSums, known_sums
from dse.model.capacity import is_replaced, waves_of
from dse.model.formulas import deployment, energy, host, steady
from dse.model.generation import Generation
from dse.model.records import CONTINUOUS, STATIC, Design
from dse.model.step import Terms, known_wave, shared_pass, shared_step_s


class ServerResults(NamedTuple):
    """Means over the requests of a server, and its rates."""

    tpot_s: float
    ttft_s: float
    requests_per_s: float
    throughput_tokens_per_s: float
    joules_per_token: float
    usd_per_million_tokens: float
    #: requests that decode at once; the others wait for their prompt, or for a place
    decoding_requests: float


class Cycle(NamedTuple):
    """Steps from the start of a request to that of the next one in its place, on a device with `n` requests."""

    #: requests that decode in a step with prompts, and prompts in it (below 1: a part of one)
    decoding: float
    prompts: float
    #: steps with a part of a request's own prompt, steps with any prompt, and all
    own_steps: float
    prompt_steps: float
    all_steps: float
    #: tokens of a step with prompts: of the group that computes them, and the mean over groups of requests
    n_tokens: float
    mean_tokens: float


class Pass(NamedTuple):
    """Times of a server's cycle, and what a request waits for."""

    n: float
    n_places: float
    cycle: Cycle
    decode_step_s: float
    prompt_step_s: float
    #: before its first token: its own prompt, those of others, and a place in memory
    prompt_s: float
    burst_wait_s: float
    place_wait_s: float
    #: from its first token to its last
    decode_s: float


class Waits(NamedTuple):
    """The times of a `Pass` that decide the rates of a server."""

    n_places: float
    prompt_s: float
    burst_wait_s: float
    place_wait_s: float
    decode_s: float


@compilable
def _cycle(
    decoding: float, prompts: float, own_steps: float, prompt_steps: float, all_steps: float, n_tokens: float
) -> Cycle:
    return Cycle(
        decoding=decoding,
        prompts=prompts,
        own_steps=own_steps,
        prompt_steps=prompt_steps,
        all_steps=all_steps,
        n_tokens=n_tokens,
        mean_tokens=n_tokens,
    )


@compilable
def cycle_of(
    n: float,
    prompt_tokens: float,
    output_tokens: float,
    step_tokens: float,
    batching: int,
    n_apart: int,
    samples: float = 1.0,
) -> Cycle:
    """Count the steps of a cycle of `n` requests of `output_tokens`, of which `samples` share a prompt of
    `prompt_tokens` to compute.

    A step takes up to `step_tokens`: chunked, the requests that decode and parts of prompts; continuous, as many whole
    prompts, or a part of one, while nobody decodes. Static: all prompts in one step. Prompts take turns: none waits but
    for those that share its steps. Requests that are alike come to theirs in step (`n_apart` 0), others by
    themselves; of `n_apart` groups of such all wait for the one that takes longest.
    """
    prompt, n_prompts = max(prompt_tokens, 1.0), max(n / samples, 1.0)
    if batching == STATIC:
        return _cycle(0.0, n_prompts, 1.0, 1.0, output_tokens + 1.0, n_prompts * prompt)
    # prompts that fit into a step, beside those that decode: below 1 a part of one
    room = step_tokens if batching == CONTINUOUS else max(step_tokens - n, 1.0)
    most = min(room / max(prompt - 1.0, 1.0), n_prompts) if room >= prompt else room / prompt
    own_steps = max(1.0 / most, 1.0)
    if batching == CONTINUOUS and n_apart == 0:  # nobody decodes meanwhile: requests that are alike stay in step
        return _cycle(0.0, most, own_steps, n_prompts / most, output_tokens + n_prompts / most, most * prompt)
    # as many as come in a step, at random moments: x / (1 - exp(-x)) for the mean of steps that have one
    half = n_prompts / (output_tokens + own_steps) / 2.0
    prompts = min(half + max(half, (15.0 + 6.0 * half * half) / (15.0 + half * half)), most)
    n_with, n_all = n_prompts / prompts, output_tokens + own_steps
    decoding = max(n - samples * max(prompts, 1.0), 0.0)
    if batching == CONTINUOUS:
        decoding, n_all = 0.0, output_tokens + n_with
    elif n_with > n_all:  # every step is full of the tokens of prompts and answers as requests have them
        # a step that is full leaves a token free, as it does where only some are
        full = step_tokens - 1.0
        decoding = min(full * (samples * output_tokens) / (prompt + samples * output_tokens), n)
        prompts = max(full - decoding, 1.0) / prompt
        n_with = max(n_prompts / prompts, output_tokens)
        n_all, own_steps = n_with, max(n_with - output_tokens, 1.0 / prompts)
    n_tokens = decoding + prompts * prompt
    if n_apart <= 1:
        return _cycle(decoding, prompts, own_steps, n_with, n_all, n_tokens)
    share = min(n_with / n_all, 1.0)
    some = steady.some_share(share, n_apart)
    with_prompts = share / some  # of the groups, in a step in which any has
    mean = max(with_prompts * n_tokens + (1.0 - with_prompts) * n, 1.0)
    return Cycle(
        decoding=decoding,
        prompts=prompts,
        own_steps=own_steps,
        prompt_steps=some * n_all,
        all_steps=n_all,
        n_tokens=n_tokens,
        mean_tokens=min(mean, n_tokens),
    )


@inlined
def server_of(
    times: Pass | Waits, n_requests: float, output_tokens: float, board_w: float, usd_per_hour: float
) -> ServerResults:
    """Name the results of a server's cycle; power and price are of all devices."""
    tpot_s = times.decode_s / output_tokens
    ttft_s = times.prompt_s + times.burst_wait_s + times.place_wait_s
    rate = steady.closed_loop_tokens_per_s(n_requests, output_tokens, ttft_s, tpot_s)
    return ServerResults(
        tpot_s=tpot_s,
        ttft_s=ttft_s,
        requests_per_s=rate / output_tokens,
        throughput_tokens_per_s=rate,
        joules_per_token=energy.joules_per_token(board_w, rate),
        usd_per_million_tokens=energy.usd_per_million_tokens(usd_per_hour, rate),
        decoding_requests=steady.decoding_requests(times.n_places, times.prompt_s + times.burst_wait_s, times.decode_s),
    )


@compilable
def static_pass(
    n: float,
    n_places: float,
    decode_step_s: float,
    prefill_s: float,
    wave_s: float,
    total_s: float,
    output_tokens: float,
) -> Pass:
    """Batches that run from their prompts to their last tokens, one after the other: all requests take `total_s`.

    Without a cache a prompt is part of every step, and the first token comes with the first.
    """
    first_s = prefill_s if prefill_s > 0.0 else decode_step_s
    return Pass(
        n=n,
        n_places=n_places,
        cycle=cycle_of(n, 1.0, output_tokens, 1.0, STATIC, 1, 1.0),
        decode_step_s=decode_step_s,
        prompt_step_s=prefill_s,
        prompt_s=first_s,
        burst_wait_s=0.0,
        place_wait_s=max(total_s - wave_s, 0.0),
        decode_s=wave_s - first_s,
    )


class AtOnce(NamedTuple):
    """Requests that a server has at a time, one like the other."""

    n: float
    #: how many of them fit, at least 1
    most: float
    #: tokens of an answer, mean over requests
    output_tokens: float
    #: groups that come to their prompts by themselves: a step waits for the longest prompt, `longest` times the mean
    n_apart: int
    longest: float


@compilable
def last_pass(
    design: Design, made: Generation, terms: Terms, sums: KnownSums, requests: AtOnce, total_s: float
) -> Pass:
    """The cycle of a server of these requests. A static batch takes `total_s` in all."""
    split, stack, load, n_steps = design.deployment, design.stack, design.load, requests.output_tokens
    places = float(min(requests.n, requests.most))
    if load.batching == STATIC:
        places = float(waves_of(requests.n, requests.most, is_replaced(design)).running)
    n = int(deployment.micro_batch(max(int(places), 1), split.n_groups, split.n_in_flight))
    wave = known_wave(design, made, terms, n, sums)
    if load.batching == STATIC:
        return static_pass(float(n), places, wave.decode_step_s, wave.prefill_s, wave.wave_s, total_s, n_steps)
    prompt_tokens = float(terms.input_tokens - terms.prompt.prefix_tokens)
    samples, step_tokens = float(load.samples), float(load.step_tokens)
    cycle = cycle_of(float(n), prompt_tokens, n_steps, step_tokens, load.batching, requests.n_apart, samples)
    n_tokens = cycle.n_tokens + (requests.longest - 1.0) * cycle.prompts * prompt_tokens
    n_mean = cycle.mean_tokens if requests.n_apart > 1 else n_tokens
    shared = shared_pass(design, terms, cycle.decoding, n_tokens, n_mean)
    request_sums = known_sums(design, made, terms.same_from, n, sums)
    blocks_s, prompts = stack.host_blocks_s, requests.longest * cycle.prompts
    prompt_step_s = shared_step_s(cycle.decoding, prompts, shared, request_sums, terms, blocks_s)
    if requests.n_apart > 1:  # another group, which decodes meanwhile, may take longer
        beside_s = shared_step_s(float(n), 0.0, shared, request_sums, terms, blocks_s)
        prompt_step_s = max(prompt_step_s, beside_s)
    own_s = cycle.own_steps * prompt_step_s
    if stack.token_time == 1.0:
        cycle_s = cycle.prompt_steps * prompt_step_s + (cycle.all_steps - cycle.prompt_steps) * wave.decode_step_s
        decode_s = cycle_s - own_s
    else:  # a request's tokens take longer or less than predicted, its own prompt does not
        decode_s = (cycle.prompt_steps - cycle.own_steps) * prompt_step_s * stack.token_time
        decode_s += (cycle.all_steps - cycle.prompt_steps) * wave.decode_step_s
    # of all rounds of requests those of `rounds_in_step` are in step, as all start at once: their prompts queue
    rounds, queued_steps = float(load.rounds), cycle.prompt_steps - cycle.own_steps
    burst_s = steady.burst_wait_s(queued_steps, prompt_step_s, stack.rounds_in_step, rounds)
    prompt_s = own_s + host.start_s(places, stack.host_prompt_s, stack.host_blocks_s, stack.host_request_s)
    return Pass(
        n=float(n),
        n_places=places,
        cycle=cycle,
        decode_step_s=wave.decode_step_s,
        prompt_step_s=prompt_step_s,
        prompt_s=prompt_s,
        burst_wait_s=burst_s,
        place_wait_s=steady.place_wait_s(requests.n, places, prompt_s + burst_s + decode_s),
        decode_s=decode_s,
    )


@compilable
def server_results(design: Design, times: Pass, batch: float, n_steps: float) -> ServerResults:
    """The results of a server of `batch` requests of `n_steps` tokens each, whose cycle is `times`."""
    n, device = design.deployment.n_devices, design.device
    return server_of(times, batch, n_steps, n * device.board_power_w, n * device.usd_per_hour)
